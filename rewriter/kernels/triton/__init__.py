"""Triton source from graph-defined kernels."""

from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton.codegen import generate
from rewriter.kernels.triton.source import LaunchSource, Source

__all__ = ["LaunchSource", "NotGenerated", "Source", "generate"]
