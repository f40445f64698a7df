"""The attributes of the nodes of domain ``onnx.superopt``: the plan, the images and their packing, as the library reads them.

Those of a ``Kernel`` have the format :data:`FORMAT_VERSION`, :data:`CHOICE_FORMAT_VERSION` where sizes choose among
variants, and :data:`BUFFER_FORMAT_VERSION` where a launch depends on which buffers are one; those of a ``CpuKernel`` have
:data:`CPU_FORMAT_VERSION`. superopt_runtime.c is their other side.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.terms.shape import DataType

__all__ = [
    "BUFFER_FORMAT_VERSION",
    "CHOICE_FORMAT_VERSION",
    "CPU_FORMAT_VERSION",
    "FORMAT_VERSION",
    "Argument",
    "Expression",
    "Image",
    "Launch",
    "ObjectImage",
    "Output",
    "Packing",
    "Plan",
    "PlanChoice",
    "cpu_attributes",
    "pack_images",
    "unpack_images",
    "unpack_objects",
]

FORMAT_VERSION = 2
CHOICE_FORMAT_VERSION = 3
BUFFER_FORMAT_VERSION = 4
CPU_FORMAT_VERSION = 1

_CONSTANT, _DIMENSION, _ADD, _SUBTRACT, _MULTIPLY, _CEIL_DIVIDE, _FLOOR_DIVIDE, _MINIMUM, _MAXIMUM, _APART = range(10)
_WIDTHS = {_CONSTANT: 2, _DIMENSION: 3, _APART: 3}
"""Numbers of an operation with those behind it; all others are one."""
_INPUT, _OUTPUT, _SCRATCH, _INT32, _INT64, _FLOAT32, _NOTHING, _PACKED = range(8)


@dataclass(frozen=True, slots=True)
class Expression:
    """An integer computed from the inputs' dimensions at run time, and of which buffers are one: a postfix program."""

    code: tuple[int, ...]

    @staticmethod
    def of(value: Expression | int) -> Expression:
        return value if isinstance(value, Expression) else Expression((_CONSTANT, value))

    @staticmethod
    def dimension(tensor: int, axis: int) -> Expression:
        """The size of an input at an axis counted from the front."""
        return Expression((_DIMENSION, tensor, axis))

    @staticmethod
    def apart(input: int, output: int) -> Expression:
        """0 where an output is in the buffer of an input, else 1; of a launch alone: no size of a tensor depends on it."""
        return Expression((_APART, input, output))

    def _with(self, other: Expression | int, operation: int) -> Expression:
        return Expression((*self.code, *Expression.of(other).code, operation))

    def __add__(self, other: Expression | int) -> Expression:
        return self._with(other, _ADD)

    def __sub__(self, other: Expression | int) -> Expression:
        return self._with(other, _SUBTRACT)

    def __mul__(self, other: Expression | int) -> Expression:
        return self._with(other, _MULTIPLY)

    def __floordiv__(self, other: Expression | int) -> Expression:
        return self._with(other, _FLOOR_DIVIDE)

    def ceil_div(self, other: Expression | int) -> Expression:
        return self._with(other, _CEIL_DIVIDE)

    def minimum(self, other: Expression | int) -> Expression:
        return self._with(other, _MINIMUM)

    def maximum(self, other: Expression | int) -> Expression:
        return self._with(other, _MAXIMUM)

    def packed(self) -> list[int]:
        return [len(self.code), *self.code]

    @property
    def compares_buffers(self) -> bool:
        code, at = self.code, 0
        while at < len(code) and code[at] != _APART:
            at += _WIDTHS.get(code[at], 1)
        return at < len(code)

    def value(self, shapes: Sequence[Sequence[int]], shared: Collection[tuple[int, int]] = ()) -> int:
        """The number for inputs of these shapes, as the run-time library computes it.

        Args:
            shared: inputs and outputs, by number, that are one buffer.
        """
        code, stack, at = self.code, list[int](), 0
        while at < len(code):
            operation = code[at]
            if operation == _CONSTANT:
                stack.append(code[at + 1])
            elif operation == _DIMENSION:
                stack.append(shapes[code[at + 1]][code[at + 2]])
            elif operation == _APART:
                stack.append(int((code[at + 1], code[at + 2]) not in shared))
            else:
                b, a = stack.pop(), stack.pop()
                results = [a + b, a - b, a * b, -(-a // b) if b else 0, a // b if b else 0, min(a, b), max(a, b)]
                stack.append(results[operation - _ADD])
            at += _WIDTHS.get(operation, 1)
        (result,) = stack
        return result


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of a kernel, in the order of its signature."""

    packed: tuple[int, ...]

    @staticmethod
    def input(index: int) -> Argument:
        return Argument((_INPUT, index))

    @staticmethod
    def output(index: int) -> Argument:
        return Argument((_OUTPUT, index))

    @staticmethod
    def scratch(index: int) -> Argument:
        return Argument((_SCRATCH, index))

    @staticmethod
    def int32(value: Expression | int) -> Argument:
        return Argument((_INT32, *Expression.of(value).packed()))

    @staticmethod
    def int64(value: Expression | int) -> Argument:
        return Argument((_INT64, *Expression.of(value).packed()))

    @staticmethod
    def float32(value: float) -> Argument:
        return Argument((_FLOAT32, struct.unpack("<i", struct.pack("<f", value))[0]))

    @staticmethod
    def nothing() -> Argument:
        """A null pointer: the scratch parameters that Triton appends to every kernel."""
        return Argument((_NOTHING,))

    @staticmethod
    def weights(index: int) -> Argument:
        """What a :class:`Packing` of the plan made of an input."""
        return Argument((_PACKED, index))


@dataclass(frozen=True, slots=True)
class Output:
    """Element type and dimensions of an output."""

    dtype: DataType
    shape: tuple[Expression | int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Weights that a function brings once, when the session is created, into the order in which others read them.

    Attributes:
        input: the one that holds the weights; a constant wherever the kernel is used.
        function: ``void NAME(const void *weights, void *packed, const int64_t *sizes)``.
        bytes: of what it writes, which begins at a multiple of 64 bytes.
        sizes: what it is told. These and ``bytes`` are of the dimensions of this input alone.
    """

    input: int
    function: str
    bytes: Expression | int
    sizes: tuple[Expression | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: the kernel's name, threads a block, grid and arguments.

    On a CPU ``threads`` is the least number of blocks, 1 to 1024, that is worth the way to another thread.
    """

    kernel: str
    threads: int
    grid: tuple[Expression | int, Expression | int, Expression | int]
    arguments: tuple[Argument, ...]

    @property
    def compares_buffers(self) -> bool:
        return any(Expression.of(extent).compares_buffers for extent in self.grid)


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a node: its outputs, scratch buffers (bytes each), launches in order, and, on a CPU, weights to pack."""

    inputs: int
    outputs: tuple[Output, ...]
    launches: tuple[Launch, ...]
    scratch: tuple[Expression | int, ...] = ()
    packings: tuple[Packing, ...] = ()

    @property
    def compares_buffers(self) -> bool:
        return any(launch.compares_buffers for launch in self.launches)

    @property
    def version(self) -> int:
        return BUFFER_FORMAT_VERSION if self.compares_buffers else FORMAT_VERSION

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, and of what packs their weights, each once."""
        names = [*(launch.kernel for launch in self.launches), *(packing.function for packing in self.packings)]
        return list(dict.fromkeys(names))

    def packed(self) -> list[int]:
        """The ``plan`` attribute."""
        count = [1] if self.compares_buffers else []
        return [*self.packed_interface(), *count, *self.packed_work(self.kernels)]

    def packed_interface(self) -> list[int]:
        """The inputs and outputs."""
        code = [self.inputs, len(self.outputs)]
        for output in self.outputs:
            code += [int(output.dtype), len(output.shape)]
            for dim in output.shape:
                code += Expression.of(dim).packed()
        return code

    def packed_work(self, kernels: Sequence[str]) -> list[int]:
        """The scratch buffers, and the launches of kernels that are listed like this."""
        code = [len(self.scratch)]
        for size in self.scratch:
            code += Expression.of(size).packed()
        code.append(len(self.launches))
        for launch in self.launches:
            code += [kernels.index(launch.kernel), launch.threads]
            for extent in launch.grid:
                code += Expression.of(extent).packed()
            code.append(len(launch.arguments))
            for argument in launch.arguments:
                code += argument.packed
        return code


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Plans of one kernel, among which the sizes of its inputs choose at every run.

    Attributes:
        plans: two or more, of the same inputs and outputs.
        measure: a number that chooses.
        limits: ascending, one fewer than plans: the largest measure of each plan but the last.
    """

    plans: tuple[Plan, ...]
    measure: Expression
    limits: tuple[int, ...]

    @property
    def version(self) -> int:
        return BUFFER_FORMAT_VERSION if any(plan.compares_buffers for plan in self.plans) else CHOICE_FORMAT_VERSION

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels of all plans, each once."""
        return list(dict.fromkeys(name for plan in self.plans for name in plan.kernels))

    def packed(self) -> list[int]:
        """The ``plan`` attribute."""
        code = [*self.plans[0].packed_interface(), len(self.plans), *self.measure.packed(), *self.limits]
        for plan in self.plans:
            code += plan.packed_work(self.kernels)
        return code

    def image(self, variant: int, image: Image) -> Image:
        """An image of one of the plans as it stands beside those of the others."""
        shared = dict(zip(self.plans[variant].kernels, image.shared, strict=True))
        return replace(image, shared=tuple(shared.get(name, 0) for name in self.kernels), variant=variant)


@dataclass(frozen=True, slots=True)
class Image:
    """Compiled kernels for an architecture such as 80 or 90: a cubin, or PTX that the driver compiles.

    Attributes:
        shared: dynamic shared memory of each kernel in bytes, in the order of the plan's kernels.
        waits: whether every kernel waits for the one before it (``griddepcontrol.wait``) before it touches memory, so that it
            may be launched while that one still runs (CUDA programming guide, programmatic dependent launch).
        variant: the number of its plan among those of a :class:`PlanChoice`.
    """

    architecture: int
    is_ptx: bool
    content: bytes
    shared: tuple[int, ...]
    waits: bool = False
    variant: int = 0


def unpack_images(packed: np.ndarray, kernels: int) -> list[Image]:
    """The images in an attribute of a node with so many kernels. Raises ValueError where it holds something else."""
    content, images, at = packed.tobytes(), list[Image](), 0
    while at < len(content):
        try:
            architecture, kind, count, length = struct.unpack_from("<4i", content, at)
            shared = struct.unpack_from(f"<{count}i", content, at + 16)
        except struct.error:
            raise ValueError("images that are cut off") from None
        start = at + 16 + 4 * count
        if not (count == kernels and 0 < length <= len(content) - start):
            raise ValueError(f"an image of {count} kernels and {length} bytes")
        image = content[start : start + length - 1]
        images.append(Image(architecture, bool(kind & 1), image, shared, bool(kind & 2), kind >> 2))
        at = -(-(start + length) // 8) * 8
    return images


def pack_images(images: Sequence[Image]) -> np.ndarray:
    """The ``images`` attribute: uint8, a null after each image (PTX is text) and padding to multiples of 8."""
    packed = bytearray()
    for image in images:
        content, kind = image.content + b"\0", image.is_ptx | image.waits << 1 | image.variant << 2
        packed += struct.pack(
            f"<{4 + len(image.shared)}i", image.architecture, kind, len(image.shared), len(content), *image.shared
        )
        packed += content
        packed += bytes(-len(packed) % 8)
    return np.frombuffer(bytes(packed), np.uint8)


@dataclass(frozen=True, slots=True)
class ObjectImage:
    """A shared object for processors that have some features.

    Attributes:
        features: bits as superopt_runtime.c numbers them; of the objects that a processor can run it takes the one of most.
        variant: as an :class:`Image`'s.
    """

    features: int
    content: bytes
    variant: int = 0


def cpu_attributes(plan: Plan | PlanChoice, objects: Sequence[ObjectImage]) -> Mapping[str, Any]:
    """The attributes of a node ``CpuKernel``. Its plan begins with a checksum, so that a damaged node is refused."""
    plans = plan.plans if isinstance(plan, PlanChoice) else (plan,)
    names = "\n".join(plan.kernels)
    code = [*plans[0].packed_interface(), len(plans)]
    if isinstance(plan, PlanChoice):
        code += [*plan.measure.packed(), *plan.limits]
    code.append(len(plans[0].packings))
    for packing in plans[0].packings:
        code += [packing.input, plan.kernels.index(packing.function), *Expression.of(packing.bytes).packed(), len(packing.sizes)]
        for size in packing.sizes:
            code += Expression.of(size).packed()
    for each in plans:
        code += each.packed_work(plan.kernels)
    images = bytearray()
    for item in objects:
        images += struct.pack("<4i", item.features, item.variant, len(item.content), 0) + item.content
        images += bytes(-len(images) % 8)
    checksum = zlib.crc32(images, zlib.crc32(names.encode(), zlib.crc32(struct.pack(f"<{len(code)}q", *code))))
    return {
        "version": CPU_FORMAT_VERSION,
        "kernels": names,
        "plan": (checksum, *code),
        "images": np.frombuffer(bytes(images), np.uint8),
    }


def unpack_objects(packed: np.ndarray) -> list[ObjectImage]:
    """The objects in an attribute of a node ``CpuKernel``. Raises ValueError where it holds something else."""
    content, objects, at = packed.tobytes(), list[ObjectImage](), 0
    while at < len(content):
        if len(content) - at < 16:
            raise ValueError("objects that are cut off")
        features, variant, length, _ = struct.unpack_from("<4i", content, at)
        if not 0 <= length <= len(content) - at - 16:
            raise ValueError(f"an object of {length} bytes")
        objects.append(ObjectImage(features, content[at + 16 : at + 16 + length], variant))
        at = -(-(at + 16 + length) // 8) * 8
    return objects
