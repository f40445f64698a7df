"""Model graphs: a persistent map from value to node, over tables shared by every candidate.

A *value id* stands for what a tensor means, a :class:`Node` for one way to compute it. A substitution says how values are
computed from now on; it never renames a consumer, so a candidate shares everything with its parent but the changed
entries (design, Graphs). :class:`Tables` holds what never changes for a value: its type, whether it depends on constants
alone, its name in the ONNX file. :class:`Graph` is one candidate: which node defines each value, which nodes are live.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from immutables import Map

from mugraph.ops import Packed, get_operator
from mugraph.order import operands_first
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Attrs, attr_symbols

__all__ = ["OPAQUE", "Constant", "CycleError", "Definition", "Graph", "Node", "Tables"]

OPAQUE = "Opaque"
"""Operator name of a node that no record understands; it is emitted from its original ONNX node."""


class CycleError(ValueError):
    """A substitution would make a value depend on itself (TASO, figure 6)."""


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """An operator applied to values; compared by identity. Pure nodes are interned per model.

    Attributes:
        index: position in :attr:`Tables.nodes`; stable within a model.
        op: registry name, or :data:`OPAQUE`.
        inputs: operand values; of an opaque node also the outer values that its subgraphs capture, and of a control-flow node
            whose bodies were read, last, the results of these.
        values: the value ids first defined by this node, one an output.
        origin: index of the ONNX node it was read from, ``None`` for a node made by a substitution.
    """

    index: int
    op: str
    attrs: Attrs
    inputs: tuple[int, ...]
    values: tuple[int, ...]
    origin: int | None = None

    @property
    def is_opaque(self) -> bool:
        return self.op == OPAQUE


Definition = tuple[Node, int]
"""A node and the index of one of its outputs."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant tensor, loaded only when asked for."""

    type: TensorType
    load: Callable[[], np.ndarray]

    @staticmethod
    def of(array: np.ndarray, type_: TensorType) -> Constant:
        return Constant(type_, lambda: array)


@dataclass(slots=True)
class Tables:
    """The values, nodes and constants that all candidates of one model share; they are only ever added."""

    types: list[TensorType | None] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    constant: list[bool] = field(default_factory=list)
    """Per value: whether it depends on constants alone and is folded, so that it costs nothing at run time."""
    constants: dict[int, Constant] = field(default_factory=dict)
    sizes: dict[int, np.ndarray] = field(default_factory=dict)
    """Integer tensors of the file that shape arithmetic gives: entries are dimensions, not all of them numbers."""
    bodies: dict[int, int] = field(default_factory=dict)
    """Value to the number of the body of an If, Loop or Scan that computes it; constants, and the main graph's, are of none."""
    captured: dict[int, int] = field(default_factory=dict)
    """Value of a body, computed by no node, to the value around the body that it stands for."""
    nodes: list[Node] = field(default_factory=list)
    makers: dict[int, Definition] = field(default_factory=dict)
    """Value to the node that first made it."""
    packed: dict[int, tuple[int, Packed]] = field(default_factory=dict)
    """Constant to the constant of the file whose bytes it is, and how these stand for it."""
    _interned: dict[Any, Node] = field(default_factory=dict)
    _literals: dict[Any, int] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)
    _unpacked: dict[Any, int] = field(default_factory=dict)

    def new_value(self, type_: TensorType | None, name: str | None = None, constant: bool = False) -> int:
        self.types.append(type_)
        self.names.append(name)
        self.constant.append(constant)
        return len(self.types) - 1

    def add_constant(self, constant: Constant, name: str | None = None) -> int:
        value = self.new_value(constant.type, name, constant=True)
        self.constants[value] = constant
        return value

    def literal(self, array: np.ndarray, type_: TensorType) -> int:
        """A constant made by a substitution; equal ones are one value."""
        key = (type_, array.tobytes())
        if key not in self._literals:
            self._literals[key] = self.add_constant(Constant.of(array, type_))
            self._keys[self._literals[key]] = f"{type_} {array.tobytes().hex()}"
        return self._literals[key]

    def unpacked(self, value: int, packed: Packed) -> int:
        """The matrix that the bytes of a constant of the file stand for; the same one for all who read them alike."""
        packed = replace(packed, index=0)
        key = (value, packed)
        if key not in self._unpacked:
            stored = self.constants[value]
            matrix = self.add_constant(Constant(packed.type, lambda: packed.unpack(stored.load())))
            self._unpacked[key], self.packed[matrix] = matrix, key
            self._keys[matrix] = f"{self.key(value)} as {packed.type}"
        return self._unpacked[key]

    def small_constant(self, value: int, limit: int = 4096) -> np.ndarray | None:
        """The array of a constant of at most ``limit`` elements."""
        constant = self.constants.get(value)
        if constant is None or constant.type.size() > limit:
            return None
        return constant.load()

    def add_node(
        self, op: str, attrs: Attrs, inputs: Sequence[int], outputs: Sequence[int], origin: int | None = None, intern: bool = True
    ) -> Node:
        """Enters a node whose output values exist already. Later equal applications find the first one."""
        node = Node(len(self.nodes), op, attrs, tuple(inputs), tuple(outputs), origin)
        self.nodes.append(node)
        self.makers.update({value: (node, index) for index, value in enumerate(outputs)})
        if intern:
            self._interned.setdefault((op, repr(attrs), node.inputs), node)
        return node

    def label(self, node: Node) -> str:
        """A node as messages name it: its operator and the name of its first result."""
        name = next((name for value in node.values if (name := self.names[value]) is not None), "a new value")
        return f"{'a node' if node.is_opaque else node.op} that computes '{name}'"

    def key(self, value: int) -> str:
        """A name of a value that is stable across processes: the one in the file, or a digest of how the value was made.

        Value ids of a model that was read are stable, too; those that a search adds depend on its course.
        """
        return self.key_among(self._keys, value, self._key_in_file)

    def _key_in_file(self, value: int) -> str | None:
        """The key of a value that no substitution made."""
        if self.is_made_anew(value):
            return None
        within = f"@{self.bodies[value]}" if value in self.captured else ""
        return f"{self.names[value]}{within}" if self.names[value] else f"#{value}"

    def is_made_anew(self, value: int) -> bool:
        """Whether a substitution made the value: it stands in no file."""
        maker = self.makers.get(value)
        return maker is not None and maker[0].origin is None

    def key_among(self, keys: dict[int, str], value: int, own: Callable[[int], str | None]) -> str:
        """The key of a value among others: its own, or a digest of how it was made of values with keys.

        Args:
            keys: those that are known; what is found out is entered.
            own: asked of a value without a key; ``None`` where it was made anew and has none of its own.
        """
        if value in keys:
            return keys[value]

        def without_key(current: int) -> Sequence[int]:
            key = own(current)
            if key is None:
                return [operand for operand in self.makers[current][0].inputs if operand not in keys]
            keys[current] = key
            return ()

        for current in operands_first([value], without_key):
            if current not in keys:
                node, out = self.makers[current]
                text = "\0".join([node.op, repr(node.attrs), str(out), *(keys[operand] for operand in node.inputs)])
                keys[current] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return keys[value]

    def apply(self, op: str, attrs: Attrs, inputs: Sequence[int]) -> Node:
        """The interned application of a registry operator, typed.

        Raises:
            ShapeError, Undecided: the application is ill-typed or cannot be typed.
        """
        key = (op, repr(attrs), tuple(inputs))
        interned = self._interned.get(key)
        if interned is not None:
            return interned
        operand_types: list[TensorType] = []
        for value in inputs:
            type_ = self.types[value]
            assert type_ is not None, "a value of unknown type takes part in no substitution"
            operand_types.append(type_)
        types = get_operator(op).types(attrs, operand_types)
        values = [self.new_value(t, constant=self.folds(op, attrs, inputs)) for t in types]
        body = next((self.bodies[value] for value in inputs if value in self.bodies), None)
        if body is not None:
            self.bodies.update(dict.fromkeys(values, body))
        return self.add_node(op, attrs, inputs, values)

    def folds(self, op: str, attrs: Attrs, inputs: Sequence[int]) -> bool:
        """Whether the results of an application are constants: of constants, without sizes that only a run tells."""
        sized = any(attr_symbols(value) for _, value in attrs)
        return get_operator(op).runtime.folds and not sized and all(self.constant[value] for value in inputs)


_MASK = (1 << 64) - 1


def _mix(value: int, node: int) -> int:
    x = (value * 0x9E3779B97F4A7C15 + node * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """One candidate: an immutable value.

    Attributes:
        tables: shared by all candidates of the model.
        inputs, outputs: values at the model's boundary.
        definitions: value to what computes it, where that is not the node that first made it (:attr:`Tables.makers`).
        users: live value to the live nodes that read it.
        references: live node to the number of live values that it defines.
        others: node to the values that it defines beside those that it first made, live or not.
        digest: commutative sum over live values; equal for equal candidates of one model in one process.
        added, removed: live nodes gained and lost against the graph it was derived from.
    """

    tables: Tables
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    definitions: Map[int, Definition]
    users: Map[int, frozenset[Node]]
    references: Map[Node, int]
    others: Map[Node, frozenset[int]] = field(default_factory=Map)
    digest: int = 0
    added: frozenset[Node] = frozenset()
    removed: frozenset[Node] = frozenset()

    @staticmethod
    def build(tables: Tables, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
        """The first candidate, as the nodes entered in ``tables`` say; what no output needs is not live."""
        change = _Change(Graph(tables, tuple(inputs), tuple(outputs), Map(), Map(), Map()))
        for value in dict.fromkeys(outputs):
            change.enliven(value, change.lookup(value))
        return change.finish()

    def definition(self, value: int) -> Definition | None:
        """The node and output that compute the value; ``None`` for inputs and constants."""
        return self.definitions.get(value) or self.tables.makers.get(value)

    def type(self, value: int) -> TensorType | None:
        return self.tables.types[value]

    def is_live(self, value: int) -> bool:
        return bool(self.users.get(value)) or value in self.outputs

    def nodes(self) -> Iterator[Node]:
        """The live nodes, operands first, in an order that depends on the graph alone."""
        return operands_first(self.makers(self.outputs), lambda node: self.makers(node.inputs))

    def makers(self, values: Iterable[int]) -> list[Node]:
        """The nodes that compute some values, in order."""
        redefined, first = self.definitions.get, self.tables.makers.get
        nodes = []
        for value in values:  # not a comprehension, which is slower: a search walks through many graphs
            if definition := redefined(value) or first(value):
                nodes.append(definition[0])
        return nodes

    def content_digest(self) -> str:
        """Digest of what every live value is and how it is computed; stable across processes, unlike :attr:`digest`."""
        lines = []
        for node in self.references:
            made = [self.tables.key(value) for value in node.inputs]
            lines.append("\0".join([node.op, repr(node.attrs), str(node.origin), *made]))
        for value, (node, out) in self.definitions.items():
            if self.is_live(value):
                lines.append("\0".join([self.tables.key(value), self.tables.key(node.values[out])]))
        return hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=16).hexdigest()

    def substitute(self, changes: Mapping[int, Definition], independent: Collection[int] = ()) -> Graph:
        """The candidate in which each value of ``changes`` is computed as said.

        Args:
            changes: value to its new definition.
            independent: values known not to depend on any changed one; the search for cycles stops there. Operands of a
                match with one output are such, since its output depends on them.

        Raises:
            CycleError: a value would depend on itself.
        """
        change = _Change(self)
        change.redefine(changes, independent)
        return change.finish()


class _Change:
    """A batch of edits to a graph, on mutable copies of its persistent maps."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.tables = graph, graph.tables
        self.definitions = graph.definitions.mutate()
        self.users = graph.users.mutate()
        self.references = graph.references.mutate()
        self.others = graph.others.mutate()
        self.outputs = frozenset(graph.outputs)
        self.digest = graph.digest
        self.added: set[Node] = set()
        self.removed: set[Node] = set()

    def live(self, value: int) -> bool:
        return value in self.outputs or bool(self.users.get(value))

    def lookup(self, value: int) -> Definition | None:
        return self.definitions.get(value) or self.tables.makers.get(value)

    def redefine(self, changes: Mapping[int, Definition], independent: Collection[int]) -> None:
        """Sets all definitions, then counts the new ones before uncounting the old: what both need stays untouched."""
        replaced = [(value, self.lookup(value)) for value in changes if self.live(value)]
        for value, definition in changes.items():
            if (former := self.definitions.get(value)) is not None:
                self.others[former[0]] = self.others[former[0]] - {value}
            self.definitions[value] = definition
            self.others[definition[0]] = self.others.get(definition[0], frozenset()) | {value}
        self.check_cycles(changes, independent)
        for value, _ in replaced:
            self.enliven(value, changes[value])
        for value, old in replaced:
            self.retire(value, old)

    def enliven(self, value: int, definition: Definition | None) -> None:
        """Counts a live value's definition, and whatever becomes live by it."""
        stack = [(value, definition)]
        while stack:
            current, maker = stack.pop()
            if maker is None:
                continue
            node, output = maker
            self.digest = (self.digest + _mix(current, node.index * 64 + output)) & _MASK
            count = self.references.get(node, 0)
            self.references[node] = count + 1
            if count:
                continue
            (self.removed.discard if node in self.removed else self.added.add)(node)
            for operand in dict.fromkeys(node.inputs):
                fresh = not self.live(operand)
                self.users[operand] = self.users.get(operand, frozenset()) | {node}
                if fresh:
                    stack.append((operand, self.lookup(operand)))

    def retire(self, value: int, definition: Definition | None) -> None:
        """Uncounts a definition that no longer serves its value, and whatever dies by it."""
        stack = [(value, definition)]
        while stack:
            current, maker = stack.pop()
            if maker is None:
                continue
            node, output = maker
            self.digest = (self.digest - _mix(current, node.index * 64 + output)) & _MASK
            count = self.references[node]
            if count > 1:
                self.references[node] = count - 1
                continue
            del self.references[node]
            (self.added.discard if node in self.added else self.removed.add)(node)
            for operand in dict.fromkeys(node.inputs):
                rest = self.users[operand] - {node}
                if rest:
                    self.users[operand] = rest
                else:
                    del self.users[operand]
                if not self.live(operand):
                    stack.append((operand, self.lookup(operand)))

    def check_cycles(self, changed: Iterable[int], independent: Collection[int]) -> None:
        """Looks for a path from a changed value back to itself, upwards from its new definition."""
        for value in changed:
            seen = set(independent)
            maker = self.lookup(value)
            stack = list(maker[0].inputs) if maker is not None else []
            while stack:
                current = stack.pop()
                if current == value:
                    raise CycleError(f"value {self.tables.names[value] or value} would depend on itself")
                if current in seen or self.tables.constant[current]:
                    continue
                seen.add(current)
                inner = self.lookup(current)
                if inner is not None:
                    stack.extend(inner[0].inputs)

    def finish(self) -> Graph:
        return Graph(
            self.tables,
            self.graph.inputs,
            self.graph.outputs,
            self.definitions.finish(),
            self.users.finish(),
            self.references.finish(),
            self.others.finish(),
            self.digest,
            frozenset(self.added),
            frozenset(self.removed),
        )
