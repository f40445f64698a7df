"""The persistent model graph: liveness, digests, sharing, cycles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.graph import Constant, CycleError, Graph, Node, Tables
from mugraph.terms.text import parse_type


def _constant(tables: Tables, text: str) -> int:
    type_ = parse_type(text)
    return tables.add_constant(Constant.of(np.ones(type_.shape, np.float32), type_))


def _two_products() -> tuple[Tables, Graph, dict[str, int], dict[str, Node]]:
    tables = Tables()
    x = tables.new_value(parse_type("[4,8]"))
    w, v = _constant(tables, "[8,3]"), _constant(tables, "[8,3]")
    xw, xv = tables.apply("MatMul", (), [x, w]), tables.apply("MatMul", (), [x, v])
    total = tables.apply("Add", (), [xw.values[0], xv.values[0]])
    graph = Graph.build(tables, [x], [total.values[0]])
    return tables, graph, {"x": x, "w": w, "v": v, "y": total.values[0]}, {"xw": xw, "xv": xv, "total": total}


def test_a_substitution_changes_only_what_it_reaches() -> None:
    tables, graph, values, nodes = _two_products()
    weights = tables.apply("Add", (), [values["w"], values["v"]])
    product = tables.apply("MatMul", (), [values["x"], weights.values[0]])
    changed = graph.substitute({values["y"]: (product, 0)})
    assert changed.added == {weights, product}
    assert changed.removed == set(nodes.values())
    assert [n.op for n in changed.nodes()] == ["Add", "MatMul"]
    assert tables.constant[weights.values[0]] and not tables.constant[product.values[0]]
    assert [n.op for n in graph.nodes()] == ["MatMul", "MatMul", "Add"], "the parent is untouched"


def test_undoing_a_substitution_gives_back_the_digest_and_the_users() -> None:
    tables, graph, values, nodes = _two_products()
    negated = tables.apply("Neg", (), [values["x"]])
    product = tables.apply("MatMul", (), [negated.values[0], values["w"]])
    there = graph.substitute({values["y"]: (product, 0)})
    back = there.substitute({values["y"]: (nodes["total"], 0)})
    assert there.digest != graph.digest
    assert back.digest == graph.digest
    assert back.users == graph.users
    assert back.references == graph.references


def test_interning_finds_the_original_node() -> None:
    tables, _, values, nodes = _two_products()
    assert tables.apply("MatMul", (), [values["x"], values["w"]]) is nodes["xw"]


def test_opaque_nodes_are_never_merged() -> None:
    tables = Tables()
    x = tables.new_value(parse_type("[2]"))
    first = tables.add_node("Opaque", (), [x], [tables.new_value(parse_type("[2]"))], origin=0, intern=False)
    second = tables.add_node("Opaque", (), [x], [tables.new_value(parse_type("[2]"))], origin=1, intern=False)
    assert first is not second
    graph = Graph.build(tables, [x], [first.values[0], second.values[0]])
    assert len(graph.references) == 2


def test_a_value_that_would_depend_on_itself_is_refused() -> None:
    tables, graph, values, nodes = _two_products()
    negated = tables.apply("Neg", (), [values["y"]])
    with pytest.raises(CycleError):
        graph.substitute({nodes["xw"].values[0]: (negated, 0)})


def test_taso_figure_6_two_outputs_make_a_cycle() -> None:
    """A×relu(A×B): both products share A; merging them by concatenation would need the second to compute the first."""
    tables = Tables()
    a, b = tables.new_value(parse_type("[4,4]")), tables.new_value(parse_type("[4,4]"))
    first = tables.apply("MatMul", (), [a, b])
    relu = tables.apply("Relu", (), [first.values[0]])
    second = tables.apply("MatMul", (), [a, relu.values[0]])
    graph = Graph.build(tables, [a, b], [second.values[0]])
    both = tables.apply("Concat", (("axis", -1),), [b, relu.values[0]])
    product = tables.apply("MatMul", (), [a, both.values[0]])
    split = tables.apply("Split", (("axis", -1), ("sizes", (4, 4))), [product.values[0]])
    with pytest.raises(CycleError):
        graph.substitute({first.values[0]: (split, 0), second.values[0]: (split, 1)})


def test_a_chain_of_ten_thousand_nodes() -> None:
    tables = Tables()
    x = tables.new_value(parse_type("[2]"))
    value = x
    for _ in range(10_000):
        value = tables.apply("Neg", (), [value]).values[0]
    graph = Graph.build(tables, [x], [value])
    assert sum(1 for _ in graph.nodes()) == 10_000
    shorter = graph.substitute({value: (tables.apply("Identity", (), [x]), 0)})
    assert len(shorter.references) == 1 and len(shorter.removed) == 10_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from(["Add", "Mul", "Neg"])), min_size=3, max_size=25),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8),
)
def test_incremental_bookkeeping_equals_a_fresh_count(program: list[tuple[int, int, str]], edits: list[tuple[int, int]]) -> None:
    """After any edits, users, references and digest are those of a graph counted from scratch."""
    tables = Tables()
    values = [tables.new_value(parse_type("[3]")) for _ in range(2)]
    for left, right, op in program:
        operands = [values[left % len(values)], values[right % len(values)]]
        values.append(tables.apply(op, (), operands if op != "Neg" else operands[:1]).values[0])
    graph = Graph.build(tables, values[:2], values[-2:])
    for target, source in edits:
        inner = values[2:]
        try:
            graph = graph.substitute({inner[target % len(inner)]: tables.makers[inner[source % len(inner)]]})
        except CycleError:
            continue
    fresh = Graph(tables, graph.inputs, graph.outputs, graph.definitions, graph.users.__class__(), graph.users.__class__())
    recounted = _recount(fresh)
    assert dict(recounted.users) == dict(graph.users)
    assert dict(recounted.references) == dict(graph.references)
    assert recounted.digest == graph.digest
    others = {n: {v for v, (at, _) in graph.definitions.items() if at is n} for n, _ in graph.definitions.values()}
    assert {node: set(found) for node, found in graph.others.items() if found} == others


def _recount(graph: Graph) -> Graph:
    from mugraph.graph import _Change

    change = _Change(graph)
    for value in dict.fromkeys(graph.outputs):
        change.enliven(value, change.lookup(value))
    return change.finish()
