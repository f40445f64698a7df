"""Terms that a search has from the start beside its goals, since laws that speak of single steps would not find them soon.

A Reshape that makes a matrix of a tensor of four dimensions merges two of them, and then two again; the law by which the rows of
a product may be merged knows one such step. Which steps there are, sizes tell. A BatchNormalization is a factor and a summand for
each channel, which what stands around it takes over one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, TensorType
from mugraph.terms.term import Term, const, make, walk
from rulegen.candidate import operator_count

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
    """Normalisations as factors and summands; Reshapes that make matrices of more dimensions than three, in steps.

    Raises as :func:`mugraph.ops.interp.infer_types`.
    """
    roots = list(roots)
    return [*map(_affine, filter(_is_normalised, walk(roots))), *_merged(roots, types)]


def _is_normalised(term: Term) -> bool:
    """Whether a term is a BatchNormalization whose attributes are numbers."""
    return term.op == "BatchNormalization" and isinstance(term.attr("spatial"), int) and isinstance(term.attr("epsilon"), float)


def _affine(term: Term) -> Waypoint:
    """A BatchNormalization as the property ``batch.affine`` says it."""
    (x, scale, bias, mean, variance), attrs = term.inputs, dict(term.attrs)
    axes = tuple(range(-attrs["spatial"], 0))
    deviation = make("Sqrt", [make("Add", [variance, const(attrs["epsilon"])])])
    factor = make("Div", [scale, deviation])
    summand = make("Sub", [bias, make("Mul", [mean, factor])])
    wide, shift = (make("Unsqueeze", [part], {"axes": axes}) for part in (factor, summand))
    affine = make("Add", [make("Mul", [x, wide]), shift])
    return Waypoint(affine, operator_count((affine,)) - operator_count((term,)))


def _merged(roots: Sequence[Term], types: Mapping[str, TensorType]) -> list[Waypoint]:
    """Reshapes that make matrices of more dimensions than three, in steps."""
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
