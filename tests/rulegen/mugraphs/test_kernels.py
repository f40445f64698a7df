"""Kernels of several results and of several block graphs; goals deeper than an enumeration comes to the end of."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import LIMITS, check_fits
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Dot
from mugraph.blocks.text import parse_kernel
from mugraph.onnx import load
from mugraph.terms.shape import DataType
from rulegen.mugraphs import kernels as making
from rulegen.mugraphs import windows
from rulegen.mugraphs.enumerate import EnumerationLimits, Found, enumerate_values
from rulegen.mugraphs.goals import BlockProgram, Goal, GoalProgram
from rulegen.mugraphs.kernels import KnownBlocks, kernels_of_values
from rulegen.mugraphs.lax import SubprogramBounds, goals_of
from rulegen.mugraphs.search import KernelSearch, search
from rulegen.mugraphs.values import closure_of
from rulegen.mugraphs.windows import graphs_of
from rulegen.share.audit import audit
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_of_rule
from tests.support.goals import NORM, RESIDUAL, goal, kernels
from tools.mirage import programs


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


def test_a_softmax_of_normalised_scores_stands_the_audit_where_its_rows_are_whole() -> None:
    """Behind a root a field has no exponentials by which exp(s - max s) and exp(s) would be told to be the same weights."""
    scores = "Div(MatMul(x, w), Sqrt(ReduceSum[axes=(-1,),keepdims=true](Mul(x, x))))"
    wanted = replace(goal(f"Softmax[axis=-1]({scores})", x="mk", w="kn"), sizes={"m": 64, "k": 64, "n": 64})
    rules = search(wanted, KernelSearch(EnumerationLimits(8))).rules
    assert rules and audit(rules).passed


WRONG_MEAN = """kernel wrong
input x0: float16[d0,d1,d2]
input x1: float16[d0,d2,d3]
input x2: float16[d0,d3,d4]
input x3: float16[d0,d3,d4]
output y0: float16[d0,d1,d4] = MatMul(\
Softmax[axis=-1](MatMul(Mul(Div(x0, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](Mul(x0, x0)), 1e-05))), 0.1), x1)), \
Div(x2, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](x3), 1e-05))))
block wrong
axes a0=d0, a1=d1, a2=d2, a3=d3, a5=d4, a4=d4
grid a0, a1, a4
loop a3
x0_tile = load x0[a0, a1, a2]
v1 = Mul(x0_tile, x0_tile)
v2 = reduce sum(v1; a2)
v3 = extent d2
v7 = Sqrt(Add(Div(v2, v3), 1e-05))
v10 = Mul(Div(x0_tile, v7), 0.1)
x1_tile = load x1[a0, a2, a3]
v12 = dot(v10, x1_tile, a2)
x2_tile = load x2[a0, a3, a4]
x3_tile = load x3[a0, a3, a5]
v18 = reduce sum(x3_tile; a5)
v19 = extent d1
v22 = Sqrt(Add(1e-05, Div(v18, v19)))
v23 = Div(x2_tile, v22)
m242, l242, o242 = softmax(v12, v23)
v243 = Div(o242, l242)
store y0[a0, a1, a4] = v243
"""


def test_tests_in_place_of_a_proof_refuse_a_wrong_mean_behind_which_floats_are_seldom_finite() -> None:
    """The root of a mean that is negative in half of the rows hides the size that it is divided by: residues see it."""
    wrong, right = (parse_kernel(WRONG_MEAN.replace("extent d1", f"extent {size}")) for size in ("d1", "d4"))
    assert interpret(right, LEAST_TESTS, 0) is None
    assert interpret(wrong, LEAST_TESTS, 0) is not None


@pytest.mark.parametrize("label", ["nTrans:1", "QKNorm:1"])
def test_deep_programs_of_the_paper_are_found_as_one_proved_kernel(label: str) -> None:
    wanted = paper(label)
    outcome = search(wanted, KernelSearch(EnumerationLimits(8, seconds=4.0)))
    assert outcome.operators > 8 and "windows" in outcome.note
    found = [kernel for rule in outcome.rules if (kernel := kernel_of_rule(rule)) is not None]
    assert any(len(kernel.blocks) == 1 for kernel in found)
    assert all("proved(sizes=all)" in str(rule.certificate) for rule in outcome.rules)


def test_block_graphs_that_graphs_of_a_goal_share_are_made_once() -> None:
    """And whatever was made before, the kernels are those that are made of a graph by itself."""
    wide = replace(NORM, sizes={"m": 4096, "k": 4096, "n": 65536})
    found = graphs_of(GoalProgram(wide), EnumerationLimits(6))
    shared, alone = KnownBlocks(), list[KnownBlocks]()
    for roots in found.results:
        alone.append(KnownBlocks())
        once, again = (
            [
                (made.kernel.digest, made.work)
                for made in kernels_of_values(wide, found.program, found.values, roots, LIMITS["h200"], known)
            ]
            for known in (alone[-1], shared)
        )
        assert once == again
    assert 0 < len(shared) < sum(map(len, alone))


def test_windows_find_what_a_whole_enumeration_finds_first() -> None:
    """With room for four operators alone, the division behind the product is found by rewriting the five that are written."""
    program = GoalProgram(NORM)
    whole, rewritten = graphs_of(program, EnumerationLimits(6)), graphs_of(program, EnumerationLimits(4))
    least = {len(closure_of(graph)) for graph in (whole.results[0], rewritten.results[0])}
    assert least == {5} and len(rewritten.results) > 1
    assert "5 operators, not 4 at most: rewritten in" in rewritten.rewritten and not whole.rewritten


def test_what_windows_compute_is_the_goal() -> None:
    wanted = paper("QKNorm:1")
    program = GoalProgram(wanted)
    found = graphs_of(program, EnumerationLimits(8, seconds=4.0))
    assert len(found.results) > 10
    assert program.entered(found.values) in found.results


@pytest.fixture
def enumerated(monkeypatch: pytest.MonkeyPatch) -> list[BlockProgram]:
    """The windows that were enumerated, by a process that remembers none."""
    found: list[BlockProgram] = []

    def counted(program: BlockProgram, limits: EnumerationLimits, seed: int = 0) -> Found:
        found.append(program)
        return enumerate_values(program, limits, seed)

    monkeypatch.setattr(windows, "enumerate_values", counted)
    monkeypatch.setattr(windows, "_ENUMERATED", {})
    return found


def sums(*order: str) -> Goal:
    """The statistics of a sum of three, of which one is a row, added up in some order."""
    first, second, third = order
    total = f"Add(Add({first}, {second}), {third})"
    mean = f"ReduceMean[axes=(-1,),keepdims=true]({total})"
    return goal(f"Mul(Sub({total}, {mean}), w)", a="mk", b="mk", c="k", w="k")


def steps(found: Found) -> list[str]:
    return [str([(str(v.operation), v.operands) for v in found.values.needed(*graph)]) for graph in found.results]


def test_windows_that_differ_in_names_and_order_are_enumerated_once(enumerated: list[BlockProgram]) -> None:
    limits = EnumerationLimits(4)
    graphs_of(GoalProgram(sums("a", "b", "c")), limits)
    first = len(enumerated)
    graphs_of(GoalProgram(sums("a", "b", "c")), limits)
    renamed = goal(
        "Mul(Sub(Add(Add(p, q), r), ReduceMean[axes=(-1,),keepdims=true](Add(Add(p, q), r))), s)",
        s="n",
        r="n",
        q="dn",
        p="dn",
    )
    graphs_of(GoalProgram(renamed), limits)
    assert 0 < len(enumerated) == first
    graphs_of(GoalProgram(sums("c", "a", "b")), limits)
    assert len(enumerated) < 2 * first, "what is added up in another order has windows that do the same"


def test_what_a_process_searched_before_changes_nothing(enumerated: list[BlockProgram]) -> None:
    limits, orders = EnumerationLimits(4), (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a"))
    one_after_the_other = [steps(graphs_of(GoalProgram(sums(*order)), limits)) for order in orders]
    alone = []
    for order in orders:
        windows._ENUMERATED.clear()
        alone.append(steps(graphs_of(GoalProgram(sums(*order)), limits)))
    assert one_after_the_other == alone and all(len(own) > 1 for own in alone)


def test_a_window_whose_time_is_over_is_not_remembered(enumerated: list[BlockProgram]) -> None:
    program = GoalProgram(sums("a", "b", "c"))
    graphs_of(program, EnumerationLimits(4, seconds=0.0))
    assert not windows._ENUMERATED
    assert len(graphs_of(program, EnumerationLimits(4)).results) > 1


def test_only_block_graphs_that_are_wanted_are_held_against_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """And sets of held values are left once they take more than the best: what comes of it is what looking at all gives."""
    wide = replace(NORM, sizes={"m": 4096, "k": 4096, "n": 65536})
    found = graphs_of(GoalProgram(wide), EnumerationLimits(6))
    asked: list[Kernel] = []
    check, way = check_fits, making._Making._way

    def counted(kernel: Kernel, *rest: Any) -> None:
        asked.append(kernel)
        check(kernel, *rest)

    def made() -> tuple[list[tuple[bytes, float]], int, int]:
        del asked[:]
        known = KnownBlocks()
        each = [
            (one.kernel.digest, one.work)
            for roots in found.results
            for one in kernels_of_values(wide, found.program, found.values, roots, LIMITS["h200"], known)
        ]
        return each, len(asked), len(known)

    monkeypatch.setattr(making, "check_fits", counted)
    few = made()
    monkeypatch.setattr(making._Making, "_way", lambda self, held, most: way(self, held, math.inf))
    monkeypatch.setattr(making._Choices, "best", property(lambda self: min(self.fitting, key=lambda one: one.work, default=None)))
    every = made()
    assert few[0] == every[0] and len(few[0]) > 4
    assert few[1] < every[1] and few[2] <= every[2]


def test_block_graphs_fit_in_numbers_as_with_their_sizes_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes in ({"m": 16, "k": 4096, "n": 4096}, {"m": 64, "k": 1 << 17, "n": 64}, {"m": 4, "k": 2048, "n": 1 << 16}):
        sized = replace(NORM, sizes=sizes)
        quick = [kernel.digest for kernel in kernels(sized, 6)]
        with monkeypatch.context() as patch:
            whole = {name: size for name, size in sizes.items()}
            patch.setattr(making._Making, "_in_numbers", lambda self, kernel, whole=whole: specialised(kernel, whole))
            assert quick == [kernel.digest for kernel in kernels(sized, 6)] and quick
