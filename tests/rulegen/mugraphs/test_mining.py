"""Kernels for models: searched goal by goal, resumed, written as rules, and used by the rewriter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.onnx import load
from rewriter import optimize
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.triton.compile import Architecture
from rulegen.cli.main import cli
from rulegen.commons import SharedWorkers
from rulegen.journal import Journal
from rulegen.mugraphs import mining
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.lax import SubprogramBounds
from rulegen.mugraphs.mining import goals_and_parts, mine_kernels, searched
from rulegen.mugraphs.search import KernelSearch
from rulegen.workers import UnitWorkers, open_workers
from rules_db.exchange import format_rule, parse_rule, read_rules
from rules_db.files import StoreError
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from tools.mirage import programs


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    program = next(program for program in programs() if program.label == "LoRA:1")
    path = tmp_path / "lora.onnx"
    onnx.save(program.model(), path)
    return path


HOW = KernelSearch(EnumerationLimits(6))


def test_a_model_gives_rules_for_its_subprograms_and_their_parts(lora: Path) -> None:
    found = mine_kernels({"lora": load(lora).graph}, SubprogramBounds(), HOW)
    whole = found[0]
    assert whole.operators == 4 and whole.rules and len(found) > 1
    keys = [(str(one.goal.roots), str(one.goal.types)) for one in found]
    assert len(set(keys)) == len(keys)
    assert all(rule.target[0].op == KERNEL for one in found for rule in one.rules)


def test_a_search_that_was_stopped_goes_on_where_it_was(lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, path = {"lora": load(lora).graph}, tmp_path / "kernels.journal"
    searched = 0

    def stopped(*arguments: object) -> object:
        nonlocal searched
        searched += 1
        if searched == 3:
            raise KeyboardInterrupt
        return genuine(*arguments)  # type: ignore[arg-type]

    genuine = mining.search
    monkeypatch.setattr(mining, "search", stopped)
    with pytest.raises(KeyboardInterrupt):
        mine_kernels(graphs, SubprogramBounds(), HOW, Journal(path))
    searched = 10
    again = mine_kernels(graphs, SubprogramBounds(), HOW, Journal(path))
    assert searched == 10 + len(again) - 2
    monkeypatch.setattr(mining, "search", genuine)
    fresh = mine_kernels(graphs, SubprogramBounds(), HOW)
    assert [rule.id for one in again for rule in one.rules] == [rule.id for one in fresh for rule in one.rules]


def test_the_command_line(lora: Path, tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "found.rules"
    done = CliRunner().invoke(cli, ["mine", "--kernels", str(lora), "--block-ops", "6", "--out", str(file)])
    assert done.exit_code == 0, done.output
    rules = read_rules(file)
    assert rules and f"{len(rules)} rules, {len(rules)} of them proved" in done.output
    assert CliRunner().invoke(cli, ["audit", str(file)]).exit_code == 0
    assert not list(own_cache.rglob("*.journal"))
    open_ = CliRunner().invoke(cli, ["mine", "--kernels", str(lora), "--unproved", str(file)])
    assert open_.exit_code == 2 and "--unproved and --after are for spellings" in open_.output
    wrong = CliRunner().invoke(cli, ["mine", "--kernels", str(lora), "--device", "abacus"])
    assert wrong.exit_code == 2 and "abacus" in wrong.output


def test_the_rewriter_uses_what_was_found_beside_what_it_lowers(lora: Path, tmp_path: Path, own_cache: Path) -> None:
    """Rules that were found apply by matching and are priced like any other; they take nothing away from lowering."""
    rules = [rule for one in mine_kernels({"lora": load(lora).graph}, SubprogramBounds(), HOW) for rule in one.rules]
    options = {"device": "h200", "deterministic": True, "architectures": (Architecture(90),)}
    lowered = optimize(lora, tmp_path / "lowered.onnx", rules=[], **options)
    outcome = optimize(lora, tmp_path / "found.onnx", rules=rules, **options)
    nodes = [node for node in onnx.load(tmp_path / "found.onnx").graph.node if node.domain == KERNEL_DOMAIN]
    assert nodes and outcome.predicted_after < 0.95 * lowered.predicted_after


def test_a_worse_kernel_that_was_found_does_not_keep_the_lowering_s_away(lora: Path, own_cache: Path) -> None:
    graph = load(lora).graph
    (whole, *_) = mine_kernels({"lora": graph}, SubprogramBounds(), HOW)
    own = {d.id for d in KernelProposals().proposals(graph)}
    beside = {d.id for d in KernelProposals(lambda: whole.rules).proposals(graph)}
    assert own < beside


def test_several_processes_find_what_one_finds(lora: Path, tmp_path: Path) -> None:
    graphs = {"lora": load(lora).graph}
    with open_workers(2) as several, SharedWorkers(str(tmp_path / "rules.db"), 2) as shared:
        one, *others = (mine_kernels(graphs, SubprogramBounds(), HOW, workers=w) for w in (None, several, shared))
    for two in others:
        assert [list(map(format_rule, found.rules)) for found in one] == [list(map(format_rule, found.rules)) for found in two]
    assert any(found.rules for found in one)


class Lying(UnitWorkers):
    """A machine that sends its rules without proofs, or nothing that is known."""

    count = 2

    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        self._change = change

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        return (self._change(function(unit)) for unit in units)


def test_a_worker_cannot_bring_a_kernel_that_does_not_stand(lora: Path, tmp_path: Path) -> None:
    """Nor does it stand in the journal afterwards."""

    def unproved(record: dict[str, Any]) -> dict[str, Any]:
        texts = [format_rule(replace(parse_rule(text), certificate=Certificate(()))) for text in record["rules"]]
        return {**record, "rules": texts}

    graphs = {"lora": load(lora).graph}
    for change, message in ((unproved, r"rule \w+, which is not taken: not proved"), (len, "what is no result of search_data")):
        with pytest.raises(StoreError, match=f"a worker sent {message}"):
            mine_kernels(graphs, SubprogramBounds(), HOW, Journal(tmp_path / "journal"), workers=Lying(change))
    found = mine_kernels(graphs, SubprogramBounds(), HOW, Journal(tmp_path / "journal"))
    rules = [rule for outcome in found for rule in outcome.rules]
    assert rules and all(check(rule, load_axioms()) == [] for rule in rules)


def test_time_for_all_goals_ends_the_search(lora: Path) -> None:
    goals = goals_and_parts({"lora": load(lora).graph}, SubprogramBounds())
    assert list(searched(goals, HOW, Journal(), seconds=0.0)) == []
    assert len(list(searched(goals, HOW, Journal(), seconds=60.0))) == len(goals) > 1


def test_a_journal_tells_models_of_different_sizes_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes decide which kernels fit and which come first: what was found at others is not what is found at these."""
    searched = 0

    def counted(*arguments: object) -> object:
        nonlocal searched
        searched += 1
        return genuine(*arguments)  # type: ignore[arg-type]

    genuine = mining.search
    monkeypatch.setattr(mining, "search", counted)
    journal = Journal(tmp_path / "kernels.journal")
    counts = []
    for batch in (1, 8, 8):
        program = next(program for program in programs() if program.label == f"LoRA:{batch}")
        found = mine_kernels({"lora": load(program.model()).graph}, SubprogramBounds(), HOW, journal)
        counts.append((searched, len(found)))
    first, second, again = counts
    assert first[0] == first[1] and second[0] == first[1] + second[1] and again[0] == second[0]
