"""The number system of formulas: the semantics of every elementwise operator at one entry, as they stand in its record.

Arrays are single entries, :class:`Formula`. Operators on whole tensors, which ask for shapes, have no meaning here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import BYTES, FLOATS, NIBBLES, WHOLE_NUMBERS, Unsupported, exact
from mugraph.domains.functions import FUNCTIONS
from mugraph.ops import Entrywise, traits_of
from mugraph.ops.indexing import is_place
from mugraph.ops.quantized import INTEGER_PRODUCT
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term
from rules_db.trust.formulas.formula import (
    INFINITY,
    ONE,
    TRUTHS,
    ZERO,
    Atom,
    Formula,
    atoms_of,
    choice,
    exponential,
    infinite_signs,
    is_infinite,
    is_truth,
)
from rules_db.trust.formulas.places import NotDecided

__all__ = ["Formulas", "refuse_integers"]

_EXACT = 2**31 - 1
"""The greatest number that integers of all types which are compared have, and doubles."""
_COUNTS = frozenset({DataType.INT32, DataType.INT64})
"""Integer types that count truth values; whether a sum of them fits is not asked."""


def refuse_integers(types: Mapping[Term, TensorType]) -> None:
    """Integers are counts of truth values: cast, reduced, compared; operands that are moved and compared alone, which changes
    none of them, or that become floats where every one of them is one; or places and their differences; or bytes that are
    multiplied as such, beside no numbers, whose sums are moved and become floats: whether one fits is not asked. Raises
    NotDecided for all others, since they wrap around.

    Args:
        types: of all terms.
    """
    computed_with: set[Term] = set()
    for term in types:
        _refuse_beside_products(term)
        if is_place(term) or _is_exact_float(term, types) or term.op == INTEGER_PRODUCT:
            continue
        if not (traits_of(term.op).addresses or traits_of(term.op).entrywise is Entrywise.COMPARISON):
            computed_with.update(_moved(term.inputs))
        elif any(part in types and types[part].dtype in WHOLE_NUMBERS for part in term.inputs):
            _refuse_fractions(term.inputs)
    for term, type_ in types.items():
        counts = term.op in ("Cast", INTEGER_PRODUCT) or traits_of(term.op).reduction is not None or traits_of(term.op).addresses
        if type_.dtype in WHOLE_NUMBERS and not (counts or is_place(term) or (term.is_var and term not in computed_with)):
            raise NotDecided(f"{'an operand' if term.is_var else term.op} of integers")


def _refuse_beside_products(term: Term) -> None:
    """Raises NotDecided where sums of products of integers become anything but floats, or numbers are multiplied as bytes."""
    parts = {part.op for part in _moved(term.inputs)}
    if term.op == INTEGER_PRODUCT and "Const" in parts:
        raise NotDecided("a number among bytes")
    is_read = traits_of(term.op).addresses or (term.op == "Cast" and term.attr("to") in FLOATS)
    if INTEGER_PRODUCT in parts and not is_read:
        raise NotDecided(f"{term.op} of {INTEGER_PRODUCT}")


def _is_exact_float(term: Term, types: Mapping[Term, TensorType]) -> bool:
    """Whether a term is an integer of four or eight bits as a float, which every float type has: the same number."""
    if term.op != "Cast" or term.attr("to") not in FLOATS:
        return False
    before = types.get(term.inputs[0])
    return before is not None and before.dtype in BYTES | NIBBLES


def _refuse_fractions(terms: Iterable[Term]) -> None:
    """Beside integers a number has their type: one that is none of theirs becomes another. Raises NotDecided."""
    for term in _moved(terms):
        value = term.attr("value") if term.op == "Const" else 0
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _EXACT
        if not is_number or value != int(value):
            raise NotDecided(f"{value} beside integers")


def _moved(terms: Iterable[Term]) -> Iterator[Term]:
    """Terms and what they are movements of."""
    for term in terms:
        yield term
        if traits_of(term.op).addresses:
            yield from _moved(term.inputs)


def _refuse(*operands: Any, **options: Any) -> Any:
    raise Unsupported("an operation on whole tensors, of one entry")


def _finite(*operands: Formula) -> None:
    if any(map(is_infinite, operands)):
        raise NotDecided("arithmetic of infinities")


class Formulas:
    """Arithmetic of formulas, after the protocol of :class:`mugraph.domains.base.Domain`."""

    name = "formulas"

    def const(self, value: float | int | bool | Fraction) -> Formula:
        if isinstance(value, float) and math.isinf(value):
            return INFINITY if value > 0 else -INFINITY
        if isinstance(value, float) and math.isnan(value):
            raise NotDecided("a number that is none")
        return Formula.number(exact(value))

    def uniform(self, a: Formula) -> Fraction | None:
        return a.constant

    def add(self, a: Formula, b: Formula) -> Formula:
        if is_infinite(a) and is_infinite(b) and {1, -1} <= infinite_signs(a) | infinite_signs(b):
            raise NotDecided("a difference of infinities")
        return a + b

    def sub(self, a: Formula, b: Formula) -> Formula:
        return self.add(a, -b)

    def mul(self, a: Formula, b: Formula) -> Formula:
        for infinite, other in ((a, b), (b, a)):
            if is_infinite(infinite) and not (other.constant is not None and other.constant > 0):
                raise NotDecided("an infinity times a number")
        return a * b

    def div(self, a: Formula, b: Formula) -> Formula:
        return self.mul(a, b.inverse())

    def neg(self, a: Formula) -> Formula:
        return -a

    def power(self, a: Formula, exponent: int) -> Formula:
        result = ONE
        for _ in range(exponent):
            result = self.mul(result, a)
        return result

    def sqrt(self, a: Formula) -> Formula:
        return self.apply("sqrt", a)

    def exp(self, a: Formula) -> Formula:
        return exponential(a)

    def maximum(self, a: Formula, b: Formula) -> Formula:
        return self._extreme("greatest", a, b)

    def minimum(self, a: Formula, b: Formula) -> Formula:
        return self._extreme("least", a, b)

    def _extreme(self, kind: str, *operands: Formula) -> Formula:
        """The atom of a greatest or least of a set; one within another joins it."""
        _finite(*operands)
        members: set[Formula] = set()
        for operand in operands:
            inner = _alone(operand)
            members |= inner[1] if inner is not None and inner[0] == kind else {operand}
        return members.pop() if len(members) == 1 else Formula.atom(kind, frozenset(members))

    def less(self, a: Formula, b: Formula) -> Formula:
        _finite(a, b)
        difference = b - a
        if difference.constant is not None:
            return ONE if difference.constant > 0 else ZERO
        return Formula.atom("positive", difference)

    def equal(self, a: Formula, b: Formula) -> Formula:
        if is_truth(a) and is_truth(b):
            return self.logic(np.equal, a, b)
        if {a, b} & {INFINITY, -INFINITY} and not (is_infinite(a) and is_infinite(b)):
            return ZERO  # what is computed is taken to be finite
        _finite(a, b)
        difference = a - b
        if difference.constant is not None:
            return ONE if difference.constant == 0 else ZERO
        return Formula.atom("zero", frozenset((difference, -difference)))  # no order, which would depend on names of indices

    def isnan(self, a: Formula) -> Formula:
        """Entries of inputs are numbers, so that only a quotient of zeros is none."""
        _finite(a)
        vanishing = frozenset(_divisors(a, set()))
        return Formula.atom("undefined", vanishing) if vanishing else ZERO

    def isinf(self, a: Formula, negative: bool, positive: bool) -> Formula:
        """A question about an entry of an input: what is computed is taken to be finite."""
        atom = _alone(a)
        if atom is None or atom[0] != "x":
            raise NotDecided("whether a computed number is infinite")
        return Formula.atom("infinite", negative, positive, a)

    def logic(self, function: Callable[..., np.ndarray], *operands: Formula) -> Formula:
        """By the truth table of the function."""
        if not all(map(is_truth, operands)):
            raise NotDecided("logic of what is no truth value")
        total = ZERO
        for values in itertools.product((False, True), repeat=len(operands)):
            if bool(function(*map(np.asarray, values))):
                weight = ONE
                for operand, value in zip(operands, values, strict=True):
                    weight = weight * (operand if value else ONE - operand)
                total = total + weight
        return total

    def where(self, condition: Formula, a: Formula, b: Formula) -> Formula:
        return choice(condition, a, b)

    def apply(self, function: str, *operands: Formula) -> Formula:
        _finite(*operands)
        if function not in FUNCTIONS:
            raise Unsupported(f"no scalar function {function}")
        return Formula.atom("function", function, *operands)

    def cast(self, a: Formula, to: DataType) -> Formula:
        if to in FLOATS:
            return a
        if to == DataType.BOOL:
            return a if is_truth(a) else ONE - self.equal(a, ZERO)
        if to in _COUNTS and is_truth(a):
            return a
        raise NotDecided(f"rounding to {to.name.lower()}")

    def move(self, function: Callable[..., np.ndarray], *operands: Formula) -> Formula:
        """What moves the one entry of one tensor gives that entry."""
        if len(operands) != 1:
            raise Unsupported("a movement of several tensors, of one entry")
        return operands[0]

    def shape(self, a: Formula) -> tuple[int, ...]:
        return ()

    exp_relative = einsum = matmul = sum = mean = max = min = sizes = whole = staticmethod(_refuse)


def _alone(formula: Formula) -> Atom | None:
    """The atom that a formula is."""
    if len(formula.terms) == 1:
        ((monomial, coefficient),) = formula.terms.items()
        if coefficient == 1 and len(monomial) == 1:
            ((atom, power),) = monomial
            return atom if power == 1 else None
    return None


def _divisors(formula: Formula, seen: set[Formula]) -> set[Atom]:
    """What is divided by anywhere in a formula and may be zero; what was ``seen`` is left out."""
    seen.add(formula)
    found = {a for m in formula.terms for a, power in m if power < 0 and not _is_positive(a)}
    for atom in atoms_of(formula):
        for part in atom[1:]:
            for inner in part if isinstance(part, frozenset) else (part,):
                if isinstance(inner, Formula) and inner not in seen:
                    found |= _divisors(inner, seen)
    return found


def _is_positive(atom: Atom) -> bool:
    """Whether an atom is known not to be zero: a size, an exponential, a sum of such."""
    if atom[0] == "sum":
        return all(_is_positive(inner) and inner[0] not in TRUTHS for inner in atoms_of(atom[2]))
    return atom[0] in ("exp", "size")
