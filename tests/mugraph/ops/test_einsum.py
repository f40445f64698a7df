"""Einsum of two operands that is a batched product: meaning, decomposition, what is left alone, and attention spelled by it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from mugraph.domains import Real
from mugraph.onnx import load
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term
from rewriter.kernels.fuse.lower import lower
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.models import session

SIZES = {"b": 2, "e": 7, "h": 3, "i": 4, "j": 5, "d": 6}
PRODUCTS = (
    *("bhid,bhjd->bhij", "bhij,bhjd->bhid", "bhij,bjhd->bihd", "bihd,bjhd->bhij", "id,dj->ij", "di,jd->ji", "hdi,hjd->jhi"),
    *("bij,jhd->bihd", "bihd,hde->bie", "hdi,jdh->ij", "bihd,jhd->hijb", "bhid,hjd->bhij"),  # of several axes
    *("bij,bj->bi", "bj,bjd->bd", "ij,ij->", "j,jd->d", "bhd,hd->b"),  # of no axis
)
"""Equations of products; the letters' sizes are `SIZES`."""


def _model(equation: str, *shapes: tuple[int | str, ...], dtype: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    names = "xyz"[: len(shapes)]
    inputs = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in zip(names, shapes, strict=True)]
    node = helper.make_node("Einsum", list(names), ["out"], equation=equation)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("out", dtype, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _shapes(equation: str) -> list[tuple[int, ...]]:
    return [tuple(SIZES[letter] for letter in term) for term in equation.partition("->")[0].replace(" ", "").split(",")]


@pytest.mark.parametrize("equation", [*PRODUCTS, " bhid , bhjd -> bhij "])
def test_a_product_is_what_numpy_and_onnxruntime_make_of_it(equation: str) -> None:
    shapes, generator = _shapes(equation), np.random.default_rng(0)
    arrays = [generator.standard_normal(shape) for shape in shapes]
    wanted = np.einsum(equation, *arrays)
    graph = load(_model(equation, *shapes)).graph
    (node,) = graph.nodes()
    assert node.op == "Einsum"
    record, types = get_operator("Einsum"), [TensorType(DataType.FLOAT, shape) for shape in shapes]
    (type_,) = record.types(node.attrs, types)
    assert type_.shape == wanted.shape
    (computed,) = record.run(Real(), node.attrs, arrays)
    np.testing.assert_allclose(computed, wanted, rtol=1e-12, atol=1e-12)
    (root,) = record.decompose(node.attrs, types)
    assert {term.op for term in walk([root]) if not term.is_var} <= {"MatMul", "Reshape", "Transpose"}
    np.testing.assert_allclose(evaluate([root], Real(), dict(zip(("x0", "x1"), arrays, strict=True)))[root], computed)
    singles = [array.astype(np.float32) for array in arrays]
    (given,) = session(_model(equation, *shapes).SerializeToString()).run(None, dict(zip("xy", singles, strict=True)))
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("i,j->ij", [(4,), (5,)]),
        ("ij,ij->ij", [(4, 5), (4, 5)]),
        ("bij,jd->id", [(2, 4, 5), (5, 6)]),  # summed over an axis of one operand
        ("ii,ij->ij", [(4, 4), (4, 5)]),
        ("...ij,...jd->id", [(2, 4, 5), (2, 5, 6)]),
        ("ij->ji", [(4, 5)]),
        ("ij,jd,dh->ih", [(4, 5), (5, 6), (6, 3)]),
    ],
)
def test_what_is_no_product_of_matrices_is_left_alone(equation: str, shapes: list[tuple[int, ...]]) -> None:
    (node,) = load(_model(equation, *shapes)).graph.nodes()
    assert node.is_opaque


@pytest.mark.parametrize(
    ("equation", "shapes", "explicit"),
    [
        ("ij,jd", [(4, 5), (5, 6)], "ij,jd->di"),  # the result is told by the letters' order
        ("ji,dj", [(5, 4), (6, 5)], "ji,dj->di"),
        ("...ij, ...jd -> ...id", [(2, 3, 4, 5), (2, 3, 5, 6)], "abij,abjd->abid"),
        ("...ij,...jd", [(2, 4, 5), (2, 5, 6)], "aij,ajd->adi"),
        ("a...j,j...->a...", [(3, 2, 4, 5), (5, 2, 4)], "abcj,jbc->abc"),
        ("...ij,...jd->...id", [(2, 1, 4, 5), (2, 3, 5, 6)], "abij,abjd->abid"),  # one axis is repeated
    ],
)
def test_axes_without_a_letter_get_one(equation: str, shapes: list[tuple[int, ...]], explicit: str) -> None:
    model = _model(equation, *shapes)
    (node,) = load(model).graph.nodes()
    assert dict(node.attrs)["equation"] == explicit
    arrays = [np.random.default_rng(0).standard_normal(shape) for shape in shapes]
    (computed,) = get_operator("Einsum").run(Real(), node.attrs, arrays)
    (given,) = session(model.SerializeToString()).run(None, dict(zip("xy", (a.astype(np.float32) for a in arrays), strict=True)))
    np.testing.assert_allclose(computed, given, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("summed", [("J", "L"), (1, "L"), ("J", 5)])
def test_sizes_that_are_summed_are_not_taken_to_be_equal(summed: tuple[int | str, int | str]) -> None:
    """Einsum repeats one that is 1: no size of an input may follow from the other's."""
    types = {"x": TensorType(DataType.FLOAT, (3, _size(summed[0]))), "y": TensorType(DataType.FLOAT, (_size(summed[1]), 4))}
    proto = _model("ij,jd->id", (3, summed[0]), (summed[1], 4))
    model = load(proto)
    (node,) = model.graph.nodes()
    assert node.is_opaque and model.inputs == types
    one, five = (np.ones(shape, np.float32) for shape in ((3, 1), (5, 4)))
    (given,) = session(proto.SerializeToString()).run(None, {"x": one, "y": five})
    np.testing.assert_array_equal(given, np.full((3, 4), 5, np.float32))


def _size(size: int | str) -> Dim:
    return symbol(size) if isinstance(size, str) else size


def test_products_of_integers_are_left_alone() -> None:
    (node,) = load(_model("id,dj->ij", (4, 6), (6, 5), dtype=onnx.TensorProto.INT32)).graph.nodes()
    assert node.is_opaque


@pytest.mark.parametrize(
    "mask", ["{}", "Where(BandMask[after=3,before=3,columns=32,rows=32](), {}, -inf)"], ids=["plain", "band"]
)
def test_attention_that_is_spelled_by_it_is_one_proved_kernel(mask: str) -> None:
    types = {name: TensorType(DataType.FLOAT16, (2, 32, 4, 16)) for name in "qkv"}
    scores = mask.format("Mul(Einsum[equation='bihd,bjhd->bhij'](q, k), 0.25)")
    body = parse_term(f"Einsum[equation='bhij,bjhd->bihd'](Softmax[axis=-1]({scores}), v)")
    kernel = lower("attention", types, [("y", body)])
    assert len(kernel.blocks) == 1 and kernel.blocks[0].loop is not None, "no matrix of scores"
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
