"""Whole runs of the command, as processes of their own: with random budgets and options, on caches that others use at the same
time, in each other's way; some are interrupted.

As many as there are processors make no load; give more ``--jobs`` than that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx

from mugraph.starting import INTERRUPTED_EXIT
from tools.fuzz.campaign import Show
from tools.fuzz.fates import CaseReport, Fate
from tools.fuzz.models.generate import random_model
from tools.fuzz.oracle import compare_models
from tools.zoo.built import lora_block

__all__ = ["examine_run", "names"]

_COMMAND = """
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
from rewriter.cli import optimize_command; optimize_command()
"""
"""A process that was started by one which ignores interrupts would ignore them, too."""
_SECONDS = 150.0
"""That a run may take: its budget is 20 at most, and others may have the processors."""
_CACHES = 3
_OPTIONS = (
    (),
    (),
    (),
    ("--deterministic",),
    ("--deterministic", "--no-layer-reuse"),
    ("--strategy", "sequential"),
    ("--no-verdict-cache",),
    ("--inputs-may-be-infinite",),
    ("--clean",),
)

Random = np.random.Generator


def names(seed: int, count: int) -> list[str]:
    """``SEED NUMBER`` of the first runs of a seed."""
    return [f"{seed} {number}" for number in range(count)]


def examine_run(caches: Path, name: str, show: Show) -> CaseReport:
    """Runs the command as one of :func:`names` says, and sees that it ends as it should and leaves nothing behind.

    Args:
        caches: folder of those that runs share.
    """
    seed, number = map(int, name.split())
    g = np.random.default_rng([seed, number, 5])
    content = _model(g, seed).SerializeToString()
    show({"model.onnx": content})
    with tempfile.TemporaryDirectory(prefix="fuzz-run-") as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "written.onnx"
        source.write_bytes(content)
        arguments = [str(source), "-o", str(target), "--provider", "cpu", "--budget", f"{_budget(g):.3g}"]
        arguments += _OPTIONS[g.integers(len(_OPTIONS))]
        patience = float(g.uniform(0.1, 12)) if g.random() < 0.3 else None
        cache = caches / str(g.integers(_CACHES))
        cache.mkdir(exist_ok=True)
        code, said = _run(arguments, cache, patience)
        told = f"{' '.join(arguments[3:])}{f', interrupted after {patience:.2f} s' if patience else ''}\nexit code {code}\n{said}"
        report = _judged(content, target, code, said, is_interrupted=patience is not None)
        left = sorted({entry.name for entry in Path(folder).iterdir()} - {source.name, target.name})
        if left and not report.fate.is_failure:
            report = _of_left(left, target, said)
        return CaseReport(report.fate, report.reason, f"{told}\n{report.detail}", report.fired, report.files)


def _of_left(left: list[str], target: Path, said: str) -> CaseReport:
    """What became of a run that left files beside the one that it wrote: a rule that it took back, and said so, or a defect."""
    quarantine = f"{target.name}.quarantine"
    if left == [quarantine] and quarantine in "".join(said.split()):  # lines end wherever a terminal's would
        return CaseReport(Fate.DOUBTED, "a rule was taken back", quarantine)
    return CaseReport(Fate.LOST, f"left behind: {Path(left[0]).suffix}", " ".join(left))


def _judged(content: bytes, target: Path, code: int | None, said: str, *, is_interrupted: bool) -> CaseReport:
    """What became of a run: how it ended, then what it wrote."""
    if code is None:
        return CaseReport(Fate.HANG, f"more than {_SECONDS:g} s")
    if "Traceback" in said:
        return CaseReport(Fate.TRACEBACK, said.strip().splitlines()[-1][:80])
    if code < 0 and not (is_interrupted and code == -signal.SIGINT):  # Python's own end, interrupted at its very last
        return CaseReport(Fate.DIED, signal.Signals(-code).name)
    if code not in ((0, INTERRUPTED_EXIT, -signal.SIGINT) if is_interrupted else (0,)):
        return CaseReport(Fate.LOST, f"exit code {code}")
    if not target.exists():
        return CaseReport(Fate.UNCHANGED, "interrupted") if code else CaseReport(Fate.LOST, "nothing was written")
    written = target.read_bytes()
    return CaseReport(Fate.UNCHANGED) if written == content else compare_models(content, written)


def _run(arguments: list[str], cache: Path, patience: float | None) -> tuple[int | None, str]:
    """The exit code of the command, ``None`` where it does not end, and what it said.

    Args:
        patience: seconds after which it is interrupted.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "ONNX_SUPEROPT_CACHE": str(cache)},
    )
    try:
        with suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=patience or _SECONDS)
            return process.returncode, said
        if patience is not None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=_SECONDS)
                return process.returncode, said
        return None, ""
    finally:
        process.kill()
        process.wait()


def _model(g: Random, seed: int) -> onnx.ModelProto:
    """One of few small transformer blocks, so that runs meet what others remembered of it, or a random model."""
    if g.random() < 0.6:
        kind = int(g.integers(4))
        return lora_block(hidden=(32, 64, 96, 128)[kind], heads=4, sequence=(4, 16, 8, 32)[kind], intermediate=96, rank=4)
    return random_model(seed, int(g.integers(1000))).proto


def _budget(g: Random) -> float:
    """Seconds, from nothing to 20, the shorter ones as often as the longer."""
    return 0.0 if g.random() < 0.05 else float(np.exp(g.uniform(np.log(0.05), np.log(20))))
