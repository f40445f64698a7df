"""Rules that were found to break a model: left out from then on, on this model and in this environment."""

from __future__ import annotations

from collections.abc import Iterable

from mugraph.graph import Graph
from rewriter.cost.store import ProfileStore
from rewriter.run.notes import Notes
from rewriter.run.reproduction import write_reproduction
from rewriter.run.task import Task
from rewriter.runtime_env import digest
from rewriter.search.match import Match

__all__ = ["Quarantine"]

_VERSION = 2
"""Of how candidates are written: a rule that broke a model may have done so by that alone."""


class Quarantine:
    """The quarantine of one model in one environment, kept in the store from run to run.

    Ensures that every rule in it has a line in the notes, that later runs know it by the same key, and that whoever looks
    for the cause finds the place at which the rule was applied (:func:`rewriter.run.reproduction.write_reproduction`).

    Attributes:
        rules: ids of those that this run put in.
    """

    def __init__(self, task: Task, store: ProfileStore, notes: Notes) -> None:
        self.rules: set[str] = set()
        self._task, self._store, self._notes = task, store, notes
        self._model = task.model.digest()

    def of_earlier_runs(self, rules: Iterable[str]) -> frozenset[str]:
        """The rules, of those with these ids, that earlier runs put in; each gets a line in the notes."""
        keys = {self._key(rule): rule for rule in rules}
        banned = frozenset(keys[key] for key, text in self._store.verdicts(keys).items() if text)
        self._notes.drop(*(f"{rule}: quarantined by an earlier run on this model" for rule in sorted(banned)))
        return banned

    def put(self, match: Match, graph: Graph, problem: str) -> None:
        """Puts a rule in, and writes files that reproduce what it did, where they can be written.

        Args:
            match: where it was applied.
            graph: the candidate before that.
            problem: what was observed after it.
        """
        task, direction = self._task, match.direction
        try:
            file = write_reproduction(task.output, task.model, graph, match, task.sizes, problem)
            written = f"see {file}" if file is not None else f"see {task.output.name}.quarantine/{direction.rule.id}.txt"
        except OSError as failure:
            written = f"reproduction files could not be written: {failure.strerror}"
        text = f"{direction.id}: with it {problem}; quarantined for this model; {written}"
        self._notes.drop(text)
        self._store.remember(self._key(direction.rule.id), text)
        self.rules.add(direction.rule.id)

    def _key(self, rule: str) -> str:
        return digest("quarantine", str(_VERSION), self._model, rule, self._task.target.environment)
