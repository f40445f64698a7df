"""The command ``superopt-costs``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest
from click.testing import CliRunner

from rewriter.cli.costs import cli
from rewriter.cost import CostTable, ProfileError, ProfileStore, read_table, write_table
from rewriter.cost.store import default_profile_path
from rewriter.runtime_env import environment
from tests.support.runs import lora

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(cli, [str(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    source, file, merged = lora(tmp_path / "lora.onnx"), tmp_path / "here.json", tmp_path / "merged.json"
    assert "costs measured" in run("fill", source, "--provider", "cpu", "--input", "x=2x4x32", "--budget", "60")
    assert "x" in run("list")
    run("export", file)
    exported = read_table(file)
    assert exported.environment == environment("cpu") and exported.version == ort.__version__ and exported.costs
    write_table(CostTable(exported.environment, exported.version, "cpu", dict.fromkeys(exported.costs, 0.0)), merged)
    run("merge", file, merged, "-o", merged)
    assert set(read_table(merged).costs.values()) == {0.0}
    run("import", merged)
    assert set(ProfileStore(default_profile_path(), environment("cpu")).costs.values()) == {0.0}
    with pytest.raises(ProfileError, match="no costs are known of 'nowhere'"):
        run("export", file, "--environment", "nowhere")
    assert json.loads(file.read_text())["format"] == 2


def test_a_command_that_measures_nothing_imports_no_search(tmp_path: Path) -> None:
    code = "import sys; from rewriter.cli.costs import cli; cli(['list'], standalone_mode=False); print(*sys.modules)"
    environment_ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment_)
    assert run.returncode == 0, run.stderr
    assert not {"rewriter.search.moves", "rewriter.cost.model", "rules_db.library"} & {*run.stdout.split()}
