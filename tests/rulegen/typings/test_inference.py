"""Typings for equations that come without."""

from __future__ import annotations

import pytest

from mugraph.terms.shape import ShapeError, symbol
from mugraph.terms.text import parse_term, parse_type
from rulegen.typings.dimensions import Dimensions
from rulegen.typings.inference import infer_typing


def test_named_symbols_stay() -> None:
    dims = Dimensions()
    one = dims.fresh()
    dims.equal(symbol("n"), one)
    assert dims.resolve(one) == symbol("n")
    source = (parse_term("Split[axis=-1,sizes=(n,p)].0(x)"),)
    found = infer_typing(source, (parse_term("y"),), {})
    assert not isinstance(found, ShapeError)
    assert {name: str(type_) for name, type_ in found[0][2].items()} == {"x": "float[m,n+p]", "y": "float[m,n]"}


def test_declared_types_of_all_variables_are_taken_as_they_are() -> None:
    """Of integers, too, of which inference knows nothing; what does not fit is still told."""
    source, target = ((parse_term(text),) for text in ("Neg(DequantizeLinear(x, s))", "DequantizeLinear(x, Neg(s))"))
    types = {"x": parse_type("int8[m,n]"), "s": parse_type("[]")}
    found = infer_typing(source, target, types)
    assert not isinstance(found, ShapeError) and found[0].types == types
    assert isinstance(infer_typing(source, target, types | {"s": parse_type("[n]")}), ShapeError)


@pytest.mark.parametrize("perm", ["(7,2,0)", "(1,1)", "(2,1)"])
def test_what_is_no_permutation_has_no_type(perm: str) -> None:
    found = infer_typing((parse_term(f"Transpose[perm={perm}](x)"),), (parse_term("Neg(x)"),), {})
    assert isinstance(found, ShapeError) and "perm" in str(found)
