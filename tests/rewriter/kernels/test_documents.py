"""Attention within documents that the run numbers: integers are compared in the kernel, and no mask is made of them before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.statements import Compute
from mugraph.blocks.validity import check_kernel
from mugraph.onnx import load
from mugraph.terms.shape import DataType, Dim, symbol
from mugraph.terms.text import parse_term
from rewriter.cost import get_device
from rewriter.cost.schedules import ranked
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.scalar import NotGenerated
from rewriter.run.optimize import optimize
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import F16, F32, cut, kernel_of_terms, random_inputs, reference, tensor
from tests.support.masks import HEADS, LENGTH, SIZE, attention
from tests.support.models import random_feeds, session
from tests.support.triton_help import Interpreter

NUMBERS = "numbers"
SAME = f"Unsqueeze[axes=(-3,)](Equal(Unsqueeze[axes=(-1,)]({NUMBERS}), Unsqueeze[axes=(-2,)]({NUMBERS})))"


def within_documents(b: Dim, h: Dim, s: Dim, d: int, dtype: DataType = F32, *, causal: bool = False) -> Kernel:
    """Axes b1 (batch), b0 (heads), s, d, t, e."""
    types = {name: tensor(dtype, b, h, s, d) for name in "qkv"} | {NUMBERS: tensor(DataType.INT64, b, s)}
    shown = f"And(CausalMask[columns={s},rows={s}](), {SAME})" if causal else SAME
    scores = f"Where({shown}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.25), -inf)"
    return kernel_of_terms("documents", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


def with_scores(kernel: Kernel, before: str, after: str) -> Kernel:
    """The kernel with another text in the thread graph of its scores."""
    (block,) = kernel.blocks
    (old,) = (s for s in block.statements if isinstance(s, Compute) and before in str(s.term))
    new = replace(old, term=parse_term(str(old.term).replace(before, after)))
    return replace(kernel, blocks=(replace(block, statements=tuple(new if s is old else s for s in block.statements)),))


@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_is_proved_for_all_sizes(causal: bool) -> None:
    for kernel in (within_documents(*map(symbol, "bhs"), 4, causal=causal), within_documents(2, 3, 7, 4, causal=causal)):
        assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None


@pytest.mark.parametrize("number", ["0.5", "1e20", "inf"])
def test_a_number_beside_integers_is_one_of_theirs(number: str) -> None:
    """In Triton it gets their type, and becomes another there."""
    types = {"n": tensor(DataType.INT64, symbol("a")), "x": tensor(F32, symbol("a"))}
    wrong = kernel_of_terms("wrong", types, {"y": f"Where(Less(n, {number}), x, 0.0)"})
    assert "beside integers" in str(why_not_proved(wrong))
    with pytest.raises(NotGenerated, match="beside an integer"):
        generate(wrong, cut(1))
    right = kernel_of_terms("right", types, {"y": "Where(Less(n, 2.0), x, 0.0)"})
    assert why_not_proved(right) is None and interpret(right, LEAST_TESTS, 0) is None and generate(right, cut(1))


def test_what_is_computed_in_floats_is_no_integer() -> None:
    types = {"n": tensor(DataType.INT64, symbol("a")), "x": tensor(F32, symbol("a"))}
    right = kernel_of_terms("k", types, {"y": "Where(Less(n, 2.0), x, 0.0)"})
    with pytest.raises(NotGenerated, match="a float beside an integer"):
        generate(with_scores(right, "2.0", "Mul(3.0, 0.5)"), cut(1))


def test_truth_values_that_are_counted_are_compared_with_integers() -> None:
    types = {"n": tensor(DataType.INT64, symbol("a")), "b": tensor(DataType.BOOL, symbol("a")), "x": tensor(F32, symbol("a"))}
    counted = kernel_of_terms("counted", types, {"y": "Where(Equal(n, Cast[to=int64](b)), x, 0.0)"})
    assert interpret(counted, LEAST_TESTS, 0) is None


EQUAL = f"Equal({NUMBERS}_tile, {NUMBERS}_tile2)"


@pytest.mark.parametrize("other", [f"Equal({NUMBERS}_tile, {NUMBERS}_tile)", f"Less({NUMBERS}_tile, {NUMBERS}_tile2)"])
def test_another_comparison_is_not_proved(other: str) -> None:
    mutant = with_scores(within_documents(2, 3, 7, 4), EQUAL, other)
    check_kernel(mutant)
    assert why_not_proved(mutant) is not None and interpret(mutant, LEAST_TESTS, 0) is not None


@pytest.mark.parametrize("narrow", ["Cast[to=int32]({})", "Cast[to=float]({})", "Add({0}, {0})"])
def test_integers_that_may_wrap_around_or_be_rounded_are_not_proved(narrow: str) -> None:
    """Of real numbers the sides are equal."""
    inner = [narrow.format(f"{NUMBERS}_tile{end}") for end in ("", "2")]
    mutant = with_scores(within_documents(2, 3, 7, 4), EQUAL, f"Equal({inner[0]}, {inner[1]})")
    assert "of integers" in str(why_not_proved(mutant))


@pytest.mark.parametrize(("split", "s", "t", "causal"), [(1, 16, 16, False), (2, 16, 16, True), (1, 32, 16, True)])
def test_numbers_are_compared_exactly(interpreter: Interpreter, split: int, s: int, t: int, causal: bool) -> None:
    kernel = within_documents(2, 3, 50, 16, causal=causal)
    numbers = np.stack([np.arange(50) // 20, np.arange(50) % 2]) + (1 << 40)  # floats of 32 bits do not tell them apart
    inputs = {**random_inputs(kernel, 1), NUMBERS: numbers}
    (wanted,) = reference(kernel, inputs)
    (computed,) = interpreter.run(kernel, cut(split, s=s, t=t), inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


def test_comparing_costs_little() -> None:
    def time_us(kernel: Kernel) -> float:
        return ranked(kernel, get_device("h200"), most=1)[0][0]

    types = {name: tensor(F16, 8, 12, 2048, 64) for name in "qkv"}
    whole = "MatMul(Softmax[axis=-1](Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.25)), v)"
    dense = time_us(kernel_of_terms("attention", types, {"y": whole}))
    assert dense < time_us(within_documents(8, 12, 2048, 64, F16)) < 1.5 * dense
    assert time_us(within_documents(8, 12, 2048, 64, F16, causal=True)) < dense, "what comes later is skipped"


def numbered(length: int | None, low: float = -np.inf, causal: bool = False) -> ModelProto:
    """Attention within documents, ``numbers`` of which are fed."""
    text = f"ni = Unsqueeze({NUMBERS}, last) nj = Unsqueeze({NUMBERS}, middle) same = Equal(ni, nj)"
    text += " past = LessOrEqual(key, query) seen = And(past, same)" if causal else " seen = Identity(same)"
    proto = attention(None, "Where", text, low)
    (lifted,) = (node for node in proto.graph.node if list(node.output) == ["seen4"])
    lifted.input[1] = "middle_of_four"
    constants = {"last": [-1], "middle": [-2], "middle_of_four": [-3]}
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    proto.graph.input.append(onnx.helper.make_tensor_value_info(NUMBERS, TensorProto.INT64, ["b", "s"]))
    if length is not None:
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[1].Clear()
            value.type.tensor_type.shape.dim[1].dim_value = length
    return proto


@pytest.mark.parametrize(
    ("proto", "causal"),
    [(numbered(None), False), (numbered(LENGTH, float(np.finfo(np.float32).min)), False), (numbered(None, causal=True), True)],
    ids=["any length", "fixed and finite", "causal"],
)
def test_a_model_compares_in_its_kernel(proto: ModelProto, causal: bool, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "model.onnx")
    sizes = {**{name: (2, LENGTH, HEADS * SIZE) for name in "qkv"}, NUMBERS: (2, LENGTH)}
    optimize(tmp_path / "model.onnx", tmp_path / "out.onnx", device="h200", deterministic=True, shapes=sizes)
    (node,) = load(tmp_path / "out.onnx").graph.nodes()
    assert node.op == KERNEL and set(onnx.load(tmp_path / "out.onnx").graph.node[0].input) == {*"qkv", NUMBERS}
    assert ("CausalMask" in str(kernel_of(node.attrs).body)) is causal
    before, after = (session((tmp_path / name).read_bytes()) for name in ("model.onnx", "out.onnx"))
    is_fixed = isinstance(before.get_inputs()[0].shape[1], int)
    for length in (LENGTH,) if is_fixed else (LENGTH, 37, 1):
        feeds = {**random_feeds(before, b=2, s=length), NUMBERS: np.stack([np.arange(length) // 100, np.arange(length) % 3])}
        np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
