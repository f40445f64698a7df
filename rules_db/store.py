"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read. The rules that the package
ships are text (``shipped/*.rules``), checked by ``rulegen audit`` and the tests, and need no database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from types import TracebackType
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from rules_db.axioms import load_axioms
from rules_db.check import check
from rules_db.exchange import RuleTextError, format_rule, parse_rules, read_rules
from rules_db.rule import Rule

__all__ = ["SCHEMA_VERSION", "RuleStore", "StoreError", "open_rules", "shipped_rules"]

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

    Two processes may write one SQLite file: every rule is its own insert, an identity that is there already is left alone.
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
            engine = sa.create_engine(parsed, connect_args={"timeout": 30} if path else {})
        except (sa.exc.SQLAlchemyError, ImportError) as problem:
            raise StoreError(f"{name}: no driver for this database ({problem}); install it or use an SQLite path") from None
        store = RuleStore(engine, name)
        try:
            store._guard(lambda: store._prepare(create))
        except StoreError:
            store.close()
            raise
        return store

    def _prepare(self, create: bool) -> None:
        with self._engine.begin() as connection:
            tables = set(sa.inspect(connection).get_table_names())
            if _ABOUT.name not in tables:
                if tables:
                    raise StoreError(f"{self._name}: this database is not one of rules; give another path")
                if not create:
                    raise StoreError(f"{self._name}: this database is empty, it holds no rules; {_grow_one(self._name)}")
                _METADATA.create_all(connection)
                connection.execute(_ABOUT.insert().values(id=1, version=SCHEMA_VERSION))
                return
            version = connection.execute(sa.select(_ABOUT.c.version)).scalar()
        if version is None or version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._name}: written by a newer version (schema {version}, this one reads {SCHEMA_VERSION}); "
                "upgrade onnx-superopt"
            )

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
        known = self._guard(self._ids)
        new = {rule.id: rule for rule in rules if rule.id not in known}
        for rule in new.values():
            failures = check(rule, load_axioms())
            if failures:
                raise StoreError(f"rule {rule.id} is not proved: {failures[0]}; run 'rulegen audit' on where it comes from")

        def insert() -> int:
            count = 0
            with self._engine.begin() as connection:
                for identity, rule in new.items():
                    values = {"id": identity, "text": format_rule(rule)}
                    try:
                        with connection.begin_nested():
                            connection.execute(_RULES.insert().values(values))
                        count += 1
                    except sa.exc.IntegrityError:
                        continue  # another process has just added it
            return count

        return self._guard(insert) if new else 0

    def _ids(self) -> set[str]:
        with self._engine.connect() as connection:
            return set(connection.execute(sa.select(_RULES.c.id)).scalars())

    def rules(self, *, verify: bool = True) -> list[Rule]:
        """All rules, by identity, each checked again; an audit, which reports what is not proved, leaves that to itself.

        Raises:
            StoreError: the database is damaged or, with ``verify``, holds a rule that its certificate does not prove.
        """

        def select() -> list[tuple[str, str]]:
            with self._engine.connect() as connection:
                rows = connection.execute(sa.select(_RULES.c.id, _RULES.c.text).order_by(_RULES.c.id))
                return [(row.id, row.text) for row in rows]

        found = []
        for identity, text in self._guard(select):
            try:
                (rule,) = parse_rules(text, f"{self._name}, rule {identity}")
            except ValueError as problem:
                raise StoreError(f"{problem}; delete that row or restore a copy of the database") from None
            found.append(rule)
        return _proved(found, self._name) if verify else found

    def __len__(self) -> int:
        return len(self._guard(self._ids))

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
