"""Runs over models with branches and loops: rules within bodies, inputs that take the branches, what no input runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.onnx.scopes import graphs_within
from rewriter import Outcome, optimize
from rewriter.cost import CostModel, ProfileStore
from rewriter.reference import choices, random_inputs
from rewriter.run.branches import body_runs
from rewriter.search.match import NoMatch
from rewriter.search.matches import Matches
from rewriter.search.ranges import RangeOracle
from tests.support.graphs import rule
from tests.support.runs import run_model

DOUBLE = rule("Neg(Neg(X))", "X", "X:[m,n]")
RATE = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,8] x, int64 rate) => (float[N,8] y) {
        k = Constant<value = int64 {16000}>()
        fast = Equal(rate, k)
        y = If (fast) <
            then_branch = one () => (float[N,8] a) { p = Tanh(x) q = Neg(p) r = Neg(q) a = Exp(r) },
            else_branch = two () => (float[N,8] a) { p = Neg(x) q = Neg(p) a = Sigmoid(q) }
        >
    }"""


@pytest.fixture(autouse=True)
def _own_cache(own_cache: Path) -> None: ...


def run(tmp_path: Path, model: str, *rules: Any, **options: Any) -> tuple[Outcome, list[str]]:
    onnx.save(parse_model(model), tmp_path / "m.onnx")
    chosen = {"rules": list(rules), "device": "cpu", "deterministic": True, **options}
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", **chosen)
    graph = onnx.load(tmp_path / "out.onnx").graph
    return outcome, [node.op_type for inner in graphs_within(graph) for node in inner.node]


def test_rules_apply_within_both_branches(tmp_path: Path) -> None:
    outcome, ops = run(tmp_path, RATE, DOUBLE, shapes={"x": (4, 8)})
    assert outcome.improved and "Neg" not in ops and outcome.fired[0].sites == 2
    assert (outcome.nodes_before, outcome.nodes_after) == (10, 5)
    assert not outcome.notes, "inputs take both branches"
    for rate in (16000, 8000):
        feeds = {"x": np.ones((4, 8), np.float32), "rate": np.array(rate)}
        np.testing.assert_allclose(
            run_model(tmp_path / "out.onnx", feeds)[0], run_model(tmp_path / "m.onnx", feeds)[0], rtol=1e-6
        )


def test_a_wrong_rule_in_the_branch_that_is_not_timed_is_refused(tmp_path: Path) -> None:
    wrong = rule("Sigmoid(Neg(Neg(X)))", "X", "X:[m,n]")
    outcome, ops = run(tmp_path, RATE, wrong, DOUBLE, shapes={"x": (4, 8)})
    assert "Sigmoid" in ops and any(wrong.id in line for line in outcome.dropped)


def test_a_branch_that_no_input_runs_is_told(tmp_path: Path) -> None:
    """The sum of squares is never negative."""
    model = RATE.replace(
        "fast = Equal(rate, k)", "s = ReduceSumSquare<keepdims = 0>(x) f = CastLike(rate, s) z = Sub(s, s) fast = Greater(z, s)"
    )
    outcome, ops = run(tmp_path, model, DOUBLE, shapes={"x": (4, 8)})
    (note,) = outcome.notes
    assert note.startswith("no test input runs the then_branch of 'y'; 1 of the moves in them rest on their rules' proofs alone")
    assert "Neg" not in ops


def test_outputs_in_two_branches_are_not_computed_together() -> None:
    """Sharing an operand, the two products of a branch become one; two branches share a constant at most."""
    merge = rule(
        "MatMul(X, W); MatMul(Y, W)",
        "Split[axis=-2,sizes=(m,n)].0(MatMul(Concat[axis=-2](X, Y), W));"
        "Split[axis=-2,sizes=(m,n)].1(MatMul(Concat[axis=-2](X, Y), W))",
        "X:[m,k] Y:[n,k] W:[k,p]",
        "dim(X,-2,m) & dim(Y,-2,n)",
    )
    model = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4,1] x, bool flag) => (float[4,2] y) <float[1,2] v = {1.0, 2.0}> {
            y = If (flag) <
                then_branch = one () => (float[4,2] a) { p = MatMul(x, v) q = Tanh(x) r = MatMul(q, v) a = Add(p, r) },
                else_branch = two () => (float[4,2] a) { p = Exp(x) a = MatMul(p, v) }
            >
        }"""
    loaded = load(parse_model(model))
    matches = Matches.of([merge], RangeOracle({}), "cpu", 17)
    found = [m for _, sites in matches.joined(matches.everywhere(loaded.graph), lambda _: True) for m in sites]
    plans = [matches.pool.plan(match, loaded.graph) for match in found]
    refused = [plan.reason for plan in plans if isinstance(plan, NoMatch) and "within a body" in plan.reason]
    assert len(plans) - len(refused) == 1
    assert len(refused) == 2, "each product of the branch with the one of the other"


def test_a_condition_that_never_changes_is_gone_though_no_rule_applies(tmp_path: Path) -> None:
    model = RATE.replace("fast = Equal(rate, k)", "fast = Equal(k, k)")
    outcome, ops = run(tmp_path, model, shapes={"x": (4, 8)})
    assert outcome.cleaned and "If" not in ops and outcome.nodes_after == 4 and not outcome.fired
    again, ops = run(tmp_path, model, shapes={"x": (4, 8)})
    assert again.cleaned and "If" not in ops


def test_bodies_cost_as_often_as_they_run() -> None:
    """A Scan over three rows in a Loop of five."""
    model = load(
        parse_model("""
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[n,3] x, bool go) => (float[3] y) <float[3] zero = {0.0, 0.0, 0.0}> {
                five = Constant<value = int64 {5}>()
                y = Loop (five, go, zero) <body = step (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
                    d = Identity(c)
                    t = Scan<num_scan_inputs = 1, body = row (float[3] a, float[3] b) => (float[3] e) { e = Add(a, b) }>(s, x)
                }>
            }""")
    )
    numbers = {model.tables.names[body.outputs[-1]]: body.number for bodies in model.bodies.values() for body in bodies}
    assert body_runs(model, {"n": 3}) == {numbers["t"]: 5, numbers["e"]: 15}
    assert body_runs(model, {}) == {numbers["t"]: 5, numbers["e"]: 5}
    add = next(node for node in model.graph.nodes() if node.op == "Add")
    once, often = (CostModel(ProfileStore(None, ""), 17, {"n": 3}, deadline=-1.0, runs=runs) for runs in ({}, {numbers["e"]: 15}))
    assert often.cost(model.graph, add) == 15 * once.cost(model.graph, add) > 0


def test_numbers_that_an_input_is_compared_with_are_fed() -> None:
    model = load(parse_model(RATE))
    assert choices(model, {"N": 4}) == [{"rate": 16000.0}, {"rate": 8000.0}]
    assert random_inputs(model, {"N": 4}, 1)["rate"] == 16000
    assert random_inputs(model, {"N": 4}, 1, chosen={"rate": 8000.0})["rate"] == 8000
