"""Einsum of two operands, where it is one batched product: its letters tell which axes are moved before and behind that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mugraph.ops.base import applied, floating, operands
from mugraph.ops.composite import define, plain_inputs
from mugraph.ops.forms import AttrMap, ForeignNode, NotUnderstood, OnnxForm, Reading, attributes_of
from mugraph.ops.traits import DegreeBound, ProductKind, Traits
from mugraph.terms.shape import ShapeError, TensorType, Undecided, same_dim
from mugraph.terms.term import Term


@dataclass(frozen=True, slots=True)
class _Letters:
    """The letters of an equation, one an axis.

    Attributes:
        left, right, result: of the operands and of what comes out, in the order of their axes.
        batch: of all three, in the order of the result.
        row, column: of the left operand and the result alone, and of the right one and the result.
        summed: of the operands alone.
    """

    left: str
    right: str
    result: str
    batch: str
    row: str
    column: str
    summed: str

    @staticmethod
    def of(equation: str) -> _Letters:
        """Raises ShapeError for an equation that is no product of two operands with one row, one column and one summed axis."""
        terms, arrow, result = equation.partition("->")
        left, comma, right = terms.partition(",")
        every = left + right + result
        if not (arrow and comma and every.isalpha() and every.isascii()):
            raise ShapeError(f"Einsum '{equation}' is not of two operands and one result with letters for all axes")
        if any(len(set(letters)) < len(letters) for letters in (left, right, result)):
            raise ShapeError(f"Einsum '{equation}' has a letter twice in one tensor")
        batch = "".join(letter for letter in result if letter in left and letter in right)
        row, column = ("".join(c for c in side if c in result and c not in batch) for side in (left, right))
        summed = "".join(letter for letter in left if letter in right and letter not in result)
        parts = (batch + row + summed, batch + column + summed, batch + row + column)
        whole = all(sorted(part) == sorted(letters) for part, letters in zip(parts, (left, right, result), strict=True))
        if not (whole and len(row) == len(column) == len(summed) == 1):
            raise ShapeError(f"Einsum '{equation}' is no product of matrices")
        return _Letters(left, right, result, batch, row, column, summed)


def _moved(x: Term, before: str, after: str) -> Term:
    """A tensor with its axes in another order."""
    return x if before == after else applied("Transpose", x, perm=tuple(before.index(letter) for letter in after))


def _einsum(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    letters = _Letters.of(attrs["equation"])
    x, y = operands(2)
    rows = _moved(x, letters.left, letters.batch + letters.row + letters.summed)
    columns = _moved(y, letters.right, letters.batch + letters.summed + letters.column)
    return (_moved(applied("MatMul", rows, columns), letters.batch + letters.row + letters.column, letters.result),)


def _check_einsum(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    letters = _Letters.of(attrs["equation"])
    if [type_.rank for type_ in types] != [len(letters.left), len(letters.right)]:
        raise ShapeError(f"Einsum '{attrs['equation']}' of {', '.join(map(str, types))}")
    counts = [type_.shape[side.index(letters.summed)] for type_, side in zip(types, (letters.left, letters.right), strict=True)]
    if same_dim(*counts) is not True:  # a run may bring 1 for one of them, and Einsum repeats it where MatMul refuses
        raise Undecided(f"Einsum '{attrs['equation']}' sums over {counts[0]} and {counts[1]} entries")


def _read_einsum(node: ForeignNode) -> Reading:
    equation = "".join(str(attributes_of(node, equation="")["equation"]).split())
    if len(node.types) != 2:
        raise NotUnderstood(f"Einsum of {len(node.types)} operands")
    return Reading({"equation": equation}, plain_inputs(node, 2))


define(
    "Einsum",
    (2, 2),
    _einsum,
    check=_check_einsum,
    read=_read_einsum,
    write=lambda attrs, types, opset: OnnxForm("Einsum", (0, 1), {"equation": attrs["equation"]}),
    ranks=lambda attrs, count: [len(side) for side in attrs["equation"].partition("->")[0].split(",")],
    traits=Traits(product=ProductKind.MATRIX, degree=DegreeBound.MULTILINEAR, one_dtype=True, accumulates=True),
    samples=(
        "Einsum[equation='bhid,bhjd->bhij'](x, y) | x:[1,4,32,64] y:[1,4,48,64]",
        "Einsum[equation='bhij,bjhd->bihd'](x, y) | x:[1,4,32,48] y:[1,48,4,64]",
    ),
)
