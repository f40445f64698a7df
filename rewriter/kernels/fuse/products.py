"""Products and attention: accumulators of the loop over what is contracted, or over the keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mugraph.blocks.statements import Compute
from mugraph.domains.base import FLOATS
from mugraph.ops import traits_of
from mugraph.terms.term import Term, const, make, var, variables
from rewriter.kernels.fuse.access import Access, Digits, digit_of, under
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.scope import Emit, Scope
from rewriter.kernels.fuse.terms import positioned_scores, softmax_of

__all__ = ["Products"]


class Products:
    """Values of products.

    Args:
        sees: a boolean tile of which keys queries see, by mask and access.
    """

    def __init__(self, scope: Scope, emit: Emit, sees: Callable[[Term, Access], str]) -> None:
        self._scope, self._emit, self._sees = scope, emit, sees
        self._unshifted: Term | None = None

    def value(self, term: Term, access: Access) -> Term:
        """The value of a product at an access."""
        weights = softmax_of(term.inputs[0])
        return self._product(term, access) if weights is None else self._attention(term, access, *weights)

    def _operands(self, term: Term, access: Access, inner: Digits) -> tuple[Access, Access]:
        """The accesses of a product's operands."""
        left, right = (self._scope.terms.shape(i) for i in term.inputs)
        rank = max(len(left), len(right))
        padded: Access = ((),) * (rank - len(access)) + access
        batch, last = padded[:-2], padded[-2:]
        if len(left) < 2 or len(right) < 2:
            raise NotFusable("a product with a vector")
        return (
            (*under(batch, left[:-2]), last[0], inner),
            (*under(batch, right[:-2]), inner, last[1]),
        )

    def _product(self, term: Term, access: Access) -> Term:
        terms, axes, builder = self._scope.terms, self._scope.axes, self._scope.builder
        left, right = term.inputs
        if terms.has_product[right]:
            raise NotFusable("the right operand of a product is one")
        size = terms.shape(left)[-1]
        if terms.attends or terms.has_product[left]:
            axis = axes.inner("d" if terms.attends else "r", size)
            first, second = self._operands(term, access, digit_of(axis, size))
            rows, columns = self._emit(left, first, first), self._emit(right, second, second)
            if term is self._unshifted:
                columns, _ = self._parted(columns)
            columns, number = _without_number(columns)
            rows = rows if number is None else make("Mul", [rows, number])
            return var(builder.dot("dot", builder.named(rows, "left"), builder.named(columns, "right"), axis))
        loop = axes.looped("k", size, "products of different inner sizes")
        first, second = self._operands(term, access, digit_of(loop, size))
        factor: Term | None = None
        if self._scope.form.accumulated:
            left, factor = terms.row_factor(left)
        a = builder.named(self._emit(left, first, first), "left")
        b = builder.named(self._emit(right, second, second), "right")
        part = builder.dot("part", a, b, loop)
        total = var(builder.accumulate(("total",), "sum", (part,))[0])
        if factor is None:
            return total
        return make("Mul", [total, self._emit(factor, (*first[:-1], ()), first)])

    def _attention(self, term: Term, access: Access, scores: Term, guarded: bool) -> Term:
        """Values weighed by the softmax of scores; ``guarded`` where rows without a number count as zero."""
        terms, axes, builder, values = self._scope.terms, self._scope.axes, self._scope.builder, term.inputs[1]
        if axes.loop is not None or terms.has_product[values]:
            raise NotFusable("two attentions in one kernel, or one of computed values")
        size = terms.shape(scores)[-1]
        loop = axes.looped("t", size, "two attentions in one kernel")
        first, second = self._operands(term, access, digit_of(loop, size))
        mask, scores = positioned_scores(scores)
        self._unshifted = self._product_within(scores)
        scored = builder.named(self._emit(scores, first, first), "scores")
        # Weights sum to one, so what every value has is added once, behind the sum.
        value, every = self._parted(self._emit(values, second, second))
        seen = None if mask is None else self._sees(mask, first)
        operands = (scored, builder.named(value, "value"))
        _, total, weighted = builder.accumulate(("shift", "total", "weighted"), "softmax", operands, seen)
        share = builder.named(make("Reciprocal", [var(total)]), "share")  # one division a row
        attended = make("Mul", [var(weighted), var(share)])
        attended = attended if every is None else make("Add", [attended, every])
        return make("Where", [make("IsNaN", [attended]), const(0.0), attended]) if guarded else attended

    def _product_within(self, scores: Term) -> Term | None:
        """The product of queries and keys, where adding a number to a row of it adds one to the row of the scores.

        A softmax does not see that: what is added to every key adds the same to all scores of a query.
        """
        terms = self._scope.terms
        outputs = terms.outputs.values()
        while scores.op != "MatMul":
            if terms.uses[scores] > 1 or scores in outputs:
                return None
            within = [i for i in scores.inputs if terms.has_product[i]]
            place = scores.inputs.index(within[0]) if len(within) == 1 else None
            passes = traits_of(scores.op).rearranges or scores.op in ("Add", "Sub")
            passes |= scores.op == "Cast" and scores.attr("to") in FLOATS
            passes |= scores.op == "Mul" and all(terms.is_single(i) for i in scores.inputs if i not in within)
            passes |= scores.op == "Div" and place == 0 and terms.is_single(scores.inputs[1])
            passes |= scores.op == "Where" and place == 1 and scores.inputs[2] is const(-math.inf)
            if not passes or place is None:
                return None
            scores = scores.inputs[place]
        return None if terms.uses[scores] > 1 or scores in outputs else scores

    def _parted(self, value: Term) -> tuple[Term, Term | None]:
        """A value as what differs along the loop, and what is the same in all iterations and added to it."""
        phases = self._scope.block().phases
        definitions = {s.name: s.term for s in self._scope.builder.statements if isinstance(s, Compute)}
        summands, differ, same = [value], list[Term](), list[Term]()
        while summands:
            part = summands.pop(0)
            term = definitions.get(part.name, part) if part.is_var else part
            if term.op == "Add":
                summands = [*term.inputs, *summands]
            elif any(phases[leaf.name] == "loop" for leaf in variables([part])):
                differ.append(part)
            else:
                same.append(part)
        if not differ or not same:
            return value, None
        return _sum(differ), _sum(same)


def _without_number(value: Term) -> tuple[Term, Term | None]:
    """A value without the number that it is a multiple of, which the other operand of a product may take: it is computed once."""
    numbers = [operand for operand in value.inputs if operand.op == "Const"]
    if value.op != "Mul" or len(numbers) != 1:
        return value, None
    (rest,) = (operand for operand in value.inputs if operand is not numbers[0])
    return rest, numbers[0]


def _sum(parts: Sequence[Term]) -> Term:
    total = parts[0]
    for part in parts[1:]:
        total = make("Add", [total, part])
    return total
