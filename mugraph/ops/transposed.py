"""Transposed convolution over one, two or three spatial axes: each entry of an image is spread over the window it stands for.

``ConvTranspose[dilations=d,group=g,output_padding=o,pads=p,strides=s](x, w, b)`` is the convolution of the image, its entries
``s`` apart and zeros between them, with the kernel mirrored. Tensors are [..., N, C, *spatial], weights
[..., C, M/group, *kernel]. ``pads`` are cut off the result, all begins, then all ends; ``output_padding`` lengthens it at the
ends, by less than a stride, as onnxruntime wants it. Automatic pads and given sizes of the result are pads once a node is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import Operator, floating, get_operator, register
from mugraph.ops.convolution import check_bias, divides
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.ops.product import product_flops
from mugraph.ops.traits import DegreeBound, ImageRole, ProductKind, Traits
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided, concrete, same_dim

Integers = tuple[int, ...]


def _lengths(attrs: AttrMap, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
    """Sizes of the result along the spatial axes. Raises ShapeError where there is none."""
    n = len(kernel)
    strides, dilations, pads, more = (attrs[name] for name in ("strides", "dilations", "pads", "output_padding"))
    if not len(spatial) == len(strides) == len(dilations) == len(more) == n or len(pads) != 2 * n:
        raise ShapeError(f"attributes for other than {len(spatial)} spatial axes")
    least = ((0, (*pads, *more)), (1, (*spatial, *kernel, *strides, *dilations)))
    if any(isinstance(size, int) and size < bound for bound, sizes in least for size in sizes):
        raise ShapeError(f"a kernel of {kernel} over {spatial} with attributes {dict(attrs)}")
    if any(isinstance(m, int) and isinstance(s, int) and m >= s for m, s in zip(more, strides, strict=True)):
        raise ShapeError(f"{more} entries more at the ends, where entries are {strides} apart")
    axes = zip(spatial, kernel, strides, dilations, pads[:n], pads[n:], more, strict=True)
    sizes = tuple((d - 1) * s + (k - 1) * spread + 1 - begin - end + m for d, k, s, spread, begin, end, m in axes)
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise ShapeError(f"nothing is left of {spatial} with attributes {dict(attrs)}")
    return sizes


def _infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    x, w, group = inputs[0], inputs[1], attrs["group"]
    if x.rank != w.rank or x.rank < 3:
        raise ShapeError(f"ConvTranspose of {x} with {w}")
    channels = same_dim(x.shape[1], w.shape[0])
    if channels is None:
        raise Undecided(f"whether {x.shape[1]} equals {w.shape[0]}", [(x.shape[1], w.shape[0])])
    if not channels or not divides(group, w.shape[0]):
        raise ShapeError(f"ConvTranspose of {x} with {w} in {group} groups")
    outputs = w.shape[1] * group
    check_bias("ConvTranspose", inputs, outputs)
    return (TensorType(x.dtype, (x.shape[0], outputs, *_lengths(attrs, x.shape[2:], w.shape[2:]))),)


def _kept(size: int, stride: int, begin: int, end: int) -> tuple[slice, slice]:
    """Where entries of an axis stand once they are apart, and which: those before 0 and from ``end`` on are cut off."""
    first = max(0, -(begin // stride))
    places = range(begin + first * stride, end, stride)[: max(size - first, 0)]
    return slice(places.start, places.stop, stride), slice(first, first + len(places))


def _evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, w, *bias = inputs
    n, group, strides, dilations = len(attrs["strides"]), attrs["group"], attrs["strides"], attrs["dilations"]

    def spread(image: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The entries apart from each other, as far as the result reaches: [..., *(length + reach)], for the kernel's reach."""
        spatial, kernel = image.shape[-n:], domain.shape(w)[-n:]
        reach = tuple(d * (k - 1) for d, k in zip(dilations, kernel, strict=True))
        lengths = integers(_lengths(attrs, spatial, kernel), "the result").tolist()
        wide = np.empty(image.shape[:-n] + tuple(a + b for a, b in zip(lengths, reach, strict=True)), image.dtype)
        wide[...] = zero
        begins = [r - p for r, p in zip(reach, attrs["pads"][:n], strict=True)]
        axes = [_kept(*axis) for axis in zip(spatial, strides, begins, wide.shape[-n:], strict=True)]
        there: tuple[Any, ...] = (..., *(places for places, _ in axes))
        here: tuple[Any, ...] = (..., *(entries for _, entries in axes))
        wide[there] = image[here]
        return wide

    def mirrored(a: np.ndarray) -> np.ndarray:
        """The kernel of the convolution, [..., M, C/group, *kernel]."""
        lead, (channels, outputs), kernel = a.shape[: -n - 2], a.shape[-n - 2 : -n], a.shape[-n:]
        groups = a.reshape(*lead, group, channels // group, outputs, *kernel).swapaxes(-n - 2, -n - 1)
        turned: tuple[Any, ...] = (..., *(slice(None, None, -1),) * n)
        result: np.ndarray = groups.reshape(*lead, group * outputs, channels // group, *kernel)[turned]
        return result

    window = {"dilations": dilations, "group": group, "pads": (0,) * 2 * n, "strides": (1,) * n}
    image, kernel = domain.move(spread, x, domain.const(0)), domain.move(mirrored, w)
    return get_operator("Conv").evaluate(domain, window, [image, kernel, *bias])


def _read(node: ForeignNode) -> Reading:
    kernel = concrete(type_of(node, 1).shape[2:])
    if kernel is None:
        raise NotUnderstood("ConvTranspose with weights of unknown dimensions")
    n, spatial = len(kernel), type_of(node).shape[2:]
    ones, zeros = (1,) * n, (0,) * n
    attributes = attributes_of(
        node,
        kernel_shape=kernel,
        strides=ones,
        dilations=ones,
        pads=zeros * 2,
        output_padding=zeros,
        output_shape=None,
        auto_pad="NOTSET",
        group=1,
    )
    if len(spatial) != n or not n or tuple(attributes["kernel_shape"]) != kernel:
        raise NotUnderstood(f"ConvTranspose of {type_of(node)} with a kernel {attributes['kernel_shape']}")
    attrs = {name: tuple(attributes[name]) for name in ("strides", "dilations", "pads", "output_padding")}
    attrs["group"] = attributes["group"]
    mode, wanted = attributes["auto_pad"], attributes["output_shape"]
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise NotUnderstood(f"ConvTranspose with auto_pad {mode}")
    if mode != "NOTSET" or wanted is not None:
        attrs["pads"] = zeros * 2
    if wanted is not None:
        attrs |= _sized(attrs, _lengths(attrs, spatial, kernel), tuple(wanted)[-n:], mode == "SAME_UPPER")
    elif mode.startswith("SAME"):
        lengths, wanted = _lengths(attrs, spatial, kernel), [d * s for d, s in zip(spatial, attrs["strides"], strict=True)]
        attrs |= _sized(attrs, lengths, wanted, mode == "SAME_UPPER")
        if attrs["output_padding"] != attributes["output_padding"]:  # onnxruntime leaves such a result shorter than onnx says
            raise NotUnderstood(f"ConvTranspose with auto_pad {mode} and a kernel {kernel} for strides {attrs['strides']}")
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _sized(attrs: AttrMap, lengths: Sequence[Dim], wanted: Sequence[Dim], upper: bool) -> dict[str, Integers]:
    """The pads that make results of these lengths, without pads, as long as wanted, or what lengthens them.

    An odd pad goes to the end (``upper``) or the beginning.
    """
    totals = concrete([length - size for length, size in zip(lengths, wanted, strict=True)])
    if totals is None:
        raise NotUnderstood(f"ConvTranspose to {tuple(wanted)}, where there are {tuple(lengths)} without pads")
    more = tuple(m + max(-total, 0) for m, total in zip(attrs["output_padding"], totals, strict=True))
    small, large = tuple(max(t, 0) // 2 for t in totals), tuple(-(-max(t, 0) // 2) for t in totals)
    return {"output_padding": more, "pads": (*small, *large) if upper else (*large, *small)}


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    kernel = tuple(integers(types[1].shape[2:], "the kernel of ConvTranspose").tolist())
    given = {name: attrs[name] for name in ("dilations", "group", "output_padding", "pads", "strides")}
    return OnnxForm("ConvTranspose", tuple(range(len(types))), {"kernel_shape": kernel, **given})


def _flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    """Each entry of the image times those of its channel's kernels."""
    return product_flops(inputs[0], math.prod(integers(inputs[1].shape[1:], "the weights of ConvTranspose").tolist()))


register(
    Operator(
        "ConvTranspose",
        (2, 3),
        _infer,
        _evaluate,
        read=_read,
        write=_write,
        flops=_flops,
        defaults={"group": 1},
        traits=Traits(
            product=ProductKind.TRANSPOSED_CONVOLUTION,
            image=ImageRole.WINDOW,
            degree=DegreeBound.MULTILINEAR,
            one_dtype=True,
            accumulates=True,
        ),
        samples=(
            "ConvTranspose[dilations=(1,1),output_padding=(0,0),pads=(1,1,1,1),strides=(2,2)](x, w) | x:[1,8,7,7] w:[8,16,4,4]",
        ),
    )
)
