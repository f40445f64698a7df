"""The number systems: what ``Range`` claims is true and is enough, ``Real`` is accurate, ``FiniteField`` exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.domains import FiniteField, Range, RangeDomain, Real, Symbolic
from mugraph.domains.base import Unsupported
from mugraph.domains.field import SAFE_PRIMES, ZeroDivision
from mugraph.ops import REGISTRY
from mugraph.ops.interp import evaluate
from mugraph.ops.masks import mask_text
from mugraph.terms.shape import DataType
from mugraph.terms.text import parse_term
from tests.support.ranges import claims
from tests.support.work import calls

RANGES = RangeDomain()

INF = math.inf


@pytest.mark.parametrize(
    ("range_", "array", "broken"),
    [
        (Range.finite_input(0, 1), [2.0], ["hi"]),
        (Range.finite_input(0, 1), [np.nan], ["nan", "row_finite"]),
        (Range.finite_input(1, 2), [0.0, -INF, INF], ["lo", "neg_inf", "pos_inf", "zero"]),
        (Range.of(np.asarray([0.0])), [1.0], ["hi", "row_zero"]),
        (Range.of(np.asarray([1.0])), [0.0], ["lo", "zero", "row_nonzero"]),
        (Range.top(), [np.nan, INF, -INF, 0.0], []),
    ],
)
def test_broken_claims_are_noticed(range_: Range, array: list[float], broken: list[str]) -> None:
    assert claims(range_, array) == broken


NUMBERS = (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.5, 10.0, -10.0, 1e-3, 70.0, -70.0, 800.0, -800.0)
VALUES = st.sampled_from([*NUMBERS, INF, -INF, math.nan])
FINITE = st.sampled_from(NUMBERS)
POSITIVE = st.sampled_from([1e-3, 0.5, 1.0, 2.0, 10.0])
HUGE = st.sampled_from([800.0, 900.0])
"""Whose exponentials no float holds."""


def _tensor(shape: tuple[int, ...], values: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    size = math.prod(shape)
    return st.lists(values, min_size=size, max_size=size).map(lambda v: np.asarray(v).reshape(shape))


def _tensors(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    masked = _tensor(shape, st.sampled_from([0.0, -INF]))
    return st.one_of(_tensor(shape, VALUES), _tensor(shape, FINITE), _tensor(shape, POSITIVE), _tensor(shape, HUGE), masked)


@st.composite
def _described(draw: st.DrawFn, shape: tuple[int, ...], boolean: bool = False) -> tuple[np.ndarray, Range]:
    """A tensor and a range that holds of it: its own, or one weakened by another tensor's."""
    tensors = _tensor(shape, st.booleans()).map(lambda v: v.astype(bool)) if boolean else _tensors(shape)
    array = draw(tensors)
    range_ = Range.of(array)
    if draw(st.booleans()):
        range_ = range_.join(Range.of(draw(tensors)))
    if not boolean and draw(st.booleans()):
        range_ = range_.join(Range.finite_input(draw(st.sampled_from([-INF, -2.0, 1e-3])), draw(st.sampled_from([1.0, INF]))))
    return array, range_


X, Y, ROW, CHANNELS = (2, 3), (2, 3), (3,), (2,)
PROGRAMS: dict[str, Mapping[str, tuple[int, ...]]] = {
    **{f"{op}(x, y)": {"x": X, "y": Y} for op in ("Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater", "Equal", "PRelu")},
    **{f"{op}(x, y)": {"x": X, "y": ROW} for op in ("LessOrEqual", "GreaterOrEqual", "Max", "Min", "Sum")},
    **{f"{op}(x)": {"x": X} for op in ("Neg", "Reciprocal", "Sqrt", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Abs", "Sign")},
    **{f"{op}(x)": {"x": X} for op in ("Floor", "Ceil", "Round", "Sin", "Cos", "Softplus", "Relu", "IsInf", "IsNaN", "Identity")},
    **{f"IsInf[{sign}=false](x)": {"x": X} for sign in ("negative", "positive")},
    **{f"{op}(x)": {"x": X} for op in ("LeakyRelu", "Elu", "Selu", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Softsign")},
    **{f"Pow(x, {n})": {"x": X} for n in (-3, -2, -1, -0.5, 0.5, 0.75, 2, 3, 4, -0.25)},
    "Gelu[approximate='tanh'](x)": {"x": X},
    "Add(x, y)": {"x": (2, 1), "y": ROW},
    "Mul(x, Add(y, 0.5))": {"x": X, "y": ()},
    "Clip[max=2.0,min=-0.5](x)": {"x": X},
    "Clip[max=2.0](x)": {"x": X},
    **{f"{op}(b, c)": {"b": X, "c": ROW} for op in ("And", "Or", "Xor")},
    "Not(b)": {"b": X},
    "Where(b, x, y)": {"b": X, "x": X, "y": X},
    "Where(Not(b), x, -inf)": {"b": (2, 1), "x": X},
    "Where(b, -inf, x)": {"b": X, "x": ROW},
    **{f"Cast[to={to}](x)": {"x": X} for to in ("bool", "float", "float16", "int32", "int64")},
    "Cast[to=float](b)": {"b": X},
    "MatMul(x, y)": {"x": X, "y": (3, 2)},
    "Gemm[alpha=-2.0,beta=0.5,transB=true](x, y, z)": {"x": X, "y": Y, "z": CHANNELS},
    "Transpose[perm=(1,0)](x)": {"x": X},
    "Concat[axis=-1](x, y)": {"x": X, "y": (2, 1)},
    "Split[axis=-1,sizes=(1,2)].1(x)": {"x": X},
    "Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)](x)": {"x": X},
    "Reshape[drop=2,shape=(3,2)](x)": {"x": X},
    "Squeeze[axes=(-1,)](x)": {"x": (3, 1)},
    "Unsqueeze[axes=(-1,)](x)": {"x": X},
    "Expand[shape=(2,3)](x)": {"x": (2, 1)},
    "Tile[repeats=(2,)](x)": {"x": X},
    "Windows[axis=-2,dilations=(1,),kernel=(2,),strides=(1,)](x)": {"x": (3, 2)},
    "DepthToSpace[blocksize=2,mode='CRD'](x)": {"x": (1, 4, 1, 2)},
    "SpaceToDepth[blocksize=2](x)": {"x": (1, 1, 2, 4)},
    "Pad[begins=(1,),ends=(0,)](x)": {"x": X},
    "Pad[begins=(1,),ends=(1,),mode='reflect'](x)": {"x": X},
    "Gather[axis=-1](x, Cast[to=int64](i))": {"x": X, "i": (2,)},
    "GatherND[axis=-1](x, Unsqueeze[axes=(-1,)](Cast[to=int64](i)))": {"x": ROW, "i": (2,)},
    "GatherElements[axis=-1](x, Cast[to=int64](Unsqueeze[axes=(-2,)](i)))": {"x": X, "i": (2,)},
    "ScatterElements[axis=-1](x, Cast[to=int64](Unsqueeze[axes=(-2,)](i)), y)": {"x": X, "i": (2,), "y": (1, 2)},
    "ScatterND[axis=-1](x, Unsqueeze[axes=(-1,)](Cast[to=int64](i)), y)": {"x": ROW, "i": (2,), "y": (2,)},
    "TensorScatter[axis=-1,batch=-2,mode='linear'](x, y, Cast[to=int64](i))": {"x": X, "i": (2,), "y": (2, 1)},
    "TensorScatter[axis=-1,batch=-2,mode='circular'](x, y, Cast[to=int64](i))": {"x": X, "i": (2,), "y": (2, 2)},
    "Trilu[upper=true](x)": {"x": X},
    "CumSum[axis=-1,exclusive=true](x)": {"x": X},
    "Range[dtype=int64,limit=5,start=2]()": {},
    "ConstantOfShape[dtype=float,shape=(2,3),value=-1.5]()": {},
    "Shape[end=0,start=-2](x)": {"x": X},
    **{
        f"{op}[axes=({axes}),keepdims={keep}](x)": {"x": X}
        for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2")
        for axes, keep in (("-1,", "true"), ("-2,", "false"), ("-2,-1", "false"))
    },
    **{f"{op}[axis={axis}](x)": {"x": X} for op in ("Softmax", "LogSoftmax") for axis in (-1, -2)},
    "LayerNormalization(x, y, z)": {"x": X, "y": ROW, "z": ROW},
    "RMSNormalization(x, y)": {"x": X, "y": ROW},
    "BatchNormalization[spatial=1](x, y, z, v, w)": {"x": (1, 2, 3)} | {name: CHANNELS for name in "yzvw"},
    "InstanceNormalization[spatial=1](x, y, z)": {"x": (1, 2, 3), "y": CHANNELS, "z": CHANNELS},
    "LRN[size=3,spatial=1](x)": {"x": (1, 3, 2)},
    "Conv[dilations=(1,),pads=(1,0),strides=(1,)](x, y, z)": {"x": (1, 2, 3), "y": (2, 2, 2), "z": CHANNELS},
    "ConvTranspose[dilations=(1,),output_padding=(1,),pads=(1,0),strides=(2,)](x, y, z)": {
        "x": (1, 2, 2),
        "y": (2, 2, 3),
        "z": CHANNELS,
    },
    "MaxPool[ceil=true,dilations=(1,),kernel=(2,),pads=(1,0),strides=(2,)](x)": {"x": (1, 1, 4)},
    "AveragePool[ceil=true,dilations=(1,),kernel=(2,),pads=(1,0),strides=(2,)](x)": {"x": (1, 1, 4)},
    "AveragePool[dilations=(1,),kernel=(2,),pads=(0,0),strides=(1,)](x)": {"x": (1, 1, 4)},
    "GlobalAveragePool[spatial=1](x)": {"x": (1, 2, 3)},
    "Resize[axes=(-1,),mode='linear',shape=(5,)](x)": {"x": X},
    "Resize[axes=(-2,-1),coordinates='asymmetric',mode='nearest',shape=(4,3)](x)": {"x": X},
    "GlobalMaxPool[spatial=1](x)": {"x": (1, 2, 3)},
    "Ones[shape=(2,3)]()": {},
    "Eye[size=2]()": {},
    "IdentityKernel[channels=2,kernel=(1,3)]()": {},
    "AveragingKernel[channels=2,kernel=(2,2)]()": {},
    "GroupBlocks[columns=1,group=4,merged=2,outputs=4]()": {},
    "QuantizeLinear[to=uint8](x, y)": {"x": X, "y": ()},
    "QuantizeLinear[to=int8](x, 0.5)": {"x": X},
    "DequantizeLinear[axis=-1](Cast[to=int8](Clip[max=9.0,min=-9.0](x)), y)": {"x": X, "y": ROW},
    "DynamicQuantizeLinear[axis=-2](x)": {"x": X},
    "DynamicQuantizeLinear[axis=-2].1(x)": {"x": X},
    "DynamicQuantizeLinear[axis=-2].2(x)": {"x": X},
    "MatMulInteger(DynamicQuantizeLinear[axis=-2](x), DynamicQuantizeLinear[axis=-2](y))": {"x": X, "y": (3, 2)},
    "ConvInteger[dilations=(1,),pads=(1,0),strides=(1,)](DynamicQuantizeLinear[axis=-3](x), DynamicQuantizeLinear[axis=-3](y))": {
        "x": (1, 2, 3),
        "y": (2, 2, 2),
    },
    "CausalMask[columns=3,rows=2]()": {},
    "BandMask[after=0,before=1,columns=3,rows=3]()": {},
    "BandMask[after=-1,before=1,columns=3,rows=3]()": {},
    "PrefixMask[columns=3,prefix=2,rows=3]()": {},
    "PrefixMask[columns=3,prefix=3,rows=2]()": {},
    "DilatedMask[columns=3,rows=3,step=2]()": {},
    "DilatedMask[columns=2,rows=3,step=3]()": {},
    "Mod(Cast[to=int64](Clip[max=9.0,min=-9.0](x)), Cast[to=int64](Clip[max=4.0,min=1.0](y)))": {"x": X, "y": ROW},
    **{
        f"StoredMask[columns=3,entries='{mask_text(np.array(rows, bool))}',rows=3]()": {}
        for rows in ([[1, 0, 1], [0, 1, 0], [1, 1, 1]], [[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 0], [0, 0]], [[1, 1], [1, 1]])
    },
    "Positions[length=3]()": {},
}


def test_every_operator_has_a_soundness_test() -> None:
    """Of an operator that is defined by a decomposition the range is that of the decomposition."""
    assert {parse_term(text).op for text in PROGRAMS} == {n for n, record in REGISTRY.items() if not record.composite}


@pytest.mark.parametrize("text", PROGRAMS)
def test_ranges_hold(text: str) -> None:
    """Whatever tensors lie in the input ranges, the float64 result lies in the claimed range."""
    term, shapes = parse_term(text), PROGRAMS[text]

    @given(st.fixed_dictionaries({name: _described(shape, name in "bc") for name, shape in shapes.items()}))
    @settings(max_examples=60, deadline=None, database=None)
    def check(inputs: dict[str, tuple[np.ndarray, Range]]) -> None:
        arrays = {name: array for name, (array, _) in inputs.items()}
        if "i" in arrays:
            arrays["i"] = np.asarray([2.0, 0.0])
        with np.errstate(all="ignore"):
            value = evaluate([term], Real(), arrays)[term]
        range_ = evaluate([term], RANGES, {name: range_ for name, (_, range_) in inputs.items()})[term]
        assert not claims(range_, value), (range_, value)

    check()


@given(_tensors((2, 3)))
@settings(max_examples=200, deadline=None, database=None)
def test_range_of_a_constant(array: np.ndarray) -> None:
    range_ = Range.of(array)
    assert not claims(range_, array)
    assert range_.nan == np.isnan(array).any()
    assert range_.zero == (array == 0).any()
    assert range_.row_finite == np.isfinite(array).any(axis=-1).all()


def _shown(text: str, **inputs: Range) -> Range:
    term = parse_term(text)
    range_: Range = evaluate([term], RANGES, inputs)[term]
    return range_


ANY = Range.finite_input()
CONV = "dilations=(1,1),pads=(1,1,1,1),strides=(1,1)"


@pytest.mark.parametrize(
    "text",
    [
        "Mul(x, Reciprocal(Sqrt(Add(ReduceMean[axes=(-1,)](Pow(x, 2)), 0.00001))))",
        "Div(x, Sqrt(Add(ReduceMean[axes=(-1,)](Pow(x, two)), 0.00001)))",
        "RMSNormalization(x, w)",
        "LayerNormalization(x, w, w)",
        "InstanceNormalization[spatial=2](x, w, w)",
        "BatchNormalization[spatial=2](x, w, w, w, variance)",
        "Gelu(x)",
        "Gelu[approximate='tanh'](x)",
        "Mul(Mul(0.5, x), Add(1, Tanh(Mul(0.8, Add(x, Mul(0.044715, Pow(x, three)))))))",
        "Mul(x, Sigmoid(x))",
        "Softmax(MatMul(x, Transpose[perm=(1,0)](w)))",
        "Softmax[axis=-3](x)",
        "LogSoftmax(x)",
        "Where(b, x, w)",
        "Add(Cos(x), Sin(x))",
        f"Conv[{CONV}](x, w, w)",
        "MaxPool[dilations=(1,1),kernel=(3,3),pads=(1,1,1,1),strides=(2,2)](x)",
        "AveragePool[dilations=(1,1),kernel=(3,3),pads=(1,1,1,1),strides=(2,2)](x)",
        "GlobalAveragePool[spatial=2](x)",
        "LRN[size=5,spatial=2](x)",
        "Relu(Gemm(x, w, w))",
        "Elu(x)",
        "HardSwish(x)",
        "Mish(x)",
        "Softsign(x)",
        "Log(Add(Abs(x), 1))",
        "Div(x, ReduceL2[axes=(-1,)](Add(Abs(x), 1)))",
        "Cast[to=float](Cast[to=int64](x))",
    ],
)
def test_shown_finite(text: str) -> None:
    """From finite inputs and weights."""
    two, three = Range.of(np.asarray(2, np.float32)), Range.of(np.full((1,), 3.0))
    variance = Range.of(np.asarray([0.5, 2.0]))
    assert _shown(text, x=ANY, w=ANY, b=Range.finite_input(0, 1), two=two, three=three, variance=variance).finite


@pytest.mark.parametrize(
    "text",
    [
        "Reciprocal(x)",
        "Div(x, ReduceMean[axes=(-1,)](Pow(x, 2)))",
        "Log(x)",
        "Sqrt(x)",
        "Exp(x)",
        "Div(Exp(x), ReduceSum[axes=(-1,)](Exp(x)))",
        "BatchNormalization[spatial=2](x, x, x, x, x)",
        "Pow(x, 0.75)",
        "Cast[to=float16](low)",
        "Softmax(Cast[to=float16](low))",
        "Reciprocal(Add(Cast[to=float16](tiny), Pow(x, 2)))",
        "Softmax(Where(b, x, -inf))",
        "Where(b, x, inf)",
    ],
)
def test_not_shown_finite(text: str) -> None:
    low, tiny = Range.of(np.asarray(np.finfo(np.float32).min)), Range.of(np.asarray(1e-12))
    assert not _shown(text, x=ANY, low=low, tiny=tiny, b=Range.finite_input(0, 1)).finite


def test_rounding_to_integers_may_give_zero() -> None:
    half = Range.of(np.asarray(0.5))
    assert half.nonzero and _shown("Cast[to=int64](x)", x=half).zero and _shown("Cast[to=bool](x)", x=half).nonzero
    assert _shown("Reciprocal(Cast[to=float](Cast[to=int64](x)))", x=Range.finite_input(1, 9)).finite


CAUSAL = np.triu(np.full((4, 4), -INF), k=1)
ONE_OPEN = np.where(np.eye(4, dtype=bool), 0.0, -INF)
CLOSED = np.where(np.arange(4)[:, None] == 2, -INF, 0.0) + np.zeros((4, 4))


def test_numbers_without_a_bound_may_overflow() -> None:
    """They are finite as real numbers, which says nothing of the element type that they have."""
    for sign, low, high in (("", -2.0, 2.0), ("[negative=false]", -INF, 2.0), ("[positive=false]", -2.0, INF)):
        for x, found in ((Range.finite_input(low, high), 0.0), (Range.finite_input(), 1.0), (Range.of(CAUSAL), 1.0)):
            if x.neg_inf and sign == "[negative=false]":
                found = 0.0
            assert _shown(f"IsInf{sign}(x)", x=x).hi == found


def test_softmax_of_masked_scores() -> None:
    """A mask that leaves one entry of each row open gives no NaN; one that may close a row is not shown."""
    for mask in (CAUSAL, ONE_OPEN):
        assert _shown("Softmax(Add(x, mask))", x=ANY, mask=Range.of(mask)).finite
        assert _shown("Softmax(Add(Mul(x, 0.125), mask))", x=ANY, mask=Range.of(mask)).finite
        assert _shown("Where(IsNaN(Softmax(Add(x, mask))), inf, 0)", x=ANY, mask=Range.of(mask)).finite
    assert _shown("Softmax(Add(x, mask))", x=ANY, mask=Range.of(CLOSED)).nan
    maybe = Range(-1, 0, nan=False, neg_inf=True, pos_inf=False)
    assert _shown("Softmax(Add(x, mask))", x=ANY, mask=maybe).nan
    assert _shown("Softmax(Add(x, Transpose[perm=(1,0)](mask)))", x=ANY, mask=Range.of(CAUSAL)).nan
    assert _shown("Softmax(Add(x, Add(mask, mask)))", x=ANY, mask=Range.of(CAUSAL)).nan
    assert _shown("Softmax[axis=-2](Add(x, mask))", x=ANY, mask=Range.of(CAUSAL)).nan


def test_softmax_of_selected_scores() -> None:
    opened, closed = Range.of(CAUSAL == 0), Range.of(CAUSAL < 0)
    assert _shown("Softmax(Where(opened, x, -inf))", x=ANY, opened=opened).finite
    assert _shown("Softmax(Where(closed, -inf, x))", x=ANY, closed=closed).finite
    assert _shown("Softmax(Where(Not(closed), x, -inf))", x=ANY, closed=closed).finite
    assert _shown("Softmax(Where(closed, x, -inf))", x=ANY, closed=closed).nan
    assert _shown("Softmax(Where(opened, -inf, x))", x=ANY, opened=opened).nan
    assert _shown("Softmax(Where(opened, x, -inf))", x=Range(nan=False, pos_inf=False), opened=opened).nan


def test_facts_of_rows_do_not_survive_mixing() -> None:
    """Each row of both branches has a finite entry, the mixture of them has none."""
    first, second = np.asarray([[0.0, -INF]]), np.asarray([[-INF, 0.0]])
    choice = np.asarray([[False, True]])
    mixed = RANGES.where(Range.finite_input(0, 1), Range.of(first), Range.of(second))
    assert not np.isfinite(np.where(choice, first, second)).any()
    assert not mixed.row_finite


# Real


def test_erf_is_accurate_to_double_precision() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [0.0, -0.0, INF, -INF, 1e-300]])
    expected = np.asarray([math.erf(v) for v in x])
    np.testing.assert_allclose(Real().apply("erf", x), expected, rtol=4e-16, atol=3e-16)
    assert np.isnan(Real().apply("erf", np.asarray([np.nan]))).all()
    assert Real(np.float16).apply("erf", np.asarray([0.5], np.float16)).dtype == np.float16


def test_constants_take_the_type_of_integers() -> None:
    domain = Real()
    for method in ("add", "mul", "maximum"):
        assert getattr(domain, method)(np.asarray([1, 2]), domain.const(2)).dtype == np.int64
    assert domain.add(np.ones(2, np.float32), Real(np.float32).const(2)).dtype == np.float32


def test_real_evaluates_whole_tensors_at_once() -> None:
    """A convolution and two products with a GELU between take a few NumPy calls, however many entries there are."""
    generator = np.random.default_rng(0)
    kernel = generator.normal(size=(8, 4, 3, 3))

    def convolve(size: int) -> int:
        inputs = {"x": generator.normal(size=(1, 4, size, size)), "w": kernel, "b": np.zeros(8)}
        return calls(lambda: evaluate([parse_term(f"Conv[{CONV}](x, w, b)")], Real(), inputs))

    def multiply(size: int) -> int:
        inputs = {name: generator.normal(size=(size, size)) for name in "xwv"}
        return calls(lambda: evaluate([parse_term("MatMul(Gelu(MatMul(x, w)), v)")], Real(), inputs))

    for work in (convolve, multiply):
        work(16)
        assert work(64) <= 1.2 * work(16) < 3000


# FiniteField


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def test_nothing_at_all_has_a_maximum_a_minimum_and_a_softmax() -> None:
    empty = np.zeros((2, 0))
    for op, of_nothing in (("ReduceMax", -np.inf), ("ReduceMin", np.inf)):
        term = parse_term(f"{op}[axes=(-1,),keepdims=false](x)")
        assert evaluate([term], Real(), {"x": empty})[term].tolist() == [of_nothing] * 2
    for text, shape in (("Softmax[axis=-1](x)", (2, 0)), ("LogSoftmax[axis=-1](x)", (2, 0))):
        assert evaluate([parse_term(text)], Real(), {"x": empty})[parse_term(text)].shape == shape
    whole = np.zeros((2, 0), np.int32)
    assert Real().max(whole, (1,), False).tolist() == [np.iinfo(np.int32).min] * 2
    assert Real().min(whole.astype(bool), (1,), False).tolist() == [True] * 2


def test_primes() -> None:
    for p in SAFE_PRIMES:
        assert p < 2**22 and p % 4 == 3 and _is_prime(p) and _is_prime((p - 1) // 2)


def test_long_contractions_are_exact() -> None:
    """The sum of 3000 products exceeds float64's integers; 512 at a time do not."""
    field, generator = FiniteField(0), np.random.default_rng(0)
    a, b = field.random(generator, (2, 3000)), field.random(generator, (3000, 2))
    product = field.matmul(a, b)
    for part, modulus in (("p", field.p), ("q", field.q)):
        left, right = (getattr(x, part).astype(np.int64).astype(object) for x in (a, b))
        assert np.array_equal(getattr(product, part), (left @ right % modulus).astype(np.float64))
    assert not np.array_equal(np.matmul(a.p, b.p) % field.p, product.p)


def test_field_laws() -> None:
    field, generator = FiniteField(3), np.random.default_rng(1)
    x, y = field.random(generator, (50,)), field.random(generator, (50,))
    assert np.array_equal(field.exp(field.add(x, y)).p, field.mul(field.exp(x), field.exp(y)).p)
    assert np.array_equal(field.sqrt(field.mul(x, y)).p, field.mul(field.sqrt(x), field.sqrt(y)).p)
    assert np.array_equal(field.mul(field.div(x, y), y).p, x.p)
    assert field.exp(x).q is None
    assert np.array_equal(field.mean(x, (-1,), False).p * 50 % field.p, field.sum(x, (-1,), False).p)
    with pytest.raises(ZeroDivision):
        field.div(x, field.const(0))


def test_field_extrema_agree() -> None:
    field = FiniteField(3, negative=0.7)
    x = field.random(np.random.default_rng(1), (4, 5))
    columns = [x[:, i] for i in range(5)]
    for fold, reduce in ((field.maximum, field.max), (field.minimum, field.min)):
        result = columns[0]
        for column in columns[1:]:
            result = fold(result, column)
        assert np.array_equal(reduce(x, (-1,), False).p, result.p)
        assert reduce(x, (-2,), True).shape == (1, 5)


@pytest.mark.parametrize("domain", [FiniteField(5), Real()], ids=["field", "real"])
def test_uniform_numbers(domain: Any) -> None:
    for value in (2, 3, -1, 0.5):
        assert domain.uniform(domain.move(lambda v: np.full((2, 2), v), domain.const(value))) == value
    assert domain.uniform(domain.move(lambda a, b: np.stack([a, b]), domain.const(2), domain.const(3))) is None


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_quotients_of_integers_are_cut_off(dtype: Any) -> None:
    """Also of the least number, which has no opposite."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    pairs = [
        (7, 2),
        (-7, 2),
        (7, -2),
        (-7, -2),
        (-6, 3),
        (least, 3),
        (least, -3),
        (7, least),
        (-7, least),
        (least, least),
        (most, least),
    ]
    a, b = (np.asarray(column, dtype) for column in zip(*pairs, strict=True))
    wanted = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    assert Real().div(a, b).tolist() == wanted
    assert Real().div(np.asarray([200, 7], np.uint8), np.asarray([3, 0], np.uint8)).tolist() == [66, 0]


def test_casts_of_booleans() -> None:
    flags = np.asarray([True, False])
    assert FiniteField(0).cast(flags, DataType.FLOAT).p.tolist() == [1, 0]
    assert Real().cast(flags, DataType.FLOAT).tolist() == [1.0, 0.0]


def test_numbers_as_truth_values() -> None:
    """What is not zero is true: a condition that were a number would be taken for true by NumPy."""
    field, symbolic = FiniteField(0), Symbolic()
    numbers = field.move(lambda *entries: np.stack(entries), field.const(0), field.const(3), field.const(-1))
    x, y, z = field.const(1), field.const(2), parse_term("Where(Cast[to=bool](n), x, y)")
    chosen = evaluate([z], field, {"n": numbers, "x": x, "y": y})[z]
    assert chosen.p.tolist() == [2, 1, 1]
    for text, wanted in {"Or": [True, True, True], "And": [False, True, True], "Xor": [True, False, False]}.items():
        term = parse_term(f"{text}(Cast[to=bool](n), b)")
        assert evaluate([term], field, {"n": numbers, "b": np.asarray(True)})[term].tolist() == wanted
    with pytest.raises(Unsupported, match="whether a polynomial is zero"):
        evaluate([z], symbolic, {name: symbolic.input(name, (2,)) for name in "nxy"})


@pytest.mark.parametrize(
    ("to", "largest"),
    [(DataType.FLOAT, 3.4028234663852886e38), (DataType.BFLOAT16, 3.3895313892515355e38), (DataType.FLOAT16, 65504)],
)
def test_casts_to_narrower_floats_overflow(to: DataType, largest: float) -> None:
    mask = Range.of(np.asarray([[0.0, -1e308], [0.0, 0.0]]))
    cast = RANGES.cast(mask, to)
    assert cast.neg_inf and not cast.pos_inf and not cast.row_finite and cast.lo == -largest
    beyond = RANGES.cast(Range.of(np.asarray([1e307, 1e308])), to)
    assert beyond.pos_inf and not beyond.neg_inf and not beyond.row_finite
    assert RANGES.cast(Range.of(np.asarray([largest, -largest])), to).finite
    assert RANGES.cast(Range.finite_input(), to).finite
    assert RANGES.cast(Range.of(np.asarray([1e-300])), to).zero
    assert RANGES.cast(mask, DataType.DOUBLE) == mask
