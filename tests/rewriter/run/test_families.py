"""What was found for a model is where the search for one with more layers begins, and nothing but that."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.blocks.statements import InvalidBlock
from rewriter import optimize
from rewriter.kernels.proposals import KernelProposals
from rewriter.run import searching
from rewriter.run.families import FamilyMemory
from rewriter.run.kernels import has_kernels
from rewriter.run.searching import ModelSearch, new_search
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Expansion
from rules_db.exchange import format_rule
from tests.support.runs import ops, run_model, workbench
from tests.support.stages import CLAMP, NEGATION, RULES, WRONG
from tools.bench.search import transformer

pytestmark = pytest.mark.usefixtures("own_cache")
run = partial(optimize, provider="cpu", rules=RULES, budget=20)


def layered(path: Path, layers: int, seed: int = 0) -> Path:
    """Layers with a double negation and a second clamp each."""
    generator, value, lines = np.random.default_rng(seed), "x", list[str]()
    for i in range(layers):
        lines += [f"m{i} = MatMul({value}, w{i})", f"a{i} = Neg(m{i})", f"b{i} = Neg(a{i})", f"c{i} = Relu(b{i})"]
        lines.append(f"d{i} = Relu(c{i})")
        value = f"d{i}"
    lines.append(f"y = Tanh({value})")
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y)'
    model = parse_model(f"{head} {{ {' '.join(lines)} }}")
    weights = generator.standard_normal((layers, 64, 64)).astype(np.float32) / 8
    model.graph.initializer.extend(numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights))
    onnx.save(model, path)
    return path


def measuring(source: Path, **options: Any) -> Any:
    return workbench(source, RULES, device=None, provider="cpu", deterministic=False, **options)


def recalled(bench: Workbench, families: FamilyMemory, banned: tuple[str, ...] = ()) -> Candidate | None:
    search = new_search(bench)
    short = search.shortened()
    assert short is not None
    return families.recall(search, short, banned)


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """What a run found for four layers was remembered: both savings, in each."""
    with measuring(layered(tmp_path / "four.onnx", 4)) as bench:
        families = FamilyMemory(bench)
        assert recalled(bench, families) is None
        search = new_search(bench)
        best = search.run(bench.task.model.graph, frozenset()).better[0]
        assert {move.direction.rule for move in best.moves} == set(RULES)
        families.remember(best)
    return tmp_path / "four.onnx"


def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches look for nothing: what they propose is what they began with."""
    for name in ("children", "descent"):
        monkeypatch.setattr(Expansion, name, lambda *_: iter(()))


def test_moves_are_made_in_every_layer_whatever_their_number(four: Path, tmp_path: Path) -> None:
    for layers in (5, 12):
        with measuring(layered(tmp_path / "more.onnx", layers, seed=layers)) as bench:
            known = recalled(bench, FamilyMemory(bench))
            search = new_search(bench)
            short = search.shortened()
            assert known is not None and short is not None
            assert known.graph.digest == search.run(short.graph, frozenset()).better[0].graph.digest
            assert [len(move.matches) for move in search.lifted(short, known).candidate.moves] == [layers, layers]


@pytest.mark.usefixtures("timing")
def test_a_run_begins_where_one_with_fewer_layers_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is searched by the second run brings nothing: all that it writes comes from the first."""
    twelve = layered(tmp_path / "twelve.onnx", 12, seed=1)
    with monkeypatch.context() as first:
        idle(first)
        assert not run(twelve, tmp_path / "out.onnx").improved
    assert run(layered(tmp_path / "four.onnx", 4), tmp_path / "four.out.onnx").improved
    idle(monkeypatch)
    outcome = run(twelve, tmp_path / "out.onnx", use_verdicts=False)
    assert not outcome.improved, "nothing is remembered that is not asked for"
    outcome = run(twelve, tmp_path / "out.onnx", alpha=1.06)
    assert outcome.improved and not outcome.cached_verdict
    assert [fired.sites for fired in outcome.fired] == [12, 12]
    assert any("began with what an earlier run found" in note for note in outcome.notes)
    assert sorted(ops(tmp_path / "out.onnx")) == sorted(["MatMul", "Relu"] * 12 + ["Tanh"])
    feeds = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    np.testing.assert_allclose(run_model(tmp_path / "out.onnx", feeds)[0], run_model(twelve, feeds)[0], rtol=1e-5)


def test_a_rule_that_is_left_out_is_so_in_what_is_known(four: Path, tmp_path: Path) -> None:
    with measuring(layered(tmp_path / "more.onnx", 6)) as bench:
        known = recalled(bench, FamilyMemory(bench), (CLAMP.id,))
        assert known is not None and [move.direction.rule.id for move in known.moves] == [NEGATION.id]
        assert recalled(bench, FamilyMemory(bench), (CLAMP.id, NEGATION.id)) is None


@pytest.mark.parametrize("other", [{"use_verdicts": False}, {"precision": 1e-3}, {"deterministic": True}])
def test_other_runs_know_nothing_of_it(four: Path, tmp_path: Path, other: dict[str, Any]) -> None:
    options = {"device": None, "provider": "cpu", "deterministic": False, **other}
    with workbench(layered(tmp_path / "more.onnx", 6), RULES, **options) as bench:
        assert recalled(bench, FamilyMemory(bench)) is None


def poisoned(**changes: Any) -> Callable[[dict[str, Any]], str]:
    return lambda record: json.dumps({**record, **changes})


POISON: list[Callable[[dict[str, Any]], str]] = [
    lambda record: "no JSON",
    lambda record: "[]",
    lambda record: "[" * 100_000,
    poisoned(moves=None),
    poisoned(moves=[[7, []]]),
    poisoned(moves=[["unheard>", ["x"]]]),
    poisoned(moves=[[f"{WRONG.id}>", ["x"]]]),
    poisoned(kernels=["rule broken"]),
    poisoned(kernels=[format_rule(WRONG)]),
]


def test_more_moves_than_there_is_time_for_are_none(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_AGAIN", 0.0)
    monkeypatch.setattr(searching, "_LEAST_AGAIN", -1.0)
    with measuring(layered(tmp_path / "six.onnx", 6)) as bench:
        assert recalled(bench, FamilyMemory(bench)) is None


@pytest.mark.parametrize("poison", POISON)
def test_what_is_wrong_with_a_record_changes_nothing(four: Path, tmp_path: Path, poison: Callable[[dict[str, Any]], str]) -> None:
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        ((key, text),) = connection.execute("select key, value from verdicts where value like '{\"moves\"%'").fetchall()
        connection.execute("update verdicts set value = ? where key = ?", (poison(json.loads(text)), key))
    with measuring(layered(tmp_path / "more.onnx", 6)) as bench:
        assert recalled(bench, FamilyMemory(bench)) is None


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A record of a rule that is wrong, as a run with that rule would write it, which claims it to be one of a kernel."""
    with workbench(layered(tmp_path / "four.onnx", 4), [WRONG], device=None, provider="cpu", deterministic=False) as bench:
        families = FamilyMemory(bench)
        assert recalled(bench, families) is None
        families.remember(new_search(bench).run(bench.task.model.graph, frozenset()).better[0])
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        ((key, text),) = connection.execute("select key, value from verdicts where value like '{\"moves\"%'").fetchall()
        record = poisoned(kernels=[format_rule(WRONG)])(json.loads(text))
        connection.execute("update verdicts set value = ? where key = ?", (record, key))
    return tmp_path


def test_kernels_in_a_record_are_checked(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with measuring(layered(wrong / "more.onnx", 6)) as bench:
        monkeypatch.setattr(type(bench.kernels), "can_be_used", True)
        assert recalled(bench, FamilyMemory(bench)) is None
        monkeypatch.setattr("rewriter.run.families.begin_objections", lambda *_: dict)
        known = recalled(bench, FamilyMemory(bench))
        assert known is not None and [move.direction.rule.id for move in known.moves] == [WRONG.id], "it would be made"
        monkeypatch.setattr(type(bench.kernels), "can_be_used", False)
        assert recalled(bench, FamilyMemory(bench)) is None, "a run without kernels makes none"


@pytest.mark.usefixtures("timing")
def test_a_run_writes_the_same_beside_a_poisoned_record(wrong: Path) -> None:
    more = layered(wrong / "more.onnx", 6)
    assert run(more, wrong / "out.onnx").improved
    assert sorted(ops(wrong / "out.onnx")) == sorted(["MatMul", "Relu"] * 6 + ["Tanh"])


def test_kernels_come_with_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a GPU that is here: each of the kernels is checked, and one that cannot be scheduled is none."""
    monkeypatch.setattr(Task, "measures", True)
    made = partial(workbench, rules=[], device="h200", deterministic=False)
    for layers in (4, 6):
        onnx.save(transformer(layers, hidden=64, heads=2, sequence=16), tmp_path / f"{layers}.onnx")
    with made(tmp_path / "4.onnx") as bench:
        families = FamilyMemory(bench)
        assert recalled(bench, families) is None
        families.remember(new_search(bench).run(bench.task.model.graph, frozenset()).better[0])
    with made(tmp_path / "6.onnx") as bench:
        known = recalled(bench, FamilyMemory(bench))
        search = new_search(bench)
        short = search.shortened()
        assert known is not None and short is not None and has_kernels(known)
        best = search.run(short.graph, frozenset()).better[0]
        assert known.graph.content_digest() == best.graph.content_digest() and known.cost == pytest.approx(best.cost)
        with monkeypatch.context() as unwritten:
            unwritten.setattr(KernelProposals, "unwritten", lambda *_: "it has no text")
            assert recalled(bench, FamilyMemory(bench)) is None
        monkeypatch.setattr(ModelSearch, "retraced_in", raises(InvalidBlock("no schedule fits")))
        assert recalled(bench, FamilyMemory(bench)) is None


def raises(problem: Exception) -> Callable[..., Candidate]:
    def raised(*_: object) -> Candidate:
        raise problem

    return raised
