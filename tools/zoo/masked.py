"""Whole transformers under a constant mask, in half precision: ONNX files as ``torch.onnx`` writes them, and the same in torch.

The models are those of STOF's comparison end to end (arXiv 2506.06095, section 5): encoders of the shapes of BERT, a decoder of
that of GPT-2, T5's encoder, and a vision transformer whose patches are the sequence. The mask is one constant for all layers and
heads, in front of the softmax. Files are written directly, in the operators that exports of transformers' models consist of,
since exporting the larger ones takes minutes; `masked_module` has the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from tools.zoo.draws import Array, gain, normal

if TYPE_CHECKING:
    import torch

__all__ = ["MASKED", "MaskedTransformer", "image_of", "masked_model", "masked_module", "masked_weights"]

_WORDS, _PATCH, _BUCKETS, _FARTHEST = 1000, 16, 32, 128
"""Words of a vocabulary, pixels of a patch's side, and T5's buckets of distances with the distance from which on they are one."""


@dataclass(frozen=True)
class MaskedTransformer:
    """The shape of a model; its heads are 64 wide, and what is between its two products of an MLP four times as wide as it is.

    Attributes:
        kind: what a layer consists of: ``bert`` normalises behind attention and MLP, ``gpt`` and ``vit`` before them, ``t5`` by
            root mean squares, with biases of relative positions instead of positions and no others.
    """

    kind: Literal["bert", "gpt", "t5", "vit"]
    layers: int
    width: int

    @property
    def heads(self) -> int:
        return self.width // 64


MASKED: Mapping[str, MaskedTransformer] = {
    "bert_small": MaskedTransformer("bert", 4, 512),
    "bert_base": MaskedTransformer("bert", 12, 768),
    "bert_large": MaskedTransformer("bert", 24, 1024),
    "gpt": MaskedTransformer("gpt", 12, 768),
    "t5": MaskedTransformer("t5", 12, 768),
    "vit": MaskedTransformer("vit", 12, 768),
}
"""The models of the comparison."""


def image_of(length: int) -> tuple[int, int]:
    """Height and width of an image of so many patches. Raises ValueError for a length that is no power of two."""
    if length & (length - 1):
        raise ValueError(f"an image of {length} patches: no power of two")
    rows = 1 << (length.bit_length() - 1) // 2
    return rows * _PATCH, length // rows * _PATCH


def masked_weights(which: MaskedTransformer, length: int, seed: int = 0) -> dict[str, Array]:
    """Random weights in half precision by name; products have the layout ``x @ weight``."""
    generator, width = np.random.default_rng(seed), which.width
    weights: dict[str, Array] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}_w"] = normal(generator, (rows, columns), rows**-0.5)
        if which.kind != "t5":
            weights[f"{name}_b"] = normal(generator, (columns,), 0.02)

    def norm(name: str) -> None:
        weights[f"{name}_g"] = gain(generator, (width,))
        if which.kind != "t5":
            weights[f"{name}_o"] = normal(generator, (width,), 0.02)

    if which.kind == "vit":
        weights["patches"] = normal(generator, (width, 3, _PATCH, _PATCH), (3 * _PATCH * _PATCH) ** -0.5)
        weights["patches_b"] = normal(generator, (width,), 0.02)
    else:
        weights["words"] = normal(generator, (_WORDS, width), 1.0)
    if which.kind == "t5":
        weights["distances"] = normal(generator, (_BUCKETS, which.heads), 0.5)
    else:
        weights["positions"] = normal(generator, (1, length, width), 0.1)
    for n in range(which.layers):
        norm(f"first{n}")
        norm(f"second{n}")
        if which.kind == "gpt":
            linear(f"qkv{n}", width, 3 * width)
        else:
            for name in "qkv":
                linear(f"{name}{n}", width, width)
        linear(f"out{n}", width, width)
        linear(f"up{n}", width, 4 * width)
        linear(f"down{n}", 4 * width, width)
        if which.kind == "t5":
            weights[f"q{n}_w"] /= 8  # there is no scale
    norm("last")
    return {name: array.astype(np.float16) for name, array in weights.items()}


# --- ONNX ------------------------------------------------------------------------------------------------------------


def masked_model(
    which: MaskedTransformer, mask: Array, batch: int | None, weights: Mapping[str, Array] | None = None
) -> onnx.ModelProto:
    """The model: ``input_ids`` int64[batch,sequence], or ``pixel_values`` float16[batch,3,height,width], to ``hidden``.

    Args:
        mask: bool[sequence,sequence], true where a query sees a key.
        batch: ``None`` for any.
        weights: of `masked_weights`; drawn unless given.
    """
    length, width = len(mask), which.width
    weights = masked_weights(which, length) if weights is None else weights
    b = "b" if batch is None else batch
    height, across = image_of(length) if which.kind == "vit" else (0, 0)
    given = f"float16[{b},3,{height},{across}] pixel_values" if which.kind == "vit" else f"int64[{b},{length}] input_ids"
    text = "\n".join([_beginning(which), *(_layer(which, n) for n in range(which.layers)), _ending(which)])
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 20], producer_name: "tools.zoo">
        g ({given}) => (float16[{b},{length},{width}] hidden) {{ {text} }}""")
    lead, half = -1 if batch is None else batch, np.float16
    numbers: dict[str, Any] = {
        **{
            "heads": [lead, length, which.heads, 64],
            "joined": [lead, length, width],
            "flat": [-1, width],
            "wide": [-1, 4 * width],
        },
        **{"thrice": [lead, length, 3 * width], "broad": [lead, length, 4 * width], "sequence": [lead, width, length]},
        **{
            "side": [-1, length, 64],
            "sides": [-1, which.heads, 64, length],
            "nothing": half(0),
            "least": half(-65504 if which.kind == "t5" else -math.inf),
        },
        **{
            "root": half(64**-0.25),
            "half": half(0.5),
            "three": half(3),
            "bend": half(0.044715),
            "slope": half(math.sqrt(2 / math.pi)),
        },
        **{"unit": half(1), "square": half(2), "row": [-1], "small": half(1e-6), "first": [0], "seen": mask[None, None]},
    }
    if which.kind == "t5":
        numbers |= _distances(length)
    tensors = {**{name: np.asarray(value) for name, value in numbers.items()}, **weights}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(tensors[name]), name) for name in tensors if name in used
    )
    return model


def _distances(length: int) -> dict[str, Any]:
    """Constants of the nodes that find T5's buckets."""
    apart = np.arange(length)[None, :] - np.arange(length)[:, None]
    near = _BUCKETS // 4
    return {
        **{"apart": apart, "zero": np.int64(0), "side_buckets": np.int64(_BUCKETS // 2), "near": np.int64(near)},
        **{"near_f": np.float32(near), "spread": np.float32(math.log(_FARTHEST / near)), "most": np.int64(_BUCKETS // 2 - 1)},
    }


def _beginning(which: MaskedTransformer) -> str:
    if which.kind == "t5":
        return """ahead = Greater(apart, zero) ahead_i = Cast<to = 7>(ahead) base = Mul(ahead_i, side_buckets) far = Abs(apart)
            is_near = Less(far, near) far_f = Cast<to = 1>(far) times = Div(far_f, near_f) log = Log(times)
            share = Div(log, spread) steps = Mul(share, near_f) steps_i = Cast<to = 7>(steps) beyond = Add(steps_i, near)
            at_most = Min(beyond, most)
            bucket0 = Where(is_near, far, at_most) bucket = Add(base, bucket0) table = Gather<axis = 0>(distances, bucket)
            turned = Transpose<perm = [2, 0, 1]>(table) bias0 = Unsqueeze(turned, first) bias = Where(seen, bias0, least)
            x0 = Gather<axis = 0>(words, input_ids)"""
    bias = "bias = Where(seen, nothing, least) "
    if which.kind == "vit":
        return f"""{bias}patched = Conv<kernel_shape = [16, 16], strides = [16, 16]>(pixel_values, patches, patches_b)
            lines = Reshape(patched, sequence) rows = Transpose<perm = [0, 2, 1]>(lines) x0 = Add(rows, positions)"""
    placed = f"{bias}word = Gather<axis = 0>(words, input_ids) "
    if which.kind == "gpt":
        return f"{placed}x0 = Add(word, positions)"
    return f"""{placed}placed = Add(word, positions)
        x0 = LayerNormalization<axis = -1, epsilon = 1e-12>(placed, last_g, last_o)"""


def _ending(which: MaskedTransformer) -> str:
    x = f"x{which.layers}"
    return f"hidden = Identity({x})" if which.kind == "bert" else _norm(which, "hidden", x, "last", "end")


def _norm(which: MaskedTransformer, to: str, x: str, weight: str, n: str) -> str:
    if which.kind != "t5":
        return f"{to} = LayerNormalization<axis = -1, epsilon = 1e-5>({x}, {weight}_g, {weight}_o)"
    return f"""{to}_s{n} = Pow({x}, square) {to}_m{n} = ReduceMean<keepdims = 1>({to}_s{n}, row) {to}_a{n} = Add({to}_m{n}, small)
        {to}_r{n} = Sqrt({to}_a{n}) {to}_i{n} = Reciprocal({to}_r{n}) {to}_n{n} = Mul({x}, {to}_i{n})
        {to} = Mul({weight}_g, {to}_n{n})"""


def _linear(which: MaskedTransformer, to: str, x: str, weight: str, back: str) -> str:
    """A product with a weight: GPT-2's by Gemm, of rows of all positions, which ``back`` brings back to sequences."""
    if which.kind == "gpt":
        flat = "wide" if weight.startswith("down") else "flat"
        return f"{to}_f = Reshape({x}, {flat}) {to}_p = Gemm({to}_f, {weight}_w, {weight}_b) {to} = Reshape({to}_p, {back})"
    product = f"{to}_p = MatMul({x}, {weight}_w) {to} = Add({to}_p, {weight}_b)"
    return product if which.kind != "t5" else f"{to} = MatMul({x}, {weight}_w)"


def _layer(which: MaskedTransformer, n: int) -> str:
    kind, x = which.kind, f"x{n}"
    before = [_norm(which, f"a{n}", x, f"first{n}", "")] if kind != "bert" else []
    read = x if kind == "bert" else f"a{n}"
    if kind == "gpt":
        before += [
            _linear(which, f"qkv{n}", read, f"qkv{n}", "thrice"),
            f"q{n}, k{n}, v{n} = Split<axis = 2, num_outputs = 3>(qkv{n})",
        ]
    else:
        before += [_linear(which, f"{name}{n}", read, f"{name}{n}", "joined") for name in "qkv"]
    for name in "qkv":
        before.append(f"{name}h{n} = Reshape({name}{n}, heads) {name}t{n} = Transpose<perm = [0, 2, 1, 3]>({name}h{n})")
    before.append(f"""ks{n} = Reshape(kt{n}, side) kr{n} = Transpose<perm = [0, 2, 1]>(ks{n}) ku{n} = Reshape(kr{n}, sides)""")
    if kind == "t5":
        before.append(f"""scores{n} = MatMul(qt{n}, ku{n}) masked{n} = Add(scores{n}, bias)
            weights{n} = Softmax<axis = -1>(masked{n})""")
    else:
        before.append(f"""qd{n} = Mul(qt{n}, root) kd{n} = Mul(ku{n}, root) scores{n} = MatMul(qd{n}, kd{n})
            masked{n} = Add(scores{n}, bias) share{n} = Softmax<axis = -1>(masked{n}) none{n} = IsNaN(share{n})
            weights{n} = Where(none{n}, nothing, share{n})""")
    before.append(f"""mixed{n} = MatMul(weights{n}, vt{n}) back{n} = Transpose<perm = [0, 2, 1, 3]>(mixed{n})
        side{n} = Reshape(back{n}, joined)""")
    before.append(_linear(which, f"out{n}", f"side{n}", f"out{n}", "joined"))
    if kind == "bert":
        before += [f"y{n}_s = Add(out{n}, {x})", _norm(which, f"y{n}", f"y{n}_s", f"first{n}", "")]
        read = f"y{n}"
    else:
        before += [f"y{n} = Add({x}, out{n})", _norm(which, f"c{n}", f"y{n}", f"second{n}", "")]
        read = f"c{n}"
    before.append(_linear(which, f"up{n}", read, f"up{n}", "broad"))
    if kind == "gpt":
        before.append(f"""h{n}_h = Mul(up{n}, half) h{n}_c = Pow(up{n}, three) h{n}_b = Mul(h{n}_c, bend)
            h{n}_a = Add(up{n}, h{n}_b) h{n}_m = Mul(h{n}_a, slope) h{n}_t = Tanh(h{n}_m) h{n}_u = Add(h{n}_t, unit)
            h{n} = Mul(h{n}_h, h{n}_u)""")
    else:
        before.append(f"h{n} = Relu(up{n})" if kind == "t5" else f"h{n} = Gelu(up{n})")
    before.append(_linear(which, f"down{n}", f"h{n}", f"down{n}", "joined"))
    if kind == "bert":
        before += [f"z{n} = Add(down{n}, y{n})", _norm(which, f"x{n + 1}", f"z{n}", f"second{n}", "")]
    else:
        before.append(f"x{n + 1} = Add(y{n}, down{n})")
    return "\n".join(before)


# --- torch -----------------------------------------------------------------------------------------------------------


def masked_module(
    which: MaskedTransformer, mask: Array, weights: Mapping[str, Array], attend: Callable[..., torch.Tensor] | None = None
) -> torch.nn.Module:
    """The same model in torch, by default with scaled_dot_product_attention under the mask.

    Args:
        attend: a function of queries, keys and values, each [batch,heads,sequence,64], the scale, and the biases of all heads'
            scores, [heads,sequence,sequence], or ``None``; the mask is its own affair.
    """
    import torch
    import torch.nn.functional as f

    length, width, kind = len(mask), which.width, which.kind

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, array in weights.items():
                self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array), requires_grad=False))
            self.register_buffer("seen", torch.from_numpy(mask.copy()))
            if kind == "t5":
                bucket = torch.from_numpy(_buckets(length))
                self.register_buffer("bias", self.distances[bucket].permute(2, 0, 1).contiguous())

        def weight(self, name: str) -> torch.Tensor | None:
            found: torch.Tensor | None = getattr(self, name, None)
            return found

        def norm(self, x: torch.Tensor, name: str, epsilon: float = 1e-5) -> torch.Tensor:
            scale = self.weight(f"{name}_g")
            if kind == "t5":
                return f.rms_norm(x, (width,), scale, 1e-6)
            return f.layer_norm(x, (width,), scale, self.weight(f"{name}_o"), epsilon)

        def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
            weight = self.weight(f"{name}_w")
            assert weight is not None
            return f.linear(x, weight.T, self.weight(f"{name}_b"))

        def attention(self, x: torch.Tensor, n: int) -> torch.Tensor:
            parts = self.linear(x, f"qkv{n}").chunk(3, -1) if kind == "gpt" else [self.linear(x, f"{name}{n}") for name in "qkv"]
            q, k, v = (part.reshape(-1, length, which.heads, 64).transpose(1, 2) for part in parts)
            bias, scale = self.weight("bias"), 1.0 if kind == "t5" else 0.125
            if attend is not None:
                mixed = attend(q, k, v, scale, bias)
            else:
                seen = self.seen if bias is None else torch.where(self.seen, bias, -math.inf)
                mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
            return self.linear(mixed.transpose(1, 2).reshape(-1, length, width), f"out{n}")

        def mlp(self, x: torch.Tensor, n: int) -> torch.Tensor:
            up = self.linear(x, f"up{n}")
            inner = f.relu(up) if kind == "t5" else f.gelu(up, approximate="tanh" if kind == "gpt" else "none")
            return self.linear(inner, f"down{n}")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if kind == "vit":
                x = f.conv2d(x, self.patches, self.patches_b, stride=_PATCH).flatten(2).transpose(1, 2)
            else:
                x = f.embedding(x, self.words)
            if kind != "t5":
                x = x + self.positions
            if kind == "bert":
                x = self.norm(x, "last", 1e-12)
            for n in range(which.layers):
                if kind == "bert":
                    x = self.norm(x + self.attention(x, n), f"first{n}")
                    x = self.norm(x + self.mlp(x, n), f"second{n}")
                else:
                    x = x + self.attention(self.norm(x, f"first{n}"), n)
                    x = x + self.mlp(self.norm(x, f"second{n}"), n)
            return x if kind == "bert" else self.norm(x, "last")

    return Masked().eval()


def _buckets(length: int) -> Array:
    """T5's bucket of each key's distance from each query, as its encoder counts them: [sequence,sequence]."""
    apart = np.arange(length)[None, :] - np.arange(length)[:, None]
    half, near, far = _BUCKETS // 2, _BUCKETS // 4, np.abs(apart)
    times = np.maximum(far, 1).astype(np.float32) / np.float32(near)
    beyond = (np.log(times) / np.float32(math.log(_FARTHEST / near)) * np.float32(near)).astype(np.int64) + near
    return (apart > 0) * half + np.where(far < near, far, np.minimum(beyond, half - 1))
