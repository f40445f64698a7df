"""onnxruntime's own operators: reading, typing, meaning, decomposition and writing, against its CPU kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mugraph.domains import FiniteField, Range, RangeDomain, Real, Unsupported
from mugraph.domains.base import BYTES
from mugraph.onnx import load
from mugraph.ops import RUNTIME_OPERATORS, NotExpressible, get_operator, reader_of
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import make_attrs
from tests.support.contrib_cases import CASES, MS, Case, F, H, read, wide
from tests.support.models import FLOAT, build, check_round_trip, run_both, values
from tests.support.onnx_helpers import make_node, run_form, run_node, type_of
from tests.support.ranges import claims


def test_every_runtime_that_will_do_counts_a_position_within_its_own_window() -> None:
    """GroupQueryAttention of onnxruntime 1.23 and before shows one position more than ``local_window_size``."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(r'"onnxruntime(?:-gpu)?>=(\d+)\.(\d+);', text)
    assert len(wanted) == 2 and all((int(major), int(minor)) >= (1, 24) for major, minor in wanted)


def test_every_operator_has_a_case() -> None:
    contrib = {(case.domain, case.op) for case in CASES}
    elsewhere = {(MS, "NhwcConv"), (MS, "GroupNorm")}  # no kernel on a CPU: test_layouts.py, test_group_norm.py
    elsewhere |= {("onnx.superopt", "Kernel")}  # test_kernel_op.py
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
    """Whether an operand says how many keys count."""
    given = len(case.inputs) == 7 if not case.domain else case.op == "GroupQueryAttention" and 5 not in case.constants
    return case.op.endswith("Attention") and given


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
        ("GroupQueryAttention", "softcap", 2.5),
        ("GroupQueryAttention", "total", 40),
        ("GroupQueryAttention", "length_axes", 3),
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
