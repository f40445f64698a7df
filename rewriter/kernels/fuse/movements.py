"""Movements: the access of what they move, from that of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mugraph.blocks.statements import Affine, Factor, Index
from mugraph.ops.constants import seen_where
from mugraph.ops.indexing import looked_up, rows_from
from mugraph.ops.masks import STORED_MASK
from mugraph.ops.windows import WINDOWS
from mugraph.terms.shape import Dim, same_dim
from mugraph.terms.term import Term, make, var
from rewriter.kernels.fuse.access import Access, Digits, flat, quotient, regrouped, shifted, under, view_of
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.scope import Emit, Scope

__all__ = ["Movements"]


class Movements:
    """Pushes accesses up through movements, and down to what is computed of a core."""

    def __init__(self, scope: Scope, emit: Emit) -> None:
        self._scope, self._emit = scope, emit

    def forward(self, term: Term, source: Term, access: Access) -> Access:
        """The access of a term from that of the operand that its axes come from."""
        shape, before = self._scope.terms.shape(term), self._scope.terms.shape(source)
        if term.op == "Transpose":
            perm: tuple[int, ...] = term.attr("perm")
            lead = len(shape) - len(perm)
            return access[:lead] + tuple(access[lead + i] for i in perm)
        if term.op in ("Reshape", "Unsqueeze", "Squeeze"):
            return regrouped(flat(access), shape)
        padded: Access = ((),) * (len(shape) - len(access)) + access
        aligned = (1,) * (len(shape) - len(before)) + before
        if any(same_dim(a, b) is not True for a, b in zip(aligned, shape, strict=True)):
            raise NotFusable(f"{term.op} broadcasts what stands before it")
        return padded

    def value(self, term: Term, access: Access, hint: Access) -> Term:
        """The value of a movement at an access."""
        (source, *more), shape = term.inputs, self._scope.terms.shape(term.inputs[0])
        is_part = term.op in ("Split", "Slice") or rows_from(term) is not None
        if more and not is_part:
            return self._joined(term, access)
        if term.op == "Identity":
            return self._emit(source, access, hint)
        if term.op == "Expand":
            return self._emit(source, under(access, shape), access)
        if is_part:
            moved = self._part(term, access, shape)
        elif term.op == "Transpose":
            moved = self._turned(term, access, len(shape))
        elif term.op == "Tile":
            moved = self._repeated(term, access, shape)
        elif term.op == WINDOWS:
            raise NotFusable("windows, of which an index is a sum of two")
        else:
            moved = regrouped(flat(access), shape)
        return self._emit(source, moved, moved)

    @staticmethod
    def _part(term: Term, access: Access, shape: tuple[Dim, ...]) -> Access:
        bounds: list[tuple[int, Dim]]
        if (first := rows_from(term)) is not None:
            bounds = [(term.attr("axis"), first)]
        elif term.op == "Split":
            bounds = [(term.attr("axis"), sum(term.attr("sizes")[: term.out], start=0))]
        else:
            return _sliced(term, access, shape)
        moved = list(access) if first is None else looked_up(term, access)
        for where, start in bounds:
            moved[where] = shifted(moved[where], start, shape[where])
        return tuple(moved)

    @staticmethod
    def _turned(term: Term, access: Access, rank: int) -> Access:
        perm = term.attr("perm")
        lead, moved = rank - len(perm), list(access)
        for position, i in enumerate(perm):
            moved[lead + i] = access[lead + position]
        return tuple(moved)

    @staticmethod
    def _repeated(term: Term, access: Access, shape: tuple[Dim, ...]) -> Access:
        repeats, moved = term.attr("repeats"), list(access)
        for where, times in enumerate(repeats, len(shape) - len(repeats)):
            moved[where] = regrouped(moved[where], (times, shape[where]))[1]
        return tuple(moved)

    def _joined(self, term: Term, access: Access) -> Term:
        """A Concat: each part read where it is, and somewhere within it elsewhere."""
        where, builder = term.attr("axis"), self._scope.builder
        if len(access[where]) != 1 or access[where][0].index.axis is None or access[where][0].index.offset != 0:
            raise NotFusable("a concatenation along part of an axis")
        index = access[where][0].index
        start: Dim = 0
        result: Term | None = None
        for part in term.inputs:
            size = self._scope.terms.shape(part)[where]
            if start == 0 or quotient(start, size) is not None:
                shift: Dim = 0
            elif isinstance(size, int):
                shift = -start % size if isinstance(start, int) else start * (size - 1)  # as much as -start, modulo the size
            else:
                raise NotFusable("a concatenation of parts of unknown sizes")
            # Elsewhere than in its part an operand is read at some place of it: what is read there is not used.
            if not index.plain and (shift != 0 or index.modulo is None or quotient(index.modulo, size) is None):
                raise NotFusable("a concatenation along part of an axis")
            inner = list(access)
            wrapped = replace(index, shift=index.shift + shift, modulo=size)
            inner[where] = () if same_dim(size, 1) is True else (Factor(wrapped, size),)
            value = self._emit(part, tuple(inner), tuple(inner))
            if result is None:
                result = value
            else:
                within = builder.predicate("within", (Affine(((index, 1),), -start),))
                result = make("Where", [var(within), value, result])
            start = start + size
        assert result is not None
        return result

    def sees(self, mask: Term, access: Access) -> str:
        """A boolean tile of which keys queries see, computed from the positions or looked up."""
        if mask.op == STORED_MASK:
            entries = under(access, self._scope.terms.shape(mask))
            return self._scope.builder.mask("shown", mask, view_of(entries, self._scope.axes.sizes))
        query, key = access[-2:]
        seen = seen_where(mask.op, dict(mask.attrs))
        assert seen is not None, mask.op
        if seen.modulo is not None:
            query, key = (_remaining(digits, seen.modulo) for digits in (query, key))
        affine = (Affine((*_position(query, s), *_position(key, t)), constant) for s, t, constant in seen.conditions)
        return self._scope.builder.predicate("seen", tuple(affine), seen.is_any)

    def place(self, term: Term, access: Access) -> Affine:
        """What a term of places is at an access."""
        if term.op in ("Range", "Positions"):
            return Affine(tuple(_position(access[-1], 1)), term.attr("start", 0))
        shapes = [self._scope.terms.shape(operand) for operand in term.inputs]
        if term.op == "Unsqueeze":
            return self.place(term.inputs[0], regrouped(flat(access), shapes[0]))
        first, second = (self.place(i, under(access, shape)) for i, shape in zip(term.inputs, shapes, strict=True))
        sign = -1 if term.op == "Sub" else 1
        further = tuple((index, sign * times) for index, times in second.terms)
        return Affine((*first.terms, *further), first.constant + sign * second.constant)


def _sliced(term: Term, access: Access, shape: tuple[Dim, ...]) -> Access:
    """A Slice: of every so many entries one is read where a number of rows of so many is, at one place of each row."""
    moved = list(access)
    for where, start, step in zip(*map(term.attr, ("axes", "starts", "steps")), strict=True):
        if step == 1:
            moved[where] = shifted(moved[where], start, shape[where])
            continue
        rows = quotient(shape[where], step) if isinstance(start, int) and step > 0 else None
        if rows is None:
            raise NotFusable(f"every {step}th of {shape[where]} entries from {start} on")
        row = shifted(moved[where], start // step, rows) if same_dim(rows, 1) is not True else ()
        moved[where] = (*row, Factor(Index(None, offset=start % step), step))
    return tuple(moved)


def _remaining(digits: Digits, modulo: int) -> Digits:
    """What remains of a position, divided by a number. Raises NotFusable where it is made of several digits."""
    if not digits:
        return digits
    (digit, *others) = digits
    if others or not digit.index.plain:
        raise NotFusable("a dilated mask whose positions are digits of others")
    return (Factor(replace(digit.index, modulo=modulo), digit.size),)


def _position(digits: Digits, sign: int) -> Iterator[tuple[Index, int]]:
    """The position along a dimension as a sum of indices, times a number; nothing for 0."""
    step: Dim = 1
    for digit in reversed(digits) if sign else ():
        if not isinstance(step, int):
            raise NotFusable(f"a mask whose positions are digits of {step}")
        yield digit.index, sign * step
        step = step * digit.size
