"""Rewriting ONNX models: matching, search, costs, acceptance and emission.

The documented entry point is :func:`rewriter.run.optimize`::

    from rewriter import optimize
    outcome = optimize("model.onnx", "model.superopt.onnx", shapes={"input_ids": (1, 128)})
    print(outcome.improved, outcome.latency)

Its keyword arguments are the fields of :class:`rewriter.run.options.Options`.
"""

from rewriter.run.optimize import optimize
from rewriter.run.options import Options
from rewriter.run.outcome import Outcome

__all__ = ["Options", "Outcome", "optimize"]
