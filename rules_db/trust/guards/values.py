"""Guards about values, which only a model can answer: the range of the entries, and which of them stand where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np

from mugraph.domains.range import unrepeated
from mugraph.ops.entries import array_of
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType, Dim, concrete, largest_number, same_dim
from mugraph.terms.term import Term
from rules_db.trust.guards.record import About, Facts, Text, guard

# Ranges


@guard(14, About.RANGES)
def not_nan(facts: Facts, x: Term) -> bool | None:
    """No entry of x is NaN."""
    return True if not facts.range_of(x).nan else None


@guard(15, About.RANGES)
def finite(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is finite."""
    return True if facts.range_of(x).finite else None


@guard(16, About.RANGES)
def nonzero(facts: Facts, x: Term) -> bool | None:
    """No entry of x is zero."""
    return True if facts.range_of(x).nonzero and not facts.range_of(x).nan else None


@guard(17, About.RANGES)
def nonnegative(facts: Facts, x: Term) -> bool | None:
    """No entry of x is negative or NaN."""
    range_ = facts.range_of(x)
    return True if range_.lo >= 0 and not range_.neg_inf and not range_.nan else None


@guard(18, About.RANGES)
def positive(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is greater than zero."""
    return True if nonnegative.predicate(facts, x) and facts.range_of(x).nonzero else None


# Entries of masks and constants


@guard(62, About.ENTRIES)
def repeats(facts: Facts, x: Term, axis: int) -> bool | None:
    """Along axis ``axis`` the second half of x repeats the first: a table of angles, each for two entries."""
    value = facts.value_of(x)
    if value is None:
        return None
    if value.ndim < -axis or value.shape[axis] % 2:
        return False
    first, second = np.split(value, 2, axis)
    return bool(np.array_equal(first, second))


@guard(63, About.ENTRIES)
def causal(facts: Facts, m: Term) -> bool | None:
    """m is what causal attention adds to its scores: zero for a key that is not after its query, -inf for the others; or it
    is true and false there.

    A number below half the least of the element type counts as -inf: scores vanish beside it.
    """
    value, dtype = facts.value_of(m), facts.type_of(m).dtype
    if value is None:
        return None
    largest = largest_number(dtype)
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or (largest is None and dtype != DataType.BOOL):
        return False
    seen = np.tri(value.shape[-1], dtype=bool)
    once = unrepeated(value)
    value = np.broadcast_to(once, (*once.shape[:-2], *seen.shape))
    if largest is None:
        return bool(np.all(value == seen))
    return bool(np.all(value[..., seen] == 0) and np.all(value[..., ~seen].astype(np.float64) < -largest / 2))


def _shown(once: np.ndarray, dtype: DataType, is_biased: bool) -> np.ndarray:
    """Where a mask shows something, of its entries as they are stored.

    Args:
        is_biased: what it shows are biases of the scores, not zeros. In each row one of them is above what hides by half the
            largest number of the element type at least, as a zero is: scores are taken to be small beside that.

    Raises ValueError where it is no such mask.
    """
    if dtype == DataType.BOOL:
        if is_biased:
            raise ValueError("truth values, which are no biases")
        return once
    largest = largest_number(dtype)
    if largest is None:
        raise ValueError("numbers that are no floats")
    wide = once.astype(np.float64)
    low = wide < -largest / 2
    if not is_biased:
        shown: np.ndarray = once == 0
        if not bool((shown | low).all()):
            raise ValueError("numbers that neither show nor hide")
        return shown
    if not np.isfinite(wide[~low]).all() or not wide[~low].any():
        raise ValueError("no biases")
    hiding = np.where(low, wide, -np.inf).max(axis=-1)
    if not bool((~low.all(axis=-1) & (wide.max(axis=-1) >= hiding + largest / 2)).all()):
        raise ValueError("a row in which nothing counts beside what hides")
    return ~low


def _band_of(facts: Facts, m: Term, is_biased: bool = False) -> tuple[Dim, Dim] | None:
    """How many places before and after its own each position sees, of a mask that is a band; ``None`` where it is not known.

    A side without a limit is as wide as the mask. Raises ValueError where a mask is no band, or hides nothing or a whole row.
    """
    value, type_ = facts.value_of(m), facts.type_of(m)
    if value is None:
        return None
    if value.ndim < 2 or not value.size:
        raise ValueError("no mask of positions")
    once = unrepeated(value)
    sides, problem = _read_band(once.tobytes(), once.dtype, once.shape, value.shape[-2:], type_.dtype, is_biased)
    if problem:
        raise ValueError(problem)
    (before, after), (rows, columns) = sides, value.shape[-2:]
    return (
        type_.shape[-2] if before >= rows - 1 else before,
        type_.shape[-1] if after >= columns - 1 else after,
    )


@lru_cache(maxsize=8)
def _read_band(
    content: bytes, kind: np.dtype, shape: tuple[int, ...], positions: tuple[int, ...], dtype: DataType, is_biased: bool
) -> tuple[tuple[int, int], str]:
    """The sides of a band of these entries, as numbers of a kind, or why it is none. A model's layers ask again and again."""
    try:
        all_shown = _shown(np.frombuffer(content, kind).reshape(shape), dtype, is_biased)
    except ValueError as problem:
        return (0, 0), str(problem)
    first = all_shown[(0,) * (len(shape) - 2)]
    if not bool((all_shown == first).all()):
        return (0, 0), "several masks"
    seen = np.broadcast_to(first, positions)
    if seen.all() or not seen.any(axis=-1).all():
        return (0, 0), "nothing is hidden, or a whole row"
    # The first position sees keys up to ``after``, the first key is seen up to ``before``, or comes before all that are.
    shown, seen_by = np.flatnonzero(seen[0]), np.flatnonzero(seen[:, 0])
    before, after = int(seen_by[-1]) if seen_by.size else -int(shown[0]), int(shown[-1])
    rows, columns = positions
    if not np.array_equal(seen, np.tri(rows, columns, after, dtype=bool) & ~np.tri(rows, columns, -before - 1, dtype=bool)):
        return (0, 0), "no band"
    return (before, after), ""


def _side_of_band(side: int, is_biased: bool = False) -> Callable[[Facts, Term, Dim, Dim], Dim]:
    def read(facts: Facts, m: Term, before: Dim, after: Dim) -> Dim:
        sides = _band_of(facts, m, is_biased)
        if sides is None:
            raise ValueError("its entries are not known")
        if not is_biased and sides == (facts.shape(m)[-2], 0) and facts.type_of(m).dtype != DataType.BOOL:
            raise ValueError("it is causal, for which there are operators")
        return sides[side]

    return read


@guard(67, About.ENTRIES, readers={1: _side_of_band(0), 2: _side_of_band(1)})
def band(facts: Facts, m: Term, before: Dim, after: Dim) -> bool | None:
    """m shows each position those from ``before`` places before it to ``after`` behind it and hides all others: m is true and
    false there, or zero and -inf. No position has all hidden.

    A number below half the least of the element type counts as -inf: scores vanish beside it.
    """
    return _is_band(facts, m, before, after, False)


def _is_band(facts: Facts, m: Term, before: Dim, after: Dim, is_biased: bool) -> bool | None:
    try:
        sides = _band_of(facts, m, is_biased)
    except ValueError:
        return False
    return None if sides is None else same_dim(sides[0], before) is True and same_dim(sides[1], after) is True


@guard(72, About.ENTRIES, readers={1: _side_of_band(0, True), 2: _side_of_band(1, True)})
def biased_band(facts: Facts, m: Term, before: Dim, after: Dim) -> bool | None:
    """m shows each position those from ``before`` places before it to ``after`` behind it and hides all others: biases of the
    scores, finite and not all zero, and -inf. No position has all hidden.

    A number below half the least of the element type counts as -inf, where each row has a bias that is above all such numbers of
    the row by half the largest: scores are taken to be small beside that.
    """
    return _is_band(facts, m, before, after, True)


def _stored_of(facts: Facts, m: Term, d: Text, is_biased: bool = False) -> Text:
    """The text of a mask (:mod:`mugraph.ops.masks`) that shows what m does, once for all axes in front along which m repeats.

    Raises ValueError where m is no such mask, hides nothing, is one row for all positions, is a band, of which two numbers say
    more, or has a text that is too long.
    """
    value, type_ = facts.value_of(m), facts.type_of(m)
    if value is None or concrete(type_.shape) != value.shape:
        raise ValueError("its entries are not known")
    if value.ndim < 2 or value.shape[-2] < 2:
        raise ValueError("no mask of positions")
    once = unrepeated(value)
    text, problem = _read_text(once.tobytes(), once.dtype, once.shape, value.shape[-2:], type_.dtype, is_biased)
    if not problem:
        with suppress(ValueError):
            _band_of(facts, m, is_biased)
            problem = "a band"
    if problem:
        raise ValueError(problem)
    return text


@lru_cache(maxsize=4)
def _read_text(
    content: bytes, kind: np.dtype, shape: tuple[int, ...], positions: tuple[int, ...], dtype: DataType, is_biased: bool
) -> tuple[Text, str]:
    """The text of a mask of these entries, as numbers of a kind, or why there is none. A model's layers ask again and again."""
    once = np.frombuffer(content, kind).reshape(shape)
    try:
        seen = _shown(once, dtype, is_biased)
        if largest_number(dtype) is not None and not seen.any(axis=-1).all() and not np.isneginf(once[~seen]).all():
            return "", "a low number hides a whole row"  # beside what is shown what is small vanishes, else not
        lead = shape[:-2]
        while lead[:1] == (1,):
            lead = lead[1:]
        if is_biased and bool((seen == seen[(slice(1),) * len(shape[:-2])]).all()):
            seen, lead = seen[(0,) * len(shape[:-2])], ()  # of other biases for each head
        seen = np.broadcast_to(seen.reshape(*lead, *seen.shape[-2:]), (*lead, *positions))
        return ("", "nothing is hidden") if seen.all() else (mask_text(seen), "")
    except ValueError as problem:
        return "", str(problem)


@guard(68, About.ENTRIES, readers={1: _stored_of})
def stored(facts: Facts, m: Term, d: Text) -> bool | None:
    """m shows and hides the entries that ``d`` says, the text of a mask, for everything along the axes in front of these:
    m is true and false there, or zero and -inf. It is no band.

    A number below half the least of the element type counts as -inf where its row shows something: scores vanish beside it.
    """
    return _is_stored(facts, m, d, False)


def _is_stored(facts: Facts, m: Term, d: Text, is_biased: bool) -> bool | None:
    if facts.value_of(m) is None:
        return None
    try:
        return _stored_of(facts, m, d, is_biased) == d
    except ValueError:
        return False


@guard(73, About.ENTRIES, readers={1: partial(_stored_of, is_biased=True)})
def biased_stored(facts: Facts, m: Term, d: Text) -> bool | None:
    """m shows and hides the entries that ``d`` says, the text of a mask, for everything along the axes in front of these:
    biases of the scores, finite and not all zero, and -inf. It is no band.

    A number below half the least of the element type counts as -inf, where each row has a bias that is above all such numbers of
    the row by half the largest: scores are taken to be small beside that.
    """
    return _is_stored(facts, m, d, True)


@guard(69, About.ENTRIES)
def hides(facts: Facts, c: Term, y: Term) -> bool | None:
    """Every entry of y is -inf or below half the least of its element type, beside which finite scores count alone, and every row
    of c, which chooses scores before y, has a true entry."""
    return _hides(facts, c, y, lambda: False)


def _hides(facts: Facts, c: Term, y: Term, is_attended: Callable[[], bool]) -> bool | None:
    """As the guard; ``is_attended`` is asked for rows whose entries are not known."""
    rows, value, largest = facts.value_of(c), facts.value_of(y), largest_number(facts.type_of(y).dtype)
    if value is None:
        return None
    if largest is None or not bool((unrepeated(value).astype(np.float64) < -largest / 2).all()):
        return False
    if rows is None:
        return is_attended() or None
    return rows.ndim > 0 and bool(unrepeated(rows).any(axis=-1).all())


@guard(70, About.ENTRIES)
def attends(facts: Facts, c: Term, y: Term) -> bool | None:
    """As hides(c, y), or every entry of y is as low and every row of c is assumed to have a true entry. A rule may ask for that
    where y goes on to hide what c does not show by itself: a row without a true entry stays finite then."""
    return _hides(facts, c, y, lambda: facts.is_attended(c))


@guard(64, About.ENTRIES)
def all_true(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is true."""
    return True if facts.range_of(x).lo == 1 and facts.type_of(x).dtype == DataType.BOOL else None


@guard(71, About.ENTRIES)
def entries(facts: Facts, x: Term, d: Text) -> bool | None:
    """x is the constant tensor that ``d`` says, the text of its element type, shape and entries."""
    value = facts.value_of(x)
    if value is None:
        return None
    wanted = _entries_of(d)
    return wanted is not None and value.dtype == wanted.dtype and np.array_equal(value, wanted)


@lru_cache(maxsize=64)
def _entries_of(text: Text) -> np.ndarray | None:
    """The tensor of a text; ``None`` for a text of none."""
    try:
        return array_of(text)
    except ValueError:
        return None
