"""The numbers of generated kernels: functions to the last digits, and softmax as exact as the plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.shape import DataType
from mugraph.terms.term import make, var
from rewriter.kernels.text.thread import Expr, write_thread
from rewriter.kernels.triton import generate
from rewriter.kernels.triton.functions import functions_called
from rewriter.kernels.triton.scalar import TritonText
from tests.support.block_kernels import (
    F16,
    F32,
    TOLERANCE,
    check,
    cut,
    kernel_of_terms,
    random_inputs,
    reference,
    tensor,
)
from tools.fuzz.interpreter import Interpreter

pytest.importorskip("triton")


def plain_softmax(scores: np.ndarray) -> np.ndarray:
    """The softmax of rows as an operator computes it, in the precision of its operand."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


LARGEST = float(np.finfo(np.float32).max)
NUMBERS: dict[str, tuple[float, ...]] = {
    "ordinary": (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-6),
    "large": (5000.7, 5000.1, 4999.9, 5001.3, -5000.1, 1e-3),
    "extreme": (1e18, -1e18, 1e20, 3e38, -3e38, LARGEST, -LARGEST, 1e-40, 88.0),
    "infinite": (1.0, 88.0, 3e38, -math.inf, -math.inf),
    "hidden": (-math.inf,),
    "overflown": (math.inf, -math.inf, 1.0),
}
"""Scores of float32."""


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("size", NUMBERS)
def test_a_softmax_is_as_exact_as_the_plain_one_whatever_the_scores(interpreter: Interpreter, size: str, split: int) -> None:
    """Tiles along the scores, and parts of the loop, so that states are rescaled and combined."""
    generator = np.random.default_rng(0)
    scores, values = generator.choice(NUMBERS[size], (32, 11)).astype(np.float32), generator.random((11, 16), np.float32)
    types = {"x": tensor(F32, 32, 11), "v": tensor(F32, 11, 16)}
    kernel = kernel_of_terms("attention", types, {"y": "MatMul(Softmax[axis=-1](x), v)"})
    with np.errstate(invalid="ignore", over="ignore"):
        plain, wanted = plain_softmax(scores) @ values, plain_softmax(scores.astype(np.float64)) @ values.astype(np.float64)
    finite = np.isfinite(plain)
    for tiles in ({"s": 1, "t": 16}, {"s": 16, "t": 16}, {"s": 1, "t": 4}):
        (computed,) = interpreter.run(kernel, cut(split=split, **tiles), {"x": scores, "v": values})
        assert (np.isfinite(computed) == finite).all()
        errors, own = (np.abs(one[finite] - wanted[finite]).max(initial=0.0) for one in (computed, plain))
        assert errors <= own + 4 * 2.0**-24 * np.abs(values).max(), (errors, own)


@pytest.mark.parametrize("size", [1.0, 30.0, 254.0])
def test_a_softmax_of_halves_is_more_exact_than_the_plain_one(interpreter: Interpreter, size: float) -> None:
    """Scores of up to 65025, which an operator rounds to a half before it takes their softmax: the plain one's least error."""
    generator = np.random.default_rng(0)
    q, k = (generator.choice([-size, size], (32, 1)).astype(np.float16) + generator.random((32, 1)) for _ in "qk")
    q, k, v = (one.astype(np.float16) for one in (q, k, generator.random((32, 16))))
    types = {"q": tensor(F16, 32, 1), "k": tensor(F16, 32, 1), "v": tensor(F16, 32, 16)}
    kernel = kernel_of_terms("attention", types, {"y": "MatMul(Softmax[axis=-1](MatMul(q, Transpose[perm=(1,0)](k))), v)"})
    scores, values = q.astype(np.float64) @ k.astype(np.float64).T, v.astype(np.float64)
    wanted = plain_softmax(scores) @ values
    plain = plain_softmax(scores.astype(np.float16).astype(np.float64)) @ values
    for tiles in ({"s": 1, "t": 16}, {"s": 16, "t": 16}, {"s": 1, "t": 4}):
        (computed,) = interpreter.run(kernel, cut(**tiles), {"q": q, "k": k, "v": v})
        errors, own = (np.abs(one - wanted).max() for one in (computed, plain))
        assert errors <= own + 2.0**-11, (errors, own)  # it rounds its weights and its result to halves


@pytest.mark.parametrize(("factor", "folded"), [("1e-31", False), ("1e-30", True), ("1e30", True), ("1e31", False)])
def test_a_factor_of_the_scores_that_may_overflow_stays_theirs(factor: str, folded: bool) -> None:
    types = {x: tensor(F32, 2, 20, 16) for x in "qkv"}
    scores = f"Mul(MatMul(q, Transpose[perm=(1,0)](k)), {factor})"
    kernel = kernel_of_terms("attention", types, {"y": f"MatMul(Softmax[axis=-1]({scores}), v)"})
    assert ("scores = " not in generate(kernel, cut(s=4, t=4)).text) == folded


ELEMENTWISE = (
    "Abs(x) Sign(x) Floor(x) Ceil(x) Log(Abs(x)) Sin(x) Cos(x) Sigmoid(x) Erf(x) Tanh(x) Softplus(x) Relu(x) Neg(x) Exp(x)",
    "Reciprocal(x) Sqrt(Abs(x)) Pow(x,2.0) Pow(Abs(x),-0.5) LeakyRelu[alpha=0.1](x) Elu[alpha=0.5](x) Selu(x) Gelu(x)",
    "Gelu[approximate='tanh'](x) HardSigmoid(x) HardSwish(x) Mish(x) Softsign(x) PRelu(x,y) Clip[max=0.5,min=-0.5](x)",
    "Sum(x,y,x) Max(x,y) Min(x,y,0.1) Add(x,y) Sub(x,y) Mul(x,y) Div(x,y) Where(Less(x,y),x,0.0) Where(IsNaN(x),0.0,x)",
    "Where(And(Greater(x,0.0),Not(Equal(x,y))),x,y) Where(Or(GreaterOrEqual(x,y),LessOrEqual(x,0.0)),x,y) Identity(x)",
    "Cast[to=float](Cast[to=int32](Mul(x,3.0))) Cast[to=float](Cast[to=bool](x))",
    "Cast[to=float](Cast[to=float16](x)) Where(IsInf(x),0.0,x)",
)


def test_every_elementwise_operator_has_text(interpreter: Interpreter) -> None:
    full = tensor(F32, 3, 8)
    outputs = {f"y{i}": text for i, text in enumerate(" ".join(ELEMENTWISE).split())}
    kernel = kernel_of_terms("elementwise", {"x": full, "y": full}, outputs)
    inputs = random_inputs(kernel, 4)
    for computed, wanted, text in zip(
        interpreter.run(kernel, cut(m=4), inputs), reference(kernel, inputs), outputs.values(), strict=True
    ):
        np.testing.assert_allclose(computed, wanted, rtol=3e-6, atol=1e-6, err_msg=repr(text))


def test_a_short_erf_serves_where_no_float_is_wide(interpreter: Interpreter) -> None:
    def gelu(given: DataType, result: DataType) -> Kernel:
        body = "Gelu(x)" if given == result else f"Cast[to={result.name.lower()}](Gelu(x))"
        return kernel_of_terms("gelu", {"x": tensor(given, 4, 8)}, {"y": body})

    def text(*dtypes: DataType) -> str:
        return generate(gelu(*dtypes), cut(m=2)).text

    bf16 = DataType.BFLOAT16
    assert all("short_erf(" in text(*dtypes) and "tl.erf(" not in text(*dtypes) for dtypes in ((F16, F16), (bf16, F16)))
    assert all(
        "short_erf(" not in text(*dtypes) and "tl.erf(" in text(*dtypes) for dtypes in ((F32, F32), (F16, F32), (F32, F16))
    )
    check(interpreter, gelu(F16, F16), cut(m=2), TOLERANCE[F16])


def applied_in_triton(interpreter: Interpreter, call: str, x: np.ndarray) -> np.ndarray:
    """What a call computes of numbers ``x``."""
    kernel = (
        f"\n\n@triton.jit\ndef main(a, b):\n    i = tl.arange(0, {len(x)})\n    x = tl.load(a + i)\n    tl.store(b + i, {call})\n"
    )
    functions = "\n\n".join(functions_called([kernel]))
    source = f"import triton\nimport triton.language as tl\n\n\n{functions}{kernel}"
    return interpreter.execute(source, [("main", (1, 1, 1), ["x", "y"])], {"x": x, "y": np.full_like(x, np.nan)})["y"]


def of_all_sizes(count: int, least: float, most: float) -> np.ndarray:
    """Numbers of both signs between two powers of ten, zeros and infinities: twice ``count``."""
    wide = np.concatenate([np.logspace(least, most, count - 2), [np.inf, 0.0]])
    return np.concatenate([wide, -wide]).astype(np.float32)


def test_the_short_erf_is_off_by_less_than_what_halves_can_tell(triton_interpreter: Interpreter) -> None:
    """Everywhere, near 0 and at the ends too; half precision tells 5e-4 from 1."""
    x = np.concatenate([np.linspace(-6, 6, 1 << 15), of_all_sizes(1 << 14, -30, 30)]).astype(np.float32)
    wanted = np.array([math.erf(value) for value in x.astype(np.float64)])
    assert np.max(np.abs(applied_in_triton(triton_interpreter, "short_erf(x)", x) - wanted)) < 7e-7
    assert np.isnan(applied_in_triton(triton_interpreter, "short_erf(x)", x * np.nan)).all()


@pytest.mark.parametrize("text", ["Relu(x)", "Max(x, 0.0)", "Min(0.0, x)", "Clip[max=1.0,min=-1.0](x)", "Sign(x)", "Elu(x)"])
def test_no_number_stays_none(text: str, interpreter: Interpreter) -> None:
    kernel = kernel_of_terms("marked", {"x": tensor(F32, 2, 4)}, {"y": text})
    x = np.array([[np.nan, -2.0, 0.0, 2.0], [0.5, np.nan, np.inf, -np.inf]], np.float32)
    (made,), (wanted,) = interpreter.run(kernel, cut(m=2), {"x": x}), reference(kernel, {"x": x})
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert np.isnan(made).sum() == 2


UNITS = {"exp": 3.0, "tanh": 3.0, "sigmoid": 5.0, "softplus": 4.0}
"""Units in the last place by which a function is off at most, where a power of two is exact and operations round once."""


@pytest.mark.parametrize("name", UNITS)
def test_no_digits_cancel_in_functions_of_single_precision(name: str, triton_interpreter: Interpreter) -> None:
    """Small numbers, of which a formula that subtracts from one leaves nothing, and those far from it."""
    x = np.concatenate([of_all_sizes(1 << 14, -30, 1.9), np.linspace(-80, 80, 1 << 15)]).astype(np.float32)
    lines: list[str] = []
    write_thread(TritonText(), make(name.capitalize(), [var("x")]), {"x": Expr("x")}, "y", lambda _, e: lines.append(e.text))
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name].numpy(x.astype(np.float64))
        made = applied_in_triton(triton_interpreter, lines[-1], x)
        single = wanted.astype(np.float32)
        off = np.abs(made - wanted) / np.spacing(np.abs(single))
    finite = np.isfinite(single) & (np.abs(single) > np.finfo(np.float32).tiny)
    assert off[finite].max() <= UNITS[name], x[finite][off[finite].argmax()]
    np.testing.assert_allclose(made[~finite], single[~finite], atol=float(np.finfo(np.float32).tiny))
    assert np.isnan(applied_in_triton(triton_interpreter, lines[-1], x * np.nan)).all()
