"""Positions of a tile's entries, and pointers to them: where each axis of a block graph is in the function being written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from mugraph.blocks.statements import Affine, Index, View
from mugraph.terms.shape import Dim
from rewriter.kernels.text.places import Places
from rewriter.kernels.triton.text import FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["Positions"]


class Positions:
    """Writes positions once each: ``m_at`` are those of axis m, ``m_in`` says which exist.

    Args:
        steps: from one position of an axis to the next; 1 where nothing is said.

    Attributes:
        tensors: those that are pointed to: arguments of the function.
    """

    def __init__(
        self,
        text: FunctionText,
        tiling: Tiling,
        places: Places,
        steps: Mapping[str, int] | None = None,
    ) -> None:
        self._text, self._tiling, self._places, self._steps = text, tiling, places, steps or {}
        self._written: set[str] = set()
        self.tensors: list[str] = []

    def along(self, tiling: Tiling) -> Positions:
        """Positions of the same function in tiles of another size along the loop, which is not written yet."""
        other = Positions(self._text, tiling, self._places)
        other._written, other.tensors = set(self._written), self.tensors
        return other

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A scope of the text: what is written in it is not known behind it."""
        before = set(self._written)
        yield
        self._written = before

    def need(self, axes: Sequence[str]) -> None:
        """Writes the positions of axes and which of them exist, where that has not been done."""
        text, block = self._text, self._tiling.block
        for axis in axes:
            if axis in self._written:
                continue
            self._written.add(axis)
            tile = self._tiling[axis]
            start = f"{axis}_start" if axis in block.grid or axis == block.loop else ""
            if tile == 1:
                text.assign(f"{axis}_at", start or "0")
            else:
                step = self._steps.get(axis, 1)
                within = f"tl.arange(0, {tile})" if step == 1 else f"tl.arange(0, {tile}) * {step}"
                text.assign(f"{axis}_at", f"{start} + {within}" if start else within)
            if axis == block.loop and self._places.wide:
                text.assign(f"{axis}_at", f"{axis}_at.to(tl.int64)" if tile > 1 else f"tl.cast({axis}_at, tl.int64)")
            if tile > 1 and self._tiling.ragged(axis):
                text.assign(f"{axis}_in", f"{axis}_at < {text.size(block.sizes[axis])}")

    def position(self, index: Index, wanted: Sequence[str], grains: Mapping[str, int] = MappingProxyType({})) -> str:
        """The text of an index over the axes ``wanted``, as a factor of a product."""
        size = self._text.size
        if index.axis is None:
            return size(index.offset)
        grain = grains.get(index.axis)
        if grain is not None and grain == index.divide and index.shift == 0:  # which no compiler sees in a quotient
            text = self._counted(index.axis, grain)
        else:
            text = f"{index.axis}_at" if grain is None else self._grains(index.axis, grain)
            if index.shift != 0:
                text = f"({text} + {size(index.shift)})"
            if index.divide != 1:
                text = f"({text} // {size(index.divide)})"
        if index.modulo is not None:
            text = f"({text} % {size(index.modulo)})"
        if index.offset != 0:
            text = f"({text} + {size(index.offset)})"
        return laid_under(text, self._present([index.axis], grains), wanted)

    def _present(self, axes: Sequence[str], grains: Mapping[str, int]) -> tuple[str, ...]:
        """Those axes that are dimensions of a tensor with an entry for each grain."""
        return tuple(axis for axis in self._tiling.present(axes) if self._tiling[axis] > grains.get(axis, 1))

    def _grains(self, axis: str, grain: int) -> str:
        """The first positions of the grains of a tile."""
        start, tile = self._start(axis), self._tiling[axis]
        if tile <= grain:
            return start or "0"
        within = f"tl.arange(0, {tile // grain}) * {grain}"
        return f"({start} + {within})" if start else f"({within})"

    def _counted(self, axis: str, grain: int) -> str:
        """The numbers of the grains of a tile, words among them: beside each other, so that a thread loads several."""
        start, tile = self._start(axis), self._tiling[axis]
        start = f"{start} // {grain}" if start else ""
        if tile <= grain:
            return f"({start})" if start else "0"
        within = f"tl.arange(0, {tile // grain})"
        return f"({start} + {within})" if start else within

    def _start(self, axis: str) -> str:
        """The first position of a tile; empty where that is 0."""
        block = self._tiling.block
        start = f"{axis}_start" if axis in block.grid or axis == block.loop else ""
        return f"tl.cast({start}, tl.int64)" if start and axis == block.loop and self._places.wide else start

    def offsets(
        self, tensor: str, factors: View, grains: Mapping[str, int] = MappingProxyType({}), word: int = 1
    ) -> tuple[list[str], str, tuple[str, ...]]:
        """The summands of the places of a view's entries in a tensor, the mask of those that exist, and the axes they are over.

        Args:
            grains: so many neighbours along an axis, of which the first stands for all; where a tile has fewer, it is one grain.
            word: entries along the last axis that are counted as one; they are a grain of that axis, which is addressed as it is.
        """
        if tensor not in self.tensors:
            self.tensors.append(tensor)
        axes = self._tiling.block.ordered({f.index.axis for f in factors if f.index.axis is not None})
        self.need([axis for axis in axes if axis not in grains])
        wanted = self._present(axes, grains)
        stride: Dim = 1
        parts = []
        for place, factor in enumerate(reversed(factors)):
            is_words, size = word > 1 and place == 0, factor.size
            if is_words:
                assert factor.index.axis is not None and isinstance(size, int)
                text, size = (
                    laid_under(self._counted(factor.index.axis, word), self._present([factor.index.axis], grains), wanted),
                    size // word,
                )
            else:
                text = self.position(factor.index, wanted, grains)
            if text != "0":
                parts.append(self._text.times(text, stride))
            stride = stride * size
        exist = []
        for axis in filter(self._tiling.ragged, wanted):
            inside = f"{axis}_in"
            if axis in grains:
                inside = f"({self._grains(axis, grains[axis])} < {self._text.size(self._tiling.block.sizes[axis])})"
            exist.append(laid_under(inside, (axis,), wanted))
        return list(reversed(parts)), " & ".join(exist), wanted

    def pointer(
        self,
        tensor: str,
        factors: View,
        grains: Mapping[str, int] = MappingProxyType({}),
        packed: tuple[str, int] | None = None,
    ) -> tuple[str, str, tuple[str, ...]]:
        """Pointers and mask of a view of a tensor, and the axes they are over; as :meth:`offsets`.

        Those of a tensor of four bits are to bytes that hold two entries, or to the words that `packed_along` says.
        """
        parts, mask, wanted = self.offsets(tensor, factors, grains, 1 if packed is None else packed[1])
        if packed is not None:
            tensor = f"{tensor}.to(tl.pointer_type(tl.uint{4 * packed[1]}))"
        elif tensor in self._places.nibbles and parts:
            parts = [f"(({' + '.join(parts)}) >> 1)"]
        return " + ".join([tensor, *parts]), mask, wanted

    def affine(self, condition: Affine, axes: Sequence[str]) -> str:
        """The left side of a condition over axes."""
        text = ""
        for index, coefficient in condition.terms:
            part = self.position(index, axes)
            part = part if abs(coefficient) == 1 else f"{abs(coefficient)} * {part}"
            sign = "-" if coefficient < 0 else "+"
            text = f"{text} {sign} {part}" if text else (f"-{part}" if coefficient < 0 else part)
        constant = self._text.size(condition.constant)
        return text if constant == "0" else f"{text} + {constant}"
