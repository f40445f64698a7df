"""Models that differ in the number of their layers have one family, and names of values that mean the same in each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.graph import Graph
from rewriter.search.backtracking import Searched
from rewriter.search.families import ModelFamily, family_of
from rewriter.search.layers import shorten
from rewriter.search.replay import retrace
from tests.support.graphs import ASSOCIATIVE, FACTOR, Builder, adapters, backtracking


def family(graph: Graph) -> ModelFamily:
    short = shorten(graph, 2)
    assert short is not None
    found = family_of(short)
    assert found is not None
    return found


def decoder(layers: int, *, keeps: bool = True, operator: str = "Tanh", number: float = 2.0, width: int = 8) -> Graph:
    """Layers that hand on one value each besides, behind a scaled input and before an operator."""
    b = Builder()
    value = b.op("Mul", b.input(f"[4,{width}]"), b.constant(np.asarray(number, np.float32)))
    kept = []
    for _ in range(layers):
        product = b.op("MatMul", value, b.weight(width, width))
        kept.append(product)
        value = b.op("Relu", b.op("Add", value, product))
    return b.graph(b.op(operator, value), *(kept if keeps else ()))


@pytest.mark.parametrize("made", [adapters, decoder])
def test_the_number_of_layers_is_not_part_of_a_family(made: Callable[[int], Graph]) -> None:
    assert len({family(made(layers)).digest for layers in (4, 5, 12)}) == 1
    short = shorten(made(3), 2)
    assert short is None, "no layer can be left out"


@pytest.mark.parametrize("other", [{"operator": "Sigmoid"}, {"number": 3.0}, {"width": 16}, {"keeps": False}])
def test_what_else_differs_is(other: dict[str, object]) -> None:
    assert family(decoder(6)).digest != family(decoder(6, **other)).digest  # type: ignore[arg-type]


def test_a_part_that_is_like_nothing_else_has_no_family() -> None:
    b = Builder()
    tables = b.tables
    value = x = b.input("[4,4]")
    for _ in range(6):
        value = b.op("Relu", b.op("MatMul", value, b.weight(4, 4)))
    unknown = tables.add_node("Opaque", (), [value], [tables.new_value(tables.types[x])], origin=0, intern=False)
    short = shorten(b.graph(unknown.values[0]), 2)
    assert short is not None and family_of(short) is None
    told = [family_of(short, lambda _, kind=kind: kind) for kind in ("a", "a", "b")]  # type: ignore[misc]
    assert len({each.digest for each in told if each is not None}) == 2


@pytest.mark.parametrize("layers", [4, 5, 12])
def test_moves_of_one_depth_are_made_at_another(layers: int) -> None:
    """As recorded on the whole of a model of six layers; three layers of the short model stand for all."""
    six = adapters(6)
    found = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0).run(six).better[0]
    recorded = [move.recorded(family(six).key) for move in found.moves]
    assert {len(move.keys) for move in recorded} <= {1, 2}, "the sites of all layers but the first have one name"
    other = adapters(layers)
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    own = {direction.id: direction for direction in search.moves.matches.directions}
    steps = [replace(move, direction=own[move.direction.id]) for move in recorded]
    short = shorten(other, search.moves.matches.depth)
    assert short is not None
    for graph in (short.graph, other):
        again = retrace(search.moves, graph, steps, family(other).key)
        assert again.graph.digest == search.run(graph).better[0].graph.digest


def best_cost(searched: Searched) -> float:
    return min(candidate.cost for candidate in (searched.start, *searched.better))


@pytest.mark.parametrize("expansions", [0, 1, 2, 100])
def test_what_is_known_only_helps(expansions: int) -> None:
    """Whatever moves a record has, and in whatever order: the search ends no worse than without it, be its time short or long."""
    six, twelve, rules = adapters(6), adapters(12), (ASSOCIATIVE, FACTOR)
    found, key = backtracking(rules, alpha=2.0).run(six).better, family(six).key
    orders = {order for c in found for count in (1, 2) for order in itertools.permutations(c.moves, count)}
    records = {tuple(move.recorded(key) for move in order) for order in orders}
    costs = set()
    for record in [(), *records]:
        search = backtracking(rules, alpha=2.0, expansions=expansions)
        short = shorten(twelve, search.moves.matches.depth)
        assert short is not None
        own = {direction.id: direction for direction in search.moves.matches.directions}
        steps = [replace(move, direction=own[move.direction.id]) for move in record]
        seeds = [retrace(search.moves, short.graph, steps, family(twelve).key)] if record else []
        without = best_cost(search.run(short.graph))
        costs.add(round(best_cost(search.run(short.graph, seeds=seeds)) / without, 6))
    assert max(costs) == 1.0
    assert (min(costs) < 1.0) is (expansions < 2), "what is known is there before anything is expanded"
