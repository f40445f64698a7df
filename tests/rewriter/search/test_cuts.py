"""Minimum cuts against a library's."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from rewriter.search.cuts import minimum_cut


@pytest.mark.parametrize("seed", range(60))
def test_a_cut_is_that_of_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 24))
    pairs = {(int(a), int(b)) for a, b in rng.integers(0, nodes, (int(rng.integers(1, 5 * nodes)), 2)) if a != b}
    # what is unlimited is no path by itself: it leads neither from the source nor to the sink
    edges = [(a, b, None if a and b != 1 and rng.random() < 0.2 else int(rng.integers(0, 9))) for a, b in sorted(pairs)]
    network = nx.DiGraph()
    network.add_nodes_from((0, 1))
    network.add_edges_from((a, b, {} if capacity is None else {"capacity": capacity}) for a, b, capacity in edges)
    cost, (_, side) = nx.minimum_cut(network, 0, 1)
    assert minimum_cut(edges, 0, 1) == (cost, side)


def test_a_long_chain_of_unlimited_edges_takes_no_recursion() -> None:
    chain = [(place, place + 1, None) for place in range(1, 5000)]
    assert minimum_cut([("s", 1, 3), *chain, (5000, "t", 2)], "s", "t") == (2, {"t"})
    assert minimum_cut([("s", 1, 2), *chain, (5000, "t", 3)], "s", "t") == (2, {"t", *range(1, 5001)})
