"""Attacks as a user starts them: in a process of their own, since they fork."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["attack"]


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m tools.fuzz`` with one process for the cases."""
    command = [sys.executable, "-m", "tools.fuzz", *arguments, "--jobs", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=False)
