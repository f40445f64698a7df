"""The journal of a growth: what was recorded comes back, whatever cut it off; what was not does not."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rulegen import journal as journal_module
from rulegen.grow import candidates, certification, selection
from rulegen.grow.growth import Growth
from rulegen.grow.stages import grow
from rulegen.journal import Journal
from rulegen.numeric.floats import float_test
from rulegen.prune.derive import Deriver
from rulegen.workloads import WORKLOADS
from rules_db.exchange import format_rules
from rules_db.files import cache_folder
from tests.support.growths import grown_part

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
HYPOTHESIS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.lists(st.tuples(st.text(max_size=3), JSON), max_size=6), st.data())
@HYPOTHESIS
def test_any_beginning_of_the_file_gives_the_records_written_until_then(
    tmp_path: Path, records: list[tuple[str, object]], data: st.DataObject
) -> None:
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    journal, ends = Journal(path), [0]
    for key, value in records:
        journal.put(key, value)
        assert journal.get(key) == value
        ends.append(path.stat().st_size)
    journal.close()
    length = data.draw(st.integers(0, ends[-1]))
    path.write_bytes(path.read_bytes()[:length])
    whole = max(i for i, end in enumerate(ends) if end <= max(length, 0) or (length and end == length + 1))
    again = Journal(path)
    expected = dict(records[:whole])
    assert {key: again.get(key) for key in expected} == expected and len(again._records) == len(expected)
    again.put("more", 1)  # is not swallowed by the torn line
    again.close()
    last = Journal(path)
    assert last.get("more") == 1 and len(last._records) == len(expected | {"more": 1})
    last.close()


def test_damaged_records_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    for number in range(3):
        journal.put(f"key{number}", "value")
    journal.close()
    path.write_bytes(path.read_bytes().replace(b'"key1","value"', b'"key1","evil!"'))
    again = Journal(path)
    assert [again.get(f"key{number}") for number in range(3)] == ["value", None, "value"]
    again.close()


def test_a_killed_process_leaves_its_records(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from rulegen.journal import Journal\n"
        "j = Journal(Path(sys.argv[1])); j.put('done', [1, 2]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path / "j")], check=False)
    assert process.returncode == -signal.SIGKILL
    journal = Journal(tmp_path / "j")
    assert journal.get("done") == [1, 2]
    journal.remove()
    assert not (tmp_path / "j").exists()


def test_a_journal_belongs_to_what_determines_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path))
    parameters = {"group": "linear", "ops": 3, "seed": 0}
    journal = Journal.of(parameters)
    journal.put("stage", 1)
    journal.close()
    assert journal.path is not None and journal.path.parent == cache_folder() / "grow"
    assert Journal.of(parameters).get("stage") == 1
    for other in ({"group": "normal"}, {"ops": 4}, {"seed": 1}):
        assert Journal.of(parameters | other).get("stage") is None
    monkeypatch.setattr(journal_module, "generator_digest", lambda: "another")
    assert Journal.of(parameters).get("stage") is None
    monkeypatch.undo()
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path))
    assert Journal.of(parameters, fresh=True).get("stage") is None
    assert Journal.of(parameters).get("stage") is None


def test_the_generator_is_all_that_the_outcome_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = journal_module.generator_digest.__wrapped__
    assert generator() == generator()
    axioms = dict(journal_module.load_axioms())
    axioms.popitem()
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "load_axioms", lambda: axioms)
        changed_properties = generator()
    original = Path.read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda self: original(self) + (b"#" if self.name == "stages.py" else b""))
        changed_source = generator()
    assert len({generator(), changed_properties, changed_source}) == 3


def test_without_a_place_to_write_it_warns_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        journal = Journal(tmp_path / "file" / "j")
    assert "cannot be resumed; set ONNX_SUPEROPT_CACHE" in caplog.text
    journal.put("key", 1)
    assert journal.get("key") == 1
    journal.remove()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_warns_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"")
    journal = Journal(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        journal.put("a", 1)
        journal.put("b", 2)
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_a_journal_without_a_file() -> None:
    journal = Journal()
    assert journal.get("key") is None
    journal.put("key", (1, "x"))
    assert journal.get("key") == [1, "x"]
    journal.remove()


# Growth


class Killed(BaseException):
    """Nothing catches it."""


class Mortal(Journal):
    """Dies after so many records."""

    def __init__(self, path: Path, records: int) -> None:
        super().__init__(path)
        self.left = records

    def put(self, key: str, data: Any) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        super().put(key, data)


def outcome(growth: Growth) -> tuple[object, ...]:
    stages = [(stage.name, stage.left) for stage in growth.stages]
    return format_rules(growth.rules), list(map(str, growth.unproved)), list(map(str, growth.suspicious)), stages, growth.terms


def test_a_growth_resumes_wherever_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["lowrank"]
    whole = Journal(tmp_path / "whole")
    expected = outcome(grow(workload, journal=whole))
    assert expected == outcome(grown_part("lowrank")) and len(whole._records) > 5
    path = tmp_path / "j"
    for records in (0, 1, 1, 1, 4, len(whole._records) - 9):  # killed again and again, a little further each time
        with pytest.raises(Killed):
            grow(workload, journal=Mortal(path, records))
    done = Journal(path)
    assert len(done._records) == len(whole._records) - 2
    monkeypatch.setattr(candidates, "enumerate_terms", lambda *arguments: pytest.fail("enumerated again"))
    tests: list[object] = []
    monkeypatch.setattr(
        certification,
        "float_test",
        lambda *arguments: tests.append(arguments) or float_test(*arguments),  # type: ignore[func-returns-value]
    )
    assert outcome(grow(workload, journal=done)) == expected
    tests.clear()
    assert outcome(grow(workload, journal=Journal(path))) == expected
    assert not tests


STAGES = {
    "renaming 0": (candidates, "enumerate_terms"),
    "common subgraph 0": (candidates, "generalise"),
    "instances 0": (candidates, "drop_instances"),
    "field 0": (candidates, "retest"),
    "derivable 0": (selection, "derivable_data"),
    "redundant 0": (Deriver, "redundant"),
    "macro 0": (selection, "macro_data"),
    "wider 0": (selection, "wider_data"),
}
"""A record of each stage that takes long, and what is not called again once it stands."""


def test_a_stage_that_stands_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["linear"]
    whole = Journal(tmp_path / "whole")
    expected = outcome(grow(workload, 2, journal=whole))
    kinds = [key.rsplit(" ", 1)[0] for key in whole._records]
    for key, (owner, function) in STAGES.items():
        last = max(place for place, kind in enumerate(kinds) if kind == key.rsplit(" ", 1)[0])
        until = Journal(tmp_path / key)
        for other, data in list(whole._records.items())[: last + 1]:
            until.put(other, data)
        with monkeypatch.context() as patch:
            patch.setattr(owner, function, lambda *arguments, at=key: pytest.fail(f"{at} is done again"))
            assert outcome(grow(workload, 2, journal=until)) == expected


@pytest.mark.parametrize("seed", range(6))
def test_a_growth_that_is_killed_at_random_moments_gives_the_same(tmp_path: Path, seed: int) -> None:
    workload, chance = WORKLOADS["taso-parts"], random.Random(seed)
    expected = outcome(grown_part("taso-parts", 2))
    path, kills = tmp_path / "j", 0
    while True:
        journal = Mortal(path, chance.randrange(12))
        try:
            assert outcome(grow(workload, 2, journal=journal)) == expected
            break
        except Killed:
            journal.close()
            kills += 1
            content = path.read_bytes()
            path.write_bytes(content[: len(content) - chance.randrange(9)])  # the last line may be torn
    assert kills


def _command(path: Path) -> bytes:
    """Of a process that may have ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_command_resumes_after_a_kill(tmp_path: Path) -> None:
    environment = {**os.environ, "ONNX_SUPEROPT_CACHE": str(tmp_path / "cache")}
    out = tmp_path / "out.rules"
    arguments = [sys.executable, "-m", "rulegen", "grow", "--group", "lowrank", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journals, deadline = tmp_path / "cache" / "grow", time.monotonic() + 60
    while not any(path.read_bytes().count(b"\n") > 8 for path in journals.glob("lowrank-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not out.exists()
    while any(str(out).encode() in _command(path) for path in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < deadline, "its workers end with it"
        time.sleep(0.05)
    (journal,) = journals.iterdir()
    finished = journal.read_bytes()
    again = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert again.wait(timeout=60) == 0
    assert b'["gated"' in finished and not list(journals.iterdir())
    assert out.read_text().endswith(format_rules(grown_part("lowrank").rules))
