"""Two models compared: what corresponds is found, what is equal is proved or tested, and a planted fault is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, numpy_helper
from onnx.parser import parse_model

from modeldiff.compare import Equality, ModelComparison, compare_models
from modeldiff.distance import distance
from rewriter.reference import InputError
from tests.support.compared import compared as compared_models
from tests.support.compared import text_of, written
from tests.support.runs import block, lora


def compared(tmp_path: Path, before: str, after: str, **tensors: np.ndarray) -> ModelComparison:
    return compare_models(written(tmp_path / "a.onnx", before, **tensors), written(tmp_path / "b.onnx", after, **tensors))


def named(comparison: ModelComparison) -> list[str]:
    """The values at which two models are said to begin to differ."""
    after = comparison.pairing.after
    return [after.name(difference.after) for region in comparison.regions for difference in region.differences]


def test_a_model_is_itself(tmp_path: Path) -> None:
    path = lora(tmp_path / "lora.onnx")
    comparison = compare_models(path, path)
    assert comparison.verdict is Equality.PROVED and not comparison.regions
    assert len(comparison.pairing.kept) == len(comparison.pairing.after.nodes) == 5


def test_names_and_order_play_no_part(tmp_path: Path) -> None:
    before = "(float[4,8] x) => (float[4,8] y) { a = Relu(x) b = Tanh(x) y = Add(a, b) }"
    after = "(float[4,8] x) => (float[4,8] y) { q = Tanh(x) p = Relu(x) y = Add(p, q) }"
    comparison = compared(tmp_path, before, after)
    assert comparison.verdict is Equality.PROVED and not comparison.regions


def test_models_whose_results_are_far_apart_are_not_called_equal(tmp_path: Path) -> None:
    """T5's buckets of distances with a logarithm that is wrong by eight roundings: some distance falls into another bucket."""
    text = """(float[N,16] x) => (float[S,T,4] y) {
        size = Shape(x) n = Gather(size, zero)
        places = Range(zero, n, one)
        rows = Unsqueeze(places, last) columns = Unsqueeze(places, first) apart = Sub(rows, columns) distance = Abs(apart)
        float = Cast<to: int = 1>(distance) part = Div(float, eighth) log = Log(part)
        share = Div(log, whole) scaled = Mul(share, eighth) place = Cast<to: int = 7>(scaled)
        far = Add(place, eight) bounded = Min(far, most)
        is_near = Less(distance, eight) bucket = Where(is_near, distance, bounded) e = Gather(table, bucket) y = Add(e, half) }"""
    numbers = {"zero": 0, "one": 1, "last": [1], "first": [0], "eight": 8, "most": 15}
    tensors = {name: np.asarray(number) for name, number in numbers.items()}
    tensors |= {
        "eighth": np.float32(8),
        "half": np.float32(0.5),
        "table": np.random.default_rng(5).standard_normal((16, 4)).astype("f4"),
    }
    paths = [
        written(tmp_path / f"{place}.onnx", text, whole=np.float32(np.log(16) * factor), **tensors)
        for place, factor in enumerate((1, 1 + 1e-6))
    ]
    comparison = compare_models(*paths, {"x": (40, 16)})
    assert comparison.verdict is Equality.UNDECIDED
    assert any("further apart than rounding explains" in note for note in comparison.notes)


@pytest.mark.parametrize(
    "before, after",
    [
        ("y = Add(x, z)", "y = Add(z, x)"),
        ("a = Relu(x) y = Relu(a)", "y = Relu(x)"),
        ("a = Add(x, z) b = MatMul(a, W) y = Relu(b)", "a = MatMul(x, W) b = MatMul(z, W) c = Add(a, b) y = Relu(c)"),
        ("a = Neg(x) b = Neg(a) y = Tanh(b)", "y = Tanh(x)"),
    ],
)
def test_what_rules_say_is_proved(before: str, after: str, tmp_path: Path) -> None:
    ends = "(float[4,8] x, float[4,8] z) => (float[4,8] y)"
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    comparison = compared(tmp_path, f"{ends} {{ {before} }}", f"{ends} {{ {after} }}", W=weights)
    assert comparison.verdict is Equality.PROVED, text_of(comparison)
    (region,) = comparison.regions
    (known,) = [known for _, known in region.claims]
    assert known.rule is not None and known.rule.certificate.instances


def test_what_is_within_functions_is_compared(tmp_path: Path) -> None:
    """It is by a rule that two Transposes are none, in a function or where it was called; as wholes calls can be tested alone."""
    function = '<domain: "local", opset_import: ["" : 17]> f (a) => (d) { b = Transpose<perm = [1,0]>(a) c = Exp(b) d = %s(c) }'
    called = "g (float[4,8] x) => (float[4,8] y) { t = local.f(x) y = Transpose<perm = [1,0]>(t) }"
    written_out = "g (float[4,8] x) => (float[4,8] y) { e = Exp(x) y = Neg(e) }"
    head = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]>'
    after = parse_model(f"{head} {written_out}")
    for operator, verdict in (("Neg", Equality.PROVED), ("Abs", Equality.DIFFERENT)):
        comparison = compared_models(tmp_path, parse_model(f"{head} {called} {function % operator}"), after)
        assert comparison.verdict is verdict, text_of(comparison)


def test_a_proof_needs_its_guards(tmp_path: Path) -> None:
    """Sqrt(x)·Sqrt(x) is x where x is not negative: on an input nobody knows that, behind Relu it is known."""
    ends = "(float[4,8] x) => (float[4,8] y)"
    unknown = compared(tmp_path, f"{ends} {{ a = Abs(x) y = Tanh(a) }}", f"{ends} {{ y = Tanh(x) }}")
    assert unknown.verdict is Equality.DIFFERENT
    shown = compared(tmp_path, f"{ends} {{ p = Relu(x) a = Abs(p) y = Tanh(a) }}", f"{ends} {{ p = Relu(x) y = Tanh(p) }}")
    assert shown.verdict in (Equality.PROVED, Equality.TESTED)


def test_what_constants_alone_decide_is_computed(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    one, other = (generator.standard_normal((4, 8)).astype(np.float32) for _ in range(2))
    ends = "(float[4,8] x) => (float[4,8] y)"
    before = written(tmp_path / "a.onnx", f"{ends} {{ c = Mul(a, b) y = Add(x, c) }}", a=one, b=other)
    after = written(tmp_path / "b.onnx", f"{ends} {{ y = Add(x, d) }}", d=one * other)
    comparison = compare_models(before, after)
    assert comparison.verdict is Equality.PROVED and "computed" in text_of(comparison)
    wrong = written(tmp_path / "c.onnx", f"{ends} {{ y = Add(x, d) }}", d=one * other + np.float32(0.01))
    assert compare_models(before, wrong).verdict is Equality.DIFFERENT


def test_what_has_no_proof_is_tested(tmp_path: Path) -> None:
    """That squares of a sine and a cosine add up to 1 is no property of operators here."""
    ends = "(float[4,8] x) => (float[4,8] y)"
    before = f"{ends} {{ s = Sin(x) q = Mul(s, s) d = Sub(one, q) y = Tanh(d) }}"
    comparison = compared(tmp_path, before, f"{ends} {{ c = Cos(x) d = Mul(c, c) y = Tanh(d) }}", one=np.float32(1))
    assert comparison.verdict is Equality.TESTED
    assert [output.verdict for output in comparison.outputs] == [Equality.TESTED]


def swapped(node: NodeProto) -> None:
    node.op_type = {"Mul": "Add", "Add": "Sub", "Sqrt": "Abs", "Cos": "Sin", "Neg": "Abs", "Sigmoid": "Tanh"}[node.op_type]


def another_axis(node: NodeProto) -> None:
    next(a for a in node.attribute if a.name == "axis").i = -2


def other_way_round(node: NodeProto) -> None:
    node.input[:] = [node.input[1], node.input[0]]


FAULTS: list[tuple[str, Callable[[NodeProto], None]]] = [
    ("add_2", swapped),  # adds 1e-6 to a mean square
    ("sqrt_3", swapped),  # which is the operand itself then
    ("mul_10", swapped),
    ("cos_28", swapped),  # which the model has, too, of the same operand
    ("neg_35", swapped),
    ("mul_49", swapped),  # among scores that a mask of -3e38 hides in part
    ("softmax_56", another_axis),
    ("sigmoid_80", swapped),
    ("concat_36", other_way_round),
    ("where_58", lambda node: node.input.__setitem__(2, node.input[1])),
]


@pytest.mark.parametrize("name, plant", FAULTS, ids=[name for name, _ in FAULTS])
def test_a_planted_fault_is_named(name: str, plant: Callable[[NodeProto], None], tmp_path: Path) -> None:
    source = block(tmp_path / "block.onnx")
    model = onnx.load(source)
    plant(next(node for node in model.graph.node if name in node.output))
    onnx.save(model, tmp_path / "faulty.onnx")
    comparison = compare_models(source, tmp_path / "faulty.onnx", seconds=5)
    assert comparison.verdict is Equality.DIFFERENT
    assert named(comparison) == [name], text_of(comparison)
    assert len(comparison.pairing.kept) == len(comparison.pairing.before.nodes) - 1


def test_numbers_of_a_definition_may_be_rounded_where_it_is_spelled(tmp_path: Path) -> None:
    before = """(float[4,8] x) => (float[4,8] y) { c = Mul(x, third) s = Mul(c, x) q = Mul(s, x) i = Add(x, q) m = Mul(i, root)
        t = Tanh(m) p = Add(t, one) h = Mul(x, half) y = Mul(h, p) }"""
    after = "(float[4,8] x) => (float[4,8] y) { y = com.microsoft.FastGelu(x) }"
    numbers = {"third": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1.0, "half": 0.5}
    tensors = {name: np.asarray(number, np.float32) for name, number in numbers.items()}
    assert compared(tmp_path, before, after, **tensors).verdict in (Equality.PROVED, Equality.TESTED)
    wrong = {**tensors, "third": np.asarray(0.044735, np.float32)}
    assert compared(tmp_path, before, after, **wrong).verdict is Equality.DIFFERENT


def test_integers_that_rounding_decides_are_those_of_the_models_types(tmp_path: Path) -> None:
    before = "(float[4,8] x) => (float[4,8] y) { p = Mul(c, ten) b = Cast<to = 7>(p) g = Cast<to = 1>(b) y = Add(x, g) }"
    after = "(float[4,8] x) => (float[4,8] y) { y = Add(x, g) }"
    constants = {"c": np.float32([0.7]), "ten": np.float32([10.0])}  # 7 in float32, and less than 7 in float64
    for folded, verdict in ((7.0, Equality.PROVED), (6.0, Equality.DIFFERENT)):
        a = written(tmp_path / "a.onnx", before, **constants)
        b = written(tmp_path / "b.onnx", after, g=np.float32([folded]))
        assert compare_models(a, b).verdict is verdict


def test_what_is_quantised_within_a_product_rounds_as_it_does_before_one(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tensors = {
        "w": generator.normal(size=(64, 64)).astype(np.float32),
        "v": generator.integers(-127, 127, (64, 64)).astype(np.int8),
        "t": np.float32(0.01),
    }
    ends = "(float[512,64] x) => (float[512,64] y)"
    before = f"""{ends} {{ m = MatMul(x, w) h = Tanh(m) q, s, z = DynamicQuantizeLinear(h) p = MatMulInteger(q, v, z)
        f = Cast<to = 1>(p) u = Mul(s, t) y = Mul(f, u) }}"""
    for operand, verdict in (("h", Equality.TESTED), ("m", Equality.DIFFERENT)):
        after = f"{ends} {{ m = MatMul(x, w) h = Tanh(m) y = com.microsoft.DynamicQuantizeMatMul({operand}, v, t) }}"
        assert compared(tmp_path, before, after, **tensors).verdict is verdict


def test_what_cannot_be_evaluated_stands_for_what_is_gone(tmp_path: Path) -> None:
    before = "(float[2,3,4] x) => (float[2,3,4] y) { a = MatMul(x, w) b = Relu(a) y = Tanh(b) }"
    after = "(float[2,3,4] x) => (float[2,3,4] y) { a = Gemm(x, w) b = Relu(a) y = Tanh(b) }"  # of a tensor of rank 3: none
    comparison = compared(tmp_path, before, after, w=np.eye(4, dtype=np.float32))
    (region,) = comparison.regions
    assert comparison.verdict is region.verdict is Equality.UNDECIDED and region.reasons
    assert [len(region.before), len(region.after)] == [3, 3]


def test_what_follows_a_value_of_unknown_rank_has_its_types(tmp_path: Path) -> None:
    ends = "(float[n,4,8] x) => (float[k] y)"  # the rank of what a Squeeze leaves depends on n
    weights = {"w": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32), "flat": np.int64([-1])}
    before = f"{ends} {{ s = Squeeze(x) m = MatMul(s, w) y = Reshape(m, flat) }}"
    for spelled, verdict in (("m = MatMul(a, w)", Equality.TESTED), ("b = Abs(a) m = MatMul(b, w)", Equality.DIFFERENT)):
        after = f"{ends} {{ s = Squeeze(x) c = Neg(s) a = Neg(c) {spelled} y = Reshape(m, flat) }}"
        comparison = compared(tmp_path, before, after, **weights)
        assert [reason for region in comparison.regions for reason in region.reasons] == []
        assert comparison.verdict is verdict


def test_a_fault_before_a_fusion_is_named_where_it_is(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}
    before = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, w) s = Sigmoid(a) y = Mul(a, s) }"
    after = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, v) y = com.microsoft.QuickGelu<alpha = 1.0>(a) }"
    comparison = compared(tmp_path, before, after, **weights, v=np.where(np.eye(8) > 0, weights["w"] + 0.1, weights["w"]))
    assert comparison.verdict is Equality.DIFFERENT and named(comparison) == ["a"]


def test_a_changed_weight_is_named_with_its_entry(tmp_path: Path) -> None:
    source = lora(tmp_path / "lora.onnx")
    model = onnx.load(source)
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    array = numpy_helper.to_array(tensor).copy()
    array[3, 5] += 0.25
    tensor.CopyFrom(numpy_helper.from_array(array, "W"))
    onnx.save(model, tmp_path / "faulty.onnx")
    comparison = compare_models(source, tmp_path / "faulty.onnx")
    assert named(comparison) == ["base"]
    assert "operand 2 ('W') has other numbers: [3, 5] is" in text_of(comparison)


def test_two_faults_are_found_beside_a_rewriting(tmp_path: Path) -> None:
    source = block(tmp_path / "block.onnx")
    model = onnx.load(source)
    nodes = {node.output[0]: node for node in model.graph.node}
    swapped(nodes["mul_10"])
    swapped(nodes["sigmoid_80"])
    nodes["add_79"].input[:] = reversed(nodes["add_79"].input)
    onnx.save(model, tmp_path / "faulty.onnx")
    comparison = compare_models(source, tmp_path / "faulty.onnx")
    assert sorted(named(comparison)) == ["mul_10", "sigmoid_80"]
    assert [region.verdict for region in comparison.regions].count(Equality.PROVED) == 1


def test_masks_of_one_pattern_are_not_taken_for_one_another(tmp_path: Path) -> None:
    """Two tensors of few numbers may be equal by chance; a rewriting is no place to exchange them."""
    ends = "(float[4,8] x) => (float[4,8] y)"
    flags = np.zeros((4, 8), np.float32)
    flags[:, :4] = 1
    before = f"{ends} {{ z = Sub(x, x) p = Cos(z) a = Mul(p, f) y = Add(x, a) }}"
    after = f"{ends} {{ y = Add(x, f) }}"
    assert compared(tmp_path, before, after, f=flags).verdict in (Equality.PROVED, Equality.TESTED)


def test_the_distance_sees_beside_huge_numbers() -> None:
    wanted = np.asarray([-3e38, 1.0, 2.0, 0.0, -1.0, 1.5])
    assert distance(wanted, wanted).relative_l2 == 0
    assert distance(wanted + np.asarray([0, 0.01, 0, 0, 0, 0]), wanted).max_over_rms > 1e-3
    assert distance(wanted + np.asarray([0, 0, 0, 1e-13, 0, 0]), wanted).max_over_rms < 1e-12
    assert np.isinf(distance(np.asarray([np.nan, 1.0]), np.asarray([1.0, 1.0])).relative_l2)
    assert distance(np.asarray([np.inf, 1.0]), np.asarray([np.inf, 1.0])).relative_l2 == 0
    assert np.isinf(distance(np.asarray([1, 2]), np.asarray([1, 3])).relative_l2)


def test_models_with_other_ends_cannot_be_compared(tmp_path: Path) -> None:
    one = written(tmp_path / "a.onnx", "(float[4] x) => (float[4] y) { y = Relu(x) }")
    for text in (
        "(float[4] z) => (float[4] y) { y = Relu(z) }",
        "(double[4] x) => (double[4] y) { y = Relu(x) }",
        "(float[4] x) => (float[4] y, float[4] z) { y = Relu(x) z = Abs(x) }",
    ):
        with pytest.raises(InputError):
            compare_models(one, written(tmp_path / "b.onnx", text))


def test_another_shape_is_a_difference(tmp_path: Path) -> None:
    ends = "(float[4,8] x) => (float[m,n] y)"
    comparison = compared(tmp_path, f"{ends} {{ y = Transpose<perm=[1,0]>(x) }}", f"{ends} {{ y = Relu(x) }}")
    assert comparison.verdict is Equality.DIFFERENT and "shape" in text_of(comparison)


def test_a_model_is_not_changed_by_comparing(tmp_path: Path) -> None:
    path = lora(tmp_path / "lora.onnx")
    content = copy.copy(path.read_bytes())
    compare_models(path, path)
    assert path.read_bytes() == content


def test_a_name_of_a_size_means_what_the_model_says(tmp_path: Path) -> None:
    """Both reshape to [N, 1], and N is another axis in each: the same text is another node."""
    text = "(float[{}, {}] x) => (float[p, q] y) {{ s = Shape<start={}, end={}>(x) t = Concat<axis=0>(s, one) y = Expand(c, t) }}"
    tensors = {"one": np.asarray([1], np.int64), "c": np.ones((1, 1), np.float32)}
    before = written(tmp_path / "a.onnx", text.format("N", "M", 0, 1), **tensors)
    after = written(tmp_path / "b.onnx", text.format("M", "N", 1, 2), **tensors)
    comparison = compare_models(before, after, {"x": (2, 3)})
    assert comparison.verdict is Equality.DIFFERENT
