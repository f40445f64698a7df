"""Transposed convolutions: onnx's own cases, sizes that are symbols, and what has no result."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from mugraph.domains import Real
from mugraph.ops import NotUnderstood, get_operator
from mugraph.terms.shape import ShapeError, TensorType
from mugraph.terms.text import parse_type
from tests.support.onnx_helpers import foreign, inferred, make_node, run_node

RECORD = get_operator("ConvTranspose")


def cases() -> list[TestCase]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    return [test for test in tests if test.name.startswith("test_convtranspose")]


CASES = cases()


def test_there_are_cases() -> None:
    assert len(CASES) >= 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_onnx_gives_what_onnx_expects(case: TestCase) -> None:
    assert case.model is not None and case.data_sets is not None
    (node,), opset = case.model.graph.node, case.model.opset_import[0].version
    for inputs, (wanted,) in case.data_sets:
        reading = RECORD.read(foreign(node, inputs, opset))
        (given,) = RECORD.run(Real(np.float64), reading.attrs, [inputs[i].astype(float) for i in reading.operands])
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)


def test_windows_of_all_forms_are_those_of_onnxruntime() -> None:
    """Pads that reach beyond the kernel, steps, groups and axes in every combination that chance makes."""
    draw, defined = np.random.default_rng(0), 0
    for _ in range(150):
        n, group = int(draw.integers(1, 4)), int(draw.integers(1, 4))
        per_in, per_out = draw.integers(1, 3, 2)
        strides, dilations = draw.integers(1, 4, n), draw.integers(1, 3, n)
        attrs = {"strides": strides, "dilations": dilations, "pads": draw.integers(0, 5, 2 * n)}
        attrs["output_padding"] = draw.integers(0, strides)
        whole = {name: tuple(value.tolist()) for name, value in attrs.items()} | {"group": group}
        shapes = (
            (2, group * per_in, *draw.integers(1, 6, n)),
            (group * per_in, per_out, *draw.integers(1, 5, n)),
            (group * per_out,),
        )
        operands = [draw.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
        try:
            (given,) = RECORD.run(Real(np.float32), whole, operands)
        except ShapeError:
            continue
        (wanted,) = run_node(make_node("ConvTranspose", operands, whole), operands, 17)
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
        defined += 1
    assert defined > 60


TWICE = "ConvTranspose[dilations=(1,1),output_padding=(1,0),pads=(1,0,1,1),strides=(2,2)](x, y)"


def test_sizes_may_be_symbols() -> None:
    assert inferred(TWICE, "[n,c,h,w] [c,d,3,k]") == parse_type("[n,d,2*h,2*w+k-3]")
    grouped = TWICE.replace("dilations=(1,1)", "dilations=(1,1),group=g")
    assert inferred(grouped, "[n,g*c,h,w] [g*c,d,3,3]") == parse_type("[n,d*g,2*h,2*w]")


@pytest.mark.parametrize(
    ("types", "attrs"),
    [
        ("[1,4,5,5] [4,2,3,3]", {"output_padding": (2, 0)}),
        ("[1,4,5,5] [4,2,3,3]", {"pads": (9, 0, 9, 0)}),
        ("[1,4,5,5] [4,2,3,3]", {"pads": (-1, 0, 0, 0)}),
        ("[1,4,5,5] [4,2,3,3]", {"strides": (2, 0)}),
        ("[1,4,5,5] [4,2,3,3]", {"strides": (2,)}),
        ("[1,4,5,5] [4,2,3,3]", {"group": 3}),
        ("[1,4,5,5] [2,4,3,3]", {}),
        ("[1,4,5] [4,2,3,3]", {}),
        ("[1,4,5,5] [4,2,3,3] [4]", {}),
        ("[1,4,5,5] [4,2,3,3] [2]", {"group": 2}),
        ("int64[1,4,5,5] int64[4,2,3,3]", {}),
    ],
)
def test_what_has_no_result_is_refused(types: str, attrs: dict[str, object]) -> None:
    plain = {"dilations": (1, 1), "output_padding": (0, 0), "pads": (0,) * 4, "strides": (2, 2)}
    operands = list(map(parse_type, types.split()))
    with pytest.raises(ShapeError):
        RECORD.types(plain | attrs, operands)
    assert RECORD.types(plain, [parse_type("[1,4,5,5]"), parse_type("[4,2,3,3]")]) == (parse_type("[1,2,11,11]"),)


@pytest.mark.parametrize(
    ("attrs", "x", "reason"),
    [
        ({"output_shape": (9, 9), "strides": (2, 2)}, "[1,4,h,w]", "without pads"),
        ({"auto_pad": "SAME_UPPER", "strides": (4, 4)}, "[1,4,5,5]", "a kernel .* for strides"),
        ({"auto_pad": "SOMEHOW"}, "[1,4,5,5]", "auto_pad SOMEHOW"),
        ({"kernel_shape": (2, 2)}, "[1,4,5,5]", "with a kernel"),
    ],
)
def test_what_is_not_understood_says_why(attrs: dict[str, object], x: str, reason: str) -> None:
    weights = np.ones((4, 2, 3, 3), np.float32)
    types: list[TensorType | None] = [parse_type(x), parse_type("[4,2,3,3]")]
    node = make_node("ConvTranspose", [weights, weights], attrs)
    with pytest.raises(NotUnderstood, match=reason):
        RECORD.read(foreign(node, [weights, weights], 17, types=types))


def test_the_sizes_of_the_image_decide_no_automatic_pads() -> None:
    weights = np.ones((4, 2, 3, 3), np.float32)
    types: list[TensorType | None] = [parse_type("[n,4,h,w]"), parse_type("[4,2,3,3]")]
    node = make_node("ConvTranspose", [weights, weights], {"auto_pad": "SAME_LOWER", "strides": (2, 2)})
    reading = RECORD.read(foreign(node, [weights, weights], 17, types=types))
    assert reading.attrs["pads"] == (1, 1, 0, 0)
    assert RECORD.types(reading.attrs, [t for t in types if t]) == (parse_type("[n,2,2*h,2*w]"),)
