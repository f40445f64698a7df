"""Equality of entries: polynomials over real inputs and function symbols, decided by Z3 where their normal forms differ
(:mod:`rulegen.properties.normal_form`).

Division and functions are no arithmetic to Z3, which would leave them undecided: every application is an unknown number
together with the facts that define it (``x * inv(x) = 1``, ``sqrt(x)^2 = x`` and ``sqrt(x) >= 0``, ``exp > 0`` with
``exp(x + y) = exp(x) exp(y)``, oddness of erf and tanh). Maxima, minima, absolute values and signs are conditional
expressions, so that order is decided as arithmetic. Equations are asked where both sides have values: no divisor is zero, no
radicand negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import z3

from mugraph.domains.functions import FUNCTIONS
from mugraph.domains.symbolic import Atom, Poly
from rulegen.properties.normal_form import LEAST, NormalForms
from rules_db.trust.rule import Verdict

__all__ = ["ScalarVerdict", "decide", "input_atoms", "rename_inputs"]

_MOST_STEPS, _RESERVE_MS = 2_000_000, 60_000
"""What Z3 may spend on an equation in its own count, some seconds, so that a busy machine answers as an idle one does (those that
it proves take thousands); and in milliseconds, should it not count."""


@dataclass(frozen=True)
class ScalarVerdict:
    """The verdict on an equation of entries.

    Attributes:
        verdict: proved, refuted or unknown.
        reason: why not proved.
        model: inputs that tell the sides apart, where there are such.
        by_z3: whether it is Z3's.
    """

    verdict: Verdict
    reason: str = ""
    model: Mapping[Atom, float] | None = None
    by_z3: bool = False


@lru_cache(maxsize=1)
def _solver() -> z3.Solver:
    """One solver in one context: many contexts in a process are reported to crash."""
    solver = z3.SolverFor("QF_NRA")
    solver.set("rlimit", _MOST_STEPS)
    solver.set("timeout", _RESERVE_MS)
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


class _Problem:
    """Z3 terms of polynomials, and the facts that define the unknowns in them."""

    def __init__(self) -> None:
        self.inputs: dict[Atom, Any] = {}
        self.facts: list[Any] = []
        self.has_symbols = False
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
            self.has_symbols |= atom == LEAST
            self.inputs[atom] = unknown = self._fresh()
            return unknown
        if function in ("max", "min"):
            members = [self.poly(p) for p in sorted(arguments[0], key=repr)]
            return reduce(lambda a, b: z3.If((a >= b) if function == "max" else (a <= b), a, b), members)
        argument = arguments[0]
        if function == "inv":
            return self._inverse(self.poly(argument), ("inv", argument))
        if function == "abs":
            value = self.poly(argument)
            return z3.If(value >= 0, value, -value)
        if function == "sign":
            value = self.poly(argument)
            return z3.If(value > 0, z3.RealVal(1), z3.If(value < 0, z3.RealVal(-1), z3.RealVal(0)))
        if function == "sqrt":
            value, unknown = self.poly(argument), self._fresh()
            self.facts += [value >= 0, unknown >= 0, unknown * unknown == value]
            return unknown
        self.has_symbols = True
        if function == "exp":
            return self._exponential(argument)
        if function in FUNCTIONS and FUNCTIONS[function].odd:
            return self._odd(function, argument)
        return self._fresh()

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
        assumed: relations of values to zero that hold: ``(">=", p)``, ``(">", p)`` or ``("!=", p)``; and ``("whole", p)``.

    Returns:
        ``proved``; or ``unknown`` with the reason, and with a model where Z3 finds values that tell the sides apart: those
        refute the equation only if evaluation confirms it, since the unknowns that stand for functions may not be theirs.
    """
    known = list(assumed)
    pairs = [(forms.of(left), forms.of(right)) for forms in (NormalForms(known, defined) for defined in (False, True))]
    if any(one == other for one, other in pairs):
        return ScalarVerdict(Verdict.PROVED)
    answers = []
    for one, other in dict.fromkeys(pairs):
        answers.append(_by_z3(one, other, known))
        if answers[-1].verdict == Verdict.PROVED:
            return answers[-1]
    return next((answer for answer in answers if answer.model is not None), answers[-1])


def _by_z3(left: Poly, right: Poly, assumed: Sequence[tuple[str, Poly]]) -> ScalarVerdict:
    problem = _Problem()
    goal = problem.poly(left) != problem.poly(right)
    relations = {">=": lambda v: v >= 0, ">": lambda v: v > 0, "!=": lambda v: v != 0}
    facts = [relations[relation](problem.poly(poly)) for relation, poly in assumed if relation in relations]
    solver = _solver()
    solver.reset()
    solver.add(*facts, *problem.facts, goal)
    answer = solver.check()
    if answer == z3.unsat:
        return ScalarVerdict(Verdict.PROVED, by_z3=True)
    if answer == z3.unknown:
        return ScalarVerdict(Verdict.UNKNOWN, f"Z3 gives up ({solver.reason_unknown()})", by_z3=True)
    model = solver.model()
    values = {}
    for atom, constant in problem.inputs.items():
        value = model.eval(constant, model_completion=True)
        value = value.approx(20) if z3.is_algebraic_value(value) else value
        values[atom] = float(value.as_fraction())
    told = "but functions are only symbols to it" if problem.has_symbols else "by less than floats do: a number is rounded"
    return ScalarVerdict(Verdict.UNKNOWN, f"Z3 tells the sides apart, {told}", values, by_z3=True)
