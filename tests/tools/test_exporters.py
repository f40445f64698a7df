"""Regions as exporters write them: each is a model that runs, and what the shipped rules recognise of them."""

from __future__ import annotations

from dataclasses import replace

import onnxruntime as ort
import pytest

from tools.bench.exporters import recognition
from tools.zoo.exporters import DIALECTS, FAMILIES, ExportedRegion, regions

REGIONS = tuple(regions())


def test_every_family_is_there_in_every_dialect() -> None:
    assert len(FAMILIES) >= 15
    assert {(r.family, r.dialect) for r in REGIONS} == {(family, dialect) for family in FAMILIES for dialect in DIALECTS}


@pytest.mark.parametrize("region", [r for r in REGIONS if r.family == "llama" and r.dialect.opset in (13, 20)], ids=str)
def test_a_region_is_a_model_that_runs(region: ExportedRegion) -> None:
    ort.InferenceSession(region.build().SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("family", ["t5", "efficientnet", "bart", "convnext", "gpt2"])
def test_what_is_recognised_of_a_family(family: str) -> None:
    """All of it; of other families see docs/spellings.md."""
    found = recognition(r for r in REGIONS if r.family == family)
    assert found.share >= 0.95, list(map(str, found.missing))


def test_rotary_tables_of_four_axes_are_recognised() -> None:
    assert not recognition(r for r in REGIONS if r.family == "llama" and r.name == "rotary").missing


def test_what_is_another_operator_is_named() -> None:
    (region,) = (r for r in REGIONS if str(r) == "gpt2-tf2onnx-13-attention")
    wrong = replace(region, expected=("OrtGelu",))
    assert recognition([wrong]).missing == (wrong,)
