"""Cached evidence rests on the code that found it and on the operators that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rulegen.properties import cache
from rulegen.properties.cache import AuditLimits, EvidenceCache
from rulegen.properties.everywhere import SizesEvidence
from rulegen.properties.runtime import RuntimeEvidence
from rulegen.properties.symbolic import SymbolicEvidence
from rulegen.properties.validate import NumericEvidence
from rules_db.stamp import imported_files
from tests.support.properties import AXIOMS

KINDS = (SymbolicEvidence, SizesEvidence, NumericEvidence, RuntimeEvidence)


def files(folder: Path, *kinds: Any) -> list[Path]:
    """Of each kind that of a property of entrywise operators, then that of one of products."""
    cache = EvidenceCache(folder, AuditLimits(20, 6, 1, 100))
    return [cache.file(AXIOMS[name], kind) for kind in kinds or KINDS for name in ("neg.involution", "matmul.associative")]


def test_the_cache_depends_on_the_operators_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, before = cache._source, files(tmp_path, SymbolicEvidence)
    monkeypatch.setattr(cache, "_source", lambda module: source(module) + b"#" * (module == "mugraph.ops.product"))
    after = files(tmp_path, SymbolicEvidence)
    assert after[0] == before[0] and after[1] != before[1]
    assert {"mugraph.ops.contrib", "mugraph.ops.product"} <= cache._modules("SkipLayerNormalization") | cache._modules(
        "FusedMatMul"
    ), "a composite operator depends on those it consists of"


@pytest.mark.parametrize(
    "name", ["rulegen/properties/parameters.py", "mugraph/domains/symbolic.py", "rules_db/trust/condition.py"]
)
def test_the_cache_depends_on_all_code_that_finds_evidence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(tmp_path)
    _change(name, tmp_path, monkeypatch)
    assert all(after != file for after, file in zip(files(tmp_path), before, strict=True))


def test_what_decides_polynomials_leaves_samples_and_runs_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(tmp_path)
    _change("rulegen/properties/scalars.py", tmp_path, monkeypatch)
    assert [after != file for after, file in zip(files(tmp_path), before, strict=True)] == [*[True] * 4, *[False] * 4]


def _change(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file end otherwise than it does, for all that import it."""
    changed = folder / "changed.py"

    def with_a_change(*arguments: object, **options: object) -> dict[str, Path]:
        closure = imported_files(*arguments, **options)  # type: ignore[arg-type]
        if name not in closure:
            return closure
        changed.write_bytes(closure[name].read_bytes() + b"#")
        return closure | {name: changed}

    monkeypatch.setattr(cache, "imported_files", with_a_change)
    monkeypatch.setattr(cache, "_closure_digest", cache._closure_digest.__wrapped__)


def test_the_code_that_finds_evidence_holds_no_operator() -> None:
    closure = imported_files([kind.__module__ for kind in KINDS], cache._PACKAGES, without={cache._REGISTRY})
    operators = {module.replace(".", "/") + ".py" for name in ("MatMul", "Attention", "Conv") for module in cache._modules(name)}
    assert "mugraph/ops/interp.py" in closure and "rulegen/properties/cases.py" in closure
    assert not (operators - {"mugraph/ops/base.py"}) & closure.keys()
