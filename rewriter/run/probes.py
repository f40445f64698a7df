"""Probes: inputs beside those that are timed, at other scales and sizes, on which candidates are compared as well.

A rule that is wrong for large numbers, for rows without a positive one, or where a dimension is 1 is right on normal numbers of
the measured sizes. Small sizes also cost little, so that each probe is at another scale and, where dimensions are dynamic, at
another size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.graph import Node
from mugraph.onnx import Model, dimension_in_words
from mugraph.ops import RUNTIME_OPERATORS, reader_of, traits_of
from mugraph.terms.shape import DerivedSymbol, Dim, evaluate_dim, is_dim, shape_at
from rewriter.reference import NoReference, choices, few_parts, keeps_parts_apart, random_inputs
from rewriter.run.task import Task
from rewriter.runtime_env import RuntimeFailure

__all__ = ["InputProbe", "RunProbe", "model_probes", "probes", "probes_at", "run_first", "sizes_beyond"]

_SCALES = (100.0, 0.01)
"""Of the floats of the probes, in the order of :func:`_other_sizes`."""
_FEW = 64
"""Entries of a constant from which on it is no list of sizes or positions."""
_TABLES = frozenset(("Slice", "Gather", "GatherElements", "GatherND"))
"""ONNX operators that read a part of a tensor, as of a mask or of positions: it is no longer than that."""
_PLACES = _TABLES | {"Range", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip", "Mod", "Trilu"}
"""Those to which a number is a place, or what places are compared with."""
_TRIED = 8
"""Sizes beyond constants that are tried."""


@dataclass(frozen=True, slots=True)
class InputProbe:
    """Inputs on which candidates are compared.

    Attributes:
        feed: the inputs.
        words: what is particular of them.
        scale: of its floats: where it is not the usual one numbers may overflow, and rounding decides more than elsewhere.
    """

    feed: Mapping[str, np.ndarray]
    words: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RunProbe:
    """A probe that counts.

    Attributes:
        outputs: what the original gives.
    """

    probe: InputProbe
    outputs: list[Any]


def probes(task: Task, timed: Mapping[str, float]) -> list[list[InputProbe]]:
    """The probes of a task: :func:`model_probes` of its model at its sizes.

    Where the model keeps the parts of a batch apart, only two of a probe at another scale are different, and the reference takes
    as long as for two (:mod:`rewriter.reference.repeats`). All outputs are compared. Of inputs that are timed all parts are
    different: they show where one is taken for another.
    """
    return model_probes(task.model, task.sizes, timed, parts=keeps_parts_apart(task.model, task.sizes))


def model_probes(
    model: Model,
    sizes: Mapping[str, Dim],
    timed: Mapping[str, float],
    further: Sequence[Sequence[Mapping[str, Dim]]] = (),
    parts: int = 0,
) -> list[list[InputProbe]]:
    """The probes of a model; of each list the first counts that the original runs (:func:`run_first`).

    A model may ask more of its sizes than it says: the measured ones are the last resort. Where a number that is fed decides what
    the model does, there is a probe for each such number; half the size may go with another one.

    Args:
        sizes: of its dimension symbols, as it is measured.
        timed: the numbers that inputs are timed with.
        further: sizes to compare at beside those that every model is compared at, each with what may stand for them.
        parts: of a batch, of which two are to differ in a probe at another scale; 0 for all.
    """
    drawn = _Drawn(model, sizes, timed)
    found = []
    half = {name: size // 2 if isinstance(size, int) and size > 1 else size for name, size in sizes.items()}
    others = [chosen for chosen in choices(model, sizes) if chosen != timed]
    for seed, chosen in enumerate(others, 21):
        alternatives = [sizes] if half == sizes else [sizes, half]
        found.append(drawn.probes(alternatives, 1.0, seed, chosen))
    for seed, (scale, other) in enumerate(zip(_SCALES, _other_sizes(sizes), strict=True), 11):
        alternatives = [other] if other == sizes else [other, sizes]
        scaled = drawn.probes(alternatives, scale, seed, timed)
        found.append([replace(probe, feed=few_parts(probe.feed, parts)) for probe in scaled])
    found += [drawn.probes(given, 1.0, seed, timed) for seed, given in enumerate(further, 31)]
    return found


def probes_at(model: Model, sizes: Mapping[str, Dim], others: Sequence[Mapping[str, Dim]], seed: int) -> list[InputProbe]:
    """Probes of the usual scale at some other sizes, of those of them that no kernel of onnxruntime is known to end at.

    Args:
        sizes: of the model's dimension symbols, as it is measured.
    """
    timed = choices(model, sizes)[0]
    return _Drawn(model, sizes, timed).probes(others, 1.0, seed, timed)


def run_first(
    found: Sequence[Sequence[InputProbe]], run: Callable[[dict[str, np.ndarray]], list[Any]]
) -> tuple[list[RunProbe], list[str]]:
    """The first probe of each list that the original runs, and what is particular of those that it does not run.

    Args:
        run: the original. Raises RuntimeFailure or NoReference where it does not run.
    """
    counting, unprobed = list[RunProbe](), list[str]()
    for alternatives in found:
        refused: list[str] = []
        for probe in alternatives:
            try:
                outputs = run(dict(probe.feed))
            except (RuntimeFailure, NoReference):  # a model may ask more of its sizes than it says
                refused.append(probe.words)
                continue
            refused = [words for words in refused if words not in probe.words]  # what was asked for runs at other sizes
            counting.append(RunProbe(probe, outputs))
            break
        unprobed += refused
    return counting, unprobed


def sizes_beyond(models: Sequence[Model], sizes: Mapping[str, Dim], most: int) -> list[list[Mapping[str, Dim]]]:
    """For each dimension symbol sizes beyond the numbers that decide by place, the furthest first; the other symbols are 1.

    Where a tensor is cut at 512, or a mask compares places with that, nothing shows at 128. Such numbers are integers that a
    model reads, whole numbers that it compares with, and the lengths of stored tensors of which it reads a part.

    Args:
        models: whose numbers count.
        sizes: of the dimension symbols of the first one, as it is measured.
        most: elements of the largest value that a model may have there.
    """
    least, _ = _other_sizes(sizes)
    found: list[list[Mapping[str, Dim]]] = []
    numbers = {n for model in models for n in _deciding(model)}
    for name, size in sizes.items():
        places = {n + more for n in numbers for more in (0, 1)}  # a model may have no room for more places than it stores
        beyond = sorted((n for n in places if isinstance(size, int) and n > size), reverse=True)
        tried: list[Mapping[str, Dim]] = [{**least, name: n} for n in beyond]
        found.append([chosen for chosen in tried if _largest(models[0], chosen) <= most][:_TRIED])
    return [alternatives for alternatives in found if alternatives]


def _deciding(model: Model) -> Iterator[int]:
    """The numbers of a model that may decide by place."""
    tables = model.tables
    for node in tables.nodes:
        dims = [item for _, value in node.attrs for item in (value if isinstance(value, tuple) else (value,)) if is_dim(item)]
        for dim in dims:
            yield from _bounds(dim)
        op_type = node.op if node.origin is None else model.origins[node.origin].op_type
        if op_type == "Slice":
            yield from (dim for dim in dims if isinstance(dim, int))
        if op_type in _PLACES:
            arrays = (array for value in node.inputs if (array := tables.small_constant(value, _FEW)) is not None)
            numbers = (float(number) for array in arrays if array.dtype.kind in "iuf" for number in array.reshape(-1))
            yield from (int(number) for number in numbers if number.is_integer() and 0 < number < np.iinfo(np.int32).max)
        if op_type in _TABLES and node.inputs and (stored := tables.constants.get(node.inputs[0])) is not None:
            yield from (dim for dim in stored.type.shape if isinstance(dim, int))


def _bounds(dim: Dim) -> Iterator[int]:
    """The numbers that a dimension is compared with: 100 in the smaller of N and 100."""
    for name in () if isinstance(dim, int) else dim.symbols():
        if isinstance(name, DerivedSymbol):
            for side in (name.first, name.second):
                yield from (side,) if isinstance(side, int) else _bounds(side)


def _largest(model: Model, sizes: Mapping[str, Dim]) -> int:
    """The elements of a model's largest value, as far as its types tell."""
    computed = (model.tables.types[value] for node in model.tables.nodes for value in node.values)
    shapes = (shape_at(type_, sizes) for type_ in (*model.inputs.values(), *computed))
    return max((math.prod(shape) for shape in shapes if shape is not None), default=0)


def _other_sizes(measured: Mapping[str, Dim]) -> Sequence[Mapping[str, Dim]]:
    """Sizes of dimension symbols: all 1, and all another small number."""
    return {name: 1 for name in measured}, {name: 2 if size == 3 else 3 for name, size in measured.items()}


def _contradicts(model: Model, node: Node) -> bool:
    """Whether a node is one of onnxruntime's own operators, and not as it would be at all sizes: so it was not understood."""
    if not node.is_opaque or node.origin is None:
        return False
    origin = model.origins[node.origin]
    return (origin.domain, origin.op_type) in RUNTIME_OPERATORS


def _may_scan_nothing(model: Model, node: Node, sizes: Mapping[str, Dim]) -> bool:
    """Whether a node may be a Scan that goes over nothing along another axis than the first: onnxruntime ends the process."""
    origin = None if node.origin is None else model.origins[node.origin]
    if origin is None or origin.op_type != "Scan":
        return False
    told = {attribute.name: attribute for attribute in origin.attribute}
    axes = list(told["scan_input_axes"].ints) if "scan_input_axes" in told else []
    first = len(origin.input) - len(axes)  # what bodies read around the node comes behind its operands
    for axis, value in zip(axes, node.inputs[first:], strict=False):
        shape = shape_at(model.tables.types[value], sizes)
        if axis and (shape is None or shape[axis] < 1):
            return True
    return False


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
            if given not in (made, 1):  # what is always 1 is broadcast by what the model says itself
                first, second = evaluate_dim(given, sizes), evaluate_dim(made, sizes)
                if isinstance(first, int) and isinstance(second, int) and first != second:
                    found.add((axis, position))
    return found


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Draws the probes of a model.

    Attributes:
        measured: sizes of its dimension symbols.
        timed: the numbers that inputs are timed with.
    """

    model: Model
    measured: Mapping[str, Dim]
    timed: Mapping[str, float]

    def probes(
        self, alternatives: Sequence[Mapping[str, Dim]], scale: float, seed: int, chosen: Mapping[str, float]
    ) -> list[InputProbe]:
        """Inputs of a seed, with some numbers for those that decide something, of each of some sizes of which there are any."""
        return [self._probe(sizes, scale, seed, chosen) for sizes in alternatives if self._exist(sizes)]

    def _exist(self, sizes: Mapping[str, Dim]) -> bool:
        """Whether inputs of these sizes exist, and every value has entries for them, as far as its type says, read or not.

        A dimension may be a symbol less a number, and a window may be larger than its image, or the operands of onnxruntime's
        own operators contradict each other; or what is as large as a tensor of the model is broadcast against it, or does not fit
        it: a scale for each column, which onnxruntime makes part of a product of integers. Some of its kernels end the process
        then, and nobody asked for these sizes.
        """
        model, measured = self.model, self.measured
        nodes = tuple(model.tables.nodes)
        if sizes != measured and any(
            _contradicts(model, node)
            or _may_scan_nothing(model, node, sizes)
            or _stretched(model, node, sizes) - _stretched(model, node, measured)
            for node in nodes
        ):
            return False
        inputs = (shape_at(type_, sizes) for type_ in model.inputs.values())
        computed = ((node, type_) for node in nodes for value in node.values if (type_ := model.tables.types[value]) is not None)
        read = model.graph.references  # of what is not read, or known, sizes that are always 0 do no harm
        dims = (dim for node, type_ in computed for dim in type_.shape if node in read or not isinstance(dim, int))
        fed = all(shape is not None and min(shape, default=1) >= 1 for shape in inputs)
        return fed and all(not isinstance(dim, int) or dim >= 1 for dim in (evaluate_dim(dim, sizes) for dim in dims))

    def _probe(self, sizes: Mapping[str, Dim], scale: float, seed: int, chosen: Mapping[str, float]) -> InputProbe:
        feed = random_inputs(self.model, sizes, seed, scale, chosen)
        differs = [f"at scale {scale:g}"] if scale != 1 else []
        numbers = [f"{name} = {number:g}" for name, number in chosen.items() if number != self.timed.get(name)]
        dims = [f"{dimension_in_words(name)} = {size}" for name, size in sizes.items() if size != self.measured[name]]
        differs += [f"with {', '.join(numbers)}"] if numbers else []
        differs += [", ".join(dims)] if dims else []
        return InputProbe(feed, " and ".join(differs), scale)
