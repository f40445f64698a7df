"""Accidents while files are written: nothing is lost, and what would be lost is noticed."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from mugraph.files import Draft
from rules_db.library import read_entries
from tools.fuzz import kills
from tools.fuzz.kills import WORK, Scene, race, trial

QUICK = [name for name in WORK if name != "run"]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path, tuple(islice((entry.read() for entry in read_entries()), 4)))
    monkeypatch.setenv("TMPDIR", str(made.scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(made.scratch))
    made.prepare()
    return made


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_lost_by_accidents(scene: Scene, name: str) -> None:
    generator = random.Random(f"{name}")
    for number in range(5):
        assert trial(scene, name, number, generator, 0.05, full_disk=False) == []
    for number in range(2):
        assert trial(scene, name, number, generator, 0.0, full_disk=True) == []
    for path in scene.folder.glob("*.sqlite"):
        path.unlink()
    assert race(scene, name) == []


def direct(scene: Scene, number: int) -> None:
    """Writes a model without a draft."""
    scene.output.write_bytes(b"")
    scene.output.write_bytes(scene.model(number).read_bytes())


def without_data(scene: Scene, number: int) -> None:
    """Removes the data files that the new model does not read, as if no copy of the old one could."""
    before = set(scene.folder.glob("out.onnx.*.data"))
    kills.saved(scene, number)
    for path in before:
        path.unlink()


def leaving(scene: Scene, number: int) -> None:
    """Leaves a draft."""
    Draft(scene.output)


def failing(scene: Scene, number: int) -> None:
    """Fails where another has been there before."""
    os.mkdir(scene.folder / "once")


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (without_data, "the copy of an earlier output has changed"),
        (leaving, ".tmp"),
        (failing, "the same work does not succeed afterwards"),
    ],
)
def test_losses_are_noticed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, work: Callable[[Scene, int], None], problem: str
) -> None:
    monkeypatch.setattr(kills, "WORK", {"work": work})
    found = trial(scene, "work", 1, random.Random(0), 0.0, full_disk=True)
    assert any(problem in line for line in found), found


def test_a_half_written_model_is_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "WORK", {"work": direct})
    found = trial(scene, "work", 1, random.Random(3), 0.0, full_disk=True)
    scene.output.write_bytes(scene.output.read_bytes()[:-20])
    assert not found
    assert any("neither the old model nor the new one" in line for line in scene.problems())


def test_writers_that_fail_in_a_race_are_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "WORK", {"work": failing})
    assert any("the writers ended with" in line for line in race(scene, "work"))
