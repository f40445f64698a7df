"""Graphs built by hand, rules without certificates, costs from a table, and searches of them in which nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from mugraph.graph import Constant, Graph, Node, Tables
from mugraph.terms.shape import TensorType
from mugraph.terms.text import Parser, parse_term, parse_type
from rewriter.search.apply import plan_match, substitute_match
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.directions import Direction
from rewriter.search.expansion import Generator, KernelGenerator
from rewriter.search.match import Match, NoMatch
from rewriter.search.matches import Matches
from rewriter.search.moves import NOISE, Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import BACKTRACKING, Strategy
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import parse_condition
from rules_db.trust.rule import FloatClass, Rule


def rule(source: str, target: str, types: str, when: str = "") -> Rule:
    """An uncertified rule, for tests about using rules, not about proving them."""
    before, after = (tuple(parse_term(part) for part in side.split(";")) for side in (source, target))
    pairs = dict(item.split(":") for item in types.split())
    conditions = tuple(parse_condition(Parser(c)) for c in when.split(" & ") if c)
    typed = {name: parse_type(text) for name, text in pairs.items()}
    return Rule(before, after, typed, conditions, FloatClass.REASSOCIATES, Certificate(()))


ASSOCIATIVE = rule(
    "MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))", "X:[m,k] A:[k,r] B:[r,n]", "matrix(X) & matrix(A) & matrix(B)"
)
FACTOR = rule(
    "Add(MatMul(X, W), MatMul(X, V))", "MatMul(X, Add(W, V))", "X:[m,k] W:[k,n] V:[k,n]", "matrix(W) & same_shape(W, V)"
)
MERGE = rule(
    "MatMul(X, W); MatMul(X, V)",
    "Split[axis=-1,sizes=(n,p)].0(MatMul(X, Concat[axis=-1](W, V)));"
    "Split[axis=-1,sizes=(n,p)].1(MatMul(X, Concat[axis=-1](W, V)))",
    "X:[m,k] W:[k,n] V:[k,p]",
    "matrix(W) & matrix(V) & dim(W,-1,n) & dim(V,-1,p)",
)
UNGUARD = rule("Where(IsNaN(X), C, X)", "X", "X:[m,n] C:[]", "not_nan(X) & fits(C, X)")
TURN = "Transpose[perm=(1,0)]"
CANCEL = rule(f"{TURN}({TURN}(X))", "X", "X:[m,n]")
PRODUCT = rule(f"{TURN}(MatMul(X, Y))", f"MatMul({TURN}(Y), {TURN}(X))", "X:[m,k] Y:[k,n]", "matrix(X) & matrix(Y)")
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")


class TableCosts:
    """Costs by operator name, of products more with their size: a stand-in for measured costs."""

    provider = "cpu"

    def __init__(self, **prices: float) -> None:
        self.prices = prices

    def cost(self, graph: Graph, node: Node) -> float:
        if node.op == "Identity" or all(graph.tables.constant[v] for v in node.values):
            return 0.0
        price = self.prices.get(node.op, 1.0)
        if node.op == "MatMul":
            sizes = [graph.type(v).shape[-1] for v in (node.inputs[0], node.values[0])]  # type: ignore[union-attr]
            price += float(np.prod([s for s in sizes if isinstance(s, int)])) / 64
        return price

    def estimate(self, graph: Graph, node: Node) -> float:
        return self.cost(graph, node)


class Builder:
    """Builds a graph node by node; values are what its methods return."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.inputs: list[int] = []

    def input(self, text: str) -> int:
        self.inputs.append(self.tables.new_value(parse_type(text), f"in{len(self.inputs)}"))
        return self.inputs[-1]

    def constant(self, array: np.ndarray) -> int:
        return self.tables.add_constant(Constant.of(array, TensorType(parse_type("[]").dtype, array.shape)))

    def weight(self, *shape: int) -> int:
        return self.constant(np.ones(shape, np.float32))

    def op(self, name: str, *inputs: int, **attrs: object) -> int:
        return self.tables.apply(name, tuple(sorted(attrs.items())), inputs).values[0]

    def graph(self, *outputs: int) -> Graph:
        return Graph.build(self.tables, self.inputs, outputs)


def adapters(layers: int, widths: dict[int, int] | None = None) -> Graph:
    """Layers of X·W + (X·A)·B under Relu, each with weights of its own; ``widths`` gives some another inner size."""
    b = Builder()
    value = b.input("[4,64]")
    for layer in range(layers):
        rank = (widths or {}).get(layer, 2)
        base = b.op("MatMul", value, b.weight(64, 64))
        adapter = b.op("MatMul", b.op("MatMul", value, b.weight(64, rank)), b.weight(rank, 64))
        value = b.op("Relu", b.op("Add", base, adapter))
    return b.graph(b.op("Tanh", value))


def in_a_row(*operators: str) -> Graph:
    """Operators of one operand, each of the one before."""
    b = Builder()
    value = b.input("[4,4]")
    for operator in operators:
        value = b.op(operator, value)
    return b.graph(value)


def mixed() -> Graph:
    """A double negation and a double transposition."""
    b = Builder()
    turned = b.op("Transpose", b.op("Transpose", b.input("[4,8]"), perm=(1, 0)), perm=(1, 0))
    return b.graph(b.op("Neg", b.op("Neg", turned)))


def transposed(products: int) -> Graph:
    """The transpose of products of a transpose and weights: a transposed product is as dear, what cancels then is not."""
    b = Builder()
    x = b.op("Transpose", b.input("[64,64]"), perm=(1, 0))
    for _ in range(products):
        x = b.op("MatMul", x, b.weight(64, 64))
    return b.graph(b.op("Transpose", x, perm=(1, 0)))


def backtracking(
    rules: Iterable[Rule],
    costs: TableCosts | None = None,
    *,
    opset: int = 20,
    noise: float = NOISE,
    runtime_directions: Collection[str] = (),
    strategy: Strategy = BACKTRACKING,
    layouts: Sequence[Generator] = (),
    kernels: Sequence[KernelGenerator] = (),
    progress: Callable[[int, float, float], None] | None = None,
    **limits: float,
) -> Backtracking:
    """A search with some rules; further options are those of :class:`SearchLimits`."""
    costs = costs or TableCosts()
    matches = Matches.of(rules, RangeOracle({}), costs.provider, opset, runtime_directions)
    moves = Moves(matches, Prices(costs, matches.fusions), noise)
    return Backtracking(moves, SearchLimits(**limits), strategy, tuple(layouts), tuple(kernels), progress=progress)  # type: ignore[arg-type]


def moves_of(rules: Iterable[Rule], costs: TableCosts | None = None, **options: object) -> Moves:
    """The moves of such a search."""
    return backtracking(rules, costs, **options).moves  # type: ignore[arg-type]


def direction_of(moves: Moves, rule: Rule, forward: bool = True) -> Direction:
    """A rule as the moves know it."""
    return next(d for d in moves.matches.directions if d.rule.id == rule.id and d.forward is forward)


def matches_of(graph: Graph, *rules: Rule) -> list[Match]:
    """All matches of rules in a graph."""
    moves = moves_of(rules)
    return [match for group in moves.groups(moves.start(graph)) if group.alike for match in group.matches]


def apply_match(match: Match, graph: Graph, oracle: RangeOracle) -> Graph | NoMatch:
    """The candidate in which the match's values are computed by the replacement, or why there is none."""
    plan = plan_match(match, graph, oracle)
    return plan if isinstance(plan, NoMatch) else substitute_match(match, graph, plan)


def applied(graph: Graph, one: Rule, forward: bool = True) -> list[Graph | NoMatch]:
    """The graph after each match of a rule in one direction, or why there is none."""
    return [apply_match(m, graph, RangeOracle({})) for m in matches_of(graph, one) if m.direction.forward is forward]


def ops(graph: Graph) -> list[str]:
    """The operators that run: what depends on constants alone is folded."""
    return [node.op for node in graph.nodes() if not all(graph.tables.constant[v] for v in node.values)]
