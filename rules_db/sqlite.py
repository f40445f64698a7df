"""SQLite files that processes use at the same time: transactions that write hold the lock from their beginning.

Else two that have read wait for each other to end, and one of them fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rules_db.late import LateModule

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")

__all__ = ["begin_ourselves", "writing"]


def begin_ourselves(engine: sa.Engine) -> None:
    """To be called once for an engine of an SQLite file, before it is used."""
    sa.event.listen(engine, "connect", _leave_transactions_to_us)
    sa.event.listen(engine, "begin", _begin)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the write lock from its beginning; of another database than SQLite, an ordinary one."""
    with engine.connect() as connection:
        connection = connection.execution_options(writes=True)
        with connection.begin():
            yield connection


def _leave_transactions_to_us(connection: Any, record: object) -> None:
    connection.isolation_level = None  # else the driver begins a transaction at the first change, after what was read


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
