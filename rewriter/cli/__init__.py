"""The commands ``onnx-superopt`` and ``superopt-costs``. Their functions here load as little as they can."""

from mugraph.garbage import rare_collections
from mugraph.interrupts import run_command

__all__ = ["costs_command", "optimize_command"]


def optimize_command() -> None:
    """The console script ``onnx-superopt``: a process that ends with the run, and whose memory the system takes back."""
    with rare_collections():
        run_command("rewriter.cli.main", "run")


def costs_command() -> None:
    """The console script ``superopt-costs``."""
    run_command("rewriter.cli.costs", "main")
