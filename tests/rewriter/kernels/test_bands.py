"""Masks that are bands of positions, constant and computed: what is recognised, what is not, and the kernels that come of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.statements import Predicate
from mugraph.blocks.text import format_kernel, kernel_from_json, kernel_to_json, parse_kernel
from mugraph.blocks.validity import check_kernel
from mugraph.domains.range import Range
from mugraph.onnx import load
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.term import AttrVar, var
from rewriter.cost import get_device
from rewriter.cost.schedules import ranked
from rewriter.run.optimize import optimize
from rules_db.solving import determined
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.guards import GUARDS
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import F16, F32, cut, kernel_of_terms, prefixed_attention, random_inputs, reference, tensor
from tests.support.masks import LENGTH, added, attention, kept_sources, within
from tests.support.models import random_feeds, session
from tools.fuzz.interpreter import Interpreter

# What the guard reads


def read(mask: np.ndarray, shape: tuple[Dim, ...] | None = None) -> tuple[object, ...] | None:
    """What a rule reads off the entries of a mask for ``band(m, $before, $after)``; ``None`` where it does not hold."""
    types = {np.dtype(bool): DataType.BOOL, np.dtype(np.float16): DataType.FLOAT16, np.dtype(np.float32): DataType.FLOAT}
    type_ = TensorType(types[mask.dtype], shape or mask.shape)
    facts = Facts(lambda term: type_, lambda term: Range.top(), {}, lambda term: mask)
    asked = Condition("band", (var("m"), AttrVar("before"), AttrVar("after")))
    binding = dict[str, object]()
    for variable in determined([asked], ()):
        try:
            binding[variable.name] = variable.value(facts)
        except ValueError:
            return None
    sides = binding["before"], binding["after"]
    assert GUARDS["band"].predicate(facts, var("m"), *sides) is True
    for other in ((binding["before"], 77), (77, binding["after"])):
        assert GUARDS["band"].predicate(facts, var("m"), *other) is False, "another width is another mask"
    return sides


@pytest.mark.parametrize(
    ("mask", "sides"),
    [
        (within(9, 9, 2, 3), (2, 3)),
        (within(9, 9, 0, 0), (0, 0)),
        (within(9, 9, 7, 0), (7, 0)),
        (within(9, 9, 8, 0), (9, 0)),  # every key before it: as wide as the mask
        (within(9, 9, 2, 8), (2, 9)),
        (within(5, 9, 0, 6), (0, 6)),
        (within(5, 9, -2, 3), (-2, 3)),  # keys that all lie ahead
        (np.broadcast_to(within(9, 9, 2, 3), (2, 3, 9, 9)), (2, 3)),
        (np.stack([within(9, 9, 2, 3)] * 2), (2, 3)),
        (added(within(9, 9, 2, 3)), (2, 3)),
        (added(within(9, 9, 2, 3), -65504, np.float16), (2, 3)),
        (added(within(9, 9, 2, 3), -3e38), (2, 3)),
        (added(within(9, 9, 2, 0)), (2, 0)),
        (added(within(9, 9, 8, 0)), None),  # which is causal
        (added(within(9, 9, 2, 3), -10000), None),  # which hides little of large scores
        (added(within(9, 9, 2, 3), np.inf), None),
        (added(within(9, 9, 2, 3)) + 1, None),
        (within(9, 9, 8, 8), None),  # hides nothing
        (within(9, 9, 8, -1), None),  # the first position sees nothing
        (within(9, 5, 2, 0), None),  # nor do the last ones
        (np.stack([within(9, 9, 2, 3), within(9, 9, 3, 3)]), None),
        (~within(9, 9, 2, 3), None),
        (np.ones(9, bool), None),
    ],
)
def test_what_a_mask_shows_is_read_off_its_entries(mask: np.ndarray, sides: tuple[int, int] | None) -> None:
    assert read(mask) == sides


def test_one_entry_makes_a_mask_no_band() -> None:
    mask = within(9, 9, 2, 3)
    for row in range(9):
        for column in range(9):
            other = mask.copy()
            other[row, column] ^= True
            assert read(other) is None and read(added(other)) is None


def test_a_side_without_a_limit_is_as_wide_as_the_mask_whatever_its_size() -> None:
    n = symbol("n")
    assert read(within(9, 9, 2, 8), (n, n)) == (2, n)


# A prefix that all positions see


def with_predicate(kernel: Kernel, **changes: object) -> Kernel:
    """The kernel with something else in its predicate."""
    (block,) = kernel.blocks
    statements = tuple(replace(s, **changes) if isinstance(s, Predicate) else s for s in block.statements)  # type: ignore[arg-type]
    return replace(kernel, blocks=(replace(block, statements=statements),))


def test_a_prefix_is_proved_for_all_sizes_and_another_mask_is_not() -> None:
    s, p = symbol("s"), symbol("p")
    for kernel in (
        prefixed_attention(2, s, s, 4, F32, 3),
        prefixed_attention(2, 7, 9, 4, F32, 4),
        prefixed_attention(2, s, s, 4, F32, p),
    ):
        assert parse_kernel(format_kernel(kernel)) == kernel == kernel_from_json(kernel_to_json(kernel))
        assert why_not_proved(kernel) is None
    kernel = prefixed_attention(2, 9, 9, 4, F32, 4)
    assert interpret(kernel, LEAST_TESTS, 0) is None
    (predicate,) = (x for x in kernel.blocks[0].statements if isinstance(x, Predicate))
    causal, first = predicate.conditions
    longer = replace(first, constant=4)
    for changes in (
        {"is_any": False},
        {"conditions": (causal,)},
        {"conditions": (causal, longer)},
        {"conditions": (first, first)},
    ):
        mutant = with_predicate(kernel, **changes)
        check_kernel(mutant)
        assert why_not_proved(mutant) is not None and interpret(mutant, LEAST_TESTS, 0) is not None


@pytest.mark.parametrize(("rows", "columns", "prefix"), [(40, 40, 13), (33, 50, 30), (40, 40, 200), (20, 20, 1)])
@pytest.mark.parametrize("split", [1, 2])
def test_kernels_see_a_prefix(interpreter: Interpreter, rows: int, columns: int, prefix: int, split: int) -> None:
    kernel = prefixed_attention(2, rows, columns, 16, F32, prefix)
    inputs = random_inputs(kernel, 1)
    (wanted,), schedules = reference(kernel, inputs), cut(split, s=16, t=16)
    (computed,) = interpreter.run(kernel, schedules, inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


def test_keys_behind_a_prefix_and_the_diagonal_are_not_visited(interpreter: Interpreter) -> None:
    kernel = prefixed_attention(2, 64, 64, 16, F32, 20)
    inputs = random_inputs(kernel, 1)
    (wanted,) = reference(kernel, inputs)
    for name in "kv":
        inputs[name][:, 32:] = np.nan  # rows of the first two tiles see 32 keys at most
    (computed,) = interpreter.run(kernel, cut(s=16, t=16), inputs)
    np.testing.assert_allclose(computed[:, :32], wanted[:, :32], rtol=0, atol=1e-5)
    assert np.isnan(computed[:, 32:]).all()


# Keys at multiples of a distance


def dilated_attention(s: Dim, d: int, step: int, window: Dim | None = None) -> Kernel:
    """Axes b0 (heads), s, d, t, e."""
    mask = f"DilatedMask[columns={s},rows={s},step={step}]()"
    if window is not None:
        mask = f"And({mask}, BandMask[after={window},before={window},columns={s},rows={s}]())"
    scores = f"Where({mask}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    types = {name: tensor(F32, 2, s, d) for name in "qkv"}
    return kernel_of_terms("dilated", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


@pytest.mark.parametrize("window", [None, 6, symbol("w")])
def test_a_dilated_mask_is_proved_for_all_sizes_and_another_step_is_not(window: Dim | None) -> None:
    kernel = dilated_attention(symbol("s"), 4, 3, window)
    assert parse_kernel(format_kernel(kernel)) == kernel == kernel_from_json(kernel_to_json(kernel))
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    (block,) = dilated_attention(9, 4, 3, 6 if window is not None else None).blocks
    kernel = replace(dilated_attention(9, 4, 2, 6 if window is not None else None), blocks=(block,))
    assert why_not_proved(kernel) is not None and interpret(kernel, LEAST_TESTS, 0) is not None


@pytest.mark.parametrize(("length", "step", "window"), [(50, 3, None), (50, 3, 12), (48, 4, 9), (17, 20, None)])
@pytest.mark.parametrize("split", [1, 2])
def test_kernels_see_multiples(interpreter: Interpreter, length: int, step: int, window: int | None, split: int) -> None:
    kernel = dilated_attention(length, 16, step, window)
    inputs = random_inputs(kernel, 1)
    (wanted,) = reference(kernel, inputs)
    (computed,) = interpreter.run(kernel, cut(split, s=16, t=16), inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


def test_a_dilated_window_bounds_its_loop(interpreter: Interpreter) -> None:
    kernel = dilated_attention(64, 16, 3, 6)
    inputs = random_inputs(kernel, 1)
    (wanted,) = reference(kernel, inputs)
    for name in "kv":
        inputs[name][:, 32:] = np.nan
    (computed,) = interpreter.run(kernel, cut(s=16, t=16), inputs)
    np.testing.assert_allclose(computed[:, :16], wanted[:, :16], rtol=0, atol=1e-5)


# Whole models


NEAR = "lowest = Sub(query, width) near = Greater(key, lowest) past = LessOrEqual(key, query) seen = And(near, past)"
PREFIX = "past = LessOrEqual(key, query) early = Less(key, width) seen = Or(early, past)"
EVERY = "left = Mod(ahead, step) every = Equal(left, zero)"
APART = "ahead = Sub(key, query) apart = Abs(ahead) seen = LessOrEqual(apart, width)"


@pytest.mark.parametrize(
    ("proto", "band"),
    [
        (attention(added(within(LENGTH, LENGTH, 16, 16))), f"after=16,before=16,columns={LENGTH}"),
        (attention(within(LENGTH, LENGTH, 7, 0), "Where"), f"after=0,before=7,columns={LENGTH}"),
        (attention(None, "Where", NEAR), "after=0,before=15,columns=s"),
        (attention(None, "Add", NEAR, float(np.finfo(np.float32).min)), "after=0,before=15,columns=s"),
        (attention(None, "Where", APART), "after=16,before=16,columns=s"),
    ],
    ids=["added", "chosen", "causal and computed", "finite and computed", "both sides and computed"],
)
def test_a_window_is_one_kernel_whose_loop_has_its_bounds(proto: ModelProto, band: str, tmp_path: Path) -> None:
    source = kept_sources(proto, tmp_path)
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    assert node.op_type == "Kernel" and list(node.input) == ["q", "k", "v"], "no mask is read"
    assert f"BandMask[{band}" in source and "t_first = tl.maximum" in source and "t_last = tl.minimum" in source


def test_a_prefix_is_one_kernel_whose_loop_ends_behind_it_or_the_diagonal(tmp_path: Path) -> None:
    source = kept_sources(attention(None, "Where", PREFIX), tmp_path)
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    assert node.op_type == "Kernel" and list(node.input) == ["q", "k", "v"], "no mask is read"
    assert "PrefixMask[columns=s,prefix=16,rows=s]" in source and "t_last = tl.minimum" in source and "tl.maximum" in source


def test_a_dilated_window_is_one_kernel(tmp_path: Path) -> None:
    text = f"{APART.replace('seen', 'near')} {EVERY} seen = And(every, near)"
    source = kept_sources(attention(None, "Where", text), tmp_path)
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    assert node.op_type == "Kernel" and list(node.input) == ["q", "k", "v"], "no mask is read"
    assert "BandMask[after=16,before=16," in source and "step=3" in source and "t_first = tl.maximum" in source


@pytest.mark.parametrize(
    ("text", "masks"),
    [
        (f"{APART.replace('seen', 'near')} {EVERY} seen = And(near, every)", {"BandMask", "DilatedMask"}),
        (
            f"past = LessOrEqual(key, query) ahead = Sub(query, key) {EVERY} seen = And(every, past)",
            {"CausalMask", "DilatedMask"},
        ),
        (f"ahead = Sub(query, key) {EVERY} seen = Identity(every)", {"DilatedMask"}),
        ("ahead = Sub(query, key) left = Mod(ahead, step) seen = Equal(left, one)", set()),
        ("ahead = Sub(query, key) left = Mod(ahead, step) seen = Greater(left, zero)", set()),
        ("ahead = Add(query, key) left = Mod(ahead, step) seen = Equal(left, zero)", set()),
        ("ahead = Sub(query, key) left = Mod<fmod: int = 1>(ahead, step) seen = Equal(left, zero)", set()),
    ],
    ids=["in a window", "causal", "alone", "another remainder", "what is no multiple", "sums", "the other Mod"],
)
def test_a_dilated_mask_keeps_its_formula(text: str, masks: set[str], tmp_path: Path) -> None:
    onnx.save(attention(None, "Where", text), tmp_path / "model.onnx")
    read = {node.op for node in load(tmp_path / "model.onnx").graph.nodes()}
    assert {op for op in read if op.endswith("Mask")} == masks


def test_a_prefix_that_the_run_tells_is_a_mask_of_keys(tmp_path: Path) -> None:
    proto = attention(None, "Where", PREFIX.replace("width", "prefix"))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("prefix", onnx.TensorProto.INT64, []))
    onnx.save(proto, tmp_path / "model.onnx")
    sizes = {name: (2, LENGTH, 64) for name in "qkv"}
    optimize(tmp_path / "model.onnx", tmp_path / "out.onnx", device="h200", deterministic=True, shapes=sizes)
    kernels = [kernel_of(n.attrs) for n in load(tmp_path / "out.onnx").graph.nodes() if n.op == KERNEL]
    assert ["CausalMask" in str(kernel.body) and "Or(" in str(kernel.body) for kernel in kernels] == [True]
    before, after = (session((tmp_path / name).read_bytes()) for name in ("model.onnx", "out.onnx"))
    for length, prefix in ((LENGTH, 100), (40, 0), (40, 64)):
        feeds = {**random_feeds(before, b=2, s=length), "prefix": np.array(prefix)}
        np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0], rtol=1e-4, atol=1e-5)


def test_what_is_no_band_is_read_as_it_is(tmp_path: Path) -> None:
    almost = within(LENGTH, LENGTH, 16, 16)
    almost[100, 40] = True
    assert "BandMask" not in kept_sources(attention(almost, "Where"), tmp_path)


def test_a_row_that_sees_nothing_keeps_its_mask(tmp_path: Path) -> None:
    seen = within(LENGTH, LENGTH, 16, -1)  # nothing is before the first position
    assert "BandMask" not in kept_sources(attention(added(seen, float(np.finfo(np.float32).min))), tmp_path)


# What it is likely to take


def microseconds(before: int, after: int) -> float:
    """The estimate for twelve heads of 64 side by side, 8×2048 positions, in half precision on an H200."""
    types = {x: tensor(F16, 8, 2048, 768) for x in "qkv"}
    heads = {x: f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(12,64)]({x}))" for x in "qkv"}
    scores = f"Mul(MatMul({heads['q']}, Transpose[perm=(1,0)]({heads['k']})), 0.125)"
    scores = f"Where(BandMask[after={after},before={before},columns=2048,rows=2048](), {scores}, -inf)"
    attended = f"Transpose[perm=(1,0,2)](MatMul(Softmax[axis=-1]({scores}), {heads['v']}))"
    kernel = kernel_of_terms("attention", types, {"y": f"Reshape[drop=2,shape=(768,)]({attended})"})
    return ranked(kernel, get_device("h200"), most=1)[0][0]


def test_the_estimate_follows_the_prefix() -> None:
    types = {x: tensor(F16, 8, 12, 2048, 64) for x in "qkv"}

    def time_us(mask: str) -> float:
        scores = f"Where({mask}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.125), -inf)"
        kernel = kernel_of_terms("attention", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
        return ranked(kernel, get_device("h200"), most=1)[0][0]

    times = [time_us(f"PrefixMask[columns=2048,prefix={prefix},rows=2048]()") for prefix in (1, 512, 1024, 2048)]
    assert times == sorted(times) and times[-1] > 1.4 * times[0]
    assert times[0] == pytest.approx(time_us("CausalMask[columns=2048,rows=2048]()"), rel=0.1)


def test_the_estimate_follows_the_width() -> None:
    times = [microseconds(width, 0) for width in (64, 256, 512, 1024, 2048)]
    assert times == sorted(times) and times[0] < 150
    assert 2.5 * times[0] < times[-1] and microseconds(64, 64) < 150
    assert microseconds(0, 512) == pytest.approx(microseconds(512, 0), rel=0.2)
