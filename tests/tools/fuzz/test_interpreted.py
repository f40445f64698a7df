"""Kernels of written models are interpreted: what differs from the body is told, and who reads past an operand ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.fuzzing import attack
from tests.support.wrong_kernels import FEED, softmax_times, with_another_body, with_kernel
from tools.fuzz.fates import Fate
from tools.fuzz.interpreted import Interpreted
from tools.fuzz.interpreter import Interpreter, InterpreterFailed
from tools.fuzz.oracle import Originals
from tools.fuzz.running import run


def originals(model: bytes) -> Originals:
    return Originals(model, {"measured": (FEED, run(model, FEED, optimize=False))})


@pytest.mark.usefixtures("own_cache")
def test_a_kernel_that_computes_another_thing_than_its_body_is_told(tmp_path: Path) -> None:
    written = with_kernel(tmp_path, device="h100")
    verdict, counts = Interpreted()(originals(softmax_times("0.5")), written.SerializeToString())
    assert verdict is None and counts["runs of kernels"] == 1
    verdict, _ = Interpreted()(originals(softmax_times("0.25")), with_another_body(written))
    assert verdict is not None and verdict[0] is Fate.WRONG and "interpreted on measured inputs: output 0" in verdict[1]


@pytest.mark.parametrize(("reads", "ends"), [(16, False), (17, True)])
def test_a_kernel_that_reads_past_its_operand_ends_the_interpreter(reads: int, ends: bool) -> None:
    source = f"""
import triton
import triton.language as tl

@triton.jit
def copy(x, y):
    places = tl.arange(0, 32)
    tl.store(y + places, tl.load(x + places, mask=places < {reads}, other=0.0))
"""
    interpreter = Interpreter()
    memory = {"x": np.arange(16, dtype=np.float32), "y": np.ones(32, np.float32)}
    try:
        launches = [("copy", (1, 1, 1), ["x", "y"])]
        if ends:
            with pytest.raises(InterpreterFailed, match="its process ended: -11"):
                interpreter.execute(source, launches, memory)
        else:
            copied = interpreter.execute(source, launches, memory)["y"]
            assert np.array_equal(copied[:16], memory["x"]) and not copied[16:].any()
    finally:
        interpreter.close()


def test_one_condition_may_hold_of_a_whole_tile() -> None:
    source = """
import triton
import triton.language as tl

@triton.jit
def first_row(x, y):
    row, places = tl.program_id(0), tl.arange(0, 8)
    later = row - 1 >= 0
    tl.store(y + row * 8 + places, tl.load(x + row * 8 + places, mask=(later == 0), other=7.0))
"""
    interpreter = Interpreter()
    try:
        memory = {"x": np.arange(8, dtype=np.float32), "y": np.ones(16, np.float32)}
        made = interpreter.execute(source, [("first_row", (2, 1, 1), ["x", "y"])], memory)["y"]
    finally:
        interpreter.close()
    assert np.array_equal(made, [*range(8), *[7.0] * 8])


@pytest.mark.usefixtures("own_cache")
def test_kernels_of_random_models_are_interpreted() -> None:
    done = attack("models", "--device", "h100", "--interpret", "--count", "3", "--seed", "1")
    assert done.returncode == 0 and "runs of kernels" in done.stdout, done.stdout
    done = attack("models", "--interpret")
    assert done.returncode == 2 and "--interpret wants the --device" in done.stderr
