"""The profile store: measured costs and end-to-end verdicts on disk, by environment."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rules_db.files import cache_folder

__all__ = ["ProfileError", "ProfileStore", "default_profile_path", "is_plausible"]

_TABLES = (
    # counted up when costs are measured in another way: old and new ones are not mixed
    "CREATE TABLE IF NOT EXISTS costs_3 "
    "(environment VARCHAR NOT NULL, signature VARCHAR NOT NULL, microseconds FLOAT NOT NULL, "
    "PRIMARY KEY (environment, signature))",
    "CREATE TABLE IF NOT EXISTS schedules "
    "(environment VARCHAR NOT NULL, kernel VARCHAR NOT NULL, schedules VARCHAR NOT NULL, PRIMARY KEY (environment, kernel))",
    "CREATE TABLE IF NOT EXISTS verdicts (key VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (key))",
)
_PUT_COST = "INSERT OR REPLACE INTO costs_3 (environment, signature, microseconds) VALUES (?, ?, ?)"
_PUT_SCHEDULES = "INSERT OR REPLACE INTO schedules (environment, kernel, schedules) VALUES (?, ?, ?)"
_PUT_VERDICT = "INSERT OR REPLACE INTO verdicts (key, value) VALUES (?, ?)"

_WAITING = 30.0
"""Seconds that a process waits for the transaction of another."""


_LARGEST = 1 << 23
"""Bytes of a row of the file, at most: what is remembered takes some ten thousand. A larger one is of no run."""
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
        is_rough: times of kernels are of a run that lets them round more than others: no other run takes those.

    Attributes:
        ignored: costs in the file that are none (:func:`is_plausible`).
    """

    def __init__(
        self,
        path: Path | None,
        environment: str,
        lost: Callable[[ProfileError], None] = _raised,
        *,
        is_rough: bool = False,
    ) -> None:
        self.environment = environment
        self.is_rough = is_rough
        self.path = path
        self._lost = lost
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        self.ignored = 0
        self._costs: dict[str, float] = {}
        self._schedules: dict[str, str] = {}
        self._fresh: dict[str, float] = {}
        if path is None:
            return
        with self._guard("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are ours: the driver would begin one at the first change, after what was read.
            self._connection = sqlite3.connect(path, timeout=_WAITING, isolation_level=None, check_same_thread=False)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST)
            with self._writing(self._connection) as connection:
                for table in _TABLES:  # another process may make them at the same time
                    connection.execute(table)
                # A cache that cannot be written is noticed now, not after the search.
                connection.execute(_PUT_VERDICT, ("opened", environment))
                costs = "SELECT signature, microseconds FROM costs_3 WHERE environment = ?"
                read = dict(connection.execute(costs, (environment,)))
                self._costs = {signature: cost for signature, cost in read.items() if is_plausible(cost)}
                self.ignored = len(read) - len(self._costs)
                chosen = "SELECT kernel, schedules FROM schedules WHERE environment = ?"
                self._schedules = {kernel: str(text) for kernel, text in connection.execute(chosen, (environment,))}

    @contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its beginning.

        Else two processes that have read wait for each other to end, and one of them fails.
        """
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """For actions on the file: what goes wrong is told, and the file is not used any more."""
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
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
        self._write(_PUT_SCHEDULES, [(self.environment, signature, text)])

    def environments(self) -> dict[str, int]:
        """Every environment in the file with the number of its costs."""
        counts: dict[str, int] = {}
        counted = "SELECT environment, COUNT(*) FROM costs_3 GROUP BY environment ORDER BY environment"
        with self._guard("read"), self._lock:
            if self._connection is not None:
                counts = dict(self._connection.execute(counted))
        return counts

    def get(self, signature: str) -> float | None:
        return self._costs.get(signature)

    def put(self, signature: str, microseconds: float) -> None:
        self._costs[signature] = self._fresh[signature] = microseconds

    def flush(self) -> None:
        """Writes what was measured since the last flush; other processes' rows stay."""
        self._write(_PUT_COST, [(self.environment, signature, cost) for signature, cost in self._fresh.items()])
        self._fresh = {}

    def verdict(self, key: str) -> str | None:
        """What is remembered under a key."""
        return self.verdicts([key]).get(key)

    def verdicts(self, keys: Collection[str]) -> dict[str, str]:
        """What is remembered under some keys."""
        found: dict[str, str] = {}
        chosen = f"SELECT key, value FROM verdicts WHERE key IN ({', '.join('?' * len(keys))})"
        with self._guard("read"), self._lock:
            if self._connection is not None and keys:
                found = {key: str(value) for key, value in self._connection.execute(chosen, tuple(keys))}
        return found

    def remember(self, key: str, value: str) -> None:
        self.remember_all({key: value})

    def remember_all(self, verdicts: Mapping[str, str]) -> None:
        """Several verdicts in one transaction, but for those that are too large to be read again."""
        self._write(_PUT_VERDICT, [(key, text) for key, text in verdicts.items() if len(key) + 4 * len(text) < _LARGEST])

    def _write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if self._connection is not None and rows:
            with self._guard("written"), self._writing(self._connection) as connection:
                connection.executemany(statement, rows)

    def close(self) -> None:
        self.flush()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _first_line(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0]
