"""Threads that compute side by side hold back those of the linear algebra, as long as one of them needs that."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from rewriter.reference import threads
from rewriter.reference.threads import side_by_side


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
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
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
