"""Graph-defined kernels as operators of the model graph, and their nodes in files."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from mugraph.blocks.interp import evaluate_body
from mugraph.blocks.operator import KERNEL, VARIANTS_FORMAT, CompiledKernel, kernel_attrs, kernel_of, kernel_terms
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.variants import Variants
from mugraph.domains import FiniteField, Range, Real
from mugraph.domains.range import RangeDomain
from mugraph.onnx import load, to_bytes
from mugraph.ops import NotExpressible, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, symbol
from mugraph.terms.term import format_term
from mugraph.terms.text import parse_term
from tests.support.block_kernels import (
    F16,
    F32,
    bias_gelu,
    causal_attention,
    grouped_attention,
    heads_attention,
    kernel_of_terms,
    lora,
    random_inputs,
    reference,
    rms_norm_matmul,
    skip_layer_norm,
    tensor,
)
from tests.support.kernel_help import content, kernel_model, with_kernel


def test_typing_and_semantics_are_the_body_s() -> None:
    kernel = skip_layer_norm(symbol("b"), 3, 8)
    types = {t.name: t.type for t in kernel.inputs}
    roots = kernel_terms(kernel)
    assert [str(infer_types(roots, types)[root]) for root in roots] == ["float[b,3,8]"] * 2
    other = {n: TensorType(t.dtype, tuple(4 if d == symbol("b") else d for d in t.shape)) for n, t in types.items()}
    assert [str(infer_types(roots, other)[root]) for root in roots] == ["float[4,3,8]"] * 2
    inputs = random_inputs(kernel, 0, {"b": 2})
    for root, wanted in zip(roots, evaluate_body(kernel, Real(), inputs), strict=True):
        np.testing.assert_array_equal(evaluate(roots, Real(), inputs)[root], wanted)
    field, generator = FiniteField(3), np.random.default_rng(3)
    residues = {name: field.random(generator, x.shape) for name, x in inputs.items()}
    for root, wanted in zip(roots, evaluate_body(kernel, field, residues), strict=True):
        np.testing.assert_array_equal(evaluate(roots, field, residues)[root].p, wanted.p)


def test_cost_and_ranges_are_the_body_s() -> None:
    kernel = rms_norm_matmul(4, 16, 8)
    record = get_operator("Kernel")
    types = [t.type for t in kernel.inputs]
    attrs = dict(kernel_attrs(kernel))
    product = 2 * 4 * 16 * 8
    assert product < record.flops(attrs, types, record.types(attrs, types)) < 2 * product
    positive = Range.finite_input(0.25, 0.75)
    (found,) = record.run(RangeDomain(), attrs, [positive] * 3)
    assert found.lo >= 0 and not found.zero and not found.nan


def test_operands_that_do_not_fit_are_refused() -> None:
    n = symbol("n")
    kernel = rms_norm_matmul(n, 16, 8)
    record, attrs = get_operator("Kernel"), dict(kernel_attrs(kernel))
    x, scale, w = (t.type for t in kernel.inputs)
    for problem, operands in (
        ("of 2 operands", [x, scale]),
        ("takes scale: float", [x, tensor(F32, 17), w]),
        ("takes scale: float", [x, tensor(F16, 16), w]),
        ("takes x: float", [tensor(F32, 2, 3, 16), scale, w]),
    ):
        with pytest.raises(ShapeError, match=problem):
            record.types(attrs, operands)
    with pytest.raises(Undecided):
        record.types(attrs, [tensor(F32, n, symbol("m")), scale, w])
    with pytest.raises(KeyError, match="no kernel of digest"):
        kernel_of({"digest": "feed"})


def test_a_kernel_is_an_attribute_that_text_names_by_digest() -> None:
    kernel = skip_layer_norm(2, 3, 8)
    _, term = kernel_terms(kernel)
    assert format_term(term) == f"Kernel[digest='{kernel.digest.hex()}'].1(x, skip, scale, bias)"
    assert repr(term.attrs) == f"(('digest', '{kernel.digest.hex()}'),)"  # what nodes are keyed by
    named = parse_term(format_term(term))
    assert named is not term and format_term(named) == format_term(term) and named.digest == term.digest
    assert kernel_of(term.attrs) is kernel
    with pytest.raises(KeyError, match="no kernel of digest"):
        kernel_of(named.attrs)


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize(
    ("opset", "kernel"),
    [
        (13, lambda d: bias_gelu(3, 8, d)),
        (13, lambda d: skip_layer_norm(symbol("b"), 3, 8, d)),
        (17, lambda d: rms_norm_matmul(symbol("m"), 16, 8, d)),
        (17, lambda d: causal_attention(2, 4, 6, 8, d)),
        (18, lambda d: heads_attention(symbol("b"), symbol("s"), symbol("t"), 2, 8, d)),
        (21, lambda d: grouped_attention(2, 4, 2, 2, 8, d)),
        (23, lambda d: rms_norm_matmul(4, 16, 8, d)),
    ],
)
def test_a_file_runs_on_the_cpu_without_the_library(opset: int, kernel: object, dtype: DataType) -> None:
    made = kernel(dtype)  # type: ignore[operator]
    proto = kernel_model(made, opset)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version >= 10
    (node,) = proto.graph.node
    assert (node.domain, node.op_type, node.overload) == ("onnx.superopt", "Kernel", made.digest.hex())
    assert {entry.domain: entry.version for entry in proto.functions[0].opset_import} == {"": opset}
    feed = random_inputs(made, 1, {"b": 2, "m": 3, "s": 5, "t": 7})
    outputs = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    for got, wanted in zip(outputs, reference(made, feed), strict=True):
        assert got.dtype == dtype.numpy()
        assert np.max(np.abs(got - wanted)) <= (1e-6 if dtype == F32 else 2e-3) * np.max(np.abs(wanted))


def test_two_kernels_in_one_file_have_a_body_each() -> None:
    first, second = skip_layer_norm(2, 3, 8), bias_gelu(6, 8)
    model, graph = with_kernel(first)
    tables = model.tables
    total = model.values["total"]
    flat = tables.new_value(tensor(F32, 6, 8))
    reshaped = tables.add_node("Reshape", (("drop", 3), ("shape", (6, 8))), [total], [flat])
    scale = model.values["bias"]
    made = tables.new_value(tensor(F32, 6, 8))
    node = tables.add_node(KERNEL, kernel_attrs(second), [flat, scale], [made])
    back = tables.new_value(tensor(F32, 2, 3, 8))
    last = tables.add_node("Reshape", (("drop", 2), ("shape", (2, 3, 8))), [made], [back])
    y = model.values["y"]
    graph = graph.substitute({flat: (reshaped, 0), made: (node, 0), back: (last, 0), y: (last, 0)})
    content = to_bytes(model, graph)
    proto = onnx.load_from_string(content)
    assert sorted(f.overload for f in proto.functions) == sorted([first.digest.hex(), second.digest.hex()])
    feed = random_inputs(first, 1)
    total_out, y_out = ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feed)
    (wanted,) = reference(second, {"x": total_out.reshape(6, 8), "bias": feed["bias"]})
    np.testing.assert_allclose(y_out.reshape(6, 8), wanted, rtol=1e-5, atol=1e-6)


def test_an_optimised_model_is_read_as_it_was_written() -> None:
    kernel = lora(symbol("m"), 16, 8, 4)
    proto = kernel_model(kernel)
    again = load(proto)
    assert not again.opaque
    (node,) = again.graph.nodes()
    assert node.op == "Kernel" and node.attrs == (("digest", kernel),)
    assert content(kernel_of(node.attrs)) == content(kernel) and not again.programs
    assert onnx.load_from_string(to_bytes(again, again.graph)) == proto


def test_how_a_kernel_is_launched_survives_reading() -> None:
    """The file's own plan and images go where the node goes, also when it is written anew."""
    kernel = lora(3, 16, 24, 4)
    attributes = {"version": 1, "kernels": "lora", "plan": (1, 2, 3), "images": np.arange(4, dtype=np.uint8)}
    schedules = (Schedule((("m", 16), ("n", 16), ("k", 16)), warps=2),)
    proto = kernel_model(kernel, programs={kernel: CompiledKernel(Variants.one(schedules), attributes)})
    model = load(proto)
    assert not model.opaque and model.programs[kernel].variants == Variants.one(schedules)
    y = model.values["y"]
    (node,) = model.graph.nodes()
    anew = model.tables.add_node(KERNEL, node.attrs, node.inputs, [model.tables.new_value(model.tables.types[y])], intern=False)
    for graph in (model.graph, model.graph.substitute({y: (anew, 0)})):
        (written,) = onnx.load_from_string(to_bytes(model, graph)).graph.node
        found = {a.name: onnx.helper.get_attribute_value(a) for a in written.attribute}
        assert found["plan"] == [1, 2, 3] and found["kernels"] == b"lora" and found["version"] == 1
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(found["images"]), attributes["images"])


def test_programs_are_known_to_their_model_alone() -> None:
    """What another model was written with says nothing; what is given goes before what the model came with."""
    kernel = lora(3, 16, 24, 4)
    images = {n: np.full(4, n, np.uint8) for n in (1, 2)}
    none = Variants.one(())
    first, second = (CompiledKernel(none, {"version": 1, "kernels": "k", "plan": (n,), "images": images[n]}) for n in (1, 2))
    proto = kernel_model(kernel, programs={kernel: first})
    assert {a.name for a in kernel_model(kernel).graph.node[0].attribute} == {"mugraph"}
    model = load(proto)
    graph = model.graph
    (node,) = graph.nodes()
    y = model.values["y"]
    anew = model.tables.add_node(KERNEL, node.attrs, node.inputs, [model.tables.new_value(model.tables.types[y])], intern=False)
    graph = graph.substitute({y: (anew, 0)})
    for programs, plan in ((None, [1]), ({kernel: second}, [2])):
        (written,) = onnx.load_from_string(to_bytes(model, graph, programs)).graph.node
        assert {a.name: onnx.helper.get_attribute_value(a) for a in written.attribute}["plan"] == plan


SCHEDULE = {"tiles": {}, "split": 1, "warps": 4, "stages": 2, "group": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: {**text, "format": VARIANTS_FORMAT + 1}, "not of format 1 or 2"),
        (lambda text: {**text, "kernel": {}}, "cannot be read"),
        (lambda text: {**text, "kernel": {**text["kernel"], "blocks": [{**text["kernel"]["blocks"][0], "name": 3}]}}, "no text"),
        (lambda text: {**text, "schedules": [{"tiles": {}}]}, "cannot be read"),
        (lambda text: {**text, "schedules": [{**SCHEDULE, "split": math.inf}]}, "inf is no whole number"),
        (lambda text: {**text, "schedules": [{**SCHEDULE, "warps": True}]}, "True is no whole number"),
        (
            lambda text: {"format": 2, "kernel": text["kernel"], "variants": [[SCHEDULE]] * 2, "measure": "m", "limits": [0.5]},
            "0.5 is no",
        ),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        (lambda text: [], "not of format 1 or 2"),
        (lambda text: {**text, "kernel": {**text["kernel"], "inputs": text["kernel"]["inputs"][:-1]}}, "cannot be read"),
        (None, "without its μGraph"),
    ],
)
def test_what_is_not_understood_stays_opaque_and_runs(change: object, reason: str) -> None:
    kernel = lora(3, 16, 8, 4)
    proto = kernel_model(kernel)
    (attribute,) = proto.graph.node[0].attribute
    if change is None:
        del proto.graph.node[0].attribute[:]
    else:
        attribute.s = change.encode() if isinstance(change, str) else json.dumps(change(json.loads(attribute.s))).encode()  # type: ignore[operator]
    model = load(proto)
    assert reason in model.opaque[0]
    content = to_bytes(model, model.graph)
    feed = random_inputs(kernel, 1)
    (got,) = ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feed)
    np.testing.assert_allclose(got, reference(kernel, feed)[0], rtol=1e-4, atol=1e-4)


def test_a_body_that_the_opset_cannot_say_is_an_error() -> None:
    with pytest.raises(NotExpressible, match="Mish does not exist at opset 13"):
        kernel_model(kernel_of_terms("mish", {"x": tensor(F32, 4, 8)}, {"y": "Mish(x)"}), 13)
