"""Terms as lowering takes them: plain operators, and what is known of each value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set

from mugraph.domains.base import FLOATS
from mugraph.ops import traits_of
from mugraph.ops.constants import DILATED_MASK, POSITION_MASKS
from mugraph.ops.interp import expanded, infer_types
from mugraph.ops.masks import STORED_MASK, stored_shape
from mugraph.ops.quantized import INTEGER_PRODUCT
from mugraph.terms.shape import DataType, Dim, TensorType, same_dim
from mugraph.terms.term import Term, const, make, walk

__all__ = ["PlainTerms", "is_elementwise", "positioned_scores", "softmax_of"]


def is_elementwise(op: str) -> bool:
    """Whether an operator computes entry by entry; the identity only moves."""
    traits = traits_of(op)
    return traits.entrywise is not None and traits.movement is None


def _plain(roots: Sequence[Term], inputs: Mapping[str, TensorType]) -> list[Term]:
    """Terms without composite operators; Softmax stays where a product takes it, which others may only come to be."""
    current = list(roots)
    while True:
        types = infer_types(current, inputs)
        following = _expanded_once(current, types, {part for part in walk(current) if part.op == "Softmax"})
        if following == current:
            products = [part.inputs[0] for part in walk(current) if part.op == "MatMul"]
            following = _expanded_once(current, types, {part for root in products for part in _guarded(root)})
        if following == current:
            return current
        current = following


def _expanded_once(roots: Sequence[Term], types: Mapping[Term, TensorType], kept: Set[Term]) -> list[Term]:
    """Terms in which composite operators, of which no operand is one, are what defines them, but for those kept."""
    done: dict[Term, Term] = {}
    for part in walk(roots):
        operands = [done[i] for i in part.inputs]
        replacement = None
        if part.inputs and operands == list(part.inputs) and part not in kept:
            replacement = expanded(part, types)
        if replacement is not None:
            done[part] = replacement
        else:
            done[part] = make(part.op, operands, part.attrs, part.out) if part.inputs else part
    return [done[root] for root in roots]


def _guarded(weights: Term) -> list[Term]:
    chain = [weights]
    while chain[-1].op in ("Cast", "Where") and chain[-1].inputs:
        chain.append(chain[-1].inputs[-1])
    return chain


def softmax_of(weights: Term) -> tuple[Term, bool] | None:
    """The scores whose softmax a term is, and whether rows without a number count as zero."""
    guarded = False
    while True:
        if weights.op == "Cast" and weights.attr("to") in FLOATS:
            weights = weights.inputs[0]
        elif weights.op == "Where" and weights.inputs[0] is make("IsNaN", [weights.inputs[2]]):
            if weights.inputs[1] is not const(0.0):
                return None
            guarded, weights = True, weights.inputs[2]
        else:
            break
    if weights.op == "Softmax" and weights.attr("axis", -1) == -1:
        return weights.inputs[0], guarded
    if weights.op == "Div" and weights.inputs[0].op == "Exp":
        powers, total = weights.inputs
        if total.op == "ReduceSum" and total.inputs[0] is powers and total.attr("axes") == (-1,):
            return _unshifted(powers.inputs[0]), guarded
    return None


def _unshifted(scores: Term) -> Term:
    """Scores from which the greatest of their row was subtracted, without that: a softmax finds it as it goes along."""
    if scores.op == "Sub":
        plain, greatest = scores.inputs
        if greatest.op == "ReduceMax" and greatest.inputs[0] is plain and greatest.attr("axes") == (-1,):
            return plain
    return scores


def positioned_scores(scores: Term) -> tuple[Term | None, Term]:
    """The mask that makes what it hides of scores -∞, where positions alone say so, and the scores without."""
    inner = scores
    while inner.op == "Cast" and inner.attr("to") in FLOATS:
        inner = inner.inputs[0]
    if inner.op != "Where" or inner.inputs[2] is not const(-math.inf):
        return None, scores
    mask = _position_mask(inner.inputs[0])
    return (None, scores) if mask is None else (mask, inner.inputs[1])


def _position_mask(condition: Term) -> Term | None:
    """The mask of positions that a condition is, the same for all batches and heads or for each head its own."""
    mask = condition
    while mask.op in ("Unsqueeze", "Expand"):
        mask = mask.inputs[0]
    if mask.op == STORED_MASK and mask is not condition and len(stored_shape(mask.attr("entries"))) > 2:
        return None
    return mask if mask.op in POSITION_MASKS else None


def _masked_apart(roots: Sequence[Term], inputs: Mapping[str, TensorType]) -> list[Term]:
    """Terms in which what a mask of positions hides is hidden last, where it was one condition with others."""
    done: dict[Term, Term] = {}
    for part in walk(roots):
        term = make(part.op, [done[i] for i in part.inputs], part.attrs, part.out) if part.inputs else part
        if term.op == "Where" and term.inputs[2] is const(-math.inf):
            conditions = _conjuncts(term.inputs[0], inputs)
            masks = {c: inner for c in conditions if (inner := _position_mask(c)) is not None}
            if masks and len(conditions) > 1:
                mask = min(masks, key=lambda c: masks[c].op == DILATED_MASK)  # which bounds no loop
                conditions.remove(mask)
                scores, low = term.inputs[1:]
                for condition in conditions:
                    scores = make("Where", [condition, scores, low])
                term = make("Where", [mask, scores, low])
        done[part] = term
    return [done[root] for root in roots]


def _conjuncts(condition: Term, inputs: Mapping[str, TensorType]) -> list[Term]:
    """The conditions of which one is the conjunction, also where that gets axes in front of rows and keys."""
    if condition.op == "And":
        return [part for i in condition.inputs for part in _conjuncts(i, inputs)]
    if condition.op != "Unsqueeze" or condition.inputs[0].op != "And" or max(condition.attr("axes")) > -3:
        return [condition]
    parts, (inner,) = _conjuncts(condition.inputs[0], inputs), condition.inputs
    ranks = {part: type_.rank for part, type_ in infer_types([inner, *parts], inputs).items()}
    if any(2 < ranks[part] < ranks[inner] for part in parts):
        return [condition]
    return [make("Unsqueeze", [part], condition.attrs) if ranks[part] > 2 else part for part in parts]


def _multiplied_as_floats(roots: Sequence[Term]) -> list[Term]:
    """Terms in which a product of integers that becomes one of floats is a product of floats, those that the integers are.

    Without zero points of its own and of bytes it is one whose terms and sums floats have exactly, up to where these round.
    """
    done: dict[Term, Term] = {}
    for part in walk(roots):
        inner = part.inputs[0] if part.op == "Cast" else part
        if part.op == "Cast" and part.attr("to") == DataType.FLOAT and inner.op == INTEGER_PRODUCT:
            done[part] = _product_of_floats(inner, done)
        else:
            done[part] = make(part.op, [done[i] for i in part.inputs], part.attrs, part.out) if part.inputs else part
    return [done[root] for root in roots]


def _product_of_floats(term: Term, done: Mapping[Term, Term]) -> Term:
    """A product of integers as one of floats. ``done`` has its operands."""
    floats = [make("Cast", [done[operand]], {"to": DataType.FLOAT}) for operand in term.inputs]
    for name, zero in zip(term.attr("zeros", ()), floats[2:], strict=True):
        factor = 0 if name == "a" else 1
        floats[factor] = make("Sub", [floats[factor], zero])
    return make("MatMul", floats[:2])


class PlainTerms:
    """Plain terms with what is known of them.

    Args:
        outputs: terms by name, as the kernel's body has them.

    Attributes:
        outputs: the same as plain terms.
        types: of every value.
        uses: how many operators take it.
        has_product: whether a product went into it.
        multiplies: whether there is a product at all.
        attends: whether one weighs values by a softmax.
        single: whether every output is one entry.

    Raises:
        ShapeError, Undecided: the terms are ill-typed.
    """

    def __init__(self, inputs: Mapping[str, TensorType], outputs: Mapping[str, Term]) -> None:
        roots = _masked_apart(_multiplied_as_floats(_plain(list(outputs.values()), inputs)), inputs)
        self.outputs = dict(zip(outputs, roots, strict=True))
        self.types = infer_types(roots, inputs)
        parts = list(walk(roots))
        self.uses = Counter(operand for part in parts for operand in part.inputs)
        self.has_product: dict[Term, bool] = {}
        for part in parts:
            self.has_product[part] = part.op == "MatMul" or any(self.has_product[i] for i in part.inputs)
        products = [part for part in parts if part.op == "MatMul"]
        self.multiplies = bool(products)
        self.attends = any(softmax_of(part.inputs[0]) is not None for part in products)
        self.single = all(self.is_single(root) for root in roots)

    def shape(self, term: Term) -> tuple[Dim, ...]:
        return self.types[term].shape

    def is_single(self, term: Term) -> bool:
        """Whether a value has one entry."""
        return term.op == "Const" or all(same_dim(dim, 1) is True for dim in self.shape(term))

    def is_rounded(self, term: Term) -> bool:
        """Whether a value has in 32 bits every infinity that it has in its own element types."""
        parts = [part for part in walk([term]) if part.op != "Const"]
        narrow = [part for part in parts if self.types[part].dtype in FLOATS - {DataType.FLOAT}]
        return all(part.is_var or traits_of(part.op).addresses for part in narrow)

    def is_row_statistic(self, term: Term) -> bool:
        """Whether a value is one number a row, reduced from it."""
        if term.op == "Const" or not self.shape(term) or same_dim(self.shape(term)[-1], 1) is not True:
            return False
        return any(traits_of(part.op).monoid is not None for part in walk([term]))

    def row_factor(self, left: Term) -> tuple[Term, Term | None]:
        """A left operand as what differs along the row times what does not, which may stand behind the product."""
        if left.op == "Cast" and left.attr("to") in FLOATS:
            return self.row_factor(left.inputs[0])
        if left.op not in ("Mul", "Div") or all(i.op == "Const" for i in left.inputs):
            return left, None
        a, b = left.inputs
        if self.is_row_statistic(b):
            rest, factor = self.row_factor(a)
            return rest, self._combined(left.op, factor, b)
        if self.is_row_statistic(a) and left.op == "Mul":
            rest, factor = self.row_factor(b)
            return rest, self._combined("Mul", factor, a)
        rest, factor = self.row_factor(a)
        if factor is not None:
            return self._typed(make(left.op, [rest, b])), factor
        if left.op == "Mul":
            rest, factor = self.row_factor(b)
            if factor is not None:
                return self._typed(make("Mul", [a, rest])), factor
        return left, None

    def _combined(self, op: str, factor: Term | None, more: Term) -> Term:
        if factor is None and op == "Mul":
            return more
        return self._typed(make(op, [const(1.0) if factor is None else factor, more]))

    def _typed(self, term: Term) -> Term:
        """A term made on the way; its operands' floats may differ, since casts among them are left out."""
        shapes = [self.types[i] for i in term.inputs if i.op != "Const"]
        widest = max(shapes, key=lambda t: (t.rank, len([d for d in t.shape if d != 1])))
        self.types.setdefault(term, widest)
        self.has_product.setdefault(term, False)
        return term
