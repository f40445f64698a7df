"""Where two models begin to differ: the node at fault, in words and in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from modeldiff.distance import distance
from modeldiff.pairing import Pairing
from modeldiff.sides import Arrays, ComparedModel
from mugraph.graph import Node
from mugraph.terms.term import format_value
from rewriter.reference.nodes import widen

__all__ = ["ModelDifference", "Sample", "explained", "other_defaults", "suspects"]

_TRIALS = 8
"""Pairs of values of one name that are tried as the place of a difference."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The entry in which two tensors differ most.

    Attributes:
        feed: number of the inputs, from 0.
        index: of the entry.
    """

    feed: int
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
        after, before: the values that should be equal.
        words: what is different about the nodes that compute them.
        sample: in numbers; ``None`` where one of the two cannot be computed, or their shapes differ.
    """

    after: int
    before: int
    words: str
    sample: Sample | None


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
    sample = _sample(pairing.computed(after), pairing.numbers_before(before))
    words = _words(pairing, node, other)
    shapes = [None if arrays is None else arrays[0].shape for arrays in (pairing.numbers_before(before), pairing.computed(after))]
    if None not in shapes and shapes[0] != shapes[1]:
        words = f"{words}; the shape is {list(shapes[1] or ())}, not {list(shapes[0] or ())}"
    return ModelDifference(after, before, words, sample)


def other_defaults(pairing: Pairing) -> Iterator[ModelDifference]:
    """The inputs that need not be fed and are another number then, or are a number in one model alone."""
    ours, theirs = pairing.after.model, pairing.before.model
    for name in dict.fromkeys((*ours.defaults, *theirs.defaults)):
        after, before = ours.values.get(name), theirs.values.get(name)
        if after is None or before is None or after not in ours.graph.inputs or before not in theirs.graph.inputs:
            continue
        if name not in ours.defaults or name not in theirs.defaults:
            yield ModelDifference(after, before, f"input '{name}' may be left out of one model alone", None)
            continue
        arrays = [widen(model.defaults[name].load()) for model in (ours, theirs)]
        if arrays[0].tobytes() != arrays[1].tobytes() or arrays[0].shape != arrays[1].shape:
            sample = _sample([arrays[0]], [arrays[1]])
            yield ModelDifference(after, before, f"input '{name}' is another number where it is not fed", sample)


def _words(pairing: Pairing, node: Node | None, other: Node | None) -> str:
    ours, theirs = pairing.after, pairing.before
    if node is None:
        return "an input or a stored tensor stands in its place" if other is not None else "another input or stored tensor"
    if other is None:
        return f"{ours.label(node)} stands in the place of an input or stored tensor"
    first, second = theirs.label(other), ours.label(node)
    if node.is_opaque or other.is_opaque or node.op != other.op:
        return f"{second} computes what {first} computed" if not pairing.is_like(node, other) else f"other operands of {second}"
    changed = _changed(dict(other.attrs), dict(node.attrs))
    differences = [f"{name} is {new}, not {old}" for name, (old, new) in changed.items()]
    for number, (a, b) in enumerate(zip(ours.operands(node), theirs.operands(other), strict=False), 1):
        if pairing.pair_of(a) == pairing.stands_for(b):
            continue
        numbers = pairing.numbers(a), pairing.numbers_before(b)
        if ours.maker(a) is None and theirs.maker(b) is None and None not in numbers:
            differences.append(f"operand {number} ('{ours.name(a)}') has other numbers: {_sample(*numbers) or 'another shape'}")
        else:
            differences.append(f"operand {number} is '{ours.name(a)}', not '{theirs.name(b)}'")
    counts = len(ours.operands(node)), len(theirs.operands(other))
    if counts[0] != counts[1]:
        differences.append(f"{counts[0]} operands, not {counts[1]}")
    return f"{second}: {'; '.join(differences) or 'its operands differ'}"


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Attributes that differ, as text."""
    names = dict.fromkeys((*before, *after))
    texts = {name: tuple(format_value(side[name]) if name in side else "absent" for side in (before, after)) for name in names}
    return {name: (old, new) for name, (old, new) in texts.items() if old != new}


def _sample(after: Arrays | None, before: Arrays | None) -> Sample | None:
    """The entry that differs most, on the inputs on which the tensors differ most."""
    if after is None or before is None or any(a.shape != b.shape for a, b in zip(after, before, strict=True)):
        return None
    errors = [distance(a, b).relative_l2 for a, b in zip(after, before, strict=True)]
    feed = int(np.argmax(errors))
    ours, theirs = after[feed], before[feed]
    if not ours.size or ours.dtype.kind in "OSU":
        return None
    apart = np.abs(np.nan_to_num(ours.astype(np.float64)) - np.nan_to_num(theirs.astype(np.float64)))
    apart = np.where(np.isnan(ours) != np.isnan(theirs), np.inf, apart) if ours.dtype.kind == "f" else apart
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    return Sample(feed, tuple(int(i) for i in index), float(theirs[index]), float(ours[index]))
