"""Steps of decoders with a key/value cache, node by node as exporters write them; the weights are random.

A step takes the words ``input_ids`` of one position or a few, int64[batch,new], and the cache ``past_key_values.N.key`` and
``.value``, [batch,key_heads,past,size], and makes ``logits`` and the cache with what is new, ``present.N.key`` and ``.value``.
Where the cache is of a fixed size, that is ``room``, before and after, and ``position`` says where the new one is written:
int64[batch] or, where it is one for all sequences, int64[1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from tools.zoo.draws import Array, gain, repeated_normal

__all__ = [
    "FIXED",
    "LLAMA_1B",
    "LLAMA_STEP",
    "QWEN3_06B",
    "SPELLINGS",
    "STORES",
    "Decoder",
    "Spelling",
    "Store",
    "cache_names",
    "decoder_step",
    "rotary_frequencies",
    "step_nodes",
    "step_tensors",
    "step_weights",
]

Spelling = Literal[
    "explicit",
    "attention",
    "grouped",
    "packed",
    "multihead",
    "genai",
    "tensorscatter",
    "shared",
    "static",
    "scatternd",
    "elements",
    "chosen",
]
SPELLINGS: tuple[Spelling, ...] = ("explicit", "attention", "grouped", "packed", "multihead", "genai")
"""With a cache that grows. ``explicit``: the cache is concatenated and heads are repeated, as torch.onnx exports transformers'
Llama (opset 20). ``attention``: operators Attention, RotaryEmbedding and RMSNormalization of ONNX with past and present (opset
23). ``grouped``: onnxruntime's GroupQueryAttention and its normalisations, of sequences that are as long as the cache;
``packed``: the same of one product for queries, keys and values. ``multihead``: onnxruntime's MultiHeadAttention and
RotaryEmbedding, of as many heads of keys as of queries. ``genai``: as onnxruntime-genai's builder writes it (opset 21): one
product, and lengths that are sums of a mask, ``attention_mask``, int64[batch,total]; the cache may be longer than what counts,
and is as long as it was then."""
FIXED: tuple[Spelling, ...] = ("tensorscatter", "shared", "static", "scatternd", "elements", "chosen")
"""With a cache of a fixed size. ``tensorscatter``: TensorScatter, and Attention with ``nonpad_kv_seqlen`` (opset 24). ``shared``:
onnxruntime's GroupQueryAttention, of as many positions as were written. The others are plain operators (opset 20), whose
attention is masked behind the position. ``static``: as torch.onnx exports transformers' StaticCache, the new one is written by
ScatterND along the first axis, to which the whole cache is brought for it. ``scatternd``: likewise, in fewer nodes around it;
``elements``: by ScatterElements; ``chosen``: by Where."""

Store = Literal["floats", "packed", "blocks"]
STORES: tuple[Store, ...] = ("floats", "packed", "blocks")
"""How the matrices are stored. ``packed``: onnxruntime's MatMulNBits. ``blocks``: int4 tensors, DequantizeLinear in blocks before
each product (opset 21 or later). Both have four bits a weight and a scale for each 32, and are the same numbers."""
_BLOCK = 32

_ROTARY_BASE = 10000.0


@dataclass(frozen=True)
class Decoder:
    """Which decoder, and how it is spelled.

    Attributes:
        layers, hidden, intermediate, heads, key_heads, words: as in transformers' ``LlamaConfig``.
        batch, past: sizes; ``None`` for any.
        new: words of a sequence that a step takes; more than one, or ``None`` for any, where the cache grows, and not by
            MultiHeadAttention.
        half: weights, cache and logits are half precision.
        spelling: one of :data:`SPELLINGS` or :data:`FIXED`.
        room: positions that the tables of angles have, where the spelling has such tables, and a cache of a fixed size.
        store: one of :data:`STORES`.
        head: entries of a head; hidden / heads where that is ``None``.
        is_tied: the last product is by the table of words; stored as floats it is that tensor, transposed.
        normalises_heads: queries and keys are normalised head by head, as Qwen3's are; where they are products of their own.
    """

    layers: int = 2
    hidden: int = 64
    intermediate: int = 96
    heads: int = 4
    key_heads: int = 2
    words: int = 100
    batch: int | None = None
    past: int | None = None
    new: int | None = 1
    half: bool = False
    spelling: Spelling = "explicit"
    room: int = 64
    store: Store = "floats"
    head: int | None = None
    is_tied: bool = False
    normalises_heads: bool = False

    @property
    def size(self) -> int:
        """Entries of a head."""
        return self.head or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Entries of all heads of queries."""
        return self.heads * self.size

    @property
    def key_width(self) -> int:
        """Entries of all heads of keys, or of values."""
        return self.key_heads * self.size

    @property
    def shares_words(self) -> bool:
        """Whether the table of words and the last product are one tensor of the file."""
        return self.is_tied and self.store == "floats"

    @property
    def element_type(self) -> int:
        return onnx.TensorProto.FLOAT16 if self.half else onnx.TensorProto.FLOAT


LLAMA_STEP = Decoder(4, 2048, 5632, 16, 4, 1000, half=True, room=16384)
"""Four layers of Llama's shape, as :data:`tools.zoo.exported.LLAMA` has them."""
LLAMA_1B = Decoder(16, 2048, 8192, 32, 8, 128256, half=True, room=16384, is_tied=True)
"""Llama-3.2-1B."""
QWEN3_06B = Decoder(28, 1024, 3072, 16, 8, 151936, half=True, room=16384, head=128, is_tied=True, normalises_heads=True)
"""Qwen3-0.6B."""


def cache_names(layers: int) -> list[tuple[str, str]]:
    """Input and output of every part of a cache."""
    parts = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    return [(f"past_key_values.{part}", f"present.{part}") for part in parts]


def decoder_step(which: Decoder, seed: int = 0) -> onnx.ModelProto:
    """One step of a decoder of Llama's kind, with its weights. Raises ValueError as :func:`step_nodes`."""
    model = step_nodes(which)
    used = {name for node in model.graph.node for name in node.input}
    tensors = (numpy_helper.from_array(array, name) for name, array in step_tensors(which, seed) if name in used)
    model.graph.initializer.extend(tensors)
    return model


def step_nodes(which: Decoder) -> onnx.ModelProto:
    """One step of a decoder of Llama's kind, without its weights.

    Raises:
        ValueError: shared keys, several words or heads that are normalised, in a spelling without such.
    """
    if which.new != 1 and which.spelling in (*FIXED, "multihead"):
        raise ValueError(f"{which.new or 'any'} new words a step, spelled {which.spelling!r}")
    if which.spelling == "multihead" and which.heads != which.key_heads:
        raise ValueError(f"MultiHeadAttention of {which.heads} heads of queries and {which.key_heads} of keys")
    if which.spelling in _JOINED and which.normalises_heads:
        raise ValueError(f"heads that are normalised, of one product, spelled {which.spelling!r}")
    text, x = [_NEW if which.new is None else "", _PREPARED[which.spelling].replace("TYPE", str(which.element_type))], "x0"
    for n in range(which.layers):
        text.append(_layer(n, x, which))
        x = f"x{n + 1}"
    text.append(_norm("last", x, which))
    if which.shares_words:
        text.append("headw = Transpose<perm = [1, 0]>(words) logits = MatMul(last, headw)")
    else:
        text.append(_product("logits", "last", "headw", which.hidden, which.words, which))
    return _model(which, " ".join(text))


def step_tensors(which: Decoder, seed: int = 0) -> Iterator[tuple[str, Array]]:
    """The weights of a step by name as the file stores them, one after the other; the same in all spellings.

    Of spellings that have one product for queries, keys and values that one is among them, too. Layers add to a word
    no more than two of them would, however many there are (as GPT-2 begins): else rounding errors grow from layer to layer, as
    those of no trained model do, and results of 28 layers cannot be told from wrong ones.
    """
    generator = np.random.default_rng(seed)
    hidden, inner = which.hidden, which.intermediate

    def stored(name: str, matrix: Array) -> Iterator[tuple[str, Array]]:
        yield from ((part, _narrowed(array, which)) for part, array in _entries(name, matrix, which.store))

    def drawn(rows: int, columns: int, deviation: float) -> Array:
        return repeated_normal(generator, (rows, columns), deviation, half=which.half and which.store == "floats")

    words = drawn(which.words, hidden, 1.0)
    yield "words", _narrowed(words, which)
    if which.is_tied and not which.shares_words:
        yield from stored("headw", words.T)
    del words
    for n in range(which.layers):
        joined = list[Array]()
        for name, rows, columns in (
            ("q", hidden, which.query_width),
            ("k", hidden, which.key_width),
            ("v", hidden, which.key_width),
            ("o", which.query_width, hidden),
            ("gate", hidden, inner),
            ("up", hidden, inner),
            ("down", inner, hidden),
        ):
            shares = max(which.layers / 2, 1) if name in ("o", "down") else 1
            matrix = drawn(rows, columns, (rows * shares) ** -0.5)
            yield from stored(f"{name}w{n}", matrix)
            if name in "qkv" and which.spelling in _JOINED:
                joined.append(matrix)
        if joined:
            yield from stored(f"qkvw{n}", np.concatenate(joined, axis=1))
        for name in ("before", "between"):
            yield f"{name}w{n}", _narrowed(gain(generator, (hidden,)), which)
        for name in "qk" if which.normalises_heads else "":
            yield f"{name}gainw{n}", _narrowed(gain(generator, (which.size,)), which)
    yield "lastw", _narrowed(gain(generator, (hidden,)), which)
    if not which.is_tied:
        yield from stored("headw", drawn(hidden, which.words, hidden**-0.5))


def _narrowed(array: Array, which: Decoder) -> Array:
    """Floats in the precision of a step."""
    return array.astype(np.float16) if which.half and array.dtype == np.float32 else array


def _entries(name: str, matrix: Array, store: Store) -> Iterator[tuple[str, Array]]:
    """A matrix, [rows, columns], as it is stored: whole numbers from -7 to 7, times a scale for each block of rows."""
    if store == "floats":
        yield name, matrix
        return
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows // _BLOCK, _BLOCK, columns)
    scales = np.maximum(np.abs(blocks).max(axis=1), 1e-6) / 7
    numbers = np.rint(blocks / scales[:, None]).astype(np.int8).reshape(rows, columns)
    if store == "blocks":
        yield f"{name}_q", numbers.astype(ml_dtypes.int4)
        yield f"{name}_s", scales
        return
    nibbles = (numbers.T + 8).astype(np.uint8).reshape(columns, rows // _BLOCK, _BLOCK)
    yield f"{name}_q", nibbles[..., ::2] | nibbles[..., 1::2] << 4
    yield f"{name}_s", np.ascontiguousarray(scales.T)


def step_weights(model: onnx.ModelProto, folder: Path = Path()) -> Iterator[tuple[str, Array]]:
    """The weights of a step by name, with matrices as floats, [rows, columns], however they are stored, one after the other.

    Args:
        folder: that of the model's file, where its weights lie beside that.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in _CONSTANTS}

    def read(name: str) -> Array:
        return numpy_helper.to_array(tensors[name], str(folder))

    for name in tensors:
        if name.endswith("_q"):
            numbers, scales = read(name), read(name.removesuffix("_q") + "_s")
            if numbers.dtype == np.uint8:
                nibbles = np.stack([numbers & 15, numbers >> 4], -1).reshape(len(numbers), -1)
                numbers, scales = nibbles.T.astype(np.int8) - np.int8(8), scales.T
            yield name.removesuffix("_q"), numbers.astype(scales.dtype) * np.repeat(scales, _BLOCK, axis=0)
        elif not name.endswith("_s"):
            yield name, read(name)


def _product(result: str, x: str, weight: str, rows: int, columns: int, which: Decoder) -> str:
    """The nodes of a product by a matrix, [rows, columns]."""
    if which.store == "floats":
        return f"{result} = MatMul({x}, {weight})"
    if which.store == "blocks":
        return f"""{weight}_d = DequantizeLinear<axis = 0, block_size = {_BLOCK}>({weight}_q, {weight}_s)
            {result} = MatMul({x}, {weight}_d)"""
    sizes = f"K = {rows}, N = {columns}, bits = 4, block_size = {_BLOCK}"
    return f"{result} = com.microsoft.MatMulNBits<{sizes}>({x}, {weight}_q, {weight}_s)"


def _model(which: Decoder, body: str) -> onnx.ModelProto:
    """A step of such nodes, with its constants."""
    batch, past, new = which.batch or "batch", which.past if which.past is not None else "past", which.new or "new"
    total = past + new if isinstance(past, int) and isinstance(new, int) else "total"
    if which.spelling in FIXED:
        past = total = which.room
    kind = "float16" if which.half else "float"
    cache, inputs, outputs = (
        f"{batch},{which.key_heads}",
        [f"int64[{batch},{new}] input_ids"],
        [f"{kind}[{batch},{new},{which.words}] logits"],
    )
    if which.spelling in FIXED:
        inputs.append(f"int64[{batch if which.spelling == 'tensorscatter' else 1}] position")
    if which.spelling == "genai":
        inputs.append(f"int64[{batch},{total}] attention_mask")
    for before, after in cache_names(which.layers):
        inputs.append(f"{kind}[{cache},{past},{which.size}] {_plain(before)}")
        outputs.append(f"{kind}[{cache},{total},{which.size}] {_plain(after)}")
    opset = max(_OPSETS.get(which.spelling, 20), 21 if which.store != "floats" else 20)
    domains = f'"" : {opset}'
    domains += ', "com.microsoft" : 1' if which.spelling in _RUNTIME or which.store == "packed" else ""
    model = parse_model(f"""<ir_version: 10, opset_import: [{domains}], producer_name: "tools.zoo">
        g ({", ".join(inputs)}) => ({", ".join(outputs)}) {{
            x0 = Gather<axis = 0>(words, input_ids)
            {body}
        }}""")
    names = {_plain(name): name for pair in cache_names(which.layers) for name in pair}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    used = {name for node in model.graph.node for name in node.input}
    for name, array in _constants(which).items():
        if name in used:
            kept = array if name in _WIDE else _narrowed(array, which)
            model.graph.initializer.append(numpy_helper.from_array(kept, name))
    return model


def _plain(name: str) -> str:
    """A name that ONNX's text form has room for."""
    return name.replace(".", "_")


_OPSETS: Mapping[Spelling, int] = {"attention": 23, "tensorscatter": 24, "genai": 21}
_RUNTIME: tuple[Spelling, ...] = ("grouped", "packed", "multihead", "genai", "shared")
"""Written in operators of onnxruntime's own."""
_JOINED: tuple[Spelling, ...] = ("packed", "genai")
"""Whose queries, keys and values are one product."""
_WIDE = ("frequencies", "two", "epsilon")
"""What stays in single precision in a half-precision model: the angles are computed so, as transformers' models do."""


def rotary_frequencies(which: Decoder) -> Array:
    """Radians by which the rotary embedding turns each pair of entries from position to position, [size / 2], in float32."""
    return np.asarray(_ROTARY_BASE ** (-np.arange(0, which.size, 2) / which.size), np.float32)


def _constants(which: Decoder) -> dict[str, Array]:
    """Numbers, shapes and tables, of which a spelling uses some."""
    size = which.size
    frequencies = rotary_frequencies(which)
    angles = np.outer(np.arange(which.room, dtype=np.float32), frequencies)
    integers: dict[str, Sequence[int] | int] = {
        **{
            "zero": 0,
            "one": 1,
            "at0": [0],
            "at1": [1],
            "at2": [2],
            "at3": [3],
            "at01": [0, 1],
            "at012": [0, 1, 2],
            "last1": [-1],
        },
        **{
            "first2": [-2],
            "end": [np.iinfo(np.int64).max],
            "half": [size // 2],
            "heads": [0, 0, -1, size],
            "beside": [0, 0, -1],
            "whole": [0, 0, which.query_width],
        },
        **{
            "key_heads": [which.key_heads],
            "repeats": [which.heads // which.key_heads],
            "all_heads": [which.heads],
            "sized": [size],
        },
    }
    if which.new is not None:
        integers |= {"news": which.new, "last_new": which.new - 1, "new1": [which.new]}
    floats = {
        **{"two": 2.0, "epsilon": 1e-6, "root": size**-0.25, "nought": 0.0, "minus": -np.inf},
        **{"least": float(np.finfo(np.float16 if which.half else np.float32).min)},
        **{"frequencies": frequencies[None, None]},
        **{"cosines": np.cos(angles), "sines": np.sin(angles)},
    }
    return {
        **{name: np.asarray(value, np.int64) for name, value in integers.items()},
        **{name: np.asarray(value, np.float32) for name, value in floats.items()},
    }


_CONSTANTS = frozenset(_constants(Decoder()))
"""Initializers that are no weights."""

_NEW = "new1 = Shape<start = 1, end = 2>(input_ids) news = Squeeze(new1) last_new = Sub(news, one)"
"""What :func:`_constants` has where a file says how many words are new."""
_EXPLICIT = """
    batch1 = Shape<start = 0, end = 1>(past_key_values_0_key) past1 = Shape<start = 2, end = 3>(past_key_values_0_key)
    past0 = Squeeze(past1) total0 = Add(past0, news) total1 = Reshape(total0, last1)
    steps = Range(zero, news, one) position = Add(steps, past0) positions = Unsqueeze(position, at0)
    queries = Unsqueeze(positions, at0) query = Unsqueeze(queries, last1)
    keys = Range(zero, total0, one) key = Unsqueeze(keys, at012) past_seen = LessOrEqual(key, query)
    spread = Concat<axis = 0>(batch1, at1, at1, total1) seen = Expand(past_seen, spread)
"""
_GROUPED = """
    batch1 = Shape<start = 0, end = 1>(input_ids) past1 = Shape<start = 2, end = 3>(past_key_values_0_key)
    last64 = Add(past1, last_new) length64 = Expand(last64, batch1) lengths = Cast<to = 6>(length64)
    total64 = Add(past1, new1) total1 = Cast<to = 6>(total64)
    total = Squeeze(total1)
"""
_GENAI = """
    counts = ReduceSum<keepdims = 1>(attention_mask, at1) last64 = Sub(counts, at1) lengths = Cast<to = 6>(last64)
    mask_shape = Shape(attention_mask) total64 = Gather<axis = 0>(mask_shape, one) total = Cast<to = 6>(total64)
"""
_SHARED = """
    batch1 = Shape<start = 0, end = 1>(input_ids) length64 = Expand(position, batch1) lengths = Cast<to = 6>(length64)
    total1 = Shape<start = 2, end = 3>(past_key_values_0_key) total64 = Squeeze(total1) total = Cast<to = 6>(total64)
"""
_ATTENTION = """
    batch1 = Shape<start = 0, end = 1>(input_ids) past1 = Shape<start = 2, end = 3>(past_key_values_0_key)
    position_shape = Concat<axis = 0>(batch1, new1) steps = Range(zero, news, one) following = Add(steps, past1)
    past2 = Unsqueeze(following, at0) position = Expand(past2, position_shape)
"""
_ANGLES = """
    positions1 = Unsqueeze(positions, at2) turns = Cast<to = 1>(positions1) angle = Mul(turns, frequencies)
    angles = Concat<axis = -1>(angle, angle) cos0 = Cos(angles) sin0 = Sin(angles)
    cos1 = Cast<to = TYPE>(cos0) sin1 = Cast<to = TYPE>(sin0) cos = Unsqueeze(cos1, at1) sin = Unsqueeze(sin1, at1)
    spread5 = Concat<axis = 0>(batch1, key_heads, repeats, total1, sized)
    joined4 = Concat<axis = 0>(batch1, all_heads, total1, sized)
"""
_FIXED = f"""
    batch1 = Shape<start = 0, end = 1>(input_ids) total1 = Shape<start = 2, end = 3>(past_key_values_0_key)
    total0 = Squeeze(total1) keys = Range(zero, total0, one) positions = Unsqueeze(position, at0)
    here1 = Equal(keys, position) here = Unsqueeze(here1, last1) past_seen = LessOrEqual(keys, position)
    seen = Unsqueeze(past_seen, at012) row = Unsqueeze(position, last1) columns = Unsqueeze(row, at01)
    written = Concat<axis = 0>(batch1, key_heads, at1, sized) places = Expand(columns, written)
    {_ANGLES}
"""
_STATIC = f"""
    batch1 = Shape<start = 0, end = 1>(past_key_values_0_key) total1 = Shape<start = 2, end = 3>(past_key_values_0_key)
    total0 = Squeeze(total1) keys = Range(zero, total0, one) positions = Unsqueeze(position, at0)
    following = Add(at0, position) row = Unsqueeze(following, last1) query = Unsqueeze(row, at01) key = Unsqueeze(keys, at012)
    past_seen = LessOrEqual(key, query) spread = Concat<axis = 0>(batch1, at1, at1, total1) seen = Expand(past_seen, spread)
    {_ANGLES}
"""
_TENSORSCATTER = "positions = Unsqueeze(position, at1) counts = Add(position, one)"
_PREPARED: Mapping[Spelling, str] = {
    "explicit": _EXPLICIT + _ANGLES,
    "attention": _ATTENTION,
    "grouped": _GROUPED,
    "packed": _GROUPED,
    "genai": _GENAI,
    "multihead": _ATTENTION,
    "tensorscatter": _TENSORSCATTER,
    "shared": _SHARED,
    "static": _STATIC,
    **dict.fromkeys(("scatternd", "elements", "chosen"), _FIXED),
}


def _layer(n: int, x: str, which: Decoder) -> str:
    """The nodes of a layer, from ``x`` to the next."""
    attend = _ATTEND.get(which.spelling, _explicit_attention)
    hidden, inner, of_queries, of_keys = which.hidden, which.intermediate, which.query_width, which.key_width

    def by(name: str, operand: str, rows: int, columns: int) -> str:
        return _product(f"{name}{n}", f"{operand}{n}", f"{name}w{n}", rows, columns, which)

    columns = {"qkv": of_queries + 2 * of_keys} if which.spelling in _JOINED else {"q": of_queries, "k": of_keys, "v": of_keys}
    return f"""{_norm(f"before{n}", x, which, f"beforew{n}")}
        {" ".join(by(name, "before", hidden, count) for name, count in columns.items())} {attend(n, which)}
        {by("o", "side", of_queries, hidden)} middle{n} = Add({x}, o{n})
        {_norm(f"between{n}", f"middle{n}", which, f"betweenw{n}")}
        {by("gate", "between", hidden, inner)} bent{n} = Sigmoid(gate{n}) silu{n} = Mul(gate{n}, bent{n})
        {by("up", "between", hidden, inner)} wide{n} = Mul(silu{n}, up{n}) {by("down", "wide", inner, hidden)}
        x{n + 1} = Add(middle{n}, down{n})"""


def _norm(name: str, x: str, which: Decoder, weight: str = "lastw") -> str:
    """A normalisation by the root of the mean square; in half precision its statistics are single."""
    if which.spelling in _RUNTIME:
        return f"{name} = SimplifiedLayerNormalization<axis = -1, epsilon = 0.000001, stash_type = 1>({x}, {weight})"
    if _OPSETS.get(which.spelling, 0) >= 23:
        return f"{name} = RMSNormalization<axis = -1, epsilon = 0.000001>({x}, {weight})"
    wide = f"{name}_x = Cast<to = 1>({x})"
    return f"""{wide} {name}_p = Pow({name}_x, two) {name}_m = ReduceMean<keepdims = 1>({name}_p, last1)
        {name}_e = Add({name}_m, epsilon) {name}_s = Sqrt({name}_e) {name}_r = Reciprocal({name}_s)
        {name}_y = Mul({name}_x, {name}_r) {name}_n = Cast<to = {which.element_type}>({name}_y)
        {name} = Mul({weight}, {name}_n)"""


def _apart(n: int, which: Decoder) -> str:
    """Queries, keys and values as [batch,heads,new,size]."""
    text = []
    for name in "qkv":
        text.append(f"{name}h{n} = Reshape<allowzero = 0>({name}{n}, heads)")
        heads = f"{name}h{n}"
        if which.normalises_heads and name != "v":
            heads = f"{name}g{n}"
            text.append(_norm(heads, f"{name}h{n}", which, f"{name}gainw{n}"))
        text.append(f"{name}t{n} = Transpose<perm = [0, 2, 1, 3]>({heads})")
    return " ".join(text)


def _beside(n: int, which: Decoder) -> tuple[str, str, str]:
    """Queries and keys, [batch,new,heads * size], as their heads are to be: the nodes for it, and what they are called."""
    if not which.normalises_heads:
        return "", f"q{n}", f"k{n}"
    text = [
        f"""{name}h{n} = Reshape<allowzero = 0>({name}{n}, heads) {_norm(f"{name}g{n}", f"{name}h{n}", which, f"{name}gainw{n}")}
        {name}b{n} = Reshape<allowzero = 0>({name}g{n}, beside)"""
        for name in "qk"
    ]
    return " ".join(text), f"qb{n}", f"kb{n}"


def _explicit_attention(n: int, which: Decoder) -> str:
    text, hidden = [_apart(n, which)], "least" if which.spelling == "static" else "minus"
    for name in "qk":
        text.append(f"""{name}c{n} = Mul({name}t{n}, cos) {name}first{n} = Slice({name}t{n}, at0, half, at3, at1)
            {name}last{n} = Slice({name}t{n}, half, end, at3, at1) {name}m{n} = Neg({name}last{n})
            {name}x{n} = Concat<axis = -1>({name}m{n}, {name}first{n}) {name}s{n} = Mul({name}x{n}, sin)
            {name}r{n} = Add({name}c{n}, {name}s{n})""")
    for name, new, part in (("k", "kr", "key"), ("v", "vt", "value")):
        text.append(f"""{_present(n, part, f"{new}{n}", which)}
            {name}u{n} = Unsqueeze(present_{n}_{part}, at2) {name}e{n} = Expand({name}u{n}, spread5)
            {name}all{n} = Reshape<allowzero = 1>({name}e{n}, joined4)""")
    text.append(f"""kshape{n} = Shape<start = 0>(kall{n}) kn{n} = Slice(kshape{n}, last1, end)
        kp{n} = Slice(kshape{n}, first2, last1) kb{n} = Slice(kshape{n}, at0, first2)
        flat{n} = Concat<axis = 0>(last1, kp{n}, kn{n}) kf{n} = Reshape<allowzero = 0>(kall{n}, flat{n})
        kz{n} = Transpose<perm = [0, 2, 1]>(kf{n}) turned{n} = Concat<axis = 0>(kb{n}, kn{n}, kp{n})
        kd{n} = Reshape<allowzero = 0>(kz{n}, turned{n})
        qscaled{n} = Mul(qr{n}, root) kscaled{n} = Mul(kd{n}, root)
        mask{n} = Where(seen, nought, {hidden}) product{n} = MatMul(qscaled{n}, kscaled{n})
        masked{n} = Add(product{n}, mask{n})
        share{n} = Softmax<axis = -1>(masked{n}) none{n} = IsNaN(share{n}) weights{n} = Where(none{n}, nought, share{n})
        seen{n} = MatMul(weights{n}, vall{n}) back{n} = Transpose<perm = [0, 2, 1, 3]>(seen{n})
        side{n} = Reshape(back{n}, whole)""")
    return " ".join(text)


def _present(n: int, part: str, new: str, which: Decoder) -> str:
    """The cache with new keys or values, by plain operators."""
    past, present = f"past_key_values_{n}_{part}", f"present_{n}_{part}"
    if which.spelling == "elements":
        return f"{present} = ScatterElements<axis = 2>({past}, places, {new})"
    if which.spelling == "chosen":
        return f"{present} = Where(here, {new}, {past})"
    if which.spelling in ("static", "scatternd"):
        as_made = which.spelling == "static" and part == "value"  # torch.onnx joins what follows each other
        update = f"Transpose<perm = [1, 0, 2, 3]>(vh{n})" if as_made else f"Transpose<perm = [2, 0, 1, 3]>({new})"
        return f"""first_{n}_{part} = Transpose<perm = [2, 0, 1, 3]>({past}) update_{n}_{part} = {update}
            with_{n}_{part} = ScatterND(first_{n}_{part}, row, update_{n}_{part})
            {present} = Transpose<perm = [1, 2, 0, 3]>(with_{n}_{part})"""
    return f"{present} = Concat<axis = -2>({past}, {new})"


def _rotary(n: int, which: Decoder, inputs: str, domain: str = "") -> str:
    """Queries and keys with the rotary embedding, by an operator of tables and positions."""
    text, *beside = _beside(n, which)
    turned = (
        f"{name}r{n} = {domain}RotaryEmbedding<num_heads = {heads}>({x}, {inputs})"
        for name, x, heads in zip("qk", beside, (which.heads, which.key_heads), strict=True)
    )
    return " ".join((text, *turned))


def _standard_attention(n: int, which: Decoder) -> str:
    heads = f"q_num_heads = {which.heads}, kv_num_heads = {which.key_heads}" + (", is_causal = 1" if which.new != 1 else "")
    return f"""{_rotary(n, which, "cosines, sines, position")}
        side{n}, present_{n}_key, present_{n}_value = Attention<{heads}>(
            qr{n}, kr{n}, v{n}, , past_key_values_{n}_key, past_key_values_{n}_value)"""


def _counted_attention(n: int, which: Decoder) -> str:
    """Of heads beside each other, as keys and values are in the cache."""
    turned = " ".join(f"{name}r{n} = RotaryEmbedding({name}t{n}, cosines, sines, positions)" for name in "qk")
    return f"""{_apart(n, which)} {turned}
        present_{n}_key = TensorScatter<axis = -2>(past_key_values_{n}_key, kr{n}, position)
        present_{n}_value = TensorScatter<axis = -2>(past_key_values_{n}_value, vt{n}, position)
        seen{n} = Attention<is_causal = 1>(qr{n}, present_{n}_key, present_{n}_value, , , , counts)
        back{n} = Transpose<perm = [0, 2, 1, 3]>(seen{n}) side{n} = Reshape(back{n}, whole)"""


def _grouped_attention(n: int, which: Decoder) -> str:
    text, q, k = _beside(n, which)
    operands = f"qkv{n}, , " if which.spelling in _JOINED else f"{q}, {k}, v{n}"
    return f"""{text} side{n}, present_{n}_key, present_{n}_value = com.microsoft.GroupQueryAttention<
            num_heads = {which.heads}, kv_num_heads = {which.key_heads}, do_rotary = 1>(
            {operands}, past_key_values_{n}_key, past_key_values_{n}_value, lengths, total, cosines, sines)"""


def _multihead_attention(n: int, which: Decoder) -> str:
    return f"""{_rotary(n, which, "position, cosines, sines", "com.microsoft.")}
        side{n}, present_{n}_key, present_{n}_value = com.microsoft.MultiHeadAttention<num_heads = {which.heads}>(
            qr{n}, kr{n}, v{n}, , , , past_key_values_{n}_key, past_key_values_{n}_value)"""


_ATTEND: Mapping[Spelling, Callable[[int, Decoder], str]] = {
    "attention": _standard_attention,
    "grouped": _grouped_attention,
    "packed": _grouped_attention,
    "genai": _grouped_attention,
    "shared": _grouped_attention,
    "multihead": _multihead_attention,
    "tensorscatter": _counted_attention,
}
"""How the others attend than by plain operators."""
