"""The command ``superopt-diff``: exit codes, what is printed and written, and bad input in one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx

from tests.support.runs import block, lora


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "modeldiff", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_equal_models_end_with_0_and_different_ones_with_1(tmp_path: Path) -> None:
    source = block(tmp_path / "block.onnx")
    model = onnx.load(source)
    node = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    node.op_type = "Tanh"
    onnx.save(model, tmp_path / "faulty.onnx")
    same = _run(source, source)
    assert same.returncode == 0 and "the same" in same.stdout, same.stderr
    page, record = tmp_path / "d.html", tmp_path / "d.json"
    other = _run(source, tmp_path / "faulty.onnx", "--report", page, "--json", record)
    assert other.returncode == 1, other.stderr
    assert f"'{node.output[0]}' differs" in other.stdout and "on random inputs of seed" in other.stdout
    (region,) = json.loads(record.read_text())["regions"]
    assert region["verdict"] == "different" and region["differences"][0]["after"] == node.output[0]
    assert "different: 1 change," in page.read_text()


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    text = tmp_path / "text.onnx"
    text.write_text("this is no model")
    apart, weights = tmp_path / "apart.onnx", tmp_path / "w.bin"
    onnx.save(onnx.load(source), apart, save_as_external_data=True, location=weights.name, size_threshold=0)
    before = [path.read_bytes() for path in (source, weights)]
    for arguments, word in [
        ((source, tmp_path / "missing.onnx"), "missing.onnx"),
        ((source, text), "text.onnx"),
        ((source, source, "--input", "nope=3"), "nope"),
        ((source, source, "--report", tmp_path / "none" / "d.html"), "d.html"),
        ((source, source, "--json", source), "read, too"),
        ((source, apart, "--report", weights), "read, too"),
        ((source, source, "--report", tmp_path / "d", "--json", tmp_path / "no" / ".." / "d"), "name one file"),
        ((source, source, "--tolerance", "nan"), "not a finite number"),
        ((source, source, "--budget", "inf"), "not a finite number"),
        ((source,), "AFTER"),
    ]:
        done = _run(*arguments)
        assert done.returncode == 2 and word in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    assert [path.read_bytes() for path in (source, weights)] == before
