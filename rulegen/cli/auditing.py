"""The command that examines rules and operator properties again: audit."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from pathlib import Path

import click
from rich.table import Table

from rulegen.cli.console import bar, jobs_option, name_of, output
from rulegen.properties.report import properties_report
from rulegen.share.audit import audit
from rules_db.files import write_text
from rules_db.library import open_rules, read_entries

__all__ = ["audit_command"]


@click.command("audit")
@click.argument("rules", required=False, metavar="[FILE|URL]")
@click.option("--deep", is_flag=True, help="Many more random tests, with fresh seeds.")
@click.option("--axioms", is_flag=True, help="Examine the operator properties instead, three ways; minutes the first time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="With --axioms: write the table.")
@jobs_option
@click.option(
    "--seed", type=click.IntRange(0), help="Of the random tests; default: 0, and with --deep a fresh one, which is told."
)
def audit_command(rules: str | None, deep: bool, axioms: bool, json_file: Path | None, jobs: int, seed: int | None) -> None:
    """Checks every rule again, whatever it claims.

    Text, guards, typing and certificate, by two checkers, then random tests and the float class. One line says why a
    rule fails; exit code 1 if one does. Without FILE or URL the shipped rules are audited.
    """
    if json_file is not None and not axioms:
        raise click.UsageError("--json goes with --axioms")
    if axioms:
        _audit_axioms(rules, jobs, json_file)
        return
    if seed is None:
        seed = secrets.randbits(31) if deep else 0
    entries = read_entries(rules)
    with bar("audit") as show:
        report = audit(entries, seed=seed, progress=lambda done: show(done, len(entries)), deep=deep, jobs=jobs)
    console = output()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    names, bad = {entry.name for entry in entries}, {failure.rule for failure in report.failures}
    told = f" (random tests with --deep --seed {seed})" if deep else ""
    console.print(f"{len(names)} rules of {name_of(rules)}: {len(names - bad)} stand, {len(bad)} fail{told}", markup=False)
    if not report.passed:
        sys.exit(1)


def _audit_axioms(rules: str | None, jobs: int, json_file: Path | None) -> None:
    """Validates the operator properties and counts who cites them (TASO, table 2)."""
    with bar("axioms") as show:
        report = properties_report(rules=open_rules(rules), processes=jobs, progress=show)
    table = Table("property", "symbolic", "cases", "parameters", "by Z3", "numeric hits", "of samples", "lemma", "cited by")
    for record in report.properties:
        symbolic, numeric = record.symbolic, record.numeric
        table.add_row(
            record.name,
            symbolic.verdict,
            f"{symbolic.cases}{' (all)' if symbolic.exhaustive else ''}",
            str(symbolic.parameters),
            str(symbolic.by_z3),
            "refuted" if numeric.counterexample else str(numeric.hits),
            str(numeric.samples),
            "lemma" if record.lemma else "",
            str(record.needed_by),
        )
    console = output()
    console.print(table)
    for record in report.properties:
        if record.symbolic.reason:
            console.print(f"{record.name}: {record.symbolic.verdict}: {record.symbolic.reason}", markup=False)
        if record.numeric.counterexample:
            console.print(f"{record.name}: refuted: {record.numeric.counterexample}", markup=False)
    for derivation in report.inconsistent:
        console.print(f"inconsistent: {derivation}", markup=False)
    if json_file is not None:
        write_text(str(json_file), json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    verdicts = Counter(record.symbolic.verdict for record in report.properties)
    counted = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    lemmas = sum(bool(record.lemma) for record in report.properties)
    console.print(f"{len(report.properties)} properties: {counted}; {lemmas} follow from others", markup=False)
    if not report.passed:
        sys.exit(1)
