"""The steps of cleaning, and when their result is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from onnx import ModelProto

from mugraph.deadline import heed
from mugraph.onnx.calls import node_count
from mugraph.onnx.cleaning.absorbing import absorb
from mugraph.onnx.cleaning.calling import without_calls
from mugraph.onnx.cleaning.constants import lift_constants, merge_constants
from mugraph.onnx.cleaning.declaring import declare_sizes
from mugraph.onnx.cleaning.folding import Evaluate, fold_constants
from mugraph.onnx.cleaning.leftovers import drop_leftovers
from mugraph.onnx.cleaning.sharing import share_values
from mugraph.onnx.cleaning.simplifying import simplify
from mugraph.onnx.cleaning.updating import write_along_axes
from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.model import Model
from mugraph.onnx.read import reread
from mugraph.onnx.scopes import graphs_within, rename
from mugraph.onnx.understand import ModelOperators
from mugraph.onnx.weights import Weights, is_stored

__all__ = ["Cleaned", "Depth", "clean"]

_ROUNDS = 4
"""Most rounds: an If that is decided in one may show constants to the next, and so may a Reshape that is told its sizes."""

_SLACK = 1 << 10
"""Bytes by which a computed constant may be larger than what it replaces, as long as the file as a whole is not."""

_INITIALIZERS_FROM_IR = 4
"""The first IR version whose initializers need not be inputs."""


class Depth(IntEnum):
    """How far cleaning goes: of what is computed beforehand a runtime may make other kernels, which round otherwise."""

    PLAIN = 0
    """What is there already is left out or shared."""
    SIZES = 1
    """Integers and truth values are computed, too, and nodes that move data are joined."""
    NUMBERS = 2
    """All constants are computed, and convolutions absorb some."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A model without what no run needs.

    Attributes:
        model: as if it had been read from a file of its own; its weights are where they were.
        nodes_before, nodes_after: as :func:`mugraph.onnx.calls.node_count` counts.
        room: bytes that types of values may take.
    """

    model: Model
    nodes_before: int
    nodes_after: int
    room: int

    def with_names(self) -> Cleaned:
        """The same, with names for sizes that only a run tells."""
        proto = ModelProto()
        proto.CopyFrom(self.model.proto)
        model = replace(self.model, proto=proto)
        declare_sizes(model, self.room)
        return replace(self, model=model)


def clean(model: Model, evaluate: Evaluate, depth: Depth = Depth.NUMBERS) -> Cleaned | None:
    """A model with the same interface that computes the same in onnxruntime; ``None`` where nothing is to be done.

    It is the same bit for bit unless onnxruntime's optimisers fuse what is left otherwise, which whoever runs both finds out.

    Calls of the model's functions are written out, as runtimes do. Constant nodes become initializers, and equal constants one.
    What depends on constants alone is computed, where the file does not grow by it and the node is none of quantisation.
    Identities go, equal nodes that draw no random numbers become one, and Ifs whose condition is known become their branch, also
    within bodies. What no output needs goes. Models with training information are left as they are. What the file has become
    smaller by is there for types of values (:meth:`Cleaned.with_names`).

    Args:
        evaluate: computes what is constant.
    """
    if model.proto.training_info:
        return None
    source, came = without_calls(model), _Totals.of(model.proto, model.weights)
    before = _Totals.of(source.proto, model.weights)
    for actual, slack in ((depth, _SLACK), (depth, 0), (Depth.PLAIN, 0)):
        clean_model = _rounds(source, evaluate, actual, slack)
        after = _Totals.of(clean_model.proto, model.weights)
        if after.size <= before.size:
            if after == before and source is model:
                return None
            return Cleaned(clean_model, came.nodes, after.nodes, max(0, came.size - after.size))
    return None


def _rounds(model: Model, evaluate: Evaluate, depth: Depth, slack: int) -> Model:
    """A cleaned copy of a model."""
    decided = len(model.taken)
    result = reread(model, _round(model, evaluate, depth, slack))
    for _ in range(_ROUNDS - 1):
        if not decided and not result.taken and not _knows_more(result):
            break
        decided, before = len(result.taken), result.proto
        result = reread(model, _round(result, evaluate, depth, slack))
        if result.proto == before:
            break
    return result


def _knows_more(model: Model) -> bool:
    """Whether a reading knows what a node gives: behind an LSTM onnx sees sizes once those before it are told."""
    tables = model.tables
    return any(
        tables.small_constant(value) is not None
        for node in model.proto.graph.node
        for name in node.output
        if (value := model.values.get(name)) is not None and value in tables.constants
    )


def _round(model: Model, evaluate: Evaluate, depth: Depth, slack: int) -> ModelProto:
    """A model's message with each step of cleaning made once."""
    heed()
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    proto.ir_version = max(proto.ir_version, _INITIALIZERS_FROM_IR)
    operators = ModelOperators.of(proto, model.opset)
    lift_constants(proto.graph, operators, ConstantReader(model.weights))
    if depth > Depth.PLAIN:
        fold_constants(proto.graph, model, operators, evaluate, slack, only_integers=depth < Depth.NUMBERS)
    heed()
    rename(proto.graph, merge_constants(proto.graph, model.weights))
    heed()
    share_values(proto.graph, model, operators)
    if depth >= Depth.NUMBERS:
        absorb(proto.graph, model.weights)
    if depth > Depth.PLAIN:
        heed()
        write_along_axes(proto.graph, model)
        simplify(proto.graph, model)
        rename(proto.graph, merge_constants(proto.graph, model.weights))
        share_values(proto.graph, model, operators)
    drop_leftovers(proto)
    return proto


@dataclass(frozen=True, slots=True)
class _Totals:
    """How large a model is.

    Attributes:
        nodes: of the main graph and all bodies, as :func:`mugraph.onnx.calls.node_count` counts.
        constants: initializers of these.
        functions: of the model.
        size: bytes with all weights.
    """

    nodes: int
    constants: int
    functions: int
    size: int

    @staticmethod
    def of(proto: ModelProto, weights: Weights) -> _Totals:
        stored = sum(weights.size_of(tensor) for tensor in proto.graph.initializer if is_stored(tensor))
        return _Totals(
            node_count(proto),
            sum(len(graph.initializer) for graph in graphs_within(proto.graph)),
            len(proto.functions),
            proto.ByteSize() + stored,
        )
