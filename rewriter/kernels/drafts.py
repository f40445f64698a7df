"""The rules of kernels within a run: one direction each, and those that no evidence stands behind yet."""

from __future__ import annotations

from collections.abc import Callable

from rewriter.search.directions import Direction
from rules_db.trust.rule import Rule

__all__ = ["KernelRules"]


class KernelRules:
    """One direction for each rule that is used, whoever asks; drafts among them are matched and priced, and certified later.

    Args:
        provider: that must have what kernels are replaced by.
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self._directions: dict[str, Direction] = {}
        self._drafts: dict[str, Callable[[], Rule]] = {}

    def direction(self, rule: Rule) -> Direction:
        """A kernel in place of its fusable set."""
        if rule.id not in self._directions:
            self._directions[rule.id] = Direction(rule, True, self.provider)
        return self._directions[rule.id]

    def draft(self, rule: Rule, certified: Callable[[], Rule]) -> Direction:
        """The direction of a rule that no evidence stands behind yet.

        Args:
            certified: gives the same rule with its evidence; raises NotFusable where it has none.
        """
        if rule.id not in self._directions:
            self._drafts[rule.id] = certified
        return self.direction(rule)

    def certified(self, direction: Direction) -> Direction:
        """The direction once its rule, which may be a draft, is proved or tested. Raises NotFusable where it is wrong."""
        rule = direction.rule
        if rule.id in self._drafts:
            self._directions[rule.id] = Direction(self._drafts[rule.id](), True, self.provider)
            del self._drafts[rule.id]
        return self._directions.get(rule.id, direction)
