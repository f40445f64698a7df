"""Search strategies as values: which kinds of moves are tried, and in what order.

Backtracking over substitutions and layouts together is TASO's algorithm 2 (section 5); the others are what its section
7.5 compares it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["BACKTRACKING", "GREEDY", "LAYOUTS", "SEQUENTIAL", "STRATEGIES", "SUBSTITUTIONS", "MoveKind", "Strategy"]


class MoveKind(StrEnum):
    """The two kinds of moves: one changes which operators compute a result, the other how tensors lie in memory."""

    SUBSTITUTION = "substitution"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Strategy:
    """The kinds of moves that a search tries, and in which order.

    Attributes:
        name: what ``--strategy`` takes.
        phases: the kinds of moves that each phase may use; a phase starts from the best candidate of the one before.
        greedy: only improving candidates are explored further, whatever alpha is.
    """

    name: str
    phases: tuple[frozenset[MoveKind], ...]
    greedy: bool = False

    def alpha(self, asked: float) -> float:
        """The factor of the best cost up to which a candidate is explored further."""
        return 1.0 if self.greedy else asked


_SUBSTITUTION, _LAYOUT = frozenset({MoveKind.SUBSTITUTION}), frozenset({MoveKind.LAYOUT})

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
