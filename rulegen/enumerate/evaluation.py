"""Evaluation of many terms at once over a finite field: one choice of sizes, random inputs, prime and order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mugraph.domains.base import Array
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.ops import Operator, get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType, evaluate_dim
from mugraph.terms.term import Term

__all__ = ["EVALUATIONS", "BatchField", "Evaluation", "TermBatch", "ValueKind", "concrete_value", "operand_rank_pad", "residues"]

ValueKind = Literal["pair", "residue", "bool"]
"""Pairs of residues, residues below an exponential or another opaque function, truth values."""

EVALUATIONS = 3
"""Of every term with company; large groups have a fourth where the order of residues matters."""
_NEGATIVE = (0.5, 0.7, 0.93, 0.5)
"""Fraction of residues ordered below zero, one per evaluation: with a single threshold false merges survive relu."""


def concrete_value(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute value with the dimension symbols replaced by sizes."""
    if isinstance(value, tuple):
        return tuple(concrete_value(item, sizes) for item in value)
    return evaluate_dim(value, sizes) if isinstance(value, SymDim) else value


class BatchField(FiniteField):
    """A finite field in which the first axis counts programs: a zero divisor spoils its own program only.

    The second axis of all values counts independent inputs.
    """

    undefined: np.ndarray

    def start(self, count: int) -> None:
        """Prepares for a batch of ``count`` programs, none of them undefined so far."""
        self.undefined = np.zeros(count, bool)

    def div(self, a: Any, b: Any) -> Any:
        zero = b.p == 0 if b.q is None else (b.p == 0) | (b.q == 0)
        if zero.any():
            self.undefined |= zero.reshape(zero.shape[0], -1).any(axis=1) if zero.ndim else True
            b = FieldArray(np.where(zero, 1, b.p), None if b.q is None else np.where(zero, 1, b.q))
        return super().div(a, b)


def operand_rank_pad(operator: Operator, attrs: tuple[tuple[str, Any], ...], values: list[Array]) -> list[Array]:
    """Inserts axes of size 1 after the two leading axes, so that operands of unequal rank broadcast from the right."""
    if not operator.elementwise and operator.name not in ("MatMul", "Gemm", "Expand"):
        return values
    rank = max([len(v.shape) for v in values] + [2 + len(dict(attrs).get("shape", ()))])

    def pad(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[:2] + (1,) * (rank - x.ndim) + x.shape[2:])

    return [_map(pad, v) for v in values]


def _map(function: Callable[[np.ndarray], np.ndarray], value: Array) -> Array:
    """A function of arrays, applied to all parts of a value."""
    if isinstance(value, FieldArray):
        return FieldArray(function(value.p), None if value.q is None else function(value.q))
    return function(value)


def residues(value: Array) -> np.ndarray:
    """The part of a value that a fingerprint sees: the residues modulo p, or truth values as 0 and 1."""
    return value.p if isinstance(value, FieldArray) else np.asarray(value, np.float64)


@dataclass(frozen=True, slots=True)
class TermBatch:
    """Applications of one operator to operands of given types, which differ in the operands only.

    Attributes:
        template: number of the operator among those of the workload; ``sorts``: types and kinds of the operands.
        operator, attrs: of the template.
        inputs, kinds, types: types and kinds of the operands, types of the outputs.
    """

    template: int
    sorts: tuple[int, ...]
    operator: Operator
    attrs: tuple[tuple[str, Any], ...]
    inputs: tuple[TensorType, ...]
    kinds: tuple[ValueKind, ...]
    types: tuple[TensorType, ...]


class Evaluation:
    """One choice of sizes, random inputs, prime and order. Values are [programs, samples, *shape].

    Args:
        seed: of all that is random.
        number: of the evaluation; it decides the prime and the order.
        sizes: of the dimension symbols.
        samples: inputs per program.
    """

    def __init__(self, seed: int, number: int, sizes: Mapping[str, int], samples: int) -> None:
        self.seed = [seed, number]
        self.sizes, self.samples = sizes, samples
        field_seed = int(np.random.default_rng([seed, number, 0xF1E1D]).integers(1 << 62))
        self.field = BatchField(field_seed, number, _NEGATIVE[number])
        self.p = self.field.p
        self._generator = np.random.default_rng(self.seed)
        self._shapes: dict[TensorType, tuple[int, ...]] = {}

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        """The sizes of a type's dimensions."""
        if type_ not in self._shapes:
            self._shapes[type_] = tuple(int(evaluate_dim(d, self.sizes)) for d in type_.shape)  # type: ignore[arg-type]
        return self._shapes[type_]

    def entries(self, type_: TensorType) -> int:
        """The number of a type's entries."""
        return int(np.prod(self.shape(type_)))

    def leaf(self, leaf: Term, type_: TensorType, exponentials: bool) -> Array:
        """The value of a variable or a constant, as one program."""
        shape = (1, self.samples, *self.shape(type_))
        if leaf.is_var:
            if type_.dtype == DataType.BOOL:
                return self._generator.integers(0, 2, shape).astype(bool)
            value = self.field.random(self._generator, shape)
        elif leaf.op == "Const":  # an exponent is recognised by both residues
            return _map(lambda x: np.broadcast_to(x, shape), self.field.const(leaf.attr("value")))
        else:
            attrs = tuple((name, concrete_value(v, self.sizes)) for name, v in leaf.attrs)
            value = _map(lambda x: np.broadcast_to(x, shape), get_operator(leaf.op).run(self.field, attrs, [])[leaf.out])
        return value if exponentials else FieldArray(value.p, None)

    def apply(self, batch: TermBatch, values: list[Array]) -> tuple[list[Array], np.ndarray]:
        """The outputs for rows of operands, and which rows are undefined.

        Raises:
            Unsupported: the operator has no meaning in the field.
        """
        leading = tuple(values[0].shape[:2])
        self.field.start(leading[0])
        attrs = tuple((name, concrete_value(value, self.sizes)) for name, value in batch.attrs)
        results = batch.operator.run(self.field, attrs, operand_rank_pad(batch.operator, attrs, values))
        full = []
        for result, type_ in zip(results, batch.types, strict=True):  # what does not depend on the batch comes smaller
            shape = (*leading, *self.shape(type_))
            full.append(_map(lambda x, shape=shape: np.broadcast_to(x, shape), result))  # type: ignore[misc]
        return full, self.field.undefined
