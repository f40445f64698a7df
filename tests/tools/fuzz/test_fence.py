"""Memory that ends where tensors end: a read past the end is caught, a write beside a tensor told."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rewriter.runtime_env import c_compiler
from tools.fuzz.fence import OTHER_POISON, POISON, CudaFailure, Driver, FencedMemory

STUB = Path(__file__).parents[2] / "support" / "stub_memory.c"


class HostMemory:
    """Mappings of 4096 bytes on the host."""

    def __init__(self) -> None:
        self.maps: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.is_broken = False

    def map(self, size: int) -> tuple[int, int]:
        if size > 1 << 25:
            raise CudaFailure("cuMemCreate: error 2")
        content = ctypes.create_string_buffer(-(-size // 4096) * 4096)
        self.maps[ctypes.addressof(content)] = content
        return ctypes.addressof(content), len(content)

    def unmap(self, address: int, size: int) -> None:
        del self.maps[address]

    def fill(self, address: int, byte: int, size: int) -> None:
        ctypes.memset(address, byte, size)

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def settle(self) -> None:
        if self.is_broken:
            raise CudaFailure("cuCtxSynchronize: error 700")


def test_a_block_is_poisoned_and_ends_with_its_mapping() -> None:
    memory = FencedMemory(host := HostMemory())
    for size, slack in ((64, 0), (4096, 0), (5, 11), (4100, 12)):
        address = memory.allocate(size)
        assert address is not None and ctypes.string_at(address, size) == bytes([POISON]) * size
        start, content = list(host.maps.items())[-1]
        assert address + size + slack == start + len(content)
    assert memory.given == 4 and not memory.look()


def test_what_is_written_beside_a_block_is_told() -> None:
    memory = FencedMemory(HostMemory())
    address = memory.allocate(20)
    assert address is not None
    ctypes.memset(address, 0, 20)
    assert memory.look() == []
    ctypes.memset(address + 20, 0, 1)
    assert memory.look() == ["something was written behind a tensor of 20 bytes"]
    ctypes.memset(address - 1, 0, 1)
    assert memory.look()[0] == "something was written before a tensor of 20 bytes"


def test_a_block_serves_once_in_a_run_and_is_poisoned_again() -> None:
    memory = FencedMemory(HostMemory())
    first = memory.allocate(32)
    assert first is not None
    ctypes.memset(first, 0, 32)
    memory.free(first)
    assert memory.allocate(32) != first
    memory.look()
    assert memory.allocate(32) == first and ctypes.string_at(first, 32) == bytes([POISON]) * 32


def test_another_poison_holds_for_what_is_given_from_then_on() -> None:
    memory = FencedMemory(HostMemory())
    first = memory.allocate(20)
    memory.poison = OTHER_POISON
    second = memory.allocate(20)
    assert first is not None and ctypes.string_at(first, 20) == bytes([POISON]) * 20
    assert second is not None and ctypes.string_at(second, 20) == bytes([OTHER_POISON]) * 20
    assert memory.look() == []
    ctypes.memset(second + 20, POISON, 1)
    assert memory.look() == ["something was written behind a tensor of 20 bytes"]


def test_large_blocks_are_given_back() -> None:
    memory = FencedMemory(host := HostMemory())
    for size in (17 << 20, 1 << 20):
        memory.free(memory.allocate(size))
    memory.look()
    assert [len(content) for content in host.maps.values()] == [1 << 20]


def test_what_cannot_be_had_is_noted_and_a_broken_device_told() -> None:
    memory = FencedMemory(host := HostMemory())
    assert memory.allocate(1 << 26) is None and memory.problems == ["cuMemCreate: error 2"]
    host.is_broken = True
    with pytest.raises(CudaFailure, match="error 700"):
        memory.look()


def test_the_runtime_calls_it_by_addresses() -> None:
    options = FencedMemory(HostMemory()).provider_options()
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
    address = allocate(64)
    assert address
    free(address)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = c_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("stub") / "libcuda.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, STUB], check=True)
    return str(path)


def test_the_driver_maps_memory_with_nothing_behind_it(stub: str) -> None:
    driver = Driver(stub)
    address, size = driver.map(70_000)
    assert size == 1 << 17
    driver.fill(address, 7, size)
    assert driver.read(address + size - 3, 3) == b"\7\7\7" and driver.read(address + size, 0) == b""
    driver.unmap(address, size)
    with pytest.raises(CudaFailure, match="cuModuleGetFunction: error"):
        driver.call("cuModuleGetFunction", ctypes.byref(ctypes.c_void_p()), None, b"other")


@pytest.mark.parametrize(("offset", "code"), [(0, 0), (60, 0), (64, -signal.SIGSEGV)])
def test_a_read_past_the_end_is_caught(stub: str, offset: int, code: int) -> None:
    program = f"from tools.fuzz.fence import Driver, trip; assert trip(Driver({stub!r}), ({offset},)) == [0]"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code


def test_a_machine_without_a_driver_is_told_so() -> None:
    with pytest.raises(CudaFailure, match="no CUDA driver"):
        Driver("libnone.so.1")
