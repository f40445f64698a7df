"""Division, roots, means and the normalisations: the group ``normal``."""

from __future__ import annotations

from rulegen.workloads.windows import BATCH_FACTOR, BATCH_SUMMAND, GROUPS, SPATIAL, batch
from rulegen.workloads.workload import Workload

__all__ = ["NORMAL"]

_ROWS = "Reshape[drop=3,shape=(l*m,p)]"


def _folded_batch(x: str) -> str:
    """A product with the weights W, normalised: a product with scaled weights, and a bias."""
    return f"Add(MatMul({x}, Mul(W, {BATCH_FACTOR})), {BATCH_SUMMAND})"


def _groups(dtype: str, *spatial: str) -> Workload:
    """ONNX's normalised groups of channels, which no kernel computes, as channels that are normalised each."""
    axes = ",".join(str(axis) for axis in range(-len(spatial), 0)) + "," * (len(spatial) == 1)
    ones = f"Cast[to={dtype}](Ones[shape=(g,)]())"
    rows = f"Reshape[drop={len(spatial) + 1},shape=(g,{'*'.join(('k', *spatial))})](x)"
    normal = f"InstanceNormalization[epsilon=1e-05,spatial=1]({rows}, {ones}, Mul({ones}, 0.0))"
    back = f"Reshape[drop=2,shape=(g*k,{','.join(spatial)})]({normal})"
    whole = f"GroupNormalization[epsilon=1e-05,group=g,spatial={len(spatial)}](x, s, b)"
    return Workload(
        name=f"normal-groups-{len(spatial)}-{dtype}",
        variables={"x": f"{dtype}[n,g*k,{','.join(spatial)}]", **dict.fromkeys("sb", f"{dtype}[g*k]")},
        operators=(),
        max_ops=0,
        samples=4,
        sizes=GROUPS,
        keep=frozenset({"to"}),
        open_numbers=True,
        equations=(f"{whole} = Add(Mul({back}, Unsqueeze[axes=({axes})](s)), Unsqueeze[axes=({axes})](b))",),
    )


NORMAL = (
    Workload(
        name="normal",
        variables={"x": "[m,n]", "y": "[m,n]", "z": "[m,n+p]", "W": "[n,p]", "f": "[m,1]", "g": "[n]", "s": "[]"},
        operators=(
            "Unsqueeze[axes=(-1,)](g)",
            "MatMul(any, any)",
            "Mul(same, same)",
            *(f"{op}(tensor, {v})" for op in ("Mul", "Div") for v in "sfg"),
            "Div(same, same)",
            "Mul(W, any)",
            "Div(W, any)",
            "Reciprocal(any)",
            "Sqrt(tensor)",
            "Pow(tensor, 2)",
            "Neg(any)",
            "Add(same, same)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        samples=4,
        uses={"x": 2, "y": 1, "z": 1, "W": 1, "f": 1, "g": 1, "s": 1, "Neg": 1, "Add": 1, "Reciprocal": 2, "Pow": 2, "Sqrt": 2},
    ),
    Workload(
        name="normal-scale",
        variables={"x": "[m,n]", "W": "[n,p]", "g": "[n]", "h": "[n]", "b": "[n]"},
        operators=(
            "RMSNormalization[axis=-1,epsilon=1e-05](rank2, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, rank1, rank1)",
            "Mul(rank2, rank1)",
            "Mul(rank1, rank1)",
            "Add(rank2, rank1)",
            "Sub(x, of_1)",
            "ReduceMean[axes=(-1,),keepdims=true](x)",
            "MatMul(rank2, of_p)",
            "Mul(W, of_1)",
            "Unsqueeze[axes=(-1,)](rank1)",
        ),
        uses={"x": 2, "W": 1, "g": 1, "h": 1, "b": 1, "RMSNormalization": 1, "LayerNormalization": 1},
        max_ops=4,
    ),
    # Definitions have more operators than rules between parts of them: templates name what may stand where.
    Workload(
        name="normal-rms",
        variables={"x": "[m,n]", "g": "[n]"},
        operators=(
            "RMSNormalization[axis=-1,epsilon=1e-05](x, g)",
            "Pow(x, 2)",
            "Mul(x, x)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Add(of_1, 1e-05)",
            "Sqrt(of_1)",
            "Div(x, of_1)",
            "Div(1, of_1)",
            "Reciprocal(of_1)",
            "Pow(of_1, -0.5)",
            "Mul(x, of_1)",
            "Mul(of_n, g)",
        ),
        uses={"x": 3, "g": 1} | dict.fromkeys(("ReduceMean", "Add", "Sqrt", "Div", "Reciprocal"), 1),
        max_ops=7,
        extend="all",
        min_saving=4,
        samples=8,
        macros=True,
    ),
    Workload(
        name="normal-layer",
        variables={"x": "[m,n]", "g": "[n]", "b": "[n]"},
        operators=(
            "LayerNormalization[axis=-1,epsilon=1e-05](x, g)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, g, b)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Sub(x, of_1)",
            "Pow(of_n, 2)",
            "Add(of_1, 1e-05)",
            "Sqrt(of_1)",
            "Div(of_n, of_1)",
            "Mul(of_n, g)",
            "Add(of_n, b)",
        ),
        uses={"x": 4, "g": 1, "b": 1, "ReduceMean": 3, "Sub": 2, "Add": 2}
        | dict.fromkeys(("LayerNormalization", "Pow", "Sqrt", "Div", "Mul"), 1),
        max_ops=11,
        extend="all",
        min_saving=9,
        samples=8,  # in a field the square of a root may be the negative of what it was the root of
        macros=True,
    ),
    Workload(
        name="normal-batch",
        variables={"x": "[m,n]", "g": "[n]", "b": "[n]", "u": "[n]", "v": "[n]"},
        operators=(
            "BatchNormalization[epsilon=1e-05,spatial=0](x, g, b, u, v)",
            "Add(v, 1e-05)",
            "Sqrt(any)",
            "Div(any, any)",
            "Mul(any, any)",
            "Sub(any, u)",
            "Add(any, b)",
        ),
        samples=4,
        uses={"x": 1, "g": 1, "b": 1, "u": 1, "v": 1, "Sqrt": 1, "Div": 1, "Mul": 1},
        max_ops=6,
        extend="all",
        min_saving=5,
        macros=True,
    ),
    Workload(
        name="normal-batch-spatial",
        variables={"x": "[n,c,h,w]", "g": "[c]", "b": "[c]", "u": "[c]", "v": "[c]"},
        operators=(
            "BatchNormalization[epsilon=1e-05,spatial=2](x, g, b, u, v)",
            "Unsqueeze[axes=(-2,-1)](leaf)",
            "Add(rank3, 1e-05)",
            "Sqrt(rank3)",
            "Sub(x, rank3)",
            "Div(rank4, rank3)",
            "Mul(rank4, rank3)",
            "Add(rank4, rank3)",
        ),
        sizes=SPATIAL,
        samples=4,
        uses={"x": 1, "g": 1, "b": 1, "u": 1, "v": 1, "Sqrt": 1, "Div": 1, "Mul": 1, "Sub": 1, "Add": 2},
        max_ops=10,
        extend="all",
        min_saving=9,
        macros=True,
    ),
    # That of rows behind a product, in its weights and a bias; of a batch of matrices the rows are put together in front of it.
    Workload(
        name="normal-batch-fold",
        variables={"x": "[m,n]", "X": "[l,m,n]", "W": "[n,p]"} | dict.fromkeys("gbuv", "[p]"),
        operators=(),
        max_ops=0,
        samples=4,
        open_numbers=True,
        equations=(
            f"{batch('MatMul(x, W)', 0)} = {_folded_batch('x')}",
            f"{batch(f'{_ROWS}(MatMul(X, W))', 0)} = {_ROWS}({_folded_batch('X')})",
        ),
    ),
    # A mean that is taken away behind the factor, with the offset: sums and products of each once, the factor twice.
    Workload(
        name="normal-moments",
        variables={"x": "[m,n]", "f": "[m,n]", "u": "[m,1]", "b": "[n]"},
        operators=("Mul(any, any)", "Add(any, any)", "Sub(any, any)"),
        uses={"x": 1, "f": 2, "u": 1, "b": 1},
        max_ops=4,
        min_saving=1,
    ),
    # A normalisation without scale and offset, which the weights behind it take over: several of one tensor are then one.
    Workload(
        name="normal-unit",
        variables={"x": "[m,n]", "W": "[n,p]", "g": "[n]", "b": "[n]", "e": "[p]"},
        operators=(
            "RMSNormalization[axis=-1,epsilon=1e-05](x, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, g, b)",
            "MatMul(rank2, of_p)",
            "Mul(W, of_1)",
            "Unsqueeze[axes=(-1,)](g)",
            "Unsqueeze[axes=(-2,)](b)",
            "Squeeze[axes=(-2,)](of_p)",
            "Add(of_p, rank1)",
            "Add(e, rank1)",
        ),
        constants=("Ones[shape=(n,)]()",),
        uses={"x": 1, "W": 2, "g": 1, "b": 1, "e": 1, "Add": 2, "Unsqueeze": 2, "MatMul": 2, "Squeeze": 1},
        max_ops=9,
        extend="all",
        macros=True,
        keep=frozenset({"shape"}),
    ),
    *(_groups(dtype, *spatial) for dtype in ("float", "float16") for spatial in ("w", "hw")),
)
