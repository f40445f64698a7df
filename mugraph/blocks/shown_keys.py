"""Which keys the rows of a tile may see, where entries that are loaded decide it: documents and prefixes that a run tells.

A score of -∞ adds the identity to a softmax. So a loop need not visit a tile in which all scores are -∞, whatever else goes into
them. Which tiles these are is not known before the run. What is known is a condition on a place of the loop's axis that holds
wherever a row of the tile sees the key there: numbers are equal only if that of the key lies between the least and the greatest
of the rows. The loop goes from the first tile in which it holds to the last. As with lists of tiles
(:mod:`mugraph.blocks.mask_lists`), nothing of it is in the block graph, and a proof of the graph speaks of all of its schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Compute, Load, PlaceTile, Predicate, next_power
from mugraph.domains.base import Unsupported
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, Dim, TensorType
from mugraph.terms.term import Term, const, make, make_attrs, var, variables

__all__ = ["FEWEST_KEYS", "End", "ShownKeys", "scanned_keys", "shown_keys"]

End = Literal["least", "most"]
"""Of a value over the rows of a tile; of truth values whether it holds for all of them, or for some."""
_EXACT = (DataType.BOOL, DataType.INT32, DataType.INT64)
"""Element types whose entries have an order: a float may be no number."""
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
        return self._ends(condition).most

    def _ends(self, part: Term) -> _Ends:
        """What is least and greatest over the rows, of a number or a truth value."""
        if part.is_var:
            return self._of_value(part)
        if part.op == "Const":
            return _Ends(part, part)
        try:
            (ends,) = get_operator(part.op).run(_OverRows(), part.attrs, [self._ends(operand) for operand in part.inputs])
        except Unsupported:
            return _UNKNOWN
        assert isinstance(ends, _Ends)
        return ends

    def _of_value(self, value: Term) -> _Ends:
        defined, axes = self._block.defined[value.name], set(self._block.value_axes[value.name])
        if isinstance(defined, Compute):
            return self._ends(defined.term)
        if isinstance(defined, Predicate):
            indices = [index for condition in defined.conditions for index, _ in condition.terms]
            is_plain = all(index.plain and index.axis in (*self._block.grid, self._block.loop) for index in indices)
            return self._of_rows(value.name, True) if is_plain else _UNKNOWN
        if isinstance(defined, PlaceTile) and axes == {self._block.loop}:
            return _Ends(value, value)
        dtype = self._types[defined.tensor].dtype if isinstance(defined, Load) else None
        if dtype not in _EXACT:
            return _UNKNOWN
        if self._block.loop not in axes:
            return self._of_rows(value.name, dtype == DataType.BOOL)
        is_of_keys = not axes & self._cut and axes <= {self._block.loop, *self._block.grid}
        return _Ends(value, value, dtype == DataType.BOOL) if is_of_keys else _UNKNOWN

    def _of_rows(self, name: str, is_truth: bool) -> _Ends:
        return _Ends(self._end(name, "least"), self._end(name, "most"), is_truth)

    def _end(self, name: str, end: End) -> Term:
        ended = f"{name}_{end}"
        while ended in self._block.defined:
            ended += "_"
        self.ends[ended] = name, end
        return var(ended)


def _is_positive(number: Term) -> bool:
    return number.op == "Const" and 0 < number.attr("value") < math.inf


@dataclass(frozen=True, slots=True)
class _Ends:
    """A number or a truth value of a key, over all rows of a tile.

    Attributes:
        least, most: what no row has less of, or more: of a truth value what holds only where it does for all, and what holds
            wherever it does for some. ``None`` where that is not known.
        is_truth: whether it is a truth value.
    """

    least: Term | None
    most: Term | None
    is_truth: bool = False


_UNKNOWN = _Ends(None, None)


class _OverRows:
    """The domain of ends: what of them follows for comparisons and logic. Of all else nothing is known."""

    name = "ends"

    def less(self, a: _Ends, b: _Ends) -> _Ends:
        if a.is_truth or b.is_truth:
            return _UNKNOWN
        return _Ends(_asked("Less", a.most, b.least), _asked("Less", a.least, b.most), True)

    def equal(self, a: _Ends, b: _Ends) -> _Ends:
        if a.is_truth or b.is_truth:
            return _UNKNOWN
        every = _asked("LessOrEqual", a.most, b.least), _asked("LessOrEqual", b.most, a.least)
        some = _asked("LessOrEqual", a.least, b.most), _asked("LessOrEqual", b.least, a.most)
        return _Ends(_asked("And", *every), _asked("And", *some), True)

    def logic(self, function: Callable[..., np.ndarray], *operands: _Ends) -> _Ends:
        least, most = [operand.least for operand in operands], [operand.most for operand in operands]
        if function is np.logical_not:
            return _Ends(_asked("Not", *most), _asked("Not", *least), True)
        if function is np.logical_and:
            return _Ends(_asked("And", *least), _of_known("And", most), True)
        if function is np.logical_or:
            return _Ends(_of_known("Or", least), _asked("Or", *most), True)
        return _UNKNOWN

    def cast(self, a: _Ends, to: DataType) -> _Ends:
        """To an integer that holds all others."""
        if to != DataType.INT64 or a.is_truth:
            return _UNKNOWN
        least, most = (None if end is None else make("Cast", [end], make_attrs({"to": to})) for end in (a.least, a.most))
        return _Ends(least, most)

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name} over rows")


def _asked(op: str, *operands: Term | None) -> Term | None:
    """An operator of what is known; ``None`` where an operand is not."""
    known = [operand for operand in operands if operand is not None]
    return make(op, known) if len(known) == len(operands) else None


def _of_known(op: str, operands: Sequence[Term | None]) -> Term | None:
    """And, or Or, of those operands that are known: any of them decides it."""
    known = [operand for operand in operands if operand is not None]
    return make(op, known) if len(known) > 1 else known[0] if known else None
