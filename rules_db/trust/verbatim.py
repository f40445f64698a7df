"""Rules that hold whatever their operands are: infinities, NaN, and numbers of which a sum or a product overflows.

Operator properties are equations of real numbers (:mod:`rules_db.trust.properties`), and so is what follows from them: of what is
no finite number a certificate says nothing. But a rule whose two sides are, entry by entry, the same expressions of the same
entries, holds of everything. Rules that move entries are of this kind, and rules that take a product or a sum apart along an axis
that stays; those that distribute, regroup, cancel or define are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from mugraph.blocks.operator import KERNEL
from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.verbatim import Verbatim
from mugraph.ops import Reduction, RowRole, traits_of
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, SymDim, TensorType, concrete
from mugraph.terms.term import Attrs, Term, walk
from rules_db.trust.evidence import programs_at, used_symbols
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = ["example", "is_verbatim", "keeps_operations"]

_DRAWS = 40
"""Sizes that are tried until a rule applies to its sample types."""
_POOL = (2, 2, 3, 4, 6)
"""Sizes that dimensions get: one entry alone is its own sum."""
_MOST_ENTRIES = 4_000
"""Of the operands of an example."""


@lru_cache(maxsize=1 << 14)
def is_verbatim(rule: Rule) -> bool:
    """Whether the sides of a rule are the same expressions of the same entries, at its sample types in small sizes.

    "No" where no sizes are found at which it applies, where operands hold integers, where an operator has no expressions, and
    of kernels, which are made for other sizes.
    """
    sample = rule.sample()
    plain = all(type_.dtype in FLOATS or type_.dtype == DataType.BOOL for type_ in sample.types.values())
    if not plain or any(term.op == KERNEL for term in walk([*sample.source, *sample.target])):
        return False
    found = example(sample) if _takes_maxima_alike(sample) else None
    if found is None:
        return False
    programs, types = found
    domain, half = Verbatim(), len(sample.source)
    inputs = {name: domain.input(name, concrete(type_.shape) or ()) for name, type_ in types.items()}
    try:
        values = evaluate(programs, domain, inputs)
    except Unsupported:
        return False
    return all(np.array_equal(values[a], values[b]) for a, b in zip(programs[:half], programs[half:], strict=True))


def _takes_maxima_alike(rule: Rule) -> bool:
    """Whether both sides take the greatest, or the least, of the same entries by the same operators.

    Whether that is a NaN depends on the runtime's kernel for windows and for attention, and for reductions on the axes, too. A
    softmax is NaN wherever an entry of its row is, whatever the greatest is taken for, so that one side may write it out.
    """
    (source, target), softmax = map(_maxima, (rule.source, rule.target)), map(_has_softmax, (rule.source, rule.target))
    plain = source[0] == target[0] or any(has and not maxima[0] for has, maxima in zip(softmax, (source, target), strict=True))
    return plain and source[1] == target[1]


def _maxima(side: Side) -> tuple[set[tuple[str, Attrs]], set[str]]:
    """The reductions and pools of a side that take the greatest or the least entry, and its operators of attention."""
    terms = [term for term in walk(side) if term.op not in ("Var", "Const")]
    ordered = {(term.op, term.attrs) for term in terms if traits_of(term.op).reduction in (Reduction.MAX, Reduction.MIN)}
    return ordered, {term.op for term in terms if traits_of(term.op).attention}


def _has_softmax(side: Side) -> bool:
    return any(traits_of(term.op).rows is RowRole.SOFTMAX for term in walk(side) if term.op not in ("Var", "Const"))


def example(rule: Rule) -> tuple[list[Term], dict[str, TensorType]] | None:
    """The outputs of both sides at small sizes, the source's first, and the operands' types; ``None`` where none are found."""
    for sizes in _sizes(rule):
        types = {n: t.at(sizes) for n, t in rule.types.items()}
        few = sum(type_.size() for type_ in types.values()) <= _MOST_ENTRIES
        programs = programs_at(rule, types, sizes) if few else None
        if programs is not None:
            return programs, types
    return None


def keeps_operations(rule: Rule) -> bool:
    """Whether a rule moves entries and does nothing else: the same results, by the same operators, in the same order.

    A verbatim rule may be told from the original where something overflows: sums of other lengths add up in another order, and an
    operator of the runtime that stands for several may square what they do not.
    """
    source, target = (
        {term.op for term in walk(side) if term.op not in ("Var", "Const") and traits_of(term.op).movement is None}
        for side in (rule.source, rule.target)
    )
    return rule.float_class is FloatClass.EXACT and source == target and is_verbatim(rule)


def _sizes(rule: Rule) -> Iterator[dict[str, int]]:
    """Sizes of a rule's dimension symbols: each another one, then all alike, then at random."""
    shaped = {s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    symbols = sorted(shaped.union(used_symbols(rule)))
    yield {symbol: 2 + number for number, symbol in enumerate(symbols)}
    for size in (2, 4, 6):
        yield dict.fromkeys(symbols, size)
    generator = np.random.default_rng(0)
    for _ in range(_DRAWS):
        yield {symbol: int(generator.choice(_POOL)) for symbol in symbols}
