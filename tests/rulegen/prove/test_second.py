"""The second checker."""

from __future__ import annotations

from dataclasses import replace

from rulegen.prove.second import z3check
from rules_db.trust.certificate import Certificate
from tests.support.rules import landmark


def test_z3_finds_a_missing_instance() -> None:
    rule = landmark("lora_scaled")
    (failure,) = z3check(replace(rule, certificate=Certificate(rule.certificate.instances[1:])))
    assert failure.startswith("Z3 answers sat")
