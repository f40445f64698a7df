"""Which kernels go together: packing by weight, and what the search proposes where places overlap."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from mugraph.graph import Graph
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import DraftKernel, KernelBuilder
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.packing import SetPacking
from rewriter.kernels.proposals import KernelProposals
from rewriter.search.candidate import Candidate
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.fusing import moves_for, two_layers


def intervals(seed: int, count: int) -> tuple[list[float], list[int]]:
    """Stretches of a line that mostly exclude those that they overlap, the longer the heavier, as kernels of a model do."""
    draw = random.Random(seed)
    begins = [draw.randint(0, 3 * count) for _ in range(count)]
    ends = [begin + draw.randint(0, count) for begin in begins]
    weights = [draw.uniform(1, 9) * (end - begin + 1) ** 0.8 for begin, end in zip(begins, ends, strict=True)]
    excluded = [0] * count
    for one in range(count):
        for other in range(one):
            if begins[one] <= ends[other] and begins[other] <= ends[one] and draw.random() < 0.9:
                excluded[one] |= 1 << other
                excluded[other] |= 1 << one
    return weights, excluded


def together(weights: Sequence[float], excluded: Sequence[int], chosen: Iterable[int]) -> float:
    """What some things weigh; none excludes another."""
    numbers = list(chosen)
    assert not any(excluded[one] >> other & 1 for one in numbers for other in numbers)
    return sum(weights[number] for number in numbers)


def heaviest_of_all(weights: Sequence[float], excluded: Sequence[int]) -> float:
    """Every set, one by one."""
    sets = [(0.0, 0)]
    for number, weight in enumerate(weights):
        sets += [(total + weight, taken | 1 << number) for total, taken in sets if not taken & excluded[number]]
    return max(total for total, _ in sets)


def heaviest_first(weights: Sequence[float], excluded: Sequence[int]) -> float:
    taken = list[int]()
    for number in sorted(range(len(weights)), key=lambda number: -weights[number]):
        if not any(excluded[number] >> other & 1 for other in taken):
            taken.append(number)
    return together(weights, excluded, taken)


@pytest.mark.parametrize("seed", range(40))
def test_of_what_excludes_each_other_the_heaviest_set_is_found(seed: int) -> None:
    weights, excluded = intervals(seed, 14)
    packing = SetPacking(excluded)
    best = heaviest_of_all(weights, excluded)
    assert together(weights, excluded, packing.heaviest(weights)) == pytest.approx(best)
    draw = random.Random(seed)
    for _ in range(5):  # as less and less is known to be saved, of a few at a time
        for number in draw.sample(range(14), 3):
            weights[number] *= draw.choice((0.0, 0.5, 0.9))
        best = heaviest_of_all(weights, excluded)
        assert together(weights, excluded, packing.heaviest(weights)) == pytest.approx(best)


def test_what_weighs_nothing_is_left() -> None:
    assert SetPacking([0, 0]).heaviest([0.0, 2.0]) == [1]
    assert SetPacking([0b10, 0b01]).heaviest([-1.0, 0.0]) == []


@pytest.mark.parametrize(("parts", "share"), [(0, 0.25), (3, 0.6)])
def test_what_is_too_large_is_no_lighter_than_the_heaviest_first(
    parts: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one is exchanged for several: a part of what the heaviest first misses is found."""
    monkeypatch.setattr("rewriter.kernels.packing._PARTS", parts)
    lacking, found_of = 0.0, 0.0
    for seed in range(30):
        weights, excluded = intervals(seed, 14)
        first, best = heaviest_first(weights, excluded), heaviest_of_all(weights, excluded)
        packing = SetPacking(excluded)
        found = together(weights, excluded, packing.heaviest(weights))
        assert first - 1e-9 <= found <= best + 1e-9
        lacking, found_of = lacking + best - first, found_of + found - first
        monkeypatch.setattr("rewriter.kernels.packing._PARTS", 100)
        assert together(weights, excluded, packing.heaviest(weights)) == pytest.approx(best), "what was cut short is forgotten"
        monkeypatch.setattr("rewriter.kernels.packing._PARTS", parts)
    assert lacking > 0 and found_of > share * lacking


def best_of(graph: Graph) -> Candidate:
    """With the best kernels."""
    moves = moves_for()
    return min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost)


def test_what_saves_most_alone_does_not_stand_in_the_way_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activation, product and residual as one kernel save most alone: they take the first product and the normalisation with
    which other kernels save more together."""
    best = best_of(two_layers())
    assert all(len(move.matches) == 2 for move in best.moves), "both layers at once"
    monkeypatch.setattr("rewriter.kernels.proposals._WORTH", 1.0)
    assert best.cost < 0.95 * best_of(two_layers()).cost


@pytest.mark.parametrize("left_out", range(9))
def test_a_kernel_more_never_makes_the_best_worse(left_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is known from another model is one more, too."""
    every = best_of(two_layers())

    def fewer(graph: Graph) -> Iterator[FusableSet]:
        for number, fusable in enumerate(propose(graph)):
            if number != left_out:
                yield fusable

    monkeypatch.setattr("rewriter.kernels.proposals.propose", fewer)
    assert every.cost <= best_of(two_layers()).cost * (1 + 1e-9)


def test_where_a_kernel_of_the_best_is_refused_others_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    best = best_of(two_layers())
    refused = kernel_of_rule(best.moves[1].direction.rule)
    moves, asked = moves_for(), list[object]()
    start = moves.start(two_layers())

    def why_unwritten(kernel: object) -> str:
        asked.append(kernel)
        return "too large" if kernel == refused else ""

    proposals = KernelProposals(why_unwritten=why_unwritten)
    other = min(proposals.children(moves, start), key=lambda child: child.cost)
    assert refused in asked and refused not in {kernel_of_rule(move.direction.rule) for move in other.moves}
    assert best.cost < other.cost < start.cost and proposals.reasons["too large"] == 1
    monkeypatch.setattr("rewriter.kernels.proposals._WORTH", 1.0)
    fresh = KernelProposals(why_unwritten=why_unwritten)
    assert other.cost <= min(fresh.children(moves, start), key=lambda child: child.cost).cost


def test_nothing_is_looked_at_again_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came of the best in turn is proposed then."""
    drafted, plain, moves = list[FusableSet](), KernelBuilder.draft, moves_for()

    def draft(self: KernelBuilder, fusable: FusableSet, form: Form = PLAIN) -> DraftKernel:
        drafted.append(fusable)
        return plain(self, fusable, form)

    monkeypatch.setattr(KernelBuilder, "draft", draft)
    proposals, start = KernelProposals(), moves.start(two_layers())
    turn = proposals._best_in_turn

    def timed(*arguments: object) -> Candidate:
        found = turn(*arguments)  # type: ignore[arg-type]
        seconds[0], counts[0] = -1.0, len(drafted)
        return found

    seconds, counts = [9.0], [0]
    monkeypatch.setattr(proposals, "_best_in_turn", timed)
    (only,) = proposals.children(moves, start, lambda: seconds[0])
    assert len(drafted) == counts[0] > 0 and only.cost < start.cost
