"""Validation of operator properties on sampled typed shapes.

A property is tried on random ranks, shapes (with sizes 1 and batch prefixes) and attributes. Wherever its conditions hold and
one side is well-typed, the other must be, with the same type and the same values: in a finite field, in floats, and for
small shapes as polynomials. Properties of order, sign or value (activations, range predicates) hold in floats only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.domains.base import FLOATS, Array, Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Symbolic
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, TensorType, concrete
from mugraph.terms.term import AttrValue, Term, substitute, var, walk
from rulegen.numeric.samples import same_residues
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.inputs import field_inputs, real_inputs
from rulegen.properties.sampling import Sampler
from rulegen.properties.solving import SMALL, Solution, solutions
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.guards import GUARDS
from rules_db.trust.properties import Axiom

__all__ = ["NumericEvidence", "validate", "validate_numerically"]


@dataclass(frozen=True)
class NumericEvidence:
    """The outcome of trying a property on samples.

    Attributes:
        samples: types and attributes drawn.
        hits: samples on which its conditions held and a side was well-typed.
        counterexample: types, attributes and the contradiction at the first sample that contradicts it.
    """

    samples: int
    hits: int
    counterexample: str | None = None


def validate_numerically(axiom: Axiom, samples: int = 5000, seed: int = 0) -> NumericEvidence:
    """Tries a property on ``samples`` typed shapes to which it applies, or makes twice as many draws.

    One that applies to less than a tenth of the first ``samples`` draws is left with those.
    """
    return validate(axiom, hits=samples, trials=2 * samples, seed=seed, patience=samples)


def _differs(
    axiom: Axiom, left: Term, right: Term, types: Mapping[str, TensorType], seed: int, systems: Sequence[int], small: bool
) -> str | None:
    """The name of a number system in which the sides have other values: floats (0), two finite fields (1, 2), polynomials."""
    generator = np.random.default_rng([seed, 1])
    numbers = {t.dtype for t in types.values()} - {DataType.BOOL}
    only_real = axiom.only_real or numbers == {DataType.INT64}
    for system in (0,) if only_real else systems:
        domain = FiniteField(seed % 3, system - 1, negative=(0.5, 0.7)[system - 1]) if system else Real()
        inputs: Mapping[str, Array]
        if isinstance(domain, FiniteField):
            inputs = field_inputs(types, domain, generator)
        else:
            inputs = real_inputs(axiom, types, generator)
        try:
            values = evaluate([left, right], domain, inputs)
        except (ZeroDivision, Unsupported):
            continue
        if isinstance(domain, FiniteField) and not same_residues(values[left], values[right]):
            return f"the field of {domain.p}"
        if not system and not np.allclose(values[left], values[right], rtol=1e-9, atol=1e-9, equal_nan=True):
            return "floats"
    opaque = any(term.op == "Exp" for term in walk([left, right]))  # its law is not one of polynomials
    if small and not only_real and not opaque and numbers <= FLOATS and not any(t.dtype == DataType.BOOL for t in types.values()):
        symbolic = Symbolic()
        inputs = {name: symbolic.input(name, concrete(t.shape) or ()) for name, t in types.items()}
        try:
            values = evaluate([left, right], symbolic, inputs)
        except (Unsupported, ZeroDivisionError):
            return None
        if not np.array_equal(values[left], values[right]):
            return "polynomials"
    return None


_THOROUGH = 100
"""Samples that are evaluated in all number systems; the later ones in one each, in turn."""


def validate(
    axiom: Axiom,
    hits: int = 20,
    trials: int = 4000,
    seed: int = 0,
    without: Condition | None = None,
    patience: int | None = None,
) -> NumericEvidence:
    """Tries a property until it applied ``hits`` times. A sample that comes again counts, but is not evaluated again.

    Args:
        axiom: the property.
        hits: samples wanted. trials: samples drawn at most.
        seed: of the samples.
        without: a condition to leave out, to see whether it is needed.
        patience: draws after which a property is left that applied to less than a tenth of them.
    """
    sampler = Sampler(axiom, np.random.default_rng([seed, int(axiom.digest[:8], 16)]))
    applied: dict[object, bool] = {}
    instances: dict[str, TypedSides] = {}
    trial, hit, evaluated = 0, 0, 0
    while hit < hits and trial < trials and not (trial == patience and 10 * hit < trial):
        trial += 1
        drawn = sampler.draw()
        if drawn is None:
            continue
        types, attrs = drawn
        chosen = repr(attrs)
        sample = (chosen, *((t.dtype, t.shape) for t in types.values()))
        if sample in applied:
            hit += applied[sample]
            continue
        if chosen not in instances:
            instances[chosen] = TypedSides(axiom, attrs, without)
        instance = instances[chosen]
        sides = instance.of(types)
        applied[sample] = sides is not None
        if sides is None:
            continue
        hit += 1
        where = ", ".join([*(f"{n}:{t}" for n, t in types.items()), *(f"${n}={v}" for n, v in attrs.items())])
        if sides[0] != sides[1]:
            return NumericEvidence(trial, hit, f"{axiom.name}: types {sides[0]} and {sides[1]} at {where}")
        evaluated += 1
        systems = (0, 1, 2) if evaluated <= _THOROUGH else (evaluated % 3,)
        small = hit <= 3 and sum(t.size() for t in types.values()) <= 40
        problem = _differs(axiom, instance.left, instance.right, types, seed + trial, systems, small)
        if problem:
            return NumericEvidence(trial, hit, f"{axiom.name}: values differ in {problem} at {where}")
    return NumericEvidence(trial, hit)
