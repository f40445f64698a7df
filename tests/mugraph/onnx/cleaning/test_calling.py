"""Calls of a model's functions are written out: which, and that outputs are the same bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.onnx import load, node_count, to_bytes
from mugraph.onnx.calls import functions_of
from mugraph.onnx.cleaning import calling, clean
from rewriter import optimize
from rewriter.run.cleaning import computed

HEAD = '<ir_version: 9, opset_import: ["" : 17, "own" : 1]>'
X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def written(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What a model becomes; the model itself where nothing is to be done."""
    result = clean(load(proto), computed)
    if result is None:
        return proto
    assert (result.nodes_before, result.nodes_after) == (node_count(proto), node_count(result.model.proto))
    made = onnx.ModelProto.FromString(to_bytes(result.model, result.model.graph))
    onnx.checker.check_model(made)
    return made


def outputs(model: onnx.ModelProto, **feed: np.ndarray) -> list[tuple[object, ...]]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [(a.dtype, a.shape, a.tobytes()) for a in map(np.asarray, session.run(None, feed))]


def called(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def test_nested_calls_with_attributes_and_inputs_that_are_left_out() -> None:
    """Names within functions are also those of values around, and an attribute has a default."""
    proto = parse_model(f"""{HEAD}
        g (float[N,8] x, float[8] h) => (float[N,8] y, float[N,8] t) {{
            t = own.Outer <by = 0.5> (x, h)
            u = own.Inner (t)
            y = own.Outer (u, x)
        }}
        <domain: "own", opset_import: ["" : 17, "own" : 1]> Outer <by: float = 2.0> (x, u) => (h) {{
            t = own.Inner <by: float = @by> (u)
            y = Mul(x, t)
            h = own.Inner (y)
        }}
        <domain: "own", opset_import: ["" : 17]> Inner <by: float = 3.0> (u) => (v) {{
            t = Constant <value_float: float = @by> ()
            x = Add(u, t)
            v = Sin(x)
        }}""")
    made = written(proto)
    assert not made.functions and called(made) == {"Add", "Sin", "Mul"} and node_count(proto) > node_count(made)
    feed = {"x": X, "h": X[0]}
    assert outputs(made, **feed) == outputs(proto, **feed)


@pytest.mark.parametrize("caller", ["own", "com.microsoft"], ids=["written out", "kept"])
def test_a_default_of_what_a_caller_leaves_out(caller: str) -> None:
    """An attribute is handed on that the caller lacks: the default counts, which onnx's inliner would drop."""
    proto = parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1, "com.microsoft" : 1]>
        g (float[N,8] x) => (float[N,8] y) {{ a = {caller}.Outer(x) y = own.Outermost(a) }}
        <domain: "{caller}", opset_import: ["" : 17, "own" : 1]> Outer <alpha> (u) => (h) {{
            h = own.Inner <alpha: float = @alpha> (u)
        }}
        <domain: "own", opset_import: ["" : 17]> Inner <alpha: float = 0.5> (u) => (v) {{
            v = LeakyRelu <alpha: float = @alpha> (u)
        }}
        <domain: "own", opset_import: ["" : 17]> Outermost (u) => (v) {{ v = Sin(u) }}""")
    made = written(proto)
    assert called(made) == {"Inner" if caller == "own" else "Outer", "Sin"}
    assert outputs(made, x=X) == outputs(proto, x=X)


def test_a_body_of_a_function_gives_what_it_was_fed() -> None:
    """onnx's inliner renames the output and not the input: the model would be none."""
    proto = parse_model(f"""{HEAD} g (float[N,8] x, int64 n) => (float[N,8] y) {{ a = own.f(x, n) y = own.f(a, n) }}
        <domain: "own", opset_import: ["" : 17]> f (x, n) => (y) {{
            t = Exp(x)
            y = Loop (n, , x) < body = b (int64 n, bool go, float[N,8] x) => (bool go, float[N,8] r) {{ r = Add(t, x) }}>
        }}""")
    made = written(proto)
    assert not made.functions and called(made) == {"Exp", "Loop"}
    feed = {"x": X, "n": np.array(3)}
    assert outputs(made, **feed) == outputs(proto, **feed)


@pytest.mark.parametrize("given", ["", '"ai.onnx" : 17, '], ids=["its own alone", "another name"])
def test_domains_that_functions_alone_import(given: str) -> None:
    proto = parse_model(f"""<ir_version: 9, opset_import: [{given}"own" : 1]>
        g (float[N,8] x) => (float[N,8] y) {{ y = own.f(x) }}
        <domain: "own", opset_import: ["" : 17, "com.microsoft" : 1]> f (u) => (v) {{ w = com.microsoft.Gelu(u) v = Sin(w) }}""")
    made = written(proto)
    assert called(made) == {"Gelu", "Sin"} and len(made.opset_import) == 3
    assert outputs(made, x=X) == outputs(proto, x=X)


@pytest.mark.parametrize("flag", [True, False])
def test_calls_from_bodies_and_bodies_of_functions(flag: bool) -> None:
    """What a body reads from around it keeps its meaning in another place."""
    proto = parse_model(f"""{HEAD}
        g (float[N,8] x, bool c) => (float[N,8] y) {{
            a = Exp(x)
            y = If (c) <
                then_branch = one () => (float[N,8] p) {{ b = own.Chosen(a, c) p = Neg(b) }},
                else_branch = two () => (float[N,8] q) {{ q = own.Chosen(x, c) }}>
        }}
        <domain: "own", opset_import: ["" : 17]> Chosen (x, a) => (b) {{
            p = Tanh(x)
            b = If (a) <
                then_branch = left () => (float[N,8] q) {{ q = Mul(p, x) }},
                else_branch = right () => (float[N,8] r) {{ r = Sub(p, x) }}>
        }}""")
    made = written(proto)
    assert not made.functions
    feed = {"x": X, "c": np.array(flag)}
    assert outputs(made, **feed) == outputs(proto, **feed)


@pytest.mark.parametrize(
    ("domain", "opset"),
    [(KERNEL_DOMAIN, 17), ("com.microsoft", 17), ("", 17), ("own", 16)],
    ids=["a custom kernel's", "a domain of onnxruntime's", "ONNX's", "another opset"],
)
def test_what_stays_a_call(domain: str, opset: int) -> None:
    name = "f" if domain else "Elu"
    proto = parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "{domain or "own"}" : 1]>
        g (float[N,8] x) => (float[N,8] y) {{ a = Identity(x) y = {domain + "." if domain else ""}{name}(a) }}
        <domain: "{domain}", opset_import: ["" : {opset}]> {name} (u) => (v) {{ w = Exp(u) v = Sin(w) }}""")
    assert called(written(proto)) == {name}


def test_what_would_be_many_nodes_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = parse_model(f"""{HEAD} g (float[N,8] x) => (float[N,8] y) {{ a = Identity(x) y = own.f(a) }}
        <domain: "own", opset_import: ["" : 17]> f (u) => (v) {{ w = Exp(u) v = Sin(w) }}""")
    assert called(written(proto)) == {"Exp", "Sin"}
    monkeypatch.setattr(calling, "_MOST_NODES", 2)
    assert called(written(proto)) == {"f"} and functions_of(written(proto))


def test_a_function_is_optimised_like_the_rest(tmp_path: Path) -> None:
    """Functions were left as they came: 'not understood'."""
    proto = parse_model(f"""{HEAD} g (float[4,64] x) => (float[4,64] y) {{ y = own.there_and_back(x) }}
        <domain: "own", opset_import: ["" : 17]> there_and_back (u) => (w) {{
            a = Transpose <perm = [1, 0]> (u)
            b = Exp(a)
            c = Transpose <perm = [1, 0]> (b)
            w = Sin(c)
        }}""")
    outcome = optimize(proto, tmp_path / "o.onnx", provider="cpu", deterministic=True)
    assert outcome.improved and (outcome.nodes_before, outcome.nodes_after) == (4, 2)
    (told,) = (note for note in outcome.notes if "written out" in note)
    assert told == "functions of the model are written out where they were called: there_and_back; --budget 0 keeps them"
    assert outputs(onnx.load(tmp_path / "o.onnx"), x=np.ones((4, 64), np.float32))
