"""The outcome of a growth, and the clock that measures its stages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rulegen.candidate import CandidateRule
from rulegen.workloads.workload import Workload
from rules_db.trust.rule import Rule

__all__ = ["Growth", "Stage", "StageClock"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A stage with the number of terms, pairs, candidates or rules that are left after it, and its cost in seconds."""

    name: str
    left: int
    seconds: float


@dataclass
class Growth:
    """The outcome of a growth.

    Attributes:
        rules: proved rules, in order of size: a minimal set that derives all proved candidates, and macros.
        unproved: numerically true candidates without a certificate: proposals for new properties, ranked. A property that
            makes the first of them provable also makes others so.
        derived: candidates that the rules derive.
        survivors: how many candidates passed the numeric gate, floats included.
        suspicious: candidates with a proof that random inputs contradict; any is a bug in a property.
        stages: counts and times.
        terms: terms evaluated per level; classes: classes first met per level.
    """

    workload: Workload
    max_ops: int
    seed: int
    rules: list[Rule] = field(default_factory=list)
    unproved: list[CandidateRule] = field(default_factory=list)
    suspicious: list[CandidateRule] = field(default_factory=list)
    derived: list[CandidateRule] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    survivors: int = 0
    terms: list[int] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)

    @property
    def parameters(self) -> list[Any]:
        """Workload, operators and seed, as units of work have them."""
        return [self.workload.as_data(), self.max_ops, self.seed]

    @property
    def seconds(self) -> float:
        """The cost of all stages."""
        return sum(stage.seconds for stage in self.stages)


class StageClock:
    """Enters the stages of a growth with the time since the last one, and tells of them."""

    def __init__(self, growth: Growth, progress: Callable[[Stage], None]) -> None:
        self._growth, self._progress = growth, progress
        self._since = time.perf_counter()

    def resume(self) -> None:
        """Begins to count for the next stage; what went by belongs to other growths."""
        self._since = time.perf_counter()

    def stage(self, name: str, left: int) -> None:
        """Ends a stage."""
        now = time.perf_counter()
        stage = Stage(name, left, now - self._since)
        self._since = now
        self._growth.stages.append(stage)
        logger.info("%s: %s: %d left, %.1f s", self._growth.workload.name, name, left, stage.seconds)
        self._progress(stage)
