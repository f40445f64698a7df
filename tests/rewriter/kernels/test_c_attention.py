"""Attention in C whose keys and values launches take apart into bfloat16 parts: against float64; broken texts are noticed."""

from __future__ import annotations

from ctypes import CDLL
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter.cost.schedules.cpu import STACK, cpu_schedules, share_in_parts
from rewriter.kernels.c import CSource, generate
from rewriter.kernels.c.calling import opened, prepared
from rewriter.kernels.c.compile import Level, build, level_of_processor
from rewriter.kernels.c.parts import panel_words
from rewriter.kernels.fuse.lower import lower
from rewriter.runtime.plan import Expression
from tests.support.c_help import EMULATED, changed, emulated, levels, tiles

pytestmark = pytest.mark.skipif(level_of_processor() is None, reason="no instruction set that kernels are written for")

HEADS, DEPTH = 2, 40
PARTS = {"floats": (1, 1e-6), "six": (3, 1e-6), "three": (2, 3e-5)}
"""How many a number has, with a bound on an entry's error relative to the weighted mean of the magnitudes of the values."""
CASES = [(level, name) for level in (EMULATED, *tiles()) for name in PARTS] + [(level, "six") for level in levels()]


def attention(queries: Dim, keys: Dim, depth: int = DEPTH, heads: int = HEADS) -> Kernel:
    """Of queries that are stored by head, and keys and values that are stored by position."""
    types = {"q": TensorType(DataType.FLOAT, (heads, queries, depth))}
    types |= {name: TensorType(DataType.FLOAT, (keys, heads, depth)) for name in "kv"}
    scores = "MatMul(Mul(q, 0.5), Transpose[perm=(1,2,0)](k))"
    return lower("attention", types, [("y", parse_term(f"MatMul(Softmax[axis=-1]({scores}), Transpose[perm=(1,0,2)](v))"))])


def schedule(kernel: Kernel, rows: int, keys: int, parts: int) -> Schedule:
    (block,) = kernel.blocks
    assert block.loop is not None
    return Schedule(((block.grid[-1], rows), (block.loop, keys)), parts=parts)


Operands = tuple[np.ndarray, np.ndarray, np.ndarray]


def operands(queries: int, keys: int, seed: int) -> Operands:
    random = np.random.default_rng(seed)
    shapes = (HEADS, queries, DEPTH), (keys, HEADS, DEPTH), (keys, HEADS, DEPTH)
    q, k, v = (random.standard_normal(shape, np.float32) for shape in shapes)
    return q, k, v


def far_apart(seed: int, magnitude: int) -> Operands:
    """Scores are whole numbers from -80 to 0, and values up to a power of two either way, zero where a weight is not small."""
    q, k, v = operands(37, 70, seed)
    random = np.random.default_rng(seed)
    q[:], k[:] = 0, 0
    q[:, :, 0], k[:, :, 0] = 2, -random.integers(0, 81, k.shape[:2])
    v *= np.exp2(random.integers(-magnitude, magnitude + 1, v.shape)).astype(np.float32)
    v[k[:, :, 0] > -40, 3] = 0
    return q, k, v


def one_value(magnitude: int) -> Operands:
    """All values but one near the beginning are zero, and that is tiny, or large."""
    q, k, v = operands(37, 70, 2)
    v[:2], v[3:] = 0, 0
    return q, k, v * np.float32(2.0**magnitude)


@cache
def native(level: Level, name: str, old: str = "", new: str = "") -> tuple[CSource, CDLL]:
    kernel = attention(symbol("s"), symbol("t"))
    source = generate(kernel, [schedule(kernel, 32, 64, PARTS[name][0])])
    text = emulated(source.text) if level is EMULATED else source.text
    return source, opened(build(changed(old, new, text) if old else text, level))


def check(built: tuple[CSource, CDLL], data: Operands, bound: float) -> None:
    """Entries are what float64 says, as near as a bound times the weighted mean of magnitudes."""
    (result,) = prepared(*built, data).run(ranges=2)
    q, k, v = (x.astype(np.float64) for x in data)
    scores = 0.5 * q @ k.transpose(1, 2, 0)
    weights, values = np.exp(scores - scores.max(-1, keepdims=True)), v.transpose(1, 0, 2)
    weights /= weights.sum(-1, keepdims=True)
    assert (np.abs(result - weights @ values) <= bound * (weights @ np.abs(values)) + 2.0**-140).all()


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("queries, keys", [(37, 70), (5, 200), (64, 128), (1, 1)])
def test_attention_of_ragged_sizes(level: Level, name: str, queries: int, keys: int) -> None:
    """Scores are as inexact as products are, by their magnitude: up to 20."""
    check(native(level, name), operands(queries, keys, 0), 20 * PARTS[name][1])


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("magnitude", [0, 20, 60, 120])
def test_tiny_weights_count_where_values_of_others_are_zero(level: Level, name: str, magnitude: int) -> None:
    check(native(level, name), far_apart(magnitude, magnitude), PARTS[name][1])


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("magnitude", [-120, 100])
def test_one_number_decides_for_its_unit(level: Level, name: str, magnitude: int) -> None:
    check(native(level, name), one_value(magnitude), 20 * PARTS[name][1])


@pytest.mark.parametrize(("level", "name"), CASES)
def test_what_is_not_finite_stays_so(level: Level, name: str) -> None:
    q, k, v = operands(37, 70, 1)
    q[0, 3, 1], v[69, 1, 7], v[0, 0, 2] = np.nan, np.inf, np.nan
    (result,) = prepared(*native(level, name), (q, k, v)).run()
    assert np.isnan(result[0, 3]).all() and np.isnan(result[0, :, 2]).all() and np.isposinf(result[1, :, 7]).all()
    assert np.isfinite(np.delete(np.delete(result[0], 3, 0), 2, 1)).all() and np.isfinite(np.delete(result[1], 7, 1)).all()


MUTANTS = {
    "sums of raised weights stay raised": ("back = 1.0f / times", "back = 1.0f"),
    "floats are taken for raised ones": ("float back = 1.0f;", "float back = 1.0f / times;"),
    "sums of raised weights are given to tiles": ("step == 0 && times == PART_PLAIN", "step == 0"),
    "new sums are added to what was there": ("add && !is_first, 16", "add, 16"),
    "new sums of floats are added to what was there": ("if (is_first && !add)", "if (0)"),
    "every head has the first one's keys": ("panels + matrix *", "panels + 0 *"),
    "every head is taken apart from the first one": ("matrix += number % sizes[i] * sizes[i + 1]", "matrix += 0"),
    "keys are those of the first panel": ("column / PANEL * panel_words", "0 * panel_words"),
    "keys are not turned": ("is_full && b_k == 1", "is_full && b_n == 1"),
    "the last step is dropped": ("i < steps && j < width", "i < steps - 1 && j < width"),
    "the last column is dropped": ("i < steps && j < width", "i < steps && j < width - 1"),
    "rows are those of the first stripe": ("part_split_3(times, a + start * a_m", "part_split_3(times, a"),
    "the greatest of a unit is its last": ("part_more(of.high, high)", "high"),
    "the least of a unit is its last": ("part_less(of.low, low)", "low"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_texts_are_noticed(name: str) -> None:
    """By what the tests above ask, of the same operands."""
    built = native(EMULATED, "six", *MUTANTS[name])
    with pytest.raises(AssertionError):
        check(built, operands(37, 70, 0), 2e-5)
        check(built, operands(64, 128, 0), 2e-5)
        for magnitude in (-120, 100):
            check(built, one_value(magnitude), 2e-5)
        for magnitude in (0, 20, 60, 120):
            check(built, far_apart(magnitude, magnitude), 1e-6)


def test_keys_and_values_are_split_once_and_queries_before_the_loop() -> None:
    source, _ = native(EMULATED, "six")
    keys, values, product = source.plan.launches
    assert [keys.kernel, values.kernel, product.kernel] == ["split_k_in_parts", "split_v_in_parts", "kernel_attention"]
    shapes = [(HEADS, 37, DEPTH), (70, HEADS, DEPTH), (70, HEADS, DEPTH)]
    panels = [extent.value(shapes) for launch in (keys, values) for extent in launch.grid[:1] if isinstance(extent, Expression)]
    assert panels == [3 * HEADS, 2 * HEADS]
    sizes = [size.value(shapes) for size in source.plan.scratch if isinstance(size, Expression)]
    assert sizes == [4 * 3 * HEADS * panel_words(DEPTH, 3), 4 * 2 * HEADS * 3 * panel_words(32, 3)]
    text = source.text
    assert text.index("\n        part_stripes_3(PART_PLAIN, ") < text.index("for (int64_t t_start")
    assert native(EMULATED, "floats")[0].plan.launches[0].kernel == "kernel_attention"


@pytest.mark.parametrize("keys, launches", [(64, 3), (32, 3), (16, 1)])
def test_tiles_of_keys_begin_with_panels(keys: int, launches: int) -> None:
    kernel = attention(symbol("s"), symbol("t"))
    assert len(generate(kernel, [schedule(kernel, 32, keys, 3)]).plan.launches) == launches


@pytest.mark.parametrize("rows, depth, gains", [(1500, 64, True), (512, 64, True), (128, 64, False), (1500, 16, False)])
def test_parts_are_foreseen_to_gain_where_many_rows_share_keys(rows: int, depth: int, gains: bool) -> None:
    """Of products 1.8 times as fast as in floats: less where the launches take as long as the products."""
    assert (1.8 * share_in_parts(attention(rows, rows, depth), {}, stored=False) > 1) == gains


@pytest.mark.parametrize("depth", [32, 64, 128])
def test_schedules_in_parts_fit_on_the_stack(depth: int) -> None:
    kernel = attention(1500, 1500, depth)
    found = cpu_schedules(kernel, {}, 100, in_parts=True)
    assert found
    for (each,) in found:
        assert len(generate(kernel, [replace(each, parts=3)]).plan.launches) == 3, f"of {STACK} bytes"
