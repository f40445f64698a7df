"""Operators and types of an e-graph as small integers, with typing memoised over them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from mugraph.domains.base import Unsupported
from mugraph.domains.range import Range, RangeDomain
from mugraph.ops import get_operator
from mugraph.ops.forms import NotExpressible
from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided
from mugraph.terms.term import Attrs, AttrValue, Term, attr_symbols, bind_attrs, variables, walk
from rules_db.trust.condition import Facts
from rules_db.trust.guards import GUARDS

__all__ = ["Language", "Sealed", "is_sealed", "sample_value"]


@dataclass(frozen=True, slots=True)
class Sealed:
    """An attribute variable of a goal: equal to itself only, typed as its sample value."""

    name: str
    sample: AttrValue

    def __repr__(self) -> str:
        return f"${self.name}"


def sample_value(value: AttrValue) -> AttrValue:
    """The value with samples in place of sealed attribute variables."""
    if isinstance(value, tuple):
        return tuple(map(sample_value, value))
    return value.sample if isinstance(value, Sealed) else value


def is_sealed(value: Any) -> bool:
    """Whether a sealed attribute variable is, or stands in, the value."""
    return isinstance(value, Sealed) or (isinstance(value, tuple) and any(map(is_sealed, value)))


class Language:
    """Operators and types as small integers, and typing memoised over them; shared by many goals.

    Attributes:
        ops: by number, an operator's name, attributes and output.
        types: by number, a type and whether it is a constant's, which takes the element type of what it meets.
        bits: operator to its bit in a set of operators.
        compiled: what a law was compiled to, by the property or the rule that states it.
    """

    def __init__(self) -> None:
        self.compiled: dict[Hashable, Any] = {}
        self.ops: list[tuple[str, Attrs, int]] = []
        self.bits: dict[str, int] = {}
        self.types: list[tuple[TensorType, bool]] = []
        self._op_numbers: dict[tuple[str, Attrs, int, str], int] = {}
        self._type_numbers: dict[tuple[TensorType, bool], int] = {}
        self._outputs: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self._holds: dict[tuple[Any, ...], bool] = {}
        self._ranges: dict[Term, Range] = {}
        self._facts = Facts(lambda t: t, lambda t: Range.top(), least=1)  # type: ignore[arg-type, return-value]

    def op(self, name: str, attrs: Attrs, out: int) -> int:
        """The number of an operator with its attributes and the output that is meant."""
        key = (name, attrs, out, repr(attrs) if name == "Const" else "")  # False, 0.0 and -0.0 are equal in Python
        number = self._op_numbers.get(key)
        if number is None:
            number = self._op_numbers[key] = len(self.ops)
            self.ops.append((name, attrs, out))
        return number

    def bit(self, operator: str) -> int:
        """The bit that stands for an operator in a set of operators."""
        return self.bits.setdefault(operator, 1 << len(self.bits))

    def type(self, type_: TensorType, literal: bool = False) -> int:
        """The number of a type; ``literal`` for that of a constant."""
        number = self._type_numbers.setdefault((type_, literal), len(self.types))
        if number == len(self.types):
            self.types.append((type_, literal))
        return number

    def literal(self, term: Term) -> int:
        """The type of a constant of a program: of no element type until it meets an operand."""
        dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT
        return self.type(TensorType(dtype, ()), literal=True)

    def output(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The type of an application, or ``None`` where it is ill-typed or depends on the symbols."""
        key = (op, operands)
        if key not in self._outputs:
            name, sealed, out = self.ops[op]
            attrs = tuple((k, sample_value(v)) for k, v in sealed)
            types = [self.types[t] for t in operands]
            try:
                type_ = infer_output(name, attrs, out, [t for t, _ in types], [literal for _, literal in types])
                self._outputs[key] = self.type(type_)
            except (ShapeError, Undecided):
                self._outputs[key] = None
        return self._outputs[key]

    def holds(self, predicate: str, arguments: tuple[Any, ...], is_type: tuple[bool, ...]) -> bool:
        """Whether a predicate is shown; types stand in place of the terms, and samples of the goal's attribute variables.

        A goal's own conditions admit its samples. What they admit besides is not asked here: only derivations have such
        variables, and a rule that speaks of one value alone does not match them.
        """
        key = (predicate, arguments, is_type)
        if key not in self._holds:
            arguments = sample_value(arguments)
            values = [self.types[a][0] if flag else a for a, flag in zip(arguments, is_type, strict=True)]
            try:
                self._holds[key] = GUARDS[predicate].predicate(self._facts, *values) is True
            except (ShapeError, Undecided, IndexError):
                self._holds[key] = False
        return self._holds[key]

    def evident(self, predicate: str, term: Term) -> bool:
        """Whether a condition on signs, or any on the range of a number, follows from the operators, if inputs are finite."""
        if predicate not in ("nonnegative", "positive") and (not GUARDS[predicate].of_ranges or variables([term])):
            return False
        return GUARDS[predicate].predicate(Facts(lambda t: TensorType(DataType.FLOAT, ()), self._range), term) is True

    def _range(self, root: Term) -> Range:
        for term in walk([root]):
            if term not in self._ranges:
                self._ranges[term] = self._infer_range(term)
        return self._ranges[root]

    def _infer_range(self, term: Term) -> Range:
        if term.is_var:
            return Range.finite_input()
        if term.op == "Const":
            value = sample_value(term.attr("value"))
            return RangeDomain().const(2 if isinstance(value, SymDim) else value)  # a size is some positive number
        attrs = tuple((k, sample_value(v)) for k, v in term.attrs)
        attrs = bind_attrs(attrs, dict.fromkeys(attr_symbols(tuple(v for _, v in attrs)), 2))  # ranges do not depend on sizes
        operands = [self._ranges[i] for i in term.inputs]
        try:
            range_: Range = get_operator(term.op).run(RangeDomain(), attrs, operands)[term.out]
        except (ShapeError, Undecided, Unsupported, NotExpressible):
            return Range.top()
        return range_
