"""Weights of products of few rows, which kernels read by columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.blocks.interp import evaluate_kernel
from mugraph.domains import Real
from mugraph.graph import Graph
from mugraph.terms.term import make, var
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import get_device
from rewriter.cost.schedules import candidates, default_schedules
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.matched import matches_of
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.turned import is_turned, turned_weights, turns
from rewriter.run.records import CandidateRecord
from rewriter.search.directions import Direction
from rules_db.exchange import format_rules, parse_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from tests.support.fusing import evaluated, graph_of, moves_for

H200 = get_device("h200")


def product(rows: int, epilogue: str = "{}", inner: int = 48) -> Graph:
    return graph_of({"x": (1, rows, inner)}, {"w": (inner, 24), "b": (24,)}, [epilogue.format("MatMul(x, w)")])


def test_the_rule_stands_and_others_like_it_do_not() -> None:
    (rule,) = turned_weights(product(1))
    assert check(rule, load_axioms()) == []
    assert parse_rules(format_rules([rule])) == [rule]
    once = make("MatMul", [var("x"), make("Transpose", [var("y")], {"perm": (1, 0)})])
    square = {"x": parse_type("float16[1,1,24]"), "y": parse_type("float16[24,24]")}
    assert check(replace(rule, target=(once,)), load_axioms()) != []
    assert check(replace(rule, target=(once,), types=square), load_axioms()) != []


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (16, 1), (17, 0)])
def test_few_rows_are_turned_once(rows: int, count: int) -> None:
    moves, proposals, graph = moves_for(), KernelProposals(), product(rows)
    assert len(list(turned_weights(graph))) == count
    turned = proposals._turned(moves, moves.start(graph))
    (node,) = [node for node in turned.graph.nodes() if node.op == "MatMul"]
    assert is_turned(turned.graph, node.inputs[1]) == bool(count)
    assert not list(turned_weights(turned.graph))
    assert proposals._turned(moves, turned) is turned


def test_what_is_computed_or_of_any_number_of_rows_stays() -> None:
    fed = graph_of({"x": (1, 1, 48), "w": (48, 24)}, {}, ["MatMul(x, w)"])
    batched = graph_of({"x": (2, 1, 48)}, {"w": (2, 48, 24)}, ["MatMul(x, w)"])
    symbolic = graph_of({"x": parse_type("float16[b,1,48]").shape}, {"w": (48, 24)}, ["MatMul(x, w)"])  # type: ignore[dict-item]
    assert not any(list(turned_weights(graph)) for graph in (fed, batched, symbolic))
    texts = ["MatMul(x, w)", "MatMul(z, w)"]
    shared = [graph_of({"x": (1, 1, 48), "z": (1, rows, 48)}, {"w": (48, 24)}, texts) for rows in (4, 32)]
    assert [len(list(turned_weights(graph))) for graph in shared] == [2, 0]
    both = graph_of({"x": (1, 1, 48), "v": (48, 24)}, {"w": (48, 24)}, ["Add(MatMul(x, w), MatMul(x, v))"])
    (rule,) = turned_weights(both)
    found = matches_of(both, Direction(rule, True, "cuda"))
    assert [turns(both, match) for match in found].count(True) == 1 and len(found) == 2


def test_a_kernel_takes_the_product_with_what_follows_and_reads_columns() -> None:
    moves, graph = moves_for(), product(1, "Relu(Add({}, b))")
    best = min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost)
    (kernel,) = [node for node in best.graph.references if node.op == "Kernel"]
    assert {str(best.graph.type(value)) for value in kernel.inputs} == {"float16[1,1,48]", "float16[24,48]", "float16[24]"}
    x = np.random.default_rng(0).uniform(-1, 1, (1, 1, 48))
    assert np.allclose(evaluated(best.graph, x), evaluated(graph, x))
    turned = KernelProposals()._turned(moves, moves.start(graph))
    terms = {str(fusable.terms[0]) for fusable in propose(turned.graph)}
    assert "Relu(Add(MatMul(x0, Transpose[perm=(1,0)](x1)), x2))" in terms


def test_a_record_of_the_moves_keeps_the_rule() -> None:
    """No database has it: without it a later run could not make the moves again."""
    moves, graph = moves_for(), product(1, "Relu(Add({}, b))")
    best = min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost)
    record = CandidateRecord.of(best, graph.tables.key)
    (rule,) = turned_weights(graph)
    assert rule in record.rules and len(record.rules) == 2
    assert CandidateRecord.of_json(record.as_json()) == record


def test_a_row_takes_whole_columns_of_a_matrix_that_lies_by_them() -> None:
    """Few, of which all entries are loaded at once; measured on an H200 (docs/decoding.md, Weights by columns)."""
    types = {"x": parse_type("float16[1,2048]"), "w": parse_type("float16[1024,2048]")}
    turned = lower("turned", types, [("y", parse_term("MatMul(x, Transpose[perm=(1,0)](w))"))])
    tiles = {(s.tile("m"), s.tile("n"), s.tile("k")) for s in candidates(turned, H200)[0]}
    assert (1, 2, 2048) in tiles and (16, 16, 256) in tiles
    assert all(rows == 1 or (columns >= 16 and inner <= 256) for rows, columns, inner in tiles)
    (best,) = default_schedules(turned, H200)
    assert best.tile("m") == 1 and best.tile("n") < 16 and best.split == 1
    straight = lower("straight", types | {"w": parse_type("float16[2048,1024]")}, [("y", parse_term("MatMul(x, w)"))])
    assert all(s.tile("n") >= 16 and s.tile("k") <= 256 for s in candidates(straight, H200)[0])


def test_what_columns_give_is_the_product() -> None:
    types = {"x": parse_type("float16[1,40]"), "w": parse_type("float16[24,40]")}
    kernel = lower("turned", types, [("y", parse_term("MatMul(x, Transpose[perm=(1,0)](w))"))])
    generator = np.random.default_rng(0)
    x, w = generator.uniform(-1, 1, (1, 40)), generator.uniform(-1, 1, (24, 40))
    for schedule in candidates(kernel, H200)[0][::7]:
        (found,) = evaluate_kernel(kernel, Real(), {"x": x, "w": w}, [schedule])
        assert np.allclose(found, x @ w.T), schedule
