"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read. Versions differ in what they can
read and prove. So beside each rule stands which version wrote it, and a row of a newer one is not taken for a damaged one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rules_db.databases import PATIENCE, Retries, new_engine, parsed_url, writing
from rules_db.entries import Entry, preferred, unproved
from rules_db.exchange import RuleTextError, format_rule
from rules_db.files import DATABASE_START, StoreError, is_text
from rules_db.history import Action, LogEntry, append, history_table, read_history, text_digest
from rules_db.late import LateModule, import_ahead
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
    history: sa.Table


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
    return _RuleTables(metadata, about, rules, writers, history_table(metadata))


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


class _StoredRule(NamedTuple):
    """What a database holds of a rule: its text, and who wrote that, where a row says so of that text and no other."""

    text: str
    noted_text: str | None
    version: str | None
    stamp: str | None

    @property
    def writer(self) -> RuleWriter | None:
        if self.version is None or self.stamp is None or self.noted_text != text_digest(self.text):
            return None
        return RuleWriter(self.version, self.stamp)


_AT_ONCE = 500
"""Identities that one statement asks for."""

_Result = TypeVar("_Result")

_HEADER = 512
"""Bytes of the smallest page that SQLite has, whose first hundred are the header."""
_DAMAGED = "the file is damaged; restore a copy, or delete it and grow the rules again ('rulegen grow --rules')"


def _grow_one(name: str) -> str:
    return f"grow one with 'rulegen grow --group linear --rules {name}'"


def _is_foreign(file: str) -> bool:
    """Whether a file begins as no SQLite file does: it is none that was damaged later."""
    with open(file, "rb") as stream:
        first = stream.read(len(DATABASE_START))
    return not DATABASE_START.startswith(first)


def _is_cut_off(file: str) -> bool:
    """Whether an SQLite file ends within its header or a page: SQLite takes it for an empty database, or reads on in zeros.

    A file that a transaction is being written to is left to SQLite, which rolls back what was broken off.
    """
    size = os.path.getsize(file)
    if size < _HEADER:
        return size > 0
    with open(file, "rb") as stream:
        header = stream.read(_HEADER)
    page = int.from_bytes(header[16:18], "big")
    return page >= _HEADER and size % page > 0 and not os.path.exists(f"{file}-journal")


class RuleStore:
    """A database of rules. Open it with :meth:`open`; it is a context manager.

    Processes may write one database at the same time: each waits for the other's transaction, and of two rules with one
    identity the :func:`preferred` one stays, whoever comes first. A server that restarts is waited for.
    """

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._retries, self._patience = Retries(engine), PATIENCE

    @staticmethod
    def ahead() -> None:
        """Begins to import what a database in a file needs, for a process that will soon open one and waits until then."""
        import_ahead("sqlite3", "sqlalchemy", "sqlalchemy.dialects.sqlite")

    @staticmethod
    def open(url: str, *, create: bool = True, patience: float = 0.0) -> RuleStore:
        """Opens the database at a path or SQLAlchemy URL, creating an empty one where there is none.

        Args:
            patience: seconds to wait for a server that does not answer: it did before, or another process starts it.

        Raises:
            StoreError: no such file (with ``create=False``), text, not a database, of a newer version, or not to be opened.
        """
        parsed = parsed_url(url if "://" in url else os.path.abspath(url))
        path = parsed.database if parsed.get_backend_name() == "sqlite" else None
        name = path or parsed.render_as_string(hide_password=True)
        file = path and path.removeprefix("file:")
        if path and is_text(path):
            way_out = "give another path ('rulegen merge FILE.rules --out rules.db' makes a database of a file)"
            raise StoreError(f"{path}: what ends in .rules is text, and no database; {way_out}")
        if path and file and file != ":memory:" and parsed.query.get("mode") != "memory" and not os.path.exists(file):
            if not create:
                raise StoreError(f"{path}: there is no such rule database; {_grow_one(path)}")
            if not path.startswith("file:") and not os.path.isdir(os.path.dirname(path) or "."):
                raise StoreError(f"{path}: its folder does not exist; create it or give another path")
        if file and os.path.isdir(file):
            raise StoreError(f"{path}: this is a folder; give another path, of a rule database or a .rules file")
        if file and os.path.isfile(file) and _is_foreign(file):
            raise StoreError(f"{path}: this is no rule database; give another path, or move that file away")
        if file and os.path.isfile(file) and _is_cut_off(file):
            raise StoreError(f"{path}: {os.path.getsize(file)} bytes are no whole database; {_DAMAGED}")
        try:
            engine = new_engine(parsed)
        except (sa.exc.SQLAlchemyError, ImportError) as problem:
            wanted = "pip install 'onnx-superopt[postgres]'" if parsed.get_backend_name() == "postgresql" else "install it"
            raise StoreError(f"{name}: no driver for this database ({problem}); {wanted} or use an SQLite path") from None
        store = RuleStore(engine, name)
        try:
            store._guard(lambda: store._prepare(create), patience)
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

    def _guard(self, action: Callable[[], _Result], patience: float | None = None) -> _Result:
        """Runs a database action that may be done twice; what the database objects to becomes one line."""
        try:
            return self._retries(action, self._patience if patience is None else patience)
        except sa.exc.DBAPIError as problem:
            reason = " ".join(str(problem.orig).split())
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

    def transact(self, action: Callable[[sa.Connection], _Result], *, writes: bool = True) -> _Result:
        """What an action on other tables of the database gives, in a transaction; it may be done twice. Raises StoreError."""

        def act() -> _Result:
            with writing(self._engine) if writes else self._engine.connect() as connection:
                return action(connection)

        return self._guard(act)

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
        offered = {rule.id: rule for rule in map(preferred, groups.values())}
        stored = self._guard(lambda: self._read(offered))
        changed = {i: rule for i, rule in offered.items() if i not in stored or stored[i].text != format_rule(rule)}
        for rule in changed.values():
            if refusal := trust.refusal(rule.certificate.evidence):
                raise StoreError(f"rule {rule.id} is not taken: {refusal}")
            if reason := unproved(rule):
                raise StoreError(f"rule {rule.id} is {reason}; run 'rulegen audit' on where it comes from")
        decided = cache(self._stands_before)
        for identity, row in stored.items():
            if identity in changed:
                decided(changed[identity], row)  # here, not while others wait

        def insert() -> int:
            with writing(self._engine) as connection:
                self._complete(connection)
                there = self._rows(connection, changed)
                taken = [rule for i, rule in changed.items() if i not in there or decided(rule, there[i])]
                self._put(connection, sorted(taken, key=lambda rule: rule.id))
                return sum(rule.id not in there for rule in taken)

        return self._guard(insert) if changed else 0

    def _put(self, connection: sa.Connection, rules: Sequence[Rule]) -> None:
        """Inserts rules or replaces the rows of their identities."""
        if not rules:
            return
        tables, ours = _tables(), RuleWriter.ourselves()._asdict()
        texts = {rule.id: format_rule(rule) for rule in rules}
        for table in (tables.rules, tables.writers):  # a writer may be known of a rule that somebody else removed
            connection.execute(table.delete().where(table.c.id == sa.bindparam("row")), [{"row": i} for i in texts])
        connection.execute(tables.rules.insert(), [{"id": i, "text": text} for i, text in texts.items()])
        connection.execute(
            tables.writers.insert(), [{"id": i, "text_digest": text_digest(text), **ours} for i, text in texts.items()]
        )
        self._log(connection, Action.ACCEPTED, texts)

    @staticmethod
    def _complete(connection: sa.Connection) -> None:
        """Makes the tables that a database of an earlier version lacks."""
        for table in (_tables().writers, _tables().history):
            table.create(connection, checkfirst=True)

    @staticmethod
    def _log(connection: sa.Connection, action: Action, texts: Mapping[str, str]) -> None:
        digests = {identity: text_digest(text) for identity, text in sorted(texts.items())}
        append(connection, _tables().history, action, digests, *RuleWriter.ourselves())

    def history(self) -> list[LogEntry]:
        """What was accepted, checked and removed, in order; nothing of what earlier versions did. Raises StoreError."""

        def read() -> list[LogEntry]:
            with self._engine.connect() as connection:
                if _tables().history.name not in sa.inspect(connection).get_table_names():
                    return []
                return read_history(connection, _tables().history)

        return self._guard(read)

    def note(self, action: Action, texts: Mapping[str, str]) -> int:
        """Enters in the log that rules were adopted, or checked again, unless their texts changed since. Raises StoreError.

        Returns:
            how many have the texts still.
        """

        def note() -> int:
            with writing(self._engine) as connection:
                self._complete(connection)
                there = self._rows(connection, texts)
                same = {identity: row.text for identity, row in there.items() if row.text == texts[identity]}
                self._log(connection, action, same)
                return len(same)

        return self._guard(note)

    def digests(self) -> dict[str, str]:
        """The digest of each row's text, by identity; the texts that whoever wrote them says the digest of are not read."""

        def read() -> dict[str, str]:
            tables = _tables()
            with self._engine.connect() as connection:
                if tables.writers.name not in sa.inspect(connection).get_table_names():
                    return {identity: text_digest(row.text) for identity, row in self._rows(connection).items()}
                joined = tables.rules.outerjoin(tables.writers, tables.writers.c.id == tables.rules.c.id)
                said = sa.select(tables.rules.c.id, tables.writers.c.text_digest).select_from(joined)
                found = {str(row.id): row.text_digest for row in connection.execute(said)}
                silent = [identity for identity, digest in found.items() if digest is None]
                return found | {i: text_digest(row.text) for i, row in self._rows(connection, silent).items()}

        return self._guard(read)

    def _stands_before(self, rule: Rule, row: _StoredRule) -> bool:
        """Whether a proved rule replaces a row: one that cannot be read or is not proved, unless a newer version wrote it."""
        try:
            there = Entry(self._name, row.text, identity=rule.id).read()
        except RuleTextError:
            return row.writer is None or row.writer.is_older
        if unproved(there):
            return row.writer is None or row.writer.is_older
        return preferred([there, rule]) is rule

    def writers(self) -> dict[str, RuleWriter]:
        """Who wrote the rules of which it is known, by identity. Raises StoreError."""
        rows = self._guard(self._read)
        return {identity: row.writer for identity, row in rows.items() if row.writer is not None}

    def remove(self, rows: Mapping[str, str]) -> int:
        """Removes rows that still have the texts that :meth:`texts` told; returns how many these are. Raises StoreError."""

        def delete() -> int:
            tables = _tables()
            with writing(self._engine) as connection:
                self._complete(connection)
                there = self._rows(connection, rows)
                gone = [{"row": identity} for identity, row in there.items() if row.text == rows[identity]]
                for table in (tables.rules, tables.writers):
                    if gone:
                        connection.execute(table.delete().where(table.c.id == sa.bindparam("row")), gone)
                self._log(connection, Action.REMOVED, {one["row"]: there[one["row"]].text for one in gone})
                return len(gone)

        return self._guard(delete)

    def _read(self, identities: Collection[str] | None = None) -> dict[str, _StoredRule]:
        with self._engine.connect() as connection:
            return self._rows(connection, identities)

    @staticmethod
    def _rows(connection: sa.Connection, identities: Collection[str] | None = None) -> dict[str, _StoredRule]:
        """Rows by identity, in order of that: all of them, or some."""
        tables = _tables()
        if tables.writers.name in sa.inspect(connection).get_table_names():
            joined = tables.rules.outerjoin(tables.writers, tables.writers.c.id == tables.rules.c.id)
            chosen = sa.select(tables.rules, *(column for column in tables.writers.c if column.name != "id")).select_from(joined)
        else:  # of an earlier version
            chosen = sa.select(
                tables.rules, *(sa.null().label(column.name) for column in tables.writers.c if column.name != "id")
            )
        chosen = chosen.order_by(tables.rules.c.id)
        if identities is None:
            found = connection.execute(chosen).all()
        else:
            wanted = sorted(identities)
            parts = [wanted[start : start + _AT_ONCE] for start in range(0, len(wanted), _AT_ONCE)]
            found = [row for part in parts for row in connection.execute(chosen.where(tables.rules.c.id.in_(part)))]
        rows = {}
        for row in found:
            text = row.text if isinstance(row.text, str) else ""  # a blob is no rule
            rows[str(row.id)] = _StoredRule(text, row.text_digest, row.version, row.stamp)
        return rows

    def texts(self, identities: Collection[str] | None = None) -> dict[str, str]:
        """The text of every row, or of some, by identity. Raises StoreError where the database is damaged."""
        return {identity: row.text for identity, row in self._guard(lambda: self._read(identities)).items()}

    def entries(self, identities: Collection[str] | None = None) -> list[Entry]:
        """All rules, or some, by identity, as they are written. Raises StoreError where the database is damaged."""
        rows = self.texts(identities).items()
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
