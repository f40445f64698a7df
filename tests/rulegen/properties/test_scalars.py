"""Equality of entries: Z3 proves true equations and nothing false."""

from __future__ import annotations

from typing import Any

import pytest

from mugraph.domains.symbolic import Poly, Symbolic
from rulegen.properties.normal_form import LEAST
from rulegen.properties.scalars import decide
from rules_db.trust.rule import Verdict

S = Symbolic()


X, Y = (S.input(name, ()) for name in "xy")
LOWEST = S.input(LEAST[1], LEAST[2])
MANY = S.input("m", (12,))


x, y = X.item(), Y.item()


def clip(v: Any) -> Any:
    return S.minimum(S.maximum(v, S.const(0)), S.const(1))


def greatest(v: Any) -> Any:
    return S.max(v, (-1,), False)


def byte(p: Poly) -> list[tuple[str, Poly]]:
    return [("whole", p), (">=", p), (">=", Poly.constant(255) - p)]


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
        # orders of twelve entries, of which Z3 tries each
        (clip(greatest(MANY)), greatest(clip(MANY)), []),
        (greatest(S.add(MANY, X)), S.add(greatest(MANY), X), []),
        (greatest(S.mul(MANY, X)), S.mul(greatest(MANY), X), [(">=", x)]),
        (greatest(S.div(MANY, S.exp(X))), S.div(greatest(MANY), S.exp(X)), []),
        # what is known of a number
        (S.maximum(X, S.const(0)), X, [(">=", x)]),
        (clip(S.apply("sigmoid", X)), S.apply("sigmoid", X), []),
        (S.maximum(X, LOWEST), X, []),
        (S.minimum(X, S.neg(LOWEST)), X, []),
        (S.add(X, LOWEST), LOWEST, []),
        # definitions
        (S.apply("sigmoid", S.neg(X)), S.sub(S.const(1), S.apply("sigmoid", X)), []),
        (S.apply("tanh", X), S.sub(S.mul(S.const(2), S.apply("sigmoid", S.add(X, X))), S.const(1)), []),
        (S.apply("softplus", X), S.apply("log", S.add(S.exp(X), S.const(1))), []),
        (S.apply("log", S.div(S.exp(X), S.add(S.exp(X), S.exp(Y)))), S.sub(X, S.apply("log", S.add(S.exp(X), S.exp(Y)))), []),
        (S.exp(S.sub(S.apply("log", X), Y)), S.mul(X, S.exp(S.neg(Y))), []),
        (S.apply("log", S.apply("pow", X, Y)), S.mul(Y, S.apply("log", X)), [(">", x)]),
        (S.apply("pow", X, S.const(0)), S.const(1), []),
        # whole numbers
        (S.apply("mod", S.apply("mod", X, Y), Y), S.apply("mod", X, Y), []),
        (S.apply("floor", S.add(X, Y)), S.add(S.apply("floor", X), Y), [("whole", y)]),
        (S.apply("round", S.add(X, S.const(2))), S.add(X, S.const(2)), [("whole", x)]),
        (S.apply("round", S.const(2.5)), S.const(2), []),
        (S.apply("cast_UINT8", S.minimum(S.maximum(X, S.const(0)), S.const(255))), X, byte(x)),
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
        (clip(S.add(X, Y)), S.add(clip(X), Y)),
        (S.sqrt(S.maximum(X, S.const(-1))), X),
    ],
)
def test_z3_proves_nothing_false(left: object, right: object) -> None:
    answer = decide(entry(left), entry(right))
    assert answer.verdict == Verdict.UNKNOWN and answer.model is not None


@pytest.mark.parametrize(
    ("left", "right", "assumed"),
    [
        (S.maximum(X, S.const(0)), X, [(">=", y), (">=", -x)]),
        (S.maximum(X, S.neg(LOWEST)), X, []),
        (S.apply("round", S.add(X, S.const(1))), S.add(S.apply("round", X), S.const(1)), []),  # 0.5 goes to 0, 1.5 to 2
        (S.apply("floor", S.add(X, Y)), S.add(S.apply("floor", X), Y), []),
        (S.apply("floor", S.div(X, S.const(2))), S.div(X, S.const(2)), [("whole", x)]),
        (S.apply("mod", X, Y), X, []),
        (S.apply("cast_UINT8", X), X, [("whole", x)]),
        (S.apply("cast_INT8", X), X, byte(x)),
        (S.apply("cast_UINT8", X), X, byte(x)[1:]),
        (S.apply("log", S.mul(X, X)), S.mul(S.const(2), S.apply("log", X)), []),  # of a negative number
        (S.apply("pow", X, Y), S.exp(S.mul(Y, S.apply("log", X))), [(">=", x)]),
    ],
)
def test_what_must_be_known_is_asked(left: object, right: object, assumed: list[tuple[str, Poly]]) -> None:
    assert decide(entry(left), entry(right), assumed).verdict == Verdict.UNKNOWN


def test_z3_is_asked_where_normal_forms_differ() -> None:
    assert not decide(entry(greatest(S.add(MANY, X))), entry(S.add(greatest(MANY), X))).by_z3
    assert decide(entry(S.apply("abs", S.neg(X))), entry(S.apply("abs", X))).by_z3


def test_a_rounded_number_is_told_from_a_function_that_is_unknown() -> None:
    sixth = decide(entry(S.mul(X, S.const(1 / 6))), entry(S.div(X, S.const(6))))
    assert sixth.verdict == Verdict.UNKNOWN and "a number is rounded" in sixth.reason
    assert "symbols" in decide(entry(S.apply("sin", X)), x).reason
