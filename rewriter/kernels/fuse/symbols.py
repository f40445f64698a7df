"""Symbols that stand for sizes, and equations between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mugraph.terms.equations import isolated
from mugraph.terms.shape import Dim, SymDim, TensorType, evaluate_dim, same_dim, symbol

__all__ = ["SizeSymbols"]


class SizeSymbols:
    """Symbols for sizes; an equation between sizes is solved for one symbol, which the others then stand for.

    Ensures: with the sizes that they stand for, symbols in a dimension give the size that it had.

    Args:
        ones: 1 is a size as others, and not what is broadcast.
    """

    def __init__(self, ones: bool) -> None:
        self._ones = ones
        self._values: dict[str, Dim] = {}
        self._solved: dict[str, Dim] = {}

    @property
    def values(self) -> Mapping[str, Dim]:
        """The size that each symbol stands for."""
        return self._values

    @property
    def solved(self) -> Mapping[str, Dim]:
        """The symbols that were solved for, by those that are left."""
        return self._solved

    def fresh(self, value: Dim) -> Dim:
        """A symbol for a size; a size that is not one, or 1 where that is none, stays."""
        if isinstance(value, int) and value < (1 if self._ones else 2):
            return value
        name = f"?{len(self._values)}"  # no file can name it
        self._values[name] = value
        return symbol(name)

    def now(self, dim: Dim) -> Dim:
        """A dimension by the symbols that are left."""
        return evaluate_dim(dim, self._solved)

    def typed(self, type_: TensorType) -> TensorType:
        return TensorType(type_.dtype, tuple(map(self.now, type_.shape)))

    def value(self, dim: Dim) -> Dim:
        """The size that a dimension stands for."""
        return evaluate_dim(self.now(dim), self._values)

    def _set(self, name: str, dim: Dim) -> None:
        self._solved = {n: evaluate_dim(d, {name: dim}) for n, d in self._solved.items()} | {name: dim}

    def keep(self, dims: Sequence[Dim]) -> bool:
        """Puts a size back in place of its symbol, of some the least: a number of heads rather than their width.

        Returns:
            whether there was a symbol.
        """
        present = {name for dim in map(self.now, dims) if isinstance(dim, SymDim) for name in dim.symbols()}
        names = [name for name in self._values if name in present]
        if names:
            least = min(names, key=lambda name: n if isinstance(n := self._values[name], int) else math.inf)
            self._set(least, self._values[least])
        return bool(names)

    def _place(self, name: str) -> int:
        return list(self._values).index(name)

    def equate(self, first: Dim, second: Dim) -> bool:
        """Makes two dimensions equal that stand for one size; whether anything changed."""
        changed = False
        while same_dim(a := self.now(first), b := self.now(second)) is None and self.value(a) == self.value(b):
            solution = self._solution(a, b) or self._pair(a, b)
            if solution is not None:
                self._set(*solution)
            elif not self.keep([a, b]):
                return changed
            changed = True
        return changed

    def _pair(self, a: Dim, b: Dim) -> tuple[str, Dim] | None:
        """A symbol of one product and its like in another that is equal to it."""
        first, second = ([n for n in self._values if n in d.symbols()] if isinstance(d, SymDim) else [] for d in (a, b))
        for x, y in itertools.product(first, second):
            if x not in second and y not in first and self._values[x] == self._values[y]:
                early, late = sorted((x, y), key=self._place)
                return late, symbol(early)
        return None

    def _solution(self, a: Dim, b: Dim) -> tuple[str, Dim] | None:
        """A symbol, the last one where there is a choice, and what it is for two sizes to be equal."""
        return isolated(a, b, list(reversed(self._values)))
