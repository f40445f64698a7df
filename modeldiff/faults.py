"""Where two models begin to differ: the node at fault, in words and in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from modeldiff.distance import distances
from modeldiff.inputs import is_overridable
from modeldiff.pairing import Pairing
from modeldiff.sides import Arrays, ComparedModel
from mugraph.graph import Node
from mugraph.terms.term import format_value
from rewriter.reference.nodes import widen

__all__ = ["ModelDifference", "Sample", "changed_attributes", "explained", "largest_difference", "other_defaults", "suspects"]

_TELLING = 1e-7
"""Relative error from which on usual inputs show a difference."""
_TRIALS = 8
"""Pairs of values of one name that are tried as the place of a difference."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The entry in which two tensors differ most.

    Attributes:
        index: of the entry.
    """

    index: tuple[int, ...]
    before: float
    after: float

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]"
        return f"{place} is {self.before:.6g} before and {self.after:.6g} after"


@dataclass(frozen=True, slots=True)
class ModelDifference:
    """What differs at a node.

    Attributes:
        after, before: the values that should be equal; ``None`` where a model has none.
        words: what is different about the nodes that compute them.
        feed: number of the inputs on which they differ; ``None`` where it is told without any.
        sample: in numbers; ``None`` where one of the two cannot be computed, or their shapes differ.
    """

    after: int | None
    before: int | None
    words: str
    feed: int | None = None
    sample: Sample | None = None


def suspects(pairing: Pairing, after: int, before: int) -> Iterator[tuple[int, int]]:
    """Pairs of values at which two unequal outputs may begin to differ, the likeliest first; they are tried in turn.

    From the outputs upwards, nodes of one kind whose operands correspond but for some lead to these; where that ends the nodes
    differ. Where it ends because the two compute it in different ways, values of one name are compared.
    """
    while (step := _upwards(pairing, after, before)) is not None:
        after, before = step
    ours, theirs = pairing.after, pairing.before
    upstream = set(_unpaired(pairing, after))
    named = 0
    for node in ours.nodes:
        for value in node.values:
            other = pairing.namesake(value)
            if value in upstream and value != after and other is not None and named < _TRIALS:
                same = theirs.graph.type(other) == ours.graph.type(value)
                if same and pairing.stands_for(other) != pairing.stands_for(before):
                    named += 1
                    yield value, other
    yield after, before


def _upwards(pairing: Pairing, after: int, before: int) -> tuple[int, int] | None:
    """The operands of two nodes of one kind that do not correspond, those computed first; ``None`` where the nodes differ."""
    ours, theirs = pairing.after, pairing.before
    node, other = ours.maker(after), theirs.maker(before)
    if node is None or other is None or not pairing.is_like(node, other):
        return None
    operands = ours.operands(node)
    orders = [theirs.operands(other), *([theirs.operands(other)[::-1]] if len(operands) == 2 else [])]
    unequal = min(
        (
            [(a, b) for a, b in zip(operands, order, strict=False) if pairing.pair_of(a) != pairing.stands_for(b)]
            for order in orders
        ),
        key=len,
    )
    by_numbers = {claim.after for claim in pairing.claims}
    by_chance = [(a, b) for a, b in unequal if ours.made(a) in by_numbers or _are_namesakes(pairing, a, b)]
    suspected = [(a, b) for a, b in unequal if pairing.pair_of(a) is None or (a, b) in by_chance]
    computed = [(a, b) for a, b in suspected if ours.maker(a) is not None and theirs.maker(b) is not None]
    if not computed or len(computed) < len(unequal):
        return None
    return min(computed, key=lambda pair: ours.place[_made(ours, pair[0])])


def _are_namesakes(pairing: Pairing, after: int, before: int) -> bool:
    """Whether both models give values one name, though one of them is equal to another value."""
    other = pairing.namesake(after)
    return other is not None and pairing.stands_for(other) == pairing.stands_for(before)


def _made(side: ComparedModel, value: int) -> Node:
    node = side.maker(value)
    assert node is not None, "it is computed"
    return node


def _unpaired(pairing: Pairing, value: int) -> Iterator[int]:
    """The values after the change, without counterpart, that a value rests on."""
    ours = pairing.after
    stack, seen = [ours.made(value)], set[int]()
    while stack:
        current = stack.pop()
        node = ours.maker(current)
        if current in seen or node is None:
            continue
        seen.add(current)
        yield from node.values
        stack.extend(ours.made(v) for v in ours.operands(node) if pairing.pair_of(v) is None)


def explained(pairing: Pairing, after: int, before: int) -> ModelDifference:
    """What is different where two values are taken to correspond."""
    ours, theirs = pairing.after, pairing.before
    node, other = ours.maker(after), theirs.maker(before)
    arrays = pairing.computed(after), pairing.numbers_before(before)
    words, feed = _words(pairing, node, other), _telling_feed(*arrays, ours.usual)
    if feed is None or arrays[0] is None or arrays[1] is None:
        return ModelDifference(after, before, words)
    shapes = [list(array[feed].shape) for array in arrays if array is not None]
    if shapes[0] != shapes[1]:
        return ModelDifference(after, before, f"{words}; the shape is {shapes[0]}, not {shapes[1]}", feed)
    return ModelDifference(after, before, words, feed, largest_difference(arrays[0][feed], arrays[1][feed]))


def other_defaults(pairing: Pairing) -> Iterator[ModelDifference]:
    """The inputs that need not be fed and are another number then, or that a caller may feed to one model alone."""
    ours, theirs = pairing.after, pairing.before
    for name in dict.fromkeys((*ours.model.defaults, *theirs.model.defaults)):
        after, before = (side.model.values.get(name) for side in (ours, theirs))
        fed = [value is not None and value in side.graph.inputs for side, value in ((ours, after), (theirs, before))]
        if not all(fed):
            side, value = (ours, after) if fed[0] else (theirs, before)
            is_read = value is not None and (value in side.graph.users or value in side.graph.outputs)
            if is_overridable(side.model, name) and is_read:
                which = ("after", "before") if fed[0] else ("before", "after")
                words = (
                    f"a caller may feed '{name}' to the model {which[0]}, where it has a default, and not to the one {which[1]}"
                )
                yield ModelDifference(after, before, words)
            continue
        if name not in ours.model.defaults or name not in theirs.model.defaults:
            yield ModelDifference(after, before, f"input '{name}' may be left out of one model alone")
            continue
        arrays = [widen(side.model.defaults[name].load()) for side in (ours, theirs)]
        if arrays[0].tobytes() != arrays[1].tobytes() or arrays[0].shape != arrays[1].shape:
            sample = largest_difference(*arrays) if arrays[0].shape == arrays[1].shape else None
            yield ModelDifference(after, before, f"input '{name}' is another number where it is not fed", None, sample)


def _words(pairing: Pairing, node: Node | None, other: Node | None) -> str:
    ours, theirs = pairing.after, pairing.before
    if node is None:
        return "an input or a stored tensor stands in its place" if other is not None else "another input or stored tensor"
    if other is None:
        return f"{ours.label(node)} stands in the place of an input or stored tensor"
    first, second = theirs.label(other), ours.label(node)
    if theirs.bodies(other) and ours.bodies(node) and first.split()[0] == second.split()[0] and not pairing.is_like(node, other):
        return f"{second} has a body that computes something else, or is told otherwise how to run it"
    if node.is_opaque or other.is_opaque or node.op != other.op:
        return f"{second} computes what {first} computed" if not pairing.is_like(node, other) else f"other operands of {second}"
    changed = changed_attributes(dict(other.attrs), dict(node.attrs))
    differences = [f"{name} is {new}, not {old}" for name, (old, new) in changed.items()]
    for number, (a, b) in enumerate(zip(ours.operands(node), theirs.operands(other), strict=False), 1):
        if pairing.pair_of(a) == pairing.stands_for(b):
            continue
        numbers = pairing.numbers(a), pairing.numbers_before(b)
        if ours.maker(a) is None and theirs.maker(b) is None and None not in numbers:
            differences.append(f"operand {number} ('{ours.name(a)}') has other numbers: {_other_numbers(*numbers)}")
        else:
            differences.append(f"operand {number} is '{ours.name(ours.made(a))}', not '{theirs.name(theirs.made(b))}'")
    counts = len(ours.operands(node)), len(theirs.operands(other))
    if counts[0] != counts[1]:
        differences.append(f"{counts[0]} operands, not {counts[1]}")
    return f"{second}: {'; '.join(differences) or 'its operands differ'}"


def changed_attributes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Attributes that differ, as text."""
    names = dict.fromkeys((*before, *after))
    texts = {name: tuple(format_value(side[name]) if name in side else "absent" for side in (before, after)) for name in names}
    return {name: (old, new) for name, (old, new) in texts.items() if old != new}


def _other_numbers(after: Arrays | None, before: Arrays | None) -> str:
    assert after is not None and before is not None, "both are known"
    return (
        "another shape" if after[0].shape != before[0].shape else str(largest_difference(after[0], before[0]) or "another type")
    )


def _telling_feed(after: Arrays | None, before: Arrays | None, usual: int) -> int | None:
    """The number of the inputs on which two tensors differ most: usual ones, unless they are equal there but for rounding."""
    if after is None or before is None:
        return None
    errors = [error.relative_l2 for error in distances(after, before)]
    first = int(np.argmax(errors[:usual]))
    if errors[first] > _TELLING or len(errors) == usual:
        return first
    return usual + int(np.argmax(errors[usual:]))


def largest_difference(ours: np.ndarray, theirs: np.ndarray) -> Sample | None:
    """The entry in which tensors of one shape differ most."""
    if not ours.size or ours.dtype.kind in "OSU":
        return None
    apart = np.abs(np.nan_to_num(ours.astype(np.float64)) - np.nan_to_num(theirs.astype(np.float64)))
    apart = np.where(np.isnan(ours) != np.isnan(theirs), np.inf, apart) if ours.dtype.kind == "f" else apart
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return Sample(tuple(int(i) for i in index), float(theirs[index]), float(ours[index]))
