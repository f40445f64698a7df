"""Products of bytes with stored weights as C text: blocked for caches and registers, with what follows computed in place.

A launch computes ``left [m, k] times right [k, n]``. The weights are packed once, in panels as wide as two vectors that lie in
the order in which a launch reads them. A block has some rows and some panels; it copies its rows of the left operand to the stack
a few slabs of the contracted axis at a time, multiplies tile by tile (:mod:`rewriter.kernels.c.tiles`), and runs the epilogue on
each tile as soon as its sum is whole. The blocking is that of K. Goto and R. van de Geijn, Anatomy of high-performance matrix
multiplication, ACM TOMS 34(3), 2008, with rows and panels shared out evenly, so that no tile is nearly empty.

Unsigned bytes on the left, signed ones on the right, sums in 32 bits that wrap as the original's do, and zero points by the
sums of rows and columns: the integers of MatMulInteger. Products of floats are those of block graphs
(:mod:`rewriter.kernels.c.panels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from rewriter.kernels.c.tiles import BYTES, TileTarget, vector_tiles
from rewriter.runtime.plan import Expression

__all__ = ["STACK_BYTES", "StoredProduct", "dynamic_quantized"]

STACK_BYTES = 256 << 10
"""What a block may have on the stack."""
_ROWS, _COLUMNS, _SLABS = 70, 320, 4
"""The most rows and columns of a block, about, and how many slabs of its rows the stack has room for."""


@dataclass(frozen=True, slots=True)
class StoredProduct:
    """A product with stored weights and what is computed of it, as a launch.

    Attributes:
        name: of the launch's function. The other one, which packs the weights, is named ``{name}_pack``.
        k, n: the sizes of the weights, at least 1.
        target: the instructions.
        parameters: C declarations of the launch's arguments, in order (``const float *restrict left``). Among them are
            ``const void *right``, the packed weights, and ``int64_t m``, the rows.
        epilogue: C statements for an entry: ``row``, ``column`` and ``value``, an int32_t.
        type: of a weight before it is packed: ``int8_t`` or ``uint8_t``.
        left: the C expression of an entry of the left operand at ``row`` and ``at``: a uint8_t.
        weight: the C expression of a weight at ``at`` and ``column`` of ``weights``.
        prologue: C statements at the start of the launch.
        left_zero, right_zero: C expressions: what is subtracted from every number before it is multiplied. The right
            one may be one of ``column``.
    """

    name: str
    k: int
    n: int
    target: TileTarget
    parameters: tuple[str, ...]
    epilogue: str
    type: str = "int8_t"
    left: str = "left[row * K + at]"
    weight: str = "weights[at * N + column]"
    prologue: str = ""
    left_zero: str = "0"
    right_zero: str = "0"

    @property
    def steps(self) -> int:
        """Words along the contracted axis, with those of padding."""
        return -(-self.k // BYTES.numbers)

    @property
    def slab(self) -> int:
        """Words of a slab of the contracted axis; the last may have fewer."""
        return -(-self.steps // -(-self.steps // BYTES.slab))

    @property
    def slabs(self) -> int:
        return -(-self.steps // self.slab)

    @property
    def panels(self) -> int:
        return -(-self.n // self.target.columns)

    @property
    def packed_bytes(self) -> int:
        """The size of the packed weights, which begin at a multiple of 64 bytes, and of the sums of their columns."""
        return 4 * self.panels * self.target.columns * (self.steps + 1)

    @property
    def rows(self) -> int:
        """The most rows of a block."""
        return _ROWS // self.target.rows * self.target.rows

    @property
    def _sum_columns(self) -> int:
        """Columns of which sums are kept: those of one panel where a block has room for its rows at once."""
        return self.target.columns if self.slabs <= _SLABS else _COLUMNS

    @property
    def stack_bytes(self) -> int:
        """What the launch has on the stack, all but single values."""
        return 4 * self.rows * (_SLABS * BYTES.stride + self._sum_columns + 1)

    def grid(self, m: Expression | int) -> tuple[Expression | int, Expression | int, int]:
        """The least grid of a launch with ``m`` rows; its first two extents may be larger, so that more threads have work."""
        across = -(-self.panels // (_COLUMNS // self.target.columns))
        return across, m.ceil_div(self.rows) if isinstance(m, Expression) else -(-m // self.rows), 1

    def source(self) -> str:
        """The C text of both functions.

        Raises:
            ValueError: a size is not positive, or the blocks do not fit on the stack.
        """
        if self.k < 1 or self.n < 1:
            raise ValueError(f"{self.name}: weights of {self.k} by {self.n} have no panels")
        if self.stack_bytes > STACK_BYTES:
            raise ValueError(f"{self.name}: a block has {self.stack_bytes} bytes on the stack, more than {STACK_BYTES}")
        texts = ["#include <stdint.h>\n"]
        if self.target.has("avx512_vnni"):
            texts.append("#include <immintrin.h>\n")
        tiles = vector_tiles(BYTES, self.target)
        return "\n".join([*texts, self._constants(), tiles, _QUANTIZED, self._packing(), self._launch()])

    def _constants(self) -> str:
        numbers = {
            "K": self.k,
            "N": self.n,
            "STEPS": self.steps,
            "SLAB": self.slab,
            "SLABS": self.slabs,
            "PANEL": self.target.columns,
            "PANELS": self.panels,
            "NUMBERS": BYTES.numbers,
            "LEFT_ROW": BYTES.stride,
            "LEFT_ROWS": _SLABS * self.rows,
            "ROWS": self.rows,
            "SUM_COLUMNS": self._sum_columns,
            "TILE_ROWS": self.target.rows,
        }
        constants = "".join(f"    {name} = {number},\n" for name, number in numbers.items())
        return f"enum {{\n{constants}}};\n{_SMALLER}"

    def _packing(self) -> str:
        offset = " - 128" if self.type == "uint8_t" else ""
        return Template(_PACK).substitute(name=self.name, type=self.type, weight=self.weight, offset=offset)

    def _launch(self) -> str:
        zero = f"(({self.right_zero}) - 128)" if self.type == "uint8_t" else f"({self.right_zero})"
        value = (
            f"(int32_t)((uint32_t)from[j] - (uint32_t)({self.left_zero}) * (uint32_t)column_sums[column]"
            f" - (uint32_t){zero} * ((uint32_t)row_sums[start + i] - (uint32_t)K * (uint32_t)({self.left_zero})))"
        )
        return Template(_LAUNCH).substitute(
            name=self.name,
            parameters="\n    ".join(_parameters(self.parameters)),
            prologue=self.prologue,
            left=self.left,
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


def dynamic_quantized(name: str, k: int, n: int, target: TileTarget, type: str = "int8_t") -> StoredProduct:
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
        type,
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
    uint8_t *to = packed;
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
}
"""

_LAUNCH = """
void $name(void *const *arguments, const int64_t *grid, int64_t first, int64_t last) {
    $parameters
    const uint32_t *const words = right;
    uint32_t left_tile[LEFT_ROWS * LEFT_ROW] __attribute__((aligned(64)));
    int32_t sums[ROWS * SUM_COLUMNS] __attribute__((aligned(64)));
    int32_t row_sums[ROWS];
    const int32_t *const column_sums = (const int32_t *)words + (int64_t)PANELS * STEPS * PANEL;
    $prologue
    for (int64_t block = first; block < last; ++block) {
        const int64_t across = block % grid[0], down = block / grid[0];
        const int64_t first_row = down * m / grid[1], rows = (down + 1) * m / grid[1] - first_row;
        const int64_t first_panel = across * PANELS / grid[0], last_panel = (across + 1) * PANELS / grid[0];
        if (!rows) continue;
        const int64_t held = smaller(SLABS, LEFT_ROWS / rows), groups = (rows + TILE_ROWS - 1) / TILE_ROWS;
        for (int64_t slab_from = 0; slab_from < SLABS; slab_from += held) {
            const int64_t slab_to = smaller(slab_from + held, SLABS);
            const int is_filled = held == SLABS && block > first && across > 0; /* by the block before, of the same rows */
            for (int64_t slab = is_filled ? slab_to : slab_from; slab < slab_to; ++slab)
                for (int64_t i = 0; i < rows; ++i) {
                    const int64_t row = first_row + i;
                    uint32_t *const to = left_tile + ((slab - slab_from) * rows + i) * LEFT_ROW;
                    const int64_t steps = smaller(SLAB, STEPS - slab * SLAB), depth = smaller(4 * SLAB, K - 4 * slab * SLAB);
                    uint8_t *const bytes = (uint8_t *)to;
                    int32_t sum = 0;
                    for (int64_t j = 0; j < depth; ++j) {
                        const int64_t at = 4 * slab * SLAB + j;
                        bytes[j] = $left;
                        sum += bytes[j];
                    }
                    for (int64_t j = depth; j < 4 * steps; ++j) bytes[j] = 0;
                    row_sums[i] = slab ? row_sums[i] + sum : sum;
                }
            for (int64_t p = first_panel; p < last_panel; ++p)
                for (int64_t slab = slab_from; slab < slab_to; ++slab)
                    for (int64_t group = 0; group < groups; ++group) {
                        const int64_t start = group * rows / groups, count = (group + 1) * rows / groups - start;
                        const int64_t steps = smaller(SLAB, STEPS - slab * SLAB);
                        const uint32_t *const panel = words + (p * STEPS + slab * SLAB) * PANEL;
                        const uint32_t *const tile = left_tile + ((slab - slab_from) * rows + start) * LEFT_ROW;
                        int32_t *const to = sums + ((SUM_COLUMNS > PANEL ? p - first_panel : 0) * ROWS + start) * PANEL;
                        bytes_tiles[count](tile, panel, to, PANEL, steps, slab > 0, panel + steps * PANEL);
                        if (slab < SLABS - 1) continue;
                        const int64_t first_column = p * PANEL, width = smaller(PANEL, N - first_column);
                        for (int64_t i = 0; i < count; ++i) {
                            const int64_t row = first_row + start + i;
                            const int32_t *const from = to + i * PANEL;
                            if (width == PANEL)
                                for (int64_t j = 0; j < PANEL; ++j) {
                                    const int64_t column = first_column + j;
                                    const int32_t value = $value;
                                    $epilogue
                                }
                            else
                                for (int64_t j = 0; j < width; ++j) {
                                    const int64_t column = first_column + j;
                                    const int32_t value = $value;
                                    $epilogue
                                }
                        }
                    }
        }
    }
}
"""
