"""Units of work in a database of rules: asked for, claimed for a time, done, and known from then on by their content.

A unit is a task's name and an argument, as text; its identity is a digest of both and of the code that does it. So one that is
asked for twice is one, and what was done once is known to whoever asks again. Who works at a unit holds it for :data:`LEASE`
seconds, and longer while it says that it lives; then anybody may claim it. A unit that is done twice, since somebody was taken
for lost, has one result. All times are those of the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from rules_db.late import LateModule
from rules_db.store import RuleStore

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")

__all__ = ["LEASE", "MOST_LOSSES", "LiveWorker", "UnitCounts", "UnitTable", "WorkUnit"]

LEASE = 30.0
"""Seconds for which a unit is its worker's without a sign of life."""

MOST_LOSSES = 3
"""Workers that a unit may cost: then it is the unit that ends them, and nobody claims it again."""

_KEPT = 7 * 24 * 3600.0
"""Seconds for which results are kept: a growth that was cut off is taken up again in fewer."""

_AT_ONCE = 500
"""Identities that one statement asks for."""


class WorkUnit(NamedTuple):
    """A unit: a task by its name, an argument, and the identity of both."""

    id: str
    task: str
    argument: str


class LiveWorker(NamedTuple):
    """Who lives and works at units; ``done`` says how many it did."""

    name: str
    done: int


class UnitCounts(NamedTuple):
    """How many units wait, are held, are waiting for other versions, were given up, and have a result."""

    waiting: int
    held: int
    foreign: int
    given_up: int
    results: int


class _UnitTables(NamedTuple):
    metadata: sa.MetaData
    units: sa.Table
    results: sa.Table
    workers: sa.Table


@cache
def _tables() -> _UnitTables:
    metadata = sa.MetaData()

    def text(name: str, length: int) -> sa.Column[str]:
        return sa.Column(name, sa.String(length), nullable=False)

    units = sa.Table(  # what is done is not here, so that who claims looks at little
        "work_units",
        metadata,
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        text("generator", 16),
        text("task", 128),
        sa.Column("argument", sa.Text, nullable=False),
        text("worker", 96),
        sa.Column("held_until", sa.Float, nullable=False),
        sa.Column("losses", sa.Integer, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )
    results = sa.Table(
        "work_results",
        metadata,
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    workers = sa.Table(
        "work_workers",
        metadata,
        sa.Column("name", sa.String(96), primary_key=True),
        sa.Column("alive_until", sa.Float, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
    )
    return _UnitTables(metadata, units, results, workers)


class UnitTable:
    """The units of a database.

    All methods raise StoreError where the database cannot be used.

    Args:
        store: of the database.
        generator: digest of the code that does the units; those of other code are nobody's here.
        lease: seconds for which a unit is held.
    """

    def __init__(self, store: RuleStore, generator: str, lease: float = LEASE) -> None:
        self._store, self._generator, self.lease = store, generator, lease
        names = store.transact(lambda connection: sa.inspect(connection).get_table_names(), writes=False)
        if not {*_tables().metadata.tables} <= {*names}:
            store.transact(lambda connection: _tables().metadata.create_all(connection))

    @staticmethod
    def existing(store: RuleStore, generator: str) -> UnitTable | None:
        """The units of a database in which somebody asked for some; makes no tables."""
        names = store.transact(lambda connection: sa.inspect(connection).get_table_names(), writes=False)
        return UnitTable(store, generator) if _tables().units.name in names else None

    def ask(self, units: Sequence[WorkUnit]) -> None:
        """Asks for units that nobody asked for and that have no result; for those that were given up once more."""

        def ask(connection: sa.Connection) -> None:
            table = _tables().units
            wanted = {unit.id: unit for unit in units if unit.id not in _found(connection, _tables().results, ids)}
            there = _found(connection, table, [*wanted])
            last = connection.execute(sa.select(sa.func.max(table.c.number))).scalar() or 0
            rows = [
                {"id": unit.id, "number": number, "generator": self._generator, "task": unit.task, "argument": unit.argument}
                | {"worker": "", "held_until": 0.0, "losses": 0, "problem": ""}
                for number, unit in enumerate((unit for unit in wanted.values() if unit.id not in there), last + 1)
            ]
            if rows:
                connection.execute(table.insert(), rows)
            for part in _parts([*there]):
                again = table.update().where(table.c.id.in_(part), table.c.losses > MOST_LOSSES)
                connection.execute(again.values(worker="", losses=0, problem=""))

        ids = [unit.id for unit in units]
        self._store.transact(ask)

    def results(self, ids: Collection[str]) -> dict[str, str]:
        """What was given back of units, by identity."""
        table = _tables().results

        def read(connection: sa.Connection) -> dict[str, str]:
            chosen = sa.select(table.c.id, table.c.result)
            rows = [row for part in _parts(ids) for row in connection.execute(chosen.where(table.c.id.in_(part)))]
            return {row.id: row.result for row in rows}

        return self._store.transact(read, writes=False)

    def given_up(self, ids: Collection[str]) -> str:
        """Why one of some units is not done by anybody any more; empty where none is."""
        table = _tables().units

        def read(connection: sa.Connection) -> str:
            chosen = sa.select(table.c.task, table.c.losses, table.c.problem).where(table.c.losses > MOST_LOSSES)
            for part in _parts(ids):
                for row in connection.execute(chosen.where(table.c.id.in_(part)).limit(1)):
                    told = f"the last of them says: {row.problem}" if row.problem else "they ended without a word"
                    return f"a unit of {row.task} cost {row.losses} workers; {told}"
            return ""

        return self._store.transact(read, writes=False)

    def claim(self, worker: str, tasks: Collection[str], most: int, among: Collection[str] | None = None) -> list[WorkUnit]:
        """Claims units for a worker, those first that were asked for first.

        Args:
            tasks: that it knows.
            most: so many at most, and no more than leaves some for the others. One that cost a worker comes alone.
            among: of these only.
        """
        table = _tables().units
        wanted = [None] if among is None else [*_parts(among)]

        def claim(connection: sa.Connection) -> list[WorkUnit]:
            now = _now(connection)
            free = [table.c.generator == self._generator, table.c.held_until < now, table.c.losses <= MOST_LOSSES]
            free.append(table.c.task.in_(sorted(tasks)))
            lost = (table.c.losses + sa.case((table.c.worker != "", 1), else_=0)).label("lost")
            for part in wanted:
                where = free if part is None else [*free, table.c.id.in_(part)]
                waiting = connection.execute(sa.select(sa.func.count()).where(*where)).scalar_one()
                share = max(1, min(most, waiting // (2 * max(self._alive(connection, now), 1))))
                chosen = sa.select(table.c.id, table.c.task, table.c.argument, lost).where(*where)
                rows = connection.execute(chosen.order_by(table.c.number, table.c.id).limit(share)).all()
                taken = rows[:1] if rows and rows[0].lost else [row for row in rows if not row.lost]
                if taken:
                    held = {"worker": worker, "held_until": now + self.lease}
                    for row in taken:
                        connection.execute(table.update().where(table.c.id == row.id).values(losses=row.lost, **held))
                    return [WorkUnit(row.id, row.task, row.argument) for row in taken if row.lost <= MOST_LOSSES]
            return []

        return self._store.transact(claim)

    def give_back(self, worker: str, done: Mapping[str, str]) -> None:
        """Enters results, by identity; of a unit that somebody else did meanwhile the first stays."""
        tables = _tables()

        def give(connection: sa.Connection) -> None:
            now, known = _now(connection), _found(connection, tables.results, [*done])
            rows = [{"id": id_, "result": result, "at": now} for id_, result in sorted(done.items()) if id_ not in known]
            if rows:
                connection.execute(tables.results.insert(), rows)
            for part in _parts([*done]):
                connection.execute(tables.units.delete().where(tables.units.c.id.in_(part)))
            self._lives(connection, worker, now, len(done))

        if done:
            self._store.transact(give)

    def failed(self, worker: str, id_: str, problem: str) -> None:
        """Says that a worker could not do a unit that it holds: another may try, as often as a unit may cost workers."""
        table = _tables().units

        def note(connection: sa.Connection) -> None:
            held = table.update().where(table.c.id == id_, table.c.worker == worker)
            connection.execute(held.values(worker="", held_until=0.0, losses=table.c.losses + 1, problem=problem[:1000]))

        self._store.transact(note)

    def live(self, worker: str) -> None:
        """Says that a worker lives: it holds for longer what it holds."""
        table = _tables().units

        def renew(connection: sa.Connection) -> None:
            now = _now(connection)
            connection.execute(table.update().where(table.c.worker == worker).values(held_until=now + self.lease))
            self._lives(connection, worker, now, 0)

        self._store.transact(renew)

    def leave(self, worker: str, *, lost: bool = False) -> None:
        """Frees what a worker holds, which ended or, where it is lost, was ended."""
        tables = _tables()

        def leave(connection: sa.Connection) -> None:
            # The name stays where the worker was lost: who claims the unit next counts that.
            freed = {"held_until": 0.0} if lost else {"held_until": 0.0, "worker": ""}
            connection.execute(tables.units.update().where(tables.units.c.worker == worker).values(**freed))
            connection.execute(tables.workers.delete().where(tables.workers.c.name == worker))

        self._store.transact(leave)

    def workers(self) -> list[LiveWorker]:
        """Who lives, by name."""
        table = _tables().workers

        def read(connection: sa.Connection) -> list[LiveWorker]:
            living = sa.select(table.c.name, table.c.done).where(table.c.alive_until > _now(connection))
            return [LiveWorker(row.name, row.done) for row in connection.execute(living.order_by(table.c.name))]

        return self._store.transact(read, writes=False)

    def counts(self) -> UnitCounts:
        """How the work stands."""
        tables = _tables()
        table = tables.units

        def read(connection: sa.Connection) -> UnitCounts:
            ours, lost, held = (
                table.c.generator == self._generator,
                table.c.losses > MOST_LOSSES,
                table.c.held_until >= _now(connection),
            )

            def count(*where: sa.ColumnElement[bool]) -> int:
                return connection.execute(sa.select(sa.func.count()).select_from(table).where(*where)).scalar_one()

            results = connection.execute(sa.select(sa.func.count()).select_from(tables.results)).scalar_one()
            return UnitCounts(count(ours, ~lost, ~held), count(ours, ~lost, held), count(~ours), count(ours, lost), results)

        return self._store.transact(read, writes=False)

    def forget(self) -> None:
        """Removes results that are a week old, and workers that ended."""
        tables = _tables()

        def forget(connection: sa.Connection) -> None:
            now = _now(connection)
            connection.execute(tables.results.delete().where(tables.results.c.at < now - _KEPT))
            connection.execute(tables.workers.delete().where(tables.workers.c.alive_until < now - _KEPT))

        self._store.transact(forget)

    @staticmethod
    def _alive(connection: sa.Connection, now: float) -> int:
        table = _tables().workers
        return connection.execute(sa.select(sa.func.count()).select_from(table).where(table.c.alive_until > now)).scalar_one()

    def _lives(self, connection: sa.Connection, worker: str, now: float, done: int) -> None:
        table = _tables().workers
        state = {"alive_until": now + self.lease, "done": table.c.done + done}
        if not connection.execute(table.update().where(table.c.name == worker).values(**state)).rowcount:
            connection.execute(table.insert().values(name=worker, alive_until=now + self.lease, done=done))


def _now(connection: sa.Connection) -> float:
    """Seconds by the database's clock: those of machines differ."""
    return float(connection.execute(sa.select(sa.extract("epoch", sa.func.current_timestamp()))).scalar_one())


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    wanted = sorted(ids)
    return (wanted[start : start + _AT_ONCE] for start in range(0, len(wanted), _AT_ONCE))


def _found(connection: sa.Connection, table: sa.Table, ids: Collection[str]) -> set[str]:
    """Which identities a table has."""
    return {row.id for part in _parts(ids) for row in connection.execute(sa.select(table.c.id).where(table.c.id.in_(part)))}
