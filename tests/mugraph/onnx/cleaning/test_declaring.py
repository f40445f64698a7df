"""Types that name sizes: of which values, and how many."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.onnx.cleaning import Depth, clean
from mugraph.onnx.cleaning.declaring import declare_sizes
from rewriter.run.cleaning import computed

CONVOLUTIONS = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,H,W] x) => (float[1,3,h,w] y) {
    one = Constant<value = float[1] {1.0}>() two = Add(one, one) e = Exp(x) a = Conv<strides = [2, 2]>(e, k) b = Relu(a)
    dead = Neg(e) also_dead = Exp(dead) dead_too = Neg(also_dead) dead_as_well = Tanh(dead_too)
    c = Mul(b, two) d = Conv<strides = [2, 2]>(c, k) f = Relu(d) y = Conv(f, k) }"""


def convolutions(text: str = CONVOLUTIONS) -> onnx.ModelProto:
    proto = parse_model(text)
    weight = np.random.default_rng(0).standard_normal((3, 3, 2, 2)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "k"))
    proto.graph.doc_string = "a long text " * 20
    return proto


def declared(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.value_info]


def test_sizes_are_named_where_they_are_new() -> None:
    """What is elementwise has the sizes of its operand, and inputs and outputs have types anyway."""
    result = clean(load(convolutions()), computed)
    assert result is not None and declared(result.model.proto) == ["a", "d"]
    onnx.checker.check_model(result.model.proto, full_check=True)
    (first, second) = [[dim.dim_param for dim in v.type.tensor_type.shape.dim[2:]] for v in result.model.proto.graph.value_info]
    assert len({*first, *second}) == 4 and all((*first, *second))


def test_less_deep_or_with_known_sizes_nothing_is_named() -> None:
    result = clean(load(convolutions()), computed, Depth.NUMBERS)
    assert result is not None and declared(result.model.proto) == []
    static = clean(load(convolutions(CONVOLUTIONS.replace("H,W", "9,9"))), computed)
    assert static is not None and declared(static.model.proto) == []


@pytest.mark.parametrize(("room", "wanted"), [(0, []), (60, ["a"]), (1000, ["a", "d"])])
def test_no_more_is_named_than_there_is_room_for(room: int, wanted: list[str]) -> None:
    model = load(convolutions())
    size = model.proto.ByteSize()
    declare_sizes(model, room)
    assert declared(model.proto) == wanted and model.proto.ByteSize() <= size + room


def test_what_the_file_declares_stays() -> None:
    proto = convolutions()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 3, "p", "q"]))
    model = load(proto)
    declare_sizes(model, 1000)
    assert declared(model.proto) == ["a", "d"] and model.proto.graph.value_info[0] == proto.graph.value_info[0]
