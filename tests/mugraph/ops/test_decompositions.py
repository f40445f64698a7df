"""The decomposition of a record is its meaning over plainer operators: over floats, in a finite field, and in its types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.domains import FiniteField, Real
from mugraph.ops import REGISTRY, Operator, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, walk
from tests.support.samples import parse_sample

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
)


def _error(record: Operator, term: Term, operand_types: list[TensorType]) -> float:
    """How far the decomposition is off over floats; raises AssertionError where the types or the field's residues differ."""
    roots = record.decompose(term.attrs, operand_types)
    inferred = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operand_types)})
    assert [inferred[root] for root in roots] == list(record.types(term.attrs, operand_types))
    generator, field, errors = np.random.default_rng(0), FiniteField(seed=0), [0.0]
    shapes = [tuple(int(d) for d in t.shape if isinstance(d, int)) for t in operand_types]
    floats = [generator.normal(size=shape) for shape in shapes]
    residues = [field.random(generator, shape) for shape in shapes]
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


def test_a_record_without_a_decomposition_says_so() -> None:
    with pytest.raises(ValueError, match="Add has no decomposition"):
        get_operator("Add").decompose((), [])
