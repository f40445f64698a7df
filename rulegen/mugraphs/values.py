"""Values of block graphs, by the axes that they have and the expressions that they are, whatever the grid and the loop are.

Which axis is cut into blocks and which into iterations changes nothing of what a block graph computes: a sum along an axis is an
accumulator where the axis is the loop and a reduction of tiles where it is whole. So values are enumerated once, and grid and
loop are chosen of what was found (:mod:`rulegen.mugraphs.blocks`). A value is what its operator makes of its operands; equal ones
are one, so that no graph stands twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache

from mugraph.domains.base import Unsupported
from mugraph.ops import get_operator
from mugraph.order import operands_first
from mugraph.terms.term import Attrs
from rulegen.mugraphs.abstract import AbstractDomain, Expression, atom, factor_degree, has_exponential, summed

__all__ = ["Look", "Operation", "Value", "ValueKind", "Values", "closure_of", "is_commutative"]


class ValueKind(Enum):
    """What makes a value."""

    TENSOR = auto()
    """An input."""
    NUMBER = auto()
    SIZE = auto()
    """The size of an axis, as a number."""
    ENTRYWISE = auto()
    """An operator of the registry, entry by entry."""
    SUM = auto()
    """The sum along an axis."""
    MAX = auto()
    """The greatest along an axis."""
    MIN = auto()
    """The least along an axis."""
    DOT = auto()
    """The sum of products along an axis, by matrix units."""
    SHIFTED = auto()
    """exp(s - max s along an axis): the weights of a softmax, before they are divided by their sum."""

    @property
    def is_leaf(self) -> bool:
        return self in (ValueKind.TENSOR, ValueKind.NUMBER, ValueKind.SIZE)


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done with operands.

    Attributes:
        name: of a tensor or an operator, the text of a number.
        axis: along which a value is reduced or shifted, or whose size it is.
    """

    kind: ValueKind
    name: str = ""
    attrs: Attrs = ()
    axis: str = ""

    @property
    def is_exponential(self) -> bool:
        """Whether it is one of the exponentials of which a Lax program has at most one on a path."""
        return self.kind is ValueKind.SHIFTED or (self.kind is ValueKind.ENTRYWISE and _takes_exponentials(self.name, self.attrs))


@dataclass(frozen=True, slots=True)
class Look:
    """What may be done with a value depends on this alone.

    Attributes:
        axes: that it has.
        expression: abstractly; nothing where nobody asks.
        shift: the scores whose greatest its entries are exponentials relative to, and along which axis; ``None`` of others.
            Such a value is exp(-max) times what it stands for; only the quotient of two is that no more.
    """

    axes: frozenset[str]
    expression: Expression = ()
    shift: tuple[int, str] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value.

    Attributes:
        number: in the order of enumeration.
        operands: their numbers.
        look: the number of its look.
        closure: the values that it takes, its own among them, without leaves: the block operators of the graph that computes it.
    """

    number: int
    operation: Operation
    operands: tuple[int, ...]
    look: int
    closure: frozenset[int]


def closure_of(values: Iterable[Value]) -> frozenset[int]:
    """The block operators of the graph that computes some values."""
    return frozenset[int]().union(*(value.closure for value in values))


_SHIFT = "shift"
"""The factor that stands for exp(-max) where an operator is asked what it does with it."""


class Values:
    """Interned values, and their looks.

    Args:
        abstract: whether values have expressions.
    """

    def __init__(self, abstract: bool = True) -> None:
        self._abstract = abstract
        self._all: list[Value] = []
        self._by_key: dict[tuple[Operation, tuple[int, ...]], Value] = {}
        self._looks: list[Look] = []
        self._by_look: dict[Look, int] = {}

    def __getitem__(self, number: int) -> Value:
        return self._all[number]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._all)

    def look(self, value: Value) -> Look:
        return self._looks[value.look]

    def leaf(self, operation: Operation, axes: Sequence[str] = ()) -> Value:
        """An input, a number or a size."""
        expression: Expression = ()
        if self._abstract:
            number = operation.kind is ValueKind.NUMBER
            expression = (
                AbstractDomain().const(float(operation.name)) if number else atom(operation.name or f"|{operation.axis}|")
            )
        return self.entered(operation, (), self.look_number(Look(frozenset(axes), expression)))

    def apply(self, operation: Operation, *operands: Value) -> Value:
        """The value of an operation. Raises Unsupported where it has none."""
        look = self.result_look(operation, *(value.look for value in operands))
        return self.entered(operation, operands, self.look_number(look))

    def result_look(self, operation: Operation, *looks: int) -> Look:
        """The look of what an operation makes of operands that look so. Raises Unsupported.

        A shifted value is relative to its own operand, which :meth:`entered` puts in.
        """
        operands = [self._looks[number] for number in looks]
        axes = frozenset[str]().union(*(look.axes for look in operands))
        shifts = {look.shift for look in operands} - {None}
        if len(shifts) > 1:
            raise Unsupported("exponentials relative to different numbers")
        shift = next(iter(shifts), None)
        if operation.kind is ValueKind.ENTRYWISE:
            if shifts and not _keeps_shift(operation.name, operation.attrs, tuple(look.shift is not None for look in operands)):
                shift = None
        else:
            if any(operation.axis not in look.axes for look in operands):
                raise Unsupported(f"no axis {operation.axis}")
            if operation.kind is ValueKind.DOT and operands[0].axes == operands[1].axes:
                raise Unsupported("a product of neither rows nor columns")
            takes_shifted = operation.kind is ValueKind.SUM or (
                operation.kind is ValueKind.DOT and None in [look.shift for look in operands]
            )
            if shifts and not takes_shifted:
                raise Unsupported("exponentials relative to a number")
            if operation.kind is not ValueKind.SHIFTED:
                axes -= {operation.axis}
        expression = _expression_of(operation, [look.expression for look in operands]) if self._abstract else ()
        return Look(axes, expression, shift)

    def look_number(self, look: Look) -> int:
        if look not in self._by_look:
            self._by_look[look] = len(self._looks)
            self._looks.append(look)
        return self._by_look[look]

    def entered(self, operation: Operation, operands: Sequence[Value], look: int) -> Value:
        """The value with these operands, which looks so; of equal ones the first. Symmetric operands stand in one order."""
        if len(operands) == 2 and operands[0].number > operands[1].number and is_commutative(operation):
            operands = operands[::-1]
        key = (operation, tuple(operand.number for operand in operands))
        found = self._by_key.get(key)
        if found is None:
            number = len(self._all)
            if operation.kind is ValueKind.SHIFTED:
                look = self.look_number(replace(self._looks[look], shift=(key[1][0], operation.axis)))
            closure = closure_of(operands)
            if not operation.kind.is_leaf:
                closure |= {number}
            found = self._by_key[key] = Value(number, operation, key[1], look, closure)
            self._all.append(found)
        return found

    def needed(self, *roots: Value, held: Collection[int] = ()) -> list[Value]:
        """The values that some are computed of, and these, in order; what is held is loaded, not computed."""
        numbers = operands_first((root.number for root in roots), lambda n: () if n in held else self._all[n].operands)
        return [self._all[number] for number in sorted(numbers)]


@lru_cache(maxsize=4096)
def is_commutative(operation: Operation) -> bool:
    """Whether the order of two operands does not matter."""
    return operation.kind is ValueKind.DOT or (
        operation.kind is ValueKind.ENTRYWISE and _is_symmetric(operation.name, operation.attrs)
    )


@lru_cache(maxsize=256)
def _is_symmetric(op: str, attrs: Attrs) -> bool:
    first, second = ([atom("x"), atom("y")], [atom("y"), atom("x")])
    domain, record = AbstractDomain(), get_operator(op)
    return bool(record.run(domain, attrs, first) == record.run(domain, attrs, second))


@lru_cache(maxsize=256)
def _takes_exponentials(op: str, attrs: Attrs) -> bool:
    record, domain = get_operator(op), AbstractDomain()
    operands = [atom(f"x{place}") for place in range(record.arity[0])]
    return has_exponential(record.run(domain, attrs, operands)[0])


@lru_cache(maxsize=1024)
def _keeps_shift(op: str, attrs: Attrs, shifted: tuple[bool, ...]) -> bool:
    """Whether the result has the factor that some operands have; not where it cancels. Raises Unsupported for anything else."""
    domain = AbstractDomain()
    operands = [domain.mul(atom(f"x{i}"), atom(_SHIFT)) if has else atom(f"x{i}") for i, has in enumerate(shifted)]
    degree = factor_degree(get_operator(op).run(domain, attrs, operands)[0], _SHIFT)
    if degree not in (0, 1):
        raise Unsupported("exponentials relative to a number")
    return degree == 1


def _expression_of(operation: Operation, operands: Sequence[Expression]) -> Expression:
    domain = AbstractDomain()
    match operation.kind:
        case ValueKind.ENTRYWISE:
            result: Expression = get_operator(operation.name).run(domain, operation.attrs, operands)[0]
            return result
        case ValueKind.SUM:
            return summed(operation.axis, operands[0])
        case ValueKind.DOT:
            return summed(operation.axis, domain.mul(*operands))
        case ValueKind.SHIFTED:
            return domain.exp(operands[0])
        case _:
            return domain.apply(f"{operation.kind.name.lower()} {operation.axis}", operands[0])
