"""Operator properties on all small cases, as polynomials over their inputs' entries."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.domains.base import INTEGERS, Unsupported
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Atom, Poly, Symbolic
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term, substitute
from rulegen.numeric.samples import BIASED, HIDING, POSITIONED, positioned
from rulegen.properties.cases import Case, enumerate_cases
from rulegen.properties.inputs import places, real_inputs
from rulegen.properties.normal_form import LEAST
from rulegen.properties.scalars import ScalarVerdict, decide, input_atoms, rename_inputs
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Verdict

__all__ = ["SymbolicEvidence", "examined", "validate_symbolically"]

_FEW_TRUTHS = 4
"""Most truth values of which every choice is tried."""
_MOST_PRODUCTS = 400_000
"""Products of monomials that comparing the sides of a case may take: some seconds. A normalisation of 144 entries takes more."""
_RELATIONS = {"nonnegative": ">=", "positive": ">", "nonzero": "!="}
"""Range predicates as relations of every entry to zero; the others say nothing of real numbers."""


def _positioned(about: Sequence[Condition], case: Case) -> dict[str, np.ndarray]:
    """The variables that conditions say to be masks of positions, each with what it adds to scores."""
    masks = {}
    for condition in about:
        if condition.predicate in POSITIONED and (mask := condition.terms()[0]).is_var:
            masks[mask.name] = positioned(condition, concrete(case.types[mask.name].shape) or ())
    return masks


@dataclass(frozen=True)
class SymbolicEvidence:
    """The outcome of examining a property on cases.

    Attributes:
        verdict: proved on all cases, refuted, or unknown.
        cases: shapes times parameters examined. Those whose polynomials are too large are not among them.
        parameters: choices of parameters among these and those.
        exhaustive: whether the cases are all up to the bounds of :mod:`rulegen.properties.cases`.
        by_z3: entrywise equations that needed Z3.
        reason: the counterexample, or the equation that stays undecided.
    """

    verdict: Verdict
    cases: int
    parameters: int
    exhaustive: bool
    by_z3: int = 0
    reason: str = ""


def _masks(case: Case) -> Iterator[dict[str, np.ndarray]]:
    """Truth values for the boolean variables: every choice of a few entries, else all true, all false, and two mixtures."""
    names = {name: concrete(t.shape) or () for name, t in case.types.items() if t.dtype == DataType.BOOL}
    sizes = [math.prod(shape) for shape in names.values()]
    if sum(sizes) <= _FEW_TRUTHS:
        for choice in itertools.product((False, True), repeat=sum(sizes)):
            parts = np.split(np.array(choice, bool), np.cumsum(sizes)[:-1]) if names else []
            yield {name: part.reshape(shape) for (name, shape), part in zip(names.items(), parts, strict=True)}
        return
    for constant in (False, True):
        yield {name: np.full(shape, constant) for name, shape in names.items()}
    for seed in (1, 2):
        generator = np.random.default_rng(seed)
        yield {name: generator.random(shape) < 0.5 for name, shape in names.items()}


class _TooLarge(Exception):
    """The polynomials of a case are too large to be multiplied."""


class _Ordered(Symbolic):
    """Polynomials that are compared: a truth value is one that is 1 or 0, by the sign of a difference, which Z3 decides.

    Among them is one number below all others: what masks hide. Its exponential is zero; it is an input of its own otherwise, so
    that nothing else is assumed of it.
    """

    def __init__(self) -> None:
        self._products = 0

    def mul(self, a: Any, b: Any) -> Any:
        return self._map(self._product, a, b)

    def _product(self, x: Poly, y: Poly) -> Poly:
        """Raises _TooLarge where more was multiplied than one case may take."""
        self._products += len(x.terms) * len(y.terms)
        if self._products > _MOST_PRODUCTS:
            raise _TooLarge
        return x * y

    def const(self, value: Any) -> Any:
        if value not in (np.inf, -np.inf):
            return super().const(value)
        below = self.input(LEAST[1], LEAST[2])
        return below if value < 0 else self.neg(below)

    def exp(self, a: Any) -> Any:
        hidden = frozenset({(LEAST, 1)})
        return self._map(lambda x: Poly({}) if x.terms.get(hidden, 0) > 0 else Poly.atom("exp", x), a)

    def less(self, a: Any, b: Any) -> Any:
        return self.maximum(self.apply("sign", self.sub(b, a)), super().const(0))

    def equal(self, a: Any, b: Any) -> Any:
        if object not in (np.asarray(a).dtype, np.asarray(b).dtype):
            return super().equal(a, b)
        a, b = _as_number(a), _as_number(b)
        return self.sub(super().const(1), self.apply("abs", self.apply("sign", self.sub(a, b))))

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        if all(np.asarray(operand).dtype != object for operand in operands):
            return super().logic(function, *operands)
        one, (a, *rest) = super().const(1), map(_as_number, operands)
        if function is np.logical_not:
            return self.sub(one, a)
        both = self.mul(a, *rest)
        if function is np.logical_and:
            return both
        if function is np.logical_or:
            return self.sub(self.add(a, *rest), both)
        raise Unsupported("the logic of polynomials")

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if np.asarray(condition).dtype != object:
            return super().where(condition, a, b)
        return self.add(self.mul(condition, a), self.mul(self.sub(super().const(1), condition), b))


def _as_number(truth: Any) -> np.ndarray:
    """Truth values as polynomials, which are 1 or 0; polynomials as they are."""
    values = np.asarray(truth)
    if values.dtype == object:
        return values
    numbers = np.empty(values.shape, object)
    for index in np.ndindex(*values.shape):
        numbers[index] = Poly.constant(int(values[index]))
    return numbers


def _of_integers(type_: TensorType, entries: Any) -> Iterator[tuple[str, Poly]]:
    """What is known of the entries of integers: they are whole, and a byte has bounds."""
    if type_.dtype in INTEGERS:
        limits = np.iinfo(type_.dtype.numpy())
        for entry in np.reshape(entries, -1):
            yield "whole", entry
            yield ">=", entry - Poly.constant(int(limits.min))
            yield ">=", Poly.constant(int(limits.max)) - entry


def _repeated(x: Any, axis: int) -> Any:
    """The first half along an axis of even length, twice."""
    first = np.split(x, 2, axis)[0]
    return np.concatenate([first, first], axis)


class _SymbolicCheck:
    """Examines the cases of one property."""

    def __init__(self, axiom: Axiom) -> None:
        self.axiom = axiom
        self.decided: dict[Any, ScalarVerdict] = {}
        self.by_z3 = 0
        self.gave_up: ScalarVerdict | None = None

    def examine(self, case: Case) -> ScalarVerdict:
        left, right = (substitute(side, {}, case.attrs) for side in (self.axiom.left, self.axiom.right))
        about = [c.substitute({}, case.attrs) for c in self.axiom.conditions if c.guard.of_values]
        try:
            types = infer_types([left, right], case.types)
        except (ShapeError, Undecided) as problem:
            return ScalarVerdict(Verdict.REFUTED, f"one side only is well-typed: {problem}")
        if types[left] != types[right]:
            return ScalarVerdict(Verdict.REFUTED, f"types {types[left]} and {types[right]}")
        if any(0 in type_.shape for type_ in types.values()):  # a slice that takes nothing: there is no entry to compare
            return ScalarVerdict(Verdict.PROVED)
        undecided = ScalarVerdict(Verdict.PROVED)
        hiding_nothing = {c.terms()[0].name for c in about if c.predicate == "all_true"}
        told = _positioned(about, case)
        for masks in _masks(case):
            masks |= {name: np.ones_like(masks[name]) for name in hiding_nothing}
            masks |= {name: np.isfinite(mask) for name, mask in told.items() if name in masks}
            answer = self._compare(left, right, about, case, masks)
            if answer.verdict == Verdict.REFUTED:
                return answer
            if answer.verdict == Verdict.UNKNOWN:
                undecided = answer
        return undecided

    def _compare(
        self, left: Term, right: Term, about: Sequence[Condition], case: Case, masks: Mapping[str, np.ndarray]
    ) -> ScalarVerdict:
        """Compares the sides entry by entry: canonical forms first, then floats, which refute quickly, then Z3."""
        domain = _Ordered()
        fixed = dict(masks) | places([left, right], case.types, np.random.default_rng(3))
        inputs = {n: fixed[n] if n in fixed else domain.input(n, concrete(t.shape) or ()) for n, t in case.types.items()}
        biased = {c.terms()[0].name for c in about if c.predicate in BIASED and c.terms()[0].is_var}
        for name, mask in _positioned(about, case).items():
            if name not in masks:
                shown = inputs[name] if name in biased else domain.const(0)
                inputs[name] = domain.where(np.isfinite(mask), shown, domain.const(-np.inf))
        for name in (t.name for c in about if c.predicate in HIDING for t in c.terms()[1:] if t.is_var):
            inputs[name] = domain.where(np.zeros(np.shape(inputs[name]), bool), domain.const(0), domain.const(-np.inf))
        for condition in about:
            if condition.predicate == "repeats" and condition.terms()[0].is_var:
                arguments: tuple[Any, ...] = condition.arguments
                inputs[arguments[0].name] = _repeated(inputs[arguments[0].name], arguments[1])
        cited = [term for condition in about for term in condition.terms()]
        try:
            values = evaluate([left, right, *cited], domain, inputs)
        except Unsupported as problem:
            differ = self._floats_differ(left, right, case, masks, {})
            if differ is None:  # the sides have no value here: a window of padding only
                return ScalarVerdict(Verdict.PROVED)
            if differ:
                return ScalarVerdict(Verdict.REFUTED, "values differ in floats")
            if not case.types and self._floats_differ(left, right, case, masks, {}, tolerance=0) is False:
                return ScalarVerdict(Verdict.PROVED)  # sides without variables are numbers
            return ScalarVerdict(Verdict.UNKNOWN, f"not a polynomial: {problem}")
        except ZeroDivisionError:
            return ScalarVerdict(Verdict.PROVED)  # the sides have no value here
        a, b = (np.asarray(values[side]).reshape(-1) for side in (left, right))
        if a.dtype != b.dtype:
            a, b = _as_number(a), _as_number(b)
        pairs = [(one, other) for one, other in zip(a, b, strict=True) if one != other]
        if pairs and self._floats_differ(left, right, case, masks, {}):
            return ScalarVerdict(Verdict.REFUTED, "values differ in floats")
        assumed = [
            (_RELATIONS[c.predicate], entry)
            for c in about
            if c.predicate in _RELATIONS
            for entry in np.reshape(values[c.terms()[0]], -1)
        ]
        assumed += [fact for name, value in inputs.items() if name not in fixed for fact in _of_integers(case.types[name], value)]
        undecided = ScalarVerdict(Verdict.PROVED)
        for one, other in pairs:
            if not (isinstance(one, Poly) and isinstance(other, Poly)):
                return ScalarVerdict(Verdict.REFUTED, "truth values differ")
            answer = self._entry(one, other, assumed)
            if answer.model is not None and self._floats_differ(left, right, case, masks, answer.model):
                return ScalarVerdict(Verdict.REFUTED, f"values differ in floats at {dict(answer.model)}")
            if answer.verdict == Verdict.UNKNOWN:
                undecided = answer
        return undecided

    def _entry(self, left: Poly, right: Poly, assumed: Sequence[tuple[str, Poly]]) -> ScalarVerdict:
        """Entries that are equal up to the names of their inputs' entries are decided once."""
        atoms = sorted({*input_atoms(left), *input_atoms(right)}, key=lambda a: (a[1], a[2]))
        counts: Counter[str] = Counter()
        names: dict[Atom, Atom] = {}
        for atom in atoms:
            names[atom] = LEAST if atom == LEAST else ("x", atom[1], (counts[atom[1]],))
            counts[atom[1]] += 1
        relevant = [(relation, poly) for relation, poly in assumed if set(input_atoms(poly)) <= set(atoms)]
        renamed = [rename_inputs(p, names) for p in (left, right)]
        facts = frozenset((relation, rename_inputs(poly, names)) for relation, poly in relevant)
        key = (*renamed, facts)
        if key not in self.decided and self.gave_up is not None:
            return self.gave_up
        if key not in self.decided:
            self.decided[key] = decide(renamed[0], renamed[1], sorted(facts, key=repr))
            self.by_z3 += self.decided[key].by_z3
        answer = self.decided[key]
        if answer.model is None:
            if answer.verdict == Verdict.UNKNOWN:  # larger cases would only cost time; floats go on refuting
                self.gave_up = answer
            return answer
        back = {new: old for old, new in names.items()}
        return replace(answer, model={back[atom]: value for atom, value in answer.model.items()})

    def _floats_differ(
        self,
        left: Term,
        right: Term,
        case: Case,
        masks: Mapping[str, np.ndarray],
        model: Mapping[Atom, float],
        tolerance: float = 1e-8,
    ) -> bool | None:
        """Whether the sides have other values; ``None`` where they have none (a window of padding only)."""
        inputs = real_inputs(self.axiom, case.attrs, case.types, np.random.default_rng(7)) | dict(masks)
        for (_, name, index), value in model.items():
            if name in inputs:
                inputs[name][index] = value
        try:
            with np.errstate(all="ignore"):
                values = evaluate([left, right], Real(), inputs)
        except Unsupported:
            return None
        a, b = (np.asarray(values[side], np.float64) for side in (left, right))
        finite = np.isfinite(a) & np.isfinite(b)
        return not np.allclose(a[finite], b[finite], rtol=tolerance, atol=tolerance)


def examined(axiom: Axiom, case: Case) -> Verdict:
    """The verdict on one case."""
    return _SymbolicCheck(axiom).examine(case).verdict


def validate_symbolically(axiom: Axiom, limit: int = 60) -> SymbolicEvidence:
    """Proves or refutes a property on all cases up to 4x4x4x4, or a fixed selection of ``limit`` of them."""
    selection = enumerate_cases(axiom, limit)
    examiner = _SymbolicCheck(axiom)
    verdict, reason = (Verdict.PROVED, "") if selection.cases else (Verdict.UNKNOWN, "no case admits it")
    smallest, count = math.inf, 0
    for case in selection.cases:
        entries = sum(math.prod(concrete(type_.shape) or ()) for type_ in case.types.values())
        if entries >= smallest:
            continue
        try:
            answer = examiner.examine(case)
        except _TooLarge:
            smallest = entries
            continue
        count += 1
        if answer.verdict == Verdict.REFUTED:
            verdict, reason = Verdict.REFUTED, f"{answer.reason} at {case}"
            break
        if answer.verdict == Verdict.UNKNOWN and verdict == Verdict.PROVED:
            verdict, reason = Verdict.UNKNOWN, f"{answer.reason} at {case}"
    if selection.cases and not count:
        verdict, reason = Verdict.UNKNOWN, "the polynomials of every case are too large"
    whole = selection.exhaustive and count == len(selection.cases)
    return SymbolicEvidence(verdict, count, selection.parameters, whole, examiner.by_z3, reason)
