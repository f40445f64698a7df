"""Ranges of values: masks, assumptions about inputs, and the guards that rest on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mugraph.domains.base import Unsupported
from mugraph.domains.range import Range, RangeDomain
from mugraph.graph import Constant, Graph
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.text import parse_type
from rewriter.search.match import NoMatch
from rewriter.search.ranges import Assumption, ConstantRanges, RangeOracle, read_by_guards
from tests.support.graphs import UNGUARD, Builder, applied, apply_match, matches_of, ops, rule


@pytest.mark.parametrize(("mask", "fires"), [(-3e38, True), (-np.inf, False)])
def test_the_nan_guard_goes_only_where_no_nan_is_shown(mask: float, fires: bool) -> None:
    """A fully masked row of -inf makes softmax NaN; a large finite mask does not."""
    b = Builder()
    scores, zero = b.input("[2,4,4]"), b.constant(np.zeros((), np.float32))
    masked = b.op("Add", scores, b.constant(np.full((4, 4), mask, np.float32)))
    soft = b.op("Softmax", masked, axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft))
    (result,) = applied(graph, UNGUARD)
    if fires:
        assert isinstance(result, Graph) and ops(result) == ["Add", "Softmax", "Identity"]
    else:
        assert isinstance(result, NoMatch) and "not_nan(X) could not be shown" in result.reason


def test_a_causal_mask_of_infinities_keeps_one_finite_entry_a_row() -> None:
    b = Builder()
    causal = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
    soft = b.op("Softmax", b.op("Add", b.input("[2,4,4]"), b.constant(causal)), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (result,) = applied(graph, UNGUARD)
    assert isinstance(result, Graph)


def guarded(dtype: str, mask: Callable[[Builder, int, int], int]) -> Graph:
    """A guarded softmax of scores [2,4,4] and a mask, which is given zero and the least number of the element type."""
    b = Builder()
    numpy_dtype = parse_type(f"{dtype}[]").dtype.numpy()
    type_ = parse_type(f"{dtype}[]")
    least = np.asarray(np.finfo(numpy_dtype).min, numpy_dtype)
    zero, low = (b.tables.add_constant(Constant.of(np.asarray(v, numpy_dtype), type_)) for v in (0, least))
    soft = b.op("Softmax", b.op("Add", b.input(f"{dtype}[2,4,4]"), mask(b, zero, low)), axis=-1)
    return b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft))


def flags(b: Builder, array: np.ndarray) -> int:
    return b.tables.add_constant(Constant.of(array, TensorType(DataType.BOOL, array.shape)))


def texts(b: Builder, array: np.ndarray) -> int:
    return b.tables.add_constant(Constant.of(array, TensorType(DataType.STRING, array.shape)))


@pytest.mark.parametrize(("dtype", "shown"), [("float", True), ("float16", False)])
def test_the_largest_float16_mask_counts_as_infinite(dtype: str, shown: bool) -> None:
    """-65504 plus a score of -16 rounds to -inf in float16; the least float32 swallows any score.

    That a row is not hidden throughout is then an assumption, which the oracle remembers.
    """
    graph = guarded(dtype, lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), low, zero))
    (match,) = matches_of(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_attended=False)), Graph) is shown
    oracle = RangeOracle({})
    assert isinstance(apply_match(match, graph, oracle), Graph)
    needed = oracle.relied[match.direction.id, match.values]
    assert needed == {Assumption.FINITE} | (set() if shown else {Assumption.ATTENDED})


TRIANGLE = np.tri(4, dtype=bool)


HOLE = TRIANGLE & (np.arange(4) != 2)[:, None]
"""A causal mask of which one row is hidden throughout."""

WINDOW = TRIANGLE & ~np.tri(4, k=-3, dtype=bool)
"""A window: no position is seen by all."""


@pytest.mark.parametrize(
    ("mask", "fires"),
    [
        (lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[4,4]"), flags(b, TRIANGLE)), zero, low), True),
        (lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[4,4]"), flags(b, HOLE)), zero, low), False),
        (lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[1,4]"), flags(b, WINDOW)), zero, low), False),
        (
            lambda b, zero, low: b.op(
                "Where", b.op("Expand", b.op("And", b.input("bool[1,4]"), flags(b, WINDOW)), shape=(4, 4)), zero, low
            ),
            False,
        ),
        (lambda b, zero, low: b.op("Where", b.op("Or", flags(b, ~HOLE), b.input("bool[4,4]")), low, zero), False),
        (lambda b, zero, low: b.op("Where", b.op("Not", b.op("And", b.input("bool[1,4]"), flags(b, HOLE))), low, zero), False),
        (lambda b, zero, low: b.op("Where", b.op("Or", flags(b, ~TRIANGLE), b.input("bool[4,4]")), low, zero), True),
        (lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), low, low), False),
        (lambda b, zero, low: b.op("Where", b.input("bool[4,4]"), b.input("float16[4,4]"), low), True),
        (lambda b, zero, low: b.op("Transpose", b.op("Where", b.input("bool[4,4]"), zero, low), perm=(1, 0)), False),
        (lambda b, zero, low: b.op("Add", *(b.op("Where", b.input("bool[4,4]"), zero, low) for _ in range(2))), False),
    ],
)
def test_a_mask_is_assumed_to_leave_something_unless_its_constants_do_not(
    mask: Callable[[Builder, int, int], int], fires: bool
) -> None:
    graph = guarded("float16", mask)
    (match,) = matches_of(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({})), Graph) is fires
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_attended=False)), NoMatch)


def test_what_is_guarded_against_nan_is_a_probability() -> None:
    """Whatever is hidden: a row of nothing is NaN before the guard, which asks of this very value."""
    graph = guarded("float16", lambda b, zero, low: b.op("Where", b.op("And", b.input("bool[1,4]"), flags(b, WINDOW)), zero, low))
    (out,) = graph.outputs
    node, _ = graph.tables.makers[out]
    soft, kept = (RangeOracle({}).range(graph, value) for value in (node.inputs[2], out))
    assert soft.nan and (soft.lo, soft.hi) == (0, 1) and not soft.row_finite
    assert not kept.nan and kept.finite and (kept.lo, kept.hi) == (0, 1)
    b = Builder()
    zero, x = b.constant(np.zeros((), np.float32)), b.op("Log", b.input("[4]"))
    other = b.op("Where", b.op("IsNaN", b.op("Neg", x)), zero, x)
    assert RangeOracle({}).range(b.graph(other), other).nan, "the guard of another value"


@pytest.mark.parametrize(("kept", "fires"), [(TRIANGLE, True), (HOLE, False)])
def test_a_constant_float16_mask_is_read_row_by_row(kept: np.ndarray, fires: bool) -> None:
    def mask(b: Builder, zero: int, low: int) -> int:
        hidden = np.where(kept, 0, np.finfo(np.float16).min).astype(np.float16)
        return b.tables.add_constant(Constant.of(hidden, TensorType(DataType.FLOAT16, hidden.shape)))

    graph = guarded("float16", mask)
    oracle = RangeOracle({})
    (match,) = matches_of(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, oracle), Graph) is fires
    assert Assumption.ATTENDED not in oracle.relied.get((match.direction.id, match.values), ())


HIDDEN = rule(
    "Softmax[axis=-1](Add(X, M))",
    "Softmax[axis=-1](Where(CausalMask[columns=n,rows=n](), X, -inf))",
    "X:[b,n,n] M:[n,n]",
    "causal(M) & finite(X)",
)


@pytest.mark.parametrize(
    ("low", "padded", "assumes"),
    [(np.finfo(np.float32).min, True, True), (np.finfo(np.float32).min, False, False), (-np.inf, True, False)],
)
def test_a_number_that_hides_beside_a_mask_of_the_run_rests_on_what_both_leave(low: float, padded: bool, assumes: bool) -> None:
    """By a number, a row of padding alone is the mean of what one of the masks hides, by -inf of what the causal mask shows."""
    b = Builder()
    least, zero = (
        b.tables.add_constant(Constant.of(np.float32(v), parse_type("float[]"))) for v in (np.finfo(np.float32).min, 0)
    )
    scores = b.input("float[2,4,4]")
    if padded:
        scores = b.op("Add", scores, b.op("Where", b.input("bool[2,1,4]"), zero, least))
    causal = np.where(TRIANGLE, 0, low).astype(np.float32)
    mask = b.tables.add_constant(Constant.of(causal, TensorType(DataType.FLOAT, causal.shape)))
    graph = b.graph(b.op("Softmax", b.op("Add", scores, mask), axis=-1))
    oracle = RangeOracle({})
    (match,) = (m for m in matches_of(graph, HIDDEN) if isinstance(apply_match(m, graph, oracle), Graph))
    needed = oracle.relied[match.direction.id, match.values]
    assert needed == {Assumption.FINITE} | ({Assumption.ATTENDED} if assumes else set())
    refused = apply_match(match, graph, RangeOracle({}, assume_attended=False))
    assert isinstance(refused, NoMatch) is assumes


CAUSAL = rule("Add(X, M)", "X", "X:[b,h,m,n] M:[b,1,m,n]", "causal(M)")


TRUE = rule("And(C, X)", "X", "C:bool[m,1] X:bool[m,n]", "all_true(C) & fits(C, X)")


@pytest.mark.parametrize("change", ["", "another sequence", "a later key", "an input"])
@pytest.mark.parametrize("batch", [2, 256])
def test_a_mask_that_is_computed_of_positions_for_a_batch_is_causal(batch: int, change: str) -> None:
    """As exporters write it: keys of one's own sequence, up to oneself. It is looked at once, however large the batch is."""
    b = Builder()
    length = 256

    def positions(*shape: int) -> int:
        array = np.broadcast_to(np.arange(length).reshape(shape), (batch, *shape)).copy()
        if change == "a later key" and shape[-1] == length:
            array[-1, 0, 0, 5] = 4
        return b.tables.add_constant(Constant.of(array, TensorType(DataType.INT64, array.shape)))

    def sequence(*shape: int) -> int:
        array = np.zeros((batch, *shape), np.int64)
        if change == "another sequence" and shape[-1] == length:
            array[-1, 0, 0, 0] = 1
        return b.tables.add_constant(Constant.of(array, TensorType(DataType.INT64, array.shape)))

    queries, keys = (1, length, 1), (1, 1, length)
    seen = b.op("LessOrEqual", positions(*keys), positions(*queries))
    own = b.op("Equal", sequence(*queries), sequence(*keys))
    seen = b.op("And", b.op("And", flags(b, np.ones((), np.bool_)), own), seen)
    if change == "an input":
        seen = b.op("And", seen, b.input(f"bool[{batch},1,1,{length}]"))
    mask = b.op("Where", seen, b.constant(np.zeros((), np.float32)), b.constant(np.asarray(-np.inf, np.float32)))
    scores = b.input(f"[{batch},12,{length},{length}]")
    graph = b.graph(b.op("Add", scores, b.op("Expand", mask, shape=(12, length, length))))
    oracle = RangeOracle({}, fold=lambda value: pytest.fail("the whole batch is looked at") if batch > 2 else None)
    (after,) = (apply_match(m, graph, oracle) for m in matches_of(graph, CAUSAL) if dict(m.variables)["X"] == scores)
    assert isinstance(after, NoMatch) and "causal(M)" in after.reason if change else isinstance(after, Graph)


@pytest.mark.parametrize("room", [1 << 24, 0])
def test_what_depends_on_constants_alone_is_computed_once(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards ask of one table at each place of each rule, and without each assumption again; not if there is no room."""
    monkeypatch.setattr("rewriter.search.ranges._KEPT_ENTRIES", room)
    b = Builder()
    angles = np.arange(6, dtype=np.float32).reshape(2, 3)
    turned = b.op("Transpose", b.constant(angles), perm=(1, 0))
    table = b.op("Cos", turned)
    graph, folded = b.graph(b.op("Mul", b.input("[3,2]"), table)), list[int]()

    def fold(value: int) -> np.ndarray:
        folded.append(value)
        return angles.T

    oracle, told = RangeOracle({}, fold=fold), list[np.ndarray]()
    for each in (oracle, oracle, *oracle.lesser.values()):
        entries = each.value(graph, table)
        assert entries is not None and np.array_equal(entries, np.cos(angles.T.astype(np.float64)).astype(np.float32))
        told.append(entries)
    assert folded == [turned] * (1 if room else 4)
    shared = {np.shares_memory(told[0], entries) for entries in told[1:]}
    assert shared == {bool(room)}, "nor rounded to their type again"


def test_a_constant_is_read_once_whichever_thread_asks_first() -> None:
    """One reads ahead, another searches: who comes later waits."""
    ranges, reads, both = ConstantRanges(), list[str](), threading.Barrier(2)
    type_ = TensorType(DataType.FLOAT, (2,))

    def load() -> np.ndarray:
        reads.append("read")
        both.wait(30)
        return np.array([-1, 3], np.float32)

    def lost() -> np.ndarray:
        reads.append("lost")
        raise KeyboardInterrupt

    constants = {1: Constant(type_, load), 2: Constant(type_, lost), 3: Constant(type_, lambda: pytest.fail("not wanted"))}
    wanted = iter([True, True, False])
    with ThreadPoolExecutor(1) as ahead:
        reading = ahead.submit(ranges.read, {1: constants[1]}, lambda: True)
        both.wait(30)
        assert (ranges.of(1, constants[1]).lo, ranges.of(1, constants[1]).hi) == (-1, 3) and reads == ["read"]
        reading.result()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ranges.of(2, constants[2])
    assert reads == ["read", "lost", "lost"], "an interrupt is not kept for who asks later"
    ranges.read({1: constants[1], 4: Constant.of(np.ones(2, np.float32), type_), 3: constants[3]}, lambda: next(wanted))
    oracle = RangeOracle({}, constants=ranges)
    assert all(each._of_constants is ranges for each in oracle.lesser.values())


@pytest.mark.parametrize("is_guarded", [True, False])
def test_weights_are_read_ahead_where_a_softmax_is_guarded(is_guarded: bool) -> None:
    b = Builder()
    weight, zero = b.weight(4, 4), b.constant(np.zeros((), np.float32))
    soft = b.op("Softmax", b.op("MatMul", b.input("[2,4]"), weight), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft) if is_guarded else b.op("Add", soft, zero))
    assert set(read_by_guards(graph)) == ({weight, zero} if is_guarded else set())


@pytest.mark.parametrize("change", ["", "not square", "an input", "too small", "turned"])
def test_a_mask_of_symbolic_length_is_causal(change: str) -> None:
    b = Builder()
    seen = b.op("CausalMask", rows=symbol("n"), columns=symbol("n") + (change == "not square"))
    if change == "turned":
        seen = b.op("Transpose", seen, perm=(1, 0))
    if change == "an input":
        seen = b.op("And", seen, b.input("bool[1,n]"))
    hidden = b.constant(np.asarray(-5.0 if change == "too small" else -np.inf, np.float32))
    mask = b.op("Where", b.op("Unsqueeze", seen, axes=(-4, -3)), b.constant(np.zeros((), np.float32)), hidden)
    columns = symbol("n") + (change == "not square")
    scores = b.input(f"[b,12,n,{columns}]")
    graph = b.graph(b.op("Add", scores, b.op("Expand", mask, shape=(symbol("b"), 1, symbol("n"), columns))))
    (after,) = (apply_match(m, graph, RangeOracle({})) for m in matches_of(graph, CAUSAL) if dict(m.variables)["X"] == scores)
    assert isinstance(after, NoMatch) and "causal(M)" in after.reason if change else isinstance(after, Graph)


@pytest.mark.parametrize(
    ("flag", "fires"),
    [
        (lambda b: flags(b, np.ones((1, 4, 1), np.bool_)), True),
        (lambda b: flags(b, np.arange(4).reshape(1, 4, 1) != 2), False),
        (lambda b: b.op("Or", flags(b, TRIANGLE), flags(b, ~TRIANGLE)), True),
        (lambda b: b.op("Or", flags(b, TRIANGLE), flags(b, ~HOLE)), True),
        (lambda b: b.op("Or", flags(b, HOLE), flags(b, ~TRIANGLE)), False),
        (lambda b: b.op("Not", b.op("Expand", flags(b, np.zeros((1, 1), np.bool_)), shape=(4, 4))), True),
        (lambda b: b.op("Or", b.input("bool[4,4]"), flags(b, np.ones((4, 1), np.bool_))), True),
        (lambda b: b.input("bool[4,4]"), False),
        (lambda b: b.op("Equal", b.input("string[4,4]"), texts(b, np.array("yes", object))), False),
        (lambda b: b.op("Equal", b.input("string[4,4]"), texts(b, np.array(["yes"], object))), False),
    ],
)
def test_a_mask_hides_nothing_only_where_every_entry_is_true(flag: Callable[[Builder], int], fires: bool) -> None:
    b = Builder()
    graph = b.graph(b.op("And", flag(b), b.input("bool[2,4,4]")))
    results = [apply_match(m, graph, RangeOracle({})) for m in matches_of(graph, TRUE) if m.direction.forward]
    assert any(isinstance(result, Graph) for result in results) is fires
    assert fires or any(isinstance(r, NoMatch) and "all_true(C) could not be shown" in r.reason for r in results)


@pytest.mark.parametrize(("scale", "fires"), [(1.0, True), (60000.0, False)])
def test_a_normalised_row_is_bounded_by_its_length(scale: float, fires: bool) -> None:
    """No entry exceeds the root of the row's length; interval arithmetic alone has it divided by the root of epsilon."""
    b = Builder()
    half = TensorType(DataType.FLOAT16, (16,))
    gain, shift = (b.tables.add_constant(Constant.of(np.full(16, v, np.float16), half)) for v in (scale, 0))
    bounded = b.op("Clip", b.input("float16[2,16]"), min=-9.0, max=9.0)
    normal = b.op("LayerNormalization", bounded, gain, shift, axis=-1, epsilon=1e-12)
    range_ = RangeOracle({}).range(b.graph(normal), normal)
    assert range_.finite is fires
    assert not fires or (range_.lo, range_.hi) == (-4.0, 4.0)


@pytest.mark.parametrize(("epsilon", "fires"), [(1e-12, True), (0.0, False)])
def test_a_row_of_equal_entries_is_divided_by_the_root_of_epsilon(epsilon: float, fires: bool) -> None:
    """Where epsilon is zero such a row is NaN."""
    b = Builder()
    normal = b.op("LayerNormalization", b.input("[2,16]"), b.weight(16), axis=-1, epsilon=epsilon)
    assert RangeOracle({}).range(b.graph(normal), normal).nan is not fires


@pytest.mark.parametrize(
    ("dtype", "op", "low", "zero"),
    [
        ("float", "Mul", 1e-22, False),
        ("float", "Mul", 1e-23, True),
        ("double", "Mul", 1e-23, False),
        ("float16", "Mul", 1e-3, False),
        ("float16", "Mul", 1e-4, True),
        ("float", "Div", 1e-6, False),
        ("float", "Div", 1e-8, True),
        ("float", "Pow", 1e-23, True),
    ],
)
def test_what_is_multiplied_may_vanish(dtype: str, op: str, low: float, zero: bool) -> None:
    """A product of positive numbers may be too small for its element type, and a quotient by what may be large."""
    b = Builder()
    x = b.op("Clip", b.input(f"{dtype}[4]"), min=low, max=1.0)
    free = b.op("Abs", b.input(f"{dtype}[4]"))
    two = b.tables.add_constant(Constant.of(np.full((), 2, parse_type(f"{dtype}[]").dtype.numpy()), parse_type(f"{dtype}[]")))
    large = b.op("Add", free, b.op("Clip", free, min=1.0, max=2.0))
    value = b.op(op, x, {"Mul": x, "Div": large, "Pow": two}[op])
    assert RangeOracle({}).range(b.graph(value), value).zero is zero
    assert not RangeOracle({}).range(b.graph(x), x).zero


@pytest.mark.parametrize(
    ("dtype", "build", "holds"),
    [
        ("int32", lambda b, x: b.op("Mul", x, x), False),
        ("int64", lambda b, x: b.op("Mul", x, x), False),
        ("int32", lambda b, x: b.op("Abs", x), False),
        ("int32", lambda b, x: b.op("Abs", b.op("Clip", x, min=-9.0, max=9.0)), True),
        ("uint8", lambda b, x: b.op("Mul", x, x), True),
        ("int64", lambda b, x: b.op("Mul", b.op("Shape", x, start=-2, end=-1), b.op("Shape", x, start=-1, end=0)), True),
    ],
)
def test_integers_wrap_around(dtype: str, build: Callable[[Builder, int], int], holds: bool) -> None:
    """A square of integers may be negative, and so may a magnitude; sizes of tensors that exist are no such numbers."""
    b = Builder()
    value = build(b, b.input(f"{dtype}[n,4]"))
    assert (RangeOracle({}).range(b.graph(value), value).lo >= 0) is holds


def test_a_quotient_of_integers_may_be_zero() -> None:
    b = Builder()
    positive = b.op("Clip", b.input("int64[4]"), min=1.0)
    number = b.tables.add_constant(Constant.of(np.asarray(100000, np.int64), parse_type("int64[]")))
    halves = [b.op("Div", number, positive), b.op("Div", b.op("Clip", positive, max=9.0), number)]
    ranges = [RangeOracle({}).range(b.graph(half), half) for half in halves]
    assert all(r.zero for r in ranges) and (ranges[1].lo, ranges[1].hi) == (0.0, 0.0)


def test_two_float32_masks_add_up_to_infinity() -> None:
    """A causal and a padding mask of the least float32 number overflow together: a fully masked row is NaN."""
    b = Builder()
    least = b.constant(np.asarray(np.finfo(np.float32).min, np.float32))
    zero = b.constant(np.zeros((), np.float32))
    masks = [b.op("Where", b.input("bool[4,4]"), least, zero) for _ in range(2)]
    soft = b.op("Softmax", b.op("Add", b.op("Add", b.input("[4,4]"), masks[0]), masks[1]), axis=-1)
    (result,) = applied(b.graph(b.op("Where", b.op("IsNaN", soft), zero, soft)), UNGUARD)
    assert isinstance(result, NoMatch) and "not_nan(X) could not be shown" in result.reason


def test_the_guards_of_all_layers_go() -> None:
    """A mask shared by layers is huge in each of them, and softmax absorbs it each time."""
    b = Builder()
    value, zero = b.input("[4,4]"), b.constant(np.zeros((), np.float32))
    mask = b.op("Where", b.input("bool[4,4]"), zero, b.constant(np.asarray(np.finfo(np.float32).min, np.float32)))
    for _ in range(3):
        soft = b.op("Softmax", b.op("Add", b.op("MatMul", value, b.weight(4, 4)), mask), axis=-1)
        value = b.op("MatMul", b.op("Where", b.op("IsNaN", soft), zero, soft), value)
    results = applied(b.graph(value), UNGUARD)
    assert len(results) == 3 and all(isinstance(r, Graph) for r in results)


def test_an_overridable_mask_may_be_overridden_by_its_like() -> None:
    b = Builder()
    mask = b.input("[4,4]")
    default = Constant.of(np.full((4, 4), -np.inf, np.float32), parse_type("[4,4]"))
    soft = b.op("Softmax", b.op("Add", b.input("[4,4]"), mask), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (match,) = matches_of(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({}, defaults={mask: default})), NoMatch)
    assert isinstance(apply_match(match, graph, RangeOracle({})), Graph)


def test_inputs_that_may_be_infinite_keep_the_guard() -> None:
    b = Builder()
    soft = b.op("Softmax", b.input("[4,4]"), axis=-1)
    graph = b.graph(b.op("Where", b.op("IsNaN", soft), b.constant(np.zeros((), np.float32)), soft))
    (match,) = [m for m in matches_of(graph, UNGUARD)]
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_finite=False)), NoMatch)
    assert isinstance(apply_match(match, graph, RangeOracle({}, assume_finite=True)), Graph)


FACTORED = rule("Add(MatMul(X, Y), MatMul(X, Z))", "MatMul(X, Add(Y, Z))", "X:[m,n] Y:[n,k] Z:[n,k]")
MOVED = rule("Neg(Transpose[perm=(1,0)](X))", "Transpose[perm=(1,0)](Neg(X))", "X:[m,n]")


def test_an_equation_of_numbers_does_not_fire_where_inputs_may_be_infinite() -> None:
    """inf * 1 + inf * -1 is NaN, inf * (1 - 1) too, but inf * 2 + inf * -1 is NaN and inf * (2 - 1) is not."""
    b = Builder()
    x = b.input("[4,4]")
    added = b.op("Add", b.op("MatMul", x, b.weight(4, 4)), b.op("MatMul", x, b.weight(4, 4)))
    graph = b.graph(b.op("Neg", b.op("Transpose", added, perm=(1, 0))))
    for one, anywhere in ((FACTORED, False), (MOVED, True)):
        match = matches_of(graph, one)[0]
        assert isinstance(apply_match(match, graph, RangeOracle({})), Graph)
        strict = apply_match(match, graph, RangeOracle({}, assume_finite=False))
        assert isinstance(strict, Graph) is anywhere
        assert anywhere or (isinstance(strict, NoMatch) and "may be infinite or NaN" in strict.reason)


@pytest.mark.parametrize(("bounded", "number"), [(True, True), (False, False)])
def test_what_has_no_bound_may_overflow_where_nothing_is_assumed(bounded: bool, number: bool) -> None:
    """A sum of numbers between -1 and 1 that a model is not fed but computes from integers."""
    b = Builder()
    value = b.op("Cast", b.input("int64[4,4]"), to=DataType.FLOAT)
    value = b.op("Tanh", value) if bounded else value
    graph = b.graph(value)
    assert RangeOracle({}, assume_finite=False).is_number(graph, value) is number
    assert RangeOracle({}).is_number(graph, value)


def _of(b: Builder, how: str) -> int:
    """A condition [4,4] that is computed in some way."""
    four = b.constant(np.asarray(2, np.float32))
    if how == "a table of floats":
        return b.op("Greater", b.op("Gather", b.weight(8, 4), b.input("int64[4]"), axis=-2), four)
    if how == "a table of flags":
        return b.op("Gather", flags(b, np.ones((8, 4), bool)), b.input("int64[4]"), axis=-2)
    if how == "scores":
        return b.op("Greater", b.input("[4,4]"), four)
    if how == "a float mask":
        return b.op("Cast", b.input("[4,4]"), to=DataType.BOOL)
    if how == "one minus a mask":
        return b.op("Cast", b.op("Sub", four, b.op("Cast", b.input("int64[1,4]"), to=DataType.FLOAT)), to=DataType.BOOL)
    if how == "a function":
        return b.op("Greater", b.op("Sigmoid", b.op("Cast", b.input("int64[4,4]"), to=DataType.FLOAT)), four)
    assert how == "positions"
    return b.op("Greater", b.input("int64[4,1]"), b.input("int64[1,4]"))


@pytest.mark.parametrize(
    ("how", "fires"),
    [
        ("positions", True),
        ("one minus a mask", True),
        ("a table of flags", True),
        ("a table of floats", False),
        ("scores", False),
        ("a float mask", False),
        ("a function", False),
    ],
)
def test_only_masks_of_positions_are_assumed_to_leave_something(how: str, fires: bool) -> None:
    graph = guarded("float16", lambda b, zero, low: b.op("Where", _of(b, how), zero, low))
    (match,) = matches_of(graph, UNGUARD)
    assert isinstance(apply_match(match, graph, RangeOracle({})), Graph) is fires


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 0)])
def test_constants_of_half_precision_are_read_off_their_bits(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    numbers = np.asarray([0, -0.0, 1, -2.5, 6e-8, -6e-8, 32752, -32752, 32768, -65504, np.inf, -np.inf, np.nan], np.float16)
    for few in range(1, 200):
        array = generator.choice(generator.choice(numbers, few % len(numbers) + 1), shape).astype(np.float16)
        wide = array.astype(np.float32)
        b = Builder()
        value = b.tables.add_constant(Constant.of(array, TensorType(DataType.FLOAT16, shape)))
        counted = np.where(np.abs(wide) > 32752, np.copysign(np.inf, wide), wide)
        assert RangeOracle({}).range(b.graph(value), value) == Range.of(counted)


def test_a_split_of_symbolic_sizes_has_no_range() -> None:
    """Nor does it end the search."""
    with pytest.raises(Unsupported):
        get_operator("Split").run(RangeDomain(), {"axis": 0, "sizes": (symbol("n"), 2)}, [Range.top()])
