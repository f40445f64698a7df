"""Convolution, transposed or not, and pooling over one, two or three spatial axes.

Canonical attributes: ``pads`` holds all begins, then all ends, as ONNX does; automatic padding is resolved when a node is
read. Tensors are [..., N, C, *spatial], weights [..., M, C/group, *kernel].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain, Unsupported
from mugraph.ops.base import Operator, floating, register
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Reading,
    Write,
    attributes_of,
    integers,
    single_output,
    type_of,
)
from mugraph.ops.normalization import per_channel
from mugraph.ops.product import product_flops
from mugraph.ops.traits import DegreeBound, ImageRole, ProductKind, Reduction, Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import Dim, ShapeError, SymDim, TensorType, Undecided, concrete, floor_div, same_dim, same_shape

__all__ = ["read_conv", "window_count", "write_conv"]

Integers = tuple[int, ...]

# Geometry


def _steps(dim: Dim, kernel: Dim, stride: Dim, dilation: Dim, before: Dim, after: Dim, ceil: bool) -> Dim:
    """Number of places of a kernel; with ``ceil`` the last may hang over the end, yet must begin before it.

    Raises:
        Undecided: the stride or the dilation is unknown, and nothing says that the kernel touches each place once.
    """
    patches = (dilation, before, after) == (1, 0, 0) and same_dim(kernel, stride) is True
    if patches and not (isinstance(kernel, int) and isinstance(stride, int)):
        return divided(dim, stride)
    known = concrete((stride, dilation, before, after))
    if known is None:
        raise Undecided(f"a kernel of {kernel} with stride {stride}, dilation {dilation} and pads {before} and {after}")
    step, spread, *pads = known
    reach = dim + (sum(pads) + spread - 1) - spread * kernel
    if isinstance(reach, SymDim):
        if ceil and step > 1:
            raise Undecided(f"({reach}) / {step}, rounded up")
        return floor_div(reach, step) + 1
    if reach < 0:
        raise ShapeError(f"a kernel of {kernel} with dilation {dilation} does not fit into {dim}")
    count = reach // step + 1
    if ceil and reach % step and isinstance(dim, int) and count * step < dim + pads[0]:
        count += 1
    return count


def window_count(dim: Dim, size: Dim, stride: Dim, dilation: Dim) -> Dim:
    """Number of windows along an axis without padding. Raises ShapeError where it has none, Undecided as types do."""
    return _steps(dim, size, stride, dilation, 0, 0, False)


def _output_spatial(attrs: AttrMap, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
    n = len(kernel)
    if len(spatial) != n or len(attrs["strides"]) != n or len(attrs["pads"]) != 2 * n or len(attrs["dilations"]) != n:
        raise ShapeError(f"attributes for other than {len(spatial)} spatial axes")
    sizes = (*kernel, *attrs["strides"], *attrs["dilations"])
    if any(p < 0 for p in attrs["pads"] if isinstance(p, int)) or any(s < 1 for s in sizes if isinstance(s, int)):
        raise ShapeError(f"a window of {kernel} with attributes {dict(attrs)}")
    begins, ends, ceil = attrs["pads"][:n], attrs["pads"][n:], attrs.get("ceil", False)
    axes = zip(spatial, kernel, attrs["strides"], attrs["dilations"], begins, ends, strict=True)
    return tuple(_steps(dim, size, stride, dilation, b, e, ceil) for dim, size, stride, dilation, b, e in axes)


def _places(attrs: AttrMap, spatial: Integers, kernel: Integers) -> Integers:
    """Numbers of windows over known dimensions."""
    return tuple(int(d) for d in _output_spatial(attrs, spatial, kernel) if isinstance(d, int))


def _window_attributes(node: ForeignNode, kernel: Integers, **more: Any) -> dict[str, Any]:
    """Strides, dilations and explicit pads; the node's other attributes under ``more``."""
    n = len(kernel)
    ones = (1,) * n
    attributes = attributes_of(
        node, kernel_shape=kernel, strides=ones, dilations=ones, pads=(0,) * 2 * n, auto_pad="NOTSET", **more
    )
    spatial = type_of(node).shape[2:]
    if len(spatial) != n or not n or tuple(attributes["kernel_shape"]) != kernel:
        raise NotUnderstood(f"{node.op_type} of {type_of(node)} with a kernel {attributes['kernel_shape']}")
    attributes["strides"], attributes["dilations"] = tuple(attributes["strides"]), tuple(attributes["dilations"])
    mode = attributes.pop("auto_pad")
    if mode == "VALID":
        attributes["pads"] = (0,) * 2 * n
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        attributes["pads"] = _same_pads(spatial, kernel, attributes["strides"], attributes["dilations"], mode == "SAME_UPPER")
    elif mode != "NOTSET":
        raise NotUnderstood(f"{node.op_type} with auto_pad {mode}")
    attributes["pads"] = tuple(attributes["pads"])
    del attributes["kernel_shape"]
    return attributes


def _same_pads(spatial: Sequence[Dim], kernel: Integers, strides: Integers, dilations: Integers, upper: bool) -> Integers:
    """Pads that give ceil(size / stride) places; an odd one goes to the end (``upper``) or the beginning."""
    totals: list[int] = []
    for dim, size, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        reach = dilation * (size - 1) + 1
        if isinstance(dim, int):
            totals.append(max((-(-dim // stride) - 1) * stride + reach - dim, 0))
        elif stride == 1:
            totals.append(reach - 1)
        else:
            raise NotUnderstood(f"automatic padding of the symbolic dimension {dim} with stride {stride}")
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (*small, *large) if upper else (*large, *small)


def _write_window(attrs: AttrMap, kernel: Integers) -> dict[str, Any]:
    """ONNX attributes; those at their defaults are left out, for opsets that do not know them yet."""
    n = len(kernel)
    form: dict[str, Any] = {"kernel_shape": kernel, "strides": attrs["strides"], "pads": attrs["pads"]}
    if attrs["dilations"] != (1,) * n:
        form["dilations"] = attrs["dilations"]
    return form


def _windows(domain: Domain, attrs: AttrMap, x: Array, kernel_of: Callable[[], Integers]) -> Array:
    """Zero-padded windows: [..., *places, *kernel]."""
    n = len(attrs["strides"])
    begins, strides, dilations = attrs["pads"][:n], attrs["strides"], attrs["dilations"]

    def view(a: np.ndarray, *zero: np.ndarray) -> np.ndarray:
        kernel, spatial = kernel_of(), a.shape[-n:]
        reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))
        if zero:
            places = _places(attrs, spatial, kernel)
            sizes = tuple((p - 1) * s + r for p, s, r in zip(places, strides, reach, strict=True))
            sizes = tuple(max(s, b + d) for s, b, d in zip(sizes, begins, spatial, strict=True))
            padded = np.empty(a.shape[:-n] + sizes, a.dtype)
            padded[...] = zero[0]
            inner: tuple[Any, ...] = (..., *(slice(b, b + d) for b, d in zip(begins, spatial, strict=True)))
            padded[inner] = a
            a = padded
        if any(r > d for r, d in zip(reach, a.shape[-n:], strict=True)):  # of sizes that were symbols when types were asked
            raise ShapeError(f"a window of {reach} does not fit into {a.shape[-n:]}")
        windows = np.lib.stride_tricks.sliding_window_view(a, reach, axis=tuple(range(-n, 0)))
        every: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*strides, *dilations)))
        strided: np.ndarray = windows[every]
        return strided

    padded = any(attrs["pads"]) or attrs.get("ceil", False)  # a zero that is not needed must not enter a range
    return domain.move(view, x, domain.const(0)) if padded else domain.move(view, x)


# Convolution


def _infer_conv(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    x, w, group = inputs[0], inputs[1], attrs["group"]
    if x.rank != w.rank or x.rank < 3:
        raise ShapeError(f"Conv of {x} with {w}")
    channels = same_dim(x.shape[1], w.shape[1] * group)
    if channels is None:
        raise Undecided(f"whether {x.shape[1]} equals {w.shape[1] * group}", [(x.shape[1], w.shape[1] * group)])
    if not channels or not _divides(group, w.shape[0]):
        raise ShapeError(f"Conv of {x} with {w} in {group} groups")
    _check_bias("Conv", inputs, w.shape[0])
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *_output_spatial(attrs, x.shape[2:], w.shape[2:]))),)


def _check_bias(name: str, inputs: Sequence[TensorType], channels: Dim) -> None:
    """Raises ShapeError unless the third operand, where there is one, is a vector of so many entries; Undecided as types do."""
    if len(inputs) < 3:
        return
    fits = same_shape(inputs[2].shape, (channels,))
    if fits is None:
        raise Undecided(f"whether the bias {inputs[2]} has {channels} channels", [(inputs[2].shape[0], channels)])
    if not fits:
        raise ShapeError(f"{name} with {channels} channels and a bias {inputs[2]}")


def _divides(group: Dim, channels: Dim) -> bool:
    """Whether channels fall into groups. Raises Undecided where that depends on symbols."""
    if isinstance(group, int) and group <= 1:
        return group == 1
    try:
        divided(channels, group)
    except ShapeError:
        return False
    return True


def _conv(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Each group is the product of its weights [M/g, C/g * kernel] with the windows as columns [C/g * kernel, places]."""
    x, w, n, group = inputs[0], inputs[1], len(attrs["strides"]), attrs["group"]

    def kernel() -> Integers:
        return domain.shape(w)[-n:]

    def columns(windows: np.ndarray) -> np.ndarray:
        lead, channels, places = windows.shape[: -2 * n - 1], windows.shape[-2 * n - 1], windows.shape[-2 * n : -n]
        inner_first = np.moveaxis(windows, range(-n, 0), range(-2 * n, -n))
        return inner_first.reshape(*lead, group, channels // group * math.prod(kernel()), math.prod(places))

    def rows(a: np.ndarray) -> np.ndarray:
        lead, outputs = a.shape[: -n - 2], a.shape[-n - 2]
        return a.reshape(*lead, 1, group, outputs // group, math.prod(a.shape[-n - 1 :]))

    def unfold(product: np.ndarray) -> np.ndarray:
        places = _places(attrs, domain.shape(x)[-n:], kernel())
        return product.reshape(*product.shape[:-3], product.shape[-3] * product.shape[-2], *places)

    product = domain.matmul(domain.move(rows, w), domain.move(columns, _windows(domain, attrs, x, kernel)))
    result = domain.move(unfold, product)
    if len(inputs) == 3:
        result = domain.add(result, per_channel(domain, inputs[2], n))
    return (result,)


def read_conv(node: ForeignNode, others: Sequence[str] = ()) -> Reading:
    """Reads a convolution; attributes named in ``others`` are the caller's."""
    kernel = concrete(type_of(node, 1).shape[2:])
    if kernel is None:
        raise NotUnderstood("Conv with weights of unknown dimensions")
    attrs = _window_attributes(node, kernel, group=1, **dict.fromkeys(others))
    attrs = {name: value for name, value in attrs.items() if name not in others}
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def write_conv(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    kernel = tuple(integers(types[1].shape[2:], "the kernel of Conv").tolist())
    return OnnxForm("Conv", tuple(range(len(types))), {**_write_window(attrs, kernel), "group": attrs["group"]})


def _conv_flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    return product_flops(outputs[0], math.prod(integers(inputs[1].shape[1:], "the weights of Conv").tolist()))


register(
    Operator(
        "Conv",
        (2, 3),
        _infer_conv,
        _conv,
        read=read_conv,
        write=write_conv,
        flops=_conv_flops,
        defaults={"group": 1},
        traits=Traits(
            product=ProductKind.CONVOLUTION,
            image=ImageRole.WINDOW,
            degree=DegreeBound.MULTILINEAR,
            one_dtype=True,
            accumulates=True,
        ),
        samples=("Conv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1)](x, w) | x:[1,8,14,14] w:[16,8,3,3]",),
    )
)

# Transposed convolution: the convolution of the image, its entries ``strides`` apart and zeros between them, with the kernel
# mirrored. Weights are [..., C, M/group, *kernel]. ``pads`` are cut off the result; ``output_padding`` lengthens it at the ends,
# by less than a stride, as onnxruntime wants it. Automatic pads and given sizes of the result are pads once a node is read.


def _transposed_lengths(attrs: AttrMap, spatial: Sequence[Dim], kernel: Sequence[Dim]) -> tuple[Dim, ...]:
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


def _infer_transposed(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    x, w, group = inputs[0], inputs[1], attrs["group"]
    if x.rank != w.rank or x.rank < 3:
        raise ShapeError(f"ConvTranspose of {x} with {w}")
    channels = same_dim(x.shape[1], w.shape[0])
    if channels is None:
        raise Undecided(f"whether {x.shape[1]} equals {w.shape[0]}", [(x.shape[1], w.shape[0])])
    if not channels or not _divides(group, w.shape[0]):
        raise ShapeError(f"ConvTranspose of {x} with {w} in {group} groups")
    outputs = w.shape[1] * group
    _check_bias("ConvTranspose", inputs, outputs)
    return (TensorType(x.dtype, (x.shape[0], outputs, *_transposed_lengths(attrs, x.shape[2:], w.shape[2:]))),)


def _kept(size: int, stride: int, begin: int, end: int) -> tuple[slice, slice]:
    """Where entries of an axis stand once they are apart, and which: those before 0 and from ``end`` on are cut off."""
    first = max(0, -(begin // stride))
    places = range(begin + first * stride, end, stride)[: max(size - first, 0)]
    return slice(places.start, places.stop, stride), slice(first, first + len(places))


def _transposed(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, w, *bias = inputs
    n, group, strides, dilations = len(attrs["strides"]), attrs["group"], attrs["strides"], attrs["dilations"]

    def spread(image: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The entries apart from each other, as far as the result reaches: [..., *(length + reach)], for the kernel's reach."""
        spatial, kernel = image.shape[-n:], domain.shape(w)[-n:]
        reach = tuple(d * (k - 1) for d, k in zip(dilations, kernel, strict=True))
        lengths = integers(_transposed_lengths(attrs, spatial, kernel), "the result").tolist()
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
    return _conv(domain, window, [image, kernel, *bias])


def _read_transposed(node: ForeignNode) -> Reading:
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
    is_same = wanted is None and mode.startswith("SAME")
    if is_same:
        wanted = [d * s for d, s in zip(spatial, attrs["strides"], strict=True)]
    if wanted is not None:
        attrs |= _sized(attrs, _transposed_lengths(attrs, spatial, kernel), tuple(wanted)[-n:], mode == "SAME_UPPER")
    if is_same and attrs["output_padding"] != attributes["output_padding"]:  # onnxruntime leaves it shorter than onnx says
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


def _write_transposed(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    kernel = tuple(integers(types[1].shape[2:], "the kernel of ConvTranspose").tolist())
    given = {name: attrs[name] for name in ("dilations", "group", "output_padding", "pads", "strides")}
    return OnnxForm("ConvTranspose", tuple(range(len(types))), {"kernel_shape": kernel, **given})


def _transposed_flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    """Each entry of the image times those of its channel's kernels."""
    return product_flops(inputs[0], math.prod(integers(inputs[1].shape[1:], "the weights of ConvTranspose").tolist()))


register(
    Operator(
        "ConvTranspose",
        (2, 3),
        _infer_transposed,
        _transposed,
        read=_read_transposed,
        write=_write_transposed,
        flops=_transposed_flops,
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


# Pooling


def _infer_pool(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    (x,) = inputs
    if not attrs["kernel"] or x.rank != len(attrs["kernel"]) + 2:
        raise ShapeError(f"a window of {attrs['kernel']} over {x}")
    return (TensorType(x.dtype, (*x.shape[:2], *_output_spatial(attrs, x.shape[2:], attrs["kernel"]))),)


def _window_index(attrs: AttrMap, axis: int, spatial: Integers) -> tuple[np.ndarray, np.ndarray]:
    """Where each window reads along one axis, and which of these positions are inside: [places, kernel]."""
    kernel = attrs["kernel"]
    starts = np.arange(_places(attrs, spatial, kernel)[axis]) * attrs["strides"][axis] - attrs["pads"][axis]
    index = starts[:, None] + attrs["dilations"][axis] * np.arange(kernel[axis])
    inside = (index >= 0) & (index < spatial[axis])
    if not inside.any(axis=1).all():
        raise Unsupported("a window of padding only")
    return index, inside


def _max_pool(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A place outside the tensor stands for another of its window: the maximum needs no least number."""
    (x,), n = inputs, len(attrs["kernel"])

    def gather(a: np.ndarray) -> np.ndarray:
        spatial = a.shape[-n:]
        for axis in range(n - 1, -1, -1):
            index, inside = _window_index(attrs, axis, spatial)
            other = np.take_along_axis(index, inside.argmax(axis=1)[:, None], axis=1)
            a = np.take(a, np.where(inside, index, other), axis=2 * (axis - n) + 1)  # later axes are doubled already
        return a

    return (domain.max(domain.move(gather, x), tuple(range(1 - 2 * n, 0, 2)), False),)


def _average_pool(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The sum over a window divided by its size, or by the number of its places inside the tensor."""
    (x,), kernel, n = inputs, attrs["kernel"], len(attrs["kernel"])
    total = domain.sum(_windows(domain, attrs, x, lambda: kernel), tuple(range(-n, 0)), False)
    if attrs["count_include_pad"] or not (any(attrs["pads"]) or attrs["ceil"]):
        return (domain.mul(total, domain.const(Fraction(1, math.prod(kernel)))),)
    for axis in range(n):
        total = domain.mul(total, _inverse_counts(domain, attrs, x, axis))
    return (total,)


def _inverse_counts(domain: Domain, attrs: AttrMap, x: Array, axis: int) -> Array:
    """1 / number of places inside the tensor along one axis, for every window."""
    n = len(attrs["kernel"])

    def choose(*inverses: np.ndarray) -> np.ndarray:
        _, inside = _window_index(attrs, axis, domain.shape(x)[-n:])
        chosen: np.ndarray = np.stack(inverses)[inside.sum(axis=1) - 1]
        return chosen.reshape(-1, *(1,) * (n - 1 - axis))

    return domain.move(choose, *(domain.const(Fraction(1, count)) for count in range(1, attrs["kernel"][axis] + 1)))


def _read_pool(node: ForeignNode) -> Reading:
    single_output(node)
    kernel = tuple(node.attributes["kernel_shape"])
    more = {"storage_order": 0} if node.op_type == "MaxPool" else {"count_include_pad": 0}
    attributes = _window_attributes(node, kernel, ceil_mode=0, **more)
    attrs = {name: attributes[name] for name in ("strides", "dilations", "pads")} | {"kernel": kernel}
    if any(p >= k for p, k in zip(attrs["pads"], kernel * 2, strict=True)):
        raise NotUnderstood(f"{node.op_type} with pads {attrs['pads']} for a window of {kernel}")
    spatial = type_of(node).shape[2:]
    ceil = bool(attributes["ceil_mode"])
    if ceil and concrete(spatial) is not None:  # only a window that hangs over makes a difference
        ceil = _output_spatial({**attrs, "ceil": True}, spatial, kernel) != _output_spatial(attrs, spatial, kernel)
    attrs["ceil"] = ceil
    if node.op_type == "AveragePool":
        attrs["count_include_pad"] = bool(attributes["count_include_pad"]) and any(attrs["pads"])
        if attrs["count_include_pad"] and ceil:
            raise NotUnderstood("AveragePool that counts padding, with windows over the end")
    return Reading(attrs, (0,))


def _write_pool(name: str) -> Write:
    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        form = _write_window(attrs, attrs["kernel"])
        if attrs["ceil"]:
            form["ceil_mode"] = 1
        if attrs.get("count_include_pad"):
            form["count_include_pad"] = 1
        return OnnxForm(name, (0,), form)

    return write


def _pool_flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    return math.prod(attrs["kernel"]) * outputs[0].size()


_MAXIMUM = Traits(reduction=Reduction.MAX, one_dtype=True, piecewise=True)
_MEAN = Traits(reduction=Reduction.MEAN, degree=DegreeBound.LINEAR, one_dtype=True, accumulates=True)

register(
    Operator(
        "MaxPool",
        (1, 1),
        _infer_pool,
        _max_pool,
        read=_read_pool,
        write=_write_pool("MaxPool"),
        flops=_pool_flops,
        defaults={"ceil": False},
        traits=replace(_MAXIMUM, image=ImageRole.WINDOW),
        samples=("MaxPool[dilations=(1,1),kernel=(2,2),pads=(0,0,0,0),strides=(2,2)](x) | x:[1,8,14,14]",),
    )
)
register(
    Operator(
        "AveragePool",
        (1, 1),
        _infer_pool,
        _average_pool,
        read=_read_pool,
        write=_write_pool("AveragePool"),
        flops=_pool_flops,
        defaults={"ceil": False, "count_include_pad": False},
        traits=replace(_MEAN, image=ImageRole.WINDOW),
        samples=("AveragePool[dilations=(1,1),kernel=(2,2),pads=(0,0,0,0),strides=(2,2)](x) | x:[1,8,14,14]",),
    )
)


def _infer_global(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    (x,), spatial = inputs, attrs["spatial"]
    if spatial < 1 or x.rank != spatial + 2:
        raise ShapeError(f"pooling of {x} over {spatial} axes")
    return (TensorType(x.dtype, x.shape[:2] + (1,) * spatial),)


def _read_global(node: ForeignNode) -> Reading:
    attributes_of(node)
    if type_of(node).rank < 3:
        raise NotUnderstood(f"{node.op_type} of {type_of(node)}")
    return Reading({"spatial": type_of(node).rank - 2}, (0,))


def _register_global(name: str, traits: Traits, reduce: Callable[[Domain, Array, Integers], Array]) -> None:
    register(
        Operator(
            name,
            (1, 1),
            _infer_global,
            lambda domain, attrs, inputs: (reduce(domain, inputs[0], tuple(range(-attrs["spatial"], 0))),),
            read=_read_global,
            write=lambda attrs, types, opset: OnnxForm(name, (0,)),
            flops=lambda attrs, inputs, outputs: inputs[0].size(),
            traits=replace(traits, image=ImageRole.GLOBAL),
            samples=(f"{name}[spatial=2](x) | x:[1,8,14,14]",),
        )
    )


_register_global("GlobalAveragePool", _MEAN, lambda domain, x, axes: domain.mean(x, axes, True))
_register_global("GlobalMaxPool", _MAXIMUM, lambda domain, x, axes: domain.max(x, axes, True))
