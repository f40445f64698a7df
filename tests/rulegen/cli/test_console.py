"""What commands tell while they work."""

from __future__ import annotations

import pytest

from rulegen.cli import console


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.bar("axioms") as show:
        for done in range(1, 61):
            now[0] += 1
            show(done, 1320)
    told = capsys.readouterr()
    assert told.out == "" and told.err.splitlines() == [f"axioms: {done} of 1,320" for done in (20, 40, 60)]
