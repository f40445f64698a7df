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
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    statement_operands,
)
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, walk
from rewriter.cost.devices import Device
from rewriter.cost.schedules.figures import TileProduct
from rewriter.cost.schedules.processor import LANES, MATRIX, SLOW_LANES, TALL
from rewriter.cost.schedules.tilings import Floats, Tilings

__all__ = ["BlockWork", "work_of"]

# Chosen with the constants of `rewriter.cost.schedules.times`.
_WASTE = 25
"""Bytes that are moved in vain for every run of a tile's bytes, being parts of memory's lines."""
_PER_OPERATION = 0.33
"""Instructions of an arithmetic operation, as operators count them."""
_SOFTMAX = 17
"""Instructions of an entry of a softmax over the loop."""
_PER_LOAD = 4.4
"""Instructions of a load, of whatever width, and of its address."""
_MASK = 4.0
"""Instructions that set an entry beyond the end of an axis to zero."""
_PREPARED = 6.0
"""Instructions that bring an entry from shared memory to where matrix units take it from, besides what is computed of it."""
_OF_FOUR_BITS = 11.0
"""The same of a number of four bits, with all that is computed of it, as products of 1 to 512 rows were timed."""
_APART, _PER_FACTOR = 2.2, 7.0
"""Instructions of a number of four bits that is multiplied by itself, counted in machine code, and of a factor of its own, which
goes to where the number is, as such products were timed."""
_SHARES_OF_PEAK = (0.84, 0.6, 0.45, 0.15)
"""Of the matrix units: products that are all a loop does and have many results, at least 64 rows, at least 32, and fewer."""
_MANY_RESULTS = 1 << 14


@dataclass(frozen=True, eq=False, slots=True)
class BlockWork:
    """The work of one block in one iteration, or outside of the loop, for each tiling.

    Attributes:
        moved, payload: bytes with and without those moved in vain.
        scalar: instructions of all lanes for scalar arithmetic and loads whose entries warps share.
        rows, columns: the same, on the way to the rows and to the columns of products, which other warps may repeat.
        spread: the same, of values that are laid out as whole rows are (:attr:`BlockFigures.under_statistics`).
        products, large_products: microseconds of products on one multiprocessor, by few warps and by those that large ones want.
        entrywise: entries that are multiplied one by one, where tiles are too small for the matrix units.
        widened: entries of narrow floats that are made wider for that.
        row_bytes, column_bytes: of the operands of products in shared memory.
    """

    moved: Floats
    payload: Floats
    scalar: Floats
    rows: Floats
    columns: Floats
    spread: Floats
    products: Floats
    large_products: Floats
    entrywise: Floats
    widened: Floats
    row_bytes: Floats
    column_bytes: Floats


def work_of(tilings: Tilings, device: Device, in_loop: bool) -> BlockWork:
    """The work of one block in one iteration of the loop, or outside of it."""
    figures, block = tilings.figures, tilings.figures.block
    moved, payload, products, large, entrywise, widened, row_bytes, column_bytes = (np.zeros(tilings.count) for _ in range(8))
    instructions = {place: np.zeros(tilings.count) for place in ("scalar", "rows", "columns", "spread")}
    for each in figures.products:
        if (each.phase == "loop") == in_loop:
            by_few, by_many, one_by_one = _product_times(tilings, device, each)
            products += by_few
            large += by_many
            entrywise += one_by_one
            widened += sum(tilings.entries(axes) for axes in each.narrow) * (one_by_one > 0)
            rows, columns = figures.outer(each)
            width = element_bytes(each.dtype)
            row_bytes += width * tilings.entries((*rows, each.over))
            column_bytes += width * tilings.entries((*columns, each.over))
    for statement in block.statements:
        value = statement.value if isinstance(statement, Store) else _first_name(statement)
        if (isinstance(statement, Accumulate) or block.phases[value] == "loop") != in_loop:
            continue
        axes = {axis for operand in statement_operands(statement) for axis in block.value_axes[operand]}
        entries = tilings.entries(axes | set(block.value_axes[value]))
        if isinstance(statement, Load | Store):
            width = element_bytes(figures.kernel.tensors[statement.tensor].dtype)
            entries = tilings.loaded(statement) if isinstance(statement, Load) else entries
            payload += entries * width
            moved += entries * width * _scatter(tilings, statement, width)
            if isinstance(statement, Load):
                instructions["scalar"] += entries * _PER_LOAD / figures.vector(statement)
        elif isinstance(statement, Compute):
            place = "spread" if value in figures.under_statistics else figures.prepared.get(value, "scalar")
            computed = _instructions(tilings, statement)
            if value in figures.prepared:
                computed += entries * (_PREPARED + _MASK * tilings.is_ragged(block.value_axes[value]))
                if figures.is_of_four_bits(statement):
                    apart = _APART + (_PER_FACTOR if value not in figures.late else 0.0)
                    computed = np.where(entrywise > 0, entries * apart, entries * _OF_FOUR_BITS)
            instructions[place] += computed
        elif isinstance(statement, MaskTile):
            payload += entries * tilings.masked
            moved += entries * tilings.masked
            instructions["scalar"] += 2 * entries * tilings.masked
        elif isinstance(statement, Reduce | Predicate | PlaceTile):
            instructions["scalar"] += 2 * entries
        elif isinstance(statement, Accumulate):
            cost = _SOFTMAX if statement.monoid == "softmax" else 2
            if statement.monoid == "softmax" or not isinstance(block.defined[statement.operands[0]], Dot):
                instructions["scalar"] += tilings.entries(block.value_axes[statement.operands[0]]) * cost
    units = {"products": products, "large_products": large, "entrywise": entrywise, "widened": widened}
    return BlockWork(moved, payload, **instructions, **units, row_bytes=row_bytes, column_bytes=column_bytes)


def _first_name(statement: Statement) -> str:
    assert not isinstance(statement, Store)
    return statement.names[0] if isinstance(statement, Accumulate) else statement.name


def _instructions(tilings: Tilings, statement: Compute) -> Floats:
    """Of a thread graph, all entries: parts that depend on fewer axes are computed once along the others, divisors among them."""
    block = tilings.figures.block
    number = TensorType(DataType.FLOAT, ())
    axes: dict[Term, frozenset[str]] = {}
    total = np.zeros(tilings.count)
    for part in walk([statement.term]):
        if not part.inputs:
            axes[part] = frozenset(block.value_axes[part.name]) if part.op == "Var" else frozenset()
            if part.op == "Var" and isinstance(load := block.defined[part.name], Load):
                total += tilings.loaded(load)
            continue
        axes[part] = frozenset().union(*(axes[operand] for operand in part.inputs))
        operator = get_operator(part.op)
        flops = operator.flops({**operator.defaults, **dict(part.attrs)}, [number] * len(part.inputs), [number])
        slow = axes[part.inputs[-1]] if operator.traits.undoes == "Mul" else axes[part]
        total += tilings.entries(axes[part]) * _PER_OPERATION * flops
        total += tilings.entries(slow) * (operator.traits.slow * LANES / SLOW_LANES)
    return total


def _scatter(tilings: Tilings, statement: Load | Store, width: float) -> Floats:
    """How much more than its bytes a tile moves, because it takes parts of memory's lines."""
    last = next((f.index.axis for f in reversed(statement.view) if f.size != 1), None)
    return np.asarray(1 + _WASTE / (width * tilings.entries(() if last is None else (last,))))


def _product_times(tilings: Tilings, device: Device, product: TileProduct) -> tuple[Floats, Floats, Floats]:
    """Microseconds of a product of tiles on one multiprocessor, by few warps and by those that large ones want.

    Or, where the matrix units do not take it, the entries that are multiplied one by one.
    """
    left, right, over, entries = product.left, product.right, product.over, tilings.entries
    every: Floats = entries((*left, *right)).astype(np.float64)
    none = np.zeros(tilings.count)
    if product.dtype == DataType.FLOAT or not (over in left and over in right):
        return none, none, every
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
    return (
        np.where(fits, 2 * every / (peak * few), none),
        np.where(fits, 2 * every / (peak * many), none),
        np.where(fits, none, every),
    )
