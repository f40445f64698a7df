"""Applying a matched rule: the replacement built in the model's tables, and the candidate it gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mugraph.graph import CycleError, Definition, Graph
from mugraph.node import AttrValue, Term, bind_attrs, bind_value, walk
from mugraph.shape import DataType, ShapeError, SymDim, TensorType, Undecided, same_shape
from mugraph.text import format_value
from rewriter.match import FLOATS, Match, NoMatch, check_guards
from rewriter.ranges import RangeOracle
from rules_db.rule import value_symbols

__all__ = ["apply_match"]


def apply_match(match: Match, graph: Graph, oracle: RangeOracle) -> Graph | NoMatch:
    """The candidate in which the match's values are computed by the replacement, or why there is none."""
    dims = check_guards(match, graph, oracle)
    if isinstance(dims, NoMatch):
        return dims
    try:
        changes = _instantiate(match, graph, dims)
    except (ShapeError, Undecided) as problem:
        return NoMatch(f"the replacement is ill-typed: {problem}", match.values[0])
    for value, (node, out) in changes.items():
        before, after = graph.type(value), graph.type(node.values[out])
        assert before is not None and after is not None
        if before.dtype != after.dtype or same_shape(before.shape, after.shape) is not True:
            return NoMatch(f"the replacement has type {after}, not {before}", value)
    if all(graph.definition(value) == definition for value, definition in changes.items()):
        return NoMatch("nothing would change", match.values[0])
    # With one output, what the pattern bound lies upstream of it; with several, an operand may depend on another output.
    independent = set(match.binding.values()) - set(match.values) if len(match.values) == 1 else ()
    try:
        return graph.substitute(changes, independent)
    except CycleError as problem:
        return NoMatch(str(problem), match.values[0])


def _instantiate(match: Match, graph: Graph, dims: Mapping[str, AttrValue]) -> dict[int, Definition]:
    tables = graph.tables
    values: dict[Term, int] = {}
    for term in walk(match.direction.replacement):
        bound = match.binding.get(term)
        if bound is not None:
            values[term] = bound
        elif term.op == "Const":
            continue
        else:
            dtype = _context(graph, [values[i] for i in term.inputs if i in values])
            for operand in term.inputs:
                if operand not in values:
                    values[operand] = _literal(graph, bind_value(operand.attr("value"), dims), dtype)
            attrs = bind_attrs(term.attrs, dims)
            for name, value in attrs if term.op != "Reshape" else ():  # a Reshape can ask its input for a size
                if any(value_symbols(value)):
                    raise Undecided(f"{name} {format_value(value)} of {term.op} is not known in numbers")
            node = tables.apply(term.op, attrs, [values[i] for i in term.inputs])
            values[term] = node.values[term.out]
    changes: dict[int, Definition] = {}
    for root, value in zip(match.direction.replacement, match.values, strict=True):
        if root in match.binding or root.op == "Const":
            if root not in values:
                type_ = graph.type(value)
                assert type_ is not None
                values[root] = _literal(graph, bind_value(root.attr("value"), dims), type_.dtype)
            changes[value] = (tables.apply("Identity", (), [values[root]]), 0)
        else:
            maker = tables.makers[values[root]]
            changes[value] = maker
    return changes


def _context(graph: Graph, operands: list[int]) -> DataType:
    """The element type that a numeric literal beside these operands takes."""
    for value in operands:
        type_ = graph.type(value)
        if type_ is not None and type_.dtype in FLOATS:
            return type_.dtype
    return DataType.FLOAT


def _literal(graph: Graph, wanted: AttrValue, dtype: DataType) -> int:
    if isinstance(wanted, SymDim):
        raise Undecided(f"the number {wanted}")
    type_ = TensorType(DataType.BOOL if isinstance(wanted, bool) else dtype, ())
    return graph.tables.literal(np.asarray(wanted, type_.dtype.numpy()), type_)
