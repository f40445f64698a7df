"""The log of a database of rules: what was accepted, checked again and removed, when and by whom, each entry chained to the last.

A link is a digest of its entry and of the link before it, so that the last one stands for all that happened: of two copies
with one link in common, all before that is the same, and whoever kept a link finds out whether history was rewritten since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from rules_db.late import LateModule

if TYPE_CHECKING:
    import sqlalchemy as sa
else:
    sa = LateModule("sqlalchemy")

__all__ = [
    "Action",
    "LogEntry",
    "append",
    "broken_link",
    "differences",
    "history_table",
    "never_accepted",
    "read_history",
    "text_digest",
    "who",
]

_START = "0" * 64


class Action(StrEnum):
    """What happened to a rule. One that was there before the log is adopted by whoever audits it."""

    ACCEPTED = "accepted"
    ADOPTED = "adopted"
    CHECKED = "checked"
    REMOVED = "removed"


@dataclass(frozen=True)
class LogEntry:
    """One thing that happened to one rule.

    Attributes:
        number: from 1.
        rule: its identity.
        action: one of :class:`Action`.
        text_digest: of the rule's text.
        version, stamp: of the package and its trusted base.
        who: as ``$ONNX_SUPEROPT_WHO`` says; empty where nobody said.
        at: the time, in UTC.
        link: that chains it to the entry before it.
    """

    number: int
    rule: str
    action: str
    text_digest: str
    version: str
    stamp: str
    who: str
    at: str
    link: str = ""

    def linked(self, before: str) -> str:
        """The link that the entry must have behind another one's."""
        content = "\n".join([before, *map(str, astuple(self)[:-1])])
        return hashlib.blake2b(content.encode(), digest_size=32).hexdigest()

    def __str__(self) -> str:
        by = f" by {self.who}" if self.who else ""
        return f"{self.action} {self.at}{by}, version {self.version}, trusted code {self.stamp}"


def who() -> str:
    """The name that this process's entries have: a line of at most 64 characters."""
    return " ".join(os.environ.get("ONNX_SUPEROPT_WHO", "").split())[:64]


def text_digest(text: str) -> str:
    """The digest of a rule's text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def history_table(metadata: sa.MetaData) -> sa.Table:
    """The table of the log."""
    names = [field.name for field in fields(LogEntry)]
    number = sa.Column("number", sa.Integer, primary_key=True, autoincrement=False)
    return sa.Table("rule_log", metadata, number, *(sa.Column(name, sa.String(64), nullable=False) for name in names[1:]))


def append(
    connection: sa.Connection, table: sa.Table, action: Action, digests: Mapping[str, str], version: str, stamp: str
) -> None:
    """Adds an entry for each of some rules, by identity. Requires the writers' lock."""
    last = connection.execute(sa.select(table.c.number, table.c.link).order_by(table.c.number.desc()).limit(1)).one_or_none()
    number, link = (0, _START) if last is None else (last.number, last.link)
    now, by, rows = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), who(), []
    for rule, digest in digests.items():
        number += 1
        entry = LogEntry(number, rule, str(action), digest, version, stamp, by, now)
        link = entry.linked(link)
        rows.append({field.name: getattr(entry, field.name) for field in fields(entry)} | {"link": link})
    if rows:
        connection.execute(table.insert(), rows)


def read_history(connection: sa.Connection, table: sa.Table) -> list[LogEntry]:
    """All entries, in order."""
    return [LogEntry(*row) for row in connection.execute(sa.select(table).order_by(table.c.number))]


def broken_link(entries: Sequence[LogEntry]) -> int | None:
    """The number of the first entry that does not follow from those before it; ``None`` where all do."""
    link = _START
    for number, entry in enumerate(entries, 1):
        if entry.number != number or entry.link != entry.linked(link):
            return number
        link = entry.link
    return None


def differences(entries: Iterable[LogEntry], texts: Mapping[str, str]) -> dict[str, str]:
    """What the rows hold that the log does not tell, by identity."""
    accepted = _accepted(entries)
    found = {}
    for rule in sorted({*accepted, *texts}):
        if rule not in texts:
            found[rule] = "was accepted and is not there"
        elif rule not in accepted:
            found[rule] = "is there and was never accepted: an earlier version wrote it, or nobody; --adopt audits such rules"
        elif text_digest(texts[rule]) != accepted[rule]:
            found[rule] = "is not the text that was accepted"
    return found


def never_accepted(entries: Iterable[LogEntry], texts: Iterable[str]) -> frozenset[str]:
    """Those of the rows' identities of which the log tells nothing."""
    return frozenset(texts) - _accepted(entries).keys()


def _accepted(entries: Iterable[LogEntry]) -> dict[str, str]:
    """The digest of the text that each rule must have."""
    accepted: dict[str, str] = {}
    for entry in entries:
        if entry.action == Action.ACCEPTED:
            accepted[entry.rule] = entry.text_digest
        elif entry.action == Action.ADOPTED:
            accepted.setdefault(entry.rule, entry.text_digest)
        elif entry.action == Action.REMOVED:
            accepted.pop(entry.rule, None)
    return accepted
