"""One of two models, or bodies, that are compared: the nodes of its graph, and what they compute on some inputs in float64."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx.helper import get_attribute_value

from modeldiff.limits import RunLimit
from mugraph.domains.base import FLOATS
from mugraph.graph import Node
from mugraph.onnx import Model
from mugraph.onnx.bodies import GraphBody
from mugraph.onnx.kinds import drawing_nodes, opaque_kind
from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.order import operands_first
from mugraph.terms.shape import (
    DataType,
    DerivedSymbol,
    Dim,
    ShapeError,
    TensorType,
    Undecided,
    plain_symbol,
    symbol,
    symbols_within,
)
from mugraph.terms.term import Attrs, Term, attr_symbols, bind_attrs, make_attrs, replace_terms, var, walk
from rewriter.reference import NoReference, bind_shape, rounding_decisions
from rewriter.reference.evaluation import makes_integers
from rewriter.reference.nodes import RunTensors, computed, widen
from rewriter.reference.threads import SharedReal
from rewriter.run.accept import FLOORS
from rewriter.runtime_env import RuntimeFailure
from rulegen.mine.cuts import shortest

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

    What a control-flow node computes is one step here: its bodies are models by themselves (:mod:`modeldiff.bodies`).

    Args:
        model: as it was read, or a body of one.
        feeds: inputs by name, of this model.
        usual: how many of them, the first ones, are of the usual scale and sizes; the others are probes.
        limit: of nodes that onnxruntime runs by themselves.
        body: the number of the body that it is; 0 for a whole model.
        sizes: what dimension symbols around a body are, for each of the feeds.
        roots: values that are computed beside the results of the graph.

    Attributes:
        failed: numbers of the probes on which some node cannot be evaluated that can on the usual inputs.
        nodes: of the graph and the roots, operands first, and what computes tensors of which they are told a size alone.
        place: of each node in that order.
        drawing: those that draw random numbers: of two that are alike neither is the other.
        deciding: those that make integers of floats by rounding, or compute with such.
    """

    def __init__(
        self,
        model: Model,
        feeds: Sequence[Mapping[str, np.ndarray]],
        usual: int,
        limit: RunLimit,
        body: int = 0,
        sizes: Sequence[Mapping[str, Dim]] = (),
        roots: Sequence[int] = (),
    ) -> None:
        self.limit = limit
        self.usual, self.failed, self._feeds = usual, set[int](), feeds
        self.model, self.graph, self.tables = model, model.graph, model.graph.tables
        self._kind = opaque_kind(model)
        self._sized: dict[str, tuple[int, int]] = {}
        for value, type_ in enumerate(self.tables.types):
            if self.tables.bodies.get(value, 0) == body:
                for axis, dim in enumerate(() if type_ is None else type_.shape):
                    if (size := plain_symbol(dim)) is not None:
                        self._sized.setdefault(size, (value, axis))
        makers = self.graph.makers
        self.nodes = list(operands_first(makers((*self.graph.outputs, *roots)), lambda node: makers(self.rests_on(node))))
        self.drawing = drawing_nodes(model, self.nodes)
        self.place = {node: number for number, node in enumerate(self.nodes)}
        self._runs = [RunTensors(model, feed, exact=True) for feed in feeds]
        for run, known in zip(self._runs, sizes, strict=False):
            run.sizes.update({**known, **run.sizes})
        self._within = frozenset(filter(self._rounds_within, self.nodes))
        self.deciding, self._upstream = rounding_decisions(self.graph, self.nodes, self._within)
        self._fed = [RunTensors(model, feed, exact=False) for feed in feeds] if self._upstream else []
        self._typed: dict[int, Arrays] = {}
        self._digests: dict[int, bytes] = {}

    def operands(self, node: Node) -> Sequence[int]:
        """What a node reads in its own graph; results of its bodies are no operands."""
        results = {value for body in self.bodies(node) for value in body.outputs}
        return [value for value in node.inputs if value not in results] if results else node.inputs

    def bodies(self, node: Node) -> tuple[GraphBody, ...]:
        """Those of a control-flow node, where they were read."""
        return self.model.bodies.get(node.origin, ()) if node.origin is not None and node.is_opaque else ()

    @property
    def inputs(self) -> int:
        """The number of inputs on which it is evaluated."""
        return len(self._runs)

    def sizes(self, number: int) -> Mapping[str, Dim]:
        """What is known of dimension symbols on one of the inputs."""
        return self._runs[number].sizes

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

    def operator(self, node: Node) -> tuple[str, str]:
        """The domain and name of a node's operator; of one that a record describes no domain."""
        if not node.is_opaque or node.origin is None:
            return "", node.op
        origin = self.model.origins[node.origin]
        return f"{origin.domain}:", origin.op_type

    def attributes(self, node: Node, attrs: Attrs) -> dict[str, object]:
        """The attributes of a node; of an opaque one as its file has them, those that it leaves out as its schema has them.

        Args:
            attrs: those of a node that a record describes.
        """
        if not node.is_opaque or node.origin is None:
            return {name: _short(value) for name, value in attrs}
        origin, version = self.model.origins[node.origin], self.model.opset
        found: dict[str, object] = {}
        if origin.domain in ("", "ai.onnx") and onnx.defs.has(origin.op_type, version, ""):
            known = onnx.defs.get_schema(origin.op_type, version, "").attributes.values()
            found = {a.name: _plain(a.default_value) for a in known if a.default_value.type}
        return {**found, **{a.name: _plain(a) for a in origin.attribute}}

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

    def _rounds_within(self, node: Node) -> bool:
        """Whether a node's definition makes integers of floats by rounding, as a product of what it quantises first."""
        types = [type_ for type_ in map(self.graph.type, node.inputs) if type_ is not None]
        if node.is_opaque or len(types) < len(node.inputs) or not traits_of(node.op).piecewise:
            return False
        try:
            return bool(_decided_within(node.op, node.attrs, types)[1])
        except (ShapeError, Undecided):
            return False

    def _computed_within(
        self, node: Node, operands: Sequence[np.ndarray], typed: Sequence[np.ndarray], run: RunTensors
    ) -> Sequence[np.ndarray]:
        """A node's results in float64 from the integers that its definition makes in the model's own types.

        Args:
            operands: in float64.
            typed: the same in the model's own types.
        """
        given = [type_ for type_ in map(self.graph.type, node.inputs) if type_ is not None]
        types = [TensorType(type_.dtype, np.shape(array)) for type_, array in zip(given, typed, strict=True)]
        roots, decided = _decided_within(node.op, bind_attrs(node.attrs, run.sizes), types)
        narrow = evaluate(decided, SharedReal(np.float32), {f"x{place}": array for place, array in enumerate(typed)})
        names = {part: f"decided{number}" for number, part in enumerate(decided)}
        known = {f"x{place}": array for place, array in enumerate(operands)}
        known |= {name: widen(narrow[part]) for part, name in names.items()}
        left = [replace_terms(root, {part: var(name) for part, name in names.items()}) for root in roots]
        values = evaluate(left, SharedReal(np.float64), known)
        return [values[root] for root in left]

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
                    if node in self._within:
                        wide = [operand[number] for operand in operands]
                        arrays = self._computed_within(bare, wide, [array[number] for array in narrow], run)
                if not followed or node not in self.deciding:
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
            with self.limit.limited():
                return computed(self.model, self.graph, node, operands, run, exact)
        except RuntimeFailure as problem:
            raise NoReference(f"the reference cannot be computed: {problem}") from problem

    def replayed(
        self, nodes: Sequence[Node], value: int, number: int, read: Callable[[int], np.ndarray], exact: bool
    ) -> np.ndarray:
        """What some nodes, operands first, compute of a value on one of the inputs. Raises NoReference.

        Args:
            read: a value that none of them computes, in float64.
            exact: in float64, not in the model's own types.
        """
        run, known = RunTensors(self.model, self._feeds[number], exact), self._runs[number]
        run.sizes.update(known.sizes)
        run.dtypes.update(known.dtypes)
        arrays: dict[int, np.ndarray] = {}
        for node in nodes:
            operands = self.operands(node)
            for made in map(self.made, operands):
                if made not in arrays:
                    type_, array = self.graph.type(made), read(made)
                    with np.errstate(over="ignore"):
                        arrays[made] = array if exact or type_ is None else array.astype(type_.dtype.numpy())
            given = [arrays[self.made(operand)] for operand in operands]
            with np.errstate(all="ignore"):
                results = self._computed(replace(node, inputs=tuple(operands)), given, run, exact)
            arrays.update(
                (v, self._rounded(node, np.asarray(a)) if exact else np.asarray(a))
                for v, a in zip(node.values, results, strict=True)
            )
        return arrays[self.made(value)] if nodes else read(self.made(value))

    def rounds_to(self, node: Node) -> DataType | None:
        """The type to which a node rounds: of a Cast between floats to one that does not hold all numbers of the other."""
        if node.op != "Cast":
            return None
        given, made = (self.graph.type(value) for value in (node.inputs[0], node.values[0]))
        return None if given is None or made is None else rounding_of(given, made)

    def rounded_by(self, node: Node) -> DataType | None:
        """The type to which a node's results were rounded: by itself, or since the runtime computed them in their own type."""
        if not node.is_opaque:
            return self.rounds_to(node)
        types = {DataType.FLOAT if type_ is None else type_.dtype for type_ in map(self.graph.type, node.values)}
        return max(types & FLOORS.keys(), key=FLOORS.__getitem__, default=None)

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

    def learn_types(self, value: int, other: ComparedModel, pair: int) -> None:
        """Learns the element types that a value has where its model does not tell them, from another's that it is equal to."""
        if self.graph.type(value) is None:
            type_ = other.graph.type(pair)
            for run, theirs in zip(self._runs, other._runs, strict=True):
                dtype = theirs.dtypes.get(pair) if type_ is None else type_.dtype
                if dtype is not None:
                    run.dtypes[value] = dtype

    def evaluated(self) -> dict[int, Arrays]:
        """All values of the graph that can be computed."""
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


def _plain(attribute: onnx.AttributeProto) -> object:
    """An attribute's value: a number or text, or what is written of anything else."""
    value = get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return _short(value) if isinstance(value, int | float) else str(value)


def _short(value: object) -> object:
    """A float with the fewest digits that are it in single precision; anything else as it is."""
    return shortest(np.float32(value)) if isinstance(value, float) else value


def rounding_of(given: TensorType, made: TensorType) -> DataType | None:
    """The type to which a Cast rounds; ``None`` where it has all numbers of the other, or one of the two has no fractions."""
    if given.dtype == made.dtype or not {given.dtype, made.dtype} <= FLOATS or given.dtype in _HELD_BY.get(made.dtype, ()):
        return None
    return made.dtype


def content_digest(array: np.ndarray) -> bytes:
    """A digest of an array's entries, row by row."""
    content = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def _parts(op: str, attrs: Attrs, types: Sequence[TensorType]) -> Iterator[tuple[Term, TensorType, list[TensorType]]]:
    """The parts of an operator's definition by plainer ones, each with its type and those of its operands.

    Raises:
        ShapeError, Undecided: it depends on dimensions that these operands do not have.
    """
    record = get_operator(op)
    if record.decomposition is not None:
        roots = record.decompose(attrs, types)
        inferred = infer_types(roots, {f"x{place}": type_ for place, type_ in enumerate(types)})
        for part in walk(roots):
            yield part, inferred[part], [inferred[operand] for operand in part.inputs]


def _decided_within(op: str, attrs: Attrs, types: Sequence[TensorType]) -> tuple[tuple[Term, ...], list[Term]]:
    """An operator's definition by plainer ones, and all results of those parts that make integers of floats by rounding.

    Raises:
        ShapeError, Undecided: as :func:`_parts`.
    """
    parts = list(_parts(op, attrs, types))
    deciding = {_applied(part) for part, type_, operands in parts if makes_integers(part.op, operands, [type_])}
    roots = get_operator(op).decompose(attrs, types) if deciding else ()
    return roots, [part for part, _, _ in parts if _applied(part) in deciding]


def _applied(part: Term) -> Hashable:
    """What a term is a result of."""
    return part.op, part.attrs, part.inputs


def defining_numbers(op: str, attrs: Attrs, types: Sequence[TensorType]) -> Iterator[float]:
    """The numbers in an operator's definition by plainer ones, and in theirs, but for those that are attributes.

    Raises:
        ShapeError, Undecided: it depends on dimensions that these operands do not have.
    """
    given = [value for _, value in make_attrs({**get_operator(op).defaults, **dict(attrs)}) if isinstance(value, float)]
    for part, _, operands in _parts(op, attrs, types):
        if part.op == "Const":
            number = float(part.attr("value"))
            if number not in given:
                yield number
        elif operands:
            yield from defining_numbers(part.op, part.attrs, operands)
