"""Generated Triton source: right in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.blocks.block import Kernel, renamed_values
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import retyped
from mugraph.blocks.statements import Accumulate, Affine, Compute, Index, InvalidBlock, Predicate
from mugraph.terms.shape import DataType, Dim, symbol
from mugraph.terms.term import variables
from rewriter.cost.devices import DEVICES
from rewriter.cost.schedules import default_schedules
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.triton import NotGenerated, combination, generate
from tests.support.block_kernels import (
    BOOL,
    F16,
    F32,
    TOLERANCE,
    TOTALS,
    banded_attention,
    batched_matmul,
    bias_gelu,
    causal_attention,
    check,
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
    squares,
    tensor,
    term,
    two_blocks,
)
from tools.fuzz.interpreter import Interpreter

pytest.importorskip("triton")

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


@pytest.mark.parametrize("held", [1, 64, 8192])
@pytest.mark.parametrize("split", [2, 7, 12])
def test_parts_of_attention_are_read_together_a_row_a_block(
    interpreter: Interpreter, split: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few at once, or all; the last of them have no key, which leaves a row without any to the others."""
    monkeypatch.setattr(combination, "_MOST_HELD", held)
    kernel, schedules = heads_attention(2, 5, 9, 2, 16, F32), cut(split=split, s=4, t=1)
    text = generate(kernel, schedules).text
    at_once = min(1 << (split - 1).bit_length(), max(held // 16, 1))
    assert (f"tl.arange(0, {at_once})" in text[text.index("_combine(") :]) == (at_once > 1)
    check(interpreter, kernel, schedules, TOLERANCE[F32])
    feeds = {t.name: np.random.default_rng(0).standard_normal(t.type.shape).astype(np.float32) for t in kernel.inputs}
    (lower,), (wanted,) = (
        interpreter.run(kernel, schedules, feeds | {"mask": np.full_like(feeds["mask"], mask)}) for mask in (-1024, 0)
    )
    assert np.allclose(lower, wanted, atol=1e-3)  # parts that are not there weigh nothing, however low all scores are


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
