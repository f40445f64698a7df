"""Equality of entries: polynomials over real inputs and function symbols, decided by Z3 where their canonical forms differ.

Division and functions are no arithmetic to Z3, which would leave them undecided: every application is an unknown number
together with the facts that define it (``x * inv(x) = 1``, ``sqrt(x)^2 = x`` and ``sqrt(x) >= 0``, ``exp > 0`` with
``exp(x + y) = exp(x) exp(y)``, oddness of erf and tanh). Maxima, minima, absolute values and signs are conditional
expressions, so that order is decided as arithmetic. Equations are asked where both sides have values: no divisor is zero, no
radicand negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import z3

from mugraph.domains.functions import FUNCTIONS
from mugraph.domains.symbolic import Atom, Poly
from rules_db.trust.rule import Verdict

__all__ = ["ScalarVerdict", "decide", "input_atoms", "order_form", "rename_inputs"]

_TIMEOUT_MS = 1500


@dataclass(frozen=True)
class ScalarVerdict:
    """The verdict on an equation of entries.

    Attributes:
        verdict: proved, refuted or unknown.
        reason: why not proved.
        model: inputs that tell the sides apart, where there are such.
    """

    verdict: Verdict
    reason: str = ""
    model: Mapping[Atom, float] | None = None


@lru_cache(maxsize=1)
def _solver() -> z3.Solver:
    """One solver in one context: many contexts in a process are reported to crash."""
    solver = z3.SolverFor("QF_NRA")
    solver.set("timeout", _TIMEOUT_MS)
    return solver


def _parts(value: Any) -> Iterator[Poly]:
    """The polynomials in an atom's argument."""
    if isinstance(value, Poly):
        yield value
    elif isinstance(value, frozenset | tuple):
        for item in value:
            yield from _parts(item)


def input_atoms(poly: Poly) -> list[Atom]:
    """The entries of inputs that a polynomial depends on, in order of name and place."""
    atoms: set[Atom] = set()
    pending, seen = [poly], set[Poly]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for monomial in current.terms:
            for atom, _ in monomial:
                if atom[0] == "x":
                    atoms.add(atom)
                else:
                    pending.extend(_parts(atom[1:]))
    return sorted(atoms, key=lambda a: (a[1], a[2]))


def rename_inputs(poly: Poly, names: Mapping[Atom, Atom]) -> Poly:
    """The polynomial with entries of inputs renamed."""

    def value(v: Any) -> Any:
        if isinstance(v, Poly):
            return rename_inputs(v, names)
        if isinstance(v, frozenset):
            return frozenset(map(value, v))
        return v

    def atom(a: Atom) -> Atom:
        return names[a] if a[0] == "x" else tuple(map(value, a))

    return Poly({frozenset((atom(a), power) for a, power in monomial): c for monomial, c in poly.terms.items()})


def order_form(poly: Poly) -> Poly:
    """An equal polynomial with minima as negated maxima, drawn out of sums and increasing functions, and nested ones joined.

    Z3 would have to try every order of the entries of a window.
    """
    total = Poly({})
    for monomial, coefficient in poly.terms.items():
        product = Poly.constant(coefficient)
        for atom, power in monomial:
            factor = _order_atom(atom)
            for _ in range(abs(power)):
                product = product * (factor if power > 0 else factor.inverse())
        total = total + product
    return total


def _order_atom(atom: Atom) -> Poly:
    function, *arguments = atom
    if function == "x":
        return Poly.atom(*atom)
    if function in ("max", "min"):
        members = [order_form(member) for member in arguments[0]]
        return _maximum(members) if function == "max" else -_maximum(-member for member in members)
    arguments = [order_form(a) if isinstance(a, Poly) else a for a in arguments]
    row = FUNCTIONS.get(function)
    spread = _spread(arguments[0]) if row is not None and row.increasing else None
    if spread is None:
        return Poly.atom(function, *arguments)
    is_maximum, inner = spread
    applied = [_order_atom((function, member)) for member in inner]
    return _maximum(applied) if is_maximum else -_maximum(-member for member in applied)


def _spread(poly: Poly) -> tuple[bool, list[Poly]] | None:
    """The members, where a polynomial is a multiple of one maximum and summands without any, and whether it is a maximum."""
    with_maxima = [(m, c) for m, c in poly.terms.items() if any(atom[0] == "max" for atom, _ in m)]
    if len(with_maxima) != 1 or len(with_maxima[0][0]) != 1:
        return None
    ((monomial, coefficient),) = with_maxima
    ((atom, power),) = monomial
    rest = poly - Poly({monomial: coefficient})
    factor = Poly.constant(coefficient)
    return (coefficient > 0, [factor * member + rest for member in atom[1]]) if power == 1 else None


def _maximum(members: Iterable[Poly], distribute: bool = True) -> Poly:
    """The greatest of the members, nested maxima joined and constants reduced to the greatest."""
    flat: set[Poly] = set()
    pending = list(members)
    while pending:
        member = pending.pop()
        spread = _spread(member)
        if spread is not None and spread[0]:
            pending += spread[1]
        else:
            flat.add(member)
    constants = [member for member in flat if not set(member.terms) - {frozenset()}]
    flat -= set(sorted(constants, key=lambda c: c.terms.get(frozenset(), Fraction(0)))[:-1])
    minima = [(member, spread[1]) for member in flat if (spread := _spread(member)) is not None]
    flat -= {member for member, inner in minima if flat & set(inner)}  # max(a, min(a, b)) = a
    minima = [(member, inner) for member, inner in minima if member in flat]
    if distribute and len(flat) > 1 and len(minima) == 1 and all(set(m.terms) - {frozenset()} for m in minima[0][1]):
        ((minimum, inner),) = minima  # max(a, min(b, c)) = min(max(a, b), max(a, c))
        return -_maximum([-_maximum((flat - {minimum}) | {member}) for member in inner], distribute=False)
    return next(iter(flat)) if len(flat) == 1 else Poly.atom("max", frozenset(flat))


class _Problem:
    """Z3 terms of polynomials, and the facts that define the unknowns in them."""

    def __init__(self) -> None:
        self.inputs: dict[Atom, Any] = {}
        self.facts: list[Any] = []
        self._atoms: dict[Any, Any] = {}

    def _fresh(self) -> Any:
        return z3.FreshReal("u")

    def poly(self, poly: Poly) -> Any:
        total: Any = z3.RealVal(0)
        for monomial, coefficient in poly.terms.items():
            product: Any = z3.RealVal(str(coefficient))
            for atom, power in sorted(monomial, key=repr):
                base = self.atom(atom) if power > 0 else self._inverse(self.atom(atom), atom)
                for _ in range(abs(power)):
                    product = product * base
            total = total + product
        return total

    def _inverse(self, value: Any, key: Any) -> Any:
        if ("inverse", key) not in self._atoms:
            unknown = self._fresh()
            self.facts.append(value * unknown == 1)
            self._atoms["inverse", key] = unknown
        return self._atoms["inverse", key]

    def atom(self, atom: Atom) -> Any:
        if atom not in self._atoms:
            self._atoms[atom] = self._define(atom)
        return self._atoms[atom]

    def _define(self, atom: Atom) -> Any:
        function, *arguments = atom
        if function == "x":
            self.inputs[atom] = unknown = self._fresh()
            return unknown
        if function in ("max", "min"):
            members = [self.poly(p) for p in sorted(arguments[0], key=repr)]
            return reduce(lambda a, b: z3.If((a >= b) if function == "max" else (a <= b), a, b), members)
        argument = arguments[0]
        if function == "inv":
            return self._inverse(self.poly(argument), ("inv", argument))
        if function == "exp":
            return self._exponential(argument)
        if function == "abs":
            value = self.poly(argument)
            return z3.If(value >= 0, value, -value)
        if function == "sign":
            value = self.poly(argument)
            return z3.If(value > 0, z3.RealVal(1), z3.If(value < 0, z3.RealVal(-1), z3.RealVal(0)))
        if function in FUNCTIONS and FUNCTIONS[function].odd:
            return self._odd(function, argument)
        unknown = self._fresh()
        if function == "sqrt":
            value = self.poly(argument)
            self.facts += [value >= 0, unknown >= 0, unknown * unknown == value]
        return unknown

    def _exponential(self, argument: Poly) -> Any:
        """exp of a sum is the product of the summands' exponentials; those of x and -x are inverse."""
        product: Any = z3.RealVal(1)
        for monomial, coefficient in argument.terms.items():
            key = ("exp", monomial, abs(coefficient))
            if key not in self._atoms:
                self._atoms[key] = self._fresh()
                self.facts.append(self._atoms[key] > 0)
            value = self._atoms[key]
            product = product * (value if coefficient > 0 else self._inverse(value, key))
        return product

    def _odd(self, function: str, argument: Poly) -> Any:
        if not argument.terms:
            return z3.RealVal(0)
        first = min(argument.terms, key=lambda m: repr(sorted(m, key=repr)), default=frozenset())
        negative = argument.terms.get(first, Fraction(0)) < 0
        key = (f"odd {function}", -argument if negative else argument)
        if key not in self._atoms:
            self._atoms[key] = self._fresh()
        return -self._atoms[key] if negative else self._atoms[key]


def decide(left: Poly, right: Poly, assumed: Iterable[tuple[str, Poly]] = ()) -> ScalarVerdict:
    """Whether two entries are equal for all values of the inputs.

    Args:
        left, right: the entries.
        assumed: relations of values to zero that hold: ``(">=", p)``, ``(">", p)`` or ``("!=", p)``.

    Returns:
        ``proved``; or ``unknown`` with the reason, and with a model where Z3 finds values that tell the sides apart: those
        refute the equation only if evaluation confirms it, since the unknowns that stand for functions may not be theirs.
    """
    left, right = order_form(left), order_form(right)
    if left == right:
        return ScalarVerdict(Verdict.PROVED)
    problem = _Problem()
    goal = problem.poly(left) != problem.poly(right)
    relations = {">=": lambda v: v >= 0, ">": lambda v: v > 0, "!=": lambda v: v != 0}
    facts = [relations[relation](problem.poly(poly)) for relation, poly in assumed]
    solver = _solver()
    solver.reset()
    solver.add(*facts, *problem.facts, goal)
    answer = solver.check()
    if answer == z3.unsat:
        return ScalarVerdict(Verdict.PROVED)
    if answer == z3.unknown:
        return ScalarVerdict(Verdict.UNKNOWN, f"Z3 gives up ({solver.reason_unknown()})")
    model = solver.model()
    values = {}
    for atom, constant in problem.inputs.items():
        value = model.eval(constant, model_completion=True)
        value = value.approx(20) if z3.is_algebraic_value(value) else value
        values[atom] = float(value.as_fraction())
    return ScalarVerdict(Verdict.UNKNOWN, "Z3 tells the sides apart, but functions are only symbols to it", values)
