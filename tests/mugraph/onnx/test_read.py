"""Nodes that are read as operators, as constants, or opaque."""

from __future__ import annotations

import numpy as np
from onnx import helper

from mugraph.onnx import load
from mugraph.terms.shape import DataType, TensorType
from tests.support.models import (
    FLOAT,
    INT64,
    build,
    check_round_trip,
    values,
)


def test_shapes_computed_from_constants_are_read() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one", "zero"], ["lead"]),
        helper.make_node("Add", ["two", "one"], ["three"]),
        helper.make_node("Concat", ["lead", "three", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = {n: np.array([v], np.int64) for n, v in (("zero", 0), ("one", 1), ("two", 2), ("minus", -1))}
    proto = build(nodes, values(("x", FLOAT, [2, 12])), values(("y", FLOAT, [2, 3, 4])), constants)
    model = check_round_trip(proto)
    assert not model.opaque
    assert model.tables.types[model.values["y"]] == TensorType(DataType.FLOAT, (2, 3, 4))
    assert model.tables.constant[model.values["wanted"]]
    np.testing.assert_array_equal(model.tables.constants[model.values["wanted"]].load(), [2, 3, -1])


def test_why_a_node_is_opaque() -> None:
    proto = build(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"]),
            helper.make_node("Det", ["m"], ["d"]),
            helper.make_node("Relu", ["r"], ["y"]),
        ],
        values(("x", FLOAT, [4]), ("shape", INT64, [2]), ("m", FLOAT, [2, 2])),
        values(("y", FLOAT, [None, None]), ("d", FLOAT, [])),
    )
    model = load(proto)
    assert model.opaque == {0: "Reshape with computed shape", 1: "no record describes Det"}


def test_a_record_that_contradicts_the_file_is_not_believed() -> None:
    proto = build(
        [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Relu", ["t"], ["y"])],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, [3, 2])),
        value_info=values(("t", FLOAT, [7, 2])),
    )
    model = load(proto)
    assert "declared float[7,2]" in model.opaque[0]


def test_random_nodes_are_never_constants() -> None:
    proto = build(
        [
            helper.make_node("RandomNormal", [], ["r"], shape=[2]),
            helper.make_node("RandomNormalLike", ["w"], ["l"]),
            helper.make_node("Sum", ["r", "l", "x"], ["y"]),
        ],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        {"w": np.ones(2, np.float32)},
    )
    model = load(proto)
    assert not any(model.tables.constant[model.values[name]] for name in "rl")
