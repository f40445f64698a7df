"""Fingerprints of many terms at once: evaluation over a finite field and its random linear projections.

A fingerprint is linear in the value of a term. Where an operator is linear as well, the fingerprints of all its
applications are sums of what each operand contributes, computed once an operand; where it is linear in either of two
operands, the fingerprints of all pairs are one matrix product. Neither needs the results themselves. Whether an operator is
linear is found by trying, so that nothing about operators is said twice; all ways give equal fingerprints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.ops import Operator, get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType, evaluate_dim
from mugraph.terms.term import Term

__all__ = ["EVALUATIONS", "BatchField", "Block", "Evaluation", "Kind", "concrete_value", "mix", "operand_rank_pad"]

Kind = Literal["pair", "residue", "bool"]
"""Pairs of residues, residues below an exponential or another opaque function, truth values."""

Degree = Literal["linear", "bilinear", "other"]

EVALUATIONS = 3
_NEGATIVE = (0.5, 0.7, 0.93, 0.5)
"""Fraction of residues ordered below zero, one per evaluation: with a single threshold false merges survive relu."""

_CHUNK = 1 << 18
"""Field elements computed at once: bounds the memory, not the outcome."""

_EXACT_TERMS = 512
"""Products of two residues whose sum float64 holds exactly."""

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def mix(state: np.ndarray | int, value: np.ndarray | int) -> np.ndarray:
    """A pseudo-random function of two 64-bit words (splitmix64), elementwise."""
    with np.errstate(over="ignore"):
        x = (np.asarray(state, np.uint64) * _MIX[2]) ^ (np.asarray(value, np.uint64) + _MIX[0])
        x = (x ^ (x >> np.uint64(30))) * _MIX[1]
        x = (x ^ (x >> np.uint64(27))) * _MIX[2]
        mixed: np.ndarray = x ^ (x >> np.uint64(31))
        return mixed


@lru_cache(maxsize=4096)
def _word(type_: TensorType) -> int:
    return int.from_bytes(hashlib.blake2b(str(type_).encode(), digest_size=8).digest(), "little")


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
    """What a fingerprint sees: the residues modulo p, or truth values as 0 and 1."""
    return value.p if isinstance(value, FieldArray) else np.asarray(value, np.float64)


@dataclass(frozen=True, slots=True)
class Block:
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
    kinds: tuple[Kind, ...]
    types: tuple[TensorType, ...]


class Evaluation:
    """One choice of sizes, random inputs, prime and order. Values are [programs, samples, *shape].

    Args:
        seed: of all that is random.
        number: which evaluation; it decides the prime and the order.
        sizes: of the dimension symbols.
        samples: inputs per program.
    """

    def __init__(self, seed: int, number: int, sizes: Mapping[str, int], samples: int) -> None:
        self.sizes, self.samples = sizes, samples
        field_seed = int(np.random.default_rng([seed, number, 0xF1E1D]).integers(1 << 62))
        self.field = BatchField(field_seed, number, _NEGATIVE[number])
        self.p = self.field.p
        self._seed = [seed, number]
        self._generator = np.random.default_rng(self._seed)
        self._across = np.random.default_rng([*self._seed, 0xAC]).integers(1, self.p, (samples, 3)).astype(np.float64)
        self._shapes: dict[TensorType, tuple[int, ...]] = {}
        self._weights: dict[TensorType, np.ndarray] = {}
        self._degrees: dict[tuple[int, tuple[int, ...]], Degree] = {}
        self._bilinear: dict[tuple[int, tuple[int, ...], int], np.ndarray] = {}

    def shape(self, type_: TensorType) -> tuple[int, ...]:
        if type_ not in self._shapes:
            self._shapes[type_] = tuple(int(evaluate_dim(d, self.sizes)) for d in type_.shape)  # type: ignore[arg-type]
        return self._shapes[type_]

    def entries(self, type_: TensorType) -> int:
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

    def apply(self, block: Block, values: list[Array]) -> tuple[list[Array], np.ndarray]:
        """The outputs for rows of operands, and which rows are undefined.

        Raises:
            Unsupported: the operator has no meaning in the field.
        """
        leading = tuple(values[0].shape[:2])
        self.field.start(leading[0])
        attrs = tuple((name, concrete_value(value, self.sizes)) for name, value in block.attrs)
        results = block.operator.run(self.field, attrs, operand_rank_pad(block.operator, attrs, values))
        full = []
        for result, type_ in zip(results, block.types, strict=True):  # what does not depend on the batch comes smaller
            shape = (*leading, *self.shape(type_))
            full.append(_map(lambda x, shape=shape: np.broadcast_to(x, shape), result))  # type: ignore[misc]
        return full, self.field.undefined

    # Fingerprints

    def _projection(self, type_: TensorType) -> np.ndarray:
        """Random weights of the entries of a type [entries, 3]."""
        if type_ not in self._weights:
            generator = np.random.default_rng([*self._seed, _word(type_)])
            self._weights[type_] = generator.integers(1, self.p, (self.entries(type_), 3)).astype(np.float64)
        return self._weights[type_]

    def _project(self, value: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Projects entries and then samples: [programs, samples, ...] with weights [entries, 3] to [programs, 3]."""
        flat = value.reshape(len(value), self.samples, -1)
        projected: np.ndarray = np.mod((np.mod(flat @ weights, self.p) * self._across % self.p).sum(axis=1), self.p)
        return projected

    def _keys(self, projected: np.ndarray, type_: TensorType) -> np.ndarray:
        """64 bits from three residues and the type."""
        word: np.ndarray = projected.astype(np.uint64)
        return mix(word[..., 0] | (word[..., 1] << np.uint64(22)) | (word[..., 2] << np.uint64(44)), _word(type_))

    def fingerprint(self, value: Array, type_: TensorType) -> np.ndarray:
        """64 bits a program, of the residues modulo p and the type."""
        return self._keys(self._project(residues(value), self._projection(type_)), type_)

    def uniform(self, type_: TensorType, entry: int) -> int:
        """The fingerprint of a tensor of equal entries."""
        value = np.full((1, self.samples, self.entries(type_)), float(entry))
        return int(self.fingerprint(value, type_)[0])

    # Linear and bilinear operators

    def degree(self, block: Block) -> Degree:
        """``linear`` in all operands together, ``bilinear`` in two, or ``other``; found by trying random operands."""
        key = (block.template, block.sorts)
        if key not in self._degrees:
            try:
                self._degrees[key] = self._degree(block)
            except Unsupported:
                self._degrees[key] = "other"
        return self._degrees[key]

    def _degree(self, block: Block) -> Degree:
        if "bool" in (*block.kinds, *("bool" for t in block.types if t.dtype == DataType.BOOL)):
            return "other"
        generator, count = np.random.default_rng([*self._seed, 0xD]), 16

        def draw() -> list[FieldArray]:
            shapes = [(count, self.samples, *self.shape(t)) for t in block.inputs]
            drawn = [self.field.random(generator, shape) for shape in shapes]
            return [x if kind == "pair" else FieldArray(x.p, None) for x, kind in zip(drawn, block.kinds, strict=True)]

        def blend(a: FieldArray, b: FieldArray) -> FieldArray:
            return self.field.add(a, self.field.mul(b, self.field.const(factor)))  # type: ignore[no-any-return]

        def run(values: list[FieldArray]) -> list[np.ndarray]:
            return [residues(result) for result in self.apply(block, list(values))[0]]

        factor = int(generator.integers(2, 1 << 20))
        a, b = draw(), draw()

        def linear_in(positions: Sequence[int]) -> bool:
            other = [b[i] if i in positions else a[i] for i in range(len(a))]
            both = [blend(a[i], b[i]) if i in positions else a[i] for i in range(len(a))]
            results = zip(run(both), run(list(a)), run(other), strict=True)
            return all(np.array_equal(x, (y + z * factor) % self.p) for x, y, z in results)

        if linear_in(range(len(a))):
            return "linear"
        return "bilinear" if len(a) == 2 and linear_in([0]) and linear_in([1]) else "other"

    def _basis(self, type_: TensorType, rows: np.ndarray) -> np.ndarray:
        """Tensors of one entry 1: [rows, 1, *shape]."""
        value = np.zeros((len(rows), self.entries(type_)))
        value[np.arange(len(rows)), rows] = 1
        return value.reshape(len(rows), 1, *self.shape(type_))

    def linear_parts(
        self, block: Block, position: int, outs: Sequence[int], value: Callable[[slice], np.ndarray], count: int
    ) -> list[np.ndarray]:
        """What an operand contributes to the fingerprints of a linear operator's outputs: [count, 3] for each of ``outs``.

        Args:
            value: residues of a slice of the operand's ``count`` rows.
        """
        operands: list[Array] = []
        size = self.entries(block.inputs[position])
        for i, type_ in enumerate(block.inputs):
            basis = self._basis(type_, np.arange(size)) if i == position else np.zeros((size, 1, *self.shape(type_)))
            operands.append(FieldArray(basis, None))
        images, _ = self.apply(block, operands)
        weights = [np.mod(residues(images[out]).reshape(size, -1) @ self._projection(block.types[out]), self.p) for out in outs]
        parts: list[list[np.ndarray]] = [[] for _ in weights]
        step = max(1, _CHUNK // (self.samples * size))
        for start in range(0, count, step):
            piece = value(slice(start, min(start + step, count)))
            for part, weight in zip(parts, weights, strict=True):
                part.append(self._project(piece, weight))
        return [np.concatenate(part) for part in parts]

    def linear_keys(self, block: Block, out: int, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Fingerprints from the contributions of all operands."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return self._keys(np.mod(total, self.p) if len(parts) > 1 else total, block.types[out])

    def bilinear_weights(self, block: Block, out: int, fixed: int, value: np.ndarray) -> np.ndarray:
        """For rows of one operand the weights of the other: [samples * entries of the other, rows * 3]."""
        other = 1 - fixed
        table = self._table(block, out)  # entries of operand 0 and 1, and three projections
        table = table if other == 0 else table.transpose(1, 0, 2)  # other, fixed, 3
        rows, size = len(value), table.shape[0]
        flat = value.reshape(rows * self.samples, -1)
        weights = np.mod(flat @ table.transpose(1, 0, 2).reshape(flat.shape[1], -1), self.p)
        weights = np.mod(weights.reshape(rows, self.samples, size, 3) * self._across[:, None, :], self.p)
        return np.ascontiguousarray(weights.transpose(1, 2, 0, 3).reshape(self.samples * size, rows * 3))

    def bilinear_keys(self, block: Block, out: int, value: np.ndarray, weights: np.ndarray) -> Callable[..., np.ndarray]:
        """Fingerprints of all pairs, as a function of pairs of positions."""
        flat, projected = value.reshape(len(value), -1), np.zeros((len(value), weights.shape[1]))
        for start in range(0, flat.shape[1], _EXACT_TERMS):
            piece = slice(start, start + _EXACT_TERMS)
            projected = np.mod(projected + flat[:, piece] @ weights[piece], self.p)
        pairs = projected.reshape(len(value), -1, 3)
        return lambda i, j: self._keys(pairs[i, j], block.types[out])

    def bilinear_effort(self, block: Block) -> int:
        """Applications that the table of a bilinear operator takes."""
        return self.entries(block.inputs[0]) * self.entries(block.inputs[1])

    def _table(self, block: Block, out: int) -> np.ndarray:
        """Projections of the operator at all pairs of basis tensors."""
        key = (block.template, block.sorts, out)
        if key not in self._bilinear:
            first, second = (self.entries(t) for t in block.inputs)
            size = self.entries(block.types[out])
            table, step = np.empty((first * second, 3)), max(1, _CHUNK // max(size, first, second))
            for start in range(0, first * second, step):
                pairs = np.arange(start, min(start + step, first * second))
                values = [self._basis(block.inputs[0], pairs // second), self._basis(block.inputs[1], pairs % second)]
                results, _ = self.apply(block, [FieldArray(v, None) for v in values])
                flat = residues(results[out]).reshape(len(pairs), -1)
                table[pairs] = np.mod(flat @ self._projection(block.types[out]), self.p)
            self._bilinear[key] = table.reshape(first, second, 3)
        return self._bilinear[key]
