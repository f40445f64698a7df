"""The contracts of a run's first stages, each where it says no: reading, workbench."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from rewriter import Options
from rewriter.cost.store import ProfileStore
from rewriter.reference import InputError
from rewriter.run.clock import Clock
from rewriter.run.kernels import RunKernels
from rewriter.run.searching import new_search
from rewriter.run.task import read_task
from rewriter.run.workbench import open_workbench
from rewriter.search.ranges import read_by_guards
from tests.support.runs import block, workbench
from tests.support.stages import CLAMP, RULES

pytestmark = pytest.mark.usefixtures("own_cache")


# Reading


def test_a_task_that_does_not_fit_its_model_is_refused(source: Path) -> None:
    with workbench(source) as bench:
        target = bench.task.target
    with pytest.raises(InputError, match="needs an output path"):
        read_task(onnx.load(source), None, Options(), target)
    with pytest.raises(InputError, match="name a file in an existing directory"):
        read_task(source, source.parent, Options(), target)
    with pytest.raises(InputError, match="has no such input"):
        read_task(source, None, Options(shapes={"z": (1,)}), target)
    with pytest.raises(InputError, match="input x is missing"):
        read_task(source, None, Options(data=[{}]), target)
    assert read_task(source, None, Options(), target).output == source.with_name("m.superopt.onnx")


def test_sizes_that_nobody_gave_are_told(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx") as bench:
        assert bench.task.notes() == ["measured with N = 1; set sizes with --input NAME=..."]
        assert [feed["x"].shape for feed in bench.task.feeds()] == [(1, 4), (1, 4)]
        for options, notes in (({"clean": True}, ["checked with N = 1; set sizes with --input NAME=..."]), ({"budget": 0}, [])):
            assert replace(bench.task, options=Options(**options)).notes() == notes
    data = [{"x": np.ones((3, 4), np.float32)}]
    with workbench(tmp_path / "m.onnx", shapes={"x": (2, 4)}, data=data) as bench:
        assert bench.task.notes() == []
        assert [feed["x"].shape for feed in bench.task.feeds()] == [(3, 4), (2, 4), (2, 4)]


# The workbench


def test_without_a_budget_nothing_is_opened(source: Path, own_cache: Path) -> None:
    shutil.rmtree(own_cache)
    with workbench(source, RULES, cache=source, budget=0) as bench:
        assert not bench.rules and bench.store.verdict("opened") is None and not bench.kernels.can_be_used
    assert not own_cache.exists()


def test_weights_are_looked_at_beside_the_rules(tmp_path: Path) -> None:
    with workbench(block(tmp_path / "block.onnx"), RULES) as bench:
        wanted = read_by_guards(bench.task.model.graph)
        assert bench.background.is_quiet(30) and len(wanted) > 4
        for value, constant in wanted.items():
            assert bench.constants.of(value, replace(constant, load=lambda: pytest.fail("read again")))


def test_what_was_measured_is_kept_however_a_run_ends(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "costs.sqlite"
    with pytest.raises(KeyboardInterrupt), workbench(source, device=None, deterministic=False, cache=cache) as bench:
        bench.store.put("a node", 3.5)
        raise KeyboardInterrupt
    assert ProfileStore(cache, bench.task.target.environment).get("a node") == 3.5


def test_what_measures_nothing_reads_no_cache(source: Path) -> None:
    with workbench(source, RULES) as bench:
        bench.store.remember("key", "value")
        assert bench.store.verdict("key") is None and not bench.task.measures


def test_where_there_can_be_no_kernels_every_question_has_an_answer(source: Path) -> None:
    with workbench(source, RULES) as bench:
        kernels, search = bench.kernels, new_search(bench)
        start = search.start()
        assert not kernels.can_be_used and not kernels.generators and kernels.timed == 0 and not kernels.notes
        assert not kernels.tune(start, 0.0) and not kernels.compile(start) and not kernels.refused(start)
        assert not list(kernels.explanations())
        kernels.learn(start)


def test_a_workbench_is_closed_in_any_case(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(RunKernels, "close", lambda self: closed.append("kernels"))
    monkeypatch.setattr(ProfileStore, "close", lambda self: closed.append("store"))
    with workbench(source, RULES) as bench:
        task = bench.task
    assert closed == ["kernels", "store"]
    monkeypatch.setattr("rewriter.run.workbench._open_kernels", lambda *_: pytest.fail("broken"))
    with pytest.raises(pytest.fail.Exception), open_workbench(task, Clock(1.0), lambda _: None, searches=True):
        pass
    assert closed == ["kernels", "store", "store"]


def test_the_runtime_is_asked_once_however_many_searches_a_run_makes(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Answers:
        possible = frozenset({f"{CLAMP.id}>"})

        def __init__(self, rules: object, store: object, provider: str) -> None:
            asked.append(provider)

        def happens(self, direction: object) -> bool:
            return True

    monkeypatch.setattr("rewriter.run.workbench.RuntimeDirections", Answers)
    with workbench(source, RULES) as bench:
        searches = [new_search(bench), new_search(bench)]
        assert asked == [bench.task.target.provider]
        assert all([d.rule for d in search.moves.matches.fusions.directions] == [CLAMP] for search in searches)
