"""Attention of one new position over a cache that the run grows: cache and new entries are read as they lie, heads in groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Affine, Compute, Factor, Index, Load, Predicate, Store
from mugraph.blocks.validity import check_kernel
from mugraph.terms.shape import DataType, Dim, symbol
from mugraph.terms.text import parse_term
from rewriter.kernels.text.analysis import chosen_loads
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton import generate
from rewriter.runtime.plan import Argument, Expression
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, interpret
from tests.support.block_kernels import F16, F32, kernel_of_terms, reference, tensor
from tests.support.triton_help import Interpreter

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
    return {t.name: generator.standard_normal(shapes[t.name]).astype(t.type.dtype.numpy()) for t in kernel.inputs}


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
    (line,) = (line for line in source.text.splitlines() if "kold_tile = tl.load" in line)
    assert "== 0)" in line and "other=0" in line
    assert "%" not in line, "the place in the cache takes no division"


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
