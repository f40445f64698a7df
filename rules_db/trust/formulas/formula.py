"""Formulas: what an entry is as a function of entries of inputs, in a normal form.

A :class:`Formula` is a sum of rational numbers times products of powers of atoms. Atoms are tuples, a kind and what it is of:

============================ =========================================================================================
``x``, ``truth``             the entry of an input at a flat place, a number or a truth value
``size``                     the symbol of a size, a number of at least 1
``infinity``                 +∞, with truth values beside it: what a mask makes of scores
``exp``                      the exponential of one product of atoms; its power is any rational number
``sum``, ``max``, ``min``    over index variables, of one product or of a formula
``greatest``, ``least``      of a set of formulas
``function``, ``group``      a function of formulas; a sum that is divided by
``natural``                  whether a place is not negative
``positive``, ``zero``       whether a number is
``undefined``, ``infinite``  whether a quotient is 0/0; whether an entry is infinite
============================ =========================================================================================

The laws that make the form normal are those of a commutative ring in which truth values are idempotent, and

* ``Σ(a + b) = Σa + Σb``, ``Σ c·a = c·Σa`` and ``Σ c = n·c`` for a c that is free of the index, ``ΣΣ = Σ`` over both indices, in
  any order and under any name;
* ``exp(a + b) = exp(a)·exp(b)``, so that what is the same for all keys leaves the sum of a softmax and cancels;
* ``exp(-∞) = 0``, and a choice within an exponential is one of exponentials.

They hold of real numbers. A formula says nothing of an entry in whose computation infinities or undefined numbers meet, but for
masks of -∞ below an exponential. Different formulas may be equal, equal ones are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from mugraph.terms.equations import quotient
from mugraph.terms.shape import Dim, SymDim, symbol
from rules_db.trust.formulas.places import (
    NOTHING,
    Facts,
    NotDecided,
    Position,
    Quotient,
    is_natural,
    leading,
    limits,
    placed,
    positions,
)

__all__ = [
    "INFINITY",
    "NO_CUTS",
    "ONE",
    "TRUTHS",
    "ZERO",
    "Atom",
    "Cuts",
    "Digits",
    "Formula",
    "atoms_of",
    "cases",
    "choice",
    "counted",
    "exponential",
    "extremum",
    "infinite_signs",
    "is_infinite",
    "is_truth",
    "mapped",
    "natural",
    "number_of",
    "same",
    "summed",
    "together",
    "where",
]

Atom = tuple[Any, ...]
_Monomial = frozenset[tuple[Atom, Fraction]]
_UNIT: _Monomial = frozenset()
TRUTHS = frozenset({"truth", "natural", "positive", "zero", "undefined", "infinite"})
"""Kinds of atoms that are 0 or 1."""
_BINDERS = frozenset({"sum", "max", "min"})
_INFINITE: Atom = ("infinity",)
_MOST_TERMS = 4000
_MOST_INDICES = 4
_MOST_CASES = 6
_REMEMBERED = 1 << 15


class Formula:
    """A sum of products in normal form; compare with ``==``.

    Attributes:
        terms: product to its coefficient, which is not zero.
    """

    def __init__(self, terms: Mapping[_Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        if len(self.terms) > _MOST_TERMS:
            raise NotDecided(f"a sum of more than {_MOST_TERMS} products")

    @cached_property
    def key(self) -> bytes:
        """By which formulas are compared: most are a step on the way to another, and never asked for it."""
        return hashlib.blake2b("+".join(sorted(f"{c}*{_text(m)}" for m, c in self.terms.items())).encode()).digest()

    @cached_property
    def free(self) -> frozenset[Position]:
        """The index variables in it that no sum binds."""
        return frozenset(name for monomial in self.terms for atom, _ in monomial for name in _free(atom))

    @cached_property
    def height(self) -> int:
        """How many sums stand within each other, at most."""
        return max((_height(atom) for monomial in self.terms for atom, _ in monomial), default=0)

    @staticmethod
    def number(value: int | Fraction) -> Formula:
        return Formula({_UNIT: Fraction(value)})

    @staticmethod
    def atom(*parts: Any) -> Formula:
        return Formula({frozenset({(parts, Fraction(1))}): Fraction(1)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __add__(self, other: Formula) -> Formula:
        total = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total[monomial] = total[monomial] + coefficient if monomial in total else coefficient
        return Formula(total)

    def __neg__(self) -> Formula:
        return Formula({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Formula) -> Formula:
        return self + -other

    def __mul__(self, other: Formula) -> Formula:
        if len(self.terms) * len(other.terms) > _MOST_TERMS * 8:
            raise NotDecided(f"a product of {len(self.terms)} and {len(other.terms)} summands")
        total: dict[_Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                key = _joined(left, right)
                total[key] = total[key] + a * b if key in total else a * b
        return Formula(total)

    @property
    def constant(self) -> Fraction | None:
        """The number that a formula is, whatever the entries are."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(_UNIT) if len(self.terms) == 1 else None

    def inverse(self) -> Formula:
        """1/x. Raises NotDecided for zero, truth values and infinities."""
        if not self.terms:
            raise NotDecided("a division by zero")
        if any(atom[0] in TRUTHS or atom[0] == "infinity" for m in self.terms for atom, _ in m):
            raise NotDecided("a division by a choice")
        common = frozenset.intersection(*self.terms)
        lead = self.terms[min(self.terms, key=_text)]
        outer = Formula({frozenset((a, -p) for a, p in common): 1 / lead})
        inner = Formula({m - common: c / lead for m, c in self.terms.items()})
        if len(inner.terms) == 1:
            return outer
        return outer * Formula({frozenset({(("group", inner), Fraction(-1))}): Fraction(1)})


def _joined(left: _Monomial, right: _Monomial) -> _Monomial:
    """The product of two products. A truth value times itself is itself. There is no 0·∞: ∞ stands beside truth values only."""
    if not left or not right:
        return left or right
    powers = dict(left)
    for atom, power in right:
        is_idempotent = atom[0] in TRUTHS or atom[0] == "infinity"
        powers[atom] = Fraction(1) if is_idempotent else powers[atom] + power if atom in powers else power
    return frozenset((atom, power) for atom, power in powers.items() if power)


@lru_cache(maxsize=_REMEMBERED)
def _text(monomial: _Monomial) -> str:
    """A text that no other product has: formulas within it stand for themselves by their digest, so that it stays short."""
    return "*".join(sorted(f"{_spelt(atom)}^{power}" for atom, power in monomial))


def _spelt(part: object) -> str:
    if isinstance(part, Formula):
        return part.key.hex()
    if isinstance(part, tuple):
        return f"({','.join(map(_spelt, part))})"
    if isinstance(part, frozenset):
        return f"{{{','.join(sorted(map(_spelt, part)))}}}"
    return f"{type(part).__name__}:{part!r}"


@lru_cache(maxsize=_REMEMBERED)
def _free(atom: Atom) -> frozenset[Position]:
    if atom[0] in _BINDERS:
        inner: frozenset[Position] = atom[2].free
        return inner - set(atom[1])
    found: set[Position] = set()
    for part in atom[1:]:
        if isinstance(part, Formula):
            found |= part.free
        elif isinstance(part, SymDim):
            found |= set(positions(part))
        elif isinstance(part, frozenset):
            found |= {name for inner in part for name in (inner.free if isinstance(inner, Formula) else _free(inner))}
    return frozenset(found)


def _height(atom: Atom) -> int:
    bound = 1 if atom[0] in _BINDERS else 0
    inner = [part.height for part in atom[1:] if isinstance(part, Formula)]
    for part in atom[1:]:
        if isinstance(part, frozenset):
            inner += [item.height if isinstance(item, Formula) else _height(item) for item in part]
    return bound + max(inner, default=0)


ZERO, ONE = Formula.number(0), Formula.number(1)
INFINITY = Formula.atom(*_INFINITE)


def number_of(dim: Dim) -> Formula:
    """A size as a number."""
    if isinstance(dim, int):
        return Formula.number(dim)
    terms = {frozenset((("size", name), Fraction(p)) for name, p in powers): Fraction(c) for powers, c in dim.terms}
    return Formula(terms)


def counted(place: Dim) -> Formula:
    """A place as a number, by which its index variables can be told: a sum of multiples of products of these and of sizes."""
    if isinstance(place, int):
        return Formula.number(place)
    total = ZERO
    for powers, coefficient in place.terms:
        term = Formula.atom("place", SymDim.make({powers: 1})) if powers else ONE
        total = total + Formula.number(coefficient) * term
    return total


def _total(formulas: Iterable[Formula]) -> Formula:
    """The sum of formulas, put in normal form once: adding them one by one takes time that grows with the square of the terms."""
    total: dict[_Monomial, Fraction] = {}
    for formula in formulas:
        for monomial, coefficient in formula.terms.items():
            total[monomial] = total[monomial] + coefficient if monomial in total else coefficient
            if not total[monomial]:
                del total[monomial]
        if len(total) > _MOST_TERMS:
            raise NotDecided(f"a sum of more than {_MOST_TERMS} products")
    return Formula(total)


def mapped(formula: Formula, move: Callable[[Position], Dim], facts: Facts = NOTHING) -> Formula:
    """A formula with its free index variables replaced, simplified where ``facts`` hold."""
    return _Replacement(move, facts).of(formula, frozenset())


class _Replacement:
    """Replaces index variables; a formula or a factor that stands in several places is looked at once."""

    def __init__(self, move: Callable[[Position], Dim], facts: Facts) -> None:
        self._move, self._facts = move, facts
        self._done: dict[tuple[Formula, frozenset[Position]], Formula] = {}
        self._atoms: dict[tuple[Atom, frozenset[Position]], Formula] = {}

    def of(self, formula: Formula, bound: frozenset[Position]) -> Formula:
        """The formula with all but the ``bound`` variables replaced."""
        key = (formula, bound & formula.free)
        if key not in self._done:
            self._done[key] = _total(self._product(monomial, c, bound) for monomial, c in formula.terms.items())
        return self._done[key]

    def _product(self, monomial: _Monomial, coefficient: Fraction, bound: frozenset[Position]) -> Formula:
        product = Formula.number(coefficient)
        for atom, power in monomial:
            if (atom, bound) not in self._atoms:
                self._atoms[atom, bound] = self._atom(atom, bound)
            product = product * _raised(self._atoms[atom, bound], power)
        return product

    def _place(self, place: Dim, bound: frozenset[Position]) -> Dim:
        return placed(place, lambda name: symbol(name) if name in bound else self._move(name), self._facts)

    def _atom(self, atom: Atom, bound: frozenset[Position]) -> Formula:
        kind = atom[0]
        if kind in _BINDERS:
            body = self.of(atom[2], bound | set(atom[1]))
            for name in atom[1]:
                body = summed(body, name) if kind == "sum" else extremum(kind, body, name)
            return body
        if kind == "natural":
            return natural(self._place(atom[1], bound), self._facts)
        if kind == "place":
            return counted(self._place(atom[1], bound))
        if kind == "exp":
            return exponential(self.of(atom[1], bound))
        parts = [self._part(part, bound) for part in atom[1:]]
        if kind == "group":
            group: Formula = parts[0]
            return group
        return Formula.atom(kind, *parts)

    def _part(self, part: Any, bound: frozenset[Position]) -> Any:
        if isinstance(part, Formula):
            return self.of(part, bound)
        if isinstance(part, SymDim):
            return self._place(part, bound)
        return frozenset(self._part(inner, bound) for inner in part) if isinstance(part, frozenset) else part


def _raised(base: Formula, power: Fraction) -> Formula:
    """A power of what an atom became: of an exponential any, of others a whole one. Raises NotDecided."""
    if power == 1:
        return base
    if len(base.terms) == 1 and all(atom[0] == "exp" for atom in atoms_of(base)) and 1 in base.terms.values():
        ((monomial, _),) = base.terms.items()
        return Formula({frozenset((atom, p * power) for atom, p in monomial): Fraction(1)})
    if power.denominator != 1:
        raise NotDecided("a root of a sum")
    result = ONE
    for _ in range(abs(int(power))):
        result = result * base
    return result if power > 0 else result.inverse()


def summed(formula: Formula, index: Position) -> Formula:
    """The sum over all values of an index variable, of which there is at least one."""
    if any(atom[0] == "infinity" for monomial in formula.terms for atom, _ in monomial):
        raise NotDecided("a sum of infinities")
    return _total(_sum_over(index, monomial, coefficient) for monomial, coefficient in formula.terms.items())


def _sum_over(index: Position, monomial: _Monomial, coefficient: Fraction) -> Formula:
    """The sum of one product over all values of an index variable."""
    inner = frozenset(item for item in monomial if index in _free(item[0]))
    outer = Formula({monomial - inner: coefficient})
    return outer * (_sum_of(frozenset({index}), inner) if inner else number_of(index.size))


@lru_cache(maxsize=_REMEMBERED)
def _sum_of(indices: frozenset[Position], factors: _Monomial) -> Formula:
    """The sum of a product over some index variables: sums within it join it, what does not share an index stands apart."""
    product = Formula({factors: Fraction(1)})
    taken = set(product.free) | indices
    opened = Formula({_UNIT: Fraction(1)})
    for atom, power in factors:
        factor = Formula({frozenset({(atom, power)}): Fraction(1)})
        if atom[0] == "sum" and power == 1:
            names: dict[Position, Position] = {}
            for bound in atom[1]:
                number = next(n for n in itertools.count() if Position(f"~{n}", bound.size) not in taken)
                names[bound] = Position(f"~{number}", bound.size)
                taken.add(names[bound])
            factor = _renamed(atom[2], names)
            indices = indices.union(names.values())
        opened = opened * factor
    if len(opened.terms) != 1:
        return _nested_sum(indices, opened)
    ((monomial, coefficient),) = opened.terms.items()
    result = Formula.number(coefficient)
    pending = list(monomial)
    while pending:
        part, reach = [pending.pop()], set[Position]()
        while True:
            reach = {name for atom, _ in part for name in _free(atom)} & indices
            more = [item for item in pending if reach & _free(item[0])]
            if not more:
                break
            part += more
            pending = [item for item in pending if item not in more]
        result = result * (_named_sum(reach, frozenset(part)) if reach else Formula({frozenset(part): Fraction(1)}))
        indices = indices - reach
    for name in indices:
        result = result * number_of(name.size)
    return result


def _nested_sum(indices: Set[Position], formula: Formula) -> Formula:
    for name in sorted(indices):
        formula = summed(formula, name)
    return formula


def _named_sum(indices: Set[Position], factors: _Monomial) -> Formula:
    """The atom of a sum: its index variables are named so that sums that differ in names or order are one."""
    body = Formula({factors: Fraction(1)})
    if len(indices) > _MOST_INDICES:
        raise NotDecided(f"a sum over {len(indices)} indices")
    best: tuple[bytes, tuple[Position, ...], Formula] | None = None
    for order in itertools.permutations(sorted(indices)):
        names = {old: _bound_name(body, i, old, indices) for i, old in enumerate(order)}
        renamed = _renamed(body, names)
        key = (renamed.key, tuple(names.values()), renamed)
        best = key if best is None or key[:2] < best[:2] else best
    assert best is not None
    return Formula.atom("sum", best[1], best[2])


def _bound_name(body: Formula, number: int, index: Position, indices: Set[Position]) -> Position:
    """The name of an index variable that is bound around a body: of no variable bound within it, nor free in it."""
    name = Position(f"#{body.height + 1}.{number}", index.size)
    if name in body.free - indices:
        raise NotDecided("an index variable of a sum around this one")
    return name


def _renamed(formula: Formula, names: Mapping[Position, Position]) -> Formula:
    return mapped(formula, lambda name: symbol(names.get(name, name)))


def extremum(kind: str, formula: Formula, index: Position) -> Formula:
    """The greatest (``max``) or least (``min``) of the values of an index variable, of which there is at least one."""
    if index not in formula.free:
        return formula
    name = _bound_name(formula, 0, index, {index})
    return Formula.atom(kind, (name,), _renamed(formula, {index: name}))


Cuts = Mapping[Dim, tuple[Dim, ...]]
"""Of a size the values of the digits of an index variable below it, the least first, which is 1: each divides the next."""
NO_CUTS: Cuts = {}


@dataclass(frozen=True, slots=True)
class Digits:
    """An index variable in ``[0, size)`` as a number of digits, each an index variable of its own: its places are theirs.

    So a condition on one digit leaves places in which it is known, where a quotient would only be bounded.

    Attributes:
        size: of the variable.
        whole: the variable itself.
        parts: the digits, the lowest first.
        place: what they add up to.
    """

    size: Dim
    whole: Position
    parts: tuple[Position, ...]
    place: Dim

    @staticmethod
    def of(name: str, size: Dim, cuts: Cuts = NO_CUTS) -> Digits:
        """An index variable with the digits that are given for its size.

        Args:
            name: with which no name of another one begins; those of its digits are this and a number.
        """
        values = cuts.get(size, (1,))
        assert values[0] == 1, "the lowest digit counts ones"
        parts: list[Position] = []
        place: Dim = 0
        for number, (value, following) in enumerate(zip(values, [*values[1:], size], strict=True)):
            length = quotient(following, value)
            assert length is not None, "each divides the next"
            parts.append(Position(f"{name}{number}", length))
            place = place + value * parts[-1].place
        return Digits(size, Position(name, size), tuple(parts), place)

    def summed(self, formula: Formula) -> Formula:
        """The sum over all values."""
        formula, variables = self._bound(formula)
        for variable in variables:
            formula = summed(formula, variable)
        return formula

    def extremum(self, kind: str, formula: Formula) -> Formula:
        """The greatest (``max``) or least (``min``) of all values."""
        formula, variables = self._bound(formula)
        for variable in variables:
            formula = extremum(kind, formula, variable)
        return formula

    def _bound(self, formula: Formula) -> tuple[Formula, tuple[Position, ...]]:
        """A formula and the variables in it to bind: the variable itself, where the digits count as what they add up to alone."""
        if len(self.parts) == 1:
            return formula, self.parts
        below = {part: symbol(self.whole) if part == self.parts[0] else 0 for part in self.parts}
        of_whole = mapped(formula, lambda name: below.get(name, symbol(name)))
        again = mapped(of_whole, lambda name: self.place if name == self.whole else symbol(name))
        return (of_whole, (self.whole,)) if again == formula else (formula, self.parts)


def natural(place: Dim, facts: Facts = NOTHING) -> Formula:
    """Whether a place is not negative, as 0 or 1: of a condition and its opposite one is the atom."""
    bounds = limits(place, facts)
    if bounds is not None and is_natural(bounds[0]):
        return ONE
    if bounds is not None and is_natural(-bounds[1] - 1):
        return ZERO
    assert isinstance(place, SymDim), place
    place = leading(place)
    _, coefficient = max(place.terms, key=lambda part: (len(part[0]), part[0]))
    return ONE - Formula.atom("natural", -place - 1) if coefficient < 0 else Formula.atom("natural", place)


def together(truths: Iterable[Formula], is_any: bool) -> Formula:
    """Whether all of some truth values hold, or any of them."""
    failed = ONE
    for truth in truths:
        failed = failed * (ONE - truth if is_any else truth)
    return ONE - failed if is_any else failed


def same(first: Formula, second: Formula) -> bool:
    """Whether two formulas are known to be equal: in normal form, or once both are multiplied by the sums that divide them."""
    difference = first - second
    while difference.terms:
        sums = {atom for atom in atoms_of(difference) if atom[0] == "group"}
        if not sums:
            return False
        divisor = min(sums, key=_spelt)
        least = min(dict(monomial).get(divisor, Fraction(0)) for monomial in difference.terms)
        difference = _total(_times(divisor, least, m, coefficient) for m, coefficient in difference.terms.items())
    return True


def _times(divisor: Atom, least: Fraction, monomial: _Monomial, coefficient: Fraction) -> Formula:
    """A product multiplied by a sum, of which it holds that power at least, until it is no factor any more."""
    powers = dict(monomial)
    times = powers.pop(divisor, Fraction(0)) - least
    return Formula({frozenset(powers.items()): coefficient}) * _raised(divisor[1], times)


# Truth values and infinities


def atoms_of(formula: Formula) -> set[Atom]:
    """The atoms of a formula's products."""
    return {atom for monomial in formula.terms for atom, _ in monomial}


def is_infinite(formula: Formula) -> bool:
    """Whether infinities stand in a formula: what it is then, is for exponentials and choices alone to say."""
    return _INFINITE in atoms_of(formula)


def cases(formula: Formula, truths: Iterable[Atom]) -> Iterator[tuple[Formula, Formula]]:
    """For every case of some truth values: 1 where it is the one, and the formula there. Raises NotDecided for too many."""
    chosen = sorted(truths, key=_spelt)
    if len(chosen) > _MOST_CASES:
        raise NotDecided(f"{len(chosen)} conditions at once")
    for values in itertools.product((False, True), repeat=len(chosen)):
        case = dict(zip(chosen, values, strict=True))
        weight = ONE
        for atom, holds in case.items():
            weight = weight * (Formula.atom(*atom) if holds else ONE - Formula.atom(*atom))
        kept: dict[_Monomial, Fraction] = {}
        for monomial, coefficient in formula.terms.items():
            if all(case.get(atom, True) for atom, _ in monomial):
                rest = frozenset(item for item in monomial if item[0] not in case)
                kept[rest] = kept.get(rest, Fraction(0)) + coefficient
        yield weight, Formula(kept)


def _truths(formula: Formula) -> set[Atom]:
    return {atom for atom in atoms_of(formula) if atom[0] in TRUTHS}


def is_truth(formula: Formula) -> bool:
    """Whether a formula is 0 or 1 whatever its atoms are."""
    truths = _truths(formula)
    return truths == atoms_of(formula) and all(case.constant in (0, 1) for _, case in cases(formula, truths))


def _parted(formula: Formula) -> tuple[Formula, Formula]:
    """The finite summands of a formula, and what stands at ∞."""
    item = (_INFINITE, Fraction(1))
    finite = {m: c for m, c in formula.terms.items() if item not in m}
    return Formula(finite), Formula({m - {item}: c for m, c in formula.terms.items() if item in m})


def infinite_signs(formula: Formula) -> set[int]:
    """The signs of the infinities that a formula can be. Raises NotDecided where more than truth values tell."""
    infinite = _parted(formula)[1]
    signs = set()
    for _, case in cases(infinite, _truths(infinite)):
        if case.constant is None:
            raise NotDecided("an infinity times a number")
        signs.add((case.constant > 0) - (case.constant < 0))
    return signs


def choice(condition: Formula, first: Formula, second: Formula) -> Formula:
    """``first`` where a truth value holds, else ``second``; each is simplified by what holds where it counts."""
    if not is_truth(condition):
        raise NotDecided("a condition that is no truth value")
    if condition in (ONE, ZERO):
        return first if condition == ONE else second
    first, second = (mapped(x, symbol, _facts(c)) if _facts(c) else x for x, c in ((first, condition), (second, ONE - condition)))
    return first if first == second else condition * first + (ONE - condition) * second


def where(condition: Formula, place: Dim) -> Dim:
    """A place as it is where a condition holds."""
    return placed(place, symbol, facts) if (facts := _facts(condition)) else place


def _facts(condition: Formula) -> Facts:
    """The bounds that a condition gives to single atoms of places."""
    place: Dim
    if len(condition.terms) == 1:
        ((monomial, coefficient),) = condition.terms.items()
        if coefficient != 1 or len(monomial) != 1:
            return NOTHING
        ((atom, _),) = monomial
        place = atom[1] if atom[0] == "natural" else 0
    else:
        opposite = ONE - condition
        if len(opposite.terms) != 1:
            return NOTHING
        ((monomial, coefficient),) = opposite.terms.items()
        if coefficient != 1 or len(monomial) != 1:
            return NOTHING
        ((atom, _),) = monomial
        place = -atom[1] - 1 if atom[0] == "natural" else 0
    if not isinstance(place, SymDim):
        return NOTHING
    named = {name for powers, _ in place.terms for name, _ in powers if isinstance(name, Position | Quotient)}
    facts: dict[str, tuple[Dim, Dim]] = {}
    if len(named) == 1:
        (name,) = named
        bounds = limits(symbol(name))
        for sign in (1, -1):
            others = place - sign * symbol(name)
            if bounds is not None and (isinstance(others, int) or name not in others.symbols()):
                facts[name] = (-others, bounds[1]) if sign == 1 else (bounds[0], others)
    return facts


def exponential(formula: Formula) -> Formula:
    """exp(x): a product of exponentials of single products; by cases where truth values stand among them."""
    truths = _truths(formula)
    if not is_infinite(formula) and (not truths or len(truths) > _MOST_CASES):
        return _product_of_exponentials(formula)
    total = ZERO
    for weight, case in cases(formula, truths):
        finite, infinite = _parted(case)
        sign = infinite.constant
        if sign is None or sign > 0:
            raise NotDecided("an exponential of what may be +∞")
        if sign == 0:
            total = total + weight * _product_of_exponentials(finite)
    return total


def _product_of_exponentials(formula: Formula) -> Formula:
    powers = {(("exp", Formula({monomial: Fraction(1)})), coefficient) for monomial, coefficient in formula.terms.items()}
    return Formula({frozenset(powers): Fraction(1)})
