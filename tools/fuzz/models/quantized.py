"""Pieces of quantised models: movements between dequantisation and quantisation, products of dynamically quantised tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mugraph.domains.base import BYTES
from mugraph.terms.shape import DataType, TensorType, concrete
from tools.fuzz.models.draft import ModelDraft, Rejected
from tools.fuzz.models.pieces import sample_entries

__all__ = ["QUANTIZED"]

_MOST = 1 << 12
"""Most entries of a value that is quantised."""


def _floats(type_: TensorType) -> bool:
    return type_.dtype == DataType.FLOAT and type_.rank >= 2 and type_.size() <= _MOST


def _scale(draft: ModelDraft) -> str:
    return draft.constant(np.asarray(draft.one([0.03125, 0.02, 0.037]), np.float32))


def moved(draft: ModelDraft) -> None:
    """Bytes that are dequantised, moved and quantised again, with the same parameters or others."""
    dtype = draft.one(sorted(BYTES))
    x = draft.value(_floats)
    scale, zero = _scale(draft), draft.constant(np.asarray(draft.one([0, 0, 3, 100])), dtype)
    (q,) = draft.node("QuantizeLinear", [x, scale, zero])
    (number,) = draft.node("DequantizeLinear", [q, scale, zero])
    rank = draft.types[x].rank
    match draft.one(["Transpose", "Concat", "Gather", "Relu", "Unsqueeze"]):
        case "Transpose":
            (number,) = draft.node("Transpose", [number], {"perm": [int(i) for i in draft.generator.permutation(rank)]})
        case "Concat":
            (number,) = draft.node("Concat", [number, number], {"axis": draft.one(range(rank))})
        case "Gather":
            (number,) = draft.node("Gather", [number, draft.ints(0, 0)], {"axis": draft.one(range(rank))})
        case "Relu":
            (number,) = draft.node("Relu", [number])
        case _:
            (number,) = draft.node("Unsqueeze", [number, draft.ints(0)])
    if draft.chance(0.7):
        others = [scale, zero] if draft.chance(0.6) else [_scale(draft), draft.constant(np.asarray(0), dtype)]
        (q,) = draft.node("QuantizeLinear", [number, *others])
        draft.node("DequantizeLinear", [q, *others])


def products(draft: ModelDraft) -> None:
    """Products of one operand that is quantised by its own range, as onnxruntime's quantiser writes them."""
    x = draft.value(_floats)
    inner = (concrete(draft.types[x].shape) or (0,))[-1]
    if not inner:
        raise Rejected("a product over nothing")
    q, scale, zero = draft.node("DynamicQuantizeLinear", [x], outputs=3)
    for _ in range(draft.one([1, 2, 2, 3])):
        columns = draft.size()
        weights = draft.constant(sample_entries(draft, TensorType(DataType.INT8, (inner, columns))))
        zeros = [] if draft.chance(0.3) else [draft.constant(np.asarray(draft.one([0, 0, 5])), DataType.INT8)]
        (whole,) = draft.node("MatMulInteger", [q, weights, zero, *zeros])
        (number,) = draft.node("Cast", [whole], {"to": int(DataType.FLOAT)})
        shape = () if draft.chance(0.5) else (columns,)
        own = draft.constant(draft.generator.uniform(0.01, 0.1, shape), DataType.FLOAT)
        (both,) = draft.node("Mul", [scale, own])
        (result,) = draft.node("Mul", [number, both])
        if draft.chance(0.5):
            draft.node("Add", [result, draft.constant(draft.numbers(TensorType(DataType.FLOAT, (columns,))))])


QUANTIZED: tuple[tuple[Callable[[ModelDraft], None], float], ...] = ((moved, 0.8), (products, 0.8))
"""The pieces, and how often each is taken beside others."""
