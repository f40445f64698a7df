"""Graph-defined kernels of every kind, for shapes and element types of choice, made as production makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.interp import evaluate_body
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Accumulate, Compute, Extent, Load, Statement, Store, Tensor, view
from mugraph.domains import Real
from mugraph.terms.shape import DataType, Dim, TensorType, evaluate_dim, symbol
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.triton import generate
from tools.fuzz.interpreter import Interpreter

F32, F16, BOOL = DataType.FLOAT, DataType.FLOAT16, DataType.BOOL
RMS = "RMSNormalization[axis=-1,epsilon=0.00001]"
TOLERANCE = {F32: 2e-6, F16: 2e-3}
"""Largest error over largest entry."""
TOTALS = {
    "infinite": "Where(Cast[to=bool](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=int64](IsInf(x)))), 1.0, 2.0)",
    "positive": "Cast[to=float](ReduceSum[axes=(-2,-1),keepdims=true](Cast[to=int32](IsInf[negative=false](x))))",
    "negative": "Cast[to=bool](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=float](IsInf[positive=false](x))))",
    "mean": "Sqrt(ReduceMean[axes=(-2,-1),keepdims=true](Mul(x,x)))",
}
"""Reductions of all entries."""


def tensor(dtype: DataType, *shape: Dim) -> TensorType:
    return TensorType(dtype, tuple(shape))


def term(text: str) -> Term:
    return parse_term(text)


def kernel_of_terms(name: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, str], form: Form = PLAIN) -> Kernel:
    """The kernel that computes terms given as text, by output name."""
    return lower(name, inputs, [(output, term(text)) for output, text in outputs.items()], form)


def sized(family: Callable[..., Kernel], dtype: DataType, **sizes: int) -> Kernel:
    """A kernel made for symbols and then for sizes, ones among them, as those of models are."""
    return specialised(family(**{name: symbol(name) for name in sizes}, dtype=dtype), sizes)


def cut(split: int = 1, group: int = 1, **tiles: int) -> tuple[Schedule]:
    """The schedules of a kernel of one block graph."""
    return (Schedule(tuple(tiles.items()), split=split, group=group),)


def cut_of(kernel: Kernel, split: int = 1, group: int = 1, **tiles: int) -> tuple[Schedule]:
    """As :func:`cut`, of those axes that the kernel has: one of size 1 is none."""
    (block,) = kernel.blocks
    return cut(split, group, **{axis: tile for axis, tile in tiles.items() if axis in (*block.grid, block.loop)})


def skip_layer_norm(b: Dim, m: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    """Two outputs: the sum that goes on and its normalisation."""
    full, row = tensor(dtype, b, m, n), tensor(dtype, n)
    normal = "LayerNormalization[axis=-1,epsilon=0.00001](Add(x, skip), scale, bias)"
    inputs = {"x": full, "skip": full, "scale": row, "bias": row}
    return kernel_of_terms("skip_layer_norm", inputs, {"total": "Add(x, skip)", "y": normal})


def softmax(m: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    return kernel_of_terms("softmax", {"x": tensor(dtype, m, n)}, {"y": "Softmax[axis=-1](x)"})


def bias_gelu(m: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    inputs = {"x": tensor(dtype, m, n), "bias": tensor(dtype, n)}
    return kernel_of_terms("bias_gelu", inputs, {"y": "BiasGelu(x, bias)"})


def masked_rows(b: int, h: int, m: int, n: int, dtype: DataType = F32) -> Kernel:
    """Inputs that broadcast along different axes, so that no two of them are one."""
    inputs = {"x": tensor(dtype, b, h, m, n), "mask": tensor(BOOL, b, 1, 1, n), "bias": tensor(dtype, h, m, n)}
    return kernel_of_terms("masked", inputs, {"y": "Softmax[axis=-1](Where(mask, Add(x, bias), -10000.0))"})


def rms_norm_matmul(m: Dim, k: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    """The sum of squares accumulated beside the product, which is scaled after the loop (Mirage, figure 4)."""
    inputs = {"x": tensor(dtype, m, k), "scale": tensor(dtype, k), "w": tensor(dtype, k, n)}
    return kernel_of_terms("rms_norm_matmul", inputs, {"y": f"MatMul({RMS}(x, scale), w)"}, Form(accumulated=True))


def gated_mlp(m: Dim, k: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    """Two products of one left operand; the second weight lies transposed."""
    inputs = {"x": tensor(dtype, m, k), "w1": tensor(dtype, k, n), "w2": tensor(dtype, n, k)}
    first, second = "MatMul(x, w1)", "MatMul(x, Transpose[perm=(1,0)](w2))"
    return kernel_of_terms("gated_mlp", inputs, {"y": f"Mul(Mul({first}, Sigmoid({first})), {second})"})


def lora(m: Dim, k: Dim, n: Dim, r: Dim, dtype: DataType = F32) -> Kernel:
    """X·W + (X·A)·B with a bias and a residual."""
    inputs = {name: tensor(dtype, *shape) for name, shape in {"x": (m, k), "w": (k, n), "a": (k, r), "b": (r, n)}.items()}
    inputs |= {"bias": tensor(dtype, n), "residual": tensor(dtype, m, n)}
    return kernel_of_terms("lora", inputs, {"y": "Add(Add(Add(MatMul(x, w), MatMul(MatMul(x, a), b)), bias), residual)"})


def batched_matmul(b: Dim, m: Dim, k: Dim, n: Dim, dtype: DataType = F32) -> Kernel:
    inputs = {"x": tensor(dtype, b, m, k), "y": tensor(dtype, b, k, n)}
    return kernel_of_terms("batched", inputs, {"z": "MatMul(x, y)"})


def split_heads(name: str, batch: Dim, length: Dim, heads: int, size: int) -> str:
    return f"Transpose[perm=(0,2,1,3)](Reshape[drop=3,shape=({batch},{length},{heads},{size})]({name}))"


def heads_attention(b: Dim, s: Dim, t: Dim, h: int, d: int, dtype: DataType = F32) -> Kernel:
    """Heads read from and written to [b, s, h·d] in place, a scale and an additive mask.

    Axes b1 (batch), b0 (heads), s, d, t, e.
    """
    inputs = {"q": tensor(dtype, b, s, h * d), "k": tensor(dtype, b, t, h * d), "v": tensor(dtype, b, t, h * d)}
    inputs["mask"] = tensor(dtype, b, 1, 1, t)
    q, k, v = split_heads("q", b, s, h, d), split_heads("k", b, t, h, d), split_heads("v", b, t, h, d)
    scores = f"Add(Mul(MatMul({q}, Transpose[perm=(1,0)]({k})), 0.25), mask)"
    merged = f"Reshape[drop=3,shape=({s},{h * d})](Transpose[perm=(0,2,1,3)](MatMul(Softmax[axis=-1]({scores}), {v})))"
    return kernel_of_terms("attention", inputs, {"y": merged})


def causal_attention(h: int, s: Dim, t: Dim, d: int, dtype: DataType = F32, window: Dim | None = None) -> Kernel:
    """Axes b0 (heads), s, d, t, e.

    Args:
        window: where given, a query sees so many keys before its own position and no others.
    """
    if window is None:
        return _positioned_attention(h, s, t, d, dtype, f"CausalMask[columns={t},rows={s}]()")
    return banded_attention(h, s, t, d, dtype, window - (t - s), t - s)


def banded_attention(h: int, s: Dim, t: Dim, d: int, dtype: DataType, before: Dim, after: Dim) -> Kernel:
    """A query sees the keys from ``before`` places before its own to ``after`` behind it. Axes as :func:`causal_attention`."""
    return _positioned_attention(h, s, t, d, dtype, f"BandMask[after={after},before={before},columns={t},rows={s}]()")


def prefixed_attention(h: int, s: Dim, t: Dim, d: int, dtype: DataType, prefix: Dim) -> Kernel:
    """A query sees the first ``prefix`` keys and those that come no later than it. Axes as :func:`causal_attention`."""
    return _positioned_attention(h, s, t, d, dtype, f"PrefixMask[columns={t},prefix={prefix},rows={s}]()")


def _positioned_attention(h: int, s: Dim, t: Dim, d: int, dtype: DataType, mask: str) -> Kernel:
    inputs = {"q": tensor(dtype, h, s, d), "k": tensor(dtype, h, t, d), "v": tensor(dtype, h, t, d)}
    scores = f"Where({mask}, MatMul(q, Transpose[perm=(1,0)](k)), -inf)"
    return kernel_of_terms("causal", inputs, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})


def qk_norm(b: Dim, s: Dim, t: Dim, d: Dim, dtype: DataType = F32) -> Kernel:
    """Queries and values normalised on the way in, the keys lie transposed."""
    inputs = {"q": tensor(dtype, b, s, d), "k": tensor(dtype, b, d, t), "v": tensor(dtype, b, t, d), "scale": tensor(dtype, d)}
    attended = f"MatMul(Softmax[axis=-1](MatMul({RMS}(q, scale), k)), {RMS}(v, scale))"
    return kernel_of_terms("qk_norm", inputs, {"y": attended})


def grouped_attention(b: int, s: int, groups: int, shared: int, d: int, dtype: DataType = F32) -> Kernel:
    """Queries, keys and values in one packed projection; ``shared`` heads have the same keys; rotary embedding of both.

    Axes b2 (batch), b1 (groups), b0 (the heads of a group), s, d, t, e.
    """
    heads, half = groups * shared, d // 2
    total = heads + 2 * groups
    inputs = {"qkv": tensor(dtype, b, s, total * d), "cos": tensor(dtype, s, d), "sin": tensor(dtype, s, d)}
    split = split_heads("qkv", b, s, total, d)

    def part(start: int, stop: int, shape: str, rotary: bool) -> str:
        piece = f"Slice[axes=(-3,),ends=({stop},),starts=({start},),steps=(1,)]({split})"
        if rotary:
            low, high = (f"Split[axis=-1,sizes=({half},{half})].{i}({piece})" for i in (0, 1))
            piece = f"Add(Mul({piece}, cos), Mul(Concat[axis=-1](Neg({high}), {low}), sin))"
        return f"Reshape[drop=4,shape=({b},{groups},{shape},{s},{d})]({piece})"

    q, k = part(0, heads, str(shared), True), part(heads, heads + groups, "1", True)
    v = part(heads + groups, total, "1", False)
    attended = f"MatMul(Softmax[axis=-1](MatMul({q}, Transpose[perm=(1,0)]({k}))), {v})"
    return kernel_of_terms("grouped", inputs, {"y": attended})


def shared_keys(b: Dim, s: Dim, d: int, dtype: DataType = F32) -> Kernel:
    """Four heads of queries, two of keys and values, which are repeated: axes b1 (batch), b0 (heads), s, d, t, e."""
    inputs = {"q": tensor(dtype, b, 4, s, d), "k": tensor(dtype, b, s, 2 * d), "v": tensor(dtype, b, s, 2 * d)}

    def repeated(name: str) -> str:
        heads = f"Unsqueeze[axes=(-3,)]({split_heads(name, b, s, 2, d)})"
        return f"Reshape[drop=4,shape=(4,{s},{d})](Expand[shape=({b},2,2,{s},{d})]({heads}))"

    scores = f"MatMul(q, Transpose[perm=(1,0)]({repeated('k')}))"
    return kernel_of_terms("shared_keys", inputs, {"y": f"MatMul(Softmax[axis=-1]({scores}), {repeated('v')})"})


def joined_rows(m: Dim, first: int, second: int, dtype: DataType = F32) -> Kernel:
    """Rows of two parts, each read where it is."""
    inputs = {"a": tensor(dtype, m, first), "b": tensor(dtype, m, second), "x": tensor(dtype, m, first + second)}
    return kernel_of_terms("joined", inputs, {"y": "Softmax[axis=-1](Mul(Concat[axis=-1](a, b), x))"})


def column_kernel(*statements: Statement, store: str, m: int = 3, n: int = 7) -> Kernel:
    """Something along the rows of x [m, n], accumulated: out [m]. The block graph is written by hand."""
    sizes = {"m": m, "n": n}
    load = Load("tile", "x", view(sizes, "m", "n"))
    block = Block("columns", tuple(sizes.items()), ("m",), "n", (load, *statements, Store("out", store, view(sizes, "m"))))
    body = term("ReduceSum[axes=(-1,),keepdims=false](x)")
    return Kernel("columns", (Tensor("x", tensor(F32, m, n)),), (Tensor("out", tensor(F32, m)),), (body,), (block,))


def squares(s: Dim, dtype: DataType = F32) -> Kernel:
    """Tables of a square of a size, as masks of as many keys as queries are: what lies between two of them is s*s long."""
    text = "Add(x, Transpose[perm=(0,2,1,3)](x))"
    return kernel_of_terms("squares", {"x": tensor(dtype, symbol("b"), s, s, 16)}, {"y": text})


def two_blocks() -> Kernel:
    """Statistics of long rows in one launch, the scaled rows in another, written by hand."""
    sizes = {"m": 3, "n": 7}
    first = Block(
        "statistics",
        tuple(sizes.items()),
        ("m",),
        "n",
        (
            Load("tile", "x", view(sizes, "m", "n")),
            Compute("square", term("Mul(tile, tile)")),
            Accumulate(("total",), "sum", ("square",)),
            Store("squares", "total", view(sizes, "m")),
        ),
    )
    second = Block(
        "scale",
        tuple(sizes.items()),
        ("m", "n"),
        None,
        (
            Load("tile", "x", view(sizes, "m", "n")),
            Load("total", "squares", view(sizes, "m")),
            Extent("count", 7),
            Compute("result", term("Div(tile, Sqrt(Add(Div(total, count), 0.00001)))")),
            Store("y", "result", view(sizes, "m", "n")),
        ),
    )
    mean = "ReduceMean[axes=(-1,),keepdims=true](Mul(x, x))"
    full = tensor(F32, 3, 7)
    body = term(f"Div(x, Sqrt(Add({mean}, 0.00001)))")
    scratch = (Tensor("squares", tensor(F32, 3)),)
    return Kernel("two", (Tensor("x", full),), (Tensor("y", full),), (body,), (first, second), scratch)


def random_inputs(kernel: Kernel, seed: int, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Normal numbers; booleans are what a causal mask is."""
    generator, drawn = np.random.default_rng(seed), {}
    for x in kernel.inputs:
        shape = [int(evaluate_dim(dim, sizes or {})) for dim in x.type.shape]  # type: ignore[arg-type]
        if x.type.dtype == BOOL:
            drawn[x.name] = np.broadcast_to(np.tri(shape[-2], shape[-1], shape[-1] - shape[-2], dtype=bool), shape)
        else:
            drawn[x.name] = generator.standard_normal(shape).astype(x.type.dtype.numpy())
    return drawn


def reference(kernel: Kernel, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The body in double precision."""
    return evaluate_body(kernel, Real(), {n: x if x.dtype == bool else x.astype(np.float64) for n, x in inputs.items()})


def check(interpreter: Interpreter, kernel: Kernel, schedules: tuple[Schedule, ...], tolerance: float, **options: object) -> None:
    """Compares what the interpreter computes with the body in double precision."""
    inputs = random_inputs(kernel, 1, options.get("sizes"))  # type: ignore[arg-type]
    for computed, wanted in zip(interpreter.run(kernel, schedules, inputs), reference(kernel, inputs), strict=True):
        assert computed.shape == wanted.shape
        error = np.max(np.abs(computed - wanted)) / np.max(np.abs(wanted))
        assert error <= tolerance, (error, generate(kernel, schedules).text)
