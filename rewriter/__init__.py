"""Rewriting ONNX models: matching, search, costs, acceptance and emission.

The documented entry point is :func:`rewriter.run.optimize`::

    from rewriter import optimize
    outcome = optimize("model.onnx", "model.superopt.onnx", shapes={"input_ids": (1, 128)})
    print(outcome.improved, outcome.latency)

Its keyword arguments are the fields of :class:`rewriter.run.options.Options`. The entry points are imported when they are asked
for, so that a process that only runs models with kernels (:mod:`rewriter.runtime`) loads no optimiser.
"""

from importlib import import_module
from typing import Any

_ENTRY_POINTS = {"Options": "rewriter.run.options", "Outcome": "rewriter.run.outcome", "optimize": "rewriter.run.optimize"}

__all__ = ["Options", "Outcome", "optimize"]


def __getattr__(name: str) -> Any:
    if name not in _ENTRY_POINTS:
        raise AttributeError(f"module 'rewriter' has no attribute '{name}'")
    return getattr(import_module(_ENTRY_POINTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
