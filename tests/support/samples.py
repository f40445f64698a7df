"""Applications of operators that their records name as samples, with operands to evaluate them on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mugraph.domains.base import BYTES, NIBBLES
from mugraph.ops import Operator
from mugraph.terms.shape import DataType, TensorType, concrete
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term, parse_type

__all__ = ["applications", "distinct_numbers", "parse_sample", "random_numbers"]


def parse_sample(text: str) -> tuple[Term, list[TensorType]]:
    """The application and the types of its operands."""
    term, types = text.split(" | ")
    by_name = {name: parse_type(type_) for name, type_ in (item.split(":", 1) for item in types.split())}
    return parse_term(term), [by_name[operand.name] for operand in parse_term(term).inputs]


def applications(record: Operator) -> Iterator[tuple[Term, list[TensorType]]]:
    """The samples of a record."""
    yield from map(parse_sample, record.samples)


def _shape(type_: TensorType) -> tuple[int, ...]:
    shape = concrete(type_.shape)
    assert shape is not None
    return shape


def random_numbers(types: Sequence[TensorType], seed: int = 0, scale: float = 1.0) -> list[np.ndarray]:
    """Normal floats, truth values, indices that every sample's tables have, and small bytes that differ."""
    generator = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for type_ in types:
        shape = _shape(type_)
        if type_.dtype == DataType.BOOL:
            arrays.append(generator.random(shape) < 0.5)
        elif type_.dtype in (DataType.INT32, DataType.INT64):
            arrays.append(generator.integers(0, 2, shape).astype(type_.dtype.numpy()))
        elif type_.dtype in BYTES | NIBBLES:
            arrays.append(generator.integers(0, 8, shape).astype(type_.dtype.numpy()))
        else:
            arrays.append(generator.normal(size=shape) * scale)
    return arrays


def distinct_numbers(types: Sequence[TensorType], seed: int = 0) -> list[np.ndarray]:
    """As :func:`random_numbers`, with floats that are whole, all different, and of either sign."""
    generator = np.random.default_rng(seed)
    arrays = random_numbers(types, seed)
    numbers = (number * (-1) ** int(number) for number in generator.permutation(sum(a.size for a in arrays)) + 1.0)
    return [np.fromiter(numbers, float, a.size).reshape(a.shape) if a.dtype.kind == "f" else a for a in arrays]
