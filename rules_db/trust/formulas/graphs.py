"""Block graphs, entry by entry: which formula of the inputs a kernel saves at a place of a tensor.

Every axis is an index variable, whatever the tiles are. That is what blocks, iterations, parts of the loop and ragged edges come
to: tiles partition an axis, entries of a tile depend on their own place alone, and what goes along the loop is an accumulator, a
commutative monoid whose lift takes the union of two sets of entries to the combination of their states. So any partition of the
axis, in any order, gives the state of all of it (:mod:`mugraph.blocks.accumulation`):

========== =====================================================================
monoid     state of all entries x of the loop axis, n of them
========== =====================================================================
sum        Σ x
max        max x
softmax    m = max s, Σ exp(s - m), Σ exp(s - m)·v
welford    n, Σ x / n, Σ x² - (Σ x)² / n
========== =====================================================================

What ``keep`` hides counts as the identity: 0 of a sum, -∞ of a maximum and of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Index,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    View,
    Viewing,
    statement_indices,
    statement_names,
    statement_operands,
    statement_title,
)
from mugraph.domains.base import FLOATS
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, Dim, TensorType, at_most
from mugraph.terms.term import variables
from rules_db.trust.formulas.bodies import entry, stored_entry
from rules_db.trust.formulas.formula import (
    INFINITY,
    NO_CUTS,
    ZERO,
    Cuts,
    Digits,
    Formula,
    choice,
    counted,
    exponential,
    natural,
    number_of,
    together,
)
from rules_db.trust.formulas.places import NotDecided, Position, divided, is_natural, limits, rest
from rules_db.trust.formulas.reals import Formulas, refuse_integers

__all__ = ["GraphMeaning", "address", "divisors"]

_Env = Mapping[str, Dim]
"""Axis to the place along it."""


def _position(index: Index, env: _Env) -> Dim:
    if index.axis is None:
        return index.offset
    place = divided(env[index.axis] + index.shift, index.divide)
    return (place if index.modulo is None else rest(place, index.modulo)) + index.offset


def _place(affine: Affine, env: _Env) -> Dim:
    total = affine.constant
    for index, coefficient in affine.terms:
        total = total + coefficient * _position(index, env)
    return total


def address(view: View, env: _Env) -> Dim:
    """The flat place that a view addresses."""
    total: Dim = 0
    for factor in view:
        total = total * factor.size + _position(factor.index, env)
    return total


def divisors(block: Block, axis: str) -> list[Dim]:
    """By what places along an axis are divided."""
    found: list[Dim] = []
    for statement in block.statements:
        for index in statement_indices(statement):
            if index.axis == axis and index.shift == 0:
                found += [index.divide, *([] if index.modulo is None else [index.divide * index.modulo])]
    return [divisor for divisor in found if divisor != 1]


class GraphMeaning:
    """The formulas of what a kernel's block graphs save.

    Args:
        kernel: a valid one.
        names: of index variables, none of which is used elsewhere.
        cuts: the digits of index variables that are bound, as the body has them.

    Raises:
        NotDecided: an entry is saved twice, or read outside its tensor.
    """

    def __init__(self, kernel: Kernel, names: Iterator[str], cuts: Cuts = NO_CUTS) -> None:
        self._cuts = cuts
        numbered = tuple(replace(block, name=str(number)) for number, block in enumerate(kernel.blocks))
        kernel = replace(kernel, blocks=numbered)  # a value is known by its block's name and its own
        self._kernel, self._names, self._domain = kernel, names, Formulas()
        self._inputs = {tensor.name for tensor in kernel.inputs}
        self._values: dict[tuple[str, str, tuple[tuple[str, Dim], ...]], Formula] = {}
        self._stores: dict[str, tuple[Block, Store]] = {}
        for block in kernel.blocks:
            _check_places(block)
            for store in block.stores:
                if store.tensor in self._stores:
                    raise NotDecided(f"{store.tensor} is saved twice")
                self._stores[store.tensor] = block, store
        for block in kernel.blocks:
            _check_types(block, kernel.tensors)

    def store_of(self, tensor: str) -> tuple[Block, Store]:
        """The one statement that saves a tensor, and its block."""
        return self._stores[tensor]

    def saved(self, tensor: str, env: _Env) -> Formula:
        """What is saved to a tensor at places along the axes of the block that saves it."""
        block, store = self._stores[tensor]
        return self._value(block, store.value, env)

    def _read(self, tensor: str, place: Dim) -> Formula:
        """The entry of a tensor at a flat place: of one that was saved, the value whose view addresses it."""
        if tensor in self._inputs:
            return entry(tensor, self._kernel.tensors[tensor], place)
        _, store = self._stores[tensor]
        env: dict[str, Dim] = {}
        for factor in reversed(store.view):
            digit, place = rest(place, factor.size), divided(place, factor.size)
            if factor.index.axis is not None:
                env[factor.index.axis] = env.get(factor.index.axis, 0) + digit * factor.index.divide
        return self.saved(tensor, env)

    def _value(self, block: Block, name: str, env: _Env) -> Formula:
        axes = [axis for axis in block.value_axes[name] if axis in env]
        key = (block.name, name, tuple((axis, env[axis]) for axis in axes))
        if key not in self._values:
            statement, inner = block.defined[name], dict(key[2])
            if isinstance(statement, Accumulate):
                self._values[key] = self._state(block, statement, statement.names.index(name), inner)
            else:
                self._values[key] = self._one(block, statement, inner)
        return self._values[key]

    def _one(self, block: Block, statement: object, env: _Env) -> Formula:
        if isinstance(statement, Load):
            return self._read(statement.tensor, address(statement.view, env))
        if isinstance(statement, Compute):
            operands = {leaf.name: self._value(block, leaf.name, env) for leaf in variables([statement.term])}
            result: Formula = evaluate([statement.term], self._domain, operands)[statement.term]
            return result
        if isinstance(statement, Dot):
            index, inner = self._along(block, statement.over, env)
            factors = (self._value(block, name, inner) for name in (statement.left, statement.right))
            return index.summed(self._domain.mul(*factors))
        if isinstance(statement, Reduce):
            indices = []
            for axis in statement.over:
                index, env = self._along(block, axis, env)
                indices.append(index)
            value = self._value(block, statement.operand, env)
            for index in indices:
                value = index.summed(value) if statement.kind == "sum" else index.extremum(statement.kind, value)
            return value
        if isinstance(statement, Predicate):
            return together([natural(_place(condition, env)) for condition in statement.conditions], statement.is_any)
        if isinstance(statement, PlaceTile):
            return counted(_place(statement.place, env))
        if isinstance(statement, MaskTile):
            return stored_entry(statement.entries, statement.type, address(statement.view, env))
        assert isinstance(statement, Extent), statement
        return number_of(statement.size)

    def _along(self, block: Block, axis: str, env: _Env) -> tuple[Digits, _Env]:
        """An index variable of an axis, by its digits, and the places with it there."""
        index = Digits.of(next(self._names), block.sizes[axis], self._cuts if divisors(block, axis) else NO_CUTS)
        return index, {**env, axis: index.place}

    def _state(self, block: Block, statement: Accumulate, number: int, env: _Env) -> Formula:
        """A value of an accumulator's state after the whole loop."""
        assert block.loop is not None
        index, inner = self._along(block, block.loop, env)
        value = self._value(block, statement.operands[0], inner)
        keep = None if statement.keep is None else self._value(block, statement.keep, inner)
        if block.loop not in block.value_axes[statement.operands[0]]:  # a product over the loop is summed up already
            if statement.monoid != "sum" or keep is not None:
                raise NotDecided(f"{statement.monoid} of a product over the loop")
            return value
        if statement.monoid == "sum":
            return index.summed(value if keep is None else choice(keep, value, ZERO))
        if statement.monoid == "welford":
            if keep is not None:
                raise NotDecided("welford over chosen entries")
            return self._moment(number, value, index)
        scores = value if keep is None else choice(keep, value, -INFINITY)
        greatest = index.extremum("max", scores)
        if number == 0:  # of a maximum, or the shift of a softmax
            return greatest
        weight = exponential(self._domain.sub(scores, greatest))
        if number == 2:
            weight = self._domain.mul(weight, self._value(block, statement.operands[1], inner))
        return index.summed(weight)

    def _moment(self, number: int, value: Formula, index: Digits) -> Formula:
        """Number, mean, or sum of squared differences from the mean."""
        count, total = number_of(index.size), index.summed(value)
        mean = self._domain.div(total, count)
        return (count, mean, index.summed(self._domain.mul(value, value)) - self._domain.mul(total, mean))[number]


def _kind(dtype: DataType) -> DataType:
    """The element type of a tile: all floats are one, since a kernel computes in one of them."""
    return DataType.FLOAT if dtype in FLOATS else dtype


def _number(dtype: DataType) -> DataType:
    """What a tile that is reduced has to be of, where it is of this."""
    return DataType.FLOAT if dtype == DataType.BOOL else dtype


def _check_types(block: Block, tensors: Mapping[str, TensorType]) -> None:
    """Truth values are no numbers, integers no floats. Raises NotDecided or ShapeError."""
    types: dict[str, DataType] = {}
    integers: set[str] = set()  # that are loaded, or places: a thread graph may compare them

    def ask(statement: Statement, *wanted: tuple[str, DataType]) -> None:
        if any(types[name] != kind for name, kind in wanted):
            raise NotDecided(f"{statement_title(statement)} of other element types")

    for statement in block.statements:
        kind = DataType.FLOAT
        if isinstance(statement, Load):
            kind = _kind(tensors[statement.tensor].dtype)
            if kind not in (DataType.FLOAT, DataType.BOOL):
                integers.add(statement.name)
        elif not isinstance(statement, Compute) and integers.intersection(statement_operands(statement)):
            raise NotDecided("an operand of integers")
        elif isinstance(statement, Predicate | MaskTile):
            kind = DataType.BOOL
        elif isinstance(statement, PlaceTile):
            kind = DataType.INT64
            integers.add(statement.name)
        elif isinstance(statement, Compute):
            operands = {leaf.name: TensorType(types[leaf.name], ()) for leaf in variables([statement.term])}
            inferred = infer_types([statement.term], operands)
            refuse_integers({part: type_ for part, type_ in inferred.items() if not part.is_var or part.name in integers})
            kind = _kind(inferred[statement.term].dtype)
        elif isinstance(statement, Dot):
            ask(statement, (statement.left, kind), (statement.right, kind))
        elif isinstance(statement, Reduce):
            kind = _number(types[statement.operand])
            ask(statement, (statement.operand, kind))
        elif isinstance(statement, Accumulate):
            kind = _number(types[statement.operands[0]]) if statement.monoid in ("sum", "max") else DataType.FLOAT
            ask(statement, *((name, kind) for name in statement.operands))
            ask(statement, *((name, DataType.BOOL) for name in (statement.keep,) if name is not None))
        elif isinstance(statement, Store):
            ask(statement, (statement.value, _kind(tensors[statement.tensor].dtype)))
        types |= dict.fromkeys(statement_names(statement), kind)


def _check_places(block: Block) -> None:
    """Every index stays within its dimension, and nothing negative is divided. Raises NotDecided."""
    env: dict[str, Dim] = {axis: Position(axis, size).place for axis, size in block.axes}
    for statement in block.statements:
        for index in statement_indices(statement):
            bounds = limits(env[index.axis] + index.shift if index.axis is not None else index.offset)
            if bounds is None or not _is_natural(bounds[0]):
                raise NotDecided(f"whether an index of {statement_title(statement)} may be negative")
        for factor in statement.view if isinstance(statement, Viewing) else ():
            bounds = limits(_position(factor.index, env))
            if bounds is None or not _is_natural(bounds[0]) or not _is_natural(factor.size - 1 - bounds[1]):
                raise NotDecided(f"whether {statement_title(statement)} stays within a dimension of {factor.size}")


def _is_natural(dim: Dim) -> bool:
    """Whether a dimension is known never to be negative, also where it is the smaller of two."""
    return is_natural(dim) or bool(at_most(0, dim))
