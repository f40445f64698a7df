"""Counterexamples: evaluation in finite fields under several shape assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FieldArray, FiniteField, ZeroDivision
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, concrete, evaluate_dim
from mugraph.terms.term import Term, substitute
from rulegen.prove.prover import Proof, certify
from rules_db.trust.condition import Condition
from rules_db.trust.rule import Side, Verdict, dim_symbols

__all__ = [
    "Counterexample",
    "Outcome",
    "arrange",
    "assignments",
    "causal_mask",
    "prove",
    "random_input",
    "refute",
    "same_residues",
    "specialise",
]

_SIZES = ((2, 3, 5, 7, 4, 6, 9, 8), (3, 2, 4, 5, 7, 9, 6, 10), (5, 4, 2, 3, 6, 8, 7, 9))
"""Sizes given to the symbols in order, distinct within an assignment."""
_ROOM = 4
"""Added to every size where the sizes are too small for a program."""
_NEGATIVE = (0.5, 0.7, 0.93)
"""Fraction of residues below zero, varied so that relu and max have no accidental laws."""


@dataclass(frozen=True)
class Counterexample:
    """Where two programs differ: seed and sizes repeat it."""

    output: int
    seed: int
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"output {self.output} differs for seed {self.seed}" + (f" at {sizes}" if sizes else "")


@dataclass(frozen=True)
class Outcome:
    """A verdict with its evidence."""

    verdict: Verdict
    proof: Proof | None = None
    counterexample: Counterexample | None = None


def assignments(types: Mapping[str, TensorType], count: int = 3, roots: Iterable[Term] = ()) -> list[dict[str, int]]:
    """Sizes for the symbols of sample types and of the attributes of ``roots``, ``count`` times."""
    found = {s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    symbols = sorted(found | dim_symbols(roots))
    return [
        {s: _SIZES[i % len(_SIZES)][j] if j < len(_SIZES[0]) else 11 + j for j, s in enumerate(symbols)} for i in range(count)
    ]


def specialise(
    roots: Sequence[Term], types: Mapping[str, TensorType], sizes: Mapping[str, int]
) -> tuple[list[Term], dict[str, TensorType]]:
    """Programs and types with sizes in place of symbols."""
    shapes = {name: TensorType(t.dtype, tuple(evaluate_dim(d, sizes) for d in t.shape)) for name, t in types.items()}
    return [substitute(root, {}, dims=sizes) for root in roots], shapes


def random_input(field: FiniteField, generator: np.random.Generator, type_: TensorType) -> Array:
    """Residues for a numeric variable, coin tosses for a boolean one."""
    shape = concrete(type_.shape)
    assert shape is not None, type_
    if type_.dtype == DataType.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    return field.random(generator, shape)


def arrange(inputs: Mapping[str, np.ndarray], conditions: Sequence[Condition]) -> dict[str, np.ndarray]:
    """Inputs for which conditions on entries of variables hold: a half of an axis is repeated, a mask is causal or all true."""
    arranged = dict(inputs)
    for condition in conditions:
        about = condition.arguments[0]
        if not isinstance(about, Term) or not about.is_var:
            continue
        if condition.predicate == "repeats":
            axis = int(condition.arguments[1])  # type: ignore[arg-type]
            half = np.split(arranged[about.name], 2, axis)[0]
            arranged[about.name] = np.concatenate([half, half], axis)
        if condition.predicate == "causal":
            arranged[about.name] = causal_mask(arranged[about.name].shape)
        if condition.predicate == "all_true":
            arranged[about.name] = np.ones_like(arranged[about.name])
    return arranged


def causal_mask(shape: tuple[int, ...]) -> np.ndarray:
    """What causal attention adds to its scores: zero, and -inf above the diagonal."""
    rows, columns = shape[-2:]
    return np.broadcast_to(np.where(np.tri(rows, columns, dtype=bool), 0.0, -np.inf), shape)


def same_residues(a: Array, b: Array) -> bool:
    """Equal in every part that both have; an exponential leaves one residue only."""
    if not isinstance(a, FieldArray):
        return bool(np.array_equal(a, b))
    same = np.array_equal(a.p, b.p)
    return bool(same and (a.q is None or b.q is None or np.array_equal(a.q, b.q)))


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

    A range condition (no zero, not negative, ...) is not known here: a rule that needs one may look refuted, so ask for a proof
    first, as :func:`prove` does.

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
            sizes = {name: size + _ROOM for name, size in sizes.items()}
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


def prove(source: Side, target: Side, types: Mapping[str, TensorType]) -> Outcome:
    """Proved, refuted or unknown, with the evidence."""
    proof = certify(source, target, types)
    if proof is not None:
        return Outcome(Verdict.PROVED, proof=proof)
    counterexample = refute(source, target, types)
    if counterexample is not None:
        return Outcome(Verdict.REFUTED, counterexample=counterexample)
    return Outcome(Verdict.UNKNOWN)
