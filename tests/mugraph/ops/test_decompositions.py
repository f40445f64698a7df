"""The decomposition of a record is its meaning over plainer operators: over floats, in a finite field, and in its types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.domains import FiniteField, Real
from mugraph.ops import REGISTRY, Operator, get_operator
from mugraph.ops.interp import evaluate, infer_types, taken_apart
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, TensorType, Undecided, symbol
from mugraph.terms.term import Term, walk
from tests.support.samples import applications, parse_sample, random_numbers

SAMPLES = (
    "Gelu[approximate='none'](x) | x:[3,4]",
    "Gelu[approximate='tanh'](x) | x:[3,4]",
    "Softmax(x) | x:[3,4]",
    "Softmax[axis=-2](x) | x:[2,3,4]",
    "LayerNormalization(x, g) | x:[3,4] g:[4]",
    "LayerNormalization[axis=-2,epsilon=0.5](x, g, b) | x:[2,3,4] g:[3,4] b:[3,4]",
    "RMSNormalization[axis=-2](x, g) | x:[2,3,4] g:[3,4]",
    "Gemm(x, y) | x:[2,3] y:[3,4]",
    "Gemm[alpha=0.5,beta=2.0,transA=true,transB=true](x, y, b) | x:[3,2] y:[4,3] b:[4]",
    "DequantizeLinear[axis=0](x, s, z) | x:uint8[4,32] s:[] z:uint8[]",
    "DequantizeLinear[axis=-2](x, s) | x:int8[4,32] s:[4]",
    "DequantizeLinear[axis=-1,block=16](x, s, z) | x:uint4[4,32] s:[4,2] z:uint4[4,2]",
    "DequantizeLinear[axis=-2,block=3](x, s) | x:int4[4,32] s:[2,32]",
    "DequantizeLinear[axis=0](x, s) | x:int32[4] s:float16[]",
    "ScatterElements[axis=-2](x, i, y) | x:[2,3,4] i:int64[2,1,4] y:[2,1,4]",
    "ScatterElements[axis=-1](x, i, y) | x:[2,3] i:int64[2,1] y:[2,1]",
    "ScatterElements[axis=-3](x, i, y) | x:[3,2,4] i:int64[1,2,4] y:[1,2,4]",
    "ScatterElements[axis=-2](x, i, y) | x:[2,3,4] i:int64[2,2,4] y:[2,2,4]",
    "TensorScatter[axis=-2,batch=-3,mode='linear'](x, y) | x:[2,5,4] y:[2,3,4]",
    "DepthToSpace[blocksize=2,mode='DCR'](x) | x:[2,12,2,5]",
    "DepthToSpace[blocksize=3,mode='CRD'](x) | x:[2,18,1,2]",
    "SpaceToDepth[blocksize=2](x) | x:[2,3,4,6]",
)


def _error(record: Operator, term: Term, operand_types: list[TensorType]) -> float:
    """How far the decomposition is off over floats; raises AssertionError where the types or the field's residues differ."""
    roots = record.decompose(term.attrs, operand_types)
    inferred = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operand_types)})
    assert [inferred[root] for root in roots] == list(record.types(term.attrs, operand_types))
    generator, field, errors = np.random.default_rng(0), FiniteField(seed=0), [0.0]
    shapes = [tuple(int(d) for d in t.shape if isinstance(d, int)) for t in operand_types]
    floats: list[Any] = [generator.normal(size=shape) for shape in shapes]
    residues: list[Any] = [field.random(generator, shape) for shape in shapes]
    for place, type_ in enumerate(operand_types):
        if type_.dtype == DataType.INT64:  # places of entries, from the end on, too
            floats[place] = residues[place] = generator.integers(-2, 2, shapes[place])
    for domain, operands in ((Real(), floats), (field, residues)):
        whole = record.run(domain, term.attrs, operands)
        values = evaluate(roots, domain, {f"x{i}": operand for i, operand in enumerate(operands)})
        for expected, root in zip(whole, roots, strict=True):
            if isinstance(domain, FiniteField):
                assert np.array_equal(expected.p, values[root].p)
            else:
                errors.append(float(np.abs(expected - values[root]).max()))
    return max(errors)


def test_every_decomposition_of_a_plain_record_has_aparse_sample() -> None:
    decomposed = {name for name, record in REGISTRY.items() if record.decomposition is not None and not record.composite}
    assert {parse_sample(text)[0].op for text in SAMPLES} == decomposed


@pytest.mark.parametrize("text", SAMPLES)
def test_a_decomposition_is_equal_and_plainer(text: str) -> None:
    term, types = parse_sample(text)
    record = get_operator(term.op)
    assert _error(record, term, types) < 1e-14
    parts = walk(record.decompose(term.attrs, types))
    assert all(part.op != term.op for part in parts)


def test_a_wrong_decomposition_is_noticed() -> None:
    layer, rms = get_operator("LayerNormalization"), get_operator("RMSNormalization")
    term, types = parse_sample("LayerNormalization(x, g) | x:[3,4] g:[4]")
    uncentred = replace(layer, decomposition=rms.decomposition)
    with pytest.raises(AssertionError):
        _error(uncentred, term, types)


@pytest.mark.parametrize(
    "types", ["x:[30,4] i:int64[17,4] y:[17,4]", "x:[3,4] i:int64[1,3] y:[1,3]", "x:[b,4] i:int64[d,4] y:[d,4]"]
)
def test_what_is_no_choice_of_a_few_entries_is_not_taken_apart(types: str) -> None:
    """Many places along the axis, fewer along another, or as many as a run tells."""
    term, operands = parse_sample(f"ScatterElements[axis=-2](x, i, y) | {types}")
    assert get_operator("ScatterElements").types(term.attrs, operands) == (operands[0],)
    with pytest.raises(ShapeError, match="no choice of a few places"):
        get_operator("ScatterElements").decompose(term.attrs, operands)
    named = {operand.name: type_ for operand, type_ in zip(term.inputs, operands, strict=True)}
    assert taken_apart([term], named) == [term]


def _other_sizes(types: list[TensorType]) -> Iterator[list[TensorType]]:
    """Types with another size: of one axis, of all that have the same; with an axis more or less; with sizes that a run tells."""

    def sized(size: Dim, chosen: Callable[[int, int], bool]) -> list[TensorType]:
        return [
            TensorType(t.dtype, tuple(size if chosen(place, axis) else dim for axis, dim in enumerate(t.shape)))
            for place, t in enumerate(types)
        ]

    def sides(place: int, shape: Shape) -> list[TensorType]:
        return [TensorType(t.dtype, shape) if other == place else t for other, t in enumerate(types)]

    for place, type_ in enumerate(types):
        for axis, given in enumerate(type_.shape):
            for size in (1, 2, 3, symbol("n")):
                yield sized(size, lambda p, a, here=(place, axis): (p, a) == here)  # type: ignore[misc]
                yield sized(size, lambda p, a, given=given: types[p].shape[a] == given)  # type: ignore[misc]
        yield sides(place, (1, *type_.shape))
        yield from [sides(place, type_.shape[1:])] if type_.rank else []


def _left_whole(record: Operator) -> Iterator[tuple[Term, list[TensorType]]]:
    """Applications that a record takes, and does not take apart at their sizes."""
    for term, given in applications(record):
        for types in (given, *_other_sizes(given)):
            with contextlib.suppress(ShapeError, Undecided):
                record.types(term.attrs, types)
                try:
                    record.decompose(term.attrs, types)
                except ShapeError:
                    yield term, [type_.at({"n": 3}) for type_ in types]


def _check_all_read(record: Operator) -> int:
    """Every operand tells a result where an operator is left whole, since :func:`~mugraph.ops.interp.unread` names none there.

    Returns how many applications it was asked of.
    """
    left, count = list(_left_whole(record)), 0
    for term, types in left:
        runs = []
        for seed in range(8):
            with contextlib.suppress(ValueError, IndexError):  # places that are not there
                operands = random_numbers(types, seed)
                runs.append((operands, record.run(Real(), term.attrs, operands)))
        if len(runs) < 2:
            continue
        (given, results), *others = runs
        for place, type_ in enumerate(types):
            changed = [[*given[:place], other[place], *given[place + 1 :]] for other, _ in others]
            found = [record.run(Real(), term.attrs, operands) for operands in changed]
            same = all(np.array_equal(a, b) for result in found for a, b in zip(result, results, strict=True))
            assert not same, f"{term} of {types} does not read {type_}, operand {place}"
        count += 1
    assert count or not left, f"nothing tells what {record.name} reads"
    return count


def test_what_is_not_taken_apart_reads_all_of_its_operands() -> None:
    """A runtime may read an operand of which no result is computed here; what is left whole would be equal without it."""
    decomposed = [record for record in REGISTRY.values() if record.decomposition is not None and not record.elementwise]
    assert sum(map(_check_all_read, decomposed)) > 0


def test_an_operand_that_is_not_read_is_noticed() -> None:
    scatter = get_operator("ScatterElements")
    keeping = replace(scatter, evaluate=lambda domain, attrs, inputs: (inputs[0],))
    with pytest.raises(AssertionError, match="does not read int64"):
        _check_all_read(keeping)


def test_a_record_without_a_decomposition_says_so() -> None:
    with pytest.raises(ValueError, match="Add has no decomposition"):
        get_operator("Add").decompose((), [])
