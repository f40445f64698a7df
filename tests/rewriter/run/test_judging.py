"""Checking and judging of candidates, and what is compiled and remembered beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model

from rewriter import optimize
from rewriter.reference import Error
from rewriter.run import accept, judging, timings
from rewriter.run.accept import Acceptance
from rewriter.run.checking import Opened, Trial
from rewriter.run.decision import decided
from rewriter.run.judgement import Judgement
from rewriter.run.judging import Judge
from rewriter.run.kernels import RunKernels
from rewriter.run.outcome import Outcome
from rewriter.run.proposing import Proposal, Proposals
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import new_search
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench
from tests.support.graphs import rule
from tests.support.runs import FASTER, SAME, workbench
from tests.support.stages import CLAMP, NEGATION, RULES, WRONG, checker_of, judge_of, proposals_of, proposer_of

pytestmark = pytest.mark.usefixtures("own_cache")


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


def test_before_anything_is_right_the_original_is_kept(source: Path) -> None:
    with workbench(source, RULES) as bench:
        judgement = judge_of(bench).stopped()
        assert judgement.winner is None and judgement.is_interrupted and "interrupted before" in judgement.message


def test_nothing_cheaper_is_a_judgement(source: Path) -> None:
    with workbench(source, []) as bench:
        judgement = judge_of(bench).judge(proposals_of(bench))
        assert judgement.winner is None and judgement.message.startswith("no candidate is cheaper by the cost model (")
        assert judgement.error_before is None and not judgement.is_interrupted


def test_candidates_of_all_searches_are_counted(source: Path) -> None:
    """As the summary does: the last search may have met fewer, or none."""
    with workbench(source, []) as bench:
        proposals = proposals_of(bench)
        bench.figures.count(3, 7)
        cut_short = replace(proposals, searched=replace(proposals.searched, stopped="the budget was spent", generated=0))
        message = judge_of(bench).judge(cut_short).message
        assert message.startswith(f"undecided: none of {bench.figures.predictions.generated} candidates was cheaper")
        assert decided(bench, bench.figures.predictions, Judgement(message=message)).outcome.generated == 7


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
    monkeypatch.setattr(
        Judge, "judge_again", lambda self, *_: self.original.acceptance() and Judgement(message="not right any more")
    )
    outcome = run()
    assert outcome.improved and not outcome.cached_verdict
    assert sorted(made) == ["__init__", "referred"]


def test_no_kernel_is_glanced_at_while_that_is_disturbed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glanced: list[object] = []
    monkeypatch.setattr(RunKernels, "glance", lambda _, candidate, deadline: glanced.append(candidate))
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposer = proposer_of(bench)
        for quiet in (False, True):
            monkeypatch.setattr(Workbench, "is_quiet", lambda *_, quiet=quiet: quiet)
            assert proposer._glanced(proposals.search, proposals.searched) is proposals.searched
            assert len(glanced) == quiet


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The candidates whose kernels are compiled beside other work."""
    found: list[object] = []
    monkeypatch.setattr(RunKernels, "foresee", lambda _, candidate: found.append(candidate))
    return found


def test_kernels_of_the_candidate_that_is_tried_first_are_compiled_beside_what_goes_before(
    source: Path, foreseen: list[object]
) -> None:
    """Whether or not there is time to glance at them: the prices by which it came to be the best may be the last."""
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        proposer = proposer_of(bench)
        foreseen.clear()
        bench.clock.needs("judge", bench.clock.left() + 1)
        proposer._glanced(proposals.search, proposals.searched)
        assert foreseen == [proposals.searched.better[0]]


def test_kernels_of_what_a_search_likes_best_are_compiled_beside_the_rest_of_it(source: Path, foreseen: list[object]) -> None:
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
    monkeypatch.setattr("rewriter.run.deciding._LEARNING", 1000.0)
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
        proposer = proposer_of(bench)
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
