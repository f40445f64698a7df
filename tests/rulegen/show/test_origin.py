"""How rules were found, as their provenance tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rulegen.show.origin import origin
from rules_db.library import shipped_rules


def test_every_shipped_rule_tells_its_origin() -> None:
    counts = Counter(origin(rule).kind for rule in shipped_rules())
    assert set(counts) == {"enumerated", "spelled", "mined", "lowered"}
    spellings = [rule for rule in shipped_rules() if rule.provenance["group"] == "spelling"]
    assert counts["spelled"] + counts["mined"] == len(spellings)
    assert all(origin(rule).kind in ("spelled", "mined") for rule in spellings)


def test_the_source_is_named() -> None:
    (rule, *_) = (rule for rule in shipped_rules() if rule.provenance["group"] == "linear")
    assert str(origin(rule)) == "enumerated with group linear"
    assert str(origin(replace(rule, provenance={"model": "bert"}))) == "mined from bert"
    assert str(origin(replace(rule, provenance={"spelled": "Gelu"}))) == "spelled from the definition of Gelu"
    assert str(origin(replace(rule, provenance={}))) == "of unknown origin"
