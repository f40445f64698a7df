"""Conditions: typed predicates over terms, cited by operator properties and carried by rules as guards.

Each predicate answers yes, no or unknown (``None``) from the types and ranges of the terms it names, so one definition
serves the certificate checker (on sample types) and the rewriter (on a model's possibly symbolic types).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mugraph.domains.range import Range, unrepeated
from mugraph.terms.shape import (
    DataType,
    Dim,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    broadcast,
    concrete,
    same_dim,
    same_shape,
)
from mugraph.terms.term import AttrValue, Term, bind_value, binding_of, format_value, open_names, substitute, walk
from mugraph.terms.text import Parser

__all__ = [
    "ENTRY_PREDICATES",
    "FLOATING",
    "PREDICATES",
    "RANGE_PREDICATES",
    "SIGNATURES",
    "SOLVERS",
    "Condition",
    "Facts",
    "parse_condition",
]

Argument = Term | AttrValue
Pads = tuple[int, ...]
"""Of a window: pads (all begins, then all ends), kernel sizes, strides or dilations."""

FLOATING = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16})


class Facts:
    """What is known where a condition is asked: types, ranges and the binding of dimension symbols and attribute variables.

    ``value_of`` gives the entries of what is constant, ``None`` for anything else; without it nothing is.
    """

    def __init__(
        self,
        type_of: Callable[[Term], TensorType],
        range_of: Callable[[Term], Range],
        binding: Mapping[str, AttrValue] | None = None,
        value_of: Callable[[Term], np.ndarray | None] = lambda term: None,
    ) -> None:
        self.type_of, self.range_of, self.binding, self.value_of = type_of, range_of, binding or {}, value_of

    def shape(self, term: Term) -> tuple[Dim, ...]:
        return self.type_of(term).shape


def _matrix(facts: Facts, x: Term) -> bool | None:
    """x has at least two dimensions."""
    return len(facts.shape(x)) >= 2


def _rank(facts: Facts, x: Term, count: int) -> bool | None:
    """x has exactly so many dimensions."""
    return len(facts.shape(x)) == count


def _same_rank(facts: Facts, x: Term, y: Term) -> bool | None:
    """x and y have equally many dimensions."""
    return len(facts.shape(x)) == len(facts.shape(y))


def _same_shape(facts: Facts, x: Term, y: Term) -> bool | None:
    """x and y have equal shapes."""
    return same_shape(facts.shape(x), facts.shape(y))


def _agree(facts: Facts, x: Term, y: Term, axis: int) -> bool | None:
    """x and y both reach ``axis`` (negative) and are equally long there."""
    a, b = facts.shape(x), facts.shape(y)
    return same_dim(a[axis], b[axis]) if min(len(a), len(b)) >= -axis else False


def _tail(facts: Facts, x: Term, dims: tuple[Dim, ...]) -> bool | None:
    """The last dimensions of x are ``dims``."""
    shape = facts.shape(x)
    return same_shape(shape[len(shape) - len(dims) :], dims) if len(shape) >= len(dims) else False


def _constant_along(facts: Facts, x: Term, axis: int) -> bool | None:
    """x has size 1 at ``axis`` (negative) or does not reach it, so that broadcasting repeats it along that axis."""
    shape = facts.shape(x)
    return same_dim(shape[axis], 1) if len(shape) >= -axis else True


def _vector(facts: Facts, x: Term) -> bool | None:
    """x has exactly one dimension."""
    return len(facts.shape(x)) == 1


def _ones(facts: Facts, x: Term) -> bool | None:
    """Every dimension of x is 1 (a scalar, whatever its rank)."""
    verdicts = [same_dim(d, 1) for d in facts.shape(x)]
    return False if False in verdicts else (None if None in verdicts else True)


def _dim(facts: Facts, x: Term, axis: int, size: Dim) -> bool | None:
    """The dimension of x at ``axis`` (negative) is ``size``."""
    shape = facts.shape(x)
    if len(shape) < -axis:
        return False
    return same_dim(shape[axis], size)


def _fits(facts: Facts, x: Term, y: Term) -> bool | None:
    """x broadcasts to the shape of y: combining them elementwise has the shape of y."""
    try:
        return same_shape(broadcast([facts.shape(x), facts.shape(y)]), facts.shape(y))
    except ShapeError:
        return False
    except Undecided:
        return None


def _floating(facts: Facts, x: Term) -> bool | None:
    """The entries of x are floating-point numbers: division is division."""
    return facts.type_of(x).dtype in FLOATING


def _single(facts: Facts, x: Term) -> bool | None:
    """The entries of x are of the element type of constant tensors, 32-bit floats."""
    return facts.type_of(x).dtype == DataType.FLOAT


def _not_nan(facts: Facts, x: Term) -> bool | None:
    """No entry of x is NaN."""
    return True if not facts.range_of(x).nan else None


def _finite(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is finite."""
    return True if facts.range_of(x).finite else None


def _nonzero(facts: Facts, x: Term) -> bool | None:
    """No entry of x is zero."""
    return True if facts.range_of(x).nonzero and not facts.range_of(x).nan else None


def _nonnegative(facts: Facts, x: Term) -> bool | None:
    """No entry of x is negative or NaN."""
    range_ = facts.range_of(x)
    return True if range_.lo >= 0 and not range_.neg_inf and not range_.nan else None


def _positive(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is greater than zero."""
    return True if _nonnegative(facts, x) and facts.range_of(x).nonzero else None


def _typed(facts: Facts, x: Term) -> bool | None:
    """x is well-typed: an intermediate term of the certificate that neither side of the rule holds."""
    facts.type_of(x)
    return True


def _compose(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """Transposing by q and then by p, in canonical form (leading axes that stay are left out)."""
    size = max(len(p), len(q))
    p, q = ((*range(size - len(x)), *(i + size - len(x) for i in x)) for x in (p, q))
    whole = tuple(q[i] for i in p)
    lead = next((i for i, axis in enumerate(whole) if axis != i), size)
    return tuple(axis - lead for axis in whole[lead:])


def _axis_before(perm: tuple[int, ...], axis: int) -> int:
    """The axis of the operand that a transposition moves to ``axis`` (both negative)."""
    return perm[axis + len(perm)] - len(perm) if -axis <= len(perm) else axis


def _axis_after(perm: tuple[int, ...], axis: int) -> int:
    return perm.index(axis + len(perm)) - len(perm) if -axis <= len(perm) else axis


def _composes(facts: Facts, r: tuple[int, ...], p: tuple[int, ...], q: tuple[int, ...]) -> bool | None:
    """Transposing by q and then by p is transposing by r."""
    return r == _compose(p, q)


def _moves(facts: Facts, perm: tuple[int, ...], before: int, after: int) -> bool | None:
    """Transposing by perm moves axis ``before`` of the operand to axis ``after`` of the result."""
    return before == _axis_before(perm, after)


def _distinct(facts: Facts, a: int, b: int) -> bool | None:
    """Two axes differ."""
    return a != b


def _length(facts: Facts, dims: tuple[Dim, ...], count: int) -> bool | None:
    """A list of dimensions has ``count`` entries."""
    return len(dims) == count


def _spatial(s: int | tuple[int, ...]) -> int:
    """A number of spatial axes: given itself, or by an attribute with an entry for each."""
    return s if isinstance(s, int) else len(s)


def _channel_axis(facts: Facts, axis: int, s: int | tuple[int, ...]) -> bool | None:
    """The axis is that of the channels: the one before the spatial axes, of which there are as many as s says."""
    return axis == -_spatial(s) - 1


def _batch_axis(facts: Facts, axis: int, s: int | tuple[int, ...]) -> bool | None:
    """The axis is that of the batch, in a kernel that of the output channels: two before the spatial axes."""
    return axis == -_spatial(s) - 2


def _outside(facts: Facts, axis: int, s: int | tuple[int, ...]) -> bool | None:
    """The axis is none of the last, of which there are as many as s says."""
    return axis < -_spatial(s)


def _last_axes(facts: Facts, axes: tuple[int, ...], s: int | tuple[int, ...]) -> bool | None:
    """The axes are the spatial ones: the last, as many as s says."""
    return axes == tuple(range(-_spatial(s), 0))


def _from_axis(facts: Facts, axes: tuple[int, ...], first: int) -> bool | None:
    """The axes are those from ``first`` (negative) to the last."""
    return axes == tuple(range(first, 0))


def _per_channel(facts: Facts, x: Term, s: int | tuple[int, ...]) -> bool | None:
    """x is [C,1,...,1], with as many ones as s says."""
    shape, n = facts.shape(x), _spatial(s)
    return same_shape(shape[1:], (1,) * n) if len(shape) == n + 1 else False


def _constant_over(facts: Facts, x: Term, s: int | tuple[int, ...]) -> bool | None:
    """x has size 1 at each of its last axes, as many as s says, or does not reach them."""
    verdicts = [_constant_along(facts, x, axis) for axis in range(-_spatial(s), 0)]
    return False if False in verdicts else (None if None in verdicts else True)


def _depthwise(facts: Facts, w: Term, group: Dim) -> bool | None:
    """w is a kernel [group,1,...]: each channel has its own, and gives one."""
    return same_shape(facts.shape(w)[:2], (group, 1))


def _same_per_group(facts: Facts, w: Term, g: Dim, v: Term, h: Dim) -> bool | None:
    """The kernels w in g groups and v in h groups have equally many output channels in each group."""
    return same_dim(facts.shape(w)[0] * h, facts.shape(v)[0] * g)


def _sums(facts: Facts, total: Dim, a: Dim, b: Dim) -> bool | None:
    """The number is the sum of the two others."""
    return same_dim(total, a + b)


def _centred(facts: Facts, pads: Pads, kernel: Pads, dilations: Pads) -> bool | None:
    """At stride 1 the kernel stands around each entry: its middle, at half its size rounded down, lies there."""
    return pads == _centring(pads, kernel, dilations)


def _centring(pads: Pads, kernel: Pads, dilations: Pads) -> Pads:
    begins = tuple(d * (k // 2) for k, d in zip(kernel, dilations, strict=True))
    return begins + tuple(d * (k - 1) - b for k, d, b in zip(kernel, dilations, begins, strict=True))


def _padded(facts: Facts, more: Pads, pads: Pads, begins: Pads, ends: Pads) -> bool | None:
    """The pads ``more`` are ``pads`` and those of the spatial axes added."""
    return more == _grown(more, pads, begins, ends) and min(pads, default=0) >= 0


def _widened(facts: Facts, more: Pads, pads: Pads, begins: Pads, ends: Pads, dilations: Pads) -> bool | None:
    """The pads ``more`` are ``pads`` grown as a kernel needs it that has ``begins`` and ``ends`` entries more."""
    return more == _grown(more, pads, begins, ends, dilations) and min(pads, default=0) >= 0


def _grown(more: Pads, pads: Pads, begins: Pads, ends: Pads, dilations: Pads = ()) -> Pads:
    added = tuple(d * p for d, p in zip((dilations or (1,) * len(begins)) * 2, begins + ends, strict=True))
    return tuple(p + a for p, a in zip(pads, added, strict=True))


def _shrunk(more: Pads, pads: Pads, begins: Pads, ends: Pads, dilations: Pads = ()) -> Pads:
    added = _grown(more, (0,) * len(more), begins, ends, dilations)
    less = tuple(p - a for p, a in zip(more, added, strict=True))
    if min(less, default=0) < 0:
        raise ValueError(f"pads {more} less {added}")
    return less


def _unpadded(facts: Facts, pads: Pads) -> bool | None:
    """There is no padding."""
    return not any(pads)


def _unit(facts: Facts, steps: Pads) -> bool | None:
    """Every stride, or dilation, is 1."""
    return set(steps) <= {1}


def _odd(facts: Facts, sizes: Pads) -> bool | None:
    """Every size is odd."""
    return all(size % 2 for size in sizes)


def _enlarged(facts: Facts, large: Pads, small: Pads, begins: Pads, ends: Pads) -> bool | None:
    """Adding entries makes the small kernel the large one, and its middle stays the middle."""
    middles = all(b + k // 2 == m // 2 for m, k, b in zip(large, small, begins, strict=True))
    return middles and large == _enlarge(large, small, begins, ends)


def _enlarge(large: Pads, small: Pads, begins: Pads, ends: Pads) -> Pads:
    return tuple(map(sum, zip(small, begins, ends, strict=True)))


def _sums_each(facts: Facts, total: Pads, a: Pads, b: Pads) -> bool | None:
    """The sizes are the sums of the two others, entry by entry."""
    return total == _each(total, a, b)


def _each(total: Pads, a: Pads, b: Pads) -> Pads:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _above(axes: tuple[int, ...], count: int) -> list[int]:
    """Where the last ``count`` axes lie when ``axes`` are inserted: -1's place first."""
    places: list[int] = []
    place = 0
    while len(places) < count:
        place -= 1
        if place not in axes:
            places.append(place)
    return places


def _lifted(facts: Facts, after: int, before: int, axes: tuple[int, ...]) -> bool | None:
    """The axis ``before`` is at ``after`` once dimensions of size 1 are inserted at ``axes``."""
    return after == _above(axes, -before)[-1]


def _stacked(facts: Facts, total: tuple[int, ...], outer: tuple[int, ...], inner: tuple[int, ...]) -> bool | None:
    """Inserting dimensions at ``inner`` and then at ``outer`` is inserting them at ``total``."""
    return total == _stack(total, outer, inner)


def _stack(total: tuple[int, ...], outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, ...]:
    places = _above(outer, -min(inner, default=0))
    return tuple(sorted([*outer, *(places[-axis - 1] for axis in inner)]))


def _among(facts: Facts, axis: int, axes: tuple[int, ...]) -> bool | None:
    """The axis is one of the axes."""
    return axis in axes


def _below(facts: Facts, x: Term, axis: int) -> bool | None:
    """x does not reach ``axis`` (negative)."""
    return len(facts.shape(x)) < -axis


def _still(facts: Facts, x: Term, perm: tuple[int, ...]) -> bool | None:
    """Of the axes that a transposition moves, x has those of size 1 only."""
    verdicts = [_constant_along(facts, x, i - len(perm)) for i, axis in enumerate(perm) if axis != i]
    return False if False in verdicts else (None if None in verdicts else True)


def _doubles(facts: Facts, total: Dim, half: Dim) -> bool | None:
    """The number is twice the other."""
    return same_dim(total, half + half)


def _half(total: Dim, half: Dim) -> Dim:
    if isinstance(total, SymDim) and all(c % 2 == 0 for _, c in total.terms):
        return SymDim.make({monomial: c // 2 for monomial, c in total.terms})
    if isinstance(total, int) and total % 2 == 0:
        return total // 2
    raise ValueError(f"{total} has no known half")


def _clamped(facts: Facts, result: float, value: float, low: float, high: float) -> bool | None:
    """The number is the value, raised to the lower bound and then lowered to the upper one."""
    return result == min(max(value, low), high)


def _opposite(facts: Facts, a: float, b: float) -> bool | None:
    """One number is the negative of the other."""
    return a == -b


def _at_most(facts: Facts, a: float, b: float) -> bool | None:
    """The first number is not greater than the second."""
    return a <= b


def _full(facts: Facts, pads: Pads, kernel: Pads, dilations: Pads) -> bool | None:
    """The pads reach just as far as the kernel, so that every place where it meets an entry has a result."""
    return pads == _reach(pads, kernel, dilations)


def _reach(pads: Pads, kernel: Pads, dilations: Pads) -> Pads:
    return tuple(d * (k - 1) for k, d in zip(kernel, dilations, strict=True)) * 2


def _surrounds(facts: Facts, w: Term, pads: Pads, dilations: Pads) -> bool | None:
    """The pads reach as far as the kernel: each place where it meets an entry of the image has a result."""
    kernel = concrete(facts.shape(w)[-len(dilations) :])
    return None if kernel is None else all(p >= r for p, r in zip(pads, _reach(pads, kernel, dilations), strict=True))


def _dtype(facts: Facts, x: Term, dtype: DataType) -> bool | None:
    """The entries of x are of the element type ``dtype``."""
    return facts.type_of(x).dtype == dtype


def _float_type(facts: Facts, dtype: DataType) -> bool | None:
    """The element type is one of floating-point numbers, so that a Cast between two such is the identity of real numbers."""
    return dtype in FLOATING


def _product(facts: Facts, total: AttrValue, a: AttrValue, b: AttrValue) -> bool | None:
    """The number is the product of the two others, as far as doubles go: to 2^-52 of it. Dimensions are equal or are not."""
    if isinstance(total, SymDim) or isinstance(a, SymDim) or isinstance(b, SymDim):
        return same_dim(total, a * b)
    if not all(map(math.isfinite, (total, a, b))):
        return False
    rounding = Fraction(0 if isinstance(total, int) else 1, 1 << 52)
    return abs(Fraction(total) - Fraction(a) * Fraction(b)) <= rounding * abs(Fraction(total))


def _factor(total: AttrValue, a: AttrValue) -> AttrValue:
    """What times ``a`` is the total. Raises ValueError where nothing is."""
    if isinstance(total, float) or isinstance(a, float):
        if not a:
            raise ValueError("division by zero")
        return total / a
    if isinstance(total, SymDim):
        try:
            return total.exact_div(a)
        except (ShapeError, Undecided) as problem:
            raise ValueError(str(problem)) from None
    if not isinstance(a, int) or not a or total % a:
        raise ValueError(f"{total} is no multiple of {a}")
    return total // a


def _swapped(facts: Facts, after: tuple[Dim, ...], before: tuple[Dim, ...]) -> bool | None:
    """The lists of dimensions are equal but for the last two, which are exchanged."""
    return len(before) >= 2 and after == _swap(before)


def _swap(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    if len(dims) < 2:
        raise ValueError(f"{dims} has no last two dimensions")
    return (*dims[:-2], dims[-1], dims[-2])


def _keeps(facts: Facts, x: Term, dims: tuple[Dim, ...], count: int) -> bool | None:
    """The last ``count`` dimensions of x are those of the list."""
    return _tail(facts, x, dims[len(dims) - count :]) if len(dims) >= count else False


def _headless(facts: Facts, rest: tuple[Dim, ...], dims: tuple[Dim, ...]) -> bool | None:
    """The list is the other one without its first entry."""
    return len(dims) >= 1 and rest == dims[1:]


def _leads(facts: Facts, x: Term, count: int, dims: tuple[Dim, ...]) -> bool | None:
    """The first of the last ``count`` dimensions of x is the first one of the list."""
    shape = facts.shape(x)
    return same_dim(shape[len(shape) - count], dims[0]) if dims and 1 <= count <= len(shape) else False


def _reaches(facts: Facts, total: int, first: int, dims: tuple[Dim, ...], second: int) -> bool | None:
    """Where ``first`` last dimensions became those of the list, replacing ``second`` last ones then concerns ``total``."""
    return total == _reached(first, dims, second)


def _reached(first: int, dims: tuple[Dim, ...], second: int) -> int:
    return first + max(0, second - len(dims))


def _spliced(facts: Facts, total: tuple[Dim, ...], dims: tuple[Dim, ...], count: int, last: tuple[Dim, ...]) -> bool | None:
    """The list is ``dims`` with its ``count`` last entries replaced by those of ``last``."""
    return total == _splice(dims, count, last)


def _splice(dims: tuple[Dim, ...], count: int, last: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return dims[: max(0, len(dims) - count)] + last


def _repeats(facts: Facts, x: Term, axis: int) -> bool | None:
    """Along ``axis`` (negative) the second half of x repeats the first: a table of angles, each for two entries."""
    value = facts.value_of(x)
    if value is None:
        return None
    if value.ndim < -axis or value.shape[axis] % 2:
        return False
    first, second = np.split(value, 2, axis)
    return bool(np.array_equal(first, second))


def _causal(facts: Facts, m: Term) -> bool | None:
    """m is what causal attention adds to its scores: zero for a key that is not after its query, -inf for the others.

    A number below half the least of the element type counts as -inf: scores vanish beside it.
    """
    value, least = facts.value_of(m), _LEAST.get(facts.type_of(m).dtype)
    if value is None:
        return None
    if value.ndim < 2 or value.shape[-1] != value.shape[-2] or least is None:
        return False
    seen = np.tri(value.shape[-1], dtype=bool)
    once = unrepeated(value)
    value = np.broadcast_to(once, (*once.shape[:-2], *seen.shape))
    return bool(np.all(value[..., seen] == 0) and np.all(value[..., ~seen].astype(np.float64) < least / 2))


def _all_true(facts: Facts, x: Term) -> bool | None:
    """Every entry of x is true."""
    return True if facts.range_of(x).lo == 1 and facts.type_of(x).dtype == DataType.BOOL else None


_LEAST = {
    DataType.FLOAT16: -65504.0,
    DataType.BFLOAT16: -3.3895313892515355e38,
    DataType.FLOAT: -3.4028234663852886e38,
    DataType.DOUBLE: -1.7976931348623157e308,
}
"""The least number of an element type."""


SOLVERS: dict[str, Mapping[int, Callable[..., AttrValue]]] = {
    "composes": {0: lambda r, p, q: _compose(p, q)},
    "moves": {1: lambda p, before, after: _axis_before(p, after), 2: lambda p, before, after: _axis_after(p, before)},
    "length": {1: lambda dims, count: len(dims)},
    "channel_axis": {0: lambda axis, s: -_spatial(s) - 1},
    "batch_axis": {0: lambda axis, s: -_spatial(s) - 2},
    "last_axes": {0: lambda axes, s: tuple(range(-_spatial(s), 0))},
    "from_axis": {0: lambda axes, first: tuple(range(first, 0)), 1: lambda axes, first: -len(axes)},
    "sums": {0: lambda total, a, b: a + b, 1: lambda total, a, b: total - b, 2: lambda total, a, b: total - a},
    "sums_each": {0: _each},
    "lifted": {0: lambda after, before, axes: _above(axes, -before)[-1]},
    "stacked": {0: _stack},
    "centred": {0: _centring},
    "padded": {0: _grown, 1: _shrunk},
    "widened": {0: _grown, 1: _shrunk},
    "enlarged": {0: _enlarge, 1: lambda large, small, b, e: tuple(m - p - q for m, p, q in zip(large, b, e, strict=True))},
    "full": {0: _reach},
    "doubles": {0: lambda total, half: half + half, 1: _half},
    "clamped": {0: lambda result, value, low, high: min(max(value, low), high)},
    "opposite": {0: lambda a, b: -b, 1: lambda a, b: -a},
    "product": {
        0: lambda total, a, b: a * b,
        1: lambda total, a, b: _factor(total, b),
        2: lambda total, a, b: _factor(total, a),
    },
    "swapped": {0: lambda after, before: _swap(before), 1: lambda after, before: _swap(after)},
    "headless": {0: lambda rest, dims: dims[1:]},
    "reaches": {0: lambda total, first, dims, second: _reached(first, dims, second)},
    "spliced": {0: lambda total, dims, count, last: _splice(dims, count, last)},
}
"""For predicates about attributes alone: the argument at a position from the others. Only who looks for a proof solves."""

PREDICATES: dict[str, Callable[..., bool | None]] = {
    "matrix": _matrix,
    "vector": _vector,
    "rank": _rank,
    "same_rank": _same_rank,
    "same_shape": _same_shape,
    "agree": _agree,
    "tail": _tail,
    "constant_along": _constant_along,
    "ones": _ones,
    "dim": _dim,
    "fits": _fits,
    "floating": _floating,
    "single": _single,
    "not_nan": _not_nan,
    "finite": _finite,
    "nonzero": _nonzero,
    "nonnegative": _nonnegative,
    "positive": _positive,
    "typed": _typed,
    "composes": _composes,
    "moves": _moves,
    "distinct": _distinct,
    "length": _length,
    "channel_axis": _channel_axis,
    "batch_axis": _batch_axis,
    "outside": _outside,
    "last_axes": _last_axes,
    "from_axis": _from_axis,
    "per_channel": _per_channel,
    "constant_over": _constant_over,
    "depthwise": _depthwise,
    "same_per_group": _same_per_group,
    "sums": _sums,
    "sums_each": _sums_each,
    "lifted": _lifted,
    "stacked": _stacked,
    "centred": _centred,
    "padded": _padded,
    "widened": _widened,
    "unpadded": _unpadded,
    "unit": _unit,
    "odd": _odd,
    "enlarged": _enlarged,
    "among": _among,
    "below": _below,
    "still": _still,
    "doubles": _doubles,
    "clamped": _clamped,
    "opposite": _opposite,
    "at_most": _at_most,
    "full": _full,
    "surrounds": _surrounds,
    "dtype": _dtype,
    "float_type": _float_type,
    "product": _product,
    "swapped": _swapped,
    "keeps": _keeps,
    "headless": _headless,
    "leads": _leads,
    "reaches": _reaches,
    "spliced": _spliced,
    "repeats": _repeats,
    "causal": _causal,
    "all_true": _all_true,
}
"""Name to definition; a definition's docstring is what ``rulegen show`` prints."""

ENTRY_PREDICATES = frozenset({"repeats", "causal", "all_true"})
"""Predicates about the entries of masks and constants: which of them stand where."""

RANGE_PREDICATES = frozenset({"not_nan", "finite", "nonzero", "nonnegative", "positive"}) | ENTRY_PREDICATES
"""Predicates about values, which only a model can answer."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate applied to terms and attribute values."""

    predicate: str
    arguments: tuple[Argument, ...]

    def holds(self, facts: Facts) -> bool | None:
        """Yes, no, or ``None`` where it cannot be shown. An ill-typed term in it means no, and so does an axis that is none."""
        try:
            arguments = (a if isinstance(a, Term) else bind_value(a, facts.binding) for a in self.arguments)
            return PREDICATES[self.predicate](facts, *arguments)
        except (ShapeError, IndexError):
            return False
        except Undecided:
            return None

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Condition:
        def replace(argument: Argument) -> Argument:
            if isinstance(argument, Term):
                return substitute(argument, terms, attrs, dims)
            return bind_value(argument, binding)

        binding = binding_of(attrs, dims)
        return Condition(self.predicate, tuple(replace(a) for a in self.arguments))

    def open_names(self) -> set[str]:
        """Names of the attribute variables in it."""
        values = [a for a in self.arguments if not isinstance(a, Term)]
        values += [value for term in walk(self.terms()) for _, value in term.attrs]
        return {name for value in values for name in open_names(value)}

    def terms(self) -> Sequence[Term]:
        return [a for a in self.arguments if isinstance(a, Term)]

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join(repr(a) if isinstance(a, Term) else format_value(a) for a in self.arguments)})"


SIGNATURES = {
    "agree": "ttv",
    "tail": "tv",
    "constant_along": "tv",
    "dim": "tvv",
    "same_shape": "tt",
    "fits": "tt",
    "composes": "vvv",
    "moves": "vvv",
    "distinct": "vv",
    "length": "vv",
    "channel_axis": "vv",
    "batch_axis": "vv",
    "outside": "vv",
    "last_axes": "vv",
    "from_axis": "vv",
    "per_channel": "tv",
    "constant_over": "tv",
    "depthwise": "tv",
    "same_per_group": "tvtv",
    "sums": "vvv",
    "sums_each": "vvv",
    "lifted": "vvv",
    "stacked": "vvv",
    "rank": "tv",
    "same_rank": "tt",
    "centred": "vvv",
    "padded": "vvvv",
    "widened": "vvvvv",
    "unpadded": "v",
    "unit": "v",
    "odd": "v",
    "enlarged": "vvvv",
    "among": "vv",
    "below": "tv",
    "still": "tv",
    "doubles": "vv",
    "clamped": "vvvv",
    "opposite": "vv",
    "at_most": "vv",
    "full": "vvv",
    "surrounds": "tvv",
    "dtype": "tv",
    "float_type": "v",
    "product": "vvv",
    "swapped": "vv",
    "keeps": "tvv",
    "headless": "vv",
    "leads": "tvv",
    "reaches": "vvvv",
    "spliced": "vvvv",
    "repeats": "tv",
}
"""Arguments of a predicate: ``t`` a term, ``v`` an attribute value; one term where nothing stands here."""


def parse_condition(parser: Parser) -> Condition:
    """Reads ``predicate(argument, ...)``; an unknown predicate is named with the known ones."""
    name = parser.name("a condition")
    if name not in PREDICATES:
        parser.fail(f"one of {', '.join(PREDICATES)}, not '{name}',")
    parser.expect("(")
    arguments: list[Argument] = []
    for position, kind in enumerate(SIGNATURES.get(name, "t")):
        if position:
            parser.expect(",")
        arguments.append(parser.term() if kind == "t" else parser.value())
    parser.expect(")")
    return Condition(name, tuple(arguments))
