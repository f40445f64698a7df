"""The models that the project measures itself on.

Five families, all with random weights, so that nothing is downloaded:

- transformers' own models as ``torch.onnx`` exports them today (`export_model`; needs the optional extra ``zoo``);
- the nine CNNs that travel inside the onnx wheel (`load_light`), exported years ago and spelled accordingly;
- TASO's own three (`tools.taso_models`);
- a Llama-style transformer block with LoRA adapters (`lora_block`), small enough for a demo;
- a model of any size, written piece by piece (`write_big`), to measure memory.

An exported model travels as its skeleton (`skeleton`): everything but the weights, which `fill` draws anew.

Run ``python -m tools.zoo --help``.
"""

from __future__ import annotations

import lzma
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from tools.taso_models import TASO_MODELS

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]

DEFAULT_DIR = Path("zoo_models")

# What torch.onnx writes today, for the models built here without torch.
OPSET, IR_VERSION = 20, 10

# From IR version 4 on, initializers need not be graph inputs and are therefore constants.
FIRST_IR_VERSION_WITH_CONSTANTS = 4

# 1/variance of relu(x) for standard normal x. Filters of zero mean that are scaled by it keep unit variance from layer to
# layer without normalisation (scaled weight standardisation: Brock et al., ICLR 2021, section 4); plain He filters would
# pass on mostly the mean of their input, so that the output hardly depends on the image.
AFTER_RELU = 2 / (1 - 1 / math.pi)


# --- CNNs from the onnx wheel -------------------------------------------------------------------------------------


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
            filters = _normal(rng, shape, math.sqrt(AFTER_RELU / math.prod(shape[1:])))
            filters -= filters.mean(axis=(1, 2, 3), keepdims=True)
            return filters
        case ("Gemm", 1):  # all are (outputs, inputs): transB=1
            return _normal(rng, shape, math.sqrt(1 / shape[-1]))
        case ("BatchNormalization", 2) | ("Add" | "Conv" | "Gemm", _):
            return _normal(rng, shape, 0.1)
        case ("BatchNormalization", 1) | ("Mul", _):
            return _gain(rng, shape)
        case ("BatchNormalization", 3 | 4):  # replaced by `_batch_statistics`
            return np.ones(shape, np.float32)
        case _:
            raise ValueError(f"no way known to draw operand {use[1]} of {use[0]}")


def _gain(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.75, 1.25, shape).astype(np.float32)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(deviation)
    return values


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
    session = _session(probe.SerializeToString())
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


# --- models built here ----------------------------------------------------------------------------------------------


class _GraphBuilder:
    """Collects nodes and initializers; calling it adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def __call__(self, op_type: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def parameter(self, name: str, values: Array) -> str:
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def scalar(self, value: float) -> str:
        return self.parameter(f"scalar_{value}", np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.parameter("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def model(self, shapes: Mapping[str, Sequence[int]], output: str) -> onnx.ModelProto:
        """The finished model; `shapes` are those of its inputs (which come first) and of its output, all float32."""
        values = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()}
        result = values.pop(output)
        graph = helper.make_graph(self.nodes, "main_graph", [*values.values()], [result], [*self.initializers.values()])
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="tools.zoo")


def lora_block(
    hidden: int = 512,
    heads: int = 8,
    sequence: int = 128,
    intermediate: int = 1408,
    rank: int = 16,
    scale: float = 2.0,
    seed: int = 0,
) -> onnx.ModelProto:
    """A transformer block of Llama's kind with LoRA adapters on all its seven linear layers.

    Node for node it is spelled as torch 2.13 exports such a layer: RMSNorm from Pow to Mul, rotary embedding from
    Slice, Neg and Concat, both attention operands scaled by the fourth root of the head size, a mask computed from
    constants, a softmax guarded by IsNaN and Where. (Cos and Sin of the rotary angles stay nodes as in a larger model;
    in one of the default size, torch would fold them.)

    Args:
        hidden: Width of the residual stream, a multiple of `heads`; the head size must be even.
        heads: Number of attention heads, for queries, keys and values alike.
        sequence: Length of the sequence; input and output are float32 of shape (1, sequence, hidden).
        intermediate: Width of the gated MLP.
        rank: Rank of the adapters.
        scale: Factor on the adapters' output (LoRA's alpha over rank).
        seed: Seed of the weights.
    """
    if hidden % (2 * heads):
        raise ValueError(f"hidden size {hidden} does not split into {heads} heads of even size")
    rng = np.random.default_rng(seed)
    op = _GraphBuilder()
    size = hidden // heads

    def normal(name: str, deviation: float, *shape: int) -> str:
        return op.parameter(name, _normal(rng, shape, deviation))

    def linear(x: str, name: str, inputs: int, outputs: int) -> str:
        base = op("MatMul", x, normal(f"{name}.weight", inputs**-0.5, inputs, outputs))
        down = op("MatMul", x, normal(f"{name}.lora_A.weight", inputs**-0.5, inputs, rank))
        # A trained adapter is a correction: about a tenth of the base before scaling.
        up = op("MatMul", down, normal(f"{name}.lora_B.weight", 0.1 * rank**-0.5, rank, outputs))
        return op("Add", base, op("Mul", up, op.scalar(scale)))

    def rms_norm(x: str, name: str) -> str:
        weight = op.parameter(f"{name}.weight", _gain(rng, (hidden,)))
        mean = op("ReduceMean", op("Pow", x, op.scalar(2.0)), op.ints(-1), keepdims=1, noop_with_empty_axes=0)
        inverse = op("Reciprocal", op("Sqrt", op("Add", mean, op.scalar(1e-6))))
        return op("Mul", weight, op("Mul", x, inverse))

    def split_heads(x: str) -> str:
        view = op("Reshape", x, op.ints(1, sequence, -1, size), allowzero=1)
        return op("Transpose", view, perm=[0, 2, 1, 3])

    def rotate(x: str, cos: str, sin: str) -> str:
        axis, step = op.ints(3), op.ints(1)
        direct = op("Mul", x, cos)
        first = op("Slice", x, op.ints(0), op.ints(size // 2), axis, step)
        second = op("Slice", x, op.ints(size // 2), op.ints(np.iinfo(np.int64).max), axis, step)
        crossed = op("Mul", op("Concat", op("Neg", second), first, axis=-1), sin)
        return op("Add", direct, crossed)

    def swap_last_two(x: str) -> str:
        flat = op("Reshape", x, op.ints(-1, sequence, size), allowzero=0)
        swapped = op("Transpose", flat, perm=[0, 2, 1])
        return op("Reshape", swapped, op.ints(1, heads, size, sequence), allowzero=0)

    def attention(x: str) -> str:
        q, k, v = (split_heads(linear(x, f"self_attn.{name}_proj", hidden, hidden)) for name in "qkv")
        cos, sin = (op("Unsqueeze", op(function, angles), op.ints(1)) for function in ("Cos", "Sin"))
        q, k = rotate(q, cos, sin), swap_last_two(rotate(k, cos, sin))
        root = op.scalar(size**-0.25)
        scores = op("MatMul", op("Mul", q, root), op("Mul", k, root))
        probabilities = op("Softmax", op("Add", scores, mask()), axis=-1)
        guarded = op("Where", op("IsNaN", probabilities), op.scalar(0.0), probabilities)
        context = op("Transpose", op("MatMul", guarded, v), perm=[0, 2, 1, 3])
        return linear(op("Reshape", context, op.ints(1, sequence, -1), allowzero=1), "self_attn.o_proj", hidden, hidden)

    def mask() -> str:
        causal = op.parameter("causal", np.tri(sequence, dtype=np.bool_)[None, None])
        same_document = op.parameter("same_document", np.ones((1, 1, sequence, sequence), np.bool_))
        visible = op("And", op("And", op.parameter("true", np.array(True)), same_document), causal)
        return op("Where", visible, op.scalar(0.0), op.scalar(float(np.finfo(np.float32).min)))

    def gated_mlp(x: str) -> str:
        gate = linear(x, "mlp.gate_proj", hidden, intermediate)
        silu = op("Mul", gate, op("Sigmoid", gate))
        up = linear(x, "mlp.up_proj", hidden, intermediate)
        return linear(op("Mul", silu, up), "mlp.down_proj", intermediate, hidden)

    frequencies = 10000.0 ** (-np.arange(0, size, 2) / size)
    half = np.outer(np.arange(sequence), frequencies)
    angles = op.parameter("angles", np.concatenate([half, half], axis=1, dtype=np.float32)[None])

    x = "hidden_states"
    residual = op("Add", x, attention(rms_norm(x, "input_layernorm")))
    output = op("Add", residual, gated_mlp(rms_norm(residual, "post_attention_layernorm")), output="output")
    shape = (1, sequence, hidden)
    return onnx.shape_inference.infer_shapes(op.model({x: shape, output: shape}, output), strict_mode=True)


def write_big(path: Path, gigabytes: float, width: int = 4096, seed: int = 0) -> None:
    """Writes a chain of products with square weights in external data, of at least the given size (and at least one weight).

    Relu stands between the products: without it all the weights would multiply to a single one. At no time is more
    than one weight (4·width² bytes) in memory.

    Args:
        path: The model file; the weights go to the same name with ``.data`` appended.
        gigabytes: Size of all weights, in units of 10⁹ bytes.
        width: Rows and columns of a weight; the input and the output are float32 of shape (1, width).
        seed: Seed of the weights.
    """
    rng = np.random.default_rng(seed)
    data = path.with_name(path.name + ".data")
    weight = np.empty((width, width), np.float32)
    op = _GraphBuilder()
    x = "input"
    layers = max(1, math.ceil(gigabytes * 1e9 / weight.nbytes))
    with data.open("wb") as file:
        for layer in range(layers):
            name = f"layers.{layer}.weight"
            op.initializers[name] = _external_tensor(name, weight, data.name, offset=file.tell())
            x = op("Relu", op("MatMul", x, name), output="output" if layer == layers - 1 else None)
            rng.standard_normal(out=weight, dtype=np.float32)
            weight *= math.sqrt(2 / width)
            weight.tofile(file)
    onnx.save(op.model({"input": (1, width), "output": (1, width)}, x), path)


def _external_tensor(name: str, like: Array, location: str, offset: int) -> onnx.TensorProto:
    data_type = helper.np_dtype_to_tensor_dtype(like.dtype)
    tensor = onnx.TensorProto(name=name, data_type=data_type, dims=like.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", like.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


# --- exports from transformers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """A model of transformers and how to export it; dimensions named by a string are dynamic.

    Attributes:
        model: Class in transformers.
        inputs: Names and shapes of the arguments that become graph inputs.
        config: What differs from the model's default configuration.
        part: Attribute holding the submodule to export, or "" for the whole model.
        lora_rank: Rank of unmerged LoRA adapters on every linear layer, or 0 for none.
    """

    model: str
    inputs: Mapping[str, tuple[int | str, ...]]
    config: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    lora_rank: int = 0


TOKENS = {"input_ids": (1, 128)}
BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
IMAGE = {"pixel_values": (1, 3, 224, 224)}

LLAMA = Architecture(
    "LlamaModel",
    TOKENS,
    {
        "num_hidden_layers": 4,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
    },
)
SMALL_LLAMA_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
QWEN3_CONFIG = {  # Qwen3-0.6B, with fewer layers and words
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1000,
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture("BertModel", dict.fromkeys(BERT_INPUTS, (1, 128))),
    "gpt2": Architecture("GPT2Model", TOKENS),
    "llama": LLAMA,
    "llama_lora": replace(LLAMA, lora_rank=16),
    "qwen3": Architecture("Qwen3Model", TOKENS, QWEN3_CONFIG),
    "t5_encoder": Architecture("T5EncoderModel", TOKENS),
    "whisper_encoder": Architecture("WhisperModel", {"input_features": (1, 80, 3000)}, part="encoder"),
    "vit": Architecture("ViTModel", IMAGE),
    "swin": Architecture("SwinModel", IMAGE),
    "convnext": Architecture("ConvNextModel", IMAGE),
    "resnet50": Architecture("ResNetModel", IMAGE),
    "regnet": Architecture("RegNetModel", IMAGE),
    "bert_dynamic": Architecture("BertModel", dict.fromkeys(BERT_INPUTS, ("batch", "sequence"))),
    "llama_dynamic": Architecture("LlamaModel", {"input_ids": ("batch", "sequence")}, SMALL_LLAMA_CONFIG),
}

LANGUAGE_SIZES = ((1, 128), (8, 512))

SIZED_ARCHITECTURES: Mapping[str, Architecture] = {
    **{f"bert_{b}x{s}": replace(ARCHITECTURES["bert"], inputs=dict.fromkeys(BERT_INPUTS, (b, s))) for b, s in LANGUAGE_SIZES},
    **{f"gpt2_{b}x{s}": replace(ARCHITECTURES["gpt2"], inputs={"input_ids": (b, s)}) for b, s in LANGUAGE_SIZES},
    **{f"llama_1x{s}": replace(LLAMA, inputs={"input_ids": (1, s)}) for s in (128, 8)},
    **{f"t5_encoder_{b}x{s}": replace(ARCHITECTURES["t5_encoder"], inputs={"input_ids": (b, s)}) for b, s in LANGUAGE_SIZES},
    **{f"resnet50_{b}": replace(ARCHITECTURES["resnet50"], inputs={"pixel_values": (b, 3, 224, 224)}) for b in (1, 16)},
}
"""The models that `tools.bench.gpu_models` measures, named by batch and sequence length."""

# What dynamic dimensions are while tracing (torch would take 1 for static) and when the exported file is checked.
TRACED_SIZE = {"batch": 2, "sequence": 128}
CHECKED_SIZE = {"batch": 1, "sequence": 77}

# Relative L2 error that an export may have against torch, by whether it is fp16.
EXPORT_TOLERANCE = {False: 1e-5, True: 1e-2}


def export_model(name: str, path: Path, fp16: bool = False) -> float:
    """Exports a model with ``torch.onnx`` and compares the file, run by onnxruntime, with torch.

    Args:
        name: A key of `ARCHITECTURES` or `SIZED_ARCHITECTURES`.
        path: The file to write; weights stay inside it below 2 GB and go to external data above.
        fp16: Whether weights, floating-point inputs and outputs are half precision.

    Returns:
        The relative L2 distance between the outputs of onnxruntime and torch.
    """
    import torch

    architecture = {**ARCHITECTURES, **SIZED_ARCHITECTURES}[name]
    model = build_module(architecture)
    if fp16:
        model = model.half()
    example = example_inputs(architecture, TRACED_SIZE, fp16)
    inputs = example_inputs(architecture, CHECKED_SIZE, fp16)
    with torch.no_grad():
        expected = model(*inputs.values()).numpy()
        program = torch.onnx.export(
            model,
            tuple(example.values()),
            dynamo=True,
            verbose=False,
            input_names=list(example),
            output_names=["output"],
            dynamic_shapes={"inputs": tuple(_dynamic_dimensions(shape) for shape in architecture.inputs.values())},
        )
        program.save(path)
    (actual,) = _session(path).run(None, {key: value.numpy() for key, value in inputs.items()})
    return relative_error(actual, expected)


def build_module(architecture: Architecture) -> torch.nn.Module:
    """The module to export, random weights: evaluation mode, positional inputs, one output (the last hidden state)."""
    import torch
    import transformers

    names = tuple(architecture.inputs)

    class FirstOutput(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.model(**dict(zip(names, inputs, strict=True)))[0]
            return output

    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    config = model_class.config_class(**architecture.config, use_cache=False)
    model = model_class(config)
    if architecture.part:
        model = model.get_submodule(architecture.part)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                # Fresh biases are all zero and gains all one: the exporter would drop the ones and merge the others.
                parameter += 0.02 * torch.randn_like(parameter)
    if architecture.lora_rank:
        import peft

        # init_lora_weights=False leaves both factors random; peft's own start would be a zero that folds away.
        rank = architecture.lora_rank
        lora = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, lora).base_model.model
    return FirstOutput(model).eval()


def example_inputs(architecture: Architecture, sizes: Mapping[str, int], fp16: bool = False) -> dict[str, torch.Tensor]:
    """Random inputs; `sizes` are those of the dynamic dimensions."""
    import torch

    torch.manual_seed(0)
    example: dict[str, torch.Tensor] = {}
    for name, symbolic_shape in architecture.inputs.items():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in symbolic_shape]
        match name:
            case "input_ids":
                example[name] = torch.randint(1000, shape)
            case "attention_mask":
                example[name] = torch.ones(shape, dtype=torch.int64)
            case "token_type_ids":
                example[name] = torch.zeros(shape, dtype=torch.int64)
            case _:
                example[name] = torch.randn(shape, dtype=torch.float16 if fp16 else torch.float32)
    return example


def _dynamic_dimensions(shape: Sequence[int | str]) -> dict[int, str]:
    return {axis: dim for axis, dim in enumerate(shape) if isinstance(dim, str)}


# --- models without their weights ---------------------------------------------------------------------------------------

# Where a skeleton's weights would lie if they were external data: no such file exists, so a skeleton does not load as a model.
DRAWN = "drawn-by-tools.zoo-fill"

# A weight that a skeleton leaves out has so many entries, and so many different ones; tables, masks and biases stay.
LEAST_DRAWN, LEAST_DISTINCT = 1 << 16, 1 << 10

FLOAT_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with mean and standard deviation in place of each large weight.

    Left out are initializers of a floating-point type with at least `LEAST_DRAWN` entries of which the first
    `LEAST_DRAWN` hold at least `LEAST_DISTINCT` different values, as random weights do; what was computed (masks, tables
    of angles, position biases) stays as it is.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type not in FLOAT_TYPES or math.prod(tensor.dims) < LEAST_DRAWN:
            continue
        values = numpy_helper.to_array(tensor)
        if len(np.unique(values.ravel()[:LEAST_DRAWN])) < LEAST_DISTINCT:
            continue
        wide = values.astype(np.float64)
        statistics = {"mean": float(wide.mean()), "deviation": float(wide.std())}
        for content in ("raw_data", "float_data", "int32_data", "double_data"):
            tensor.ClearField(content)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=DRAWN)
        for key, number in statistics.items():
            tensor.external_data.add(key=key, value=repr(number))
    return copy


def fill(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of a skeleton with normal weights of the recorded means and deviations; each depends on seed and name alone."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") != DRAWN:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
        values = _normal(rng, tuple(tensor.dims), float(entries["deviation"]))
        values += np.float32(entries["mean"])
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = values.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).tobytes()
    return copy


def write_skeleton(model: onnx.ModelProto, path: Path) -> None:
    """Writes a skeleton, compressed (xz)."""
    path.write_bytes(lzma.compress(skeleton(model).SerializeToString()))


def read_skeleton(path: Path) -> onnx.ModelProto:
    """Reads what `write_skeleton` wrote.

    Raises:
        ValueError: The file is no compressed model.
    """
    try:
        return onnx.load_model_from_string(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, DecodeError) as problem:
        raise ValueError(f"{path}: not a skeleton written by 'python -m tools.zoo skeleton' ({problem})") from None


# --- running a model --------------------------------------------------------------------------------------------------


def _session(model: Path | bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def random_inputs(session: ort.InferenceSession, rng: np.random.Generator) -> dict[str, Array]:
    """Standard normal inputs for a session whose inputs are float32 of static shape."""
    return {value.name: rng.standard_normal(value.shape, np.float32) for value in session.get_inputs()}


def relative_error(actual: Array, expected: Array) -> float:
    """The L2 norm of the difference over that of the expected values, in float64."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def describe(path: Path) -> str:
    """One line on a model file: node count, size on disk with external data, operators by frequency."""
    model = onnx.load(path, load_external_data=False)
    counts = Counter(node.op_type for node in model.graph.node)
    size = sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))
    operators = ", ".join(f"{op_type} {count}" for op_type, count in counts.most_common())
    return f"{path}: {counts.total()} nodes, {size / 2**20:.1f} MiB: {operators}"


# --- command line -----------------------------------------------------------------------------------------------------

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DIR,
    show_default=True,
    help="Where the files go.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Writes the models that the project measures itself on."""


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice([*ARCHITECTURES, *SIZED_ARCHITECTURES]))
@directory_option
@click.option("--fp16", is_flag=True, help="Export in half precision, as NAME_fp16.onnx.")
def export(names: tuple[str, ...], directory: Path, fp16: bool) -> None:
    """Exports models of transformers with torch.onnx and checks them in onnxruntime.

    Default: all but those with a size in their names, which the GPU benchmark measures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or ARCHITECTURES:
        path = directory / (f"{name}_fp16.onnx" if fp16 else f"{name}.onnx")
        error = export_model(name, path, fp16)
        click.echo(f"{describe(path)}; differs from torch by {error:.1e}")
        if not error <= EXPORT_TOLERANCE[fp16]:
            raise click.ClickException(f"{path} does not compute what torch does: relative error {error:.1e}")


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(light_models())))
@directory_option
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
def light(names: tuple[str, ...], directory: Path, seed: int) -> None:
    """Writes the CNNs of the onnx wheel (all by default) with random weights, as light_NAME.onnx."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or light_models():
        path = directory / f"light_{name}.onnx"
        onnx.save(load_light(name, seed), path)
        click.echo(describe(path))


@main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(TASO_MODELS)))
@directory_option
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
def taso(names: tuple[str, ...], directory: Path, seed: int) -> None:
    """Writes TASO's own models (all by default) with random weights."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or TASO_MODELS:
        path = directory / f"{name}.onnx"
        onnx.save(TASO_MODELS[name](seed), path)
        click.echo(describe(path))


@main.command()
@directory_option
@click.option("--gigabytes", default=3.0, show_default=True, help="Size of all weights, in 10⁹ bytes.")
@click.option("--width", default=4096, show_default=True, help="Rows and columns of each weight.")
def big(directory: Path, gigabytes: float, width: int) -> None:
    """Writes big.onnx, a model of any size, with external data."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "big.onnx"
    write_big(path, gigabytes, width)
    click.echo(describe(path))


@main.command("skeleton")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def skeleton_command(model: Path, out: Path) -> None:
    """Writes MODEL without its weights to OUT, which 'fill' gives random ones again."""
    write_skeleton(onnx.load(model), out)
    click.echo(f"{out}: {out.stat().st_size / 1e3:.0f} kB, of {model.stat().st_size / 1e6:.1f} MB")


@main.command("fill")
@click.argument("source", metavar="SKELETON", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
def fill_command(source: Path, out: Path, seed: int) -> None:
    """Writes SKELETON with random weights to OUT."""
    try:
        onnx.save(fill(read_skeleton(source), seed), out)
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(describe(out))


@main.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write.")
def block(out: Path) -> None:
    """Writes the demo model: a transformer block with LoRA adapters."""
    out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(lora_block(), out)
    click.echo(describe(out))


if __name__ == "__main__":
    main()
