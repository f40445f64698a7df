"""The least time of a product of matrices: no kernel with such a product in it takes less."""

from __future__ import annotations

import math
from functools import lru_cache

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import Accumulate, Dot, Factor, Index, InvalidBlock, Load, Statement, Store, Tensor
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import make, var
from rewriter.cost.devices import get_device
from rewriter.cost.schedules.ranking import least_time

__all__ = ["least_of_product"]

_WHOLE = 512
"""Entries of an inner axis up to which it is tried whole, without a loop: of longer ones the loop is better by half."""
_OTHERWISE = 0.98
"""What a product takes at least, over the plain one: rows and columns in another order make a hundredth."""


@lru_cache(maxsize=1024)
def least_of_product(device: str, dtype: DataType, batch: int, rows: int, columns: int, inner: int) -> float:
    """Microseconds, by the model of schedules.

    Args:
        dtype: of the operands in memory.
        batch: matrices that are multiplied each by itself.
        inner: terms of a sum.
    """
    times = []
    for loops in (True, False) if inner <= _WHOLE else (True,):
        try:
            times.append(least_time(_product(dtype, batch, rows, columns, inner, loops), get_device(device)))
        except InvalidBlock:  # it does not fit, and what holds more beside it does not either
            continue
    return _OTHERWISE * min(times, default=math.inf)


def _product(dtype: DataType, batch: int, rows: int, columns: int, inner: int, loops: bool) -> Kernel:
    """The kernel of a product alone, with the inner axis as its loop or whole."""
    sizes = {"b": batch, "m": rows, "k": inner, "n": columns}

    def tensor(name: str, axes: str) -> Tensor:
        return Tensor(name, TensorType(dtype, tuple(sizes[axis] for axis in axes)))

    def view(axes: str) -> tuple[Factor, ...]:
        return tuple(Factor(Index(axis), sizes[axis]) for axis in axes)

    total: list[Statement] = [Accumulate(("total",), "sum", ("part",))] if loops else []
    statements = [
        *(Load("left", "x", view("bmk")), Load("right", "w", view("bkn")), Dot("part", "left", "right", "k")),
        *(*total, Store("y", "total" if loops else "part", view("bmn"))),
    ]
    block = Block("product", tuple(sizes.items()), ("b", "m", "n"), "k" if loops else None, tuple(statements))
    body = make("MatMul", [var("x"), var("w")])
    return Kernel("product", (tensor("x", "bmk"), tensor("w", "bkn")), (tensor("y", "bmn"),), (body,), (block,))
