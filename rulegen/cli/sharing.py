"""The commands that take rules in and give them out: import, export, merge."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from mugraph.lines import counted
from rulegen.cli.console import bar, jobs_option, name_of, output, rules_file, rules_of, store_rules, tell, trust_option
from rulegen.share.imported import Status, counts
from rulegen.share.merge import MergeReport, merge, move
from rulegen.share.sources import default_rules, existing_rules, import_file
from rules_db.entries import by_size
from rules_db.exchange import format_rules
from rules_db.files import check_writable, write_text
from rules_db.trust.certificate import Trust

__all__ = ["export_command", "import_command", "merge_command", "pull_command", "push_command"]


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rules", metavar="URL", help="Database that proved rules enter; default: the user's own, with the shipped rules.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write what became of each rule.")
@click.option("--dry-run", is_flag=True, help="Examine the rules, change no database.")
def import_command(file: Path, rules: str | None, json_file: Path | None, dry_run: bool) -> None:
    """Examines the rules of FILE and takes those that are proved.

    FILE is a .rules file or one of TASO's (protobuf). A rule is derivable from the database's rules, or new (proved, perhaps
    under guards), or refuted, or undecided. Only new ones enter. The user's own database is rules.sqlite in
    $ONNX_SUPEROPT_CACHE or the cache directory.
    """
    if json_file is not None:
        check_writable(json_file, [file, *([rules] if rules else [])])
    if rules is not None and "://" not in rules and not dry_run:
        check_writable(Path(rules))
    existing = existing_rules(rules, tell)
    with bar("import") as show:
        results = import_file(file, existing, progress=show)
    if json_file is not None:
        write_text(json_file, json.dumps({"rules": [result.as_json() for result in results]}, indent=1) + "\n")
    console, table = output(), Table("status", "rules")
    for result in results:
        if result.status in (Status.REFUTED, Status.UNDECIDED):
            why = result.reason or (result.counterexample or {}).get("text", "")
            console.print(f"{result.id} {result.status}: {result.source} = {result.target}: {why}", markup=False)
    for status, count in counts(results).items():
        table.add_row(str(status), str(count))
    console.print(table)
    new = [rule for result in results for rule in result.rules]
    where = rules or default_rules()
    if dry_run:
        console.print(f"{counted(len(new), 'rule')} would enter {escape(name_of(where))}")
        return
    if new and rules is None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
    if new:
        store_rules(console, where, new)


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.rules", callback=rules_file)
@click.option("--rules", metavar="URL", help="Rule database or .rules file; default: the shipped rules.")
def export_command(file: Path, rules: str | None) -> None:
    """Writes the rules of a database as text.

    Equal rules give equal text, byte for byte.
    """
    every = by_size(rules_of(rules))
    write_text(file, format_rules(every))
    output().print(f"{counted(len(every), 'rule')} in {file}", markup=False)


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, metavar="(FILE|URL)...")
@click.option(
    "--out", required=True, metavar="FILE|URL", help="A .rules file, written anew, or a database, which keeps what it holds."
)
@trust_option
@jobs_option
def merge_command(sources: tuple[str, ...], out: str, trust: Trust, jobs: int) -> None:
    """Unites several files and databases of rules.

    The order does not matter: of two rules with one identity the more careful float class and the shorter proof stay.
    Every rule is audited before it is taken; one that stands by tests alone is rejected
    without --trust tested. One line says why a rule is rejected; exit code 1 if one is.
    """
    with bar("merge") as show:
        report = merge(sources, out, jobs=jobs, trust=trust, progress=show)
    _tell_merged(report, out)


def _tell_merged(report: MergeReport, out: str) -> None:
    console = output()
    for failure in report.failures:
        console.print(str(failure), markup=False)
    console.print(f"{name_of(out)}: {report.new} new, {report.known} known, {report.rejected} rejected", markup=False)
    if report.rejected:
        sys.exit(1)


_own_option = click.option("--rules", metavar="URL", help="Your database; default: the user's own.")


@click.command("pull")
@click.argument("database", metavar="URL")
@_own_option
@trust_option
@jobs_option
def pull_command(database: str, rules: str | None, trust: Trust, jobs: int) -> None:
    """Takes in the rules of another database that yours lacks.

    Only these are read from there, and each is audited before it is taken; one line says why one is rejected, exit code 1
    if one is. What rules cost was measured on a device and stays with it.
    """
    _move(database, _own(rules), trust, jobs)


@click.command("push")
@click.argument("database", metavar="URL")
@_own_option
@trust_option
@jobs_option
def push_command(database: str, rules: str | None, trust: Trust, jobs: int) -> None:
    """Gives another database the rules of yours that it lacks.

    Each is audited before it is given; exit code 1 if one is rejected.
    """
    _move(_own(rules), database, trust, jobs)


def _own(rules: str | None) -> str:
    where = rules or default_rules()
    if rules is None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
    return where


def _move(source: str, target: str, trust: Trust, jobs: int) -> None:
    with bar("move") as show:
        report = move(source, target, jobs=jobs, trust=trust, progress=show)
    _tell_merged(report, target)
