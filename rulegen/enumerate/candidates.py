"""From classes to candidate substitutions, and the numeric gate that each must pass.

Single-output candidates pair a class's representative with each other member. Multi-output candidates are of the
essential kind only: two programs on one side, and on the other the two parts of a split of one common term, which neither
program alone could become without the other's variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mugraph.domains.real import Real
from mugraph.ops import traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, evaluate_dim, symbol
from mugraph.terms.term import Term, substitute, variables, walk
from rulegen.enumerate.enumeration import Enumeration, dim_sizes
from rulegen.enumerate.fingerprint import mix
from rulegen.prove import refute
from rulegen.prove.refute import arrange
from rules_db.trust.condition import Condition
from rules_db.trust.rule import FloatClass, Side, dim_symbols

__all__ = [
    "Candidate",
    "FloatVerdict",
    "Gate",
    "cancels",
    "candidate_types",
    "float_test",
    "multi_output_pairs",
    "retest",
    "single_pairs",
    "symbols_of",
    "unique_up_to_renaming",
    "worthwhile",
]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A pair of sides that fingerprints call equal, with the sample types of its variables."""

    source: Side
    target: Side
    types: Mapping[str, TensorType]

    def __str__(self) -> str:
        return f"{'; '.join(map(repr, self.source))} = {'; '.join(map(repr, self.target))}"

    @property
    def size(self) -> int:
        """Operators of both sides."""
        return sum(term.size for term in (*self.source, *self.target))


def candidate_types(source: Side, target: Side, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The types of the variables that occur, in order of first occurrence."""
    return {leaf.name: types[leaf.name] for leaf in variables((*source, *target))}


def single_pairs(enumeration: Enumeration) -> np.ndarray:
    """Rows (member, representative), as indices of terms [pairs, 2]; the representative is the smaller or earlier one."""
    _, first, inverse = np.unique(enumeration.cls, return_index=True, return_inverse=True)
    members = np.flatnonzero(first[inverse] != np.arange(len(inverse)))
    pairs = np.stack([members, first[inverse[members]]], axis=1)
    saving = enumeration.level[pairs[:, 0]] - enumeration.level[pairs[:, 1]]
    kept: np.ndarray = pairs[saving >= enumeration.workload.min_saving]
    return kept


def multi_output_pairs(enumeration: Enumeration) -> np.ndarray:
    """Rows (first source, second source, first part, second part), as indices of terms [pairs, 4].

    The parts split one term. Two kinds are essential: contractions that share an operand, of which each lacks a variable
    that the split term holds; and equal operators on the two parts of a split, which two single rules would only undo one
    by one. Sums and products entry by entry that share an operand gain nothing by concatenation.
    """
    blocks, templates = enumeration.blocks, enumeration.templates
    template = np.array([block.template for block in blocks] + [-1])[enumeration.block]
    is_split = np.array([t.operator.name == "Split" for t in templates] + [False])[template]
    _, first, inverse = np.unique(enumeration.cls, return_index=True, return_inverse=True)
    representative = first[inverse]
    rows = np.flatnonzero(is_split & (representative != np.arange(len(representative))))
    found: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:
        found.setdefault((int(template[row]), int(enumeration.operands[row, 0])), {})[int(enumeration.out[row])] = int(row)
    result = []
    for (_, whole), parts in found.items():
        if len(parts) != 2:
            continue
        a, b = int(representative[parts[0]]), int(representative[parts[1]])
        own = [int(enumeration.mask[a]), int(enumeration.mask[b])]
        if a == b or min(enumeration.level[[a, b]]) == 0:
            continue
        operator = templates[template[a]].operator
        if operator is not templates[template[b]].operator or operator.name == "Split":
            continue
        shared = own[0] != own[1] and bool(own[0] & own[1]) and not operator.elementwise
        if own[0] | own[1] == int(enumeration.mask[whole]) and (shared or own[0] == own[1]):
            result.append((a, b, parts[0], parts[1]))
    return np.array(result, np.int64).reshape(-1, 4)


def worthwhile(enumeration: Enumeration, pairs: np.ndarray) -> np.ndarray:
    """Drops single-output pairs that no program needs, except where one side is a leaf.

    These are pairs in which a side has a variable that does not matter to it (x + y - x), which the pair with a leaf and
    congruence cover; the countless spellings of a tensor of zeros or ones; and f(.., a) = f(.., b) where a = b is a pair.
    """
    mask, level, cls, blocks = enumeration.mask[pairs], enumeration.level[pairs], enumeration.cls, enumeration.blocks
    plain = (mask[:, 0] == mask[:, 1]) & ~enumeration.trivial[pairs].any(axis=1)
    template = np.array([block.template for block in blocks] + [-1])[enumeration.block[pairs]]
    operands = enumeration.operands[pairs]
    operand_classes = np.where(operands >= 0, cls[operands], -1)
    congruent = (template[:, 0] == template[:, 1]) & (enumeration.out[pairs[:, 0]] == enumeration.out[pairs[:, 1]])
    congruent &= (operand_classes[:, 0] == operand_classes[:, 1]).all(axis=1)
    kept: np.ndarray = pairs[(plain & ~congruent) | (level.min(axis=1) == 0)]
    return kept


def cancels(candidate: Candidate) -> bool:
    """Whether the sides agree only because something is subtracted or divided that was there before: x + (y - x).

    What is true without cancellation stays true when a difference becomes a sum, a quotient a product and an inverse its
    operand. A rule to a leaf (x + y - y = x) says what there is to say; no program spells the others.
    """
    roots = (*candidate.source, *candidate.target)
    operators = [{term.op for term in walk(side)} for side in (candidate.source, candidate.target)]
    inverts = [any(traits_of(op).undoes for op in side) for side in operators]
    if any(not root.inputs for root in roots) or not any(inverts):
        return False
    for one in (0, 1):
        if not inverts[one] and any(traits_of(op).inverts_inside for op in operators[one] - operators[1 - one]):
            return False  # a definition of what has its inverses inside
    done: dict[Term, Term] = {}
    for term in walk(roots):
        inputs = tuple(done[operand] for operand in term.inputs)
        undone = traits_of(term.op).undoes
        if undone == "Identity":
            done[term] = inputs[0]
        else:
            done[term] = Term(undone or term.op, term.attrs, inputs, term.out) if inputs else term
    half = len(candidate.source)
    sides = tuple(done[root] for root in roots[:half]), tuple(done[root] for root in roots[half:])
    return refute(*sides, candidate.types, (0,)) is not None


def unique_up_to_renaming(enumeration: Enumeration, pairs: np.ndarray) -> np.ndarray:
    """The first of all rows that a renaming of variables of equal type and a swap of sides make equal.

    ``pairs`` holds the outputs of one side, then as many of the other. Of every type the first variables are used:
    other rows are renamings of such ones.
    """
    masks = np.bitwise_or.reduce(enumeration.mask[pairs], axis=1)
    pairs, masks = pairs[enumeration.missing(masks) == 0], masks[enumeration.missing(masks) == 0]
    half, codes = pairs.shape[1] // 2, np.zeros(len(pairs), np.uint64)
    for mask in np.unique(masks):
        rows = np.flatnonzero(masks == mask)
        hashes = enumeration.structure(pairs[rows], enumeration.renamings(int(mask)))
        sides = []
        for columns in (hashes[:, :half], hashes[:, half:]):
            state = columns[:, 0]
            for position in range(1, half):
                state = mix(state, columns[:, position])
            sides.append(state)
        codes[rows] = mix(np.minimum(*sides), np.maximum(*sides)).min(axis=1)
    _, first = np.unique(codes, return_index=True)
    kept: np.ndarray = pairs[np.sort(first)]
    return kept


# The gate


class Gate(StrEnum):
    """Why a candidate does not pass."""

    REFUTED = "refuted"
    UNEVEN = "differs with a batch axis"
    LOST = "loses the answer in floats"


def _batched(types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The types with a leading batch dimension on all but scalars and vectors."""
    return {name: TensorType(t.dtype, (symbol("batch"), *t.shape)) if t.rank > 1 else t for name, t in types.items()}


def retest(candidate: Candidate, seeds: Sequence[int]) -> Gate | None:
    """Tests under further primes, shapes and seeds, also with a batch axis where both sides remain typed."""
    if refute(candidate.source, candidate.target, candidate.types, seeds) is not None:
        return Gate.REFUTED
    batched = _batched(candidate.types)
    try:
        inferred = infer_types((*candidate.source, *candidate.target), batched)
    except (ShapeError, Undecided):
        return None
    if any(inferred[a] != inferred[b] for a, b in zip(candidate.source, candidate.target, strict=True)):
        return None
    return Gate.UNEVEN if refute(candidate.source, candidate.target, batched, seeds[:1]) is not None else None


@dataclass(frozen=True)
class FloatVerdict:
    """What a rule does to floats.

    Attributes:
        float_class: the effect, or ``None`` where the answer is lost.
        error32, error16: worst error of the target relative to the source's largest entry, beyond nothing, in
            float32 and float16.
        guarded: the sides agree on positive inputs only, so that a proof without a condition on values is wrong.
    """

    float_class: FloatClass | None
    error32: float
    error16: float
    guarded: bool


_LOST = {np.dtype(np.float32): 1e-3, np.dtype(np.float16): 0.1}


def _adds_up(op: str) -> bool:
    """Whether an operator adds up many numbers, and is not a name for several of which one does."""
    traits = traits_of(op)
    return traits.accumulates and not traits.named_whole


def _draw(kind: str, types: Mapping[str, TensorType], sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs of float64: ``normal``, ``positive``, or normal with some NaN (``special``) or infinities (``infinite``)."""
    generator = np.random.default_rng([seed, len(kind)])
    drawn: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        shape = tuple(int(evaluate_dim(d, sizes)) for d in type_.shape)  # type: ignore[arg-type]
        value = generator.normal(size=shape)
        if type_.dtype == DataType.BOOL:
            drawn[name] = np.asarray(value > 0)
            continue
        if kind == "positive":
            value = np.abs(value) + 0.25
        elif kind == "special":
            value = np.where(generator.random(shape) < 0.3, np.nan, value)
        elif kind == "infinite":
            value = np.where(generator.random(shape) < 0.3, np.copysign(np.inf, value), value)
        drawn[name] = np.asarray(value)
    return drawn


def _worst(
    candidate: Candidate, kind: str, dtype: np.dtype, seed: int, sizes: Mapping[str, int], conditions: Sequence[Condition]
) -> float:
    """The worst relative error over the outputs; 0 is bit-identical, infinity says that NaN or infinity differ."""
    inputs = arrange(_draw(kind, candidate.types, sizes, seed), conditions)
    drawn = {k: v if v.dtype == bool else v.astype(dtype) for k, v in inputs.items()}
    roots = [substitute(term, {}, dims=sizes) for term in (*candidate.source, *candidate.target)]
    with np.errstate(all="ignore"):
        values = evaluate(roots, Real(dtype), drawn)
        half, worst = len(candidate.source), 0.0
        for a, b in zip(roots[:half], roots[half:], strict=True):
            x, y = np.broadcast_arrays(np.asarray(values[a]), np.asarray(values[b]))
            if x.tobytes() == y.tobytes() or np.array_equal(x, y, equal_nan=x.dtype != bool):
                continue
            if x.dtype == bool or not np.array_equal(np.isfinite(x), np.isfinite(y)):
                return float("inf")
            x, y = x.astype(np.float64), y.astype(np.float64)
            finite = np.isfinite(x)
            scale = float(np.max(np.abs(x[finite]), initial=0)) or 1.0
            worst = max(worst, float(np.max(np.abs(x - y)[finite], initial=0)) / scale)
    return worst


def float_test(
    candidate: Candidate, symbols: Sequence[str], seed: int, conditions: Sequence[Condition] = (), *, draws: int = 4
) -> FloatVerdict:
    """Runs both sides in float32 and float16 on random inputs and classifies the difference.

    ``exact``: bit-identical in every draw, and the sums of products are the same on both sides; ``reassociates``: within
    what rounding of a few operations explains; ``approximates``: worse, but the answer is kept. Of ``conditions`` those that
    random inputs can be made to meet are met.
    """
    kinds = ["normal", "positive"]
    ops = {term.op for term in walk((*candidate.source, *candidate.target))}
    kinds += [kind for op, kind in (("IsNaN", "special"), ("IsInf", "infinite")) if op in ops]
    errors: dict[tuple[str, np.dtype], float] = {}
    for kind in kinds:
        for dtype in (np.dtype(np.float32), np.dtype(np.float16)):
            errors[kind, dtype] = max(
                _worst(candidate, kind, dtype, seed + d, _float_sizes(candidate, symbols, d), conditions) for d in range(draws)
            )
    single, half = np.dtype(np.float32), np.dtype(np.float16)
    guarded = any(errors[kind, single] > _LOST[single] for kind in kinds if kind != "positive")
    kept = ["positive"] if guarded else kinds
    error32, error16 = (max(errors[kind, dtype] for kind in kept) for dtype in (single, half))
    if error32 > _LOST[single] or error16 > _LOST[half]:
        return FloatVerdict(None, error32, error16, guarded)
    operators = [{t for t in walk(side) if _adds_up(t.op)} for side in (candidate.source, candidate.target)]
    if error32 == 0 and error16 == 0 and operators[0] == operators[1]:
        float_class = FloatClass.EXACT
    elif error32 <= 2.0**-18 and error16 <= 2.0**-5:
        float_class = FloatClass.REASSOCIATES
    else:
        float_class = FloatClass.APPROXIMATES
    return FloatVerdict(float_class, error32, error16, guarded)


_MOST_ENTRIES = 2**18
"""Of an input: products of half-precision matrices take half a minute for ten times as many."""


def _float_sizes(candidate: Candidate, symbols: Sequence[str], draw: int) -> dict[str, int]:
    """Sizes of a model's order rather than the tiniest: rounding shows, and a matrix product still takes microseconds.

    Images stay small: their convolutions have a factor for every dimension. So do inputs whose dimensions are products.
    """
    names = (*symbols, *sorted(dim_symbols((*candidate.source, *candidate.target)) - set(symbols)))
    small = dim_sizes(names, draw)
    large = {name: 7 + 5 * size for name, size in small.items()}
    images = any(type_.rank > 3 for type_ in candidate.types.values())
    entries = max((_entries(type_, large) for type_ in candidate.types.values()), default=0)
    return {name: 3 + size for name, size in small.items()} if images or entries > _MOST_ENTRIES else large


def _entries(type_: TensorType, sizes: Mapping[str, int]) -> int:
    return math.prod(int(str(evaluate_dim(d, sizes))) for d in type_.shape)


def symbols_of(types: Mapping[str, TensorType]) -> tuple[str, ...]:
    """Dimension symbols of sample types, sorted."""
    return tuple(sorted({s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}))
