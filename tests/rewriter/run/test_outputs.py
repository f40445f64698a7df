"""The output of a run: which file it may be, what is copied, and what the user is told of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest

from mugraph.onnx import ModelError
from rewriter import optimize
from rewriter.reference import InputError
from rewriter.run.outcome import Outcome
from rules_db.files import StoreError
from tests.support.runs import lora


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lora(tmp_path / "m.onnx")


@pytest.fixture
def external(tmp_path: Path, source: Path) -> Path:
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(onnx.load(source), folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


def unchanged(model: Any, output: Path | None, **fields: Any) -> Outcome:
    """A run that finds nothing."""
    return optimize(model, output, rules=[], deterministic=True, provider="cpu", **fields)


@pytest.mark.parametrize("spelling", ["same", "relative", "link", "hard link", "default"])
def test_the_model_is_replaced_where_that_is_asked_for_alone(
    source: Path, tmp_path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, output = source, {"same": source, "relative": Path("cache/../m.onnx")}.get(spelling, tmp_path / "out.onnx")
    (tmp_path / "cache").mkdir()
    if spelling == "link":
        output.symlink_to(source)
    if spelling == "hard link":
        output.hardlink_to(source)
    if spelling == "default":
        model, output = tmp_path / "m.superopt.onnx", None
        source.rename(model)
        (tmp_path / "m.superopt.superopt.onnx").symlink_to(model)
    before = model.read_bytes()
    with pytest.raises(InputError, match="is the model itself; name another output, or give --in-place"):
        optimize(model, output, budget=0)
    assert model.read_bytes() == before
    optimize(model, output, budget=0, in_place=True)
    onnx.checker.check_model(str(model))


def test_in_place_is_of_the_model_alone(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not both"):
        optimize(source, tmp_path / "other.onnx", budget=0, in_place=True)
    with pytest.raises(InputError, match="a model in memory needs an output path"):
        optimize(onnx.load(source), budget=0, in_place=True)
    before = source.stat()
    assert optimize(source, budget=0, in_place=True).output == str(source) and source.stat().st_ino != before.st_ino
    before = source.stat()
    assert unchanged(source, None, in_place=True).output == str(source) and source.stat() == before


@pytest.mark.parametrize("in_place", [False, True])
def test_the_weights_of_the_model_are_no_output(external: Path, in_place: bool) -> None:
    before = (external.parent / "w.bin").read_bytes()
    with pytest.raises(InputError, match=r"w\.bin (holds weights of|is not the model)"):
        optimize(external, external.parent / "w.bin", budget=0, in_place=in_place)
    assert (external.parent / "w.bin").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_that_cannot_be_written_is_refused_before_the_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StoreError, match=r"locked/o\.onnx: cannot be written \(Permission denied\)"):
        optimize(source, tmp_path / "locked" / "o.onnx", budget=600)


def test_what_is_kept_is_copied(source: Path, external: Path, tmp_path: Path) -> None:
    outcome = unchanged(source, tmp_path / "o.onnx")
    assert not outcome.improved and not outcome.file_notes and outcome.nodes_after == outcome.nodes_before == 5
    assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()
    (note,) = unchanged(external, external.parent / "o.onnx").file_notes
    assert note == f"o.onnx is a copy of the model and reads the same data: keep {external.parent / 'w.bin'}"
    assert not unchanged(external, tmp_path / "far.onnx").file_notes
    assert (tmp_path / "w.bin").read_bytes() == (external.parent / "w.bin").read_bytes()
    proto = onnx.load(source)
    unchanged(proto, tmp_path / "p.onnx")
    assert (tmp_path / "p.onnx").read_bytes() == proto.SerializeToString()


def test_data_that_is_left_is_named_with_the_way_to_remove_it(external: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    old = tmp_path / "o.onnx.0123456789abcdef.data"
    old.write_bytes(bytes(1_500_000))
    (note,) = optimize(external, output, budget=0).file_notes
    assert note.startswith("1.5 MB of data files are left that o.onnx does not read") and note.endswith(f"remove them: rm {old}")
    (note,) = optimize(external, budget=0, in_place=True).file_notes
    assert note.endswith(f"rm {external.parent / 'w.bin'}")


def test_a_device_is_an_output(source: Path) -> None:
    assert optimize(source, "/dev/null", budget=0).nodes_after == 5
    assert unchanged(source, Path("/dev/null")).nodes_after == 5
    assert Path("/dev/null").is_char_device()


def test_an_output_without_room_for_data_files_is_refused_before_the_work(external: Path, tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(external.parent / "o.onnx")
    for output in ("/dev/null", tmp_path / "link.onnx"):
        with pytest.raises(ModelError, match="data files"):
            optimize(external, output, budget=600)
