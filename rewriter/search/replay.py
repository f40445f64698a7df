"""Moves taken again: as they were recorded, without some of them, or without those that the result does not need."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from mugraph.graph import Graph
from rewriter.search.candidate import Candidate, Move, RecordedMove, outputs_of, site_key
from rewriter.search.match import Match
from rewriter.search.moves import Moves

__all__ = ["replay", "retrace", "retrace_sites", "simplify"]


def _any(_: Move) -> bool:
    return True


def _unchecked() -> None:
    return None


def retrace(
    moves: Moves,
    graph: Graph,
    recorded: Sequence[RecordedMove],
    key: Callable[[int], str],
    check: Callable[[], None] = _unchecked,
) -> Candidate:
    """Takes recorded moves from the model as it came, as far as they apply; only their directions are matched.

    Args:
        moves: of the rules, at the prices that the candidate gets.
        graph: the model.
        recorded: what to do.
        key: the name that the sites' keys have for a value.
        check: called before each move; what it raises ends them.
    """
    return _retraced(moves.subset(move.direction for move in recorded), graph, recorded, key, check)[0]


def retrace_sites(
    moves: Moves, graph: Graph, recorded: Sequence[RecordedMove], key: Callable[[int], str]
) -> tuple[Candidate, list[int]]:
    """As :func:`retrace`, with the number of sites at which each move was taken."""
    return _retraced(moves.subset(move.direction for move in recorded), graph, recorded, key)


def replay(moves: Moves, graph: Graph, taken: Sequence[Move]) -> Candidate:
    """Takes the moves of a candidate again, as far as they still apply."""
    key = graph.tables.key
    return retrace(moves, graph, [move.recorded(key) for move in taken], key)


def simplify(
    moves: Moves, graph: Graph, candidate: Candidate, tolerance: float = 0.0, doubtful: Callable[[Move], bool] = _any
) -> Candidate:
    """Leaves out the moves that the result does not need: without them it costs the same, up to ``tolerance`` of the saving.

    Args:
        doubtful: the moves that are tried to be left out.
    """
    allowed = candidate.cost + tolerance * max(moves.start(graph).cost - candidate.cost, 0.0) + 1e-6
    used = moves.subset(move.direction for move in candidate.moves)
    key = graph.tables.key
    recorded = [move.recorded(key) for move in candidate.moves]
    before = _steps(used, used.start(graph), recorded, key)  # what comes before a move stays, whatever behind it is left out
    behind: list[RecordedMove] = []
    for move, step, prefix in reversed(list(zip(candidate.moves, recorded, before[:-1], strict=True))):
        shorter = _steps(used, prefix, behind, key)[-1] if doubtful(move) else None
        if shorter is not None and shorter.cost <= allowed:
            candidate = shorter
        else:
            behind.insert(0, step)
    return candidate


def _retraced(
    moves: Moves,
    graph: Graph,
    recorded: Sequence[RecordedMove],
    key: Callable[[int], str],
    check: Callable[[], None] = _unchecked,
) -> tuple[Candidate, list[int]]:
    """As :func:`retrace_sites`, by moves of directions among which are those that were recorded."""
    steps = _steps(moves, moves.start(graph), recorded, key, check)
    sites = [0 if after is before else len(after.moves[-1].matches) for before, after in itertools.pairwise(steps)]
    return steps[-1], sites


def _steps(
    moves: Moves,
    start: Candidate,
    recorded: Sequence[RecordedMove],
    key: Callable[[int], str],
    check: Callable[[], None] = _unchecked,
) -> list[Candidate]:
    """A candidate, and what comes of it by the first recorded move, by the first two, and so on, as far as they apply."""
    steps = [start]
    for move in recorded:
        check()
        matches = _at(moves.sites(steps[-1], move.direction), move, key)
        following = moves.take(steps[-1], matches) if matches else None
        steps.append(following or steps[-1])
    return steps


def _at(matches: Sequence[Match], move: RecordedMove, key: Callable[[int], str]) -> list[Match]:
    """The matches at a move's sites; where a move that is not taken changed what one reads, another match at its outputs."""
    places = {outputs_of(site) for site in move.keys}
    chosen: dict[tuple[int, ...], Match] = {}
    exact: set[tuple[int, ...]] = set()
    for match in matches:
        site = site_key(match, key)
        if site in move.keys and match.values not in exact:
            exact.add(match.values)
            chosen[match.values] = match
        elif outputs_of(site) in places:
            chosen.setdefault(match.values, match)
    return list(chosen.values())
