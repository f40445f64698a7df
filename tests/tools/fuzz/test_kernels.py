"""No false kernel is proved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.fuzz import kernels
from tools.fuzz.kernels import KernelFate, attack_kernels, kernel_mutants, shipped_kernels

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "rules_db" / "shipped" / "kernels.rules"


def test_false_mutants_of_the_shipped_kernels_are_not_proved() -> None:
    tally = attack_kernels(shipped_kernels(SHIPPED), 100, 7)
    assert tally.false >= 100 and tally.fates[KernelFate.TRUE] > 0 and not tally.proved
    assert {change for change, fate in tally.by_change if fate is KernelFate.REJECTED} >= {
        "cut_off",
        "change_term",
        "change_body",
    }


def test_a_proof_that_accepts_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: None)
    tally = attack_kernels(shipped_kernels(SHIPPED)[:1], 5, 0)
    assert len(tally.proved) == 5 == tally.fates[KernelFate.ACCEPTED]


def test_mutants_repeat_from_their_seed() -> None:
    def some() -> list[str]:
        mutants = kernel_mutants(shipped_kernels(SHIPPED), np.random.default_rng(3))
        return [next(mutants).kernel.digest.hex() for _ in range(10)]

    assert some() == some()
