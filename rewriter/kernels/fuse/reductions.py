"""Reductions: along a row within a tile, beside a product as the loop goes over it, or of all entries in a loop of its own."""

from __future__ import annotations

from mugraph.domains.base import FLOATS
from mugraph.ops import traits_of
from mugraph.terms.shape import DataType, product, same_dim
from mugraph.terms.term import Term, make, var
from rewriter.kernels.fuse.access import Access, digit_of, regrouped
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.scope import Emit, Scope

__all__ = ["Reductions"]

_LARGEST_COUNT = 1 << 24
"""Up to which 32-bit floats count exactly."""


def _monoid(term: Term) -> str:
    """The monoid of a reduction's accumulator."""
    monoid = traits_of(term.op).monoid
    assert monoid is not None
    return monoid


class Reductions:
    """Values of reductions."""

    def __init__(self, scope: Scope, emit: Emit) -> None:
        self._scope, self._emit = scope, emit

    def value(self, term: Term, access: Access, hint: Access) -> Term:
        """The value of a reduction at an access; ``hint`` is the access of what the result goes along with."""
        terms, axes, builder = self._scope.terms, self._scope.axes, self._scope.builder
        (source,) = term.inputs
        if terms.single and terms.is_single(term) and not terms.is_single(source):
            total = self._of_all(term)
            size = axes.sizes[axes.loop or ""]
            return make("Div", [total, builder.extent(size)]) if term.op == "ReduceMean" else total
        if term.attr("axes") != (-1,):
            raise NotFusable(f"{term.op} other than along a row")
        size = terms.shape(source)[-1]
        outer = access[:-1] if term.attr("keepdims", True) else access
        if same_dim(size, 1) is True:
            return self._emit(source, (*outer, ()), (*outer, ()))
        loop = axes.loop if self._scope.form.accumulated and not terms.attends else None
        if loop is not None and same_dim(axes.sizes[loop], size) is True:
            total = self._beside(term, outer, loop)
        else:
            total = self._within(term, outer, hint)
        return make("Div", [total, builder.extent(size)]) if term.op == "ReduceMean" else total

    def _beside(self, term: Term, outer: Access, loop: str) -> Term:
        """A row's reduction as an accumulator of the loop."""
        (source,), kind, builder = term.inputs, _monoid(term), self._scope.builder
        inner = (*outer, digit_of(loop, self._scope.terms.shape(source)[-1]))
        if kind == "min":
            raise NotFusable("an accumulated minimum")
        value = builder.named(self._emit(source, inner, inner), f"{kind}_part")
        return var(builder.accumulate((f"row_{kind}",), kind, (value,))[0])

    def _within(self, term: Term, outer: Access, hint: Access) -> Term:
        """A row's reduction along a whole axis."""
        (source,), kind, builder = term.inputs, _monoid(term), self._scope.builder
        size = self._scope.terms.shape(source)[-1]
        axis = self._scope.axes.row(size, hint)
        inner = (*outer, digit_of(axis, size))
        return var(builder.reduce(kind, builder.named(self._emit(source, inner, inner), "row"), axis))

    def _of_all(self, term: Term) -> Term:
        """A reduction of all entries to one: the loop goes over them as they are in memory."""
        (source,), kind, terms, builder = term.inputs, _monoid(term), self._scope.terms, self._scope.builder
        size = product(terms.shape(source))
        if kind == "min":
            raise NotFusable("an accumulated minimum")
        if terms.types[source].dtype not in FLOATS:
            is_flag = source.op == "Cast" and terms.types[source.inputs[0]].dtype == DataType.BOOL
            if not is_flag or (kind == "sum" and not (isinstance(size, int) and size <= _LARGEST_COUNT)):
                raise NotFusable(f"{term.op} of integers")
        loop = self._scope.axes.looped("k", size, "reductions of different numbers of entries")
        inner = regrouped(digit_of(loop, size), terms.shape(source))
        value = builder.named(self._emit(source, inner, inner), f"{kind}_part")
        return var(builder.accumulate((f"all_{kind}",), kind, (value,))[0])
