"""Proofs reduced to the instances, and the terms said to be well-typed, without which they do not stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rulegen.prove.egraph import EGraph, Reason
from rulegen.prove.instances import Instances

__all__ = ["reduced"]


def reduced(graph: EGraph, goals: Sequence[tuple[int, int]], reasons: Sequence[Reason]) -> tuple[list[Reason], list[int]]:
    """The instances that a proof of the goals needs, and the nodes that must be known to be well-typed for it.

    Each is tried in turn, the instances in the order of the terms that their conditions cite, so that those which ask most go
    first.
    """
    closure = _Congruence(graph, goals)
    if len(reasons) == 1 and not closure.typed(reasons[0]):
        return list(reasons), []
    typed = {reason: closure.typed(reason) for reason in reasons}
    kept = list(reasons)
    for reason in sorted(reasons, key=lambda r: -sum(len(c.terms()) for c in r.direction.law.conditions)):
        without = [r for r in kept if r is not reason]
        if closure.proves(without, typed, [n for r in without for n in typed[r]]):
            kept = without
    terms = list(dict.fromkeys(n for r in kept for n in typed[r]))
    for node in list(terms):
        without_term = [n for n in terms if n != node]
        if closure.proves(kept, typed, without_term):
            terms = without_term
    return kept, terms


class _Congruence:
    """The checker's notion of a proof (:func:`rules_db.trust.check.presence`) on nodes of the e-graph, where it is quick."""

    def __init__(self, graph: EGraph, goals: Sequence[tuple[int, int]]) -> None:
        self.graph, self.goals = graph, goals
        self._under: dict[int, frozenset[int]] = {}
        self._start: set[int] = set()
        for pair in goals:
            self._start.update(*map(self.under, pair))

    def under(self, node: int) -> frozenset[int]:
        """The nodes of a node's term."""
        if node not in self._under:
            self._under[node] = frozenset((node,)).union(*map(self.under, self.graph.operands[node]))
        return self._under[node]

    def typed(self, reason: Reason) -> list[int]:
        """The terms that a property wants well-typed beyond its two sides."""
        binding = [*reason.nodes, *reason.values]
        nodes = []
        for predicate, arguments, _ in reason.direction.conditions:
            if predicate == "typed":
                node = Instances(self.graph).build(arguments[0], binding)
                assert node is not None, reason
                nodes.append(node)
        return nodes

    def proves(self, reasons: Sequence[Reason], typed: Mapping[Reason, Sequence[int]], known_typed: Sequence[int]) -> bool:
        """Whether the instances prove the goals, each used, where the terms ``known_typed`` are known to be well-typed."""
        ops, operands = self.graph.op, self.graph.operands
        present = self._start.union(*map(self.under, known_typed))
        order = sorted(present.union(*[self.under(n) for r in reasons for n in (*r.left, *r.right, *typed[r])]))
        parent = {node: node for node in order}

        def find(node: int) -> int:
            while parent[node] != node:
                node = parent[node]
            return node

        pending, changed = list(reasons), True
        while changed:
            changed = False
            class_of: dict[int, int] = {}
            built: dict[tuple[int, ...], int] = {}
            for node in order:  # operands come before what is built on them
                try:
                    key = (ops[node], *[class_of[o] for o in operands[node]])
                except KeyError:
                    continue
                other = built.get(key)
                if node in present:
                    root = find(node)
                    if other is None:
                        built[key] = root
                    elif (other := find(other)) != root:
                        parent[other] = root
                        changed = True
                    class_of[node] = root
                elif other is not None:
                    class_of[node] = find(other)
            waiting = []
            for reason in pending:
                if all([a in class_of or b in class_of for a, b in zip(reason.left, reason.right, strict=True)]) and all(
                    [n in class_of for n in typed[reason]]
                ):
                    for a, b in zip(reason.left, reason.right, strict=True):
                        present |= self.under(a) | self.under(b)
                        parent[find(a)] = find(b)
                    changed = True
                else:
                    waiting.append(reason)
            pending = waiting
        return not pending and all(find(a) == find(b) for a, b in self.goals)
