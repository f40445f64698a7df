"""Search strategies as values: which kinds of moves are tried, and in what order.

Backtracking over substitutions and layouts together is TASO's algorithm 2 (section 5); what its section 7.5 compares it with are
strategies, too. Fusion schemes are STOF's (arXiv 2506.06095, section 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "BACKTRACKING",
    "GREEDY",
    "LAYOUTS",
    "REFINED",
    "RULES",
    "SCHEMES",
    "SEQUENTIAL",
    "STRATEGIES",
    "SUBSTITUTIONS",
    "MoveKind",
    "Strategy",
]


class MoveKind(StrEnum):
    """The kinds of moves: which operators compute a result, how tensors lie in memory, which operators are one kernel."""

    SUBSTITUTION = "substitution"
    LAYOUT = "layout"
    SCHEME = "scheme"


RULES = frozenset({MoveKind.SUBSTITUTION, MoveKind.LAYOUT})
"""The kinds of moves that rules make."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """The kinds of moves that a search tries, and in which order.

    Attributes:
        name: what ``--strategy`` takes.
        phases: the kinds of moves that each phase may use; a phase starts from the best candidate of the one before. One of
            schemes has no other kind.
        greedy: only improving candidates are explored further, whatever alpha is.
    """

    name: str
    phases: tuple[frozenset[MoveKind], ...]
    greedy: bool = False

    def alpha(self, asked: float) -> float:
        """The factor of the best cost up to which a candidate is explored further."""
        return 1.0 if self.greedy else asked


_SUBSTITUTION, _LAYOUT, _SCHEME = (frozenset({kind}) for kind in MoveKind)

BACKTRACKING = Strategy("backtracking", (RULES,))
"""Substitutions and layouts jointly, with backtracking."""

GREEDY = Strategy("greedy", (RULES,), greedy=True)
"""The same, but only downhill."""

SEQUENTIAL = Strategy("sequential", (_SUBSTITUTION, _LAYOUT))
"""Substitutions first, then the layouts of what they gave."""

SUBSTITUTIONS = Strategy("substitutions", (_SUBSTITUTION,))
LAYOUTS = Strategy("layouts", (_LAYOUT,))

SCHEMES = Strategy("schemes", (_SCHEME,))
"""Fusion schemes of the model as it came, without rules."""

REFINED = Strategy("refined", (RULES, _SCHEME))
"""Backtracking, then fusion schemes of what it found, beginning with the kernels there."""

STRATEGIES: Mapping[str, Strategy] = {
    s.name: s for s in (BACKTRACKING, GREEDY, SEQUENTIAL, SUBSTITUTIONS, LAYOUTS, SCHEMES, REFINED)
}
"""Strategy by name."""
