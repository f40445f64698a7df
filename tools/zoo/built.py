"""Models written node by node: a transformer block with LoRA adapters, and a model of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tools.zoo.draws import Array, gain, normal

# What torch.onnx writes today, for the models built here without torch.
OPSET, IR_VERSION = 20, 10


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

    def drawn(name: str, deviation: float, *shape: int) -> str:
        return op.parameter(name, normal(rng, shape, deviation))

    def linear(x: str, name: str, inputs: int, outputs: int) -> str:
        base = op("MatMul", x, drawn(f"{name}.weight", inputs**-0.5, inputs, outputs))
        down = op("MatMul", x, drawn(f"{name}.lora_A.weight", inputs**-0.5, inputs, rank))
        # A trained adapter is a correction: about a tenth of the base before scaling.
        up = op("MatMul", down, drawn(f"{name}.lora_B.weight", 0.1 * rank**-0.5, rank, outputs))
        return op("Add", base, op("Mul", up, op.scalar(scale)))

    def rms_norm(x: str, name: str) -> str:
        weight = op.parameter(f"{name}.weight", gain(rng, (hidden,)))
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
