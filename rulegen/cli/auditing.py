"""The command that examines rules and operator properties again: audit."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from mugraph.lines import counted
from rulegen.cli.console import bar, jobs_option, name_of, output, rules_of, trust_option
from rulegen.properties.report import properties_report, recorded
from rulegen.share.audit import audit
from rules_db.files import is_text, write_text
from rules_db.history import Action
from rules_db.library import read_entries
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.properties import Axiom, load_axioms

__all__ = ["audit_command"]


@click.command("audit")
@click.argument("rules", required=False, metavar="[FILE|URL]")
@click.option("--deep", is_flag=True, help="Many more random tests, with fresh seeds.")
@click.option("--axioms", is_flag=True, help="Examine the operator properties instead, five ways; twenty minutes the first time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="With --axioms: write the table.")
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="FILE", help="With --axioms, if all stand: write a line for each."
)
@click.option(
    "--changed", is_flag=True, help="With --record: examine what FILE has not or in another text alone, and keep its other lines."
)
@click.option("--log", is_flag=True, help="Enter in the database's log which rules stood.")
@jobs_option
@click.option(
    "--seed", type=click.IntRange(0), help="Of the random tests; default: 0, and with --deep a fresh one, which is told."
)
@trust_option
def audit_command(
    rules: str | None,
    deep: bool,
    axioms: bool,
    json_file: Path | None,
    record: Path | None,
    changed: bool,
    jobs: int,
    seed: int | None,
    trust: Trust,
    log: bool,
) -> None:
    """Checks every rule again, whatever it claims.

    Text, guards, typing and certificate, by two checkers, then random tests and the float class. One line says why a
    rule fails; exit code 1 if one does. One that stands by tests alone fails without --trust tested. Without FILE or URL
    the shipped rules are audited.
    """
    if (json_file is not None or record is not None) and not axioms:
        raise click.UsageError("--json and --record go with --axioms")
    if changed and record is None:
        raise click.UsageError("--changed goes with --record")
    if log and (rules is None or is_text(rules)):
        raise click.UsageError("--log goes with a database")
    if axioms:
        _audit_axioms(rules, jobs, json_file, record, changed=changed)
        return
    if seed is None:
        seed = secrets.randbits(31) if deep else 0
    entries = read_entries(rules)
    with bar("audit") as show:
        report = audit(entries, seed=seed, progress=lambda done: show(done, len(entries)), deep=deep, jobs=jobs, trust=trust)
    console = output()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    names, bad = {entry.name for entry in entries}, {failure.rule for failure in report.failures}
    if log:
        with RuleStore.open(str(rules), create=False) as store:
            store.note(Action.CHECKED, {entry.identity: entry.text for entry in entries if entry.name not in bad})
    told = f" (random tests with --deep --seed {seed})" if deep else ""
    console.print(
        f"{counted(len(names), 'rule')} of {name_of(rules)}: {len(names - bad)} stand, {len(bad)} fail{told}", markup=False
    )
    if not report.passed:
        sys.exit(1)


def _audit_axioms(rules: str | None, jobs: int, json_file: Path | None, record_file: Path | None, *, changed: bool) -> None:
    """Validates the operator properties and counts who cites them (TASO, table 2)."""
    axioms = load_axioms()
    kept = _kept_rows(record_file, axioms) if changed and record_file is not None else {}
    asked = {name: axiom for name, axiom in axioms.items() if name not in kept}
    with bar("axioms") as show:
        report = properties_report(asked, rules_of(rules), processes=jobs, as_a_set=not changed, progress=show)
    table = Table(
        "property", "standing", "sizes", "cases", "parameters", "by Z3", "samples", "exact", "runs", "lemma", "cited by"
    )
    for record in report.properties:
        symbolic, numeric, runtime = record.symbolic, record.numeric, record.runtime
        table.add_row(
            record.name,
            record.standing,
            record.proved_at,
            f"{symbolic.cases}{' (all)' if symbolic.exhaustive else ''}",
            str(symbolic.parameters),
            str(symbolic.by_z3),
            str(numeric.hits),
            str(numeric.exact),
            str(runtime.runs),
            "lemma" if record.lemma else "",
            str(record.needed_by),
        )
    console = output()
    console.print(table)
    for record in report.properties:
        if record.why:
            console.print(f"{record.name}: {record.standing}: {record.why}", markup=False)
    for derivation in report.inconsistent:
        console.print(f"inconsistent: {derivation}", markup=False)
    if json_file is not None:
        write_text(str(json_file), json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    if record_file is not None and report.passed:
        write_text(record_file, report.to_record(kept))
    counts = Counter(record.standing for record in report.properties)
    counted = ", ".join(f"{number} {found}" for found, number in counts.items())
    lemmas = sum(bool(record.lemma) for record in report.properties)
    everywhere = sum(record.sizes.everywhere for record in report.properties)
    open_ = sum(not record.sizes.decided for record in report.properties)
    cases, samples = report.least
    least = f"each on {cases} cases at least or on all that there are, and on {samples} samples"
    told = (
        f"{counted}; {least}; {everywhere} at all sizes, {open_} not decided there" if report.properties else "nothing to examine"
    )
    together = f"{len(kept)} are recorded as they are" if changed else f"{lemmas} follow from others"
    console.print(f"{len(report.properties)} properties: {told}; {together}", markup=False)
    if not report.passed:
        sys.exit(1)


def _kept_rows(record_file: Path, axioms: Mapping[str, Axiom]) -> dict[str, dict[str, Any]]:
    """The lines of a record that speak of properties as they are; none of a file that is not there.

    Raises:
        ClickException: it is no record.
    """
    if not record_file.exists():
        return {}
    try:
        return recorded(record_file.read_text(encoding="utf-8"), axioms)
    except (OSError, ValueError) as problem:
        raise click.ClickException(f"{record_file}: {problem}; without --changed it is written anew") from None
