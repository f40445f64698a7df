"""Rules as the generator hands them on: readable names, and the version that their provenance tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rulegen.candidate import symbols_of
from rules_db.trust.rule import Rule

__all__ = ["GENERATOR_VERSION", "readable"]

GENERATOR_VERSION = 3
"""Raised when the generator's output changes for equal parameters; part of every rule's provenance."""


def readable(rule: Rule) -> Rule:
    """The rule with names as people write them: x, y, z for variables and m, n, k for dimensions, in order of occurrence."""
    canonical = rule.canonical()
    dims = symbols_of(canonical.types)
    return canonical.rename(
        dict(zip(canonical.types, _names("xyzwuvabcdefgh"), strict=False)),
        dict(zip(sorted(dims, key=lambda d: int(d[1:])), _names("mnkpqrst"), strict=False)),
    )


def _names(letters: str) -> Iterator[str]:
    for round_ in itertools.count():
        yield from (f"{letter}{round_ or ''}" for letter in letters)
