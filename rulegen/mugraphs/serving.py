"""The search for the kernels of one model as a process that somebody else started, and may end at any time."""

from __future__ import annotations

from multiprocessing.connection import Connection

from mugraph.blocks.schedule import DeviceLimits
from mugraph.onnx import load
from rulegen.journal import Journal
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.lax import SubprogramBounds
from rulegen.mugraphs.mining import goals_and_parts, searched
from rulegen.mugraphs.search import KernelSearch
from rules_db.exchange import format_rule

__all__ = ["serve"]

_OPERATORS, _VALUES = 11, 200_000
"""Block operators of graphs that are enumerated, and values that are made for one subprogram."""


def serve(connection: Connection, path: str, seconds: float, device: DeviceLimits) -> None:
    """Sends the rules for one subprogram after the other, as texts, and how many there are; at the end ``None`` for rules.

    Args:
        path: of the model.
        seconds: for all of it.
        device: what block graphs have to fit.
    """
    goals = goals_and_parts({"model": load(path).graph}, SubprogramBounds())
    count = 0
    for outcome in searched(goals, KernelSearch(EnumerationLimits(_OPERATORS, _VALUES), device), Journal(), seconds):
        connection.send(([format_rule(rule) for rule in outcome.rules], len(goals)))
        count += 1
    if count == len(goals):
        connection.send((None, count))
