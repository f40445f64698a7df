"""Threads that compute side by side hold back those of the linear algebra, as long as one of them needs that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mugraph.domains import Real
from rewriter.reference import threads
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


def test_rows_of_products_and_entries_of_functions_are_shared_and_the_same() -> None:
    generator = np.random.default_rng(0)
    rows, weight = generator.standard_normal((2, 1024, 512)), generator.standard_normal((512, 512))
    threads = SideBySide(runs=2, cores=9)
    try:
        shared, seen = SharedReal(np.float64, threads), list[slice]()
        plain_parts = threads.in_parts

        def in_parts(compute: Callable[[slice], None], length: int) -> None:
            plain_parts(lambda part: (seen.append(part), compute(part))[1], length)

        threads.in_parts = in_parts  # type: ignore[method-assign]
        assert np.allclose(shared.matmul(rows, weight), rows @ weight, rtol=1e-12, atol=1e-12)
        assert sorted((part.start, part.stop) for part in seen) == [(0, 682), (682, 1365), (1365, 2048)]
        seen.clear()
        assert np.array_equal(shared.apply("erf", rows), Real().apply("erf", rows)) and len(seen) == 3
        seen.clear()
        assert np.array_equal(shared.matmul(rows[:, :1], weight[:, :8]), rows[:, :1] @ weight[:, :8]) and not seen
        assert np.array_equal(shared.apply("erf", rows[0, 0]), Real().apply("erf", rows[0, 0])) and not seen
    finally:
        threads.close()


def test_runs_that_have_no_core_to_spare_share_nothing() -> None:
    threads = SideBySide(runs=4, cores=9)
    assert threads.shares == 1
    threads.close()
