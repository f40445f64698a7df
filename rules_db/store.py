"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rules_db.entries import Entry, preferred, proved
from rules_db.exchange import RuleTextError, format_rule
from rules_db.files import StoreError
from rules_db.late import LateModule
from rules_db.sqlite import begin_ourselves, writing
from rules_db.trust.certificate import Trust
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")  # a quarter of a second, and hardly a run opens a database

__all__ = ["SCHEMA_VERSION", "RuleStore"]

SCHEMA_VERSION = 1
"""Raised with every change of the tables."""


class _RuleTables(NamedTuple):
    """The tables of a database of rules."""

    metadata: sa.MetaData
    about: sa.Table
    rules: sa.Table


@cache
def _tables() -> _RuleTables:
    metadata = sa.MetaData()
    version = sa.Column("version", sa.Integer, nullable=False)
    about = sa.Table("superopt_schema", metadata, sa.Column("id", sa.Integer, primary_key=True), version)
    text = sa.Column("text", sa.Text, nullable=False)
    return _RuleTables(metadata, about, sa.Table("rules", metadata, sa.Column("id", sa.String(16), primary_key=True), text))


_Result = TypeVar("_Result")


def _as_url(url: str) -> sa.URL:
    if "://" in url:
        try:
            return sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):  # the latter: a port that is no number
            raise StoreError(f"{url}: not a database URL; write e.g. sqlite:///rules.db or postgresql://host/name") from None
    return sa.URL.create("sqlite", database=os.path.abspath(url))


_DAMAGED = "the file is damaged; restore a copy, or delete it and grow the rules again ('rulegen grow --rules')"


def _grow_one(name: str) -> str:
    return f"grow one with 'rulegen grow --group linear --rules {name}'"


class RuleStore:
    """A database of rules. Open it with :meth:`open`; it is a context manager.

    Processes may write one SQLite file at the same time: each waits for the other's transaction, and of two rules with one
    identity the :func:`preferred` one stays, whoever comes first.
    """

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name = engine, name

    @staticmethod
    def open(url: str, *, create: bool = True) -> RuleStore:
        """Opens the database at a path or SQLAlchemy URL, creating an empty one where there is none.

        Raises:
            StoreError: no such file (with ``create=False``), not a database, of a newer version, or not to be opened.
        """
        parsed = _as_url(url)
        path = parsed.database if parsed.get_backend_name() == "sqlite" else None
        name = path or parsed.render_as_string(hide_password=True)
        file = path and path.removeprefix("file:")
        if path and file and file != ":memory:" and parsed.query.get("mode") != "memory" and not os.path.exists(file):
            if not create:
                raise StoreError(f"{path}: there is no such rule database; {_grow_one(path)}")
            if not path.startswith("file:") and not os.path.isdir(os.path.dirname(path) or "."):
                raise StoreError(f"{path}: its folder does not exist; create it or give another path")
        if file and os.path.isfile(file) and 0 < os.path.getsize(file) < 512:  # SQLite would take it for an empty database
            raise StoreError(f"{path}: {os.path.getsize(file)} bytes are no database; {_DAMAGED}")
        try:
            engine = sa.create_engine(parsed, connect_args={"timeout": 60} if path else {})
        except (sa.exc.SQLAlchemyError, ImportError) as problem:
            raise StoreError(f"{name}: no driver for this database ({problem}); install it or use an SQLite path") from None
        if path:
            begin_ourselves(engine)
        store = RuleStore(engine, name)
        try:
            store._guard(lambda: store._prepare(create))
        except StoreError:
            store.close()
            raise
        return store

    def _prepare(self, create: bool) -> None:
        with self._engine.connect() as connection:
            if self._is_ours(connection):
                return
        if not create:
            raise StoreError(f"{self._name}: this database is empty, it holds no rules; {_grow_one(self._name)}")
        with writing(self._engine) as connection:
            if not self._is_ours(connection):  # another process may have been faster
                _tables().metadata.create_all(connection)
                connection.execute(_tables().about.insert().values(id=1, version=SCHEMA_VERSION))

    def _is_ours(self, connection: sa.Connection) -> bool:
        """Whether the tables are there; false for an empty database. Raises StoreError for any other."""
        tables = set(sa.inspect(connection).get_table_names())
        if not tables:
            return False
        if _tables().about.name not in tables:
            raise StoreError(f"{self._name}: this database is not one of rules; give another path")
        version = connection.execute(sa.select(_tables().about.c.version)).scalar()
        if version is None or version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._name}: written by a newer version (schema {version}, this one reads {SCHEMA_VERSION}); "
                "upgrade onnx-superopt"
            )
        return True

    def check_writable(self) -> None:
        """Raises StoreError where no rule could be added: to be asked before long work."""

        def nothing() -> None:
            with writing(self._engine) as connection:
                connection.execute(_tables().rules.delete().where(_tables().rules.c.id == ""))

        self._guard(nothing)

    def _guard(self, action: Callable[[], _Result]) -> _Result:
        """Runs a database action; what the database objects to becomes one line."""
        try:
            return action()
        except sa.exc.DBAPIError as problem:
            reason = str(problem.orig)
            if "readonly" in reason or "read-only" in reason or "unable to open" in reason:
                way_out = "make the file and its folder writable or give another path"
            elif "not a database" in reason or "malformed" in reason or "no such" in reason or "decode" in reason:
                way_out = _DAMAGED
            elif "is full" in reason:
                way_out = "make room; nothing was changed"
            elif "locked" in reason:
                way_out = "another process holds it; wait for that to end"
            else:
                way_out = "check the URL and that the database server answers"
            raise StoreError(f"{self._name}: {reason}; {way_out}") from None

    def add(self, rule: Rule, trust: Trust = Trust.PROVED) -> bool:
        """Checks a rule and stores it; false where it is there already.

        Raises:
            StoreError: the rule does not stand by its certificate or has less evidence than is asked for, or the database cannot
                be written.
        """
        return self.add_all([rule], trust) == 1

    def add_all(self, rules: Iterable[Rule], trust: Trust = Trust.PROVED) -> int:
        """Adds rules in one transaction, all or none; returns how many were new."""
        groups: dict[str, list[Rule]] = {}
        for rule in rules:
            groups.setdefault(rule.id, []).append(rule)
        stored = self.texts()
        changed = [rule for rule in map(preferred, groups.values()) if stored.get(rule.id) != format_rule(rule)]
        for rule in changed:
            if refusal := trust.refusal(rule.certificate.evidence):
                raise StoreError(f"rule {rule.id} is not taken: {refusal}")
            failures = check(rule, load_axioms())
            if failures:
                raise StoreError(f"rule {rule.id} is not proved: {failures[0]}; run 'rulegen audit' on where it comes from")

        def insert() -> int:
            with writing(self._engine) as connection:
                return sum(self._put(connection, rule) for rule in changed)

        return self._guard(insert) if changed else 0

    def _put(self, connection: sa.Connection, rule: Rule) -> bool:
        """Inserts a rule or replaces the one of its identity, if it is to be preferred; true where there was none."""
        text, row = format_rule(rule), _tables().rules.c.id == rule.id
        try:
            with connection.begin_nested():
                connection.execute(_tables().rules.insert().values(id=rule.id, text=text))
            return True
        except sa.exc.IntegrityError:
            there = connection.execute(sa.select(_tables().rules.c.text).where(row).with_for_update()).scalar_one()
        if self._stands_before(rule, there):
            connection.execute(_tables().rules.update().where(row).values(text=text))
        return False

    def _stands_before(self, rule: Rule, text: str) -> bool:
        """Whether a proved rule replaces a row: always one that cannot be read or is not proved."""
        try:
            there = Entry(self._name, text, identity=rule.id).read()
        except RuleTextError:
            return True
        return bool(check(there, load_axioms())) or preferred([there, rule]) is rule

    def _texts(self) -> dict[str, str]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_tables().rules.c.id, _tables().rules.c.text).order_by(_tables().rules.c.id))
            return {str(row.id): row.text if isinstance(row.text, str) else "" for row in rows}  # a blob is no rule

    def texts(self) -> dict[str, str]:
        """The text of every row, by identity. Raises StoreError where the database is damaged."""
        return self._guard(self._texts)

    def fill(self, rows: Mapping[str, str]) -> None:
        """Writes rows as they are into a new database whose rules were checked. Raises StoreError."""

        def insert() -> None:
            with writing(self._engine) as connection:
                connection.execute(_tables().rules.insert(), [{"id": identity, "text": text} for identity, text in rows.items()])

        self._guard(insert)

    def entries(self) -> list[Entry]:
        """All rules, by identity, as they are written. Raises StoreError where the database is damaged."""
        rows = self.texts().items()
        return [Entry(f"{self._name}, row {identity}", text, identity=identity) for identity, text in rows]

    def rules(self, trust: Trust = Trust.PROVED) -> list[Rule]:
        """All rules, by identity, each checked again.

        Raises:
            StoreError: the database is damaged, or holds a rule that does not stand by its certificate or has less evidence than
                is asked for.
        """
        return proved(self.unchecked(), self._name, trust)

    def unchecked(self) -> list[Rule]:
        """All rules, by identity, for whoever checks those that are used.

        Raises:
            StoreError: the database is damaged.
        """
        try:
            return [entry.read() for entry in self.entries()]
        except RuleTextError as problem:
            raise StoreError(f"{problem}; delete that row or restore a copy of the database") from None

    def __len__(self) -> int:
        def count() -> int:
            with self._engine.connect() as connection:
                return connection.execute(sa.select(sa.func.count()).select_from(_tables().rules)).scalar_one()

        return self._guard(count)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> RuleStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
