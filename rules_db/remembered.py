"""What is remembered of checks: by which evidence texts of rules stood, by their content, when this trusted base checked them.

A rule of a user's database is read and checked once. Afterwards a line in the cache folder says of its text that it stands.
Anybody may have written there: so a line is a presumption. It spares reading a rule that nothing asks for; one that is about
to be applied is read and checked again first (:meth:`PresumedRules.objection`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rules_db.entries import Entry, RuleBook, Usable
from rules_db.files import StoreError, cache_folder
from rules_db.stamp import stamp
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.rule import Rule

__all__ = ["PresumedRules", "RememberedChecks"]

_LOG = logging.getLogger(__name__)

_Read = TypeVar("_Read")
_ALWAYS = 64
"""Rules that are checked however late it is, in a fifth of a second."""
_EVIDENCE, _DIGITS = frozenset(map(str, Evidence)), 32


class RememberedChecks:
    """The texts that stood in checks, in a file of the cache folder: a line each. One that is damaged says nothing.

    Args:
        folder: default: the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or cache_folder()) / f"checked-{stamp()}.txt"
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            lines = []
        named = (line.partition(" ") for line in lines)
        self._evidence = {content: Evidence(word) for content, _, word in named if word in _EVIDENCE and len(content) == _DIGITS}

    @staticmethod
    def _content(entry: Entry) -> str:
        return hashlib.blake2b(f"{entry.identity} {entry.text}".encode(), digest_size=_DIGITS // 2).hexdigest()

    def evidence(self, entry: Entry) -> Evidence | None:
        """The evidence by which a rule stands; ``None`` where that is not known."""
        return self._evidence.get(self._content(entry))

    def put(self, standing: Iterable[tuple[Entry, Evidence]]) -> None:
        """Records texts that stand: whole lines at the end of the file, so that several processes may do so at once."""
        lines = [f"{self._content(entry)} {evidence}\n" for entry, evidence in standing]
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(file, ("\n" + "".join(lines)).encode())  # not behind a line that a kill cut off
            finally:
                os.close(file)
        except OSError as problem:
            _LOG.warning("%s: cannot be written (%s); rules are checked at each start", self.path, problem.strerror)

    def forget(self) -> None:
        """Removes the file: it said what is not so."""
        self.path.unlink(missing_ok=True)


class PresumedRules(RuleBook):
    """The rules of a file or database that stand, as far as is remembered; each is read when it is first asked for.

    Nothing may rest on one before :meth:`objection` was asked about it.

    Args:
        entries: of the rules.
        trust: the evidence that each has to bring.
        memory: that says so.
        skipped: the names of other rules that were there, and why they cannot be used.
        unchecked: as of :class:`rules_db.entries.RuleBook`.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        trust: Trust,
        memory: RememberedChecks,
        skipped: Mapping[str, str],
        unchecked: Sequence[str] = (),
    ) -> None:
        super().__init__(entries)
        self.skipped, self.unchecked = skipped, tuple(unchecked)
        self._trust, self._memory = trust, memory
        self._entries: dict[str, list[Entry]] = {}
        for entry in entries:
            self._entries.setdefault(entry.name, []).append(entry)
        self._objections: dict[str, str] = {}

    @classmethod
    def of(
        cls, entries: Sequence[Entry], trust: Trust, memory: RememberedChecks | None = None, until: float = math.inf
    ) -> PresumedRules:
        """Checks the rules of which nothing is remembered, and remembers those that stand.

        Args:
            until: the instant of :func:`time.monotonic` after which no more are checked, beyond a few: with those that were
                remembered meanwhile, another run comes further.
        """
        memory = memory or RememberedChecks()
        standing, skipped, fresh, unchecked = list[Entry](), dict[str, str](), list[tuple[Entry, Evidence]](), list[str]()
        checked = 0
        for entry in entries:
            evidence = memory.evidence(entry)
            if evidence is None:
                if checked >= _ALWAYS and time.monotonic() > until:
                    unchecked.append(entry.name)
                    continue
                checked += 1
                usable = Usable.of([entry], Trust.TESTED)
                if not usable.rules:
                    skipped.update(usable.skipped)
                    continue
                evidence = usable.rules[0].certificate.evidence
                fresh.append((entry, evidence))
            if refusal := trust.refusal(evidence):
                skipped[entry.name] = refusal
            else:
                standing.append(entry)
        memory.put(fresh)
        return cls(standing, trust, memory, skipped, unchecked)

    def _understood(self, read: Callable[[], _Read]) -> _Read:
        """Raises StoreError for a text that cannot be read: what is remembered is not so, and is forgotten."""
        try:
            return super()._understood(read)
        except StoreError:
            self._memory.forget()
            raise

    def objection(self, rule: Rule) -> str:
        """Why a rule may not be applied, found out by reading and checking its text, once; empty where it may."""
        if rule.id not in self._objections:
            skipped = Usable.of(self._entries.get(rule.id, ()), self._trust).skipped
            self._objections[rule.id] = next(iter(skipped.values()), "")
            if skipped:
                self._memory.forget()
        return self._objections[rule.id]
