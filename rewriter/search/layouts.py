"""The layouts of a whole model at once, by a minimum cut.

While a layout changes, transpositions appear before they cancel: the steps in between cost more than start and end, and a
search that keeps only what costs at most alpha times the best does not get there. TASO (section 5) enumerates the layouts
of the tensors around each substitution instead. Here every operator that has a form for the other layout chooses between
the two together with all others: a choice pays the operators' prices, and a Transpose for each tensor whose maker and
reader differ. With two layouts that is a minimum cut (Greig, Porteous and Seheult, 1989), so that the choice is the best
there is by the cost model.

A *wrapping* direction of a rule rewrites an operator as its form for the other layout between a transposition of operands
and one back: ``Relu(x) -> Transpose[perm=(2,0,1)](Relu(Transpose[perm=(1,2,0)](x)))``. A choice is carried out as moves of
such rules, and of the one by which a transposition and its inverse cancel: it is recorded, replayed and bisected like any
other sequence of moves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, proxy

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from mugraph.graph import Graph, Node
from mugraph.terms.term import AttrValue, Term, walk
from rewriter.search.apply import plan_match
from rewriter.search.match import Direction, Match, NoMatch, RootIndex, find_root_matches, join, resolve

if TYPE_CHECKING:
    from rewriter.search.backtracking import Candidate, Search

__all__ = ["Layout", "layout_children", "wraps"]

_FIRST, _OTHER = "first layout", "other layout"
"""The two sides of the cut."""

_SCALE = 1000
"""Capacities are whole nanoseconds, so that flows are exact."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Another layout: the transposition into it and the one back, in canonical form."""

    there: tuple[int, ...]
    back: tuple[int, ...]


def _perm(term: Term) -> tuple[int, ...] | None:
    """The permutation of a Transpose, where it is written in numbers."""
    perm: AttrValue = term.attr("perm") if term.op == "Transpose" else None
    return perm if isinstance(perm, tuple) and all(isinstance(axis, int) for axis in perm) else None


@lru_cache(maxsize=4096)
def wraps(direction: Direction) -> Layout | None:
    """The layout that a direction brings: it wraps an operator of variables in transpositions; ``None`` for any other."""
    (root, *more), pattern = direction.replacement, direction.pattern
    back = _perm(root)
    if back is None or more or not all(operand.is_var for operand in pattern[0].inputs):
        return None
    inner = [term for term in walk([root]) if term is not root and term.op == "Transpose"]
    there = {_perm(term) if term.inputs[0].is_var else None for term in inner}
    if len(there) != 1 or pattern[0].op == "Transpose":
        return None
    perm = there.pop()
    inverse = perm is not None and len(perm) == len(back) and all(perm[axis] == i for i, axis in enumerate(back))
    return Layout(perm, back) if perm is not None and inverse else None


def _cancels(direction: Direction) -> bool:
    """Whether a direction takes a transposition and its inverse away."""
    (root, *more), (result, *_) = direction.pattern, direction.replacement
    return not more and result.is_var and root.op == "Transpose" == root.inputs[0].op and root.inputs[0].inputs[0] is result


@dataclass(frozen=True, slots=True)
class _Form:
    """What an output of a node is in the other layout.

    Attributes:
        direction: the wrapping rule.
        inner: the nodes between the transpositions, with their prices in microseconds.
        back: microseconds of the transposition back.
        turned: operand values that it wants transposed; it reads all others as they are.
    """

    direction: Direction
    inner: Mapping[Node, float]
    back: float
    turned: frozenset[int]

    @property
    def price(self) -> float:
        return sum(self.inner.values())


@dataclass(frozen=True, slots=True)
class _Choice:
    """A node that has a form in the other layout for each output that is read.

    Attributes:
        here, price: microseconds of the node as it is, and of its forms together.
        back: microseconds of the transposition back, by output.
        turned: as of :class:`_Form`.
        sites: the values that it makes, and the rule for each.
    """

    here: float
    price: float
    back: Mapping[int, float]
    turned: frozenset[int]
    sites: tuple[tuple[Direction, int], ...]


_Maker = tuple[Node, int] | int
"""What makes a tensor: a node's output, or the value itself for an input of the model."""


@dataclass(slots=True)
class _Tensor:
    """A tensor that some node makes and others read, whichever values stand for it.

    Attributes:
        value: one of them.
        readers: nodes that read it in the layout they have, and those that read it as it is; outputs of the model are such.
    """

    value: int
    readers: set[Node] = field(default_factory=set)
    as_it_is: bool = False
    turned: bool = False


class _Chooser:
    """The wrapping rules of a search, and what is known of the model's nodes under them."""

    def __init__(self, search: Search) -> None:
        self.search: Search = proxy(search)
        self.wrapping: dict[Layout, list[Direction]] = {}
        for direction in search.directions:
            layout = wraps(direction)
            if layout is not None:
                self.wrapping.setdefault(layout, []).append(direction)
        self.index = {layout: RootIndex(directions) for layout, directions in self.wrapping.items()}
        self.cancelling = RootIndex(direction for direction in search.directions if _cancels(direction))
        self._forms: dict[tuple[Layout, int, int, tuple[int, ...]], _Form | None] = {}

    def children(self, candidate: Candidate) -> Iterator[Candidate]:
        """For each other layout the candidate with the best choice of layouts, where that is cheaper."""
        for layout in sorted(self.wrapping, key=lambda layout: (layout.there, layout.back)):
            chosen = self.choose(candidate.graph, layout)
            child = self.carry_out(candidate, layout, chosen) if chosen else None
            if child is not None and child.cost < candidate.cost:
                yield child

    def form(self, graph: Graph, value: int, layout: Layout) -> _Form | None:
        """The cheapest form in the other layout of what makes a value; ``None`` where the provider runs none."""
        definition = graph.definition(value)
        assert definition is not None
        node, out = definition
        key = (layout, node.index, out, tuple(resolve(graph, operand) for operand in node.inputs))
        if key not in self._forms:
            hits = find_root_matches(graph, self.index[layout], value)
            forms = [self._form(graph, match) for hit in hits for match in join(hit.direction, [[hit]])]
            self._forms[key] = min((f for f in forms if f is not None), key=lambda f: f.price, default=None)
        return self._forms[key]

    def _form(self, graph: Graph, match: Match) -> _Form | None:
        costs, tables = self.search.costs, graph.tables
        plan = plan_match(match, graph, self.search.oracle)
        if isinstance(plan, NoMatch):
            return None
        ((back, _),) = plan.values()
        bound, stack = set(match.binding.values()) - set(match.values), [back.inputs[0]]
        inner: dict[Node, float] = {}
        turned = set()
        while stack:
            value = stack.pop()
            found = tables.makers.get(value)
            if value in bound or found is None or found[0] in inner:
                continue
            node = found[0]
            if node.op == "Transpose" and node.inputs[0] in bound:
                turned.add(node.inputs[0])
                continue
            inner[node] = costs.cost(graph, node)
            stack.extend(node.inputs)
        return _Form(match.direction, inner, costs.cost(graph, back), frozenset(turned))

    def choose(self, graph: Graph, layout: Layout) -> list[tuple[Direction, int]]:
        """The values whose operators take the other layout by the minimum cut, and by which rule.

        There are none where that saves no more than noise: a fraction of the time of the operators that change.
        """
        costs = self.search.costs
        tensors: dict[_Maker, _Tensor] = {}
        made: dict[Node, list[int]] = {}

        def tensor(value: int) -> _Tensor:
            at = resolve(graph, value)
            found = graph.definition(at)
            return tensors.setdefault(at if found is None else found, _Tensor(at))

        nodes = [node for node in graph.nodes() if node.op != "Identity"]
        values = {resolve(graph, v) for v in graph.outputs}.union(*({resolve(graph, v) for v in n.inputs} for n in nodes))
        for value in sorted(values):
            found = graph.definition(value)
            if found is not None:
                made.setdefault(found[0], []).append(value)
        choices = {n: c for n in nodes if (c := self._choice(graph, n, made.get(n, []), layout)) is not None}
        transposes = layout.there != layout.back
        movers = [n for n in nodes if transposes and n.op == "Transpose" and n.attrs[0][1] in (layout.there, layout.back)]
        gains = sum(max(choice.here - choice.price, 0.0) for choice in choices.values())
        if not choices or (not movers and gains <= 0):
            return []
        for value in graph.outputs:
            tensor(value).as_it_is = True
        for node in nodes:
            turned = choices[node].turned if node in choices else frozenset()
            for operand in dict.fromkeys(resolve(graph, v) for v in node.inputs):
                if graph.tables.constant[operand]:
                    continue
                if node in movers and node.attrs[0][1] == layout.there:
                    tensor(operand).turned = True  # its result is there for nothing where the operand is in the other layout
                elif node in movers:
                    continue  # the operand is the result in the other layout
                elif operand in turned:
                    tensor(operand).readers.add(node)
                else:
                    tensor(operand).as_it_is = True
        network = nx.DiGraph()
        network.add_nodes_from((_FIRST, _OTHER))
        for node, choice in choices.items():
            _connect(network, _FIRST, node, choice.price)
            _connect(network, node, _OTHER, choice.here)
        for maker, item in tensors.items():
            self._price_layouts(network, graph, maker, item, choices, movers, layout)
        cost, (_, other) = nx.minimum_cut(network, _FIRST, _OTHER, flow_func=boykov_kolmogorov)
        taken = [choice for node, choice in choices.items() if node in other]
        changed = sum(choice.here for choice in taken)
        before = sum(choice.here for choice in choices.values()) + sum(costs.cost(graph, node) for node in movers)
        if before - cost / _SCALE <= self.search.limits.noise * changed:
            return []
        return [site for choice in taken for site in choice.sites]

    def _choice(self, graph: Graph, node: Node, values: Sequence[int], layout: Layout) -> _Choice | None:
        """A node as one that may take the other layout; ``None`` where an output has no form there.

        Args:
            graph: the candidate.
            node: makes the values.
            values: those that are read.
            layout: the other one.
        """
        if node.is_opaque or not values or graph.tables.constant[node.values[0]]:
            return None
        forms: dict[int, _Form] = {}
        for value in values:
            form = self.form(graph, value, layout)
            if form is None:
                return None
            forms[value] = form
        inner = {n: price for form in forms.values() for n, price in form.inner.items()}
        back = {found[1]: forms[v].back for v in values if (found := graph.definition(v)) is not None}
        turned = frozenset[int]().union(*(form.turned for form in forms.values()))
        sites = tuple((form.direction, value) for value, form in forms.items())
        return _Choice(self.search.costs.cost(graph, node), sum(inner.values()), back, turned, sites)

    def _price_layouts(
        self,
        network: nx.DiGraph,
        graph: Graph,
        maker: _Maker,
        item: _Tensor,
        choices: Mapping[Node, _Choice],
        movers: Sequence[Node],
        layout: Layout,
    ) -> None:
        """A Transpose where some reader wants a tensor in another layout than it is made in; one serves all such readers."""
        if not item.readers and not item.turned and not isinstance(maker, tuple):
            return
        node, out = maker if isinstance(maker, tuple) else (None, 0)
        made: Hashable = _FIRST
        back = 0.0
        if node is not None and node in choices:
            made, back = node, choices[node].back[out]
        elif node is not None and node in movers and node.attrs[0][1] == layout.back:
            made, back = _OTHER, self.search.costs.cost(graph, node)
        elif not item.readers and not item.turned:
            return
        there = self._price_there(graph, item.value, layout) if item.readers or item.turned else 0.0
        readers: list[Hashable] = [*sorted(item.readers, key=lambda reader: reader.index)]
        if made != _OTHER and (readers or item.turned):
            wanted: Hashable = ("in the other layout", item.value)
            _connect(network, made, wanted, there)
            for reader in [*readers, *([_OTHER] if item.turned else [])]:
                _connect(network, wanted, reader, None)
        if made != _FIRST and (readers or item.as_it_is):
            wanted = ("in the first layout", item.value)
            _connect(network, wanted, made, back)
            for reader in [*readers, *([_FIRST] if item.as_it_is else [])]:
                _connect(network, reader, wanted, None)

    def _price_there(self, graph: Graph, value: int, layout: Layout) -> float:
        return self.search.costs.cost(graph, graph.tables.apply("Transpose", (("perm", layout.there),), [value]))

    def carry_out(self, candidate: Candidate, layout: Layout, chosen: Sequence[tuple[Direction, int]]) -> Candidate:
        """The candidate after the moves that give the chosen operators the other layout; transpositions that meet cancel."""
        graph, sites = candidate.graph, dict[Direction, list[Match]]()
        for direction, value in chosen:
            hits = [hit for hit in find_root_matches(graph, self.index[layout], value) if hit.direction is direction]
            sites.setdefault(direction, []).extend(match for hit in hits for match in join(direction, [[hit]]))
        while sites:
            before = candidate.graph.digest
            for direction in sorted(sites, key=lambda direction: direction.id):
                candidate = self.search.take(candidate, sites[direction], math.inf) or candidate
            sites = self._meeting(candidate.graph) if candidate.graph.digest != before else {}
        return candidate

    def _meeting(self, graph: Graph) -> dict[Direction, list[Match]]:
        """Where a transposition follows another that it may undo."""
        sites: dict[Direction, list[Match]] = {}
        for value in sorted({*graph.outputs}.union(*(node.inputs for node in graph.references))):
            found = graph.definition(value)
            if found is not None and found[0].op == "Transpose":
                for hit in find_root_matches(graph, self.cancelling, value):
                    sites.setdefault(hit.direction, []).extend(join(hit.direction, [[hit]]))
        return sites


def _connect(network: nx.DiGraph, tail: Hashable, head: Hashable, price: float | None) -> None:
    """An edge of so many microseconds, or one that no cut takes."""
    if price is None:
        network.add_edge(tail, head)
    else:
        network.add_edge(tail, head, capacity=round(_SCALE * price))


_CHOOSERS: WeakKeyDictionary[Search, _Chooser] = WeakKeyDictionary()


def layout_children(search: Search, candidate: Candidate) -> Iterator[Candidate]:
    """The candidates that the best choice of layouts gives, one for each other layout that pays.

    Args:
        search: its directions are the rules that layouts change by; its costs decide.
        candidate: whose layouts to choose.
    """
    if search not in _CHOOSERS:
        _CHOOSERS[search] = _Chooser(search)
    yield from _CHOOSERS[search].children(candidate)
