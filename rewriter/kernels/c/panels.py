"""Weights of a block graph in panels that are packed once, and products of tiles with them.

A product of a block graph whose right operand is a constant matrix, as it is stored, reads it from panels
(:mod:`rewriter.kernels.c.tiles`): a step of the contracted axis is two vectors that lie together, where rows of the matrix would
be pages apart. The left tile is copied to the stack some register tiles of rows and a slab at a time, and a slab of a panel stays
in the first cache while these pass; meanwhile the one that comes next is asked for, a share with each register tile, and so are
the rows that come next. The text holds for every instruction set: the compiler chooses the tiles and the width of a panel. Where
a schedule takes numbers in parts and the processor has tiles for it, it chooses those (:mod:`rewriter.kernels.c.parts`), else
floats.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from mugraph.blocks.statements import Load, View
from mugraph.terms.shape import TensorType
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.parts import UNIT_NUMBERS, part_register_rows, parts_bytes, parts_text, ranges_text
from rewriter.kernels.c.tiles import FLOATS, TileTarget, vector_tiles

__all__ = [
    "PANELS_STACK",
    "WIDEST_PANEL",
    "WIDEST_STEP",
    "WIDEST_TILE",
    "adding_function",
    "apart_function",
    "multiplying_function",
    "pack_function",
    "packed_bytes",
    "panels_text",
    "plain_axes",
    "reads_panels",
    "stripes_function",
]

_WIDE, _NARROW = (TileTarget.of(LEVELS[name]) for name in ("x86-64-v4", "x86-64-v3"))
WIDEST_PANEL = _WIDE.columns
"""Columns of a panel on any processor divide this."""
WIDEST_STEP = UNIT_NUMBERS
"""Steps along the contracted axis at which a tile may begin on any processor divide this."""
WIDEST_TILE = _WIDE.rows
"""Rows of the largest register tile."""
_LEFT_ROWS = 72
"""Rows of a left tile that are on the stack at a time, about: as many register tiles as make the way through a panel worth
while."""
PANELS_STACK = 4 * (_LEFT_ROWS * FLOATS.stride + _WIDE.rows * WIDEST_PANEL)
"""Bytes that a product has on the stack."""

_ADD = """
/* c[m][n] += sum over k of a[m][k] b[k][n]. Its tile begins in a column and at a step; "whole" is how long all columns are. */
static void panel_add(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *packed, int64_t whole,
                      int64_t column, int64_t step, int64_t rows, int64_t columns, int64_t depth) {
    const float *const panels = packed + column * whole + step * PANEL;
    float left[PANEL_LEFT * PANEL_STRIDE] __attribute__((aligned(64))), sums[PANEL_ROWS * PANEL] __attribute__((aligned(64)));
    const int64_t heights = (rows + PANEL_LEFT - 1) / PANEL_LEFT;
    for (int64_t height = 0; height < heights; ++height) {
        const int64_t top = height * rows / heights, high = (height + 1) * rows / heights - top;
        const int64_t groups = (high + PANEL_ROWS - 1) / PANEL_ROWS;
        for (int64_t from = 0; from < depth; from += PANEL_SLAB) {
            const int64_t steps = depth - from < PANEL_SLAB ? depth - from : PANEL_SLAB;
            const float *const here = a + top * a_m + from * a_k;
            for (int64_t i = 0; i < high; ++i)
                if (a_k == 1 && steps == PANEL_SLAB) __builtin_memcpy(left + i * PANEL_STRIDE, here + i * a_m, 4 * PANEL_SLAB);
                else if (a_k == 1) __builtin_memcpy(left + i * PANEL_STRIDE, here + i * a_m, 4 * steps);
                else
                    for (int64_t k = 0; k < steps; ++k) left[i * PANEL_STRIDE + k] = here[i * a_m + k * a_k];
            /* the next slab, or below the first of the next rows; one register tile has its rows near anyway */
            const float *const then = step + from + steps < whole ? here + steps : here + high * a_m - step - from;
            const int64_t turns = (columns + PANEL - 1) / PANEL * groups, asked = groups > 1 && a_k == 1 ? high : 0;
            for (int64_t n = 0; n < columns; n += PANEL) {
                const int64_t width = columns - n < PANEL ? columns - n : PANEL;
                const float *const panel = panels + n * whole + from * PANEL;
                /* the next panel, or below the first of this tile, or the first of the next tile */
                const float *const next = n + PANEL < columns ? panel + PANEL * whole
                    : step + from + steps < whole ? panels + (from + steps) * PANEL : packed + (column + columns) * whole;
                for (int64_t group = 0; group < groups; ++group) {
                    const int64_t start = group * high / groups, count = (group + 1) * high / groups - start;
                    const float *const tile = left + start * PANEL_STRIDE;
                    const float *const share = next + group * PANEL_SLAB / groups * PANEL;
                    float *const to = c + (top + start) * c_m + n;
                    const int64_t turn = n / PANEL * groups + group;
                    for (int64_t i = turn * asked / turns; i < (turn + 1) * asked / turns; ++i)
                        for (int64_t k = 0; k < PANEL_SLAB; k += 16) __builtin_prefetch(then + i * a_m + k, 0, 2);
                    if (width == PANEL) floats_tiles[count](tile, panel, to, c_m, steps, 1, share);
                    else {
                        floats_tiles[count](tile, panel, sums, PANEL, steps, 0, share);
                        for (int64_t i = 0; i < count; ++i)
                            for (int64_t j = 0; j < width; ++j) to[i * c_m + j] += sums[i * PANEL + j];
                    }
                }
            }
        }
    }
}
/* b[k][n] as panels; columns that are none are zero. */
static void panel_pack(const float *weights, float *to, int64_t k, int64_t n) {
    for (int64_t panel = 0; panel < n; panel += PANEL)
        for (int64_t at = 0; at < k; ++at)
            for (int64_t column = panel; column < panel + PANEL; ++column) *to++ = column < n ? weights[at * n + column] : 0.0f;
}
"""


@cache
def panels_text(several: Collection[int], heights: Collection[int]) -> str:
    """``panel_add`` and ``panel_pack``, of numbers in these parts.

    Args:
        several: how many parts, each once.
        heights: the numbers of rows that are ever multiplied at a time.
    """
    wide, narrow = (_tiles(target, heights, several) for target in (_WIDE, _NARROW))
    texts = [f"#ifdef __AVX512F__\n{wide}#else\n{narrow}#endif{_ADD.rstrip()}"]
    in_parts = sorted(parts for parts in several if parts > 1)
    if in_parts:
        texts += ["#ifdef __AMX_BF16__", ranges_text(), *map(parts_text, in_parts), "#else"]
        for parts in in_parts:
            texts += [f"#define {adding_function(parts)} panel_add", f"#define {_packing_function(parts)} panel_pack"]
            split = "c, c_m, a, a_m, a_k, split, depth, row, at, ..."
            texts.append(f"#define {multiplying_function(parts)}({split}) panel_add(c, c_m, a, a_m, a_k, __VA_ARGS__)")
        texts.append("#endif")
    return "\n".join(texts)


def adding_function(parts: int) -> str:
    """The name of ``panel_add`` for numbers in so many parts."""
    return "panel_add" if parts == 1 else f"panel_add_{parts}"


def apart_function(parts: int) -> str:
    """The name of ``dot_add`` for a right operand that was split into so many parts, where there are tiles."""
    return f"dot_apart_{parts}"


def stripes_function(parts: int) -> str:
    """The name of what takes rows apart into so many parts, where there are tiles."""
    return f"part_stripes_{parts}"


def multiplying_function(parts: int) -> str:
    """The name of ``panel_add`` for a left operand that was split into so many parts."""
    return f"panel_multiply_{parts}"


def _packing_function(parts: int) -> str:
    return "panel_pack" if parts == 1 else f"panel_pack_{parts}"


def _tiles(target: TileTarget, heights: Collection[int], several: Collection[int]) -> str:
    numbers = {"": target.columns, "_ROWS": target.rows, "_LEFT": _most_left(target)}
    numbers |= {"_STRIDE": FLOATS.stride, "_SLAB": FLOATS.slab}
    constants = ", ".join(f"PANEL{name} = {number}" for name, number in numbers.items())
    counts = {count for height in heights for count in _register_rows(target, height)}
    if any(parts > 1 for parts in several):
        counts |= {count for height in heights for count in part_register_rows(target, height)}
    return f"enum {{ {constants} }};\n{vector_tiles(FLOATS, target, counts)}"


def _most_left(target: TileTarget) -> int:
    """Rows of a left tile that are on the stack at a time, at most."""
    return _LEFT_ROWS // target.rows * target.rows


def _register_rows(target: TileTarget, rows: int) -> set[int]:
    """The rows of the register tiles in which ``panel_add`` takes so many."""
    shares = _in_shares(rows, _most_left(target))
    return {count for share in shares for count in _in_shares(share, target.rows)}


def _in_shares(rows: int, most: int) -> set[int]:
    """As ``panel_add`` deals rows out: to as few shares of at most so many as there have to be, which differ by one at most."""
    shares = -(-rows // most)
    return {(share + 1) * rows // shares - share * rows // shares for share in range(shares)}


def packed_bytes(type_: TensorType, parts: int) -> int:
    """Of a matrix in panels on any processor, at most. ``type_`` is one that :func:`reads_panels` accepts."""
    k, n = (int(str(dim)) for dim in type_.shape)
    floats = 4 * k * -(-n // WIDEST_PANEL) * WIDEST_PANEL
    return floats if parts == 1 else max(floats, parts_bytes(k, n, parts))


def pack_function(name: str, type_: TensorType, parts: int) -> str:
    """A function of this name that packs a matrix, as :class:`rewriter.runtime.plan.Packing` has it."""
    k, n = type_.shape
    head = f"void {name}(const void *weights, void *packed, const int64_t *sizes)"
    return f"\n{head} {{\n    (void)sizes;\n    {_packing_function(parts)}(weights, packed, {k}, {n});\n}}"


def reads_panels(load: Load, type_: TensorType, over: str, columns: str) -> bool:
    """Whether a tile of a tensor is one of a matrix as it is stored, the contracted axis first."""
    if len(type_.shape) != 2 or not all(isinstance(dim, int) for dim in type_.shape):
        return False
    return plain_axes(load.view) == ((over, type_.shape[0]), (columns, type_.shape[1]))


def plain_axes(view: View) -> tuple[tuple[str | None, object], ...] | None:
    """The axes of a view and their sizes; ``None`` where it is not the positions of an axis that count, each once."""
    indices = [factor.index for factor in view]
    if any((index.shift, index.divide, index.modulo, index.offset) != (0, 1, None, 0) for index in indices):
        return None
    return tuple((factor.index.axis, factor.size) for factor in view)
