"""Ranges, positions and masks of symbolic length: what their entries are known to be, and what the nodes are read as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import Model, load, to_bytes
from tests.support.models import op_types, random_feeds, session

SIZES = [(1, 1), (1, 5), (3, 1), (2, 7)]
"""Batch and sequence."""

CONSTANTS: dict[str, Any] = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.int64(2),
    "zero32": np.int32(0),
    "large32": np.int32(1 << 30),
    "v0": [0],
    "v1": [1],
    "v12": [1, 2],
    "v23": [2, 3],
    "far": [2**62],
    "back": [-1],
    "no": np.float32(-10000),
    "yes": np.float32(0),
}

LENGTHS = """
    shape = Shape(ids)
    b = Gather <axis: int = 0> (shape, zero)
    s = Gather <axis: int = 0> (shape, one)
    bv = Gather <axis: int = 0> (shape, v0)
    sv = Gather <axis: int = 0> (shape, v1)
    steps = Range(zero, s, one)
    row = Unsqueeze(steps, v0)
    column = Unsqueeze(steps, v1)
    batches = Range(zero, b, one)
"""

CAUSAL = "y = LessOrEqual(row, column)"

PACKED = """
    rows = Concat <axis: int = 0> (bv, v1)
    positions = Expand(row, rows)
    head = Slice(positions, v0, v1, v1)
    before = Sub(head, one)
    joined = Concat <axis: int = 1> (before, positions)
    later = Slice(joined, v1, far, v1)
    earlier = Slice(joined, v0, back, v1)
    step = Sub(later, earlier)
    follows = Equal(step, one)
    starts = Not(follows)
    number = Cast <to: int = 7> (starts)
    document = CumSum(number, one)
"""
"""How transformers looks for documents that were packed into one sequence: there is but one where positions are counted."""

LOOKED_UP = """
    batch = Unsqueeze(batches, v12)
    keys = Unsqueeze(row, v0)
    shape3 = Concat <axis: int = 0> (bv, v1, sv)
    batch3 = Expand(batch, shape3)
    keys3 = Expand(keys, shape3)
    batch4 = Unsqueeze(batch3, back)
    keys4 = Unsqueeze(keys3, back)
    places = Concat <axis: int = -1> (batch4, keys4)
"""
"""Places [b,1,s,2] of all entries of a tensor [b,s], as vmap exports them."""


def model_of(body: str, output: str, known: str = "", **constants: Any) -> ModelProto:
    """A model of ids [b,s] that computes y, and z = -(-w) beside it."""
    proto = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (int64[b,s] ids, float[4] w) => ({output} y, float[4] z) <{known}> {{ {LENGTHS} {body} n = Neg(w) z = Neg(n) }}"""
    )
    read = {name for node in proto.graph.node for name in node.input}
    given = {name: value for name, value in {**CONSTANTS, **constants}.items() if name in read}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in given.items())
    return proto


def reading(model: Model, name: str) -> str:
    """The operator that a value is read as, behind what repeats it."""
    definition = model.graph.definition(model.values[name])
    while definition is not None and definition[0].op in ("Identity", "Expand", "Unsqueeze") and definition[0].inputs:
        value = definition[0].inputs[0]
        definition = model.graph.definition(value)
    return "" if definition is None else definition[0].op


def rewritten(proto: ModelProto) -> ModelProto:
    """The model with z = w, so that whatever does not stand on its own is written anew; compared with the original."""
    model = load(proto)
    same = model.tables.apply("Identity", (), [model.values["w"]])
    written = to_bytes(model, model.graph.substitute({model.values["z"]: (same, 0)}))
    before, after = session(proto.SerializeToString()), session(written)
    for batch, length in SIZES:
        feeds = random_feeds(before, b=batch, s=length)
        for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert expected.dtype == actual.dtype
            np.testing.assert_array_equal(actual, expected)
    return ModelProto.FromString(written)


@pytest.mark.parametrize(
    ("body", "output", "op"),
    [
        (CAUSAL, "bool[s,s]", "CausalMask"),
        ("later = Greater(row, column) y = Not(later)", "bool[s,s]", "CausalMask"),
        ("next = Add(column, one) y = Less(row, next)", "bool[s,s]", "CausalMask"),
        ("all = GreaterOrEqual(row, zero) causal = LessOrEqual(row, column) y = And(all, causal)", "bool[s,s]", "CausalMask"),
        (
            "c = Sub(column, two) near = Greater(row, c) causal = LessOrEqual(row, column) y = And(causal, near)",
            "bool[s,s]",
            "BandMask",
        ),
        ("d = Sub(row, column) a = Abs(d) y = LessOrEqual(a, two)", "bool[s,s]", "BandMask"),
        ("d = Sub(row, column) a = Abs(d) off = Greater(a, two) y = Not(off)", "bool[s,s]", "BandMask"),
        ("d = Sub(row, column) a = Abs(d) y = Greater(a, two)", "bool[s,s]", "Greater"),
        ("d = Sub(row, column) e = Sub(column, row) f = Add(d, e) y = Equal(f, zero)", "bool[s,s]", "ConstantOfShape"),
        ("y = Less(row, s)", "bool[1,s]", "ConstantOfShape"),
        (
            "narrow = Cast <to: int = 6> (row) wide = Mul(narrow, large32) y = GreaterOrEqual(wide, zero32)",
            "bool[1,s]",
            "GreaterOrEqual",
        ),
        ("d = Mul(row, two) y = Sub(d, row)", "int64[1,s]", "Range"),
        ("c = GreaterOrEqual(steps, zero) y = Where(c, row, column)", "int64[s,s]", "Range"),
        ("y = Equal(row, column)", "bool[s,s]", "BandMask"),
        ("early = Less(row, two) past = LessOrEqual(row, column) y = Or(early, past)", "bool[s,s]", "PrefixMask"),
        ("early = LessOrEqual(row, two) past = GreaterOrEqual(column, row) y = Or(past, early)", "bool[s,s]", "PrefixMask"),
        ("early = Less(column, two) past = LessOrEqual(row, column) y = Or(early, past)", "bool[s,s]", "Or"),
        ("late = Greater(row, two) past = LessOrEqual(row, column) y = Or(late, past)", "bool[s,s]", "Or"),
        ("early = Less(row, two) past = Less(row, column) y = Or(early, past)", "bool[s,s]", "Or"),
        ("y = Less(row, column)", "bool[s,s]", "Less"),
        ("near = Sub(column, two) y = Greater(row, near)", "bool[s,s]", "BandMask"),
        ("d = Mul(row, row) y = Sub(d, row)", "int64[1,s]", "Sub"),
        ("h = Div(row, two) y = Sub(h, row)", "int64[1,s]", "Sub"),
    ],
)
def test_what_is_computed_of_positions_is_read_as_what_it_is(body: str, output: str, op: str) -> None:
    proto = model_of(body, output)
    assert reading(load(proto), "y") == op
    rewritten(proto)


def test_a_sequence_that_is_counted_is_one_document() -> None:
    look = "document4 = GatherND(document, places) same = Equal(document4, zero) y = And(same, allowed)"
    allowed = "causal = LessOrEqual(row, column) allowed = Unsqueeze(causal, v0)"
    proto = model_of(PACKED + LOOKED_UP + allowed + look, "bool[b,s,s]", "int64[b,1] head")
    model = load(proto)
    assert not model.opaque and reading(model, "document") == "ConstantOfShape" and reading(model, "same") == "ConstantOfShape"
    written = op_types(rewritten(proto))
    assert {"CumSum", "GatherND", "Equal", "Slice"}.isdisjoint(written) and "LessOrEqual" in written


def test_positions_of_another_start_are_several_documents() -> None:
    """A position that is not counted on is where a document begins."""
    twice = PACKED.replace("later = Slice", "doubled = Mul(joined, two) later = Slice").replace("(joined, v1", "(doubled, v1")
    model = load(model_of(twice + "y = Identity(document)", "int64[b,s]", "int64[b,1] head"))
    assert reading(model, "document") == "CumSum"


def test_entries_at_all_places_in_order_are_a_view() -> None:
    proto = model_of(LOOKED_UP + "y = GatherND(ids, places)", "int64[b,1,s]")
    assert reading(load(proto), "y") == ""
    assert "GatherND" not in op_types(rewritten(proto))


def test_elements_at_their_own_places_are_the_tensor() -> None:
    """As relative positions are looked up: an index for each entry along one axis, the other axes as they are."""
    body = "shape2 = Concat <axis: int = 0> (bv, sv) own = Expand(row, shape2) "
    found = "y = GatherElements <axis: int = 1> (ids, own)"
    proto = model_of(body + found, "int64[b,s]")
    assert reading(load(proto), "y") == ""
    assert "GatherElements" not in op_types(rewritten(proto))
    turned = model_of(body + "last = Sub(s, one) own2 = Sub(last, own) " + found.replace("own)", "own2)"), "int64[b,s]")
    assert reading(load(turned), "y") == "GatherElements"


def test_rows_of_all_batches_are_counted_by_two_digits() -> None:
    """As TorchScript exports it: a mask laid flat, and looked up at batch times positions plus position."""
    flat = """
        kept = Cast <to: int = 9> (ids)
        flat = Flatten <axis: int = 2> (kept)
        whole = Mul(LEFT, SIZE)
        at = Add(keys, whole)
        found = Gather <axis: int = 0> (flat, at)
        again = Cast <to: int = 9> (found)
        y = Squeeze(again, back)
    """
    proto = model_of(LOOKED_UP + flat.replace("LEFT", "batch").replace("SIZE", "sv"), "bool[b,1,s]")
    written = op_types(rewritten(proto))
    assert {"Add", "Range"}.isdisjoint(written) and written.count("Cast") == 1
    assert reading(load(proto), "found") == "Reshape"
    other = model_of(LOOKED_UP + flat.replace("LEFT", "batch").replace("SIZE", "one"), "bool[b,1,s]")
    assert reading(load(other), "found") == "Gather"


@pytest.mark.parametrize(
    "change",
    [
        ("Concat <axis: int = -1> (batch4, keys4)", "Concat <axis: int = -1> (keys4, batch4)"),  # may be outside
        ("(keys, shape3)", "(other, shape3)"),
    ],
)
def test_entries_at_other_places_are_looked_up(change: tuple[str, str]) -> None:
    other = "last = Sub(s, one) turned = Sub(last, keys) other = Identity(turned)"
    body = LOOKED_UP.replace("keys3", f"{other} keys3", 1).replace(*change)
    proto = model_of(body + "y = GatherND(ids, places)", "int64[b,1,s]")
    assert reading(load(proto), "y") == "GatherND"


def test_a_mask_that_hides_nothing_leaves_the_other() -> None:
    body = (
        LOOKED_UP
        + "told = Cast <to: int = 9> (ids) all = GreaterOrEqual(column, zero) key = GatherND(told, places) y = And(all, key)"
    )
    proto = model_of(body, "bool[b,s,s]")
    written = op_types(rewritten(proto))
    assert {"GatherND", "And", "GreaterOrEqual", "Range"}.isdisjoint(written) and "Expand" in written
    body = body.replace("y = And(all, key)", "none = Not(all) y = Or(key, none)")
    assert {"Or", "GatherND", "Range"}.isdisjoint(op_types(rewritten(model_of(body, "bool[b,s,s]"))))
    body = body.replace("y = Or(key, none)", "y = And(key, none)")
    assert reading(load(model_of(body, "bool[b,s,s]")), "y") == "And"


def test_an_additive_mask_reads_positions_alone() -> None:
    proto = model_of("c = LessOrEqual(row, column) y = Where(c, yes, no)", "float[s,s]")
    assert op_types(rewritten(proto)).count("Range") == 2


def test_more_queries_than_keys_are_no_causal_mask() -> None:
    """Of queries whose positions begin before the first key, some would see nothing."""
    longer = "t = Add(s, one) more = Range(zero, t, one) next = Add(column, one) "
    seen = "queries = Unsqueeze(more, v1) before = Sub(queries, one) y = LessOrEqual(row, before)"
    assert reading(load(model_of(longer + seen, "bool[t1,s]")), "y") == "LessOrEqual"
    proto = model_of(longer + "keys = Unsqueeze(more, v0) y = LessOrEqual(keys, next)", "bool[s,t1]")
    assert reading(load(proto), "y") == "CausalMask"
    rewritten(proto)


def test_constants_that_count_are_positions() -> None:
    body, zeros = "line = Unsqueeze(w, v0) y = GatherND(line, table)", np.zeros(4, np.int64)
    counted = model_of(body, "float[4]", table=np.stack([zeros, np.arange(4)], -1))
    assert reading(load(counted), "y") == "Squeeze"
    rewritten(counted)
    turned = model_of(body, "float[4]", table=np.stack([zeros, np.arange(4)[::-1]], -1))
    assert reading(load(turned), "y") == "GatherND"


@pytest.mark.parametrize(
    ("lookup", "output", "ops"),
    [
        ("Gather <axis: int = 1> (x, one)", "float16[2,6,8]", ["Slice", "Squeeze"]),
        ("Gather <axis: int = 2> (x, last)", "float16[2,3,8]", ["Slice", "Squeeze"]),
        ("Gather <axis: int = 3> (x, few)", "float16[2,3,6,3]", ["Slice"]),
        ("Gather <axis: int = 1> (x, only)", "float16[2,1,6,8]", ["Slice"]),
        ("GatherND (x, corner)", "float16[6,8]", ["GatherND"]),
        ("Gather <axis: int = 3> (x, back)", "float16[2,3,6,2]", ["Gather"]),
        ("Gather <axis: int = 1> (x, far)", "float16[2,1,6,8]", ["Gather"]),  # an error in onnxruntime
    ],
)
def test_entries_at_constant_places_in_their_order_are_a_part(lookup: str, output: str, ops: list[str]) -> None:
    """As exporters index: one layer of what is packed, every other entry."""
    places = "int64 one = {1}, int64 last = {-1}, int64[3] few = {1, 3, 5}, int64[1] only = {2}, int64[2] back = {4, 2}"
    header = '<ir_version: 8, opset_import: ["" : 18]> g (float16[2,3,6,8] x) => '
    outputs = f"({output} y, float16[2,3,6,8] z, float16[2,3,6,8] w) "
    constants = f"<{places}, int64[1] far = {'{3}'}, int64[2] corner = {'{1, 2}'}>"
    proto = parse_model(header + outputs + constants + f"{'{'} y = {lookup} z = Neg(x) w = Relu(x) {'}'}")
    model = load(proto)
    assert [node.op for node in model.graph.nodes() if node.op not in ("Identity", "Neg", "Relu")] == ops
    written = to_bytes(
        model, model.graph.substitute({model.values["z"]: (model.tables.apply("Abs", (), [model.values["x"]]), 0)})
    )
    assert set(op_types(ModelProto.FromString(written))) == {*ops, "Abs", "Relu"}
    if lookup != "Gather <axis: int = 1> (x, far)":
        x = np.random.default_rng(0).standard_normal((2, 3, 6, 8)).astype(np.float16)
        wanted, given = (session(one).run(["y"], {"x": x})[0] for one in (proto.SerializeToString(), written))
        np.testing.assert_array_equal(given, wanted)
