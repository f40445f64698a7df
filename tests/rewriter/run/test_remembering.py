"""What a run remembers, takes from an earlier one, and writes."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewriter.reference import Error
from rewriter.run import accept, checking, searching, timings
from rewriter.run.accept import Acceptance, JudgedOutputs, Miss
from rewriter.run.decision import decided
from rewriter.run.footprint import on_disk
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.kernels import RunKernels
from rewriter.run.outcome import Assumed, Fired, OperatorTime, Outcome, OutputError
from rewriter.run.remembering import StaleVerdict, Verdicts
from rewriter.run.searching import new_search
from rewriter.run.writing import write
from rules_db.exchange import format_rule
from tests.support.runs import FASTER, ops, workbench
from tests.support.stages import RULES, WRONG, checker_of, decision_of, judge_of, proposals_of

pytestmark = pytest.mark.usefixtures("own_cache")


class Noted:
    """Calls a method, and keeps the files that it was asked to open."""

    def __init__(self, method: Any) -> None:
        self.paths: list[Path] = []
        self._method = method

    def __get__(self, owner: Any, _: object = None) -> Any:
        return partial(self, owner)

    def __call__(self, owner: Any, path: Path, *rest: Any) -> Any:
        self.paths.append(path)
        return self._method(owner, path, *rest)


def measuring(source: Path, **options: Any) -> Any:
    return workbench(source, RULES, device=None, provider="cpu", deterministic=False, **options)


def test_a_verdict_is_recalled_as_it_was(source: Path) -> None:
    with measuring(source) as bench:
        verdicts = Verdicts(bench, judge_of(bench))
        assert verdicts.recall() is None
        decision = decision_of(bench)
        outcome = write(bench, decision)
        verdicts.remember(decision, outcome)
    with measuring(source) as bench:
        recalled = Verdicts(bench, judge_of(bench)).recall()
        assert recalled is not None and not recalled.is_verdict, "a verdict is remembered by the run that found it"
        assert recalled.graph.content_digest() == decision.graph.content_digest()
        again = write(bench, recalled)
        errors = {name: getattr(again, name) for name in ("error_before", "error_after", "output_errors")}
        anew = replace(outcome, **errors, cached_verdict=True)
        assert replace(again, seconds=outcome.seconds, before=outcome.before, after=outcome.after) == anew
        assert (again.before, again.after) == (on_disk([source]), on_disk([bench.task.output])), "loading is not measured again"
        assert again.error_after is not None and again.error_after.is_small, "it is accepted anew"
        assert set(again.seconds) == {"import", "replay", "write", "load", "total"}
    for other in ({"use_verdicts": False}, {"explain": "all"}, {"alpha": 1.2}, {"data": [{"x": np.ones((64, 64), np.float32)}]}):
        with measuring(source, **other) as bench:
            assert Verdicts(bench, judge_of(bench)).recall() is None


def test_what_a_verdict_leads_to_is_opened_while_its_reference_is_made(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
    opened, events, real = threading.Event(), list[str](), checking.OpenedAhead.of
    plain = accept.first_reference

    def of(*given: Any) -> checking.OpenedAhead | None:
        ahead = real(*given)
        assert ahead is not None and ahead.session is not None
        events.append("opened")
        opened.set()
        return ahead

    def referred(*given: Any) -> Any:
        opened.wait(60)
        events.append("referred")
        return plain(*given)

    monkeypatch.setattr(checking.OpenedAhead, "of", of)
    monkeypatch.setattr(accept, "first_reference", referred)
    monkeypatch.setattr(Acceptance, "open", once := Noted(Acceptance.open))
    with measuring(source) as bench:
        recalled = Verdicts(bench, judge_of(bench)).recall()
        assert recalled is not None and recalled.graph.content_digest() == decision.graph.content_digest()
    assert events == ["opened", "referred"] and len(once.paths) == 1, "the original alone is opened besides"


def test_another_candidate_than_was_opened_ahead_is_opened_itself(source: Path) -> None:
    with measuring(source) as bench:
        proposals = proposals_of(bench)
        first, second, *_ = proposals
        checker, _ = checker_of(bench, proposals)
        checker._ahead = checking.OpenedAhead.of(bench, first.candidate)
        assert checker._ahead is not None
        there = checker._ahead.path
        other = checker.check(second)
        assert other is not None and other.trial.path != there
        checker._ahead = checking.OpenedAhead.of(bench, first.candidate)
        assert checker._ahead is not None
        there, session = checker._ahead.path, checker._ahead.session
        same = checker.check(first)
        assert same is not None and same.trial.path == there and same.session is session
        again = checker.check(first)
        assert again is not None and again.trial.path != there, "it is taken once"


def test_a_verdict_is_of_the_sizes_that_the_users_inputs_tell(source: Path) -> None:
    """An earlier version took others of the same inputs, and its figures are of these."""
    with measuring(source, data=[{"x": np.ones((64, 64), np.float32)}]) as bench:
        verdicts = Verdicts(bench, judge_of(bench))
        decision = decision_of(bench)
        verdicts.remember(decision, write(bench, decision))
        assert Verdicts(bench, judge_of(bench)).recall() is not None
        other = replace(bench, task=replace(bench.task, sizes={**bench.task.sizes, "n": 1}))
        assert Verdicts(other, judge_of(other)).recall() is None


def test_an_interrupted_decision_is_not_remembered(source: Path) -> None:
    with measuring(source) as bench:
        decision = decision_of(bench, is_interrupted=True)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
        assert Verdicts(bench, judge_of(bench)).recall() is None


def rewritten(record: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**record, **changes})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda r: "no JSON", "not a verdict"),
        (lambda r: "[]", "not a verdict"),
        (lambda r: json.dumps({k: v for k, v in r.items() if k != "graph"}), "not a verdict: 'graph'"),
        (lambda r: rewritten(r, outcome=[]), "not a verdict"),
        (lambda r: rewritten(r, outcome={**r["outcome"], "latency": {"ratio": 1}}), "not a verdict"),
        (lambda r: rewritten(r, outcome={k: v for k, v in r["outcome"].items() if k != "notes"}), "not a verdict: 'notes'"),
        (lambda r: rewritten(r, kernels=["rule broken"]), "not a verdict"),
        (lambda r: rewritten(r, moves=[["unheard>", []]]), "rule unheard> is not among those of this run"),
        (lambda r: rewritten(r, moves=r["moves"][:1]), "its moves lead to another graph"),
        (lambda r: rewritten(r, graph="0" * 32), "its moves lead to another graph"),
        (lambda r: rewritten(r, moves=[[7, []]]), "not a verdict: 7 is no text"),
        (lambda r: rewritten(r, moves=[["a>", [7]]]), "not a verdict: 7 is no text"),
        (lambda r: rewritten(r, kernels=[None]), "not a verdict: None is no text"),
        (lambda r: "[" * 100_000, "not a verdict"),
        (lambda r: rewritten(r, outcome={**r["outcome"], "notes": [1]}), "not a verdict: 1 is no str"),
        (lambda r: rewritten(r, outcome={**r["outcome"], "predicted_before": "fast"}), "not a verdict: 'fast' is no float"),
        (lambda r: rewritten(r, outcome={**r["outcome"], "improved": 1}), "not a verdict: 1 is no bool"),
        (lambda r: rewritten(r, kernels=[format_rule(WRONG)]), f"the kernel of rule {WRONG.id} is not taken"),
        (lambda r: rewritten(r, moves=[[f"{WRONG.id}>", []]]), "is not among those of this run"),
    ],
)
def test_a_verdict_that_does_not_hold_is_not_used(source: Path, tmp_path: Path, damage: Any, reason: str) -> None:
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        rows = connection.execute("select key, value from verdicts where value like '{\"outcome\"%'").fetchall()
        for key, value in rows:  # the verdict, and the same as the incumbent
            connection.execute("update verdicts set value = ? where key = ?", (damage(json.loads(value)), key))
    with measuring(source) as bench:
        verdicts = Verdicts(bench, judge_of(bench))
        with pytest.raises(StaleVerdict, match=reason):
            verdicts.replayed(bench.store.verdict(key))
        assert verdicts.recall() is None


def test_a_verdict_of_more_moves_than_there_is_time_for_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
    monkeypatch.setattr(searching, "_AGAIN", 0.0)
    monkeypatch.setattr(searching, "_LEAST_AGAIN", -1.0)
    with measuring(source) as bench:
        verdicts = Verdicts(bench, judge_of(bench))
        assert verdicts.recall() is None and verdicts.incumbent(new_search(bench)) is None
        with pytest.raises(StaleVerdict, match="to make 2 moves again takes too long"):
            verdicts.replayed(bench.store.verdict(verdicts._own.verdict))


def test_a_verdict_whose_kernels_do_not_compile_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.records.kernel_of_rule", lambda rule_: rule_)
    monkeypatch.setattr("rewriter.run.remembering.begin_objections", lambda *_: dict)  # these rules have no certificates
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
        assert Verdicts(bench, judge_of(bench)).recall() is not None
        monkeypatch.setattr(RunKernels, "compile", lambda self, candidate: ["kernel k is refused"] if candidate.moves else [])
        monkeypatch.setattr(
            RunKernels, "refused", lambda self, candidate: {move.direction.rule.id for move in candidate.moves[:1]}
        )
        bench.notes.dropped.clear()
        assert Verdicts(bench, judge_of(bench)).recall() is None and bench.notes.dropped == ["kernel k is refused"]


def test_what_a_verdict_leads_to_is_accepted_anew(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
        assert Verdicts(bench, judge_of(bench)).recall() is not None
        monkeypatch.setattr(Acceptance, "judge_outputs", lambda *_: JudgedOutputs([Error(0.5, 0.5)], Miss(2.0, "far off")))
        assert Verdicts(bench, judge_of(bench)).recall() is None


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("-inf"), 1e300, "fast", b"7"])
def test_a_cached_cost_that_is_none_is_ignored(source: Path, tmp_path: Path, cost: Any) -> None:
    with measuring(source) as bench:
        bench.store.put("sound", 3.0)
        bench.store.put("poisoned", 4.0)
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        connection.execute("update costs_3 set microseconds = ? where signature = 'poisoned'", (cost,))
    with measuring(source) as bench:
        assert bench.store.get("sound") == 3.0 and bench.store.get("poisoned") is None
        assert any("1 measured costs are no times and were ignored" in note for note in bench.notes.lines)


def test_an_outcome_is_read_back_from_its_record() -> None:
    fired = (Fired("a>", "x -> y", "proved", 2, 1.5, ("p", "q")),)
    outcome = Outcome(
        "m", "o", True, fired=fired, speed=timings.Speed(FASTER), error_before=Error(1.0, 2.0), notes=("n",), dropped=("d",)
    )
    record = json.loads(json.dumps(outcome.record()))
    assert not {"model", "output", "seconds", "explanations", "cached_verdict"} & set(record)
    later = Outcome.of_record(record, "other", "elsewhere")
    assert later == replace(outcome, model="other", output="elsewhere", cached_verdict=True)
    assert Outcome.of_record({**record, "of later versions": 1}, "other", "elsewhere") == later
    with pytest.raises(KeyError):
        Outcome.of_record({name: value for name, value in record.items() if name != "fired"}, "m", "o")
    with pytest.raises(TypeError):
        Outcome.of_record({**record, "fired": [{"rule": "a>", "where": []}]}, "m", "o")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("latency", "ratio"), 0),
        (("latency", "ratio"), math.nan),
        (("latency", "original"), 0.0),
        (("latency", "low"), math.inf),
        (("latency", "ratios", 0), math.nan),
        (("latency", "ratios", 0), 1e300),
        (("latency", "candidate"), 10**400),
        (("overall", "ratio"), math.inf),
        (("predicted_before",), 10**400),
        (("generated",), 10**4000),
        (("fired", 0, "gain_microseconds"), "much"),
        (("fired", 0, "rule"), 7),
        (("fired", 0, "where", 0), None),
        (("assumed", 0, "assumption"), 7),
        (("assumed", 0, "nodes", 0), {}),
        (("times", 0, "microseconds_after"), -1.0),
        (("times", 0, "nodes_after"), math.inf),
        (("error_before", "relative_l2"), 10**400),
        (("output_errors", 0, "output"), 7),
    ],
)
def test_an_outcome_holds_what_a_run_can_measure_alone(place: tuple[str | int, ...], value: Any) -> None:
    """What a cache says is told in a summary and drawn in a report: no number may be any that JSON can write."""
    error = Error(math.inf, 2.0)
    outcome = Outcome(
        *("m", "o", True),
        fired=(Fired("a>", "x -> y", "proved", 2, -1.5, ("p", "q")),),
        assumed=(Assumed("nothing is 0", "--budget 0", ("a>",), ("p",)),),
        speed=timings.Speed(replace(FASTER, ratios=(0.5, 0.6))),
        overall=FASTER,
        error_before=error,
        output_errors=(OutputError("y", error, error),),
        times=(OperatorTime("Add", 1, 1, 2.0, 1.0, 0.5, 0.5),),
    )
    record = json.loads(json.dumps(outcome.record()))
    assert Outcome.of_record(record, "m", "o") == replace(outcome, cached_verdict=True)
    spot: Any = record
    for step in place[:-1]:
        spot = spot[step]
    spot[place[-1]] = value
    with pytest.raises((TypeError, AttributeError)):
        Outcome.of_record(record, "m", "o")


def test_what_is_written_is_what_was_decided(source: Path) -> None:
    with workbench(source, RULES) as bench:
        bench.notes.add("noticed")
        decision = decision_of(bench)
        outcome = write(bench, decision)
        assert outcome.improved and outcome.nodes_after == len(ops(bench.task.output)) < outcome.nodes_before
        assert "Neg" not in ops(bench.task.output) and outcome.notes == ("noticed",)
        assert (outcome.predicted_before, outcome.expanded, outcome.generated) == (9.0, 1, 2)
        assert (outcome.measured_costs, outcome.estimated_costs, outcome.calibrated_costs, outcome.rules) == (3, 4, 1, 2)
        kept = write(bench, decided(bench, Predictions(9.0), Judgement(message="it was kept")))
        assert not kept.improved and kept.message == "it was kept" and kept.predicted_after == kept.predicted_before == 9.0
        assert ops(bench.task.output) == ops(source)
