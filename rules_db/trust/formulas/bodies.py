"""The body of a kernel, entry by entry: which formula of the inputs stands at a place of an output.

An operator has one of four meanings here, and only these are trusted: an elementwise one that of its record, at one entry
(:class:`rules_db.trust.formulas.reals.Formulas`); a movement says which entry of an operand is read; a reduction and a matrix
product are sums over an index variable. All other operators are taken apart by their records (``Operator.decompose``) until they
are of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mugraph.ops import get_operator, traits_of
from mugraph.ops.constants import seen_where
from mugraph.ops.indexing import looked_up, rows_from
from mugraph.ops.interp import infer_types, taken_apart
from mugraph.ops.masks import STORED_MASK
from mugraph.ops.quantized import INTEGER_PRODUCT
from mugraph.ops.traits import Reduction
from mugraph.ops.windows import WINDOWS
from mugraph.terms.shape import DataType, Dim, TensorType, product, symbol
from mugraph.terms.term import Term
from rules_db.trust.formulas.formula import (
    NO_CUTS,
    ONE,
    Cuts,
    Digits,
    Formula,
    choice,
    counted,
    natural,
    number_of,
    together,
    where,
)
from rules_db.trust.formulas.places import NotDecided, divided, limits, quotients, rest
from rules_db.trust.formulas.reals import Formulas, refuse_integers

__all__ = ["BodyMeaning", "Places", "digits", "entry", "flat", "stored_entry"]

Places = tuple[Dim, ...]
"""The place of an entry along each dimension."""
_SUMS = (Reduction.SUM, Reduction.MEAN, Reduction.SQUARES, Reduction.NORM)


def flat(places: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The place of an entry in a row-major tensor."""
    total: Dim = 0
    for place, size in zip(places, shape, strict=True):
        total = total * size + place
    return total


def digits(place: Dim, shape: Sequence[Dim]) -> Places:
    """The places along the dimensions of a row-major tensor of the entry at a flat place."""
    found: list[Dim] = []
    for size in reversed(shape):
        found.insert(0, rest(place, size))
        place = divided(place, size)
    return tuple(found)


def entry(tensor: str, type_: TensorType, place: Dim) -> Formula:
    """The entry of an input at a flat place; by cases where a quotient in that is 0 or 1."""
    found = Formula.atom("truth" if type_.dtype == DataType.BOOL else "x", tensor, place)
    for quotient in sorted(quotients(place)):
        if limits(symbol(quotient)) == (0, 1):
            found = choice(natural(quotient.dividend - quotient.divisor), found, found)
    return found


def stored_entry(entries: str, type_: TensorType, place: Dim) -> Formula:
    """The entry of a stored mask at a flat place: of a tensor of truth values that no input is."""
    shape = ",".join(map(str, type_.shape))
    return entry(f"[{shape}] {entries}", type_, place)


class BodyMeaning:
    """The formulas of a kernel's body.

    Args:
        terms: the body.
        inputs: types of its variables.
        names: of index variables, none of which is used elsewhere.
        cuts: the digits of index variables that are bound (:class:`Digits`).

    Raises:
        ShapeError, Undecided: the terms are ill-typed.
    """

    def __init__(
        self, terms: Sequence[Term], inputs: Mapping[str, TensorType], names: Iterator[str], cuts: Cuts = NO_CUTS
    ) -> None:
        self._cuts = cuts
        self.roots = taken_apart(terms, inputs)
        self._types = infer_types(self.roots, inputs)
        self._names = names
        self._domain = Formulas()
        self._values: dict[tuple[Term, Places], Formula] = {}
        refuse_integers(self._types)

    def type_of(self, term: Term) -> TensorType:
        return self._types[term]

    def value(self, term: Term, places: Sequence[Dim]) -> Formula:
        """The entry of a term at places along its dimensions. Raises NotDecided for what has no formula."""
        at = tuple(0 if size == 1 else place for place, size in zip(places, self._types[term].shape, strict=True))
        if (term, at) not in self._values:
            self._values[term, at] = self._entry(term, at)
        return self._values[term, at]

    def _entry(self, term: Term, at: Places) -> Formula:
        traits = traits_of(term.op)
        if term.is_var:
            return entry(term.name, self._types[term], flat(at, self._types[term].shape))
        if term.op == "Const":
            return self._domain.const(term.attr("value"))
        if seen := seen_where(term.op, dict(term.attrs)):
            i, j = at if seen.modulo is None else (rest(place, seen.modulo) for place in at)
            return together([natural(s * i + t * j + c) for s, t, c in seen.conditions], seen.is_any)
        if term.op in ("Range", "Positions"):
            return counted(term.attr("start", 0) + at[-1])
        if term.op == STORED_MASK:
            return stored_entry(term.attr("entries"), self._types[term], flat(at, self._shape(term)))
        if term.op == "Concat":
            return self._joined(term, at)
        if traits.addresses or rows_from(term) is not None:
            return self.value(term.inputs[0], self._source(term, at))
        if traits.reduction is not None and "axes" in dict(term.attrs):
            return self._reduced(term, at, traits.reduction)
        if term.op in ("MatMul", INTEGER_PRODUCT):
            return self._product(term, at)
        if not get_operator(term.op).elementwise:
            raise NotDecided(f"{term.op} has no formula")
        operands = [self.value(operand, self._under(at, operand)) for operand in term.inputs]
        result: Formula = get_operator(term.op).run(self._domain, term.attrs, operands)[term.out]
        return result

    def _shape(self, term: Term) -> tuple[Dim, ...]:
        return self._types[term].shape

    def _under(self, at: Places, operand: Term) -> Places:
        """The place in an operand that is broadcast."""
        return at[len(at) - self._types[operand].rank :]

    def _source(self, term: Term, at: Places) -> Places:
        """Where a movement reads its operand."""
        shape, before = self._shape(term), self._shape(term.inputs[0])
        moved = list(at)
        if term.op == "Transpose":
            perm = term.attr("perm")
            lead = len(shape) - len(perm)
            for position, axis in enumerate(perm):
                moved[lead + axis] = at[lead + position]
        elif term.op in ("Reshape", "Squeeze", "Unsqueeze"):
            kept = next((i for i, (a, b) in enumerate(zip(shape, before, strict=False)) if a != b), min(len(shape), len(before)))
            moved[kept:] = digits(flat(at[kept:], shape[kept:]), before[kept:])
        elif term.op == "Expand":
            moved = list(self._under(at, term.inputs[0]))
        elif term.op == "Split":
            axis = term.attr("axis")
            moved[axis] = at[axis] + sum(term.attr("sizes")[: term.out], start=0)
        elif term.op == "Slice":
            for axis, start, step in zip(term.attr("axes"), term.attr("starts"), term.attr("steps"), strict=True):
                moved[axis] = at[axis] * step + start
        elif (first := rows_from(term)) is not None:
            moved = looked_up(term, at)
            moved[term.attr("axis")] = at[term.attr("axis")] + first
        elif term.op == WINDOWS:
            window = at[term.attr("axis") - 1] * term.attr("strides")[0] + at[term.attr("axis")] * term.attr("dilations")[0]
            moved[term.attr("axis") - 1 : len(at) + term.attr("axis") + 1] = [window]
        elif term.op == "Tile":
            for axis in range(-len(term.attr("repeats")), 0):
                moved[axis] = rest(at[axis], before[axis])
        elif term.op != "Identity":
            raise NotDecided(f"{term.op} has no formula")
        return tuple(moved)

    def _joined(self, term: Term, at: Places) -> Formula:
        """An entry of a Concat: of the last part that begins no later. Each is looked at for places within it alone."""
        axis = term.attr("axis")
        start: Dim = 0
        result: Formula | None = None
        for part in term.inputs:
            end = start + self._shape(part)[axis]
            begins, goes_on = natural(at[axis] - start), ONE - natural(at[axis] - end)
            inner = [where(goes_on, where(begins, place)) for place in at]
            inner[axis] = inner[axis] - start
            value = self.value(part, inner)
            result = value if result is None else choice(begins, value, result)
            start = end
        assert result is not None
        return result

    def _reduced(self, term: Term, at: Places, reduction: Reduction) -> Formula:
        (source,) = term.inputs
        shape = self._shape(source)
        axes = sorted(axis + len(shape) for axis in term.attr("axes"))
        sizes = [shape[axis] for axis in axes]
        index = self._along(product(sizes))
        inner = iter(digits(index.place, sizes))
        outer = iter(at if not term.attr("keepdims", True) else [p for i, p in enumerate(at) if i not in axes])
        value = self.value(source, [next(inner) if i in axes else next(outer) for i in range(len(shape))])
        if reduction not in _SUMS:
            return index.extremum(reduction.name.lower(), value)
        if reduction in (Reduction.SQUARES, Reduction.NORM):
            value = self._domain.power(value, 2)
        total = index.summed(value)
        if reduction == Reduction.MEAN:
            return total * number_of(index.size).inverse()
        return self._domain.sqrt(total) if reduction == Reduction.NORM else total

    def _product(self, term: Term, at: Places) -> Formula:
        """A sum of products, of integers that of their differences from the zero points."""
        left, right, *zeros = term.inputs
        a, b = self._shape(left), self._shape(right)
        index = self._along(a[-1])
        batch = at[: len(at) - (len(a) > 1) - (len(b) > 1)]
        row = (at[len(batch)],) if len(a) > 1 else ()
        column = (at[-1],) if len(b) > 1 else ()
        inner = index.place
        first = self.value(left, (*batch[len(batch) - max(len(a) - 2, 0) :], *row, inner))
        second_batch = batch[len(batch) - max(len(b) - 2, 0) :]
        second = self.value(right, (*second_batch, inner, *column))
        for name, zero in zip(term.attr("zeros", ()), zeros, strict=True):
            value = self.value(zero, column if name == "columns" else ())
            first, second = (first - value, second) if name == "a" else (first, second - value)
        return index.summed(self._domain.mul(first, second))

    def _along(self, size: Dim) -> Digits:
        """An index variable, by its digits."""
        return Digits.of(next(self._names), size, self._cuts)
