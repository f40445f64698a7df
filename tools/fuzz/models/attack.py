"""The attack with random models: made, tried, and made small where they fail."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx

from tools.fuzz.campaign import Show
from tools.fuzz.fates import CaseReport, Fate
from tools.fuzz.models.generate import RandomModel, random_model
from tools.fuzz.models.shrink import shrunk
from tools.fuzz.oracle import examine_model
from tools.fuzz.running import CannotRun, run

_PATIENCE = 25.0
"""Seconds that making a model small may take."""

__all__ = ["examine_number", "names", "run_original"]


def names(seed: int, count: int, clean: bool = False) -> list[str]:
    """``SEED NUMBER`` of the first models of a seed; with ``clean`` after it where they are cleaned up only."""
    return [f"{seed} {number}{' clean' if clean else ''}" for number in range(count)]


def examine_number(name: str, show: Show) -> CaseReport:
    """Makes the model of one of :func:`names` and tries it."""
    seed, number, *mode = name.split()
    options = {"clean": True} if mode == ["clean"] else {}
    model = random_model(int(seed), int(number))
    show(_files(model.proto))
    report = examine_random(model, **options)
    if not report.fate.is_finding or report.fate is Fate.UNMEASURED:  # each smaller one would take as long again
        return report
    small = shrunk(model, lambda one: _same(report, examine_random(one, **options)), time.monotonic() + _PATIENCE)
    again = examine_random(small, **options)
    detail = f"{again.detail}\n\nmade small:\n{onnx.printer.to_text(small.proto)}"
    files = {f"small_{name}": content for name, content in {**_files(small.proto), **again.files}.items()}
    return CaseReport(report.fate, again.reason, detail, report.fired, {**report.files, **files})


def run_original(name: str) -> None:
    """Makes the model of one of :func:`names` and runs it in onnxruntime, with its optimisers and without."""
    seed, number, *_ = name.split()
    model = random_model(int(seed), int(number))
    original = model.proto.SerializeToString()
    for feed in model.feeds.values():
        for optimize in (False, True):
            with suppress(CannotRun):
                run(original, feed, optimize)


def _same(one: CaseReport, other: CaseReport) -> bool:
    """Whether two reports are of the same defect, as far as it can be told."""
    return one.fate is other.fate and one.reason.split("(")[0] == other.reason.split("(")[0]


def examine_random(model: RandomModel, **more: Any) -> CaseReport:
    """What becomes of a model, with more options of the optimiser than are its own."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        options = {"deterministic": True, "provider": "cpu", **model.options, **more}
        return examine_model(model.proto.SerializeToString(), model.feeds, Path(folder), **options)


def _files(proto: onnx.ModelProto) -> dict[str, bytes]:
    return {"model.onnx": proto.SerializeToString(), "model.txt": onnx.printer.to_text(proto).encode()}
