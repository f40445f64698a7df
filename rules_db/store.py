"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read. Versions differ in what they can
read and prove. So beside each rule stands which version wrote it, and a row of a newer one is not taken for a damaged one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rules_db.entries import Entry, preferred, unproved
from rules_db.exchange import RuleTextError, format_rule
from rules_db.files import StoreError
from rules_db.late import LateModule
from rules_db.sqlite import begin_ourselves, writing
from rules_db.stamp import stamp
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")  # a quarter of a second, and hardly a run opens a database

__all__ = ["SCHEMA_VERSION", "RuleStore", "RuleWriter"]

SCHEMA_VERSION = 1
"""Raised with every change of the tables."""


class _RuleTables(NamedTuple):
    """The tables of a database of rules."""

    metadata: sa.MetaData
    about: sa.Table
    rules: sa.Table
    writers: sa.Table


@cache
def _tables() -> _RuleTables:
    metadata = sa.MetaData()
    version = sa.Column("version", sa.Integer, nullable=False)
    about = sa.Table("superopt_schema", metadata, sa.Column("id", sa.Integer, primary_key=True), version)
    rules = sa.Table(
        "rules", metadata, sa.Column("id", sa.String(16), primary_key=True), sa.Column("text", sa.Text, nullable=False)
    )
    writers = sa.Table(  # of its own, since versions that know nothing of it write rules, too
        "rule_writers",
        metadata,
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("text_digest", sa.String(32), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("stamp", sa.String(16), nullable=False),
    )
    return _RuleTables(metadata, about, rules, writers)


class RuleWriter(NamedTuple):
    """Who wrote a rule.

    Attributes:
        version: of the package.
        stamp: of the trusted base that checked it (:mod:`rules_db.stamp`).
    """

    version: str
    stamp: str

    @staticmethod
    def ourselves() -> RuleWriter:
        try:
            ours = version("onnx-superopt")
        except PackageNotFoundError:  # it runs where its source stands, and is not installed
            ours = "0"
        return RuleWriter(ours, stamp())

    def __str__(self) -> str:
        return f"{self.version}, trusted code {self.stamp}"

    @property
    def is_older(self) -> bool:
        """Whether this version is newer, or the same one."""
        return self == RuleWriter.ourselves() or _numbers(self.version) < _numbers(RuleWriter.ourselves().version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _writer(row: sa.Row[Any] | None, text: object) -> RuleWriter | None:
    """Who wrote a text, where a row says so of that text and no other."""
    if row is None or not isinstance(text, str) or row.text_digest != _digest(text):
        return None
    return RuleWriter(row.version, row.stamp)


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
            if reason := unproved(rule):
                raise StoreError(f"rule {rule.id} is {reason}; run 'rulegen audit' on where it comes from")
        changed.sort(key=lambda rule: rule.id)  # two that write the same rows in one order wait for each other, not both

        def insert() -> int:
            with writing(self._engine) as connection:
                _tables().writers.create(connection, checkfirst=True)
                return sum(self._put(connection, rule) for rule in changed)

        return self._guard(insert) if changed else 0

    def _put(self, connection: sa.Connection, rule: Rule) -> bool:
        """Inserts a rule or replaces the one of its identity, if it is to be preferred; true where there was none."""
        text, tables = format_rule(rule), _tables()
        row, writer = tables.rules.c.id == rule.id, tables.writers.c.id == rule.id
        try:
            with connection.begin_nested():
                connection.execute(tables.rules.insert().values(id=rule.id, text=text))
            is_new = True
        except sa.exc.IntegrityError:
            is_new = False
            there = connection.execute(sa.select(tables.rules.c.text).where(row).with_for_update()).scalar_one()
            found = connection.execute(sa.select(tables.writers).where(writer)).one_or_none()
            if not self._stands_before(rule, there, _writer(found, there)):
                return False
            connection.execute(tables.rules.update().where(row).values(text=text))
        connection.execute(tables.writers.delete().where(writer))
        ours = RuleWriter.ourselves()._asdict()
        connection.execute(tables.writers.insert().values(id=rule.id, text_digest=_digest(text), **ours))
        return is_new

    def _stands_before(self, rule: Rule, text: str, writer: RuleWriter | None) -> bool:
        """Whether a proved rule replaces a row: one that cannot be read or is not proved, unless a newer version wrote it."""
        try:
            there = Entry(self._name, text, identity=rule.id).read()
        except RuleTextError:
            return writer is None or writer.is_older
        if unproved(there):
            return writer is None or writer.is_older
        return preferred([there, rule]) is rule

    def writers(self) -> dict[str, RuleWriter]:
        """Who wrote the rules of which it is known, by identity. Raises StoreError."""

        def read() -> dict[str, RuleWriter]:
            tables = _tables()
            with self._engine.connect() as connection:
                if tables.writers.name not in sa.inspect(connection).get_table_names():
                    return {}
                found = connection.execute(
                    sa.select(tables.writers, tables.rules.c.text).join_from(
                        tables.writers, tables.rules, tables.writers.c.id == tables.rules.c.id
                    )
                )
                by = {one.id: _writer(one, one.text) for one in found}
                return {identity: writer for identity, writer in by.items() if writer is not None}

        return self._guard(read)

    def remove(self, rows: Mapping[str, str]) -> int:
        """Removes rows that still have the texts that :meth:`texts` told; returns how many these are. Raises StoreError."""

        def delete() -> int:
            tables = _tables()
            with writing(self._engine) as connection:
                tables.writers.create(connection, checkfirst=True)
                there = self._rows(connection)
                gone = sorted(identity for identity, text in rows.items() if there.get(identity) == text)
                for table in (tables.writers, tables.rules):
                    for identity in gone:
                        connection.execute(table.delete().where(table.c.id == identity))
                return len(gone)

        return self._guard(delete)

    def _texts(self) -> dict[str, str]:
        with self._engine.connect() as connection:
            return self._rows(connection)

    @staticmethod
    def _rows(connection: sa.Connection) -> dict[str, str]:
        rows = connection.execute(sa.select(_tables().rules.c.id, _tables().rules.c.text).order_by(_tables().rules.c.id))
        return {str(row.id): row.text if isinstance(row.text, str) else "" for row in rows}  # a blob is no rule

    def texts(self) -> dict[str, str]:
        """The text of every row, by identity. Raises StoreError where the database is damaged."""
        return self._guard(self._texts)

    def entries(self) -> list[Entry]:
        """All rules, by identity, as they are written. Raises StoreError where the database is damaged."""
        rows = self.texts().items()
        return [Entry(f"{self._name}, row {identity}", text, identity=identity) for identity, text in rows]

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
