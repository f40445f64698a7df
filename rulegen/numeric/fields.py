"""Counterexamples: evaluation in finite fields under several shape assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term
from rulegen.numeric.samples import ROOM, assignments, random_input, same_residues, specialise
from rules_db.trust.rule import Side

__all__ = ["Counterexample", "refute"]

_NEGATIVE = (0.5, 0.7, 0.93)
"""Fraction of residues below zero, varied so that relu and max have no accidental laws."""


@dataclass(frozen=True)
class Counterexample:
    """An output in which two programs differ; seed and sizes repeat it."""

    output: int
    seed: int
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"output {self.output} differs for seed {self.seed}" + (f" at {sizes}" if sizes else "")


def _types_of(programs: Sequence[Term], types: Mapping[str, TensorType]) -> dict[Term, TensorType] | None:
    """The types of all subterms, or ``None`` where one is ill-typed."""
    try:
        return infer_types(programs, types)
    except (ShapeError, Undecided):
        return None


def refute(
    source: Side, target: Side, types: Mapping[str, TensorType], seeds: Sequence[int] = (0, 1, 2)
) -> Counterexample | None:
    """A counterexample, or ``None`` where all evaluations agree or the field has no meaning for the programs.

    A range condition (no zero, not negative, ...) is not known here: an equation that needs one may look refuted, so that a
    proof has to be asked for first.

    Args:
        source, target: outputs in the same order.
        types: sample types; their symbols get other sizes for every seed.
        seeds: one evaluation each.
    """
    roots = [*source, *target]
    for turn, (seed, sizes) in enumerate(zip(seeds, assignments(types, len(seeds), roots), strict=True)):
        programs, shapes = specialise(roots, types, sizes)
        inferred = _types_of(programs, shapes)
        if inferred is None:  # a kernel may not have fitted
            sizes = {name: size + ROOM for name, size in sizes.items()}
            programs, shapes = specialise(roots, types, sizes)
            inferred = _types_of(programs, shapes)
        count = len(source)
        if inferred is None:
            return Counterexample(0, seed, sizes)
        for output in range(count):
            if inferred[programs[output]] != inferred[programs[count + output]]:
                return Counterexample(output, seed, sizes)
        for attempt in range(8):
            field = FiniteField(seed, prime=turn, negative=_NEGATIVE[turn % len(_NEGATIVE)])
            generator = np.random.default_rng([seed, turn, attempt])
            inputs = {name: random_input(field, generator, type_) for name, type_ in shapes.items()}
            try:
                values = evaluate(programs, field, inputs)
            except ZeroDivision:
                continue
            except Unsupported:
                return None
            for output in range(count):
                if not same_residues(values[programs[output]], values[programs[count + output]]):
                    return Counterexample(output, seed, sizes)
            break
    return None
