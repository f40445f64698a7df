"""Models run through the registry's definitions: the float64 reference, and candidates that no provider here can run."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mugraph.deadline import heed
from mugraph.domains.base import FLOATS, WHOLE_NUMBERS
from mugraph.graph import Constant, Graph, Node
from mugraph.onnx import Model
from mugraph.onnx.bodies import GraphBody
from mugraph.ops import Entrywise, traits_of
from mugraph.order import operands_first
from mugraph.terms.shape import Dim, TensorType, plain_symbol, shape_at, symbol, symbols_within
from mugraph.terms.term import attr_symbols
from rewriter.reference.blocks import Blocks, chains, is_blockwise
from rewriter.reference.comparison import is_float
from rewriter.reference.control import Tensor, is_true, run_loop, run_scan
from rewriter.reference.inputs import unheld
from rewriter.reference.nodes import (
    NoReference,
    NoRoom,
    RunTensors,
    attributes,
    bind_shape,
    check_shape,
    computed,
    telling,
    widen,
)
from rewriter.reference.products import DeviceProducts
from rewriter.reference.repeats import Repeats
from rewriter.reference.threads import SharedReal, SideBySide, side_by_side

__all__ = ["Evaluated", "References", "decided_outputs", "is_quantized", "makes_integers", "reference_outputs", "reference_run"]

_LARGE = 1 << 16
"""Entries of an operand from which on a node is evaluated for all feeds at the same time."""
_MOST_AHEAD = 1 << 25
"""Entries of weights, at most, that are widened while others are used: a quarter of a GB."""

_Weights = tuple[Mapping[int, np.ndarray], Mapping[int, np.ndarray]]


@dataclass(frozen=True, slots=True)
class References:
    """The outputs of a model in float64, and what was run for them.

    Attributes:
        outputs: for each feed.
        entered: numbers of the bodies that were run.
        sizes: of dimension symbols, on the first feed; of those within loops none.
    """

    outputs: list[list[np.ndarray]]
    entered: frozenset[int]
    sizes: Mapping[str, Dim] = field(default_factory=dict)


def reference_outputs(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """The outputs of :func:`reference_run` alone."""
    return reference_run(model, feeds).outputs


def _always() -> bool:
    return True


def reference_run(
    model: Model,
    feeds: Sequence[Mapping[str, np.ndarray]],
    is_wanted: Callable[[], bool] = _always,
    device: DeviceProducts | None = None,
    free: int | None = None,
) -> References:
    """The model's outputs in float64 through the registry's definitions, for each of ``feeds``.

    Opaque nodes run in onnxruntime in their own type. Integers that rounding decides (a bucket, which is the logarithm of a
    distance without its fraction) are those that the model's own types give, and so are the branches that are taken: another
    choice would be another function, not a more exact one. A value is dropped after its last use, and each weight is loaded and
    widened once, for the one node that reads it.

    Args:
        is_wanted: asked now and then; where it is not, the evaluation ends.
        device: that makes large products, if any.
        free: cores for it, where other processes have the rest.

    Raises:
        FalseClaim: a value that no record makes is of another shape than the model has it.
        NoReference: onnxruntime refuses an opaque node by itself, a value is no tensor, an input of unknown type is not fed,
            nothing tells a size, or a value takes more memory than this process can have; or it is not wanted any more.
    """
    sizes = dict[str, Dim]()
    for name, array in feeds[0].items() if feeds else ():
        bind_shape(sizes, model.inputs.get(name), np.shape(array))
    if problem := unheld(model, sizes, refers=True):
        raise NoRoom(f"the reference cannot be computed: {problem}")
    evaluation = _ModelEvaluation(model, model.graph, exact=True, is_wanted=is_wanted, device=device, free=free)
    return References(evaluation.outputs(feeds), frozenset(evaluation.entered), evaluation.sizes)


def decided_outputs(model: Model, graph: Graph, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """A candidate's outputs in float64, in which rounding is decided as well.

    Of two candidates that compute the same the outputs are the same but for 2⁻⁵³, however often they quantise: a number of theirs
    is on two sides of half a step only where it is half a step.

    Raises:
        NoReference: as :func:`reference_run`.
    """
    return _ModelEvaluation(model, graph, exact=True, follows_types=False).outputs([feed])[0]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate run through the registry's definitions instead of in a session: where there is no kernel for it.

    Every value has its own float type, as kernels leave it; what is narrower than 32 bits is computed in 32.
    """

    model: Model
    graph: Graph

    def run(self, names: None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs, as of a session's method of this name."""
        return _ModelEvaluation(self.model, self.graph, exact=False).outputs([feed])[0]


_MOST_TURNS = 1 << 16
"""Of loops on one feed: ten seconds or more. In float64 one may go on for ever that ends in the model's own types."""


class _Run:
    """One evaluation of a model on one feed.

    Attributes:
        tensors: in the arithmetic of the evaluation.
        narrow: in the model's own types, where these decide something; else ``None``.
        repeats: the parts of the inputs that are equal, where some are.
        held: the values of which ``tensors`` has the different parts alone.
        turns: of loops that were taken.
        threads: that share what takes long; ``None`` where the calling one computes all.
    """

    def __init__(self, tensors: RunTensors, narrow: RunTensors | None, repeats: Repeats | None = None) -> None:
        self.tensors, self.narrow, self.repeats = tensors, narrow, repeats
        self.held: set[int] = set()
        self.turns = 0
        self.threads: SideBySide | None = None
        if repeats is not None:
            for value, array in tensors.by_value.items():
                if np.ndim(array):
                    self.hold(value, repeats.once(array))

    def hold(self, value: int, parts: np.ndarray) -> None:
        """Enters the different parts of a value."""
        self.tensors.by_value[value] = parts
        self.held.add(value)

    def whole(self, value: int) -> Any:
        """A value that was computed, all parts of it."""
        array = self.tensors.by_value[value]
        return array if self.repeats is None or value not in self.held else self.repeats.whole(array)

    def shape(self, value: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of all parts of a value, of that of what ``tensors`` has of it."""
        return shape if self.repeats is None or value not in self.held else self.repeats.length(shape)

    def read(self, value: int) -> Tensor:
        """A value that was computed."""
        return self.whole(value), None if self.narrow is None else self.narrow.by_value.get(value)

    def drop(self, values: Iterable[int]) -> None:
        """Forgets some values."""
        for value in values:
            self.tensors.by_value.pop(value, None)
            if self.narrow is not None:
                self.narrow.by_value.pop(value, None)


class _ModelEvaluation:
    """Evaluates a candidate, and the bodies of its control-flow nodes as far as they are run.

    Args:
        exact: in float64, else in the values' own types.
        follows_types: what rounding decides is what the model's own types give.
        is_wanted, device, free: as of :func:`reference_run`.

    Attributes:
        entered: numbers of the bodies that were run.
        sizes: of dimension symbols, on the first feed.
    """

    def __init__(
        self,
        model: Model,
        graph: Graph,
        exact: bool,
        follows_types: bool = True,
        is_wanted: Callable[[], bool] = _always,
        device: DeviceProducts | None = None,
        free: int | None = None,
    ) -> None:
        self.model, self.graph, self.exact, self._is_wanted = model, graph, exact, is_wanted
        self._device, self._free = device, free
        self.entered: set[int] = set()
        self.sizes: Mapping[str, Dim] = {}
        nodes = list(graph.nodes())
        followed = exact and follows_types
        self._deciding, self._upstream = rounding_decisions(graph, nodes) if followed else (frozenset[Node](), frozenset[Node]())
        if self._upstream and any(self._bodies(node) for node in nodes):
            self._upstream = frozenset(nodes)  # what a body reads stands for values around it: this is not followed there
        self._orders: dict[Sequence[int], list[list[Node]]] = {}
        self._threads: SideBySide | None = None

    def outputs(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
        """The outputs of the model for each feed."""
        model = self.model
        alike = self.exact and not self._upstream and not model.bodies and not model.defaults
        runs = [
            _Run(
                RunTensors(model, feed, self.exact),
                RunTensors(model, feed, False) if self._upstream else None,
                Repeats.of(feed) if alike else None,
            )
            for feed in feeds
        ]
        entries = [1 + sum(np.size(array) for array in run.tensors.by_value.values()) for run in runs]
        with side_by_side(len(runs), self._device, self._free) as threads:
            self._threads = threads
            for run, count in zip(runs, entries, strict=True):
                run.threads = None if threads is None else threads.of_run(count / sum(entries))
            self._enter(self.graph.outputs, runs)
        self.sizes = runs[0].tensors.sizes if runs else {}
        return [[np.asarray(self._result(run, value)[0]) for value in self.graph.outputs] for run in runs]

    def _made(self, value: int) -> int:
        """The value under which the node that computes this one leaves it."""
        definition = self.graph.definition(value)
        return value if definition is None else definition[0].values[definition[1]]

    def _bodies(self, node: Node) -> Sequence[GraphBody]:
        return () if node.origin is None or not node.is_opaque else self.model.bodies.get(node.origin, ())

    def _joins(self, node: Node) -> bool:
        """Whether a node may be computed with others, block by block: in float64 alone, which nothing is decided by."""
        return self.exact and node not in self._upstream and is_blockwise(node)

    def _operands(self, node: Node) -> Sequence[int]:
        """The values that a node reads where it stands: of bodies, not the results."""
        results = {value for body in self._bodies(node) for value in body.outputs}
        return [value for value in node.inputs if value not in results] if results else node.inputs

    def _enter(self, outputs: Sequence[int], runs: Sequence[_Run]) -> None:
        """Evaluates what the outputs of the main graph or of a body rest on, for some runs together."""
        if not runs:
            return
        tables, made = self.graph.tables, self._made
        if outputs not in self._orders:
            ordered = _ordered(self.graph, outputs, self._operands, frozenset(runs[0].tensors.sizes))
            self._orders[outputs] = chains(self.graph, ordered, self._joins, made)
            read = {*outputs, *(value for node in ordered for value in self._operands(node))}
            for value in read.intersection(self.graph.inputs) - runs[0].tensors.by_value.keys():
                raise NoReference(f"the reference cannot be computed: nothing is known of input '{tables.names[value]}'")
        nodes = self._orders[outputs]
        last_reader = {made(value): node for chain in nodes for node in chain for value in self._operands(node)}
        results = {made(value) for value in outputs}

        def done(node: Node) -> list[int]:
            """The values that nobody reads behind a node."""
            unread = [value for value in node.values if value not in last_reader and value not in results]
            read = map(made, self._operands(node))
            return unread + [value for value in read if last_reader[value] is node and value not in results]

        ahead: Future[_Weights] | None = None
        for chain, following in zip(nodes, [*nodes[1:], list[Node]()], strict=True):
            heed()
            if not self._is_wanted():
                raise NoReference("nobody asks for the reference any more")
            stored, settled = self._weights(chain) if ahead is None else ahead.result()
            ahead = self._weights_ahead(following)
            if self._bodies(chain[0]):
                self._run_bodies(chain[0], stored, runs)
                for run in runs:
                    run.drop(done(chain[0]))
            else:
                self._compute(chain, stored, settled, {node: done(node) for node in chain}, runs)

    def _constants(self, chain: Sequence[Node]) -> Mapping[int, Constant]:
        """The constants that nodes read."""
        constants = self.graph.tables.constants
        return {v: constants[v] for node in chain for v in self._operands(node) if v in constants}

    def _weights(self, chain: Sequence[Node]) -> _Weights:
        """What nodes read of the model's constants: as it is stored, and in the arithmetic of the evaluation."""
        stored = {v: constant.load() for v, constant in self._constants(chain).items()}
        if self._bodies(chain[0]):
            return stored, {}
        return stored, {v: self._widened(array) if self.exact else np.asarray(array) for v, array in stored.items()}

    def _weights_ahead(self, chain: Sequence[Node]) -> Future[_Weights] | None:
        """What nodes will read, made by another thread while those before them are evaluated; ``None`` where that pays not."""
        entries = sum(constant.type.size() for constant in self._constants(chain).values())
        if self._threads is None or not _LARGE <= entries <= _MOST_AHEAD:
            return None
        return self._threads.ahead(partial(self._weights, chain))

    def _compute(
        self,
        chain: Sequence[Node],
        stored: Mapping[int, np.ndarray],
        settled: Mapping[int, np.ndarray],
        done: Mapping[Node, Sequence[int]],
        runs: Sequence[_Run],
    ) -> None:
        """Evaluates nodes without bodies.

        Args:
            stored, settled: as of :meth:`_weights`.
            done: the values that nobody reads behind each node.
        """
        made = self._made

        def evaluate(run: _Run) -> None:
            left = list(chain)
            while left:
                blocks = self._blocks(left, settled, run) if self._joins(chain[0]) else None
                together = left[:1] if blocks is None else left[: len(blocks.steps)]
                del left[: len(together)]
                if blocks is not None and blocks.pays:
                    self._evaluate_blocks(blocks, settled, done, run)
                    for node in together:
                        run.drop(done[node])
                    continue
                for node in together:  # those that one block would hold, which is nothing to begin anew for behind each
                    self._evaluate(node, stored, settled, run)
                    run.drop(done[node])

        known = runs[0].tensors.by_value
        entries = max((known[made(v)].size for node in chain for v in node.inputs if made(v) in known), default=0)
        if self._threads is not None and len(runs) > 1 and entries >= _LARGE and not chain[0].is_opaque:
            self._threads.run(evaluate, runs)  # NumPy leaves the interpreter to others while it computes
        else:
            for run in runs:
                evaluate(run)

    def _evaluate(self, node: Node, stored: Mapping[int, np.ndarray], settled: Mapping[int, np.ndarray], run: _Run) -> None:
        """Evaluates one node."""
        model, graph, made = self.model, self.graph, self._made
        results: Sequence[Any] = ()
        tensors, narrow = run.tensors, run.narrow
        if narrow is not None and node in self._upstream:
            operands = [stored[v] if v in stored else narrow.by_value[made(v)] for v in node.inputs]
            results = computed(model, graph, node, operands, tensors, exact=False)
            narrow.by_value.update(zip(node.values, results, strict=True))
        if run.repeats is not None and self._evaluate_parts(node, settled, run, run.repeats):
            return
        if node not in self._deciding:
            operands = [settled[v] if v in settled else run.whole(made(v)) for v in node.inputs]
            results = computed(model, graph, node, operands, tensors, self.exact, run.threads)
        for value, array in zip(node.values, results, strict=True):
            if node.is_opaque:
                check_shape(model, value, np.shape(array))
            bind_shape(tensors.sizes, graph.type(value), np.shape(array))
            tensors.by_value[value] = array

    def _evaluate_parts(self, node: Node, settled: Mapping[int, np.ndarray], run: _Run, repeats: Repeats) -> bool:
        """Evaluates the different parts of one node's results, where it needs no others for that; whether it does not."""
        graph, tensors = self.graph, run.tensors
        attrs = attributes(node, tensors.sizes)
        if attrs is None:
            return False
        operands = [settled[v] if v in settled else tensors.by_value[self._made(v)] for v in node.inputs]
        held = [v not in settled and self._made(v) in run.held for v in node.inputs]
        type_ = graph.type(node.values[0])
        shape = shape_at(type_, tensors.sizes)
        with telling(graph, node):
            results = repeats.computed(node, attrs, operands, held, shape, SharedReal(np.float64, run.threads))
        for value, parts in zip(node.values, results or (), strict=results is not None):
            run.hold(value, parts)
            bind_shape(tensors.sizes, graph.type(value), run.shape(value, parts.shape))
        return results is not None

    def _blocks(self, nodes: Sequence[Node], settled: Mapping[int, np.ndarray], run: _Run) -> Blocks | None:
        """The first of some nodes that may be evaluated block by block together."""
        tensors = run.tensors
        return Blocks.of(
            nodes,
            lambda v: v if v in settled else self._made(v),
            lambda v: np.shape(settled[v] if v in settled else tensors.by_value[v]),
            lambda node: attributes(node, tensors.sizes),
            run.held,
        )

    def _evaluate_blocks(
        self, blocks: Blocks, settled: Mapping[int, np.ndarray], done: Mapping[Node, Sequence[int]], run: _Run
    ) -> None:
        """Evaluates nodes block by block.

        Args:
            done: as of :meth:`_compute`.
        """
        graph, tensors = self.graph, run.tensors
        chosen = [step.node for step in blocks.steps]
        unread = {value for node in chosen for value in done[node]}
        kept = [node.values[0] for node in chosen if node.values[0] not in unread]
        each = _in_one if run.threads is None else run.threads.in_parts
        with telling(graph, chosen[0]):
            tensors.by_value.update(blocks.compute(ChainMap(dict(settled), tensors.by_value), kept, each))
        run.held |= blocks.held
        for step in blocks.steps:
            value = step.node.values[0]
            bind_shape(tensors.sizes, graph.type(value), run.shape(value, step.shape))

    def _widened(self, array: np.ndarray) -> np.ndarray:
        """A weight as :func:`widen` has it; of a large one threads widen a part each."""
        if self._threads is None or array.size < _LARGE or not is_float(array):
            return widen(array)
        narrow, wide = array.reshape(-1), np.empty(array.shape)
        flat = wide.reshape(-1)
        self._threads.in_parts(lambda part: np.copyto(flat[part], narrow[part]), flat.size, alone=True)
        return wide

    def _run_bodies(self, node: Node, stored: Mapping[int, np.ndarray], runs: Sequence[_Run]) -> None:
        """Evaluates the bodies of a node as often as they are run, and gives the node their results."""
        assert node.origin is not None
        origin, reads, bodies = self.model.origins[node.origin], self.model.reads[node.origin], self._bodies(node)
        inputs = {run: [None if v is None else self._given(run, v, stored) for v in reads] for run in runs}
        if origin.op_type == "If":
            branches = {body.attribute == "then_branch": body for body in bodies}
            for truth, branch in branches.items():
                chosen = [run for run in runs if is_true(inputs[run][0]) is truth]
                for run, results in zip(chosen, self._once(branch, chosen, [()] * len(chosen)), strict=True):
                    self._settle(node, results, run)
            return
        (body,) = bodies
        for run in runs:
            sizes = dict(run.tensors.sizes)

            def iterate(formal: Sequence[Tensor], run: _Run = run, sizes: Mapping[str, Dim] = sizes) -> Sequence[Tensor]:
                run.turns += 1
                if run.turns > _MOST_TURNS:
                    raise NoReference(f"the reference cannot be computed: bodies were run {_MOST_TURNS:,} times, and go on")
                run.tensors.sizes = dict(sizes)  # those within the body may be others each time
                return self._once(body, [run], [formal])[0]

            if origin.op_type == "Loop":
                ranks = [0 if type_ is None else type_.rank for type_ in map(self.graph.type, body.inputs[:2])]
                results = run_loop(
                    inputs[run], iterate, ranks, lambda first: _no_rows(self.graph, body.outputs[first:], self.exact)
                )
            else:
                present = [tensor for tensor in inputs[run] if tensor is not None]
                results = run_scan(origin, present, iterate, lambda first: _no_rows(self.graph, body.outputs[first:], self.exact))
            run.tensors.sizes = sizes
            self._settle(node, results, run)

    def _once(self, body: GraphBody, runs: Sequence[_Run], formal: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The results of running a body once in each of some runs, whose formal inputs are given."""
        if runs:
            self.entered.add(body.number)
        for run, tensors in zip(runs, formal, strict=True):
            for outer, inner in body.captured.items():
                if inner != outer:
                    self._put(run, inner, run.read(self._made(outer)))
                    self._same_type(run, inner, outer)
            for value, tensor in zip(body.inputs, tensors, strict=True):
                self._put(run, value, tensor)
        self._enter(body.outputs, runs)
        results = [[self._result(run, value) for value in body.outputs] for run in runs]
        for run in runs:
            run.drop(map(self._made, body.outputs))
        return results

    def _put(self, run: _Run, value: int, tensor: Tensor) -> None:
        exact, narrow = tensor
        check_shape(self.model, value, np.shape(exact))
        bind_shape(run.tensors.sizes, self.graph.type(value), np.shape(exact))
        run.tensors.by_value[value] = exact
        if run.narrow is not None and narrow is not None:
            run.narrow.by_value[value] = narrow

    def _same_type(self, run: _Run, value: int, other: int) -> None:
        """Learns the element type of a value, where the model does not tell it, from one of that type."""
        type_, dtypes = self.graph.type(other), run.tensors.dtypes
        dtype = dtypes.get(self._made(other)) if type_ is None else type_.dtype
        if self.graph.type(value) is None and dtype is not None:
            dtypes[value] = dtype

    def _given(self, run: _Run, value: int, stored: Mapping[int, np.ndarray]) -> Tensor:
        """A value of a run; one of the constants that are given, or one that was computed."""
        if value not in stored:
            return run.read(self._made(value))
        return widen(stored[value]) if self.exact else np.asarray(stored[value]), stored[value]

    def _result(self, run: _Run, value: int) -> Tensor:
        """A result of the main graph or of a body."""
        constants = self.graph.tables.constants
        return self._given(run, value, {value: constants[value].load()} if value in constants else {})

    def _settle(self, node: Node, results: Sequence[Tensor], run: _Run) -> None:
        """Gives the results of a node with bodies to its values; a result without a name is none."""
        assert node.origin is not None
        body = self._bodies(node)[-1]
        last = body.outputs[len(body.outputs) - len(results) :]  # a Loop's body has its condition before them
        names = self.model.origins[node.origin].output
        named = [(tensor, result) for name, tensor, result in zip(names, results, last, strict=True) if name]
        for value, (tensor, result) in zip(node.values, named, strict=True):
            self._put(run, value, tensor)
            self._same_type(run, value, result)


def _in_one(compute: Callable[[slice], None], length: int) -> None:
    """Does some work for so many blocks."""
    compute(slice(length))


def _no_rows(graph: Graph, values: Sequence[int], exact: bool) -> list[Tensor]:
    """Of each value a tensor of no rows of its type."""
    made: list[Tensor] = []
    for value in values:
        type_ = graph.type(value)
        shape = () if type_ is None else tuple(dim if isinstance(dim, int) else 0 for dim in type_.shape)
        array = np.empty((0, *shape), np.float32 if type_ is None else type_.dtype.numpy())
        made.append((widen(array) if exact else array, array))
    return made


def _ordered(
    graph: Graph, outputs: Sequence[int], operands: Callable[[Node], Sequence[int]], known: frozenset[str]
) -> list[Node]:
    """The nodes to evaluate, operands first: the live ones, and those that tell a size which no input does.

    What keeps NonZero in a model may be the shape of its result alone, which a record takes for an attribute of another node.

    Args:
        outputs: of the main graph or of a body; what tells a size stands in the same one.
        operands: of a node.
        known: the dimension symbols that are told already.
    """
    tables = graph.tables
    body = next((tables.bodies[value] for value in outputs if value in tables.bodies), 0)
    carriers: dict[str, int] = {}
    for value, type_ in enumerate(tables.types):
        for dim in () if type_ is None or value not in tables.makers or tables.bodies.get(value, 0) != body else type_.shape:
            name = plain_symbol(dim)
            if name is not None and name not in known:
                carriers.setdefault(name, value)  # of the values of the file, the first: what others rest on

    def rests_on(node: Node) -> list[Node]:
        told = [carriers[name] for name in sorted(_sizes_of(node)) if name in carriers]
        return graph.makers([*told, *operands(node)])

    return list(operands_first(graph.makers(outputs), rests_on))


def _sizes_of(node: Node) -> set[str]:
    """The dimension symbols in a node's attributes, also those of which another is a function."""
    return {inner for _, value in node.attrs for name in attr_symbols(value) for inner in symbols_within(symbol(name))}


def is_quantized(graph: Graph) -> bool:
    """Whether a live node quantises: a number half way between two steps goes to either, which changes all that rests on it."""
    return any(_rounds(graph, node) and traits_of(node.op).piecewise for node in graph.references)


def makes_integers(op: str, operands: Sequence[TensorType | None], results: Sequence[TensorType | None]) -> bool:
    """Whether an operator makes integers of floats by rounding: a Cast, or what quantises."""
    traits = traits_of(op)
    return (
        (traits.entrywise is Entrywise.CONVERSION or traits.piecewise)
        and any(type_ is not None and type_.dtype in FLOATS for type_ in operands)
        and any(type_ is not None and type_.dtype in WHOLE_NUMBERS for type_ in results)
    )


def _rounds(graph: Graph, node: Node) -> bool:
    return makes_integers(node.op, *([graph.type(value) for value in values] for values in (node.inputs, node.values)))


def rounding_decisions(
    graph: Graph, nodes: Sequence[Node], within: Collection[Node] = ()
) -> tuple[frozenset[Node], frozenset[Node]]:
    """The nodes that make integers of floats by rounding, and all nodes that these rest on, themselves included.

    Args:
        within: nodes that do so on the way to their results.
    """
    deciding = {*within, *(node for node in nodes if _rounds(graph, node))}
    return frozenset(deciding), frozenset(operands_first(deciding, lambda node: graph.makers(node.inputs)))
