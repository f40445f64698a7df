"""Guards about attributes that are axes, counted from the end: what transpositions, unsqueezing and spatial axes make of them."""

from __future__ import annotations

from mugraph.terms.term import AttrValue
from rules_db.trust.guards.record import About, Facts, guard
from rules_db.trust.guards.shapes import Axes, spatial

# Transpositions


def _compose(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """Transposing by q and then by p, in canonical form (leading axes that stay are left out)."""
    size = max(len(p), len(q))
    p, q = ((*range(size - len(x)), *(i + size - len(x) for i in x)) for x in (p, q))
    whole = tuple(q[i] for i in p)
    lead = next((i for i, axis in enumerate(whole) if axis != i), size)
    return tuple(axis - lead for axis in whole[lead:])


@guard(20, About.ATTRIBUTES, solvers={0: lambda r, p, q: _compose(p, q)})
def composes(facts: Facts, r: tuple[int, ...], p: tuple[int, ...], q: tuple[int, ...]) -> bool | None:
    """Transposing by ``q`` and then by ``p`` is transposing by ``r``."""
    return r == _compose(p, q)


def _axis_before(perm: tuple[int, ...], before: AttrValue, after: int) -> int:
    """The axis of the operand that a transposition moves to ``after``."""
    return perm[after + len(perm)] - len(perm) if -after <= len(perm) else after


def _axis_after(perm: tuple[int, ...], before: int, after: AttrValue) -> int:
    return perm.index(before + len(perm)) - len(perm) if -before <= len(perm) else before


@guard(21, About.ATTRIBUTES, solvers={1: _axis_before, 2: _axis_after})
def moves(facts: Facts, perm: tuple[int, ...], before: int, after: int) -> bool | None:
    """Transposing by ``perm`` moves axis ``before`` of the operand to axis ``after`` of the result."""
    return before == _axis_before(perm, before, after)


# Spatial axes


@guard(24, About.ATTRIBUTES, solvers={0: lambda axis, s: -spatial(s) - 1})
def channel_axis(facts: Facts, axis: int, s: Axes) -> bool | None:
    """Axis ``axis`` is that of the channels: the one before the spatial axes, as many as ``s`` says."""
    return axis == -spatial(s) - 1


@guard(25, About.ATTRIBUTES, solvers={0: lambda axis, s: -spatial(s) - 2})
def batch_axis(facts: Facts, axis: int, s: Axes) -> bool | None:
    """Axis ``axis`` is that of the batch, in a kernel that of the output channels: two before the spatial axes."""
    return axis == -spatial(s) - 2


@guard(26, About.ATTRIBUTES)
def outside(facts: Facts, axis: int, s: Axes) -> bool | None:
    """Axis ``axis`` is none of the last, as many as ``s`` says."""
    return axis < -spatial(s)


@guard(27, About.ATTRIBUTES, solvers={0: lambda axes, s: tuple(range(-spatial(s), 0))})
def last_axes(facts: Facts, axes: tuple[int, ...], s: Axes) -> bool | None:
    """The axes ``axes`` are the spatial ones: the last, as many as ``s`` says."""
    return axes == tuple(range(-spatial(s), 0))


@guard(28, About.ATTRIBUTES, solvers={0: lambda axes, first: tuple(range(first, 0)), 1: lambda axes, first: -len(axes)})
def from_axis(facts: Facts, axes: tuple[int, ...], first: int) -> bool | None:
    """The axes ``axes`` are those from ``first`` to the last."""
    return axes == tuple(range(first, 0))


# Inserted axes


def _above(axes: tuple[int, ...], count: int) -> list[int]:
    """Where the last ``count`` axes lie when ``axes`` are inserted: -1's place first."""
    places: list[int] = []
    place = 0
    while len(places) < count:
        place -= 1
        if place not in axes:
            places.append(place)
    return places


def _lift(after: AttrValue, before: int, axes: tuple[int, ...]) -> int:
    return _above(axes, -before)[-1]


@guard(35, About.ATTRIBUTES, solvers={0: _lift})
def lifted(facts: Facts, after: int, before: int, axes: tuple[int, ...]) -> bool | None:
    """The axis ``before`` is at ``after`` once dimensions of size 1 are inserted at ``axes``."""
    return after == _lift(after, before, axes)


def _stack(total: AttrValue, outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, ...]:
    places = _above(outer, -min(inner, default=0))
    return tuple(sorted([*outer, *(places[-axis - 1] for axis in inner)]))


@guard(36, About.ATTRIBUTES, solvers={0: _stack})
def stacked(facts: Facts, total: tuple[int, ...], outer: tuple[int, ...], inner: tuple[int, ...]) -> bool | None:
    """Inserting dimensions at ``inner`` and then at ``outer`` is inserting them at ``total``."""
    return total == _stack(total, outer, inner)


# Any axes


@guard(22, About.ATTRIBUTES)
def distinct(facts: Facts, a: int, b: int) -> bool | None:
    """The axes ``a`` and ``b`` differ."""
    return a != b


@guard(44, About.ATTRIBUTES)
def among(facts: Facts, axis: int, axes: tuple[int, ...]) -> bool | None:
    """Axis ``axis`` is one of ``axes``."""
    return axis in axes
