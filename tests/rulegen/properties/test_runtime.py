"""Properties in onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.terms.text import parse_term, parse_type
from rulegen.properties.runtime import run_sides, validate_in_runtime
from tests.support.properties import AXIOMS, one


@pytest.mark.parametrize(
    "name", ["matmul.associative", "split.first", "where.not", "fused.heads_mask", "fused.embed", "conv.bias.Conv"]
)
def test_both_sides_of_a_true_property_run(name: str) -> None:
    evidence = validate_in_runtime(AXIOMS[name], count=4)
    assert evidence.counterexample is None and evidence.runs == 4 and evidence.both >= 1


def test_a_false_property_is_found_out() -> None:
    for text in ("a: Relu(Add(x, y)) = Add(Relu(x), Relu(y))", "a: Floor(x) = Ceil(x)"):
        assert validate_in_runtime(one(text)).counterexample


def test_a_window_in_padding_alone_is_met() -> None:
    """Its greatest entry is the least number there is, to which no function was applied."""
    pool = "MaxPool[ceil=false,dilations=(2,),kernel=(2,),pads=(1,1),strides=(1,)]"
    sides = [parse_term(text) for text in (f"Relu({pool}(x))", f"{pool}(Relu(x))")]
    (one_, other), known = run_sides(sides, {"x": parse_type("[1,1,1]")}, {"x": np.ones((1, 1, 1))})
    assert known is None and isinstance(one_, np.ndarray) and isinstance(other, np.ndarray)
    assert one_.item() == 0 and other.item() < -3e38


def test_an_operator_that_the_runtime_refuses_is_named() -> None:
    """It takes no negative scale; the other side is compared with the records' values."""
    fused = "Attention[is_causal=false,kv_num_heads=0,mask='',mask_axes=0,num_heads=0,scale=-1.0](q, k, v)"
    plain = "MatMul(Softmax[axis=-1](Mul(MatMul(q, Transpose[perm=(1,0)](k)), -1.0)), v)"
    evidence = validate_in_runtime(one(f"a: {fused} = {plain} when typed({fused}), agree(q, k, -3)"), count=2)
    assert evidence.runs == 2 and not evidence.both and "attention" in evidence.refusal
