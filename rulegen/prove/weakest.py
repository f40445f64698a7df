"""The weakest conditions under which a proof holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import SymDim, TensorType
from mugraph.terms.term import attr_symbols, variables
from rules_db.trust.condition import Condition
from rules_db.trust.implied import implied

__all__ = ["weakest_conditions"]

_SIZED = {"dim": 2, "keeps": 1, "leads": 2}
"""Predicates about dimensions of terms, and the position of the argument that holds the dimensions."""


def weakest_conditions(wanted: Iterable[Condition], types: Mapping[str, TensorType]) -> list[Condition]:
    """The conditions without those that follow from the rest.

    A size of a compound term is asked of the variables instead: ``dim(MatMul(x, w), -1, n)`` as ``dim(w, -1, n)``.
    """
    needed = [c for c in dict.fromkeys(wanted) if c.terms()]
    extra: list[Condition] = []
    sizes = [c.arguments[_SIZED[c.predicate]] for c in needed if c.predicate in _SIZED]
    symbols = {name for size in sizes for name in attr_symbols(size)}
    about_types = any(c.predicate == "dtype" for c in needed)
    for term in variables([t for c in needed if not c.terms()[0].is_var for t in c.terms()]):
        shape = types[term.name].shape
        dims = [(axis, shape[axis]) for axis in range(-len(shape), 0)]
        extra += [Condition("dim", (term, axis, d)) for axis, d in dims if isinstance(d, SymDim) and d.symbols() <= symbols]
        extra += [Condition("matrix", (term,))] if len(shape) >= 2 else []
        extra += [Condition("vector", (term,))] if len(shape) == 1 else []
        extra += [Condition("floating", (term,))] if types[term.name].dtype in FLOATS else []
        extra += [Condition("dtype", (term, types[term.name].dtype))] if about_types else []
    kept = list(dict.fromkeys([*needed, *extra]))
    removable = sorted(kept, key=lambda c: (c in extra and c not in needed, -sum(t.size for t in c.terms()), str(c)))
    for condition in removable:
        rest = [c for c in kept if c is not condition]
        if all(implied(c, rest) for c in needed):
            kept = rest
    return sorted(kept, key=lambda c: (c.guard.of_values, sum(t.size for t in c.terms()), str(c)))
