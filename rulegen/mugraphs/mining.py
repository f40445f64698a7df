"""Kernels for the Lax subprograms of models, goal after goal.

Beside every goal its parts are searched (:func:`rulegen.mugraphs.lax.parts_of`): one block graph need not be the best way to
compute all of a subprogram, and of some there is none. What was searched stands in a journal, so that a run that was stopped goes
on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mugraph.graph import Graph
from mugraph.terms.term import format_term
from rulegen.journal import Journal
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.lax import SubprogramBounds, goals_of, parts_of
from rulegen.mugraphs.search import FoundKernels, KernelSearch, search
from rules_db.exchange import format_rule, parse_rule

__all__ = ["mine_kernels"]

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
    journal = journal or Journal()
    waiting = [goal for name in sorted(graphs) for goal in goals_of(graphs[name], bounds)]
    known: dict[str, Goal] = {}
    for goal in waiting:
        known.setdefault(_key(goal), goal)
    waiting, found = list(known.values()), list[FoundKernels]()
    for goal in waiting:  # which grows on the way
        found.append(_searched(goal, how, journal))
        for part in parts_of(goal):
            if _key(part) not in known:
                known[_key(part)] = part
                waiting.append(part)
        show(len(found), len(waiting))
    return found


def _key(goal: Goal) -> str:
    """Equal for goals of one look."""
    return f"{format_term(goal.root)} | {', '.join(f'{name}:{type_}' for name, type_ in goal.types.items())}"


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
