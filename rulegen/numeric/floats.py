"""The effect of a rule on floats: the worst error on random inputs decides its float class."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.domains.real import Real
from mugraph.ops import traits_of
from mugraph.ops.interp import evaluate, infer_types, taken_apart
from mugraph.terms.shape import DataType, TensorType, evaluate_dim
from mugraph.terms.term import Term, substitute, walk
from rulegen.candidate import CandidateRule
from rulegen.numeric.samples import arrange, dim_sizes, specialise, types_in_numbers, whole_numbers
from rules_db.trust.condition import Condition
from rules_db.trust.rule import FloatClass, dim_symbols

__all__ = ["FloatVerdict", "ReproducibleReal", "float_test"]


@dataclass(frozen=True)
class FloatVerdict:
    """The effect of a rule on floats.

    Attributes:
        float_class: the effect, or ``None`` where the answer is lost.
        error32, error16: worst error of the target relative to the source's largest entry, in float32 and float16.
        guarded: the sides agree on positive inputs only, so that a proof without a condition on values is wrong.
    """

    float_class: FloatClass | None
    error32: float
    error16: float
    guarded: bool

    def provenance(self) -> dict[str, str]:
        """The errors as a rule's provenance has them."""
        return {"err32": f"{self.error32:.0e}", "err16": f"{self.error16:.0e}"}


_LOST = {np.dtype(np.float32): 1e-3, np.dtype(np.float16): 0.1}


class ReproducibleReal(Real):
    """Floats with which every machine comes to the same results, whatever instructions it has.

    NumPy's functions differ in the last place between instruction sets, and a product adds up as suits the processor. Here
    functions are computed in float64 and rounded once, and products are added up in order, those of float16 in float32.
    """

    def apply(self, function: str, *operands: Any) -> Any:
        result = super().apply(function, *(a.astype(np.float64) if a.dtype.kind == "f" else a for a in operands))
        with np.errstate(all="ignore"):
            return result.astype(operands[0].dtype)

    def matmul(self, a: Any, b: Any) -> Any:
        if a.dtype.kind != "f" or b.dtype.kind != "f":
            return super().matmul(a, b)
        rows, columns = np.atleast_2d(a), b if b.ndim > 1 else b[:, None]
        shape = (*np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]), rows.shape[-2], columns.shape[-1])
        total = np.zeros(shape, np.promote_types(a.dtype, np.float32))
        with np.errstate(all="ignore"):
            for k in range(rows.shape[-1]):
                total += np.multiply(rows[..., :, k, None], columns[..., None, k, :], dtype=total.dtype)
            result = total.astype(np.promote_types(a.dtype, b.dtype))
        dropped = (*((-2,) if a.ndim == 1 else ()), *((-1,) if b.ndim == 1 else ()))
        return np.squeeze(result, dropped)


def _adds_up(op: str) -> bool:
    """Whether an operator adds up many numbers, and is not a name for several of which one does."""
    traits = traits_of(op)
    return traits.accumulates and not traits.named_whole


def _sums_agree(candidate: CandidateRule, sizes: Mapping[str, int]) -> bool:
    """Whether both sides add up the same numbers, as they are written and within operators that are composed of others."""
    sides = candidate.source, candidate.target
    if _added_up(candidate.source) != _added_up(candidate.target):
        return False
    types = {name: type_.at(sizes) for name, type_ in candidate.types.items()}
    plain = [taken_apart([substitute(term, {}, dims=sizes) for term in side], types) for side in sides]
    inferred = infer_types(itertools.chain(*plain), types)
    one, other = ({term for term in _added_up(side) if inferred[term].dtype in FLOATS} for side in plain)
    return one == other


def _added_up(side: Iterable[Term]) -> set[Term]:
    return {term for term in walk(side) if _adds_up(term.op)}


def _draw(kind: str, types: Mapping[str, TensorType], sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs of float64: ``normal``, ``positive``, or normal with some NaN (``special``) or infinities (``infinite``)."""
    generator = np.random.default_rng([seed, len(kind)])
    drawn: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        shape = tuple(int(evaluate_dim(d, sizes)) for d in type_.shape)  # type: ignore[arg-type]
        value = generator.normal(size=shape)
        if type_.dtype == DataType.BOOL:
            drawn[name] = np.asarray(value > 0)
            continue
        if (whole := whole_numbers(generator, type_.dtype, shape)) is not None:
            drawn[name] = whole
            continue
        if kind == "positive":
            value = np.abs(value) + 0.25
        elif kind == "special":
            value = np.where(generator.random(shape) < 0.3, np.nan, value)
        elif kind == "infinite":
            value = np.where(generator.random(shape) < 0.3, np.copysign(np.inf, value), value)
        drawn[name] = np.asarray(value)
    return drawn


def _worst(
    candidate: CandidateRule,
    roots: Sequence[Term],
    sizes: Mapping[str, int],
    kind: str,
    dtype: np.dtype,
    seed: int,
    conditions: Sequence[Condition],
) -> float:
    """The worst relative error over the outputs; 0 is bit-identical, infinity says that NaN or infinity differ.

    Args:
        roots: both sides at some sizes.
    """
    inputs = arrange(_draw(kind, candidate.types, sizes, seed), conditions)
    drawn = {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in inputs.items()}
    with np.errstate(all="ignore"):
        values = evaluate(roots, ReproducibleReal(dtype), drawn)
        half, worst = len(candidate.source), 0.0
        for a, b in zip(roots[:half], roots[half:], strict=True):
            x, y = np.broadcast_arrays(np.asarray(values[a]), np.asarray(values[b]))
            if x.tobytes() == y.tobytes() or np.array_equal(x, y, equal_nan=x.dtype != bool):
                continue
            if x.dtype == bool or not np.array_equal(np.isfinite(x), np.isfinite(y)):
                return float("inf")
            x, y = x.astype(np.float64), y.astype(np.float64)
            finite = np.isfinite(x)
            scale = float(np.max(np.abs(x[finite]), initial=0)) or 1.0
            worst = max(worst, float(np.max(np.abs(x - y)[finite], initial=0)) / scale)
    return worst


def float_test(
    candidate: CandidateRule, symbols: Sequence[str], seed: int, conditions: Sequence[Condition] = (), *, draws: int = 4
) -> FloatVerdict:
    """Runs both sides in float32 and float16 on random inputs and classifies the difference.

    ``exact``: bit-identical in every draw, and the sums of products are the same on both sides; ``reassociates``: within
    what rounding of a few operations explains; ``approximates``: worse, but the answer is kept. Of ``conditions`` those that
    random inputs can be made to meet are met.

    Raises:
        ShapeError, Undecided: the sides have no types at the sizes that are drawn, or values that are too large to compute.
    """
    drawn = list[tuple[list[Term], dict[str, int]]]()
    for draw in range(draws):
        sizes = _float_sizes(candidate, symbols, draw)
        roots, types = specialise((*candidate.source, *candidate.target), candidate.types, sizes)
        types_in_numbers(roots, types)
        drawn.append((roots, sizes))
    kinds = ["normal", "positive"]
    ops = {term.op for term in walk((*candidate.source, *candidate.target))}
    kinds += [kind for op, kind in (("IsNaN", "special"), ("IsInf", "infinite")) if op in ops]
    errors: dict[tuple[str, np.dtype], float] = {}
    for kind in kinds:
        for dtype in (np.dtype(np.float32), np.dtype(np.float16)):
            errors[kind, dtype] = max(
                _worst(candidate, *program, kind, dtype, seed + d, conditions) for d, program in enumerate(drawn)
            )
    single, half = np.dtype(np.float32), np.dtype(np.float16)
    guarded = any(errors[kind, single] > _LOST[single] for kind in kinds if kind != "positive")
    kept = ["positive"] if guarded else kinds
    error32, error16 = (max(errors[kind, dtype] for kind in kept) for dtype in (single, half))
    if error32 > _LOST[single] or error16 > _LOST[half]:
        return FloatVerdict(None, error32, error16, guarded)
    if error32 == 0 and error16 == 0 and _sums_agree(candidate, drawn[0][1]):
        float_class = FloatClass.EXACT
    elif error32 <= 2.0**-18 and error16 <= 2.0**-5:
        float_class = FloatClass.REASSOCIATES
    else:
        float_class = FloatClass.APPROXIMATES
    return FloatVerdict(float_class, error32, error16, guarded)


_MOST_ENTRIES = 2**18
"""Of an input: products of half-precision matrices take half a minute for ten times as many."""


def _float_sizes(candidate: CandidateRule, symbols: Sequence[str], draw: int) -> dict[str, int]:
    """Sizes of a model's order rather than the tiniest: rounding shows, and a matrix product still takes microseconds.

    Images stay small: their convolutions have a factor for every dimension. So do inputs whose dimensions are products.
    """
    names = (*symbols, *sorted(dim_symbols((*candidate.source, *candidate.target)) - set(symbols)))
    small = dim_sizes(names, draw)
    large = {name: 7 + 5 * size for name, size in small.items()}
    images = any(type_.rank > 3 for type_ in candidate.types.values())
    entries = max((type_.at(large).size() for type_ in candidate.types.values()), default=0)
    return {name: 3 + size for name, size in small.items()} if images or entries > _MOST_ENTRIES else large
