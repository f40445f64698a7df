"""Values as text, and products of them: on the matrix units where both are matrices that are large enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Load
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType, TensorType
from rewriter.cost.schedules.figures import LateFactor, late_factors, operand_type
from rewriter.kernels.text.analysis import computes_halves
from rewriter.kernels.triton.elements import TRITON_TYPES
from rewriter.kernels.triton.text import laid_under
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["ProductText", "Tile", "bracketed", "late_factors_of", "masked", "reduced", "summed"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A value in the function being written.

    Attributes:
        text: a name or literal.
        axes: those of its axes that are dimensions of the Triton tensor.
        kind: ``float`` (in 32 bits), ``raw`` (a float as loaded), ``int`` or ``bool``.
        zeroed: ragged axes along which the padding is zero.
    """

    text: str
    axes: tuple[str, ...]
    kind: str = "float"
    zeroed: frozenset[str] = frozenset()


def late_factors_of(tiling: Tiling, types: Mapping[str, TensorType]) -> dict[str, LateFactor]:
    """Factors that multiply a sum, by the operand that has them: those of products that no matrix unit takes.

    Args:
        types: of the tensors.
    """
    block, late = tiling.block, dict[str, LateFactor]()
    for operand, factor in late_factors(block).items():
        load = block.defined[factor.name]
        assert isinstance(load, Load) and block.loop is not None
        left, right = (tiling.present(block.value_axes[each]) for each in (factor.product.left, factor.product.right))
        if types[load.tensor].dtype not in NIBBLES and not tiling.on_matrix_units(left, right, block.loop):
            late[operand] = replace(factor, grain=min(factor.grain, tiling[block.loop]))
    return late


def masked(tile: Tile, over: str, identity: str, tiling: Tiling) -> str:
    """A tile whose padding along an axis counts for nothing."""
    if over not in tile.axes or not tiling.ragged(over) or (identity == "0.0" and over in tile.zeroed):
        return tile.text
    return f"tl.where({laid_under(f'{over}_in', (over,), tile.axes)}, {tile.text}, {identity})"


def summed(text: str, axis: int, rank: int, *, loosely: bool = False) -> str:
    """The sum of a tensor along one of its axes, the same number in every thread that holds it.

    Threads with an entry each exchange what they have, and add. A compiler fuses that addition with a product before it: each
    thread then rounds the product of the other one and not its own, so that two that should hold one sum do not. Where one of
    them makes a row's weights of it and the other the sum of these, a score of 100 is off by 10⁻⁵, and the weight of one of 10⁹
    may be infinite. Triton before 3.7 takes ``tl.sum(x[:, :, None] * y[None, :, :], axis=1)`` for a product of matrices, too:
    in TF32, and twice the sum where that is of four terms. Neither is done to ``0.0 - x * y``, which a GPU makes in the FMA that
    multiplies, and which is no negation, for 0 stays 0. (The zero in ``x * x + 0.0`` is dropped: no square is -0.)

    Args:
        loosely: what threads may differ by does not count: products of halves are exact in single precision, and of what is
            computed of halves nobody asks for as many digits.
    """
    if loosely and (axis, rank) != (1, 3):
        return f"tl.sum({text}, axis={axis})"
    return f"(0.0 - tl.sum(0.0 - {bracketed(text)}, axis={axis}))"


def reduced(kind: str, text: str, axis: int, rank: int, *, loosely: bool = False) -> str:
    """A tensor's ``sum``, ``max`` or ``min`` along one of its axes; ``loosely`` is said of sums (:func:`summed`)."""
    return summed(text, axis, rank, loosely=loosely) if kind == "sum" else f"tl.{kind}({text}, axis={axis})"


def bracketed(text: str) -> str:
    """A text that may be indexed."""
    return text if text.isidentifier() else f"({text})"


class ProductText:
    """Texts of products of tiles of a kernel."""

    def __init__(self, tiling: Tiling, kernel: Kernel) -> None:
        self._tiling, self._kernel = tiling, kernel

    def along(self, tiling: Tiling) -> ProductText:
        """The same in tiles of another size."""
        return ProductText(tiling, self._kernel)

    def of(
        self, a: Tile, a_type: DataType, b: Tile, b_type: DataType, over: str, total: str | None
    ) -> tuple[str, tuple[str, ...]]:
        """A product, added to ``total`` where there is one, and its axes.

        Args:
            a_type, b_type: the narrowest float that went into each.
            over: the axis that is contracted.
        """
        tiling = self._tiling
        axes = tuple(axis for axis in tiling.union(a.axes, b.axes) if axis != over)
        if tiling.on_matrix_units(a.axes, b.axes, over):
            narrow = operand_type(self._kernel, (a_type, a.kind == "raw"), (b_type, b.kind == "raw"))
            first, second = self._operand(a, a_type, over, narrow), self._operand(b, b_type, over, narrow)
            rows, columns = next(x for x in a.axes if x != over), next(x for x in b.axes if x != over)
            if axes == (columns, rows):
                first, second, a, b = second, first, b, a
            first = first if a.axes[-1] == over else f"tl.trans({first})"
            second = second if b.axes[0] == over else f"tl.trans({second})"
            precision = ', input_precision="ieee"' if narrow == DataType.FLOAT else ""
            return f"tl.dot({first}, {second}{f', {total}' if total else ''}{precision})", axes
        every = tiling.union(a.axes, b.axes)
        text = self.entrywise(a, b, over, every)
        if over in every:
            halves = computes_halves(self._kernel) or a.kind == b.kind == "raw"
            text = summed(text, every.index(over), len(every), loosely=halves)
        return (f"{total} + {text}" if total else text), axes

    def entrywise(self, a: Tile, b: Tile, over: str, wanted: Sequence[str]) -> str:
        """The products of entries over the axes ``wanted``; padding along ``over`` counts for nothing."""
        parts = []
        for tile in (a, b):
            text = masked(tile, over, "0.0", self._tiling)
            text = f"{text}.to(tl.float32)" if tile.kind == "raw" else text
            parts.append(laid_under(bracketed(text), tile.axes, wanted))
        return " * ".join(parts)

    def late(self, a: Tile, b: Tile, factor: Tile, grain: int, over: str) -> tuple[str, tuple[str, ...]]:
        """The sums of products of entries over neighbours along ``over``, times the factor that these share, and its axes.

        Of ``over`` an axis is left that has an entry for each factor, unless it is one.
        """
        tiling = self._tiling
        every = tiling.union(a.axes, b.axes, tiling.present((over,)))
        text, halves = bracketed(self.entrywise(a, b, over, every)), computes_halves(self._kernel)
        if tiling[over] > grain:
            axis = every.index(over) + 1
            shape = [tiling[x] for x in every]
            shape[axis - 1 : axis] = [tiling[over] // grain, grain]
            text = f"tl.reshape({text}, [{', '.join(map(str, shape))}])"
            # no compiler takes what has another shape for a product of matrices
            text = f"tl.sum({text}, axis={axis})" if halves else summed(text, axis, len(shape))
        elif over in every:
            text = summed(text, every.index(over), len(every), loosely=halves)
            every = tuple(x for x in every if x != over)
        return f"{text} * {laid_under(factor.text, factor.axes, every)}", every

    def _operand(self, tile: Tile, storage: DataType, over: str, narrow: DataType) -> str:
        """A tile as an operand of the matrix units."""
        text = masked(tile, over, "0.0", self._tiling)
        if tile.kind == "raw" and storage == narrow:
            return text
        return text if narrow == DataType.FLOAT and tile.kind == "float" else f"{text}.to({TRITON_TYPES[narrow]})"
