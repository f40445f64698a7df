"""Cases run in processes of their own: what raises, hangs, takes too much memory or dies is told, and the rest goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from mugraph.limited import memory_limit
from rewriter.runtime_env import new_session
from tools.fuzz.campaign import CaseLimits, Show, campaign, end_of
from tools.fuzz.console import attack
from tools.fuzz.fates import CaseReport, Fate, Tallies


def limits() -> CaseLimits:
    """Some seconds, and somewhat more memory than a forked process begins with."""
    return CaseLimits(seconds=8, memory=psutil.Process().memory_info().rss + (100 << 20))


def examine(name: str, show: Show) -> CaseReport:
    """Does what its name says."""
    show({"case": name.encode()})
    if name == "raises":
        raise LookupError("of its own")
    if name == "sleeps":
        time.sleep(60)
    if name == "fills":
        kept = [np.ones(1 << 20) for _ in range(200)]  # a fork begins with less than what its parent has in sum
        time.sleep(60 if kept else 0)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return CaseReport(Fate.REWRITTEN, fired=("r",))


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_case_has_its_fate(jobs: int) -> None:
    names = ["fine", "raises", "sleeps", "dies", "fills", "fine again"]
    reports = dict(campaign(names, examine, jobs, limits()))
    assert {name: report.fate for name, report in reports.items()} == {
        "fine": Fate.REWRITTEN,
        "raises": Fate.TRACEBACK,
        "sleeps": Fate.HANG,
        "dies": Fate.DIED,
        "fills": Fate.MEMORY,
        "fine again": Fate.REWRITTEN,
    }
    assert reports["dies"].reason == "SIGKILL" and reports["raises"].reason.startswith("LookupError at")
    shown = {name: report.files for name, report in reports.items() if report.files}
    assert shown == {name: {"case": name.encode()} for name in ("raises", "sleeps", "dies", "fills")}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process that keeps to one core")
def test_a_case_whose_child_waits_for_a_busy_processor_does_not_hang() -> None:
    """Four processes share a core, so that a child's second of work takes four."""
    core = min(os.sched_getaffinity(0))
    code = f"import os, time; os.sched_setaffinity(0, [{core}])\nwhile time.process_time() < {{}}: pass"

    def waits(name: str, show: Show) -> CaseReport:
        subprocess.run([sys.executable, "-c", code.format(1.2)], check=True)
        time.sleep(0.5)  # the child, which did the waiting, is gone when the case is looked at next
        return CaseReport(Fate.REWRITTEN)

    others = [subprocess.Popen([sys.executable, "-c", code.format(60)]) for _ in range(3)]
    try:
        ((_, report),) = campaign(["waits"], waits, 1, CaseLimits(seconds=3, memory=limits().memory))
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert report.fate is Fate.REWRITTEN


def test_no_case_begins_after_the_end() -> None:
    assert not [*campaign(["fine"], examine, 1, limits(), end=time.monotonic())]


def test_sessions_of_a_case_have_one_thread() -> None:
    def told(name: str, show: Show) -> CaseReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("onnxruntime.InferenceSession", lambda model, options, **given: options.intra_op_num_threads)
            threads = new_session(b"")._session
        return CaseReport(Fate.WRONG, str(threads))

    assert [report.reason for _, report in campaign(["one"], told, 1, limits())] == ["1"]


def test_a_case_knows_how_much_memory_it_may_have() -> None:
    """What it would fill it refuses, as it does on a machine that has no more."""

    def told(name: str, show: Show) -> CaseReport:
        return CaseReport(Fate.WRONG, str(memory_limit()))

    given = CaseLimits(memory=1 << 30)
    assert [report.reason for _, report in campaign(["one"], told, 1, given)] == [str(1 << 30)]


def test_a_tally_counts_defects_apart_from_what_is_merely_told() -> None:
    tallies = Tallies()
    for fate in Fate:
        tallies.add(fate.value, CaseReport(fate, f"because of {fate}"))
    assert tallies.failures == sum(fate.is_failure for fate in Fate) == 6
    assert tallies.examples[Fate.WRONG, "because of wrong"] == "wrong"


def test_what_earlier_cases_left_in_memory_is_none_of_a_later_one_s_doing() -> None:
    kept: list[bytearray] = []

    def leaks(name: str, _: Show) -> CaseReport:
        kept.append(bytearray(os.urandom(1)) * (60 << 20))
        return CaseReport(Fate.UNCHANGED)

    reports = campaign(map(str, range(12)), leaks, 1, CaseLimits(memory=psutil.Process().memory_info().rss + (300 << 20)))
    assert [report.fate for _, report in reports] == [Fate.UNCHANGED] * 12


def test_what_becomes_of_something_that_is_run_by_itself() -> None:
    def run(name: str) -> None:
        examine(name, lambda _: None)

    ends = {name: end_of(run, name, limits()) for name in ("dies", "fills", "raises", "fine")}
    assert [report.fate for report in ends.values()] == [Fate.DIED, Fate.MEMORY, Fate.TRACEBACK, Fate.UNCHANGED]
    assert ends["dies"].reason == "SIGKILL"


@pytest.mark.parametrize(
    ("case", "alone", "fate"),
    [
        ("dies", "dies", "the runtime's own"),
        ("dies", "fine", "died"),
        ("fills", "fills", "the runtime's own"),
        ("fills", "dies", "memory"),
        ("fills", "fine", "memory"),
        ("raises", "raises", "traceback"),
    ],
)
def test_a_case_whose_original_ends_as_it_does_is_no_defect(
    case: str, alone: str, fate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def original(_: str) -> None:
        examine(alone, lambda _: None)

    memory = limits().memory >> 20
    with pytest.raises(SystemExit) as ended:
        attack("t", [case], examine, jobs=1, minutes=1, seconds=8, memory=memory, out=None, only=None, originals=original)
    assert ended.value.code == (0 if fate == "the runtime's own" else 1) and f"{fate}: {case}: " in capsys.readouterr().out
