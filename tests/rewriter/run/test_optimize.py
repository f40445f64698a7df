"""The whole run on small models. Timings are replaced by fixed ones: what is tested is what is decided from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import ModelError, load
from rewriter import optimize
from rewriter.cli.main import main
from rewriter.reference import Error, bind_sizes, compare, random_inputs, reference_outputs
from rewriter.run import accept
from rules_db.library import shipped_rules
from tests.support.graphs import rule
from tools.zoo import lora_block

FASTER = accept.Timing(2.0, 1.0, 0.1, 0.1, 0.5, 0.45, 0.55)
SAME = accept.Timing(1.0, 1.0, 0.1, 0.1, 1.0, 0.95, 1.05)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, accept.Timing]]:
    """Fixed answers of the stopwatch: ``pair`` while choosing, ``confirm`` for the winner."""
    answers = {"pair": FASTER, "confirm": FASTER}
    monkeypatch.setattr(accept.Acceptance, "pair", lambda self, session, seconds: answers["pair"])
    monkeypatch.setattr(accept, "confirm", lambda *args, **kwargs: answers["confirm"])
    yield answers


def _block(path: Path) -> Path:
    onnx.save(lora_block(hidden=64, heads=2, sequence=16, intermediate=96, rank=4), path)
    return path


def _lora(path: Path) -> Path:
    """X·W + ((X·A)·B)·2, with a dynamic batch."""
    generator = np.random.default_rng(0)
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        lora (float[N,4,32] x) => (float[N,4,48] y) {
            base = MatMul(x, W)
            low = MatMul(x, A)
            high = MatMul(low, B)
            scaled = Mul(high, two)
            y = Add(base, scaled)
        }""")
    weights = {"W": (32, 48), "A": (32, 4), "B": (4, 48)}
    arrays = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    arrays["two"] = np.asarray(2.0, np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    onnx.save(model, path)
    return path


def _run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)


def _ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_an_adapter_is_folded_into_its_layer(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", shapes={"x": (2, 4, 32)}, budget=20)
    assert outcome.improved and _ops(target) == ["MatMul"]
    assert len(onnx.load(target).graph.initializer) == 1, "the folded weight replaces its parts"
    for batch in (1, 3):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 4, 32)).astype(np.float32)}
        np.testing.assert_allclose(_run(target, feeds)[0], _run(source, feeds)[0], rtol=1e-4, atol=1e-4)
    assert outcome.error_after is not None and outcome.error_after.relative_l2 < 1e-6


def test_a_transformer_block_loses_guard_and_adapters(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source, target = _block(tmp_path / "block.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=40)
    assert outcome.improved
    assert "IsNaN" not in _ops(target)
    assert _ops(target).count("MatMul") < _ops(source).count("MatMul")
    assert outcome.nodes_after == len(_ops(target)) < outcome.nodes_before
    shipped = {r.id for r in shipped_rules()}
    assert outcome.fired and all(f.rule[:-1] in shipped for f in outcome.fired), "only generated rules fire"


def test_what_is_not_faster_beyond_noise_is_not_written(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    timing["confirm"] = SAME
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=20)
    assert not outcome.improved and "not less beyond noise" in outcome.message
    assert _ops(target) == _ops(source)


def test_what_seems_slower_is_not_even_confirmed(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    timing["pair"] = accept.Timing(1.0, 1.2, 0.1, 0.1, 1.2, 1.1, 1.3)
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=20)
    assert not outcome.improved and "no candidate seemed faster" in outcome.message and _ops(target) == _ops(source)


def test_a_wrong_rule_is_found_by_bisection_dropped_and_quarantined(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    """A false rule that looks profitable must not reach the output; the true ones stay."""
    wrong = rule("Add(X, Mul(Y, s))", "Add(X, Y)", "X:[m,n] Y:[m,n] s:[]", "fits(Y, X)")
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", rules=[*shipped_rules(), wrong], budget=20, top=3)
    assert all(f.rule[:-1] != wrong.id for f in outcome.fired)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 32)).astype(np.float32)}
    np.testing.assert_allclose(_run(target, feeds)[0], _run(source, feeds)[0], rtol=1e-4, atol=1e-4)
    alone = optimize(source, target, provider="cpu", rules=[wrong], budget=20, use_verdicts=False)
    assert not alone.improved and any(wrong.id in line for line in alone.dropped)
    again = optimize(source, target, provider="cpu", rules=[wrong], budget=20, use_verdicts=False)
    assert any("quarantined by an earlier run" in line for line in again.dropped)


def test_a_remembered_verdict_gives_the_same_model_without_measuring(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source = _lora(tmp_path / "lora.onnx")
    first = optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    timing["confirm"] = SAME  # a second measurement would decide otherwise
    second = optimize(source, tmp_path / "b.onnx", provider="cpu", budget=20)
    assert second.cached_verdict and second.improved and not first.cached_verdict
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    other = optimize(source, tmp_path / "c.onnx", provider="cpu", budget=20, alpha=1.2)
    assert not other.cached_verdict, "other options, another verdict"


def test_budget_zero_is_the_plain_round_trip(tmp_path: Path) -> None:
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", budget=0)
    assert not outcome.improved and onnx.load(target).graph == onnx.load(source).graph


def test_random_models_are_left_alone(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
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
    tmp_path: Path, timing: dict[str, accept.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = accept.reference_outputs

    def spy(model: Any, feeds: Any) -> Any:
        seen.append(len(feeds))
        return original(model, feeds)

    monkeypatch.setattr(accept, "reference_outputs", spy)
    data = {"x": np.ones((1, 4, 32), np.float32)}
    optimize(_lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", provider="cpu", budget=20, data=[data])
    assert seen == [3]


def test_the_error_bound_is_twice_the_originals_own() -> None:
    own = Error(1e-4, 1e-3)
    assert Error(1.9e-4, 1.9e-3).within(own, 0.0)
    assert not Error(2.1e-4, 1e-3).within(own, 0.0)
    assert not Error(1e-4, 2.1e-3).within(own, 0.0)
    assert Error(5e-7, 5e-7).within(Error(0.0, 0.0), 1e-6) and not Error(2e-6, 0.0).within(Error(0.0, 0.0), 1e-6)


def test_compare_notices_everything() -> None:
    floats, ints = np.array([1.0, 2.0, np.nan, np.inf]), np.array([1, 2])
    infinite = Error(float("inf"), float("inf"))
    assert compare(floats.copy(), floats) == compare(ints, ints) == Error(0.0, 0.0)
    assert compare(np.array([1.0, 2.0, 0.0, np.inf]), floats) == infinite, "a NaN that went away"
    assert compare(np.array([1.0, np.nan, np.nan, np.inf]), floats) == infinite
    assert compare(np.array([1, 3]), ints) == infinite, "integers are exact"
    assert compare(floats[:3], floats) == infinite
    assert compare(np.array([1.0, 2.1, np.nan, np.inf]), floats).relative_l2 == pytest.approx(0.1 / 5**0.5)
    assert compare(np.array([1e-30]), np.array([0.0])) == infinite


@pytest.mark.parametrize(
    ("other", "type_"),
    [
        ("big = Mul(hundred, t) q = Cast<to = 6>(big)", "int32[N,4,48] q"),  # rounding decides the integer
        ("big = Mul(hundred, t) q = Exp(big)", "float[N,4,48] q"),  # overflows in float32, not in float64
    ],
)
def test_an_output_without_reference_disarms_no_other(
    tmp_path: Path, timing: dict[str, accept.Timing], other: str, type_: str
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


def test_the_reference_agrees_with_onnxruntime(tmp_path: Path) -> None:
    model = load(_block(tmp_path / "block.onnx"))
    feeds = [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (1, 2)]
    for feed, reference in zip(feeds, reference_outputs(model, feeds), strict=True):
        for actual, wanted in zip(_run(tmp_path / "block.onnx", feed), reference, strict=True):
            assert compare(actual, wanted).relative_l2 < 1e-5


def test_integers_that_rounding_decides_are_the_model_s_own_in_the_reference(tmp_path: Path) -> None:
    """A third times three is 1 in float32 and less in float64 of the same number: only what is rounded follows the model."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (int64[4] bucket, float[4] y, int64[4] other) {
            third = Constant<value_floats = [0.33333334, 0.6666667, 0.1, 0.7]>()
            three = Constant<value_floats = [3.0, 1.5, 10.0, 10.0]>()
            ones = Div(x, x)
            product = Mul(third, three)
            exact = Mul(product, ones)
            bucket = Cast<to = 7>(exact)
            y = Mul(exact, x)
            twice = Add(exact, exact)
            other = Cast<to = 7>(twice)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    feeds = random_inputs(loaded, {}, 3)
    own = np.float32([0.33333334, 0.6666667, 0.1, 0.7]) * np.float32([3.0, 1.5, 10.0, 10.0])
    wide = np.float64(np.float32([0.33333334, 0.6666667, 0.1, 0.7])) * np.float64([3.0, 1.5, 10.0, 10.0])
    assert not np.array_equal(own.astype(np.int64), wide.astype(np.int64)), "rounding decides"
    bucket, y, other = reference_outputs(loaded, [feeds])[0]
    assert bucket.tolist() == own.astype(np.int64).tolist() == _run(tmp_path / "m.onnx", feeds)[0].tolist()
    assert other.tolist() == (own + own).astype(np.int64).tolist()
    np.testing.assert_allclose(y, wide * feeds["x"].astype(np.float64), rtol=1e-12)


def test_opaque_nodes_run_in_their_own_type_in_the_reference(tmp_path: Path) -> None:
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,6] x) => (float[2,3] y, int64[2,3] i) {
            k = Constant<value_ints = [3]>()
            top, i = TopK(x, k)
            y = Neg(top)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    feeds = random_inputs(loaded, {}, 3)
    for actual, wanted in zip(_run(tmp_path / "m.onnx", feeds), reference_outputs(loaded, [feeds])[0], strict=True):
        assert compare(actual, wanted).relative_l2 < 1e-6


# The command line


def _invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source, target, summary = _lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", tmp_path / "s.json"
    result = _invoke(source, "-o", target, "--provider", "cpu", "--json", summary, "--budget", "20", "--input", "x=2x4x32")
    assert result.exit_code == 0, result.output
    for text in ("latency", "nodes", "relative error", "rules that fired", "improved"):
        assert text in result.output
    record = json.loads(summary.read_text())
    assert record["improved"] and record["fired"][0]["sites"] >= 1 and record["error_after"]["relative_l2"] < 1e-6


def test_explain_names_reasons(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source = _lora(tmp_path / "lora.onnx")
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20, explain="y")
    assert any("the rule wants" in e.outcome for e in outcome.explanations)
    assert any("saves" in e.outcome for e in outcome.explanations)
    one = next(e.rule for e in outcome.explanations)
    by_rule = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20, explain=one)
    assert by_rule.explanations and all(e.rule[:-1] == one[:-1] for e in by_rule.explanations)
    result = _invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20", "--explain")
    assert result.exit_code == 0 and "why (not)" in result.output


def _expect(result: Any, *texts: str) -> None:
    assert result.exit_code == 2, result.output
    message = result.stderr.strip()
    assert len(message.splitlines()) == 1 and "Traceback" not in message, message
    for text in texts:
        assert text in message


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    source, target = _lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    target.write_bytes(b"previous")
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(source.read_bytes()[:2000])
    text = tmp_path / "text.onnx"
    text.write_text("this is no model")
    misnamed, mistyped = tmp_path / "misnamed.npz", tmp_path / "mistyped.npz"
    np.savez(misnamed, z=np.ones(3))
    np.savez(mistyped, x=np.ones((2, 4, 32)))
    cases = [
        ((truncated,), ("truncated.onnx",)),
        ((text,), ("text.onnx",)),
        ((tmp_path / "missing.onnx",), ("missing.onnx",)),
        ((source, "--input", "nope=2x4x32"), ("nope", "x")),
        ((source, "--input", "x=2x4"), ("x", "dimensions")),
        ((source, "--input", "x=2x5x32"), ("x", "contradicts")),
        ((source, "--input", "x2x5"), ("NAME=2x128",)),
        ((source, "--input", "x=100000000000x4x32"), ("x", "smaller")),
        ((source, "--data", tmp_path / "none.npz"), ("none.npz",)),
        ((source, "--data", text), ("text.onnx",)),
        ((source, "--data", misnamed), ("input x is missing",)),
        ((source, "--data", mistyped), ("float64", "declares")),
        ((source, "--json", tmp_path / "no" / "s.json"), ("s.json",)),
        ((source, "--rules", tmp_path / "none.rules"), ("none.rules",)),
        ((source, "--explain", "nothing-like-it"), ("nothing-like-it",)),
    ]
    for arguments, texts in cases:
        _expect(_invoke(*arguments, "-o", target, "--provider", "cpu", "--budget", "5"), *texts)
        assert target.read_bytes() == b"previous"
    assert {p.name for p in tmp_path.iterdir()} == {
        "lora.onnx",
        "out.onnx",
        "truncated.onnx",
        "text.onnx",
        "misnamed.npz",
        "mistyped.npz",
        "cache",
    }


def test_a_corrupt_rule_database_or_cache_is_named(tmp_path: Path) -> None:
    source = _lora(tmp_path / "lora.onnx")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"SQLite format 3\0" + b"garbage" * 100)
    _expect(_invoke(source, "--provider", "cpu", "--rules", broken), "broken.sqlite")
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    (cache / "profile.sqlite").write_bytes(b"no database at all" * 100)
    _expect(_invoke(source, "--provider", "cpu"), "profile.sqlite", "delete it")


def test_cuda_without_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.runtime_env._cuda_device_present", lambda: False)
    _expect(_invoke(_lora(tmp_path / "lora.onnx"), "--provider", "cuda"), "no CUDA device", "--provider cpu")


def test_an_unwritable_output_is_named(tmp_path: Path) -> None:
    _expect(_invoke(_lora(tmp_path / "lora.onnx"), "-o", tmp_path / "no" / "such" / "o.onnx", "--budget", "0"), "o.onnx")


def test_opaque_custom_nodes_survive_optimisation(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    """A contrib operator between two adapters passes through byte for byte."""
    path = _lora(tmp_path / "lora.onnx")
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node[-1].output[0] = "sum"
    model.graph.node.append(helper.make_node("QuickGelu", ["sum"], ["y"], domain="com.microsoft", name="keep", alpha=1.5))
    onnx.save(model, path)
    outcome = optimize(path, tmp_path / "o.onnx", provider="cpu", budget=20)
    written = onnx.load(tmp_path / "o.onnx")
    assert outcome.improved and written.graph.node[-1] == model.graph.node[-1]


def test_no_room_for_temporary_files_blames_no_rule(
    tmp_path: Path, timing: dict[str, accept.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not the rules' fault: one message, nothing quarantined."""
    import importlib

    run = importlib.import_module("rewriter.run.optimize")
    calls: list[int] = []
    genuine = run.open_in

    def full(model: Any, graph: Any, directory: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ModelError("candidate0.onnx cannot be written: No space left on device; make room")
        return genuine(model, graph, directory)

    monkeypatch.setattr(run, "open_in", full)
    source = _lora(tmp_path / "lora.onnx")
    _expect(_invoke(source, "-o", tmp_path / "o.onnx", "--provider", "cpu", "--budget", "20"), "No space left")
    assert not (tmp_path / "o.onnx").exists()
    monkeypatch.setattr(run, "open_in", genuine)
    again = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20)
    assert again.improved and not again.dropped


def test_another_budget_or_other_data_is_another_verdict(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    source = _lora(tmp_path / "lora.onnx")
    optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    assert not optimize(source, tmp_path / "a.onnx", provider="cpu", budget=25).cached_verdict
    data = [{"x": np.ones((1, 4, 32), np.float32)}]
    assert not optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20, data=data).cached_verdict
    assert optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20, data=data).cached_verdict


@pytest.mark.parametrize("body", ["y = Hardmax(x)", "y = Identity(x)"])
def test_models_without_anything_to_price(tmp_path: Path, timing: dict[str, accept.Timing], body: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4,4] x) => (float[4,4] y) {{ {body} }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    assert not optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=10).improved


def test_scalar_booleans_are_fed_as_arrays(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (bool b, float[4] x) => (float[4] y) { z = Neg(x) y = Where(b, x, z) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    feeds = random_inputs(model, {}, 1)
    assert compare(_run(tmp_path / "m.onnx", feeds)[0], reference_outputs(model, [feeds])[0][0]) == Error(0.0, 0.0)


def test_a_damaged_verdict_is_measured_again(tmp_path: Path, timing: dict[str, accept.Timing]) -> None:
    import sqlite3

    source = _lora(tmp_path / "lora.onnx")
    optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite") as connection:
        connection.execute("update verdicts set value = '{\"moves\": [broken'")
    again = optimize(source, tmp_path / "a.onnx", provider="cpu", budget=20)
    assert again.improved and not again.cached_verdict


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
    assert "IsNaN" not in _ops(tmp_path / "True.onnx") and "IsNaN" in _ops(tmp_path / "False.onnx")
    assert any("--no-assume-attended" in note for note in results[True].notes)
    assert not any("--no-assume-attended" in note for note in results[False].notes)


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
    assert _ops(out) == ["Relu", "MatMul", "BiasGelu"]
    x = generator.standard_normal((2, 8, 32)).astype(np.float32)
    np.testing.assert_allclose(_run(out, {"x": x})[0], _run(tmp_path / "m.onnx", {"x": x})[0], rtol=1e-4, atol=1e-4)
