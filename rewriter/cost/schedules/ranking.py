"""The schedules of a kernel that are worth a trial, and their predicted times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule, check_memory
from rewriter.cost.devices import Device
from rewriter.cost.schedules.arrays import ScheduleArrays
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.processor import MATRIX
from rewriter.cost.schedules.space import axis_of_few_rows, fitting
from rewriter.cost.schedules.tilings import Floats
from rewriter.cost.schedules.times import TimeModel

__all__ = ["candidates", "default_schedules", "least_time", "predict", "predict_all", "ranked"]

_SHARES = (0.4, 0.3, 0.3)
"""Of the schedules to try: different tilings and splits, different numbers of warps, whatever is left."""
_MARGIN = 2.0
"""How many times as long as the model says tiles of few rows took where they were timed (docs/attention.md)."""
_DIGITS = 9
"""Of a time: the last bits are the processor's own."""
_BASE = 1 << 10
"""More than any split or number of warps: the base of the numbers that stand for groups of schedules."""


def ranked(
    kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None, most: int = 40
) -> list[tuple[float, tuple[Schedule, ...]]]:
    """The schedules worth a trial, the most promising first, with their predicted microseconds.

    They differ in tilings, splits and warps as much as in the model's favour, so that a wrong model loses little. Of a
    kernel of several block graphs, one is varied at a time. Of tiles of few rows the time is predicted with a
    margin.

    Args:
        sizes: of the kernel's dimension symbols, as they will be measured.
        most: schedules that are returned.

    Raises:
        InvalidBlock: no schedule fits the device.
        Undecided: a size is not known.
    """
    models = _models(kernel, device, sizes)
    per_block = [_ranked_of_block(model, most) for model in models]
    _check(models)
    best = tuple(timed[0][1] for timed in per_block)
    total = sum(timed[0][0] for timed in per_block)
    result = {best: total}
    for number, timed in enumerate(per_block):
        for time, schedule in timed[1:]:
            result[(*best[:number], schedule, *best[number + 1 :])] = total - timed[0][0] + time
    order = sorted(result.items(), key=lambda item: item[1])[:most]
    return [(time, schedules) for schedules, time in order]


def least_time(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None) -> float:
    """The predicted microseconds of the first of :func:`ranked`, which orders none of the others for it. Raises as that."""
    models = _models(kernel, device, sizes)
    total = sum(_least_of_block(_Pricing(device.name, model.figures.key, model)) for model in models)
    _check(models)
    return total


@dataclass(frozen=True, slots=True)
class _Pricing:
    """A question for the least time of a block graph: kernels share those that are equal up to names.

    Attributes:
        key: of the block graph (:attr:`BlockFigures.key`).
    """

    device: str
    key: bytes
    model: TimeModel = field(compare=False)


@lru_cache(maxsize=4096)
def _least_of_block(pricing: _Pricing) -> float:
    return float(np.min(_times_of_block(pricing.model)[1]))


def default_schedules(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None) -> tuple[Schedule, ...]:
    """The schedules that the model likes best. Raises as :func:`ranked`."""
    return ranked(kernel, device, sizes, most=1)[0][1]


def candidates(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None) -> list[list[Schedule]]:
    """Every schedule that fits, for each block graph. Raises as :func:`ranked`."""
    models = _models(kernel, device, sizes)
    every = [fitting(model) for model in models]
    _check(models)
    return [[schedules[number] for number in range(len(schedules))] for schedules in every]


def predict(kernel: Kernel, schedules: Sequence[Schedule], device: Device, sizes: Mapping[str, int] | None = None) -> float:
    """Microseconds of a kernel, all launches, replayed from a CUDA graph.

    Raises:
        Undecided: a size is not known.
    """
    return float(predict_all(kernel, [schedules], device, sizes)[0])


def predict_all(
    kernel: Kernel, choices: Sequence[Sequence[Schedule]], device: Device, sizes: Mapping[str, int] | None = None
) -> Floats:
    """Microseconds of a kernel under each of several choices of schedules, also of ones that other sizes suggest.

    Raises:
        Undecided: a size is not known.
    """
    total = np.zeros(len(choices))
    for number, model in enumerate(_models(kernel, device, sizes)):
        total += model.microseconds(ScheduleArrays.of(model.figures, [schedules[number] for schedules in choices]))
    return np.round(total, _DIGITS)


def _models(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None) -> list[TimeModel]:
    return [TimeModel(BlockFigures(kernel, block, sizes or {}), device) for block in kernel.blocks]


def _check(models: Sequence[TimeModel]) -> None:
    """What of a kernel's memory does not depend on its schedules. Raises InvalidBlock."""
    check_memory(models[0].figures.kernel, models[0].limits)


def _ranked_of_block(model: TimeModel, most: int) -> list[tuple[float, Schedule]]:
    """The best of each tiling and split first, then the best for other numbers of warps, then what else is good."""
    schedules, times = _times_of_block(model)
    tiles = [schedules.tilings.tiles[axis][schedules.at] for axis in reversed(model.figures.cut)]
    order = np.lexsort((*tiles, schedules.group, schedules.stages, schedules.warps, times))
    schedules, times = schedules.where(order), times[order]
    of_tiling_and_split = schedules.at * _BASE + schedules.split
    rivals = (of_tiling_and_split, of_tiling_and_split * _BASE + schedules.warps, np.arange(len(schedules)))
    picked = np.empty(0, np.int64)
    for group, share in zip(rivals, _SHARES, strict=True):
        room = min(len(picked) + math.ceil(share * most), most) - len(picked)
        _, first = np.unique(group, return_index=True)
        fresh = np.sort(first[~np.isin(group[first], group[picked])])
        picked = np.append(picked, fresh[: max(room, 0)])
    return [(float(times[i]), schedules[i]) for i in np.sort(picked)]


def _times_of_block(model: TimeModel) -> tuple[ScheduleArrays, Floats]:
    """Every schedule of a block graph that fits, and its predicted microseconds."""
    schedules = fitting(model)
    times = model.microseconds(schedules)
    axis = axis_of_few_rows(model.figures)
    if axis is not None:
        times = np.where(schedules.tilings.tiles[axis][schedules.at] < MATRIX, _MARGIN * times, times)
    return schedules, np.round(times, _DIGITS)
