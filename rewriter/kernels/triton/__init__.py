"""Triton source from graph-defined kernels."""

from rewriter.kernels.triton.codegen import LaunchSource, Source, generate
from rewriter.kernels.triton.scalar import NotGenerated

__all__ = ["LaunchSource", "NotGenerated", "Source", "generate"]
