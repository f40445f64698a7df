"""Quantised tensors: movements past the inverse of quantisation, what cancels, products of integers: the group ``quantized``."""

from __future__ import annotations

from rulegen.workloads.workload import Workload

__all__ = ["QUANTIZED"]

_BYTES = ("uint8", "int8")


_MOVES = (
    "Transpose[perm=(1,0)]({})",
    "Reshape[drop=2,shape=(6,)]({})",
    "Unsqueeze[axes=(-1,)]({})",
    "Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)]({})",
    "Split[axis=-1,sizes=(1,2)].0({})",
    "Split[axis=-1,sizes=(1,2)].1({})",
    "Gather[axis=-3]({}, i)",
)
"""What moves the entries of one tensor. Sizes are numbers here, which become attribute variables of the rules."""


def _moves(dtype: str) -> Workload:
    """What moves entries, before and after one scale and zero point are taken off; bytes are four times faster to move."""
    number = "DequantizeLinear[axis=0]({}, {})".format
    return Workload(
        name=f"quantized-{dtype}",
        variables={"x": f"{dtype}[a,2,3]", "y": f"{dtype}[a,2,3]", "s": "[]", "z": f"{dtype}[]", "i": "int64[b]"},
        operators=(),
        max_ops=0,
        equations=tuple(
            equation
            for rest in ("s", "s, z")
            for equation in (
                *(f"{move.format(number('x', rest))} = {number(move.format('x'), rest)}" for move in _MOVES),
                f"Concat[axis=-1]({number('x', rest)}, {number('y', rest)}) = {number('Concat[axis=-1](x, y)', rest)}",
                f"QuantizeLinear[axis=0,to={dtype}]({number('x', rest)}, {rest}) = x",
            )
        ),
    )


_PRODUCTS = {
    "x": "uint8[m,k]",
    "f": "[m,k]",
    "v": "int8[k,n]",
    "w": "int8[k,p]",
    "s": "[]",
    "z": "uint8[]",
    "q": "[]",
    "t": "[n]",
    "u": "[p]",
    "b": "[n]",
    "c": "[p]",
}


def _scaled(scale: str, product: str = "MatMulInteger[zeros=('a',)](x, v, z)") -> str:
    return f"Mul(Cast[to=float]({product}), Mul(s, {scale}))"


def _to_float(columns: str, scale: str, bias: str = "") -> str:
    return f"MatMulIntegerToFloat[per_column={columns},zeros=('a',)](x, v, s, {scale}, z{bias})"


def _spread(bias: str = "") -> str:
    """One scale as that of each column, so that products with different ones can be merged."""
    return f"{_to_float('false', 'q', bias)} = {_to_float('true', 'Expand[shape=(n,)](q)', bias)}"


def _dynamic(columns: str, scale: str, bias: str = "") -> tuple[str, str]:
    """Both sides: onnxruntime's dynamically quantised product, and what it makes it of."""
    q = "DynamicQuantizeLinear[axis=-2]"
    apart = f"MatMulIntegerToFloat[per_column={columns},zeros=('a',)]({q}.0(f), v, {q}.1(f), {scale}, {q}.2(f){bias})"
    return apart, f"DynamicQuantizeMatMul[axis=-2,per_column={columns},zeros=()](f, v, {scale}{bias})"


QUANTIZED = (
    *map(_moves, _BYTES),
    Workload(
        name="quantized",
        variables={"x": "[m,n]", "s": "[]"},
        operators=(),
        max_ops=0,
        equations=("QuantizeLinear[axis=0,to=uint8](Relu(x), s) = QuantizeLinear[axis=0,to=uint8](x, s)",),
    ),
    # onnxruntime makes these of what exporters write when it loads a model.
    Workload(
        name="quantized-spelling",
        variables=_PRODUCTS,
        operators=(),
        max_ops=0,
        keep=frozenset({"per_column", "zeros"}),
        equations=(
            *(f"{_scaled(scale)} = {_to_float(columns, scale)}" for columns, scale in (("false", "q"), ("true", "t"))),
            *(
                f"Add({_to_float(columns, scale)}, b) = {_to_float(columns, scale, ', b')}"
                for columns, scale in (("false", "q"), ("true", "t"))
            ),
            _spread(),
            _spread(", b"),
            *(f"Add({_dynamic(*scale)[1]}, b) = {_dynamic(*scale, ', b')[1]}" for scale in (("false", "q"), ("true", "t"))),
            *(
                " = ".join(_dynamic(*options))
                for options in (("false", "q"), ("true", "t"), ("false", "q", ", b"), ("true", "t", ", b"))
            ),
        ),
    ),
    # Several products of one operand, such as queries, keys and values, are one.
    *(
        Workload(
            name=f"quantized-{name}",
            variables={variable: _PRODUCTS[variable] for variable in "".join(("xsz", *pairs))},
            operators=(product, *(f"Concat[axis=-1]({', '.join(pair)})" for pair in pairs), "Split[axis=-1,sizes=(n,p)](rank2)"),
            uses=dict.fromkeys("".join(pairs), 1) | dict.fromkeys("xsz", 2) | {"Split": 1},
            max_ops=2 + len(pairs),
            keep=frozenset({"axis", "per_column", "zeros"}),
            macros=True,
        )
        for name, product, pairs in (
            ("products", "MatMulInteger[zeros=('a',)](x, rank2, z)", ("vw",)),
            ("scaled", "MatMulIntegerToFloat[per_column=true,zeros=('a',)](x, rank2, s, rank1, z)", ("vw", "tu")),
            ("biased", "MatMulIntegerToFloat[per_column=true,zeros=('a',)](x, rank2, s, rank1, z, rank1)", ("vw", "tu", "bc")),
        )
    ),
)
