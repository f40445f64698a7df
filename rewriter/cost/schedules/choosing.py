"""Which few schedules a kernel of symbolic sizes carries, and how the sizes of a run choose among them.

Every schedule that is good somewhere on a grid of sizes is priced on all of it. What it takes beside the best one of the same
sizes is its *regret* there. Variants are intervals of one measure, a symbol or a product of symbols: the best intervals, and the
best schedule for each, follow from all of them by dynamic programming, so that nothing is chosen which the decision at run time
does not realise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.variants import Variants
from mugraph.terms.shape import Dim, evaluate_dim, product, symbol
from rewriter.cost.devices import Device
from rewriter.cost.schedules.ranking import predict_all, ranked
from rewriter.cost.schedules.tilings import Floats

__all__ = ["SchedulePrices", "points_of"]

Schedules = tuple[Schedule, ...]
Sizes = Mapping[str, int]

_MOST = 5
"""Variants of a kernel: each is compiled for every architecture and stands in the file."""
_GOOD = 1.1
"""A largest regret that is small enough."""
_LITTLE = 1.02
"""Regret for whose sake no further variant is made."""
_UNTRIED = 1.05
"""What a schedule that was not measured takes at least, beside the best one that was."""
_A_POINT = 8
"""Schedules that are taken from each point of the grid."""


def points_of(kernel: Kernel, sizes: Sizes, grid: Sequence[Sizes]) -> list[dict[str, int]]:
    """The sizes of a kernel's own symbols: as the model is tuned, then those of a grid, each once."""
    named = [{name: each[name] for name in kernel.symbols if name in each} for each in (sizes, *grid)]
    return [named[i] for i in range(len(named)) if named[i] not in named[:i]]


@dataclass(frozen=True, eq=False)
class SchedulePrices:
    """What schedules of a kernel take at the points of a grid.

    Attributes:
        points: sizes of the kernel's symbols, first those that the model is tuned for.
        schedules: those that are good somewhere.
        times: microseconds of each schedule at each point.
        winner: the schedules that run at the first point.
    """

    points: Sequence[Sizes]
    schedules: Sequence[Schedules]
    times: Floats
    winner: int

    @staticmethod
    def of(
        kernel: Kernel,
        device: Device,
        points: Sequence[Sizes],
        timed: Sequence[Mapping[Schedules, float]] = (),
        refused: Collection[Schedules] = (),
    ) -> SchedulePrices:
        """By the model of schedules, and by what was measured.

        A schedule that was measured at some points is expected to take as much more or less than predicted at the others; one
        that was not, as much as most that were. None of those is expected to be faster than the fastest that were measured at the
        same point: they looked worse before. At the first point that one runs, or the model's best where none was measured.

        Args:
            timed: microseconds that were measured at each point.
            refused: schedules that cannot be used.

        Raises:
            InvalidBlock: no schedule fits the device, or all are refused.
            Undecided: a symbol has no size.
        """
        pool: dict[Schedules, None] = {}
        for point in points:
            pool |= dict.fromkeys(schedules for _, schedules in ranked(kernel, device, point, _A_POINT + len(refused)))
        pool |= dict.fromkeys(schedules for times in timed for schedules in times)
        chosen = [schedules for schedules in pool if schedules not in refused]
        if not chosen:
            raise InvalidBlock(f"kernel {kernel.label}: none of its schedules can be used")
        predicted = np.stack([predict_all(kernel, chosen, device, point) for point in points], axis=1)
        measured = np.full(predicted.shape, np.nan)
        for at, times in enumerate(timed):
            measured[:, at] = [times.get(schedules, np.nan) for schedules in chosen]
        at_home = measured[:, 0]
        winner = 0 if np.all(np.isnan(at_home)) else int(np.nanargmin(at_home))
        return SchedulePrices(points, chosen, _corrected(predicted, measured), winner)

    @cached_property
    def regrets(self) -> Floats:
        """The time of each schedule at each point over that of the best there; at the first point the winner is the best."""
        best = np.min(self.times, axis=0)
        best[0] = self.times[self.winner, 0]
        return np.asarray(np.round(np.maximum(self.times / best, 1.0), 6))

    def variants(self, most: int = _MOST) -> Variants:
        """As few variants, up to ``most``, as come near to what so many can do.

        The largest regret counts first, where it is more than a tenth, then all of them.
        """
        alone = Variants.one(self.schedules[self.winner])
        if len(self.points) == 1:
            return alone
        axes = [_Axis.of(self, measure) for measure in self._measures()]
        bound = max(_GOOD, _LITTLE * min(_least(axis.largest(), most, np.maximum)[-1][0] for axis in axes))
        cuts = [_least(axis.sums(bound), most, np.add) for axis in axes]
        best = [min(zip(same, axes, strict=True), key=lambda found: found[0][0]) for same in zip(*cuts, strict=True)]
        enough = best[-1][0][0] + len(self.points) * math.log(_LITTLE)
        (_, starts), axis = next(found for found in best if found[0][0] <= enough)
        return axis.variants(starts, bound)

    def _measures(self) -> list[Dim]:
        """The product of all symbols, each alone, and the product times each."""
        symbols = [symbol(name) for name in self.points[0]]
        whole = product(symbols)
        return list(dict.fromkeys([whole, *symbols, *(whole * each for each in symbols)]))


def _corrected(predicted: Floats, measured: Floats) -> Floats:
    known = ~np.isnan(measured)
    if not known.any():
        return predicted
    counts = known.sum(axis=1)
    logs = np.where(known, np.log(np.where(known, measured, 1.0) / predicted), 0.0).sum(axis=1) / np.maximum(counts, 1)
    logs = np.where(counts > 0, logs, np.median(logs[counts > 0]))
    times = predicted * np.exp(logs)[:, np.newaxis]
    tried = known.any(axis=0)
    floor = np.where(tried, np.min(np.where(known, measured, np.inf), axis=0), 0.0)
    return np.where(known, measured, np.maximum(times, _UNTRIED * floor))


@dataclass(frozen=True, eq=False)
class _Axis:
    """The points in the order of a measure; those of one value are one stop.

    Attributes:
        stops: values of the measure, ascending.
        peaks: largest regret of each schedule at each stop.
        logs: logarithms of its regrets at each stop, added up.
        home: the stop of the first point, where the winner runs.
    """

    prices: SchedulePrices
    measure: Dim
    stops: list[int]
    peaks: Floats
    logs: Floats
    home: int

    @staticmethod
    def of(prices: SchedulePrices, measure: Dim) -> _Axis:
        values = [int(str(evaluate_dim(measure, point))) for point in prices.points]
        stops = sorted(set(values))
        columns = [prices.regrets[:, [at for at, value in enumerate(values) if value == stop]] for stop in stops]
        peaks = np.stack([column.max(axis=1) for column in columns], axis=1)
        logs = np.stack([np.log(column).sum(axis=1) for column in columns], axis=1)
        return _Axis(prices, measure, stops, peaks, logs, stops.index(values[0]))

    def largest(self) -> Floats:
        """The largest regret of the best schedule from each stop to each stop."""
        return self._intervals(lambda first: np.maximum.accumulate(self.peaks[:, first:], axis=1))

    def sums(self, bound: float) -> Floats:
        """The sum of all regrets of the schedule of least sum that is nowhere worse than a bound, likewise."""
        return self._intervals(lambda first: self._sums_from(first, bound))

    def _sums_from(self, first: int, bound: float) -> Floats:
        peaks, logs = np.maximum.accumulate(self.peaks[:, first:], axis=1), np.cumsum(self.logs[:, first:], axis=1)
        return np.asarray(np.where(peaks <= bound, logs, np.inf))

    def _intervals(self, costs_from: Callable[[int], Floats]) -> Floats:
        """The least of the costs of schedules from each stop to each stop; the winner's where it has to run."""
        size = len(self.stops)
        found = np.full((size, size), np.inf)
        for first in range(size):
            costs = costs_from(first)
            found[first, first:] = costs.min(axis=0)
            if first <= self.home:
                found[first, self.home :] = costs[self.prices.winner, self.home - first :]
        return found

    def variants(self, starts: Sequence[int], bound: float) -> Variants:
        """The intervals that begin at these stops, each with its best schedule.

        What lies between two stops counts as the upper one: it needs a tile more than the lower one.
        """
        ends = [*(start - 1 for start in starts[1:]), len(self.stops) - 1]
        numbers = [
            self.prices.winner if first <= self.home <= last else int(np.argmin(self._sums_from(first, bound)[:, last - first]))
            for first, last in zip(starts, ends, strict=True)
        ]
        kept = [0, *(at for at, (one, other) in enumerate(pairwise(numbers), 1) if one != other)]
        schedules = tuple(self.prices.schedules[numbers[at]] for at in kept)
        if len(schedules) == 1:
            return Variants.one(schedules[0])
        return Variants(schedules, self.measure, tuple(self.stops[starts[at] - 1] for at in kept[1:]))


def _least(costs: Floats, most: int, combine: np.ufunc) -> list[tuple[float, tuple[int, ...]]]:
    """The least cost of intervals that cover all stops, and where each begins: of one, of up to two, and so on."""
    best: list[tuple[float, tuple[int, ...]]] = [(float(cost), (0,)) for cost in costs[0]]
    found = [best[-1]]
    for _ in range(most - 1):
        before = np.array([cost for cost, _ in best])
        joined = combine(before[:-1, np.newaxis], costs[1:])
        more = list(best)
        for last in range(1, len(best)):
            end = int(np.argmin(joined[:, last]))
            if joined[end, last] < best[last][0]:
                more[last] = float(joined[end, last]), (*best[end][1], end + 1)
        best = more
        found.append(best[-1])
    return found
