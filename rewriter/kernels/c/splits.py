"""Operands of products in parts that lie in memory as matrices: launches take them apart, once for all tiles that read them.

Left operands, where several tiles of columns read them, become stripes; right ones that are no constants, such as the keys and
values of an attention, become panels, a matrix behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.terms.shape import Dim
from rewriter.cost.schedules.cpu import STRIPE_ROWS
from rewriter.kernels.c.panels import WIDEST_PANEL
from rewriter.kernels.c.parts import UNIT_NUMBERS, panel_words, split_words
from rewriter.kernels.text.places import Places
from rewriter.runtime.plan import Argument, Expression, Launch

__all__ = ["AxisInMemory", "PanelSplit", "Split", "Splits"]

_TEXT = """
void {function}(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {{
#ifdef __AMX_BF16__
    const float *const from = *(const float *const *)arguments[0];
    uint32_t *const to = *(uint32_t *const *)arguments[1];
    const int64_t rows = *(const int64_t *)arguments[2];
    for (int64_t row = first * {stripe}; row < last * {stripe}; row += {stripe})
        part_split_{parts}(PART_PLAIN, from + row * {depth}, {depth}, 1, rows - row, {depth}, to + row / {stripe} * {words},
                           {units});
#endif
}}"""

_PANELS = """
void {function}(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {{
#ifdef __AMX_BF16__
    const float *const from = *(const float *const *)arguments[0];
    uint32_t *const to = *(uint32_t *const *)arguments[1];
    int64_t sizes[{count}];
    for (int i = 0; i < {count}; ++i) sizes[i] = *(const int64_t *)arguments[i + 2];
    const int64_t k = sizes[0], k_apart = sizes[1], n = sizes[2], n_apart = sizes[3], panels = (n + PANEL - 1) / PANEL;
    for (int64_t block = first; block < last; ++block) {{
        const float *matrix = from;
        int64_t number = block / panels;
        for (int i = {count} - 2; i >= 4; i -= 2) matrix += number % sizes[i] * sizes[i + 1], number /= sizes[i];
        part_panel_of_{parts}(matrix, k_apart, n_apart, k, n, block % panels,
                              to + block * part_panel((k + 31) / 32, PART_UNIT_{parts}));
    }}
#endif
}}"""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor as a matrix ``[rows, depth]`` of floats, each in so many parts."""

    tensor: str
    rows: Dim
    depth: int
    parts: int


@dataclass(frozen=True, slots=True)
class AxisInMemory:
    """Of a tensor.

    Attributes:
        stride: entries from one position to the next.
    """

    size: Dim
    stride: Dim


@dataclass(frozen=True, slots=True)
class PanelSplit:
    """Matrices of floats within a tensor, each a right operand, in so many parts.

    Attributes:
        over: the axis that is contracted.
        outer: the axes along which there is one matrix behind another, the last one the fastest.
    """

    tensor: str
    over: AxisInMemory
    columns: AxisInMemory
    outer: tuple[AxisInMemory, ...]
    parts: int


class Splits:
    """Those of one kernel, each in scratch memory of its own. On processors without tiles their launches do nothing."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._names: dict[Split | PanelSplit, str] = {}
        self._written = 0

    def name(self, split: Split | PanelSplit) -> str:
        """The name under which functions read a matrix in parts, as ``panel_multiply`` and ``dot_apart`` of parts.py do."""
        if split not in self._names:
            size = (
                self._stripes(split) * (4 * split_words(split.depth, split.parts))
                if isinstance(split, Split)
                else (self._panels(split) * self._panel_bytes(split))
            )
            self._names[split] = self._places.add_scratch(f"{split.tensor}_in_parts", size)
        return self._names[split]

    @property
    def names(self) -> list[str]:
        """Of all that were asked for."""
        return list(self._names.values())

    @property
    def several(self) -> set[int]:
        """The numbers of parts that were asked for."""
        return {split.parts for split in self._names}

    def _stripes(self, split: Split) -> Expression:
        return Expression.of(self._places.expression(split.rows)).ceil_div(STRIPE_ROWS)

    def _panels(self, split: PanelSplit) -> Expression:
        panels = Expression.of(self._places.expression(split.columns.size)).ceil_div(WIDEST_PANEL)
        for axis in split.outer:
            panels = panels * self._places.expression(axis.size)
        return panels

    def _panel_bytes(self, split: PanelSplit) -> Expression | int:
        """Of one panel, at most."""
        steps = split.over.size
        if isinstance(steps, int):
            return 4 * panel_words(steps, split.parts)
        units = Expression.of(self._places.expression(steps)).ceil_div(UNIT_NUMBERS)
        return units * (4 * panel_words(UNIT_NUMBERS, split.parts))

    def write(self) -> list[tuple[str, Launch]]:
        """The functions of those that were asked for since the last time, and their launches."""
        added = list(self._names.items())[self._written :]
        self._written = len(self._names)
        return [self._function(split, name) for split, name in added]

    def _function(self, split: Split | PanelSplit, name: str) -> tuple[str, Launch]:
        return self._stripes_function(split, name) if isinstance(split, Split) else self._panels_function(split, name)

    def _panels_function(self, split: PanelSplit, name: str) -> tuple[str, Launch]:
        places, function = self._places, f"split_{name}"
        numbers = [dim for axis in (split.over, split.columns, *split.outer) for dim in (axis.size, axis.stride)]
        sizes = [Argument.int64(Expression.of(places.expression(dim))) for dim in numbers]
        text = _PANELS.format(function=function, parts=split.parts, count=len(sizes))
        return text, Launch(
            function, 1, (self._panels(split), 1, 1), (places.arguments[split.tensor], places.arguments[name], *sizes)
        )

    def _stripes_function(self, split: Split, name: str) -> tuple[str, Launch]:
        places, function = self._places, f"split_{name}"
        rows, words = Expression.of(places.expression(split.rows)), split_words(split.depth, split.parts)
        text = _TEXT.format(
            function=function,
            parts=split.parts,
            stripe=STRIPE_ROWS,
            depth=split.depth,
            words=words,
            units=-(-split.depth // UNIT_NUMBERS),
        )
        arguments = (places.arguments[split.tensor], places.arguments[name], Argument.int64(rows))
        return text, Launch(function, 1, (self._stripes(split), 1, 1), arguments)
