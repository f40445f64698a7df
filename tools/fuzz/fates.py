"""What becomes of a case, and the tally of a campaign."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

__all__ = ["CaseReport", "Fate", "Tallies", "origin_of"]


class Fate(StrEnum):
    """What became of a case."""

    UNCHANGED = "unchanged"
    """Written as it came."""
    REWRITTEN = "rewritten"
    """Written in another form that computes the same."""
    NOT_RUNNABLE = "not runnable"
    """onnxruntime itself cannot run the original: nothing can be compared."""
    TOLD = "told"
    """What was changed is said to differ."""
    REFUSED = "refused"
    """One clear error of the optimiser's."""
    RUNTIME = "the runtime's own"
    """onnxruntime computes one thing with its optimisers and another without them, or ends the process: no oracle."""
    ILL_CONDITIONED = "ill-conditioned"
    """Written in another form, and on some inputs as far from the original as roundings move that: no oracle for these."""
    UNMEASURED = "unmeasured"
    """Written in another form, and on some inputs further from the original than is right by itself; what roundings move of that
    takes too long to measure. Nobody knows."""
    DOUBTED = "doubted"
    """A rule fired that numeric acceptance then took back."""
    WRONG = "wrong"
    LOST = "lost"
    """What was written does not load, or nothing was."""
    TRACEBACK = "traceback"
    HANG = "hang"
    MEMORY = "memory"
    DIED = "died"
    """The process was ended by a signal."""

    @property
    def is_failure(self) -> bool:
        """Whether it is a defect of the optimiser's."""
        return self in (Fate.WRONG, Fate.LOST, Fate.TRACEBACK, Fate.HANG, Fate.MEMORY, Fate.DIED)

    @property
    def is_finding(self) -> bool:
        """Whether somebody should look at it."""
        return self.is_failure or self in (Fate.RUNTIME, Fate.ILL_CONDITIONED, Fate.UNMEASURED, Fate.DOUBTED)


@dataclass(frozen=True, slots=True)
class CaseReport:
    """What became of one case.

    Attributes:
        reason: why, in a line; cases of one cause have one reason.
        detail: all that is known, for people.
        fired: ids of the rules that the written model uses.
        files: by name, what shows the case.
        counts: what else a campaign adds up, by what it is.
    """

    fate: Fate
    reason: str = ""
    detail: str = ""
    fired: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def origin_of(problem: BaseException) -> str:
    """The type of an exception and the line of the project that it came through last: equal for equal defects."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/tools/fuzz/" not in frame.filename]
    place = f"{'/'.join(Path(ours[-1].filename).parts[-3:])}:{ours[-1].lineno} {ours[-1].name}" if ours else "outside"
    return f"{type(problem).__name__} at {place}"


class Tallies:
    """Counts of a campaign by fate, by reason and by rule, and of whatever else its cases count."""

    def __init__(self) -> None:
        self.fates: Counter[Fate] = Counter()
        self.reasons: Counter[tuple[Fate, str]] = Counter()
        self.rules: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.examples: dict[tuple[Fate, str], str] = {}

    def add(self, name: str, report: CaseReport) -> None:
        """Counts a case."""
        self.fates[report.fate] += 1
        self.rules.update(set(report.fired))
        self.counts.update(report.counts)
        if report.reason:
            self.reasons[report.fate, report.reason] += 1
            self.examples.setdefault((report.fate, report.reason), name)

    @property
    def failures(self) -> int:
        """Cases that show a defect."""
        return sum(count for fate, count in self.fates.items() if fate.is_failure)

    def line(self) -> str:
        """The counts by fate in a line."""
        return ", ".join(f"{self.fates[fate]} {fate}" for fate in Fate if self.fates[fate])
