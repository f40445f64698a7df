"""Cases run in processes of their own: what raises, hangs, takes too much memory or dies is told, and the rest goes on."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import psutil
import pytest

from mugraph.limited import memory_limit
from rewriter.runtime_env import new_session
from tools.fuzz.campaign import CaseLimits, Show, campaign, signal_of
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


def test_no_case_begins_after_the_end() -> None:
    assert not [*campaign(["fine"], examine, 1, limits(), end=time.monotonic())]


def test_sessions_of_a_case_have_one_thread() -> None:
    def told(name: str, show: Show) -> CaseReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("onnxruntime.InferenceSession", lambda model, options, providers: options.intra_op_num_threads)
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


def test_what_ends_a_process_by_itself_is_told_apart() -> None:
    ends = {"dies": signal.SIGKILL, "fails": signal.SIGTERM}

    def run(name: str) -> None:
        if name == "raises":
            raise LookupError(name)
        if name in ends:
            os.kill(os.getpid(), ends[name])
        time.sleep(60 if name == "sleeps" else 0)

    names = ("dies", "fails", "raises", "sleeps", "fine")
    assert [signal_of(run, name, 5 if name != "sleeps" else 0.2) for name in names] == ["SIGKILL", "SIGTERM", "", "", ""]


@pytest.mark.parametrize("fails, fate", [(True, "the runtime's own"), (False, "died")])
def test_a_case_whose_original_ends_the_process_is_no_defect(fails: bool, fate: str, capsys: pytest.CaptureFixture[str]) -> None:
    def original(_: str) -> None:
        if fails:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(SystemExit) as ended:
        attack("t", ["dies"], examine, jobs=1, minutes=1, seconds=8, memory=1 << 20, out=None, only=None, originals=original)
    assert ended.value.code == (0 if fails else 1) and f"{fate}: dies: " in capsys.readouterr().out
