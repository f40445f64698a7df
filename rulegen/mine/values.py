"""Values of programs on random inputs for the leaves of a cone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from rulegen.mine.cone import causal_masks
from rulegen.mine.cuts import Cone
from rulegen.numeric.samples import assignments, causal_mask, specialise, types_in_numbers
from rules_db.trust.rule import Side

__all__ = ["ConeValues", "agree"]

_TOLERANCE = 1e-7
"""Relative to the largest entry, in double precision: so far apart are values that screening calls equal."""


class ConeValues:
    """Random inputs for the leaves of a cone and the values of programs on them.

    Leaves that may be the mask of causal attention get such a mask.

    Args:
        cone: of whose leaves the programs are.
        seed, turn: decide sizes and numbers.
        repeated: leaves whose last axis holds everything twice.
    """

    def __init__(self, cone: Cone, seed: int, turn: int = 0, repeated: Collection[str] = ()) -> None:
        self.sizes = assignments(cone.types, turn + 1, cone.roots)[turn]
        _, self.types = specialise(list(cone.roots), cone.types, self.sizes)
        generator = np.random.default_rng([seed, turn])
        self.inputs = {name: _draw(generator, type_) for name, type_ in self.types.items()}
        for name in repeated:
            half = self.inputs[name].shape[-1] // 2
            self.inputs[name][..., half:] = self.inputs[name][..., :half]
        for name in causal_masks(cone):
            self.inputs[name] = causal_mask(self.inputs[name].shape)

    def of(self, roots: Side) -> list[np.ndarray] | None:
        """The values, or ``None`` where the program has none."""
        programs, _ = specialise(list(roots), {}, self.sizes)
        try:
            types_in_numbers(programs, self.types)
            with np.errstate(all="ignore"):
                values = evaluate(programs, Real(), self.inputs)
        except (ShapeError, Undecided, Unsupported):
            return None
        return [np.asarray(values[program], np.float64) for program in programs]


def _draw(generator: np.random.Generator, type_: TensorType) -> np.ndarray:
    shape = concrete(type_.shape)
    assert shape is not None, type_
    if type_.dtype == DataType.BOOL:
        return generator.random(shape) < 0.5
    return generator.normal(size=shape)


def agree(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Whether the values of two programs are finite and equal up to rounding."""
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all() or not np.isfinite(y).all():
            return False
        if np.max(np.abs(x - y), initial=0.0) > _TOLERANCE * max(1e-6, float(np.max(np.abs(x), initial=0.0))):
            return False
    return True
