"""Where rounding decides what a model gives, and that a false rewriting is told there, too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from tools.fuzz import conditioning, oracle
from tools.fuzz.conditioning import TakesTooLong, processor_seconds, rounding_errors, within_rounding
from tools.fuzz.fates import Fate
from tools.fuzz.oracle import compare_models
from tools.fuzz.running import run


def model(body: str, dtype: str = "float", inputs: str = "[2,3] x", output: str = "[2,3] y", stored: str = "") -> bytes:
    return parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        g ({dtype}{inputs}) => ({dtype}{output}) <{stored}> {{ {body} }}""").SerializeToString()


def errors(content: bytes, x: np.ndarray) -> np.ndarray:
    found = rounding_errors(content, {"x": x}, run(content, {"x": x}, optimize=False))
    assert found is not None and found[0] is not None
    return found[0]


COSINE = model("a = Div(x, x) b = Div(a, x) c = Div(b, x) y = Cos(c)")
"""The cosine of 1 / x²."""
REGROUPED = model("one = Constant<value_float = 1.0>() s = Mul(x, x) c = Div(one, s) y = Cos(c)")
FALSE = model("one = Constant<value_float = 1.001>() s = Mul(x, x) c = Div(one, s) y = Cos(c)")
TINY = np.array([[0.5, -2.0, 3.0], [1e-4, 0.7, 1.5]], np.float32)
"""One entry of which the cosine is of 10⁸, whose neighbours in float32 are 8 apart."""


def test_what_rounding_moves_and_what_it_does_not() -> None:
    found = errors(COSINE, TINY)
    assert found[1, 0] > 0.1
    found[1, 0] = 0
    assert found.max() < 1e-5


def test_rounding_may_decide_one_entry_of_a_rewriting_and_no_other() -> None:
    """A false rule that is told by other entries, or by other inputs, is told."""
    assert compare_models(COSINE, REGROUPED, {"x": TINY}).fate is Fate.ILL_CONDITIONED
    assert compare_models(COSINE, FALSE, {"x": TINY}).fate is Fate.WRONG
    for siblings in (np.abs(TINY) + 1, np.full((2, 3), 0.9, np.float32)):
        assert compare_models(COSINE, REGROUPED, {"x": siblings}).fate is Fate.REWRITTEN
        assert compare_models(COSINE, FALSE, {"x": siblings}).fate is Fate.WRONG


SUM = "s = ReduceSum(x) d = Sub(x, s) y = Softmax(d)"


@pytest.mark.parametrize(("large", "decides"), [(1e18, True), (10.0, False)])
def test_a_sum_that_loses_its_terms_is_told(large: float, decides: bool) -> None:
    """Of 1 + 1e18 - 1e18 nothing is left: a rewriting that gives 1 is not wrong."""
    x = np.array([[1, 2, 3], [-large, 2, 4]], np.float32)
    assert bool(errors(model(SUM), x).max() > 0.01) is decides


def test_digits_that_a_mean_of_float16_loses_are_told() -> None:
    content = model("y = ReduceMean<keepdims = 0>(x)", "float16", "[1,6] x", " y")
    cancelling = np.array([[900, -901, 450, -450, 7, -5.99]], np.float16)
    assert errors(content, cancelling) > 0.05
    assert errors(content, np.abs(cancelling)) < 1


def test_each_reader_sees_a_rounding_of_its_own() -> None:
    """x · (1 + erf(x)) / (1 + erf(x)) is x however the sum is rounded, but not where one of its readers computes it anew."""
    body = "e = Erf(x) a = Add(e, one) m = Mul(x, a) y = Div(m, a)"
    content = model(body, "float16", stored="float16 one = {15360}")
    found = errors(content, np.array([[1, 2, 0.5], [0.1, -2.2, -0.3]], np.float16))
    assert found[1, 1] > 0.2 and np.delete(found.ravel(), 4).max() < 0.01


def test_what_few_runs_differ_in_is_told_behind_many_nodes() -> None:
    """What is rounded behind the node that tips over may not take the runs away in which it does."""
    tips, moves = "s = Sqrt(x) q = Mul(s, s) v0 = Floor(q)", range(40)
    behind = " ".join(f"v{i + 1} = Transpose<perm = [0,1]>(v{i})" for i in moves)
    x = np.arange(1, 401, dtype=np.float32).reshape(20, 20)
    found = [
        errors(model(f"{body} y = Identity({end})", inputs="[20,20] x", output="[20,20] y"), x) > 0
        for body, end in ((tips, "v0"), (f"{tips} {behind}", f"v{len(moves)}"))
    ]
    assert found[0].mean() > 0.95 and np.array_equal(*found)


def test_what_is_moved_chosen_or_exact_is_not_rounded() -> None:
    for body in ("y = Transpose<perm = [0,1]>(x)", "y = Floor(x)", "y = Max(x, x)", "y = Identity(x)"):
        assert not errors(model(body), np.array([[1, 2, 3], [0.3, -7.5, 0]], np.float32)).any(), body
    flips = model("s = Sqrt(x) q = Mul(s, s) y = Floor(q)")  # of 2 and 3, by luck one way; of 2.5 surely
    found = errors(flips, np.array([[2, 3, 5], [2.5, 0, 7]], np.float32))
    assert found[1, 0] == 0 == found[1, 1] and found.max() == 1


def test_only_what_is_explained_is_taken_for_the_original() -> None:
    original, actual = np.array([1.0, 2, 3, np.inf]), np.array([1.1, 2.1, np.nan, np.inf])
    taken = within_rounding(actual, original, np.array([0.1, 0.001, 0, 0]))
    assert np.array_equal(taken, [1.0, 2.1, np.nan, np.inf], equal_nan=True)
    assert within_rounding(actual[:2], original, np.full(4, np.inf)).shape == (2,)
    flags = np.array([True, False])
    assert within_rounding(~flags, flags, np.array([1.0, 0.0])).tolist() == [True, True]
    counts = np.array([1 << 60], np.int64)
    assert within_rounding(counts + 1, counts, np.zeros(1)) != counts


def test_a_model_with_values_that_are_no_tensors_is_not_rounded() -> None:
    body = "s = SequenceConstruct(x, x) n = SequenceLength(s) f = CastLike(n, x) y = Add(x, f)"
    content, x = model(body), np.ones((2, 3), np.float32)
    assert rounding_errors(content, {"x": x}, run(content, {"x": x})) is None


def test_what_takes_too_long_to_measure_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no hang of the optimiser, and nothing to be silent about; what is right by itself needs no measuring."""
    with pytest.raises(TakesTooLong):
        rounding_errors(COSINE, {"x": TINY}, run(COSINE, {"x": TINY}), processor_seconds() - 1)
    monkeypatch.setattr(oracle, "_MEASURING", -1.0)
    for written in (REGROUPED, FALSE):
        fate = compare_models(COSINE, written, {"x": TINY}).fate
        assert fate is Fate.UNMEASURED and fate.is_finding and not fate.is_failure
    assert compare_models(COSINE, REGROUPED, {"x": np.abs(TINY) + 1}).fate is Fate.REWRITTEN


def test_a_node_is_measured_without_functions_that_it_does_not_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a function holds sizes of unknown length, types are inferred in a process of its own: once a node was too often."""
    content = parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2,3] x) => (float[2,3] y) { a = Div(x, x) b = own.plus(a, x) c = Abs(b) y = Sqrt(c) }
        <domain: "own", opset_import: ["" : 20]>
        plus (p, q) => (r) { r = Add(p, q) }""").SerializeToString()
    loaded = []
    monkeypatch.setattr(conditioning, "load", lambda proto: loaded.append(proto) or load(proto))
    assert errors(content, TINY).max() < 1e-5
    called = {proto.graph.node[0].op_type: [function.name for function in proto.functions] for proto in loaded}
    assert called == {"Div": [], "plus": ["plus"], "Abs": [], "Sqrt": []}
