"""One of two models that are compared: the nodes of its main graph, and what they compute on some inputs in float64."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from modeldiff.limits import RunLimit
from mugraph.domains.base import FLOATS
from mugraph.graph import Node
from mugraph.onnx import Model
from mugraph.onnx.kinds import drawing_nodes, opaque_kind
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import (
    DataType,
    DerivedSymbol,
    ShapeError,
    TensorType,
    Undecided,
    plain_symbol,
    symbol,
    symbols_within,
)
from mugraph.terms.term import Attrs, attr_symbols, make_attrs, walk
from rewriter.reference import NoReference, bind_shape, rounding_decisions
from rewriter.reference.nodes import RunTensors, computed, widen
from rewriter.runtime_env import RuntimeFailure

__all__ = ["Arrays", "ComparedModel", "content_digest", "defining_numbers", "rounding_of"]

Arrays = list[np.ndarray]
"""A value on each of the inputs that models are compared on, floats in float64."""

_HELD_BY = {
    DataType.FLOAT: frozenset({DataType.FLOAT16, DataType.BFLOAT16}),
    DataType.DOUBLE: frozenset({DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT}),
}
"""Types all of whose numbers another has."""


class ComparedModel:
    """A model whose nodes can be evaluated one by one.

    What a control-flow node computes is one step: its bodies are not looked into.

    Args:
        model: as it was read.
        feeds: inputs by name, of this model.
        usual: how many of them, the first ones, are of the usual scale and sizes; the others are probes.
        limit: of nodes that onnxruntime runs by themselves.

    Attributes:
        failed: numbers of the probes on which some node cannot be evaluated that can on the usual inputs.
        nodes: of the main graph, operands first, and what computes tensors of which they are told a size alone.
        place: of each node in that order.
        drawing: those that draw random numbers: of two that are alike neither is the other.
    """

    def __init__(self, model: Model, feeds: Sequence[Mapping[str, np.ndarray]], usual: int, limit: RunLimit) -> None:
        self._limit = limit
        self.usual, self.failed, self._feeds = usual, set[int](), feeds
        self.model, self.graph, self.tables = model, model.graph, model.graph.tables
        self._results = {value for bodies in model.bodies.values() for body in bodies for value in body.outputs}
        self._kind = opaque_kind(model)
        self._sized: dict[str, tuple[int, int]] = {}
        for value, type_ in enumerate(self.tables.types):
            if value not in self.tables.bodies and value not in self.tables.captured:
                for axis, dim in enumerate(() if type_ is None else type_.shape):
                    if (size := plain_symbol(dim)) is not None:
                        self._sized.setdefault(size, (value, axis))
        self.nodes = list(self._ordered())
        self.drawing = drawing_nodes(model, self.nodes)
        self.place = {node: number for number, node in enumerate(self.nodes)}
        self._runs = [RunTensors(model, feed, exact=True) for feed in feeds]
        self._deciding, self._upstream = rounding_decisions(self.graph, self.nodes)
        self._fed = [RunTensors(model, feed, exact=False) for feed in feeds] if self._upstream else []
        self._typed: dict[int, Arrays] = {}
        self._digests: dict[int, bytes] = {}

    def _ordered(self) -> Iterator[Node]:
        entered: set[Node] = set()
        stack = [(d[0], False) for v in reversed(self.graph.outputs) if (d := self.graph.definition(v)) is not None]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in entered:
                entered.add(node)
                stack.append((node, True))
                made = (self.graph.definition(value) for value in reversed(self.rests_on(node)))
                stack.extend((maker[0], False) for maker in made if maker is not None and maker[0] not in entered)

    def operands(self, node: Node) -> Sequence[int]:
        """What a node reads in the main graph; results of its bodies are no operands."""
        return [v for v in node.inputs if v not in self._results] if node.is_opaque else node.inputs

    def rests_on(self, node: Node) -> Sequence[int]:
        """What a node reads, and the tensors of which it is told a size: as many as are not zero, for instance."""
        sized = (self.sized(size) for size in self.sizes_of(node))
        told = [place[0] for place in sized if place is not None and place[0] < min(node.values)]
        return (*self.operands(node), *told) if told else self.operands(node)

    def sizes_of(self, node: Node) -> Sequence[str]:
        """The dimension symbols in a node's attributes, those that are functions of others as these."""
        within = {s for _, value in node.attrs for name in attr_symbols(value) for s in symbols_within(symbol(name))}
        return sorted(size for size in within if not isinstance(size, DerivedSymbol))

    def sized(self, size: str) -> tuple[int, int] | None:
        """The first tensor that has a symbol among its dimensions, and at which axis: a name means nothing in another model."""
        return self._sized.get(size)

    def kind(self, node: Node, attrs: Attrs) -> Hashable:
        """Equal for nodes, of whichever model, that compute the same of equal operands.

        Args:
            attrs: those of the node, with dimension symbols that mean the same in both models.
        """
        return self._kind(node) if node.is_opaque else (node.op, repr(attrs))

    def label(self, node: Node) -> str:
        """The node as its file names it."""
        origin = None if node.origin is None else self.model.origins[node.origin]
        if origin is None:
            return self.tables.label(node)
        return f"{origin.op_type} '{origin.name or next(filter(None, origin.output), '')}'"

    def is_conditional(self, node: Node) -> bool:
        """Whether the first operand of a node says which of its bodies it runs."""
        return node.origin is not None and node.is_opaque and self.model.origins[node.origin].op_type == "If"

    def name(self, value: int) -> str:
        """The value as its file names it."""
        return self.tables.names[value] or f"value {value}"

    def made(self, value: int) -> int:
        """The value behind Identity nodes."""
        while (definition := self.graph.definition(value)) is not None and definition[0].op == "Identity":
            value = definition[0].inputs[0]
        return value if definition is None else definition[0].values[definition[1]]

    def maker(self, value: int) -> Node | None:
        """The node that computes a value, Identity nodes apart."""
        definition = self.graph.definition(self.made(value))
        return None if definition is None else definition[0]

    def constant_key(self, value: int) -> Hashable | None:
        """Equal for stored tensors, of whichever model, that are the same; ``None`` for other values."""
        digest, stored = self.digest(value), self.tables.constants.get(value)
        return None if digest is None or stored is None else (stored.type.dtype, tuple(stored.type.shape), digest)

    def digest(self, value: int) -> bytes | None:
        """That of a stored tensor's entries in order; ``None`` for other values."""
        stored = self.tables.constants.get(value)
        if stored is not None and value not in self._digests:
            self._digests[value] = content_digest(stored.load())
        return self._digests.get(value)

    def has_rounded_numbers(self, node: Node) -> bool:
        """Whether a node's definition has numbers, not among its attributes, that a model which spells it out has rounded.

        √(2/π) in a Gelu is one: as a stored tensor of float32 it is 3e-8 away.
        """
        types = [type_ for type_ in map(self.graph.type, node.inputs) if type_ is not None]
        if node.is_opaque or len(types) < len(node.inputs):
            return False
        try:
            return any(number != float(np.float32(number)) for number in defining_numbers(node.op, node.attrs, types))
        except (ShapeError, Undecided):
            return False

    def leaf(self, value: int) -> Arrays | None:
        """An input or a stored tensor; ``None`` where nothing is known of it."""
        stored = self.tables.constants.get(value)
        if stored is not None:
            return [widen(stored.load())] * len(self._runs)
        known = [run.by_value.get(value) for run in self._runs]
        return None if any(array is None for array in known) else [np.asarray(array) for array in known]

    def typed(self, value: int) -> Arrays | None:
        """A value in the model's own types, where integers that rounding decides rest on it; ``None`` elsewhere."""
        made = self.made(value)
        stored = self.tables.constants.get(made)
        if stored is not None:
            return [stored.load()] * len(self._runs)
        fed = [run.by_value.get(made) for run in self._fed]
        return self._typed.get(made) if not fed or any(array is None for array in fed) else [np.asarray(array) for array in fed]

    def evaluate(self, node: Node, operands: Sequence[Arrays], typed: Sequence[Arrays | None]) -> list[Arrays]:
        """A node's results from given operands. Raises NoReference.

        Integers that rounding decides, as the buckets of positions in T5, are those that the model's own types give, as in the
        reference of a run: the nearest ones to other reals would be of another function.

        Args:
            typed: the operands in the model's own types, as far as they are known.
        """
        if node in self.drawing:
            raise NoReference(f"{self.label(node)} draws random numbers")
        bare, narrow = replace(node, inputs=tuple(self.operands(node))), [array for array in typed if array is not None]
        followed = node in self._upstream and len(narrow) == len(operands)
        results: list[Arrays] = [[] for _ in node.values]
        own: list[Arrays] = [[] for _ in node.values]
        for number, run in enumerate(self._runs):
            arrays: Sequence[np.ndarray] = ()
            try:
                if followed:
                    arrays = self._computed(bare, [array[number] for array in narrow], run, exact=False)
                    for kept, array in zip(own, arrays, strict=True):
                        kept.append(np.asarray(array))
                if not followed or node not in self._deciding:
                    arrays = self._computed(bare, [operand[number] for operand in operands], run, exact=True)
            except NoReference:
                self.failed |= {number} if number >= self.usual else set()
                raise
            for value, result, array in zip(node.values, results, arrays, strict=True):
                result.append(self._rounded(node, np.asarray(array)))
                self.learn(value, number, result[-1])
        if followed:
            self._typed.update(zip(node.values, own, strict=True))
        return results

    def _computed(self, node: Node, operands: Sequence[np.ndarray], run: RunTensors, exact: bool) -> Sequence[np.ndarray]:
        """A node's results. Raises NoReference, also where onnxruntime runs it and that takes too long."""
        if not node.is_opaque:
            return computed(self.model, self.graph, node, operands, run, exact)
        try:
            with self._limit.limited():
                return computed(self.model, self.graph, node, operands, run, exact)
        except RuntimeFailure as problem:
            raise NoReference(f"the reference cannot be computed: {problem}") from problem

    def in_own_types(self, nodes: Sequence[Node], value: int, number: int, read: Callable[[int], np.ndarray]) -> np.ndarray:
        """What some nodes, operands first, compute of a value on one of the inputs in the model's own types. Raises NoReference.

        Args:
            read: a value that none of them computes, in float64.
        """
        run = RunTensors(self.model, self._feeds[number], exact=False)
        run.sizes.update(self._runs[number].sizes)
        arrays: dict[int, np.ndarray] = {}
        for node in nodes:
            operands = self.operands(node)
            for made in map(self.made, operands):
                if made not in arrays:
                    type_, array = self.graph.type(made), read(made)
                    with np.errstate(over="ignore"):
                        arrays[made] = array if type_ is None else array.astype(type_.dtype.numpy())
            given = [arrays[self.made(operand)] for operand in operands]
            with np.errstate(all="ignore"):
                results = self._computed(replace(node, inputs=tuple(operands)), given, run, exact=False)
            arrays.update(zip(node.values, map(np.asarray, results), strict=True))
        return arrays[self.made(value)]

    def rounds_to(self, node: Node) -> DataType | None:
        """The type to which a node rounds: of a Cast between floats to one that does not hold all numbers of the other."""
        if node.op != "Cast":
            return None
        given, made = (self.graph.type(value) for value in (node.inputs[0], node.values[0]))
        return None if given is None or made is None else rounding_of(given, made)

    def _rounded(self, node: Node, array: np.ndarray) -> np.ndarray:
        """A node's result as far as its type holds it, where the node says so itself: what it rounds away is lost."""
        dtype = self.rounds_to(node)
        if dtype is None:
            return array
        with np.errstate(over="ignore"):
            return widen(array.astype(dtype.numpy()))

    def learn(self, value: int, number: int, array: np.ndarray) -> None:
        """Learns sizes from what a value is on one of the inputs."""
        bind_shape(self._runs[number].sizes, self.graph.type(value), array.shape)

    def evaluated(self) -> dict[int, Arrays]:
        """All values of the main graph that can be computed."""
        arrays: dict[int, Arrays] = {}

        def read(value: int) -> Arrays | None:
            made = self.made(value)
            return arrays[made] if made in arrays else self.leaf(made)

        for node in self.nodes:
            operands = [read(value) for value in self.operands(node)]
            known = [operand for operand in operands if operand is not None]
            if node.op == "Identity" or len(known) < len(operands):
                continue
            try:
                typed = [self.typed(value) for value in self.operands(node)]
                arrays.update(zip(node.values, self.evaluate(node, known, typed), strict=True))
            except NoReference:
                continue
        return arrays


def rounding_of(given: TensorType, made: TensorType) -> DataType | None:
    """The type to which a Cast rounds; ``None`` where it has all numbers of the other, or one of the two has no fractions."""
    if given.dtype == made.dtype or not {given.dtype, made.dtype} <= FLOATS or given.dtype in _HELD_BY.get(made.dtype, ()):
        return None
    return made.dtype


def content_digest(array: np.ndarray) -> bytes:
    """A digest of an array's entries, row by row."""
    content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def defining_numbers(op: str, attrs: Attrs, types: Sequence[TensorType]) -> Iterator[float]:
    """The numbers in an operator's definition by plainer ones, and in theirs, but for those that are attributes.

    Raises:
        ShapeError, Undecided: it depends on dimensions that these operands do not have.
    """
    record = get_operator(op)
    if record.decomposition is None:
        return
    given = [value for _, value in make_attrs({**record.defaults, **dict(attrs)}) if isinstance(value, float)]
    roots = record.decompose(attrs, types)
    inferred = infer_types(roots, {f"x{place}": type_ for place, type_ in enumerate(types)})
    for part in walk(roots):
        if part.op == "Const":
            number = float(part.attr("value"))
            if number not in given:
                yield number
        elif part.inputs:
            yield from defining_numbers(part.op, part.attrs, [inferred[operand] for operand in part.inputs])
