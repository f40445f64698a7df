"""What a run found and how it was judged, as values: a run that ends before it searches has them, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rewriter.reference import Error
from rewriter.run import timings
from rewriter.run.faults import Fault
from rewriter.run.outcome import Assumed, OutputError, Tried
from rewriter.search.candidate import Candidate

__all__ = ["Judgement", "Predictions", "RunFigures"]


class _Priced(Protocol):
    """What tells where the time of candidates goes, by the cost model: a search."""

    def start(self) -> Candidate:
        """The model as it came."""

    def times(self, candidate: Candidate) -> Mapping[str, tuple[int, float, float]]:
        """Of each operator: its nodes, their microseconds, and the least that these can be."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Figures of searching.

    Attributes:
        start: cost of the model as it came, in microseconds.
        expanded, generated: candidates of all rounds.
        measured, estimated: costs that were measured in this run, and those that a roofline stands in for.
        calibrated: of the latter, those that what was measured of their kind has calibrated.
        search: at the prices of the last round.
    """

    start: float = 0.0
    expanded: int = 0
    generated: int = 0
    measured: int = 0
    estimated: int = 0
    calibrated: int = 0
    search: _Priced | None = None


@dataclass(slots=True)
class RunFigures:
    """Figures of searching by now, whatever ends that."""

    predictions: Predictions = Predictions()

    def count(self, expanded: int, generated: int) -> None:
        """Counts candidates of one more search."""
        told = self.predictions
        self.predictions = replace(told, expanded=told.expanded + expanded, generated=told.generated + generated)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The candidate to write, and why it is that one.

    Attributes:
        winner: the candidate to write; ``None`` for the original.
        message: why the original is kept, where it is.
        error_before, error_after: of the original and of the winner against the reference.
        speed: of the winner.
        is_interrupted: the user stopped the run: this is no verdict.
        is_undecided: noise or the budget decided, which another run may do otherwise: this is no verdict either.
        fault: the internal error for which the original is kept.
        assumed: what the winner takes for granted of the inputs.
        output_errors: as ``error_before`` and ``error_after``, of each output.
        tried: the candidates that were tried, or were to be, in order.
    """

    winner: Candidate | None = None
    message: str = ""
    error_before: Error | None = None
    error_after: Error | None = None
    speed: timings.Speed = timings.UNTIMED
    is_interrupted: bool = False
    is_undecided: bool = False
    fault: Fault | None = None
    assumed: tuple[Assumed, ...] = ()
    output_errors: tuple[OutputError, ...] = ()
    tried: tuple[Tried, ...] = ()
