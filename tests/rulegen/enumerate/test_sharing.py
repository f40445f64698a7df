"""Terms as graphs: all of a size, each once, compared with graphs that are made one by one."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from mugraph.ops import get_operator
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, var, walk
from rulegen.enumerate.enumeration import Enumeration, enumerate_terms
from rulegen.workloads import get_workload
from rulegen.workloads.workload import Workload, slot_admits
from tests.support.enumerations import partition

CONCAT = Workload(
    "t",
    {"A": "[m,2*m]", "x": "[2*m,k]"},
    ("MatMul(any, any)", "Add(same, same)", "Relu(any)", "Split[axis=-1,sizes=(m,m)](any)", "Concat[axis=-1](same, same)"),
    max_ops=3,
    extend="all",
    shared=True,
    sizes={"m": (2, 3, 2), "k": (3, 2, 4)},
    samples=2,
)
"""Commutative operators and others, with one output and several."""
DEEP = Workload("t", {"x": "[m]"}, ("Add(same, same)", "Relu(any)"), max_ops=4, extend="all", shared=True)
"""Two operands of two nodes each that share one."""
WHERE = Workload("t", {"c": "bool[m]", "x": "[m]"}, ("Where(any, same, same)", "Neg(same)"), extend="all", shared=True)
"""An operator of three operands."""


Node = tuple[str, tuple[tuple[str, object], ...], tuple[Term, ...]]
"""An operator, its attributes and operands; its outputs are one node."""


def nodes(term: Term) -> frozenset[Node]:
    return frozenset((t.op, t.attrs, t.inputs) for t in walk([term]) if not t.is_var)


def made_one_by_one(workload: Workload) -> list[set[Term]]:
    """All terms by number of nodes."""
    types: dict[Term, TensorType] = {var(name): type_ for name, type_ in workload.types.items()}
    held: dict[Term, frozenset[Node]] = {leaf: nodes(leaf) for leaf in types}
    levels = [set(types)]
    for size in range(1, workload.max_ops + 1):
        new: dict[Term, TensorType] = {}
        for template in workload.operator_terms:
            operator = get_operator(template.op)
            known = [t for t in types if len(held[t]) < size]
            for operands in itertools.product(known, repeat=len(template.inputs)):
                slots = [slot.name for slot in template.inputs]
                alike = {types[t] for t, slot in zip(operands, slots, strict=True) if slot == "same"}
                if len(alike) > 1 or not all(slot_admits(s, types[t]) for s, t in zip(slots, operands, strict=True)):
                    continue
                if len(frozenset().union(*(held[t] for t in operands))) != size - 1:
                    continue
                if operator.commutative:
                    operands = tuple(sorted(operands, key=repr))
                try:
                    results = operator.types(template.attrs, [types[t] for t in operands])
                except (ShapeError, Undecided):
                    continue
                new |= {make(template.op, operands, template.attrs, out): type_ for out, type_ in enumerate(results)}
        types |= new
        held |= {term: nodes(term) for term in new}
        levels.append(set(new))
    return levels


def sorted_operands(term: Term) -> Term:
    if term.is_var:
        return term
    operands = [sorted_operands(operand) for operand in term.inputs]
    return make(term.op, sorted(operands, key=repr) if get_operator(term.op).commutative else operands, term.attrs, term.out)


def kept(enumeration: Enumeration, level: int) -> list[Term]:
    return [sorted_operands(enumeration.term(row)) for row in np.flatnonzero(enumeration.table.level == level).tolist()]


@pytest.mark.parametrize("workload", [CONCAT, DEEP, WHERE], ids=["concat", "deep", "where"])
def test_every_graph_of_a_size_is_made_and_none_twice(workload: Workload) -> None:
    enumeration, levels = enumerate_terms(workload), made_one_by_one(workload)
    for level in range(workload.max_ops):
        found = kept(enumeration, level)
        assert len(found) == len(set(found)), level
        assert set(found) == levels[level], level
    assert enumeration.counts == [len(level) for level in levels]
    assert any(len(nodes(t)) < sum(not part.is_var for part in unfolded(t)) for t in levels[-1])


def unfolded(term: Term) -> list[Term]:
    """The parts of a term as a tree."""
    return [term, *(part for operand in term.inputs for part in unfolded(operand))]


def test_trees_are_graphs_without_what_is_shared() -> None:
    tree = dataclasses.replace(CONCAT, shared=False)
    trees, graphs = ({term for level in range(3) for term in kept(enumerate_terms(w), level)} for w in (tree, CONCAT))
    assert all(sum(not part.is_var for part in unfolded(term)) < 3 for term in trees)
    assert trees < graphs


def test_what_is_shared_is_used_once() -> None:
    limited = dataclasses.replace(CONCAT, uses={"A": 1, "x": 1, "MatMul": 1}, max_ops=3)
    found = {term for level in range(3) for term in kept(enumerate_terms(limited), level)}
    wanted = {
        term
        for level in made_one_by_one(limited)[:3]
        for term in level
        if sum(op == "MatMul" for op, _, _ in nodes(term)) <= 1
        and all(sum(inputs.count(var(name)) for _, _, inputs in nodes(term)) <= 1 for name in "Ax")
    }
    assert found == wanted
    assert any(repr(term) == "Add(MatMul(A, x), MatMul(A, x))" for term in found)


def test_classes_of_graphs_are_those_of_trees_and_more() -> None:
    workload = get_workload("lowrank")
    trees, graphs = (partition(enumerate_terms(dataclasses.replace(workload, shared=s), 3)) for s in (False, True))
    assert all(any(tree <= graph for graph in graphs) for tree in trees)
