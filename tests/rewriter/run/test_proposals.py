"""What a run's searches propose, and what they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from rewriter.run.judgement import Predictions
from rewriter.run.quarantine import Quarantine
from rewriter.run.records import CandidateRecord
from rewriter.run.searching import ModelSearch, Unrepeatable, new_search
from rewriter.search.backtracking import Searched
from rewriter.search.candidate import Candidate
from tests.support.graphs import rule
from tests.support.runs import workbench
from tests.support.stages import CLAMP, NEGATION, RULES, WRONG, proposals_of, proposer_of

pytestmark = pytest.mark.usefixtures("own_cache")


def test_moves_are_reached_again_from_their_record(source: Path) -> None:
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        (best, *_) = proposals
        recorded = CandidateRecord.of(best.candidate, bench.task.model.tables.key)
        assert {rule_ for rule_, _ in recorded.moves} == {f"{r.id}>" for r in RULES}
        again = new_search(bench).retraced(CandidateRecord.of_json(json.loads(json.dumps(recorded.as_json()))))
        assert again.graph.content_digest() == best.candidate.graph.content_digest()
        assert [len(m) for m in (again.moves, new_search(bench).retraced(CandidateRecord([], [])).moves)] == [2, 0]
    with workbench(source, [NEGATION]) as bench, pytest.raises(Unrepeatable, match=f"rule {CLAMP.id}> is not among"):
        new_search(bench).retraced(recorded)


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
        proposer = proposer_of(bench)
        assert bench.figures.predictions == Predictions()
        monkeypatch.setattr("rewriter.run.searching.ModelSearch.run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            proposer.propose()
        told = bench.figures.predictions
        assert told.start > 0 and told.expanded > 0 and told.generated > 0, "a glance came before"


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
    assert first == ("glance", False, [], True) and second == ("glance", True, best[:1], False)
    assert rest == [("run", False, [], True), ("run", True, best[1:2], True)]


def test_known_prices_come_in_as_soon_as_there_are_kernels(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried early is the best by then: by the kernels found as if no price were known it is no good one."""
    asked: list[tuple[str, bool, list[int], bool]] = []
    best: list[int] = []
    plain = {name: getattr(ModelSearch, name) for name in ("descent", "glance", "run")}

    def told(name: str, *given: Any) -> Searched:
        search, graph, banned, seeds, *rest = (*given, ()) if len(given) == 3 else given
        asked.append((name, bool(search.costs.store.costs), [seed.graph.digest for seed in seeds], any(rest)))
        found: Searched = plain[name](*given)
        if name == "descent":
            found = replace(found, better=plain["run"](search, graph, banned).better[-1:])
        best.append(found.better[0].graph.digest)
        return found

    for name in plain:
        monkeypatch.setattr(ModelSearch, name, lambda *given, name=name: told(name, *given))
    with workbench(source, RULES) as bench:
        bench.store.put("of another model", 1.0)
        assert proposals_of(bench).searched.better[0].graph.digest == best[-1]
    assert asked[:2] == [("descent", False, [], False), ("glance", True, best[:1], False)]
    assert asked[2:4] == [("glance", False, [], True), ("glance", True, best[1:2], True)]
    assert asked[4:] == [("run", False, [], True), ("run", True, best[3:4], True)]


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
