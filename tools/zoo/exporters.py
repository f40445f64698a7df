"""What model families spell when exporters write them: the regions that a runtime has in one operator, one small model each.

A *dialect* is an exporter at an opset: torch's TorchScript exporter, its successor built on torch.export (dynamo), tf2onnx,
Paddle2ONNX, and optimum, which calls torch's with its own settings (:data:`DIALECTS`).
Structures follow public exports, operator by operator; sizes and weights are made up, pairwise distinct where they mean
different things. None of the rules that ship was mined from them: they show what is recognised that nobody mined.

``python -m tools.bench.exporters`` counts what the shipped rules recognise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from tools.ship.spellings import Sketch

__all__ = ["DIALECTS", "FAMILIES", "Dialect", "ExportedRegion", "regions"]

BATCH, LENGTH, HEADS, SIZE = 2, 7, 3, 10
HIDDEN, WIDE = HEADS * SIZE, 44


@dataclass(frozen=True)
class Dialect:
    """An exporter at an opset."""

    exporter: str
    opset: int

    def __str__(self) -> str:
        return f"{self.exporter}-{self.opset}"

    @property
    def is_torch(self) -> bool:
        return self.exporter in ("torchscript", "dynamo", "optimum")


DIALECTS = tuple(
    Dialect(exporter, opset)
    for exporter, opsets in (
        ("torchscript", (11, 13, 17, 20)),
        ("dynamo", (18, 20, 23)),
        ("tf2onnx", (11, 13, 17)),
        ("paddle2onnx", (11, 13, 17)),
        ("optimum", (14, 17)),
    )
    for opset in opsets
)


class DialectSketch(Sketch):
    """Writes nodes as a dialect does: operators whose axes became operands take them where the opset wants them."""

    def __init__(self, dialect: Dialect, half: bool = False) -> None:
        super().__init__(np.float16 if half else np.float32)
        self.dialect, self.opset = dialect, dialect.opset

    def mean(self, x: str) -> str:
        if self.opset >= 18:
            return self("ReduceMean", x, self.ints(-1), keepdims=1)
        return self("ReduceMean", x, axes=[-1], keepdims=1)

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self("Unsqueeze", x, self.ints(*axes)) if self.opset >= 13 else self("Unsqueeze", x, axes=axes)

    def squeeze(self, x: str, *axes: int) -> str:
        return self("Squeeze", x, self.ints(*axes)) if self.opset >= 13 else self("Squeeze", x, axes=axes)

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        operands, more = ((self.ints(*sizes),), {}) if self.opset >= 13 else ((), {"split": sizes})
        first = self("Split", x, *operands, axis=axis, outputs=len(sizes), **more)
        return [first, *(f"{first}_{i}" for i in range(1, len(sizes)))]

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        return self("Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(1))

    def softmax(self, x: str, rank: int) -> str:
        return self("Softmax", x, axis=-1 if self.opset >= 13 else rank - 1)

    def linear(self, x: str, inputs: int, outputs: int, bias: bool = True) -> str:
        """torch adds the bias in front of the product, as its own exporters write it; others behind it."""
        product = self("MatMul", x, self.weight(inputs, outputs))
        if not bias:
            return product
        return self("Add", self.weight(outputs), product) if self.dialect.is_torch else self("Add", product, self.weight(outputs))


Write = Callable[[DialectSketch], "str | list[str]"]


@dataclass(frozen=True)
class ExportedRegion:
    """A region of a model.

    Attributes:
        family: the models that have it.
        dialect: who wrote it.
        name: of the region within the family.
        expected: operators of the registry, of which one is what the region is, in whole or in its main part.
    """

    family: str
    dialect: Dialect
    name: str
    expected: tuple[str, ...]
    write: Write
    half: bool = False

    def __str__(self) -> str:
        return f"{self.family}-{self.dialect}-{self.name}"

    def build(self) -> onnx.ModelProto:
        """The model of the region."""
        writer = DialectSketch(self.dialect, self.half)
        outputs = self.write(writer)
        return writer.model([outputs] if isinstance(outputs, str) else outputs)


# Normalisation

_LAYER = ("LayerNormalization", "SkipLayerNormalization")
_RMS = ("SimplifiedLayerNormalization", "RMSNormalization", "SkipSimplifiedLayerNormalization")


def _layer_norm(w: DialectSketch, x: str, size: int = HIDDEN, epsilon: float = 1e-12) -> str:
    exporter = w.dialect.exporter
    if exporter != "tf2onnx" and w.opset >= 17:
        return w("LayerNormalization", x, w.weight(size), w.weight(size), axis=-1, epsilon=epsilon)
    if exporter == "tf2onnx":
        return _moments(w, x, size, epsilon)
    x = w.single(x)
    mean = w.mean(x)
    centred = w("Sub", x, mean)
    variance = w.mean(w("Pow", centred, w.number(2, np.float32)))
    normal = w.cast_back(w("Div", centred, w("Sqrt", w("Add", variance, w.number(epsilon, np.float32)))))
    return w("Add", w("Mul", normal, w.weight(size)), w.weight(size))


def _moments(w: DialectSketch, x: str, size: int, epsilon: float) -> str:
    """tf.nn.moments and tf.nn.batch_normalization: x times a factor, plus an offset less the mean times the factor."""
    mean = w.mean(x)
    difference = w("Sub", x, mean)
    variance = w.mean(w("Mul", difference, difference))
    factor = w("Mul", w("Reciprocal", w("Sqrt", w("Add", variance, w.number(epsilon)))), w.weight(size))
    return w("Add", w("Mul", x, factor), w("Sub", w.weight(size), w("Mul", mean, factor)))


def _normalised(w: DialectSketch) -> str:
    return _layer_norm(w, w.input(BATCH, LENGTH, HIDDEN))


def _residual(w: DialectSketch) -> list[str]:
    total = w("Add", w.linear(w.input(BATCH, LENGTH, WIDE), WIDE, HIDDEN), w.input(BATCH, LENGTH, HIDDEN))
    return [_layer_norm(w, total)]


def _before(w: DialectSketch) -> list[str]:
    """Normalisation in front of a layer: the sum goes on."""
    total = w("Add", w.input(BATCH, LENGTH, HIDDEN), w.input(BATCH, LENGTH, HIDDEN))
    return [_layer_norm(w, total, epsilon=1e-5), total]


def _channels_last(w: DialectSketch) -> str:
    """ConvNeXt: channels go last for the normalisation."""
    return _layer_norm(w, w("Transpose", w.input(BATCH, HIDDEN, 5, 6), perm=[0, 2, 3, 1]), epsilon=1e-6)


def _root_mean_square(w: DialectSketch) -> str:
    x = w.input(BATCH, LENGTH, HIDDEN)
    wide = w.single(x)
    is_torch = w.dialect.is_torch
    square = w("Pow", wide, w.number(2, np.float32)) if is_torch else w("Mul", wide, wide)
    root = w("Sqrt", w("Add", w.mean(square), w.number(1e-6, np.float32)))
    inverse = w("Div", w.number(1, np.float32), root) if w.dialect.exporter == "torchscript" else w("Reciprocal", root)
    normal = w.cast_back(w("Mul", wide, inverse))
    return w("Mul", w.weight(HIDDEN), normal) if is_torch else w("Mul", normal, w.weight(HIDDEN))


# Activations

_GELU = ("OrtGelu", "BiasGelu", "Gelu", "FastGelu")


def _widened(w: DialectSketch) -> str:
    return w.linear(w.input(BATCH, LENGTH, HIDDEN), HIDDEN, WIDE)


def _gelu(w: DialectSketch) -> str:
    x = _widened(w)
    if w.dialect.is_torch and w.opset >= 20:
        return w("Gelu", x, approximate="none")
    if w.dialect.exporter == "tf2onnx":  # 0.5 x (1 + erf(x / sqrt 2))
        gate = w("Add", w("Erf", w("Div", x, w.number(math.sqrt(2)))), w.number(1))
        return w("Mul", w("Mul", x, w.number(0.5)), gate)
    gate = w("Add", w("Erf", w("Div", x, w.number(math.sqrt(2)))), w.number(1))
    product = w("Mul", x, gate)
    return w("Mul", w.number(0.5), product) if w.dialect.exporter == "dynamo" else w("Mul", product, w.number(0.5))


def _gelu_gate(w: DialectSketch) -> str:
    """BERT of google-research and ELECTRA: the cumulative distribution first."""
    x = _widened(w)
    gate = w("Add", w("Erf", w("Div", x, w.number(math.sqrt(2)))), w.number(1))
    return w("Mul", x, w("Mul", gate, w.number(0.5)))


def _gelu_new(w: DialectSketch) -> str:
    """GPT-2's, written out in Python: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    x = _widened(w)
    inner = w("Add", x, w("Mul", w.number(0.044715), w("Pow", x, w.number(3))))
    gate = w("Add", w.number(1), w("Tanh", w("Mul", w.number(math.sqrt(2 / math.pi)), inner)))
    if w.dialect.exporter == "tf2onnx":
        return w("Mul", x, w("Mul", w.number(0.5), gate))
    return w("Mul", w("Mul", w.number(0.5), x), gate)


def _gelu_tanh(w: DialectSketch) -> str:
    """torch's own approximation."""
    x = _widened(w)
    if w.dialect.is_torch and w.opset >= 20:
        return w("Gelu", x, approximate="tanh")
    cube = w("Mul", x, w("Mul", x, x))
    inner = w("Mul", w.number(math.sqrt(2 / math.pi)), w("Add", x, w("Mul", w.number(0.044715), cube)))
    return w("Mul", w("Mul", w.number(0.5), x), w("Add", w("Tanh", inner), w.number(1)))


def _quick_gelu(w: DialectSketch) -> str:
    x = _widened(w)
    return w("Mul", x, w("Sigmoid", w("Mul", w.number(1.702), x)))


def _silu(w: DialectSketch) -> str:
    x = w.linear(w.input(BATCH, LENGTH, HIDDEN), HIDDEN, WIDE, bias=False)
    return w("Mul", x, w("Sigmoid", x))


def _silu_image(w: DialectSketch) -> str:
    x = w.input(BATCH, 6, 9, 11)
    return w("Mul", w("Sigmoid", x), x) if w.dialect.exporter == "tf2onnx" else w("Mul", x, w("Sigmoid", x))


# Attention

_ATTENTION = ("MultiHeadAttention", "OrtAttention", "Attention", "GroupQueryAttention")


def _heads(w: DialectSketch, x: str) -> str:
    return w("Transpose", w("Reshape", x, w.ints(BATCH, LENGTH, HEADS, SIZE)), perm=[0, 2, 1, 3])


def _merged(w: DialectSketch, x: str) -> str:
    return w("Reshape", w("Transpose", x, perm=[0, 2, 1, 3]), w.ints(BATCH, LENGTH, HIDDEN))


def _projections(w: DialectSketch, bias: str = "qkv") -> list[str]:
    x = w.input(BATCH, LENGTH, HIDDEN)
    return [w.linear(x, HIDDEN, HIDDEN, name in bias) for name in "qkv"]


def _padding(w: DialectSketch) -> str:
    """The summand of the scores from a mask of tokens."""
    low = -10000.0 if w.dialect.exporter in ("tf2onnx", "paddle2onnx") or w.opset < 14 else float(np.finfo(np.float32).min)
    mask = w.unsqueeze(w.input(BATCH, LENGTH), 1, 2)
    return w("Mul", w("Sub", w.number(1), mask), w.number(low))


def _scores(w: DialectSketch, q: str, k: str) -> str:
    """Products of queries with keys, apart from the scale."""
    return w("MatMul", q, w("Transpose", k, perm=[0, 1, 3, 2]))


def _eager(w: DialectSketch, scale: str = "scores", mask: str = "padding", bias: str = "qkv") -> str:
    """Attention written out in Python; ``scale`` says what is scaled."""
    q, k, v = _projections(w, bias)
    number = w.number(SIZE**-0.5)
    if scale == "projection":
        q = w("Mul", q, number)
    q, k, v = (_heads(w, x) for x in (q, k, v))
    if scale == "queries":
        q = w("Div", q, w.number(math.sqrt(SIZE)))
    scores = _scores(w, q, k)
    if scale == "scores":
        factor = w.dialect.exporter in ("tf2onnx", "paddle2onnx")
        scores = w("Mul", scores, number) if factor else w("Div", scores, w.number(math.sqrt(SIZE)))
    return _attended(w, scores, v, mask)


def _attended(w: DialectSketch, scores: str, v: str, mask: str) -> str:
    if mask == "padding":
        scores = w("Add", scores, _padding(w))
    if mask == "relative":
        scores = w("Add", scores, w.input(1, HEADS, LENGTH, LENGTH))
    if mask == "causal":
        shown = w.constant(np.tri(LENGTH, dtype=bool)[None, None])
        scores = w("Where", shown, scores, w.number(float(np.finfo(np.float32).min)))
    return _merged(w, w("MatMul", w.softmax(scores, 4), v))


def _fused(w: DialectSketch, mask: str = "padding", packed: bool = False) -> str:
    """torch's scaled_dot_product_attention, which scales queries and keys by the root of the scale each."""
    if packed:
        q, k, v = _packed(w)
    else:
        q, k, v = (_heads(w, x) for x in _projections(w))
    if w.opset >= 23:
        operands = (q, k, v, _padding_whole(w)) if mask == "padding" else (q, k, v)
        return _merged(w, w("Attention", *operands, is_causal=int(mask == "causal"), scale=SIZE**-0.5))
    root = w.number(SIZE**-0.25)
    keys = w("Transpose", k, perm=[0, 1, 3, 2])
    scores = w("MatMul", w("Mul", q, root), w("Mul", keys, root))
    if mask == "padding":
        scores = w("Add", scores, _padding_whole(w))
    if mask == "causal":
        hidden = np.where(np.tri(LENGTH, dtype=bool), 0, -np.inf).astype(np.float32)
        scores = w("Add", scores, w.constant(hidden[None, None] if w.dialect.exporter == "dynamo" else hidden))
    probabilities = w.softmax(scores, 4)
    if mask == "padding" and w.dialect.exporter == "dynamo":
        probabilities = w("Where", w("IsNaN", probabilities), w.number(0), probabilities)
    return _merged(w, w("MatMul", probabilities, v))


def _padding_whole(w: DialectSketch) -> str:
    return w("Expand", _padding(w), w.ints(BATCH, 1, LENGTH, LENGTH))


def _packed(w: DialectSketch) -> list[str]:
    """timm's projections: one product, five axes, of which the first is taken apart."""
    product = w.linear(w.input(BATCH, LENGTH, HIDDEN), HIDDEN, 3 * HIDDEN)
    five = w("Transpose", w("Reshape", product, w.ints(BATCH, LENGTH, 3, HEADS, SIZE)), perm=[2, 0, 3, 1, 4])
    if w.dialect.exporter == "torchscript":
        return [w("Gather", five, w.constant(np.array(i, np.int64)), axis=0) for i in range(3)]
    if w.dialect.exporter == "paddle2onnx":
        return [w.squeeze(w.slice(five, 0, i, i + 1), 0) for i in range(3)]
    return [w.squeeze(part, 0) for part in w.split(five, 0, 1, 1, 1)]


def _packed_eager(w: DialectSketch) -> str:
    q, k, v = _packed(w)
    return _attended(w, _scores(w, w("Mul", q, w.number(SIZE**-0.5)), k), v, "")


def _gpt(w: DialectSketch) -> str:
    """GPT-2: one product for all three, split; a mask chosen by a buffer of positions."""
    x = w("Reshape", w.input(BATCH, LENGTH, HIDDEN), w.ints(BATCH * LENGTH, HIDDEN))
    product = w("Gemm", x, w.weight(HIDDEN, 3 * HIDDEN), w.weight(3 * HIDDEN))
    product = w("Reshape", product, w.ints(BATCH, LENGTH, 3 * HIDDEN))
    q, k, v = (_heads(w, part) for part in w.split(product, 2, HIDDEN, HIDDEN, HIDDEN))
    scores = w("Div", _scores(w, q, k), w.number(math.sqrt(SIZE)))
    return _attended(w, scores, v, "causal")


def _half_turned(w: DialectSketch, x: str, size: int) -> str:
    first, second = w.slice(x, 3, 0, size // 2), w.slice(x, 3, size // 2, np.iinfo(np.int64).max)
    return w("Concat", w("Neg", second), first, axis=-1)


def _rotary(w: DialectSketch) -> str:
    x = w("Transpose", w("Reshape", w.input(1, LENGTH, HIDDEN), w.ints(1, LENGTH, HEADS, SIZE)), perm=[0, 2, 1, 3])
    angles = np.outer(np.arange(LENGTH), 100.0 ** (-np.arange(0, SIZE, 2) / SIZE))
    tables = [np.concatenate([f(angles)] * 2, axis=1)[None, None].astype(np.float32) for f in (np.cos, np.sin)]
    cos, sin = map(w.constant, tables)
    return w("Add", w("Mul", x, cos), w("Mul", _half_turned(w, x, SIZE), sin))


_GROUPS, _EACH, _HEAD = 2, 3, 8


def _grouped(w: DialectSketch) -> str:
    """Llama: key and value heads for several query heads each, a causal mask that is a constant."""
    x = w.input(BATCH, LENGTH, HIDDEN)
    q = w.linear(x, HIDDEN, _GROUPS * _EACH * _HEAD, bias=False)
    k, v = (w.linear(x, HIDDEN, _GROUPS * _HEAD, bias=False) for _ in range(2))

    def apart(t: str, heads: int) -> str:
        return w("Transpose", w("Reshape", t, w.ints(BATCH, LENGTH, heads, _HEAD)), perm=[0, 2, 1, 3])

    def repeated(t: str) -> str:
        wide = w("Expand", w.unsqueeze(t, 2), w.ints(BATCH, _GROUPS, _EACH, LENGTH, _HEAD))
        return w("Reshape", wide, w.ints(BATCH, _GROUPS * _EACH, LENGTH, _HEAD))

    q, k, v = apart(q, _GROUPS * _EACH), repeated(apart(k, _GROUPS)), repeated(apart(v, _GROUPS))
    hidden = w.constant(np.where(np.tri(LENGTH, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)[None, None])
    if w.dialect.exporter == "torchscript":  # eager
        scores = w("Mul", _scores(w, q, k), w.number(_HEAD**-0.5))
    else:
        root = w.number(_HEAD**-0.25)
        scores = w("MatMul", w("Mul", q, root), w("Mul", w("Transpose", k, perm=[0, 1, 3, 2]), root))
    context = w("MatMul", w.softmax(w("Add", scores, hidden), 4), v)
    return w("Reshape", w("Transpose", context, perm=[0, 2, 1, 3]), w.ints(BATCH, LENGTH, _GROUPS * _EACH * _HEAD))


def _windows(w: DialectSketch) -> str:
    """Swin: windows are the batch, with a table of relative positions."""
    q, k, v = _packed(w)
    scores = _scores(w, w("Mul", q, w.number(SIZE**-0.5)), k)
    scores = w("Add", scores, w.constant(np.ones((1, HEADS, LENGTH, LENGTH), np.float32)))
    return _merged(w, w("MatMul", w.softmax(scores, 4), v))


# Families

_Parts = dict[str, tuple[tuple[str, ...], Write]]


def _eagerly(scale: str = "scores", mask: str = "padding", bias: str = "qkv") -> Write:
    return lambda w: _eager(w, scale, mask, bias)


def _sdpa(mask: str = "padding", packed: bool = False, scale: str = "scores") -> Write:
    """torch's operator where torch writes it, spelled out elsewhere and before it was there."""

    def write(w: DialectSketch) -> str:
        if w.dialect.is_torch and w.opset >= 14:
            return _fused(w, mask, packed)
        return _packed_eager(w) if packed else _eager(w, scale, mask)

    return write


_ENCODER: _Parts = {"norm": (_LAYER, _residual), "gelu": (_GELU, _gelu)}

FAMILIES: dict[str, _Parts] = {
    "bert": {**_ENCODER, "attention": (_ATTENTION, _sdpa())},
    "roberta": {**_ENCODER, "attention": (_ATTENTION, _eagerly())},
    "distilbert": {**_ENCODER, "attention": (_ATTENTION, _eagerly("queries"))},
    "electra": {"norm": (_LAYER, _residual), "gelu": (_GELU, _gelu_gate), "attention": (_ATTENTION, _eagerly())},
    "albert": {"norm": (_LAYER, _residual), "gelu": (_GELU, _gelu_new), "attention": (_ATTENTION, _sdpa())},
    "gpt2": {"norm": (_LAYER, _before), "gelu": (_GELU, _gelu_new), "attention": (_ATTENTION, _gpt)},
    "bart": {**_ENCODER, "attention": (_ATTENTION, _eagerly("projection"))},
    "t5": {"norm": (_RMS, _root_mean_square), "attention": (_ATTENTION, _eagerly("none", "relative", ""))},
    "llama": {
        "norm": (_RMS, _root_mean_square),
        "silu": (("QuickGelu",), _silu),
        "rotary": (("OrtRotaryEmbedding", "RotaryEmbedding"), _rotary),
        "attention": (_ATTENTION, _grouped),
    },
    "vit": {"norm": (_LAYER, _before), "gelu": (_GELU, _gelu), "attention": (_ATTENTION, _sdpa("", packed=True))},
    "clip": {
        "norm": (_LAYER, _before),
        "gelu": (("QuickGelu",), _quick_gelu),
        "attention": (_ATTENTION, _sdpa("", scale="projection")),
    },
    "swin": {"norm": (_LAYER, _normalised), "gelu": (_GELU, _gelu), "attention": (_ATTENTION, _windows)},
    "whisper": {
        "norm": (_LAYER, _before),
        "gelu": (_GELU, _gelu),
        "attention": (_ATTENTION, _eagerly("projection", "", "qv")),
    },
    "convnext": {"norm": (_LAYER, _channels_last), "gelu": (_GELU, _gelu)},
    "siglip": {"norm": (_LAYER, _before), "gelu": (_GELU, _gelu_tanh), "attention": (_ATTENTION, _sdpa("", scale="scores"))},
    "efficientnet": {"silu": (("QuickGelu",), _silu_image)},
}


def regions() -> Iterator[ExportedRegion]:
    """The regions of all families in all dialects; in float16, too, where torch writes Casts around a normalisation."""
    for family, parts in FAMILIES.items():
        for dialect in DIALECTS:
            for name, (expected, write) in parts.items():
                yield ExportedRegion(family, dialect, name, expected, write)
                if name == "norm" and dialect.exporter == "torchscript":
                    yield ExportedRegion(family, dialect, f"{name}-fp16", expected, write, half=True)
