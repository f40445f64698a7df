"""Threads that compute side by side hold back those of the linear algebra, as long as one of them needs that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from threadpoolctl import threadpool_info, threadpool_limits

from mugraph.domains import Real
from mugraph.onnx import load
from rewriter.reference import evaluation, identical, random_inputs, reference_outputs, threads
from rewriter.reference.threads import SharedReal, SideBySide, side_by_side


def _threads() -> set[int]:
    """How many threads products take now."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def several() -> object:
    with threadpool_limits(2, user_api="blas"):
        if _threads() != {2}:
            pytest.skip("NumPy's linear algebra has no threads of its own here")
        yield


def test_products_take_one_thread_each_while_several_run_side_by_side() -> None:
    with side_by_side(4) as pool:
        assert pool is not None and _threads() == {1}
        done = list[int]()
        pool.run(done.append, [1, 2])
        assert sorted(done) == [1, 2]
    assert _threads() == {2}


def test_one_alone_takes_all_threads() -> None:
    with side_by_side(1) as pool:
        assert pool is None and _threads() == {2}


def test_the_last_of_overlapping_blocks_gives_the_threads_back() -> None:
    first, second = side_by_side(2), side_by_side(2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _threads() == {1}
    second.__exit__(None, None, None)
    assert _threads() == {2}


def test_an_error_gives_the_threads_back() -> None:
    with pytest.raises(ZeroDivisionError), side_by_side(2):
        raise ZeroDivisionError
    assert _threads() == {2}


def test_an_interrupt_right_after_the_limit_was_set_gives_the_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lock:
        """Is left by Ctrl-C the first time."""

        left = 0

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            self.left += 1
            if self.left == 1:
                assert _threads() == {1}
                raise KeyboardInterrupt

    monkeypatch.setattr(threads, "_LOCK", Lock())
    with pytest.raises(KeyboardInterrupt), side_by_side(2):
        pytest.fail("the block was begun")
    assert _threads() == {2}


@pytest.fixture
def shared() -> Iterator[tuple[SharedReal, list[slice]]]:
    """Arithmetic that three threads share, and the parts that they were given."""
    threads, seen = SideBySide(runs=2, free=7), list[slice]()
    plain_parts = threads.in_parts

    def in_parts(compute: Callable[[slice], None], length: int) -> None:
        plain_parts(lambda part: (seen.append(part), compute(part))[1], length)

    threads.in_parts = in_parts  # type: ignore[method-assign, assignment]
    try:
        yield SharedReal(np.float64, threads), seen
    finally:
        threads.close()


def test_rows_of_products_and_entries_of_functions_are_shared_and_the_same(shared: tuple[SharedReal, list[slice]]) -> None:
    generator, (domain, seen) = np.random.default_rng(0), shared
    rows, weight = generator.standard_normal((2, 1024, 512)), generator.standard_normal((512, 512))
    assert np.allclose(domain.matmul(rows, weight), rows @ weight, rtol=1e-12, atol=1e-12)
    assert sorted((part.start, part.stop) for part in seen) == [(0, 682), (682, 1365), (1365, 2048)]
    seen.clear()
    assert np.array_equal(domain.apply("erf", rows), Real().apply("erf", rows)) and len(seen) == 3
    seen.clear()
    assert np.array_equal(domain.matmul(rows[:, :1], weight[:, :8]), rows[:, :1] @ weight[:, :8]) and not seen
    assert np.array_equal(domain.apply("erf", rows[0, 0]), Real().apply("erf", rows[0, 0])) and not seen


@pytest.mark.parametrize("shape", [(1024,), (2, 1024), (1, 1, 1024)])
def test_columns_of_products_are_shared_where_rows_are_few(
    shared: tuple[SharedReal, list[slice]], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of one row are all of it: threads that each make the whole product add up in the same memory."""
    monkeypatch.setattr(threads, "_SHARED", 1 << 19)
    generator, (domain, seen) = np.random.default_rng(0), shared
    rows, words = generator.standard_normal(shape), generator.standard_normal((1000, 1024))
    for weight in (words.T, np.ascontiguousarray(words.T)):
        seen.clear()
        product = domain.matmul(np.atleast_2d(rows), weight)
        assert np.allclose(product, np.atleast_2d(rows) @ weight, rtol=1e-12, atol=1e-12)
        assert sorted((part.start, part.stop) for part in seen) == [(0, 333), (333, 666), (666, 1000)]
    seen.clear()
    narrow = domain.matmul(np.ones((1, 1 << 19)), np.ones((1 << 19, 2)))
    assert np.array_equal(narrow, [[1 << 19] * 2]) and not seen


_SHAPES = ((2, 1024, 512), (1, 16, 300, 256), (4, 16, 96, 128), (1, 1 << 20))
_EACH: dict[str, Callable[[Real, Any, Any], Any]] = {
    "a + b": lambda d, a, b: d.add(a, b),
    "row": lambda d, a, b: d.mul(a, b[..., :1, :]),
    "column": lambda d, a, b: d.div(b[..., :1], a),
    "number": lambda d, a, b: d.sub(a, d.const(3)),
    "fewer axes": lambda d, a, b: d.maximum(b[0], a),
    "truth": lambda d, a, b: d.less(a, b),
    "power": lambda d, a, b: d.apply("pow", a, d.const(3)),
    "square": lambda d, a, b: d.power(a, 2),
    "roots": lambda d, a, b: d.sqrt(a),  # of negative numbers, too
    "softmax": lambda d, a, b: d.exp_relative(a)[1],
    "sums": lambda d, a, b: d.sum(a, (-1,), False),
    "means": lambda d, a, b: d.mean(a, (-1,), True),
    "columns": lambda d, a, b: d.max(a, (-2,), True),
    "turned": lambda d, a, b: d.add(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)),
}


@pytest.mark.parametrize("what", _EACH)
def test_what_is_computed_entry_by_entry_or_row_by_row_is_shared_and_the_same_bit_for_bit(
    shared: tuple[SharedReal, list[slice]], what: str
) -> None:
    generator, (domain, seen) = np.random.default_rng(0), shared
    for shape in _SHAPES:
        a, b = (generator.standard_normal(shape) for _ in range(2))
        seen.clear()
        given, wanted = _EACH[what](domain, a, b), _EACH[what](Real(), a, b)
        assert identical(given, wanted), shape
        assert len(seen) >= 3 or (what in ("sums", "means", "softmax") and len(shape) == 2), shape


def test_products_of_many_matrices_are_shared_by_matrices(shared: tuple[SharedReal, list[slice]]) -> None:
    generator, (domain, seen) = np.random.default_rng(0), shared
    a, b = generator.standard_normal((2, 16, 128, 64)), generator.standard_normal((2, 16, 256, 64)).swapaxes(-1, -2)
    assert identical(domain.matmul(a, b), a @ b)
    assert sorted((part.start, part.stop) for part in seen) == [(0, 5), (5, 10), (10, 16)]
    seen.clear()
    assert identical(domain.matmul(a[:1], b), a[:1] @ b) and not seen, "matrices that are repeated"


def test_integers_and_few_entries_are_not_shared(shared: tuple[SharedReal, list[slice]]) -> None:
    domain, seen = shared
    many = np.arange(1 << 20)
    assert identical(domain.add(many, domain.const(1)), Real().add(many, Real().const(1)))
    assert identical(domain.div(many, np.asarray(3)), many // 3) and identical(
        domain.sum(many, (-1,), True), many.sum(keepdims=True)
    )
    assert identical(domain.add(np.ones(9), np.ones(9)), 2 * np.ones(9)) and not seen


def test_large_weights_are_widened_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has the others' threads then, too; the weights are the same."""
    monkeypatch.setattr(threads, "cores", lambda: 9)
    parts: list[int] = []
    plain = SideBySide.in_parts

    def in_parts(self: SideBySide, compute: Callable[[slice], None], length: int, *, alone: bool = False) -> None:
        plain(self, lambda part: (parts.append(part.start) if alone else None, compute(part))[1], length, alone=alone)

    monkeypatch.setattr(SideBySide, "in_parts", in_parts)
    model = parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float16[2,512] x) => (float16[2,256] y) { y = MatMul(x, w) }'
    )
    weight = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    loaded = load(model)
    feeds = [random_inputs(loaded, {}, seed) for seed in (1, 2)]
    together, alone = reference_outputs(loaded, feeds), [reference_outputs(loaded, [feed])[0] for feed in feeds]
    assert len(parts) == 6
    for one, other, feed in zip(together, alone, feeds, strict=True):
        assert one[0].dtype == np.float64
        np.testing.assert_allclose(one[0], other[0], rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(one[0], feed["x"].astype(np.float64) @ weight.astype(np.float64), rtol=1e-13, atol=1e-13)


def test_runs_that_have_no_core_to_spare_share_nothing() -> None:
    threads = SideBySide(runs=4, free=7)
    assert threads.shares == 1
    threads.close()


def test_a_run_has_as_many_threads_as_it_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two texts that are one has half of what another has; one of a few words has a single thread."""
    monkeypatch.setattr(threads, "cores", lambda: 16)
    counts: list[int] = []
    plain = SideBySide.in_parts

    def in_parts(self: SideBySide, compute: Callable[[slice], None], length: int, *, alone: bool = False) -> None:
        counts.append(self.shares)
        plain(self, compute, length, alone=alone)

    monkeypatch.setattr(SideBySide, "in_parts", in_parts)
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[N,M] x) => (float[N,M] y) { a = Exp(x) y = Neg(a) }'
    model, generator = load(parse_model(text)), np.random.default_rng(0)
    whole = {"x": generator.standard_normal((2, 1 << 19), np.float32)}
    feeds = [whole, {"x": whole["x"][[0, 0]]}, {"x": whole["x"][:, :3]}]
    for outputs, feed in zip(reference_outputs(model, feeds), feeds, strict=True):
        np.testing.assert_allclose(outputs[0], -np.exp(feed["x"].astype(np.float64)), rtol=1e-15)
    assert sorted(counts) == [4, 9]


def test_weights_of_the_next_nodes_are_widened_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, as long as they are neither small nor so large that two of them would not be held at a time."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w) b = MatMul(a, v) y = Add(b, c) }"""
    model = parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in (("w", (8, 8)), ("v", (8, 8)), ("c", (8,))):
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ahead = list[int]()
    plain = SideBySide.ahead

    def noted(self: SideBySide, work: Callable[[], Any]) -> Any:
        ahead.append(1)
        return plain(self, work)

    monkeypatch.setattr(SideBySide, "ahead", noted)
    loaded = load(model)
    feeds = [random_inputs(loaded, {}, seed) for seed in range(2)]
    wanted = reference_outputs(loaded, feeds)
    assert not ahead
    for least, most, count in ((64, 1 << 20, 1), (8, 1 << 20, 2), (8, 32, 1), (8, 7, 0)):
        monkeypatch.setattr(evaluation, "_LARGE", least)
        monkeypatch.setattr(evaluation, "_MOST_AHEAD", most)
        ahead.clear()
        assert identical(reference_outputs(loaded, feeds), wanted) and len(ahead) == count
