"""Block graphs as they are after lowering, made simpler: without idle statements, neighbouring grid axes as one.

A single row that is multiplied by a matrix gets an axis of one entry: a tile of it may be as high as the matrix units want it,
and the product of one row then takes what that of several does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import storage_types
from mugraph.blocks.statements import (
    Dot,
    Factor,
    Index,
    Load,
    Statement,
    Store,
    Viewing,
    statement_names,
    statement_operands,
    statement_places,
)
from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, TensorType

__all__ = ["simplified"]

_ROW = "m"
"""The axis of a product's rows."""


def simplified(block: Block, types: Mapping[str, TensorType]) -> Block:
    """The block without statements that no output needs, with fewer grid axes where they may be one, and an axis of a single row.

    Args:
        types: of the inputs.
    """
    return _with_row(_merged(_without_idle(block)), types)


def _with_row(block: Block, types: Mapping[str, TensorType]) -> Block:
    """The block with an axis for the single row of a product of narrow floats that its loop adds up."""
    vectors, narrow = set[str](), FLOATS - {DataType.FLOAT}
    for step in block.accumulators:
        dot = block.defined[step.operands[0]]
        if isinstance(dot, Dot) and dot.over == block.loop and step.monoid == "sum":
            kinds = storage_types(block, types)
            for row, matrix in ((dot.left, dot.right), (dot.right, dot.left)):
                if block.value_axes[row] == (block.loop,) and len(block.value_axes[matrix]) == 2 and kinds[row] in narrow:
                    vectors.add(row)
    if not vectors or _ROW in block.sizes:
        return block
    behind = _behind(block, vectors)
    one = Factor(Index(_ROW), 1)
    statements = tuple(
        replace(s, view=(one, *s.view)) if isinstance(s, Store) or (isinstance(s, Load) and s.name in behind) else s
        for s in block.statements
    )
    return Block(block.name, ((_ROW, 1), *block.axes), (_ROW, *block.grid), block.loop, statements)


def _behind(block: Block, names: set[str]) -> set[str]:
    """Values and all that they are computed of."""
    found, waiting = set[str](), sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += statement_operands(block.defined[name])
    return found


def _without_idle(block: Block) -> Block:
    """The block without statements that no output needs."""
    kept: list[Statement] = []
    needed: set[str] = set()
    for statement in reversed(block.statements):
        if isinstance(statement, Store) or not needed.isdisjoint(statement_names(statement)):
            needed |= set(statement_operands(statement))
            kept.insert(0, statement)
    return replace(block, statements=tuple(kept))


def _merged(block: Block) -> Block:
    """The block with neighbouring grid axes that every view has side by side, the second whole, or not at all, as one: fewer,
    fuller tiles."""
    for first, second in zip(block.grid, block.grid[1:], strict=False):
        joined = _joined(block, first, second)
        if joined is not None:
            return _merged(joined)
    return block


def _joined(block: Block, first: str, second: str) -> Block | None:
    sizes = block.sizes
    statements = []
    for statement in block.statements:
        indices = [index for affine in statement_places(statement) for index, _ in affine.terms]
        if any(index.axis in (first, second) for index in indices):
            return None
        if isinstance(statement, Viewing):
            factors = list(statement.view)
            places = [i for i, f in enumerate(factors) if f.index.axis in (first, second)]
            if places:
                plain = all(factors[i].index.plain for i in places)
                if not plain or [factors[i].index.axis for i in places] != [first, second] or places[1] != places[0] + 1:
                    return None
                if factors[places[1]].size != sizes[second]:
                    return None  # entries behind those of a part lie between two rows
                size = factors[places[0]].size * factors[places[1]].size
                factors[places[0] : places[1] + 1] = [Factor(Index(second), size)]
                statement = replace(statement, view=tuple(factors))
        statements.append(statement)
    axes = tuple((name, sizes[first] * sizes[second] if name == second else size) for name, size in block.axes if name != first)
    return Block(block.name, axes, tuple(a for a in block.grid if a != first), block.loop, tuple(statements))
