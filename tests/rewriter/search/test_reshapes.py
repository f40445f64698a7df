"""What is written of a Reshape may not be right where a size is 0: a result that rests on one says so."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import load, to_bytes
from mugraph.terms.shape import DataType, TensorType, Undecided, symbol
from mugraph.terms.term import Attrs, Term
from mugraph.terms.text import parse_term
from rewriter.runtime_env import RuntimeFailure, new_session
from rewriter.search.ranges import Assumption, RangeOracle
from rewriter.search.reshapes import brought_reshapes, need_entries
from rules_db.library import shipped_rules
from tests.support.graphs import apply_match, matches_of

M, N = symbol("m"), symbol("n")


def as_it_is(attrs: Attrs) -> Attrs:
    return attrs


@pytest.mark.parametrize(
    ("shape", "rest", "named"),
    [
        ("1,N,N", "N,N", True),  # [-1, 0]
        ("1,8,8", "8,8", False),
        ("N,3,8", "8,5", False),  # [-1, 8]: nothing else may be 0
        ("2,N,8", "8,5", False),
        ("M,N,8", "8,5", True),  # [-1, a computed size, 5] behind the product: a 0 there copies 5
    ],
)
def test_a_size_that_is_inferred_beside_another_is_named(shape: str, rest: str, named: bool) -> None:
    model = load(
        parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[{shape}] x, float[{rest}] w) => (float[a,b,c] y) {{ y = MatMul(x, w) }}""")
    )
    (flat,) = [rule for rule in shipped_rules() if rule.id == "ea8d7a867b45a61e"]
    (match,) = matches_of(model.graph, flat)
    oracle = RangeOracle({})
    candidate = apply_match(match, model.graph, oracle)
    assert isinstance(candidate, Graph)
    relied = oracle.relied.get((match.direction.id, match.values), frozenset())
    assert (Assumption.NONEMPTY in relied) is named
    session = new_session(to_bytes(model, candidate))
    sizes = [[0 if dim in "MN" else int(dim) for dim in dims.split(",")] for dims in (shape, rest)]
    feed = {name: np.zeros(size, np.float32) for name, size in zip("xw", sizes, strict=True)}
    try:
        shape_made = session.run(None, feed)[0].shape
    except RuntimeFailure:
        shape_made = None
    assert (shape_made == (*sizes[0][:2], sizes[1][1])) is not named, "what the assumption is about"


def test_reshapes_that_the_model_holds_are_not_brought() -> None:
    held, other = "Reshape[drop=2,shape=(m*n,)](x)", "Reshape[drop=1,shape=(m,n)](x)"
    before, after = (parse_term(f"Neg({held})"),), (parse_term(f"Add({held}, Neg({other}))"),)
    assert brought_reshapes(before, after) == (parse_term(other),)


def test_what_is_ill_typed_needs_nothing() -> None:
    reshapes = (parse_term("Reshape[drop=2,shape=(n,m)](x)"),)

    def undecided(term: Term) -> TensorType:
        raise Undecided("whether n equals m")

    def known(term: Term) -> TensorType:
        return TensorType(DataType.FLOAT, (M, N))

    assert need_entries(reshapes, known, as_it_is) and not need_entries(reshapes, undecided, as_it_is)
