"""Bodies that no test input runs: what the user should know of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mugraph.onnx import Model
from rewriter.search.candidate import Candidate

__all__ = ["notes_on_branches"]

_SHOWN = 3


def notes_on_branches(model: Model, entered: Collection[int], winner: Candidate) -> Iterator[str]:
    """A line where inputs were compared that do not run all bodies of If, Loop and Scan, and what that means for a winner.

    Args:
        entered: numbers of the bodies that some input runs.
    """
    tables, never = model.tables, {}
    for origin, bodies in model.bodies.items():
        node = model.origins[origin]
        within = next((tables.bodies[model.values[name]] for name in node.output if model.values.get(name) in tables.bodies), 0)
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
