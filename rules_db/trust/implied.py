"""What conditions imply without being asked: the laws by which a proof's conditions follow from its rule's.

Part of what is trusted, beside :mod:`rules_db.trust.check`. Each law is about well-typed terms and syntactic: it looks at
operators, their attributes and the given conditions, never at sample types.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import numpy as np

from mugraph.domains.range import Range
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, Dim, TensorType
from mugraph.terms.term import Term, walk
from rules_db.trust.condition import FLOATING, Condition, Facts

__all__ = ["implied"]

_SHAPED = frozenset(["Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "BatchNormalization", "LRN"])
_SHAPED |= {"InstanceNormalization"}
"""Operators that are not elementwise, but whose result has the shape of their first operand."""

_REDUCTIONS = frozenset(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"])
_IMAGES = frozenset(["Conv", "FusedConv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])


def _elementwise(term: Term) -> bool:
    return bool(term.inputs) and get_operator(term.op).elementwise


def _least_rank(term: Term, given: Collection[Condition]) -> int:
    """A lower bound of the rank."""
    least: dict[Term, int] = {}
    for sub in walk([term]):
        bound = 0
        for condition in given:
            match condition.predicate, condition.arguments:
                case "matrix", (x,) if x is sub:
                    bound = max(bound, 2)
                case "vector", (x,) if x is sub:
                    bound = max(bound, 1)
                case "rank", (x, int(count)) if x is sub:
                    bound = max(bound, count)
                case ("dim", (x, int(axis), _)) if x is sub:
                    bound = max(bound, -axis)
                case ("agree", (x, y, int(axis))) if sub is x or sub is y:
                    bound = max(bound, -axis)
        operands = [least[i] for i in sub.inputs]
        if sub.op == "Transpose":
            bound = max(bound, operands[0], len(sub.attr("perm")))
        elif sub.op in ("Concat", "Split"):
            bound = max(bound, -sub.attr("axis"), *operands)
        elif sub.op == "MatMul":
            bound = max(bound, max(operands) if min(operands) >= 2 else max(operands) - 1)
        elif sub.op in ("Unsqueeze", "Squeeze"):
            bound = max(bound, operands[0] + len(sub.attr("axes")) * (1 if sub.op == "Unsqueeze" else -1))
        elif sub.op == "Reshape":
            bound = max(bound, len(sub.attr("shape")) + max(0, operands[0] - sub.attr("drop")))
        elif sub.op in ("Slice", *_REDUCTIONS):
            bound = max(bound, operands[0], *(-axis for axis in sub.attr("axes")))
            bound -= 0 if sub.attr("keepdims", True) else len(sub.attr("axes"))
        elif sub.op in _SHAPED:
            bound = max(bound, operands[0])
        elif sub.op in ("Ones", "Expand"):
            bound = max(bound, len(sub.attr("shape")), *operands)
        elif sub.op in _IMAGES:
            bound = max(bound, 3)
        elif sub.op == "Eye":
            bound = 2
        elif _elementwise(sub):
            bound = max(bound, *operands)
        least[sub] = bound
    return least[term]


def _rank(term: Term, given: Collection[Condition]) -> int | None:
    """The rank, where the conditions tell."""
    for condition in given:
        match condition.predicate, condition.arguments:
            case ("rank", (x, int(count))) if x is term:
                return count
            case "vector", (x,) if x is term:
                return 1
            case ("per_channel", (x, tuple(axes))) if x is term:
                return len(axes) + 1
    if term.op in ("Const", "Eye", "Ones"):
        return {"Const": 0, "Eye": 2}.get(term.op, len(term.attr("shape", ())))
    ranks = [_rank(i, given) for i in term.inputs]
    if not ranks or None in ranks:
        return None
    known = [r for r in ranks if r is not None]
    if term.op in ("Transpose", "Concat", "Split", "Slice", "Pad", *_SHAPED):
        return known[0]
    if term.op in ("Unsqueeze", "Squeeze"):
        return known[0] + len(term.attr("axes")) * (1 if term.op == "Unsqueeze" else -1)
    if term.op == "MatMul" and min(known) >= 2:
        return max(known)
    return max(known) if _elementwise(term) else None


def _dimension(term: Term, axis: int, given: Collection[Condition]) -> Dim | None:
    """The size at a negative axis, where the conditions on variables tell."""
    for condition in given:
        known = condition.predicate == "dim" and not condition.open_names()
        if known and condition.arguments[:2] == (term, axis):
            return cast(Dim, condition.arguments[2])
    if term.op == "MatMul" and axis >= -2 and all(_least_rank(i, given) >= 2 for i in term.inputs[axis + 2 :]):
        return _dimension(term.inputs[axis + 2], axis, given)
    if term.op == "Transpose":
        perm = term.attr("perm")
        return _dimension(term.inputs[0], perm[axis + len(perm)] - len(perm) if -axis <= len(perm) else axis, given)
    if term.op == "Concat" and axis == term.attr("axis"):
        sizes = [_dimension(i, axis, given) for i in term.inputs]
        return None if None in sizes else sum(sizes[1:], sizes[0])  # type: ignore[arg-type]
    if term.op in ("Concat", "Split"):
        return term.attr("sizes")[term.out] if axis == term.attr("axis") else _dimension(term.inputs[0], axis, given)
    if term.op == "Unsqueeze":
        below = sum(1 for inserted in term.attr("axes") if inserted > axis)
        return 1 if axis in term.attr("axes") else _dimension(term.inputs[0], axis + below, given)
    if term.op in _REDUCTIONS and term.attr("keepdims"):
        return 1 if axis in term.attr("axes") else _dimension(term.inputs[0], axis, given)
    if term.op in ("Reshape", "Ones") and -axis <= len(term.attr("shape")):
        return cast(Dim, term.attr("shape")[axis])
    if term.op == "Eye" and axis >= -2:
        return cast(Dim, term.attr("size"))
    if term.op == "Expand":
        shape, own = term.attr("shape"), _dimension(term.inputs[0], axis, given)
        wanted = cast(Dim, shape[axis]) if -axis <= len(shape) else 1
        return own if wanted == 1 else wanted if own in (1, wanted) or isinstance(wanted, int) else None
    same = _shape_of(term, given)
    return None if same is term else _dimension(same, axis, given)


def _shape_of(term: Term, given: Collection[Condition]) -> Term:
    """A smaller term of the same shape, or the term itself."""
    while True:
        if term.op in _SHAPED:
            term = term.inputs[0]
            continue
        wide = [x for x in term.inputs if all(y is x or _fits(y, x, given) for y in term.inputs)] if _elementwise(term) else []
        if not wide:
            return term
        term = wide[0]


def _same_shape(x: Term, y: Term, given: Collection[Condition]) -> bool:
    """By condition, or because they are built alike of operands of equal shapes."""
    x, y = _shape_of(x, given), _shape_of(y, given)
    if x is y or Condition("same_shape", (x, y)) in given or Condition("same_shape", (y, x)) in given:
        return True
    if not x.inputs or (x.op, x.attrs, x.out, len(x.inputs)) != (y.op, y.attrs, y.out, len(y.inputs)):
        return False
    return all(_same_shape(a, b, given) for a, b in zip(x.inputs, y.inputs, strict=True))


def _fits(x: Term, y: Term, given: Collection[Condition]) -> bool:
    """Into an elementwise combination fits what fits into an operand, and what combines operands that do."""
    if x is y or x.op == "Const" or any(Condition(name, (x, y)) in given for name in ("fits", "same_shape")):
        return True
    if _elementwise(x) and all(_fits(operand, y, given) for operand in x.inputs):
        return True
    if x.op in _REDUCTIONS and x.attr("keepdims") and _fits(x.inputs[0], y, given):
        return True
    operands = y.inputs if _elementwise(y) else y.inputs[:1] if y.op in _SHAPED else ()
    return any(_fits(x, operand, given) for operand in operands)


def _constant_along(x: Term, axis: int, given: Collection[Condition]) -> bool:
    """Numbers are, kept reduced dimensions and inserted ones, and entrywise what is built of such."""
    if x.op == "Const" or Condition("constant_along", (x, axis)) in given or Condition("ones", (x,)) in given:
        return True
    for condition in given:
        match condition.predicate, condition.arguments:
            case "vector", (y,) if y is x and axis < -1:
                return True
            case (("per_channel" | "constant_over"), (y, tuple(spatial))) if y is x and -axis <= len(spatial):
                return True
    if _elementwise(x):
        return all(_constant_along(i, axis, given) for i in x.inputs)
    if x.op == "Transpose":
        perm = x.attr("perm")
        return _constant_along(x.inputs[0], perm[axis + len(perm)] - len(perm) if -axis <= len(perm) else axis, given)
    return _dimension(x, axis, given) == 1


def _ends(x: Term, dims: tuple[Dim, ...], given: Collection[Condition]) -> bool:
    """Whether the last dimensions are these."""
    return all(_dimension(x, axis, given) == dims[axis] for axis in range(-len(dims), 0))


def _dtype(x: Term, given: Collection[Condition]) -> DataType | None:
    """The element type, where the conditions or a Cast tell."""
    if x.op == "Cast":
        return cast(DataType, x.attr("to"))
    for condition in given:
        if condition.predicate == "dtype" and condition.arguments[0] is x and isinstance(condition.arguments[1], DataType):
            return condition.arguments[1]
    same = x.inputs if x.op in _ONE_DTYPE else x.inputs[:1] if x.op == "Pow" else ()
    known = {_dtype(i, given) for i in same} - {None}
    return known.pop() if len(known) == 1 else None


def _narrow(condition: Condition, given: Collection[Condition]) -> bool:
    """A shape that numbers do not change: the only other operand of an entrywise term has it."""
    x: Term = condition.arguments[0]
    rest = [i for i in x.inputs if i.op != "Const"]
    if not _elementwise(x) or len(rest) != 1:
        return False
    return implied(Condition(condition.predicate, (rest[0], *condition.arguments[1:])), given)


_CONSTANTS = Facts(
    lambda term: TensorType(DataType.FLOAT, ()),
    lambda term: Range.of(np.asarray(term.attr("value"))),
)
"""What is known of constants, which is everything but their element type."""

_SAME_DTYPE = _REDUCTIONS | _IMAGES
_SAME_DTYPE |= {"MatMul", "Transpose", "Concat", "Split", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Pad", "Expand", "Softmax"}
_SAME_DTYPE |= {"Add", "Sub", "Mul", "Div", "Neg", "Max", "Min", "Sum", "Relu", "Exp", "Sqrt", "Reciprocal"}


_ONE_DTYPE = (
    _SAME_DTYPE | _SHAPED | {"SimplifiedLayerNormalization", "Erf", "Tanh", "Sigmoid", "Log", "Abs", "Gelu", "Sin", "Cos"}
)
"""Operators of operands of one element type, which is that of the result."""


def implied(condition: Condition, given: Collection[Condition]) -> bool:
    """Whether a condition on well-typed terms follows from the given ones by the laws written here."""
    if condition in given:
        return True
    if condition.open_names():
        return False  # the laws below read attributes
    name: str = condition.predicate
    arguments: tuple[Any, ...] = condition.arguments
    terms = condition.terms()
    if all(term.op == "Const" for term in terms) and name not in ("floating", "single"):
        return condition.holds(_CONSTANTS) is True
    first = terms[0]
    match name:
        case "matrix":
            return _least_rank(first, given) >= 2
        case "rank":
            return bool(_rank(first, given) == arguments[1])
        case "same_rank":
            ranks = {_rank(x, given) for x in terms}
            return (len(ranks) == 1 and None not in ranks) or _same_shape(first, terms[1], given)
        case "dim":
            return bool(_dimension(first, arguments[1], given) == arguments[2])
        case "same_shape":
            return _same_shape(first, terms[1], given)
        case "fits":
            return _fits(first, terms[1], given)
        case "agree":
            if first is terms[1]:
                return _least_rank(first, given) >= -int(arguments[2])
            sizes = [_dimension(x, arguments[2], given) for x in terms]
            return bool(sizes[0] is not None and sizes[0] == sizes[1])
        case "constant_along":
            return _constant_along(first, arguments[1], given)
        case "constant_over" if isinstance(arguments[1], tuple):
            return all(_constant_along(first, axis, given) for axis in range(-len(arguments[1]), 0))
        case "still" if isinstance(arguments[1], tuple):
            perm = arguments[1]
            return all(_constant_along(first, i - len(perm), given) for i, axis in enumerate(perm) if axis != i)
        case "below":
            rank = _rank(first, given)
            return rank is not None and rank < -int(arguments[1])
        case "ones":
            return _elementwise(first) and all(implied(Condition(name, (i,)), given) for i in first.inputs)
        case "vector":
            return _rank(first, given) == 1
        case "per_channel" if first.op == "Unsqueeze" and isinstance(arguments[1], tuple):
            spatial = tuple(range(-len(arguments[1]), 0))
            return bool(first.attr("axes") == spatial) and _rank(first.inputs[0], given) == 1
        case "depthwise" if first.op == "AveragingKernel":
            return bool(first.attr("channels") == arguments[1])
        case "per_channel" | "depthwise":
            return _narrow(condition, given)
        case "tail" if isinstance(arguments[1], tuple):
            return _ends(first, arguments[1], given)
        case "keeps" if isinstance(arguments[1], tuple) and isinstance(arguments[2], int):
            count = arguments[2]
            return 0 < count <= len(arguments[1]) and _ends(first, arguments[1][-count:], given)
        case "leads" if isinstance(arguments[1], int) and isinstance(arguments[2], tuple):
            return bool(arguments[2]) and bool(_dimension(first, -arguments[1], given) == arguments[2][0])
        case "dtype":
            return isinstance(arguments[1], DataType) and _dtype(first, given) == arguments[1]
        case "floating" if _dtype(first, given) is not None:
            return _dtype(first, given) in FLOATING
        case "floating" | "single" if first.op == "Pow":
            return implied(Condition(name, (first.inputs[0],)), given)
        case "floating" | "single":
            return first.op in _SAME_DTYPE and any(implied(Condition(name, (i,)), given) for i in first.inputs)
    return False
