"""Kernels for models: searched goal by goal, resumed, written as rules, and used by the rewriter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.blocks.sizes import specialised
from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.terms.shape import DataType, evaluate_dim
from mugraph.terms.term import format_term, substitute, var
from rewriter import optimize
from rewriter.cost.devices import get_device
from rewriter.cost.store import ProfileStore
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.custom import CustomKernels
from rewriter.kernels.places import end_of, once
from rewriter.kernels.proposals import KernelProposals
from rewriter.search.candidate import Candidate
from rewriter.search.match import Match
from rewriter.search.moves import Moves
from rulegen.cli.main import cli
from rulegen.commons import SharedWorkers
from rulegen.journal import Journal
from rulegen.mugraphs import mining
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.lax import SubprogramBounds
from rulegen.mugraphs.mining import goals_and_parts, mine_kernels, searched
from rulegen.mugraphs.search import KernelSearch
from rulegen.workers import UnitWorkers, open_workers
from rules_db.entries import Entry, KernelOutline, Usable, outlines_of
from rules_db.exchange import format_rule, format_rules, parse_rule, read_rules
from rules_db.files import StoreError
from rules_db.library import open_presumed
from rules_db.trust import interpreted
from rules_db.trust.certificate import Certificate, Trust
from rules_db.trust.check import check
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tests.support.fusing import graph_of, moves_for
from tools.mirage import programs


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    program = next(program for program in programs() if program.label == "LoRA:1")
    path = tmp_path / "lora.onnx"
    onnx.save(program.model(), path)
    return path


HOW = KernelSearch(EnumerationLimits(6))


def test_a_model_gives_rules_for_its_subprograms_and_their_parts(lora: Path) -> None:
    found = list(mine_kernels({"lora": load(lora).graph}, SubprogramBounds(), HOW))
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
        list(mine_kernels(graphs, SubprogramBounds(), HOW, Journal(path)))
    searched = 10
    again = list(mine_kernels(graphs, SubprogramBounds(), HOW, Journal(path)))
    assert searched == 10 + len(again) - 2
    monkeypatch.setattr(mining, "search", genuine)
    fresh = list(mine_kernels(graphs, SubprogramBounds(), HOW))
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
    own = {d.id for d, _ in KernelProposals().proposals(graph)}
    beside = {d.id for d, _ in KernelProposals(lambda: whole.rules).proposals(graph)}
    assert own < beside


@pytest.fixture
def found(lora: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, list[Rule]]:
    """A model, and the rules that were found for it; nothing is lowered beside them."""
    graph = load(lora).graph
    rules = [rule for one in mine_kernels({"lora": graph}, SubprogramBounds(), HOW) for rule in one.rules]
    monkeypatch.setattr("rewriter.kernels.proposals.propose", lambda graph: iter(()))
    return graph, rules


def test_of_what_was_found_only_what_is_used_is_checked_and_proved(
    found: tuple[Graph, list[Rule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, rules = found
    moves, checked, proofs, taken = moves_for(), list[str](), list[Kernel](), list[Sequence[Match]]()
    plain_proof, plain_take = interpreted.why_not_proved, Moves.take

    def proved(kernel: Kernel) -> str | None:
        proofs.append(kernel)
        return plain_proof(kernel)

    def take(self: Moves, candidate: Candidate, matches: Sequence[Match]) -> Candidate | None:
        taken.append(matches)
        return plain_take(self, candidate, matches)

    monkeypatch.setattr(interpreted, "why_not_proved", proved)
    monkeypatch.setattr(Moves, "take", take)
    proposals = KernelProposals(lambda: rules, lambda rule: not checked.append(rule.id))  # type: ignore[func-returns-value]
    children = list(proposals.children(moves, moves.start(graph)))
    used = {move.direction.rule.provenance["kernel"] for child in children for move in child.moves}
    assert used and used <= set(checked) and len(set(proofs)) <= len(checked) == len(set(checked)) < len(rules)
    known = list(proposals.known(graph))
    sources = {direction.pattern for direction, _ in known}
    assert len(sources) < len(known) == len({id(direction) for direction, _ in known})
    tried = {(matches[0].direction.pattern, matches[0].direction.rule.provenance["kernel"]) for matches in taken}
    assert len(tried) <= len(sources), "of kernels for one place the cheapest is tried"
    assert len(taken) <= 3 * len(sources), "alone, behind others, and once more without one that may be in the way"
    assert all(not check(move.direction.rule, load_axioms()) for child in children for move in child.moves)


def test_where_the_cheapest_of_what_was_found_does_not_stand_the_next_is_used(found: tuple[Graph, list[Rule]]) -> None:
    graph, rules = found
    moves = moves_for()
    start = moves.start(graph)
    first = next(KernelProposals(lambda: rules).children(moves, start))
    wrong = first.moves[0].direction.rule.provenance["kernel"]
    proposals = KernelProposals(lambda: rules, lambda rule: rule.id != wrong)
    second = next(proposals.children(moves, start))
    assert second.moves[0].direction.pattern == first.moves[0].direction.pattern and first.cost <= second.cost < start.cost
    assert wrong not in {move.direction.rule.provenance["kernel"] for move in second.moves}
    assert proposals.reasons[f"stored rule {wrong} does not stand"]
    assert not list(KernelProposals(lambda: rules, lambda rule: False).children(moves, start))


def test_what_was_found_serves_places_of_several_sizes(found: tuple[Graph, list[Rule]]) -> None:
    """Of several kernels for one place that match, by their operators, at places of other sizes, too."""
    _, rules = found
    several = [rule for rule in rules if rule.source == rules[0].source]
    kernel = kernel_of_rule(several[0])
    assert kernel is not None and len(several) > 1
    shapes, texts = dict[str, tuple[int, ...]](), list[str]()
    for letter, size in (("p", 32), ("q", 64)):
        sized = specialised(kernel, dict.fromkeys(kernel.symbols, size))
        shapes |= {letter + t.name: tuple(int(str(d)) for d in t.type.shape) for t in sized.inputs}
        renamed = {t.name: var(letter + t.name) for t in sized.inputs}
        texts += [format_term(substitute(root, renamed)) for root in sized.body]
    moves = moves_for()
    start = moves.start(graph_of(shapes, {}, texts))
    best = min(KernelProposals(lambda: several).children(moves, start), key=lambda child: child.cost)
    assert [node.op for node in best.graph.references] == [KERNEL] * 2


def test_what_was_found_for_one_element_type_is_tested_before_it_serves_another(
    found: tuple[Graph, list[Rule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rules = found
    single = [rule for rule in rules if "Add" in str(rule.source)]
    kernel = kernel_of_rule(single[0])
    assert kernel is not None
    sizes = {name: 32 for name in kernel.symbols}
    shapes = {t.name: tuple(int(str(evaluate_dim(d, sizes))) for d in t.type.shape) for t in kernel.inputs}
    wide = graph_of(shapes, {}, [format_term(root) for root in specialised(kernel, sizes).body], DataType.FLOAT)
    tested: list[Kernel] = []
    monkeypatch.setattr("rewriter.kernels.fuse.kernels.interpret", lambda kernel, *_: tested.append(kernel) or "y0 differs")
    moves, proposals = moves_for(), KernelProposals(lambda: single)
    assert list(proposals.known(wide)) and not tested
    assert not list(proposals.children(moves, moves.start(wide))) and tested
    assert all(tensor.type.dtype == DataType.FLOAT for kernel in tested for tensor in kernel.inputs)


def test_a_file_of_what_was_found_is_checked_once_and_again_where_it_is_used(
    found: tuple[Graph, list[Rule]], tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, rules = found
    path = tmp_path / "found.rules"
    path.write_text(format_rules(rules))
    assert len(open_presumed(str(path), Trust.TESTED, print)) == len({rule.id for rule in rules})
    with monkeypatch.context() as patch:
        patch.setattr(Usable, "of", lambda *_: pytest.fail("checked again"))
        presumed = open_presumed(str(path), Trust.TESTED, print)
    device, store = get_device("h200"), ProfileStore(None, "h200")
    moves, checked = moves_for(), list[str]()
    plain = Usable.of
    monkeypatch.setattr(Usable, "of", lambda entries, *rest: [checked.append(e.name) for e in entries] and plain(entries, *rest))
    stored = presumed.naming(KERNEL)
    for refused in (frozenset[str](), frozenset(rule.id for rule in stored)):

        def objection(rule: Rule, refused: frozenset[str] = refused) -> str:
            return "it was tampered with" if rule.id in refused else presumed.objection(rule)

        custom = CustomKernels(device, store, {}, stored, (), False, measures=False, objection=objection)
        children = list(custom.children(moves, moves.start(graph)))
        custom.close()
        assert bool(children) is not bool(refused)
        assert any("remembered as one that stands, but it is not used: it was tampered with" in n for n in custom.notes) is bool(
            refused
        )
    assert 0 < len(set(checked)) < len(stored), "what is not used is not read again"


def test_of_what_was_found_only_that_is_read_whose_places_have_their_turn(
    found: tuple[Graph, list[Rule]], tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules are matched by their heads; what is proposed is the same as of rules that were read."""
    graph, rules = found
    path = tmp_path / "found.rules"
    path.write_text(format_rules(rules))
    open_presumed(str(path), Trust.TESTED, print)
    presumed, read, plain = open_presumed(str(path), Trust.TESTED, print), list[str](), Entry.read

    def noted(entry: Entry, *, is_known: bool = False) -> Rule:
        read.append(entry.name)
        return plain(entry, is_known=is_known)

    monkeypatch.setattr(Entry, "read", noted)
    assert not presumed.within({node.op for node in graph.nodes()}) and not read, "no kernel is a move by itself"
    outlines = outlines_of(presumed.naming(KERNEL))
    assert [outline.head.id for outline in outlines] == list(presumed.ids) and not read

    def proposed(given: Sequence[Rule | KernelOutline], model: Graph) -> list[object]:
        moves = moves_for()
        children = KernelProposals(lambda: given).children(moves, moves.start(model))
        return [(child.cost, [(move.direction.id, move.sites) for move in child.moves]) for child in children]

    assert not proposed(outlines, graph_of({"x": (4, 4)}, {}, ["Sin(Sin(x))"])) and not read, "there is no place for any"
    part = min(rules, key=lambda rule: len(str(rule.source)))
    shapes = {name: tuple(32 for _ in type_.shape) for name, type_ in part.types.items()}
    smaller = graph_of(shapes, {}, [format_term(substitute(root, {}, dims=dict.fromkeys("abc", 32))) for root in part.source])
    proposed(outlines, smaller)
    assert 0 < len(read) < len(rules), "the whole has no place in a part of it"
    assert proposed(outlines, graph) == proposed(rules, graph) != []
    assert len(read) == len(set(read)), "once each"


def test_a_place_is_one_whatever_the_order_of_the_operands_of_a_sum(found: tuple[Graph, list[Rule]]) -> None:
    graph, rules = found
    matched = [matches for _, matches in KernelProposals(lambda: rules).known(graph)]
    assert matched and all(len({end_of(match) for match in matches}) == len(matches) for matches in matched)
    assert len(once([*matched[0], *matched[0]])) == len(matched[0])


def test_several_processes_find_what_one_finds(lora: Path, tmp_path: Path) -> None:
    graphs = {"lora": load(lora).graph}
    with open_workers(2) as several, SharedWorkers(str(tmp_path / "rules.db"), 2) as shared:
        one, *others = (list(mine_kernels(graphs, SubprogramBounds(), HOW, workers=w)) for w in (None, several, shared))
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
            list(mine_kernels(graphs, SubprogramBounds(), HOW, Journal(tmp_path / "journal"), workers=Lying(change)))
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
        found = list(mine_kernels({"lora": load(program.model()).graph}, SubprogramBounds(), HOW, journal))
        counts.append((searched, len(found)))
    first, second, again = counts
    assert first[0] == first[1] and second[0] == first[1] + second[1] and again[0] == second[0]
