"""Cones as mining compares them: leaves named in order, one floating-point type, masks told apart."""

from __future__ import annotations

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import rebuild, var, walk
from rulegen.mine.cuts import Cone
from rules_db.trust.rule import Side

__all__ = ["causal_masks", "cone_key", "named", "of_one_type"]


def of_one_type(roots: Side, types: dict[str, TensorType]) -> dict[str, TensorType]:
    """The types with float32 for the only floating-point type of a program: an equation of one holds for any."""
    floats = {type_.dtype for type_ in types.values()} & FLOATS
    casts = any(isinstance(value, DataType) for term in walk(roots) for _, value in term.attrs)
    if casts or len(floats) != 1:
        return types
    return {n: TensorType(DataType.FLOAT, t.shape) if t.dtype in floats else t for n, t in types.items()}


def cone_key(cone: Cone) -> object:
    """Equal for cones that say the same."""
    return (cone.roots, tuple(map(str, cone.types.values())))


def causal_masks(cone: Cone) -> frozenset[str]:
    """Leaves that may be masks of causal attention: square, and added to the operand of a softmax."""
    sums = (term.inputs[0] for term in walk(cone.roots) if term.op == "Softmax" and term.inputs[0].op == "Add")
    addends = {leaf.name for total in sums for leaf in total.inputs if leaf.is_var}
    return frozenset(name for name in addends if _is_square(cone.types[name]))


def _is_square(type_: TensorType) -> bool:
    return type_.rank >= 2 and type_.shape[-1] == type_.shape[-2] and type_.shape[-1] != 1


def named(cone: Cone) -> Cone:
    """The cone with its leaves named in order of occurrence."""
    names = {leaf.name: f"x{i}" for i, leaf in enumerate(t for t in walk(cone.roots) if t.is_var)}
    roots = tuple(rebuild(root, lambda t: var(names[t.name]) if t.is_var else t, lambda v: v) for root in cone.roots)
    return Cone(roots, {new: cone.types[old] for old, new in names.items()})
