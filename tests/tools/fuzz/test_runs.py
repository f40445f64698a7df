"""Whole runs of the command: what is judged a defect is one."""

from __future__ import annotations

import signal
from pathlib import Path

import onnx
import pytest

from tests.support.fuzzing import attack
from tools.fuzz import runs
from tools.fuzz.fates import Fate
from tools.zoo.built import lora_block

CONTENT = lora_block(hidden=16, heads=2, sequence=4, intermediate=24, rank=2).SerializeToString()


@pytest.mark.usefixtures("own_cache")
def test_runs_on_a_shared_cache_end_as_they_should() -> None:
    done = attack("runs", "--count", "6", "--seed", "2", "--seconds", "200")
    assert done.returncode == 0, done.stdout
    assert "6 of 6 cases" in done.stdout


@pytest.mark.parametrize(
    ("code", "said", "is_interrupted", "fate"),
    [
        (None, "", False, Fate.HANG),
        (0, "Traceback (most recent call last)", False, Fate.TRACEBACK),
        (-signal.SIGSEGV, "", False, Fate.DIED),
        (1, "Aborted!", True, Fate.LOST),
        (130, "", False, Fate.LOST),
        (130, "", True, Fate.UNCHANGED),
        (0, "", False, Fate.LOST),
    ],
)
def test_an_end_without_a_file_is_judged(code: int | None, said: str, is_interrupted: bool, fate: Fate, tmp_path: Path) -> None:
    assert runs._judged(CONTENT, tmp_path / "none.onnx", code, said, is_interrupted=is_interrupted).fate is fate


@pytest.mark.parametrize(
    ("left", "said", "fate"),
    [
        (["written.onnx.quarantine"], "dropped 1f: quarantined; see /tmp/written.on\nnx.quarantine/1f.onnx", Fate.DOUBTED),
        (["written.onnx.quarantine"], "", Fate.LOST),
        (["written.onnx.quarantine", "written.onnx.part"], "see /tmp/written.onnx.quarantine/1f.onnx", Fate.LOST),
        (["written.onnx.part"], "", Fate.LOST),
    ],
)
def test_what_is_left_behind_is_told_or_a_defect(left: list[str], said: str, fate: Fate, tmp_path: Path) -> None:
    assert runs._of_left(left, tmp_path / "written.onnx", said).fate is fate


def test_a_wrong_file_is_found(tmp_path: Path) -> None:
    target = tmp_path / "written.onnx"
    target.write_bytes(CONTENT)
    assert runs._judged(CONTENT, target, 0, "", is_interrupted=False).fate is Fate.UNCHANGED
    wrong = onnx.ModelProto.FromString(CONTENT)
    wrong.graph.initializer[1].raw_data = bytes(len(wrong.graph.initializer[1].raw_data))
    onnx.save(wrong, target)
    assert runs._judged(CONTENT, target, 0, "", is_interrupted=False).fate is Fate.WRONG
    target.write_bytes(CONTENT[: len(CONTENT) // 2])
    assert runs._judged(CONTENT, target, 0, "", is_interrupted=True).fate.is_failure
