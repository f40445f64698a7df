"""The sources of a candidate's values: the output of a node, or an input or constant, behind all identities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mugraph.graph import Graph, Node
from mugraph.onnx.fold import Folder
from mugraph.onnx.model import Model
from mugraph.ops import get_operator
from mugraph.terms.shape import Undecided

__all__ = ["Leaf", "NodeOutput", "Source", "ValueSources"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that no node of the written model computes: an input or a constant."""

    value: int


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """One output of a node."""

    node: Node
    index: int

    @property
    def value(self) -> int:
        """The value that the node was made for at this output; substitutions may have the output compute others, too."""
        return self.node.values[self.index]


Source = Leaf | NodeOutput


class ValueSources:
    """Says which output, input or constant each value of one candidate is, and folds what depends on constants alone.

    Several values may be one output, where a substitution computes them by one node.

    Attributes:
        modified: whether the candidate is another graph than the file's.
    """

    def __init__(self, model: Model, graph: Graph) -> None:
        self.graph, self.tables, self.plainer = graph, model.tables, model.plainer
        self.modified = graph.definitions is not model.as_it_came.definitions
        self.folder = Folder(model, graph)
        self.sources: dict[int, Source] = {}
        self.folded: dict[NodeOutput, np.ndarray | None] = {}

    def of(self, value: int) -> Source:
        """Follows the identities that substitutions made, and nodes read as such; those of the file are nodes like others."""
        source = self.sources.get(value)
        if source is None:
            source = self.sources[value] = self._followed(value)
        return source

    def _followed(self, value: int) -> Source:
        while True:
            definition = self.graph.definition(value)
            if definition is None or (self.modified and value in self.tables.constants):
                return Leaf(value)
            node, index = definition
            is_plainer = self.modified and node.origin in self.plainer
            if node.op != "Identity" or (node.origin is not None and value in node.values and not is_plainer):
                return NodeOutput(node, index)
            value = node.inputs[0]

    def node_of(self, value: int) -> Node | None:
        """The node that computes a value; ``None`` for inputs and constants."""
        source = self.of(value)
        return source.node if isinstance(source, NodeOutput) else None

    def value_of(self, value: int) -> np.ndarray | None:
        """The array of a value that is a constant of the file, or that a substitution computes of such."""
        source = self.of(value)
        if isinstance(source, NodeOutput):
            return self.constant_of(source)
        constant = self.tables.constants.get(source.value)
        return None if constant is None else constant.load()

    def constant_of(self, source: Source) -> np.ndarray | None:
        """The array that a substitution computes from constants; ``None`` where it is left to the runtime.

        That is so where the array would make the file grow and the runtime makes it when it loads the model. What nodes compute
        that a substitution's operator takes as an initializer only is an initializer, also where these are the file's own.

        Raises:
            Undecided: what has to be an initializer cannot be computed here.
        """
        if isinstance(source, Leaf) or not self.tables.constant[source.value]:
            return None
        if source not in self.folded:
            self.folded[source] = self._folded(source)
        return self.folded[source]

    def _folded(self, source: NodeOutput) -> np.ndarray | None:
        folder, value = self.folder, source.value
        if source.node in self._stored:
            array = folder.fold(value)
            if array is None:
                raise Undecided("what onnxruntime takes as an initializer only cannot be computed before it runs")
            return array
        if source.node.origin is not None or (folder.widens(value) and folder.is_made_on_loading(value)):
            return None
        return folder.fold(value)

    @cached_property
    def _stored(self) -> frozenset[Node]:
        """The nodes whose outputs nodes of substitutions take as initializers only."""
        made = [node for node in self.graph.nodes() if node.origin is None] if self.modified else []
        operands = [node.inputs[place] for node in made for place in get_operator(node.op).runtime.stored]
        return frozenset(node for node in map(self.node_of, operands) if node is not None)
