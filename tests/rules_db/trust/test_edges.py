"""Windows of padding alone and axes without entries: what the runtime gives there, and the guards that keep rules away."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from mugraph.domains.range import Range
from mugraph.terms.shape import TensorType, floor_div, symbol
from mugraph.terms.term import var
from mugraph.terms.text import parse_type
from rules_db.library import shipped_rules
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import load_axioms

_WINDOW = "kernel_shape=[2,2],pads=[1,1,1,1],dilations=[3,3]"
"""Over an image of 2x2: the only window lies around it."""
_GUARDED = ("max_pool.monotone.", "max_pool.shift.", "max_pool.factor.", "average_pool.shift.")


def runtime(body: str, x: np.ndarray) -> np.ndarray:
    text = f'<ir_version: 9, opset_import: ["" : 19]> g (float[1,1,H,W] x) => (float[1,1,P,Q] y) {{ {body} }}'
    session = ort.InferenceSession(parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return result


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (f"a = Relu(x) y = MaxPool<{_WINDOW}>(a)", f"a = MaxPool<{_WINDOW}>(x) y = Relu(a)"),
        (
            f"c = Constant<value_float=2.0>() a = Mul(x, c) y = MaxPool<{_WINDOW}>(a)",
            f"c = Constant<value_float=2.0>() a = MaxPool<{_WINDOW}>(x) y = Mul(a, c)",
        ),
        (
            f"c = Constant<value_float=1.0>() a = Add(x, c) y = AveragePool<{_WINDOW}>(a)",
            f"c = Constant<value_float=1.0>() a = AveragePool<{_WINDOW}>(x) y = Add(a, c)",
        ),
    ],
)
def test_the_runtime_says_that_the_guard_is_needed(inside: str, outside: str) -> None:
    near, large = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 4, 4), np.float32)
    assert not np.array_equal(runtime(inside, near), runtime(outside, near))
    assert np.array_equal(runtime(inside, large), runtime(outside, large)), "where windows touch the image, both are equal"


def facts(type_: TensorType, **more: Any) -> Facts:
    return Facts(lambda term: type_, lambda term: Range.top(), **more)


def test_every_law_that_fails_there_has_the_guard() -> None:
    laws = [axiom for name, axiom in load_axioms().items() if name.startswith(_GUARDED)]
    assert len(laws) >= 9
    for axiom in laws:
        assert any(condition.predicate == "touches" for condition in axiom.conditions), axiom
    for name in ("softmax.times_constant.Add", "softmax.times_constant.Sub", "matmul.div_left"):
        assert any(condition.predicate == "nonempty" for condition in load_axioms()[name].conditions), name


def test_no_shipped_rule_is_without_it() -> None:
    cited = {prefix: 0 for prefix in (*_GUARDED, "softmax.times_constant.", "matmul.div_left")}
    for rule in shipped_rules():
        for prefix in cited:
            if any(instance.axiom.startswith(prefix) for instance in rule.certificate.instances):
                cited[prefix] += 1
                assert {c.predicate for c in rule.conditions} & {"touches", "nonempty"}, rule.id
    assert cited["max_pool.monotone."] and cited["softmax.times_constant."] and cited["matmul.div_left"]


@pytest.mark.parametrize(
    ("image", "kernel", "pad", "dilation", "answer"),
    [
        (2, 2, 1, 3, False),  # the window steps over the image
        (3, 2, 1, 3, True),
        (2, 2, 1, 1, True),
        (9, 1, 1, 1, False),
        (9, 3, 3, 1, False),
        (1, 5, 0, 4, True),  # such an image has no place for it
        (symbol("h"), 2, 1, 3, None),
        (symbol("h"), 3, 1, 1, True),
        (symbol("h"), 2, 0, 3, True),
    ],
)
def test_what_a_window_touches(image: Any, kernel: int, pad: int, dilation: int, answer: bool | None) -> None:
    condition = Condition("touches", (var("x"), (kernel,), (pad, pad), (dilation,)))
    type_ = TensorType(parse_type("[1]").dtype, (1, 1, image))
    assert condition.holds(facts(type_)) is answer
    if isinstance(image, int) and not (kernel > 1 and pad == 0):
        places = range(-pad, image + pad - dilation * (kernel - 1))
        windows = [[place + dilation * step for step in range(kernel)] for place in places]
        assert answer is all(any(0 <= at < image for at in window) for window in windows)


def test_a_symbol_of_a_model_may_be_zero_and_one_of_a_rule_is_a_size() -> None:
    condition, symbolic = Condition("nonempty", (var("x"), -1)), parse_type("[m,n]")
    assert condition.holds(facts(symbolic)) is None and condition.holds(facts(symbolic, least=1)) is True
    assert condition.holds(facts(parse_type("[m,n+1]"))) is True
    assert condition.holds(facts(parse_type("[2,0]"))) is False and condition.holds(facts(parse_type("[0,2]"))) is True


def test_what_a_stride_leaves_of_a_size_may_be_nothing() -> None:
    """A symbol of a rule's sample is at least 1; the whole part of a quotient is no such symbol."""
    n = symbol("n")
    sample = facts(parse_type("float[n]"), least=1)
    assert sample.at_least(n, 1) and sample.at_least(floor_div(n, 2) + 1, 1)
    assert sample.at_least(floor_div(n, 2), 1) is None
