"""Products of a matrix with stored weights as C text: blocked for caches and registers, with what follows computed in place.

A launch computes ``left [m, k] times right [k, n]``. The weights are packed once, in panels as wide as two vectors that lie in
the order in which a launch reads them. A block has some rows and some panels; it copies its rows of the left operand to the stack
a few slabs of the contracted axis at a time, multiplies tile by tile (:mod:`rewriter.kernels.c.tiles`), and runs the epilogue on
each tile as soon as its sum is whole. The blocking is that of K. Goto and R. van de Geijn, Anatomy of high-performance matrix
multiplication, ACM TOMS 34(3), 2008, with rows and panels shared out evenly, so that no tile is nearly empty.

**Floats as parts.** A float is the sum of three bfloat16, each the one nearest to what the ones before it leave; products of two
bfloat16 are exact in float32. Of the nine products of parts six suffice: what is left out is about 2⁻²⁵ of the whole, as often
with one sign as with the other (G. Henry, P. T. P. Tang, A. Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype
for Higher-Precision Computations, ARITH 2019). In a slab the small products are added up before the leading one.

The units for bfloat16 take denormal numbers as zero and give none, and a float near the largest has no nearest bfloat16. So every
row of a slab and every panel has the range of its exponents. Where no sum of products of parts could be denormal or overflow (the
two ranges decide it, whatever lies between), parts are multiplied, else floats: the weights are put together again, which is
exact with three parts, or were stored as floats. Infinities and NaN are such a case. So no result depends on how units round what
is too small.

**Bytes.** Unsigned bytes on the left, signed ones on the right, sums in 32 bits that wrap as the original's do, and zero points
by the sums of rows and columns: the integers of MatMulInteger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Template

from rewriter.kernels.c.tiles import (
    BYTES,
    FLOATS,
    MATRIX_QUARTER,
    PAIRS,
    PartPair,
    TileLayout,
    TileTarget,
    WordKind,
    matrix_tiles,
    vector_tiles,
)
from rewriter.runtime.plan import Expression

__all__ = [
    "FLOAT32",
    "ONE_PRODUCT",
    "SIGNED_BYTES",
    "SIX_PRODUCTS",
    "STACK_BYTES",
    "THREE_PRODUCTS",
    "UNSIGNED_BYTES",
    "Arithmetic",
    "StoredProduct",
    "dynamic_quantized",
]

STACK_BYTES = 256 << 10
"""What a block may have on the stack."""
MATRIX_STACK_BYTES = 640 << 10
"""The same where tiles of AMX multiply, which are so fast that a panel has to serve more rows than that has room for."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How the numbers of a product are multiplied.

    Attributes:
        kind: of the words.
        terms: products of parts, in the order in which they are added up: the leading parts come last.
        left_parts: of every number on the left.
        right_parts: that are stored of every weight; enough to put it together again where units for bfloat16 cannot serve.
        weight: the C type of a weight before it is packed.
    """

    kind: WordKind
    terms: tuple[PartPair, ...]
    left_parts: int
    right_parts: int
    weight: str = "float"


_LEADING = PartPair(0, 0)
FLOAT32 = Arithmetic(FLOATS, (_LEADING,), 1, 1)
SIX_PRODUCTS = Arithmetic(PAIRS, (PartPair(0, 2), PartPair(0, 1), PartPair(1, 1), PartPair(1, 0), PartPair(2, 0), _LEADING), 3, 3)
"""A float32 product by bfloat16 parts, no less exact than one by floats."""
THREE_PRODUCTS = Arithmetic(PAIRS, (PartPair(0, 1), PartPair(1, 0), _LEADING), 2, 2)
"""As :data:`SIX_PRODUCTS`, but exact to 16 bits of every operand."""
ONE_PRODUCT = Arithmetic(PAIRS, (_LEADING,), 1, 2)
"""As :data:`SIX_PRODUCTS`, but exact to 8 bits of every operand."""
SIGNED_BYTES = Arithmetic(BYTES, (_LEADING,), 1, 1, "int8_t")
UNSIGNED_BYTES = Arithmetic(BYTES, (_LEADING,), 1, 1, "uint8_t")


@dataclass(frozen=True, slots=True)
class StoredProduct:
    """A product with stored weights and what is computed of it, as a launch.

    Attributes:
        name: of the launch's function. The other one, which packs the weights, is named ``{name}_pack``.
        k, n: the sizes of the weights, at least 1.
        target: the instructions.
        parameters: C declarations of the launch's arguments, in order (``const float *restrict left``). Among them are
            ``const void *right``, the packed weights, and ``int64_t m``, the rows.
        epilogue: C statements for an entry: ``row``, ``column`` and ``value``, a float, or an int32_t of bytes.
        arithmetic: how numbers are multiplied.
        left: the C expression of an entry of the left operand at ``row`` and ``at``: a float, or a uint8_t of bytes.
        weight: the C expression of a weight at ``at`` and ``column`` of ``weights``.
        prologue: C statements at the start of the launch.
        left_zero, right_zero: C expressions, of bytes: what is subtracted from every number before it is multiplied. The right
            one may be one of ``column``.
    """

    name: str
    k: int
    n: int
    target: TileTarget
    parameters: tuple[str, ...]
    epilogue: str
    arithmetic: Arithmetic = FLOAT32
    left: str = "left[row * K + at]"
    weight: str = "weights[at * N + column]"
    prologue: str = ""
    left_zero: str = "0"
    right_zero: str = "0"

    @property
    def uses_matrix(self) -> bool:
        """Whether tiles of AMX multiply."""
        return self.arithmetic.kind is PAIRS and bool(self.target.matrix)

    @property
    def steps(self) -> int:
        """Words along the contracted axis, with those of padding."""
        granule = 16 if self.uses_matrix else 1
        words = -(-self.k // self.arithmetic.kind.numbers)
        return -(-words // granule) * granule

    @property
    def _most_slab(self) -> int:
        """The most words of a slab. Tiles of AMX take so many that a panel and a tile of rows, all parts of both, fill L1."""
        return 3 * self.arithmetic.kind.slab // self.arithmetic.left_parts if self.uses_matrix else self.arithmetic.kind.slab

    @property
    def slab(self) -> int:
        """Words of a slab of the contracted axis; the last may have fewer."""
        granule = 16 if self.uses_matrix else 1
        slabs = -(-self.steps // self._most_slab)
        return -(-self.steps // (slabs * granule)) * granule

    @property
    def slabs(self) -> int:
        return -(-self.steps // self.slab)

    @property
    def panels(self) -> int:
        return -(-self.n // self.target.columns)

    @property
    def packed_bytes(self) -> int:
        """The size of the packed weights, which begin at a multiple of 64 bytes."""
        words = self.panels * self.target.columns * self.steps * self.arithmetic.right_parts
        if self.arithmetic.kind is PAIRS:
            words += 2 * self.panels * self.slabs
        elif self.arithmetic.kind is BYTES:
            words += self.panels * self.target.columns
        return 4 * words

    @property
    def _block(self) -> tuple[int, int, int]:
        """The most rows and columns of a block, and how many slabs of that many rows the stack has room for.

        What is filled of the left operand serves as many columns as there are, and a panel that is read as many rows.
        """
        if self.arithmetic.kind is FLOATS:
            return 140 // self.target.rows * self.target.rows, 160, 2
        if self.arithmetic.kind is BYTES:
            return 70 // self.target.rows * self.target.rows, 320, 4
        return (128, 768, 1) if self.uses_matrix else (64, 256, 1)

    @property
    def rows(self) -> int:
        """The most rows of a block."""
        return self._block[0]

    @property
    def columns(self) -> int:
        """The most columns of a block."""
        return self._block[1]

    @property
    def _left_part(self) -> int:
        """Words from one part of a row of the left tile to the next: an odd number of cache lines where rows have one part."""
        return self._most_slab + 16

    @property
    def _left_row(self) -> int:
        """Words from one row of the left tile to the next."""
        return self._left_part * self.arithmetic.left_parts

    @property
    def _left_rows(self) -> int:
        """Rows of slabs that the stack has room for."""
        return self._block[2] * self.rows

    @property
    def _sum_columns(self) -> int:
        """Columns of which sums are kept: those of one panel where a block has room for its rows at once."""
        return self.target.columns if self.slabs * self.rows <= self._left_rows else self.columns

    @property
    def stack_bytes(self) -> int:
        """What the launch has on the stack, all but single values."""
        words = self._left_rows * self._left_row + self.rows * self._sum_columns
        if self.arithmetic.kind is PAIRS:
            words += 32 * FLOATS.stride + FLOATS.slab * self.target.columns + 4 * self._left_rows
        elif self.arithmetic.kind is BYTES:
            words += self.rows
        return 4 * words

    def grid(self, m: Expression | int) -> tuple[Expression | int, Expression | int, int]:
        """The least grid of a launch with ``m`` rows; its first two extents may be larger, so that more threads have work."""
        across = -(-self.panels // (self.columns // self.target.columns))
        return across, m.ceil_div(self.rows) if isinstance(m, Expression) else -(-m // self.rows), 1

    def source(self) -> str:
        """The C text of both functions.

        Raises:
            ValueError: a size is not positive, or the blocks do not fit on the stack.
        """
        if self.k < 1 or self.n < 1:
            raise ValueError(f"{self.name}: weights of {self.k} by {self.n} have no panels")
        most = MATRIX_STACK_BYTES if self.uses_matrix else STACK_BYTES
        if self.stack_bytes > most:
            raise ValueError(f"{self.name}: a block has {self.stack_bytes} bytes on the stack, more than {most}")
        kind, target = self.arithmetic.kind, self.target
        texts = ["#include <stdint.h>\n"]
        if target.matrix or target.has("avx512_bf16") or target.has("avx512_vnni"):
            texts.append("#include <immintrin.h>\n")
        texts.append(self._constants())
        layout = TileLayout(self._left_row, f"steps * {target.columns}", target.columns, self._left_part)
        if self.uses_matrix:
            texts += [target.matrix, matrix_tiles(target, self.arithmetic.terms, layout)]
        else:
            texts.append(vector_tiles(kind, target, self.arithmetic.terms, layout))
        if kind is PAIRS:
            few = replace(layout, left_row=FLOATS.stride)
            texts += [vector_tiles(FLOATS, target, FLOAT32.terms, few), _RANGES]
        elif kind is BYTES:
            texts.append(_QUANTIZED)
        texts += [self._packing(), self._launch()]
        return "\n".join(texts)

    def _constants(self) -> str:
        numbers = {
            "K": self.k,
            "N": self.n,
            "STEPS": self.steps,
            "SLAB": self.slab,
            "SLABS": self.slabs,
            "PANEL": self.target.columns,
            "PANELS": self.panels,
            "NUMBERS": self.arithmetic.kind.numbers,
            "LEFT_PARTS": self.arithmetic.left_parts,
            "RIGHT_PARTS": self.arithmetic.right_parts,
            "LEFT_PART": self._left_part,
            "LEFT_ROW": self._left_row,
            "LEFT_ROWS": self._left_rows,
            "FEW_STEPS": FLOATS.slab,
            "FEW_STRIDE": FLOATS.stride,
            "ROWS": self.rows,
            "SUM_COLUMNS": self._sum_columns,
            "TILE_ROWS": 32 if self.uses_matrix else self.target.rows,
            "VECTOR_ROWS": self.target.rows,
        }
        constants = "".join(f"    {name} = {number},\n" for name, number in numbers.items())
        return f"enum {{\n{constants}}};\n{_SMALLER}"

    def _packing(self) -> str:
        kind = self.arithmetic.kind
        body = {"floats": _PACK_FLOATS, "pairs": _PACK_PAIRS, "bytes": _PACK_BYTES}[kind.name]
        offset = " - 128" if self.arithmetic.weight == "uint8_t" else ""
        text = Template(body).substitute(weight=self.weight, offset=offset)
        return Template(_PACK).substitute(name=self.name, type=self.arithmetic.weight, body=text)

    def _launch(self) -> str:
        kind = self.arithmetic.kind
        fill = {"floats": _FILL_FLOATS, "pairs": _FILL_PAIRS, "bytes": _FILL_BYTES}[kind.name]
        tiles = f"{kind.name}_tiles[count](tile, panel, to, steps, slab > 0);"
        if self.uses_matrix:
            ahead = f"words + next * PANEL * RIGHT_PARTS + group * {MATRIX_QUARTER}"
            tiles = f"matrix_tiles[(count + 15) / 16](tile, panel, to, steps, slab > 0, {ahead});"
        multiply = Template(_MULTIPLY_PAIRS).substitute(left=self.left, tiles=tiles) if kind is PAIRS else tiles
        value = "from[j]"
        if kind is BYTES:
            zero = f"(({self.right_zero}) - 128)" if self.arithmetic.weight == "uint8_t" else f"({self.right_zero})"
            value = (
                f"(int32_t)((uint32_t)from[j] - (uint32_t)({self.left_zero}) * (uint32_t)column_sums[column]"
                f" - (uint32_t){zero} * ((uint32_t)row_sums[start + i] - (uint32_t)K * (uint32_t)({self.left_zero})))"
            )
        place = {
            "start": "group * TILE_ROWS" if self.uses_matrix else "group * rows / groups",
            "stop": "smaller((group + 1) * TILE_ROWS, rows)" if self.uses_matrix else "(group + 1) * rows / groups",
        }
        return Template(_LAUNCH).substitute(
            name=self.name,
            parameters="\n    ".join(_parameters(self.parameters)),
            prologue=self.prologue,
            word=kind.word,
            total=kind.total,
            tables={"floats": "", "pairs": _PAIR_TABLES, "bytes": _BYTE_TABLES}[kind.name],
            begin="tiles_begin();" if self.uses_matrix else "",
            end="tiles_end();" if self.uses_matrix else "",
            granule=16 if self.uses_matrix else 1,
            **place,
            fill=Template(fill).substitute(left=self.left),
            filled=Template(_JOIN_RANGES).substitute(place) if kind is PAIRS else "",
            next=_NEXT_PANEL if self.uses_matrix else "",
            multiply=multiply,
            value=value,
            epilogue=self.epilogue,
        )


def _parameters(declarations: Sequence[str]) -> list[str]:
    """A C definition for each argument, in order."""
    lines = []
    for number, declaration in enumerate(declarations):
        kind = declaration[: declaration.rindex("*") + 1] if "*" in declaration else declaration.rsplit(" ", 1)[0]
        lines.append(f"{declaration} = *({kind} const *)arguments[{number}];")
    return lines


def dynamic_quantized(name: str, k: int, n: int, target: TileTarget, arithmetic: Arithmetic = SIGNED_BYTES) -> StoredProduct:
    """DynamicQuantizeLinear of floats, MatMulInteger with stored bytes, and its integers times both scales, as one launch.

    Its arguments are ``left``, floats, ``right``, ``y``, floats, the scale of the weights and the rows. Every range of blocks
    looks for the least and the greatest number of the whole left operand, as the operator asks.
    """
    return StoredProduct(
        name,
        k,
        n,
        target,
        ("const float *restrict left", "const void *right", "float *restrict y", "float right_scale", "int64_t m"),
        "y[row * N + column] = (float)value * (scale * right_scale);",
        arithmetic,
        left="quantized(left[row * K + at], scale, zero)",
        left_zero="zero",
        prologue=_DYNAMIC_RANGE,
    )


_DYNAMIC_RANGE = """float lows[64] = {0}, highs[64] = {0}, low = 0.0f, high = 0.0f;
    const int64_t whole = m * K / 64 * 64;
    for (int64_t i = 0; i < whole; i += 64)
        for (int64_t j = 0; j < 64; ++j) {
            lows[j] = left[i + j] < lows[j] ? left[i + j] : lows[j];
            highs[j] = left[i + j] > highs[j] ? left[i + j] : highs[j];
        }
    for (int64_t j = 0; j < 64; ++j) low = lows[j] < low ? lows[j] : low, high = highs[j] > high ? highs[j] : high;
    for (int64_t i = whole; i < m * K; ++i) low = left[i] < low ? left[i] : low, high = left[i] > high ? left[i] : high;
    const float scale = low == high ? 1.0f : (high - low) / 255.0f, start = -low / scale;
    const int32_t zero = (int32_t)__builtin_rintf(start < 0.0f ? 0.0f : start > 255.0f ? 255.0f : start);"""

_QUANTIZED = """/* QuantizeLinear: halves to even, then what does not fit to the nearest that does. */
static inline uint8_t quantized(float number, float scale, int32_t zero) {
    const float rounded = __builtin_rintf(number / scale) + (float)zero;
    return (uint8_t)(int32_t)(rounded < 0.0f ? 0.0f : rounded > 255.0f ? 255.0f : rounded);
}
"""

_SMALLER = "static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }\n"

_PACK = """
void ${name}_pack(const void *from, void *packed, const int64_t *sizes) {
    (void)sizes;
    const $type *const weights = from;
    $body
}
"""

_PACK_FLOATS = """float *to = packed;
    for (int64_t panel = 0; panel < PANELS; ++panel)
        for (int64_t at = 0; at < K; ++at)
            for (int64_t column = panel * PANEL; column < (panel + 1) * PANEL; ++column) *to++ = column < N ? $weight : 0.0f;
"""

_PACK_BYTES = """uint8_t *to = packed;
    int32_t *const column_sums = (int32_t *)packed + (int64_t)PANELS * STEPS * PANEL;
    for (int64_t column = 0; column < PANELS * PANEL; ++column) column_sums[column] = 0;
    for (int64_t panel = 0; panel < PANELS; ++panel)
        for (int64_t step = 0; step < STEPS; ++step)
            for (int64_t column = panel * PANEL; column < (panel + 1) * PANEL; ++column)
                for (int64_t at = step * NUMBERS; at < (step + 1) * NUMBERS; ++at) {
                    const int32_t weight = at < K && column < N ? $weight$offset : 0;
                    column_sums[column] += weight;
                    *to++ = (uint8_t)weight;
                }
"""

_RANGES = """struct range { uint32_t low, high; };
static inline uint32_t bits_of(float number) { union { float number; uint32_t bits; } of = {number}; return of.bits; }
static inline float number_of(uint32_t bits) { union { uint32_t bits; float number; } of = {bits}; return of.number; }
static inline uint32_t part_of(uint32_t bits) { return (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u; }
/* Exponents of the least number but zero and of the greatest. "low" is the least magnitude less one: zero is the greatest. */
static inline struct range exponents(uint32_t low, uint32_t high) {
    return (struct range){low == ~0u ? 254u : (low + 1u) >> 23, high >> 23};
}
static inline struct range joined(struct range a, struct range b) {
    return (struct range){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}
/* Whether all parts are numbers that are not denormal: the least has a bit 23 places behind that of the number. */
static inline int has_parts(struct range a) { return a.low >= 24u && a.high <= 253u; }
/* Whether no sum of products of parts is denormal (all are multiples of 2^(low exponents - 46)) or overflows. */
static inline int multiplies(struct range a, struct range b) {
    return has_parts(a) && has_parts(b) && a.low + b.low >= 2u * 127u - 80u && a.high + b.high <= 2u * 127u + 100u;
}
/* A weight of a slab of a panel. */
static inline float whole(const uint32_t *panel, struct range range, int64_t steps, int64_t at, int64_t column) {
    if (!has_parts(range)) return number_of(panel[at * PANEL + column]);
    float sum = 0.0f;
    for (int part = RIGHT_PARTS; part--;) {
        const uint32_t word = panel[(part * steps + at / 2) * PANEL + column];
        sum += number_of(at % 2 ? word & 0xffff0000u : word << 16);
    }
    return sum;
}
"""

_PACK_PAIRS = """uint32_t *const words = packed;
    struct range *const ranges = (struct range *)(words + (int64_t)PANELS * STEPS * PANEL * RIGHT_PARTS);
    for (int64_t panel = 0; panel < PANELS; ++panel)
        for (int64_t slab = 0; slab < SLABS; ++slab) {
            const int64_t from_step = slab * SLAB, steps = smaller(SLAB, STEPS - from_step);
            uint32_t *const to = words + (panel * STEPS + from_step) * PANEL * RIGHT_PARTS;
            uint32_t low = ~0u, high = 0;
            for (int64_t at = 2 * from_step; at < smaller(K, 2 * (from_step + steps)); ++at)
                for (int64_t column = panel * PANEL; column < smaller(N, (panel + 1) * PANEL); ++column) {
                    const uint32_t magnitude = bits_of($weight) & 0x7fffffffu;
                    low = magnitude - 1u < low ? magnitude - 1u : low, high = magnitude > high ? magnitude : high;
                }
            const struct range range = ranges[panel * SLABS + slab] = exponents(low, high);
            for (int64_t at = 2 * from_step; at < 2 * (from_step + steps); ++at)
                for (int64_t j = 0; j < PANEL; ++j) {
                    const int64_t column = panel * PANEL + j;
                    const float number = at < K && column < N ? $weight : 0.0f;
                    const int64_t offset = at - 2 * from_step;
                    if (!has_parts(range)) {
                        to[offset * PANEL + j] = bits_of(number);
                        continue;
                    }
                    float rest = number;
                    for (int part = 0; part < RIGHT_PARTS; ++part) {
                        const uint32_t bits = part_of(bits_of(rest));
                        rest -= number_of(bits);
                        uint32_t *const word = to + (part * steps + offset / 2) * PANEL + j;
                        *word = offset % 2 ? *word | bits : bits >> 16;
                    }
                }
        }
"""

_PAIR_TABLES = """float few[32 * FEW_STRIDE] __attribute__((aligned(64)));
    float few_right[FEW_STEPS * PANEL] __attribute__((aligned(64)));
    struct range left_ranges[LEFT_ROWS], tile_ranges[LEFT_ROWS];
    const struct range *const right_ranges = (const struct range *)(words + (int64_t)PANELS * STEPS * PANEL * RIGHT_PARTS);"""

_BYTE_TABLES = """int32_t row_sums[ROWS];
    const int32_t *const column_sums = (const int32_t *)words + (int64_t)PANELS * STEPS * PANEL;"""

_FILL_FLOATS = """const int64_t depth = smaller(SLAB, K - slab * SLAB);
                    for (int64_t j = 0; j < depth; ++j) {
                        const int64_t at = slab * SLAB + j;
                        to[j] = $left;
                    }"""

_FILL_BYTES = """const int64_t steps = smaller(SLAB, STEPS - slab * SLAB), depth = smaller(4 * SLAB, K - 4 * slab * SLAB);
                    uint8_t *const bytes = (uint8_t *)to;
                    int32_t sum = 0;
                    for (int64_t j = 0; j < depth; ++j) {
                        const int64_t at = 4 * slab * SLAB + j;
                        bytes[j] = $left;
                        sum += bytes[j];
                    }
                    for (int64_t j = depth; j < 4 * steps; ++j) bytes[j] = 0;
                    row_sums[i] = slab ? row_sums[i] + sum : sum;"""

_FILL_PAIRS = """const int64_t steps = smaller(SLAB, STEPS - slab * SLAB), depth = smaller(2 * SLAB, K - 2 * slab * SLAB);
                    float numbers[2 * SLAB];
                    for (int64_t j = 0; j < depth; ++j) {
                        const int64_t at = 2 * slab * SLAB + j;
                        numbers[j] = $left;
                    }
                    for (int64_t j = depth; j < 2 * steps; ++j) numbers[j] = 0.0f;
                    uint16_t *const parts = (uint16_t *)to;
                    uint32_t low = ~0u, high = 0;
                    for (int64_t j = 0; j < 2 * steps; ++j) {
                        const uint32_t magnitude = bits_of(numbers[j]) & 0x7fffffffu;
                        low = magnitude - 1u < low ? magnitude - 1u : low, high = magnitude > high ? magnitude : high;
                        float rest = numbers[j];
                        for (int part = 0; part < LEFT_PARTS; ++part) {
                            const uint32_t bits = part_of(bits_of(rest));
                            rest -= number_of(bits);
                            parts[2 * LEFT_PART * part + j] = (uint16_t)(bits >> 16);
                        }
                    }
                    left_ranges[(slab - slab_from) * padded + i] = exponents(low, high);"""

_NEXT_PANEL = """const int64_t is_here = slab + 1 < slab_to;
                        const int64_t next = (is_here ? p : p + 1) * STEPS + (is_here ? slab + 1 : slab_from) * SLAB;"""

_JOIN_RANGES = """for (int64_t slab = 0; slab < slab_to - slab_from; ++slab)
                for (int64_t group = 0; group < groups; ++group) {
                    const struct range *const of_rows = left_ranges + slab * padded;
                    struct range range = of_rows[$start];
                    for (int64_t i = $start + 1; i < $stop; ++i) range = joined(range, of_rows[i]);
                    tile_ranges[slab * groups + group] = range;
                }"""

_MULTIPLY_PAIRS = """const struct range range = tile_ranges[(slab - slab_from) * groups + group];
                        const struct range right_range = right_ranges[p * SLABS + slab];
                        const int64_t depth = multiplies(range, right_range) ? 0 : smaller(2 * SLAB, K - 2 * slab * SLAB);
                        if (!depth) $tiles
                        for (int64_t begin = 0; begin < depth; begin += FEW_STEPS) {
                            const int64_t length = smaller(FEW_STEPS, depth - begin);
                            for (int64_t i = 0; i < count; ++i)
                                for (int64_t j = 0; j < length; ++j) {
                                    const int64_t row = first_row + start + i, at = 2 * slab * SLAB + begin + j;
                                    few[i * FEW_STRIDE + j] = $left;
                                }
                            for (int64_t j = 0; j < length; ++j)
                                for (int64_t c = 0; c < PANEL; ++c)
                                    few_right[j * PANEL + c] = whole(panel, right_range, steps, begin + j, c);
                            for (int64_t r = 0; r < count; r += VECTOR_ROWS) {
                                const int64_t tall = smaller(VECTOR_ROWS, count - r);
                                const int add = slab > 0 || begin > 0;
                                floats_tiles[tall](few + r * FEW_STRIDE, few_right, to + r * PANEL, length, add);
                            }
                        }"""

_LAUNCH = """
void $name(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    $parameters
    const $word *const words = right;
    $word left_tile[LEFT_ROWS * LEFT_ROW] __attribute__((aligned(64)));
    $total sums[ROWS * SUM_COLUMNS] __attribute__((aligned(64)));
    $tables
    $prologue
    $begin
    for (int64_t block = first; block < last; ++block) {
        const int64_t across = block % grid[0], down = block / grid[0];
        const int64_t first_row = down * m / grid[1], rows = (down + 1) * m / grid[1] - first_row;
        const int64_t first_panel = across * PANELS / grid[0], last_panel = (across + 1) * PANELS / grid[0];
        const int64_t padded = (rows + $granule - 1) / $granule * $granule;
        if (!rows) continue;
        const int64_t held = smaller(SLABS, LEFT_ROWS / padded), groups = (rows + TILE_ROWS - 1) / TILE_ROWS;
        for (int64_t slab_from = 0; slab_from < SLABS; slab_from += held) {
            const int64_t slab_to = smaller(slab_from + held, SLABS);
            const int is_filled = held == SLABS && block > first && across > 0; /* by the block before, of the same rows */
            for (int64_t slab = is_filled ? slab_to : slab_from; slab < slab_to; ++slab)
                for (int64_t i = 0; i < rows; ++i) {
                    const int64_t row = first_row + i;
                    $word *const to = left_tile + ((slab - slab_from) * padded + i) * LEFT_ROW;
                    $fill
                }
            for (int64_t i = rows; i < padded; ++i)
                for (int64_t slab = 0; slab < slab_to - slab_from; ++slab)
                    for (int64_t j = 0; j < LEFT_ROW; ++j) left_tile[(slab * padded + i) * LEFT_ROW + j] = 0;
            $filled
            for (int64_t p = first_panel; p < last_panel; ++p)
                for (int64_t slab = slab_from; slab < slab_to; ++slab)
                    for (int64_t group = 0; group < groups; ++group) {
                        const int64_t start = $start, count = $stop - start, steps = smaller(SLAB, STEPS - slab * SLAB);
                        const $word *const panel = words + (p * STEPS + slab * SLAB) * PANEL * RIGHT_PARTS;
                        const $word *const tile = left_tile + ((slab - slab_from) * padded + start) * LEFT_ROW;
                        $total *const to = sums + ((SUM_COLUMNS > PANEL ? p - first_panel : 0) * ROWS + start) * PANEL;
                        $next
                        $multiply
                        if (slab < SLABS - 1) continue;
                        const int64_t first_column = p * PANEL, width = smaller(PANEL, N - first_column);
                        for (int64_t i = 0; i < count; ++i) {
                            const int64_t row = first_row + start + i;
                            const $total *const from = to + i * PANEL;
                            if (width == PANEL)
                                for (int64_t j = 0; j < PANEL; ++j) {
                                    const int64_t column = first_column + j;
                                    const $total value = $value;
                                    $epilogue
                                }
                            else
                                for (int64_t j = 0; j < width; ++j) {
                                    const int64_t column = first_column + j;
                                    const $total value = $value;
                                    $epilogue
                                }
                        }
                    }
        }
    }
    $end
}
"""
