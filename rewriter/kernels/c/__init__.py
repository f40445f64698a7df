"""Block graphs as C: text, and shared objects of it."""

from rewriter.kernels.c.codegen import CSource, generate

__all__ = ["CSource", "generate"]
