"""Files that are written whole or not at all, and folders for work in progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mugraph.files import Draft, Scratch, destination, is_device, replacing, same_file

HOLD = "import sys, time; print('ready', flush=True); time.sleep(60)"


def killed(code: str) -> str:
    """Runs code in a process that is killed once it has printed a line, which is returned."""
    process = subprocess.Popen([sys.executable, "-c", f"{code}\n{HOLD}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return line.strip()


def test_a_draft_takes_the_place_of_its_target_with_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    target.chmod(0o640)
    with Draft(target) as draft:
        draft.file.write(b"new")
        assert target.read_bytes() == b"old"
        draft.replace()
    assert target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_draft_that_became_no_file_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Draft(tmp_path / "m.onnx") as draft:
        draft.file.write(b"half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_draft_settles_where_no_file_is(tmp_path: Path) -> None:
    with Draft(tmp_path / "m.onnx") as draft:
        draft.file.write(b"data")
        assert draft.settle(tmp_path / "data")
    with Draft(tmp_path / "m.onnx") as draft:
        assert not draft.settle(tmp_path / "data")
    assert (tmp_path / "data").read_bytes() == b"data" and (tmp_path / "data").stat().st_nlink == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_draft_settles_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for settles in (True, False):
        with Draft(tmp_path / "m.onnx") as draft:
            assert draft.settle(tmp_path / "data") is settles
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_drafts_of_dead_writers_are_removed_and_no_others(tmp_path: Path) -> None:
    making = "from pathlib import Path; from mugraph.files import Draft; draft = Draft(Path(sys.argv[1]))"
    code = f"import sys; sys.argv = ['', {str(tmp_path / 'm.onnx')!r}]; {making}; print(draft.path, flush=True)"
    dead, other = killed(code), killed(code.replace("m.onnx", "n.onnx"))
    with Draft(tmp_path / "m.onnx") as alive:
        assert not Path(dead).exists()
        with Draft(tmp_path / "m.onnx"):
            assert alive.path.exists() and Path(other).exists(), "one is being written, the other is of another file"
    assert list(tmp_path.iterdir()) == [Path(other)]


def test_what_is_no_draft_is_not_removed(tmp_path: Path) -> None:
    names = [".m.onnx.tmp", "m.onnx.0123456789abcdef.tmp", ".m.onnx.0123456789abcde.tmp", ".xm.onnx.0123456789abcdef.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"not ours")
    with Draft(tmp_path / "m.onnx"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_links_are_followed_and_devices_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    with replacing("/dev/null") as file:
        file.write(b"gone")
    assert is_device("/dev/null") and not is_device(tmp_path) and not is_device(tmp_path / "real")
    (tmp_path / "circle").symlink_to("circle")
    if sys.version_info < (3, 13):
        with pytest.raises(OSError, match="levels of symbolic links"):
            destination(tmp_path / "circle")


def test_one_file_by_two_names(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.hardlink_to(one)
    assert same_file(one, other) and same_file(one, tmp_path / "." / "one") and not same_file(one, tmp_path / "none")


def test_folders_of_killed_processes_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    dead = killed("from mugraph.files import Scratch; s = Scratch(); (s.path / 'w').write_text('w'); print(s.path, flush=True)")
    assert Path(dead).parent == tmp_path and (Path(dead) / "w").exists()
    (tmp_path / "not ours").mkdir()
    with Scratch() as first, Scratch() as second:
        assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path, tmp_path / "not ours"])
    assert list(tmp_path.iterdir()) == [tmp_path / "not ours"]
