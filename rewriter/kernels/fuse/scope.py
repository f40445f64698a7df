"""The parts of a lowering that all its stages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mugraph.blocks.block import Block
from mugraph.terms.term import Term
from rewriter.kernels.fuse.access import Access
from rewriter.kernels.fuse.axes import BlockAxes
from rewriter.kernels.fuse.builder import BlockBuilder
from rewriter.kernels.fuse.terms import PlainTerms

__all__ = ["PLAIN", "Emit", "Form", "Scope"]

Emit = Callable[[Term, Access, Access], Term]
"""A term's value at an access, as a thread graph over tiles; the second access is the hint of :meth:`TermEmitter.emit`."""


@dataclass(frozen=True, slots=True)
class Form:
    """Which of several kernels is built of the same terms.

    Attributes:
        accumulated: the statistics of a product's left operand are accumulated beside it and applied after the loop, which a
            factor of a row allows (Mirage, figure 4); otherwise they are computed first, from whole rows.
    """

    accumulated: bool = False


PLAIN = Form()


@dataclass(frozen=True, slots=True)
class Scope:
    """One block graph in the making: terms, axes, statements.

    Attributes:
        name: of the block graph.
    """

    name: str
    terms: PlainTerms
    axes: BlockAxes
    builder: BlockBuilder
    form: Form

    def block(self) -> Block:
        """The block graph so far. Raises NotFusable where it has nothing to cut into blocks."""
        return self.axes.block(self.name, self.builder.statements)
