"""What is left of mined rules beside those that are there: a rule that one of these is, or holds, is no rule."""

from __future__ import annotations

from collections.abc import Iterable

from rulegen.prove.search import ProofLimits
from rulegen.prune.derive import Deriver
from rules_db.trust.rule import Rule

__all__ = ["remaining"]

_AT_ONCE = ProofLimits(nodes=600, rounds=1, growth=0)


def remaining(rules: Iterable[Rule], known: Iterable[Rule]) -> list[Rule]:
    """The rules that known ones do not derive, in their order.

    Derived is a rule that one known rule gives, under conditions that it has itself: a search would have to find several steps,
    of which the first need not pay, and an operator between them may be one that the model's opset lacks.
    """
    deriver = Deriver(known, _AT_ONCE)

    def is_derived(rule: Rule) -> bool:
        used = deriver.derivation_of_sample(rule)
        return used is not None and len(used) == 1

    return [rule for rule in rules if not is_derived(rule)]
