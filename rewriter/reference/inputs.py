"""Inputs to test a model with: sizes for its dimension symbols, checks of what the user gave, and random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mugraph.deadline import heed
from mugraph.domains.base import FLOATS
from mugraph.limited import memory_limit
from mugraph.onnx import Model, dimension_in_words
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, concrete, evaluate_dim, shape_at
from rewriter.reference.floats import RandomFloats
from rewriter.reference.input_error import InputError
from rewriter.reference.uses import InputUse, choices, use_of

__all__ = ["bind_sizes", "check_data", "check_memory", "random_inputs", "sizes_that_run", "unheld"]

_BYTES_OF_AN_ELEMENT = 20
"""That the inputs of a run take at least: their random numbers and the reference's in double precision, and themselves."""
_RUNS = (2, 4)
"""Runs in which a value has its size: those on inputs of the measured sizes; of a value that has no other size, all."""
_COUNTED = np.iinfo(np.intp).max // 8
"""The most entries that NumPy counts, those of arrays without entries as if they had one along each axis of none."""
_MOST_ASSUMED = 1 << 24
"""Of the largest value of a model at sizes that nobody gave: 64 MiB of floats."""
_ASSUMED = 128
_IN_A_BATCH = 3
"""Axes of an image, or of the scores of a sequence's heads."""
_OTHERWISE = (64, 48, 32, 16, 96, 224, 256, 512, 2048, 16384)
"""Where the model does not run at that: what images are scaled to, as a rule, and a moment or a second of sound."""
_SOME = 0.1
"""Share of indices that are a number that the model compares them with."""
_LARGEST = 4
"""Of numbers that say how large something is."""


def bind_sizes(
    model: Model,
    shapes: Mapping[str, Sequence[int]],
    otherwise: int = _ASSUMED,
    known: Mapping[str, Dim] | None = None,
    data: Sequence[Mapping[str, np.ndarray]] = (),
) -> tuple[dict[str, Dim], list[str]]:
    """Sizes of the model's dimension symbols for measuring, from the shapes the user gave.

    A symbol that no given shape binds has the size that the user's own inputs show. Without those, or where with each of them no
    output has an entry, it is 1 on the first axis of an input and another number elsewhere, or that halved until no value of the
    model is large; the second result says so.

    Args:
        otherwise: that number.
        known: sizes that are no matter of choice.
        data: the user's inputs, which fit the model (:func:`check_data`); the first without an empty one tell sizes, if there are
            any.

    Raises:
        InputError: an unknown input, another rank, or a size that contradicts the model or another input.
    """
    sizes: dict[str, Dim] = dict(known or {})
    for name, shape in shapes.items():
        if name not in model.inputs:
            raise InputError(f"--input {name}: the model has no such input; its inputs are {', '.join(model.inputs)}")
        declared = model.inputs[name].shape
        if len(declared) != len(shape):
            raise InputError(f"--input {name}: {len(shape)} dimensions, the model declares {model.inputs[name]}")
        for dim, size in zip(declared, shape, strict=True):
            sizes = solve(equations(dim, size), sizes)
            bound = evaluate_dim(dim, sizes)
            if isinstance(bound, int) and bound != size:
                told = bound if isinstance(dim, int) else f"{dim} = {bound}"
                raise InputError(f"--input {name}: size {size} contradicts {told} of the model")
            if isinstance(bound, SymDim) and len(bound.symbols()) == 1:
                raise InputError(f"--input {name}: size {size} does not fit {bound} of the model")
    telling = _that_tells_sizes(model, data)
    sizes = sizes if telling is None else _shown(model, telling, sizes)
    assumed = dict[str, int]()
    for type_ in model.inputs.values():
        for axis, dim in enumerate(type_.shape):
            rest = evaluate_dim(dim, sizes)
            if not isinstance(rest, int):
                for symbol in sorted(rest.symbols()):
                    sizes[symbol] = assumed[symbol] = 1 if axis == 0 else otherwise
    while any(size != 1 for size in assumed.values()) and _largest(model, sizes, max(assumed.values())) > _MOST_ASSUMED:
        assumed = {symbol: 1 if size == 1 else size // 2 for symbol, size in assumed.items()}
        sizes.update(assumed)
    available = memory_limit()
    for name, type_ in model.inputs.items():
        measured = shape_at(type_, sizes)
        who = f"--input {name}" if name in shapes else f"{model.path or 'the model'}: input {name}"
        is_countable = measured is None or 0 not in measured or _spread(measured) <= _COUNTED
        if measured is not None and (min(measured, default=1) < 0 or not is_countable):
            raise InputError(f"{who}: {list(measured)} is no size that can be measured; give sizes with --input")
        needed = _BYTES_OF_AN_ELEMENT * math.prod(measured or ())
        if available is not None and needed > available:
            raise InputError(
                f"{who}: to run {list(measured or ())} takes {needed >> 30:,} GiB at least, and "
                f"{available / 2**30:.1f} can be had; give smaller sizes with --input"
            )
    return sizes, [f"{dimension_in_words(symbol)} = {size}" for symbol, size in assumed.items()]


def sizes_that_run(
    model: Model,
    shapes: Mapping[str, Sequence[int]],
    runs: Callable[[Mapping[str, Dim]], bool],
    known: Mapping[str, Dim] | None = None,
    data: Sequence[Mapping[str, np.ndarray]] = (),
) -> tuple[dict[str, Dim], list[str]] | None:
    """Sizes, as :func:`bind_sizes` gives them, with others in place of those first assumed, at which a model runs.

    A model may ask more of its sizes than it declares: a reshape that takes a height of 48 alone, say. ``None`` where it runs at
    none of a few.

    Args:
        runs: whether it runs at some sizes.

    Raises:
        InputError: as :func:`bind_sizes`.
    """
    for otherwise in _OTHERWISE:
        heed()
        sizes, assumed = bind_sizes(model, shapes, otherwise, known, data)
        if not assumed:  # all are given
            return None
        if runs(sizes):
            return sizes, assumed
    return None


def _that_tells_sizes(model: Model, data: Sequence[Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray] | None:
    """Those of the user's inputs whose sizes are measured; ``None`` where with each of them no output has an entry.

    On what is empty all models agree, and none is faster: a test there says nothing. The past of a decoder's first step is empty.
    """
    outputs = [model.graph.type(value) for value in model.graph.outputs]
    full = (feed for feed in data if all(feed[name].size for name in model.inputs))
    for feed in (*full, *data):
        sizes = _shown(model, feed, {})
        shapes = [shape_at(type_, sizes) for type_ in outputs]
        if not shapes or any(shape is None or 0 not in shape for shape in shapes):
            return feed
    return None


def _shown(model: Model, feed: Mapping[str, np.ndarray], sizes: Mapping[str, Dim]) -> dict[str, Dim]:
    """Some sizes, and those that inputs of the model show."""
    pairs = (pair for name, type_ in model.inputs.items() for pair in zip(type_.shape, feed[name].shape, strict=True))
    return solve((equation for pair in pairs for equation in equations(*pair)), sizes)


def _spread(shape: Sequence[int]) -> int:
    """The entries of a shape, counted as :data:`_COUNTED` says."""
    return math.prod(max(size, 1) for size in shape)


def check_memory(model: Model, sizes: Mapping[str, Dim]) -> None:
    """Checks that what a model computes in every run, read or not, can be held, as far as its types tell.

    Args:
        sizes: of its dimension symbols.

    Raises:
        InputError: one value takes more memory than this process can have.
    """
    if problem := unheld(model, sizes, refers=False):
        raise InputError(f"{model.path or 'the model'}: {problem}; give smaller sizes with --input, or more memory")


def unheld(model: Model, sizes: Mapping[str, Dim], *, refers: bool) -> str:
    """Why a value that a model computes in every run cannot be held by this process, in words; empty where all can.

    The reference goes through the nodes with all runs side by side, floats in double precision; outputs of the original are kept
    until candidates are compared with them.

    Args:
        sizes: of its dimension symbols.
        refers: whether the reference is made, too, and not the model run alone.
    """
    available, tables, outputs = memory_limit(), model.tables, set(model.graph.outputs)
    for node in tables.nodes if available is not None else ():  # a search adds some meanwhile
        if node.origin is None or node.origin >= len(model.proto.graph.node):  # of a body, which may never run
            continue
        for value in node.values:
            for type_ in filter(None, (tables.types[value], model.contradicted.get(tables.names[value] or ""))):
                needed = _bytes(type_, sizes, value in outputs, refers)
                if available is not None and needed > available:
                    held = f"takes {needed >> 30:,} GiB at least, and {available / 2**30:.1f} can be had"
                    return f"to {'evaluate' if refers else 'run'} {tables.label(node)}, {type_}, {held}"
    return ""


def _bytes(type_: TensorType, sizes: Mapping[str, Dim], is_output: bool, refers: bool) -> int:
    """The bytes that a value takes in a run, or that it and its references do while runs are compared; 0 for an unknown size."""
    shape = shape_at(type_, sizes)
    if shape is None:
        return 0
    runs = _RUNS[concrete(type_.shape) is not None]
    width = 8 if type_.dtype == DataType.STRING else max(type_.dtype.bitwidth // 8, 1)
    if not refers:
        return math.prod(shape) * width
    referred = 8 if type_.dtype in FLOATS else width
    return math.prod(shape) * (runs * referred + (runs if is_output else 1) * width)


def _largest(model: Model, sizes: Mapping[str, Dim], untold: int) -> int:
    """The number of elements of a model's largest value, as far as its types tell.

    Args:
        untold: what a size is taken for that only a run tells, as that of operands of which either may be repeated. It is one of
            a value: its others are taken for no more than is assumed at first, since few are as large as an input along two axes,
            and the first of four axes for that of a batch.
    """
    types = {type_ for node in model.graph.nodes() for value in node.values if (type_ := model.graph.type(value)) is not None}
    types.update(model.inputs.values())  # one that nothing reads is fed, too
    shapes = (concrete(_told([evaluate_dim(dim, sizes) for dim in type_.shape], untold)) for type_ in types)
    return max((math.prod(shape) for shape in shapes if shape is not None), default=0)


def _told(shape: Sequence[Dim], untold: int) -> list[Dim]:
    """A shape with numbers for the symbols that have none, a smaller one behind the first axis that has such."""
    told: list[Dim] = []
    for axis, dim in enumerate(shape):
        size = 1 if axis == 0 and len(shape) > _IN_A_BATCH else untold
        known = dim if isinstance(dim, int) else evaluate_dim(dim, dict.fromkeys(dim.symbols(), size))
        untold = untold if known is dim or size != untold else min(untold, _ASSUMED)
        told.append(known)
    return told


def check_data(model: Model, data: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Checks user-given inputs.

    Raises:
        InputError: an input is missing, unknown, or of another element type, rank or size than the model declares.
    """
    for feed in data:
        for name in sorted(feed.keys() ^ model.inputs.keys()):
            if name in model.inputs:
                raise InputError(f"--data: input {name} is missing; the model's inputs are {', '.join(model.inputs)}")
            if name not in model.defaults:
                raise InputError(f"--data: the model has no input {name}; its inputs are {', '.join(model.inputs)}")
        for name, type_ in model.inputs.items():
            array = feed[name]
            fits = len(array.shape) == type_.rank and all(
                isinstance(dim, SymDim) or dim == size for dim, size in zip(type_.shape, array.shape, strict=False)
            )
            if array.dtype != type_.dtype.numpy() or not fits:
                actual = f"{array.dtype}{list(array.shape)}"
                raise InputError(f"--data: input {name} is {actual}, the model declares {type_}")


def random_inputs(
    model: Model, sizes: Mapping[str, Dim], seed: int, scale: float = 1.0, chosen: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Fresh random inputs of the measured sizes: normal floats; integers by what the model does with them, else 0 and 1.

    Integers that index a table lie within it; lengths, which are compared with positions, within these; what says how large
    something is, is small and positive; what says which positions of sequences with several new ones count, is 1; among those
    that are compared with a number, some are that number.
    At another scale some floats are 0, all of the first row are negative, and integers that index a table are the first and the
    last that it has.

    Args:
        model: to be fed.
        sizes: of its dimension symbols.
        seed: equal seeds give equal inputs.
        scale: what normal floats are multiplied by.
        chosen: numbers for inputs of one entry (:func:`rewriter.reference.uses.choices`); by default the first.

    Raises:
        InputError: a size that ``sizes`` does not tell.
    """
    generator = np.random.default_rng([seed, 0x5EED])
    feeds: dict[str, np.ndarray] = {}
    decided = choices(model, sizes)[0] if chosen is None else chosen
    counts = (math.prod(shape_at(type_, sizes) or ()) for type_ in model.inputs.values() if type_.dtype in FLOATS)
    floats = RandomFloats(generator, counts, scale, has_extremes=scale != 1)
    for name, type_ in model.inputs.items():
        shape = shape_at(type_, sizes)
        if shape is None:
            raise InputError(f"input {name} has the undetermined shape {type_}; give it with --input {name}=...")
        if name in decided:
            feeds[name] = np.full(shape, decided[name]).astype(type_.dtype.numpy())
        elif type_.dtype in FLOATS:
            feeds[name] = floats.of(shape, type_.dtype.numpy())
        elif type_.dtype == DataType.BOOL:
            feeds[name] = np.asarray(generator.random(shape) < 0.8)
        elif type_.dtype == DataType.STRING:
            feeds[name] = np.asarray(np.asarray(["no", "yes"], object)[generator.integers(0, 2, shape)], object)  # also of rank 0
        else:
            feeds[name] = np.asarray(_integers(use_of(model, name, sizes), shape, generator, scale), type_.dtype.numpy())
    return feeds


def _integers(use: InputUse, shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> np.ndarray:
    """Integers as a model uses them."""
    if use.bound:
        if scale != 1:
            return np.asarray(generator.integers(0, 2, shape) * (use.bound - 1))
        values = np.asarray(generator.integers(0, use.bound, shape))
        within = [number for number in use.numbers if 0 <= number < use.bound]
        if within and values.ndim:  # such as what pads a sequence
            values = np.where(generator.random(shape) < _SOME, np.asarray(within[0]), values)
        return values
    if use.last:
        return np.asarray(generator.integers(1, use.last + 2, shape))
    if use.is_size:
        return np.asarray(generator.integers(1, _LARGEST + 1, shape))
    if use.numbers:
        return np.asarray(use.numbers)[generator.integers(0, len(use.numbers), shape)]
    values = np.asarray((generator.random(shape) < 0.8) | use.fills, np.int64)
    if values.ndim and values.size:
        values[..., 0] = 1  # a mask that hides everything is no test
    return values
