"""What is C's own of kernels: its functions, both widths of vectors, types of 16 bits, names, bytes and refusals.

That kernels compute what their bodies say is tested for Triton's text and C's alike, where the fixture ``interpreter`` is asked.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.domains import Real
from mugraph.terms.shape import DataType, symbol
from rewriter.kernels.c import generate
from rewriter.kernels.c.calling import opened
from rewriter.kernels.c.compile import LEVELS, Level, NotBuilt, build
from rewriter.kernels.text.thread import NotGenerated
from tests.support.block_kernels import (
    F16,
    F32,
    bias_gelu,
    causal_attention,
    cut,
    gated_mlp,
    grouped_attention,
    heads_attention,
    joined_rows,
    kernel_of_terms,
    lora,
    random_inputs,
    reference,
    rms_norm_matmul,
    skip_layer_norm,
    softmax,
    tensor,
    two_blocks,
)
from tests.support.c_help import Processor, levels

LEVEL_NAMES = [level.name for level in levels()]
BF16 = DataType.BFLOAT16
b, m, s, t = (symbol(name) for name in "bmst")


@pytest.fixture(scope="module", params=LEVEL_NAMES)
def level(request: pytest.FixtureRequest) -> Level:
    return LEVELS[request.param]


KERNELS: dict[str, tuple[Kernel, tuple[Schedule, ...], dict[str, int]]] = {
    "layer norm": (skip_layer_norm(2, m, 100), cut(m=1), {"m": 7}),
    "rows together": (skip_layer_norm(2, 5, 37), cut(m=4), {}),
    "softmax": (softmax(m, 83), cut(m=2), {"m": 5}),
    "chain": (bias_gelu(5, 70), cut(m=4), {}),
    "joined rows": (joined_rows(3, 20, 13), cut(m=2), {}),
    "normalised product": (rms_norm_matmul(19, 40, 70), cut(m=8, n=64, k=16), {}),
    "split product": (lora(7, 50, 33, 5), cut(split=3, m=4, n=32, k=8), {}),
    "two products": (gated_mlp(13, 24, 40), cut(m=8, n=32, k=8), {}),
    "attention": (heads_attention(b, s, t, 2, 16), cut(s=8, t=16), {"b": 2, "s": 19, "t": 37}),
    "split attention": (heads_attention(b, s, t, 2, 16), cut(split=3, s=4, t=8), {"b": 1, "s": 5, "t": 50}),
    "causal attention": (causal_attention(2, s, s, 24, window=9), cut(s=8, t=8), {"s": 45}),
    "rotary attention": (grouped_attention(2, 9, 3, 3, 32), cut(b0=2, s=4, t=4), {}),
    "two blocks": (two_blocks(), (*cut(split=2, m=2, n=2), *cut(m=2, n=4)), {}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_what_its_block_graph_and_its_body_say(level: Level, name: str) -> None:
    kernel, schedules, sizes = KERNELS[name]
    inputs = random_inputs(kernel, 1, sizes)
    computed = Processor(level).run(kernel, schedules, inputs)
    wide = {n: x.astype(np.float64) for n, x in inputs.items()}
    for wanted in (reference(kernel, inputs), evaluate_kernel(kernel, Real(), wide, schedules)):
        for got, right in zip(computed, wanted, strict=True):
            assert np.max(np.abs(got - right)) <= 2e-6 * np.max(np.abs(right))


FUNCTIONS = {"exp": 1.1, "log": 1.0, "erf": 1.1, "tanh": 1.5, "sigmoid": 2.5, "softplus": 2.2}
"""The greatest errors in units in the last place."""


def _exactly(name: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    if name == "erf":
        return np.array([math.erf(value) for value in wide])
    decay = np.exp(-np.abs(wide))
    if name == "sigmoid":
        return np.where(wide >= 0, 1, decay) / (1 + decay)
    if name == "softplus":
        return np.maximum(wide, 0) + np.log1p(decay)
    return np.asarray(getattr(np, name)(wide))


@pytest.fixture(scope="module")
def functions(level: Level) -> ctypes.CDLL:
    text = files("rewriter.kernels.c").joinpath("functions.h").read_text()
    for name in (*FUNCTIONS, "exp_weight"):
        loop = f"for (int64_t i = 0; i < n; ++i) y[i] = f32_{name}(x[i]);"
        text += f"\nvoid run_{name}(const float *restrict x, float *restrict y, int64_t n) {{ {loop} }}"
    for given, to, call in (
        ("uint16_t", "float", "f32_of_f16"),
        ("float", "uint16_t", "f16_of_f32"),
        ("float", "uint16_t", "bf16_of_f32"),
    ):
        loop = f"for (int64_t i = 0; i < n; ++i) y[i] = {call}(x[i]);"
        text += f"\nvoid run_{call}(const {given} *restrict x, {to} *restrict y, int64_t n) {{ {loop} }}"
    return opened(build(text + "\n", level))


def _applied(functions: ctypes.CDLL, name: str, x: np.ndarray, dtype: type) -> np.ndarray:
    y = np.empty(x.shape, dtype)
    functions[f"run_{name}"](ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 88.72283, 88.72284, -87.33655, -103.97, -104.0, 1e-45, -1e-45, 3.4e38, -3.4e38]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_exact_as_they_say(functions: ctypes.CDLL, name: str) -> None:
    """Over all exponents, and densely where the functions change."""
    every = np.arange(0, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([every, np.linspace(-110, 100, 30011), np.linspace(-5, 5, 30011), EDGES]).astype(np.float32)
    with np.errstate(all="ignore"):
        y, wanted = _applied(functions, name, x, np.float32), _exactly(name, x)
        single = wanted.astype(np.float32)
        unit = np.spacing(np.abs(single)).astype(np.float64)
        finite = np.isfinite(single)
        error = np.abs(y[finite] - wanted[finite]) / unit[finite]
    assert np.max(error) <= FUNCTIONS[name], x[finite][np.argmax(error)]
    np.testing.assert_array_equal(y[~finite], single[~finite])


def test_a_weight_is_an_exponential_or_zero(functions: ctypes.CDLL) -> None:
    """The least normal number is exp(-87.34)."""
    every = np.arange(0, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([every, np.linspace(-110, 0, 30011), EDGES]).astype(np.float32)
    x = x[~(x > 0)]
    y, counts = _applied(functions, "exp_weight", x, np.float32), x >= np.float32(-87.3)
    np.testing.assert_array_equal(y[~counts], np.where(np.isnan(x[~counts]), np.nan, 0))
    wanted = np.exp(x[counts].astype(np.float64))
    assert np.max(np.abs(y[counts] - wanted) / np.spacing(wanted.astype(np.float32))) <= FUNCTIONS["exp"]


@pytest.mark.parametrize("split", [1, 3])
def test_nothing_is_multiplied_by_a_weight_that_is_no_normal_number(level: Level, split: int) -> None:
    """A processor takes some hundred cycles for that: here all that is not masked is zero, and what is masked is large."""
    kernel = heads_attention(b, s, t, 2, 16)
    inputs = {"q": np.zeros((1, 3, 32)), "k": np.zeros((1, 12, 32)), "v": np.zeros((1, 12, 32)), "mask": np.zeros((1, 1, 1, 12))}
    inputs["v"][:, ::2], inputs["mask"][..., ::2] = 1e30, -100
    given = {name: array.astype(np.float32) for name, array in inputs.items()}
    (y,) = Processor(level).run(kernel, cut(split=split, s=4, t=4), given)
    np.testing.assert_array_equal(y, np.zeros((1, 3, 32)))


def test_numbers_of_16_bits_are_converted_as_they_are_elsewhere(functions: ctypes.CDLL) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(
        _applied(functions, "f32_of_f16", halves, np.float32), halves.view(np.float16).astype(np.float32)
    )
    every = np.arange(0, 1 << 32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    between = (halves.view(np.float16)[:-1].astype(np.float64) + halves.view(np.float16)[1:].astype(np.float64)) / 2
    with np.errstate(all="ignore"):
        x = np.concatenate([every, between.astype(np.float32), np.float32(EDGES)])
        for name, dtype in (("f16_of_f32", np.dtype(np.float16)), ("bf16_of_f32", BF16.numpy())):
            got, wanted = (
                _applied(functions, name, x, np.uint16).view(dtype).astype(np.float32),
                x.astype(dtype).astype(np.float32),
            )
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_types_of_16_bits_are_computed_in_32(level: Level, dtype: DataType) -> None:
    for kernel, schedules in (
        (skip_layer_norm(2, 5, 37, dtype), cut(m=2)),
        (rms_norm_matmul(9, 40, 33, dtype), cut(m=4, n=32, k=16)),
        (heads_attention(1, 9, 21, 2, 16, dtype), cut(s=4, t=8)),
    ):
        inputs = random_inputs(kernel, 2)
        for got, right in zip(Processor(level).run(kernel, schedules, inputs), reference(kernel, inputs), strict=True):
            rounded = right.astype(dtype.numpy()).astype(np.float64)
            unit = 2.0 ** (-10 if dtype == F16 else -7)
            assert np.max(np.abs(got.astype(np.float64) - rounded) / np.maximum(np.abs(rounded), 1e-2)) <= 1.01 * unit


def test_what_is_no_number_and_infinite_stays_in_its_row(level: Level) -> None:
    kernel = softmax(6, 40)
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    x[1, 3], x[2, 5], x[3, :], x[4, :] = np.nan, np.inf, -np.inf, 1e38
    x[5] *= 1e-40
    (y,) = Processor(level).run(kernel, cut(m=4), {"x": x})
    with np.errstate(all="ignore"):
        (wanted,) = reference(kernel, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    assert np.isnan(y[1:4]).all() and np.isfinite(y[[0, 4, 5]]).all()


@pytest.mark.parametrize("n", [5, 40, 83])
def test_extremes_are_those_of_all_numbers(level: Level, n: int) -> None:
    """Of either sign, zeros, infinities and NaN, of which hardware makes negative ones."""
    random, (most, least) = np.random.default_rng(n), (f"Reduce{kind}[axes=(-1,),keepdims=false](x)" for kind in ("Max", "Min"))
    kernel = kernel_of_terms("extremes", {"x": tensor(F32, 64, n)}, {"most": most, "least": least})
    x = random.standard_normal((64, n)).astype(np.float32)
    x[8:24] = np.abs(x[8:24]) * np.where(np.arange(8, 24) % 2, 1, -1).astype(np.float32)[:, None]
    for row, value in enumerate((np.nan, -np.float32(np.nan), np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38)):
        x[24 + 4 * row : 28 + 4 * row, random.integers(n)] = value
        x[26 + 4 * row] = np.abs(x[26 + 4 * row])
        x[27 + 4 * row] = value
    x[26:28] = np.copysign(x[26:28], -1)
    for got, wanted in zip(Processor(level).run(kernel, cut(n=4), {"x": x}), (x.max(1), x.min(1)), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("n", [63, 64, 77, 96, 1000, 1024, 1025, 4096])
def test_sums_are_as_exact_however_long(level: Level, n: int) -> None:
    """In lanes or not, with entries that are left over; an exact sum of integers stays exact."""
    kernel = kernel_of_terms("sums", {"x": tensor(F32, 24, n)}, {"y": "ReduceSum[axes=(-1,),keepdims=false](x)"})
    x = np.random.default_rng(n).standard_normal((24, n)).astype(np.float32)
    x[:8], x[8:16] = np.abs(x[:8]), np.rint(x[8:16] * 100)
    (y,) = Processor(level).run(kernel, cut(n=4), {"x": x})
    exact, sizes = x.astype(np.float64).sum(1), np.abs(x.astype(np.float64)).sum(1)
    assert (np.abs(y - exact)[:8] <= 1.3 * 2.0**-24 * exact[:8]).all()
    assert (np.abs(y - exact) <= 0.3 * 2.0**-24 * sizes + 2.0**-24 * np.abs(exact)).all()
    np.testing.assert_array_equal(y[8:16], exact[8:16])


@pytest.mark.parametrize("columns", [1, 7, 8, 21, 32])
@pytest.mark.parametrize("depth", [1, 8, 19])
def test_matrices_are_turned(level: Level, columns: int, depth: int) -> None:
    """Where strides are longer than rows; nothing beside the copy is written."""
    headers = "".join(files("rewriter.kernels.c").joinpath(name).read_text() for name in ("functions.h", "dots.h", "turns.h"))
    call = "dot_turn(to, 40, from, 23, columns, depth);"
    text = f"{headers}\nvoid turn(float *to, const float *from, int64_t columns, int64_t depth) {{ {call} }}\n"
    source = np.random.default_rng(0).standard_normal((columns, 23)).astype(np.float32)
    to, wanted = np.full((depth + 1, 40), np.float32(7)), np.full((depth + 1, 40), np.float32(7))
    wanted[:depth, :columns] = source[:, :depth].T
    pointers = (ctypes.c_void_p(to.ctypes.data), ctypes.c_void_p(source.ctypes.data))
    opened(build(text, level)).turn(*pointers, ctypes.c_int64(columns), ctypes.c_int64(depth))
    np.testing.assert_array_equal(to, wanted)


@pytest.mark.parametrize("columns", [1, 15, 16, 33, 71])
@pytest.mark.parametrize("depth", [0, 1, 64, 129, 300])
@pytest.mark.parametrize("apart", [False, True])
def test_tiles_are_multiplied_whatever_their_sizes(level: Level, columns: int, depth: int, apart: bool) -> None:
    """Rows are one to all register tiles' together; a row is the same bit for bit however many are beside it, and nothing beside
    the result is read or written.

    Args:
        apart: whether entries of a row of the left operand lie apart.
    """
    headers = "".join(files("rewriter.kernels.c").joinpath(name).read_text() for name in ("functions.h", "dots.h", "turns.h"))
    call = f"dot_add(c, 80, a, {'1, 40' if apart else '307, 1'}, b, 71, rows, {columns}, {depth});"
    built = opened(
        build(f"{headers}\nvoid product(float *c, const float *a, const float *b, int64_t rows) {{ {call} }}\n", level)
    )
    numbers, most = np.random.default_rng(depth), 39
    left = np.full((308, 40), np.nan, np.float32) if apart else np.full((40, 307), np.nan, np.float32)
    right, before = np.full((301, 71), np.nan, np.float32), numbers.standard_normal((40, 80)).astype(np.float32)
    a, b = (numbers.standard_normal(shape).astype(np.float32) for shape in ((most, depth), (depth, columns)))
    (left[:depth, :most].T if apart else left[:most, :depth])[:], right[:depth, :columns] = a, b
    last = right.reshape(-1)[: max(depth - 1, 0) * 71 + columns].copy()  # ends where the last row does
    wanted = before[:most, :columns] + a.astype(np.float64) @ b
    all_rows: np.ndarray | None = None
    for rows in (most, 1, 2, 3, 7, 14, 16, 28):
        result = before.copy()
        built.product(*(ctypes.c_void_p(x.ctypes.data) for x in (result, left, last)), ctypes.c_int64(rows))
        all_rows = result if all_rows is None else all_rows
        np.testing.assert_allclose(result[:rows, :columns], wanted[:rows], rtol=0, atol=2e-5)
        np.testing.assert_array_equal(result[:rows, :columns], all_rows[:rows, :columns])
        np.testing.assert_array_equal(result[rows:], before[rows:])
        np.testing.assert_array_equal(result[:, columns:], before[:, columns:])


def test_the_same_text_gives_the_same_bytes(level: Level) -> None:
    kernel, schedules, _ = KERNELS["attention"]
    first, second = generate(kernel, schedules), generate(kernel, schedules)
    assert first.text == second.text and build(first.text, level) == build(second.text, level)
    assert b"/tmp" not in build(first.text, level)


@pytest.mark.parametrize("name", ["double", "first", "x_at", "m_start", "f32_exp", "größe", "int64_t", "block", "exp"])
def test_tensors_and_symbols_may_have_any_name(name: str) -> None:
    kernel = (
        kernel_of_terms("any", {name: tensor(F32, m, 9)}, {"y": f"Softmax[axis=-1]({name})"})
        if name.isascii()
        else softmax(symbol(name), 9)
    )
    for level in levels()[:1]:
        inputs = random_inputs(kernel, 1, {"m": 5, name: 5})
        (y,) = Processor(level).run(kernel, cut(m=2), inputs)
        np.testing.assert_allclose(y, reference(kernel, inputs)[0], rtol=1e-5)


def test_what_cannot_be_written_is_refused_with_the_reason() -> None:
    kernel = softmax(4, 9)
    (block,) = kernel.blocks
    with pytest.raises(NotGenerated, match="'if', which is no identifier"):
        generate(replace(kernel, blocks=(replace(block, name="if"),)), cut(m=2))
    with pytest.raises(NotGenerated, match="'größe', which is not of ASCII"):
        generate(replace(kernel, blocks=(replace(block, name="größe"),)), cut(m=2))
    with pytest.raises(NotGenerated, match="without entries"):
        generate(softmax(0, 9), cut(m=2))
    with pytest.raises(NotGenerated, match="x of element type double"):
        generate(softmax(4, 9, DataType.DOUBLE), cut(m=2))
    with pytest.raises(
        InvalidBlock, match=r"block softmax: \d+ bytes of tiles on the stack, exp_entries alone \d+; .* smaller tiles"
    ):
        generate(softmax(64, 9000), cut(m=64))


def test_a_compiler_that_is_missing_or_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotBuilt, match=r"a kernel: .* refuses it for x86-64-v3: .*error"):
        build("int f(void) { return nothing; }\n", LEVELS["x86-64-v3"])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotBuilt, match="no C compiler was found; install gcc"):
        build("", LEVELS["x86-64-v3"])
