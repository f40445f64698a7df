"""Rules that were checked before are presumed to stand, read when they are asked for, and checked before they are applied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mugraph.terms.text import parse_term, parse_type
from rewriter import optimize
from rewriter.reference import InputError
from rules_db import remembered
from rules_db.entries import Entry, RuleBook, Usable, outlines_of
from rules_db.exchange import format_rule, format_rules
from rules_db.files import StoreError
from rules_db.library import open_presumed, presumed_rules, shipped_rules
from rules_db.remembered import PresumedRules, RememberedChecks
from rules_db.trust.certificate import Certificate, Evidence, Trust
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import landmarks
from tests.support.runs import lora

RULES = landmarks()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(folder: Path, rules: list[Rule]) -> str:
    path = folder / "some.rules"
    path.write_text(format_rules(rules))
    return str(path)


def opened(path: str) -> tuple[RuleBook, list[str]]:
    told = list[str]()
    return open_presumed(path, Trust.PROVED, told.append), told


def test_a_file_without_rules_is_told(tmp_path: Path, cache: Path) -> None:
    path = file_of(tmp_path, [])
    book, told = opened(path)
    assert not len(book) and told == [f"{path} holds no rule"]


def nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Usable, "of", lambda *_: pytest.fail("checked again"))


def test_a_text_is_checked_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, RULES)
    assert list(opened(path)[0]) == RULES
    with monkeypatch.context() as patch:
        nothing_is_checked(patch)
        patch.setattr(Entry, "read", lambda *_, **__: pytest.fail("read though nothing asks for it"))
        rules, told = opened(path)
        assert rules.ids == tuple(rule.id for rule in RULES) and told == []
    changed = [replace(RULES[0], provenance={"group": "other"}), *RULES[1:]]
    with monkeypatch.context() as patch:
        asked, of = list[str](), Usable.of

        def noted(entries: list[Entry], trust: Trust) -> Usable:
            asked.extend(entry.name for entry in entries)
            return of(entries, trust)

        patch.setattr(Usable, "of", noted)
        assert list(opened(file_of(tmp_path, changed))[0]) == changed
        assert asked == [RULES[0].id], "another text is another rule"
        patch.setattr(remembered, "stamp", lambda: "another")
        asked.clear()
        opened(path)
        assert len(asked) == len(RULES), "another checker may find otherwise"


def test_what_does_not_stand_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    false = replace(RULES[0], certificate=Certificate(()))
    path = file_of(tmp_path, [false, *RULES[1:]])
    for _ in range(2):
        rules, told = opened(path)
        assert rules.ids == tuple(rule.id for rule in RULES[1:])
        assert len(told) == 1 and f"1 skipped: {false.id} (not proved" in told[0]
    with pytest.raises(StoreError, match="is not proved"):
        opened(file_of(tmp_path, [false]))


def remember(rule: Rule, evidence: Evidence = Evidence.PROVED) -> None:
    """Writes into the cache folder that a rule stands."""
    RememberedChecks().put([(Entry("", format_rule(rule)), evidence)])


def test_a_presumption_is_confirmed_before_anything_rests_on_it(tmp_path: Path, cache: Path) -> None:
    false = replace(RULES[0], certificate=Certificate(()))
    remember(false)
    rules, _ = opened(file_of(tmp_path, [false, *RULES[1:]]))
    assert rules[0] == false and "not proved" in rules.objection(rules[0])
    assert rules.objection(rules[1]) == ""
    assert not RememberedChecks().path.exists(), "it says what is not so"
    assert opened(file_of(tmp_path, [false, *RULES[1:]]))[0].ids == tuple(rule.id for rule in RULES[1:])


@pytest.mark.parametrize(
    ("proof", "objection"),
    [
        ("no.such.property{", r"expected|unexpected|end"),
        ("no.such.property@01234567{x=a}", "not proved"),
        (str(RULES[1].certificate), "not proved"),
        (str(RULES[0].certificate).rpartition("; ")[0], "not proved|expected|end"),
        (re.sub("@[0-9a-f]", "@0", str(RULES[0].certificate), count=1), "not proved"),
        ("bounded(shapes<=2, ranks<=3) & probabilistic(tests=3, seed=0, delta=2^-60)", "tested|proved"),
    ],
    ids=["no text of a proof", "of no property", "of another rule", "in part", "of a changed property", "by tests"],
)
def test_a_forged_proof_is_found_out(cache: Path, proof: str, objection: str) -> None:
    """It is read late: of a rule that is remembered to stand, and of which nothing but the proof was changed."""
    text, begin = format_rule(RULES[0]), "  proof "
    lines = [begin + proof if line.startswith(begin) else line for line in text.splitlines()]
    entry = Entry("x.rules", "\n".join(lines) + "\n")
    assert entry.text != text
    RememberedChecks().put([(entry, Evidence.PROVED)])
    rules = PresumedRules.of([entry], Trust.PROVED)
    assert rules.ids == (RULES[0].id,), "presumed, so that the test says something"
    assert re.search(objection, rules.objection(rules[0]))
    assert not RememberedChecks().path.exists()


def test_another_identity_is_found_out(tmp_path: Path, cache: Path) -> None:
    text = format_rule(RULES[0]).replace(RULES[0].id, RULES[1].id)
    entry = Entry("x.rules", text)
    RememberedChecks().put([(entry, Evidence.PROVED)])
    rules = PresumedRules.of([entry], Trust.PROVED)
    assert "has the identity" in rules.objection(rules[0])


@pytest.mark.parametrize("more", [" more", "\u00a0more"])
def test_an_identity_that_says_more_is_found_out(more: str, cache: Path) -> None:
    """It is one to whoever reads the text and another to whoever lists it: nothing would be asked about it."""
    false = replace(RULES[0], certificate=Certificate(()))
    entry = Entry("x.rules", format_rule(false).replace(false.id, f"{false.id}{more}", 1))
    RememberedChecks().put([(entry, Evidence.PROVED)])
    rules = PresumedRules.of([entry], Trust.PROVED)
    assert rules.ids == (false.id,)
    with pytest.raises(StoreError, match="says that it is rule"):
        rules[0]
    assert not RememberedChecks().path.exists()


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"0" * 40 + b" proved\n", b"proved\n\n"])
def test_a_damaged_memory_says_nothing(tmp_path: Path, cache: Path, damage: bytes) -> None:
    path = file_of(tmp_path, RULES)
    opened(path)
    memory = RememberedChecks().path
    memory.write_bytes(damage)
    assert list(opened(path)[0]) == RULES
    memory.write_bytes(memory.read_bytes()[:-5])  # a kill cut off the last line
    assert list(opened(path)[0]) == RULES


def test_without_a_cache_folder_rules_are_checked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "file"))
    assert list(opened(file_of(tmp_path, RULES))[0]) == RULES
    assert "checked at each start" in caplog.text


def written(source: str, target: str, types: dict[str, str]) -> Rule:
    """A rule without a proof."""
    sides = ((parse_term(side),) for side in (source, target))
    return Rule(*sides, {name: parse_type(text) for name, text in types.items()}, (), FloatClass.EXACT, Certificate(()))


def test_operators_are_told_without_reading() -> None:
    """Else a rule would be missed that matches."""
    shipped, presumed = RuleBook(shipped_rules()), presumed_rules()
    assert presumed.ids == shipped.ids and presumed._sides == shipped._sides


def test_rules_that_others_make_room_for_are_among_those_that_may_apply() -> None:
    types = {"x": "[m]", "y": "[m]"}
    first = written("Mul(Neg(x), y)", "Neg(Mul(x, y))", types)
    second = written("Neg(Add(x, y))", "Sub(Neg(x), y)", types)
    third = written("Sqrt(Reciprocal(x))", "Reciprocal(Sqrt(x))", types)
    rules = RuleBook([Entry("", format_rule(rule)) for rule in (third, second, first)])
    assert rules.within({"Mul", "Neg"}) == [first]
    assert rules.within({"Mul", "Neg", "Add"}) == [second, first]
    assert rules.within({"Relu"}) == []


def test_what_cannot_apply_changes_nothing(tmp_path: Path, measured_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, written = lora(tmp_path / "lora.onnx"), list[bytes]()
    for name in ("some", "all"):
        outcome = optimize(model, tmp_path / f"{name}.onnx", provider="cpu", deterministic=True)
        assert outcome.fired and not outcome.cached_verdict
        written.append((tmp_path / f"{name}.onnx").read_bytes())
        monkeypatch.setattr(RuleBook, "within", lambda rules, operators: list(rules))
    assert written[0] == written[1]


def negated(path: Path) -> Path:
    """A model that computes Neg(Relu(x))."""
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_poisoned_memory_applies_no_rule_that_is_not_proved(tmp_path: Path, own_cache: Path) -> None:
    """It says that Neg(Relu(x)) = Neg(x), which is cheaper."""
    false = written("Neg(Relu(x))", "Neg(x)", {"x": "[m]"})
    remember(false)
    path, model = file_of(tmp_path, [false]), negated(tmp_path / "m.onnx")
    outcome = optimize(model, tmp_path / "o.onnx", rules=path, provider="cpu", budget=2.0, cache=tmp_path / "p.sqlite")
    assert not outcome.improved and any(f"rule {false.id} was remembered" in note for note in outcome.notes)
    assert not RememberedChecks().path.exists()
    assert np.array_equal(onnx.load(tmp_path / "o.onnx").graph.node[0].input, ["x"])


def test_no_more_rules_are_checked_than_there_is_time_for(tmp_path: Path, cache: Path) -> None:
    """The next run goes on from there."""
    rules = shipped_rules()[:150]
    path, left = file_of(tmp_path, rules), len(rules) - 64
    for known, still in ((64, left), (128, left - 64)):
        told = list[str]()
        book = open_presumed(path, Trust.PROVED, told.append, until=0.0)
        assert book.ids == tuple(rule.id for rule in rules[:known])
        assert told == [
            f"{known} of 150 rules of {path} were checked in time, and no other is used; another run goes on from there"
        ]
        assert isinstance(book, PresumedRules) and len(book.unchecked) == still
    told = list[str]()
    assert len(open_presumed(path, Trust.PROVED, told.append, until=0.0)) == 150 and not told


def test_a_run_without_time_says_which_rules_it_used(tmp_path: Path, cache: Path) -> None:
    path = file_of(tmp_path, shipped_rules()[:150])
    model = lora(tmp_path / "lora.onnx")
    outcome = optimize(model, tmp_path / "o.onnx", rules=path, budget=0, provider="cpu")
    assert any(note.startswith(f"64 of 150 rules of {path} were checked in time") for note in outcome.notes)
    last = shipped_rules()[149].id
    with pytest.raises(InputError, match=f"--explain {last}: there was no time to check that rule"):
        optimize(model, tmp_path / "o.onnx", rules=path, budget=0.001, provider="cpu", explain=last)
    outcome = optimize(model, tmp_path / "o.onnx", rules=path, clean=True, provider="cpu")
    assert not any("checked in time" in note for note in outcome.notes)


def test_heads_say_what_rules_do_and_no_rule_is_read_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [rule for rule in shipped_rules() if kernel_of_rule(rule) is not None]
    book = RuleBook([Entry("x.rules", format_rule(rule)) for rule in [*RULES, *kernels]])
    with monkeypatch.context() as patch:
        patch.setattr(Entry, "read", lambda *_, **__: pytest.fail("read though nothing asks for it"))
        outlines = book.outlines()
    of_rules = outlines_of([*RULES, *kernels])
    assert kernels and [outline.head for outline in outlines] == [outline.head for outline in of_rules]
    assert [outline.rule for outline in outlines] == [outline.rule for outline in of_rules] == kernels
    assert outlines[0].rule is outlines[0].rule is book[len(RULES)]


@pytest.mark.parametrize(
    ("old", "new", "where", "problem"),
    [
        ("rule ", "rule 0", "head", "expected 'rule ID'|says that it is rule"),
        ("  source ", "  source )", "head", "x.rules:4"),
        ('"scratch":[]', '"scratch":[{}]', "head", "x.rules:3: a μGraph that cannot be read"),
        ('"type":"float', '"type":"flaot', "head", "x.rules:3"),
        ("Kernel[digest='", "Kernel[digest='0", "rule", "is not the one in the line 'kernel'"),
        ('"statements":["', '"statements":["?', "rule", "x.rules:3"),
    ],
)
def test_a_kernel_that_is_remembered_and_cannot_be_read_is_forgotten(
    cache: Path, old: str, new: str, where: str, problem: str
) -> None:
    rule = next(rule for rule in shipped_rules() if kernel_of_rule(rule) is not None)
    text = format_rule(rule)
    entry = Entry("x.rules", text.replace(old, new, 1), identity=rule.id)
    assert entry.text != text
    RememberedChecks().put([(entry, Evidence.PROVED)])
    rules = PresumedRules.of([entry], Trust.PROVED)
    if where == "rule":
        assert len(outlines_of(rules.naming("Kernel"))) == 1
    with pytest.raises(StoreError, match=problem):
        [outline.rule for outline in outlines_of(rules.naming("Kernel"))]
    assert not RememberedChecks().path.exists()
