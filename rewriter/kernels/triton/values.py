"""Values of a block graph as Triton text: loads, thread graphs, products, reductions, predicates and sizes; and stores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

from mugraph.blocks.late_parts import LatePart
from mugraph.blocks.schedule import storage_types
from mugraph.blocks.statements import Compute, Dot, Extent, Load, MaskTile, PlaceTile, Predicate, Reduce, Statement, Store
from mugraph.domains.base import FLOATS, NIBBLES
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, variables
from rewriter.cost.schedules.figures import LateFactor
from rewriter.kernels.text.analysis import (
    ChosenLoad,
    Update,
    chosen_loads,
    computes_halves,
    fused_products,
    measured_products,
    scaled_scores,
    softmax_predicates,
)
from rewriter.kernels.text.places import Places
from rewriter.kernels.text.thread import Expr, write_thread
from rewriter.kernels.triton.elements import TRITON_TYPES
from rewriter.kernels.triton.loads import load_grains, packed_along, unfold
from rewriter.kernels.triton.masks import MaskText
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.products import ProductText, Tile, late_factors_of, masked, reduced
from rewriter.kernels.triton.scalar import TritonText
from rewriter.kernels.triton.text import FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["IDENTITY", "MINUS_INFINITY", "TileValues"]

MINUS_INFINITY = 'float("-inf")'
IDENTITY = {"sum": "0.0", "max": MINUS_INFINITY, "min": 'float("inf")'}
"""Of reductions and monoids."""


class TileValues:
    """Writes values of one function, and knows those that are written.

    Args:
        types: of the tensors.

    Attributes:
        written: the values that the text knows at this place, by name.
        fused: products that are written as they are accumulated (:func:`fused_products`).
        late: operands of products with a factor that multiplies a sum of them (:func:`late_factors_of`).
        scaled: scores that are written by their softmax (:func:`scaled_scores`).
        asked: predicates that are written by their softmax (:func:`softmax_predicates`).
        measured: products that are rounded before anything is subtracted from them (:func:`measured_products`).
        chosen: loads of entries where a predicate is so (:func:`chosen_loads`).
        before: the part of the loop before which all is that is written now.
        updates: by output, those of which only what is new is written.
        kept: loads whose values are not written.
    """

    def __init__(
        self,
        text: FunctionText,
        tiling: Tiling,
        positions: Positions,
        masks: MaskText,
        places: Places,
        types: Mapping[str, TensorType],
    ) -> None:
        self._text, self._tiling, self._positions, self._types = text, tiling, positions, types
        self._masks, self._narrow, self._kernel = masks, places.narrow, places.kernel
        self.products = ProductText(tiling, places.kernel)
        self.storage = storage_types(tiling.block, types)
        self.written: dict[str, Tile] = {}
        self.fused = fused_products(tiling.block)
        self.late = late_factors_of(tiling, types)
        self.scaled = scaled_scores(tiling.block)
        self.asked = softmax_predicates(tiling.block)
        self.measured = frozenset[str]() if self.halves else measured_products(tiling.block)
        self.chosen = chosen_loads(tiling.block)
        self.before: LatePart | None = None
        self.updates: Mapping[str, Update] = {}
        self.kept: Collection[str] = ()

    @property
    def halves(self) -> bool:
        """Whether all floats that the body computes are halves."""
        return computes_halves(self._kernel)

    def along(self, tiling: Tiling, positions: Positions) -> TileValues:
        """Values of the same function in tiles of another size along the loop, none of which is written yet."""
        other = copy(self)
        other._tiling, other._positions = tiling, positions
        other.products, other.written = self.products.along(tiling), dict(self.written)
        return other

    @contextmanager
    def standing_before(self, part: LatePart) -> Iterator[None]:
        """A scope of the text in which no tile reaches a part of the loop."""
        self.before = part
        yield
        self.before = None

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A scope of the text: what is written in it is not known behind it."""
        before = dict(self.written)
        yield
        self.written = before

    def floating(self, name: str) -> Tile:
        """A value as an operand of arithmetic."""
        tile = self.written[name]
        if tile.kind == "raw":
            tile = replace(tile, text=f"{name}_wide", kind="float")
            self._text.assign(tile.text, f"{name}.to(tl.float32)")
            self.written[name] = tile
        return tile

    def write(self, statement: Statement) -> None:
        """Writes a statement's value, unless it is written where it is used."""
        if isinstance(statement, Load):
            self._load(statement)
        elif isinstance(statement, Compute):
            if statement.name not in self.scaled:
                self._compute(statement)
        elif isinstance(statement, Dot):
            if statement.name not in self.fused:
                product, axes = self.product(statement, None)
                self._text.assign(statement.name, product)
                self.written[statement.name] = Tile(statement.name, axes)
        elif isinstance(statement, Reduce):
            self._reduce(statement)
        elif isinstance(statement, Predicate):
            if statement.name not in self.asked:
                self.predicate(statement)
        elif isinstance(statement, PlaceTile):
            self._place(statement)
        elif isinstance(statement, MaskTile):
            if not self._masks.whole:
                self._mask(statement)
        elif isinstance(statement, Extent):
            self._extent(statement)

    def _load(self, statement: Load) -> None:
        if statement.name in self.kept:
            self.written[statement.name] = Tile("0.0", ())
            return
        chosen, loop = self.chosen.get(statement.name), self._tiling.block.loop
        dtype, view = self._types[statement.tensor].dtype, statement.view if chosen is None else chosen.view
        if self.before is not None and loop is not None:
            view = self.before.view_before(view, loop)
            if chosen is not None and chosen.predicate in self.before.predicates and not chosen.is_so:
                chosen = None
        grains = load_grains(view, dtype, self._tiling) if chosen is None else {}
        packed = packed_along(view, dtype, self._tiling) if chosen is None else None
        pointer, mask, axes = self._positions.pointer(statement.tensor, view, grains, packed)
        if chosen is not None:
            where = self._where_chosen(chosen, axes)
            mask = f"{mask} & {where}" if mask else where
        self._text.assign(statement.name, f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})")
        if any(factor.name == statement.name for factor in self.late.values()):
            self._text.assign(statement.name, f"{statement.name}.to(tl.float32)")
            dtype = DataType.FLOAT
        elif grains or dtype in NIBBLES:
            places, _, _ = self._positions.offsets(statement.tensor, view, grains)
            axes = unfold(statement.name, view, dtype, grains, self._tiling, self._text, " + ".join(places) or "0")
            dtype = DataType.FLOAT
        kind = "float" if dtype == DataType.FLOAT else "raw" if dtype in FLOATS else "int"
        if dtype == DataType.BOOL:
            self._text.assign(statement.name, f"{statement.name} != 0")
            kind = "bool"
        zeroed = frozenset(
            axis for axis in axes if axis not in grains or (packed and axis == packed[0])
        )  # a word is padding or none
        self.written[statement.name] = Tile(statement.name, axes, kind, zeroed)

    def _where_chosen(self, chosen: ChosenLoad, axes: tuple[str, ...]) -> str:
        """The text of where the entries of a load count, over axes."""
        if chosen.predicate not in self.written:
            defined = self._tiling.block.defined[chosen.predicate]
            assert isinstance(defined, Predicate)
            self.predicate(defined)
        tile = self.written[chosen.predicate]
        where = laid_under(tile.text, tile.axes, axes)
        return where if chosen.is_so else f"({where} == 0)"

    def _compute(self, statement: Compute) -> None:
        term = self.late[statement.name].rest if statement.name in self.late else statement.term
        term = term if self.before is None else self.before.before(term)
        if term.is_var and term is not statement.term:
            tile = self.written[term.name]
            self._text.assign(statement.name, tile.text)
            self.written[statement.name] = replace(tile, text=statement.name)
            return
        result, wanted = self._thread(term, statement.name)
        if statement.name in self.measured:
            # As it is the greatest one is not 0 above itself, but what rounding took from it: of 10¹⁰ that has no exponential.
            product, result = result, replace(result, text=statement.name)
            self._text.assign(statement.name, f"0.0 - (0.0 - {product.text})")
        self.written[statement.name] = Tile(result.text, wanted, result.kind)

    def _thread(self, term: Term, name: str) -> tuple[Expr, tuple[str, ...]]:
        """Arithmetic on values that are written, entry by entry, over the axes of all of them."""
        operands = {v.name: self.floating(v.name) for v in variables([term])}
        axes = self._tiling.union(*(tile.axes for tile in operands.values()))
        leaves = {leaf: Expr(laid_under(tile.text, tile.axes, axes), tile.kind) for leaf, tile in operands.items()}
        return write_thread(TritonText(self._narrow), term, leaves, name, self._text.define), axes

    def where_new(self, update: Update) -> Tile:
        """Which entries of the tile of an update are new; the values of its condition are written."""
        result, axes = self._thread(update.condition, f"{update.value}_where")
        return Tile(result.text if update.is_so else f"({result.text} == 0)", axes, "bool")

    def product(self, dot: Dot, total: str | None) -> tuple[str, tuple[str, ...]]:
        """The text of a product of tiles, added to ``total`` where there is one, and its axes."""
        a, b = self.written[dot.left], self.written[dot.right]
        return self.products.of(a, self.storage[dot.left], b, self.storage[dot.right], dot.over, total)

    def late_factor(self, dot: Dot) -> LateFactor | None:
        """The factor of a product that multiplies a sum of it; a product has one at most."""
        return self.late.get(dot.right) or self.late.get(dot.left)

    def _reduce(self, statement: Reduce) -> None:
        tile = self.floating(statement.operand)
        text, axes = tile.text, tile.axes
        for axis in reversed(statement.over):
            if axis in axes:
                padded = masked(replace(tile, text=text, axes=axes), axis, IDENTITY[statement.kind], self._tiling)
                text = reduced(statement.kind, padded, axes.index(axis), len(axes), loosely=self.halves)
                axes = tuple(other for other in axes if other != axis)
        self._text.assign(statement.name, text)
        self.written[statement.name] = Tile(statement.name, axes)

    def predicate(self, statement: Predicate) -> None:
        """Writes a predicate."""
        every = self._tiling.block.value_axes[statement.name]
        axes = self._tiling.present(every)
        self._positions.need(every)
        parts = [f"({self._positions.affine(condition, axes)} >= 0)" for condition in statement.conditions]
        self._text.assign(statement.name, (" | " if statement.is_any else " & ").join(parts))
        self.written[statement.name] = Tile(statement.name, axes, "bool")

    def _place(self, statement: PlaceTile) -> None:
        every = self._tiling.block.value_axes[statement.name]
        axes = self._tiling.present(every)
        self._positions.need(every)
        self._text.assign(statement.name, self._positions.affine(statement.place, axes))
        self.written[statement.name] = Tile(statement.name, axes, "int")

    def _mask(self, statement: MaskTile) -> None:
        loaded, axes = self._masks.tile(statement)
        self._text.assign(statement.name, loaded)
        self.written[statement.name] = Tile(statement.name, axes, "bool")

    def hides_padding(self, name: str) -> bool:
        """Whether a truth value is false beyond the end of the loop, as tiles of a list are."""
        return self._masks.listed is not None and self._masks.listed.name == name

    def _extent(self, statement: Extent) -> None:
        text = self._text.size(statement.size)
        if isinstance(statement.size, int):
            self.written[statement.name] = Tile(f"{statement.size}.0", ())
        else:
            self._text.assign(statement.name, f"({text}).to(tl.float32)" if text.isidentifier() else f"{text}.to(tl.float32)")
            self.written[statement.name] = Tile(statement.name, ())

    def store(self, statement: Store) -> None:
        """Writes an output saver."""
        pointer, mask, wanted = self._positions.pointer(statement.tensor, statement.view)
        if statement.tensor in self.updates:
            new = self.where_new(self.updates[statement.tensor])
            where = laid_under(new.text, new.axes, wanted)
            mask = f"{mask} & {where}" if mask else where
        dtype = self._types[statement.tensor].dtype
        tile = self.written[statement.value]
        value = laid_under(tile.text, tile.axes, wanted)
        if len(tile.axes) < len(wanted):
            value = f"tl.broadcast_to({value}, [{', '.join(str(self._tiling[axis]) for axis in wanted)}])"
        if not (dtype == DataType.FLOAT and tile.kind == "float"):
            value = f"{value}.to({TRITON_TYPES[dtype]})"
        self._text.line(f"tl.store({pointer}, {value}, mask={mask})" if mask else f"tl.store({pointer}, {value})")
