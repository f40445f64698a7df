"""Entries of an operator property's variables, of the kinds of which it speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.domains.base import BYTES, FLOATS, NIBBLES, Array
from mugraph.domains.field import FiniteField
from mugraph.ops import Movement, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType, concrete
from mugraph.terms.term import AttrValue, Term, substitute, walk
from rulegen.numeric.samples import HIDING, POSITIONED, masked, random_input, whole_numbers
from rules_db.trust.guards import GUARDS
from rules_db.trust.properties import Axiom

__all__ = ["field_inputs", "places", "real_inputs"]


def places(sides: Sequence[Term], types: Mapping[str, TensorType], generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Entries for the variables that pick entries of tables: places within all tables that they pick of.

    Those of other integer variables beside floats are places, too: an operator may have its tables inside.
    """
    limits: dict[str, int] = {}
    inferred = infer_types(sides, types)
    for term in walk(sides):
        if traits_of(term.op).movement is Movement.LOOKUP:
            (size,) = concrete((inferred[term.inputs[0]].shape[term.attr("axis", -2)],)) or (1,)
            for variable in walk(term.inputs[1:]):
                if variable.is_var:
                    limits[variable.name] = min(limits.get(variable.name, size), size)
    tables = [t for t in types.values() if t.dtype in FLOATS]
    rows = min((int(t.shape[-2]) for t in tables if t.rank >= 2), default=1)  # type: ignore[arg-type]
    others = (*FLOATS, *BYTES, *NIBBLES, DataType.BOOL)
    integers = {n: t for n, t in types.items() if t.dtype not in others and (tables or n in limits)}
    return {
        n: generator.integers(0, limits.get(n, rows), concrete(t.shape) or ()).astype(t.dtype.numpy())
        for n, t in integers.items()
    }


def field_inputs(
    sides: Sequence[Term], types: Mapping[str, TensorType], field: FiniteField, generator: np.random.Generator
) -> dict[str, Array]:
    """Residues, coin tosses, and places in tables."""
    whole = places(sides, types, generator)
    return {name: whole[name] if name in whole else random_input(field, generator, t) for name, t in types.items()}


def real_inputs(
    axiom: Axiom, attrs: Mapping[str, AttrValue], types: Mapping[str, TensorType], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random numbers, positive, repeated or a mask where the property speaks of that, truth values, and places in tables."""
    conditions = [c.substitute({}, attrs) for c in axiom.conditions]
    cited = [(c.predicate, t.name) for c in conditions for t in c.terms() if t.is_var]
    masks = {c.terms()[0].name: c for c in conditions if c.predicate in POSITIONED and c.terms()[0].is_var}
    hiding = {name for predicate, name in cited if predicate in HIDING}
    bounded = {name for predicate, name in cited if GUARDS[predicate].of_ranges}
    sides = [substitute(side, {}, attrs) for side in (axiom.left, axiom.right)]
    whole = places(sides, types, generator)
    inputs = {}
    for name, type_ in types.items():
        shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
        values = generator.standard_normal(shape)
        if name in bounded:
            values = np.abs(values) + 0.1
        if ("repeats", name) in cited:
            halves = tuple(slice(0, size // 2 if size % 2 == 0 else size) for size in shape)
            values = np.tile(values[halves], [2 if size % 2 == 0 else 1 for size in shape])
        if name in whole:
            values = whole[name]
        elif (bytes_ := whole_numbers(generator, type_.dtype, shape)) is not None and type_.dtype in BYTES | NIBBLES:
            values = bytes_.astype(values.dtype)
        elif type_.dtype == DataType.INT64:
            values = np.ceil(3 * values).astype(np.int64)
        if name in hiding and type_.dtype != DataType.BOOL:
            values = np.full(shape, -np.inf)
        elif name in hiding and shape:
            values = np.where(np.arange(shape[-1]) == 0, 1.0, values)
        if ("all_true", name) in cited:
            values = np.ones(shape)
        if name in masks and len(shape) >= 2:
            values = masked(masks[name], values > 0 if type_.dtype == DataType.BOOL else values)
        inputs[name] = np.asarray(values > 0 if type_.dtype == DataType.BOOL else values)  # also a scalar can be written
    return inputs
