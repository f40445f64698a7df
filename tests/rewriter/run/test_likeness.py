"""One architecture, trained twice: what was found for one model is done again in a model that differs in its weights alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import ModelError, load
from rewriter import optimize
from rewriter.reference import Error
from rewriter.run.accept import Acceptance, JudgedOutputs, Miss
from rewriter.run.likeness import likeness
from rewriter.run.searching import ModelSearch
from tests.support.graphs import rule
from tests.support.runs import SAME, ops, run_model

pytestmark = pytest.mark.usefixtures("own_cache")

# The quotient goes where no divisor is zero, the negations wherever they are.
RULES = [rule("Div(Mul(X, C), C)", "X", "X:[m,n] C:[n]", "nonzero(C)"), rule("Neg(Neg(X))", "X", "X:[m,n]")]
run = partial(optimize, provider="cpu", rules=RULES, budget=20)


def model(seed: int, **others: np.ndarray) -> ModelProto:
    """A product, scaled and back, and two negations.

    Args:
        seed: of the weights.
        others: arrays in place of those that are drawn.
    """
    generator = np.random.default_rng(seed)
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[16,64] x) => (float[16,48] y) {
            product = MatMul(x, W)
            shown = Where(mask, product, low)
            scaled = Mul(shown, C)
            back = Div(scaled, C)
            a = Neg(back)
            b = Neg(a)
            y = Tanh(b)
        }""")
    arrays = {
        "W": generator.standard_normal((64, 48)),
        "C": 1 + generator.random(48),
        "mask": np.tri(16, 48, dtype=bool),
        "low": np.asarray(-1.0),
    }
    for name, array in {**arrays, **others}.items():
        dtype = array.dtype if array.dtype == bool else np.float32
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    return proto


def saved(path: Path, proto: ModelProto, **options: Any) -> Path:
    onnx.save(proto, path, **options)
    return path


def right(source: Path, written: Path) -> bool:
    """Whether a written model computes what its original does."""
    feeds = {"x": np.random.default_rng(9).standard_normal((16, 64)).astype(np.float32)}
    return np.allclose(run_model(written, feeds)[0], run_model(source, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.fixture
def first(tmp_path: Path, timing: dict[str, Any]) -> Path:
    """What was written of a first model, which gained."""
    outcome = run(saved(tmp_path / "first.onnx", model(1)), tmp_path / "first.out.onnx")
    assert outcome.improved and not outcome.cached_verdict
    return tmp_path / "first.out.onnx"


def unsearched(*_: Any, **__: Any) -> Any:
    raise AssertionError("a search was made")


def test_other_weights_get_what_was_found_without_a_search(
    first: Path, tmp_path: Path, timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = saved(tmp_path / "second.onnx", model(2)), tmp_path / "second.out.onnx"
    with monkeypatch.context() as context:
        for name in ("glance", "run"):
            context.setattr(ModelSearch, name, unsearched)
        for name in timing:
            context.setitem(timing, name, SAME)  # a measurement would decide otherwise
        outcome = run(source, out)
    assert outcome.improved and outcome.cached_verdict and "Neg" not in ops(out) and "Div" not in ops(out)
    assert outcome.error_after is not None and outcome.error_after.is_small and right(source, out)
    assert any("differs in its weights alone" in note for note in outcome.notes)
    searched = run(source, tmp_path / "searched.onnx", use_verdicts=False)
    assert searched.improved and not searched.cached_verdict
    assert out.read_bytes() == (tmp_path / "searched.onnx").read_bytes() != first.read_bytes()


def test_a_guard_that_looks_at_weights_is_asked_again(first: Path, tmp_path: Path) -> None:
    """The first model's divisors are not zero, one of the second's is: the moves lead to another graph there."""
    divisors = np.concatenate([[0.0], 1 + np.random.default_rng(2).random(47)])
    source, out = saved(tmp_path / "second.onnx", model(2, C=divisors)), tmp_path / "second.out.onnx"
    assert likeness(load(source)) == likeness(load(tmp_path / "first.onnx"))
    outcome = run(source, out)
    assert outcome.improved and not outcome.cached_verdict
    assert "Neg" not in ops(out) and "Div" in ops(out)


def test_what_is_not_right_with_other_weights_is_searched_for(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, plain = saved(tmp_path / "second.onnx", model(2)), Acceptance.judge_outputs
    answers = iter([JudgedOutputs([Error(0.5, 0.5)], Miss(2.0, "relative error 0.5 of y"))])
    monkeypatch.setattr(Acceptance, "judge_outputs", lambda self, session: next(answers, None) or plain(self, session))
    outcome = run(source, tmp_path / "second.out.onnx")
    assert outcome.improved and not outcome.cached_verdict and next(answers, None) is None


def test_that_nothing_was_better_is_no_verdict_on_other_weights(tmp_path: Path, timing: dict[str, Any]) -> None:
    source = saved(tmp_path / "first.onnx", model(1))
    assert not run(source, tmp_path / "out.onnx", rules=[]).improved
    assert run(source, tmp_path / "out.onnx", rules=[]).cached_verdict
    other = run(saved(tmp_path / "second.onnx", model(2)), tmp_path / "out.onnx", rules=[])
    assert not other.improved and not other.cached_verdict


def test_the_best_result_of_other_weights_is_tried_with_another_budget(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "second.out.onnx"
    for name in ("glance", "run"):
        method = getattr(ModelSearch, name)
        monkeypatch.setattr(ModelSearch, name, lambda *a, _found=method, **k: replace(_found(*a, **k), better=()))
    outcome = run(saved(tmp_path / "second.onnx", model(2)), out, budget=25)
    assert outcome.improved and not outcome.cached_verdict and "Neg" not in ops(out)


def test_what_a_model_has_itself_comes_before_what_others_have(first: Path, tmp_path: Path) -> None:
    """The second model's weights allow less, with a budget that the first did not have yet."""
    divisors = np.concatenate([[0.0], 1 + np.random.default_rng(2).random(47)])
    second = tmp_path / "second.out.onnx"
    assert run(saved(tmp_path / "second.onnx", model(2, C=divisors)), second, budget=25).improved and "Div" in ops(second)
    outcome = run(tmp_path / "first.onnx", first, budget=25)
    assert outcome.improved and not outcome.cached_verdict and not {"Neg", "Div"} & set(ops(first))


@pytest.mark.parametrize(
    "body",
    [
        "p = MatMul(x, W) n = NonZero(p) y = Cast<to = 1>(n)",
        "p = MatMul(x, W) m = ReduceMax<keepdims = 0>(p) t = Cast<to = 9>(m)"
        " y = If(t) <then_branch = a () => (float[16,48] s) { s = Neg(p) },"
        " else_branch = b () => (float[16,48] s) { s = Exp(p) }>",
    ],
)
def test_models_whose_numbers_decide_what_is_computed_are_not_alike(tmp_path: Path, body: str) -> None:
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[16,64] x) => (float[a,b] y) {{ {body} }}')
    weights = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "W"))
    assert likeness(load(saved(tmp_path / "m.onnx", proto))) is None


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    proto = model(1)
    change(proto)
    return proto


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (model(1), True),
        (model(2), True),
        (model(1, C=np.ones(48)), False),  # ones are told from other numbers
        (model(1, low=np.asarray(-2.0)), False),  # a scalar is no weight
        (model(1, mask=np.tri(16, 48, 1, dtype=bool)), False),
        (model(1, low=np.where(np.tri(16, 48), 0.0, -1e4)), False),  # a mask in floats
        (changed(lambda proto: setattr(proto.graph.node[-1], "op_type", "Sigmoid")), False),
        (changed(lambda proto: setattr(proto.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 8)), False),
    ],
)
@pytest.mark.parametrize("is_external", [False, True])
def test_models_are_alike_that_differ_in_weights_alone(tmp_path: Path, other: ModelProto, alike: bool, is_external: bool) -> None:
    options = {"save_as_external_data": True, "size_threshold": 0} if is_external else {}
    paths = [tmp_path / "one" / "m.onnx", tmp_path / "other" / "m.onnx"]
    for path, proto in zip(paths, (model(1), other), strict=True):
        path.parent.mkdir()
        saved(path, proto, **options)
    one, second = (likeness(load(path)) for path in paths)
    assert (one == second) is alike


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_all_float_types_are_weights(tmp_path: Path, dtype: type) -> None:
    paths = []
    for seed in (1, 2):
        proto = parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4,64] x) => (float[4,48] y) { y = MatMul(x, W) }')
        weights = np.random.default_rng(seed).standard_normal((64, 48)).astype(dtype)
        proto.graph.initializer.append(numpy_helper.from_array(weights, "W"))
        for tensor in (proto.graph.input[0], proto.graph.output[0]):
            tensor.type.tensor_type.elem_type = proto.graph.initializer[0].data_type
        paths.append(saved(tmp_path / f"{seed}.onnx", proto))
    assert len({likeness(load(path)) for path in paths}) == 1


def test_a_tensor_that_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    proto = model(1)
    proto.graph.initializer.add(name="unread", data_type=onnx.TensorProto.FLOAT, dims=[64], float_data=[1.0] * 65)
    unread = load(saved(tmp_path / "m.onnx", proto))
    with pytest.raises(ModelError, match="does not hold what its type says"):
        unread.weights.array(unread.proto.graph.initializer[-1])
    assert likeness(unread) != likeness(load(saved(tmp_path / "plain.onnx", model(1))))
