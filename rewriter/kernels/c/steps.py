"""What a function does with tiles, and in which loop nests: steps over the same axes share one, where values are in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mugraph.blocks.statements import View
from mugraph.terms.term import Term, variables

__all__ = ["Fold", "Group", "Let", "Product", "Put", "Step", "Turned", "grouped"]


@dataclass(frozen=True, slots=True)
class Let:
    """A value, entry by entry.

    Attributes:
        axes: along which it has more than one entry in a tile.
        is_state: it is the new value of a state that there is already.
        order: of the axes of its array, where that matters.
        weighs: exponentials in it are of what is not positive, and weigh what is added up (:class:`CText`).
    """

    name: str
    term: Term
    axes: tuple[str, ...]
    is_state: bool = False
    order: tuple[str, ...] | None = None
    weighs: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """A sum, a maximum or a minimum along axes.

    Attributes:
        axes: of the operand, and of what says which entries count.
        rest: of the result.
        keep: truth values of what counts.
        is_state: it joins a state that there is already; that is a float whatever the operand is.
    """

    name: str
    kind: str
    operand: str
    axes: tuple[str, ...]
    rest: tuple[str, ...]
    keep: str | None = None
    is_state: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """A tile that is written to a tensor, from an offset on."""

    tensor: str
    value: str
    view: View
    axes: tuple[str, ...]
    offset: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices, which has a nest of its own.

    Attributes:
        left, right: operands; the last of ``axes`` is one of the right operand alone.
        over: the axis that is contracted.
        axes: of the result.
        rows: the axis of the left operand alone that is next to last in it; ``None`` where that is a single row.
        is_state: it is added to a state that there is already.
        of_bytes: operands are bytes, all of the contracted axis at once, and the state is zero before.
        zero: of a product of bytes what is subtracted from the left operand.
        apart: what is loaded of which the right operand is, where a launch takes its numbers apart.
        weighs: the numbers of the left operand are none greater than 1.
    """

    name: str
    left: str
    right: str
    over: str
    axes: tuple[str, ...]
    rows: str | None
    is_state: bool = False
    of_bytes: bool = False
    zero: str | None = None
    apart: str | None = None
    weighs: bool = False


@dataclass(frozen=True, slots=True)
class Turned:
    """A copy of a matrix in memory with rows for columns, which has a nest of its own.

    Attributes:
        source: what is loaded; its entries lie one after another along the last axis but one of the copy.
        axes: of the copy.
        is_apart: only processors without tiles ask it, since others read parts of the source.
    """

    name: str
    source: str
    axes: tuple[str, ...]
    is_apart: bool = False


Step = Let | Fold | Put | Product | Turned


def _reads(step: Step) -> set[str]:
    """The values that a step asks, a state that it changes among them."""
    if isinstance(step, Let):
        return {leaf.name for leaf in variables([step.term])}
    if isinstance(step, Put):
        return {step.value}
    if isinstance(step, Turned):
        return {step.source}
    changed = {step.name} if step.is_state else set()
    if isinstance(step, Product):
        return {step.left, step.right} | changed
    return {step.operand} | ({step.keep} if step.keep else set()) | changed


def _writes(step: Step) -> str | None:
    return None if isinstance(step, Put) else step.name


@dataclass(slots=True)
class Group:
    """Steps that share a nest."""

    axes: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)

    @property
    def is_alone(self) -> bool:
        """Whether its step shares a nest with no other."""
        return isinstance(self.steps[0], Product | Turned)


def grouped(steps: Sequence[Step]) -> tuple[list[Group], set[str]]:
    """The nests of some steps in order, and the values of them that are asked only within their own.

    A step stands in the last nest over its axes that comes no sooner than what it asks; else it has a new one.
    """
    groups: list[Group] = []
    at: list[int] = []
    for number, step in enumerate(steps):
        least = 0
        for earlier, where in zip(steps[:number], at, strict=True):
            written = _writes(earlier)
            follows = written in _reads(step)
            replaces = _writes(step) is not None and (_writes(step) in _reads(earlier) or _writes(step) == written)
            if follows or replaces:
                together = (isinstance(earlier, Let | Put) and groups[where].axes == step.axes) or (replaces and not follows)
                least = max(least, where if together and not groups[where].is_alone else where + 1)
        places = [i for i, g in enumerate(groups) if i >= least and g.axes == step.axes and not g.is_alone]
        if isinstance(step, Product | Turned) or not places:
            groups.append(Group(step.axes))
            places = [len(groups) - 1]
        groups[places[-1]].steps.append(step)
        at.append(places[-1])
    within = set()
    for step, where in zip(steps, at, strict=True):
        if isinstance(step, Let) and not step.is_state:
            readers = [i for other, i in zip(steps, at, strict=True) if step.name in _reads(other)]
            if readers and all(i == where for i in readers):
                within.add(step.name)
    return groups, within
