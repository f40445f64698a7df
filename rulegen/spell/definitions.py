"""The forms of a composite operator, each with the plain program that defines it.

A form says which operands and outputs there are and what its attributes are: operator properties write them, the samples of the
record give the types. Sizes become symbols, numbers that may be any become samples.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced

from mugraph.domains.base import FLOATS
from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.ops.traits import Movement
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided
from mugraph.terms.term import AttrValue, Term, const, make, make_attrs, open_names, substitute, var, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.mine.composites import templates_of
from rulegen.mine.lifting import lift
from rulegen.mine.numbers import is_sample, sampled
from rulegen.prune.instances import replace
from rules_db.trust.rule import Side

__all__ = ["Definition", "definitions", "plainer"]


@dataclass(frozen=True)
class Definition:
    """A form of a composite operator.

    Attributes:
        operator: its name in the registry.
        roots: the operator applied to variables, one term an output.
        plain: the same outputs by operators that are no name for others.
        types: of the variables.
    """

    operator: str
    roots: Side
    plain: Side
    types: dict[str, TensorType]

    @property
    def is_half(self) -> bool:
        """Whether all operands are of a narrower floating-point type than float32."""
        return {type_.dtype for type_ in self.types.values()} <= FLOATS - {DataType.FLOAT, DataType.DOUBLE}

    def __str__(self) -> str:
        operands = ", ".join(f"{name}:{type_}" for name, type_ in self.types.items())
        return f"{'; '.join(map(repr, self.roots))} | {operands}"


def definitions(operator: str) -> list[Definition]:
    """The forms of an operator whose operands are floating-point tensors, in float32 and then in float16.

    Raises:
        KeyError: there is no operator of the name; the message suggests the nearest one.
        ValueError: it is no name for others, or properties do not write it with operands that are understood here.
    """
    if not get_operator(operator).traits.named_whole:
        raise ValueError(f"'{operator}' is no name for other operators: there is nothing to spell")
    found: dict[tuple[Side, str], Definition] = {}
    for roots, types in _forms(operator):
        form = _lifted(operator, roots, types)
        for variant in _variants(form) if form is not None else ():
            found.setdefault((variant.roots, str(variant.types)), variant)
    if not found:
        raise ValueError(f"no operator property writes '{operator}' over floating-point operands with sizes that are told apart")
    return [_of_type(form, dtype) for dtype in (DataType.FLOAT, DataType.FLOAT16) for form in found.values()]


def plainer(roots: Side, types: dict[str, TensorType]) -> Side:
    """A program by operators that are no name for others, elementwise ones included. Raises as ``infer_types``."""
    while True:
        inferred = infer_types(roots, types)
        named = next((t for t in walk(roots) if t.inputs and traits_of(t.op).named_whole), None)
        if named is None:
            return roots
        parts = get_operator(named.op).decompose(named.attrs, [inferred[i] for i in named.inputs])
        part = substitute(parts[named.out], {f"x{i}": operand for i, operand in enumerate(named.inputs)})
        roots = tuple(replace(root, {named: part}) for root in roots)


def _forms(operator: str) -> Iterator[tuple[Side, dict[str, TensorType]]]:
    """Applications that properties write, with all outputs that they speak of, on operands of a sample; sizes are numbers."""
    spoken: dict[Term, tuple[set[int], list[TensorType], int]] = {}
    for template in templates_of(operator):
        for term, operands in _samples(operator):
            operands += operands[-1:] * (template.operands - len(operands))  # a bias that the sample leaves out is like a scale
            operands = _batched(operands[: template.operands])
            given = {**get_operator(operator).defaults, **dict(term.attrs)}
            attrs = {k: given.get(k, v) if any(open_names(v)) else v for k, v in template.attrs}
            applied = Term(operator, make_attrs(attrs), tuple(var(f"x{i}") for i in range(template.operands)), 0)
            try:
                outputs = get_operator(operator).types(applied.attrs, operands)
            except (ShapeError, Undecided, LookupError, TypeError, ValueError):
                continue
            if all(type_.dtype in FLOATS for type_ in operands):
                spoken.setdefault(applied, (set(), operands, len(outputs)))[0].update(template.outputs)
    for applied, (outs, operands, count) in spoken.items():
        if outs == set(range(count)):
            types = {f"x{i}": type_ for i, type_ in enumerate(operands)}
            yield tuple(Term(operator, applied.attrs, applied.inputs, out) for out in range(count)), types


def _batched(operands: list[TensorType]) -> list[TensorType]:
    """The types with a batch of two where all that have an axis for it have a batch of one: that would stand for no other."""
    if any(type_.rank > 2 and type_.shape[0] != 1 for type_ in operands):
        return operands
    return [TensorType(t.dtype, (2, *t.shape[1:])) if t.rank > 2 else t for t in operands]


def _samples(operator: str) -> Iterator[tuple[Term, list[TensorType]]]:
    """The samples of a record as terms, with the types of their operands."""
    for text in get_operator(operator).samples:
        sample, typing = text.split(" | ")
        types = {name: parse_type(type_) for name, type_ in (item.split(":", 1) for item in typing.split())}
        term = parse_term(sample)
        yield term, [types[operand.name] for operand in term.inputs]


def _lifted(operator: str, roots: Side, types: dict[str, TensorType]) -> Definition | None:
    """The form with symbols for sizes and samples for numbers; ``None`` where its sizes cannot be told apart."""
    try:
        lifted = lift(plainer(roots, types), types)
        if lifted is None:
            return None
        general = sampled(_sized(roots, *lifted))
        return Definition(operator, general, plainer(general, lifted[1]), lifted[1])
    except (ShapeError, Undecided):
        return None


def _variants(form: Definition) -> Iterator[Definition]:
    """The form, and what is left of it where a factor is one, an operand is repeated, or the result is taken as rows."""
    yield form
    yield from _without_factors(form)
    yield from _repeated(form)
    yield from _rows(form)


def _without_factors(form: Definition) -> Iterator[Definition]:
    """Forms in which a number by which the plain program multiplies is one."""
    for name, value in form.roots[0].attrs:
        if is_sample(value):
            roots = tuple(Term(r.op, make_attrs({**dict(r.attrs), name: 1.0}), r.inputs, r.out) for r in form.roots)
            plain = plainer(roots, form.types)
            products = {t: t.inputs[0] for t in walk(plain) if t.op == "Mul" and t.inputs[1] == const(1.0)}
            shorter = tuple(replace(root, products) for root in plain)
            if len(set(walk(shorter))) < len(set(walk(form.plain))):
                yield replaced(form, roots=roots, plain=shorter)


def _repeated(form: Definition) -> Iterator[Definition]:
    """Forms with an operand that is repeated along its last axis but one, where it is one already along another: a mask."""
    for name, type_ in form.types.items():
        shape = type_.shape
        if len(shape) < 2 or 1 not in shape[:-2] or shape[-2] == 1:
            continue
        narrow = TensorType(type_.dtype, (*shape[:-2], 1, shape[-1]))
        whole = {var(name): make("Expand", [var(name)], {"shape": shape})}
        roots, types = tuple(replace(root, whole) for root in form.roots), {**form.types, name: narrow}
        with contextlib.suppress(ShapeError, Undecided):
            if [infer_types(form.plain, types)[r] for r in form.plain] == [
                infer_types(form.plain, form.types)[r] for r in form.plain
            ]:
                yield replaced(form, roots=roots, types=types)


def _rows(form: Definition) -> Iterator[Definition]:
    """The form as a matrix of all rows, where the plain program ends by giving its result a shape."""
    (root, *others), (plain, *_) = form.roots, form.plain
    shape = infer_types([plain], form.types)[plain].shape
    if not others and len(shape) == 3 and traits_of(plain.op).movement is Movement.VIEW:
        attrs = {"drop": 3, "shape": (shape[0] * shape[1], shape[2])}
        yield replaced(form, roots=(make(plain.op, [root], attrs),), plain=(make(plain.op, [plain], attrs),))


def _sized(roots: Side, plain: Side, types: dict[str, TensorType]) -> Side:
    """The application with those symbols for sizes in its attributes with which it is the plain program. Raises ShapeError."""
    sizes = dict.fromkeys(d for term in walk(plain) for _, value in term.attrs for d in _sizes(value))
    places = [name for name, value in roots[0].attrs if _is_size(value)]
    for chosen in itertools.product((None, *sizes), repeat=len(places)):
        attrs = {**dict(roots[0].attrs), **{n: size for n, size in zip(places, chosen, strict=True) if size is not None}}
        made = tuple(Term(root.op, make_attrs(attrs), root.inputs, root.out) for root in roots)
        with contextlib.suppress(ShapeError, Undecided):
            if plainer(made, types) == plain:
                return made
    raise ShapeError(f"no sizes with which {roots[0]!r} is {plain[0]!r}")


def _is_size(value: AttrValue) -> bool:
    """Whether an attribute may be a size: a whole number of two or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _sizes(value: AttrValue) -> Iterator[SymDim]:
    if isinstance(value, tuple):
        for entry in value:
            yield from _sizes(entry)
    elif isinstance(value, SymDim):
        yield value


def _of_type(form: Definition, dtype: DataType) -> Definition:
    types = {name: TensorType(dtype, type_.shape) for name, type_ in form.types.items()}
    return Definition(form.operator, form.roots, form.plain, types)
