"""The kernels that ship are those that the rewriter builds of the programs of the Mirage paper."""

from __future__ import annotations

import re
from pathlib import Path

from rules_db.exchange import read_rules
from tools.mirage import programs
from tools.ship import kernel_rules

ROOT = Path(__file__).parents[2]


def test_the_shipped_kernels_are_what_is_built() -> None:
    assert (ROOT / "rules_db" / "shipped" / "kernels.rules").read_text(encoding="utf-8") == kernel_rules.text()


def test_every_program_becomes_one_kernel(tmp_path: Path) -> None:
    for program in programs():
        assert list(kernel_rules.rules_of(program)), program.label
    kernel_rules.main([str(tmp_path / "kernels.rules")])
    assert list(read_rules(tmp_path / "kernels.rules"))


def test_make_rules_writes_all_that_ships() -> None:
    """The recipe names every producer; the groups are those of ``rulegen ship``."""
    recipe = re.search(r"^rules:.*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    for producer in (
        "tools.ship.probe",
        "rulegen ship",
        "rules_db/shipped/spelling.rules",
        "rules_db/shipped/kernels.rules",
        "checked",
    ):
        assert producer in recipe[1], producer
    headings = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in (ROOT / "rules_db" / "shipped").glob("*.rules")
    }
    grown = {stem for stem, line in headings.items() if line.startswith(f"# Grown, not written: rulegen grow --group {stem} ")}
    assert headings.keys() - grown == {"kernels", "spelling"}
