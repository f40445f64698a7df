"""Products of a single row: in narrow floats it has an axis, so that a tile of it may be as high as the matrix units want."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Factor, Index
from mugraph.domains import Real
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import get_device
from rewriter.cost.schedules import candidates, default_schedules
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.triton import generate
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import interpret
from tools.fuzz.interpreter import Interpreter

pytest.importorskip("triton")

H200 = get_device("h200")
NORM = "MatMul(SkipSimplifiedLayerNormalization[bias=false,epsilon=1e-05,sum=false](x, r, g), w)"
GATE, UP = (f"Split[axis=-1,sizes=(40,40)].{part}(z)" for part in (1, 0))
GATED = f"MatMul(Mul(Mul({GATE}, Sigmoid({GATE})), {UP}), w)"
SHAPES = {"x": "1,40", "r": "1,40", "g": "40", "z": "1,80", "w": "40,24", "b": "24", "t": "1,24"}
CASES: dict[str, tuple[str, Form]] = {
    "plain": ("MatMul(x, w)", PLAIN),
    "with a bias and a residual": ("Add(t, Add(MatMul(x, w), b))", PLAIN),
    "of gated values": (GATED, PLAIN),
    "of normalised values": (NORM, PLAIN),
    "of values that are normalised behind it": (NORM, Form(accumulated=True)),
}


def kernel(text: str, form: Form = PLAIN, dtype: str = "float16", shapes: Mapping[str, str] = SHAPES) -> Kernel:
    types = {name: parse_type(f"{dtype}[{shape}]") for name, shape in shapes.items()}
    return lower("row", types, [("y", parse_term(text))], form)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [1, 16])
def test_a_row_is_multiplied_alone_or_by_the_matrix_units(name: str, rows: int, triton_interpreter: Interpreter) -> None:
    made = kernel(*CASES[name])
    assert interpret(made, 3, 0) is None and why_not_proved(made) is None
    (block,) = made.blocks
    assert block.sizes["m"] == 1 and block.grid == ("m", "n")
    for split in (1, 2):
        schedule = Schedule((("m", rows), ("n", 16), ("k", 16)), split)
        assert ("tl.dot(" in generate(made, [schedule]).text) == (rows == 16)
        generator = np.random.default_rng(0)
        shapes = {t.name: [int(str(dim)) for dim in t.type.shape] for t in made.inputs}
        inputs = {each: generator.uniform(-1, 1, shape).astype(np.float16) for each, shape in shapes.items()}
        wide = {each: array.astype(np.float64) for each, array in inputs.items()}
        (expected,) = evaluate_body(made, Real(), wide)
        (exact,) = evaluate_kernel(made, Real(), wide, [schedule])
        assert np.allclose(exact, expected)
        (actual,) = triton_interpreter.run(made, [schedule], inputs)
        error = np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected)
        assert error < 2e-3, schedule


def test_wide_floats_and_several_rows_have_no_axis_of_one() -> None:
    assert "m" not in kernel("MatMul(x, w)", dtype="float").blocks[0].sizes
    several = kernel("MatMul(x, w)", shapes=SHAPES | {"x": "3,40"})
    assert several.blocks[0].sizes["m"] == 3


def test_only_what_the_row_reads_gets_the_axis() -> None:
    (block,) = kernel(*CASES["with a bias and a residual"]).blocks
    axes = {load.tensor: load.view[0] == Factor(Index("m"), 1) for load in block.loads}
    assert axes == {"x": True, "w": False, "b": False, "t": False}


def test_few_rows_are_tried_on_the_matrix_units_alone() -> None:
    """Timed on an H200: tiles of four rows, entry by entry, take 1.2 to 3.4 times what sixteen do (docs/decoding.md)."""
    for rows, tiles in ((1, {1, 16}), (4, {1, 16})):
        made = kernel("MatMul(x, w)", shapes={"x": f"{rows},2048", "w": "2048,4096"})
        assert {s.tile("m") for s in candidates(made, H200)[0]} == tiles
        (best,) = default_schedules(made, H200)
        assert best.tile("m") == 16
    wide = kernel("MatMul(x, w)", dtype="float", shapes={"x": "4,2048", "w": "2048,4096"})
    assert {1, 4} <= {s.tile("m") for s in candidates(wide, H200)[0]}
