"""The whole run on small models. Timings are replaced by fixed ones: what is tested is what is decided from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from rewriter import optimize
from rewriter.reference import identical
from rewriter.run import accept, timings
from rules_db.library import shipped_rules
from tests.support.graphs import rule
from tests.support.runs import SAME, block, lora, ops, run_model

pytestmark = pytest.mark.usefixtures("measured_cache")


def test_an_adapter_is_folded_into_its_layer(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", shapes={"x": (2, 4, 32)}, budget=20)
    assert outcome.improved
    assert ops(target) in (["MatMul"], ["FusedMatMul"]), "one product; in which layout its weight is cheaper is measured"
    assert len(onnx.load(target).graph.initializer) == 1, "the folded weight replaces its parts"
    for batch in (1, 3):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 4, 32)).astype(np.float32)}
        np.testing.assert_allclose(run_model(target, feeds)[0], run_model(source, feeds)[0], rtol=1e-4, atol=1e-4)
    assert outcome.error_after is not None and outcome.error_after.relative_l2 < 1e-6


def test_a_transformer_block_loses_guard_and_adapters(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source, target = block(tmp_path / "block.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=40)
    assert outcome.improved
    assert "IsNaN" not in ops(target)
    assert ops(target).count("MatMul") < ops(source).count("MatMul")
    assert outcome.nodes_after == len(ops(target)) < outcome.nodes_before
    shipped = {r.id for r in shipped_rules()}
    assert outcome.fired and all(f.rule[:-1] in shipped for f in outcome.fired), "only generated rules fire"


def test_what_is_not_faster_beyond_noise_is_not_written(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    timing["confirm"] = SAME
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=20)
    assert not outcome.improved and "not less beyond noise" in outcome.message
    assert ops(target) == ops(source)


def test_what_seems_slower_is_not_even_confirmed(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    timing["pair"] = timings.Timing(1.0, 1.2, 0.1, 0.1, 1.2, 1.1, 1.3)
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=20)
    assert not outcome.improved and "no candidate seemed faster" in outcome.message and ops(target) == ops(source)
    without = optimize(source, target, provider="cpu", budget=20, kernels=False)
    told = [[note for note in run.notes if "--cpu-kernels" in note] for run in (outcome, without)]
    assert told == [["no kernels in C were tried, which may make products faster (3 here): --cpu-kernels"], []]


def test_a_wrong_rule_is_found_by_bisection_dropped_and_quarantined(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    """A false rule that looks profitable must not reach the output; the true ones stay."""
    wrong = rule("Add(X, Mul(Y, s))", "Add(X, Y)", "X:[m,n] Y:[m,n] s:[]", "fits(Y, X)")
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", rules=[*shipped_rules(), wrong], budget=20, top=3)
    assert all(f.rule[:-1] != wrong.id for f in outcome.fired)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 32)).astype(np.float32)}
    np.testing.assert_allclose(run_model(target, feeds)[0], run_model(source, feeds)[0], rtol=1e-4, atol=1e-4)
    alone = optimize(source, target, provider="cpu", rules=[wrong], budget=20, use_verdicts=False)
    assert not alone.improved and any(wrong.id in line for line in alone.dropped)
    again = optimize(source, target, provider="cpu", rules=[wrong], budget=20, use_verdicts=False)
    assert any("quarantined by an earlier run" in line for line in again.dropped)


def test_a_remembered_verdict_gives_the_same_model_without_measuring(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source = lora(tmp_path / "lora.onnx")
    first = optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    timing["confirm"] = SAME  # a second measurement would decide otherwise
    second = optimize(source, tmp_path / "b.onnx", provider="cpu", budget=20)
    assert second.cached_verdict and second.improved and not first.cached_verdict
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    other = optimize(source, tmp_path / "c.onnx", provider="cpu", budget=20, alpha=1.2)
    assert not other.cached_verdict, "other options, another verdict"


def test_budget_zero_is_the_plain_round_trip(tmp_path: Path) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=0)
    assert not outcome.improved and onnx.load(target).graph == onnx.load(source).graph


def test_the_plain_round_trip_has_what_nobody_reads(tmp_path: Path) -> None:
    """Without the last node onnxruntime's optimisers make a model of the others that does not load (docs/upstream.md)."""
    unread = parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2,3] x, bool c) => (float[3,2] y) <float s = {0.1}, int8 z = {3}, bool always = {1}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            u = Transpose<perm = [1,0]>(d)
            y = Exp(u)
            a = If (always) <then_branch = t () => (float[2,3] e) { n = Neg(x) e = Abs(n) },
                             else_branch = f () => (float[2,3] r) { r = Relu(x) }>
            one = Constant <value_ints = [1]> ()
            i, k = TopK <axis = 1> (x, one)
            w = QuantizeLinear(u, s, z)
        }""")
    onnx.save(unread, tmp_path / "m.onnx")
    optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=0)
    assert list(onnx.load(tmp_path / "o.onnx").graph.node) == list(unread.graph.node)
    x = {"x": np.ones((2, 3), np.float32), "c": np.asarray(True)}
    assert identical(run_model(tmp_path / "o.onnx", x)[0], run_model(tmp_path / "m.onnx", x)[0])


def test_random_models_are_left_alone(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4,4] x) => (float[4,4] y) {
            noise = RandomNormalLike(x)
            zero = Constant<value_float = 0.0>()
            calm = Add(x, zero)
            y = Add(calm, noise)
        }""")
    onnx.save(model, tmp_path / "random.onnx")
    outcome = optimize(tmp_path / "random.onnx", provider="cpu", budget=20)
    assert not outcome.improved and "nothing can be compared" in outcome.message


def test_user_data_takes_part_in_acceptance(
    tmp_path: Path, timing: dict[str, timings.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    original = accept.referred

    def spy(model: Any, feeds: Any, *rest: Any) -> Any:
        seen.extend(feed["x"] for feed in feeds)
        return original(model, feeds, *rest)

    monkeypatch.setattr(accept, "referred", spy)
    data = {"x": np.ones((1, 4, 32), np.float32)}
    optimize(lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", provider="cpu", budget=20, data=[data])
    assert sum(np.array_equal(x, data["x"]) for x in seen) == 1 and len(seen) > 2


@pytest.mark.parametrize(
    ("other", "type_"),
    [
        ("big = Mul(hundred, t) q = Cast<to = 6>(big)", "int32[N,4,48] q"),  # rounding decides the integer
        ("big = Mul(hundred, t) q = Exp(big)", "float[N,4,48] q"),  # overflows in float32, not in float64
    ],
)
def test_an_output_without_reference_disarms_no_other(
    tmp_path: Path, timing: dict[str, timings.Timing], other: str, type_: str
) -> None:
    """Where the original itself is far from the reference, a false rule must still be caught on the other outputs."""
    model = parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4,48] x, float[N,4,48] z) => (float[N,4,48] y, {type_}) {{
            three = Constant<value_float = 3.0>()
            hundred = Constant<value_float = 100000.0>()
            scaled = Mul(z, three)
            y = Add(x, scaled)
            t = Tanh(x)
            {other}
        }}""")
    onnx.save(model, tmp_path / "m.onnx")
    wrong = rule("Add(X, Mul(Y, s))", "Add(X, Y)", "X:[m,n] Y:[m,n] s:[]", "fits(Y, X)")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", rules=[wrong], budget=20)
    assert not outcome.improved and any(wrong.id in line for line in outcome.dropped)
    json.loads(outcome.to_json())


def test_first_failing_is_the_guilty_step() -> None:
    for guilty in range(1, 8):
        assert accept.first_failing(7, lambda n, g=guilty: n < g) == guilty  # type: ignore[misc]


def test_explain_names_reasons(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source = lora(tmp_path / "lora.onnx")
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20, explain="y")
    assert any("the rule wants" in e.outcome for e in outcome.explanations)
    assert any("saves" in e.outcome for e in outcome.explanations)
    one = next(e.rule for e in outcome.explanations)
    by_rule = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20, explain=one)
    assert by_rule.explanations and all(e.rule[:-1] == one[:-1] for e in by_rule.explanations)


def test_opaque_custom_nodes_survive_optimisation(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    """A contrib operator between two adapters passes through byte for byte."""
    path = lora(tmp_path / "lora.onnx")
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node[-1].output[0] = "sum"
    model.graph.node.append(helper.make_node("QuickGelu", ["sum"], ["y"], domain="com.microsoft", name="keep", alpha=1.5))
    onnx.save(model, path)
    outcome = optimize(path, tmp_path / "o.onnx", provider="cpu", budget=20)
    written = onnx.load(tmp_path / "o.onnx")
    assert outcome.improved and written.graph.node[-1] == model.graph.node[-1]


def test_another_budget_or_other_data_is_another_verdict(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    source = lora(tmp_path / "lora.onnx")
    optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    assert not optimize(source, tmp_path / "a.onnx", provider="cpu", budget=25).cached_verdict
    data = [{"x": np.ones((1, 4, 32), np.float32)}]
    assert not optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20, data=data).cached_verdict
    assert optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20, data=data).cached_verdict


@pytest.mark.parametrize("body", ["y = Hardmax(x)", "y = Identity(x)"])
def test_models_without_anything_to_price(tmp_path: Path, timing: dict[str, timings.Timing], body: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4,4] x) => (float[4,4] y) {{ {body} }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    assert not optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=10).improved


def test_a_damaged_verdict_is_measured_again(tmp_path: Path, timing: dict[str, timings.Timing]) -> None:
    import sqlite3

    source = lora(tmp_path / "lora.onnx")
    optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        connection.execute("update verdicts set value = '{\"moves\": [broken' where value like '{%'")
    again = optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    assert again.improved and not again.cached_verdict


@pytest.mark.parametrize("mask", ["bool", "float"])
def test_a_kernel_in_place_of_masked_attention_rests_on_attended_positions(tmp_path: Path, mask: str) -> None:
    """Where a mask hides a row throughout the runtime's Attention gives zeros, and a softmax no numbers."""
    sizes = "[2,4,16,8]"
    model = parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        masked (float{sizes} q, float{sizes} k, float{sizes} v, {mask}[2,1,16,16] m) => (float{sizes} y) {{
            y = Attention(q, k, v, m)
        }}""")
    onnx.save(model, tmp_path / "masked.onnx")
    for assumed in (True, False):
        outcome = optimize(
            tmp_path / "masked.onnx", tmp_path / f"{assumed}.onnx", device="h200", deterministic=True, assume_attended=assumed
        )
        assert outcome.kernels == int(assumed)
        assert ["--no-assume-attended"] * assumed == [one.option for one in outcome.assumed if "attend" in one.option]
    generator = np.random.default_rng(0)
    hidden = generator.random((2, 1, 16, 16)) < 0.5
    hidden[:, :, 3] = True
    feed = {name: generator.standard_normal((2, 4, 16, 8)).astype(np.float32) for name in "qkv"}
    feed["m"] = ~hidden if mask == "bool" else np.where(hidden, -np.inf, 0).astype(np.float32)
    (result,) = run_model(tmp_path / "masked.onnx", feed)
    assert not result[:, :, 3].any(), "what the assumption is about"


def test_what_rests_on_attended_positions_says_so(tmp_path: Path) -> None:
    """A float16 padding mask: without the assumption the guard of its softmax stays."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        masked (float16[2,4,8] x, bool[2,1,8] keep) => (float16[2,4,8] y) {
            mask = Where(keep, zero, least)
            scores = Add(x, mask)
            soft = Softmax<axis = -1>(scores)
            wrong = IsNaN(soft)
            y = Where(wrong, zero, soft)
        }""")
    for name, number in (("zero", 0), ("least", -65504)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(number, np.float16), name))
    onnx.save(model, tmp_path / "masked.onnx")
    guard = [r for r in shipped_rules() if r.provenance["group"] == "guard"]
    results = {
        assumed: optimize(
            tmp_path / "masked.onnx",
            tmp_path / f"{assumed}.onnx",
            rules=guard,
            device="h200",
            kernels=False,
            deterministic=True,
            assume_attended=assumed,
        )
        for assumed in (True, False)
    }
    assert "IsNaN" not in ops(tmp_path / "True.onnx") and "IsNaN" in ops(tmp_path / "False.onnx")
    finite, attended = results[True].assumed
    assert (attended.option, attended.nodes) == ("--no-assume-attended", ("y",))
    assert finite.option == "--inputs-may-be-infinite" and attended.rules == tuple(fired.rule for fired in results[True].fired)
    assert str(attended) == f"assumes that {attended.assumption}: {attended.rules[0]} at y; --no-assume-attended drops it"
    assert all(assumed.option != "--no-assume-attended" for assumed in results[False].assumed)
    assert [entry["option"] for entry in json.loads(results[True].to_json())["assumed"]] == [finite.option, attended.option]


def test_equations_of_numbers_are_named_or_do_not_fire(tmp_path: Path) -> None:
    """One product for two, where one that is infinite times 2 and times -1 would be NaN before and infinite after."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        twice (float[64,64] x, float[64,64] v, float[64,64] w) => (float[64,64] y) {
            a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)
        }""")
    onnx.save(model, tmp_path / "twice.onnx")
    (factor,) = [r for r in shipped_rules() if r.id == "304ea43aeda0bfbe"]
    results = {
        finite: optimize(
            tmp_path / "twice.onnx",
            tmp_path / f"{finite}.onnx",
            rules=[factor],
            device="h200",
            kernels=False,
            deterministic=True,
            assume_finite=finite,
        )
        for finite in (True, False)
    }
    assert ops(tmp_path / "True.onnx").count("MatMul") == 1 and ops(tmp_path / "False.onnx").count("MatMul") == 2
    (assumed,) = results[True].assumed
    assert (assumed.option, assumed.rules, assumed.nodes) == ("--inputs-may-be-infinite", (f"{factor.id}>",), ("y",))
    assert "no infinity and no NaN" in assumed.assumption and "overflows" in assumed.assumption
    assert not results[False].fired and not results[False].assumed


@pytest.mark.parametrize(("rows", "named"), [("H", True), ("16", False)])
def test_a_pool_that_changes_places_with_a_convolution_is_named_where_windows_may_not_fit(
    tmp_path: Path, rows: str, named: bool
) -> None:
    """Of two rows onnxruntime's pool of three makes one place, and its convolution an error (docs/upstream.md)."""
    model = parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[1,12,{rows},16] x, float[12,12,3,3] w) => (float[1,12,p,q] y) {{
            c = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w)
            y = AveragePool<kernel_shape = [3,3], strides = [2,2]>(c)
        }}""")
    onnx.save(model, tmp_path / "m.onnx")
    (exchange,) = [r for r in shipped_rules() if r.id == "c5f10e0d03ac44cc"]
    outcome = optimize(
        tmp_path / "m.onnx", rules=[exchange], deterministic=True, provider="cpu", shapes={"x": (1, 12, 16, 16)}, kernels=False
    )
    assert ops(tmp_path / "m.superopt.onnx") == ["AveragePool", "Conv"]
    _, *fitting = outcome.assumed
    assert [(one.rules, one.nodes, one.option) for one in fitting] == [((f"{exchange.id}>",), ("y",), "--budget 0")] * named
    assert all("window" in one.assumption for one in fitting)


@pytest.mark.parametrize("size", ["N", "8"])
def test_operators_that_refuse_empty_tensors_are_named_where_sizes_may_change(tmp_path: Path, size: str) -> None:
    """onnxruntime runs a normalisation that is spelled out on no entries, and its own operator on one at least."""
    model = parse_model(f"""
        <ir_version: 8, opset_import: ["" : 23]>
        norm (float[2,{size}] x, float[{size}] g) => (float[2,{size}] y) <float e = {{0.00001}}> {{
            s = Mul(x, x) m = ReduceMean<keepdims = 1>(s, last) a = Add(m, e) r = Sqrt(a) d = Div(x, r) y = Mul(d, g)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([-1], np.int64), "last"))
    onnx.save(model, tmp_path / "norm.onnx")
    outcome = optimize(tmp_path / "norm.onnx", tmp_path / "out.onnx", device="h200", kernels=False, deterministic=True)
    assert any("Normalization" in op for op in ops(tmp_path / "out.onnx"))
    assert any("is 0" in one.assumption for one in outcome.assumed) is (size == "N")


def test_a_mask_of_activations_is_assumed_nothing_of(tmp_path: Path) -> None:
    """Where no entry of a row is positive the softmax is NaN, and the guard's 0.5 is the result."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        gated (float[2,8] x) => (float[2,8] y) <float zero = {0.0}, float half = {0.5}> {
            positive = Greater(x, zero)
            mask = Where(positive, zero, least)
            scores = Add(x, mask)
            soft = Softmax<axis = -1>(scores)
            wrong = IsNaN(soft)
            y = Where(wrong, half, soft)
        }""")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(-np.inf, np.float32), "least"))
    onnx.save(model, tmp_path / "gated.onnx")
    outcome = optimize(tmp_path / "gated.onnx", tmp_path / "out.onnx", device="cpu", deterministic=True)
    x = np.stack([-np.ones(8, np.float32), np.linspace(-1, 1, 8, dtype=np.float32)])
    before, after = (run_model(tmp_path / name, {"x": x})[0] for name in ("gated.onnx", "out.onnx"))
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert np.all(before[0] == 0.5) and not any(assumed.option == "--no-assume-attended" for assumed in outcome.assumed)


def test_what_the_runtime_is_expected_to_fuse_is_written_out(tmp_path: Path) -> None:
    """onnxruntime joins product and bias before it sees the GELU behind them; the price was that of the fused operator."""
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        dense (float[2,8,32] x) => (float[2,8,48] y) {
            a = Relu(x)
            twice = Relu(a)
            product = MatMul(twice, W)
            sum = Add(product, b)
            y = Gelu(sum)
        }""")
    generator = np.random.default_rng(0)
    arrays = {"W": generator.standard_normal((32, 48)), "b": generator.standard_normal(48)}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    onnx.save(model, tmp_path / "m.onnx")
    out = tmp_path / "o.onnx"
    assert optimize(tmp_path / "m.onnx", out, device="h200", deterministic=True, kernels=False).improved
    assert ops(out) == ["Relu", "MatMul", "BiasGelu"]
    x = generator.standard_normal((2, 8, 32)).astype(np.float32)
    np.testing.assert_allclose(run_model(out, {"x": x})[0], run_model(tmp_path / "m.onnx", {"x": x})[0], rtol=1e-4, atol=1e-4)
