"""Equal parts of a batch are computed once, and whatever looks at others gets all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.ops import Operator
from rewriter.reference import identical, keeps_parts_apart, random_inputs, reference_outputs
from rewriter.reference.repeats import Repeats

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
WHICH = np.array([0, 1, 0, 1, 1, 2])
WHOLE = len(WHICH)

APART = {
    "entry by entry": "a = Exp(x) y = Add(a, x)",
    "beside what all parts have": "a = Mul(x, row) y = Where(truth, a, x)",
    "rows": "a = Softmax<axis = -1>(x) y = LayerNormalization<axis = -1>(a, row, row)",
    "columns": "y = Softmax<axis = 1>(x)",
    "sums": "s = ReduceSum<keepdims = 1>(x, last) t = ReduceMax<keepdims = 0>(x, last) u = Unsqueeze(t, last) y = Add(s, u)",
    "a weight": "y = MatMul(x, weight)",
    "stacks": "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, t)",
    "rows of all parts": "r = Reshape(x, rows) g = Gemm(r, weight, row) n = Neg(g) y = Reshape(n, back)",
    "heads": "h = Reshape(x, heads) t = Transpose<perm = [0, 2, 1, 3]>(h) y = Softmax<axis = -1>(t)",
    "pieces": "a, b = Split<axis = 2, num_outputs = 2>(x) c = Concat<axis = 1>(b, a) y = Slice(c, one, two, one)",
    "words": "y = Gather<axis = 0>(weight, words)",
    "one position": "y = Gather<axis = 1>(x, zero)",
    "a row for each": "e = Expand(lone, each) y = Concat<axis = 1>(e, x)",
    "repeated": "u = Unsqueeze(x, one) e = Expand(u, four) y = Neg(e)",
    "an image": "u = Unsqueeze(x, one) c = Conv(u, kernel) m = MaxPool<kernel_shape = [2, 2]>(c) y = Relu(m)",
}
MIXED = {
    "rows across": "y = Softmax<axis = 0>(x)",
    "sums across": "s = ReduceMean<keepdims = 1>(x, zero) y = Sub(x, s)",
    "sums across, dropped": "y = ReduceSum<keepdims = 0>(x, zero)",
    "turned": "t = Transpose<perm = [1, 0, 2]>(x) y = Exp(t)",
    "a part": "p = Gather<axis = 0>(x, zero) y = Add(x, p)",
    "some parts": "y = Slice(x, zero, two, zero)",
    "pieces of parts": "a, b = Split<axis = 0, num_outputs = 2>(x) y = Sub(a, b)",
    "joined": "y = Concat<axis = 0>(x, x)",
    "a number for each part": "y = Mul(x, different)",
    "another place for parts": "u = Unsqueeze(x, zero) y = Mul(u, high)",
    "the other operand": "r = Reshape(x, rows) y = MatMul(tall, r)",
    "turned operand": "r = Reshape(x, rows) y = Gemm<transA = 1>(r, r)",
    "no parts any more": "r = Reshape(x, odd) y = Exp(r)",
}
CONSTANTS = {
    "row": np.linspace(-1, 1, 4, dtype=np.float32),
    "truth": np.arange(20).reshape(1, 5, 4) % 3 == 0,
    "weight": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32),
    "kernel": np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32),
    "different": np.arange(WHOLE, dtype=np.float32).reshape(WHOLE, 1, 1),
    "high": np.arange(WHOLE, dtype=np.float32).reshape(WHOLE, 1, 1, 1),
    "tall": np.random.default_rng(2).standard_normal((3, 5 * WHOLE)).astype(np.float32),
    "lone": np.ones((1, 1, 4), np.float32),
    **{name: np.asarray(value) for name, value in {"zero": [0], "one": [1], "two": [2], "last": [-1]}.items()},
    **{name: np.asarray(value) for name, value in {"rows": [-1, 4], "back": [WHOLE, 5, 4], "odd": [5, -1]}.items()},
    **{name: np.asarray(value) for name, value in {"heads": [WHOLE, 5, 2, 2], "each": [WHOLE, 1, 4]}.items()},
    "four": np.asarray([WHOLE, 3, 5, 4]),
}


def _model(body: str) -> Any:
    model = parse_model(f"{HEAD} g (float[{WHOLE},5,4] x, int64[{WHOLE},5] words) => (float[] y) {{ {body} k = Neg(words) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in CONSTANTS.items() if name in used)
    return load(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize("body", [*APART.values(), *MIXED.values()], ids=[*APART, *MIXED])
def test_repeated_parts_change_no_result(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    model = _model(body)
    feed = {name: array[WHICH] for name, array in random_inputs(model, {}, 1).items()}
    seen: list[Sequence[int]] = []
    plain = Operator.run

    def run(self: Operator, domain: Any, attrs: Any, inputs: Sequence[Any]) -> Any:
        seen.extend(np.shape(array) for array in inputs)
        return plain(self, domain, attrs, inputs)

    monkeypatch.setattr(Operator, "run", run)
    given = reference_outputs(model, [feed, feed])
    is_apart = body in APART.values()
    assert keeps_parts_apart(model, {}) == (WHOLE if is_apart else 0)
    assert not is_apart or not {shape[0] for shape in seen if shape} & {WHOLE, 5 * WHOLE}
    monkeypatch.setattr(Repeats, "of", lambda feed: None)
    for one, other in zip(given, reference_outputs(model, [feed, feed]), strict=True):
        assert one[0].shape == other[0].shape
        np.testing.assert_allclose(one[0], other[0], rtol=1e-13, atol=1e-14)


def test_parts_are_equal_where_all_inputs_repeat_them() -> None:
    x = np.arange(4).repeat(2)
    assert Repeats.of({"x": x}) == Repeats((0, 0, 1, 1, 2, 2, 3, 3))
    assert Repeats.of({"x": x, "y": np.arange(8)}) is None
    assert Repeats.of({"x": x, "y": np.arange(8) // 4}) == Repeats((0, 0, 1, 1, 2, 2, 3, 3))
    assert Repeats.of({"x": x, "y": np.zeros(3)}) is None and Repeats.of({"x": x, "s": np.asarray(1.0)}) is not None
    assert Repeats.of({"x": np.array([0.0, -0.0])}) is None and Repeats.of({"x": np.array(["a", "a"], object)}) is None
    array, which = np.arange(12).reshape(6, 2), Repeats((0, 1, 1))
    assert identical(which.once(array), array[:4]) and identical(which.whole(array[:4]), array[[0, 1, 2, 3, 2, 3]])
    empty = np.empty((6, 0, 3))
    assert which.once(empty).shape == (4, 0, 3) and which.whole(empty[:4]).shape == empty.shape
    assert Repeats.of({"x": empty}) == Repeats((0,) * 6)


@pytest.mark.parametrize("shape", ["4,0,3", "4,3,0", "0,4,3"])
def test_tensors_without_entries_have_parts_without_entries(shape: str) -> None:
    text = f"{HEAD} g (float[{shape}] x) => (float[{shape}] y) {{ a = Neg(x) y = Relu(a) }}"
    model = load(parse_model(text))
    for (found,) in reference_outputs(model, [random_inputs(model, {}, seed) for seed in (1, 2)]):
        assert found.shape == tuple(map(int, shape.split(",")))
