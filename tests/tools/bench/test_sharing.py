"""Growths by several processes, as the bench compares them."""

from __future__ import annotations

import pytest

from rulegen.workloads import get_workload
from tools.bench import sharing


def test_a_growth_that_is_played_gives_the_rules_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "GROUPS", {"tiny": (get_workload("attention-softmax"),)})
    alone, model = sharing.share("tiny", 1), sharing.play("tiny", 2)
    assert alone["text"] == model["text"] != ""
    assert model["seconds"][0] >= model["seconds"][1] > model["here"] > 0 and model["others"] > 0
