"""What a side of a rule is made of, found in one walk over its terms for all who ask."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from mugraph.terms.term import AttrVar, Term, open_names, walk
from rules_db.trust.rule import Side

__all__ = ["SideFacts", "facts_of"]

_SIDES = 1 << 13
"""Sides that are remembered: more than twice those of the rules that ship."""


@dataclass(frozen=True, slots=True, eq=False)
class SideFacts:
    """Facts of one side.

    Attributes:
        ops: the operators of all terms, leaves (``Var``, ``Const``) among them.
        operators: those of its terms with operands, operands first; a term that is read twice stands there once.
        applications: how often each of these is applied: terms that stand for several outputs of one application count once.
        variables: in order of first occurrence.
        opened: names of the attribute variables, in order of first occurrence.
        depth: greatest number of operators on a path.
        reads: pairs of an operator and one that reads a result of it.
    """

    ops: frozenset[str]
    operators: tuple[str, ...]
    applications: Counter[str]
    variables: tuple[Term, ...]
    opened: tuple[str, ...]
    depth: int
    reads: frozenset[tuple[str, str]]


@lru_cache(maxsize=_SIDES)
def facts_of(side: Side) -> SideFacts:
    """The facts of a side."""
    made, variables, ops = list[Term](), list[Term](), set[str]()
    reads, opened, depths = set[tuple[str, str]](), dict[str, None](), dict[Term, int]()
    for term in walk(side):
        op, depth = term.op, 0
        ops.add(op)
        if term.inputs:
            made.append(term)
            for operand in term.inputs:
                reads.add((operand.op, op))
                if depth <= depths[operand]:
                    depth = depths[operand] + 1
        elif op == "Var":
            variables.append(term)
        depths[term] = depth
        for _, value in term.attrs:
            if isinstance(value, tuple | AttrVar):
                opened.update(dict.fromkeys(open_names(value)))
    operators = tuple([term.op for term in made])
    if len(set(operators)) == len(operators):
        applications = Counter(operators)
    else:
        applications = Counter([op for op, _, _ in {(term.op, term.attrs, term.inputs) for term in made}])
    depth = max([depths[root] for root in side])
    return SideFacts(frozenset(ops), operators, applications, tuple(variables), tuple(opened), depth, frozenset(reads))
