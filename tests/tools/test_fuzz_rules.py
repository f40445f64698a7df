"""Damaged rules and caches: the readers answer each in one line, and the attack finds it where one does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rules_db.exchange import RuleTextError, format_rule
from rules_db.library import shipped_rules
from tools.fuzz import rules as attacks
from tools.fuzz.rules import attack_stores, attack_texts, damaged

pytestmark = pytest.mark.usefixtures("own_cache")


def test_damaged_texts_are_read_or_refused_in_time() -> None:
    assert not list(map(str, attack_texts(shipped_rules(), 300, seed=7)))


def test_damaged_caches_are_read_or_refused(tmp_path: Path) -> None:
    assert not list(map(str, attack_stores(tmp_path, 150, seed=7)))


def test_the_attack_finds_a_reader_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(text: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(attacks, "parse_rule", breaks)
    (found,) = attack_texts(shipped_rules()[:3], 1)
    assert "RecursionError: too deep" in found.what

    def endless(text: str) -> None:
        raise RuleTextError("x" * 5_000)

    monkeypatch.setattr(attacks, "parse_rule", endless)
    (found,) = attack_texts(shipped_rules()[:3], 1)
    assert "an error of 5000 characters" in found.what


def test_damage_is_the_same_for_a_seed() -> None:
    text = format_rule(shipped_rules()[0])
    one, other, third = (damaged(text, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == other != third
