"""Transposition and reshape through other operators, channels that stand last: the group ``layout``."""

from __future__ import annotations

from collections.abc import Mapping

from rulegen.workloads.windows import BATCH_FACTOR, BATCH_SUMMAND, GROUPS, VALID, batch, conv, pad
from rulegen.workloads.workload import Workload

__all__ = ["LAYOUT"]

_ENTRYWISE = (
    "Neg",
    "Abs",
    "Sqrt",
    "Exp",
    "Erf",
    "Tanh",
    "Sigmoid",
    "Relu",
    "LeakyRelu[alpha=0.125]",
    "Clip[max=6.0,min=0.0]",
    "Gelu[approximate='none']",
    "HardSwish",
    "HardSigmoid[alpha=0.125,beta=0.5]",
)


def _channels_last(
    name: str,
    variables: Mapping[str, str],
    operators: tuple[str, ...],
    max_ops: int,
    uses: Mapping[str, int],
    samples: int = 0,
    exponentials: bool = False,
    macros: bool = False,
) -> Workload:
    """Operators between a transposition of the channels behind the spatial axes and one back, as the operators without it."""
    return Workload(
        name=f"layout-{name}",
        variables=variables,
        operators=(*operators, "Transpose[perm=(1,2,0)](leaf)"),
        max_ops=max_ops,
        extend="all",
        uses={**dict.fromkeys(variables, 1), **uses},
        min_saving=2,
        max_rank=5,
        samples=samples,
        exponentials=exponentials,
        macros=macros,
        keep=frozenset({"perm", "axis"}),
        sizes=VALID,
    )


_POOLS = (
    *(("MaxPool", "", *window) for window in ((3, 2, 1), (3, 2, 0), (2, 2, 0), (3, 1, 1))),
    *(("AveragePool", "count_include_pad=false,", *window) for window in ((3, 1, 1), (3, 2, 1), (2, 2, 0))),
    ("AveragePool", "count_include_pad=true,", 3, 1, 1),
)
"""Pools of image models: operator, an attribute of averages, kernel, stride and pad."""


def _pool(name: str, more: str, kernel: int, stride: int, pad: int, last: str = "") -> str:
    """A pool over two axes, or over three of which the ``last`` is not pooled."""
    (one, zero), k, s, p = (",1", ",0") if last else ("", ""), kernel, stride, pad
    where = f"pads=({p},{p}{zero},{p},{p}{zero}),strides=({s},{s}{one})"
    return f"{name}[ceil=false,{more}dilations=(1,1{one}),kernel=({k},{k}{one}),{where}]"


def _resize(axes: str) -> str:
    """Twice as many rows and columns, each entry twice along both axes."""
    return f"Resize[axes=({axes}),coordinates='asymmetric',mode='nearest',rounding='floor',shape=(2*h,2*w)]"


def _group_norms(dtype: str) -> Workload:
    """Normalised groups of channels as exporters write them, with SiLU and without, by the operator for channels last."""
    groups = "InstanceNormalization[epsilon=1e-05,spatial=1](Reshape[drop=3,shape=(g,2*k*h*w)](x), s, t)"
    plain = f"Add(Mul(Reshape[drop=2,shape=(2*g*k,h,w)]({groups}), f), b)"
    scale, bias = (
        f"Cast[to=float](Reshape[drop=2,shape=(2*g*k)](Expand[shape=(g,2*k)](Unsqueeze[axes=(-1,)]({each}))))" for each in "st"
    )
    factor, summand = (f"Cast[to=float](Squeeze[axes=(-2,-1)]({each}))" for each in "fb")
    parameters = f"Mul({scale}, {factor}), Add(Mul({bias}, {factor}), {summand})"
    normal, activated = (
        f"Transpose[perm=(2,0,1)](GroupNorm[epsilon=1e-05,group=g,silu={silu}](Transpose[perm=(1,2,0)](x), {parameters}))"
        for silu in ("false", "true")
    )
    image, vectors = f"{dtype}[n,2*g*k,h,w]", dict.fromkeys("st", f"{dtype}[g]")
    return Workload(
        name=f"layout-groups-{dtype}",
        variables={"x": image, **vectors, **dict.fromkeys("fb", f"{dtype}[2*g*k,1,1]")},
        operators=(),
        max_ops=0,
        samples=4,
        sizes=GROUPS,
        keep=frozenset({"perm"}),
        open_numbers=True,
        equations=(
            f"{plain} = {normal}",
            f"QuickGelu[alpha=1.0]({plain}) = {activated}",
        ),
    )


def _group_normalization(dtype: str) -> Workload:
    """ONNX's own operator in channels last, with SiLU and without."""
    plain, parameters = "GroupNormalization[epsilon=1e-05,group=g,spatial=2](x, s, b)", "Cast[to=float](s), Cast[to=float](b)"
    equations = []
    for silu in (False, True):
        last = f"GroupNorm[epsilon=1e-05,group=g,silu={str(silu).lower()}](Transpose[perm=(1,2,0)](x), {parameters})"
        equations.append(f"{f'QuickGelu[alpha=1.0]({plain})' if silu else plain} = Transpose[perm=(2,0,1)]({last})")
    return Workload(
        name=f"layout-group-normalization-{dtype}",
        variables={"x": f"{dtype}[n,2*g*k,h,w]", **dict.fromkeys("sb", f"{dtype}[2*g*k]")},
        operators=(),
        max_ops=0,
        samples=4,
        sizes=GROUPS,
        keep=frozenset({"perm"}),
        open_numbers=True,
        equations=tuple(equations),
    )


LAYOUT = (
    Workload(
        name="layout",
        variables={"x": "[a,b,c]", "y": "[a,b,c]", "s": "[]"},
        operators=(
            "Mul(any, any)",
            "Add(any, any)",
            "Sub(any, any)",
            "Div(any, leaf)",
            "Neg(any)",
            "Sigmoid(any)",
            "Tanh(any)",
            "Relu(any)",
            "Transpose[perm=(1,0)](any)",
            "Transpose[perm=(1,0,2)](any)",
            "Transpose[perm=(2,0,1)](any)",
            "Transpose[perm=(1,2,0)](any)",
            "Transpose[perm=(2,1,0)](any)",
            "Reshape[drop=2,shape=(b*c)](any)",
            "Reshape[drop=1,shape=(b,c)](any)",
        ),
        uses={"x": 1, "y": 1, "s": 1},
        max_ops=3,
    ),
    _channels_last(
        "conv",
        {"x": "[n,c,h,w]", "W": "[d,c,3,3]", "b": "[d]", "z": "[n,d,h,w]"},
        (
            f"{conv()}(x, W)",
            f"{conv()}(x, W, b)",
            f"Fused{conv()}(x, W)",
            f"Fused{conv()}(x, W, b)",
            "FusedConv[dilations=(1,1),group=1,pads=(1,1,1,1),residual=true,strides=(1,1)](x, W, b, z)",
            f"Nhwc{conv()}(of_wxc, of_3xc)",
            f"Nhwc{conv()}(of_wxc, of_3xc, rank1)",
            "Add(of_wxd, of_wxd)",
            "Relu(of_wxd)",
            "Transpose[perm=(2,0,1)](of_wxd)",
        ),
        7,
        {"Transpose": 4, "Relu": 1, "Add": 1, "Conv": 1, "FusedConv": 1, "NhwcConv": 1},
    ),
    _channels_last(
        "unary",
        {"x": "[n,c,h,w]"},
        (*(f"{function}({slot})" for function in _ENTRYWISE for slot in ("x", "of_wxc")), "Transpose[perm=(2,0,1)](of_wxc)"),
        3,
        {"Transpose": 2},
        macros=True,
    ),
    _channels_last(
        "binary",
        {"x": "[n,c,h,w]", "y": "[n,c,h,w]", "s": "[]"},
        (
            *(f"{name}({slots})" for name in ("Add", "Sub", "Mul", "Div") for slots in ("x, y", "of_wxc, of_wxc")),
            *(f"{name}({slot}, s)" for name in ("Add", "Sub", "Mul", "Div", "Pow") for slot in ("x", "of_wxc")),
            *(f"{name}(s, {slot})" for name in ("Sub", "Div") for slot in ("x", "of_wxc")),
            "Transpose[perm=(2,0,1)](of_wxc)",
        ),
        4,
        {"Transpose": 3},
        macros=True,
    ),
    _channels_last(
        "concat",
        dict.fromkeys("xyzuv", "[n,c,h,w]"),
        (
            *(f"Concat[axis=-3]({', '.join('xyzuv'[:count])})" for count in (2, 3, 4, 5)),
            *(f"Concat[axis=-1]({', '.join(['of_wxc'] * count)})" for count in (2, 3, 4, 5)),
            *(f"Transpose[perm=(2,0,1)](of_wx{count}c)" for count in (2, 3, 4, 5)),
        ),
        7,
        {"Transpose": 6, "Concat": 1},
    ),
    _channels_last(
        "split",
        {"x": "[n,c+d,h,w]"},
        (
            "Split[axis=-3,sizes=(c,d)](x)",
            "Split[axis=-1,sizes=(c,d)](rank4)",
            *(f"Transpose[perm=(2,0,1)](of_wx{channels})" for channels in "cd"),
        ),
        3,
        {"Transpose": 2, "Split": 1},
    ),
    _channels_last(
        "pool",
        {"x": "[n,c,5,6]"},
        (
            *(f"{_pool(*pool)}(x)" for pool in _POOLS),
            *(f"{_pool(*pool, last='c')}(rank5)" for pool in _POOLS),
            "Unsqueeze[axes=(-4,)](of_6xc)",
            "Squeeze[axes=(-4,)](rank5)",
            "Transpose[perm=(2,0,1)](rank4)",
        ),
        5,
        {"Transpose": 2, "MaxPool": 1, "AveragePool": 1},
        samples=16,
    ),
    _channels_last(
        "reduce",
        {"x": "[n,c,h,w]"},
        (
            *(f"{name}[axes=(-2,-1),keepdims=true](x)" for name in ("ReduceMean", "ReduceMax", "ReduceSum")),
            *(f"{name}[axes=(-3,-2),keepdims=true](of_wxc)" for name in ("ReduceMean", "ReduceMax", "ReduceSum")),
            "Softmax[axis=-3](x)",
            "Softmax[axis=-1](of_wxc)",
            f"{pad(1)}(x)",
            "Pad[begins=(1,1,0),ends=(1,1,0),mode='constant',value=0.0](of_wxc)",
            "Transpose[perm=(2,0,1)](rank4)",
        ),
        3,
        {"Transpose": 2},
        exponentials=True,
    ),
    _channels_last(
        "global",
        {"x": "[n,c,h,w]"},
        (
            "GlobalAveragePool[spatial=2](x)",
            "GlobalMaxPool[spatial=2](x)",
            *(f"{name}[axes=(-3,-2),keepdims=true](of_wxc)" for name in ("ReduceMean", "ReduceMax")),
            "Transpose[perm=(2,0,1)](of_1xc)",
        ),
        3,
        {"Transpose": 2},
    ),
    # A BatchNormalization that no convolution takes in, by what is computed of its statistics alone: a factor and a summand.
    Workload(
        name="layout-batch",
        variables={"x": "[n,c,h,w]", "g": "[c]", "b": "[c]", "u": "[c]", "v": "[c]"},
        operators=(),
        max_ops=0,
        samples=4,
        sizes=VALID,
        keep=frozenset({"perm"}),
        open_numbers=True,
        equations=(
            f"Transpose[perm=(2,0,1)](Add(Mul(Transpose[perm=(1,2,0)](x), {BATCH_FACTOR}), {BATCH_SUMMAND})) = {batch('x')}",
        ),
    ),
    *map(_group_norms, ("float", "float16")),
    *map(_group_normalization, ("float", "float16")),
    # Entries that are repeated along the spatial axes.
    _channels_last(
        "resize",
        {"x": "[n,c,h,w]"},
        (f"{_resize('-2,-1')}(x)", f"{_resize('-3,-2')}(of_wxc)", "Transpose[perm=(2,0,1)](rank4)"),
        3,
        {"Transpose": 2},
    ),
    # The transposed product (TASO, figure 5), and products whose kernel takes an operand transposed.
    Workload(
        name="layout-turned",
        variables={"X": "[m,k]", "W": "[k,n]"},
        operators=("MatMul(any, any)", "Transpose[perm=(1,0)](any)"),
        max_ops=4,
        extend="all",
        uses={"X": 1, "W": 1, "Transpose": 3},
        min_saving=3,
    ),
    Workload(
        name="layout-product",
        variables={"X": "[m,k]", "W": "[k,n]"},
        operators=(
            "MatMul(any, any)",
            *(
                f"FusedMatMul[alpha=1.0,transA={a},transB={b},transBatchA=0,transBatchB=0](any, any)"
                for a, b in (("false", "true"), ("true", "false"), ("true", "true"))
            ),
            "Transpose[perm=(1,0)](leaf)",
        ),
        max_ops=3,
        uses={"X": 1, "W": 1},
        min_saving=1,
    ),
)
