"""Kernels that read weights of four and eight bits: lowering, interpretation, Triton text, estimates, a file that holds one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.operator import KERNEL, kernel_attrs, kernel_of
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Factor, Index, repeated_along
from mugraph.domains import Real
from mugraph.graph import Constant
from mugraph.onnx import load, save
from mugraph.terms.dtypes import as_stored
from mugraph.terms.shape import DataType
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term, parse_type
from rewriter.cost import CostModel
from rewriter.cost.devices import get_device
from rewriter.cost.schedules import candidates, ranked
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.places import in_the_way
from rewriter.kernels.proposals import KernelProposals, forever
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.compile import Compiler
from rewriter.search.candidate import Candidate
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.fusing import moves_for
from tests.support.graphs import Builder
from tools.fuzz.interpreter import Interpreter

pytest.importorskip("triton")

TYPES = {
    name: parse_type(text)
    for name, text in {
        "x": "float16[m,64]",
        "q": "int4[24,64]",
        "u": "uint4[24,64]",
        "d": "int8[24,64]",
        "s": "float16[24,2]",
        "z": "uint4[24,2]",
        "b": "float16[24]",
        "y": "float16[m,100]",
        "r": "int4[7,100]",
        "t": "float16[7,4]",
        "o": "int4[7,101]",
        "w": "float16[m,101]",
        "c": "uint4[64,24]",
        "e": "float16[2,24]",
        "g": "int8[64,24]",
        "h": "float16[24]",
        "i": "float16[m,64]",
        "v": "float16[64]",
    }.items()
}
REPEATED = "Reshape[drop=3,shape=(24,64)](Expand[shape=(24,2,32)](Reshape[drop=2,shape=(24,2,1)](s)))"
PRODUCTS = {
    "symmetric": "MatMulNBits[block=32](x, q, s)",
    "asymmetric": "MatMulNBits[asymmetric=true,block=32](x, u, s, z, b)",
    "eight bits": "MatMulNBits[block=32](x, d, s, b)",
    "a short last block": "MatMulNBits[block=32](y, r, t)",
    "rows that begin within a byte": "MatMulNBits[block=32](w, o, t)",
    "columns": "MatMul(x, DequantizeLinear[axis=-2,block=32](c, e))",
    "channels": "MatMul(x, DequantizeLinear[axis=-1](g, h))",
    "factors that the rest has no rows for": f"MatMul(x, Transpose[perm=(1,0)](Mul(v, {REPEATED})))",
    "fused": "Add(MatMulNBits[block=32](Mul(x, Sigmoid(i)), q, s), b)",
}
SCHEDULES = [
    Schedule((("m", 16), ("n", 16), ("k", 32)), split=2, warps=4),
    Schedule((("m", 16), ("n", 16), ("k", 16)), warps=4),
    Schedule((("n", 8), ("k", 64)), split=2, warps=1),
    Schedule((("m", 2), ("n", 4), ("k", 2)), warps=1),
    Schedule((("m", 4), ("n", 1), ("k", 128)), warps=1),
    Schedule((("m", 4), ("n", 8), ("k", 1)), warps=1),
    Schedule((("m", 1), ("n", 1), ("k", 1)), warps=1),
]


def kernel(text: str, types: Mapping[str, object] = TYPES) -> Kernel:
    return lower("packed", types, [("result", parse_term(text))])  # type: ignore[arg-type]


def inputs_of(made: Kernel, rows: int) -> dict[str, np.ndarray]:
    generator, inputs = np.random.default_rng(rows), dict[str, np.ndarray]()
    for tensor in made.inputs:
        shape, dtype = [dim if isinstance(dim, int) else rows for dim in tensor.type.shape], tensor.type.dtype.numpy()
        if dtype == np.float16:
            inputs[tensor.name] = generator.uniform(-1, 1, shape).astype(dtype)
        else:
            limits = ml_dtypes.iinfo(dtype)
            inputs[tensor.name] = generator.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return inputs


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    made = Interpreter()
    yield made
    made.close()


def test_two_numbers_of_four_bits_are_a_byte() -> None:
    numbers = np.asarray([[1, -2, 7], [-8, 0, 3]], ml_dtypes.int4)
    assert as_stored(numbers).tolist() == [0xE1, 0x87, 0x30]
    tensor = numpy_helper.from_array(numbers)
    assert as_stored(numbers).tobytes() == tensor.raw_data


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_kernel_dequantises(name: str, interpreter: Interpreter) -> None:
    """By the interpreter of block graphs and by Triton's, against the body in double precision on dequantised weights."""
    made = kernel(PRODUCTS[name])
    for schedule in SCHEDULES:
        inputs = inputs_of(made, 3)
        wide = {n: a.astype(np.float64) if a.dtype == np.float16 else a for n, a in inputs.items()}
        (expected,) = evaluate_body(made, Real(), wide)
        (result,) = evaluate_kernel(made, Real(), wide, [schedule])
        assert np.allclose(result, expected)
        (actual,) = interpreter.run(made, [schedule], inputs)
        error = np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected)
        assert error < 1e-3, (schedule, error)


def test_a_kernel_is_true_for_all_sizes() -> None:
    """Interpreted in fields and floats at small sizes, and proved entry by entry."""
    proposals = KernelProposals(list, lambda rule: True)
    for text in PRODUCTS.values():
        made = kernel(text)
        assert why_not_proved(made) is None
        proposals.confirm(made)


def test_words_are_loaded_once_and_taken_apart_in_registers() -> None:
    """Words beside each other of as many weights as fit, no conversion of an integer, and one scale a row within a block."""
    text = generate(kernel(PRODUCTS["symmetric"]), SCHEDULES[:1]).text
    assert (
        "tl.load(q.to(tl.pointer_type(tl.uint32)) + n_at[None, :] * 8 + " in text and "// 8 + tl.arange(0, 4))[:, None]" in text
    )
    assert text.count(".to(tl.float32, bitcast=True)") == 8 and "q_tile.to(tl.float32)" not in text
    assert "k_at = k_start + tl.arange(0, 32)\n" in text
    (line,) = [line for line in text.splitlines() if "s_tile = tl.load" in line]
    assert "// 32" in line and "arange" not in line
    whole = generate(kernel(PRODUCTS["symmetric"]), [Schedule((("m", 16), ("n", 8), ("k", 64)), warps=1)]).text
    assert " // 32 + tl.arange(0, 2))[:, None])" in whole and "tl.broadcast_to(s_tile[:, :, None]" in whole


@pytest.mark.parametrize(
    "name, is_late", [("symmetric", True), ("fused", True), ("eight bits", True), ("asymmetric", True), ("columns", False)]
)
def test_the_scale_of_a_block_multiplies_the_sum_of_its_products(name: str, is_late: bool) -> None:
    """Where a thread has the weights of a block, which lie beside each other; not where the matrix units add up."""
    apart, on_units = (
        generate(kernel(PRODUCTS[name]), [Schedule((*rows, ("n", 16), ("k", 64)), warps=1)]).text for rows in ((), (("m", 16),))
    )
    assert ("[2, 32, 16]), axis=1) * " in apart) == is_late
    assert "tl.dot(" in on_units and "axis=1) * " not in on_units


def test_a_thread_has_a_word() -> None:
    """Schedules of more threads than words are not tried: those without one do what others do."""
    types = {"x": "float16[1,1024]", "q": "int4[4096,1024]", "s": "float16[4096,32]"}
    made = kernel(PRODUCTS["symmetric"], {name: parse_type(text) for name, text in types.items()})
    (schedules,) = candidates(made, get_device("h200"))
    assert max(dict(schedule.tiles)["k"] for schedule in schedules) == 1024
    assert all(math.prod(size for _, size in each.tiles) >= 8 * 32 * each.warps for each in schedules if each.warps > 1)


def test_a_zero_point_asks_for_no_threads() -> None:
    """There is one for a column: as many warps are tried as without, whose threads have the words of weights."""
    types = {"x": "float16[512,1024]", "c": "uint4[1024,4096]", "h": "float16[4096]", "z": "uint4[4096]"}
    made = kernel("MatMul(x, DequantizeLinear[axis=-1](c, h, z))", {name: parse_type(text) for name, text in types.items()})
    (schedules,) = candidates(made, get_device("h200"))
    assert max(schedule.warps for schedule in schedules) == 16


def test_a_scale_is_asked_for_once() -> None:
    """What is asked for ahead is a request for 128 bytes of weights, and one for the scales of a row: not one for each weight."""
    types = {"x": "float16[1,2048]", "q": "int4[4096,2048]", "s": "float16[4096,64]"}
    made = kernel(PRODUCTS["symmetric"], {name: parse_type(text) for name, text in types.items()})
    schedule = Schedule((("n", 4), ("k", 2048)), warps=2, ahead=("q", "s"))
    asked = [line for line in generate(made, [schedule]).text.splitlines() if "ask_ahead(q" in line or "ask_ahead(s" in line]
    assert [line[line.index("tl.full(") :] for line in asked] == ["tl.full([8, 4], 1, tl.int32))", "tl.full([4], 1, tl.int32))"]
    few = generate(made, [replace(schedule, tiles=(("n", 4), ("k", 64)))]).text
    assert re.findall(r"for k_start in range\(0, 2048, (\d+)\):\n.*\n.*\n +ask_ahead\((\w)", few) == [("256", "q"), ("2048", "s")]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_kernels_are_proposed_for_small_weights(dtype: str) -> None:
    """On a GPU; kernels for processors have no form for them."""
    b = Builder()
    x, scales, stored = b.input("float16[3,64]"), b.input("float16[24,2]"), parse_type(f"{dtype}[24,64]")
    weights = b.tables.add_constant(Constant.of(np.ones((24, 64), stored.dtype.numpy()), stored))
    product = b.op("MatMulNBits", x, weights, scales, accuracy_level=0, asymmetric=False, block=32)
    graph = b.graph(b.op("Sigmoid", product))
    on_gpu, on_cpu = (list(KernelProposals(provider=provider).proposals(graph)) for provider in ("cuda", "cpu"))
    found = [kernel_of_rule(direction.rule) for direction, _ in on_gpu]
    assert any(made is not None and {"MatMulNBits", "Sigmoid"} <= {part.op for part in walk(made.body)} for made in found)
    assert not on_cpu


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("columns, word", [(48, "uint32"), (36, "uint16"), (38, "uint8"), (37, "")])
def test_every_number_of_four_bits_is_exact(dtype: str, columns: int, word: str, interpreter: Interpreter) -> None:
    """The rows of a matrix that has all of them at every place of a word, as products with unit vectors."""
    types = {"x": parse_type("float[16,16]"), "w": parse_type(f"{dtype}[16,{columns}]"), "s": parse_type(f"float[{columns}]")}
    made, schedule = kernel("MatMul(x, DequantizeLinear[axis=-1](w, s))", types), Schedule((("n", 8), ("k", 16)), warps=1)
    assert (f"tl.pointer_type(tl.{word})" if word else ">> 1") in generate(made, [schedule]).text
    numbers = (np.arange(16)[:, None] + np.arange(columns)) % 16 - (8 if dtype == "int4" else 0)
    inputs = {
        "x": np.eye(16, dtype=np.float32),
        "w": numbers.astype(getattr(ml_dtypes, dtype)),
        "s": np.ones(columns, np.float32),
    }
    (actual,) = interpreter.run(made, [schedule], inputs)
    assert np.array_equal(actual, numbers)


def test_where_neighbours_are_the_same() -> None:
    view = (Factor(Index("n"), 24), Factor(Index("k", divide=32), 2))
    assert repeated_along(view) == {"k": 32}
    for other in (Index("k", divide=24), Index("k", shift=1, divide=32), Index("k", divide=32, modulo=2), Index("k")):
        assert repeated_along((Factor(other, 2),)) == {}
    assert repeated_along((*view, Factor(Index("k", modulo=32), 32))) == {}


def test_the_estimate_follows_the_bytes() -> None:
    def product(text: str, **types: str) -> Kernel:
        return kernel(text, {name: parse_type(type_) for name, type_ in types.items()})

    floats = product("MatMul(x, w)", x="float16[1,4096]", w="float16[4096,8192]")
    sizes = {"x": "float16[1,4096]", "s": "float16[8192,128]"}
    four, eight = (product("MatMulNBits[block=32](x, q, s)", q=f"int{bits}[8192,4096]", **sizes) for bits in (4, 8))
    bytes_ = [BlockFigures(k, k.blocks[0], {}).unique_bytes for k in (floats, eight, four)]
    moved = [2 * (4096 + 8192)] * 3
    weights = [4096 * 8192 * 2, 4096 * 8192 + 2 * 128 * 8192, 4096 * 8192 // 2 + 2 * 128 * 8192]
    assert bytes_ == [a + b for a, b in zip(moved, weights, strict=True)]
    times = [ranked(k, get_device("h200"), {}, most=1)[0][0] for k in (floats, eight, four)]
    assert times == sorted(times, reverse=True)


def test_it_compiles() -> None:
    """For sm_80 and sm_90, rows of one and tiles on the matrix units."""
    sources = [
        (f"{name} {number}", generate(kernel(PRODUCTS[name]), [schedule]))
        for name in ("symmetric", "asymmetric", "columns")
        for number, schedule in enumerate((SCHEDULES[0], SCHEDULES[2]))
    ]
    compiler = Compiler()
    try:
        results = compiler.compile(sources, (Architecture(80), Architecture(90)))
    finally:
        compiler.close()
    assert not [result for result in results if isinstance(result, str | Exception)]


def test_a_file_holds_the_kernel_and_its_weights(tmp_path: Path) -> None:
    """Weights of four bits are an operand of the node as they are of its body, which stock onnxruntime runs."""
    generator = np.random.default_rng(0)
    stored = {
        "B": generator.integers(0, 256, (24, 2, 16)).astype(np.uint8),
        "S": generator.uniform(0.01, 0.1, (24, 2)).astype(np.float32),
    }
    node = helper.make_node("MatMulNBits", ["x", "B", "S"], ["y"], domain="com.microsoft", K=64, N=24, bits=4, block_size=32)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["m", size]) for n, size in (("x", 64), ("y", 24))]
    graph = helper.make_graph([node], "one", info[:1], info[1:], [numpy_helper.from_array(a, n) for n, a in stored.items()])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    source = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), source)
    model = load(source)
    (product,) = model.graph.nodes()
    types = {"x": parse_type("[m,64]"), "q": parse_type("int4[24,64]"), "s": parse_type("[24,2]")}
    made = kernel("MatMulNBits[block=32](x, q, s)", types)
    fused = model.tables.apply(KERNEL, kernel_attrs(made), product.inputs)
    save(model, model.graph.substitute({product.values[0]: (fused, 0)}), tmp_path / "kernel.onnx")
    written = onnx.load(tmp_path / "kernel.onnx")
    assert [node.op_type for node in written.graph.node] == ["Kernel"]
    assert sorted(t.data_type for t in written.graph.initializer) == [TensorProto.FLOAT, TensorProto.INT4]
    x = generator.normal(size=(3, 64)).astype(np.float32)
    results = [
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for path in (source, tmp_path / "kernel.onnx")
    ]
    assert np.linalg.norm(results[0] - results[1]) < 1e-5 * np.linalg.norm(results[0])
    again = load(tmp_path / "kernel.onnx")
    assert [n.op for n in again.graph.nodes()] == [KERNEL] and not again.opaque


def test_a_kernel_that_saves_most_gives_way_to_two_that_save_more() -> None:
    """The last product with the gate in front of it saves most; the gated product and the last in another more."""
    b = Builder()

    def product(x: int, columns: int, rows: int) -> int:
        stored = b.input(f"int4[{columns},{rows}]"), b.input(f"float16[{columns},{rows // 32}]")
        return b.op("MatMulNBits", x, *stored, accuracy_level=0, asymmetric=False, block=32)

    x = b.input("float16[1,2048]")
    gate, up = product(x, 8192, 2048), product(x, 8192, 2048)
    wide = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up)
    graph, moves, proposals = b.graph(product(wide, 2048, 8192)), moves_for(opset=21), KernelProposals()
    costs = moves.prices.costs
    assert isinstance(costs, CostModel)
    for node in graph.nodes():
        if node.op == "MatMulNBits" and (signature := costs.signature(graph, node)) is not None:
            costs.store.put(signature.key(), 12.0 if signature.operands[0].shape[-1] == 8192 else 5.72)
    start = moves.start(graph)
    offers = proposals._offers(moves, start, forever)
    greedy, taken = proposals._turn(moves, start, offers, forever)
    assert any(in_the_way(offer, [other for other in offers if other not in taken]) for offer in taken)
    assert _products(greedy) == [(2, False), (1, True)]
    first = next(proposals.children(moves, start))
    assert _products(first) == [(2, True), (1, False)] and first.cost < 0.99 * greedy.cost


def _products(candidate: Candidate) -> list[tuple[int, bool]]:
    """Of every kernel: how many matrices of four bits it reads, and whether it has the gate."""
    kernels = [kernel_of(node.attrs) for node in candidate.graph.nodes() if node.op == KERNEL]
    return [
        (sum(tensor.type.dtype is DataType.INT4 for tensor in made.inputs), any(part.op == "Sigmoid" for part in walk(made.body)))
        for made in kernels
    ]
