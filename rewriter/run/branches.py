"""Bodies of control-flow nodes: how often each runs, and what the user should know of those that no test input runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mugraph.onnx import Model
from mugraph.terms.shape import Dim, evaluate_dim
from rewriter.search.candidate import Candidate

__all__ = ["body_runs", "notes_on_branches"]

_SHOWN = 3


def body_runs(model: Model, sizes: Mapping[str, Dim]) -> dict[int, int]:
    """How often bodies run, by number: those of loops whose count is a constant or a size; each other one is taken to run once.

    Args:
        sizes: of the model's dimension symbols.
    """
    runs: dict[int, int] = {}
    for origin, bodies in reversed(list(model.bodies.items())):  # those within a body were read before it
        node, reads = model.origins[origin], model.reads[origin]
        count = 1
        if node.op_type == "Loop" and reads[0] is not None:
            limit = model.tables.small_constant(reads[0], 1)
            count = 1 if limit is None else max(int(limit.reshape(())), 1)
        elif node.op_type == "Scan" and reads[-1] is not None:
            axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0])
            type_ = model.tables.types[reads[-1]]
            length = None if type_ is None else evaluate_dim(type_.shape[axes[-1]], sizes)
            count = max(length, 1) if isinstance(length, int) else 1
        around = runs.get(_body_of(model, origin), 1)
        runs.update((body.number, count * around) for body in bodies)
    return runs


def _body_of(model: Model, origin: int) -> int:
    """The number of the body that a node of the file stands in; 0 for the main graph."""
    values = (model.values[name] for name in model.origins[origin].output if name)
    return next((model.tables.bodies[value] for value in values if value in model.tables.bodies), 0)


def notes_on_branches(model: Model, entered: Collection[int], winner: Candidate) -> Iterator[str]:
    """A line where inputs were compared that do not run all bodies of If, Loop and Scan, and what that means for a winner.

    Args:
        entered: numbers of the bodies that some input runs.
    """
    tables, never = model.tables, {}
    for origin, bodies in model.bodies.items():
        node = model.origins[origin]
        within = _body_of(model, origin)
        for body in bodies:
            if body.number not in entered:
                is_outermost = not within or within in entered
                never[body.number] = f"the {body.attribute} of '{node.name or node.output[0]}'" if is_outermost else ""
    if not never:
        return
    places = [words for words in never.values() if words]
    shown = ", ".join(places[:_SHOWN]) + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
    moved = [move for move in winner.moves if any(tables.bodies.get(match.values[0], 0) in never for match in move.matches)]
    rests = (
        f"; {len(moved)} of the moves in them rest on their rules' proofs alone" if moved else ", and nothing was rewritten there"
    )
    yield f"no test input runs {shown}{rests}; give inputs that do with --data"
