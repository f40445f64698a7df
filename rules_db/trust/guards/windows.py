"""Guards about the attributes of windows: pads (all begins, then all ends), kernel sizes, strides and dilations."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.terms.shape import concrete
from mugraph.terms.term import AttrValue, Term
from rules_db.trust.guards.record import About, Facts, Premises, guard

Entries = tuple[int, ...]
"""Pads, sizes, strides or dilations: an entry for each spatial axis, of pads two."""


def _centring(pads: AttrValue, kernel: Entries, dilations: Entries) -> Entries:
    begins = tuple(d * (k // 2) for k, d in zip(kernel, dilations, strict=True))
    return begins + tuple(d * (k - 1) - b for k, d, b in zip(kernel, dilations, begins, strict=True))


def _centred_kernel(pads: Entries, kernel: AttrValue, dilations: Entries) -> Entries:
    around = zip(pads[: len(dilations)], pads[len(dilations) :], dilations, strict=True)
    return tuple((begin + end) // d + 1 for begin, end, d in around)


@guard(37, About.ATTRIBUTES, solvers={0: _centring, 1: _centred_kernel})
def centred(facts: Facts, pads: Entries, kernel: Entries, dilations: Entries) -> bool | None:
    """At stride 1 the kernel stands around each entry: its middle, at half its size rounded down, lies there."""
    return pads == _centring(pads, kernel, dilations)


def _grown(more: AttrValue, pads: Entries, begins: Entries, ends: Entries, dilations: Entries = ()) -> Entries:
    added = tuple(d * p for d, p in zip((dilations or (1,) * len(begins)) * 2, begins + ends, strict=True))
    return tuple(p + a for p, a in zip(pads, added, strict=True))


def _is_grown(more: Entries, pads: Entries, begins: Entries, ends: Entries, dilations: Entries = ()) -> bool:
    """Whether these are the pads of :func:`_grown`, of as many axes, none of them negative before."""
    alike = len(begins) == len(ends) == len(dilations or begins) and len(more) == len(pads) == 2 * len(begins)
    return alike and more == _grown(more, pads, begins, ends, dilations) and min(pads, default=0) >= 0


def _shrunk(more: Entries, pads: AttrValue, begins: Entries, ends: Entries, dilations: Entries = ()) -> Entries:
    added = _grown(more, (0,) * len(more), begins, ends, dilations)
    less = tuple(p - a for p, a in zip(more, added, strict=True))
    if min(less, default=0) < 0:
        raise ValueError(f"pads {more} less {added}")
    return less


def _growth(side: int) -> Callable[..., Entries]:
    """Reads off how many entries more a kernel, or an image, has at a side (0: before, 1: behind) for pads that have grown."""

    def read(facts: Facts, more: Entries, pads: Entries, begins: AttrValue, ends: AttrValue, dilations: Entries = ()) -> Entries:
        added = []
        grown = (_half(more, side), _half(pads, side))
        for m, p, d in zip(*grown, dilations or (1,) * len(grown[0]), strict=True):
            entries, rest = divmod(m - p, d)
            if rest or entries < 0:
                raise ValueError(f"no kernel grows from pads {pads} to {more}")
            added.append(entries)
        return tuple(added)

    return read


def _half(pads: Entries, side: int) -> Entries:
    """The pads before (0) or behind (1) each axis."""
    middle = len(pads) // 2
    return pads[middle:] if side else pads[:middle]


@guard(38, About.ATTRIBUTES, solvers={0: _grown, 1: _shrunk}, readers={2: _growth(0), 3: _growth(1)})
def padded(facts: Facts, more: Entries, pads: Entries, begins: Entries, ends: Entries) -> bool | None:
    """The pads ``more`` are ``pads`` and those of the spatial axes added."""
    return _is_grown(more, pads, begins, ends)


@guard(39, About.ATTRIBUTES, solvers={0: _grown, 1: _shrunk}, readers={2: _growth(0), 3: _growth(1)})
def widened(facts: Facts, more: Entries, pads: Entries, begins: Entries, ends: Entries, dilations: Entries) -> bool | None:
    """The pads ``more`` are ``pads`` grown as a kernel needs it that has ``begins`` and ``ends`` entries more."""
    return _is_grown(more, pads, begins, ends, dilations)


@guard(40, About.ATTRIBUTES)
def unpadded(facts: Facts, pads: Entries) -> bool | None:
    """There is no padding."""
    return not any(pads)


@guard(41, About.ATTRIBUTES)
def unit(facts: Facts, steps: Entries) -> bool | None:
    """Every stride, or dilation, is 1."""
    return set(steps) <= {1}


@guard(42, About.ATTRIBUTES)
def odd(facts: Facts, sizes: Entries) -> bool | None:
    """Every size is odd."""
    return all(size % 2 for size in sizes)


def _each(total: AttrValue, a: Entries, b: Entries) -> Entries:
    return tuple(x + y for x, y in zip(a, b, strict=True))


@guard(34, About.ATTRIBUTES, solvers={0: _each})
def sums_each(facts: Facts, total: Entries, a: Entries, b: Entries) -> bool | None:
    """The sizes ``total`` are the sums of ``a`` and ``b``, entry by entry."""
    return total == _each(total, a, b)


def _enlarge(large: AttrValue, small: Entries, begins: Entries, ends: Entries) -> Entries:
    return tuple(map(sum, zip(small, begins, ends, strict=True)))


def _reduce(large: Entries, small: AttrValue, begins: Entries, ends: Entries) -> Entries:
    return tuple(m - b - e for m, b, e in zip(large, begins, ends, strict=True))


@guard(43, About.ATTRIBUTES, solvers={0: _enlarge, 1: _reduce})
def enlarged(facts: Facts, large: Entries, small: Entries, begins: Entries, ends: Entries) -> bool | None:
    """Adding entries makes a kernel of sizes ``small`` one of sizes ``large``, and its middle stays the middle."""
    middles = all(b + k // 2 == m // 2 for m, k, b in zip(large, small, begins, strict=True))
    return middles and large == _enlarge(large, small, begins, ends)


def _reach(pads: AttrValue, kernel: Entries, dilations: Entries) -> Entries:
    return tuple(d * (k - 1) for k, d in zip(kernel, dilations, strict=True)) * 2


@guard(51, About.ATTRIBUTES, solvers={0: _reach})
def full(facts: Facts, pads: Entries, kernel: Entries, dilations: Entries) -> bool | None:
    """The pads reach just as far as the kernel, so that every place where it meets an entry has a result."""
    return pads == _reach(pads, kernel, dilations)


@guard(52, About.SHAPES)
def surrounds(facts: Facts, w: Term, pads: Entries, dilations: Entries) -> bool | None:
    """The pads reach as far as the kernel: each place where it meets an entry of the image has a result."""
    kernel = concrete(facts.shape(w)[-len(dilations) :])
    return None if kernel is None else all(p >= r for p, r in zip(pads, _reach(pads, kernel, dilations), strict=True))


def _always_touches(kernel: Entries, pads: Entries, dilations: Entries) -> bool:
    """Whether every window meets whatever image it fits, by its attributes alone.

    A window that begins before the image and ends behind it may step over one that is shorter than a dilation. An image in which
    it finds a place is not, where there is little padding; nothing steps over anything where the dilation is 1.
    """
    axes = zip(kernel, pads[: len(kernel)], pads[len(kernel) :], dilations, strict=True)
    return all(
        max(begin, end) <= d * (k - 1) and (k == 1 or d == 1 or d * (k - 1) + 1 - begin - end >= d) for k, begin, end, d in axes
    )


def _touches_law(premises: Premises, x: Term, kernel: AttrValue, pads: AttrValue, dilations: AttrValue) -> bool:
    if isinstance(kernel, tuple) and isinstance(pads, tuple) and isinstance(dilations, tuple):
        return _always_touches(kernel, pads, dilations)
    return False


@guard(66, About.SHAPES, law=_touches_law)
def touches(facts: Facts, x: Term, kernel: Entries, pads: Entries, dilations: Entries) -> bool | None:
    """Every window over x meets an entry of x: none lies in padding alone."""
    if _always_touches(kernel, pads, dilations):
        return True
    n = len(kernel)
    if any(max(b, e) > d * (k - 1) for k, b, e, d in zip(kernel, pads[:n], pads[n:], dilations, strict=True)):
        return False
    image = facts.shape(x)[-n:]
    answers = [k == 1 or facts.at_least(dim, d) for k, dim, d in zip(kernel, image, dilations, strict=True)]
    return False if False in answers else None if None in answers else True
