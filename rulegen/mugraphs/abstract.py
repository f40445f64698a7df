"""Abstract expressions: the results of programs, up to equalities that a search may assume (Mirage, section 4.3).

An expression is in normal form a sum of monomials, a monomial a product of atoms over a product of atoms. Atoms are inputs,
numbers, functions of expressions, sums of several monomials that something is divided by, and for every axis that was summed over
a factor. All equalities of Mirage's table 2 hold by construction: sums along an axis are a formal constant as a factor
(sum(i, x·y) = sum(i, x)·y, sum(i, x/y) = sum(i, x)/y, sum over add splits, sums of sums; an axis of one place is none, so that
x = sum(1, x)), products distribute over sums, denominators multiply, and exponentials and roots are taken apart, exp(x+y) into
exp(x)·exp(y), √(x·y) into √x·√y. Nothing cancels.

So no saturation is needed that might be cut short: the expression of a goal is made once, and whether another is part of it is
looked up (:class:`Parts`). One question the normal form does not decide: whether a sum that something is divided by is a product
of sums. Where a divisor has so many summands that it may be one, nothing is pruned.

Equal programs need not have equal expressions, nor are programs of equal expressions equal: the expressions prune, and whether a
program that is found computes the wanted is asked by fingerprints, interpretation and proof.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cached_property, reduce
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported, exact
from mugraph.terms.shape import DataType

__all__ = ["AbstractDomain", "Expression", "Parts", "atom", "factor_degree", "has_exponential", "summed"]

_LEAST_PRODUCT = 4
"""Summands of the least product of two sums."""


class Atom(str):
    """A factor by its text, which has a digest of the expressions that it is a function of, if it is one.

    Attributes:
        function: of which it is the value: a name, or nothing for an input and for a divisor.
        inner: of which expressions; none for an input.
    """

    __slots__ = ("function", "inner")
    function: str
    inner: tuple[Expression, ...]

    def __new__(cls, text: str, function: str = "", inner: tuple[Expression, ...] = ()) -> Atom:
        made = super().__new__(cls, text)
        made.function, made.inner = function, inner
        return made


Monomial = tuple[tuple[Atom, ...], tuple[Atom, ...]]
Expression = tuple[Monomial, ...]
"""Monomials, each the atoms of numerator and denominator; all sorted."""

_ONE: Monomial = ((), ())
_EXP, _ROOT = "exp", "√"
_MINUS = Atom("-1")


def _normal(monomials: Iterable[Monomial]) -> Expression:
    return tuple(sorted((tuple(sorted(num)), tuple(sorted(den))) for num, den in monomials))


def atom(name: str) -> Expression:
    """An input."""
    return (((Atom(name),), ()),)


def _applied(function: str, *operands: Expression) -> Atom:
    """The value of a function, or the sum that something is divided by."""
    return Atom(f"{function}#{hashlib.blake2b(repr(operands).encode(), digest_size=12).hexdigest()}", function, operands)


def _product(x: Expression, y: Expression) -> Expression:
    return _normal((a + c, b + d) for a, b in x for c, d in y)


def _divisor(y: Expression) -> tuple[Atom, ...]:
    """The factors of a denominator: common factors of a sum stand alone, the sum that is left is one atom."""
    if any(den for _, den in y):
        return (_applied("", y),)
    common = reduce(lambda a, b: a & b, (Counter(num) for num, _ in y))
    rest = _normal((tuple((Counter(num) - common).elements()), ()) for num, _ in y)
    alone = tuple(common.elements())
    return alone if rest == (_ONE,) else (*alone, _applied("", rest))


def summed(axis: str, x: Expression) -> Expression:
    """The sum along an axis."""
    return _product(x, atom(f"Σ{axis}"))


class AbstractDomain:
    """The number system of abstract expressions: operators' records run over it. Arrays are :data:`Expression`."""

    name = "abstract"

    def const(self, value: float | int | bool | Fraction) -> Expression:
        if isinstance(value, bool) or (isinstance(value, float) and not np.isfinite(value)):
            raise Unsupported(f"{value} is no number")
        number = exact(value)
        return (_ONE,) if number == 1 else ((((Atom(str(number)),), ())),)

    def uniform(self, a: Expression) -> Fraction | None:
        if a == (_ONE,):
            return Fraction(1)
        alone = len(a) == 1 and len(a[0][0]) == 1 and not a[0][1]
        try:
            return Fraction(a[0][0][0]) if alone else None
        except ValueError:
            return None

    def add(self, a: Expression, b: Expression) -> Expression:
        return _normal([*a, *b])

    def neg(self, a: Expression) -> Expression:
        return _product(a, ((((_MINUS,), ())),))

    def sub(self, a: Expression, b: Expression) -> Expression:
        return self.add(a, self.neg(b))

    def mul(self, a: Expression, b: Expression) -> Expression:
        return _product(a, b)

    def power(self, a: Expression, exponent: int) -> Expression:
        return reduce(_product, [a] * exponent)

    def div(self, a: Expression, b: Expression) -> Expression:
        below = _divisor(b)
        return _normal((num, den + below) for num, den in a)

    def exp(self, a: Expression) -> Expression:
        return _normal([(tuple(_applied(_EXP, (monomial,)) for monomial in a), ())])

    def sqrt(self, a: Expression) -> Expression:
        if len(a) == 1 and not a[0][1]:
            return _normal([(tuple(_applied(_ROOT, (((factor,), ()),)) for factor in a[0][0]), ())])
        return (((_applied(_ROOT, a),), ()),)

    def apply(self, function: str, *operands: Expression) -> Expression:
        return (((_applied(function, *operands),), ()),)

    def maximum(self, a: Expression, b: Expression) -> Expression:
        return self.apply("maximum", *sorted((a, b)))

    def minimum(self, a: Expression, b: Expression) -> Expression:
        return self.apply("minimum", *sorted((a, b)))

    def cast(self, a: Expression, to: DataType) -> Expression:
        if to not in FLOATS:
            raise Unsupported(f"a cast to {to.name}")
        return a

    def whole(self, a: Expression, to: DataType) -> Expression:
        return a

    def move(self, function: Callable[..., np.ndarray], *operands: Expression) -> Expression:
        """Of an operator that works entry by entry: its operand, broadcast."""
        if len(operands) != 1:
            raise Unsupported("entries of several operands are moved")
        return operands[0]

    def shape(self, a: Expression) -> tuple[int, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name} has no abstract expression")


def factor_degree(x: Expression, factor: str) -> int | None:
    """The power of a factor in all of an expression, negative below the line; ``None`` where monomials differ in it."""
    degrees = {num.count(factor) - den.count(factor) for num, den in x}  # type: ignore[arg-type]
    inside = any(_mentions(y, factor) for num, den in x for a in (*num, *den) for y in a.inner)
    return degrees.pop() if len(degrees) == 1 and not inside else None


def _mentions(x: Expression, factor: str) -> bool:
    return any(a == factor or any(_mentions(y, factor) for y in a.inner) for num, den in x for a in (*num, *den))


def has_exponential(x: Expression) -> bool:
    """Whether an exponential is a factor of an expression."""
    return any(a.function == _EXP for num, den in x for a in (*num, *den))


def _within(part: tuple[Atom, ...], whole: tuple[Atom, ...]) -> bool:
    """Whether sorted atoms are among others, as often."""
    rest = iter(whole)
    return all(any(a == b for b in rest) for a in part)


def _without(whole: tuple[Atom, ...], part: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """What is left of sorted atoms."""
    return tuple((Counter(whole) - Counter(part)).elements()) if part else whole


class _Whole:
    """An expression of which others may be part: the goal's, or one within it.

    A monomial has a number, the sum of random ones of its atoms, so that a factor is a difference. Where a sum times a factor is
    part of the expression, so are the numbers; only then are monomials compared.
    """

    def __init__(self, expression: Expression) -> None:
        self._monomials, self._counts = expression, Counter(expression)
        drawn = random.Random(0)
        self._above = {a: drawn.getrandbits(61) for a in dict.fromkeys(a for num, _ in expression for a in num)}
        self._below = {a: drawn.getrandbits(61) for a in dict.fromkeys(a for _, den in expression for a in den)}
        self._numbers = {self._number(monomial): monomial for monomial in self._counts}

    def _number(self, monomial: Monomial) -> int:
        num, den = monomial
        return sum(map(self._above.__getitem__, num)) + sum(map(self._below.__getitem__, den))

    def has(self, x: Expression) -> bool:
        """Whether x times a factor is among the monomials, or x a factor of what is divided by."""
        if len(x) == 1:
            ((above, below),) = x
            if not below and self._below.keys() >= set(above) and any(_within(above, den) for _, den in self._monomials):
                return True
        if len(x) > len(self._monomials):
            return False
        try:
            numbers = list(map(self._number, x))
        except KeyError:  # an atom that the expression has not
            return False
        (num, den), rest = x[0], x[1:]
        for number, (top, bottom) in self._numbers.items():
            if self._may_scale(numbers, number - numbers[0]) and _within(num, top) and _within(den, bottom):
                factor = _without(top, num), _without(bottom, den)
                if not rest or self._has_scaled(rest, factor, (top, bottom)):
                    return True
        return False

    def _may_scale(self, numbers: Iterable[int], factor: int) -> bool:
        """Whether the numbers of monomials times a factor are those of monomials here."""
        known = self._numbers
        return all(number + factor in known for number in numbers)

    def _has_scaled(self, rest: Expression, factor: Monomial, taken: Monomial) -> bool:
        """Whether monomials times a factor are among those here, each as often, one being taken; up to the first that is not."""
        used = {taken: 1}
        for num, den in rest:
            monomial = tuple(sorted(num + factor[0])), tuple(sorted(den + factor[1]))
            times = used[monomial] = used.get(monomial, 0) + 1
            if times > self._counts.get(monomial, 0):
                return False
        return True


class Parts:
    """The expressions that may be part of a goal's: of an expression that the equalities make equal to one of its results.

    Args:
        goals: its results; taken apart once; answers are kept.
    """

    def __init__(self, *goals: Expression) -> None:
        self._goals = goals
        self._wholes = [_Whole(inner) for inner in dict.fromkeys(inner for goal in goals for inner in _within_reach(goal))]
        self._known: dict[Expression, bool] = {(_ONE,): True}

    @cached_property
    def undecided(self) -> str | None:
        """Why parts of this goal cannot be told, so that nothing may be pruned; ``None`` where they can."""
        for divisor in itertools.chain.from_iterable(map(_divisors, self._goals)):
            if len(divisor) >= _LEAST_PRODUCT:
                return f"a divisor of {len(divisor)} summands may be a product of sums"
        return None

    def __contains__(self, x: Expression) -> bool:
        """Whether a program that computes x may go on to the goal."""
        if x not in self._known:
            self._known[x] = any(whole.has(x) for whole in self._wholes)
        return self._known[x]


def _within_reach(goal: Expression) -> list[Expression]:
    """An expression and all that stand within it, each once."""
    found = {goal: None}
    stack = [goal]
    while stack:
        for inner in _inners(stack.pop()):
            if inner not in found:
                found[inner] = None
                stack.append(inner)
    return list(found)


def _inners(goal: Expression) -> Iterator[Expression]:
    """What stands within the atoms of an expression; exponentials and roots that were taken apart are put together."""
    for monomial in goal:
        for side in monomial:
            exponents = [monomial for a in side if a.function == _EXP for x in a.inner for monomial in x]
            if exponents:
                yield _normal(exponents)
            roots = [x for a in side if a.function == _ROOT for x in a.inner if len(x) == 1]
            if roots:
                yield reduce(_product, roots)
            yield from (x for a in side if a.function != _EXP for x in a.inner)


def _divisors(goal: Expression) -> Iterator[Expression]:
    """The sums that something is divided by, anywhere in an expression."""
    for num, den in goal:
        for a in (*num, *den):
            for inner in a.inner:
                if not a.function:
                    yield inner
                yield from _divisors(inner)
