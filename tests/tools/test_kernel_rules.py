"""The kernels that ship are those that the rewriter builds of the programs of the Mirage paper."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rules_db.exchange import read_rules
from tools.mirage import programs
from tools.ship import kernel_rules

ROOT = Path(__file__).parents[2]


def test_the_shipped_kernels_are_what_is_built(tmp_path: Path) -> None:
    """In a process of its own: where one found an equal kernel before, that one's names are those of both."""
    file = tmp_path / "kernels.rules"
    subprocess.run([sys.executable, "-m", "tools.ship.kernel_rules", str(file)], check=True, cwd=ROOT)
    assert (ROOT / "rules_db" / "shipped" / "kernels.rules").read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    assert list(read_rules(file))


def test_every_program_becomes_one_kernel() -> None:
    for program in programs():
        assert list(kernel_rules.rules_of(program)), program.label


def test_make_rules_writes_all_that_ships() -> None:
    """The recipe names every producer; the groups are those of ``rulegen ship``."""
    recipe = re.search(r"^rules:.*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    for producer in (
        "tools.ship.probe",
        "rulegen ship",
        "tools.ship.spelled rules_db/shipped/spelled.rules",
        "rules_db/shipped/spelling.rules",
        "rules_db/shipped/kernels.rules",
        "checked",
    ):
        assert producer in recipe[1], producer
    headings = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in (ROOT / "rules_db" / "shipped").glob("*.rules")
    }
    grown = {stem for stem, line in headings.items() if line.startswith(f"# Grown, not written: rulegen grow --group {stem} ")}
    assert headings.keys() - grown == {"kernels", "spelled", "spelling"}
