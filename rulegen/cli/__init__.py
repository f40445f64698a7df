"""The command ``rulegen``. Its function here loads as little as it can."""

from mugraph.starting import start_command

__all__ = ["rulegen_command"]


def rulegen_command() -> None:
    """The console script ``rulegen``: a process that ends with the command."""
    start_command("rulegen.cli.main", "main", collects_rarely=True)
