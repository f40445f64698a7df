"""Of kernels that differ in how arithmetic is put together alone, one is kept."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.text import parse_kernel
from rulegen.mugraphs import search as searching
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.plans import plan_of
from rulegen.mugraphs.search import KernelSearch, search
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule
from tests.support.goals import NORM, RESIDUAL

SCALED = """kernel scaled
input x0: float16[m,k]
input x1: float16[k,n]
input x2: float16[m]
input x3: float16[m]
output y0: float16[m,n] = MatMul(x0, x1)
block scaled
axes a0=m, a2=n, a1=k
grid a0, a2
{loop}x0_tile = load x0[a0, a1]
x1_tile = load x1[a1, a2]
x2_tile = load x2[a0]
x3_tile = load x3[a0]
{statements}
"""
WHOLE = "v1 = {left}\nv2 = dot(v1, x1_tile, a1)\nv3 = {right}\nstore y0[a0, a2] = v3"
LOOPED = "v1 = {left}\np2 = dot(v1, x1_tile, a1)\nv2 = sum(p2)\nv3 = {right}\nstore y0[a0, a2] = v3"


def plan(left: str, right: str, statements: str = WHOLE, loop: str = "") -> object:
    """Of a kernel that scales a product, whatever it is to compute."""
    return plan_of(parse_kernel(SCALED.format(loop=loop, statements=statements.format(left=left, right=right))))


def test_how_arithmetic_is_put_together_is_no_plan() -> None:
    before = "Mul(Mul(x0_tile, x2_tile), x3_tile)"
    assert plan(before, "Relu(v2)") == plan("Mul(x2_tile, Mul(x3_tile, x0_tile))", "Relu(v2)")
    plans = {
        plan(before, "Relu(v2)"),
        plan("Mul(x0_tile, x2_tile)", "Relu(Mul(v2, x3_tile))"),
        plan("Mul(x0_tile, x3_tile)", "Relu(Mul(v2, x2_tile))"),
        plan("Relu(x0_tile)", "Mul(v2, Mul(x2_tile, x3_tile))"),
        plan(before, "Relu(v2)", LOOPED, "loop a1\n"),
    }
    assert len(plans) == 5, "what is done before a product, what behind it, and whether in a loop"


def plans_of(rules: Sequence[Rule]) -> list[Hashable]:
    return [plan_of(kernel) for rule in rules if (kernel := kernel_of_rule(rule)) is not None]


@pytest.mark.parametrize("wanted", [NORM, RESIDUAL])
def test_one_kernel_of_each_plan_is_kept(wanted: Goal, monkeypatch: pytest.MonkeyPatch) -> None:
    how = KernelSearch(EnumerationLimits(8), kernels=24)
    rules = search(wanted, how).rules
    plans = plans_of(rules)
    assert 0 < len(set(plans)) == len(rules) <= how.kernels
    with monkeypatch.context() as apart:
        apart.setattr(searching, "plan_of", lambda kernel: kernel)
        every = search(wanted, how).rules
    assert every[0].id == rules[0].id, "the one of least work comes first either way"
    assert len(set(plans_of(every))) < len(every)


def test_a_proved_kernel_takes_the_place_of_one_of_its_plan_that_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = searching.kernel_rule, dict[Hashable, list[Rule]]()

    def at_first_tested(kernel: Kernel, *given: Any) -> Rule:
        rule, same = made(kernel, *given), asked.setdefault(plan_of(kernel), [])
        assert rule.certificate.interpreted is not None and rule.certificate.interpreted.proved
        tested = replace(rule.certificate, interpreted=replace(rule.certificate.interpreted, proved=False))
        same.append(rule if same else replace(rule, certificate=tested))
        return same[-1]

    monkeypatch.setattr(searching, "kernel_rule", at_first_tested)
    rules = search(RESIDUAL, KernelSearch(EnumerationLimits(8), kernels=24)).rules
    assert max(map(len, asked.values())) == 2, "a proved one ends it"
    assert [rule.id for rule in rules] == [same[-1].id for same in asked.values()]
