"""The pieces that work on images: convolutions, transposed ones, pools, their normalisation, and images of other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugraph.terms.shape import TensorType
from tools.fuzz.models.draft import ModelDraft
from tools.fuzz.models.pieces import Piece

__all__ = ["IMAGES"]

_NO_SPATIAL = _UPSAMPLE_OF_OPERANDS = 9
_RESIZE, _RESIZE_SAYS, _RESIZE_LEAVES_OUT, _TRAINS_BY_MODE = 10, 11, 13, 14
"""The opsets from which on BatchNormalization has no ``spatial``, the scales of Upsample are an operand, it is Resize, that says
its coordinates, leaves out empty operands, and BatchNormalization trains by a mode and not where it has five outputs."""


def _size(draft: ModelDraft) -> tuple[int, ...]:
    """Of one to three axes."""
    return tuple(int(i) for i in draft.generator.integers(3, 9, int(draft.one([1, 2, 2, 2, 3]))))


def image(draft: ModelDraft) -> None:
    """Convolutions, pools and their normalisation on images of one to three axes."""
    g, side, channels = draft.generator, _size(draft), int(draft.one([1, 2, 4, 6]))
    spatial = len(side)
    x = draft.leaf(TensorType(draft.dtype, (draft.size(), channels, *side)))
    op = draft.one(
        ["conv", "conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "bn", "InstanceNormalization", "LRN"]
    )
    window = tuple(int(i) for i in g.integers(1, 4, spatial))
    pads = tuple(int(i) for i in g.integers(0, 2, 2 * spatial))
    common = {
        "strides": tuple(int(i) for i in g.integers(1, 3, spatial)),
        "dilations": tuple(int(i) for i in g.integers(1, 3, spatial)),
    }
    if op == "conv":
        group = int(draft.one([d for d in (1, 1, 2, channels) if channels % d == 0]))
        outputs = group * int(draft.one([1, 2, 3]))
        weight = draft.constant(draft.numbers(TensorType(draft.dtype, (outputs, channels // group, *window))))
        bias = [draft.constant(draft.numbers(TensorType(draft.dtype, (outputs,))))] if draft.chance(0.5) else []
        padding: dict[str, Any] = {"pads": pads}
        if draft.chance(0.15):
            padding = {"auto_pad": draft.one(["SAME_UPPER", "SAME_LOWER", "VALID"])}
            common["dilations"] = (1,) * spatial
        (y,) = draft.node("Conv", [x, weight, *bias], {"group": group, **common, **padding})
        if draft.chance(0.5):
            _batch_norm(draft, y)
        return
    if op == "bn":
        _batch_norm(draft, x)
    elif op == "InstanceNormalization":
        draft.node(op, [x, *(draft.constant(draft.numbers(TensorType(draft.dtype, (channels,)))) for _ in range(2))])
    elif op == "LRN":
        draft.node(op, [x], {"size": int(draft.one([1, 3]))})
    elif op.startswith("Global"):
        draft.node(op, [x])
    else:
        attributes: dict[str, Any] = {
            "kernel_shape": window,
            "pads": tuple(min(p, w - 1) for p, w in zip(pads, window * 2, strict=True)),
        }
        attributes["strides"] = common["strides"]
        if op == "MaxPool" or draft.opset >= 19:
            attributes["dilations"] = common["dilations"]
        if op == "AveragePool" and draft.chance(0.5):
            attributes["count_include_pad"] = 1
        if draft.chance(0.2):
            attributes["ceil_mode"] = 1
        draft.node(op, [x], attributes)


def _batch_norm(draft: ModelDraft, x: str) -> None:
    channels = draft.types[x].shape[1]
    shape = TensorType(draft.dtype, (channels,))
    scale, bias, mean = (draft.constant(draft.numbers(shape)) for _ in range(3))
    variance = draft.constant(np.abs(draft.numbers(shape)) + np.asarray(0.1, np.float32), draft.dtype)
    attributes = {"spatial": 1} if draft.opset < _NO_SPATIAL and draft.chance(0.5) else {}
    outputs = 5 if draft.opset < _TRAINS_BY_MODE and draft.chance(0.2) else 1
    draft.node("BatchNormalization", [x, scale, bias, mean, variance], attributes, outputs)


def transposed(draft: ModelDraft) -> None:
    """A transposed convolution, with pads that are given, chosen or follow from the size of the result."""
    g, side, channels = draft.generator, _size(draft), int(draft.one([1, 2, 4]))
    n = len(side)
    strides, dilations, window = (tuple(int(i) for i in g.integers(1, most, n)) for most in (4, 3, 5))
    group = int(draft.one([d for d in (1, 1, 2, channels) if channels % d == 0]))
    outputs = int(draft.one([1, 2, 3]))
    x = draft.leaf(TensorType(draft.dtype, (draft.size(), channels, *side)))
    weight = draft.leaf(TensorType(draft.dtype, (channels, outputs, *window)))
    bias = [draft.leaf(TensorType(draft.dtype, (group * outputs,)))] if draft.chance(0.5) else []
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    if draft.chance(0.3):
        attributes["kernel_shape"] = window
    if draft.chance(0.4):
        attributes["output_padding"] = tuple(int(g.integers(0, s)) for s in strides)
    match draft.one(["pads", "pads", "auto_pad", "output_shape"]):
        case "pads":
            attributes["pads"] = tuple(int(i) for i in g.integers(0, 3, 2 * n))
        case "auto_pad":
            attributes["auto_pad"] = draft.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
        case _:
            attributes["output_shape"] = tuple(d * s + int(g.integers(-1, 2)) for d, s in zip(side, strides, strict=True))
            attributes["auto_pad"] = draft.one(["NOTSET", "SAME_UPPER", "SAME_LOWER"])
    (y,) = draft.node("ConvTranspose", [x, weight, *bias], attributes)
    if draft.chance(0.4):
        _batch_norm(draft, y)


def resized(draft: ModelDraft) -> None:
    """An image with more or fewer entries along its axes: a Resize, or the Upsample that it was before opset 10."""
    g, side = draft.generator, _size(draft)
    x = draft.leaf(TensorType(draft.dtype, (draft.size(), int(draft.one([1, 2, 4])), *side)))
    mode = draft.one(["nearest", "nearest", "linear", "cubic"])
    ratios = (1, 2, 2, 3) if draft.opset < _RESIZE or draft.chance(0.6) else (0.5, 0.6, 1, 1.5, 2, 2.5)
    scales = np.array([1, 1, *g.choice(ratios, len(side))], np.float32)
    if draft.opset < _UPSAMPLE_OF_OPERANDS:
        draft.node("Upsample", [x], {"mode": mode, "scales": scales.tolist()})
        return
    if draft.opset < _RESIZE_SAYS:
        draft.node("Upsample" if draft.opset < _RESIZE else "Resize", [x, draft.constant(scales)], {"mode": mode})
        return
    places = [
        "half_pixel",
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "asymmetric",
        "half_pixel_symmetric",
    ]
    attributes = {"mode": mode, "coordinate_transformation_mode": draft.one(places)}
    if draft.chance(0.7):
        attributes["nearest_mode"] = draft.one(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    absent = draft.constant(np.zeros(0, np.float32)) if draft.opset < _RESIZE_LEAVES_OUT else ""
    if draft.chance(0.5):
        draft.node("Resize", [x, absent, draft.constant(scales)], attributes)
        return
    if draft.chance(0.4) and np.all(scales % 1 == 0):
        (shape,) = draft.node("Shape", [x])
        (sizes,) = draft.node("Mul", [shape, draft.ints(*map(int, scales))])
    else:
        old = np.array(draft.types[x].shape)
        sizes = draft.ints(*old[:2].tolist(), *(max(1, int(d * s)) for d, s in zip(side, scales[2:], strict=True)))
    draft.node("Resize", [x, absent, absent, sizes], attributes)


IMAGES: tuple[tuple[Piece, float], ...] = ((image, 0.8), (transposed, 0.4), (resized, 0.5))
"""The pieces, and how often each is taken beside all others."""
