"""Fresh names, and literals that are written once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

from mugraph.onnx.literals import Literals, bytes_of, head_of, tensor_of
from mugraph.onnx.scopes import NameSupply


def test_fresh_names_are_never_given_twice() -> None:
    supply = NameSupply(["superopt/MatMul_2"])
    assert [supply.fresh("MatMul") for _ in range(3)] == ["superopt/MatMul", "superopt/MatMul_3", "superopt/MatMul_4"]
    assert supply.fresh("Add") == "superopt/Add"


def test_equal_literals_are_one_tensor_and_others_are_not() -> None:
    tensors: list[TensorProto] = []
    supply = NameSupply([])
    literals = Literals(lambda: supply.fresh("constant"), tensors.append)
    first = literals.name(np.array([0], np.int64))
    assert literals.name(np.array([0], np.int64)) == first
    others = [np.array([0], np.int32), np.array(0, np.int64), np.array([1], np.int64), np.array([-0.0]), np.array([0.0])]
    assert len({first, *map(literals.name, others)}) == len(tensors) == 6


def test_arrays_of_any_layout_become_tensors() -> None:
    for array in (np.arange(6).reshape(2, 3).T, np.array(3.5), np.zeros((0, 2), np.float32)):
        tensor = tensor_of(array, "c")
        assert tuple(tensor.dims) == array.shape
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), array)


def test_the_head_of_a_tensor_and_the_bytes_of_its_array_are_the_tensor() -> None:
    floats, whole = np.arange(6, dtype=np.float16).reshape(2, 3), np.zeros((0, 2), np.int64)
    for array in (
        floats,
        floats.T,
        whole,
        np.array(True),
        floats.astype(ml_dtypes.bfloat16),
        floats.astype(ml_dtypes.float8_e4m3fn),
    ):
        head = head_of(array, "c")
        assert head is not None
        head.raw_data = bytes(bytes_of(array))
        assert head == tensor_of(array, "c")
    assert head_of(np.array(["a"], object), "c") is None and head_of(floats.astype(ml_dtypes.int4), "c") is None
