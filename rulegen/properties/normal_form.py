"""Normal forms of entries: polynomials over real inputs and function symbols that are equal as numbers become one polynomial.

*Order*. Maxima and minima of sums and of products by what is not negative are a distributive lattice over the rest: each entry
is a minimum of maxima of entries without any, of which those that others bound are left out. Increasing functions go to the
members. Z3 would have to try every order of the entries of a window.

*Definitions*. Logistic functions, softplus, powers and remainders are written by exponentials, logarithms and roundings down; a
logarithm and an exponential undo each other; a number is rounded by its part that is not whole.

*Infinity*. One input is below all numbers (:data:`LEAST`): added to a number it stays, and it is no maximum.

Equations are meant where both sides have values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from mugraph.domains.functions import FUNCTIONS
from mugraph.domains.interval import Range
from mugraph.domains.symbolic import Atom, Poly

__all__ = ["LEAST", "NormalForms"]

LEAST: Atom = ("x", "-inf", ())
"""The input that is below all numbers; its negative is above all."""
_BELOW = Poly.atom(*LEAST)
_NUMBER: frozenset[tuple[Atom, int]] = frozenset()
"""The monomial of constants."""
_MOST_CLAUSES, _MOST_MEMBERS, _MOST_TERMS = 256, 2_000, 4_000
"""Maxima of which a minimum is taken, members of all of them, and terms of these: what is larger stays as it is."""
_MOST_POWER = 4
"""Factors of which an exponential becomes a product."""
_STEPS: Mapping[str, Callable[[Fraction], int]] = {"floor": math.floor, "ceil": math.ceil, "round": round}
_WHOLE_VALUED = (*_STEPS, "sign")

_Bound = Fraction | float
_Clauses = Sequence[frozenset[Poly]]
"""A minimum of maxima of leaves, which are polynomials whose value no maximum decides."""


@dataclass(frozen=True)
class _KnownBounds:
    """What is known of a polynomial: what it is beside a number, that, and between which numbers it lies."""

    rest: Poly
    number: Fraction
    least: _Bound
    most: _Bound


class NormalForms:
    """Normal forms under what is known of the inputs.

    Args:
        assumed: relations of values to zero that hold, ``(">=", p)`` or ``(">", p)``, and ``("whole", p)``; others are not used.
        defined: whether functions are written by their definitions.
    """

    def __init__(self, assumed: Iterable[tuple[str, Poly]], defined: bool) -> None:
        self._defined = defined
        self._whole: set[Poly] = set()
        self._positive: set[Poly] = set()
        self._least: dict[Atom, _Bound] = {}
        self._most: dict[Atom, _Bound] = {}
        for relation, poly in assumed:
            if relation == "whole":
                self._whole.add(poly)
            elif relation in (">=", ">"):
                self._positive |= {poly} if relation == ">" else set()
                self._bound(poly)
        self._forms: dict[Poly, Poly] = {}
        self._known: dict[Poly, _KnownBounds] = {}

    def of(self, poly: Poly) -> Poly:
        """The normal form of an entry."""
        if poly not in self._forms:
            total = Poly({})
            for monomial, coefficient in poly.terms.items():
                product = Poly.constant(coefficient)
                for atom, power in monomial:
                    factor = self._atom(atom)
                    for _ in range(abs(power)):
                        product = product * (factor if power > 0 else factor.inverse())
                total = total + product
            self._forms[poly] = self._ordered(_with_infinity(total))
        return self._forms[poly]

    def _atom(self, atom: Atom) -> Poly:
        function, *arguments = atom
        if function == "x":
            return Poly.atom(*atom)
        if function in ("max", "min"):
            sign = 1 if function == "max" else -1
            greatest = _maximum(_times(self.of(member), sign) for member in arguments[0])
            return self._ordered(_times(greatest, sign))
        forms = [self.of(argument) if isinstance(argument, Poly) else argument for argument in arguments]
        row = FUNCTIONS.get(function)
        clauses = self._clauses(forms[0]) if row is not None and row.increasing else None
        if row is None or clauses is None or (row.partial and any(self._about(leaf).most < 0 for leaf in chain(*clauses))):
            return self._applied(function, *forms)
        return _of_clauses(self._reduced([frozenset(self._applied(function, leaf) for leaf in clause) for clause in clauses]))

    # Functions

    def _applied(self, function: str, *arguments: Poly) -> Poly:
        """A function of normal forms."""
        definition = self._definition(function, *arguments) if self._defined else None
        if definition is not None:
            return self.of(definition)
        if function == "exp":
            return self._power(arguments[0])
        if function == "log":
            return self._logarithm(arguments[0])
        if function in _STEPS:
            return self._stepped(function, arguments[0])
        if function.startswith("cast_") and self._holds(function.removeprefix("cast_"), arguments[0]):
            return arguments[0]
        return Poly.atom(function, *arguments)

    def _definition(self, function: str, poly: Poly, *more: Poly) -> Poly | None:
        """What a function is of others; ``None`` where it is by itself."""
        if function == "sigmoid":
            return (_ONE + Poly.atom("exp", -poly)).inverse()
        if function == "tanh":
            power = Poly.atom("exp", poly + poly)
            return (power - _ONE) * (power + _ONE).inverse()
        if function == "softplus":
            return Poly.atom("log", _ONE + Poly.atom("exp", poly))
        if function == "pow" and not more[0].terms:
            return _ONE
        if function == "pow" and poly in self._positive:
            return Poly.atom("exp", more[0] * Poly.atom("log", poly))
        if function == "mod" and more[0].terms:
            return poly - more[0] * Poly.atom("floor", poly * more[0].inverse())
        return None

    @staticmethod
    def _power(poly: Poly) -> Poly:
        """An exponential: that of a whole multiple of a logarithm is a power."""
        outside, rest = _ONE, poly
        for monomial, coefficient in poly.terms.items():
            ((atom, power), *others) = monomial or [((None,), 0)]
            if (
                atom[0] == "log"
                and power == 1
                and not others
                and coefficient.denominator == 1
                and abs(coefficient) <= _MOST_POWER
            ):
                rest = rest - Poly({monomial: coefficient})
                for _ in range(abs(coefficient.numerator)):
                    outside = outside * (atom[1] if coefficient > 0 else atom[1].inverse())
        return outside * Poly.atom("exp", rest) if rest.terms else outside

    @staticmethod
    def _logarithm(poly: Poly) -> Poly:
        """A logarithm: that of a product is one of what stands beside exponentials."""
        if len(poly.terms) != 1:
            return Poly.atom("log", poly)
        ((monomial, coefficient),) = poly.terms.items()
        exponents = Poly({})
        for atom, power in monomial:
            if atom[0] == "exp":
                exponents = exponents + _times(atom[1], power)
        beside = frozenset((atom, power) for atom, power in monomial if atom[0] != "exp")
        if coefficient == 1 and not beside:
            return exponents
        if coefficient == 1 and len(beside) == 1:
            ((atom, power),) = beside
            if power % 2:  # an odd power and an inverse have the sign of what they are of
                base, times = (atom[1], -power) if atom[0] == "inv" else (Poly.atom(*atom), power)
                return exponents + _times(Poly.atom("log", base), times)
        return exponents + Poly.atom("log", Poly({beside: coefficient}))

    def _stepped(self, function: str, poly: Poly) -> Poly:
        """A rounding: whole summands stay as they are, but for ties that go to what is even."""
        whole = Poly({m: c for m, c in poly.terms.items() if self._is_whole(m, c)})
        rest = poly - whole
        if not rest.terms:
            return whole
        if set(rest.terms) == {_NUMBER} and (function != "round" or not whole.terms):
            return whole + Poly.constant(_STEPS[function](rest.terms[_NUMBER]))
        return Poly.atom("round", poly) if function == "round" else whole + Poly.atom(function, rest)

    def _is_whole(self, monomial: frozenset[tuple[Atom, int]], coefficient: Fraction) -> bool:
        return coefficient.denominator == 1 and all(
            power > 0 and (atom[0] in _WHOLE_VALUED or Poly.atom(*atom) in self._whole) for atom, power in monomial
        )

    def _holds(self, dtype: str, poly: Poly) -> bool:
        """Whether an integer type is known to have the number."""
        sign, _, width = dtype.partition("INT")
        if sign not in ("", "U") or not width.isdecimal():
            return False
        least, most = (0, 2 ** int(width) - 1) if sign else (-(2 ** (int(width) - 1)), 2 ** (int(width) - 1) - 1)
        whole = all(self._is_whole(monomial, coefficient) for monomial, coefficient in poly.terms.items())
        return whole and self._about(poly).least >= least and self._about(poly).most <= most

    # Bounds

    def _bound(self, poly: Poly) -> None:
        """Notes that a polynomial is at least zero, where it is one atom and a number."""
        about = [(monomial, coefficient) for monomial, coefficient in poly.terms.items() if monomial]
        if len(about) != 1 or len(about[0][0]) != 1:
            return
        ((((atom, power),), coefficient),) = about
        end = -poly.terms.get(_NUMBER, Fraction(0)) / coefficient
        if power == 1 and coefficient > 0:
            self._least[atom] = max(end, self._least.get(atom, end))
        elif power == 1:
            self._most[atom] = min(end, self._most.get(atom, end))

    def _about(self, poly: Poly) -> _KnownBounds:
        if poly not in self._known:
            number = poly.terms.get(_NUMBER, Fraction(0))
            least: _Bound = number
            most: _Bound = number
            for monomial, coefficient in poly.terms.items():
                if monomial:
                    ends = sorted(end * coefficient for end in self._ends(monomial))
                    least, most = least + ends[0], most + ends[1]
            self._known[poly] = _KnownBounds(poly - Poly.constant(number), number, least, most)
        return self._known[poly]

    def _ends(self, monomial: frozenset[tuple[Atom, int]]) -> tuple[_Bound, _Bound]:
        ((atom, power), *others) = monomial
        if power == 1 and not others:
            least, most = _range_of(atom[0])
            return max(least, self._least.get(atom, least)), min(most, self._most.get(atom, most))
        return (Fraction(0) if self._is_nonnegative(monomial) else -math.inf), math.inf

    def _is_nonnegative(self, monomial: Iterable[tuple[Atom, int]]) -> bool:
        return all(power % 2 == 0 or self._ends(frozenset({(atom, 1)}))[0] >= 0 for atom, power in monomial)

    # Order

    def _ordered(self, poly: Poly) -> Poly:
        clauses = self._clauses(poly)
        return poly if clauses is None else _of_clauses(clauses)

    def _clauses(self, poly: Poly) -> _Clauses | None:
        """A polynomial as a minimum of maxima; ``None`` where these are too many."""
        spread = self._spread(poly)
        if spread is None:
            return [frozenset({poly})]
        is_maximum, members = spread
        found: list[frozenset[Poly]] | None = None
        for member in members:
            clauses = self._clauses(member)
            if clauses is None:
                return None
            if found is None:
                found = list(clauses)
            elif is_maximum:
                found = [one | other for one in found for other in clauses]
            else:
                found += clauses
            if len(found) > _MOST_CLAUSES or sum(map(len, found)) > _MOST_MEMBERS:
                return None
            found = self._reduced(found)
        return found

    def _spread(self, poly: Poly) -> tuple[bool, list[Poly]] | None:
        """The members, where a polynomial is one maximum by what has a sign, and summands without any; and whether it grows."""
        with_maxima = [(m, c) for m, c in poly.terms.items() if any(atom[0] == "max" for atom, _ in m)]
        if len(with_maxima) != 1:
            return None
        ((monomial, coefficient),) = with_maxima
        maxima = [(atom, power) for atom, power in monomial if atom[0] == "max"]
        others = monomial - set(maxima)
        if len(maxima) != 1 or maxima[0][1] != 1 or not self._is_nonnegative(others):
            return None
        factor, rest, members = Poly({others: coefficient}), poly - Poly({monomial: coefficient}), maxima[0][0][1]
        if len(rest.terms) * len(members) > _MOST_TERMS:
            return None
        return coefficient > 0, [factor * member + rest for member in members]

    def _reduced(self, clauses: Iterable[frozenset[Poly]]) -> list[frozenset[Poly]]:
        """Without members that another one of the maximum bounds, and without maxima that another one is no greater than."""
        kept: list[frozenset[Poly]] = []
        for clause in clauses:
            members: list[Poly] = []
            for leaf in clause:
                if not any(self._at_most(leaf, other) for other in members):
                    members = [*(other for other in members if not self._at_most(other, leaf)), leaf]
            new = frozenset(members)
            if not any(self._bounds(other, new) for other in kept):
                kept = [*(other for other in kept if not self._bounds(new, other)), new]
        return kept

    def _bounds(self, one: frozenset[Poly], other: frozenset[Poly]) -> bool:
        """Whether the greatest of some leaves is at most that of others."""
        return all(leaf in other or any(self._at_most(leaf, member) for member in other) for leaf in one)

    def _at_most(self, one: Poly, other: Poly) -> bool:
        if one in (other, _BELOW) or other == -_BELOW:
            return True
        below, above = self._about(one), self._about(other)
        return below.most <= above.least or (below.number <= above.number and below.rest == above.rest)


_ONE = Poly.constant(1)


def _times(poly: Poly, factor: int) -> Poly:
    return Poly({monomial: factor * coefficient for monomial, coefficient in poly.terms.items()})


def _maximum(members: Iterable[Poly]) -> Poly:
    found = frozenset(members)
    return next(iter(found)) if len(found) == 1 else Poly.atom("max", found)


def _of_clauses(clauses: _Clauses) -> Poly:
    """The polynomial: one maximum, or the negated maximum of negated ones."""
    maxima = [_maximum(clause) for clause in clauses]
    return maxima[0] if len(maxima) == 1 else -_maximum(-one for one in maxima)


def _with_infinity(poly: Poly) -> Poly:
    """Infinity, where it is a summand beside numbers."""
    coefficient = poly.terms.get(frozenset({(LEAST, 1)}), Fraction(0))
    beside = [atom for monomial in poly.terms for atom, _ in monomial if atom == LEAST]
    if not coefficient or len(beside) > 1:
        return poly
    return _BELOW if coefficient > 0 else -_BELOW


def _range_of(function: str) -> tuple[_Bound, _Bound]:
    """Between which numbers the values of a function are."""
    row = FUNCTIONS.get(function)
    if row is None:
        return -math.inf, math.inf
    values = row.range(*(Range.top(),) * row.operands)
    least, most = (Fraction(end) if math.isfinite(end) else end for end in (values.lo, values.hi))
    return least, most
