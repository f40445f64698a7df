"""Memory of a GPU in which whoever reads or writes past the end of a tensor is caught.

Each block that onnxruntime asks for ends where its mapping ends (to within `_ALIGNMENT` bytes), and nothing is mapped behind
that: an access there is an illegal address, which the device tells. It is full of one byte before it is given, so that what a
kernel leaves unwritten is no zero by chance, and another number with another byte. What lies around it is looked at afterwards: a
write that the mapping let through is told as well. No block serves a second tensor within a run.

onnxruntime calls :class:`FencedMemory` as the allocator of its CUDA provider (``gpu_external_alloc``, ``gpu_external_free``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["OTHER_POISON", "POISON", "CudaFailure", "Driver", "FencedMemory", "Mapper", "trip"]

POISON, OTHER_POISON = 0xFE, 0x7B
"""Bytes that memory is full of. Floats of the first are huge and below 0, in halves NaN; of the second huge and above 0."""
_ALIGNMENT = 16
"""Bytes of which addresses are multiples: what the vector accesses of kernels, onnxruntime's and ours, ask for."""
_LOOKED_AT = 4096
"""Bytes before a block in which writes are looked for."""
_KEPT = 16 << 20
"""Bytes of the largest block that is kept for another tensor."""


class CudaFailure(Exception):
    """The driver is missing, or refuses a call; the message names it."""


class Mapper(Protocol):
    """Memory that is mapped, with nothing mapped behind it."""

    def map(self, size: int) -> tuple[int, int]:
        """Maps so many bytes at least: the address and how many there are."""

    def unmap(self, address: int, size: int) -> None:
        """Gives them back."""

    def fill(self, address: int, byte: int, size: int) -> None:
        """Sets bytes."""

    def read(self, address: int, size: int) -> bytes:
        """Reads bytes."""

    def settle(self) -> None:
        """Waits until nobody uses memory."""


@dataclass(slots=True)
class _FencedBlock:
    """A mapping, and what of it was given out."""

    start: int
    size: int
    given: int = 0
    poison: int = POISON
    is_free: bool = False

    @property
    def address(self) -> int:
        """Of what was given: it ends with the mapping, but for what its alignment costs."""
        return (self.start + self.size - self.given) // _ALIGNMENT * _ALIGNMENT


@dataclass(slots=True)
class FencedMemory:
    """Blocks by their addresses.

    Attributes:
        problems: what went wrong in allocations.
        given: how many blocks were given so far.
        poison: the byte that blocks are full of from now on.
    """

    mapper: Mapper
    given: int = 0
    poison: int = POISON
    problems: list[str] = field(default_factory=list)
    _blocks: dict[int, _FencedBlock] = field(default_factory=dict)
    _spare: dict[int, list[_FencedBlock]] = field(default_factory=dict)
    _callbacks: list[Any] = field(default_factory=list)

    def provider_options(self) -> Mapping[str, str]:
        """Options of the CUDA provider, by which it takes its memory from here for as long as this lives."""
        if not self._callbacks:
            self._callbacks = [
                ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self.allocate),
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.free),
                ctypes.CFUNCTYPE(None)(lambda: None),
            ]
        addresses = [str(ctypes.cast(callback, ctypes.c_void_p).value) for callback in self._callbacks]
        return dict(zip(("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"), addresses, strict=True))

    def allocate(self, size: int) -> int | None:
        """A poisoned block; ``None``, for which onnxruntime fails, where there is none."""
        try:
            block = self._block(size)
            block.given, block.poison, block.is_free = size, self.poison, False
            self.mapper.fill(block.start, block.poison, block.size)
        except CudaFailure as problem:
            self.problems.append(str(problem))
            return None
        self._blocks[block.address] = block
        self.given += 1
        return block.address

    def _block(self, size: int) -> _FencedBlock:
        for length, spare in self._spare.items():
            if spare and size <= length:
                return spare.pop()
        return _FencedBlock(*self.mapper.map(size))

    def free(self, address: int | None) -> None:
        """Notes that a block is not used by later work. It stays as it is until the run is over."""
        if address in self._blocks:
            self._blocks[address].is_free = True

    def look(self) -> list[str]:
        """After a run: what was written beside blocks. Those that are free may be given once more from now on.

        Raises:
            CudaFailure: the device does not answer any more.
        """
        self.mapper.settle()
        told = []
        for address, block in list(self._blocks.items()):
            before, end = min(_LOOKED_AT, address - block.start), address + block.given
            behind = block.start + block.size - end
            if set(self.mapper.read(address - before, before)) - {block.poison}:
                told.append(f"something was written before a tensor of {block.given} bytes")
            if set(self.mapper.read(end, behind)) - {block.poison}:
                told.append(f"something was written behind a tensor of {block.given} bytes")
            if block.is_free:
                del self._blocks[address]
                if block.size <= _KEPT:
                    self._spare.setdefault(block.size, []).append(block)
                else:
                    self.mapper.unmap(block.start, block.size)
        return told


# --- the driver -----------------------------------------------------------------------------------------------------


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_DEVICE = _Location(1, 0)
_PINNED = _AllocationProperties(1, 0, _DEVICE, None, (ctypes.c_ubyte * 8)())
_READ_AND_WRITE = _Access(_DEVICE, 3)


class Driver:
    """The CUDA driver's virtual memory of the first GPU, in its primary context. Raises CudaFailure in all it does."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as problem:
            raise CudaFailure(f"no CUDA driver: {problem}") from None
        context, granularity = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(_PINNED), 0)
        self._granularity = granularity.value
        self._handles: dict[int, ctypes.c_ulonglong] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Calls the driver."""
        status = self._library[name](*arguments)
        if status:
            raise CudaFailure(f"{name}: error {status}")

    def map(self, size: int) -> tuple[int, int]:
        size = max(-(-size // self._granularity), 1) * self._granularity
        handle, address = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        reserved = ctypes.c_size_t(size + self._granularity)
        none = ctypes.c_ulonglong(0)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(_PINNED), none)
        self.call("cuMemAddressReserve", ctypes.byref(address), reserved, ctypes.c_size_t(0), none, none)
        self.call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, none)
        self.call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(_READ_AND_WRITE), ctypes.c_size_t(1))
        self._handles[address.value] = handle
        return address.value, size

    def unmap(self, address: int, size: int) -> None:
        start, length = ctypes.c_ulonglong(address), ctypes.c_size_t(size)
        self.call("cuMemUnmap", start, length)
        self.call("cuMemAddressFree", start, ctypes.c_size_t(size + self._granularity))
        self.call("cuMemRelease", self._handles.pop(address))

    def fill(self, address: int, byte: int, size: int) -> None:
        self.call("cuMemsetD8_v2", ctypes.c_ulonglong(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))
        self.settle()

    def read(self, address: int, size: int) -> bytes:
        content = ctypes.create_string_buffer(size)
        if size:
            self.call("cuMemcpyDtoH_v2", content, ctypes.c_ulonglong(address), ctypes.c_size_t(size))
        return content.raw

    def settle(self) -> None:
        self.call("cuCtxSynchronize")


_PEEK = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry peek(.param .u64 from, .param .u64 to)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.volatile.global.u32 %r1, [%rd1];
    st.volatile.global.u32 [%rd2], %r1;
    exit;
}
"""
"""A kernel that reads four bytes at one address and writes them to another."""


def trip(driver: Driver, offsets: Sequence[int] = (0, 64)) -> list[int]:
    """What becomes of reading at places counted from the start of a fenced block of 64 bytes: 0, or the driver's error.

    The device is of no use to this process after an error; nothing is read then any more.
    """
    memory, module, function = FencedMemory(driver), ctypes.c_void_p(), ctypes.c_void_p()
    source, target = memory.allocate(64), memory.allocate(64)
    if source is None or target is None:
        raise CudaFailure("; ".join(memory.problems))
    driver.call("cuModuleLoadData", ctypes.byref(module), _PEEK)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"peek")
    told: list[int] = []
    for offset in offsets:
        values = [ctypes.c_ulonglong(source + offset), ctypes.c_ulonglong(target)]
        arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        ones, none = [ctypes.c_uint(1)] * 6, ctypes.c_void_p()
        try:
            driver.call("cuLaunchKernel", function, *ones, ctypes.c_uint(0), none, arguments, none)
            driver.settle()
        except CudaFailure as problem:
            told.append(int(str(problem).rsplit(" ", 1)[1]))
            break
        told.append(0)
    return told
