"""The files of one model, written together."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mugraph.deadline import BudgetSpent, Deadline
from mugraph.onnx import ModelError, files
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


_PIECES = [b"a" * 70_000, b"bc", memoryview(b"d" * 5_000_000), b"", b"e" * 300, memoryview(bytes(range(256)) * 40_000)]


@pytest.mark.parametrize("followed_from", [0, 1 << 22, 1 << 40])
def test_what_is_hashed_beside_writing_is_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed_from: int
) -> None:
    monkeypatch.setattr(files, "_FOLLOWED", followed_from)
    content = hashlib.sha256()
    with FileSet(tmp_path / "m.onnx") as written:
        written.replace(written.write(iter(_PIECES), content=content))
    assert (tmp_path / "m.onnx").read_bytes() == b"".join(_PIECES)
    assert content.hexdigest() == content_digest(tmp_path / "m.onnx")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_small_file_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.ThreadPoolExecutor, "submit", lambda *_: pytest.fail("a thread was begun"))
    content = hashlib.sha256()
    with FileSet(tmp_path / "m.onnx") as written:
        written.replace(written.write(iter(_PIECES), content=content))
    assert content.hexdigest() == content_digest(tmp_path / "m.onnx")


@pytest.mark.skipif(sys.platform != "linux", reason="the system is not asked there")
@pytest.mark.parametrize("is_lasting", [True, False])
def test_what_lasts_is_on_its_way_to_the_disk_while_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lasting: bool
) -> None:
    monkeypatch.setattr(files, "_FOLLOWED", 1 << 20)
    monkeypatch.setattr(files, "_SYNCED", 1 << 21)
    asked: list[int] = []
    told = threading.Event()

    def noted(descriptor: int) -> None:
        asked.append(os.fstat(descriptor).st_size)
        told.set()

    monkeypatch.setattr(os, "fdatasync", noted)

    def chunks() -> Iterator[bytes]:
        yield bytes(3 << 20)
        assert not is_lasting or told.wait(60)
        yield bytes(1 << 20)

    with FileSet(tmp_path / "m.onnx", is_lasting=is_lasting) as written:
        written.replace(written.write(chunks()))
    assert asked == ([3 << 20] if is_lasting else [])


def test_a_failure_while_it_is_followed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FOLLOWED", 0)
    ends = Deadline()

    def chunks() -> Iterator[bytes]:
        yield bytes(5_000_000)
        ends.end()
        yield bytes(5_000_000)

    threads = threading.active_count()
    with ends.heeded(), pytest.raises(BudgetSpent), FileSet(tmp_path / "m.onnx") as written:
        written.write(chunks(), content=hashlib.sha256())
    assert not list(tmp_path.iterdir()) and threading.active_count() == threads

    class Broken:
        def update(self, _: memoryview) -> None:
            raise OSError(5, "Input/output error")

    with pytest.raises(ModelError, match="cannot be written: Input/output error"), FileSet(tmp_path / "m.onnx") as written:
        written.write([bytes(5_000_000)], content=Broken())
    assert not list(tmp_path.iterdir())
