"""The rules to work with: those that ship with the package, and those of a file or database that is named.

The shipped rules are text (``shipped/*.rules``), checked at first use. A copy in the cache folder remembers that they
were: it is named by the digest of the text and of the stamp of the trusted base (:mod:`rules_db.stamp`).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from rules_db.entries import Entry, RuleBook, proved
from rules_db.exchange import RuleTextError, read_rules, read_text, split_rules
from rules_db.files import StoreError, cache_folder, write_text
from rules_db.stamp import stamp
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["are_proved", "open_rules", "presumed_rules", "read_entries", "shipped_rules"]

_LOG = logging.getLogger(__name__)


def _shipped_entries() -> list[Entry]:
    """The shipped text, unread."""
    files = [file for file in resources.files("rules_db").joinpath("shipped").iterdir() if file.name.endswith(".rules")]
    blocks = [(file.name, split_rules(file.read_text(encoding="utf-8"))) for file in sorted(files, key=lambda file: file.name)]
    return [Entry(name, text, line) for name, entries in blocks for line, text in entries]


@dataclass(frozen=True)
class _Shipment:
    """The shipped rules, unread, those of several groups once, and a digest of their text and of all that decides whether it is
    proved."""

    entries: tuple[Entry, ...]
    digest: str

    @property
    def text(self) -> str:
        """All of it, which the file holds that records the check."""
        return "\n".join(entry.text for entry in self.entries)

    def is_recorded(self, path: Path) -> bool:
        """Whether a file records that these rules were checked; a damaged or altered one is reported."""
        if not path.exists():
            return False
        try:
            if path.read_text(encoding="utf-8") == self.text:
                return True
            reason = f"{path}: its rules are not those that the package ships"
        except (OSError, UnicodeDecodeError) as problem:
            reason = f"{path}: {problem}"
        _LOG.warning("%s; it is written anew", reason)
        return False

    def record(self, path: Path) -> None:
        """Records that these rules were checked. Raises OSError, StoreError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.text)


@lru_cache(maxsize=1)
def _shipment() -> _Shipment:
    """The shipped text, once a process."""
    entries: dict[str, Entry] = {}
    for entry in _shipped_entries():
        entries.setdefault(entry.name, entry)
    content = hashlib.blake2b(stamp().encode(), digest_size=8)
    for entry in entries.values():
        content.update(entry.text.encode())
    return _Shipment(tuple(entries.values()), content.hexdigest())


def _record(folder: Path) -> Path:
    """The file that records that the shipped rules were checked."""
    return folder / f"shipped-{_shipment().digest}.rules"


def are_proved() -> bool:
    """Whether it is recorded that the shipped rules were checked."""
    return _shipment().is_recorded(_record(cache_folder()))


@lru_cache(maxsize=1)
def presumed_rules() -> RuleBook:
    """The shipped rules as their text claims them to be, once a process, each read when it is asked for.

    They are those that :func:`shipped_rules` gives once they are proved: nothing may rest on them before.
    """
    return RuleBook(_shipment().entries)


@lru_cache(maxsize=4)
def _proved_rules(folder: Path) -> tuple[Rule, ...]:
    """The shipped rules, checked, unless a file in ``folder`` records that it was done. Raises StoreError."""
    shipment, path = _shipment(), _record(folder)
    if shipment.is_recorded(path):
        return tuple(presumed_rules())
    try:
        rules = [entry.read() for entry in shipment.entries]
    except RuleTextError as problem:
        raise StoreError(str(problem)) from None
    proved(rules, "the shipped rules")
    try:
        shipment.record(path)
    except (OSError, StoreError) as problem:
        _LOG.warning("%s; the shipped rules are checked at each start; set $ONNX_SUPEROPT_CACHE to a writable folder", problem)
    return tuple(rules)


def shipped_rules() -> list[Rule]:
    """The rules that come with the package, those of several groups once.

    They are text. At first use they are checked and copied into a file in the cache folder, which stands for the check
    afterwards: it must hold that very text.

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
