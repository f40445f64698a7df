"""Parts of a batch that are equal are computed once.

What a model for batches makes consists of as many parts, along the first axis, as there are texts or images, and most operators
make a part of the same part of their operands alone. So where inputs repeat some, tensors hold the different ones, until an
operator comes that may look at others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains import Unsupported
from mugraph.domains.base import Domain
from mugraph.graph import Node
from mugraph.onnx import Model
from mugraph.ops import get_operator, traits_of
from mugraph.ops.forms import AttrMap
from mugraph.ops.traits import ImageRole, Movement
from mugraph.terms.shape import Dim, shape_at
from rewriter.reference.blocks import Fitted, is_blockwise
from rewriter.reference.nodes import attributes

__all__ = ["Repeats", "few_parts", "keeps_parts_apart"]

_Shape = tuple[int, ...]
_DIFFERENT = 2
"""Parts of inputs that repeat some: the first, of which all floats may be negative, and another one."""
_IMAGES = (ImageRole.WINDOW, ImageRole.GLOBAL, ImageRole.CHANNELS)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which parts of the inputs are equal, along their first axes.

    Attributes:
        which: for each part the number of the one that it is, of the different ones in their order.
    """

    which: tuple[int, ...]

    @staticmethod
    def of(feed: Mapping[str, np.ndarray]) -> Repeats | None:
        """``None`` where no part repeats another in all inputs, or where these have not as many parts as each other."""
        arrays = [np.asarray(array) for array in feed.values() if np.ndim(array)]
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1 or any(array.dtype.hasobject for array in arrays):
            return None
        parts = [tuple(array[i].tobytes() for array in arrays) for i in range(*lengths)]
        numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
        return Repeats(tuple(numbers[part] for part in parts)) if len(numbers) < len(parts) else None

    @property
    def different(self) -> int:
        """How many there are."""
        return max(self.which) + 1

    def fits(self, shape: _Shape) -> bool:
        """Whether a tensor of this shape consists of as many parts, each of which follows the other."""
        return bool(shape) and shape[0] > 0 and shape[0] % len(self.which) == 0

    def once(self, array: np.ndarray) -> np.ndarray:
        """The different parts."""
        each = len(array) // len(self.which)  # no -1, which beside a 0 is no number
        parts = array.reshape(len(self.which), each, *array.shape[1:])
        different = parts[[self.which.index(number) for number in range(self.different)]]
        return different.reshape(self.different * each, *array.shape[1:])

    def whole(self, array: np.ndarray) -> np.ndarray:
        """All parts, of the different ones."""
        parts = array.reshape(self.different, len(array) // self.different, *array.shape[1:])
        return parts[list(self.which)].reshape(self.length(array.shape))

    def length(self, shape: _Shape) -> _Shape:
        """The shape of all parts, of that of the different ones."""
        return (shape[0] // self.different * len(self.which), *shape[1:])

    def computed(
        self, node: Node, attrs: AttrMap, operands: Sequence[Any], held: Sequence[bool], shape: _Shape | None, domain: Domain
    ) -> Sequence[Any] | None:
        """The different parts of a node's results; ``None`` where it needs operands, or makes something, of all parts.

        Args:
            held: which operands are different parts.
            shape: of the first result, all parts together, where it is known.
            domain: to compute in.
        """
        shapes = [np.shape(operand) for operand in operands]
        if keeps(node, attrs, shapes, held):
            with suppress(Unsupported):
                return get_operator(node.op).run(domain, attrs, operands)
            return None
        if shape is None or not self.fits(shape) or not _moves(node, shapes, held, shape, len(self.which)):
            return None
        made = (shape[0] // len(self.which) * self.different, *shape[1:])
        is_view = traits_of(node.op).movement is Movement.VIEW
        return [operands[0].reshape(made) if is_view else np.broadcast_to(operands[0], made)]


def keeps(node: Node, attrs: AttrMap, shapes: Sequence[_Shape], held: Sequence[bool]) -> bool:
    """Whether each part of a node's results is what the node makes of that part of the operands that consist of parts.

    Args:
        shapes: of the operands.
        held: which operands consist of parts.
    """
    if not any(held):
        return False
    if is_blockwise(node):
        fitted = Fitted.of(node, attrs, node.inputs, shapes)
        if fitted is not None:
            return fitted.keeps_parts(shapes, held)
    traits, rank = traits_of(node.op), len(shapes[0])
    alone = held[0] and not any(held[1:])  # the first operand, and no other, consists of parts
    if node.op == "MatMul":
        return alone and rank >= 2 and len(shapes[1]) == 2
    if node.op == "Gemm":
        return alone and not attrs["transA"] and all(len(shape) < 2 or shape[0] == 1 for shape in shapes[2:])
    if traits.movement is Movement.LOOKUP:
        rows = list(held) == [False, True] and attrs["axis"] == -rank
        return node.op == "Gather" and (rows or (alone and attrs["axis"] != -rank))
    if traits.reduction is not None and traits.image is None:
        return alone and -rank not in attrs["axes"]
    if traits.movement is Movement.PERMUTATION:
        return alone and (len(attrs["perm"]) < rank or attrs["perm"][0] == 0)
    if traits.movement is Movement.CONCATENATION:
        return all(held) and attrs["axis"] != -rank
    if traits.movement is Movement.PART:
        axes = attrs["axes"] if "axes" in attrs else [attrs["axis"]]
        return alone and len(held) == 1 and -rank not in axes
    return alone and traits.image in _IMAGES


def _moves(node: Node, shapes: Sequence[_Shape], held: Sequence[bool], shape: _Shape, parts: int) -> bool:
    """Whether a node, whose result is of some shape, gives parts another shape, or repeats what is the same for each.

    Args:
        parts: that there are, all together.
    """
    if not shapes:
        return False
    if traits_of(node.op).movement is Movement.VIEW:
        return list(held) == [True]
    if node.op != "Expand":
        return False
    is_whole = len(shapes[0]) == len(shape)
    return is_whole if held[0] else shape[0] == parts and not (is_whole and shapes[0][0] != 1)


def keeps_parts_apart(model: Model, sizes: Mapping[str, Dim]) -> int:
    """Of how many parts all inputs and outputs of a model consist of which each is made of one of the others' alone; else 0.

    Args:
        sizes: of dimension symbols.
    """
    shapes: dict[int, _Shape | None] = {}

    def shape_of(value: int) -> _Shape | None:
        if value not in shapes:
            shapes[value] = shape_at(model.graph.type(value), sizes)
        return shapes[value]

    inputs = [shape_of(model.values[name]) for name in model.inputs]
    lengths = {shape[0] for shape in inputs if shape}
    if len(lengths) != 1 or None in inputs:
        return 0
    (parts,) = lengths
    held = {model.values[name] for name, shape in zip(model.inputs, inputs, strict=True) if shape}
    repeats = Repeats(tuple(range(parts)))
    for node in model.graph.nodes():
        made, operands = shape_of(node.values[0]), [shape_of(value) for value in node.inputs]
        flags, attrs = [value in held for value in node.inputs], attributes(node, sizes)
        known = [shape for shape in operands if shape is not None]
        if attrs is None or made is None or len(known) < len(operands):
            if any(flags):
                return 0
        elif keeps(node, attrs, known, flags) or (repeats.fits(made) and _moves(node, known, flags, made, parts)):
            held.update(node.values)
        elif any(flags):
            return 0
    return parts if all(value in held for value in model.graph.outputs) else 0


def few_parts(feed: Mapping[str, np.ndarray], parts: int) -> Mapping[str, np.ndarray]:
    """Inputs of which only the first two parts of a batch are different: the others are the second one.

    Args:
        parts: that inputs of the measured sizes have, of :func:`keeps_parts_apart`; those that have others stay as they are.
    """
    if parts <= _DIFFERENT or any(np.ndim(array) and len(array) != parts for array in feed.values()):
        return feed
    which = np.minimum(np.arange(parts), _DIFFERENT - 1)
    return {name: array[which] if np.ndim(array) else array for name, array in feed.items()}
