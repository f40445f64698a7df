"""What the execution providers have kernels for: asked of onnxruntime, kept as data, read by the records."""

from __future__ import annotations

import json
import sys

import pytest

from mugraph.ops import REGISTRY, get_operator
from mugraph.ops.support import FILE
from mugraph.terms.shape import DataType
from tools.ship import probe
from tools.ship.probe import Probe, ProbeAnswer, ask, probes, summary

CONSTANTS = {
    "AveragingKernel",
    "BandMask",
    "CausalMask",
    "DilatedMask",
    "Eye",
    "GroupBlocks",
    "IdentityKernel",
    "Ones",
    "Positions",
    "PrefixMask",
    "StoredMask",
}
"""Operators that are written as initializers."""


def test_every_operator_has_a_sample() -> None:
    sampled = {one.application()[0].op for one in probes()}
    ours = {name for name, record in REGISTRY.items() if record.contract and record.contract.domain == "onnx.superopt"}
    assert sampled == REGISTRY.keys() - CONSTANTS - ours
    table = json.loads(FILE.read_text())
    assert table["cpu"]["operators"].keys() == sampled


@pytest.mark.parametrize(
    ("start", "dtype", "status"),
    [
        ("Relu", DataType.FLOAT, "kernel"),
        ("Relu", DataType.FLOAT16, "runs"),
        ("Relu", DataType.BFLOAT16, "refused"),
        ("SkipLayerNormalization[bias", DataType.BFLOAT16, "kernel"),
        ("QuickGelu", DataType.DOUBLE, "runs"),
        ("NhwcConv", DataType.FLOAT, "refused"),
        ("GroupQueryAttention", DataType.FLOAT16, "kernel"),
    ],
)
def test_the_table_says_what_onnxruntime_does(start: str, dtype: DataType, status: str) -> None:
    one = next(p for p in probes() if p.sample.startswith(start) and p.dtype == dtype)
    assert ask(one, "cpu").status == status
    known = json.loads(FILE.read_text())["cpu"]["operators"][one.application()[0].op]
    listed = next((kind for kind in ("kernel", "runs") if dtype.name.lower() in known[kind]), "refused")
    assert listed == status


def test_a_record_reads_the_table() -> None:
    """A composite needs a kernel of the provider's own; a plain operator may stand between casts."""
    providers = get_operator("QuickGelu").providers
    assert providers["cpu"] == {DataType.FLOAT} and providers.keys() == {"cpu", "cuda"}
    plain = get_operator("Relu").providers["cpu"]
    assert plain is not None and DataType.FLOAT16 in plain and DataType.BFLOAT16 not in plain
    assert get_operator("Ones").providers == {"cpu": None, "cuda": None}


def test_a_wrong_result_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    one = next(p for p in probes() if p.sample.startswith("Exp") and p.dtype == DataType.FLOAT)
    monkeypatch.setitem(probe.TYPES, DataType.FLOAT, 1e-12)
    assert ask(one, "cpu").status == "wrong"


def test_one_kernel_is_enough_and_one_wrong_result_too_much() -> None:
    samples = [*get_operator("BiasGelu").samples, *get_operator("FastGelu").samples]
    kinds = {"BiasGelu": ["kernel"], "FastGelu": ["kernel", "wrong"]}
    found = []
    for sample in samples:
        statuses = kinds[sample.split("(")[0]]
        found.append((Probe(sample, DataType.FLOAT16), ProbeAnswer(statuses.pop())))
    assert summary(found) == {
        "BiasGelu": {"kernel": ["float16"], "runs": []},
        "FastGelu": {"kernel": [], "runs": []},
    }


def test_a_probe_that_kills_its_process_is_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three takes its process along; the third is asked in a fresh one."""
    three = probes()[:3]
    script = (
        "import json, os, sys\n"
        "for i in range(int(sys.argv[1]), 3):\n"
        "    print(json.dumps({'begin': i}), flush=True)\n"
        "    if i == 1: os._exit(9)\n"
        "    print(json.dumps({'end': i, 'status': 'kernel', 'detail': ''}), flush=True)\n"
    )
    monkeypatch.setattr(probe, "probes", lambda: three)
    monkeypatch.setattr(probe, "worker_command", lambda provider, first: [sys.executable, "-c", script, str(first)])
    found = list(probe.answers("cpu"))
    assert [p for p, _ in found] == three
    assert [a.status for _, a in found] == ["kernel", "refused", "kernel"]
    assert found[1][1].detail == "its process ended (exit code 9)"
