"""Typing and evaluation of terms in any domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import get_operator, traits_of
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Attrs, Term, make, replace_terms, substitute, variables, walk

__all__ = ["evaluate", "expanded", "infer_output", "infer_types", "plainer", "taken_apart", "unread"]


def infer_output(op: str, attrs: Attrs, out: int, operands: Sequence[TensorType], literal: Sequence[bool]) -> TensorType:
    """The type of output ``out`` of one application; ``literal`` marks the operands that are constants of a program.

    A numeric constant takes the element type of the operand beside it, ``float`` where it has none.

    Raises:
        ShapeError, Undecided, KeyError: as :func:`infer_types`.
    """
    beside = [t.dtype for t, is_const in zip(operands, literal, strict=True) if not is_const and t.dtype != DataType.BOOL]
    if beside:
        wide = beside[0]
        operands = [
            TensorType(wide, ()) if is_const and t.dtype != DataType.BOOL else t
            for t, is_const in zip(operands, literal, strict=True)
        ]
    outputs = get_operator(op).types(attrs, operands)
    if out >= len(outputs):
        raise ShapeError(f"{op} has no output {out}")
    return outputs[out]


def infer_types(roots: Iterable[Term], inputs: Mapping[str, TensorType]) -> dict[Term, TensorType]:
    """Types of every term under ``roots``.

    A numeric constant takes the element type of the operand beside it, ``float`` where it has none.

    Raises:
        ShapeError: a term is ill-typed; the message holds its text.
        Undecided: typing depends on the values of dimension symbols.
        KeyError: an unknown operator or a variable without a type.
    """
    types: dict[Term, TensorType] = {}
    for term in walk(roots):
        if term.is_var:
            types[term] = inputs[term.name]
            continue
        if term.op == "Const":
            is_bool = isinstance(term.attr("value"), bool)
            types[term] = TensorType(DataType.BOOL if is_bool else DataType.FLOAT, ())
            continue
        operands = [types[operand] for operand in term.inputs]
        try:
            types[term] = infer_output(term.op, term.attrs, term.out, operands, [o.op == "Const" for o in term.inputs])
        except (ShapeError, Undecided) as problem:
            problem.args = (f"{problem} in {term!r}",)
            raise
    return types


def evaluate(roots: Iterable[Term], domain: Domain, inputs: Mapping[str, Array]) -> dict[Term, Array]:
    """Values of every term under ``roots`` in ``domain``; ``inputs`` gives those of the variables."""
    values: dict[Term, Array] = {}
    outputs: dict[tuple[object, ...], tuple[Array, ...]] = {}
    for term in walk(roots):
        if term.is_var:
            values[term] = inputs[term.name]
        elif term.op == "Const":
            values[term] = domain.const(term.attr("value"))
        else:
            key = (term.op, term.attrs, term.inputs)
            if key not in outputs:
                outputs[key] = get_operator(term.op).run(domain, term.attrs, [values[i] for i in term.inputs])
            values[term] = outputs[key][term.out]
    return values


def expanded(term: Term, types: Mapping[Term, TensorType]) -> Term | None:
    """One step from an operator that is composed of others to these; ``None`` for others, and for elementwise ones.

    Args:
        types: of the operands.
    """
    roots = _composed_of(term, types)
    return None if roots is None else substitute(roots[term.out], {f"x{i}": operand for i, operand in enumerate(term.inputs)})


def unread(term: Term, types: Mapping[Term, TensorType]) -> list[int]:
    """The operands that no result of an operator is composed of: what a runtime reads there is told by an attribute, too.

    Args:
        types: of the operands.
    """
    read = {part.name for part in variables(_composed_of(term, types) or ())}
    return [] if not read else [i for i in range(len(term.inputs)) if f"x{i}" not in read]


def _composed_of(term: Term, types: Mapping[Term, TensorType]) -> Sequence[Term] | None:
    """The results of an operator that is composed of others; ``None`` of others, of elementwise ones, and at sizes at which it is
    not."""
    record = get_operator(term.op)
    if record.elementwise or record.decomposition is None:
        return None
    beside = [types[i].dtype for i in term.inputs if i.op != "Const"]
    operands = [TensorType(beside[0] if beside else DataType.FLOAT, ()) if i.op == "Const" else types[i] for i in term.inputs]
    try:
        return record.decompose(term.attrs, operands)
    except ShapeError:
        return None


def taken_apart(roots: Iterable[Term], inputs: Mapping[str, TensorType]) -> list[Term]:
    """Terms without operators that are composed of others, but for elementwise ones. Raises as :func:`infer_types`."""
    current = list(roots)
    while True:
        types = infer_types(current, inputs)
        done: dict[Term, Term] = {}
        for part in walk(current):
            operands = [done[i] for i in part.inputs]
            plain = operands == list(part.inputs)
            taken = expanded(part, types) if part.inputs and plain else None
            done[part] = taken or (part if plain else make(part.op, operands, part.attrs, part.out))
        following = [done[root] for root in current]
        if following == current:
            return current
        current = following


def plainer(roots: Sequence[Term], inputs: Mapping[str, TensorType]) -> tuple[Term, ...]:
    """Terms by operators that are no name for others, elementwise ones included. Raises as :func:`infer_types`."""
    current = tuple(roots)
    while True:
        types = infer_types(current, inputs)
        named = next((t for t in walk(current) if t.inputs and traits_of(t.op).named_whole), None)
        if named is None:
            return current
        parts = get_operator(named.op).decompose(named.attrs, [types[i] for i in named.inputs])
        part = substitute(parts[named.out], {f"x{i}": operand for i, operand in enumerate(named.inputs)})
        current = tuple(replace_terms(root, {named: part}) for root in current)
