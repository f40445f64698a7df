"""How a rule was found, as its provenance tells."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.blocks.operator import KERNEL
from mugraph.terms.term import walk
from rules_db.trust.rule import Rule

__all__ = ["Origin", "origin"]


@dataclass(frozen=True)
class Origin:
    """How a rule was found, in a word, and from what."""

    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.kind} {self.source}".rstrip()


def origin(rule: Rule) -> Origin:
    """How a rule was found."""
    provenance = rule.provenance
    if any(term.op == KERNEL for term in walk(rule.target)):
        return Origin("lowered", "")
    if "spelled" in provenance:
        return Origin("spelled", f"from the definition of {provenance['spelled']}")
    if "model" in provenance:
        return Origin("mined", f"from {provenance['model']}")
    if "group" in provenance:
        return Origin("enumerated", f"with group {provenance['group']}")
    if provenance.get("origin") == "prove":
        return Origin("proved", "from an equation")
    return Origin("of unknown origin", "")
