"""What a kernel asks for before its predecessor has ended: the first tiles of its constants, brought into the cache.

A kernel is launched while that still runs, and waits (``griddepcontrol.wait``) before it reads or writes anything. What
no kernel writes, weights above all, need not wait. It is asked for by PTX's ``prefetch``, which changes no value whatever its
address: a schedule that is wrong about a tensor loses time and no result. So no load stands before the wait, and
:func:`check_waits` refuses a text in which one does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mugraph.blocks.schedule import element_bytes
from mugraph.blocks.statements import InvalidBlock, Load, repeated_along
from mugraph.terms.shape import TensorType
from rewriter.kernels.text.places import Places
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.source import OVERLAPPED
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["PREFETCH", "PREFETCH_TEXT", "AheadText", "check_waits"]

PREFETCH = "ask_ahead"
PREFETCH_TEXT = f"""
@triton.jit
def {PREFETCH}(pointers, mask):
    tl.inline_asm_elementwise(
        "{{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }}",
        "=r,l,r", [pointers.to(tl.int64), mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )
"""
"""Brings the lines of memory into the second-level cache that some pointers are to."""

_LINE = 128
"""Bytes of a line of memory."""
_BYTES = 16 << 10
"""That a block asks for in the loop, about: together some megabytes, what memory gives while a launch is waited for."""


class AheadText:
    """Writes requests for tiles.

    Attributes:
        tensors: those that are pointed to.
    """

    def __init__(self, text: FunctionText, tiling: Tiling, places: Places, types: Mapping[str, TensorType]) -> None:
        self._text, self._tiling, self._places, self._types = text, tiling, places, types
        self.tensors: list[str] = []

    def ask(self, load: Load) -> None:
        """Asks for the tile of a load, a pointer a line; once for what neighbours share, such as the scale of a block.

        What several blocks need one of them asks for, the first along the axes that it does not depend on: of many requests for a
        line each takes its turn, and a thousand blocks that asked for the weights of a normalisation made it five times as slow.
        """
        steps = {axis: min(step, self._tiling[axis]) for axis, step in self._lines(load).items()}
        tiling = _LineTiling(self._tiling, steps)
        positions = Positions(self._text, tiling, self._places, steps)
        pointer, mask, axes = positions.pointer(load.tensor, load.view)
        self.tensors += positions.tensors
        first = self._is_first(load)
        if mask:
            mask = self._shaped(mask, axes, tiling) + (f" & ({first})" if first else "")
        else:
            mask = f"tl.full([{', '.join(str(tiling[axis]) for axis in axes)}], {first or 1}, tl.int32)"
        self._text.line(f"{PREFETCH}({pointer}, {mask})")

    def _lines(self, load: Load) -> dict[str, int]:
        """Entries of a line of memory, along the axes that have more than one in it or the same for neighbours."""
        inner, steps = load.view[-1].index if load.view else None, repeated_along(load.view)
        if inner is not None and inner.axis is not None and (inner.divide == 1 or inner.axis in steps):
            steps[inner.axis] = steps.get(inner.axis, 1) * int(_LINE / element_bytes(self._types[load.tensor].dtype))
        return steps

    def _is_first(self, load: Load) -> str:
        """Whether the block is the first of those that need the same of a tensor; empty where each needs something else."""
        block, along = self._tiling.block, {factor.index.axis for factor in load.view}
        shared = [axis for axis in block.grid if axis not in along and block.sizes[axis] != 1]
        return " & ".join(f"({axis}_start == 0)" for axis in shared)

    @staticmethod
    def _shaped(mask: str, axes: Sequence[str], tiling: Tiling) -> str:
        """A mask over all of the axes."""
        if not axes:
            return mask
        return f"tl.broadcast_to({mask}, [{', '.join(str(tiling[axis]) for axis in axes)}])"

    def ask_in_loop(self, loads: Sequence[Load], loop: str, low: str, high: str) -> None:
        """Asks for the tiles of the first iterations, and once for a line that several of them have."""
        tiling = self._tiling
        total = 0.0
        for load in loads:
            size, shared = element_bytes(self._types[load.tensor].dtype), repeated_along(load.view)
            for axis in tiling.block.value_axes[load.name]:
                size *= max(tiling[axis] // shared.get(axis, 1), 1)
            total += size
        span = max(int(_BYTES / total), 1) * tiling[loop]
        end = str(min(int(high), span)) if low == "0" and high.isdigit() else f"tl.minimum({high}, {low} + {span})"
        strides = {load: max(tiling[loop], self._lines(load).get(loop, 1)) for load in loads}
        for stride in sorted(set(strides.values())):
            self._text.line(f"for {loop}_start in range({low}, {end}, {stride}):")
            with self._text.indented():
                for load in loads:
                    if strides[load] == stride:
                        self.ask(load)


class _LineTiling(Tiling):
    """A tiling of which one entry a line of memory is taken.

    Args:
        steps: entries of a line, of the axis along which it lies.
    """

    def __init__(self, whole: Tiling, steps: Mapping[str, int]) -> None:
        super().__init__(whole.block, whole.schedule)
        self._whole = whole
        self.tiles = {axis: tile // steps.get(axis, 1) for axis, tile in whole.tiles.items()}

    def ragged(self, axis: str) -> bool:
        return self._whole.ragged(axis)


_ACCESS = re.compile(r"\btl\.(load|store|atomic_\w+|make_block_ptr|make_tensor_descriptor)\b|\.(load|store)\(")


def check_waits(text: str) -> str:
    """The text of a function, in which nothing stands before the wait that reads or writes memory.

    Raises:
        InvalidBlock: something does, or there is no wait that every block comes to.
    """
    lines = text.splitlines()
    name = next((line.strip() for line in lines if line.startswith("def ")), "a function")
    asked = f"    if {OVERLAPPED}:"
    if asked not in lines or lines.count("        gdc_wait()") != 1 or text.count("gdc_wait") != 1:
        raise InvalidBlock(f"{name}: it does not wait once for the kernel before it")
    begin, wait = lines.index(asked), lines.index("        gdc_wait()")
    if wait < begin or any(line and not line.startswith("        ") for line in lines[begin + 1 : wait]):
        raise InvalidBlock(f"{name}: not every block waits for the kernel before it")
    for line in lines[:wait]:
        if _ACCESS.search(line):
            raise InvalidBlock(f"{name}: memory is accessed before the kernel waits: {line.strip()[:80]}")
    return text
