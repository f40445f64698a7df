"""Triton source from a graph-defined kernel and its schedules.

One function a launch: the block graph itself, and where its loop is split a second one that combines the parts. A tile is a
Triton tensor over those of its axes that are larger than one, in the order of the block; axes with tiles of one are scalars, so
the same block graph gives skinny products and matrix products. Products run on the matrix units where both tiles are matrices
that are large enough, else as multiplications and sums. Everything else is in 32-bit floats; products of 32-bit operands are in
full precision ("ieee"), TF32 only where it is asked for.

Model constants stand as numbers, dimension symbols are run-time arguments. Edges of ragged dimensions are loaded as zero and,
where the padding would count, masked with the identity of the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.blocks.block import (
    Accumulate,
    Affine,
    Block,
    Compute,
    Dot,
    Extent,
    Factor,
    Index,
    InvalidBlock,
    Kernel,
    Load,
    Predicate,
    Reduce,
    Schedule,
    Statement,
    Store,
    Tensor,
    View,
    check_schedule,
    element_bytes,
    next_power,
    product,
    renamed_values,
    statement_names,
    statement_operands,
    storage_types,
)
from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, Dim, TensorType, plain_symbol
from mugraph.terms.term import format_term, variables
from rewriter.kernels.triton.scalar import SHORT_ERF, Expr, NotGenerated, write_thread
from rewriter.runtime.plan import Argument, Expression, Output

__all__ = ["OVERLAPPED", "LaunchSource", "Source", "generate"]

OVERLAPPED = "overlapped"
"""The last parameter of every function, a constant: whether it may start while the launch before it still runs."""

_POINTERS = {
    DataType.FLOAT: "*fp32",
    DataType.FLOAT16: "*fp16",
    DataType.BFLOAT16: "*bf16",
    DataType.BOOL: "*i8",
    DataType.INT32: "*i32",
    DataType.INT64: "*i64",
}
_TRITON = {
    DataType.FLOAT: "tl.float32",
    DataType.FLOAT16: "tl.float16",
    DataType.BFLOAT16: "tl.bfloat16",
    DataType.BOOL: "tl.int8",
    DataType.INT32: "tl.int32",
    DataType.INT64: "tl.int64",
}
_LOG2E = 1.4426950408889634
_MINUS_INFINITY = 'float("-inf")'
_IDENTITY = {"sum": "0.0", "max": _MINUS_INFINITY, "min": 'float("inf")'}
_LEAST_DOT = (16, 8, 16)
"""Least rows, columns and terms of a product on the matrix units."""
_LAZY_ELEMENTS = 64
"""Most elements a thread that an accumulator keeps unreduced until after the loop."""


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """One launch: what is needed to compile its function and to fill a :class:`rewriter.runtime.plan.Launch`.

    Attributes:
        function: its name in the source.
        signature: parameter name to Triton type, in order; pointers are multiples of 16 bytes.
        arguments: one a parameter; the null pointers that Triton appends are not among them.
        grid: blocks in the three directions.
        warps, stages: compiler options.
    """

    function: str
    signature: tuple[tuple[str, str], ...]
    arguments: tuple[Argument, ...]
    grid: tuple[Expression | int, Expression | int, Expression | int]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Source:
    """A Python module with one ``@triton.jit`` function a launch, the types of its outputs and bytes of its scratch buffers."""

    text: str
    launches: tuple[LaunchSource, ...]
    outputs: tuple[Output, ...]
    scratch: tuple[Expression | int, ...]


def generate(
    kernel: Kernel, schedules: Sequence[Schedule], dtypes: Mapping[str, DataType] | None = None, tf32: bool = False
) -> Source:
    """Triton source of a kernel.

    Args:
        kernel: valid (:meth:`Kernel.check`).
        schedules: one a block graph.
        dtypes: element types of tensors, where they differ from the kernel's.
        tf32: whether products of 32-bit operands may round them to TF32.

    Raises:
        InvalidBlock: a schedule does not belong to its block, or a whole axis has a symbolic size.
        NotGenerated: an operator, an element type or a symbol has no form in a kernel.
    """
    dtypes = dtypes or {}
    types = {name: TensorType(dtypes.get(name, t.dtype), t.shape) for name, t in kernel.tensors.items()}
    for name, type_ in types.items():
        if type_.dtype not in _POINTERS:
            raise NotGenerated(f"{name} of element type {type_.dtype.name.lower()}")
    places = _Places(kernel, types, tf32)
    functions: list[_Function] = []
    for number, (block, schedule) in enumerate(zip(kernel.blocks, schedules, strict=True)):
        check_schedule(block, schedule)
        block = _named_apart(block, {*types, *kernel.symbols})
        if any(other.name == block.name for other in kernel.blocks[:number]):
            raise InvalidBlock(f"two block graphs are named {block.name}")
        if schedule.split > 1:
            states = places.add_states(block, schedule.split)
            functions.append(_Function(kernel, block, schedule, types, places, "part", states))
            functions.append(_Function(kernel, block, schedule, types, places, "combine", states))
        else:
            functions.append(_Function(kernel, block, schedule, types, places, "whole", {}))
    texts, launches = [], []
    for function in functions:
        texts.append(function.write())
        launches.append(function.launch())
    head = [f"# {kernel.name}: a generated kernel, {kernel.digest.hex()[:16]}", "#", "# It computes"]
    head += [f"#   {t.name}: {types[t.name]} = {format_term(b)}" for t, b in zip(kernel.outputs, kernel.body, strict=True)]
    head += ["# from", *(f"#   {t.name}: {types[t.name]}" for t in kernel.inputs)]
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        tiles = ", ".join(f"{axis}={tile}" for axis, tile in schedule.tiles)
        head.append(
            f"# {block.name}: tiles {tiles or 'of 1'}, split {schedule.split}, warps {schedule.warps}, stages {schedule.stages}, "
            f"group {schedule.group}"
        )
    helpers = [f"\n\n{SHORT_ERF.rstrip()}"] if any("short_erf(" in text for text in texts) else []
    text = "\n".join([*head, "", "import triton", "import triton.language as tl", _IMPORT, *helpers, *texts]) + "\n"
    outputs = tuple(Output(types[t.name].dtype, tuple(map(places.expression, t.type.shape))) for t in kernel.outputs)
    return Source(text, tuple(launches), outputs, tuple(places.scratch_bytes))


_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
_RESERVED = frozenset(
    {
        "tl",
        "triton",
        OVERLAPPED,
        "gdc_wait",
        "gdc_launch_dependents",
        "short_erf",
        "pid",
        "inner",
        "first",
        "height",
        "part",
        "range",
    }
)
_SUFFIXES = ("start", "at", "in", "low", "high", "first", "last")


def _named_apart(block: Block, taken: set[str]) -> Block:
    """The block with values that would hide a parameter or a name of the function's own renamed."""
    taken = taken | _RESERVED | {f"{axis}_{suffix}" for axis in block.sizes for suffix in _SUFFIXES}
    names = {name: name for name in block.defined}
    for name in names:
        while names[name] in taken:
            names[name] += "_"
        taken = taken | {names[name]}
    return renamed_values(block, names)


class _Places:
    """What the functions of a kernel share: where tensors and symbols are at run time."""

    def __init__(self, kernel: Kernel, types: Mapping[str, TensorType], tf32: bool) -> None:
        self.precision = "tf32" if tf32 else "ieee"
        self.narrow = all(t.dtype.bitwidth <= 16 for t in types.values() if t.dtype in FLOATS)
        self.symbols: dict[str, Expression] = {}
        for number, tensor in enumerate(kernel.inputs):
            for axis, dim in enumerate(tensor.type.shape):
                if (name := plain_symbol(dim)) is not None:
                    self.symbols.setdefault(name, Expression.dimension(number, axis))
        for name in kernel.symbols:
            if name not in self.symbols:
                raise NotGenerated(f"the symbol {name}, which is no dimension of an input")
        self.arguments = {t.name: Argument.input(i) for i, t in enumerate(kernel.inputs)}
        self.arguments |= {t.name: Argument.output(i) for i, t in enumerate(kernel.outputs)}
        self.arguments |= {t.name: Argument.scratch(i) for i, t in enumerate(kernel.scratch)}
        self.scratch_bytes = [self.expression(product(t.type.shape) * element_bytes(types[t.name].dtype)) for t in kernel.scratch]
        sizes = [product(t.shape) for t in types.values()]
        self.wide = any(not isinstance(size, int) or size >= 1 << 31 for size in sizes)
        self.taken = set(types)

    def add_states(self, block: Block, split: int) -> dict[str, Tensor]:
        """Scratch for the states of a split block's accumulators: [split, axes...] in 32 bits."""
        states = {}
        for accumulator in block.accumulators:
            for name in accumulator.names:
                tensor = f"{name}_parts"
                while tensor in self.taken:
                    tensor += "_"
                self.taken.add(tensor)
                shape = (split, *(block.sizes[axis] for axis in block.value_axes[name]))
                states[name] = Tensor(tensor, TensorType(DataType.FLOAT, shape))
                self.arguments[tensor] = Argument.scratch(len(self.scratch_bytes))
                size = product(shape) * 4
                self.scratch_bytes.append(self.expression(size))
                self.wide |= not isinstance(size, int) or size >= 1 << 33
        return states

    def expression(self, dim: Dim) -> Expression | int:
        if isinstance(dim, int):
            return dim
        total: Expression | None = None
        for monomial, coefficient in dim.terms:
            part = Expression.of(coefficient)
            for name, power in monomial:
                for _ in range(power):
                    part = part * self.symbols[name]
            total = part if total is None else total + part
        assert total is not None
        return total


@dataclass(frozen=True, slots=True)
class _Tile:
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


class _Function:
    """Writes one function: the whole block, one part of a split loop, or the combination of the parts."""

    def __init__(
        self,
        kernel: Kernel,
        block: Block,
        schedule: Schedule,
        types: Mapping[str, TensorType],
        places: _Places,
        role: str,
        states: Mapping[str, Tensor],
    ) -> None:
        self.kernel, self.block, self.schedule, self.types, self.places = kernel, block, schedule, dict(types), places
        self.role, self.states = role, states
        self.storage = storage_types(block, types)
        self.tiles = {axis: self._tile(axis) for axis in block.sizes}
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[str, _Tile] = {}
        self.ready: set[str] = set()
        self.tensors: list[str] = []
        self.symbols: set[str] = set()
        self.name = block.name + {"whole": "", "part": "_part", "combine": "_combine"}[role]
        self.fused = self._fused_dots()
        self.scaled = self._scaled_scores()
        self.kept = self._kept()
        self.lazy: dict[str, tuple[str, ...]] = {}

    def _tile(self, axis: str) -> int:
        if axis in self.block.grid or axis == self.block.loop:
            return self.schedule.tile(axis)
        size = self.block.sizes[axis]
        if not isinstance(size, int):
            raise InvalidBlock(f"block {self.block.name}: the whole axis {axis} has the symbolic size {size}")
        return next_power(size)

    # Text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def assign(self, name: str, text: str) -> None:
        self.line(f"{name} = {text}")

    def size(self, dim: Dim) -> str:
        """A size as text, a product or sum in parentheses."""
        if isinstance(dim, int):
            return str(dim)
        self.symbols |= dim.symbols()
        text = str(dim).replace("^", "**")
        return text if text.isidentifier() else f"({text})"

    def times(self, text: str, stride: Dim) -> str:
        return text if stride == 1 else f"{text} * {self.size(stride)}"

    def present(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those axes that are dimensions of a Triton tensor, in the order of the block."""
        return tuple(axis for axis in self.block.sizes if axis in axes and self.tiles[axis] > 1)

    @staticmethod
    def expand(text: str, axes: Sequence[str], wanted: Sequence[str]) -> str:
        """A tensor over ``axes`` laid under ``wanted``."""
        if not axes or tuple(axes) == tuple(wanted):
            return text
        return f"{text}[{', '.join(':' if axis in axes else 'None' for axis in wanted)}]"

    def union(self, *groups: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis for axis in self.block.sizes if any(axis in group for group in groups))

    def ragged(self, axis: str) -> bool:
        """Whether tiles of an axis may reach beyond it."""
        size, tile = self.block.sizes[axis], self.tiles[axis]
        return not (isinstance(size, int) and size % tile == 0)

    # Positions

    def need(self, axes: Sequence[str]) -> None:
        """Writes the positions of axes and which of them exist, where that has not been done."""
        for axis in axes:
            if axis in self.ready:
                continue
            self.ready.add(axis)
            tile = self.tiles[axis]
            start = f"{axis}_start" if axis in self.block.grid or axis == self.block.loop else ""
            if tile == 1:
                self.assign(f"{axis}_at", start or "0")
            else:
                text = f"tl.arange(0, {tile})"
                self.assign(f"{axis}_at", f"{start} + {text}" if start else text)
            if axis == self.block.loop and self.places.wide:
                self.assign(f"{axis}_at", f"{axis}_at.to(tl.int64)" if tile > 1 else f"tl.cast({axis}_at, tl.int64)")
            if tile > 1 and self.ragged(axis):
                self.assign(f"{axis}_in", f"{axis}_at < {self.size(self.block.sizes[axis])}")

    def position(self, index: Index, wanted: Sequence[str]) -> str:
        """The text of an index over the axes ``wanted``, as a factor of a product."""
        if index.axis is None:
            return self.size(index.offset)
        text = f"{index.axis}_at"
        if index.shift != 0:
            text = f"({text} + {self.size(index.shift)})"
        if index.divide != 1:
            text = f"({text} // {self.size(index.divide)})"
        if index.modulo is not None:
            text = f"({text} % {self.size(index.modulo)})"
        if index.offset != 0:
            text = f"({text} + {self.size(index.offset)})"
        return self.expand(text, self.present([index.axis]), wanted)

    def pointer(self, tensor: str, factors: View) -> tuple[str, str, tuple[str, ...]]:
        """Pointers and mask of a view of a tensor, and the axes they are over."""
        if tensor not in self.tensors:
            self.tensors.append(tensor)
        axes = self.block.ordered({f.index.axis for f in factors if f.index.axis is not None})
        self.need(axes)
        wanted = self.present(axes)
        stride: Dim = 1
        parts = []
        for factor in reversed(factors):
            text = self.position(factor.index, wanted)
            if text != "0":
                parts.append(self.times(text, stride))
            stride = stride * factor.size
        mask = " & ".join(self.expand(f"{axis}_in", (axis,), wanted) for axis in wanted if self.ragged(axis))
        return " + ".join([tensor, *reversed(parts)]), mask, wanted

    # Values

    def floating(self, name: str) -> _Tile:
        """A value as an operand of arithmetic."""
        tile = self.values[name]
        if tile.kind == "raw":
            tile = replace(tile, text=f"{name}_wide", kind="float")
            self.assign(tile.text, f"{name}.to(tl.float32)")
            self.values[name] = tile
        return tile

    def masked(self, tile: _Tile, over: str, identity: str) -> str:
        """A tile whose padding along an axis counts for nothing."""
        if over not in tile.axes or not self.ragged(over) or (identity == "0.0" and over in tile.zeroed):
            return tile.text
        return f"tl.where({self.expand(f'{over}_in', (over,), tile.axes)}, {tile.text}, {identity})"

    def _fused_dots(self) -> set[str]:
        """Products that are added to their accumulator as they are computed."""
        users: dict[str, list[Statement]] = {}
        for statement in self.block.statements:
            for operand in statement_operands(statement):
                users.setdefault(operand, []).append(statement)
        return {
            s.name
            for s in self.block.statements
            if isinstance(s, Dot) and s.over == self.block.loop and all(isinstance(u, Accumulate) for u in users.get(s.name, []))
        }

    def _scaled_scores(self) -> dict[str, tuple[str, float]]:
        """Scores of a softmax that are a value times a positive number: both, since the softmax multiplies by itself."""
        found = {}
        for accumulator in self.block.accumulators:
            name = accumulator.operands[0]
            defined = self.block.defined[name]
            users = [s for s in self.block.statements if name in statement_operands(s)]
            if accumulator.monoid != "softmax" or users != [accumulator] or not isinstance(defined, Compute):
                continue
            term = defined.term
            numbers = [i.attr("value") for i in term.inputs if i.op == "Const"]
            names = [i.name for i in term.inputs if i.is_var]
            if term.op == "Mul" and len(numbers) == len(names) == 1 and 0 < numbers[0] < math.inf:
                found[name] = (names[0], float(numbers[0]))
        return found

    def _kept(self) -> dict[str, Predicate]:
        """Predicates of the loop that only a softmax asks: it writes them where it needs them."""
        block, found = self.block, dict[str, Predicate]()
        for accumulator in block.accumulators:
            keep = block.defined.get(accumulator.keep or "")
            users = [s for s in block.statements if accumulator.keep in statement_operands(s)]
            if accumulator.monoid == "softmax" and isinstance(keep, Predicate) and block.phases[keep.name] == "loop":
                found |= {keep.name: keep} if users == [accumulator] else {}
        return found

    def write_value(self, statement: Statement) -> None:
        if isinstance(statement, Load):
            self.write_load(statement)
        elif isinstance(statement, Compute) and statement.name in self.scaled:
            return
        elif isinstance(statement, Compute):
            leaves = {}
            operands = {v.name: self.floating(v.name) for v in variables([statement.term])}
            wanted = self.union(*(tile.axes for tile in operands.values()))
            for name, tile in operands.items():
                leaves[name] = Expr(self.expand(tile.text, tile.axes, wanted), tile.kind)
            result = write_thread(statement.term, leaves, statement.name, self.assign, self.places.narrow)
            self.values[statement.name] = _Tile(result.text, wanted, result.kind)
        elif isinstance(statement, Dot):
            if statement.name not in self.fused:
                text, axes = self.dot(statement.left, statement.right, statement.over, None)
                self.assign(statement.name, text)
                self.values[statement.name] = _Tile(statement.name, axes)
        elif isinstance(statement, Reduce):
            tile = self.floating(statement.operand)
            text, axes = tile.text, tile.axes
            for axis in reversed(statement.over):
                if axis in axes:
                    masked = self.masked(replace(tile, text=text, axes=axes), axis, _IDENTITY[statement.kind])
                    text = f"tl.{statement.kind}({masked}, axis={axes.index(axis)})"
                    axes = tuple(other for other in axes if other != axis)
            self.assign(statement.name, text)
            self.values[statement.name] = _Tile(statement.name, axes)
        elif isinstance(statement, Predicate):
            if statement.name not in self.kept:
                self.write_predicate(statement)
        elif isinstance(statement, Extent):
            text = self.size(statement.size)
            if isinstance(statement.size, int):
                self.values[statement.name] = _Tile(f"{statement.size}.0", ())
            else:
                self.assign(statement.name, f"({text}).to(tl.float32)" if text.isidentifier() else f"{text}.to(tl.float32)")
                self.values[statement.name] = _Tile(statement.name, ())

    def write_predicate(self, statement: Predicate) -> None:
        axes = self.present(self.block.value_axes[statement.name])
        self.need(self.block.value_axes[statement.name])
        parts = [f"({self.affine(condition, axes)} >= 0)" for condition in statement.conditions]
        self.assign(statement.name, " & ".join(parts))
        self.values[statement.name] = _Tile(statement.name, axes, "bool")

    def write_load(self, statement: Load) -> None:
        pointer, mask, axes = self.pointer(statement.tensor, statement.view)
        dtype = self.types[statement.tensor].dtype
        self.assign(statement.name, f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})")
        kind = "float" if dtype == DataType.FLOAT else "raw" if dtype in FLOATS else "int"
        if dtype == DataType.BOOL:
            self.assign(statement.name, f"{statement.name} != 0")
            kind = "bool"
        self.values[statement.name] = _Tile(statement.name, axes, kind, frozenset(axes))

    def affine(self, condition: Affine, axes: Sequence[str]) -> str:
        text = ""
        for index, coefficient in condition.terms:
            part = self.position(index, axes)
            part = part if abs(coefficient) == 1 else f"{abs(coefficient)} * {part}"
            sign = "-" if coefficient < 0 else "+"
            text = f"{text} {sign} {part}" if text else (f"-{part}" if coefficient < 0 else part)
        constant = self.size(condition.constant)
        return text if constant == "0" else f"{text} + {constant}"

    def dot(self, left: str, right: str, over: str, total: str | None) -> tuple[str, tuple[str, ...]]:
        """The text of a product of tiles, added to ``total`` where there is one, and its axes."""
        a, b = self.values[left], self.values[right]
        return self.dot_tiles(a, self.storage[left], b, self.storage[right], over, total)

    def on_matrix_units(self, a: Sequence[str], b: Sequence[str], over: str) -> bool:
        """Whether a product of tiles over axes ``a`` and ``b`` is one of matrices that are large enough."""
        outer = [x for x in self.union(a, b) if x != over]
        if over not in a or over not in b or len(a) != 2 or len(b) != 2 or len(outer) != 2:
            return False
        return all(self.tiles[x] >= least for x, least in zip((*outer, over), _LEAST_DOT, strict=True))

    def dot_tiles(
        self, a: _Tile, a_type: DataType, b: _Tile, b_type: DataType, over: str, total: str | None
    ) -> tuple[str, tuple[str, ...]]:
        axes = tuple(axis for axis in self.union(a.axes, b.axes) if axis != over)
        if self.on_matrix_units(a.axes, b.axes, over):
            narrow = min((a_type, b_type), key=lambda kind: kind.bitwidth)
            first, second = self.operand(a, a_type, over, narrow), self.operand(b, b_type, over, narrow)
            rows, columns = next(x for x in a.axes if x != over), next(x for x in b.axes if x != over)
            if axes == (columns, rows):
                first, second, a, b = second, first, b, a
            first = first if a.axes[-1] == over else f"tl.trans({first})"
            second = second if b.axes[0] == over else f"tl.trans({second})"
            precision = f', input_precision="{self.places.precision}"' if narrow == DataType.FLOAT else ""
            return f"tl.dot({first}, {second}{f', {total}' if total else ''}{precision})", axes
        every = self.union(a.axes, b.axes)
        parts = []
        for tile in (a, b):
            text = self.masked(tile, over, "0.0")
            text = f"{text}.to(tl.float32)" if tile.kind == "raw" else text
            parts.append(self.expand(text if text.isidentifier() else f"({text})", tile.axes, every))
        text = " * ".join(parts)
        if over in every:
            text = f"tl.sum({text}, axis={every.index(over)})"
        return (f"{total} + {text}" if total else text), axes

    def operand(self, tile: _Tile, storage: DataType, over: str, narrow: DataType) -> str:
        """A tile as an operand of the matrix units."""
        text = self.masked(tile, over, "0.0")
        if tile.kind == "raw" and storage == narrow:
            return text
        return text if narrow == DataType.FLOAT and tile.kind == "float" else f"{text}.to({_TRITON[narrow]})"

    # Accumulators

    def zeros(self, axes: Sequence[str], value: str) -> str:
        return f"tl.full([{', '.join(str(self.tiles[axis]) for axis in axes)}], {value}, tl.float32)"

    def state_axes(self, accumulator: Accumulate, name: str) -> tuple[str, ...]:
        return self.present(self.block.value_axes[name])

    def lazy_axes(self, accumulator: Accumulate) -> tuple[str, ...] | None:
        """Where a sum or maximum is kept unreduced along the loop axis until after the loop, its axes."""
        loop = self.block.loop
        assert loop is not None
        if accumulator.monoid not in ("sum", "max") or self.tiles[loop] == 1:
            return None
        operand = accumulator.operands[0]
        defined = self.block.defined[operand]
        axes = self.present([*self.block.value_axes[operand], loop])
        if isinstance(defined, Dot):
            left, right = (self.present(self.block.value_axes[x]) for x in (defined.left, defined.right))
            if operand not in self.fused or self.on_matrix_units(left, right, loop):
                return None
        elif loop not in self.block.value_axes[operand]:
            return None
        elements = math.prod(self.tiles[axis] for axis in axes)
        return axes if elements <= _LAZY_ELEMENTS * 32 * self.schedule.warps else None

    def start(self, accumulator: Accumulate) -> None:
        names = accumulator.names
        if accumulator.monoid in ("sum", "max"):
            lazy = self.lazy_axes(accumulator)
            if lazy is not None:
                self.lazy[names[0]] = lazy
            axes = lazy if lazy is not None else self.state_axes(accumulator, names[0])
            self.assign(names[0], self.zeros(axes, _IDENTITY[accumulator.monoid]))
        else:
            for position, name in enumerate(names):
                identity = _MINUS_INFINITY if accumulator.monoid == "softmax" and position == 0 else "0.0"
                self.assign(name, self.zeros(self.state_axes(accumulator, name), identity))

    def step(self, accumulator: Accumulate) -> None:
        """One iteration: lift and combine."""
        if accumulator.monoid == "softmax":
            self.step_softmax(accumulator)
            return
        name, operand, loop = accumulator.names[0], accumulator.operands[0], self.block.loop
        assert loop is not None
        defined = self.block.defined[operand]
        if isinstance(defined, Dot) and operand in self.fused and accumulator.keep is None:
            if name in self.lazy:
                a, b = self.values[defined.left], self.values[defined.right]
                parts = []
                for tile in (a, b):
                    text = self.masked(tile, loop, "0.0")
                    text = f"{text}.to(tl.float32)" if tile.kind == "raw" else text
                    parts.append(self.expand(text if text.isidentifier() else f"({text})", tile.axes, self.lazy[name]))
                self.line(f"{name} += {' * '.join(parts)}")
            else:
                self.assign(name, self.dot(defined.left, defined.right, loop, name)[0])
            return
        tile = self.floating(operand)
        if tile.kind in ("int", "bool"):
            tile = replace(tile, text=f"{operand}_number", kind="float")
            self.assign(tile.text, f"{operand}.to(tl.float32)")
        identity = _IDENTITY.get(accumulator.monoid, "0.0")
        axes = tile.axes
        text = self.masked(tile, loop, identity)
        if accumulator.keep is not None:
            keep = self.values[accumulator.keep]
            axes = self.union(tile.axes, keep.axes)
            inner = self.expand(text if text.isidentifier() else f"({text})", tile.axes, axes)
            text = f"tl.where({self.expand(keep.text, keep.axes, axes)}, {inner}, {identity})"
        if accumulator.monoid == "welford":
            self.step_welford(accumulator, replace(tile, text=text, axes=axes))
            return
        if name not in self.lazy and loop in axes:
            text = f"tl.{accumulator.monoid}({text}, axis={axes.index(loop)})"
        self.assign(name, f"{name} + {text}" if accumulator.monoid == "sum" else f"tl.maximum({name}, {text})")

    def step_softmax(self, accumulator: Accumulate) -> None:
        """The shift is in units of log 2: exp2 is what the device has. Scores get there in the one FMA that shifts them."""
        loop = self.block.loop
        assert loop is not None
        shift, total = accumulator.names[:2]
        operand, unit = self.scaled.get(accumulator.operands[0], (accumulator.operands[0], 1.0))
        unit *= _LOG2E
        tile = self.floating(operand)
        axes = tile.axes
        edges, conditions = self.edges(accumulator), list[tuple[str, tuple[str, ...]]]()
        if accumulator.keep is not None:
            axes = self.union(axes, self.present(self.block.value_axes[accumulator.keep]))
        scores = self.expand(tile.text, tile.axes, axes)
        if edges:  # most tiles are kept whole
            self.assign(f"{shift}_scores", scores)
            scores = f"{shift}_scores"
            self.line(f"if {' or '.join(edges)}:")
            self.depth += 1
        if loop in axes and self.ragged(loop):
            conditions.append((f"{loop}_in", (loop,)))
        if accumulator.keep is not None:
            if accumulator.keep in self.kept:
                self.write_predicate(self.kept[accumulator.keep])
            keep = self.values[accumulator.keep]
            conditions.append((keep.text, keep.axes))
        if conditions:
            kept = " & ".join(self.expand(t, a, axes) for t, a in conditions)
            self.assign(f"{shift}_scores", f"tl.where({kept}, {scores}, {_MINUS_INFINITY})")
            scores = f"{shift}_scores"
        self.depth -= bool(edges)
        rest = tuple(axis for axis in axes if axis != loop)
        reduced = f"tl.max({scores}, axis={axes.index(loop)})" if loop in axes else scores
        self.assign(f"{shift}_new", f"tl.maximum({shift}, {reduced} * {unit!r})")
        self.assign(f"{shift}_used", f"tl.where({shift}_new == {_MINUS_INFINITY}, 0.0, {shift}_new)")
        weights = f"{shift}_weights"
        self.assign(weights, f"tl.exp2({scores} * {unit!r} - {self.expand(f'{shift}_used', rest, axes)})")
        self.assign(f"{shift}_scale", f"tl.exp2({shift} - {shift}_used)")
        added = f"tl.sum({weights}, axis={axes.index(loop)})" if loop in axes else weights
        self.assign(total, f"{total} * {shift}_scale + {added}")
        if len(accumulator.names) == 3:
            name, right = accumulator.names[2], accumulator.operands[1]
            wanted = self.state_axes(accumulator, name)
            self.assign(name, f"{name} * {self.expand(f'{shift}_scale', rest, wanted)}")
            probability = _Tile(weights, axes, "float", frozenset(axes))
            self.assign(name, self.dot_tiles(probability, DataType.FLOAT, self.values[right], self.storage[right], loop, name)[0])
        self.assign(shift, f"{shift}_new")

    def edges(self, accumulator: Accumulate) -> list[str]:
        """Of a loop of matrix products: the tests of which one holds where part of a tile does not count.

        Nothing where there are no such tiles, or where it cannot be told from their positions.
        """
        loop = self.block.loop
        assert loop is not None
        if not self.has_matrix_product() or loop not in self.present(self.block.value_axes[accumulator.operands[0]]):
            return []
        found = [f"{loop}_start + {self.tiles[loop]} > {self.size(self.block.sizes[loop])}"] if self.ragged(loop) else []
        if accumulator.keep is None:
            return found
        keep, bounds = self.block.defined[accumulator.keep], self.bounds()
        if not isinstance(keep, Predicate) or len(bounds) < len(keep.conditions):
            return []
        for condition, sign, others in bounds:
            least = "" if condition.constant == 0 else self.size(condition.constant)
            for axis, coefficient in sorted([*((i.axis or "", c) for i, c in others), (loop, sign)], key=lambda term: -term[1]):
                edge = f"{axis}_start" if coefficient > 0 or self.tiles[axis] == 1 else f"({axis}_start + {self.tiles[axis] - 1})"
                part = edge if abs(coefficient) == 1 else f"{abs(coefficient)} * {edge}"
                sign_text = "-" if coefficient < 0 else "+" if least else ""
                least = f"{least} {sign_text} {part}".strip()
            found.append(f"{least} < 0")
        return found

    def step_welford(self, accumulator: Accumulate, tile: _Tile) -> None:
        loop = self.block.loop
        assert loop is not None
        count, mean, squares = accumulator.names
        size = self.size(self.block.sizes[loop])
        here = f"{count}_here"
        self.assign(here, f"tl.minimum({size} - {loop}_start, {self.tiles[loop]}).to(tl.float32)")
        if loop not in tile.axes:
            self.assign(f"{mean}_here", tile.text)
            added = "0.0"
        else:
            axis = tile.axes.index(loop)
            rest = tuple(a for a in tile.axes if a != loop)
            self.assign(f"{mean}_here", f"tl.sum({tile.text}, axis={axis}) / {here}")
            away = _Tile(f"{mean}_away", tile.axes)
            self.assign(away.text, f"{tile.text} - {self.expand(f'{mean}_here', rest, tile.axes)}")
            self.assign(away.text, self.masked(away, loop, "0.0"))
            added = f"tl.sum({away.text} * {away.text}, axis={axis})"
        self.assign(f"{squares}_here", added)
        self.merge(accumulator, "_here")

    def merge(self, accumulator: Accumulate, suffix: str) -> None:
        """Combines the state with another, whose names end in ``suffix``."""
        names = accumulator.names
        if accumulator.monoid == "sum":
            self.assign(names[0], f"{names[0]} + {names[0]}{suffix}")
        elif accumulator.monoid == "max":
            self.assign(names[0], f"tl.maximum({names[0]}, {names[0]}{suffix})")
        elif accumulator.monoid == "welford":
            count, mean, squares = names
            self.assign(f"{count}_sum", f"{count} + {count}{suffix}")
            self.assign(f"{mean}_delta", f"{mean}{suffix} - {mean}")
            self.assign(f"{count}_share", f"{count}{suffix} / tl.maximum({count}_sum, 1.0)")
            self.assign(mean, f"{mean} + {mean}_delta * {count}_share")
            self.assign(squares, f"{squares} + {squares}{suffix} + {mean}_delta * {mean}_delta * {count} * {count}_share")
            self.assign(count, f"{count}_sum")
        else:
            shift = names[0]
            self.assign(f"{shift}_new", f"tl.maximum({shift}, {shift}{suffix})")
            self.assign(f"{shift}_used", f"tl.where({shift}_new == {_MINUS_INFINITY}, 0.0, {shift}_new)")
            self.assign(f"{shift}_scale", f"tl.exp2({shift} - {shift}_used)")
            self.assign(f"{shift}_other", f"tl.exp2({shift}{suffix} - {shift}_used)")
            rest = self.state_axes(accumulator, shift)
            for name in names[1:]:
                wanted = self.state_axes(accumulator, name)
                own, other = (self.expand(f"{shift}_{x}", rest, wanted) for x in ("scale", "other"))
                self.assign(name, f"{name} * {own} + {name}{suffix} * {other}")
            self.assign(shift, f"{shift}_new")

    def finish(self, accumulator: Accumulate) -> None:
        """After the loop: what was kept unreduced is reduced."""
        for name in accumulator.names:
            if name in self.lazy:
                axes = self.lazy[name]
                assert self.block.loop is not None
                self.assign(name, f"tl.{accumulator.monoid}({name}, axis={axes.index(self.block.loop)})")
            self.values[name] = _Tile(name, self.state_axes(accumulator, name))

    def natural_shift(self) -> None:
        """A softmax shift that is used by itself, in natural units."""
        used = {operand for s in self.block.statements for operand in statement_operands(s)}
        for accumulator in self.block.accumulators:
            if accumulator.monoid == "softmax" and accumulator.names[0] in used:
                self.assign(accumulator.names[0], f"{accumulator.names[0]} * {math.log(2.0)!r}")

    # The function

    def write(self) -> str:
        self.write_grid()
        self.line(f"if {OVERLAPPED}:")
        self.line("    gdc_wait()")
        self.line("    gdc_launch_dependents()")
        if self.role == "combine":
            self.write_combine()
        else:
            self.run_phase("fixed")
            if self.block.loop is not None:
                self.write_loop()
        if self.role == "part":
            for accumulator in self.block.accumulators:
                for name in accumulator.names:
                    self.write_state(name)
        else:
            self.natural_shift()
            self.run_phase("after")
        arguments = ", ".join([*(name for name, _ in self.signature()), f"{OVERLAPPED}: tl.constexpr = False"])
        return "\n".join(["", "", "@triton.jit", f"def {self.name}({arguments}):", *self.lines])

    def run_phase(self, phase: str) -> None:
        """Writes what a phase needs: before the loop, in it, or after it, where invariants that only the end needs stand too."""
        phases = self.block.phases
        own = ("fixed", "after") if phase == "after" else (phase,)
        wanted: set[str] = set()
        for statement in reversed(self.block.statements):
            if isinstance(statement, Store):
                needed = phases[statement.value] in own and phase != "fixed"
            elif isinstance(statement, Accumulate):
                needed = phase != "after"
            else:
                needed = statement.name in wanted
            if needed:
                wanted |= set(statement_operands(statement))
        for statement in self.block.statements:
            if isinstance(statement, Store):
                if phases[statement.value] in own and phase != "fixed":
                    self.write_store(statement)
                continue
            early = phase == "fixed" and self.is_early(statement)
            due = not isinstance(statement, Accumulate) and (statement.name in wanted or early) and phases[statement.name] in own
            if due and not set(statement_names(statement)) <= set(self.values):
                self.write_value(statement)

    def is_early(self, statement: Statement) -> bool:
        """Whether a load that only the end needs stands before the loop, which hides its latency: a few entries a thread."""
        if not isinstance(statement, Load) or self.role != "whole" or self.block.loop is None:
            return False
        return len(self.present(self.block.value_axes[statement.name])) <= 1

    def write_grid(self) -> None:
        """Which tiles this block has; the last grid axes run fastest, in groups where the schedule says so."""
        block, grid = self.block, self.block.grid
        counts = {axis: self.count_text(axis) for axis in grid}
        if not grid:
            return
        self.assign("pid", "tl.program_id(0).to(tl.int64)" if self.places.wide else "tl.program_id(0)")
        cut = [axis for axis in grid if block.sizes[axis] != 1]
        for axis in grid:
            if axis not in cut:
                self.assign(f"{axis}_start", "0")
        pair = cut[-2:] if self.schedule.group > 1 and len(cut) >= 2 else []
        if pair:
            first, second = pair
            rest = cut[:-2]
            inner = f"({counts[first]} * {counts[second]})"
            self.assign("inner", f"pid % {inner}" if rest else "pid")
            if rest:
                self.assign("pid", f"pid // {inner}")
            width = f"({self.schedule.group} * {counts[second]})"
            self.assign("first", f"inner // {width} * {self.schedule.group}")
            self.assign("height", f"tl.minimum({counts[first]} - first, {self.schedule.group})")
            self.assign(f"{first}_start", self.tile_start(first, f"(first + inner % {width} % height)"))
            self.assign(f"{second}_start", self.tile_start(second, f"(inner % {width} // height)"))
            cut = rest
        for position, axis in enumerate(reversed(cut)):
            if position == len(cut) - 1:
                self.assign(f"{axis}_start", self.tile_start(axis, "pid"))
            else:
                self.assign(f"{axis}_start", self.tile_start(axis, f"(pid % {counts[axis]})"))
                self.assign("pid", f"pid // {counts[axis]}")

    def tile_start(self, axis: str, text: str) -> str:
        """Where a tile starts. Tiles with most iterations are first, so that short ones fill the end."""
        if axis in self.longer_later():
            text = f"({self.count_text(axis)} - 1 - {text})"
        return f"{text} * {self.tiles[axis]}" if self.tiles[axis] > 1 else text

    def count_text(self, axis: str) -> str:
        size, tile = self.block.sizes[axis], self.tiles[axis]
        if isinstance(size, int):
            return str(-(-size // tile))
        return self.size(size) if tile == 1 else f"tl.cdiv({self.size(size)}, {tile})"

    def write_loop(self) -> None:
        block, loop = self.block, self.block.loop
        assert loop is not None
        for statement in block.statements:
            if not isinstance(statement, Store) and block.phases[statement_names(statement)[0]] == "loop":
                self.need([axis for axis in block.value_axes[statement_names(statement)[0]] if axis != loop])
            if isinstance(statement, Compute) and block.phases[statement.name] == "loop":
                for operand in statement_operands(statement):
                    if operand in self.values:  # converted once, not in every iteration
                        self.floating(operand)
        for accumulator in block.accumulators:
            self.start(accumulator)
        tile, size = self.tiles[loop], self.size(block.sizes[loop])
        low, high = "0", size
        if self.role == "part":
            self.assign("part", "tl.program_id(1).to(tl.int64)" if self.places.wide else "tl.program_id(1)")
            span = f"tl.cdiv(tl.cdiv({size}, {tile}), {self.schedule.split}) * {tile}"
            if isinstance(block.sizes[loop], int):
                span = str(_ceil_div(_ceil_div(int(size), tile), self.schedule.split) * tile)
            self.assign(f"{loop}_low", f"part * {span}")
            self.assign(f"{loop}_high", f"tl.minimum({loop}_low + {span}, {size})")
            low, high = f"{loop}_low", f"{loop}_high"
        low, high = self.skipped(low, high)
        ranged = f"range({low}, {high}, {tile})"
        if self.schedule.stages > 1 and not self.has_matrix_product():
            ranged = f"tl.range({low}, {high}, {tile}, num_stages={self.schedule.stages})"
        self.line(f"for {loop}_start in {ranged}:")
        self.depth += 1
        outside, ready = dict(self.values), set(self.ready)
        self.need([loop])
        self.run_phase("loop")
        for accumulator in block.accumulators:
            self.step(accumulator)
        self.depth -= 1
        self.values, self.ready = outside, ready
        for accumulator in block.accumulators:
            self.finish(accumulator)

    def has_matrix_product(self) -> bool:
        for s in self.block.statements:
            if isinstance(s, Dot) and self.block.phases[s.name] in ("loop",):
                left, right = (self.present(self.block.value_axes[x]) for x in (s.left, s.right))
                if self.on_matrix_units(left, right, s.over):
                    return True
        return False

    def bounds(self) -> list[tuple[Affine, int, list[tuple[Index, int]]]]:
        """Conditions outside of which nothing is accumulated, the sign of the loop axis in them, and their other terms."""
        block, loop, found = self.block, self.block.loop, []
        keeps = {a.keep for a in block.accumulators}
        keep = block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
        if not isinstance(keep, Predicate) or any(block.phases[s.value] == "loop" for s in block.stores):
            return []
        for condition in keep.conditions:
            mine = [c for i, c in condition.terms if i.axis == loop]
            others = [(i, c) for i, c in condition.terms if i.axis != loop]
            plain = all(i.plain for i, _ in condition.terms) and all(i.axis in block.grid for i, _ in others)
            if plain and len(mine) == 1 and abs(mine[0]) == 1:
                found.append((condition, mine[0], others))
        return found

    def longer_later(self) -> set[str | None]:
        """Grid axes along which later tiles have more iterations."""
        bounds = self.bounds()
        if self.role == "combine" or any(sign > 0 for _, sign, _ in bounds):
            return set()
        return {index.axis for _, _, others in bounds for index, coefficient in others if coefficient > 0}

    def skipped(self, low: str, high: str) -> tuple[str, str]:
        """Bounds of the loop without the tiles in which nothing is kept."""
        loop = self.block.loop
        for condition, sign, others in self.bounds():
            greatest = self.size(condition.constant)
            for index, coefficient in others:
                edge = f"{index.axis}_start"
                if coefficient > 0 and self.tiles[index.axis or ""] > 1:
                    edge = f"({edge} + {self.tiles[index.axis or ''] - 1})"
                part = edge if abs(coefficient) == 1 else f"{abs(coefficient)} * {edge}"
                greatest = f"{greatest} {'+' if coefficient > 0 else '-'} {part}"
            if sign < 0:
                self.assign(f"{loop}_last", f"tl.minimum({high}, {greatest} + 1)")
                high = f"{loop}_last"
            else:
                tile = self.tiles[loop or ""]
                self.assign(f"{loop}_first", f"tl.maximum({low}, (-({greatest})) // {tile} * {tile})")
                low = f"{loop}_first"
        return low, high

    def state_pointer(self, name: str) -> tuple[str, str, tuple[str, ...]]:
        tensor = self.states[name]
        sizes = self.block.sizes
        axes = self.block.value_axes[name]
        pointer, mask, wanted = self.pointer(tensor.name, tuple(_factor(axis, sizes[axis]) for axis in axes))
        stride = product([sizes[axis] for axis in axes])
        part = "tl.cast(part, tl.int64)" if self.places.wide and self.role == "combine" else "part"
        return f"{pointer} + {self.times(part, stride)}", mask, wanted

    def write_state(self, name: str) -> None:
        pointer, mask, wanted = self.state_pointer(name)
        tile = self.values[name]
        value = self.expand(tile.text, tile.axes, wanted)
        self.line(f"tl.store({pointer}, {value}, mask={mask})" if mask else f"tl.store({pointer}, {value})")

    def write_combine(self) -> None:
        for accumulator in self.block.accumulators:
            for position, name in enumerate(accumulator.names):
                is_shift = accumulator.monoid == "softmax" and position == 0
                identity = _MINUS_INFINITY if is_shift or accumulator.monoid == "max" else "0.0"
                self.need(self.block.value_axes[name])
                self.assign(name, self.zeros(self.state_axes(accumulator, name), identity))
        self.line(f"for part in range({self.schedule.split}):")
        self.depth += 1
        for accumulator in self.block.accumulators:
            for name in accumulator.names:
                pointer, mask, _ = self.state_pointer(name)
                self.assign(f"{name}_here", f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})")
            self.merge(accumulator, "_here")
        self.depth -= 1
        for accumulator in self.block.accumulators:
            for name in accumulator.names:
                self.values[name] = _Tile(name, self.state_axes(accumulator, name))

    def write_store(self, statement: Store) -> None:
        pointer, mask, wanted = self.pointer(statement.tensor, statement.view)
        dtype = self.types[statement.tensor].dtype
        tile = self.values[statement.value]
        value = self.expand(tile.text, tile.axes, wanted)
        if len(tile.axes) < len(wanted):
            value = f"tl.broadcast_to({value}, [{', '.join(str(self.tiles[axis]) for axis in wanted)}])"
        if not (dtype == DataType.FLOAT and tile.kind == "float"):
            value = f"{value}.to({_TRITON[dtype]})"
        self.line(f"tl.store({pointer}, {value}, mask={mask})" if mask else f"tl.store({pointer}, {value})")

    # The launch

    def signature(self) -> list[tuple[str, str]]:
        order = [name for name in self.places.arguments if name in self.tensors]
        dtypes = {**{n: t.dtype for n, t in self.types.items()}, **{t.name: t.type.dtype for t in self.states.values()}}
        return [*((name, _POINTERS[dtypes[name]]) for name in order), *((name, "i32") for name in sorted(self.symbols))]

    def launch(self) -> LaunchSource:
        """The launch of the function, which has been written."""
        signature = self.signature()
        arguments = [
            self.places.arguments[name] if kind.startswith("*") else Argument.int32(self.places.symbols[name])
            for name, kind in signature
        ]
        blocks: Expression | int = 1
        for axis in self.block.grid:
            size = self.places.expression(self.block.sizes[axis])
            tile = self.tiles[axis]
            if isinstance(size, int) and isinstance(blocks, int):
                blocks = blocks * -(-size // tile)
            else:
                blocks = Expression.of(blocks) * Expression.of(size).ceil_div(tile)
        grid = (blocks, self.schedule.split if self.role == "part" else 1, 1)
        return LaunchSource(self.name, tuple(signature), tuple(arguments), grid, self.schedule.warps, self.schedule.stages)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _factor(axis: str, size: Dim) -> Factor:
    return Factor(Index(axis), size)
