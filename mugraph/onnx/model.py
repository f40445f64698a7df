"""An ONNX model that was read, as a value: its file, its tables and graph, and the way back to its ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto, NodeProto

from mugraph.blocks.operator import Programs
from mugraph.graph import Constant, Graph, Tables
from mugraph.onnx.bodies import GraphBody
from mugraph.onnx.weights import Weights
from mugraph.terms.shape import TensorType

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model, read; compared by identity.

    Attributes:
        path: its file; ``None`` for a model given in memory.
        proto: everything as it came, except that large inline tensors are stored (see :mod:`mugraph.onnx.weights`).
        opset: version of the default domain.
        tables: values, types, constants and nodes, shared by all candidates.
        graph: the first candidate: the model as it came, but for conditions that never change: the branch that they choose.
        as_it_came: that as well; the same object where no condition is constant.
        origins: the ONNX nodes, those of the main graph first, then those of bodies; ``Node.origin`` is an index into it.
        reads: origin to the values of the node's inputs; ``None`` for an absent one.
        values: name to value, of the main graph and of bodies.
        opaque: origin to the reason why the node is opaque.
        inputs: names and types of the tensors to feed, without those that have defaults.
        defaults: initializers that are graph inputs too: run-time inputs with a default, never constants.
        symbols: the symbolic dimensions of the inputs, in order of appearance.
        notes: sentences that the user should read about the model.
        weights: access to stored tensors.
        carriers: constant to the origin of the Constant node that holds it.
        captures: origin to the outer values that the node's subgraphs read by name.
        bodies: origin to the bodies of a control-flow node, where they were read.
        programs: how the kernels that the model came with are launched.
        plainer: origins of nodes that were read as a plainer operator than theirs; rewritten models have that.
        taken: name of the first result of an If to the branch that it always takes.
        contradicted: name of a value that the file declares otherwise than its operator makes it to the type that this gives.
        distrusted: names of values of which the file's word on their shapes is not taken.
    """

    path: Path | None
    proto: ModelProto
    opset: int
    tables: Tables
    graph: Graph
    as_it_came: Graph
    origins: Sequence[NodeProto]
    reads: Sequence[tuple[int | None, ...]]
    values: Mapping[str, int]
    opaque: Mapping[int, str]
    inputs: Mapping[str, TensorType]
    defaults: Mapping[str, Constant]
    symbols: tuple[str, ...]
    notes: tuple[str, ...]
    weights: Weights
    carriers: Mapping[int, int]
    captures: Mapping[int, tuple[int, ...]]
    bodies: Mapping[int, tuple[GraphBody, ...]]
    programs: Programs = field(default_factory=dict)
    plainer: frozenset[int] = frozenset()
    taken: Mapping[str, str] = field(default_factory=dict)
    contradicted: Mapping[str, TensorType] = field(default_factory=dict)
    distrusted: frozenset[str] = frozenset()

    @property
    def is_unfolded(self) -> bool:
        """Whether the model has conditions that never change: written anew, it is without them."""
        return self.graph is not self.as_it_came

    def digest(self) -> str:
        """Digest of the file's bytes and of its data files, as :meth:`mugraph.onnx.weights.Weights.digest`; for all runs."""
        return self.weights.digest()
