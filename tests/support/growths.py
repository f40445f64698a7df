"""Growths and shipped rules, each made or read once a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rulegen.cli.growing import SHIPPED
from rulegen.grow.growth import Growth
from rulegen.grow.stages import grow, grow_parts
from rulegen.workloads import GROUPS, WORKLOADS
from rules_db.exchange import read_rules
from rules_db.trust.rule import Rule

__all__ = ["SHIPPING", "grown", "grown_part", "shipped_file", "shipped_group"]

SHIPPING = [group for group, parts in GROUPS.items() if parts[0].ships]
"""The groups whose rules ship."""


@cache
def grown(group: str) -> list[Growth]:
    """The growths of a group's parts."""
    return grow_parts(GROUPS[group])


@cache
def grown_part(name: str, max_ops: int | None = None) -> Growth:
    """The growth of one workload alone."""
    return grow(WORKLOADS[name], max_ops)


def shipped_file(group: str) -> Path:
    """The shipped text of a group."""
    return SHIPPED / f"{group}.rules"


@cache
def shipped_group(group: str) -> tuple[Rule, ...]:
    """The shipped rules of a group."""
    return tuple(read_rules(shipped_file(group)))
