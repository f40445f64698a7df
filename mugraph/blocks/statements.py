"""Statements of block graphs: what is done with tiles, and how data dimensions are addressed.

A view addresses a contiguous tensor in place, as a row-major factorisation of it: permuted, split and merged dimensions,
heads within a packed projection, broadcasts and rotations are views, not copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mugraph.ops.masks import stored_shape
from mugraph.terms.shape import DataType, Dim, TensorType
from mugraph.terms.term import Term, variables

__all__ = [
    "MONOIDS",
    "Accumulate",
    "Affine",
    "Compute",
    "Dot",
    "Extent",
    "Factor",
    "Index",
    "InvalidBlock",
    "Load",
    "MaskTile",
    "PlaceTile",
    "Predicate",
    "Reduce",
    "Statement",
    "Store",
    "Tensor",
    "View",
    "Viewing",
    "next_power",
    "repeated_along",
    "runs_along",
    "statement_indices",
    "statement_names",
    "statement_operands",
    "statement_places",
    "statement_title",
    "view",
]


class InvalidBlock(ValueError):
    """A block graph or its schedule is invalid; the message names block, statement and, for memory, bytes."""


@dataclass(frozen=True, slots=True)
class Index:
    """A position in a data dimension: ``(axis + shift) // divide % modulo + offset``; without an axis, ``offset``."""

    axis: str | None
    shift: Dim = 0
    divide: Dim = 1
    modulo: Dim | None = None
    offset: Dim = 0

    @property
    def plain(self) -> bool:
        """Whether it is the axis itself."""
        return self.axis is not None and (self.shift, self.divide, self.modulo, self.offset) == (0, 1, None, 0)


@dataclass(frozen=True, slots=True)
class Factor:
    """A data dimension of a view: how it is addressed and its size."""

    index: Index
    size: Dim


View = tuple[Factor, ...]
"""A row-major factorisation of a contiguous tensor. Use :func:`view` to write one."""


def view(sizes: Mapping[str, Dim], *items: str | Index | tuple[str | Index, Dim]) -> View:
    """A view from axis names and indices; an item without a size has that of its axis in ``sizes``."""
    factors = []
    for item in items:
        index, size = item if isinstance(item, tuple) else (item, None)
        index = Index(index) if isinstance(index, str) else index
        if size is None:
            assert index.axis is not None, item
            size = sizes[index.axis]
        factors.append(Factor(index, size))
    return tuple(factors)


def repeated_along(view: View) -> dict[str, int]:
    """Axes to the number of neighbours, a power of two, at which a view has the same entry, such as the scale of a block.

    The neighbours begin at multiples of their number.
    """
    along: dict[str, list[Index]] = {}
    for factor in view:
        if factor.index.axis is not None:
            along.setdefault(factor.index.axis, []).append(factor.index)
    repeated = {}
    for axis, (index, *others) in along.items():
        divide = index.divide
        if others or index.shift != 0 or index.modulo is not None or not isinstance(divide, int):
            continue
        if divide > 1 and divide & (divide - 1) == 0:
            repeated[axis] = divide
    return repeated


def runs_along(view: View) -> str | None:
    """The axis along which neighbours of a view lie beside each other in memory; ``None`` where none is known."""
    last = next((factor.index for factor in reversed(view) if factor.size != 1), None)
    return last.axis if last is not None and last.shift == 0 and last.modulo is None else None


@dataclass(frozen=True, slots=True)
class Affine:
    """The place ``sum of coefficient * index + constant``, or the condition that it is not negative."""

    terms: tuple[tuple[Index, int], ...]
    constant: Dim = 0


@dataclass(frozen=True, slots=True)
class Load:
    """An input iterator: a tile of a tensor."""

    name: str
    tensor: str
    view: View


@dataclass(frozen=True, slots=True)
class Compute:
    """A thread graph: an elementwise term over tiles."""

    name: str
    term: Term


@dataclass(frozen=True, slots=True)
class Dot:
    """Product of two tiles, contracted over one axis of both; axes that both have besides are batch axes."""

    name: str
    left: str
    right: str
    over: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduction of a tile (``sum``, ``max`` or ``min``) along whole axes, which leave it."""

    name: str
    kind: str
    operand: str
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A boolean tile of where conditions on indices hold: causal masks, windows, halves.

    Attributes:
        is_any: whether one of the conditions is enough, else all of them have to hold.
    """

    name: str
    conditions: tuple[Affine, ...]
    is_any: bool = False


@dataclass(frozen=True, slots=True)
class PlaceTile:
    """A tile of integers that tell where their entries stand: to be compared with integers that are loaded."""

    name: str
    place: Affine


@dataclass(frozen=True, slots=True)
class MaskTile:
    """A boolean tile of a constant mask, which the kernel itself holds (:mod:`mugraph.ops.masks`).

    Attributes:
        entries: the text of the mask.
        rows, columns: the sizes of its last two dimensions here.
    """

    name: str
    entries: str
    rows: Dim
    columns: Dim
    view: View

    @property
    def type(self) -> TensorType:
        """Of the mask, as a tensor."""
        return TensorType(DataType.BOOL, (*stored_shape(self.entries)[:-2], self.rows, self.columns))


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as a number, for means."""

    name: str
    size: Dim


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A for-loop accumulator. ``keep``, a boolean tile, makes what it is false for count as the identity."""

    names: tuple[str, ...]
    monoid: str
    operands: tuple[str, ...]
    keep: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """An output saver. Grid axes must be in its view, or blocks would write over each other."""

    tensor: str
    value: str
    view: View


Statement = Load | Compute | Dot | Reduce | Predicate | PlaceTile | MaskTile | Extent | Accumulate | Store
Viewing = Load | MaskTile | Store
"""Statements with a view."""

MONOIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "sum": ((1,), (1,)),
    "max": ((1,), (1,)),
    "softmax": ((1, 2), (2, 3)),
    "welford": ((1,), (3,)),
}
"""Monoid to the numbers of operands it takes and, for each, the number of values of its state."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory, contiguous."""

    name: str
    type: TensorType


def next_power(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def statement_names(statement: Statement) -> tuple[str, ...]:
    """The names of the values that a statement defines."""
    if isinstance(statement, Store):
        return ()
    return statement.names if isinstance(statement, Accumulate) else (statement.name,)


def statement_operands(statement: Statement) -> tuple[str, ...]:
    """The tiles that a statement uses, each once."""
    if isinstance(statement, Compute):
        return _names_in(statement.term)
    if isinstance(statement, Dot):
        return tuple(dict.fromkeys((statement.left, statement.right)))
    if isinstance(statement, Reduce):
        return (statement.operand,)
    if isinstance(statement, Accumulate):
        return (*statement.operands, *((statement.keep,) if statement.keep else ()))
    return (statement.value,) if isinstance(statement, Store) else ()


@lru_cache(maxsize=1 << 12)
def _names_in(term: Term) -> tuple[str, ...]:
    return tuple(variable.name for variable in variables([term]))


def statement_indices(statement: Statement) -> tuple[Index, ...]:
    """The indices in a statement's views and conditions."""
    if isinstance(statement, Viewing):
        return tuple(factor.index for factor in statement.view)
    return tuple(index for affine in statement_places(statement) for index, _ in affine.terms)


def statement_places(statement: Statement) -> tuple[Affine, ...]:
    """The places that a statement computes, those of which it asks whether they are negative among them."""
    if isinstance(statement, Predicate):
        return statement.conditions
    return (statement.place,) if isinstance(statement, PlaceTile) else ()


def statement_title(statement: Statement) -> str:
    """The words of messages for a statement: ``load x_tile``."""
    kind = type(statement).__name__.lower()
    return f"{kind} {', '.join(statement_names(statement)) or getattr(statement, 'tensor', '')}"
