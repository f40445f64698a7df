"""Names of values and nodes in a written model: those of the file as far as that goes, fresh ones beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mugraph.graph import Graph, Node, Tables
from mugraph.onnx.plan import EmissionPlan
from mugraph.onnx.scopes import NameSupply
from mugraph.onnx.sources import Leaf, NodeOutput, Source, ValueSources

__all__ = ["ValueNames"]


class ValueNames:
    """Gives each source of a candidate its name.

    Graph outputs, and values that subgraphs read by name, are bound: they cannot be renamed. A source bears one name, though
    several values may be it; a bound value whose source bears another name becomes an Identity.

    Args:
        tables: names of the values in the file.
        graph: the candidate.
        sources: of its values.
        plan: which nodes are written, and what they read.
        nodes: the nodes that are written, in order.
        supply: of names for values that the file does not name.

    Attributes:
        copies: each bound value that becomes an Identity, after its source.
    """

    def __init__(
        self,
        tables: Tables,
        graph: Graph,
        sources: ValueSources,
        plan: EmissionPlan,
        nodes: Collection[Node],
        supply: NameSupply,
    ) -> None:
        self.tables, self.sources, self.supply = tables, sources, supply
        bound = dict.fromkeys(graph.outputs)
        for node in nodes:
            bound.update(dict.fromkeys(plan.captures(node)))
        read = dict.fromkeys(bound)
        for node in nodes:
            read.update(dict.fromkeys(plan.operands(node)))
        self.groups: dict[Source, list[int]] = {}
        for value in read:
            self.groups.setdefault(sources.of(value), []).append(value)
        self.names: dict[Source, str] = {}
        self.copies: list[tuple[Source, int]] = []
        for source, group in self.groups.items():
            bound_here = [value for value in group if value in bound]
            bearer = self._bearer(source, group, bound_here, read)
            name = None if bearer is None else tables.names[bearer]
            self.names[source] = name or self._fresh(source)
            self.copies.extend((source, value) for value in bound_here if value != bearer)

    def _bearer(self, source: Source, group: Sequence[int], bound: Sequence[int], read: Collection[int]) -> int | None:
        """The value whose name a source bears, of those that are it; ``None`` where no name of the file is free for it."""
        if isinstance(source, Leaf) and self.tables.names[source.value] is not None:
            return source.value
        original = source.value if isinstance(source, NodeOutput) and source.node.origin is not None else None
        if bound:
            return original if original in bound else bound[0]
        if original is not None and (original in group or original not in read):
            return original
        return next((value for value in group if self.tables.names[value] is not None), None)

    def _fresh(self, source: Source) -> str:
        if isinstance(source, Leaf):
            return self.supply.fresh("constant")
        return self.supply.fresh(source.node.op + (f"_{source.index}" if source.index else ""))

    def of(self, value: int) -> str:
        """The name of a value that is read."""
        return self.names[self.sources.of(value)]

    def of_output(self, node: Node, index: int, original: str | None) -> str:
        """The name of an output; one that nobody reads keeps that of the file unless that now means another value."""
        output = NodeOutput(node, index)
        name = self.names.get(output)
        if name is not None:
            return name
        source = self.sources.of(output.value)
        if original is not None and (source not in self.groups or source == output):
            return original
        return self._fresh(output)
