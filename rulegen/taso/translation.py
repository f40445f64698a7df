"""The translation of TASO's rules to terms.

A file names operators, parameters and edges, but neither ranks nor shapes. Each rule is translated under every typing that
fits ONNX: ranks that no operator fixes, groups of convolutions whose kernels leave them open, both readings of average
pooling, and even and odd sizes where a stride makes SAME padding depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, evaluate_dim, plain_symbol, symbol
from mugraph.terms.term import substitute, var, variables
from rulegen.taso.file import Parameter, Place, TasoGraph, TasoKind, TasoRule
from rulegen.taso.operators import TasoValue, TypingState, Untranslatable, apply
from rulegen.taso.plans import plans, ranks_of
from rulegen.typings.dimensions import Dimensions, readable_symbols
from rules_db.trust.rule import Side, dim_symbols

__all__ = ["Typed", "Untyped", "typings"]


@dataclass(frozen=True)
class Typed:
    """A rule under one typing.

    Attributes:
        source, target: terms.
        types: of their variables.
        choices: made where the file leaves them open.
        needs: what the target wants of the sizes beyond what makes the source well-typed, as the guard ``dim`` says it.
    """

    source: Side
    target: Side
    types: Mapping[str, TensorType]
    choices: Mapping[str, str]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Untyped:
    """Why a rule has no typing.

    Attributes:
        reason: the contradiction.
        source: the source with its types, where that alone is well-typed.
    """

    reason: str
    source: Typed | None = None


def _variable(state: TypingState, number: int, rank: int) -> TasoValue:
    if number not in state.variables:
        state.variables[number] = TasoValue(var(f"x{-number}"), state.dims.shape(rank), (None,) * rank)
    return state.variables[number]


def _run(
    state: TypingState, side: str, graph: TasoGraph, ranks: Mapping[tuple[str, Place], int | None], wanted: Sequence[Place]
) -> list[TasoValue]:
    """Values of the wanted outputs of a graph."""
    results: list[list[TasoValue]] = []

    def rank(key: tuple[str, Place]) -> int:
        fixed = ranks.get(key)
        if fixed is None:
            state.used.add("rank")
            return state.plan.rank
        return fixed

    def value(place: Place) -> TasoValue:
        op, out = place
        if op < 0:
            return _variable(state, op, rank(("", place)))
        if not 0 <= out < len(results[op]):
            raise Untranslatable(f"output {out} of {graph[op].kind.name}")
        return results[op][out]

    for position, node in enumerate(graph):
        values = [value(place) for place in node.inputs]
        values = [replace(v, shape=state.dims.resolved(v.shape)) for v in values]
        results.append(apply(state, node, values, rank((side, (position, 0))) if node.kind == TasoKind.CONSTANT_ONE else 0))
    return [value(place) for place in wanted]


def _finish(state: TypingState, source: Sequence[TasoValue], target: Sequence[TasoValue]) -> Typed:
    """Readable names for the symbols; the types are checked by inference."""
    dims = state.dims
    names = {value.term.name: dims.resolved(value.shape) for value in state.variables.values()}
    sides = [[value.term for value in side] for side in (source, target)]
    order = [v.name for v in variables([*sides[0], *sides[1]])]
    attributes = [dims.resolve(symbol(name)) for name in sorted(dim_symbols([*sides[0], *sides[1]]))]
    final = readable_symbols([*(d for name in order for d in names[name]), *attributes], set())

    def finish(dim: Dim) -> Dim:
        return evaluate_dim(dims.resolve(dim), final)

    binding = {**{name: finish(d) for name, d in dims.bound.items()}, **final}
    roots = [tuple(substitute(root, {}, dims=binding) for root in side) for side in sides]
    types = {name: TensorType(DataType.FLOAT, tuple(map(finish, names[name]))) for name in order}
    inferred = infer_types([*roots[0], *roots[1]], types)
    for a, b in zip(*roots, strict=False):
        if inferred[a] != inferred[b]:
            raise ShapeError(f"the sides have types {inferred[a]} and {inferred[b]}")
    return Typed(roots[0], roots[1], types, _choices(state, final))


def _choices(state: TypingState, final: Mapping[str, Dim]) -> dict[str, str]:
    """The plan's choices that made a difference, by name."""
    choices: dict[str, str] = {}
    if state.plan.uneven:
        choices["parts"] = "of different sizes"
    if state.open:
        groups = dict.fromkeys(str(evaluate_dim(state.dims.resolve(g), final)) for g in state.groups)
        choices["group"] = " and ".join(groups)
    if "counts_pads" in state.used:
        choices["count_include_pad"] = str(int(state.plan.counts_pads))
    if "odd" in state.used:
        choices["spatial sizes"] = "odd" if state.plan.odd else "even"
    if "rank" in state.used:
        choices["rank"] = str(state.plan.rank)
    if "kernel" in state.used:
        choices["kernel"] = "x".join(map(str, state.plan.kernel))
    return choices


def _needs(before: TypingState, typed: Typed) -> tuple[str, ...]:
    """The sizes of the source's variables that are free in the source alone and that the target ties to others.

    Args:
        before: the typing of the source alone.
        typed: the rule.
    """
    places: dict[str, list[tuple[str, int, Dim]]] = {}
    for value in before.variables.values():
        name, shape = value.term.name, before.dims.resolved(value.shape)
        for axis in range(-len(shape), 0):
            free = plain_symbol(shape[axis])
            if free is not None and name in typed.types:
                places.setdefault(free, []).append((name, axis, typed.types[name].shape[axis]))
    wanted = {free: at[0][2] for free, at in places.items()}
    tied = [free for free, dim in wanted.items() if plain_symbol(dim) is None or list(wanted.values()).count(dim) > 1]
    return tuple(f"dim({name}, {axis}, {dim})" for free in tied for name, axis, dim in places[free][:1])


_MOST_OPERATORS, _LARGEST = 40, 16
"""The greatest number of operators, and value of any parameter but PERM, of a rule that is examined."""


def typings(rule: TasoRule) -> list[Typed] | Untyped:
    """The rule under every typing that fits, the plainest first.

    Where only even sizes fit, since the sides' shapes differ for odd ones, the last is the source at odd sizes, without a target.

    Raises:
        Untranslatable: the file does not say what an operator computes, or the rule is too large to be examined.
    """
    nodes = (*rule.source, *rule.target)
    if len(nodes) > _MOST_OPERATORS:
        raise Untranslatable(f"{len(nodes)} operators, more than the {_MOST_OPERATORS} that are examined")
    for node in nodes:
        for key, value in node.parameters.items():
            if key not in (Parameter.PERM, Parameter.OP_TYPE) and not 0 <= value <= _LARGEST:
                name = Parameter(key).name if key in Parameter._value2member_map_ else str(key)
                raise Untranslatable(f"{node.kind.name} with {name} = {value}")
    try:
        ranks = ranks_of(rule)
    except ShapeError as problem:
        return Untyped(str(problem))
    typed_rules: dict[object, Typed] = {}
    problem_, alone, odd = "", None, None
    for plan in plans(rule):
        state = TypingState(Dimensions(), plan)
        source: list[TasoValue] = []
        try:
            source = _run(state, "s", rule.source, ranks, [s for s, _ in rule.outputs])
            before = replace(state, dims=state.dims.copy(), variables=dict(state.variables))
            target = _run(state, "t", rule.target, ranks, [t for _, t in rule.outputs])
            for a, b in zip(source, target, strict=True):
                state.dims.match(a.shape, b.shape)
            typed = _finish(state, source, target)
            typed = replace(typed, needs=_needs(before, typed))
        except (ShapeError, Undecided) as reason:
            problem_ = problem_ or str(reason).replace("?", "d")
            if source and alone is None:
                try:
                    alone = _finish(before, source, [])
                except (ShapeError, Undecided):
                    alone = None
            if source and plan.odd and odd is None and "odd" in state.used:
                try:
                    odd = _finish(before, source, [])
                except (ShapeError, Undecided):
                    odd = None
            continue
        typed_rules.setdefault((typed.source, typed.target, tuple(typed.types.items())), typed)
    if odd is not None and typed_rules and all(t.choices.get("spatial sizes") == "even" for t in typed_rules.values()):
        return [*typed_rules.values(), odd]
    return list(typed_rules.values()) or Untyped(problem_ or "no typing fits", alone)
