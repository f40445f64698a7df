"""Pictures of μGraphs: the three levels as one SVG, equal bytes for equal kernels.

The outer frame is the kernel graph with its tensors, a frame within it a block graph with its grid, and within that the loop.
Iterators and savers are labelled with their maps: ``m→0`` has the grid axis m at data dimension 0, ``n→φ`` replicates,
``loop k→1`` is the fmap. A box with a dashed border is a thread graph, one line an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Extent,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    statement_names,
    statement_operands,
)
from mugraph.blocks.text import format_statement
from mugraph.ops.masks import stored_shape
from mugraph.terms.term import Term, format_attrs, format_value, walk

__all__ = ["svg"]

_CHARACTER, _LINE, _PAD, _GAP, _ROW = 7.3, 15, 9, 22, 34
"""Pixels: width of a character, height of a line, margin within a box, gaps between boxes and between rows."""
_COLOURS = {"tensor": "#d9d9d9", "iterator": "#9ecae1", "saver": "#a1d99b", "accumulator": "#fdae6b", "operator": "#ffffff"}


@dataclass(eq=False)
class _BlockBox:
    lines: tuple[str, ...]
    colour: str
    dashed: bool = False
    x: float = 0.0
    y: float = 0.0
    above: list[_BlockBox] = field(default_factory=list)

    @property
    def width(self) -> float:
        return 2 * _PAD + _CHARACTER * max(map(len, self.lines))

    @property
    def height(self) -> float:
        return 2 * _PAD + _LINE * len(self.lines) - 4


def _thread_lines(name: str, root: Term) -> tuple[str, ...]:
    """The operators of a thread graph, numbered; the last is the value's name."""
    labels: dict[Term, str] = {}
    lines: list[str] = []
    for part in walk([root]):
        if part.is_var:
            labels[part] = part.name
        elif part.op == "Const":
            labels[part] = format_value(part.attr("value"))
        else:
            labels[part] = name if part is root else f"#{len(lines) + 1}"
            lines.append(f"{labels[part]} = {part.op}{format_attrs(part)}({', '.join(labels[i] for i in part.inputs)})")
    return tuple(lines) or (f"{name} = {labels[root]}",)


def _maps(block: Block, statement: Load | Store) -> tuple[str, ...]:
    grid, loop = block.maps(statement)
    label = "imap" if isinstance(statement, Load) else "omap"
    lines = [f"{label} " + ", ".join(f"{axis}→{'φ' if at is None else at}" for axis, at in grid.items())] if grid else []
    if block.loop is not None and isinstance(statement, Load):
        lines.append(f"fmap {block.loop}→{'φ' if loop is None else loop}")
    return tuple(lines)


def _box(block: Block, statement: Statement) -> _BlockBox:
    text = format_statement(statement, block.sizes)
    if isinstance(statement, Load):
        return _BlockBox((text, *_maps(block, statement)), _COLOURS["iterator"])
    if isinstance(statement, Store):
        return _BlockBox((text, *_maps(block, statement)), _COLOURS["saver"])
    if isinstance(statement, Compute):
        return _BlockBox(_thread_lines(statement.name, statement.term), _COLOURS["operator"], dashed=True)
    if isinstance(statement, Accumulate):
        return _BlockBox((text, "accumulator"), _COLOURS["accumulator"])
    if isinstance(statement, MaskTile):
        text = text.replace(statement.entries, "×".join(map(str, stored_shape(statement.entries))))
    assert isinstance(statement, Dot | Reduce | Predicate | PlaceTile | MaskTile | Extent)
    return _BlockBox((text,), _COLOURS["operator"])


def _layers(block: Block) -> tuple[list[list[_BlockBox]], int, int]:
    """Boxes by row, and the first and last but one row of the loop: invariants above it, what follows it below."""
    boxes: dict[str, _BlockBox] = {}
    depth: dict[str, int] = {}
    bands: dict[str, list[list[_BlockBox]]] = {"fixed": [], "loop": [], "after": []}
    accumulators: list[_BlockBox] = []
    for statement in block.statements:
        box = _box(block, statement)
        operands = statement_operands(statement)
        box.above = [boxes[operand] for operand in operands]
        phase = block.phases[statement.value] if isinstance(statement, Store) else block.phases[statement_names(statement)[0]]
        band = "loop" if isinstance(statement, Accumulate) else phase
        if band == "fixed" and isinstance(statement, Store):
            band = "after"
        at = 1 + max((depth[o] for o in operands if depth[o] >= 0 and _same_band(block, o, band)), default=-1)
        if isinstance(statement, Accumulate):
            accumulators.append(box)
            boxes.update(dict.fromkeys(statement.names, box))
            depth.update(dict.fromkeys(statement.names, at))
            continue
        rows = bands[band]
        while len(rows) <= at:
            rows.append([])
        rows[at].append(box)
        for name in statement_names(statement):
            boxes[name], depth[name] = box, at
    if accumulators:
        bands["loop"].append(accumulators)
    rows = [row for band in ("fixed", "loop", "after") for row in bands[band]]
    return rows, len(bands["fixed"]), len(bands["fixed"]) + len(bands["loop"])


def _same_band(block: Block, operand: str, band: str) -> bool:
    statement = block.defined[operand]
    return band == ("loop" if isinstance(statement, Accumulate) else block.phases[operand])


def _arrange(rows: Sequence[list[_BlockBox]]) -> None:
    """Each row centred, in the order of the places of what its boxes use."""
    y = 0.0
    for row in rows:
        places = {box: sum(b.x for b in box.above) / len(box.above) if box.above else 0.0 for box in row}
        row.sort(key=lambda box: places[box])
        x = -sum(box.width + _GAP for box in row) / 2
        height = max(box.height for box in row)
        for box in row:
            box.x, box.y = x + (box.width + _GAP) / 2, y + height / 2
            x += box.width + _GAP
        y += height + _ROW


def _draw(box: _BlockBox) -> list[str]:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    dashes = ' stroke-dasharray="5,3"' if box.dashed else ""
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="3" '
        f'fill="{box.colour}" stroke="#444444"{dashes}/>'
    ]
    for number, line in enumerate(box.lines):
        y = top + _PAD + _LINE * number + 9
        parts.append(f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>')
    return parts


def _edge(upper: _BlockBox, lower: _BlockBox) -> str:
    y, v = upper.y + upper.height / 2, lower.y - lower.height / 2
    middle = (y + v) / 2
    return (
        f'<path d="M{upper.x:.1f},{y:.1f} C{upper.x:.1f},{middle:.1f} {lower.x:.1f},{middle:.1f} {lower.x:.1f},{v:.1f}" '
        'fill="none" stroke="#777777" marker-end="url(#tip)"/>'
    )


def _frame(x: float, y: float, width: float, height: float, title: str, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="{fill}" stroke="#444444"/>\n'
        f'<text x="{x + 8:.1f}" y="{y + 15:.1f}" font-weight="bold">{escape(title)}</text>'
    )


def _block(block: Block, top: float) -> tuple[list[str], float, float]:
    """A block graph's drawing, its width and height; its middle is at 0."""
    rows, first, last = _layers(block)
    _arrange(rows)
    boxes = [box for row in rows for box in row]
    for box in boxes:
        box.y += top + 2 * _ROW
    width = 2 * max(abs(box.x) + box.width / 2 for box in boxes) + 4 * _GAP
    height = max(box.y + box.height / 2 for box in boxes) - top + _ROW
    grid = " × ".join(f"⌈{block.sizes[axis]}/tile {axis}⌉" for axis in block.grid) or "one block"
    parts = [_frame(-width / 2, top, width, height, f"block graph {block.name}: grid {grid}", "#f7f7f7")]
    if block.loop is not None:
        inside = [box for row in rows[first:last] for box in row]
        upper = min(box.y - box.height / 2 for box in inside) - 0.7 * _ROW
        lower = max(box.y + box.height / 2 for box in inside) + 0.3 * _ROW
        title = f"for-loop: ⌈{block.sizes[block.loop]}/tile {block.loop}⌉"
        parts.append(_frame(-width / 2 + _GAP, upper, width - 2 * _GAP, lower - upper, title, "#eef4fb"))
    parts += [_edge(upper_box, box) for box in boxes for upper_box in box.above]
    parts += [part for box in boxes for part in _draw(box)]
    return parts, width, height


def svg(kernel: Kernel) -> str:
    """The picture of a kernel; its blocks stand one under the other."""
    ends = []
    for group in (kernel.inputs, (*kernel.scratch, *kernel.outputs)):
        ends.append([_BlockBox((tensor.name, str(tensor.type)), _COLOURS["tensor"]) for tensor in group])
    drawn: list[str] = []
    y, widths = 2.0 * _ROW, [400.0]
    for number, row in enumerate(ends):
        if number == 1:
            for block in kernel.blocks:
                parts, width, height = _block(block, y)
                drawn += parts
                widths.append(width)
                y += height + _ROW / 2
        x = -sum(box.width + _GAP for box in row) / 2
        widths.append(-2 * x)
        for box in row:
            box.x, box.y = x + (box.width + _GAP) / 2, y + box.height / 2
            x += box.width + _GAP
            drawn += _draw(box)
        y += max((box.height for box in row), default=0) + _ROW / 2
    width = max(widths) + 2 * _GAP
    frame = _frame(-width / 2, 0, width, y, f"kernel graph: {kernel.name}", "#ffffff")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 20:.0f}" height="{y + 20:.0f}" '
        f'viewBox="{-width / 2 - 10:.1f} -10 {width + 20:.1f} {y + 20:.1f}" font-family="monospace" font-size="12">\n'
        f"<title>{escape(kernel.name)}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#777777"/></marker></defs>\n'
    )
    return head + "\n".join([frame, *drawn]) + "\n</svg>\n"
