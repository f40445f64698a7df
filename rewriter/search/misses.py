"""Near misses: what ``--explain`` says of a rule at a place, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["MissReason", "NearMiss"]


class MissReason(StrEnum):
    """Kinds of outcomes."""

    APPLIES = "it applies"
    DEARER = "it applies and saves nothing"
    CONDITION = "all operators stand there, and a condition of the rule does not hold"
    OPERATOR = "another operator stands in a place"
    ATTRIBUTES = "attributes differ"
    OPAQUE = "no rule can look at it"
    GONE = "it is not in the clean model"
    SPELLED = "it looks like one operator that is written out, and no rule recognises it"


@dataclass(frozen=True, slots=True)
class NearMiss:
    """One line of ``--explain``: a rule, a place, and the outcome there.

    Attributes:
        rule: id of the direction; empty where no rule is meant.
        text: the direction.
        where: name of the value.
        outcome: how far it came, or what it saves.
        reason: the kind of the outcome, which many lines share.
        at_stake: microseconds that the rule would save there at most, by the cost model; 0 where it applies.
    """

    rule: str
    text: str
    where: str
    outcome: str
    reason: str = ""
    at_stake: float = 0.0
