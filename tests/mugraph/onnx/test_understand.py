"""ONNX nodes under their records, and the reasons why a node stays opaque."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import NodeProto, helper

from mugraph.graph import Constant, Tables
from mugraph.onnx.understand import ModelOperators, UnderstoodNode, understand
from mugraph.ops import NotUnderstood
from mugraph.terms.shape import DataType, TensorType
from tests.support.models import FLOAT, build, values

IMPORTS = build([], [], [], domains={"com.microsoft": 1, "ai.onnx.ml": 3})
OPERATORS = ModelOperators.of(IMPORTS, 20)
MATRIX = TensorType(DataType.FLOAT, (2, 3))


def read(node: NodeProto, types: Sequence[TensorType | None], names_read: Sequence[str] = ("y",)) -> UnderstoodNode:
    tables = Tables()
    return understand(node, [tables.new_value(type_) for type_ in types], tables, OPERATORS, frozenset(names_read))


def test_an_understood_node() -> None:
    node = read(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), [MATRIX])
    assert (node.record.name, node.operands, node.operand_types, node.names) == ("Transpose", (0,), (MATRIX,), ("y",))
    assert node.outputs == (TensorType(DataType.FLOAT, (3, 2)),) and node.compiled is None


def test_outputs_at_the_end_that_nobody_reads_are_left_out() -> None:
    dropout = helper.make_node("Dropout", ["x"], ["y", "mask"])
    assert read(dropout, [MATRIX]).names == ("y",)
    with pytest.raises(NotUnderstood, match="Dropout with 2 outputs"):
        read(dropout, [MATRIX], ["y", "mask"])


def test_outputs_in_between_that_nobody_reads_are_left_out() -> None:
    """Exporters name all four results of a skip connection, of which two are read."""
    skip = helper.make_node("SkipLayerNormalization", list("xzgb"), ["y", "mean", "inverse", "sum"], domain="com.microsoft")
    row = TensorType(DataType.FLOAT, (3,))
    node = read(skip, [MATRIX, MATRIX, row, row], ["y", "sum"])
    assert node.names == ("y", "sum") and node.attributes["sum"]
    with pytest.raises(NotUnderstood, match="SkipLayerNormalization with the output 'mean'"):
        read(skip, [MATRIX, MATRIX, row, row], ["y", "sum", "mean"])


def test_inputs_without_a_type_or_a_value() -> None:
    with pytest.raises(NotUnderstood, match="the type of input 0 is unknown"):
        read(helper.make_node("Relu", ["x"], ["y"]), [None])
    tables = Tables()
    x, shape = tables.new_value(MATRIX), tables.new_value(TensorType(DataType.INT64, (1,)))
    reshape = helper.make_node("Reshape", ["x", "shape"], ["y"])
    with pytest.raises(NotUnderstood, match="computed shape"):
        understand(reshape, [x, shape], tables, OPERATORS, frozenset("y"))
    tables.constants[shape] = Constant.of(np.array([6]), TensorType(DataType.INT64, (1,)))
    assert understand(reshape, [x, shape], tables, OPERATORS, frozenset("y")).outputs[0].shape == (6,)


def test_operators_that_no_record_describes() -> None:
    with pytest.raises(NotUnderstood, match=r"no record describes Det$"):
        OPERATORS.record(helper.make_node("Det", ["x"], ["y"]))
    with pytest.raises(NotUnderstood, match=r"no record describes Relu of domain ai\.onnx\.ml"):
        OPERATORS.record(helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx.ml"))
    inner = helper.make_graph([], "inner", [], values(("x", FLOAT, [1])))
    with pytest.raises(NotUnderstood, match="it has subgraphs"):
        OPERATORS.record(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))


def test_a_function_goes_before_the_operator_of_its_name() -> None:
    operators = ModelOperators(20, {}, frozenset({("", "Relu"), ("", "Constant")}))
    relu, constant = helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Constant", [], ["c"], value_int=1)
    with pytest.raises(NotUnderstood, match="a function of the model"):
        operators.record(relu)
    assert not operators.is_pure(relu) and not operators.is_constant(constant)
    assert OPERATORS.record(relu).name == "Relu" and OPERATORS.is_constant(constant)


def test_versions_of_operator_sets() -> None:
    versions = [OPERATORS.version(domain) for domain in ("", "ai.onnx", "ai.onnx.ml", "elsewhere")]
    assert versions == [20, 20, 3, 1]


def test_only_what_the_schema_says_is_pure() -> None:
    assert not OPERATORS.is_pure(helper.make_node("RandomNormal", [], ["r"], shape=[2]))
    assert not OPERATORS.is_pure(helper.make_node("Unknown", [], ["r"]))
    assert not OPERATORS.is_pure(helper.make_node("Relu", ["x"], ["y"], domain="com.microsoft"))


def test_an_operator_that_its_opset_lacks_is_not_pure() -> None:
    """As a model has it that onnx's checker did not see."""
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y"])
    assert ModelOperators.of(IMPORTS, 17).is_pure(node) and not ModelOperators.of(IMPORTS, 16).is_pure(node)
