"""Products of small tiles as C text: what stays in registers while a slab of the contracted axis goes by.

Everything lies in words of 32 bits. A word of an operand holds one float, two bfloat16 or four bytes, neighbours along the
contracted axis, and a step takes one word of each row of the left tile with one vector of words of each column: that is how FMA,
``vdpbf16ps``, ``vpdpbusd`` and the tiles of AMX all read their operands (Intel 64 and IA-32 Architectures Software Developer's
Manual, volume 2). So one writer serves them, and panels are packed in one way.

* the left tile: rows a constant number of words apart, its parts a constant number of words apart within a row,
* the right panel: steps of as many words as it has columns,
* the sums: rows that lie any number of words apart.

A register tile adds up its slab from zero and is then added to the sums: over k terms the rounding error grows with the root of
slab + k/slab, not of k (N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 4.2: blocked summation).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rewriter.kernels.c.compile import Level

__all__ = [
    "BYTES",
    "FLOATS",
    "SHARE",
    "TILE_ASKS",
    "PartPair",
    "TileLayout",
    "TileTarget",
    "WordKind",
    "matrix_tiles",
    "vector_tiles",
]

_AHEAD = 16
"""Steps by which a panel is asked for ahead of its use where a step takes so long that the cache's own guess comes late."""
_LINE = 16
"""Words of a line of a cache."""
SHARE = 128
"""Words of a part of a unit of a panel, a quarter, that are asked for at a time."""


@dataclass(frozen=True, slots=True)
class TileTarget:
    """What products are written for: an instruction set, and how its registers are used.

    Attributes:
        level: the instruction set, of whose compiler flags and features the text makes use.
        lanes: words of a vector.
        rows: of the largest register tile: with two vectors a row it takes all registers but what a step loads.
        matrix: C text of the tiles of AMX; empty where none multiply.
    """

    level: Level
    lanes: int
    rows: int
    matrix: str = ""

    @staticmethod
    def of(level: Level) -> TileTarget:
        """With AMX, AVX512_BF16 and AVX512_VNNI where the level has them."""
        rows = 14 if level.lanes == 16 else 6
        return TileTarget(level, level.lanes, rows, _AMX_TEXT if "amx_bf16" in level.features else "")

    @property
    def columns(self) -> int:
        """Words, and columns, of a panel."""
        return 2 * self.lanes

    def has(self, feature: str) -> bool:
        """Whether vectors are those of a feature of the processor."""
        return feature in self.level.features and self.lanes == self.level.lanes


_AMX_TEXT = """#if defined __clang__
#include <immintrin.h>
#else /* Of GCC's header these parts alone: to read all of it takes as long as to compile what is here. */
#define _IMMINTRIN_H_INCLUDED
#include <amxtileintrin.h>
#include <amxbf16intrin.h>
#include <amxint8intrin.h>
#endif
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, bytes) _tile_loadd(tile, from, bytes)
#define TILE_STORE(tile, to, bytes) _tile_stored(tile, to, bytes)
#define TILE_PAIRS(sums, left, right) _tile_dpbf16ps(sums, left, right)
#define TILE_BYTES(sums, left, right) _tile_dpbusd(sums, left, right)
struct tile_shapes { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; };
/* Up to 32 rows, of the left operand in tiles 4 and 5 and of sums in 0 and 1, 2 and 3. */
static inline void tiles_of(int64_t rows) {
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; ++tile) shapes.row_bytes[tile] = 64, shapes.rows[tile] = 16;
    const int low = rows <= 16;
    shapes.rows[low ? 4 : 5] = shapes.rows[low ? 0 : 2] = shapes.rows[low ? 1 : 3] = low ? rows : rows - 16;
    _tile_loadconfig(&shapes);
}
static inline void tiles_begin(void) { tiles_of(32); }
static inline void tiles_end(void) { _tile_release(); }
"""

TILE_ASKS = f"""
/* Asks for a tile that is multiplied soon. */
static inline __attribute__((always_inline)) void tile_near(const uint32_t *from) {{
#pragma GCC unroll 16
    for (int line = 0; line < 16; ++line) __builtin_prefetch(from + {_LINE} * line, 0, 3);
}}
/* Asks for so many shares of a part of a panel, from far away. */
static inline __attribute__((always_inline)) void tile_ahead(const uint32_t *from, int64_t shares) {{
    for (int64_t share = 0; share < shares; ++share, from += {SHARE})
#pragma GCC unroll 8
        for (int line = 0; line < {SHARE // _LINE}; ++line) __builtin_prefetch(from + {_LINE} * line, 0, 2);
}}
"""


@dataclass(frozen=True, slots=True)
class WordKind:
    """What a word of 32 bits holds.

    Attributes:
        name: of the functions that multiply such words.
        numbers: how many, along the contracted axis.
        word: the C type of a word.
        total: the C type of a sum.
        slab: the most steps that a register tile adds up before it is added to the sums.
    """

    name: str
    numbers: int
    word: str
    total: str
    slab: int

    @property
    def stride(self) -> int:
        """Words of a row of a left tile of one part: an odd number of cache lines, so that rows lie in different sets of L1."""
        return self.slab + 16

    def step(self, target: TileTarget) -> str:
        """The C statement by which ``{s}`` gains the product of the word ``{l}`` and the vector ``{r}``."""
        if self is FLOATS:
            return "{s} += {l} * {r};"
        spread = "const bytes_words w = (bytes_words){{0}} + {l};"
        if target.has("avx512_vnni"):
            return f'{{{{ {spread} __asm__("vpdpbusd %2, %1, %0" : "+v"({{s}}) : "v"(w), "vm"({{r}})); }}}}'
        return f"{{{{ {spread} {{s}} += bytes_pairs(w, {{r}}) + bytes_pairs(w >> 8, {{r}} >> 8); }}}}"


FLOATS = WordKind("floats", 1, "float", "float", 128)
BYTES = WordKind("bytes", 4, "uint32_t", "int32_t", 128)
"""Four bytes, the first in the lowest: unsigned on the left, signed on the right."""


_PAIRS = """typedef int16_t bytes_halves __attribute__((vector_size(sizeof(bytes_words)), may_alias));
/* The sums of two products of the even bytes of words: what is 16 bits wide is multiplied and added without saturation. */
static inline __attribute__((always_inline)) bytes_total bytes_pairs(bytes_words left, bytes_words right) {
    const bytes_halves bytes = (bytes_halves)right << 8 >> 8;
    bytes_total sums;
    __asm__("vpmaddwd %2, %1, %0" : "=v"(sums) : "v"(left & 0x00ff00ffu), "v"(bytes));
    return sums;
}
"""


def _tile_types(kind: WordKind, target: TileTarget) -> str:
    """The vector types that the functions of :func:`vector_tiles` are written in, named after the kind."""
    size = 4 * target.lanes
    lines = [
        f"typedef {kind.word} {kind.name}_words __attribute__((vector_size({size}), may_alias));",
        f"typedef {kind.total} {kind.name}_total __attribute__((vector_size({size}), may_alias));",
        f"typedef {kind.total} {kind.name}_sums __attribute__((vector_size({size}), may_alias, aligned(4)));",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class PartPair:
    """A product of one part of the left operand and one of the right."""

    left: int
    right: int


def vector_tiles(kind: WordKind, target: TileTarget, counts: Collection[int] | None = None) -> str:
    """Functions for register tiles of one row to the target's most, and a table of them, ``{kind}_tiles``, by the number of rows.

    A function's arguments are the left tile, whose rows are the kind's stride apart, the right panel, the sums and the words from
    one of their rows to the next, the number of steps, whether the sums count or are written anew, and a place in what is read
    after this: a tile of many rows asks for a line of it with each step, so that panels come from memory beside the
    multiplications.

    Args:
        counts: the numbers of rows of which there are functions, which are most of what there is to compile; ``None`` for all.
    """
    every = range(1, target.rows + 1)
    asked = every if counts is None else sorted(counts)
    texts = [_tile_types(kind, target), *([_PAIRS] if kind is BYTES and not target.has("avx512_vnni") else [])]
    texts += [_vector_tile(kind, target, rows) for rows in asked]
    names = ", ".join(f"{kind.name}_{rows}" if rows in asked else "0" for rows in every)
    arguments = f"const {kind.word} *, const {kind.word} *, {kind.total} *, int64_t, int64_t, int, const {kind.word} *"
    texts.append(f"static void (*const {kind.name}_tiles[])({arguments}) = {{0, {names}}};\n")
    return "\n".join(texts)


def _vector_tile(kind: WordKind, target: TileTarget, rows: int) -> str:
    columns, lanes, step = 2, target.lanes, kind.step(target)
    chains = max(1, 8 // (rows * columns))  # as many sums at once as hide the latency of a multiplication
    vector, total = f"{kind.name}_words", f"{kind.name}_total"
    cells = [(i, j) for i in range(rows) for j in range(columns)]

    def steps(chain: int) -> list[str]:
        loads = [f"const {vector} r{j} = *(const {vector} *)(right + {(chain * columns + j) * lanes});" for j in range(columns)]
        words = range((chain + _AHEAD) * columns * lanes, (chain + _AHEAD + 1) * columns * lanes, _LINE)
        ahead = [f"__builtin_prefetch(right + {at});" for at in words]
        ahead.append(f"__builtin_prefetch(next + {_LINE} * at, 0, 2);")
        lines = [" ".join(loads), *([" ".join(ahead)] if rows > target.rows // 2 else [])]
        for i in range(rows):
            products = " ".join(step.format(s=f"s{chain}_{i}_{j}", l="l", r=f"r{j}") for j in range(columns))
            lines.append(f"{{ const {kind.word} l = left[{i * kind.stride + chain}]; {products} }}")
        return ["{", *lines, "}"]

    name = f"{kind.name}_{rows}"
    arguments = f"const {kind.word} *restrict left, const {kind.word} *restrict right, {kind.total} *restrict sums, int64_t apart"
    lines = [f"static __attribute__((noinline)) void {name}({arguments}, int64_t steps, int add, const {kind.word} *next) {{"]
    for chain in range(chains):
        lines.append(f"{total} {', '.join(f's{chain}_{i}_{j} = {{0}}' for i, j in cells)};")
    lines += _loops(chains, columns * lanes, steps)
    for i, j in cells:
        lines.append(f"{{ {kind.name}_sums *const to = ({kind.name}_sums *)(sums + {i} * apart + {j * lanes});")
        value = " + ".join(f"s{chain}_{i}_{j}" for chain in range(chains))
        lines.append(f"const {total} sum = {value}; if (add) *to += sum; else *to = sum; }}")
    return "\n".join([*lines, "}", ""])


def _loops(chains: int, panel: int, steps: Callable[[int], list[str]]) -> list[str]:
    """The loop over the steps, several sums at once and then what is left."""
    lines = ["int64_t at = 0;"] if chains > 1 else []
    if chains > 1:
        lines.append(f"for (; at + {chains} <= steps; at += {chains}, left += {chains}, right += {chains * panel}) {{")
        for chain in range(chains):
            lines += steps(chain)
        lines.append("}")
    start = ";" if chains > 1 else "int64_t at = 0;"
    return [*lines, f"for ({start} at < steps; ++at, ++left, right += {panel})", *steps(0)]


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Where the operands of tiles of AMX lie, each tile of one part in one piece.

    Attributes:
        left_step: words from the tile of some steps to that of the next, for each step; the rows of a tile lie together.
        left_part: words from one part of a tile to the next.
        right_step: words of a panel from one step to the next.
        right_part: words from one part of a panel to the next.
    """

    left_step: int
    left_part: int
    right_step: int
    right_part: int

    def left(self, stripe: int, part: int, at: str) -> str:
        """The tile of a part of a stripe's rows at a step."""
        return f"left + {stripe} * stripe + {part} * {self.left_part} + {at} * {self.left_step}"

    def right(self, columns: int, part: int, at: str) -> str:
        """The tile of a part at a step, from so many sixteens of columns on."""
        return f"right + {part} * {self.right_part} + {at} * {self.right_step} + {16 * columns}"


def matrix_tiles(name: str, terms: Sequence[PartPair], layout: TileLayout) -> str:
    """Functions for tiles of AMX, 16 or 32 rows by 32 columns, and a table of them by sixteens of rows, which has this name.

    The arguments are the left tile and how far behind it the second sixteen of rows is, the right panel, the sums and the words
    from one of their rows to the next, whether the sums count or are written anew, the number of steps, and what is asked for
    meanwhile: a place in the panel that is read next, and how many shares of it. Both operands come from the second cache into
    the first a step of sixteen words ahead. Neighbours among the terms share the operand that they have in common: a tile is
    loaded as seldom as can be, since loads do not overlap with multiplications where the core's other thread has work.
    """
    texts = list[str]()
    operands = "const uint32_t *left, int64_t stripe, const uint32_t *right, float *sums, int64_t apart, int add, int64_t steps"
    arguments = f"{operands}, const uint32_t *next, int64_t shares"
    for tall in (1, 2):
        lines = [f"static __attribute__((noinline)) void {name}_{tall}({arguments}) {{"]
        places = [(2 * i + j, f"sums + {16 * i} * apart + {16 * j}, 4 * apart") for i in range(tall) for j in range(2)]
        lines += ["if (add) {", *(f"TILE_LOAD({tile}, {place});" for tile, place in places), "} else {"]
        lines += [*(f"TILE_ZERO({tile});" for tile, _ in places), "}"]
        lines += _matrix_loop(terms, tall, layout)
        lines += [f"TILE_STORE({tile}, {place});" for tile, place in places]
        texts.append("\n".join([*lines, "}", ""]))
    texts.append(f"static void (*const {name}[])({arguments}) = {{0, {name}_1, {name}_2}};\n")
    return "\n".join(texts)


def _spread(what: Sequence[str], over: int) -> list[str]:
    """Statements, in as many groups of about equal size."""
    return [" ".join(what[i * len(what) // over : (i + 1) * len(what) // over]) for i in range(over)]


def _matrix_loop(terms: Sequence[PartPair], tall: int, layout: TileLayout) -> list[str]:
    parts = sorted({term.right for term in terms})
    near = [f"tile_near({layout.left(i, part, '(at + 16)')});" for part in parts for i in range(tall)]
    near += [f"tile_near({layout.right(half, part, '(at + 16)')});" for part in parts for half in (0, 16)]
    ahead = [f"tile_ahead(next + {part} * {layout.right_part} + at * {layout.right_step}, shares);" for part in parts]
    lines, before = ["for (int64_t at = 0; at < steps; at += 16) {"], None
    for term, asked, then in zip(terms, _spread(near, len(terms)), _spread(ahead, len(terms)), strict=True):
        if before is None or before.left != term.left:
            lines += [f"TILE_LOAD({4 + i}, {layout.left(i, term.left, 'at')}, 64);" for i in range(tall)]
        if before is None or before.right != term.right:
            lines += [f"TILE_LOAD({6 + j}, {layout.right(j, term.right, 'at')}, 128);" for j in range(2)]
        lines += [f"TILE_PAIRS({2 * i + j}, {4 + i}, {6 + j});" for i in range(tall) for j in range(2)]
        lines.append(f"{asked} {then}")
        before = term
    return [*lines, "}"]
