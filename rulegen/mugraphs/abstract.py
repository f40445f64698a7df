"""Abstract expressions: the results of programs, up to equalities that a search may assume (Mirage, section 4.3).

An expression is in normal form a sum of monomials, a monomial a product of atoms over a product of atoms. Atoms are inputs,
functions of expressions, sums of several monomials that something is divided by, and for every axis that was summed over a
factor: all equalities of Mirage's table 2 about sums (sum(i, x·y) = sum(i, x)·y, sum(i, x/y) = sum(i, x)/y, sum over add splits,
sums of sums) say that summing is multiplying by a formal constant. Products distribute over sums, denominators multiply. Nothing
cancels.

Equal programs need not have equal expressions, nor are programs of equal expressions equal: the expressions prune, and whether a
program that is found computes the wanted is asked by interpretation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, SymDim, TensorType
from mugraph.terms.term import Term, walk

__all__ = ["Expression", "add", "apply", "atom", "divide", "expression_of", "is_part", "multiply", "summed"]


class Atom(str):
    """A factor by its text, which is that of the expression that it is a function of, if it is one.

    Attributes:
        inner: this expression; ``None`` for an input.
    """

    __slots__ = ("inner",)
    inner: Expression | None

    def __new__(cls, text: str, inner: Expression | None = None) -> Atom:
        made = super().__new__(cls, text)
        made.inner = inner
        return made


Monomial = tuple[tuple[Atom, ...], tuple[Atom, ...]]
Expression = tuple[Monomial, ...]
"""Monomials, each the atoms of numerator and denominator; all sorted."""


def _normal(monomials: list[Monomial]) -> Expression:
    return tuple(sorted((tuple(sorted(num)), tuple(sorted(den))) for num, den in monomials))


def atom(name: str) -> Expression:
    """An input."""
    return (((Atom(name),), ()),)


def apply(function: str, x: Expression) -> Expression:
    """A function without known equalities."""
    return (((Atom(f"{function}({x})", x),), ()),)


def add(x: Expression, y: Expression) -> Expression:
    return _normal([*x, *y])


def multiply(x: Expression, y: Expression) -> Expression:
    return _normal([(a + c, b + d) for a, b in x for c, d in y])


def divide(x: Expression, y: Expression) -> Expression:
    """x / y: a single product without denominator joins the denominator, anything else is one atom of it."""
    below = y[0][0] if len(y) == 1 and not y[0][1] else (Atom(f"({y})", y),)
    return _normal([(num, den + below) for num, den in x])


def summed(axis: str, x: Expression) -> Expression:
    """The sum along an axis."""
    return multiply(x, atom(f"Σ{axis}"))


def _within(part: tuple[Atom, ...], whole: tuple[Atom, ...]) -> bool:
    return not Counter(part) - Counter(whole)


@lru_cache(maxsize=1 << 16)
def is_part(x: Expression, goal: Expression) -> bool:
    """Whether a program that computes x may go on to the goal: x times a factor is among its monomials, or x within an atom."""
    for num, den in goal:
        if len(x) == 1 and (_within(x[0][0], num) and _within(x[0][1], den)):
            return True
        if len(x) == 1 and not x[0][1] and _within(x[0][0], den):
            return True
        if any(is_part(x, factor.inner) for factor in (*num, *den) if factor.inner is not None):
            return True
    return len(x) > 1 and _is_sum_part(x, goal)


def _is_sum_part(x: Expression, goal: Expression) -> bool:
    """Whether one factor takes every monomial of x to a monomial of the goal."""
    (num, den), rest = x[0], list(x[1:])
    for top, bottom in goal:
        if not (_within(num, top) and _within(den, bottom)):
            continue
        factor = (tuple((Counter(top) - Counter(num)).elements()), tuple((Counter(bottom) - Counter(den)).elements()))
        scaled = Counter(multiply(tuple(rest), _normal([factor])) + _normal([(top, bottom)]))
        if not scaled - Counter(goal):
            return True
    return False


def axis_of(dim: Dim) -> str:
    """The axis that a dimension is: a symbol of its own."""
    assert isinstance(dim, SymDim), dim
    return str(dim)


def expression_of(root: Term, types: Mapping[str, TensorType]) -> Expression:
    """The expression of a kernel graph of products, sums along the last axis and elementwise operators.

    Raises:
        ValueError: it holds another operator.
    """
    inferred = infer_types([root], types)
    done: dict[Term, Expression] = {}
    for term in walk([root]):
        operands = [done[i] for i in term.inputs]
        if term.is_var:
            done[term] = atom(term.name)
        elif term.op == "Add":
            done[term] = add(*operands)
        elif term.op == "Mul":
            done[term] = multiply(*operands)
        elif term.op == "Div":
            done[term] = divide(*operands)
        elif term.op in ("Sqrt", "Exp", "Sigmoid"):
            done[term] = apply(term.op, operands[0])
        elif term.op == "MatMul":
            done[term] = summed(axis_of(inferred[term.inputs[0]].shape[-1]), multiply(*operands))
        elif term.op == "ReduceSum" and term.attr("axes") == (-1,):
            done[term] = summed(axis_of(inferred[term.inputs[0]].shape[-1]), operands[0])
        else:
            raise ValueError(f"{term.op} has no abstract expression here")
    return done[root]
