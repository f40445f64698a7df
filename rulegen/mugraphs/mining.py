"""Kernels for the Lax subprograms of models, goal after goal.

Beside every goal its parts are searched (:func:`rulegen.mugraphs.lax.parts_of`): one block graph need not be the best way to
compute all of a subprogram, and of some there is none. What was searched stands in a journal, so that a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mugraph.blocks.schedule import DeviceLimits
from mugraph.graph import Graph
from mugraph.terms.term import format_term
from mugraph.terms.text import parse_term, parse_type
from rulegen.commons import unit_of_work
from rulegen.journal import Journal
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.lax import SubprogramBounds, goals_of, parts_of
from rulegen.mugraphs.search import FoundKernels, KernelSearch, search
from rulegen.workers import Here, UnitWorkers, sent_by
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["goals_and_parts", "mine_kernels", "search_data", "searched"]

_LEAST_SHARE = 0.1
"""Of the time that is left, for a goal, however many wait: whole subprograms come before their parts."""

_COUNTS = ("operators", "states", "pruned", "candidates", "refuted", "results", "tried", "seconds", "note")


def mine_kernels(
    graphs: Mapping[str, Graph],
    bounds: SubprogramBounds,
    how: KernelSearch,
    journal: Journal | None = None,
    show: Callable[[int, int], None] = lambda done, known: None,
    workers: UnitWorkers | None = None,
) -> Iterator[FoundKernels]:
    """The kernels found for the Lax subprograms of models and their parts, one outcome a goal, as soon as it is there.

    Args:
        graphs: by name.
        bounds, how: of the subprograms, and of the search for each.
        journal: of the goals that an earlier run searched.
        show: called with the number of goals that are done and that are known.
        workers: that search; this process where left out. The outcome is the same, but for what a limit of seconds stops.

    Raises:
        StoreError: a worker sends a rule that does not stand.
    """
    goals, workers, journal = goals_and_parts(graphs, bounds), workers or Here(), journal or Journal()
    asked = [goal for goal in goals if journal.get(_key(goal)) is None]
    records = sent_by(workers, search_data, [[_goal_data(goal), asdict(how)] for goal in asked], _read, Trust.TESTED)
    for number, goal in enumerate(goals, 1):
        outcome = _known(goal, journal)
        yield _kept(goal, next(records), journal) if outcome is None else outcome
        show(number, len(goals))


def goals_and_parts(graphs: Mapping[str, Graph], bounds: SubprogramBounds) -> list[Goal]:
    """The goals of models, those of all models first, then their parts; of those that are equal up to sizes the first."""
    known: dict[str, Goal] = {}
    for goal in (goal for name in sorted(graphs) for goal in goals_of(graphs[name], bounds)):
        known.setdefault(_look(goal), goal)
    waiting = list(known.values())
    for goal in waiting:  # which grow on the way
        for part in parts_of(goal):
            if _look(part) not in known:
                known[_look(part)] = part
                waiting.append(part)
    return waiting


def searched(goals: Sequence[Goal], how: KernelSearch, journal: Journal, seconds: float = math.inf) -> Iterator[FoundKernels]:
    """The outcome for each goal, in order, until the time is over.

    Args:
        seconds: by the clock, for all of them; what is left of it when a goal is begun is shared with those that wait. A goal
            may have its share of a processor, which takes longer where others work: who asked ends it then.
    """
    ends = time.monotonic() + seconds
    for number, goal in enumerate(goals):
        left = ends - time.monotonic()
        if left <= 0:
            return
        share = min(how.limits.seconds, max(left / (len(goals) - number), _LEAST_SHARE * left))
        limited = replace(how, limits=replace(how.limits, seconds=share))
        yield _known(goal, journal) or _kept(goal, _record(search(goal, limited)), journal)


def _look(goal: Goal) -> str:
    """Equal for goals that are equal up to sizes."""
    types = ", ".join(f"{name}:{type_}" for name, type_ in goal.types.items())
    return f"{', '.join(map(format_term, goal.roots))} | {types}"


def _key(goal: Goal) -> str:
    """Of a goal in a journal. Its sizes decide what fits a device and what comes first; another model may have others."""
    return f"{_look(goal)} | {goal.sizes}"


@unit_of_work
def search_data(unit: list[Any]) -> dict[str, Any]:
    """What a search for a goal finds, wherever that is done.

    Args:
        unit: the goal and how to search.
    """
    (name, roots, types, sizes), how = unit
    goal = Goal(name, tuple(map(parse_term, roots)), {name: parse_type(text) for name, text in types.items()}, sizes)
    limits, device = EnumerationLimits(**how["limits"]), DeviceLimits(**how["device"])
    return _record(search(goal, KernelSearch(**{**how, "limits": limits, "device": device})))


def _goal_data(goal: Goal) -> list[Any]:
    roots, types = [format_term(root) for root in goal.roots], {name: str(type_) for name, type_ in goal.types.items()}
    return [goal.name, roots, types, dict(goal.sizes)]


def _record(outcome: FoundKernels) -> dict[str, Any]:
    """An outcome as journals and processes hand it on."""
    return {"rules": [format_rule(rule) for rule in outcome.rules], **{name: getattr(outcome, name) for name in _COUNTS}}


def _read(record: dict[str, Any]) -> tuple[dict[str, Any], list[Rule]]:
    """What :func:`search_data` tells, and the rules in it."""
    if {*record} != {"rules", *_COUNTS}:
        raise ValueError("other fields than those of an outcome")
    return record, [parse_rule(text) for text in record["rules"]]


def _outcome(goal: Goal, record: Mapping[str, Any]) -> FoundKernels:
    rules = [parse_rule(text) for text in record["rules"]]
    return FoundKernels(goal, rules, **{name: record[name] for name in _COUNTS})


def _known(goal: Goal, journal: Journal) -> FoundKernels | None:
    """The outcome for a goal that an earlier run searched."""
    record = journal.get(_key(goal))
    return None if record is None else _outcome(goal, record)


def _kept(goal: Goal, record: dict[str, Any], journal: Journal) -> FoundKernels:
    """The outcome for a goal, which the journal has from now on."""
    journal.put(_key(goal), record)
    return _outcome(goal, record)
