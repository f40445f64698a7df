"""Integer tensors that are computed while a model is read, and those that are left to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from mugraph.graph import Constant, Tables
from mugraph.onnx.integers import IntegerEvaluator
from mugraph.onnx.symbols import SymbolValues
from mugraph.onnx.understand import ModelOperators, understand
from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from tests.support.models import build

N = symbol("n")
OPERATORS = ModelOperators.of(build([], [], []), 20)
INTEGERS, FLOATS = DataType.INT64, DataType.FLOAT


def evaluate(
    op: str,
    operands: Sequence[tuple[DataType, tuple[Dim, ...], Sequence[Dim] | None]],
    symbols: SymbolValues | None = None,
    **attrs: Any,
) -> list[Any] | None:
    """The entries of the outputs: operands are types with their entries, or ``None`` for those of the runtime."""
    tables = Tables()
    for dtype, shape, entries in operands:
        value = tables.new_value(TensorType(dtype, shape))
        if entries is not None and all(isinstance(entry, int) for entry in entries):
            tables.constants[value] = Constant.of(np.array(entries, dtype.numpy()), tables.types[value] or pytest.fail())
        elif entries is not None:
            tables.sizes[value] = np.array(entries, object)
    names = [f"x{i}" for i in range(len(operands))]
    node = understand(helper.make_node(op, names, ["y"], **attrs), range(len(operands)), tables, OPERATORS, frozenset({"y"}))
    numbers, dimensions = IntegerEvaluator(tables, symbols or SymbolValues()).evaluate(node)
    assert numbers is None or dimensions is None
    arrays = numbers if numbers is not None else dimensions
    return None if arrays is None else [array.tolist() for array in arrays]


def test_numbers_and_dimensions() -> None:
    assert evaluate("Add", [(INTEGERS, (2,), [1, 2]), (INTEGERS, (2,), [3, 4])]) == [[4, 6]]
    assert evaluate("Add", [(INTEGERS, (2,), [N, 2]), (INTEGERS, (2,), [3, 4])]) == [[N + 3, 6]]
    assert evaluate("Shape", [(FLOATS, (N, 3), None)]) == [[N, 3]], "only the shape counts"
    assert evaluate("Sub", [(INTEGERS, (1,), [N]), (INTEGERS, (1,), [N])]) == [[0]], "a number all the same"
    assert evaluate("Mul", [(INTEGERS, (1,), [N]), (INTEGERS, (1,), [2])], SymbolValues().learn("n", 3 * symbol("m"))) == [
        [6 * symbol("m")]
    ]


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("Add", [(FLOATS, (1,), [1]), (FLOATS, (1,), [2])]),  # no integers
        ("Add", [(INTEGERS, (1,), None), (INTEGERS, (1,), [2])]),  # computed at run time
        ("Add", [(INTEGERS, (5000,), [0] * 5000), (INTEGERS, (1,), [1])]),  # too large for numbers
        ("Add", [(INTEGERS, (65,), [N] * 65), (INTEGERS, (1,), [1])]),  # too large for dimensions
        ("Mul", [(INTEGERS, (1,), [N]), (INTEGERS, (1,), [1 << 31])]),  # could wrap around
        ("Relu", [(INTEGERS, (N,), None)]),  # a length that is a symbol
    ],
)
def test_integers_that_are_left_to_the_runtime(op: str, operands: Sequence[Any]) -> None:
    assert evaluate(op, operands) is None
