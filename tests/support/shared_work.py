"""Units of work for tests, and processes that do them until they are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import rulegen.grow.stages  # noqa: F401  # whose units these processes do, too
from rulegen.commons import TASKS, Hand, unit_of_work
from rules_db import databases

__all__ = ["LEASE", "TASKS", "asked", "lend", "noted", "poisonous", "shy", "started_hand", "tripled"]

LEASE = 2.0
"""Seconds for which units are held here."""


@unit_of_work
def tripled(number: int) -> int:
    return 3 * number


@unit_of_work
def noted(unit: list[str]) -> str:
    """Takes a while, and leaves a line."""
    folder, name = unit
    with (Path(folder) / "asked").open("a") as file:
        file.write(f"{name}\n")
    time.sleep(0.05)
    return name


def asked(folder: Path) -> list[str]:
    """What was asked of :func:`noted`, as often as it was."""
    return (folder / "asked").read_text().split()


@unit_of_work
def poisonous(number: int) -> int:
    """Ends any process but a test's."""
    if "PYTEST_CURRENT_TEST" not in os.environ:
        os._exit(9)
    raise MemoryError("not here either")


@unit_of_work
def shy(number: int) -> int:
    raise ValueError(f"not {number}")


def started_hand(url: str) -> subprocess.Popen[str]:
    """A process that does a database's units, which is there."""
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    hand = subprocess.Popen(
        [sys.executable, "-c", "import sys; from tests.support.shared_work import lend; lend(sys.argv[1])", url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**environment, "PYTHONPATH": str(root)},
    )
    assert hand.stdout is not None and hand.stdout.readline() == "ready\n"
    return hand


def lend(url: str) -> None:
    """Does units without end."""
    databases.LONGEST_PAUSE = LEASE
    with Hand(url, lease=LEASE) as hand:
        print("ready", flush=True)
        while True:
            if not hand.work():
                time.sleep(0.02)
