"""Layers solved once, strategies and what is tried, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from rewriter import optimize
from rewriter.reference import InputError
from rewriter.run import searching, timings
from rewriter.run.checking import Checker
from rewriter.run.outcome import Outcome
from rewriter.search.candidate import Candidate
from rewriter.search.layers import Lifted, ShortModel
from rewriter.search.moves import Moves
from tests.support.graphs import ASSOCIATIVE, FACTOR, MERGE, NEGATION, direction_of, rule
from tests.support.runs import ops, small

pytestmark = pytest.mark.usefixtures("own_cache")

WRONG = rule("Add(X, Mul(Y, s))", "Add(X, Y)", "X:[m,n] Y:[m,n] s:[]", "fits(Y, X)")
SQUARE = rule("Pow(X, 2.0)", "Mul(X, X)", "X:[m,n]")


def _layers(path: Path, count: int) -> Path:
    """Adapters in a row: X·W + (X·A)·B and Relu, ``count`` times."""
    lines, arrays, value = [], {}, "x"
    generator = np.random.default_rng(0)
    for layer in range(count):
        for name, shape in (("W", (32, 32)), ("A", (32, 4)), ("B", (4, 32))):
            arrays[f"{name}{layer}"] = (generator.standard_normal(shape) / 8).astype(np.float32)
        lines += [
            f"base{layer} = MatMul({value}, W{layer}) low{layer} = MatMul({value}, A{layer})",
            f"high{layer} = MatMul(low{layer}, B{layer}) sum{layer} = Add(base{layer}, high{layer})",
            f"value{layer} = Relu(sum{layer})",
        ]
        value = f"value{layer}"
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,32] x) => (float[N,32] y) {{ {" ".join(lines)} y = Tanh({value}) }}'
    )
    model = parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, path)
    return path


def _folded(source: Path, target: Path, **options: Any) -> Outcome:
    rules = [ASSOCIATIVE, FACTOR]
    return optimize(source, target, device="h200", kernels=False, deterministic=True, rules=rules, alpha=2.0, **options)


def test_a_move_that_gains_nothing_on_the_whole_model_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short model weighs otherwise: what paid there may not on the whole one."""
    idle, genuine = rule("Tanh(X)", "Neg(Tanh(Neg(X)))", "X:[m,n]"), searching.lift

    def with_more(moves: Moves, short: ShortModel, candidate: Candidate) -> Lifted:
        lifted = genuine(moves, short, candidate)
        matches = moves.sites(moves.start(lifted.candidate.graph), direction_of(moves, idle))
        more = moves.take(lifted.candidate, matches)
        assert more is not None and more.moves[-1].gain <= 0
        return Lifted(more, lifted.missing)

    monkeypatch.setattr(searching, "lift", with_more)
    source, rules = _layers(tmp_path / "m.onnx", 8), [ASSOCIATIVE, FACTOR, idle]
    outcome = optimize(source, tmp_path / "o.onnx", device="cpu", deterministic=True, rules=rules, alpha=2.0)
    assert outcome.improved and idle.id + ">" not in [fired.rule for fired in outcome.fired]
    assert "Neg" not in ops(tmp_path / "o.onnx")


def test_layers_are_searched_once_and_rewritten_everywhere(tmp_path: Path) -> None:
    source = _layers(tmp_path / "m.onnx", 8)
    once = _folded(source, tmp_path / "once.onnx")
    each = _folded(source, tmp_path / "each.onnx", reuse_layers=False)
    assert ops(tmp_path / "once.onnx").count("MatMul") == 8
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "each.onnx").read_bytes()
    assert once.predicted_before == each.predicted_before and once.predicted_after == each.predicted_after
    assert {fired.sites for fired in once.fired} == {8}


def test_deterministic_runs_write_equal_bytes_and_equal_summaries(tmp_path: Path) -> None:
    source = _layers(tmp_path / "m.onnx", 6)
    records = []
    for _ in range(2):
        outcome = _folded(source, tmp_path / "o.onnx", use_verdicts=False)
        record = json.loads(outcome.to_json())
        del record["seconds"]
        records.append((record, (tmp_path / "o.onnx").read_bytes()))
    assert records[0] == records[1] and records[0][0]["improved"]


def test_a_verdict_on_a_model_with_layers_is_replayed(tmp_path: Path, timing: Any) -> None:
    source = _layers(tmp_path / "m.onnx", 6)
    rules = [ASSOCIATIVE, FACTOR]
    first, second = (optimize(source, tmp_path / f"{name}.onnx", provider="cpu", rules=rules, alpha=3.0) for name in "ab")
    assert first.improved and second.cached_verdict
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_strategies_are_named(tmp_path: Path) -> None:
    source = _layers(tmp_path / "m.onnx", 4)
    assert _folded(source, tmp_path / "o.onnx", strategy="substitutions").improved
    assert not _folded(source, tmp_path / "o.onnx", strategy="layouts").improved
    with pytest.raises(InputError, match="unknown strategy 'luck': use backtracking, greedy"):
        _folded(source, tmp_path / "o.onnx", strategy="luck")


def test_at_most_three_rules_are_left_out_in_turn(tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best, the best without each of the three rules that save least, and only then the next best."""
    pairs = [("Neg", "Neg"), ("Exp", "Log"), ("Log", "Exp"), ("Sigmoid", "Tanh"), ("Relu", "Relu")]
    body = ["v0 = Identity(x)"]
    for index, (outer, inner) in enumerate(pairs):
        body += [f"w{index} = {inner}(v{index})", f"v{index + 1} = {outer}(w{index})"]
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {" ".join(body)} y = Abs(v5) }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    rules = [rule(f"{outer}({inner}(X))", "X", "X:[m,n]") for outer, inner in pairs]
    tried: list[int] = []
    monkeypatch.setattr(Checker, "check", lambda self, proposal: tried.append(len(proposal.candidate.moves)))
    optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", rules=rules, budget=20, top=20, device="h200", kernels=False)
    assert tried[0] == 5 and tried[1:4] == [4, 4, 4]
    assert tried[4:] and max(tried[4:]) < 5 and len(tried) > 4


def test_a_substitution_that_would_make_a_cycle_is_left_out(tmp_path: Path) -> None:
    """TASO's figure 6: merging the products of A×relu(A×B) makes a graph in which each needs the other; the model survives."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[64,64] a, float[64,64] b) => (float[64,64] y) { first = MatMul(a, b) r = Relu(first) y = MatMul(a, r) }"""
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    for rules in ([MERGE], None):
        outcome = optimize(
            tmp_path / "m.onnx", tmp_path / "o.onnx", device="h200", kernels=False, deterministic=True, rules=rules
        )
        assert not outcome.dropped and ops(tmp_path / "o.onnx") == ["MatMul", "Relu", "MatMul"]
    asked = optimize(
        tmp_path / "m.onnx",
        tmp_path / "o.onnx",
        device="h200",
        kernels=False,
        deterministic=True,
        rules=[MERGE],
        budget=20,
        explain=MERGE.id,
    )
    assert any("would depend on itself" in line.outcome for line in asked.explanations)


def test_measurements_keep_to_the_budget(
    tmp_path: Path, timing: dict[str, timings.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small saving is measured again only in the time that is left, and never for longer than that."""
    clock = [0.0]
    monkeypatch.setattr("rewriter.run.clock.time", SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: clock[0]))
    asked: list[float] = []

    def measured(
        original: Path, candidate: Path, feeds: Any, provider: str, seconds: float, *, briefly: bool = False, least: int = 6
    ) -> timings.Timing:
        asked.append(seconds)
        clock[0] += seconds
        return timings.Timing(1.0, 0.99, 0.1, 0.1, 0.99, 0.9, 1.1)

    monkeypatch.setattr(timings, "confirm", measured)
    monkeypatch.setattr(timings, "deciding_seconds", lambda *_: 0.25)  # a part of which sessions take beside it
    outcome = optimize(small(tmp_path / "m.onnx"), tmp_path / "o.onnx", provider="cpu", rules=[NEGATION, SQUARE], budget=42)
    assert not outcome.improved and asked == pytest.approx([14.0, 27.6], abs=0.01), "and the result is written within the budget"
