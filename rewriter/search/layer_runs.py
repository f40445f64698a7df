"""Runs of repeated layers in a model.

They are found as tandem repeats in the sequence of nodes (equal operators, attributes and types, whatever the weights), cut where
the fewest values cross, and verified one by one: corresponding operands are corresponding nodes of the same layer or of the one
before, the same value for all layers, or a layer's own: weights, and inputs of the model that no other layer reads, as the cache
of a decoder is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.graph import Graph, Node

__all__ = ["LayerRun", "NodeKind", "fed_to", "find_layer_runs", "is_weight", "nothing_known"]

_LEAST_COPIES = 4
"""Fewest layers of which one can be left out."""

_LONGEST_PERIOD = 2000
"""Most nodes of a layer that is looked for."""

NodeKind = Callable[[Node], Hashable]
"""Tells opaque nodes apart beyond their operand types: those of equal answers do the same; ``None`` is like nothing else."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A run of layers that are equal up to weights.

    Attributes:
        layers: the nodes of each layer; the same index is the same place.
        crossing: how many values each layer reads from the one before.
    """

    layers: tuple[tuple[Node, ...], ...]
    crossing: int


def nothing_known(node: Node) -> Hashable:
    """The :data:`NodeKind` of which every opaque node is like nothing else."""
    return None


def find_layer_runs(graph: Graph, kind: NodeKind = nothing_known) -> list[LayerRun]:
    """The runs of at least four equal layers, those with most nodes first; they share no node.

    Args:
        graph: a model.
        kind: tells opaque nodes apart.
    """
    nodes = list(graph.nodes())
    tokens = _tokens(graph, nodes, kind)
    taken = np.zeros(len(nodes), bool)
    runs: list[LayerRun] = []
    for period, begin, end in sorted(_repeats(tokens), key=lambda repeat: (repeat[1] - repeat[2], repeat[0], repeat[1])):
        if taken[begin:end].any():
            continue
        run = _cut(graph, nodes[begin:end], period, len(nodes) // period)
        if run is not None:
            runs.append(run)
            inside = {node for layer in run.layers for node in layer}
            taken |= np.fromiter((node in inside for node in nodes), bool, len(nodes))
    return runs


def _tokens(graph: Graph, nodes: Sequence[Node], kind: NodeKind) -> np.ndarray:
    """A number a node; equal where operator, attributes, operand types and which operands are constant are equal."""
    numbers: dict[Hashable, int] = {}
    tables = graph.tables
    tokens = []
    for node in nodes:
        told = kind(node) if node.is_opaque else ()
        operands = tuple((tables.types[v], tables.constant[v]) for v in node.inputs)
        results = tuple(tables.types[v] for v in node.values)
        look: Hashable = node.index if told is None else (node.op, repr(node.attrs), operands, results, told)
        tokens.append(numbers.setdefault(look, len(numbers)))
    return np.asarray(tokens, np.int64)


def _repeats(tokens: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Stretches that repeat with a period: period, begin and end. One more layer may stand before the first, in another order."""
    least = _LEAST_COPIES - 1
    for period in range(1, min(len(tokens) // least, _LONGEST_PERIOD) + 1):
        equal = np.concatenate([[False], tokens[:-period] == tokens[period:], [False]])
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if (end - begin) // period + 1 >= least:
                yield period, int(begin), int(end) + period


def _cut(graph: Graph, nodes: Sequence[Node], period: int, most: int) -> LayerRun | None:
    """The run cut where the fewest values cross, if its layers really are equal.

    Args:
        most: layers that there may be.
    """
    cuts = []
    for offset in range(period):
        copies = (len(nodes) - offset) // period
        if copies < _LEAST_COPIES - 1:
            break
        middle = offset + period * ((copies - 1) // 2)
        first, second = nodes[middle : middle + period], nodes[middle + period : middle + 2 * period]
        cuts.append((_crossing(graph, first, second), -copies, offset))
    best: LayerRun | None = None
    for crossing, copies, offset in sorted(cuts):
        if best is not None and (crossing > best.crossing or len(best.layers) >= most):
            break
        segments = [tuple(nodes[offset + k * period : offset + (k + 1) * period]) for k in range(-copies)]
        segments = _longest_equal(graph, segments)
        while len(segments) > 1 and (earlier := _layer_before(graph, segments[0])) is not None:
            if len(_longest_equal(graph, [earlier, *segments])) <= len(segments):
                break
            segments.insert(0, earlier)
        if len(segments) >= (_LEAST_COPIES if best is None else len(best.layers) + 1):
            best = LayerRun(tuple(segments), crossing)
    return best


def _crossing(graph: Graph, first: Sequence[Node], second: Sequence[Node]) -> int:
    """The number of values, constants apart, that the second segment reads from the first."""
    made = {value for node in first for value in node.values}
    return len({v for node in second for v in node.inputs if v in made and not graph.tables.constant[v]})


_Operand = tuple[object, ...]
"""An operand, relative to a layer: ``("here", j, o)`` is output o of its node j, ``("before", j, o)`` that of the layer before,
``("weight", n)`` its n-th weight, ``("fed", j, i)`` the input of the model that operand i of its node j is and no other layer
reads, ``("same", v)`` the value v for all layers."""


def _wiring(graph: Graph, segment: Sequence[Node], before: Sequence[Node]) -> list[list[_Operand]]:
    """The operands of each node of a segment, relative to it and to the segment before."""
    here = {v: (j, o) for j, node in enumerate(segment) for o, v in enumerate(node.values)}
    earlier = {v: (j, o) for j, node in enumerate(before) for o, v in enumerate(node.values)}
    weights: dict[int, int] = {}
    fed = fed_to(graph, segment)
    wiring: list[list[_Operand]] = []
    for node in segment:
        operands: list[_Operand] = []
        for value in node.inputs:
            if value in here:
                operands.append(("here", *here[value]))
            elif value in earlier and not graph.tables.constant[value]:
                operands.append(("before", *earlier[value]))
            elif is_weight(graph, value):
                operands.append(("weight", weights.setdefault(value, len(weights))))
            elif value in fed:
                operands.append(("fed", *fed[value]))
            else:
                operands.append(("same", value))
        wiring.append(operands)
    return wiring


def is_weight(graph: Graph, value: int) -> bool:
    """Whether a value is a stored constant of more than one element, which may differ from layer to layer."""
    constant = graph.tables.constants.get(value)
    return constant is not None and graph.definition(value) is None and any(d != 1 for d in constant.type.shape)


def fed_to(graph: Graph, layer: Sequence[Node]) -> dict[int, tuple[int, int]]:
    """The inputs of a model that only the nodes of a layer read: the first of these that does, by its place, and the operand."""
    within, fed = frozenset(layer), dict[int, tuple[int, int]]()
    for j, node in enumerate(layer):
        for i, value in enumerate(node.inputs):
            is_input = graph.definition(value) is None and not graph.tables.constant[value]
            if is_input and value not in fed and within.issuperset(graph.users.get(value, ())):
                fed[value] = j, i
    return fed


def _longest_equal(graph: Graph, segments: Sequence[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
    """The longest stretch of segments that are equal up to weights and to where the first gets its operands from."""
    wirings = [_wiring(graph, s, segments[k - 1] if k else ()) for k, s in enumerate(segments)]
    best: tuple[int, int] = (0, 0)
    begin = 0
    for k in range(1, len(segments) + 1):
        if k < len(segments):
            similar = _same_wiring(wirings[k - 1], wirings[k], first=k - 1 == begin)
            if not similar and k - 1 > begin:  # a new stretch may begin with the segment before
                best = max(best, (k - begin, -begin))
                begin = k - 1
                similar = _same_wiring(wirings[k - 1], wirings[k], first=True)
            if similar:
                continue
        best = max(best, (k - begin, -begin))
        begin = k
    length, start = best[0], -best[1]
    return list(segments[start : start + length])


def _same_wiring(left: list[list[_Operand]], right: list[list[_Operand]], first: bool) -> bool:
    """Whether two neighbouring segments are wired alike; what the ``first`` of all reads from before may be anything."""
    for ours, theirs in zip(left, right, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            entry = first and b[0] == "before" and a[0] in ("before", "same", "fed")
            if a != b and not entry:
                return False
    return True


def _layer_before(graph: Graph, segment: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The nodes that stand where a layer before ``segment`` would, found upwards from the values that it reads.

    The first layer of a model often stands in another order than the others, since it computes what all of them read.
    """
    place = {node: j for j, node in enumerate(segment)}
    outgoing = [  # results that nobody within the layer reads go to the next one; in the order of the nodes
        (j, o) for j, node in enumerate(segment) for o, value in enumerate(node.values) if not _read_within(graph, value, place)
    ]
    made = {value for node in segment for value in node.values}
    incoming = list(
        dict.fromkeys(v for node in segment for v in node.inputs if v not in made and graph.definition(v) is not None)
    )
    for j, o in outgoing:
        for value in incoming:
            earlier = _matched_upwards(graph, segment, (j, o), value)
            if earlier is not None:
                return earlier
    return None


def _read_within(graph: Graph, value: int, place: Mapping[Node, int]) -> bool:
    return any(user in place for user in graph.users.get(value, ()))


def _matched_upwards(graph: Graph, segment: Sequence[Node], root: tuple[int, int], value: int) -> tuple[Node, ...] | None:
    """The nodes that correspond to ``segment`` if ``value`` corresponds to the output ``root`` of it."""
    here = {v: (j, o) for j, node in enumerate(segment) for o, v in enumerate(node.values)}
    matched: dict[int, Node] = {}
    stack = [(root, value)]
    while stack:
        (j, o), at = stack.pop()
        maker = graph.definition(at)
        if maker is None:
            return None
        node, out = maker
        ours = segment[j]
        if out != o or node.op != ours.op or node.attrs != ours.attrs or len(node.inputs) != len(ours.inputs):
            return None
        if j in matched:
            if matched[j] is not node:
                return None
            continue
        types = graph.tables.types
        if node in segment or any(types[a] != types[b] for a, b in zip(node.inputs, ours.inputs, strict=True)):
            return None
        matched[j] = node
        stack.extend((here[a], b) for a, b in zip(ours.inputs, node.inputs, strict=True) if a in here)
    return tuple(matched[j] for j in range(len(segment))) if len(matched) == len(segment) else None
