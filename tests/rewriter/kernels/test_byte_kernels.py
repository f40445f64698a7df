"""Kernels that multiply bytes within a run: what is proposed of a model that quantises as it runs, and what is written of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.onnx import load
from rewriter.cli.main import main
from rewriter.cost.schedules.byte_products import stored_bytes
from rewriter.kernels import custom_cpu
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.objects import levels_here
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import DraftKernel, KernelBuilder
from rewriter.kernels.programs import Scheduled
from rewriter.kernels.within import kernels_of
from rewriter.runtime import is_built, register
from rewriter.runtime_env import c_compiler_version
from rules_db.trust.formulas.proof import why_not_proved
from tools.bench.cpu_products import byte_product

SIZES = (64, 96)


def quantized_model(products: int = 2, activation: str = "Relu", sizes: tuple[int, int] = SIZES) -> onnx.ModelProto:
    """Products of what is quantised once, by bytes with a scale and a bias of their own, as onnxruntime's quantiser has them; of
    7 bits, as it saturates sums of two products of larger ones without VNNI (docs/upstream.md)."""
    random, (k, n) = np.random.default_rng(0), sizes
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    constants = []
    for i in range(products):
        stored = {
            f"w{i}": random.integers(-64, 64, (k, n)).astype(np.int8),
            f"t{i}": np.float32(0.01 * (i + 1)),
            f"b{i}": random.standard_normal(n, np.float32),
        }
        constants += [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
        nodes += [
            helper.make_node("MatMulInteger", ["q", f"w{i}", "z"], [f"i{i}"]),
            helper.make_node("Cast", [f"i{i}"], [f"f{i}"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", ["s", f"t{i}"], [f"u{i}"]),
            helper.make_node("Mul", [f"f{i}", f"u{i}"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node(activation, [f"a{i}"], [f"y{i}"]),
        ]
    outputs = [helper.make_tensor_value_info(f"y{i}", 1, [37, n]) for i in range(products)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [37, k])], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drafts(proto: onnx.ModelProto) -> Iterator[DraftKernel]:
    builder = KernelBuilder()
    for fusable in propose(load(proto).graph):
        try:
            yield builder.draft(fusable)
        except NotFusable:
            continue


def test_products_of_bytes_are_proposed_with_scales_bias_and_activation() -> None:
    """Layers that differ in their scales have one kernel; several products of one operand are one, too."""
    found = [draft for draft in drafts(quantized_model()) if stored_bytes(draft.kernel)]
    ops = [[term.op for term in draft.kernel.body] for draft in found]
    assert ["Relu"] in ops and ["Relu", "Relu"] in ops
    assert ops.count(["Relu"]) == 1, "scales are operands"
    assert all(why_not_proved(draft.general) is None for draft in found)


def test_sums_of_bytes_are_no_operands_of_a_kernel() -> None:
    """They become floats where they are made: a product that the runtime makes gives integers to no kernel."""
    for draft in drafts(quantized_model()):
        assert not any("int32" in str(tensor.type) for tensor in draft.kernel.inputs)


def test_weights_that_are_not_stored_are_left_to_the_runtime() -> None:
    proto = quantized_model(1)
    proto.graph.input.append(helper.make_tensor_value_info("w0", onnx.TensorProto.INT8, list(SIZES)))
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != "w0"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    assert not any(stored_bytes(draft.kernel) for draft in drafts(proto))


@pytest.mark.parametrize(("steps", "proposed"), [(65_793, True), (65_794, False)])
def test_sums_that_may_be_too_large_for_32_bits_are_left_to_the_runtime(steps: int, proposed: bool) -> None:
    found = [draft for draft in drafts(quantized_model(1, sizes=(steps, 2))) if stored_bytes(draft.kernel)]
    assert bool(found) is proposed


def test_products_of_bytes_are_compiled_for_processors_that_multiply_them() -> None:
    kernel: Kernel = byte_product(64, 64)
    assert [level.name for level in custom_cpu._levels(Scheduled.one(kernel))] == [*reversed(LEVELS)]


@pytest.mark.skipif(
    not is_built() or c_compiler_version() is None or not levels_here(), reason="no run-time library, compiler or processor"
)
def test_a_run_writes_products_of_bytes(tmp_path: Path) -> None:
    """What quantises stays the runtime's, and results are those of the original but for what adding a bias rounds."""
    path, written = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(quantized_model(1), path)
    command = [str(path), "-o", str(written), "--cpu-kernels", "--deterministic", "--provider", "cpu"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    model = load(onnx.load(written))
    assert any(stored_bytes(kernel) for kernel in kernels_of(model.graph)), result.output
    x = np.random.default_rng(1).standard_normal((37, SIZES[0]), np.float32)
    options = ort.SessionOptions()
    register(options, cpu_only=True)
    (got,), (wanted,) = (
        ort.InferenceSession(file, options, providers=["CPUExecutionProvider"]).run(None, {"x": x}) for file in (written, path)
    )
    np.testing.assert_allclose(got, wanted, rtol=0, atol=np.abs(wanted).max() * 2.0**-23)
