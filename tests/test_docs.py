"""The documentation's examples run."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from rewriter.cli.main import main
from rules_db.exchange import format_rule
from rules_db.library import shipped_rules
from tools.trusted_base import counted

ROOT = Path(__file__).parent.parent


def test_the_tour_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tour.md").read_text(), re.S)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), "docs/tour.md", "exec"), {})


def test_the_example_of_cleaning_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "cleaning.md").read_text(), re.S)
    exec(compile(block, "docs/cleaning.md", "exec"), {})


def test_the_rule_shown_is_the_rule_shipped() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    (shown,) = re.findall(r"```\n(rule .*?)```", page, re.S)
    assert shown.strip() in {format_rule(rule).strip() for rule in shipped_rules()}


def test_the_trusted_base_is_counted_as_it_is() -> None:
    """Every trusted file belongs to a part; lines may be out by a tenth before the table is to be printed again."""
    rows = dict(re.findall(r"^\| ([a-z][^|]*) \| `[^|]*\| (\d+ \| [\d,]+) \|$", (ROOT / "docs" / "rules.md").read_text(), re.M))
    counts = counted()
    assert rows.keys() == counts.keys()
    for part, (files, lines) in counts.items():
        told_files, told_lines = (int(number.replace(",", "")) for number in rows[part].split(" | "))
        again = f"{part}: {files} files of {lines} lines; python -m tools.trusted_base prints the table of docs/rules.md"
        assert told_files == files and abs(told_lines - lines) <= max(60, lines // 10), again


def test_the_readme_names_every_option() -> None:
    readme = (ROOT / "README.md").read_text()
    documented = CliRunner().invoke(main, ["--help"]).output
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", documented)) - {"--help", "--version"}):
        assert option in readme, option
