"""Products with weights in panels whose numbers are sums of bfloat16 parts, for processors whose tiles multiply those.

A float is the sum of three bfloat16, each the one nearest to what the ones before it leave; products of two bfloat16 are exact in
float32. Of the nine products of parts six suffice: what is left out is about 2⁻²⁵ of the whole, as often with one sign as with
the other (G. Henry, P. T. P. Tang, A. Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype for Higher-Precision
Computations, ARITH 2019). Of two parts three products are exact to 16 bits of every operand. A tile multiplication adds up 32
products from zero, in two sums, before it adds them to what was there (Intel 64 and IA-32 Architectures Software Developer's
Manual, volume 2, TDPBF16PS), so that six of them every 32 steps round less than a float multiplication at each step.

The tiles take denormal numbers as zero and give none, and a float near the largest has no nearest bfloat16. So every unit of a
panel, 32 numbers of each of its columns, has the range of its exponents, and so has one of 16 rows of the left operand. Where no
sum of products of parts could be denormal or overflow (the ranges of a slab decide it for 32 rows, else those of a piece of it,
whatever lies between), parts are multiplied, else floats: the weights are put together again, which is exact with three parts,
or were stored as floats. Infinities and NaN are such a case. So no result depends on how tiles round what is too small. What
weighs values in an attention, of which the greatest is 1 and most may be tiny, is multiplied by a power of two before it is taken
apart, and the sums are divided by it.

The blocking is that of K. Goto and R. van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008, one
cache further out: 128 rows of a slab of the left operand, all parts of it, stay in the second cache, a slab of a panel passes
through it, and both come into the first a unit ahead of their use. The next panel is asked for meanwhile. What rows on the stack
are taken apart for is a slab of few units.
"""

from __future__ import annotations

from functools import cache
from string import Template

from rewriter.cost.schedules.cpu import SLAB_UNITS, STACK_UNITS, STRIPE_ROWS, UNIT_STEPS
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.tiles import SHARE, TILE_ASKS, PartPair, TileLayout, TileTarget, matrix_tiles

__all__ = ["MATRIX", "TERMS", "UNIT_NUMBERS", "panel_words", "parts_bytes", "parts_text", "ranges_text", "split_words"]

MATRIX = TileTarget.of(LEVELS["x86-64-amx"])
"""The tiles."""
UNIT_NUMBERS = UNIT_STEPS
"""Numbers of a column that lie together in a panel, part by part: what a tile takes at once, of 16 rows of the left operand."""
TERMS = {
    2: (PartPair(0, 1), PartPair(0, 0), PartPair(1, 0)),
    3: (PartPair(0, 2), PartPair(0, 1), PartPair(1, 1), PartPair(1, 0), PartPair(2, 0), PartPair(0, 0)),
}
"""Products of parts by how many a number has, in an order in which neighbours share an operand."""
_ROWS, _SLAB = 128, SLAB_UNITS
"""Rows and units of a slab of the left operand: 576 KiB of three parts."""
_PIECE = STACK_UNITS * STRIPE_ROWS // _ROWS
"""Units of a slab of rows on the stack, and of a piece, in parts or in floats, where not all of a slab can be in parts."""
_UNIT, _PANEL = UNIT_NUMBERS // 2, 32
_PART = _UNIT * _PANEL
"""Words of one part of a unit of a panel."""
_TILE = _UNIT * STRIPE_ROWS
"""Words of one part of a unit of a stripe."""


def parts_bytes(k: int, n: int, parts: int) -> int:
    """Of a matrix in panels of such parts, with the ranges of its units."""
    return 4 * -(-n // _PANEL) * panel_words(k, parts)


def panel_words(k: int, parts: int) -> int:
    """Words of a panel of so many steps, with the ranges of its units."""
    units = -(-k // UNIT_NUMBERS)
    return units * parts * _PART + -(-2 * units // 16) * 16


def split_words(k: int, parts: int) -> int:
    """Words of a stripe of 16 rows of so many numbers in parts, with the ranges of its units."""
    units = -(-k // UNIT_NUMBERS)
    return units * parts * _TILE + -(-2 * units // 16) * 16


@cache
def ranges_text() -> str:
    """What the texts of all parts share."""
    return f"{MATRIX.matrix.rstrip()}{TILE_ASKS.rstrip()}{_RANGES.rstrip()}"


@cache
def parts_text(parts: int) -> str:
    """``panel_add`` and ``panel_pack`` of numbers in parts, with the number of parts behind their names."""
    layout = TileLayout(parts * _UNIT, _TILE, parts * _PANEL, _PART)
    sizes = {"rows": _ROWS, "slab": _SLAB, "piece": _PIECE, "left": parts * _TILE, "unit": parts * _PART}
    sizes |= {"parts": parts, "share": SHARE, "shares": _PART // SHARE}
    return matrix_tiles(f"matrix_tiles_{parts}", TERMS[parts], layout) + Template(_TEXT).substitute(sizes)


def part_register_rows(target: TileTarget, rows: int) -> set[int]:
    """The rows of the register tiles in which products of so many rows take those that cannot be in parts."""
    at_a_time = {min(rows, 2 * STRIPE_ROWS), rows % (2 * STRIPE_ROWS)} - {0}
    return {count for tall in at_a_time for count in (min(tall, target.rows), tall % target.rows) if count}


_RANGES = """
struct part_range { uint32_t low, high; };
static inline float part_number(uint32_t bits) { union { uint32_t bits; float number; } of = {bits}; return of.number; }
typedef uint32_t part_words __attribute__((vector_size(64), may_alias));
typedef float part_vector __attribute__((vector_size(64), may_alias));
static inline part_words part_nearest(part_vector numbers) { return ((part_words)numbers + 0x8000u) & 0xffff0000u; }
/* The lesser and the greater of words, entry by entry. Of a loop over entries GCC keeps them in memory, from row to row. */
static inline part_words part_less(part_words a, part_words b) {
    const part_words is = (part_words)(a < b);
    return (a & is) | (b & ~is);
}
static inline part_words part_more(part_words a, part_words b) {
    const part_words is = (part_words)(a > b);
    return (a & is) | (b & ~is);
}
struct part_extremes { part_words low, high; };
static inline struct part_extremes part_none(void) { return (struct part_extremes){(part_words){0} - 1u, {0}}; }
/* Joins the magnitudes of two vectors of numbers to the least, less one each, and to the greatest. */
static inline __attribute__((always_inline)) struct part_extremes part_extend(struct part_extremes of, part_vector first,
                                                                              part_vector second) {
    const part_words a = (part_words)first & 0x7fffffffu, b = (part_words)second & 0x7fffffffu;
    const part_words low = part_less(a - 1u, b - 1u), high = part_more(a, b);
    return (struct part_extremes){part_less(of.low, low), part_more(of.high, high)};
}
/* Takes the numbers of two vectors apart: the first part of each in the halves of words, and the others so many words behind. */
static inline __attribute__((always_inline)) void part_apart(part_vector first, part_vector second, int parts, uint32_t *to,
                                                             int64_t behind) {
    for (int part = 0; part < parts; ++part, to += behind) {
        const part_words low = part_nearest(first), high = part_nearest(second);
        *(part_words *)to = low >> 16 | high;
        first -= (part_vector)low, second -= (part_vector)high;
    }
}
/* Exponents of the least number but zero and of the greatest. "low" is the least magnitude less one: zero is the greatest. */
static inline struct part_range part_exponents(uint32_t low, uint32_t high) {
    return (struct part_range){low == ~0u ? 254u : (low + 1u) >> 23, high >> 23};
}
/* The same of the extremes of vectors. */
static inline struct part_range part_among(struct part_extremes of) {
    uint32_t low = ~0u, high = 0;
    for (int j = 0; j < 16; ++j) low = of.low[j] < low ? of.low[j] : low, high = of.high[j] > high ? of.high[j] : high;
    return part_exponents(low, high);
}
static inline struct part_range part_joined(struct part_range a, struct part_range b) {
    return (struct part_range){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}
static inline struct part_range part_over(const struct part_range *ranges, int64_t units) {
    struct part_range range = ranges[0];
    for (int64_t unit = 1; unit < units; ++unit) range = part_joined(range, ranges[unit]);
    return range;
}
/* Of one or two stripes, the second so many words behind the first. */
static inline struct part_range part_of_rows(const struct part_range *ranges, int64_t stripe, int64_t stripes, int64_t units) {
    const struct part_range range = part_over(ranges, units);
    return stripes == 1 ? range : part_joined(range, part_over(ranges + stripe / 2, units));
}
/* What numbers are multiplied by before they are taken apart: as they are, and where none is greater than 1. */
#define PART_PLAIN 1.0f
#define PART_RAISED 0x1p50f
/* Whether all parts are numbers that are not denormal: the least has a bit 23 places behind that of the number. */
static inline int part_exist(struct part_range a) { return a.low >= 24u && a.high <= 253u; }
/* Whether no sum of products of parts is denormal (all are multiples of 2^(low exponents - 46)) or overflows. */
static inline int part_multiply(struct part_range a, struct part_range b) {
    return part_exist(a) && part_exist(b) && a.low + b.low >= 2u * 127u - 80u && a.high + b.high <= 2u * 127u + 100u;
}
/* Words of a panel of so many units of so many words, with their ranges. */
static inline int64_t part_panel(int64_t units, int64_t unit) { return units * unit + (2 * units + 15) / 16 * 16; }
"""

_TEXT = """
enum { PART_ROWS_$parts = $rows, PART_SLAB_$parts = $slab, PART_PIECE_$parts = $piece };
enum { PART_LEFT_$parts = $left, PART_UNIT_$parts = $unit };
/* Up to 16 rows of numbers, and zeros behind them, as parts: a tile for each part of each unit, one after another, and behind so
   many units as there is room for their ranges. A word holds a step and the one 16 behind it, which takes no shuffle. */
static void part_split_$parts(float times, const float *from, int64_t m, int64_t k, int64_t rows, int64_t depth, uint32_t *to,
                              int64_t units) {
    struct part_range *const ranges = (struct part_range *)(to + units * PART_LEFT_$parts);
    for (int64_t start = 0; start < depth; start += 32) {
        const int64_t steps = depth - start < 32 ? depth - start : 32;
        uint32_t *const words = to + start / 32 * PART_LEFT_$parts;
        struct part_extremes extremes = part_none();
        for (int64_t row = 0; row < 16; ++row) {
            float filled[32];
            const float *here = from + row * m + start * k;
            if (row >= rows || steps < 32 || k != 1) {
                for (int64_t j = 0; j < 32; ++j) filled[j] = row < rows && j < steps ? here[j * k] : 0.0f;
                here = filled;
            }
            part_vector halves[2];
            __builtin_memcpy(halves, here, sizeof halves);
            halves[0] *= times, halves[1] *= times;
            extremes = part_extend(extremes, halves[0], halves[1]);
            part_apart(halves[0], halves[1], $parts, words + 16 * row, 256);
        }
        ranges[start / 32] = part_among(extremes);
    }
}
/* 32 steps of a panel as floats; they were stored as such where they have no parts. */
static void part_whole_$parts(const uint32_t *unit, struct part_range range, float *to) {
    for (int64_t step = 0; step < 32; ++step)
        for (int64_t column = 0; column < PANEL; ++column) {
            float sum = 0.0f;
            for (int part = $parts; part--;) {
                const uint32_t word = unit[(part * 16 + step % 16) * PANEL + column];
                sum += part_number(step < 16 ? word << 16 : word & 0xffff0000u);
            }
            to[step * PANEL + column] = part_exist(range) ? sum : part_number(unit[step * PANEL + column]);
        }
}
/* The product of some rows with a slab of a panel in floats. */
static __attribute__((noinline)) void part_floats_$parts(const float *a, int64_t a_m, int64_t a_k, const uint32_t *panel,
                                                  const struct part_range *ranges, float *sums, int64_t rows, int64_t depth) {
    float left[PANEL_ROWS * PANEL_STRIDE] __attribute__((aligned(64))), right[32 * PANEL] __attribute__((aligned(64)));
    for (int64_t from = 0; from < depth; from += 32) {
        const int64_t steps = depth - from < 32 ? depth - from : 32;
        part_whole_$parts(panel + from / 32 * PART_UNIT_$parts, ranges[from / 32], right);
        for (int64_t start = 0; start < rows; start += PANEL_ROWS) {
            const int64_t count = rows - start < PANEL_ROWS ? rows - start : PANEL_ROWS;
            for (int64_t i = 0; i < count; ++i)
                for (int64_t k = 0; k < steps; ++k) left[i * PANEL_STRIDE + k] = a[(start + i) * a_m + (from + k) * a_k];
            floats_tiles[count](left, right, sums + start * PANEL, PANEL, steps, from > 0, right);
        }
    }
}
/* Rows, 16 at a time, as parts, with room for so many units. */
static void part_stripes_$parts(float times, const float *a, int64_t a_m, int64_t a_k, int64_t rows, int64_t depth, uint32_t *to,
                                int64_t units) {
    const int64_t stripe = part_panel(units, PART_LEFT_$parts);
    for (int64_t start = 0; start < rows; start += 16)
        part_split_$parts(times, a + start * a_m, a_m, a_k, rows - start, depth, to + start / 16 * stripe, units);
}
/* As panel_add, of a left operand that was split in rows of such a depth: the tile begins in a row and at a step of it, too.
   Tiles take no denormal sum: what is in c is given to them where only they made it. Whether they did goes in and comes back.
   What is in c before does not count if it is new. The numbers that were split are so many times those of the left operand. */
static int panel_slabs_$parts(int by_tiles, int is_new, float times, float *c, int64_t c_m, const float *a, int64_t a_m,
                              int64_t a_k, const void *split, int64_t split_depth, int64_t split_row, int64_t split_step,
                              const float *packed, int64_t whole, int64_t column, int64_t step, int64_t rows, int64_t columns,
                              int64_t depth) {
    float sums[32 * PANEL] __attribute__((aligned(64)));
    struct part_range rows_ranges[PART_ROWS_$parts / 32];
    const int64_t units = (whole + 31) / 32, panel_words = part_panel(units, PART_UNIT_$parts);
    const int64_t left_units = (split_depth + 31) / 32, stripe = part_panel(left_units, PART_LEFT_$parts);
    const uint32_t *const left = (const uint32_t *)split + split_row / 16 * stripe;
    const uint32_t *const panels = (const uint32_t *)packed + column / PANEL * panel_words;
    int all_by_tiles = by_tiles;
    tiles_begin();
    const int64_t all = (depth + 31) / 32, slabs = (all + PART_SLAB_$parts - 1) / PART_SLAB_$parts;
    for (int64_t top = 0; top < rows; top += PART_ROWS_$parts)
        for (int64_t slab = 0; slab < slabs; ++slab) {
            const int64_t high = rows - top < PART_ROWS_$parts ? rows - top : PART_ROWS_$parts, heights = (high + 31) / 32;
            const int64_t from = slab * all / slabs, count = (slab + 1) * all / slabs - from;
            const int64_t first = step / 32 + from, left_unit = split_step / 32 + from;
            const uint32_t *const stripes = left + top / 16 * stripe;
            const uint32_t *const behind = stripes + left_units * PART_LEFT_$parts;
            const struct part_range *const left_ranges = (const struct part_range *)behind + left_unit;
            for (int64_t height = 0; height < heights; ++height)
                rows_ranges[height] = part_of_rows(left_ranges + height * stripe, stripe, high > 32 * height + 16 ? 2 : 1, count);
            for (int64_t n = 0; n < columns; n += PANEL) {
                const int64_t width = columns - n < PANEL ? columns - n : PANEL;
                const uint32_t *const panel = panels + n / PANEL * panel_words, *const here = panel + first * PART_UNIT_$parts;
                const struct part_range *const ranges = (const struct part_range *)(panel + units * PART_UNIT_$parts) + first;
                /* the next panel, or below the first of this tile, or the first of the next tile */
                const uint32_t *const next = n + PANEL < columns ? here + panel_words
                    : first + count < units ? panels + (first + count) * PART_UNIT_$parts : panel + panel_words;
                const struct part_range range = part_over(ranges, count);
                for (int64_t height = 0; height < heights; ++height) {
                    const int64_t start = 32 * height, tall = high - start < 32 ? high - start : 32, tiles = (tall + 15) / 16;
                    const uint32_t *const tile = stripes + 2 * height * stripe + left_unit * PART_LEFT_$parts;
                    const int64_t share = height * $shares / heights, shares = (height + 1) * $shares / heights - share;
                    const int in_parts = part_multiply(rows_ranges[height], range);
                    /* as many steps as a slab has are one sum; more have some of their own, so that errors do not grow */
                    const int is_full = width == PANEL && tall == 16 * tiles, is_first = is_new && slab == 0;
                    const int add = by_tiles && in_parts && is_full && first + count <= PART_SLAB_$parts;
                    if (is_first && !add)
                        for (int64_t i = 0; i < tall; ++i) memset(c + (top + start + i) * c_m + n, 0, 4 * width);
                    all_by_tiles &= in_parts;
                    for (int64_t unit = 0, some; unit < count; unit += some) {
                        some = in_parts || count - unit < PART_PIECE_$parts ? count - unit : PART_PIECE_$parts;
                        const struct part_range *const of_rows = left_ranges + height * stripe + unit;
                        const uint32_t *const units_here = here + unit * PART_UNIT_$parts;
                        float *const to = c + (top + start) * c_m + n;
                        float back = 1.0f;
                        if (in_parts
                            || part_multiply(part_of_rows(of_rows, stripe, tiles, some), part_over(ranges + unit, some))) {
                            const uint32_t *const ahead = next + unit * PART_UNIT_$parts + share * $share;
                            matrix_tiles_$parts[tiles](tile + unit * PART_LEFT_$parts, stripe, units_here, add ? to : sums,
                                                 add ? c_m : PANEL, add && !is_first, 16 * some, ahead, shares);
                            if (add) continue;
                            back = 1.0f / times;
                        } else {
                            const int64_t at = 32 * (from + unit), deep = depth - at < 32 * some ? depth - at : 32 * some;
                            const float *const rows_here = a + (top + start) * a_m + at * a_k;
                            part_floats_$parts(rows_here, a_m, a_k, units_here, ranges + unit, sums, tall, deep);
                        }
                        for (int64_t i = 0; i < tall; ++i)
                            if (width == PANEL)
                                for (int64_t j = 0; j < PANEL; ++j) to[i * c_m + j] += back * sums[i * PANEL + j];
                            else
                                for (int64_t j = 0; j < width; ++j) to[i * c_m + j] += back * sums[i * PANEL + j];
                    }
                }
            }
        }
    tiles_end();
    return all_by_tiles;
}
/* At step 0 sums are zero, so that tiles made them. */
static void panel_multiply_$parts(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const void *split,
                                  int64_t split_depth, int64_t split_row, int64_t split_step, const float *packed, int64_t whole,
                                  int64_t column, int64_t step, int64_t rows, int64_t columns, int64_t depth) {
    (void)panel_slabs_$parts(step == 0, 0, PART_PLAIN, c, c_m, a, a_m, a_k, split, split_depth, split_row, split_step, packed,
                             whole, column, step, rows, columns, depth);
}
/* Rows are taken apart here, as many units at a time as there is room for. */
static void panel_rows_$parts(int is_new, float times, float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k,
                              const float *packed, int64_t whole, int64_t column, int64_t step, int64_t rows, int64_t columns,
                              int64_t depth) {
    enum { MOST = PART_ROWS_$parts / 16 * PART_PIECE_$parts, WORDS = PART_LEFT_$parts };
    uint32_t left[MOST * WORDS + PART_ROWS_$parts / 16 * 16 + 2 * MOST] __attribute__((aligned(64)));
    for (int64_t top = 0; top < rows; top += PART_ROWS_$parts) {
        const int64_t high = rows - top < PART_ROWS_$parts ? rows - top : PART_ROWS_$parts, stripes = (high + 15) / 16;
        const int64_t units = MOST / stripes;
        int by_tiles = step == 0 && times == PART_PLAIN;
        for (int64_t from = 0; from < depth; from += 32 * units) {
            const int64_t deep = depth - from < 32 * units ? depth - from : 32 * units;
            const float *const here = a + top * a_m + from * a_k;
            part_stripes_$parts(times, here, a_m, a_k, high, deep, left, units);
            by_tiles = panel_slabs_$parts(by_tiles, is_new && from == 0, times, c + top * c_m, c_m, here, a_m, a_k, left,
                                          32 * units, 0, 0, packed, whole, column, step + from, high, columns, deep);
        }
    }
}
static void panel_add_$parts(float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k, const float *packed, int64_t whole,
                        int64_t column, int64_t step, int64_t rows, int64_t columns, int64_t depth) {
    panel_rows_$parts(0, PART_PLAIN, c, c_m, a, a_m, a_k, packed, whole, column, step, rows, columns, depth);
}
/* As dot_add of a right operand k x n, one of several that lie one behind another in panels of parts, and of a left operand that
   was taken apart before, all k of it, or is now. The sums may be new. */
static void dot_apart_$parts(int is_new, float times, float *c, int64_t c_m, const float *a, int64_t a_m, int64_t a_k,
                             const uint32_t *left, const float *panels, int64_t matrix, int64_t k, int64_t n, int64_t column,
                             int64_t step, int64_t rows, int64_t columns, int64_t depth) {
    const float *const here = panels + matrix * ((n + PANEL - 1) / PANEL) * part_panel((k + 31) / 32, PART_UNIT_$parts);
    if (left)
        (void)panel_slabs_$parts(step == 0, is_new, times, c, c_m, a, a_m, a_k, left, k, 0, step, here, k, column, step, rows,
                                 columns, depth);
    else panel_rows_$parts(is_new, times, c, c_m, a, a_m, a_k, here, k, column, step, rows, columns, depth);
}
/* Of b[k][n], whose steps and columns are so far apart, a panel; columns that are none, and steps, are zero. */
static void part_panel_of_$parts(const float *b, int64_t b_k, int64_t b_n, int64_t k, int64_t n, int64_t panel, uint32_t *to) {
    const int64_t units = (k + 31) / 32, column = panel * PANEL, width = n - column < PANEL ? n - column : PANEL;
    for (int64_t unit = 0; unit < units; ++unit) {
        const float *const here = b + 32 * unit * b_k + column * b_n;
        const int64_t steps = k - 32 * unit < 32 ? k - 32 * unit : 32;
        float numbers[32][PANEL] __attribute__((aligned(64)));
        const int is_full = steps == 32 && width == PANEL;
        if (is_full && b_k == 1) dot_turn(numbers[0], PANEL, here, b_n, PANEL, 32);
        else if (is_full && b_n == 1)
            for (int64_t i = 0; i < 32; ++i) __builtin_memcpy(numbers[i], here + i * b_k, sizeof numbers[i]);
        else
            for (int64_t i = 0; i < 32; ++i)
                for (int64_t j = 0; j < PANEL; ++j) numbers[i][j] = i < steps && j < width ? here[i * b_k + j * b_n] : 0.0f;
        uint32_t *const words = to + unit * PART_UNIT_$parts;
        struct part_extremes extremes = part_none();
        for (int64_t i = 0; i < 32; ++i)
            extremes = part_extend(extremes, *(part_vector *)numbers[i], *(part_vector *)(numbers[i] + 16));
        const struct part_range range = part_among(extremes);
        ((struct part_range *)(to + units * PART_UNIT_$parts))[unit] = range;
        if (!part_exist(range)) {
            __builtin_memcpy(words, numbers, sizeof numbers);
            continue;
        }
        for (int64_t i = 0; i < 16; ++i)
            for (int64_t j = 0; j < PANEL; j += 16) {
                const part_vector upper = *(part_vector *)(numbers[i] + j), lower = *(part_vector *)(numbers[i + 16] + j);
                part_apart(upper, lower, $parts, words + i * PANEL + j, 16 * PANEL);
            }
    }
}
/* b[k][n] as panels of parts. */
static void panel_pack_$parts(const float *weights, float *to, int64_t k, int64_t n) {
    const int64_t words = part_panel((k + 31) / 32, PART_UNIT_$parts);
    for (int64_t panel = 0; panel * PANEL < n; ++panel)
        part_panel_of_$parts(weights, n, 1, k, n, panel, (uint32_t *)to + panel * words);
}
"""
