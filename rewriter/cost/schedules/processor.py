"""Figures of a GPU's multiprocessors that schedules are chosen and timed by."""

from __future__ import annotations

__all__ = ["CLOCK", "LANES", "LARGE_PRODUCT_WARPS", "MATRIX", "SLOW_LANES", "TALL", "WARP"]

MATRIX = 16
"""Least tile of the matrix units in any dimension."""
CLOCK = 1.7
"""Cycles of a multiprocessor in a nanosecond."""
LANES, SLOW_LANES = 128, 16
"""Plain and transcendental operations a cycle of a multiprocessor."""
WARP = 32
"""Threads of a warp."""
TALL, LARGE_PRODUCT_WARPS = 64, 4
"""Rows and warps from which a product of tiles runs as the largest do."""
