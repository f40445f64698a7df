"""TASO's operators under ONNX's semantics, and TASO's own space: the groups ``taso`` and ``taso-paper``."""

from __future__ import annotations

from rulegen.workloads.windows import average_pool, conv, max_pool
from rulegen.workloads.workload import Workload

__all__ = ["TASO", "TASO_PAPER"]

_KERNELS = {"3x3": (1, 1), "1x1": (0, 0), "1x3": (0, 1)}
"""Kernels of TASO's space and the padding that keeps the size."""


TASO_PAPER = Workload(
    name="taso-paper",
    variables=dict.fromkeys("ABCD", "[m,m]")
    | dict.fromkeys("xyzt", "[n,c,h,w]")
    | dict.fromkeys("KLMN", "[c,c,3,3]")
    | dict.fromkeys("EFGH", "[c,c,1,1]")
    | dict.fromkeys("UVWX", "[c,c,1,3]")
    | dict.fromkeys("pqrs", "[]")
    | dict.fromkeys("YZ", "[m,2*m]"),
    operators=(
        "Relu(tensor)",
        "Transpose[perm=(1,0)](rank2)",
        "Mul(any, scalar)",
        "Add(same, same)",
        "Mul(same, same)",
        "MatMul(rank2, rank2)",
        *(
            f"{name}[dilations=(1,1),group=1,pads=({a},{b},{a},{b}),strides=(1,1)](of_hxw, of_{kernel})"
            for name in ("Conv", "FusedConv")
            for kernel, (a, b) in _KERNELS.items()
        ),
        "Conv[dilations=(1,1),group=c,pads=(1,1,1,1),strides=(1,1)](of_hxw, of_3x3)",
        f"{average_pool()}(of_hxw)",
        f"{max_pool()}(of_hxw)",
        "Pad[begins=(1,1),ends=(1,1),mode='constant',value=0.0](of_1x1)",
        "Pad[begins=(1,0),ends=(1,0),mode='constant',value=0.0](of_1x3)",
        "Concat[axis=-1](rank2, rank2)",
        "Concat[axis=-2](rank2, rank2)",
        "Concat[axis=-3](rank4, rank4)",
        "Concat[axis=-4](rank4, rank4)",
        "Split[axis=-1,sizes=(m,m)](rank2)",
        "Split[axis=-2,sizes=(m,m)](rank2)",
        "Split[axis=-3,sizes=(c,c)](rank4)",
        "Split[axis=-4,sizes=(c,c)](rank4)",
        "Split[axis=-4,sizes=(n,n)](rank4)",
    ),
    constants=(
        "Eye[size=m]()",
        "Ones[shape=(m,m)]()",
        "Ones[shape=(n,c,h,w)]()",
        *(f"IdentityKernel[channels=c,kernel=({kernel.replace('x', ',')})]()" for kernel in _KERNELS),
        "AveragingKernel[channels=c,kernel=(3,3)]()",
    ),
    max_ops=3,
    sizes={"m": (2, 4, 3, 3), "n": (1, 2, 1, 1), "c": (3, 2, 2, 2), "h": (3, 5, 2, 1), "w": (2, 2, 6, 3)},
    samples=1,
    max_entries=400,
    ships=False,
)


TASO = (
    Workload(
        name="taso",
        variables={
            "A": "[m,m]",
            "B": "[m,m]",
            "C": "[m,m]",
            "x": "[n,2*c,5,6]",
            "y": "[n,2*c,5,6]",
            "W": "[2*c,2*c,3,3]",
            "V": "[2*c,2*c,3,3]",
            "G": "[2*c,c,3,3]",
            "H": "[2*c,c,3,3]",
            "D": "[2*c,1,3,3]",
            "E": "[2*c,1,3,3]",
            "s": "[]",
            "t": "[]",
        },
        operators=(
            "MatMul(rank2, rank2)",
            "Transpose[perm=(1,0)](rank2)",
            "Mul(tensor, scalar)",
            "Add(same, same)",
            "Mul(same, same)",
            "Relu(tensor)",
            *(
                f"{conv(group, pad, stride)}(of_5x6, of_3x3)"
                for group, pad, stride in (
                    ("1", 1, 1),
                    ("1", 0, 1),
                    ("1", 1, 2),
                    ("1", 0, 2),
                    ("2", 1, 1),
                    ("2", 0, 2),
                    ("2*c", 1, 1),
                    ("2*c", 1, 2),
                )
            ),
            *(f"{max_pool(pad, stride)}(of_5x6)" for pad, stride in ((1, 1), (0, 2))),
            *(
                f"{average_pool(pad, stride, count)}(of_5x6)"
                for pad, stride, count in ((1, 1, True), (1, 1, False), (0, 2, False), (1, 2, True))
            ),
            "Concat[axis=-1](same, same)",
            "Concat[axis=-2](same, same)",
            "Concat[axis=-3](same, same)",
            "Concat[axis=-4](same, same)",
            "Split[axis=-1,sizes=(m,m)](rank2)",
            "Split[axis=-2,sizes=(m,m)](rank2)",
            "Split[axis=-3,sizes=(2*c,2*c)](rank4)",
            "Split[axis=-4,sizes=(2*c,2*c)](rank4)",
            "Split[axis=-4,sizes=(n,n)](rank4)",
        ),
        constants=("AveragingKernel[channels=2*c,kernel=(3,3)]()",),
        uses={**dict.fromkeys("BCyVHEst", 1), **dict.fromkeys("AxWGD", 2), "Relu": 2, "Concat": 2},
        sizes={"m": (2, 3, 4), "n": (1, 2, 1), "c": (1, 2, 1)},
        samples=8,
    ),
    # Sums, products and factors of what is concatenated, in general: two parts on each side, four variables. What is added to
    # itself is doubled, and as a factor that passes through all products.
    Workload(
        name="taso-parts",
        variables={"x": "[m,n]", "y": "[m,n]", "z": "[m,k]", "w": "[m,k]", "u": "[p,n]", "v": "[p,k]", "s": "[]", "f": "[m,1]"},
        operators=(
            "Add(same, same)",
            "Mul(same, same)",
            "Mul(tensor, s)",
            "Mul(tensor, f)",
            "Mul(tensor, 2.0)",
            "Concat[axis=-1](rank2, rank2)",
            "Concat[axis=-2](rank2, rank2)",
        ),
        uses={**dict.fromkeys("yzwuvf", 1), **dict.fromkeys("xs", 2), "Add": 2, "Mul": 2, "Concat": 3},
        max_rank=2,
    ),
    # What meets TASO's constants. A model holds none of them, but weights may take them over.
    Workload(
        name="taso-constants",
        variables={
            "A": "[m,m]",
            "B": "[m,m]",
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "K": "[c,c,3,3]",
            "U": "[c,c,1,3]",
            "s": "[]",
        },
        operators=(
            "MatMul(rank2, rank2)",
            "Transpose[perm=(1,0)](rank2)",
            "Mul(tensor, scalar)",
            "Add(same, same)",
            "Mul(same, same)",
            f"{conv()}(of_hxw, of_3x3)",
            f"{conv('c')}(of_hxw, of_3x3)",
            "Conv[dilations=(1,1),group=1,pads=(0,1,0,1),strides=(1,1)](of_hxw, of_1x3)",
            "Pad[begins=(1,0),ends=(1,0),mode='constant',value=0.0](of_1x3)",
            f"{average_pool()}(rank4)",
            # A kernel as an image: the identity kernel mirrors the one that it meets.
            f"{conv()}(of_3x3, of_3x3)",
            "Conv[dilations=(1,1),group=1,pads=(0,1,0,1),strides=(1,1)](of_3x3, of_1x3)",
            "Relu(of_3x3)",
        ),
        constants=(
            "Eye[size=m]()",
            "Ones[shape=(m,m)]()",
            "Ones[shape=(n,c,h,w)]()",
            "IdentityKernel[channels=c,kernel=(3,3)]()",
            "AveragingKernel[channels=c,kernel=(3,3)]()",
        ),
        max_ops=2,
        sizes={"m": (2, 4, 3), "n": (1, 2, 1), "c": (3, 2, 2), "h": (3, 5, 2), "w": (2, 2, 6)},
        samples=4,
        max_entries=400,
    ),
)
