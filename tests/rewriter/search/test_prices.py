"""One opinion of prices: a node is asked for once."""

from __future__ import annotations

from mugraph.graph import Graph, Node
from rewriter.search.fusions import Fusions
from rewriter.search.matcher import MatchPool
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from tests.support.graphs import Builder, TableCosts, mixed


class Counted(TableCosts):
    """Counts how often it is asked."""

    asked = 0

    def cost(self, graph: Graph, node: Node) -> float:
        self.asked += 1
        return super().cost(graph, node)


def test_a_node_keeps_its_price_until_there_is_another_opinion() -> None:
    graph, costs, fusions = mixed(), Counted(Neg=3.0), Fusions((), MatchPool(RangeOracle({}), 20))
    prices = Prices(costs, fusions)
    before, asked = prices.total(graph), costs.asked
    costs.prices["Neg"] = 5.0
    assert prices.total(graph) == before == 2 * 3.0 + 2 * 1.0
    assert costs.asked == asked == len(graph.references)
    assert Prices(costs, fusions).total(graph) == 2 * 5.0 + 2 * 1.0


def test_what_a_change_costs_is_what_comes_less_what_goes() -> None:
    b = Builder()
    x = b.input("[4,4]")
    graph = b.graph(b.op("Tanh", b.op("Neg", x)))
    after = graph.substitute({graph.outputs[0]: (b.tables.apply("Relu", (), [x]), 0)})
    change = {node: 1 for node in after.added} | {node: -1 for node in after.removed}
    prices = Prices(TableCosts(Tanh=7.0, Neg=2.0, Relu=4.0), Fusions((), MatchPool(RangeOracle({}), 20)))
    assert prices.difference(after, change) == -5.0  # type: ignore[arg-type]
