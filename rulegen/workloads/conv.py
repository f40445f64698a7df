"""Convolution with pools, folding of normalisation, padding: the group ``conv``."""

from __future__ import annotations

from rulegen.workloads.windows import (
    BATCH_FACTOR,
    BATCH_SUMMAND,
    SPATIAL,
    VALID,
    average_pool,
    batch,
    conv,
    max_pool,
    pad,
    transposed,
)
from rulegen.workloads.workload import Workload

__all__ = ["CONV"]

_PATCHES = "Conv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(k,m)]"
_ROWS = (
    "MatMul(Reshape[drop=5,shape=(h*w,c*k*m)](Transpose[perm=(1,3,0,2,4)](Reshape[drop=2,shape=(h,k,w,m)](x))), "
    "Transpose[perm=(1,0)](Reshape[drop=3,shape=(c*k*m,)](W)))"
)

_POINTWISE = "NhwcConv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(1,1)]"
_PLACES = "MatMul(x, Transpose[perm=(1,0)](Reshape[drop=3,shape=(c,)](W)))"

_PAD = "Pad[begins=(1,),ends=(2,),mode='constant',value=0.0](x)"
_LENGTHS = {"n": (2, 1, 2), "c": (2, 3, 1), "l": (3, 4, 2), "d": (3, 2, 2), "k": (2, 3, 4), "g": (2, 1, 3), "m": (2, 3, 1)}


def _line(group: str = "1", pads: str = "0,0") -> str:
    return f"Conv[dilations=(2,),group={group},pads=({pads}),strides=(3,)]"


def _windows(x: str) -> str:
    """The rows of windows of a line whose channels are last."""
    return f"Reshape[drop=2,shape=(c*k,)](Windows[axis=-2,dilations=(2,),kernel=(k,),strides=(3,)]({x}))"


def _dense_rows(x: str) -> str:
    weights = "Reshape[drop=3,shape=(c*k,d)](Transpose[perm=(2,1,0)](W))"
    return f"MatMul({_windows(f'Transpose[perm=(1,0)]({x})')}, {weights})"


def _grouped_rows(x: str) -> str:
    groups = f"Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(g,c)](Transpose[perm=(1,0)]({x})))"
    weights = "Reshape[drop=3,shape=(c*k,m)](Transpose[perm=(2,1,0)](Reshape[drop=3,shape=(g,m,c,k)](W)))"
    return f"Reshape[drop=2,shape=(g*m,)](Transpose[perm=(1,0,2)](MatMul({_windows(groups)}, {weights})))"


_CHANNELS = f"Unsqueeze[axes=(-1,)](Unsqueeze[axes=(-2,-1)]({BATCH_FACTOR}))"
"""The factors of a BatchNormalization, each a kernel of one entry for its channel."""


def _beside_batch(convolution: str, kernel: str, branch: str) -> str:
    """A convolution beside a BatchNormalization of its image, whose kernel is the ``branch``, as one."""
    joined = f"{convolution}(x, Add({kernel}, {branch}), Add(a, {BATCH_SUMMAND}))"
    return f"Add({convolution}(x, {kernel}, a), {batch('x')}) = {joined}"


def _transposed(spatial: int) -> tuple[Workload, ...]:
    """What scales and shifts the channels of a transposed convolution, or all of it, goes into its weights and its bias."""
    places, kernel = ("h,w", "3,3") if spatial == 2 else ("h", "3")
    image, weights, of_kernel = f"rank{spatial + 2}", f"[c,d,{kernel}]", f"of_{kernel.replace(',', 'x')}"
    dense, depthwise = transposed(spatial=spatial), transposed("c", spatial)
    last = f"[axes={str(tuple(range(-spatial, 0))).replace(' ', '')}]"
    factors, channels = f"Unsqueeze{last}({BATCH_FACTOR})", ",1" * spatial
    scale, shift = f"Squeeze[axes=({-spatial - 2},)](f)", f"Squeeze{last}(Squeeze[axes=({-spatial - 2},)](f))"
    inner = f"Mul(W, Unsqueeze[axes=(-1,)](Squeeze[axes=({-spatial - 2},)](g)))"
    return (
        Workload(
            name=f"conv-transposed{spatial}",
            variables={"x": f"[n,c,{places}]", "W": weights, "D": f"[c,1,{kernel}]", "b": "[d]", "a": "[c]"}
            | {"f": f"[d{channels}]", "g": f"[c{channels}]"},
            operators=(
                f"{dense}({image}, {of_kernel})",
                f"{dense}({image}, {of_kernel}, rank1)",
                f"{depthwise}({image}, {of_kernel})",
                f"{depthwise}({image}, {of_kernel}, rank1)",
                f"Squeeze{last}(leaf)",
                "Unsqueeze[axes=(-1,)](g)",
                f"Mul({image}, rank{spatial + 1})",
                f"Mul({image}, {image})",
                f"Add({image}, rank{spatial + 1})",
                "Mul(rank1, rank1)",
                "Add(rank1, rank1)",
            ),
            uses={**dict.fromkeys("xWDba", 1), "f": 2, "g": 2, "ConvTranspose": 1, "Mul": 2, "Add": 1},
            max_ops=5,
            sizes=SPATIAL,
        ),
        Workload(
            name=f"conv-transposed{spatial}-scalar",
            variables={"x": f"[n,c,{places}]", "W": weights, "b": "[d]", "s": "[]"},
            operators=(f"{dense}(x, {of_kernel})", f"{dense}(x, {of_kernel}, rank1)", "Mul(tensor, s)", "Add(tensor, s)"),
            uses={"x": 1, "W": 1, "b": 1, "s": 2, "ConvTranspose": 1, "Mul": 2, "Add": 1},
            max_ops=3,
            sizes=SPATIAL,
        ),
        # The same by factors and summands that have an axis for the batch, too.
        Workload(
            name=f"conv-transposed{spatial}-image",
            variables={"x": f"[n,c,{places}]", "W": weights, "b": "[d]", "f": f"[1,d{channels}]", "g": f"[1,c{channels}]"},
            operators=(),
            max_ops=0,
            macros=True,
            sizes=SPATIAL,
            equations=(
                f"Add({dense}(x, W), f) = {dense}(x, W, {shift})",
                f"Add({dense}(x, W, b), f) = {dense}(x, W, Add(b, {shift}))",
                f"Mul({dense}(x, W), f) = {dense}(x, Mul(W, {scale}))",
                f"Mul({dense}(x, W, b), f) = {dense}(x, Mul(W, {scale}), Mul(b, {shift}))",
                f"{dense}(Mul(x, g), W) = {dense}(x, {inner})",
                f"{dense}(Mul(x, g), W, b) = {dense}(x, {inner}, b)",
            ),
        ),
        Workload(
            name=f"conv-transposed{spatial}-fold",
            variables={"x": f"[n,c,{places}]", "W": weights} | dict.fromkeys("agbuv", "[d]"),
            operators=(),
            max_ops=0,
            samples=4,
            macros=True,
            sizes=SPATIAL,
            open_numbers=True,
            equations=(
                f"{batch(f'{dense}(x, W)', spatial)} = {dense}(x, Mul(W, {factors}), {BATCH_SUMMAND})",
                f"{batch(f'{dense}(x, W, a)', spatial)}"
                f" = {dense}(x, Mul(W, {factors}), Add(Mul(a, {BATCH_FACTOR}), {BATCH_SUMMAND}))",
            ),
        ),
    )


CONV = (
    Workload(
        name="conv",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,c,3,3]",
            "U": "[e,c,3,3]",
            "b": "[d]",
            "a": "[e]",
            "s": "[]",
        },
        operators=(
            f"{conv()}(of_hxw, of_3x3)",
            f"{conv()}(of_hxw, of_3x3, rank1)",
            "Mul(tensor, s)",
            "Add(same, same)",
            "Relu(of_hxw)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-4](rank4, rank4)",
            "Concat[axis=-1](rank1, rank1)",
            "Split[axis=-3,sizes=(d,e)](of_hxw)",
            "Split[axis=-4,sizes=(n,n)](of_hxw)",
        ),
        max_ops=4,
        uses={"x": 2, **dict.fromkeys("yWVUbas", 1), "Relu": 1, "Concat": 2},
        sizes=SPATIAL,
    ),
    Workload(
        name="conv-channels",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,e,h,w]",
            "z": "[n,c+e,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,e,3,3]",
            "U": "[d,c+e,3,3]",
        },
        operators=(
            f"{conv()}(of_hxw, of_3x3)",
            "Add(same, same)",
            "Relu(of_hxw)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-3](of_3x3, of_3x3)",
            "Split[axis=-3,sizes=(c,e)](rank4)",
        ),
        uses={**dict.fromkeys("xyWV", 1), "z": 2, "U": 1, "Relu": 1, "Concat": 2, "Add": 1},
        max_ops=5,
        sizes=SPATIAL,
    ),
    Workload(
        name="conv-group",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "z": "[n,2*c,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,c,3,3]",
            "U": "[2*d,c,3,3]",
            "D": "[c,1,3,3]",
            "E": "[c,1,3,3]",
            "F": "[2*c,1,3,3]",
        },
        operators=(
            f"{conv()}(of_hxw, of_3x3)",
            f"{conv('2')}(of_hxw, of_3x3)",
            f"{conv('3')}(of_hxw, of_3x3)",
            f"{conv('c')}(of_hxw, of_3x3)",
            f"{conv('2*c')}(of_hxw, of_3x3)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-4](of_3x3, of_3x3)",
            "Add(same, same)",
            "Split[axis=-3,sizes=(c,c)](of_hxw)",
            "Split[axis=-3,sizes=(d,d)](of_hxw)",
            "Split[axis=-4,sizes=(d,d)](of_3x3)",
            "Split[axis=-4,sizes=(c,c)](of_3x3)",
        ),
        uses={**dict.fromkeys("xyWVDEUF", 1), "z": 2, "Conv": 2, "Add": 1, "Concat": 2},
        sizes=SPATIAL,
        determined=True,
    ),
    Workload(
        name="conv-scale",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "D": "[c,1,3,3]", "b": "[d]", "f": "[d]", "g": "[c]"},
        operators=(
            f"{conv()}(of_hxw, of_3x3)",
            f"{conv()}(of_hxw, of_3x3, rank1)",
            f"{conv('c')}(of_hxw, of_3x3)",
            "Unsqueeze[axes=(-2,-1)](leaf)",
            "Unsqueeze[axes=(-3,-2,-1)](leaf)",
            "Mul(rank4, rank3)",
            "Mul(rank4, rank4)",
            "Add(rank4, rank3)",
            "Mul(rank1, rank1)",
            "Add(rank1, rank1)",
        ),
        uses={**dict.fromkeys("xWDbfg", 1), "Conv": 2, "Mul": 2, "Add": 1},
        max_ops=5,
        sizes=SPATIAL,
    ),
    # One number that scales or shifts the result, as learned affine blocks have it: weights and bias take it over.
    Workload(
        name="conv-scalar",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "b": "[d]", "s": "[]"},
        operators=(
            f"{conv()}(x, of_3x3)",
            f"{conv()}(x, of_3x3, rank1)",
            "Mul(tensor, s)",
            "Add(tensor, s)",
        ),
        uses={"x": 1, "W": 1, "b": 1, "s": 2, "Conv": 1, "Mul": 2, "Add": 1},
        max_ops=3,
        sizes=SPATIAL,
    ),
    # Batch normalisation folded into the weights and the bias of the convolution before it.
    Workload(
        name="conv-fold",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "g": "[d]", "b": "[d]", "u": "[d]", "v": "[d]"},
        operators=(
            batch("rank4"),
            f"{conv()}(x, of_3x3)",
            f"{conv()}(x, of_3x3, rank1)",
            "Add(v, 1e-05)",
            "Sqrt(rank1)",
            "Div(g, rank1)",
            "Mul(u, rank1)",
            "Sub(b, rank1)",
            "Unsqueeze[axes=(-3,-2,-1)](rank1)",
            "Mul(W, rank4)",
        ),
        samples=4,
        uses={"x": 1, "W": 1, "g": 2, "b": 1, "u": 1, "v": 2, "Sqrt": 2, "Div": 2, "Conv": 1, "Mul": 2, "Sub": 1},
        max_ops=11,
        extend="all",
        min_saving=8,
        macros=True,
        keep=frozenset({"axes"}),
        sizes=SPATIAL,
    ),
    Workload(
        name="conv-pad",
        variables={"x": "[n,c,h,w]", "y": "[n,c,h,w]", "W": "[d,c,3,3]", "V": "[d,c,1,1]", "s": "[]"},
        operators=(
            f"{conv()}(of_hxw, of_3x3)",
            f"{conv(pad=0)}(rank4, of_3x3)",
            f"{conv(pad=0)}(rank4, of_1x1)",
            f"{conv(pad=2)}(rank4, of_3x3)",
            f"{pad(1)}(rank4)",
            f"{pad(2)}(rank4)",
            f"{average_pool()}(of_hxw)",
            f"{average_pool(pad=0, count=False)}(rank4)",
            "Relu(rank4)",
            "Mul(rank4, s)",
            "Add(same, same)",
        ),
        uses={**dict.fromkeys("xyWVs", 1), "Relu": 1},
        max_entries=512,
        sizes=VALID,
    ),
    # Kernels enlarged by zeros: a kernel of 1x1, or none at all, beside one of 3x3 over the same image. First summed or joined,
    # then apart.
    Workload(
        name="conv-enlarge",
        variables={
            "x": "[n,c,h,w]",
            "W": "[d,c,3,3]",
            "V": "[e,c,1,1]",
            "U": "[d,c,1,1]",
            "K": "[c,c,3,3]",
            "b": "[d]",
            "g": "[d]",
            "a": "[e]",
            "f": "[c]",
        },
        operators=(
            f"{conv()}(x, of_3x3)",
            f"{conv(pad=0)}(x, of_1x1)",
            f"{conv()}(x, of_3x3, rank1)",
            f"{conv(pad=0)}(x, of_1x1, rank1)",
            f"{pad(1)}(leaf)",
            "Add(rank4, rank4)",
            "Add(rank1, rank1)",
            "Concat[axis=-4](of_3x3, of_3x3)",
            "Concat[axis=-1](rank1, rank1)",
            "Concat[axis=-3](of_hxw, of_hxw)",
        ),
        constants=("IdentityKernel[channels=c,kernel=(3,3)]()",),
        uses={"x": 2, **dict.fromkeys("WVUKbgaf", 1), "Conv": 2, "Add": 2, "Concat": 2, "Pad": 1},
        max_ops=5,
        sizes=SPATIAL,
        determined=True,
    ),
    Workload(
        name="conv-beside",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "V": "[e,c,1,1]", "b": "[d]", "a": "[e]"},
        operators=(
            f"{conv()}(x, of_3x3)",
            f"{conv(pad=0)}(x, of_1x1)",
            f"{conv()}(x, of_3x3, rank1)",
            f"{conv(pad=0)}(x, of_1x1, rank1)",
            f"{pad(1)}(V)",
            "Concat[axis=-4](of_3x3, of_3x3)",
            "Concat[axis=-1](rank1, rank1)",
            "Split[axis=-3,sizes=(d,e)](of_hxw)",
            "Split[axis=-3,sizes=(e,d)](of_hxw)",
        ),
        uses={"x": 1, **dict.fromkeys("WVba", 1)},
        max_ops=5,
        sizes=SPATIAL,
        determined=True,
    ),
    # The image itself beside a convolution of it is one with an identity kernel, of the size that the pads tell.
    Workload(
        name="conv-branch",
        variables={"x": "[n,c,h,w]", "K": "[c,c,3,3]", "b": "[c]"},
        operators=(
            f"{conv()}(x, of_3x3)",
            f"{conv()}(x, of_3x3, b)",
            "Add(rank4, rank4)",
        ),
        constants=("IdentityKernel[channels=c,kernel=(3,3)]()",),
        uses={"x": 2, "K": 1, "b": 1, "IdentityKernel": 1, "Conv": 1, "Add": 2},
        max_ops=3,
        macros=True,
        sizes=SPATIAL,
        keep=frozenset({"channels"}),
        determined=True,
    ),
    # Groups that are merged into fewer, as TASO does: two and four become one.
    *(
        Workload(
            name=f"conv-merge{merged}",
            variables={
                "x": f"[n,{merged}*c,h,w]",
                "W": f"[{merged}*d,c,3,3]",
                "b": f"[{merged}*d]",
            },
            operators=(
                f"{conv(str(merged))}(x, W)",
                f"{conv(str(merged))}(x, W, b)",
                f"{conv()}(x, of_3x3)",
                f"{conv()}(x, of_3x3, b)",
                f"Tile[repeats=({merged},1,1)](W)",
                "Unsqueeze[axes=(-2,-1)](leaf)",
                "Mul(of_3x3, of_1x1)",
            ),
            constants=(f"GroupBlocks[columns=c,group={merged},merged={merged},outputs={merged}*d]()",),
            max_ops=4,
            max_entries=1024,
            sizes=SPATIAL,
            keep=frozenset({"columns", "outputs"}),
            determined=True,
        )
        for merged in (2, 4)
    ),
    # A BatchNormalization of the image beside a convolution of it: a branch that overparametrised blocks have in training.
    Workload(
        name="conv-beside-batch",
        variables={"x": "[n,c,h,w]", "W": "[c,c,3,3]", "D": "[c,1,3,3]"} | dict.fromkeys("agbuv", "[c]"),
        operators=(),
        max_ops=0,
        samples=4,
        sizes=SPATIAL,
        keep=frozenset({"channels", "shape"}),
        determined=True,
        open_numbers=True,
        equations=(
            _beside_batch(conv(), "W", f"Mul(IdentityKernel[channels=c,kernel=(3,3)](), {_CHANNELS})"),
            _beside_batch(conv("c"), "D", f"Mul({pad(1)}(Ones[shape=(c,1,1,1)]()), {_CHANNELS})"),
        ),
    ),
    Workload(
        name="conv-product",
        variables={"x": "[n,c,h,w]", "W": "[d,c,1,1]", "s": "[]"},
        operators=(
            f"{conv(pad=0)}(of_hxw, of_1x1)",
            "MatMul(any, any)",
            "Reshape[drop=2,shape=(h*w,)](of_hxw)",
            "Reshape[drop=3,shape=(c,)](of_1x1)",
            "Reshape[drop=1,shape=(h,w)](rank3)",
            "Mul(any, s)",
            "Relu(any)",
        ),
        uses={"x": 1, "W": 1, "s": 1, "Relu": 1},
        max_ops=4,
        sizes=SPATIAL,
    ),
    Workload(
        name="conv-pool",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "z": "[n,c+e,h,w]",
            "s": "[]",
            "f": "[c,1,1]",
            "D": "[c,1,3,3]",
            "W": "[d,c,1,1]",
        },
        operators=(
            f"{average_pool()}(of_hxw)",
            f"{average_pool(count=False)}(of_hxw)",
            f"{average_pool(pad=0, count=False)}(of_hxw)",
            f"{max_pool()}(of_hxw)",
            f"{max_pool(pad=0)}(of_hxw)",
            "GlobalAveragePool[spatial=2](of_hxw)",
            "ReduceMean[axes=(-2,-1),keepdims=true](of_hxw)",
            "GlobalMaxPool[spatial=2](of_hxw)",
            f"{conv('c')}(of_hxw, of_3x3)",
            f"{conv('c', pad=0)}(of_hxw, of_3x3)",
            f"{conv(pad=0)}(rank4, W)",
            "Mul(rank4, s)",
            "Mul(rank4, f)",
            "Add(same, same)",
            "Relu(rank4)",
            "Concat[axis=-3](rank4, rank4)",
            "Split[axis=-3,sizes=(c,e)](rank4)",
        ),
        constants=("AveragingKernel[channels=c,kernel=(3,3)]()",),
        uses={"x": 1, "y": 1, "z": 2, "s": 1, "f": 1, "D": 1, "W": 1, "Relu": 1, "Concat": 1},
        sizes=VALID,
        samples=16,
    ),
    # The image itself beside a depthwise convolution of it is one with a kernel of a single one, enlarged by what the pads tell.
    Workload(
        name="conv-beside-itself",
        variables={"x": "[n,c,h,w]", "D": "[c,1,3,3]", "b": "[c]"},
        operators=(
            f"{conv('c')}(x, of_3x3)",
            f"{conv('c')}(x, of_3x3, b)",
            f"{pad(1)}(of_1x1)",
            "Add(of_3x3, of_3x3)",
            "Add(of_hxw, of_hxw)",
        ),
        constants=("Ones[shape=(c,1,1,1)]()",),
        uses={"x": 2, "D": 1, "b": 1, "Ones": 1, "Conv": 1},
        max_ops=3,
        macros=True,
        sizes=SPATIAL,
        determined=True,
    ),
    # Kernels as wide as their strides, without pads: patches, each a row of a product. Vision transformers go on with these rows,
    # convolutional models that normalise channels with the same as an image, channels last.
    *(
        Workload(
            name=name,
            variables={"x": "[n,c,h*k,w*m]", "W": "[d,c,k,m]"} | ({"b": "[d]"} if bias else {}),
            operators=(
                f"{_PATCHES}(x, W{bias})",
                "Reshape[drop=2,shape=(h*w,)](of_hxw)",
                "Transpose[perm=(1,0)](rank3)",
                "Transpose[perm=(1,2,0)](of_hxw)",
                "Reshape[drop=2,shape=(h,k,w,m)](x)",
                "Transpose[perm=(1,3,0,2,4)](rank6)",
                "Reshape[drop=5,shape=(h*w,c*k*m)](rank6)",
                "Reshape[drop=3,shape=(c*k*m,)](W)",
                "Transpose[perm=(1,0)](rank2)",
                "MatMul(rank3, rank2)",
                *(["Add(rank3, b)"] if bias else []),
                "Reshape[drop=2,shape=(h,w,d)](rank3)",
            ),
            uses=dict.fromkeys("xWb" if bias else "xW", 1) | {"MatMul": 1, "Transpose": 2},
            max_ops=8,
            max_rank=6,
            macros=True,
            sizes=SPATIAL | {"k": (2, 1, 3), "m": (1, 2, 2)},
            determined=True,
        )
        for name, bias in (("conv-patches", ""), ("conv-patches-biased", ", b"))
    ),
    # The same as an image, channels last. A search did not go there by the smaller rules, whose first step saves nothing, and no
    # enumeration does: the smaller spelling of such an image stands for the product in what is built of it.
    Workload(
        name="conv-patches-last",
        variables={"x": "[n,c,h*k,w*m]", "W": "[d,c,k,m]", "b": "[d]"},
        operators=(),
        max_ops=0,
        max_rank=6,
        sizes=SPATIAL | {"k": (2, 1, 3), "m": (1, 2, 2)},
        determined=True,
        equations=(
            f"Transpose[perm=(1,2,0)]({_PATCHES}(x, W)) = Reshape[drop=2,shape=(h,w,d)]({_ROWS})",
            f"Transpose[perm=(1,2,0)]({_PATCHES}(x, W, b)) = Reshape[drop=2,shape=(h,w,d)](Add({_ROWS}, b))",
        ),
    ),
    # Kernels of one entry over an image whose channels stand last: a product at each place, of the image as it lies.
    Workload(
        name="conv-pointwise",
        variables={"x": "[n,h,w,c]", "W": "[d,1,1,c]", "b": "[d]"},
        operators=(),
        max_ops=0,
        sizes=SPATIAL,
        determined=True,
        equations=(f"{_POINTWISE}(x, W) = {_PLACES}", f"{_POINTWISE}(x, W, b) = Add({_PLACES}, b)"),
    ),
    # Windows of a line, which may overlap, are rows of a product: kernels of every size, with strides and dilations.
    *(
        Workload(
            name=name,
            variables={"x": "[n,c,l+2*k]", "W": "[d,c,k]"} | ({"b": "[d]"} if bias else {}),
            operators=(
                f"{_line()}(x, W{bias})",
                "Transpose[perm=(1,0)](rank3)",
                "Windows[axis=-2,dilations=(2,),kernel=(k,),strides=(3,)](rank3)",
                "Reshape[drop=2,shape=(c*k,)](rank4)",
                "Transpose[perm=(2,1,0)](W)",
                "Reshape[drop=3,shape=(c*k,d)](rank3)",
                "MatMul(rank3, rank2)",
                *(["Add(rank3, b)"] if bias else []),
            ),
            uses=dict.fromkeys("xWb" if bias else "xW", 1) | {"MatMul": 1, "Windows": 1, "Transpose": 3},
            max_ops=8 if bias else 7,
            sizes=_LENGTHS,
            determined=True,
        )
        for name, bias in (("conv-windows", ""), ("conv-windows-biased", ", b"))
    ),
    # The same as an image, in one step, with pads and in groups, each of which has a product of its own.
    *(
        Workload(
            name=name,
            variables=variables | {"b": "[d]" if variables["W"][1] == "d" else "[g*m]"},
            operators=(),
            max_ops=0,
            max_rank=5,
            macros=True,
            sizes=_LENGTHS,
            determined=True,
            equations=tuple(
                equation
                for pads, image in (("0,0", "x"), ("1,2", _PAD))
                for equation in (
                    f"{_line(group, pads)}(x, W) = Transpose[perm=(1,0)]({rows(image)})",
                    f"{_line(group, pads)}(x, W, b) = Transpose[perm=(1,0)](Add({rows(image)}, b))",
                )
            ),
        )
        for name, group, variables, rows in (
            ("conv-windows-image", "1", {"x": "[n,c,l+2*k]", "W": "[d,c,k]"}, _dense_rows),
            ("conv-windows-groups", "g", {"x": "[n,c*g,l+2*k]", "W": "[g*m,c,k]"}, _grouped_rows),
        )
    ),
    *(workload for spatial in (1, 2) for workload in _transposed(spatial)),
)
