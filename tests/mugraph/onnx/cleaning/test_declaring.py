"""Types that name sizes: of which values, and how many."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load
from mugraph.onnx.cleaning import Depth, SizeNames, clean
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


def named(proto: onnx.ModelProto, names: SizeNames, depth: Depth = Depth.NUMBERS) -> onnx.ModelProto:
    """A clean model with names for sizes."""
    result = clean(load(proto), computed, depth)
    assert result is not None
    return result.with_names(names).model.proto


def declared(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.value_info]


def test_sizes_are_named_where_they_are_new() -> None:
    """What is elementwise has the sizes of its operand, and inputs and outputs have types anyway."""
    written = named(convolutions(), SizeNames.OWN)
    assert declared(written) == ["a", "d"]
    onnx.checker.check_model(written, full_check=True)
    (first, second) = [[dim.dim_param for dim in value.type.tensor_type.shape.dim[2:]] for value in written.graph.value_info]
    assert len({*first, *second}) == 4 and all((*first, *second))


def test_nothing_is_named_without_names_or_with_known_sizes() -> None:
    assert declared(named(convolutions(), SizeNames.NONE)) == []
    assert declared(named(convolutions(), SizeNames.SHARED, Depth.PLAIN)) == ["a", "d"]
    assert declared(named(convolutions(CONVOLUTIONS.replace("H,W", "9,9")), SizeNames.SHARED)) == []


@pytest.mark.parametrize(("room", "wanted"), [(0, []), (60, ["a"]), (1000, ["a", "d"])])
def test_no_more_is_named_than_there_is_room_for(room: int, wanted: list[str]) -> None:
    model = load(convolutions())
    size = model.proto.ByteSize()
    declare_sizes(model, room, equal=False)
    assert declared(model.proto) == wanted and model.proto.ByteSize() <= size + room


def test_what_the_file_declares_stays() -> None:
    proto = convolutions()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 3, "p", "q"]))
    model = load(proto)
    declare_sizes(model, 1000, equal=False)
    assert declared(model.proto) == ["a", "d"] and model.proto.graph.value_info[0] == proto.graph.value_info[0]


RESHAPED = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,4,6] x, float[N,4,6] z) => (float[N,24] y, float[s,8] w)
    <int64[2] rows = {-1, 24}, int64[2] short = {-1, 8}, int64[2] known = {-1, 6}, float[2,3] k = {1, 2, 3, 4, 5, 6}> {
    a = Reshape(x, rows) b = Exp(a) c = Reshape(z, short) d = Reshape(x, short) e = Add(c, d) f = Reshape(b, rows) y = Add(f, a)
    w = Exp(e) g = Reshape(k, known) }"""


def names_of_sizes(*, equal: bool) -> dict[str, object]:
    """What the first dimension of each value is called whose type is declared."""
    model = load(parse_model(RESHAPED))
    declare_sizes(model, 1000, equal=equal)
    onnx.checker.check_model(model.proto, full_check=True)
    dims = {value.name: value.type.tensor_type.shape.dim[0] for value in model.proto.graph.value_info}
    return {name: dim.dim_param or dim.dim_value for name, dim in dims.items()}


def test_sizes_that_are_known_to_be_equal_have_one_name() -> None:
    """That of the file where it has one; else a short one that the file does not use for another size."""
    shared = names_of_sizes(equal=True)
    assert shared["a"] == shared["f"] == "N"
    assert shared["c"] == shared["d"] and shared["c"] not in ("N", "s", "")
    apart = names_of_sizes(equal=False)
    assert len({apart["a"], apart["f"], apart["c"], apart["d"], "N", "s"}) == 6


def test_a_size_shares_its_name_or_has_its_own() -> None:
    proto = convolutions()
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "H"
    for names, count in ((SizeNames.SHARED, 2), (SizeNames.OWN, 4)):
        types = [value.type.tensor_type for value in named(proto, names).graph.value_info]
        sizes = [dim.dim_param for type_ in types for dim in type_.shape.dim[2:]]
        assert len(set(sizes)) == count and all(sizes)
