"""The search for a proof in an e-graph.

A *law*, an operator property or a proved rule, is used in both directions wherever the side that is matched binds the rest; a
side that is a bare variable is never matched. A match binds variables to classes; each class is frozen to its smallest term
before either side of the instance is built.

The search is goal-directed by size: instances that join classes which are there come first, then those that add small terms;
larger ones wait until nothing else is left. Only nodes whose operands' classes changed are matched again.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rulegen.prove.admission import Admission, Assumption
from rulegen.prove.egraph import EGraph, Reason
from rulegen.prove.instances import Instances
from rulegen.prove.laws import LawDirection
from rulegen.prove.patterns import Binding
from rulegen.prove.selection import Laws

__all__ = ["ProofLimits", "ProofPart", "ProofSearch"]


@dataclass(frozen=True)
class ProofLimits:
    """The limits at which a search gives up.

    Attributes:
        nodes: of the e-graph.
        rounds: of matching at each size.
        growth: how many more operators than the goals' largest side an instance may have.
    """

    nodes: int = 1000
    rounds: int = 6
    growth: int = 3


class ProofPart(Enum):
    """A part of a search: only with laws that bring in no operator, then with all; or towards plainer terms only."""

    FAMILIAR = auto()
    ALL = auto()
    DIRECTED = auto()


_DIRECTED_ROUNDS = 4
"""Rounds towards plainer terms for each of the usual rounds: they climb a term step by step."""

_LawMatch = tuple[LawDirection, tuple[int, ...], Binding]
"""A direction, the nodes that it matched, and the binding."""


class ProofSearch:
    """One saturation of an e-graph.

    Args:
        graph: holds both sides of the goals.
        laws: that may be used.
        goals: pairs of nodes that are to become equal; none where all that is equal is looked for (:meth:`saturate`).
        assume: whether laws that ask something of values may be used.
        assumed: conditions known to hold, as :class:`rulegen.prove.admission.Admission` takes them.
        longer: operators by which a goal grows where the search follows a waypoint.
    """

    def __init__(
        self,
        graph: EGraph,
        laws: Laws,
        goals: Sequence[tuple[int, int]],
        assume: bool = True,
        assumed: Sequence[Assumption] | None = None,
        longer: int = 0,
    ) -> None:
        self.graph, self.goals = graph, goals
        self._laws, self._assume = laws, assume
        self._instances = Instances(graph)
        self._admission = Admission(graph, self._instances, assumed)
        self._largest = self._most = longer + max((graph.size[n] for pair in goals for n in pair), default=0)
        self._operators = frozenset([graph.language.ops[op][0] for op in graph.op])
        self._seen: defaultdict[LawDirection, set[Any]] = defaultdict(set)
        self._waiting: list[tuple[int, int, LawDirection, tuple[int, ...], Binding]] = []
        self._choose(ProofPart.FAMILIAR)

    @property
    def withheld(self) -> bool:
        """Whether a law was not applied for its conditions on values."""
        return self._admission.withheld

    def run(self, limits: ProofLimits) -> bool:
        """Applies laws until the goals hold; false where a limit is met or nothing new is found.

        Laws that only speak of the goal's operators come first, then the others, each with growing sizes.
        """
        return any(self.run_part(limits, part) for part in (ProofPart.FAMILIAR, ProofPart.ALL))

    def run_part(self, limits: ProofLimits, part: ProofPart) -> bool:
        """A part of :meth:`run`, which goes on where the one before ended. Plainer terms may be of any size."""
        self._choose(part)
        once = {ProofPart.FAMILIAR: min(1, limits.growth), ProofPart.DIRECTED: limits.nodes}
        self._most = self._largest + max(once.get(part, 0), limits.growth)
        for growth in (once[part],) if part in once else range(limits.growth + 1):
            if len(self.graph.op) > limits.nodes:
                break
            for _ in range(limits.rounds * (_DIRECTED_ROUNDS if part is ProofPart.DIRECTED else 1)):
                if self._reached() or not self._round(growth, limits.nodes):
                    break
        return self._reached()

    def saturate(self, size: int, nodes: int, deadline: float, rounds: int | None = None) -> bool:
        """Applies all laws to terms of at most so many operators; false where a limit was met before nothing new was found.

        What is there is joined whatever its size: that adds no class, and nodes are few.

        Args:
            size: operators of the trees of the largest terms.
            nodes: of the e-graph.
            deadline: by ``time.process_time``.
            rounds: of matching; as many as there is something new where left out.
        """
        self._choose(ProofPart.ALL)
        self._most = sys.maxsize
        for _ in itertools.count() if rounds is None else range(rounds):
            if not self._round(size - self._largest, nodes):
                return len(self.graph.op) <= nodes
            if time.process_time() > deadline:
                return False
        return True

    def _choose(self, part: ProofPart) -> None:
        """Chooses the laws of a part; matching begins anew."""
        operators = self._operators if part is ProofPart.FAMILIAR else None
        self._selection = self._laws.select(self._assume, operators, part is ProofPart.DIRECTED)
        self._matched = 0  # nodes that were matched at least once

    def _round(self, growth: int, nodes: int) -> bool:
        """Matches once and applies the instances that are not too large; whether anything can still change at this size."""
        graph, limit = self.graph, self._largest + growth
        for direction, roots, binding in self._matches():
            holds = self._holds_already(direction, roots, binding)
            if holds is None:
                size = self._instances.size(direction, binding)
                self._waiting.append((size, len(self._waiting), direction, roots, binding))
            elif not holds:
                self._apply(direction, binding)
        if self._reached():
            return False
        ready = sorted([e for e in self._waiting if e[0] <= limit], key=lambda e: e[:2])
        if not ready:
            return bool(graph.touched)
        self._waiting = [e for e in self._waiting if e[0] > limit]
        for _, _, direction, roots, binding in ready:
            if len(graph.op) > nodes:
                return False
            if not self._holds_already(direction, roots, binding):
                self._apply(direction, binding)
                if self._reached():
                    return False
        return True

    def _matches(self) -> list[_LawMatch]:
        """The new matches whose conditions hold."""
        graph, selection, admits = self.graph, self._selection, self._admission.admits
        root, mask = graph.root, graph.mask
        fresh: list[_LawMatch] = []
        changed = self._changed()
        for node, level in changed.items():
            operands = graph.operands[node]
            if not operands or node in graph.twin:
                continue
            starts = ((node,),)
            for direction in selection[(graph.op[node], level, *[mask[root[o]] for o in operands])]:
                for roots, binding in direction.match(graph, starts, self._seen[direction], self._most):
                    if direction.unconditional or admits(direction, binding):
                        fresh.append((direction, roots, binding))
        if changed and selection.joint:
            fresh += self._joint_matches()
        return fresh

    def _changed(self) -> dict[int, int]:
        """Nodes to match again, each with the number of levels to the nearest change below it."""
        graph = self.graph
        levels = dict.fromkeys(range(self._matched, len(graph.op)), 0)
        self._matched = len(graph.op)
        frontier = dict.fromkeys([graph.find(c) for c in graph.touched])
        graph.touched.clear()
        for level in range(1, self._laws.deepest):
            users = [user for root in frontier for user in graph.users[root] if user not in levels]
            levels.update(dict.fromkeys(users, level))
            frontier = dict.fromkeys([graph.find(user) for user in users])
        return levels

    def _joint_matches(self) -> Iterator[_LawMatch]:
        """Matches of directions that several roots bind together."""
        graph = self.graph
        by_op: dict[str, list[int]] = {}
        for node in range(len(graph.op)):
            if node not in graph.twin:
                by_op.setdefault(graph.language.ops[graph.op[node]][0], []).append(node)
        for direction in self._selection.joint:
            starts = [by_op.get(pattern.op, ()) for pattern in direction.matched]
            for roots, binding in direction.match(graph, starts, self._seen[direction], self._most):
                if self._admission.admits(direction, binding):
                    yield direction, roots, binding

    def _holds_already(self, direction: LawDirection, nodes: tuple[int, ...], binding: Binding) -> bool | None:
        """Whether both sides are there: equal (yes), or not yet (no); ``None`` where a side is missing."""
        graph = self.graph
        roots = direction.peek_right(graph, binding)
        if roots is None:
            return None
        if len(direction.left) == 1:
            return roots[0] == graph.root[nodes[0]]
        return direction.peek_left(graph, binding) == roots

    def _apply(self, direction: LawDirection, binding: Binding) -> None:
        """Builds both sides from the classes' smallest terms and joins them."""
        graph, build = self.graph, self._instances.build
        frozen = [graph.best[graph.root[v]] if i < direction.terms else v for i, v in enumerate(binding)]
        left = [build(p, frozen) for p in direction.left]
        right = [build(p, frozen) for p in direction.right]
        if None in left or None in right:
            return
        values = tuple(frozen[direction.terms : direction.slots])
        reason = Reason(direction, tuple(frozen[: direction.terms]), values, tuple(left), tuple(right))  # type: ignore[arg-type]
        for a, b in zip(reason.left, reason.right, strict=True):
            graph.join(a, b, reason)

    def _reached(self) -> bool:
        root = self.graph.root
        return bool(self.goals) and all([root[a] == root[b] for a, b in self.goals])
