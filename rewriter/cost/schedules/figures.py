"""Sizes, bytes and products of one block graph, as far as no schedule decides them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.mask_lists import TileCounts, listed_mask, tile_counts
from mugraph.blocks.schedule import Schedule, element_bytes, storage_types
from mugraph.blocks.statements import Accumulate, Dot, Load, MaskTile, Predicate, Reduce, Store, product
from mugraph.terms.shape import DataType, Dim, Undecided, evaluate_dim

__all__ = ["BlockFigures", "TileProduct"]


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A product of tiles, by a statement or by an accumulator of products.

    Attributes:
        left, right: axes of both operands.
        over: the contracted axis.
        dtype: element type of the product.
        phase: of the block graph that it belongs to.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    over: str
    dtype: DataType
    phase: str


@dataclass(frozen=True, eq=False)
class BlockFigures:
    """One block graph of a kernel with sizes for its dimension symbols.

    Asking for a figure raises :class:`Undecided` where it depends on a size that is not known.
    """

    kernel: Kernel
    block: Block
    bound: Mapping[str, int]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: self._number(size) for name, size in self.block.axes}

    def _number(self, dim: Dim) -> int:
        value = evaluate_dim(dim, self.bound)
        if not isinstance(value, int):
            raise Undecided(f"the time of a kernel of size {value}")
        return value

    @cached_property
    def cut(self) -> tuple[str, ...]:
        """The axes that a schedule cuts."""
        return (*self.block.grid, *((self.block.loop,) if self.block.loop is not None else ()))

    @cached_property
    def storage(self) -> dict[str, DataType]:
        return storage_types(self.block, self.kernel.tensors)

    @cached_property
    def unique_bytes(self) -> int:
        """Bytes of the tensors that the block graph reads and writes, each once."""
        names = {s.tensor for s in self.block.statements if isinstance(s, Load | Store)}
        return sum(element_bytes(t.dtype) * self._number(product(t.shape)) for n, t in self.kernel.tensors.items() if n in names)

    @cached_property
    def seen_keys(self) -> tuple[str, int | None, int | None] | None:
        """A grid axis, a and b, where position p along it takes the loop's entries from p - a to p + b only.

        Causal attention does so, which has no a, and attention within a window.
        """
        keeps = {a.keep for a in self.block.accumulators}
        keep = self.block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
        axes, far = set[str](), dict[int, int]()
        for condition in keep.conditions if isinstance(keep, Predicate) else ():
            signs = {index.axis: sign for index, sign in condition.terms if index.plain}
            axis = next((axis for axis in signs if axis in self.block.grid), None)
            if axis and len(condition.terms) == 2 and signs in ({axis: sign, self.block.loop: -sign} for sign in (1, -1)):
                axes.add(axis)
                constant = self._number(condition.constant)
                far[signs[axis]] = min(constant, far.get(signs[axis], constant))
        return (axes.pop(), far.get(-1), far.get(1)) if len(axes) == 1 else None

    @cached_property
    def stored_mask(self) -> MaskTile | None:
        """The mask of which a list says which tiles the loop visits, where tiles of the batch are of one entry."""
        return listed_mask(self.block, Schedule(()))

    def tiles_of(self, mask: MaskTile, high: int, wide: int) -> TileCounts:
        """What the tiles of a stored mask hold."""
        return tile_counts(mask.entries, self._number(mask.rows), self._number(mask.columns), high, wide)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes that the accumulators hold at the end, over all tiles."""
        names = [name for a in self.block.accumulators for name in a.names]
        return sum(4 * math.prod(self.sizes[axis] for axis in self.block.value_axes[name]) for name in names)

    @cached_property
    def products(self) -> list[TileProduct]:
        block, products = self.block, []
        for s in block.statements:
            if isinstance(s, Dot):
                narrow = min((self.storage[s.left], self.storage[s.right]), key=lambda dtype: dtype.bitwidth)
                phase = "loop" if s.over == block.loop else block.phases[s.name]
                products.append(TileProduct(block.value_axes[s.left], block.value_axes[s.right], s.over, narrow, phase))
            elif isinstance(s, Accumulate) and len(s.operands) == 2 and block.loop is not None:
                left, right = (block.value_axes[x] for x in s.operands)
                products.append(TileProduct(left, right, block.loop, self.storage[s.operands[1]], "loop"))
        return products

    @cached_property
    def attends(self) -> bool:
        """Whether a product takes the weights of values that another product computes."""
        return any(len(accumulator.operands) == 2 for accumulator in self.block.accumulators)

    @cached_property
    def chain(self) -> int:
        """Operations of an iteration that wait for each other across warps: products, reductions, exchanges of layouts."""
        block = self.block
        products = sum(each.phase == "loop" for each in self.products)
        reductions = sum(isinstance(s, Reduce) and block.phases[s.name] == "loop" for s in block.statements)
        return products + reductions + 2 * sum(a.monoid == "softmax" for a in block.accumulators)

    def is_batch(self, axis: str) -> bool:
        """Whether blocks share nothing along the axis: no operand of a product, or no load where there are no products."""
        loads = [s for s in self.block.loads if self.block.phases[s.name] == "loop"]
        along = [[f.index for f in load.view if f.index.axis == axis] for load in loads]
        if any(index.divide != 1 for indices in along for index in indices):
            return False
        if self.products:
            return all(axis in each.left and axis in each.right for each in self.products)
        return bool(loads) and all(along)
