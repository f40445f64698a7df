"""Work of others that nothing bounds, in a process of its own with limits of time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import resource

__all__ = ["LimitExceeded", "memory_limit", "run_limited"]

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux tells the limit of a container, of both versions of control groups."""


class LimitExceeded(Exception):
    """The process was ended, or ended itself without a result; says how, as the end of a sentence.

    Args:
        crashed: it ended with a signal that nobody sent.
    """

    def __init__(self, how: str, *, crashed: bool = False) -> None:
        super().__init__(how)
        self.crashed = crashed


def run_limited(script: Path, given: bytes, *, seconds: float, memory: int) -> bytes:
    """What a script writes to its standard output for what it is given on its standard input.

    It is started anew, not forked: other threads may hold locks. It gets its limit of memory as the one argument and sets it
    itself (see :mod:`mugraph.onnx.inference_process`).

    Args:
        script: a Python file that imports nothing of this project.
        given: bytes for its standard input.
        seconds: after which it is ended.
        memory: bytes that it may have.

    Raises:
        LimitExceeded: there is no result.
    """
    command = [sys.executable, "-P", str(script), str(memory)]  # without the script's folder among the places of modules
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise LimitExceeded(f"took more than {seconds:g} s") from None
    except OSError as problem:
        raise LimitExceeded(f"could not be started in a process of its own ({problem.strerror})") from None
    if done.returncode < 0:
        how = f"ended with {signal.Signals(-done.returncode).name}, with at most {memory >> 20} MB of memory"
        raise LimitExceeded(how, crashed=-done.returncode not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
        raise LimitExceeded(f"failed ({last}), with at most {memory >> 20} MB of memory")
    return done.stdout


def memory_limit() -> int | None:
    """Bytes of memory that this process can have at most: the machine's, or what its container or user allows if that is less.

    ``None`` where the system does not tell.
    """
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    if sys.platform == "win32":
        return
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS):
        allowed, _ = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY:
            yield allowed
    for file in _CONTAINER_LIMITS:
        try:
            yield int(file.read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
