"""Block graphs of values: grids, loops and accumulators; what does not fit a device is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.blocks.schedule import LIMITS
from mugraph.blocks.statements import Accumulate
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.search import KernelSearch, search
from rulegen.share.audit import audit
from tests.support.goals import ATTENTION, GATED, LORA, NORM, SOFTMAX, goal, kernels, shape_of


def test_rms_norm_and_product_become_one_loop() -> None:
    """Mirage's figure 4: product and sum of squares side by side, the division behind the loop."""
    found = [shape_of(kernel) for kernel in kernels(NORM, 6)]
    assert (True, ("Div", "Dot", "Mul", "Sqrt", "sum of 1", "sum of 1")) in found


def test_lora_becomes_one_loop() -> None:
    found = kernels(LORA, 4)
    assert (True, ("Add", "Dot", "Dot", "Dot", "sum of 1", "sum of 1")) in map(shape_of, found)


def test_attention_becomes_an_online_softmax() -> None:
    """FlashAttention: the scores' maximum, the sum of their exponentials and the weighted values in one accumulator."""
    flash = next(k for k in kernels(ATTENTION, 6) if shape_of(k) == (True, ("Div", "Dot", "softmax of 2")))
    (state,) = [s for s in flash.blocks[0].statements if isinstance(s, Accumulate)]
    assert len(state.names) == 3


def test_a_softmax_has_its_maximum_with_and_without_a_loop() -> None:
    shapes = {shape_of(kernel) for kernel in kernels(SOFTMAX, 4)}
    assert (False, ("Div", "Exp", "Reduce", "Reduce", "Sub")) in shapes


def test_a_gated_product_becomes_one_loop() -> None:
    assert any(shape[0] and shape[1].count("Dot") == 2 for shape in map(shape_of, kernels(GATED, 6)))


def test_several_products_of_one_softmax_share_its_sum() -> None:
    attended = "MatMul(Softmax[axis=-1](s), {})"
    wanted = goal(f"Add({attended.format('v')}, {attended.format('u')})", s="mt", v="td", u="td")
    best = next(kernel for kernel in kernels(wanted, 8) if kernel.blocks[0].loop is not None)
    assert shape_of(best)[1].count("softmax of 1") == 0


def test_the_greatest_along_the_loop_is_an_accumulator() -> None:
    wanted = goal("ReduceMax[axes=(-1,),keepdims=false](Mul(x, y))", x="mn", y="mn")
    assert {(True, ("Mul", "max of 1")), (False, ("Mul", "Reduce"))} == set(map(shape_of, kernels(wanted, 3)))


def test_what_is_found_stands_the_audit() -> None:
    for wanted in (NORM, ATTENTION):
        rules = search(wanted, KernelSearch(EnumerationLimits(8))).rules
        assert rules and audit(rules).passed
        assert all("proved(sizes=all)" in str(rule.certificate) for rule in rules)
        assert all(rule.provenance["group"] == "block" for rule in rules)


def test_what_does_not_fit_a_device_is_left_out() -> None:
    large = replace(NORM, sizes={"m": 16, "k": 1 << 16, "n": 64})
    tight = KernelSearch(EnumerationLimits(6), LIMITS["t4"], kernels=64)
    loops = {rule.target[0].attrs[0][1].blocks[0].loop for rule in search(large, tight).rules}
    assert None not in loops and loops
    small = replace(NORM, sizes={"m": 16, "k": 64, "n": 64})
    assert None in {rule.target[0].attrs[0][1].blocks[0].loop for rule in search(small, tight).rules}


def test_no_more_kernels_than_asked_for_and_those_of_least_work_first() -> None:
    sized = replace(LORA, sizes={"m": 16, "k": 256, "n": 4096, "r": 16})
    few = search(sized, KernelSearch(EnumerationLimits(6), kernels=2)).rules
    every = search(sized, KernelSearch(EnumerationLimits(6), kernels=64)).rules
    assert [rule.id for rule in few] == [rule.id for rule in every][:2] and len(every) > 2


@pytest.mark.parametrize(
    ("text", "types", "note"),
    [
        ("ReduceSum[axes=(-2,-1),keepdims=false](x)", {"x": "mn"}, ""),
        ("Where(Less(x, y), x, y)", {"x": "m", "y": "m"}, "no program of block operators"),
        ("Expand[shape=(n,m)](x)", {"x": "m"}, "the result is the same along an axis"),
    ],
)
def test_goals_without_kernels_say_why(text: str, types: dict[str, str], note: str) -> None:
    outcome = search(goal(text, **types), KernelSearch(EnumerationLimits(4)))
    assert not outcome.rules and note in outcome.note
