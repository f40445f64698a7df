"""The rules to work with: those that ship with the package, and those of a file or database that is named.

The shipped rules are text (``shipped/*.rules``), checked at first use. A database in the cache folder remembers that they
were: it is named by the digest of the text and by the stamp of the trusted base (:mod:`rules_db.stamp`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from mugraph.files import Draft
from rules_db.entries import Entry, proved
from rules_db.exchange import RuleTextError, read_rules, read_text, split_rules
from rules_db.files import StoreError, cache_folder
from rules_db.stamp import stamp
from rules_db.store import SCHEMA_VERSION, RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["are_proved", "open_rules", "presumed_rules", "read_entries", "shipped_rules"]

_LOG = logging.getLogger(__name__)


def _shipped_entries() -> list[Entry]:
    """The shipped text, unread."""
    files = [file for file in resources.files("rules_db").joinpath("shipped").iterdir() if file.name.endswith(".rules")]
    blocks = [(file.name, split_rules(file.read_text(encoding="utf-8"))) for file in sorted(files, key=lambda file: file.name)]
    return [Entry(name, text, line) for name, entries in blocks for line, text in entries]


def _write_database(path: Path, rows: Mapping[str, str]) -> None:
    """A database of these rows, whole or not at all. Raises OSError, StoreError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Draft(path) as draft:
        with RuleStore.open(str(draft.path)) as store:
            store.fill(rows)
        draft.replace()


def _read_database(path: Path, rows: Mapping[str, str]) -> bool:
    """Whether there is a database of these rows; a damaged or altered one is reported."""
    if not path.exists():
        return False
    try:
        with RuleStore.open(str(path), create=False) as store:
            if store.texts() == rows:
                return True
        reason = f"{path}: its rules are not those that the package ships"
    except StoreError as problem:
        reason = str(problem)
    _LOG.warning("%s; it is written anew", reason)
    return False


@dataclass(frozen=True)
class _Shipment:
    """The shipped rules, unread, those of several groups once, and a digest of their text and of all that decides whether it is
    proved."""

    entries: tuple[Entry, ...]
    digest: str

    @property
    def texts(self) -> Mapping[str, str]:
        """The text of each rule, by its identity."""
        return {entry.name: entry.text for entry in self.entries}

    def read(self, *, is_known: bool) -> tuple[Rule, ...]:
        """The rules. Raises StoreError."""
        try:
            return tuple(entry.read(is_known=is_known) for entry in self.entries)
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None


@lru_cache(maxsize=1)
def _shipment() -> _Shipment:
    """The shipped text, once a process."""
    entries: dict[str, Entry] = {}
    for entry in _shipped_entries():
        entries.setdefault(entry.name, entry)
    content = hashlib.blake2b(f"schema {SCHEMA_VERSION} {stamp()}".encode(), digest_size=8)
    for entry in entries.values():
        content.update(entry.text.encode())
    return _Shipment(tuple(entries.values()), content.hexdigest())


@lru_cache(maxsize=1)
def _presumed_rules() -> tuple[Rule, ...]:
    """The shipped rules as their text claims them to be, once a process. Raises StoreError."""
    return _shipment().read(is_known=True)


def _database(folder: Path) -> Path:
    """The database that records that the shipped rules were checked."""
    return folder / f"shipped-{_shipment().digest}.sqlite"


def are_proved() -> bool:
    """Whether it is recorded that the shipped rules were checked."""
    return _read_database(_database(cache_folder()), _shipment().texts)


def presumed_rules() -> list[Rule]:
    """The shipped rules, as :func:`shipped_rules` gives them once they are proved: nothing may rest on them before.

    Raises:
        StoreError: a shipped rule cannot be read.
    """
    return list(_presumed_rules())


@lru_cache(maxsize=4)
def _proved_rules(folder: Path) -> tuple[Rule, ...]:
    """The shipped rules, checked, unless a database in ``folder`` records that it was done. Raises StoreError."""
    shipment, path = _shipment(), _database(folder)
    if _read_database(path, shipment.texts):
        return _presumed_rules()
    rules = shipment.read(is_known=False)
    proved(list(rules), "the shipped rules")
    try:
        _write_database(path, shipment.texts)
    except (OSError, StoreError) as problem:
        _LOG.warning("%s; the shipped rules are checked at each start; set $ONNX_SUPEROPT_CACHE to a writable folder", problem)
    return rules


def shipped_rules() -> list[Rule]:
    """The rules that come with the package, those of several groups once.

    They are text. At first use they are checked and put into an SQLite database in the cache folder, which stands for the
    check afterwards: its rows must be that very text.

    Raises:
        StoreError: a shipped rule cannot be read or is not proved.
    """
    return list(_proved_rules(cache_folder()))


def read_entries(url: str | None = None) -> list[Entry]:
    """The texts of the rules that :func:`open_rules` would read, one entry each and unparsed, for an audit.

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


def open_rules(url: str | None = None, trust: Trust = Trust.PROVED) -> list[Rule]:
    """The rules to work with: those shipped, or those of a ``.rules`` file, a database path or a database URL.

    Args:
        url: where they are.
        trust: the evidence that each has to bring; those that ship are proved.

    Raises:
        StoreError: they cannot be read, or one does not stand by its certificate or has less evidence than is asked for.
    """
    if url is None:
        return shipped_rules()
    if url.endswith(".rules"):
        try:
            return proved(read_rules(url), url, trust)
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None
    with RuleStore.open(url, create=False) as store:
        return store.rules(trust)
