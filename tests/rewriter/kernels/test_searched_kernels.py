"""Kernels that a search finds, as Triton text: several block graphs with what they hold between them, several results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Dot
from rewriter.reference import compare
from rulegen.mugraphs.goals import Goal
from tests.support.block_kernels import random_inputs, reference
from tests.support.goals import NORM, RESIDUAL, goal, kernels
from tools.fuzz.interpreter import Interpreter

ROWS = goal("Div(x, Sqrt(ReduceSum[axes=(-1,),keepdims=true](Mul(x, x))))", x="mn")


@pytest.mark.parametrize(
    ("wanted", "sizes", "blocks"),
    [
        (NORM, {"m": 4096, "k": 4096, "n": 65536}, 2),
        (ROWS, {"m": 4, "n": 1 << 20}, 2),
        (RESIDUAL, {"m": 64, "n": 64}, 1),
        (RESIDUAL, {"m": 4, "n": 1 << 20}, 2),
    ],
    ids=["held in half precision", "held in single precision", "two results", "two results in turn"],
)
def test_searched_kernels_are_right_in_the_interpreter(
    interpreter: Interpreter, wanted: Goal, sizes: dict[str, int], blocks: int
) -> None:
    """They are searched at sizes at which they look best, and run at small and ragged ones."""
    found = kernels(replace(wanted, sizes=sizes), 7)[0]
    assert len(found.blocks) == blocks
    kernel = specialised(found, dict(zip(found.symbols, (21, 37, 19), strict=False)))
    schedules = []
    for block in kernel.blocks:
        tile = 16 if any(isinstance(statement, Dot) for statement in block.statements) else 4
        cut = (*block.grid, *((block.loop,) if block.loop is not None else ()))
        schedules.append(Schedule(tuple((axis, tile) for axis in cut)))
    inputs = random_inputs(kernel, 0)
    for given, right in zip(interpreter.run(kernel, schedules, inputs), reference(kernel, inputs), strict=True):
        assert compare(given, right).relative_l2 < 2e-3
