"""Sample types for equations that come without.

Every dimension starts as a symbol of its own; the operators of both sides bind symbols to each other, to sums
(concatenation), multiples (groups) or numbers. The symbols that are left make the most general typing of these ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mugraph.ops import ImageRole, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, SymDim, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import Term, substitute, variables, walk
from rulegen.typings.dimensions import Dimensions, readable_symbols
from rulegen.typings.shapes import output_shape
from rules_db.trust.rule import Side, dim_symbols

__all__ = ["EquationTyping", "infer_typing"]


_MOST_RANKS = 400
"""Choices of ranks that are tried."""


class EquationTyping(NamedTuple):
    """Both sides and the types of their variables. Dimension symbols of attributes may have been made equal to others."""

    source: Side
    target: Side
    types: dict[str, TensorType]


def infer_typing(
    source: Side, target: Side, declared: Mapping[str, TensorType]
) -> tuple[EquationTyping, EquationTyping] | ShapeError:
    """Sample types under which both sides are well-typed and alike.

    Args:
        source, target: outputs in the same order.
        declared: types of some of the variables.

    Returns:
        The plainest typing (matrices, unless operators want something else) and the one of the usual ranks that leaves the
        most dimensions free, often the same; or why the first ranks that were tried do not do.
    """
    roots = (*source, *target)
    names = [v.name for v in variables(roots)]
    open_names = [name for name in names if name not in declared]
    if not open_names and (given := _given(source, target, {name: declared[name] for name in names})) is not None:
        return given, given
    problem: ShapeError | None = None
    first: EquationTyping | None = None
    usual = 0
    for ranks in itertools.islice(_ranks(roots, open_names), _MOST_RANKS):
        usual, where = max(ranks.values(), default=0) if first is None else usual, ""
        dims = Dimensions()
        shapes = {name: declared[name].shape if name in declared else dims.shape(ranks[name]) for name in names}
        try:
            shape_of: dict[Term, Shape] = {}
            for term in walk(roots):
                if term.is_var:
                    shape_of[term] = shapes[term.name]
                elif term.op == "Const":
                    shape_of[term] = ()
                else:
                    where = f" at {term.op}"
                    shape_of[term] = output_shape(dims, term, [shape_of[i] for i in term.inputs])
            where = ""
            for a, b in zip(source, target, strict=True):
                dims.match(shape_of[a], shape_of[b])
        except (ShapeError, Undecided) as reason:
            problem = problem or ShapeError(f"{reason}{where}".replace("?", "d"))
            continue
        typed = _named(source, target, names, declared, shapes, dims)
        if isinstance(typed, ShapeError):
            problem = problem or typed
            continue
        if first is None:
            first = best = typed
        elif max(ranks.values(), default=0) <= usual and _generality(typed.types) > _generality(best.types):
            best = typed
    return (first, best) if first is not None else problem or ShapeError("no ranks fit")


def _given(source: Side, target: Side, types: dict[str, TensorType]) -> EquationTyping | None:
    """The typing by the types of all variables, where both sides are well-typed and alike with them as they stand."""
    try:
        inferred = infer_types([*source, *target], types)
    except (ShapeError, Undecided):
        return None
    alike = all(inferred[a] == inferred[b] for a, b in zip(source, target, strict=True))
    return EquationTyping(source, target, types) if alike else None


def _ranks(root_terms: Side, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Ranks of the variables to try: those that convolutions and the like fix, matrices elsewhere, then others."""
    fixed: dict[str, int] = {}
    for term in walk(root_terms):
        attrs, ranks, traits = dict(term.attrs), {}, traits_of(term.op)
        if traits.convolves and "strides" in attrs:
            ranks = {0: len(attrs["strides"]) + 2, 1: len(attrs["strides"]) + 2, 2: 1}
        elif traits.image is ImageRole.WINDOW and "kernel" in attrs:
            ranks = {0: len(attrs["kernel"]) + 2}
        elif term.op in ("BatchNormalization", "InstanceNormalization") and "spatial" in attrs:
            ranks = {0: attrs["spatial"] + 2, 1: 1, 2: 1, 3: 1, 4: 1}
        for position, operand in enumerate(term.inputs):
            if operand.is_var and position in ranks:
                fixed[operand.name] = ranks[position]
    around = max(fixed.values(), default=2)
    orders = {name: (fixed[name],) if name in fixed else tuple(dict.fromkeys((around, 2, 0, 1, 3, 4))) for name in names}
    choices = itertools.product(*(range(len(orders[name])) for name in names))
    # The fewest variables of an unusual rank first.
    limited = itertools.islice(choices, 20_000)
    for choice in sorted(limited, key=lambda c: (sum(i > 0 for i in c), sum(c))):
        yield {name: orders[name][i] for name, i in zip(names, choice, strict=True)}


def _generality(types: Mapping[str, TensorType]) -> int:
    """The number of dimensions that are free: where operators force dimensions to agree by chance there are fewer."""
    return len({s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()})


def _named(
    source: Side,
    target: Side,
    names: Sequence[str],
    declared: Mapping[str, TensorType],
    shapes: Mapping[str, Shape],
    dims: Dimensions,
) -> EquationTyping | ShapeError:
    """The typing with names for the nameless symbols; why it is none, where inference finds that out."""
    resolved = {name: dims.resolved(shapes[name]) for name in names}
    met = {s for d in itertools.chain(*resolved.values()) if isinstance(d, SymDim) for s in d.symbols()}
    taken = dim_symbols([*source, *target]) | met
    final = readable_symbols([d for name in names for d in resolved[name]], taken)

    def finish(dim: Dim) -> Dim:
        return evaluate_dim(dims.resolve(dim), final)

    tested = {t.inputs[0].name for t in walk([*source, *target]) if t.op in ("Where", "Not") and t.inputs[0].is_var}
    dtypes = {name: DataType.BOOL if name in tested else DataType.FLOAT for name in names}
    dtypes |= {name: type_.dtype for name, type_ in declared.items()}
    types = {name: TensorType(dtypes[name], tuple(map(finish, resolved[name]))) for name in names}
    binding = {name: finish(dim) for name, dim in dims.bound.items()}
    sides = [tuple(substitute(root, {}, dims=binding) for root in side) for side in (source, target)]
    try:
        inferred = infer_types([*sides[0], *sides[1]], types)
    except (ShapeError, Undecided) as problem:
        return ShapeError(str(problem))
    for a, b in zip(*sides, strict=True):
        if inferred[a] != inferred[b]:
            return ShapeError(f"the sides have types {inferred[a]} and {inferred[b]}")
    return EquationTyping(sides[0], sides[1], types)
