"""Attribute variables of properties and where they stand."""

from __future__ import annotations

from rulegen.properties.parameters import open_attributes
from tests.support.properties import one


def test_attribute_variables_stand_in_attributes_constants_and_sizes() -> None:
    axiom = one("a: Pad[begins=(1,),ends=(1,),mode='constant',value=$v](x) = Add(x, $v) when dim(x, -1, $m), dim(x, $k, 2)")
    assert open_attributes(axiom) == {"v": ("value", False), "m": ("sizes", True), "k": ("axis", False)}
    assert open_attributes(one("a: Mul(x, $s) = Mul($s, x)")) == {"s": ("value", False)}
