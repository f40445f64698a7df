"""Names in the text of a kernel, and the comment at its head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword

from mugraph.blocks.block import Block, Kernel, renamed_values
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Load, Statement, Store, Tensor
from mugraph.terms.shape import Dim, symbol
from mugraph.terms.term import format_term, substitute, var
from rewriter.kernels.text.thread import NotGenerated

__all__ = ["Names", "heading"]


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a language, or what is written in it, has for itself.

    Attributes:
        reserved: those, keywords among them.
        suffixes: ends of the names that a function gives to what it knows of an axis.
    """

    reserved: frozenset[str]
    suffixes: tuple[str, ...]

    def with_identifiers(self, kernel: Kernel) -> Kernel:
        """The kernel with symbols that the language can read, and that hide no name of a function: those of a file are any text.

        Raises:
            NotGenerated: another name is no identifier. A name is written as it stands, and what is written is executed.
        """
        values = [name for block in kernel.blocks for name in (block.name, *block.sizes, *block.defined)]
        for name in (kernel.name.replace("-", "_"), *kernel.tensors, *values):
            if not name.isidentifier() or iskeyword(name):
                raise NotGenerated(f"the name {name!r}, which is no identifier")
        axes = {axis for block in kernel.blocks for axis in block.sizes}
        taken = {*kernel.tensors, *self.reserved, *(f"{axis}_{suffix}" for axis in axes for suffix in self.suffixes)}
        names: dict[str, Dim] = {}
        for name in kernel.symbols:
            identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
            if not identifier.isidentifier() or iskeyword(identifier):
                identifier = f"size_{identifier}"
            while identifier in taken:
                identifier += "_"
            taken.add(identifier)
            names[name] = symbol(identifier)
        return kernel if all(symbol(name) == dim for name, dim in names.items()) else specialised(kernel, names)

    def tensors_apart(self, kernel: Kernel) -> Kernel:
        """The kernel with tensors renamed that have a name of the language's own, or one that is not of ASCII."""
        own = self.reserved | {f"{axis}_{suffix}" for block in kernel.blocks for axis in block.sizes for suffix in self.suffixes}
        names: dict[str, str] = {}
        for name in kernel.tensors:
            safe = name if name.isascii() else f"tensor_{len(names)}"
            while safe in own or safe in names.values() or (safe != name and safe in kernel.tensors):
                safe += "_"
            names[name] = safe
        if all(name == safe for name, safe in names.items()):
            return kernel

        def renamed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(Tensor(names[tensor.name], tensor.type) for tensor in tensors)

        def statement(s: Statement) -> Statement:
            return replace(s, tensor=names[s.tensor]) if isinstance(s, Load | Store) else s

        return Kernel(
            kernel.name,
            renamed(kernel.inputs),
            renamed(kernel.outputs),
            tuple(substitute(term, {name: var(safe) for name, safe in names.items()}) for term in kernel.body),
            tuple(replace(block, statements=tuple(map(statement, block.statements))) for block in kernel.blocks),
            renamed(kernel.scratch),
        )

    def apart(self, block: Block, taken: set[str]) -> Block:
        """The block with values that would hide a parameter or a name of the function's own renamed."""
        taken = taken | self.reserved | {f"{axis}_{suffix}" for axis in block.sizes for suffix in self.suffixes}
        names = {name: name for name in block.defined}
        for name in names:
            while names[name] in taken:
                names[name] += "_"
            taken = taken | {names[name]}
        return renamed_values(block, names)


def heading(kernel: Kernel, digest: bytes, schedules: Sequence[Schedule], mark: str) -> list[str]:
    """Comments that say what a text computes, and how.

    Args:
        digest: of the kernel as it was named.
        mark: what a line begins with.
    """
    lines = [f"{kernel.name}: a generated kernel, {digest.hex()[:16]}", "", "It computes"]
    for tensor, body in zip(kernel.outputs, kernel.body, strict=True):
        lines.append(f"  {tensor.name}: {tensor.type} = {_STORED.sub('…', format_term(body))}")
    lines += ["from", *(f"  {t.name}: {t.type}" for t in kernel.inputs)]
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        tiles = ", ".join(f"{axis}={tile}" for axis, tile in schedule.tiles)
        lines.append(
            f"{block.name}: tiles {tiles or 'of 1'}, split {schedule.split}, warps {schedule.warps}, stages {schedule.stages}, "
            f"group {schedule.group}"
            + (f", ahead {', '.join(schedule.ahead)}" if schedule.ahead else "")
            + (f", parts {schedule.parts}" if schedule.parts > 1 else "")
        )
    return [f"{mark}{line}".rstrip() for line in lines]


_STORED = re.compile(r"(?<=entries='\d)[^']*")
"""What nobody reads of the text of a mask."""
