"""Fixtures that many rooms share: a cache of each test's own, and a stopwatch with fixed answers."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rewriter.cli.costs import cli as costs
from rewriter.cost.fused import RuntimeDirections
from rewriter.cost.store import ProfileStore, default_profile_path
from rewriter.run import accept, timings
from rewriter.runtime_env import environment
from rules_db.library import open_rules
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.runs import FASTER, lora


@pytest.fixture(scope="session", autouse=True)
def _faults_are_raised() -> Iterator[None]:
    """An internal error turns any test red, however the run would have ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_SUPEROPT_DEBUG", "1")
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; a test that needs one is skipped where none is installed."""
    with postgres_server() as server:
        yield server


_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "rules.db")
    made: str = request.getfixturevalue("postgres").new_database(f"each{next(_numbers)}")
    return made


@pytest.fixture(scope="session")
def _first_used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache after a first use: shipped rules are checked, and which of them the runtime applies by itself is asked."""
    folder = tmp_path_factory.mktemp("first") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_SUPEROPT_CACHE", str(folder))
        store = ProfileStore(default_profile_path(), environment("cpu"))
        for provider in ("cpu", "cuda"):
            RuntimeDirections(open_rules(None), store, provider).applied()
        store.close()
    return folder


@pytest.fixture(scope="session")
def _measured(tmp_path_factory: pytest.TempPathFactory, _first_used: Path) -> Path:
    """The cache after the operators of a small model were measured on the CPU, too."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(_first_used, folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNX_SUPEROPT_CACHE", str(folder / "cache"))
        filled = CliRunner().invoke(costs, ["fill", str(lora(folder / "lora.onnx")), "--provider", "cpu"])
    assert filled.exit_code == 0, filled.output
    return folder / "cache"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _first_used: Path) -> Path:
    """Costs and verdicts of each test in a folder of its own; it knows what the first use of an installation learns."""
    return _copied(_first_used, tmp_path, monkeypatch)


@pytest.fixture
def measured_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _measured: Path) -> Path:
    """As ``own_cache``, for runs of :func:`tests.support.runs.lora` that need not measure its operators."""
    return _copied(_measured, tmp_path, monkeypatch)


def _copied(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    shutil.copytree(source, folder)
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(folder))
    return folder


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, timings.Timing]]:
    """Fixed answers of the stopwatch: ``pair`` while choosing, ``confirm`` for the winner."""
    answers = {"pair": FASTER, "confirm": FASTER}
    monkeypatch.setattr(accept.Acceptance, "pair", lambda self, session, seconds: answers["pair"])
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: answers["confirm"])
    yield answers
