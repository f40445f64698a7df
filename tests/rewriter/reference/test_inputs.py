"""Inputs to test with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.terms.shape import Dim
from rewriter.reference import (
    Error,
    InputError,
    NoReference,
    bind_sizes,
    check_memory,
    choices,
    compare,
    random_inputs,
    reference_outputs,
    unheld,
)
from tests.support.runs import run_model
from tools.zoo.decoders import Decoder, decoder_step


def test_scalar_booleans_are_fed_as_arrays(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (bool b, float[4] x) => (float[4] y) { z = Neg(x) y = Where(b, x, z) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    feeds = random_inputs(model, {}, 1)
    assert compare(run_model(tmp_path / "m.onnx", feeds)[0], reference_outputs(model, [feeds])[0][0]) == Error(0.0, 0.0)


HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def draws(text: str, name: str, sizes: dict[str, Dim], **options: Any) -> np.ndarray:
    """What several seeds feed to an input."""
    model = load(parse_model(f"{HEADER} {text}"))
    return np.concatenate([random_inputs(model, sizes, seed, **options)[name].reshape(-1) for seed in range(30)])


@pytest.mark.parametrize(("new", "is_full"), [(1, False), (3, True)])
def test_sequences_of_several_new_positions_are_not_filled_up(new: int, is_full: bool) -> None:
    """What GroupQueryAttention gives behind the end of one is not defined; of one new position each has its own length."""
    model = load(decoder_step(Decoder(layers=1, spelling="genai", new=new)))
    masks = [random_inputs(model, {"batch": 4, "past": 9, "total": 9 + new}, seed)["attention_mask"] for seed in range(5)]
    assert all(((mask == 0) | (mask == 1)).all() and (mask[:, 0] == 1).all() for mask in masks)
    assert all((mask == 1).all() == is_full for mask in masks)


@pytest.mark.parametrize(
    "picked",
    [
        "at = Gather<axis = 0>(edges, one)",
        "at, to = Split<axis = 0>(edges)",
        "all = Concat<axis = 1>(edges, loops) at = Slice(all, from, until)",
    ],
)
def test_indices_that_are_picked_from_an_input_lie_within_their_table(picked: str) -> None:
    """Of a list of edges the nodes where they begin are those of a table; what is looked up there is no index any more."""
    text = f"""g (int64[2,e] edges, float[9,4] t, int64[9] v) => (float[] y, bool[] z) <int64 one = {{1}}, int64 many = {{70}},
        int64[1] from = {{0}}, int64[1] until = {{1}}, int64[2,1] loops = {{0, 0}}> {{
        {picked} y = Gather(t, at) looked = Gather(v, at) z = Less(looked, many) }}"""
    assert set(draws(text, "edges", {"e": 20})) == set(range(9))


def test_indices_lie_within_their_table_and_some_are_what_they_are_compared_with() -> None:
    text = """g (int64[n] ids, float[50,4] t) => (float[n,4] y, bool[n] m) {
        zero = Constant<value = int64 {0}>() m = Equal(ids, zero) y = Gather(t, ids) }"""
    fed = draws(text, "ids", {"n": 20})
    assert fed.min() == 0 and 40 < fed.max() < 50 and 0.05 < np.mean(fed == 0) < 0.2
    assert set(draws(text, "ids", {"n": 20}, scale=100.0)) == {0, 49}


def test_what_is_written_at_a_position_lies_within_the_cache() -> None:
    rows = "g (float[8,4] x, int64[3,1] at, float[3,4] u) => (float[8,4] y) { y = ScatterND(x, at, u) }"
    assert set(draws(rows, "at", {})) == set(range(8))
    cache = """<ir_version: 10, opset_import: ["" : 24]>
        g (float[2,3,8,4] x, float[2,3,3,4] u, int64[2] at) => (float[2,3,8,4] y) { y = TensorScatter(x, u, at) }"""
    model = load(parse_model(cache))
    fed = np.concatenate([random_inputs(model, {}, seed)["at"] for seed in range(60)])
    assert set(fed) == set(range(6)), "three positions from there on"


def test_lengths_lie_within_the_positions_that_they_are_compared_with() -> None:
    text = """g (float[n,s] x, int64[n,1] lengths) => (bool[n,s] y) {
        shape = Shape(x) one = Constant<value = int64 {1}>() zero = Constant<value = int64 {0}>()
        size = Gather(shape, one) positions = Range(zero, size, one) y = Less(positions, lengths) }"""
    assert set(draws(text, "lengths", {"n": 8, "s": 7})) == set(range(1, 8))


def test_what_says_how_large_something_is_is_small_and_positive() -> None:
    text = """g (int64[2] shape) => (float[a,b] y) { y = ConstantOfShape(shape) }"""
    assert set(draws(text, "shape", {})) == {1, 2, 3, 4}


def test_a_loop_turns_several_times() -> None:
    body = "b (int64 i, bool c, int64 h) => (bool d, int64 g) { d = Identity(c) g = Add(h, i) }"
    text = f"""g (int64 turns, bool yes, int64 first) => (int64 y) {{ y = Loop(turns, yes, first) <body = {body}> }}"""
    assert set(draws(text, "turns", {})) == {1, 2, 3, 4} and set(draws(text, "first", {})) <= {0, 1}


def test_truth_that_decides_is_fed_both_ways() -> None:
    model = load(
        parse_model(f"""{HEADER} g (bool flag, bool other, float[2] x) => (float[2] y) {{
        no = Not(flag) y = If (no) <
            then_branch = a () => (float[2] p) {{ p = Neg(x) }}, else_branch = b () => (float[2] q) {{ q = Where(other, x, x) }}>
    }}""")
    )
    assert choices(model, {}) == [{"flag": 1.0}, {"flag": 0.0}]


def test_numbers_within_a_branch_count_too() -> None:
    model = load(
        parse_model(f"""{HEADER} g (bool flag, float level, float[2] x) => (float[2] y) {{
        y = If (flag) <
            then_branch = a () => (float[2] p) {{
                top = Constant<value = float {{3.0}}>() high = Greater(level, top) p = Where(high, x, level) }},
            else_branch = b () => (float[2] q) {{ q = Neg(x) }}>
    }}""")
    )
    chosen = choices(model, {})
    assert (
        {"flag": 1.0, "level": 3.0} in chosen and {"flag": 1.0, "level": 4.0} in chosen and {"flag": 0.0, "level": 3.0} in chosen
    )


def test_masks_hide_something_and_never_all() -> None:
    text = "g (int64[n] mask, float[n] x) => (float[n] y) { c = Cast<to = 9>(mask) y = Where(c, x, x) }"
    assert set(draws(text, "mask", {"n": 20})) == {0, 1}


def test_scalar_texts_and_places_in_tables_of_dynamic_sizes_are_fed(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (string s, string[N,2] table, int64[3] places) => (string t, string[3,2] rows) {
            t = Identity(s) rows = Gather(table, places) }"""
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    feeds = random_inputs(load(tmp_path / "m.onnx"), {"N": 1}, 1)
    assert [array.shape for array in run_model(tmp_path / "m.onnx", feeds)] == [(), (3, 2)]


def test_a_size_that_cannot_be_measured_names_the_file(tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,{2**63 - 1}] x) => (float[2,M] y) {{ y = Neg(x) }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"m\.onnx: input x: to run \[2, 9223372036854775807\] takes [\d,]+ GiB"):
        bind_sizes(load(tmp_path / "m.onnx"), {})


@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_inputs_without_dimensions_are_arrays_at_every_scale(scale: float) -> None:
    """NumPy makes numbers of such arrays where they are multiplied, which onnxruntime refuses: nothing was compared then."""
    text = """g (float a, float16 h, int64 i, bool b, float[3] x) => (float[3] y, float16 k) {
        s = Add(x, a) t = Cast<to = 1>(i) u = Cast<to = 1>(b) v = Add(s, t) y = Add(v, u) k = Neg(h) }"""
    model = parse_model(f"{HEADER} {text}")
    feeds = random_inputs(load(model), {}, 3, scale)
    assert all(isinstance(array, np.ndarray) for array in feeds.values())
    assert len(run_model(model.SerializeToString(), feeds)) == 2


def test_an_input_that_nothing_reads_counts_among_the_values() -> None:
    text = "g (float[12,n] a, float[n,n,n,n] unread) => (float[12,n] y) { y = Neg(a) }"
    assert bind_sizes(load(parse_model(f"{HEADER} {text}")), {})[0] == {"n": 64}


def test_sizes_that_only_a_run_tells_count_as_large() -> None:
    """Either operand of the sum may be the one that is repeated: random models made values of 128 to the fourth power."""
    text = "g (float[1,n,n,m,p] a, float[1,n,p,p,1] b) => (float[1,n,k,l,o] y) { y = Add(a, b) }"
    model = load(parse_model(f"{HEADER} {text}"))
    sizes, _ = bind_sizes(model, {})
    assert max(size for size in sizes.values() if isinstance(size, int)) < 128


def test_inputs_that_do_not_fit_into_the_memory_of_the_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2³¹ - 1 floats the system ended the process while it drew random numbers."""
    model = load(parse_model(f"{HEADER} g (float[{2**31 - 1}] x) => (float[M] y) {{ y = Neg(x) }}"))
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 16 << 30)
    with pytest.raises(InputError, match=r"takes 39 GiB at least, and 16\.0 can be had; give smaller sizes with --input"):
        bind_sizes(model, {})
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 64 << 30)
    bind_sizes(model, {})


def test_of_the_sizes_that_only_a_run_tells_one_is_as_large_as_what_is_assumed() -> None:
    """Frames of a sound by windows of it, say: both are told by a run, and few models have as many of one as of the other."""
    graph = "(float[1,N] x, int64[3] s) => (float[A,B,C] y) { r = Reshape(x, s) y = Relu(r) }"
    model = load(parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}'))
    assert [bind_sizes(model, {}, size)[0]["N"] for size in (128, 512, 2048)] == [128, 512, 1024]


def test_a_batch_that_only_a_run_tells_is_one_image() -> None:
    """A detector of texts was measured with images of 32 pixels, as if it had as many of them as each has rows."""
    graph = "(float[N,3,H,W] x, int64[4] s) => (float[A,96,C,D] y) { r = Reshape(x, s) y = Relu(r) }"
    model = load(parse_model(f"{HEADER} g {graph}"))
    assert bind_sizes(model, {})[0]["H"] == 128


def test_sizes_that_nobody_gave_make_no_value_that_fills_the_memory() -> None:
    """Of 128 to the fourth power: a GiB of floats; 64 MiB are enough."""
    text = """g (float[1,p,1,1] a, float[1,1,q,1] b, float[1,1,1,r] c, float[1,s,1,1,1] d) => (float[] y) {
        e = Add(a, b) f = Add(e, c) h = Add(f, d) y = ReduceMax<keepdims = 0>(h) }"""
    model = load(parse_model(f"{HEADER} {text}"))
    sizes, assumed = bind_sizes(model, {})
    assert sizes == dict.fromkeys("pqrs", 64) and "p = 64" in assumed
    sizes, assumed = bind_sizes(model, {"a": (1, 128, 1, 1), "b": (1, 1, 128, 1)})
    assert sizes == {"p": 128, "q": 128, "r": 32, "s": 32} and len(assumed) == 2, "what was given stays"


def test_the_users_inputs_have_the_sizes_that_nobody_gave() -> None:
    """Those of the first; a size that was given stays."""
    model = load(parse_model(f"{HEADER} g (float[N,S] x, float[N,T] past, float[M] z) => (float[N,S] o) {{ o = Relu(x) }}"))
    sizes = [{"x": (n, 5), "past": (n, 0), "z": (7,)} for n in (3, 4)]
    data = [{name: np.zeros(shape, np.float32) for name, shape in each.items()} for each in sizes]
    assert bind_sizes(model, {}, data=data) == ({"N": 3, "S": 5, "T": 0, "M": 7}, [])
    assert bind_sizes(model, {"x": (2, 128)}, data=data) == ({"N": 2, "S": 128, "T": 0, "M": 7}, [])


def test_empty_inputs_of_the_user_tell_no_sizes() -> None:
    """On what is empty all models agree. Where only the past is, as in a decoder's first step, other inputs come first."""
    model = load(parse_model(f"{HEADER} g (float[N,S] x, float[N,T] past) => (float[N,S] o) {{ o = Relu(x) }}"))

    def inputs(*sizes: int) -> dict[str, np.ndarray]:
        n, s, t = sizes
        return {"x": np.zeros((n, s), np.float32), "past": np.zeros((n, t), np.float32)}

    nothing, first, step = inputs(0, 5, 2), inputs(3, 5, 0), inputs(3, 1, 5)
    assert bind_sizes(model, {}, data=[nothing]) == bind_sizes(model, {})
    assert bind_sizes(model, {}, data=[nothing, first])[0] == {"N": 3, "S": 5, "T": 0}
    assert bind_sizes(model, {}, data=[nothing, first, step])[0] == {"N": 3, "S": 1, "T": 5}


def test_a_table_without_the_axis_that_is_indexed_bounds_nothing() -> None:
    """onnx's checker accepts a Gather of a scalar; no runtime runs it."""
    text = "g (float table, int64[4] i) => (float[4] y) { y = Gather(table, i) }"
    assert set(draws(text, "i", {})) <= {0, 1}
    text = "g (int64[4] i) => (bool[4] y) { n = Constant<value_int = 5>() r = Range(n, n, n) s = Squeeze(r) y = Less(i, s) }"
    assert set(draws(text, "i", {})) <= {0, 1}


@pytest.mark.parametrize("numbers", ["nan, 1", "inf, 1"])
def test_what_numbers_are_compared_with_may_be_no_position(numbers: str) -> None:
    array = np.array([float(number) for number in numbers.split(",")], np.float32)
    model = parse_model(f"{HEADER} g (int64[2] i) => (bool[2] y) {{ f = Cast<to = 1>(i) y = Less(f, c) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "c"))
    assert set(random_inputs(load(model), {}, 0)["i"]) <= {0, 1}


def test_inputs_without_entries_that_numpy_cannot_count_are_refused() -> None:
    model = load(parse_model(f"{HEADER} g (float[2,0,{2**63 - 1}] x) => (float[M,N,K] y) {{ y = Neg(x) }}"))
    with pytest.raises(InputError, match=r"input x: \[2, 0, 9223372036854775807\] is no size that can be measured"):
        bind_sizes(model, {})
    bind_sizes(load(parse_model(f"{HEADER} g (float[2,0,{2**40}] x) => (float[M,N,K] y) {{ y = Neg(x) }}")), {})


MANY = f"int64[1] many = {{{2**30}}}"
TOO_LARGE = {
    "read": f"(float[2] x) => (float[M] y) <{MANY}> {{ made = ConstantOfShape(many) y = Neg(made) }}",
    "unread": f"(float[2] x) => (float[2] y) <{MANY}> {{ made = ConstantOfShape(many) y = Neg(x) }}",
    "declared otherwise": f"(float[2] x) => (float[3] made, float[2] y) <{MANY}> {{ made = ConstantOfShape(many) y = Neg(x) }}",
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_does_not_fit_into_the_memory_of_the_process_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has a few hundred bytes. What is compared has a reference of 8 bytes an entry in each of four runs."""
    model = load(parse_model(f"{HEADER} g {TOO_LARGE[name]}"))
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 35 << 30)
    held = r"computes 'made', float\[1073741824\], takes (36|48) GiB at least, and 35\.0 can be had"
    assert re.search(held, unheld(model, {}, refers=True))
    with pytest.raises(NoReference, match=held):
        reference_outputs(model, [{"x": np.ones(2, np.float32)}])
    check_memory(model, {})
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 48 << 30)
    assert not unheld(model, {}, refers=True)
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 4 << 30)
    check_memory(model, {})
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: (4 << 30) - 1)
    with pytest.raises(InputError, match="takes 4 GiB at least"):
        check_memory(model, {})
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: None)
    assert not unheld(model, {}, refers=True)


def test_sizes_that_are_given_make_a_model_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(parse_model(f"{HEADER} g (float[n,1] a, float[1,n] b, bool c) => (float[n,n] y) {{ y = Add(a, b) }}"))
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: 24 << 20)
    assert not unheld(model, {"n": 1024}, refers=True)
    assert "Add that computes 'y', float[n,n]" in unheld(model, {"n": 1025}, refers=True)
    text = """g (float[n] x, bool c) => (float[n] y) <int64[1] many = {1073741824}> {
        y = If (c) <then_branch = t () => (float[k] p) { m = ConstantOfShape(many) p = Neg(x) },
                    else_branch = e () => (float[l] q) { q = Abs(x) }> }"""
    assert not unheld(load(parse_model(f"{HEADER} {text}")), {"n": 2}, refers=True)  # a branch that may never be taken


def test_a_search_may_add_nodes_while_it_is_found_out_what_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread does; the model is evaluated beside the search."""
    model = load(parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Neg(x) b = Abs(a) y = Exp(b) }}"))

    def grows(*_: object) -> int:
        tables = model.tables
        tables.add_node("Neg", (), model.graph.inputs, [tables.new_value(tables.types[0])], intern=False)
        return 0

    monkeypatch.setattr("rewriter.reference.inputs._bytes", grows)
    assert not unheld(model, {}, refers=True) and len(model.tables.nodes) == 6
