"""The outcome of an import: an answer for each rule, under all its typings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mugraph.domains.range import Range
from mugraph.ops.interp import infer_types
from mugraph.terms.term import format_term
from rulegen.numeric.differences import Difference
from rulegen.numeric.samples import assignments, specialise
from rulegen.taso.translation import Typed, Untyped
from rules_db.trust.condition import Facts
from rules_db.trust.rule import Rule

__all__ = ["Imported", "Status", "TypedCase", "counts", "never_typed", "summary"]


class Status(StrEnum):
    """The four answers."""

    DERIVABLE = "derivable"
    NEW = "new"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Imported:
    """The outcome for a rule.

    Attributes:
        id: its position in a file of TASO's, its identity in a text file.
        status: the answer.
        source, target: the two sides as text, under the typing that decided.
        guards: conditions beyond the operators' own typing.
        counterexample: shapes and the first differing entry, or what is ill-typed.
        reason: why, where the rest does not tell.
        rules: that enter the database.
    """

    id: str
    status: Status
    source: str
    target: str
    guards: tuple[str, ...] = ()
    counterexample: Mapping[str, Any] | None = None
    reason: str = ""
    rules: tuple[Rule, ...] = ()

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "id": self.id,
            "status": str(self.status),
            "guards": list(self.guards),
            "source": self.source,
            "target": self.target,
        }
        if self.counterexample is not None:
            result["counterexample"] = dict(self.counterexample)
        if self.reason:
            result["reason"] = self.reason
        if self.rules:
            result["rules"] = [rule.id for rule in self.rules]
        return result


@dataclass
class TypedCase:
    """A rule under one typing: its status there, and the rule or the difference that decides it."""

    typed: Typed
    status: Status
    rule: Rule | None = None
    difference: Difference | None = None
    reason: str = ""


def summary(identity: str, cases: Sequence[TypedCase]) -> Imported:
    """The answer for a rule from those for its typings, with the guards under which it holds."""
    by_status = {status: [case for case in cases if case.status == status] for status in Status}
    good = [*by_status[Status.NEW], *by_status[Status.DERIVABLE]]
    refuted = by_status[Status.REFUTED]
    differing = [case for case in refuted if case.difference is not None]
    covering = next((case for case in by_status[Status.NEW] for bad in differing if _covers(case, bad)), None)
    if covering is not None:  # a proof that a counterexample contradicts
        good, by_status[Status.NEW] = [], []
    status = next(s for s in Status if by_status[s] and (good or s not in (Status.NEW, Status.DERIVABLE)))
    if by_status[Status.NEW]:
        status = Status.NEW
    first = by_status[status][0]
    rules = tuple({c.rule.id: c.rule for c in by_status[Status.NEW] if c.rule is not None}.values())
    reasons = [case.reason for case in (first, *by_status[Status.UNDECIDED]) if case.reason]
    guards: list[str] = []
    if good:
        conditions = [str(c) for rule in rules[:1] for c in rule.conditions] if rules else list(first.typed.needs)
        guards = [*conditions, *_choices(good, [case for case in cases if case not in good])]
    shown = first.rule or first.typed
    counterexample = differing[0].difference if differing else None
    text = {} if counterexample is None else {**counterexample.as_json(), "text": str(counterexample)}
    if refuted and refuted[0].typed.choices:
        text["typing"] = dict(refuted[0].typed.choices)
    return Imported(
        identity,
        status,
        "; ".join(map(format_term, shown.source)),
        "; ".join(map(format_term, shown.target)),
        tuple(guards),
        text or None,
        reasons[0] if reasons else "",
        rules,
    )


def never_typed(identity: str, source: str, target: str, untyped: Untyped) -> Imported:
    """A rule whose sides are never well-typed together: refuted by shapes for which the source is."""
    if untyped.source is None:
        reason = f"no typing makes the source well-typed: {untyped.reason}"
        return Imported(identity, Status.UNDECIDED, source, target, reason=reason)
    typed = untyped.source
    programs, types = specialise(typed.source, typed.types, assignments(typed.types, 1, typed.source)[0])
    inferred = infer_types(programs, types)
    shapes = {name: list(type_.shape) for name, type_ in types.items()}
    results = [list(inferred[program].shape) for program in programs]
    text = ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
    counterexample = {
        "shapes": shapes,
        "source": results,
        "text": f"with {text} the source has shape {', '.join(map(str, results))}, the target never: {untyped.reason}",
    }
    written = "; ".join(map(format_term, typed.source))
    return Imported(identity, Status.REFUTED, written, target, counterexample=counterexample)


def _covers(case: TypedCase, bad: TypedCase) -> bool:
    """Whether the rule that one typing proved applies in another, where numbers refute it."""
    rule = case.rule
    assert rule is not None
    names = dict(zip(rule.types, bad.typed.types, strict=False))
    renamed = rule.rename(names, {})
    if (renamed.source, renamed.target) != (bad.typed.source, bad.typed.target):
        return False
    types = infer_types([*bad.typed.source, *bad.typed.target], bad.typed.types)
    facts = Facts(types.__getitem__, lambda term: Range.top(), least=1)
    return all(c.guard.of_values or c.holds(facts) is True for c in renamed.conditions)


def _choices(good: Sequence[TypedCase], others: Sequence[TypedCase]) -> list[str]:
    """Choices that the typings which hold have in common and the others do not: ``group = 1``."""
    guards = []
    for name in dict.fromkeys(name for case in (*good, *others) for name in case.typed.choices):
        held = dict.fromkeys(case.typed.choices[name] for case in good if name in case.typed.choices)
        if held and set(held) != {case.typed.choices[name] for case in (*good, *others) if name in case.typed.choices}:
            guards.append(f"{name} = {' or '.join(held)}")
    return guards


def counts(results: Iterable[Imported]) -> dict[Status, int]:
    """The number of rules of each status."""
    number = Counter(result.status for result in results)
    return {status: number[status] for status in Status}
