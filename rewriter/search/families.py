"""What models have in common that differ in the number of their layers and in their weights: a family.

Their short graphs are the same (:mod:`rewriter.search.layers`). Values within layers have names already, the same in all layers
and models; here those outside of layers get some, in the order in which they are met upwards from the outputs. So a move that was
recorded in one model by these names says where to make it in another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from rewriter.search.layer_runs import NodeKind, nothing_known
from rewriter.search.layers import ShortModel

__all__ = ["ModelFamily", "family_of"]

_SMALL = 4096
"""Most entries of a constant of no floats that are part of what a model is; of floats only single numbers are."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """The family of a model.

    Attributes:
        digest: the same for models whose short graphs are.
        key: a name of a value of the model that means the same in each of them (as :meth:`mugraph.graph.Tables.key`).
    """

    digest: str
    key: Callable[[int], str]


def family_of(short: ShortModel, kind: NodeKind = nothing_known) -> ModelFamily | None:
    """The family of a model with repeated layers; ``None`` where a part of it is like nothing else.

    Values of which there is one a layer, such as what a decoder keeps, are as one: the first of them stands for all.

    Args:
        kind: tells opaque nodes apart.
    """
    graph, tables = short.graph, short.graph.tables
    if tables.bodies or tables.captured:
        return None
    places, lines, leaves = dict(short.places), list[str](), dict[str, str]()

    def leaf(value: int) -> str:
        """The name of a value that no node computes, which it gets where it is met first."""
        name = places.setdefault(value, f"value {len(leaves)}")
        leaves.setdefault(name, _leaf(graph, value))
        return name

    numbers: dict[int, str] = {}

    def operand(value: int) -> str:
        source = _source(graph, value)
        name = numbers.get(source) or leaf(source)
        places.setdefault(value, places[source])
        return name

    for count, node in enumerate(_computing(graph)):
        told = kind(node) if node.is_opaque else ()
        if told is None:
            return None
        operands = [operand(value) for value in node.inputs]
        for out, value in enumerate(node.values):
            numbers[value] = f"node {count}.{out}"
            places.setdefault(value, numbers[value])
        results = [f"{tables.types[value]} {places[value]}" for value in node.values]
        lines.append("\0".join([node.op, repr(node.attrs), repr(told), *operands, "", *results]))
    lines.append("\0".join(dict.fromkeys(map(operand, graph.outputs))))
    lines += ["\0".join(item) for item in leaves.items()]
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
    return ModelFamily(digest, replace(short, places=places).key)


def _computing(graph: Graph) -> Iterator[Node]:
    """The nodes but those that only hand on a value, operands first."""
    return (node for node in graph.nodes() if node.op != "Identity")


def _source(graph: Graph, value: int) -> int:
    """What a value is, behind what only hands it on: of a layer that is left out, that of one that is kept."""
    while (definition := graph.definition(value)) is not None:
        node, out = definition
        if node.op != "Identity":
            return node.values[out]
        (value,) = node.inputs
    return value


def _leaf(graph: Graph, value: int) -> str:
    """What a value is that no node computes: of weights the type alone."""
    constant, type_ = graph.tables.constants.get(value), graph.type(value)
    if constant is None:
        return f"fed: {type_}"
    is_number = constant.type.size() <= (1 if constant.type.dtype in FLOATS else _SMALL)
    return f"constant: {type_} {constant.load().tolist() if is_number else ''}"
