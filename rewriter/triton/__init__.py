"""Triton source from graph-defined kernels."""

from rewriter.triton.codegen import LaunchSource, Source, generate
from rewriter.triton.scalar import NotGenerated

__all__ = ["LaunchSource", "NotGenerated", "Source", "generate"]
