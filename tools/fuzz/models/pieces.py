"""The pieces that random models are put together of: instances of rules, samples of operators, operators drawn by their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from mugraph.domains.base import BYTES, FLOATS
from mugraph.ops import REGISTRY, Entrywise, get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType, concrete, evaluate_dim
from mugraph.terms.term import Term, bind_value, make, substitute, var, variables, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import operator_count
from rules_db.library import open_rules
from rules_db.trust.rule import Rule, dim_symbols
from tools.fuzz.models.draft import ModelDraft, Rejected, np_type

__all__ = ["PIECES", "Piece", "sample_entries", "sample_of"]

Piece = Callable[[ModelDraft], None]
"""Adds nodes to a draft. Raises Rejected where it does not fit."""

_MOST = 1 << 14
"""Most elements of a value."""
_MOST_OF_SAMPLE = 1 << 16
"""The same for operands of a sample."""


# Rules and samples


@cache
def _rules() -> tuple[Rule, ...]:
    """The shipped rules that are no kernels."""
    return tuple(rule for rule in open_rules() if all(t.op != "Kernel" for t in walk([*rule.source, *rule.target])))


def rule_instance(draft: ModelDraft) -> None:
    """One side of a rule at random sizes, its variables bound to what is there or to new leaves."""
    rule: Rule = draft.one(_rules())
    sides = sorted((rule.source, rule.target), key=operator_count, reverse=True)
    side = sides[0] if draft.chance(0.75) else sides[1]  # the larger one has more to save
    symbols = {s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    sizes = {s: draft.size() for s in sorted(symbols | dim_symbols([*rule.source, *rule.target]))}
    samples = {name: bind_value(value, sizes) for name, value in rule.attrs.items()}
    roots = [substitute(root, {}, samples, sizes) for root in side]
    types = {v.name: rule.types[v.name] for v in variables(roots)}
    plain = all(t.dtype == DataType.FLOAT or t.dtype not in FLOATS for t in rule.types.values())
    most = max((t.rank for t in types.values()), default=0)
    more = (draft.size(),) if draft.chance(0.25) else ()
    binding = {}
    for name, type_ in types.items():
        shape = tuple(evaluate_dim(d, sizes) for d in type_.shape)
        if more and (type_.rank == most or type_.rank > 1):
            shape = more + shape
        dtype = draft.dtype if plain and type_.dtype == DataType.FLOAT else type_.dtype
        binding[name] = draft.leaf(_checked(TensorType(dtype, shape)))
    draft.terms(roots, binding)


def sample(draft: ModelDraft) -> None:
    """An operator as its record says that it may be applied."""
    record = draft.one([record for record in REGISTRY.values() if record.samples])
    sample_of(draft, draft.one(record.samples))


def sample_of(draft: ModelDraft, text: str) -> None:
    """The application that a sample describes; its operands bound to what is there or to new leaves."""
    text, types = text.split(" | ")
    root, binding = parse_term(text), dict[str, str]()
    apart = _apart(root)
    named = {name: parse_type(one) for name, one in (item.split(":") for item in types.split())}
    quantized = any(type_.dtype in BYTES for type_ in named.values())
    for name, type_ in named.items():
        dtype = draft.dtype if type_.dtype == DataType.FLOAT and not quantized else type_.dtype
        small = _checked(TensorType(dtype, type_.shape), _MOST_OF_SAMPLE)
        if type_.dtype in BYTES or (quantized and type_.rank < 2):
            binding[name] = draft.constant(sample_entries(draft, small))
        elif type_.dtype not in FLOATS and type_.dtype != DataType.BOOL:
            binding[name] = (
                draft.input(small, 2, apart.get(name)) if name.islower() else draft.constant(np.zeros(type_.shape), dtype)
            )
        else:
            binding[name] = draft.leaf(small) if name.islower() else draft.constant(draft.numbers(small))
    draft.term(root, binding)


def sample_entries(draft: ModelDraft, type_: TensorType) -> np.ndarray:
    """Bytes from all of their range, or positive scales."""
    shape, dtype = concrete(type_.shape) or (), np_type(type_.dtype)
    if type_.dtype in FLOATS:
        return np.asarray(draft.generator.uniform(0.01, 0.1, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(draft.generator.integers(limits.min, limits.max + 1, shape)).astype(dtype)


def _apart(root: Term) -> dict[str, int]:
    """The operand of whose entries no two may name one place, and the axis along which they would."""
    if root.op == "ScatterElements":
        return {root.inputs[1].name: root.attr("axis")}
    return {root.inputs[1].name: -2} if root.op == "ScatterND" else {}


def _checked(type_: TensorType, most: int = _MOST) -> TensorType:
    """A type that is not too large. Raises Rejected."""
    shape = concrete(type_.shape)
    if shape is None or np.prod(shape, dtype=float) > most or min(shape, default=1) < 0:
        raise Rejected(f"{type_}")
    return type_


# Operators by kind


def _is_float(type_: TensorType) -> bool:
    return type_.dtype in FLOATS


def _of_rank(least: int) -> Callable[[TensorType], bool]:
    return lambda type_: type_.rank >= least and type_.size() <= _MOST


def _applied(draft: ModelDraft, op: str, values: Sequence[str], **attrs: Any) -> str:
    names = [f"x{i}" for i in range(len(values))]
    return draft.term(make(op, [var(n) for n in names], attrs), dict(zip(names, values, strict=True)))


@cache
def _entrywise(least: int) -> tuple[str, ...]:
    """Operators that work entry by entry on so many operands, and need no attributes."""
    found = []
    for record in REGISTRY.values():
        plain = all("[" not in text.split("(")[0] for text in record.samples)
        if record.elementwise and record.samples and plain and record.arity[0] == least and record.contract is None:
            found.append(record.name)
    return tuple(found)


def unary(draft: ModelDraft) -> None:
    op = draft.one(_entrywise(1))
    wanted = DataType.BOOL if op == "Not" else None
    x = draft.value(lambda t: (t.dtype == wanted if wanted else t.dtype in FLOATS or draft.chance(0.2)) and t.size() <= _MOST)
    _applied(draft, op, [x])


def partner(draft: ModelDraft, type_: TensorType) -> str:
    """A value that broadcasts with a type: there already, or new, of some of the dimensions."""
    shape = concrete(type_.shape) or ()
    fitting = [n for n, t in draft.types.items() if t.dtype == type_.dtype and _broadcasts(concrete(t.shape) or (), shape)]
    if fitting and draft.chance(0.5):
        return str(draft.one(fitting))
    cut = int(draft.generator.integers(0, len(shape) + 1))
    narrowed = tuple(1 if draft.chance(0.2) else d for d in shape[cut:])
    return draft.leaf(TensorType(type_.dtype, narrowed))


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False)) and len(a) <= 6


def binary(draft: ModelDraft) -> None:
    op = draft.one(_entrywise(2))
    logical = get_operator(op).traits.entrywise is Entrywise.LOGIC
    x = draft.value(lambda t: (t.dtype == DataType.BOOL) == logical and t.size() <= _MOST)
    pair = [x, partner(draft, draft.types[x])]
    _applied(draft, op, pair if draft.chance(0.5) else pair[::-1])


def where(draft: ModelDraft) -> None:
    x = draft.value(lambda t: t.dtype != DataType.BOOL and t.size() <= _MOST)
    y = partner(draft, draft.types[x])
    condition = partner(draft, TensorType(DataType.BOOL, draft.types[x].shape))
    _applied(draft, "Where", [condition, x, y] if draft.chance(0.5) else [condition, y, x])


def cast(draft: ModelDraft) -> None:
    x = draft.value(lambda t: t.dtype != DataType.STRING and t.size() <= _MOST)
    to = draft.one(
        [DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.INT64, DataType.INT32, DataType.BOOL, draft.dtype]
    )
    _applied(draft, "Cast", [x], to=to)


def with_number(draft: ModelDraft) -> None:
    """Operators with a number for an attribute."""
    x = draft.value(lambda t: _is_float(t) and t.size() <= _MOST)
    op, attrs = draft.one(
        [
            ("LeakyRelu", {"alpha": draft.one([0.01, 0.5, 2.0, -1.0])}),
            ("Elu", {"alpha": draft.one([1.0, 0.5])}),
            ("Clip", {"min": draft.one([-1.0, 0.0, 0.2]), "max": draft.one([1.0, 6.0])}),
            ("Gelu", {"approximate": draft.one(["none", "tanh"])}),
            ("HardSigmoid", {}),
            ("Selu", {}),
        ]
    )
    _applied(draft, op, [x], **{**get_operator(op).defaults, **attrs})


def axis_wise(draft: ModelDraft) -> None:
    """Reductions, normalisations over an axis, sums along one."""
    x = draft.value(lambda t: t.rank > 0 and t.dtype in (*FLOATS, DataType.INT64, DataType.INT32) and t.size() <= _MOST)
    rank = draft.types[x].rank
    op = draft.one([r.name for r in REGISTRY.values() if r.traits.reduction is not None and r.name.startswith("Reduce")])
    if draft.chance(0.35):
        op = draft.one(["Softmax", "LogSoftmax", "CumSum"])
        _applied(draft, op, [x], **{**get_operator(op).defaults, "axis": -int(draft.generator.integers(1, rank + 1))})
        return
    axes = sorted({-int(a) for a in draft.generator.integers(1, rank + 1, size=2)})
    _applied(draft, op, [x], axes=tuple(axes), keepdims=draft.chance(0.6))


def movement(draft: ModelDraft) -> None:
    """Entries in other places."""
    x = draft.value(_of_rank(1))
    shape = concrete(draft.types[x].shape) or ()
    g, rank = draft.generator, len(shape)
    axis = int(g.integers(rank))
    match draft.one(
        ["transpose", "reshape", "slice", "concat", "split", "unsqueeze", "squeeze", "expand", "tile", "pad", "gather"]
    ):
        case "transpose":
            _applied(draft, "Transpose", [x], perm=tuple(int(i) for i in g.permutation(rank)))
        case "reshape":
            total = int(np.prod(shape))
            first = int(draft.one([d for d in range(1, total + 1) if total % d == 0] or [1]))
            wanted = draft.one([(-1,), (first, -1), (0, -1), (-1, shape[-1]), (1, *shape)])
            draft.node("Reshape", [x, draft.ints(*wanted)])
        case "slice":
            size = shape[axis]
            begin, end = sorted(int(i) for i in g.integers(0, size + 1, 2))
            step = int(draft.one([1, 1, 2, -1]))
            if step < 0:
                begin, end = end, begin - size - 1
            ends = np.iinfo(np.int64).max if draft.chance(0.3) and step > 0 else end
            draft.node(
                "Slice", [x, draft.ints(begin), draft.ints(ends), draft.ints(axis - draft.one([0, rank])), draft.ints(step)]
            )
        case "concat":
            others = [n for n, t in draft.types.items() if t == draft.types[x]]
            values = [x, *(draft.one(others) for _ in range(int(g.integers(1, 3))))]
            _applied(draft, "Concat", values, axis=axis - rank)
        case "split":
            first = int(g.integers(0, shape[axis] + 1))
            sizes = [first, shape[axis] - first]
            if draft.chance(0.3):
                sizes += [0] if draft.chance(0.2) else []
            attributes = {"axis": axis}
            if draft.opset < 13:
                draft.node("Split", [x], {**attributes, "split": sizes}, len(sizes))
            else:
                draft.node("Split", [x, draft.ints(*sizes)], attributes, len(sizes))
        case "unsqueeze":
            _applied(draft, "Unsqueeze", [x], axes=(-int(g.integers(1, rank + 2)),))
        case "squeeze":
            ones = [i - rank for i, d in enumerate(shape) if d == 1]
            _applied(draft, "Squeeze", [x], axes=(draft.one(ones),))
        case "expand":
            wanted = tuple(draft.size() if d == 1 else d for d in shape)
            _applied(draft, "Expand", [x], shape=(*((draft.size(),) if draft.chance(0.4) else ()), *wanted))
        case "tile":
            _applied(draft, "Tile", [x], repeats=tuple(int(i) for i in g.integers(1, 3, rank)))
        case "pad":
            begins, ends = (tuple(int(i) for i in g.integers(0, 2, rank)) for _ in range(2))
            mode = draft.one(["constant", "reflect", "edge"])
            _applied(draft, "Pad", [x], begins=begins, ends=ends, mode=mode, **({"value": 0.0} if mode == "constant" else {}))
        case _:
            count = int(g.integers(1, 4))
            kind = TensorType(DataType.INT64, draft.one([(), (count,), (1, count)]))
            inside = max(shape[axis], 1)
            if draft.chance(0.5):
                indices = draft.constant(g.integers(-inside, inside, concrete(kind.shape)))
            else:
                indices = draft.input(kind, bound=inside)
            _applied(draft, "Gather", [x, indices], axis=axis - rank)


def product(draft: ModelDraft) -> None:
    """A matrix product; often by a constant, often of the product before."""
    x = draft.value(lambda t: _is_float(t) and t.rank >= 2 and t.size() <= _MOST)
    type_ = draft.types[x]
    inner, outer = type_.shape[-1], draft.size()
    assert isinstance(inner, int)
    if draft.chance(0.3) and type_.rank == 2:
        turned = draft.chance(0.5)
        weight = draft.leaf(TensorType(type_.dtype, (outer, inner) if turned else (inner, outer)))
        bias = [partner(draft, TensorType(type_.dtype, (type_.shape[0], outer)))] if draft.chance(0.6) else []
        numbers = {"alpha": float(draft.one([1.0, 0.5])), "beta": float(draft.one([1.0, 2.0, 0.0]))}
        draft.node("Gemm", [x, weight, *bias], {"transB": int(turned), **numbers})
        return
    batch = tuple(type_.shape[:-2]) if draft.chance(0.3) else ()
    y = draft.leaf(TensorType(type_.dtype, (*batch, inner, outer)))
    _applied(draft, "MatMul", [x, y])


PIECES: tuple[tuple[Piece, float], ...] = (
    (rule_instance, 8.0),
    (sample, 1.5),
    (unary, 1.5),
    (binary, 2.0),
    (where, 0.6),
    (cast, 0.5),
    (with_number, 0.5),
    (axis_wise, 1.2),
    (movement, 2.5),
    (product, 1.2),
)
"""The pieces, and how often each is taken beside the others."""
