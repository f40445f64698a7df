"""Terms and graphs of them, the sets of their nodes that kernels are made of, and the moves of a search that takes kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.blocks.block import Block
from mugraph.domains.real import Real
from mugraph.graph import Constant, Graph, Tables
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, walk
from mugraph.terms.text import parse_term
from rewriter.cost import CostModel, ProfileStore
from rewriter.cost.devices import DEVICES
from rewriter.kernels.fuse.fusable import FusableSet
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rules_db.trust.rule import Rule

HALF = DataType.FLOAT16
RMS = "Div({0}, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](Mul({0}, {0})), 1e-05)))"
HEADS = "Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(3,4)]({0}))"
ATTENTION = "MatMul(Softmax[axis=-1]({0}), {1})"
ANY = "Cast[to=bool](ReduceMax[axes=(-2,-1),keepdims=false](Cast[to=int64]({0})))"
INFINITE = f"Where({ANY.format('IsInf({0})')}, 1.0, 2.0)"
CAUSAL = "Where(CausalMask[columns=7,rows=5](), Mul(MatMul(q, Transpose[perm=(1,0)](k)), 0.5), -inf)"


def types_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
    return {name: TensorType(HALF, tuple(shape)) for name, shape in shapes.items()}


def fusable_of(shapes: Mapping[str, Sequence[int]], text: str) -> FusableSet:
    return FusableSet((0,), (parse_term(text),), {name: i for i, name in enumerate(shapes)}, types_of(shapes), 1)


def graph_of(
    shapes: Mapping[str, Sequence[int]], weights: Mapping[str, Sequence[int]], texts: Sequence[str], dtype: DataType = HALF
) -> Graph:
    tables, values = Tables(), dict[Term, int]()
    generator = np.random.default_rng(0)
    inputs = [tables.new_value(TensorType(dtype, tuple(shape)), name) for name, shape in shapes.items()]
    named = dict(zip(shapes, inputs, strict=True))
    for name, shape in weights.items():
        array = (generator.standard_normal(shape) / 4).astype(dtype.numpy())
        named[name] = tables.add_constant(Constant.of(array, TensorType(dtype, tuple(shape))), name)
    roots = [parse_term(text) for text in texts]
    for term in walk(roots):
        if term.is_var:
            values[term] = named[term.name]
        elif term.op == "Const":
            values[term] = tables.literal(np.asarray(term.attr("value"), dtype.numpy()), TensorType(dtype, ()))
        else:
            values[term] = tables.apply(term.op, term.attrs, [values[i] for i in term.inputs]).values[term.out]
    return Graph.build(tables, inputs, [values[root] for root in roots])


def evaluated(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a graph, in double precision."""
    constants = {v: c.load() for v, c in graph.tables.constants.items()}
    values = {v: array.astype(np.float64) if array.dtype.kind == "f" else array for v, array in constants.items()}
    values |= dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes():
        results = get_operator(node.op).run(Real(np.float64), node.attrs, [values[v] for v in node.inputs])
        values |= {
            v: np.asarray(r)
            for v, r in zip(node.values, results, strict=True)
            if graph.definition(v) == (node, node.values.index(v))
        }
        values |= {v: np.asarray(results[out]) for v, (n, out) in graph.definitions.items() if n is node}
    return [values[v] for v in graph.outputs]


def moves_for(rules: Sequence[Rule] = (), opset: int = 20) -> Moves:
    costs = CostModel(ProfileStore(None, "test"), opset, {}, "cuda", -float("inf"), DEVICES["h200"])
    matches = Matches.of(rules, RangeOracle({}), costs.provider, costs.opset)
    return Moves(matches, Prices(costs, matches.fusions))


def kinds(block: Block, kind: type) -> int:
    return sum(isinstance(s, kind) for s in block.statements)
