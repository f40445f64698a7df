"""The numeric gate: tests that a candidate must pass before a proof is looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided, symbol
from mugraph.terms.term import Term, walk
from rulegen.candidate import CandidateRule
from rulegen.numeric.fields import refute

__all__ = ["Gate", "cancels", "retest"]


def cancels(candidate: CandidateRule) -> bool:
    """Whether the sides agree only because something is subtracted or divided that was there before: x + (y - x).

    An equation that holds without cancellation holds as well when a difference becomes a sum, a quotient a product and an
    inverse its operand. A rule to a leaf (x + y - y = x) is enough; no program spells the others.
    """
    roots = (*candidate.source, *candidate.target)
    operators = [{term.op for term in walk(side)} for side in (candidate.source, candidate.target)]
    inverts = [any(traits_of(op).undoes for op in side) for side in operators]
    if any(not root.inputs for root in roots) or not any(inverts):
        return False
    for one in (0, 1):
        if not inverts[one] and any(traits_of(op).inverts_inside for op in operators[one] - operators[1 - one]):
            return False  # a definition of what has its inverses inside
    done: dict[Term, Term] = {}
    for term in walk(roots):
        inputs = tuple(done[operand] for operand in term.inputs)
        undone = traits_of(term.op).undoes
        if undone == "Identity":
            done[term] = inputs[0]
        else:
            done[term] = Term(undone or term.op, term.attrs, inputs, term.out) if inputs else term
    half = len(candidate.source)
    sides = tuple(done[root] for root in roots[:half]), tuple(done[root] for root in roots[half:])
    return refute(*sides, candidate.types, (0,)) is not None


class Gate(StrEnum):
    """Why a candidate does not pass."""

    REFUTED = "refuted"
    UNEVEN = "differs with a batch axis"


def _batched(types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The types with a leading batch dimension on all but scalars and vectors."""
    return {name: TensorType(t.dtype, (symbol("batch"), *t.shape)) if t.rank > 1 else t for name, t in types.items()}


def retest(candidate: CandidateRule, seeds: Sequence[int]) -> Gate | None:
    """Tests under further primes, shapes and seeds, also with a batch axis where both sides remain typed."""
    if refute(candidate.source, candidate.target, candidate.types, seeds) is not None:
        return Gate.REFUTED
    batched = _batched(candidate.types)
    try:
        inferred = infer_types((*candidate.source, *candidate.target), batched)
    except (ShapeError, Undecided):
        return None
    if any(inferred[a] != inferred[b] for a, b in zip(candidate.source, candidate.target, strict=True)):
        return None
    return Gate.UNEVEN if refute(candidate.source, candidate.target, batched, seeds[:1]) is not None else None
