"""Sizes that only a run tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.reference import observed_sizes
from rewriter.run.searching import new_search
from tests.support.runs import workbench

FOUND = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, float[64,64] w) => (float[k,64] y) {
        found = NonZero(x)
        rows = Transpose<perm = [1, 0]>(found)
        flat = Squeeze(rows)
        picked = Gather(w, flat)
        y = MatMul(picked, w)
    }"""
FEED = {"x": np.array([1, 0, 2, 3], np.float32), "w": np.ones((64, 64), np.float32)}


@pytest.fixture(autouse=True)
def _own_cache(own_cache: Path) -> None: ...


def test_a_size_is_read_from_a_run() -> None:
    model = load(
        parse_model(
            FOUND.replace("Squeeze(rows)", "Squeeze(rows, one) ").replace("found =", "one = Constant<value_ints = [1]>() found =")
        )
    )
    sizes = observed_sizes(model, {"n": 4}, lambda: FEED, "cpu")
    assert list(sizes.values()) == [3]
    assert observed_sizes(model, {"n": 4, **sizes}, lambda: pytest.fail("nothing is missing"), "cpu") == {}


def test_sizes_within_a_branch_are_read_from_an_evaluation() -> None:
    text = (
        FOUND.replace("float[n] x,", "float[n] x, bool flag,")
        .replace("found =", "y = If (flag) <then_branch = one () => (float[k,64] z) { one = Constant<value_ints = [1]>() found =")
        .replace("Squeeze(rows)", "Squeeze(rows, one)")
        .replace("y = MatMul(picked, w)", "z = MatMul(picked, w) }, else_branch = two () => (float[64,64] v) { v = Exp(w) }>")
    )
    model = load(parse_model(text))
    sizes = observed_sizes(model, {"n": 4}, lambda: {**FEED, "flag": np.array(True)}, "cpu")
    assert 3 in sizes.values()
    assert 3 not in observed_sizes(model, {"n": 4}, lambda: {**FEED, "flag": np.array(False)}, "cpu").values()


def test_what_does_not_run_tells_nothing() -> None:
    model = load(parse_model(FOUND))
    assert observed_sizes(model, {"n": 4}, lambda: {**FEED, "w": np.ones((1, 64), np.float32)}, "cpu") == {}


def test_nodes_of_observed_sizes_are_priced_and_others_are_told(tmp_path: Path) -> None:
    text = FOUND.replace("flat = Squeeze(rows)", "one = Constant<value_ints = [1]>() flat = Squeeze(rows, one)")
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx", shapes={"x": (4,)}) as bench:
        search = new_search(bench)
        graph = bench.task.model.graph
        product = next(node for node in graph.nodes() if node.op == "MatMul")
        assert search.costs.signature(graph, product) is not None
        assert any("read from one run" in line for line in bench.notes.lines)
        assert any(line.startswith("1 NonZero not understood: ") for line in bench.notes.lines)
