"""The contracts of a run's stages, each where it says no."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import open_in
from rewriter import Options, optimize
from rewriter.cost.store import ProfileStore
from rewriter.reference import Error, InputError
from rewriter.run import accept, judging, timings
from rewriter.run.accept import Acceptance
from rewriter.run.background import in_background
from rewriter.run.checking import Checker, Opened, Trial
from rewriter.run.clock import Clock
from rewriter.run.decision import Decision, decided
from rewriter.run.footprint import on_disk
from rewriter.run.judging import Judge, Judgement
from rewriter.run.kernels import RunKernels
from rewriter.run.outcome import Fired, Outcome
from rewriter.run.proposing import Predictions, Proposal, Proposals, Proposer
from rewriter.run.quarantine import Quarantine
from rewriter.run.remembering import StaleVerdict, Verdicts
from rewriter.run.searching import ModelSearch, UnknownRule, new_search, recorded_moves
from rewriter.run.task import Task, read_task
from rewriter.run.workbench import Workbench, open_workbench
from rewriter.run.writing import write
from rewriter.search.backtracking import Searched
from rewriter.search.candidate import Candidate
from rewriter.search.ranges import read_by_guards
from rules_db.exchange import format_rule
from tests.support.graphs import rule
from tests.support.runs import FASTER, SAME, block, ops, workbench

pytestmark = pytest.mark.usefixtures("own_cache")

WRONG = rule("Tanh(X)", "X", "X:[m,n]")
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")
CLAMP = rule("Relu(Relu(X))", "Relu(X)", "X:[m,n]")
RULES = (NEGATION, CLAMP)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two independent savings: a double negation and a second clamp."""
    text = "a = Neg(x) b = Neg(a) c = Relu(b) d = Relu(c) y = Tanh(d)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {text} }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def proposals_of(bench: Workbench) -> Proposals:
    return Proposer(bench, Quarantine(bench.task, bench.store, bench.notes)).propose()


# The clock


def test_a_lap_counts_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rewriter.run.clock.time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0]))
    clock = Clock(10.0)
    for _ in range(2):
        with clock.lap("search"):
            now[0] += 2
    with pytest.raises(KeyboardInterrupt), clock.lap("accept"):
        now[0] += 3
        raise KeyboardInterrupt
    assert clock.seconds() == {"search": 4.0, "accept": 3.0, "total": 7.0}
    assert Clock(10.0, spent=0.25).seconds() == {"start": 0.25, "total": 0.25}
    assert clock.left() == 3.0 and clock.instant(0.5) == 105.0
    now[0] += 5
    assert clock.left() == -2.0


def test_what_fails_in_the_background_fails_where_it_is_asked_for() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert in_background(lambda: 3).result() == 3
    with pytest.raises(KeyboardInterrupt):
        in_background(interrupted).result()


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
    with workbench(source, rules="no such.rules", cache=source, budget=0) as bench:  # type: ignore[arg-type]
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


# Searching and proposing


def test_moves_are_reached_again_from_their_record(source: Path) -> None:
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        (best, *_) = proposals
        recorded = recorded_moves(bench.task.model, best.candidate)
        assert {rule_ for rule_, _ in recorded} == {f"{r.id}>" for r in RULES}
        again = new_search(bench).retraced(json.loads(json.dumps(recorded)), [])
        assert again.graph.content_digest() == best.candidate.graph.content_digest()
        assert [len(m) for m in (again.moves, new_search(bench).retraced([], []).moves)] == [2, 0]
    with workbench(source, [NEGATION]) as bench, pytest.raises(UnknownRule, match=f"rule {CLAMP.id}> is not among"):
        new_search(bench).retraced(recorded, [])


def test_a_candidate_without_a_rule_keeps_the_others(source: Path) -> None:
    with workbench(source, RULES) as bench:
        search = new_search(bench)
        best = search.run(bench.task.model.graph, frozenset()).better[0]
        less = search.without(best, {CLAMP.id})
        assert [move.direction.rule.id for move in less.moves] == [NEGATION.id]
        assert search.without(best, {WRONG.id}) is best and not search.without(best, {r.id for r in RULES}).moves


def test_proposals_are_cheaper_and_no_two_are_the_same(source: Path) -> None:
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposed = [proposal.candidate for proposal in proposals]
        assert len({c.graph.digest for c in proposed}) == len(proposed) > 1
        assert all(c.cost < proposals.search.start().cost for c in proposed)
        assert len(list(replace(proposals, top=1))) == 1
        interrupted = replace(proposals, searched=replace(proposals.searched, interrupted=True))
        assert [p.candidate.graph.digest for p in interrupted] == [proposed[0].graph.digest]
    with workbench(source, []) as bench:
        assert proposals_of(bench).is_empty


@pytest.mark.parametrize("best_has_kernels", [True, False])
def test_kernels_and_their_absence_are_tried_against_each_other(
    source: Path, best_has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trial is of the other kind, whichever the best candidate is of: kernels may be priced too low, or too high."""
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        best, *others = proposals.searched.better
        rival = next(c for c in reversed(others) if len(c.moves) == 1)
        assert rival.graph.digest != [p.candidate for p in proposals][1].graph.digest, "it comes second anyhow"

        def has_kernels(candidate: Candidate) -> bool:
            return (candidate.graph.digest == rival.graph.digest) != best_has_kernels

        monkeypatch.setattr("rewriter.run.proposing.has_kernels", has_kernels)
        digests = [p.candidate.graph.digest for p in proposals]
        assert digests[:2] == [best.graph.digest, rival.graph.digest]
        assert len(set(digests)) == len(digests)


def test_what_is_no_cheaper_on_the_whole_model_is_not_proposed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        monkeypatch.setattr("rewriter.run.searching.ModelSearch.fused", lambda self, candidate: self.start())
        start = proposals.search.start()
        assert start.graph.digest not in {proposal.candidate.graph.digest for proposal in proposals}


def test_figures_of_searching_survive_an_interruption(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with workbench(source, RULES) as bench:
        proposer = Proposer(bench, Quarantine(bench.task, bench.store, bench.notes))
        assert proposer.predictions == Predictions()
        monkeypatch.setattr("rewriter.run.searching.ModelSearch.run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            proposer.propose()
        assert proposer.predictions.start > 0 and proposer.predictions.expanded == 0


def test_a_round_at_other_prices_takes_nothing_away(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that follows has less time: what the one before it found is still proposed."""
    options: dict[str, Any] = {"device": None, "provider": "cpu", "deterministic": False}
    with workbench(source, RULES, **options) as bench:
        rounds: list[Searched] = []
        run = ModelSearch.run

        def found_at_first(search: ModelSearch, graph: Graph, banned: frozenset[str], seeds: Any = (), *rest: Any) -> Searched:
            searched = run(search, graph, banned, seeds, *rest)
            rounds.append(replace(searched, better=() if rounds else searched.better))
            return rounds[-1]

        monkeypatch.setattr("rewriter.run.searching.ModelSearch.run", found_at_first)
        monkeypatch.setattr("rewriter.run.searching.ModelSearch.measure", lambda *_: False)
        monkeypatch.setattr("rewriter.cost.model.CostModel.measure_met", lambda *_: len(rounds) < 2)
        monkeypatch.setattr("rewriter.run.searching.ModelSearch.second_opinion", lambda *_: False)
        proposals = proposals_of(bench)
        assert len(rounds) == 2 and rounds[0].better
        assert {c.graph.digest for c in proposals.searched.better} == {c.graph.digest for c in rounds[0].better}


@pytest.mark.parametrize("provider, share", [("cuda", 0.002), ("cpu", 0.02)])
def test_more_is_given_up_for_fewer_moves_where_other_work_disturbs_prices(
    provider: str, share: float, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU several moves of a hundredth each are a few hundredths of the model's time."""
    given: list[float] = []
    monkeypatch.setattr(
        "rewriter.run.searching.simplify", lambda _, graph, candidate, given_up: given.append(given_up) or candidate
    )
    with workbench(source, RULES, device="h200" if provider == "cuda" else "cpu") as bench:
        search = new_search(bench)
        assert search.costs.provider == provider
        search.simplified(search.start())
    assert given == [share]


def test_what_each_search_finds_early_comes_before_the_rest_of_either(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends most searches: it should be that of what hardly finds anything more."""
    asked: list[tuple[str, bool, list[int], bool]] = []

    def told(name: str) -> Callable[..., Searched]:
        plain = getattr(ModelSearch, name)

        def searched(search: ModelSearch, graph: Graph, banned: frozenset[str], seeds: Any = (), *rest: Any) -> Searched:
            digests = [seed.graph.digest for seed in seeds]
            asked.append((name, bool(search.costs.store.costs), digests, bool(rest) and rest[0] is not None))
            found: Searched = plain(search, graph, banned, seeds, *rest)
            best.append(found.better[0].graph.digest)
            return found

        return searched

    best: list[int] = []
    for name in ("glance", "run"):
        monkeypatch.setattr(ModelSearch, name, told(name))
    with workbench(source, RULES) as bench:
        bench.store.put("of another model", 1.0)
        assert proposals_of(bench).searched.better[0].graph.digest == best[-1]
    first, second, *rest = asked
    assert first == ("glance", False, [], False) and second == ("glance", True, best[:1], False)
    assert rest == [("run", False, [], True), ("run", True, best[1:2], True)]


def test_the_best_candidate_rests_on_what_was_measured(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"device": None, "provider": "cpu", "deterministic": False}
    monkeypatch.setattr("rewriter.cost.model.CostModel.measure_met", lambda *_: False)
    asked: list[str] = []
    monkeypatch.setattr("rewriter.cost.model.CostModel._measure", lambda _, signature: asked.append(signature.op) or 7.0)
    with workbench(source, RULES, **options) as bench:
        search = new_search(bench)
        searched = search.run(bench.task.model.graph, frozenset())
        assert searched.better and not asked and search.estimated(searched.better[0], searched.start), "a search measures nothing"
        proposals = proposals_of(bench)
        best, start = proposals.searched.better[0], proposals.searched.start
        changed = {n.op for n in start.graph.references} - {n.op for n in best.graph.references}
        assert changed and changed <= {*asked} and not proposals.search.estimated(best, start)
        gone = [node for node in start.graph.references if node not in best.graph.references]
        assert start.cost - best.cost == pytest.approx(8.0 * len(gone)), "the times as measured, and the overhead of each node"


def test_a_known_price_on_the_way_hides_nothing(tmp_path: Path) -> None:
    """What is known can only help: with one measured cost among estimates a search finds what it finds with none."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) { a = Neg(x) y = Tanh(a) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    rules = (rule("Neg(X)", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Sigmoid(X))", "Relu(X)", "X:[m,n]"))
    with workbench(tmp_path / "m.onnx", rules) as bench:
        searched = proposals_of(bench).searched
        unaware = searched.better[0].cost / searched.start.cost
    with workbench(tmp_path / "m.onnx", rules) as bench:
        bench.store.preload({"Sigmoid[](float[64,64])": 1e4}, {})
        search = new_search(bench)
        assert not search.run(bench.task.model.graph, frozenset()).better, "it is no case of what is tested"
        proposals = proposals_of(bench)
        assert [node.op for node in proposals.searched.better[0].graph.references] == ["Relu"]
        known = proposals.searched.better[0].cost / proposals.searched.start.cost
        assert known == pytest.approx(unaware), "one measurement raises all estimates of its kind alike"


def test_rules_that_broke_the_model_before_are_not_proposed(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": None, "provider": "cpu", "deterministic": False}
    with workbench(source, RULES, **options) as bench:
        quarantine = Quarantine(bench.task, bench.store, bench.notes)
        search = new_search(bench)
        move = search.run(bench.task.model.graph, frozenset()).better[0].moves[0]
        quarantine.put(move.matches[0], bench.task.model.graph, "it was wrong")
        broken = move.direction.rule.id
        assert (
            quarantine.rules == {broken}
            and f"with it it was wrong; quarantined for this model; see {tmp_path}" in (bench.notes.dropped[0])
        )
        later = Quarantine(bench.task, bench.store, bench.notes)
        assert later.of_earlier_runs(bench.rules.ids) == {broken} and not later.rules
        assert bench.notes.dropped[1:] == [f"{broken}: quarantined by an earlier run on this model"]
        elsewhere = replace(bench.task, target=replace(bench.task.target, environment="another machine"))
        assert not Quarantine(elsewhere, bench.store, bench.notes).of_earlier_runs(bench.rules.ids)
    other = tmp_path / "other.onnx"
    onnx.save(parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Abs(x) }'), other)
    with workbench(other, RULES, **options) as bench:
        assert not Quarantine(bench.task, bench.store, bench.notes).of_earlier_runs(bench.rules.ids)


def test_a_quarantine_that_cannot_write_files_still_holds(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rewriter.run.quarantine.write_reproduction", full)
    with workbench(source, RULES) as bench:
        quarantine = Quarantine(bench.task, bench.store, bench.notes)
        move = new_search(bench).run(bench.task.model.graph, frozenset()).better[0].moves[0]
        quarantine.put(move.matches[0], bench.task.model.graph, "it was wrong")
        assert quarantine.rules == {move.direction.rule.id}
        assert "reproduction files could not be written: No space left on device" in bench.notes.dropped[0]


# Checking and judging


def checker_of(bench: Workbench, proposals: Proposals) -> tuple[Checker, Quarantine]:
    task, quarantine = bench.task, Quarantine(bench.task, bench.store, bench.notes)
    acceptance = Acceptance(task.model, open_in(task.model, task.model.graph, bench.folder), task.feeds(), "cpu")
    return Checker(bench, proposals.search, quarantine, acceptance), quarantine


def test_what_is_wrong_does_not_pass(source: Path) -> None:
    """The guilty rule is left out, what is right passes, and only the files of what passed are left."""
    with workbench(source, [*RULES, WRONG]) as bench:
        proposals, folder = proposals_of(bench), bench.folder
        checker, quarantine = checker_of(bench, proposals)
        best = next(iter(proposals))
        assert WRONG.id in {move.direction.rule.id for move in best.candidate.moves}
        opened = checker.check(replace(best, missing=3))
        assert isinstance(opened, Opened) and quarantine.rules == {WRONG.id} and len(bench.notes.dropped) == 1
        assert {move.direction.rule.id for move in opened.trial.candidate.moves} == {r.id for r in RULES}
        assert opened.trial.error.relative_l2 < 1e-6 and not opened.trial.conditions, "the sites were counted for another graph"
        assert {p.name for p in folder.glob("candidate*.onnx")} == {"candidate0.onnx", opened.trial.path.name}
        again = checker.check(replace(best, missing=3))
        assert again is not None and len(bench.notes.dropped) == 1, "a rule is found guilty once"
        sound = checker.check(Proposal(opened.trial.candidate, 3))
        assert sound is not None and "3 sites in repeated layers" in sound.trial.conditions[0]


def test_what_saves_nothing_without_the_guilty_rule_does_not_pass(source: Path) -> None:
    with workbench(source, [WRONG]) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        assert checker.check(next(iter(proposals))) is None and quarantine.rules == {WRONG.id}


def test_kernels_that_do_not_compile_do_not_pass(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: set[str] = set()

    def compile_(self: RunKernels, candidate: Any) -> list[str]:
        held = [m.direction.rule.id for m in candidate.moves if m.direction.rule.id == CLAMP.id]
        refused.update(held)
        return [f"kernel of {rule_} is refused" for rule_ in held]

    monkeypatch.setattr(RunKernels, "compile", compile_)
    monkeypatch.setattr(RunKernels, "refused", lambda self, candidate: refused)
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        opened = checker_of(bench, proposals)[0].check(next(iter(proposals)))
        assert opened is not None and [m.direction.rule.id for m in opened.trial.candidate.moves] == [NEGATION.id]
        assert bench.notes.dropped == [f"kernel of {CLAMP.id} is refused"]


def judge_of(bench: Workbench) -> Judge:
    return Judge(bench, Quarantine(bench.task, bench.store, bench.notes))


def test_before_anything_is_right_the_original_is_kept(source: Path) -> None:
    with workbench(source, RULES) as bench:
        judgement = judge_of(bench).stopped()
        assert judgement.winner is None and judgement.is_interrupted and "interrupted before" in judgement.message


def test_nothing_cheaper_is_a_judgement(source: Path) -> None:
    with workbench(source, []) as bench:
        judgement = judge_of(bench).judge(proposals_of(bench))
        assert judgement.winner is None and judgement.message.startswith("no candidate is cheaper by the cost model (")
        assert judgement.error_before is None and not judgement.is_interrupted


def test_what_cannot_be_measured_is_judged_by_its_cost(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "confirm", lambda *_, **__: pytest.fail("timed end to end"))
    with workbench(source, RULES) as bench:
        proposals, judge = proposals_of(bench), judge_of(bench)
        judgement = judge.judge(proposals)
        assert judgement.winner is not None and not judgement.message and judgement.speed == timings.UNTIMED
        assert judgement.winner.graph.digest == next(iter(proposals)).candidate.graph.digest
    with workbench(source, [WRONG]) as bench:
        judgement = judge_of(bench).judge(proposals_of(bench))
        assert judgement.winner is None and "no candidate was left that can be built" in judgement.message
        assert judgement.error_before is not None and judgement.error_after is None


def test_the_two_most_promising_are_confirmed_in_their_order(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second proposal is the fastest at first sight, then the first and the fourth; the third is slower for sure."""
    impressions = [(0.9, 0.8), (0.5, 0.4), (1.2, 1.1), (0.95, 0.9)]
    ratios = iter(impressions)

    def pair(self: Acceptance, session: Any, seconds: float) -> timings.Timing:
        ratio, low = next(ratios)
        return timings.Timing(1.0, ratio, 0.1, 0.1, ratio, low, 1.3)

    confirmed: list[tuple[str, int]] = []

    def confirm(original: Path, candidate: Path, *_: Any, **__: Any) -> timings.Timing:
        confirmed.append((candidate.name, len(list(candidate.parent.glob("candidate*.onnx")))))
        return SAME

    monkeypatch.setattr(Acceptance, "pair", pair)
    monkeypatch.setattr(timings, "confirm", confirm)
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        (first, *others) = [proposal.candidate for proposal in proposals]
        assert len(others) == 2
        monkeypatch.setattr(Proposals, "__iter__", lambda self: iter(map(Proposal, [first, *others, first])))
        monkeypatch.setattr(Task, "measures", True)
        judgement = judge_of(bench).judge(proposals)
    assert [name for name, _ in confirmed] == ["candidate1.onnx", "candidate0.onnx"]
    assert {left for _, left in confirmed} == {2}, "the others are gone"
    assert judgement.winner is None and "took 1.000 [0.950, 1.050] of the original's time" in judgement.message


def test_candidates_of_which_one_cannot_be_captured_are_ordered_by_what_is_known_of_both(source: Path) -> None:
    """A captured graph takes half of the original's; under default settings, the only way to time the other, that is faster."""

    def told(ratio: float) -> timings.Timing:
        return timings.Timing(1.0, ratio, 0.1, 0.1, ratio, ratio - 0.1, ratio + 0.1)

    with workbench(source, RULES) as bench:
        candidate = next(iter(proposals_of(bench))).candidate
        speeds = timings.Speed(told(0.95), told(0.5)), timings.Speed(told(0.8)), timings.Speed(told(0.9), told(0.6))
        first, second, third = (Trial(candidate, source, Error(0.0, 0.0), speed=speed) for speed in speeds)
    assert judging._in_order([first, second], None) == [second, first]
    assert judging._in_order([first, third], first) == [first, third], "the device tells both"
    close = Trial(candidate, source, Error(0.0, 0.0), speed=timings.Speed(told(0.795)))
    assert judging._in_order([close, second], second) == [second, close], "the benefit of the doubt"
    assert judging._in_order([close, second], None) == [close, second]


def test_a_verdict_that_does_not_hold_costs_no_second_reference(
    source: Path, tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    for owner, name in ((accept.Acceptance, "__init__"), (accept, "referred")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _real=real, _name=name, **k: made.append(_name) or _real(*a, **k))

    def run() -> Outcome:
        made.clear()
        return optimize(source, tmp_path / "o.onnx", provider="cpu", rules=list(RULES), budget=20)

    assert run().improved and run().cached_verdict
    monkeypatch.setattr(Judge, "judge_again", lambda self, *_: self._acceptance() and Judgement(message="not right any more"))
    outcome = run()
    assert outcome.improved and not outcome.cached_verdict
    assert sorted(made) == ["__init__", "referred"]


def test_no_kernel_is_glanced_at_while_that_is_disturbed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glanced: list[object] = []
    monkeypatch.setattr(RunKernels, "glance", lambda _, candidate, deadline: glanced.append(candidate))
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposer = Proposer(bench, Quarantine(bench.task, bench.store, bench.notes))
        for quiet in (False, True):
            monkeypatch.setattr(Workbench, "is_quiet", lambda *_, quiet=quiet: quiet)
            assert proposer._glanced(proposals.search, proposals.searched) is proposals.searched
            assert len(glanced) == quiet


def test_kernels_of_the_candidate_that_is_tried_first_are_compiled_beside_what_goes_before(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not there is time to glance at them: the prices by which it came to be the best may be the last."""
    foreseen: list[object] = []
    monkeypatch.setattr(RunKernels, "foresee", lambda _, candidate: foreseen.append(candidate))
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposer = Proposer(bench, Quarantine(bench.task, bench.store, bench.notes))
        foreseen.clear()
        bench.clock.needs("judge", bench.clock.left() + 1)
        proposer._glanced(proposals.search, proposals.searched)
        assert foreseen == [proposals.searched.better[0]]


def test_kernels_of_what_a_search_likes_best_are_compiled_beside_the_rest_of_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseen: list[object] = []
    monkeypatch.setattr(RunKernels, "foresee", lambda _, candidate: foreseen.append(candidate))
    with workbench(source, RULES) as bench:
        search, graph = new_search(bench), bench.task.model.graph
        best = search.run(graph, frozenset()).better[0]
        assert foreseen == [best]
        foreseen.clear()
        assert search.blind().run(graph, frozenset()).better and not foreseen, "others decide about what it likes"


def test_kernels_are_remembered_for_other_models_when_the_result_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a trial waits for nothing else; where the time is over nobody waits for it."""
    output, there, begun = tmp_path / "o.onnx", list[bool](), list[bool]()
    monkeypatch.setattr(RunKernels, "prepare_to_learn", lambda _, candidate: begun.append(not output.exists()))
    monkeypatch.setattr(RunKernels, "learn", lambda _, candidate: there.append(bool(candidate.moves) and output.exists()))
    monkeypatch.setattr(Judge, "judge", lambda _, proposals: Judgement(next(iter(proposals)).candidate))

    def run(cache: str) -> Outcome:
        return optimize(source, output, provider="cpu", rules=list(RULES), budget=20, cache=tmp_path / cache)

    assert run("a").improved and there == [True] and begun == [True]
    monkeypatch.setattr("rewriter.run.optimize._LEARNING", 1000.0)
    assert run("b").improved and there == [True] and begun == [True], "nor is anything imported that makes writing longer"


@pytest.mark.parametrize("problem", [ValueError("no"), KeyboardInterrupt()])
def test_what_goes_wrong_while_kernels_are_remembered_takes_nothing_from_the_result(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    def learn(*_: object) -> None:
        raise problem

    monkeypatch.setattr(RunKernels, "learn", learn)
    monkeypatch.setattr(Judge, "judge", lambda _, proposals: Judgement(next(iter(proposals)).candidate))
    monkeypatch.delenv("ONNX_SUPEROPT_DEBUG", raising=False)
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=list(RULES), budget=20, cache=tmp_path / "a")
    assert outcome.improved and outcome.fault is None and outcome.nodes_after < outcome.nodes_before
    assert any("remembered for other models" in note for note in outcome.notes) and "learn" in outcome.seconds


def test_an_impression_is_as_short_as_the_time_that_is_left(source: Path) -> None:
    """A candidate that was built and found right is not given up for want of a tenth of a second."""
    with workbench(source, RULES) as bench:
        judge, clock = Judge(bench, Quarantine(bench.task, bench.store, bench.notes)), bench.clock
        assert judge._impression() == clock.budget / 40
        clock.needs("write", clock.left() - 0.8)
        assert 0.0 < judge._impression() <= 0.1
        clock.needs("write", clock.left() + 1.0)
        assert judge._impression() == 0.0


def test_a_glance_at_kernels_leaves_the_time_to_judge(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has to fit, the first as well: one that is cut short has learned nothing."""
    glanced: list[object] = []

    def glance(_: RunKernels, candidate: object, deadline: float) -> bool:
        glanced.append(candidate)
        return len(glanced) < 9

    monkeypatch.setattr(RunKernels, "glance", glance)
    monkeypatch.setattr(Workbench, "is_quiet", lambda *_: True)
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposer = Proposer(bench, Quarantine(bench.task, bench.store, bench.notes))
        left = bench.clock.left()
        for judging, looks in ((left + 1, 0), (left - 10, 0), (left - 50, 9)):
            glanced.clear()
            bench.clock.needs("judge", judging)
            bench.clock.needs("glance", 30.0)
            proposer._glanced(proposals.search, proposals.searched)
            assert len(glanced) == looks


def test_a_message_is_of_the_original_alone(source: Path, timing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first candidate is no faster, the second is: nothing says that the original was kept."""
    answers = iter([timings.Timing(1.0, 1.1, 0.1, 0.1, 1.1, 1.0, 1.2), FASTER])
    monkeypatch.setattr(timings, "confirm", lambda *_, **__: next(answers))
    outcome = optimize(source, source.with_name("o.onnx"), provider="cpu", rules=list(RULES), budget=60)
    assert outcome.improved and not outcome.message and outcome.latency == FASTER


def bfloat16_model(path: Path, inputs: str = "bfloat16[n,64] x") -> Path:
    text = f"g ({inputs}) => (bfloat16[n,64] y) {{ s = Cast <to: int = 16> (x) a = Neg(s) b = Neg(a) y = Tanh(b) }}"
    onnx.save(parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), path)
    return path


def test_inputs_in_bfloat16_are_not_measured_on_the_cpu(tmp_path: Path) -> None:
    source = bfloat16_model(tmp_path / "m.onnx")
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[NEGATION], budget=20, cache=tmp_path / "c.sqlite")
    assert not outcome.improved and "bfloat16 inputs are not measured" in outcome.message


@pytest.mark.parametrize("inputs", ["bfloat16[n,64] x", "int64[n,64] x"])
@pytest.mark.parametrize("right", [True, False])
def test_bfloat16_for_a_gpu_that_is_not_here_is_evaluated(tmp_path: Path, inputs: str, right: bool) -> None:
    """The CPU provider here has no kernels for it: what the operators mean decides, rounded as their types are."""
    source = bfloat16_model(tmp_path / "m.onnx", inputs)
    rules = [NEGATION if right else rule("Neg(Neg(X))", "Neg(X)", "X:[m,n]")]
    outcome = optimize(source, tmp_path / "o.onnx", device="h200", rules=rules, kernels=False, deterministic=True)
    assert any("evaluated by what their operators mean" in note for note in outcome.notes)
    assert outcome.improved is right and bool(outcome.dropped) is not right
    assert outcome.error_before is not None and 0 < outcome.error_before.relative_l2 < 1e-2
    assert [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node].count("Neg") == (0 if right else 2)


# Remembering and writing


def measuring(source: Path, **options: Any) -> Any:
    return workbench(source, RULES, device=None, provider="cpu", deterministic=False, **options)


def decision_of(bench: Workbench, *, is_interrupted: bool = False) -> Decision:
    """For the best proposal, as if it had been measured."""
    proposals = proposals_of(bench)
    best = next(iter(proposals)).candidate
    judgement = Judgement(best, "", Error(1e-7, 1e-7), Error(0.0, 0.0), timings.Speed(FASTER, SAME, FASTER), is_interrupted)
    judgement = replace(judgement, assumed=proposals.search.assumed(best))
    return decided(bench, Predictions(9.0, 1, 2, 3, 4, 1), judgement)


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


def test_a_verdict_whose_kernels_do_not_compile_is_not_used(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.remembering.kernel_of_rule", lambda rule_: rule_)
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
        monkeypatch.setattr(Acceptance, "judge_outputs", lambda self, session: ([Error(0.5, 0.5)], False))
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


def test_a_workbench_is_closed_in_any_case(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(RunKernels, "close", lambda self: closed.append("kernels"))
    monkeypatch.setattr(ProfileStore, "close", lambda self: closed.append("store"))
    with workbench(source, RULES) as bench:
        task = bench.task
    assert closed == ["kernels", "store"]
    monkeypatch.setattr("rewriter.run.workbench.open_kernels", lambda *_: pytest.fail("broken"))
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
