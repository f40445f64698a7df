"""What is written into caches: apart from the attention that appends, or as a choice of what is new, for kernels to take.

onnxruntime's attention that appends to a cache of which the run tells what counts writes what is new into the buffer that it
reads, where it is bound to one for both, and a kernel that gave the cache would copy all of it. So the operator stays for the
cache, with attributes by which it attends to next to nothing, and what it gives beside the cache is written out, for a kernel.

One position that is written among others is a choice for each entry between what is new and what was there. A kernel that makes
it writes in place, too, where it is bound so, with all that makes the new entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.ops import get_operator, traits_of
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided
from mugraph.terms.term import Attrs, Term, make, make_attrs, var
from rewriter.search.directions import made_here
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.condition import Condition
from rules_db.trust.numbering import repeat_numbering, shape_conditions
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["attention_apart", "chosen_updates"]

_ORIGIN = made_here("caches")


def attention_apart(graph: Graph) -> Iterator[Rule]:
    """The rules that take attention apart from what appends to its cache, each once: of the sizes that a graph has them at."""
    found = (_apart(node.op, node.attrs, tuple(map(graph.type, node.inputs))) for node in graph.nodes() if not node.is_opaque)
    yield from dict.fromkeys(rule for rule in found if rule is not None)


@lru_cache(maxsize=1 << 8)
def _apart(op: str, attrs: Attrs, types: tuple[TensorType | None, ...]) -> Rule | None:
    """The rule for an operator at some types; ``None`` where nothing is to be taken apart."""
    record = get_operator(op)
    rest = record.runtime.rest({**record.defaults, **dict(attrs)})
    operands = {f"x{i}": type_ for i, type_ in enumerate(types) if type_ is not None}
    if rest is None or len(operands) < len(types):
        return None
    try:
        first, *others = record.decompose(attrs, list(operands.values()))
    except (ShapeError, Undecided):
        return None
    variables = [var(name) for name in operands]
    outputs = range(len(others) + 1)
    source = tuple(make(op, variables, attrs, out) for out in outputs)
    target = (first, *(make(op, variables, make_attrs(rest), out) for out in outputs[1:]))
    conditions = tuple(condition for name, type_ in operands.items() for condition in shape_conditions(var(name), type_))
    rule = Rule(source, target, operands, conditions, FloatClass.REASSOCIATES, Certificate((), numbered=True), _ORIGIN)
    return None if repeat_numbering(rule) else rule


def chosen_updates(graph: Graph) -> Iterator[Rule]:
    """The rules that make choices of what is written into caches, each once: of the sizes that a graph has them at.

    Then those by which one place that is repeated for all entries is one.
    """
    found, repeated = dict[Rule, None](), dict[Rule, None]()
    for node in graph.nodes():
        if node.is_opaque or not traits_of(node.op).overwrites:
            continue
        rule = _chosen(node.op, node.attrs, tuple(map(graph.type, node.inputs)))
        if rule is not None:
            found[rule] = None
            repeated.update(dict.fromkeys(_of_one_place(graph, rule, node)))
    yield from (*found, *repeated)


@lru_cache(maxsize=1 << 8)
def _chosen(op: str, attrs: Attrs, types: tuple[TensorType | None, ...]) -> Rule | None:
    """The rule for what is written at some types; ``None`` where it is no choice."""
    record = get_operator(op)
    operands = {f"x{i}": type_ for i, type_ in enumerate(types) if type_ is not None}
    if record.decomposition is None or len(operands) < len(types) or operands["x0"].dtype not in FLOATS:
        return None  # onnxruntime has no Where of all other types
    try:
        target = record.decompose(attrs, list(operands.values()))
    except (ShapeError, Undecided):
        return None
    source = (make(op, [var(name) for name in operands], attrs),)
    conditions = tuple(condition for name, type_ in operands.items() for condition in shape_conditions(var(name), type_))
    rule = Rule(source, target, operands, conditions, FloatClass.EXACT, Certificate((), numbered=True), _ORIGIN)
    return None if repeat_numbering(rule) else rule


def _of_one_place(graph: Graph, chosen: Rule, node: Node) -> Iterator[Rule]:
    """The rule for a choice by one place that is repeated for all entries, if that is so.

    Args:
        chosen: the rule of the choice.
        node: that it is for.
    """
    (choice,) = chosen.target
    levels = _levels(choice)
    along, first = levels[0].inputs[0].inputs
    found = first.inputs[0] if first.op == "Slice" else first
    if found.op != "Gather":
        return
    table, place = found.inputs
    definition = graph.definition(node.inputs[int(place.name.removeprefix("x"))])
    if definition is None or definition[0].op != "Expand" or (type_ := graph.type(definition[0].inputs[0])) is None:
        return
    past = levels[0].inputs[2]
    shape, whole = dict(definition[0].attrs)["shape"], chosen.types[past.name].shape

    def repeated(term: Term, sizes: tuple[Dim, ...]) -> Term:
        return make("Expand", [term], {"shape": sizes})

    early, late = make("Gather", [table, repeated(place, shape)], found.attrs), repeated(found, shape)
    instances = [Instance("gather.expanded_places", (("x", table), ("i", place)), (("s", shape),))]
    conditions, source = [Condition("vector", (table,))], past
    for level in levels:
        equal, new, kept = level.inputs
        at, one = equal.inputs[1], shape
        if at is not found:
            part, one = dict(at.attrs), (*shape[: at.attr("axes")[0]], 1, *shape[len(shape) + at.attr("axes")[0] + 1 :])
            told = tuple((name, *part[key]) for name, key in (("k", "axes"), ("b", "starts"), ("e", "ends"), ("u", "steps")))
            instances.append(Instance("slice.expand_through.Slice", (("x", found),), (("s", shape), ("t", one), *told)))
            conditions.append(Condition("same_shape", (make("Slice", [late], at.attrs), repeated(at, one))))
        last = repeated(equal, whole)
        instances.append(Instance("equal.expand", (("x", along), ("y", at)), (("s", one), ("t", whole))))
        instances.append(Instance("where.expanded", (("c", equal), ("x", new), ("y", kept)), (("s", whole),)))
        conditions.append(Condition("same_shape", (make("Equal", [along, repeated(at, one)]), last)))
        conditions.append(Condition("same_shape", (make("Where", [last, new, kept]), level)))
        early_at = early if at is found else make("Slice", [early], at.attrs)
        source = make("Where", [make("Equal", [along, early_at]), new, source])
    types = {**chosen.types, place.name: type_}
    yield Rule((source,), (choice,), types, tuple(conditions), FloatClass.EXACT, Certificate(tuple(instances)), _ORIGIN)


def _levels(choice: Term) -> list[Term]:
    """The choices one behind another that a choice is, the first first."""
    levels = [choice]
    while levels[0].inputs[2].op == "Where":
        levels.insert(0, levels[0].inputs[2])
    return levels
