"""Weights of four and eight bits in blocks: dequantised and multiplied, or onnxruntime's MatMulNBits: the group ``packed``."""

from __future__ import annotations

from rulegen.workloads.workload import Workload

__all__ = ["PACKED"]

_NARROW = ("int4", "uint4", "int8", "uint8")
_PACKED = "MatMulNBits[accuracy_level=0,asymmetric={},block=2]({})".format
_BLOCKS = "DequantizeLinear[axis={},block=2]({})".format


def _packed(dtype: str) -> Workload:
    """Products with weights in blocks as onnxruntime has them, by what ONNX says they are, and with a bias in them.

    What is found of accuracy level 0 goes both ways; from the operator of another one there is no way back.
    """
    q, s, z = map("Transpose[perm=(1,0)]({})".format, "qsz")
    return Workload(
        name=f"packed-{dtype}",
        variables={
            "x": "[m,2*g]",
            "q": f"{dtype}[2*g,n]",
            "s": "[g,n]",
            "z": f"{dtype}[g,n]",
            "r": f"{dtype}[2*g,p]",
            "t": "[g,p]",
            "u": f"{dtype}[g,p]",
        },
        operators=(),
        max_ops=0,
        keep=frozenset({"accuracy_level", "asymmetric", "axis"}),
        equations=(
            f"MatMul(x, {_BLOCKS(-2, 'q, s')}) = {_PACKED('false', f'x, {q}, {s}')}",
            f"MatMul(x, {_BLOCKS(-2, 'q, s, z')}) = {_PACKED('true', f'x, {q}, {s}, {z}')}",
            f"Concat[axis=-1]({_BLOCKS(-2, 'q, s')}, {_BLOCKS(-2, 'r, t')})"
            f" = {_BLOCKS(-2, 'Concat[axis=-1](q, r), Concat[axis=-1](s, t)')}",
            f"Concat[axis=-1]({_BLOCKS(-2, 'q, s, z')}, {_BLOCKS(-2, 'r, t, u')})"
            f" = {_BLOCKS(-2, 'Concat[axis=-1](q, r), Concat[axis=-1](s, t), Concat[axis=-1](z, u)')}",
        ),
    )


def _packed_rows(dtype: str) -> Workload:
    """The same of weights that have a row for each column of the result; a bias in the product, whatever its accuracy level."""
    return Workload(
        name=f"packed-rows-{dtype}",
        variables={"x": "[m,2*g]", "q": f"{dtype}[n,2*g]", "s": "[n,g]", "z": f"{dtype}[n,g]", "b": "[n]"},
        operators=(),
        max_ops=0,
        keep=frozenset({"asymmetric", "axis"}),
        equations=(
            f"MatMul(x, Transpose[perm=(1,0)]({_BLOCKS(-1, 'q, s')})) = {_PACKED('false', 'x, q, s')}",
            f"MatMul(x, Transpose[perm=(1,0)]({_BLOCKS(-1, 'q, s, z')})) = {_PACKED('true', 'x, q, s, z')}",
            f"Add({_PACKED('false', 'x, q, s')}, b) = {_PACKED('false', 'x, q, s, b')}",
            f"Add({_PACKED('true', 'x, q, s, z')}, b) = {_PACKED('true', 'x, q, s, z, b')}",
        ),
    )


def _packed_products(dtype: str, asymmetric: bool, biased: bool) -> Workload:
    """Several products of one operand with weights in blocks, such as gate and up, are one."""
    pairs = ("qr", "st", *(("zy",) if asymmetric else ()), *(("bc",) if biased else ()))
    variables = {
        "x": "[m,2*g]",
        "q": f"{dtype}[n,2*g]",
        "s": "[n,g]",
        "z": f"{dtype}[n,g]",
        "r": f"{dtype}[p,2*g]",
        "t": "[p,g]",
        "y": f"{dtype}[p,g]",
        "b": "[n]",
        "c": "[p]",
    }
    operands = ", ".join(("x", "rank2", "rank2", *(("rank2",) if asymmetric else ()), *(("rank1",) if biased else ())))
    return Workload(
        name=f"packed-products-{dtype}{'-asymmetric' * asymmetric}{'-biased' * biased}",
        variables={name: variables[name] for name in "".join(("x", *pairs))},
        operators=(
            _PACKED(str(asymmetric).lower(), operands),
            *(f"Concat[axis={-1 if pair == 'bc' else -2}]({', '.join(pair)})" for pair in pairs),
            "Split[axis=-1,sizes=(n,p)](rank2)",
        ),
        uses=dict.fromkeys("".join(pairs), 1) | {"x": 2, "Split": 1},
        max_ops=2 + len(pairs),
        keep=frozenset({"asymmetric", "axis"}),
        macros=True,
    )


PACKED = (
    *map(_packed, _NARROW),
    *map(_packed_rows, _NARROW),
    *(
        _packed_products(dtype, asymmetric, biased)
        for dtype in _NARROW
        for asymmetric in (False, True)
        for biased in (False, True)
    ),
)
