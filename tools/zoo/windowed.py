"""Small models whose layers attend within windows, as transformers' models export their masks; the weights are random.

Only what masks and attention consist of is kept of each: ModernBERT (every third layer sees all that is no padding, the others 64
positions to both sides) and Gemma 3 (every sixth layer sees all positions before it, the others the last ones among them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from tools.zoo.draws import Array, normal

__all__ = ["SPELLINGS", "Windowed", "windowed_model"]

Spelling = Literal["boolean", "added", "filled"]
SPELLINGS: tuple[Spelling, ...] = ("boolean", "added", "filled")
"""How masks reach the scores: as truth values of which scaled_dot_product_attention makes 0 and -inf; as 0 and the least finite
number, that eager attention adds; and the latter as ModernBERT wrote it at first, a window filled into a padding mask."""

_HEADS, _SIZE, _WORDS = 4, 16, 100


@dataclass(frozen=True)
class Windowed:
    """Which model, and how it is spelled.

    Attributes:
        layers: the width of each layer's window; ``None`` where it has none.
        is_causal: whether a position sees what is before it alone; else a window has two sides.
        key_heads: of which each serves several heads of queries.
        spelling: one of :data:`SPELLINGS`.
        sequence: the number of positions; ``None`` for any.
    """

    layers: tuple[int | None, ...]
    is_causal: bool
    key_heads: int
    spelling: Spelling
    sequence: int | None

    @staticmethod
    def modernbert(spelling: Spelling, sequence: int | None = None) -> Windowed:
        """Layers as in transformers' ``ModernBertModel``, whose ``local_attention`` is 128."""
        return Windowed((None, 128, 128, None), False, _HEADS, spelling, sequence)

    @staticmethod
    def gemma3(spelling: Spelling, sequence: int | None = None, window: int = 64) -> Windowed:
        """Layers as in transformers' ``Gemma3TextModel``, five of six with a ``sliding_window``."""
        return Windowed((window,) * 5 + (None,), True, _HEADS // 2, spelling, sequence)


def windowed_model(which: Windowed, seed: int = 0) -> onnx.ModelProto:
    """The model: words ``input_ids`` and a padding mask ``attention_mask``, both int64[batch,sequence], to ``hidden``."""
    generator = np.random.default_rng(seed)
    width, of_keys = _HEADS * _SIZE, which.key_heads * _SIZE
    length = "s" if which.sequence is None else which.sequence
    weights: dict[str, Array] = {"words": normal(generator, (_WORDS, width), 1.0)}
    text, x = [_masks(which)], "x0"
    for number, window in enumerate(which.layers):
        for name, columns in (("q", width), ("k", of_keys), ("v", of_keys), ("o", width)):
            weights[f"{name}w{number}"] = normal(generator, (width, columns), width**-0.5)
        text.append(_layer(number, x, "all" if window is None else f"near{window}", which))
        x = f"x{number + 1}"
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 20], producer_name: "tools.zoo">
        g (int64[b,{length}] input_ids, int64[b,{length}] attention_mask) => (float[b,{length},{width}] hidden) {{
            x0 = Gather<axis = 0>(words, input_ids)
            {" ".join(text)}
            hidden = Identity({x})
        }}""")
    constants: Mapping[str, Array | Sequence[int] | float] = {
        **{"zero": 0, "one": 1, "sizes1": [1], "below": [1], "beside": [0], "lead": [0, 1], "lead4": [1, 2], "all4": [0, 1, 2]},
        **{"heads": [0, 0, -1, _SIZE], "whole": [0, 0, width], "tail": [1, 2, 3], "yes": np.array(True), "group": [2]},
        **{f"w{w}": w for w in which.layers if w is not None},
        **{f"half{w}": w // 2 for w in which.layers if w is not None},
        **{"nought": np.float32(0), "unit": np.float32(1), "scale": np.float32(_SIZE**-0.5), "root": np.float32(_SIZE**-0.25)},
        **{"least": np.finfo(np.float32).min, "minus": np.float32(-np.inf), "key_heads": [which.key_heads], "sized": [_SIZE]},
        **{"repeats": [_HEADS // which.key_heads], "joined": [0, _HEADS, -1, _SIZE], "all_batches": [-1]},
    }
    used = {name for node in model.graph.node for name in node.input}
    tensors = {**{n: np.asarray(v) for n, v in constants.items()}, **weights}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items() if name in used)
    return model


def _masks(which: Windowed) -> str:
    """Nodes that compute ``all`` and the windows, in four dimensions."""
    text = [
        """shape = Shape(input_ids) batch = Gather<axis = 0>(shape, zero) length = Gather<axis = 0>(shape, one)
        steps = Range(zero, length, one)"""
    ]
    widths = sorted({window for window in which.layers if window is not None})
    if which.spelling == "filled":
        # modeling_modernbert.py of transformers 4.48: _prepare_4d_attention_mask, then masked_fill by the negated window
        text.append("""three = Unsqueeze(attention_mask, lead4) batch1 = Unsqueeze(batch, beside)
            length1 = Unsqueeze(length, beside) spread = Concat<axis = 0>(batch1, sizes1, length1, length1)
            expanded = Expand(three, spread) floating = Cast<to = 1>(expanded) inverted = Sub(unit, floating)
            hidden_there = Cast<to = 9>(inverted) all = Where(hidden_there, least, inverted)
            across = Unsqueeze(steps, beside) down = Transpose<perm = [1, 0]>(across) apart0 = Sub(across, down)
            apart = Abs(apart0)""")
        for width in widths:
            text.append(f"""close{width} = LessOrEqual(apart, half{width}) close3{width} = Unsqueeze(close{width}, beside)
                close4{width} = Unsqueeze(close3{width}, beside) far{width} = Not(close4{width})
                near{width} = Where(far{width}, least, all)""")
        return " ".join(text)
    # masking_utils.py of transformers 4.53 on: functions of batch, query and key, joined by And; padding is looked up last
    text.append("""rows = Unsqueeze(steps, below) query = Unsqueeze(rows, lead) key = Unsqueeze(steps, all4)
        batches0 = Range(zero, batch, one) batches = Unsqueeze(batches0, tail) padding = Cast<to = 9>(attention_mask)
        together = Add(batches, key) whole1 = Shape(together) batch_at = Expand(batches, whole1) key_at = Expand(key, whole1)
        batch_i = Unsqueeze(batch_at, all_batches) key_i = Unsqueeze(key_at, all_batches)
        index = Concat<axis = -1>(batch_i, key_i) padded = GatherND(padding, index)
        batch_1 = Unsqueeze(batch, beside) length_1 = Unsqueeze(length, beside)
        spread = Concat<axis = 0>(batch_1, sizes1, length_1, length_1)
        past = LessOrEqual(key, query) every = GreaterOrEqual(query, zero)""")
    for width in (None, *widths):
        name = "all" if width is None else f"near{width}"
        inner = "past" if which.is_causal else "every"
        seen = f"seen_{name} = And(yes, {inner})"
        if width is not None and which.is_causal:
            seen = f"""first{width} = Sub(query, w{width}) window{width} = Greater(key, first{width})
                first_{name} = And(yes, window{width}) seen_{name} = And(first_{name}, {inner})"""
        elif width is not None:
            seen = f"""apart0{width} = Sub(query, key) apart{width} = Abs(apart0{width})
                window{width} = LessOrEqual(apart{width}, half{width})
                first_{name} = And(yes, window{width}) seen_{name} = And(first_{name}, {inner})"""
        low = "minus" if which.spelling == "boolean" else "least"
        text.append(f"""{seen} both_{name} = And(yes, seen_{name}) shown_{name} = And(both_{name}, padded)
            spread_{name} = Expand(shown_{name}, spread) {name} = Where(spread_{name}, nought, {low})""")
    return " ".join(text)


def _layer(number: int, x: str, mask: str, which: Windowed) -> str:
    """The nodes of a layer, from ``x`` to the next: attention and a sum."""
    n, text = number, []
    for name in "qkv":
        text.append(f"{name}a{n} = MatMul({x}, {name}w{n}) {name}b{n} = Reshape({name}a{n}, heads)")
        text.append(f"{name}c{n} = Transpose<perm = [0, 2, 1, 3]>({name}b{n})")
    for name in "kv" if which.key_heads != _HEADS else "":
        text.append(f"""{name}s{n} = Shape({name}c{n}) {name}g{n} = Unsqueeze({name}c{n}, group)
            {name}l{n} = Gather<axis = 0>({name}s{n}, zero) {name}l1{n} = Unsqueeze({name}l{n}, beside)
            {name}m{n} = Unsqueeze(length, beside)
            {name}h{n} = Concat<axis = 0>({name}l1{n}, key_heads, repeats, {name}m{n}, sized)
            {name}e{n} = Expand({name}g{n}, {name}h{n}) {name}r{n} = Reshape({name}e{n}, joined)""")
    k, v = (f"{name}{'r' if which.key_heads != _HEADS else 'c'}{n}" for name in "kv")
    text.append(f"kt{n} = Transpose<perm = [0, 1, 3, 2]>({k})")
    if which.spelling == "boolean":  # torchlib's aten_scaled_dot_product_attention
        text.append(f"""qd{n} = Mul(qc{n}, root) kd{n} = Mul(kt{n}, root) scores{n} = MatMul(qd{n}, kd{n})
            masked{n} = Add(scores{n}, {mask}) share{n} = Softmax<axis = -1>(masked{n}) none{n} = IsNaN(share{n})
            weights{n} = Where(none{n}, nought, share{n})""")
    else:
        text.append(f"""product{n} = MatMul(qc{n}, kt{n}) scores{n} = Mul(product{n}, scale) masked{n} = Add(scores{n}, {mask})
            weights{n} = Softmax<axis = -1>(masked{n})""")
    text.append(f"""seen{n} = MatMul(weights{n}, {v}) turned{n} = Transpose<perm = [0, 2, 1, 3]>(seen{n})
        side{n} = Reshape(turned{n}, whole) out{n} = MatMul(side{n}, ow{n}) x{n + 1} = Add({x}, out{n})""")
    return " ".join(text)
