"""Guards about values, which only a model can answer: the range of the entries, and which of them stand where."""

from __future__ import annotations

import numpy as np

from mugraph.domains.range import unrepeated
from mugraph.terms.shape import DataType, largest_number
from mugraph.terms.term import Term
from rules_db.trust.guards.record import About, Facts, guard

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
    """Along ``axis`` (negative) the second half of x repeats the first: a table of angles, each for two entries."""
    value = facts.value_of(x)
    if value is None:
        return None
    if value.ndim < -axis or value.shape[axis] % 2:
        return False
    first, second = np.split(value, 2, axis)
    return bool(np.array_equal(first, second))


@guard(63, About.ENTRIES)
def causal(facts: Facts, m: Term) -> bool | None:
    """m is what causal attention adds to its scores: zero for a key that is not after its query, -inf for the others.

    A number below half the least of the element type counts as -inf: scores vanish beside it.
    """
    value, largest = facts.value_of(m), largest_number(facts.type_of(m).dtype)
    if value is None:
        return None
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or largest is None:
        return False
    seen = np.tri(value.shape[-1], dtype=bool)
    once = unrepeated(value)
    value = np.broadcast_to(once, (*once.shape[:-2], *seen.shape))
    return bool(np.all(value[..., seen] == 0) and np.all(value[..., ~seen].astype(np.float64) < -largest / 2))


@guard(64, About.ENTRIES)
def all_true(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is true."""
    return True if facts.range_of(x).lo == 1 and facts.type_of(x).dtype == DataType.BOOL else None
