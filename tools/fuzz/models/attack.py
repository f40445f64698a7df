"""The attack with random models: made, tried, and made small where they fail."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import onnx

from rewriter.cost import get_device
from rewriter.kernels.architecture import LEAST_ARCHITECTURE, Architecture
from tools.fuzz.campaign import Show
from tools.fuzz.elsewhere import WithKernels, counted
from tools.fuzz.fates import CaseReport, Fate
from tools.fuzz.interpreted import Interpreted
from tools.fuzz.models.generate import RandomModel, random_model
from tools.fuzz.models.shrink import shrunk
from tools.fuzz.oracle import Elsewhere, examine_model
from tools.fuzz.running import CannotRun, run
from tools.fuzz.sessions import Sessions

_PATIENCE = 25.0
"""Seconds that making a model small may take."""

_PORTABLE = 8
"""One model in so many holds PTX alone, which the driver compiles."""
INTERPRETER = "interpreter"
"""In the place of a provider: Triton's."""
_STRATEGIES = ("backtracking", "backtracking", "schemes")
"""Schemes are kernels for the nodes that came; the search has kernels for what rules made of them."""

__all__ = ["INTERPRETER", "Mode", "examine_number", "examine_random", "names", "run_original"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How models are optimised, and what runs them afterwards.

    Attributes:
        target: ``cpu``; ``clean`` where models are cleaned up only; ``c`` where they get custom kernels in C; else the GPU for
            which they get custom kernels.
        provider: that they are run on with their kernels once the CPU provider has run them without; `INTERPRETER` where the
            kernels are interpreted one by one; ``None`` for none.
        memory: ``fenced`` where they are run in such memory, too.
    """

    target: str = "cpu"
    provider: str | None = None
    memory: str | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.target, self.provider, self.memory)))

    @staticmethod
    def of(words: Sequence[str]) -> Mode:
        """As the words say that end a case's name."""
        return Mode(*words)

    def options(self, number: int) -> dict[str, Any]:
        """Of the optimiser, for the model of a number."""
        if self.target in ("cpu", "clean", "c"):
            return {"provider": "cpu", "clean": self.target == "clean", "cpu_kernels": self.target == "c"}
        own = Architecture(get_device(self.target).architecture)
        chosen = (Architecture(LEAST_ARCHITECTURE, is_ptx=True),) if number % _PORTABLE == 0 else (own,)
        return {"device": self.target, "architectures": chosen, "strategy": _STRATEGIES[number % len(_STRATEGIES)]}


_PLAIN = Mode()


def names(seed: int, count: int, mode: Mode = _PLAIN) -> list[str]:
    """``SEED NUMBER MODE`` of the first models of a seed."""
    return [" ".join(filter(None, (f"{seed} {number}", "" if mode == _PLAIN else str(mode)))) for number in range(count)]


def examine_number(name: str, show: Show) -> CaseReport:
    """Makes the model of one of :func:`names` and tries it."""
    seed, number, *words = name.split()
    mode = Mode.of(words)
    elsewhere = _elsewhere(mode.provider, mode.memory == "fenced")
    tried = partial(examine_random, elsewhere=elsewhere, **mode.options(int(number)))
    model = random_model(int(seed), int(number))
    show(_files(model.proto))
    report = tried(model)
    if not report.fate.is_finding or report.fate is Fate.UNMEASURED:  # each smaller one would take as long again
        return report
    small = shrunk(model, lambda one: _same(report, tried(one)), time.monotonic() + _PATIENCE)
    again = tried(small)
    detail = f"{again.detail}\n\nmade small:\n{onnx.printer.to_text(small.proto)}"
    files = {f"small_{name}": content for name, content in {**_files(small.proto), **again.files}.items()}
    return replace(report, reason=again.reason, detail=detail, files={**report.files, **files})


@lru_cache(maxsize=1)
def _elsewhere(provider: str | None, fenced: bool) -> Elsewhere:
    """What runs models besides the CPU provider; one for all cases of this process."""
    if provider == INTERPRETER:
        return Interpreted()
    return counted if provider is None else WithKernels(Sessions(provider), fenced)


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


def examine_random(model: RandomModel, elsewhere: Elsewhere | None = None, **more: Any) -> CaseReport:
    """What becomes of a model, with more options of the optimiser than are its own.

    Args:
        elsewhere: as of :func:`tools.fuzz.oracle.examine_model`.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        options = {"deterministic": True, **model.options, **more}
        return examine_model(model.proto.SerializeToString(), model.feeds, Path(folder), elsewhere, **options)


def _files(proto: onnx.ModelProto) -> dict[str, bytes]:
    return {"model.onnx": proto.SerializeToString(), "model.txt": onnx.printer.to_text(proto).encode()}
