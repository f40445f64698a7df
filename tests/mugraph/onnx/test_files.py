"""The files of one model, written together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mugraph.onnx import ModelError
from mugraph.onnx.files import FileSet, content_digest


def test_files_get_their_names(tmp_path: Path) -> None:
    target, data = tmp_path / "m.onnx", tmp_path / "m.data"
    (tmp_path / "w.bin").write_bytes(b"weights")
    with FileSet(target) as files:
        files.copy(tmp_path / "w.bin", tmp_path / "sub" / "w.bin")
        first, last = files.write([b"da", b"ta"]), files.write([b"model"])
        files.settle(first, data)
        files.replace(last)
    assert target.read_bytes() == b"model" and data.read_bytes() == b"data"
    assert (tmp_path / "sub" / "w.bin").read_bytes() == b"weights" and (tmp_path / "w.bin").stat().st_nlink == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.data", "m.onnx", "sub", "w.bin"]


def test_drafts_without_a_name_are_removed(tmp_path: Path) -> None:
    with FileSet(tmp_path / "m.onnx") as files:
        files.write([b"data"])
        files.write([b"model"])
    assert not list(tmp_path.iterdir())


def test_a_file_stands_for_a_draft_of_its_content_alone(tmp_path: Path) -> None:
    (tmp_path / "m.data").write_bytes(b"data")
    before = (tmp_path / "m.data").stat()
    with FileSet(tmp_path / "m.onnx") as files:
        files.settle(files.write([b"data"]), tmp_path / "m.data")
    assert (tmp_path / "m.data").stat().st_ino == before.st_ino
    with pytest.raises(ModelError, match=r"m\.data is another file"), FileSet(tmp_path / "m.onnx") as files:
        files.settle(files.write([b"other"]), tmp_path / "m.data")
    assert content_digest(tmp_path / "m.data") != content_digest(tmp_path / "none") == ""
    assert (tmp_path / "m.data").read_bytes() == b"data" and len(list(tmp_path.iterdir())) == 1


def test_errors_of_the_system_name_the_model(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    target = tmp_path / "m.onnx"
    with (
        pytest.raises(ModelError, match=r"m\.onnx cannot be written: No space left on device; make room"),
        FileSet(target) as files,
    ):
        files.replace(files.write(chunks()))
    assert not list(tmp_path.iterdir())
