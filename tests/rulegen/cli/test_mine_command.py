"""``rulegen mine``: what is left of a search that the user stopped, and that the same command goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result

from mugraph.starting import INTERRUPTED_EXIT
from rulegen.cli.main import cli
from rulegen.mine import miner
from rulegen.mugraphs import mining
from rulegen.rules import GENERATOR_VERSION
from rules_db.exchange import read_rules
from rules_db.store import RuleStore
from tools.ship.spellings import build

NAMES = "gelu-erf", "silu"


@pytest.fixture(name="models")
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / f"{name}.onnx" for name in NAMES]
    for name, path in zip(NAMES, paths, strict=True):
        onnx.save(build(name), path)
    return paths


def invoke(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, list(map(str, arguments)), terminal_width=200)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_was_found_before_an_interrupt_is_written_and_mining_goes_on_from_there(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out, database = (tmp_path / name for name in ("whole.rules", "out.rules", "found.db"))
    assert invoke("mine", *models, "--jobs", "1", "--out", whole).exit_code == 0
    header = f"# Mined, not written: rulegen mine --seed 0 (generator {GENERATOR_VERSION}) on gelu-erf, silu."
    assert whole.read_text().splitlines()[0] == header
    asked = list[object]()
    record = miner._Miner.record

    def stopped(self: Any, model: str, cone: Any) -> Any:
        if model == "silu":
            raise KeyboardInterrupt
        asked.append((model, cone))
        return record(self, model, cone)

    arguments = ("mine", *models, "--jobs", "1", "--rules", database, "--out", out)
    found = [rule for rule in read_rules(whole) if rule.provenance["model"] == "gelu-erf"]
    assert 0 < len(found) < len(read_rules(whole))
    with monkeypatch.context() as patch:
        patch.setattr(miner._Miner, "record", stopped)
        result = invoke(*arguments)
    assert result.exit_code == INTERRUPTED_EXIT and f"{len(found)} new rules in" in result.output
    assert (
        " cones of silu (2 of 2 models) were looked at; " in result.output
        and "the same command goes on from there" in result.output
    )
    assert "# Not complete: it was interrupted when " in out.read_text()
    assert read_rules(out) == found
    with RuleStore.open(str(database)) as store:
        assert len(store.texts()) == len(found)
    again = list[str]()
    monkeypatch.setattr(miner._Miner, "record", lambda self, *given: (again.append(given[0]), record(self, *given))[1])
    assert invoke(*arguments).exit_code == 0
    assert out.read_bytes() == whole.read_bytes()
    assert asked and set(again) == {"silu"}, "it resumed"


def test_kernels_found_before_an_interrupt_are_told(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = mining._kept

    def stopped(goal: Any, record: Any, journal: Any) -> Any:
        if next(iter((tmp_path / "cache" / "grow").glob("kernels-*"))).read_bytes():
            raise KeyboardInterrupt
        return kept(goal, record, journal)

    monkeypatch.setattr(mining, "_kept", stopped)
    result = invoke("mine", *models, "--kernels", "--jobs", "1", "--seconds", "0.2", "--block-ops", "2")
    assert result.exit_code == INTERRUPTED_EXIT and "interrupted: 1 subprograms were searched" in result.output, result.output
