"""The console script ``superopt-diff``. It loads as little as it can."""

from mugraph.starting import start_command

__all__ = ["diff_command"]


def diff_command() -> None:
    """The console script ``superopt-diff``."""
    start_command("modeldiff.cli", "main")
