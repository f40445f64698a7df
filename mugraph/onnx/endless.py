"""Loops that no run of a model leaves: where a body has no nodes onnxruntime cannot even be stopped in one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from mugraph.onnx.bodies import BRANCHES
from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.scopes import executed_nodes, graphs_of, graphs_within

__all__ = ["endless_loop"]

_NEVER = 1 << 50
"""Iterations that nobody waits for: a nanosecond each they take thirteen days."""


def endless_loop(graph: GraphProto, constants: ConstantReader) -> str:
    """What is wrong with a Loop that no run leaves, with its name; empty where there is none.

    That is one that every run of a main graph executes and none leaves, since its condition is true throughout. Nor does one
    leave it that enters, where the condition stays what it was; whether one enters may depend on inputs. Where the body computes
    nothing, such a run cannot be stopped; so that one counts in a body, too, where it is run for some inputs alone.

    Args:
        graph: of unique names.
        constants: access to its stored tensors.

    Raises:
        ModelError: a constant cannot be read.
    """
    executed = _executed(graph)
    if not any(_is_loop(node) for part in executed for node in (part, *_all_within(part))):
        return ""
    known = _Known(graph, constants)
    always = [(node, True) for node in executed]
    perhaps = [(inner, False) for node in executed for inner in _perhaps_within(node, known)]
    for loop, is_always in [*always, *perhaps]:
        if not _is_loop(loop):
            continue
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
        if is_unlimited and stays and (begins if begins is not None and is_always else begins != 0 and not computes):
            where = "and no output is computed without it" if is_always else "in a body that some inputs run"
            return f"Loop '{loop.name or loop.output[0]}' never ends once it begins, {where}"
    return ""


def _is_loop(node: NodeProto) -> bool:
    return node.op_type == "Loop" and node.domain in DEFAULT_DOMAINS


def _executed(graph: GraphProto) -> list[NodeProto]:
    """The nodes that every run of a graph executes."""
    return [graph.node[position] for position in sorted(executed_nodes(graph))]


def _all_within(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes in the bodies of a node, at any depth."""
    for body in graphs_of(node):
        for graph in graphs_within(body):
            yield from graph.node


def _perhaps_within(node: NodeProto, known: _Known) -> Iterator[NodeProto]:
    """The nodes in the bodies of a node, at any depth, that some run may execute."""
    is_if = node.op_type == "If" and node.domain in DEFAULT_DOMAINS
    taken = known.number(node.input[0]) if is_if and node.input else None
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH and (taken is None or attribute.name == BRANCHES[0 if taken else 1]):
            for inner in _executed(attribute.g):
                yield inner
                yield from _perhaps_within(inner, known)


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
