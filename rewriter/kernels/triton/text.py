"""The text of one function in the making: lines, their depth, and the dimension symbols that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mugraph.terms.shape import Dim, Least, Monomial, WholePart
from rewriter.kernels.text.thread import Expr, bare

__all__ = ["PART_AXIS", "FunctionText", "laid_under"]


class FunctionText:
    """Lines of a function's body.

    Attributes:
        lines: so far.
        symbols: dimension symbols in them: arguments of the function.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.symbols: set[str] = set()
        self._depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def assign(self, name: str, text: str) -> None:
        self.line(f"{name} = {text}")

    def define(self, name: str, value: Expr) -> None:
        """Assigns an expression."""
        self.assign(name, bare(value.text))

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Lines of the statement that was written last."""
        self._depth += 1
        yield
        self._depth -= 1

    def size(self, dim: Dim) -> str:
        """A size as text, a product or sum in parentheses."""
        if isinstance(dim, int):
            return str(dim)
        text = "+".join(self._monomial(factors, coefficient) for factors, coefficient in dim.terms).replace("+-", "-")
        return text if text.isidentifier() else f"({text})"

    def _monomial(self, factors: Monomial, coefficient: int) -> str:
        """A product of symbols as text. Symbols are of 32 bits; a product of two of them may be longer, as offsets are there."""
        names = [self._symbol(name) for name, power in factors for _ in range(power)]
        if len(names) > 1:
            names[0] = f"tl.cast({names[0]}, tl.int64)"
        return "*".join([str(coefficient), *names] if coefficient != 1 or not names else names)

    def _symbol(self, name: str) -> str:
        """A symbol as text: an argument, or what is computed of others."""
        if isinstance(name, Least):
            return f"tl.minimum({self.size(name.first)}, {self.size(name.second)})"
        if isinstance(name, WholePart):
            return f"({self.size(name.first)} // {name.second})"
        self.symbols.add(name)
        return name

    def times(self, text: str, stride: Dim) -> str:
        return text if stride == 1 else f"{text} * {self.size(stride)}"


PART_AXIS = "part"
"""The axis along which the states of several parts of a loop lie, where they are one tile."""


def laid_under(text: str, axes: Sequence[str], wanted: Sequence[str]) -> str:
    """A Triton tensor over ``axes`` laid under ``wanted``, which holds them all: ``x[:, None]``."""
    if not axes or tuple(axes) == tuple(wanted):
        return text
    return f"{text}[{', '.join(':' if axis in axes else 'None' for axis in wanted)}]"
