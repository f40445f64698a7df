"""The documentation's examples run."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from modeldiff.cli import command as diff
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


def test_the_docs_name_every_option() -> None:
    page = (ROOT / "docs" / "options.md").read_text() + (ROOT / "docs" / "diff.md").read_text()
    documented = "".join(CliRunner().invoke(command, ["--help"]).output for command in (main, diff))
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", documented)) - {"--help", "--version"}):
        assert option in page, option


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([\w./-]+\.(?:md|png))[#)]", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
