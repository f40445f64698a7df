"""What attacks have in common on the command line: options, progress, what was found, the tally."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rules_db.library import open_rules
from tools.fuzz.campaign import CaseLimits, Examine, campaign, end_of
from tools.fuzz.fates import CaseReport, Fate, Tallies
from tools.fuzz.running import poison_memory

__all__ = ["attack", "shared_options"]

_EVERY = 10.0
"""Seconds between two lines of progress."""
_REASONS = 8
"""Most reasons that are printed of what is no finding."""


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that all attacks have."""
    options = (
        click.option("--jobs", default=2, show_default=True, help="Processes."),
        click.option("--minutes", default=float("inf"), help="Begin no further case after so many minutes."),
        click.option("--seconds", default=60.0, show_default=True, help="Most seconds that a case may take."),
        click.option("--memory", default=4096, show_default=True, help="Most MiB that a case may take."),
        click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for what was found."),
        click.option("--only", metavar="NAME", help="This case alone, in this process."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def attack(
    title: str,
    left: Iterable[str],
    examine: Examine,
    *,
    jobs: int,
    minutes: float,
    seconds: float,
    memory: int,
    out: Path | None,
    only: str | None,
    originals: Callable[[str], None] | None = None,
) -> None:
    """Runs cases, says how it goes, writes what was found, prints the tally; ends the process with its exit code.

    Args:
        originals: runs the original of a case in onnxruntime and nothing else: what ends a process there, or takes too
            much memory, is no defect of ours.
    """
    console = Console(width=160 if not sys.stdout.isatty() else None)
    poison_memory()
    if only is not None:
        shown: dict[str, bytes] = {}
        report = examine(only, shown.update)
        console.print(f"{only}: {report.fate}: {report.reason}\n{report.detail}", markup=False)
        if out is not None:
            _save(out, title, only, replace(report, files={**shown, **report.files}))
        sys.exit(1 if report.fate.is_failure else 0)
    open_rules()  # read and checked once, for all processes
    wanted = list(left)
    began = told = time.monotonic()
    tallies = Tallies()
    limits = CaseLimits(seconds, memory << 20)
    for name, report in campaign(wanted, examine, jobs, limits, began + 60 * minutes):
        if report.fate in (Fate.DIED, Fate.MEMORY) and originals is not None:
            alone = end_of(originals, name, limits)
            if alone.fate is report.fate:
                report = CaseReport(Fate.RUNTIME, f"the original by itself: {alone.fate}, {alone.reason}", files=report.files)
        tallies.add(name, report)
        if report.fate.is_finding:
            console.print(f"{report.fate}: {name}: {report.reason}", markup=False)
            if out is not None:
                _save(out, title, name, report)
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            console.print(f"{tallies.fates.total()} of {len(wanted)} in {told - began:.0f} s: {tallies.line()}", markup=False)
    _print(console, f"{title}: {tallies.fates.total()} of {len(wanted)} cases in {time.monotonic() - began:.0f} s", tallies)
    sys.exit(1 if tallies.failures else 0)


def _save(out: Path, title: str, name: str, report: CaseReport) -> None:
    """Writes what shows a case into a folder of its own."""
    folder = out / f"{report.fate}-{name}".replace("/", "-").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in report.files.items():
        (folder / file).write_bytes(content)
    again = f"python -m tools.fuzz {title} --only '{name}'"
    (folder / "report.txt").write_text(f"{again}\n{report.fate}: {report.reason}\n\n{report.detail}\n", encoding="utf-8")


def _print(console: Console, title: str, tallies: Tallies) -> None:
    table = Table("fate", "cases", "reason", "first case", title=title, title_justify="left")
    for fate in Fate:
        if not tallies.fates[fate]:
            continue
        table.add_row(str(fate), str(tallies.fates[fate]), "", "", style="red" if fate.is_failure else None)
        reasons = [(reason, count) for (of, reason), count in tallies.reasons.most_common() if of == fate]
        for reason, count in reasons if fate.is_finding else reasons[:_REASONS]:
            table.add_row("", str(count), reason[:120], tallies.examples[fate, reason])
    console.print(table)
    if tallies.rules:
        console.print(
            f"{len(tallies.rules)} rules fired; most often {', '.join(f'{r} {n}' for r, n in tallies.rules.most_common(5))}"
        )
    if tallies.counts:
        console.print(", ".join(f"{count} {what}" for what, count in tallies.counts.most_common()), markup=False)
