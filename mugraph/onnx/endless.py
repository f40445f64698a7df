"""Loops that no run of a model leaves: where a body has no nodes onnxruntime cannot even be stopped in one."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.parse import DEFAULT_DOMAINS
from mugraph.onnx.scopes import executed_nodes, graphs_of, graphs_within

__all__ = ["endless_loop"]

_NEVER = 1 << 50
"""Iterations that nobody waits for: a nanosecond each they take thirteen days."""


def endless_loop(graph: GraphProto, constants: ConstantReader) -> NodeProto | None:
    """A Loop that every run of a main graph executes and none leaves, since its condition is true throughout.

    Nor does one leave it that enters, where the condition stays what it was; whether one enters may depend on inputs. Where the
    body computes nothing, such a run cannot be stopped.

    Args:
        graph: of unique names.
        constants: access to its stored tensors.

    Raises:
        ModelError: a constant cannot be read.
    """
    executed: list[NodeProto] = [graph.node[position] for position in sorted(executed_nodes(graph))]
    loops = [node for node in executed if node.op_type == "Loop" and node.domain in DEFAULT_DOMAINS]
    if not loops:
        return None
    known = _Known(graph, constants)
    for loop in loops:
        most, first = [*loop.input, "", ""][:2]
        bodies = list(graphs_of(loop))
        if len(bodies) != 1 or len(bodies[0].input) < 2 or not bodies[0].output:
            continue
        goes_on, held = known.source(bodies[0].output[0].name), bodies[0].input[1].name
        is_unlimited = not most or (known.number(most) or 0) >= _NEVER
        begins = known.number(first) if first else 1
        stays = goes_on == held or bool(known.number(goes_on))
        made = {name for node in bodies[0].node if known.is_made_by(node) for name in node.output}
        computes = any(known.source(value.name) in made for value in bodies[0].output)
        if is_unlimited and stays and (not computes if begins is None else begins):
            return loop
    return None


class _Known:
    """What is constant in a graph and its bodies, whose names are unique.

    Args:
        graph: its own initializers that are inputs, too, are no constants.
    """

    def __init__(self, graph: GraphProto, constants: ConstantReader) -> None:
        fed = {value.name for value in graph.input}
        self._constants, self._stored, self._makers = constants, dict[str, TensorProto](), dict[str, NodeProto]()
        for inner in graphs_within(graph):
            self._stored.update((tensor.name, tensor) for tensor in inner.initializer if tensor.name not in fed)
            self._makers.update((name, node) for node in inner.node for name in node.output if name)

    def source(self, name: str) -> str:
        """The value behind Identity nodes."""
        passed = set[str]()
        while (
            name not in passed and (maker := self._makers.get(name)) is not None and maker.op_type == "Identity" and maker.input
        ):
            passed.add(name)
            name = maker.input[0]
        return name

    @staticmethod
    def is_made_by(node: NodeProto) -> bool:
        """Whether a node computes something when it is run."""
        return node.op_type not in ("Constant", "Identity") or node.domain not in DEFAULT_DOMAINS

    def number(self, name: str) -> int | None:
        """A value that is a constant of one entry, a whole number; true is 1."""
        source = self.source(name)
        maker, tensor = self._makers.get(source), self._stored.get(source)
        if maker is not None and maker.op_type == "Constant" and maker.domain in DEFAULT_DOMAINS:
            array: np.ndarray | None = self._constants.node(maker).load()
        else:
            array = None if tensor is None else self._constants.tensor(tensor).load()
        return None if array is None or array.size != 1 or array.dtype.kind not in "bi" else int(array.reshape(()))
