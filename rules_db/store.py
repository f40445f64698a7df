"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read. The rules that the package
ships are text (``shipped/*.rules``), checked by ``rulegen audit`` and the tests, and need no database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from rules_db.axioms import load_axioms
from rules_db.check import check
from rules_db.exchange import RuleTextError, format_rule, parse_rules, read_rules
from rules_db.rule import FloatClass, Rule

__all__ = ["SCHEMA_VERSION", "Entry", "RuleStore", "StoreError", "open_rules", "preferred", "read_entries", "shipped_rules"]

SCHEMA_VERSION = 1
"""Raised with every change of the tables."""

_METADATA = sa.MetaData()
_ABOUT = sa.Table(
    "superopt_schema", _METADATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("version", sa.Integer, nullable=False)
)
_RULES = sa.Table(
    "rules",
    _METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)

_Result = TypeVar("_Result")


class StoreError(Exception):
    """A rule database or file cannot be used; one line that names it and the way out."""


@dataclass(frozen=True)
class Entry:
    """A rule as it is written somewhere, unread: one that cannot be read is a failure of its own and hides no other.

    Attributes:
        place: the file, or the database and the row.
        text: its block.
        line: where the block begins in the file.
    """

    place: str
    text: str
    line: int = 1

    @property
    def name(self) -> str:
        """The identity that the block claims."""
        found = re.search(r"^rule[ \t]+(\S+)", self.text, re.MULTILINE)
        return found.group(1) if found else f"at {self.place}:{self.line}"

    def read(self) -> Rule:
        """Raises :class:`RuleTextError`, naming place and line."""
        (rule,) = parse_rules("\n" * (self.line - 1) + self.text, self.place)
        return rule


def preferred(rules: Iterable[Rule]) -> Rule:
    """The one to keep of rules with one identity, in whatever order they come.

    The more careful float class wins, then the shorter proof, then the smaller text.
    """

    def key(rule: Rule) -> tuple[int, int, int, str]:
        text = format_rule(rule)
        return -list(FloatClass).index(rule.float_class), len(rule.certificate.instances), len(text), text

    return min(rules, key=key)


def _as_url(url: str) -> sa.URL:
    if "://" in url:
        try:
            return make_url(url)
        except (sa.exc.ArgumentError, ValueError):  # the latter: a port that is no number
            raise StoreError(f"{url}: not a database URL; write e.g. sqlite:///rules.db or postgresql://host/name") from None
    return sa.URL.create("sqlite", database=os.path.abspath(url))


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
        try:
            engine = sa.create_engine(parsed, connect_args={"timeout": 60} if path else {})
        except (sa.exc.SQLAlchemyError, ImportError) as problem:
            raise StoreError(f"{name}: no driver for this database ({problem}); install it or use an SQLite path") from None
        if path:
            sa.event.listen(engine, "connect", _leave_transactions_to_us)
            sa.event.listen(engine, "begin", _begin)
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
        with self._writing() as connection:
            if not self._is_ours(connection):  # another process may have been faster
                _METADATA.create_all(connection)
                connection.execute(_ABOUT.insert().values(id=1, version=SCHEMA_VERSION))

    def _is_ours(self, connection: sa.Connection) -> bool:
        """Whether the tables are there; false for an empty database. Raises StoreError for any other."""
        tables = set(sa.inspect(connection).get_table_names())
        if not tables:
            return False
        if _ABOUT.name not in tables:
            raise StoreError(f"{self._name}: this database is not one of rules; give another path")
        version = connection.execute(sa.select(_ABOUT.c.version)).scalar()
        if version is None or version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._name}: written by a newer version (schema {version}, this one reads {SCHEMA_VERSION}); "
                "upgrade onnx-superopt"
            )
        return True

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that holds the write lock from its beginning."""
        with self._engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    def _guard(self, action: Callable[[], _Result]) -> _Result:
        """Runs a database action; what the database objects to becomes one line."""
        try:
            return action()
        except sa.exc.DBAPIError as problem:
            reason = str(problem.orig)
            if "readonly" in reason or "read-only" in reason or "unable to open" in reason:
                way_out = "make the file and its folder writable or give another path"
            elif "not a database" in reason or "malformed" in reason or "no such" in reason:
                way_out = "the file is damaged; restore a copy, or delete it and grow the rules again ('rulegen grow --rules')"
            elif "is full" in reason:
                way_out = "make room; nothing was changed"
            elif "locked" in reason:
                way_out = "another process holds it; wait for that to end"
            else:
                way_out = "check the URL and that the database server answers"
            raise StoreError(f"{self._name}: {reason}; {way_out}") from None

    def add(self, rule: Rule) -> bool:
        """Checks a rule and stores it; false where it is there already.

        Raises:
            StoreError: the rule is not proved by its certificate, or the database cannot be written.
        """
        return self.add_all([rule]) == 1

    def add_all(self, rules: Iterable[Rule]) -> int:
        """Adds rules in one transaction, all or none; returns how many were new."""
        groups: dict[str, list[Rule]] = {}
        for rule in rules:
            groups.setdefault(rule.id, []).append(rule)
        known = self._guard(self._texts)
        changed = [rule for rule in map(preferred, groups.values()) if known.get(rule.id) != format_rule(rule)]
        for rule in changed:
            failures = check(rule, load_axioms())
            if failures:
                raise StoreError(f"rule {rule.id} is not proved: {failures[0]}; run 'rulegen audit' on where it comes from")

        def insert() -> int:
            with self._writing() as connection:
                return sum(self._put(connection, rule) for rule in changed)

        return self._guard(insert) if changed else 0

    def _put(self, connection: sa.Connection, rule: Rule) -> bool:
        """Inserts a rule or replaces the one of its identity, if it is to be preferred; true where there was none."""
        text, row = format_rule(rule), _RULES.c.id == rule.id
        try:
            with connection.begin_nested():
                connection.execute(_RULES.insert().values(id=rule.id, text=text))
            return True
        except sa.exc.IntegrityError:
            there = connection.execute(sa.select(_RULES.c.text).where(row).with_for_update()).scalar_one()
        if self._stands_before(rule, there):
            connection.execute(_RULES.update().where(row).values(text=text))
        return False

    def _stands_before(self, rule: Rule, text: str) -> bool:
        """Whether a proved rule replaces a row: always one that cannot be read or is not proved."""
        try:
            there = Entry(self._name, text).read()
        except ValueError:
            return True
        return there.id != rule.id or bool(check(there, load_axioms())) or preferred([there, rule]) is rule

    def _texts(self) -> dict[str, str]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_RULES.c.id, _RULES.c.text).order_by(_RULES.c.id))
            return {row.id: row.text for row in rows}

    def entries(self) -> list[Entry]:
        """All rules, by identity, as they are written. Raises StoreError where the database is damaged."""
        return [Entry(f"{self._name}, row {identity}", text) for identity, text in self._guard(self._texts).items()]

    def rules(self) -> list[Rule]:
        """All rules, by identity, each checked again.

        Raises:
            StoreError: the database is damaged or holds a rule that its certificate does not prove.
        """
        found = []
        for identity, text in self._guard(self._texts).items():
            try:
                rule = Entry(f"{self._name}, row {identity}", text).read()
                if rule.id != identity:
                    raise ValueError(f"{self._name}, row {identity}: holds the rule {rule.id}")
            except ValueError as problem:
                raise StoreError(f"{problem}; delete that row or restore a copy of the database") from None
            found.append(rule)
        return _proved(found, self._name)

    def __len__(self) -> int:
        def count() -> int:
            with self._engine.connect() as connection:
                return connection.execute(sa.select(sa.func.count()).select_from(_RULES)).scalar_one()

        return self._guard(count)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> RuleStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def _proved(rules: list[Rule], name: str) -> list[Rule]:
    for rule in rules:
        failures = check(rule, load_axioms())
        if failures:
            raise StoreError(f"{name}: rule {rule.id} is not proved: {failures[0]}; run 'rulegen audit {name}' and remove it")
    return rules


@lru_cache(maxsize=1)
def _shipped() -> tuple[Rule, ...]:
    rules: dict[str, Rule] = {}
    for entry in sorted(resources.files("rules_db").joinpath("shipped").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".rules"):
            for rule in parse_rules(entry.read_text(encoding="utf-8"), entry.name):
                rules.setdefault(rule.id, rule)
    return tuple(rules.values())


def shipped_rules() -> list[Rule]:
    """The rules that come with the package, those of several groups once."""
    return list(_shipped())


def open_rules(url: str | None = None) -> list[Rule]:
    """The rules to work with: those shipped, or those of a ``.rules`` file, a database path or a database URL.

    Raises:
        StoreError: they cannot be read, or one is not proved by its certificate.
    """
    if url is None:
        return shipped_rules()
    if url.endswith(".rules"):
        try:
            return _proved(read_rules(url), url)
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None
    with RuleStore.open(url, create=False) as store:
        return store.rules()
