"""How far roundings move what a model computes.

Several runs are made side by side in which each result that an operator rounds is rounded up or down at random (Parker, Monte
Carlo Arithmetic, 1997; Vignes, Discrete Stochastic Arithmetic, 2004). The runs of each operand are exchanged at random, too:
readers of one value see other roundings of it, as they do where a rewriting computes it for one of them in another way. Each
run is read by one, so that what differs in a few of them still does behind many nodes. Where runs differ, the original decides
nothing but to within that difference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.onnx import ModelError, load
from mugraph.onnx.scopes import captured, executed_nodes, nested_nodes
from mugraph.ops import Entrywise, Reduction, traits_of
from rewriter.reference.comparison import is_float
from tools.fuzz.running import CannotRun, Outputs, run, session

__all__ = ["TakesTooLong", "processor_seconds", "rounding_errors", "within_rounding"]

_RUNS = 8
"""Runs that are compared with the original: of two ways to round, one that differs is missed by one set of runs in 2⁸."""
_MARGIN = 4.0
"""How much further than in these runs other roundings may move an entry."""
_EXACT_KINDS = (Entrywise.EXTREMUM, Entrywise.COMPARISON, Entrywise.LOGIC, Entrywise.SELECTION)
_EXACT_REDUCTIONS = (Reduction.MAX, Reduction.MIN)

_Runs = list[Any]
"""A value in each run."""


class TakesTooLong(Exception):
    """What roundings move was not measured to the end."""


def processor_seconds() -> float:
    """Seconds of processor time of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rounding_errors(
    model: bytes, feed: Mapping[str, Any], original: Outputs, end: float = math.inf
) -> list[np.ndarray | None] | None:
    """For each output, how far its entries are from the original's in some run, at most; infinite where one is no number.

    Args:
        feed: the inputs.
        original: what the model gives on them.
        end: the instant of :func:`processor_seconds` after which no further node is run.

    Returns:
        An array of the output's shape each, ``None`` for what is no array of numbers; ``None`` alone where nodes do not run one
        by one, or give values of other shapes once they are rounded otherwise.

    Raises:
        TakesTooLong: not all nodes were run by then.
    """
    try:
        outputs = _rounded_runs(onnx.ModelProto.FromString(model), feed, end)
    except (CannotRun, ModelError):
        return None
    return [_greatest(one, runs) for one, runs in zip(original, outputs, strict=True)]


def within_rounding(actual: Any, original: Any, errors: np.ndarray | None) -> Any:
    """An output with the original's entries in the place of those that roundings explain."""
    if errors is None or not isinstance(actual, np.ndarray) or (actual.shape, actual.dtype) != (original.shape, original.dtype):
        return actual
    return np.where(_distance(actual, original) <= _MARGIN * errors, original, actual)


def _rounded_runs(model: onnx.ModelProto, feed: Mapping[str, Any], end: float) -> list[_Runs]:
    """The outputs in each run. Raises CannotRun, ModelError, TakesTooLong."""
    generator = np.random.default_rng(0)
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in feed}
    values: dict[str, _Runs] = {name: [value] * _RUNS for name, value in feed.items()}
    for position in sorted(executed_nodes(model.graph)):
        if processor_seconds() > end:
            raise TakesTooLong
        node = model.graph.node[position]
        names = [name for name in dict.fromkeys([*node.input, *captured(node)]) if name]
        computed = [name for name in names if name in values]
        first = {name: values[name][0] for name in computed}
        alone = _alone(model, node, first, [stored[name] for name in names if name in stored])
        kernel = session(alone.SerializeToString(), optimize=False)
        adds, rounds = _character(alone, run(kernel, first))
        made: dict[str, _Runs] = {name: [] for name in node.output if name}
        orders = {name: generator.permutation(_RUNS) for name in computed}
        for run_ in range(_RUNS):
            operands = {name: values[name][order[run_]] for name, order in orders.items()}
            if adds:
                operands = {name: _rounded(value, generator) for name, value in operands.items()}
            for runs, result in zip(made.values(), run(kernel, operands), strict=True):
                runs.append(_rounded(result, generator) if rounds else result)
        values.update(made)
    values.update((name, [numpy_helper.to_array(tensor)] * _RUNS) for name, tensor in stored.items())
    return [values[output.name] for output in model.graph.output]


def _alone(
    model: onnx.ModelProto, node: onnx.NodeProto, operands: Mapping[str, Any], stored: Sequence[onnx.TensorProto]
) -> onnx.ModelProto:
    """A model of one node, whose outputs have no types. Raises CannotRun where an operand is no tensor.

    It has the functions of the whole model only if the node, or one in its bodies, calls one: sizes in functions may have to be
    inferred in a process of its own.
    """
    inputs = [_declared(name, value) for name, value in operands.items()]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "one", inputs, results, stored)
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    own = {(function.domain, function.name) for function in model.functions}
    if any((called.domain, called.op_type) in own for called in nested_nodes(alone)):
        alone.functions.extend(model.functions)
    return alone


def _declared(name: str, value: Any) -> onnx.ValueInfoProto:
    """A value's name and type. Raises CannotRun where it is no tensor."""
    if not isinstance(value, np.ndarray | np.generic):
        raise CannotRun(f"'{name}' is no tensor")
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), np.shape(value))


def _character(alone: onnx.ModelProto, results: Outputs) -> tuple[bool, bool]:
    """Whether a node adds up many numbers, and whether it rounds what it computes. Raises CannotRun, ModelError.

    Args:
        alone: a model of it, whose outputs get the types of these results.
    """
    for output, result in zip(alone.graph.output, results, strict=True):
        output.CopyFrom(_declared(output.name, result))
    graph = load(alone).graph
    nodes = [node for node in graph.nodes() if not node.is_opaque]  # no rewriting changes what is opaque
    return any(traits_of(node.op).accumulates for node in nodes), any(_rounds(graph, node) for node in nodes)


def _rounds(graph: Graph, node: Node) -> bool:
    """Whether a node computes floats of floats, and does more than choose or move them or take their whole part or their sign."""
    traits = traits_of(node.op)
    exact = traits.movement is not None or traits.entrywise in _EXACT_KINDS or traits.reduction in _EXACT_REDUCTIONS
    exact |= traits.piecewise and traits.function is not None
    types = [graph.type(value) for value in node.inputs]
    return not exact and any(type_ is not None and type_.dtype in FLOATS for type_ in types)


def _rounded(value: Any, generator: np.random.Generator) -> Any:
    """An array with each entry as the next number above or below; zeros, infinities and the greatest numbers stay."""
    if not isinstance(value, np.ndarray | np.generic) or not is_float(np.asarray(value)):
        return value
    array = np.asarray(value)
    up = np.where(generator.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype)
    with np.errstate(all="ignore"):
        moved = np.nextafter(array, up)
        return np.where((array == 0) | ~np.isfinite(array) | ~np.isfinite(moved), array, moved)


def _greatest(original: Any, runs: Sequence[Any]) -> np.ndarray | None:
    """How far the entries of some run are from the original's at most."""
    if not isinstance(original, np.ndarray) or original.dtype == object:
        return None
    if any(np.shape(one) != original.shape for one in runs):
        return np.full(original.shape, np.inf)
    return np.max([_distance(np.asarray(one), original) for one in runs], axis=0)


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The distances between entries; none between what is not finite and the same, infinite to anything else."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(a - b) if is_float(one) else np.maximum(np.abs(a - b), 1.0)  # whole numbers may be beyond 2⁵³
    same = (one == other) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
