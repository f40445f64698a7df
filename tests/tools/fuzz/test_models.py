"""Random models: the same for the same number, of all operators, and a false result of one does not pass."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

from mugraph.ops import ONNX_OPERATORS, REGISTRY, get_operator
from mugraph.terms.shape import DataType, TensorType, concrete
from tests.support.fuzzing import attack
from tools.fuzz.fates import Fate
from tools.fuzz.models import generate
from tools.fuzz.models.draft import ModelDraft, Rejected
from tools.fuzz.models.generate import RandomModel, random_model
from tools.fuzz.models.pieces import sample_of
from tools.fuzz.models.shrink import shrunk
from tools.fuzz.oracle import EMPTY_UNFITTING, UNFITTING, compare_models, examine_model
from tools.fuzz.running import at_sizes, run, session


@pytest.mark.usefixtures("own_cache")
def test_what_is_written_for_random_models_computes_what_they_do() -> None:
    done = attack("models", "--count", "120", "--seed", "7")
    assert done.returncode == 0, done.stdout
    rewritten = re.search(r"rewritten\s+│\s+(\d+)", done.stdout)
    assert rewritten is not None and int(rewritten[1]) > 40, done.stdout  # else it says nothing about rules


@pytest.mark.usefixtures("own_cache")
def test_a_number_gives_one_model_alone_and_among_others() -> None:
    one, again, other = random_model(3, 5), random_model(3, 5), random_model(3, 6)
    assert one.proto == again.proto and one.proto != other.proto
    assert [*one.feeds] == [*again.feeds]
    for kind, feed in one.feeds.items():
        assert all(np.array_equal(feed[n], again.feeds[kind][n], equal_nan=feed[n].dtype.kind == "f") for n in feed)


WRITTEN_AS = {"Windows": "Gather"}
"""Operators that ONNX has not."""


def test_every_record_that_has_samples_can_be_made() -> None:
    refused = {}
    for record in REGISTRY.values():
        for text in record.samples:
            draft = ModelDraft(np.random.default_rng(0), 24, DataType.FLOAT, (2, 3))
            try:
                sample_of(draft, text)
            except Rejected as problem:
                refused[text] = str(problem)
            else:
                made = {node.op_type for node in draft.nodes}
                names = {WRITTEN_AS.get(record.name, record.name), *(record.onnx or ())}
                assert made & {*names, *([record.contract.op_type] if record.contract else ())}
    assert all("[1,128,768]" in text or "[768,2304]" in text for text in refused), refused  # too large
    unmade = [op for op, record in ONNX_OPERATORS.items() if not record.samples]
    assert not unmade, "an operator without a sample is in no random model"


def model(body: str) -> bytes:
    return parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) {{ {body} }}""").SerializeToString()


@pytest.mark.parametrize("prefix", ["", "body_"])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_no_two_writes_go_to_one_place(op: str, prefix: str) -> None:
    """ONNX does not say which of them stays, and providers differ."""
    (text,) = get_operator(op).samples
    for seed in range(20):
        draft = ModelDraft(np.random.default_rng(seed), 24, DataType.FLOAT, (2, 3), prefix)
        sample_of(draft, text)
        name = next(node.input[1] for node in draft.nodes if node.op_type == op)
        shape = concrete(draft.types[name].shape)
        assert shape is not None
        indices = draft.initializers[name] if prefix else generate._drawn(draft, {name: shape})[name]
        assert indices.shape == shape and indices.min() >= 0 and indices.max() < max(2, shape[0])
        assert all(len(set(column)) == shape[0] for column in indices.T)


def test_another_function_is_wrong_and_the_same_one_is_not() -> None:
    double = model("y = Add(x, x)")
    assert compare_models(double, model("two = Constant<value_float = 2.0>() y = Mul(x, two)")).fate is Fate.REWRITTEN
    assert compare_models(double, model("two = Constant<value_float = 2.001>() y = Mul(x, two)")).fate is Fate.WRONG
    assert compare_models(double, model("z = Log(x) y = Add(z, z)")).fate is Fate.WRONG
    assert compare_models(double, model("s = Constant<value_ints = [7]>() y = Reshape(x, s)")).fate is Fate.LOST


@pytest.mark.usefixtures("own_cache")
def test_what_the_optimiser_refuses_and_what_the_runtime_cannot_run_are_told_apart(tmp_path: Path) -> None:
    feeds = {"measured": {"x": np.ones((2, 3), np.float32)}}
    options = {"deterministic": True, "provider": "cpu"}
    assert examine_model(model("y = Neg(x)"), feeds, tmp_path, **options).fate is Fate.UNCHANGED
    refused = examine_model(model("y = Neg(nowhere)"), feeds, tmp_path, **options)
    assert refused.fate is Fate.NOT_RUNNABLE
    misfit = {"other": {"x": np.ones((9, 9), np.float32)}}
    assert examine_model(model("y = Neg(x)"), misfit, tmp_path, **options).fate is Fate.NOT_RUNNABLE


def test_models_are_run_at_no_size_at_which_a_kernel_reads_beyond_its_operands() -> None:
    """The right factor has 3 columns where it was made, as its scale has: at other sizes it has others."""
    draft = ModelDraft(np.random.default_rng(0), 17, DataType.FLOAT, (2, 3))
    x, w = draft.input(TensorType(DataType.FLOAT, (2, 4))), draft.input(TensorType(DataType.INT8, (4, 3)))
    scale = draft.constant(np.ones(3, np.float32))
    draft.nodes.append(helper.make_node("DynamicQuantizeMatMul", [x, w, scale], ["y"], domain="com.microsoft"))
    draft.types["y"] = TensorType(DataType.FLOAT, (2, 3))
    base = {x: (2, 4), w: (4, 3)}
    for size, others in ((2, True), (3, False)):
        symbols = {size: f"N{size}"}
        feeds = generate._feeds(draft, generate._model(draft, ["y"], symbols), base, symbols, infinite=False)
        assert "measured" in feeds and any(kind.startswith("other") for kind in feeds) is others


def test_models_are_run_at_no_size_at_which_they_are_not_defined() -> None:
    """onnxruntime leaves out what is empty in a Concat, whatever its shape; beside an unknown operator onnx finds no fault."""
    joined = parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,4] x, float[2,2] a) => (float[p,q] y, float[2,2] z) <float[2,1] c = {1, 2}> {
            z = com.microsoft.FusedMatMul(a, a) y = Concat<axis = 1>(x, c) }""")
    running = session(joined.SerializeToString())
    feeds = [{"x": np.ones((rows, 4), np.float32), "a": np.ones((2, 2), np.float32)} for rows in (2, 0)]
    assert [run(running, feed)[0].shape for feed in feeds] == [(2, 5), (2, 5)]
    typed = generate._typed_by_the_registry(at_sizes(joined, feeds[0]))
    assert [generate._runs(running, at_sizes(joined, feed), feed, typed) for feed in feeds] == [True, False]


def test_sizes_at_which_windows_do_not_fit_are_told_from_others() -> None:
    """onnxruntime makes a place of a window that hangs over the end (docs/upstream.md), and onnx's inference does not mind."""
    draft = ModelDraft(np.random.default_rng(0), 17, DataType.FLOAT, (5, 3))
    x = draft.input(TensorType(DataType.FLOAT, (1, 2, 5, 8)))
    draft.nodes.append(helper.make_node("MaxPool", [x], ["y"], kernel_shape=[3, 3], strides=[3, 3]))
    draft.types["y"] = TensorType(DataType.FLOAT, (1, 2, 1, 2))
    symbols = {5: "N5"}
    feeds = generate._feeds(draft, generate._model(draft, ["y"], symbols), {x: (1, 2, 5, 8)}, symbols, infinite=False)
    rows = {kind: feed[x].shape[2] for kind, feed in feeds.items()}
    assert rows["measured"] == 5 and rows[UNFITTING] < 3
    assert all(count >= 3 for kind, count in rows.items() if kind != UNFITTING)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("kind", "fate"), [(UNFITTING, Fate.REWRITTEN), ("other", Fate.LOST)])
def test_sizes_at_which_windows_do_not_fit_are_excused_where_the_result_names_them(kind: str, fate: Fate, tmp_path: Path) -> None:
    exchanged = parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[1,12,H,16] x, float[12,12,3,3] w) => (float[1,12,p,q] y) {
            c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w)
            y = AveragePool<kernel_shape = [3,3], strides = [2,2]>(c)
        }""")
    feeds = {kind: {"x": np.ones((1, 12, 2, 16), np.float32), "w": np.ones((12, 12, 3, 3), np.float32)}}
    options = {"deterministic": True, "provider": "cpu", "shapes": {"x": (1, 12, 16, 16)}}
    assert examine_model(exchanged.SerializeToString(), feeds, tmp_path, **options).fate is fate


def test_empty_inputs_of_sizes_that_the_registry_does_not_know_are_told_from_others() -> None:
    """It knows no Flatten of a tensor without entries."""
    draft = ModelDraft(np.random.default_rng(0), 17, DataType.FLOAT, (5, 3))
    x = draft.input(TensorType(DataType.FLOAT, (5, 4)))
    draft.nodes.append(helper.make_node("Flatten", [x], ["y"], axis=0))
    draft.types["y"] = TensorType(DataType.FLOAT, (1, 20))
    symbols = {5: "N5"}
    feeds = generate._feeds(draft, generate._model(draft, ["y"], symbols), {x: (5, 4)}, symbols, infinite=False)
    assert {kind for kind, feed in feeds.items() if not feed[x].size} == {EMPTY_UNFITTING} and UNFITTING not in feeds


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("kind", "fate"), [(EMPTY_UNFITTING, Fate.REWRITTEN), (UNFITTING, Fate.LOST)])
def test_empty_inputs_are_excused_where_the_result_names_them(kind: str, fate: Fate, tmp_path: Path) -> None:
    """onnxruntime's own operator refuses rows without entries, and says so whether or not the registry knows these sizes."""
    norm = parse_model("""
        <ir_version: 8, opset_import: ["" : 23]>
        norm (float16[2,N] x, float16[N] g) => (float16[2,N] y)
        <float e = {0.00001}, float two = {2}, float half = {0.5}, int64[1] last = {1}> {
            f = Cast<to = 1>(x) s = Pow(f, two) m = ReduceMean<keepdims = 1>(s, last) a = Add(e, m) r = Pow(a, half)
            d = Div(f, r) c = Cast<to = 10>(d) y = Mul(g, c)
        }""")
    feeds = {kind: {"x": np.ones((2, 0), np.float16), "g": np.ones(0, np.float16)}}
    options = {"deterministic": True, "provider": "cpu", "shapes": {"x": (2, 8)}}
    assert examine_model(norm.SerializeToString(), feeds, tmp_path, **options).fate is fate


def test_what_onnxruntime_breaks_is_held_against_it_without_its_optimisers() -> None:
    """They fuse a Transpose before a product with a vector, and compute another thing (docs/upstream.md)."""

    def doubled(second: str) -> bytes:
        return parse_model(f"""
            <ir_version: 10, opset_import: ["" : 17]>
            g (float[3,3] a, float[3] b) => (float[3] y) <int64[1] one = {{1}}, float two = {{2}}> {{
                t = Transpose<perm = [1,0]>(a) p = MatMul(t, b) {second} }}""").SerializeToString()

    elsewhere = "column = Unsqueeze(b, one) m = Mul(a, column) s = ReduceSum<keepdims = 0>(m, zero)"
    elsewhere = f"zero = Constant<value_ints = [0]>() {elsewhere}"
    original = doubled("y = Mul(p, two)")
    assert compare_models(original, doubled(f"{elsewhere} y = Add(p, s)")).fate is Fate.RUNTIME
    assert compare_models(original, doubled(f"{elsewhere} y = Sub(p, s)")).fate is Fate.WRONG


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no such parameter")
def test_memory_that_nobody_wrote_is_not_zero_by_chance() -> None:
    ask = "import numpy; from tools.fuzz.running import *; poison_memory(); print({*numpy.empty(9999, 'u1').tolist()})"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{254}"


def test_what_overflows_is_told() -> None:
    sums = onnx.load_from_string(model("s = ReduceSum(x) d = Sub(x, s) y = Softmax(d)"))
    for large, overflows in ((1e20, True), (1e18, False)):
        assert generate._overflows(sums, {"x": np.array([[1, 2, 3], [-large, 2, 4]], np.float32)}) is overflows
    assert generate._overflows(onnx.load_from_string(model("y = Mul(x, x)")), {"x": np.full((2, 3), 1e18, np.float32)})


def test_an_operator_set_that_only_a_body_uses_is_imported() -> None:
    draft = ModelDraft(np.random.default_rng(0), 17, DataType.FLOAT, (2, 3))
    x = draft.input(TensorType(DataType.FLOAT, (2, 3)))
    body = helper.make_graph(
        [helper.make_node("QuickGelu", [x], ["inner"], domain="com.microsoft")], "b", [], [onnx.ValueInfoProto(name="inner")]
    )
    draft.nodes.append(helper.make_node("If", [x], ["y"], then_branch=body, else_branch=body))
    draft.types["y"] = TensorType(DataType.FLOAT, (2, 3))
    assert {one.domain for one in generate._model(draft, ["y"]).opset_import} == {"", "com.microsoft"}


def test_a_failing_model_becomes_small() -> None:
    proto = onnx.load_from_string(model("a = Relu(x) b = Exp(a) c = Neg(b) d = Tanh(x) e = Mul(c, d) f = Sigmoid(e) y = Abs(f)"))
    whole = RandomModel(proto, {"one": {"x": np.ones((2, 3), np.float32)}, "other": {"x": np.zeros((2, 3), np.float32)}})
    tried = Counter[str]()

    def fails(one: RandomModel) -> bool:
        tried["all"] += 1
        return any(node.op_type == "Mul" for node in one.proto.graph.node)

    small = shrunk(whole, fails, time.monotonic() + 20)
    assert [node.op_type for node in small.proto.graph.node if node.op_type != "Identity"] == ["Mul"]
    assert len(small.feeds) == 1 and tried["all"] < 200
    assert shrunk(whole, fails, time.monotonic()) == whole


@pytest.mark.usefixtures("own_cache")
def test_random_models_that_are_cleaned_up_compute_the_same_bit_for_bit() -> None:
    done = attack("models", "--clean", "--count", "60", "--seed", "11")
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("own_cache")
def test_a_model_that_the_runtime_breaks_once_it_is_written_anew_is_kept(tmp_path: Path) -> None:
    body = """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) t = Identity(d) u = Transpose<perm = [1,0]>(t)
        y = Exp(u) unread = QuantizeLinear(u, s, z) a = Relu(x) b = Relu(a) c = Exp(b)"""
    breaks = parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2,3] x) => (float[3,2] y, float[2,3] c) <float s = {{0.1}}, int8 z = {{3}}> {{ {body} }}""")
    feeds = {"measured": {"x": np.ones((2, 3), np.float32)}}
    report = examine_model(breaks.SerializeToString(), feeds, tmp_path, deterministic=True, provider="cpu")
    assert report.fate is Fate.UNCHANGED, report


@pytest.mark.usefixtures("own_cache")
def test_a_model_that_runs_on_no_random_inputs_is_examined_with_those_of_the_case(tmp_path: Path) -> None:
    sized = parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[6] x, int64[2] s) => (float[p,q] y) { a = Relu(x) b = Relu(a) y = Reshape(b, s) }""")
    feeds = {"measured": {"x": np.ones(6, np.float32), "s": np.asarray([2, 3])}}
    report = examine_model(sized.SerializeToString(), feeds, tmp_path, deterministic=True, provider="cpu")
    assert report.fate is Fate.REWRITTEN, report
