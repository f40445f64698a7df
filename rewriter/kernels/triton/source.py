"""Triton source of a kernel: a module, and what is needed to compile and launch its functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rewriter.runtime.plan import Argument, Expression, Output

__all__ = ["APART", "OVERLAPPED", "LaunchSource", "Source"]

OVERLAPPED = "overlapped"
"""The last parameter of every function, a constant: whether it may start while the launch before it still runs."""
APART = "apart"
"""The parameter that is 0 where all buffers that a function updates are those that it reads."""


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """One launch: what is needed to compile its function and to fill a :class:`rewriter.runtime.plan.Launch`.

    Attributes:
        function: its name in the source.
        signature: parameter name to Triton type, in order; pointers are multiples of 16 bytes.
        arguments: one a parameter; the null pointers that Triton appends are not among them.
        grid: blocks in the three directions.
        warps, stages: compiler options.
    """

    function: str
    signature: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...]
    grid: tuple[Expression | int, Expression | int, Expression | int]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Source:
    """A Python module with one ``@triton.jit`` function a launch, the types of its outputs and bytes of its scratch buffers.

    Attributes:
        tables: what it reads beside the kernel's inputs, as further ones (:func:`mugraph.blocks.mask_lists.mask_tables`).
    """

    text: str
    launches: tuple[LaunchSource, ...]
    outputs: tuple[Output, ...]
    scratch: tuple[Expression | int, ...]
    tables: tuple[np.ndarray, ...] = ()
