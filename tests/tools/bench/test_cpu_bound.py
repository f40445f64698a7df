"""What fusing could gain at most is told by what a model spends."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from onnx.parser import parse_model

from rewriter.kernels.c.compile import level_of_processor
from tools.bench import cpu_bound


def written(folder: Path, rows: str = "5", integers: str = "int64") -> Path:
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,{rows},8] x, {integers}[1] i) => (float[2,{rows},{rows}] y) {{
            p = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(x) s = MatMul(p, t)
            e = Erf(s) c = Cast<to = 1>(i) y = Add(e, c) }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


def test_operations_are_those_of_products_with_weights_and_without(tmp_path: Path) -> None:
    """Of 2×5×8 numbers by 8×8, whose size a session does not tell, and by twice 8×5."""
    spent = cpu_bound.spent_by(written(tmp_path), 1, 3)
    assert spent.operations == 2 * (2 * 5 * 8 * 8) + 2 * (2 * 5 * 8 * 5)
    assert spent.products > 0 and {"Erf", "Add"} <= set(spent.others) and "MatMul" not in spent.others


def test_bounds_leave_products_and_convolutions() -> None:
    spent = cpu_bound.Spent(products=60.0, convolutions=20.0, others={"Erf": 15.0, "Add": 5.0}, operations=3e6)
    assert spent.gain(1.0) == 1.0
    assert spent.gain(0.0) == pytest.approx(100 / 80) and spent.gain(0.5) == pytest.approx(100 / 90)
    assert spent.gain(0.0, 100.0) == pytest.approx(100 / 50), "three million operations at that pace take 30 us"
    assert spent.gain(0.0, 10.0) == pytest.approx(100 / 80), "what was measured is no slower"


@pytest.mark.skipif(level_of_processor() is None, reason="no instruction set that kernels are written for")
def test_the_table_is_printed_and_sizes_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path)
    done = CliRunner().invoke(cpu_bound.main, [str(path), "--runs", "3"], catch_exceptions=False)
    assert done.exit_code == 0 and "peak:" in done.output
    with pytest.raises(click.ClickException, match="input x has no size"):
        cpu_bound.spent_by(written(tmp_path, "n"), 1, 1)
    with pytest.raises(click.ClickException, match=r"input i is a tensor\(uint8\)"):
        cpu_bound.spent_by(written(tmp_path, integers="uint8"), 1, 1)
