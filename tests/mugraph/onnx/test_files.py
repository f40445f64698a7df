"""Files that are written together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mugraph.onnx import ModelError
from mugraph.onnx.files import FileSet


def test_files_that_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    (tmp_path / "w.bin").write_bytes(b"weights")
    with FileSet(tmp_path, target) as files:
        files.link(tmp_path / "w.bin", tmp_path / "sub" / "w.bin")
        files.move(files.write([b"mo", b"del"]), target)
        files.keep()
    assert target.read_bytes() == b"model" and (tmp_path / "sub" / "w.bin").read_bytes() == b"weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "sub", "w.bin"]


def test_nothing_is_left_unless_all_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    with FileSet(tmp_path, target) as files:
        files.move(files.write([b"data"]), tmp_path / "m.data")
        files.write([b"model"])
    assert not list(tmp_path.iterdir())


def test_errors_of_the_system_name_the_model(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    target = tmp_path / "m.onnx"
    with (
        pytest.raises(ModelError, match=r"m\.onnx cannot be written: No space left on device; make room"),
        FileSet(tmp_path, target) as files,
    ):
        files.move(files.write(chunks()), target)
    assert not list(tmp_path.iterdir())
