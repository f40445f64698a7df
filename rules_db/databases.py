"""Databases that processes of several machines use at the same time: an SQLite file, or a PostgreSQL server by its URL.

A transaction that writes holds a lock from its beginning, in either: of an SQLite file the file's, else two that have read wait
for each other to end, and one of them fails; of a PostgreSQL database an advisory one, so that writers of the same rows, and
first uses that make the tables, come one after the other whatever the order in which they go.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rules_db.files import StoreError
from rules_db.late import LateModule

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")  # a quarter of a second, and hardly a run opens a database

__all__ = ["PATIENCE", "Retries", "new_engine", "parsed_url", "without_password", "writing"]

PATIENCE = 60.0
"""Seconds for which a server that has answered before is waited for: it restarts in fewer."""

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 4.0
"""Seconds between two tries: twice as many each time."""

_WRITERS = 0x6F6E6E78
"""The number of the advisory lock."""

LONGEST_PAUSE = 20.0
"""Seconds for which a client may say nothing while it holds the writers' lock: a server takes one that is stopped for lost."""

_PAUSED = "25P03"
"""SQLSTATE of a transaction that a server ended since its client was stopped."""

_LOST_RACE = ("40001", "40P01", "23505")
"""SQLSTATE of a transaction that lost against another one, and may be done again: serialization, deadlock, the same row."""

_Result = TypeVar("_Result")


def without_password(url: str) -> str:
    """A database's path or URL as it may be printed; a text that is no URL, such as one with a password at a wrong place, too."""
    hidden = re.sub(r"(:/+[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&]\w*password=)[^&]*", r"\1***", hidden)


def parsed_url(url: str) -> sa.URL:
    """The URL of a database, or of the SQLite file at a path; one of PostgreSQL names its driver. Raises StoreError."""
    if "://" not in url:
        return sa.URL.create("sqlite", database=url)
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the latter: a port that is no number
        wanted = "not a database URL; write e.g. sqlite:///rules.db or postgresql://host/name"
        raise StoreError(f"{without_password(url)}: {wanted}") from None
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgresql", "postgres") else parsed


def new_engine(url: sa.URL) -> sa.Engine:
    """Connections to a database. Raises ImportError and SQLAlchemyError where there is no driver."""
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": 60})
        sa.event.listen(engine, "connect", _leave_transactions_to_us)
        sa.event.listen(engine, "begin", _begin)
        return engine
    if url.get_backend_name() == "postgresql":
        # A statement sees what was written before the lock was had; a connection that a restart broke is not handed out.
        limits = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
        return sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=limits)
    return sa.create_engine(url)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the writers' lock from its beginning; of a database of another kind, an ordinary one."""
    with engine.connect() as connection:
        connection = connection.execution_options(writes=True)
        with connection.begin():
            if engine.dialect.name == "postgresql":
                limit = sa.func.set_config("idle_in_transaction_session_timeout", str(int(1000 * LONGEST_PAUSE)), True)
                connection.execute(sa.select(limit, sa.func.pg_advisory_xact_lock(_WRITERS)))
            yield connection


def _leave_transactions_to_us(connection: Any, record: object) -> None:
    connection.isolation_level = None  # else the driver begins a transaction at the first change, after what was read


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Retries:
    """Does again what a server's restart or another writer broke, a little later each time.

    Requires that what is done may be done twice: a connection that is lost while a transaction is committed does not say whether
    it was.

    Args:
        engine: whose connections are used.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def __call__(self, action: Callable[[], _Result], patience: float) -> _Result:
        """The result of an action.

        Args:
            patience: seconds after which it is given up.

        Raises:
            DBAPIError: what stays broken, or is of another kind.
        """
        until, wait = time.monotonic() + patience, _FIRST_WAIT
        while True:
            try:
                return action()
            except sa.exc.DBAPIError as problem:
                if not self._may_pass(problem) or time.monotonic() + wait > until:
                    raise
                self._engine.dispose()
            time.sleep(wait * random.uniform(0.5, 1.0))  # not all at once
            wait = min(2 * wait, _LONGEST_WAIT)

    def _may_pass(self, problem: sa.exc.DBAPIError) -> bool:
        if self._engine.dialect.name != "postgresql":
            return False
        state = getattr(problem.orig, "sqlstate", None) or getattr(problem.orig, "pgcode", None)
        if state is None:  # no answer at all: refused, or broken off
            return isinstance(problem, sa.exc.OperationalError)
        # connections, shutdown and start, too many, paused
        return state in _LOST_RACE or state.startswith(("08", "57P", "533", _PAUSED))
