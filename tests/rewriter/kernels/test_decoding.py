"""Attention of one new position over a cache that the run grows: cache and new entries are read as they lie, heads in groups."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.validity import check_kernel
from mugraph.terms.shape import DataType, Dim, symbol
from rewriter.kernels.triton import generate
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
