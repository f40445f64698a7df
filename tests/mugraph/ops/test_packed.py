"""Weights of four and eight bits: against onnxruntime's CPU kernels and onnx's conformance cases, in every number system, byte
for byte in and out of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from mugraph.domains import FiniteField, Range, RangeDomain, Real
from mugraph.graph import Graph
from mugraph.onnx import load, save
from mugraph.ops import NotExpressible, NotUnderstood, Packed, filled, get_operator, reader_of
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.text import parse_type
from rewriter import optimize
from rules_db.library import shipped_rules
from tests.support.graphs import applied
from tests.support.onnx_helpers import foreign, inferred, make_node, run_node, type_of
from tests.support.ranges import claims

F = np.float32
MS = "com.microsoft"
NARROW = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8}


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Whole numbers from all of the range of a type."""
    limits = ml_dtypes.iinfo(NARROW[dtype])
    return np.random.default_rng(shape).integers(limits.min, limits.max + 1, shape).astype(NARROW[dtype])


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((*shape, seed)).uniform(0.01, 0.1, shape).astype(F)


def agree(actual: Any, expected: np.ndarray, tolerance: float) -> None:
    assert np.shape(actual) == expected.shape
    assert np.linalg.norm(np.asarray(actual, np.float64) - expected) <= tolerance * np.linalg.norm(expected.astype(np.float64))


# Dequantisation in blocks


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((4, 32), 1, 16), ((64, 3), 0, 32), ((3, 40), 1, 16), ((2, 6, 5), -2, 4), ((5, 4), None, 0)]
)
@pytest.mark.parametrize("asymmetric", [False, True])
def test_dequantisation(dtype: str, shape: tuple[int, ...], axis: int | None, block: int, asymmetric: bool) -> None:
    """As onnxruntime computes it, to the bit; written and read again."""
    q, of_scale = drawn(dtype, *shape), list(shape)
    if block and axis is not None:
        of_scale[axis] = -(-shape[axis] // block)
    inputs = [q, floats(*of_scale) if block else floats()]
    if asymmetric:
        inputs.append(drawn(dtype, *inputs[1].shape))
    attrs = {"axis": axis, "block_size": block} if block else {}
    node = make_node("DequantizeLinear", inputs, attrs)
    fixed = [i for i, a in enumerate(inputs) if a.dtype.kind == "V"]  # onnxruntime takes no array of four bits
    (expected,) = run_node(node, inputs, 21, fixed)
    record = get_operator("DequantizeLinear")
    reading = record.read(foreign(node, inputs, 21))
    assert record.types(reading.attrs, [type_of(a) for a in inputs]) == (TensorType(DataType.FLOAT, shape),)
    (value,) = record.run(Real(np.float32), reading.attrs, inputs)
    assert np.array_equal(value, expected)
    form = record.to_onnx(reading.attrs, [type_of(a) for a in inputs], 21)
    again = run_node(make_node(form.op_type, inputs, form.attributes), inputs, 21, fixed)
    assert np.array_equal(again[0], expected)
    (range_,) = record.run(RangeDomain(), reading.attrs, [Range.of(a.astype(np.float64)) for a in inputs])
    assert not claims(range_, record.run(Real(), reading.attrs, [a.astype(np.float64) if a.dtype == F else a for a in inputs])[0])
    field = FiniteField(3)
    residues = [field.random(np.random.default_rng(i), a.shape) for i, a in enumerate(inputs)]
    (residue,) = record.run(field, reading.attrs, residues)
    assert residue.shape == expected.shape


def test_blocks_take_an_opset() -> None:
    types = [parse_type("int4[4,32]"), parse_type("[4,2]")]
    with pytest.raises(NotExpressible, match="int4"):
        get_operator("DequantizeLinear").to_onnx({}, [types[0], parse_type("[]")], 20)
    with pytest.raises(NotExpressible, match="block_size"):
        get_operator("DequantizeLinear").to_onnx({"axis": -1, "block": 16}, [parse_type("int8[4,32]"), types[1]], 20)


CONFORMANCE = [case for case in load_model_tests(kind="node") if "dequantizelinear" in case.name and "expanded" not in case.name]


def test_the_cases_of_onnx() -> None:
    """Those of the types that are described; it has cases of all four that are of interest here."""
    met = set()
    for case in CONFORMANCE:
        assert case.model is not None and case.data_sets is not None
        (node,) = case.model.graph.node
        ((inputs, outputs),) = case.data_sets
        inputs = [numpy_helper.to_array(a) if isinstance(a, TensorProto) else np.asarray(a) for a in inputs]
        if any(a.dtype.name.startswith(("float8", "float4", "uint2", "int2", "float6")) for a in inputs):
            continue
        record = get_operator("DequantizeLinear")
        reading = record.read(foreign(node, inputs, case.model.opset_import[0].version))
        (value,) = record.run(Real(np.float32), reading.attrs, [inputs[i] for i in reading.operands])
        assert np.array_equal(value, outputs[0]), case.name
        met |= {inputs[0].dtype.name, "in blocks"} if "block" in reading.attrs else {inputs[0].dtype.name}
    assert {"int4", "uint4", "uint8", "int16", "uint16", "in blocks"} <= met, met


# Packed weights


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("rows", "columns", "stored"), [(3, 32, 32), (3, 31, 32), (1, 5, 16), (2, 7, 8)])
def test_packing_loses_nothing(dtype: str, rows: int, columns: int, stored: int) -> None:
    matrix = drawn(dtype, rows, columns)
    bits = DataType[dtype.upper()].bitwidth
    packed = Packed(0, type_of(matrix), (rows, stored * bits // 8))
    data = packed.pack(matrix)
    assert data.shape == packed.stored and data.dtype == np.uint8
    assert np.array_equal(packed.unpack(data), matrix) and packed.unpack(data).dtype == matrix.dtype
    assert np.array_equal(packed.pack(packed.unpack(data)), data)
    if dtype == "uint4":
        assert data[0, 0] == int(matrix[0, 0]) | int(matrix[0, 1]) << 4  # the first entry in the low bits
    if dtype == "int4":
        assert data[0, 0] & 15 == int(matrix[0, 0]) + 8


def nbits(x: np.ndarray, bits: int, rows: int, block: int, asymmetric: bool, bias: bool, flat: bool) -> list[np.ndarray | None]:
    """Inputs of a MatMulNBits."""
    generator, columns = np.random.default_rng((bits, rows, block)), x.shape[-1]
    blocks = -(-columns // block)
    weights = generator.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    scales = generator.uniform(0.01, 0.1, (rows, blocks)).astype(x.dtype)
    zeros = generator.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)
    inputs: list[np.ndarray | None] = [x, weights, scales.reshape(-1) if flat else scales]
    inputs.append((zeros.reshape(-1) if flat else zeros) if asymmetric else None)
    inputs += [None, generator.normal(size=rows).astype(x.dtype)] if bias else []
    while inputs[-1] is None:
        inputs.pop()
    return inputs


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize(
    ("columns", "block", "bias", "flat", "half"),
    [
        (64, 16, False, False, False),
        (256, 32, True, False, False),
        (100, 32, False, True, False),
        (256, 128, True, True, False),
        (512, 256, False, False, False),
        (64, 32, True, False, True),
    ],
)
def test_products(bits: int, asymmetric: bool, columns: int, block: int, bias: bool, flat: bool, half: bool) -> None:
    """Against onnxruntime's kernel, in a finite field, within its range; written and run again with the same bits."""
    x = np.random.default_rng(columns).normal(size=(2, 3, columns)).astype(np.float16 if half else F)
    inputs = nbits(x, bits, 7, block, asymmetric, bias, flat)
    node = make_node("MatMulNBits", inputs, {"K": columns, "N": 7, "bits": bits, "block_size": block, "accuracy_level": 1}, 1, MS)
    fixed = [i for i, a in enumerate(inputs) if i and a is not None]
    (expected,) = run_node(node, inputs, 20, fixed)
    record = reader_of(MS, "MatMulNBits")
    assert record is not None
    reading = record.read(foreign(node, inputs, 20))
    operands = [
        np.asarray(item.unpack(np.asarray(inputs[item.index])) if isinstance(item, Packed) else inputs[item])
        for item in reading.operands
    ]
    types = [type_of(a) for a in operands]
    assert record.types(reading.attrs, types) == (type_of(expected),)
    (value,) = record.run(Real(), reading.attrs, [a.astype(np.float64) if a.dtype == x.dtype else a for a in operands])
    agree(expected, value, 1e-3 if half else 1e-6)
    form = filled(record.to_onnx(reading.attrs, types, 20), operands.__getitem__)
    placed = [operands[item] if isinstance(item, int) else item for item in form.inputs]
    again = run_node(
        make_node(form.op_type, placed, form.attributes, 1, form.domain),
        placed,
        20,
        [i for i in range(1, len(placed)) if placed[i] is not None],
    )
    assert np.array_equal(again[0], expected)
    field = FiniteField(3)
    residues = [field.random(np.random.default_rng(i), a.shape) for i, a in enumerate(operands)]
    (residue,) = record.run(field, reading.attrs, residues)
    assert residue.shape == expected.shape
    (range_,) = record.run(RangeDomain(), reading.attrs, [Range.of(a.astype(np.float64)) for a in operands])
    assert not claims(range_, value)


def test_unsigned_weights_without_zero_points_are_written_with_zeros() -> None:
    """Where MatMulNBits has no zero points, eight stands for zero."""
    x, q, s = floats(2, 32), drawn("uint4", 3, 32), floats(3, 1)
    record = get_operator("MatMulNBits")
    form = filled(record.to_onnx({"block": 32}, [type_of(a) for a in (x, q, s)], 20), [x, q, s].__getitem__)
    placed = [[x, q, s][item] if isinstance(item, int) else item for item in form.inputs]
    (result,) = run_node(make_node(form.op_type, placed, form.attributes, 1, form.domain), placed, 20, [1, 2, 3])
    agree(result, x.astype(np.float64) @ (q.astype(np.float64) * s).T, 1e-6)


X = floats(2, 64)


@pytest.mark.parametrize(
    ("inputs", "attrs", "reason"),
    [
        ([*nbits(X, 4, 7, 32, True, False, False), np.arange(64, dtype=np.int32)], {}, "g_idx"),
        ([*nbits(X, 4, 7, 32, False, False, False), floats(7, 2)], {}, "zero_points float"),
        (nbits(X, 4, 7, 32, False, False, False), {"bits": 2}, "2 bits"),
        (nbits(X, 4, 7, 32, False, False, False), {"N": 8}, r"B uint8\[7,2,16\], not uint8\[8,2,16\]"),
        (nbits(X, 4, 7, 32, False, False, False), {"K": 0}, "K 0"),
        (nbits(X, 4, 7, 32, False, False, False), {"prepacked": 1}, "attribute prepacked"),
    ],
)
def test_not_understood(inputs: list[np.ndarray | None], attrs: dict[str, int], reason: str) -> None:
    given = {"K": 64, "N": 7, "bits": 4, "block_size": 32, **attrs}
    record = reader_of(MS, "MatMulNBits")
    assert record is not None
    with pytest.raises(NotUnderstood, match=reason):
        record.read(foreign(make_node("MatMulNBits", inputs, given, 1, MS), inputs, 20))


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("MatMulNBits[block=32](x, y, z)", "[2,64] int4[7,63] [7,2]"),
        ("MatMulNBits[block=32](x, y, z)", "[2,64] int4[7,64] [7,3]"),
        ("MatMulNBits[block=0](x, y, z)", "[2,64] int4[7,64] [7]"),
        ("MatMulNBits[block=32](x, y, z)", "[64] int4[7,64] [7,2]"),
        ("MatMulNBits[block=32](x, y, z)", "[2,64] int32[7,64] [7,2]"),
        ("MatMulNBits[block=32](x, y, z)", "float16[2,64] int4[7,64] [7,2]"),
        ("MatMulNBits[block=32](x, y, z, x)", "[2,64] int4[7,64] [7,2]"),
        ("MatMulNBits[asymmetric=true,block=32](x, y, z)", "[2,64] int4[7,64] [7,2]"),
        ("MatMulNBits[asymmetric=true,block=32](x, y, z, z)", "[2,64] int4[7,64] [7,2]"),
    ],
)
def test_ill_typed(term: str, types: str) -> None:
    with pytest.raises(ShapeError):
        inferred(term, types)


def test_sizes_may_be_symbols() -> None:
    assert str(inferred("MatMulNBits[block=32](x, y, z)", "[b,s,32*g] int4[n,32*g] [n,g]")) == "float[b,s,n]"
    for block in (8, 24):
        types = list(map(parse_type, ("[2,48]", "int4[7,48]", f"[7,{48 // block}]")))
        with pytest.raises(NotExpressible, match=f"blocks of {block}"):
            get_operator("MatMulNBits").to_onnx({"block": block}, types, 20)
    with pytest.raises(NotExpressible, match="the weights"):
        get_operator("MatMulNBits").to_onnx({"block": 32}, list(map(parse_type, ("[s,k]", "int4[n,k]", "[n,g]"))), 20)


# Files


def file_of(path: Path, bits: int, asymmetric: bool, shared: bool = False) -> Path:
    """Two products with packed weights behind each other, or beside each other with the same ones."""
    x = floats(3, 64)
    given = nbits(x, bits, 64, 32, asymmetric, False, False)
    names = ["x", *(f"w{i}" for i in range(1, len(given)))]
    attrs: dict[str, Any] = {"K": 64, "N": 64, "bits": bits, "block_size": 32, "domain": MS}
    nodes = [
        helper.make_node("MatMulNBits", names, ["h"], **attrs),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMulNBits", ["x" if shared else "r", *names[1:]], ["y"], **attrs),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 64]) for n in ("x", "y", "r")]
    stored = [numpy_helper.from_array(np.asarray(a), n) for a, n in zip(given[1:], names[1:], strict=True)]
    graph = helper.make_graph(nodes, "packed", info[:1], info[1:], stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_a_model_comes_and_goes_with_its_bytes(tmp_path: Path, bits: int, asymmetric: bool) -> None:
    source = file_of(tmp_path / "model.onnx", bits, asymmetric)
    model = load(source)
    assert not model.opaque and [node.op for node in model.graph.nodes()] == ["MatMulNBits", "Relu", "MatMulNBits"]
    first, _, second = model.graph.nodes()
    assert first.inputs[1:] == second.inputs[1:]  # the same bytes are one constant
    save(model, model.graph, tmp_path / "again.onnx")
    before, after = onnx.load(source), onnx.load(tmp_path / "again.onnx")
    assert [t.SerializeToString() for t in before.graph.initializer] == [t.SerializeToString() for t in after.graph.initializer]


def test_a_new_node_reads_the_bytes_of_the_file(tmp_path: Path) -> None:
    """A rewritten product of weights that nobody touched reads them where they stand."""
    source = file_of(tmp_path / "model.onnx", 4, True)
    model = load(source)
    first, _, second = model.graph.nodes()
    x = model.graph.inputs[0]
    fresh = model.tables.apply("MatMulNBits", second.attrs, [x, *second.inputs[1:]])
    assert fresh is first
    neg = model.tables.apply("Neg", (), [x])
    made = model.tables.apply("MatMulNBits", second.attrs, [neg.values[0], *second.inputs[1:]])
    save(model, model.graph.substitute({second.values[0]: (made, 0)}), tmp_path / "again.onnx")
    written = onnx.load(tmp_path / "again.onnx")
    assert {t.name for t in written.graph.initializer} == {"w1", "w2", "w3"}
    given = floats(3, 64)
    (_, result), (expected, _) = (
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["r", "y"], {"x": value})
        for path, value in ((tmp_path / "again.onnx", given), (source, -given))
    )
    (h,) = get_operator("Relu").run(Real(), {}, [result])
    assert np.array_equal(h.astype(F), expected)


PROJECTIONS = {"gate": 96, "up": 64}


def projections(path: Path, store: str) -> Path:
    """Two products of one operand, each with a bias behind it, in either spelling."""
    generator, nodes, stored = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, np.ndarray]()
    for name, rows in PROJECTIONS.items():
        numbers, scales = drawn("int4", rows, 64), floats(rows, 2, seed=rows)
        if store == "packed":
            packed = Packed(0, type_of(numbers), (rows, 2, 16))
            stored |= {f"{name}_q": packed.pack(numbers), f"{name}_s": scales}
            attrs: dict[str, Any] = {"K": 64, "N": rows, "bits": 4, "block_size": 32, "domain": MS}
            nodes.append(helper.make_node("MatMulNBits", ["x", f"{name}_q", f"{name}_s"], [name], **attrs))
        else:
            stored |= {f"{name}_q": numbers.T.copy(), f"{name}_s": scales.T.copy()}
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [f"{name}_d"], axis=0, block_size=32))
            nodes.append(helper.make_node("MatMul", ["x", f"{name}_d"], [name]))
        stored[f"{name}_b"] = generator.normal(size=rows).astype(F)
        nodes.append(helper.make_node("Add", [name, f"{name}_b"], [f"{name}_y"]))
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])]
    outputs = [helper.make_tensor_value_info(f"{n}_y", TensorProto.FLOAT, [8, rows]) for n, rows in PROJECTIONS.items()]
    graph = helper.make_graph(nodes, "pair", ends, outputs, [numpy_helper.from_array(a, n) for n, a in stored.items()])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def assert_equal_results(source: Path, target: Path) -> None:
    """onnxruntime by itself rounds the operands of products by DequantizeLinear to eight bits, so it fuses nothing here."""
    x = np.random.default_rng(1).normal(size=(8, 64)).astype(F)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    before, after = (
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x}) for path in (source, target)
    )
    for one, other in zip(before, after, strict=True):
        agree(other, one, 1e-6)
    assert target.stat().st_size < 1.1 * source.stat().st_size


@pytest.mark.parametrize("store", ["packed", "blocks"])
def test_both_spellings_become_the_runtime_s_products_with_their_biases(tmp_path: Path, store: str) -> None:
    source, target = projections(tmp_path / "model.onnx", store), tmp_path / "fast.onnx"
    optimize(source, target, provider="cpu", device="cpu", deterministic=True, cache=tmp_path / "cache.sqlite")
    assert [node.op_type for node in onnx.load(target).graph.node] == ["MatMulNBits", "MatMulNBits"]
    assert_equal_results(source, target)


def test_products_of_one_operand_are_one(tmp_path: Path) -> None:
    """By a rule that ships; the bytes are packed anew."""
    source, target = projections(tmp_path / "model.onnx", "packed"), tmp_path / "merged.onnx"
    model = load(source)
    merging = [
        r for r in shipped_rules() if [t.op for t in r.source] == ["MatMulNBits"] * 2 and {t.op for t in r.target} == {"Split"}
    ]
    graphs = [graph for one in merging for graph in applied(model.graph, one) if isinstance(graph, Graph)]
    assert len(graphs) >= 1
    save(model, graphs[0], target)
    assert sorted(node.op_type for node in onnx.load(target).graph.node) == ["Add", "Add", "MatMulNBits", "Split"]
    assert_equal_results(source, target)


def test_weights_that_are_computed_stay_as_they_are(tmp_path: Path) -> None:
    source = file_of(tmp_path / "model.onnx", 4, False)
    proto = onnx.load(source)
    proto.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.UINT8, [64, 2, 16]))
    del proto.graph.initializer[0]
    onnx.save(proto, source)
    model = load(source)
    assert model.opaque[0] == "input 1 holds packed weights that are computed"


def test_what_is_computed_is_not_packed() -> None:
    form = get_operator("MatMulNBits").to_onnx({"block": 32}, list(map(parse_type, ("[2,32]", "int4[3,32]", "[3,1]"))), 20)
    with pytest.raises(NotExpressible, match="no constant"):
        filled(form)
    assert issubclass(NotExpressible, Undecided)
