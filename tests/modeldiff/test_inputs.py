"""The inputs on which models are compared: what shows at another scale, at another size, in another branch, or where a default is
overridden, is a difference; and what rounding alone decides there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from modeldiff.compare import Equality, ModelComparison
from modeldiff.telling import as_json, sentence
from modeldiff.telling import tested_on as inputs_in_words
from rewriter.reference import InputError
from rewriter.run.cleaning import at_sizes_that_run
from rewriter.run.options import Options
from rewriter.run.target import choose_target
from rewriter.run.task import read_task
from tests.support.compared import compared, text_of
from tools.fuzz.diffs import drawn, small_model

FREE = "(float[N,M,4] x) => (float[N,M,4] y)"
ROW = drawn(4)


def differing_inputs(comparison: ModelComparison) -> list[str]:
    """The inputs on which differences were found."""
    found = [difference for region in comparison.regions for difference in region.differences]
    return ["" if difference.feed is None else comparison.inputs.probes[difference.feed].words for difference in found]


def cut(place: int, **tensors: Any) -> ModelProto:
    """Adds a row to places before some number alone."""
    text = """l = Slice(x, zero, cut, one) r = Slice(x, cut, end, one) p = Add(l, b) y = Concat<axis = 1>(p, r)"""
    return small_model(f"{FREE} {{ {text} }}", b=ROW, zero=[0], cut=[place], end=[2**40], one=[1], **tensors)


@pytest.mark.parametrize("place", [300, 4000])
def test_what_differs_beyond_a_place_alone_is_a_difference(place: int, tmp_path: Path) -> None:
    comparison = compared(tmp_path, small_model(f"{FREE} {{ y = Add(x, b) }}", b=ROW), cut(place))
    assert comparison.verdict is Equality.DIFFERENT
    assert differing_inputs(comparison) == [f"M = {place + 1}"], text_of(comparison)
    assert f"[0, {place}, " in text_of(comparison)


def one_batch(length: str) -> ModelProto:
    """A reshape that fits where N is 1, and an expansion to ``m``, or to ``Mul(n, m)``, which are equal there.

    onnxruntime writes -1 for one size that it does not know, so that its reshape would fit otherwise, too: here are two.
    """
    sizes = f"s = Shape(x) n = Slice(s, zero, one) m = Slice(s, one, two) k = Slice(s, two, end) l = {length}"
    text = f"{sizes} t = Concat<axis = 0>(m, one, k) y = Reshape(x, t) u = Concat<axis = 0>(l, four) w = Relu(v) z = Expand(w, u)"
    ends = "(float[N,M,K] x, float[1,4] v) => (float[M,1,K] y, float[A,4] z)"
    return small_model(f"{ends} {{ {text} }}", zero=[0], one=[1], two=[2], end=[3], four=[4])


def test_sizes_that_are_equal_where_a_model_runs_are_tested(tmp_path: Path) -> None:
    """The model before takes a batch of one alone, which no type says; so two sizes that are equal there count as equal."""
    comparison = compared(tmp_path, one_batch("Identity(m)"), one_batch("Mul(n, m)"))
    assert comparison.verdict is Equality.TESTED, text_of(comparison)
    told = "the model before runs with N = 1, and with none of 2, 3, 4, 5, 7, 8, 16: nothing is said of other sizes"
    assert told in comparison.notes and comparison.inputs.only_at == {"N": 1}


def in_pairs(length: str) -> ModelProto:
    """What takes even sizes alone, and an expansion to some size."""
    copies = f"u = Concat<axis = 0>({length}, four) w = Relu(v) z = Expand(w, u)"
    text = f"s = Shape(x) n = Slice(s, zero, one) y = Reshape(x, pairs) {copies}"
    ends = "(float[N,4] x, float[1,4] v) => (float[P,8] y, float[A,4] z)"
    return small_model(f"{ends} {{ {text} }}", zero=[0], one=[1], pairs=[-1, 8], four=[4], usual=[USUAL])


USUAL = 128


def test_sizes_are_tried_where_no_probe_varies_one(tmp_path: Path) -> None:
    """Neither one row nor three run, but two do: there it shows that a size was taken for the usual one."""
    comparison = compared(tmp_path, in_pairs("n"), in_pairs("usual"), shapes={"x": (USUAL, 4)})
    assert comparison.verdict is Equality.DIFFERENT and differing_inputs(comparison) == ["N = 2"], text_of(comparison)
    assert not comparison.inputs.only_at and comparison.inputs.probes[-1].words == "N = 2"


@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_at_which_a_scan_may_go_over_nothing_are_not_tried(axis: int, tmp_path: Path) -> None:
    """Along another axis than the first that ends the process (docs/upstream.md): only what comes before the 16th is left out."""

    def scanned(name: str) -> ModelProto:
        body = (
            "body = b (float[B,4] p, float[B,4] c) => (float[B,4] n, float[B,4] o) { q = Add(p, r) n = Add(q, c) o = "
            + name
            + "(n) }"
        )
        axes = f"num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}]"
        dims = "B,T,4" if axis else "T,B,4"
        text = f"r = Relu(i) s = Slice(x, first, last, place) l, y = Scan<{axes}, {body}>(i, s) z = Identity(l)"
        ends = f"(float[B,4] i, float[{dims}] x) => (float[B,4] z, float[P,Q,4] y)"
        return small_model(f"{ends} {{ {text} }}", first=[16], last=[2**40], place=[axis])

    shapes = {"i": (3, 4), "x": (3, 20, 4) if axis else (20, 3, 4)}
    comparison = compared(tmp_path, scanned("Neg"), scanned("Abs"), shapes=shapes)
    assert comparison.verdict is Equality.DIFFERENT, text_of(comparison)
    short = [probe for probe in comparison.inputs.probes if probe.feed["x"].shape[axis] <= 16]
    assert not short


def test_a_mask_that_is_wrong_beyond_a_place_is_a_difference(tmp_path: Path) -> None:
    text = "s = Shape<start = 1, end = 2>(x) p = Slice(mask, zero, s, zero) u = Unsqueeze(p, one) y = Add(x, u)"
    models = []
    for hidden in (0.0, -7.0):
        mask = np.zeros(700, np.float32)
        mask[650:] = hidden
        models.append(small_model(f"{FREE} {{ {text} }}", mask=mask, zero=[0], one=[-1]))
    comparison = compared(tmp_path, *models)
    assert comparison.verdict is Equality.DIFFERENT, text_of(comparison)
    assert "the model before does not run M = 701: nothing was compared there" in comparison.notes


def test_what_differs_on_large_numbers_alone_is_a_difference(tmp_path: Path) -> None:
    before = small_model(f"{FREE} {{ y = Add(x, b) }}", b=ROW)
    text = "s = Mul(x, two) h = Mul(s, half) c = Clip(h, low, high) y = Add(c, b)"
    bounds = {"low": np.float32(-50), "high": np.float32(50), "two": np.float32(2), "half": np.float32(0.5)}
    comparison = compared(tmp_path, before, small_model(f"{FREE} {{ {text} }}", b=ROW, **bounds))
    assert comparison.verdict is Equality.DIFFERENT and differing_inputs(comparison) == ["at scale 100 and M = 1"]


def test_a_batch_that_is_taken_for_1_is_a_difference(tmp_path: Path) -> None:
    text = "r = Reshape(x, rows) u = Relu(r) y = Reshape(u, rows)"
    after = small_model(f"{FREE} {{ {text} }}", rows=[1, -1, 4])
    comparison = compared(tmp_path, small_model(f"{FREE} {{ y = Relu(x) }}"), after)
    assert comparison.verdict is Equality.DIFFERENT and "the shape is [1, 9, 4], not [3, 3, 4]" in text_of(comparison)


def test_a_model_that_does_not_run_at_other_sizes_differs(tmp_path: Path) -> None:
    text = "r = Reshape(x, rows) u = Relu(r) y = Reshape(u, back)"
    after = small_model(f"{FREE} {{ {text} }}", rows=[-1, 32, 4], back=[1, -1, 4])
    comparison = compared(tmp_path, small_model(f"{FREE} {{ y = Relu(x) }}"), after)
    assert comparison.verdict is Equality.DIFFERENT
    assert any("runs the model before on inputs at scale 100 and M = 1" in note for note in comparison.notes)


def test_models_are_compared_at_sizes_at_which_they_run(tmp_path: Path) -> None:
    """Those that a run of one of them finds, too: the model says nothing of 512."""

    def windows(text: str) -> ModelProto:
        return small_model(f"(float[N,M] x) => (float[K,512] y) {{ r = Reshape(x, rows) {text} }}", rows=[-1, 512], b=drawn(512))

    before = windows("p = Relu(r) y = Add(p, b)")
    comparison = compared(tmp_path, before, windows("p = Relu(r) q = Relu(p) y = Add(q, b)"), seconds=0)
    assert comparison.verdict is Equality.TESTED and len(comparison.inputs.outputs) >= 2, text_of(comparison)
    assert any(note.startswith("compared with N = 1, M = 512;") for note in comparison.notes)
    task = read_task(tmp_path / "0.onnx", None, Options(), choose_target(Options()))
    resized = at_sizes_that_run(task)
    assert resized is not None and resized.assumed == ("N = 1", "M = 512")
    assert compared(tmp_path, before, windows("p = Abs(r) y = Add(p, b)")).verdict is Equality.DIFFERENT
    never = windows("p = Relu(r) k = Reshape(p, odd) l = Reshape(k, rows) y = Add(l, b)")
    never.graph.initializer.append(numpy_helper.from_array(np.int64([-1, 511]), "odd"))
    comparison = compared(tmp_path, never, before)
    assert any("onnxruntime does not run the model before" in note for note in comparison.notes)
    assert any(note.startswith("compared with N = 1, M = 128;") for note in comparison.notes)


def test_sizes_that_one_model_alone_leaves_open_are_those_of_the_other(tmp_path: Path) -> None:
    free, fixed = (small_model(f"(float[{n},3] x) => (float[{n},3] y) {{ y = Relu(x) }}") for n in ("N", 5))
    comparison = compared(tmp_path, free, fixed)
    assert comparison.verdict is Equality.PROVED
    assert "the model after takes N = 5 alone: nothing is said of other sizes" in comparison.notes
    assert not compared(tmp_path, fixed, free).notes
    with pytest.raises(InputError, match="size 7 contradicts"):
        compared(tmp_path, free, fixed, shapes={"x": (7, 3)})


def test_a_verdict_says_on_how_many_inputs_it_rests(tmp_path: Path) -> None:
    before = small_model(f"{FREE} {{ s = Sin(x) q = Mul(s, s) y = Sub(one, q) }}", one=np.float32(1))
    comparison = compared(tmp_path, before, small_model(f"{FREE} {{ c = Cos(x) y = Mul(c, c) }}"))
    assert comparison.verdict is Equality.TESTED and "on 4 random inputs" in text_of(comparison)
    assert sentence(comparison) == "tested equal: 1 change, 1 tested equal on 4 inputs"
    words = ["of seed 1", "of seed 2", "at scale 100 and M = 1", "at scale 0.01 and N = 3, M = 3"]
    assert as_json(comparison)["inputs"] == words
    assert inputs_in_words(comparison) == f"tested on random inputs {'; '.join(words)}"


@pytest.mark.parametrize(("size", "count"), [(0.1, 4), (0.5, 3)])
def test_probes_on_which_rounding_decides_do_not_count(size: float, count: int, tmp_path: Path) -> None:
    """exp(300) in float32 is infinite, and exp(70) is off by the rounding of 70 in either formula."""
    ends = "(float[8,16] x) => (float[8,16] y)"
    whole, first = (drawn(16, 16, seed=seed) * np.float32(size) for seed in (0, 1))
    before = small_model(f"{ends} {{ p = MatMul(x, w) y = Exp(p) }}", w=whole)
    text = "p = MatMul(x, u) q = MatMul(x, v) e = Exp(p) f = Exp(q) y = Mul(e, f)"
    comparison = compared(tmp_path, before, small_model(f"{ends} {{ {text} }}", u=first, v=whole - first))
    assert comparison.verdict is Equality.TESTED, text_of(comparison)
    assert f"tested on {count} random inputs" in text_of(comparison)
    wrong = small_model(f"{ends} {{ {text} }}", u=first, v=(whole - first) * np.float32(1.001))
    assert compared(tmp_path, before, wrong).verdict is Equality.DIFFERENT


def test_another_weight_of_a_channel_that_is_never_positive_is_not_equal(tmp_path: Path) -> None:
    text = "(float[8,4] x) => (float[8,4] y) { a = Abs(x) n = Neg(a) p = Relu(n) y = MatMul(p, w) }"
    weights = drawn(4, 4), drawn(4, 4) + np.eye(4, dtype=np.float32)
    comparison = compared(tmp_path, *(small_model(text, w=weight) for weight in weights))
    assert comparison.verdict is Equality.UNDECIDED
    assert "'w' has other numbers, which shows on no input" in text_of(comparison)


def test_numbers_that_vanish_on_a_probe_are_no_difference(tmp_path: Path) -> None:
    """log(1 + exp(-300)) is 0 in float64, and by the operator's own formula exp(-300); onnxruntime overflows at 300."""
    after = small_model(f"{FREE} {{ e = Exp(x) f = Add(e, one) y = Log(f) }}", one=np.float32(1))
    comparison = compared(tmp_path, small_model(f"{FREE} {{ y = Softplus(x) }}"), after)
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    assert any("they overflow or round otherwise" in note for note in comparison.notes)


def test_what_a_caller_may_override_is_no_constant(tmp_path: Path) -> None:
    ends = "(float[2,4] x{}) => (float[2,4] y) {{ y = Add(x, b) }}"
    free, fixed = (small_model(ends.format(more), b=ROW) for more in (", float[4] b", ""))
    for pair, which in (((free, fixed), "model before"), ((fixed, free), "model after")):
        comparison = compared(tmp_path, *pair)
        assert comparison.verdict is Equality.DIFFERENT and f"a caller may feed 'b' to the {which}" in text_of(comparison)
    assert compared(tmp_path, free, free).verdict is Equality.PROVED


def test_weights_of_old_files_are_inputs_that_nobody_overrides(tmp_path: Path) -> None:
    """Before IR version 4 every stored tensor is an input, and onnxruntime takes nothing else for it."""
    ends = "(float[2,4] x{}) => (float[2,4] y) {{ y = Add(x, b) }}"
    free, fixed = (small_model(ends.format(more), b=ROW) for more in (", float[4] b", ""))
    free.ir_version = 3
    assert compared(tmp_path, free, fixed).verdict is Equality.TESTED


def test_defaults_are_overridden_where_models_are_tested(tmp_path: Path) -> None:
    ends = "(float[2,4] x, float[4] b) => (float[2,4] y)"
    zeros = np.zeros(4, np.float32)
    before, after = (small_model(f"{ends} {{ y = {node} }}", b=zeros) for node in ("Add(x, b)", "Identity(x)"))
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.DIFFERENT and differing_inputs(comparison) == ["of seed 2"]


@pytest.mark.parametrize(("bound", "verdict"), [(1e6, Equality.UNDECIDED), (60.0, Equality.DIFFERENT)])
def test_a_branch_that_no_input_takes_is_not_tested(bound: float, verdict: Equality, tmp_path: Path) -> None:
    def branches(then: str) -> ModelProto:
        text = f"""m = ReduceMax<keepdims = 0>(x) c = Greater(m, bound)
            y = If(c) <then_branch = t () => (float[4,4] u) {{ u = {then} }},
                else_branch = e () => (float[4,4] v) {{ v = Neg(x) }}>"""
        return small_model(f"(float[4,4] x) => (float[4,4] y) {{ {text} }}", bound=np.float32(bound))

    comparison = compared(tmp_path, branches("Relu(x)"), branches("Tanh(x)"))
    assert comparison.verdict is verdict
    assert ("no input takes its then_branch" in text_of(comparison)) is (verdict is Equality.UNDECIDED)
    assert compared(tmp_path, branches("Relu(x)"), branches("Relu(x)")).verdict is Equality.PROVED


def _half(body: str, **tensors: Any) -> ModelProto:
    """A model of halves."""
    proto = small_model(f"(float16[1,N,8] x) => (float16[1,K,8] y) {{ {body} }}", **tensors)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return proto


def test_another_shape_is_a_difference_whatever_is_rounded(tmp_path: Path) -> None:
    """Sums of many halves are far from those in float64, and so are their cosines."""
    ends = {"times": np.float32(37), "one": [1], "zero": [0], "cut": [700]}
    whole = _half("a = Mul(x, times) b = CumSum(a, one) y = Cos(b)", **ends)
    comparison = compared(
        tmp_path, whole, _half("a = Mul(x, times) b = CumSum(a, one) c = Slice(b, zero, cut, one) y = Cos(c)", **ends)
    )
    assert comparison.verdict is Equality.DIFFERENT, text_of(comparison)
    assert differing_inputs(comparison) == ["N = 701"]


def test_what_float64_does_not_tell_of_is_not_equal(tmp_path: Path) -> None:
    """Scores so large that halves choose another key than float64, and keys of which the second model hides the later ones."""
    text = """n = Shape<start = 1, end = 2>(x) m = Slice(mask, zero, n, two) k = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, k)
        f = Mul(s, times) a = Add(f, m) w = Softmax<axis = -1>(a) y = MatMul(w, x)"""
    models = []
    for hidden in (0.0, -60000.0):
        mask = np.zeros((1, 1, 2048), np.float32)
        mask[..., 600:] = hidden
        models.append(_half(text, mask=mask, zero=[0], two=[2], times=np.float32(8)))
    comparison = compared(tmp_path, *models)
    assert comparison.verdict in (Equality.UNDECIDED, Equality.DIFFERENT), text_of(comparison)
    assert compared(tmp_path, models[0], models[0]).verdict is Equality.PROVED


def test_what_a_kernel_of_the_runtime_rounded_is_no_difference(tmp_path: Path) -> None:
    """Of the model before as of the one after: what no record describes is run by onnxruntime, in float32."""
    text = "p = MatMul(x, w) {} y = Neg({})"
    before = small_model(f"{FREE} {{ {text.format('r = Shrink<lambd = 0.0, bias = 0.0>(p)', 'r')} }}", w=drawn(4, 4))
    after = small_model(f"{FREE} {{ {text.format('', 'p')} }}", w=drawn(4, 4))
    for models in ((before, after), (after, before)):
        comparison = compared(tmp_path, *models)
        assert comparison.verdict is Equality.TESTED, text_of(comparison)
    wrong = small_model(f"{FREE} {{ {text.format('k = Mul(p, f)', 'k')} }}", w=drawn(4, 4), f=np.float32(1.0001))
    assert compared(tmp_path, before, wrong).verdict is Equality.DIFFERENT
