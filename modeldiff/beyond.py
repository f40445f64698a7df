"""What no input of a model shows: of operands beyond those that its inputs give, and of attributes that are others.

A claim that is not proved rests on numbers. Here the two formulas are evaluated on operands that are larger and smaller than any
that the inputs give, as far as the numbers in the formulas go, and of the other sign, all within the ranges that these values are
known to have. Where they differ there, no more is known than that the inputs do not get so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from modeldiff.distance import distance
from modeldiff.faults import changed_attributes, largest_difference
from modeldiff.pairing import EqualityClaim, Pairing, numbers_in
from modeldiff.sides import ComparedModel
from mugraph.graph import Node
from mugraph.terms.shape import Dim
from mugraph.terms.term import bind_attrs
from rewriter.reference import NoReference
from rewriter.search.ranges import RangeOracle

__all__ = ["other_attributes", "shown_beyond"]

_MOST_NODES = 64
"""Of a formula that is evaluated once more."""
_SMALL = 1e-2
"""Part of what is usual from which on something is small: of the operands beside a number, and the other way round."""


def shown_beyond(pairing: Pairing, claim: EqualityClaim, oracle: RangeOracle) -> str:
    """On which operands two values differ that are equal on all inputs, with an entry; empty where they do on none.

    Integers that rounding decides tell nothing, nor do random numbers; bodies are compared by themselves.
    """
    formulas = _ClaimFormulas(pairing, claim)
    if any(node in side.drawing or node in side.deciding or side.bodies(node) for side, node in formulas.nodes):
        return ""
    for factor in formulas.factors():
        try:
            arrays = formulas.scaled(factor, oracle)
        except NoReference:
            continue
        if arrays is None:
            continue
        ours, theirs = arrays
        if ours.shape != theirs.shape or pairing.is_apart(claim.after, claim.before, distance(ours, theirs)):
            sample = largest_difference(ours, theirs)
            where = f"of operands that are {factor:.6g} times those on inputs of seed 1, as far as they may be"
            return f"{where}, {sample or 'it is another tensor'}: no input shows that"
    return ""


class _ClaimFormulas:
    """The nodes that compute a value before and after a change from what both models have by then.

    Attributes:
        nodes: these, with their models; none where they are too many.
    """

    def __init__(self, pairing: Pairing, claim: EqualityClaim) -> None:
        self._pairing, self._claim = pairing, claim
        before, after = pairing.before, pairing.after
        node = after.maker(claim.after)
        place = len(after.nodes) if node is None else after.place[node]
        shared = {value for value, first in pairing.first.items() if first < place}
        self._before = _between(before, claim.before, lambda value: pairing.stands_for(value) in shared)
        self._after = _between(after, claim.after, lambda value: pairing.pair_of(value) is not None)
        self.nodes = [(before, each) for each in self._before] + [(after, each) for each in self._after]
        if len(self.nodes) > _MOST_NODES:
            self.nodes = []
        self._leaves = self._read()

    def _read(self) -> set[int]:
        """The floating values of the model before that either formula reads and that are no constants, also by default."""
        pairing = self._pairing
        model = pairing.before.model
        defaults = {model.values[name] for name in model.defaults}
        read = {pairing.stands_for(value) for value in _leaves(pairing.before, self._before)}
        read |= {pair for value in _leaves(pairing.after, self._after) if (pair := pairing.pair_of(value)) is not None}
        arrays = {value: pairing.numbers_before(value) for value in read - defaults if not pairing.before.tables.constant[value]}
        return {value for value, known in arrays.items() if known is not None and known[0].dtype.kind == "f" and known[0].size}

    def factors(self) -> list[float]:
        """What operands are multiplied by: so that they get beyond the largest and below the smallest number of the formulas."""
        held = [self._usual(value) for value in self._leaves]
        sizes = [np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in held]
        size = float(max(sizes, default=0.0))
        if not size:
            return []
        numbers = {abs(float(number)) for side, node in self.nodes for number in _numbers(side, node)} - {0.0, np.inf}
        large = [2 * number / size for number in numbers if 2 * number > size]
        small = [_SMALL * number / size for number in numbers if number < _SMALL * size]
        return [-1.0, *([max(large)] if large else []), *([min(small)] if small else [])]

    def scaled(self, factor: float, oracle: RangeOracle) -> tuple[np.ndarray, np.ndarray] | None:
        """What the two compute, after and before, of operands that are multiplied as far as their ranges go; ``None`` where that
        changes none. Of operands that are computed of others these are multiplied. Raises NoReference."""
        pairing, claim = self._pairing, self._claim
        following = pairing.following(self._leaves)
        known: dict[int, np.ndarray] = {}
        changes = False
        for value in self._leaves - following:
            array = self._usual(value)
            range_ = oracle.range(pairing.before.graph, value)
            finite = np.isfinite(array)
            known[value] = np.where(finite, np.clip(array * factor, range_.lo, range_.hi), array)
            changes |= not np.array_equal(known[value], array, equal_nan=True)
        if not changes:
            return None
        follow = [node for node in pairing.before.nodes if not following.isdisjoint(map(pairing.stands_for, node.values))]
        for value in sorted(self._leaves & following, key=self._place):
            within = set(_between(pairing.before, value, lambda v: pairing.stands_for(v) in known))
            nodes = [node for node in follow if node in within]
            known[value] = pairing.before.replayed(nodes, value, 0, lambda v: self._given(v, known), exact=True)
        theirs = pairing.before.replayed(self._before, claim.before, 0, lambda v: self._given(v, known), exact=True)
        ours = pairing.after.replayed(self._after, claim.after, 0, lambda v: self._given_after(v, known), exact=True)
        return ours, theirs

    def _place(self, value: int) -> int:
        node = self._pairing.before.maker(value)
        return -1 if node is None else self._pairing.before.place[node]

    def _usual(self, value: int) -> np.ndarray:
        arrays = self._pairing.numbers_before(value)
        if arrays is None:
            raise NoReference(f"'{self._pairing.before.name(value)}' is not known")
        return arrays[0]

    def _given(self, value: int, known: Mapping[int, np.ndarray]) -> np.ndarray:
        stands = self._pairing.stands_for(value)
        return known[stands] if stands in known else self._usual(stands)

    def _given_after(self, value: int, known: Mapping[int, np.ndarray]) -> np.ndarray:
        pair = self._pairing.pair_of(value)
        if pair is not None:
            return self._given(pair, known)
        arrays = self._pairing.numbers(value)
        if arrays is None:
            raise NoReference(f"'{self._pairing.after.name(value)}' is not known")
        return arrays[0]


def _between(side: ComparedModel, root: int, is_leaf: Callable[[int], bool]) -> list[Node]:
    """The nodes, operands first, that compute a value from leaves; the value itself is none."""
    found, stack = set[Node](), [side.made(root)]
    while stack:
        value = stack.pop()
        node = side.maker(value)
        if node is not None and node not in found and (value == side.made(root) or not is_leaf(value)):
            found.add(node)
            stack.extend(map(side.made, side.operands(node)))
    return sorted(found, key=side.place.__getitem__)


def _leaves(side: ComparedModel, nodes: Sequence[Node]) -> set[int]:
    """What some nodes read that none of them computes."""
    made = {value for node in nodes for value in node.values}
    return {side.made(value) for node in nodes for value in side.operands(node)} - made


def _numbers(side: ComparedModel, node: Node) -> Iterator[float]:
    """The floats among a node's attributes and those of its operands that are constants of one entry."""
    yield from map(float, numbers_in(node))
    for value in side.operands(node):
        array = side.tables.small_constant(side.made(value), 1)
        if array is not None and array.dtype.kind == "f" and array.size:
            yield float(array.reshape(()))


def other_attributes(pairing: Pairing, claim: EqualityClaim, only_at: Mapping[str, Dim]) -> Iterator[str]:
    """Attributes in which two nodes differ that apply one operator to the same values, whose bodies are compared else.

    Args:
        only_at: dimension symbols of the model before with the one size at which it runs: there the attributes must be equal.
    """
    ours, theirs = pairing.after, pairing.before
    node, other = ours.maker(claim.after), theirs.maker(claim.before)
    if node is None or other is None or ours.operator(node) != theirs.operator(other) or ours.bodies(node):
        return
    read = [pairing.pair_of(value) for value in ours.operands(node)], [*map(pairing.stands_for, theirs.operands(other))]
    if read[0] != read[1]:
        return
    attrs = pairing.attrs_of(node)

    def changed(sizes: Mapping[str, Dim]) -> Mapping[str, tuple[str, str]]:
        before, after = bind_attrs(other.attrs, sizes), bind_attrs(attrs, sizes)
        return changed_attributes(theirs.attributes(other, before), ours.attributes(node, after))

    everywhere = changed({})
    there = changed(only_at) if only_at else everywhere
    for name, (old, new) in everywhere.items():
        if name in there:
            yield f"{ours.label(node)}: {name} is {new}, not {old}, which shows on no input"
