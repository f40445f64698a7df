"""Generated kernels in C, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from rewriter.kernels.c import generate
from rewriter.kernels.c.calling import admits_tiles, opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.kernels.c.objects import levels_here
from rewriter.kernels.c.parts import MATRIX

_MATRIX_EMULATED = """static _Thread_local union { uint32_t words[16][16]; float floats[16][16]; } tile_registers[8];
#define TILE_ZERO(tile) __builtin_memset(&tile_registers[tile], 0, 1024)
#define TILE_LOAD(tile, from, bytes) tile_load(tile, (const char *)(from), bytes)
#define TILE_STORE(tile, to, bytes) tile_store(tile, (char *)(to), bytes)
#define TILE_PAIRS(sums, left, right) tile_pairs(sums, left, right)
#define TILE_BYTES(sums, left, right) tile_bytes(sums, left, right)
static _Thread_local int tiles_configured; /* rows; the last sixteen of them may be fewer */
static void tiles_of(int64_t rows) { tiles_configured = rows; }
static void tiles_begin(void) { tiles_of(32); }
static void tiles_end(void) { tiles_configured = 0; }
static int tile_rows(int tile) {
    const int is_low = tile == 0 || tile == 1 || tile == 4, is_high = tile == 2 || tile == 3 || tile == 5;
    return is_high ? tiles_configured - 16 : is_low && tiles_configured < 16 ? tiles_configured : 16;
}
static void tile_load(int tile, const char *from, int64_t bytes) {
    for (int row = 0; row < tile_rows(tile); ++row) __builtin_memcpy(tile_registers[tile].words[row], from + row * bytes, 64);
}
static void tile_store(int tile, char *to, int64_t bytes) {
    if (!tiles_configured) __builtin_trap();
    for (int row = 0; row < tile_rows(tile); ++row) __builtin_memcpy(to + row * bytes, tile_registers[tile].words[row], 64);
}
static void tile_bytes(int sums, int left, int right) {
    if (!tiles_configured) __builtin_trap();
    for (int row = 0; row < tile_rows(sums); ++row)
        for (int column = 0; column < 16; ++column)
            for (int at = 0; at < 64; ++at) {
                const uint8_t a = tile_registers[left].words[row][at / 4] >> 8 * (at % 4);
                const int8_t b = tile_registers[right].words[at / 4][column] >> 8 * (at % 4);
                tile_registers[sums].words[row][column] += (uint32_t)(a * b);
            }
}
static float tile_number(uint32_t bits) {
    union { uint32_t bits; float number; } of = {bits & 0x7f800000u ? bits : bits & 0x80000000u};
    return of.number;
}
static float tile_flushed(float number) {
    union { float number; uint32_t bits; } of = {number};
    return tile_number(of.bits);
}
static void tile_pairs(int sums, int left, int right) {
    if (!tiles_configured) __builtin_trap();
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 16; ++column) {
            float low = 0.0f, high = 0.0f, *const sum = &tile_registers[sums].floats[row][column];
            for (int pair = 0; pair < 16; ++pair) {
                const uint32_t a = tile_registers[left].words[row][pair], b = tile_registers[right].words[pair][column];
                low = tile_flushed(low + tile_number(a << 16) * tile_number(b << 16));
                high = tile_flushed(high + tile_number(a & 0xffff0000u) * tile_number(b & 0xffff0000u));
            }
            *sum = tile_flushed(*sum + tile_flushed(low + high));
        }
}
"""
"""The tiles of AMX in plain C, for processors that have none: products of a tile are added up in two sums from zero, and denormal
operands and sums are zero."""

EMULATED = Level(
    "emulated",
    (*LEVELS["x86-64-v3"].flags, "-D__AVX512F__", "-D__AMX_BF16__", "-D__AMX_INT8__"),
    LEVELS["x86-64-v3"].features,
    LEVELS["x86-64-v4"].lanes,
)
"""A processor with tiles of AMX, on one without."""


def emulated(text: str) -> str:
    """A text whose tiles are in plain C."""
    return text.replace(MATRIX.matrix.rstrip(), _MATRIX_EMULATED.rstrip())


class Processor:
    """Runs kernels for an instruction set that this machine's processor has, or for :data:`EMULATED`."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def run(
        self,
        kernel: Kernel,
        schedules: Sequence[Schedule],
        inputs: Mapping[str, np.ndarray],
        shared: Mapping[int, int] = MappingProxyType({}),
    ) -> list[np.ndarray]:
        """The kernel's outputs for concrete inputs, of blocks in two ranges, the later first.

        Args:
            shared: outputs that are bound to the buffer of an input.
        """
        source = generate(kernel, schedules)
        text = emulated(source.text) if self.level is EMULATED else source.text
        library = opened(build(text, self.level, kernel.label))
        return prepared(source, library, [inputs[t.name] for t in kernel.inputs], shared).run(ranges=2)


def levels() -> list[Level]:
    """The instruction sets of vectors that this machine's processor has, the widest first."""
    best = level_of_processor()
    return [] if best is None else [x for x in (LEVELS["x86-64-v4"], LEVELS["x86-64-v3"]) if x.features <= best.features]


def tiles() -> list[Level]:
    """That of AMX, where this machine's processor has it and Linux lets this process use its tiles."""
    return [MATRIX.level] if MATRIX.level in levels_here() and admits_tiles() else []


def changed(old: str, new: str, text: str) -> str:
    """A text with something else in places; that there are none is no fault that a test notices, but fails it."""
    if old not in text:
        pytest.fail(f"not in the text: {old}")
    return text.replace(old, new)
