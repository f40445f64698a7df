"""Graph-defined kernels of every family, for shapes and element types of choice."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mugraph.blocks.block import Affine, Index, Kernel
from mugraph.blocks.interp import evaluate_body
from mugraph.domains import Real
from mugraph.terms.shape import DataType, Dim, TensorType, evaluate_dim
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term
from rewriter.kernels.fuse.families import Operand, Product, attention, causal, product_kernel, rows

F32, F16, BOOL = DataType.FLOAT, DataType.FLOAT16, DataType.BOOL
RMS = "RMSNormalization[axis=-1,epsilon=0.00001]"


def tensor(dtype: DataType, *shape: Dim) -> TensorType:
    return TensorType(dtype, tuple(shape))


def term(text: str) -> Term:
    return parse_term(text)


def skip_layer_norm(b: Dim, m: Dim, n: int, dtype: DataType = F32) -> Kernel:
    """Two outputs: the sum that goes on and its normalisation."""
    full, row = tensor(dtype, b, m, n), tensor(dtype, n)
    normal = term("LayerNormalization[axis=-1,epsilon=0.00001](Add(x, skip), scale, bias)")
    inputs = {"x": full, "skip": full, "scale": row, "bias": row}
    return rows("skip_layer_norm", inputs, {"total": (full, term("Add(x, skip)")), "y": (full, normal)})


def softmax(m: Dim, n: int, dtype: DataType = F32) -> Kernel:
    full = tensor(dtype, m, n)
    return rows("softmax", {"x": full}, {"y": (full, term("Softmax[axis=-1](x)"))})


def bias_gelu(m: Dim, n: int, dtype: DataType = F32) -> Kernel:
    full = tensor(dtype, m, n)
    return rows("bias_gelu", {"x": full, "bias": tensor(dtype, n)}, {"y": (full, term("BiasGelu(x, bias)"))})


def masked_rows(b: int, h: int, m: int, n: int, dtype: DataType = F32) -> Kernel:
    """Inputs that broadcast along different axes, so that no two of them are one."""
    inputs = {"x": tensor(dtype, b, h, m, n), "mask": tensor(BOOL, b, 1, 1, n), "bias": tensor(dtype, h, m, n)}
    scores = "Where(mask, Add(x, bias), -10000.0)"
    return rows("masked", inputs, {"y": (inputs["x"], term(f"Softmax[axis=-1]({scores})"))})


def rms_norm_matmul(m: Dim, k: Dim, n: int, dtype: DataType = F32) -> Kernel:
    """The sum of squares accumulated beside the product, which is scaled after the loop (Mirage, figure 4)."""
    inputs = {"x": tensor(dtype, m, k), "scale": tensor(dtype, k), "w": tensor(dtype, k, n)}
    epilogue = term("Div(p, Sqrt(Add(Div(squares, size_k), 0.00001)))")
    output = {"y": (tensor(dtype, m, n), term(f"MatMul({RMS}(x, scale), w)"), epilogue)}
    products = [Product("p", term("Mul(x, scale)"), term("w"))]
    return product_kernel("rms_norm_matmul", inputs, output, products, {"squares": term("Mul(x, x)")})


def gated_mlp(m: Dim, k: int, n: int, dtype: DataType = F32) -> Kernel:
    """Two products of one left operand; the second weight lies transposed."""
    inputs = {"x": tensor(dtype, m, k), "w1": tensor(dtype, k, n), "w2": tensor(dtype, n, k)}
    first, second = "MatMul(x, w1)", "MatMul(x, Transpose[perm=(1,0)](w2))"
    body = term(f"Mul(Mul({first}, Sigmoid({first})), {second})")
    output = {"y": (tensor(dtype, m, n), body, term("Mul(Mul(a, Sigmoid(a)), b)"))}
    products = [Product("a", term("x"), term("w1")), Product("b", term("x"), term("w2"))]
    return product_kernel("gated_mlp", inputs, output, products, transposed=("w2",))


def lora(m: Dim, k: int, n: int, r: int, dtype: DataType = F32) -> Kernel:
    """X·W + (X·A)·B with a bias and a residual; products and inputs bear the same names on purpose."""
    inputs = {name: tensor(dtype, *shape) for name, shape in {"x": (m, k), "w": (k, n), "a": (k, r), "b": (r, n)}.items()}
    inputs |= {"bias": tensor(dtype, n), "residual": tensor(dtype, m, n)}
    body = term("Add(Add(Add(MatMul(x, w), MatMul(MatMul(x, a), b)), bias), residual)")
    output = {"y": (tensor(dtype, m, n), body, term("Add(Add(Add(p, q), bias), residual)"))}
    products = [Product("p", term("x"), term("w")), Product("q", term("x"), term("a"), term("b"))]
    return product_kernel("lora", inputs, output, products)


def batched_matmul(b: Dim, m: Dim, k: int, n: int, dtype: DataType = F32) -> Kernel:
    inputs = {"x": tensor(dtype, b, m, k), "y": tensor(dtype, b, k, n)}
    return product_kernel(
        "batched", inputs, {"z": (tensor(dtype, b, m, n), term("MatMul(x, y)"), term("p"))}, [Product("p", term("x"), term("y"))]
    )


def split_heads(name: str, batch: Dim, length: Dim, heads: int, size: int) -> str:
    return f"Transpose[perm=(0,2,1,3)](Reshape[drop=3,shape=({batch},{length},{heads},{size})]({name}))"


def heads_attention(b: Dim, s: Dim, t: Dim, h: int, d: int, dtype: DataType = F32) -> Kernel:
    """Heads read from and written to [b, s, h·d] in place, a scale and an additive mask."""
    inputs = {"q": tensor(dtype, b, s, h * d), "k": tensor(dtype, b, t, h * d), "v": tensor(dtype, b, t, h * d)}
    inputs["mask"] = tensor(dtype, b, 1, 1, t)
    q, k, v = split_heads("q", b, s, h, d), split_heads("k", b, t, h, d), split_heads("v", b, t, h, d)
    scores = f"Add(Mul(MatMul({q}, Transpose[perm=(1,0)]({k})), 0.25), mask)"
    merged = f"Reshape[drop=3,shape=({s},{h * d})](Transpose[perm=(0,2,1,3)](MatMul(Softmax[axis=-1]({scores}), {v})))"
    return attention(
        "attention",
        inputs,
        ("y", tensor(dtype, b, s, h * d), term(merged)),
        {"b": b, "h": h, "s": s, "t": t, "d": d, "e": d},
        Operand("q", ("b", "s", "h", "d")),
        Operand("k", ("b", "t", "h", "d")),
        Operand("v", ("b", "t", "h", "e")),
        {"y": ("b", "s", "h", "e")},
        scores=term("Add(Mul(qk, 0.25), mask)"),
    )


def causal_attention(h: int, s: int, t: int, d: int, dtype: DataType = F32, window: int | None = None) -> Kernel:
    """The mask is an input of the body only; the kernel knows it as conditions."""
    inputs = {"q": tensor(dtype, h, s, d), "k": tensor(dtype, h, t, d), "v": tensor(dtype, h, t, d), "seen": tensor(BOOL, s, t)}
    body = "MatMul(Softmax[axis=-1](Where(seen, MatMul(q, Transpose[perm=(1,0)](k)), -inf)), v)"
    keep = [causal(s, t)]
    if window is not None:
        keep.append(Affine(((Index("s"), -1), (Index("t"), 1)), window - (t - s)))
    return attention(
        "causal",
        inputs,
        ("y", tensor(dtype, h, s, d), term(body)),
        {"h": h, "s": s, "t": t, "d": d, "e": d},
        Operand("q", ("h", "s", "d")),
        Operand("k", ("h", "t", "d")),
        Operand("v", ("h", "t", "e")),
        {"y": ("h", "s", "e")},
        keep=keep,
    )


def qk_norm(b: int, s: int, t: int, d: int, dtype: DataType = F32) -> Kernel:
    """Queries and values normalised on the way in, the keys lie transposed."""
    inputs = {"q": tensor(dtype, b, s, d), "k": tensor(dtype, b, d, t), "v": tensor(dtype, b, t, d), "scale": tensor(dtype, d)}
    body = term(f"MatMul(Softmax[axis=-1](MatMul({RMS}(q, scale), k)), {RMS}(v, scale))")
    normal = term(f"{RMS}(x, scale)")
    return attention(
        "qk_norm",
        inputs,
        ("y", tensor(dtype, b, s, d), body),
        {"b": b, "s": s, "t": t, "d": d, "e": d},
        Operand("q", ("b", "s", "d"), normal),
        Operand("k", ("b", "d", "t")),
        Operand("v", ("b", "t", "e"), normal),
        {"y": ("b", "s", "e")},
    )


def grouped_attention(b: int, s: int, groups: int, shared: int, d: int, dtype: DataType = F32) -> Kernel:
    """Queries, keys and values in one packed projection; ``shared`` heads have the same keys; rotary embedding of both."""
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
    body = term(f"MatMul(Softmax[axis=-1](MatMul({q}, Transpose[perm=(1,0)]({k}))), {v})")

    def operand(axis: str, head: Index) -> Operand:
        rotated = ("b", axis, (head, total), (Index("d", shift=half, modulo=d), d))
        return Operand(
            "qkv",
            ("b", axis, (head, total), "d"),
            term("Add(Mul(x, cos), Mul(Where(upper, other, Neg(other)), sin))"),
            (("other", "qkv", rotated),),
            (("upper", (Affine(((Index("d"), 1),), -half),)),),
        )

    return attention(
        "grouped",
        inputs,
        ("y", tensor(dtype, b, groups, shared, s, d), body),
        {"b": b, "h": heads, "s": s, "t": s, "d": d, "e": d},
        operand("s", Index("h")),
        operand("t", Index("h", divide=shared, offset=heads)),
        Operand("qkv", ("b", "t", (Index("h", divide=shared, offset=heads + groups), total), "e")),
        {"y": ("b", "h", "s", "e")},
    )


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
