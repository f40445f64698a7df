"""Cones of a model graph: k-feasible cuts, bottom-up, as technology mapping enumerates them.

A cut of a value is a set of values, its leaves, that determines it; the cone is what lies between. Cuts of a node are unions
of cuts of its operands (Mishchenko, Cho, Chatterjee, Brayton, "Improvements to Technology Mapping for LUT-Based FPGAs",
TCAD 2007, sections II and III); where there are too many, the cheapest are kept (their priority cuts). A constant of one
element is no leaf: it stays in the cone as a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, const, var
from rulegen.candidate import operator_count

__all__ = ["Cone", "Cutting", "cone", "cones", "number", "shortest", "whole"]


@dataclass(frozen=True)
class Cutting:
    """Limits of the enumeration.

    Attributes:
        leaves: greatest number of leaves of a cut.
        whole: greatest number of leaves of a model that is a cone as a whole.
        operators: greatest number of operators of a cone.
        cuts: cuts kept for each value.
        outputs: greatest number of outputs of a cone: values of it that are read from outside become further outputs.
        depth: values that look alike so many operators upwards are looked at once.
    """

    leaves: int = 6
    whole: int = 8
    operators: int = 26
    cuts: int = 1200
    outputs: int = 2
    depth: int = 16


@dataclass(frozen=True)
class Cone:
    """A piece of a model as terms over its leaves.

    Attributes:
        roots: its outputs, the one that the cut was made for first.
        types: of the leaves, as they are in the model.
    """

    roots: tuple[Term, ...]
    types: dict[str, TensorType]

    @property
    def operators(self) -> int:
        """Distinct operator applications."""
        return operator_count(self.roots)


_Cut = tuple[frozenset[int], frozenset[int]]
"""Leaves and the positions of the nodes of the cone."""
_NOTHING: _Cut = (frozenset(), frozenset())


def number(graph: Graph, value: int) -> float | bool | None:
    """The number that a one-element constant is; ``None`` for other values."""
    type_ = graph.type(value)
    if type_ is None or value not in graph.tables.constants or any(d != 1 for d in type_.shape):
        return None
    array = graph.tables.small_constant(value, 1)
    if array is None or (type_.dtype != DataType.BOOL and type_.dtype not in FLOATS):
        return None
    item = np.asarray(array).reshape(())
    return bool(item) if type_.dtype == DataType.BOOL else shortest(item)


def shortest(item: np.ndarray | np.floating[Any]) -> float:
    """The number with the fewest digits that rounds to this one in its own type: 0.1, not 0.10000000149."""
    return float(str(item.astype(item.dtype if item.dtype in (np.float16, np.float64) else np.float32)))


def cones(graph: Graph, limits: Cutting | None = None) -> Iterator[Cone]:
    """The cones of a model whose inner values are read inside only, or are further outputs, smallest first for each root."""
    limits = limits or Cutting()
    nodes = list(graph.nodes())
    cuts = _cuts(graph, nodes, limits)
    seen_roots: set[int] = set()
    looks = _looks(graph, nodes, limits.depth)
    for node in nodes:
        for value in node.values:
            if value not in cuts or looks[value] in seen_roots or not graph.is_live(value):
                continue
            seen_roots.add(looks[value])
            for leaves, inside in sorted(cuts[value], key=lambda cut: (len(cut[1]), len(cut[0]))):
                if not inside:
                    continue
                outputs = _outputs(graph, value, inside)
                if len(outputs) <= limits.outputs:
                    yield cone(graph, outputs, leaves)


def whole(graph: Graph) -> Cone:
    """A model as one cone, over its inputs and its constants of more than one element. It must have no opaque node."""
    return cone(graph, graph.outputs, frozenset())


def _cuts(graph: Graph, nodes: Sequence[Node], limits: Cutting) -> dict[int, list[_Cut]]:
    """The cuts of every value that a node computes, its own first."""
    cuts: dict[int, list[_Cut]] = {}

    def of(value: int) -> list[_Cut]:
        if number(graph, value) is not None:
            return [_NOTHING]
        return cuts.get(value, [(frozenset((value,)), frozenset())])

    for node in nodes:
        if node.is_opaque or any(graph.type(v) is None for v in (*node.inputs, *node.values)):
            continue
        merged: set[_Cut] = {_NOTHING}
        for operand in dict.fromkeys(node.inputs):
            merged = {
                (a | c, b | d)
                for a, b in merged
                for c, d in of(operand)
                if len(a | c) <= limits.leaves and len(b | d) < limits.operators
            }
        further = [(leaves, inside | {node.index}) for leaves, inside in merged]
        further = [cut for cut in further if _is_cut(graph, *cut)]
        further.sort(key=lambda cut: (len(cut[0]), len(cut[1]), sorted(cut[0])))
        for value in node.values:
            cuts[value] = [(frozenset((value,)), frozenset()), *further[: limits.cuts]]
    return cuts


def _is_cut(graph: Graph, leaves: frozenset[int], inside: frozenset[int]) -> bool:
    """Whether no leaf is computed inside, as happens where two operands were cut at different heights."""
    made = {value for index in inside for value in graph.tables.nodes[index].values}
    return leaves.isdisjoint(made)


def _outputs(graph: Graph, root: int, inside: frozenset[int]) -> list[int]:
    """The root, then the inner values that are read from outside, but for those that depend on constants alone."""
    outputs = [root]
    for index in sorted(inside):
        for value in graph.tables.nodes[index].values:
            readers = graph.users.get(value, frozenset())
            escapes = value in graph.outputs or any(reader.index not in inside for reader in readers)
            if value != root and escapes and not graph.tables.constant[value]:
                outputs.append(value)
    return outputs


def _looks(graph: Graph, nodes: Sequence[Node], depth: int) -> dict[int, int]:
    """Per value a number that is equal for values computed alike, so many operators upwards."""
    values = {v for node in nodes for v in (*node.inputs, *node.values)}
    looks = {v: hash((str(graph.type(v)), number(graph, v), graph.tables.constant[v])) for v in values}
    for _ in range(depth):
        deeper = dict(looks)
        for node in nodes:
            operands = tuple(looks[v] for v in node.inputs)
            for out, value in enumerate(node.values):
                used = len(graph.users.get(value, ())) + (value in graph.outputs)
                deeper[value] = hash((node.op, repr(node.attrs), out, operands, min(used, 2)))
        looks = deeper
    return looks


def cone(graph: Graph, outputs: Sequence[int], leaves: frozenset[int]) -> Cone:
    """The cone between leaves and outputs; model inputs and constants that are no numbers are leaves too."""
    terms: dict[int, Term] = {}
    types: dict[str, TensorType] = {}
    stack = list(reversed(outputs))
    while stack:
        value = stack[-1]
        if value in terms:
            stack.pop()
            continue
        literal = number(graph, value)
        if literal is not None and value not in leaves:
            terms[value] = const(literal)
            continue
        definition = graph.definition(value)
        if value in leaves or definition is None:
            type_ = graph.type(value)
            assert type_ is not None
            terms[value] = var(f"x{len(types)}")
            types[f"x{len(types)}"] = type_
            continue
        node, out = definition
        missing = [operand for operand in node.inputs if operand not in terms]
        if missing:
            stack.extend(reversed(missing))
        else:
            terms[value] = Term(node.op, node.attrs, tuple(terms[v] for v in node.inputs), out)
    return Cone(tuple(terms[v] for v in outputs), types)
