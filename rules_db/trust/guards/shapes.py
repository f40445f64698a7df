"""Guards about the shapes of terms: ranks, sizes, what broadcasts, and the shapes of what convolutions combine."""

from __future__ import annotations

from mugraph.ops import get_operator
from mugraph.terms.shape import Dim, ShapeError, Undecided, broadcast, same_dim
from mugraph.terms.shape import same_shape as equal_shapes
from mugraph.terms.term import AttrValue, AttrVar, Term
from rules_db.trust.guards.record import (
    EVERYWHERE,
    About,
    AxesUpTo,
    Facts,
    Fits,
    LeastRank,
    Ones,
    Premises,
    Rank,
    SameShape,
    Size,
    Told,
    guard,
)

Axes = int | tuple[int, ...]
"""A number of spatial axes: given itself, or by an attribute with an entry for each."""


def spatial(axes: Axes) -> int:
    """The number of spatial axes."""
    return axes if isinstance(axes, int) else len(axes)


def _all(verdicts: list[bool | None]) -> bool | None:
    return False if False in verdicts else (None if None in verdicts else True)


# Ranks


@guard(1, About.SHAPES, tells=lambda x: [LeastRank(x, 2)], law=lambda premises, x: premises.least_rank(x) >= 2)
def matrix(facts: Facts, x: Term) -> bool | None:
    """x has at least two dimensions."""
    return len(facts.shape(x)) >= 2


def _vector_tells(x: Term) -> list[Told]:
    return [LeastRank(x, 1), Rank(x, 1), Ones(x, AxesUpTo(-2))]


@guard(2, About.SHAPES, tells=_vector_tells, law=lambda premises, x: premises.rank(x) == 1)
def vector(facts: Facts, x: Term) -> bool | None:
    """x has exactly one dimension."""
    return len(facts.shape(x)) == 1


def _rank_tells(x: Term, count: AttrValue) -> list[Told]:
    return [LeastRank(x, count), Rank(x, count)] if isinstance(count, int) else []


@guard(3, About.SHAPES, tells=_rank_tells, law=lambda premises, x, count: premises.rank(x) == count)
def rank(facts: Facts, x: Term, count: int) -> bool | None:
    """x has exactly ``count`` dimensions."""
    return len(facts.shape(x)) == count


def _same_rank_law(premises: Premises, x: Term, y: Term) -> bool:
    count = premises.rank(x)
    return (count is not None and count == premises.rank(y)) or premises.same_shape(x, y)


@guard(4, About.SHAPES, law=_same_rank_law)
def same_rank(facts: Facts, x: Term, y: Term) -> bool | None:
    """x and y have equally many dimensions."""
    return len(facts.shape(x)) == len(facts.shape(y))


def _below_law(premises: Premises, x: Term, axis: int) -> bool:
    count = premises.rank(x)
    return count is not None and count < -axis


@guard(45, About.SHAPES, law=_below_law)
def below(facts: Facts, x: Term, axis: int) -> bool | None:
    """x does not reach axis ``axis``."""
    return len(facts.shape(x)) < -axis


@guard(19, About.SHAPES)
def typed(facts: Facts, x: Term) -> bool | None:
    """x is well-typed: an intermediate term of the certificate that neither side of the rule holds."""
    facts.type_of(x)
    return True


# Sizes


def _same_shape_tells(x: Term, y: Term) -> list[Told]:
    return [SameShape(x, y), SameShape(y, x), Fits(x, y)]


@guard(5, About.SHAPES, tells=_same_shape_tells, law=lambda premises, x, y: premises.same_shape(x, y))
def same_shape(facts: Facts, x: Term, y: Term) -> bool | None:
    """x and y have equal shapes."""
    return equal_shapes(facts.shape(x), facts.shape(y))


def _agree_tells(x: Term, y: Term, axis: AttrValue) -> list[Told]:
    return [LeastRank(x, -axis), LeastRank(y, -axis)] if isinstance(axis, int) else []


def _agree_law(premises: Premises, x: Term, y: Term, axis: int) -> bool:
    if x is y:
        return premises.least_rank(x) >= -axis
    size = premises.size(x, axis)
    return size is not None and size == premises.size(y, axis)


@guard(6, About.SHAPES, tells=_agree_tells, law=_agree_law)
def agree(facts: Facts, x: Term, y: Term, axis: int) -> bool | None:
    """x and y both reach axis ``axis`` and are equally long there."""
    a, b = facts.shape(x), facts.shape(y)
    return same_dim(a[axis], b[axis]) if min(len(a), len(b)) >= -axis else False


def _dim_tells(x: Term, axis: AttrValue, size: AttrValue) -> list[Told]:
    if not isinstance(axis, int):
        return []
    return [LeastRank(x, -axis), *([] if isinstance(size, AttrVar) else [Size(x, axis, size)])]


@guard(10, About.SHAPES, tells=_dim_tells, law=lambda premises, x, axis, size: premises.size(x, axis) == size)
def dim(facts: Facts, x: Term, axis: int, size: Dim) -> bool | None:
    """The dimension of x at axis ``axis`` is ``size``."""
    shape = facts.shape(x)
    if len(shape) < -axis:
        return False
    return same_dim(shape[axis], size)


@guard(7, About.SHAPES, law=lambda premises, x, dims: isinstance(dims, tuple) and premises.ends(x, dims))
def tail(facts: Facts, x: Term, dims: tuple[Dim, ...]) -> bool | None:
    """The last dimensions of x are ``dims``."""
    shape = facts.shape(x)
    return equal_shapes(shape[len(shape) - len(dims) :], dims) if len(shape) >= len(dims) else False


def _keeps_law(premises: Premises, x: Term, dims: AttrValue, count: AttrValue) -> bool:
    if not isinstance(dims, tuple) or not isinstance(count, int):
        return False
    return 0 < count <= len(dims) and premises.ends(x, dims[-count:])


@guard(57, About.SHAPES, law=_keeps_law)
def keeps(facts: Facts, x: Term, dims: tuple[Dim, ...], count: int) -> bool | None:
    """The last ``count`` dimensions of x are ``dims``."""
    return tail.predicate(facts, x, dims[len(dims) - count :]) if len(dims) >= count else False


def _leads_law(premises: Premises, x: Term, count: AttrValue, dims: AttrValue) -> bool:
    return isinstance(count, int) and isinstance(dims, tuple) and bool(dims) and premises.size(x, -count) == dims[0]


@guard(59, About.SHAPES, law=_leads_law)
def leads(facts: Facts, x: Term, count: int, dims: tuple[Dim, ...]) -> bool | None:
    """The first of the last ``count`` dimensions of x is the first of ``dims``."""
    shape = facts.shape(x)
    return same_dim(shape[len(shape) - count], dims[0]) if dims and 1 <= count <= len(shape) else False


# Sizes of 1, which broadcasting repeats


def _constant_along_tells(x: Term, axis: AttrValue) -> list[Told]:
    return [Ones(x, (axis,))]


@guard(8, About.SHAPES, tells=_constant_along_tells, law=lambda premises, x, axis: premises.ones(x, [axis]))
def constant_along(facts: Facts, x: Term, axis: int) -> bool | None:
    """x has size 1 at axis ``axis`` or does not reach it, so that broadcasting repeats it along that axis."""
    shape = facts.shape(x)
    return same_dim(shape[axis], 1) if len(shape) >= -axis else True


def _spatial_ones(x: Term, s: AttrValue) -> list[Told]:
    return [Ones(x, range(-len(s), 0))] if isinstance(s, tuple) else []


def _constant_over_law(premises: Premises, x: Term, s: AttrValue) -> bool:
    return isinstance(s, tuple) and premises.ones(x, range(-len(s), 0))


@guard(30, About.SHAPES, tells=_spatial_ones, law=_constant_over_law)
def constant_over(facts: Facts, x: Term, s: Axes) -> bool | None:
    """x has size 1 at each of its last axes, as many as ``s`` says, or does not reach them."""
    return _all([constant_along.predicate(facts, x, axis) for axis in range(-spatial(s), 0)])


def _moved(perm: tuple[int, ...]) -> list[int]:
    """The axes (negative) to which a transposition moves another one."""
    return [place - len(perm) for place, axis in enumerate(perm) if axis != place]


@guard(46, About.SHAPES, law=lambda premises, x, perm: isinstance(perm, tuple) and premises.ones(x, _moved(perm)))
def still(facts: Facts, x: Term, perm: tuple[int, ...]) -> bool | None:
    """Of the axes that a transposition moves, x has those of size 1 only."""
    return _all([constant_along.predicate(facts, x, axis) for axis in _moved(perm)])


def _ones_law(premises: Premises, x: Term) -> bool:
    return bool(x.inputs) and get_operator(x.op).elementwise and all(premises.follows("ones", operand) for operand in x.inputs)


@guard(9, About.SHAPES, tells=lambda x: [Ones(x, EVERYWHERE)], law=_ones_law)
def ones(facts: Facts, x: Term) -> bool | None:
    """Every dimension of x is 1 (a scalar, whatever its rank)."""
    return _all([same_dim(d, 1) for d in facts.shape(x)])


@guard(11, About.SHAPES, tells=lambda x, y: [Fits(x, y)], law=lambda premises, x, y: premises.fits(x, y))
def fits(facts: Facts, x: Term, y: Term) -> bool | None:
    """x broadcasts to the shape of y: combining them elementwise has the shape of y."""
    try:
        return equal_shapes(broadcast([facts.shape(x), facts.shape(y)]), facts.shape(y))
    except ShapeError:
        return False
    except Undecided:
        return None


# Channels and kernels of convolutions


def _of_the_only_operand(name: str, premises: Premises, x: Term, *rest: AttrValue) -> bool:
    """Whether the guard ``name`` follows for the one operand of an entrywise term beside numbers, which change no shape."""
    operands = [operand for operand in x.inputs if operand.op != "Const"]
    return len(operands) == 1 and get_operator(x.op).elementwise and premises.follows(name, operands[0], *rest)


def _per_channel_tells(x: Term, s: AttrValue) -> list[Told]:
    return [Rank(x, len(s) + 1), *_spatial_ones(x, s)] if isinstance(s, tuple) else []


def _per_channel_law(premises: Premises, x: Term, s: AttrValue) -> bool:
    if x.op == "Unsqueeze" and isinstance(s, tuple):
        return bool(x.attr("axes") == tuple(range(-len(s), 0))) and premises.rank(x.inputs[0]) == 1
    return _of_the_only_operand("per_channel", premises, x, s)


@guard(29, About.SHAPES, tells=_per_channel_tells, law=_per_channel_law)
def per_channel(facts: Facts, x: Term, s: Axes) -> bool | None:
    """x is [C,1,...,1], with as many ones as ``s`` says."""
    shape, n = facts.shape(x), spatial(s)
    return equal_shapes(shape[1:], (1,) * n) if len(shape) == n + 1 else False


def _depthwise_law(premises: Premises, w: Term, group: AttrValue) -> bool:
    if w.op == "AveragingKernel":
        return bool(w.attr("channels") == group)
    return _of_the_only_operand("depthwise", premises, w, group)


@guard(31, About.SHAPES, law=_depthwise_law)
def depthwise(facts: Facts, w: Term, group: Dim) -> bool | None:
    """w is a kernel [``group``,1,...]: each channel has its own, and gives one."""
    return equal_shapes(facts.shape(w)[:2], (group, 1))


@guard(32, About.SHAPES)
def same_per_group(facts: Facts, w: Term, g: Dim, v: Term, h: Dim) -> bool | None:
    """The kernels w in ``g`` groups and v in ``h`` groups have equally many output channels in each group."""
    return same_dim(facts.shape(w)[0] * h, facts.shape(v)[0] * g)


# Sizes that are not zero


def _nonempty_tells(x: Term, axis: AttrValue) -> list[Told]:
    return [LeastRank(x, -axis)] if isinstance(axis, int) else []


def _nonempty_law(premises: Premises, x: Term, axis: int) -> bool:
    size = premises.size(x, axis)
    return (isinstance(size, int) and size >= 1) or _of_the_only_operand("nonempty", premises, x, axis)


@guard(65, About.SHAPES, tells=_nonempty_tells, law=_nonempty_law)
def nonempty(facts: Facts, x: Term, axis: int) -> bool | None:
    """x reaches axis ``axis`` and has an entry along it."""
    shape = facts.shape(x)
    return facts.at_least(shape[axis], 1) if len(shape) >= -axis else False
