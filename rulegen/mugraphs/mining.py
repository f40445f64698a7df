"""Kernels for the Lax subprograms of models, goal after goal.

Beside every goal its parts are searched (:func:`rulegen.mugraphs.lax.parts_of`): one block graph need not be the best way to
compute all of a subprogram, and of some there is none. What was searched stands in a journal, so that a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from mugraph.graph import Graph
from mugraph.terms.term import format_term
from rulegen.journal import Journal
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.lax import SubprogramBounds, goals_of, parts_of
from rulegen.mugraphs.search import FoundKernels, KernelSearch, search
from rules_db.exchange import format_rule, parse_rule

__all__ = ["mine_kernels", "searched"]

_LEAST_SHARE = 0.1
"""Of the time that is left, for a goal, however many wait: whole subprograms come before their parts."""

_COUNTS = ("operators", "states", "pruned", "candidates", "refuted", "results", "tried", "seconds", "note")


def mine_kernels(
    graphs: Mapping[str, Graph],
    bounds: SubprogramBounds,
    how: KernelSearch,
    journal: Journal | None = None,
    show: Callable[[int, int], None] = lambda done, known: None,
) -> list[FoundKernels]:
    """The kernels found for the Lax subprograms of models and their parts, one outcome a goal.

    Args:
        graphs: by name.
        bounds, how: of the subprograms, and of the search for each.
        journal: of the goals that an earlier run searched.
        show: called with the number of goals that are done and that are known.
    """
    found = list[FoundKernels]()
    for outcome, known in searched(graphs, bounds, how, journal):
        found.append(outcome)
        show(len(found), known)
    return found


def searched(
    graphs: Mapping[str, Graph],
    bounds: SubprogramBounds,
    how: KernelSearch,
    journal: Journal | None = None,
    seconds: float = math.inf,
) -> Iterator[tuple[FoundKernels, int]]:
    """The outcome for each goal of models, and how many goals are known by then: those of the models first, then their parts.

    Args:
        graphs, bounds, how, journal: as for :func:`mine_kernels`.
        seconds: for all of them; what is left of it when a goal is begun is shared with those that wait.
    """
    ends = time.monotonic() + seconds
    journal = journal or Journal()
    waiting = [goal for name in sorted(graphs) for goal in goals_of(graphs[name], bounds)]
    known: dict[str, Goal] = {}
    for goal in waiting:
        known.setdefault(_look(goal), goal)
    waiting = list(known.values())
    for number, goal in enumerate(waiting):  # which grow on the way
        left = ends - time.monotonic()
        if left <= 0:
            return
        share = min(how.limits.seconds, max(left / (len(waiting) - number), _LEAST_SHARE * left))
        outcome = _searched(goal, replace(how, limits=replace(how.limits, seconds=share)), journal)
        for part in parts_of(goal):
            if _look(part) not in known:
                known[_look(part)] = part
                waiting.append(part)
        yield outcome, len(waiting)


def _look(goal: Goal) -> str:
    """Equal for goals that are equal up to sizes."""
    types = ", ".join(f"{name}:{type_}" for name, type_ in goal.types.items())
    return f"{', '.join(map(format_term, goal.roots))} | {types}"


def _key(goal: Goal) -> str:
    """Of a goal in a journal. Its sizes decide what fits a device and what comes first; another model may have others."""
    return f"{_look(goal)} | {goal.sizes}"


def _searched(goal: Goal, how: KernelSearch, journal: Journal) -> FoundKernels:
    """The outcome for a goal, from the journal where it stands there."""
    record = journal.get(_key(goal))
    if record is not None:
        rules = [parse_rule(text, is_known=True) for text in record["rules"]]
        return FoundKernels(goal, rules, **{name: record[name] for name in _COUNTS})
    outcome = search(goal, how)
    counts = {name: getattr(outcome, name) for name in _COUNTS}
    journal.put(_key(goal), {"rules": [format_rule(rule) for rule in outcome.rules], **counts})
    return outcome
