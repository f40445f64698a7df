"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain
from mugraph.ops.base import Operator, applied, operands, register, same_dtype
from mugraph.ops.forms import AttrMap, ForeignNode, OnnxForm, Reading, attributes_of
from mugraph.ops.traits import DegreeBound, ProductKind, Traits
from mugraph.terms.shape import Dim, Shape, ShapeError, TensorType, Undecided, Unequal, broadcast, same_dim, same_shape
from mugraph.terms.term import Term, const


def _infer_matmul(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """NumPy's matmul: batch dimensions broadcast, a vector is a row on the left and a column on the right."""
    a, b = inputs
    same_dtype(inputs)
    if a.dtype not in FLOATS | INTEGERS:
        raise ShapeError(f"MatMul of element type {a.dtype.name.lower()}")
    if not a.rank or not b.rank:
        raise ShapeError("MatMul of a scalar")
    left: Shape = a.shape if a.rank > 1 else (1, *a.shape)
    right: Shape = b.shape if b.rank > 1 else (*b.shape, 1)
    inner = same_dim(left[-1], right[-2])
    if inner is False:
        raise ShapeError(f"MatMul of {a} and {b}")
    if inner is None:
        raise Unequal(left[-1], right[-2])
    shape = broadcast([left[:-2], right[:-2]])
    shape += (left[-2],) if a.rank > 1 else ()
    shape += (right[-1],) if b.rank > 1 else ()
    return (TensorType(a.dtype, shape),)


def product_flops(output: TensorType, inner: Dim) -> int:
    """One multiplication and one addition per output entry and inner position."""
    if not isinstance(inner, int):
        raise Undecided(f"the operations of a product over {inner}")
    return 2 * output.size() * inner


_PRODUCT = Traits(product=ProductKind.MATRIX, degree=DegreeBound.MULTILINEAR, one_dtype=True, accumulates=True)

register(
    Operator(
        "MatMul",
        (2, 2),
        _infer_matmul,
        lambda domain, attrs, inputs: (domain.matmul(inputs[0], inputs[1]),),
        flops=lambda attrs, inputs, outputs: product_flops(outputs[0], inputs[0].shape[-1]),
        traits=_PRODUCT,
        samples=("MatMul(x, y) | x:[2,32,64] y:[64,48]",),
    )
)


def _transposed(type_: TensorType, flag: bool) -> TensorType:
    return TensorType(type_.dtype, type_.shape[::-1]) if flag else type_


def _infer_gemm(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    same_dtype(inputs)
    if inputs[0].rank != 2 or inputs[1].rank != 2:
        raise ShapeError("Gemm takes matrices")
    (product,) = _infer_matmul({}, [_transposed(inputs[0], attrs["transA"]), _transposed(inputs[1], attrs["transB"])])
    if len(inputs) == 3:
        fits = same_shape(broadcast([product.shape, inputs[2].shape]), product.shape)
        if fits is None:
            aligned = zip(inputs[2].shape[::-1], product.shape[::-1], strict=False)
            raise Undecided(f"whether {inputs[2]} broadcasts to {product}", list(aligned))
        if not fits:
            raise ShapeError("the addend of Gemm is larger than the product")
    return (product,)


def _gemm(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    a, b = (
        domain.move(lambda x: x.swapaxes(-1, -2), operand) if attrs[flag] else operand
        for operand, flag in zip(inputs, ("transA", "transB"), strict=False)
    )
    result = domain.matmul(a, b)
    if attrs["alpha"] != 1:
        result = domain.mul(domain.const(attrs["alpha"]), result)
    if len(inputs) == 3:
        addend = inputs[2] if attrs["beta"] == 1 else domain.mul(domain.const(attrs["beta"]), inputs[2])
        result = domain.add(result, addend)
    return (result,)


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": False, "transB": False}


def _read_gemm(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, **_GEMM)
    attrs = {name: type(default)(attributes[name]) for name, default in _GEMM.items()}
    inputs = tuple(i for i in range(len(node.types)) if node.present(i))
    if len(inputs) == 2:
        attrs["beta"] = 1.0
    return Reading(attrs, inputs)


def _write_gemm(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    inputs: tuple[int | np.ndarray, ...] = tuple(range(len(types)))
    if len(types) == 2 and opset < 11:  # the addend was not optional
        inputs += (np.zeros((1,), types[0].dtype.numpy()),)
    return OnnxForm("Gemm", inputs, {name: int(v) if isinstance(v, bool) else v for name, v in attrs.items()})


def _decompose_gemm(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    a, b, *addend = operands(len(types))
    a = applied("Transpose", a, perm=(1, 0)) if attrs["transA"] else a
    b = applied("Transpose", b, perm=(1, 0)) if attrs["transB"] else b
    result = applied("MatMul", a, b)
    if attrs["alpha"] != 1:
        result = applied("Mul", result, const(attrs["alpha"]))
    for term in addend:
        result = applied("Add", result, term if attrs["beta"] == 1 else applied("Mul", term, const(attrs["beta"])))
    return (result,)


register(
    Operator(
        "Gemm",
        (2, 3),
        _infer_gemm,
        _gemm,
        read=_read_gemm,
        write=_write_gemm,
        flops=lambda attrs, inputs, outputs: product_flops(outputs[0], inputs[0].shape[0 if attrs["transA"] else 1]),
        defaults=_GEMM,
        decomposition=_decompose_gemm,
        traits=_PRODUCT,
        samples=("Gemm(x, y, b) | x:[32,64] y:[64,48] b:[48]",),
    )
)
