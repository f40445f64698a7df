"""Bodies of If, Loop and Scan: read, rewritten by hand, written and run; conditions that never change."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import Model, load, node_count, to_bytes
from mugraph.onnx.scopes import graphs_within, name_apart
from rewriter.reference import reference_outputs
from tests.support.models import identical, session, subgraph_model


def written_anew(model: Model) -> Graph:
    """The candidate in which every node that a record understands is another one of the same operator."""
    tables, changes = model.tables, {}
    for node in list(model.graph.nodes()):
        if node.is_opaque or node.origin is None or any(value in tables.constants for value in node.values):
            continue
        values = [tables.new_value(tables.types[value], constant=tables.constant[value]) for value in node.values]
        body = next((tables.bodies[value] for value in node.values if value in tables.bodies), None)
        if body is not None:
            tables.bodies.update(dict.fromkeys(values, body))
        new = tables.add_node(node.op, node.attrs, node.inputs, values, intern=False)
        changes.update({value: (new, index) for index, value in enumerate(node.values)})
    return model.graph.substitute(changes)


def check(proto: ModelProto, *feeds: dict[str, Any]) -> Model:
    """A model does the same as it came, as it was read, and with each node written anew; its reference is what it gives."""
    onnx.checker.check_model(proto, full_check=True)
    model = load(proto)
    running = session(proto.SerializeToString())
    graphs = (model.as_it_came, model.graph, written_anew(model))
    texts = [to_bytes(model, graph) for graph in graphs]
    for text in texts:
        onnx.checker.check_model(ModelProto.FromString(text))
        names = [
            name for graph in graphs_within(ModelProto.FromString(text).graph) for n in graph.node for name in n.output if name
        ]
        assert len(names) == len(set(names)), "no name stands for two values"
    for feed in feeds:
        expected = running.run(None, feed)
        for text in texts:
            assert identical(expected, session(text).run(None, feed))
        for wanted, given in zip(expected, reference_outputs(model, [feed])[0], strict=True):
            np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)
    return model


HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

BRANCHES = f"""{HEADER} g (float[2,3] x, bool flag) => (float[2,3] y, float[2,3] z) <float[3] w = {{1.0, 2.0, 3.0}}> {{
    outer = Relu(x)
    y, z = If (flag) <
        then_branch = one () => (float[2,3] a, float[2,3] b) {{ t = Mul(outer, w) a = Exp(t) b = Neg(t) }},
        else_branch = two () => (float[2,3] a, float[2,3] b) {{
            c = Constant<value = float {{2.0}}>()
            t = Add(x, c)
            a = If (flag) <
                then_branch = three () => (float[2,3] d) {{ d = Mul(t, w) }},
                else_branch = four () => (float[2,3] d) {{ u = Sub(t, outer) d = Abs(u) }}
            >
            b = Tanh(outer)
        }}
    >
}}"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_are_graphs_of_their_own(flag: bool) -> None:
    """Names occur in several branches; the inner If reads values of its branch and of the main graph."""
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    model = check(parse_model(BRANCHES), {"x": x, "flag": np.array(flag)})
    assert [len(bodies) for bodies in model.bodies.values()] == [2, 2]
    assert {"Mul", "Exp", "Neg", "Add", "Sub", "Abs", "Tanh"} <= {node.op for node in model.graph.nodes()}
    keys = [model.tables.key(value) for value in range(len(model.tables.types)) if model.tables.names[value]]
    assert len(keys) == len(set(keys)), "a value within a body is another than the one around it that it stands for"


LOOP = f"""{HEADER} g (float[2] x, int64 n, bool go) => (float[2] last, float[N,2] all) {{
    k = Sigmoid(x)
    last, all = Loop (n, go, x) <body = step (int64 i, bool c, float[2] s) => (bool more, float[2] next, float[2] row) {{
        f = Cast<to = 1>(i)
        t = Mul(s, k)
        next = Add(t, f)
        row = Neg(next)
        top = Constant<value = float {{9.0}}>()
        sum = ReduceSum<keepdims = 0>(next)
        more = Less(sum, top)
    }}>
}}"""


@pytest.mark.parametrize(("n", "go"), [(5, True), (1, True), (0, True), (3, False), (50, True)])
def test_loops_run_as_long_as_they_do(n: int, go: bool) -> None:
    x = np.random.default_rng(1).standard_normal(2).astype(np.float32)
    check(parse_model(LOOP), {"x": x, "n": np.array(n), "go": np.array(go)})


def test_scans_run_in_both_directions_along_their_axes() -> None:
    proto = parse_model(f"""{HEADER} g (float[3] s, float[2,3,4] a, float[4,3] b)
            => (float[3] last, float[3,4] rows, float[4,3] other) {{
        last, rows, other = Scan<num_scan_inputs = 2, scan_input_axes = [2, 0], scan_input_directions = [1, 0],
                                 scan_output_axes = [1, 0], scan_output_directions = [0, 1],
            body = step (float[3] c, float[2,3] p, float[3] q) => (float[3] d, float[3] e, float[3] f) {{
                m = ReduceMax<axes = [0], keepdims = 0>(p)
                d = Add(c, m)
                e = Mul(d, q)
                f = Neg(q)
            }}>(s, a, b)
    }}""")
    rng = np.random.default_rng(2)
    feed = {name: rng.standard_normal(shape, np.float32) for name, shape in (("s", 3), ("a", (2, 3, 4)), ("b", (4, 3)))}
    check(proto, feed)


def test_bodies_of_the_deepest_kind() -> None:
    rng = np.random.default_rng(3)
    for flag in (True, False):
        check(subgraph_model(), {"x": rng.standard_normal((2, 3), np.float32), "flag": np.array(flag)})


CONSTANT = f"""{HEADER} g (float[2,3] x, bool flag)
    => (float[2,3] y, float[3,2] z, int64[2] s) <float[3] w = {{1.0, 2.0, 3.0}}> {{
    shape = Shape(x)
    two = Constant<value = int64 {{2}}>()
    zero = Constant<value = int64 {{0}}>()
    rows = Gather(shape, zero)
    known = Equal(rows, two)
    y, t, s = If (known) <
        then_branch = one () => (float[2,3] a, float[2,3] b, int64[2] c) {{
            h = Mul(x, w)
            a = If (flag) <
                then_branch = three () => (float[2,3] d) {{ d = Relu(h) }},
                else_branch = four () => (float[2,3] d) {{ unknown = Not(known) d = If (unknown) <
                    then_branch = five () => (float[2,3] e) {{ e = Neg(h) }},
                    else_branch = six () => (float[2,3] e) {{ e = Exp(h) }}
                > }}
            >
            b = Identity(h)
            c = Identity(shape)
        }},
        else_branch = two () => (float[2,3] a, float[2,3] b, int64[2] c) {{
            h = Sub(x, w) a = Neg(h) b = Neg(h) c = Identity(shape)
        }}
    >
    z = Transpose(t)
}}"""


@pytest.mark.parametrize("flag", [True, False])
def test_a_condition_that_never_changes_chooses_its_branch(flag: bool) -> None:
    """Several results, two of them the model's own; names that the other branch has too; another such condition within."""
    proto = parse_model(CONSTANT)
    x = np.random.default_rng(4).standard_normal((2, 3), np.float32)
    model = check(proto, {"x": x, "flag": np.array(flag)})
    assert model.is_unfolded and [len(bodies) for bodies in model.bodies.values()] == [2]
    assert any(reason == "it always takes its then_branch" for reason in model.opaque.values())
    written = ModelProto.FromString(to_bytes(model, model.graph))
    ops = [node.op_type for graph in graphs_within(written.graph) for node in graph.node]
    assert ops.count("If") == 1 and not {"Sub", "Neg"} & set(ops)
    assert node_count(written) < node_count(proto)
    came = ModelProto.FromString(to_bytes(model, model.as_it_came))
    assert node_count(came) == node_count(proto)


def test_an_overridable_condition_is_no_constant() -> None:
    proto = parse_model(f"""{HEADER} g (float[2] x, bool flag) => (float[2] y) <bool flag = {{1}}> {{
        y = If (flag) <then_branch = a () => (float[2] p) {{ p = Neg(x) }}, else_branch = b () => (float[2] q) {{ q = Exp(x) }}>
    }}""")
    model = check(proto, {"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.float32), "flag": np.array(False)})
    assert not model.is_unfolded


def test_a_branch_that_cannot_run_teaches_nothing() -> None:
    """Were the node executed, n would be 4; it is in a branch that is taken only then."""
    proto = parse_model(f"""{HEADER} g (float[n,3] x, float[4,3] k, bool flag) => (float[m,3] y) {{
        y = If (flag) <
            then_branch = a () => (float[p,3] p) {{ p = Add(x, k) }},
            else_branch = b () => (float[n,3] q) {{ q = Neg(x) }}
        >
    }}""")
    model = check(proto, {"x": np.ones((2, 3), np.float32), "k": np.ones((4, 3), np.float32), "flag": np.array(False)})
    assert model.symbols == ("n",) and not model.notes


def test_sizes_within_a_loop_are_others_than_around_it() -> None:
    """The state doubles its length each time: its size within is none that is known outside."""
    proto = parse_model(f"""{HEADER} g (float[n] x, int64 m) => (float[k] y) {{
        go = Constant<value = bool {{1}}>()
        y = Loop (m, go, x) <body = step (int64 i, bool c, float[l] s) => (bool d, float[l2] t) {{
            d = Identity(c)
            t = Concat<axis = 0>(s, s)
        }}>
    }}""")
    model = check(proto, {"x": np.ones(2, np.float32), "m": np.array(3)})
    inner = model.tables.types[model.values["s"]]
    assert inner is not None and "@" in str(inner.shape[0])


def test_bodies_over_sequences_stay_whole() -> None:
    proto = parse_model(f"""{HEADER} g (float[2] x, bool flag) => (float[4] y) {{
        y = If (flag) <
            then_branch = a () => (float[4] p) {{ l = SequenceConstruct(x, x) p = ConcatFromSequence<axis = 0>(l) }},
            else_branch = b () => (float[4] q) {{ q = Concat<axis = 0>(x, x) }}
        >
    }}""")
    model = check(proto, {"x": np.ones(2, np.float32), "flag": np.array(True)})
    assert not model.bodies


def test_names_are_told_apart_within_nested_bodies() -> None:
    graph = parse_model(BRANCHES).graph
    untouched = GraphProto()
    untouched.CopyFrom(graph)
    name_apart(graph)
    names = [value.name for inner in graphs_within(graph) for value in inner.output]
    assert len(names) == len(set(names)) and graph.node[0] == untouched.node[0]
    again = GraphProto()
    again.CopyFrom(graph)
    name_apart(again)
    assert again == graph, "names that differ stay"
