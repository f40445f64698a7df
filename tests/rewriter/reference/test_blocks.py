"""What is computed block by block is what it is without blocks, and nothing that stands between takes memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import Model, load
from rewriter.reference import Evaluated, blocks, identical, random_inputs, reference_outputs
from rewriter.reference.blocks import Blocks, Fitted, chains, is_blockwise

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
ATTENTION = f"""{HEAD} g (float[2,3,40,8] q, float[2,3,8,50] k, float[2,3,50,8] v, int64[2,50] shown) => (float[2,3,40,8] y)
    <float root = {{2.5}}, float low = {{-10000.0}}, int64 zero = {{0}}, int64[2] axes = {{1, 2}}> {{
        s = MatMul(q, k)
        d = Div(s, root)
        hidden = Equal(shown, zero)
        f = Cast<to = 1>(hidden)
        m = Mul(f, low)
        u = Unsqueeze(m, axes)
        a = Add(d, u)
        p = Softmax<axis = -1>(a)
        y = MatMul(p, v)
    }}"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few entries, so that there are some in a small model."""
    monkeypatch.setattr(blocks, "ENTRIES", 96)
    monkeypatch.setattr(blocks, "_ROWS", 2)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], int]]:
    """The operators of the nodes that were computed by blocks, and how many blocks there were."""
    found: list[tuple[list[str], int]] = []
    plain = Blocks.compute

    def compute(self: Blocks, tensors: Mapping[int, Any], kept: Collection[int], each: Callable[..., None]) -> Any:
        found.append(([step.node.op for step in self.steps], self.count))
        results = plain(self, tensors, kept, each)
        assert set(results) == set(kept)
        return results

    monkeypatch.setattr(Blocks, "compute", compute)
    return found


def _without(model: Model, feeds: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[list[np.ndarray]]:
    """The same without blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "ENTRIES", 1 << 40)
        return reference_outputs(model, feeds)


def test_an_attention_is_computed_block_by_block(noted: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask, which stands between the scores and their softmax in the file, is put before them."""
    model = load(parse_model(ATTENTION))
    for count in (1, 2):
        noted.clear()
        feeds = [random_inputs(model, {}, seed) for seed in range(count)]
        given = reference_outputs(model, feeds)
        together = [each for each in noted if len(each[0]) > 1]
        assert together == [(["MatMul", "Div", "Add", "Softmax", "MatMul"], 2 * 3 * 20)] * count
        for one, other in zip(given, _without(model, feeds, monkeypatch), strict=True):
            np.testing.assert_allclose(one[0], other[0], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("body", "together"),
    [
        ("t = Tanh(x) e = Erf(t) y = Mul(e, x)", ["Tanh", "Erf", "Mul"]),
        ("m = ReduceMean<keepdims = 1>(x, last) c = Sub(x, m) y = Mul(c, c)", ["ReduceMean", "Sub", "Mul"]),
        ("m = ReduceMean<keepdims = 0>(x, last) u = Unsqueeze(m, last) y = Sub(x, u)", ["Sub"]),
        ("e = Exp(x) y = LayerNormalization<axis = 2>(e, g, b)", ["Exp", "LayerNormalization"]),
        ("e = Exp(x) y = LayerNormalization<axis = 1>(e, h, h)", ["Exp", "LayerNormalization"]),
        ("s = Softmax<axis = 1>(x) n = Neg(s) y = Softmax<axis = 2>(n)", ["Softmax", "Neg", "Softmax"]),
        ("l = Less(x, g) n = Neg(x) y = Where(l, n, x)", ["Less", "Neg", "Where"]),
        ("r = Neg(x) y = MatMul(r, w)", ["Neg", "MatMul"]),
        ("r = Neg(w) y = MatMul(x, r)", ["Neg", "MatMul"]),
        ("r = Neg(x) t = Mul(r, r) y = MatMul(t, t)", ["Neg", "Mul", "MatMul"]),
        ("y = MatMul(x, x)", []),
        ("y = Softmax<axis = 0>(x)", ["Softmax"]),
    ],
)
def test_results_are_the_same_bit_for_bit(
    noted: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch, body: str, together: list[str]
) -> None:
    """But for products of some rows each, of which the linear algebra may add in another order."""
    text = f"""{HEAD} g (float[3,16,16] x, float[3,16,16] w, float[16] g, float[16] b, float[16,16] h) => (float[3,16,16] y)
        <int64[1] last = {{-1}}> {{ {body} }}"""
    model = load(parse_model(text))
    feeds = [random_inputs(model, {}, seed) for seed in (1, 2)]
    given, wanted = reference_outputs(model, feeds), _without(model, feeds, monkeypatch)
    assert [sorted(ops) for ops, _ in noted[:1]] == ([sorted(together)] if together else [])
    for one, other in zip(given, wanted, strict=True):
        if "MatMul" in body:
            np.testing.assert_allclose(one[0], other[0], rtol=1e-13, atol=1e-14)
        else:
            assert identical(one, other)


def test_a_cache_without_entries_is_joined_with_what_is_new() -> None:
    """Between values that have entries; what has none has no blocks."""
    text = f"""{HEAD} g (float[2,4,0,8] past, float[2,4,96,8] new) => (float[2,4,96,8] y, float[2,4,0,8] z) {{
        a = Neg(past) z = Exp(a) b = Neg(new) y = Concat<axis = 2>(a, b) }}"""
    model = load(parse_model(text))
    feed = random_inputs(model, {}, 1)
    y, z = reference_outputs(model, [feed])[0]
    np.testing.assert_array_equal(y, -feed["new"].astype(np.float64))
    assert z.shape == (2, 4, 0, 8)


def _random_graph(seed: int) -> Model:
    """A graph of what may be computed by blocks, of broadcast operands, some read again later."""
    rng = np.random.default_rng(seed)
    whole = (*map(int, rng.integers(2, 7, 2)), 9, 9)
    inputs = {"x": whole, "a": (9, 9), "b": (whole[1], 1, 9), "c": (whole[0], 1, 9, 1), "d": (1,)}
    shapes, lines = dict(inputs), list[str]()
    for number in range(12):
        name, kind = f"v{number}", rng.integers(0, 7)
        names = list(shapes)
        one, other = (names[i] for i in rng.integers(0, len(names), 2))
        large = [n for n in names if len(shapes[n]) == 4 and shapes[n][-2:] == (9, 9)]
        big, second = (large[i] for i in rng.integers(0, len(large), 2))
        axis = int(rng.integers(-4, 0))
        if kind <= 2:
            lines.append(f"{name} = {('Add', 'Mul', 'Max')[kind]}({one}, {other})")
            shapes[name] = np.broadcast_shapes(shapes[one], shapes[other])
        elif kind == 3:
            lines.append(f"{name} = Softmax<axis = {axis}>({big})")
            shapes[name] = shapes[big]
        elif kind == 4:
            lines.append(f"{name} = ReduceMax<keepdims = 1>({big}, axis{-axis})")
            shapes[name] = tuple(1 if i == 4 + axis else size for i, size in enumerate(shapes[big]))
        elif kind == 5:
            lines.append(f"{name} = LayerNormalization<axis = -2>({big}, a, a)")
            shapes[name] = shapes[big]
        else:
            lines.append(f"t{number} = Tanh({second}) {name} = MatMul({big}, t{number})")
            shapes[name] = (*np.broadcast_shapes(shapes[big][:2], shapes[second][:2]), 9, 9)
    made = [name for name in shapes if name.startswith("v")]
    kept = [made[-1], *(name for name in made[:-1] if rng.random() < 0.2)]
    told = [f"{name}_out = Identity({name})" for name in kept]
    declared = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in inputs.items())
    results = ", ".join(f"float[{','.join(map(str, shapes[name]))}] {name}_out" for name in kept)
    axes = ", ".join(f"int64[1] axis{n} = {{{-n}}}" for n in range(1, 5))
    return load(parse_model(f"{HEAD} g ({declared}) => ({results}) <{axes}> {{ {' '.join(lines)} {' '.join(told)} }}"))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_are_the_same(noted: list[tuple[list[str], int]], monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model = _random_graph(seed)
    feeds = [random_inputs(model, {}, number, 0.5) for number in (1, 2)]
    given, wanted = reference_outputs(model, feeds), _without(model, feeds, monkeypatch)
    assert any(count > 1 for _, count in noted)
    for one, other in zip(given, wanted, strict=True):
        for actual, expected in zip(one, other, strict=True):
            assert actual.shape == expected.shape and actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)


def test_what_rounding_decides_and_narrow_evaluations_are_computed_node_by_node(noted: list[tuple[list[str], int]]) -> None:
    text = f"""{HEAD} g (float16[64,64] x) => (float16[64,64] y, int64[64,64] n) {{
        a = Exp(x) y = Mul(a, a) t = Tanh(x) u = Mul(t, t) n = Cast<to = 7>(u) }}"""
    model = load(parse_model(text))
    feed = random_inputs(model, {}, 1)
    y, n = reference_outputs(model, [feed])[0]
    assert [ops for ops, _ in noted] == [["Exp", "Mul"]]
    assert identical(n, (np.tanh(feed["x"].astype(np.float32)).astype(np.float16).astype(np.float32) ** 2).astype(np.int64))
    noted.clear()
    narrow = Evaluated(model, model.graph).run(None, feed)[0]
    exponential = np.exp(feed["x"].astype(np.float32)).astype(np.float16)
    assert not noted and identical(narrow, (exponential.astype(np.float32) ** 2).astype(np.float16))
    np.testing.assert_allclose(y, np.exp(feed["x"].astype(np.float64)) ** 2, rtol=1e-14)


def test_weights_are_not_held_together() -> None:
    text = f"""{HEAD} g (float[2,8,4] x, float[4,4] w, float[4,4] v) => (float[2,8,4] y) {{
        a = MatMul(x, w) b = MatMul(a, v) c = Neg(b) t = Transpose<perm = [0, 2, 1]>(c) d = MatMul(b, t) y = MatMul(d, c) }}"""
    model = load(parse_model(text))
    found = chains(model.graph, list(model.graph.nodes()), is_blockwise, lambda v: v)
    assert [[node.op for node in chain] for chain in found] == [
        ["MatMul"],
        ["MatMul"],
        ["Neg"],
        ["Transpose"],
        ["MatMul", "MatMul"],
    ]


def test_a_node_that_needs_a_size_stays_behind_what_tells_it() -> None:
    """The size of what is found is in the type of its sum; a shape with it is an attribute of Expand."""
    text = f"""{HEAD} g (float[6] x, float[1] z) => (float[K,2] y) <int64[1] one = {{1}}, int64[1] two = {{2}}> {{
        found = NonZero(x) turned = Transpose(found) f = Cast<to = 1>(turned)
        s = Shape(f) first = Gather<axis = 0>(s, zero_at) parts = Concat<axis = 0>(first, two) e = Expand(z, parts) y = Add(e, f)
    }}"""
    model = parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero_at"))
    loaded, feed = load(model), {"x": np.asarray([0, 1, 2, 0, 3, 4], np.float32), "z": np.asarray([7], np.float32)}
    nodes = list(loaded.graph.nodes())
    order = [node for chain in chains(loaded.graph, nodes, is_blockwise, lambda v: v) for node in chain]
    assert sorted(order, key=lambda n: n.index) == sorted(nodes, key=lambda n: n.index)
    np.testing.assert_array_equal(
        reference_outputs(loaded, [feed])[0][0], 7.0 + np.array([[1], [2], [4], [5]]) + np.zeros((1, 2))
    )


@pytest.mark.parametrize("entries", [96, 1 << 16])
def test_a_row_of_many_nodes_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Where it has blocks, and where one block would hold all of it: there it was begun anew behind each node."""
    monkeypatch.setattr(blocks, "ENTRIES", entries)
    count, fitted, plain = 400, list[str](), Fitted.of

    def counted(node: Any, *others: Any) -> Fitted | None:
        fitted.append(node.op)
        return plain(node, *others)

    monkeypatch.setattr(Fitted, "of", counted)
    nodes = " ".join(f"v{number + 1} = {'Neg' if number % 2 else 'Tanh'}(v{number})" for number in range(count))
    model = load(parse_model(f"{HEAD} g (float[40,8] v0) => (float[40,8] v{count}) {{ {nodes} }}"))
    reference_outputs(model, [random_inputs(model, {}, 1)])
    assert len(fitted) == count
