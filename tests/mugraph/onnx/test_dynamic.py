"""Models whose sizes are symbols: shape arithmetic when reading, what a model's operators say of its sizes, and writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper
from onnx.parser import parse_model

from mugraph.domains import Real, Shaped, Sizes, Unsupported
from mugraph.graph import Graph
from mugraph.onnx import Model, load, to_bytes, to_proto
from mugraph.ops import NotExpressible, get_operator
from mugraph.terms.shape import DataType, Dim, SymDim, evaluate_dim, floor_div, smaller, symbol
from mugraph.terms.term import bind_attrs, make_attrs
from rewriter import optimize
from rewriter.reference import compare, reference_outputs
from rewriter.search.match import NoMatch
from rewriter.search.ranges import RangeOracle
from tests.support.graphs import UNGUARD, apply_match, matches_of, rule
from tests.support.models import FLOAT, INT64, build, check_round_trip, op_types, random_feeds, session, values

N, M, S = symbol("n"), symbol("m"), symbol("s")
SIZES = [{"n": n, "s": s} for n in (1, 2, 3) for s in (1, 5, 8)]
"""Batch and sequence sizes; at size 1 a dimension broadcasts."""


def parsed(text: str, **constants: Any) -> ModelProto:
    model = parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    return model


def attrs_of(model: Model, name: str) -> dict[str, Any]:
    node, _ = model.graph.definition(model.values[name]) or (None, 0)
    assert node is not None and not node.is_opaque, model.opaque
    return dict(node.attrs)


def shape_of(model: Model, name: str) -> tuple[Dim, ...] | None:
    type_ = model.tables.types[model.values[name]]
    return None if type_ is None else type_.shape


def redefine(model: Model, name: str, op: str, inputs: Sequence[str], **attrs: Any) -> Graph:
    """The candidate in which one value is computed by an operator of its own."""
    node = model.tables.apply(op, make_attrs(attrs), [model.values[i] for i in inputs])
    return model.graph.substitute({model.values[name]: (node, 0)})


def check_everywhere(proto: ModelProto, model: Model, graph: Graph, rtol: float = 1e-6) -> ModelProto:
    """Compares a candidate with the original at all sizes; returns it."""
    onnx.checker.check_model(to_proto(model, graph), full_check=True)
    written = to_bytes(model, graph)
    before, after = session(proto.SerializeToString()), session(written)
    for sizes in SIZES:
        feeds = random_feeds(before, **sizes)
        for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert expected.shape == actual.shape
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-6)
    return ModelProto.FromString(written)


# Shape arithmetic


SPLIT_HEADS = """
    g (float[n,s,24] x) => (float[a,b,c,d] y, int64[e] wanted) {
        shape = Shape(x)
        batch = Gather <axis: int = 0> (shape, zero)
        rows = Gather <axis: int = 0> (shape, first)
        width = Gather <axis: int = 0> (shape, last)
        depth = Div(width, heads)
        batch1 = Unsqueeze(batch, axes)
        rows1 = Unsqueeze(rows, axes)
        depth1 = Unsqueeze(depth, axes)
        wanted = Concat <axis: int = 0> (batch1, rows1, four, depth1)
        y = Reshape(x, wanted)
    }"""


def split_heads() -> ModelProto:
    """Heads as torch's older exporter splits them."""
    scalars = {name: np.asarray(v, np.int64) for name, v in (("zero", 0), ("first", 1), ("last", 2), ("heads", 4))}
    return parsed(SPLIT_HEADS, **scalars, axes=np.asarray([0]), four=np.asarray([4]))


def test_a_shape_that_is_computed_from_shapes_is_an_attribute() -> None:
    model = check_round_trip(split_heads(), n=2, s=3)
    assert not model.opaque
    assert attrs_of(model, "y") == {"drop": 1, "shape": (4, 6)}
    assert shape_of(model, "y") == (N, S, 4, 6)
    assert tuple(model.tables.sizes[model.values["wanted"]]) == (N, S, 4, 6)
    assert not model.tables.constant[model.values["wanted"]]
    assert model.tables.constants[model.values["depth"]].load() == 6


def test_what_depends_on_sizes_is_no_constant() -> None:
    text = """g (float[n,s] x) => (float[n,s] y, float[n,s] z) {
        size = Shape(x) y = Expand(one, size) z = ConstantOfShape(size) }"""
    model = check_round_trip(parsed(text, one=np.ones(1, np.float32)), n=2, s=3)
    assert not model.opaque and shape_of(model, "y") == shape_of(model, "z") == (N, S)
    assert not any(model.tables.constant[model.values[name]] for name in "yz")


def test_the_mask_of_a_dropout_that_nobody_reads() -> None:
    text = "g (float[n,s] x) => (float[n,s] y) { d, mask = Dropout(x) y = Relu(d) }"
    assert not check_round_trip(parsed(text), n=2, s=3).opaque
    both = text.replace("float[n,s] y)", "float[n,s] y, bool[n,s] mask)")
    assert check_round_trip(parsed(both), n=2, s=3).opaque


@pytest.mark.parametrize(("declared", "end", "is_one"), [(1, 1, True), (6, 6, False)])
def test_declared_sizes_of_a_slice(declared: int, end: int, is_one: bool) -> None:
    """A first row that the file declares is there; a size that an exporter happened to see is no size in general."""
    model = load(
        build(
            [helper.make_node("Slice", ["x", "zero", "end"], ["cut"]), helper.make_node("Relu", ["cut"], ["y"])],
            values(("x", FLOAT, ["s", 4])),
            values(("y", FLOAT, [None, 4])),
            {"zero": np.asarray([0]), "end": np.asarray([end])},
            value_info=values(("cut", FLOAT, [declared, 4])),
        )
    )
    assert not model.opaque and shape_of(model, "y") == (1 if is_one else smaller(end, S), 4)


def test_symbols_of_the_file_are_known_by_what_they_are() -> None:
    proto = build(
        [
            helper.make_node("Reshape", ["x", "flat"], ["merged"]),
            helper.make_node("Det", ["merged"], ["d"]),
            helper.make_node("Relu", ["merged"], ["y"]),
        ],
        values(("x", FLOAT, ["n", 12, 4, 4])),
        values(("y", FLOAT, ["unk__8", 4, 4]), ("d", FLOAT, ["unk__8"])),
        {"flat": np.asarray([-1, 4, 4])},
        value_info=values(("merged", FLOAT, ["unk__8", 4, 4])),
    )
    model = check_round_trip(proto, n=2)
    assert shape_of(model, "y") == (12 * N, 4, 4)
    assert model.opaque == {1: "no record describes Det"} and shape_of(model, "d") == (12 * N,)


@pytest.mark.parametrize(
    ("body", "constants", "reason"),
    [
        ("y = Reshape(x, shape)", {}, "computed shape"),
        ("size = Shape(x) less = Sub(size, four) y = ConstantOfShape(less)", {"four": [4, 4]}, "may be negative"),
        ("size = Shape(x) odd = Mod(size, two) y = ConstantOfShape(odd)", {"two": [2, 2]}, "computed shape"),
        ("y = Slice(x, last, end, last)", {"last": [-1], "end": [2**63 - 1]}, "symbolic dimension s at -1"),
        ("y = Slice(x, one, two, one)", {"one": [1], "two": [2]}, "symbolic dimension s from 1 to 2"),
        ("size = Shape(x) y = Expand(four, size)", {"four": np.ones((4, 4), np.float32)}, "whether 4 equals"),
        ("y = Add(x, z)", {}, "whether n equals m"),
    ],
)
def test_what_depends_on_the_sizes_stays_opaque(body: str, constants: dict[str, Any], reason: str) -> None:
    text = f"g (float[n,s] x, float[m,s] z, int64[2] shape) => (float[a,b] y) {{ {body} }}"
    model = load(parsed(text, **constants))
    assert any(reason in why for why in model.opaque.values()), model.opaque


dims = st.recursive(
    st.one_of(st.integers(0, 5), st.sampled_from([N, S])),
    lambda inner: st.builds(lambda a, b, op: a + b if op else a * b, inner, inner, st.booleans()),
    max_leaves=4,
)


@given(dims, dims, st.sampled_from([{"n": 0, "s": 1}, {"n": 1, "s": 2}, {"n": 7, "s": 3}]))
@settings(max_examples=200, deadline=None, database=None)
def test_arithmetic_of_sizes_is_that_of_numbers(a: Dim, b: Dim, at: dict[str, Dim]) -> None:
    """A result that the domain decides without the sizes is what holds at any."""
    domain = Sizes()

    def number(dim: Dim) -> int:
        value = evaluate_dim(dim, at)
        assert isinstance(value, int)
        return value

    x, y = np.asarray([a], object), np.asarray([b], object)
    x_is, y_is = number(a), number(b)
    cases = [
        (domain.add, x_is + y_is),
        (domain.sub, x_is - y_is),
        (domain.mul, x_is * y_is),
        (domain.div, x_is // y_is if y_is else None),
        (domain.minimum, min(x_is, y_is)),
        (domain.maximum, max(x_is, y_is)),
        (domain.less, x_is < y_is),
        (domain.equal, x_is == y_is),
    ]
    for function, expected in cases:
        try:
            computed = function(x, y)[0]
        except Unsupported:
            continue
        if expected is not None:
            assert (number(computed) if isinstance(computed, SymDim) else computed) == expected, function


def test_shapes_of_unknown_tensors_are_known() -> None:
    domain = Sizes()
    assert list(domain.sizes(Shaped((N, 3)), -2, None)) == [N, 3]
    for refused in (lambda: domain.add(Shaped((N,)), np.ones(1)), lambda: domain.sqrt(np.ones(1))):
        with pytest.raises(Unsupported):
            refused()
    assert list(domain.where(domain.equal(np.asarray([N, -1], object), np.asarray(-1)), np.asarray(1), np.asarray(2))) == [2, 1]


# What the model's own operators say of its sizes


POSITIONS = """
    g (float[n,s,4] x) => (float[n,s,4] y, int64[k] seen) {
        rows = Shape <start: int = 1, end: int = 2> (x)
        position = Slice(table, zero, rows, zero)
        y = Add(x, position)
        seen = Shape(position)
    }"""


def positions(rows: int, text: str = POSITIONS) -> ModelProto:
    table = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    return parsed(text, table=table, zero=np.asarray([0]))


def test_a_slice_beside_what_it_was_cut_for_has_its_size() -> None:
    """min(6,s) rows are added to s rows: at every s that runs the two are equal, also where s is 1."""
    proto = positions(6)
    model = check_round_trip(proto, n=2, s=5)
    assert not model.opaque and shape_of(model, "position") == (S, 4) and shape_of(model, "y") == (N, S, 4)
    assert [note for note in model.notes if "s at most 6" in note]
    running = session(proto.SerializeToString())
    assert running.run(None, random_feeds(running, n=1, s=6))[1].tolist() == [6, 4]
    with pytest.raises(Exception, match=r"broadcast|dimension"):  # the fact holds because nothing else runs
        running.run(None, random_feeds(running, n=1, s=7))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (1, POSITIONS),
        (6, POSITIONS.replace("y = Add(x, position)", "unread = Add(x, position) y = Relu(x)")),
    ],
    ids=["one row broadcasts", "a node that is not executed"],
)
def test_what_says_nothing_of_sizes(rows: int, text: str) -> None:
    model = load(positions(rows, text))
    assert not [note for note in model.notes if "runs only with" in note]
    assert shape_of(model, "position") == (smaller(rows, S), 4)


HALVED = """
    g (float[n,4,s] x) => (float[?,?,?] y, float[?,?,?] z) {
        z = Conv <kernel_shape: ints = [4], strides: ints = [2]> (x, filter)
        length = Shape <start: int = 2, end: int = 3> (x)
        less = Sub(length, two)
        half = Div(less, two)
        rows = Shape <start: int = 0, end: int = 1> (x)
        shape = Concat <axis: int = 0> (rows, half, four)
        t = Transpose <perm: ints = [0, 2, 1]> (z)
        y = Reshape(t, shape)
    }"""


def halved(text: str = HALVED) -> ModelProto:
    return parsed(text, filter=np.ones((4, 4, 4), np.float32), two=np.asarray([2]), four=np.asarray([4]))


def test_what_a_tensor_has_as_a_size_is_not_negative() -> None:
    """A convolution has floor(s/2) - 1 positions, for s >= 2 alone, where rounding (s - 2)/2 towards zero rounds down."""
    model = check_round_trip(halved(), n=2, s=11)
    assert not model.opaque and shape_of(model, "y") == (N, floor_div(S, 2) - 1, 4)
    unread = load(halved(HALVED.replace("(float[?,?,?] y, float[?,?,?] z)", "(int64[3] shape)")))
    assert unread.values["shape"] not in unread.tables.sizes, "no run needs the convolution"


def test_a_product_says_that_sizes_are_equal() -> None:
    text = "g (float[n,k] x, float[m,5] w) => (float[n,5] y, float[m,5] z) { y = MatMul(x, w) z = Relu(w) }"
    model = load(parsed(text))
    assert not model.opaque
    assert model.inputs["x"].shape[1] == model.inputs["w"].shape[0]
    assert "equal" not in str(model.notes) and any("runs only with" in note for note in model.notes)


# Writing


def test_the_files_own_sizes_are_used_again() -> None:
    """An Expand that a substitution makes reads the vector that the file computes for another node."""
    proto = parsed(
        """g (float[n,s,4] x, float[n,1,4] z) => (float[n,s,4] y, float[n,s,4] w) {
            shape = Shape(x)
            y = Expand(z, shape)
            t = Tanh(z)
            zeros = Sub(x, x)
            w = Add(zeros, t)
        }"""
    )
    model = load(proto)
    written = check_everywhere(proto, model, redefine(model, "w", "Expand", ["t"], shape=(N, S, 4)))
    assert op_types(written) == ["Shape", "Expand", "Tanh", "Expand"]
    assert [node.input[1] for node in written.graph.node if node.op_type == "Expand"] == ["shape", "shape"]


HALF = ["Shape", "Gather", "Add", "Div"]


@pytest.mark.parametrize(
    ("op", "attrs", "expected"),
    [
        ("Reshape", {"drop": 3, "shape": (S, N, 4)}, ["Shape", "Gather", "Concat", "Reshape"]),
        ("Reshape", {"drop": 3, "shape": (N * S, 4)}, ["Reshape"]),
        ("Expand", {"shape": (2, N, S, 4)}, ["Shape", "Gather", "Gather", "Concat", "Expand"]),
        ("Tile", {"repeats": (S, N, 1)}, ["Shape", "Gather", "Gather", "Concat", "Tile"]),
        ("Tile", {"repeats": (N * S + 1, 1)}, ["Shape", "Gather", "Gather", "Mul", "Add", "Concat", "Tile"]),
        ("Slice", {"axes": (-2,), "starts": (0,), "ends": (smaller(3, S),), "steps": (1,)}, ["Shape", "Gather", "Min", "Slice"]),
        ("Slice", {"axes": (-2,), "starts": (0,), "ends": (floor_div(S + 1, 2),), "steps": (1,)}, [*HALF, "Slice"]),
        ("Split", {"axis": -2, "sizes": (S,)}, ["Shape", "Gather", "Split"]),
    ],
)
def test_sizes_are_computed_from_the_inputs(op: str, attrs: dict[str, Any], expected: list[str]) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    model = load(build(nodes, values(("x", FLOAT, ["n", "s", 4])), values(("y", FLOAT, None))), check=False)
    graph = redefine(model, "y", op, ["t"], **attrs)
    written = to_bytes(model, graph)
    assert op_types(ModelProto.FromString(written)) == ["Tanh", *expected]
    running = session(written)
    for sizes in SIZES:
        feeds = random_feeds(running, **sizes)
        bound = bind_attrs(make_attrs(attrs), sizes)
        (meant,) = get_operator(op).run(Real(np.float32), bound, [np.tanh(feeds["x"])])
        np.testing.assert_allclose(running.run(None, feeds)[0], meant, rtol=1e-6)


def test_equal_parts_of_a_dimension_that_may_be_empty() -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["c"], axis=0), helper.make_node("Relu", ["x"], ["y"])]
    model = load(build(nodes, values(("x", FLOAT, ["n", 4])), values(("y", FLOAT, None))), check=False)
    running = session(to_bytes(model, redefine(model, "y", "Split", ["c"], axis=-2, sizes=(N, N))))
    for size in (0, 1, 3):
        x = np.random.default_rng(size).standard_normal((size, 4), np.float32)
        np.testing.assert_array_equal(running.run(None, {"x": x})[0], x)


def test_a_range_is_counted_at_run_time() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["t"], to=INT64), helper.make_node("Neg", ["t"], ["y"])]
    model = load(build(nodes, values(("x", FLOAT, ["n"])), values(("y", INT64, None))), check=False)
    graph = redefine(model, "y", "Range", [], start=2, limit=N + 3, dtype=DataType.INT64)
    assert not any(model.tables.constant[v] for n in graph.nodes() for v in n.values)
    assert session(to_bytes(model, graph)).run(None, {"x": np.zeros(4, np.float32)})[0].tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("size", "opset", "reason"), [(symbol("k"), 20, "size k"), (smaller(3, N), 11, r"size min\(3,n\) at opset 11")]
)
def test_sizes_that_cannot_be_written(size: Dim, opset: int, reason: str) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = load(build(nodes, values(("x", FLOAT, ["n", 4])), values(("y", FLOAT, None)), opset=opset), check=False)
    with pytest.raises(NotExpressible, match=reason):
        to_bytes(model, redefine(model, "y", "Expand", ["x"], shape=(size, 1, 4)))


def test_a_file_without_rewrites_keeps_its_shape_arithmetic() -> None:
    proto = split_heads()
    model = load(proto)
    assert ModelProto.FromString(to_bytes(model, model.graph)) == proto


LOOP = """
    g (float[n,s] x) => (float[n,s] y) {
        r = Relu(x)
        shape = Shape(r)
        same = Reshape(x, shape)
        y = Add(r, same)
    }"""


def test_shape_arithmetic_cannot_close_a_cycle() -> None:
    """The shape was read through a node that a substitution makes depend on what reads the shape."""
    proto = parsed(LOOP)
    model = load(proto)
    written = check_everywhere(proto, model, redefine(model, "r", "Relu", ["same"]))
    assert op_types(written) == ["Reshape", "Relu", "Add"]


def test_shape_arithmetic_keeps_nothing_alive() -> None:
    """Nothing reads the product any more but a Shape: the record writes the Reshape without it."""
    proto = parsed(
        """g (float[n,s,4] x) => (float[m,s,2] y, float[n,s,2] z) {
            product = MatMul(x, w)
            shape = Shape(product)
            half = Mul(x, two)
            other = MatMul(half, w)
            longer = Concat <axis: int = 0> (minus, shape)
            wanted = Slice(longer, first, last)
            y = Reshape(other, wanted)
            z = Relu(product)
        }""",
        w=np.ones((4, 2), np.float32),
        two=np.asarray(2, np.float32),
        minus=np.asarray([1]),
        first=np.asarray([1]),
        last=np.asarray([4]),
    )
    model = load(proto)
    assert not model.opaque
    graph = redefine(model, "z", "Relu", ["other"])
    written = ModelProto.FromString(to_bytes(model, graph))
    assert op_types(written) == ["Mul", "MatMul", "Reshape", "Relu"]
    kept = redefine(model, "z", "Tanh", ["product"])
    assert op_types(ModelProto.FromString(to_bytes(model, kept))) == [*op_types(proto)[:-1], "Tanh"]


# Rules

ONES_ONLY = rule("MatMul(Mul(X, r), W)", "Mul(MatMul(X, W), r)", "X:[m,k] W:[k,n] r:[m,1]", "matrix(W) & constant_along(r,-1)")


@pytest.mark.parametrize(("factor", "applies"), [("float[s,1]", True), ("float[s,k]", False), ("float[k]", False)])
def test_a_rule_that_needs_a_size_of_one_asks_for_a_proof(factor: str, applies: bool) -> None:
    """Where the factor's width is a symbol it may be 1, which is no reason to take it for 1."""
    text = f"g (float[n,s,k] x, {factor} r, float[k,6] w) => (float[n,s,6] y) {{ a = Mul(x, r) y = MatMul(a, w) }}"
    proto = parsed(text)
    model = load(proto)
    applied = [apply_match(m, model.graph, RangeOracle({})) for m in matches_of(model.graph, ONES_ONLY) if m.direction.forward]
    graphs = [graph for graph in applied if not isinstance(graph, NoMatch)]
    assert applied and bool(graphs) is applies
    assert all("could not be shown" in refusal.reason for refusal in applied if isinstance(refusal, NoMatch))
    if applies:
        check_everywhere(proto, model, graphs[0], rtol=1e-4)


def attention(path: Path, heads: int = 2, width: int = 8) -> Path:
    """Attention of dynamic batch and sequence as torch exports it: learned positions, a mask by Range and GatherND."""
    generator = np.random.default_rng(0)
    hidden = heads * width
    proto = parsed(
        """g (int64[n,s] ids, int64[n,s] mask) => (float[n,s,o] y) {
            words = Gather(table, ids)
            batch = Shape <start: int = 0, end: int = 1> (ids)
            rows = Shape <start: int = 1, end: int = 2> (ids)
            cut = Slice(places, zero, rows, one)
            place = Gather(positions, cut)
            x = Add(words, place)
            q0 = MatMul(x, wq)
            k0 = MatMul(x, wk)
            v0 = MatMul(x, wv)
            split = Concat <axis: int = 0> (batch, rows, minus, width)
            q1 = Reshape(q0, split)
            k1 = Reshape(k0, split)
            v1 = Reshape(v0, split)
            q2 = Transpose <perm: ints = [0, 2, 1, 3]> (q1)
            k2 = Transpose <perm: ints = [0, 2, 3, 1]> (k1)
            v2 = Transpose <perm: ints = [0, 2, 1, 3]> (v1)
            q = Mul(q2, scale)
            k = Mul(k2, scale)
            score = MatMul(q, k)
            count = Squeeze(rows)
            number = Squeeze(batch)
            columns = Range(start, count, step)
            samples = Range(start, number, step)
            column = Unsqueeze(columns, middle)
            sample = Unsqueeze(samples, outer)
            both = Max(sample, column)
            grid = Shape(both)
            sample2 = Expand(sample, grid)
            column2 = Expand(column, grid)
            sample3 = Unsqueeze(sample2, end)
            column3 = Unsqueeze(column2, end)
            places3 = Concat <axis: int = -1> (sample3, column3)
            seen = Cast <to: int = 9> (mask)
            allowed = GatherND(seen, places3)
            bias = Where(allowed, none, hidden)
            masked = Add(score, bias)
            weight = Softmax <axis: int = -1> (masked)
            bad = IsNaN(weight)
            good = Where(bad, none, weight)
            mixed = MatMul(good, v2)
            back = Transpose <perm: ints = [0, 2, 1, 3]> (mixed)
            join = Concat <axis: int = 0> (batch, rows, minus)
            joined = Reshape(back, join)
            y = MatMul(joined, wo)
        }""",
        **{name: generator.standard_normal((hidden, hidden)).astype(np.float32) / 4 for name in ("wq", "wk", "wv", "wo")},
        table=generator.standard_normal((11, hidden)).astype(np.float32),
        positions=generator.standard_normal((16, hidden)).astype(np.float32),
        places=np.arange(16)[None],
        scale=np.asarray(width**-0.25, np.float32),
        none=np.asarray(0, np.float32),
        hidden=np.asarray(np.finfo(np.float32).min),
        start=np.asarray(0),
        step=np.asarray(1),
        zero=np.asarray([0]),
        one=np.asarray([1]),
        minus=np.asarray([-1]),
        width=np.asarray([width]),
        end=np.asarray([-1]),
        middle=np.asarray([0, 1, 2]),
        outer=np.asarray([1, 2, 3]),
    )
    onnx.save(proto, path)
    return path


def test_a_dynamic_model_is_rewritten_like_a_static_one(tmp_path: Path, own_cache: Path) -> None:
    """Every node is understood, rules fire, and the outputs agree at sizes other than those measured."""
    source, target = attention(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    model = load(source)
    assert not model.opaque and shape_of(model, "y") == (N, S, 16)
    shapes = {"ids": (1, 8), "mask": (1, 8)}
    result = optimize(source, target, rules=[UNGUARD, ONES_ONLY], device="h200", deterministic=True, shapes=shapes, kernels=False)
    assert result.improved and [fired.sites for fired in result.fired] == [1]
    before, after = session(source), session(target)
    for sizes in SIZES:
        feeds = random_feeds(before, **sizes)
        feeds["mask"][:, 0] = 1
        (expected,), (actual,) = before.run(None, feeds), after.run(None, feeds)
        assert expected.shape == actual.shape == (sizes["n"], sizes["s"], 16)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


IMAGES = """
    images (float[n,3,h,w] x) => (float[n,r,8] y, float[n,8,p,q] half) {
        a = Conv<strides: ints = [2,2], pads: ints = [1,1,1,1]>(x, k1)
        b = Relu(a)
        c = MaxPool<kernel_shape: ints = [3,3], strides: ints = [2,2], pads: ints = [1,1,1,1]>(b)
        d = Conv<strides: ints = [2,2]>(c, k2)
        e = Relu(d)
        again = Relu(e)
        batch = Shape<start: int = 0, end: int = 1>(x)
        shape = Concat<axis: int = 0>(batch, eight, rest)
        flat = Reshape(again, shape)
        y = Transpose<perm: ints = [0,2,1]>(flat)
        half = Neg(b)
    }"""


def test_images_of_any_size_are_understood(tmp_path: Path, own_cache: Path) -> None:
    """A stride halves what it is not known to divide: sizes behind it are whole parts, and a rule writes them."""
    generator = np.random.default_rng(0)
    kernels = {
        "k1": generator.standard_normal((8, 3, 3, 3), np.float32),
        "k2": generator.standard_normal((8, 8, 1, 1), np.float32),
    }
    source, target = tmp_path / "images.onnx", tmp_path / "out.onnx"
    onnx.save(parsed(IMAGES, **kernels, eight=np.array([8]), rest=np.array([-1])), source)
    model = load(source)
    assert not model.opaque, model.opaque
    rows, columns = (floor_div(symbol(name) + 7, 8) for name in "hw")
    assert shape_of(model, "e") == (N, 8, rows, columns) and shape_of(model, "y") == (N, rows * columns, 8)
    again = rule("Relu(Relu(X))", "Relu(X)", "X:[m,n]")
    result = optimize(source, target, rules=[again], shapes={"x": (1, 3, 32, 32)}, device="cpu", deterministic=True)
    assert result.improved and result.predicted_before > 0
    before, after = session(source), session(target)
    for size in ((1, 3, 17, 30), (2, 3, 8, 1), (2, 3, 33, 64)):
        feeds = {"x": generator.standard_normal(size, np.float32)}
        for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_the_reference_evaluates_symbolic_attributes(tmp_path: Path) -> None:
    model = load(attention(tmp_path / "model.onnx"))
    running = session(tmp_path / "model.onnx")
    feeds = [random_feeds(running, **sizes) for sizes in SIZES]
    for feed, (wanted,) in zip(feeds, reference_outputs(model, feeds), strict=True):
        assert compare(running.run(None, feed)[0], wanted).relative_l2 < 1e-5


@pytest.mark.parametrize("place", ["s", "v, , s"])
def test_a_kernel_that_asks_nothing_of_its_columns_tells_how_many_there_are(place: str) -> None:
    """onnxruntime reads and writes beyond the scale or the bias where there are others."""
    model = load(
        parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[M,4] x, int8[4,N] w, float[N] v) => (float[?,?] y) <float[3] s = {{1, 2, 3}}> {{
            y = com.microsoft.DynamicQuantizeMatMul(x, w, {place})
        }}""")
    )
    assert "'y' runs only with N = 3" in model.notes and model.inputs["w"].shape == (4, 3)
