"""Goals: kernel graphs of which block graphs are searched, and their values by named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.ops import traits_of
from mugraph.ops.interp import expanded, infer_types
from mugraph.ops.traits import Entrywise, ProductKind, Reduction, RowRole
from mugraph.terms.shape import Dim, SymDim, TensorType, evaluate_dim, symbol
from mugraph.terms.term import Term, make, substitute, walk
from rulegen.mugraphs.axes import NamedAxes
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values
from rules_db.trust.rule import dim_symbols

__all__ = ["Goal", "GoalProgram"]


@dataclass(frozen=True)
class Goal:
    """A kernel graph to find block graphs of.

    Attributes:
        name: of the kernels.
        root: what is to be computed.
        types: of its variables; their sizes may be symbols.
        sizes: what the symbols are in the model that the goal was found in.
    """

    name: str
    root: Term
    types: Mapping[str, TensorType]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def canonical(self) -> Goal:
        """The same goal with symbols named in order of occurrence."""
        dims = [dim for type_ in self.types.values() for dim in type_.shape]
        met = [name for dim in dims if isinstance(dim, SymDim) for name in sorted(dim.symbols())]
        met += sorted(dim_symbols([self.root]))
        names = {old: f"d{number}" for number, old in enumerate(dict.fromkeys(met))}
        symbols: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
        types = {n: TensorType(t.dtype, tuple(evaluate_dim(dim, symbols) for dim in t.shape)) for n, t in self.types.items()}
        sizes = {names[old]: size for old, size in self.sizes.items() if old in names}
        return Goal(self.name, substitute(self.root, {}, dims=symbols), types, sizes)

    @cached_property
    def output(self) -> TensorType:
        """The type of what is computed."""
        return infer_types([self.root], self.types)[self.root]


class GoalProgram:
    """A goal by the operators of block graphs.

    Attributes:
        axes: name to size.
        values: those of the goal as it is written.
        root: the wanted one.
        inputs: variables to the axes of their dimensions, in order.
        output: the axes of the goal's dimensions, in order.

    Raises:
        Unsupported: an operator is none of block graphs here.
        ShapeError, Undecided: the goal is ill-typed.
    """

    def __init__(self, goal: Goal) -> None:
        plain = _plain(goal.root, goal.types)
        self._named = NamedAxes(plain, goal.types)
        self.axes: dict[str, Dim] = self._named.sizes
        self.values = Values()
        self.inputs: dict[str, tuple[str, ...]] = {}
        self._done: dict[Term, Value] = {}
        for term in walk([plain]):
            self._done[term] = self._value(term)
        self.root = self._done[plain]
        self.output = self._flat(plain)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """What block graphs for the goal may do: what the goal does, each once."""
        return tuple(dict.fromkeys(value.operation for value in self.values if not value.operation.kind.is_leaf))

    @cached_property
    def leaves(self) -> tuple[tuple[Operation, tuple[str, ...]], ...]:
        """Inputs, numbers and sizes, with their axes."""
        leaves = [value.operation for value in self.values if value.operation.kind.is_leaf]
        return tuple((leaf, self.inputs.get(leaf.name, ())) for leaf in leaves)

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


def _plain(root: Term, inputs: Mapping[str, TensorType]) -> Term:
    """The term without operators that are composed of others, but for elementwise ones and softmax."""
    while True:
        types = infer_types([root], inputs)
        done: dict[Term, Term] = {}
        for part in walk([root]):
            operands = [done[i] for i in part.inputs]
            same = operands == list(part.inputs)
            keeps = not part.inputs or not same or traits_of(part.op).rows is RowRole.SOFTMAX
            taken = None if keeps else expanded(part, types)
            done[part] = taken or (part if same else make(part.op, operands, part.attrs, part.out))
        if done[root] is root:
            return root
        root = done[root]
