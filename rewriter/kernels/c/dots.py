"""Products of tiles that are matrices: a call of what rewriter/kernels/c/dots.h has, with strides.

The columns of the result are the columns of the right operand, which lie one after another: it is read where it is if they do in
memory, else copied to the stack first. The left operand may lie in any way. A right operand that is a constant matrix is read
from panels (:mod:`rewriter.kernels.c.panels`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from mugraph.blocks.statements import Dot, Load, View
from mugraph.terms.shape import DataType, Dim
from mugraph.terms.term import var
from rewriter.cost.schedules.byte_products import ByteProduct
from rewriter.cost.schedules.cpu import STRIPE_ROWS
from rewriter.kernels.c.byte_panels import BYTES_STACK
from rewriter.kernels.c.lines import times
from rewriter.kernels.c.nests import Nests
from rewriter.kernels.c.panels import (
    PANELS_STACK,
    WIDEST_PANEL,
    WIDEST_STEP,
    adding_function,
    apart_function,
    multiplying_function,
    plain_axes,
    reads_panels,
    stripes_function,
)
from rewriter.kernels.c.parts import UNIT_NUMBERS, split_words
from rewriter.kernels.c.splits import AxisInMemory, PanelSplit, Split, Splits
from rewriter.kernels.c.steps import Group, Let, Product, Step, Turned
from rewriter.kernels.text.places import Places

__all__ = ["Dots"]

_TILES, _NO_TILES = "ifdef __AMX_BF16__", "ifndef __AMX_BF16__"
_DOT_STACK = 4 * (14 * 128 + 16 * 128 + 16 * 14)
"""Bytes that dot_add has on the stack, at most: rows, columns and sums of a slab."""


class Dots:
    """Writes the products of one function.

    Args:
        constants: tensors that may be packed once.
        splits: left operands in parts.
        parts: of the constants' numbers, and of what they are multiplied with, on a processor with tiles for it.
    """

    def __init__(self, nests: Nests, places: Places, constants: Collection[str], splits: Splits, parts: int) -> None:
        self._nests, self._places, self._constants, self._splits, self._parts = nests, places, constants, splits, parts
        self._stripes: dict[str, str] = {}

    def of_bytes(self, dot: Dot) -> ByteProduct | None:
        """A product of bytes whose weights are read from panels; ``None`` where it is none.

        All of the contracted axis is in one tile, since sums are whole before they are floats.
        """
        tiling, types = self._nests.tiling, self._nests.types
        found, whole = ByteProduct.of(tiling.block, dot, types), tiling.block.sizes[dot.over]
        if found is None or found.right.tensor not in self._constants or tiling[dot.over] != whole or tiling.schedule.split > 1:
            return None
        columns = found.right.view[-1].index.axis if found.right.view else None
        if columns is None or not reads_panels(found.right, types[found.right.tensor], dot.over, columns):
            return None
        if tiling.is_cut(columns) and tiling[columns] % WIDEST_PANEL and tiling[columns] != tiling.block.sizes[columns]:
            return None
        left_axes = tiling.present(tiling.block.value_axes[found.left.name])
        if columns in left_axes or not self._is_direct(found.left.name, left_axes, dot.over, DataType.UINT8):
            return None
        return found

    def byte_step(self, name: str, dot: Dot, rest: Sequence[str]) -> Product | None:
        """The step that such a product is; ``None`` where it is none. As :meth:`steps`."""
        found = self.of_bytes(dot)
        if found is None:
            return None
        rows = [axis for axis in rest[:-1] if axis in self._nests.tiling.present(self._nests.tiling.block.value_axes[dot.left])]
        zero = found.zero.name if found.zero is not None else None
        left, right = found.left.name, found.right.name
        return Product(name, left, right, dot.over, tuple(rest), rows[-1] if rows else None, True, of_bytes=True, zero=zero)

    def steps(
        self,
        name: str,
        a: tuple[str, tuple[str, ...]],
        b: tuple[str, tuple[str, ...]],
        over: str,
        rest: Sequence[str],
        is_state: bool,
    ) -> list[Step] | None:
        """Steps of a product of two values with their axes; ``None`` where it is none of matrices.

        Args:
            over: the axis that is contracted.
            rest: the axes of the result.
        """
        if not rest or over not in a[1] or over not in b[1]:
            return None
        if rest[-1] in a[1]:
            a, b = b, a
        (left, left_axes), (right, right_axes) = a, b
        rows = [axis for axis in rest if axis in left_axes and axis not in right_axes]
        if rest[-1] in left_axes or rest[-1] not in right_axes:
            return None
        if not rows and self._panels(right, over, rest[-1]) is None:
            return None
        steps: list[Step] = []
        apart = right if rows and self._panel_split(right, over, rest[-1]) is not None else None
        if not self._is_direct(left, left_axes):
            left = self._copied(steps, left, left_axes)
        if not (self._is_direct(right, right_axes, rest[-1]) if self._load(right) else right_axes[-1] == rest[-1]):
            if self._is_direct(right, right_axes, over) and self._load(right):
                ordered = (*(axis for axis in right_axes if axis not in (over, rest[-1])), over, rest[-1])
                steps.append(Turned(f"{right}.turned", right, ordered, is_apart=apart is not None))
                right = f"{right}.turned"
            else:
                ordered = (*(axis for axis in right_axes if axis != rest[-1]), rest[-1])
                right, apart = self._copied(steps, right, right_axes, ordered), None
        weighs = any(left == f"{accumulator.names[0]}.weights" for accumulator in self._nests.tiling.block.accumulators)
        row = rows[-1] if rows else None
        return [*steps, Product(name, left, right, over, tuple(rest), row, is_state, apart=apart, weighs=weighs)]

    @staticmethod
    def _copied(steps: list[Step], name: str, axes: tuple[str, ...], order: tuple[str, ...] | None = None) -> str:
        copy = f"{name}.copy" if order is None else f"{name}.{'_'.join(order)}"
        steps.append(Let(copy, var(name), axes, order=order))
        return copy

    def _load(self, name: str) -> Load | None:
        inline = self._nests.inline.get(name)
        return inline if isinstance(inline, Load) else None

    def _is_direct(self, name: str, axes: Sequence[str], last: str | None = None, dtype: DataType = DataType.FLOAT) -> bool:
        """Whether a value is an array, or lies in memory with one stride an axis.

        Args:
            last: the axis whose entries have to lie one after another.
            dtype: of what lies in memory.
        """
        load = self._load(name)
        if load is None:
            return name not in self._nests.inline
        if self._nests.types[load.tensor].dtype != dtype or name in self._nests.chosen:
            return False
        for axis in axes:
            places = [f.index for f in load.view if f.index.axis == axis]
            if len(places) != 1 or places[0].divide != 1 or places[0].modulo is not None:
                return False
        return last is None or _stride(load.view, last) == 1

    def write(self, group: Group) -> bool:
        """Writes a product, or a matrix that is turned for one; whether it is one."""
        step = group.steps[0]
        if isinstance(step, Turned) and step.is_apart:
            with self._nests.lines.where(_NO_TILES):
                self._write_turned(step)
        elif isinstance(step, Turned):
            self._write_turned(step)
        elif isinstance(step, Product) and step.of_bytes:
            self._write_byte_product(step)
        elif isinstance(step, Product):
            self._write_product(step)
        return isinstance(step, Product | Turned)

    def _write_turned(self, step: Turned) -> None:
        nests, (over, columns) = self._nests, step.axes[-2:]
        nests.array(step.name, "float", step.axes)
        (source, strides), (copy, to) = self._place(step.source), self._place(step.name)
        outer = step.axes[:-2]
        operands = [_at(copy, to, outer), to[over], _at(source, strides, outer), strides[columns]]
        operands += [nests.tiling.length(axis) for axis in (columns, over)]
        self._write_loops(outer, f"dot_turn({', '.join(operands)});")

    def take_apart(self, step: Step) -> None:
        """Writes, where a launch takes the right operand of a product apart, that the left one is taken apart here, once for all
        tiles that the loop goes along.
        """
        tiling, lines = self._nests.tiling, self._nests.lines
        if not isinstance(step, Product) or step.apart is None or step.rows is None or step.left in self._stripes:
            return
        depth, axes = tiling.block.sizes[step.over], tiling.block.value_axes.get(step.left, ())
        if tiling.is_cut(step.over) or not isinstance(depth, int) or set(tiling.present(axes)) != {step.rows, step.over}:
            return
        left, strides = self._place(step.left)
        words = -(-tiling[step.rows] // STRIPE_ROWS) * split_words(depth, self._parts)
        name = self._stripes[step.left] = lines.fresh(f"{step.left}_stripes")
        lines.stack[name] = 4 * words
        operands = ["PART_PLAIN", left, strides[step.rows], strides[step.over], tiling.length(step.rows), str(depth), name]
        with lines.where(_TILES):
            lines.line(f"_Alignas(64) uint32_t {name}[{words}];")
            lines.line(f"{stripes_function(self._parts)}({', '.join(operands)}, {-(-depth // UNIT_NUMBERS)});")

    def _write_product(self, step: Product) -> None:
        if not step.is_state:
            self._nests.array(step.name, "float", step.axes)
        if step.apart is None:
            self._write_sums(step)
            return
        with self._nests.lines.where(_TILES):
            self._write_apart(step)
        with self._nests.lines.where(_NO_TILES):
            self._write_sums(step)

    def _write_apart(self, step: Product) -> None:
        """A product whose right operand a launch takes apart."""
        tiling, columns = self._nests.tiling, step.axes[-1]
        left, left_strides = self._place(step.left)
        result, result_strides = self._place(step.name)
        outer = [axis for axis in step.axes if axis not in (step.rows, columns)]
        assert step.rows is not None
        operands = [
            str(int(not step.is_state)),
            f"PART_{'RAISED' if step.weighs else 'PLAIN'}",
            _at(result, result_strides, outer),
            result_strides[step.rows],
            _at(left, left_strides, outer),
            left_strides[step.rows],
            left_strides[step.over],
            self._stripes.get(step.left, "0"),
            *self._in_panels(step, outer),
            *(tiling.length(axis) for axis in (step.rows, columns, step.over)),
        ]
        self._nests.lines.stack["panel_add"] = PANELS_STACK
        self._write_loops(outer, f"{apart_function(self._parts)}({', '.join(operands)});")

    def _write_sums(self, step: Product) -> None:
        nests, tiling = self._nests, self._nests.tiling
        if not step.is_state:
            nests.fill(step.name, "0.0f")
        left, left_strides = self._place(step.left)
        result, result_strides = self._place(step.name)
        columns = step.axes[-1]
        outer = [axis for axis in step.axes if axis not in (step.rows, columns)]
        function, right, split = "dot_add", self._packed(step), list[str]()
        if right is not None:
            split = self._split(step)
            function = (multiplying_function if split else adding_function)(self._parts)
            nests.lines.stack["panel_add"] = PANELS_STACK
        else:
            nests.lines.stack[function] = _DOT_STACK
            matrix, strides = self._place(step.right)
            right = [_at(matrix, strides, outer), strides[step.over]]
            assert strides[columns] == result_strides[columns] == "1"
        operands = [
            _at(result, result_strides, outer),
            result_strides[step.rows] if step.rows else "0",
            _at(left, left_strides, outer),
            left_strides[step.rows] if step.rows else "0",
            left_strides[step.over],
            *split,
            *right,
            tiling.length(step.rows) if step.rows else "1",
            *(tiling.length(axis) for axis in (columns, step.over)),
        ]
        self._write_loops(outer, f"{function}({', '.join(operands)});")

    def _write_byte_product(self, step: Product) -> None:
        nests, tiling, columns = self._nests, self._nests.tiling, step.axes[-1]
        left, left_strides = self._place(step.left)
        result, result_strides = self._place(step.name)
        weights = self._load(step.right)
        assert weights is not None
        zero = "0"
        if step.zero is not None:
            place, _ = self._place(step.zero)
            zero = f"*{place}"
        outer = [axis for axis in step.axes if axis not in (step.rows, columns)]
        nests.lines.stack["bytes_multiply"] = BYTES_STACK
        operands = [
            _at(result, result_strides, outer),
            result_strides[step.rows] if step.rows else "0",
            _at(left, left_strides, outer),
            left_strides[step.rows] if step.rows else "0",
            zero,
            self._name_packed(weights.tensor, 1),
            str(nests.types[weights.tensor].shape[0]),
            tiling.start(columns),
            tiling.length(step.rows) if step.rows else "1",
            tiling.length(columns),
        ]
        self._write_loops(outer, f"bytes_multiply({', '.join(operands)});")

    def _name_packed(self, tensor: str, parts: int, heights: Iterable[int] = ()) -> str:
        """The name of the argument that is a tensor in panels, with which so many rows of floats are multiplied at a time."""
        name = self._places.add_packed(tensor, parts, heights)
        if name not in self._nests.tensors:
            self._nests.tensors.append(name)
        return name

    def _packed(self, step: Product) -> list[str] | None:
        """The panels of a right operand that is a constant matrix, as ``panel_add`` has it: their start, the length of a column,
        and where the tile begins in a row and in a column. Tiles begin where panels do, and where their parts of a column do.
        """
        columns, tiling = step.axes[-1], self._nests.tiling
        load = self._panels(step.right, step.over, columns)
        if load is None:
            return None
        heights = tiling.lengths(step.rows) if step.rows else {1}
        whole = self._nests.types[load.tensor].shape[0]
        name = self._name_packed(load.tensor, self._parts, heights)
        return [name, str(whole), tiling.start(columns), tiling.start(step.over)]

    def _in_panels(self, step: Product, outer: Sequence[str]) -> list[str]:
        """The matrix of a right operand that a launch takes apart, as ``dot_apart`` has it: where those of its tensor are, which
        one it is, its steps and columns, and where the tile begins in a row and in a column.
        """
        tiling, lines, columns = self._nests.tiling, self._nests.lines, step.axes[-1]
        load = self._load(step.apart or "")
        split = self._panel_split(step.apart or "", step.over, columns)
        assert load is not None and split is not None and step.rows is not None
        name, matrix = self._splits.name(split), "0"
        self._places.heights.update(tiling.lengths(step.rows))
        if name not in self._nests.tensors:
            self._nests.tensors.append(name)
        for axis in _outer_axes(load.view, step.over, columns):
            at = f"({tiling.start(axis)} + {axis}_i)" if axis in outer else tiling.start(axis)
            matrix = at if matrix == "0" else f"({matrix} * {lines.size(tiling.block.sizes[axis])} + {at})"
        sizes = [lines.size(split.over.size), lines.size(split.columns.size)]
        return [name, matrix, *sizes, tiling.start(columns), tiling.start(step.over)]

    def _panel_split(self, right: str, over: str, columns: str) -> PanelSplit | None:
        """The matrices in memory, of one of which a right operand is a tile, that a launch takes apart; ``None`` where it is of
        none, or is packed, or where tiles do not begin where panels and their units do.
        """
        load, tiling = self._load(right), self._nests.tiling
        if self._panels(right, over, columns) is not None:
            return None
        inputs = {tensor.name for tensor in self._places.kernel.inputs}
        if self._parts == 1 or load is None or load.tensor not in inputs or right in self._nests.chosen:
            return None
        axes, sizes = [*_outer_axes(load.view, over, columns), over, columns], tiling.block.sizes
        plain = plain_axes(tuple(f for f in load.view if f.index.axis is not None or f.size != 1))
        if self._nests.types[load.tensor].dtype != DataType.FLOAT or plain is None:
            return None
        if sorted(plain, key=str) != sorted(((axis, sizes[axis]) for axis in axes), key=str):
            return None
        for axis, step in ((columns, WIDEST_PANEL), (over, WIDEST_STEP)):
            if tiling.is_cut(axis) and tiling[axis] % step and tiling[axis] != sizes[axis]:
                return None
        if not all(tiling.is_cut(axis) for axis in axes[:-2]):
            return None
        *outer, k, n = (AxisInMemory(sizes[axis], _stride(load.view, axis)) for axis in axes)
        return PanelSplit(load.tensor, k, n, tuple(outer), self._parts)

    def _split(self, step: Product) -> list[str]:
        """A left operand that another launch takes apart, as ``panel_multiply`` has it: where its parts are, the length of a row,
        and where the tile begins in a column and in a row. Empty where this function takes it apart, above all where no other
        tile of columns reads it: it would go to memory and come back.
        """
        load, tiling, rows = self._load(step.left), self._nests.tiling, step.rows
        if self._parts == 1 or load is None or rows is None or not tiling.is_cut(rows) or tiling[rows] % STRIPE_ROWS:
            return []
        columns = step.axes[-1]
        if tiling[columns] == tiling.block.sizes[columns]:
            return []
        height, depth = (tiling.block.sizes[axis] for axis in (rows, step.over))
        if not isinstance(depth, int) or plain_axes(load.view) != ((rows, height), (step.over, depth)):
            return []
        name = self._splits.name(Split(load.tensor, height, depth, self._parts))
        if name not in self._nests.tensors:
            self._nests.tensors.append(name)
        return [name, str(depth), tiling.start(rows), tiling.start(step.over)]

    def _panels(self, right: str, over: str, columns: str) -> Load | None:
        """What loads a right operand that may be read from panels; ``None`` where it may not."""
        load, tiling = self._load(right), self._nests.tiling
        if load is None or load.tensor not in self._constants or right in self._nests.chosen:
            return None
        type_ = self._nests.types[load.tensor]
        if type_.dtype != DataType.FLOAT or not reads_panels(load, type_, over, columns):
            return None
        for axis, size, step in ((columns, type_.shape[1], WIDEST_PANEL), (over, type_.shape[0], WIDEST_STEP)):
            if tiling.is_cut(axis) and tiling[axis] % step and tiling[axis] < int(str(size)):
                return None
        return load

    def panel_columns(self, dots: Iterable[Dot]) -> str | None:
        """The axis of the columns of the first of several products that reads panels; ``None`` where none does."""
        for dot in dots:
            if (found := self.of_bytes(dot)) is not None:
                return found.right.view[-1].index.axis
            for operand in (dot.right, dot.left):
                load = self._load(operand)
                columns = load.view[-1].index.axis if load is not None and load.view else None
                if columns is not None and self._panels(operand, dot.over, columns) is not None:
                    return columns
        return None

    def _write_loops(self, outer: Sequence[str], call: str) -> None:
        lines = self._nests.lines
        if not outer:
            lines.line(call)
            return
        axis = outer[0]
        with lines.block(f"for (int64_t {axis}_i = 0; {axis}_i < {self._nests.tiling.length(axis)}; ++{axis}_i)"):
            self._write_loops(outer[1:], call)

    def _place(self, name: str) -> tuple[str, dict[str, str]]:
        """The text of a pointer to the first entry of a value, and the stride of each of its axes."""
        nests, tiling = self._nests, self._nests.tiling
        if name in nests.held:
            held, stride, strides = nests.held[name], 1, dict[str, str]()
            for axis, size in zip(reversed(held.axes), reversed(tiling.room(held.axes)), strict=True):
                strides[axis] = str(stride)
                stride *= size
            return f"&{held.text}{'[0]' * len(held.axes)}", strides
        load = nests.inline[name]
        assert isinstance(load, Load)
        axes = tiling.present(f.index.axis for f in load.view if f.index.axis is not None)
        return nests.pointer(load.tensor, load.view), {axis: nests.lines.size(_stride(load.view, axis)) for axis in axes}


def _at(text: str, strides: Mapping[str, str], outer: Sequence[str]) -> str:
    """A pointer to the matrix of a value at positions of outer axes."""
    return " + ".join([text, *(times(f"{axis}_i", strides[axis]) for axis in outer if axis in strides)])


def _outer_axes(view: View, over: str, columns: str) -> list[str]:
    """The axes of a matrix's tensor besides those of the matrix."""
    return [f.index.axis for f in view if f.index.axis is not None and f.index.axis not in (over, columns)]


def _stride(view: View, axis: str) -> Dim:
    """From one position of an axis to the next, in entries of the tensor."""
    stride: Dim = 1
    for factor in reversed(view):
        if factor.index.axis == axis:
            return stride
        stride = stride * factor.size
    raise AssertionError(axis)
