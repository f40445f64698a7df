"""What was measured: read from lines, and shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.bench.attention.cases import MASKS, PEERS, TOLD, every_case


def read_lines(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """By case and part what was found last; a line that was cut short is left out."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            found.setdefault(entry["case"], {})[entry["part"]] = entry
        except (ValueError, KeyError):
            continue
    return found


def _geomean(numbers: Iterable[float]) -> float:
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def show(found: dict[str, dict[str, dict[str, Any]]], console: Console) -> None:
    """Prints the table, the means, and all problems."""
    table = Table(title="attention under a mask, 12 heads of 64 in half precision: microseconds on the GPU")
    for column in (
        "case",
        "density",
        "predicted",
        "ours",
        "kind",
        "in ort",
        TOLD,
        *PEERS,
        "best torch / ours",
        "flex / ours",
        "error",
    ):
        table.add_column(column, justify="left" if column in ("case", "kind") else "right")
    over_best, over_flex = list[float](), list[float]()
    for case in every_case():
        parts = found.get(case.label)
        if parts is None:
            continue
        us = {name: part["us"] for name, part in parts.items() if "us" in part}
        torch_times = [us[name] for name in ("flex", "sdpa") if name in us]
        best = min(torch_times, default=math.nan) / us.get("ours", math.nan)
        flex = us.get("flex", math.nan) / us.get("ours", math.nan)
        if len(torch_times) == 2 and case.name in MASKS and not math.isnan(best):
            over_best.append(best)
            over_flex += [flex] if case.name in MASKS[:4] else []
        ours = parts.get("ours", {})
        table.add_row(
            case.label,
            f"{case.density:.3f}",
            in_digits(ours.get("predicted")),
            in_digits(us.get("ours")),
            ours.get("kind", ""),
            in_digits(us.get("in ort")),
            in_digits(us.get(TOLD)),
            *(in_digits(us.get(peer)) for peer in PEERS),
            in_digits(best, 2),
            in_digits(flex, 2),
            f"{ours['error']:.1e}" if "error" in ours else "",
        )
    console.print(table)
    console.print(
        f"geometric means: {_geomean(over_best):.2f} over the better of SDPA and FlexAttention ({len(over_best)} cases, least "
        f"{min(over_best, default=math.nan):.2f}); {_geomean(over_flex):.2f} over FlexAttention on {', '.join(MASKS[:4])}"
    )
    for label, parts in found.items():
        for name, part in parts.items():
            for problem in [part["problem"]] if "problem" in part else part.get("problems", []):
                console.print(f"{label} {name}: {problem}", markup=False)


def in_digits(value: float | None, digits: int = 1) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"
