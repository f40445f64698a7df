"""Symbols for sizes."""

from __future__ import annotations

import pytest

from mugraph.terms.text import parse_term, parse_type
from rulegen.mine.lifting import lift

# Symbols for sizes


@pytest.mark.parametrize(
    ("term", "types", "lifted", "symbolic"),
    [
        ("Reshape[drop=1,shape=(3,6)](x)", {"x": "[2,5,18]"}, "Reshape[drop=1,shape=(k,p)](x)", {"x": "float[m,n,k*p]"}),
        (
            "Reshape[drop=3,shape=(2,3,6,5)](Transpose[perm=(1,0)](Reshape[drop=4,shape=(6,5,6)](x)))",
            {"x": "[2,3,5,6]"},
            "Reshape[drop=3,shape=(m,n,p,k)](Transpose[perm=(1,0)](Reshape[drop=4,shape=(m*n,k,p)](x)))",
            {"x": "float[m,n,k,p]"},
        ),
        (
            "Neg(Slice[axes=(-1,),ends=(6,),starts=(3,),steps=(1,)](x))",
            {"x": "[5,6]"},
            "Neg(Slice[axes=(-1,),ends=(2*n,),starts=(n,),steps=(1,)](x))",
            {"x": "float[m,2*n]"},
        ),
        ("Add(x, y)", {"x": "[4,1,4]", "y": "[4,4]"}, "Add(x, y)", {"x": "float[m,1,n]", "y": "float[k,n]"}),
        (
            "Reshape[drop=4,shape=(12,5,7)](Tile[repeats=(3,1,1)](Unsqueeze[axes=(-3,)](x)))",
            {"x": "[2,4,5,7]"},
            "Reshape[drop=4,shape=(n*q,k,p)](Tile[repeats=(q,1,1)](Unsqueeze[axes=(-3,)](x)))",
            {"x": "float[m,n,k,p]"},
        ),
        (
            "Where(CausalMask[columns=5,rows=5](), x, -inf)",
            {"x": "[2,5,5]"},
            "Where(CausalMask[columns=k,rows=n](), x, -inf)",
            {"x": "float[m,n,k]"},
        ),
        (
            "Reshape[drop=1,shape=(2,7)](Split[axis=-1,sizes=(14,14,14)].1(Add(x, y)))",
            {"x": "[3,42]", "y": "[42]"},
            "Reshape[drop=1,shape=(n,k)](Split[axis=-1,sizes=(k*n,k*n,k*n)].1(Add(x, y)))",
            {"x": "float[m,3*k*n]", "y": "float[3*k*n]"},
        ),
    ],
)
def test_sizes_become_symbols(term: str, types: dict[str, str], lifted: str, symbolic: dict[str, str]) -> None:
    """Equal sizes that nothing relates stay apart; products, sums and broadcasting relate the others."""
    made = lift((parse_term(term),), {name: parse_type(text) for name, text in types.items()})
    assert made is not None
    assert (str(made[0][0]), {name: str(type_) for name, type_ in made[1].items()}) == (lifted, symbolic)


def test_an_uneven_cut_is_not_lifted() -> None:
    assert lift((parse_term("Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)](x)"),), {"x": parse_type("[5,6]")}) is None


@pytest.mark.parametrize("alike", [False, True])
def test_sizes_that_are_equal_may_be_one_symbol(alike: bool) -> None:
    """And a multiple of eight is so for all sizes; the factors of repeated heads are the same for two operands."""
    heads = "Reshape[drop=4,shape=(12,5,{0})](Expand[shape=(2,4,3,5,{0})](Unsqueeze[axes=(-3,)]({1})))"
    source = parse_term(f"MatMul(Transpose[perm=(1,0)]({heads.format(8, 'x')}), {heads.format(6, 'y')})")
    made = lift((source,), {"x": parse_type("[2,4,5,8]"), "y": parse_type("[2,4,5,6]")}, alike)
    assert made is not None
    types = {name: str(type_) for name, type_ in made[1].items()}
    assert types == {"x": f"float[m,n,k,{'8*p' if alike else 'p'}]", "y": "float[m,n,k,q]"}
    square = lift((parse_term("Add(x, y)"),), {"x": parse_type("[4,1,4]"), "y": parse_type("[4,4]")}, alike)
    assert square is not None and (str(square[1]["y"]) == "float[m,m]") is alike
