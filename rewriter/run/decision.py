"""Decisions: a graph to write and the outcome that goes with it. The one place where outcomes are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.graph import Graph
from mugraph.onnx import Model, Saved, node_count
from rewriter.kernels.within import kernels_of
from rewriter.run.footprint import ModelFootprint
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.outcome import Fired, OperatorTime, Outcome
from rewriter.run.timings import Timing
from rewriter.run.workbench import Workbench
from rewriter.search.candidate import Candidate
from rewriter.search.misses import NearMiss

__all__ = ["Decision", "Footprints", "decided", "written"]


Footprints = tuple[ModelFootprint | None, ModelFootprint | None]
"""Of the original and of the written model; ``None`` for one that is in no file."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A graph to write, and the outcome of writing it.

    Attributes:
        graph: the winner's or the original's.
        outcome: complete but for what only writing tells.
        winner: the candidate behind the graph; ``None`` for the original, and for a decision of an earlier run.
        is_verdict: later runs may rest on it.
        is_interrupted: the user waits for its end.
    """

    graph: Graph
    outcome: Outcome
    winner: Candidate | None = None
    is_verdict: bool = False
    is_interrupted: bool = False


def decided(
    bench: Workbench, predictions: Predictions, judgement: Judgement, explanations: Sequence[NearMiss] | None = None
) -> Decision:
    """The decision of a run that has judged.

    Args:
        explanations: ``None`` where the run did not come to them.
    """
    task, winner = bench.task, judgement.winner
    nodes = node_count(task.original.proto)
    more = "" if judgement.is_interrupted or judgement.fault else "; --budget gives it more time"
    asked = task.options.explain if explanations is None else None
    unexplained = [] if asked is None else [f"--explain {asked}: the run ended before it looked at that{more}"]
    outcome = Outcome(
        task.name,
        str(task.output),
        improved=winner is not None,
        message=judgement.message,
        fault=judgement.fault,
        provider=task.target.provider,
        environment=task.target.environment,
        cleaned=task.cleaned is not None,
        nodes_before=nodes,
        nodes_after=nodes,
        assumed=judgement.assumed,
        fired=() if winner is None else _fired(task.model, winner),
        speed=judgement.speed,
        error_before=judgement.error_before,
        error_after=judgement.error_after,
        output_errors=judgement.output_errors,
        times=_times(predictions, winner),
        tried=judgement.tried,
        predicted_before=predictions.start,
        predicted_after=predictions.start if winner is None else winner.cost,
        expanded=predictions.expanded,
        generated=predictions.generated,
        rules=len(bench.rules),
        measured_costs=predictions.measured,
        estimated_costs=predictions.estimated,
        calibrated_costs=predictions.calibrated,
        dropped=tuple(bench.notes.dropped),
        notes=(*bench.notes.lines, *unexplained),
        explanations=tuple(explanations or ()),
    )
    graph = task.model.as_it_came if winner is None else winner.graph
    is_verdict = not (judgement.is_interrupted or judgement.is_undecided or judgement.fault)
    return Decision(graph, outcome, winner, is_verdict, judgement.is_interrupted)


def written(
    bench: Workbench,
    decision: Decision,
    saved: Saved,
    footprints: Footprints,
    overall: Timing | None,
    shared_buffers: Mapping[str, str],
) -> Outcome:
    """The outcome of a run that has written its decision.

    Args:
        saved: what was written.
        footprints: of the original and of the written model.
        overall: the written model beside the file that came.
        shared_buffers: inputs of the written model, each with an output that may be bound to the same buffer.
    """
    before, after = footprints
    notes = (*decision.outcome.notes, *bench.kernels.notes)
    files, seconds = tuple(bench.notes.files), bench.clock.seconds()
    return replace(
        decision.outcome,
        nodes_after=saved.nodes,
        domains=saved.domains,
        shared_buffers=shared_buffers,
        kernels=len(kernels_of(decision.graph)),
        before=before,
        after=after,
        overall=overall,
        notes=notes,
        file_notes=files,
        seconds=seconds,
    )


def _times(predictions: Predictions, winner: Candidate | None) -> tuple[OperatorTime, ...]:
    """Where the time goes, what changes most first."""
    search = predictions.search
    if search is None:
        return ()
    before = search.times(search.start())
    after = before if winner is None else search.times(winner)
    nothing = (0, 0.0, 0.0)
    rows = []
    for name in dict.fromkeys((*before, *after)):
        (nodes, spent, least), (nodes_after, spent_after, least_after) = before.get(name, nothing), after.get(name, nothing)
        spans = (round(number, 2) for number in (spent, spent_after, least, least_after))
        rows.append(OperatorTime(name, nodes, nodes_after, *spans))
    return tuple(sorted(rows, key=lambda row: -max(row.microseconds_before, row.microseconds_after)))


def _fired(model: Model, winner: Candidate) -> tuple[Fired, ...]:
    """The rules of a winner."""
    names = model.tables.names
    return tuple(
        Fired(
            move.direction.id,
            str(move.direction),
            str(move.direction.rule.certificate.evidence),
            len(move.sites),
            round(move.gain, 2),
            tuple(names[site[0]] or f"value {site[0]}" for site in move.sites),
        )
        for move in winner.moves
    )
