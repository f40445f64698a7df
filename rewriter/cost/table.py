"""Cost tables: measured costs as a file, so that a model can be optimised for a device that is not there.

A table holds one environment: device, driver, onnxruntime version and provider, in words. Tables of different environments
are never mixed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewriter.cost.store import ProfileError, is_plausible
from rules_db.files import StoreError, write_text

__all__ = ["CostTable", "merge_tables", "read_table", "write_table"]

FORMAT = 2
"""Counted up when costs are measured in another way, too."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured costs of one environment.

    Attributes:
        environment: what they hold for.
        version: of onnxruntime.
        provider: ``cpu`` or ``cuda``.
        costs: signature to microseconds.
        schedules: of the kernels among them, as the store keeps them.
    """

    environment: str
    version: str
    provider: str
    costs: Mapping[str, float]
    schedules: Mapping[str, str] = field(default_factory=dict)


def read_table(path: Path) -> CostTable:
    """Reads a table. Raises :class:`ProfileError` for a file that is none, naming it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not JSON"
        raise ProfileError(f"{path}: cannot read the cost table ({reason}); 'superopt-costs export' writes one") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ProfileError(f"{path}: not a cost table of format {FORMAT}; 'superopt-costs export' writes one")
    environment, version, provider = (data.get(name) for name in ("environment", "onnxruntime", "provider"))
    costs: Any = data.get("costs")
    schedules: Any = data.get("schedules", {})
    sound = isinstance(costs, dict) and all(map(is_plausible, costs.values()))
    sound = sound and isinstance(schedules, dict) and schedules.keys() <= costs.keys()
    sound = sound and all(isinstance(text, str) for text in schedules.values())
    if not sound or not (isinstance(environment, str) and isinstance(version, str) and provider in ("cpu", "cuda")):
        raise ProfileError(f"{path}: a cost table with missing or impossible entries; export it again")
    return CostTable(environment, version, provider, costs, schedules)


def write_table(table: CostTable, path: Path) -> None:
    """Writes a table whole or not at all, in an order that does not depend on how it came about."""
    data = {
        "format": FORMAT,
        "environment": table.environment,
        "onnxruntime": table.version,
        "provider": table.provider,
        "costs": {signature: round(table.costs[signature], 3) for signature in sorted(table.costs)},
        "schedules": {kernel: table.schedules[kernel] for kernel in sorted(table.schedules)},
    }
    try:
        write_text(path, json.dumps(data, indent=1) + "\n")
    except StoreError as problem:
        raise ProfileError(str(problem)) from None


def merge_tables(tables: Sequence[CostTable]) -> CostTable:
    """One table of several of one environment; the smaller of two times stays, since disturbances only add.

    Raises:
        ProfileError: two environments differ; both are named.
    """
    first, *others = tables
    costs, schedules = dict(first.costs), dict(first.schedules)
    for other in others:
        if other.environment != first.environment:
            raise ProfileError(
                f"cost tables of different environments are not mixed: '{first.environment}' and '{other.environment}'"
            )
        for signature, microseconds in other.costs.items():
            if microseconds < costs.get(signature, math.inf):
                costs[signature] = microseconds
                schedules.pop(signature, None)
                if signature in other.schedules:
                    schedules[signature] = other.schedules[signature]
    return CostTable(first.environment, first.version, first.provider, costs, schedules)
