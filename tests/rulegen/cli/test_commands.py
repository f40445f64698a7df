"""The commands that grow and show rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rulegen.cli.main import cli
from rules_db.exchange import read_rules
from rules_db.files import StoreError
from rules_db.store import RuleStore
from rules_db.trust.properties import load_axioms
from tests.support.growths import SHIPPING, shipped_file, shipped_group


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rulegen", *arguments], capture_output=True, text=True, check=False)


def test_the_command_collects_garbage_rarely() -> None:
    code = """
import gc
from rulegen.cli import main, rulegen_command
before = gc.get_threshold()
main.main = lambda: print(gc.get_threshold()[0] > before[0])
rulegen_command()
print(gc.get_threshold() == before, gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "0"]


def test_grow_writes_text_and_database(tmp_path: Path) -> None:
    out, database = tmp_path / "g.rules", tmp_path / "g.db"
    arguments = ["grow", "--group", "guard", "--out", str(out), "--rules", str(database), "--unproved", str(tmp_path / "u")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == shipped_file("guard").read_bytes()
    with RuleStore.open(str(database)) as store:
        assert len(store) == len(read_rules(out))
    assert (tmp_path / "u").read_text().count(" = ") == (tmp_path / "u").read_text().count("\n")
    again = CliRunner().invoke(cli, ["grow", "--group", "guard", "--rules", str(database)])
    assert "0 new rules" in again.output


def test_grow_together_writes_the_same_text(tmp_path: Path) -> None:
    out, database = tmp_path / "g.rules", str(tmp_path / "g.db")
    grow = ["grow", "--group", "lowrank", "--together", database, "--jobs", "1", "--out", str(out)]
    result = CliRunner().invoke(cli, grow)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == shipped_file("lowrank").read_bytes()
    lent = CliRunner().invoke(cli, ["work", database, "--jobs", "1", "--idle", "0.1"])
    assert lent.exit_code == 0 and "0 units waiting, 0 worked at by 1 process" in lent.output
    assert "work: 0 units waiting" in CliRunner().invoke(cli, ["status", database]).output
    both = CliRunner().invoke(cli, [*grow, "--scheduler", "tcp://host:1"])
    assert both.exit_code == 2 and "two ways to share the work" in both.output
    nowhere = CliRunner().invoke(cli, ["work", str(tmp_path / "none" / "g.db")])
    assert isinstance(nowhere.exception, StoreError) and "its folder does not exist" in str(nowhere.exception)


def test_what_ships_derives_what_it_grew_from(tmp_path: Path) -> None:
    out = tmp_path / "beyond.rules"
    grow = ["grow", "--group", "taso-parts", "--max-ops", "2", "--jobs", "1", "--out", str(out)]
    for option, none in ((["--beyond-shipped"], True), ([], False)):
        result = CliRunner().invoke(cli, [*grow, *option])
        assert result.exit_code == 0, result.output
        assert (not read_rules(out)) == none


def test_what_is_shared_counts_once_where_that_is_asked(tmp_path: Path) -> None:
    out = tmp_path / "shared.rules"
    terms = []
    for option in ([], ["--shared"]):
        grow = ["grow", "--group", "conv-scale", "--max-ops", "2", "--jobs", "1", "--out", str(out)]
        result = CliRunner().invoke(cli, [*grow, *option])
        assert result.exit_code == 0, result.output
        assert out.read_text().startswith(f"# Grown, not written: {' '.join(['rulegen', *grow[:5], *option, '--seed 0'])} (")
        terms.append(int(next(line for line in result.output.splitlines() if "terms" in line).split()[3].replace(",", "")))
    assert terms[0] < terms[1]


def test_show_explains_the_rule() -> None:
    rule = shipped_group("lowrank")[1]
    result = CliRunner().invoke(cli, ["show", rule.id[:8]])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(cli, ["show", f"{rule.id}>"]).output == result.output, "a direction, as a run's summary has it"
    for part in (rule.id, "matmul.associative", "only if", "x has at least two dimensions", "group lowrank"):
        assert part in result.output


def test_stats_count_the_groups() -> None:
    result = CliRunner().invoke(cli, ["stats"], terminal_width=200)
    assert result.exit_code == 0 and all(group[:6] in result.output for group in SHIPPING)


def test_audit_passes_and_fails(tmp_path: Path) -> None:
    good = shipped_file("lowrank")
    assert CliRunner().invoke(cli, ["audit", str(good)]).exit_code == 0
    block = good.read_text().split("\n\n")[2]
    assert "; matmul.associative" in block
    bad = tmp_path / "bad.rules"
    bad.write_text(block.replace(block[block.index("; matmul.associative") : block.index("\n  from")], "") + "\n")
    result = CliRunner().invoke(cli, ["audit", str(bad)])
    assert result.exit_code == 1 and "certificate" in result.output and "1 fail" in result.output


def test_an_audit_of_what_has_changed_keeps_the_other_lines_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    axioms = {name: load_axioms()[name] for name in ("neg.involution", "relu.idempotent")}
    monkeypatch.setattr("rulegen.cli.auditing.load_axioms", lambda: axioms)
    row = {"digest": axioms["relu.idempotent"].digest, "standing": "proved", "cases": 12345}
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"relu.idempotent": row, "gone.property": row, "neg.involution": row}))
    arguments = ["audit", "--axioms", "--record", str(record), "--changed", "--jobs", "1"]
    result = CliRunner().invoke(cli, arguments, terminal_width=200)
    assert result.exit_code == 0 and "1 properties: 1 proved" in result.output and "1 are recorded" in result.output, (
        result.output
    )
    rows = json.loads(record.read_text())
    assert rows.pop("neg.involution")["digest"] == axioms["neg.involution"].digest and rows == {"relu.idempotent": row}
    monkeypatch.setattr("rulegen.properties.report._examine", None)
    assert "0 properties: nothing to examine; 2 are" in CliRunner().invoke(cli, arguments, terminal_width=200).output
    record.write_text("[]")
    refused = CliRunner().invoke(cli, arguments)
    assert refused.exit_code == 1 and f"{record}: not a record" in refused.output
    assert CliRunner().invoke(cli, ["audit", "--axioms", "--changed"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("grow", "--group", "lin"), "unknown group 'lin'; known groups: linear"),
        (("grow",), "Missing option '--group'"),
        (
            ("explain", "62f8f1f102e3adb1>"),
            "62f8f1f102e3adb1> is no equation, but a rule's identity: 'rulegen show 62f8f1f102e3adb1'",
        ),
        (
            ("prove", "62f8f1f102e3adb1"),
            "62f8f1f102e3adb1 is no equation, but a rule's identity: 'rulegen show 62f8f1f102e3adb1' says why it holds",
        ),
        *(
            (
                (command, place),
                f"{place} is no equation such as 'Relu(Relu(x)) = Relu(x)', but holds rules: 'rulegen audit {place}' checks them",
            )
            for command in ("prove", "explain")
            for place in ("missing.rules", str(Path(__file__)), "mysql://host/rules")
        ),
        (("prove", "Relu(x)"), "column 8: expected '='"),
        (("show", "zzzz"), "no rule of the shipped rules begins with 'zzzz'"),
        (("stats", "missing.db"), "there is no such rule database"),
        (("audit", "missing.rules"), "missing.rules"),
        (("grow", "--group", "lowrank", "--out", "/nonexistent/x.rules"), "/nonexistent/x.rules: cannot be written"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr
