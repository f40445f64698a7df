"""Matching in all candidates of one model, so that nothing is matched, joined or decided twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mugraph.deadline import heed
from mugraph.graph import Definition, Graph, Tables
from rewriter.search.apply import Plan, inexpressible, plan_match, substitute_match
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch, RootIndex, RootMatch, find_root_matches, join
from rewriter.search.ranges import RangeOracle
from rules_db.trust.rule import Rule

__all__ = ["MatchPool", "Matcher"]


class MatchPool:
    """The matches that were found in candidates of one model.

    Requires that all candidates are derived from one graph by substitutions. Ensures that equal matches are one object, whoever
    finds them, and that the guards of each are decided and its replacement is built once: both rest on the definitions alone that
    the match passed through.

    Args:
        oracle: decides guards.
        opset: of the default domain.
        objection: why a rule may not be applied; empty where it may.
    """

    def __init__(self, oracle: RangeOracle, opset: int, objection: Callable[[Rule], str] = lambda rule: "") -> None:
        self.oracle, self.opset = oracle, opset
        self._objection, self._objections = objection, dict[str, str]()
        self._hits: dict[tuple[object, ...], RootMatch] = {}
        self._single: dict[RootMatch, Match] = {}
        self._joined: dict[tuple[Direction, tuple[tuple[RootMatch, ...], ...]], Sequence[Match]] = {}
        self._plans: dict[Match, Plan | NoMatch] = {}
        self._refusals: dict[Match, NoMatch | None] = {}
        self._looks: dict[Match, int] = {}
        self._numbers: dict[object, int] = {}

    def hit(self, hit: RootMatch) -> RootMatch:
        """The object that stands for a match of one pattern output and all equal ones."""
        return self._hits.setdefault((hit.direction, hit.root, hit.value, hit.binding, hit.passed), hit)

    def join(self, direction: Direction, parts: Sequence[Sequence[RootMatch]]) -> Sequence[Match]:
        """As :func:`rewriter.search.match.join`, of matches that :meth:`hit` gave; equal parts give the same objects."""
        if len(parts) == 1:
            for hit in parts[0]:
                if hit not in self._single:
                    self._single[hit] = next(join(direction, [[hit]]))
            return [self._single[hit] for hit in parts[0]]
        key = (direction, tuple(map(tuple, parts)))
        if key not in self._joined:
            self._joined[key] = tuple(join(direction, parts))
        return self._joined[key]

    def plan(self, match: Match, graph: Graph) -> Plan | NoMatch:
        """The values that a match redefines, or why it does not apply (:func:`rewriter.search.apply.plan_match`).

        Args:
            match: of a candidate of the model; those that :meth:`join` gave are decided once, whoever asks.
            graph: a candidate in which it holds.
        """
        if match not in self._plans:
            heed()
            plan = plan_match(match, graph, self.oracle)
            reason = "" if isinstance(plan, NoMatch) else self._objected(match.direction.rule)
            self._plans[match] = NoMatch(reason, match.values[0]) if reason else plan
        return self._plans[match]

    def _objected(self, rule: Rule) -> str:
        if rule.id not in self._objections:
            self._objections[rule.id] = self._objection(rule)
        return self._objections[rule.id]

    def apply(self, match: Match, graph: Graph) -> Graph | NoMatch:
        """The candidate in which the match's values are computed by the replacement, or why there is none.

        There is none, either, where the match does not hold any more or the opset cannot express the replacement.

        Args:
            match: of a candidate of the model.
            graph: that candidate, or one that was derived from it.
        """
        if not match.still_holds(graph):
            return NoMatch("what stood there was rewritten", match.values[0])
        plan = self.plan(match, graph)
        if isinstance(plan, NoMatch):
            return plan
        if match not in self._refusals:
            self._refusals[match] = inexpressible(match, graph, plan, self.opset)
        return self._refusals[match] or substitute_match(match, graph, plan)

    def look(self, match: Match, graph: Graph) -> int:
        """A number that matches share that look the same: of one direction, with operands of equal types, as constant."""
        if match not in self._looks:
            types, constant = graph.tables.types, graph.tables.constant
            look = (match.direction, *((types[v], constant[v]) for v in match.binding.values()))
            self._looks[match] = self._numbers.setdefault(look, len(self._numbers))
        return self._looks[match]


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A graph that notes which definitions are looked at, in order."""

    tables: Tables
    graph: Graph
    seen: dict[int, Definition | None] = field(default_factory=dict)

    def definition(self, value: int) -> Definition | None:
        if value not in self.seen:
            self.seen[value] = self.graph.definition(value)
        return self.seen[value]


@dataclass(slots=True)
class _Question:
    """A node of a decision tree: asks how a value is computed; each answer leads to the next question or to the matches."""

    value: int
    answers: dict[Definition | None, _Question | tuple[RootMatch, ...]] = field(default_factory=dict)


class Matcher:
    """Matches of some directions in the candidates of one model.

    What matches at a value depends on the definitions that are looked at on the way. They are kept as a decision tree a value:
    candidates that agree on them share the matches.

    Args:
        directions: matched from their patterns.
        pool: shared with whoever matches in the same model.
    """

    def __init__(self, directions: Iterable[Direction], pool: MatchPool) -> None:
        self._index, self._pool = RootIndex(directions), pool
        self._asked: dict[int, _Question] = {}

    def at(self, graph: Graph, value: int) -> tuple[RootMatch, ...]:
        """As :func:`rewriter.search.match.find_root_matches`."""
        answered: _Question | tuple[RootMatch, ...] | None = self._asked.get(value)
        while isinstance(answered, _Question):
            answered = answered.answers.get(graph.definition(answered.value))
        if answered is not None:
            return answered
        heed()
        recorder = _Recorder(graph.tables, graph)
        hits = tuple(map(self._pool.hit, find_root_matches(recorder, self._index, value)))
        question = self._asked.setdefault(value, _Question(value))
        for (_, answer), (following, _) in pairwise(recorder.seen.items()):
            step = question.answers.setdefault(answer, _Question(following))
            assert isinstance(step, _Question) and step.value == following
            question = step
        question.answers[recorder.seen[question.value]] = hits
        return hits
