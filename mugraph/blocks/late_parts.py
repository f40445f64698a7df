"""The last part of a concatenation along a loop, which few tiles have: behind a cache of keys, the new ones.

A tile before it needs no choice between the parts: it is what the load of the earlier one brings, and goes from memory to the
matrix units as any operand does. The generated code has a loop for those tiles, and one for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mugraph.blocks.block import Block
from mugraph.blocks.statements import Compute, Factor, Predicate, View, statement_operands
from mugraph.terms.shape import Dim
from mugraph.terms.term import Term, make, walk

__all__ = ["LatePart", "late_part"]


@dataclass(frozen=True, slots=True)
class LatePart:
    """Where the last part of a loop begins.

    Attributes:
        predicates: those that hold from there on, and nowhere before.
        start: the first position of it along the loop.
    """

    predicates: frozenset[str]
    start: Dim

    def before(self, term: Term) -> Term:
        """What a thread graph is before the part."""
        done: dict[Term, Term] = {}
        for part in walk([term]):
            inputs = [done[operand] for operand in part.inputs]
            if part.op == "Where" and part.inputs[0].is_var and part.inputs[0].name in self.predicates:
                done[part] = inputs[2]
            else:
                done[part] = make(part.op, inputs, part.attrs, part.out) if inputs else part
        return done[term]

    def view_before(self, view: View, loop: str) -> View:
        """A view before the part, where a position modulo the length of what stands there is the position."""

        def plain(factor: Factor) -> Factor:
            index = replace(factor.index, modulo=None)
            is_it = factor.index.axis == loop and factor.index.modulo == self.start and index.plain
            return Factor(index, factor.size) if is_it else factor

        return tuple(map(plain, view))


def late_part(block: Block) -> LatePart | None:
    """The last part of a block's loop, where thread graphs choose between it and what stands before it."""
    starts: dict[Dim, set[str]] = {}
    for predicate in block.statements:
        if not isinstance(predicate, Predicate) or len(predicate.conditions) != 1:
            continue
        (condition,) = predicate.conditions
        users = [s for s in block.statements if predicate.name in statement_operands(s)]
        is_of_loop = [(index.axis, index.plain, times) for index, times in condition.terms] == [(block.loop, True, 1)]
        if is_of_loop and all(isinstance(user, Compute) for user in users):
            starts.setdefault(-condition.constant, set()).add(predicate.name)
    if len(starts) != 1:
        return None
    ((start, names),) = starts.items()
    return LatePart(frozenset(names), start)
