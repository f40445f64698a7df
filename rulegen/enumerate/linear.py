"""Fingerprints of linear and bilinear operators' results, made without the results.

A fingerprint is linear in the value of a term. Where an operator is linear as well, the fingerprints of all its
applications are sums of contributions of the operands, each computed once; where it is linear in either of two operands, the
fingerprints of all pairs are one matrix product. Whether an operator is linear is found by trying, so that nothing about
operators is said twice; all ways give equal fingerprints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FieldArray
from mugraph.terms.shape import DataType, TensorType
from rulegen.enumerate.evaluation import TermBatch, residues
from rulegen.enumerate.fingerprint import Fingerprints

__all__ = ["Degree", "LinearFingerprints"]

Degree = Literal["linear", "bilinear", "other"]

_CHUNK = 1 << 18
"""Field elements computed at once: bounds the memory, not the outcome."""
_EXACT_TERMS = 512
"""Products of two residues whose sum float64 holds exactly."""
_TRIALS = 16
"""Random operands on which an operator is tried for being linear."""


class LinearFingerprints:
    """Fingerprints of applications of linear and bilinear operators, under the evaluation of ``fingerprints``."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self.fingerprints, self.evaluation = fingerprints, fingerprints.evaluation
        self._degrees: dict[tuple[int, tuple[int, ...]], Degree] = {}
        self._tables: dict[tuple[int, tuple[int, ...], int], np.ndarray] = {}

    def degree(self, batch: TermBatch) -> Degree:
        """``linear`` in all operands together, ``bilinear`` in two, or ``other``."""
        key = (batch.template, batch.sorts)
        if key not in self._degrees:
            try:
                self._degrees[key] = self._tried_degree(batch)
            except Unsupported:
                self._degrees[key] = "other"
        return self._degrees[key]

    def _tried_degree(self, batch: TermBatch) -> Degree:
        if "bool" in (*batch.kinds, *("bool" for t in batch.types if t.dtype == DataType.BOOL)):
            return "other"
        evaluation, field = self.evaluation, self.evaluation.field
        generator = np.random.default_rng([*evaluation.seed, 0xD])

        def draw() -> list[FieldArray]:
            shapes = [(_TRIALS, evaluation.samples, *evaluation.shape(t)) for t in batch.inputs]
            drawn = [field.random(generator, shape) for shape in shapes]
            return [x if kind == "pair" else FieldArray(x.p, None) for x, kind in zip(drawn, batch.kinds, strict=True)]

        def blend(a: FieldArray, b: FieldArray) -> FieldArray:
            return field.add(a, field.mul(b, field.const(factor)))  # type: ignore[no-any-return]

        def run(values: list[FieldArray]) -> list[np.ndarray]:
            return [residues(result) for result in evaluation.apply(batch, list(values))[0]]

        factor = int(generator.integers(2, 1 << 20))
        a, b = draw(), draw()

        def linear_in(positions: Sequence[int]) -> bool:
            other = [b[i] if i in positions else a[i] for i in range(len(a))]
            both = [blend(a[i], b[i]) if i in positions else a[i] for i in range(len(a))]
            results = zip(run(both), run(list(a)), run(other), strict=True)
            return all(np.array_equal(x, (y + z * factor) % evaluation.p) for x, y, z in results)

        if linear_in(range(len(a))):
            return "linear"
        return "bilinear" if len(a) == 2 and linear_in([0]) and linear_in([1]) else "other"

    def contributions(
        self, batch: TermBatch, position: int, outs: Sequence[int], value: Callable[[slice], np.ndarray], count: int
    ) -> list[np.ndarray]:
        """The share of an operand in the fingerprints of a linear operator's outputs: [count, 3] for each of ``outs``.

        Args:
            batch: of the operator.
            position: of the operand.
            outs: numbers of the outputs.
            value: residues of a slice of the operand's ``count`` rows.
            count: rows.
        """
        operands: list[Array] = []
        size, p = self.evaluation.entries(batch.inputs[position]), self.evaluation.p
        for i, type_ in enumerate(batch.inputs):
            zeros = np.zeros((size, 1, *self.evaluation.shape(type_)))
            operands.append(FieldArray(self._basis(type_, np.arange(size)) if i == position else zeros, None))
        images, _ = self.evaluation.apply(batch, operands)
        weights = [
            np.mod(residues(images[out]).reshape(size, -1) @ self.fingerprints.projection(batch.types[out]), p) for out in outs
        ]
        parts: list[list[np.ndarray]] = [[] for _ in weights]
        step = max(1, _CHUNK // (self.evaluation.samples * size))
        for start in range(0, count, step):
            piece = value(slice(start, min(start + step, count)))
            for part, weight in zip(parts, weights, strict=True):
                part.append(self.fingerprints.project(piece, weight))
        return [np.concatenate(part) for part in parts]

    def linear_keys(self, batch: TermBatch, out: int, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Fingerprints from the contributions of all operands."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return self.fingerprints.finish(np.mod(total, self.evaluation.p) if len(parts) > 1 else total, batch.types[out])

    def bilinear_weights(self, batch: TermBatch, out: int, fixed: int, value: np.ndarray) -> np.ndarray:
        """For rows of one operand the weights of the other: [samples * entries of the other, rows * 3]."""
        p, samples = self.evaluation.p, self.evaluation.samples
        table = self._table(batch, out)  # entries of operand 0 and 1, and three projections
        table = table if fixed == 1 else table.transpose(1, 0, 2)  # other, fixed, 3
        rows, size = len(value), table.shape[0]
        flat = value.reshape(rows * samples, -1)
        weights = np.mod(flat @ table.transpose(1, 0, 2).reshape(flat.shape[1], -1), p)
        weights = np.mod(weights.reshape(rows, samples, size, 3) * self.fingerprints.across[:, None, :], p)
        return np.ascontiguousarray(weights.transpose(1, 2, 0, 3).reshape(samples * size, rows * 3))

    def bilinear_keys(self, batch: TermBatch, out: int, value: np.ndarray, weights: np.ndarray) -> Callable[..., np.ndarray]:
        """Fingerprints of all pairs, as a function of pairs of positions."""
        flat, projected = value.reshape(len(value), -1), np.zeros((len(value), weights.shape[1]))
        for start in range(0, flat.shape[1], _EXACT_TERMS):
            piece = slice(start, start + _EXACT_TERMS)
            projected = np.mod(projected + flat[:, piece] @ weights[piece], self.evaluation.p)
        pairs = projected.reshape(len(value), -1, 3)
        return lambda i, j: self.fingerprints.finish(pairs[i, j], batch.types[out])

    def bilinear_effort(self, batch: TermBatch) -> int:
        """Applications that the table of a bilinear operator takes."""
        return self.evaluation.entries(batch.inputs[0]) * self.evaluation.entries(batch.inputs[1])

    def _table(self, batch: TermBatch, out: int) -> np.ndarray:
        """Projections of the operator at all pairs of basis tensors."""
        key = (batch.template, batch.sorts, out)
        if key not in self._tables:
            first, second = (self.evaluation.entries(t) for t in batch.inputs)
            size = self.evaluation.entries(batch.types[out])
            table, step = np.empty((first * second, 3)), max(1, _CHUNK // max(size, first, second))
            for start in range(0, first * second, step):
                pairs = np.arange(start, min(start + step, first * second))
                values = [self._basis(batch.inputs[0], pairs // second), self._basis(batch.inputs[1], pairs % second)]
                results, _ = self.evaluation.apply(batch, [FieldArray(v, None) for v in values])
                flat = residues(results[out]).reshape(len(pairs), -1)
                table[pairs] = np.mod(flat @ self.fingerprints.projection(batch.types[out]), self.evaluation.p)
            self._tables[key] = table.reshape(first, second, 3)
        return self._tables[key]

    def _basis(self, type_: TensorType, rows: np.ndarray) -> np.ndarray:
        """Tensors of one entry 1: [rows, 1, *shape]."""
        value = np.zeros((len(rows), self.evaluation.entries(type_)))
        value[np.arange(len(rows)), rows] = 1
        return value.reshape(len(rows), 1, *self.evaluation.shape(type_))
