"""The terms and classes of an enumeration, as text."""

from __future__ import annotations

from rulegen.enumerate.enumeration import Enumeration

__all__ = ["partition", "texts"]


def partition(enumeration: Enumeration) -> set[frozenset[str]]:
    """The classes with company, as texts."""
    members: dict[int, set[str]] = {}
    for row, cls in enumerate(enumeration.table.cls.tolist()):
        members.setdefault(cls, set()).add(repr(enumeration.term(row)))
    return {frozenset(texts) for texts in members.values() if len(texts) > 1}


def texts(enumeration: Enumeration) -> set[str]:
    """All terms that were kept."""
    return {repr(enumeration.term(row)) for row in range(len(enumeration.table.cls))}
