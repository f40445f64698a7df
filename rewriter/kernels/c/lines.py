"""The text of one function in the making: lines, their depth, names that are free, and the dimension symbols in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mugraph.terms.shape import Dim, Least, WholePart

__all__ = ["CLines", "times"]


class CLines:
    """CLines of a function's body.

    Args:
        taken: names that mean something already.

    Attributes:
        lines: so far.
        symbols: dimension symbols in them: arguments of the function.
        stack: bytes of the arrays in them, by name, but for those that are only there under a condition.
    """

    def __init__(self, taken: set[str]) -> None:
        self.lines: list[str] = []
        self.symbols: set[str] = set()
        self.stack: dict[str, int] = {}
        self._conditional: dict[str, dict[str, int]] = {}
        self._taken = set(taken)
        self._depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def fresh(self, name: str) -> str:
        """A name that nothing has, which it then has; the points in it become underscores."""
        name = name.replace(".", "_")
        free, number = name, 1
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free

    def stem(self, name: str) -> str:
        """A fresh name, which nothing has with a number behind it either."""
        name = name.replace(".", "_")
        while any(other == name or re.fullmatch(rf"{name}_\d+", other) for other in self._taken):
            name += "_"
        return self.fresh(name)

    def take(self, name: str) -> None:
        """Says that something has a name."""
        self._taken.add(name)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What stands in braces behind a head."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What the compiler reads under a condition alone, which excludes others."""
        always, self.stack = self.stack, self._conditional.setdefault(condition, {})
        self.lines.append(f"#{condition}")
        yield
        self.lines.append("#endif")
        self.stack = always

    @property
    def stack_bytes(self) -> int:
        """Of all arrays, under the condition that asks most."""
        most = max((sum(arrays.values()) for arrays in self._conditional.values()), default=0)
        return sum(self.stack.values()) + most

    def size(self, dim: Dim) -> str:
        """A size as text, a product or sum in parentheses."""
        if isinstance(dim, int):
            return str(dim)
        parts = []
        for factors, coefficient in dim.terms:
            names = [self._symbol(name) for name, power in factors for _ in range(power)]
            parts.append(" * ".join([str(coefficient), *names] if coefficient != 1 or not names else names))
        text = " + ".join(parts).replace("+ -", "- ")
        return text if text.isidentifier() else f"({text})"

    def _symbol(self, name: str) -> str:
        """A symbol as text: an argument, or what is computed of others."""
        if isinstance(name, Least):
            return f"at_least({self.size(name.first)}, {self.size(name.second)})"
        if isinstance(name, WholePart):
            return f"({self.size(name.first)} / {name.second})"
        self.symbols.add(name)
        return name


def times(text: str, factor: str) -> str:
    """A product, of which ones are left out."""
    return text if factor == "1" else factor if text == "1" else f"{text} * {factor}"
