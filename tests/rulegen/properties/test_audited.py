"""What the last whole audit of the operator properties found, and that it still says the same where it is asked again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rulegen.properties.cache import AuditLimits
from rulegen.properties.everywhere import validate_everywhere
from rulegen.properties.report import LEAST_CASES, Standing, properties_report
from rulegen.properties.validate import LEAST_HITS
from tests.support.properties import AXIOMS

RECORD = Path(__file__).parents[3] / "rules_db" / "axioms" / "audited.json"
AUDITED = json.loads(RECORD.read_text(encoding="utf-8"))
CHANGED = {name: axiom for name, axiom in AXIOMS.items() if AUDITED.get(name, {}).get("digest") != axiom.digest}
"""Properties that were written or changed since, or that it did not reach."""
SAMPLE = 6
LIMITS = AuditLimits(samples=LEAST_HITS, cases=LEAST_CASES, runs=2)


def test_every_recorded_property_stood() -> None:
    assert {row["standing"] for row in AUDITED.values()} <= {Standing.PROVED, Standing.TESTED}
    assert not [name for name, row in AUDITED.items() if row["samples"] < LEAST_HITS or not row["cases"]]
    assert not [name for name, row in AUDITED.items() if row["cases"] < LEAST_CASES and not row["all_cases"]]
    assert not [name for name, row in AUDITED.items() if row["standing"] == Standing.TESTED and not row.get("why")]
    assert not set(AUDITED) - set(AXIOMS), "run 'make audit': the record speaks of properties that there are no more"


def test_what_is_recorded_to_hold_at_all_sizes_does() -> None:
    """A sample, another one for each state of the record."""
    recorded = [n for n, row in AUDITED.items() if row["sizes"] == "all" and n not in CHANGED and len(AXIOMS[n].variables) < 3]
    chosen = np.random.default_rng(list(RECORD.read_bytes()[:4096])).choice(sorted(recorded), SAMPLE, replace=False)
    assert [name for name in chosen if not validate_everywhere(AXIOMS[str(name)], AuditLimits().steps).everywhere] == []


def _stands(names: list[str], folder: Path) -> None:
    report = properties_report({name: AXIOMS[name] for name in names}, limits=LIMITS, processes=1, as_a_set=False, folder=folder)
    assert [record.why for record in report.properties if not record.stands] == []


@pytest.mark.parametrize("name", sorted(CHANGED, key=lambda name: CHANGED[name].digest)[: 2 * SAMPLE])
def test_what_has_changed_stands(name: str, tmp_path: Path) -> None:
    """As many as a test has time for; 'make audit' examines all."""
    _stands([name], tmp_path)


def test_a_sample_of_the_recorded_stands(tmp_path: Path) -> None:
    """Another one for each state of the record, so that no line in it is safe that was written by hand."""
    generator = np.random.default_rng(list(RECORD.read_bytes()[:4096]))
    known = sorted(set(AXIOMS) - set(CHANGED))
    _stands([str(name) for name in generator.choice(known, SAMPLE, replace=False)], tmp_path)
