"""Symbols for the sizes of a region: as many as its operators allow.

Every dimension of an operand and every size in an attribute gets a symbol of its own. What the operators then ask, whether one
size is another, holds for the region's own sizes, so it is made to hold for the symbols: the equation is solved for one of them.
A packed width becomes heads times width of a head, rows become batch times sequence, and sizes that are equal by chance stay
apart. Composite operators are asked by what they are composed of. What cannot be solved keeps the region's own size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.blocks.block import product
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_output, infer_types
from mugraph.terms.equations import bindable, isolated, quotient
from mugraph.terms.shape import Dim, ShapeError, SymDim, TensorType, Undecided, Unequal, evaluate_dim, same_dim, symbol
from mugraph.terms.term import Attrs, Term, bind_attrs, make, substitute, walk

__all__ = ["VARIANTS", "Sized", "Variant", "generalised", "untold"]

_SIZED = frozenset({"shape", "sizes", "starts", "ends", "rows", "columns"})
"""Attributes of movements and masks that hold sizes."""
_MOST_TIMES = 32
"""That the least part of what is split or sliced is in a larger one."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How much is generalised.

    Attributes:
        ones: dimensions of size 1 are sizes as others, and not what is broadcast.
        apart: parts of what is split or sliced have symbols of their own, and so have results; else the larger parts are
            multiples of the least one, where they are so, and results that are of one shape stay so.
    """

    ones: bool
    apart: bool


VARIANTS = (Variant(True, True), Variant(True, False), Variant(False, True), Variant(False, False))
"""The most general first: the sizes of parts are often to be known for a kernel to be built."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Terms with symbols for sizes, the types of their variables, and what the symbols stand for."""

    terms: tuple[Term, ...]
    types: dict[str, TensorType]
    sizes: dict[str, Dim]


def generalised(terms: Sequence[Term], types: Mapping[str, TensorType], variant: Variant) -> Sized | None:
    """Terms with symbols for their sizes; ``None`` where they keep all of them."""
    try:
        found = _Sizes(variant).of(terms, types)
        infer_types(found.terms, found.types)
    except (ShapeError, Undecided):
        return None
    return found if found.sizes else None


def untold(terms: Sequence[Term], types: Mapping[str, TensorType]) -> set[str]:
    """The symbols whose sizes a match does not tell (:func:`rewriter.search.match.bind_dims`)."""
    dims = [dim for type_ in types.values() for dim in type_.shape] + [d for term in walk(terms) for d in _dims(term.attrs)]
    return {name for dim in dims if isinstance(dim, SymDim) for name in dim.symbols()} - bindable(dims)


def _dims(attrs: Attrs) -> list[Dim]:
    """The symbolic sizes in attributes."""
    values = [item for _, value in attrs for item in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if isinstance(value, SymDim)]


class _Sizes:
    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.values: dict[str, Dim] = {}
        self.solved: dict[str, Dim] = {}

    # Symbols

    def fresh(self, value: Dim) -> Dim:
        """A symbol for a size; a size that is not one, or 1 where that is none, stays."""
        if isinstance(value, int) and value < (1 if self.variant.ones else 2):
            return value
        name = f"?{len(self.values)}"  # no file can name it
        self.values[name] = value
        return symbol(name)

    def now(self, dim: Dim) -> Dim:
        """A size by the symbols that are left."""
        return evaluate_dim(dim, self.solved)

    def typed(self, type_: TensorType) -> TensorType:
        return TensorType(type_.dtype, tuple(map(self.now, type_.shape)))

    def own(self, dim: Dim) -> Dim:
        """What a size is in the region."""
        return evaluate_dim(self.now(dim), self.values)

    def set(self, name: str, dim: Dim) -> None:
        self.solved = {n: evaluate_dim(d, {name: dim}) for n, d in self.solved.items()} | {name: dim}

    def keep(self, dims: Sequence[Dim]) -> bool:
        """Gives a symbol in sizes its own size, the least: a number of heads rather than their width; whether there was one."""
        present = {name for dim in map(self.now, dims) if isinstance(dim, SymDim) for name in dim.symbols()}
        names = [name for name in self.values if name in present]
        if names:
            least = min(names, key=lambda name: n if isinstance(n := self.values[name], int) else math.inf)
            self.set(least, self.values[least])
        return bool(names)

    def place(self, name: str) -> int:
        return list(self.values).index(name)

    def equate(self, first: Dim, second: Dim) -> bool:
        """Makes two sizes equal that are so in the region; whether anything changed."""
        changed = False
        while same_dim(a := self.now(first), b := self.now(second)) is None and self.own(a) == self.own(b):
            found = self.solution(a, b) or self.pair(a, b)
            if found is not None:
                self.set(*found)
            elif not self.keep([a, b]):
                return changed
            changed = True
        return changed

    def pair(self, a: Dim, b: Dim) -> tuple[str, Dim] | None:
        """A symbol of one product and its like in another that is equal to it."""
        first, second = ([n for n in self.values if n in d.symbols()] if isinstance(d, SymDim) else [] for d in (a, b))
        for x, y in itertools.product(first, second):
            if x not in second and y not in first and self.values[x] == self.values[y]:
                early, late = sorted((x, y), key=self.place)
                return late, symbol(early)
        return None

    def solution(self, a: Dim, b: Dim) -> tuple[str, Dim] | None:
        """A symbol, the last one where there is a choice, and what it is for two sizes to be equal."""
        return isolated(a, b, list(reversed(self.values)))

    # Terms

    def of(self, terms: Sequence[Term], types: Mapping[str, TensorType]) -> Sized:
        inputs = {n: TensorType(t.dtype, tuple(map(self.fresh, t.shape))) for n, t in types.items()}
        done: dict[Term, Term] = {}
        inferred: dict[Term, TensorType] = {}
        attributes: dict[tuple[object, ...], Attrs] = {}
        for term in walk(terms):
            new = term
            if not term.is_var and term.op != "Const":
                key = (term.op, term.attrs, term.inputs)  # outputs of one application have its sizes
                if key not in attributes:
                    attributes[key] = self.sized(term)
                new = make(term.op, [done[i] for i in term.inputs], attributes[key], term.out)
            done[term] = new
            if new not in inferred:
                self.infer(new, inputs, inferred)
        if not self.variant.apart:
            for other in terms[1:]:
                self.alike_whole(inferred[done[terms[0]]].shape, inferred[done[other]].shape)
        roots = [substitute(done[term], {}, dims=self.solved) for term in terms]
        given = {name: self.typed(type_) for name, type_ in inputs.items()}
        return self.named(roots, given)

    def named(self, roots: Sequence[Term], types: Mapping[str, TensorType]) -> Sized:
        """Terms and types with names for the symbols, in the order in which they occur."""
        dims = [d for t in types.values() for d in t.shape] + [d for term in walk(roots) for d in _dims(term.attrs)]
        used = [n for dim in dims if isinstance(dim, SymDim) for n in sorted(dim.symbols(), key=lambda n: (len(n), n))]
        taken = set(used) - self.values.keys()
        names = (n for i in itertools.count() if (n := f"d{i}") not in taken)
        new = {name: next(names) for name in dict.fromkeys(used) if name in self.values}
        symbols = {old: symbol(name) for old, name in new.items()}
        return Sized(
            tuple(substitute(root, {}, dims=symbols) for root in roots),
            {n: TensorType(t.dtype, tuple(evaluate_dim(d, symbols) for d in t.shape)) for n, t in types.items()},
            {name: self.values[old] for old, name in new.items()},
        )

    def sized(self, term: Term) -> Attrs:
        """A term's attributes with a symbol for each size; equal parts of a Split have one."""
        if any(step != 1 for step in term.attr("steps", ())):
            return term.attrs
        found: list[tuple[str, object]] = []
        for name, value in term.attrs:
            if name not in _SIZED:
                found.append((name, value))
            elif name == "sizes":
                parts = {size: self.fresh(size) for size in dict.fromkeys(value)}
                found.append((name, tuple(parts[size] for size in value)))
            else:
                found.append((name, tuple(map(self.fresh, value)) if isinstance(value, tuple) else self.fresh(value)))
        return tuple(found)

    def infer(self, term: Term, inputs: Mapping[str, TensorType], types: dict[Term, TensorType]) -> None:
        """Types a term, having solved what its operator asks. Raises ShapeError and Undecided where that cannot be."""
        if term.is_var or term.op == "Const":
            types.update(infer_types([term], inputs))
            return
        literal = [i.op == "Const" for i in term.inputs]
        ways = [self.composed, self.alike]
        while True:
            operands, attrs = [self.typed(types[i]) for i in term.inputs], bind_attrs(term.attrs, self.solved)
            if any([self.equate(a, b) for a, b in self.asked(term.op, dict(attrs), operands)]):
                continue
            try:
                types[term] = infer_output(term.op, attrs, term.out, operands, literal)
                return
            except Undecided as problem:
                if isinstance(problem, Unequal) and self.made_equal(problem):
                    continue
                if ways:
                    ways.pop(0)(term.op, attrs, operands)
                elif not (self.keep([d for t in operands for d in t.shape]) or self.keep(_dims(attrs))):
                    raise

    def made_equal(self, question: Unequal) -> bool:
        a, b = question.dims
        if self.equate(a, b):
            return True
        ones = [dim for dim in (a, b) if self.own(dim) == 1] if question.or_one else []
        return any([self.equate(dim, 1) for dim in ones]) or self.keep([a, b])

    def composed(self, op: str, attrs: Attrs, operands: Sequence[TensorType]) -> None:
        """Solves what the parts of a composite operator ask."""
        record = get_operator(op)
        if not record.composite:
            return
        inputs = {f"x{i}": type_ for i, type_ in enumerate(operands)}
        types: dict[Term, TensorType] = {}
        try:
            for part in walk(record.decompose(attrs, operands)):
                self.infer(part, inputs, types)
        except (ShapeError, Undecided):  # the operator itself is asked again
            return

    def alike(self, op: str, attrs: Attrs, operands: Sequence[TensorType]) -> None:
        """Makes the last dimensions of operands equal, one by one, where they are so in the region."""
        for a, b in itertools.combinations(operands, 2):
            for first, second in zip(reversed(a.shape), reversed(b.shape), strict=False):
                self.equate(first, second)

    def alike_whole(self, first: Sequence[Dim], second: Sequence[Dim]) -> None:
        """Makes two shapes equal where they are so in the region."""
        if list(map(self.own, first)) == list(map(self.own, second)):
            for a, b in zip(first, second, strict=True):
                self.equate(a, b)

    # What operators ask

    def asked(self, op: str, attrs: Mapping[str, Any], operands: Sequence[TensorType]) -> Iterator[tuple[Dim, Dim]]:
        """Sizes that have to be equal, where typing does not say which."""
        if op == "Reshape":
            yield from self.regrouped(operands[0].shape[operands[0].rank - attrs["drop"] :], attrs["shape"])
        elif op == "Split":
            sizes = attrs["sizes"]
            if not self.variant.apart:
                yield from self.multiples(sizes)
            yield operands[0].shape[attrs["axis"]], sum(sizes[1:], start=sizes[0])
        elif op == "Slice" and all(step == 1 for step in attrs["steps"]):
            for axis, start, end in zip(attrs["axes"], attrs["starts"], attrs["ends"], strict=True):
                yield from self.sliced(start, end, operands[0].shape[axis])
        elif op == "Squeeze":
            yield from ((operands[0].shape[axis], 1) for axis in attrs["axes"])
        elif "num_heads" in attrs and "qkv_hidden_sizes" not in attrs:
            yield from self.heads(op, attrs, operands)

    def regrouped(self, old: Sequence[Dim], new: Sequence[Dim]) -> Iterator[tuple[Dim, Dim]]:
        """Of dimensions that are regrouped: the least groups of neighbours that are as many entries."""
        rest, groups = [list(old), list(new)], list[tuple[list[Dim], list[Dim]]]()
        while all(rest):
            group: tuple[list[Dim], list[Dim]] = ([rest[0].pop()], [rest[1].pop()])
            while (sizes := [self.own(product(side)) for side in group])[0] != sizes[1]:
                short = self.shorter(*sizes)
                if short is None or not rest[short]:
                    return
                group[short].insert(0, rest[short].pop())
            groups.append(group)
        for side in (0, 1):  # ones are left on one side: they belong to the group beside them
            if groups:
                groups[-1][side][:0] = rest[side]
        yield from ((product(first), product(second)) for first, second in groups)

    def shorter(self, first: Dim, second: Dim) -> int | None:
        """Which of two numbers of entries is a part of the other."""
        if isinstance(first, int) and isinstance(second, int):
            return 0 if first < second else 1
        return 0 if self.quotient(second, first) is not None else 1 if self.quotient(first, second) is not None else None

    def multiples(self, sizes: Sequence[Dim]) -> Iterator[tuple[Dim, Dim]]:
        """Sizes as multiples of the least of them."""
        numbers = self.numbers(sizes)
        least = min(filter(None, numbers), default=0)
        for size, number in zip(sizes, numbers, strict=True):
            if least and number % least == 0 and 0 < number <= _MOST_TIMES * least:
                yield size, number // least * sizes[numbers.index(least)]

    def numbers(self, sizes: Sequence[Dim]) -> list[int]:
        """What sizes are in the region; 0 for those that are no numbers there."""
        return [n if isinstance(n := self.own(size), int) else 0 for size in sizes]

    def sliced(self, start: Dim, end: Dim, whole: Dim) -> Iterator[tuple[Dim, Dim]]:
        """The bounds of a slice within a dimension: it ends there, or the rest is a size of its own, or all are multiples."""
        if self.own(end) == self.own(whole):
            yield end, whole
            if start == 0:
                return
        first, last, most = self.numbers((start, end, whole))
        part = last - first
        if start == 0 and self.variant.apart and 0 < last < most:
            rest = self.now(whole) - self.now(end)
            if not isinstance(rest, SymDim) or any(n < 0 for _, n in rest.terms):
                yield whole, end + self.fresh(most - last)
        elif part > 0 and not any(n % part for n in (first, last, most)) and most <= _MOST_TIMES * part:
            if any(self.quotient(self.now(d), self.now(end) - self.now(start)) is None for d in (start, end, whole)):
                unit = self.fresh(part)
                yield from ((start, first // part * unit), (end, last // part * unit), (whole, most // part * unit))
        elif most:
            yield from ((start, first), (end, last), (whole, most))

    @staticmethod
    def quotient(dim: Dim, by: Dim) -> Dim | None:
        """One size in parts of another, where that is a size."""
        return 0 if dim == 0 else quotient(dim, by)

    def heads(self, op: str, attrs: Mapping[str, Any], operands: Sequence[TensorType]) -> Iterator[tuple[Dim, Dim]]:
        """Packed widths as so many heads of some width; that onnxruntime wants to be a multiple of 8 or 16 in one operator."""
        tables = operands[3:] if op == "GroupQueryAttention" else ()
        grain = 1 if op != "GroupQueryAttention" else 16 if tables else 8
        counts = [attrs["num_heads"], *[attrs.get("kv_num_heads", attrs["num_heads"])] * 2]
        packed = [(t.shape[-1], count) for t, count in zip(operands, counts, strict=False) if t.rank == 3 and count]
        for width, count in packed:
            yield from self.multiple(width, count)
            head = self.quotient(self.now(width), count)
            yield from () if head is None else self.multiple(head, grain)
            for table in tables:
                if head is not None and self.own(2 * table.shape[-1]) == self.own(head):
                    yield head, 2 * table.shape[-1]

    def multiple(self, dim: Dim, unit: int) -> Iterator[tuple[Dim, Dim]]:
        """A size that is a multiple of a number as so many times a size of its own."""
        size = self.own(dim)
        if self.quotient(self.now(dim), unit) is None and isinstance(size, int) and size % unit == 0:
            yield dim, unit * self.fresh(size // unit)
