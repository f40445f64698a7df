"""A model with two savings, rules for them, and what the stages of a run make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
from onnx.parser import parse_model

from mugraph.onnx import open_in
from rewriter.reference import Error
from rewriter.run import timings
from rewriter.run.accept import Acceptance
from rewriter.run.checking import Checker
from rewriter.run.decision import Decision, decided
from rewriter.run.families import FamilyMemory
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.judging import Judge
from rewriter.run.proposing import Proposals, Proposer
from rewriter.run.quarantine import Quarantine
from rewriter.run.workbench import Workbench
from tests.support.graphs import rule
from tests.support.runs import FASTER, SAME

WRONG = rule("Tanh(X)", "X", "X:[m,n]")
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")
CLAMP = rule("Relu(Relu(X))", "Relu(X)", "X:[m,n]")
RULES = (NEGATION, CLAMP)


def two_savings(folder: Path) -> Path:
    """Two independent savings: a double negation and a second clamp."""
    text = "a = Neg(x) b = Neg(a) c = Relu(b) d = Relu(c) y = Tanh(d)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {text} }}'
    onnx.save(parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def proposer_of(bench: Workbench) -> Proposer:
    return Proposer(bench, Quarantine(bench.task, bench.store, bench.notes), FamilyMemory(bench))


def proposals_of(bench: Workbench) -> Proposals:
    return proposer_of(bench).propose()


def checker_of(bench: Workbench, proposals: Proposals) -> tuple[Checker, Quarantine]:
    task, quarantine = bench.task, Quarantine(bench.task, bench.store, bench.notes)
    acceptance = Acceptance(task.model, open_in(task.model, task.model.graph, bench.folder), task.feeds(), "cpu")
    return Checker(bench, proposals.search, quarantine, acceptance), quarantine


def judge_of(bench: Workbench) -> Judge:
    return Judge(bench, Quarantine(bench.task, bench.store, bench.notes))


def decision_of(bench: Workbench, *, is_interrupted: bool = False) -> Decision:
    """For the best proposal, as if it had been measured."""
    proposals = proposals_of(bench)
    best = next(iter(proposals)).candidate
    judgement = Judgement(best, "", Error(1e-7, 1e-7), Error(0.0, 0.0), timings.Speed(FASTER, SAME, FASTER), is_interrupted)
    judgement = replace(judgement, assumed=proposals.search.assumed(best))
    return decided(bench, Predictions(9.0, 1, 2, 3, 4, 1), judgement)
