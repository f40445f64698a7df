"""Kernels of random terms: what moves entries in any order, before and behind products, softmax and reductions."""

from __future__ import annotations

import random

import pytest

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, var, walk
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet
from rewriter.kernels.fuse.kernels import KernelBuilder
from rules_db.trust.interpreted import interpret
from tests.support.fusing import HALF

_SIZES = (2, 3, 4, 6)
_MOST_AXES = 5


class _Terms:
    """A term that grows by one operator at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.term: Term = var("x0")
        self.types = {"x0": TensorType(HALF, tuple(self.random.choices(_SIZES, k=self.random.choice((2, 3, 3, 4)))))}

    @property
    def shape(self) -> tuple[Dim, ...]:
        return infer_types([self.term], self.types)[self.term].shape

    def operand(self, shape: tuple[Dim, ...]) -> Term:
        name = f"x{len(self.types)}"
        self.types[name] = TensorType(HALF, shape)
        return var(name)

    def grow(self) -> None:
        before, types = self.term, dict(self.types)
        kind = self.random.choice((self.moved, self.parted, self.cut, self.regrouped, self.reduced, self.added, self.multiplied))
        try:
            self.term = kind()
            is_kept = 0 < len(self.shape) <= _MOST_AXES
        except (ShapeError, Undecided):
            is_kept = False
        if not is_kept:
            self.term, self.types = before, types

    def axis(self) -> tuple[int, int]:
        """One that may be cut, and its size."""
        axis = self.random.choice([i for i, size in enumerate(self.shape) if size != 1] or [0])
        return axis - len(self.shape), int(self.shape[axis])

    def moved(self) -> Term:
        order = list(range(len(self.shape)))
        self.random.shuffle(order)
        return make("Transpose", [self.term], {"perm": tuple(order)})

    def parted(self) -> Term:
        axis, size = self.axis()
        if size < 2:
            raise ShapeError("nothing to part")
        first = self.random.randrange(1, size)
        return make("Split", [self.term], {"axis": axis, "sizes": (first, size - first)}, self.random.randrange(2))

    def cut(self) -> Term:
        axis, size = self.axis()
        start = self.random.randrange(size)
        end = self.random.randrange(start + 1, size + 1)
        return make("Slice", [self.term], {"axes": (axis,), "starts": (start,), "ends": (end,), "steps": (1,)})

    def regrouped(self) -> Term:
        axis, size = self.axis()
        behind = self.shape[len(self.shape) + axis + 1 :]
        if self.random.random() < 0.5 and behind:
            return make("Reshape", [self.term], {"drop": -axis, "shape": (size * behind[0], *behind[1:])})
        low = self.random.choice([n for n in range(1, size + 1) if size % n == 0])
        return make("Reshape", [self.term], {"drop": -axis, "shape": (size // low, low, *behind)})

    def reduced(self) -> Term:
        if self.random.random() < 0.4 and all(term.op != "Softmax" for term in walk([self.term])):
            return make(
                "Softmax", [self.term], {"axis": -1}
            )  # of which one in another has to be proved (rules_db.trust.interpreted)
        kind = self.random.choice(("ReduceSum", "ReduceMax", "ReduceMean"))
        return make(kind, [self.term], {"axes": (-1,), "keepdims": self.random.random() < 0.5})

    def added(self) -> Term:
        shape = tuple(size if self.random.random() < 0.7 else 1 for size in self.shape)
        return make(self.random.choice(("Add", "Mul", "Sub")), [self.term, self.operand(shape)])

    def multiplied(self) -> Term:
        if self.random.random() < 0.5:
            return make("MatMul", [self.term, self.operand((self.shape[-1], self.random.choice(_SIZES)))])
        return make("MatMul", [self.operand((self.random.choice(_SIZES), self.shape[-2 % len(self.shape)])), self.term])


def _random_set(seed: int) -> FusableSet:
    terms = _Terms(seed)
    for _ in range(terms.random.randrange(3, 9)):
        terms.grow()
    used = {term.name for term in walk([terms.term]) if term.is_var}
    types = {name: type_ for name, type_ in terms.types.items() if name in used}
    return FusableSet((0,), (terms.term,), {name: place for place, name in enumerate(types)}, types, 1)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_what_is_built_of_random_terms_computes_them(first: int) -> None:
    """The first draft, at its own sizes and at others: a test would refuse a wrong one, and with it a kernel that may be had."""
    builder, built = KernelBuilder(), 0
    for seed in range(first, first + 100):
        fusable = _random_set(seed)
        try:
            draft = builder.draft(fusable)
        except NotFusable:
            continue
        built += 1
        for kernel in (draft.kernel, draft.general):
            assert (problem := interpret(kernel, 1, seed)) is None, f"seed {seed}: {fusable.terms[0]}: {problem}"
    assert built >= 25
