"""What tests of runs share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.stages import two_savings


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two independent savings, a double negation and a second clamp, and nothing for cleaning."""
    return two_savings(tmp_path)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant that the clocks of runs read."""
    instant = [100.0]
    monkeypatch.setattr("rewriter.run.clock.time", SimpleNamespace(monotonic=lambda: instant[0], thread_time=lambda: instant[0]))
    return instant
