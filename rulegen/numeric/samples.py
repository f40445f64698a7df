"""Samples of an equation: sizes for its dimension symbols, and inputs that meet conditions on entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np

from mugraph.domains.base import BYTES, NIBBLES, WHOLE_NUMBERS, Array, NoValue, Unsupported
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.ops.masks import mask_of, mask_text
from mugraph.terms.shape import DataType, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import Term, substitute
from rules_db.trust.condition import Condition
from rules_db.trust.rule import dim_symbols

__all__ = [
    "BIASED",
    "HIDING",
    "POSITIONED",
    "ROOM",
    "STORED_MASKS",
    "BeyondNumbers",
    "arrange",
    "assignments",
    "causal_mask",
    "dim_sizes",
    "looked_up_inside",
    "masked",
    "positioned",
    "random_input",
    "same_residues",
    "specialise",
    "types_in_numbers",
    "whole_numbers",
]

_SIZES = ((2, 3, 5, 7, 4, 6, 9, 8), (3, 2, 4, 5, 7, 9, 6, 10), (5, 4, 2, 3, 6, 8, 7, 9))
"""Sizes given to the symbols in order, distinct within an assignment."""
_DIM_SIZES = ((2, 3, 4, 5, 6, 7, 8, 9), (5, 4, 2, 3, 7, 6, 9, 8), (3, 5, 7, 2, 4, 8, 6, 9))
"""The same for the evaluations of an enumeration, one row each: other sizes than those of the tests that follow."""
_INDICES = (np.int32, np.int64)
"""Types of what lookups may take for places."""
_MOST_ENTRIES = 1 << 26
"""Of a value that is computed in numbers; half a gigabyte in double precision."""
_MOST_AXES = 32
"""Of such a value: what every NumPy has."""
ROOM = 4
"""Added to every size where the sizes are too small for a program."""


def assignments(types: Mapping[str, TensorType], count: int = 3, roots: Iterable[Term] = ()) -> list[dict[str, int]]:
    """Sizes for the symbols of sample types and of the attributes of ``roots``, ``count`` times."""
    in_types = {s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    symbols = sorted(in_types | dim_symbols(roots))
    return [_numbered(symbols, _SIZES[i % len(_SIZES)]) for i in range(count)]


def dim_sizes(symbols: Sequence[str], evaluation: int) -> dict[str, int]:
    """The sizes of the dimension symbols in one evaluation of an enumeration."""
    return _numbered(symbols, _DIM_SIZES[evaluation % len(_DIM_SIZES)])


def _numbered(symbols: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Sizes for symbols in order; where they run out, larger ones."""
    return {name: sizes[i] if i < len(sizes) else 11 + i for i, name in enumerate(symbols)}


def specialise(
    roots: Sequence[Term], types: Mapping[str, TensorType], sizes: Mapping[str, int]
) -> tuple[list[Term], dict[str, TensorType]]:
    """Programs and types with sizes in place of symbols."""
    shapes = {name: t.at(sizes) for name, t in types.items()}
    return [substitute(root, {}, dims=sizes) for root in roots], shapes


class BeyondNumbers(Undecided):
    """A program has a value that is not computed in numbers, for its size."""


def types_in_numbers(roots: Iterable[Term], inputs: Mapping[str, TensorType]) -> dict[Term, TensorType]:
    """Types of every term under ``roots``, all of whose values can be computed.

    Raises:
        ShapeError, Undecided, KeyError: as of :func:`mugraph.ops.interp.infer_types`.
        BeyondNumbers: a value has too many axes or entries.
    """
    types = infer_types(roots, inputs)
    for term, type_ in types.items():
        if type_.rank > _MOST_AXES:
            raise BeyondNumbers(f"{_called(term)} has {type_.rank} axes, more than the {_MOST_AXES} that are computed in numbers")
        if type_.size() > _MOST_ENTRIES:
            raise BeyondNumbers(
                f"{_called(term)} has {type_.size():,} entries, more than the {_MOST_ENTRIES:,} that are computed in numbers"
            )
    return types


def _called(term: Term) -> str:
    return term.name if term.is_var else f"a result of {term.op}"


def random_input(field: FiniteField, generator: np.random.Generator, type_: TensorType) -> Array:
    """Residues for a numeric variable, coin tosses for a boolean one."""
    shape = concrete(type_.shape)
    assert shape is not None, type_
    if type_.dtype == DataType.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    return field.random(generator, shape)


def whole_numbers(generator: np.random.Generator, dtype: DataType, shape: tuple[int, ...]) -> np.ndarray | None:
    """Numbers for a variable of integers: places that every table has, or small bytes; ``None`` for floats and booleans."""
    if dtype not in WHOLE_NUMBERS:
        return None
    return generator.integers(0, 8 if dtype in BYTES | NIBBLES else 2, shape).astype(dtype.numpy())


def looked_up_inside(sources: Sequence[Term], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs at which the sources look nothing up outside of a table, where there are any: a rule says nothing of others.

    As few variables of integers as that takes are the first place throughout, which tables of one entry have too.
    """
    indices = [name for name, value in inputs.items() if value.dtype in _INDICES]
    if not indices:
        return dict(inputs)
    for first in chain.from_iterable(combinations(indices, count) for count in range(len(indices) + 1)):
        inside = {**inputs, **{name: np.zeros_like(inputs[name]) for name in first}}
        try:
            evaluate(sources, Real(), inside)
        except NoValue:
            continue
        except (Unsupported, IndexError, ValueError):
            break  # for those who evaluate both sides to tell
        return inside
    return dict(inputs)


def arrange(inputs: Mapping[str, np.ndarray], conditions: Sequence[Condition]) -> dict[str, np.ndarray]:
    """Inputs for which conditions on entries of variables hold: a half of an axis is repeated, a mask is as positions say, shows
    something in every row or everywhere."""
    arranged = dict(inputs)
    for condition in sorted(conditions, key=lambda c: c.predicate in POSITIONED):  # these say all of a mask
        about = condition.arguments[0]
        if condition.predicate in HIDING:
            shown, hidden = condition.terms()
            if hidden.is_var:
                arranged[hidden.name] = np.full_like(arranged[hidden.name], -np.inf)
            if shown.is_var:
                arranged[shown.name] = arranged[shown.name] | (np.arange(arranged[shown.name].shape[-1]) == 0)
        if not isinstance(about, Term) or not about.is_var:
            continue
        if condition.predicate == "repeats":
            axis = int(condition.arguments[1])  # type: ignore[arg-type]
            half = np.split(arranged[about.name], 2, axis)[0]
            arranged[about.name] = np.concatenate([half, half], axis)
        if condition.predicate in POSITIONED:
            arranged[about.name] = masked(condition, arranged[about.name])
        if condition.predicate == "all_true":
            arranged[about.name] = np.ones_like(arranged[about.name])
    return arranged


def causal_mask(shape: tuple[int, ...]) -> np.ndarray:
    """The mask that causal attention adds to its scores: zero, and -inf above the diagonal."""
    return _banded(shape, shape[-2], 0)


BIASED = frozenset({"biased_band", "biased_stored"})
"""Conditions that say which positions a mask of biases shows."""
POSITIONED = frozenset({"causal", "band", "stored", *BIASED})
"""Conditions that say which positions a mask shows."""
HIDING = frozenset({"hides", "attends"})
"""Conditions that a low number hides beside another one."""
STORED_MASKS = tuple(mask_text(np.array(rows, bool)) for rows in ([[1, 0], [1, 1]], [[1, 1, 0], [1, 0, 1], [1, 0, 0]]))
"""Samples of stored masks, in which every row shows something however many columns there are."""


def positioned(condition: Condition, shape: tuple[int, ...]) -> np.ndarray:
    """Where one of the conditions `POSITIONED` says that a mask shows something: zero there, else -inf."""
    told: tuple[Any, ...] = condition.arguments[1:]
    if condition.predicate in ("stored", "biased_stored"):
        return np.broadcast_to(np.where(mask_of(told[0], *shape[-2:]), 0.0, -np.inf), shape)
    before, after = told or (shape[-2], 0)
    return _banded(shape, before, after)


def masked(condition: Condition, values: np.ndarray) -> np.ndarray:
    """A mask of which one of the conditions `POSITIONED` holds: truth values, or what is added to scores; biases as they come."""
    mask = positioned(condition, values.shape)
    if values.dtype == bool:
        return np.asarray(np.isfinite(mask))
    return np.where(np.isfinite(mask), values, -np.inf) if condition.predicate in BIASED else mask


def _banded(shape: tuple[int, ...], before: int, after: int) -> np.ndarray:
    rows, columns = shape[-2:]
    ahead = np.arange(columns) - np.arange(rows)[:, None]
    return np.broadcast_to(np.where((ahead >= -before) & (ahead <= after), 0.0, -np.inf), shape)


def same_residues(a: Array, b: Array) -> bool:
    """Equal in every part that both have; an exponential leaves one residue only."""
    if not isinstance(a, FieldArray):
        return bool(np.array_equal(a, b))
    same = np.array_equal(a.p, b.p)
    return bool(same and (a.q is None or b.q is None or np.array_equal(a.q, b.q)))
