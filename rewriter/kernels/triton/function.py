"""One function of a kernel: a whole block graph, one part of its split loop, or the combination of the parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from mugraph.blocks.block import Block
from mugraph.blocks.late_parts import late_part
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Factor,
    Index,
    Load,
    Statement,
    Store,
    Tensor,
    statement_names,
    statement_operands,
)
from mugraph.terms.shape import TensorType, product
from rewriter.kernels.text.analysis import needed_values, updated_axis, updates
from rewriter.kernels.text.places import Places
from rewriter.kernels.text.roles import FunctionRole
from rewriter.kernels.triton.accumulators import Accumulators
from rewriter.kernels.triton.ahead import AheadText
from rewriter.kernels.triton.bounds import Bounds
from rewriter.kernels.triton.combination import combining_schedule, parts_at_once
from rewriter.kernels.triton.elements import POINTERS
from rewriter.kernels.triton.grid import GridText
from rewriter.kernels.triton.masks import MaskText
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.shown import ShownText
from rewriter.kernels.triton.source import APART, OVERLAPPED, LaunchSource
from rewriter.kernels.triton.text import PART_AXIS, FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling
from rewriter.kernels.triton.updating import UpdateText
from rewriter.kernels.triton.values import TileValues
from rewriter.runtime.plan import Argument, Expression

__all__ = ["FunctionWriter"]


class FunctionWriter:
    """Writes one function. :meth:`write` is called once, and :meth:`launch` after it.

    Args:
        types: of the kernel's tensors.
        places: where they are, and symbols; what the functions of the kernel share.
        states: scratch tensors for the states of the accumulators, where the loop is split.
        tables: names of the tables of each stored mask.
    """

    def __init__(
        self,
        block: Block,
        schedule: Schedule,
        types: Mapping[str, TensorType],
        places: Places,
        role: FunctionRole,
        states: Mapping[str, Tensor],
        tables: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._block, self._places, self._types, self._role, self._states = block, places, types, role, states
        self.name = block.name + role.value
        if role == FunctionRole.COMBINE:
            schedule = combining_schedule(block, schedule)
        self._text, self._tiling = FunctionText(), Tiling(block, schedule)
        self._positions = Positions(self._text, self._tiling, places)
        self._masks = MaskText(self._text, self._tiling, self._positions, tables)
        self._values = TileValues(self._text, self._tiling, self._positions, self._masks, places, types)
        self._bounds = Bounds(self._text, self._tiling)
        self._shown = ShownText(self._text, self._tiling, self._positions, self._values, types)
        self._accumulators = Accumulators(self._text, self._tiling, self._values, self._bounds)
        found = updates(places.kernel, block)
        axis = updated_axis(block, found)
        self._update = None if axis is None else UpdateText(self._text, self._tiling, self._positions, self._values, found, axis)

    def write(self) -> str:
        """The text of the function."""
        last_first = set() if self._role == FunctionRole.COMBINE else self._bounds.longer_later()
        order = None if self._role == FunctionRole.COMBINE else self._masks.row_order()
        strided = None if self._update is None else self._update.axis
        grid = GridText(self._text, self._tiling, self._places.wide, last_first, order, strided)
        if order is None:
            grid.write()
        self._text.line(f"if {OVERLAPPED}:")
        with self._text.indented():
            self._write_wait(can_ask=order is None)
        if order is not None:  # it reads memory
            grid.write()
        if self._role == FunctionRole.COMBINE:
            self._write_combination()
        elif self._update is not None:
            self._update.write()
        else:
            self._write_phase("fixed")
            if self._block.loop is not None:
                self._write_loop(self._block.loop)
        if self._role == FunctionRole.PART:
            self._text.line(f"if {OVERLAPPED}:")
            with self._text.indented():
                self._text.line("gdc_launch_dependents()")
            for accumulator in self._block.accumulators:
                for name in accumulator.names:
                    self._write_state(name)
        elif self._update is None:
            self._accumulators.natural_shift()
            self._write_phase("after")
        arguments = ", ".join([*(name for name, _ in self._signature()), f"{OVERLAPPED}: tl.constexpr = False"])
        return "\n".join(["", "", "@triton.jit", f"def {self.name}({arguments}):", *self._text.lines])

    def _write_wait(self, *, can_ask: bool) -> None:
        """Waits for the kernel before this one, and lets the next one begin; what is asked for ahead is asked for before that.

        What combines the parts of a loop begins when these are done with it: there is nothing that it could ask for, and where
        parts fill the device its few blocks would all lie on the multiprocessors with room (docs/decoding.md, Parts).

        Args:
            can_ask: where the tiles of the block are is known.
        """
        block, loop = self._block, self._block.loop
        asked = [s for s in block.loads if s.tensor in self._tiling.schedule.ahead] if can_ask else []
        if self._role == FunctionRole.PART:
            asked = [s for s in asked if block.phases[s.name] != "after"]
        elif self._role == FunctionRole.COMBINE or self._update is not None:  # which may have nothing to do
            asked = []
        if not asked:
            self._text.line("gdc_wait()")
        if self._role != FunctionRole.PART:
            self._text.line("gdc_launch_dependents()")
        if not asked:
            return
        ahead = AheadText(self._text, self._tiling, self._places, self._types)
        in_loop = [s for s in asked if block.phases[s.name] == "loop"]
        if loop is not None and in_loop:  # first: what it names has no type yet that a loop would have to keep
            ahead.ask_in_loop(in_loop, loop, *self._part_bounds(loop))
        for load in asked:
            if load not in in_loop:
                ahead.ask(load)
        self._positions.tensors += [name for name in ahead.tensors if name not in self._positions.tensors]
        self._text.line("gdc_wait()")

    def _write_phase(self, phase: str) -> None:
        """Writes what a phase needs: before the loop, in it, or after it, where invariants that only the end needs stand too."""
        phases = self._block.phases
        written = ("fixed", "after") if phase == "after" else (phase,)
        needed = needed_values(self._block, phase, written)
        for statement in self._block.statements:
            if isinstance(statement, Store):
                if phases[statement.value] in written and phase != "fixed":
                    self._values.store(statement)
                continue
            early = phase == "fixed" and self._is_early(statement)
            due = (
                not isinstance(statement, Accumulate)
                and (statement.name in needed or early)
                and phases[statement.name] in written
            )
            if due and not set(statement_names(statement)) <= set(self._values.written):
                self._values.write(statement)

    def _is_early(self, statement: Statement) -> bool:
        """Whether a load that only the end needs stands before the loop, which hides its latency: a few entries a thread."""
        if not isinstance(statement, Load) or self._role != FunctionRole.WHOLE or self._block.loop is None:
            return False
        return len(self._tiling.present(self._block.value_axes[statement.name])) <= 1

    def _write_loop(self, loop: str) -> None:
        block, text, tiling = self._block, self._text, self._tiling
        for statement in block.statements:
            if not isinstance(statement, Store) and block.phases[statement_names(statement)[0]] == "loop":
                self._positions.need([axis for axis in block.value_axes[statement_names(statement)[0]] if axis != loop])
            if isinstance(statement, Compute) and block.phases[statement.name] == "loop":
                for operand in statement_operands(statement):
                    if operand in self._values.written:  # converted once, not in every iteration
                        self._values.floating(operand)
        for accumulator in block.accumulators:
            self._accumulators.start(accumulator)
        listed = self._masks.listed
        if listed is None:
            whole = self._part_bounds(loop)
            low, high = self._bounds.skipped(*whole)
            part = late_part(block)
            if part is None:
                low, high = self._shown.narrowed(low, high)
            else:  # keys of a cache may be hidden, and what is new behind them is seen
                tile = tiling[loop]
                text.assign(f"{loop}_late", f"{text.size(part.start)} // {tile} * {tile}")
                bounds = self._shown.narrowed(low, f"tl.minimum({high}, {loop}_late)")
                text.line(f"for {loop}_start in {self._range(', '.join((*bounds, str(tile))))}:")
                with text.indented(), self._values.standing_before(part):
                    self._write_iteration(loop)
                low = f"tl.maximum({low}, {loop}_late)"
            if (low, high) == whole and self._is_one_tile(loop):
                text.assign(f"{loop}_start", low)
                self._write_iteration(loop)
            else:
                text.line(f"for {loop}_start in {self._range(f'{low}, {high}, {tiling[loop]}')}:")
                with text.indented():
                    self._write_iteration(loop)
        else:
            number = self._part() if self._role == FunctionRole.PART else ""
            for each in self._masks.loops(listed, number):
                self._masks.look_up(listed, each, each.low)
                text.line(f"for {listed.name}_entry in {self._range(f'{each.low}, {each.high}')}:")
                with text.indented(), self._masks.visiting(listed, each):
                    self._write_iteration(loop)
        for accumulator in block.accumulators:
            self._accumulators.finish(accumulator)

    def _is_one_tile(self, loop: str) -> bool:
        """Whether the loop of a block, or of a part of it, is one tile: there is nothing to go round for."""
        length, parts = self._block.sizes[loop], self._tiling.schedule.split if self._role == FunctionRole.PART else 1
        return isinstance(length, int) and _ceil_div(length, self._tiling[loop]) == parts

    def _range(self, bounds: str) -> str:
        """What a loop goes over; the compiler pipelines those with products of itself."""
        tiling = self._tiling
        if tiling.schedule.stages > 1 and not tiling.has_matrix_product:
            return f"tl.range({bounds}, num_stages={tiling.schedule.stages})"
        return f"range({bounds})"

    def _write_iteration(self, loop: str) -> None:
        with self._values.inner(), self._positions.inner():
            self._positions.need([loop])
            self._write_phase("loop")
            for accumulator in self._block.accumulators:
                self._accumulators.step(replace(accumulator, keep=None) if self._masks.whole else accumulator)

    def _part_bounds(self, loop: str) -> tuple[str, str]:
        """The bounds of the loop, of the part that a block runs where the loop is split."""
        text, tile, split = self._text, self._tiling[loop], self._tiling.schedule.split
        length = self._block.sizes[loop]
        size = text.size(length)
        if self._role != FunctionRole.PART:
            return "0", size
        self._part()
        span = f"tl.cdiv(tl.cdiv({size}, {tile}), {split}) * {tile}"
        if isinstance(length, int):
            span = str(_ceil_div(_ceil_div(length, tile), split) * tile)
        text.assign(f"{loop}_low", f"part * {span}")
        text.assign(f"{loop}_high", f"tl.minimum({loop}_low + {span}, {size})")
        return f"{loop}_low", f"{loop}_high"

    def _part(self) -> str:
        """Writes the number of the part of the loop that a block runs, and returns its name."""
        self._text.assign("part", "tl.program_id(1).to(tl.int64)" if self._places.wide else "tl.program_id(1)")
        return "part"

    # States of a split loop

    def _state_pointer(self, name: str) -> tuple[str, str, tuple[str, ...]]:
        """Pointers and mask of a state of the first part, and the axes they are over."""
        sizes, axes = self._block.sizes, self._block.value_axes[name]
        return self._positions.pointer(self._states[name].name, tuple(Factor(Index(axis), sizes[axis]) for axis in axes))

    def _state_stride(self, name: str, part: str) -> str:
        """How far the state of a part is from that of the first."""
        return self._text.times(part, product([self._block.sizes[axis] for axis in self._block.value_axes[name]]))

    def _write_state(self, name: str) -> None:
        pointer, mask, wanted = self._state_pointer(name)
        tile = self._values.written[name]
        value = laid_under(tile.text, tile.axes, wanted)
        pointer = f"{pointer} + {self._state_stride(name, 'part')}"
        self._text.line(f"tl.store({pointer}, {value}, mask={mask})" if mask else f"tl.store({pointer}, {value})")

    def _write_combination(self) -> None:
        text, block, split = self._text, self._block, self._tiling.schedule.split
        at_once = parts_at_once(block, self._tiling.schedule)
        for accumulator in block.accumulators:
            for name in accumulator.names:
                self._positions.need(block.value_axes[name])
                self._accumulators.identity(accumulator, name)
        if at_once < split:
            text.line(f"for part in range({split}):" if at_once == 1 else f"for part in range(0, {split}, {at_once}):")
        with text.indented() if at_once < split else nullcontext():
            if at_once > 1:
                number = f"tl.arange(0, {at_once})" + (".to(tl.int64)" if self._places.wide else "")
                text.assign("part_at", f"part + {number}" if at_once < split else number)
            for accumulator in block.accumulators:
                if at_once == 1:
                    self._load_part(accumulator)
                else:
                    self._load_parts(accumulator, is_ragged=split % at_once != 0)
                self._accumulators.merge(accumulator, "_here")
        for accumulator in block.accumulators:
            self._accumulators.finish(accumulator)

    def _load_part(self, accumulator: Accumulate) -> None:
        """Loads the state of a part."""
        part = "tl.cast(part, tl.int64)" if self._places.wide else "part"  # not read from the grid, which may be wide already
        for name in accumulator.names:
            pointer, mask, _ = self._state_pointer(name)
            pointer = f"{pointer} + {self._state_stride(name, part)}"
            self._text.assign(f"{name}_here", f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})")

    def _load_parts(self, accumulator: Accumulate, *, is_ragged: bool) -> None:
        """Loads the states of several parts, whose first axis is the parts, and makes them one.

        A part that is not there has the identity.
        """
        for name in accumulator.names:
            pointer, mask, wanted = self._state_pointer(name)
            axes = (PART_AXIS, *wanted)
            part = self._state_stride(name, laid_under("part_at", (PART_AXIS,), axes))
            place = f"{laid_under(f'({pointer})', wanted, axes)} + {part}"
            masks = [laid_under(f"({mask})", wanted, axes)] if mask else []
            if is_ragged:
                masks.append(laid_under(f"(part_at < {self._tiling.schedule.split})", (PART_AXIS,), axes))
            identity = self._accumulators.identity_of(accumulator, name)
            other = f", mask={' & '.join(masks)}, other={identity}" if masks else ""
            self._text.assign(f"{name}_here", f"tl.load({place}{other})")
        self._accumulators.join_parts(accumulator)

    # The launch

    def _signature(self) -> list[tuple[str, str]]:
        order = [name for name in self._places.arguments if name in self._positions.tensors]
        dtypes = {**{n: t.dtype for n, t in self._types.items()}, **{t.name: t.type.dtype for t in self._states.values()}}
        dtypes |= self._places.tables
        return [*((name, POINTERS[dtypes[name]]) for name in order), *((name, "i32") for name in sorted(self._text.symbols))]

    def launch(self) -> LaunchSource:
        """The launch of the function, which has been written."""
        places, schedule, signature = self._places, self._tiling.schedule, self._signature()
        numbers, update, blocks = dict(places.symbols), self._update, self._blocks(self._block.grid)
        if update is not None:
            others = self._blocks([axis for axis in self._block.grid if axis != update.axis])
            lanes = update.lanes(self._blocks([update.axis]), others, places)
            numbers |= {APART: update.apart(places), f"{update.axis}_lanes": lanes}
            blocks = lanes * others
        arguments = [
            places.arguments[name] if kind.startswith("*") else Argument.int32(numbers[name]) for name, kind in signature
        ]
        grid = (blocks, schedule.split if self._role == FunctionRole.PART else 1, 1)
        return LaunchSource(self.name, tuple(signature), tuple(arguments), grid, schedule.warps, schedule.stages)

    def _blocks(self, axes: Iterable[str]) -> Expression | int:
        """The number of tiles along all of some axes of the grid."""
        blocks: Expression | int = 1
        for axis in axes:
            size, tile = self._places.expression(self._block.sizes[axis]), self._tiling[axis]
            if isinstance(size, int) and isinstance(blocks, int):
                blocks = blocks * _ceil_div(size, tile)
            else:
                blocks = Expression.of(blocks) * Expression.of(size).ceil_div(tile)
        return blocks


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
