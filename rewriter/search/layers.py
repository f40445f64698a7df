"""Repeated layers solved once: a model in which a run of equal layers is shortened to a few of them.

Layers are found as tandem repeats in the sequence of nodes (equal operators, attributes and types, whatever the weights),
cut where the fewest values cross, and verified one by one: corresponding operands are corresponding nodes of the same
layer or of the one before, the same value for all layers, or weights. The first, one from the middle and the last
are kept (more where a pattern could span more). The values that the last kept layer reads are redefined as those of the
middle one; a graph is persistent, so the layers between fall away at no cost. What a search finds on the short model is
then done on the whole one at every site of the same place within a layer; a guard that looks at the weights themselves
may refuse some.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.graph import Definition, Graph, Node
from mugraph.onnx import Model
from rewriter.search.backtracking import Candidate, Search, retrace_sites, site_key

__all__ = ["Lifted", "Region", "ShortModel", "find_regions", "lift", "opaque_kind", "shorten"]

_LEAST_COPIES = 4
"""Fewest layers of which one can be left out."""

_LONGEST_PERIOD = 2000
"""Most nodes of a layer that is looked for."""

NodeKind = Callable[[Node], Hashable]
"""What an opaque node does, beyond its operand types; ``None`` is like nothing else."""


def opaque_kind(model: Model) -> NodeKind:
    """Tells a model's opaque nodes apart by operator and attributes, subgraphs and the names that they capture included."""

    def kind(node: Node) -> Hashable:
        origin = model.origins[node.origin] if node.origin is not None else None
        if origin is None:
            return None
        attributes = sorted(attribute.SerializeToString() for attribute in origin.attribute)
        return (origin.domain, origin.op_type, origin.overload, *attributes)

    return kind


@dataclass(frozen=True, slots=True)
class Region:
    """A run of layers that are equal up to weights.

    Attributes:
        segments: the nodes of each layer; the same index is the same place.
        crossing: how many values each layer reads from the one before.
    """

    segments: tuple[tuple[Node, ...], ...]
    crossing: int


@dataclass(frozen=True, slots=True)
class ShortModel:
    """A model without most of its repeated layers.

    Attributes:
        whole, graph: the model as it came, and the short one.
        regions: what was shortened.
        kept: how many layers of each region are left.
    """

    whole: Graph
    graph: Graph
    regions: tuple[Region, ...]
    kept: tuple[int, ...]
    _places: Mapping[int, str]
    _keys: dict[int, str]

    def key(self, value: int) -> str:
        """What a value is, the same for corresponding values of all layers (:meth:`mugraph.graph.Tables.key`)."""
        tables = self.whole.tables
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self._keys:
                stack.pop()
                continue
            maker = tables.makers.get(current)
            if current in self._places:
                self._keys[current] = self._places[current]
            elif maker is None or maker[0].origin is not None:
                self._keys[current] = tables.key(current)
            else:
                missing = [operand for operand in maker[0].inputs if operand not in self._keys]
                if missing:
                    stack.extend(missing)
                    continue
                node, out = maker
                text = "\0".join([node.op, repr(node.attrs), str(out), *(self._keys[v] for v in node.inputs)])
                self._keys[current] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self._keys[value]

    @property
    def skipped(self) -> int:
        """Layers left out, all regions together."""
        return sum(len(region.segments) - kept for region, kept in zip(self.regions, self.kept, strict=True))


# Finding


def _nothing_known(node: Node) -> Hashable:
    return None


def find_regions(graph: Graph, kind: NodeKind = _nothing_known) -> list[Region]:
    """The runs of at least four equal layers, those with most nodes first; they share no node.

    Args:
        graph: a model.
        kind: tells opaque nodes apart.
    """
    nodes = list(graph.nodes())
    tokens = _tokens(graph, nodes, kind)
    taken = np.zeros(len(nodes), bool)
    found: list[Region] = []
    for period, begin, end in sorted(_repeats(tokens), key=lambda repeat: (repeat[1] - repeat[2], repeat[0], repeat[1])):
        if taken[begin:end].any():
            continue
        region = _cut(graph, nodes[begin:end], period)
        if region is not None:
            found.append(region)
            inside = {node for segment in region.segments for node in segment}
            taken |= np.fromiter((node in inside for node in nodes), bool, len(nodes))
    return found


def _tokens(graph: Graph, nodes: Sequence[Node], kind: NodeKind) -> np.ndarray:
    """A number a node; equal where operator, attributes, operand types and which operands are constant are equal."""
    numbers: dict[Hashable, int] = {}
    tables = graph.tables
    tokens = []
    for node in nodes:
        own = kind(node) if node.is_opaque else ()
        operands = tuple((tables.types[v], tables.constant[v]) for v in node.inputs)
        results = tuple(tables.types[v] for v in node.values)
        what: Hashable = node.index if own is None else (node.op, repr(node.attrs), operands, results, own)
        tokens.append(numbers.setdefault(what, len(numbers)))
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


def _cut(graph: Graph, nodes: Sequence[Node], period: int) -> Region | None:
    """The run cut where the fewest values cross, if its layers really are equal."""
    cuts = []
    for offset in range(period):
        copies = (len(nodes) - offset) // period
        if copies < _LEAST_COPIES - 1:
            break
        middle = offset + period * ((copies - 1) // 2)
        first, second = nodes[middle : middle + period], nodes[middle + period : middle + 2 * period]
        cuts.append((_crossing(graph, first, second), -copies, offset))
    best: Region | None = None
    for crossing, copies, offset in sorted(cuts):
        if best is not None and crossing > best.crossing:
            break
        segments = [tuple(nodes[offset + k * period : offset + (k + 1) * period]) for k in range(-copies)]
        segments = _longest_equal(graph, segments)
        while segments and (earlier := _layer_before(graph, segments[0])) is not None:
            if len(_longest_equal(graph, [earlier, *segments])) <= len(segments):
                break
            segments.insert(0, earlier)
        if len(segments) >= (_LEAST_COPIES if best is None else len(best.segments) + 1):
            best = Region(tuple(segments), crossing)
    return best


def _crossing(graph: Graph, first: Sequence[Node], second: Sequence[Node]) -> int:
    """How many values, not constants, the second segment reads from the first."""
    made = {value for node in first for value in node.values}
    return len({v for node in second for v in node.inputs if v in made and not graph.tables.constant[v]})


Operand = tuple[object, ...]
"""What an operand is, relative to a layer: ``("here", j, o)`` output o of its node j, ``("before", j, o)`` of the layer
before, ``("weight", n)`` its n-th weight, ``("same", v)`` the value v for all layers."""


def _wiring(graph: Graph, segment: Sequence[Node], before: Sequence[Node]) -> list[list[Operand]]:
    here = {v: (j, o) for j, node in enumerate(segment) for o, v in enumerate(node.values)}
    earlier = {v: (j, o) for j, node in enumerate(before) for o, v in enumerate(node.values)}
    weights: dict[int, int] = {}
    wiring: list[list[Operand]] = []
    for node in segment:
        operands: list[Operand] = []
        for value in node.inputs:
            if value in here:
                operands.append(("here", *here[value]))
            elif value in earlier and not graph.tables.constant[value]:
                operands.append(("before", *earlier[value]))
            elif _is_weight(graph, value):
                operands.append(("weight", weights.setdefault(value, len(weights))))
            else:
                operands.append(("same", value))
        wiring.append(operands)
    return wiring


def _is_weight(graph: Graph, value: int) -> bool:
    """Whether a value is a stored constant of more than one element, which may differ from layer to layer."""
    constant = graph.tables.constants.get(value)
    return constant is not None and graph.definition(value) is None and any(d != 1 for d in constant.type.shape)


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


def _same_wiring(left: list[list[Operand]], right: list[list[Operand]], first: bool) -> bool:
    """Whether two neighbouring segments are wired alike; what the ``first`` of all reads from before may be anything."""
    for ours, theirs in zip(left, right, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            entry = first and b[0] == "before" and a[0] in ("before", "same")
            if a != b and not entry:
                return False
    return True


def _layer_before(graph: Graph, segment: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The nodes that stand where a layer before ``segment`` would, found upwards from the values that it reads.

    The first layer of a model often stands in another order than the others, since it computes what all of them read.
    """
    place = {node: j for j, node in enumerate(segment)}
    outgoing = [  # what the layer gives to the next: places that nobody within reads, in the order of the nodes
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
        found = graph.definition(at)
        if found is None:
            return None
        node, out = found
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


# Shortening


def shorten(graph: Graph, depth: int, kind: NodeKind = _nothing_known) -> ShortModel | None:
    """The model with its repeated layers shortened, or ``None`` where there are none to leave out.

    Args:
        graph: the model.
        depth: greatest number of operators on a path of a pattern.
        kind: tells opaque nodes apart.
    """
    regions: list[Region] = []
    kept: list[int] = []
    changes: dict[int, Definition] = {}
    places: dict[int, str] = {}
    for region in find_regions(graph, kind):
        copies = len(region.segments)
        keep = max(3, 1 + -(-(depth - 1) // len(region.segments[0])))  # a pattern may span several layers of few nodes
        marks = _marks(graph, region, len(regions))
        if keep >= copies or marks is None or any(places.get(value, mark) != mark for value, mark in marks.items()):
            continue
        places.update(marks)
        template = region.segments[keep - 2]
        dropped = region.segments[keep - 1 : copies - 1]
        inside = {node for segment in dropped for node in segment}
        for segment in dropped:
            for node, model in zip(segment, template, strict=True):
                for value, standing in zip(node.values, model.values, strict=True):
                    if value in graph.outputs or not inside.issuperset(graph.users.get(value, ())):
                        changes[value] = (graph.tables.apply("Identity", (), [standing]), 0)
        regions.append(region)
        kept.append(keep)
    if not regions:
        return None
    return ShortModel(graph, graph.substitute(changes), tuple(regions), tuple(kept), places, {})


def _marks(graph: Graph, region: Region, number: int) -> dict[int, str] | None:
    """What the values and weights of all layers are called by their place; ``None`` where a weight has two places."""
    marks: dict[int, str] = {}
    for segment in region.segments:
        weights: dict[int, int] = {}
        for j, node in enumerate(segment):
            for o, value in enumerate(node.values):
                marks[value] = f"layer {number} node {j}.{o}"
            for value in node.inputs:
                if _is_weight(graph, value):
                    mark = f"layer {number} weight {weights.setdefault(value, len(weights))}"
                    if marks.setdefault(value, mark) != mark:
                        return None
    return marks


# Doing on the whole model what was found on the short one


@dataclass(frozen=True, slots=True)
class Lifted:
    """A candidate of the whole model, and in how many places fewer than expected its moves applied."""

    candidate: Candidate
    missing: int


def lift(search: Search, short: ShortModel, candidate: Candidate) -> Lifted:
    """Takes a short model's moves on the whole one, at every site of the same place."""
    steps = [move.step(short.key) for move in candidate.moves]
    lifted, done = retrace_sites(search, short.whole, steps, short.key)
    missing = 0
    for move, sites in zip(candidate.moves, done, strict=True):
        missing += max(_expected(short, Counter(site_key(match, short.key) for match in move.matches)) - sites, 0)
    return Lifted(lifted, missing)


def _expected(short: ShortModel, sites: Counter[str]) -> int:
    """Sites on the whole model: what a short model has in several layers, the whole one has in every layer left out, too."""
    skipped = [len(region.segments) - kept for region, kept in zip(short.regions, short.kept, strict=True)]
    expected = 0
    for key, count in sites.items():
        of = [skip for number, skip in enumerate(skipped) if f"layer {number} " in key]
        expected += count + (min(of, default=0) if count > 1 else 0)
    return expected
