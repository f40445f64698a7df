"""Ifs that always take one branch, since nothing runs with the other one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load, to_bytes
from mugraph.onnx.bodies import BRANCHES
from mugraph.onnx.branches import BranchTrials, IllTyped, TakenBranches, UndecidedIf, check_typed
from mugraph.ops import support
from mugraph.terms.shape import DataType, TensorType, symbol
from tests.support.models import identical, session

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
WEIGHTS = {"w": (1, 24, 4), "r": (1, 24, 6)}

RECURRENT = """g (float[5,B,4,N] x) => (float[5,1,C,6] y) {
    s = Shape(x) last = Constant<value = int64 {3}>() n = Gather(s, last) one = Constant<value = int64 {1}>()
    is_one = Equal(n, one) minus = Constant<value = int64[1] {-1}>()
    v = If (is_one) <
        then_branch = squeezed () => (float[5,B,4] a) { a = Squeeze(x, minus) },
        else_branch = whole () => (float[5,B,4,N] a) { a = Identity(x) }
    >
    t = Shape(v) rank = Size(t) three = Constant<value = int64 {3}>() fits = Equal(rank, three) odd = Not(fits)
    u = If (odd) <
        then_branch = more () => (float[a,b,c,d,e] a) { z = Constant<value = int64[1] {0}>() a = Unsqueeze(v, z) },
        else_branch = same () => (float[5,B,4] a) { a = Identity(v) }
    >
    READER
}"""


def recurrent(reader: str) -> onnx.ModelProto:
    """A model whose input loses an axis if that has one entry, and with what reads the result."""
    proto = parse_model(f"{HEADER} {RECURRENT.replace('READER', reader)}")
    generator = np.random.default_rng(0)
    proto.graph.initializer.extend(
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name) for name, shape in WEIGHTS.items()
    )
    return proto


@pytest.mark.parametrize("declared", ["float[a,b,c,d,e] a", "float[1,B,4] a"])
def test_what_reads_a_result_decides_the_branch(declared: str) -> None:
    """Also where the file declares a result of the branch that no run takes otherwise than its operator makes it there."""
    proto = recurrent("y = LSTM<hidden_size = 6>(u, w, r)")
    node = next(node for node in proto.graph.node if node.output[0] == "u")
    branch = next(attribute.g for attribute in node.attribute if attribute.name == "then_branch")
    branch.output[0].CopyFrom(parse_model(f"{HEADER} g () => ({declared}) {{ }}").graph.output[0])
    model = load(proto)
    feed = {"x": np.random.default_rng(1).standard_normal((5, 3, 4, 1)).astype(np.float32)}
    given = session(proto.SerializeToString()).run(None, feed)
    for graph in (model.as_it_came, model.graph):
        assert identical(given, session(to_bytes(model, graph)).run(None, feed))
    assert model.taken == {"v": "then_branch", "u": "else_branch"}
    assert any("only with" in note and "the then_branch of 'v'" in note for note in model.notes)
    assert not model.bodies


def test_within_a_body_the_body_counts() -> None:
    inner = RECURRENT.partition("{")[2].rpartition("}")[0].replace("READER", "y1 = LSTM<hidden_size = 6>(u, w, r)")
    proto = recurrent("y = LSTM<hidden_size = 6>(u, w, r)")
    outer = parse_model(f"""{HEADER} g (float[5,B,4,N] x, bool c) => (float[p,q,b,h] y) {{
        y = If (c) <then_branch = yes () => (float[p,q,b,h] y1) {{ {inner} }},
                    else_branch = no () => (float[p,q,b,h] y2) {{ y2 = Identity(x) }}> }}""")
    outer.graph.initializer.extend(proto.graph.initializer)
    assert load(outer).taken == {"v": "then_branch", "u": "else_branch"}


@pytest.mark.parametrize(
    "reader",
    [
        "dead = LSTM<hidden_size = 6>(u, w, r) axes = Constant<value = int64[1] {1}>() y = Unsqueeze(x, axes)",
        "axes = Constant<value = int64[1] {1}>() y = Unsqueeze(u, axes)",
    ],
    ids=["what no output needs", "what takes any rank"],
)
def test_what_decides_nothing(reader: str) -> None:
    assert load(recurrent(reader), check=False).taken == {}


def test_a_schema_that_a_runtime_does_not_heed_decides_nothing() -> None:
    """onnxruntime multiplies a vector by a Gemm: the model runs with either branch, and the results differ."""
    proto = parse_model(f"""{HEADER} g (float[1] x, float[M,N] s) => (float[a,b] y) {{
        t = Shape(s) first = Constant<value = int64[1] {{0}}>() m = Gather(t, first) one = Constant<value = int64 {{1}}>()
        is_one = Equal(m, one)
        u = If (is_one) <then_branch = vector () => (float[1] a) {{ a = Neg(x) }},
                         else_branch = matrix () => (float[1,1] b) {{ b = Unsqueeze(x, first) }}>
        y = Gemm(u, w)
    }}""")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4), np.float32), "w"))
    run, x = session(proto.SerializeToString()), np.ones(1, np.float32)
    values = [run.run(None, {"x": x, "s": np.ones((rows, 2), np.float32)})[0][0, 0] for rows in (1, 2)]
    assert values == [-1.0, 1.0]
    assert load(proto, check=False).taken == {}


def test_a_condition_that_rests_on_fed_numbers_decides_nothing() -> None:
    """Runs on inputs of the same sizes need not take the same branch: what compares results might see the other one only."""
    proto = recurrent("y = LSTM<hidden_size = 6>(u, w, r)")
    for name in ("fed", "of what is fed"):
        other = onnx.ModelProto.FromString(proto.SerializeToString())
        other.graph.input.append(onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [1]))
        node = next(node for node in other.graph.node if node.output[0] == "v")
        if name == "fed":
            node.input[0] = "flag"
        else:
            other.graph.node.insert(0, onnx.helper.make_node("Not", ["flag"], ["negated"]))
            node.input[0] = "negated"
        assert "v" not in load(other, check=False).taken, name
    assert "v" in load(proto, check=False).taken, "its own condition rests on sizes"


@pytest.mark.parametrize("operator", sorted(support.RECURRENT))
def test_kernels_of_recurrent_operators_heed_their_schemas(operator: str) -> None:
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
    proto = parse_model(f"""{HEADER} g (float[1,B,4] x, bool flat) => (float y) {{
        zero = Constant<value = int64[1] {{0}}>()
        u = If (flat) <then_branch = two () => (float[B,4] a) {{ a = Squeeze(x, zero) }},
                       else_branch = three () => (float[1,B,4] b) {{ b = Identity(x) }}>
        y = {operator}<hidden_size = 6>(u, w, r)
    }}""")
    shapes = {"w": (1, 6 * gates, 4), "r": (1, 6 * gates, 6)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items())
    run, x = session(proto.SerializeToString()), np.ones((1, 2, 4), np.float32)
    run.run(None, {"x": x, "flat": np.array(False)})
    with pytest.raises(Exception, match="3 dimensions"):
        run.run(None, {"x": x, "flat": np.array(True)})


def test_a_body_that_repeats_decides_nothing() -> None:
    """In a later iteration a size may be another one."""
    inner = RECURRENT.partition("{")[2].rpartition("}")[0].replace("READER", "y1 = LSTM<hidden_size = 6>(u, w, r)")
    proto = parse_model(f"""{HEADER} g (float[5,B,4,N] x, int64 k) => (float[j,p,q,b,h] y) {{
        t = Constant<value = bool {{1}}>()
        y = Loop (k, t) <body = step (int64 i, bool go) => (bool go, float[p,q,b,h] y1) {{ {inner} }}> }}""")
    proto.graph.node[1].attribute[0].g.output[0].name = "on"
    proto.graph.node[1].attribute[0].g.node.append(onnx.helper.make_node("Identity", ["go"], ["on"]))
    proto.graph.initializer.extend(recurrent("").graph.initializer)
    assert load(proto, check=False).taken == {}


def test_a_branch_is_taken_only_where_the_other_one_fails() -> None:
    asked: list[TakenBranches] = []

    def trials(*failing: str) -> BranchTrials:
        def trial(supposed: TakenBranches) -> dict[int, str]:
            asked.append(supposed)
            return {7: "lstm"} if supposed.attributes["v"] in failing else {3: "elsewhere"}

        return BranchTrials(10, trial)

    undecided = [UndecidedIf("v", 7)]
    known = trials(BRANCHES[1]).decided(undecided, TakenBranches())
    assert known is not None and known.attributes == {"v": BRANCHES[0]} and known.restrictions[0].node == "lstm"
    assert trials(*BRANCHES).decided(undecided, TakenBranches()) is None
    tried = trials()
    assert tried.decided(undecided, TakenBranches()) is None
    asked.clear()
    assert tried.decided(undecided, TakenBranches()) is None and not asked, "each If is tried once"
    assert BranchTrials(1 << 20, lambda _: {}).decided(undecided, TakenBranches()) is None


def test_a_schema_is_asked_whether_a_node_fails() -> None:
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6)
    weights = {name: TensorType(DataType.FLOAT, shape) for name, shape in WEIGHTS.items()}
    check_typed(node, 17, {"x": TensorType(DataType.FLOAT, (5, symbol("B"), 4)), **weights}, {})
    check_typed(node, 17, {"x": None, **weights}, {})
    with pytest.raises(IllTyped, match="rank 3"):
        check_typed(node, 17, {"x": TensorType(DataType.FLOAT, (5, 1, symbol("B"), 4)), **weights}, {})
    elsewhere = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], domain="elsewhere")
    check_typed(elsewhere, 17, {"x": TensorType(DataType.FLOAT, (5, 1, 3, 4)), **weights}, {})
