"""What a run writes whose time or patience ended before it knew of anything better."""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.deadline import BudgetSpent
from rewriter.run.decision import decided
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.outcome import Outcome
from rewriter.run.workbench import Workbench
from rewriter.run.writing import write

__all__ = ["PATIENCE", "UNCLEAN", "ended", "kept", "unconfirmed"]

UNCLEAN = Judgement(message="interrupted while cleaning up: the original was written", is_interrupted=True)
_UNCHECKED = Judgement(
    message="interrupted before what the result rests on was checked: the original was kept", is_interrupted=True
)
PATIENCE = 0.5
"""Seconds after an interruption to wait for what is checked beside the run."""


def ended(bench: Workbench, end: Judgement) -> Outcome:
    """Writes the model as it came, since the run ended before there was anything better."""
    bare = replace(bench, task=replace(bench.task, model=bench.task.original, cleaned=None))
    return write(bare, decided(bare, replace(_known(bench), start=0.0), end))


def kept(bench: Workbench, end: Judgement, patience: float = PATIENCE) -> Outcome:
    """Writes the model that the search began with, where that is known to be right, since nothing better is.

    A clean model rests on no rule: it is the least that a run gives whose time ended before all was checked that its result
    rests on.

    Args:
        patience: seconds to wait for that knowledge.
    """
    return write(bench, decided(bench, _known(bench), end)) if bench.is_model_right(patience) else ended(bench, end)


def _known(bench: Workbench) -> Predictions:
    """What is known of the search by now: where the time of the model goes would have to be computed."""
    return replace(bench.figures.predictions, search=None)


def unconfirmed(bench: Workbench, is_interrupted: bool = False) -> Outcome | None:
    """Writes the model that the search began with, or that came, where the user does not wait until what was gone ahead of is
    known to hold.

    Args:
        is_interrupted: the user did not want to wait any more.
    """
    try:
        bench.confirm(PATIENCE if is_interrupted else math.inf)
    except KeyboardInterrupt:
        return kept(bench, _UNCHECKED if bench.is_model_right() else UNCLEAN)
    except BudgetSpent:
        if is_interrupted:
            return kept(bench, _UNCHECKED)
        raise
    return None
