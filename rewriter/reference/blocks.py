"""Nodes in a row that are computed block by block: what stands between them never leaves the processor's cache.

Scores of attention take hundreds of megabytes in double precision, and a function of each entry fetches and writes all of them.
So nodes are computed together whose results have axes in common along which no entry depends on what stands elsewhere: one part
of these axes after the other, with some rows of queries a whole attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mugraph.domains import Real
from mugraph.graph import Graph, Node
from mugraph.ops import get_operator, traits_of
from mugraph.ops.forms import AttrMap
from mugraph.ops.traits import RowRole
from mugraph.terms.term import attr_symbols

__all__ = ["ENTRIES", "Blocks", "Fitted", "chains", "is_blockwise"]

ENTRIES = 1 << 16
"""Of the largest value in a block: half a megabyte in double precision, of which two or three fit into a core's own cache."""
_MOST = 8
"""How many times as many it may have where it cannot be parted as often: that still is a small part of what is spared."""
_ROWS = 64
"""Of a product in a block at least: with fewer the linear algebra spends its time on laying out the other operand."""
_MATRICES = "MatMul"
"""The operator whose operands and results are stacks of matrices."""

_Shape = tuple[int, ...]
_Part = Mapping[int, slice]
"""A part of some axes, which are counted from the end."""
_Cuts = dict[int, tuple[int, int]]
"""Of some axes their sizes, and how many parts they have; the outermost first."""


def chains(graph: Graph, nodes: Sequence[Node], may: Callable[[Node], bool], made: Callable[[int], int]) -> list[list[Node]]:
    """An order of nodes, in which those that may be computed together, block by block, stand in one list.

    What does not rest on a list that others are going to join is put before that: as a mask is, which is computed where it is
    read first, between the scores and their softmax.

    Args:
        nodes: operands first.
        may: whether a node may be computed by blocks (:func:`is_blockwise`).
        made: of an operand: the value under which the node that computes it leaves it.
    """
    done: list[list[Node]] = []
    last: list[Node] = []
    values, shapes = set[int](), set[object]()
    for node in nodes:
        joins = may(node) and _is_stacked(graph, node)
        type_ = graph.type(node.values[0]) if node.values else None
        rests = any(made(value) in values for value in node.inputs) or any(attr_symbols(value) for _, value in node.attrs)
        if joins and (not last or rests or (type_ is not None and type_.shape in shapes)):
            last.append(node)
            values.update(node.values)
            shapes |= set() if type_ is None else {type_.shape}
        elif not rests and last:
            done.append([node])
        else:
            done += [last, [node]] if last else [[node]]
            last, values, shapes = [], set(), set()
    return [*done, last] if last else done


def is_blockwise(node: Node) -> bool:
    """Whether a result may have axes along which no entry depends on what stands elsewhere, as the record says."""
    if node.is_opaque or len(node.values) != 1 or not node.inputs:
        return False
    traits = traits_of(node.op)
    reduces = traits.reduction is not None and traits.image is None
    return traits.entrywise is not None or traits.rows is not None or reduces or node.op == _MATRICES


def _is_stacked(graph: Graph, node: Node) -> bool:
    """Whether a product is one of stacks of matrices: a weight takes much memory, and is not held together with others."""
    types = [graph.type(value) for value in node.inputs]
    return node.op != _MATRICES or all(type_ is not None and type_.rank > 2 for type_ in types)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A node whose operands are of known shapes.

    Attributes:
        attrs: of the node, with numbers for symbols.
        operands: the values that it reads.
        shape: of the result.
        tied: axes along which an entry of the result depends on entries that stand elsewhere.
    """

    node: Node
    attrs: AttrMap
    operands: Sequence[int]
    shape: _Shape
    tied: frozenset[int]

    @staticmethod
    def of(node: Node, attrs: AttrMap, operands: Sequence[int], shapes: Sequence[_Shape]) -> Fitted | None:
        """``None`` where the node cannot be computed by blocks, or not at all."""
        traits = traits_of(node.op)
        shape, tied = shapes[0], frozenset[int]()
        if node.op == _MATRICES:
            other = shapes[1]
            stack = _broadcast(shape[:-2], other[:-2])
            if len(shape) < 3 or len(other) < 3 or shape[-1] != other[-2] or stack is None:
                return None
            shape, tied = (*stack, shape[-2], other[-1]), frozenset({-1})
        elif traits.entrywise is not None:
            joined = _broadcast(*shapes)
            if joined is None:
                return None
            shape = joined
        elif traits.rows is not None:
            axis = attrs["axis"]
            if not -len(shape) <= axis < 0 or any(len(parameter) > -axis for parameter in shapes[1:]):
                return None
            tied = frozenset({axis} if traits.rows is RowRole.SOFTMAX else range(axis, 0))
        else:
            tied = frozenset(attrs["axes"])
            if not attrs["keepdims"] or any(not -len(shape) <= axis < 0 for axis in tied):
                return None
            shape = tuple(1 if axis in tied else size for axis, size in zip(range(-len(shape), 0), shape, strict=True))
        return Fitted(node, attrs, operands, shape, tied)

    def keeps_parts(self, shapes: Sequence[_Shape], held: Sequence[bool]) -> bool:
        """Whether, along its first axis, the result is made of what stands there in some operands, and of all of the others.

        Args:
            shapes: of the operands.
            held: which of them consist of parts along their first axes.
        """
        rank = len(self.shape)
        return -rank not in self.tied and all(
            len(shape) == rank if is_held else len(shape) < rank or shape[0] == 1
            for shape, is_held in zip(shapes, held, strict=True)
        )

    @property
    def columns(self) -> int | None:
        """The value of which every block needs whole matrices."""
        return self.operands[1] if self.node.op == _MATRICES else None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Nodes in a row, to be computed block by block.

    Attributes:
        cuts: that make the blocks.
        held: the values that they make of which only different parts are computed (:mod:`rewriter.reference.repeats`).
    """

    steps: Sequence[Fitted]
    cuts: _Cuts
    held: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """Of the blocks."""
        return math.prod(parts for _, parts in self.cuts.values())

    def _part(self, number: int) -> _Part:
        """A block."""
        part: dict[int, slice] = {}
        for axis, (size, parts) in reversed(self.cuts.items()):
            number, at = divmod(number, parts)
            part[axis] = slice(size * at // parts, size * (at + 1) // parts)
        return part

    @staticmethod
    def of(
        nodes: Sequence[Node],
        made: Callable[[int], int],
        shape_of: Callable[[int], _Shape],
        attrs_of: Callable[[Node], AttrMap | None],
        held: Collection[int] = (),
    ) -> Blocks | None:
        """The first of some nodes, as many as go together, whether or not that pays; ``None`` where the first cannot.

        What one more node asks is told from what all before it ask together, so that a row of thousands takes no longer a node.

        Args:
            made: as of :func:`chains`.
            shape_of: the shape of a value that is there.
            attrs_of: the attributes of a node; ``None`` where a number among them is not known yet.
            held: the values that are there of which only different parts are.
        """
        steps: list[Fitted] = []
        inner: dict[int, _Shape] = {}
        cuts: _Cuts = {}
        parted = set[int]()
        common = _Common()
        for node in nodes:
            attrs, operands = attrs_of(node), [made(value) for value in node.inputs]
            shapes = [inner[value] if value in inner else shape_of(value) for value in operands]
            step = None if attrs is None else Fitted.of(node, attrs, operands, shapes)
            flags = [value in held or value in parted for value in operands]
            if step is None or (any(flags) and not step.keeps_parts(shapes, flags)):
                break
            common.add(step, shapes, step.columns in inner)
            wider = common.cuts()
            if wider is None:
                break
            steps.append(step)
            parted |= set(node.values) if any(flags) else set()
            inner[node.values[0]], cuts = step.shape, wider
        return Blocks(tuple(steps), cuts, frozenset(parted)) if steps else None

    @property
    def pays(self) -> bool:
        """Whether there are several blocks, and more than a product, which the linear algebra parts by itself."""
        return self.count > 1 and (len(self.steps) > 1 or self.steps[0].columns is None)

    def compute(
        self, tensors: Mapping[int, Any], kept: Collection[int], each: Callable[[Callable[[slice], None], int], None]
    ) -> dict[int, np.ndarray]:
        """Some of the results.

        Args:
            tensors: the operands that none of these nodes makes.
            kept: the values that are results.
            each: has something done for all parts of so many blocks.
        """
        last = {value: step for step in self.steps for value in step.operands}
        domain = Real()

        def computed(part: _Part) -> dict[int, Any]:
            inner: dict[int, Any] = {}
            for step in self.steps:
                operands = [
                    inner[v] if v in inner else _cut(tensors[v], part, 2 if v == step.columns and i else 0)
                    for i, v in enumerate(step.operands)
                ]
                (result,) = get_operator(step.node.op).run(domain, step.attrs, operands)
                inner[step.node.values[0]] = result
                for value in step.operands:
                    if value in inner and last[value] is step and value not in kept:
                        del inner[value]
            return inner

        first = computed(self._part(0))  # tells the types
        results = {v: np.empty(step.shape, first[v].dtype) for step in self.steps if (v := step.node.values[0]) in kept}

        def enter(part: _Part, made: Mapping[int, Any]) -> None:
            for value, result in results.items():
                _cut(result, part, 0)[...] = made[value]

        enter(self._part(0), first)

        def fill(chosen: slice) -> None:
            for number in range(1, self.count)[chosen]:
                enter(part := self._part(number), computed(part))

        each(fill, self.count - 1)
        return results


@dataclass(slots=True)
class _Common:
    """What nodes in a row ask of the cuts that are to part all of them, one node after the other.

    Attributes:
        sizes: of each axis, counted from the end, that any of the results has; 0 where they are not the same.
        tied: axes along which nothing is parted.
        rows: whether there is a product, of which a block should have some rows.
        entries: of the largest value.
        count: of the nodes.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    tied: set[int] = field(default_factory=set)
    rows: bool = False
    entries: int = 0
    count: int = 0

    def add(self, step: Fitted, shapes: Sequence[_Shape], makes_columns: bool) -> None:
        """One more node.

        Args:
            shapes: of its operands.
            makes_columns: whether the nodes before it make that of which it needs whole matrices.
        """
        rank = len(step.shape)
        for axis in range(-max(rank, len(self.sizes)), 0):
            size = step.shape[axis] if rank >= -axis else 1
            known = self.sizes.get(axis, 1 if self.count else size)
            self.sizes[axis] = size if size == known else 0
        self.tied |= step.tied | ({-2} if makes_columns else set())
        self.rows |= step.columns is not None
        self.entries = max(self.entries, *map(math.prod, (step.shape, *(shapes if step.columns is None else shapes[:1]))))
        self.count += 1

    def cuts(self) -> _Cuts | None:
        """Those that make blocks of the nodes; ``None`` where these have too few axes in common, or there are no entries."""
        free = {axis: self.sizes[axis] for axis in sorted(self.sizes) if axis not in self.tied and self.sizes[axis] > 1}
        most = {axis: max(size // _ROWS, 1) if axis == -2 and self.rows else size for axis, size in free.items()}
        if not self.entries or self.entries > _MOST * ENTRIES * math.prod(most.values()):
            return None
        wanted, cuts = -(-self.entries // ENTRIES), _Cuts()
        for axis, size in free.items():
            cuts[axis] = size, min(most[axis], wanted)
            wanted = -(-wanted // cuts[axis][1])
        return cuts


def _cut(array: Any, part: _Part, whole: int) -> Any:
    """A part of an array, all of it along axes that it does not have or is repeated along.

    Args:
        whole: of so many last axes every entry.
    """
    rank = np.ndim(array)
    index = [part[axis] if axis in part and -axis > whole and array.shape[axis] > 1 else slice(None) for axis in range(-rank, 0)]
    return array[tuple(index)] if index else array


def _broadcast(*shapes: _Shape) -> _Shape | None:
    """The shape of what is computed entry by entry of operands of some shapes; ``None`` where they do not fit."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None
