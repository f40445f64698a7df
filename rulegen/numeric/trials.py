"""Trials: a rule evaluated on random inputs of several shapes and ranks, in floats and in finite fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term
from rulegen.numeric.floats import FloatVerdict
from rulegen.numeric.samples import (
    arrange,
    assignments,
    looked_up_inside,
    random_input,
    same_residues,
    specialise,
    types_in_numbers,
    whole_numbers,
)
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule

__all__ = ["contradicted", "try_out"]

_PREFIXES: tuple[tuple[int, ...], ...] = ((), (2,), (1,), (3, 2), (1, 2))
"""Batch axes put before a variable's sample shape."""
_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""


def contradicted(rule: Rule, verdict: FloatVerdict, axioms: Mapping[str, Axiom], seed: int) -> bool:
    """Whether random inputs contradict the proof of a rule.

    They do where the sides differ, or where they agree on positive inputs only and the rule asks nothing of values.
    """
    unguarded = verdict.guarded and not any(c.guard.of_values for c in rule.conditions)
    return unguarded or try_out(rule, axioms, seed)[1] is not None


def try_out(rule: Rule, axioms: Mapping[str, Axiom], seed: int = 0, enough: int | None = None) -> tuple[int, str | None]:
    """Evaluates both sides on random inputs of several shapes and ranks.

    Args:
        rule: the rule.
        axioms: operator properties that it may cite.
        seed: of the inputs and ranks.
        enough: evaluations that do; all shapes and ranks where left out.

    Returns:
        The number of evaluations, and a description of the difference, if there is one. A rule with conditions on values is
        tried on positive inputs, and one that rests on properties of real numbers alone in floats only.
    """
    rule, runs = rule.sample(), 0
    cited = [axioms[i.axiom] for i in rule.certificate.instances if i.axiom in axioms]
    only_real = any(axiom.only_real for axiom in cited)
    about_values = [c for c in rule.conditions if c.guard.of_values]
    for turn, sizes in enumerate(assignments(rule.types, roots=(*rule.source, *rule.target))):
        programs, sample = specialise([*rule.source, *rule.target], rule.types, sizes)
        conditions = [c.substitute({}, dims=sizes) for c in rule.conditions if c not in about_values]
        for variant in range(6):
            generator = np.random.default_rng([seed, turn, variant])
            types = dict(sample)
            if variant:  # the first is the sample itself; the others have batch axes here and there
                for name, type_ in sample.items():
                    prefix = _PREFIXES[generator.integers(len(_PREFIXES))] if generator.random() < 0.7 else ()
                    types[name] = TensorType(type_.dtype, prefix + type_.shape)
            try:
                inferred = types_in_numbers([*programs, *(t for c in conditions for t in c.terms())], types)
            except (ShapeError, Undecided, KeyError):
                continue
            facts = Facts(inferred.__getitem__, lambda term: Range.top(), sizes)
            if any(c.holds(facts) is not True for c in conditions):
                continue
            half = len(rule.source)
            pairs = list(zip(programs[:half], programs[half:], strict=True))
            if any(inferred[a] != inferred[b] for a, b in pairs):
                if variant:
                    continue  # the rewriter compares the types of what it replaces
                return runs, "the sides' types differ under the sample types"
            where = ", ".join(f"{name}:{type_}" for name, type_ in types.items())
            runs += 1
            problem = _floats(pairs, types, generator, about_values)
            if not problem and not only_real and not any(c.guard.of_entries for c in about_values):
                problem = _fields(pairs, types, generator, seed, turn)
            if problem:
                return runs, f"{problem} at {where}"
            if runs == enough:
                return runs, None
    return runs, None


def _floats(
    pairs: Sequence[tuple[Term, Term]],
    types: Mapping[str, TensorType],
    generator: np.random.Generator,
    about: Sequence[Condition],
) -> str | None:
    positive = any(not c.guard.of_entries for c in about)
    inputs: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        drawn = np.asarray(generator.standard_normal(concrete(type_.shape)))
        whole = whole_numbers(generator, type_.dtype, drawn.shape)
        real = np.abs(drawn) + 0.1 if positive else drawn
        inputs[name] = np.asarray(drawn > 0 if type_.dtype == DataType.BOOL else real if whole is None else whole)
    try:
        inside = looked_up_inside([source for source, _ in pairs], arrange(inputs, about))
        values = evaluate([term for pair in pairs for term in pair], Real(), inside)
    except (IndexError, ValueError) as problem:
        return f"a side has no value ({problem})"
    except Unsupported:
        return None
    for number, (source, target) in enumerate(pairs):
        a, b = np.asarray(values[source], np.float64), np.asarray(values[target], np.float64)
        defined = np.isfinite(a) & np.isfinite(b)  # rules are equations of real numbers
        scale = max(1.0, float(np.max(np.abs(a[defined]), initial=0.0)))
        if np.max(np.abs(a[defined] - b[defined]), initial=0.0) > _TOLERANCE * scale:
            return f"output {number} differs in floats"
    return None


def _fields(
    pairs: Sequence[tuple[Term, Term]], types: Mapping[str, TensorType], generator: np.random.Generator, seed: int, turn: int
) -> str | None:
    field = FiniteField(seed + turn, prime=turn, negative=(0.5, 0.7, 0.93)[turn % 3])
    for _ in range(8):
        inputs = {name: random_input(field, generator, type_) for name, type_ in types.items()}
        try:
            values = evaluate([term for pair in pairs for term in pair], field, inputs)
        except ZeroDivision:
            continue
        except Unsupported:
            return None
        for number, (source, target) in enumerate(pairs):
            if not same_residues(values[source], values[target]):
                return f"output {number} differs in the field of {field.p}"
        return None
    return None
