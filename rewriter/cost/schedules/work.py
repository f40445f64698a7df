"""The work of a block: the bytes that it moves and the time of its arithmetic, for each tiling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mugraph.blocks.schedule import element_bytes
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Load,
    MaskTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    statement_operands,
)
from mugraph.ops import traits_of
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, walk
from rewriter.cost.devices import Device
from rewriter.cost.schedules.figures import TileProduct
from rewriter.cost.schedules.processor import CLOCK, LANES, MATRIX, SLOW_LANES, TALL
from rewriter.cost.schedules.tilings import Floats, Tilings

__all__ = ["BlockWork", "work_of"]

# Chosen with the constants of `rewriter.cost.schedules.times`.
_WASTE = 11.5
"""Bytes that are moved in vain for every run of a tile's bytes, being parts of memory's lines."""
_SCALAR = 0.12
"""Share of scalar arithmetic that loads and products do not hide."""
_SHARES_OF_PEAK = (0.6, 0.45, 0.3, 0.2)
"""Of the matrix units: products that are all a loop does and have many results, at least 64 rows, at least 32, and fewer."""
_MANY_RESULTS = 1 << 14


@dataclass(frozen=True, eq=False, slots=True)
class BlockWork:
    """The work of one block in one iteration, or outside of the loop, for each tiling.

    Attributes:
        moved, payload: bytes with and without those moved in vain.
        scalar: microseconds of scalar arithmetic.
        products, large_products: microseconds of products on one multiprocessor, by few warps and by those that large ones want.
    """

    moved: Floats
    payload: Floats
    scalar: Floats
    products: Floats
    large_products: Floats


def work_of(tilings: Tilings, device: Device, in_loop: bool) -> BlockWork:
    """The work of one block in one iteration of the loop, or outside of it."""
    figures, block = tilings.figures, tilings.figures.block
    moved, payload, scalar, products, large = (np.zeros(tilings.count) for _ in range(5))
    for statement in block.statements:
        value = statement.value if isinstance(statement, Store) else _first_name(statement)
        if (isinstance(statement, Accumulate) or block.phases[value] == "loop") != in_loop:
            continue
        axes = {axis for operand in statement_operands(statement) for axis in block.value_axes[operand]}
        entries = tilings.entries(axes | set(block.value_axes[value]))
        if isinstance(statement, Load | Store):
            width = element_bytes(figures.kernel.tensors[statement.tensor].dtype)
            payload += entries * width
            moved += entries * width * _scatter(tilings, statement, width)
        elif isinstance(statement, Compute):
            plain, slow = _operations(statement.term)
            scalar += entries * (plain / LANES + slow / SLOW_LANES)
        elif isinstance(statement, MaskTile):
            payload += entries * tilings.masked
            moved += entries * tilings.masked
            scalar += 2 * entries * tilings.masked / LANES
        elif isinstance(statement, Reduce | Predicate):
            scalar += 2 * entries / LANES
        elif isinstance(statement, Accumulate):
            cost = 1 / SLOW_LANES + 4 / LANES if statement.monoid == "softmax" else 2 / LANES
            if not isinstance(block.defined[statement.operands[0]], Dot) or cost >= 0.02:
                scalar += tilings.entries(block.value_axes[statement.operands[0]]) * cost
    for each in figures.products:
        if (each.phase == "loop") == in_loop:
            by_few, by_many = _product_times(tilings, device, each)
            products += by_few
            large += by_many
    return BlockWork(moved, payload, _SCALAR * scalar / (CLOCK * 1e3), products, large)


def _first_name(statement: Statement) -> str:
    assert not isinstance(statement, Store)
    return statement.names[0] if isinstance(statement, Accumulate) else statement.name


def _operations(term: Term) -> tuple[int, int]:
    """Plain and transcendental operations of a thread graph, an entry."""
    slow = sum(traits_of(part.op).slow for part in walk([term]))
    return sum(bool(part.inputs) for part in walk([term])) - slow, slow


def _scatter(tilings: Tilings, statement: Load | Store, width: int) -> Floats:
    """How much more than its bytes a tile moves, because it takes parts of memory's lines."""
    last = next((f.index.axis for f in reversed(statement.view) if f.size != 1), None)
    return np.asarray(1 + _WASTE / (width * tilings.entries(() if last is None else (last,))))


def _product_times(tilings: Tilings, device: Device, product: TileProduct) -> tuple[Floats, Floats]:
    """Microseconds of a product of tiles on one multiprocessor, by few warps and by those that large ones want."""
    left, right, over, entries = product.left, product.right, product.over, tilings.entries
    flops = 2.0 * entries((*left, *right))
    plain = np.asarray(flops / (2 * LANES * 0.5 * CLOCK * 1e3))
    if product.dtype == DataType.FLOAT or not (over in left and over in right):
        return plain, plain
    fits = entries((over,)) >= MATRIX
    for axes in (left, right):
        present = np.zeros(tilings.count, np.int64)
        for extent in (entries((x,)) for x in axes):
            present += extent > 1
            fits &= (extent == 1) | (extent >= MATRIX)
        fits &= present == 2
    rows = np.minimum(*(entries([x for x in axes if x != over]) for axes in (left, right)))
    peak = device.peaks.get(product.dtype, device.peaks[DataType.FLOAT]) * 1e6 / device.units
    most, tall, middle, low = _SHARES_OF_PEAK
    few = np.where(rows >= 32, middle, low)
    many = np.where(rows >= TALL, tall, few)
    if over == tilings.figures.block.loop and not tilings.figures.attends:
        many = np.where((rows >= TALL) & (entries({*left, *right} - {over}) >= _MANY_RESULTS), most, many)
    return np.where(fits, flops / (peak * few), plain), np.where(fits, flops / (peak * many), plain)
