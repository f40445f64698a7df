"""One function of a kernel in C: a whole block graph, one part of its split loop, or the combination of the parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeGuard

from mugraph.blocks.block import Block
from mugraph.blocks.mask_lists import listed_mask
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Extent,
    Factor,
    Index,
    InvalidBlock,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    Tensor,
    statement_operands,
)
from mugraph.terms.shape import DataType, TensorType, product
from mugraph.terms.term import make, var, variables
from rewriter.cost.schedules.cpu import STACK
from rewriter.kernels.c.accumulators import AccumulatorSteps
from rewriter.kernels.c.bounds import narrowed
from rewriter.kernels.c.dots import Dots
from rewriter.kernels.c.lines import CLines, times
from rewriter.kernels.c.nests import ELEMENTS, Held, MaskSource, Nests, StateLoad
from rewriter.kernels.c.shown import shown_bounds
from rewriter.kernels.c.splits import Splits
from rewriter.kernels.c.steps import Fold, Let, Put, Step, grouped
from rewriter.kernels.c.tiling import TileSizes
from rewriter.kernels.text.analysis import chosen_loads, conditions_of, fused_products, needed_values, updates
from rewriter.kernels.text.places import Places
from rewriter.kernels.text.roles import FunctionRole
from rewriter.runtime.plan import Argument, Expression, Launch

__all__ = ["CFunction"]


class CFunction:
    """Writes one function. :meth:`write` is called once, and :meth:`launch` after it.

    Args:
        types: of the kernel's tensors.
        places: where they are, and symbols; what the functions of the kernel share.
        states: scratch tensors for the states of the accumulators, where the loop is split.
        tables: names of the tables of each stored mask.
        taken: names that mean something else in the text.
        splits: matrices in parts, which the functions of the kernel share.
        constants: tensors that may be packed once.

    Raises:
        InvalidBlock: the tiles are too large for the stack, or a whole axis has a symbolic size.
        NotGenerated: something has no text in C.
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
        taken: set[str],
        splits: Splits,
        constants: Collection[str] = (),
    ) -> None:
        self._block, self._places, self._role, self._states, self._tables = block, places, role, states, tables
        self.name = f"kernel_{block.name}{role.value}"
        self._types = {**types, **{tensor.name: tensor.type for tensor in states.values()}}
        self._types |= {name: TensorType(dtype, ()) for name, dtype in places.tables.items()}
        self._tiling = TileSizes(block, schedule)
        self._lines = CLines({*taken, self.name, *self._types, *places.symbols})
        self._nests = Nests(self._lines, self._tiling, self._types, chosen_loads(block))
        self._splits = splits
        self._dots = Dots(self._nests, places, constants, splits, schedule.parts)
        self._accumulators = AccumulatorSteps(self._tiling, self._product_steps)
        self._fused = fused_products(block)
        self._bytes = set[str]()
        self._listed = listed_mask(block, schedule) if tables else None
        self._updates = updates(places.kernel, block)

    def write(self) -> str:
        """The text of the function."""
        lines, block = self._lines, self._block
        with lines.block("for (int64_t block = first; block < last; ++block)"):
            self._read_where_used()
            self._read_as_bytes()
            self._write_place()
            self._pass_by()
            if self._role == FunctionRole.COMBINE:
                self._write_combination()
            else:
                self._write_phase("fixed")
                if block.loop is not None:
                    self._take_apart()
                    self._write_loop(block.loop)
            if self._role == FunctionRole.PART:
                for accumulator in block.accumulators:
                    for name in accumulator.names:
                        self._write_state(name)
            else:
                self._write_phase("after")
        used = lines.stack_bytes
        if used > STACK:
            worst = max(lines.stack, key=lambda name: lines.stack[name])
            raise InvalidBlock(
                f"block {block.name}: {used} bytes of tiles on the stack, {worst} alone {lines.stack[worst]}; "
                f"a function may have {STACK}: take smaller tiles"
            )
        self._types |= {name: TensorType(DataType.FLOAT, ()) for name in {*self._places.packed.values(), *self._splits.names}}
        head = f"void {self.name}(void *const *arguments, const int64_t *grid, int64_t first, int64_t last)"
        return "\n".join(["", head + " {", *self._parameters(), *lines.lines, "}"])

    def _pass_by(self) -> None:
        """Writes that a block passes by which updates buffers and has nothing new to write."""
        found, lines, held = self._updates, self._lines, dict(self._nests.held)
        if not found:
            return
        with lines.block(f"if ({' && '.join(f'{update.output} == {update.input}' for update in found)})"):
            steps = [step for statement in conditions_of(self._block, found) for step in self._statement_steps(statement)]
            for update in found:
                used = {axis for leaf in variables([update.condition]) for axis in self._block.value_axes[leaf.name]}
                where, axes = f"{update.value}.where", self._tiling.present(used)
                steps.append(Let(where, update.condition, axes))
                steps.append(Fold(f"{update.value}.kept", "max" if update.is_so else "min", where, axes, ()))
            kept = [(f"{update.value}.kept", 0 if update.is_so else 1) for update in found]
            self._write_steps(steps, {name for name, _ in kept})
            lines.line(f"if ({' && '.join(f'{self._nests.held[name].text} == {value}' for name, value in kept)}) continue;")
        self._nests.held = held

    # Arguments

    def _signature(self) -> list[str]:
        order = [name for name in self._places.arguments if name in self._nests.tensors]
        return [*order, *sorted(self._lines.symbols)]

    def _parameters(self) -> list[str]:
        """Declarations of what the function is given. No two tensors overlap of which one is written, but for updates."""
        shared = {name for update in self._updates for name in (update.input, update.output)}
        written = {store.tensor for store in self._block.stores} | {tensor.name for tensor in self._states.values()}
        texts = []
        for number, name in enumerate(self._signature()):
            if name in self._types:
                constant = "" if name in written else "const "
                type_ = f"{constant}{ELEMENTS[self._types[name].dtype]} *"
                alone = "" if name in shared else "restrict "
                texts.append(f"    {type_}{alone}{name} = *({type_}const *)arguments[{number}];")
            else:
                texts.append(f"    const int64_t {name} = *(const int64_t *)arguments[{number}];")
        return texts

    def launch(self) -> Launch:
        """The launch of the function, which has been written."""
        places = self._places
        arguments = tuple(
            places.arguments[name] if name in self._types else Argument.int64(places.symbols[name]) for name in self._signature()
        )
        blocks: Expression | int = 1
        for axis in self._block.grid:
            size, tile = places.expression(self._block.sizes[axis]), self._tiling[axis]
            if isinstance(size, int) and isinstance(blocks, int):
                blocks = blocks * -(-size // tile)
            else:
                blocks = Expression.of(blocks) * Expression.of(size).ceil_div(tile)
        split = self._tiling.schedule.split if self._role == FunctionRole.PART else 1
        return Launch(self.name, 1, (blocks, split, 1), arguments)

    # Where a block is

    def _write_place(self) -> None:
        """Writes where the tiles of a block start."""
        lines, tiling, block = self._lines, self._tiling, self._block
        cut = self._cut_axes()
        for axis in block.grid:
            if axis not in cut:
                lines.line(f"const int64_t {axis}_start = 0;")
        number = "block"
        if self._role == FunctionRole.PART:
            lines.line("const int64_t part = block / grid[0];")
            number = "block % grid[0]"
        if cut:
            lines.line(f"int64_t number = {number};")
        for position, axis in enumerate(reversed(cut)):
            count = tiling.count(axis, lines)
            at = "number" if position == len(cut) - 1 else f"number % {count}"
            lines.line(f"const int64_t {axis}_start = {times(at, str(tiling[axis]))};")
            if position < len(cut) - 1:
                lines.line(f"number /= {count};")
        for axis in block.grid:
            tiling.write_length(axis, lines)

    def _cut_axes(self) -> list[str]:
        """The grid axes along which there is more than one position, in the order in which blocks are numbered, the fastest last.

        What is the larger tile of a product with stored weights stays in the second cache while the smaller ones of the other
        operand pass, so that it comes from memory once.
        """
        cut = [axis for axis in self._block.grid if self._block.sizes[axis] != 1]
        columns = self._dots.panel_columns(s for s in self._block.statements if isinstance(s, Dot))
        others = [axis for axis in cut if axis != columns]
        if columns not in cut or not others or self._tiling[others[-1]] > self._tiling[columns]:
            return cut
        return [columns, *others]

    def _read_where_used(self) -> None:
        """Says which values are read where they are used."""
        for statement in self._block.statements:
            if isinstance(statement, Load | Predicate | PlaceTile | MaskTile | Extent):
                self._nests.inline[statement.name] = statement
            if isinstance(statement, MaskTile) and statement is not self._listed:
                self._nests.masks[statement.name] = MaskSource(self._tables[statement.name][0], statement.view)

    def _read_as_bytes(self) -> None:
        """Says which values nothing asks for but products that read bytes in their place."""
        others = set[str]()
        for statement in self._block.statements:
            found = self._dots.of_bytes(statement) if self._is_summed(statement) else None
            if found is not None:
                self._bytes.update(found.floats)
            else:
                others.update(statement_operands(statement))
        self._bytes -= others

    def _is_summed(self, statement: Statement | None) -> TypeGuard[Dot]:
        """Whether a statement is a product that is added to an accumulator as it is computed."""
        return isinstance(statement, Dot) and statement.name in self._fused

    # Phases

    def _write_phase(self, phase: str) -> None:
        """Writes what a phase needs: before the loop, in it, or after it, where invariants that only the end needs stand too."""
        steps = self._steps(phase)
        if phase == "loop":
            for accumulator in self._block.accumulators:
                steps += self._accumulators.step(accumulator, accumulator.keep, ".length")
        self._write_steps(steps, set() if phase != "fixed" else self._asked_later())

    def _write_steps(self, steps: list[Step], outside: set[str]) -> None:
        groups, within = grouped(steps)
        for group in groups:
            if not self._dots.write(group):
                self._nests.write(group, within, outside)

    def _take_apart(self) -> None:
        """Writes that left operands of products that the loop does not change are taken apart before it."""
        phases = self._block.phases
        for statement in self._block.statements:
            if isinstance(statement, Dot) and phases[statement.name] == "loop" and phases[statement.left] == "fixed":
                for step in self._product_steps(statement.name, statement, False)[-1:]:
                    self._dots.take_apart(step)

    def _asked_later(self) -> set[str]:
        """What statements of the loop and behind it ask."""
        phases = self._block.phases
        late = [s for s in self._block.statements if isinstance(s, Store | Accumulate) or phases[s.name] != "fixed"]
        return {name for statement in late for name in statement_operands(statement)}

    def _steps(self, phase: str) -> list[Step]:
        phases, steps = self._block.phases, list[Step]()
        written = ("fixed", "after") if phase == "after" else (phase,)
        needed = needed_values(self._block, phase, written)
        for statement in self._block.statements:
            if isinstance(statement, Store):
                if phases[statement.value] in written and phase != "fixed":
                    axes = self._tiling.present({f.index.axis for f in statement.view if f.index.axis is not None})
                    steps.append(Put(statement.tensor, statement.value, statement.view, axes))
            elif isinstance(statement, Accumulate) or statement.name not in needed or statement.name in self._nests.held:
                continue
            elif phases[statement.name] in written:
                steps += self._statement_steps(statement)
        return steps

    def _statement_steps(self, statement: Statement) -> list[Step]:
        axes = self._accumulators.axes
        if isinstance(statement, Compute):
            return [] if statement.name in self._bytes else [Let(statement.name, statement.term, axes(statement.name))]
        if isinstance(statement, Reduce):
            return [Fold(statement.name, statement.kind, statement.operand, axes(statement.operand), axes(statement.name))]
        if isinstance(statement, Dot) and statement.name not in self._fused:
            return self._product_steps(statement.name, statement, False)
        return []

    def _product_steps(self, name: str, dot: Dot, is_state: bool) -> list[Step]:
        """A product of tiles: of matrices, or multiplications and a sum."""
        axes = self._accumulators.axes
        of_bytes = self._dots.byte_step(name, dot, axes(name)) if is_state else None
        if of_bytes is not None:
            return [of_bytes]
        a, b = ((operand, self._operand_axes(operand)) for operand in (dot.left, dot.right))
        rest = axes(name)
        steps = self._dots.steps(name, a, b, dot.over, rest, is_state)
        if steps is not None:
            return steps
        every = self._tiling.present({*a[1], *b[1]})
        terms = Let(f"{name}.terms", make("Mul", [var(dot.left), var(dot.right)]), every)
        return [terms, Fold(name, "sum", terms.name, every, rest, is_state=is_state)]

    def _operand_axes(self, name: str) -> tuple[str, ...]:
        """The axes of an operand of a product; the weights of a softmax have those of its scores."""
        block = self._block
        for accumulator in block.accumulators:
            if name == f"{accumulator.names[0]}.weights":
                keep = (accumulator.keep,) if accumulator.keep else ()
                return self._tiling.present({a for x in (accumulator.operands[0], *keep) for a in block.value_axes[x]})
        return self._accumulators.axes(name)

    # The loop

    def _write_loop(self, loop: str) -> None:
        lines, tiling = self._lines, self._tiling
        self._start_accumulators()
        if self._listed is not None:
            self._write_listed_loop(self._listed, loop)
            return
        size, tile = lines.size(self._block.sizes[loop]), tiling[loop]
        low, high = "0", size
        if self._role == FunctionRole.PART:
            lines.line(
                f"const int64_t {loop}_span = ({tiling.count(loop, lines)} + {tiling.schedule.split - 1}) / "
                f"{tiling.schedule.split} * {tile};"
            )
            lines.line(f"const int64_t {loop}_low = part * {loop}_span;")
            lines.line(f"const int64_t {loop}_high = at_least({loop}_low + {loop}_span, {size});")
            low, high = f"{loop}_low", f"{loop}_high"
        low, high = shown_bounds(self._nests, self._types, *narrowed(lines, tiling, low, high))
        with lines.block(f"for (int64_t {loop}_start = {low}; {loop}_start < {high}; {loop}_start += {tile})"):
            self._write_iteration(loop)

    def _start_accumulators(self) -> None:
        for accumulator in self._block.accumulators:
            for name in accumulator.names:
                self._nests.array(name, "float", self._accumulators.axes(name))
                if not self._sets(accumulator):
                    self._nests.fill(name, self._accumulators.identity(accumulator, name))

    def _sets(self, accumulator: Accumulate) -> bool:
        """Whether the one iteration of the loop writes a state whatever it was."""
        dot = self._block.defined.get(accumulator.operands[0])
        return self._is_summed(dot) and self._dots.of_bytes(dot) is not None

    def _write_iteration(self, loop: str) -> None:
        nests, before = self._nests, dict(self._nests.held)
        self._tiling.write_length(loop, self._lines)
        nests.held[".length"] = Held(f"(float){self._tiling.length(loop)}", "float", ())
        self._write_phase("loop")
        nests.held = before

    def _write_listed_loop(self, mask: MaskTile, loop: str) -> None:
        """Goes along the tiles in which something of a stored mask is true: its partial tiles, then the others."""
        lines, tiling, name = self._lines, self._tiling, mask.name
        *lead, rows, columns = mask.view
        high, wide = (tiling.schedule.tile(f.index.axis or "") for f in (rows, columns))
        assert isinstance(mask.rows, int) and isinstance(mask.columns, int)
        spans, blocks = (self._table(mask, number) for number in range(2))
        row, stride = [f"{rows.index.axis}_start / {high}"], -(-mask.rows // high)
        for factor in reversed(lead):
            index = factor.index
            at = "0" if index.axis is None else f"({index.axis}_start + {lines.size(index.shift)})"
            at = f"at_divided({at}, {lines.size(index.divide)})" if index.divide != 1 else at
            at = f"at_remaining({at}, {lines.size(index.modulo)})" if index.modulo is not None else at
            row.append(f"({at} + {lines.size(index.offset)}) * {stride}")
            stride *= int(str(factor.size))
        lines.line(f"const int32_t *const {name}_span = {spans} + 2 * ({' + '.join(row)});")
        low, middle, end = (f"{name}_span[{number}]" for number in range(3))
        if self._role == FunctionRole.PART:
            split = tiling.schedule.split
            lines.line(f"const int64_t {name}_count = ({end} - {low} + {split - 1}) / {split};")
            lines.line(f"const int64_t {name}_low = {low} + part * {name}_count;")
            lines.line(f"const int64_t {name}_high = at_least({name}_low + {name}_count, {end});")
            low, end = f"{name}_low", f"{name}_high"
        with lines.block(f"for (int64_t entry = {low}; entry < {end}; ++entry)"):
            lines.line(f"const int64_t {loop}_start = {times(f'{blocks}[2 * entry]', str(wide))};")
            self._write_tile(mask, f"entry < {middle}", blocks, (high, wide))
            self._write_iteration(loop)

    def _write_tile(self, mask: MaskTile, is_partial: str, blocks: str, tile: tuple[int, int]) -> None:
        """Writes where the tile of a mask is that an entry of its list names."""
        lines, (rows, columns) = self._lines, mask.view[-2:]
        offset = f"{mask.name}_tile"
        lines.line(f"const int64_t {offset} = (int64_t){blocks}[2 * entry + 1] * {tile[0] * tile[1]};")
        lines.line(f"const int {mask.name}_hides = {is_partial};")
        starts = [(f.index.axis or "", size) for f, size in ((rows, tile[0]), (columns, tile[1]))]
        view = tuple(Factor(Index(axis), size) for axis, size in starts)
        back = " - ".join(
            [offset, *(times(f"{axis}_start", str(step)) for (axis, _), step in zip(starts, (tile[1], 1), strict=True))]
        )
        self._nests.masks[mask.name] = MaskSource(self._table(mask, 2), view, back, f"{mask.name}_hides")

    def _table(self, mask: MaskTile, number: int) -> str:
        name = self._tables[mask.name][number]
        if name not in self._nests.tensors:
            self._nests.tensors.append(name)
        return name

    # States of a split loop

    def _state(self, name: str) -> StateLoad:
        sizes, axes = self._block.sizes, self._block.value_axes[name]
        stride = product([sizes[axis] for axis in axes])
        view = tuple(Factor(Index(axis), sizes[axis]) for axis in axes)
        return StateLoad(self._states[name].name, view, times("part", self._lines.size(stride)))

    def _write_state(self, name: str) -> None:
        state = self._state(name)
        self._write_steps([Put(state.tensor, name, state.view, self._accumulators.axes(name), state.offset)], set())

    def _write_combination(self) -> None:
        lines, nests, block = self._lines, self._nests, self._block
        self._start_accumulators()
        with lines.block(f"for (int64_t part = 0; part < {self._tiling.schedule.split}; ++part)"):
            before, steps = dict(nests.held), list[Step]()
            for accumulator in block.accumulators:
                for name in accumulator.names:
                    nests.inline[f"{name}.stored"] = self._state(name)
                steps += self._accumulators.merge(accumulator, [f"{name}.stored" for name in accumulator.names])
            self._write_steps(steps, set())
            nests.held = before
