"""Applying a matched rule: the replacement built in the model's tables, and the candidate it gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.graph import CycleError, Definition, Graph, Tables
from mugraph.onnx.function import function_of
from mugraph.onnx.sizes import check_sizes, reads_sizes
from mugraph.ops import NotExpressible, OnnxForm, Packed, get_operator
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, same_shape
from mugraph.terms.term import AttrValue, Term, attr_symbols, bind_value, format_value, walk
from rewriter.search.bindings import close_attrs, literal_type, tensor_type
from rewriter.search.guards import check_guards
from rewriter.search.match import Match, NoMatch
from rewriter.search.ranges import RangeOracle

__all__ = ["Plan", "inexpressible", "plan_match", "substitute_match"]

Plan = Mapping[int, Definition]
"""The values that a match redefines, each with its new definition."""


class NoKernel(Exception):
    """The execution provider has no kernel for an operator of the replacement."""


def plan_match(match: Match, graph: Graph, oracle: RangeOracle) -> Plan | NoMatch:
    """The values that a match would redefine, or why it does not apply: the same in every candidate in which the match holds."""
    if _spans_bodies(match, graph):
        return NoMatch("a part of it stands within a body of If, Loop or Scan, and a part elsewhere", match.values[0])
    if match.direction.needs_attended and not oracle.assume_attended:
        return NoMatch("rows that a mask hides throughout are zeros on one side alone", match.values[0])
    dims = check_guards(match, graph, oracle)
    if isinstance(dims, NoMatch):
        return dims
    try:
        changes = _instantiate(match, graph, dims)
    except NoKernel as problem:
        return NoMatch(str(problem), match.values[0])
    except (ShapeError, Undecided) as problem:
        return NoMatch(f"the replacement is ill-typed: {problem}", match.values[0])
    for value, (node, out) in changes.items():
        before, after = graph.type(value), graph.type(node.values[out])
        assert before is not None and after is not None
        if before.dtype != after.dtype or same_shape(before.shape, after.shape) is not True:
            return NoMatch(f"the replacement has type {after}, not {before}", value)
    if all(graph.definition(value) == definition for value, definition in changes.items()):
        return NoMatch("nothing would change", match.values[0])
    return changes


def _spans_bodies(match: Match, graph: Graph) -> bool:
    """Whether a match with several outputs joins what is computed in different bodies, or in one and around it."""
    tables = graph.tables
    if len(match.values) == 1 or not tables.bodies:
        return False
    values = (v for v in (*match.values, *match.binding.values()) if not tables.constant[v])
    return len({tables.bodies.get(v, 0) for v in values}) > 1


def substitute_match(match: Match, graph: Graph, plan: Plan) -> Graph | NoMatch:
    """The candidate that a plan gives, unless a value would depend on itself."""
    # With one output, what the pattern bound lies upstream of it; with several, an operand may depend on another output.
    independent = set(match.binding.values()) - set(match.values) if len(match.values) == 1 else ()
    try:
        return graph.substitute(plan, independent)
    except CycleError as problem:
        return NoMatch(str(problem), match.values[0])


def inexpressible(match: Match, graph: Graph, plan: Plan, opset: int) -> NoMatch | None:
    """The reason where a plan cannot be written: an operator has no form in the opset, needs a size that nothing tells where it
    would stand in the file, or has an attribute that does not hold its number."""
    tables, bound = graph.tables, set(match.binding.values())
    body = tables.bodies.get(match.values[0], 0)
    leaves = (v for v, number in tables.bodies.items() if number == body and v not in tables.makers)
    told = [type_ for v in (*leaves, *graph.inputs) if (type_ := tables.types[v]) is not None]
    asked = list[tuple[OnnxForm, list[TensorType]]]()
    stack = [node for node, _ in plan.values()]
    while stack:
        node = stack.pop()
        types = [type_ for v in node.inputs if (type_ := tables.types[v]) is not None]
        try:
            if node.origin is None and not node.is_opaque:
                form = get_operator(node.op).to_onnx(node.attrs, types, opset)
                if lost := _rounded_attribute(form, types):
                    return NoMatch(lost, match.values[0])
                if form.function is not None:
                    function_of(form.function, opset)
                packed = [node.inputs[item.index] for item in form.inputs if isinstance(item, Packed)]
                if not all(tables.constant[value] for value in packed):
                    return NoMatch(f"{node.op} by weights that are no constant", match.values[0])
                asked += [(form, types)] if reads_sizes(form) else []
        except NotExpressible as problem:
            return NoMatch(str(problem), match.values[0])
        stack += [tables.makers[v][0] for v in node.inputs if v not in bound and v in tables.makers]
    computed = _computed_before(match.values, tables) if asked else []
    try:
        for form, types in asked:
            check_sizes(form, types, told, computed, opset)
    except NotExpressible as problem:
        return NoMatch(str(problem), match.values[0])
    return None


def _computed_before(values: Sequence[int], tables: Tables) -> list[tuple[Dim, ...]]:
    """The vectors of sizes that nodes of the file compute before all of some values of one body."""
    body, place = tables.bodies.get(values[0], 0), min(_place(value, tables) for value in values)
    return [
        tuple(entries)
        for value, entries in tables.sizes.items()
        if entries.ndim == 1 and tables.bodies.get(value, 0) == body and _is_written_before(value, place, tables)
    ]


def _place(value: int, tables: Tables) -> int:
    """The node of the file, as its number, behind which a value is written at the earliest; -1 for what nothing computes."""
    place, seen, left = -1, set[int](), [value]
    while left:
        value = left.pop()
        maker = tables.makers.get(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        node, _ = maker
        if node.origin is None:
            left += node.inputs
        else:
            place = max(place, node.origin)
    return place


def _is_written_before(value: int, place: int, tables: Tables) -> bool:
    """Whether a value is computed by a node of the file that stands before another one."""
    maker = tables.makers.get(value)
    return maker is not None and maker[0].origin is not None and maker[0].origin < place


def _rounded_attribute(form: OnnxForm, types: Iterable[TensorType]) -> str:
    """What a form of a node of doubles would round: ONNX's attributes are of float32. Empty where it rounds nothing.

    Numbers of narrower types are as exact in an attribute as they are where they stand.
    """
    if all(type_.dtype != DataType.DOUBLE for type_ in types):
        return ""
    for name, value in form.attributes.items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and math.isfinite(number) and float(np.float32(number)) != number:
                return f"{form.op_type} has {name} in float32, which {number} is not"
    return ""


def _instantiate(match: Match, graph: Graph, dims: Mapping[str, AttrValue]) -> dict[int, Definition]:
    tables = graph.tables
    alone = literal_type(match.direction, dims)
    values: dict[Term, int] = {}
    for term in walk(match.direction.replacement):
        bound = match.binding.get(term)
        if term.op == "Const":
            continue
        if bound is not None:
            values[term] = bound
        else:
            dtype = _context(graph, [values[i] for i in term.inputs if i.op != "Const"], alone)
            operands = [values[i] if i.op != "Const" else _number(match, graph, i, dims, dtype) for i in term.inputs]
            attrs = close_attrs(term.attrs, dims)
            sized = get_operator(term.op).sized
            for name, value in attrs:
                if name not in sized and any(attr_symbols(value)):
                    raise Undecided(f"{name} {format_value(value)} of {term.op} is not known in numbers")
            floats = [t.dtype for v in operands if (t := tables.types[v]) is not None and t.dtype in FLOATS]
            if floats and match.direction.lacks_kernel(term, floats[0]):
                asked = f"{floats[0].name.lower()} on {match.direction.provider}"
                raise NoKernel(f"onnxruntime has no {term.op} kernel for {asked}")
            for place in match.direction.stored(term):
                if not tables.constant[operands[place]]:
                    raise NoKernel(f"onnxruntime's {term.op} takes operand {place} as an initializer only")
            node = tables.apply(term.op, attrs, operands)
            if not operands and graph.type(node.values[term.out]) != (typed := tensor_type(term.op, attrs, alone)):
                node = tables.apply("Cast", (("to", typed.dtype),), node.values)
            values[term] = node.values[term.out]
    changes: dict[int, Definition] = {}
    for root, value in zip(match.direction.replacement, match.values, strict=True):
        if root.op == "Const":
            type_ = graph.type(value)
            assert type_ is not None
            changes[value] = (tables.apply("Identity", (), [_number(match, graph, root, dims, type_.dtype)]), 0)
        elif root in match.binding:
            changes[value] = (tables.apply("Identity", (), [values[root]]), 0)
        else:
            maker = tables.makers[values[root]]
            changes[value] = maker
    return changes


def _context(graph: Graph, beside: list[int], alone: DataType) -> DataType:
    """The element type that a number beside these operands takes, as :func:`mugraph.ops.interp.infer_output` has it."""
    for value in beside:
        type_ = graph.type(value)
        if type_ is not None and type_.dtype != DataType.BOOL:
            return type_.dtype
    return alone


def _number(match: Match, graph: Graph, constant: Term, dims: Mapping[str, AttrValue], dtype: DataType) -> int:
    """A number of the replacement in an element type: the model's own where the match met it in that type."""
    wanted = bind_value(constant.attr("value"), dims)
    if isinstance(wanted, SymDim):
        raise Undecided(f"the number {wanted}")
    type_ = TensorType(DataType.BOOL if isinstance(wanted, bool) else dtype, ())
    bound = match.binding.get(constant)
    if bound is not None and graph.type(bound) == type_:
        return bound
    return graph.tables.literal(np.asarray(wanted, type_.dtype.numpy()), type_)
