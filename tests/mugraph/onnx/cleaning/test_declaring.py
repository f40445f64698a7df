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


def named(proto: onnx.ModelProto, depth: Depth = Depth.NUMBERS) -> onnx.ModelProto:
    """A clean model with names for sizes; without them nothing is named."""
    result = clean(load(proto), computed, depth)
    assert result is not None and declared(result.model.proto) == []
    written = result.with_names().model.proto
    assert declared(result.model.proto) == []
    return written


def declared(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.value_info]


def test_sizes_are_named_where_they_are_new() -> None:
    """What is elementwise has the sizes of its operand, and inputs and outputs have types anyway."""
    written = named(convolutions())
    assert declared(written) == ["a", "d"]
    onnx.checker.check_model(written, full_check=True)
    (first, second) = [[dim.dim_param for dim in value.type.tensor_type.shape.dim[2:]] for value in written.graph.value_info]
    assert len({*first, *second}) == 4 and all((*first, *second))


def test_sizes_are_named_however_deep_and_nothing_where_they_are_known() -> None:
    assert declared(named(convolutions(), Depth.PLAIN)) == ["a", "d"]
    assert declared(named(convolutions(CONVOLUTIONS.replace("H,W", "9,9")))) == []


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
