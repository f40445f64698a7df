"""ValueFingerprints of values: all of a level at once, over a pair of finite fields.

Every value is an array over all axes, broadcast along those that it has not, so that one operation of one level is one call for
all of its values. Residues are below 2^22, which float32 holds exactly; sums are made in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from mugraph.domains.field import FieldArray, FiniteField, ZeroDivision
from mugraph.ops import get_operator
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values

__all__ = ["ValueFingerprints"]


class ValueFingerprints:
    """The residues of values at random inputs.

    Args:
        values: more of them may be entered later.
        inputs: of each tensor the axes, in the order of its dimensions.
        sizes: of each axis, small ones.
        field: the pair of fields; its seed is that of the inputs, too.
    """

    def __init__(self, values: Values, inputs: Mapping[str, Sequence[str]], sizes: Mapping[str, int], field: FiniteField) -> None:
        self._values, self._inputs, self._sizes = values, inputs, dict(sizes)
        self._axes = sorted(sizes)
        self._field, self._seed = field, field.seed
        entries = int(np.prod(list(sizes.values()), dtype=np.int64))
        self._shape = tuple(sizes[axis] for axis in self._axes)
        self._p = np.zeros((64, entries), np.float32)
        self._q = np.zeros((64, entries), np.float32)
        self._state = np.zeros(64, np.int8)

    def of(self, wanted: Iterable[Value]) -> list[np.ndarray | None]:
        """The residues of some values, [entries]; ``None`` of one that divides by zero."""
        wanted = list(wanted)
        self._grow()
        missing = [value for value in self._values.needed(*wanted) if self._state[value.number] == _UNKNOWN]
        missing.sort(key=lambda value: len(value.closure))  # by levels, of which none takes another of its own
        for _, level in groupby(missing, key=lambda value: len(value.closure)):
            groups: dict[object, list[Value]] = {}
            for value in level:
                states = tuple(self._state[operand] for operand in value.operands)
                groups.setdefault((value.operation, states), []).append(value)
            for group in groups.values():
                self._enter(group)
        return [self._p[value.number] if self._state[value.number] != _NONE else None for value in wanted]

    def _grow(self) -> None:
        count = len(self._values)
        if count > len(self._state):
            more = max(count, 2 * len(self._state)) - len(self._state)
            self._p, self._q = (np.pad(x, ((0, more), (0, 0))) for x in (self._p, self._q))
            self._state = np.pad(self._state, (0, more))

    def _enter(self, group: Sequence[Value]) -> None:
        """Computes values of one operation."""
        numbers = np.array([value.number for value in group])
        operands = [np.array([value.operands[i] for value in group]) for i in range(len(group[0].operands))]
        if any((self._state[operand] == _NONE).any() for operand in operands):
            self._state[numbers] = _NONE
            return
        try:
            result = self._result(group[0].operation, [self._read(operand) for operand in operands])
        except ZeroDivision:
            if len(group) == 1:
                self._state[numbers] = _NONE
            else:
                self._enter(group[: len(group) // 2])
                self._enter(group[len(group) // 2 :])
            return
        self._p[numbers] = np.broadcast_to(result.p, (len(group), *self._shape)).reshape(len(group), -1)
        self._state[numbers] = _ONE if result.q is None else _BOTH
        if result.q is not None:
            self._q[numbers] = np.broadcast_to(result.q, (len(group), *self._shape)).reshape(len(group), -1)

    def _read(self, numbers: np.ndarray) -> FieldArray:
        shape = (len(numbers), *self._shape)
        has_q = self._state[numbers[0]] == _BOTH
        p, q = self._p[numbers].astype(np.float64).reshape(shape), self._q[numbers].astype(np.float64).reshape(shape)
        return FieldArray(p, q if has_q else None)

    def _result(self, operation: Operation, operands: Sequence[FieldArray]) -> FieldArray:
        field = self._field
        match operation.kind:
            case ValueKind.TENSOR:
                return self._input(operation.name)
            case ValueKind.NUMBER:
                number: FieldArray = field.const(float(operation.name))
                return number
            case ValueKind.SIZE:
                size: FieldArray = field.const(self._sizes[operation.axis])
                return size
            case ValueKind.ENTRYWISE:
                result: FieldArray = get_operator(operation.name).run(field, operation.attrs, operands)[0]
                return result
            case ValueKind.SHIFTED:
                weights: FieldArray = field.exp(operands[0])
                return weights
        place = (self._axes.index(operation.axis) - len(self._axes),)
        combine = {ValueKind.MAX: field.max, ValueKind.MIN: field.min}.get(operation.kind, field.sum)
        combined: FieldArray = combine(field.mul(*operands) if operation.kind is ValueKind.DOT else operands[0], place, True)
        return combined

    def _input(self, tensor: str) -> FieldArray:
        """Random residues, which the tensor's name and the seed tell."""
        generator = np.random.default_rng([self._seed, *tensor.encode()])
        axes = self._inputs[tensor]
        drawn = self._field.random(generator, tuple(self._sizes[axis] for axis in axes))
        order = sorted(range(len(axes)), key=lambda place: axes[place])
        shape = tuple(self._sizes[axis] if axis in axes else 1 for axis in self._axes)
        moved: FieldArray = self._field.move(lambda x: np.transpose(x, order).reshape(shape), drawn)
        return moved


_UNKNOWN, _ONE, _BOTH, _NONE = range(4)
"""What is held of a value: nothing yet, its residues by p, by p and q, nothing ever."""
