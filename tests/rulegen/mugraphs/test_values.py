"""Values of block graphs: interned, with what may be done with them."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField
from rulegen.mugraphs.abstract import atom
from rulegen.mugraphs.fingerprints import ValueFingerprints
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values

MUL, DIV, EXP = (Operation(ValueKind.ENTRYWISE, name) for name in ("Mul", "Div", "Exp"))
SUM, DOT, SHIFTED = (Operation(kind, axis="k") for kind in (ValueKind.SUM, ValueKind.DOT, ValueKind.SHIFTED))


def inputs(values: Values) -> list[Value]:
    return [values.leaf(Operation(ValueKind.TENSOR, name), axes) for name, axes in (("x", "mk"), ("y", "kn"), ("z", "mk"))]


def test_equal_values_are_one_and_symmetric_operands_stand_in_one_order() -> None:
    values = Values()
    x, y, _ = inputs(values)
    assert values.apply(MUL, x, y) is values.apply(MUL, y, x) and values.apply(DOT, x, y) is values.apply(DOT, y, x)
    assert values.apply(DIV, x, y) is not values.apply(DIV, y, x)
    assert values.look(values.apply(DOT, x, y)).axes == set("mn")


def test_operators_of_a_graph_are_counted_once() -> None:
    values = Values()
    x, y, _ = inputs(values)
    square = values.apply(MUL, x, x)
    assert len(values.apply(MUL, square, square).closure) == 2 and not x.closure
    total = values.apply(SUM, square)
    assert values.needed(total) == [x, square, total] and y not in values.needed(total)


def test_along_an_axis_that_is_not_there_nothing_is_summed() -> None:
    values = Values()
    x, y, z = inputs(values)
    with pytest.raises(Unsupported, match="no axis k"):
        values.apply(SUM, values.apply(SUM, x))
    with pytest.raises(Unsupported, match="neither rows nor columns"):
        values.apply(DOT, x, z)
    assert y


def test_shifted_exponentials_count_in_quotients_alone() -> None:
    values = Values()
    x, y, z = inputs(values)
    weights = values.apply(SHIFTED, x)
    total, summed = values.apply(SUM, weights), values.apply(DOT, weights, y)
    assert values.look(summed).shift == values.look(total).shift == values.look(weights).shift == (x.number, "k")
    assert values.look(values.apply(DIV, summed, total)).shift is None
    assert values.look(values.apply(MUL, total, values.apply(SUM, x))).shift == (x.number, "k")
    assert values.apply(DOT, y, weights) is summed
    for operation, operands in ((MUL, (weights, weights)), (EXP, (total,)), (DIV, (x, weights)), (SHIFTED, (weights,))):
        with pytest.raises(Unsupported, match="relative to a number"):
            values.apply(operation, *operands)
    with pytest.raises(Unsupported, match="relative to different numbers"):
        values.apply(DIV, weights, values.apply(SHIFTED, z))


def test_what_takes_an_exponential() -> None:
    assert EXP.is_exponential and SHIFTED.is_exponential
    assert not (MUL.is_exponential or SUM.is_exponential or Operation(ValueKind.ENTRYWISE, "Sigmoid").is_exponential)


def test_without_expressions_there_are_looks_of_axes_alone() -> None:
    values = Values(abstract=False)
    x, y, z = inputs(values)
    assert x.look == z.look != y.look and values.look(x).expression == ()
    abstract = Values()
    assert abstract.look(inputs(abstract)[0]).expression == atom("x")


def test_fingerprints_are_those_of_the_formula() -> None:
    values = Values()
    x, y, _ = inputs(values)
    wanted = [values.apply(DOT, x, y), values.apply(SUM, values.apply(MUL, x, y)), values.apply(DIV, x, values.apply(SUM, x))]
    taken = ValueFingerprints(values, {"x": "mk", "y": "kn", "z": "mk"}, {"m": 2, "k": 3, "n": 2}, FiniteField(0))
    first, second, third = taken.of(wanted)
    assert first is not None and np.array_equal(first, second) and not np.array_equal(first, third)


def test_what_divides_by_zero_has_no_fingerprint_and_the_others_have() -> None:
    values = Values()
    x, y, _ = inputs(values)
    difference = values.apply(Operation(ValueKind.ENTRYWISE, "Sub"), x, x)
    wrong, right = values.apply(DIV, y, difference), values.apply(DIV, y, x)
    after = values.apply(MUL, wrong, y)
    taken = ValueFingerprints(values, {"x": "mk", "y": "kn", "z": "mk"}, {"m": 2, "k": 3, "n": 2}, FiniteField(0))
    residues = taken.of([wrong, right, after])
    assert residues[0] is None and residues[1] is not None and residues[2] is None
