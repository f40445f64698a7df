"""Models that compute another thing and look alike: none is said to be equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from modeldiff.compare import Equality, ModelComparison, compare_models
from modeldiff.distance import distance, is_within
from modeldiff.faults import ModelDifference
from rewriter.reference import InputError
from tests.support.compared import compared, text_of, written
from tests.support.fuzzing import attack
from tools.fuzz.diffs import PAIRS, drawn, small_model


def differences(comparison: ModelComparison) -> list[ModelDifference]:
    return [difference for region in comparison.regions for difference in region.differences]


def assert_like_itself_alone(tmp_path: Path, first: ModelProto, second: ModelProto) -> None:
    """Each is itself, and what differs is said of the one node that differs."""
    for either in (first, second):
        comparison = compared(tmp_path, either, either)
        assert comparison.verdict is Equality.PROVED and not comparison.regions
    comparison = compared(tmp_path, first, second)
    assert comparison.verdict is Equality.DIFFERENT and len(differences(comparison)) == 1, text_of(comparison)


def test_an_operator_of_another_version_is_another(tmp_path: Path) -> None:
    text = "(float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }"
    assert_like_itself_alone(tmp_path, small_model(text, 11), small_model(text, 13))
    assert not compared(tmp_path, small_model(text, 13), small_model(text, 17)).regions  # which say the same


@pytest.mark.parametrize("called", ["y = local.f(x)", "n = Neg(x) c = ReduceMax<keepdims = 0>(n) b = Cast<to = 9>(c) {if}"])
def test_a_function_is_what_it_says(called: str, tmp_path: Path) -> None:
    branches = """y = If(b) <then_branch = t () => (float[2,3] u) { u = local.f(x) },
        else_branch = e () => (float[2,3] v) { v = local.f(n) }>"""
    text = f"(float[2,3] x) => (float[2,3] y) {{ {called.replace('{if}', branches)} }}"
    function = '<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = %s(a) }'
    assert_like_itself_alone(tmp_path, small_model(text + function % "Softsign"), small_model(text + function % "Hardmax"))


def recurrent(inputs: list[str], outputs: list[str]) -> ModelProto:
    node = helper.make_node("LSTM", inputs, outputs, hidden_size=4)
    shapes = {"x": [5, 2, 3], "h": [1, 2, 4]}
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    result = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 4])]
    weights = [numpy_helper.from_array(drawn(1, 16, size), name) for name, size in (("w", 3), ("r", 4))]
    graph = helper.make_graph([node], "g", given, result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_operands_and_results_have_places(tmp_path: Path) -> None:
    hidden = recurrent(["x", "w", "r", "", "", "h"], ["", "y"])
    assert_like_itself_alone(tmp_path, hidden, recurrent(["x", "w", "r", "", "", "", "h"], ["", "y"]))
    assert_like_itself_alone(tmp_path, hidden, recurrent(["x", "w", "r", "", "", "h"], ["", "", "y"]))


def test_an_operand_that_is_read_twice_counts_twice(tmp_path: Path) -> None:
    text = "(float[4] a, float[4] b) => (float[4] y) {{ y = Mean({}) }}"
    assert_like_itself_alone(tmp_path, small_model(text.format("a, b, b")), small_model(text.format("a, a, b")))


def test_bodies_hold_what_is_stored_elsewhere(tmp_path: Path) -> None:
    """Two files that say the same, each beside data of its own."""
    paths = []
    for name, tensor in (("a", drawn(2, 3)), ("b", drawn(2, 3, seed=1))):
        text = """(float[2,3] x, int64[1] n) => (float[2,3] y) { c = Cast<to = 9>(n)
            y = If(c) <then_branch = t () => (float[2,3] u) { u = Mul(x, w) },
            else_branch = e () => (float[2,3] v) { v = Neg(x) }> }"""
        proto = small_model(text, w=tensor)
        stored = onnx.TensorProto.FromString(proto.graph.initializer.pop().SerializeToString())
        set_external_data(stored, "w.bin", 0, tensor.nbytes)
        stored.ClearField("raw_data")
        stored.data_location = onnx.TensorProto.EXTERNAL
        branches = [a for node in proto.graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
        branches[0].g.initializer.append(stored)
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.bin").write_bytes(tensor.tobytes())
        paths.append(tmp_path / name / "model.onnx")
        onnx.save(proto, paths[-1])
    assert compare_models(paths[0], paths[0]).verdict is Equality.PROVED
    assert compare_models(*paths).verdict in (Equality.DIFFERENT, Equality.UNDECIDED)


@pytest.mark.parametrize("draw", ["RandomNormalLike(x)", "RandomUniform<shape = [2,3]>()", "Dropout(x, half, yes)"])
def test_what_is_drawn_twice_is_not_the_same(draw: str, tmp_path: Path) -> None:
    ends, tensors = "(float[2,3] x) => (float[2,3] y)", {"half": np.float32(0.5), "yes": np.bool_(True)}
    twice = small_model(f"{ends} {{ a = {draw} b = {draw} s = Sub(a, b) y = Add(s, x) }}", **tensors)
    once = small_model(f"{ends} {{ a = {draw} s = Sub(a, a) y = Add(s, x) }}", **tensors)
    assert compared(tmp_path, twice, twice).verdict is Equality.PROVED
    assert compared(tmp_path, twice, once).verdict is Equality.UNDECIDED


@pytest.mark.parametrize("rewritten", [False, True])
def test_sizes_that_a_run_tells_are_those_of_their_tensors(rewritten: bool, tmp_path: Path) -> None:
    """Two models call the count of other tensors by one name."""

    def counted(order: str, which: str, sum_: str) -> ModelProto:
        text = f"""(float[9] a, float[9] b) => (float[M] y) {{ p = Relu(a) q = Relu(b) {order} s = Shape({which})
            i = Gather(s, one) r = Unsqueeze(i, zero) e = Expand(c, r) y = {sum_} }}"""
        return small_model(text, c=np.float32([3]), one=1, zero=[0], two=np.float32(2))

    orders = ("n = NonZero(p) o = NonZero(q)", "o = NonZero(q) n = NonZero(p)")
    sum_ = "Mul(e, two)" if rewritten else "Add(e, e)"
    before = counted(orders[0], "n", "Add(e, e)")
    for order in orders:
        comparison = compared(tmp_path, before, counted(order, "n", sum_))
        assert comparison.verdict is Equality.PROVED and bool(comparison.regions) is rewritten, text_of(comparison)
        assert compared(tmp_path, before, counted(order, "o", sum_)).verdict is Equality.DIFFERENT


def test_a_default_is_part_of_a_model(tmp_path: Path) -> None:
    text = "(float[2,3] x, float[3] b) => (float[2,3] y) { y = Add(x, b) }"
    with_default = small_model(text, b=np.ones(3, np.float32))
    assert_like_itself_alone(tmp_path, with_default, small_model(text, b=np.full(3, 2, np.float32)))
    (difference,) = differences(compared(tmp_path, small_model(text), with_default))
    assert "may be left out of one model alone" in difference.words
    with pytest.raises(InputError, match="input b must be fed, and has a default in"):
        compared(tmp_path, with_default, small_model(text))


def test_no_tolerance_makes_a_constant_another(tmp_path: Path) -> None:
    ends, weights = "(float[2,4] x) => (float[2,4] y)", drawn(4, 4)
    before = small_model(f"{ends} {{ v = Exp(w) y = MatMul(x, v) }}", w=weights)
    for factor, verdict in ((1.0, Equality.PROVED), (1.003, Equality.TESTED)):
        folded = small_model(f"{ends} {{ y = MatMul(x, v) }}", v=np.exp(weights) * np.float32(factor))
        assert compared(tmp_path, before, folded, tolerance=0.01).verdict is verdict


@pytest.mark.parametrize(
    "before", ["v = Mul(w, two) y = MatMul(x, v)", "p = MatMul(x, w) y = Mul(p, two)", "y = MatMul(x, twice)"]
)
@pytest.mark.parametrize(("size", "verdict"), [(1e-3, Equality.DIFFERENT), (1e-9, Equality.TESTED)])
def test_a_small_column_is_a_column(before: str, size: float, verdict: Equality, tmp_path: Path) -> None:
    """One column of a weight is far smaller than the others, and another one in the second model."""
    ends, weights = "(float[2,16] x) => (float[2,16] y)", drawn(16, 16)
    weights[:, 0] *= np.float32(size)
    other = weights.copy()
    other[:, 0] = drawn(16, seed=1) * np.float32(size)
    tensors = {"twice": weights * 2} if "twice" in before else {"w": weights, "two": np.float32(2)}
    for after, wanted in ((weights, Equality.PROVED), (other, verdict)):
        text = f"{ends} {{ y = MatMul(x, v) }}"
        assert (
            compared(tmp_path, small_model(f"{ends} {{ {before} }}", **tensors), small_model(text, v=after * 2)).verdict is wanted
        )


def test_the_distance_sees_small_rows_and_no_noise_of_what_cancels() -> None:
    rows = drawn(32, 32).astype(np.float64)
    rows[3] *= 1e-5
    wrong = rows.copy()
    wrong[3] *= 1.01
    assert not is_within(distance(wrong, rows), 1e-6)
    rows[3] = 1e-17
    wrong = rows.copy()
    wrong[3] = 3e-17
    assert is_within(distance(wrong, rows), 1e-10)


@pytest.mark.parametrize("narrow", ["10", "16"])
def test_a_rounding_is_no_identity(narrow: str, tmp_path: Path) -> None:
    ends = "(float[2,8] x) => (float[2,8] y)"
    plain = small_model(f"{ends} {{ r = Relu(x) y = Neg(r) }}")
    rounded = small_model(f"{ends} {{ r = Relu(x) c = Cast<to = {narrow}>(r) f = Cast<to = 1>(c) y = Neg(f) }}")
    assert_like_itself_alone(tmp_path, plain, rounded)
    comparison = compared(tmp_path, rounded, plain)  # which is equal as far as the rounding goes, and not proved
    assert comparison.verdict is Equality.TESTED and "rounds to" in text_of(comparison)
    moved = small_model(f"{ends} {{ r = Relu(x) n = Neg(r) c = Cast<to = {narrow}>(n) y = Cast<to = 1>(c) }}")
    assert compared(tmp_path, rounded, moved).verdict is Equality.PROVED


def test_a_wider_type_rounds_nothing(tmp_path: Path) -> None:
    ends = "(float[2,8] x) => (float[2,8] y)"
    paths = [
        written(tmp_path / f"{place}.onnx", f"{ends} {{ {nodes} }}")
        for place, nodes in enumerate(("y = Relu(x)", "r = Relu(x) c = Cast<to = 11>(r) y = Cast<to = 1>(c)"))
    ]
    assert compare_models(*paths).verdict is Equality.PROVED
    assert compare_models(*reversed(paths)).verdict is Equality.PROVED


def test_an_output_that_is_another_value_is_no_proof(tmp_path: Path) -> None:
    """Every node of one model is a node of the other, and one output is taken before what bounds it, which no input shows."""
    ends = "(float[4,8] x) => (float[4,8] y, float[4,8] z, float[4,8] w)"
    before = small_model(f"{ends} {{ y = Tanh(x) z = Min(y, two) w = Neg(z) }}", two=np.float32(2))
    after = small_model(f"{ends} {{ y = Tanh(x) m = Min(y, two) w = Neg(m) z = Identity(y) }}", two=np.float32(2))
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.TESTED and "'y' equals 'z'" in text_of(comparison)


@pytest.mark.usefixtures("own_cache")
def test_no_change_of_equal_models_is_said_to_be_equal() -> None:
    done = attack("diffs", "--count", "28", "--seed", "3")
    assert done.returncode == 0, done.stdout
    assert "28 of 28 cases" in done.stdout and "of another function: different" in done.stdout


@pytest.mark.parametrize("name", PAIRS)
def test_models_that_are_attacked_are_equal(name: str, tmp_path: Path) -> None:
    assert compared(tmp_path, *PAIRS[name]()).verdict in (Equality.PROVED, Equality.TESTED)
