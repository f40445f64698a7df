"""Sizes, bytes and products of one block graph, as far as no schedule decides them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.mask_lists import TileCounts, listed_mask, tile_counts
from mugraph.blocks.schedule import Schedule, element_bytes, storage_types
from mugraph.blocks.shown_keys import ShownKeys, shown_keys
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Load,
    MaskTile,
    Predicate,
    Reduce,
    Store,
    repeated_along,
    runs_along,
    statement_operands,
)
from mugraph.domains.base import FLOATS, NIBBLES
from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, Dim, Undecided, evaluate_dim, product
from mugraph.terms.term import Term, variables, walk

__all__ = ["BlockFigures", "LateFactor", "Side", "TileProduct", "late_factors", "operand_type"]

Side = Literal["rows", "columns"]
"""Of a product: the operand that has its rows, or its columns."""


def operand_type(kernel: Kernel, *operands: tuple[DataType, bool]) -> DataType:
    """The element type in which tiles are operands of the matrix units.

    That is the narrowest float that went into one of them, as operators on narrow floats round what they compute to these. Where
    the body multiplies in single precision no operand may lose digits: what was loaded keeps its type, what was computed has
    single precision.

    Args:
        operands: of each the narrowest float that went into it (:func:`mugraph.blocks.schedule.storage_types`), and whether it
            is as loaded.
    """
    kinds = [kind for kind, _ in operands]
    if not _multiplies_singles(kernel):
        return min(kinds, key=lambda kind: kind.bitwidth)
    return kinds[0] if len(set(kinds)) == 1 and all(loaded for _, loaded in operands) else DataType.FLOAT


@lru_cache(maxsize=4096)
def _multiplies_singles(kernel: Kernel) -> bool:
    """Whether a product of a kernel's body is of single precision."""
    types = infer_types(kernel.body, {tensor.name: tensor.type for tensor in kernel.inputs})
    return any(traits_of(term.op).product is not None and types[term].dtype == DataType.FLOAT for term in walk(kernel.body))


@dataclass(frozen=True, slots=True)
class LateFactor:
    """A factor of an operand of a product that neighbours along the loop share, such as the scale of a block.

    Entry by entry what else there is of the operand is multiplied and added up over these neighbours first, and the factor
    multiplies the sum.

    Attributes:
        product: whose operand it is.
        name: of the load of the factor.
        rest: what else there is of the operand.
        grain: neighbours that share an entry.
    """

    product: Dot
    name: str
    rest: Term
    grain: int


@lru_cache(maxsize=4096)
def late_factors(block: Block) -> dict[str, LateFactor]:
    """Operands with such a factor, used nowhere else, of products that are only summed.

    Their entries lie together along the loop, so that a thread has those that share a factor: elsewhere threads would have to
    exchange their sums. There is one for every place of the factor and every neighbour, so that the sums have an entry for each.
    """
    loop, found = block.loop, dict[str, LateFactor]()
    if loop is None or any(isinstance(statement, Predicate) for statement in block.statements):  # whose tiles may differ
        return found
    users = {name: [s for s in block.statements if name in statement_operands(s)] for name in block.defined}
    for dot in (s for s in block.statements if isinstance(s, Dot) and s.over == loop and s.left != s.right):
        if not all(isinstance(user, Accumulate) and user.monoid == "sum" and user.keep is None for user in users[dot.name]):
            continue
        for operand in (dot.right, dot.left):
            defined = block.defined[operand]
            if not isinstance(defined, Compute) or users[operand] != [dot] or defined.term.op != "Mul":
                continue
            rest, factor = defined.term.inputs
            load = block.defined[factor.name] if factor.is_var else None
            if not isinstance(load, Load) or users[load.name] != [defined] or factor in variables([rest]):
                continue
            grains, axes = repeated_along(load.view), set(block.value_axes[load.name])
            others = [other for v in variables([rest]) if isinstance(other := block.defined[v.name], Load)]
            along = [other for other in others if runs_along(other.view) == loop and not repeated_along(other.view)]
            if grains.keys() == {loop} and any(axes <= set(block.value_axes[other.name]) for other in along):
                found[operand] = LateFactor(dot, load.name, rest, grains[loop])
                break
    return found


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A product of tiles, by a statement or by an accumulator of products.

    Attributes:
        left, right: axes of both operands.
        over: the contracted axis.
        dtype: element type of the product.
        phase: of the block graph that it belongs to.
        narrow: axes of each operand that is loaded as a narrow float, which is made wider where no matrix unit takes it.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    over: str
    dtype: DataType
    phase: str
    narrow: tuple[tuple[str, ...], ...] = ()


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

    @cached_property
    def key(self) -> bytes:
        """Equal where figures are: the block graph whatever it names, its tensors' types, its sizes, and how products round."""
        sizes = sorted((name, self.bound[name]) for name in self.kernel.symbols if name in self.bound)
        content = self.block.content(self.kernel.tensors)
        return hashlib.blake2b(repr((content, sizes, _multiplies_singles(self.kernel))).encode(), digest_size=16).digest()

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
        sizes = {name: self._number(product(type_.shape)) for name, type_ in self.kernel.tensors.items() if name in names}
        return math.ceil(sum(element_bytes(self.kernel.tensors[name].dtype) * size for name, size in sizes.items()))

    @cached_property
    def seen_keys(self) -> tuple[str, int | None, int | None, int] | None:
        """A grid axis, a, b and c, where position p along it takes the loop's entries from p - a to p + b only, and the first c.

        Causal attention does so, which has no a, and attention within a window; the former alone may have a prefix.
        """
        keeps = {a.keep for a in self.block.accumulators}
        keep = self.block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
        axes, far, first = set[str](), dict[int, int](), 0
        if not isinstance(keep, Predicate):
            return None
        for condition in keep.conditions:
            if keep.is_any and [(index.axis, sign) for index, sign in condition.terms if index.plain] == [(self.block.loop, -1)]:
                first = self._number(condition.constant) + 1
                continue
            signs = {index.axis: sign for index, sign in condition.terms if index.plain}
            axis = next((axis for axis in signs if axis in self.block.grid), None)
            if axis and len(condition.terms) == 2 and signs in ({axis: sign, self.block.loop: -sign} for sign in (1, -1)):
                axes.add(axis)
                constant = self._number(condition.constant)
                far[signs[axis]] = min(constant, far.get(signs[axis], constant))
        known = len(axes) == 1 and (not keep.is_any or far.keys() == {1})
        return (axes.pop(), far.get(-1), far.get(1), first) if known else None

    @cached_property
    def stored_mask(self) -> MaskTile | None:
        """The mask of which a list says which tiles the loop visits, where tiles of the batch are of one entry."""
        return listed_mask(self.block, Schedule(()))

    @cached_property
    def shown_keys(self) -> ShownKeys | None:
        """What a block asks of all keys before its loop, so as to visit those alone that its rows may see.

        How many these are only a run tells: a time is that of all.
        """
        return shown_keys(self.block, Schedule(()), self.kernel.tensors)

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
                dtype = operand_type(self.kernel, *map(self._operand, (s.left, s.right)))
                phase = "loop" if s.over == block.loop else block.phases[s.name]
                axes = block.value_axes[s.left], block.value_axes[s.right]
                products.append(TileProduct(*axes, s.over, dtype, phase, self._narrow(s.left, s.right)))
            elif isinstance(s, Accumulate) and len(s.operands) == 2 and block.loop is not None:
                left, right = (block.value_axes[x] for x in s.operands)
                dtype = operand_type(self.kernel, (DataType.FLOAT, False), self._operand(s.operands[1]))
                products.append(TileProduct(left, right, block.loop, dtype, "loop", self._narrow(s.operands[1])))
        return products

    def _operand(self, name: str) -> tuple[DataType, bool]:
        """The narrowest float that went into a value, and whether it is as loaded."""
        return self.storage[name], isinstance(self.block.defined[name], Load)

    def _narrow(self, *names: str) -> tuple[tuple[str, ...], ...]:
        block = self.block
        return tuple(
            block.value_axes[name]
            for name in names
            if isinstance(block.defined[name], Load) and self.storage[name] in FLOATS - {DataType.FLOAT}
        )

    def outer(self, product: TileProduct) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The axes of a product's rows, the first of its outer axes as the generated code orders them, and of its columns."""
        axes = self.block.ordered({*product.left, *product.right} - {product.over})
        outer = tuple(x for x in axes if (x in product.left) != (x in product.right))
        return outer[:1], outer[1:]

    @cached_property
    def prepared(self) -> dict[str, Side]:
        """Values that are computed on the way to an operand of a product of the same phase, and to which.

        The rows of a product are along the first of its outer axes, as the generated code orders them.
        """
        block, sides = self.block, dict[str, Side]()
        for s in block.statements:
            if isinstance(s, Dot):
                axes = block.ordered({*block.value_axes[s.left], *block.value_axes[s.right]} - {s.over})
                outer = [x for x in axes if (x in block.value_axes[s.left]) != (x in block.value_axes[s.right])]
                swapped = bool(outer) and outer[0] not in block.value_axes[s.left]
                rows, columns = (s.right, s.left) if swapped else (s.left, s.right)
                phase = "loop" if s.over == block.loop else block.phases[s.name]
                for name in self._behind(rows, phase):
                    sides[name] = "rows"
                for name in self._behind(columns, phase):
                    sides.setdefault(name, "columns")
            elif isinstance(s, Accumulate) and len(s.operands) == 2:
                for name in self._behind(s.operands[1], "loop"):
                    sides.setdefault(name, "columns")
        return sides

    def is_of_four_bits(self, statement: Compute) -> bool:
        """Whether a thread graph computes with numbers of four bits, and with halves at most beside them."""
        loads = [defined for v in variables([statement.term]) if isinstance(defined := self.block.defined[v.name], Load)]
        types = {self.kernel.tensors[load.tensor].dtype for load in loads}
        return bool(types & NIBBLES) and types <= NIBBLES | {DataType.FLOAT16}

    def _behind(self, name: str, phase: str) -> set[str]:
        """What is computed for a value in a phase, itself included, as far as the thread graphs go."""
        found, waiting = set[str](), [name]
        while waiting:
            statement = self.block.defined[waiting.pop()]
            if isinstance(statement, Compute) and self.block.phases[statement.name] == phase and statement.name not in found:
                found.add(statement.name)
                waiting += statement_operands(statement)
        return found

    @cached_property
    def under_statistics(self) -> dict[str, tuple[str, int]]:
        """Values of the loop that are computed of a statistic of whole rows: the axis of the rows, and entries of a vector there.

        The compiler lays them out as it does the rows.
        """
        block, rows = self.block, dict[str, tuple[str, int]]()
        for s in block.statements:
            if isinstance(s, Reduce) and block.phases[s.name] == "fixed":
                axis = s.over[-1]
                widths = [self.vector(x) for x in block.loads if axis in block.value_axes[x.name]]
                if not any(isinstance(x, Dot) and axis in block.value_axes[x.name] for x in block.statements):
                    rows[s.name] = axis, min(widths, default=1)
            elif isinstance(s, Compute):
                behind = [rows[x] for x in statement_operands(s) if x in rows]
                if behind:
                    rows[s.name] = behind[0]
        return {name: over for name, over in rows.items() if block.phases[name] == "loop"}

    def vector(self, load: Load) -> int:
        """Entries that a thread loads at once: 16 bytes, where the rows of the tensor begin at multiples of that."""
        tensor = self.kernel.tensors[load.tensor]
        return math.gcd(int(16 / element_bytes(tensor.dtype)), self._number(tensor.shape[-1]) if tensor.shape else 1)

    @cached_property
    def attends(self) -> bool:
        """Whether a product takes the weights of values that another product computes."""
        return any(len(accumulator.operands) == 2 for accumulator in self.block.accumulators)

    @cached_property
    def is_streamed(self) -> bool:
        """Whether all products are of one row each by matrices whose columns lie together in memory."""
        dots = [s for s in self.block.statements if isinstance(s, Dot)]
        return bool(dots) and len(dots) == len(self.products) and all(map(self._is_streamed, dots))

    def _is_streamed(self, dot: Dot) -> bool:
        """Whether what is loaded of the columns lies together along them, the scales of their blocks too."""
        defined, rows = self.block.defined[dot.right], set(self.block.value_axes[dot.left]) - {dot.over}
        behind = [self.block.defined[name] for name in statement_operands(defined)] if isinstance(defined, Compute) else [defined]
        loads = [each for each in behind if isinstance(each, Load)]
        if any(self.sizes[axis] != 1 for axis in rows) or len(loads) != len(behind):
            return False
        along = [load for load in loads if dot.over in self.block.value_axes[load.name]]
        return bool(along) and all(runs_along(load.view) == dot.over for load in along)

    @cached_property
    def late(self) -> Mapping[str, LateFactor]:
        """Operands with a factor that multiplies a sum (:func:`late_factors`)."""
        return late_factors(self.block)

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
