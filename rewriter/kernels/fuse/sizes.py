"""Symbols for the sizes of a fusable set: as many as its operators allow.

Every dimension of an operand and every size in an attribute gets a symbol of its own. What the operators then ask, whether one
size is another, holds for the set's own sizes, so it is made to hold for the symbols: the equation is solved for one of them.
A packed width becomes heads times width of a head, rows become batch times sequence, and sizes that are equal by chance stay
apart. Composite operators are asked by what they are composed of. What cannot be solved keeps the set's own size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.deadline import heed
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_output, infer_types
from mugraph.terms.equations import bindable
from mugraph.terms.shape import Dim, ShapeError, SymDim, TensorType, Undecided, Unequal, symbol
from mugraph.terms.term import Attrs, Term, bind_attrs, make, substitute, walk
from rewriter.kernels.fuse.equations import SizeEquations
from rewriter.kernels.fuse.symbols import SizeSymbols

__all__ = ["VARIANTS", "Sized", "Variant", "counted_heads", "generalised", "untold"]

_SIZED = frozenset({"shape", "sizes", "starts", "ends", "rows", "columns", "length"})
"""Attributes of movements, masks and positions that hold sizes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How much is generalised.

    Attributes:
        ones: dimensions of size 1 are sizes as others, and not what is broadcast.
        apart: parts of what is split or sliced have symbols of their own, and so have results; else the larger parts are
            multiples of the least one, where they are so, and results that are of one shape stay so.
        counted: numbers of heads that operators name stay numbers wherever operands are made of heads; else a width that is so
            many times a size will do for them, whatever it is made of.
    """

    ones: bool
    apart: bool
    counted: bool = False


VARIANTS = (
    Variant(True, True),
    Variant(True, False),
    Variant(False, True),
    Variant(False, False),
    Variant(True, True, counted=True),
)
"""The most general first: the sizes of parts are often to be known for a kernel to be built."""
_HEADS = ("num_heads", "kv_num_heads")
"""Attributes that count heads."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Terms with symbols for sizes, the types of their variables, and what the symbols stand for."""

    terms: tuple[Term, ...]
    types: dict[str, TensorType]
    sizes: dict[str, Dim]


def generalised(terms: Sequence[Term], types: Mapping[str, TensorType], variant: Variant) -> Sized | None:
    """Terms with symbols for their sizes; ``None`` where they keep all of them."""
    try:
        sized = _SymbolFinder(variant, counted_heads(terms) if variant.counted else frozenset()).of(terms, types)
        infer_types(sized.terms, sized.types)
    except (ShapeError, Undecided):
        return None
    return sized if sized.sizes else None


def counted_heads(terms: Sequence[Term]) -> frozenset[Dim]:
    """The numbers of heads that operators name."""
    return frozenset(term.attr(name, 0) for term in walk(terms) for name in _HEADS) - {0}


def untold(terms: Sequence[Term], types: Mapping[str, TensorType]) -> set[str]:
    """The symbols whose sizes a match does not tell (:func:`rewriter.search.match.bind_dims`)."""
    dims = [dim for type_ in types.values() for dim in type_.shape] + [d for term in walk(terms) for d in _dims(term.attrs)]
    return {name for dim in dims if isinstance(dim, SymDim) for name in dim.symbols()} - bindable(dims)


def _dims(attrs: Attrs) -> list[Dim]:
    """The symbolic sizes in attributes."""
    values = [item for _, value in attrs for item in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if isinstance(value, SymDim)]


class _SymbolFinder:
    """Replaces the sizes of terms by symbols, an operator at a time, and solves what each operator asks of them.

    Args:
        counts: numbers in attributes that stay.
    """

    def __init__(self, variant: Variant, counts: frozenset[Dim]) -> None:
        self._apart, self._counts = variant.apart, counts
        self._symbols = SizeSymbols(variant.ones)
        self._equations = SizeEquations(self._symbols, variant.apart)

    def of(self, terms: Sequence[Term], types: Mapping[str, TensorType]) -> Sized:
        inputs = {n: TensorType(t.dtype, tuple(map(self._symbols.fresh, t.shape))) for n, t in types.items()}
        done: dict[Term, Term] = {}
        inferred: dict[Term, TensorType] = {}
        attributes: dict[tuple[object, ...], Attrs] = {}
        for term in walk(terms):
            new = term
            if not term.is_var and term.op != "Const":
                key = (term.op, term.attrs, term.inputs)  # outputs of one application have its sizes
                if key not in attributes:
                    attributes[key] = self._sized(term)
                new = make(term.op, [done[i] for i in term.inputs], attributes[key], term.out)
            done[term] = new
            if new not in inferred:
                self._infer(new, inputs, inferred)
        if not self._apart:
            for other in terms[1:]:
                self._alike_whole(inferred[done[terms[0]]].shape, inferred[done[other]].shape)
        roots = [substitute(done[term], {}, dims=self._symbols.solved) for term in terms]
        return self._named(roots, {name: self._symbols.typed(type_) for name, type_ in inputs.items()})

    def _named(self, roots: Sequence[Term], types: Mapping[str, TensorType]) -> Sized:
        """Terms and types with names for the symbols, in the order in which they occur."""
        dims = [d for t in types.values() for d in t.shape] + [d for term in walk(roots) for d in _dims(term.attrs)]
        used = [n for dim in dims if isinstance(dim, SymDim) for n in sorted(dim.symbols(), key=lambda n: (len(n), n))]
        taken = set(used) - self._symbols.values.keys()
        names = (n for i in itertools.count() if (n := f"d{i}") not in taken)
        new = {name: next(names) for name in dict.fromkeys(used) if name in self._symbols.values}
        symbols = {old: symbol(name) for old, name in new.items()}
        return Sized(
            tuple(substitute(root, {}, dims=symbols) for root in roots),
            {n: t.at(symbols) for n, t in types.items()},
            {name: self._symbols.values[old] for old, name in new.items()},
        )

    def _sized(self, term: Term) -> Attrs:
        """A term's attributes with a symbol for each size; equal parts of a Split have one. Where a Slice takes every so many
        entries, it begins with the same one at all sizes."""
        steps: tuple[int, ...] = term.attr("steps", ())
        if any(step < 1 for step in steps):
            return term.attrs
        attrs: list[tuple[str, object]] = []
        for name, value in term.attrs:
            if name not in _SIZED:
                attrs.append((name, value))
            elif name == "sizes":
                parts = {size: self._symbols.fresh(size) for size in dict.fromkeys(value)}
                attrs.append((name, tuple(parts[size] for size in value)))
            elif name == "starts":
                attrs.append((name, tuple(v if by > 1 else self._size(v) for v, by in zip(value, steps, strict=True))))
            else:
                attrs.append((name, tuple(map(self._size, value)) if isinstance(value, tuple) else self._size(value)))
        return tuple(attrs)

    def _size(self, value: Dim) -> Dim:
        """A symbol for a size in an attribute, unless it stays."""
        return value if value in self._counts else self._symbols.fresh(value)

    def _infer(self, term: Term, inputs: Mapping[str, TensorType], types: dict[Term, TensorType]) -> None:
        """Types a term, having solved what its operator asks. Raises ShapeError and Undecided where that cannot be."""
        if term.is_var or term.op == "Const":
            types.update(infer_types([term], inputs))
            return
        literal = [i.op == "Const" for i in term.inputs]
        ways = [self._composed, self._alike]
        while True:
            heed()
            operands, attrs = [self._symbols.typed(types[i]) for i in term.inputs], bind_attrs(term.attrs, self._symbols.solved)
            if any([self._symbols.equate(a, b) for a, b in self._equations.asked(term.op, dict(attrs), operands)]):
                continue
            try:
                types[term] = infer_output(term.op, attrs, term.out, operands, literal)
                return
            except Undecided as problem:
                if isinstance(problem, Unequal) and self._made_equal(problem):
                    continue
                if problem.about is not None and self._symbols.keep([problem.about]):
                    continue
                if ways:
                    ways.pop(0)(term.op, attrs, operands)
                elif any([self._symbols.equate(a, b) for a, b in problem.equal]):
                    continue
                elif not (self._symbols.keep([d for t in operands for d in t.shape]) or self._symbols.keep(_dims(attrs))):
                    raise

    def _made_equal(self, question: Unequal) -> bool:
        a, b = question.dims
        if self._symbols.equate(a, b):
            return True
        ones = [dim for dim in (a, b) if self._symbols.value(dim) == 1] if question.or_one else []
        return any([self._symbols.equate(dim, 1) for dim in ones]) or self._symbols.keep([a, b])

    def _composed(self, op: str, attrs: Attrs, operands: Sequence[TensorType]) -> None:
        """Solves what the parts of a composite operator ask."""
        record = get_operator(op)
        if not record.composite:
            return
        inputs = {f"x{i}": type_ for i, type_ in enumerate(operands)}
        types: dict[Term, TensorType] = {}
        try:
            for part in walk(record.decompose(attrs, operands)):
                self._infer(part, inputs, types)
        except (ShapeError, Undecided):  # the operator itself is asked again
            return

    def _alike(self, op: str, attrs: Attrs, operands: Sequence[TensorType]) -> None:
        """Makes the last dimensions of operands equal, one by one, where they are so in the set."""
        for a, b in itertools.combinations(operands, 2):
            for first, second in zip(reversed(a.shape), reversed(b.shape), strict=False):
                self._symbols.equate(first, second)

    def _alike_whole(self, first: Sequence[Dim], second: Sequence[Dim]) -> None:
        """Makes two shapes equal where they are so in the set."""
        if list(map(self._symbols.value, first)) == list(map(self._symbols.value, second)):
            for a, b in zip(first, second, strict=True):
                self._symbols.equate(a, b)
