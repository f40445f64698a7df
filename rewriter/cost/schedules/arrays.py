"""Many schedules of one block graph, as arrays of one entry a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.blocks.schedule import Schedule
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.tilings import Bools, Ints, Tilings

__all__ = ["ScheduleArrays"]

_MOST_VALUES = 1 << 15
"""Entries of the largest tile that is worth a trial: beyond them registers spill whatever the number of warps."""
_PARAMETERS = ("split", "warps", "stages", "group")
_FIELDS = ("at", *_PARAMETERS)


@dataclass(frozen=True, eq=False, slots=True)
class ScheduleArrays:
    """Schedules of one block graph.

    Attributes:
        tilings: those that occur.
        at: the index of each schedule's tiling among them.
        split, warps, stages, group: as :class:`Schedule` names them.
    """

    tilings: Tilings
    at: Ints
    split: Ints
    warps: Ints
    stages: Ints
    group: Ints

    @staticmethod
    def of(figures: BlockFigures, schedules: Sequence[Schedule]) -> ScheduleArrays:
        """These."""
        tiles = {axis: np.array([schedule.tile(axis) for schedule in schedules]) for axis in figures.cut}
        numbers = (np.array([getattr(schedule, name) for schedule in schedules]) for name in _PARAMETERS)
        return ScheduleArrays(Tilings(figures, tiles, len(schedules)), np.arange(len(schedules)), *numbers)

    @staticmethod
    def every(figures: BlockFigures, tiles: Mapping[str, Sequence[int]]) -> ScheduleArrays:
        """One for each choice of a tile for every axis, without those whose tiles are too large for any trial."""
        grid = np.meshgrid(*(np.array(sizes) for sizes in tiles.values()), indexing="ij")
        chosen = {axis: sizes.ravel() for axis, sizes in zip(tiles, grid, strict=True)}
        tilings = Tilings(figures, chosen, grid[0].size if grid else 1)
        tilings = tilings.where(tilings.largest <= _MOST_VALUES)
        one = np.ones(tilings.count, np.int64)
        return ScheduleArrays(tilings, np.arange(tilings.count), one, one, one, one)

    def where(self, chosen: Bools | Ints) -> ScheduleArrays:
        """Those of a mask or of indices."""
        return ScheduleArrays(self.tilings, *(getattr(self, name)[chosen] for name in _FIELDS))

    def times(self, name: str, values: Sequence[int]) -> ScheduleArrays:
        """Each with every value of a parameter."""
        fields = {field: np.repeat(getattr(self, field), len(values)) for field in _FIELDS}
        return ScheduleArrays(self.tilings, **{**fields, name: np.tile(np.array(values), len(self))})

    def without_splits(self) -> tuple[ScheduleArrays, Ints]:
        """Those of a row that differ in split and group alone once, and the place of each among these."""
        changes = np.ones(len(self), np.bool_)
        changes[1:] = np.any([(field := getattr(self, name))[1:] != field[:-1] for name in ("at", "warps", "stages")], axis=0)
        return self.where(changes), np.cumsum(changes) - 1

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, number: int) -> Schedule:
        if number >= len(self):
            raise IndexError(number)
        tiles = tuple((axis, int(tiles[self.at[number]])) for axis, tiles in self.tilings.tiles.items())
        split, warps, stages, group = (int(getattr(self, name)[number]) for name in _PARAMETERS)
        return Schedule(tiles, split, warps, stages, group)
