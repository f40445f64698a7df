"""Candidate rules: pairs of programs that may be equal, before there is a proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, SymDim, TensorType, Undecided
from mugraph.terms.term import variables, walk
from rules_db.trust.rule import Side

__all__ = ["CandidateRule", "candidate_types", "is_well_typed", "operator_count", "symbols_of"]


@dataclass(frozen=True, eq=False)
class CandidateRule:
    """A pair of sides that may be equal, with the sample types of its variables."""

    source: Side
    target: Side
    types: Mapping[str, TensorType]

    def __str__(self) -> str:
        return f"{'; '.join(map(repr, self.source))} = {'; '.join(map(repr, self.target))}"

    @property
    def size(self) -> int:
        """Operators of both sides."""
        return sum(term.size for term in (*self.source, *self.target))


def candidate_types(source: Side, target: Side, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The types of the variables that occur, in order of first occurrence."""
    return {leaf.name: types[leaf.name] for leaf in variables((*source, *target))}


def is_well_typed(candidate: CandidateRule) -> bool:
    """Whether both sides are well-typed and alike under the sample types."""
    try:
        types = infer_types([*candidate.source, *candidate.target], candidate.types)
    except (ShapeError, Undecided):
        return False
    return all(types[a] == types[b] for a, b in zip(candidate.source, candidate.target, strict=True))


def symbols_of(types: Mapping[str, TensorType]) -> tuple[str, ...]:
    """Dimension symbols of sample types, sorted."""
    return tuple(sorted({s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}))


def operator_count(side: Side) -> int:
    """How many operators a side has; one that several read counts once."""
    return sum(bool(term.inputs) for term in walk(side))
