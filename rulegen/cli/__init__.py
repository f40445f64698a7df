"""The command ``rulegen``. Its function here loads as little as it can."""

from mugraph.interrupts import run_command

__all__ = ["rulegen_command"]


def rulegen_command() -> None:
    """The console script ``rulegen``."""
    run_command("rulegen.cli.main", "main")
