"""Attribute variables that a pattern leaves open and a condition determines: its guard can be solved for them, or reads them off
entries.

Nothing here is trusted: the guard is asked about every solution afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mugraph.terms.shape import Undecided
from mugraph.terms.term import AttrValue, AttrVar, Term, bind_value, open_names
from rules_db.trust.condition import Condition, Facts

__all__ = ["Determined", "determined"]


@dataclass(frozen=True, slots=True)
class Determined:
    """An attribute variable whose value follows from the other arguments of a condition.

    Attributes:
        name: of the variable.
        condition: the one that determines it: ``product($c, $a, $b)`` determines ``$c``.
        position: of the variable among the arguments.
    """

    name: str
    condition: Condition
    position: int

    def value(self, facts: Facts) -> AttrValue:
        """The value of the variable under the facts' binding of the others (as :func:`~mugraph.terms.term.bind_value` takes it).

        Raises:
            ValueError: there is none.
        """
        guard = self.condition.guard
        arguments = [a if isinstance(a, Term) else bind_value(a, facts.binding) for a in self.condition.arguments]
        try:
            if self.position in guard.readers:
                return guard.readers[self.position](facts, *arguments)
            return guard.solvers[self.position](*arguments)
        except (TypeError, ArithmeticError, LookupError, Undecided) as problem:
            raise ValueError(str(problem)) from None


def determined(conditions: Iterable[Condition], names: Iterable[str]) -> tuple[Determined, ...]:
    """The attribute variables beyond ``names`` that conditions determine, each after those that its value needs."""
    bound, solved = set(names), list[Determined]()
    waiting = [condition for condition in conditions if condition.guard.solvers or condition.guard.readers]
    count = -1
    while count != len(solved):
        count = len(solved)
        for condition in waiting:
            guard = condition.guard
            for position in (*guard.solvers, *guard.readers):
                wanted = condition.arguments[position]
                others = [a for i, a in enumerate(condition.arguments) if i != position and not guard.read_together(i, position)]
                if not isinstance(wanted, AttrVar) or wanted.name in bound:
                    continue
                if bound.issuperset(name for argument in others for name in open_names(argument)):
                    solved.append(Determined(wanted.name, condition, position))
                    bound.add(wanted.name)
    return tuple(solved)
