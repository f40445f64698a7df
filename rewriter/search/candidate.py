"""Candidates of a search, and the moves by which they are reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mugraph.graph import Graph
from rewriter.search.directions import Direction
from rewriter.search.executed import Executed
from rewriter.search.match import Match
from rewriter.search.matches import Hits

__all__ = ["Candidate", "Move", "RecordedMove", "outputs_of", "site_key"]

_READS = " <- "


def site_key(match: Match, key: Callable[[int], str]) -> str:
    """The name of a match's outputs and of its operands, in terms of ``key`` (:meth:`mugraph.graph.Tables.key`)."""
    outputs, operands = map(key, match.values), (f"{name}={key(value)}" for name, value in match.variables)
    return "; ".join(outputs) + _READS + "; ".join(operands)


def outputs_of(site: str) -> str:
    """The part of a :func:`site_key` that names the outputs."""
    return site.partition(_READS)[0]


@dataclass(frozen=True, slots=True)
class RecordedMove:
    """A move in terms that mean the same in another process or another graph.

    Attributes:
        keys: the names of its sites (:func:`site_key`).
    """

    direction: Direction
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at one or more sites.

    Attributes:
        matches: the sites.
        gain: microseconds saved, by the cost model.
    """

    direction: Direction
    matches: tuple[Match, ...]
    gain: float

    @property
    def sites(self) -> tuple[tuple[int, ...], ...]:
        """The output values of each match."""
        return tuple(match.values for match in self.matches)

    def recorded(self, key: Callable[[int], str]) -> RecordedMove:
        """The move with its sites named by ``key``."""
        return RecordedMove(self.direction, frozenset(site_key(match, key) for match in self.matches))


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A graph of the search.

    Attributes:
        graph: plain: without what the runtime fuses by itself.
        executed: what the runtime makes of it.
        cost: microseconds of that.
        moves: how the graph was reached from the model.
        hits: the matches of single pattern outputs in it.
    """

    graph: Graph
    executed: Executed
    cost: float
    moves: tuple[Move, ...]
    hits: Hits
