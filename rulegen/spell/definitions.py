"""The forms of a composite operator, each with the plain program that defines it.

A form says which operands and outputs there are and what its attributes are: operator properties write them, the samples of the
record give the types. Sizes become symbols, numbers that may be any become samples.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

from mugraph.domains.base import FLOATS
from mugraph.ops import get_operator
from mugraph.ops.interp import plainer
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import AttrValue, Term, make, make_attrs, open_names, var, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import operator_count
from rulegen.mine.composites import counts_outputs, templates_of
from rulegen.mine.cuts import Cutting
from rulegen.mine.lifting import lift
from rulegen.mine.numbers import sampled
from rulegen.spell.definition import Definition, counted
from rulegen.spell.variants import variants
from rules_db.trust.rule import Side

__all__ = ["definitions"]


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
        # What is larger than a cone is found by way of what it is made of.
        for variant in variants(form) if form is not None and operator_count(form.plain) <= Cutting.operators else ():
            found.setdefault((variant.roots, str(variant.types)), variant)
    if not found:
        raise ValueError(f"no operator property writes '{operator}' over floating-point operands with sizes that are told apart")
    return [_of_type(form, dtype) for dtype in (DataType.FLOAT, DataType.FLOAT16) for form in found.values()]


def _forms(operator: str) -> Iterator[tuple[Side, dict[str, TensorType]]]:
    """Applications that properties write, with all outputs that they speak of, on operands of a sample; sizes are numbers."""
    spoken: dict[Term, tuple[set[int], dict[str, TensorType], int]] = {}
    for template in templates_of(operator):
        for term, operands in _samples(operator):
            operands += operands[-1:] * (template.operands - len(operands))  # a bias that the sample leaves out is like a scale
            operands = _batched(operands[: template.operands])
            given = {**get_operator(operator).defaults, **dict(term.attrs)}
            attrs = {k: given.get(k, v) if any(open_names(v)) else v for k, v in template.attrs}
            if not dict(term.attrs).keys() <= attrs.keys():
                continue  # the sample is of another use
            inputs = tuple(_positions(type_) or var(f"x{i}") for i, type_ in enumerate(operands))
            applied = Term(operator, make_attrs(attrs), inputs, 0)
            types = {x.name: type_ for x, type_ in zip(inputs, operands, strict=True) if x.is_var}
            try:
                outputs = get_operator(operator).types(applied.attrs, operands)
            except (ShapeError, Undecided, LookupError, TypeError, ValueError):
                continue
            if all(type_.dtype in FLOATS for type_ in types.values()):
                spoken.setdefault(applied, (set(), types, len(outputs)))[0].update(template.outputs)
    for applied, (outs, types, count) in spoken.items():
        wanted = count if counts_outputs(applied.attrs) else 1
        if outs >= set(range(wanted)):
            yield tuple(Term(operator, applied.attrs, applied.inputs, out) for out in range(wanted)), types


def _positions(type_: TensorType) -> Term | None:
    """What models give for whole numbers, one for each position of a sequence: all positions of it."""
    if type_.dtype is DataType.INT64 and type_.rank == 2 and type_.shape[0] == 1:
        return make("Positions", [], {"length": type_.shape[1]})
    return None


def _batched(operands: list[TensorType]) -> list[TensorType]:
    """The types with a batch of two where all that have an axis for it have a batch of one: that would stand for no other.

    Positions are those of one sequence, so that beside these the batch is one.
    """
    if any(type_.dtype is DataType.INT64 for type_ in operands):
        return [TensorType(t.dtype, (1, *t.shape[1:])) if t.rank > 2 or t.dtype is DataType.INT64 else t for t in operands]
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
    with contextlib.suppress(ShapeError, Undecided):
        given = counted(plainer(roots, types), types)
        for alike, multiples in ((False, False), (True, False), (True, True)):  # some want equal sizes, some multiples
            lifted = lift(given, types, alike, multiples)
            if lifted is not None:
                with contextlib.suppress(ShapeError, Undecided):
                    general = sampled(_sized(roots, *lifted, _sizes_of(given, types, *lifted)))
                    return Definition(operator, general, counted(plainer(general, lifted[1]), lifted[1]), lifted[1])
    return None


def _sizes_of(given: Side, types: dict[str, TensorType], plain: Side, symbols: dict[str, TensorType]) -> dict[str, AttrValue]:
    """The sizes that symbols stand for, of a program with numbers for sizes and of one with symbols."""
    pairs = [(symbols[name].shape, types[name].shape) for name in types]
    pairs += zip(*([value for term in walk(side) for _, value in term.attrs] for side in (plain, given)), strict=True)
    return solve((e for pattern, actual in pairs for e in equations(pattern, actual)), {})


def _sized(roots: Side, plain: Side, types: dict[str, TensorType], known: dict[str, AttrValue]) -> Side:
    """The application with those symbols for sizes in its attributes with which it is the plain program. Raises ShapeError.

    Args:
        roots: the application, with numbers for sizes.
        plain: the program with symbols.
        types: of the variables, with symbols.
        known: the sizes that symbols stand for.
    """
    sizes = dict.fromkeys(d for term in walk(plain) for _, value in term.attrs for d in _sizes(value))
    sizes |= dict.fromkeys(d for type_ in types.values() for d in type_.shape if isinstance(d, SymDim))
    by_size: dict[Dim, list[Dim]] = {}
    for size in sizes:
        with contextlib.suppress(Undecided):
            by_size.setdefault(evaluate_dim(size, known), []).append(size)

    def choices(value: AttrValue) -> list[AttrValue]:
        if isinstance(value, tuple):
            return [*itertools.product(*map(choices, value))]
        return [*by_size.get(value, ()), value] if _is_size(value) else [value]

    constants = [operand for operand in roots[0].inputs if not operand.is_var]
    places = [(term, name, choices(value)) for term in (roots[0], *constants) for name, value in term.attrs]
    for chosen in itertools.product(*(values for *_, values in places)):
        new = {(term, name): value for (term, name, _), value in zip(places, chosen, strict=True)}

        def made(term: Term, inputs: tuple[Term, ...], out: int, new: dict[tuple[Term, str], AttrValue] = new) -> Term:
            return Term(term.op, make_attrs({name: new[term, name] for name, _ in term.attrs}), inputs, out)

        operands = tuple(operand if operand.is_var else made(operand, (), 0) for operand in roots[0].inputs)
        applied = tuple(made(roots[0], operands, root.out) for root in roots)
        with contextlib.suppress(ShapeError, Undecided):
            if counted(plainer(applied, types), types) == plain:
                return applied
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
    types = {name: TensorType(dtype, type_.shape) if type_.dtype in FLOATS else type_ for name, type_ in form.types.items()}
    return replace(form, types=types)
