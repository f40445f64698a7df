"""Weights of products of few rows, turned, so that the entries of a column lie together.

A row times a matrix takes as long as the matrix is read. A block that computes a few columns reads runs of a few entries where
the matrix lies by rows; where it lies by columns it reads these whole, however few they are, so that there are blocks for every
multiprocessor and no sum is split among them (docs/decoding.md, Weights by columns). Weights are constants: what is turned twice
is the same matrix, of which a kernel reads the inner one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.terms.shape import TensorType, Undecided
from mugraph.terms.term import make, var
from rewriter.cost.roofline import product_sizes
from rewriter.search.directions import made_here
from rewriter.search.match import Match, resolve
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.numbering import shape_conditions
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["is_turned", "turned_weights", "turns"]

_MOST_ROWS = 16
"""Of a product that is few: those of a matrix unit."""
_ORIGIN = made_here("turned")
_TURN = (1, 0)


def is_turned(graph: Graph, value: int) -> bool:
    """Whether a value is a constant matrix that is turned twice."""
    for _ in range(2):
        definition = graph.definition(resolve(graph, value))
        if definition is None or definition[0].op != "Transpose" or dict(definition[0].attrs)["perm"] != _TURN:
            return False
        value = definition[0].inputs[0]
    return graph.tables.constant[value]


def turned_weights(graph: Graph) -> Iterator[Rule]:
    """The rules by which the weights of products of few rows are turned twice, one for each sizes of such products."""
    yield from dict.fromkeys(_rule(*types) for node in graph.nodes() if (types := _operands(graph, node)) is not None)


def turns(graph: Graph, match: Match) -> bool:
    """Whether a match of such a rule is a product of few rows by weights that are not turned yet."""
    return all((found := graph.definition(value)) is not None and _operands(graph, found[0]) for value in match.values)


def _operands(graph: Graph, node: Node) -> tuple[TensorType, TensorType] | None:
    """The operands of a product of few rows by weights that nothing else reads; ``None`` of any other node.

    What others read has to be there as it came, too, so that the file would hold it twice.
    """
    types = _few_rows(graph, node)
    if types is None:
        return None
    weights = resolve(graph, node.inputs[1])
    if not graph.tables.constant[weights] or is_turned(graph, weights):
        return None
    return types if all(_few_rows(graph, reader) for reader in graph.users.get(weights, ())) else None


def _few_rows(graph: Graph, node: Node) -> tuple[TensorType, TensorType] | None:
    """The operands of a product of few rows by a matrix; ``None`` of any other node."""
    if node.op != "MatMul":
        return None
    left, right, out = (graph.type(value) for value in (*node.inputs, node.values[0]))
    if left is None or right is None or out is None or right.rank != 2 or right.dtype not in FLOATS:
        return None
    try:
        sizes = product_sizes(node.op, {}, [left, right], [out])
    except Undecided:
        return None
    return (left, right) if sizes is not None and 1 <= sizes[1] <= _MOST_ROWS else None


@lru_cache(maxsize=1 << 8)
def _rule(left: TensorType, right: TensorType) -> Rule:
    x, y = var("x"), var("y")
    twice = make("Transpose", [make("Transpose", [y], {"perm": _TURN})], {"perm": _TURN})
    instances = (
        Instance("transpose.compose", (("x", y),), (("q", _TURN), ("p", _TURN), ("r", ()))),
        Instance("transpose.identity", (("x", y),)),
    )
    conditions = (*shape_conditions(x, left), *shape_conditions(y, right))
    source, target = make("MatMul", [x, y]), make("MatMul", [x, twice])
    return Rule((source,), (target,), {"x": left, "y": right}, conditions, FloatClass.EXACT, Certificate(instances), _ORIGIN)
