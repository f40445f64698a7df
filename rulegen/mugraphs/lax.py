"""The Lax subprograms of a model: goals of the search for kernels (Mirage, OSDI'25, sections 3 and 5).

A Lax program is one of multilinear operators, division and exponentials, of which at most one lies on a path. A model is divided
into maximal ones of bounded size: from the last node on a subprogram takes the nodes whose results nothing else reads, as long as
it stays Lax and within its bounds. What entrywise operators compute beside that (an error function, a sigmoid) is an opaque
function; an operator that is neither bounds subprograms, as one that several subprograms read does.

Sizes become symbols and leaves are named in order, so that subprograms which are equal up to that are one goal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.graph import Graph, Node
from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import ShapeError, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import Term, var, walk
from rulegen.mine.cone import cone_key, named
from rulegen.mine.cuts import Cone, cone
from rulegen.mine.lifting import lift
from rulegen.mugraphs.goals import Goal, GoalProgram

__all__ = ["SubprogramBounds", "goals_of", "parts_of"]


@dataclass(frozen=True, slots=True)
class SubprogramBounds:
    """Of a subprogram.

    Attributes:
        operators: block operators that it has as it is written.
        leaves: inputs and tensors of weights.
    """

    operators: int = 16
    leaves: int = 8


@dataclass(frozen=True, slots=True)
class _NodeWork:
    """What a node is to a subprogram.

    Attributes:
        operators: block operators that it is.
        exponential: whether one of them is an exponential.
    """

    operators: int
    exponential: bool


@dataclass
class _Growing:
    """A subprogram in the making: its nodes, and how many exponentials lie on a path from each to the root."""

    exponentials: dict[Node, int]
    operators: int
    leaves: set[int] = field(default_factory=set)


def goals_of(graph: Graph, bounds: SubprogramBounds) -> Iterator[Goal]:
    """The maximal Lax subprograms of a model, of every look the first."""
    seen: set[object] = set()
    for found in _Division(graph, bounds).cones():
        goal = _goal(named(found))
        key = _key(goal)
        if key not in seen:
            seen.add(key)
            yield goal


def parts_of(goal: Goal) -> list[Goal]:
    """Smaller goals: what each product or reduction of a goal ends, and what begins with it; larger ones first.

    They are for a goal that no block graph computes: a kernel graph of several kernels is made of such parts.
    """
    types = infer_types([goal.root], goal.types)
    found: dict[object, Goal] = {}
    for term in walk([goal.root]):
        if not term.inputs or not _contracts(term.op):
            continue
        inner = {operand for operand in term.inputs if operand.inputs}
        leaves = {operand: var(f"p{place}") for place, operand in enumerate(term.inputs) if operand in inner}
        for root in (term, _with_leaves(goal.root, leaves)):
            if root is not goal.root and not _is_trivial(root):
                known = {**goal.types, **{leaf.name: types[operand] for operand, leaf in leaves.items()}}
                used = {part.name: known[part.name] for part in walk([root]) if part.is_var}
                cone_ = named(Cone((root,), used))
                part = Goal(_name(cone_.roots[0]), cone_.roots[0], cone_.types, goal.sizes).canonical()
                found.setdefault(_key(part), part)
    return sorted(found.values(), key=lambda part: -sum(1 for _ in walk([part.root])))


def _with_leaves(root: Term, leaves: Mapping[Term, Term]) -> Term:
    """A term in which some parts are variables."""
    done: dict[Term, Term] = {}
    for part in walk([root]):
        new = Term(part.op, part.attrs, tuple(done[i] for i in part.inputs), part.out) if part.inputs else part
        done[part] = leaves.get(part, new)
    return done[root]


def _contracts(op: str) -> bool:
    traits = traits_of(op)
    return traits.product is not None or traits.reduction is not None or traits.rows is not None


def _is_trivial(root: Term) -> bool:
    """Whether a term only moves entries."""
    return all(not part.inputs or traits_of(part.op).movement is not None for part in walk([root]))


def _key(goal: Goal) -> object:
    return cone_key(Cone((goal.root,), dict(goal.types)))


def _goal(found: Cone) -> Goal:
    """A goal with symbols for sizes, where a place that it matches tells them all."""
    (root,) = found.roots
    lifted = lift(found.roots, found.types)
    if lifted is not None:
        (general,), types = lifted
        system = [e for name, type_ in types.items() for e in equations(type_.shape, found.types[name].shape)]
        for pattern, term in zip(walk([general]), walk([root]), strict=True):
            system += [e for (_, a), (_, b) in zip(pattern.attrs, term.attrs, strict=True) for e in equations(a, b)]
        told = solve(system, {})
        sizes = {name: size for name, size in told.items() if isinstance(size, int)}
        if all(_at(type_, sizes) == found.types[name] for name, type_ in types.items()):
            return Goal(_name(root), general, types, sizes).canonical()
    return Goal(_name(root), root, found.types).canonical()


def _at(type_: TensorType, sizes: Mapping[str, int]) -> TensorType:
    return TensorType(type_.dtype, tuple(evaluate_dim(dim, sizes) for dim in type_.shape))


def _name(root: Term) -> str:
    """The name of a goal's kernels: its products, reductions and norms, in order."""
    words = dict.fromkeys(part.op.lower() for part in walk([root]) if part.inputs and _contracts(part.op))
    return "_".join([*words][:4]) or "elementwise"


class _Division:
    """Divides a graph."""

    def __init__(self, graph: Graph, bounds: SubprogramBounds) -> None:
        self._graph, self._bounds = graph, bounds
        self._nodes = list(graph.nodes())
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._outputs = set(graph.outputs)
        self._known: dict[object, _NodeWork | None] = {}
        self._taken: set[Node] = set()

    def cones(self) -> Iterator[Cone]:
        """The subprograms, the last first."""
        for node in reversed(self._nodes):
            if node in self._taken or self._work(node) is None:
                continue
            grown = self._grown(node)
            self._taken |= grown.exponentials.keys()
            if grown.operators:
                yield cone(self._graph, [node.values[0]], frozenset(grown.leaves))

    def _grown(self, root: Node) -> _Growing:
        """The subprogram that a node ends."""
        work = self._work(root)
        assert work is not None
        grown = _Growing({root: int(work.exponential)}, work.operators, set(self._read(root)))
        heap = self._makers(root)
        heapq.heapify(heap)
        refused: set[Node] = set()
        while heap:
            place = -heapq.heappop(heap)
            node = self._nodes[place]
            if node in grown.exponentials or node in refused or not self._joins(node, grown):
                refused.add(node)
                continue
            for more in self._makers(node):
                heapq.heappush(heap, more)
        return grown

    def _joins(self, node: Node, grown: _Growing) -> bool:
        """Takes a node into a subprogram; whether that may be."""
        work = self._work(node)
        if work is None or node in self._taken or len(node.values) != 1 or node.values[0] in self._outputs:
            return False
        (value,) = node.values
        readers = self._graph.users.get(value, frozenset())
        if not all(reader in grown.exponentials for reader in readers):
            return False
        exponentials = max(grown.exponentials[reader] for reader in readers) + work.exponential
        operators = grown.operators + work.operators
        leaves = (grown.leaves - {value}) | self._read(node)
        if exponentials > 1 or operators > self._bounds.operators or len(leaves) > self._bounds.leaves:
            return False
        grown.exponentials[node], grown.operators, grown.leaves = exponentials, operators, leaves
        return True

    def _makers(self, node: Node) -> list[int]:
        """The places of the nodes that compute a node's operands, the last first in a heap."""
        makers = [definition[0] for value in node.inputs if (definition := self._graph.definition(value)) is not None]
        return [-self._place[maker] for maker in makers if maker in self._place]

    def _read(self, node: Node) -> set[int]:
        """The tensors that a node reads."""
        tables = self._graph.tables
        return {v for v in node.inputs if v not in tables.constants or tables.constants[v].type.size() != 1}

    def _work(self, node: Node) -> _NodeWork | None:
        """What a node is to a subprogram; ``None`` where it is in none."""
        graph = self._graph
        types = [graph.type(value) for value in (*node.inputs, *node.values)]
        if node.is_opaque or any(t is None or t.dtype not in FLOATS for t in types) or graph.tables.constant[node.values[0]]:
            return None
        alone = named(cone(graph, [node.values[0]], frozenset(self._read(node)))) if len(node.values) == 1 else None
        if alone is None:
            return None
        key = cone_key(alone)
        if key not in self._known:
            self._known[key] = _work_of(alone)
        return self._known[key]


def _work_of(alone: Cone) -> _NodeWork | None:
    try:
        program = GoalProgram(Goal("node", alone.roots[0], alone.types))
    except (Unsupported, ShapeError, Undecided):
        return None
    made = [value for value in program.values if not value.operation.kind.is_leaf]
    return _NodeWork(len(made), any(value.operation.is_exponential for value in made))
