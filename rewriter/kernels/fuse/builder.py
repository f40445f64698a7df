"""A block graph in the making: statements by name, of which equal ones stand once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    View,
)
from mugraph.terms.shape import Dim
from mugraph.terms.term import Term, const, var, variables

__all__ = ["BlockBuilder", "NotFusable"]


class NotFusable(Exception):
    """Terms that do not become one kernel; the message is the reason."""


class BlockBuilder:
    """Statements of one block graph, in the order in which they are added.

    Every method that adds a statement returns the name of its value: a new one, or that of an equal statement made before.
    Accumulators alone are never shared.

    Args:
        taken: names that no value may have.
    """

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self.statements: list[Statement] = []
        self._taken = set(taken)
        self._names: dict[object, str] = {}

    def _fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}{number}"
        self._taken.add(name)
        return name

    def _add(self, wanted: str, key: object, make_statement: Callable[[str], Statement]) -> str:
        """The value of a statement, which is made unless one with an equal key is there."""
        if key not in self._names:
            name = self._fresh(wanted)
            self.statements.append(make_statement(name))
            self._names[key] = name
        return self._names[key]

    def load(self, tensor: str, factors: View) -> str:
        return self._add(f"{tensor}_tile", ("load", tensor, factors), lambda name: Load(name, tensor, factors))

    def compute(self, wanted: str, term: Term) -> str:
        return term.name if term.is_var else self._add(wanted, term, lambda name: Compute(name, term))

    def named(self, term: Term, wanted: str) -> str:
        """The value of a thread graph. Raises NotFusable where it has no operand."""
        if not variables([term]):
            raise NotFusable("a constant output")
        return self.compute(wanted, term)

    def dot(self, wanted: str, left: str, right: str, over: str) -> str:
        return self._add(wanted, ("dot", left, right, over), lambda name: Dot(name, left, right, over))

    def reduce(self, kind: str, value: str, axis: str) -> str:
        """The reduction of a value along a whole axis."""
        return self._add(f"row_{kind}", (kind, value, axis), lambda name: Reduce(name, kind, value, (axis,)))

    def store(self, tensor: str, value: str, factors: View) -> None:
        self.statements.append(Store(tensor, value, factors))

    def predicate(self, wanted: str, conditions: tuple[Affine, ...], is_any: bool = False) -> str:
        return self._add(wanted, ("holds", conditions, is_any), lambda name: Predicate(name, conditions, is_any))

    def place(self, place: Affine) -> str:
        """Where the entries of a tile stand."""
        return self._add("place", ("place", place), lambda name: PlaceTile(name, place))

    def mask(self, wanted: str, mask: Term, factors: View) -> str:
        """A tile of a stored mask."""
        entries, rows, columns = (mask.attr(name) for name in ("entries", "rows", "columns"))
        key = ("mask", entries, rows, columns, factors)
        return self._add(wanted, key, lambda name: MaskTile(name, entries, rows, columns, factors))

    def extent(self, size: Dim) -> Term:
        """A size as a number, or the value that holds it at run time."""
        return const(float(size)) if isinstance(size, int) else var(self._add("size", size, lambda name: Extent(name, size)))

    def accumulate(self, names: Sequence[str], monoid: str, operands: Sequence[str], keep: str | None = None) -> tuple[str, ...]:
        """The values of an accumulator's state."""
        named = tuple(self._fresh(name) for name in names)
        self.statements.append(Accumulate(named, monoid, tuple(operands), keep))
        return named
