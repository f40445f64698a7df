"""Products with weights of four or eight bits that stand packed in the file: onnxruntime's MatMulNBits.

The right factor is a matrix of whole numbers, a row for each column of the result, as ``DequantizeLinear`` in blocks along the
rows takes it. In the file the same numbers are bytes (:class:`mugraph.ops.forms.Packed`), so they have to be constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mugraph.domains.base import BYTES, NIBBLES
from mugraph.ops.base import applied, operands
from mugraph.ops.composite import NARROW, RUNTIME_DOMAIN, define, expect_shape
from mugraph.ops.forms import (
    AttrMap,
    Contract,
    ForeignNode,
    FormInput,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Packed,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.ops.traits import Traits
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import Term

__all__: list[str] = []

_SIGNED = {4: DataType.INT4, 8: DataType.INT8}
_UNSIGNED = {4: DataType.UINT4, 8: DataType.UINT8}
_LEAST_BLOCK = 16
_INPUTS = ("A", "B", "scales", "zero_points", "g_idx", "bias")
_GROUPS, _BIAS = 4, 5


def _decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, q, scale, *others = operands(len(types))
    zeros, bias = others[: attrs["asymmetric"]], others[attrs["asymmetric"] :]
    weights = applied("DequantizeLinear", q, scale, *zeros, axis=-1, block=attrs["block"])
    product = applied("MatMul", x, applied("Transpose", weights, perm=(1, 0)))
    return (applied("Add", product, *bias) if bias else product,)


def _check(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    x, q, scale, *others = types
    block, count = attrs["block"], int(attrs["asymmetric"])
    if q.dtype not in NIBBLES | BYTES or q.rank != 2 or x.rank < 2 or x.dtype not in NARROW or scale.dtype != x.dtype:
        raise ShapeError(f"MatMulNBits of {', '.join(map(str, types))}")
    if block < 1:
        raise ShapeError(f"MatMulNBits in blocks of {block}")
    if len(others) not in (count, count + 1):
        raise ShapeError(
            f"MatMulNBits with {len(others)} operands beside its weights and scales, asymmetric={attrs['asymmetric']}"
        )
    for bias in others[count:]:
        expect_shape("MatMulNBits", bias, q.shape[:1], x.dtype)


def _read(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, K=None, N=None, bits=4, block_size=None, accuracy_level=0)
    columns, rows, bits, block = (attributes[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in _SIGNED or None in (columns, rows, block) or min(columns, rows, block) < 1:
        raise NotUnderstood(f"MatMulNBits of {bits} bits, K {columns}, N {rows}, in blocks of {block}")
    if node.present(_GROUPS):
        raise NotUnderstood("MatMulNBits with g_idx: its blocks are not of neighbours")
    if len(node.types) > len(_INPUTS):
        raise NotUnderstood(f"MatMulNBits with {len(node.types)} inputs")
    blocks = -(-columns // block)
    zeros = node.present(3)
    dtype = (_UNSIGNED if zeros else _SIGNED)[bits]
    inputs: list[int | Packed] = [0, _packed(node, 1, TensorType(dtype, (rows, columns)), (rows, blocks, block * bits // 8))]
    scales = TensorType(type_of(node, 2).dtype, (rows, blocks))
    inputs.append(2 if type_of(node, 2).rank == 2 else _packed(node, 2, scales, (rows, blocks)))
    if zeros:
        inputs.append(_packed(node, 3, TensorType(dtype, (rows, blocks)), (rows, -(-blocks * bits // 8))))
    if node.present(_BIAS):
        inputs.append(_BIAS)
    return Reading({"accuracy_level": attributes["accuracy_level"], "block": block, "asymmetric": zeros}, tuple(inputs))


def _packed(node: ForeignNode, index: int, type_: TensorType, stored: tuple[int, ...]) -> Packed:
    """An input whose bytes stand for a matrix; they may stand in another shape. Raises NotUnderstood."""
    given = type_of(node, index)
    of = type_.dtype if index == 2 else DataType.UINT8
    if given.dtype != of or any(not isinstance(dim, int) for dim in given.shape) or given.size() != int(np.prod(stored)):
        wanted = f"{of.name.lower()}[{','.join(map(str, stored))}]"
        raise NotUnderstood(f"MatMulNBits with {_INPUTS[index]} {given}, not {wanted}")
    return Packed(index, type_, tuple(integers(given.shape, "packed weights").tolist()))


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """Unsigned numbers have zero points in ONNX, or half of their range stands for zero."""
    q, bits, block = types[1], types[1].dtype.bitwidth, attrs["block"]
    if block < _LEAST_BLOCK or block & (block - 1):
        raise NotExpressible(f"MatMulNBits in blocks of {block}; onnxruntime wants a power of two from {_LEAST_BLOCK} on")
    rows, columns = integers(q.shape, "the weights of MatMulNBits").tolist()
    blocks = -(-columns // block)
    of_zeros = (rows, -(-blocks * bits // 8))
    zeros: FormInput = None
    if attrs["asymmetric"]:
        zeros = Packed(3, types[3], of_zeros)
    elif q.dtype in _UNSIGNED.values():
        zeros = np.zeros(of_zeros, np.uint8)
    bias = len(types) - 1 if len(types) > 3 + attrs["asymmetric"] else None
    weights = Packed(1, q, (rows, blocks, block * bits // 8))
    attributes = {"K": columns, "N": rows, "bits": bits, "block_size": block, "accuracy_level": attrs["accuracy_level"]}
    return OnnxForm("MatMulNBits", (0, weights, 2, zeros, None, bias), attributes, RUNTIME_DOMAIN)


_STORED = frozenset({DataType.UINT8})
_SAMPLE = "x:[2,3,64] W:{0}[48,64] S:[48,2]"

define(
    "MatMulNBits",
    (3, 5),
    _decompose,
    check=_check,
    read=_read,
    write=_write,
    contract=Contract(
        "MatMulNBits",
        RUNTIME_DOMAIN,
        frozenset({"K", "N", "bits", "block_size", "accuracy_level"}),
        (NARROW, _STORED, NARROW, _STORED, frozenset({DataType.INT32}), NARROW),
    ),
    vectors=lambda attrs, count: [count - 1] if count > 3 + attrs["asymmetric"] else [],
    traits=Traits(accumulates=True),
    samples=(
        f"MatMulNBits[block=32](x, W, S) | {_SAMPLE.format('int4')}",
        f"MatMulNBits[block=32,asymmetric=true](x, W, S, Z, B) | {_SAMPLE.format('uint4')} Z:uint4[48,2] B:[48]",
        f"MatMulNBits[block=32](x, W, S, B) | {_SAMPLE.format('int8')} B:[48]",
        f"MatMulNBits[block=32,asymmetric=true](x, W, S, Z) | {_SAMPLE.format('uint8')} Z:uint8[48,2]",
    ),
    defaults={"accuracy_level": 0, "asymmetric": False},
)
