"""The profile store: measured costs and end-to-end verdicts on disk, by environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import Column, Float, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError

from rules_db.files import cache_folder

__all__ = ["ProfileError", "ProfileStore", "default_profile_path"]

_METADATA = MetaData()
_COSTS = Table(
    "costs_3",  # counted up when costs are measured in another way: old and new ones are not mixed
    _METADATA,
    Column("environment", String, primary_key=True),
    Column("signature", String, primary_key=True),
    Column("microseconds", Float, nullable=False),
)
_VERDICTS = Table("verdicts", _METADATA, Column("key", String, primary_key=True), Column("value", String, nullable=False))


class ProfileError(ValueError):
    """The profile cache cannot be used; the message names the file and the way out."""


def default_profile_path() -> Path:
    """In the user's cache directory."""
    return cache_folder() / "profile.sqlite"


class ProfileStore:
    """Costs of one environment are read once; new ones are written in batches by :meth:`flush`."""

    def __init__(self, path: Path | None, environment: str) -> None:
        self.environment = environment
        self.path = path
        self._engine: Engine | None = None
        self._known: dict[str, float] = {}
        self._fresh: dict[str, float] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
            _METADATA.create_all(self._engine)
            with self._engine.connect() as connection:
                rows = connection.execute(
                    select(_COSTS.c.signature, _COSTS.c.microseconds).where(_COSTS.c.environment == environment)
                )
                self._known = {row.signature: row.microseconds for row in rows}
        except (DatabaseError, OSError) as problem:
            raise self._error("opened", problem) from problem
        # A cache that cannot be written is noticed now, not after the search.
        self._write(insert(_VERDICTS).prefix_with("OR REPLACE"), [{"key": "opened", "value": environment}])

    def preload(self, costs: Mapping[str, float]) -> None:
        """Adds costs that hold for this run and are not written back."""
        self._known.update(costs)

    @property
    def costs(self) -> Mapping[str, float]:
        """Everything known of the environment: signature to microseconds."""
        return self._known

    def environments(self) -> dict[str, int]:
        """Every environment in the file with the number of its costs."""
        if self._engine is None:
            return {}
        try:
            with self._engine.connect() as connection:
                counted = select(_COSTS.c.environment, func.count()).group_by(_COSTS.c.environment)
                return {row[0]: row[1] for row in connection.execute(counted.order_by(_COSTS.c.environment))}
        except DatabaseError as problem:
            raise self._error("read", problem) from problem

    def get(self, signature: str) -> float | None:
        return self._known.get(signature)

    def put(self, signature: str, microseconds: float) -> None:
        self._known[signature] = self._fresh[signature] = microseconds

    def flush(self) -> None:
        """Writes what was measured since the last flush; other processes' rows stay."""
        if self._engine is None or not self._fresh:
            return
        rows = [{"environment": self.environment, "signature": s, "microseconds": t} for s, t in self._fresh.items()]
        self._write(insert(_COSTS).prefix_with("OR REPLACE"), rows)
        self._fresh = {}

    def verdict(self, key: str) -> str | None:
        """A remembered end-to-end verdict."""
        if self._engine is None:
            return None
        try:
            with self._engine.connect() as connection:
                row = connection.execute(select(_VERDICTS.c.value).where(_VERDICTS.c.key == key)).first()
        except DatabaseError as problem:
            raise self._error("read", problem) from problem
        return None if row is None else str(row[0])

    def remember(self, key: str, value: str) -> None:
        self.remember_all({key: value})

    def remember_all(self, verdicts: Mapping[str, str]) -> None:
        """Several verdicts in one transaction."""
        if self._engine is not None and verdicts:
            self._write(insert(_VERDICTS).prefix_with("OR REPLACE"), [{"key": k, "value": v} for k, v in verdicts.items()])

    def _write(self, statement: object, rows: list[dict[str, object]]) -> None:
        assert self._engine is not None
        try:
            with self._engine.begin() as connection:
                connection.execute(statement, rows)  # type: ignore[call-overload]
        except DatabaseError as problem:
            raise self._error("written", problem) from problem

    def _error(self, what: str, problem: Exception) -> ProfileError:
        return ProfileError(
            f"{self.path}: the cost cache cannot be {what} ({_first_line(problem)}); delete it, free space, or set "
            "ONNX_SUPEROPT_CACHE to a writable directory"
        )

    def close(self) -> None:
        self.flush()
        if self._engine is not None:
            self._engine.dispose()


def _first_line(problem: Exception) -> str:
    return str(getattr(problem, "orig", None) or problem).splitlines()[0]
