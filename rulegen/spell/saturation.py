"""Bounded equality saturation of a definition: all that operator properties say is equal to it, up to a size.

(Tate, Stepp, Tatlock, Lerner, "Equality saturation: a new approach to optimization", POPL 2009.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import plainer
from mugraph.ops.traits import Movement
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, const, make, make_attrs, rebuild, replace_terms, walk
from rulegen.mine.numbers import is_sample
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.search import ProofSearch
from rulegen.prove.selection import Laws
from rulegen.spell.definition import Definition, assumptions
from rulegen.spell.vocabulary import defines, named, operators_of, through, written
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Side

__all__ = ["Saturated", "SaturationLimits", "saturated"]


@dataclass(frozen=True)
class SaturationLimits:
    """Limits of a saturation.

    Attributes:
        nodes: of the e-graph.
        seconds: of processor time, after which no round of matching begins.
    """

    nodes: int = 6000
    seconds: float = 60.0


@dataclass(frozen=True)
class Saturated:
    """An e-graph in which a definition's equals lie.

    Attributes:
        graph: terms and classes.
        roots: nodes of the definition's outputs.
        given: how many nodes there were before laws were applied: they are those of the definition and of its plainer forms.
        numbers: that no program is to have: inverses of factors that were brought in.
        through: operators of a runtime's that programs may have: rules find these however they are spelled.
        limits: those that were met, in words.
    """

    graph: EGraph
    roots: tuple[int, ...]
    given: int
    numbers: frozenset[float]
    through: frozenset[str]
    limits: tuple[str, ...]

    def admits(self, operator: str) -> bool:
        """Whether programs may have an operator that is a name for others, where a definition has it."""
        return operator in self.through or get_operator(operator).contract is None


def saturated(definition: Definition, limits: SaturationLimits | None = None) -> Saturated:
    """The equals of a definition.

    Laws are the operator properties that speak of the definition's operators and of those that stand in for them. In half
    precision the definition is also there as computed in float32 and cast back.
    """
    limits = limits or SaturationLimits()
    deadline = time.process_time() + limits.seconds
    language, admitted = Language(), _vocabulary(definition)
    defining, laws = Laws(language), Laws(language)
    for axiom in load_axioms().values():
        if operators_of([axiom.left, axiom.right]) <= admitted and not _spares_axes(axiom):
            laws.add(axiom)
            if defines(axiom):
                defining.add(axiom)
    graph = EGraph(language)
    nodes = [graph.add_term(term, definition.types) for term in (*definition.roots, *definition.plain, *_wide(definition))]
    roots = tuple(node for node in nodes[: len(definition.roots)] if node is not None)
    size = max(*graph.size, *(term.size for term in plainer(definition.roots, definition.types) if definition.assumed))
    ProofSearch(graph, defining, ()).saturate(size, limits.nodes, deadline)
    given = len(graph.op)
    factors = _split_factors(graph)
    _add_flat(graph, admitted)
    _add_repeated(graph, admitted)
    search = ProofSearch(graph, laws, (), assume=True, assumed=assumptions(graph, definition))
    met: tuple[str, ...] = ()
    if not search.saturate(size, limits.nodes, deadline):
        met = (f"{limits.nodes} nodes" if len(graph.op) > limits.nodes else f"{limits.seconds:g} seconds of saturation",)
    _add_neutral(graph, admitted)
    search.saturate(size, len(graph.op) + limits.nodes, deadline, _NEUTRAL_ROUNDS)
    return Saturated(graph, roots, given, frozenset(1 / factor for factor in factors), through(definition.operator), met)


def _spares_axes(axiom: Axiom) -> bool:
    """Whether a law says no more than that an operand that fits another one may lack axes of one entry.

    The operands of a definition have the axes that they are given with. Without them the same programs follow once more, under
    conditions that compare sizes.
    """
    sides = (axiom.left, axiom.right), (axiom.right, axiom.left)
    return any(condition.predicate == "fits" for condition in axiom.conditions) and any(
        replace_terms(side, {view: view.inputs[0]}) is other
        for side, other in sides
        for view in side.inputs
        if traits_of(view.op).movement is Movement.VIEW
    )


_NEUTRAL_ROUNDS = 2
"""Enough for a factor of one to become the dividend of a quotient; more would carry neutral numbers everywhere."""


def _split_factors(graph: EGraph) -> set[float]:
    """Adds each product with a number that stands for any as one with two such numbers, of which both operands may have one."""
    factors = set[float]()
    for node in range(len(graph.op)):
        name, attrs, out = graph.language.ops[graph.op[node]]
        number = graph.term(graph.operands[node][1]) if len(graph.operands[node]) == 2 else None
        if name == "Mul" and number is not None and number.op == "Const" and is_sample(number.attr("value")):
            x, op = graph.operands[node][0], graph.language.op(name, attrs, out)
            for factor in (number.attr("value") / _FACTOR, _FACTOR):
                factors.add(factor)
                x = graph.add(op, (x, graph.leaf(const(factor), graph.language.literal(const(factor))))) or x
    return factors


_FACTOR = 2.0**-12
"""A sample, whose product with another one is exact."""


def _add_flat(graph: EGraph, admitted: frozenset[str]) -> None:
    """Adds tensors of four axes with the first two made one and back, as exporters take batched products with."""
    if _RESHAPE not in admitted:
        return
    for root in sorted({graph.find(node) for node, operands in enumerate(graph.operands) if operands}):
        shape = graph.language.types[graph.type[root]][0].shape
        if len(shape) == 4:
            flat = make_attrs({"drop": 4, "shape": (shape[0] * shape[1], *shape[2:])})
            back = make_attrs({"drop": 3, "shape": shape})
            made = graph.add(graph.language.op(_RESHAPE, flat, 0), (graph.best[root],))
            if made is not None:
                graph.add(graph.language.op(_RESHAPE, back, 0), (made,))


_RESHAPE = "Reshape"


def _add_repeated(graph: EGraph, admitted: frozenset[str]) -> None:
    """Adds what is repeated along some axes as expanded to its whole shape: laws lead from there to the axes alone."""
    for node, operands in enumerate(list(graph.operands)):
        if operands and _EXPAND in admitted and _repeats(graph.language.ops[graph.op[node]][0]):
            shape = graph.language.types[graph.type[graph.find(node)]][0].shape
            graph.add(graph.language.op(_EXPAND, make_attrs({"shape": shape}), 0), operands)


_EXPAND = "Expand"


def _add_neutral(graph: EGraph, admitted: frozenset[str]) -> None:
    """Adds each value with a number that leaves it as it is, ``x * 1``: laws with a variable for a side never bring that in."""
    classes = sorted({graph.find(node) for node, operands in enumerate(graph.operands) if operands})
    for axiom in load_axioms().values():
        left = axiom.left
        if not axiom.right.is_var or axiom.conditions or not operators_of([left]) <= admitted or len(left.inputs) != 2:
            continue
        first, second = left.inputs
        if first is axiom.right and second.op == "Const":
            number = graph.leaf(second, graph.language.literal(second))
            for c in classes:
                graph.add(graph.language.op(left.op, left.attrs, left.out), (graph.best[c], number))


def _vocabulary(definition: Definition) -> frozenset[str]:
    """The operators of a definition, those by which properties define it step by step, and those that may stand in for them.

    A property of which one side has none but the definition's plain operators tells of the others that it has. Of these,
    functions of entries stand in, what gives or takes axes of length 1, and what repeats where the definition does; products and
    other composites do not.
    """
    defining = () if through(definition.operator) else plainer(definition.roots, definition.types)
    plain = operators_of([*definition.plain, *definition.roots, *defining])
    further: set[str] = set()
    for axiom in load_axioms().values():
        sides = operators_of([axiom.left]), operators_of([axiom.right])
        for side, other in (sides, sides[::-1]):
            if side and side <= plain:
                further |= other
    casts = {"Cast"} if definition.is_half else set()
    repeating = set(filter(_repeats, further)) if any(map(_repeats, plain)) else set[str]()
    inner = named(definition.operator) - through(definition.operator)
    return plain | inner | casts | repeating | frozenset(filter(_stands_in, further))


def _repeats(operator: str) -> bool:
    return traits_of(operator).movement is Movement.REPETITION


def _stands_in(operator: str) -> bool:
    record = get_operator(operator)
    if not written(operator) or record.arity[1] is None:
        return False
    return record.elementwise or (record.traits.rearranges and not record.traits.keeps_rank and not record.sized)


def _wide(definition: Definition) -> Side:
    """The plain program in float32, cast back, and operands cast back and forth; nothing where operands are of float32."""
    if not definition.is_half:
        return ()
    (narrow,) = {type_.dtype for type_ in definition.types.values()}

    def widened(leaf: Term) -> Term:
        return make("Cast", [leaf], {"to": DataType.FLOAT}) if leaf.is_var else leaf

    leaves = [leaf for leaf in dict.fromkeys(walk(definition.plain)) if leaf.is_var]
    inner = [*map(widened, leaves), *(rebuild(root, widened, lambda value: value) for root in definition.plain)]
    return tuple(make("Cast", [term], {"to": narrow}) for term in inner)
