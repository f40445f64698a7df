"""Block graphs as they are after lowering, made simpler: without idle statements, neighbouring grid axes as one."""

from __future__ import annotations

from dataclasses import replace

from mugraph.blocks.block import Block
from mugraph.blocks.statements import (
    Factor,
    Index,
    Statement,
    Store,
    Viewing,
    statement_names,
    statement_operands,
    statement_places,
)

__all__ = ["simplified"]


def simplified(block: Block) -> Block:
    """The block without statements that no output needs, and with fewer grid axes where they may be one."""
    return _merged(_without_idle(block))


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
    """The block with neighbouring grid axes that every view has side by side, or not at all, as one: fewer, fuller tiles."""
    for first, second in zip(block.grid, block.grid[1:], strict=False):
        joined = _joined(block, first, second)
        if joined is not None:
            return _merged(joined)
    return block


def _joined(block: Block, first: str, second: str) -> Block | None:
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
                size = factors[places[0]].size * factors[places[1]].size
                factors[places[0] : places[1] + 1] = [Factor(Index(second), size)]
                statement = replace(statement, view=tuple(factors))
        statements.append(statement)
    sizes = block.sizes
    axes = tuple((name, sizes[first] * sizes[second] if name == second else size) for name, size in block.axes if name != first)
    return Block(block.name, axes, tuple(a for a in block.grid if a != first), block.loop, tuple(statements))
