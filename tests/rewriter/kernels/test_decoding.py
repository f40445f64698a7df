"""Attention of one new position over a cache that the run grows: cache and new entries are read as they lie, heads in groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Affine, Compute, Dot, Factor, Index, InvalidBlock, Load, PlaceTile, Predicate, Store
from mugraph.blocks.text import format_kernel, kernel_from_json, kernel_to_json, parse_kernel
from mugraph.blocks.validity import check_kernel
from mugraph.terms.shape import DataType, Dim, evaluate_dim, symbol
from mugraph.terms.text import parse_term
from rewriter.kernels.text.analysis import chosen_loads
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton import generate
from rewriter.runtime.plan import Argument, Expression
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import F16, F32, kernel_of_terms, reference, tensor
from tools.fuzz.interpreter import Interpreter

BATCH, PAST = symbol("b"), symbol("p")
GROUPS, REPEATS, SIZE = 2, 4, 16


def over_cache(b: Dim, p: Dim, dtype: DataType = F32, repeats: int = REPEATS) -> Kernel:
    """Queries of ``GROUPS * repeats`` heads; keys and values of ``GROUPS``, ``p`` old ones and a new one."""
    cache = {f"{name}old": tensor(dtype, b, GROUPS, p, SIZE) for name in "kv"}
    new = {f"{name}new": tensor(dtype, b, GROUPS, 1, SIZE) for name in "kv"}
    types = {"q": tensor(dtype, b, GROUPS * repeats, 1, SIZE), **cache, **new}
    k, v = (
        f"Reshape[drop=4,shape=({GROUPS * repeats},{p + 1},{SIZE})](Expand[shape=({b},{GROUPS},{repeats},{p + 1},{SIZE})]("
        f"Unsqueeze[axes=(-3,)](Concat[axis=-2]({name}old, {name}new))))"
        for name in "kv"
    )
    scores = f"Mul(MatMul(q, Transpose[perm=(1,0)]({k})), 0.25)"
    return kernel_of_terms("decode", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), {v})"})


def inputs_of(kernel: Kernel, past: int, batch: int = 2) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(past)
    shapes = {"q": (batch, GROUPS * REPEATS, 1, SIZE)}
    shapes |= {f"{name}old": (batch, GROUPS, past, SIZE) for name in "kv"}
    shapes |= {f"{name}new": (batch, GROUPS, 1, SIZE) for name in "kv"}
    floats = [t for t in kernel.inputs if t.name in shapes]
    return {t.name: generator.standard_normal(shapes[t.name]).astype(t.type.dtype.numpy()) for t in floats}


def test_heads_that_share_keys_are_rows_of_one_block() -> None:
    kernel = over_cache(BATCH, PAST)
    (block,) = kernel.blocks
    assert block.grid == ("b0", "s") and block.sizes["s"] == REPEATS  # batch and key heads are one axis
    assert block.sizes["t"] == PAST + 1
    for load in block.loads:
        if block.phases[load.name] == "loop":
            assert "s" not in block.value_axes[load.name]
    check_kernel(kernel)
    assert interpret(kernel, LEAST_TESTS, 0) is None
    assert why_not_proved(kernel) is None


def test_heads_of_their_own_are_a_batch() -> None:
    (block,) = over_cache(BATCH, PAST, repeats=1).blocks
    assert "s" not in block.sizes


@pytest.mark.parametrize("past", [0, 1, 5, 40])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule((("b0", 1), ("s", 4), ("t", 16)), warps=4),
        Schedule((("b0", 1), ("s", 16), ("t", 16)), warps=4, split=3),
        Schedule((("b0", 1), ("s", 1), ("t", 32)), warps=1, split=2),
    ],
    ids=["rows", "matrix units, split", "heads apart, split"],
)
def test_the_kernel_attends_over_caches_of_any_length(interpreter: Interpreter, schedule: Schedule, past: int) -> None:
    kernel = over_cache(BATCH, PAST)
    inputs = inputs_of(kernel, past)
    (y,) = interpreter.run(kernel, [schedule], inputs)
    (expected,) = reference(kernel, inputs)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)


def test_what_an_empty_cache_does_not_have_is_not_read() -> None:
    source = generate(over_cache(BATCH, PAST, F16), [Schedule((("t", 16), ("s", 4)))])
    before, line = (line for line in source.text.splitlines() if "kold_tile = tl.load" in line)
    assert "== 0)" in line and "other=0" in line
    assert "%" not in before + line, "the place in the cache takes no division"


def test_tiles_within_the_cache_go_to_the_product_as_they_are_loaded() -> None:
    """The first loop ends at the last whole tile of the cache, of which there may be none; the second has the new key."""
    text = generate(over_cache(BATCH, PAST, F16), [Schedule((("t", 16), ("s", 16)))]).text
    first, second = text[text.index("    for t_start") :].split("    for t_start")[1:]
    assert "t_late = p // 16 * 16" in text and first.splitlines()[0] == " in range(0, tl.minimum((1+p), t_late), 16):"
    assert second.splitlines()[0] == " in range(tl.maximum(0, t_late), (1+p), 16):"
    assert "right = kold_tile\n" in first and "value = vold_tile\n" in first and "knew" not in first and "vnew" not in first
    assert "tl.where(within" in second and "knew_tile" in second


def test_a_number_of_the_keys_is_one_of_the_query() -> None:
    """Else every tile of keys is computed on its way to the product."""
    types = {"q": tensor(F16, 2, 1, SIZE), "k": tensor(F16, 2, 48, SIZE), "v": tensor(F16, 2, 48, SIZE)}
    scores = "MatMul(Mul(q, 0.5), Mul(Transpose[perm=(1,0)](k), 0.25))"
    kernel = kernel_of_terms("scaled", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    (block,) = kernel.blocks
    assert isinstance(block.defined[next(s.right for s in block.statements if isinstance(s, Dot))], Load)


HEADS = GROUPS * REPEATS
WIDTHS = {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE}
ROWS = 48
OPERATORS = {
    "Attention": f"Attention[is_causal=true,kv_num_heads={GROUPS},num_heads={HEADS},past=true,present=true,scale=0.25]",
    "capped": f"Attention[kv_num_heads={GROUPS},num_heads={HEADS},past=true,present=true,scale=0.25,softcap=2.0]",
    "GroupQueryAttention": f"GroupQueryAttention[kv_num_heads={GROUPS},num_heads={HEADS},past=true,scale=0.25]",
}


def operator_with_cache(operator: str, new: int = 1, past: Dim = PAST) -> Kernel:
    """An operator of ``new`` positions behind a cache, with what it returns; tables of a rotary embedding where it takes such."""
    types = {name: tensor(F32, BATCH, new, width) for name, width in WIDTHS.items()}
    types |= {f"{name}old": tensor(F32, BATCH, GROUPS, past, SIZE) for name in "kv"}
    if operator == "GroupQueryAttention":
        types |= {name: tensor(F32, ROWS, SIZE // 2) for name in ("cos", "sin")}
    outputs = {f"y{out}": f"{OPERATORS[operator]}.{out}({', '.join(types)})" for out in range(3)}
    return kernel_of_terms("operator", types, outputs)


def schedules_of(kernel: Kernel, split: int = 1) -> list[Schedule]:
    tiles = {"b0": 1, "b1": 1, "s": 4, "t": 16, "m": 4}
    return [
        Schedule(
            tuple((axis, tiles[axis]) for axis in (*block.grid, block.loop) if axis in tiles), split=split if block.loop else 1
        )
        for block in kernel.blocks
    ]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("new", "past"), [(1, 0), (1, 1), (1, 40), (3, 5), (3, 0), (4, 40)])
def test_operators_with_a_cache_are_one_kernel(interpreter: Interpreter, operator: str, new: int, past: int) -> None:
    """A launch attends over the cache and what is new, others append; of several positions each sees those before it."""
    kernel = operator_with_cache(operator, new, past if past == 5 else PAST)
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    assert [block.loop for block in kernel.blocks] == ["t", None]
    assert new > 1 or kernel.blocks[0].sizes["s"] == REPEATS
    generator = np.random.default_rng(past)
    sizes = {"b": 2, "p": past}
    shapes = {t.name: tuple(evaluate_dim(dim, sizes) for dim in t.type.shape) for t in kernel.inputs}
    inputs = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}  # type: ignore[arg-type]
    made = interpreter.run(kernel, schedules_of(kernel, split=2 if past > 16 else 1), inputs)
    for array, expected in zip(made, reference(kernel, inputs), strict=True):
        np.testing.assert_allclose(array, expected, rtol=3e-5, atol=3e-5)


def test_the_rows_of_a_table_behind_a_cache_stay_within_it() -> None:
    """A cache that is longer than the table is an error in onnxruntime; a kernel reads the last row, and nothing beyond."""
    kernel = operator_with_cache("GroupQueryAttention")
    (load, *_) = (load for load in kernel.blocks[0].loads if load.tensor == "cos")
    assert str(load.view[0].index.offset) == f"min({ROWS - 1},p)"
    assert parse_kernel(format_kernel(kernel)) == kernel == kernel_from_json(kernel_to_json(kernel))
    beyond = replace(load, view=(replace(load.view[0], index=replace(load.view[0].index, offset=PAST)), *load.view[1:]))
    block = replace(kernel.blocks[0], statements=tuple(beyond if s is load else s for s in kernel.blocks[0].statements))
    with pytest.raises(InvalidBlock, match="addressed up to"):
        check_kernel(replace(kernel, blocks=(block, *kernel.blocks[1:])))


def counted(rows: int) -> Kernel:
    """Queries over buffers of which the run tells how much counts."""
    keys = symbol("t")
    types = {"q": tensor(F32, BATCH, HEADS, rows, SIZE), **{name: tensor(F32, BATCH, GROUPS, keys, SIZE) for name in "kv"}}
    types |= {"n": tensor(DataType.INT64, BATCH)}
    return kernel_of_terms("counted", types, {"y": "Attention[is_causal=true,nonpad=true,scale=0.25](q, k, v, n)"})


@pytest.mark.parametrize("keys", [24, 600])
@pytest.mark.parametrize(("rows", "split"), [(1, 1), (1, 3), (3, 1)])
def test_as_many_keys_count_as_the_run_tells(interpreter: Interpreter, rows: int, split: int, keys: int) -> None:
    """A sequence without a key gives zeros, as ONNX has it."""
    kernel, generator = counted(rows), np.random.default_rng(keys)
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    inputs = {
        "q": generator.standard_normal((4, HEADS, rows, SIZE)),
        **{n: generator.standard_normal((4, GROUPS, keys, SIZE)) for n in "kv"},
    }
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()} | {"n": np.asarray([0, rows, 11, keys])}
    (y,) = interpreter.run(kernel, schedules_of(kernel, split), inputs)
    (expected,) = reference(kernel, inputs)
    assert (y[0] == 0).all() and (expected[0] == 0).all()
    np.testing.assert_allclose(y, expected, rtol=3e-5, atol=3e-5)


def test_tiles_of_keys_that_do_not_count_are_not_visited() -> None:
    text = generate(counted(1), schedules_of(counted(1))).text
    assert "t_lasts" in text and "place = t_at" in text


def counted_cache() -> Kernel:
    """One query a sequence over a cache, of which the run tells how much counts, and a new position behind it."""
    kernel = over_cache(BATCH, PAST)
    (body,) = kernel.body
    shown = (
        "Or(Less(Range[dtype=int64,limit=1+p,start=0](), Unsqueeze[axes=(-3,-2,-1)](n)), "
        "BandMask[after=p,before=-1*p,columns=1+p,rows=1]())"
    )
    masked = str(body).replace("Softmax[axis=-1](", f"Softmax[axis=-1](Where({shown}, ", 1)
    scores, values = masked.rsplit(", 0.25)), ", 1)
    types = {t.name: t.type for t in kernel.inputs} | {"n": tensor(DataType.INT64, BATCH)}
    return kernel_of_terms("counted", types, {"y": f"{scores}, 0.25), -inf)), {values}"})


@pytest.mark.parametrize(("past", "split"), [(0, 1), (24, 1), (24, 3), (600, 1), (600, 2), (1100, 3)])
def test_what_counts_of_a_cache_is_attended_to_with_what_is_new(interpreter: Interpreter, past: int, split: int) -> None:
    """What lies behind what counts, whatever it is, changes nothing, wherever the part of a split loop ends."""
    kernel = counted_cache()
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    inputs = inputs_of(kernel, past, batch=4) | {"n": np.asarray([0, past // 3, past, max(past - 1, 0)])}
    (y,) = interpreter.run(kernel, schedules_of(kernel, split), inputs)
    (expected,) = reference(kernel, inputs)
    np.testing.assert_allclose(y, expected, rtol=3e-5, atol=3e-5)
    for name in ("kold", "vold"):
        for sequence, count in enumerate(inputs["n"]):
            inputs[name][sequence, :, count:] = 7
    (other,) = interpreter.run(kernel, schedules_of(kernel, split), inputs)
    assert np.array_equal(other, y)


def test_tiles_of_a_cache_that_do_not_count_are_not_visited() -> None:
    """The first loop ends behind the last key that counts; the second, of the new key, has its own bounds."""
    text = generate(counted_cache(), schedules_of(counted_cache())).text
    first, second = text[text.index("    for t_start in range(0, tl.minimum((1+p), t_late)") :].split(
        "    for t_start in tl.range"
    )[1:]
    assert first.splitlines()[0].startswith("(t_from, t_to, 16") and "tl.max(t_lasts" in text
    assert second.splitlines()[0].startswith("(tl.maximum(0, t_late), (1+p), 16")


@pytest.mark.parametrize("change", ["later", "earlier", "turned", "rows"])
def test_wrong_places_are_not_proved(change: str) -> None:
    kernel = counted(3)
    (block,) = kernel.blocks
    (tile,) = (s for s in block.statements if isinstance(s, PlaceTile))
    (key, row), constant = tile.place.terms, tile.place.constant
    assert key == (Index("t"), 1) and row == (Index("s"), -1) and constant == 3
    wrong = {
        "later": Affine((key, row), constant + 1),
        "earlier": Affine((key, row), constant - 1),
        "turned": Affine((key, (Index("s"), 1)), constant),
        "rows": Affine((key,), constant),
    }[change]
    mutant = replace(block, statements=tuple(replace(tile, place=wrong) if s is tile else s for s in block.statements))
    assert why_not_proved(replace(kernel, blocks=(mutant,))) is not None
    assert replace(kernel, blocks=(mutant,)) != kernel and parse_kernel(format_kernel(kernel)) == kernel


APPENDED = "Concat[axis=-2]({0}old, {0}new)"


def appending(b: Dim, p: Dim, dtype: DataType = F32) -> Kernel:
    """Keys and values with a new position."""
    types = {f"{name}old": tensor(dtype, b, GROUPS, p, SIZE) for name in "kv"}
    types |= {f"{name}new": tensor(dtype, b, GROUPS, 1, SIZE) for name in "kv"}
    return kernel_of_terms("append", types, {f"{name}all": APPENDED.format(name) for name in "kv"})


@pytest.mark.parametrize("past", [0, 3, 16])
def test_one_kernel_appends_to_keys_and_values(interpreter: Interpreter, past: int) -> None:
    kernel = appending(BATCH, PAST)
    assert why_not_proved(kernel) is None and interpret(kernel, LEAST_TESTS, 0) is None
    inputs = inputs_of(kernel, past)
    made = interpreter.run(kernel, [Schedule((("b0", 1), ("m", 4)))], inputs)
    for name, array in zip("kv", made, strict=True):
        assert np.array_equal(array, np.concatenate([inputs[f"{name}old"], inputs[f"{name}new"]], axis=2))


def test_a_size_that_an_input_has_as_a_summand_is_known_to_the_run() -> None:
    """A kernel that reads the grown cache alone knows the old length by it."""
    grown = tensor(F16, BATCH, GROUPS, PAST + 1, SIZE)
    kernel = kernel_of_terms("scaled", {"k": grown}, {"y": "Mul(k, Softmax[axis=-1](k))"})
    source = generate(kernel, [Schedule((("m", 4),))])
    (launch,) = source.launches
    assert ("p", "i32") in launch.signature
    (place,) = (i for i, (name, _) in enumerate(launch.signature) if name == "p")
    assert launch.arguments[place] == Argument.int32(Expression.dimension(0, 2) - 1)
    with pytest.raises(NotGenerated, match="which is no dimension of an input"):
        generate(
            kernel_of_terms("scaled", {"k": tensor(F16, 2 * PAST + BATCH, 4)}, {"y": "Mul(k, Softmax[axis=-1](k))"}),
            [Schedule(())],
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where(p, new, old)", ("p", False)),
        ("Where(p, old, new)", ("p", True)),
        ("Where(p, new, Mul(old, Exp(old)))", ("p", False)),
        ("Where(p, Where(q, new, old), old)", None),
        ("Add(Where(p, new, old), old)", None),
        ("Where(old, new, new)", None),
    ],
)
def test_entries_that_count_elsewhere_are_loaded(text: str, expected: tuple[str, bool] | None) -> None:
    at = Index("t")
    statements = (
        Load("old", "x", (Factor(replace(at, modulo=PAST), PAST),)),
        Load("new", "y", (Factor(at, PAST + 1),)),
        Predicate("p", (Affine(((at, 1),), -PAST),)),
        Predicate("q", (Affine(((at, 1),), -2 * PAST),)),
        Compute("z", parse_term(text)),
        Store("out", "z", (Factor(at, PAST + 1),)),
    )
    chosen = chosen_loads(Block("b", (("t", PAST + 1),), ("t",), None, statements)).get("old")
    assert (None if chosen is None else (chosen.predicate, chosen.is_so)) == expected
    if chosen is not None:
        assert (chosen.view[0].index.modulo is None) == (expected == ("p", False)), "past the end of the part it is needed"
