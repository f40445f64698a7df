"""Rules as they are written somewhere: block by block, unread or read on demand, and which of equal ones to keep."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar, overload

from mugraph.blocks.operator import KERNEL
from mugraph.deadline import heed
from mugraph.ops import REGISTRY
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.files import StoreError
from rules_db.heads import KernelTypes, RuleHead, parse_head
from rules_db.sides import facts_of
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.check import check
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = [
    "Entry",
    "KernelOutline",
    "RuleBook",
    "Usable",
    "by_size",
    "not_used",
    "outlines_of",
    "preferred",
    "proved",
    "read_all",
    "told_of",
    "unproved",
    "way_out",
]

_Read = TypeVar("_Read")
_HEADING = re.compile(r"^rule[ \t]+(\S+)", re.MULTILINE)


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
        if self.identity:
            return self.identity
        heading = _HEADING.search(self.text)
        return heading.group(1) if heading else f"at {self.place}:{self.line}"

    def read(self, *, is_known: bool = False) -> Rule:
        """The rule; one that is known was read before, as :func:`rules_db.exchange.parse_rule` says.

        Raises :class:`RuleTextError`, naming place and line.
        """
        rule = parse_rule(self.text, self.place, self.line, is_known=is_known)
        if is_known and rule.id != self.name:  # by which it is asked for again before anything rests on it
            raise RuleTextError(f"{self.place}:{self.line}: rule {self.name} says that it is rule {rule.id}")
        if self.identity not in ("", rule.id):
            raise RuleTextError(f"{self.place}:{self.line}: holds rule {rule.id}, not {self.identity}")
        return rule

    def head(self) -> RuleHead | None:
        """The head of a multi-level rule that is known; ``None`` where it is none. Raises as :meth:`read` does."""
        head = parse_head(self.text, self.place, self.line)
        if head is not None and head.id != self.name:
            raise RuleTextError(f"{self.place}:{self.line}: rule {self.name} says that it is rule {head.id}")
        return head


@dataclass(frozen=True, eq=False)
class KernelOutline:
    """A multi-level rule whose block graphs are read when somebody asks for them.

    Attributes:
        head: what is told of it before.
        give: reads it. Raises StoreError where it cannot be read.
    """

    head: RuleHead
    give: Callable[[], Rule]

    @staticmethod
    def of(rule: Rule) -> KernelOutline | None:
        """That of a rule that was read; ``None`` where its target is no kernel."""
        kernel = kernel_of_rule(rule)
        if kernel is None:
            return None
        return KernelOutline(RuleHead(rule.id, rule.source, rule.types, KernelTypes.of(kernel), rule.provenance), lambda: rule)

    @cached_property
    def rule(self) -> Rule:
        return self.give()


class _ReadOnDemand(Sequence[Rule]):
    """Rules, each read when it is first asked for."""

    @abstractmethod
    def outlines(self) -> list[KernelOutline]:
        """The outlines of the multi-level ones; their block graphs are not read. Raises StoreError."""

    @overload
    def __getitem__(self, place: int) -> Rule: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Rule]: ...
    def __getitem__(self, place: int | slice) -> Rule | Sequence[Rule]:
        """Raises StoreError for a rule that cannot be read."""
        if isinstance(place, slice):
            return [self._at(number) for number in range(*place.indices(len(self)))]
        return self._at(place)

    @abstractmethod
    def _at(self, place: int) -> Rule:
        """Raises StoreError."""


class RuleBook(_ReadOnDemand):
    """Rules, each read when it is first asked for.

    Args:
        rules: some that were read, or their texts, which are known: they were read before, as
            :func:`rules_db.exchange.parse_rule` says.

    Attributes:
        ids: the identities of all of them, in order, which a known text claims.
        unchecked: the names of others that there was no time to check, and that are not used.
    """

    unchecked: tuple[str, ...] = ()

    def __init__(self, rules: Iterable[Rule | Entry]) -> None:
        self._rules = list(rules)
        self._given = tuple(self._rules)
        self.ids = tuple(rule.name if isinstance(rule, Entry) else rule.id for rule in self._given)

    def __len__(self) -> int:
        return len(self._rules)

    def _at(self, place: int) -> Rule:
        rule = self._rules[place]
        if isinstance(rule, Entry):
            heed()
            self._rules[place] = rule = self._understood(partial(rule.read, is_known=True))
        return rule

    def _understood(self, read: Callable[[], _Read]) -> _Read:
        """What is read of a text. Raises StoreError where that cannot be."""
        try:
            return read()
        except RuleTextError as problem:
            raise StoreError(str(problem)) from None

    def outlines(self) -> list[KernelOutline]:
        return self.outlines_at(range(len(self)))

    def outlines_at(self, places: Iterable[int]) -> list[KernelOutline]:
        """Those of the multi-level rules at some places. Raises StoreError."""
        found = (self._outline(place) for place in places)
        return [outline for outline in found if outline is not None]

    def _outline(self, place: int) -> KernelOutline | None:
        rule = self._rules[place]
        if isinstance(rule, Rule):
            return KernelOutline.of(rule)
        if not _has(rule, KERNEL):
            return None
        heed()
        head = self._understood(rule.head)
        return None if head is None else KernelOutline(head, partial(self.__getitem__, place))

    def within(self, operators: Collection[str]) -> list[Rule]:
        """Those that may apply to a program of these operators, or to what others make of it, in order; no other is read.

        A side matches where all its operators are. What it is replaced by brings the other side's. Multi-level rules are none of
        them: their kernels are made for the model's sizes first (:meth:`outlines`).
        """
        there, chosen = set(operators), list[int]()
        waiting = [(place, sides) for place, sides in enumerate(self._sides) if not any(KERNEL in side for side in sides)]
        while True:
            apart = []
            for place, sides in waiting:
                if any(map(there.issuperset, sides)):
                    chosen.append(place)
                    there.update(*sides)
                else:
                    apart.append((place, sides))
            if len(apart) == len(waiting):
                return [self[place] for place in sorted(chosen)]
            waiting = apart

    def naming(self, operator: str) -> Sequence[Rule]:
        """Those that have an operator, in order; each is read when it is first asked for, as it is of all of them."""
        return _SomeRules(self, [place for place, rule in enumerate(self._given) if _has(rule, operator)])

    @cached_property
    def _sides(self) -> list[tuple[frozenset[str], ...]]:
        """The operators of each rule's sides, of one that is not read by its text."""
        return [_operators(rule) for rule in self._rules]

    def objection(self, rule: Rule) -> str:
        """Why one of the rules may not be applied; empty where it may. Asked before anything rests on it."""
        return ""

    def named(self, ids: Collection[str]) -> list[Rule]:
        """Those of these identities, in order; no other is read. Raises StoreError."""
        return [self[place] for place, name in enumerate(self.ids) if name in ids]


class _SomeRules(_ReadOnDemand):
    """Rules of a book, at some places."""

    def __init__(self, book: RuleBook, places: Sequence[int]) -> None:
        self._book, self._places = book, places

    def __len__(self) -> int:
        return len(self._places)

    def _at(self, place: int) -> Rule:
        return self._book[self._places[place]]

    def outlines(self) -> list[KernelOutline]:
        return self._book.outlines_at(self._places)


def outlines_of(rules: Sequence[Rule]) -> list[KernelOutline]:
    """The outlines of the multi-level ones of some rules. Raises StoreError where one cannot be read."""
    if isinstance(rules, _ReadOnDemand):
        return rules.outlines()
    return [outline for outline in map(KernelOutline.of, rules) if outline is not None]


_SIDE = re.compile(r"^\s*(?:source|target) (.*)$", re.MULTILINE)
_STRING = re.compile(r"'[^']*'")
_OPERATOR = re.compile(r"[A-Za-z_]\w*(?=[\[(.])")


def _has(rule: Rule | Entry, operator: str) -> bool:
    """Whether a side of a rule has an operator: most texts that lack the word need no closer look."""
    if isinstance(rule, Entry) and operator not in rule.text:
        return False
    return any(operator in side for side in _operators(rule))


def _operators(rule: Rule | Entry) -> tuple[frozenset[str], ...]:
    """The operators of each side of a rule, whose text is not parsed."""
    if isinstance(rule, Rule):
        return tuple(facts_of(side).ops - {"Var", "Const"} for side in (rule.source, rule.target))
    sides = [_STRING.sub("", side) for side in _SIDE.findall(rule.text)]
    return tuple(frozenset(filter(REGISTRY.__contains__, _OPERATOR.findall(side))) for side in sides)


def preferred(rules: Iterable[Rule]) -> Rule:
    """The one to keep of rules with one identity, in whatever order they come.

    Proofs from operator properties win, then the more careful float class, then the shorter proof, then the smaller text.
    """

    def key(rule: Rule) -> tuple[bool, int, int, int, str]:
        text, proof = format_rule(rule), rule.certificate
        return (
            proof.evidence is not Evidence.PROVED,
            -list(FloatClass).index(rule.float_class),
            len(proof.instances),
            len(text),
            text,
        )

    return min(rules, key=key)


def by_size(rules: Iterable[Rule]) -> list[Rule]:
    """The order of exported files: the smallest programs first, then by identity."""
    return sorted(rules, key=lambda rule: (sum(term.size for term in (*rule.source, *rule.target)), rule.id))


def proved(rules: list[Rule], name: str, trust: Trust = Trust.PROVED) -> list[Rule]:
    """The rules of the file or database ``name``.

    Raises:
        StoreError: one does not stand by its certificate, or brings less evidence than ``trust`` asks for.
    """
    refused = {rule.id: refusal for rule in rules if (refusal := trust.refusal(rule.certificate.evidence))}
    for identity, refusal in refused.items():
        others = f", nor are {len(refused) - 1} others" if len(refused) > 1 else ""
        raise StoreError(f"{name}: rule {identity} is not taken{others}: {refusal}")
    for rule in rules:
        if reason := unproved(rule):
            raise StoreError(f"{name}: rule {rule.id} is {reason}; {way_out(name)}")
    return rules


def way_out(name: str) -> str:
    """What to do where rules of a file or database cannot be used."""
    if name.endswith(".rules"):
        return f"'rulegen audit {name}' tells which fail"
    return f"'rulegen status {name}' tells which fail, 'rulegen prune {name}' removes them"


def unproved(rule: Rule) -> str:
    """Why a rule does not stand by its certificate; empty where it does."""
    failures = check(rule, load_axioms())
    return f"not proved: {failures[0]}" if failures else ""


def read_all(entries: Iterable[Entry]) -> tuple[list[Rule], dict[str, str]]:
    """The rules that can be read, unchecked; why others cannot, by their names."""
    rules, unreadable = list[Rule](), dict[str, str]()
    for entry in entries:
        try:
            rules.append(entry.read())
        except RuleTextError as problem:
            unreadable[entry.name] = str(problem)
    return rules, unreadable


@dataclass(frozen=True)
class Usable:
    """What can be used of some rules by this version, with the evidence that was asked for.

    Attributes:
        rules: those that stand.
        skipped: the names of the others, and why: other versions write what this one does not know.
    """

    rules: tuple[Rule, ...]
    skipped: Mapping[str, str]

    @staticmethod
    def of(entries: Iterable[Entry], trust: Trust = Trust.PROVED) -> Usable:
        """Reads and checks rules one by one."""
        rules, skipped = read_all(entries)
        standing = []
        for rule in rules:  # of two of one identity each by its own certificate
            if reason := trust.refusal(rule.certificate.evidence) or unproved(rule):
                skipped[rule.id] = reason
            else:
                standing.append(rule)
        return Usable(tuple(standing), skipped)

    def told(self, name: str) -> str:
        """A sentence about what was skipped, of the file or database ``name``; empty where nothing was."""
        return told_of(self.skipped, len(self.rules), name)


def not_used(rule: Rule, reason: str) -> str:
    """A sentence about a rule that was remembered as one that stands, and does not (:meth:`RuleBook.objection`)."""
    return f"rule {rule.id} was remembered as one that stands, but it is not used: {reason}"


def told_of(skipped: Mapping[str, str], used: int, name: str) -> str:
    """A sentence about rules that were skipped; empty where none were.

    Args:
        skipped: their names, and why.
        used: the number of the others.
        name: of the file or database.
    """
    if not skipped:
        return ""
    first, reason = next(iter(skipped.items()))
    others = f", and {len(skipped) - 1} others" if len(skipped) > 1 else ""
    return f"{name}: {used} rules used, {len(skipped)} skipped: {first} ({reason}){others}; {way_out(name)}"
