"""The time of a node by the roofline of a device, where nothing can be measured.

A kernel takes a launch, the latency of its first and last access, and then the time of its arithmetic or of its traffic,
whichever is longer (Williams, Waterman and Patterson, CACM 2009). Nine refinements make small kernels come out right:

* A product is cut into tiles, and a wave of tiles takes as long as one: a product with fewer tiles than the device has units
  leaves some idle (wave quantisation). The best of several tile sizes counts; small tiles reach less of the peak. It waits for
  its first tiles and for its last, which no other kernel does twice.
* Traffic reaches a share of the bandwidth, a transposition less. What a kernel only points into is not moved: a Gather moves
  the rows it takes, a Reshape nothing unless its result leaves the model.
* A convolution over channels first is brought to channels last and back, which is where NHWC layouts save.
* A convolution over a line takes twice what one of an image does on a GPU, and more in narrow groups.
* On a processor a convolution in narrow groups computes on whole blocks of channels, and out of their layout; one over a line is
  a product of windows.
* On a GPU onnxruntime's Gemm has a kernel of its own write its bias into the result, an entry a clock of a multiprocessor.
* A graph-defined kernel takes what the model of its schedules says (:mod:`rewriter.cost.schedules`).
* A kernel in C computes for every tile of columns anew what a product takes that is not stored, such as a GELU in front of it.
* A composite takes one launch, its own operands and results, and the products in it: attention never writes its scores, and
  causal attention does not compute those that its mask hides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.blocks.sizes import bound_sizes
from mugraph.domains.base import FLOATS
from mugraph.ops import Movement, ProductKind, get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType, Undecided
from mugraph.terms.term import Attrs, AttrValue, Term, walk
from rewriter.cost.devices import Device, get_device
from rewriter.cost.schedules import least_time
from rewriter.cost.signature import bytes_of

__all__ = ["node_microseconds", "operand_types", "product_sizes"]

_STREAM, _SCATTERED = 0.85, 0.45
"""Share of the bandwidth that elementwise kernels and transpositions reach."""
_TILES = ((128, 0.8), (64, 0.75), (32, 0.25))
"""Side of a square tile and the share of the peak that it reaches."""
_WINDOWED = 0.5
"""Share of a plain product's speed that a convolution reaches."""
_ALIGNED = 8
"""Channels of half precision that matrix units take at a time: a convolution over another number of them is computed without, as
that of a picture's three is. Measured on an H200 are 76 to 105 microseconds for patches of 16×16 in 3×224×224, 768 of each."""
_LINE = 2.0
"""What a convolution over a line takes on a GPU, over what this model says of images. Measured on an H200 in half precision are
33, 32, 26, 20, 19 and 56 microseconds for convolutions of wav2vec 2.0 and Whisper, where it says 11, 20, 12, 9, 11 and 19: it is
1.6 to 3.1 times as long."""
_GROUPED = 64
"""Channels of a group over a line below which it is computed without matrix units. Measured on an H200 are 660 microseconds for
wav2vec 2.0's positions, 16 groups of 48 channels, and 24 for two of 80 that are read and 192 that are made."""
_LANES, _UNBLOCKED = 16, 0.66
"""Channels that onnxruntime's convolutions on a processor take at a time, in images that are laid out in such blocks. Groups that
are no whole number of blocks are copied, window by window, for products of matrices: the share of the speed that is left."""
_ATTENTION = 0.62
"""The same of the products within attention, between which its softmax stands."""
_BIAS_ENTRY = 5.5e-4
"""Microseconds of a multiprocessor for an entry of a result into which a bias is written. Measured on H200s are 13.7, 38.4 and
5.2 microseconds for 4096×768, 4096×2304 and 1024×1024 entries, a tenth of the bandwidth: each entry's place is divided."""
_LOOP, _PIPELINE = 2.5, 1.0
"""Latencies that attention takes beyond one: its products and its softmax follow each other; and that a product takes: its
pipeline fills with tiles and drains."""


_COLUMNS = 256
"""Columns of a product that a kernel in C computes at a time, at most."""


def node_microseconds(device: Device, op: str, attrs: Attrs, operands: Sequence[TensorType], leaves_model: bool = False) -> float:
    """The estimate for one node of concrete types.

    Args:
        leaves_model: a result is one of the model's, so that it is written even where a view would do.

    Raises:
        ShapeError, Undecided: the application is ill-typed, or a size is symbolic.
    """
    return _node_microseconds(device, op, attrs, tuple(operands), leaves_model)


@lru_cache(maxsize=1 << 14)
def _node_microseconds(device: Device, op: str, attrs: Attrs, operands: tuple[TensorType, ...], leaves_model: bool) -> float:
    """Layers ask the same of nodes that are alike, and each opinion of prices once more."""
    operator = get_operator(op)
    outputs = operator.types(attrs, operands)
    if operator.traits.movement is Movement.VIEW:  # onnxruntime gives the operand another shape, where it may
        return device.view + (_kernel(device, 0.0, _traffic(op, operands, outputs) / _STREAM) if leaves_model else 0.0)
    full = {**operator.defaults, **dict(attrs)}
    if op == KERNEL and device.units > 1:
        return _graph_defined(device, kernel_of(full), operands)
    if not operator.composite:
        compute = _compute(device, op, full, operands, outputs)
        share = _SCATTERED if operator.traits.movement is Movement.PERMUTATION else _STREAM
        beside = _conversions(device, op, operands, outputs) + _bias(device, op, full, operands, outputs) + _filling(device, {op})
        whole = _kernel(device, compute, _traffic(op, operands, outputs) / share) + beside
        return whole * _over_line(device, op, operands, compute)
    roots = operator.decompose(attrs, operands)
    types = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operands)})
    if operator.runtime.inlined:
        nodes = dict.fromkeys(term for term in walk(roots) if term.inputs)
        return sum(_node_microseconds(device, n.op, n.attrs, tuple(operand_types(n, types)), False) for n in nodes)
    compute = 0.0
    attends = operator.traits.attention and device.units > 1
    causal = attends and any(term.op == "CausalMask" for term in walk(roots))
    done = set()
    for term in walk(roots):
        if not term.inputs or (term.op, term.attrs, term.inputs) in done:
            continue
        done.add((term.op, term.attrs, term.inputs))
        inner = operand_types(term, types)
        share = 1.0
        if attends and types[term].rank == 4:
            share = _ATTENTION / (_seen_tiles(_whole(outputs[0].shape[-2])) if causal else 1.0)
        compute += _compute_within(device, term, inner, [types[term]]) / share
    # The projection, the split into heads, attention itself; a bias of the projections beside attention takes another.
    kernels = operator.runtime.kernels + ("bias" in full.get("given", ()))
    extra = (kernels - 1) * (device.launch + device.latency)
    extra += _LOOP * device.latency if attends else _filling(device, {name for name, *_ in done})
    if op == KERNEL:
        extra += sum(_repeated(device, term, types) for term in dict.fromkeys(walk(roots)))
    extra += _conversions(device, op, operands, outputs)
    return (_kernel(device, compute, _traffic(op, operands, outputs) / _STREAM) + extra) * _over_line(
        device, op, operands, compute
    )


def _compute_within(device: Device, term: Term, operands: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """As :func:`_compute`, of a term within what an operator decomposes to: of a composite by what that decomposes to.

    There, products of integers count nothing: they have no rate of their own, and at that of floats no kernel of them is timed.
    """
    record = get_operator(term.op)
    if not record.composite:
        return _compute(device, term.op, {**record.defaults, **dict(term.attrs)}, operands, outputs)
    roots = record.decompose(term.attrs, operands)
    types = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operands)})
    inner = dict.fromkeys(each for each in walk(roots) if each.inputs and types[each].dtype in FLOATS)
    return sum(_compute_within(device, each, operand_types(each, types), [types[each]]) for each in inner)


def _repeated(device: Device, product: Term, types: Mapping[Term, TensorType]) -> float:
    """Microseconds in which a kernel computes again what a product of matrices takes, for all tiles of columns but one."""
    if traits_of(product.op).product is not ProductKind.MATRIX:
        return 0.0
    computed, stack = dict[Term, int](), [product.inputs[0]]
    while stack:
        term = stack.pop()
        traits = traits_of(term.op)
        if not term.inputs or term in computed or traits.product is not None:
            continue
        computed[term] = 0 if traits.movement is not None else 2 * bytes_of(types[term])
        stack += term.inputs
    again = -(-_whole(types[product].shape[-1]) // _COLUMNS) - 1
    return again * sum(computed.values()) / (device.bandwidth * 1e3 * _STREAM)


def _seen_tiles(queries: int) -> float:
    """The part of the tiles of scores that causal attention computes: what lies after its queries is skipped."""
    tiles = -(-queries // _TILES[0][0])
    return (tiles + 1) / (2 * tiles)


@lru_cache(maxsize=4096)
def _kernel_microseconds(device: str, kernel: Kernel, sizes: tuple[tuple[str, int], ...]) -> float:
    return least_time(kernel, get_device(device), dict(sizes))


def _graph_defined(device: Device, kernel: Kernel, operands: Sequence[TensorType]) -> float:
    """A graph-defined kernel under the schedules that look best."""
    shapes = {tensor.name: tuple(map(_whole, type_.shape)) for tensor, type_ in zip(kernel.inputs, operands, strict=True)}
    return _kernel_microseconds(device.name, kernel, tuple(sorted(bound_sizes(kernel, shapes).items())))


def operand_types(term: Term, types: Mapping[Term, TensorType]) -> list[TensorType]:
    """Types of a term's operands; a number has that of the operand beside it."""
    beside = [types[i].dtype for i in term.inputs if i.op != "Const" and types[i].dtype != DataType.BOOL]
    wide = beside[0] if beside else DataType.FLOAT
    return [TensorType(wide, ()) if i.op == "Const" else types[i] for i in term.inputs]


def _kernel(device: Device, compute: float, moved: float) -> float:
    return device.launch + device.latency + max(compute, moved / (device.bandwidth * 1e3))


def _filling(device: Device, ops: Collection[str]) -> float:
    """Microseconds of a kernel with products beside its arithmetic and its traffic."""
    multiplies = any(traits_of(op).product is ProductKind.MATRIX for op in ops)
    return _PIPELINE * device.latency if device.units > 1 and multiplies else 0.0


def _conversions(device: Device, op: str, operands: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """Two kernels that bring an image to channels last and back: a GPU's matrix units take a convolution no other way."""
    if not traits_of(op).convolves or device.units == 1:
        return 0.0
    return sum(_kernel(device, 0.0, 2 * bytes_of(image) / _SCATTERED) for image in (operands[0], outputs[0]))


def _over_line(device: Device, op: str, operands: Sequence[TensorType], compute: float) -> float:
    """What a convolution over a line takes longer than one over an image; nothing where it is depthwise, and no product."""
    return _LINE if compute and device.units > 1 and traits_of(op).convolves and operands[0].rank == 3 else 1.0


def _bias(
    device: Device, op: str, attrs: Mapping[str, AttrValue], operands: Sequence[TensorType], outputs: Sequence[TensorType]
) -> float:
    """The kernel that brings a Gemm's third operand to its result before the product is added."""
    if op != "Gemm" or len(operands) < 3 or not attrs["beta"] or device.units == 1:
        return 0.0
    entries = math.prod(map(_whole, outputs[0].shape))
    return device.launch + device.latency + entries * _BIAS_ENTRY / device.units


def _traffic(op: str, operands: Sequence[TensorType], outputs: Sequence[TensorType]) -> float:
    """Bytes that a kernel moves."""
    written = sum(map(bytes_of, outputs))
    if traits_of(op).movement in (Movement.PART, Movement.REPETITION, Movement.LOOKUP):  # no more is read than is written
        return written + min(written, bytes_of(operands[0])) + sum(map(bytes_of, operands[1:]))
    return written + (0 if op == "Shape" else sum(map(bytes_of, operands)))


def _compute(
    device: Device, op: str, attrs: Mapping[str, AttrValue], operands: Sequence[TensorType], outputs: Sequence[TensorType]
) -> float:
    """Microseconds of the arithmetic, where that is not bound by traffic anyway: of products and convolutions."""
    sizes = product_sizes(op, attrs, operands, outputs)
    if sizes is None:
        return 0.0
    batch, rows, columns, inner = sizes
    (out,) = outputs
    if traits_of(op).product is ProductKind.MATRIX:
        return _product(device, batch, rows, columns, inner, out.dtype)
    if batch == out.shape[1]:  # depthwise: no product at all
        return 0.0
    line = operands[0].rank == 3
    share, dtype = _WINDOWED, out.dtype
    transposed = traits_of(op).product is ProductKind.TRANSPOSED_CONVOLUTION
    channels = (inner if transposed else columns, _whole(operands[1].shape[1]))
    is_narrow = line and batch > 1 and min(channels) < _GROUPED
    if device.units > 1 and (is_narrow or any(count % _ALIGNED for count in channels)):
        dtype = DataType.FLOAT
    if device.units == 1 and (line or transposed):  # onnxruntime computes it as a product of windows itself
        share = 1.0
    elif device.units == 1 and batch > 1 and any(count % _LANES for count in channels):
        columns, share = -(-columns // _LANES) * _LANES, _WINDOWED * _UNBLOCKED
    return _product(device, batch, rows, columns, inner, dtype) / share


def product_sizes(
    op: str, attrs: Mapping[str, AttrValue], operands: Sequence[TensorType], outputs: Sequence[TensorType]
) -> tuple[int, int, int, int] | None:
    """Products, rows, columns and terms of a sum: of a plain operator that is a product, or a convolution written as one of
    windows by weights, a product for each group; ``None`` of another.

    Args:
        attrs: with the defaults.

    Raises:
        Undecided: a size is symbolic.
    """
    product = traits_of(op).product
    if product is ProductKind.MATRIX:
        (out,) = outputs
        first = 0 if attrs.get("transBatchA") else -2
        inner = operands[0].shape[first if attrs.get("transA") else -1]
        rows, columns = (out.shape[-2] if out.rank > 1 else 1), (out.shape[-1] if out.rank else 1)
        shared = op == "Gemm" or operands[1].rank <= 2  # one matrix for all of a batch: its rows follow each other
        batch = 1 if shared else _whole(math.prod(map(_whole, out.shape[:-2])))
        rows = math.prod(map(_whole, out.shape[:-1])) if shared and out.rank > 1 else rows
        return batch, _whole(rows), _whole(columns), _whole(inner)
    if product is ProductKind.CONVOLUTION:
        (out,), group = outputs, _whole(attrs["group"])
        inner = math.prod(map(_whole, operands[1].shape[1:]))
        rows = _whole(out.shape[0]) * math.prod(map(_whole, out.shape[2:]))
        return group, rows, _whole(out.shape[1]) // group, inner
    if product is ProductKind.TRANSPOSED_CONVOLUTION:
        image, group = operands[0], _whole(attrs["group"])
        columns = math.prod(map(_whole, operands[1].shape[1:]))
        return group, _whole(image.shape[0]) * math.prod(map(_whole, image.shape[2:])), columns, _whole(image.shape[1]) // group
    return None


def _whole(size: AttrValue) -> int:
    if not isinstance(size, int):
        raise Undecided(f"the time of a kernel of size {size}")
    return size


def _product(device: Device, batch: int, rows: int, columns: int, inner: int, dtype: DataType) -> float:
    """Microseconds of a batch of products by the best of some tile sizes."""
    best = math.inf
    for side, share in _TILES if device.units > 1 else ((0, 0.8),):
        if side:
            tiles = batch * -(-rows // side) * -(-columns // side)
            flops = 2.0 * -(-tiles // device.units) * device.units * side * side * inner
        else:
            flops = 2.0 * batch * rows * columns * inner
        best = min(best, device.microseconds(flops, 0, dtype) / share)
    return best
