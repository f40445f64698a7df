"""Every operator record against onnxruntime: reading, typing, meaning and writing, over opsets and attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.domains import FieldArray, FiniteField, Real, Symbolic
from mugraph.ops import ONNX_OPERATORS, REGISTRY, NotExpressible, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.text import parse_term, parse_type
from tests.support.onnx_helpers import foreign, make_node, run_form, run_node, type_of
from tests.support.operator_cases import CASES, FLOAT32, OPSETS, Case, F


def test_every_operator_has_a_case() -> None:
    """Those that are defined by a decomposition have theirs in test_contrib.py, but for two that are ONNX's in every opset of
    them: one whose layout is that of images, and one that takes indices."""
    plain = {name for name, record in ONNX_OPERATORS.items() if not record.composite}
    assert {case.op for case in CASES} == {*plain, "GroupNormalization", "OneHot"}


def _agree(actual: Sequence[Any], expected: Sequence[np.ndarray], rtol: float, atol: float) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert np.shape(a) == e.shape
        np.testing.assert_allclose(np.asarray(a), e, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    """Read at every opset of the case; equal to onnxruntime; written at every opset that can hold it."""
    arrays = case.arrays()
    node = make_node(case.op, arrays, case.attrs, case.outputs)
    operator = ONNX_OPERATORS[case.op]
    written: set[int] = set()
    forms: set[str] = set()
    for opset in case.opsets:
        expected = run_node(node, arrays, opset, case.constants)
        reading = operator.read(foreign(node, arrays, opset, case.constants))
        operands = [np.asarray(arrays[i]) for i in reading.operands]
        types = [type_of(a) for a in operands]
        assert operator.types(reading.attrs, types) == tuple(map(type_of, expected))
        first_seen = repr(sorted(reading.attrs.items())) not in forms
        if not first_seen:
            continue
        forms.add(repr(sorted(reading.attrs.items())))
        _agree(operator.run(Real(np.float32), reading.attrs, operands), expected, **FLOAT32)
        wide = [a.astype(np.float64) if a.dtype == F else a for a in operands]
        _agree(operator.run(Real(np.float64), reading.attrs, wide), expected, **FLOAT32)
        outputs = operator.types(reading.attrs, types)
        assert operator.flops(reading.attrs, types, outputs) >= 0
        for target in OPSETS:
            try:
                form = operator.to_onnx(reading.attrs, types, target)
            except NotExpressible:
                continue
            written.add(target)
            _agree(run_form(form, operands, target, case.outputs), expected, **FLOAT32)
    assert written.issuperset(case.opsets), sorted(set(case.opsets) - written)


def test_a_wrong_meaning_is_noticed() -> None:
    """The comparison says no: a sum is not a difference, and a tolerance of 1 would hide it."""
    with pytest.raises(AssertionError):
        _agree([np.ones(3, F)], [np.full(3, 1.001, F)], **FLOAT32)
    with pytest.raises(AssertionError):
        _agree([np.ones((3, 1), F)], [np.ones((1, 3), F)], **FLOAT32)


def test_flops() -> None:
    def count(term: str, types: str) -> int:
        parsed = parse_term(term)
        operands = dict(zip("xy", map(parse_type, types.split()), strict=False))
        inputs = [operands[i.name] for i in parsed.inputs]
        operator = get_operator(parsed.op)
        attrs = {**operator.defaults, **dict(parsed.attrs)}
        return operator.flops(attrs, inputs, operator.types(attrs, inputs))

    assert count("MatMul(x, y)", "float[5,2,3] float[3,4]") == 2 * 5 * 2 * 3 * 4
    assert count("Gemm[transA=true](x, y)", "float[3,2] float[3,4]") == 2 * 2 * 3 * 4
    conv = "Conv[dilations=(1,1),group=2,pads=(1,1,1,1),strides=(1,1)](x, y)"
    assert count(conv, "float[1,4,8,8] float[6,2,3,3]") == 2 * 6 * 64 * 2 * 9
    assert count("Add(x, y)", "float[2,3] float[3]") == 6
    with pytest.raises(Undecided):
        count("MatMul(x, y)", "float[2,n] float[n,4]")


def test_registry_suggests_a_name() -> None:
    with pytest.raises(KeyError, match="did you mean 'Gelu'"):
        get_operator("Gelo")
    assert all(record.name == name for name, record in REGISTRY.items())
    assert math.isinf(get_operator("Clip").defaults["max"])


# Constant tensors, and what the zoo of exporters does not write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ones[shape=(2,3)]()", np.ones((2, 3))),
        ("Eye[size=3]()", np.eye(3)),
        ("IdentityKernel[channels=2,kernel=(1,3)]()", np.eye(2)[:, :, None, None] * np.array([0, 1, 0])),
        ("AveragingKernel[channels=2,kernel=(2,2)]()", np.full((2, 1, 2, 2), 0.25)),
        ("GroupBlocks[columns=1,group=4,merged=2,outputs=4]()", np.array([[1, 0], [0, 1], [1, 0], [0, 1]])),
        (
            "GroupBlocks[columns=2,group=2,merged=2,outputs=4]()",
            np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]),
        ),
    ],
)
def test_constant_tensors(text: str, expected: np.ndarray) -> None:
    term = parse_term(text)
    assert term.size == 0  # a leaf
    assert infer_types([term], {})[term] == type_of(expected.astype(F))
    np.testing.assert_array_equal(evaluate([term], Real(), {})[term], expected)
    (written,) = run_form(get_operator(term.op).to_onnx(term.attrs, [], 17), [], 17)
    np.testing.assert_array_equal(written, expected)
    for domain in (FiniteField(0), Symbolic()):
        value = evaluate([term], domain, {})[term]
        wanted = domain.move(lambda *rows: np.stack(rows), *(domain.const(Fraction(x)) for x in expected.reshape(-1)))
        pairs = [(value.p, wanted.p), (value.q, wanted.q)] if isinstance(value, FieldArray) else [(value, wanted)]
        for got, want in pairs:
            np.testing.assert_array_equal(np.reshape(got, -1), np.reshape(want, -1))


def test_fused_convolution_is_relu_of_the_convolution() -> None:
    attrs = "[dilations=(1,1),group=1,pads=(1,1,1,1),strides=(1,1)]"
    fused, plain = parse_term(f"FusedConv{attrs}(x, w)"), parse_term(f"Relu(Conv{attrs}(x, w))")
    generator = np.random.default_rng(0)
    inputs = {"x": generator.normal(size=(1, 3, 4, 5)), "w": generator.normal(size=(2, 3, 3, 3))}
    values = evaluate([fused, plain], Real(), inputs)
    np.testing.assert_array_equal(values[fused], values[plain])
    assert values[fused].min() == 0


def test_convolution_of_symbolic_channels() -> None:
    def conv(group: str, x: str, w: str) -> TensorType:
        term = parse_term(f"Conv[dilations=(1,1),group={group},pads=(1,1,1,1),strides=(1,1)](x, w)")
        return infer_types([term], {"x": parse_type(x), "w": parse_type(w)})[term]

    assert str(conv("1", "[n,c,h,w]", "[o,c,3,3]")) == "float[n,o,h,w]"
    assert str(conv("2", "[n,2*c,h,w]", "[2*o,c,3,3]")) == "float[n,2*o,h,w]"
    assert str(conv("c", "[n,c,h,w]", "[c,1,3,3]")) == "float[n,c,h,w]"
    for group, x, w in (("2", "[n,2*c,h,w]", "[o,c,3,3]"), ("c", "[n,c,h,w]", "[4,1,3,3]"), ("1", "[n,c,h,w]", "[o,d,3,3]")):
        with pytest.raises(Undecided):
            conv(group, x, w)
    with pytest.raises(ShapeError):
        conv("2", "[n,6,h,w]", "[5,3,3,3]")


def test_convolution_of_no_channels() -> None:
    """A slice of weights may take nothing: the result has no entries, and a sum over no channels is zero."""
    for x, w, shape in (((1, 2, 5, 5), (0, 2, 3, 3), (1, 0, 5, 5)), ((1, 0, 5, 5), (2, 0, 3, 3), (1, 2, 5, 5))):
        term = parse_term("Conv[dilations=(1,1),group=1,pads=(1,1,1,1),strides=(1,1)](x, w)")
        assert infer_types([term], {"x": type_of(np.ones(x, F)), "w": type_of(np.ones(w, F))})[term] == type_of(np.ones(shape, F))
        value = evaluate([term], Real(), {"x": np.ones(x), "w": np.ones(w)})[term]
        np.testing.assert_array_equal(value, np.zeros(shape))


@pytest.mark.parametrize("wrong", ["columns=-3", "rows=-1", "rows=2.0", "after=1.5", "before=true", "after=(1,2)"])
def test_a_mask_of_positions_counts_places(wrong: str) -> None:
    right = {"after": "-1", "before": "2", "columns": "3", "rows": "4"}
    name, value = wrong.split("=")
    for attributes in (right, {**right, name: value}):
        mask = parse_term(f"BandMask[{','.join(f'{n}={v}' for n, v in attributes.items())}]()")
        if attributes is right:
            assert str(infer_types([mask], {})[mask]) == "bool[4,3]"
        else:
            with pytest.raises(ShapeError, match=f"a mask of positions with {name} "):
                infer_types([mask], {})
