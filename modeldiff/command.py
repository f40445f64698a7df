"""The console script ``superopt-diff``. It loads as little as it can."""

from mugraph.interrupts import run_command

__all__ = ["diff_command"]


def diff_command() -> None:
    """The console script ``superopt-diff``."""
    run_command("modeldiff.cli", "main")
