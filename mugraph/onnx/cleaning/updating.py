"""Entries that are written along an axis, where exporters bring that axis to the front for it and back again.

torch.onnx writes ``cache.index_copy_(2, position, new)``, and an assignment to such a slice, as a ScatterND between two
Transposes of the whole cache. A ScatterElements along the axis moves the same entries, and nothing else of the cache: onnxruntime
writes into the buffer that it reads where it is bound to one for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.cleaning.constants import replace_nodes
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import NameSupply, captured, graphs_within, names_in_use
from mugraph.ops import traits_of
from mugraph.terms.shape import Dim, TensorType, concrete

__all__ = ["write_along_axes"]

_LEAST = 64
"""Positions from which on two Transposes of all take longer than a ScatterElements of one, ten times as long an entry; so many
for each that is written."""


def write_along_axes(main: GraphProto, model: Model) -> None:
    """Has few positions along an axis written there, also within bodies, where no graph becomes larger by it.

    Only where nothing else reads what is moved for it. Of many positions a ScatterElements may take longer: it goes entry by
    entry.

    Args:
        main: a graph of unique names, without Identities.
        model: that it was made of: what is known of its values.
    """
    names = NameSupply(names_in_use(main))
    for graph in graphs_within(main):
        writing = _Writing(graph, model, names)
        made = [other for node in graph.node for other in writing.instead_of(node)]
        nodes = [node for node in made if writing.gone.isdisjoint(node.output)]
        if writing.gone and _size(nodes) + _size(writing.fresh) <= _size(graph.node):
            replace_nodes(graph, nodes)
            graph.initializer.extend(writing.fresh)


def _size(messages: Iterable[NodeProto] | Iterable[TensorProto]) -> int:
    return sum(message.ByteSize() for message in messages)


class _Writing:
    """One walk over the nodes of a graph, operands first.

    Args:
        names: of the whole model.

    Attributes:
        fresh: constants that new nodes read.
        gone: results that nothing reads any more.
    """

    def __init__(self, graph: GraphProto, model: Model, names: NameSupply) -> None:
        self.fresh, self.gone = list[TensorProto](), set[str]()
        self._model, self._names = model, names
        self._makers = {name: node for node in graph.node if node.domain in DEFAULT_DOMAINS for name in node.output}
        self._readers = Counter(name for node in graph.node for name in (*node.input, *captured(node)))
        self._readers.update(value.name for value in graph.output)
        self._indices: dict[tuple[str, tuple[Dim, ...], int], str] = {}

    def instead_of(self, node: NodeProto) -> list[NodeProto]:
        """The nodes for a Transpose behind a ScatterND behind its reverse, of few positions; the node itself for any other."""
        is_moved = node.op_type == "Transpose" and node.domain in DEFAULT_DOMAINS
        scatter = self._only(node.input[0], "ScatterND") if is_moved else None
        front = self._only(scatter.input[0], "Transpose") if scatter is not None and _is_plain(scatter) else None
        there, back = _perm(front), _perm(node)
        if scatter is None or front is None or there == sorted(there) or [there[axis] for axis in back] != sorted(there):
            return [node]
        index, new = (self._type(name) for name in scatter.input[1:])
        told = None if index is None else concrete(index.shape)
        if told is None or len(told) != 2 or told[1] != 1 or new is None or len(new.shape) != len(back) or 0 in new.shape:
            return [node]
        whole = self._type(front.input[0])
        length = None if whole is None else whole.shape[there[0]]
        if length < _LEAST * told[0] if isinstance(length, int) else told[0] != 1:
            return [node]
        self.gone |= {front.output[0], scatter.output[0]}
        moved, nodes = self._moved(scatter.input[2], back)
        places = self._places(
            scatter.input[1], moved, tuple(new.shape[axis] if axis else told[0] for axis in back), there[0], nodes
        )
        inputs = [front.input[0], places, moved]
        return [*nodes, helper.make_node("ScatterElements", inputs, list(node.output), name=node.name, axis=there[0])]

    def _type(self, name: str) -> TensorType | None:
        value = self._model.values.get(name)
        return None if value is None else self._model.tables.types[value]

    def _only(self, name: str, op_type: str) -> NodeProto | None:
        """The node that computes a value that is read once, if it is of this operator."""
        maker = self._makers.get(name)
        return maker if maker is not None and maker.op_type == op_type and self._readers[name] == 1 else None

    def _moved(self, name: str, perm: list[int]) -> tuple[str, list[NodeProto]]:
        """A value with its axes in another order, and the nodes for it, none where something has that order already."""
        first = _perm(self._makers.get(name))
        if first:
            self._readers[name] -= 1
            self.gone |= set() if self._readers[name] else {name}
            name, perm = self._makers[name].input[0], [first[axis] for axis in perm]
        if perm == sorted(perm):
            return name, []
        moved = self._names.fresh("Transpose")
        return moved, [helper.make_node("Transpose", [name], [moved], perm=perm)]

    def _places(self, index: str, new: str, shape: tuple[Dim, ...], axis: int, nodes: list[NodeProto]) -> str:
        """The name of an index for each entry of what is new, once for each shape; nodes for it are added to the others.

        Args:
            index: int64[n,1], of so many positions along the axis.
        """
        if (index, shape, axis) not in self._indices:
            one, places, sizes = (self._names.fresh(hint) for hint in ("index", "indices", "sizes"))
            told = concrete(shape)
            ones = self._names.fresh("ones")
            laid = np.ones(len(shape), np.int64)
            laid[axis] = -1
            self.fresh.append(tensor_of(laid, ones))
            nodes.append(helper.make_node("Reshape", [self._source(index), ones], [one]))
            if told is None:
                nodes.append(helper.make_node("Shape", [new], [sizes]))
            else:
                self.fresh.append(tensor_of(np.asarray(told, np.int64), sizes))
            nodes.append(helper.make_node("Expand", [one, sizes], [places]))
            self._indices[index, shape, axis] = places
        return self._indices[index, shape, axis]

    def _source(self, name: str) -> str:
        """What an only entry is reshaped from."""
        while (maker := self._makers.get(name)) is not None and traits_of(maker.op_type).rearranges:
            name = maker.input[0]
        return name


def _is_plain(scatter: NodeProto) -> bool:
    """Whether a ScatterND writes over what was there."""
    return all(attribute.s == b"none" for attribute in scatter.attribute)


def _perm(node: NodeProto | None) -> list[int]:
    """The order in which a Transpose takes axes, where it says so; nothing of any other node."""
    if node is None or node.op_type != "Transpose":
        return []
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), [])
