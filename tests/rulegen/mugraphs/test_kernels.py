"""Kernels of several results and of several block graphs; goals deeper than an enumeration comes to the end of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Dot
from mugraph.onnx import load
from mugraph.terms.shape import DataType
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.lax import SubprogramBounds, goals_of
from rulegen.mugraphs.search import KernelSearch, search
from rulegen.mugraphs.values import closure_of
from rulegen.mugraphs.windows import graphs_of
from rulegen.share.audit import audit
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_of_rule
from tests.support.goals import NORM, goal, kernels
from tools.mirage import programs

RESIDUAL = goal(
    "Div(Add(x, y), Sqrt(ReduceMean[axes=(-1,),keepdims=true](Mul(Add(x, y), Add(x, y))))); Add(x, y)", x="mn", y="mn"
)
"""A sum and its normalisation, both of which a model goes on with."""


def paper(label: str) -> Goal:
    (program,) = [program for program in programs() if program.label == label]
    (found,) = goals_of(load(program.model()).graph, SubprogramBounds())
    return found


def of_several(wanted: Goal, operators: int) -> list[Kernel]:
    return [kernel for kernel in kernels(wanted, operators) if len(kernel.blocks) > 1]


def test_several_results_are_one_kernel() -> None:
    rules = search(RESIDUAL, KernelSearch(EnumerationLimits(8))).rules
    assert rules and audit(rules).passed
    best = kernel_of_rule(rules[0])
    assert best is not None and len(best.blocks) == 1
    assert [store.tensor for store in best.blocks[0].stores] == ["y0", "y1"]


def test_what_many_blocks_would_compute_again_is_held() -> None:
    """Where a product has many columns, its rows are normalised once, by a block graph of their own."""
    wide = replace(NORM, sizes={"m": 4096, "k": 4096, "n": 65536})
    best = kernels(wide, 6)[0]
    assert len(best.blocks) == 2 and [len(block.grid) for block in best.blocks] == [1, 2]
    assert [tensor.type.dtype for tensor in best.scratch] == [DataType.FLOAT16]
    narrow = replace(NORM, sizes={"m": 16, "k": 4096, "n": 128})
    assert len(kernels(narrow, 6)[0].blocks) == 1


def test_kernels_of_several_block_graphs_are_proved_and_stand_the_tests() -> None:
    wide = replace(NORM, sizes={"m": 4096, "k": 4096, "n": 65536})
    rules = search(wide, KernelSearch(EnumerationLimits(6), kernels=1)).rules
    assert audit(rules).passed and "proved(sizes=all)" in str(rules[0].certificate)
    kernel = kernel_of_rule(rules[0])
    assert kernel is not None and interpret(kernel, LEAST_TESTS, 0) is None


def test_operands_of_products_are_held_in_the_model_s_type() -> None:
    """An adapter in front of a product of many columns."""
    deep = goal("MatMul(MatMul(x, a), b)", x="mk", a="kr", b="rn")
    kernel = of_several(replace(deep, sizes={"m": 4096, "k": 4096, "r": 64, "n": 65536}), 4)[0]
    assert [tensor.type.dtype for tensor in kernel.scratch] == [DataType.FLOAT16]
    assert [sum(isinstance(s, Dot) for s in block.statements) for block in kernel.blocks] == [1, 1]


def test_a_goal_without_a_kernel_of_one_block_graph_has_one_of_several() -> None:
    """Rows that no block has the room for: their sum of squares along a loop first, then the quotients, tile by tile."""
    wanted = goal("Div(x, Sqrt(ReduceSum[axes=(-1,),keepdims=true](Mul(x, x))))", x="mn")
    found = kernels(replace(wanted, sizes={"m": 4, "n": 1 << 20}), 6)
    assert found and {len(kernel.blocks) for kernel in found} == {2}
    assert [(block.grid, block.loop) for block in found[0].blocks] == [(("a0",), "a1"), (("a0", "a1"), None)]
    assert [tensor.type.dtype for tensor in found[0].scratch] == [DataType.FLOAT]


@pytest.mark.parametrize("label", ["nTrans:1", "QKNorm:1"])
def test_deep_programs_of_the_paper_are_found_as_one_proved_kernel(label: str) -> None:
    wanted = paper(label)
    outcome = search(wanted, KernelSearch(EnumerationLimits(8, seconds=4.0)))
    assert outcome.operators > 8 and "windows" in outcome.note
    found = [kernel for rule in outcome.rules if (kernel := kernel_of_rule(rule)) is not None]
    assert any(len(kernel.blocks) == 1 for kernel in found)
    assert all("proved(sizes=all)" in str(rule.certificate) for rule in outcome.rules)


def test_windows_find_what_a_whole_enumeration_finds_first() -> None:
    """With room for four operators alone, the division behind the product is found by rewriting the five that are written."""
    program = GoalProgram(NORM)
    whole, rewritten = graphs_of(program, EnumerationLimits(6)), graphs_of(program, EnumerationLimits(4))
    least = {len(closure_of(graph)) for graph in (whole.results[0], rewritten.results[0])}
    assert least == {5} and len(rewritten.results) > 1
    assert "5 operators are more than 4; rewritten in" in rewritten.stopped and not whole.stopped


def test_what_windows_compute_is_the_goal() -> None:
    wanted = paper("QKNorm:1")
    program = GoalProgram(wanted)
    found = graphs_of(program, EnumerationLimits(8, seconds=4.0))
    assert len(found.results) > 10
    assert program.entered(found.values) in found.results
