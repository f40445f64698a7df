"""Unification of dimensions."""

from __future__ import annotations

import pytest

from mugraph.terms.shape import ShapeError
from rulegen.typings.dimensions import Dimensions


def test_dimensions_are_unified() -> None:
    dims = Dimensions()
    a, b, c, d = (dims.fresh() for _ in range(4))
    dims.equal(a + b, c + d)
    assert dims.resolve(a) == dims.resolve(c) and dims.resolve(b) == dims.resolve(d)
    dims.equal(a, 3)
    assert dims.resolve(c) == 3
    with pytest.raises(ShapeError):
        dims.equal(a + b, b)
    with pytest.raises(ShapeError):
        dims.equal(c, 4)
    dims.equal(2 * b, 6)
    assert dims.resolve(d) == 3
    with pytest.raises(ShapeError):
        dims.equal(2 * dims.fresh(), 7)
