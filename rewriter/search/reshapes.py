"""Reshapes that a rule brings and that need sizes above 0.

What is written of a Reshape copies the sizes that stay along their axes, infers one other and has the rest computed. onnxruntime
infers nothing beside a size of 0, and copies where a computed size is 0. So both sides of a rule give the same of tensors without
entries, and yet what is written may not run on them, or give another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from mugraph.ops import DESCRIBED_OPSET, get_operator
from mugraph.terms.shape import ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Attrs, Term, walk
from rules_db.trust.rule import Side

__all__ = ["brought_reshapes", "need_entries"]

_COPIED, _INFERRED = 0, -1


def brought_reshapes(before: Side, after: Side) -> tuple[Term, ...]:
    """The Reshapes of one side that the other does not hold."""
    held = set(walk(before))
    return tuple(term for term in walk(after) if term.op == "Reshape" and term not in held)


def need_entries(reshapes: Iterable[Term], type_of: Callable[[Term], TensorType], closed: Callable[[Attrs], Attrs]) -> bool:
    """Whether one of some Reshapes is written so that it may not be right where a size is 0.

    Args:
        type_of: of their operands, in a model.
        closed: attributes as the model has them.
    """
    try:
        return any(_needs_entries(closed(term.attrs), type_of(term.inputs[0])) for term in reshapes)
    except (ShapeError, Undecided):  # then it is not applied
        return False


def _needs_entries(attrs: Attrs, type_: TensorType) -> bool:
    if concrete(type_.shape) is not None:
        return False
    sizes = get_operator("Reshape").to_onnx(attrs, [type_], DESCRIBED_OPSET).inputs[1]
    return not isinstance(sizes, np.ndarray) or {_COPIED, _INFERRED} <= set(sizes.tolist())
