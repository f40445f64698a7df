"""The rules to work with: those that ship with the package, and those of a file or database that is named.

The shipped rules are text (``shipped/*.rules``). A record beside them (``shipped/checked.json``), made where the package is,
says which text was checked by which trusted base (:mod:`rules_db.stamp`). Where it says so of another text, or of another
base, the rules are checked at first use, and a copy in the cache folder, which is named by both, remembers that they were.
``shipped/packed.json`` is what that base read of that text, for runs, which look for nearly all of it in a model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from mugraph.deadline import heed
from rules_db.databases import without_password
from rules_db.entries import Entry, RuleBook, Usable, proved, told_of, way_out
from rules_db.exchange import RuleTextError, read_text, split_rules
from rules_db.files import StoreError, cache_folder, is_text, write_text
from rules_db.packed import pack, unpack
from rules_db.remembered import PresumedRules
from rules_db.stamp import stamp
from rules_db.store import RuleStore
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = [
    "ShippedRules",
    "are_proved",
    "open_presumed",
    "open_rules",
    "packed_rules",
    "presumed_rules",
    "read_entries",
    "read_shipped",
    "record_of_check",
    "shipped_rules",
]

_LOG = logging.getLogger(__name__)

_RECORD, _PACKED = "checked.json", "packed.json"
_READING = threading.Lock()


def _shipped_entries() -> list[Entry]:
    """The shipped text, unread."""
    files = [file for file in resources.files("rules_db").joinpath("shipped").iterdir() if file.name.endswith(".rules")]
    blocks = [(file.name, split_rules(file.read_text(encoding="utf-8"))) for file in sorted(files, key=lambda file: file.name)]
    return [Entry(name, text, line) for name, entries in blocks for line, text in entries]


@dataclass(frozen=True)
class _Check:
    """What a check of the shipped rules is one of: two are the same where both agree.

    Attributes:
        stamp: that of the trusted base, which checks.
        rules: a digest of the text that is checked.
    """

    stamp: str
    rules: str

    @property
    def text(self) -> str:
        """What a record of it holds."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def is_recorded(self) -> bool:
        """Whether the package says that it was made, where the package was."""
        return _shipped_text(_RECORD) == self.text

    def packed(self) -> str:
        """The packed form of the rules as this base reads them; empty where the package has none of this text and base."""
        text = _shipped_text(_PACKED)
        return text.removeprefix(self.text) if text.startswith(self.text) else ""


def _shipped_text(name: str) -> str:
    """A file beside the shipped rules; empty where it cannot be read."""
    try:
        return resources.files("rules_db").joinpath("shipped", name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True)
class _Shipment:
    """The shipped rules, unread, those of several groups once, and what a check of them is."""

    entries: tuple[Entry, ...]
    check: _Check

    @property
    def text(self) -> str:
        """All of it, which the file holds that records the check."""
        return "\n".join(entry.text for entry in self.entries)

    def read(self) -> list[Rule]:
        """The rules. Raises StoreError for one that cannot be read."""
        try:
            return [entry.read() for entry in self.entries]
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None

    def is_proved(self, path: Path) -> bool:
        """Whether the package, or else a file, records that these rules were checked; a damaged or altered file is reported."""
        if self.check.is_recorded():
            return True
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


def _shipment() -> _Shipment:
    """The shipped text, once a process: who asks while another thread reads it waits for that."""
    with _READING:
        return _read_shipment()


@lru_cache(maxsize=1)
def _read_shipment() -> _Shipment:
    entries: dict[str, Entry] = {}
    for entry in _shipped_entries():
        entries.setdefault(entry.name, entry)
    content = hashlib.blake2b(digest_size=16)
    for entry in entries.values():
        content.update(entry.text.encode())
    return _Shipment(tuple(entries.values()), _Check(stamp(), content.hexdigest()))


def read_shipped() -> None:
    """Reads the shipped text and the trusted base, a hundred files, for whoever asks for the rules later."""
    _shipment()


def _copy(folder: Path) -> Path:
    """The file that records that the shipped rules were checked here."""
    check = _shipment().check
    return folder / f"shipped-{check.stamp}-{check.rules}.rules"


def record_of_check() -> str:
    """Checks the shipped rules, whatever is recorded of them, and returns the text of ``shipped/checked.json`` that says so.

    Raises:
        StoreError: one cannot be read or is not proved.
    """
    shipment = _shipment()
    proved(shipment.read(), "the shipped rules")
    return shipment.check.text


def packed_rules() -> str:
    """The text of ``shipped/packed.json``: the shipped rules as they are read. Raises StoreError for one that cannot be."""
    shipment = _shipment()
    return shipment.check.text + pack(shipment.read())


def are_proved() -> bool:
    """Whether it is recorded that the shipped rules were checked."""
    return _shipment().is_proved(_copy(cache_folder()))


class ShippedRules(RuleBook):
    """The shipped rules as their text claims them to be: one is read when it is asked for, those of a program are unpacked.

    Nothing may rest on what was unpacked before :meth:`objection` was asked about it.
    """

    def __init__(self, shipment: _Shipment) -> None:
        super().__init__(shipment.entries)
        self._shipment, self._is_packed = shipment, True
        self._unpacked: dict[str, Entry] = {}
        self._objections: dict[str, str] = {}

    def within(self, operators: Collection[str]) -> list[Rule]:
        """As :meth:`rules_db.entries.RuleBook.within`: all rules are unpacked at once where the package has them packed."""
        if self._is_packed:
            self._is_packed = False
            self._unpack()
        return super().within(operators)

    def _unpack(self) -> None:
        packed, entries = self._shipment.check.packed(), self._shipment.entries
        if not packed:
            return
        heed()
        try:
            rules = unpack(packed, [(entry.name, entry.text) for entry in entries])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as problem:
            _LOG.warning("the package's %s is damaged (%s); the shipped rules are read instead", _PACKED, problem)
            return
        for place, (rule, entry) in enumerate(zip(rules, entries, strict=True)):
            if rule is not None and self._rules[place] is entry:  # one that was read stays the same object
                self._rules[place], self._unpacked[rule.id] = rule, entry

    def objection(self, rule: Rule) -> str:
        """Why a rule may not be applied: what was unpacked is not what its text says; empty where it may."""
        if rule.id not in self._objections:
            entry = self._unpacked.get(rule.id)
            self._objections[rule.id] = "" if entry is None else _difference(rule, entry)
        return self._objections[rule.id]


def _difference(unpacked: Rule, entry: Entry) -> str:
    """What is wrong with a rule that was unpacked; empty where it is the one that is written."""
    try:
        read = entry.read(is_known=True)
    except RuleTextError as problem:
        return str(problem)
    read = replace(read, certificate=unpacked.certificate)  # which is the text's, and was never packed
    is_same = read == unpacked and repr(_samples_of(read)) == repr(_samples_of(unpacked))  # 1 is neither 1.0 nor true
    return "" if is_same else f"the package's {_PACKED} holds another rule than {entry.place} under its name"


def _samples_of(rule: Rule) -> tuple[object, ...]:
    """What of a rule holds values that are not within terms."""
    return rule.types, rule.conditions, rule.attrs


@lru_cache(maxsize=1)
def presumed_rules() -> RuleBook:
    """The shipped rules as their text claims them to be, once a process.

    They are those that :func:`shipped_rules` gives once they are proved: nothing may rest on them before, nor on one of which
    :meth:`ShippedRules.objection` was not asked.
    """
    return ShippedRules(_shipment())


@lru_cache(maxsize=4)
def _proved_rules(folder: Path) -> tuple[Rule, ...]:
    """The shipped rules, checked, unless the package or a file in ``folder`` records that it was done. Raises StoreError."""
    shipment, path = _shipment(), _copy(folder)
    if shipment.is_proved(path):
        return tuple(RuleBook(shipment.entries))
    rules = shipment.read()
    proved(rules, "the shipped rules")
    try:
        shipment.record(path)
    except (OSError, StoreError) as problem:
        _LOG.warning("%s; the shipped rules are checked at each start; set $ONNX_SUPEROPT_CACHE to a writable folder", problem)
    return tuple(rules)


def shipped_rules() -> list[Rule]:
    """The rules that come with the package, those of several groups once.

    They are text. Unless the package records that this text was checked by the trusted base that is installed, they are checked
    at first use and copied into a file in the cache folder, which stands for the check afterwards: it must hold that very text.

    Raises:
        StoreError: a shipped rule cannot be read or is not proved.
    """
    return list(_proved_rules(cache_folder()))


def read_entries(url: str | None = None, identities: Collection[str] | None = None) -> list[Entry]:
    """The texts of the rules that :func:`open_rules` would read, one entry each and unparsed, for an audit.

    Args:
        url: where they are.
        identities: those of the rules that are wanted, without the others; ``None`` for all.

    Raises:
        StoreError: there is no such file or database, or it cannot be read as a whole.
    """
    if url is None:
        entries = _shipped_entries()
    elif is_text(url):
        try:
            entries = [Entry(url, text, line) for line, text in split_rules(read_text(url))]
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None
    else:
        with RuleStore.open(url, create=False) as store:
            return store.entries(identities)
    return [entry for entry in entries if identities is None or entry.name in identities]


def open_rules(url: str | None = None, trust: Trust = Trust.PROVED, tell: Callable[[str], None] | None = None) -> list[Rule]:
    """The rules to work with: those shipped, or those of a ``.rules`` file, a database path or a database URL.

    Args:
        url: where they are.
        trust: the evidence that each has to bring; those that ship are proved.
        tell: told in one sentence what was skipped; without it all must stand.

    Raises:
        StoreError: they cannot be read, or one, or with ``tell`` each, does not stand by its certificate, has less evidence than
            is asked for or is not understood by this version.
    """
    if url is None:
        return shipped_rules()
    entries, name = read_entries(url), without_password(url)
    if tell is not None:
        usable = Usable.of(entries, trust)
        if usable.rules or not usable.skipped:
            if usable.skipped:
                tell(usable.told(name))
            return list(usable.rules)
    try:
        rules = [entry.read() for entry in entries]
    except RuleTextError as problem:
        raise StoreError(f"{problem}; {way_out(name)}") from None
    return proved(rules, name, trust)


def open_presumed(url: str, trust: Trust, tell: Callable[[str], None], until: float = math.inf) -> RuleBook:
    """The rules of a ``.rules`` file or a database, for a run.

    As :func:`open_rules`, but those are presumed to stand of which that is remembered, and each is read when it is asked for.
    Nothing may rest on one before :meth:`rules_db.entries.RuleBook.objection` was asked about it.

    Args:
        until: the instant of :func:`time.monotonic` after which no more are checked, but for a few; ``tell`` is told then.

    Raises:
        StoreError: they cannot be read, or none can be used.
    """
    presumed = PresumedRules.of(read_entries(url), trust, until=until)
    if presumed.unchecked:
        every = len(presumed) + len(presumed.skipped) + len(presumed.unchecked)
        counted = f"{every - len(presumed.unchecked):,} of {every:,} rules of {without_password(url)}"
        tell(f"{counted} were checked in time, and no other is used; another run goes on from there")
    elif presumed.skipped and not len(presumed):
        return RuleBook(open_rules(url, trust, tell))  # which says why
    if presumed.skipped:
        tell(told_of(presumed.skipped, len(presumed), without_password(url)))
    elif not len(presumed) and not presumed.unchecked:
        tell(f"{without_password(url)} holds no rule")
    return presumed
