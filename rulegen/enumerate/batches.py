"""Operators, types and batches of an enumeration, by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mugraph.ops import Operator
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term
from rulegen.enumerate.evaluation import TermBatch, ValueKind

__all__ = ["BatchTable", "OperatorTemplate"]


@dataclass(frozen=True, slots=True)
class OperatorTemplate:
    """An operator of a workload with its attributes; ``slots`` holds per operand a fixed constant or a filter's name."""

    operator: Operator
    attrs: tuple[tuple[str, object], ...]
    slots: tuple[Term, ...]

    @property
    def commutative(self) -> bool:
        """Whether the operands may be exchanged."""
        return self.operator.commutative and all(slot.is_var and slot.name == self.slots[0].name for slot in self.slots)

    @property
    def ordered(self) -> bool:
        """Whether results depend on the order of numbers."""
        return self.operator.traits.piecewise


class BatchTable:
    """The batches of an enumeration, made when they are first asked for.

    Args:
        templates: the operators.
        admits: whether terms of a type are enumerated.

    Attributes:
        types: by number.
        sorts: by number, a type's number and the kind of its values; operands of one sort are alike to a batch.
        batches: by number.
    """

    def __init__(self, templates: Sequence[OperatorTemplate], admits: Callable[[TensorType], bool]) -> None:
        self.templates = templates
        self.types: list[TensorType] = []
        self.sorts: list[tuple[int, ValueKind]] = []
        self.batches: list[TermBatch] = []
        self._admits = admits
        self._type_numbers: dict[TensorType, int] = {}
        self._sort_numbers: dict[tuple[int, ValueKind], int] = {}
        self._batch_numbers: dict[tuple[int, tuple[int, ...]], int | None] = {}

    def type_number(self, type_: TensorType) -> int:
        """The number of a type."""
        if type_ not in self._type_numbers:
            self._type_numbers[type_] = len(self.types)
            self.types.append(type_)
        return self._type_numbers[type_]

    def sort_number(self, type_number: int, kind: ValueKind) -> int:
        """The number of a type with a kind of values."""
        if (type_number, kind) not in self._sort_numbers:
            self._sort_numbers[type_number, kind] = len(self.sorts)
            self.sorts.append((type_number, kind))
        return self._sort_numbers[type_number, kind]

    def type_of_sort(self, sort: int) -> TensorType:
        """The type of a sort."""
        return self.types[self.sorts[sort][0]]

    def batch_number(self, template: int, sorts: tuple[int, ...]) -> int | None:
        """The batch of an operator and operand sorts, or ``None`` where the application is ill-typed or not admitted."""
        key = (template, sorts)
        if key not in self._batch_numbers:
            batch = self._make(template, sorts)
            if batch is not None:
                self.batches.append(batch)
            self._batch_numbers[key] = None if batch is None else len(self.batches) - 1
        return self._batch_numbers[key]

    def _make(self, number: int, sorts: tuple[int, ...]) -> TermBatch | None:
        template = self.templates[number]
        types = tuple(map(self.type_of_sort, sorts))
        if len({t for t, slot in zip(types, template.slots, strict=True) if slot.is_var and slot.name == "same"}) > 1:
            return None  # operands of one type are wanted
        if template.operator.name == "MatMul" and min(t.rank for t in types) < 2:
            return None  # vectors have no place beside a batch axis
        try:
            outputs = template.operator.types(template.attrs, types)
        except (ShapeError, Undecided):
            return None
        if not all(map(self._admits, outputs)):
            return None
        kinds = tuple(self.sorts[s][1] for s in sorts)
        return TermBatch(number, sorts, template.operator, template.attrs, types, kinds, outputs)
