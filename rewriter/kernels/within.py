"""The kernels that a model graph holds."""

from __future__ import annotations

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.graph import Graph

__all__ = ["kernels_of"]


def kernels_of(graph: Graph) -> list[Kernel]:
    """The graph-defined kernels of a candidate, each once, in the order of its nodes."""
    return list(dict.fromkeys(kernel_of(node.attrs) for node in graph.nodes() if node.op == KERNEL))
