"""The tool that times products on several threads."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rewriter import runtime_env
from rewriter.kernels.c.objects import levels_here
from rewriter.runtime import is_built
from rewriter.runtime_env import c_compiler_version
from tools.bench.cpu_threads import main

pytestmark = pytest.mark.skipif(
    c_compiler_version() is None or not levels_here() or not is_built(), reason="no C compiler, or an old processor"
)


def test_every_count_of_threads_has_a_row_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_env._Threads, "usual", runtime_env._Threads.usual)
    asked = ["--shape", "16x64x64", "--threads", "2", "--threads", "1", "--seconds", "0"]
    done = CliRunner().invoke(main, asked, catch_exceptions=False)
    rows = [line for line in done.output.splitlines() if line.startswith("16x64x64")]
    assert [row.split()[1] for row in rows] == ["1", "2"]
    assert all("'onnxruntime': " in row and "'floats': " in row for row in rows) and "(1.00×; 1.00×)" in rows[0]
