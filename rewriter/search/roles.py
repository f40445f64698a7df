"""The part that a direction plays in a search, read off its two sides.

Some directions change layouts alone, some bring the movements (transpositions, reshapes) that their operators need, some cancel
movements, and some wrap an operator in transpositions so that it runs in another layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mugraph.ops import Movement, get_operator, traits_of
from mugraph.terms.term import AttrValue, Term, walk
from rewriter.search.directions import Direction
from rewriter.search.strategy import MoveKind
from rules_db.sides import facts_of
from rules_db.trust.rule import Rule, Side

__all__ = [
    "Layout",
    "brings_movements",
    "cancels_movements",
    "cancels_transposition",
    "is_layout_rule",
    "kind_of",
    "takes_over",
    "turns",
    "wraps",
]


@lru_cache(maxsize=1 << 15)
def brings_movements(direction: Direction) -> bool:
    """Whether a replacement says where entries lie: what stands beside it may cancel that."""
    return any(traits_of(operator).rearranges for operator in facts_of(direction.replacement).operators)


@lru_cache(maxsize=1 << 15)
def cancels_movements(direction: Direction) -> bool:
    """Whether a direction makes a chain of movements shorter and does nothing else."""
    before, after = facts_of(direction.pattern).operators, facts_of(direction.replacement).operators
    return all(traits_of(operator).rearranges for operator in (*before, *after)) and len(after) < len(before)


@lru_cache(maxsize=1 << 15)
def takes_over(direction: Direction) -> bool:
    """Whether an operator of the runtime becomes another that also does what stood before it: attention takes its projections.

    The first is often no saving by itself. What the second needs beside the pattern's own operands is made of constants.
    """
    before, after = direction.pattern, direction.replacement
    if len(before) > 1 or len(after) > 1 or not (before[0].inputs and after[0].inputs) or before[0].op == after[0].op:
        return False
    fused = all(get_operator(side[0].op).contract and get_operator(side[0].op).decompose for side in (before, after))
    arranged = (Movement.CONCATENATION, Movement.REPETITION)  # weights side by side, and numbers repeated
    return fused and all(traits_of(operator).movement in arranged for operator in facts_of(after).operators[:-1])


def _plain(operator: str) -> str:
    """The operator of which this one is the form for other layouts of its operands."""
    return "MatMul" if operator == "FusedMatMul" else operator.removeprefix("Nhwc")


def is_layout_rule(rule: Rule) -> bool:
    """Whether a rule changes layouts alone.

    Then both sides are the same expressions, if movements are left out, operands have no order (a transposed product
    exchanges its factors) and an operator for another layout (FusedMatMul, NhwcConv) counts as the plain one.
    """

    def erased(side: Side) -> list[str]:
        forms: dict[Term, str] = {}
        for term in walk(side):
            operands = [forms[operand] for operand in term.inputs]
            if traits_of(term.op).rearranges:
                forms[term] = operands[0]
            elif term.inputs:
                forms[term] = f"{_plain(term.op)}.{term.out}({', '.join(sorted(operands))})"
            else:
                forms[term] = repr(term)
        return [forms[root] for root in side]

    terms = walk([*rule.source, *rule.target])
    return any(traits_of(t.op).rearranges or _plain(t.op) != t.op for t in terms) and erased(rule.source) == erased(rule.target)


@lru_cache(maxsize=4096)
def kind_of(direction: Direction) -> MoveKind:
    """Whether moves of a direction are substitutions or change layouts."""
    return MoveKind.LAYOUT if is_layout_rule(direction.rule) else MoveKind.SUBSTITUTION


@dataclass(frozen=True, slots=True)
class Layout:
    """Another layout: the transposition into it and the one back, in canonical form."""

    there: tuple[int, ...]
    back: tuple[int, ...]


def _perm(term: Term) -> tuple[int, ...] | None:
    """The permutation of a Transpose, where it is written in numbers."""
    perm: AttrValue = term.attr("perm") if term.op == "Transpose" else None
    return perm if isinstance(perm, tuple) and all(isinstance(axis, int) for axis in perm) else None


@lru_cache(maxsize=4096)
def turns(direction: Direction) -> Layout | None:
    """The layout that a direction brings: what it writes stands between transpositions of variables and one back."""
    root, *more = direction.replacement
    back = _perm(root)
    if back is None or more:
        return None
    inner = [term for term in walk([root]) if term is not root and term.op == "Transpose"]
    there = {_perm(term) if term.inputs[0].is_var else None for term in inner}
    perm = there.pop() if len(there) == 1 else None
    inverse = perm is not None and len(perm) == len(back) and all(perm[axis] == i for i, axis in enumerate(back))
    return Layout(perm, back) if perm is not None and inverse else None


def wraps(direction: Direction) -> Layout | None:
    """The layout that a direction brings to a single operator of variables; ``None`` for any other."""
    root = direction.pattern[0]
    if root.op == "Transpose" or not all(operand.is_var for operand in root.inputs):
        return None
    return turns(direction)


def cancels_transposition(direction: Direction) -> bool:
    """Whether a direction takes a transposition and its inverse away."""
    (root, *more), (result, *_) = direction.pattern, direction.replacement
    return not more and result.is_var and root.op == "Transpose" == root.inputs[0].op and root.inputs[0].inputs[0] is result
