"""Writing: the model of a decision, and its kernels for people to read."""

from __future__ import annotations

from rewriter.run.decision import Decision, written
from rewriter.run.outcome import Outcome
from rewriter.run.workbench import Workbench

__all__ = ["write"]


def write(bench: Workbench, decision: Decision) -> Outcome:
    """Writes what was decided.

    Requires that the kernels of the decision's graph are compiled. Ensures that the output is written whole or not at all.

    Returns:
        the outcome of the whole run.

    Raises:
        ModelError, StoreError: a file cannot be written.
    """
    task = bench.task
    bench.progress("writing")
    with bench.clock.lap("write"):
        nodes, kernels = bench.kernels.save(decision.graph, task.output, task.options.kernels_folder)
    return written(bench, decision, nodes, kernels)
