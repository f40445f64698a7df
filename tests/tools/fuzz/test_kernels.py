"""No false kernel is proved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mugraph.ops.masks import mask_text
from mugraph.terms.shape import symbol
from tests.support.block_kernels import F32, kernel_of_terms, tensor
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


def test_false_mutants_of_a_kernel_with_a_mask_are_not_proved() -> None:
    b, h, s, t = map(symbol, "bhst")
    types = {name: tensor(F32, b, h, n, 4) for name, n in (("q", s), ("k", t), ("v", t))}
    mask = mask_text(np.random.default_rng(2).random((4, 5)) < 0.7)
    scores = f"Where(StoredMask[columns=t,entries='{mask}',rows=s](), MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    kernel = kernel_of_terms("stored", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    tally = attack_kernels([kernel], 150, 7)
    assert not tally.proved and tally.by_change["change_mask", KernelFate.REJECTED] > 5


def test_a_proof_that_accepts_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: None)
    tally = attack_kernels(shipped_kernels(SHIPPED)[:1], 5, 0)
    assert len(tally.proved) == 5 == tally.fates[KernelFate.ACCEPTED]


def test_mutants_repeat_from_their_seed() -> None:
    def some() -> list[str]:
        mutants = kernel_mutants(shipped_kernels(SHIPPED), np.random.default_rng(3))
        return [next(mutants).kernel.digest.hex() for _ in range(10)]

    assert some() == some()


def test_tests_in_place_of_a_proof_are_attacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing proves is accepted where interpretation passes it: of false mutants none."""
    monkeypatch.setattr(kernels, "why_not_proved", lambda kernel: "nothing is")
    assert not attack_kernels(shipped_kernels(SHIPPED)[:2], 10, 1, tested=True).proved
    monkeypatch.setattr(kernels, "interpret", lambda *arguments: None)
    assert len(attack_kernels(shipped_kernels(SHIPPED)[:2], 3, 1, tested=True).proved) >= 3
