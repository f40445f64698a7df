"""The inputs on which two models are compared: usual ones, and those of other scales and sizes, as a run probes candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modeldiff.limits import RunLimit
from mugraph.domains.base import FLOATS
from mugraph.limited import memory_limit
from mugraph.onnx import Model, dimension_in_words
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import Dim, evaluate_dim, shape_at
from rewriter.reference import InputError, bind_shape, bind_sizes, choices, random_inputs, sizes_that_run
from rewriter.run.probes import InputProbe, RunProbe, model_probes, probes_at, run_first, sizes_beyond
from rewriter.runtime_env import RuntimeFailure, Session, new_session

__all__ = ["SEEDS", "CommonInputs", "common_inputs", "fed_to", "is_overridable"]

SEEDS = (1, 2)
"""Of the usual inputs."""
_OVERRIDING = 0x0E
"""Beside a seed, of the numbers that stand for defaults."""
_OVERRIDES_FROM_IR = 4
"""The version of ONNX files from which on onnxruntime lets a caller feed what has a default."""
_SEVERAL = (1, 2, 3, 4, 5, 7, 8, 16)
"""Sizes that are tried where a model runs on none of the probes with another size than the usual one."""
_MOST = 1 << 22
"""Elements of the largest value of a model at sizes beyond its constants."""


@dataclass(frozen=True, slots=True)
class CommonInputs:
    """Inputs for two models.

    Attributes:
        probes: as many as `SEEDS` of the usual scale and sizes, then others.
        outputs: what onnxruntime gives of the first model for each; empty where it does not run it.
        notes: what the user should know.
        only_at: dimension symbols of the first model with the size at which alone it runs, of several that were tried.
    """

    probes: tuple[InputProbe, ...]
    outputs: tuple[list[Any], ...]
    notes: tuple[str, ...]
    only_at: Mapping[str, Dim] = field(default_factory=dict)

    def without(self, numbers: Collection[int]) -> CommonInputs:
        """The others."""
        left = [number for number in range(len(self.probes)) if number not in numbers]
        dropped = ", nor ".join(self.probes[number].words for number in sorted(numbers))
        note = f"the model before cannot be evaluated {dropped}: nothing was compared there"
        outputs = tuple(self.outputs[number] for number in left) if self.outputs else ()
        return CommonInputs(tuple(self.probes[number] for number in left), outputs, (*self.notes, note), self.only_at)


def is_overridable(model: Model, name: str) -> bool:
    """Whether a caller may feed something else than the number that an input has by default."""
    return name in model.defaults and model.proto.ir_version >= _OVERRIDES_FROM_IR


def fed_to(model: Model, probe: InputProbe) -> dict[str, np.ndarray]:
    """What a model is fed of some inputs."""
    return {name: array for name, array in probe.feed.items() if name in model.inputs or is_overridable(model, name)}


def common_inputs(before: Model, after: Model, shapes: Mapping[str, Sequence[int]], limit: RunLimit) -> CommonInputs:
    """Random inputs for two models, as far as each has them.

    Those at other scales and sizes count where the second model takes them and onnxruntime runs the first one on them. Of what
    has a default in both models the second seed feeds another number.

    Args:
        shapes: sizes of inputs; what they leave open is chosen.
        limit: of runs of the first model.

    Raises:
        InputError: the models have other inputs, or of other types, or evaluating them takes more memory than can be had.
    """
    _check_alike(before, after)
    asked = _asked(before, after)
    sizes, assumed = bind_sizes(before, shapes, known=asked)
    usual = _UsualRuns(before, after, limit)
    if not usual.at(sizes) and assumed and (found := sizes_that_run(before, shapes, usual.at, asked)) is not None:
        sizes, assumed = found
    notes = [f"compared with {', '.join(assumed)}; set sizes with --input NAME=..."] if assumed else []
    if asked:
        fixed = ", ".join(f"{name} = {size}" for name, size in asked.items())
        notes.append(f"the model after takes {fixed} alone: nothing is said of other sizes")
    probes, outputs, session = list(usual.probes), list(usual.outputs), usual.session
    if session is None or not outputs:
        return CommonInputs(tuple(probes), (), (*notes, f"onnxruntime does not run the model before: {usual.failure}"))
    room, held = memory_limit(), len(SEEDS) * _held(before, sizes)
    beyond = [] if asked else sizes_beyond([before, after], sizes, _MOST)
    known = list[list[InputProbe]]()
    for alternatives in model_probes(before, sizes, choices(before, sizes)[0], beyond):
        known.append([probe for probe in alternatives if not _not_taken(after, probe)])

    def run(feed: Mapping[str, np.ndarray]) -> list[Any]:
        return limit.run(session, {name: feed[name] for name in before.inputs})

    counting, refused = run_first(known, run)
    notes += [f"the model before does not run {', nor '.join(refused)}: nothing was compared there"] if refused else []
    notes += [f"the model before: {limit.words}"] if limit.is_reached() else []
    for each in counting:
        held += _held(before, _sizes_of(before, each.probe))
        if room is None or held <= room:
            probes.append(each.probe)
            outputs.append(each.outputs)
    only_at = dict[str, Dim]()
    for name in () if asked or limit.is_reached() else _unvaried(before, probes):
        wanted = [n for n in _SEVERAL if n != sizes[name]]
        further, runs_with_none = _at_other_sizes(before, after, [{**sizes, name: n} for n in wanted], sizes, room, run)
        probes += [each.probe for each in further]
        outputs += [each.outputs for each in further]
        if runs_with_none and not limit.is_reached():
            only_at[name] = sizes[name]
            runs = f"with {dimension_in_words(name)} = {sizes[name]}, and with none of {', '.join(map(str, wanted))}"
            notes.append(f"the model before runs {runs}: nothing is said of other sizes")
    return CommonInputs(tuple(probes), tuple(outputs), tuple(notes), only_at)


def _check_alike(before: Model, after: Model) -> None:
    """Raises InputError where two models have other inputs, or of other types."""
    for name, type_ in after.inputs.items():
        other = before.inputs.get(name)
        if name in before.defaults:
            raise InputError(f"{after.path}: input {name} must be fed, and has a default in {before.path}; give it the same one")
        if other is None and name not in after.defaults:
            raise InputError(f"{after.path}: input {name} is none of {before.path}, whose inputs are {', '.join(before.inputs)}")
        if other is not None and (other.dtype, other.rank) != (type_.dtype, type_.rank):
            raise InputError(f"input {name} is {other} in {before.path}, and {type_} in {after.path}")


def _at_other_sizes(
    before: Model,
    after: Model,
    others: Sequence[Mapping[str, Dim]],
    sizes: Mapping[str, Dim],
    room: int | None,
    run: Callable[[dict[str, np.ndarray]], list[Any]],
) -> tuple[list[RunProbe], bool]:
    """The inputs at other sizes that both models take and on which the first one runs; and whether it runs at none of them all.

    Args:
        others: those sizes; what takes more than half of the memory is left out.
        sizes: the usual ones.
        room: the memory, in bytes.
        run: the first model.
    """
    held = [other for other in others if room is None or _held(before, other) <= room // 2]
    several = [probe for probe in probes_at(before, sizes, held, SEEDS[0]) if not _not_taken(after, probe)]
    further, without = run_first([several], run)
    return further, len(without) == len(others)


def _unvaried(before: Model, probes: Sequence[InputProbe]) -> list[str]:
    """The dimension symbols of a model that are one size on all inputs."""
    sizes = [_sizes_of(before, probe) for probe in probes]
    return [name for name, first in sizes[0].items() if all(each.get(name) == first for each in sizes)]


class _UsualRuns:
    """Inputs of the usual scale, and what onnxruntime gives of the first model for them.

    Attributes:
        session: of the first model, where onnxruntime opens it.
        probes: at the sizes at which it runs, or else at those that were tried first.
        outputs: for each of them; empty where it does not run.
        failure: what onnxruntime said first.
    """

    def __init__(self, before: Model, after: Model, limit: RunLimit) -> None:
        self._before, self._after, self._limit = before, after, limit
        self.probes, self.outputs, self.failure = list[InputProbe](), list[list[Any]](), ""
        self.session: Session | None = None
        try:
            with limit.limited():
                self.session = new_session(before.path or before.weights.memory, spinning=False)
        except RuntimeFailure as problem:
            self.failure = str(problem)

    def at(self, sizes: Mapping[str, Dim]) -> bool:
        """Whether the first model runs at some sizes, which the other takes.

        Raises:
            InputError: of the sizes that are tried first: the model after does not take them, or evaluating the one before takes
                more memory than can be had.
        """
        if self.probes and self.session is None:
            return False
        try:
            probes = _usual(self._before, self._after, sizes)
        except InputError:
            if not self.probes:
                raise
            return False
        self.probes = self.probes or probes
        try:
            self.outputs = [] if self.session is None else [self._limit.run(self.session, self._fed(probe)) for probe in probes]
        except RuntimeFailure as problem:
            self.failure = self.failure or str(problem)
        if self.outputs:
            self.probes = probes
        return bool(self.outputs)

    def _fed(self, probe: InputProbe) -> dict[str, np.ndarray]:
        return fed_to(self._before, probe)


def _asked(before: Model, after: Model) -> dict[str, Dim]:
    """Sizes that the model before leaves open and the one after does not."""
    told: dict[str, Dim] = {}
    for name, type_ in after.inputs.items():
        if (declared := before.inputs.get(name)) is not None:
            pairs = [(dim, size) for dim, size in zip(declared.shape, type_.shape, strict=True) if isinstance(size, int)]
            told = solve(equations(tuple(dim for dim, _ in pairs), tuple(size for _, size in pairs)), told)
    return told


def _usual(before: Model, after: Model, sizes: Mapping[str, Dim]) -> list[InputProbe]:
    """Inputs of the usual scale, at some sizes.

    Raises:
        InputError: the model after does not take them, or evaluating the one before takes more memory than can be had.
    """
    room, held = memory_limit(), len(SEEDS) * _held(before, sizes)
    if room is not None and held > room:
        raise InputError(
            f"{before.path}: its values take {held >> 30:,} GiB, and {room / 2**30:.1f} can be had; "
            "give smaller sizes with --input"
        )
    usual = [InputProbe(_drawn(before, after, sizes, seed), f"of seed {seed}") for seed in SEEDS]
    if problem := _not_taken(after, usual[0]):
        raise InputError(f"{after.path}: {problem}; give sizes with --input that both models take")
    return usual


def _held(model: Model, sizes: Mapping[str, Dim]) -> int:
    """The bytes of all values of a model in double precision, as far as its types tell."""
    shapes = (shape_at(model.graph.type(value), sizes) for node in model.graph.nodes() for value in node.values)
    return 8 * sum(math.prod(shape) for shape in shapes if shape is not None)


def _drawn(before: Model, after: Model, sizes: Mapping[str, Dim], seed: int) -> Mapping[str, np.ndarray]:
    """The usual inputs of a seed."""
    feed = dict(random_inputs(before, sizes, seed))
    if seed != SEEDS[0]:
        feed.update(_overriding(before, after, seed))
    return feed


def _overriding(before: Model, after: Model, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Other numbers of the same kind, for what has a default in both models: as large, and positive where that was 0."""
    generator = np.random.default_rng([seed, _OVERRIDING])
    for name, default in before.defaults.items():
        if default.type.dtype in FLOATS and is_overridable(before, name) and is_overridable(after, name):
            array = default.load()
            factor = np.exp(generator.standard_normal(array.shape))
            yield name, np.asarray(np.where(array == 0, factor, array * factor), array.dtype)


def _sizes_of(model: Model, probe: InputProbe) -> dict[str, Dim]:
    """The sizes of a model's dimension symbols on some inputs."""
    sizes: dict[str, Dim] = {}
    for name, type_ in model.inputs.items():
        if name in probe.feed:
            bind_shape(sizes, type_, probe.feed[name].shape)
    return sizes


def _not_taken(model: Model, probe: InputProbe) -> str:
    """What a model does not take of some inputs, by its types; empty where it takes all."""
    sizes = _sizes_of(model, probe)
    for name, type_ in model.inputs.items():
        dims = [evaluate_dim(dim, sizes) for dim in type_.shape]
        given = np.shape(probe.feed.get(name, ())) if name in probe.feed else tuple(dims)
        if any(isinstance(dim, int) and dim != size for dim, size in zip(dims, given, strict=True)):
            return f"input {name} is {type_}, and takes no {list(given)}"
    return ""
