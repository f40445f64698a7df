"""Variants of a kernel: the ways to run it that a file carries, among which the sizes of a run choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule, check_ahead, check_schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.terms.shape import Dim, SymDim, Undecided, evaluate_dim

__all__ = ["MOST_VARIANTS", "Variants", "check_variants"]

MOST_VARIANTS = 8
"""Of a kernel in a file."""


@dataclass(frozen=True, slots=True)
class Variants:
    """One or several choices of schedules for a kernel.

    Attributes:
        schedules: of each variant one a block graph.
        measure: a size over the kernel's symbols, which chooses among several.
        limits: ascending, one fewer than variants: the largest measure of each but the last.
    """

    schedules: tuple[tuple[Schedule, ...], ...]
    measure: Dim = 1
    limits: tuple[int, ...] = ()

    @staticmethod
    def one(schedules: Iterable[Schedule]) -> Variants:
        return Variants((tuple(schedules),))

    def chosen(self, sizes: Mapping[str, int]) -> tuple[Schedule, ...]:
        """The schedules that run at sizes of the symbols. Raises Undecided where the measure's are not among them."""
        measure = evaluate_dim(self.measure, sizes)
        if not isinstance(measure, int):
            raise Undecided(f"which schedules run where {measure} is not known")
        return self.schedules[sum(measure > limit for limit in self.limits)]


def check_variants(kernel: Kernel, variants: Variants) -> None:
    """Raises :class:`InvalidBlock` where variants do not belong to a kernel, or do not say which of them runs."""
    count, limits = len(variants.schedules), variants.limits
    if not 1 <= count <= MOST_VARIANTS or len(limits) != count - 1:
        raise InvalidBlock(f"kernel {kernel.name}: {count} variants and {len(limits)} limits between them")
    if any(low >= high for low, high in zip((-1, *limits), limits, strict=False)):
        raise InvalidBlock(f"kernel {kernel.name}: limits {', '.join(map(str, limits))}, which do not ascend")
    symbols = variants.measure.symbols() if isinstance(variants.measure, SymDim) else frozenset()
    if unknown := sorted(symbols - set(kernel.symbols)):
        raise InvalidBlock(f"kernel {kernel.name}: variants are chosen by {unknown[0]}, which is no size of it")
    for schedules in variants.schedules:
        if len(schedules) != len(kernel.blocks):
            raise InvalidBlock(f"kernel {kernel.name}: {len(schedules)} schedules for {len(kernel.blocks)} block graphs")
        for block, schedule in zip(kernel.blocks, schedules, strict=True):
            check_schedule(block, schedule)
        check_ahead(kernel, schedules)
