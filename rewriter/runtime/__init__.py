"""The run-time side of custom kernels: a small C library that stock onnxruntime loads.

A model with custom kernels runs anywhere without it, through the plain ONNX bodies that it carries; with it, and with
onnxruntime's CUDA provider, the kernels run.
"""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import Any

__all__ = ["RuntimeLibraryError", "is_built", "library_path", "register"]


class RuntimeLibraryError(RuntimeError):
    """The library is not there or does not load; the message says what to do."""


def library_path() -> Path:
    """The library built at installation: what a C++, C# or Java program registers.

    Raises:
        RuntimeLibraryError: no C compiler was found when the package was installed.
    """
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).parent / f"_library{suffix}"
        if path.exists():
            return path
    raise RuntimeLibraryError(
        "the library for custom kernels was not built, because no C compiler was found when onnx-superopt was installed; "
        "install one (gcc or clang) and install onnx-superopt again; models run without it, through their plain ONNX bodies"
    )


def is_built() -> bool:
    """Whether the library was built at installation."""
    try:
        library_path()
    except RuntimeLibraryError:
        return False
    return True


def register(options: Any) -> None:
    """Makes sessions created with these ``onnxruntime.SessionOptions`` run custom kernels. Call it for CUDA sessions only.

    Raises:
        RuntimeLibraryError: the library is missing, or there is no CUDA driver.
    """
    path = library_path()
    try:
        options.register_custom_ops_library(str(path))
    except Exception as problem:  # onnxruntime raises several types
        raise RuntimeLibraryError(f"{path}: {problem}") from None
