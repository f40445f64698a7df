"""Attribute variables of properties and where they stand."""

from __future__ import annotations

from rulegen.properties.parameters import open_attributes, quantized_variables
from tests.support.properties import one


def test_attribute_variables_stand_in_attributes_constants_and_sizes() -> None:
    axiom = one("a: Pad[begins=(1,),ends=(1,),mode='constant',value=$v](x) = Add(x, $v) when dim(x, -1, $m), dim(x, $k, 2)")
    assert open_attributes(axiom) == {"v": ("value", False), "m": ("sizes", True), "k": ("axis", False)}
    assert open_attributes(one("a: Mul(x, $s) = Mul($s, x)")) == {"s": ("value", False)}


def test_quantised_operators_say_what_their_operands_are() -> None:
    axiom = one("a: Transpose[perm=$p](DequantizeLinear(q, s, z)) = DequantizeLinear(Transpose[perm=$p](q), s, z)")
    found = {name: (like.dtype.name, like.rank) for name, like in quantized_variables(axiom).items()}
    assert found == {"q": ("UINT8", None), "s": ("FLOAT", 0), "z": ("UINT8", 0)}
    signed = one("a: QuantizeLinear[to=int8](DequantizeLinear(Concat[axis=-1](q, r), s), s) = Concat[axis=-1](q, r)")
    assert {name: like.dtype.name for name, like in quantized_variables(signed).items()} == {
        "q": "INT8",
        "r": "INT8",
        "s": "FLOAT",
    }
    product = one("a: MatMulIntegerToFloat(x, y, s, t) = MatMulIntegerToFloat(x, Expand[shape=$h](y), s, t)")
    assert {name: like.rank for name, like in quantized_variables(product).items()} == {"x": None, "y": 2, "s": 0, "t": 0}
    assert not quantized_variables(one("a: Add(x, y) = Add(y, x)"))
