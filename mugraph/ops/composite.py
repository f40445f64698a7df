"""Operators defined by an equal term over plainer ones: typing, semantics and cost follow from that term.

A record of this kind gives its decomposition, over the variables x0, x1, ... of its operands, and what beyond it the
operator demands of its operands. The decomposition is also the substitution that takes the operator apart, or makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mugraph.domains.base import FLOATS, Array, Domain
from mugraph.domains.range import RangeDomain
from mugraph.ops.base import PLAIN, REGISTRY, Decompose, Operator, Positions, RuntimeFacts, register
from mugraph.ops.forms import AttrMap, Contract, ForeignNode, NotUnderstood, Read, Write, type_of
from mugraph.ops.interp import evaluate as evaluate_terms
from mugraph.ops.interp import infer_types
from mugraph.ops.normalization import under_rows
from mugraph.ops.traits import NO_TRAITS, Traits
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, same_shape
from mugraph.terms.term import Attrs, Term, make_attrs, walk

__all__ = ["NARROW", "RUNTIME_DOMAIN", "Check", "contract", "define", "expect_shape", "plain_inputs"]

Check = Callable[[AttrMap, Sequence[TensorType]], None]
"""Raises ShapeError or Undecided for operands that the decomposition would take and the operator does not."""
_REMEMBERED = 1 << 12
"""Decompositions and typings kept for each operator: a search asks for the same few again and again."""

RUNTIME_DOMAIN = "com.microsoft"
NARROW = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16})


def contract(
    op_type: str,
    attributes: str,
    inputs: int,
    types: frozenset[DataType] = NARROW,
    domain: str = RUNTIME_DOMAIN,
    **other: Sequence[int],
) -> Contract:
    """A contract of ``inputs`` inputs of the types; ``int32=[3]`` says that input 3 is of another."""
    exceptions = {i: frozenset({DataType[name.upper()]}) for name, positions in other.items() for i in positions}
    return Contract(op_type, domain, frozenset(attributes.split()), tuple(exceptions.get(i, types) for i in range(inputs)))


def define(
    name: str,
    arity: tuple[int, int],
    decompose: Decompose,
    *,
    read: Read,
    write: Write,
    check: Check = lambda attrs, types: None,
    contract: Contract | None = None,
    ranks: Positions | None = None,
    vectors: Positions = lambda attrs, count: (),
    traits: Traits = NO_TRAITS,
    runtime: RuntimeFacts = PLAIN,
    samples: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    sized: frozenset[str] = frozenset(),
) -> Operator:
    """Registers an operator by its decomposition.

    Args:
        ranks: ranks of the operands, where the decomposition speaks of their dimensions; without it, only of their number.
        vectors: positions of the operands of rank 1 that are laid along the last axis of the first one.
        Other arguments as in :class:`Operator`.
    """

    def terms(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
        return roots(make_attrs({**(defaults or {}), **attrs}), tuple(types))

    @lru_cache(maxsize=_REMEMBERED)
    def roots(attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[Term, ...]:
        return decompose(dict(attrs), types)

    @lru_cache(maxsize=_REMEMBERED)
    def typed(attrs: Attrs, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        check(dict(attrs), inputs)
        types = _types_within(roots(attrs, inputs), inputs)
        return tuple(types[root] for root in roots(attrs, inputs))

    def infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return typed(make_attrs(attrs), tuple(inputs))

    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        types = _operand_types(domain, inputs, ranks(attrs, len(inputs)) if ranks else [0] * len(inputs), attrs)
        aligned = list(inputs)
        for position in vectors(attrs, len(inputs)):
            aligned[position] = under_rows(domain, inputs[position], inputs[0], -1)
        outputs = terms(attrs, types)
        values = evaluate_terms(outputs, domain, {f"x{i}": value for i, value in enumerate(aligned)})
        return tuple(values[output] for output in outputs)

    def flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        types = _types_within(terms(attrs, inputs), inputs)
        total = 0
        for term in walk(terms(attrs, inputs)):
            if term.inputs:
                record = REGISTRY[term.op]
                operand_types = [types[operand] for operand in term.inputs]
                total += record.flops({**record.defaults, **dict(term.attrs)}, operand_types, [types[term]])
        return total

    return register(
        Operator(
            name,
            arity,
            infer,
            evaluate,
            read=read,
            write=write,
            flops=flops,
            onnx=() if contract is not None else None,
            defaults=defaults or {},
            sized=sized,
            contract=contract,
            decomposition=terms,
            composite=True,
            traits=replace(traits, named_whole=True),
            runtime=runtime,
            samples=samples,
            ranks=ranks,
        )
    )


def _types_within(roots: Sequence[Term], inputs: Sequence[TensorType]) -> dict[Term, TensorType]:
    """Types of every term of a decomposition."""
    return infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(inputs)})


def _operand_types(domain: Domain, inputs: Sequence[Array], ranks: Sequence[int], attrs: AttrMap) -> list[TensorType]:
    """The operands' own dimensions, without leading ones; a range has none, and any that the attributes divide will do."""
    shapes: list[tuple[Dim, ...]]
    if isinstance(domain, RangeDomain):
        heads = attrs.get("num_heads", attrs.get("group", 1)) + (2 * attrs["kv_num_heads"] if attrs.get("packed") else 0)
        shapes = [(2 * max(heads, 1),) * rank for rank in ranks]
    else:
        shapes = [tuple(domain.shape(a)[len(domain.shape(a)) - rank :]) for a, rank in zip(inputs, ranks, strict=True)]
    return [TensorType(DataType.FLOAT, shape) for shape in shapes]


def expect_shape(name: str, type_: TensorType, shape: Sequence[Dim], dtype: DataType) -> None:
    """Raises ShapeError, or Undecided, unless an operand has this type."""
    fits = same_shape(type_.shape, shape)
    if type_.dtype != dtype or fits is False:
        raise ShapeError(f"{name} of an operand {type_}, not {TensorType(dtype, tuple(shape))}")
    if fits is None:
        question = f"whether {type_} is {TensorType(dtype, tuple(shape))}"
        raise Undecided(question, list(zip(type_.shape, shape, strict=True)))


def plain_inputs(node: ForeignNode, most: int) -> tuple[int, ...]:
    """The given inputs, all floats of one type. Raises NotUnderstood for one beyond the first ``most`` or of another type."""
    inputs = tuple(i for i in range(len(node.types)) if node.present(i))
    if any(i >= most for i in inputs):
        raise NotUnderstood(f"{node.op_type} with input {max(inputs)}")
    types = [type_of(node, i) for i in inputs]
    if {t.dtype for t in types} - FLOATS or len({t.dtype for t in types}) != 1:
        raise NotUnderstood(f"{node.op_type} of element types {', '.join(sorted({t.dtype.name.lower() for t in types}))}")
    return inputs
