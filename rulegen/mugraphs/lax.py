"""The Lax subprograms of a model: goals of the search for kernels (Mirage, OSDI'25, sections 3 and 5).

A Lax program is one of multilinear operators, division and exponentials, of which at most one lies on a path. A model is divided
into maximal ones of bounded size: from the last node on a subprogram takes the nodes whose results nothing else reads, as long as
it stays Lax and within its bounds. A result of the root's shape that is read elsewhere, too, as the sum before a normalisation
is, is a further result of the subprogram, unless something that it reads depends on it. What entrywise operators compute beside
that (an error function, a sigmoid) is an opaque function; an operator that is neither bounds subprograms, as one that several
subprograms read does.

Sizes become symbols and leaves are named in order, so that subprograms which are equal up to that are one goal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.graph import Graph, Node
from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import ShapeError, Undecided
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
        outputs: results.
    """

    operators: int = 24
    leaves: int = 8
    outputs: int = 2


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
    """A subprogram in the making: its nodes, and how many exponentials lie on a path from each to the end; its results."""

    exponentials: dict[Node, int]
    operators: int
    leaves: set[int]
    outputs: list[int]


def goals_of(graph: Graph, bounds: SubprogramBounds) -> Iterator[Goal]:
    """The maximal Lax subprograms of a model, as it was read from its file, of every look the first."""
    seen: set[object] = set()
    for found in _Division(graph, bounds).cones():
        goal = _goal(named(found))
        key = _key(goal)
        if key not in seen:
            seen.add(key)
            yield goal


def parts_of(goal: Goal) -> list[Goal]:
    """Smaller goals: what each product or reduction of a goal ends, what begins with it, and each of several results by itself,
    with those that it is computed of as inputs; larger ones first.

    They are for a goal that no block graph computes well: a kernel graph of several kernels is made of such parts.
    """
    types = infer_types(goal.roots, goal.types)
    found: dict[object, Goal] = {}

    def enter(roots: Sequence[Term], cuts: Iterable[Term]) -> None:
        leaves = {cut: var(f"p{place}") for place, cut in enumerate(dict.fromkeys(cuts)) if cut.inputs}
        roots = _with_leaves(roots, leaves)
        if not set(goal.roots) <= set(roots) and not all(map(_is_trivial, roots)):
            known = {**goal.types, **{leaf.name: types[cut] for cut, leaf in leaves.items()}}
            used = {part.name: known[part.name] for part in walk(roots) if part.is_var}
            cone_ = named(Cone(tuple(roots), used))
            part = Goal(_name(cone_.roots), cone_.roots, cone_.types, goal.sizes).canonical()
            found.setdefault(_key(part), part)

    for root in goal.roots if len(goal.roots) > 1 else ():
        enter([root], [other for other in goal.roots if other is not root])
    for term in walk(goal.roots):
        if term.inputs and _contracts(term.op):
            enter([term], ())
            for root in goal.roots:
                enter([root], term.inputs)
    return sorted(found.values(), key=lambda part: -sum(1 for _ in walk(part.roots)))


def _with_leaves(roots: Sequence[Term], leaves: Mapping[Term, Term]) -> list[Term]:
    """Terms in which some parts are variables."""
    done: dict[Term, Term] = {}
    for part in walk(roots):
        new = Term(part.op, part.attrs, tuple(done[i] for i in part.inputs), part.out) if part.inputs else part
        done[part] = leaves.get(part, new)
    return [done[root] for root in roots]


def _contracts(op: str) -> bool:
    traits = traits_of(op)
    return traits.product is not None or traits.reduction is not None or traits.rows is not None


def _is_trivial(root: Term) -> bool:
    """Whether a term only moves entries."""
    return all(not part.inputs or traits_of(part.op).movement is not None for part in walk([root]))


def _key(goal: Goal) -> object:
    return cone_key(Cone(goal.roots, dict(goal.types)))


def _goal(found: Cone) -> Goal:
    """A goal with symbols for sizes, where a place that it matches tells them all."""
    lifted = lift(found.roots, found.types)
    if lifted is not None:
        general, types = lifted
        system = [e for name, type_ in types.items() for e in equations(type_.shape, found.types[name].shape)]
        for pattern, term in zip(walk(general), walk(found.roots), strict=True):
            system += [e for (_, a), (_, b) in zip(pattern.attrs, term.attrs, strict=True) for e in equations(a, b)]
        told = solve(system, {})
        sizes = {name: size for name, size in told.items() if isinstance(size, int)}
        if all(type_.at(sizes) == found.types[name] for name, type_ in types.items()):
            return Goal(_name(found.roots), general, types, sizes).canonical()
    return Goal(_name(found.roots), found.roots, found.types).canonical()


def _name(roots: Sequence[Term]) -> str:
    """The name of a goal's kernels: its products, reductions and norms, in order."""
    words = dict.fromkeys(part.op.lower() for part in walk(roots) if part.inputs and _contracts(part.op))
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
                yield cone(self._graph, grown.outputs, frozenset(grown.leaves))

    def _grown(self, root: Node) -> _Growing:
        """The subprogram that a node ends."""
        work = self._work(root)
        assert work is not None
        grown = _Growing({root: int(work.exponential)}, work.operators, self._read(root), [root.values[0]])
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
        if work is None or node in self._taken or len(node.values) != 1:
            return False
        (value,) = node.values
        readers = self._graph.users.get(value, frozenset())
        inside = [grown.exponentials[reader] for reader in readers if reader in grown.exponentials]
        outputs = [*grown.outputs, *([value] if len(inside) < len(readers) or value in self._outputs else [])]
        exponentials = max(inside) + work.exponential
        operators = grown.operators + work.operators
        leaves = (grown.leaves - {value}) | self._read(node)
        if exponentials > 1 or operators > self._bounds.operators or len(leaves) > self._bounds.leaves:
            return False
        if len(outputs) > self._bounds.outputs or not self._are_results(outputs, leaves):
            return False
        grown.exponentials[node], grown.operators, grown.leaves, grown.outputs = exponentials, operators, leaves, outputs
        return True

    def _are_results(self, outputs: Sequence[int], leaves: Iterable[int]) -> bool:
        """Whether values may be results of one subprogram with these leaves: of one shape, and none is needed for a leaf."""
        more = outputs[1:]
        if not more:
            return True
        needed = 0
        for leaf in leaves:
            needed |= self._ancestors(leaf)
        shapes = {str(self._graph.type(value)) for value in outputs}
        return len(shapes) == 1 and not any(needed >> self._made_at(value) & 1 for value in more)

    def _made_at(self, value: int) -> int:
        definition = self._graph.definition(value)
        assert definition is not None
        return self._place[definition[0]]

    def _ancestors(self, value: int) -> int:
        """The places of the nodes that a value is computed by, as a set of bits."""
        definition = self._graph.definition(value)
        return 0 if definition is None or definition[0] not in self._place else self._needed[self._place[definition[0]]]

    @cached_property
    def _needed(self) -> list[int]:
        """Of each node the places of those that it depends on, its own among them, as a set of bits."""
        needed: list[int] = []
        for place, node in enumerate(self._nodes):
            made = 1 << place
            for maker in self._makers(node):
                made |= needed[-maker]
            needed.append(made)
        return needed

    def _makers(self, node: Node) -> list[int]:
        """The places of the nodes that compute a node's operands, the last first in a heap."""
        return [-self._place[maker] for maker in self._graph.makers(node.inputs) if maker in self._place]

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
        program = GoalProgram(Goal("node", alone.roots, alone.types))
    except (Unsupported, ShapeError, Undecided):
        return None
    made = [value for value in program.values if not value.operation.kind.is_leaf]
    return _NodeWork(len(made), any(value.operation.is_exponential for value in made))
