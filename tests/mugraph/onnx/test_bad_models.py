"""Bad input and outputs that cannot be written: one message that names the file and the way out, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import NEWEST_OPSET, ModelError, copy, load, open_in, save, to_bytes
from rewriter.runtime_env import new_session
from tests.support.runs import run_model

FLOAT = TensorProto.FLOAT


def small_model(opset: int = 20, size: int = 64) -> ModelProto:
    weight = np.random.default_rng(0).standard_normal((size, size), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"], name="last")],
        "small",
        [helper.make_tensor_value_info("x", FLOAT, [2, size])],
        [helper.make_tensor_value_info("y", FLOAT, [2, size])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def stored_model(tmp_path: Path, **entries: str) -> Path:
    """A model whose weight lies in ``w.bin``, which is complete."""
    proto = small_model()
    weight = proto.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for name, value in ({"location": "w.bin"} | entries).items():
        weight.external_data.add(key=name, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def refused(path: Path | ModelProto, *parts: str, check: bool = True) -> None:
    """The message is one line, names the file and says what the test expects."""
    with pytest.raises(ModelError) as caught:
        load(path, check=check)
    message = str(caught.value)
    assert "\n" not in message and "; " in message, message
    for part in parts if isinstance(path, ModelProto) else (*parts, str(path)):
        assert part in message, message


# No model at all


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.onnx", "No such file")
    refused(tmp_path, "Is a directory")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"This is a text about onnx, not a model.\n" * 50,
        b'{"irVersion": "10", "graph": {}}',
        b"\x89PNG\r\n\x1a\n" * 9,
        b"\x00" * 99,
    ],
    ids=["empty", "text", "json", "png", "zeros"],
)
def test_other_formats(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    refused(path, "is empty" if not content else "is not an ONNX model")


def test_truncated_files(tmp_path: Path) -> None:
    whole = small_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in [*range(1, 200), 1000, len(whole) // 2, *range(len(whole) - 100, len(whole))]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            load(path)


@pytest.mark.parametrize("check", [True, False])
def test_damaged_files_never_end_in_another_error(tmp_path: Path, check: bool) -> None:
    whole = bytearray(small_model(size=4).SerializeToString())
    generator = np.random.default_rng(0)
    path, read = tmp_path / "damaged.onnx", 0
    for _ in range(400):
        damaged = bytearray(whole)
        for position in generator.integers(0, len(whole), generator.integers(1, 4)):
            damaged[position] = generator.integers(0, 256)
        path.write_bytes(damaged)
        try:
            model = load(path, check=check)
            to_bytes(model, model.graph)
            read += 1
        except ModelError as problem:
            assert str(path) in str(problem) and "\n" not in str(problem)
    assert 0 < read < 400


def test_beyond_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    path.write_bytes(small_model().SerializeToString())
    os.truncate(path, 1 << 31)
    refused(path, "larger than 2 GiB", "external data")


# A model that is wrong


@pytest.mark.parametrize("opset", [1, 6, NEWEST_OPSET + 1, 99])
def test_opsets_outside_the_range(tmp_path: Path, opset: int) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(small_model(opset), path)
    refused(path, f"opset {opset} is not supported", f"7 to {NEWEST_OPSET}")


def test_models_that_the_checker_refuses(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = small_model()
    proto.graph.node[1].op_type = "Gelo"
    onnx.save(proto, path)
    refused(path, "checker", "Gelo", "last")
    proto = small_model()
    proto.graph.node[1].op_type = "Concat"  # without its axis
    onnx.save(proto, path)
    refused(path, "checker", "axis", "last")


def mutate(change: Callable[[onnx.GraphProto], object]) -> ModelProto:
    proto = small_model()
    change(proto.graph)
    return proto


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda graph: graph.node.append(graph.node[0]), "h"),
        (lambda graph: graph.initializer.append(graph.initializer[0]), "w"),
        (lambda graph: graph.input.append(graph.input[0]), "x"),
        (lambda graph: graph.node[0].input.append("y"), "y"),
        (lambda graph: graph.node.pop(), "y"),
        (lambda graph: graph.node[1].input.append("nobody"), "nobody"),
    ],
    ids=["two nodes", "two initializers", "two inputs", "a circle", "no output", "unknown input"],
)
def test_graphs_that_make_no_sense(change: Callable[[onnx.GraphProto], object], part: str, check: bool) -> None:
    refused(mutate(change), part, check=check)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_model().SerializeToString().replace(b"last", b"la\xfft"))
    refused(path, "a name in it is no text")


def test_tensors_of_the_wrong_size(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mutate(lambda graph: graph.initializer[0].dims.append(2)), path)
    refused(path, "'w' has 16384 bytes, its type says 32768")


# External data


def test_tensors_of_more_entries_than_their_type_says() -> None:
    proto = small_model()
    proto.graph.initializer.append(TensorProto(name="many", data_type=FLOAT, dims=[2], float_data=[1, 2, 3, 4]))
    model = load(proto)
    with pytest.raises(ModelError, match="tensor 'many' does not hold what its type says"):
        model.tables.constants[model.values["many"]].load()


def test_external_data_that_is_not_there(tmp_path: Path) -> None:
    path = stored_model(tmp_path)
    load(path)
    os.truncate(tmp_path / "w.bin", 100)
    refused(path, "'w' needs 16384 bytes", "w.bin", "has 100")
    (tmp_path / "w.bin").unlink()
    refused(path, "'w' is missing", str(tmp_path / "w.bin"), "No such file")
    (tmp_path / "w.bin").mkdir()
    refused(path, "is no file", "w.bin")


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"location": "../w.bin"}, "outside the model's directory"),
        ({"location": "sub/../../w.bin"}, "outside the model's directory"),
        ({"location": "sub/../../m/w.bin"}, "outside the model's directory"),
        ({"location": "sub\\..\\w.bin"}, "outside the model's directory"),
        ({"location": "sub/.."}, "outside the model's directory"),
        ({"location": "/sub/../w.bin"}, "outside the model's directory"),
        ({"location": "sub/../w.bin\0"}, "outside the model's directory"),
        ({"location": "sub/../w.bin"}, "is missing"),
        ({"location": "/etc/passwd"}, "outside the model's directory"),
        ({"location": "C:\\w.bin"}, "outside the model's directory"),
        ({"location": ""}, "outside the model's directory"),
        ({"location": "w.bin\0"}, "outside the model's directory"),
        ({"offset": "many"}, "no number"),
        ({"offset": "-4"}, "at -4"),
        ({"offset": "4"}, "needs 16388 bytes"),
        ({"length": "5"}, "has 5 bytes at 0, its type says 16384"),
    ],
    ids=[
        "parent",
        "beyond",
        "back",
        "backslash",
        "folder",
        "rooted",
        "nul behind",
        "no folder",
        "absolute",
        "windows",
        "none",
        "nul",
        "words",
        "negative",
        "beyond",
        "length",
    ],
)
def test_external_data_that_makes_no_sense(tmp_path: Path, entries: dict[str, str], part: str) -> None:
    refused(stored_model(tmp_path, **entries), "'w'", part)


def test_external_data_that_a_link_takes_elsewhere(tmp_path: Path) -> None:
    """As in onnxruntime: links may stay within the model's folder, or in that of the file that a link to the model leads to."""
    (tmp_path / "model").mkdir()
    model = stored_model(tmp_path / "model")
    (tmp_path / "secret.bin").write_bytes((tmp_path / "model" / "w.bin").read_bytes())
    weights = (tmp_path / "model" / "w.bin").rename(tmp_path / "model" / "blob")
    (tmp_path / "model" / "w.bin").symlink_to("blob")
    load(model)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.onnx").symlink_to(model)
    (tmp_path / "snapshot" / "w.bin").symlink_to(weights)
    load(tmp_path / "snapshot" / "model.onnx")
    for target, part in (("../secret.bin", "is a link to"), ("/etc/passwd", "is a link to"), ("w.bin", "is missing")):
        (tmp_path / "model" / "w.bin").unlink()
        (tmp_path / "model" / "w.bin").symlink_to(target)
        refused(model, part, "beside the model")
    (tmp_path / "model" / "w.bin").unlink()
    (tmp_path / "model" / "sub").symlink_to(tmp_path)
    refused(stored_model(tmp_path / "model", location="sub/secret.bin"), "is a link to", "beside the model")


@pytest.mark.parametrize(
    "location", ["sub/../w.bin", "sub/../sub/../w.bin", "./sub/.././w.bin", "sub//../w.bin", "near/../w.bin"]
)
def test_external_data_at_a_place_that_comes_back(tmp_path: Path, location: str) -> None:
    """As for onnx's checker and onnxruntime; what is written leads there without detours, or has data of its own."""
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "near").symlink_to("sub")
    path = stored_model(tmp_path / "model", location=location)
    onnx.checker.check_model(path)
    model = load(path)
    assert list(model.weights.files) == [path, path.with_name("w.bin")]
    feed = {"x": np.ones((2, 64), np.float32)}
    wanted = run_model(path, feed)[0]
    for target in (tmp_path / "elsewhere" / "o.onnx", path.with_name("o.onnx")):
        target.parent.mkdir(exist_ok=True)
        for write in (copy, lambda model, target: save(model, model.graph, target)):
            write(model, target)
            assert run_model(target, feed)[0].tobytes() == wanted.tobytes()
    assert not (tmp_path / "elsewhere" / "sub").exists()
    candidate = open_in(model, model.graph, tmp_path)
    assert run_model(candidate, feed)[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("link", ["deep", "out"])
def test_external_data_at_a_place_that_a_link_takes_elsewhere(tmp_path: Path, link: str) -> None:
    """For onnx's checker it is the one file, for onnxruntime the other, which may lie outside."""
    (tmp_path / "model" / "sub" / "deep").mkdir(parents=True)
    path = stored_model(tmp_path / "model", location=f"{link}/../w.bin")
    (tmp_path / "model" / "out").symlink_to(tmp_path / "model")
    (tmp_path / "model" / "deep").symlink_to("sub/deep")
    for other in (tmp_path, tmp_path / "model" / "sub"):
        (other / "w.bin").write_bytes(bytes(16384))
    refused(path, "a link takes '..' elsewhere", "beside the model")


def test_external_data_without_a_path(tmp_path: Path) -> None:
    refused(onnx.load(stored_model(tmp_path), load_external_data=False), "without a path", "'w.bin'")


# Outputs


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_no_such_directory(tmp_path: Path) -> None:
    model = load(small_model())
    with pytest.raises(ModelError, match=r"nowhere/out\.onnx cannot be written: No such file or directory; .* another output"):
        save(model, model.graph, tmp_path / "nowhere" / "out.onnx")


def test_the_output_is_a_directory(tmp_path: Path) -> None:
    model = load(small_model())
    (tmp_path / "out.onnx" / "inner").mkdir(parents=True)
    with pytest.raises(ModelError, match="cannot be written: Is a directory"):
        save(model, model.graph, tmp_path / "out.onnx")
    assert leftovers(tmp_path) == ["out.onnx"]


_LIMITED = """
import resource, sys
from mugraph.onnx import ModelError, load, save
model = load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save(model, model.graph, sys.argv[2])
except ModelError as problem:
    print(problem)
"""


@pytest.mark.parametrize("external", [True, False])
def test_no_room_for_the_output(tmp_path: Path, external: bool) -> None:
    """A limit on the size of files stands in for a full disk: both are an OSError while writing."""
    source = stored_model(tmp_path)
    if not external:
        source = tmp_path / "inline.onnx"
        onnx.save(small_model(), source)
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "out.onnx"
    target.write_bytes(b"the previous output")
    command = [sys.executable, "-c", _LIMITED, str(source), str(target)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True)
    assert str(target) in run.stdout and "cannot be written: File too large; make room" in run.stdout
    assert target.read_bytes() == b"the previous output" and leftovers(folder) == ["out.onnx"]


def test_weights_that_vanish_while_they_are_copied(tmp_path: Path) -> None:
    model = load(stored_model(tmp_path))
    (tmp_path / "w.bin").unlink()
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ModelError, match=r"w\.bin"):
        save(model, model.graph, folder / "out.onnx")
    assert leftovers(folder) == []


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(stored_model(tmp_path))
    folder = tmp_path / "out"
    folder.mkdir()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mugraph.onnx.layout.FileLayout.model_chunks", interrupt)  # the data file is in its place by then
    with pytest.raises(KeyboardInterrupt):
        save(model, model.graph, folder / "out.onnx")
    assert leftovers(folder) == []


def test_bytes_of_a_model_with_external_data(tmp_path: Path) -> None:
    model = load(stored_model(tmp_path))
    with pytest.raises(ModelError, match="write it to a file"):
        to_bytes(model, model.graph)


# Nodes that onnx's checker accepts and that make no sense all the same

INT64 = TensorProto.INT64


@pytest.mark.parametrize(
    ("node", "constants", "reason"),
    [
        (helper.make_node("Split", ["x"], ["y"], num_outputs=0), {}, "ZeroDivisionError"),
        (helper.make_node("Slice", ["x", "a", "b", "c", "d"], ["y"]), {"a": [0], "b": [1], "c": [0], "d": [0]}, "ValueError"),
        (helper.make_node("Slice", ["x", "a", "b"], ["y"]), {"a": [0, 1], "b": [1]}, "ValueError"),
        (
            helper.make_node("ConstantOfShape", ["a"], ["y"], value=helper.make_tensor("", FLOAT, [2], [1.0, 2.0])),
            {"a": [5]},
            "ValueError",
        ),
        (helper.make_node("Cast", ["x"], ["y"], to=99), {}, "ValueError: 99"),
        (helper.make_node("Gather", ["a", "b"], ["y"]), {"a": [6, 1], "b": [9, 0]}, "NoValue: an index outside of a"),
    ],
    ids=["parts", "step", "lengths", "value", "type", "index"],
)
def test_nodes_that_make_no_sense_are_opaque(node: onnx.NodeProto, constants: dict[str, list[int]], reason: str) -> None:
    shape = [None] * (1 if node.op_type in ("Gather", "ConstantOfShape") else 2)
    graph = helper.make_graph(
        [node],
        "malformed",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", INT64 if node.op_type == "Gather" else FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array, np.int64), name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = load(proto)
    assert model.opaque[0].startswith(f"malformed: {reason}")
    assert ModelProto.FromString(to_bytes(model, model.graph)) == proto


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Gather <axis: int = 0> (size, seven) y = Expand(x, a)", "malformed: NoValue"),
        ("a = Div(size, zeros) y = Expand(x, a)", "Expand with computed shape"),
        ("a = Squeeze(size, seven) y = Expand(x, a)", "axis 7 is outside"),
        ("a = Mul(size, large) b = Mul(a, large) y = Expand(x, b)", "Expand with computed shape"),
        ("a = Cast <to: int = 99> (size) y = Expand(x, a)", "malformed: ValueError"),
        ("a = Sub(size, seven) y = Reshape(x, a)", "may be negative"),
        ("y = Range(none, zero, zero)", "malformed: IndexError"),
        ("y = Range(zero, seven, zero)", "Range from 0 by 0"),
        ("y = CumSum(x, none)", "malformed: IndexError"),
        ("y = CumSum(x, seven)", "axis 7 is outside"),
        ("y = Trilu(x, none)", "malformed: IndexError"),
        ("y = GatherND(x, zero)", "GatherND of float[n,s]"),
        ("y = Slice(x, size, none)", "malformed: ValueError"),
    ],
)
def test_shape_arithmetic_that_makes_no_sense_is_opaque(body: str, reason: str) -> None:
    constants = {"zero": 0, "seven": [7], "zeros": [0, 0], "large": [2**40, 2**40], "none": np.zeros(0, np.int64)}
    text = f"g (float[n,s] x) => (float[a,b] y) {{ size = Shape(x) {body} }}"
    proto = parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    assert any(reason in why for why in load(proto).opaque.values()), load(proto).opaque


@pytest.mark.parametrize("second", ["", "ai.onnx"])
def test_operators_are_imported_at_one_version(second: str) -> None:
    """onnxruntime takes the last, onnx.proto the highest, and Softmax is another function from version 13 on."""
    proto = small_model(12)
    proto.opset_import.append(helper.make_opsetid(second, 12))
    load(proto)
    proto.opset_import.append(helper.make_opsetid(second, 13))
    refused(proto, "imports the operators of ai.onnx at versions 12 and 13", "leave one of them")
    body = helper.make_node("Neg", ["a"], ["b"])
    imports = [helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("com.microsoft", 2)]
    proto = small_model(12)
    proto.functions.append(helper.make_function("f", "f", ["a"], ["b"], [body], imports))
    refused(proto, "imports the operators of com.microsoft at versions 1 and 2")


SHADOWED = """<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {w} {{
    t = Mul(x, w) s = ReduceSum<keepdims = 0>(x) b = Greater(s, zero)
    o = If(b) <then_branch = yes () => (float[2] p) <float[2] w = {{3, 3}}> {{ p = Mul(x, w) }},
               else_branch = no () => (float[2] q) {{ q = Mul(x, {other}) }}>
    y = Add(o, t) }}"""


def test_an_initializer_of_a_branch_is_not_mistaken_for_what_the_other_one_reads() -> None:
    """onnxruntime feeds both branches the outer value, so that the model is another one as soon as it has a name of its own."""
    two, three = (f"<float zero = {{0}}, float[2] w = {{{number}}}>" for number in ("2, 2", "3, 3"))
    model = parse_model(SHADOWED.format(w=two, other="w"))
    onnx.checker.check_model(model)
    (given,) = new_session(model.SerializeToString()).run(None, {"x": np.ones(2, np.float32)})
    assert given.tolist() == [4, 4], "2 for both"
    within = onnx.helper.make_model(  # the If within a branch
        onnx.helper.make_graph(
            [onnx.helper.make_node("If", ["c"], ["z"], then_branch=_branch(model.graph), else_branch=_branch(model.graph))],
            "outer",
            [onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []), model.graph.input[0]],
            [onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [2])],
        ),
        opset_imports=model.opset_import,
        ir_version=10,
    )
    for bad in (model, within):
        with pytest.raises(ModelError, match="initializer 'w' of a body of If 'o' has the name of a value that another body"):
            load(bad)
    for text in (SHADOWED.format(w=three, other="w"), SHADOWED.format(w=two, other="t")):
        source = parse_model(text)
        feed = {"x": np.ones(2, np.float32)}
        wanted, found = (new_session(m.SerializeToString()).run(None, feed) for m in (source, load(source).proto))
        assert np.array_equal(wanted, found)


def _branch(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A graph without inputs, which it reads from around it."""
    branch = onnx.GraphProto()
    branch.CopyFrom(graph)
    del branch.input[:]
    return branch


LOOPING = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64 n) => (float[2] y) <{constants}> {{
    {before}
    z = Loop({most}, {first}, x) <body = b (int64 i, bool c, float[2] v) => (bool more, float[2] w) {{ {body} }}>
    {after} }}"""


@pytest.mark.parametrize("most", ["", "many", "large"])
@pytest.mark.parametrize("first", ["", "yes", "true"])
@pytest.mark.parametrize("body", ["more = Identity(c) w = Identity(v)", "k = Identity(yes) more = Identity(k) w = Exp(v)"])
def test_a_loop_that_no_run_leaves_is_refused(most: str, first: str, body: str) -> None:
    """onnxruntime cannot be stopped in the first one."""
    constants = f"bool yes = {{1}}, int64 many = {{{1 << 62}}}, int64 few = {{3}}, bool no = {{0}}"
    before = "large = Identity(many) true = Identity(yes)"
    parts = {"constants": constants, "before": before, "most": most, "first": first, "body": body, "after": "y = Neg(z)"}
    with pytest.raises(ModelError, match="Loop 'z' never ends once it begins"):
        load(parse_model(LOOPING.format(**parts)))
    changes = [{"most": "few"}, {"most": "n"}, {"first": "no"}, {"body": "more = Not(c) w = Exp(v)"}, {"after": "y = Neg(x)"}]
    for change in changes:
        assert load(parse_model(LOOPING.format(**{**parts, **change}))).graph.outputs


@pytest.mark.parametrize("most", ["", "many"])
@pytest.mark.parametrize("dead", ["", "dead = Exp(v)", "dead = Constant<value_float = 1.0>()"])
@pytest.mark.parametrize("is_bare", [False, True], ids=["identities", "bare"])
def test_a_loop_that_computes_nothing_and_is_not_left_is_refused(most: str, dead: str, is_bare: bool) -> None:
    """Whether a run enters it depends on an input; onnxruntime cannot be stopped in it then, whatever the budget is."""
    constants, before = (
        f"int64 many = {{{1 << 62}}}, int64 few = {{3}}",
        "largest = ReduceMax<keepdims = 0>(x) some = Cast<to = 9>(largest)",
    )
    parts = {"constants": constants, "before": before, "most": most, "first": "some", "after": "y = Neg(z)"}
    proto = parse_model(LOOPING.format(body=f"{dead} more = Identity(c) w = Identity(v)", **parts))
    if is_bare:
        body = next(node for node in proto.graph.node if node.op_type == "Loop").attribute[0].g
        del body.node[-2:]
        body.output[0].name, body.output[1].name = "c", "v"
    with pytest.raises(ModelError, match="Loop 'z' never ends once it begins"):
        load(proto)
    identities = "more = Identity(c) w = Identity(v)"
    for change in ({"most": "few"}, {"body": "more = Identity(c) w = Exp(v)"}, {"body": "more = Not(c) w = Identity(v)"}):
        assert load(parse_model(LOOPING.format(**{"body": identities, **parts, **change}))).graph.outputs


WITHIN = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c, int64 n) => (float[2] y) <{constants}> {{
    largest = ReduceMax<keepdims = 0>(x) some = Cast<to = 9>(largest)
    y = If({condition}) <then_branch = t () => (float[2] u) {{ {then} }},
        else_branch = e () => (float[2] v) {{ v = Neg(x) }}> }}"""
LOOP = """z = Loop({most}, {first}, x) <body = b (int64 i, bool d, float[2] w) => (bool more, float[2] k)
    {{ more = Identity(d) k = {value} }}> {after}"""
DEEPER = """u = If(some) <then_branch = i () => (float[2] p) {{ {inner} p = Neg(z) }},
    else_branch = j () => (float[2] q) {{ q = Abs(x) }}>"""


@pytest.mark.parametrize("first", ["", "yes", "some"])
@pytest.mark.parametrize("is_deeper", [False, True])
def test_a_loop_that_computes_nothing_is_refused_in_a_body_too(first: str, is_deeper: bool) -> None:
    constants = f"bool yes = {{1}}, bool no = {{0}}, int64 few = {{3}}, int64 many = {{{1 << 62}}}"
    parts = {"most": "many", "first": first, "value": "Identity(w)", "after": "" if is_deeper else "u = Neg(z)"}

    def within(condition: str = "c", **changes: str) -> onnx.ModelProto:
        loop = LOOP.format(**{**parts, **changes})
        then = DEEPER.format(inner=loop) if is_deeper else loop
        return parse_model(WITHIN.format(constants=constants, condition=condition, then=then))

    for condition in ("c", "yes"):
        with pytest.raises(ModelError, match="Loop 'z' never ends once it begins, in a body that some inputs run"):
            load(within(condition))
    changes = [{"most": "few"}, {"most": "n"}, {"first": "no"}, {"value": "Exp(w)"}]
    changes += [] if is_deeper else [{"after": "u = Neg(x)"}]
    for change in changes:
        assert load(within(**change)).graph.outputs
    assert load(within("no")).graph.outputs, "it is never run"


@pytest.mark.parametrize(
    ("ends", "body", "name"),
    [
        ("(float[{ones}] x) => (float[{ones}] y)", "y = Relu(x)", "x"),
        ("(float[1] x) => (float[{ones}] y) <int64[{rank}] s = {{{ones}}}>", "y = Reshape(x, s)", "y"),
        ("(float[1] x) => (float[{ones}] y) <float[{ones}] w = {{1}}>", "y = Add(x, w)", "w"),
        (
            "(float[1] x, bool c) => (float[1] y) <int64[{rank}] s = {{{ones}}}, int64[1] t = {{1}}>",
            "y = If<then_branch = b () => (float[1] u) {{ v = Reshape(x, s) u = Reshape(v, t) }}, "
            "else_branch = b () => (float[1] w) {{ w = Neg(x) }}>(c)",
            "v",
        ),
    ],
)
def test_more_dimensions_than_arrays_have_are_refused(ends: str, body: str, name: str) -> None:
    """NumPy broadcasts no more than 32; no runtime computes with nearly as many in earnest."""
    for rank in (24, 25, 33, 65):
        given = {"rank": rank, "ones": ",".join(["1"] * rank)}
        text = f'<ir_version: 10, opset_import: ["" : 21]> g {ends} {{{{ {body} }}}}'.format(**given)
        if rank == 24:
            load(parse_model(text))
        else:
            refused(parse_model(text), f"'{name}' has {rank} dimensions", "leave out dimensions of 1")
