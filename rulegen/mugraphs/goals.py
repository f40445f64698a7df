"""Goals: kernel graphs of which block graphs are searched, and their values by named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.ops import traits_of
from mugraph.ops.interp import expanded, infer_types
from mugraph.ops.traits import Entrywise, ProductKind, Reduction, RowRole
from mugraph.terms.shape import Dim, SymDim, TensorType, symbol
from mugraph.terms.term import Term, make, substitute, walk
from rulegen.mugraphs.axes import NamedAxes
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values, closure_of
from rules_db.trust.rule import dim_symbols

__all__ = ["BlockProgram", "Goal", "GoalProgram"]


@dataclass(frozen=True)
class Goal:
    """A kernel graph to find block graphs of.

    Attributes:
        name: of the kernels.
        roots: what is to be computed, each once.
        types: of its variables; their sizes may be symbols.
        sizes: what the symbols are in the model that the goal was found in.
    """

    name: str
    roots: tuple[Term, ...]
    types: Mapping[str, TensorType]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def canonical(self) -> Goal:
        """The same goal with symbols named in order of occurrence."""
        dims = [dim for type_ in self.types.values() for dim in type_.shape]
        met = [name for dim in dims if isinstance(dim, SymDim) for name in sorted(dim.symbols())]
        met += sorted(dim_symbols(self.roots))
        names = {old: f"d{number}" for number, old in enumerate(dict.fromkeys(met))}
        symbols: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
        types = {n: t.at(symbols) for n, t in self.types.items()}
        sizes = {names[old]: size for old, size in self.sizes.items() if old in names}
        roots = tuple(substitute(root, {}, dims=symbols) for root in self.roots)
        return Goal(self.name, roots, types, sizes)

    @cached_property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of what is computed."""
        types = infer_types(self.roots, self.types)
        return tuple(types[root] for root in self.roots)


@dataclass
class BlockProgram:
    """What is to be computed, by the operators of block graphs.

    Attributes:
        axes: name to size.
        values: those of the program as it is written.
        roots: the wanted ones.
        inputs: variables to the axes of their dimensions, in order.
        outputs: the axes of the roots' dimensions, in order.
    """

    axes: dict[str, Dim]
    values: Values
    roots: tuple[Value, ...]
    inputs: dict[str, tuple[str, ...]]
    outputs: tuple[tuple[str, ...], ...]

    @cached_property
    def operators(self) -> int:
        """How many it has as it is written."""
        return len(closure_of(self.roots))

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """What block graphs for the program may do: what it does itself, each once, in an order that does not tell how it is
        written."""
        used = {value.operation for value in self.values if not value.operation.kind.is_leaf}
        return tuple(
            sorted(used, key=lambda operation: (operation.kind.name, operation.name, str(operation.attrs), operation.axis))
        )

    @cached_property
    def leaves(self) -> tuple[tuple[Operation, tuple[str, ...]], ...]:
        """Inputs, numbers and sizes, with their axes."""
        leaves = [value.operation for value in self.values if value.operation.kind.is_leaf]
        return tuple((leaf, self.inputs.get(leaf.name, ())) for leaf in leaves)

    def entered(self, values: Values) -> tuple[Value, ...]:
        """The roots as they are written, among other values."""
        done: dict[int, Value] = {}
        for value in self.values:
            if value.operation.kind.is_leaf:
                done[value.number] = values.leaf(value.operation, self.inputs.get(value.operation.name, ()))
            else:
                done[value.number] = values.apply(value.operation, *(done[operand] for operand in value.operands))
        return tuple(done[root.number] for root in self.roots)


class GoalProgram(BlockProgram):
    """A goal by the operators of block graphs.

    Raises:
        Unsupported: an operator is none of block graphs here.
        ShapeError, Undecided: the goal is ill-typed.
    """

    def __init__(self, goal: Goal) -> None:
        plain = _plain(goal.roots, goal.types)
        self._named = NamedAxes(plain, goal.types)
        self._done: dict[Term, Value] = {}
        super().__init__(self._named.sizes, Values(), (), {}, tuple(map(self._flat, plain)))
        for term in walk(plain):
            self._done[term] = self._value(term)
        self.roots = tuple(self._done[root] for root in plain)

    def _flat(self, term: Term) -> tuple[str, ...]:
        return tuple(axis for dim in self._named.dims(term) for axis in dim)

    def _value(self, term: Term) -> Value:
        values, traits = self.values, traits_of(term.op)
        operands = [self._done[i] for i in term.inputs]
        if term.is_var:
            self.inputs[term.name] = self._flat(term)
            return values.leaf(Operation(ValueKind.TENSOR, term.name), self.inputs[term.name])
        if term.op == "Const":
            if isinstance(term.attr("value"), bool):
                raise Unsupported("a truth value")
            return values.leaf(Operation(ValueKind.NUMBER, repr(float(term.attr("value")))))
        if traits.movement is not None:
            return operands[0]
        if traits.entrywise is Entrywise.CONVERSION and term.attr("to") in FLOATS:
            return operands[0]
        if traits.entrywise is not None:
            return values.apply(Operation(ValueKind.ENTRYWISE, term.op, term.attrs), *operands)
        if traits.rows is RowRole.SOFTMAX:
            axes = self._axes_of(term.inputs[0], term.attr("axis", -1))
            if len(axes) != 1:
                raise Unsupported("a softmax of which a row is not one axis")
            (axis,) = axes
            weights = values.apply(Operation(ValueKind.SHIFTED, axis=axis), *operands)
            return self._divided(weights, values.apply(Operation(ValueKind.SUM, axis=axis), weights))
        if traits.product is ProductKind.MATRIX:
            return self._product(term, operands)
        assert traits.reduction is not None, term.op
        return self._reduced(term, operands[0], traits.reduction)

    def _axes_of(self, term: Term, dim: int) -> tuple[str, ...]:
        return self._named.dims(term)[dim]

    def _divided(self, a: Value, b: Value) -> Value:
        return self.values.apply(Operation(ValueKind.ENTRYWISE, "Div"), a, b)

    def _product(self, term: Term, operands: list[Value]) -> Value:
        axes = self._axes_of(term.inputs[0], -1)
        if not axes:
            raise Unsupported("a product over a dimension of 1")
        *outer, last = axes
        result = self.values.apply(Operation(ValueKind.DOT, axis=last), *operands)
        for axis in outer:
            result = self.values.apply(Operation(ValueKind.SUM, axis=axis), result)
        return result

    def _reduced(self, term: Term, operand: Value, reduction: Reduction) -> Value:
        kinds = {"sum": ValueKind.SUM, "max": ValueKind.MAX, "min": ValueKind.MIN}
        if reduction.monoid is None:
            raise Unsupported(f"{term.op} is no reduction of block graphs")
        axes = [axis for dim in term.attr("axes") for axis in self._axes_of(term.inputs[0], dim)]
        for axis in axes:
            operand = self.values.apply(Operation(kinds[reduction.monoid], axis=axis), operand)
        for axis in axes if reduction is Reduction.MEAN else ():
            operand = self._divided(operand, self.values.leaf(Operation(ValueKind.SIZE, axis=axis)))
        return operand


def _plain(roots: tuple[Term, ...], inputs: Mapping[str, TensorType]) -> tuple[Term, ...]:
    """The terms without operators that are composed of others, but for elementwise ones and softmax."""
    while True:
        types = infer_types(roots, inputs)
        done: dict[Term, Term] = {}
        for part in walk(roots):
            operands = [done[i] for i in part.inputs]
            same = operands == list(part.inputs)
            keeps = not part.inputs or not same or traits_of(part.op).rows is RowRole.SOFTMAX
            taken = None if keeps else expanded(part, types)
            done[part] = taken or (part if same else make(part.op, operands, part.attrs, part.out))
        made = tuple(done[root] for root in roots)
        if made == roots:
            return roots
        roots = made
