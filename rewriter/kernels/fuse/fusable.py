"""Fusable sets: nodes of a model that may become one kernel each.

A fusable set is a convex set of nodes. It is seeded at a product, an attention or a reduction along rows, and grown
(:mod:`rewriter.kernels.fuse.growth`): upwards by what is computed of the seed's operands (the prologue: movements, then
elementwise operators, then statistics of rows), downwards by what is computed of its result (the epilogue), a node at a time in
the order of the model. Every stage at which the set has one result, or a few, is proposed: which of the nested variants is used
is for the search to say, by what they cost. A reduction of all entries to one is a seed of its own, with the elementwise
operators before it and, on its one entry, behind it.

A fusable set is a term over the values that it reads, so that a kernel built of it is one side of a rule and the set the other:
it is matched, applied, recorded and replayed as rules are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.domains.base import BYTES, FLOATS, WHOLE_NUMBERS
from mugraph.graph import Graph, Node
from mugraph.ops import traits_of
from mugraph.ops.quantized import INTEGER_PRODUCT
from mugraph.terms.shape import DataType, TensorType, plain_symbol
from mugraph.terms.term import Term, attr_symbols, const, make, var
from rewriter.kernels.fuse.growth import GrownNodes, SetGrowth
from rewriter.kernels.fuse.kinds import FLOATS_AND_TRUTH, NodeKinds, is_computed
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.turned import is_turned
from rewriter.search.match import resolve

__all__ = ["FusableSet", "fusable_set", "propose"]


@dataclass(frozen=True)
class FusableSet:
    """Nodes as terms over what they read.

    Attributes:
        roots: values that the set makes for others.
        terms: what they are, over x0, x1, ...
        operands: variable to value.
        types: variable to type.
        nodes: how many nodes it has.
    """

    roots: tuple[int, ...]
    terms: tuple[Term, ...]
    operands: Mapping[str, int]
    types: Mapping[str, TensorType]
    nodes: int

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal where sets have one look: operators, attributes, numbers and types."""
        return (tuple(term.digest for term in self.terms), tuple((n, str(t)) for n, t in self.types.items()))


def propose(graph: Graph) -> Iterator[FusableSet]:
    """The fusable sets of a graph, of every look the first."""
    reading = GraphReading(graph)
    kinds = NodeKinds(reading)
    seen = set()
    for grown in SetGrowth(reading, kinds).all():
        fusable = fusable_set(reading, kinds, grown)
        if fusable is not None and fusable.key not in seen:
            seen.add(fusable.key)
            yield fusable


def fusable_set(reading: GraphReading, kinds: NodeKinds, grown: GrownNodes) -> FusableSet | None:
    """Nodes as a fusable set, without movements that a kernel could not follow; ``None`` where they are none."""
    return _fusable(_with_sizes_told(grown, reading, kinds), reading, kinds)


def _with_sizes_told(grown: GrownNodes, reading: GraphReading, kinds: NodeKinds) -> GrownNodes:
    """A set without the movements that ask for sizes which no operand would tell: behind them, their results do.

    A kernel knows the sizes of a run by the dimensions of what it reads: not batch and positions where rows are all of them.
    """
    kept = grown.nodes
    while True:
        operands = {v for node in kept for v in node.inputs if (maker := reading.maker(v)) is None or maker not in kept}
        types = [type_ for type_ in map(reading.graph.type, operands) if type_ is not None]
        told = {name for type_ in types for dim in type_.shape if (name := plain_symbol(dim)) is not None}
        lowest = {
            node
            for node in kept & grown.prologue
            if kinds[node] == "movement"
            and operands.issuperset(node.inputs)
            and not {s for _, value in node.attrs for s in attr_symbols(value)} <= told
        }
        if not lowest:
            return replace(grown, nodes=kept, prologue=grown.prologue & kept)
        kept -= lowest


def _fusable(grown: GrownNodes, reading: GraphReading, kinds: NodeKinds) -> FusableSet | None:
    """Nodes as terms, where they have no more results than asked for and more than movements in them."""
    working = [node for node in grown.nodes if kinds[node] != "movement"]
    roots = reading.exposed(grown.nodes - grown.prologue)
    if not 1 <= len(roots) <= grown.results:
        return None
    appends = all(node.op == "Concat" for node in grown.nodes - grown.prologue)
    if not appends and len(working) < 2 and all(kinds[node] == "pointwise" for node in working):
        return None
    reader = _TermReader(reading, grown.nodes)
    terms = reader.read(roots)
    if any(term.is_var or term.op == "Const" for term in terms):
        return None
    types = {}
    for name, value in reader.operands.items():
        type_, maker = reading.graph.type(value), reading.maker(value)
        if type_ is None or (maker is not None and maker.op == INTEGER_PRODUCT):  # its sums become floats where they are made
            return None
        if type_.dtype == DataType.INT8 and not reading.graph.tables.constant[value]:  # bytes are multiplied by stored ones
            return None
        types[name] = type_
    written = {type_.dtype for type_ in map(reading.graph.type, roots) if type_ is not None}
    if not (written <= FLOATS_AND_TRUTH and {type_.dtype for type_ in types.values()} <= FLOATS_AND_TRUTH | WHOLE_NUMBERS):
        return None
    return FusableSet(tuple(roots), terms, reader.operands, types, len(grown.nodes))


class _TermReader:
    """Reads values as terms over what some nodes read.

    Attributes:
        operands: variable to value, of what was read so far.
    """

    def __init__(self, reading: GraphReading, nodes: frozenset[Node]) -> None:
        self._reading, self._graph, self._nodes = reading, reading.graph, nodes
        self._multiplies_integers = any(node.op == INTEGER_PRODUCT for node in nodes)
        self._names: dict[int, str] = {}
        self._terms: dict[int, Term] = {}

    @property
    def operands(self) -> dict[str, int]:
        return {name: value for value, name in self._names.items()}

    def read(self, roots: list[int]) -> tuple[Term, ...]:
        """The terms of some values."""
        terms, graph = self._terms, self._graph
        stack = [(resolve(graph, root), False) for root in reversed(roots)]
        while stack:
            value, ready = stack.pop()
            if value in terms:
                continue
            node = self._reading.maker(value)
            if node is None or node not in self._nodes:
                terms[value] = self._leaf(value)
                continue
            inputs = [resolve(graph, v) for v in node.inputs]
            if not ready:
                stack.append((value, True))
                stack += [(v, False) for v in reversed(inputs)]
                continue
            definition = graph.definition(value)
            assert definition is not None
            operands = [terms[v] for v in inputs]
            if self._reads_numbers(node):
                operands = [self._read(v) if term.op == "Const" else term for v, term in zip(inputs, operands, strict=True)]
            terms[value] = make(node.op, operands, node.attrs, definition[1])
        return tuple(terms[resolve(graph, root)] for root in roots)

    def _reads_numbers(self, node: Node) -> bool:
        """Whether a node takes numbers as they are stored.

        What moves one moves it as what it is: a number by itself has no element type. A scale of integers is that of some weights
        alone, and what multiplies these may serve others.
        """
        if traits_of(node.op).addresses or any((t := self._graph.type(v)) is not None and t.dtype in BYTES for v in node.inputs):
            return True
        return self._multiplies_integers and self._reading.has_one_entry(node)

    def _leaf(self, value: int) -> Term:
        """The term of a value that is not computed by the nodes: a number, a mask, a movement of a constant, a variable."""
        graph, tables = self._graph, self._graph.tables
        definition = graph.definition(value)
        maker = None if definition is None else definition[0]
        if maker is not None and is_computed(maker.op):
            return make(maker.op, (), maker.attrs)
        number = tables.small_constant(value, 1)
        if number is not None and number.size == 1 and value in tables.constants:
            type_ = tables.types[value]
            if type_ is not None and type_.dtype == DataType.BOOL:
                return const(bool(number.reshape(())))
            if type_ is not None and type_.dtype in FLOATS:
                return const(float(number.reshape(())))
        if maker is not None and maker.op == "Expand" and tables.constant[value]:
            stored = self._leaf(resolve(graph, maker.inputs[0]))
            if stored.op != "Const":  # read as it is stored, not as many times as it is repeated
                return make("Expand", (stored,), maker.attrs)
        if maker is not None and is_turned(graph, value):  # to be read by columns
            return make("Transpose", (self._read(resolve(graph, maker.inputs[0])),), maker.attrs)
        return self._read(value)

    def _read(self, value: int) -> Term:
        """A value as a variable."""
        return var(self._names.setdefault(value, f"x{len(self._names)}"))
