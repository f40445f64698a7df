"""The command ``rulegen``. Its function here loads as little as it can."""

from mugraph.garbage import rare_collections
from mugraph.interrupts import run_command

__all__ = ["rulegen_command"]


def rulegen_command() -> None:
    """The console script ``rulegen``: a process that ends with the command."""
    with rare_collections():
        run_command("rulegen.cli.main", "main")
