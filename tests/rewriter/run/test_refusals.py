"""A clean model that is refused while a run goes ahead with it: what was found is not lost, and no later run tries it again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx.cleaning import Cleaned, Depth
from mugraph.onnx.read import reread
from rewriter import optimize
from rewriter.run import cleaning
from rewriter.run.clock import Clock
from rewriter.run.options import Options
from rewriter.run.searching import ModelSearch
from rewriter.run.target import choose_target
from rewriter.run.task import Task, read_task
from rewriter.search.backtracking import Searched
from rewriter.search.candidate import Candidate
from tests.support.graphs import MERGE, rule
from tests.support.runs import ops, run_model, untidy

JOINED = rule("MatMul(MatMul(X, Y), Z)", "MatMul(X, MatMul(Y, Z))", "X:[m,n] Y:[n,k] Z:[k,p]")


@pytest.fixture
def source(tmp_path: Path, own_cache: Path) -> Path:
    return untidy(tmp_path / "m.onnx", *np.random.default_rng(0).standard_normal((2, 64, 64)))


class Planted:
    """A mistake in the last step of cleaning: a Sub for an Add. Who compares is told when a search came to an end.

    Attributes:
        compared: the steps whose models were compared, in order.
        searches: of each the candidates from which it went on, and what it found.
        refused: set when a comparison refused a model.
        may_be_compared: waited for before any model is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared: list[str] = []
        self.searches: list[tuple[Sequence[Candidate], Searched]] = []
        self.refused, self.may_be_compared = threading.Event(), threading.Event()
        cleans, compares, searches = cleaning.clean, cleaning._compare, ModelSearch.run

        def clean(model: Any, evaluate: Any, depth: Depth) -> Cleaned | None:
            cleaned = cleans(model, evaluate, depth)
            if cleaned is None or depth is not Depth.NUMBERS:
                return cleaned
            proto = onnx.ModelProto()
            proto.CopyFrom(cleaned.model.proto)
            next(node for node in proto.graph.node if node.output[0] == "y").op_type = "Sub"
            return replace(cleaned, model=reread(model, proto))

        def compare(task: Task, original: Any, model: Any, path: Path, until: float, is_wanted: Callable[[], bool]) -> None:
            self.compared.append(path.parent.name)
            self.may_be_compared.wait(30)
            try:
                compares(task, original, model, path, until, is_wanted)
            except cleaning.Unclean:
                self.refused.set()
                raise

        def run(
            search: ModelSearch, graph: Graph, banned: frozenset[str], seeds: Sequence[Candidate] = (), *rest: Any
        ) -> Searched:
            found = searches(search, graph, banned, seeds, *rest)
            self.searches.append((seeds, found))
            self.may_be_compared.set()
            return found

        monkeypatch.setattr(cleaning, "clean", clean)
        monkeypatch.setattr(cleaning, "_compare", compare)
        monkeypatch.setattr(ModelSearch, "run", run)


def same_outputs(one: Path, other: Path, tolerance: float) -> bool:
    x = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    return np.allclose(run_model(one, x)[0], run_model(other, x)[0], rtol=tolerance, atol=tolerance)


def test_what_was_found_in_a_model_that_is_refused_is_not_lost(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget leaves nothing for a second search: what the first found is done in the model that stands, and checked there."""
    planted = Planted(monkeypatch)
    left = Clock.spare
    monkeypatch.setattr(Clock, "spare", lambda clock: 0.0 if planted.refused.is_set() else left(clock))
    outcome = optimize(source, tmp_path / "o.onnx", device="cpu", budget=30, rules=[JOINED])
    assert planted.compared == ["numbers-named", "sizes-named"] and planted.refused.is_set()
    again = [seeds for seeds, found in planted.searches if seeds]
    assert len(again[0][0].moves) == 1
    assert outcome.improved and outcome.cleaned, outcome.message
    assert ops(tmp_path / "o.onnx").count("MatMul") == 1, "the product of the weights is a weight"
    assert same_outputs(source, tmp_path / "o.onnx", 1e-3)


def test_a_run_without_a_clock_carries_nothing_over(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much was found when a comparison ended is a matter of the clock."""
    planted = Planted(monkeypatch)
    outcome = optimize(source, tmp_path / "o.onnx", device="cpu", deterministic=True, rules=[JOINED])
    assert planted.compared == ["numbers-named", "sizes-named"] and not any(seeds for seeds, _ in planted.searches)
    assert outcome.improved and same_outputs(source, tmp_path / "o.onnx", 1e-3)


def test_a_search_ends_when_its_model_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found by then, however much time is left."""
    planted = Planted(monkeypatch)
    planted.may_be_compared.set()
    expands = ModelSearch.within

    def within(search: ModelSearch, *args: Any, **given: Any) -> ModelSearch:
        if not planted.searches:
            assert planted.refused.wait(30)
        return expands(search, *args, **given)

    monkeypatch.setattr(ModelSearch, "within", within)
    outcome = optimize(source, tmp_path / "o.onnx", device="cpu", budget=30, rules=[JOINED, MERGE])
    assert planted.searches[0][1].expanded == 0 and planted.searches[-1][1].expanded > 0
    assert outcome.improved


def test_a_later_run_does_not_try_again_what_was_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch)
    planted.may_be_compared.set()
    for depths in (["numbers-named", "sizes-named"], ["sizes-named"]):
        optimize(source, tmp_path / "o.onnx", provider="cpu", budget=10, rules=[])
        assert planted.compared == depths
        planted.compared.clear()
    optimize(source, tmp_path / "o.onnx", provider="cpu", budget=10, rules=[], use_verdicts=False)
    assert planted.compared == ["numbers-named", "sizes-named"], "who does not want what was remembered does not get it"


def test_where_all_is_refused_a_later_run_says_why(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch)
    planted.may_be_compared.set()
    monkeypatch.setattr(cleaning, "_same", lambda *_: False)
    for depths in (["numbers-named", "sizes-named"], []):
        outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=10, rules=[])
        assert planted.compared == depths and not outcome.cleaned
        assert any("not cleaned up: an output would not be the same bit for bit" in note for note in outcome.notes)
        planted.compared.clear()


def test_a_comparison_that_failed_is_tried_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory perhaps, of which there may be more another time."""
    compared: list[str] = []

    def refused(task: Task, original: Any, model: Any, path: Path, *_: Any) -> None:
        compared.append(path.parent.name)
        raise cleaning.Unclean("onnxruntime refuses it (no memory)")

    monkeypatch.setattr(cleaning, "_compare", refused)
    for _ in range(2):
        optimize(source, tmp_path / "o.onnx", provider="cpu", budget=10, rules=[])
    assert len(compared) == 2 * len(set(compared))


NORMALISED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float16[N,C,64] x) => (float16[N,C,64] y) <int64[1] last = {-1}> {
        norm = ReduceL2<axes = [-1]>(v)
        direction = Div(v, norm)
        w = Mul(direction, g)
        y = MatMul(x, w)
    }"""
"""As torch's weight normalisation comes: a constant of three operators on halves."""


def test_what_the_cpu_would_read_otherwise_is_not_computed_for_a_gpu_either(tmp_path: Path) -> None:
    """The comparison runs on the CPU: it refused the model, and the search began anew when that was known."""
    model = parse_model(NORMALISED)
    for name, shape in {"v": (64, 64), "g": (64, 1)}.items():
        array = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.node.append(onnx.helper.make_node("Identity", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(device="h100")
    target = replace(choose_target(options), here=True)
    assert target.run_on == "cuda"
    task = read_task(tmp_path / "m.onnx", tmp_path / "o.onnx", options, target)
    cleaned, holds = next(cleaning.clean_tasks(task, tmp_path / "clean", math.inf))
    assert len(cleaned.model.proto.graph.node) < len(model.graph.node)
    holds(lambda: True)
