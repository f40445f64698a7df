"""Which keys the rows of a tile may see, where entries that are loaded decide it: documents and prefixes that a run tells.

A score of -∞ adds the identity to a softmax. So a loop need not visit a tile in which all scores are -∞, whatever else goes into
them. Which tiles these are is not known before the run. What is known is a condition on a place of the loop's axis that holds
wherever a row of the tile sees the key there: numbers are equal only if that of the key lies between the least and the greatest
of the rows. The loop goes from the first tile in which it holds to the last. As with lists of tiles
(:mod:`mugraph.blocks.mask_lists`), nothing of it is in the block graph, and a proof of the graph speaks of all of its schedules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Compute, Load, Predicate, next_power
from mugraph.terms.shape import DataType, Dim, TensorType
from mugraph.terms.term import Term, const, make, var, variables

__all__ = ["FEWEST_KEYS", "End", "ShownKeys", "scanned_keys", "shown_keys"]

End = Literal["least", "most"]
"""Of a value over the rows of a tile; of truth values whether it holds for all of them, or for some."""
_ORDERS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_INTEGERS = (DataType.INT32, DataType.INT64)
_HIDDEN = const(-math.inf)
FEWEST_KEYS = 512
"""Of a loop, or of a part of it, from which on a block looks at them first: of fewer it has visited all in the same time."""
_PER_THREAD = 16
"""Keys that a thread looks at together."""


@dataclass(frozen=True)
class ShownKeys:
    """A condition on a place of the loop's axis: where it does not hold, no row of a tile sees the key.

    Attributes:
        term: a thread graph over values of the loop, and over the names in ``ends``.
        ends: by name a value of the rows, which the loop does not change, or a predicate, and whether the least or the greatest
            over the rows of the tile is meant.
    """

    term: Term
    ends: Mapping[str, tuple[str, End]]

    @property
    def keys(self) -> tuple[str, ...]:
        """The values of the loop that the condition asks."""
        return tuple(leaf.name for leaf in variables([self.term]) if leaf.name not in self.ends)


def shown_keys(block: Block, schedule: Schedule, types: Mapping[str, TensorType]) -> ShownKeys | None:
    """What has to hold of a key that a row of a tile sees; ``None`` where that asks nothing of rows and keys together.

    What hides keys from all rows alike, as padding does, is looked at only beside such a condition: on its own it spares tiles at
    the ends of a batch, and looking for them costs what a batch without padding does not get back.

    Args:
        types: of the kernel's tensors.
    """
    accumulators = block.accumulators
    if len(accumulators) != 1 or accumulators[0].monoid != "softmax":
        return None
    if any(block.phases[store.value] == "loop" for store in block.stores):
        return None
    reader = _Reader(block, schedule, types)
    parts = [part for part in map(reader.some, reader.conditions(var(accumulators[0].operands[0]))) if part is not None]
    if not any(reader.relates(part) for part in parts):
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = make("And", [whole, part])
    return ShownKeys(whole, {leaf.name: reader.ends[leaf.name] for leaf in variables([whole]) if leaf.name in reader.ends})


def scanned_keys(schedule: Schedule, keys: Dim) -> int:
    """How many of so many keys a block looks at together before its loop, a power of two."""
    most = _PER_THREAD * 32 * schedule.warps
    return min(next_power(keys), most) if isinstance(keys, int) else most


class _Reader:
    """Reads conditions off the thread graphs of a block.

    Attributes:
        ends: those that were asked for, by the names of their variables.
    """

    def __init__(self, block: Block, schedule: Schedule, types: Mapping[str, TensorType]) -> None:
        self._block, self._types = block, types
        self._cut = {axis for axis in block.grid if schedule.tile(axis) > 1}
        self.ends: dict[str, tuple[str, End]] = {}

    def conditions(self, scores: Term) -> list[Term]:
        """Truth values of which each has to hold where scores are not -∞, other numbers being finite."""
        if scores.is_var:
            defined = self._block.defined[scores.name]
            return self.conditions(defined.term) if isinstance(defined, Compute) else []
        if scores.op == "Where":
            condition, shown, other = scores.inputs
            if other is _HIDDEN:
                return [condition, *self.conditions(shown)]
            return [make("Not", [condition]), *self.conditions(other)] if shown is _HIDDEN else []
        if scores.op == "Add":
            return [condition for operand in scores.inputs for condition in self.conditions(operand)]
        if scores.op in ("Sub", "Cast") or (scores.op in ("Mul", "Div") and _is_positive(scores.inputs[1])):
            return self.conditions(scores.inputs[0])
        if scores.op == "Mul" and _is_positive(scores.inputs[0]):
            return self.conditions(scores.inputs[1])
        return []

    def relates(self, condition: Term) -> bool:
        """Whether a condition is about rows and about what is loaded of keys."""
        names = [leaf.name for leaf in variables([condition])]
        return any(name in self.ends for name in names) and any(name not in self.ends for name in names)

    def some(self, condition: Term) -> Term | None:
        """What holds of a key wherever the condition does for some row; ``None`` where nothing is known."""
        return self._over(condition, "most")

    def _over(self, condition: Term, end: End) -> Term | None:
        """What holds wherever a condition does for some row, or only where it does for all; ``None`` for always, or never."""
        if condition.is_var:
            return self._truth(condition, end)
        if condition.op == "Not":
            inner = self._over(condition.inputs[0], "least" if end == "most" else "most")
            return None if inner is None else make("Not", [inner])
        if condition.op in ("And", "Or"):
            parts = [part for part in (self._over(operand, end) for operand in condition.inputs) if part is not None]
            is_decided = (condition.op == "And") == (end == "most")  # by any one of them
            if not parts or (len(parts) < 2 and not is_decided):
                return None
            return parts[0] if len(parts) < 2 else make(condition.op, parts)
        if condition.op == "Equal" or condition.op in _ORDERS:
            first, second = map(self._extent, condition.inputs)
            if first is None or second is None:
                return None
            return _compared(condition.op, first, second, end)
        return None

    def _truth(self, value: Term, end: End) -> Term | None:
        defined = self._block.defined[value.name]
        if isinstance(defined, Compute):
            return self._over(defined.term, end)
        if isinstance(defined, Predicate):
            indices = [index for condition in defined.conditions for index, _ in condition.terms]
            is_plain = all(index.plain and index.axis in (*self._block.grid, self._block.loop) for index in indices)
            return self._end(value.name, end) if is_plain else None
        if isinstance(defined, Load) and self._types[defined.tensor].dtype == DataType.BOOL:
            return self._loaded(value, end)
        return None

    def _extent(self, number: Term) -> tuple[Term, Term] | None:
        """The least and the greatest of an integer over the rows, the same for one of keys; ``None`` where that is not known."""
        if number.op == "Const":
            return number, number
        if number.op == "Cast" and number.attr("to") == DataType.INT64:
            inner = self._extent(number.inputs[0])
            return None if inner is None else (make("Cast", [inner[0]], number.attrs), make("Cast", [inner[1]], number.attrs))
        defined = self._block.defined[number.name] if number.is_var else None
        if not isinstance(defined, Load) or self._types[defined.tensor].dtype not in _INTEGERS:
            return None
        least, most = self._loaded(number, "least"), self._loaded(number, "most")
        return None if least is None or most is None else (least, most)

    def _loaded(self, value: Term, end: End) -> Term | None:
        """A value of keys, or an end of one of rows; ``None`` for one of both."""
        axes = set(self._block.value_axes[value.name])
        if self._block.loop not in axes:
            return self._end(value.name, end)
        return None if axes & self._cut or axes - {self._block.loop, *self._block.grid} else value

    def _end(self, name: str, end: End) -> Term:
        ended = f"{name}_{end}"
        while ended in self._block.defined:
            ended += "_"
        self.ends[ended] = name, end
        return var(ended)


def _is_positive(number: Term) -> bool:
    return number.op == "Const" and 0 < number.attr("value") < math.inf


def _compared(op: str, first: tuple[Term, Term], second: tuple[Term, Term], end: End) -> Term:
    """A comparison of numbers of which the least and the greatest are known: whether it holds for some, or for all."""
    some = end == "most"
    if op == "Equal":
        pairs = ((first[0], second[1]), (second[0], first[1])) if some else ((first[1], second[0]), (second[1], first[0]))
        return make("And", [make("LessOrEqual", pair) for pair in pairs])
    is_less = op.startswith("Less")
    return make(op, [first[0 if is_less == some else 1], second[1 if is_less == some else 0]])
