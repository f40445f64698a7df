"""The profile store: a file that processes share, and what happens where it cannot be used."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rewriter.cost import ProfileError, ProfileStore


def test_first_uses_at_the_same_time_do_not_collide(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from rewriter.cost.store import ProfileStore
print("ready", flush=True)
sys.stdin.readline()
for round in range(5):
    store = ProfileStore(Path(sys.argv[1]) / f"{round}.sqlite", "here")
    store.put(sys.argv[2], 1.0)
    store.remember(sys.argv[2], "v")
    store.close()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == [""] * 4
    for round_ in range(5):
        store = ProfileStore(tmp_path / f"{round_}.sqlite", "here")
        assert set(store.costs) == {"0", "1", "2", "3"} and store.verdict("3") == "v"


def test_a_file_that_cannot_be_used_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    (tmp_path / "broken.sqlite").write_bytes(b"this is not a database" * 50)
    for path in (tmp_path / "in the way" / "p.sqlite", tmp_path / "broken.sqlite", Path("/dev/null/onnx-superopt/p.sqlite")):
        with pytest.raises(ProfileError, match="set ONNX_SUPEROPT_CACHE to a writable directory"):
            ProfileStore(path, "here")
        told: list[ProfileError] = []
        store = ProfileStore(path, "here", told.append)
        store.put("a", 1.0)
        store.remember("k", "v")
        assert store.verdict("k") is None and store.environments() == {} and store.get("a") == 1.0
        store.close()
        assert len(told) == 1 and str(path) in str(told[0])


def test_a_file_that_breaks_later_is_told_once(tmp_path: Path) -> None:
    told: list[ProfileError] = []
    store = ProfileStore(tmp_path / "p.sqlite", "here", told.append)
    with sqlite3.connect(tmp_path / "p.sqlite") as other:
        other.execute("DROP TABLE costs_3")
        other.execute("DROP TABLE verdicts")
    store.put("a", 1.0)
    store.flush()
    store.remember("k", "v")
    assert store.verdict("k") is None and len(told) == 1 and "cannot be written (no such table" in str(told[0])


def test_what_is_no_time_is_not_read(tmp_path: Path) -> None:
    ProfileStore(tmp_path / "p.sqlite", "here").close()
    with sqlite3.connect(tmp_path / "p.sqlite") as other:
        rows = [("here", str(number), value) for number, value in enumerate([1.5, -1.0, float("inf"), "text", b"bytes"])]
        other.executemany("INSERT INTO costs_3 VALUES (?, ?, ?)", rows)
    assert ProfileStore(tmp_path / "p.sqlite", "here").costs == {"0": 1.5}


def test_a_row_that_no_run_wrote_is_not_brought_into_memory(tmp_path: Path) -> None:
    path, problems = tmp_path / "costs.sqlite", list[ProfileError]()
    store = ProfileStore(path, "here")
    store.remember_all({"small": "s", "large": "l" * (1 << 23)})
    assert store.verdicts(["small", "large"]) == {"small": "s"}, "what could not be read again is not kept"
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE verdicts SET value = ?", ("s" * (1 << 24),))
    with pytest.raises(ProfileError, match=r"cannot be .* \(string or blob too big\)"):
        ProfileStore(path, "here").verdict("small")
    store = ProfileStore(path, "here", problems.append)
    assert store.verdict("small") is None and len(problems) == 1
