"""Wrong kernels made from right ones, to see that none is proved.

A mutation changes one thing: an index of a view, a condition or a place, an entry of a mask, the size of an axis, a monoid, an
operand, a number, an operator, the order of dimensions or of statements, which axes are the grid and the loop; or it adds a
choice by position, such as zeros in all rows beyond the third. Many mutants are still right (operands of a sum swapped), so that
only those count as *false* of which exact interpretation shows a difference from the body, at sizes past every number that was
put in.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
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
)
from mugraph.blocks.text import format_kernel, kernel_from_json
from mugraph.blocks.validity import check_kernel
from mugraph.domains.base import WHOLE_NUMBERS, Unsupported
from mugraph.domains.field import FieldArray, FiniteField, ZeroDivision
from mugraph.domains.real import Real
from mugraph.ops import REGISTRY, Entrywise
from mugraph.ops.masks import mask_of, mask_text, stored_shape
from mugraph.terms.shape import Dim, ShapeError, Undecided, concrete
from mugraph.terms.term import Term, const, make, rebuild, var, walk
from rules_db.exchange import read_rules
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import LEAST_TESTS, Residues, interpret, kernel_of_rule, random_operand

__all__ = ["KernelMutant", "KernelTally", "attack_kernels", "kernel_mutants", "kernels_command", "shipped_kernels"]

_SMALL = 5
"""Of sizes that are tried, the largest of the first ones."""
_EDGE = (1, 2, 3, 7)
"""The last places that added choices keep; a few are tried at sizes past them."""
_KINDS = ({Entrywise.ARITHMETIC, Entrywise.EXTREMUM}, {Entrywise.FUNCTION})
_FAMILIES = tuple(
    tuple(name for name, record in REGISTRY.items() if record.traits.entrywise in kinds and not record.defaults)
    for kinds in _KINDS
)
"""Operators that stand in for each other in terms, of two operands and of one."""


class KernelFate(StrEnum):
    """What became of a mutant."""

    INVALID = "invalid"
    TRUE = "true"
    REJECTED = "rejected"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class KernelMutant:
    """A changed kernel and what was changed."""

    kernel: Kernel
    change: str


@dataclass
class KernelTally:
    """What became of the mutants, and the false ones that were proved."""

    fates: Counter[KernelFate]
    by_change: Counter[tuple[str, KernelFate]]
    proved: list[KernelMutant]

    @property
    def false(self) -> int:
        return self.fates[KernelFate.REJECTED] + self.fates[KernelFate.ACCEPTED]


def shipped_kernels(path: str | Path = "rules_db/shipped/kernels.rules") -> list[Kernel]:
    """The kernels of a file of rules."""
    kernels = [kernel_of_rule(rule) for rule in read_rules(str(path))]
    return [kernel for kernel in kernels if kernel is not None]


def attack_kernels(
    kernels: Sequence[Kernel], count: int, seed: int, *, tested: bool = False, seconds: float = math.inf
) -> KernelTally:
    """Makes mutants until so many are false or the time is over, and asks the proof for each of them.

    Args:
        tested: what is not proved is accepted, too, where the tests pass it that stand in for a proof.
    """
    ends = time.monotonic() + seconds
    generator = np.random.default_rng(seed)
    tally = KernelTally(Counter(), Counter(), [])
    seen: set[bytes] = {kernel.digest for kernel in kernels}
    for mutant in kernel_mutants(kernels, generator):
        if tally.false >= count or time.monotonic() > ends:
            break
        if mutant.kernel.digest in seen:
            continue
        seen.add(mutant.kernel.digest)
        fate = _fate(mutant.kernel, generator, tested)
        tally.fates[fate] += 1
        tally.by_change[mutant.change, fate] += 1
        if fate is KernelFate.ACCEPTED:
            tally.proved.append(mutant)
    return tally


def _fate(kernel: Kernel, generator: np.random.Generator, tested: bool) -> KernelFate:
    try:
        check_kernel(kernel)
    except (InvalidBlock, ValueError):
        return KernelFate.INVALID
    if not _differs(kernel, generator):
        return KernelFate.TRUE
    if why_not_proved(kernel) is None or (tested and _passes(kernel)):
        return KernelFate.ACCEPTED
    return KernelFate.REJECTED


def _passes(kernel: Kernel) -> bool:
    """Whether the tests that stand in for a proof pass a kernel; an operator that lacks an attribute cannot be evaluated."""
    try:
        return interpret(kernel, LEAST_TESTS, 0) is None
    except TypeError:
        return False


@click.command("kernels")
@click.option("--count", default=2000, show_default=True, help="False mutants to make.")
@click.option("--seed", default=0, show_default=True, help="Of all random choices.")
@click.option("--corpus", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of --keep-kernels.")
@click.option("--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True, help="Files of rules.")
@click.option("--seconds", type=float, default=math.inf, help="End after so long, whatever the count.")
@click.option("--tested", is_flag=True, help="Accept what is not proved where it passes the tests in place of a proof.")
def kernels_command(count: int, seed: int, corpus: Path | None, rules: Sequence[Path], seconds: float, tested: bool) -> None:
    """Asks for proofs of false kernels, made from those that ship, that runs kept or that rulegen found.

    Exit code 1: one was accepted.
    """
    made = [kernel for file in rules for kernel in shipped_kernels(file)] if corpus is None else _kept(corpus)
    tally = attack_kernels(made or shipped_kernels(), count, seed, tested=tested, seconds=seconds)
    click.echo(", ".join(f"{tally.fates[fate]} {fate}" for fate in KernelFate))
    for (change, fate), number in sorted(tally.by_change.items()):
        click.echo(f"  {change}: {number} {fate}")
    for mutant in tally.proved:
        click.echo(f"{mutant.change}\n{format_kernel(mutant.kernel)}")
    sys.exit(1 if tally.proved else 0)


def _kept(folder: Path) -> list[Kernel]:
    """The kernels that ``--keep-kernels`` wrote to a folder."""
    return [kernel_from_json(json.loads(file.read_text(encoding="utf-8"))["kernel"]) for file in sorted(folder.rglob("*.json"))]


# The oracle


def _differs(kernel: Kernel, generator: np.random.Generator) -> bool:
    """Whether interpretation at some sizes shows that the block graphs do not compute the body.

    Floats are asked at the first sizes, and wherever there is no arithmetic of residues, which are exact: where that of all
    residues agrees, two formulas that it knows are equal but for a chance in a million. Residues have no order that places have,
    so that beside whole numbers floats are asked at all sizes.
    """
    has_places = any(tensor.type.dtype in WHOLE_NUMBERS for tensor in kernel.inputs)
    rows = [dict(zip(kernel.symbols, generator.integers(1, 6, len(kernel.symbols)).tolist(), strict=True)) for _ in range(3)]
    rows += [{**rows[0], name: int(generator.integers(9, 12))} for name in kernel.symbols]
    for number, row in enumerate(rows):
        try:
            sized = specialised(kernel, row)
            if _entries(sized) > 1 << 14:
                continue
            asks_floats = has_places or number == 0
            if _differs_in_field(sized, number, generator) or (asks_floats and _differs_at(sized, Real(), generator)):
                return True
        except (Unsupported, ZeroDivision):
            continue
        except (InvalidBlock, ShapeError, Undecided, ValueError, IndexError, KeyError, TypeError, AssertionError):
            return True
    return False


def _differs_in_field(kernel: Kernel, number: int, generator: np.random.Generator) -> bool:
    """Whether residues differ; numbers where there are none."""
    try:
        return _differs_at(kernel, Residues(number, prime=number), generator)
    except Unsupported:
        return number > 0 and _differs_at(kernel, Real(), generator)


def _entries(kernel: Kernel) -> int:
    shapes = [concrete(tensor.type.shape) for tensor in (*kernel.inputs, *kernel.outputs)]
    return sum(int(np.prod(shape)) if shape is not None else 1 << 30 for shape in shapes)


def _differs_at(kernel: Kernel, domain: Real | FiniteField, generator: np.random.Generator) -> bool:
    inputs: dict[str, Any] = {}
    largest = max((size for tensor in kernel.inputs for size in concrete(tensor.type.shape) or ()), default=1)
    for tensor in kernel.inputs:
        shape = concrete(tensor.type.shape)
        assert shape is not None
        inputs[tensor.name] = random_operand(domain, generator, tensor.type, shape, largest)
    cut = [(*block.grid, *((block.loop,) if block.loop is not None else ())) for block in kernel.blocks]
    schedules = [
        Schedule(tuple((axis, _tile(block.sizes[axis])) for axis in axes)) for axes, block in zip(cut, kernel.blocks, strict=True)
    ]
    with np.errstate(all="ignore"):
        wanted = evaluate_body(kernel, domain, inputs)
        given = evaluate_kernel(kernel, domain, inputs, schedules)
    return any(not _same(a, b) for a, b in zip(wanted, given, strict=True))


def _tile(size: Dim) -> int:
    """Along an axis of this size: so small that some are ragged and none is all of it, and no smaller than that needs."""
    return 2 if not isinstance(size, int) or size <= _SMALL else 4


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, FieldArray) or isinstance(b, FieldArray):
        return isinstance(a, FieldArray) and isinstance(b, FieldArray) and bool(np.array_equal(a.p, b.p))
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape:
        return False
    both = np.isfinite(first) & np.isfinite(second)  # of what is not finite a proof says nothing
    scale = max(1.0, float(np.max(np.abs(first[both]), initial=0.0)))
    return bool(np.max(np.abs(first[both] - second[both]), initial=0.0) <= 1e-7 * scale)


# Mutations


def kernel_mutants(kernels: Sequence[Kernel], generator: np.random.Generator) -> Iterator[KernelMutant]:
    """Mutants without end, of kernels chosen at random."""
    while True:
        kernel = kernels[generator.integers(len(kernels))]
        change = _CHANGES[generator.integers(len(_CHANGES))]
        made = change(kernel, generator)
        if made is not None:
            yield KernelMutant(made, change.__name__.strip("_"))


Change = Callable[[Kernel, np.random.Generator], Kernel | None]


def _chosen(items: Sequence[Any], generator: np.random.Generator) -> Any:
    return items[int(generator.integers(len(items)))]


def _with_block(kernel: Kernel, old: Block, new: Block) -> Kernel:
    return replace(kernel, blocks=tuple(new if block is old else block for block in kernel.blocks))


def _with_statement(kernel: Kernel, block: Block, old: Statement, *new: Statement) -> Kernel:
    statements = [x for s in block.statements for x in (new if s is old else (s,))]
    return _with_block(kernel, block, replace(block, statements=tuple(statements)))


def _place(kernel: Kernel, generator: np.random.Generator, *kinds: type) -> tuple[Block, Any] | None:
    """A block and a statement of some kinds."""
    places = [(block, s) for block in kernel.blocks for s in block.statements if isinstance(s, kinds)]
    return _chosen(places, generator) if places else None


def _sizes(kernel: Kernel, block: Block) -> list[Dim]:
    return [1, 2, 3, *block.sizes.values(), *(size for tensor in kernel.tensors.values() for size in tensor.shape)]


def _moved(index: Index, kernel: Kernel, block: Block, generator: np.random.Generator) -> Index:
    """An index with one of its numbers, or its axis, changed."""
    field = _chosen(("axis", "shift", "divide", "modulo", "offset"), generator)
    if field == "axis":
        return replace(index, axis=_chosen([*block.sizes, None], generator))
    if field == "modulo":
        return replace(index, modulo=_chosen([None, *_sizes(kernel, block)], generator))
    least: Dim = (
        _chosen([0, 1, *_sizes(kernel, block)], generator) if field != "divide" else _chosen(_sizes(kernel, block), generator)
    )
    changed: dict[str, Any] = {field: least}
    return replace(index, **changed)


def _change_index(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Load, MaskTile, Store)
    if place is None or not place[1].view:
        return None
    block, statement = place
    view = list(statement.view)
    at = int(generator.integers(len(view)))
    view[at] = Factor(_moved(view[at].index, kernel, block, generator), view[at].size)
    return _with_statement(kernel, block, statement, replace(statement, view=tuple(view)))


def _change_factors(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Two dimensions of a view swapped: both, their indices, or their sizes."""
    place = _place(kernel, generator, Load, MaskTile, Store)
    if place is None or len(place[1].view) < 2:
        return None
    block, statement = place
    view = list(statement.view)
    i, j = generator.choice(len(view), 2, replace=False)
    how, (a, b) = generator.integers(3), (view[i], view[j])
    view[i], view[j] = (
        (b, a)
        if how == 0
        else (Factor(b.index, a.size), Factor(a.index, b.size))
        if how == 1
        else (
            Factor(a.index, b.size),
            Factor(b.index, a.size),
        )
    )
    return _with_statement(kernel, block, statement, replace(statement, view=tuple(view)))


def _change_tensor(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Load)
    if place is None:
        return None
    block, statement = place
    return _with_statement(kernel, block, statement, replace(statement, tensor=_chosen(list(kernel.tensors), generator)))


def _change_condition(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Predicate)
    if place is None:
        return None
    block, statement = place
    conditions = list(statement.conditions)
    at = int(generator.integers(len(conditions)))
    if generator.random() < 0.25:
        conditions.append(Affine(((Index(_chosen(list(block.sizes), generator)), -1),), _chosen(_EDGE, generator)))
    else:
        conditions[at] = _elsewhere(conditions[at], kernel, block, generator)
    return _with_statement(kernel, block, statement, replace(statement, conditions=tuple(conditions)))


def _change_place(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Places that are compared with what the run tells, elsewhere."""
    place = _place(kernel, generator, PlaceTile)
    if place is None:
        return None
    block, statement = place
    moved = _elsewhere(statement.place, kernel, block, generator)
    return _with_statement(kernel, block, statement, replace(statement, place=moved))


def _elsewhere(place: Affine, kernel: Kernel, block: Block, generator: np.random.Generator) -> Affine:
    """A place with another constant, or one of its terms turned, left out, of another index, or in front of one more."""
    terms, constant = list(place.terms), place.constant
    which = int(generator.integers(len(terms)))
    index, times = terms[which]
    match _chosen(("constant", "sign", "index", "fewer", "more"), generator):
        case "constant":
            constant = constant + _chosen((-2, -1, 1, 2, *_sizes(kernel, block)), generator)
        case "sign":
            terms[which] = (index, -times)
        case "index":
            terms[which] = (_moved(index, kernel, block, generator), times)
        case "fewer" if len(terms) > 1:
            del terms[which]
        case _:
            terms.append((Index(_chosen(list(block.sizes), generator)), _chosen((-1, 1), generator)))
    return Affine(tuple(terms), constant)


def _change_mask(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """A stored mask with another entry, or of another size."""
    place = _place(kernel, generator, MaskTile)
    if place is None:
        return None
    block, statement = place
    field = _chosen(("entries", "rows", "columns"), generator)
    if field != "entries":
        changed: dict[str, Any] = {field: _chosen(_sizes(kernel, block), generator)}
        return _with_statement(kernel, block, statement, replace(statement, **changed))
    shape = stored_shape(statement.entries)
    mask = mask_of(statement.entries, *shape[-2:]).copy()
    mask[tuple(int(generator.integers(size)) for size in shape)] ^= True
    return _with_statement(kernel, block, statement, replace(statement, entries=mask_text(mask)))


def _cut_off(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """A value that is zero, or another value, past some place along an axis."""
    place = _place(kernel, generator, Load, Compute, Dot, Reduce)
    if place is None:
        return None
    block, statement = place
    axes = block.value_axes[statement.name]
    if not axes:
        return None
    axis, inner = _chosen(axes, generator), statement.name + "_inner"
    limit: Dim = _chosen([*_EDGE, block.sizes[axis] - 2, block.sizes[axis] - 1], generator)
    holds = Predicate(statement.name + "_holds", (Affine(((Index(axis), -1),), limit),))
    other = _chosen([const(0.0), var(inner), make("Neg", [var(inner)])], generator)
    chosen = Compute(statement.name, make("Where", [var(holds.name), var(inner), other]))
    return _with_statement(kernel, block, statement, replace(statement, name=inner), holds, chosen)


def _change_axis(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    block = _chosen(kernel.blocks, generator)
    axes = list(block.axes)
    at = int(generator.integers(len(axes)))
    name, size = axes[at]
    axes[at] = (name, _chosen([*_sizes(kernel, block), size + 1, size - 1, size * 2], generator))
    return _with_block(kernel, block, replace(block, axes=tuple(axes)))


def _change_monoid(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Accumulate, Reduce)
    if place is None:
        return None
    block, statement = place
    if isinstance(statement, Reduce):
        return _with_statement(kernel, block, statement, replace(statement, kind=_chosen(("sum", "max", "min"), generator)))
    if statement.keep is not None and generator.random() < 0.5:
        return _with_statement(kernel, block, statement, replace(statement, keep=None))
    if statement.monoid in ("sum", "max") and generator.random() < 0.5:
        return _with_statement(kernel, block, statement, replace(statement, monoid="max" if statement.monoid == "sum" else "sum"))
    axis = _chosen(list(block.sizes), generator)
    indices = ((Index(axis), -1), *(((Index(_chosen(list(block.sizes), generator)), 1),) if generator.random() < 0.5 else ()))
    holds = Predicate("kept_mutant", (Affine(indices, _chosen([*_EDGE, block.sizes[axis] - 2], generator)),))
    return _with_statement(kernel, block, statement, holds, replace(statement, keep=holds.name))


def _change_operand(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Another value in the place of one: of an accumulator, a product or a store, or of a thread graph."""
    place = _place(kernel, generator, Accumulate, Dot, Store, Compute, Reduce)
    if place is None:
        return None
    block, statement = place
    values = list(block.defined)
    other = _chosen(values, generator)
    match statement:
        case Accumulate():
            operands = list(statement.operands)
            operands[int(generator.integers(len(operands)))] = other
            changed: Statement = replace(statement, operands=tuple(operands))
        case Dot():
            field = _chosen(("left", "right", "over"), generator)
            changed = (
                replace(statement, over=_chosen(list(block.sizes), generator))
                if field == "over"
                else replace(statement, left=other)
                if field == "left"
                else replace(statement, right=other)
            )
        case Store():
            changed = replace(statement, value=other)
        case Reduce():
            changed = replace(statement, operand=other)
        case Compute():
            leaves = [part for part in walk([statement.term]) if part.is_var]
            leaf = _chosen(leaves, generator)
            changed = replace(statement, term=rebuild(statement.term, lambda x: var(other) if x is leaf else x, lambda v: v))
        case _:
            return None
    return _with_statement(kernel, block, statement, changed)


def _change_term(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Compute)
    if place is None:
        return None
    block, statement = place
    term = _mutated(statement.term, generator)
    return None if term is None else _with_statement(kernel, block, statement, replace(statement, term=term))


def _change_body(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    at = int(generator.integers(len(kernel.body)))
    term = _mutated(kernel.body[at], generator)
    return None if term is None else replace(kernel, body=(*kernel.body[:at], term, *kernel.body[at + 1 :]))


def _mutated(root: Term, generator: np.random.Generator) -> Term | None:
    """A term with one of its parts changed: its operator, its operands' order, its number; or left out."""
    parts = [part for part in walk([root]) if part.inputs or part.op == "Const"]
    if not parts:
        return None
    part = _chosen(parts, generator)
    if part.op == "Const":
        value = part.attr("value")
        if isinstance(value, bool):
            return None
        new = const(_chosen([value + 1, -value, value * 2, value * (1 + 1e-3), 0.0, 1.0], generator))
    else:
        family = next((f for f in _FAMILIES if part.op in f), ())
        options = [make(op, part.inputs) for op in family if op != part.op]
        options += [part.inputs[0], make("Neg", [part]), make(part.op, part.inputs[::-1], part.attrs, part.out)]
        options += [make("Mul", [part, const(1 + 1e-3)])]
        new = _chosen(options, generator)
    done: dict[Term, Term] = {}
    for inner in walk([root]):
        operands = [done[i] for i in inner.inputs]
        done[inner] = new if inner is part else make(inner.op, operands, inner.attrs, inner.out) if operands else inner
    return done[root]


def _change_order(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Two statements, or two operands of a product, in another order."""
    block = _chosen(kernel.blocks, generator)
    products = [s for s in block.statements if isinstance(s, Dot)]
    if products and generator.random() < 0.5:
        dot = _chosen(products, generator)
        return _with_statement(kernel, block, dot, replace(dot, left=dot.right, right=dot.left))
    statements = list(block.statements)
    i, j = generator.choice(len(statements), 2, replace=False)
    statements[i], statements[j] = statements[j], statements[i]
    return _with_block(kernel, block, replace(block, statements=tuple(statements)))


def _change_cut(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Another axis as the loop, or one more or less in the grid."""
    block = _chosen(kernel.blocks, generator)
    axis = _chosen(list(block.sizes), generator)
    if generator.random() < 0.5:
        return _with_block(kernel, block, replace(block, loop=_chosen([None, *block.sizes], generator)))
    grid = tuple(a for a in block.grid if a != axis) if axis in block.grid else (*block.grid, axis)
    return _with_block(kernel, block, replace(block, grid=grid))


def _change_extent(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Extent)
    if place is None:
        return None
    block, statement = place
    sizes = [*_sizes(kernel, block), statement.size + 1, statement.size * 2]
    return _with_statement(kernel, block, statement, replace(statement, size=_chosen(sizes, generator)))


_CHANGES: tuple[Change, ...] = (
    _change_index,
    _change_factors,
    _change_tensor,
    _change_condition,
    _change_place,
    _change_mask,
    _cut_off,
    _change_axis,
    _change_monoid,
    _change_operand,
    _change_term,
    _change_body,
    _change_extent,
    _change_order,
    _change_cut,
)
