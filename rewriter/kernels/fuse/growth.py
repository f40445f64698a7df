"""Growth of fusable sets from their seeds: the prologue upwards, the epilogue downwards, a node at a time."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from mugraph.graph import Node
from mugraph.terms.shape import TensorType
from rewriter.kernels.fuse.kinds import NodeKinds, cuts
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.fuse.terms import is_elementwise
from rewriter.search.match import resolve

__all__ = ["GrownNodes", "SetGrowth"]

_MOST_NODES = 60
"""Of a set, where it stops growing."""
_MOST_RESULTS = 3
_MOST_SHARING = 4
"""Products in one kernel."""
_LEVELS = {"movement": 0, "pointwise": 1, "row": 2}
"""From which level on a prologue takes nodes of a kind."""


@dataclass(frozen=True, slots=True)
class GrownNodes:
    """The nodes of a set at one stage of its growth.

    Attributes:
        nodes: all of them.
        prologue: those whose values others may read, who then compute them for themselves.
        results: how many values of the rest others may read.
    """

    nodes: frozenset[Node]
    prologue: frozenset[Node]
    results: int


class SetGrowth:
    """Grows sets of a graph's nodes, each of which may become one kernel.

    A set is convex: no operand of one of its nodes depends on the set by way of nodes outside. Whether it has as many results as
    it may have, and more than movements in it, is for the one who reads it as terms to say.
    """

    def __init__(self, reading: GraphReading, kinds: NodeKinds) -> None:
        self._reading, self._kinds = reading, kinds

    def all(self) -> Iterator[GrownNodes]:
        """Every stage of every seed, in the order of the model, then products that share an operand, then what caches grow by."""
        for node in self._reading.nodes:
            kind = self._kinds[node]
            if kind == "other" or self._reading.is_constant(node):
                continue
            if kind in ("product", "attention"):
                attends = kind == "product" and self._kinds.is_weighted(node)
                results = self._reading.results(node)
                levels = [(0, True, True), (1, True, True), (2, True, True)]
                if attends:  # a cache with something new may be read from where the model returns it
                    levels[2:2] = [(2, False, True), (2, False, False)]
                for level, shares_rows, repeats_results in levels:
                    start = self.upwards({node}, level, attends=attends, shares_rows=shares_rows, repeats_results=repeats_results)
                    if results == 1:
                        yield from self._downwards({node}, start, level)
                    else:  # what one operator gives comes together: an attention and the cache that it appends to
                        yield GrownNodes(start, start - {node}, results)
            elif kind == "total":
                yield from self._totals(node)
            elif kind in ("row", "pointwise"):
                whole = self.upwards({node}, 2 if kind == "row" else 1, alone=True)
                yield from self._downwards(whole, whole, 1, _MOST_RESULTS)

        for group in self._sharing():
            tails = [self._tail(node) for node in group]
            for parts in (set(group), set().union(*tails)):
                for level in (0, 2):
                    start = self.upwards(set(group), level)
                    yield GrownNodes(start | parts, start - set(group), len(group))
        for group in self._appending():
            for level in (1, 2):
                start = self.upwards(set(group), level)
                yield GrownNodes(start, start - set(group), len(group))

    def _totals(self, total: Node) -> Iterator[GrownNodes]:
        """A reduction of all entries with the nodes that compute them, and with one after the other of its result's readers.

        A node that computes them belongs to it where nothing else reads it, as does a cast, which costs nothing a second time.
        Only casts stand between a question for infinities and the values in memory: a kernel computes in 32 bits, where others
        overflow.
        """
        reading = self._reading
        nodes, stack = {total}, [(value, False) for value in total.inputs]
        while stack:
            value, asked = stack.pop()
            maker = reading.maker(value)
            if maker is None or maker in nodes or self._kinds[maker] not in ("movement", "pointwise", "flag"):
                continue
            if maker.op != "Cast" and (asked or cuts(maker.op) or not nodes.issuperset(reading.readers(maker))):
                continue
            nodes.add(maker)
            stack += [(v, asked or maker.op == "IsInf") for v in maker.inputs]
        prologue = frozenset(nodes - {total})
        yield GrownNodes(frozenset(nodes), prologue, 1)
        last = total
        while len(nodes) < _MOST_NODES:
            readers = [node for node in reading.readers(last) if node not in nodes]
            if len(readers) != 1 or not is_elementwise(readers[0].op) or not reading.has_one_entry(readers[0]):
                return
            (last,) = readers
            if last.is_opaque or reading.depends_on(last, nodes):
                return
            nodes.add(last)
            yield GrownNodes(frozenset(nodes), prologue, 1)

    def _sharing(self) -> Iterator[list[Node]]:
        """Products with weights that share their left operand and have results of one type."""
        graph = self._reading.graph
        groups: dict[tuple[int, str], list[Node]] = {}
        for node in self._reading.nodes:
            if self._kinds[node] == "product" and self._reading.maker(node.inputs[1]) is None and len(node.values) == 1:
                key = (resolve(graph, node.inputs[0]), str(graph.type(node.values[0])))
                groups.setdefault(key, []).append(node)
        for group in groups.values():
            if 2 <= len(group) <= _MOST_SHARING:
                yield group

    def _appending(self) -> Iterator[list[Node]]:
        """What the model returns as a cache with something new: of one type, with new parts of one source.

        The keys and the values of a layer are two such. A cache that grows is concatenated; one of a fixed size is a tensor that
        the model reads, with some entries chosen anew.
        """
        reading = self._reading
        groups: dict[tuple[object, ...], list[Node]] = {}
        for node in reading.nodes:
            new = None if reading.outputs.isdisjoint(reading.live(node)) else self._appended(node)
            if new is not None:
                key = (self._source(new), node.op, node.attrs, str(reading.graph.type(node.values[0])))
                groups.setdefault(key, []).append(node)
        for group in groups.values():
            if len(group) <= _MOST_RESULTS:
                yield group

    def _appended(self, node: Node) -> int | None:
        """The new part of a cache that a node makes; ``None`` where it makes none."""
        graph, kind = self._reading.graph, self._kinds[node]
        if node.op == "Concat" and kind == "movement":
            return node.inputs[-1]
        if node.op == "Where" and kind == "pointwise":
            _, one, other = (resolve(graph, value) for value in node.inputs)
            for kept, new in ((other, one), (one, other)):
                if kept in graph.inputs and graph.type(kept) == graph.type(node.values[0]):
                    return new
        return None

    def _source(self, value: int) -> int:
        """What a value is computed of by movements, elementwise operators and along rows, and by a product with weights."""
        reading = self._reading
        while (maker := reading.maker(value)) is not None and self._kinds[maker] in ("movement", "pointwise", "row", "product"):
            computed = [v for v in maker.inputs if reading.maker(v) is not None]
            value = next(iter(computed or maker.inputs), value)
            if not computed or self._kinds[maker] == "product":
                break
        return resolve(reading.graph, value)

    def _tail(self, product: Node) -> set[Node]:
        """A product with the nodes that are computed of it alone: bias, scale, the split into heads.

        A scale may be one of what gives the product's operands beside these, such as a quantiser.
        """
        reading = self._reading
        tail, last, before = {product}, product, set(self._reading.makers(product))
        while True:
            readers = reading.readers(last)
            if len(readers) != 1 or reading.results(last) != 1 or not reading.outputs.isdisjoint(reading.live(last)):
                return tail
            (last,) = readers
            beside = self._beside(last, tail)
            whole = (tail | beside).issuperset(reading.makers(last))
            whole &= all((tail | beside | before).issuperset(reading.makers(node)) for node in beside)
            if self._kinds[last] not in ("movement", "pointwise") or cuts(last.op) or not whole:
                return tail
            tail |= {last} | beside

    def upwards(
        self,
        seed: Set[Node],
        level: int,
        attends: bool = False,
        alone: bool = False,
        shares_rows: bool = True,
        repeats_results: bool = True,
    ) -> frozenset[Node]:
        """A seed with the nodes that compute its operands.

        On the way up it may pass one value that others read, too, which is then computed more than once.

        Args:
            seed: the nodes to start from.
            level: 0 takes movements, 1 elementwise operators, too, 2 reductions of rows as well.
            attends: the seed weighs values by a softmax: the nodes that compute the weights belong to it, the product of queries
                and keys included.
            alone: only nodes that nothing else reads.
            shares_rows: a reduction of rows may be one that is computed elsewhere, too.
            repeats_results: so may what the model returns.
        """
        reading = self._reading
        budgets = dict.fromkeys(seed, 0 if alone else 1)
        weighing = {value for node in seed for value in node.inputs[:1]} if attends else set[int]()
        twice = set[Node]()  # what is computed elsewhere, too
        changed = True
        while changed and len(budgets) < _MOST_NODES:
            changed = False
            for shared in (False, True):
                for reader, budget in list(budgets.items()):
                    for value in reader.inputs:
                        node = reading.maker(value)
                        if node is None or node in budgets:
                            continue
                        weighs = value in weighing
                        if not self._belongs(node, level, weighs):
                            continue
                        rest = budget if weighs or budgets.keys() >= set(reading.readers(node)) else budget - 1
                        if rest < 0 or (rest < budget and not shared):
                            continue
                        is_result = not reading.outputs.isdisjoint(reading.live(node))
                        if is_result and not (repeats_results or weighs):
                            continue
                        if reader in twice or is_result or rest < budget:
                            if self._kinds[node] == "row" and not (shares_rows or weighs):
                                continue
                            twice.add(node)
                        budgets[node] = rest
                        changed = True
                        if weighs and self._kinds[node] != "product":
                            # Masks and biases are read, not computed: the weights' own path has their shape.
                            type_ = reading.graph.type(node.values[0])
                            weighing |= {v for v in node.inputs if self._has_shape_of(v, type_)}
                if changed:
                    break
        return frozenset(budgets)

    def _has_shape_of(self, value: int, type_: TensorType | None) -> bool:
        value_type = self._reading.graph.type(value)
        return value_type is not None and type_ is not None and value_type.shape == type_.shape

    def _belongs(self, node: Node, level: int, weighs: bool) -> bool:
        """Whether the prologue of a level takes a node; a node that computes the weights of an attention it takes always."""
        kind = self._kinds[node]
        if weighs:
            return kind in ("movement", "pointwise", "row", "product")
        if node.op == "Concat" and level == 0:
            return False
        return kind in _LEVELS and _LEVELS[kind] <= level

    def _downwards(self, core: Set[Node], start: frozenset[Node], level: int, results: int = 1) -> Iterator[GrownNodes]:
        """A set, and with one reader of its results after the other.

        Args:
            core: the nodes whose values only the set may read, but for its results.
            start: the core and its prologue.
            level: of the prologue of a further product that a reader takes.
            results: how many values others may read.
        """
        reading = self._reading
        nodes, prologue = set(start), start - core
        blocked: set[Node] = set()
        yield GrownNodes(frozenset(nodes), prologue, results)
        while len(nodes) < _MOST_NODES:
            following = {reader for node in nodes - prologue for reader in reading.readers(node)} - nodes - blocked
            if not following:
                return
            node = min(following, key=reading.place.__getitem__)
            if self._kinds[node] not in (("movement", "pointwise", "row") if results > 1 else ("movement", "pointwise")):
                blocked.add(node)
                if len(reading.exposed(nodes - prologue)) > results:
                    return
                continue
            if cuts(node.op) or reading.depends_on(node, nodes):
                blocked.add(node)
                continue
            for sibling in self._siblings(node, nodes) if results == 1 else ():
                yield GrownNodes(frozenset(nodes | {node} | sibling), prologue, results)
                larger = self.upwards(sibling, level)
                yield GrownNodes(frozenset(nodes | {node} | larger), prologue | (larger - sibling), results)
            nodes.add(node)
            nodes |= self._beside(node, nodes)
            if self._kinds[node] != "movement" or not self._goes_on(node, nodes):
                yield GrownNodes(frozenset(nodes), prologue, results)

    def _goes_on(self, movement: Node, nodes: set[Node]) -> bool:
        """Whether the one node that reads a moved value may join the set, too: the movement alone is no stage then."""
        readers = [reader for reader in self._reading.readers(movement) if reader not in nodes]
        if len(readers) != 1 or self._kinds[readers[0]] not in ("movement", "pointwise"):
            return False
        return not self._reading.depends_on(readers[0], nodes)

    def _beside(self, node: Node, nodes: set[Node]) -> set[Node]:
        """The nodes that compute the other operands of a node, where they are elementwise and serve nothing else."""
        beside: set[Node] = set()
        stack = list(node.inputs)
        while stack:
            maker = self._reading.maker(stack.pop())
            if maker is None or maker in nodes or maker in beside or self._kinds[maker] not in ("movement", "pointwise"):
                continue
            if maker.op != "Concat" and (nodes | beside | {node}).issuperset(self._reading.readers(maker)):
                beside.add(maker)
                stack += maker.inputs
        return beside

    def _siblings(self, node: Node, nodes: set[Node]) -> list[frozenset[Node]]:
        """Further products that a node of the epilogue takes, with the nodes between, and the product before such a one."""
        siblings: list[frozenset[Node]] = []
        for value in node.inputs:
            path: list[Node] = []
            maker = self._reading.maker(value)
            while maker is not None and maker not in nodes and self._kinds[maker] in ("movement", "pointwise"):
                path.append(maker)
                maker = next(iter(self._reading.makers(maker)), None)
            if maker is not None and maker not in nodes and self._kinds[maker] == "product":
                siblings.append(frozenset({*path, maker}))
                inner = self._reading.maker(maker.inputs[0])
                if inner is not None and self._kinds[inner] == "product":
                    siblings.append(frozenset({*path, maker, inner}))
        return siblings
