"""Internal errors: named as such, with stage and place; the original is kept, and nobody else is blamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import ModelError
from rewriter import Outcome, optimize
from rewriter.cli.main import main
from rewriter.run import accept, cleaning
from rewriter.run.faults import FAULT_EXIT
from rewriter.runtime_env import RuntimeFailure, Session, calling_runtime, new_session
from tests.support.graphs import NEGATION
from tests.support.runs import run_model, small

PLACES = {
    "rewriter.run.remembering.Verdicts.recall": "reading",
    "rewriter.run.task.written_out": "cleaning up",
    "rewriter.run.proposing.Proposer.propose": "searching",
    "rewriter.run.checking.Checker.check": "checking candidates",
    "rewriter.run.accept.compare": "checking candidates",
    "rewriter.reference.evaluation._ModelEvaluation.outputs": "checking candidates",
}
"""What breaks, and what the run is doing then."""


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.delenv("ONNX_SUPEROPT_DEBUG")


def break_(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        problem = ValueError("zip() argument 2 is longer\nthan argument 1")
        problem.add_note("at Split that computes 'a'")
        raise problem

    monkeypatch.setattr(name, broken)


def run(tmp_path: Path, **options: Any) -> Outcome:
    source = small(tmp_path / "m.onnx")
    chosen = {"rules": [NEGATION], "device": "cpu", "deterministic": True, **options}
    return optimize(source, tmp_path / "out.onnx", **chosen)


@pytest.mark.parametrize("name", PLACES)
def test_the_original_is_kept_and_the_fault_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as patch:
        break_(patch, name)
        outcome = run(tmp_path)
    fault = outcome.fault
    assert fault is not None and fault.stage.startswith(PLACES[name]) and not outcome.improved
    assert fault.problem == "ValueError: zip() argument 2 is longer than argument 1"
    assert fault.where[0] == "at Split that computes 'a'" and "in broken" in fault.trace
    assert outcome.message.startswith("internal error while ") and "onnxruntime" not in outcome.message
    x = {"x": np.ones((64, 64), np.float32)}
    assert np.array_equal(*(run_model(tmp_path / file, x)[0] for file in ("m.onnx", "out.onnx")))
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "m.onnx")
    again = run(tmp_path, debug=True)
    assert again.improved and not again.cached_verdict, "what ended in a fault is no verdict"


@pytest.mark.parametrize(
    "problem", [RuntimeFailure("Deserialize tensor failed"), OSError(2, "No such file or directory", "m.data")]
)
@pytest.mark.parametrize("changed", ["m.onnx", "m.data"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_what_goes_wrong_since_a_file_is_another_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, changed: str, is_gone: bool
) -> None:
    source = small(tmp_path / "m.onnx")
    proto = onnx.load(source)
    proto.graph.node[-1].output[0] = "unscaled"
    proto.graph.node.append(onnx.helper.make_node("Mul", ["unscaled", "w"], ["y"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(1, 2, 4096, dtype=np.float32).reshape(64, 64), "w"))
    onnx.save(proto, source, save_as_external_data=True, location="m.data", size_threshold=0)

    def exchanged(*_: Any, **__: Any) -> Any:
        if is_gone:
            (tmp_path / changed).unlink()
        else:
            (tmp_path / changed).write_bytes((tmp_path / changed).read_bytes()[:-1])
        raise problem

    monkeypatch.setattr("rewriter.run.checking.Checker.check", exchanged)
    words = f"a file of it is missing: .*{changed}" if is_gone else f"{changed} has changed since the model was read; read the"
    with pytest.raises(ModelError, match=words):
        optimize(source, tmp_path / "out.onnx", rules=[NEGATION], device="cpu", deterministic=True)
    assert not (tmp_path / "out.onnx").exists()


def test_who_asks_for_it_gets_the_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_(monkeypatch, "rewriter.run.accept.compare")
    with pytest.raises(ValueError, match="longer"):
        run(tmp_path, debug=True)
    monkeypatch.setenv("ONNX_SUPEROPT_DEBUG", "1")
    with pytest.raises(ValueError, match="longer"):
        run(tmp_path)


def test_a_command_says_so_in_one_line_and_ends_with_a_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m.onnx")
    break_(monkeypatch, "rewriter.run.proposing.Proposer.propose")
    command = [str(source), "-o", str(tmp_path / "out.onnx"), "--deterministic", "--json", str(tmp_path / "s.json")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == FAULT_EXIT == 3 and (tmp_path / "out.onnx").exists()
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("onnx-superopt: ")]
    assert "internal error while searching (at Split that computes 'a')" in line and line.endswith("the original was written")
    assert "Traceback" not in result.output
    assert "Traceback" in json.loads((tmp_path / "s.json").read_text())["fault"]["trace"]
    break_(monkeypatch, "rewriter.run.optimize.read_task")
    result = CliRunner().invoke(main, command)
    assert result.exit_code == FAULT_EXIT and "nothing was written" in result.stderr and "Traceback" not in result.output
    raised = CliRunner().invoke(main, [*command, "--debug"])
    assert isinstance(raised.exception, ValueError)


def test_what_onnxruntime_raises_is_one_type_and_nothing_else_is() -> None:
    with pytest.raises(RuntimeFailure, match="protobuf"):
        new_session(b"nonsense")
    with pytest.raises(RuntimeFailure, match="RuntimeError"), calling_runtime():
        raise RuntimeError
    with pytest.raises(RuntimeFailure, match="NoneType"):
        Session(None).run(None, {})


def test_a_candidate_that_the_runtime_refuses_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: accept.Acceptance, session: Any) -> Any:
        raise RuntimeFailure("no kernel")

    monkeypatch.setattr(accept.Acceptance, "judge_outputs", refused)
    outcome = run(tmp_path)
    assert outcome.fault is None and any("does not run (no kernel)" in line for line in outcome.dropped)


def test_an_original_that_the_runtime_refuses_is_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeFailure("NOT_IMPLEMENTED")

    for module in (accept, cleaning):
        monkeypatch.setattr(module, "new_session", refused)
    outcome = run(tmp_path)
    assert outcome.fault is None
    assert outcome.message == "onnxruntime cannot run the original on test inputs (NOT_IMPLEMENTED): it was written unchanged"


@pytest.mark.parametrize("budget", [{"budget": 20}, {"clean": True}, {"deterministic": True}], ids=str)
def test_an_original_that_does_not_load_is_said_to_whatever_was_asked_for(tmp_path: Path, budget: dict[str, Any]) -> None:
    """It was searched to the end, and 'no candidate is cheaper': that a clean model does not load stood in a note."""
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[4,4] x) => (float[4,4] y) { a = Identity(x) b = MatMul(a, w) y = Tanh(b) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4), "w"))  # of doubles
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", **budget)
    assert outcome.message.startswith("onnxruntime cannot open the original (") and "m.onnx" in outcome.message
    assert outcome.message.endswith("it was written unchanged") and outcome.fault is None and not outcome.improved
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_an_original_that_runs_on_the_users_inputs_alone_is_compared_on_those(tmp_path: Path) -> None:
    """Random numbers are no sizes of six entries."""
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[6] x, int64[2] s) => (float[p,q] y) { a = Neg(x) b = Neg(a) y = Reshape(b, s) }""")
    options = {"rules": [NEGATION], "provider": "cpu", "deterministic": True}
    outcome = optimize(model, tmp_path / "a.onnx", **options)
    assert not outcome.improved and outcome.message.startswith("onnxruntime cannot run the original on test inputs")
    assert outcome.message.endswith("give sizes or inputs that it runs on with --input or --data")
    data = [{"x": np.arange(6, dtype=np.float32), "s": np.asarray([2, 3])}]
    outcome = optimize(model, tmp_path / "b.onnx", **options, data=data)
    assert outcome.improved and any("nothing was compared but on those of --data" in note for note in outcome.notes)
    data = [{"x": np.arange(6, dtype=np.float32), "s": np.asarray([4, 3])}]
    outcome = optimize(model, tmp_path / "c.onnx", **options, data=data)
    assert not outcome.improved and outcome.message.startswith("onnxruntime cannot run the original on test inputs")


def test_a_model_is_measured_with_the_sizes_of_the_users_inputs(tmp_path: Path) -> None:
    """At the sizes that nobody gave there is one row, and no index that is 1 more than an input."""
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[n] x, int64[e] to, float[e] m) => (float[n] y) <int64[1] one = {1}> {
            a = Neg(x) b = Neg(a) i = Add(to, one) y = ScatterElements<reduction = "add">(b, i, m) }""")
    options = {"rules": [NEGATION], "provider": "cpu", "deterministic": True}
    outcome = optimize(model, tmp_path / "a.onnx", **options)
    assert outcome.message.startswith("onnxruntime cannot run the original on test inputs")
    draw = np.random.default_rng(1)
    data = [{"x": np.ones(6, np.float32), "to": draw.integers(0, 5, 9), "m": draw.normal(size=9).astype(np.float32)}]
    outcome = optimize(model, tmp_path / "b.onnx", **options, data=data)
    assert outcome.improved and not any("nothing was compared but" in note or "measured with" in note for note in outcome.notes)


def test_an_original_that_the_runtime_breaks_without_what_nobody_reads_is_told_apart(tmp_path: Path) -> None:
    """QDQPropagation (docs/upstream.md) does its harm once the second reader of ``t`` is gone."""
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2,3] x) => (float[3,2] y, float[2,3] c) <float s = {0.1}, int8 z = {3}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            t = Transpose<perm = [1,0]>(d)
            y = Exp(t)
            unread = QuantizeLinear(t, s, z)
            a = Neg(x) b = Neg(a) c = Exp(b)
        }""")
    outcome = optimize(model, tmp_path / "o.onnx", rules=[NEGATION], provider="cpu", deterministic=True)
    assert outcome.message == "the model is not the same to onnxruntime without what no output needs: the original was kept"
    assert (tmp_path / "o.onnx").read_bytes() == model.SerializeToString()
    new_session(tmp_path / "o.onnx")
