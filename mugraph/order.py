"""What rests on other things, each after these: terms after their operands, nodes after those whose results they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["operands_first"]

_T = TypeVar("_T")


def operands_first(roots: Iterable[_T], operands: Callable[[_T], Sequence[_T]], seen: set[_T] | None = None) -> Iterator[_T]:
    """Some things and all that they rest on, each once, operands first. Iterative: how deep they go is not bounded.

    Args:
        roots: none of them is ``None``; the first comes first, behind what it rests on.
        operands: of one of them, asked once, before any of them comes.
        seen: things to leave out with all that they rest on; those that are given enter it.
    """
    seen = set() if seen is None else seen
    stack: list[Any] = [*roots][::-1]
    while stack:
        thing = stack.pop()
        if thing is None:  # what is below comes after its operands
            yield stack.pop()
        elif thing not in seen:
            seen.add(thing)
            stack.append(thing)
            stack.append(None)
            stack.extend(operands(thing)[::-1])
