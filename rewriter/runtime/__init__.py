"""The run-time side of custom kernels: a small C library that stock onnxruntime loads.

A model with custom kernels runs anywhere without it, through the plain ONNX bodies that it carries; with it the kernels run that
were compiled for the GPU or the processor at hand.
"""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import Any

__all__ = ["CPU_ONLY", "RuntimeLibraryError", "is_built", "library_path", "register"]

CPU_ONLY = ("onnx_superopt.provider", "cpu")
"""Entry of a session's configuration by which the library leaves kernels for GPUs to their bodies."""


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


def register(options: Any, *, cpu_only: bool = False) -> None:
    """Makes sessions created with these ``onnxruntime.SessionOptions`` run custom kernels: native code that models carry.

    What is for a GPU runs through its body where there is no CUDA driver, what is for processors where this one is older than
    x86-64-v3.

    Args:
        cpu_only: kernels for GPUs run through their bodies in any case. A session without the CUDA provider on a machine that has
            a GPU needs this to run a model that holds such.

    Raises:
        RuntimeLibraryError: the library is missing, the CUDA driver does not start, or no kernel can run here.
    """
    path = library_path()
    if cpu_only:
        options.add_session_config_entry(*CPU_ONLY)
    try:
        options.register_custom_ops_library(str(path))
    except Exception as problem:  # onnxruntime raises several types
        raise RuntimeLibraryError(f"{path}: {problem}") from None
