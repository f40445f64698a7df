"""Weights of bytes in panels that are packed once, and products of tiles of bytes with them.

A word of a panel is four bytes of a column, neighbours along the contracted axis, as ``vpdpbusd`` and the tiles of AMX read them
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBUSD): 16 words of 32 columns are two tiles. The left
operand is multiplied from where it lies. Unsigned bytes on the left, signed ones on the right; sums have 32 bits and wrap around
as those of MatMulInteger do, so that their order changes nothing. The zero point of the left operand is subtracted behind the
sum, times the sum of the column, which the panel has.

What comes of it are floats, which a kernel scales, adds to and activates in the same pass.
"""

from __future__ import annotations

from functools import cache

from mugraph.terms.shape import TensorType
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.parts import MATRIX
from rewriter.kernels.c.tiles import BYTES, TileTarget, vector_tiles

__all__ = ["BYTES_STACK", "byte_pack_function", "byte_panels_text", "packed_byte_bytes"]

_UNIT = 64
"""Bytes of a row that a tile multiplies at once; columns are padded to a multiple."""
_VECTORS, _WIDE, _NARROW = (TileTarget.of(LEVELS[name]) for name in ("x86-64-v4-bf16", "x86-64-v4", "x86-64-v3"))
_LEFT_ROWS = 72
"""Rows of a left operand that vectors multiply at a time, at most."""
BYTES_STACK = 4 * (_LEFT_ROWS * BYTES.stride + 32 * _WIDE.columns)
"""Bytes that a product has on the stack, at most."""


def packed_byte_bytes(type_: TensorType) -> int:
    """Of a matrix of bytes in panels on any processor, at most, with the sums of its columns."""
    k, n = (int(str(dim)) for dim in type_.shape)
    return 4 * -(-n // _WIDE.columns) * _WIDE.columns * (-(-k // _UNIT) * _UNIT // BYTES.numbers + 1)


def byte_pack_function(name: str, type_: TensorType) -> str:
    """A function of this name that packs a matrix, as :class:`rewriter.runtime.plan.Packing` has it."""
    k, n = type_.shape
    head = f"void {name}(const void *weights, void *packed, const int64_t *sizes)"
    return f"\n{head} {{\n    (void)sizes;\n    bytes_pack(weights, packed, {k}, {n});\n}}"


@cache
def byte_panels_text() -> str:
    """``bytes_multiply`` and ``bytes_pack``, for every instruction set: the compiler chooses."""
    texts = [
        "#ifdef __AMX_INT8__",
        _sizes(_VECTORS),
        "#ifndef TILE_ZERO",
        MATRIX.matrix.rstrip(),
        "#endif",
        _COMMON.rstrip(),
        _TILES.rstrip(),
        "#else",
    ]
    texts += [
        "#ifdef __AVX512VNNI__",
        _vectors(_VECTORS),
        "#elif defined __AVX512F__",
        _vectors(_WIDE),
        "#else",
        _vectors(_NARROW),
        "#endif",
    ]
    texts += [_COMMON.rstrip(), _BY_VECTORS.rstrip(), "#endif", _PACK.rstrip()]
    return "\n".join(texts)


def _sizes(target: TileTarget) -> str:
    numbers = {"PANEL": target.columns, "ROWS": target.rows, "LEFT": _LEFT_ROWS // target.rows * target.rows}
    numbers |= {"STRIDE": BYTES.stride, "SLAB": BYTES.slab}
    return f"enum {{ {', '.join(f'BYTES_{name} = {number}' for name, number in numbers.items())} }};"


def _vectors(target: TileTarget) -> str:
    return f"{_sizes(target)}\n{vector_tiles(BYTES, target)}".rstrip()


_COMMON = """
typedef int32_t bytes_whole __attribute__((may_alias));
/* Words of a column of so many bytes, and of its panel: a multiple of what a tile takes, and behind it the sums of columns. */
static inline int64_t bytes_steps(int64_t whole) { return (whole + 63) / 64 * 16; }
static inline int64_t bytes_panel(int64_t whole) { return (bytes_steps(whole) + 1) * BYTES_PANEL; }
/* Some rows of sums, less what a zero point adds to them, as floats. */
static inline void bytes_floats(float *c, int64_t c_m, const bytes_whole *sums, int64_t apart, int32_t zero,
                                const int32_t *columns_sums, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; ++i)
        if (width == BYTES_PANEL)
            for (int64_t j = 0; j < BYTES_PANEL; ++j) c[i * c_m + j] = (float)(sums[i * apart + j] - zero * columns_sums[j]);
        else
            for (int64_t j = 0; j < width; ++j) c[i * c_m + j] = (float)(sums[i * apart + j] - zero * columns_sums[j]);
}
"""

_TILES = """
#define BYTES_STEP(below) \\
    TILE_LOAD(4, left, a_m); \\
    TILE_LOAD(6, right, 128); \\
    TILE_BYTES(0, 4, 6); \\
    TILE_LOAD(7, right + 16, 128); \\
    TILE_BYTES(1, 4, 7); \\
    if (below) { \\
        TILE_LOAD(5, left + 16 * a_m, a_m); \\
        TILE_BYTES(2, 5, 6); \\
        TILE_BYTES(3, 5, 7); \\
    }
#define BYTES_TILES(name, below) \\
    static __attribute__((noinline)) void name(const uint8_t *left, int64_t a_m, const uint8_t *edge, const uint32_t *right, \\
                                               int64_t steps, int32_t *sums, const uint32_t *next, int64_t lines) { \\
        TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3); \\
        for (int64_t at = 0; at < steps; ++at, left += 64, right += 512, next += 512) { \\
            BYTES_STEP(below) \\
            for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(next + 16 * line, 0, 2); \\
        } \\
        if (edge) { \\
            left = edge, a_m = 64; \\
            BYTES_STEP(below) \\
        } \\
        TILE_STORE(0, sums, 128); \\
        TILE_STORE(1, sums + 16, 128); \\
        if (below) { \\
            TILE_STORE(2, sums + 512, 128); \\
            TILE_STORE(3, sums + 528, 128); \\
        } \\
    }
BYTES_TILES(bytes_low, 0)
BYTES_TILES(bytes_high, 1)
/* c[m][n] = sum over k of (a[m][k] - zero) b[k][n], of columns that are so long. The tile begins in a column. */
static void bytes_multiply(float *c, int64_t c_m, const uint8_t *a, int64_t a_m, int32_t zero, const void *packed, int64_t whole,
                           int64_t column, int64_t rows, int64_t columns) {
    int32_t sums[32 * BYTES_PANEL] __attribute__((aligned(64)));
    uint8_t edge[32 * 64] __attribute__((aligned(64)));
    const int64_t steps = whole / 64, rest = whole % 64, heights = (rows + 31) / 32;
    int64_t shape = 0;
    for (int64_t n = 0; n < columns; n += BYTES_PANEL) {
        const uint32_t *const panel = (const uint32_t *)packed + (column + n) / BYTES_PANEL * bytes_panel(whole);
        const int64_t width = columns - n < BYTES_PANEL ? columns - n : BYTES_PANEL;
        for (int64_t height = 0; height < heights; ++height) {
            const int64_t high = rows - 32 * height < 32 ? rows - 32 * height : 32;
            const uint8_t *const left = a + 32 * height * a_m;
            const int64_t from = height * 32 / heights, lines = (height + 1) * 32 / heights - from;
            /* what stands behind them is multiplied by zeros */
            for (int64_t i = 0; rest && i < high; ++i) __builtin_memcpy(edge + 64 * i, left + i * a_m + 64 * steps, rest);
            if (high != shape) tiles_of(shape = high);
            (high > 16 ? bytes_high : bytes_low)(left, a_m, rest ? edge : 0, panel, steps, sums,
                                                 panel + bytes_panel(whole) + 16 * from, lines);
            const int32_t *const of_columns = (const int32_t *)panel + bytes_steps(whole) * BYTES_PANEL;
            bytes_floats(c + 32 * height * c_m + n, c_m, sums, BYTES_PANEL, zero, of_columns, high, width);
        }
    }
    tiles_end();
}
"""

_BY_VECTORS = """
/* c[m][n] = sum over k of (a[m][k] - zero) b[k][n], of columns that are so long. The tile begins in a column. Sums are in c. */
static void bytes_multiply(float *c, int64_t c_m, const uint8_t *a, int64_t a_m, int32_t zero, const void *packed, int64_t whole,
                           int64_t column, int64_t rows, int64_t columns) {
    uint32_t left[BYTES_LEFT * BYTES_STRIDE] __attribute__((aligned(64)));
    int32_t sums[BYTES_ROWS * BYTES_PANEL] __attribute__((aligned(64)));
    const uint32_t *const panels = (const uint32_t *)packed + column / BYTES_PANEL * bytes_panel(whole);
    const int64_t all = (whole + 3) / 4, heights = (rows + BYTES_LEFT - 1) / BYTES_LEFT;
    for (int64_t height = 0; height < heights; ++height) {
        const int64_t top = height * rows / heights, high = (height + 1) * rows / heights - top;
        const int64_t groups = (high + BYTES_ROWS - 1) / BYTES_ROWS;
        for (int64_t from = 0; from < all; from += BYTES_SLAB) {
            const int64_t steps = all - from < BYTES_SLAB ? all - from : BYTES_SLAB;
            const int64_t count = whole - 4 * from < 4 * steps ? whole - 4 * from : 4 * steps;
            /* what stands behind them is multiplied by zeros */
            for (int64_t i = 0; i < high; ++i) __builtin_memcpy(left + i * BYTES_STRIDE, a + (top + i) * a_m + 4 * from, count);
            for (int64_t n = 0; n < columns; n += BYTES_PANEL) {
                const int64_t width = columns - n < BYTES_PANEL ? columns - n : BYTES_PANEL;
                const uint32_t *const panel = panels + n / BYTES_PANEL * bytes_panel(whole) + from * BYTES_PANEL;
                const uint32_t *const next = n + BYTES_PANEL < columns ? panel + bytes_panel(whole) : panel + steps * BYTES_PANEL;
                for (int64_t group = 0; group < groups; ++group) {
                    const int64_t start = group * high / groups, some = (group + 1) * high / groups - start;
                    bytes_whole *const to = (bytes_whole *)c + (top + start) * c_m + n;
                    const uint32_t *const tile = left + start * BYTES_STRIDE;
                    if (width == BYTES_PANEL) bytes_tiles[some](tile, panel, to, c_m, steps, from > 0, next);
                    else {
                        bytes_tiles[some](tile, panel, sums, BYTES_PANEL, steps, 0, next);
                        for (int64_t i = 0; i < some; ++i)
                            for (int64_t j = 0; j < width; ++j)
                                to[i * c_m + j] = (from > 0 ? to[i * c_m + j] : 0) + sums[i * BYTES_PANEL + j];
                    }
                }
            }
        }
    }
    for (int64_t n = 0; n < columns; n += BYTES_PANEL) {
        const int64_t width = columns - n < BYTES_PANEL ? columns - n : BYTES_PANEL;
        const uint32_t *const panel = panels + n / BYTES_PANEL * bytes_panel(whole);
        const int32_t *const of_columns = (const int32_t *)panel + bytes_steps(whole) * BYTES_PANEL;
        bytes_floats(c + n, c_m, (const bytes_whole *)c + n, c_m, zero, of_columns, rows, width);
    }
}
"""

_PACK = """
/* b[k][n] as panels with the sums of columns; columns that are none, and steps, are zero. */
static void bytes_pack(const int8_t *weights, void *packed, int64_t k, int64_t n) {
    int8_t *to = packed;
    for (int64_t column = 0; column < n; column += BYTES_PANEL) {
        int32_t sums[BYTES_PANEL] = {0};
        for (int64_t step = 0; step < bytes_steps(k); ++step)
            for (int64_t j = 0; j < BYTES_PANEL; ++j)
                for (int64_t at = 4 * step; at < 4 * step + 4; ++at) {
                    const int8_t weight = at < k && column + j < n ? weights[at * n + column + j] : 0;
                    sums[j] += weight;
                    *to++ = weight;
                }
        __builtin_memcpy(to, sums, sizeof sums);
        to += sizeof sums;
    }
}
"""
