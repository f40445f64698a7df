"""AccumulatorSteps as steps: their start, one iteration, and the combination of two states (:mod:`mugraph.blocks.block`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mugraph.blocks.statements import Accumulate, Dot, InvalidBlock
from mugraph.terms.term import Term, const, make, var
from rewriter.kernels.c.nests import IDENTITY
from rewriter.kernels.c.steps import Fold, Let, Step
from rewriter.kernels.c.tiling import TileSizes
from rewriter.kernels.text.analysis import fused_products

__all__ = ["AccumulatorSteps"]

_LOWEST = const(-math.inf)


class AccumulatorSteps:
    """Steps of one function's accumulators; the values of a state are named as they are.

    Args:
        product: steps of a product of two values over an axis, added to a state.
    """

    def __init__(self, tiling: TileSizes, product: Callable[[str, Dot, bool], list[Step]]) -> None:
        self._tiling, self._product = tiling, product
        self._fused = fused_products(tiling.block)

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes along which a value has more than one entry."""
        return self._tiling.present(self._tiling.block.value_axes[name])

    def identity(self, accumulator: Accumulate, name: str) -> str:
        """The text of what a name of the state holds before the first iteration."""
        is_shift = accumulator.monoid == "softmax" and name == accumulator.names[0]
        return IDENTITY["max"] if is_shift or accumulator.monoid == "max" else IDENTITY["sum"]

    def step(self, accumulator: Accumulate, keep: str | None, length: str) -> list[Step]:
        """One iteration: lift and combine.

        Args:
            keep: truth values of what counts.
            length: the name of the number of entries of the tile along the loop.
        """
        operand = accumulator.operands[0]
        axes = self._tiling.present({*self.axes(operand), *(self.axes(keep) if keep else ())})
        if accumulator.monoid in ("sum", "max"):
            (name,) = accumulator.names
            defined = self._tiling.block.defined[operand]
            if isinstance(defined, Dot) and operand in self._fused and keep is None:
                return self._product(name, defined, True)
            return [Fold(name, accumulator.monoid, operand, axes, self.axes(name), keep, is_state=True)]
        if accumulator.monoid == "welford":
            return self._step_welford(accumulator, keep, length)
        return self._step_softmax(accumulator, axes, keep)

    def _step_softmax(self, accumulator: Accumulate, axes: tuple[str, ...], keep: str | None) -> list[Step]:
        shift, total = accumulator.names[:2]
        rest, scores = self.axes(shift), var(accumulator.operands[0])
        steps: list[Step] = []
        if keep is not None:
            steps.append(Let(f"{shift}.scores", make("Where", [var(keep), scores, _LOWEST]), axes))
            scores = var(f"{shift}.scores")
        steps.append(Fold(f"{shift}.here", "max", scores.name, axes, rest))
        steps += self._rescaling(shift, f"{shift}.here")
        steps.append(_weight(f"{shift}.weights", scores, f"{shift}.used", axes))
        steps.append(Fold(f"{total}.here", "sum", f"{shift}.weights", axes, rest))
        steps.append(self._set(total, _scaled(total, f"{shift}.scale", f"{total}.here")))
        if len(accumulator.names) == 3:
            weighted = accumulator.names[2]
            steps.append(self._set(weighted, make("Mul", [var(weighted), var(f"{shift}.scale")])))
            loop = self._tiling.block.loop
            assert loop is not None
            steps += self._product(weighted, Dot(weighted, f"{shift}.weights", accumulator.operands[1], loop), True)
        steps.append(self._set(shift, var(f"{shift}.new")))
        return steps

    def _rescaling(self, shift: str, other: str) -> list[Step]:
        """Steps that say what the greatest score is now, and by how much what was summed up before is scaled."""
        rest, used = self.axes(shift), var(f"{shift}.used")
        new = var(f"{shift}.new")
        return [
            Let(new.name, make("Max", [var(shift), var(other)]), rest),
            Let(used.name, make("Where", [make("Equal", [new, _LOWEST]), const(0.0), new]), rest),
            _weight(f"{shift}.scale", var(shift), used.name, rest),
        ]

    def _step_welford(self, accumulator: Accumulate, keep: str | None, length: str) -> list[Step]:
        if keep is not None:
            raise InvalidBlock(f"block {self._tiling.block.name}: welford over chosen entries")
        count, mean, squares = accumulator.names
        operand = accumulator.operands[0]
        axes, rest = self.axes(operand), self.axes(mean)
        away = make("Sub", [var(operand), var(f"{mean}.here")])
        return [
            Fold(f"{mean}.sum", "sum", operand, axes, rest),
            Let(f"{count}.here", var(length), ()),
            Let(f"{mean}.here", make("Div", [var(f"{mean}.sum"), var(length)]), rest),
            Let(f"{mean}.away", make("Mul", [away, away]), axes),
            Fold(f"{squares}.here", "sum", f"{mean}.away", axes, rest),
            *self._merge_welford(accumulator, [f"{name}.here" for name in accumulator.names]),
        ]

    def _set(self, name: str, term: Term) -> Let:
        return Let(name, term, self.axes(name), is_state=True)

    def merge(self, accumulator: Accumulate, others: Sequence[str]) -> list[Step]:
        """Steps that combine the state with another.

        Args:
            others: the names of its values.
        """
        names = accumulator.names
        if accumulator.monoid in ("sum", "max"):
            operator = "Add" if accumulator.monoid == "sum" else "Max"
            return [self._set(names[0], make(operator, [var(names[0]), var(others[0])]))]
        if accumulator.monoid == "welford":
            return self._merge_welford(accumulator, others)
        shift, *sums = names
        factor = _weight(f"{shift}.other", var(others[0]), f"{shift}.used", self.axes(shift))
        steps: list[Step] = [*self._rescaling(shift, others[0]), factor]
        for name, other in zip(sums, others[1:], strict=True):
            here = make("Mul", [var(other), var(factor.name)])
            steps.append(self._set(name, make("Add", [make("Mul", [var(name), var(f"{shift}.scale")]), here])))
        return [*steps, self._set(shift, var(f"{shift}.new"))]

    def _merge_welford(self, accumulator: Accumulate, others: Sequence[str]) -> list[Step]:
        """Chan, Golub and LeVeque (1979)."""
        (count, mean, squares), rest = accumulator.names, self.axes(accumulator.names[1])
        total, share, delta = var(f"{count}.sum"), var(f"{count}.share"), var(f"{mean}.delta")
        least = const(1.0)
        between = make("Mul", [make("Mul", [delta, delta]), make("Mul", [var(count), share])])
        return [
            Let(total.name, make("Add", [var(count), var(others[0])]), self.axes(count)),
            Let(share.name, make("Div", [var(others[0]), make("Max", [total, least])]), self.axes(count)),
            Let(delta.name, make("Sub", [var(others[1]), var(mean)]), rest),
            self._set(squares, make("Add", [make("Add", [var(squares), var(others[2])]), between])),
            self._set(mean, make("Add", [var(mean), make("Mul", [delta, share])])),
            self._set(count, total),
        ]


def _weight(name: str, score: Term, shift: str, axes: tuple[str, ...]) -> Let:
    """The exponential of a score less the greatest."""
    return Let(name, make("Exp", [make("Sub", [score, var(shift)])]), axes, weighs=True)


def _scaled(name: str, scale: str, added: str) -> Term:
    return make("Add", [make("Mul", [var(name), var(scale)]), var(added)])
