"""Counterexamples in whole numbers."""

from __future__ import annotations

import numpy as np

from mugraph.terms.text import parse_term
from rulegen.numeric.differences import differ
from rulegen.show.equations import parse_let


def test_differ_sees_no_difference_where_there_is_none() -> None:
    types = parse_let("x: float[m,n] y: float[n,k]")
    product = parse_term("MatMul(x, y)")
    assert differ((product,), (product,), types) is None
    found = differ((product,), (parse_term("Neg(MatMul(x, y))"),), types)
    assert found is not None and found.index == tuple(np.argwhere(found.inputs["x"] @ found.inputs["y"])[0])
