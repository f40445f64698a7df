"""Unknown dimensions and their unification."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mugraph.terms.shape import Dim, Shape, ShapeError, SymDim, evaluate_dim, plain_symbol, symbol

__all__ = ["Dimensions", "readable_symbols"]


class Dimensions:
    """Dimension symbols, and the dimensions that operators have bound them to.

    Args:
        bound: symbols that are bound already.
        count: nameless symbols that are in use already.
    """

    def __init__(self, bound: Mapping[str, Dim] | None = None, count: int = 0) -> None:
        self.bound: dict[str, Dim] = dict(bound or {})
        self._count = count

    def copy(self) -> Dimensions:
        """The same symbols and bindings, which change apart from these."""
        return Dimensions(self.bound, self._count)

    def fresh(self) -> SymDim:
        """A symbol that stands for any size; no text can name it."""
        self._count += 1
        return symbol(f"?{self._count}")

    def shape(self, rank: int) -> Shape:
        """A shape of so many dimensions, each of any size."""
        return tuple(self.fresh() for _ in range(rank))

    def resolve(self, dim: Dim) -> Dim:
        """The dimension with bound symbols replaced."""
        while isinstance(dim, SymDim) and not dim.symbols().isdisjoint(self.bound):
            dim = evaluate_dim(dim, self.bound)
        return dim

    def resolved(self, shape: Sequence[Dim]) -> Shape:
        """The shape with bound symbols replaced."""
        return tuple(self.resolve(d) for d in shape)

    def equal(self, a: Dim, b: Dim) -> None:
        """Makes two dimensions equal. Raises ShapeError where no positive sizes do that."""
        a, b = self.resolve(a), self.resolve(b)
        difference = a - b
        if isinstance(difference, int):
            if difference:
                raise ShapeError(f"a dimension would be {_show(a)} and {_show(b)}")
            return
        common = math.gcd(*(c for _, c in difference.terms))
        sides = [SymDim.make({m: sign * c // common for m, c in difference.terms if sign * c > 0}) for sign in (1, -1)]
        if 0 in sides:
            raise ShapeError(f"a dimension would be {_show(a)} and {_show(b)}")
        for one, other in (sides, sides[::-1]) if _is_fresh(sides[0]) else (sides[::-1], sides):
            if (name := plain_symbol(one)) is not None:
                if isinstance(other, SymDim) and name in other.symbols():
                    break
                self.bound[name] = other
                return
        self._pair_up(*sides)

    def _pair_up(self, a: Dim, b: Dim) -> None:
        """Sums without a common symbol, such as p + q = r + s: the first symbols are made equal, then the rest."""
        linear = [_linear(side) for side in (a, b)]
        if isinstance(a, int) or isinstance(b, int):
            number, side, symbols = (a, b, linear[1]) if isinstance(a, int) else (b, a, linear[0])
            assert isinstance(number, int)
            if not symbols:
                raise ShapeError(f"{_show(side)} would be {number}")
            coefficient = dict(side.terms)[((symbols[0], 1),)] if isinstance(side, SymDim) else 1
            share = (number - (len(symbols) - 1)) // coefficient if len(symbols) > 1 else number // coefficient
            if share < 1 or (len(symbols) == 1 and share * coefficient != number):
                raise ShapeError(f"{_show(side)} would be {number}")
            self.bound[symbols[0]] = share
        elif linear[0] and linear[1]:
            self.bound[linear[0][0]] = symbol(linear[1][0])
        else:
            raise ShapeError(f"{_show(a)} would be {_show(b)}")
        self.equal(a, b)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The common shape of operands that are combined entry by entry; a size of 1 is repeated."""
        result: list[Dim] = []
        for position in range(-max(map(len, shapes)), 0):
            dims = [self.resolve(s[position]) for s in shapes if -position <= len(s)]
            wide = [d for d in dims if d != 1] or [1]
            for other in wide[1:]:
                self.equal(wide[0], other)
            result.append(wide[0])
        return self.resolved(result)

    def match(self, a: Shape, b: Shape) -> None:
        """Makes two shapes equal."""
        if len(a) != len(b):
            raise ShapeError(f"tensors of {len(a)} and of {len(b)} dimensions")
        for x, y in zip(a, b, strict=True):
            self.equal(x, y)


def _show(dim: Dim) -> str:
    return str(dim).replace("?", "d")


def _is_fresh(dim: Dim) -> bool:
    return isinstance(dim, SymDim) and str(dim).startswith("?")


def _linear(dim: Dim) -> list[str]:
    """Symbols that a sum holds on their own."""
    return [m[0][0] for m, _ in dim.terms if len(m) == 1 and m[0][1] == 1] if isinstance(dim, SymDim) else []


_LETTERS = "mnkpqrstabcdefgh"


def readable_symbols(dimensions: Sequence[Dim], taken: set[str]) -> dict[str, Dim]:
    """Names m, n, k, ... for the nameless symbols, in order of occurrence, beside those that are taken."""
    names = (f"{letter}{i or ''}" for i in itertools.count() for letter in _LETTERS)
    free = (name for name in names if name not in taken)
    met = [name for d in dimensions if isinstance(d, SymDim) for monomial, _ in d.terms for name, _ in monomial]
    return {name: symbol(next(free)) for name in dict.fromkeys(met) if name.startswith("?")}
