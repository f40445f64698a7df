"""What is mined where processes are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx

from mugraph.onnx import load
from rulegen.mine.miner import mine
from rulegen.workers import UnitWorkers
from rules_db.exchange import format_rules
from tools.ship.spellings import build

__all__ = ["MINED", "mined_rules"]

MINED = ("attention-both-scaled-mask-guard", "layer-norm-power")
"""The spellings that are mined."""


def mined_rules(workers: UnitWorkers, show: Callable[[str], None]) -> str:
    """The text of the rules that are mined from :data:`MINED`; ``show`` is called with a line when a model is done."""
    graphs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MINED:
            path = Path(folder) / "model.onnx"
            onnx.save(build(name), path)
            graphs[name] = load(path).graph
    return format_rules(mine(graphs, progress=lambda done, _: show(f"model {done}"), workers=workers).rules)
