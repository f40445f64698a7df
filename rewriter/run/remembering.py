"""Remembering: verdicts on the same model, rules, options and environment are replayed instead of found again."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mugraph.graph import Graph
from rewriter.run.decision import Decision
from rewriter.run.outcome import Outcome
from rewriter.run.searching import UnknownRule, new_search, recorded_moves
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import digest
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["StaleVerdict", "Verdicts"]

_VERSION = 6
"""Part of the key of verdicts; raise it when import, matching or search change what a recorded move means."""


class StaleVerdict(ValueError):
    """A remembered verdict is damaged, or does not lead to the same model any more."""


@dataclass(frozen=True, slots=True)
class _StoredVerdict:
    """A verdict as it is kept.

    Attributes:
        outcome: of the run that found it.
        moves: those that lead to the written model.
        graph: digest of what they lead to; ``None`` for the original.
        kernels: the rules among them that hold kernels, which a search finds anew each time.
    """

    outcome: Outcome
    moves: list[tuple[str, list[str]]]
    graph: str | None
    kernels: list[Rule]

    def text(self) -> str:
        """As JSON."""
        kernels = [format_rule(rule) for rule in self.kernels]
        record = {"outcome": self.outcome.record(), "moves": self.moves, "graph": self.graph, "kernels": kernels}
        return json.dumps(record)

    @staticmethod
    def parse(text: str, task: Task) -> _StoredVerdict:
        """Reads :meth:`text`. Raises StaleVerdict for what is none."""
        try:
            record = json.loads(text)
            outcome = Outcome.of_record(record["outcome"], task.name, str(task.output))
            moves = [(rule, keys) for rule, keys in record["moves"]]
            kernels = [parse_rule(rule) for rule in record["kernels"]]
            return _StoredVerdict(outcome, moves, record["graph"], kernels)
        except (ValueError, KeyError, TypeError) as problem:
            raise StaleVerdict(f"not a verdict: {problem}") from None


class Verdicts:
    """The verdict on one task, kept in the store of the workbench.

    Requires an open workbench, and that the model's file is still the one that was read when this is made. Ensures that a
    recalled decision is the one that was remembered, down to the content of the graph, and that only decisions which are
    verdicts are remembered.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        task = bench.task
        ids = ",".join(sorted(rule.id for rule in bench.rules))
        costs = str(sorted(task.target.costs.items()))
        self._key = digest(task.model.digest(), ids, task.options.digest(), task.target.environment, costs, str(_VERSION))

    def recall(self) -> Decision | None:
        """The decision of an earlier run; ``None`` where there is none that holds, or another was asked for."""
        options = self._bench.task.options
        if not options.use_verdicts or options.explain:
            return None
        text = self._bench.store.verdict(self._key)
        try:
            return None if text is None else self.replayed(text)
        except StaleVerdict:  # it is measured again, and remembered anew
            return None

    def remember(self, decision: Decision, outcome: Outcome) -> None:
        """Keeps a decision for later runs, if it is a verdict.

        Args:
            outcome: of the run, after writing.
        """
        if not decision.is_verdict:
            return
        winner = decision.winner
        rules = {} if winner is None else {move.direction.rule.id: move.direction.rule for move in winner.moves}
        kept = _StoredVerdict(
            outcome,
            [] if winner is None else recorded_moves(self._bench.task.model, winner),
            None if winner is None else winner.graph.content_digest(),
            [rule for rule in rules.values() if kernel_of_rule(rule) is not None],
        )
        self._bench.store.remember(self._key, kept.text())

    def replayed(self, text: str) -> Decision:
        """The decision that a verdict records. Raises StaleVerdict where it is not reached any more."""
        record = _StoredVerdict.parse(text, self._bench.task)
        with self._bench.clock.lap("replay"):
            return Decision(self._graph(record), record.outcome)

    def _graph(self, record: _StoredVerdict) -> Graph:
        """The graph that a record leads to, with its kernels compiled."""
        bench = self._bench
        graph = bench.task.model.graph
        if record.moves:
            try:
                candidate = new_search(bench).retraced(record.moves, record.kernels)
            except UnknownRule as problem:
                raise StaleVerdict(str(problem)) from None
            if candidate.graph.content_digest() != record.graph:
                raise StaleVerdict("its moves lead to another graph")
            if record.kernels and (problems := bench.kernels.compile(candidate)):
                bench.notes.drop(*problems)
                raise StaleVerdict(problems[0])
            graph = candidate.graph
        return graph
