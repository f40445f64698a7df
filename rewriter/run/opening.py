"""What is made of a model is opened in a process of its own first, where onnxruntime might end the one that opens it.

onnxruntime's optimisers move quantisation about. Where the bodies of an If, Loop or Scan read what it gives they may end the
process (docs/upstream.md), and whether they do depends on which nodes a file holds: a model that loads comes to be one that does
not when nodes go that nobody needs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from mugraph.deadline import deadline, heed
from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.graph import Graph, Node
from mugraph.limited import LimitExceeded, memory_limit, run_limited
from mugraph.onnx import Model
from rewriter.runtime_env import RuntimeFailure, settings_elsewhere

__all__ = ["open_elsewhere_first"]

_SCRIPT = Path(__file__).with_name("opening_process.py")
_SECONDS = 120.0
"""The most that opening a model in a process of its own may take."""
_MEMORY = 1 << 46
"""Bytes that it may have where the system tells of no limit."""
_NARROW = frozenset(dtype for dtype in INTEGERS if dtype.numpy().itemsize <= 2)
"""The types of quantised numbers."""


def open_elsewhere_first(model: Model, path: Path, provider: str) -> None:
    """Opens a file made of a model in a process of its own, if the model has bodies and quantises.

    Nothing is known where that takes longer than there is time or cannot be done; what onnxruntime refuses it refuses again.

    Raises:
        RuntimeFailure: that ends the process.
        BudgetSpent: the deadline of this thread's work is over.
    """
    if not model.bodies or not any(_quantizes(model.graph, node) for node in model.graph.nodes()):
        return
    task, ends = {"model": str(path), **settings_elsewhere(provider)}, deadline()
    seconds = min(_SECONDS, math.inf if ends is None else ends.left())
    try:
        run_limited(_SCRIPT, json.dumps(task).encode(), seconds=seconds, memory=memory_limit() or _MEMORY)
    except LimitExceeded as problem:
        heed()
        if problem.crashed:
            raise RuntimeFailure(f"a process that opened it {problem}") from None


def _quantizes(graph: Graph, node: Node) -> bool:
    """Whether a node makes narrow integers of floats, or floats of these."""
    dtypes = {type_.dtype for value in (*node.inputs, *node.values) if (type_ := graph.type(value)) is not None}
    return bool(dtypes & FLOATS and dtypes & _NARROW)
