"""Validation of operator properties on sampled typed shapes.

A property is tried on random ranks, shapes (with sizes 1 and batch prefixes) and attributes. Wherever its conditions hold and
one side is well-typed, the other must be, with the same type and the same values: in a finite field, in floats, and for
small shapes as polynomials. Properties of order, sign or value (activations, range predicates) hold in floats only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Symbolic
from mugraph.interp import evaluate, infer_types
from mugraph.node import AttrValue, AttrVar, Term, substitute, var, walk
from mugraph.shape import DataType, ShapeError, TensorType, Undecided
from rulegen.certify.refute import random_input, same_residues
from rules_db.axioms import Axiom
from rules_db.condition import RANGE_PREDICATES, SOLVERS, Condition, Facts

__all__ = ["Validation", "validate"]


@dataclass(frozen=True)
class Validation:
    """How a property fared.

    Attributes:
        hits: samples on which its conditions held and a side was well-typed.
        counterexample: types, attributes and what went wrong at the first sample that contradicts it.
    """

    hits: int
    counterexample: str | None = None


def _kinds(axiom: Axiom) -> dict[str, tuple[str, bool]]:
    """Attribute variables to the attribute they stand in, and whether for one entry of it only."""
    kinds: dict[str, tuple[str, bool]] = {}
    cited = [term for condition in axiom.conditions for term in condition.terms()]
    for term in walk([axiom.left, axiom.right, *cited]):
        for name, value in term.attrs:
            if isinstance(value, AttrVar):
                kinds[value.name] = (name, False)
            elif isinstance(value, tuple):
                kinds |= {v.name: (name, True) for v in value if isinstance(v, AttrVar)}
    return kinds


class _Sampler:
    """Random types and attributes that make a property apply often enough."""

    def __init__(self, axiom: Axiom, generator: np.random.Generator) -> None:
        self.axiom, self.generator, self.kinds = axiom, generator, _kinds(axiom)
        conditions = [t.inputs[0] for t in walk([axiom.left, axiom.right]) if t.op in ("Where", "Not")]
        self.booleans = {t.name for t in conditions if t.is_var}

    def pick(self, *choices: Any) -> Any:
        return choices[self.generator.integers(len(choices))]

    def attribute(self, name: str, single: bool, pool: tuple[int, int]) -> AttrValue:
        a, b = pool
        match name:
            case "transA" | "transB":
                return self.pick(True, False)
            case "axis":
                return self.pick(-1, -1, -2, -2, -3)
            case "axes" if single:
                return self.pick(-1, -2, -3)
            case "axes":
                return self.pick((-1,), (-2,), (-2, -1))
            case "keepdims":
                return self.pick(True, False)
            case "sizes" if single:
                return self.pick(1, a, b)
            case "sizes":
                return self.pick((a, b), (b, a), (a, b, 1), (b, 1, a))
            case "perm":
                size = int(self.generator.integers(0, 4))
                return tuple(int(i) for i in self.generator.permutation(size))
            case "drop":
                return self.pick(1, 2, 2, 3)
            case "shape":
                return self.pick((a * b,), (a, b), (b, a), (a,), (1, a), (a, 1), (a, 1, b), (1,), (b, 1, 1))
            case "approximate":
                return self.pick("none", "tanh")
            case "min":
                return self.pick(-0.5, 0.0, 0.25)
            case "max":
                return self.pick(0.5, 1.0, float("inf"))
        return self.pick(0.25, 0.5, -0.5)

    def draw(self) -> tuple[dict[str, TensorType], dict[str, AttrValue]] | None:
        pool = self.pick((2, 3), (3, 2), (2, 5), (4, 3))
        attrs = {name: self.attribute(*self.kinds.get(name, ("", False)), pool) for name in self.axiom.attr_variables}
        for condition in self.axiom.conditions:
            for position in SOLVERS.get(condition.predicate, {}):
                wanted = condition.arguments[position]
                if isinstance(wanted, AttrVar) and self.generator.random() < 0.9:
                    rest = [attrs[a.name] if isinstance(a, AttrVar) else a for a in condition.arguments]
                    try:
                        attrs[wanted.name] = SOLVERS[condition.predicate][position](*rest)
                    except (IndexError, ValueError):
                        return None
        sizes = (pool[0], pool[0], pool[1], pool[1], 1, sum(pool), 1 + sum(pool))
        base = tuple(self.pick(*sizes) for _ in range(4))
        # Mostly along one common shape, so that broadcasting succeeds, with exceptions, so that it matters.
        aligned, common = self.pick(0.6, 0.8), self.pick(0, 0, 2, 2, 3)
        types = {}
        for name in self.axiom.variables:
            rank = common or self.pick(0, 1, 1, 2, 2, 2, 3, 3, 4)
            shape = [base[4 - rank + i] if self.generator.random() < aligned else self.pick(*sizes) for i in range(rank)]
            types[name] = TensorType(DataType.BOOL if name in self.booleans else DataType.FLOAT, tuple(shape))
        return types, attrs


def _real_inputs(axiom: Axiom, types: Mapping[str, TensorType], generator: np.random.Generator) -> dict[str, np.ndarray]:
    bounded = {t.name for c in axiom.conditions if c.predicate in RANGE_PREDICATES for t in c.terms() if t.is_var}
    inputs = {}
    for name, type_ in types.items():
        shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
        values = generator.standard_normal(shape)
        if name in bounded:
            values = np.abs(values) + 0.1
        inputs[name] = values > 0 if type_.dtype == DataType.BOOL else values
    return inputs


def _differs(axiom: Axiom, left: Term, right: Term, types: Mapping[str, TensorType], seed: int, small: bool) -> str | None:
    """The name of a number system in which the sides have other values."""
    generator = np.random.default_rng([seed, 1])
    try:
        values = evaluate([left, right], Real(), _real_inputs(axiom, types, generator))
        if not np.allclose(values[left], values[right], rtol=1e-9, atol=1e-9, equal_nan=True):
            return "floats"
    except Unsupported:
        pass
    if axiom.only_real:
        return None
    for prime in range(2):
        field = FiniteField(seed, prime, negative=(0.5, 0.7)[prime])
        try:
            values = evaluate([left, right], field, {name: random_input(field, generator, t) for name, t in types.items()})
        except (ZeroDivision, Unsupported):
            continue
        if not same_residues(values[left], values[right]):
            return f"the field of {field.p}"
    opaque = any(term.op == "Exp" for term in walk([left, right]))  # its law is not one of polynomials
    if small and not opaque and not any(t.dtype == DataType.BOOL for t in types.values()):
        symbolic = Symbolic()
        inputs = {name: symbolic.input(name, tuple(int(d) for d in t.shape)) for name, t in types.items()}  # type: ignore[arg-type]
        try:
            values = evaluate([left, right], symbolic, inputs)
        except (Unsupported, ZeroDivisionError):
            return None
        if not np.array_equal(values[left], values[right]):
            return "polynomials"
    return None


def validate(axiom: Axiom, hits: int = 20, trials: int = 4000, seed: int = 0, without: Condition | None = None) -> Validation:
    """Tries a property until it applied ``hits`` times.

    Args:
        axiom: the property.
        hits: samples wanted. trials: samples drawn at most.
        seed: of the samples.
        without: a condition to leave out, to see whether it is needed.
    """
    generator = np.random.default_rng([seed, int(axiom.digest[:8], 16)])
    sampler, found = _Sampler(axiom, generator), 0
    for trial in range(trials):
        drawn = sampler.draw()
        if drawn is None:
            continue
        types, attrs = drawn
        memo: dict[Term, TensorType] = {}

        def type_of(term: Term, types: Mapping[str, TensorType] = types, memo: dict[Term, TensorType] = memo) -> TensorType:
            if term not in memo:
                memo[term] = infer_types([term], types)[term]
            return memo[term]

        facts = Facts(type_of, lambda term: Range.top())
        try:
            held = all(
                c.predicate in RANGE_PREDICATES or c.substitute({}, attrs).holds(facts)
                for c in axiom.conditions
                if c is not without
            )
        except (IndexError, ValueError):
            held = False
        if not held:
            continue
        sides = [substitute(side, {name: var(name) for name in types}, attrs) for side in (axiom.left, axiom.right)]
        typed: list[TensorType | None] = []
        for side in sides:
            try:
                typed.append(type_of(side))
            except (ShapeError, Undecided, IndexError):
                typed.append(None)
        if typed == [None, None]:
            continue
        found += 1
        where = ", ".join([*(f"{n}:{t}" for n, t in types.items()), *(f"${n}={v}" for n, v in attrs.items())])
        if typed[0] != typed[1]:
            return Validation(found, f"{axiom.name}: types {typed[0]} and {typed[1]} at {where}")
        small = found <= 3 and sum(t.size() for t in types.values()) <= 40
        problem = _differs(axiom, sides[0], sides[1], types, seed + trial, small)
        if problem:
            return Validation(found, f"{axiom.name}: values differ in {problem} at {where}")
        if found >= hits:
            break
    return Validation(found)
