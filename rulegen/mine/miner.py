"""Mining: rules that take a spelling to a composite operator, found in models.

Exporters write out what a runtime has in one operator. The cones of a model (:mod:`rulegen.mine.cuts`) with dimension symbols for
their sizes (:mod:`rulegen.mine.lifting`) are compared, by their values on random inputs, with every composite operator applied
to their leaves and with their own parts. What agrees is a conjecture, and goes the way of all rules: certificate, random
tests, float class, generalisation. The smallest cones come first, and the larger ones are normalised by the rules found so
far, so that a rule says one thing and the larger spellings follow from several.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.graph import Graph
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import Attrs, AttrValue, AttrVar, Term, const, make, make_attrs, open_names, rebuild, var, walk
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.mine.cuts import Cone, Cutting, cones, whole
from rulegen.mine.lifting import lift
from rulegen.mine.normalise import Normaliser
from rulegen.numeric.floats import float_test
from rulegen.numeric.samples import assignments, causal_mask, specialise
from rulegen.numeric.trials import contradicted
from rulegen.prove.prover import Prover
from rulegen.prune.attributes import generalise_attrs, generalise_numbers
from rulegen.rules import GENERATOR_VERSION, readable
from rules_db.trust.condition import FLOATING
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule, Side

__all__ = ["GROUP", "Mining", "mine", "snapped"]

GROUP = "spelling"
"""The group that mined rules are of."""

_FURTHER = frozenset(
    {"Gelu", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "LogSoftmax", "Mish", "HardSwish"}
)
"""ONNX's own operators that exporters spell out, beside those that are defined by a decomposition."""
_PRODUCTS = frozenset({"FusedMatMul", "FusedGemm", "FusedConv"})
"""Composite operators that do no more than their product and its epilogue: no step on the way to larger ones."""
_TOLERANCE = 1e-7
"""Relative to the largest entry, in double precision: what the screening calls equal."""
_MOST_PARAMETER = 1e4
"""Numbers of this size and above, such as those that masks add, are no parameters."""


@dataclass
class Mining:
    """The outcome of mining.

    Attributes:
        rules: proved rules, the smallest first.
        unproved: pairs that agree in numbers, without a certificate.
        suspicious: pairs with a proof that random inputs contradict; any is a bug in a property.
        cones: cones looked at, after deduplication.
    """

    rules: list[Rule] = field(default_factory=list)
    unproved: list[CandidateRule] = field(default_factory=list)
    suspicious: list[CandidateRule] = field(default_factory=list)
    cones: int = 0


def mine(
    models: Mapping[str, Graph],
    limits: Cutting | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mining:
    """Mines models. Equal arguments give equal rules in equal order.

    Args:
        models: by the name of what they are, which goes into the rules' provenance.
        limits: of the cones.
        seed: of all random inputs.
        progress: called with the number of models done and that of all.
    """
    miner, seen = _Miner(seed), set[object]()
    for count, (name, graph) in enumerate(models.items(), 1):
        pieces = itertools.chain(cones(graph, limits), _all_of(graph, limits or Cutting()))
        found = sorted(_lifted(pieces, seen), key=lambda c: (c.operators, len(c.roots), str(c.roots)))
        for cone in found:
            miner.look_at("-".join(name.split()), cone)
        progress(count, len(models))
    return miner.mining


def _all_of(graph: Graph, limits: Cutting) -> Iterator[Cone]:
    """A small model as one cone, of however many operators."""
    values = {v for node in graph.nodes() for v in (*node.inputs, *node.values)}
    if all(graph.type(v) is not None for v in values) and not any(node.is_opaque for node in graph.nodes()):
        cone = whole(graph)
        if len(cone.types) <= limits.whole and len(cone.roots) <= limits.outputs:
            yield cone


def _lifted(found: Iterable[Cone], seen: set[object]) -> Iterator[Cone]:
    """Distinct cones with symbols for their sizes and the usual numbers in place of rounded ones.

    Args:
        found: the cones of a model.
        seen: what was met before, in other models as well; in float16 it is the same once more.
    """
    lifted: set[object] = set()
    for cone in found:
        roots = tuple(snapped(root) for root in cone.roots)
        key = _key(Cone(_sampled(roots), _of_one_type(roots, cone.types)))
        if key in seen:
            continue
        seen.add(key)
        for alike in (False, True) if causal_masks(cone) else (False,):
            made = lift(roots, cone.types, alike)
            if made is not None:
                general = Cone(_sampled(made[0]), _of_one_type(*made))
                if (key := _key(general)) not in lifted:
                    lifted.add(key)
                    yield general


def _of_one_type(roots: Side, types: dict[str, TensorType]) -> dict[str, TensorType]:
    """The types with float32 for the only floating-point type of a program: what holds for one holds for any."""
    floats = {type_.dtype for type_ in types.values()} & FLOATING
    casts = any(isinstance(value, DataType) for term in walk(roots) for _, value in term.attrs)
    if casts or len(floats) != 1:
        return types
    return {n: TensorType(DataType.FLOAT, t.shape) if t.dtype in floats else t for n, t in types.items()}


def _key(cone: Cone) -> object:
    return (cone.roots, tuple(map(str, cone.types.values())))


# Numbers


@lru_cache(maxsize=1)
def _usual_numbers() -> tuple[float, ...]:
    """Numbers that operator properties speak of, and their inverses, which a division spells."""
    found = {
        float(term.attr("value"))
        for axiom in load_axioms().values()
        for term in walk([axiom.left, axiom.right])
        if term.op == "Const" and isinstance(term.attr("value"), float)
    }
    found = {n for n in found if np.isfinite(n) and n}
    return tuple(sorted(found | {1 / n for n in found}))


def snapped(root: Term) -> Term:
    """The term with each number that is a usual one, rounded, replaced by that: 0.70710677 by the root of one half."""

    def leaf(term: Term) -> Term:
        value = term.attr("value")
        if term.is_var or isinstance(value, bool | AttrVar):
            return term
        for usual in _usual_numbers():
            if np.float32(usual) == np.float32(value) or float(str(np.float16(usual))) == value:
                return const(usual)
        return term

    return rebuild(root, leaf, lambda value: value)


def _is_sample(value: AttrValue) -> bool:
    """Whether a number is one that :func:`_sampled` chose, or a product of two."""
    return isinstance(value, float) and value not in _usual_numbers() and 0 < abs(value) < _MOST_PARAMETER


def _sampled(roots: Side) -> Side:
    """The program with powers of two in place of numbers that are not usual.

    They are parameters, such as an epsilon or a scale, which a rule leaves open; as powers of two they have exact products
    and inverses.
    """
    chosen: dict[float, float] = {}

    def sample(value: AttrValue) -> AttrValue:
        if not isinstance(value, float) or value in _usual_numbers() or not 0 < abs(value) < _MOST_PARAMETER:
            return value
        return chosen.setdefault(value, 2.0 ** -(3 * 2 ** len(chosen) + 2))

    def leaf(term: Term) -> Term:
        return term if term.is_var else Term(term.op, tuple((k, sample(v)) for k, v in term.attrs), (), 0)

    return tuple(rebuild(root, leaf, sample) for root in roots)


# Composite operators applied to leaves


def _is_composite(op: str) -> bool:
    return op in _FURTHER or get_operator(op).decompose is not None


@dataclass(frozen=True)
class _Template:
    """An application of a composite operator with open attributes, as operator properties write it."""

    op: str
    attrs: Attrs
    outputs: tuple[int, ...]
    operands: int


@lru_cache(maxsize=1)
def _templates() -> tuple[_Template, ...]:
    found: dict[tuple[str, str, int], tuple[Attrs, set[int]]] = {}
    for axiom in load_axioms().values():
        for term in walk([axiom.left, axiom.right]):
            if term.inputs and _is_composite(term.op):
                names = iter(range(99))
                renamed = tuple((k, AttrVar(f"a{next(names)}") if _is_open(v) else v) for k, v in term.attrs)
                found.setdefault((term.op, repr(renamed), len(term.inputs)), (renamed, set()))[1].add(term.out)
    return tuple(
        _Template(op, attrs, tuple(sorted(outs)), count)
        for (op, _, count), (attrs, outs) in sorted(found.items())
        if not any(isinstance(v, tuple) and any(open_names(v)) for _, v in attrs)
    )


def _is_open(value: AttrValue) -> bool:
    """Whether all of an attribute is open."""
    return isinstance(value, AttrVar) or (isinstance(value, tuple) and value != () and all(any(open_names(v)) for v in value))


@dataclass(frozen=True)
class _Supply:
    """What open attributes may be: numbers, sizes and axes that the cone itself holds.

    Attributes:
        scores: the shapes of softmaxes.
        widths: of the queries, keys and values of each attention.
    """

    numbers: tuple[float, ...]
    sizes: tuple[AttrValue, ...]
    axes: tuple[int, ...]
    scores: tuple[Shape, ...]
    widths: tuple[Shape, ...]

    def of(self, name: str) -> Sequence[AttrValue]:
        if name in ("epsilon", "scale", "alpha", "beta"):
            return self.numbers
        if name == "axis":
            return self.axes
        if name in ("num_heads", "kv_num_heads"):
            return (0, *self.sizes)
        if name == "qkv_hidden_sizes":
            return self.widths
        if name in ("bias", "sum", "interleaved", "rotary_interleaved", "unidirectional"):
            return (False, True)
        if name == "approximate":
            return ("none", "tanh")
        return ()


def _supply(roots: Side, types: Mapping[Term, TensorType]) -> _Supply:
    numbers: dict[float, None] = {}
    sizes: dict[AttrValue, None] = {}
    axes: dict[int, None] = {-1: None}
    scores = dict.fromkeys(types[t.inputs[0]].shape for t in walk(roots) if t.op == "Softmax" and types[t].rank == 4)
    widths = dict.fromkeys(tuple(types[x].shape[-1] for x in t.inputs[:3]) for t in walk(roots) if t.op == _HEADS)
    for term in walk(roots):
        if term.op == "Const" and isinstance(term.attr("value"), float):
            numbers[term.attr("value")] = None
        for name, value in term.attrs:
            if name == "epsilon" or name == "scale":
                numbers[value] = None
            if name in ("axis", "axes"):
                axes |= dict.fromkeys(value if isinstance(value, tuple) else (value,))
            if name == "shape":
                sizes |= dict.fromkeys(v for v in value if v != 1)
            if name == "num_heads" and term.op == _HEADS:
                sizes[value] = None
    sizes |= dict.fromkeys(t.shape[1] for leaf, t in types.items() if leaf.is_var and t.rank == 4 and t.shape[1] != 1)
    own = [n for n in numbers if 0 < abs(n) < _MOST_PARAMETER]
    products = [a * b for a, b in itertools.combinations_with_replacement([n for n in own if n != 1], 2)]
    inverses = [1 / n for n in own]
    numbers_of = tuple(dict.fromkeys([*own, *products, *inverses, 1.0]))
    return _Supply(numbers_of, tuple(sizes), tuple(axes), tuple(scores), tuple(widths))


_UNTYPED = frozenset({"epsilon", "scale", "alpha", "beta"})
"""Attributes that no type depends on."""
_COUNTING = frozenset({"bias", "sum", "present"})
"""Attributes that say how many outputs there are; of an operator without such the first alone may be asked for."""
_HEADS = "MultiHeadAttention"
"""The operator whose operands may be projections that another computes, too."""
_POSITIONS = "Positions"
"""The operator that gives the positions of a sequence."""
_Operand = tuple[Term, TensorType]


def _applications(cone: Cone, supply: _Supply, wanted: Sequence[TensorType]) -> Iterator[Side]:
    """Every composite operator applied to all leaves of the cone, in every order and with every attribute that types.

    Where the cone ends with a Reshape, so may the program; what an operator that takes positions gives of heads side by side is
    split into heads again.
    """
    reshaped = len(cone.roots) == 1 and cone.roots[0].op == "Reshape"
    choices = list(_operands(cone, supply))
    for template in _templates():
        names = [name for name, _ in template.attrs]
        if (len(wanted) > 1) != (template.outputs != (0,)) and (len(wanted) > 1 or not _COUNTING.isdisjoint(names)):
            continue
        values = [supply.of(name) if isinstance(value, AttrVar) else (value,) for name, value in template.attrs]
        typing = [given[:1] if name in _UNTYPED else given for name, given in zip(names, values, strict=True)]
        free = [(name, given) for name, given in zip(names, values, strict=True) if name in _UNTYPED]
        fitting = (chosen for chosen in choices if len(chosen) == template.operands)
        for operands in (order for chosen in fitting for order in itertools.permutations(chosen)):
            if not _of_ranks(template, tuple((type_.dtype, type_.rank) for _, type_ in operands)):
                continue
            for some in itertools.product(*typing):
                attrs = dict(zip(names, some, strict=True))
                try:
                    outputs = get_operator(template.op).types(attrs, [type_ for _, type_ in operands])
                except (ShapeError, Undecided, LookupError, TypeError, ValueError):
                    continue
                outputs = outputs[: len(wanted)]
                whole = list(outputs) == list(wanted)
                apart = None if whole or _POSITIONS not in {t.op for t, _ in operands} else _apart(outputs, wanted)
                reshapes = reshaped and template.op not in _PRODUCTS and _reshapes(outputs, wanted)
                if not whole and apart is None and not reshapes:
                    continue
                for numbers in itertools.product(*(given for _, given in free)):
                    final = make_attrs({**attrs, **dict(zip([name for name, _ in free], numbers, strict=True))})
                    made = tuple(Term(template.op, final, tuple(t for t, _ in operands), out) for out in range(len(outputs)))
                    if apart is not None:
                        yield (make("Transpose", [make("Reshape", made, {"drop": 1, "shape": apart})], {"perm": (1, 0, 2)}),)
                        continue
                    shape = (("drop", outputs[0].rank), ("shape", wanted[0].shape))
                    yield made if whole else (Term("Reshape", shape, made, 0),)


@cache
def _of_ranks(template: _Template, kinds: tuple[tuple[DataType, int], ...]) -> bool:
    """Whether the operator takes operands of these element types and ranks, as far as a few sizes tell."""
    trial = _Supply((1.0,), (2, 8), (-1,), (), ((8, 8, 8),))
    values = [trial.of(name) if isinstance(value, AttrVar) else (value,) for name, value in template.attrs]
    attributes = [dict(zip([name for name, _ in template.attrs], some, strict=True)) for some in itertools.product(*values)]
    for lasts in itertools.product(*((8, 4, 24, 32) if rank else (8,) for _, rank in kinds)):
        types = [TensorType(dtype, (*(8,) * (rank - 1), last)[:rank]) for (dtype, rank), last in zip(kinds, lasts, strict=True)]
        for attrs in attributes:
            with contextlib.suppress(ShapeError, Undecided, LookupError, TypeError, ValueError):
                get_operator(template.op).types(attrs, types)
                return True
    return False


def _operands(cone: Cone, supply: _Supply) -> Iterator[tuple[_Operand, ...]]:
    """What the operands of a composite may be: the leaves, or what runtimes want instead of them.

    That is heads side by side, [batch, length, hidden], for [batch, heads, length, size]; a mask repeated to full size; of
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
            bases.append(tuple(_joined(*x) if i in joined else x for i, x in enumerate(plain)))
        yield from bases[1:]
    for base in bases:
        for i, (leaf, type_) in enumerate(base):
            for inner in supply.scores if type_.rank == 4 else ():
                if inner != type_.shape and all(own in (1, dim) for own, dim in zip(type_.shape, inner, strict=True)):
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
        if term.op == _HEADS:
            yield from _projected(term.inputs[:3], dict(plain))


def _projected(projections: Sequence[Term], leaves: Mapping[Term, TensorType]) -> Iterator[tuple[_Operand, ...]]:
    """A leaf that is projected, the weights side by side, so the biases, with zeros where there is none, and other leaves."""
    parts = [part for term in projections if (part := _projection(term, leaves)) is not None]
    if len(parts) < len(projections) or len({source for source, *_ in parts}) > 1:
        return
    source, used = parts[0][0], {term for part in parts for term in part}
    weights, biases = [(part[1], leaves[part[1]]) for part in parts], list[_Operand]()
    for part, (_, type_) in zip(parts, weights, strict=True):
        vector = TensorType(type_.dtype, type_.shape[-1:])
        biases.append((part[2] if len(part) > 2 else make("Expand", [const(0.0)], {"shape": vector.shape}), vector))
    others = [(leaf, type_) for leaf, type_ in leaves.items() if leaf not in used]
    yield ((source, leaves[source]), _beside(weights), _beside(biases), *others)


def _projection(term: Term, leaves: Mapping[Term, TensorType]) -> tuple[Term, ...] | None:
    """The leaf that is multiplied by weights, these, and the bias that is added, if there is one."""
    product, *bias = sorted(term.inputs, key=lambda operand: operand.op != "MatMul") if term.op == "Add" else [term]
    found = (*product.inputs, *bias)
    if product.op != "MatMul" or any(operand not in leaves for operand in found):
        return None
    return found if [leaves[operand].rank for operand in found[1:]] in ([2], [2, 1]) else None


def _beside(parts: Sequence[_Operand]) -> _Operand:
    (type_,) = get_operator("Concat").types({"axis": -1}, [type_ for _, type_ in parts])
    return make("Concat", [term for term, _ in parts], {"axis": -1}), type_


def _tabled(others: Sequence[_Operand], tables: Sequence[_Operand]) -> Iterator[tuple[_Operand, ...]]:
    """Heads side by side and the first half of two tables [1, length, size] as [length, size/2]: of attention that embeds."""
    (_, one), (_, other) = tables
    if one.rank == 3 and one.shape == other.shape and one.shape[0] == 1 and _half(one) is not None:
        heads = [_joined(*x) if x[1].rank == 4 else x for x in others]
        yield (*heads, *_rows([_halved_operand(*table) for table in tables]))


def _rows(tables: Sequence[_Operand]) -> list[_Operand]:
    """Tables [1, length, size] as [length, size]."""
    return [(make("Squeeze", [t], {"axes": (-3,)}), TensorType(type_.dtype, type_.shape[1:])) for t, type_ in tables]


def _positioned(x: _Operand, tables: Sequence[_Operand]) -> Iterator[tuple[_Operand, ...]]:
    """What is embedded, also with its heads side by side, the tables [1, length, size] as [length, size], and the positions."""
    if len(tables) != 2 or any(type_.rank != 3 or type_.shape[:2] != (1, tables[0][1].shape[1]) for _, type_ in tables):
        return
    length = tables[0][1].shape[1]
    positions = make(_POSITIONS, [], {"length": length}), TensorType(DataType.INT64, (1, length))
    for embedded in (x, _joined(*x)) if x[1].rank == 4 else (x,):
        yield embedded, *_rows(tables), positions


def causal_masks(cone: Cone) -> frozenset[str]:
    """Leaves that may be masks of causal attention: square, and added to what a softmax is taken of."""
    sums = (term.inputs[0] for term in walk(cone.roots) if term.op == "Softmax" and term.inputs[0].op == "Add")
    addends = {leaf.name for total in sums for leaf in total.inputs if leaf.is_var}
    return frozenset(name for name in addends if _is_square(cone.types[name]))


def _is_square(type_: TensorType) -> bool:
    return type_.rank >= 2 and type_.shape[-1] == type_.shape[-2] and type_.shape[-1] != 1


def _joined(leaf: Term, type_: TensorType) -> _Operand:
    batch, heads, length, size = type_.shape
    shape = (heads * size,)
    joined = make("Reshape", [make("Transpose", [leaf], {"perm": (1, 0, 2)})], {"drop": 2, "shape": shape})
    return joined, TensorType(type_.dtype, (batch, length, *shape))


def _apart(outputs: Sequence[TensorType], wanted: Sequence[TensorType]) -> Shape | None:
    """Number and size of the heads, if the only output has them side by side, [b, s, n*d], and wanted is [b, n, s, d]."""
    if [t.rank for t in (*outputs, *wanted)] != [3, 4] or outputs[0].dtype != wanted[0].dtype:
        return None
    batch, heads, length, size = wanted[0].shape
    return (heads, size) if outputs[0].shape == (batch, length, heads * size) else None


def _half(type_: TensorType) -> Dim | None:
    last = type_.shape[-1] if type_.shape else 1
    even = isinstance(last, SymDim) and all(coefficient % 2 == 0 for _, coefficient in last.terms)
    return last.exact_div(2) if even and isinstance(last, SymDim) else None


def _halved_operand(leaf: Term, type_: TensorType) -> _Operand:
    half = _half(type_)
    if half is None:
        return leaf, type_
    attrs = {"axes": (-1,), "starts": (0,), "ends": (half,), "steps": (1,)}
    return make("Slice", [leaf], attrs), TensorType(type_.dtype, (*type_.shape[:-1], half))


def _reshapes(before: Sequence[TensorType], after: Sequence[TensorType]) -> bool:
    """Whether a Reshape of the only output has the type that is wanted."""
    try:
        attrs = {"drop": before[0].rank, "shape": after[0].shape}
        made = len(before) == 1 and get_operator("Reshape").types(attrs, before) == (after[0],)
    except (ShapeError, Undecided):
        return False
    return made


def _parts(cone: Cone, inferred: Mapping[Term, TensorType]) -> Iterator[Side]:
    """Smaller programs for a cone of one output: its own inner values of equal type, and transpositions of its only leaf."""
    (root,) = cone.roots
    for term in walk([root]):
        if term is not root and term.op != "Const" and inferred[term] == inferred[root]:
            yield (term,)
    if len(cone.types) == 1 and cone.operators > 1:
        (leaf,) = map(var, cone.types)
        rank = inferred[leaf].rank
        for count in range(2, min(rank, 4) + 1):
            for perm in itertools.permutations(range(count)):
                if perm[0] != 0:
                    term = Term("Transpose", (("perm", perm),), (leaf,), 0)
                    if infer_types([term], cone.types)[term] == inferred[root]:
                        yield (term,)
        if cone.operators > 2 and inferred[root].rank >= 2:
            yield from _turned(leaf, inferred[leaf], inferred[root])


def _turned(leaf: Term, before: TensorType, after: TensorType) -> Iterator[Side]:
    """The leaf reshaped and its last two axes exchanged, if that has the type."""
    shape = (*after.shape[:-2], after.shape[-1], after.shape[-2])
    same = next((i for i, (a, b) in enumerate(zip(before.shape, shape, strict=False)) if a != b), 0)
    reshaped = make("Reshape", [leaf], {"drop": before.rank - same, "shape": shape[same:]})
    term = make("Transpose", [reshaped], {"perm": (1, 0)})
    with contextlib.suppress(ShapeError, Undecided):
        if infer_types([term], {leaf.name: before})[term] == after:
            yield (term,)


# Values


class _Values:
    """Random inputs for the leaves of a cone and the values of programs on them.

    Args:
        turn: other sizes and other numbers.
        repeated: leaves whose last axis holds everything twice.

    Leaves that may be the mask of causal attention are.
    """

    def __init__(self, cone: Cone, seed: int, turn: int = 0, repeated: Collection[str] = ()) -> None:
        self.sizes = assignments(cone.types, turn + 1, cone.roots)[turn]
        _, self.types = specialise(list(cone.roots), cone.types, self.sizes)
        generator = np.random.default_rng([seed, turn])
        self.inputs = {name: _draw(generator, type_) for name, type_ in self.types.items()}
        for name in repeated:
            half = self.inputs[name].shape[-1] // 2
            self.inputs[name][..., half:] = self.inputs[name][..., :half]
        for name in causal_masks(cone):
            self.inputs[name] = causal_mask(self.inputs[name].shape)

    def of(self, roots: Side) -> list[np.ndarray] | None:
        """The values, or ``None`` where the program has none."""
        programs, _ = specialise(list(roots), {}, self.sizes)
        try:
            infer_types(programs, self.types)
            with np.errstate(all="ignore"):
                values = evaluate(programs, Real(), self.inputs)
        except (ShapeError, Undecided, Unsupported):
            return None
        return [np.asarray(values[program], np.float64) for program in programs]


def _draw(generator: np.random.Generator, type_: TensorType) -> np.ndarray:
    shape = concrete(type_.shape)
    assert shape is not None, type_
    if type_.dtype == DataType.BOOL:
        return generator.random(shape) < 0.5
    return generator.normal(size=shape)


def _equal(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all() or not np.isfinite(y).all():
            return False
        if np.max(np.abs(x - y), initial=0.0) > _TOLERANCE * max(1e-6, float(np.max(np.abs(x), initial=0.0))):
            return False
    return True


# The way of a cone


class _Miner:
    def __init__(self, seed: int) -> None:
        self.seed, self.mining, self.prover = seed, Mining(), Prover()
        self.plain, self.fused, self.beside, self.hidden = (Normaliser() for _ in range(4))
        self._seen: set[object] = set()
        self._candidates: dict[object, list[Side]] = {}

    def look_at(self, model: str, cone: Cone) -> None:
        """Finds, certifies and enters the rules that begin with the cone, normalised by the rules known so far."""
        if any(t.dtype not in FLOATING | {DataType.BOOL} for t in cone.types.values()):
            return
        plain = self.plain.normal(cone.roots, cone.types)
        # A causal mask may be what hides heads that are repeated: no operator with a mask has them. As they are spelled they come
        # before what repeats them first.
        for further in (self.fused, self.beside, self.hidden) if causal_masks(cone) else (self.fused,):
            roots = further.normal(plain, cone.types)
            known = {t.name for t in walk(roots) if t.is_var}
            form = _named(Cone(roots, {name: t for name, t in cone.types.items() if name in known}))
            if _key(form) not in self._seen and all(root.inputs for root in roots):
                self._seen.add(_key(form))
                self.mining.cones += 1
                self.enter(model, form)

    def enter(self, model: str, cone: Cone) -> None:
        """The rules of one form of a cone."""
        for target in self.equal_programs(cone):
            rule = self.certified(model, cone, target) if target != cone.roots else None
            if rule is None or any(rule.id == known.id for known in self.mining.rules):
                continue
            self.mining.rules.append(rule)
            composites = {t.op for t in walk(target) if t.inputs and _is_composite(t.op)}
            if not composites:
                self.plain.add(rule)
                self.hidden.add(rule)
            elif all(get_operator(op).contract for op in composites) and not composites & _PRODUCTS:
                if any(condition.predicate == "causal" for condition in rule.conditions):
                    self.hidden.add(rule, first=True)
                else:
                    self.fused.add(rule)
                    if all(t.op != "Softmax" for t in walk(rule.source)):
                        self.beside.add(rule)

    def equal_programs(self, cone: Cone) -> list[Side]:
        """Composite operators and parts of the cone that agree with it on random inputs."""
        if not cone.types:
            return []
        try:
            inferred = infer_types(cone.roots, cone.types)
        except (ShapeError, Undecided):
            return []
        wanted, supply = [inferred[root] for root in cone.roots], _supply(cone.roots, inferred)
        if any(t.dtype not in FLOATING for t in wanted):
            return []
        key = (tuple(map(str, cone.types.values())), tuple(map(str, wanted)), repr(supply), cone.roots[0].op == "Reshape")
        if key not in self._candidates:
            self._candidates[key] = list(_applications(cone, supply, wanted))
        single = {root.op for root in cone.roots} if cone.operators == 1 else set()
        candidates = [c for c in self._candidates[key] if c[0].op not in single and not (single and c[0].op in _PRODUCTS)]
        candidates += _parts(cone, inferred) if len(wanted) == 1 and not causal_masks(cone) else []
        if not candidates:
            return []
        found: dict[object, Side] = {}
        known: dict[frozenset[str], tuple[_Values, list[np.ndarray] | None]] = {}
        for target in candidates:
            # Of operands that may be exchanged one order will do.
            kind = tuple((t.op, t.attrs) for t in walk(target) if t is target[0] or (t.inputs and _is_composite(t.op)))
            if kind in found and any(_is_composite(op) for op, _ in kind):
                continue
            halved = _halved(target)
            if halved not in known:
                values = _Values(cone, self.seed, 0, halved)
                known[halved] = (values, values.of(cone.roots))
            values, own = known[halved]
            other = None if own is None else values.of(target)
            if own is not None and other is not None and _equal(own, other) and self.confirmed(cone, target, halved):
                found.setdefault(kind, target)
        return sorted(found.values(), key=_preference)

    def confirmed(self, cone: Cone, target: Side, halved: frozenset[str]) -> bool:
        """Whether the two agree for other sizes, too."""
        values = _Values(cone, self.seed, 1, halved)
        own, other = values.of(cone.roots), values.of(target)
        return own is not None and other is not None and _equal(own, other)

    def certified(self, model: str, cone: Cone, target: Side) -> Rule | None:
        candidate = CandidateRule(cone.roots, target, cone.types)
        proof = self.prover.certify(cone.roots, target, cone.types)
        verdict = float_test(candidate, symbols_of(cone.types), self.seed, conditions=proof.conditions if proof else ())
        if proof is None:
            if verdict.float_class is not None:
                self.mining.unproved.append(candidate)
            return None
        if verdict.float_class is None:
            return None
        provenance = {
            "group": GROUP,
            "ops": str(cone.operators),
            "seed": str(self.seed),
            "generator": str(GENERATOR_VERSION),
            "model": model,
            **verdict.provenance(),
        }
        rule = Rule(cone.roots, target, cone.types, proof.conditions, verdict.float_class, proof.certificate, provenance)
        axioms = load_axioms()
        if contradicted(rule, verdict, axioms, self.seed):
            self.mining.suspicious.append(candidate)
            return None
        general = generalise_numbers(rule, axioms)
        if any(_is_sample(v) for t in walk([*general.source, *general.target]) for _, v in t.attrs):
            return None
        return readable(generalise_attrs(general, axioms, keep=("to", "length")))


def _halved(target: Side) -> frozenset[str]:
    """Leaves of which a composite takes the first half."""
    return frozenset(t.inputs[0].name for t in walk(target) if t.op == "Slice" and t.inputs[0].is_var)


def _preference(target: Side) -> tuple[int, bool, str]:
    """Fewest operators first, and a runtime's own before ONNX's, which not every opset has."""
    operators = {t for t in walk(target) if t.inputs}
    return len(operators), not all(get_operator(t.op).contract for t in operators), str(target)


def _named(cone: Cone) -> Cone:
    """The cone with its leaves named in order of occurrence."""
    names = {leaf.name: f"x{i}" for i, leaf in enumerate(t for t in walk(cone.roots) if t.is_var)}
    roots = tuple(rebuild(root, lambda t: var(names[t.name]) if t.is_var else t, lambda v: v) for root in cone.roots)
    return Cone(roots, {new: cone.types[old] for old, new in names.items()})
