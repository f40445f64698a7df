"""Rewriting ONNX models: matching, search, costs, acceptance and emission.

The documented entry point is :func:`rewriter.run.optimize`::

    from rewriter import optimize
    outcome = optimize("model.onnx", "model.superopt.onnx", shapes={"input_ids": (1, 128)})
    print(outcome.improved, outcome.latency)

Its keyword arguments are the fields of :class:`rewriter.run.options.Options`. The entry points are imported when they are asked
for, so that a process that only runs models with kernels (:mod:`rewriter.runtime`) loads no optimiser.
"""

from mugraph.starting import late_names

_MODULES = {"run.options": ("Options",), "run.outcome": ("Outcome",), "run.optimize": ("optimize",)}
__getattr__ = late_names(__name__, _MODULES)

__all__ = ["Options", "Outcome", "optimize"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
