"""Patterns of laws: terms whose variables, attribute variables and dimension symbols are places of a binding.

A binding is a list: term variables first (class or node numbers), then attribute variables, then dimension symbols, then the
values that computed dimensions have to agree with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.terms.shape import SymDim, evaluate_dim
from mugraph.terms.term import AttrValue
from rulegen.prove.language import Language

__all__ = [
    "Apply",
    "Binding",
    "Computed",
    "Pattern",
    "Slot",
    "applications",
    "bound_slots",
    "fill",
    "match_value",
    "measure",
    "operator_of",
]


@dataclass(frozen=True, slots=True)
class Slot:
    """A term variable, an attribute variable or a dimension symbol: a place of the binding."""

    index: int


@dataclass(frozen=True, slots=True)
class Computed:
    """A dimension such as ``n+p``; ``index`` is where the value that it met is kept."""

    dim: SymDim
    symbols: tuple[tuple[str, int], ...]
    index: int


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator pattern; ``ground`` is the number of the operator where no attribute is open."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    out: int
    operands: tuple[Pattern, ...]
    ground: int | None
    depth: int


Pattern = Slot | Apply
Binding = list[Any]


def applications(patterns: Iterable[Pattern]) -> Iterator[Apply]:
    """The operators in patterns."""
    for pattern in patterns:
        if isinstance(pattern, Apply):
            yield pattern
            yield from applications(pattern.operands)


def bound_slots(value: Any) -> Iterator[int]:
    """Slots that matching an attribute value binds, those of computed dimensions included."""
    if isinstance(value, (Slot, Computed)):
        yield value.index
    elif isinstance(value, tuple):
        for entry in value:
            yield from bound_slots(entry)


def match_value(pattern: Any, value: AttrValue, binding: Binding) -> bool:
    """Whether an attribute value is as the pattern says; binds the slots that it meets first."""
    if isinstance(pattern, Slot):
        before = binding[pattern.index]
        if before is None:
            binding[pattern.index] = value
            return True
        return bool(before == value)
    if isinstance(pattern, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(pattern)
            and all(match_value(p, v, binding) for p, v in zip(pattern, value, strict=True))
        )
    if isinstance(pattern, Computed):
        binding[pattern.index] = value
        return True
    return bool(pattern == value)


def fill(pattern: Any, binding: Sequence[Any]) -> AttrValue:
    """The attribute value that a pattern of one stands for under a binding."""
    if isinstance(pattern, Slot):
        return binding[pattern.index]
    if isinstance(pattern, Computed):
        return evaluate_dim(pattern.dim, {name: binding[slot] for name, slot in pattern.symbols})
    return tuple(fill(p, binding) for p in pattern) if isinstance(pattern, tuple) else pattern


def operator_of(language: Language, pattern: Apply, binding: Sequence[Any]) -> int:
    """The number of the operator that a pattern stands for under a binding."""
    if pattern.ground is not None:
        return pattern.ground
    return language.op(pattern.op, tuple([(k, fill(v, binding)) for k, v in pattern.attrs]), pattern.out)


def measure(pattern: Pattern) -> tuple[int, tuple[int, ...]]:
    """The number of a pattern's operators, and the variables in its leaves."""
    if isinstance(pattern, Slot):
        return 0, (pattern.index,)
    parts = [measure(operand) for operand in pattern.operands]
    return sum([count for count, _ in parts]) + bool(parts), tuple(v for _, leaves in parts for v in leaves)
