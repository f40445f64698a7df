"""Conditions that follow from others by the laws of guards, and the premises from which these laws conclude.

Part of what is trusted, beside :mod:`rules_db.trust.check`. Everything here is about well-typed terms and syntactic: it looks at
operators, their attributes and what the conditions tell (:class:`~rules_db.trust.guards.Guard`), never at sample types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from mugraph.domains.range import Range
from mugraph.ops import ImageRole, get_operator, traits_of
from mugraph.terms.shape import DataType, Dim, Shape, TensorType
from mugraph.terms.term import AttrValue, Term, walk
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.guards import Argument, Premises, Told
from rules_db.trust.guards.record import ElementType, Fits, LeastRank, Ones, Rank, SameShape, Size

__all__ = ["implied"]

_NUMBERS = Facts(
    lambda term: TensorType(DataType.FLOAT, ()),
    lambda term: Range.of(np.asarray(term.attr("value"))),
)
"""The facts of numbers: all but the element type, which they do not have of their own."""

_Kind = TypeVar("_Kind", bound=Told)


def implied(condition: Condition, conditions: Collection[Condition]) -> bool:
    """Whether a condition on well-typed terms follows from others by the laws of the guards."""
    return condition in conditions or _ToldPremises(conditions).proves(condition)


def _elementwise(term: Term) -> bool:
    return bool(term.inputs) and get_operator(term.op).elementwise


def _normalises(term: Term) -> bool:
    """Whether the operator normalises rows or channels of its first operand, whose shape the result has.

    For other operators that keep a shape nothing is concluded here: rules carry conditions about them, and so do their ids.
    """
    traits = traits_of(term.op)
    return traits.keeps_shape and (traits.rows is not None or traits.image is ImageRole.CHANNELS)


def _reduces(term: Term) -> bool:
    """Whether the operator reduces along ``axes``, which it keeps as ones or drops by ``keepdims``."""
    return traits_of(term.op).reduction is not None and traits_of(term.op).image is None


def _slides(term: Term) -> bool:
    """Whether the operator slides a window over the spatial axes of images, or reduces these: there is one at least."""
    return traits_of(term.op).image in (ImageRole.WINDOW, ImageRole.GLOBAL)


class _ToldPremises(Premises):
    """The premises that conditions tell: about the terms they name, and about terms that are built of these."""

    def __init__(self, conditions: Collection[Condition]) -> None:
        self._conditions = conditions

    @cached_property
    def _told(self) -> dict[tuple[type, Term], list[Told]]:
        """The statements of the conditions by kind and term, in the order of the conditions."""
        every: dict[tuple[type, Term], list[Told]] = {}
        for condition in self._conditions:
            for told in condition.guard.tells(*condition.arguments):
                every.setdefault((type(told), told.term), []).append(told)
        return every

    def proves(self, condition: Condition) -> bool:
        if condition in self._conditions:
            return True
        if condition.open_names():
            return False  # laws read attributes
        guard = condition.guard
        if guard.of_numbers and all(term.op == "Const" for term in condition.terms()):
            return condition.holds(_NUMBERS) is True
        return guard.law(self, *condition.arguments)

    def follows(self, name: str, *arguments: Argument) -> bool:
        return self.proves(Condition(name, arguments))

    def _tell(self, kind: type[_Kind], term: Term) -> list[_Kind]:
        return self._told.get((kind, term), [])  # type: ignore[return-value]

    # Ranks

    def least_rank(self, term: Term) -> int:
        least: dict[Term, int] = {}
        for part in walk([term]):
            bound = max((told.rank for told in self._tell(LeastRank, part)), default=0)
            operands = [least[operand] for operand in part.inputs]
            if part.op == "Transpose":
                bound = max(bound, operands[0], len(part.attr("perm")))
            elif part.op in ("Concat", "Split"):
                bound = max(bound, -part.attr("axis"), *operands)
            elif part.op == "MatMul":
                bound = max(bound, max(operands) if min(operands) >= 2 else max(operands) - 1)
            elif part.op in ("Unsqueeze", "Squeeze"):
                bound = max(bound, operands[0] + _inserted(part))
            elif part.op == "Reshape":
                bound = max(bound, len(part.attr("shape")) + max(0, operands[0] - part.attr("drop")))
            elif part.op == "Slice" or _reduces(part):
                bound = max(bound, operands[0], *(-axis for axis in part.attr("axes")))
                bound -= 0 if part.attr("keepdims", True) else len(part.attr("axes"))
            elif _normalises(part):
                bound = max(bound, operands[0])
            elif part.op in ("Ones", "Expand"):
                bound = max(bound, len(part.attr("shape")), *operands)
            elif _slides(part):
                bound = max(bound, 3)
            elif part.op == "Eye":
                bound = 2
            elif _elementwise(part):
                bound = max(bound, *operands)
            least[part] = bound
        return least[term]

    def rank(self, term: Term) -> int | None:
        for told in self._tell(Rank, term):
            return told.rank
        if term.op in ("Const", "Eye", "Ones"):
            return {"Const": 0, "Eye": 2}.get(term.op, len(term.attr("shape", ())))
        ranks = [rank for operand in term.inputs if (rank := self.rank(operand)) is not None]
        if not ranks or len(ranks) < len(term.inputs):
            return None
        if traits_of(term.op).keeps_rank or _normalises(term):
            return ranks[0]
        if term.op in ("Unsqueeze", "Squeeze"):
            return ranks[0] + _inserted(term)
        if term.op == "MatMul" and min(ranks) >= 2:
            return max(ranks)
        return max(ranks) if _elementwise(term) else None

    # Sizes

    def size(self, term: Term, axis: int) -> Dim | None:
        for told in self._tell(Size, term):
            if told.axis == axis:
                return told.size
        if term.op == "MatMul" and axis >= -2 and all(self.least_rank(operand) >= 2 for operand in term.inputs[axis + 2 :]):
            return self.size(term.inputs[axis + 2], axis)
        if term.op == "Transpose":
            return self.size(term.inputs[0], _axis_before(term, axis))
        if term.op == "Concat" and axis == term.attr("axis"):
            sizes = [self.size(operand, axis) for operand in term.inputs]
            return None if None in sizes else sum(sizes[1:], sizes[0])  # type: ignore[arg-type]
        if term.op in ("Concat", "Split"):
            return _as_dim(term.attr("sizes")[term.out]) if axis == term.attr("axis") else self.size(term.inputs[0], axis)
        if term.op == "Unsqueeze":
            behind = sum(1 for inserted in term.attr("axes") if inserted > axis)
            return 1 if axis in term.attr("axes") else self.size(term.inputs[0], axis + behind)
        if _reduces(term) and term.attr("keepdims"):
            return 1 if axis in term.attr("axes") else self.size(term.inputs[0], axis)
        if term.op in ("Reshape", "Ones") and -axis <= len(term.attr("shape")):
            return _as_dim(term.attr("shape")[axis])
        if term.op == "Eye" and axis >= -2:
            return _as_dim(term.attr("size"))
        if term.op == "Expand":
            return self._expanded_size(term, axis)
        same = self._shape_of(term)
        return None if same is term else self.size(same, axis)

    def _expanded_size(self, term: Term, axis: int) -> Dim | None:
        shape, size = term.attr("shape"), self.size(term.inputs[0], axis)
        wanted = _as_dim(shape[axis]) if -axis <= len(shape) else 1
        if wanted == 1:
            return size
        return wanted if size in (1, wanted) or isinstance(wanted, int) else None

    def ends(self, term: Term, dims: Shape) -> bool:
        return all(self.size(term, axis) == dims[axis] for axis in range(-len(dims), 0))

    def ones(self, term: Term, axes: Iterable[int]) -> bool:
        return all(self._one(term, axis) for axis in axes)

    def _one(self, term: Term, axis: int) -> bool:
        """Numbers are of size 1 along any axis; so are reduced dimensions that are kept and inserted ones."""
        if term.op == "Const" or any(axis in told.axes for told in self._tell(Ones, term)):
            return True
        if _elementwise(term):
            return all(self._one(operand, axis) for operand in term.inputs)
        if term.op == "Transpose":
            return self._one(term.inputs[0], _axis_before(term, axis))
        return self.size(term, axis) == 1

    # Shapes

    def _shape_of(self, term: Term) -> Term:
        """A smaller term of the same shape, or the term itself."""
        while True:
            if _normalises(term):
                term = term.inputs[0]
                continue
            if not _elementwise(term):
                return term
            wide = [x for x in term.inputs if all(y is x or self.fits(y, x) for y in term.inputs)]
            if not wide:
                return term
            term = wide[0]

    def same_shape(self, x: Term, y: Term) -> bool:
        """As told, or because they are built alike of operands of equal shapes."""
        x, y = self._shape_of(x), self._shape_of(y)
        if x is y or any(told.other is y for told in self._tell(SameShape, x)):
            return True
        if not x.inputs or (x.op, x.attrs, x.out, len(x.inputs)) != (y.op, y.attrs, y.out, len(y.inputs)):
            return False
        return all(self.same_shape(a, b) for a, b in zip(x.inputs, y.inputs, strict=True))

    def fits(self, x: Term, y: Term) -> bool:
        """A term fits an elementwise combination if it fits one of its operands; a combination of terms that fit fits, too."""
        if x is y or x.op == "Const" or any(told.other is y for told in self._tell(Fits, x)):
            return True
        if _elementwise(x) and all(self.fits(operand, y) for operand in x.inputs):
            return True
        if _reduces(x) and x.attr("keepdims") and self.fits(x.inputs[0], y):
            return True
        operands = y.inputs if _elementwise(y) else y.inputs[:1] if _normalises(y) else ()
        return any(self.fits(x, operand) for operand in operands)

    # Element types

    def element_type(self, term: Term) -> DataType | None:
        if term.op == "Cast":
            return cast(DataType, term.attr("to"))
        for told in self._tell(ElementType, term):
            return told.dtype
        alike = term.inputs if traits_of(term.op).one_dtype else term.inputs[:1] if term.op == "Pow" else ()
        types = {self.element_type(operand) for operand in alike} - {None}
        return types.pop() if len(types) == 1 else None

    def of_operands(self, name: str, term: Term) -> bool:
        if term.op == "Pow":
            return self.follows(name, term.inputs[0])
        traits = traits_of(term.op)
        # Rules ask it of the result of a bounded function, or of a product with more in it: their names depend on that.
        if (traits.function is not None and traits.bounded) or (traits.product is not None and get_operator(term.op).composite):
            return False
        return traits.one_dtype and any(self.follows(name, operand) for operand in term.inputs)


def _inserted(term: Term) -> int:
    """How many dimensions an Unsqueeze adds; a Squeeze takes them away."""
    return len(term.attr("axes")) * (1 if term.op == "Unsqueeze" else -1)


def _axis_before(transpose: Term, axis: int) -> int:
    """The axis of the operand that a Transpose moves to ``axis``."""
    perm = transpose.attr("perm")
    return cast(int, perm[axis + len(perm)] - len(perm)) if -axis <= len(perm) else axis


def _as_dim(size: AttrValue) -> Dim:
    """An attribute of a well-typed term that is a size."""
    return cast(Dim, size)
