"""Rules that hold of infinities and NaN, too, are those that do the same operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, concrete
from mugraph.terms.term import walk
from rules_db.library import shipped_rules
from rules_db.trust.rule import FloatClass, Rule
from rules_db.trust.verbatim import example, is_verbatim, keeps_operations
from tests.support.graphs import rule

SAMPLE = 60


@pytest.mark.parametrize(
    ("source", "target", "types", "verbatim"),
    [
        ("Relu(Transpose[perm=(1,0)](x))", "Transpose[perm=(1,0)](Relu(x))", "x:[m,n]", True),
        ("MatMul(x, MatMul(y, z))", "MatMul(MatMul(x, y), z)", "x:[m,n] y:[n,k] z:[k,p]", False),
        ("Add(MatMul(x, y), MatMul(x, z))", "MatMul(x, Add(y, z))", "x:[m,n] y:[n,k] z:[n,k]", False),
        ("Sub(x, x)", "Mul(x, 0.0)", "x:[m]", False),
        ("Gather[axis=0](x, y)", "Gather[axis=0](x, y)", "x:[m] y:int64[n]", False),  # nothing is known of integers
        # whether a NaN is the greatest of a row depends on the axis in the runtime
        ("ReduceMax[axes=(-2,)](Transpose[perm=(1,0)](x))", "Transpose[perm=(1,0)](ReduceMax[axes=(-1,)](x))", "x:[m,n]", False),
        (
            "ReduceMin[axes=(-1,)](Concat[axis=-2](x, y))",
            "Concat[axis=-2](ReduceMin[axes=(-1,)](x), ReduceMin[axes=(-1,)](y))",
            "x:[m,n] y:[k,n]",
            True,
        ),
        ("ReduceSum[axes=(-2,)](Transpose[perm=(1,0)](x))", "Transpose[perm=(1,0)](ReduceSum[axes=(-1,)](x))", "x:[m,n]", True),
    ],
)
def test_equations_of_numbers_are_told_apart(source: str, target: str, types: str, verbatim: bool) -> None:
    assert is_verbatim(rule(source, target, types)) is verbatim


def test_an_operator_of_attention_is_no_softmax_of_everything() -> None:
    """Its kernel may say otherwise than that of Softmax which of several entries is the greatest where one is a NaN."""
    fused = next(r for r in shipped_rules() if r.id == "b09b83066a540917")
    assert {"Softmax", "Attention"} <= {term.op for term in walk([*fused.source, *fused.target])}
    assert not is_verbatim(fused)


def test_a_fused_operator_may_square_what_the_plain_ones_do_not() -> None:
    fused = next(
        r for r in shipped_rules() if str(r).startswith("LayerNormalization[axis=-1,epsilon=$a0](Add(x, y), z); Add(x, y)")
    )
    moved = rule("Relu(Transpose[perm=(1,0)](x))", "Transpose[perm=(1,0)](Relu(x))", "x:[m,n]")
    assert is_verbatim(fused) and not keeps_operations(fused)
    assert keeps_operations(replace(moved, float_class=FloatClass.EXACT)) and not keeps_operations(moved)


def _special(one: Rule, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Both sides' outputs where a third of the operands' entries is infinite, NaN or zero."""
    found = example(one.sample())
    assert found is not None
    programs, types = found
    generator = np.random.default_rng(seed)
    inputs = {}
    for name, type_ in types.items():
        shape = concrete(type_.shape) or ()
        numbers = generator.standard_normal(shape)
        numbers = np.where(generator.random(shape) < 0.3, generator.choice([np.nan, np.inf, -np.inf, 0.0], shape), numbers)
        inputs[name] = np.asarray(numbers > 0 if type_.dtype == DataType.BOOL else numbers)
    with np.errstate(all="ignore"):
        values = evaluate(programs, Real(), inputs)
    outputs = [np.asarray(values[program], np.float64) for program in programs]
    return outputs[: len(one.source)], outputs[len(one.source) :]


def test_they_hold_of_infinities_and_nan() -> None:
    """In floats, on a sample of the shipped ones; about a third of all are of this kind."""
    rules = shipped_rules()
    drawn = [rules[i] for i in np.random.default_rng(0).permutation(len(rules))[: 3 * SAMPLE]]
    verbatim = [one for one in drawn if is_verbatim(one)][:SAMPLE]
    assert len(verbatim) > SAMPLE // 2
    for seed, one in enumerate(verbatim):
        for before, after in zip(*_special(one, seed), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9, err_msg=str(one))
