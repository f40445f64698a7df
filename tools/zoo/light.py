"""The nine CNNs that travel inside the onnx wheel, exported years ago and spelled accordingly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.zoo.draws import Array, gain, normal
from tools.zoo.running import random_inputs, session_of

# From IR version 4 on, initializers need not be graph inputs and are therefore constants.
FIRST_IR_VERSION_WITH_CONSTANTS = 4

# 1/variance of relu(x) for standard normal x. Filters of zero mean that are scaled by it keep unit variance from layer to
# layer without normalisation (scaled weight standardisation: Brock et al., ICLR 2021, section 4); plain He filters would
# pass on mostly the mean of their input, so that the output hardly depends on the image.
AFTER_RELU = 2 / (1 - 1 / math.pi)


def light_models() -> dict[str, Path]:
    """Names and files of the CNNs in the onnx wheel, for instance ``squeezenet``."""
    directory = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {path.stem.removeprefix("light_"): path for path in sorted(directory.glob("light_*.onnx"))}


def load_light(name: str, seed: int = 0) -> onnx.ModelProto:
    """Loads a CNN of the onnx wheel and gives it random weights.

    In the wheel's files, ConstantOfShape nodes synthesise the weights. Here they become ordinary initializers with
    values that keep the activations' scale through the net; BatchNormalization gets the statistics of one random
    image, as training would have left them. Computation that merely reshapes weights stays in the graph: the original
    models have it too.

    Args:
        name: A key of `light_models`.
        seed: Seed of the weights.

    Raises:
        KeyError: The wheel has no such model.
    """
    models = light_models()
    if name not in models:
        raise KeyError(f"no light model {name!r}; there are {', '.join(models)}")
    model = onnx.load(models[name])
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    _replace(graph.input, [value for value in graph.input if value.name not in constants])
    model.ir_version = max(model.ir_version, FIRST_IR_VERSION_WITH_CONSTANTS)

    shapes = {name: tuple(t.dims) for name, t in constants.items() if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(constants[node.input[0]]).tolist())
    _replace(graph.node, [node for node in graph.node if node.op_type != "ConstantOfShape"])

    rng = np.random.default_rng(seed)
    uses = _uses(graph, shapes)
    _set_initializers(graph, {name: _draw(rng, use, shapes[name]) for name, use in uses.items()})
    _set_initializers(graph, _batch_statistics(model, rng))
    return model


def _uses(graph: onnx.GraphProto, parameters: Iterable[str]) -> dict[str, tuple[str, int]]:
    """For each parameter, the operator and operand position that it ends up in, seen through reshapes."""
    uses: dict[str, tuple[str, int]] = {}
    origin = {name: name for name in parameters}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name not in origin:
                continue
            if node.op_type in ("Reshape", "Unsqueeze"):
                origin[node.output[0]] = origin[name]
            else:
                uses[origin[name]] = (node.op_type, position)
    return uses


def _draw(rng: np.random.Generator, use: tuple[str, int], shape: tuple[int, ...]) -> Array:
    """Draws a float32 parameter fit for its use."""
    match use:
        case ("Conv", 1):
            filters = normal(rng, shape, math.sqrt(AFTER_RELU / math.prod(shape[1:])))
            filters -= filters.mean(axis=(1, 2, 3), keepdims=True)
            return filters
        case ("Gemm", 1):  # all are (outputs, inputs): transB=1
            return normal(rng, shape, math.sqrt(1 / shape[-1]))
        case ("BatchNormalization", 2) | ("Add" | "Conv" | "Gemm", _):
            return normal(rng, shape, 0.1)
        case ("BatchNormalization", 1) | ("Mul", _):
            return gain(rng, shape)
        case ("BatchNormalization", 3 | 4):  # replaced by `_batch_statistics`
            return np.ones(shape, np.float32)
        case _:
            raise ValueError(f"no way known to draw operand {use[1]} of {use[0]}")


def _batch_statistics(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    """Means and variances for all BatchNormalization nodes, measured on one random image.

    On one image, InstanceNormalization is BatchNormalization in training mode. So one run of a copy with the one
    exchanged for the other sees every layer behind layers that normalise already.
    """
    normalisations = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    if not normalisations:
        return {}
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for node in probe.graph.node:
        if node.op_type == "BatchNormalization":
            node.op_type = "InstanceNormalization"
            _replace(node.input, node.input[:3])
            _replace(node.attribute, [attribute for attribute in node.attribute if attribute.name == "epsilon"])
    _set_initializers(probe.graph, {})  # means and variances have no reader any more
    observed = list(dict.fromkeys(node.input[0] for node in normalisations))
    _replace(probe.graph.output, map(helper.make_empty_tensor_value_info, observed))
    session = session_of(probe.SerializeToString())
    activations = dict(zip(observed, session.run(None, random_inputs(session, rng)), strict=True))
    statistics = {}
    for node in normalisations:
        x, _, _, mean, variance = node.input
        statistics[mean] = activations[x].mean(axis=(0, 2, 3))
        statistics[variance] = activations[x].var(axis=(0, 2, 3))
    return statistics


def _set_initializers(graph: onnx.GraphProto, values: Mapping[str, Array]) -> None:
    """Adds initializers or replaces their values, and drops those that no node reads."""
    read = {name for node in graph.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if name in values or name not in read:
            del graph.initializer[index]
    for name, array in values.items():
        tensor = graph.initializer.add(name=name, dims=array.shape)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.raw_data = array.tobytes()


def _replace(field: Any, items: Iterable[Any]) -> None:
    """Replaces the content of a repeated protobuf field."""
    items = list(items)
    del field[:]
    field.extend(items)
