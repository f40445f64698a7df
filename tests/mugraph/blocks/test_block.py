"""Block graphs: validity, exact interpretation in floats and finite fields, text, pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.blocks.block import Block, Kernel, renamed_values
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.picture import svg
from mugraph.blocks.schedule import LIMITS, Schedule, check_fits, check_schedule
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Index,
    InvalidBlock,
    Load,
    Predicate,
    Reduce,
    Store,
    view,
)
from mugraph.blocks.text import (
    format_kernel,
    kernel_from_json,
    kernel_to_json,
    parse_kernel,
    parse_statement,
    schedule_from_json,
    schedule_to_json,
)
from mugraph.blocks.validity import check_kernel
from mugraph.domains import FiniteField, Real, Symbolic
from mugraph.terms.shape import ShapeError, symbol
from mugraph.terms.text import TextError
from tests.support.block_kernels import (
    F16,
    F32,
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
    term,
    two_blocks,
)
from tests.support.kernel_help import content

EXACT = {
    "skip_layer_norm": (skip_layer_norm(2, 3, 5), cut(m=4)),
    "softmax": (softmax(5, 7), cut(m=2)),
    "bias_gelu": (bias_gelu(3, 5), cut()),
    "rms_norm_matmul": (rms_norm_matmul(5, 11, 6), cut(m=2, n=4, k=4)),
    "rms_norm_matmul split": (rms_norm_matmul(5, 11, 6), cut(split=3, m=2, n=4, k=2)),
    "gated_mlp": (gated_mlp(3, 5, 6), cut(m=2, n=4, k=2)),
    "lora": (lora(3, 5, 6, 2), cut(m=2, n=4, k=2)),
    "lora split": (lora(3, 5, 6, 2), cut(split=2, m=2, n=4, k=2)),
    "batched": (batched_matmul(2, 3, 5, 6), cut(m=2, n=4, k=2)),
    "attention": (heads_attention(2, 3, 7, 2, 4), cut(s=2, t=2)),
    "attention split": (heads_attention(2, 3, 7, 2, 4), cut(split=3, s=2, t=2)),
    "qk_norm": (qk_norm(2, 3, 5, 4), cut(split=2, s=2, t=2)),
    "grouped": (grouped_attention(1, 3, 2, 2, 4), cut(s=2, t=2, b0=2)),
    "shared keys": (shared_keys(2, 3, 4), cut(s=2, t=2, b0=4)),
    "joined rows": (joined_rows(3, 2, 3), cut(m=2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_block_graph_equals_its_body_in_a_finite_field(name: str) -> None:
    kernel, schedules = EXACT[name]
    for seed in (1, 2):
        field = FiniteField(seed, prime=seed)
        generator = np.random.default_rng(seed)
        inputs = {x.name: field.random(generator, x.type.shape) for x in kernel.inputs}
        pairs = zip(evaluate_kernel(kernel, field, inputs, schedules), evaluate_body(kernel, field, inputs), strict=True)
        for computed, wanted in pairs:
            np.testing.assert_array_equal(computed.p, wanted.p)


@pytest.mark.parametrize(
    ("kernel", "schedules"),
    [
        (lora(2, 3, 2, 2), cut(split=2, n=2)),
        (heads_attention(1, 2, 3, 1, 2), cut(split=2)),
        (rms_norm_matmul(2, 3, 2), cut(m=2, n=2, k=2)),
    ],
)
def test_a_block_graph_equals_its_body_as_polynomials(kernel: Kernel, schedules: tuple[Schedule]) -> None:
    domain = Symbolic()
    inputs = {x.name: domain.input(x.name, x.type.shape) for x in kernel.inputs}
    (computed,), (wanted,) = evaluate_kernel(kernel, domain, inputs, schedules), evaluate_body(kernel, domain, inputs)
    assert np.all(computed == wanted)


MISTAKES = {
    "a wrong epilogue": (
        "rms_norm_matmul",
        "y_value = Mul(total, Div(1.0, Sqrt(Add(Div(row_sum, 11.0), 1e-05))))",
        "y_value = Mul(total, Div(1.0, Sqrt(row_sum)))",
    ),
    "the other operand": ("lora", "load b[r, n]", "load b[n{modulo=2}:2, r{modulo=6}:6]"),
    "no mask": ("attention", "scores = Add(Mul(dot, 0.25), mask_tile)", "scores = Mul(dot, 0.25)"),
    "no normalisation": ("attention", "y_value = Mul(weighted, share)", "y_value = Mul(weighted, 1.0)"),
    "another head": ("grouped", "b1{offset=4}:8", "b0{offset=4}:8"),
    "a head for each query": ("shared keys", "k[b1, t, b0{divide=2}:2, d]", "k[b1, t, b0{modulo=2}:2, d]"),
    "the first part again": ("joined rows", "load b[m, n{shift=1,modulo=3}:3]", "load b[m, n{modulo=3}:3]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_block_graph_is_found_out(mistake: str) -> None:
    name, right, wrong = MISTAKES[mistake]
    kernel, schedules = EXACT[name]
    text = format_kernel(kernel)
    assert right in text, text
    broken = parse_kernel(text.replace(right, wrong))
    field = FiniteField(3)
    inputs = {x.name: field.random(np.random.default_rng(3), x.type.shape) for x in kernel.inputs}
    (computed,), (wanted,) = evaluate_kernel(broken, field, inputs, schedules), evaluate_body(broken, field, inputs)
    assert np.any(computed.p != wanted.p)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4, 8)), st.integers(1, 4))
def test_attention_over_ragged_tiles_and_parts(s: int, t: int, rows: int, keys: int, split: int) -> None:
    kernel = sized(partial(heads_attention, b=1, h=2, d=4), F32, s=s, t=t)
    inputs = {n: x.astype(np.float64) for n, x in random_inputs(kernel, s).items()}
    (computed,) = evaluate_kernel(kernel, Real(), inputs, cut_of(kernel, split=split, s=rows, t=keys))
    np.testing.assert_allclose(computed, reference(kernel, inputs)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("split", [1, 2])
def test_causal_attention_counts_unseen_keys_as_minus_infinity(split: int) -> None:
    """The first rows see no key of the later tiles, whose states are then the identity."""
    kernel = causal_attention(2, 7, 7, 4)
    inputs = {n: x if x.dtype == bool else x.astype(np.float64) for n, x in random_inputs(kernel, 1).items()}
    (computed,) = evaluate_kernel(kernel, Real(), inputs, cut(split=split, s=2, t=2))
    np.testing.assert_allclose(computed, reference(kernel, inputs)[0], rtol=1e-12, atol=1e-12)


def test_a_symbolic_kernel_takes_the_sizes_of_its_inputs() -> None:
    kernel = heads_attention(symbol("b"), symbol("s"), symbol("t"), 2, 4)
    for b, s, t in ((1, 3, 5), (2, 1, 4)):
        inputs = {n: x.astype(np.float64) for n, x in random_inputs(kernel, 0, {"b": b, "s": s, "t": t}).items()}
        (computed,) = evaluate_kernel(kernel, Real(), inputs, cut(s=2, t=2))
        np.testing.assert_allclose(computed, reference(kernel, inputs)[0], rtol=1e-12, atol=1e-12)
    inputs["mask"] = inputs["mask"][..., 1:]
    with pytest.raises(ShapeError, match="mask has shape"):
        evaluate_kernel(kernel, Real(), inputs, cut(s=2, t=2))


# Monoids and several blocks


@pytest.mark.parametrize("split", [1, 2])
def test_welford_accumulates_mean_and_variance(split: int) -> None:
    welford = Accumulate(("count", "mean", "squares"), "welford", ("tile",))
    x = np.random.default_rng(0).standard_normal((3, 7)) + 1e4
    for store, wanted in (("mean", x.mean(1)), ("variance", x.var(1))):
        kernel = column_kernel(welford, Compute("variance", term("Div(squares, count)")), store=store)
        check_kernel(kernel)
        (computed,) = evaluate_kernel(kernel, Real(), {"x": x}, cut(split=split, m=2, n=2))
        np.testing.assert_allclose(computed, wanted, rtol=1e-10)


def test_maximum_and_chosen_entries() -> None:
    x = np.random.default_rng(0).standard_normal((3, 7))
    odd = Predicate("odd", (Affine(((Index("n", modulo=2), 1),), -1),))
    for monoid, wanted in (("max", x[:, 1::2].max(1)), ("sum", x[:, 1::2].sum(1))):
        kernel = column_kernel(odd, Accumulate(("total",), monoid, ("tile",), "odd"), store="total")
        check_kernel(kernel)
        (computed,) = evaluate_kernel(kernel, Real(), {"x": x}, cut(split=2, m=2, n=2))
        np.testing.assert_allclose(computed, wanted, rtol=1e-12)


def test_blocks_hand_tensors_on() -> None:
    kernel, schedules = two_blocks(), (*cut(split=2, m=2, n=2), *cut(m=2, n=4))
    check_kernel(kernel)
    field = FiniteField(5)
    inputs = {"x": field.random(np.random.default_rng(5), (3, 7))}
    np.testing.assert_array_equal(
        evaluate_kernel(kernel, field, inputs, schedules)[0].p, evaluate_body(kernel, field, inputs)[0].p
    )
    with pytest.raises(InvalidBlock, match="'squares' holds nothing yet"):
        check_kernel(replace(kernel, blocks=kernel.blocks[::-1]))


# Validity


def changed(name: str, right: str, wrong: str) -> Kernel:
    text = format_kernel(EXACT[name][0])
    assert right in text, text
    return parse_kernel(text.replace(right, wrong))


INVALID = {
    "an unknown tile": ("rms_norm_matmul", "dot(left, ", "dot(lift, ", "dot part: 'lift' is not defined before"),
    "an unknown tensor": ("softmax", "load x[", "load z[", "load x_tile: no tensor 'z'"),
    "a view that does not cover": ("softmax", "load x[m, n]", "load x[m]", "a view of 5 does not cover"),
    "a view that goes beyond": (
        "softmax",
        "load x[m, n]",
        "load x[m{offset=1}:5, n]",
        "dimension 0 of size 5 is addressed up to 6",
    ),
    "an index that may be negative": (
        "softmax",
        "load x[m, n]",
        "load x[m{shift=-1}, n]",
        "an index of m by what may be negative",
    ),
    "an axis cut into blocks is reduced": (
        "softmax",
        "max(x_tile; n)",
        "max(x_tile; m)",
        "m is cut into tiles: use an accumulator",
    ),
    "no elementwise operator": ("bias_gelu", "Add(x_tile, bias_tile)", "MatMul(x_tile, bias_tile)", "MatMul is not elementwise"),
    "a partial product is squared": (
        "rms_norm_matmul",
        "total = sum(part)",
        "z = Mul(part, part)\ntotal = sum(z)",
        "may only be summed up",
    ),
    "two accumulators on a path": (
        "rms_norm_matmul",
        "row_sum = sum(sum_part)",
        "z = Mul(sum_part, total)\nrow_sum = sum(z)",
        "joins a value of the loop and an accumulated one",
    ),
    "a value of the loop is saved": (
        "rms_norm_matmul",
        "store y[m, n] = y_value",
        "store y[m, n] = left",
        "the tile has the axis k, the view has not",
    ),
    "nothing accumulates": (
        "rms_norm_matmul",
        "total = sum(part)",
        "z = extent 4\ntotal = sum(z)",
        "accumulates what the loop does not change",
    ),
    "an unknown monoid's state": (
        "attention",
        "softmax(scores, v_tile)",
        "softmax(scores)",
        "softmax of 1 operands in 3 values",
    ),
    "blocks write over each other": ("batched", "store z[b0, m, n]", "store z[b0{modulo=1}:2, m, n]", "every position of b0"),
    "blocks along an axis save one tile": (
        "bias_gelu",
        "store y[m, n] = y_value",
        "store y[{}:3, n] = bias_tile",
        "blocks along m would write over each other",
    ),
    "a shift by a negative symbol": ("softmax", "load x[m, n]", "load x[m{shift=-1*d}, n]", "by what may be negative"),
    "a name twice": ("softmax", "x_tile = load x[m, n]", "x_tile = load x[m, n]\nx_tile = load x[m, n]", "the name is taken"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_block_graphs_are_refused(case: str) -> None:
    name, right, wrong, message = INVALID[case]
    with pytest.raises(InvalidBlock) as refused:
        check_kernel(changed(name, right, wrong))
    assert message in str(refused.value) and "block" in str(refused.value)


def test_invalid_kernels_are_refused() -> None:
    kernel = EXACT["skip_layer_norm"][0]
    block, (first, *others) = kernel.blocks[0], kernel.outputs
    without = replace(block, statements=tuple(s for s in block.statements if not (isinstance(s, Store) and s.tensor == "total")))
    for broken, message in (
        (replace(kernel, blocks=(without,)), "nothing saves total"),
        (replace(kernel, body=kernel.body[:1]), "2 outputs and 1 terms"),
        (replace(kernel, inputs=kernel.inputs[1:]), "which is no input"),
        (replace(kernel, blocks=(replace(block, name="a b"),)), "'a b' is no name"),
        (replace(kernel, blocks=(replace(block, grid=("z",)),)), "'z' is no axis"),
        (replace(kernel, outputs=(replace(first, type=replace(first.type, dtype=F16)), *others)), "the body gives"),
    ):
        with pytest.raises(InvalidBlock, match=message):
            check_kernel(broken)


def test_schedules_must_belong_to_the_block() -> None:
    product, rows = EXACT["rms_norm_matmul"][0].blocks[0], EXACT["softmax"][0].blocks[0]
    for block, schedule, message in (
        (product, Schedule((("k", 3),)), "no power of two"),
        (product, Schedule((("k", 1 << 70),)), "no power of two up to"),
        (product, Schedule((), group=1 << 70), "group 11805"),
        (rows, Schedule((("n", 4),)), "n, which is whole"),
        (rows, Schedule((("m", 4),), split=2), "a split without an accumulator"),
        (product, Schedule((), warps=3), "3 warps"),
        (product, Schedule((), stages=0), "stages 0"),
        (product, Schedule((), parts=4), "a float in 4 parts; it has 1 to 3"),
    ):
        with pytest.raises(InvalidBlock, match=message):
            check_schedule(block, schedule)


def test_memory_limits_name_block_operator_and_bytes() -> None:
    kernel = rms_norm_matmul(512, 4096, 4096, F16)
    check_fits(kernel, (Schedule((("m", 128), ("n", 128), ("k", 64)), warps=8, stages=3),), LIMITS["h200"])
    shared = (Schedule((("m", 64), ("n", 128), ("k", 256)), warps=8, stages=4),)
    with pytest.raises(
        InvalidBlock, match=r"block rms_norm_matmul: .* take 229376 bytes of shared memory, w_tile alone 196608; a10"
    ):
        check_fits(kernel, shared, LIMITS["a10"])
    check_fits(kernel, shared, LIMITS["h200"])
    with pytest.raises(InvalidBlock, match=r"bytes of tiles in registers, total alone 262144; 4 warps of h200 have 130560"):
        check_fits(kernel, (Schedule((("m", 256), ("n", 256), ("k", 32)), warps=4),), LIMITS["h200"])
    with pytest.raises(InvalidBlock, match="bytes of tensors"):
        check_fits(rms_norm_matmul(1 << 20, 1 << 15, 64, F16), cut(m=16, n=16, k=16), LIMITS["t4"])


# Maps, names, text and pictures


def test_maps_follow_from_the_names_of_the_axes() -> None:
    block = EXACT["lora"][0].blocks[0]
    maps = {s.tensor: block.maps(s) for s in block.statements if isinstance(s, Load | Store)}
    assert maps["x"] == ({"m": 0, "n": None}, 1)
    assert maps["w"] == ({"m": None, "n": 1}, 0)
    assert maps["b"] == ({"m": None, "n": 1}, None)
    assert maps["y"] == ({"m": 0, "n": 1}, None)
    assert block.phases["x_tile"] == "loop" and block.phases["b_tile"] == "fixed" and block.phases["total2"] == "after"
    assert block.value_axes["dot"] == ("m", "n")


@pytest.mark.parametrize("name", EXACT)
def test_text_and_json_round_trip(name: str) -> None:
    kernel, (schedule,) = EXACT[name]
    assert content(parse_kernel(format_kernel(kernel))) == content(kernel)
    assert content(kernel_from_json(json.loads(json.dumps(kernel_to_json(kernel))))) == content(kernel)
    for each in (schedule, replace(schedule, parts=3)):
        assert schedule_from_json(json.loads(json.dumps(schedule_to_json(each)))) == each
    assert "parts" not in schedule_to_json(schedule)


def test_text_of_every_statement() -> None:
    sizes = {"m": 4, "n": symbol("n")}
    for statement in (
        Load("a", "x", view(sizes, "m", (Index("n", shift=2, divide=3, modulo=symbol("n"), offset=1), symbol("n") + 4))),
        Load("a", "x", view(sizes, (Index(None, offset=2), 3), "m")),
        Dot("c", "a", "b", "n"),
        Reduce("c", "max", "a", ("m", "n")),
        Predicate("c", (Affine(((Index("m"), 1), (Index("n"), -2)), symbol("n") - 3), Affine(((Index("m"), 1),), -1))),
        Extent("c", symbol("n") * 4),
        Accumulate(("m1", "l", "o"), "softmax", ("a", "b"), "keep"),
        Accumulate(("total",), "sum", ("a",)),
        Store("y", "a", view(sizes, "m", "n")),
        Compute("c", term("Mul(a, 0.5)")),
    ):
        kernel = Kernel("k", (), (), (), (Block("b", tuple(sizes.items()), ("m",), "n", (statement,)),))
        assert content(parse_kernel(format_kernel(kernel))) == content(kernel), format_kernel(kernel)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a", "expected 'name = ...'"),
        ("a = load x[m{size=2}]", "expected shift, divide, modulo or offset"),
        ("a = load x[q]", "expected a size"),
        ("a, b = dot(x, y, m)", "an accumulator of several values"),
    ],
)
def test_unreadable_statements(line: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_statement(line, {"m": 4})
    with pytest.raises(TextError, match="line 4: "):
        parse_kernel(f"kernel k\nblock b\naxes m=4\n{line}\n")


def test_unreadable_json() -> None:
    value = kernel_to_json(EXACT["softmax"][0])
    for broken in ({**value, "blocks": [{}]}, {**value, "outputs": None}, {}):
        with pytest.raises(TextError, match="no kernel"):
            kernel_from_json(broken)
    with pytest.raises(TextError, match="no schedule"):
        schedule_from_json({"tiles": {}})


def test_the_digest_is_of_the_content() -> None:
    kernel = EXACT["attention"][0]
    names = {name: f"value_{i}" for i, name in enumerate(kernel.blocks[0].defined)}
    renamed = replace(kernel, name="other", blocks=(renamed_values(kernel.blocks[0], names),))
    assert renamed.digest == kernel.digest and renamed == kernel and len({renamed, kernel}) == 1
    assert content(renamed) != content(kernel) and EXACT["softmax"][0] != kernel
    assert changed("attention", "dot, 0.25", "dot, 0.5").digest != kernel.digest
    assert changed("attention", "load k[b1, t, b0, d]", "load k[b1, t, d, b0]").digest != kernel.digest
    block = kernel.blocks[0]
    for other in (replace(block, loop=None), replace(block, grid=block.grid[::-1]), replace(block, axes=block.axes[::-1])):
        assert replace(kernel, blocks=(other,)).digest != kernel.digest
    digests = [kernel.digest for kernel, _ in EXACT.values()]
    assert len(set(digests)) == len({format_kernel(kernel) for kernel, _ in EXACT.values()})


def test_pictures_show_three_levels_and_the_maps() -> None:
    picture = svg(EXACT["rms_norm_matmul"][0])
    for part in (
        "kernel graph: rms_norm_matmul",
        "block graph rms_norm_matmul",
        "for-loop: ⌈11/tile k⌉",
        "imap m→0, n→φ",
        "fmap k→1",
        "omap m→0, n→1",
        "accumulator",
        "stroke-dasharray",
        "#1 = Div(row_sum, 11.0)",
    ):
        assert part in picture, part
    assert svg(parse_kernel(format_kernel(EXACT["rms_norm_matmul"][0]))) == picture
    assert "block graph statistics" in svg(two_blocks()) and "squares" in svg(two_blocks())
    assert "for-loop" not in svg(masked_rows(2, 3, 4, 5))
