"""How many bfloat16 parts of a number products in kernels for processors may take."""

from __future__ import annotations

from mugraph.blocks.schedule import MOST_PARTS

__all__ = ["parts_for"]

_OF_TWO_PARTS = 5e-6
"""More than the relative error (L2) of a product of normal numbers that has two parts of each: 4.5e-6."""


def parts_for(precision: float) -> tuple[int, ...]:
    """The parts of numbers that products may have where outputs may have such a relative error on top of the original's own.

    Three, and one, are no less exact than the original's floats.
    """
    return (MOST_PARTS - 1, MOST_PARTS, 1) if precision >= _OF_TWO_PARTS else (MOST_PARTS, 1)
