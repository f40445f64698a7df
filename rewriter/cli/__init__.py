"""The commands ``onnx-superopt`` and ``superopt-costs``. Their functions here load as little as they can."""

from mugraph.starting import start_command

__all__ = ["costs_command", "optimize_command"]


def optimize_command() -> None:
    """The console script ``onnx-superopt``: a process that ends with the run, and whose memory the system takes back."""
    start_command("rewriter.cli.main", "run", collects_rarely=True)


def costs_command() -> None:
    """The console script ``superopt-costs``."""
    start_command("rewriter.cli.costs", "main")
