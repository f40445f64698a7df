"""Where rules live: a table of text blocks in any database SQLAlchemy speaks to, an SQLite file by default.

Nothing in a database is trusted: a rule is checked when it enters and again when it is read. The rules that the package
ships are text (``shipped/*.rules``), which is checked at first use; a database in the cache folder remembers that it was.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EISDIR
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from rules_db.exchange import RuleTextError, format_rule, parse_rule, read_rules, read_text, split_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = [
    "SCHEMA_VERSION",
    "Entry",
    "RuleStore",
    "StoreError",
    "by_size",
    "cache_folder",
    "check_writable",
    "open_rules",
    "preferred",
    "read_entries",
    "shipped_rules",
    "write_text",
]

SCHEMA_VERSION = 1
"""Raised with every change of the tables."""

_LOG = logging.getLogger(__name__)
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
        identity: that of the database's row, which the block must have.
    """

    place: str
    text: str
    line: int = 1
    identity: str = ""

    @property
    def name(self) -> str:
        """The identity that is claimed, or the place."""
        found = re.search(r"^rule[ \t]+(\S+)", self.text, re.MULTILINE)
        return self.identity or (found.group(1) if found else f"at {self.place}:{self.line}")

    def read(self) -> Rule:
        """Raises :class:`RuleTextError`, naming place and line."""
        rule = parse_rule(self.text, self.place, self.line)
        if self.identity not in ("", rule.id):
            raise RuleTextError(f"{self.place}:{self.line}: holds rule {rule.id}, not {self.identity}")
        return rule


def preferred(rules: Iterable[Rule]) -> Rule:
    """The one to keep of rules with one identity, in whatever order they come.

    Proofs from operator properties win, then the more careful float class, then the shorter proof, then the smaller text.
    """

    def key(rule: Rule) -> tuple[bool, int, int, int, str]:
        text, proof = format_rule(rule), rule.certificate
        return proof.kind != "axioms", -list(FloatClass).index(rule.float_class), len(proof.instances), len(text), text

    return min(rules, key=key)


def cache_folder() -> Path:
    """``$ONNX_SUPEROPT_CACHE`` or the user's cache directory."""
    base = os.environ.get("ONNX_SUPEROPT_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "onnx-superopt")
    return Path(base).expanduser()


def by_size(rules: Iterable[Rule]) -> list[Rule]:
    """The order of exported files: the smallest programs first, then by identity."""
    return sorted(rules, key=lambda rule: (sum(term.size for term in (*rule.source, *rule.target)), rule.id))


def write_text(path: str | Path, text: str) -> None:
    """Writes a file whole or not at all. Raises StoreError where that cannot be."""
    path, name = Path(path), None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.chmod(name, 0o644)
        os.replace(name, path)
        name = None
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None
    finally:
        if name is not None:
            os.unlink(name)


def check_writable(path: str | Path) -> None:
    """Raises StoreError where :func:`write_text` would: to be asked before long work."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as problem:
        raise StoreError(f"{path}: cannot be written ({problem.strerror}); give another path") from None


def _as_url(url: str) -> sa.URL:
    if "://" in url:
        try:
            return make_url(url)
        except (sa.exc.ArgumentError, ValueError):  # the latter: a port that is no number
            raise StoreError(f"{url}: not a database URL; write e.g. sqlite:///rules.db or postgresql://host/name") from None
    return sa.URL.create("sqlite", database=os.path.abspath(url))


def _leave_transactions_to_us(connection: Any, record: object) -> None:
    connection.isolation_level = None  # else the driver begins a transaction at the first change, after what was read


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


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

    def check_writable(self) -> None:
        """Raises StoreError where no rule could be added: to be asked before long work."""

        def nothing() -> None:
            with self._writing() as connection:
                connection.execute(_RULES.delete().where(_RULES.c.id == ""))

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
            there = Entry(self._name, text, identity=rule.id).read()
        except RuleTextError:
            return True
        return bool(check(there, load_axioms())) or preferred([there, rule]) is rule

    def _texts(self) -> dict[str, str]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(_RULES.c.id, _RULES.c.text).order_by(_RULES.c.id))
            return {str(row.id): row.text if isinstance(row.text, str) else "" for row in rows}  # a blob is no rule

    def _insert(self, rows: Mapping[str, str]) -> None:
        """Rows as they are, for a new database whose rules were checked."""
        with self._writing() as connection:
            connection.execute(_RULES.insert(), [{"id": identity, "text": text} for identity, text in rows.items()])

    def entries(self) -> list[Entry]:
        """All rules, by identity, as they are written. Raises StoreError where the database is damaged."""
        rows = self._guard(self._texts).items()
        return [Entry(f"{self._name}, row {identity}", text, identity=identity) for identity, text in rows]

    def rules(self) -> list[Rule]:
        """All rules, by identity, each checked again.

        Raises:
            StoreError: the database is damaged or holds a rule that its certificate does not prove.
        """
        return _proved(self.unchecked(), self._name)

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


def _files(folder: str, ending: str) -> list[Traversable]:
    """Files of this package, by name."""
    files = resources.files("rules_db").joinpath(folder).iterdir()
    return sorted((file for file in files if file.name.endswith(ending)), key=lambda file: file.name)


def _shipped_entries() -> list[Entry]:
    """The shipped text, unread."""
    found = [(file.name, split_rules(file.read_text(encoding="utf-8"))) for file in _files("shipped", ".rules")]
    return [Entry(name, text, line) for name, blocks in found for line, text in blocks]


def _shipped_digest(entries: Iterable[Entry]) -> str:
    """16 hexadecimal digits of the shipped text and of all that decides whether it is proved."""
    content = hashlib.blake2b(f"schema {SCHEMA_VERSION}".encode(), digest_size=8)
    for entry in entries:
        content.update(entry.text.encode())
    for file in [*_files("axioms", ".axioms"), *_files("", ".py"), *_files("trust", ".py")]:
        content.update(file.read_bytes())
    return content.hexdigest()


def _write_database(path: Path, rows: Mapping[str, str]) -> None:
    """A database of these rows, whole or not at all. Raises OSError, StoreError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with RuleStore.open(name) as store:
            store._guard(lambda: store._insert(rows))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _read_database(path: Path, rows: Mapping[str, str]) -> bool:
    """Whether there is a database of these rows; what is damaged or altered is told."""
    if not path.exists():
        return False
    try:
        with RuleStore.open(str(path), create=False) as store:
            if store._guard(store._texts) == rows:
                return True
        reason = f"{path}: its rules are not those that the package ships"
    except StoreError as problem:
        reason = str(problem)
    _LOG.warning("%s; it is written anew", reason)
    return False


@lru_cache(maxsize=4)
def _shipped(folder: Path) -> tuple[Rule, ...]:
    """The shipped rules; a database in ``folder`` records that this text was checked with these properties."""
    entries: dict[str, Entry] = {}
    for entry in _shipped_entries():
        entries.setdefault(entry.name, entry)
    rows = {name: entry.text for name, entry in entries.items()}
    path = folder / f"shipped-{_shipped_digest(entries.values())}.sqlite"
    try:
        rules = [entry.read() for entry in entries.values()]
    except RuleTextError as problem:
        raise StoreError(str(problem)) from None
    if not _read_database(path, rows):
        _proved(rules, "the shipped rules")
        try:
            _write_database(path, rows)
        except (OSError, StoreError) as problem:
            _LOG.warning(
                "%s; the shipped rules are checked at each start; set $ONNX_SUPEROPT_CACHE to a writable folder", problem
            )
    return tuple(rules)


def shipped_rules() -> list[Rule]:
    """The rules that come with the package, those of several groups once.

    They are text. At first use they are checked and put into an SQLite database in the cache folder, which stands for the
    check afterwards: its rows must be that very text.

    Raises:
        StoreError: a shipped rule cannot be read or is not proved.
    """
    return list(_shipped(cache_folder()))


def read_entries(url: str | None = None) -> list[Entry]:
    """What :func:`open_rules` would read, block by block and unread, for an audit.

    Raises:
        StoreError: there is no such file or database, or it cannot be read as a whole.
    """
    if url is None:
        return _shipped_entries()
    if url.endswith(".rules"):
        try:
            return [Entry(url, text, line) for line, text in split_rules(read_text(url))]
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None
    with RuleStore.open(url, create=False) as store:
        return store.entries()


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
