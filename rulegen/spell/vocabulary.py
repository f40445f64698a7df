"""The operators of which spellings are made, and those that are names for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import Term, walk
from rulegen.prove.egraph import EGraph
from rules_db.trust.properties import Axiom, load_axioms

__all__ = ["defines", "named", "operators_of", "smallest", "through", "written"]


def written(operator: str) -> bool:
    """Whether models spell with an operator: ONNX has it, and it is no name for others."""
    record = get_operator(operator)
    return record.contract is None and record.onnx != () and not record.traits.named_whole


def operators_of(roots: Iterable[Term]) -> frozenset[str]:
    """The operators that are applied to something."""
    return frozenset(term.op for term in walk(roots) if term.inputs)


def defines(axiom: Axiom) -> bool:
    """Whether a property says what an operator is, in terms of others."""
    return traits_of(axiom.left.op).named_whole and axiom.left.op not in operators_of([axiom.right])


def named(operator: str) -> frozenset[str]:
    """An operator and those that are names for others in terms of which properties define it."""
    found = {operator}
    while True:
        sides = [axiom for axiom in load_axioms().values() if axiom.left.op in found]
        further = {op for axiom in sides for op in operators_of([axiom.right]) if defines(axiom) and traits_of(op).named_whole}
        if further <= found:
            return frozenset(found)
        found |= further


def through(operator: str) -> frozenset[str]:
    """Those of a runtime among the operators that define one: rules find these first, however they are spelled."""
    return frozenset(op for op in named(operator) - {operator} if get_operator(op).contract is not None)


def smallest(graph: EGraph, admits: Callable[[str], bool]) -> dict[int, Term]:
    """Per class of an e-graph the smallest term of admitted operators, if there is one."""
    found: dict[int, Term] = {}
    changed = True
    while changed:
        changed = False
        for node, operands in enumerate(graph.operands):
            name, attrs, out = graph.language.ops[graph.op[node]]
            below = [found.get(graph.find(operand)) for operand in operands]
            if None in below or not (name in ("Var", "Const") or admits(name)):
                continue
            term = Term(name, attrs, tuple(t for t in below if t is not None), out) if operands else graph.term(node)
            best = found.get(graph.find(node))
            if best is None or term.size < best.size:
                found[graph.find(node)], changed = term, True
    return found
