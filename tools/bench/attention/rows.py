"""Tiles of few rows beside larger ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import schedule_to_json
from rewriter.cost.devices import get_device
from rewriter.cost.schedules import candidates
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.ranking import predict_all
from rewriter.cost.schedules.space import axis_of_few_rows
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.measure.processes import KernelTimer
from rewriter.kernels.measure.trials import best_of, trials
from rewriter.kernels.triton.compile import Compiler
from tools.bench.attention.cases import MASKS, MaskCase, kernels_of_case
from tools.bench.attention.tables import in_digits

ROW_LENGTHS = (128, 256)
"""Of the masks for which tiles of few rows are timed."""
FEW_ROWS, BLOCKS = "few rows", "blocks"


def row_cases() -> list[MaskCase]:
    """The masks for which tiles of few rows are timed."""
    return [MaskCase(name, 1, length) for length in ROW_LENGTHS for name in MASKS]


def schedules_by_rows(kernel: Kernel, device: str, most: int) -> dict[str, list[tuple[float, Schedule]]]:
    """The schedules with tiles of few rows and all others, the most promising first, each with its predicted microseconds.

    Args:
        kernel: of one block graph, over a stored mask.
        most: of each, no two of one tiling and split.
    """
    (schedules,), (block,) = candidates(kernel, get_device(device)), kernel.blocks
    axis = axis_of_few_rows(BlockFigures(kernel, block, {}))
    assert axis is not None, "masks of so few positions have tiles of few rows"
    times = predict_all(kernel, [(schedule,) for schedule in schedules], get_device(device))
    found: dict[str, dict[tuple[Any, ...], tuple[float, Schedule]]] = {FEW_ROWS: {}, BLOCKS: {}}
    for number in np.argsort(times, kind="stable"):
        schedule = schedules[number]
        found[FEW_ROWS if schedule.tile(axis) < 16 else BLOCKS].setdefault(
            (schedule.tiles, schedule.split), (float(times[number]), schedule)
        )
    return {kind: list(each.values())[:most] for kind, each in found.items()}


def rows_of_case(
    case: MaskCase, timer: KernelTimer, compiler: Compiler, device: str, architecture: Architecture, most: int
) -> dict[str, Any]:
    """By kind the best time, the prediction for it, the best prediction, and all that was tried."""
    kernel = kernels_of_case(case)["list"]
    result: dict[str, Any] = {}
    for kind, worth in schedules_by_rows(kernel, device, most).items():
        compiled, problems = trials(kernel, [(schedule,) for _, schedule in worth], compiler, architecture)
        predicted = {schedule: time_us for time_us, schedule in worth}
        measured = timer.measure(kernel, compiled, {})
        best = best_of(measured)
        tried = [
            {"us": r.microseconds, "predicted": predicted[r.schedules[0]], "schedule": schedule_to_json(r.schedules[0])}
            for r in measured
            if r.microseconds is not None
        ]
        result[kind] = {
            "us": best.microseconds,
            "error": best.error,
            "predicted of it": predicted[best.schedules[0]],
            "predicted": worth[0][0],
            "tried": sorted(tried, key=lambda each: float(each["us"])),
            "problems": [*problems, *(r.problem for r in measured if r.problem)][:3],
        }
    return result


def equation_1(case: MaskCase) -> tuple[float, float]:
    """Both sides of the inequality by which STOF takes its kernel by rows (section 4.2.3): it does where the first is less."""
    count = -(-case.length // 16)
    tiles = np.zeros((count * 16, count * 16), bool)
    tiles[: case.length, : case.length] = case.entries
    shown = tiles.reshape(count, 16, count, 16).any(axis=(1, 3)).sum()
    return float(shown) / count**2, 1.2 / math.log2(count) ** 2


def show_rows(found: dict[str, dict[str, dict[str, Any]]], console: Console) -> None:
    """Prints what was measured of rows and blocks, beside what was predicted."""
    table = Table(title="one sequence, 12 heads of 64 in half precision: microseconds of tiles of few rows and of blocks")
    for column in (
        "case",
        "density",
        "equation 1",
        "rows",
        "predicted",
        "of it",
        "blocks",
        "predicted",
        "of it",
        "gain",
        "predicted",
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in row_cases():
        entry = found.get(case.label, {}).get("rows", {})
        if FEW_ROWS not in entry:
            continue
        kinds = [entry[FEW_ROWS], entry[BLOCKS]]
        left, right = equation_1(case)
        times = [number for kind in kinds for number in (kind["us"], kind["predicted"], kind["predicted of it"])]
        gains = [kinds[1][key] / kinds[0][key] for key in ("us", "predicted")]
        table.add_row(
            case.label,
            f"{case.density:.3f}",
            f"{left:.3f} {'<' if left < right else '>'} {right:.3f}",
            *(in_digits(number, 2) for number in (*times, *gains)),
        )
    console.print(table)
