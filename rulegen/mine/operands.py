"""The operands that a composite operator may take in place of a cone's leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mugraph.ops import get_operator
from mugraph.terms.equations import quotient
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType
from mugraph.terms.term import Term, const, make, var, walk
from rulegen.mine.cone import causal_masks
from rulegen.mine.cuts import Cone
from rulegen.mine.supply import HEADS, Supply
from rules_db.trust.rule import Side

__all__ = ["POSITIONS", "Operand", "halved_leaves", "operands_of"]


POSITIONS = "Positions"
"""The operator that gives the positions of a sequence."""
Operand = tuple[Term, TensorType]
"""A term and its type."""


def operands_of(cone: Cone, supply: Supply) -> Iterator[tuple[Operand, ...]]:
    """Operands that a composite may take: the leaves, or the forms in which runtimes want them.

    These are heads side by side, [batch, length, hidden], for [batch, heads, length, size]; a mask repeated to full size; of
    tables of cosines and sines the first half, which the second repeats, of one sequence also with the positions that pick rows;
    and the weights of projections side by side.
    """
    hidden = causal_masks(cone)
    plain = tuple((var(name), type_) for name, type_ in cone.types.items() if name not in hidden)
    yield plain
    bases = [plain]
    heads = [type_.rank == 4 for _, type_ in plain]
    if len(heads) >= 3 and all(heads):
        for kept in (None, *(i for i, is_four in enumerate(heads) if is_four)):
            joined = [i for i, four in enumerate(heads) if four and i != kept]
            bases.append(tuple(_side_by_side(*x) if i in joined else x for i, x in enumerate(plain)))
        yield from bases[1:]
    for base in bases:
        for i, (leaf, type_) in enumerate(base):
            for inner in supply.scores if type_.rank == 4 else ():
                if inner != type_.shape and all(size in (1, dim) for size, dim in zip(type_.shape, inner, strict=True)):
                    shape = (*type_.shape[:2], *inner[2:])
                    mask = make("Expand", [leaf], {"shape": shape})
                    yield (*base[:i], (mask, TensorType(type_.dtype, shape)), *base[i + 1 :])
    if any(_half(type_) is not None for _, type_ in plain if type_.rank < 4):
        halved = tuple(_halved_operand(*x) if x[1].rank < 4 else x for x in plain)
        yield halved
        embedded = [i for i, (_, type_) in enumerate(plain) if type_.rank == 4] or range(len(plain))
        for i in embedded:
            yield from _positioned(plain[i], [*halved[:i], *halved[i + 1 :]])
    for i, j in itertools.combinations(range(len(plain)), 2):
        yield from _tabled([x for n, x in enumerate(plain) if n not in (i, j)], [plain[i], plain[j]])
    for term in walk(cone.roots):
        if term.op == HEADS:
            yield from _projected(term.inputs[:3], dict(plain))


def _projected(projections: Sequence[Term], leaves: Mapping[Term, TensorType]) -> Iterator[tuple[Operand, ...]]:
    """A leaf that is projected, the weights side by side, so the biases, with zeros where there is none, and other leaves."""
    parts = [part for term in projections if (part := _projection(term, leaves)) is not None]
    if len(parts) < len(projections) or len({source for source, *_ in parts}) > 1:
        return
    source, used = parts[0][0], {term for part in parts for term in part}
    weights, biases = [(part[1], leaves[part[1]]) for part in parts], list[Operand]()
    for part, (_, type_) in zip(parts, weights, strict=True):
        vector = TensorType(type_.dtype, type_.shape[-1:])
        biases.append((part[2] if len(part) > 2 else make("Expand", [const(0.0)], {"shape": vector.shape}), vector))
    others = [(leaf, type_) for leaf, type_ in leaves.items() if leaf not in used]
    yield ((source, leaves[source]), _beside(weights), _beside(biases), *others)


def _projection(term: Term, leaves: Mapping[Term, TensorType]) -> tuple[Term, ...] | None:
    """The leaf that is multiplied by weights, these, and the bias that is added, if there is one."""
    product, *bias = sorted(term.inputs, key=lambda operand: operand.op != "MatMul") if term.op == "Add" else [term]
    operands = (*product.inputs, *bias)
    if product.op != "MatMul" or any(operand not in leaves for operand in operands):
        return None
    return operands if [leaves[operand].rank for operand in operands[1:]] in ([2], [2, 1]) else None


def _beside(parts: Sequence[Operand]) -> Operand:
    """Tensors side by side, along the last axis."""
    (type_,) = get_operator("Concat").types({"axis": -1}, [type_ for _, type_ in parts])
    return make("Concat", [term for term, _ in parts], {"axis": -1}), type_


def _tabled(others: Sequence[Operand], tables: Sequence[Operand]) -> Iterator[tuple[Operand, ...]]:
    """Heads side by side and the first half of two tables [1, length, size] as [length, size/2]: of attention that embeds."""
    (_, one), (_, other) = tables
    if one.rank == 3 and one.shape == other.shape and one.shape[0] == 1 and _half(one) is not None:
        heads = [_side_by_side(*x) if x[1].rank == 4 else x for x in others]
        yield (*heads, *_rows([_halved_operand(*table) for table in tables]))


def _rows(tables: Sequence[Operand]) -> list[Operand]:
    """Tables [1, length, size] as [length, size]."""
    return [(make("Squeeze", [t], {"axes": (-3,)}), TensorType(type_.dtype, type_.shape[1:])) for t, type_ in tables]


def _positioned(x: Operand, tables: Sequence[Operand]) -> Iterator[tuple[Operand, ...]]:
    """The embedded tensor, also with heads side by side, the tables [1, length, size] as [length, size], and the positions."""
    if len(tables) != 2 or any(type_.rank != 3 or type_.shape[:2] != (1, tables[0][1].shape[1]) for _, type_ in tables):
        return
    length = tables[0][1].shape[1]
    positions = make(POSITIONS, [], {"length": length}), TensorType(DataType.INT64, (1, length))
    for embedded in (x, _side_by_side(*x)) if x[1].rank == 4 else (x,):
        yield embedded, *_rows(tables), positions


def _side_by_side(leaf: Term, type_: TensorType) -> Operand:
    """Heads [batch, heads, length, size] as [batch, length, hidden]."""
    batch, heads, length, size = type_.shape
    shape = (heads * size,)
    merged = make("Reshape", [make("Transpose", [leaf], {"perm": (1, 0, 2)})], {"drop": 2, "shape": shape})
    return merged, TensorType(type_.dtype, (batch, length, *shape))


def _half(type_: TensorType) -> Dim | None:
    """Half of the last dimension, where it is even for all sizes."""
    last = type_.shape[-1] if type_.shape else 1
    return quotient(last, 2) if isinstance(last, SymDim) else None


def _halved_operand(leaf: Term, type_: TensorType) -> Operand:
    """The first half along the last axis; the leaf itself where that is not even."""
    half = _half(type_)
    if half is None:
        return leaf, type_
    attrs = {"axes": (-1,), "starts": (0,), "ends": (half,), "steps": (1,)}
    return make("Slice", [leaf], attrs), TensorType(type_.dtype, (*type_.shape[:-1], half))


def halved_leaves(target: Side) -> frozenset[str]:
    """Leaves of which a composite takes the first half."""
    return frozenset(t.inputs[0].name for t in walk(target) if t.op == "Slice" and t.inputs[0].is_var)
