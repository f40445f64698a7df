"""``--standard-ops``: nothing is written that ONNX itself does not define."""

from __future__ import annotations

from pathlib import Path

import pytest

from mugraph.ops import REGISTRY, NotExpressible
from mugraph.terms.shape import Undecided
from rewriter import optimize
from rewriter.search.directions import Direction
from tests.support.graphs import rule
from tests.support.runs import block
from tests.support.samples import applications

OPSETS = (13, 17, 20, 23)


@pytest.mark.usefixtures("own_cache")
def test_the_result_needs_no_other_operator_sets(tmp_path: Path) -> None:
    source = block(tmp_path / "m.onnx")
    free = optimize(source, tmp_path / "a.onnx", device="cpu", deterministic=True)
    kept = optimize(source, tmp_path / "b.onnx", device="cpu", deterministic=True, standard=True)
    assert free.domains == ("com.microsoft",) and kept.domains == ()
    assert kept.improved and kept.nodes_after > free.nodes_after, "rules within ai.onnx fire"


def test_directions_know_what_they_bring() -> None:
    fuses = rule("Gelu(Add(X, b))", "BiasGelu(X, b)", "X:[m,n] b:[n]")
    assert not Direction(fuses, True).stays_standard and Direction(fuses, False).stays_standard
    same = rule("BiasGelu(Neg(Neg(X)), b)", "BiasGelu(X, b)", "X:[m,n] b:[n]")
    assert Direction(same, True).stays_standard, "the model has it already"


@pytest.mark.parametrize("name", [name for name, record in REGISTRY.items() if record.contract is None])
def test_records_without_a_contract_write_operators_of_onnx(name: str) -> None:
    record = REGISTRY[name]
    for term, types in applications(record):
        for opset in OPSETS:
            try:
                form = record.to_onnx(term.attrs, types, opset)
            except (NotExpressible, Undecided):
                continue
            assert form.domain == "", f"{term} at opset {opset}"
