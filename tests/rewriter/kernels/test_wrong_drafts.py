"""Drafts of kernels that are wrong are written nowhere, whoever vouches for them."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Compute, Statement, Store
from mugraph.deadline import BudgetSpent
from mugraph.onnx import load
from mugraph.terms.term import make, var, walk
from mugraph.terms.text import parse_term, parse_type
from rewriter import optimize
from rewriter.cost.devices import get_device
from rewriter.cost.store import ProfileStore, default_profile_path
from rewriter.kernels import custom as kernels
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.custom import CustomKernels, learned_path
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.within import kernels_of
from rules_db.entries import read_all
from rules_db.exchange import format_rule
from rules_db.store import RuleStore
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_rule
from rules_db.trust.rule import Rule
from tests.support.kernel_help import at_leisure, own_nodes

pytestmark = pytest.mark.usefixtures("compiled_once")


def wrong(kernel: Kernel) -> Kernel:
    """A kernel that stores the negative of what it should."""

    def negated(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Store):
            return [statement]
        name = f"{statement.value}_negative"
        return [Compute(name, make("Neg", [var(statement.value)])), replace(statement, value=name)]

    blocks = [replace(b, statements=tuple(s for each in b.statements for s in negated(each))) for b in kernel.blocks]
    return replace(kernel, blocks=tuple(blocks))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that were lowered, all of them wrong."""
    made: list[Kernel] = []

    def lowered(*arguments: Any) -> Kernel:
        made.append(wrong(lower(*arguments)))
        return made[-1]

    monkeypatch.setattr("rewriter.kernels.fuse.kernels.lower", lowered)
    return made


@pytest.fixture
def asked_to_write(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels of which a text was made."""
    asked: list[Kernel] = []
    plain = CustomKernels._why_unwritten

    def noted(self: CustomKernels, kernel: Kernel) -> str:
        asked.append(kernel)
        return plain(self, kernel)

    monkeypatch.setattr(CustomKernels, "_why_unwritten", noted)
    return asked


def remembered() -> tuple[list[str], list[Rule]]:
    """The verdicts of the cache, and the kernels that were learned for other models."""
    with closing(sqlite3.connect(default_profile_path())) as database:
        verdicts = [text for (text,) in database.execute("SELECT value FROM verdicts")]
    if not learned_path().exists():
        return verdicts, []
    with RuleStore.open(str(learned_path())) as store:
        return verdicts, read_all(store.entries())[0]


@pytest.mark.parametrize("strategy", ["backtracking", "schemes"])
def test_a_wrong_draft_is_written_nowhere(
    strategy: str, model: Path, tmp_path: Path, gpu: list[str], planted: list[Kernel], asked_to_write: list[Kernel]
) -> None:
    outcome = at_leisure(model, tmp_path / "out.onnx", strategy=strategy)
    assert planted and outcome.kernels == 0 and not own_nodes(tmp_path / "out.onnx")
    assert not asked_to_write and not gpu, "no text, and no time"
    verdicts, learned = remembered()
    assert not learned and not any("Kernel[" in text for text in verdicts)


@pytest.mark.parametrize("options", [{"deterministic": True}, {"budget": 1e-3}], ids=str)
def test_a_wrong_draft_is_written_nowhere_for_a_gpu_that_is_not_here(
    options: dict[str, Any], model: Path, tmp_path: Path, planted: list[Kernel], asked_to_write: list[Kernel]
) -> None:
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", **options)
    assert outcome.kernels == 0 and not own_nodes(tmp_path / "out.onnx") and not asked_to_write
    assert planted or "budget" in options


@pytest.mark.parametrize("problem", [KeyboardInterrupt, BudgetSpent])
def test_a_draft_whose_proof_is_cut_short_is_not_used(
    problem: type[BaseException],
    model: Path,
    tmp_path: Path,
    gpu: list[str],
    asked_to_write: list[Kernel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rewriter.kernels.fuse.kernels.why_not_proved", Raised(problem("now")))
    with suppress(BudgetSpent, KeyboardInterrupt):
        at_leisure(model, tmp_path / "out.onnx")
        assert not own_nodes(tmp_path / "out.onnx")
    assert not asked_to_write and not gpu


class Raised:
    """Whoever calls it is cut short."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem

    def __call__(self, *_: object, **__: object) -> Any:
        raise self.problem


def test_what_cuts_a_check_short_shows_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is asked for again is tested again, and a rule that is learned is checked again."""
    kernel = lower("negative", {"x": parse_type("float16[8,8]")}, [("y", parse_term("Neg(x)"))])
    builder = KernelBuilder()
    builder._untested[kernel.digest] = kernel
    custom = CustomKernels(get_device("h200"), ProfileStore(None, "any"), {}, [], (Architecture(90),), strict=False)
    rule = kernel_rule(wrong(kernel), {})
    custom._unproved[rule.id] = rule
    for cut_short in (True, False):
        with monkeypatch.context() as patch:
            if cut_short:
                patch.setattr(KernelBuilder, "test", Raised(KeyboardInterrupt()))
                patch.setattr(kernels, "objections", Raised(KeyboardInterrupt()))
            else:
                patch.setattr(KernelBuilder, "test", Raised(NotFusable("it is wrong")))
            with pytest.raises(KeyboardInterrupt if cut_short else NotFusable):
                builder.confirm(kernel)
            if cut_short:
                with pytest.raises(KeyboardInterrupt):
                    custom.is_proved(rule)
    assert not custom.is_proved(rule) and any("was not used" in note for note in custom.notes)


def test_a_proof_does_not_rest_on_tests() -> None:
    """Where no size is a symbol and all are large, a kernel that is proved is used; one that is not proved is not."""
    kernel = lower("negative", {"x": parse_type("float16[2048,1024]")}, [("y", parse_term("Neg(x)"))])
    builder = KernelBuilder()
    builder._untested[kernel.digest] = kernel
    builder.confirm(kernel)
    types = {"x": parse_type("float16[2048,1024]"), "m": parse_type("bool[2048,1024]")}
    masked = lower("masked", types, [("y", parse_term("Softmax[axis=-1](Where(m, x, -inf))"))])
    builder._untested[masked.digest] = masked
    for asked in (lambda: builder.test(kernel), lambda: builder.confirm(masked)):  # what a run hides is no part of a proof
        with pytest.raises(NotFusable, match="too many to interpret"):
            asked()


def test_wrong_kernels_of_a_cache_are_refused(
    model: Path, tmp_path: Path, gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that took everybody's word left a verdict, an incumbent and a rule with a wrong kernel; acceptance, which runs their
    bodies here, says nothing of them."""
    with monkeypatch.context() as patch:
        patch.setattr("rewriter.kernels.fuse.kernels.lower", lambda *arguments: wrong(lower(*arguments)))
        patch.setattr("rewriter.kernels.fuse.kernels.why_not_proved", lambda _: None)
        patch.setattr("rules_db.trust.interpreted.why_not_proved", lambda _: None)
        patch.setattr("rules_db.trust.check.check", lambda *_: [])
        patch.setattr(kernels, "check", lambda *_: [])
        patch.setattr("rules_db.store.check", lambda *_: [], raising=False)
        patch.setattr(KernelBuilder, "test", lambda *_: None)
        assert at_leisure(model, tmp_path / "poisoned.onnx").kernels == 1
    verdicts, learned = remembered()
    assert any("Kernel[" in text for text in verdicts) and learned, "else the test says nothing"
    for name, options in (("recalled", {}), ("repeated", {"budget": 500.0}), ("anew", {"use_verdicts": False})):
        outcome = at_leisure(model, tmp_path / f"{name}.onnx", **options)
        (kernel,) = kernels_of(load(tmp_path / f"{name}.onnx").graph)
        assert interpret(kernel, LEAST_TESTS, 0) is None, name
        assert outcome.kernels == 1 and (name != "recalled" or not outcome.cached_verdict)


def test_what_a_search_says_is_proved_is_checked(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process searches kernels: its word on them is a stranger's. It is asked where one saves more than others."""
    (fusable, *_) = (f for f in propose(load(model).graph) if {t.op for t in walk(f.terms) if t.inputs} == {"Mul", "Sigmoid"})
    kernel = wrong(lower("wrong", fusable.types, [("y0", fusable.terms[0])]))
    with monkeypatch.context() as patch:
        patch.setattr("rules_db.trust.interpreted.why_not_proved", lambda _: None)
        texts = [format_rule(kernel_rule(kernel, {"group": "searched"}))]

    class Searcher:
        def __init__(self, *_: object) -> None:
            self.answers = iter([(texts, 1), (None, 1)])

        def answer(self, *_: object) -> tuple[list[str] | None, int]:
            return next(self.answers)

        def close(self) -> None:
            pass

    monkeypatch.setattr("rewriter.run.kernel_search.Worker", Searcher)
    monkeypatch.setattr("rewriter.kernels.proposals.propose", lambda _: ())
    outcome = optimize(model, tmp_path / "out.onnx", device="h200", budget=60.0, search_kernels=5.0)
    assert any("1 kernels were found for 1 of 1 subprograms" in note for note in outcome.notes), outcome.notes
    assert any("is not proved and was not used" in note for note in outcome.notes), outcome.notes
    assert kernel not in kernels_of(load(tmp_path / "out.onnx").graph)
