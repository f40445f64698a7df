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
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Symbolic
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, TensorType, concrete
from mugraph.terms.term import AttrValue, Term, walk
from rulegen.numeric.samples import same_residues
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.inputs import field_inputs, real_inputs
from rulegen.properties.sampling import Sampler
from rulegen.properties.solving import SolvedSampler
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom

__all__ = ["LEAST_HITS", "NumericEvidence", "validate", "validate_numerically"]

LEAST_HITS = 100
"""Samples on which the sides of a property must have been compared."""


@dataclass(frozen=True)
class NumericEvidence:
    """The outcome of trying a property on samples.

    Attributes:
        samples: types and attributes drawn.
        hits: samples on which its conditions held, a side was well-typed, and values were compared.
        exact: those of them whose values were compared in finite fields.
        counterexample: types, attributes and the contradiction at the first sample that contradicts it.
    """

    samples: int
    hits: int
    exact: int = 0
    counterexample: str | None = None


def validate_numerically(axiom: Axiom, samples: int = 400, seed: int = 0) -> NumericEvidence:
    """Tries a property on ``samples`` typed shapes to which it applies, or makes many times as many draws.

    Where fewer than :data:`LEAST_HITS` come of them, there are four times as many draws: else luck would decide about a property
    that seldom applies.
    """
    trials = max(_PATIENCE * samples, _LEAST_DRAWS)
    found = validate(axiom, hits=samples, trials=trials, seed=seed)
    is_met = found.hits >= min(samples, LEAST_HITS) or found.counterexample is not None
    return found if is_met else validate(axiom, hits=samples, trials=4 * trials, seed=seed)


@dataclass(frozen=True)
class _Comparison:
    """The number systems in which both sides had values: floats (0), two finite fields (1, 2); and one in which they differ."""

    systems: frozenset[int]
    differs_in: str | None = None


def _compared(
    axiom: Axiom,
    attrs: Mapping[str, AttrValue],
    sides: tuple[Term, Term],
    types: Mapping[str, TensorType],
    seed: int,
    systems: Sequence[int],
    small: bool,
) -> _Comparison:
    """The sides' values in some number systems; in floats where those have none, and as polynomials where they are small."""
    left, right = sides
    generator = np.random.default_rng([seed, 1])
    done: set[int] = set()
    numbers = {t.dtype for t in types.values()} - {DataType.BOOL}
    only_real = axiom.only_real or numbers == {DataType.INT64}
    for system in (0,) if only_real else (*systems, 0):
        if system == 0 and done:
            continue
        domain = FiniteField(seed % 3, system - 1, negative=(0.5, 0.7)[system - 1]) if system else Real()
        inputs: Mapping[str, Array]
        if isinstance(domain, FiniteField):
            inputs = field_inputs(sides, types, domain, generator)
        else:
            inputs = real_inputs(axiom, attrs, types, generator)
        try:
            values = evaluate([left, right], domain, inputs)
        except (ZeroDivision, Unsupported):
            continue
        done.add(system)
        if isinstance(domain, FiniteField) and not same_residues(values[left], values[right]):
            return _Comparison(frozenset(done), f"the field of {domain.p}")
        if not system and not np.allclose(values[left], values[right], rtol=1e-9, atol=1e-9, equal_nan=True):
            return _Comparison(frozenset(done), "floats")
    opaque = any(term.op == "Exp" for term in walk([left, right]))  # its law is not one of polynomials
    if small and not only_real and not opaque and numbers <= FLOATS and not any(t.dtype == DataType.BOOL for t in types.values()):
        symbolic = Symbolic()
        inputs = {name: symbolic.input(name, concrete(t.shape) or ()) for name, t in types.items()}
        try:
            values = evaluate([left, right], symbolic, inputs)
        except (Unsupported, ZeroDivisionError):
            return _Comparison(frozenset(done))
        if not np.array_equal(values[left], values[right]):
            return _Comparison(frozenset(done), "polynomials")
    return _Comparison(frozenset(done))


_PATIENCE, _LEAST_DRAWS = 6, 3_000
"""Random draws for each sample that is wanted, and in all, before operands are solved."""
_THOROUGH = 100
"""Samples that are evaluated in all number systems; the later ones in one each, in turn."""


def validate(
    axiom: Axiom,
    hits: int = 20,
    trials: int = 4000,
    seed: int = 0,
    without: Condition | None = None,
) -> NumericEvidence:
    """Tries a property until it applied ``hits`` times. A sample that comes again counts, but is not evaluated again.

    Samples are drawn at random. Where these seldom apply, as many draws more solve what the property asks of its operands.

    Args:
        axiom: the property.
        hits: samples wanted. trials: samples drawn at random at most.
        seed: of the samples.
        without: a condition to leave out, to see whether it is needed.
    """
    generator = np.random.default_rng([seed, int(axiom.digest[:8], 16)])
    sampler, solved = Sampler(axiom, generator), SolvedSampler(axiom, generator)
    applied: dict[object, frozenset[int]] = {}
    instances: dict[str, TypedSides] = {}
    trial, hit, exact, evaluated = 0, 0, 0, 0
    while hit < hits and trial < (2 * trials if without is None else trials):
        trial += 1
        drawn = sampler.draw() if trial <= trials else solved.draw()
        if drawn is None:
            continue
        types, attrs = drawn
        chosen = repr(attrs)
        sample = (chosen, *((t.dtype, t.shape) for t in types.values()))
        if sample in applied:
            hit, exact = hit + bool(applied[sample]), exact + bool(applied[sample] - {0})
            continue
        if chosen not in instances:
            instances[chosen] = TypedSides(axiom, attrs, without)
        instance = instances[chosen]
        sides = instance.of(types)
        applied[sample] = frozenset()
        if sides is None or not instance.has_entries:
            continue
        where = ", ".join([*(f"{n}:{t}" for n, t in types.items()), *(f"${n}={v}" for n, v in attrs.items())])
        if sides[0] != sides[1]:
            return NumericEvidence(trial, hit + 1, exact, f"{axiom.name}: types {sides[0]} and {sides[1]} at {where}")
        evaluated += 1
        systems = (0, 1, 2) if evaluated <= _THOROUGH else (evaluated % 3,)
        small = evaluated <= 3 and sum(t.size() for t in types.values()) <= 40
        comparison = _compared(axiom, attrs, (instance.left, instance.right), types, seed + trial, systems, small)
        applied[sample] = comparison.systems
        hit, exact = hit + bool(comparison.systems), exact + bool(comparison.systems - {0})
        if comparison.differs_in:
            return NumericEvidence(trial, hit, exact, f"{axiom.name}: values differ in {comparison.differs_in} at {where}")
    return NumericEvidence(trial, hit, exact)
