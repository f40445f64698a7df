"""Smaller programs for a cone: its own inner values, and transpositions of its only leaf."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, var, walk
from rulegen.mine.cuts import Cone
from rules_db.trust.rule import Side

__all__ = ["parts_of"]


def parts_of(cone: Cone, inferred: Mapping[Term, TensorType]) -> Iterator[Side]:
    """Smaller programs for a cone of one output: its own inner values of equal type, and transpositions of its only leaf."""
    (root,) = cone.roots
    for term in walk([root]):
        if term is not root and term.op != "Const" and inferred[term] == inferred[root]:
            yield (term,)
    if len(cone.types) == 1 and cone.operators > 1:
        (leaf,) = map(var, cone.types)
        rank = inferred[leaf].rank
        for count in range(2, min(rank, 4) + 1):
            for perm in itertools.permutations(range(count)):
                if perm[0] != 0:
                    term = Term("Transpose", (("perm", perm),), (leaf,), 0)
                    if infer_types([term], cone.types)[term] == inferred[root]:
                        yield (term,)
        if cone.operators > 2 and inferred[root].rank >= 2:
            yield from _turned(leaf, inferred[leaf], inferred[root])


def _turned(leaf: Term, before: TensorType, after: TensorType) -> Iterator[Side]:
    """The leaf reshaped and its last two axes exchanged, if that has the type."""
    shape = (*after.shape[:-2], after.shape[-1], after.shape[-2])
    same = next((i for i, (a, b) in enumerate(zip(before.shape, shape, strict=False)) if a != b), 0)
    reshaped = make("Reshape", [leaf], {"drop": before.rank - same, "shape": shape[same:]})
    term = make("Transpose", [reshaped], {"perm": (1, 0)})
    with contextlib.suppress(ShapeError, Undecided):
        if infer_types([term], {leaf.name: before})[term] == after:
            yield (term,)
