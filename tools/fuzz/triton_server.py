"""Runs generated kernels in Triton's interpreter, without a GPU and without torch: a process that is asked through pipes.

Started with TRITON_INTERPRET=1 in the environment, which Triton reads when it is imported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import pickle
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_NAMES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_DTYPES = {name: getattr(tl, name) for name in _NAMES}
_ALIGNMENT = 16
"""Bytes of which addresses are multiples, as kernels may take for granted."""


class DeviceBuffer:
    """What the interpreter asks of a tensor and of its storage, over NumPy memory that is never copied."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, _DTYPES[str(array.dtype)]

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> DeviceBuffer:
        return self

    def cpu(self) -> DeviceBuffer:
        return self

    def new_empty(self, *_: Any, **__: Any) -> DeviceBuffer:
        return DeviceBuffer(self.array)

    def set_(self, storage: DeviceBuffer, *_: Any) -> DeviceBuffer:
        assert storage.array is self.array
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def copy_(self, other: DeviceBuffer) -> DeviceBuffer:
        assert other.array is self.array
        return self


def fenced(array: np.ndarray) -> np.ndarray:
    """A copy that ends, but for its alignment, where memory ends: who reads or writes further ends the process."""
    pages = -(-max(array.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + pages), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError("a page cannot be protected")
    offset = (pages - array.nbytes) // _ALIGNMENT * _ALIGNMENT
    copy = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    copy[...] = array
    return copy


_plain_splat = InterpreterBuilder.create_splat


def _splat(builder: InterpreterBuilder, *arguments: Any) -> Any:
    """A scalar as a block. What a comparison gave has the type of what was compared; of a block of that no mask is made."""
    truths = [
        TensorHandle(one.data, tl.int1) if isinstance(one, TensorHandle) and one.data.dtype == bool else one for one in arguments
    ]
    return _plain_splat(builder, *truths)


InterpreterBuilder.create_splat = _splat


def run(text: str, launches: list[tuple[str, tuple[int, int, int], list[Any]]], memory: dict[str, np.ndarray]) -> None:
    """Runs the launches; an argument is a name in ``memory`` or a number."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("generated", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        buffers = {name: DeviceBuffer(array) for name, array in memory.items()}
        for function, grid, arguments in launches:
            getattr(module, function)[grid](*(buffers[a] if isinstance(a, str) else a for a in arguments))


def main() -> None:
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            text, launches, given = pickle.load(requests)
            memory = {name: fenced(array) for name, array in given.items()}
        except EOFError:
            return
        try:
            run(text, launches, memory)
            pickle.dump(memory, replies)
        except Exception:
            pickle.dump(traceback.format_exc(), replies)
        replies.flush()


if __name__ == "__main__":
    main()
