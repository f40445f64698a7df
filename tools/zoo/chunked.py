"""Attention in chunks as TorchScript exports transformers' Longformer with ``config.onnx_export``, once constants are folded.

Without that setting its queries and keys are cut by ``as_strided``, of which the exporter takes the strides that they have in
memory for those of the tensor that it flattens: the file computes something else than the model did.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.zoo.draws import Array

__all__ = ["chunked_attention_model", "windowed_attention"]


class _ChunkedGraph:
    """Nodes and constants of a graph, named in their order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def reshape(self, x: str, *shape: int) -> str:
        return self("Reshape", x, self.constant(shape))

    def slice(self, x: str, **ranges: tuple[int, int]) -> str:
        """The part of a tensor from one place to another along axes ``a0``, ``a1``, ..."""
        starts, ends = zip(*ranges.values(), strict=True)
        return self("Slice", x, *map(self.constant, (starts, ends, [int(axis[1:]) for axis in ranges])))

    def put(self, x: str, part: str, *places: range) -> str:
        """A tensor with another at places along its axes."""
        at = np.stack(np.meshgrid(*places, indexing="ij"), axis=-1)
        return self("ScatterND", x, self.constant(at), part)

    def chunks(self, x: str, count: int, window: int) -> str:
        """[a, s, d] to overlapping chunks [a, count, 2 window, d]."""
        parts = [self.slice(x, a1=(window * n, window * (n + 2))) for n in range(count)]
        return self("Concat", *(self("Unsqueeze", part, self.constant([1])) for part in parts), axis=1)

    def diagonals(self, queries: str, keys: str, rows: int, length: int, window: int) -> str:
        """The products of each position with those within the window, [rows, s, 2 window + 1]; at both ends are others, too."""
        w, count = window, length // window - 1
        products = self("Einsum", self.chunks(queries, count, w), self.chunks(keys, count, w), equation="bcxd,bcyd->bcxy")
        padded = self("Pad", products, self.constant([0, 0, 0, 0, 0, 0, 1, 0]))
        skewed = self.reshape(padded, rows, count, 2 * w, 2 * w + 1)
        band = self.constant(np.zeros((rows, count + 1, w, 2 * w + 1)), np.float32)
        every = range(rows)
        band = self.put(band, self.slice(skewed, a2=(0, w), a3=(0, w + 1)), every, range(count), range(w), range(w, 2 * w + 1))
        last = self.slice(skewed, a1=(count - 1, count), a2=(w, 2 * w), a3=(0, w + 1))
        band = self.put(band, last, every, range(count, count + 1), range(w), range(w, 2 * w + 1))
        before = self.slice(skewed, a2=(w - 1, 2 * w - 1), a3=(w + 1, 2 * w + 1))
        band = self.put(band, before, every, range(1, count + 1), range(w), range(w))
        first = self.slice(skewed, a1=(0, 1), a2=(0, w - 1), a3=(w + 2, 2 * w + 1))
        band = self.put(band, first, every, range(1), range(1, w), range(1, w))
        return self.reshape(band, rows, length, 2 * w + 1)

    def hidden(self, band: str, rows: int, length: int, window: int) -> str:
        """The same with -inf where there is no such position."""
        w = window
        low = self.constant(np.full((rows, w, w + 1), -np.inf), np.float32)
        ahead = np.tri(w, w + 1, dtype=bool)[::-1]
        for shown, rest, columns in ((ahead, (0, w), (0, w + 1)), (ahead[::-1, ::-1], (length - w, length), (w, 2 * w + 1))):
            part = self("Where", self.constant(shown[None], bool), low, self.slice(band, a1=rest, a2=columns))
            band = self.put(band, part, range(rows), range(*rest), range(*columns))
        return band


def chunked_attention_model(batch: int, heads: int, length: int, width: int, window: int, opset: int = 17) -> onnx.ModelProto:
    """The model: ``q``, ``k`` and ``v`` float[length, batch, heads·width], as Longformer has them, and ``hidden``
    bool[batch, length], true for padding, to ``y`` float[batch, heads, length, width]. ``length`` is a multiple of ``window``.
    """
    new, rows, w = _ChunkedGraph(), batch * heads, window
    parts = [new("Transpose", new.reshape(x, length, batch, heads, width), perm=[1, 2, 0, 3]) for x in "qkv"]
    queries, keys, values = (new.reshape(part, rows, length, width) for part in parts)
    scores = new.hidden(new.diagonals(queries, keys, rows, length, w), rows, length, w)
    low = new("Where", "hidden", new.constant(-3e4, np.float32), new.constant(0, np.float32))
    ones = new.constant(np.ones((batch, length, 1)), np.float32)
    masked = new.hidden(new.diagonals(ones, new.reshape(low, batch, length, 1), batch, length, w), batch, length, w)
    wide = 2 * w + 1
    scores = new("Add", new.reshape(scores, batch, heads, length, wide), new.reshape(masked, batch, 1, length, wide))
    weights = new(
        "Where", new.reshape("hidden", batch, 1, length, 1), new.constant(0, np.float32), new("Softmax", scores, axis=-1)
    )
    count = length // w
    padded = new("Pad", new.reshape(weights, rows, count, w, wide), new.constant([0, 0, 0, 0, 0, 0, 0, w + 1]))
    flat = new.slice(new.reshape(padded, rows, count, w * (3 * w + 2)), a2=(0, w * (3 * w + 1)))
    band = new.slice(new.reshape(flat, rows, count, w, 3 * w + 1), a3=(0, 3 * w))
    padded = new("Pad", values, new.constant([0, w, 0, 0, w, 0]), new.constant(-1, np.float32))
    at = (np.arange(count) * w)[:, None] + np.arange(3 * w)
    mixed = new("Einsum", band, new("Gather", padded, new.constant(at), axis=1), equation="bcwd,bcdh->bcwh")
    new.nodes.append(helper.make_node("Reshape", [mixed, new.constant([batch, heads, length, width])], ["y"]))
    given = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [length, batch, heads * width]) for x in "qkv"]
    given.append(helper.make_tensor_value_info("hidden", TensorProto.BOOL, [batch, length]))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, heads, length, width])
    graph = helper.make_graph(new.nodes, "chunked", given, [made], new.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def windowed_attention(feed: dict[str, Array], heads: int, window: int) -> Array:
    """What the model computes, in double precision: attention within a window, zeros for padding."""
    length, batch, whole = feed["q"].shape
    q, k, v = (feed[x].astype(np.float64).reshape(length, batch, heads, whole // heads).transpose(1, 2, 0, 3) for x in "qkv")
    scores = q @ k.swapaxes(-1, -2) + np.where(feed["hidden"], -3e4, 0.0)[:, None, None]
    apart = np.abs(np.arange(length) - np.arange(length)[:, None])
    powers = np.where(apart <= window, scores, -np.inf)
    powers = np.exp(powers - powers.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True) @ v * ~feed["hidden"][:, None, :, None]
    return result
