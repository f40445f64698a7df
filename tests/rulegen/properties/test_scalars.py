"""Equality of entries: Z3 proves true equations and nothing false."""

from __future__ import annotations

import pytest

from mugraph.domains.symbolic import Poly, Symbolic
from rulegen.properties.scalars import decide
from rules_db.trust.rule import Verdict

S = Symbolic()


X, Y = (S.input(name, ()) for name in "xy")


x, y = X.item(), Y.item()


def entry(array: object) -> Poly:
    return array.item()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("left", "right", "assumed"),
    [
        (S.neg(S.maximum(X, Y)), S.minimum(S.neg(X), S.neg(Y)), []),
        (S.exp(S.add(X, Y)), S.mul(S.exp(X), S.exp(Y)), []),
        (S.exp(S.neg(X)), S.div(S.const(1), S.exp(X)), []),
        (S.sqrt(S.mul(X, Y)), S.mul(S.sqrt(X), S.sqrt(Y)), [(">=", x), (">=", y)]),
        (S.maximum(S.mul(X, Y), S.const(0)), S.mul(S.maximum(X, S.const(0)), Y), [(">=", y)]),
        (S.apply("erf", S.sub(X, Y)), S.neg(S.apply("erf", S.sub(Y, X))), []),
        (S.apply("abs", S.neg(X)), S.apply("abs", X), []),
        (S.maximum(X, S.minimum(X, Y)), X, []),
        (S.apply("tanh", S.maximum(X, Y)), S.maximum(S.apply("tanh", X), S.apply("tanh", Y)), []),
        (S.apply("erf", S.minimum(X, Y)), S.minimum(S.apply("erf", X), S.apply("erf", Y)), []),
        (
            S.minimum(S.const(1), S.maximum(S.const(0), S.maximum(X, Y))),
            S.maximum(*(S.minimum(S.const(1), S.maximum(S.const(0), v)) for v in (X, Y))),
            [],
        ),
        (S.div(X, S.add(X, Y)), S.div(S.mul(X, X), S.add(S.mul(X, X), S.mul(X, Y))), [("!=", x)]),
    ],
)
def test_z3_proves_entries(left: object, right: object, assumed: list[tuple[str, Poly]]) -> None:
    assert entry(left) != entry(right), "the canonical forms decide already"
    assert decide(entry(left), entry(right), assumed).verdict == Verdict.PROVED


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (S.maximum(S.mul(X, Y), S.const(0)), S.mul(S.maximum(X, S.const(0)), Y)),
        (S.maximum(S.add(X, Y), S.const(0)), S.add(S.maximum(X, S.const(0)), S.maximum(Y, S.const(0)))),
        (S.exp(S.mul(X, Y)), S.mul(S.exp(X), S.exp(Y))),
        (S.apply("erf", S.add(X, Y)), S.add(S.apply("erf", X), S.apply("erf", Y))),
        (S.apply("tanh", X), S.apply("erf", X)),
        (S.apply("sin", S.maximum(X, Y)), S.maximum(S.apply("sin", X), S.apply("sin", Y))),
        (S.minimum(S.maximum(X, Y), S.const(1)), S.maximum(X, S.minimum(Y, S.const(1)))),
    ],
)
def test_z3_proves_nothing_false(left: object, right: object) -> None:
    answer = decide(entry(left), entry(right))
    assert answer.verdict == Verdict.UNKNOWN and answer.model is not None
