"""Numbers of mined programs: those that operator properties name stay, samples stand for the others, which are parameters."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mugraph.terms.term import AttrValue, AttrVar, Term, const, rebuild, walk
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Side

__all__ = ["MOST_PARAMETER", "is_sample", "sampled", "snapped"]

MOST_PARAMETER = 1e4
"""Numbers of this size and above, such as those that masks add, are no parameters."""


@lru_cache(maxsize=1)
def usual_numbers() -> tuple[float, ...]:
    """Numbers that operator properties speak of, and their inverses, which a division spells."""
    named = {
        float(term.attr("value"))
        for axiom in load_axioms().values()
        for term in walk([axiom.left, axiom.right])
        if term.op == "Const" and isinstance(term.attr("value"), float)
    }
    named = {n for n in named if np.isfinite(n) and n}
    return tuple(sorted(named | {1 / n for n in named}))


def snapped(root: Term) -> Term:
    """The term with each number that is a usual one, rounded, replaced by that: 0.70710677 by the root of one half."""

    def leaf(term: Term) -> Term:
        value = term.attr("value")
        if term.is_var or isinstance(value, bool | AttrVar):
            return term
        for usual in usual_numbers():
            if np.float32(usual) == np.float32(value) or float(str(np.float16(usual))) == value:
                return const(usual)
        return term

    return rebuild(root, leaf, lambda value: value)


def is_sample(value: AttrValue) -> bool:
    """Whether a number is one that :func:`sampled` chose, or a product of two."""
    return isinstance(value, float) and value not in usual_numbers() and 0 < abs(value) < MOST_PARAMETER


def sampled(roots: Side) -> Side:
    """The program with powers of two in place of numbers that are not usual.

    They are parameters, such as an epsilon or a scale, which a rule leaves open; as powers of two they have exact products
    and inverses.
    """
    chosen: dict[float, float] = {}

    def sample(value: AttrValue) -> AttrValue:
        if not isinstance(value, float) or value in usual_numbers() or not 0 < abs(value) < MOST_PARAMETER:
            return value
        return chosen.setdefault(value, 2.0 ** -(3 * 2 ** len(chosen) + 2))

    def leaf(term: Term) -> Term:
        return term if term.is_var else Term(term.op, tuple((k, sample(v)) for k, v in term.attrs), (), 0)

    return tuple(rebuild(root, leaf, sample) for root in roots)
