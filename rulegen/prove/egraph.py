"""An e-graph over explicit terms with a proof forest.

Every node is an explicit term, so that an edge of the proof forest joins two terms that a certificate can name (Nieuwenhuis
and Oliveras, Proof-producing congruence closure, 2005). Classes are typed under the goal's sample types, whose symbols count
as distinct sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mugraph.order import operands_first
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Attrs, AttrValue, Term, walk
from rulegen.prove.language import Language
from rulegen.prove.laws import LawDirection

__all__ = ["EGraph", "Reason"]


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """An instance of a law: nodes for its term variables, values for the others, and the nodes of its two sides."""

    direction: LawDirection
    nodes: tuple[int, ...]
    values: tuple[AttrValue, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


class ProofForest:
    """Why nodes are equal: trees of links, each an instance of a law or, without a reason, congruence."""

    def __init__(self) -> None:
        self._links: list[tuple[int, Reason | None] | None] = []

    def add(self) -> None:
        """Adds a tree of one node, the next number."""
        self._links.append(None)

    def link(self, a: int, b: int, reason: Reason | None) -> None:
        """Makes ``a`` the root of its tree and hangs it below ``b``."""
        node, link = a, (b, reason)
        while link is not None:
            following = self._links[node]
            self._links[node] = link
            if following is None:
                return
            link, node = (node, following[1]), following[0]

    def path(self, a: int, b: int) -> Iterator[tuple[int, int, Reason | None]]:
        """The links between two nodes of one tree."""
        above = {a}
        node = a
        while (link := self._links[node]) is not None:
            node = link[0]
            above.add(node)
        meeting = b
        while meeting not in above:
            meeting = self._links[meeting][0]  # type: ignore[index]
        for start in (a, b):
            node = start
            while node != meeting:
                other, reason = self._links[node]  # type: ignore[misc]
                yield node, other, reason
                node = other


class EGraph:
    """Nodes are explicit terms; classes are unions of nodes closed under congruence.

    Attributes:
        op, operands, size, type: per node its operator and operands, operators of its tree, and type.
        root: per node the one that stands for its class.
        best: per class its smallest node.
        members: per class the nodes by operator; of congruent nodes only one.
        mask: per class the set of its operators.
        users: per class the nodes built on it; of congruent nodes only one.
        built: operator and operands' classes to a node.
        twin: nodes congruent to another that stands for them in matching.
        touched: classes that changed since this set was last emptied.
        first: operator to the attributes of its first node.
    """

    def __init__(self, language: Language) -> None:
        self.language = language
        self.op: list[int] = []
        self.operands: list[tuple[int, ...]] = []
        self.size: list[int] = []
        self.type: list[int] = []
        self.root: list[int] = []
        self.best: list[int] = []
        self.members: list[dict[str, list[int]]] = []
        self.mask: list[int] = []
        self.users: list[list[int]] = []
        self.built: dict[tuple[int, tuple[int, ...]], int] = {}
        self.twin: set[int] = set()
        self.touched: set[int] = set()
        self.first: dict[str, Attrs] = {}
        self._classes: list[list[int]] = []
        self._explicit: dict[tuple[int, tuple[int, ...]], int] = {}
        self._terms: dict[int, Term] = {}
        self._forest = ProofForest()

    def find(self, node: int) -> int:
        """The node that stands for the class of a node."""
        return self.root[node]

    def _new(self, op: int, operands: tuple[int, ...], type_: int, name: str) -> int:
        node = len(self.op)
        self.op.append(op)
        self.operands.append(operands)
        self.size.append(1 + sum([self.size[o] for o in operands]) if operands else 0)
        self.type.append(type_)
        self.root.append(node)
        self.best.append(node)
        self.users.append([])
        self.members.append({name: [node]})
        self.mask.append(self.language.bit(name))
        self._classes.append([node])
        self._explicit[op, operands] = node
        self.first.setdefault(name, self.language.ops[op][1])
        self._forest.add()
        return node

    def leaf(self, term: Term, type_: int) -> int:
        """The node of a variable or a constant."""
        op = self.language.op(term.op, term.attrs, 0)
        node = self._explicit.get((op, ()))
        if node is None:
            node = self._new(op, (), type_, term.op)
            self.built[op, ()] = node
            self._terms[node] = term
        return node

    def add_term(self, root: Term, types: Mapping[str, TensorType]) -> int | None:
        """The node of a term; ``None`` where it is ill-typed."""
        nodes: dict[Term, int] = {}
        for term in walk([root]):
            node: int | None
            if term.is_var:
                node = self.leaf(term, self.language.type(types[term.name]))
            elif term.op == "Const":
                node = self.leaf(term, self.language.literal(term))
            else:
                node = self.add(self.language.op(term.op, term.attrs, term.out), tuple(nodes[i] for i in term.inputs))
                if node is None:
                    return None
                self._terms[node] = term
            nodes[term] = node
        return nodes[root]

    def add(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The node of an explicit application; ``None`` where it is ill-typed."""
        node = self._explicit.get((op, operands))
        if node is not None:
            return node
        roots = tuple([self.root[o] for o in operands])
        type_ = self.language.output(op, tuple([self.type[r] for r in roots]))
        if type_ is None:
            return None
        node = self._new(op, operands, type_, self.language.ops[op][0])
        twin = self.built.get((op, roots))
        if twin is None:
            self.built[op, roots] = node
            for root in set(roots):
                self.users[root].append(node)
        else:
            self.members[node] = {}
            self.twin.add(node)
            self.join(node, twin, None)
        return node

    def join(self, a: int, b: int, reason: Reason | None) -> None:
        """Joins two nodes and, by congruence, the nodes that are built on them."""
        root = self.root
        pending: list[tuple[int, int, Reason | None]] = [(a, b, reason)]
        while pending:
            a, b, reason = pending.pop()
            ra, rb = root[a], root[b]
            if ra == rb or self.type[ra] != self.type[rb]:
                continue
            if len(self.users[ra]) > len(self.users[rb]):
                a, b, ra, rb = b, a, rb, ra
            self._forest.link(a, b, reason)
            for node in self._classes[ra]:
                root[node] = rb
            self._classes[rb] += self._classes[ra]
            self.mask[rb] |= self.mask[ra]
            self.touched.add(rb)
            if (self.size[self.best[ra]], self.best[ra]) < (self.size[self.best[rb]], self.best[rb]):
                self.best[rb] = self.best[ra]
            for name, nodes in self.members[ra].items():
                self.members[rb].setdefault(name, []).extend(nodes)
            moved, self.users[ra] = self.users[ra], []
            for user in moved:
                if user in self.twin:
                    continue
                key = (self.op[user], tuple([root[o] for o in self.operands[user]]))
                other = self.built.setdefault(key, user)
                if other != user:
                    self.twin.add(user)
                    self.members[root[user]][self.language.ops[self.op[user]][0]].remove(user)
                    pending.append((user, other, None))
                else:
                    self.users[rb].append(user)

    def explain(self, pairs: Iterable[tuple[int, int]]) -> list[Reason]:
        """The instances used between nodes of one class, each once."""
        reasons: dict[Reason, None] = {}
        done: set[tuple[int, int]] = set()
        pending = list(pairs)
        while pending:
            a, b = pending.pop()
            if a == b or (a, b) in done or (b, a) in done:
                continue
            done.add((a, b))
            for node, other, reason in self._forest.path(a, b):
                if reason is not None:
                    reasons[reason] = None
                else:
                    pending.extend(zip(self.operands[node], self.operands[other], strict=True))
        return list(reasons)

    def term(self, node: int) -> Term:
        """The explicit term of a node."""
        if node not in self._terms:
            for current in operands_first([node], lambda node: [o for o in self.operands[node] if o not in self._terms]):
                name, attrs, out = self.language.ops[self.op[current]]
                self._terms[current] = Term(name, attrs, tuple(self._terms[o] for o in self.operands[current]), out)
        return self._terms[node]
