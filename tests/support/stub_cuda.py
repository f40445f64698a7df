"""A stand-in for ``cuda.bindings.driver``: device memory is the host's, and a module's image says what its kernels do.

``TIMES 2 9`` doubles a float32 array and takes 9 microseconds; ``OVERLAPS 2 9`` must be launched to overlap; ``WRONG`` computes
nothing, ``DIES`` ends the process, ``REFUSED`` fails to launch, ``BREAKS`` fails and leaves the context unusable.
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
CUlaunchConfig = CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace(), numAttrs=0)
CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

_memory: dict[int, Any] = {}
_state: dict[str, Any] = {"capturing": None, "clock": 0.0, "broken": False, "shared": 0}


def _done(*values: Any) -> tuple[Any, ...]:
    return (0, *values)


def cuInit(flags: int) -> tuple[Any, ...]:
    return (100,) if os.environ.get("STUB_CUDA") == "absent" else _done()


def cuDeviceGet(number: int) -> tuple[Any, ...]:
    return _done(number)


def cuDevicePrimaryCtxRetain(device: int) -> tuple[Any, ...]:
    return _done("context")


def cuCtxSetCurrent(context: str) -> tuple[Any, ...]:
    return _done()


def cuCtxSynchronize() -> tuple[Any, ...]:
    return (700,) if _state["broken"] else _done()


def cuStreamCreate(flags: int) -> tuple[Any, ...]:
    return _done("stream")


def cuStreamSynchronize(stream: str) -> tuple[Any, ...]:
    return cuCtxSynchronize()


def cuEventCreate(flags: int) -> tuple[Any, ...]:
    return _done([0.0])


def cuMemAlloc(size: int) -> tuple[Any, ...]:
    held = ctypes.create_string_buffer(size)
    _memory[ctypes.addressof(held)] = held
    return _done(ctypes.addressof(held))


def cuMemFree(pointer: int) -> tuple[Any, ...]:
    if _state["broken"]:
        return (700,)
    del _memory[pointer]
    return _done()


def cuEventDestroy(event: Any) -> tuple[Any, ...]:
    return _done()


def cuStreamDestroy(stream: str) -> tuple[Any, ...]:
    return _done()


def cuMemcpyHtoD(target: int, source: int, size: int) -> tuple[Any, ...]:
    ctypes.memmove(target, source, size)
    return _done()


cuMemcpyDtoD = cuMemcpyDtoH = cuMemcpyHtoD


def cuMemsetD8(target: int, value: int, size: int) -> tuple[Any, ...]:
    ctypes.memset(target, value, size)
    return _done()


def cuModuleLoadData(image: bytes) -> tuple[Any, ...]:
    return _done(image.decode())


def cuModuleGetFunction(module: str, name: bytes) -> tuple[Any, ...]:
    return _done(module)


def cuFuncSetAttribute(function: str, attribute: int, value: int) -> tuple[Any, ...]:
    _state["shared"] = value
    return _done()


def cuLaunchKernelEx(config: Any, function: str, parameters: Any, extra: int) -> Any:
    if config.sharedMemBytes > max(48 << 10, _state["shared"]):
        return (1,)
    overlapped = [a.value.programmaticStreamSerializationAllowed for a in config.attrs if a.id == 6] if config.numAttrs else []
    if overlapped != [1] * function.startswith("OVERLAPS"):
        return (1,)
    if _state["capturing"] is not None:
        _state["capturing"].append(function)
        return _done()
    verb, *rest = function.split()
    if verb == "DIES":
        os._exit(9)
    if verb in ("REFUSED", "BREAKS"):
        _state["broken"] = verb == "BREAKS"
        return (701,)
    values, _ = parameters
    if verb in ("TIMES", "OVERLAPS"):
        source, target = (_memory[pointer] for pointer in values[:2])
        count = len(source) // 4
        given, made = ((ctypes.c_float * count).from_buffer(held) for held in (source, target))
        for i in range(count):
            made[i] = float(rest[0]) * given[i]
    return _done()


def cuStreamBeginCapture(stream: str, mode: int) -> tuple[Any, ...]:
    _state["capturing"] = []
    return _done()


def cuStreamEndCapture(stream: str) -> tuple[Any, ...]:
    graph, _state["capturing"] = _state["capturing"], None
    return _done(graph)


def cuGraphInstantiate(graph: list[str], flags: int) -> tuple[Any, ...]:
    return _done(graph)


def cuGraphLaunch(graph: list[str], stream: str) -> tuple[Any, ...]:
    _state["clock"] += sum(float(function.split()[2]) for function in graph)
    return _done()


def cuGraphExecDestroy(graph: list[str]) -> tuple[Any, ...]:
    return _done()


cuGraphDestroy = cuGraphExecDestroy


def cuEventRecord(event: list[float], stream: str) -> tuple[Any, ...]:
    event[0] = _state["clock"]
    return _done()


def cuEventSynchronize(event: list[float]) -> tuple[Any, ...]:
    return _done()


def cuEventElapsedTime(start: list[float], end: list[float]) -> tuple[Any, ...]:
    return _done((end[0] - start[0]) / 1000)
