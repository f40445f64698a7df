"""The five models of TASO's evaluation (SOSP'19, section 7.1), made without torch, and others.

ResNet-50, ResNeXt-50 (grouped convolutions), NasNet-A (cells of separable convolutions, pools and sums), NasRNN (a recurrent
cell of many small products that share operands) and BERT. Beside them two whose kernels of 1x1 may be enlarged: SqueezeNet,
where they stand beside one of 3x3, and RepVGG as it is trained, where they are added to it; Inception-v3, whose branches
share what they read; and two that add positions, DETR's encoder and UniFormer. Random weights that keep the activations'
scale; convolutions without normalisation, as TASO has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["TASO_MODELS", "TasoModel", "in_half"]

OPSET, IR_VERSION = 20, 10


class _ModelBuilder:
    """A graph under construction: values are names, and channels are remembered by name."""

    def __init__(self, seed: int, batch: int = 1) -> None:
        self.batch = batch
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels: dict[str, int] = {}

    def node(self, op: str, *inputs: str, channels: int | None = None, **attributes: object) -> str:
        """Appends a node; its one output is named after it and has the first input's channels unless told otherwise."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        self.channels[name] = self.channels.get(inputs[0], 0) if channels is None else channels
        return name

    def weight(self, *shape: int) -> str:
        """Normal entries scaled by what is summed over: all but the first axis of a kernel, the first of a matrix."""
        fan = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
        array = self.random.normal(0, math.sqrt(1 / fan), shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(
        self,
        x: str,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        group: int = 1,
        relu: bool = True,
        bias: bool = False,
        same: bool = True,
    ) -> str:
        """A convolution; ``same`` pads it so that at stride 1 the image keeps its size."""
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        weights = [self.weight(out, self.channels[x] // group, *sides), *([self.weight(out)] if bias else [])]
        y = self.node("Conv", x, *weights, channels=out, **_window(sides, stride, same), group=group)
        return self.node("Relu", y) if relu else y

    def pool(self, op: str, x: str, stride: int = 1, same: bool = True) -> str:
        return self.node(op, x, **_window((3, 3), stride, same))

    def concat(self, *images: str) -> str:
        return self.node("Concat", *images, channels=sum(self.channels[image] for image in images), axis=1)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def heads(self, x: str, width: int, apart: str, perm: list[int]) -> str:
        """A projection whose columns are set apart as the heads of an attention."""
        return self.node("Transpose", self.node("Reshape", self.linear(x, width, width), apart), perm=perm)

    def normalised(self, x: str, width: int, epsilon: float) -> str:
        return self.node("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1, epsilon=epsilon)

    def number(self, value: float) -> str:
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def integers(self, *entries: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(entries, np.int64), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, name: str, inputs: dict[str, tuple[int, ...]], output: str) -> onnx.ModelProto:
        """The model; ``inputs`` have their shapes without the batch."""
        infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (self.batch, *shape)) for n, shape in inputs.items()]
        result = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, name, infos, [result], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        return onnx.shape_inference.infer_shapes(model)


def _window(kernel: tuple[int, int], stride: int, same: bool) -> dict[str, list[int]]:
    pads = [(side - 1) // 2 if same else 0 for side in kernel] * 2
    return {"kernel_shape": list(kernel), "strides": [stride, stride], "pads": pads}


def _residual(name: str, seed: int, batch: int, width: int, expansion: int, group: int) -> onnx.ModelProto:
    """Bottlenecks of three convolutions: ``width`` channels inside the first ones, ``expansion`` times as many outside."""
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3
    x = b.pool("MaxPool", b.conv("x", 64, 7, 2), 2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outer = width << stage, expansion * width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = b.conv(b.conv(x, inner, 1), inner, 3, stride, group=group)
            y = b.conv(y, outer, 1, relu=False)
            shortcut = x if block else b.conv(x, outer, 1, stride, relu=False)
            x = b.node("Relu", b.node("Add", y, shortcut))
    return b.model(name, {"x": (3, 224, 224)}, b.node("GlobalAveragePool", x))


def resnet50(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """ResNet-50 at 3×224×224 (He et al., CVPR 2016), the stride in the 3x3 kernels."""
    return _residual("resnet50", seed, batch, 64, 4, 1)


def resnext50(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """ResNeXt-50 32×4d at 3×224×224 (Xie et al., CVPR 2017)."""
    return _residual("resnext50", seed, batch, 128, 2, 32)


def bert(seed: int = 0, batch: int = 1, layers: int = 12, hidden: int = 768, length: int = 128) -> onnx.ModelProto:
    """BERT-base's encoder at 128 positions (Devlin et al., NAACL 2019), embeddings as input, nothing masked."""
    b, heads = _ModelBuilder(seed, batch), hidden // 64
    eighth, apart, side = b.number(0.125), b.integers(batch, length, heads, 64), b.integers(batch, length, hidden)

    x = b.normalised("x", hidden, 1e-12)
    for _ in range(layers):
        query, key, value = (b.heads(x, hidden, apart, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = b.node("Softmax", b.node("Mul", b.node("MatMul", query, key), eighth), axis=-1)
        attended = b.node("Reshape", b.node("Transpose", b.node("MatMul", scores, value), perm=[0, 2, 1, 3]), side)
        x = b.normalised(b.node("Add", b.linear(attended, hidden, hidden), x), hidden, 1e-12)
        inner = b.linear(b.node("Gelu", b.linear(x, hidden, 4 * hidden)), 4 * hidden, hidden)
        x = b.normalised(b.node("Add", inner, x), hidden, 1e-12)
    return b.model("bert", {"x": (length, hidden)}, x)


def detr(seed: int = 0, batch: int = 1, layers: int = 6, hidden: int = 256, length: int = 850) -> onnx.ModelProto:
    """DETR's encoder on the 25×34 positions of an image of 800×1066 (Carion et al., ECCV 2020): each layer adds the positions to
    what queries and keys are made of, but not the values. The image's projected features as input, nothing masked.
    """
    b, heads = _ModelBuilder(seed, batch), hidden // 32
    scale, apart, side = b.number(32**-0.5), b.integers(batch, length, heads, 32), b.integers(batch, length, hidden)
    positions = b.weight(1, length, hidden)

    x = "x"
    for _ in range(layers):
        placed = b.node("Add", x, positions)
        query, key = (b.heads(placed, hidden, apart, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1]))
        value = b.heads(x, hidden, apart, [0, 2, 1, 3])
        scores = b.node("Softmax", b.node("MatMul", b.node("Mul", query, scale), key), axis=-1)
        attended = b.node("Reshape", b.node("Transpose", b.node("MatMul", scores, value), perm=[0, 2, 1, 3]), side)
        x = b.normalised(b.node("Add", x, b.linear(attended, hidden, hidden)), hidden, 1e-5)
        inner = b.linear(b.node("Relu", b.linear(x, hidden, 8 * hidden)), 8 * hidden, hidden)
        x = b.normalised(b.node("Add", x, inner), hidden, 1e-5)
    return b.model("detr", {"x": (length, hidden)}, x)


def nasnet_a(seed: int = 0, batch: int = 1, channels: int = 64, cells: int = 3) -> onnx.ModelProto:
    """NasNet-A's normal and reduction cells (Zoph et al., CVPR 2018, figure 4) at 3×224×224."""
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3

    def separable(x: str, out: int, kernel: int, stride: int = 1) -> str:
        depthwise = b.conv(x, b.channels[x], kernel, stride, group=b.channels[x], relu=False)
        return b.conv(depthwise, out, 1, relu=False)

    def normal(previous: str, current: str, out: int) -> str:
        p, c = b.conv(previous, out, 1), b.conv(current, out, 1)
        average: Callable[[str], str] = lambda v: b.pool("AveragePool", v)  # noqa: E731
        sums = [
            b.node("Add", separable(c, out, 3), c),
            b.node("Add", separable(p, out, 3), separable(c, out, 5)),
            b.node("Add", average(c), p),
            b.node("Add", average(p), average(p)),
            b.node("Add", separable(p, out, 5), separable(p, out, 3)),
        ]
        return b.node("Concat", *sums, channels=5 * out, axis=1)

    def reduction(previous: str, current: str, out: int) -> str:
        p, c = b.conv(previous, out, 1), b.conv(current, out, 1)
        first = b.node("Add", separable(p, out, 7, 2), separable(c, out, 5, 2))
        second = b.node("Add", b.pool("MaxPool", c, 2), separable(p, out, 7, 2))
        third = b.node("Add", b.pool("AveragePool", c, 2), separable(p, out, 5, 2))
        fourth = b.node("Add", b.pool("MaxPool", c, 2), separable(first, out, 3))
        fifth = b.node("Add", b.pool("AveragePool", first), second)
        return b.node("Concat", second, third, fourth, fifth, channels=4 * out, axis=1)

    current = b.pool("MaxPool", b.conv("x", channels, 7, 2), 2)
    for stage in range(3):
        previous = current
        for _ in range(cells):
            previous, current = current, normal(previous, current, channels)
        if stage < 2:
            channels *= 2
            current = reduction(previous, current, channels)
    return b.model("nasnet_a", {"x": (3, 224, 224)}, b.node("GlobalAveragePool", b.node("Relu", current)))


def nasrnn(seed: int = 0, batch: int = 1, hidden: int = 512, length: int = 5) -> onnx.ModelProto:
    """The recurrent cell that architecture search found (Zoph and Le, ICLR 2017, figure 8), unrolled."""
    b = _ModelBuilder(seed, batch)
    state = "h"
    weights = [(b.weight(hidden, hidden), b.weight(hidden, hidden)) for _ in range(8)]
    for step in range(length):
        t = [b.node("Add", b.node("MatMul", f"x{step}", w), b.node("MatMul", state, u)) for w, u in weights]
        relu, sigmoid, tanh = (lambda v, op=op: b.node(op, v) for op in ("Relu", "Sigmoid", "Tanh"))
        first = b.node("Add", relu(t[0]), sigmoid(t[3]))
        second = b.node("Add", sigmoid(t[1]), tanh(t[2]))
        third = b.node("Mul", sigmoid(t[4]), tanh(t[5]))
        fourth = b.node("Mul", sigmoid(t[6]), relu(t[7]))
        fifth = b.node("Add", sigmoid(second), tanh(third))
        sixth = b.node("Mul", tanh(first), tanh(fourth))
        state = tanh(b.node("Mul", tanh(fifth), tanh(sixth)))
    inputs = {name: (hidden,) for name in (*(f"x{step}" for step in range(length)), "h")}
    return b.model("nasrnn", inputs, state)


def squeezenet(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """SqueezeNet 1.1 at 3×224×224 (Iandola et al., 2016): fire modules, in which 1x1 and 3x3 kernels read one image."""
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3

    def fire(x: str, squeezed: int, expanded: int) -> str:
        inner = b.conv(x, squeezed, 1, bias=True)
        return b.node("Concat", *(b.conv(inner, expanded, kernel, bias=True) for kernel in (1, 3)), channels=2 * expanded, axis=1)

    x = b.pool("MaxPool", b.conv("x", 64, 3, 2, bias=True), 2)
    x = b.pool("MaxPool", fire(fire(x, 16, 64), 16, 64), 2)
    x = b.pool("MaxPool", fire(fire(x, 32, 128), 32, 128), 2)
    x = fire(fire(fire(fire(x, 48, 192), 48, 192), 64, 256), 64, 256)
    return b.model("squeezenet", {"x": (3, 224, 224)}, b.node("GlobalAveragePool", b.conv(x, 1000, 1, bias=True)))


def inception_v3(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """Inception-v3 at 3×299×299 (Szegedy et al., CVPR 2016, table 1): modules whose branches read one image."""
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3

    def chain(x: str, *layers: tuple[int, int | tuple[int, int]], stride: int = 1) -> str:
        """Convolutions; the last one has the stride, and no padding where that is 2."""
        for place, (out, kernel) in enumerate(layers, 1):
            last = place == len(layers) and stride > 1
            x = b.conv(x, out, kernel, stride if last else 1, bias=True, same=not last)
        return x

    def pooled(x: str, out: int) -> str:
        return chain(b.pool("AveragePool", x), (out, 1))

    def narrow(x: str, out: int) -> str:
        parts = chain(x, (64, 1)), chain(x, (48, 1), (64, 5)), chain(x, (64, 1), (96, 3), (96, 3))
        return b.concat(*parts, pooled(x, out))

    def factored(x: str, inner: int) -> str:
        short = chain(x, (inner, 1), (inner, (1, 7)), (192, (7, 1)))
        long = chain(x, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7)))
        return b.concat(chain(x, (192, 1)), short, long, pooled(x, 192))

    def wide(x: str) -> str:
        forks = chain(x, (384, 1)), chain(x, (448, 1), (384, 3))
        parts = [chain(fork, (384, kernel)) for fork in forks for kernel in ((1, 3), (3, 1))]
        return b.concat(chain(x, (320, 1)), *parts, pooled(x, 192))

    def reduction(x: str, *branches: str) -> str:
        return b.concat(*branches, b.pool("MaxPool", x, 2, same=False))

    x = b.conv(chain("x", (32, 3), stride=2), 32, 3, bias=True, same=False)
    x = b.pool("MaxPool", chain(x, (64, 3)), 2, same=False)
    x = b.pool("MaxPool", b.conv(chain(x, (80, 1)), 192, 3, bias=True, same=False), 2, same=False)
    for out in (32, 64, 64):
        x = narrow(x, out)
    x = reduction(x, chain(x, (384, 3), stride=2), chain(x, (64, 1), (96, 3), (96, 3), stride=2))
    for inner in (128, 160, 160, 192):
        x = factored(x, inner)
    x = reduction(x, chain(x, (192, 1), (320, 3), stride=2), chain(x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), stride=2))
    x = wide(wide(x))
    return b.model("inception_v3", {"x": (3, 299, 299)}, b.node("GlobalAveragePool", x))


def repvgg_a0(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """RepVGG-A0 as it is trained, at 3×224×224 (Ding et al., CVPR 2021): sums of a 3x3 kernel, a 1x1 kernel and the image."""
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3
    x = "x"
    for blocks, out in ((1, 48), (2, 48), (4, 96), (14, 192), (1, 1280)):
        for block in range(blocks):
            stride = 1 if block else 2
            y = b.node("Add", *(b.conv(x, out, kernel, stride, relu=False, bias=True) for kernel in (3, 1)))
            x = b.node("Relu", b.node("Add", y, x) if block else y)
    return b.model("repvgg_a0", {"x": (3, 224, 224)}, b.node("GlobalAveragePool", x))


def uniformer(seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """UniFormer-S at 3×224×224 (Li et al., ICLR 2022): each block adds a depthwise convolution of the image to the image, as its
    positions; two stages of depthwise and pointwise convolutions follow, then two of attention.
    """
    b = _ModelBuilder(seed, batch)
    b.channels["x"] = 3

    def positioned(x: str) -> str:
        return b.node("Add", x, b.conv(x, b.channels[x], 3, group=b.channels[x], relu=False, bias=True))

    def pointwise(x: str, out: int) -> str:
        return b.conv(x, out, 1, relu=False, bias=True)

    def local(x: str) -> str:
        x, width = positioned(x), b.channels[x]
        near = b.conv(pointwise(x, width), width, 5, group=width, relu=False, bias=True)
        x = b.node("Add", x, pointwise(near, width))
        return b.node("Add", x, pointwise(b.node("Gelu", pointwise(x, 4 * width)), width))

    def attending(x: str, side: int) -> str:
        width, image = b.channels[x], positioned(x)
        scale, apart = b.number(64**-0.5), b.integers(batch, side * side, width // 64, 64)
        x = b.node("Transpose", b.node("Reshape", image, b.integers(batch, width, side * side)), perm=[0, 2, 1])
        y = b.normalised(x, width, 1e-6)
        query, key, value = (b.heads(y, width, apart, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = b.node("Softmax", b.node("Mul", b.node("MatMul", query, key), scale), axis=-1)
        joined = b.node("Transpose", b.node("MatMul", scores, value), perm=[0, 2, 1, 3])
        x = b.node("Add", x, b.linear(b.node("Reshape", joined, b.integers(batch, side * side, width)), width, width))
        y = b.node("Gelu", b.linear(b.normalised(x, width, 1e-6), width, 4 * width))
        x = b.node("Transpose", b.node("Add", x, b.linear(y, 4 * width, width)), perm=[0, 2, 1])
        return b.node("Reshape", x, b.integers(batch, width, side, side), channels=width)

    x, side = "x", 224
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (320, 8), (512, 3))):
        patch = 2 if stage else 4
        x, side = b.conv(x, width, patch, patch, relu=False, bias=True, same=False), side // patch
        for _ in range(blocks):
            x = attending(x, side) if stage > 1 else local(x)
    return b.model("uniformer", {"x": (3, 224, 224)}, b.node("GlobalAveragePool", x))


class TasoModel(Protocol):
    """Makes a model of random weights."""

    def __call__(self, seed: int = 0, batch: int = 1) -> onnx.ModelProto: ...


TASO_MODELS: dict[str, TasoModel] = {
    "taso_resnet50": resnet50,
    "resnext50": resnext50,
    "nasnet_a": nasnet_a,
    "nasrnn": nasrnn,
    "taso_bert": bert,
    "squeezenet": squeezenet,
    "inception_v3": inception_v3,
    "repvgg_a0": repvgg_a0,
    "detr": detr,
    "uniformer": uniformer,
}
"""Name to what makes the model; the names of two are those of others that torch exports."""


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in half precision: weights, inputs and outputs that were float32."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph, single = half.graph, onnx.TensorProto.FLOAT
    for tensor in graph.initializer:
        if tensor.data_type == single:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == single:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    del graph.value_info[:]
    return onnx.shape_inference.infer_shapes(half)
