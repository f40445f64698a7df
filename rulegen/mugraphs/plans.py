"""What kernels of a goal have in common that differ in how arithmetic is put together alone: where it is done, and of what.

Sums and products entry by entry associate and commute, so that a search finds each kernel in many forms. What they load,
multiply, reduce and store, in which blocks and loops, is the same, and so is the time that they take.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import Accumulate, Compute, Dot, Extent, Load, Reduce, Statement, Store, statement_names
from mugraph.terms.term import variables

__all__ = ["plan_of"]

_Sources = frozenset[Hashable]
"""What values are computed from entry by entry: loads, products and reductions, each with its own sources."""


def plan_of(kernel: Kernel) -> Hashable:
    """The plan of a kernel: equal for those of one goal that differ in arithmetic on the same sources, entry by entry, alone."""
    stored = [s.tensor for block in kernel.blocks for s in block.statements if isinstance(s, Store)]
    names = {tensor.name: tensor.name for tensor in (*kernel.inputs, *kernel.outputs)}
    types = {tensor.name: str(tensor.type) for tensor in kernel.scratch}
    names |= {name: f"held {place} {types[name]}" for place, name in enumerate(dict.fromkeys(stored)) if name in types}
    return tuple(_plan_of_block(block, names) for block in kernel.blocks)


def _plan_of_block(block: Block, tensors: Mapping[str, str]) -> Hashable:
    sources: dict[str, _Sources] = {}
    stores = set[Hashable]()
    for statement in block.statements:
        if isinstance(statement, Store):
            stores.add((tensors[statement.tensor], statement.view, sources[statement.value]))
        elif isinstance(statement, Compute):
            sources[statement.name] = frozenset().union(*(sources[term.name] for term in variables([statement.term])))
        else:
            made = _source(statement, sources, tensors)
            sources |= {name: frozenset({(made, out)}) for out, name in enumerate(statement_names(statement))}
    return block.axes, block.grid, block.loop, frozenset(stores)


def _source(statement: Statement, sources: Mapping[str, _Sources], tensors: Mapping[str, str]) -> Hashable:
    """A statement that is no arithmetic entry by entry, without the names of values where a search makes such."""
    match statement:
        case Load(_, tensor, view):
            return tensors[tensor], view
        case Dot(_, left, right, over):
            return "dot", frozenset({sources[left], sources[right]}), over
        case Reduce(_, kind, operand, over):
            return kind, sources[operand], over
        case Accumulate(_, monoid, operands, keep):
            return monoid, tuple(sources[name] for name in operands), None if keep is None else sources[keep]
        case Extent(_, size):
            return "extent", size
        case _:
            return repr(statement)
