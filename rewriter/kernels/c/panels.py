"""Weights of a block graph in panels that are packed once, and products of tiles with them.

A product of a block graph whose right operand is a constant matrix, as it is stored, reads it from panels
(:mod:`rewriter.kernels.c.tiles`): a step of the contracted axis is two vectors that lie together, where rows of the matrix would
be pages apart. The left tile is copied to the stack a register tile's rows and a slab at a time. The text holds for every
instruction set: the compiler chooses the tiles and the width of a panel.
"""

from __future__ import annotations

from functools import cache

from mugraph.blocks.statements import Load, View
from mugraph.terms.shape import DataType, TensorType
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.tiles import FLOATS, PartPair, TileLayout, TileTarget, vector_tiles

__all__ = ["PANELS_STACK", "WIDEST_PANEL", "pack_function", "packed_bytes", "panels_text", "reads_panels"]

_WIDE, _NARROW = (TileTarget.of(LEVELS[name]) for name in ("x86-64-v4", "x86-64-v3"))
WIDEST_PANEL = _WIDE.columns
"""Columns of a panel on any processor divide this."""
PANELS_STACK = 4 * _WIDE.rows * (FLOATS.stride + WIDEST_PANEL)
"""Bytes that a product has on the stack."""

_ADD = """
/* c[m][n] += sum over k of a[m][k] b[k][n], from a place in b's panels on; "whole" is how long all columns of b are. */
static void panel_add(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *panels, int64_t whole,
                      int64_t rows, int64_t columns, int64_t depth) {
    float left[PANEL_ROWS * PANEL_STRIDE] __attribute__((aligned(64))), sums[PANEL_ROWS * PANEL] __attribute__((aligned(64)));
    const int64_t groups = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t start = group * rows / groups, count = (group + 1) * rows / groups - start;
        for (int64_t from = 0; from < depth; from += PANEL_SLAB) {
            const int64_t steps = depth - from < PANEL_SLAB ? depth - from : PANEL_SLAB;
            for (int64_t i = 0; i < count; ++i)
                for (int64_t k = 0; k < steps; ++k) left[i * PANEL_STRIDE + k] = a[(start + i) * a_m + (from + k) * a_k];
            for (int64_t n = 0; n < columns; n += PANEL) {
                const int64_t width = columns - n < PANEL ? columns - n : PANEL;
                floats_tiles[count](left, panels + n * whole + from * PANEL, sums, steps, 0);
                for (int64_t i = 0; i < count; ++i) {
                    float *const to = c + (start + i) * c_m + n;
                    if (width == PANEL)
                        for (int64_t j = 0; j < PANEL; ++j) to[j] += sums[i * PANEL + j];
                    else
                        for (int64_t j = 0; j < width; ++j) to[j] += sums[i * PANEL + j];
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
def panels_text() -> str:
    """``panel_add`` and ``panel_pack``."""
    wide, narrow = (_tiles(target) for target in (_WIDE, _NARROW))
    return f"#ifdef __AVX512F__\n{wide}#else\n{narrow}#endif{_ADD.rstrip()}"


def _tiles(target: TileTarget) -> str:
    numbers = {"": target.columns, "_ROWS": target.rows, "_STRIDE": FLOATS.stride, "_SLAB": FLOATS.slab}
    constants = ", ".join(f"PANEL{name} = {number}" for name, number in numbers.items())
    layout = TileLayout(FLOATS.stride, "0", target.columns)
    return f"enum {{ {constants} }};\n{vector_tiles(FLOATS, target, (PartPair(0, 0),), layout)}"


def packed_bytes(type_: TensorType) -> int:
    """Of a matrix in panels on any processor. ``type_`` is one that :func:`reads_panels` accepts."""
    k, n = (int(str(dim)) for dim in type_.shape)
    return 4 * k * -(-n // WIDEST_PANEL) * WIDEST_PANEL


def pack_function(name: str, type_: TensorType) -> str:
    """A function of this name that packs a matrix, as :class:`rewriter.runtime.plan.Packing` has it."""
    k, n = type_.shape
    head = f"void {name}(const void *weights, void *packed, const int64_t *sizes)"
    return f"\n{head} {{\n    (void)sizes;\n    panel_pack(weights, packed, {k}, {n});\n}}"


def reads_panels(load: Load, type_: TensorType, over: str, columns: str) -> bool:
    """Whether a tile of a tensor is one of a matrix as it is stored, the contracted axis first."""
    if type_.dtype != DataType.FLOAT or len(type_.shape) != 2 or not all(isinstance(dim, int) for dim in type_.shape):
        return False
    return _axes(load.view) == ((over, type_.shape[0]), (columns, type_.shape[1]))


def _axes(view: View) -> tuple[tuple[str | None, object], ...] | None:
    """The axes of a view and their sizes; ``None`` where it is not the positions of an axis that count, each once."""
    indices = [factor.index for factor in view]
    if any((index.shift, index.divide, index.modulo, index.offset) != (0, 1, None, 0) for index in indices):
        return None
    return tuple((factor.index.axis, factor.size) for factor in view)
