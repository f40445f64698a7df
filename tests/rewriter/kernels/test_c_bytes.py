"""Products of bytes in C: the integers of MatMulInteger on every instruction set, scaled as onnxruntime does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model

from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import next_power
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter.cost.schedules.byte_products import stored_bytes
from rewriter.cost.schedules.cpu import cpu_schedules
from rewriter.kernels.c import generate
from rewriter.kernels.c.calling import opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.kernels.fuse.lower import lower
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.c_help import EMULATED, Processor, changed, emulated, levels, tiles
from tools.bench.cpu_products import byte_product

HERE = level_of_processor()
pytestmark = pytest.mark.skipif(HERE is None, reason="no instruction set that kernels are written for")

VNNI = LEVELS["x86-64-v4-bf16"]
CASES = [*levels(), *([VNNI] if HERE is not None and VNNI.features <= HERE.features else []), EMULATED, *tiles()]
SIZES = ((3, 5), (131, 70), (600, 33), (640, 64))
"""Of weights: words, units and panels that are whole and that are not."""

Run = Callable[..., np.ndarray]


@cache
def native(level: Level, k: int, n: int, change: Callable[[str], str] = str) -> Run:
    """A product of bytes times 1, of tiles of several heights."""
    tiles_ = {"m": 64, "n": 64, "k": next_power(k)}
    kernel = byte_product(k, n)
    schedule = Schedule(tuple((axis, tiles_[axis]) for axis in kernel.blocks[0].sizes), ahead=("right",))
    source = generate(kernel, [schedule])
    assert source.plan.packings
    library = opened(build(change(emulated(source.text) if level is EMULATED else source.text), level))
    one = np.array(1, np.float32)

    def run(left: np.ndarray, zero: int, weights: np.ndarray, ranges: int = 1) -> np.ndarray:
        return prepared(source, library, (left, np.array(zero, np.uint8), weights, one, one)).run(ranges)[0]

    return run


def exact(left: np.ndarray, zero: int, weights: np.ndarray) -> np.ndarray:
    return ((left.astype(np.int64) - zero) @ weights.astype(np.int64)).astype(np.int32).astype(np.float32)


def drawn(random: np.random.Generator, m: int, k: int, n: int) -> tuple[np.ndarray, int, np.ndarray]:
    left, weights = random.integers(0, 256, (m, k)).astype(np.uint8), random.integers(-128, 128, (k, n)).astype(np.int8)
    return left, int(random.integers(256)), weights


@pytest.mark.parametrize("level", CASES, ids=lambda level: level.name)
@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=10, deadline=None)
@given(m=st.integers(1, 150), ranges=st.integers(1, 3), seed=st.integers(0, 99), extreme=st.booleans())
def test_integers_are_those_of_matmulinteger(
    level: Level, size: tuple[int, int], m: int, ranges: int, seed: int, extreme: bool
) -> None:
    """The same 32 bits, the largest magnitudes among them: no sum of two products saturates."""
    random = np.random.default_rng(seed)
    left, zero, weights = drawn(random, m, *size)
    if extreme:
        left[:], weights[:] = 255, random.choice([-128, 127], size[1])
    np.testing.assert_array_equal(native(level, *size)(left, zero, weights, ranges), exact(left, zero, weights))


MUTANTS = {
    "the tail of the contracted axis is dropped": ("at < k && column", "at < k - 1 && column"),
    "the zero point is not subtracted": ("- zero * columns_sums[j]", ""),
    "the second height is the first": ("a + 32 * height * a_m", "a"),
    "results of the second height are those of the first": ("c + 32 * height * c_m + n", "c + n"),
    "the edge is multiplied by the first step": ("if (edge) {", "if (edge) { right -= 512;"),
    "the edge is left out": ("if (edge) {", "if (0) {"),
    "the shape of the last rows stays": ("if (high != shape)", "if (!shape || high < shape)"),
    "the second tile of columns is the first": ("TILE_LOAD(7, right + 16, 128)", "TILE_LOAD(7, right, 128)"),
    "the second stripe is the first": ("left + 16 * a_m", "left"),
    "a panel is the one before": ("(column + n) / BYTES_PANEL", "n / BYTES_PANEL"),
}


def examine(run: Run, k: int, n: int) -> None:
    random = np.random.default_rng(0)
    for m in (1, 16, 40, 70):
        left, zero, weights = drawn(random, m, k, n)
        np.testing.assert_array_equal(run(left, zero, weights), exact(left, zero, weights))


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_texts_are_noticed(name: str) -> None:
    with pytest.raises(AssertionError):
        examine(native(EMULATED, 131, 70, partial(changed, *MUTANTS[name])), 131, 70)


VECTOR_MUTANTS = {
    "sums begin anew at each slab": ("c_m, steps, from > 0, next)", "c_m, steps, 0, next)"),
    "sums at an edge begin anew": ("(from > 0 ? to[i * c_m + j] : 0)", "0"),
    "even bytes are not signed": ("<< 8 >> 8", ""),
    "odd bytes are even ones": ("(w >> 8,", "(w,"),
}


@pytest.mark.parametrize("name", VECTOR_MUTANTS)
def test_broken_texts_of_vectors_are_noticed(name: str) -> None:
    with pytest.raises(AssertionError):
        for n in (64, 70):
            examine(native(LEVELS["x86-64-v3"], 601, n, partial(changed, *VECTOR_MUTANTS[name])), 601, n)


MODEL = (
    '<ir_version: 8, opset_import: ["" : 17]> '
    "g (uint8[m,k] x, uint8 z, float s, int8[k,n] w, float t, float[n] b) => (float[m,n] y) {"
    "i = MatMulInteger(x, w, z) f = Cast<to = 1>(i) u = Mul(s, t) p = Mul(f, u) y = Add(p, b) }"
)


@pytest.mark.parametrize("level", CASES, ids=lambda level: level.name)
@pytest.mark.parametrize("k", [96, 768])
def test_scaled_results_are_onnxruntimes(level: Level, k: int) -> None:
    """Bit by bit, without its optimisers; with a bias up to what one operation that rounds once in place of two may change."""
    random, n = np.random.default_rng(5), 40
    left, zero, weights = drawn(random, 37, k, n)
    weights >>= 1  # without VNNI onnxruntime saturates sums of two products of larger ones (docs/upstream.md)
    scales = {"s": np.array(0.013, np.float32), "t": np.array(0.0071, np.float32), "b": random.standard_normal(n, np.float32)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(parse_model(MODEL).SerializeToString(), options, providers=["CPUExecutionProvider"])
    given_ = {"x": left, "z": np.array(zero, np.uint8), "w": weights, **scales}
    inputs = dict(zip(("left", "zero", "right", "scale", "of_right", "bias"), map(given_.get, "xzwstb"), strict=True))
    schedule = Schedule((("m", 16), ("n", 32), ("k", next_power(k))), ahead=("right",))
    for behind, bias in (("{}", 0), ("Add({}, bias)", 1)):
        given_["b"] = scales["b"] * bias
        expected = session.run(None, given_)[0]
        (result,) = Processor(level).run(byte_product(k, n, behind), [schedule], inputs)
        if bias:
            np.testing.assert_allclose(result, expected, rtol=0, atol=np.abs(expected).max() * 2.0**-23)
        else:
            np.testing.assert_array_equal(result, expected)


# Within block graphs


TYPES = {
    "q": TensorType(DataType.UINT8, (symbol("m"), 64)),
    "z": TensorType(DataType.UINT8, ()),
    **{name: TensorType(DataType.INT8, (64, 96)) for name in ("v", "w")},
    **{name: TensorType(DataType.FLOAT, ()) for name in ("s", "t", "u")},
}
PRODUCT = "Mul(Cast[to=float](MatMulInteger[zeros=('a',)](q, {}, z)), Mul(s, {}))"
HEADS = f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(3,32)]({PRODUCT}))"


def test_several_products_of_one_operand_are_one_kernel() -> None:
    """Two results, one of them split into heads, proved for all sizes and as MatMulInteger has them."""
    kernel = lower("two", TYPES, [("a", parse_term(HEADS.format("w", "t"))), ("b", parse_term(PRODUCT.format("v", "u")))])
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    assert stored_bytes(kernel) == {"v", "w"}
    random = np.random.default_rng(0)
    left, zero, weights = drawn(random, 21, 64, 96)
    second = drawn(random, 1, 64, 96)[2]
    scales = {name: np.array(2.0**-power, np.float32) for power, name in enumerate("stu", start=1)}
    inputs = {"q": left, "z": np.array(zero, np.uint8), "w": weights, "v": second, **scales}
    (schedule,) = cpu_schedules(kernel, {"m": 21}, 1)[0]
    first, other = Processor(CASES[0]).run(kernel, [replace(schedule, ahead=("v", "w"))], inputs)
    split = (exact(left, zero, weights) / 8).reshape(21, 3, 32).transpose(1, 0, 2)
    np.testing.assert_array_equal(first, split)
    np.testing.assert_array_equal(other, exact(left, zero, second) / 16)


def test_sums_are_whole_before_they_are_floats() -> None:
    """Where the contracted axis is cut or weights are no constants, floats are multiplied."""
    kernel = byte_product(128, 64)
    tiles_ = {"m": 16, "n": 32, "k": 128}

    def packs(**changed_: object) -> bool:
        schedule = Schedule(tuple((axis, tiles_[axis]) for axis in kernel.blocks[0].sizes), ahead=("right",))
        return bool(generate(kernel, [replace(schedule, **changed_)]).plan.packings)  # type: ignore[arg-type]

    assert packs()
    assert not packs(ahead=())
    assert not packs(tiles=(("m", 16), ("n", 32), ("k", 64)))
    assert not packs(tiles=(("m", 16), ("n", 16), ("k", 128)))


@pytest.mark.parametrize("rows", [1, 8, 128, 512])
@pytest.mark.parametrize("k, n", [(768, 3072), (3072, 768)])
def test_schedules_have_the_contracted_axis_whole(rows: int, k: int, n: int) -> None:
    """And fit on the stack: operands are no arrays there."""
    kernel = byte_product(k, n)
    for (schedule,) in cpu_schedules(kernel, {"m": rows}, 100):
        assert schedule.tile("k") >= k
        assert generate(kernel, [replace(schedule, ahead=("right",))]).plan.packings


@pytest.mark.parametrize(
    "types, term",
    [
        ({"q": DataType.INT8}, "MatMulInteger(q, w)"),
        ({"w": DataType.UINT8}, "MatMulInteger(q, w)"),
        ({"u": DataType.INT8}, "MatMulInteger[zeros=('b',)](q, w, u)"),
    ],
)
def test_bytes_of_other_signs_and_zero_points_of_weights_are_floats(types: dict[str, DataType], term: str) -> None:
    known = {**TYPES, **{name: TensorType(dtype, TYPES[name].shape) for name, dtype in types.items()}}
    kernel = lower("other", known, [("y", parse_term(f"Cast[to=float]({term})"))])
    assert why_not_proved(kernel) is None and not stored_bytes(kernel)


_SUM = "axes=(-1,),keepdims=1"
_OUTER = "Mul(Cast[to=float](c), Cast[to=float](r))"


@pytest.mark.parametrize(
    "floats, body",
    [
        (f"ReduceSum[{_SUM}]({_OUTER})", f"ReduceSum[{_SUM}](MatMulInteger(c, r))"),
        (f"ReduceSum[{_SUM}](Mul({_OUTER}, {_OUTER}))", f"ReduceSumSquare[{_SUM}](MatMulInteger(c, r))"),
        ("MatMul(Sub(Cast[to=float](q), 1.5), Cast[to=float](w))", "MatMulInteger[zeros=('a',)](q, w, 1.5)"),
        ("MatMul(Sub(Cast[to=float](q), 300), Cast[to=float](w))", "MatMulInteger[zeros=('a',)](q, w, 300)"),
    ],
)
def test_what_integers_do_beyond_their_products_is_not_proved(floats: str, body: str) -> None:
    """Sums of them wrap around, and a number beside them has their type."""
    line = {"c": TensorType(DataType.UINT8, (symbol("m"), 1)), "r": TensorType(DataType.INT8, (1, 96))}
    kernel = lower("floats", {**TYPES, **line}, [("y", parse_term(floats))])
    assert why_not_proved(kernel) is None
    assert why_not_proved(replace(kernel, body=(parse_term(f"Cast[to=float]({body})"),))) is not None


def test_a_product_with_a_vector_is_none_of_bytes() -> None:
    assert stored_bytes(byte_product(64, 2)) and not stored_bytes(byte_product(64, 1))
