"""The console, the progress bar, and the options and lines that several commands share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mugraph.console import result_console
from mugraph.files import is_device
from mugraph.lines import counted
from rulegen.commons import SharedWorkers
from rulegen.workers import Cluster, UnitWorkers, open_workers
from rules_db.databases import PATIENCE, without_password
from rules_db.files import StoreError, check_writable, is_text, write_text
from rules_db.history import LogEntry
from rules_db.library import open_rules
from rules_db.store import RuleStore
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.rule import Rule

__all__ = [
    "ShowProgress",
    "bar",
    "check_targets",
    "fresh_option",
    "history_of",
    "jobs_option",
    "name_of",
    "output",
    "print_rules",
    "progress_console",
    "rules_file",
    "rules_file_option",
    "rules_of",
    "scheduler_option",
    "store_rules",
    "tell",
    "together_option",
    "trust_option",
    "working",
    "write_rules",
]


def output() -> Console:
    """The console for results."""
    return result_console(highlight=False, soft_wrap=True)


def progress_console() -> Console:
    """The console for everything else, on standard error."""
    return Console(stderr=True, highlight=False)


_REDRAWN, _TOLD = 0.5, 20.0
"""Seconds between two states of a bar, and between two lines where there is no terminal."""
_DRAWING = threading.Lock()
"""Held while something is drawn: a process that is forked meanwhile would have the console's lock for ever."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_DRAWING.acquire, after_in_parent=_DRAWING.release, after_in_child=_DRAWING.release)


class ShowProgress(Protocol):
    """Shows how far something has come."""

    def __call__(self, done: int, total: int | None, words: str = "") -> None:
        """
        Args:
            total: ``None`` where that is not known yet.
            words: what goes on.
        """


@contextmanager
def bar(title: str) -> Iterator[ShowProgress]:
    """A bar on a terminal, elsewhere a line now and then, also while nobody tells it anything."""
    shown = _Shown(title, progress_console())
    with shown.drawn():
        yield shown.show


class _Shown:
    """What is shown of a work.

    Args:
        title: of the work.
        console: to draw on.
    """

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._console, self._is_over = title, console, threading.Event()
        self._began = self._told = time.monotonic()
        self._line = title
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        # It draws when told to, under a lock: processes are forked while it is there.
        is_shown = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not is_shown)
        self._task = self._progress.add_task(title, total=None)

    def show(self, done: int, total: int | None, words: str = "") -> None:
        """As :class:`ShowProgress` says."""
        counted = f"{done:,} of {total:,}" if total is not None else f"{done:,}" if done else ""
        self._line = ": ".join(filter(None, (self._title, words, counted)))
        self._progress.update(self._task, completed=done, total=total, description=escape(self._line))
        self._draw()

    def _draw(self) -> None:
        """Draws, if that is due."""
        now, is_shown = time.monotonic(), self._console.is_terminal
        if now - self._told < (_REDRAWN if is_shown else _TOLD):
            return
        with _DRAWING:
            self._told = now
            if is_shown:
                self._progress.refresh()
            else:
                self._console.print(f"{self._line} ({now - self._began:.0f} s)", markup=False, soft_wrap=True)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draws now and then, in a thread of its own, as long as the block goes on."""
        drawing = threading.Thread(target=self._go_on, daemon=True)
        with self._progress:
            drawing.start()
            try:
                yield
            finally:
                self._is_over.set()
                drawing.join()

    def _go_on(self) -> None:
        while not self._is_over.wait(_REDRAWN):
            self._draw()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


jobs_option = click.option(
    "--jobs", type=click.IntRange(1), default=_cores, show_default="one per core", metavar="N", help="Processes to work in."
)


fresh_option = click.option("--fresh", is_flag=True, help="Do not resume: forget what an earlier run finished.")

scheduler_option = click.option(
    "--scheduler", metavar="ADDRESS", help="Work on a Dask cluster instead: its scheduler, such as tcp://host:8786."
)


together_option = click.option(
    "--together",
    metavar="URL",
    help="Share the work through a database: with who runs the same command, or 'rulegen work URL'.",
)


@contextmanager
def working(jobs: int, scheduler: str | None, together: str | None = None) -> Iterator[UnitWorkers]:
    """The workers that the options name; tells where a cluster shows what goes on. Raises StoreError."""
    if together is not None:
        if scheduler is not None:
            raise click.UsageError("--together and --scheduler are two ways to share the work; give one")
        check_targets(together)
        with SharedWorkers(together, jobs) as shared:
            yield shared
        return
    with open_workers(jobs, scheduler) as workers:
        if isinstance(workers, Cluster):
            tell(f"{workers.count} threads work at {scheduler}; its dashboard: {workers.dashboard}")
        yield workers


def _trust(context: click.Context, parameter: click.Parameter, word: str) -> Trust:
    return Trust(word)


trust_option = click.option(
    "--trust",
    type=click.Choice([str(trust) for trust in Trust]),
    default=str(Trust.PROVED),
    show_default=True,
    callback=_trust,
    help="Take rules from outside that are proved only, or also those that stand by tests.",
)


def rules_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """For a path that text is written to: whoever reads it knows it by its ending."""
    if path is not None and path.suffix != ".rules" and not is_device(path):
        known = "does not end in .rules, by which text files are known; a database is given with --rules"
        raise click.BadParameter(f"'{without_password(str(path))}' {known}")
    try:
        if path is not None:
            is_text(path)
    except StoreError as problem:
        raise click.BadParameter(str(problem)) from None
    return path


rules_file_option = click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE.rules", callback=rules_file, help="Write the rules as text."
)


def name_of(rules: str | None) -> str:
    """A database or file as messages name it."""
    return without_password(rules) if rules else "the shipped rules"


def check_targets(rules: str | None, *files: Path | None) -> None:
    """Raises StoreError where a database or a file cannot be written: before the work, not after it."""
    for file in filter(None, files):
        check_writable(file)
    if rules is not None:
        with RuleStore.open(rules) as store:
            store.check_writable()


def tell(sentence: str) -> None:
    """On standard error."""
    progress_console().print(sentence, markup=False, soft_wrap=True)


def rules_of(url: str | None) -> list[Rule]:
    """The rules to show or to work with, those that stand by tests too; tells what this version cannot use. Raises StoreError."""
    return open_rules(url, Trust.TESTED, tell)


def history_of(url: str | None, identity: str) -> list[LogEntry]:
    """What the log of a database says of a rule; nothing of a file. Raises StoreError."""
    if url is None or is_text(url):
        return []
    with RuleStore.open(url, create=False) as store:
        return [entry for entry in store.history() if entry.rule == identity]


def store_rules(console: Console, url: str, rules: Sequence[Rule], trust: Trust = Trust.PROVED) -> None:
    """Enters rules in a database and says how many are new there, and how many of them stand by tests alone."""
    with RuleStore.open(url, patience=PATIENCE) as store:
        console.print(f"{counted(store.add_all(rules, trust), 'new rule')} in {escape(name_of(url))}")
    unproved = sum(rule.certificate.evidence is not Evidence.PROVED for rule in rules)
    if unproved:
        console.print(f"{unproved} of them are not proved: a run uses this database with '--trust tested' only")


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """A line for each rule."""
    for rule in rules:
        console.print(f"{rule.id} {rule.float_class:<12} {rule}", markup=False)


def write_rules(console: Console, out: Path, text: str, rules: Sequence[Rule]) -> None:
    """Writes rules to a file, and says so. Raises StoreError where that cannot be."""
    write_text(out, text)
    console.print(f"{counted(len(rules), 'rule')} written to {out}", markup=False)
