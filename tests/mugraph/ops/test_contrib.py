"""onnxruntime's own operators: reading, typing, meaning, decomposition and writing, against its CPU kernels."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mugraph.domains import FiniteField, Range, RangeDomain, Real, Unsupported
from mugraph.domains.base import BYTES
from mugraph.onnx import load
from mugraph.ops import RUNTIME_OPERATORS, NotExpressible, NotUnderstood, Operator, Reading, get_operator, reader_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, symbol
from mugraph.terms.term import Term, make_attrs, substitute, var
from mugraph.terms.text import parse_type
from rules_db.trust.condition import Facts
from rules_db.trust.properties import load_axioms
from tests.support.models import FLOAT, build, check_round_trip, run_both, values
from tests.support.onnx_helpers import foreign, inferred, make_node, run_form, run_node, type_of
from tests.support.ranges import claims

F, H, I32, I64 = np.float32, np.float16, np.int32, np.int64
MS = "com.microsoft"


def test_every_runtime_that_will_do_counts_a_position_within_its_own_window() -> None:
    """GroupQueryAttention of onnxruntime 1.23 and before shows one position more than ``local_window_size``."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(r'"onnxruntime(?:-gpu)?>=(\d+)\.(\d+);', text)
    assert len(wanted) == 2 and all((int(major), int(minor)) >= (1, 24) for major, minor in wanted)


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


def test_every_operator_has_a_case() -> None:
    contrib = {(case.domain, case.op) for case in CASES}
    elsewhere = {(MS, "NhwcConv"), ("onnx.superopt", "Kernel")}  # no kernel on a CPU: test_layouts.py, test_kernel_op.py
    elsewhere |= {("onnx.superopt", "CpuKernel")}  # test_cpu_kernels.py
    elsewhere |= {key for key, record in RUNTIME_OPERATORS.items() if BYTES in record.contract.inputs}  # test_quantized.py
    elsewhere |= {(MS, "MatMulNBits")}  # test_packed.py
    assert contrib | elsewhere == {*RUNTIME_OPERATORS, ("", "Attention"), ("", "RotaryEmbedding")}


@pytest.mark.parametrize("scale", [0.0, 1e-60])
def test_a_scale_of_zero_cannot_be_written(scale: float) -> None:
    """A runtime takes 0 for the default, and so it takes what is 0 in single precision."""
    operands = [TensorType(DataType.FLOAT, (2, 3, 32))] * 3
    attrs = make_attrs({**get_operator("MultiHeadAttention").defaults, "num_heads": 2, "scale": scale})
    with pytest.raises(NotExpressible, match="stands for the default"):
        get_operator("MultiHeadAttention").to_onnx(attrs, operands, 17)


def _agree(actual: Sequence[Any], expected: Sequence[np.ndarray], rtol: float, atol: float) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert np.shape(a) == e.shape
        np.testing.assert_allclose(np.asarray(a), e, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    """Read; equal to onnxruntime in floats; written and run again."""
    arrays = case.arrays()
    node = make_node(case.op, arrays, case.attrs, case.outputs, case.domain)
    expected = run_node(node, arrays, case.opset, case.constants)
    record, reading = read(case, arrays)
    operands = [np.asarray(arrays[i]) for i in reading.operands]
    types = [type_of(a) for a in operands]
    assert record.types(reading.attrs, types) == tuple(map(type_of, expected))
    _agree(record.run(Real(), reading.attrs, wide(operands)), expected, rtol=2e-5, atol=4e-6)
    form = record.to_onnx(reading.attrs, types, case.opset)
    _agree(run_form(form, operands, case.opset, len(expected)), expected, rtol=0, atol=0)
    assert record.flops({**record.defaults, **reading.attrs}, types, record.types(reading.attrs, types)) > 0


def _batched() -> list[Case]:
    """Cases whose floats are of one rank, or vectors beside it; who evaluates others aligns them."""
    found = []
    for case in CASES:
        ranks = {len(shape) for shape in case.inputs if isinstance(shape, tuple)} - {1}
        if len(ranks) == 1 and case.op not in ("FusedGemm", "SimplifiedLayerNormalization", "EmbedLayerNormalization"):
            found.append(case)
    return found[::2]


@pytest.mark.parametrize("case", _batched(), ids=str)
def test_leading_axes_do_not_matter(case: Case) -> None:
    """Several programs' floats evaluated at once give what each gives alone; masks and indices are theirs in common."""
    arrays = case.arrays()
    record, reading = read(case, arrays)
    batches = [[a for a in (case.arrays(seed=seed)[i] for i in reading.operands) if a is not None] for seed in (1, 2)]
    shared = [a.dtype != F for a in batches[0]]
    stacked = [a if same else np.stack([a, b]) for a, b, same in zip(*batches, shared, strict=True)]
    together = record.run(Real(), reading.attrs, wide(stacked))
    for index, operands in enumerate(batches):
        alone = record.run(Real(), reading.attrs, wide(operands))
        _agree([t[index] for t in together], alone, rtol=1e-9, atol=1e-9)


def _causal(case: Case) -> bool:
    """Whether positions hide keys: not from a single one, which is the last."""
    hides = case.attrs.get("unidirectional") or case.attrs.get("is_causal") or case.op == "GroupQueryAttention"
    return bool((hides and case.inputs[0][-2] > 1) or "local_window_size" in case.attrs or _counted(case))


def _counted(case: Case) -> bool:
    """Whether an operand of ONNX's Attention says how many keys count."""
    return (case.domain, case.op) == ("", "Attention") and len(case.inputs) == 7


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_exact_and_abstract_domains(case: Case) -> None:
    """A finite field gives every output, but where keys are hidden by infinities; the ranges claimed are true."""
    arrays = case.arrays()
    record, reading = read(case, arrays)
    operands = [np.asarray(arrays[i]) for i in reading.operands]
    outputs = record.types(reading.attrs, [type_of(a) for a in operands])
    field_, generator = FiniteField(3), np.random.default_rng(3)
    residues = [field_.random(generator, a.shape) if a.dtype == F else a for a in operands]
    if _causal(case) or any(a.dtype == bool for a in operands):
        with pytest.raises(Unsupported):
            record.run(field_, reading.attrs, residues)
    else:
        assert [r.shape for r in record.run(field_, reading.attrs, residues)] == [t.shape for t in outputs]
    ranges = record.run(
        RangeDomain(), reading.attrs, [Range.finite_input(-2, 2) if a.dtype == F else Range.of(a) for a in operands]
    )
    values = record.run(Real(), reading.attrs, wide(operands))
    assert not [claims(r, v) for r, v in zip(ranges, values, strict=True) if claims(r, v)]
    if "Attention" in case.op and not any(a.dtype == bool for a in operands) and not _counted(case):
        assert ranges[0].finite  # every query sees a key, so that guards against NaN further on can go


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        ("FusedMatMul", "alpha", 0.51),
        ("FusedMatMul", "transA", None),
        ("FusedGemm", "activation", "Sigmoid"),
        ("FusedConv", "activation", "Sigmoid"),
        ("SkipLayerNormalization", "epsilon", 0.1),
        ("SkipSimplifiedLayerNormalization", "bias", True),
        ("SimplifiedLayerNormalization", "epsilon", 0.1),
        ("QuickGelu", "alpha", 1.5),
        ("MultiHeadAttention", "scale", 0.4),
        ("MultiHeadAttention", "num_heads", 1),
        ("MultiHeadAttention", "unidirectional", None),
        ("MultiHeadAttention", "mask_filter_value", -1.0),
        ("Attention", "unidirectional", None),
        ("Attention", "is_causal", None),
        ("Attention", "softcap", 1.0),
        ("Attention", "nonpad", None),
        ("GroupQueryAttention", "past", None),
        ("GroupQueryAttention", "rotary_interleaved", None),
        ("GroupQueryAttention", "local_window_size", 3),
        ("RotaryEmbedding", "interleaved", None),
    ],
)
def test_every_attribute_matters(op: str, name: str, value: Any) -> None:
    """A record that took an attribute for another is found out by a case; ``None`` turns a flag."""
    for case in CASES:
        arrays = case.arrays()
        if case.op != op or read(case, arrays)[1].attrs.get(name) is None:
            continue
        record, reading = read(case, arrays)
        operands = [np.asarray(arrays[i]) for i in reading.operands]
        right = record.run(Real(), reading.attrs, wide(operands))
        wrong = {**reading.attrs, name: not reading.attrs[name] if value is None else value}
        try:
            record.types(wrong, [type_of(a) for a in operands])
            _agree(record.run(Real(), wrong, wide(operands)), right, rtol=1e-4, atol=1e-5)
        except (AssertionError, ShapeError):
            return
    pytest.fail(f"no case of {op} depends on {name}")


# Kernels


def _provided(case: Case, dtype: Any, folder: Path) -> bool:
    """Whether the CPU provider runs a node as it is: not inlined, and without casts to another type around it."""
    arrays = [a.astype(dtype) if a is not None and a.dtype == F else a for a in case.arrays()]
    node = make_node(case.op, arrays, case.attrs, case.outputs, case.domain)
    written = folder / "loaded.onnx"
    try:
        run_node(node, arrays, case.opset, case.constants, runs=dtype != DataType.BFLOAT16.numpy(), written=written)
    except Exception:  # onnxruntime raises many types where a kernel is missing
        return False
    return [inner.op_type for inner in onnx.load(written).graph.node] == [case.op]


@pytest.mark.parametrize("op", sorted({(case.domain, case.op) for case in CASES}))
def test_element_types_of_the_cpu_provider(op: tuple[str, str], tmp_path: Path) -> None:
    cases = [case for case in CASES if (case.domain, case.op) == op]
    record = reader_of(*op)
    assert record is not None
    provided = {
        dtype
        for dtype in (DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.BFLOAT16)
        if _provided(cases[0], dtype.numpy(), tmp_path) and _provided(cases[-1], dtype.numpy(), tmp_path)
    }
    assert record.providers["cpu"] == provided


def _half_cases() -> list[Case]:
    return [
        case
        for case in CASES[::5]
        if DataType.FLOAT16 in (reader_of(case.domain, case.op).providers["cpu"] or ())  # type: ignore[union-attr]
    ]


@pytest.mark.parametrize("case", _half_cases(), ids=str)
def test_half_precision(case: Case) -> None:
    arrays = [a.astype(H) if a is not None and a.dtype == F else a for a in case.arrays()]
    record, reading = read(case, arrays)
    node = make_node(case.op, arrays, case.attrs, case.outputs, case.domain)
    expected = run_node(node, arrays, case.opset, case.constants)
    operands = [np.asarray(arrays[i]) for i in reading.operands]
    assert record.types(reading.attrs, [type_of(a) for a in operands]) == tuple(map(type_of, expected))
    _agree(record.run(Real(), reading.attrs, wide(operands)), expected, rtol=2e-2, atol=2e-2)


# What is not understood or cannot be written, and why


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("FusedMatMul", [(2, 3), (3, 2)], {"future": 1}), "attribute future"),
        (Case("FusedMatMul", [(3,), (3, 2)], {"transA": 1}), "transposed"),
        (Case("FusedMatMul", [(2, 3), (3, 2)], {"transBatchA": 1}), "transposed"),
        (Case("FusedGemm", [(2, 3), (3, 2)], {"activation": "ScaledTanh", "activation_alpha": 1.0}), "activation 'ScaledTanh'"),
        (Case("FusedGemm", [(2, 3), (3, 2)], {"activation": "LeakyRelu"}), "0 parameters"),
        (Case("FusedGemm", [(2, 3), (3, 2)]), "activation ''"),
        (Case("FusedConv", [(1, 2, 4, 4), (3, 2, 2, 2)], {"activation": "Selu"}), "activation 'Selu'"),
        (Case("FusedConv", [(1, 2, 4, 4), (3, 2, 2, 2), None, (1, 1, 1, 1)]), "residual"),
        (Case("SimplifiedLayerNormalization", [(2, 3), (3,)], {"stash_type": 10}, domain=""), "stash_type"),
        (Case("SimplifiedLayerNormalization", [(2, 3), (3,)], outputs=("y0", "y1"), domain=""), "2 outputs"),
        (Case("SkipLayerNormalization", [(2, 3, 4), (3, 4), (4,)]), "skip connection"),
        (Case("SkipLayerNormalization", [(1, 2, 3, 4), (1, 2, 3, 4), (4,)]), "skip connection"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (6, 8), None, (8,), (8,), IDS]), "with a mask"),
        (Case("EmbedLayerNormalization", [IDS, IDS, (5, 8), (6, 8), None, (8,), (8,)]), "half of its segments"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (6, 4), None, (8,), (8,)]), "EmbedLayerNormalization"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (2, 8), None, (8,), (8,)]), "Slice"),
        (Case("BiasGelu", [(2, 3), (1,)]), "bias"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 8), None, np.ones(2, I32)], {"num_heads": 2}), "mask"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 8)], {"num_heads": 2, "unidirectional": 1}), "causal"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {"num_heads": 2}), "MultiHeadAttention of"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8)], {"num_heads": 2}), "its value"),
        (Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4)], {"num_heads": 2}), "no past values"),
        (Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4), (2, 2, 5, 4)], {"num_heads": 2}), "the cache"),
        (
            Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4)] * 2 + [IDS], {"num_heads": 2}),
            "past_sequence_length",
        ),
        (Case("MultiHeadAttention", [(2, 3, 9)] * 3, {"num_heads": 2}), "no multiple"),
        (Case("Attention", [(2, 5, 6), (6, 24), None], {"num_heads": 2}), "its bias"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,), np.ones((2,), I32)], {"num_heads": 2}), "mask"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,)], {"num_heads": 2}, outputs=("y0", "y1")), "cache"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,)], {"num_heads": 2, "do_rotary": 1}), "rotary"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2}), "sequence lengths"),
        (Case("GroupQueryAttention", PADDED, {"num_heads": 4, "kv_num_heads": 2}, (5, 6)), "sequence lengths"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 0}, (5, 6)), "window"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, (5, 6)), "tables"),
        (
            Case("GroupQueryAttention", [*GQA[:3], (2, 2, 1, 8), *GQA[4:]], {"num_heads": 4, "kv_num_heads": 2}, (5, 6)),
            "not those of its cache",
        ),
        (
            Case("GroupQueryAttention", [*GQA, None, None, IDS], {"num_heads": 4, "kv_num_heads": 2}, (5, 6)),
            "position_ids",
        ),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros(1, I64), (7, 4), (7, 4)]), "positions"),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros((2, 3), I64), (7, 4), (7, 4)], {"scale": 2.0}), "scaled"),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros((2, 3), I64), (7, 2), (7, 2)], {"rotary_embedding_dim": 4}), "heads"),
        (Case("Attention", [(2, 4, 3, 8)] * 3, {"softcap": -1.0}, domain="", opset=23), "softcap"),
        (Case("Attention", [(2, 4, 3, 8)] * 3, {}, outputs=("y0", "", "", "y3"), domain="", opset=23), "its scores"),
        (Case("Attention", [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)], {"is_causal": 1}, domain="", opset=23), "causal"),
        (Case("Attention", [(2, 4, 3, 8)] * 3 + [None] + [(2, 4, 1, 8)], {}, domain="", opset=23), "no past values"),
        (Case("Attention", [(2, 4, 3, 8)] * 3 + [None, (2, 4, 1, 8), (2, 4, 2, 8)], {}, domain="", opset=23), "cache"),
    ],
    ids=str,
)
def test_not_understood(case: Case, reason: str) -> None:
    """By reading or, where operands do not fit, by typing: both leave the node opaque."""
    arrays = case.arrays()
    with pytest.raises((NotUnderstood, ShapeError), match=re.escape(reason)):
        record, reading = read(case, arrays)
        record.types(reading.attrs, [type_of(np.asarray(arrays[i])) for i in reading.operands])


@pytest.mark.parametrize(
    ("op", "attrs", "types", "reason"),
    [
        ("SkipLayerNormalization", {}, "double[2,3] double[2,3] double[3]", "of double"),
        ("FusedMatMul", {"future": 1}, "float[2,3] float[3,2]", None),
        ("MultiHeadAttention", {"num_heads": 2, "scale": 0.5}, "double[2,3,8] double[2,3,8] double[2,3,8]", "of double"),
        ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 2, "scale": 1.0}, "[b,3,16] [b,3,16] [b,3,16]", "lengths"),
        ("Attention", {"scale": 1.0}, "[2,2,3,8] [2,2,3,8] [2,2,3,8]", "does not exist"),
    ],
)
def test_not_expressible(op: str, attrs: Mapping[str, Any], types: str, reason: str | None) -> None:
    operands = [parse_type(t) for t in types.split()]
    if reason is None:  # what a record does not know it does not write
        assert "future" not in get_operator(op).to_onnx(attrs, operands, 17).attributes
        return
    with pytest.raises(NotExpressible, match=reason):
        get_operator(op).to_onnx(attrs, operands, 17)


def test_a_causal_mask_of_symbolic_size_is_written_where_positions_are_compared() -> None:
    attrs = {"rows": symbol("n"), "columns": symbol("n")}
    assert get_operator("CausalMask").to_onnx(attrs, [], 12).op_type == "LessOrEqual"
    with pytest.raises(NotExpressible, match="LessOrEqual does not exist at opset 11"):
        get_operator("CausalMask").to_onnx(attrs, [], 11)


def test_the_contract_is_checked() -> None:
    """An attribute that onnxruntime's operator does not have, or one input too many, is not written."""
    record = get_operator("QuickGelu")
    for change in ({"attributes": {"beta": 1.0}}, {"inputs": (0, 0)}):
        wrong = replace(record, write=lambda attrs, types, opset, c=change: replace(record.write(attrs, types, opset), **c))  # type: ignore[misc]
        with pytest.raises(NotExpressible, match="QuickGelu"):
            wrong.to_onnx({}, [parse_type("float[3]")], 17)


# Typing


@pytest.mark.parametrize(
    ("term", "types", "expected"),
    [
        ("FusedMatMul[transA=true](x, y)", "[b,k,n] [b,k,m]", "[b,n,m]"),
        ("FusedMatMul[transBatchA=3](x, y)", "[n,b,k] [b,k,m]", "[b,n,m]"),
        ("FusedGemm[transB=true](x, y)", "[n,k] [m,k]", "[n,m]"),
        ("FusedConv[dilations=(1,),pads=(1,1),residual=true,strides=(1,)](x, y, z)", "[n,c,l] [o,c,3] [n,o,l]", "[n,o,l]"),
        ("SkipLayerNormalization[bias=true,sum=true].1(x, y, z, z)", "[b,s,h] [b,s,h] [h]", "[b,s,h]"),
        ("BiasGelu(x, y)", "float16[b,s,h] float16[h]", "float16[b,s,h]"),
        ("MultiHeadAttention[num_heads=4,scale=1.0](x, y, z)", "[b,s,8*d] [b,t,8*d] [b,t,8*e]", "[b,s,8*e]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0,unidirectional=true](x, x, x)", "[b,s,64]", "[b,s,64]"),
        ("OrtAttention[num_heads=2,qkv_hidden_sizes=(8,8,4),scale=1.0](x, y, z)", "[b,s,h] [h,20] [20]", "[b,s,4]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[b,s,16] int64[b,s] [m,4]", "[b,s,16]"),
        ("GroupQueryAttention[kv_num_heads=2,num_heads=4,scale=1.0].1(x, y, y)", "[b,s,32] [b,s,16]", "[b,2,s,8]"),
        ("Attention[is_causal=true,scale=1.0](x, x, x)", "[b,h,s,64]", "[b,h,s,64]"),
    ],
)
def test_symbolic_dimensions(term: str, types: str, expected: str) -> None:
    assert inferred(term, types) == parse_type(expected)


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("FusedMatMul[transA=true](x, y)", "[2,3] [3,4]"),
        ("FusedMatMul[transA=true](x, y)", "[3,2] [3]"),
        ("FusedMatMul[transBatchA=2](x, y)", "[2,3] [3,4]"),
        ("FusedMatMul(x, y)", "[2,3] float16[3,4]"),
        ("FusedGemm[activation='Clip',activation_params=(0.0,1.0)](x, y)", "[2,3] [3,4]"),
        ("FusedGemm[activation_params=(0.5,)](x, y)", "[2,3] [3,4]"),
        ("FusedConv[dilations=(1,),pads=(0,0),residual=true,strides=(1,)](x, y)", "[1,2,4] [3,2,3]"),
        ("SkipLayerNormalization(x, y, z)", "[2,3,4] [2,3,4] [3]"),
        ("SkipSimplifiedLayerNormalization(x, y, z, z)", "[2,3,4] [2,3,4] [4]"),
        ("BiasGelu(x, y)", "[2,3] [2,3]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0](x, y, z)", "[2,3,8] [2,5,6] [2,5,8]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0](x, y, z)", "[2,3,8] [2,5,8] [2,4,8]"),
        ("MultiHeadAttention[given=('bias',),num_heads=2,scale=1.0](x, y, y)", "[2,3,8] [2,5,8]"),
        ("MultiHeadAttention[given=('attention_bias',),num_heads=2,scale=1.0](x, x, x, y)", "[2,3,8] [3,3]"),
        ("MultiHeadAttention[given=('attention_bias',),num_heads=2,scale=1.0](x, x, x, y)", "[2,3,8] [2,2,3,4]"),
        ("OrtAttention[num_heads=2,qkv_hidden_sizes=(8,4,4),scale=1.0](x, y, z)", "[2,3,4] [4,16] [16]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[2,3,16] int64[2,4] [7,4]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[2,3,16] int64[2,3] [7,5]"),
        ("GroupQueryAttention[kv_num_heads=3,num_heads=4,scale=1.0](x, y, y)", "[2,3,32] [2,3,24]"),
        ("GroupQueryAttention[kv_num_heads=2,num_heads=2,scale=1.0](x, x, x)", "[2,3,8]"),
        ("Attention[scale=1.0](x, y, y)", "[2,3,4,8] [2,2,4,8]"),
    ],
)
def test_ill_typed(term: str, types: str) -> None:
    with pytest.raises(ShapeError):
        inferred(term, types)


def test_a_decomposition_is_a_term_over_the_operands() -> None:
    record = get_operator("FusedMatMul")
    types = [parse_type("[b,k,n]"), parse_type("[b,k,m]")]
    (term,) = record.decompose({"alpha": 0.5, "transA": True}, types)
    assert repr(term) == "Mul(MatMul(Transpose[perm=(1,0)](x0), x1), 0.5)"
    skip = get_operator("SkipSimplifiedLayerNormalization")
    normal, total = skip.decompose({"sum": True, "epsilon": 0.5}, [parse_type("[n,h]")] * 2 + [parse_type("[h]")])
    assert repr(total) == "Add(x0, x1)" and repr(normal) == "RMSNormalization[axis=-1,epsilon=0.5](Add(x0, x1), x2)"


# Models


def test_models_with_them_come_back_as_they_were() -> None:
    proto = build(
        [
            helper.make_node("SkipLayerNormalization", ["x", "x", "g", "b"], ["n", "", "", "s"], domain=MS, epsilon=0.5),
            helper.make_node("MultiHeadAttention", ["n", "n", "s"], ["a"], domain=MS, num_heads=2),
            helper.make_node("SimplifiedLayerNormalization", ["a", "g"], ["r"], axis=-1),
            helper.make_node("FusedMatMul", ["r", "w"], ["m"], domain=MS, transB=1, alpha=0.5),
            helper.make_node("QuickGelu", ["m"], ["y"], domain=MS, alpha=1.5),
        ],
        values(("x", FLOAT, ["n", 3, 8])),
        values(("y", FLOAT, ["n", 3, 5])),
        {"g": np.ones(8, F), "b": np.zeros(8, F), "w": np.ones((5, 8), F)},
        domains={MS: 1},
    )
    model = check_round_trip(proto, n=2)
    assert not model.opaque
    ops = [model.graph.definition(model.values[name])[0].op for name in "nsarmy"]  # type: ignore[index]
    assert ops[:2] == ["SkipLayerNormalization"] * 2 and ops[2:] == [
        "MultiHeadAttention",
        "SimplifiedLayerNormalization",
        "FusedMatMul",
        "QuickGelu",
    ]
    assert str(model.tables.types[model.values["m"]]) == "float[n,3,5]"


@pytest.mark.parametrize(("outputs", "reason"), [(["n", "mean"], "'mean'"), (["", "", "", "s"], "the outputs '', '', '', 's'")])
def test_other_outputs_stay_opaque(outputs: list[str], reason: str) -> None:
    proto = build(
        [helper.make_node("SkipLayerNormalization", ["x", "x", "g"], outputs, domain=MS)],
        values(("x", FLOAT, [3, 8])),
        values((outputs[-1], FLOAT, [3, 8 if "s" in outputs else 1])),
        {"g": np.ones(8, F)},
        domains={MS: 1},
    )
    assert reason in load(proto).opaque[0]


def test_a_substitution_writes_them() -> None:
    """Both outputs at their places in the node, the domain imported, nothing else changed."""
    proto = build(
        [
            helper.make_node("Add", ["x", "z"], ["s"]),
            helper.make_node("LayerNormalization", ["s", "g", "b"], ["n"], epsilon=0.01),
            helper.make_node("Mul", ["s", "n"], ["y"]),
        ],
        values(("x", FLOAT, [2, 3, 8]), ("z", FLOAT, [2, 3, 8])),
        values(("y", FLOAT, [2, 3, 8])),
        {"g": np.arange(8).astype(F), "b": np.ones(8, F)},
    )
    model = load(proto)
    v = model.values
    attrs = make_attrs({"epsilon": 0.01, "sum": True, "bias": False})
    skip = model.tables.apply("SkipLayerNormalization", attrs, [v["x"], v["z"], v["g"], v["b"]])
    written = run_both(proto, model, model.graph.substitute({v["s"]: (skip, 1), v["n"]: (skip, 0)}), rtol=1e-5, atol=1e-5)
    node = written.graph.node[0]
    assert (node.op_type, node.domain, list(node.output)[1:3]) == ("SkipLayerNormalization", MS, ["", ""])
    assert len(node.output) == 4 and {entry.domain for entry in written.opset_import} == {"", MS}


# The decompositions as operator properties

PAIR = {"x": "[2,3]", "y": "[3,4]"}
SKIP = {"x": "[2,3,4]", "y": "[2,3,4]", "g": "[4]", "b": "[4]", "c": "[4]"}
MHA = {"q": "[2,3,8]", "k": "[2,5,8]", "v": "[2,5,12]", "m": "[2,1,3,5]"}
HEADS = {"q": "[2,4,3,8]", "k": "[2,4,5,8]", "v": "[2,4,5,6]", "m": "[1,4,3,5]"}
IMAGE = {"x": "[1,2,4,5]", "w": "[3,2,2,2]", "b": "[3]", "z": "[1,3,3,4]"}
WINDOW = {"d": (1, 1), "g": 1, "p": (0, 0, 0, 0), "s": (1, 1)}
GEMM = {"a": 0.5, "b": 2.0, "p": False, "q": True, "c": 0.25}
SAMPLES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "matmul_scaled": (PAIR, {"a": 0.5}),
    "matmul_left": ({"x": "[5,3,2]", "y": "[3,4]"}, {"a": 0.5}),
    "matmul_right": ({"x": "[5,2,3]", "y": "[4,3]"}, {"a": 0.5}),
    "matmul_both": ({"x": "[3,2]", "y": "[4,3]"}, {"a": 0.5}),
    "matmul_batch_left": ({"x": "[2,5,3]", "y": "[5,3,4]"}, {"a": 0.5, "p": False, "q": False, "c": 0}),
    "matmul_batch_right": ({"x": "[5,2,3]", "y": "[4,5,3]"}, {"a": 0.5, "p": False, "q": True, "c": 0}),
    "gemm": ({"x": "[2,3]", "y": "[4,3]", "z": "[4]"}, GEMM),
    "conv": (IMAGE, {**WINDOW, "c": 0.25, "m": -0.5, "n": 0.5}),
    "simplified": ({"x": "[2,3,4]", "g": "[3,4]"}, {"k": -2, "e": 0.1}),
    "skip_layer": (SKIP, {"e": 0.1, "f": False}),
    "skip_layer_bias": (SKIP, {"e": 0.1, "f": True}),
    "skip_rms": (SKIP, {"e": 0.1, "f": False}),
    "gelu": (SKIP, {}),
    "bias_gelu": (SKIP, {}),
    "fast_gelu": (SKIP, {}),
    "quick_gelu": (SKIP, {"a": 0.7}),
    "silu": (SKIP, {}),
    "keys": (HEADS, {}),
    "attention": (HEADS, {"c": 0.3}),
    "multi_head": (MHA, {"c": 0.3, "h": 2, "n": 12, "d": 4, "e": 6}),
    "multi_head_causal": ({"q": "[2,5,8]", **{n: MHA[n] for n in "kv"}}, {"c": 0.3, "h": 2, "n": 12, "d": 4, "e": 6, "l": 5}),
    "rotary": ({"x": "[2,4,3,8]", "c": "[2,3,4]", "s": "[2,3,4]"}, {"h": 4}),
    "rotary_tables": ({"x": "[2,3,8]", "p": "int64[2,3]", "c": "[7,2]", "s": "[7,2]"}, {"i": True, "n": 2}),
    "rotary_gathered": ({"x": "[2,4,3,8]", "p": "int64[2,3]", "c": "[7,2]", "s": "[7,2]"}, {"i": False, "n": 0}),
    "rotary_positions": ({"x": "[3,2]"}, {"n": 3}),
    "rotary_heads": ({"x": "[2,3,8]", "c": "[2,3,1]", "s": "[2,3,1]"}, {"i": False, "n": 2, "m": 8, "d": 4}),
}
PROPERTIES = {name: axiom for name, axiom in load_axioms().items() if axiom.family == "contrib"}


def _sample(name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The sample whose name is the longest beginning of the property's."""
    return SAMPLES[max((key for key in SAMPLES if name.removeprefix("contrib.").startswith(key)), key=len)]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties(name: str) -> None:
    """Where its conditions hold both sides have one type and equal values."""
    axiom = PROPERTIES[name]
    texts, attrs = _sample(name)
    types = {variable: parse_type(texts[variable]) for variable in axiom.variables}
    sides = [substitute(side, {}, {a: attrs[a] for a in axiom.attr_variables}) for side in (axiom.left, axiom.right)]
    known = infer_types(sides, types)
    assert known[sides[0]] == known[sides[1]]

    def holds(types: Mapping[str, TensorType]) -> bool:
        facts = Facts(lambda term: infer_types([term], types)[term], lambda term: Range.top())
        return all(c.substitute({}, {a: attrs[a] for a in axiom.attr_variables}).holds(facts) for c in axiom.conditions)

    assert holds(types)
    generator = np.random.default_rng(0)
    inputs = {
        n: generator.integers(0, 7, t.shape) if t.dtype == DataType.INT64 else generator.normal(size=t.shape)  # type: ignore[arg-type]
        for n, t in types.items()
    }
    values = evaluate(sides, Real(), inputs)
    np.testing.assert_allclose(values[sides[0]], values[sides[1]], rtol=1e-9, atol=1e-9)
    wrong = substitute(axiom.right, {name: Term("Neg", (), (var(name),), 0) for name in ("x", "v", "k")}, attrs)
    other = evaluate([wrong], Real(), inputs)[wrong]
    assert not np.allclose(values[sides[0]], other, rtol=1e-3, atol=1e-3)
