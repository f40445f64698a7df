"""Two ONNX graphs as a page shows them: nodes in groups that fold, and the regions that changed, in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, GraphProto, NodeProto

from mugraph.onnx.scopes import captured
from rules_db.late import LateModule

if TYPE_CHECKING:
    import networkx as nx
else:
    nx = LateModule("networkx")  # a third of the modules that a run would import, and few ask for a report

__all__ = ["ChangedRegion", "GraphView", "operator_counts", "regions_by_name"]

_CHILDREN = 48
"""Most things that a group shows when it is opened."""
_LONG = 60
"""Characters of an attribute that are shown."""


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """Nodes of two graphs that compute the same, or should.

    Attributes:
        before, after: numbers of nodes in their graphs.
        verdict: a word that says how that is known.
        words: what there is to say of it, line by line.
        rules: ids of the rules that say why.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    verdict: str
    words: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def operator_counts(before: GraphProto, after: GraphProto) -> list[tuple[str, int, int]]:
    """For each operator its nodes before and after, those that changed most first."""
    counts = [Counter(map(_operator, graph.node)) for graph in (before, after)]
    rows = [(op, counts[0][op], counts[1][op]) for op in {*counts[0], *counts[1]}]
    return sorted(rows, key=lambda row: (-abs(row[1] - row[2]), -row[1] - row[2], row[0]))


def _operator(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def regions_by_name(before: GraphProto, after: GraphProto, verdict: str) -> list[ChangedRegion]:
    """The regions in which two graphs differ, where values of one name are the same value in both.

    A node is common where its operator, attributes and operands are; regions are cut where values are common.

    Args:
        verdict: of every region.
    """
    common = _defined(before) & _defined(after)
    makers = [
        {name: number for number, node in enumerate(graph.node) for name in node.output if name} for graph in (before, after)
    ]
    kept_before, kept_after = set[int](), set[int]()
    for number, node in enumerate(after.node):
        first = next((name for name in node.output if name in common and name in makers[0]), None)
        if first is not None and _same(node, before.node[makers[0][first]]):
            kept_after.add(number)
            kept_before.add(makers[0][first])
    graph: nx.Graph = nx.Graph()
    for side, (nodes, kept) in enumerate(((before.node, kept_before), (after.node, kept_after))):
        for number, node in enumerate(nodes):
            if number in kept:
                continue
            graph.add_node((side, number))
            for name in node.input:
                maker = makers[side].get(name)
                if maker is not None and maker not in kept and name not in common:
                    graph.add_edge((side, number), (side, maker))
    for name in common:
        ends = [(side, makers[side][name]) for side in (0, 1) if name in makers[side]]
        if len(ends) == 2 and all(end in graph for end in ends):
            graph.add_edge(*ends)
    parts = (sorted(members) for members in nx.connected_components(graph))
    split = [(tuple(n for s, n in part if s == 0), tuple(n for s, n in part if s == 1)) for part in parts]
    return [ChangedRegion(*pair, verdict) for pair in sorted(split, key=lambda p: p[1] or (len(after.node), *p[0]))]


def _defined(graph: GraphProto) -> set[str]:
    tensors = (tensor.name for tensor in graph.initializer)
    inputs = (value.name for value in graph.input)
    return {*tensors, *inputs, *(name for node in graph.node for name in node.output if name)}


def _same(node: NodeProto, other: NodeProto) -> bool:
    bare = []
    for item in (node, other):
        copy = NodeProto()
        copy.CopyFrom(item)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        copy.ClearField("metadata_props")
        bare.append(
            (copy.op_type, copy.domain, [*copy.input], [*copy.output], sorted(a.SerializeToString() for a in copy.attribute))
        )
    return bare[0] == bare[1]


class GraphView:
    """A graph for the page.

    Args:
        graph: the main graph of a model.
        regions: the number of the region that each changed node is in.
    """

    def __init__(self, graph: GraphProto, regions: Mapping[int, int]) -> None:
        self._graph, self._regions = graph, regions
        self._types = {value.name: _type(value) for value in (*graph.value_info, *graph.input, *graph.output)}
        self._groups: list[dict[str, Any]] = []

    def as_json(self) -> dict[str, Any]:
        """Nodes, the edges between them, and groups; every node and group names the group that it is in."""
        makers = {name: number for number, node in enumerate(self._graph.node) for name in node.output if name}
        parents = [0] * len(self._graph.node)
        self._group("model", -1)
        self._fill(0, list(enumerate(_scopes(self._graph))), parents, 0)
        nodes = []
        for number, node in enumerate(self._graph.node):
            read = dict.fromkeys(makers[name] for name in (*node.input, *captured(node)) if name in makers)
            nodes.append(
                {
                    "op": _operator(node),
                    "name": node.name or next(filter(None, node.output), ""),
                    "in": [maker for maker in read if maker != number],
                    "reads": list(node.input),
                    "makes": [f"{name} {self._types.get(name, '')}".strip() for name in node.output if name],
                    "attrs": [f"{a.name} = {_attribute(a)}" for a in node.attribute],
                    "group": parents[number],
                    "region": self._regions.get(number, -1),
                }
            )
        return {"nodes": nodes, "groups": self._groups}

    def _group(self, name: str, parent: int) -> int:
        self._groups.append({"name": name, "parent": parent})
        return len(self._groups) - 1

    def _fill(self, group: int, members: Sequence[tuple[int, tuple[str, ...]]], parents: list[int], depth: int) -> None:
        """Puts nodes into a group, into groups within it where they are too many: by their scopes, or as they stand."""
        if len(members) <= _CHILDREN:
            for number, _ in members:
                parents[number] = group
            return
        runs = list(_runs(members, depth))
        if len(runs) == 1 and runs[0][0]:
            self._fill(group, members, parents, depth + 1)
            return
        if len(runs) > _CHILDREN or all(not name for name, _ in runs):
            size = max(_CHILDREN, -(-len(members) // _CHILDREN))
            for start in range(0, len(members), size):
                part = members[start : start + size]
                scopes = [name for name, _ in _runs(part, depth) if name]
                what = f"{scopes[0]} to {scopes[-1]}" if scopes else ", ".join(self._usual(part))
                inner = self._group(f"{part[0][0] + 1}-{part[-1][0] + 1}: {what}", group)
                self._fill(inner, part, parents, depth)
            return
        for name, part in runs:
            if len(part) == 1 or not name:
                self._fill_bare(group, part, parents, depth)
            else:
                self._fill(self._group(name, group), part, parents, depth + 1)

    def _fill_bare(self, group: int, part: Sequence[tuple[int, tuple[str, ...]]], parents: list[int], depth: int) -> None:
        if len(part) > _CHILDREN:
            self._fill(self._group(f"{part[0][0] + 1}-{part[-1][0] + 1}", group), part, parents, depth + 1)
            return
        for number, _ in part:
            parents[number] = group

    def _usual(self, part: Sequence[tuple[int, tuple[str, ...]]]) -> list[str]:
        """The most frequent operators of some nodes."""
        return [op for op, _ in Counter(self._graph.node[number].op_type for number, _ in part).most_common(3)]


def _runs(members: Sequence[tuple[int, tuple[str, ...]]], depth: int) -> Iterator[tuple[str, list[tuple[int, tuple[str, ...]]]]]:
    """Nodes by the part of their scope at a depth, in the order in which these parts begin."""
    found: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for number, scope in members:
        found.setdefault(scope[depth] if depth < len(scope) else "", []).append((number, scope))
    yield from found.items()


def _scopes(graph: GraphProto) -> list[tuple[str, ...]]:
    """For each node the modules it is in: as its name says, or the weights that it reads, or the nodes before it."""
    weights = {tensor.name for tensor in graph.initializer}
    scopes: list[tuple[str, ...]] = []
    last: tuple[str, ...] = ()
    for node in graph.node:
        parts = tuple(part for part in node.name.split("/")[:-1] if part)
        if not parts:
            named = next((name for name in node.input if name in weights and name.count(".") > 1), None)
            parts = _modules(named) if named is not None else last
        scopes.append(parts)
        last = parts
    return scopes


def _modules(weight: str) -> tuple[str, ...]:
    """The modules that a weight's name tells: ``encoder.layer.3.self.weight`` is in ``encoder``, ``layer.3``, ``self``."""
    parts = weight.split(".")[:-1]
    joined: list[str] = []
    for before, part in pairwise(["", *parts]):
        if part.isdigit() and joined:
            joined[-1] = f"{before}.{part}"
        else:
            joined.append(part)
    return tuple(joined)


def _type(value: Any) -> str:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return ""
    dims = (dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim)
    return f"[{', '.join(dims)}]"


def _attribute(attribute: AttributeProto) -> str:
    kinds = AttributeProto
    if attribute.type == kinds.FLOAT:
        text = f"{attribute.f:g}"
    elif attribute.type == kinds.INT:
        text = str(attribute.i)
    elif attribute.type == kinds.STRING:
        text = attribute.s[:_LONG].decode(errors="replace") if len(attribute.s) <= 4 * _LONG else f"{len(attribute.s):,} bytes"
    elif attribute.type == kinds.INTS:
        text = str(list(attribute.ints[:_LONG]))
    elif attribute.type == kinds.FLOATS:
        text = str([float(f"{x:g}") for x in attribute.floats[:_LONG]])
    elif attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        text = "a graph"
    else:
        text = "a tensor" if attribute.type == kinds.TENSOR else "..."
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
