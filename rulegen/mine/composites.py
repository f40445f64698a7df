"""Composite operators applied to the leaves of a cone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from mugraph.ops import get_operator, traits_of
from mugraph.terms.shape import DataType, Shape, ShapeError, TensorType, Undecided
from mugraph.terms.term import Attrs, AttrValue, AttrVar, Term, make, make_attrs, open_names, walk
from rulegen.mine.cuts import Cone
from rulegen.mine.operands import POSITIONS, Operand, operands_of
from rulegen.mine.supply import Supply
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Side

__all__ = ["CompositeTemplate", "applications", "counts_outputs", "is_composite", "is_product", "templates_of"]


def is_composite(op: str) -> bool:
    """Whether exporters spell the operator out."""
    return traits_of(op).named_whole


def is_product(op: str) -> bool:
    """Whether a composite operator does no more than its product and its epilogue: no step on the way to larger ones."""
    return traits_of(op).product is not None


@dataclass(frozen=True)
class CompositeTemplate:
    """An application of a composite operator with open attributes, as operator properties write it.

    Attributes:
        outputs: that properties speak of.
        operands: their number.
    """

    op: str
    attrs: Attrs
    outputs: tuple[int, ...]
    operands: int


@lru_cache(maxsize=1)
def _templates() -> tuple[CompositeTemplate, ...]:
    """The composite operators as operator properties write them, with the outputs that any of these speaks of."""
    written: dict[tuple[str, str, int], tuple[Attrs, set[int]]] = {}
    for axiom in load_axioms().values():
        for term in walk([axiom.left, axiom.right]):
            if term.inputs and is_composite(term.op):
                names = iter(range(99))
                renamed = tuple((k, AttrVar(f"a{next(names)}") if _is_open(v) else v) for k, v in term.attrs)
                written.setdefault((term.op, repr(renamed), len(term.inputs)), (renamed, set()))[1].add(term.out)
    return tuple(
        CompositeTemplate(op, attrs, tuple(sorted(outs)), count)
        for (op, _, count), (attrs, outs) in sorted(written.items())
        if not any(isinstance(v, tuple) and any(open_names(v)) for _, v in attrs)
    )


def templates_of(operator: str) -> tuple[CompositeTemplate, ...]:
    """The applications of a composite operator that operator properties write."""
    return tuple(template for template in _templates() if template.op == operator)


def _is_open(value: AttrValue) -> bool:
    """Whether all of an attribute is open."""
    return isinstance(value, AttrVar) or (isinstance(value, tuple) and value != () and all(any(open_names(v)) for v in value))


_UNTYPED = frozenset({"epsilon", "scale", "alpha", "beta"})
"""Attributes that no type depends on."""


def counts_outputs(attrs: Attrs) -> bool:
    """Whether attributes say how many outputs there are; of an operator without such the first alone may be asked for."""
    return not {"bias", "sum", "present"}.isdisjoint(name for name, _ in attrs)


def applications(cone: Cone, supply: Supply, wanted: Sequence[TensorType]) -> Iterator[Side]:
    """Every composite operator applied to all leaves of the cone, in every order and with every attribute that types.

    Where the cone ends with a Reshape, so may the program; the result of an operator that takes positions, heads side by side,
    is split into heads again.

    Args:
        cone: whose leaves, or forms of them, are the operands.
        supply: of values for open attributes.
        wanted: types of the outputs.
    """
    reshaped = len(cone.roots) == 1 and cone.roots[0].op == "Reshape"
    choices = list(operands_of(cone, supply))
    for template in _templates():
        counts = counts_outputs(template.attrs)
        if (len(wanted) > 1) != (template.outputs != (0,)) and (len(wanted) > 1 or counts):
            continue
        fitting = (chosen for chosen in choices if len(chosen) == template.operands)
        for operands in (order for chosen in fitting for order in itertools.permutations(chosen)):
            if _of_ranks(template, tuple((type_.dtype, type_.rank) for _, type_ in operands)):
                yield from _applied(template, operands, supply, wanted, reshaped)


def _applied(
    template: CompositeTemplate, operands: Sequence[Operand], supply: Supply, wanted: Sequence[TensorType], reshaped: bool
) -> Iterator[Side]:
    """An operator applied to operands in this order, with every choice of attributes that gives the wanted types."""
    names, terms = [name for name, _ in template.attrs], tuple(term for term, _ in operands)
    values = [supply.of(name) if isinstance(value, AttrVar) else (value,) for name, value in template.attrs]
    typing = [choices[:1] if name in _UNTYPED else choices for name, choices in zip(names, values, strict=True)]
    untyped = {name: choices for name, choices in zip(names, values, strict=True) if name in _UNTYPED}
    for some in itertools.product(*typing):
        attrs = dict(zip(names, some, strict=True))
        try:
            outputs = get_operator(template.op).types(attrs, [type_ for _, type_ in operands])
        except (ShapeError, Undecided, LookupError, TypeError, ValueError):
            continue
        outputs = outputs[: len(wanted)]
        whole = list(outputs) == list(wanted)
        apart = None if whole or POSITIONS not in {term.op for term in terms} else _apart(outputs, wanted)
        reshapes = reshaped and not is_product(template.op) and _reshapes(outputs, wanted)
        if not whole and apart is None and not reshapes:
            continue
        for numbers in itertools.product(*untyped.values()):
            final = make_attrs({**attrs, **dict(zip(untyped, numbers, strict=True))})
            made = tuple(Term(template.op, final, terms, out) for out in range(len(outputs)))
            if apart is not None:
                yield (make("Transpose", [make("Reshape", made, {"drop": 1, "shape": apart})], {"perm": (1, 0, 2)}),)
                continue
            shape = (("drop", outputs[0].rank), ("shape", wanted[0].shape))
            yield made if whole else (Term("Reshape", shape, made, 0),)


@cache
def _of_ranks(template: CompositeTemplate, kinds: tuple[tuple[DataType, int], ...]) -> bool:
    """Whether the operator takes operands of these element types and ranks, as far as a few sizes tell."""
    trial = Supply((1.0,), (2, 8), (-1,), (), ((8, 8, 8),))
    values = [trial.of(name) if isinstance(value, AttrVar) else (value,) for name, value in template.attrs]
    attributes = [dict(zip([name for name, _ in template.attrs], some, strict=True)) for some in itertools.product(*values)]
    for lasts in itertools.product(*((8, 4, 24, 32) if rank else (8,) for _, rank in kinds)):
        types = [TensorType(dtype, (*(8,) * (rank - 1), last)[:rank]) for (dtype, rank), last in zip(kinds, lasts, strict=True)]
        for attrs in attributes:
            with contextlib.suppress(ShapeError, Undecided, LookupError, TypeError, ValueError):
                get_operator(template.op).types(attrs, types)
                return True
    return False


def _apart(outputs: Sequence[TensorType], wanted: Sequence[TensorType]) -> Shape | None:
    """Number and size of the heads, if the only output has them side by side, [b, s, n*d], and wanted is [b, n, s, d]."""
    if [t.rank for t in (*outputs, *wanted)] != [3, 4] or outputs[0].dtype != wanted[0].dtype:
        return None
    batch, heads, length, size = wanted[0].shape
    return (heads, size) if outputs[0].shape == (batch, length, heads * size) else None


def _reshapes(before: Sequence[TensorType], after: Sequence[TensorType]) -> bool:
    """Whether a Reshape of the only output has the type that is wanted."""
    try:
        attrs = {"drop": before[0].rank, "shape": after[0].shape}
        made = len(before) == 1 and get_operator("Reshape").types(attrs, before) == (after[0],)
    except (ShapeError, Undecided):
        return False
    return made
