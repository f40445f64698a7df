"""Left operands of products in parts that lie in memory as matrices: a launch takes them apart, once for all tiles of columns."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.terms.shape import Dim
from rewriter.cost.schedules.cpu import STRIPE_ROWS
from rewriter.kernels.c.parts import UNIT_NUMBERS, split_words
from rewriter.kernels.text.places import Places
from rewriter.runtime.plan import Argument, Expression, Launch

__all__ = ["Split", "Splits"]

_TEXT = """
void {function}(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {{
#ifdef __AMX_BF16__
    const float *const from = *(const float *const *)arguments[0];
    uint32_t *const to = *(uint32_t *const *)arguments[1];
    const int64_t rows = *(const int64_t *)arguments[2];
    for (int64_t row = first * {stripe}; row < last * {stripe}; row += {stripe})
        part_split_{parts}(from + row * {depth}, {depth}, 1, rows - row, {depth}, to + row / {stripe} * {words}, {units});
#endif
}}"""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor as a matrix ``[rows, depth]`` of floats, each in so many parts."""

    tensor: str
    rows: Dim
    depth: int
    parts: int


class Splits:
    """Those of one kernel, each in scratch memory of its own. On processors without tiles their launches do nothing."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._names: dict[Split, str] = {}
        self._written = 0

    def name(self, split: Split) -> str:
        """The name under which functions read a matrix in parts, as ``panel_multiply`` of parts.py does."""
        if split not in self._names:
            stripes = Expression.of(self._places.expression(split.rows)).ceil_div(STRIPE_ROWS)
            size = stripes * (4 * split_words(split.depth, split.parts))
            self._names[split] = self._places.add_scratch(f"{split.tensor}_in_parts", size)
        return self._names[split]

    @property
    def names(self) -> list[str]:
        """Of all that were asked for."""
        return list(self._names.values())

    def write(self) -> list[tuple[str, Launch]]:
        """The functions of those that were asked for since the last time, and their launches."""
        added = list(self._names.items())[self._written :]
        self._written = len(self._names)
        return [self._function(split, name) for split, name in added]

    def _function(self, split: Split, name: str) -> tuple[str, Launch]:
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
        return text, Launch(function, 1, (rows.ceil_div(STRIPE_ROWS), 1, 1), arguments)
