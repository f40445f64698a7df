"""Products in C: every arithmetic against float64 over ragged sizes and numbers of all magnitudes; broken texts are noticed."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter.cost.schedules.cpu import PANELS_STACK, cpu_schedules
from rewriter.kernels.c import CSource, generate, panels
from rewriter.kernels.c.calling import opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.kernels.c.function import CFunction
from rewriter.kernels.c.objects import ObjectCompiler, levels_here
from rewriter.kernels.c.tiles import FLOATS, TileTarget, vector_tiles
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.measure import cpu_bench
from rewriter.kernels.measure.cpu_bench import CpuTrial, bench_here
from rewriter.kernels.programs import Scheduled, compile_on_cpu
from rewriter.runtime import is_built
from rewriter.runtime.plan import Argument, Expression, Plan
from tests.support.c_help import EMULATED, Processor, changed, emulated, levels, tiles
from tools.bench.cpu_products import plain_product

HERE = level_of_processor()
pytestmark = pytest.mark.skipif(HERE is None, reason="no instruction set that kernels are written for")

SIZES = ((1, 1), (131, 70))
PARTS = {"floats": (1, 1e-6), "six": (3, 1e-6), "three": (2, 3e-5)}
"""How many a number has, with a bound on an entry's error relative to the sum of the magnitudes of its products."""
CASES = [(level, "floats") for level in levels()] + [(level, name) for level in (EMULATED, *tiles()) for name in PARTS]


@dataclass(frozen=True, slots=True)
class Native:
    """A product that is compiled and loaded."""

    source: CSource
    library: ctypes.CDLL

    def __call__(self, left: np.ndarray, weights: np.ndarray, ranges: int = 1) -> np.ndarray:
        return prepared(self.source, self.library, (left, weights)).run(ranges)[0]


@cache
def native(level: Level, parts: int, k: int, n: int, change: Callable[[str], str] = str) -> Native:
    """Rows of more than 64 columns are taken apart by a launch of its own, of fewer where they are multiplied."""
    kernel, tiles = plain_product(k, n), {"n": 64, "m": 64 if n > 64 else 128, "k": 256}
    schedule = Schedule(tuple((axis, tiles[axis]) for axis in kernel.blocks[0].sizes), ahead=("right",), parts=parts)
    source = generate(kernel, [schedule])
    text = change(emulated(source.text) if level is EMULATED else source.text)
    return Native(source, opened(build(text, level)))


def check(result: np.ndarray, left: np.ndarray, weights: np.ndarray, bound: float) -> None:
    """Entries are what float64 says, as near as a bound times the magnitudes of their products; infinities and NaN are the same.

    Where finite products alone exceed float32, the order of a sum decides what it is, and nothing is asked.
    """
    with np.errstate(all="ignore"):
        exact = left.astype(np.float64) @ weights.astype(np.float64)
        sizes = [np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0) for x in (left, weights)]
        magnitude = sizes[0] @ sizes[1]
    finite, sure = np.isfinite(exact), magnitude < 1e38
    np.testing.assert_array_equal(result[~finite & sure], exact[~finite & sure].astype(np.float32))
    asked = finite & sure
    assert (np.abs(result[asked] - exact[asked]) <= bound * magnitude[asked] + left.shape[1] * 2.0**-149).all()


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=8, deadline=None)
@given(m=st.integers(1, 300), ranges=st.integers(1, 3), seed=st.integers(0, 99))
def test_products_of_ragged_sizes(level: Level, name: str, size: tuple[int, int], m: int, ranges: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    left, weights = random.standard_normal((m, size[0]), np.float32), random.standard_normal(size, np.float32)
    parts, bound = PARTS[name]
    check(native(level, parts, *size)(left, weights, ranges), left, weights, bound)


def scaled(random: np.random.Generator, shape: tuple[int, int], axis: int, whole: bool) -> np.ndarray:
    """Numbers whose magnitudes differ along an axis, or from entry to entry, from denormal ones to the largest."""
    exponents = random.uniform(-149, 127, (shape if whole else tuple(n if i == axis else 1 for i, n in enumerate(shape))))
    with np.errstate(under="ignore"):
        numbers = np.ldexp(random.uniform(1, 2, shape) * random.choice([-1, 1], shape), np.floor(exponents).astype(int))
    return numbers.astype(np.float32)


@pytest.mark.parametrize(("level", "name"), CASES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), whole=st.booleans(), specials=st.integers(0, 3), ordinary=st.booleans())
def test_numbers_of_all_magnitudes(level: Level, name: str, seed: int, whole: bool, specials: int, ordinary: bool) -> None:
    """Denormal numbers, those near the largest, infinities and NaN: parts never lose what floats keep."""
    random, (k, n) = np.random.default_rng(seed), SIZES[1]
    left, weights = scaled(random, (20, k), 0, whole), scaled(random, (k, n), 1, whole)
    if ordinary:
        left = random.standard_normal((20, k), np.float32)
    for _ in range(specials):
        value = random.choice(np.array([np.inf, -np.inf, np.nan, 3.4028235e38, 1e-45, 0.0], np.float32))
        side = left if random.integers(2) else weights
        side[tuple(random.integers(0, size) for size in side.shape)] = value
    parts, bound = PARTS[name]
    check(native(level, parts, k, n)(left, weights), left, weights, bound)


@pytest.mark.parametrize(("level", "name"), CASES)
def test_exact_products_stay_exact(level: Level, name: str) -> None:
    """One large number meets a zero, and what is left is tiny: nothing of it is flushed to zero."""
    k, n = SIZES[1]
    left, weights = np.zeros((3, k), np.float32), np.zeros((k, n), np.float32)
    left[:, 0], left[:, 1], weights[1, :] = 1.0, [2.0**-120, 2.0**-149, 3.4028235e38], [2.0**-20] * n
    weights[2, 5] = 1.0
    result = native(level, PARTS[name][0], k, n)(left, weights)
    np.testing.assert_array_equal(result, (left.astype(np.float64) @ weights).astype(np.float32))


@cache
def product_session() -> onnxruntime.InferenceSession:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[m,k] x, float[k,n] w) => (float[m,n] y) { y = MatMul(x, w) }'
    return onnxruntime.InferenceSession(parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])


def matmul(left: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """onnxruntime's product."""
    return np.asarray(product_session().run(None, {"x": left, "w": weights})[0])


KINDS = ("normal", "rows", "cancelling", "positive", "sparse")


@pytest.mark.parametrize(("level", "name"), [case for case in CASES if case[1] != "three"])
@pytest.mark.parametrize("k", [64, 768, 3072])
@pytest.mark.parametrize("rows", [1, 48])
def test_errors_are_not_above_those_of_the_original(level: Level, name: str, k: int, rows: int) -> None:
    """Against float64, of every kind of operands: floats, and six products of parts, at every depth, so many rows at a time."""
    random, n = np.random.default_rng(k), 32
    for kind in KINDS:
        left, weights = random.standard_normal((48, k), np.float32), random.standard_normal((k, n), np.float32)
        if kind == "rows":
            left *= np.float32(10.0) ** random.integers(-12, 12, (48, 1)).astype(np.float32)
        elif kind == "cancelling":
            left[:, k // 2 :], weights[k // 2 :] = left[:, : k // 2], -weights[: k // 2]
            weights += random.standard_normal((k, n)).astype(np.float32) * np.float32(1e-3)
        elif kind == "positive":
            left, weights = np.abs(left), np.abs(weights)
        elif kind == "sparse":
            left[random.random(left.shape) < 0.9] = 0
        exact = left.astype(np.float64) @ weights.astype(np.float64)
        norms = np.linalg.norm(exact, axis=1)  # by row, so that no row hides behind another
        original, ours = (
            np.linalg.norm(np.concatenate([run(left[i : i + rows], weights) for i in range(0, 48, rows)]) - exact, axis=1) / norms
            for run in (matmul, native(level, PARTS[name][0], k, n))
        )
        assert np.sqrt(np.mean(ours**2)) <= np.sqrt(np.mean(original**2)), kind


EXAMINED = ((300, 70), (300, 40))
MUTANTS = {
    "the tail of the contracted axis is dropped": ("i < steps && j < width", "i < steps - 1 && j < width"),
    "the last columns are not added": ("columns - n < PANEL ? columns - n", "columns - n < PANEL ? columns - 1 - n"),
    "every row is taken to have parts": ("part_exist(a) && part_exist(b) &&", "part_exist(b) &&"),
    "sums of parts may be denormal": ("a.low + b.low >= 2u * 127u - 80u", "1"),
    "sums of parts may overflow": ("a.high + b.high <= 2u * 127u + 100u", "1"),
    "a slab has the range of its first unit": ("range = part_joined(range, ranges[unit])", "(void)0"),
    "a piece has parts where its slab has": (
        "|| part_multiply(part_of_rows",
        "|| 1 || part_multiply(part_of_rows",
    ),
    "a piece is that at the start of the slab": ("tile + unit * PART_LEFT_3", "tile"),
    "floats of a piece are those at its slab's start": ("const int64_t at = 32 * (from + unit)", "const int64_t at = 32 * from"),
    "a second stripe has no range": ("stripes == 1 ? range", "1 ? range"),
    "units of floats are not added up": ("steps, from > 0, right);", "steps, 0, right);"),
    "parts are cut instead of rounded": ("(part_words)numbers + 0x8000u", "(part_words)numbers"),
    "halves of words are exchanged": ("part_apart(upper, lower,", "part_apart(lower, upper,"),
    "the second tile of columns is the first": ("* 96 + 16, 128)", "* 96 + 0, 128)"),
    "sums of tiles begin where another's do": ("sums + 16 * apart + 0, 4 * apart", "sums + 0 * apart + 0, 4 * apart"),
    "sums begin anew": ("add && !is_first, 16", "0, 16"),
    "denormal sums are given to tiles": ("add = by_tiles && in_parts", "add = in_parts"),
    "what floats made is taken for a sum of tiles": ("all_by_tiles &= in_parts", "(void)0"),
    "a part is another one": ("TILE_LOAD(6, right + 1 * 512 + ", "TILE_LOAD(6, right + 2 * 512 + "),
    "stripes of a tile are those of one above": ("split_row / 16 * stripe", "split_row / 32 * stripe"),
    "the second stripe is the first": ("left + 1 * stripe", "left + 0 * stripe"),
    "steps of a tile are those at its start": ("split_step / 32 + from", "from"),
    "the range of a stripe is that of another": ("part_of_rows(left_ranges + height * stripe,", "part_of_rows(left_ranges,"),
    "a stripe is split from the row before": (
        "part_split_3(PART_PLAIN, from + row * 300",
        "part_split_3(PART_PLAIN, from + (row - (row > 0)) * 300",
    ),
    "rows behind the first are those of the one before": ("a + (top + start) * a_m", "a + (top + start - 1) * a_m"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_texts_are_noticed(name: str) -> None:
    """By what the tests above ask, of the same operands."""
    with pytest.raises(AssertionError):
        for size in EXAMINED:
            examine(native(EMULATED, 3, *size, partial(changed, *MUTANTS[name])), *size)


@pytest.mark.parametrize("size", EXAMINED)
def test_what_is_not_broken_passes(size: tuple[int, int]) -> None:
    examine(native(EMULATED, 3, *size), *size)


def examine(product: Native, k: int, n: int) -> None:
    random = np.random.default_rng(0)
    left, weights = random.standard_normal((70, k), np.float32), random.standard_normal((k, n), np.float32)
    result = product(left, weights)
    check(result, left, weights, 1e-6)
    exact = left.astype(np.float64) @ weights
    assert np.linalg.norm(result - exact) <= 1.2e-7 * np.linalg.norm(exact)
    left, weights = np.abs(left), np.abs(weights)
    exact = left.astype(np.float64) @ weights
    assert abs(np.mean((product(left, weights) - exact) / exact)) <= 2e-8  # what is left out has both signs
    for seed in range(12):
        random = np.random.default_rng(seed)
        left, weights = scaled(random, (20, k), 0, whole=False), scaled(random, (k, n), 1, whole=seed % 2 == 0)
        check(product(left, weights), left, weights, 1e-6)
    for x, y, second, at in (
        (2.0**-60, 2.0**-64 * (1 + 2**-9), 0.0, 7),  # products of parts would be denormal
        (2.0**-60, 2.0**-64 * (1 + 2**-9), 0.0, 100),  # in another unit than the first
        (2.0**-140, 2.0**60, 0.0, 7),  # so would parts
        (3.4028235e38, 2.0**-60, 0.0, 7),  # it has no nearest bfloat16
        (2.0**64 * (1 - 2**-10), 2.0**64 * (1 - 2**-10), -1.0, 7),  # the product of the leading parts overflows
    ):
        for rows in ([20, 65], [40]):  # the first and the last, and some between
            left, weights = np.zeros((66, k), np.float32), np.zeros((k, n), np.float32)
            left[rows, at], left[rows, at + 1], weights[at : at + 2] = x, second * x, y
            expected = (left.astype(np.float64) @ weights).astype(np.float32)
            np.testing.assert_allclose(product(left, weights), expected, rtol=1e-6)
    left, weights = np.zeros((70, k), np.float32), np.zeros((k, n), np.float32)
    left[:, 7], weights[7], left[:, 200:202], weights[200:202] = 2.0**-70, 2.0**-70, (1.0, -1.0), 1.0
    np.testing.assert_array_equal(product(left, weights), np.float32(2.0**-140))  # floats make it, and tiles add zero


TALL = (128, 512)
"""Rows of a tile, more than are on the stack at a time, and its steps, more than a register tile adds up."""
TALL_MUTANTS = {
    "the second height is the first": ("c + (top + start) * c_m", "c + start * c_m"),
    "rows of the second height are those of the first": ("a + top * a_m + from", "a + from"),
    "a slab is written over what was there": ("to, c_m, steps, 1, share", "to, c_m, steps, 0, share"),
    "columns at an edge are written over": ("to[i * c_m + j] += sums", "to[i * c_m + j] = sums"),
    "rows at an edge are those of a panel": ("to[i * c_m + j]", "to[i * PANEL + j]"),
    "a left operand in columns is read in rows": ("here[i * a_m + k * a_k]", "here[i * a_m + k]"),
    "what comes next is multiplied": ("floats_tiles[count](tile, panel, to", "floats_tiles[count](tile, next, to"),
}


def examine_tall(level: Level, change: Callable[[str], str] = str) -> None:
    """A tile that is taken in heights, slabs and groups, of a left operand that lies in rows, and in columns."""
    random, (m, k, n) = np.random.default_rng(0), (150, 300, 40)
    for left, shape in (("x", (m, k)), ("Transpose[perm=(1,0)](x)", (k, m))):
        types = {"x": TensorType(DataType.FLOAT, shape), "w": TensorType(DataType.FLOAT, (k, n))}
        kernel = lower("tall", types, [("y", parse_term(f"MatMul({left}, w)"))])
        tiles = dict(zip("mkn", (*TALL, 256), strict=True))
        schedule = Schedule(tuple((axis, tiles[axis]) for axis in kernel.blocks[0].sizes), ahead=("w",))
        source = generate(kernel, [schedule])
        x, w = random.standard_normal(shape, np.float32), random.standard_normal((k, n), np.float32)
        (result,) = prepared(source, opened(build(change(source.text), level)), (x, w)).run(1)
        check(result, x if shape == (m, k) else np.ascontiguousarray(x.T), w, 1e-6)


@pytest.mark.parametrize("level", levels())
def test_tall_tiles_of_either_order(level: Level) -> None:
    examine_tall(level)


@pytest.mark.parametrize("name", TALL_MUTANTS)
def test_broken_tall_tiles_are_noticed(name: str) -> None:
    with pytest.raises(AssertionError):
        examine_tall(levels()[-1], partial(changed, *TALL_MUTANTS[name]))


def test_the_text_for_amx_compiles_to_the_same_bytes_each_time() -> None:
    """It cannot run on every machine; its arithmetic is that of the emulated tiles, which are all that differs."""
    schedule = Schedule((("n", 64), ("m", 64), ("k", 256)), ahead=("right",), parts=3)
    text, level = generate(plain_product(300, 40), [schedule]).text, LEVELS["x86-64-amx"]
    assert "_tile_dpbf16ps" in text and "_tile_dpbf16ps" not in emulated(text)
    made = build(text, level)
    assert made == build(text, level) and made != build(text, LEVELS["x86-64-v4"])


# Within block graphs


def linear(m: Dim, k: int, n: int) -> Kernel:
    types = {name: TensorType(DataType.FLOAT, shape) for name, shape in {"x": (m, k), "w": (k, n), "b": (n,)}.items()}
    return lower("linear", types, [("y", parse_term("Relu(Add(MatMul(x, w), b))"))])


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("tiles", [{"m": 64, "n": 64, "k": 128}, {"m": 8, "n": 32, "k": 32}, {"m": 16, "n": 1024, "k": 512}])
def test_a_block_graph_reads_constant_weights_from_panels(level: Level, name: str, tiles: dict[str, int]) -> None:
    """Of symbolic rows, with ragged tiles along all three axes; the weights as they are stored are no argument."""
    (parts, bound), kernel, random = PARTS[name], linear(symbol("rows"), 150, 70), np.random.default_rng(2)
    inputs = {"x": random.standard_normal((37, 150), np.float32), "w": random.standard_normal((150, 70), np.float32)}
    inputs["b"] = random.standard_normal(70, np.float32)
    schedules = [Schedule(tuple((axis, tiles.get(axis, 1)) for axis in kernel.blocks[0].sizes), ahead=("w",), parts=parts)]
    plan = generate(kernel, schedules).plan
    assert [packing.input for packing in plan.packings] == [1]
    assert Argument.input(1) not in plan.launches[0].arguments
    (result,) = Processor(level).run(kernel, schedules, inputs)
    expected = np.maximum(inputs["x"].astype(np.float64) @ inputs["w"] + inputs["b"], 0)
    np.testing.assert_allclose(result, expected, rtol=0, atol=100 * bound)


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("rows, tile", [(1, 16), (29, 16), (85, 64), (141, 128)])
@pytest.mark.parametrize("magnitude", [1.0, 1e-25])
def test_register_tiles_that_are_never_asked_are_not_there(
    level: Level, name: str, rows: int, tile: int, magnitude: float
) -> None:
    """Of rows whose number is known; numbers that are small are multiplied as floats, in tiles of other rows."""
    (parts, bound), kernel, random = PARTS[name], linear(rows, 150, 70), np.random.default_rng(3)
    left = random.standard_normal((rows, 150)).astype(np.float32) * np.float32(magnitude)
    inputs = {
        "x": left,
        "w": random.standard_normal((150, 70), np.float32) * np.float32(magnitude),
        "b": np.zeros(70, np.float32),
    }

    def schedules(of: Kernel) -> list[Schedule]:
        tiles = {"m": tile, "n": 64, "k": 128}
        return [Schedule(tuple((axis, tiles[axis]) for axis in of.blocks[0].sizes), ahead=("w",), parts=parts)]

    def register_tiles(of: Kernel) -> int:
        return generate(of, schedules(of)).text.count("noinline)) void floats_")

    (result,) = Processor(level).run(kernel, schedules(kernel), inputs)
    exact = np.maximum(left.astype(np.float64) @ inputs["w"], 0)
    np.testing.assert_allclose(result, exact, rtol=0, atol=100 * bound * magnitude**2 + 150 * 2.0**-149)
    assert register_tiles(kernel) < register_tiles(linear(symbol("rows"), 150, 70)) == 14 + 6


def test_weights_are_packed_only_where_tiles_begin_with_panels_and_inputs_are_constants() -> None:
    kernel = linear(37, 150, 70)
    tiles = (("m", 8), ("n", 32), ("k", 32))
    assert generate(kernel, [Schedule(tiles, ahead=("w", "b"))]).plan.packings
    assert not generate(
        kernel, [Schedule((("m", 8), ("n", 16), ("k", 32)), ahead=("w",))]
    ).plan.packings  # it would begin within one
    assert not generate(kernel, [Schedule(tiles)]).plan.packings
    assert not generate(kernel, [Schedule(tiles, ahead=("x", "b"))]).plan.packings


def test_a_left_operand_in_parts_is_split_once_where_it_is_a_matrix_and_tiles_begin_with_stripes() -> None:
    kernel = linear(symbol("rows"), 150, 70)

    def plan(rows: int, parts: int) -> Plan:
        return generate(kernel, [Schedule((("m", rows), ("n", 32), ("k", 64)), ahead=("w",), parts=parts)]).plan

    split, product = plan(16, 3).launches
    assert product.arguments.count(split.arguments[1]) == 1
    assert [extent.value([(37, 150)]) for extent in split.grid[:1] if isinstance(extent, Expression)] == [3]
    (scratch,) = plan(16, 3).scratch
    assert isinstance(scratch, Expression) and scratch.value([(37, 150)]) == 3 * 4 * (5 * 3 * 256 + 16)
    assert len(plan(8, 3).launches) == len(plan(16, 1).launches) == 1


@pytest.mark.skipif(not is_built(), reason="the run-time library is not built")
@pytest.mark.parametrize("parts", [1, 3])
def test_onnxruntime_packs_constant_weights_of_trials_and_runs_them(parts: int) -> None:
    """What is timed is what a file would have: weights are initializers of the model, and are packed when it is loaded."""
    kernel, objects = linear(37, 150, 70), ObjectCompiler()
    schedule = Schedule((("m", 16), ("n", 64), ("k", 128)))
    scheduled = Scheduled.one(kernel, schedule).asking_ahead({"w", "b"}).in_parts(parts)
    programs, problems = compile_on_cpu([scheduled], objects, levels_here()[:1])
    assert not problems
    trial = CpuTrial(scheduled.variants.schedules[0], programs[kernel].attributes)
    assert trial.schedules[0].ahead == ("w", "b")
    with bench_here(1, kernel, {}, None, None) as bench:
        measured = bench.examine(trial)
    assert not measured.problem and measured.microseconds is not None and measured.error < 1e-6


@pytest.mark.skipif(not is_built(), reason="the run-time library is not built")
def test_a_trial_that_is_timed_again_has_the_least_of_all_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' work on a processor only adds to a time; trials do not share theirs."""
    kernel, objects = linear(37, 150, 70), ObjectCompiler()
    several = [Scheduled.one(kernel, Schedule((("m", m), ("n", 64), ("k", 128)))).asking_ahead({"w", "b"}) for m in (8, 16)]
    first, second = (
        CpuTrial(each.variants.schedules[0], compile_on_cpu([each], objects, levels_here()[:1])[0][kernel].attributes)
        for each in several
    )
    with bench_here(1, kernel, {}, None, None) as bench:
        taken = iter([60.0, 80.0, 90.0, 70.0, 50.0])
        monkeypatch.setattr(cpu_bench, "timer_of_copies", lambda model_of, copies, empty: lambda: next(taken))
        monkeypatch.setattr(cpu_bench, "copies_of", lambda signature: 1)
        assert [bench.timed(first, 1), bench.timed(second, 1)] == [60.0, 80.0]
        assert [bench.timed(first, 1), bench.timed(second, 2)] == [60.0, 50.0]


@pytest.mark.skipif(not is_built(), reason="the run-time library is not built")
@pytest.mark.parametrize("copies, opened", [(2, 1), (1, 3)])
def test_sessions_of_small_kernels_stay_open_between_turns(monkeypatch: pytest.MonkeyPatch, copies: int, opened: int) -> None:
    """To open them takes longer than to time them; weights so large that one copy fills the caches are not kept twice."""
    kernel, schedule = linear(37, 150, 70), Schedule((("m", 8), ("n", 64), ("k", 128)))
    sessions = list[int]()

    def timer(model_of: object, copies: int, empty: float) -> Callable[[], float]:
        sessions.append(copies)
        return lambda: 60.0

    monkeypatch.setattr(cpu_bench, "timer_of_copies", timer)
    monkeypatch.setattr(cpu_bench, "copies_of", lambda signature: copies)
    with bench_here(1, kernel, {}, None, None) as bench:
        for _ in range(3):
            bench.timed(CpuTrial((schedule,), {}), 1)
    assert sessions == opened * [copies]


@pytest.mark.parametrize(("level", "name"), CASES)
@pytest.mark.parametrize("rows, fastest", [(32, "m"), (64, "m"), (128, "n")])
def test_the_larger_tile_of_a_product_stays_while_the_smaller_ones_pass(
    level: Level, name: str, rows: int, fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tiles of 64 columns; whatever the order of blocks is, numbers are the same bit for bit."""
    (parts, bound), kernel, random = PARTS[name], linear(symbol("m"), 96, 200), np.random.default_rng(0)
    tiles = {"m": rows, "n": 64, "k": 64}
    schedule = Schedule(tuple((axis, tiles[axis]) for axis in kernel.blocks[0].sizes), ahead=("w",), parts=parts)
    x, w, b = (random.standard_normal(shape, np.float32) for shape in ((300, 96), (96, 200), (200,)))
    inputs = {"x": x, "w": w, "b": b}
    (usual,) = Processor(level).run(kernel, [schedule], inputs)
    assert f"const int64_t {fastest}_start = number % " in generate(kernel, [schedule]).text
    monkeypatch.setattr(CFunction, "_cut_axes", lambda self: list(self._block.grid)[:: 1 if fastest == "m" else -1])
    (other,) = Processor(level).run(kernel, [schedule], inputs)
    assert f"const int64_t {fastest}_start = number % " not in generate(kernel, [schedule]).text
    np.testing.assert_array_equal(usual, other)
    np.testing.assert_allclose(usual, np.maximum(x.astype(np.float64) @ w + b, 0), rtol=0, atol=100 * bound)


def columns_rows_steps(
    kernel: Kernel, rows: int, most: int, threads: int = 1, second_cache: int = 1 << 20, in_parts: bool = False
) -> list[list[int]]:
    """The tiles of the first schedules of a product."""
    found = cpu_schedules(kernel, {"m": rows}, most, threads, second_cache, in_parts=in_parts)
    return [[schedules[0].tile(axis) for axis in "nmk"] for schedules in found]


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("threads, least", [(1, 1), (4, 4), (32, 24)])
def test_tiles_that_leave_most_threads_idle_are_not_tried(threads: int, least: int, in_parts: bool) -> None:
    """By their number: of 128 rows and 768 columns there are six of 64 rows and 256 columns."""
    tiles = columns_rows_steps(linear(symbol("m"), 768, 768), 128, 100, threads, in_parts=in_parts)
    assert all(-(-128 // m) * -(-768 // n) >= least for n, m, _ in tiles[:3])
    assert len(tiles) == (54 if in_parts else 36), "none is left out but those that do not fit on the stack"
    assert tiles.count(tiles[0]) == 1


@pytest.mark.parametrize("rows, first", [(64, 64), (128, 128), (512, 128)])
def test_numbers_in_parts_have_tiles_of_many_rows_and_all_steps(rows: int, first: int) -> None:
    """They share what a panel costs; columns are few, so that threads have blocks."""
    tiles = columns_rows_steps(linear(symbol("m"), 768, 768), rows, 3, in_parts=True)
    assert [tile[1:] for tile in tiles[:2]] == [[first, 1024]] * 2 and tiles[0][0] == 64 < tiles[1][0]


@pytest.mark.parametrize(
    "rows, k, n, first",
    [
        (3136, 96, 96, [128, 128, 128]),  # all columns: no other tile reads the rows
        (784, 768, 192, [256, 32, 1024]),  # and so few rows that all steps of them are in parts at once
        (1500, 1536, 384, [512, 128, 1024]),  # whose parts, 14 MB, are not written to memory
        (128, 512, 2048, [64, 128, 512]),  # more columns than a tile
    ],
)
def test_rows_are_taken_apart_on_the_stack_where_one_tile_has_all_columns(rows: int, k: int, n: int, first: list[int]) -> None:
    kernel = linear(symbol("m"), k, n)
    assert columns_rows_steps(kernel, rows, 1, second_cache=2 << 20, in_parts=True) == [first]
    (schedule,) = cpu_schedules(kernel, {"m": rows}, 1, second_cache=2 << 20, in_parts=True)[0]
    plan = generate(kernel, [replace(schedule, ahead=("w",), parts=3)]).plan
    assert len(plan.launches) == (1 if first[0] >= n else 2)


@pytest.mark.parametrize("rows, first", [(1, [64, 1, 512]), (8, [256, 8, 512]), (32, [1024, 32, 512]), (128, [1024, 32, 512])])
def test_products_with_stored_weights_have_long_tiles_of_few_rows(rows: int, first: list[int]) -> None:
    """One row alone asks for nothing ahead, and goes along two panels; the first two differ in columns."""
    tiles = columns_rows_steps(linear(symbol("m"), 768, 768), rows, 3)
    assert tiles[0] == first and tiles[1][0] != first[0]


def test_weights_that_pass_again_come_from_near_caches() -> None:
    """All 3072 steps of 1024 columns are 9 MiB; with a second cache of 4 MiB that is no more than four of them."""
    kernel = linear(symbol("m"), 3072, 1024)
    assert columns_rows_steps(kernel, 512, 1)[0][0] < 1024
    assert columns_rows_steps(kernel, 512, 1, second_cache=4 << 20)[0][0] == 1024


@pytest.mark.parametrize("name", ["linear", "twice", "computed"])
def test_tiles_of_products_fit_on_the_stack(name: str) -> None:
    """Of two sums beside each other, too, and of rows that are computed."""
    matrices = {"x": (512, 768), "w": (768, 3072), "v": (768, 3072)}
    terms = {"linear": "MatMul(x, w)", "twice": "Mul(MatMul(x, w), MatMul(x, v))", "computed": "MatMul(Relu(x), w)"}
    types = {each: TensorType(DataType.FLOAT, matrices[each]) for each in ("x", "w", *("v" * (name == "twice")))}
    kernel = lower("fits", types, [("y", parse_term(terms[name]))])
    tried = cpu_schedules(kernel, {}, 100)
    widest = max(schedule.tile("n") for (schedule,) in tried if schedule.tile("m") == 32)
    assert widest == (512 if name == "twice" else 1024)
    for (schedule,) in tried:
        generate(kernel, [replace(schedule, ahead=tuple(types.keys() - {"x"}))])


def test_a_product_without_rows_has_schedules() -> None:
    assert columns_rows_steps(linear(symbol("m"), 768, 768), 0, 3)


@pytest.mark.parametrize("name, tall, low", [("x86-64-v4", range(8, 15), range(1, 8)), ("x86-64-v3", range(4, 7), range(1, 4))])
def test_tall_register_tiles_ask_for_each_line_of_a_panel_once(name: str, tall: range, low: range) -> None:
    """On either width of vectors; low ones ask for nothing."""
    target = TileTarget.of(LEVELS[name])
    functions = vector_tiles(FLOATS, target).split("static __attribute__((noinline)) void floats_")[1:]
    lines = {int(text.partition("(")[0]): re.findall(r"prefetch\(right \+ (\d+)\)", text) for text in functions}
    step = list(range(0, target.columns, 16))
    assert all([int(at) - int(lines[rows][0]) for at in lines[rows]] == step for rows in tall)
    assert not any(lines[rows] for rows in low) and sorted(lines) == [*low, *tall]


def test_the_stack_of_panels_is_known_to_schedules() -> None:
    assert panels.PANELS_STACK <= PANELS_STACK < panels.PANELS_STACK + (2 << 10)


def test_schedules_of_products_have_many_rows() -> None:
    kernel = linear(512, 768, 768)
    tiles = [dict(schedules[0].tiles) for schedules in cpu_schedules(kernel, {}, 6)]
    assert all(tile["m"] >= 16 and tile["k"] >= 128 for tile in tiles)
    types = {"x": TensorType(DataType.FLOAT, (512, 768))}
    row = lower("softmax", types, [("y", parse_term("Softmax[axis=-1](x)"))])
    assert all(dict(schedules[0].tiles)["m"] <= 16 for schedules in cpu_schedules(row, {}, 6))
