"""Terms that a search has from the start beside its goals, since laws that speak of single steps would not find them soon.

A Reshape that makes a matrix of a tensor of four dimensions merges two of them, and then two again; the law by which the rows of
a product may be merged knows one such step. Which steps there are, sizes tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, TensorType
from mugraph.terms.term import Term, make, walk

__all__ = ["Waypoint", "waypoints"]


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A term that equals one of a goal's.

    Attributes:
        longer: how many more operators it has than that.
    """

    term: Term
    longer: int


def waypoints(roots: Iterable[Term], types: Mapping[str, TensorType]) -> list[Waypoint]:
    """Reshapes that make matrices of more dimensions than three, in steps. Raises as :func:`mugraph.ops.interp.infer_types`."""
    roots = list(roots)
    merging = [term for term in walk(roots) if term.op == "Reshape" and len(_shape(term)) == 2 and _drop(term) > 3]
    if not merging:
        return []
    inferred = infer_types(roots, types)
    reshaped = [term for term in walk(roots) if term.op == "Reshape" and len(_shape(term)) > 2]
    found: list[Waypoint] = []
    for term in merging:
        (operand,), drop = term.inputs, _drop(term)
        starts = [(other, len(_shape(other))) for other in reshaped if other.inputs == (operand,) and _drop(other) == drop]
        for start, sizes in ((operand, drop), *starts):
            found += _steps(start, inferred[start].shape[inferred[start].rank - sizes :], _shape(term)[1])
    return found


def _shape(term: Term) -> tuple[Dim, ...]:
    shape = term.attr("shape")
    return shape if isinstance(shape, tuple) else ()


def _drop(term: Term) -> int:
    drop = term.attr("drop")
    return drop if isinstance(drop, int) else 0


def _steps(start: Term, dimensions: Sequence[Dim], columns: Dim) -> Iterator[Waypoint]:
    """The matrix of so many columns that the last dimensions of a term make, in steps: columns first, then two by two rows."""
    sizes = list(dimensions)
    last, merged = sizes.pop(), 1
    while last != columns and sizes:
        last, merged = sizes.pop() * last, merged + 1
    if last != columns or len(sizes) < 2:
        return
    longer = -1
    if merged > 1:
        start, longer = make("Reshape", [start], {"drop": merged, "shape": (columns,)}), longer + 1
    while len(sizes) > 1:
        rows = sizes.pop() * sizes.pop()
        sizes.append(rows)
        start, longer = make("Reshape", [start], {"drop": 3, "shape": (rows, columns)}), longer + 1
    yield Waypoint(start, longer)
