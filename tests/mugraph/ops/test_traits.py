"""Every trait of every record against typing and evaluation: what is asked of a record instead of its name must be true of it.

A check takes a record and raises AssertionError where a trait of it is wrong. It goes over every record of the registry, and over
records with a wrong trait, which it must notice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.domains import FieldArray, FiniteField, Real, Unsupported
from mugraph.domains.field import ZeroDivision
from mugraph.domains.functions import FUNCTIONS
from mugraph.ops import (
    REGISTRY,
    DegreeBound,
    Entrywise,
    ImageRole,
    Movement,
    Operator,
    ProductKind,
    Reduction,
    RowRole,
    Traits,
    get_operator,
    traits_of,
)
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, symbol
from mugraph.terms.term import Term, walk
from tests.support.samples import applications, distinct_numbers, random_numbers

RECORDS = [record for record in REGISTRY.values() if record.samples]
DTYPES = (DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE, DataType.INT64, DataType.INT32, DataType.BOOL)


def run(record: Operator, term: Term, operands: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(result) for result in record.run(Real(), term.attrs, operands)]


# Where entries come from


def check_movement(record: Operator) -> None:
    movement = record.traits.movement
    for term, types in applications(record):
        if movement is None or not types:
            continue
        operands = distinct_numbers(types)
        entries = np.concatenate([a.ravel() for a in operands if a.dtype.kind == "f"])
        for result in run(record, term, operands):
            moved = result.ravel()
            if movement is Movement.FILLING:
                assert set(moved) - {0.0} <= set(entries) and 0.0 in moved
                continue
            assert set(moved) <= set(entries)
            if movement is Movement.VIEW:
                assert np.array_equal(moved, entries)
            elif movement in (Movement.PERMUTATION, Movement.CONCATENATION):
                assert np.array_equal(np.sort(moved), np.sort(entries)) and not np.array_equal(moved, entries)
                assert (movement is Movement.CONCATENATION) == (len(operands) > 1)
            elif movement is Movement.REPETITION:
                assert set(moved) == set(entries) and len(moved) > len(entries)
            elif movement is Movement.PART:
                assert len(set(moved)) == len(moved) < len(entries)
            elif movement is Movement.WINDOWS:
                assert len(set(moved)) < len(moved) and result.ndim == operands[0].ndim + 1


def check_addresses(record: Operator) -> None:
    """Which entry of an operand each entry of a result is must not depend on the entries themselves."""
    for term, types in applications(record):
        if not record.traits.addresses:
            continue
        places, numbers = distinct_numbers(types), random_numbers(types, 1)
        pairs = zip(places, numbers, strict=True)
        where = {place: number for a, b in pairs for place, number in zip(a.flat, b.flat, strict=True)}
        for expected, result in zip(run(record, term, places), run(record, term, numbers), strict=True):
            assert np.array_equal(np.vectorize(where.__getitem__)(expected), result)


def check_entrywise(record: Operator) -> None:
    """An entry of the result follows its operands' entries wherever all of them go."""
    for term, types in applications(record):
        if record.traits.entrywise is None:
            continue
        operands = [np.array(a) for a in np.broadcast_arrays(*random_numbers(types))]
        order = np.random.default_rng(1).permutation(operands[0].size)
        moved = [a.ravel()[order].reshape(a.shape) for a in operands]
        (result,), (expected,) = run(record, term, moved), run(record, term, operands)
        assert result.shape == operands[0].shape
        assert np.array_equal(result.ravel(), expected.ravel()[order], equal_nan=True)
        (type_,) = record.types(term.attrs, types)
        kinds = {Entrywise.COMPARISON, Entrywise.LOGIC}
        assert record.traits.entrywise is Entrywise.CONVERSION or (type_.dtype == DataType.BOOL) == (
            record.traits.entrywise in kinds
        )
        assert (record.traits.entrywise is Entrywise.LOGIC) == all(t.dtype == DataType.BOOL for t in types)
        if record.traits.entrywise is Entrywise.EXTREMUM:
            assert all(np.isin(result, moved).ravel())
        if record.traits.entrywise is Entrywise.SELECTION:
            assert types[0].dtype == DataType.BOOL and all(np.isin(result, moved[1:]).ravel())


# Types


def admitted(record: Operator) -> Iterator[tuple[list[TensorType], tuple[TensorType, ...]]]:
    """Operand types that a record takes, with its results: the samples', of one element type, and with one operand of another."""
    for term, types in applications(record):
        choices = [types, *([TensorType(dtype, t.shape) for t in types] for dtype in DTYPES)]
        choices += [
            [TensorType(dtype, t.shape) if i == position else t for i, t in enumerate(types)]
            for dtype in DTYPES
            for position in range(len(types))
        ]
        for choice in choices:
            try:
                yield choice, record.types(term.attrs, choice)
            except ShapeError:
                continue


def check_one_dtype(record: Operator) -> None:
    """Of composites only what is claimed: their samples need not show that an optional operand is of another type."""
    same = [len({t.dtype for t in (*operands, *results)}) == 1 for operands, results in admitted(record) if operands]
    if record.traits.one_dtype:
        assert same and all(same)
    elif same and not record.composite:
        assert not all(same)


def symbolic(types: list[TensorType]) -> list[TensorType]:
    def dim(size: Dim) -> Dim:
        return symbol(f"s{size}") if isinstance(size, int) and size > 1 else size

    return [TensorType(t.dtype, tuple(map(dim, t.shape))) for t in types]


def check_keeps_shape(record: Operator) -> None:
    kept = []
    for term, types in applications(record):
        for choice in (types, symbolic(types)):
            try:
                results = record.types(term.attrs, choice)
            except (ShapeError, Undecided):
                continue
            kept += [result.shape == choice[0].shape for result in results if choice]
    if record.traits.keeps_shape:
        assert kept and all(kept) and record.traits.entrywise is None
    elif kept and not record.composite and record.traits.entrywise is None:
        assert not all(kept)


def check_keeps_rank(record: Operator) -> None:
    if record.traits.keeps_rank:
        for term, types in applications(record):
            assert {result.rank for result in record.types(term.attrs, types)} == {operand.rank for operand in types}


def check_image(record: Operator) -> None:
    image = record.traits.image
    for term, types in applications(record):
        if image is None:
            continue
        (result,) = record.types(term.attrs, types)
        assert result.rank == types[0].rank >= 3
        flat = [TensorType(t.dtype, t.shape[:2]) if t.rank > 2 else t for t in types]
        attrs = {name: 0 if name == "spatial" else () if isinstance(value, tuple) else value for name, value in term.attrs}
        if image in (ImageRole.WINDOW, ImageRole.GLOBAL):
            with pytest.raises((ShapeError, IndexError, ValueError)):
                record.types(attrs, flat)
            assert (result.shape[2:] == (1,) * (result.rank - 2)) == (image is ImageRole.GLOBAL)
            assert ("strides" in attrs) == (image is ImageRole.WINDOW)
        else:
            assert image is ImageRole.CHANNELS and result.shape == types[0].shape


# What a definition asks for


class Recorder:
    """A domain that notes which of its operations are called, and of scalar functions which."""

    def __init__(self, domain: Any) -> None:
        self.domain, self.called = domain, set[str]()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.domain, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            self.called.add(f"apply {arguments[0]}" if name == "apply" else name)
            return attribute(*arguments)

        return call


def asked(record: Operator) -> set[str]:
    """The operations that a record's definition uses, over floats or in a finite field."""
    called: set[str] = set()
    for term, types in applications(record):
        operands = random_numbers(types)
        if record.name == "Pow":
            operands[1] = np.full_like(operands[1], -1.0)
        field = FiniteField(seed=0)
        residues = [field.random(np.random.default_rng(i), a.shape) if a.dtype.kind == "f" else a for i, a in enumerate(operands)]
        if record.name == "Pow":
            residues[1] = field.const(-1)
        for domain, arrays in ((Real(), operands), (field, residues)):
            recorder: Any = Recorder(domain)
            with contextlib.suppress(Unsupported, ZeroDivision):
                record.run(recorder, term.attrs, arrays)
            called |= recorder.called
    return called


def check_piecewise(record: Operator) -> None:
    """Of composites what is claimed may depend on an attribute."""
    ordered = {"maximum", "minimum", "less", "max", "min", "where"}
    ordered |= {f"apply {f.name}" for f in FUNCTIONS.values() if f.piecewise}
    asks = bool(asked(record) & ordered)
    assert record.traits.piecewise or not asks
    assert asks or record.composite or not record.traits.piecewise


def check_accumulates(record: Operator) -> None:
    adds = bool(asked(record) & {"sum", "mean", "matmul", "einsum"})
    assert record.traits.accumulates == adds


def check_slow(record: Operator) -> None:
    transcendental = {"div", "sqrt", "exp"} | {f"apply {f.name}" for f in FUNCTIONS.values() if f.slow}
    if record.traits.entrywise is not None:
        assert record.traits.slow == bool(asked(record) & transcendental)
    else:
        assert not record.traits.slow


def check_inverses(record: Operator) -> None:
    traits = record.traits
    if not record.composite and traits.undoes is None:
        assert traits.inverts_inside == bool(asked(record) & {"sub", "div"})
    if traits.undoes is None:
        return
    for term, types in applications(record):
        operands = random_numbers(types)
        (result,) = run(record, term, operands)
        if traits.undoes == "Identity":
            (restored,) = run(record, term, [result])
        else:
            (restored,) = get_operator(traits.undoes).run(Real(), (), [result, operands[1]])
        assert np.allclose(restored, operands[0], rtol=1e-12, atol=1e-12)


# What a result is


def check_bounded(record: Operator) -> None:
    if record.traits.function is not None:
        assert record.traits.bounded == record.traits.function.bounded
    for term, types in applications(record):
        for scale in (1.0, 1e30):
            for result in run(record, term, random_numbers(types, scale=scale)) if record.traits.bounded else ():
                assert np.abs(result.astype(float)).max() <= 1


def check_reduction(record: Operator) -> None:
    reduction = record.traits.reduction
    for term, types in applications(record):
        if reduction is None:
            continue
        (x,) = random_numbers(types)
        (result,) = run(record, term, [x])
        if record.traits.image is ImageRole.WINDOW:  # the samples' windows are 2x2, side by side
            x = x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).swapaxes(3, 4).reshape(*result.shape, 4)
            result = result[..., None]
        elif record.traits.image is ImageRole.GLOBAL:
            x, result = x.reshape(*x.shape[:2], -1), result.reshape(*result.shape[:2], 1)
        functions: dict[Reduction, Callable[..., Any]] = {
            Reduction.SUM: np.sum,
            Reduction.MEAN: np.mean,
            Reduction.MAX: np.max,
            Reduction.MIN: np.min,
            Reduction.SQUARES: lambda a, **options: np.sum(a * a, **options),
            Reduction.NORM: lambda a, **options: np.sqrt(np.sum(a * a, **options)),
        }
        assert np.allclose(result, functions[reduction](x, axis=-1, keepdims=True))
        assert reduction.linear == (reduction in (Reduction.SUM, Reduction.MEAN))


def check_degree(record: Operator) -> None:
    """Along a line a polynomial of degree d has differences of order d + 1 that are zero: exactly, in a finite field."""
    degree, field = record.traits.degree, FiniteField(seed=0)
    for term, types in applications(record):
        generator = np.random.default_rng(0)
        arrays = random_numbers(types)
        if any(a.dtype.kind != "f" for a in arrays) or not arrays or record.traits.entrywise is Entrywise.CONVERSION:
            assert degree is None
            continue
        start, step = ([field.random(generator, a.shape) for a in arrays] for _ in range(2))
        order = 1 + (1 if degree is DegreeBound.LINEAR else len(arrays))
        totals: list[Any] = []
        try:
            for k in range(order + 1):
                point = [field.add(a, field.mul(field.const(k), b)) for a, b in zip(start, step, strict=True)]
                weight = field.const((-1) ** k * math.comb(order, k))
                terms = [field.mul(weight, result) for result in record.run(field, term.attrs, point)]
                totals = [field.add(a, b) for a, b in zip(totals, terms, strict=True)] if totals else terms
        except (Unsupported, ZeroDivision):
            assert degree is None
            continue
        assert all(isinstance(total, FieldArray) for total in totals)
        vanishes = all(not total.p.any() for total in totals)
        assert vanishes if degree is not None else (not vanishes or record.composite or record.traits.piecewise)


def check_function(record: Operator) -> None:
    function = record.traits.function
    for term, types in applications(record):
        if function is None:
            continue
        operands = [np.abs(a) + 0.5 for a in random_numbers(types)]
        (result,) = run(record, term, operands)
        assert np.array_equal(result, function.numpy(*operands)) and record.traits.slow == function.slow


def check_jumps(record: Operator) -> None:
    """Whether numbers on both sides of zero or of a half have results that are far apart."""
    if record.traits.entrywise is not Entrywise.FUNCTION or record.arity != (1, 1):
        return
    for term, types in applications(record):
        if any(type_.dtype != DataType.FLOAT for type_ in types):
            continue
        places = np.arange(-8, 9) / 2
        with np.errstate(all="ignore"):
            (before,), (behind,) = (run(record, term, [places + 1e-9 * side]) for side in (-1, 1))
        far = np.abs(before - behind) > 0.1
        assert record.traits.jumps == bool(far[np.abs(before) < 1e3].any())


def check_keeps_zero(record: Operator) -> None:
    """What keeps zero is zero there and, of all numbers near and far that have a result, nowhere else."""
    if not record.traits.keeps_zero:
        return
    assert record.traits.entrywise is Entrywise.FUNCTION and record.arity == (1, 1)
    places = np.concatenate([np.linspace(-9, 9, 181), [1e-30, -1e-30, 1e30, -1e30]])
    for term, _ in applications(record):
        with np.errstate(all="ignore"):
            (results,) = run(record, term, [places])
        has_result = ~np.isnan(results)
        assert np.array_equal((results == 0)[has_result], (places == 0)[has_result])


def check_rows(record: Operator) -> None:
    """Rows do not depend on each other; those of a softmax are shares, and those that are normalised are of unit mean square."""
    rows = record.traits.rows
    for term, types in applications(record):
        if rows is None or term.attr("axis", -1) != -1:
            continue
        x, *parameters = random_numbers(types)
        flat = x.reshape(-1, x.shape[-1])
        order = np.random.default_rng(1).permutation(len(flat))
        (result,) = run(record, term, [x, *parameters])
        (moved,) = run(record, term, [flat[order].reshape(x.shape), *parameters])
        assert np.allclose(moved.reshape(flat.shape), result.reshape(flat.shape)[order])
        if rows is RowRole.SOFTMAX:
            shares = result if (result >= 0).all() else np.exp(result)
            assert np.allclose(shares.sum(axis=-1), 1)
        else:
            scale, *bias = parameters
            normal = (result - (bias[0] if bias else 0)) / scale
            assert np.allclose((normal**2).mean(axis=-1), 1, atol=1e-3) and np.abs(normal).max() <= math.sqrt(x.shape[-1])


def check_product(record: Operator) -> None:
    """The first two operands are multiplied with each other: each alone only scales the result."""
    for term, types in applications(record):
        if record.traits.product is None:
            continue
        operands = [random_numbers(types)[0], random_numbers(types)[1], *(np.zeros_like(a) for a in random_numbers(types)[2:])]
        (result,) = run(record, term, operands)
        for position in (0, 1):
            scaled = [a * 2 if i == position else a for i, a in enumerate(operands)]
            assert np.allclose(run(record, term, scaled)[0], 2 * result)
        (none,) = run(record, term, [operands[0] * 0, *operands[1:]])
        assert not none.any() and result.any()
        assert (record.traits.product is not ProductKind.MATRIX) == ("strides" in dict(term.attrs))
        assert record.flops({**record.defaults, **dict(term.attrs)}, types, record.types(term.attrs, types)) > 2 * result.size


def check_attention(record: Operator) -> None:
    weighs = False
    for term, types in applications(record):
        if record.composite:
            parts = list(walk(record.decompose(term.attrs, types)))
            weighs |= any(part.op == "MatMul" and traits_of(part.inputs[0].op).rows is RowRole.SOFTMAX for part in parts)
    assert record.traits.attention == weighs


def check_whole(record: Operator) -> None:
    assert record.traits.named_whole or not record.composite
    assert not record.traits.named_whole or record.traits.movement is None


CHECKS = [
    check_movement,
    check_addresses,
    check_entrywise,
    check_one_dtype,
    check_keeps_shape,
    check_keeps_rank,
    check_image,
    check_piecewise,
    check_accumulates,
    check_slow,
    check_inverses,
    check_bounded,
    check_reduction,
    check_degree,
    check_function,
    check_jumps,
    check_keeps_zero,
    check_rows,
    check_product,
    check_attention,
    check_whole,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_traits(check: Callable[[Operator], None]) -> None:
    for record in RECORDS:
        try:
            check(record)
        except AssertionError as problem:
            raise AssertionError(f"{record.name}: {problem}") from problem


WRONG: list[tuple[Callable[[Operator], None], str, dict[str, Any]]] = [
    (check_movement, "Transpose", {"movement": Movement.VIEW}),
    (check_movement, "Slice", {"movement": Movement.PERMUTATION}),
    (check_movement, "Pad", {"movement": Movement.PART}),
    (check_movement, "Relu", {"movement": Movement.VIEW}),
    (check_movement, "Split", {"movement": Movement.REPETITION}),
    (check_movement, "Slice", {"movement": Movement.WINDOWS}),
    (check_addresses, "Max", {"movement": Movement.CONCATENATION}),
    (check_entrywise, "CumSum", {"entrywise": Entrywise.FUNCTION}),
    (check_entrywise, "Less", {"entrywise": Entrywise.ARITHMETIC}),
    (check_entrywise, "Add", {"entrywise": Entrywise.EXTREMUM}),
    (check_one_dtype, "Cast", {"one_dtype": True}),
    (check_one_dtype, "Where", {"one_dtype": True}),
    (check_one_dtype, "Add", {"one_dtype": False}),
    (check_keeps_shape, "MatMul", {"keeps_shape": True}),
    (check_keeps_shape, "Softmax", {"keeps_shape": False}),
    (check_keeps_rank, "Reshape", {"movement": Movement.PERMUTATION}),
    (check_keeps_rank, "Squeeze", {"movement": Movement.PART}),
    (check_image, "MaxPool", {"image": ImageRole.GLOBAL}),
    (check_image, "ReduceMax", {"image": ImageRole.CHANNELS}),
    (check_piecewise, "Relu", {"piecewise": False}),
    (check_piecewise, "Add", {"piecewise": True}),
    (check_accumulates, "AveragePool", {"accumulates": False}),
    (check_accumulates, "MaxPool", {"accumulates": True}),
    (check_slow, "Elu", {"slow": False}),
    (check_slow, "Mul", {"slow": True}),
    (check_inverses, "Softsign", {"inverts_inside": False}),
    (check_inverses, "Mul", {"undoes": "Add"}),
    (check_inverses, "Exp", {"undoes": "Identity"}),
    (check_bounded, "LogSoftmax", {"bounded": True}),
    (check_bounded, "Erf", {"bounded": False}),
    (check_reduction, "ReduceMax", {"reduction": Reduction.SUM}),
    (check_reduction, "AveragePool", {"reduction": Reduction.SUM}),
    (check_degree, "Mul", {"degree": DegreeBound.LINEAR}),
    (check_degree, "ReduceSumSquare", {"degree": DegreeBound.LINEAR}),
    (check_degree, "Max", {"degree": DegreeBound.MULTILINEAR}),
    (check_degree, "Add", {"degree": None}),
    (check_function, "Erf", {"function": FUNCTIONS["tanh"]}),
    (check_jumps, "Floor", {"function": None}),
    (check_jumps, "Relu", {"function": FUNCTIONS["sign"]}),
    (check_keeps_zero, "Relu", {"keeps_zero": True}),
    (check_keeps_zero, "Exp", {"keeps_zero": True}),
    (check_keeps_zero, "Mul", {"keeps_zero": True}),
    (check_rows, "Softmax", {"rows": RowRole.NORMALISATION}),
    (check_rows, "RMSNormalization", {"rows": RowRole.SOFTMAX}),
    (check_product, "Add", {"product": ProductKind.MATRIX}),
    (check_product, "MatMul", {"product": ProductKind.CONVOLUTION}),
    (check_attention, "Attention", {"attention": False}),
    (check_attention, "BiasGelu", {"attention": True}),
    (check_whole, "BiasGelu", {"named_whole": False}),
]


def _named(value: Any) -> str:
    """A name that is the same in every process: of the traits in question, their names."""
    return "-".join(value) if isinstance(value, dict) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("check", "name", "wrong"), WRONG, ids=_named)
def test_a_wrong_trait_is_noticed(check: Callable[[Operator], None], name: str, wrong: dict[str, Any]) -> None:
    record = get_operator(name)
    check(record)
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        check(replace(record, traits=replace(record.traits, **wrong)))


def test_leaves_and_unknown_operators_have_no_traits() -> None:
    assert traits_of("Var") == traits_of("Const") == traits_of("NonMaxSuppression") == Traits()


# Scalar functions

GRID = np.linspace(-4.0, 4.0, 161)


@pytest.mark.parametrize("name", [name for name, row in FUNCTIONS.items() if row.operands == 1])
def test_a_row_says_what_a_function_does(name: str) -> None:
    row = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        values, mirrored = row.numpy(GRID), row.numpy(-GRID)
        steps = np.diff(values[np.isfinite(values)])
        near = [row.numpy(at + 1e-6 * np.arange(-1.0, 2.0)) for at in (0.0, 0.5)]  # before, at and behind a place
        slopes = [np.diff(three) / 1e-6 for three in near if np.isfinite(three).all()]
    assert row.increasing == bool((steps >= 0).all())
    assert row.odd == np.array_equal(mirrored, -values)
    assert row.partial == bool(np.isnan(values[GRID < 0]).all())
    assert row.piecewise == any(abs(before - behind) > 0.1 or abs(before) > 1e3 for before, behind in slopes)
    assert row.bounded == bool((np.abs(values) <= 1).all()) or row.partial
