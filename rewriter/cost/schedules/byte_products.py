"""Products of bytes in a block graph: of floats that are what unsigned bytes and stored signed ones are, less a zero point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import Compute, Dot, Load
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term

__all__ = ["ByteProduct", "stored_bytes"]


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """What a product of bytes loads.

    Attributes:
        left: unsigned bytes.
        zero: the one entry that is subtracted from each of them; ``None`` where nothing is.
        right: signed bytes.
        floats: the values of the block graph that are the operands as floats.
    """

    left: Load
    zero: Load | None
    right: Load
    floats: tuple[str, str]

    @staticmethod
    def of(block: Block, dot: Dot, types: Mapping[str, TensorType]) -> ByteProduct | None:
        """A product as one of bytes; ``None`` where it is none, or one with a vector, which no panel holds."""
        first, second = map(block.defined.get, (dot.left, dot.right))
        if not isinstance(first, Compute) or not isinstance(second, Compute):
            return None
        minuend, subtrahend = first.term.inputs if first.term.op == "Sub" else (first.term, None)
        left = _loaded(block, minuend, types, DataType.UINT8)
        zero = None if subtrahend is None else _loaded(block, subtrahend, types, DataType.UINT8)
        right = _loaded(block, second.term, types, DataType.INT8)
        if (
            left is None
            or right is None
            or types[right.tensor].shape[-1] == 1
            or (subtrahend is not None and (zero is None or block.value_axes[zero.name]))
        ):
            return None
        return ByteProduct(left, zero, right, (dot.left, dot.right))


def stored_bytes(kernel: Kernel) -> frozenset[str]:
    """The tensors that products of bytes of a kernel have on the right: constants wherever such kernels are proposed."""
    dots = ((block, statement) for block in kernel.blocks for statement in block.statements if isinstance(statement, Dot))
    found = (ByteProduct.of(block, dot, kernel.tensors) for block, dot in dots)
    return frozenset(each.right.tensor for each in found if each is not None)


def _loaded(block: Block, term: Term, types: Mapping[str, TensorType], dtype: DataType) -> Load | None:
    """What loads the bytes that a term is as floats; ``None`` where it is anything else."""
    if term.op != "Cast" or term.attr("to") != DataType.FLOAT or not term.inputs[0].is_var:
        return None
    load = block.defined[term.inputs[0].name]
    return load if isinstance(load, Load) and types[load.tensor].dtype == dtype else None
