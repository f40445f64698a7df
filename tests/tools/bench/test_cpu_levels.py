"""Which objects a session opens, as its process's memory tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mugraph.blocks.schedule import Schedule
from rewriter.kernels.c.compile import LEVELS, Level
from rewriter.kernels.c.objects import ObjectCompiler, levels_here
from rewriter.kernels.programs import Scheduled, compile_on_cpu
from rewriter.runtime_env import c_compiler_version
from tests.support.benched import small_model
from tests.support.block_kernels import F32, softmax
from tests.support.kernel_help import kernel_model
from tools.bench import cpu_levels

pytestmark = pytest.mark.skipif(c_compiler_version() is None or not levels_here(), reason="no C compiler, or an old processor")

ROWS = Scheduled.one(softmax(64, 96, F32), Schedule((("m", 4),)))


def written(folder: Path, *levels: Level) -> Path:
    programs, problems = compile_on_cpu([ROWS], ObjectCompiler(folder / "objects"), levels)
    assert not problems
    path = folder / "model.onnx"
    path.write_bytes(kernel_model(ROWS.kernel, programs=programs).SerializeToString())
    return path


def test_the_best_object_that_the_processor_has_is_open(tmp_path: Path) -> None:
    best = levels_here()[0]
    path = written(tmp_path, *dict.fromkeys((best, LEVELS["x86-64-v3"])))
    assert cpu_levels.levels_opened(path) == {best.name: 1}
    command = [sys.executable, "-m", "tools.bench.cpu_levels", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert told == f"{path}: 1 kernels in C: 1 {best.name}\n"


def test_an_object_that_the_session_may_not_run_is_not_taken_for_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(levels_here()) < 2:
        pytest.skip("the processor has the least level alone")
    monkeypatch.setenv("ONNX_SUPEROPT_FEATURES", "1")
    assert cpu_levels.levels_opened(written(tmp_path, levels_here()[0], LEVELS["x86-64-v3"])) == {"x86-64-v3": 1}


def test_a_model_without_kernels_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small_model(tmp_path / "m.onnx")
    assert cpu_levels.in_words(path) == ""
    cpu_levels.main([str(path)])
    assert capsys.readouterr().out == f"{path}: no kernel in C\n"


def test_a_model_that_does_not_open_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"none")
    with pytest.raises(RuntimeError, match="RuntimeFailure"):
        cpu_levels.levels_opened(tmp_path / "m.onnx")
