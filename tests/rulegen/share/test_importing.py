"""Import of substitutions from outside: TASO's files and the text form."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rulegen.cli.main import cli
from rulegen.share.audit import audit
from rulegen.share.imported import Imported, Status
from rulegen.share.importing import Importer
from rulegen.share.sources import import_file
from rulegen.taso.file import TasoKind as Kind
from rulegen.taso.file import decode, read_taso
from rules_db.exchange import RuleTextError, format_rule
from rules_db.files import StoreError
from rules_db.library import open_rules, shipped_rules
from tests.support.rules import prover
from tests.support.taso_files import (
    DERIVABLE,
    FALSE,
    GUARDED,
    I1,
    I2,
    K1,
    SCALAR,
    SUMS_FOR_AVERAGES,
    TRUE,
    X1,
    X2,
    Writer,
    built,
    message,
    record,
    varint,
)


def importer() -> Importer:
    return Importer([], "test.pb", prover=prover())


def examine(content: bytes) -> Imported:
    (one,) = decode(content)
    return importer().taso("0", one)


@pytest.mark.parametrize("name", TRUE)
def test_true_rules_are_new(name: str) -> None:
    found = examine(TRUE[name])
    assert found.status == Status.NEW, found
    assert found.counterexample is None and not any("=" in guard and "(" not in guard for guard in found.guards)
    assert audit(found.rules).passed
    assert found.rules[0].provenance == {"origin": "import", "file": "test.pb"}


@pytest.mark.parametrize("name", GUARDED)
def test_what_does_not_hold_always_gets_a_guard(name: str) -> None:
    content, guard = GUARDED[name]
    found = examine(content)
    assert found.status == Status.NEW and guard in found.guards, found
    assert found.counterexample is not None and found.counterexample["typing"]
    assert audit(found.rules).passed


@pytest.mark.parametrize("name", FALSE)
def test_false_rules_are_refuted(name: str) -> None:
    found = examine(FALSE[name])
    assert found.status == Status.REFUTED and not found.rules and not found.guards, found
    assert found.counterexample is not None and found.counterexample["shapes"]
    if "index" in found.counterexample:
        assert found.counterexample["source"] != found.counterexample["target"]


@cache
def knowing_what_ships() -> Importer:
    return Importer(shipped_rules(), "test.pb", prover=prover())


@pytest.mark.parametrize("name", DERIVABLE)
def test_what_tasos_generator_finds_follows_from_what_ships(name: str) -> None:
    (one,) = decode(DERIVABLE[name])
    found = knowing_what_ships().taso(name, one)
    assert found.status == Status.DERIVABLE, found


@pytest.mark.parametrize("name", SUMS_FOR_AVERAGES)
def test_what_tasos_generator_finds_wrongly_is_refuted(name: str) -> None:
    (one,) = decode(SUMS_FOR_AVERAGES[name])
    assert knowing_what_ships().taso(name, one).status == Status.REFUTED


def test_a_counterexample_can_be_repeated() -> None:
    found = examine(FALSE["swapped operands"])
    assert found.counterexample is not None
    x, w = (np.array(found.counterexample["inputs"][name]) for name in ("x1", "x4"))
    index = tuple(found.counterexample["index"])
    assert ((x @ w)[index], (w @ x)[index]) == (found.counterexample["source"], found.counterexample["target"])


def test_the_second_time_a_rule_is_derivable() -> None:
    both = importer()
    (one,) = decode(TRUE["associativity"])
    assert both.taso("0", one).status == Status.NEW
    assert both.taso("1", one).status == Status.DERIVABLE
    (scalar,) = decode(TRUE["scalar"])
    assert both.taso("2", scalar).status == Status.NEW


TIED: dict[str, tuple[bytes, set[str]]] = {
    "groups side by side": (
        GUARDED["groups side by side"][0],
        {"dim(x7, -3, n)", "dim(x8, -3, n)", "dim(x10, -4, q)", "dim(x11, -4, q)"},
    ),
    "relu of the parts of a matrix": (
        built(
            lambda s, t: (s(Kind.RELU, X1), s(Kind.RELU, X2), t.split(1, t(Kind.RELU, t.concat(1, 2, X1, X2)))),
            (0, 2, 0, 0),
            (1, 2, 0, 1),
        ),
        {"dim(x1, -2, m)", "dim(x2, -2, m)"},
    ),
    "two batches and one kernel": (
        built(
            lambda s, t: (s.conv(I1, K1), s.conv(I2, K1), t.split(0, t.conv(t.concat(0, 4, I1, I2), K1))),
            (0, 2, 0, 0),
            (1, 2, 0, 1),
        ),
        {"dim(x7, -2, k)", "dim(x8, -2, k)", "dim(x7, -1, p)", "dim(x8, -1, p)"},
    ),
}
"""Rules of which the target is well-typed for some of the sizes only for which the source is, and what ties these."""


@pytest.mark.parametrize("name", TIED)
def test_what_the_target_wants_of_sizes_is_a_guard_of_what_is_derivable(name: str) -> None:
    text, guards = TIED[name]
    (rule,), both = decode(text), importer()
    both.taso("0", rule)
    found = both.taso("1", rule)
    assert found.status == Status.DERIVABLE
    assert guards <= set(found.guards), found.guards


def test_what_holds_wherever_the_source_does_needs_no_guard() -> None:
    both = importer()
    for name in ("associativity", "scalar", "transpose of a product"):
        (rule,) = decode(TRUE[name])
        both.taso("0", rule)
        assert both.taso("1", rule).guards == ()


def test_sides_that_are_one_term_are_derivable() -> None:
    same = built(lambda s, t: (s(Kind.EW_ADD, X1, X2), t(Kind.EW_ADD, X2, X1)))
    assert examine(same).status == Status.DERIVABLE
    fused = built(lambda s, t: (s(Kind.RELU, s.conv(I1, K1)), t.conv(I1, K1, ACTI=2)))
    assert examine(fused).status == Status.DERIVABLE  # an activation is an operator of its own in ONNX


def test_what_holds_for_even_sizes_only_says_so() -> None:
    """At stride 2 a kernel of two needs no padding for an even size, and one place more for an odd one."""
    window = {"KERNEL_H": 2, "KERNEL_W": 2, "STRIDE_H": 2, "STRIDE_W": 2}
    same_as_valid = built(
        lambda s, t: (s.pool(Kind.POOL2D_MAX, I1, **window, PAD=0), t.pool(Kind.POOL2D_MAX, I1, **window, PAD=1))
    )
    found = examine(same_as_valid)
    assert "spatial sizes = even" in found.guards and not found.rules


def test_what_the_file_does_not_describe_is_undecided() -> None:
    found = examine(built(lambda s, t: (s(Kind.RESHAPE, X1), t(Kind.RESHAPE, X1))))
    assert found.status == Status.UNDECIDED and "RESHAPE" in found.reason
    huge = built(lambda s, t: (s.split(1, X1), t(Kind.SPLIT, X1, AXIS=1, NUM_OUTPUTS=2**30)))
    assert examine(huge).status == Status.UNDECIDED


def test_nested_splits_undo_the_latest_concatenation() -> None:
    def body(s: Writer, t: Writer) -> None:
        for x in (X1, X2, -3):
            s(Kind.RELU, x)
        whole = t(Kind.RELU, t.concat(1, 2, t.concat(1, 2, X1, X2), -3))
        outer = t.split(1, whole)
        t(Kind.SPLIT, (outer, 0), AXIS=1, NUM_OUTPUTS=2)

    found = examine(built(body, (0, 4, 0, 0), (1, 4, 0, 1), (2, 3, 0, 1)))
    assert found.status == Status.NEW, found


# Files


def test_broken_files_are_one_message(tmp_path: Path) -> None:
    good = TRUE["associativity"]
    (tmp_path / "good.pb").write_bytes(good)
    assert len(read_taso(tmp_path / "good.pb")) == 1
    contents = {
        "empty": b"",
        "truncated": good[:-3],
        "other": b"\x7fELF" + bytes(60),
        "text": b"once upon a time",
        "onnx": varint(1 << 3) + varint(8) + message(7, b"graph"),
        "forward": message(1, message(1, varint(1 << 3) + varint(Kind.RELU) + record(2, (3, 0))) + record(3, (0, 0, 0, 0))),
        "unknown operator": message(1, message(1, varint(1 << 3) + varint(99)) + record(3, (0, 0, 0, 0))),
        "no such output": message(1, record(3, (4, 0, 0, 0))),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError, match=name) as problem:
            import_file(tmp_path / name, [])
        assert "\n" not in str(problem.value)
    with pytest.raises(StoreError, match=r"cannot be read .*; give a file of TASO's or a \.rules file"):
        import_file(tmp_path / "absent.pb", [])


def test_odd_parameters_are_undecided_or_refuted() -> None:
    odd = [
        built(lambda s, t: (s(Kind.SPLIT, X1, AXIS=0, NUM_OUTPUTS=0), t(Kind.RELU, X1))),
        built(lambda s, t: (s(Kind.CONSTANT_POOL, KERNEL_H=2, KERNEL_W=3), t(Kind.MUL, I1, SCALAR))),
        built(lambda s, t: (s.conv(I1, K1, PAD=7), t.conv(I1, K1))),
        built(lambda s, t: (s.conv(I1, K1, ACTI=9), t.conv(I1, K1))),
        built(lambda s, t: (s(Kind.BATCHNORM, I1, X1, X1, X1, X1), s.matmul(X1, X2), t(Kind.RELU, I1))),
        built(lambda s, t: (s(Kind.EW_ADD, X1), t(Kind.RELU, X1))),
        built(lambda s, t: (s.concat(3, 2, X1, X2), t.concat(0, 2, X1, X2))),
    ]
    for content in odd:
        found = examine(content)
        assert found.status in (Status.UNDECIDED, Status.REFUTED) and not found.rules
        assert json.dumps(found.as_json()) and (found.reason or found.counterexample)


def test_batched_products() -> None:
    found = examine(built(lambda s, t: (s.matmul(s.conv(I1, K1), I2), t.matmul(t.conv(I1, K1), I2))))
    assert found.status == Status.DERIVABLE


def test_text_rules_are_proved_again(tmp_path: Path) -> None:
    shipped = next(rule for rule in shipped_rules() if "MatMul" in str(rule) and len(rule.certificate.instances) > 1)
    text = format_rule(shipped)
    without = re.sub(r"\n  proof .*", "", text)
    wrong = re.sub(r"\n  proof .*", "\n  proof  add.commutative{x=x, y=x}", text)
    false = "rule 0\n  let    x:float[m,m] y:float[m,m]\n  source MatMul(x, y)\n  target MatMul(y, x)\n"
    identity = re.search("has the identity ([0-9a-f]{16})", read_problem(tmp_path, false))
    assert identity is not None
    file = tmp_path / "some.rules"
    for content in (text, without, wrong):
        file.write_text(content)
        (found,) = import_file(file, [], prover=prover())
        assert found.status == Status.NEW and audit(found.rules).passed
        (again,) = import_file(file, found.rules, prover=prover())
        assert again.status == Status.DERIVABLE
    file.write_text(without + "\n" + false.replace("rule 0", f"rule {identity.group(1)}"))
    results = import_file(file, [], prover=prover())
    assert [result.status for result in results] == [Status.NEW, Status.REFUTED]


def test_a_rule_is_tried_in_floats_under_its_guards(tmp_path: Path) -> None:
    shipped = next(rule for rule in shipped_rules() if [c.predicate for c in rule.conditions] == ["fits", "all_true"])
    file = tmp_path / "mask.rules"
    file.write_text(format_rule(shipped))
    (found,) = import_file(file, [], prover=prover())
    assert found.status == Status.NEW, found.reason
    file.write_text(re.sub(r"\n  proof .*", "", format_rule(shipped)))
    (found,) = import_file(file, [], prover=prover())
    assert found.status == Status.NEW, found.reason


def read_problem(folder: Path, text: str) -> str:
    file = folder / "problem.rules"
    file.write_text(text)
    with pytest.raises(RuleTextError) as problem:
        import_file(file, [], prover=prover())
    return str(problem.value)


def test_truncated_text_is_one_message(tmp_path: Path) -> None:
    text = format_rule(shipped_rules()[0])
    assert "lacks target" in read_problem(tmp_path, text[: text.index("\n  target")] + "\n")


# The command


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)])


def test_only_proved_rules_enter(tmp_path: Path) -> None:
    file, database, report = tmp_path / "subst.pb", tmp_path / "rules.sqlite", tmp_path / "report.json"
    file.write_bytes(TRUE["associativity"] + FALSE["relu of a sum"] + TRUE["associativity"])
    dry = run(file, "--rules", database, "--json", report, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert not database.exists()
    found = json.loads(report.read_text())["rules"]
    assert [(one["id"], one["status"]) for one in found] == [("0", "new"), ("1", "refuted"), ("2", "derivable")]
    assert found[0]["guards"] and found[1]["counterexample"]["text"]
    result = run(file, "--rules", database)
    assert result.exit_code == 0 and "1 refuted" in result.output
    (entered,) = open_rules(str(database))
    assert entered.provenance["origin"] == "import" and found[0]["rules"] == [entered.id]
    before = file.read_bytes(), database.read_bytes()
    for read in (file, database):
        assert run(file, "--rules", database, "--json", read).exit_code != 0
    assert (file.read_bytes(), database.read_bytes()) == before
    again = run(file, "--rules", database, "--json", report)
    assert again.exit_code == 0
    assert {one["status"] for one in json.loads(report.read_text())["rules"]} == {"derivable", "refuted"}


def test_the_default_database_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "subst.pb"
    file.write_bytes(TRUE["greatest of a function"])
    before = len(shipped_rules())
    assert run(file).exit_code == 0
    assert (tmp_path / "cache" / "rules.sqlite").exists()
    assert len(shipped_rules()) == before


def test_bad_input_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "cut.pb").write_bytes(TRUE["associativity"][:-2])
    result = subprocess.run(
        [sys.executable, "-m", "rulegen", "import", str(tmp_path / "cut.pb"), "--rules", str(tmp_path / "r.sqlite")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and "cut.pb" in result.stderr
    assert not (tmp_path / "r.sqlite").exists()
    assert isinstance(run(tmp_path / "cut.pb", "--rules", tmp_path / "x.rules").exception, StoreError)
