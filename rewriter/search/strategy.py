"""Search strategies as values: which kinds of moves are tried, and in what order.

Backtracking over substitutions and layouts together is TASO's algorithm 2 (section 5); the others are what its section
7.5 compares it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mugraph.ops import Movement, get_operator, traits_of
from mugraph.terms.term import Term, walk
from rewriter.search.match import Direction
from rules_db.trust.rule import Rule, Side

__all__ = [
    "BACKTRACKING",
    "GREEDY",
    "LAYOUTS",
    "SEQUENTIAL",
    "STRATEGIES",
    "SUBSTITUTIONS",
    "Kind",
    "Strategy",
    "brings_movements",
    "cancels_movements",
    "is_layout_rule",
]


class Kind(StrEnum):
    """What a move changes: which operators compute the result, or only how tensors lie in memory."""

    SUBSTITUTION = "substitution"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a search goes about it.

    Attributes:
        name: what ``--strategy`` takes.
        phases: the kinds of moves that each phase may use; a phase starts from the best candidate of the one before.
        greedy: only improving candidates are explored further, whatever alpha is.
    """

    name: str
    phases: tuple[frozenset[Kind], ...]
    greedy: bool = False

    def alpha(self, asked: float) -> float:
        """The factor of the best cost up to which a candidate is explored further."""
        return 1.0 if self.greedy else asked


_SUBSTITUTION, _LAYOUT = frozenset({Kind.SUBSTITUTION}), frozenset({Kind.LAYOUT})

BACKTRACKING = Strategy("backtracking", (_SUBSTITUTION | _LAYOUT,))
"""Substitutions and layouts jointly, with backtracking."""

GREEDY = Strategy("greedy", (_SUBSTITUTION | _LAYOUT,), greedy=True)
"""The same, but only downhill."""

SEQUENTIAL = Strategy("sequential", (_SUBSTITUTION, _LAYOUT))
"""Substitutions first, then the layouts of what they gave."""

SUBSTITUTIONS = Strategy("substitutions", (_SUBSTITUTION,))
LAYOUTS = Strategy("layouts", (_LAYOUT,))

STRATEGIES: Mapping[str, Strategy] = {s.name: s for s in (BACKTRACKING, GREEDY, SEQUENTIAL, SUBSTITUTIONS, LAYOUTS)}
"""Strategy by name."""


def _operators(side: Side) -> list[str]:
    return [term.op for term in walk(side) if term.inputs]


def brings_movements(direction: Direction) -> bool:
    """Whether a replacement says where entries lie: what stands beside it may cancel that."""
    return any(traits_of(operator).rearranges for operator in _operators(direction.replacement))


def cancels_movements(direction: Direction) -> bool:
    """Whether a direction makes a chain of movements shorter and does nothing else."""
    before, after = _operators(direction.pattern), _operators(direction.replacement)
    return all(traits_of(operator).rearranges for operator in (*before, *after)) and len(after) < len(before)


def takes_over(direction: Direction) -> bool:
    """Whether an operator of the runtime becomes another that also does what stood before it: attention takes its projections.

    The first is often no saving by itself. What the second needs beside the pattern's own operands is made of constants.
    """
    before, after = direction.pattern, direction.replacement
    if len(before) > 1 or len(after) > 1 or not (before[0].inputs and after[0].inputs) or before[0].op == after[0].op:
        return False
    fused = all(get_operator(side[0].op).contract and get_operator(side[0].op).composite for side in (before, after))
    arranged = (Movement.CONCATENATION, Movement.REPETITION)  # weights side by side, and numbers repeated
    return fused and all(traits_of(operator).movement in arranged for operator in _operators(after)[:-1])


def _plain(operator: str) -> str:
    """The operator of which this one is the form for other layouts of its operands."""
    return "MatMul" if operator == "FusedMatMul" else operator.removeprefix("Nhwc")


def is_layout_rule(rule: Rule) -> bool:
    """Whether a rule changes layouts alone.

    Then both sides are the same expressions, if movements are left out, operands have no order (a transposed product
    exchanges its factors) and an operator for another layout (FusedMatMul, NhwcConv) counts as the plain one.
    """

    def erased(side: Side) -> list[str]:
        forms: dict[Term, str] = {}
        for term in walk(side):
            operands = [forms[operand] for operand in term.inputs]
            if traits_of(term.op).rearranges:
                forms[term] = operands[0]
            elif term.inputs:
                forms[term] = f"{_plain(term.op)}.{term.out}({', '.join(sorted(operands))})"
            else:
                forms[term] = repr(term)
        return [forms[root] for root in side]

    terms = walk([*rule.source, *rule.target])
    return any(traits_of(t.op).rearranges or _plain(t.op) != t.op for t in terms) and erased(rule.source) == erased(rule.target)
