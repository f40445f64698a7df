"""Einsum of two operands, where it is one batched product: its letters tell which axes are moved and joined around that."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from mugraph.ops.base import applied, floating, operands
from mugraph.ops.composite import define, plain_inputs
from mugraph.ops.forms import AttrMap, ForeignNode, NotUnderstood, OnnxForm, Reading, attributes_of, type_of
from mugraph.ops.traits import DegreeBound, ProductKind, Traits
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided, product, same_dim
from mugraph.terms.term import Term


@dataclass(frozen=True, slots=True)
class _Letters:
    """The letters of an equation, one an axis.

    Attributes:
        left, right, result: of the operands and of what comes out, in the order of their axes.
        batch: of all three, in the order of the result.
        row, column: of the left operand and the result alone, and of the right one and the result, in the order of these.
        summed: of the operands alone, in the order of the left one; one at least.
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
        """Raises ShapeError for an equation that is no product of two operands of which each axis is one of these."""
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
        if not (whole and summed):
            raise ShapeError(f"Einsum '{equation}' is no product of matrices")
        return _Letters(left, right, result, batch, row, column, summed)


def _moved(x: Term, before: str, after: str) -> Term:
    """A tensor with its axes in another order."""
    return x if before == after else applied("Transpose", x, perm=tuple(before.index(letter) for letter in after))


def _joined(x: Term, *groups: Sequence[Dim]) -> Term:
    """A tensor of whose last axes each group is one."""
    if all(len(group) == 1 for group in groups):
        return x
    return applied("Reshape", x, drop=sum(map(len, groups)), shape=tuple(map(product, groups)))


def _einsum(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    letters = _Letters.of(attrs["equation"])
    sizes = dict(zip(letters.left + letters.right, (*types[0].shape, *types[1].shape), strict=True))
    rows, columns, summed = ([sizes[c] for c in axes] for axes in (letters.row, letters.column, letters.summed))
    x, y = operands(2)
    left = _moved(x, letters.left, letters.batch + letters.row + letters.summed)
    right = _joined(_moved(y, letters.right, letters.batch + letters.summed + letters.column), summed, columns)
    if letters.row and not letters.batch:  # as models write what a stored matrix is multiplied by: with all axes of its rows
        result, apart = applied("MatMul", _joined(left, summed), right), [columns]
    else:
        result, apart = applied("MatMul", _joined(left, rows, summed), right), [rows, columns]
    if any(len(group) != 1 for group in apart):
        result = applied("Reshape", result, drop=len(apart), shape=tuple(dim for group in apart for dim in group))
    return (_moved(result, letters.batch + letters.row + letters.column, letters.result),)


def _check_einsum(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    letters = _Letters.of(attrs["equation"])
    if [type_.rank for type_ in types] != [len(letters.left), len(letters.right)]:
        raise ShapeError(f"Einsum '{attrs['equation']}' of {', '.join(map(str, types))}")
    for letter in letters.summed:
        counts = [type_.shape[side.index(letter)] for type_, side in zip(types, (letters.left, letters.right), strict=True)]
        if same_dim(*counts) is not True:  # a run may bring 1 for one of them, and Einsum repeats it where MatMul refuses
            raise Undecided(f"Einsum '{attrs['equation']}' sums over {counts[0]} and {counts[1]} entries")


def explicit(equation: str, ranks: Sequence[int]) -> str:
    """An equation with a letter for each axis and an arrow, for operands of some ranks; what cannot have that stays.

    ONNX wants an ellipsis to stand for the same axes in all operands.
    """
    equation = "".join(equation.split())
    terms, arrow, result = equation.partition("->")
    sides = terms.split(",")
    if not arrow:
        once = sorted(c for c in set(terms) if c.isalpha() and terms.count(c) == 1)
        result = ("..." if "..." in terms else "") + "".join(once)
    if "..." in terms and len(sides) == len(ranks):
        hidden = {rank - len(side.replace("...", "")) for side, rank in zip(sides, ranks, strict=True) if "..." in side}
        count = hidden.pop()
        free = "".join(c for c in string.ascii_letters if c not in terms)[: max(count, 0)]
        if hidden or len(free) != count or "..." not in result:
            return equation
        sides = [side.replace("...", free, 1) for side in sides]
        result = result.replace("...", free, 1)
    return f"{','.join(sides)}->{result}"


def _read_einsum(node: ForeignNode) -> Reading:
    if len(node.types) != 2:
        raise NotUnderstood(f"Einsum of {len(node.types)} operands")
    ranks = [type_of(node, i).rank for i in range(2)]
    return Reading({"equation": explicit(str(attributes_of(node, equation="")["equation"]), ranks)}, plain_inputs(node, 2))


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
        "Einsum[equation='ibh,hnd->ibnd'](x, y) | x:[16,1,24] y:[24,4,8]",
        "Einsum[equation='binh,tnh->bnit'](x, y) | x:[2,16,4,8] y:[32,4,8]",
    ),
)
