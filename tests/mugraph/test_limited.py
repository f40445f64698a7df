"""Work in a process of its own, with limits."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from mugraph import limited
from mugraph.limited import LimitExceeded, memory_limit, run_limited

LIMITED = "import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("while True: pass", r"took more than 2 s"),
        ("bytes(1 << 40)", r"failed \(MemoryError\), with at most 256 MB of memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended with SIGSEGV"),
        ("sys.exit(3)", "failed .without a word."),
        ("raise ValueError('no model')", r"failed \(ValueError: no model\)"),
    ],
)
def test_what_ends_without_a_result_says_how(tmp_path: Path, body: str, reason: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(LIMITED + body)
    started = time.monotonic()
    with pytest.raises(LimitExceeded, match=reason):
        run_limited(script, b"", seconds=2, memory=256 << 20)
    assert time.monotonic() - started < 30


def test_a_result_is_what_was_written(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LIMITED + "sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])")
    (tmp_path / "resource.py").write_text("raise ImportError")
    given = bytes(range(256)) * 4096
    assert run_limited(script, given, seconds=30, memory=256 << 20) == given[::-1]


def test_the_limit_of_memory_is_the_least_of_machine_user_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS), resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    container = tmp_path / "memory.max"
    monkeypatch.setattr(limited, "_CONTAINER_LIMITS", (container,))
    assert memory_limit() == machine
    container.write_text("max\n")
    assert memory_limit() == machine
    container.write_text(f"{1 << 30}\n")
    assert memory_limit() == 1 << 30
    limits[resource.RLIMIT_RSS] = 1 << 25
    assert memory_limit() == 1 << 25
    limits[resource.RLIMIT_DATA] = 1 << 20
    assert memory_limit() == 1 << 20
