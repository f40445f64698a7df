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

Statements and views are described in :mod:`mugraph.blocks.statements`, what makes a graph valid in
:mod:`mugraph.blocks.validity`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Extent,
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
    Viewing,
    statement_indices,
    statement_names,
    statement_operands,
    statement_places,
    statement_title,
)
from mugraph.terms.shape import DerivedSymbol, Dim, TensorType, symbols_within
from mugraph.terms.term import NamedValue, Term, substitute, var

__all__ = ["Block", "Kernel", "Phase", "renamed_values"]

Phase = str
"""``fixed``, ``loop`` or ``after``."""


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
        axes: dict[str, tuple[str, ...]] = {}
        for statement in self.statements:
            used = {axis for operand in statement_operands(statement) for axis in axes[operand]}
            used |= {index.axis for index in statement_indices(statement) if index.axis is not None}
            if isinstance(statement, Dot):
                used -= {statement.over}
            elif isinstance(statement, Reduce):
                used -= set(statement.over)
            elif isinstance(statement, Accumulate):
                assert self.loop is not None
                scores = (set(axes[statement.operands[0]]) | set(axes[statement.keep] if statement.keep else ())) - {self.loop}
                for position, name in enumerate(statement.names):
                    is_sum = statement.monoid == "softmax" and position == 2
                    axes[name] = self.ordered(used - {self.loop} if is_sum else scores)
                continue
            for name in statement_names(statement):
                axes[name] = self.ordered(used)
        return axes

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """Value name to where it is computed: ``fixed``, in the ``loop`` or ``after`` it.

        Raises:
            InvalidBlock: a path through the block has two accumulators, or a value of the loop meets an accumulated one.
        """
        phase_of: dict[str, Phase] = {}
        for statement in self.statements:
            phases = {phase_of[operand] for operand in statement_operands(statement)}
            if any(index.axis is not None and index.axis == self.loop for index in statement_indices(statement)):
                phases.add("loop")
            if {"loop", "after"} <= phases:
                raise InvalidBlock(
                    f"block {self.name}: {statement_title(statement)} joins a value of the loop and an accumulated one"
                )
            phase = "after" if "after" in phases else "loop" if "loop" in phases else "fixed"
            if isinstance(statement, Accumulate):
                if phase != "loop":
                    raise InvalidBlock(
                        f"block {self.name}: {statement_title(statement)} accumulates what the loop does not change"
                    )
                phase = "after"
            for name in statement_names(statement):
                phase_of[name] = phase
        return phase_of

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(s for s in self.statements if isinstance(s, Load))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.statements if isinstance(s, Store))

    @property
    def accumulators(self) -> tuple[Accumulate, ...]:
        return tuple(s for s in self.statements if isinstance(s, Accumulate))

    def content(self, types: Mapping[str, TensorType]) -> str:
        """What the block graph is, equal where it does the same whatever its axes, values and tensors are called.

        Args:
            types: of the tensors.
        """
        named = list(dict.fromkeys(s.tensor for s in self.statements if isinstance(s, Load | Store)))
        told = repr([str(types[name]) for name in named])
        return told + "".join(_contents(self, {name: f"t{i}" for i, name in enumerate(named)}))

    def maps(self, statement: Load | Store) -> tuple[dict[str, int | None], int | None]:
        """The imap or omap (grid axis to data dimension of the view, ``None`` is φ) and the fmap of an iterator or saver."""
        position = {f.index.axis: i for i, f in reversed(list(enumerate(statement.view))) if f.index.axis is not None}
        return {axis: position.get(axis) for axis in self.grid}, position.get(self.loop) if self.loop is not None else None


@dataclass(frozen=True, eq=False, repr=False)
class Kernel(NamedValue):
    """A graph-defined kernel. Kernels of one digest are equal, and one attribute value of nodes, whatever their names are.

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
    def dims(self) -> tuple[Dim, ...]:
        """The sizes in types, axes and statements, the constants of indices and conditions among them."""
        dims: list[Dim] = [dim for type_ in self.tensors.values() for dim in type_.shape]
        for block in self.blocks:
            dims += block.sizes.values()
            for statement in block.statements:
                if isinstance(statement, Viewing):
                    dims += [factor.size for factor in statement.view]
                if isinstance(statement, MaskTile):
                    dims += [statement.rows, statement.columns]
                for affine in statement_places(statement):
                    dims += [affine.constant, *(times for _, times in affine.terms)]
                if isinstance(statement, Extent):
                    dims.append(statement.size)
                for index in statement_indices(statement):
                    dims += [index.shift, index.divide, index.offset, *(() if index.modulo is None else (index.modulo,))]
        return tuple(dims)

    @property
    def is_empty(self) -> bool:
        """Whether a tensor or an axis is known to have no entry: proofs speak of the others."""
        shapes = [dim for type_ in self.tensors.values() for dim in type_.shape]
        return 0 in (*shapes, *(size for block in self.blocks for size in block.sizes.values()))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The dimension symbols that occur anywhere, sorted."""
        names = {name for dim in self.dims for name in symbols_within(dim)}
        return tuple(sorted(name for name in names if not isinstance(name, DerivedSymbol)))

    @property
    def text_name(self) -> str:
        return self.digest.hex()

    @property
    def label(self) -> str:
        """The kernel's name in messages."""
        return f"{self.name} ({self.digest.hex()[:16]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

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
            content.update("".join(_contents(block, tensors)).encode())
        return content.digest()


def _contents(block: Block, tensors: Mapping[str, str]) -> Iterator[str]:
    """What a block graph is, piece by piece, whatever its axes and values are called.

    Args:
        tensors: other names of the tensors.
    """
    axes = {name: f"a{i}" for i, (name, _) in enumerate(block.axes)}
    values = {name: f"v{i}" for i, name in enumerate(block.defined)}
    yield repr(([(axes[n], d) for n, d in block.axes], [axes[n] for n in block.grid]))
    yield repr(axes.get(block.loop or ""))
    for statement in block.statements:
        yield _statement_key(statement, axes, values, tensors)


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
    elif isinstance(s, Predicate | PlaceTile):
        parts += [[([(index(i), c) for i, c in affine.terms], affine.constant) for affine in statement_places(s)]]
        parts += ["any"] if isinstance(s, Predicate) and s.is_any else []
    elif isinstance(s, MaskTile):
        parts += [s.entries, s.rows, s.columns, [(index(f.index), f.size) for f in s.view]]
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
