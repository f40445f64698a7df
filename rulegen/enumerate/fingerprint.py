"""Fingerprints of many terms at once: random linear projections of their values, mixed with their types."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from mugraph.domains.base import Array
from mugraph.terms.shape import TensorType
from rulegen.enumerate.evaluation import Evaluation, residues

__all__ = ["Fingerprints", "mix"]

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


class Fingerprints:
    """Fingerprints under one evaluation: 64 bits of three projections of a value, and of its type."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        across = np.random.default_rng([*evaluation.seed, 0xAC]).integers(1, evaluation.p, (evaluation.samples, 3))
        self.across = across.astype(np.float64)
        """Random weights of the samples [samples, 3]."""
        self._weights: dict[TensorType, np.ndarray] = {}

    def of(self, value: Array, type_: TensorType) -> np.ndarray:
        """A fingerprint for each program, of the residues modulo p and the type."""
        return self.finish(self.project(residues(value), self.projection(type_)), type_)

    def uniform(self, type_: TensorType, entry: int) -> int:
        """The fingerprint of a tensor of equal entries."""
        value = np.full((1, self.evaluation.samples, self.evaluation.entries(type_)), float(entry))
        return int(self.of(value, type_)[0])

    def projection(self, type_: TensorType) -> np.ndarray:
        """Random weights of the entries of a type [entries, 3]."""
        if type_ not in self._weights:
            generator = np.random.default_rng([*self.evaluation.seed, _word(type_)])
            weights = generator.integers(1, self.evaluation.p, (self.evaluation.entries(type_), 3))
            self._weights[type_] = weights.astype(np.float64)
        return self._weights[type_]

    def project(self, value: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Projects entries and then samples: [programs, samples, ...] with weights [entries, 3] to [programs, 3]."""
        p = self.evaluation.p
        flat = value.reshape(len(value), self.evaluation.samples, -1)
        projected: np.ndarray = np.mod((np.mod(flat @ weights, p) * self.across % p).sum(axis=1), p)
        return projected

    def finish(self, projected: np.ndarray, type_: TensorType) -> np.ndarray:
        """Fingerprints from three residues [..., 3] and the type."""
        word: np.ndarray = projected.astype(np.uint64)
        return mix(word[..., 0] | (word[..., 1] << np.uint64(22)) | (word[..., 2] << np.uint64(44)), _word(type_))
