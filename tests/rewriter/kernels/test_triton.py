"""Generated Triton source: right in the interpreter, as expected in golden files, compiled for two architectures."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.blocks.block import Kernel, renamed_values
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import retyped
from mugraph.blocks.statements import Accumulate, Affine, Compute, Index, InvalidBlock, Predicate
from mugraph.domains.functions import FUNCTIONS
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, Dim, symbol
from mugraph.terms.term import make, var, variables
from rewriter.cost.devices import DEVICES
from rewriter.cost.schedules import default_schedules
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.text.thread import Expr, write_thread
from rewriter.kernels.triton import NotGenerated, generate
from rewriter.kernels.triton.compile import Architecture, Compiler, NotCompiled
from rewriter.kernels.triton.functions import functions_called
from rewriter.kernels.triton.scalar import TritonText
from rewriter.kernels.triton.source import OVERLAPPED, Source
from tests.support.block_kernels import (
    BOOL,
    F16,
    F32,
    banded_attention,
    batched_matmul,
    bias_gelu,
    causal_attention,
    column_kernel,
    cut,
    cut_of,
    gated_mlp,
    grouped_attention,
    heads_attention,
    joined_rows,
    kernel_of_terms,
    lora,
    masked_rows,
    qk_norm,
    random_inputs,
    reference,
    rms_norm_matmul,
    shared_keys,
    sized,
    skip_layer_norm,
    softmax,
    tensor,
    term,
    two_blocks,
)
from tools.fuzz.interpreter import Interpreter

triton = pytest.importorskip("triton")

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = {F32: 2e-6, F16: 2e-3}
"""Largest error over largest entry."""


def check(interpreter: Interpreter, kernel: Kernel, schedules: tuple[Schedule, ...], tolerance: float, **options: object) -> None:
    """Compares what the interpreter computes with the body in double precision."""
    inputs = random_inputs(kernel, 1, options.get("sizes"))  # type: ignore[arg-type]
    for computed, wanted in zip(interpreter.run(kernel, schedules, inputs), reference(kernel, inputs), strict=True):
        assert computed.shape == wanted.shape
        error = np.max(np.abs(computed - wanted)) / np.max(np.abs(wanted))
        assert error <= tolerance, (error, generate(kernel, schedules).text)


small, tiles, parts = st.integers(1, 18), st.sampled_from((2, 4, 16)), st.integers(1, 3)
dtypes = st.sampled_from((F32, F16))
examples = settings(max_examples=4, deadline=None)


@examples
@given(small, small, tiles, dtypes, st.sampled_from((skip_layer_norm, softmax, bias_gelu)))
def test_row_kernels(interpreter: Interpreter, m: int, n: int, tile: int, dtype: DataType, family: Callable[..., Kernel]) -> None:
    kernel = sized(family, dtype, m=m, n=n, **({"b": 2} if family is skip_layer_norm else {}))
    check(interpreter, kernel, cut(m=tile), TOLERANCE[dtype])


@examples
@given(small, small, small, tiles, tiles, tiles, parts, dtypes, st.sampled_from((rms_norm_matmul, gated_mlp)))
def test_products(
    interpreter: Interpreter,
    m: int,
    k: int,
    n: int,
    rows: int,
    inner: int,
    columns: int,
    split: int,
    dtype: DataType,
    family: Callable[..., Kernel],
) -> None:
    kernel = sized(family, dtype, m=m, k=k, n=n)
    check(interpreter, kernel, cut_of(kernel, split=split, group=2, m=rows, n=columns, k=inner), TOLERANCE[dtype])


@examples
@given(small, small, small, st.integers(1, 17), tiles, parts, dtypes)
def test_low_rank_products(
    interpreter: Interpreter, m: int, k: int, n: int, r: int, rows: int, split: int, dtype: DataType
) -> None:
    kernel = sized(lora, dtype, m=m, k=k, n=n, r=r)
    check(interpreter, kernel, cut_of(kernel, split=split, m=rows, n=16, k=16), TOLERANCE[dtype])


@examples
@given(
    *(st.integers(1, 9), small, tiles, tiles, parts, dtypes),
    st.sampled_from((partial(heads_attention, b=2, h=2, d=16), partial(qk_norm, b=2, d=16))),
)
def test_attention(
    interpreter: Interpreter, s: int, t: int, rows: int, keys: int, split: int, dtype: DataType, family: Callable[..., Kernel]
) -> None:
    kernel = sized(family, dtype, s=s, t=t)
    check(interpreter, kernel, cut_of(kernel, split=split, s=rows, t=keys), TOLERANCE[dtype])


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 9), st.integers(0, 9), tiles, tiles, parts)
def test_causal_attention(interpreter: Interpreter, s: int, more: int, rows: int, keys: int, split: int) -> None:
    kernel = sized(partial(causal_attention, h=2, d=16), F32, s=s, t=s + more)
    check(interpreter, kernel, cut_of(kernel, split=split, s=rows, t=keys), TOLERANCE[F32])


@pytest.mark.parametrize(
    ("kernel", "schedules"),
    [
        (batched_matmul(2, 5, 17, 20), cut(m=16, n=16, k=16)),
        (rms_norm_matmul(3, 5, 6), cut(n=4, k=1)),
        (masked_rows(2, 3, 4, 5), cut(m=2)),
        (joined_rows(3, 2, 3), cut(m=2)),
        (grouped_attention(2, 5, 3, 3, 16), cut(s=16, t=16)),
        (shared_keys(2, 5, 16), cut(b0=4, s=16, t=16)),
        (grouped_attention(2, 1, 2, 4, 16, F16), cut(split=2, b0=4, t=4)),
        (two_blocks(), (*cut(split=2, m=2, n=2), *cut(m=2, n=4))),
    ],
    ids=[
        "batched",
        "tiles of one",
        "broadcast along different axes",
        "joined rows",
        "grouped heads",
        "shared keys",
        "decoding",
        "two blocks",
    ],
)
def test_other_kernels(interpreter: Interpreter, kernel: Kernel, schedules: tuple[Schedule, ...]) -> None:
    check(interpreter, kernel, schedules, TOLERANCE[kernel.inputs[0].type.dtype])


@pytest.mark.parametrize(
    ("kernel", "axes", "schedules"),
    [
        (lora(5, 20, 33, 16, F16), "n r k m", cut(split=2, m=8, n=16, k=16)),
        (rms_norm_matmul(5, 20, 33), "n k m", cut(m=8, n=16, k=16)),
        (heads_attention(2, 5, 20, 2, 16, F16), "b1 b0 e t d s", cut(s=8, t=16)),
    ],
)
def test_products_are_transposed_by_the_order_of_the_axes(
    interpreter: Interpreter, kernel: Kernel, axes: str, schedules: tuple[Schedule, ...]
) -> None:
    """Eight rows are too few for the matrix units, eight columns are not.

    A product whose columns stand before its rows is computed transposed, (A·B) = (Bᵀ·Aᵀ)ᵀ (TASO, figure 5).
    """
    (block,) = kernel.blocks
    transposed = replace(kernel, blocks=(replace(block, axes=tuple((axis, block.sizes[axis]) for axis in axes.split())),))
    assert "tl.dot" not in generate(kernel, schedules).text
    assert "tl.dot" in generate(transposed, schedules).text and "trans" not in generate(transposed, schedules).text
    check(interpreter, transposed, schedules, TOLERANCE[kernel.inputs[0].type.dtype])


def test_a_window_visits_only_its_keys(interpreter: Interpreter) -> None:
    kernel = causal_attention(1, 20, 20, 16, window=3)
    inputs = random_inputs(kernel, 1)
    (computed,) = interpreter.run(kernel, cut(s=4, t=4), inputs)
    np.testing.assert_allclose(computed, reference(kernel, inputs)[0], rtol=1e-5, atol=1e-6)
    for unseen, rows_left in ((slice(12, None), slice(0, 12)), (slice(0, 8), slice(12, None))):  # a visited key would show
        spoilt = {name: x.copy() for name, x in inputs.items()}
        spoilt["k"][:, unseen], spoilt["v"][:, unseen] = np.nan, np.nan
        (computed,) = interpreter.run(kernel, cut(s=4, t=4), spoilt)
        assert np.isfinite(computed[:, rows_left]).all()


@pytest.mark.parametrize("split", [1, 2])
def test_a_causal_mask_bounds_the_loop(interpreter: Interpreter, split: int) -> None:
    text = (
        "MatMul(Softmax[axis=-1](Where(CausalMask[columns=7,rows=5](), Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.5), -inf)), v)"
    )
    types = {"q": tensor(F32, 2, 5, 16), "k": tensor(F32, 2, 7, 16), "v": tensor(F32, 2, 7, 16)}
    kernel = kernel_of_terms("causal", types, {"y": text})
    check(interpreter, kernel, cut(split=split, s=2, t=2), TOLERANCE[F32])
    spoilt = random_inputs(kernel, 1)
    wanted = reference(kernel, spoilt)[0]
    spoilt["k"][:, 6], spoilt["v"][:, 6] = np.nan, np.nan  # what only the last tile of queries visits
    (computed,) = interpreter.run(kernel, cut(split=split, s=2, t=2), spoilt)
    np.testing.assert_allclose(computed[:, :4], wanted[:, :4], rtol=1e-4, atol=1e-5)
    assert np.isnan(computed[:, 4]).all()


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("s", "t", "window"), [(20, 37, None), (37, 37, None), (40, 40, 9), (33, 64, 20)])
def test_only_tiles_at_an_edge_are_masked(interpreter: Interpreter, s: int, t: int, window: int | None, split: int) -> None:
    kernel, schedules = causal_attention(2, s, t, 16, window=window), cut(split=split, s=16, t=16)
    inputs = random_inputs(kernel, 1)
    (computed,) = interpreter.run(kernel, schedules, inputs)
    np.testing.assert_allclose(computed, reference(kernel, inputs)[0], rtol=1e-5, atol=1e-6)
    text = generate(kernel, schedules).text
    (edges,) = [line for line in text.splitlines() if line.endswith("(t_start + 15) < 0:") or "(s_start + 15) < 0:" in line]
    assert f"{f'{t - s} + ' if t > s else ''}s_start - (t_start + 15) < 0" in edges
    assert (f"t_start + 16 > {t}" in edges) == (t % 16 != 0) and (" + t_start - (s_start + 15) < 0" in edges) == bool(window)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("length", [17, 40, 70])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (6, 0), (0, 7), (7, 7), (64, 0), (64, 64), (100, 3), (3, 100)])
def test_a_band_of_any_width_is_what_the_mask_says(
    interpreter: Interpreter, length: int, before: int, after: int, split: int
) -> None:
    """Windows of one key and wider than the sequence, on one side and on both, at lengths that no tile divides."""
    kernel = banded_attention(1, length, length, 16, F32, before, after)
    inputs = random_inputs(kernel, 1)
    q, k, v = (inputs[name][0].astype(np.float64) for name in "qkv")
    ahead = np.arange(length) - np.arange(length)[:, None]
    scores = np.where((ahead >= -before) & (ahead <= after), q @ k.T, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    for tiles in ({"s": 16, "t": 16}, {"s": 32, "t": 16}, {"s": 16, "t": 64}):
        (computed,) = interpreter.run(kernel, cut(split=split, **tiles), inputs)
        np.testing.assert_allclose(computed[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("factor", "folded"), [("0.5", True), ("-0.5", False), ("0.0", False)])
def test_a_factor_of_the_scores_is_part_of_the_softmax(interpreter: Interpreter, factor: str, folded: bool) -> None:
    scores = f"Mul(MatMul(q, Transpose[perm=(1,0)](k)), {factor})"
    types = {x: tensor(F32, 2, 20, 16) for x in "qkv"}
    kernel = kernel_of_terms("attention", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    for tile in (4, 16):
        check(interpreter, kernel, cut(s=tile, t=tile), TOLERANCE[F32])
    assert ("scores = " not in generate(kernel, cut(s=4, t=4)).text) == folded


def test_what_the_end_adds_to_a_row_is_loaded_before_the_loop(interpreter: Interpreter) -> None:
    types = {"x": tensor(F32, 20, 24), "w": tensor(F32, 24, 18), "b": tensor(F32, 18), "r": tensor(F32, 20, 18)}
    kernel = kernel_of_terms("biased", types, {"y": "Add(Add(MatMul(x, w), b), r)"})
    for split in (1, 2):
        check(interpreter, kernel, cut(split=split, m=16, n=16, k=16), TOLERANCE[F32])
    text = generate(kernel, cut(m=16, n=16, k=16)).text
    assert text.index("b_tile = ") < text.index("for k_start") < text.index("r_tile = ")  # a whole tile would hold registers
    part, combine = generate(kernel, cut(split=2, m=16, n=16, k=16)).text.split("@triton.jit")[1:]
    assert "b_tile" not in part and "b_tile" in combine


def test_tiles_with_most_iterations_are_first() -> None:
    assert "s_start = (8 - 1 - (pid % 8)) * 128" in generate(causal_attention(12, 1024, 1024, 64, F16), cut(s=128, t=64)).text
    assert "- 1 -" not in generate(causal_attention(12, 1024, 1024, 64, F16, window=9), cut(s=128, t=64)).text


@pytest.mark.parametrize("split", [1, 2])
def test_other_monoids(interpreter: Interpreter, split: int) -> None:
    x = (np.random.default_rng(0).standard_normal((3, 7)) - 1000).astype(np.float32)
    odd = Predicate("odd", (Affine(((Index("n", modulo=2), 1),), -1),))
    welford = (Accumulate(("count", "mean", "squares"), "welford", ("tile",)), Compute("variance", term("Div(squares, count)")))
    softmax = (Accumulate(("top", "mass"), "softmax", ("tile",)), Compute("total", term("Add(top, Log(mass))")))
    half = (Compute("small", term("Mul(tile, 0.5)")), Accumulate(("top", "mass"), "softmax", ("small",)))
    scaled = (*half, Compute("total", term("Add(top, Log(mass))")))
    hidden = (Compute("x", term("Add(tile, 1.0)")), Accumulate(("pid",), "sum", ("x",)))  # names that the function has already
    rounded = (Compute("half", term("Cast[to=float16](Add(tile, 0.5))")), Accumulate(("total",), "sum", ("half",)))
    wide = x.astype(np.float64)
    for statements, store, wanted in (
        (welford, "variance", wide.var(1)),
        (welford, "mean", wide.mean(1)),
        ((odd, Accumulate(("total",), "max", ("tile",), "odd")), "total", wide[:, 1::2].max(1)),
        ((odd, Accumulate(("total",), "sum", ("tile",), "odd")), "total", wide[:, 1::2].sum(1)),
        (softmax, "total", np.log(np.exp(wide + 1000).sum(1)) - 1000),
        (scaled, "total", np.log(np.exp(wide / 2 + 500).sum(1)) - 500),
        (hidden, "pid", wide.sum(1) + 7),
        (rounded, "total", wide.sum(1) + 3.5),  # in 32 bits whatever a cast says
    ):
        (computed,) = interpreter.run(column_kernel(*statements, store=store), cut(split=split, m=2, n=2), {"x": x})
        np.testing.assert_allclose(computed, wanted, rtol=1e-4)
    for statements in (softmax, scaled):
        kernel = retyped(column_kernel(*statements, store="total"), {F32: F16})
        (computed,) = interpreter.run(kernel, cut(split=split, m=2, n=2), {"x": x.astype(np.float16)})
        numbers = x.astype(np.float16).astype(np.float64) * (0.5 if statements is scaled else 1.0)
        np.testing.assert_allclose(computed, np.log(np.exp(numbers + 1000).sum(1)) - 1000, rtol=1e-3)


def plain_softmax(scores: np.ndarray) -> np.ndarray:
    """The softmax of rows as an operator computes it, in the precision of its operand."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


LARGEST = float(np.finfo(np.float32).max)
NUMBERS: dict[str, tuple[float, ...]] = {
    "ordinary": (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-6),
    "large": (5000.7, 5000.1, 4999.9, 5001.3, -5000.1, 1e-3),
    "extreme": (1e18, -1e18, 1e20, 3e38, -3e38, LARGEST, -LARGEST, 1e-40, 88.0),
    "infinite": (1.0, 88.0, 3e38, -math.inf, -math.inf),
    "hidden": (-math.inf,),
    "overflown": (math.inf, -math.inf, 1.0),
}
"""Scores of float32."""


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("size", NUMBERS)
def test_a_softmax_is_as_exact_as_the_plain_one_whatever_the_scores(interpreter: Interpreter, size: str, split: int) -> None:
    """Tiles along the scores, and parts of the loop, so that states are rescaled and combined."""
    generator = np.random.default_rng(0)
    scores, values = generator.choice(NUMBERS[size], (32, 11)).astype(np.float32), generator.random((11, 16), np.float32)
    types = {"x": tensor(F32, 32, 11), "v": tensor(F32, 11, 16)}
    kernel = kernel_of_terms("attention", types, {"y": "MatMul(Softmax[axis=-1](x), v)"})
    with np.errstate(invalid="ignore", over="ignore"):
        plain, wanted = plain_softmax(scores) @ values, plain_softmax(scores.astype(np.float64)) @ values.astype(np.float64)
    finite = np.isfinite(plain)
    for tiles in ({"s": 1, "t": 16}, {"s": 16, "t": 16}, {"s": 1, "t": 4}):
        (computed,) = interpreter.run(kernel, cut(split=split, **tiles), {"x": scores, "v": values})
        assert (np.isfinite(computed) == finite).all()
        errors, own = (np.abs(one[finite] - wanted[finite]).max(initial=0.0) for one in (computed, plain))
        assert errors <= own + 4 * 2.0**-24 * np.abs(values).max(), (errors, own)


@pytest.mark.parametrize("size", [1.0, 30.0, 254.0])
def test_a_softmax_of_halves_is_more_exact_than_the_plain_one(interpreter: Interpreter, size: float) -> None:
    """Scores of up to 65025, which an operator rounds to a half before it takes their softmax: the plain one's least error."""
    generator = np.random.default_rng(0)
    q, k = (generator.choice([-size, size], (32, 1)).astype(np.float16) + generator.random((32, 1)) for _ in "qk")
    q, k, v = (one.astype(np.float16) for one in (q, k, generator.random((32, 16))))
    types = {"q": tensor(F16, 32, 1), "k": tensor(F16, 32, 1), "v": tensor(F16, 32, 16)}
    kernel = kernel_of_terms("attention", types, {"y": "MatMul(Softmax[axis=-1](MatMul(q, Transpose[perm=(1,0)](k))), v)"})
    scores, values = q.astype(np.float64) @ k.astype(np.float64).T, v.astype(np.float64)
    wanted = plain_softmax(scores) @ values
    plain = plain_softmax(scores.astype(np.float16).astype(np.float64)) @ values
    for tiles in ({"s": 1, "t": 16}, {"s": 16, "t": 16}, {"s": 1, "t": 4}):
        (computed,) = interpreter.run(kernel, cut(**tiles), {"q": q, "k": k, "v": v})
        errors, own = (np.abs(one - wanted).max() for one in (computed, plain))
        assert errors <= own + 2.0**-11, (errors, own)  # it rounds its weights and its result to halves


@pytest.mark.parametrize(("factor", "folded"), [("1e-31", False), ("1e-30", True), ("1e30", True), ("1e31", False)])
def test_a_factor_of_the_scores_that_may_overflow_stays_theirs(factor: str, folded: bool) -> None:
    types = {x: tensor(F32, 2, 20, 16) for x in "qkv"}
    scores = f"Mul(MatMul(q, Transpose[perm=(1,0)](k)), {factor})"
    kernel = kernel_of_terms("attention", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    assert ("scores = " not in generate(kernel, cut(s=4, t=4)).text) == folded


def test_dynamic_sizes_are_arguments(interpreter: Interpreter) -> None:
    kernel = heads_attention(symbol("b"), symbol("s"), symbol("t"), 2, 16)
    source = generate(kernel, cut(s=16, t=16))
    assert source.launches[0].signature[-2:] == (("s", "i32"), ("t", "i32"))
    for sizes in ({"b": 1, "s": 3, "t": 5}, {"b": 2, "s": 17, "t": 33}):
        check(interpreter, kernel, cut(s=16, t=16), TOLERANCE[F32], sizes=sizes)
    types = {"x": tensor(F32, symbol("b"), symbol("s"), 24), "w": tensor(F32, 24, 20)}
    product = kernel_of_terms("dynamic", types, {"y": "MatMul(x, w)"})
    assert product.blocks[0].sizes["m"] == symbol("b") * symbol("s")  # one axis: the weight has neither
    check(interpreter, product, cut(split=2, m=16, n=16, k=16), TOLERANCE[F32], sizes={"b": 3, "s": 7})
    k = symbol("k")
    normal = rms_norm_matmul(3, k, 20)
    check(interpreter, normal, cut(split=2, m=4, n=16, k=4), TOLERANCE[F32], sizes={"k": 10})


def squares(s: Dim, dtype: DataType = F32) -> Kernel:
    """Tables of a square of a size, as masks of as many keys as queries are: what lies between two of them is s*s long."""
    text = "Add(x, Transpose[perm=(0,2,1,3)](x))"
    return kernel_of_terms("squares", {"x": tensor(dtype, symbol("b"), s, s, 16)}, {"y": text})


def test_products_of_sizes_are_offsets_of_64_bits(interpreter: Interpreter) -> None:
    kernel = squares(symbol("s"))
    schedule = cut(**{axis: 4 for axis in kernel.blocks[0].grid[-2:]})
    assert "*tl.cast(s, tl.int64)*s)" in generate(kernel, schedule).text
    check(interpreter, kernel, schedule, TOLERANCE[F32], sizes={"b": 2, "s": 7})


@pytest.mark.parametrize(
    "name", ["batch size", "?x_0", "pid", "x", "m_start", "tl", "class", "n\nraise SystemExit", "7", "größe"]
)
def test_symbols_of_a_file_may_have_any_name(interpreter: Interpreter, name: str) -> None:
    kernel = softmax(symbol(name), 6)
    check(interpreter, kernel, cut(m=2), TOLERANCE[F32], sizes={name: 5})


def test_what_is_no_identifier_is_not_written() -> None:
    kernel = softmax(4, 6)
    (block,) = kernel.blocks
    bad = renamed_values(block, {name: f"{name}\nraise SystemExit" for name in block.defined})
    for wrong in (
        replace(kernel, blocks=(bad,)),
        replace(kernel, name="../y\n"),
        replace(kernel, blocks=(replace(block, name="if"),)),
    ):
        with pytest.raises(NotGenerated, match="which is no identifier"):
            generate(wrong, cut(m=2))


ELEMENTWISE = (
    "Abs(x) Sign(x) Floor(x) Ceil(x) Log(Abs(x)) Sin(x) Cos(x) Sigmoid(x) Erf(x) Tanh(x) Softplus(x) Relu(x) Neg(x) Exp(x)",
    "Reciprocal(x) Sqrt(Abs(x)) Pow(x,2.0) Pow(Abs(x),-0.5) LeakyRelu[alpha=0.1](x) Elu[alpha=0.5](x) Selu(x) Gelu(x)",
    "Gelu[approximate='tanh'](x) HardSigmoid(x) HardSwish(x) Mish(x) Softsign(x) PRelu(x,y) Clip[max=0.5,min=-0.5](x)",
    "Sum(x,y,x) Max(x,y) Min(x,y,0.1) Add(x,y) Sub(x,y) Mul(x,y) Div(x,y) Where(Less(x,y),x,0.0) Where(IsNaN(x),0.0,x)",
    "Where(And(Greater(x,0.0),Not(Equal(x,y))),x,y) Where(Or(GreaterOrEqual(x,y),LessOrEqual(x,0.0)),x,y) Identity(x)",
    "Cast[to=float](Cast[to=int32](Mul(x,3.0))) Cast[to=float](Cast[to=bool](x))",
    "Cast[to=float](Cast[to=float16](x)) Where(IsInf(x),0.0,x)",
)


def test_every_elementwise_operator_has_text(interpreter: Interpreter) -> None:
    full = tensor(F32, 3, 8)
    outputs = {f"y{i}": text for i, text in enumerate(" ".join(ELEMENTWISE).split())}
    kernel = kernel_of_terms("elementwise", {"x": full, "y": full}, outputs)
    inputs = random_inputs(kernel, 4)
    for computed, wanted, text in zip(
        interpreter.run(kernel, cut(m=4), inputs), reference(kernel, inputs), outputs.values(), strict=True
    ):
        np.testing.assert_allclose(computed, wanted, rtol=3e-6, atol=1e-6, err_msg=repr(text))


def test_a_short_erf_serves_where_no_float_is_wide(interpreter: Interpreter) -> None:
    def gelu(given: DataType, result: DataType) -> Kernel:
        body = "Gelu(x)" if given == result else f"Cast[to={result.name.lower()}](Gelu(x))"
        return kernel_of_terms("gelu", {"x": tensor(given, 4, 8)}, {"y": body})

    def text(*dtypes: DataType) -> str:
        return generate(gelu(*dtypes), cut(m=2)).text

    bf16 = DataType.BFLOAT16
    assert all("short_erf(" in text(*dtypes) and "tl.erf(" not in text(*dtypes) for dtypes in ((F16, F16), (bf16, F16)))
    assert all(
        "short_erf(" not in text(*dtypes) and "tl.erf(" in text(*dtypes) for dtypes in ((F32, F32), (F16, F32), (F32, F16))
    )
    check(interpreter, gelu(F16, F16), cut(m=2), TOLERANCE[F16])


def applied_in_triton(interpreter: Interpreter, call: str, x: np.ndarray) -> np.ndarray:
    """What a call computes of numbers ``x``."""
    kernel = (
        f"\n\n@triton.jit\ndef main(a, b):\n    i = tl.arange(0, {len(x)})\n    x = tl.load(a + i)\n    tl.store(b + i, {call})\n"
    )
    functions = "\n\n".join(functions_called([kernel]))
    source = f"import triton\nimport triton.language as tl\n\n\n{functions}{kernel}"
    return interpreter.execute(source, [("main", (1, 1, 1), ["x", "y"])], {"x": x, "y": np.full_like(x, np.nan)})["y"]


def of_all_sizes(count: int, least: float, most: float) -> np.ndarray:
    """Numbers of both signs between two powers of ten, zeros and infinities: twice ``count``."""
    wide = np.concatenate([np.logspace(least, most, count - 2), [np.inf, 0.0]])
    return np.concatenate([wide, -wide]).astype(np.float32)


def test_the_short_erf_is_off_by_less_than_what_halves_can_tell(triton_interpreter: Interpreter) -> None:
    """Everywhere, near 0 and at the ends too; half precision tells 5e-4 from 1."""
    x = np.concatenate([np.linspace(-6, 6, 1 << 15), of_all_sizes(1 << 14, -30, 30)]).astype(np.float32)
    wanted = np.array([math.erf(value) for value in x.astype(np.float64)])
    assert np.max(np.abs(applied_in_triton(triton_interpreter, "short_erf(x)", x) - wanted)) < 7e-7
    assert np.isnan(applied_in_triton(triton_interpreter, "short_erf(x)", x * np.nan)).all()


@pytest.mark.parametrize("text", ["Relu(x)", "Max(x, 0.0)", "Min(0.0, x)", "Clip[max=1.0,min=-1.0](x)", "Sign(x)", "Elu(x)"])
def test_no_number_stays_none(text: str, interpreter: Interpreter) -> None:
    kernel = kernel_of_terms("marked", {"x": tensor(F32, 2, 4)}, {"y": text})
    x = np.array([[np.nan, -2.0, 0.0, 2.0], [0.5, np.nan, np.inf, -np.inf]], np.float32)
    (made,), (wanted,) = interpreter.run(kernel, cut(m=2), {"x": x}), reference(kernel, {"x": x})
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert np.isnan(made).sum() == 2


UNITS = {"exp": 3.0, "tanh": 3.0, "sigmoid": 5.0, "softplus": 4.0}
"""Units in the last place by which a function is off at most, where a power of two is exact and operations round once."""


@pytest.mark.parametrize("name", UNITS)
def test_no_digits_cancel_in_functions_of_single_precision(name: str, triton_interpreter: Interpreter) -> None:
    """Small numbers, of which a formula that subtracts from one leaves nothing, and those far from it."""
    x = np.concatenate([of_all_sizes(1 << 14, -30, 1.9), np.linspace(-80, 80, 1 << 15)]).astype(np.float32)
    lines: list[str] = []
    write_thread(TritonText(), make(name.capitalize(), [var("x")]), {"x": Expr("x")}, "y", lambda _, e: lines.append(e.text))
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name].numpy(x.astype(np.float64))
        made = applied_in_triton(triton_interpreter, lines[-1], x)
        single = wanted.astype(np.float32)
        off = np.abs(made - wanted) / np.spacing(np.abs(single))
    finite = np.isfinite(single) & (np.abs(single) > np.finfo(np.float32).tiny)
    assert off[finite].max() <= UNITS[name], x[finite][off[finite].argmax()]
    np.testing.assert_allclose(made[~finite], single[~finite], atol=float(np.finfo(np.float32).tiny))
    assert np.isnan(applied_in_triton(triton_interpreter, lines[-1], x * np.nan)).all()


TOTALS = {
    "infinite": "Where(Cast[to=bool](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=int64](IsInf(x)))), 1.0, 2.0)",
    "positive": "Cast[to=float](ReduceSum[axes=(-2,-1),keepdims=true](Cast[to=int32](IsInf[negative=false](x))))",
    "negative": "Cast[to=bool](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=float](IsInf[positive=false](x))))",
    "mean": "Sqrt(ReduceMean[axes=(-2,-1),keepdims=true](Mul(x,x)))",
}
"""Reductions of all entries."""


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("name", TOTALS)
def test_reductions_of_all_entries(interpreter: Interpreter, name: str, dtype: DataType) -> None:
    for m, n in ((3, 7), (16, 16)):
        kernel = kernel_of_terms(name, {"x": tensor(dtype, m, n)}, {"y": TOTALS[name]})
        for infinities in ([], [np.inf], [-np.inf], [np.inf, -np.inf, np.inf])[: 1 if name == "mean" else None]:
            inputs = random_inputs(kernel, 3)
            inputs["x"].reshape(-1)[-1 : -1 - len(infinities) : -1] = infinities
            (wanted,) = reference(kernel, inputs)
            for split, tile in ((1, 4), (1, 256), (3, 4)):
                (computed,) = interpreter.run(kernel, cut(split=split, k=tile), inputs)
                assert computed.shape == wanted.shape
                np.testing.assert_allclose(computed, wanted, rtol=TOLERANCE[dtype])


def test_booleans_in_and_out(interpreter: Interpreter) -> None:
    full, flags = tensor(F32, 3, 8), tensor(BOOL, 3, 8)
    kernel = kernel_of_terms("flags", {"x": full, "seen": flags}, {"y": "And(seen, Greater(x, 0.0))"})
    inputs = random_inputs(kernel, 4)
    (computed,) = interpreter.run(kernel, cut(m=2), inputs)
    np.testing.assert_array_equal(computed.astype(bool), reference(kernel, inputs)[0])


@pytest.mark.parametrize("large", ["input", "symbol"])
def test_offsets_are_wide_where_tensors_may_be_large(large: str) -> None:
    kernel = softmax(1 << 24 if large == "input" else symbol("m"), 256)
    assert "tl.program_id(0).to(tl.int64)" in generate(kernel, cut(m=4)).text
    assert "int64" not in generate(softmax(1 << 20, 256), cut(m=4)).text


def test_products_of_32_bits_are_in_full_precision() -> None:
    kernel, schedules = lora(16, 32, 32, 16), cut(m=16, n=16, k=16)
    text = generate(kernel, schedules).text
    assert 'input_precision="ieee"' in text and "tf32" not in text
    halves = generate(retyped(kernel, {F32: F16}), schedules)
    assert "input_precision" not in halves.text and halves.launches[0].signature[0] == ("x", "*fp16")


def test_what_has_no_text_is_refused() -> None:
    full = tensor(F32, 3, 8)
    for text, message in (("Pow(x, y)", "pow in a kernel"), ("Cast[to=float](Cast[to=int8](x))", "a cast to int8")):
        with pytest.raises(NotGenerated, match=message):
            generate(kernel_of_terms("pow", {"x": full, "y": full}, {"z": text}), cut(m=2))

    def negated(*shape: Dim, dtype: DataType = F32) -> Kernel:
        return kernel_of_terms("negated", {"x": tensor(dtype, *shape)}, {"y": "Neg(x)"})

    with pytest.raises(NotGenerated, match="x of element type double"):
        generate(negated(3, 8, dtype=DataType.DOUBLE), cut(m=2))
    with pytest.raises(InvalidBlock, match="the whole axis n has the symbolic size n"):
        generate(negated(3, symbol("n")), cut(m=2))
    with pytest.raises(NotGenerated, match="the symbol s, which is no dimension of an input"):
        generate(negated(symbol("s") * 2, 8), cut(m=2))


INFINITE = kernel_of_terms("infinite", {"x": tensor(F16, 128, 512)}, {"y": TOTALS["infinite"]})
GOLDENS = {
    "rms_norm_matmul": (rms_norm_matmul(16, 4096, 6144, F16), (Schedule((("m", 16), ("n", 64), ("k", 128)), 4, 4, 3, 8),)),
    "attention": (
        heads_attention(symbol("b"), symbol("s"), symbol("s"), 12, 64, F16),
        (Schedule((("s", 64), ("t", 64)), 1, 4, 3),),
    ),
    "causal": (causal_attention(12, 1, 1024, 64, F16), (Schedule((("t", 128),), 8),)),
    "skip_layer_norm": (skip_layer_norm(symbol("b"), symbol("s"), 768, F16), (Schedule(()),)),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_source(name: str) -> None:
    """Written anew with ``UPDATE_GOLDEN=1``; a difference is to be read."""
    path = GOLDEN / f"{name}.py.txt"
    text = generate(*GOLDENS[name]).text
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def listed() -> Kernel:
    """Attention whose loop goes along a list of tiles, full and partial ones, with rows that take longer than others."""
    places = np.arange(256)
    mask = (abs(places[:, None] - places) < 20) | (places[:, None] < 16)
    types = {name: tensor(F16, 2, 256, 64) for name in "qkv"}
    shown = f"StoredMask[columns=256,entries='{mask_text(mask)}',rows=256]()"
    scores = f"Where({shown}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    return kernel_of_terms("listed", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


COMPILED = {
    **{f"total {split}": (INFINITE, cut(split=split, k=1024)) for split in (1, 8)},
    **{name: GOLDENS[name] for name in ("rms_norm_matmul", "skip_layer_norm")},
    "bfloat16": (gated_mlp(8, 512, 512, DataType.BFLOAT16), cut(m=16, n=64, k=64)),
    "attention": (heads_attention(symbol("b"), symbol("s"), symbol("s"), 12, 64, F16), cut(s=32, t=32)),
    "listed": (listed(), cut(s=16, t=16)),
    "squares": (squares(symbol("s"), F16), cut(**{axis: 16 for axis in squares(symbol("s")).blocks[0].grid[-2:]})),
}


def compiled_launches(source: Source, architecture: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What Triton makes of each launch."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    path = folder / "generated.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for launch in source.launches:
        pointers = [i for i, (_, kind) in enumerate(launch.signature) if kind.startswith("*")]
        assert len(launch.arguments) == len(launch.signature)
        types = {**dict(launch.signature), OVERLAPPED: "constexpr"}
        aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
        yield triton.compile(
            ASTSource(getattr(module, launch.function), types, {OVERLAPPED: architecture == 90}, aligned),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True},
        )


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", COMPILED)
def test_cubins(name: str, architecture: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiled in compiled_launches(generate(*COMPILED[name]), architecture, tmp_path, monkeypatch):
        assert compiled.asm["cubin"][:4] == b"\x7fELF"
        assert compiled.metadata.global_scratch_size == compiled.metadata.profile_scratch_size == 0
        code = compiled.asm["ptx"]
        if architecture == 90:  # nothing is read or written before the launch before has ended
            touches = [code.index(word) for word in ("ld.global", "cp.async", "st.global") if word in code]
            assert code.index("griddepcontrol.wait") < min(*touches, code.index("griddepcontrol.launch_dependents"))
        else:
            assert "griddepcontrol" not in code
        if name in ("bfloat16", "attention", "listed"):
            assert "mma" in compiled.asm["ptx"]


SUMMED = {
    "product": "MatMul(MatMul(x, a), b)",
    "reduction": "ReduceSum[axes=(-1,),keepdims=false](Mul(tall, wide))",
}


@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_products_stay_sums(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton makes a product of matrices of them; before 3.7 in TF32, and with twice the sum of four terms."""
    types = {"x": tensor(F32, 12, 4), "a": tensor(F32, 4, 4), "b": tensor(F32, 4, 12)}
    types |= {"tall": tensor(F32, 12, 1, 4), "wide": tensor(F32, 1, 12, 4)}
    root = term(SUMMED[name])
    used = {leaf.name for leaf in variables([root])}
    kernel = lower(name, {name: type_ for name, type_ in types.items() if name in used}, [("y", root)])
    source = generate(kernel, cut_of(kernel, m=16, n=16, k=16))
    assert "tl.dot" not in source.text
    for compiled in compiled_launches(source, 90, tmp_path, monkeypatch):
        assert "tt.dot" not in compiled.asm["ttir"]


def fused_with_other_threads(ptx: str) -> list[str]:
    """Additions of what another thread has to a product of this one that is not rounded, or that the assembler may leave so."""
    products, exchanged, fused = set[str](), set[str](), list[str]()
    for line in ptx.splitlines():
        operation, _, rest = line.split("//")[0].strip().rstrip(";").partition(" ")
        made, *operands = (word.strip() for word in rest.split(","))
        if operation == "mul.f32":
            products.add(made)
        elif operation == "shfl.sync.bfly.b32":
            exchanged.add(made)
        elif operation == "fma.rn.f32":
            fused += [line.strip()] if operands[2] in exchanged else []
        elif operation == "add.f32":
            fused += [line.strip()] if exchanged & set(operands) and products & set(operands) else []
    return fused


AGREED = {
    "scores": heads_attention(2, 5, 5, 3, 14),
    "scores of halves with a bias": kernel_of_terms(
        "biased",
        {**{name: tensor(F16, 3, 5, 14) for name in "qk"}, "v": tensor(F32, 3, 5, 14), "bias": tensor(F32, 14)},
        {"y": "MatMul(Softmax[axis=-1](MatMul(Add(Cast[to=float](q), bias), Transpose[perm=(1,0)](Cast[to=float](k)))), v)"},
    ),
    "reduction": kernel_of_terms(
        "reduced", {name: tensor(F32, 8, 16) for name in "xw"}, {"y": "ReduceSum[axes=(-1,),keepdims=false](Mul(x, w))"}
    ),
    "variance": skip_layer_norm(2, 3, 16),
}


@pytest.mark.parametrize("name", AGREED)
def test_threads_that_hold_one_sum_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two would round the other's product and not its own: one's scores would not be those of a row's sum of weights."""
    source = generate(AGREED[name], cut_of(AGREED[name], s=1, t=16))
    assert "tl.sum(" in source.text and "tl.dot(" not in source.text
    for compiled in compiled_launches(source, 90, tmp_path, monkeypatch):
        assert "shfl.sync.bfly" in compiled.asm["ptx"]
        assert fused_with_other_threads(compiled.asm["ptx"]) == []


LOG2E = "0f3FB8AA3B"
"""In PTX."""


@pytest.mark.parametrize("root", ["Softmax(Mul(x, w))", "Softmax(Mul(x, 0.3))", "MatMul(Softmax(Mul(x, w)), v)"])
def test_the_greatest_product_is_not_greater_than_itself(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is subtracted from a product that is not rounded: the greatest of them is."""
    types = {"x": tensor(F32, 4, 32), "w": tensor(F32, 4, 32), "v": tensor(F32, 32, 16)}
    used = {leaf.name for leaf in variables([term(root)])}
    kernel = lower("softmax", {name: type_ for name, type_ in types.items() if name in used}, [("y", term(root))])
    for compiled in compiled_launches(generate(kernel, cut_of(kernel, m=1, n=16, k=16)), 90, tmp_path, monkeypatch):
        lines = [re.split(r"[\s,;]+", line.strip()) for line in compiled.asm["ptx"].splitlines()]
        negated = {line[1] for line in lines if line[0] == "neg.f32"}
        assert any(line[0].startswith("ex2.approx") for line in lines)
        fused = [line for line in lines if line[0] == "fma.rn.f32" and line[4] in negated]
        assert [line for line in fused if line[3] != LOG2E] == []  # what that leaves is what f32_exp asks for


def test_a_product_whose_sign_tells_at_0_is_written_as_it_is() -> None:
    types = {"x": tensor(F32, 4, 32), "w": tensor(F32, 4, 32)}
    for outputs, apart in (("Softmax(Mul(x, w))",), True), (("Softmax(Mul(x, w))", "Mul(x, w)"), False):
        kernel = lower("softmax", types, [(f"y{i}", term(root)) for i, root in enumerate(outputs)])
        assert ("0.0 - (0.0 - " in generate(kernel, cut_of(kernel, m=1)).text) is apart


def test_sums_of_products_of_halves_need_no_zero() -> None:
    """A product of two has as many bits as a float in single precision."""
    kernel = heads_attention(2, 5, 5, 3, 14, F16)
    text = generate(kernel, cut_of(kernel, s=1, t=16)).text
    assert "dot = tl.sum(" in text and "0.0 - tl.sum(" not in text


def test_what_the_compiler_multiplies_in_tf32_is_refused(tmp_path: Path) -> None:
    kernel, schedules = lora(16, 32, 32, 16), cut(m=16, n=16, k=16)
    source = generate(kernel, schedules)
    loose = replace(source, text=source.text.replace(', input_precision="ieee"', ""))
    with Compiler(tmp_path, workers=1) as compiler:
        exact, refused = compiler.compile([("exact", source), ("loose", loose)], [Architecture(90)])
    assert not isinstance(exact, NotCompiled)
    assert isinstance(refused, NotCompiled) and "TF32" in str(refused)


@pytest.mark.parametrize(
    ("left", "right", "rounds"),
    [
        ("Cast[to=float](x)", "w", False),  # the right operand would lose digits
        ("Mul(Cast[to=float](x), 1.1)", "w", False),
        ("Mul(Cast[to=float](x), 1.1)", "Cast[to=float](v)", False),  # the left one is computed
        ("Cast[to=float](x)", "Cast[to=float](v)", False),  # halves as they come
        ("x", "Cast[to=float16](w)", True),
    ],
)
def test_products_in_single_precision_lose_no_digits(left: str, right: str, rounds: bool, interpreter: Interpreter) -> None:
    operands = {"x": tensor(F16, 32, 48), "w": tensor(F32, 48, 16), "v": tensor(F16, 48, 16)}
    root = term(f"MatMul({left}, {right})")
    types = {name: type_ for name, type_ in operands.items() if name in {leaf.name for leaf in variables([root])}}
    kernel = lower("product", types, [("y", root)])
    check(interpreter, kernel, default_schedules(kernel, DEVICES["h100"]), 1e-3 if rounds else 2e-6)
