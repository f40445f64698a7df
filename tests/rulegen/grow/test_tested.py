"""Rules on the evidence of tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.terms.term import const, make
from rulegen.grow import certification
from rulegen.grow.stages import grow
from rulegen.grow.tested import rules_on_tests
from rulegen.workloads import WORKLOADS
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms


def test_tests_stand_in_for_a_missing_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def certify(self, *arguments: object) -> None:
            return None

    monkeypatch.setattr(certification, "shared_prover", Silent)
    growth = grow(WORKLOADS["lowrank"], 4)
    assert growth.unproved and not growth.rules
    (rule, *_) = rules_on_tests(growth)
    assert rule.certificate.tested is not None and rule.provenance["kind"] == "tested"
    assert check(rule, load_axioms()) == []
    (source,) = rule.source
    wrong = replace(rule, target=(make("Mul", [source, const(2.0)]),))
    assert check(wrong, load_axioms())
