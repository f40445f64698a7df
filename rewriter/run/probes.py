"""Probes: inputs beside those that are timed, at other scales and sizes, on which candidates are compared as well.

A rule that is wrong for large numbers, for rows without a positive one, or where a dimension is 1 is right on normal numbers of
the measured sizes. Small sizes also cost little, so that each probe is at another scale and, where dimensions are dynamic, at
another size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mugraph.graph import Node
from mugraph.onnx import Model, dimension_in_words
from mugraph.ops import RUNTIME_OPERATORS, reader_of, traits_of
from mugraph.terms.shape import Dim, concrete, evaluate_dim
from rewriter.reference import few_parts, keeps_parts_apart, random_inputs
from rewriter.run.task import Task

__all__ = ["InputProbe", "probes"]

_SCALES = (100.0, 0.01)
"""Of the floats of the probes, in the order of :func:`_other_sizes`."""


@dataclass(frozen=True, slots=True)
class InputProbe:
    """Inputs on which candidates are compared.

    Attributes:
        feed: the inputs.
        words: what is particular of them.
    """

    feed: Mapping[str, np.ndarray]
    words: str


def probes(task: Task, timed: Mapping[str, float]) -> list[list[InputProbe]]:
    """The probes of a task; of each list the first counts that the original runs.

    A model may ask more of its sizes than it says: the measured ones are the last resort. Where a number that is fed decides what
    the model does, there is a probe for each such number; half the size may go with another one.

    Where a model keeps the parts of a batch apart, only two of a probe at another scale are different, and the reference takes as
    long as for two (:mod:`rewriter.reference.repeats`). All outputs are compared. Of inputs that are timed all parts are
    different: they show where one is taken for another.

    Args:
        timed: the numbers that inputs are timed with.
    """
    found = []
    parts = keeps_parts_apart(task.model, task.sizes)
    half = {name: size // 2 if isinstance(size, int) and size > 1 else size for name, size in task.sizes.items()}
    others = [chosen for chosen in task.choices() if chosen != timed]
    for seed, chosen in enumerate(others, 21):
        alternatives = [task.sizes] if half == task.sizes else [task.sizes, half]
        found.append([_probe(task, sizes, 1.0, seed, chosen, timed) for sizes in alternatives if _exist(task, sizes)])
    for seed, (scale, sizes) in enumerate(zip(_SCALES, _other_sizes(task.sizes), strict=True), 11):
        alternatives = [sizes] if sizes == task.sizes else [sizes, task.sizes]
        scaled = [_probe(task, chosen, scale, seed, timed, timed) for chosen in alternatives if _exist(task, chosen)]
        found.append([replace(probe, feed=few_parts(probe.feed, parts)) for probe in scaled])
    return found


def _other_sizes(measured: Mapping[str, Dim]) -> Sequence[Mapping[str, Dim]]:
    """Sizes of dimension symbols: all 1, and all another small number."""
    return {name: 1 for name in measured}, {name: 2 if size == 3 else 3 for name, size in measured.items()}


def _exist(task: Task, sizes: Mapping[str, Dim]) -> bool:
    """Whether inputs of these sizes exist, and every value has entries for them, as far as its type says, read or not.

    A dimension may be a symbol less a number, and a window may be larger than its image, or the operands of onnxruntime's own
    operators contradict each other; or what is as large as a tensor of the model is broadcast against it, or does not fit it: a
    scale for each column, which onnxruntime makes part of a product of integers. Some of its kernels end the process then, and
    nobody asked for these sizes.
    """
    model = task.model
    nodes = tuple(model.tables.nodes)
    if sizes != task.sizes and any(
        _contradicts(model, node) or _stretched(model, node, sizes) - _stretched(model, node, task.sizes) for node in nodes
    ):
        return False
    inputs = (concrete([evaluate_dim(dim, sizes) for dim in type_.shape]) for type_ in model.inputs.values())
    computed = ((node, type_) for node in nodes for value in node.values if (type_ := model.tables.types[value]) is not None)
    read = model.graph.references  # of what is not read, or known, sizes that are always 0 do no harm
    dims = (dim for node, type_ in computed for dim in type_.shape if node in read or not isinstance(dim, int))
    fed = all(shape is not None and min(shape, default=1) >= 1 for shape in inputs)
    return fed and all(not isinstance(dim, int) or dim >= 1 for dim in (evaluate_dim(dim, sizes) for dim in dims))


def _contradicts(model: Model, node: Node) -> bool:
    """Whether a node is one of onnxruntime's own operators, and not as it would be at all sizes: so it was not understood."""
    if not node.is_opaque or node.origin is None:
        return False
    origin = model.origins[node.origin]
    return (origin.domain, origin.op_type) in RUNTIME_OPERATORS


def _stretched(model: Model, node: Node, sizes: Mapping[str, Dim]) -> set[tuple[int, int]]:
    """The axes of an entrywise node, counted from the last, along which an operand is not as large as the result; its position.

    The node may be one that was not understood, since nothing tells whether sizes are equal.
    """
    types = [model.tables.types[value] for value in (*node.inputs, *node.values[:1])]
    origin = None if node.origin is None else model.origins[node.origin]
    record = reader_of(origin.domain, origin.op_type) if origin is not None and node.is_opaque else None
    traits = traits_of(node.op) if record is None else record.traits
    if traits.entrywise is None or len(types) < 3 or None in types:
        return set()
    *operands, result = [type_.shape[::-1] for type_ in types if type_ is not None]
    found = set[tuple[int, int]]()
    for position, operand in enumerate(operands):
        for axis, (given, made) in enumerate(zip(operand, result, strict=False)):
            if given != made:
                first, second = evaluate_dim(given, sizes), evaluate_dim(made, sizes)
                if isinstance(first, int) and isinstance(second, int) and first != second:
                    found.add((axis, position))
    return found


def _probe(
    task: Task, sizes: Mapping[str, Dim], scale: float, seed: int, chosen: Mapping[str, float], timed: Mapping[str, float]
) -> InputProbe:
    feed = random_inputs(task.model, sizes, seed, scale, chosen)
    differs = [f"at scale {scale:g}"] if scale != 1 else []
    numbers = [f"{name} = {number:g}" for name, number in chosen.items() if number != timed.get(name)]
    dims = [f"{dimension_in_words(name)} = {size}" for name, size in sizes.items() if size != task.sizes[name]]
    differs += [f"with {', '.join(numbers)}"] if numbers else []
    differs += [", ".join(dims)] if dims else []
    return InputProbe(feed, " and ".join(differs))
