"""``onnx-superopt --verify``: whether the compiled kernels of a file are what their μGraphs say."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from mugraph.console import shown
from mugraph.files import Scratch
from rewriter.kernels.c.objects import ObjectCompiler
from rewriter.kernels.triton.compile import Compiler
from rewriter.kernels.verify import Compilers, Rebuilding, verify

__all__ = ["print_verdicts"]

_EXIT = {Rebuilding.EQUAL: 0, Rebuilding.DIFFERENT: 1, Rebuilding.UNKNOWN: 2}


def print_verdicts(model: Path, console: Console) -> int:
    """Verifies a file and prints a line a kernel.

    Returns:
        the exit code: 0 where all are equal, 1 where some are different, 2 where some cannot be compared here.

    Raises:
        ModelError: the file cannot be read.
    """
    with Scratch() as scratch, Compiler(scratch.path / "triton") as triton:
        verified = verify(model, Compilers(triton, ObjectCompiler(scratch.path / "objects")))
    for kernel in verified:
        nodes = f"{kernel.nodes} node{'s' if kernel.nodes > 1 else ''}"
        targets = f", {', '.join(kernel.targets)}" if kernel.targets else ""
        reason = f": {kernel.reason}" if kernel.reason else ""
        told = shown(f"{kernel.label}, {nodes}{targets}{reason}")
        console.print(f"{kernel.verdict.value:<15}{told}", soft_wrap=True, highlight=False)
    if not verified:
        console.print(f"{shown(str(model))}: no compiled kernels in it", soft_wrap=True, highlight=False)
    verdicts = {kernel.verdict for kernel in verified}
    return next((_EXIT[v] for v in (Rebuilding.DIFFERENT, Rebuilding.UNKNOWN) if v in verdicts), 0)
