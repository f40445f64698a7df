"""Nodes of onnxruntime's own operators, and of ONNX's attention, over forms and attributes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mugraph.ops import Operator, Reading, reader_of
from tests.support.onnx_helpers import foreign, make_node

F, H, I32, I64 = np.float32, np.float16, np.int32, np.int64
MS = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A node. Inputs are shapes (random floats), arrays, or None for an absent one; outputs are names, empty where absent."""

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    outputs: tuple[str, ...] = ("y0",)
    domain: str = MS
    opset: int = 20

    def __str__(self) -> str:
        shapes = ["-" if i is None else str(i) if isinstance(i, tuple) else f"{i.dtype}{list(i.shape)}" for i in self.inputs]
        attrs = [f"{k}={v}" for k, v in self.attrs.items()]
        return " ".join([self.op, *shapes, *attrs, *(o or "-" for o in self.outputs)]).replace(" ", "_")

    def arrays(self, seed: int = 0) -> list[np.ndarray | None]:
        generator = np.random.default_rng([zlib.crc32(str(self).encode()), seed])
        return [generator.uniform(-2, 2, value).astype(F) if isinstance(value, tuple) else value for value in self.inputs]


def read(case: Case, arrays: Sequence[np.ndarray | None]) -> tuple[Operator, Reading]:
    """The record of a case, and how it reads it."""
    record = reader_of(case.domain, case.op)
    assert record is not None
    node = make_node(case.op, arrays, case.attrs, case.outputs, case.domain)
    return record, record.read(foreign(node, arrays, case.opset, case.constants))


def wide(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Floats in double precision."""
    return [np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "f" else np.asarray(a) for a in arrays]


def _products() -> list[Case]:
    cases = []
    for trans_a in (0, 1):
        for trans_b in (0, 1):
            a, b = (3, 2) if trans_a else (2, 3), (4, 3) if trans_b else (3, 4)
            flags = {"transA": trans_a, "transB": trans_b}
            cases += [Case("FusedMatMul", [a, b], {**flags, "alpha": 0.5}), Case("FusedMatMul", [(5, *a), b], flags)]
            cases += [Case("FusedMatMul", [(2, 1, *a), (5, *b)], {**flags, "alpha": -2.0})]
            first = (a[0], 5, a[1])
            cases += [Case("FusedMatMul", [first, (5, *b)], {**flags, "transBatchA": 1})]
            cases += [Case("FusedMatMul", [first, (b[0], 5, b[1])], {**flags, "transBatchA": 1, "transBatchB": 1})]
            cases += [
                Case("FusedGemm", [a, b, c], {**flags, "alpha": 0.5, "beta": 2.0, "activation": "Relu"}) for c in ((4,), (2, 1))
            ]
            cases += [Case("FusedGemm", [a, b], {**flags, "beta": 3.0, "activation": "Tanh"})]
    cases += [Case("FusedMatMul", [(2, 6, 5, 3), (2, 6, 3, 4)]), Case("FusedMatMul", [(3,), (3, 4)], {"alpha": 3.0})]
    cases += [Case("FusedMatMul", [(3, 5, 6, 4), (5, 6, 4, 2)], {"transBatchA": 1})]
    return cases


ACTIVATIONS: list[tuple[str, tuple[float, ...]]] = [
    ("Relu", ()),
    ("LeakyRelu", (0.3,)),
    ("Elu", (0.7,)),
    ("Sigmoid", ()),
    ("Tanh", ()),
    ("Softplus", ()),
    ("Softsign", ()),
    ("HardSigmoid", (0.3, 0.4)),
]


def _activations() -> list[Case]:
    cases = []
    for name, parameters in ACTIVATIONS:
        given = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
        cases += [Case("FusedGemm", [(5, 3), (3, 4), (4,)], {"activation": name, **given})]
    for name, parameters in [*ACTIVATIONS, ("HardSwish", ()), ("Clip", (-0.5, 0.7))]:
        if name not in ("Elu", "Softplus", "Softsign"):
            given = {"activation": name, **({"activation_params": parameters} if parameters else {})}
            cases += [Case("FusedConv", [(1, 2, 4, 5), (3, 2, 2, 2), (3,)], given)]
    x, w, relu = (2, 4, 6, 5), (6, 2, 3, 2), {"activation": "Relu"}
    cases += [
        Case("FusedConv", [x, w], {**relu, "group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}),
        Case("FusedConv", [x, w, (6,)], {**relu, "group": 2, "auto_pad": "SAME_UPPER", "strides": (2, 2)}),
        Case("FusedConv", [(1, 2, 4, 5), (3, 2, 2, 2), (3,), (1, 3, 3, 4)], relu),
        Case("FusedConv", [(1, 2, 4, 5), (3, 2, 2, 2), None, (1, 3, 3, 4)], relu),
        Case("FusedConv", [(1, 2, 4, 5), (3, 2, 2, 2), None, (1, 3, 3, 4)]),
        Case("FusedConv", [(1, 2, 4, 5), (3, 2, 2, 2)], {"dilations": (2, 1)}),
        Case("FusedConv", [(1, 2, 7), (3, 2, 2), (3,)], relu),
    ]
    for shape in ((3, 8), (2, 3, 8), (2, 2, 3, 8)):
        cases += [Case("BiasGelu", [shape, (8,)]), Case("FastGelu", [shape, (8,)]), Case("FastGelu", [shape])]
        cases += [Case("Gelu", [shape]), Case("QuickGelu", [shape]), Case("QuickGelu", [shape], {"alpha": 1.0})]
    cases += [Case("QuickGelu", [(4, 5)], {"alpha": -0.5})]
    return cases


def _normalizations() -> list[Case]:
    cases = []
    for axis in (-1, 1, 0):
        tail = (2, 3, 4)[axis:]
        attrs = {"axis": axis, "epsilon": 1e-2, "stash_type": 1}
        cases += [Case("SimplifiedLayerNormalization", [(2, 3, 4), tail], attrs, domain="")]
    for shape in ((3, 8), (2, 3, 8)):
        for outputs in (("y0",), ("y0", "", "", "y1")):
            for more in ((), ((8,),), ((8,), (8,)), (None, (8,))):
                cases += [Case("SkipLayerNormalization", [shape, shape, (8,), *more], {"epsilon": 0.01}, outputs=outputs)]
            for more in ((), ((8,),)):
                cases += [
                    Case("SkipSimplifiedLayerNormalization", [shape, shape, (8,), *more], {"epsilon": 0.01}, outputs=outputs)
                ]
    cases += [
        Case("SkipLayerNormalization", [(3, 8), (3, 8), (8,)]),
        Case("SkipSimplifiedLayerNormalization", [(3, 8), (3, 8), (8,)]),
    ]
    return cases


GQA = [(2, 5, 32), (2, 5, 16), (2, 5, 16), None, None, np.full(2, 4, I32), np.asarray(5, I32)]
PADDED = [*GQA[:5], np.asarray([4, 2], I32), GQA[6]]
IDS = np.zeros((2, 3), I32)
MASK = np.asarray([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], I32)


def _attention() -> list[Case]:
    cases = []
    q, k, v = (2, 3, 8), (2, 5, 8), (2, 5, 12)
    for attrs in ({}, {"scale": 0.25}):
        cases += [Case("MultiHeadAttention", [q, k, v], {"num_heads": h, **attrs}) for h in (1, 2, 4)]
    two = {"num_heads": 2}
    cases += [
        Case("MultiHeadAttention", [q, k, v, (28,)], two),
        Case("MultiHeadAttention", [q, k, v, None, MASK], two),
        Case("MultiHeadAttention", [q, k, v, (28,), MASK], {**two, "mask_filter_value": -3.0}),
        Case("MultiHeadAttention", [q, k, v, (28,), MASK, (2, 1, 3, 5)], two),
        *(Case("MultiHeadAttention", [q, k, v, None, None, (b, h, 3, 5)], two) for b in (1, 2) for h in (1, 2)),
        Case("MultiHeadAttention", [q, q, q], {**two, "unidirectional": 1}),
        Case("MultiHeadAttention", [q, q, q, (24,), None, (1, 2, 3, 3)], {**two, "unidirectional": 1}),
        Case("MultiHeadAttention", [q, k, k], two, outputs=("y0", "y1", "y2")),
        Case("MultiHeadAttention", [q, q, q, (24,)], two, outputs=("y0", "y1", "y2")),
    ]
    x = (2, 5, 6)
    cases += [
        Case("Attention", [x, (6, 24), (24,)], two),
        Case("Attention", [x, (6, 24), (24,)], {**two, "scale": 0.3}),
        Case("Attention", [x, (6, 24), (24,)], {**two, "unidirectional": 1}),
        Case("Attention", [x, (6, 24), (24,), MASK], two),
        Case("Attention", [x, (6, 24), (24,), MASK], {**two, "mask_filter_value": -2.0, "unidirectional": 1}),
        Case("Attention", [x, (6, 24), (24,), MASK, None, (1, 2, 5, 5)], two),
        Case("Attention", [x, (6, 28), (28,)], {**two, "qkv_hidden_sizes": (8, 8, 12)}),
    ]
    lengths = GQA[5:]
    for heads, groups, rotary, size in ((4, 2, False, 8), (4, 4, True, 16), (6, 2, True, 16), (2, 1, True, 32)):
        tables = [(7, 8)] * 2 if rotary else []
        for interleaved in (0, 1) if rotary else (0,):
            attrs = {"num_heads": heads, "kv_num_heads": groups}
            attrs |= {"do_rotary": 1, "rotary_interleaved": interleaved} if rotary else {}
            inputs = [(2, 5, size * heads), (2, 5, size * groups), (2, 5, size * groups), None, None, *lengths, *tables]
            cases += [Case("GroupQueryAttention", inputs, attrs, constants=(5, 6), outputs=("y0", "y1", "y2"))]
    cases += [
        Case("GroupQueryAttention", inputs, {**attrs, "scale": 0.5}, constants=(5, 6), outputs=("y0", "y1", "y2")),
        *(
            Case(
                "GroupQueryAttention", inputs, {**attrs, "local_window_size": width}, constants=(5, 6), outputs=("y0", "y1", "y2")
            )
            for width in (1, 2, 4, 5, 9)
        ),
    ]
    four = [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)]
    three = [(2, 3, 32), (2, 5, 16), (2, 5, 12)]
    packed = {"q_num_heads": 4, "kv_num_heads": 2}
    seen = np.asarray([[True, False, True, True, False], [False, False, False, False, True], [True] * 5])
    new = {"domain": "", "opset": 23}
    cases += [
        Case("Attention", four, {}, **new),
        Case("Attention", four, {"scale": 0.2}, **new),
        Case("Attention", three, packed, **new),
        Case("Attention", [*four, (3, 5)], {}, **new),
        Case("Attention", [*four, seen], {}, **new),
        Case("Attention", [*four, (2, 1, 3, 5)], {}, **new),
        Case("Attention", [*three, (1, 4, 3, 5)], packed, **new),
        Case("Attention", [(2, 4, 3, 8)] * 3, {"is_causal": 1}, **new),
        Case("Attention", [(2, 3, 16)] * 3, {"is_causal": 1, "q_num_heads": 2, "kv_num_heads": 2}, **new),
        Case("Attention", [(2, 4, 3, 8)] * 3, {"softcap": 1.5}, **new),
    ]
    return [*cases, *_caches()]


def _caches() -> list[Case]:
    """Keys and values of positions that were before, with those of new ones."""
    three, cached = ("y0", "y1", "y2"), [(2, 2, 4, 8)] * 2
    heads, both = {"num_heads": 2}, [(2, 3, 16)] * 3
    masked = np.asarray([[1, 1, 0, 1, 1, 1, 0], [1] * 7], I32)
    cases = [
        Case("MultiHeadAttention", [*both, None, None, None, *cached], heads, outputs=three),
        Case("MultiHeadAttention", [*both, None, None, None, *cached], {**heads, "unidirectional": 1}, outputs=three),
        Case("MultiHeadAttention", [*both, (48,), None, (1, 2, 3, 7), *cached], heads, outputs=three),
        Case("MultiHeadAttention", [*both, None, masked, None, *cached], heads, outputs=three),
        Case("MultiHeadAttention", [(2, 1, 16)] * 3 + [None] * 3 + cached, heads, outputs=three),
    ]
    for new, past, rotary in ((1, 4, False), (3, 4, False), (1, 6, True), (3, 4, True)):
        grouped: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(rotary)}
        batch, size = (
            2 if new == 1 else 1,
            16 if rotary else 8,
        )  # of several positions behind a cache onnxruntime takes one sequence
        lengths = [np.full(batch, past + new - 1, I32), np.asarray(past + new, I32)]
        rest = [(batch, 2, past, size), (batch, 2, past, size), *lengths, *([(9, 8)] * 2 if rotary else [])]
        apart = [(batch, new, 4 * size), (batch, new, 2 * size), (batch, new, 2 * size)]
        cases += [
            Case("GroupQueryAttention", [*apart, *rest], grouped, (5, 6), three),
            Case("GroupQueryAttention", [*apart, *rest], {**grouped, "local_window_size": 3}, (5, 6), three),
            Case("GroupQueryAttention", [(batch, new, 8 * size), None, None, *rest], grouped, (5, 6), three),
        ]
    cases += _counted_caches()
    onnx_: dict[str, Any] = {"domain": "", "opset": 23, "outputs": three}
    wide, packed = [(2, 4, 3, 8), (2, 2, 3, 8), (2, 2, 3, 6)], {"q_num_heads": 4, "kv_num_heads": 2}
    past = [(2, 2, 4, 8), (2, 2, 4, 6)]
    shown = np.arange(21).reshape(3, 7) % 4 != 1
    cases += [
        Case("Attention", [*wide, None, *past], {}, **onnx_),
        Case("Attention", [*wide, None, *past], {"is_causal": 1}, **onnx_),
        Case("Attention", [(2, 4, 2, 8), *wide[1:], None, *past], {"is_causal": 1}, **onnx_),
        Case("Attention", [(2, 4, 1, 8), (2, 2, 1, 8), (2, 2, 1, 6), None, *past], {"is_causal": 1}, **onnx_),
        Case("Attention", [*wide, (2, 1, 3, 7), *past], {"softcap": 2.0}, **onnx_),
        Case("Attention", [*wide, shown, *past], {"is_causal": 1}, **onnx_),
        Case("Attention", [(2, 3, 32), (2, 3, 16), (2, 3, 12), None, *past], {**packed, "is_causal": 1}, **onnx_),
        Case("Attention", wide, {}, **onnx_),
    ]
    counts = np.asarray([2, 5], I64)
    buffers = [(2, 2, 6, 8), (2, 2, 6, 6)]
    static: dict[str, Any] = {"domain": "", "opset": 24}
    cases += [
        Case("Attention", [(2, 4, 1, 8), *buffers, None, None, None, counts], {"is_causal": 1}, **static),
        Case("Attention", [(2, 4, 2, 8), *buffers, None, None, None, counts], {"is_causal": 1}, **static),
        Case("Attention", [(2, 4, 3, 8), *buffers, None, None, None, counts], {"is_causal": 1}, **static),
        Case("Attention", [(2, 4, 3, 8), *buffers, None, None, None, counts], {}, **static),
    ]
    return cases


def _counted_caches() -> list[Case]:
    """GroupQueryAttention whose lengths are operands: of sequences of unequal length, behind caches that grow and longer ones."""
    cases = []
    three, grouped = ("y0", "y1", "y2"), {"num_heads": 4, "kv_num_heads": 2}
    tables = {**grouped, "do_rotary": 1}
    for last, past, total, rotary, further in (
        ([6, 3], 6, 7, False, {}),  # it grows, and one is shorter
        ([0, 4, 2], 9, 5, True, {}),  # a buffer that is longer than what counts, and a sequence without a past
        ([[5], [1]], 6, 6, True, {"rotary_interleaved": 1}),
        ([7, 2], 7, 8, True, {"local_window_size": 3}),
        ([7, 2], 11, 8, False, {"softcap": 1.5}),
        ([0, 0], 0, 1, True, {}),  # nothing was before
        ([0], 5, 1, False, {}),
    ):
        size, batch = 16 if rotary else 8, len(last)
        rest = [(batch, 2, past, size)] * 2 + [np.asarray(last, I32), np.asarray(total, I32)] + [(9, 8)] * 2 * rotary
        attrs = {**(tables if rotary else grouped), **further}
        apart = [(batch, 1, 4 * size), (batch, 1, 2 * size), (batch, 1, 2 * size)]
        cases += [Case("GroupQueryAttention", [*apart, *rest], attrs, (6,), three)]
        cases += [Case("GroupQueryAttention", [(batch, 1, 8 * size), None, None, *rest], attrs, (6,), three)]
    for last, past, total, further in (
        ([7], 12, 8, {}),  # a prompt that goes on
        ([2], 12, 3, {}),  # a prompt, into an empty buffer
        ([6], 4, 7, {"local_window_size": 2}),
        ([8], 6, 9, {"softcap": 2.0}),
    ):
        rest = [(1, 2, past, 16)] * 2 + [np.asarray(last, I32), np.asarray(total, I32), (9, 8), (9, 8)]
        cases += [Case("GroupQueryAttention", [(1, 3, 128), None, None, *rest], {**tables, **further}, (6,), three)]
    return cases


def _rotary() -> list[Case]:
    cases = []
    ids = np.asarray([[0, 1, 2], [4, 3, 6]], I64)
    new = {"domain": "", "opset": 23}
    for flag in ({}, {"interleaved": 1}):
        cases += [
            Case("RotaryEmbedding", [(2, 3, 16), ids, (7, 4), (7, 4)], flag),
            Case("RotaryEmbedding", [(2, 2, 3, 8), ids, (7, 4), (7, 4)], flag),
            Case("RotaryEmbedding", [(2, 3, 16), ids, (7, 2), (7, 2)], {**flag, "num_heads": 2, "rotary_embedding_dim": 4}),
            Case("RotaryEmbedding", [(2, 2, 3, 8), ids, (7, 2), (7, 2)], {**flag, "num_heads": 2, "rotary_embedding_dim": 4}),
            Case("RotaryEmbedding", [(2, 2, 3, 8), (7, 4), (7, 4), ids], flag, **new),
            Case("RotaryEmbedding", [(2, 2, 3, 8), (2, 3, 4), (2, 3, 4)], flag, **new),
            Case("RotaryEmbedding", [(2, 3, 16), (7, 4), (7, 4), ids], {**flag, "num_heads": 2}, **new),
            Case(
                "RotaryEmbedding", [(2, 3, 16), (7, 2), (7, 2), ids], {**flag, "num_heads": 2, "rotary_embedding_dim": 4}, **new
            ),
        ]
    return cases


def _embeddings() -> list[Case]:
    ids = np.asarray([[0, 4, 2], [1, 1, 3]], I32)
    tables = [ids, ids % 2, (5, 8), (6, 8), (2, 8), (8,), (8,)]
    without = [ids, None, (5, 8), (6, 8), None, (8,), (8,)]
    return [
        Case("EmbedLayerNormalization", inputs, {"epsilon": 0.01}, outputs=outputs)
        for inputs in (tables, without)
        for outputs in (("y0", "y1"), ("y0", "y1", "y2"))
    ]


CASES = [*_embeddings(), *_products(), *_activations(), *_normalizations(), *_attention(), *_rotary()]
