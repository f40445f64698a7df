"""Pictures of rules: both graphs side by side as one SVG, equal bytes for equal rules.

Operands stand above what uses them. Layers are longest paths (:func:`networkx.topological_generations`), the order within a
layer follows the neighbours' mean position (Sugiyama's method), and an edge that skips layers goes through a place of its own
in each of them, so that it crosses no box. A variable has one colour wherever it occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from mugraph.lines import in_a_line
from mugraph.terms.term import Term, format_value, variables, walk
from rules_db.late import LateModule
from rules_db.trust.rule import Rule, Side

if TYPE_CHECKING:
    import networkx as nx
else:
    nx = LateModule("networkx")  # a third of the modules that a run would import, and few ask for a picture

__all__ = ["svg"]

_CHARACTER, _LINE, _PAD, _GAP, _ROW = 7.3, 15, 9, 22, 38
"""Pixels: width of a character, height of a line, margin within a box, gaps between boxes and between rows."""
_COLOURS = ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#fa9fb5", "#e7cb94", "#9edae5", "#d9d9d9", "#c7e9c0", "#fdd0a2")
_SWEEPS = 6


@dataclass(eq=False)
class _RuleBox:
    """A node of the picture; one without lines is where a long edge passes."""

    lines: tuple[str, ...] = ()
    colour: str = "#ffffff"
    rounded: bool = False
    x: float = 0.0
    y: float = 0.0
    above: list[_RuleBox] = field(default_factory=list)
    below: list[_RuleBox] = field(default_factory=list)

    @property
    def width(self) -> float:
        return 2 * _PAD + _CHARACTER * max(map(len, self.lines)) if self.lines else 4.0

    @property
    def height(self) -> float:
        return 2 * _PAD + _LINE * len(self.lines) - 4 if self.lines else 0.0


@dataclass(frozen=True, eq=False)
class _Edge:
    """From an operand to one of the slots of its user, through the places between them."""

    path: tuple[_RuleBox, ...]
    slot: int
    slots: int
    label: str = ""


_Key = tuple[object, ...]


def _key(term: Term) -> _Key:
    """The outputs of one operator are one box."""
    return (term.op, repr(term.attrs), term.inputs)


def _part(term: Term) -> str:
    return f"part {term.out}" if term.op == "Split" or term.out else ""


def _lines(term: Term, types: Mapping[str, str]) -> tuple[str, ...]:
    if term.is_var:
        return (term.name, types[term.name]) if term.name in types else (term.name,)
    if term.op == "Const":
        return (format_value(term.attr("value")),)
    return (term.op, *(f"{name}={format_value(value)}" for name, value in term.attrs))


def _layers(side: Side, types: Mapping[str, str], colours: Mapping[str, str]) -> tuple[list[list[_RuleBox]], list[_Edge]]:
    """Boxes by layer, operands first, and the edges between them."""
    graph, boxes = nx.DiGraph(), dict[_Key, _RuleBox]()
    used: list[tuple[_Key, _Key, int, int, str]] = []
    for term in walk(side):
        key = _key(term)
        if key in boxes:
            continue
        colour = colours[term.name] if term.is_var else "#f0f0f0" if not term.inputs else "#ffffff"
        boxes[key] = _RuleBox(_lines(term, types), colour, not term.inputs)
        graph.add_node(key)
        for slot, operand in enumerate(term.inputs):
            used.append((_key(operand), key, slot, len(term.inputs), _part(operand)))
            graph.add_edge(_key(operand), key)
    for number, root in enumerate(side):
        key = ("output", number)
        boxes[key] = _RuleBox((f"output {number}" if len(side) > 1 else "output",), "#ffffff", True)
        used.append((_key(root), key, 0, 1, _part(root)))
        graph.add_edge(_key(root), key)
    level = {key: number for number, keys in enumerate(nx.topological_generations(graph)) for key in keys}
    for key in graph:  # leaves stand right above their first use
        if not graph.in_degree(key):
            level[key] = min(level[user] for user in graph.successors(key)) - 1
    for number in range(len(side)):
        level["output", number] = max(level.values()) if number == 0 else level["output", 0]
    rows: list[list[_RuleBox]] = [[] for _ in range(max(level.values()) + 1)]
    for key, box in boxes.items():
        rows[level[key]].append(box)
    edges = []
    for source, target, slot, slots, label in used:
        path = [boxes[source]]
        for number in range(level[source] + 1, level[target]):
            place = _RuleBox()
            rows[number].append(place)
            path.append(place)
        path.append(boxes[target])
        for upper, lower in pairwise(path):
            upper.below.append(lower)
            lower.above.append(upper)
        edges.append(_Edge(tuple(path), slot, slots, label))
    return rows, edges


def _arrange(rows: Sequence[list[_RuleBox]]) -> None:
    """Orders each row by the mean place of its neighbours, in turn above and below, and gives coordinates."""
    _place(rows)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else reversed(rows):
            means = {}
            for box in row:
                near = box.above if downwards else box.below
                means[box] = sum(other.x for other in near) / len(near) if near else box.x
            row.sort(key=lambda box: means[box])
            _spread(row, means)
    y = 0.0
    for row in rows:
        height = max(box.height for box in row)
        for box in row:
            box.y = y + height / 2
        y += height + _ROW


def _place(rows: Sequence[Sequence[_RuleBox]]) -> None:
    for row in rows:
        x = -sum(box.width + _GAP for box in row) / 2
        for box in row:
            box.x = x + (box.width + _GAP) / 2
            x += box.width + _GAP


def _spread(row: Sequence[_RuleBox], wanted: Mapping[_RuleBox, float]) -> None:
    """Boxes as near to the wanted places as they fit, in order: groups that would overlap share their mean."""
    groups: list[tuple[list[_RuleBox], float]] = []
    for box in row:
        members, centre = [box], wanted[box]
        while groups:
            last, place = groups[-1]
            if place + _extent(last) / 2 <= centre - _extent(members) / 2:
                break
            groups.pop()
            total = len(last) + len(members)
            centre = (
                (place - _extent(last) / 2) * len(last) + (centre - _extent(members) / 2 - _extent(last)) * len(members)
            ) / total + (_extent(last) + _extent(members)) / 2
            members = last + members
        groups.append((members, centre))
    for members, centre in groups:
        x = centre - _extent(members) / 2
        for box in members:
            box.x = x + (box.width + _GAP) / 2
            x += box.width + _GAP


def _extent(boxes: Sequence[_RuleBox]) -> float:
    return sum(box.width + _GAP for box in boxes)


def _draw_box(box: _RuleBox) -> list[str]:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    radius = box.height / 2 if box.rounded else 3
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius:.1f}" '
        f'fill="{box.colour}" stroke="#444444"/>'
    ]
    for number, line in enumerate(box.lines):
        y = top + _PAD + _LINE * number + 9
        style = ' font-weight="bold"' if number == 0 else ' fill="#444444"'
        parts.append(f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle"{style}>{escape(in_a_line(line))}</text>')
    return parts


def _draw_edge(edge: _Edge) -> list[str]:
    start, *between, end = edge.path
    slot = end.x - end.width / 2 + end.width * (edge.slot + 1) / (edge.slots + 1)
    points = [(start.x, start.y + start.height / 2), *((box.x, box.y) for box in between), (slot, end.y - end.height / 2)]
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x, y), (u, v) in pairwise(points):
        middle = (y + v) / 2
        path += f" C{x:.1f},{middle:.1f} {u:.1f},{middle:.1f} {u:.1f},{v:.1f}"
    parts = [f'<path d="{path}" fill="none" stroke="#777777" marker-end="url(#tip)"/>']
    if edge.label:
        x, y = points[-1]
        parts.append(f'<text x="{x + 6:.1f}" y="{y - 7:.1f}" fill="#777777">{escape(in_a_line(edge.label))}</text>')
    return parts


def svg(rule: Rule) -> str:
    """The picture of a rule's source and target, side by side."""
    names = [leaf.name for leaf in variables((*rule.source, *rule.target))]
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    types = {name: str(type_) for name, type_ in rule.types.items()}
    drawn, right, bottom = [], 0.0, 0.0
    for title, side in (("source", rule.source), ("target", rule.target)):
        rows, edges = _layers(side, types, colours)
        _arrange(rows)
        boxes = [box for row in rows for box in row]
        low, high = (min(b.x - b.width / 2 for b in boxes), max(b.x + b.width / 2 for b in boxes))
        shift = right + 2 * _GAP - low
        parts = [f'<text x="{(low + high) / 2:.1f}" y="-14" text-anchor="middle" font-size="15">{title}</text>']
        parts += [part for edge in edges for part in _draw_edge(edge)]
        parts += [part for box in boxes if box.lines for part in _draw_box(box)]
        drawn.append(f'<g transform="translate({shift:.1f},56)">\n' + "\n".join(parts) + "\n</g>")
        right = shift + high
        bottom = max(bottom, max(b.y + b.height / 2 for b in boxes))
    width, height = right + 2 * _GAP, bottom + 56 + _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="12">\n'
        f"<title>rule {rule.id}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#777777"/></marker></defs>\n'
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>\n'
    )
    return head + "\n".join(drawn) + "\n</svg>\n"
