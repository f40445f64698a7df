"""Counterexamples in small whole numbers, to be read by people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from rulegen.numeric.samples import BeyondNumbers, assignments, specialise, types_in_numbers
from rules_db.trust.rule import Side

__all__ = ["Difference", "differ"]

# Counterexamples


@dataclass(frozen=True)
class Difference:
    """Inputs for which two programs give different numbers.

    Attributes:
        inputs: values of the variables.
        output: which of the outputs differs.
        index: the first entry that does.
        left, right: that entry on both sides.
    """

    inputs: Mapping[str, np.ndarray]
    output: int
    index: tuple[int, ...]
    left: float
    right: float

    def as_json(self) -> dict[str, Any]:
        small = {name: value.tolist() for name, value in self.inputs.items() if value.size <= 64}
        return {
            "shapes": {name: list(value.shape) for name, value in self.inputs.items()},
            "output": self.output,
            "index": list(self.index),
            "source": self.left,
            "target": self.right,
            "inputs": small,
        }

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}: {list(value.shape)}" for name, value in self.inputs.items())
        return f"with {shapes}, entry {list(self.index)} of output {self.output} is {self.left:g} and {self.right:g}"


_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""


def _sizes(roots: Side, types: Mapping[str, TensorType]) -> list[dict[str, int]]:
    """Small ones first: a counterexample is there to be read."""
    distinct = assignments(types, 2, roots)
    return [{name: size for name in distinct[0]} for size in ((1, 2) if distinct[0] else ())] + distinct


def differ(source: Side, target: Side, types: Mapping[str, TensorType], seed: int = 0) -> Difference | None:
    """Looks for small whole numbers on which two programs differ; ``None`` where they agree on all that were tried.

    Entries that are not finite on either side say nothing: laws hold for finite numbers.

    Raises:
        BeyondNumbers: nothing was tried, because values are too large at all sizes.
    """
    half, tried, too_large = len(source), False, None
    for turn, sizes in enumerate(_sizes((*source, *target), types)):
        programs, sample = specialise([*source, *target], types, sizes)
        try:
            types_in_numbers(programs, sample)
        except BeyondNumbers as problem:
            too_large = problem
            continue
        except (ShapeError, Undecided):
            continue
        tried = True
        for draw in range(3):
            generator = np.random.default_rng([seed, turn, draw])
            inputs = {name: _draw(generator, type_, draw) for name, type_ in sample.items()}
            try:
                with np.errstate(all="ignore"):
                    values = evaluate(programs, Real(), inputs)
            except Unsupported:
                break
            for output in range(half):
                x, y = np.broadcast_arrays(np.asarray(values[programs[output]]), np.asarray(values[programs[half + output]]))
                x, y = x.astype(np.float64), y.astype(np.float64)
                finite = np.isfinite(x) & np.isfinite(y)
                scale = max(float(np.max(np.abs(x), where=finite, initial=0)), float(np.max(np.abs(y), where=finite, initial=0)))
                with np.errstate(all="ignore"):
                    wrong = np.argwhere((np.abs(x - y) > _TOLERANCE * scale) & finite)
                if len(wrong):
                    index = tuple(int(i) for i in wrong[0])
                    return Difference(inputs, output, index, float(x[index]), float(y[index]))
    if too_large is not None and not tried:
        raise too_large
    return None


def _draw(generator: np.random.Generator, type_: TensorType, draw: int) -> np.ndarray:
    """Whole numbers of both signs, or positive ones in the last draw and where the type has no others."""
    shape = concrete(type_.shape)
    assert shape is not None
    if type_.dtype == DataType.BOOL:
        return np.asarray(generator.integers(0, 2, shape).astype(bool))
    values = generator.integers(1, 6, shape)
    positive = draw == 2 or type_.dtype.name.startswith("UINT")
    return np.asarray(values if positive else values * generator.choice([-1, 1], shape), np.float64)
