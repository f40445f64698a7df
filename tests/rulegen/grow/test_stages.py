"""Growth end to end: the shipped text grows, only what is proved enters, and every stage is reported."""

from __future__ import annotations

import pytest

from rulegen.cli.texts import shipped_text
from rulegen.grow import certification
from rulegen.grow.stages import grow
from rulegen.numeric import trials
from rulegen.workloads import WORKLOADS
from tests.support.growths import grown, shipped_file


@pytest.mark.parametrize("group", ["lowrank", "guard", "activation"])
def test_the_shipped_text_is_what_grows(group: str) -> None:
    assert shipped_text(group, grown(group)) == shipped_file(group).read_text(encoding="utf-8"), (
        f"rules_db/shipped/{group}.rules is out of date: run 'make rules'"
    )


def test_only_what_is_proved_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def certify(self, *arguments: object) -> None:
            return None

    monkeypatch.setattr(certification, "shared_prover", Silent)
    growth = grow(WORKLOADS["lowrank"])
    assert not growth.rules and len(growth.unproved) > 10


def test_a_proof_that_inputs_contradict_is_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "try_out", lambda rule, axioms, seed: (1, "output 0 differs"))
    growth = grow(WORKLOADS["lowrank"])
    assert not growth.rules and len(growth.suspicious) > 10


def test_growth_reports_every_stage() -> None:
    (growth,) = grown("lowrank")
    left = {stage.name: stage.left for stage in growth.stages}
    assert left["pairs"] >= left["renaming"] >= left["instances"] >= left["proved"] >= left["minimal"]
    assert left["minimal"] + left["macros"] == len(growth.rules)
    assert growth.seconds > 0 and sum(growth.terms) == left["terms"]


def test_parts_do_not_find_again_what_earlier_parts_derive() -> None:
    """The group's later parts are grown under the rules of the earlier ones; alone they find those rules themselves."""
    first, second, *_ = grown("activation")
    alone = grow(second.workload)
    known = {rule.id for rule in first.rules}
    assert known & {rule.id for rule in alone.rules}
    assert not known & {rule.id for rule in second.rules}
