"""The command line of the rule generator: sharing rules, one line for every mistake, and no trace of what was interrupted."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rulegen.cli import growing, showing
from rulegen.cli.main import cli, main
from rules_db.entries import by_size
from rules_db.exchange import format_rules, read_rules
from rules_db.library import shipped_rules
from rules_db.store import RuleStore

SHIPPED = growing.SHIPPED


def invoke(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, list(map(str, arguments)), terminal_width=200)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that the console script writes for a mistake, without its name."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "argv", ["rulegen", *map(str, arguments)])
        main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("rulegen: ")


def test_export_and_merge_give_the_same_text(tmp_path: Path) -> None:
    text, base, back = (tmp_path / name for name in ("a.rules", "b.db", "c.rules"))
    result = invoke("export", text)
    assert result.output == f"{len(shipped_rules()):,} rules in {text}\n"
    assert text.read_text() == format_rules(by_size(shipped_rules()))
    few = tmp_path / "few.rules"
    few.write_text(format_rules(read_rules(text)[:5]))
    assert invoke("merge", few, few, "--out", base).output == f"{base}: 5 new, 5 known, 0 rejected\n"
    assert invoke("merge", base, "--out", back).exit_code == 0
    assert back.read_bytes() == few.read_bytes()
    assert invoke("export", "--rules", base, text).exit_code == 0
    assert text.read_bytes() == few.read_bytes()


def test_audit_and_merge_say_what_fails_and_exit_with_1(tmp_path: Path) -> None:
    rules = read_rules(SHIPPED / "lowrank.rules")
    damaged = tmp_path / "damaged.rules"
    damaged.write_text(format_rules(rules).replace("  class", "  clash", 1))
    out = tmp_path / "out.rules"
    for arguments in (("audit", damaged), ("merge", damaged, "--out", out)):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert f"rule {rules[0].id}: text: {damaged}:" in result.output and "unknown field 'clash'" in result.output
    assert f"{len(rules) - 1} stand, 1 fail" in invoke("audit", damaged).output
    assert f"{len(rules) - 1} new, 0 known, 1 rejected" in result.output
    assert read_rules(out) == by_size(rules[1:])


def test_a_deep_audit_tells_its_seed() -> None:
    text = SHIPPED / "lowrank.rules"
    told = {invoke("audit", "--deep", text).output.split("--seed ")[1] for _ in range(2)}
    assert len(told) == 2
    assert "--deep --seed 7)" in invoke("audit", "--deep", "--seed", "7", text).output
    assert "seed" not in invoke("audit", text).output


def test_a_database_that_several_versions_write_is_kept_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, rules = tmp_path / "shared.db", read_rules(SHIPPED / "lowrank.rules")[:4]
    with RuleStore.open(str(path)) as store:
        store.add_all(rules)
    damaged, foreign, sound, unwanted = (rule.id for rule in rules)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rules SET text = replace(text, 'class ', 'klass ') WHERE id IN (?, ?)", (damaged, foreign))
        (text,) = connection.execute("SELECT text FROM rules WHERE id = ?", (foreign,)).fetchone()
        written = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        connection.execute("UPDATE rule_writers SET version = '99.0', text_digest = ? WHERE id = ?", (written, foreign))
    status = invoke("status", path).output
    assert f"4 rules in {path}: 2 usable, 2 not" in status and "99.0, trusted code" in status and f"{foreign}: " in status
    for command in (("stats", path), ("export", "--rules", path, tmp_path / "x.rules")):
        assert invoke(*command).exit_code == 0
    assert {rule.id for rule in read_rules(tmp_path / "x.rules")} == {sound, unwanted}
    assert f"rule {'0' * 16} is not there" in fails(capsys, "remove", path, "0" * 16, sound)
    assert invoke("remove", path, unwanted).output == f"1 rule removed from {path}\n"
    pruned = invoke("prune", path).output
    assert pruned.startswith(f"{damaged}: ") and f"1 rule removed from {path}; 1 that other versions wrote stay" in pruned
    assert f"1 rule removed from {path}" in invoke("prune", "--newer", path).output
    with RuleStore.open(str(path)) as store:
        assert {*store.texts()} == {sound}


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "grow", "--group", "linaer")
    assert "unknown group 'linaer'; known groups: " in line and line.endswith("; did you mean 'linear'?")
    known = shipped_rules()[0].id[:8]
    mistyped = known[:3] + known[4] + known[3] + known[5:]
    line = fails(capsys, "show", mistyped)
    assert line.startswith(f"no rule of the shipped rules begins with '{mistyped}'; did you mean '{known}'? --rules names ")
    assert fails(capsys, "adit") == "No such command 'adit'; 'rulegen --help' tells what there is"
    assert fails(capsys, "prove") == "Missing argument 'EQUATION'; 'rulegen prove --help' tells what there is"
    for command in (("grow", "--group", "linear"), ("mine", __file__)):
        assert "does not end in .rules" in fails(capsys, *command, "--out", tmp_path / "rules.db")
    assert "does not end in .rules" in fails(capsys, "export", tmp_path / "text")
    assert "cannot be written" in fails(capsys, "export", tmp_path / "no" / "x.rules")
    assert "there is no such rule database" in fails(capsys, "merge", tmp_path / "no.db", "--out", tmp_path / "x.db")
    assert "there is no such rule database" in fails(capsys, "audit", tmp_path / "no.db")
    newer = tmp_path / "newer.db"
    RuleStore.open(str(newer)).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE superopt_schema SET version = 99")
    for arguments in (("audit", newer), ("stats", newer), ("export", "--rules", newer, tmp_path / "x.rules")):
        assert "written by a newer version" in fails(capsys, *arguments)
    assert sorted(os.listdir(tmp_path)) == ["newer.db"]


@pytest.mark.parametrize("option", ["--out", "--unproved", "--rules"])
def test_what_cannot_be_written_is_told_before_growing(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "grow_parts", lambda *arguments, **options: pytest.fail("grown first"))
    folder = tmp_path / "folder.rules"
    folder.mkdir()
    for place in (tmp_path / "no" / "x.rules", folder):
        line = fails(capsys, "grow", "--group", "guard", option, place)
        assert str(place) in line and "give another path" in line


def test_our_own_mistakes_are_not_called_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "rules_of", lambda *arguments: {}["missing"])
    monkeypatch.setattr(sys, "argv", ["rulegen", "stats"])
    with pytest.raises(KeyError):
        main()


@pytest.mark.parametrize(
    "arguments",
    [("audit", "--deep", "--jobs", "2"), ("grow", "--group", "linear", "--out", "x.rules", "--rules", "x.db")],
)
def test_an_interrupt_is_quiet_and_leaves_nothing_half_written(arguments: tuple[str, ...], tmp_path: Path) -> None:
    # A shell has its background jobs ignore the signal, and their children with them: here it is heard, as at a terminal.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    loaded = "import rulegen.cli.main; from rulegen.cli import rulegen_command"
    code = f"{heard}; {loaded}; print('ready', flush=True); rulegen_command()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env={**os.environ, "ONNX_SUPEROPT_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.8)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert (out + err).strip() == ""
    assert not (tmp_path / "x.rules").exists() and {p.name for p in tmp_path.iterdir()} <= {"x.db", "cache"}
    if (tmp_path / "x.db").exists():
        with RuleStore.open(str(tmp_path / "x.db")) as store:
            assert len(store) == 0


def test_help_names_every_command_in_a_line_under_a_heading() -> None:
    sections = [section.splitlines() for section in invoke("--help").output.split("\n\n") if section.lstrip("\n")[0] != " "]
    headings, listed = zip(*[(heading, lines) for heading, *lines in sections[2:]], strict=True)
    context = click.Context(cli)
    names = cli.list_commands(context)
    assert len({*headings}) >= 3 and [line.split()[0] for lines in listed for line in lines] == names
    for name in names:
        command = cli.get_command(context, name)
        assert command is not None and command.name == name
        assert "..." not in command.get_short_help_str(60), name


def test_a_command_imports_what_it_needs() -> None:
    code = "import click; from rulegen.cli.main import cli; cli.get_command(click.Context(cli), 'grow')"
    others = "import sys; print([name for name in ('rulegen.mine', 'rulegen.mugraphs', 'rulegen.spell') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}; {others}"], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
