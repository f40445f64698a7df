"""The profile store: measured costs and end-to-end verdicts on disk, by environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Column, Connection, Float, Insert, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateTable

from rules_db.files import cache_folder
from rules_db.sqlite import begin_ourselves, writing

__all__ = ["ProfileError", "ProfileStore", "default_profile_path", "is_plausible"]

_METADATA = MetaData()
_COSTS = Table(
    "costs_3",  # counted up when costs are measured in another way: old and new ones are not mixed
    _METADATA,
    Column("environment", String, primary_key=True),
    Column("signature", String, primary_key=True),
    Column("microseconds", Float, nullable=False),
)
_SCHEDULES = Table(
    "schedules",
    _METADATA,
    Column("environment", String, primary_key=True),
    Column("kernel", String, primary_key=True),
    Column("schedules", String, nullable=False),
)
_VERDICTS = Table("verdicts", _METADATA, Column("key", String, primary_key=True), Column("value", String, nullable=False))


_LONGEST = 3.6e9
"""Microseconds that no operator takes."""


class ProfileError(ValueError):
    """The profile cache cannot be used; the message names the file and the way out."""


def default_profile_path() -> Path:
    """In the user's cache directory."""
    return cache_folder() / "profile.sqlite"


def is_plausible(microseconds: object) -> bool:
    """Whether what a cache or table holds can be the cost of an operator: a number of less than an hour.

    SQLite keeps any value in any column.
    """
    is_number = isinstance(microseconds, int | float) and not isinstance(microseconds, bool)
    return is_number and 0 <= microseconds <= _LONGEST  # type: ignore[operator]


def _raised(problem: ProfileError) -> None:
    raise problem


class ProfileStore:
    """Costs of one environment are read once; new ones are written in batches by :meth:`flush`.

    Processes may use one file at the same time.

    Args:
        path: the file; with ``None`` nothing is kept.
        environment: that costs are of.
        lost: called where the file cannot be used, once: the store goes on without it. By default that is an error.

    Attributes:
        ignored: costs in the file that are none (:func:`is_plausible`).
    """

    def __init__(self, path: Path | None, environment: str, lost: Callable[[ProfileError], None] = _raised) -> None:
        self.environment = environment
        self.path = path
        self._lost = lost
        self._engine: Engine | None = None
        self.ignored = 0
        self._costs: dict[str, float] = {}
        self._schedules: dict[str, str] = {}
        self._fresh: dict[str, float] = {}
        if path is None:
            return
        with self._guard("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
            begin_ourselves(self._engine)
            with writing(self._engine) as connection:
                for table in _METADATA.sorted_tables:  # another process may make them at the same time
                    connection.execute(CreateTable(table, if_not_exists=True))
                # A cache that cannot be written is noticed now, not after the search.
                connection.execute(_put(_VERDICTS), [{"key": "opened", "value": environment}])
                read = dict(self._rows(connection))
                self._costs = {signature: cost for signature, cost in read.items() if is_plausible(cost)}
                self.ignored = len(read) - len(self._costs)
                chosen = select(_SCHEDULES.c.kernel, _SCHEDULES.c.schedules).where(_SCHEDULES.c.environment == environment)
                self._schedules = {kernel: str(text) for kernel, text in connection.execute(chosen)}

    def _rows(self, connection: Connection) -> Iterator[tuple[str, float]]:
        found = select(_COSTS.c.signature, _COSTS.c.microseconds).where(_COSTS.c.environment == self.environment)
        yield from (tuple(row) for row in connection.execute(found))

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """For actions on the file: what goes wrong is told, and the file is not used any more."""
        try:
            yield
        except (SQLAlchemyError, OSError) as problem:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None
            self._lost(
                ProfileError(
                    f"{self.path}: the cost cache cannot be {what} ({_first_line(problem)}); delete it, free space, or set "
                    "ONNX_SUPEROPT_CACHE to a writable directory"
                )
            )

    def preload(self, costs: Mapping[str, float], schedules: Mapping[str, str]) -> None:
        """Adds what holds for this run and is not written back, in place of what the file says."""
        self._costs.update(costs)
        self._schedules.update(schedules)

    def fall_back_on(self, costs: Mapping[str, float], schedules: Mapping[str, str]) -> None:
        """Adds what holds for this run where the file says nothing, and is not written back."""
        self._schedules = {kernel: text for kernel, text in schedules.items() if kernel not in self._costs} | self._schedules
        self._costs = {**costs, **self._costs}

    @property
    def costs(self) -> Mapping[str, float]:
        """Everything known of the environment: signature to microseconds."""
        return self._costs

    @property
    def schedules(self) -> Mapping[str, str]:
        """Under what schedules kernels took their times, by the signature of the cost: texts of whoever put them here."""
        return self._schedules

    def put_schedules(self, signature: str, text: str) -> None:
        """Keeps the schedules of a kernel whose cost is put."""
        self._schedules[signature] = text
        self._write(_put(_SCHEDULES), [{"environment": self.environment, "kernel": signature, "schedules": text}])

    def environments(self) -> dict[str, int]:
        """Every environment in the file with the number of its costs."""
        counts: dict[str, int] = {}
        if self._engine is not None:
            with self._guard("read"), self._engine.connect() as connection:
                counted = select(_COSTS.c.environment, func.count()).group_by(_COSTS.c.environment)
                counts = {row[0]: row[1] for row in connection.execute(counted.order_by(_COSTS.c.environment))}
        return counts

    def get(self, signature: str) -> float | None:
        return self._costs.get(signature)

    def put(self, signature: str, microseconds: float) -> None:
        self._costs[signature] = self._fresh[signature] = microseconds

    def flush(self) -> None:
        """Writes what was measured since the last flush; other processes' rows stay."""
        rows = [{"environment": self.environment, "signature": s, "microseconds": t} for s, t in self._fresh.items()]
        self._write(_put(_COSTS), rows)
        self._fresh = {}

    def verdict(self, key: str) -> str | None:
        """What is remembered under a key."""
        return self.verdicts([key]).get(key)

    def verdicts(self, keys: Collection[str]) -> dict[str, str]:
        """What is remembered under some keys."""
        found: dict[str, str] = {}
        if self._engine is not None and keys:
            with self._guard("read"), self._engine.connect() as connection:
                rows = connection.execute(select(_VERDICTS.c.key, _VERDICTS.c.value).where(_VERDICTS.c.key.in_(keys)))
                found = {key: str(value) for key, value in rows}
        return found

    def remember(self, key: str, value: str) -> None:
        self.remember_all({key: value})

    def remember_all(self, verdicts: Mapping[str, str]) -> None:
        """Several verdicts in one transaction."""
        self._write(_put(_VERDICTS), [{"key": k, "value": v} for k, v in verdicts.items()])

    def _write(self, statement: Insert, rows: Sequence[Mapping[str, object]]) -> None:
        if self._engine is not None and rows:
            with self._guard("written"), writing(self._engine) as connection:
                connection.execute(statement, rows)

    def close(self) -> None:
        self.flush()
        if self._engine is not None:
            self._engine.dispose()


def _put(table: Table) -> Insert:
    """The statement that inserts rows, or replaces those with their keys."""
    return insert(table).prefix_with("OR REPLACE")


def _first_line(problem: Exception) -> str:
    return str(getattr(problem, "orig", None) or problem).splitlines()[0]
