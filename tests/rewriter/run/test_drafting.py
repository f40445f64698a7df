"""The output is drafted while what a remembered verdict leads to is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mugraph.graph import Graph
from mugraph.onnx import DraftedModel, ModelError, copy, to_bytes
from rewriter.run import writing
from rewriter.run.checking import Checker
from rewriter.run.drafting import DraftedOutput
from rewriter.run.ending import kept
from rewriter.run.judgement import Judgement
from rewriter.run.kernels import RunKernels
from rewriter.run.remembering import Verdicts
from rewriter.run.workbench import Workbench
from rewriter.run.writing import write
from tests.support.runs import workbench
from tests.support.stages import RULES, decision_of, judge_of, proposals_of

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drafts that are begun, and the files that get their names."""
    done: list[str] = []

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append(name)
            return method(*given)

        return call

    for name in ("write", "finish"):
        monkeypatch.setattr(DraftedModel, name, noted(name, getattr(DraftedModel, name)))
    return done


def measuring(source: Path, **options: Any) -> Any:
    return workbench(source, RULES, device=None, provider="cpu", deterministic=False, **options)


def remember(source: Path) -> bytes:
    """Has a verdict remembered; what was written."""
    with measuring(source) as bench:
        decision = decision_of(bench)
        Verdicts(bench, judge_of(bench)).remember(decision, write(bench, decision))
        content = bench.task.output.read_bytes()
        bench.task.output.unlink()
    return content


def drafts(bench: Workbench) -> list[Path]:
    return list(bench.task.output.parent.glob("*.tmp"))


def test_what_a_verdict_leads_to_is_written_once_and_byte_for_byte(source: Path, written: list[str]) -> None:
    content = remember(source)
    written.clear()
    with measuring(source) as bench:
        recalled = Verdicts(bench, judge_of(bench)).recall()
        assert recalled is not None and not bench.task.output.exists(), "it has no name before it is known to be right"
        assert write(bench, recalled).improved and written == ["write", "finish"]
        assert bench.task.output.read_bytes() == content
    assert not drafts(bench)


def test_what_is_not_right_leaves_nothing_behind(source: Path, monkeypatch: pytest.MonkeyPatch, written: list[str]) -> None:
    remember(source)
    written.clear()
    monkeypatch.setattr(Checker, "check", lambda *_: None)
    with measuring(source) as bench:
        assert Verdicts(bench, judge_of(bench)).recall() is None
        assert bench.drafted._writing is not None and bench.drafted._writing.result(60) is None
        assert written == ["write"] and len(drafts(bench)) == 1
    assert not drafts(bench) and not bench.task.output.exists()


def test_a_copy_of_the_original_has_the_room_of_a_draft(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(source)
    monkeypatch.setattr(Checker, "check", lambda *_: None)
    with measuring(source) as bench:
        assert Verdicts(bench, judge_of(bench)).recall() is None
        left = list[Path]()

        def copied(*given: Any) -> Any:
            left.extend(drafts(bench))
            return copy(*given)

        monkeypatch.setattr(writing, "copy", copied)
        assert bench.drafted._writing is not None and bench.drafted._writing.result(60) is None and len(drafts(bench)) == 1
        kept(bench, Judgement())
        assert bench.task.output.read_bytes() == source.read_bytes() and not left


def test_another_decision_is_written_by_itself(source: Path, written: list[str]) -> None:
    """Of another graph, or with other programs of the same kernels."""
    remember(source)
    with measuring(source) as bench:
        recalled = Verdicts(bench, judge_of(bench)).recall()
        assert recalled is not None
        other = next(each.candidate.graph for each in proposals_of(bench) if each.candidate.graph.digest != recalled.graph.digest)
        assert bench.drafted.taken(bench.kernels, other) is None and not drafts(bench)
        written.clear()
        write(bench, replace(recalled, graph=other))
        assert written == ["write", "finish"] and bench.task.output.read_bytes() == to_bytes(bench.task.model, other)
    programs: list[dict[Any, Any]] = [{}, {"kernel": "others"}]
    with measuring(source) as bench, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunKernels, "programs_in", lambda *_: programs.pop(0))
        bench.drafted.begin(bench.kernels, bench.task.model.graph, bench.task.output, bench.background)
        assert bench.drafted.taken(bench.kernels, bench.task.model.graph) is None and not drafts(bench)


@pytest.mark.parametrize("problem", [ModelError("no room"), OSError(28, "no room")])
def test_a_draft_that_cannot_be_written_is_written_again_in_the_end(
    problem: Exception, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, plain, asked = remember(source), DraftedModel.write, list[bool]()

    def failing(drafted: DraftedModel) -> None:
        plain(drafted)
        asked.append(True)
        if len(asked) == 1:
            raise problem

    monkeypatch.setattr(DraftedModel, "write", failing)
    with measuring(source) as bench:
        recalled = Verdicts(bench, judge_of(bench)).recall()
        assert recalled is not None
        write(bench, recalled)
        assert len(asked) == 2 and bench.task.output.read_bytes() == content and not drafts(bench)


def test_one_is_drafted_a_run(source: Path) -> None:
    asked: list[Graph] = []

    class Kernels(RunKernels):
        def draft(self, graph: Graph, output: Path) -> DraftedModel:
            asked.append(graph)
            return super().draft(graph, output)

    with measuring(source) as bench:
        kernels, drafted = Kernels(bench.task.model), DraftedOutput()
        for _ in range(2):
            drafted.begin(kernels, bench.task.model.graph, bench.task.output, bench.background)
        assert len(asked) == 1 and drafted.taken(kernels, bench.task.model.graph) is not None
        drafted.close()
        assert not drafts(bench)
