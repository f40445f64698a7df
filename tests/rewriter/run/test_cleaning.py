"""Runs start from a clean model, or from the one that came where the two were not seen to compute the same."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.deadline import Deadline
from mugraph.onnx.cleaning import Cleaned
from mugraph.onnx.read import reread
from rewriter import optimize
from rewriter.run import accept, cleaning, workbench
from rewriter.run.cleaning import Unclean
from rewriter.run.options import Options
from rewriter.run.target import choose_target
from rewriter.run.task import Task, read_task
from rewriter.runtime_env import RuntimeFailure
from tests.support.graphs import rule
from tests.support.runs import ops, run_model, untidy


@pytest.fixture
def source(tmp_path: Path, own_cache: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((64, 64))
    return untidy(tmp_path / "m.onnx", weight, weight, "dead = Exp(c)")


def same_outputs(one: Path, other: Path) -> bool:
    x = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    return run_model(one, x)[0].tobytes() == run_model(other, x)[0].tobytes()


def test_cleaning_alone(source: Path, tmp_path: Path) -> None:
    outcome = optimize(source, tmp_path / "o.onnx", clean=True, provider="cpu")
    assert outcome.cleaned and not outcome.improved and not outcome.rules
    assert ops(tmp_path / "o.onnx") == ["MatMul", "MatMul", "Add"] and same_outputs(source, tmp_path / "o.onnx")
    assert (outcome.nodes_before, outcome.nodes_after, outcome.domains) == (7, 3, ())
    assert outcome.before is not None and outcome.after is not None
    assert outcome.before.size == source.stat().st_size and outcome.after.size == (tmp_path / "o.onnx").stat().st_size
    assert outcome.after.size < outcome.before.size - 16000, "the weights are equal"
    assert outcome.before.load is None and outcome.after.load is None, "which takes longer than cleaning"
    told = json.loads(outcome.to_json())
    assert told["cleaned"] and told["after"]["size"] == outcome.after.size and told["domains"] == []


def test_where_nothing_is_better_the_clean_model_is_written(source: Path, tmp_path: Path) -> None:
    outcome = optimize(source, tmp_path / "o.onnx", device="cpu", deterministic=True, rules=[])
    assert outcome.cleaned and not outcome.improved and ops(tmp_path / "o.onnx") == ["MatMul", "MatMul", "Add"]
    again = optimize(tmp_path / "o.onnx", tmp_path / "p.onnx", device="cpu", deterministic=True, rules=[])
    assert not again.cleaned and (tmp_path / "p.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


@pytest.mark.parametrize("what", ["the rules are checked", "the reference is made", "it is compared"])
def test_a_clean_model_is_the_least_of_a_run_whose_time_ends(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever else is not known by then: only where the clean model itself was not compared is the original written."""

    def for_ever(is_wanted: Callable[[], bool]) -> NoReturn:
        while is_wanted():
            time.sleep(0.01)
        raise Unclean("nobody waited")

    if what == "the rules are checked":
        monkeypatch.setattr(workbench, "check_ahead", lambda: for_ever)
    elif what == "the reference is made":
        monkeypatch.setattr(accept, "first_reference", lambda model, feeds, probes, is_wanted, ahead: for_ever(is_wanted))
    else:
        monkeypatch.setattr(cleaning, "_compare", lambda *given: for_ever(given[-1]))
    rules = (
        None
        if what == "the rules are checked"
        else [rule("MatMul(MatMul(X, Y), Z)", "MatMul(X, MatMul(Y, Z))", "X:[m,n] Y:[n,k] Z:[k,p]")]
    )
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=4, rules=rules)
    assert not outcome.improved and "undecided: the budget ended before" in outcome.message
    if what == "it is compared":
        assert not outcome.cleaned and (tmp_path / "o.onnx").read_bytes() == source.read_bytes()
    else:
        assert outcome.cleaned and ops(tmp_path / "o.onnx") == ["MatMul", "MatMul", "Add"]


def test_the_plain_round_trip_is_not_cleaned(source: Path, tmp_path: Path) -> None:
    assert not optimize(source, tmp_path / "o.onnx", budget=0, provider="cpu").cleaned
    assert sorted(ops(tmp_path / "o.onnx")) == sorted(ops(source)), "what nobody reads included"


def test_a_model_in_place(source: Path, tmp_path: Path) -> None:
    (tmp_path / "before.onnx").write_bytes(source.read_bytes())
    outcome = optimize(source, source, clean=True, provider="cpu", in_place=True)
    assert outcome.cleaned and same_outputs(source, tmp_path / "before.onnx") and ops(source) == ["MatMul", "MatMul", "Add"]
    assert outcome.before is not None and outcome.before.load is None, "the original is there no more"


def test_weights_in_data_files(source: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(source), tmp_path / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    assert optimize(tmp_path / "e.onnx", tmp_path / "o.onnx", clean=True, provider="cpu").cleaned
    assert same_outputs(tmp_path / "e.onnx", tmp_path / "o.onnx")


def test_a_model_whose_outputs_would_differ_stays_as_it_came(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cleaning makes is compared, not believed: here it makes something else."""

    def wrong(model: Any, *_: Any) -> Any:
        proto = onnx.load(source)
        next(node for node in proto.graph.node if node.op_type == "Add" and node.output[0] == "y").op_type = "Sub"
        return Cleaned(reread(model, proto), 7, 3, 0)

    monkeypatch.setattr(cleaning, "clean", wrong)
    outcome = optimize(source, tmp_path / "o.onnx", clean=True, provider="cpu")
    assert not outcome.cleaned and (tmp_path / "o.onnx").read_bytes() == source.read_bytes()
    assert any("not cleaned up: an output would not be the same bit for bit" in note for note in outcome.notes)


def test_fewer_constants_are_computed_where_that_changes_a_bit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False] + [True] * 9)
    monkeypatch.setattr(cleaning, "_same", lambda *_: next(answers))
    assert optimize(source, tmp_path / "o.onnx", clean=True, provider="cpu").cleaned
    assert ops(tmp_path / "o.onnx") == ["Add", "MatMul", "MatMul", "Add"], "the sum of constants is left to the runtime"


@pytest.mark.parametrize("same_without", [True, False])
def test_for_a_gpu_what_the_optimisers_of_the_cpu_make_otherwise_does_not_count(
    same_without: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models run without them then, and differ or do not."""
    is_clean, optimized, new_session, answers = (
        False,
        list[bool](),
        cleaning.new_session,
        iter([False, same_without, *[True] * 9]),
    )

    def noted(*given: Any, optimize: bool = True, **options: Any) -> Any:
        optimized.append(optimize)
        return new_session(*given, optimize=optimize, **options)

    options = Options(provider="cuda", device="h200")
    task = read_task(source, tmp_path / "o.onnx", options, choose_target(options))
    monkeypatch.setattr(cleaning, "new_session", noted)
    monkeypatch.setattr(cleaning, "_same", lambda *_: next(answers))
    compared, told = list[tuple[list[str], list[bool]]](), ""
    for cleaned, difference in cleaning.clean_tasks(task, tmp_path, math.inf):
        optimized.clear()
        with contextlib.suppress(cleaning.Differs):
            told = difference(lambda: True)
            is_clean = True
        compared.append(([node.op_type for node in cleaned.model.proto.graph.node], optimized[:]))
        if is_clean:
            break
    full, less = ["MatMul", "MatMul", "Add"], ["Add", "MatMul", "MatMul", "Add"]
    twice = (full, [True, True, False, False])
    assert compared == ([twice] if same_without else [twice, (less, [True, True])])
    assert ("outputs there differ by rounding" in told) is same_without, "which is said where it is so"


def test_a_fault_while_cleaning_costs_nobody_the_model(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("no such name")

    monkeypatch.delenv("ONNX_SUPEROPT_DEBUG")
    monkeypatch.setattr(cleaning, "clean", broken)
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=3)
    assert outcome.fault is not None and outcome.fault.stage == "cleaning up"
    assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()


def test_an_interruption_while_cleaning_writes_the_original(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rewriter.run.cleaning.clean", interrupted)
    for options in ({"clean": True}, {"device": "cpu", "deterministic": True, "rules": []}):
        outcome = optimize(source, tmp_path / "o.onnx", **options)
        assert not outcome.cleaned and "interrupted while cleaning up" in outcome.message
        assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()


def test_a_comparison_that_fails_leaves_no_session_behind_that_is_being_opened(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends meanwhile is aborted."""
    opened: list[object] = []

    def slowly(model: object, **_: object) -> object:
        time.sleep(0.3)
        opened.append(model)
        return SimpleNamespace()

    def refused(*_: object, **__: object) -> None:
        raise RuntimeFailure("no")

    options = Options(provider="cpu")
    task = read_task(source, tmp_path / "o.onnx", options, choose_target(options))
    _, difference = next(cleaning.clean_tasks(task, tmp_path, math.inf))
    monkeypatch.setattr(cleaning, "session_as_it_came", slowly)
    monkeypatch.setattr(cleaning, "new_session", refused)
    with pytest.raises(cleaning.Unclean, match="refuses it"):
        difference(lambda: True)
    assert opened


def test_nothing_is_compared_once_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { a = Identity(x) y = Tanh(a) }'
    onnx.save(parse_model(text), source)
    options = Options(provider="cpu")
    task = read_task(source, tmp_path / "o.onnx", options, choose_target(options))
    _, difference = next(cleaning.clean_tasks(task, tmp_path, math.inf))
    difference(lambda: True)
    monkeypatch.setattr(cleaning, "_same", lambda *_: pytest.fail("compared"))
    with pytest.raises(cleaning.Unclean, match="nobody waited"):
        difference(lambda: False)


NAMED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,6] x) => (float[M,3] y)
    <int64[2] rows = {-1, 3}, float one = {1}> {
    two = Add(one, one) a = Reshape(x, rows) b = Exp(a) c = Neg(x) d = Reshape(c, rows) e = Add(b, d) y = Mul(e, two)
    dead = Exp(a) dead_too = Neg(dead) dead_as_well = Tanh(dead_too) all_dead = Neg(dead_as_well) }"""


def named_task(tmp_path: Path) -> Task:
    source, options = tmp_path / "m.onnx", Options(provider="cpu")
    onnx.save(parse_model(NAMED), source)
    return read_task(source, tmp_path / "o.onnx", options, choose_target(options))


@pytest.mark.parametrize(
    "options", [{"clean": True}, {"device": "cpu", "deterministic": True, "rules": []}], ids=["clean", "searched"]
)
def test_inputs_and_outputs_stay_as_they_are_declared(tmp_path: Path, own_cache: Path, options: dict[str, Any]) -> None:
    """Also where a named size is a number that cleaning up finds out, which a session of onnxruntime reports then."""
    source, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    text = """s = Shape(x) n = Gather(s, one) d = Div(n, two) m = Mul(d, two) u = Unsqueeze(m, zero)
        w = Concat<axis = 0>(minus, u) i = Identity(x) r = Reshape(i, w) y = Neg(r)"""
    ends = "(float[N,8] x) => (float[Rows,Columns] y)"
    model = parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g {ends}
        <int64 one = {{1}}, int64 two = {{2}}, int64[1] zero = {{0}}, int64[1] minus = {{-1}}> {{ {text} }}""")
    onnx.save(model, source)
    outcome = optimize(source, output, **options)
    written = onnx.load(output)
    assert outcome.cleaned and len(written.graph.node) == 1
    assert [*written.graph.input, *written.graph.output] == [*model.graph.input, *model.graph.output]


def test_names_of_sizes_go_before_what_is_computed_and_what_came_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A less deep cleaning names sizes, too; outputs of the model that came stay until one of them is right.

    Its session does not: each attempt has a deadline of its own, which a session heeds as long as it is there.
    """
    ran, really, same = list[Any](), cleaning._run, cleaning._same
    monkeypatch.setattr(cleaning, "_run", lambda session, feed: ran.append(feed) or really(session, feed))
    monkeypatch.setattr(cleaning, "_same", lambda before, after: not same(before, after))
    tried = []
    for task, difference in cleaning.clean_tasks(named_task(tmp_path), tmp_path, math.inf):
        assert task.written is not None
        tried.append((task.written.parent.name, len(task.model.proto.graph.node)))
        attempt = Deadline()
        with attempt.heeded(), pytest.raises(cleaning.Unclean):
            difference(lambda: True)
        attempt.end()
    monkeypatch.setattr(cleaning, "_same", same)
    difference(lambda: True)  # on further inputs than that on which all differed
    steps = ["numbers-named", "numbers-unnamed", "sizes-named", "sizes-unnamed"]  # plain ones are as those of sizes
    assert [name for name, _ in tried] == steps
    assert tried[0][1] == tried[1][1] < tried[2][1]
    further = len(named_task(tmp_path).feeds()) + 2 - 1
    assert len(ran) == (1 + 4) + (2 * further + 1), "what came ran once on each"


def test_ordinary_inputs_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no time for others, and a rounding error may not show on rows without a positive number, or on few."""
    fed, really = list[Any](), cleaning._run
    monkeypatch.setattr(cleaning, "_run", lambda session, feed: fed.append(feed["x"]) or really(session, feed))
    task = named_task(tmp_path)
    _, difference = next(cleaning.clean_tasks(task, tmp_path, -math.inf))
    difference(lambda: True)
    assert len(fed) == 2 and all(np.array_equal(x, task.feeds()[0]["x"]) for x in fed)


def test_what_came_is_compared_where_it_cannot_be_cleaned_up(own_cache: Path, tmp_path: Path) -> None:
    """onnxruntime takes the Pad for that of the image once nothing else reads it, and refuses what is left."""
    source = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,5,5] x, float[3,2,1,1] w) => (float[1,3,5,5] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> {
            v = Pad(w, p)
            dead = Conv<kernel_shape = [3, 3]>(x, v)
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, v)
            r = Relu(c)
            y = Relu(r)
        }""")
    onnx.save(source, tmp_path / "m.onnx")
    for given in (tmp_path / "m.onnx", source):
        outcome = optimize(given, tmp_path / "o.onnx", provider="cpu", deterministic=True)
        assert "without what no output needs: the original was kept" in outcome.message and not outcome.dropped
        assert onnx.load(tmp_path / "o.onnx") == source


def test_other_sizes_are_tried_where_the_model_does_not_run(tmp_path: Path, own_cache: Path) -> None:
    """A height that only a reshape says, within the graph, and no sizes from the user."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,H,4] x) => (float[N,M] y) {
            whole = Constant<value = int64[2] {1, 192}>()
            a = Identity(x)
            b = Reshape(a, whole)
            y = MatMul(b, w)
        }""")
    weight = np.random.default_rng(0).standard_normal((192, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu")
    assert outcome.cleaned and ops(tmp_path / "o.onnx") == ["Reshape", "MatMul"]
    assert any("H = 48" in note for note in outcome.notes)
    given = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu", shapes={"x": (1, 64, 4)})
    assert not given.cleaned and any("does not run it" in note for note in given.notes)


def test_a_comparison_at_other_sizes_than_the_given_ones_is_told(tmp_path: Path, own_cache: Path) -> None:
    """It takes three rows at a time: not the five that are asked for, but those of a probe."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x) => (float[M,12] y) <int64[2] threes = {-1, 12}> {
            a = Identity(x)
            b = Reshape(a, threes)
            y = Relu(b)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu", shapes={"x": (5, 4)})
    told = "onnxruntime does not run the model with N = 5: what was cleaned up was compared at scale 0.01 and N = 3 alone"
    assert outcome.cleaned and told in outcome.notes and told in json.loads(outcome.to_json())["notes"]
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu", shapes={"x": (6, 4)})
    assert outcome.cleaned and not any("does not run" in note for note in outcome.notes)


def test_what_a_file_claims_is_held_against_sizes_that_run(tmp_path: Path, own_cache: Path) -> None:
    """At those that were assumed first the claim is not true, and the model does not run."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B,N] x) => (float[1,240] y) <
            float[1,240] first, int64[1] zero = {0}, int64[1] most = {240}, int64[1] one = {1}, int64[2] row = {1, 240}
        > {
            first = Slice(x, zero, most, one)
            a = Identity(first)
            b = Reshape(a, row)
            y = Relu(b)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu")
    assert any("N = 256" in note for note in outcome.notes) and not any("the file declares" in note for note in outcome.notes)
    assert outcome.cleaned and ops(tmp_path / "o.onnx") == ["Slice", "Reshape", "Relu"]


WINDOW = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[B,1,N] x) => (float[B,2,M] y) {
        c = Conv<kernel_shape = [320], strides = [160]>(x, w)
        y = Relu(c)
    }"""
REFLECTED = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[B,N] x) => (float[B,M] y) <int64[4] pads = {0, 200, 0, 200}> {
        p = Pad<mode = "reflect">(x, pads)
        y = Relu(p)
    }"""


@pytest.mark.parametrize(("text", "least"), [(WINDOW, 320), (REFLECTED, 201)])
def test_sizes_grow_until_a_model_runs_of_which_nothing_is_cleaned(
    text: str, least: int, tmp_path: Path, own_cache: Path
) -> None:
    """A window longer than a size, which types tell, and pads that only a run refuses."""
    model = parse_model(text)
    if "w" in model.graph.node[0].input:
        weight = np.random.default_rng(0).standard_normal((2, 1, 320)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=20)
    assert "does not run" not in outcome.message and "cannot run" not in outcome.message and "error" not in outcome.message
    (sizes,) = [note for note in outcome.notes if note.startswith("measured with")]
    assert int(sizes.partition("N = ")[2].partition(";")[0].partition(",")[0]) >= least


def test_a_model_that_runs_at_no_size_is_kept(tmp_path: Path, own_cache: Path) -> None:
    model = parse_model(REFLECTED.replace("200", "2000000"))
    onnx.save(model, tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", budget=20)
    assert not outcome.improved and "error" not in outcome.message
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


HALVES = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float16[64] x) => (float16[64] y) <float16 a = {EPSILON}, float16 b = {15360}, float16 root = {14336}> {
        s = Add(a, b) r = Pow(s, root) y = Mul(x, r)
    }"""
"""A root of 1 and a number, which the CPU provider takes in single precision, as it does the product behind it."""
WIDENED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[64] x) => (float[64] y) <float16 a = {EPSILON}, float16 b = {15360}, float16 root = {14336}> {
        s = Add(a, b) r = Pow(s, root) w = Cast<to = 1>(r) n = Neg(w) y = Mul(x, n)
    }"""


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("text", "epsilon", "left"),
    [
        (HALVES, 10240, ["Pow", "Mul"]),
        (HALVES, 3072, ["Add", "Pow", "Mul"]),
        (HALVES, 16896, ["Mul"]),
        (WIDENED, 10240, ["Pow", "Cast", "Neg", "Mul"]),
        (WIDENED, 16896, ["Mul"]),
    ],
)
def test_halves_that_are_read_unrounded_are_not_computed(tmp_path: Path, text: str, epsilon: int, left: list[str]) -> None:
    """1 + 2⁻⁵ is a half and its root is none, 1 + 2⁻¹² is none; 1 + 3 has a root that is a half, too."""
    onnx.save(parse_model(text.replace("EPSILON", str(epsilon))), tmp_path / "m.onnx")
    optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", clean=True, provider="cpu")
    assert ops(tmp_path / "o.onnx") == left
    for seed in range(8):
        x = {"x": np.random.default_rng(seed).standard_normal(64).astype(np.float16 if text is HALVES else np.float32)}
        assert run_model(tmp_path / "m.onnx", x)[0].tobytes() == run_model(tmp_path / "o.onnx", x)[0].tobytes()
