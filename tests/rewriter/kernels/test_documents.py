"""Attention within documents that the run numbers: integers are compared in the kernel, and no mask is made of them before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import rewriter.kernels.c.shown as c_shown
from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.shown_keys import FEWEST_KEYS, shown_keys
from mugraph.blocks.statements import Compute
from mugraph.blocks.validity import check_kernel
from mugraph.onnx import load
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.text import parse_term
from rewriter.cost import get_device
from rewriter.cost.schedules import ranked, times
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton import generate, shown
from rewriter.run.optimize import optimize
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import BOOL, F16, F32, cut, kernel_of_terms, random_inputs, reference, tensor
from tests.support.masks import HEADS, LENGTH, SIZE, attention
from tests.support.models import random_feeds, session
from tools.fuzz.interpreter import Interpreter

NUMBERS = "numbers"
SAME = f"Unsqueeze[axes=(-3,)](Equal(Unsqueeze[axes=(-1,)]({NUMBERS}), Unsqueeze[axes=(-2,)]({NUMBERS})))"


def within_documents(b: Dim, h: Dim, s: Dim, d: int, dtype: DataType = F32, *, causal: bool = False) -> Kernel:
    """Axes b1 (batch), b0 (heads), s, d, t, e."""
    types = {name: tensor(dtype, b, h, s, d) for name in "qkv"} | {NUMBERS: tensor(DataType.INT64, b, s)}
    shown = f"And(CausalMask[columns={s},rows={s}](), {SAME})" if causal else SAME
    scores = f"Where({shown}, Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.25), -inf)"
    return kernel_of_terms("documents", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


def with_scores(kernel: Kernel, before: str, after: str) -> Kernel:
    """The kernel with another text in the thread graph of its scores."""
    (block,) = kernel.blocks
    (old,) = (s for s in block.statements if isinstance(s, Compute) and before in str(s.term))
    new = replace(old, term=parse_term(str(old.term).replace(before, after)))
    return replace(kernel, blocks=(replace(block, statements=tuple(new if s is old else s for s in block.statements)),))


@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_is_proved_for_all_sizes(causal: bool) -> None:
    for kernel in (within_documents(*map(symbol, "bhs"), 4, causal=causal), within_documents(2, 3, 7, 4, causal=causal)):
        assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None


@pytest.mark.parametrize("number", ["0.5", "1e20", "inf"])
def test_a_number_beside_integers_is_one_of_theirs(number: str) -> None:
    """In Triton it gets their type, and becomes another there."""
    types = {"n": tensor(DataType.INT64, symbol("a")), "x": tensor(F32, symbol("a"))}
    wrong = kernel_of_terms("wrong", types, {"y": f"Where(Less(n, {number}), x, 0.0)"})
    assert "beside integers" in str(why_not_proved(wrong))
    with pytest.raises(NotGenerated, match="beside an integer"):
        generate(wrong, cut(1))
    right = kernel_of_terms("right", types, {"y": "Where(Less(n, 2.0), x, 0.0)"})
    assert why_not_proved(right) is None and interpret(right, LEAST_TESTS, 0) is None and generate(right, cut(1))


def test_what_is_computed_in_floats_is_no_integer() -> None:
    types = {"n": tensor(DataType.INT64, symbol("a")), "x": tensor(F32, symbol("a"))}
    right = kernel_of_terms("k", types, {"y": "Where(Less(n, 2.0), x, 0.0)"})
    with pytest.raises(NotGenerated, match="a float beside an integer"):
        generate(with_scores(right, "2.0", "Mul(3.0, 0.5)"), cut(1))


def test_truth_values_that_are_counted_are_compared_with_integers() -> None:
    types = {"n": tensor(DataType.INT64, symbol("a")), "b": tensor(DataType.BOOL, symbol("a")), "x": tensor(F32, symbol("a"))}
    counted = kernel_of_terms("counted", types, {"y": "Where(Equal(n, Cast[to=int64](b)), x, 0.0)"})
    assert interpret(counted, LEAST_TESTS, 0) is None


EQUAL = f"Equal({NUMBERS}_tile, {NUMBERS}_tile2)"


@pytest.mark.parametrize("other", [f"Equal({NUMBERS}_tile, {NUMBERS}_tile)", f"Less({NUMBERS}_tile, {NUMBERS}_tile2)"])
def test_another_comparison_is_not_proved(other: str) -> None:
    mutant = with_scores(within_documents(2, 3, 7, 4), EQUAL, other)
    check_kernel(mutant)
    assert why_not_proved(mutant) is not None and interpret(mutant, LEAST_TESTS, 0) is not None


@pytest.mark.parametrize("narrow", ["Cast[to=int32]({})", "Cast[to=float]({})", "Add({0}, {0})"])
def test_integers_that_may_wrap_around_or_be_rounded_are_not_proved(narrow: str) -> None:
    """Of real numbers the sides are equal."""
    inner = [narrow.format(f"{NUMBERS}_tile{end}") for end in ("", "2")]
    mutant = with_scores(within_documents(2, 3, 7, 4), EQUAL, f"Equal({inner[0]}, {inner[1]})")
    assert "of integers" in str(why_not_proved(mutant))


@pytest.mark.parametrize(("split", "s", "t", "causal"), [(1, 16, 16, False), (2, 16, 16, True), (1, 32, 16, True)])
def test_numbers_are_compared_exactly(interpreter: Interpreter, split: int, s: int, t: int, causal: bool) -> None:
    kernel = within_documents(2, 3, 50, 16, causal=causal)
    numbers = np.stack([np.arange(50) // 20, np.arange(50) % 2]) + (1 << 40)  # floats of 32 bits do not tell them apart
    inputs = {**random_inputs(kernel, 1), NUMBERS: numbers}
    (wanted,) = reference(kernel, inputs)
    (computed,) = interpreter.run(kernel, cut(split, s=s, t=t), inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


# Keys that no row of a tile sees


@pytest.fixture
def looking_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks look at the keys first, however few they are."""
    for text in (c_shown, shown):
        monkeypatch.setattr(text, "FEWEST_KEYS", 1)


def beside(kernel: Kernel, **given: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs of a kernel, those that are not given random."""
    drawn = replace(kernel, inputs=tuple(t for t in kernel.inputs if t.name not in given))
    return {**random_inputs(drawn, 1), **given}


def prefixed_by_input(h: Dim, s: Dim, d: int, dtype: DataType = F32) -> Kernel:
    """All see the keys that the run says, and those that come no later than they do. Axes b0 (heads), s, d, t, e."""
    types = {name: tensor(dtype, h, s, d) for name in "qkv"} | {"early": tensor(DataType.BOOL, s)}
    scores = f"Where(Or(early, CausalMask[columns={s},rows={s}]()), Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.25), -inf)"
    return kernel_of_terms("prefixed", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


DOCUMENTS = {
    "in order": lambda n: np.sort(np.random.default_rng(n).integers(0, 5, n)),
    "in any order": lambda n: np.random.default_rng(n).integers(-(1 << 60), 1 << 60, 4)[np.arange(n) * 4 // n],
    "in turns": lambda n: np.arange(n) % 3,
    "one": lambda n: np.full(n, -7),
    "each its own": lambda n: np.arange(n) * 5 - 100,
    "ends of the range": lambda n: np.where(np.arange(n) < n // 2, np.iinfo(np.int64).max, np.iinfo(np.int64).min),
}


@pytest.mark.usefixtures("looking_always")
@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize(("split", "causal", "length"), [(1, False, 70), (3, False, 70), (2, True, 70), (1, True, 64)])
def test_whatever_the_numbers_are_no_key_is_missed(
    interpreter: Interpreter, documents: str, split: int, causal: bool, length: int
) -> None:
    kernel = within_documents(1, 2, length, 16, causal=causal)
    inputs = {**random_inputs(kernel, 1), NUMBERS: DOCUMENTS[documents](length)[None]}
    (wanted,) = reference(kernel, inputs)
    (computed,) = interpreter.run(kernel, cut(split, s=16, t=16), inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("looking_always")
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_other_documents_are_not_visited(interpreter: Interpreter, causal: bool) -> None:
    kernel = within_documents(1, 2, 96, 16, causal=causal)
    inputs = {**random_inputs(kernel, 1), NUMBERS: np.array([9] * 32 + [4] * 32 + [5] * 32)[None]}
    (wanted,) = reference(kernel, inputs)
    for name in "kv":
        inputs[name][..., 32:64, :] = np.nan
    (computed,) = interpreter.run(kernel, cut(s=16, t=16), inputs)
    assert np.isnan(computed[..., 32:64, :]).all()
    for rows in (slice(0, 32), slice(64, 96)):
        np.testing.assert_allclose(computed[..., rows, :], wanted[..., rows, :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [FEWEST_KEYS, FEWEST_KEYS + 40])
def test_long_loops_are_looked_at_and_short_ones_are_not(interpreter: Interpreter, length: int) -> None:
    for size, is_looked_at in ((length, True), (FEWEST_KEYS - 1, False)):
        kernel = within_documents(1, 1, symbol("n"), 16)
        numbers = np.arange(size) // 300
        inputs = {n: x[:, :, :size] for n, x in random_inputs(within_documents(1, 1, length, 16), 1).items() if n in "qkv"}
        (wanted,) = reference(kernel, {**inputs, NUMBERS: numbers[None]})
        for name in "kv":
            inputs[name][..., 384:, :] = np.nan  # of the other document but for the tile in which it begins
        (computed,) = interpreter.run(kernel, cut(s=64, t=64), {**inputs, NUMBERS: numbers[None]})
        assert np.isnan(computed[..., 320:, :]).all()
        if is_looked_at:
            np.testing.assert_allclose(computed[..., :256, :], wanted[..., :256, :], rtol=0, atol=1e-5)
        else:
            assert np.isnan(computed).all()


@pytest.mark.usefixtures("looking_always")
@pytest.mark.parametrize("split", [1, 2])
def test_the_loop_ends_behind_a_prefix_that_the_run_tells(interpreter: Interpreter, split: int) -> None:
    kernel = prefixed_by_input(2, 70, 16)
    assert why_not_proved(kernel) is None
    for prefix in (0, 20, 70):
        inputs = beside(kernel, early=np.arange(70) < prefix)
        (wanted,) = reference(kernel, inputs)
        for name in "kv":
            inputs[name][:, 64:] = np.nan  # rows of the first four tiles see 64 keys at most, unless the prefix is longer
        (computed,) = interpreter.run(kernel, cut(split, s=16, t=16), inputs)
        if prefix <= 64:
            np.testing.assert_allclose(computed[:, :64], wanted[:, :64], rtol=0, atol=1e-5)
        assert np.isnan(computed[:, 64 if prefix <= 64 else 0 :]).all()


@pytest.mark.usefixtures("looking_always")
def test_rows_that_see_nothing_are_no_numbers_as_before(interpreter: Interpreter) -> None:
    types = {name: tensor(F32, 2, 40, 16) for name in "qkv"} | {n: tensor(DataType.INT64, 40) for n in ("asks", "has")}
    same = "Equal(Unsqueeze[axes=(-1,)](asks), Unsqueeze[axes=(-2,)](has))"
    kernel = kernel_of_terms(
        "apart", types, {"y": f"MatMul(Softmax[axis=-1](Where({same}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)), v)"}
    )
    inputs = {**random_inputs(kernel, 1), "asks": np.arange(40) // 16 * 2, "has": np.full(40, 2)}
    (wanted,) = reference(kernel, inputs)
    (computed,) = interpreter.run(kernel, cut(s=16, t=16), inputs)
    np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)
    assert np.isnan(computed[:, :16]).all() and not np.isnan(computed[:, 16:32]).any()


CONDITIONS = [
    "Equal(ROW, KEY)",
    "Less(KEY, ROW)",
    "LessOrEqual(ROW, KEY)",
    "Not(Equal(KEY, ROW))",
    "Not(And(Greater(KEY, ROW), first))",
    "Or(And(GreaterOrEqual(KEY, ROW), first), Not(Or(Not(second), Less(KEY, 1.0))))",
    "And(Not(LessOrEqual(KEY, ROW)), Or(second, Equal(first, second)))",
    "Or(Equal(ROW, KEY), CausalMask[columns=23,rows=23]())",
    "Not(Or(Less(ROW, KEY), CausalMask[columns=23,rows=23]()))",
    "And(Equal(ROW, Cast[to=int64](narrow)), second)",
    "And(Or(Xor(first, second), second), Equal(ROW, KEY))",
    "And(Xor(first, second), GreaterOrEqual(ROW, KEY))",
]


@pytest.mark.usefixtures("looking_always")
@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_is_known_of_a_tile_holds_wherever_a_row_sees_the_key(condition: str, interpreter: Interpreter) -> None:
    """For the condition itself in NumPy, and for the kernel."""
    size = 23
    text = condition.replace("ROW", "Unsqueeze[axes=(-1,)](rows)").replace("KEY", "Unsqueeze[axes=(-2,)](keys)")
    text = text.replace("first", "Unsqueeze[axes=(-1,)](first)")
    types = {name: tensor(F32, size, 16) for name in "qkv"} | {n: tensor(DataType.INT64, size) for n in ("rows", "keys")}
    types |= {"narrow": tensor(DataType.INT32, size)} | {n: tensor(BOOL, size) for n in ("first", "second")}
    types = {name: type_ for name, type_ in types.items() if name in "qkv" or name in text}
    scores = f"Where({text}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    kernel = kernel_of_terms("shown", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    (block,), (schedule,) = kernel.blocks, cut(s=16, t=16)
    assert shown_keys(block, schedule, kernel.tensors) is not None
    generator = np.random.default_rng(len(condition))
    for _ in range(5):
        vectors = {name: generator.integers(-2, 3, size) for name in types if name not in "qkv"}
        if generator.random() < 0.5:
            vectors = {name: np.sort(numbers) for name, numbers in vectors.items()}
        numbers = {n: x > 1 if types[n].dtype == BOOL else x.astype(types[n].dtype.numpy()) for n, x in vectors.items()}
        inputs = beside(kernel, **numbers)
        (wanted,) = reference(kernel, inputs)
        (computed,) = interpreter.run(kernel, cut(s=16, t=16), inputs)
        np.testing.assert_allclose(computed, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("types", "condition"),
    [
        ({"pad": tensor(BOOL, 1, 40)}, "pad"),
        ({"shown": tensor(BOOL, 40, 40)}, "shown"),
        ({"a": tensor(F32, 40), "b": tensor(F32, 40)}, "Equal(Unsqueeze[axes=(-1,)](a), Unsqueeze[axes=(-2,)](b))"),
        ({"pad": tensor(BOOL, 1, 40)}, "And(pad, CausalMask[columns=40,rows=40]())"),
    ],
    ids=["of keys alone", "of pairs", "of floats", "padding beside positions"],
)
def test_what_says_nothing_of_rows_and_keys_together_is_not_looked_at(types: dict[str, TensorType], condition: str) -> None:
    every = {name: tensor(F32, 40, 16) for name in "qkv"} | types
    scores = f"Where({condition}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    kernel = kernel_of_terms("k", every, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    assert shown_keys(kernel.blocks[0], cut(s=16, t=16)[0], kernel.tensors) is None


def test_comparing_costs_little() -> None:
    def time_us(kernel: Kernel) -> float:
        return ranked(kernel, get_device("h200"), most=1)[0][0]

    types = {name: tensor(F16, 8, 12, 2048, 64) for name in "qkv"}
    whole = "MatMul(Softmax[axis=-1](Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.25)), v)"
    dense = time_us(kernel_of_terms("attention", types, {"y": whole}))
    assert dense < time_us(within_documents(8, 12, 2048, 64, F16)) < 1.5 * dense
    assert time_us(within_documents(8, 12, 2048, 64, F16, causal=True)) < dense, "what comes later is skipped"


def test_looking_at_the_keys_first_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_us() -> list[float]:
        return [ranked(within_documents(8, 12, n, 64, F16), get_device("h200"), most=1)[0][0] for n in (FEWEST_KEYS // 2, 2048)]

    short, long = time_us()
    monkeypatch.setattr(times, "FEWEST_KEYS", 1 << 20)
    assert time_us() == [short, pytest.approx(long, rel=0.15)] and time_us()[1] < long


def numbered(length: int | None, low: float = -np.inf, causal: bool = False) -> ModelProto:
    """Attention within documents, ``numbers`` of which are fed."""
    text = f"ni = Unsqueeze({NUMBERS}, last) nj = Unsqueeze({NUMBERS}, middle) same = Equal(ni, nj)"
    text += " past = LessOrEqual(key, query) seen = And(past, same)" if causal else " seen = Identity(same)"
    proto = attention(None, "Where", text, low)
    (lifted,) = (node for node in proto.graph.node if list(node.output) == ["seen4"])
    lifted.input[1] = "middle_of_four"
    constants = {"last": [-1], "middle": [-2], "middle_of_four": [-3]}
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in constants.items())
    proto.graph.input.append(onnx.helper.make_tensor_value_info(NUMBERS, TensorProto.INT64, ["b", "s"]))
    if length is not None:
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[1].Clear()
            value.type.tensor_type.shape.dim[1].dim_value = length
    return proto


@pytest.mark.parametrize(
    ("proto", "causal"),
    [(numbered(None), False), (numbered(LENGTH, float(np.finfo(np.float32).min)), False), (numbered(None, causal=True), True)],
    ids=["any length", "fixed and finite", "causal"],
)
def test_a_model_compares_in_its_kernel(proto: ModelProto, causal: bool, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "model.onnx")
    sizes = {**{name: (2, LENGTH, HEADS * SIZE) for name in "qkv"}, NUMBERS: (2, LENGTH)}
    optimize(tmp_path / "model.onnx", tmp_path / "out.onnx", device="h200", deterministic=True, shapes=sizes)
    (node,) = load(tmp_path / "out.onnx").graph.nodes()
    assert node.op == KERNEL and set(onnx.load(tmp_path / "out.onnx").graph.node[0].input) == {*"qkv", NUMBERS}
    assert ("CausalMask" in str(kernel_of(node.attrs).body)) is causal
    assert [a.keep is not None for block in kernel_of(node.attrs).blocks for a in block.accumulators] == [causal], "its bound"
    before, after = (session((tmp_path / name).read_bytes()) for name in ("model.onnx", "out.onnx"))
    is_fixed = isinstance(before.get_inputs()[0].shape[1], int)
    for length in (LENGTH,) if is_fixed else (LENGTH, 37, 1):
        feeds = {**random_feeds(before, b=2, s=length), NUMBERS: np.stack([np.arange(length) // 100, np.arange(length) % 3])}
        np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
