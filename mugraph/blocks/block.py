"""Graph-defined kernels and their block graphs (Mirage, OSDI'25, sections 2 and 3).

A :class:`Kernel` computes its outputs by :class:`Block` graphs, one after another; its ``body``, terms over its inputs, says
what. A block graph works on tiles. Every dimension that it knows is a named *axis*; tiles carry the names of their axes,
so Mirage's maps are read off the names:

* a *grid* axis is cut into tiles, one a block. An input iterator whose view names the axis has it in its imap at that data
  dimension; one that does not is replicated (φ). An output saver's omap likewise.
* the *loop* axis is cut into tiles, one an iteration: the fmap.
* any other axis is *whole*: a tile holds all of it.

Statements are in order, each after what it uses. What depends on the loop axis runs in the loop, what depends on an
accumulator runs after it, the rest is invariant. Accumulators are monoids (identity, lift, combine):

========== ========================= ====================== =========================================================
monoid     operands                  state                  combine
========== ========================= ====================== =========================================================
sum        x                         s                      addition
max        x                         s                      maximum
softmax    scores [, values]         m, l [, o]             m = max(m1, m2), l and o scaled by exp(mi - m) and added
welford    x                         n, mean, M2            Chan, Golub and LeVeque (1979)
========== ========================= ====================== =========================================================

An operand that has the loop axis is first reduced along it within the tile (the lift). Because combine is associative, the
loop may be cut into parts that run as blocks of their own, with a combine kernel behind (split-K, FlashDecoding): that, like
tile sizes, warps and stages, is not in the graph but in its :class:`Schedule`.

A view addresses a contiguous tensor in place, as a row-major factorisation of it: permuted, split and merged dimensions,
heads within a packed projection, broadcasts and rotations are views, not copies.
"""

from __future__ import annotations

import hashlib
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.blocks.thread import why_not_elementwise
from mugraph.domains.base import FLOATS
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, evaluate_dim, same_dim
from mugraph.terms.term import Term, substitute, var, variables

__all__ = [
    "LIMITS",
    "MONOIDS",
    "Accumulate",
    "Affine",
    "Block",
    "Compute",
    "Dot",
    "Extent",
    "Factor",
    "Index",
    "InvalidBlock",
    "Kernel",
    "Limits",
    "Load",
    "Phase",
    "Predicate",
    "Reduce",
    "Schedule",
    "Statement",
    "Store",
    "Tensor",
    "View",
    "bound_sizes",
    "check_fits",
    "check_schedule",
    "element_bytes",
    "next_power",
    "product",
    "renamed_values",
    "reordered",
    "statement_names",
    "statement_operands",
    "storage_types",
    "tile_shape",
    "view",
]


class InvalidBlock(ValueError):
    """A block graph or its schedule is invalid; the message names block, statement and, for memory, bytes."""


@dataclass(frozen=True, slots=True)
class Index:
    """A position in a data dimension: ``(axis + shift) // divide % modulo + offset``; without an axis, ``offset``."""

    axis: str | None
    shift: Dim = 0
    divide: Dim = 1
    modulo: Dim | None = None
    offset: Dim = 0

    @property
    def plain(self) -> bool:
        """Whether it is the axis itself."""
        return self.axis is not None and (self.shift, self.divide, self.modulo, self.offset) == (0, 1, None, 0)


@dataclass(frozen=True, slots=True)
class Factor:
    """A data dimension of a view: how it is addressed and its size."""

    index: Index
    size: Dim


View = tuple[Factor, ...]
"""A row-major factorisation of a contiguous tensor. Use :func:`view` to write one."""


def view(sizes: Mapping[str, Dim], *items: str | Index | tuple[str | Index, Dim]) -> View:
    """A view from axis names and indices; an item without a size has that of its axis in ``sizes``."""
    factors = []
    for item in items:
        index, size = item if isinstance(item, tuple) else (item, None)
        index = Index(index) if isinstance(index, str) else index
        if size is None:
            assert index.axis is not None, item
            size = sizes[index.axis]
        factors.append(Factor(index, size))
    return tuple(factors)


@dataclass(frozen=True, slots=True)
class Affine:
    """The condition ``sum of coefficient * index + constant >= 0``."""

    terms: tuple[tuple[Index, int], ...]
    constant: Dim = 0


@dataclass(frozen=True, slots=True)
class Load:
    """An input iterator: a tile of a tensor."""

    name: str
    tensor: str
    view: View


@dataclass(frozen=True, slots=True)
class Compute:
    """A thread graph: an elementwise term over tiles."""

    name: str
    term: Term


@dataclass(frozen=True, slots=True)
class Dot:
    """Product of two tiles, contracted over one axis of both; axes that both have besides are batch axes."""

    name: str
    left: str
    right: str
    over: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduction of a tile (``sum``, ``max`` or ``min``) along whole axes, which leave it."""

    name: str
    kind: str
    operand: str
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A boolean tile of where all conditions on indices hold: causal masks, windows, halves."""

    name: str
    conditions: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as a number, for means."""

    name: str
    size: Dim


@dataclass(frozen=True, slots=True)
class Accumulate:
    """A for-loop accumulator. ``keep``, a boolean tile, makes what it is false for count as the identity."""

    names: tuple[str, ...]
    monoid: str
    operands: tuple[str, ...]
    keep: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """An output saver. Grid axes must be in its view, or blocks would write over each other."""

    tensor: str
    value: str
    view: View


Statement = Load | Compute | Dot | Reduce | Predicate | Extent | Accumulate | Store
Phase = str
"""``fixed``, ``loop`` or ``after``."""

MONOIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "sum": ((1,), (1,)),
    "max": ((1,), (1,)),
    "softmax": ((1, 2), (2, 3)),
    "welford": ((1,), (3,)),
}
"""Monoid to the numbers of operands it takes and, for each, the number of values of its state."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory, contiguous."""

    name: str
    type: TensorType


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def next_power(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def statement_names(statement: Statement) -> tuple[str, ...]:
    """What a statement defines."""
    if isinstance(statement, Store):
        return ()
    return statement.names if isinstance(statement, Accumulate) else (statement.name,)


def statement_operands(statement: Statement) -> tuple[str, ...]:
    """The tiles that a statement uses, each once."""
    if isinstance(statement, Compute):
        return tuple(v.name for v in variables([statement.term]))
    if isinstance(statement, Dot):
        return tuple(dict.fromkeys((statement.left, statement.right)))
    if isinstance(statement, Reduce):
        return (statement.operand,)
    if isinstance(statement, Accumulate):
        return (*statement.operands, *((statement.keep,) if statement.keep else ()))
    return (statement.value,) if isinstance(statement, Store) else ()


def _indices(statement: Statement) -> tuple[Index, ...]:
    if isinstance(statement, Load | Store):
        return tuple(factor.index for factor in statement.view)
    if isinstance(statement, Predicate):
        return tuple(index for condition in statement.conditions for index, _ in condition.terms)
    return ()


@dataclass(frozen=True)
class Block:
    """A block graph: one kernel launch, two where its schedule splits the loop.

    Attributes:
        name: of the kernel function.
        axes: name and size of every axis. Tiles have their axes in this order, so products need no transposition where
            the inner axis stands between the outer ones: ``m, k, n``.
        grid: the axes that are cut into blocks, outermost first.
        loop: the axis that is cut into iterations.
        statements: in order.
    """

    name: str
    axes: tuple[tuple[str, Dim], ...]
    grid: tuple[str, ...]
    loop: str | None
    statements: tuple[Statement, ...]

    @cached_property
    def sizes(self) -> dict[str, Dim]:
        return dict(self.axes)

    def ordered(self, names: set[str]) -> tuple[str, ...]:
        """Axes in the order of the block."""
        return tuple(name for name, _ in self.axes if name in names)

    @cached_property
    def defined(self) -> dict[str, Statement]:
        """Value name to the statement that defines it."""
        return {name: statement for statement in self.statements for name in statement_names(statement)}

    @cached_property
    def value_axes(self) -> dict[str, tuple[str, ...]]:
        """Value name to the axes of its tile, in the order of the block."""
        found: dict[str, tuple[str, ...]] = {}
        for statement in self.statements:
            used = {axis for operand in statement_operands(statement) for axis in found[operand]}
            used |= {index.axis for index in _indices(statement) if index.axis is not None}
            if isinstance(statement, Dot):
                used -= {statement.over}
            elif isinstance(statement, Reduce):
                used -= set(statement.over)
            elif isinstance(statement, Accumulate):
                assert self.loop is not None
                scores = (set(found[statement.operands[0]]) | set(found[statement.keep] if statement.keep else ())) - {self.loop}
                for position, name in enumerate(statement.names):
                    is_sum = statement.monoid == "softmax" and position == 2
                    found[name] = self.ordered(used - {self.loop} if is_sum else scores)
                continue
            for name in statement_names(statement):
                found[name] = self.ordered(used)
        return found

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """Value name to where it is computed: ``fixed``, in the ``loop`` or ``after`` it.

        Raises:
            InvalidBlock: a path through the block has two accumulators, or a value of the loop meets an accumulated one.
        """
        found: dict[str, Phase] = {}
        for statement in self.statements:
            phases = {found[operand] for operand in statement_operands(statement)}
            if any(index.axis is not None and index.axis == self.loop for index in _indices(statement)):
                phases.add("loop")
            if {"loop", "after"} <= phases:
                raise InvalidBlock(f"block {self.name}: {_title(statement)} joins a value of the loop and an accumulated one")
            phase = "after" if "after" in phases else "loop" if "loop" in phases else "fixed"
            if isinstance(statement, Accumulate):
                if phase != "loop":
                    raise InvalidBlock(f"block {self.name}: {_title(statement)} accumulates what the loop does not change")
                phase = "after"
            for name in statement_names(statement):
                found[name] = phase
        return found

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(s for s in self.statements if isinstance(s, Load))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.statements if isinstance(s, Store))

    @property
    def accumulators(self) -> tuple[Accumulate, ...]:
        return tuple(s for s in self.statements if isinstance(s, Accumulate))

    def maps(self, statement: Load | Store) -> tuple[dict[str, int | None], int | None]:
        """The imap or omap (grid axis to data dimension of the view, ``None`` is φ) and the fmap of an iterator or saver."""
        position = {f.index.axis: i for i, f in reversed(list(enumerate(statement.view))) if f.index.axis is not None}
        return {axis: position.get(axis) for axis in self.grid}, position.get(self.loop) if self.loop is not None else None


def _title(statement: Statement) -> str:
    kind = type(statement).__name__.lower()
    return f"{kind} {', '.join(statement_names(statement)) or getattr(statement, 'tensor', '')}"


@dataclass(frozen=True)
class Kernel:
    """A graph-defined kernel.

    Attributes:
        name: for people and file names.
        inputs, outputs: tensors in device memory.
        body: what it computes: one term an output, over variables named as the inputs.
        blocks: block graphs, run one after another.
        scratch: tensors that one block saves and a later one loads.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    body: tuple[Term, ...]
    blocks: tuple[Block, ...]
    scratch: tuple[Tensor, ...] = ()

    @cached_property
    def tensors(self) -> dict[str, TensorType]:
        return {tensor.name: tensor.type for tensor in (*self.inputs, *self.scratch, *self.outputs)}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The dimension symbols that occur anywhere, sorted."""
        dims: list[Dim] = [dim for type_ in self.tensors.values() for dim in type_.shape]
        for block in self.blocks:
            dims += block.sizes.values()
            for statement in block.statements:
                if isinstance(statement, Load | Store):
                    dims += [factor.size for factor in statement.view]
                if isinstance(statement, Predicate):
                    dims += [condition.constant for condition in statement.conditions]
                if isinstance(statement, Extent):
                    dims.append(statement.size)
                for index in _indices(statement):
                    dims += [index.shift, index.divide, index.offset, *(() if index.modulo is None else (index.modulo,))]
        return tuple(sorted({name for dim in dims if isinstance(dim, SymDim) for name in dim.symbols()}))

    @cached_property
    def digest(self) -> bytes:
        """By content; the kernel's own name does not count, the names of its values do not either."""
        content = hashlib.blake2b(digest_size=16)
        tensors = {name: f"t{i}" for i, name in enumerate(self.tensors)}
        content.update(repr([(tensors[n], str(t)) for n, t in self.tensors.items()]).encode())
        content.update(repr((len(self.inputs), len(self.scratch))).encode())
        for term in self.body:
            content.update(_renamed(term, tensors).digest)
        for block in self.blocks:
            axes = {name: f"a{i}" for i, (name, _) in enumerate(block.axes)}
            values = {name: f"v{i}" for i, name in enumerate(block.defined)}
            content.update(repr(([(axes[n], d) for n, d in block.axes], [axes[n] for n in block.grid])).encode())
            content.update(repr(axes.get(block.loop or "")).encode())
            for statement in block.statements:
                content.update(_statement_key(statement, axes, values, tensors).encode())
        return content.digest()

    def check(self) -> None:
        """Raises :class:`InvalidBlock` where the kernel is no valid μGraph (definition 2.1, relaxed), whatever its schedule."""
        if len(self.body) != len(self.outputs):
            raise InvalidBlock(f"kernel {self.name}: {len(self.outputs)} outputs and {len(self.body)} terms")
        if len(self.tensors) < len(self.inputs) + len(self.scratch) + len(self.outputs):
            raise InvalidBlock(f"kernel {self.name}: two tensors have one name")
        values = [name for block in self.blocks for name in (block.name, *block.sizes, *block.defined)]
        for name in (*self.tensors, *values):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise InvalidBlock(f"kernel {self.name}: '{name}' is no name")
        known = {tensor.name for tensor in self.inputs}
        for leaf in variables(self.body):
            if leaf.name not in known:
                raise InvalidBlock(f"kernel {self.name}: the body uses '{leaf.name}', which is no input")
        for block in self.blocks:
            _check_block(block, self.tensors, known, {tensor.name for tensor in self.inputs})
            known |= {store.tensor for store in block.stores}
        for tensor in (*self.scratch, *self.outputs):
            if tensor.name not in known:
                raise InvalidBlock(f"kernel {self.name}: nothing saves {tensor.name}")


def _renamed(term: Term, names: Mapping[str, str]) -> Term:
    return substitute(term, {old: var(new) for old, new in names.items()})


def _statement_key(s: Statement, axes: Mapping[str, str], values: Mapping[str, str], tensors: Mapping[str, str]) -> str:
    def index(i: Index) -> str:
        return repr((axes.get(i.axis or ""), i.shift, i.divide, i.modulo, i.offset))

    parts: list[object] = [type(s).__name__, [values[n] for n in statement_names(s)], [values[n] for n in statement_operands(s)]]
    if isinstance(s, Load | Store):
        parts += [tensors[s.tensor], [(index(f.index), f.size) for f in s.view]]
    elif isinstance(s, Compute):
        parts.append(_renamed(s.term, values).digest)
    elif isinstance(s, Dot):
        parts += [values[s.left], values[s.right], axes[s.over]]
    elif isinstance(s, Reduce):
        parts += [s.kind, [axes[a] for a in s.over]]
    elif isinstance(s, Predicate):
        parts += [[([(index(i), c) for i, c in condition.terms], condition.constant) for condition in s.conditions]]
    elif isinstance(s, Extent):
        parts.append(s.size)
    elif isinstance(s, Accumulate):
        parts += [s.monoid, s.keep is not None]
    return repr(parts)


def renamed_values(block: Block, names: Mapping[str, str]) -> Block:
    """The block with its values renamed; ``names`` has them all."""
    statements: list[Statement] = []
    for s in block.statements:
        if isinstance(s, Compute):
            statements.append(Compute(names[s.name], _renamed(s.term, names)))
        elif isinstance(s, Dot):
            statements.append(Dot(names[s.name], names[s.left], names[s.right], s.over))
        elif isinstance(s, Reduce):
            statements.append(Reduce(names[s.name], s.kind, names[s.operand], s.over))
        elif isinstance(s, Accumulate):
            keep = None if s.keep is None else names[s.keep]
            operands = tuple(names[x] for x in s.operands)
            statements.append(Accumulate(tuple(names[x] for x in s.names), s.monoid, operands, keep))
        elif isinstance(s, Store):
            statements.append(Store(s.tensor, names[s.value], s.view))
        else:
            statements.append(replace(s, name=names[s.name]))
    return replace(block, statements=tuple(statements))


def reordered(block: Block, axes: Sequence[str]) -> Block:
    """The block with its axes, all of them, in another order: that of the dimensions of its tiles.

    A product whose columns stand before its rows is computed transposed, (A·B) = (Bᵀ·Aᵀ)ᵀ (TASO, figure 5): few rows then
    fill the columns of a matrix unit, which are fewer.
    """
    if sorted(axes) != sorted(block.sizes):
        raise InvalidBlock(f"block {block.name}: {', '.join(axes)} is no order of {', '.join(block.sizes)}")
    return replace(block, axes=tuple((axis, block.sizes[axis]) for axis in axes))


def _check_block(block: Block, tensors: Mapping[str, TensorType], known: set[str], inputs: set[str]) -> None:
    """``known``: the tensors that hold values by now; ``inputs``: those that may not be written."""

    def fail(statement: Statement, problem: str) -> InvalidBlock:
        return InvalidBlock(f"block {block.name}: {_title(statement)}: {problem}")

    names = [name for name, _ in block.axes]
    for axis in (*block.grid, *((block.loop,) if block.loop is not None else ())):
        if axis not in names:
            raise InvalidBlock(f"block {block.name}: '{axis}' is no axis of it")
    if len(set(names)) < len(names) or len({*block.grid, block.loop}) < len(block.grid) + 1:
        raise InvalidBlock(f"block {block.name}: an axis is named twice")
    seen: set[str] = set()
    for statement in block.statements:
        for operand in statement_operands(statement):
            if operand not in seen:
                raise fail(statement, f"'{operand}' is not defined before")
        for name in statement_names(statement):
            if name in seen:
                raise fail(statement, "the name is taken")
            seen.add(name)
        for index in _indices(statement):
            if index.axis is not None and index.axis not in names:
                raise fail(statement, f"'{index.axis}' is no axis of the block")
            if not all(_at_least(d, 0) for d in (index.shift, index.offset)) or not (
                _at_least(index.divide, 1) and (index.modulo is None or _at_least(index.modulo, 1))
            ):
                raise fail(statement, f"an index of {index.axis or 'nothing'} by negative numbers or zero")
        if isinstance(statement, Load | Store):
            if statement.tensor not in tensors:
                raise fail(statement, f"no tensor '{statement.tensor}'")
            problem = _view_problem(statement.view, tensors[statement.tensor], block.sizes)
            if problem:
                raise fail(statement, problem)
        if isinstance(statement, Accumulate) and block.loop is None:
            raise fail(statement, "the block has no loop")
    axes, phases = block.value_axes, block.phases
    for statement in block.statements:
        if isinstance(statement, Load) and statement.tensor not in known:
            raise fail(statement, f"'{statement.tensor}' holds nothing yet")
        if isinstance(statement, Compute):
            reason = why_not_elementwise(statement.term)
            if reason:
                raise fail(statement, reason)
        elif isinstance(statement, Dot):
            if any(statement.over not in axes[operand] for operand in (statement.left, statement.right)):
                raise fail(statement, f"an operand does not have the axis {statement.over}")
            if statement.over in block.grid:
                raise fail(statement, f"{statement.over} is cut into blocks")
            if statement.over == block.loop:
                _check_partial(block, statement, fail(statement, "a partial product may only be summed up"))
        elif isinstance(statement, Reduce):
            if statement.kind not in ("sum", "max", "min") or not statement.over:
                raise fail(statement, f"unknown reduction '{statement.kind}' over {statement.over}")
            for axis in statement.over:
                if axis not in axes[statement.operand]:
                    raise fail(statement, f"the tile has no axis {axis}")
                if axis in block.grid or axis == block.loop:
                    raise fail(statement, f"{axis} is cut into tiles: use an accumulator")
        elif isinstance(statement, Accumulate):
            _check_accumulator(block, statement, fail)
        elif isinstance(statement, Store):
            if statement.tensor in inputs or statement.tensor in known:
                raise fail(statement, "the tensor already holds values")
            _check_store(block, statement, phases, fail)


def _check_partial(block: Block, dot: Dot, problem: InvalidBlock) -> None:
    """A product over the loop axis is a part of a sum: what is not linear in it would depend on the tile size."""
    for other in block.statements:
        is_sum = isinstance(other, Accumulate) and other.monoid == "sum" and other.keep is None
        if dot.name in statement_operands(other) and not is_sum:
            raise problem


def _check_accumulator(block: Block, statement: Accumulate, fail: object) -> None:
    assert callable(fail)
    if statement.monoid not in MONOIDS:
        raise fail(statement, f"unknown monoid '{statement.monoid}'; known: {', '.join(MONOIDS)}")
    operands, states = MONOIDS[statement.monoid]
    if len(statement.operands) not in operands or len(statement.names) != states[operands.index(len(statement.operands))]:
        raise fail(statement, f"{statement.monoid} of {len(statement.operands)} operands in {len(statement.names)} values")
    axes = block.value_axes
    is_product = isinstance(block.defined[statement.operands[0]], Dot)
    lifted = block.loop in axes[statement.operands[0]]
    if not lifted and not (statement.monoid == "sum" and is_product):
        raise fail(statement, f"{statement.operands[0]} has no axis {block.loop} to reduce")
    if len(statement.operands) == 2 and block.loop not in axes[statement.operands[1]]:
        raise fail(statement, f"{statement.operands[1]} has no axis {block.loop} to reduce")


def _check_store(block: Block, statement: Store, phases: Mapping[str, Phase], fail: object) -> None:
    assert callable(fail)
    stored = {f.index.axis for f in statement.view if f.index.axis is not None}
    for axis in block.value_axes[statement.value]:
        if axis not in stored:
            raise fail(statement, f"the tile has the axis {axis}, the view has not")
    for axis in block.grid:
        if axis not in stored and same_dim(block.sizes[axis], 1) is not True:
            raise fail(statement, f"blocks along {axis} would write over each other")
    if phases[statement.value] != "loop" and block.loop in stored:
        raise fail(statement, "iterations save what does not change in the loop")
    for axis in block.ordered(stored):
        if not _covers([f for f in statement.view if f.index.axis == axis], block.sizes[axis]):
            raise fail(statement, f"the view does not give every position of {axis} a place of its own")
    if same_dim(product([block.sizes[a] for a in block.ordered(stored)]), product([f.size for f in statement.view])) is not True:
        raise fail(statement, "the axes of the view do not count its entries")


def _covers(factors: Sequence[Factor], size: Dim) -> bool:
    """Whether data dimensions are the digits of an axis, so that every position of it has its own place."""
    step: Dim = 1
    rest = list(factors)
    while rest:
        digit = next((f for f in rest if same_dim(f.index.divide, step) is True), None)
        if digit is None or digit.index.shift != 0 or digit.index.offset != 0:
            return False
        rest.remove(digit)
        modulo = digit.index.modulo
        if same_dim(modulo, digit.size) is not True if modulo is not None else bool(rest):
            return False
        step = step * digit.size
    return same_dim(step, size) is True


def _at_least(dim: Dim, bound: int) -> bool:
    """Whether a dimension is no smaller, where symbols do not leave it open."""
    return dim >= bound if isinstance(dim, int) else True


def _reach(index: Index, sizes: Mapping[str, Dim]) -> Dim:
    """One more than the greatest position that an index takes. Raises Undecided where symbols do not tell."""
    if index.axis is None:
        return index.offset + 1
    if index.modulo is not None:
        return index.modulo + index.offset
    extent = sizes[index.axis] + index.shift
    if isinstance(extent, int) and isinstance(index.divide, int):
        return -(-extent // index.divide) + index.offset
    if isinstance(extent, int):
        raise Undecided(f"{extent} / {index.divide}")
    return extent.exact_div(index.divide) + index.offset


def _view_problem(factors: View, type_: TensorType, sizes: Mapping[str, Dim]) -> str | None:
    if same_dim(product([factor.size for factor in factors]), product(type_.shape)) is not True:
        return f"a view of {'×'.join(str(f.size) for f in factors) or 'nothing'} does not cover {type_}"
    for number, factor in enumerate(factors):
        try:
            reach = _reach(factor.index, sizes)
        except Undecided as unknown:
            return f"whether dimension {number} stays within {factor.size} depends on {unknown}"
        gap = factor.size - reach
        if not (gap >= 0 if isinstance(gap, int) else all(c >= 0 for _, c in gap.terms)):  # symbols are not negative
            return f"dimension {number} of size {factor.size} is addressed up to {reach}"
    return None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a block graph is run: free in a rule, tuned where it is applied.

    Attributes:
        tiles: tile size of each grid and loop axis, powers of two; an axis that is not named has tiles of 1.
        split: parts of the loop that run as blocks of their own.
        warps, stages: of Triton's compiler; ``stages`` is the depth of the software pipeline.
        group: tiles along the next to last grid axis whose neighbours run together (swizzled order), so that they share cache.
    """

    tiles: tuple[tuple[str, int], ...]
    split: int = 1
    warps: int = 4
    stages: int = 2
    group: int = 1

    def tile(self, axis: str) -> int:
        return dict(self.tiles).get(axis, 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Memory of a device: bytes of shared memory that a block may have, registers of 32 bits a thread and a multiprocessor."""

    name: str
    shared: int
    registers: int = 255
    register_file: int = 65536
    memory: int = 1 << 36


LIMITS = {
    limit.name: limit
    for limit in (
        Limits("t4", 64 << 10, memory=16 << 30),
        Limits("a10", 99 << 10, memory=24 << 30),
        Limits("l4", 99 << 10, memory=24 << 30),
        Limits("rtx-4090", 99 << 10, memory=24 << 30),
        Limits("a100-40gb", 163 << 10, memory=40 << 30),
        Limits("a100-80gb", 163 << 10, memory=80 << 30),
        Limits("h100", 227 << 10, memory=80 << 30),
        Limits("h200", 227 << 10, memory=141 << 30),
    )
}
"""Device name, as in the cost model's table, to its limits (CUDA programming guide, table of technical specifications)."""


def check_schedule(block: Block, schedule: Schedule) -> None:
    """Raises :class:`InvalidBlock` where a schedule does not belong to a block graph."""
    cut = {*block.grid, *((block.loop,) if block.loop is not None else ())}
    for axis, tile in schedule.tiles:
        if axis not in cut:
            raise InvalidBlock(f"block {block.name}: the schedule cuts {axis}, which is whole")
        if tile < 1 or tile & (tile - 1):
            raise InvalidBlock(f"block {block.name}: a tile of {tile} along {axis} is no power of two")
    for what, number in (
        ("split", schedule.split),
        ("warps", schedule.warps),
        ("stages", schedule.stages),
        ("group", schedule.group),
    ):
        if number < 1:
            raise InvalidBlock(f"block {block.name}: {what} {number}")
    if schedule.warps & (schedule.warps - 1) or schedule.warps > 32:
        raise InvalidBlock(f"block {block.name}: {schedule.warps} warps; a power of two up to 32 is wanted")
    if schedule.split > 1 and not block.accumulators:
        raise InvalidBlock(f"block {block.name}: a split without an accumulator")
    if schedule.split > 1 and any(block.phases[store.value] == "loop" for store in block.stores):
        raise InvalidBlock(f"block {block.name}: a split loop that saves tiles itself")


def tile_shape(block: Block, schedule: Schedule, axes: Sequence[str], sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """Dimensions of a tile, powers of two.

    Raises:
        InvalidBlock: a whole axis has a symbolic size.
    """
    shape = []
    for axis in axes:
        if axis in block.grid or axis == block.loop:
            shape.append(schedule.tile(axis))
            continue
        size = evaluate_dim(block.sizes[axis], sizes or {})
        if not isinstance(size, int):
            raise InvalidBlock(f"block {block.name}: the whole axis {axis} has the symbolic size {size}")
        shape.append(next_power(size))
    return tuple(shape)


def element_bytes(dtype: DataType) -> int:
    """Bytes of an element in memory."""
    return max(1, math.ceil(dtype.bitwidth / 8))


def check_fits(kernel: Kernel, schedules: Sequence[Schedule], limits: Limits) -> None:
    """Checks the memory limits of definition 2.1.

    Shared memory holds the operands of products, those that the loop loads once a pipeline stage but one. Registers hold
    accumulators in 32 bits and, at any time, the largest other tile. Both are the least that a compiler can do with: what does
    not fit here fits nowhere, and of what does the compiler tells the exact figures.

    Raises:
        InvalidBlock: a level does not fit; the message names block, statement and bytes.
    """
    sizes = [product(t.shape) for t in kernel.tensors.values()]
    total = sum(
        element_bytes(t.dtype) * size for t, size in zip(kernel.tensors.values(), sizes, strict=True) if isinstance(size, int)
    )
    if total > limits.memory:
        raise InvalidBlock(f"kernel {kernel.name}: {total} bytes of tensors, {limits.name} has {limits.memory}")
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        check_schedule(block, schedule)
        _check_block_fits(block, schedule, kernel.tensors, limits)


def _check_block_fits(block: Block, schedule: Schedule, tensors: Mapping[str, TensorType], limits: Limits) -> None:
    shared, largest = 0, (0, "")
    width = storage_types(block, tensors)
    operands = set()
    for statement in block.statements:
        if isinstance(statement, Dot):
            operands |= {statement.left, statement.right}
        if isinstance(statement, Accumulate) and len(statement.operands) == 2:
            operands.add(statement.operands[1])
    for name in sorted(operands):
        stages = max(schedule.stages - 1, 1) if block.phases[name] == "loop" and isinstance(block.defined[name], Load) else 1
        held = element_bytes(width[name]) * math.prod(tile_shape(block, schedule, block.value_axes[name])) * stages
        shared += held
        largest = max(largest, (held, name))
    if shared > limits.shared:
        raise InvalidBlock(
            f"block {block.name}: operands of products take {shared} bytes of shared memory, {largest[1]} alone {largest[0]}; "
            f"{limits.name} has {limits.shared}"
        )
    threads = 32 * schedule.warps
    state = {n: math.prod(tile_shape(block, schedule, block.value_axes[n])) for s in block.accumulators for n in s.names}
    tiles = {n: math.prod(tile_shape(block, schedule, axes)) for n, axes in block.value_axes.items() if n not in state}
    live = sum(state.values()) + max(tiles.values(), default=0)
    available = min(limits.registers, limits.register_file // threads) * threads
    if live > available:
        worst = max({**state, **tiles}.items(), key=lambda item: item[1])
        raise InvalidBlock(
            f"block {block.name}: {4 * live} bytes of tiles in registers, {worst[0]} alone {4 * worst[1]}; "
            f"{schedule.warps} warps of {limits.name} have {4 * available}"
        )


def storage_types(block: Block, tensors: Mapping[str, TensorType]) -> dict[str, DataType]:
    """The element type in which a value would be an operand of a matrix unit: the narrowest float that went into it."""
    found: dict[str, DataType] = {}
    for statement in block.statements:
        if isinstance(statement, Load):
            kinds = [tensors[statement.tensor].dtype]
        else:
            kinds = [found[operand] for operand in statement_operands(statement)]
        floats = [kind for kind in kinds if kind in FLOATS]
        best = min(floats, key=lambda kind: kind.bitwidth) if floats else kinds[0] if len(set(kinds)) == 1 else DataType.FLOAT
        if isinstance(statement, Predicate):
            best = DataType.BOOL
        for name in statement_names(statement):
            found[name] = best
    return found


def bound_sizes(kernel: Kernel, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The values of the kernel's symbols for given shapes of its inputs.

    Raises:
        ShapeError: a shape contradicts the type, or a symbol stands nowhere alone.
    """
    for tensor in kernel.inputs:
        if len(shapes[tensor.name]) != tensor.type.rank:
            raise ShapeError(f"{tensor.name} has rank {len(shapes[tensor.name])}, not {tensor.type.rank}")
    system = (e for tensor in kernel.inputs for e in equations(tensor.type.shape, tuple(shapes[tensor.name])))
    bound: dict[str, int] = solve(system, {})
    missing = [name for name in kernel.symbols if name not in bound]
    if missing:
        raise ShapeError(f"kernel {kernel.name}: no input has a dimension that is {', '.join(missing)}")
    for tensor in kernel.inputs:
        expected = tuple(evaluate_dim(dim, bound) for dim in tensor.type.shape)
        if expected != tuple(shapes[tensor.name]):
            raise ShapeError(f"{tensor.name} has shape {tuple(shapes[tensor.name])}, not {expected}")
    return bound
