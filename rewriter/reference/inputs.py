"""Inputs to test a model with: sizes for its dimension symbols, checks of what the user gave, and random tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.onnx import Model
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, SymDim, concrete, evaluate_dim

__all__ = ["InputError", "bind_sizes", "check_data", "random_inputs"]

_MOST_ELEMENTS = 1 << 31


class InputError(ValueError):
    """An option, or an input named or shaped by the user, contradicts the model or another option."""


def bind_sizes(model: Model, shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, Dim], list[str]]:
    """Sizes of the model's dimension symbols for measuring, from the shapes the user gave.

    A symbol that no given shape binds is 1 on the first axis of an input and 128 elsewhere; the second result says so.

    Raises:
        InputError: an unknown input, another rank, or a size that contradicts the model or another input.
    """
    sizes: dict[str, Dim] = {}
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
                raise InputError(f"--input {name}: size {size} contradicts {dim} = {bound} of the model")
            if isinstance(bound, SymDim) and len(bound.symbols()) == 1:
                raise InputError(f"--input {name}: size {size} does not fit {bound} of the model")
    assumed = []
    for type_ in model.inputs.values():
        for axis, dim in enumerate(type_.shape):
            rest = evaluate_dim(dim, sizes)
            if not isinstance(rest, int):
                for symbol in sorted(rest.symbols()):
                    sizes[symbol] = 1 if axis == 0 else 128
                    assumed.append(f"{symbol} = {sizes[symbol]}")
    for name, type_ in model.inputs.items():
        measured = concrete([evaluate_dim(d, sizes) for d in type_.shape])
        if measured is not None and (min(measured, default=1) < 0 or math.prod(measured) > _MOST_ELEMENTS):
            who = f"--input {name}" if name in shapes else f"{model.path or 'the model'}: input {name}"
            raise InputError(f"{who}: {list(measured)} is no size that can be measured; give smaller sizes with --input")
    return sizes, assumed


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


def random_inputs(model: Model, sizes: Mapping[str, Dim], seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Fresh random inputs of the measured sizes: normal floats; integers within the tables that they index, else 0 and 1.

    At another scale some floats are 0, all of the first row are negative, and integers that index a table are the first and the
    last that it has.

    Args:
        model: to be fed.
        sizes: of its dimension symbols.
        seed: equal seeds give equal inputs.
        scale: what normal floats are multiplied by.

    Raises:
        InputError: a size that ``sizes`` does not tell.
    """
    generator = np.random.default_rng([seed, 0x5EED])
    feeds: dict[str, np.ndarray] = {}
    for name, type_ in model.inputs.items():
        shape = concrete([evaluate_dim(d, sizes) for d in type_.shape])
        if shape is None:
            raise InputError(f"input {name} has the undetermined shape {type_}; give it with --input {name}=...")
        if type_.dtype in FLOATS:
            floats = np.asarray(generator.standard_normal(shape, np.float32))
            if scale != 1:
                floats = _extreme(floats, generator) * np.float32(scale)
            feeds[name] = floats.astype(type_.dtype.numpy())
        elif type_.dtype == DataType.BOOL:
            feeds[name] = np.asarray(generator.random(shape) < 0.8)
        elif type_.dtype == DataType.STRING:
            feeds[name] = np.asarray(np.asarray(["no", "yes"], object)[generator.integers(0, 2, shape)], object)  # also of rank 0
        else:
            bound = _index_bound(model, model.values[name], sizes)
            values = generator.integers(0, bound, shape) if bound else np.asarray(generator.random(shape) < 0.8, np.int64)
            if bound and scale != 1:
                values = np.asarray(generator.integers(0, 2, shape) * (bound - 1))
            if not bound and values.ndim and values.size:
                values[..., 0] = 1  # a mask that hides everything is no test
            feeds[name] = values.astype(type_.dtype.numpy())
    return feeds


def _extreme(floats: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Floats with zeros among them, and with a first row in which all are negative."""
    mixed = np.asarray(np.where(generator.random(floats.shape) < 0.1, np.float32(0), floats))
    if mixed.ndim > 1 and mixed.size:
        mixed[..., 0, :] = -np.abs(floats[..., 0, :])
    return mixed


def _index_bound(model: Model, value: int, sizes: Mapping[str, Dim]) -> int:
    """Size of the smallest table axis that an integer input indexes, 0 if it indexes none."""
    graph, bounds, stack, seen = model.graph, [], [value], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in graph.users.get(current, ()):
            op_type = model.origins[node.origin].op_type if node.origin is not None else node.op
            if op_type == "Gather" and len(node.inputs) > 1 and node.inputs[1] == current:
                table = graph.type(node.inputs[0])
                axis = next((v for k, v in node.attrs if k == "axis"), 0)
                size = evaluate_dim(table.shape[axis], sizes) if table is not None else None
                if isinstance(size, int):
                    bounds.append(size)
            elif op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand", "Slice"):
                stack.extend(node.values)
    return min(bounds, default=0)
