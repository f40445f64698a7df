"""From a program with sizes to one with dimension symbols, so that a cone of one model speaks of models of every size.

Every dimension of a leaf and every size in an attribute becomes a symbol of its own; the operators bind symbols to each other,
to products (Reshape) and sums (Slice, Split). The model's own sizes say which way: which factors of a
Reshape belong together, which slices are halves. A size of 1 stays 1. The result is more general than the model, so it
must be compared again, as fingerprints do.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, Shape, ShapeError, SymDim, TensorType, Undecided, concrete, evaluate_dim, product, symbol
from mugraph.terms.term import Term, walk
from rulegen.typings.dimensions import Dimensions, readable_symbols
from rulegen.typings.shapes import output_shape
from rules_db.trust.rule import Side

__all__ = ["lift"]


_VECTOR = 8
"""Entries that a kernel loads at once."""
_MOST_FACTORS = 5
"""Of so many factors of a dimension all orders are tried."""


class _LiftedSizes(Dimensions):
    """Dimensions that know the size that each symbol has in the model.

    Args:
        alike: sizes that are equal in the model are one symbol.
    """

    def __init__(self, alike: bool = False) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}
        self._by_size: dict[int, Dim] | None = {} if alike else None

    def sized(self, size: Dim) -> Dim:
        """A symbol of this size; 1 and symbols stay."""
        if not isinstance(size, int) or size <= 1:
            return size
        if self._by_size is not None and size in self._by_size:
            return self.resolve(self._by_size[size])
        symbol = self.fresh()
        self.sizes[str(symbol)] = size
        if self._by_size is not None:
            self._by_size[size] = symbol
        return symbol

    def equal(self, a: Dim, b: Dim) -> None:
        """Makes two dimensions equal; of two products the factors of one size, as repeated heads of keys and values are."""
        a, b = self.resolve(a), self.resolve(b)
        one, other = _factors(a), _factors(b)
        shared = one & other
        left, right = (sorted((one - shared).elements()), sorted((other - shared).elements()))
        if len(left) == len(right) > 1:
            by_size = [{self.sizes[name]: symbol(name) for name in side} for side in (left, right)]
            if by_size[0].keys() == by_size[1].keys() and len(by_size[0]) == len(left):
                for size, factor in by_size[0].items():
                    super().equal(factor, by_size[1][size])
                return
        super().equal(a, b)

    def value(self, dim: Dim) -> int:
        """The size that a dimension has in the model."""
        size = evaluate_dim(dim, self.sizes)
        if not isinstance(size, int):
            raise Undecided(f"the size of {dim}")
        return size

    def product(self, dims: Sequence[Dim]) -> Dim:
        """The product of dimensions, resolved."""
        return product(map(self.resolve, dims))

    def reshaped(self, x: Shape, sizes: Sequence[int]) -> Shape:
        """Symbols for the sizes that a Reshape makes of ``x``: adjacent dimensions are merged and split by their products."""
        result: list[Dim] = []
        before, after = list(x), list(sizes)
        while before or after:
            left, right = [before.pop(0)] if before else [], [after.pop(0)] if after else []
            a, b = self.value(self.product(left)), math.prod(right)
            while a != b:
                if a < b and before:
                    left.append(before.pop(0))
                elif after:
                    right.append(after.pop(0))
                else:
                    raise ShapeError("a Reshape that is none")
                a, b = self.value(self.product(left)), math.prod(right)
            made = [self.sized(size) for size in right]
            wide, parts = [d for d in left if self.value(d) != 1], [d for d in made if d != 1]
            if len(parts) == 1:
                self.equal(parts[0], self.product(wide))
            elif len(wide) == 1:
                self.divide(wide[0], parts)
            elif len(wide) == len(parts) and [self.value(d) for d in wide] == [self.value(d) for d in parts]:
                for one, other in zip(wide, parts, strict=True):
                    self.equal(one, other)
            else:  # entries change places between dimensions that have nothing in common
                for dim in (*wide, *parts):
                    self.equal(dim, self.value(dim))
            result += made
        return self.resolved(result)

    def divide(self, whole: Dim, parts: Sequence[Dim]) -> None:
        """Makes the parts the factors of a dimension: its own, where it is a product already."""
        whole = self.resolve(whole)
        if isinstance(whole, SymDim) and len(whole.terms) == 1 and whole.terms[0][1] == 1:
            factors = [symbol(name) for name, power in whole.terms[0][0] for _ in range(power)]
            for order in itertools.permutations(factors) if 1 < len(factors) <= _MOST_FACTORS else ():
                groups = self._grouped(order, parts)
                if groups is not None:
                    for part, group in zip(parts, groups, strict=True):
                        self.equal(part, self.product(group))
                    return
        self.equal(whole, self.product(parts))

    def _grouped(self, factors: Sequence[Dim], parts: Sequence[Dim]) -> list[list[Dim]] | None:
        """Consecutive factors for each part, of its size; ``None`` where they do not fit."""
        groups: list[list[Dim]] = []
        rest = list(factors)
        for part in parts:
            group: list[Dim] = []
            while rest and self.value(self.product(group)) < self.value(part):
                group.append(rest.pop(0))
            if self.value(self.product(group)) != self.value(part):
                return None
            groups.append(group)
        return None if rest else groups

    def cut(self, dim: Dim, at: int) -> Dim:
        """A symbol for a place at which a dimension is cut; half of it, where the sizes say so."""
        size, dim = self.value(dim), self.resolve(dim)
        if at in (0, size):
            return dim if at else 0
        if isinstance(dim, SymDim) and len(dim.terms) > 1:
            total: Dim = 0
            for monomial, coefficient in dim.terms:
                total = total + SymDim.make({monomial: coefficient})
                if self.value(total) == at:
                    return total
        if 2 * at == size:
            half = self.fresh()
            self.sizes[str(half)] = at
            self.equal(dim, 2 * half)
            return self.resolve(half)
        raise ShapeError(f"a cut at {at} of {size}")


def _factors(dim: Dim) -> Counter[str]:
    """The symbols of a product, with their powers; empty where the dimension is none."""
    if not isinstance(dim, SymDim) or len(dim.terms) != 1 or dim.terms[0][1] != 1:
        return Counter()
    return Counter(dict(dim.terms[0][0]))


def lift(
    roots: Side, types: Mapping[str, TensorType], alike: bool = False, multiples: bool | None = None
) -> tuple[Side, dict[str, TensorType]] | None:
    """The program with symbols for its sizes; ``None`` where they cannot be told apart.

    Args:
        roots: outputs of a program.
        types: of its variables; all sizes are numbers.
        alike: whether equal sizes are one symbol: runtimes have operators for such sizes alone.
        multiples: whether multiples of a vector's length are multiples for all sizes; as ``alike`` where left out.
    """
    dims = _LiftedSizes(alike)
    shapes: dict[Term, Shape] = {}
    made: dict[Term, Term] = {}
    leaves: dict[str, Shape] = {}
    try:
        for term in walk(roots):
            if term.is_var:
                leaves[term.name] = tuple(dims.sized(d) for d in types[term.name].shape)
                shapes[term], made[term] = leaves[term.name], term
            elif term.op == "Const":
                shapes[term], made[term] = (), term
            else:
                operands = [dims.resolved(shapes[i]) for i in term.inputs]
                attrs = _attributes(dims, term, operands)
                made[term] = Term(term.op, attrs, tuple(made[i] for i in term.inputs), term.out)
                shapes[term] = output_shape(dims, made[term], [dims.resolved(shape) for shape in operands])
        sizes = [d for shape in leaves.values() for d in shape]
        values = [value for term in made.values() for _, value in term.attrs]
        sizes += [d for value in values for d in (value if isinstance(value, tuple) else (value,)) if isinstance(d, SymDim)]
        names = readable_symbols([dims.resolve(d) for d in sizes], set())
        if alike if multiples is None else multiples:
            names = {name: dim * _VECTOR if dims.sizes.get(name, 1) % _VECTOR == 0 else dim for name, dim in names.items()}
        symbolic = {
            name: TensorType(types[name].dtype, tuple(evaluate_dim(dims.resolve(d), names) for d in shape))
            for name, shape in leaves.items()
        }
        lifted = tuple(_resolved(root, made, dims, names) for root in roots)
        inferred = infer_types(lifted, symbolic)
        before = infer_types(roots, types)
    except (ShapeError, Undecided):
        return None
    if any(inferred[new].rank != before[old].rank for new, old in zip(lifted, roots, strict=True)):
        return None
    return lifted, symbolic


def _attributes(dims: _LiftedSizes, term: Term, operands: Sequence[Shape]) -> tuple[tuple[str, object], ...]:
    """The attributes with symbols for sizes."""
    attrs = dict(term.attrs)
    x = operands[0] if operands else ()
    if term.op == "Reshape":
        sizes = concrete(attrs["shape"])
        if sizes is None:
            raise Undecided("a Reshape to symbols")
        attrs["shape"] = dims.reshaped(x[len(x) - attrs["drop"] :], sizes)
    elif term.op == "Expand":
        lead = len(attrs["shape"]) - len(x)
        beside = (*(1,) * lead, *x) if lead >= 0 else x[-lead:]
        attrs["shape"] = tuple(
            d if dims.value(d) == size and size != 1 else dims.sized(size) for d, size in zip(beside, attrs["shape"], strict=True)
        )
    elif term.op == "Slice" and all(step == 1 for step in attrs["steps"]):
        places = [
            (dims.cut(x[a], s), dims.cut(x[a], e))
            for a, s, e in zip(*(attrs[n] for n in ("axes", "starts", "ends")), strict=True)
        ]
        attrs["starts"], attrs["ends"] = tuple(s for s, _ in places), tuple(e for _, e in places)
    elif term.op == "Split":
        parts = [dims.sized(size) for size in attrs["sizes"]]
        if len(set(attrs["sizes"])) == 1:
            parts = parts[:1] * len(parts)
        total: Dim = 0
        for part in parts:
            total = total + part
        dims.equal(x[attrs["axis"]], total)
        attrs["sizes"] = dims.resolved(parts)
    elif term.op == "Tile":
        attrs["repeats"] = tuple(map(dims.sized, attrs["repeats"]))
    elif not term.inputs:
        attrs |= {name: dims.sized(attrs[name]) for name in get_operator(term.op).sized & attrs.keys()}
    return tuple(attrs.items())


def _resolved(root: Term, made: Mapping[Term, Term], dims: Dimensions, names: Mapping[str, Dim]) -> Term:
    """The term with its symbols as they are bound in the end."""

    def final(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(final, value))
        return evaluate_dim(dims.resolve(value), names) if isinstance(value, SymDim) else value

    done: dict[Term, Term] = {}
    for term in walk([made[root]]):
        attrs = tuple((k, final(v)) for k, v in term.attrs)
        done[term] = Term(term.op, attrs, tuple(done[i] for i in term.inputs), term.out)
    return done[made[root]]
