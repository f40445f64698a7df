"""Attribute variables that a pattern leaves open and a condition determines, because its guard can be solved for them.

Nothing here is trusted: the guard is asked about every solution afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mugraph.terms.shape import Undecided
from mugraph.terms.term import AttrValue, AttrVar, bind_value, open_names
from rules_db.trust.condition import Condition

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

    def value(self, binding: Mapping[str, AttrValue]) -> AttrValue:
        """The value of the variable under a binding of the others (as :func:`~mugraph.terms.term.bind_value` takes it).

        Raises:
            ValueError: there is none.
        """
        solver = self.condition.guard.solvers[self.position]
        try:
            return solver(*(bind_value(argument, binding) for argument in self.condition.arguments))
        except (TypeError, ArithmeticError, LookupError, Undecided) as problem:
            raise ValueError(str(problem)) from None


def determined(conditions: Iterable[Condition], names: Iterable[str]) -> tuple[Determined, ...]:
    """The attribute variables beyond ``names`` that conditions determine, each after those that its value needs."""
    bound, solved = set(names), list[Determined]()
    waiting = [condition for condition in conditions if condition.guard.solvers]
    count = -1
    while count != len(solved):
        count = len(solved)
        for condition in waiting:
            for position in condition.guard.solvers:
                wanted = condition.arguments[position]
                others = [argument for i, argument in enumerate(condition.arguments) if i != position]
                if not isinstance(wanted, AttrVar) or wanted.name in bound:
                    continue
                if bound.issuperset(name for argument in others for name in open_names(argument)):
                    solved.append(Determined(wanted.name, condition, position))
                    bound.add(wanted.name)
    return tuple(solved)
