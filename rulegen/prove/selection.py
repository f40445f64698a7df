"""Laws by the operator they are rooted at, and those among them that may match a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rulegen.prove.compile import directions
from rulegen.prove.language import Language
from rulegen.prove.laws import Law, LawDirection
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule

__all__ = ["Laws", "Selection"]

_ByRoot = Mapping[tuple[str, int, int], Sequence[LawDirection]]
"""Operator, output and number of operands to the directions that are rooted there."""


class Laws:
    """The laws that searches of one language may use.

    Attributes:
        deepest: the greatest depth of a direction that was ever added.
    """

    def __init__(self, language: Language) -> None:
        self.language = language
        self.deepest = 1
        self._by_root: dict[tuple[str, int, int], list[LawDirection]] = {}
        self._joint: list[LawDirection] = []
        self._suspended: set[Law] = set()
        self._selections: dict[tuple[bool, frozenset[str] | None, bool], Selection] = {}

    def add(self, origin: Axiom | Rule) -> Law:
        """Makes a property or a rule available; it is compiled once a language."""
        law, made = self._compiled(origin)
        self._selections.clear()
        for direction in made:
            self._bucket(direction).append(direction)
            self.deepest = max(self.deepest, direction.depth)
        return law

    def _compiled(self, origin: Axiom | Rule) -> tuple[Law, list[LawDirection]]:
        known = self.language.compiled
        if origin not in known:
            law = Law.of(origin)
            known[origin] = law, directions(self.language, law)
        compiled: tuple[Law, list[LawDirection]] = known[origin]
        return compiled

    def suspend(self, law: Law) -> None:
        """Takes a law away; the order of the others, on which a search depends, stays."""
        self._selections.clear()
        self._suspended.add(law)

    def resume(self, law: Law) -> None:
        """Makes a law available that was taken away, in its old place."""
        self._selections.clear()
        self._suspended.remove(law)

    def _bucket(self, direction: LawDirection) -> list[LawDirection]:
        if len(direction.matched) > 1:
            return self._joint
        root = direction.matched[0]
        return self._by_root.setdefault((root.op, root.out, len(root.operands)), [])

    def select(self, assume: bool, operators: frozenset[str] | None, directed: bool = False) -> Selection:
        """The laws, with or without those that ask something of values, that bring in none but these operators.

        With ``directed`` only in the directions that lead to plainer terms.
        """
        key = assume, operators, directed
        if key not in self._selections:
            self._selections[key] = Selection(self.language, self._by_root, self._joint, *key, frozenset(self._suspended))
        return self._selections[key]


class Selection(dict[tuple[int, ...], list[LawDirection]]):
    """Which directions may match a node: by its operator's number, levels to a change, and its operands' operators.

    Attributes:
        joint: the directions that are matched at several roots together.
    """

    def __init__(
        self,
        language: Language,
        by_root: _ByRoot,
        joint: Sequence[LawDirection],
        assume: bool,
        operators: frozenset[str] | None,
        directed: bool,
        suspended: frozenset[Law],
    ) -> None:
        super().__init__()
        self.language, self.assume, self.operators, self.directed = language, assume, operators, directed
        self._suspended = suspended
        self.joint = list(filter(self._allows, joint))
        self._by_root = by_root
        self._by_op: dict[tuple[int, int], list[LawDirection]] = {}

    def _allows(self, direction: LawDirection) -> bool:
        if direction.law in self._suspended or (self.directed and not direction.directed):
            return False
        return (self.assume or not direction.assumes) and (self.operators is None or direction.operators <= self.operators)

    def __missing__(self, key: tuple[int, ...]) -> list[LawDirection]:
        op, level, *masks = key
        deep = [d for d in self._at(op, len(masks)) if d.depth > level]
        fitting = self[key] = [d for d in deep if not d.needs or all([masks[i] & bit for i, bit in d.needs])]
        return fitting

    def _at(self, op: int, operands: int) -> list[LawDirection]:
        """The directions rooted at an operator with so many operands."""
        if (op, operands) not in self._by_op:
            name, _, out = self.language.ops[op]
            rooted = self._by_root.get((name, out, operands), ())
            self._by_op[op, operands] = [d for d in rooted if d.matched[0].ground in (None, op) and self._allows(d)]
        return self._by_op[op, operands]
