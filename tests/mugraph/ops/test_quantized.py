"""Quantised operators that are composed of others, against onnxruntime's CPU kernels; what is exact of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mugraph.domains import FiniteField, Range, RangeDomain, Real
from mugraph.domains.base import BYTES
from mugraph.ops import RUNTIME_OPERATORS, NotExpressible, NotUnderstood, get_operator, reader_of
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import ShapeError, Undecided
from mugraph.terms.text import parse_term, parse_type
from tests.support.onnx_helpers import foreign, inferred, make_node, run_node, type_of
from tests.support.ranges import claims

F, U, S = np.float32, np.uint8, np.int8
MS = "com.microsoft"


def scalar(value: float, dtype: Any = F) -> np.ndarray:
    return np.asarray(value, dtype)


def whole(*shape: int, dtype: Any = U) -> np.ndarray:
    """Bytes from all of their range; of signed ones half, as onnxruntime saturates sums of two products of others by unsigned
    ones on processors without VNNI (docs/upstream.md)."""
    limits, share = np.iinfo(dtype), 2 if dtype is S else 1
    return np.random.default_rng(shape).integers(limits.min // share, limits.max // share + 1, shape).astype(dtype)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-2, 2, shape).astype(F)


@dataclass(frozen=True)
class Case:
    """A node, with the positions of inputs that are constants."""

    op: str
    inputs: Sequence[np.ndarray | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    domain: str = MS

    def __str__(self) -> str:
        shapes = ["-" if i is None else f"{i.dtype}{list(i.shape)}" for i in self.inputs]
        return " ".join([self.op, *shapes, *(f"{k}={v}" for k, v in self.attrs.items()), *map(str, self.constants)])


X, ONE, MANY = (
    (scalar(0.02), scalar(120, U)),
    (scalar(0.03), scalar(4, S)),
    (np.linspace(0.01, 0.04, 6, dtype=F), whole(6, dtype=S)),
)
FLAT = (np.linspace(0.01, 0.04, 6, dtype=F), np.zeros(6, S))
OUT = (scalar(0.9), scalar(100, U))


def _products() -> list[Case]:
    x, w = whole(2, 3, 5), whole(5, 6, dtype=S)
    cases = [Case("QLinearMatMul", [x, *X, w, *right, *OUT], domain="") for right in (ONE, FLAT)]
    signed = (scalar(0.8), scalar(-3, S))
    cases += [Case("QLinearMatMul", [whole(3, 5, dtype=S), scalar(0.1), scalar(7, S), w, *ONE, *signed], domain="")]
    image, kernel, bias = whole(1, 4, 6, 5), whole(6, 2, 3, 2, dtype=S), np.arange(-300, 300, 100, dtype=np.int32)
    for attrs in ({"group": 2}, {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}):
        for right in (ONE, FLAT):
            cases += [Case("QLinearConv", [image, *X, kernel, *right, *OUT, *more], attrs, domain="") for more in ([], [bias])]
    scale, zero = X
    b = floats(6)
    for right, right_zero in (ONE, MANY, FLAT):
        cases += [
            Case("MatMulIntegerToFloat", [x, w, scale, right, zero, right_zero]),
            Case("MatMulIntegerToFloat", [x, w, scale, right, zero, right_zero, b], constants=(5,)),
            Case("DynamicQuantizeMatMul", [floats(2, 3, 5), w, right, right_zero], constants=(3,)),
            Case("DynamicQuantizeMatMul", [floats(2, 3, 5), w, right, right_zero, b]),
        ]
    cases += [
        Case("MatMulIntegerToFloat", [x, w, scale, ONE[0], zero]),
        Case("MatMulIntegerToFloat", [x, w, scale, ONE[0], zero, None, b]),
        Case("DynamicQuantizeMatMul", [floats(3, 5), w, ONE[0]]),
        Case("DynamicQuantizeMatMul", [floats(3, 5), w, ONE[0], None, b]),
    ]
    return cases


def _between() -> list[Case]:
    x, y = whole(2, 3, 4), whole(3, 4)
    other = (scalar(0.05), scalar(99, U))
    fraction = (scalar(1 / 256), scalar(0, U))
    cases = [Case(op, [x, *X, y, *other, scalar(0.07), scalar(130, U)]) for op in ("QLinearAdd", "QLinearMul")]
    cases += [Case("QLinearSigmoid", [x, *X, *fraction])]
    cases += [Case("QLinearLeakyRelu", [x, *X, scalar(0.02), scalar(60, U)], {"alpha": a}) for a in (0.25, 0.5)]
    cases += [Case("QLinearSoftmax", [x, *X, *fraction], {"axis": axis, "opset": 13}, (1, 2, 3, 4)) for axis in (-1, 1)]
    cases += [Case("QLinearSoftmax", [x, *X, *fraction], {"axis": 2, "opset": 11}, (1, 2, 3, 4))]
    cases += [Case("QLinearGlobalAveragePool", [whole(1, 3, 4, 5), *X, scalar(0.01), scalar(120, U)], {"channels_last": 0})]
    cases += [
        Case(
            "QLinearConcat",
            [*OUT, x, *X, whole(2, 1, 4), *other, x, *X],
            {"axis": 1},
            tuple(i for i in range(11) if i not in (2, 5, 8)),
        )
    ]
    return cases


CASES = [*_products(), *_between()]


def test_every_operator_has_a_case() -> None:
    own = {key for key, record in RUNTIME_OPERATORS.items() if record.contract is not None and BYTES in record.contract.inputs}
    assert {(case.domain, case.op) for case in CASES} == own | {("", "QLinearMatMul"), ("", "QLinearConv")}


def agree(actual: Sequence[Any], expected: Sequence[np.ndarray]) -> None:
    """Integers within one step, of which few are off: the exact number lies half way; floats within rounding."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert np.shape(a) == e.shape
        if e.dtype.kind == "f":
            np.testing.assert_allclose(np.asarray(a), e, rtol=2e-5, atol=2e-5)
        else:
            steps = np.abs(np.asarray(a, np.int64) - e.astype(np.int64))
            assert steps.max() <= 1 and np.mean(steps > 0) <= 0.05, steps


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    """Read; equal to onnxruntime; written and run again with the same bits; in a finite field; within its range."""
    node = make_node(case.op, case.inputs, case.attrs, 1, case.domain)
    expected = run_node(node, case.inputs, 20, case.constants)
    record = reader_of(case.domain, case.op)
    assert record is not None
    reading = record.read(foreign(node, case.inputs, 20, case.constants))
    operands = [np.asarray(case.inputs[i]) for i in reading.operands]
    types = [type_of(a) for a in operands]
    assert record.types(reading.attrs, types) == tuple(map(type_of, expected))
    wide = [a.astype(np.float64) if a.dtype == F else a for a in operands]
    values = record.run(Real(), reading.attrs, wide)
    agree(values, expected)
    assert record.flops({**record.defaults, **reading.attrs}, types, record.types(reading.attrs, types)) > 0
    form = record.to_onnx(reading.attrs, types, 20)
    placed = [operands[source] if isinstance(source, int) else source for source in form.inputs]
    fixed = [i for i, a in enumerate(placed) if a is None or any(a is case.inputs[c] for c in case.constants)]
    again = run_node(make_node(form.op_type, placed, form.attributes, 1, form.domain), placed, 20, fixed)
    assert np.array_equal(again[0], expected[0])
    generator, field_ = np.random.default_rng(3), FiniteField(3)
    residues = record.run(field_, reading.attrs, [field_.random(generator, a.shape) for a in operands])
    assert residues[0].shape == expected[0].shape
    (range_,) = record.run(RangeDomain(), reading.attrs, [Range.of(a.astype(np.float64)) for a in operands])
    assert not claims(range_, values[0])


def test_a_step_too_many_is_noticed() -> None:
    with pytest.raises(AssertionError):
        agree([np.asarray([1, 3])], [np.asarray([1, 5], U)])
    with pytest.raises(AssertionError):
        agree([np.asarray([1, 3])], [np.asarray([1, 4], U)])


# What is exact


def test_whole_numbers_are_multiplied_exactly() -> None:
    """A sum that single precision cannot hold, which even the evaluation in single precision must not round."""
    x, w = np.full((1, 4097), 255, U), np.full((4097, 1), 255, U)
    w[0] = 254
    for width in (np.float64, np.float32):
        (product,) = get_operator("MatMulInteger").run(Real(width), {}, [x, w])
        assert product.dtype == np.int32 and product.item() == 4096 * 255 * 255 + 254 * 255


def test_ties_go_to_even_and_ends_saturate() -> None:
    x = np.asarray([-1.5, -0.5, 0.5, 1.5, 2.5, 300.0, -300.0])
    for to, expected in (("uint8", [0, 0, 0, 2, 2, 255, 0]), ("int8", [-2, 0, 0, 2, 2, 127, -128])):
        term = parse_term(f"QuantizeLinear[to={to}](x, 1.0)")
        assert evaluate([term], Real(), {"x": x})[term].tolist() == expected


@pytest.mark.parametrize("dtype", [U, S])
@pytest.mark.parametrize("scale", [1e-38, 0.1, 1 / 3, 7.3e30])
def test_quantisation_undoes_its_inverse(dtype: Any, scale: float) -> None:
    """In onnxruntime's single precision, for every number, zero point and some scales: the rule that cancels them is exact."""
    every = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    for zero in (np.iinfo(dtype).min, 3, np.iinfo(dtype).max):
        parameters = [scalar(scale), scalar(zero, dtype)]
        (numbers,) = run_node(make_node("DequantizeLinear", [every, *parameters], {}), [every, *parameters], 13)
        (back,) = run_node(make_node("QuantizeLinear", [numbers, *parameters], {}), [numbers, *parameters], 13)
        assert np.array_equal(back, every)


@pytest.mark.parametrize("dtype", [U, S])
def test_quantisation_undoes_its_inverse_in_halves(dtype: Any) -> None:
    """For every number, every scale that makes no infinity of it, and some zero points."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scales = every[(np.abs(every) <= 256) & (every != 0)]
    limits = np.iinfo(dtype)
    numbers = np.broadcast_to(np.arange(limits.min, limits.max + 1).astype(dtype), (len(scales), 256)).copy()
    for zero in (limits.min, 3, limits.max):
        parameters = [scales, np.full(len(scales), zero, dtype)]
        (undone,) = run_node(make_node("DequantizeLinear", [numbers, *parameters], {"axis": 0}), [numbers, *parameters], 19)
        (back,) = run_node(make_node("QuantizeLinear", [undone, *parameters], {"axis": 0}), [undone, *parameters], 19)
        assert np.array_equal(back, numbers)


# What is not understood, ill-typed, not to be written


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "reason"),
    [
        ("QuantizeLinear", [floats(4, 4), np.ones((4, 2), F)], {"block_size": 2}, "in blocks"),
        ("DequantizeLinear", [whole(4, 4), scalar(1)], {"precision": 1}, "precision"),
        ("DequantizeLinear", [whole(4, 4), np.ones((1, 4), F)], {}, "with a scale"),
        ("DequantizeLinear", [whole(4), scalar(1)], {"output_dtype": 10}, "output_dtype"),
        ("QuantizeLinear", [floats(4), scalar(1)], {"output_dtype": 22}, "int4"),
        ("MatMulInteger", [whole(3, 5), whole(5, 4), np.ones(3, U)], {}, "zero point"),
        ("DynamicQuantizeLinear", [floats()], {}, "scalar"),
        ("QLinearMatMul", [whole(2, 5), np.ones(2, F), np.ones(2, U), whole(5, 6), *X, *OUT], {}, "parameter"),
        ("QLinearMatMul", [whole(2, 5), *X, whole(5, 6), np.ones(6, F), scalar(0, U), *OUT], {}, "scales"),
    ],
)
def test_not_understood(op: str, inputs: Sequence[np.ndarray], attrs: Mapping[str, Any], reason: str) -> None:
    record = reader_of("", op)
    assert record is not None
    with pytest.raises(NotUnderstood, match=reason):
        record.read(foreign(make_node(op, inputs, attrs), inputs, 21))


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("QuantizeLinear[to=uint8](x, y)", "int32[4] float[]"),
        ("QuantizeLinear[to=uint8](x, y)", "bfloat16[4] bfloat16[]"),
        ("QuantizeLinear[to=int32](x, y)", "[4] []"),
        ("QuantizeLinear[to=uint8](x, y, z)", "[4] [] int8[]"),
        ("QuantizeLinear[axis=-1,to=uint8](x, y)", "[4] [3]"),
        ("QuantizeLinear[to=uint8](x, y)", "[4] [4]"),
        ("DequantizeLinear(x, y)", "[4] []"),
        ("DequantizeLinear[axis=-1,block=2](x, y)", "int4[4,4] [4,3]"),
        ("DequantizeLinear[axis=-1,block=2](x, y)", "int4[4,4] [2]"),
        ("DequantizeLinear[axis=-1,block=2](x, y)", "int4[4,4] [1,2]"),
        ("DequantizeLinear[block=2](x, y)", "int4[4] []"),
        ("DequantizeLinear[axis=-1,block=2](x, y, z)", "int4[4,4] [4,2] uint4[4,2]"),
        ("DequantizeLinear(x, y, z)", "uint8[4] [] int8[]"),
        ("DequantizeLinear(x, y, z)", "int32[4] [] int32[]"),
        ("DynamicQuantizeLinear[axis=-1](x)", "[3,4]"),
        ("DynamicQuantizeLinear[axis=-1](x)", "double[4]"),
        ("MatMulInteger(x, y)", "uint8[3,4] int32[4,5]"),
        ("MatMulInteger(x, y)", "uint8[3,4] int8[5,5]"),
        ("MatMulInteger[zeros=('a',)](x, y, z)", "uint8[3,4] int8[4,5] int8[]"),
        ("MatMulInteger[zeros=('columns',)](x, y, z)", "uint8[3,4] int8[4,5] int8[4]"),
        ("MatMulInteger[zeros=('b','a')](x, y, z, z)", "uint8[3,4] uint8[4,5] uint8[]"),
    ],
)
def test_ill_typed(term: str, types: str) -> None:
    with pytest.raises(ShapeError):
        inferred(term, types)


def test_a_symbolic_tensor_keeps_its_dimensions() -> None:
    assert str(inferred("QuantizeLinear[axis=-1,to=int8](x, y)", "[a,b] [b]")) == "int8[a,b]"
    assert str(inferred("MatMulInteger(x, y)", "uint8[n,a,b] int8[b,c]")) == "int32[n,a,c]"
    assert str(inferred("DequantizeLinear[axis=-1,block=32](x, y)", "int4[n,32*g] float16[n,g]")) == "float16[n,32*g]"
    with pytest.raises(Undecided, match="in blocks of 32"):
        inferred("DequantizeLinear[axis=-1,block=32](x, y)", "int4[n,k] [n,g]")


def test_what_an_opset_lacks_is_not_written() -> None:
    quantize = get_operator("QuantizeLinear")
    with pytest.raises(NotExpressible, match="before opset 13"):
        quantize.to_onnx({"axis": -1, "to": parse_type("int8[]").dtype}, [parse_type("[3,4]"), parse_type("[4]")], 12)
    with pytest.raises(NotExpressible, match="before opset 21"):
        quantize.to_onnx({"to": parse_type("int16[]").dtype}, [parse_type("[3,4]"), parse_type("[]")], 20)
    with pytest.raises(NotExpressible):
        quantize.to_onnx({"axis": -1, "to": parse_type("int8[]").dtype}, [parse_type("[a,b]"), parse_type("[b]")], 13)
