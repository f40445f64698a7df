"""The rules to work with: which text was checked by which trusted base, what is checked at first use, and what is read when."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mugraph.terms.term import walk
from mugraph.terms.text import Parser
from rulegen.share.audit import audit
from rules_db import library
from rules_db.entries import Entry, RuleBook
from rules_db.exchange import format_rule, parse_rule, read_rules
from rules_db.files import StoreError
from rules_db.library import open_rules, record_of_check, shipped_rules
from rules_db.stamp import PACKAGES
from rules_db.trust.certificate import Evidence, Instance
from rules_db.trust.rule import Rule
from tests.support.graphs import rule
from tests.support.rules import landmarks

RULES = landmarks()
OTHER_STAMP = "0123456789abcdef"


def forget() -> None:
    library._read_shipment.cache_clear()
    library.presumed_rules.cache_clear()
    library._proved_rules.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


@pytest.fixture
def changed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a trusted base that is not that of the package's record."""
    monkeypatch.setattr(library, "stamp", lambda: OTHER_STAMP)
    return cache


@pytest.fixture
def used(changed: Path) -> Path:
    """The file in the cache that records that the shipped rules were checked, after a first use."""
    shipped_rules()
    (file,) = changed.glob("shipped-*")
    return file


def again() -> list[Rule]:
    """As another process would read the shipped rules."""
    forget()
    return shipped_rules()


def test_the_record_of_the_package_is_fresh() -> None:
    """Whoever changes a shipped rule, or what decides whether it stands, checks the rules and writes the record: make checked."""
    written = Path(library.__file__).parent / "shipped" / "checked.json"
    assert written.read_text(encoding="utf-8") == record_of_check()


def test_recorded_rules_are_not_checked_at_first_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: pytest.fail("checked"))
    assert library.are_proved() and len(shipped_rules()) == len(library.presumed_rules())
    assert not cache.exists()


def test_a_record_is_made_by_checking(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: ["no"])
    with pytest.raises(StoreError, match=r"the shipped rules: rule [0-9a-f]+ is not proved: no"):
        record_of_check()


@pytest.mark.parametrize("record", [None, b"", b"\xff", b'{"stamp": "x", "rules": "x"}', b"[]"])
def test_without_a_record_that_agrees_rules_are_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: bytes | None
) -> None:
    (tmp_path / "shipped").mkdir()
    if record is not None:
        (tmp_path / "shipped" / "checked.json").write_bytes(record)
    entries = library._shipped_entries()
    monkeypatch.setattr(library, "_shipped_entries", lambda: entries[:3])
    monkeypatch.setattr(library.resources, "files", lambda package: tmp_path)
    assert not library.are_proved() and len(again()) == 3
    assert len(list(cache.iterdir())) == 1 and library.are_proved()
    (tmp_path / "shipped" / "checked.json").write_text(record_of_check(), encoding="utf-8")
    forget()
    next(cache.iterdir()).unlink()
    assert library.are_proved() and len(again()) == 3 and not list(cache.iterdir())


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, which may be changed."""
    home = tmp_path_factory.mktemp("installation")
    for package in PACKAGES:
        shutil.copytree(Path(library.__file__).parents[1] / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    return home


@pytest.mark.parametrize(
    ("file", "addition", "told"),
    [
        ("rules_db/shipped/linear.rules", "", "True"),
        ("rules_db/shipped/linear.rules", "\n" + format_rule(rule("Tanh(X)", "X", "X:[m,n]")), "is not proved"),
        ("rules_db/shipped/mine.rules", format_rule(rule("Tanh(X)", "X", "X:[m,n]")), "is not proved"),
        ("rules_db/shipped/linear.rules", "\nrule 0123456789abcdef\n", "is the file truncated?"),
        ("rules_db/trust/check.py", "\n\ndef check(rule, axioms):\n    return ['not by this checker']\n", "not by this checker"),
        ("rules_db/axioms/activation.axioms", "\ntanh.nothing: Tanh(x) = x\n", "False"),
    ],
)
def test_what_was_edited_is_checked_at_first_use(installation: Path, cache: Path, file: str, addition: str, told: str) -> None:
    """A false rule in what ships is caught, and so is code of the trusted base to which a rule is none."""
    edited = installation / file
    whole = edited.read_bytes() if edited.exists() else None
    edited.write_bytes((whole or b"") + addition.encode())
    code = "from rules_db.library import are_proved, shipped_rules; print(are_proved()); shipped_rules()"
    found = subprocess.run([sys.executable, "-c", code], cwd=installation, capture_output=True, text=True)
    if whole is None:
        edited.unlink()
    else:
        edited.write_bytes(whole)
    assert found.stdout.split()[0] == str(not addition) and told in found.stdout + found.stderr
    assert found.returncode == (told not in ("True", "False"))
    assert bool(list(cache.glob("shipped-*"))) == (told == "False")


def test_shipped_rules_are_checked_at_first_use(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shipped_rules()
    (file,) = changed.iterdir()
    assert [rule.id for rule in read_rules(file)] == [rule.id for rule in first]
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: ["no"])
    assert again() == first, "checked again"
    file.unlink()
    with pytest.raises(StoreError, match="is not proved: no"):
        again()
    assert list(changed.iterdir()) == []


@pytest.mark.parametrize("damage", ["altered", "cut", "no text"])
def test_an_altered_record_of_shipped_rules_is_noticed(used: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    first = shipped_rules()
    assert not caplog.text
    whole = used.read_bytes()
    if damage == "altered":
        used.write_bytes(whole.replace(b"reassociates", b"exact"))
    elif damage == "cut":
        used.write_bytes(whole[:-1])
    else:
        used.write_bytes(b"\xff" + whole)
    assert again() == first
    assert str(used) in caplog.text and "written anew" in caplog.text
    caplog.clear()
    assert again() == first and not caplog.text


def test_a_rule_that_is_written_into_the_cache_is_never_read(used: Path) -> None:
    """The record says that a text was checked, and is no source of rules: whoever can write it adds none and changes none."""
    first = shipped_rules()
    wrong = rule("Tanh(X)", "X", "X:[m,n]")
    for text in (used.read_text() + "\n" + format_rule(wrong), format_rule(wrong), used.read_text().replace("Relu", "Tanh")):
        used.write_text(text)
        forget()
        assert not library.are_proved(), "the shipped rules are checked before anything rests on them"
        assert wrong.id not in library.presumed_rules().ids and list(library.presumed_rules()) == first
        assert not library.presumed_rules().named({wrong.id}) and again() == first
        assert library.are_proved()


def test_changed_shipped_text_gives_another_record(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped_rules()
    fewer = library._shipped_entries()[:3]
    monkeypatch.setattr(library, "_shipped_entries", lambda: fewer)
    assert len(again()) == 3 and len(list(used.parent.glob("shipped-*"))) == 2


def test_shipped_rules_do_without_a_cache_folder(changed: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed.write_text("in the way", encoding="utf-8")
    assert shipped_rules() == shipped_rules() != []
    assert len(caplog.records) == 1 and "ONNX_SUPEROPT_CACHE" in caplog.text


def test_first_uses_at_the_same_time_do_not_collide(cache: Path) -> None:
    code = f"from rules_db import library; library.stamp = lambda: '{OTHER_STAMP}'; print(len(library.shipped_rules()))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    told = {process.communicate()[0].decode() for process in processes}
    assert told == {f"{len(shipped_rules())}\n"}
    assert [file.suffix for file in cache.iterdir()] == [".rules"]


def test_presumed_rules_are_read_one_by_one(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, shipped, read = RuleBook(library._shipment().entries), shipped_rules(), list[str]()
    real = Entry.read

    def noted(entry: Entry, *, is_known: bool = False) -> Rule:
        read.append(entry.name)
        return real(entry, is_known=is_known)

    monkeypatch.setattr(Entry, "read", noted)
    names = [rule.id for rule in shipped]
    assert list(rules.ids) == names and not read
    assert rules.named({names[7], names[3], "none"}) == [shipped[3], shipped[7]] and read == [names[3], names[7]]
    assert rules[3] is rules[3] and rules[2:4] == shipped[2:4] and len(read) == 3
    having = rules.naming("Softmax")
    assert len(having) > 3 and len(read) == 3, "none is read before somebody asks for it"
    assert list(having[:2]) == [having[0], having[1]] and len(read) == 5
    assert list(having) == [rule for rule in shipped if any(t.op == "Softmax" for t in walk((*rule.source, *rule.target)))]
    assert library.presumed_rules() is library.presumed_rules()


def test_a_text_that_cannot_be_read_is_said_when_it_is_asked_for() -> None:
    whole, broken = (Entry("x.rules", format_rule(rule)) for rule in RULES[:2])
    rules = RuleBook([whole, replace(broken, text=broken.text.replace("  let", "  lot"))])
    assert rules[0] == RULES[0] and rules.ids == (RULES[0].id, RULES[1].id)
    with pytest.raises(StoreError, match="unknown field 'lot'"):
        rules[1]


def test_the_proof_of_a_known_rule_is_read_when_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying a rule asks for none; equality, copies and other processes do, or go on without."""
    rules = [rule for rule in shipped_rules() if rule.certificate.instances][::40]
    read = list[str]()
    real = Instance.parse

    def noted(parser: Parser) -> Instance:
        instance = real(parser)
        read.append(instance.axiom)
        return instance

    monkeypatch.setattr(Instance, "parse", noted)
    known = [parse_rule(format_rule(rule), is_known=True) for rule in rules]
    assert all(rule.certificate.evidence is Evidence.PROVED for rule in known) and not read
    assert all("instances" not in vars(pickle.loads(pickle.dumps(rule)).certificate) for rule in known) and not read
    assert known == rules and len(read) == sum(len(rule.certificate.instances) for rule in rules)
    assert known == rules and len(read) == sum(len(rule.certificate.instances) for rule in rules), "once"
    assert not hasattr(known[0].certificate, "another")


def test_shipped_rules_stand() -> None:
    rules = shipped_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    assert audit(rules).failures == ()
    assert open_rules() == rules
