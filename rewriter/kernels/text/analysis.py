"""Questions to a block graph whose answers decide how it is written: what is written where it is used, what bounds the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

from mugraph.blocks.block import Block, Kernel, Phase
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Factor,
    Index,
    Load,
    MaskTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    View,
    statement_names,
    statement_operands,
)
from mugraph.domains.base import FLOATS
from mugraph.ops.interp import infer_types
from mugraph.ops.scatter import MOST_CHOICES
from mugraph.terms.shape import DataType, SymDim
from mugraph.terms.term import Term, make, var, variables, walk

__all__ = [
    "ChosenLoad",
    "LoopBound",
    "Update",
    "chosen_loads",
    "computes_halves",
    "conditions_of",
    "fused_products",
    "loop_bounds",
    "measured_products",
    "needed_values",
    "scaled_scores",
    "softmax_predicates",
    "updated_axis",
    "updates",
]


_MOST_FACTOR = 2.0**100
"""Of scores that their softmax multiplies; with a greater one, or one as small, it or differences of scores may be infinite."""


def needed_values(block: Block, phase: Phase, written: Sequence[Phase]) -> set[str]:
    """Values that the stores and accumulators of a phase come from.

    Args:
        written: the phases whose statements are written together with it.
    """
    needed: set[str] = set()
    for statement in reversed(block.statements):
        if isinstance(statement, Store):
            is_root = block.phases[statement.value] in written and phase != "fixed"
        elif isinstance(statement, Accumulate):
            is_root = phase != "after"
        else:
            is_root = statement.name in needed
        if is_root:
            needed |= set(statement_operands(statement))
    return needed


def fused_products(block: Block) -> set[str]:
    """Products that are added to their accumulator as they are computed."""
    users: dict[str, list[Statement]] = {}
    for statement in block.statements:
        for operand in statement_operands(statement):
            users.setdefault(operand, []).append(statement)
    return {
        s.name
        for s in block.statements
        if isinstance(s, Dot) and s.over == block.loop and all(isinstance(u, Accumulate) for u in users.get(s.name, []))
    }


@lru_cache(maxsize=4096)
def computes_halves(kernel: Kernel) -> bool:
    """Whether all floats that a kernel reads or that its body computes are halves: none is greater than 65504."""
    types = infer_types(kernel.body, {tensor.name: tensor.type for tensor in kernel.inputs})
    return all(types[term].dtype not in FLOATS - {DataType.FLOAT16} for term in walk(kernel.body) if term.op != "Const")


def scaled_scores(block: Block) -> dict[str, tuple[str, float]]:
    """Scores of a softmax that are a value times a number, both: the softmax multiplies by itself, by what is greater than 0."""
    scaled = {}
    for accumulator in block.accumulators:
        name = accumulator.operands[0]
        defined = block.defined[name]
        users = [s for s in block.statements if name in statement_operands(s)]
        if accumulator.monoid != "softmax" or users != [accumulator] or not isinstance(defined, Compute):
            continue
        term = defined.term
        numbers = [i.attr("value") for i in term.inputs if i.op == "Const"]
        names = [i.name for i in term.inputs if i.is_var]
        if term.op == "Mul" and len(numbers) == len(names) == 1 and 1 / _MOST_FACTOR < numbers[0] < _MOST_FACTOR:
            scaled[name] = (names[0], float(numbers[0]))
    return scaled


def measured_products(block: Block) -> frozenset[str]:
    """Products of which the greatest is taken, and that are nothing else than the left side of a difference otherwise.

    So -0 is to them what 0 is.
    """
    products = set[str]()
    for statement in block.statements:
        if isinstance(statement, Compute) and statement.term.op == "Mul":
            name = statement.name
            users = [s for s in block.statements if not isinstance(s, Store) and name in statement_operands(s)]
            stored = any(isinstance(s, Store) and s.value == name for s in block.statements)
            if not stored and any(map(_takes_the_greatest, users)) and all(_only_subtracts_from(s, name) for s in users):
                products.add(name)
    return frozenset(products)


def _takes_the_greatest(statement: Statement) -> bool:
    if isinstance(statement, Reduce):
        return statement.kind == "max"
    return isinstance(statement, Accumulate) and statement.monoid in ("max", "softmax")


def _only_subtracts_from(statement: Statement, name: str) -> bool:
    if not isinstance(statement, Compute):
        return _takes_the_greatest(statement)
    uses = [
        (term.op, place)
        for term in walk([statement.term])
        for place, one in enumerate(term.inputs)
        if one.is_var and one.name == name
    ]
    return all(use == ("Sub", 0) for use in uses)


def softmax_predicates(block: Block) -> dict[str, Predicate]:
    """Predicates of the loop that only a softmax asks: it writes them where it needs them."""
    predicates: dict[str, Predicate] = {}
    for accumulator in block.accumulators:
        keep = block.defined.get(accumulator.keep or "")
        users = [s for s in block.statements if accumulator.keep in statement_operands(s)]
        if accumulator.monoid == "softmax" and isinstance(keep, Predicate) and block.phases[keep.name] == "loop":
            predicates |= {keep.name: keep} if users == [accumulator] else {}
    return predicates


@dataclass(frozen=True, slots=True)
class ChosenLoad:
    """A load of which only some entries count.

    Attributes:
        predicate: the name of what says which.
        is_so: whether they count where the predicate holds, else where it does not.
        view: of the tensor, for the entries that count.
    """

    predicate: str
    is_so: bool
    view: View


def chosen_loads(block: Block) -> dict[str, ChosenLoad]:
    """Loads of which only the entries count where a predicate over axes of theirs is so: parts of a concatenation.

    Those of a size that only the run tells: such a part may be empty, and then nothing of it may be read.
    """
    chosen = {}
    for load in block.loads:
        if not any(isinstance(factor.index.modulo, SymDim) for factor in load.view):
            continue
        users = [s for s in block.statements if load.name in statement_operands(s)]
        if not all(isinstance(user, Compute) for user in users):
            continue
        ways = [way for user in users if isinstance(user, Compute) and (way := _way(user.term, load.name)) is not None]
        for name, is_so in sorted(frozenset.intersection(*ways)) if ways else ():
            predicate = block.defined.get(name)
            if isinstance(predicate, Predicate) and {*block.value_axes[name]} <= {*block.value_axes[load.name]}:
                chosen[load.name] = ChosenLoad(name, is_so, tuple(_unwrapped(f, predicate, is_so) for f in load.view))
                break
    return chosen


def _unwrapped(factor: Factor, predicate: Predicate, is_so: bool) -> Factor:
    """A factor without the modulo that changes nothing before the end of a part: a division that only the run knows is slow."""
    index = factor.index
    plain = replace(index, modulo=None)
    is_end = index.modulo is not None and predicate.conditions == (Affine(((plain, 1),), -index.modulo),)
    return Factor(plain, factor.size) if is_end and plain.plain and not is_so else factor


@dataclass(frozen=True, slots=True)
class Update:
    """An output that is an input but for some entries: where both are one buffer, nothing else is to be written.

    Attributes:
        output, input: tensors of one type.
        value: the name of what is stored.
        kept: the name of the load of the input.
        condition: a truth value over values of the block.
        is_so: whether entries are new where the condition holds, else where it does not.
    """

    output: str
    input: str
    value: str
    kept: str
    condition: Term
    is_so: bool


@lru_cache(maxsize=4096)
def updates(kernel: Kernel, block: Block) -> tuple[Update, ...]:
    """The updates that a block graph consists of; none where it stores anything else.

    What is new is chosen entry by entry (``Where``, one behind another), and an entry of the output is at the place of the
    input's that it keeps.
    """
    found = [_update(kernel, block, store) for store in block.stores] if block.loop is None else []
    kept = tuple(update for update in found if update is not None)
    return kept if len(kept) == len(found) else ()


def _update(kernel: Kernel, block: Block, store: Store) -> Update | None:
    types = kernel.tensors
    for name, conditions in _kept(block, var(store.value)):
        load = block.defined[name]
        if (
            conditions
            and isinstance(load, Load)
            and load.view == store.view
            and load.tensor in {tensor.name for tensor in kernel.inputs}
            and store.tensor in {tensor.name for tensor in kernel.outputs}
            and types[load.tensor] == types[store.tensor]
        ):
            condition, is_so = conditions[0]
            if len(conditions) > 1:
                each = (one if so else make("Not", [one]) for one, so in conditions)
                condition, is_so = reduce(lambda one, other: make("Or", [one, other]), each), True
            return Update(store.tensor, load.tensor, store.value, name, condition, is_so)
    return None


def _kept(block: Block, term: Term, most: int = MOST_CHOICES) -> Iterator[tuple[str, tuple[tuple[Term, bool], ...]]]:
    """The loads that a term is but for some entries, and under which conditions, or where these are not so, it is not.

    Args:
        most: choices behind one another that are followed: there may be a path to each for every set of them.
    """
    if term.is_var:
        defined = block.defined.get(term.name)
        if isinstance(defined, Load):
            yield term.name, ()
        elif isinstance(defined, Compute):
            yield from _kept(block, defined.term, most)
    elif term.op == "Where" and most:
        condition, *branches = term.inputs
        for branch, is_so in zip(branches, (False, True), strict=True):  # what is kept is chosen where nothing is new
            for name, conditions in _kept(block, branch, most - 1):
                yield name, ((condition, is_so), *conditions)


def updated_axis(block: Block, found: Sequence[Update]) -> str | None:
    """The axis of the grid along which what is new is looked for: the last that a condition depends on; ``None`` if none does.

    Nor has one that a stored mask says, which has tiles of its own.
    """
    if any(isinstance(statement, MaskTile) for statement in conditions_of(block, found)):
        return None
    axes = {axis for update in found for leaf in variables([update.condition]) for axis in block.value_axes[leaf.name]}
    along = [axis for axis in block.grid if axis in axes and block.sizes[axis] != 1]
    return along[-1] if along else None


def conditions_of(block: Block, found: Sequence[Update]) -> list[Statement]:
    """The statements that the conditions of updates come from, in order."""
    needed = {leaf.name for update in found for leaf in variables([update.condition])}
    statements = list[Statement]()
    for statement in reversed(block.statements):
        if not isinstance(statement, Store) and needed & set(statement_names(statement)):
            needed |= set(statement_operands(statement))
            statements.insert(0, statement)
    return statements


_Way = frozenset[tuple[str, bool]]
"""Conditions that are so, or are not so, where a value counts."""


def _way(root: Term, name: str) -> _Way | None:
    """What all ways from a term to a value that it takes have in common; ``None`` where it does not take it."""
    ways: dict[Term, _Way | None] = {}
    for term in walk([root]):
        below = [ways[operand] for operand in term.inputs]
        if term.op == "Where" and term.inputs[0].is_var:
            condition = term.inputs[0].name
            below = [
                below[0],
                *(way if way is None else way | {(condition, yes)} for way, yes in zip(below[1:], (True, False), strict=True)),
            ]
        found = [way for way in below if way is not None]
        is_it = term.is_var and term.name == name
        ways[term] = frozenset() if is_it else frozenset.intersection(*found) if found else None
    return ways[root]


@dataclass(frozen=True, slots=True)
class LoopBound:
    """A condition outside of which nothing is accumulated.

    Attributes:
        sign: of the loop axis in it.
        others: its other terms, over grid axes.
    """

    condition: Affine
    sign: int
    others: tuple[tuple[Index, int], ...]


def loop_bounds(block: Block) -> list[LoopBound]:
    """The bounds that positions along the grid set to the loop. Where one condition is enough they are ends, the last counts."""
    loop = block.loop
    keeps = {a.keep for a in block.accumulators}
    keep = block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
    if not isinstance(keep, Predicate) or any(block.phases[s.value] == "loop" for s in block.stores):
        return []
    bounds = []
    for condition in keep.conditions:
        signs = [c for i, c in condition.terms if i.axis == loop]
        others = tuple((i, c) for i, c in condition.terms if i.axis != loop)
        plain = all(i.plain for i, _ in condition.terms) and all(i.axis in block.grid for i, _ in others)
        if plain and len(signs) == 1 and abs(signs[0]) == 1:
            bounds.append(LoopBound(condition, signs[0], others))
    are_ends = len(bounds) == len(keep.conditions) and all(bound.sign < 0 for bound in bounds)
    return bounds if are_ends or not keep.is_any else []
