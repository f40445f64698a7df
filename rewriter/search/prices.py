"""The prices of candidates under one opinion of the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from mugraph.graph import Graph, Node
from mugraph.terms.shape import DataType
from rewriter.search.executed import Change, FusingRuntime
from rewriter.search.fusions import Fusions

__all__ = ["NodeCosts", "Prices"]


class NodeCosts(Protocol):
    """Microseconds of nodes on one execution provider (:class:`rewriter.cost.model.CostModel`).

    What it says of a node may change as more is measured.
    """

    @property
    def provider(self) -> str: ...

    def cost(self, graph: Graph, node: Node) -> float:
        """Measured or estimated; asking measures nothing."""

    def estimate(self, graph: Graph, node: Node) -> float:
        """What the roofline of the device says of it, whatever was measured."""

    def least_of_kernels(self) -> Callable[[Graph, Iterable[int]], float]:
        """What no graph-defined kernel takes less than that reads and makes some values of a graph, whatever it computes."""

    def least_of_products(self) -> Callable[[Graph, Node, DataType], float]:
        """What no graph-defined kernel takes less than that multiplies what a node multiplies, of operands of an element type."""


class Prices:
    """One opinion: each node is asked for once, and keeps its price. Another opinion is another object.

    Args:
        costs: asked for the prices of nodes.
        fusions: what the runtime may fuse by itself.

    Attributes:
        runtime: fuses what saves most by these prices.
    """

    def __init__(self, costs: NodeCosts, fusions: Fusions) -> None:
        self.costs = costs
        self.runtime = FusingRuntime(fusions, self.cost)
        self._prices: dict[Node, float] = {}

    def cost(self, graph: Graph, node: Node) -> float:
        """Microseconds of a node."""
        price = self._prices.get(node)
        if price is None:
            price = self._prices[node] = self.costs.cost(graph, node)
        return price

    def estimate(self, graph: Graph, node: Node) -> float:
        """Microseconds of a node by the roofline alone."""
        return self.costs.estimate(graph, node)

    def total(self, graph: Graph) -> float:
        """Microseconds of all nodes of a graph; the sum does not depend on an order."""
        return math.fsum(self.cost(graph, node) for node in graph.references)

    def difference(self, graph: Graph, change: Change) -> float:
        """Microseconds by which a change makes a graph dearer.

        Args:
            graph: after the change.
            change: the nodes that came and went.
        """
        return math.fsum(self.cost(graph, node) * count for node, count in change.items())
