"""Constants of a file: read without their bytes, or refused with one message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from mugraph.onnx import ModelError
from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.weights import Weights
from mugraph.terms.shape import DataType, TensorType

READER = ConstantReader(Weights(None))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([1.5], np.float32))}, np.array([1.5], np.float32)),
        ({"value_int": 7}, np.array(7, np.int64)),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
    ],
)
def test_constant_nodes(attribute: dict[str, Any], expected: np.ndarray) -> None:
    constant = READER.node(helper.make_node("Constant", [], ["c"], **attribute))
    assert constant.type == TensorType(DataType(helper.np_dtype_to_tensor_dtype(expected.dtype)), expected.shape)
    np.testing.assert_array_equal(constant.load(), expected)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("Constant", [], ["c"], name="k"), "'k' must have one attribute and one output"),
        (helper.make_node("Constant", [], ["c", "d"], name="k", value_int=1), "'k' must have one attribute and one output"),
        (helper.make_node("Constant", [], ["c"], name="k", value_bool=1), "unknown attribute 'value_bool'"),
    ],
)
def test_constant_nodes_that_hold_nothing(node: NodeProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        READER.node(node)


def test_element_types_that_do_not_exist() -> None:
    with pytest.raises(ModelError, match="tensor 'w' has the unknown element type 999; repair or export the model again"):
        READER.tensor(TensorProto(name="w", data_type=999))
