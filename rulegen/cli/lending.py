"""The command that does what others ask for: work."""

from __future__ import annotations

import time
from collections import Counter

import click

from mugraph.console import FiniteRange
from mugraph.lines import counted
from rulegen.cli.console import check_targets, jobs_option, name_of, output, progress_console
from rulegen.commons import Hand, Hands
from rules_db.units import UnitTable

__all__ = ["work_command", "work_told"]

_LOOK = 0.5
"""Seconds between two looks at a database where nothing waits, and between two lines of progress."""


@click.command("work")
@click.argument("database", metavar="URL")
@jobs_option
@click.option("--idle", type=FiniteRange(min=0), metavar="SECONDS", help="End when nothing waited for so long; default: never.")
def work_command(database: str, jobs: int, idle: float | None) -> None:
    """Does the work of growths that run elsewhere.

    'rulegen grow', 'mine' and 'ship' with --together URL leave units of work in a database; this does them, with every process of
    --jobs, until it is interrupted. It may be killed: what it was at is done by others.
    """
    check_targets(database)
    hands = Hands(database, jobs - 1)
    try:
        with Hand(database) as hand, progress_console().status("starting") as status:
            busy_at = told_at = time.monotonic()
            while idle is None or time.monotonic() - busy_at < idle:
                worked = hand.work()
                now = time.monotonic()
                if worked:
                    busy_at = now
                if now - told_at > _LOOK or not worked:
                    hands.bury(hand.table)
                    status.update(f"{name_of(database)}: {work_told(hand.table)}")
                    told_at = now
                if not worked:
                    time.sleep(_LOOK)
            told = work_told(hand.table)
    finally:
        hands.close()
    output().print(f"{name_of(database)}: {told}", markup=False)


def work_told(table: UnitTable) -> str:
    """A line about the work in a database, and how much those did who are there, by ``$ONNX_SUPEROPT_WHO``."""
    counts, workers = table.counts(), table.workers()
    there = counted(len(workers), "process", "processes")
    parts = [f"{counted(counts.waiting, 'unit')} waiting, {counts.held:,} worked at by {there}"]
    if counts.foreign:
        parts.append(f"{counts.foreign:,} are for another version of onnx-superopt")
    if counts.given_up:
        parts.append(f"{counts.given_up:,} were given up")
    parts.append(f"{counts.results:,} were done within a week")
    done: Counter[str] = Counter()
    for worker in workers:
        done[worker.name.rpartition(" ")[0] or "others"] += worker.done
    by = ", ".join(f"{name}: {count:,}" for name, count in sorted(done.items()))
    return ", ".join(parts) + (f" ({by})" if by else "")
