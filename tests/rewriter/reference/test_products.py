"""Products that a device makes of the float64 reference: what it gives is checked, and the processor makes what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rewriter.reference import products, threads
from rewriter.reference.products import DeviceProducts
from rewriter.reference.threads import SharedReal, SideBySide
from rewriter.runtime_env import RuntimeFailure, Session


def _opened() -> DeviceProducts:
    device = DeviceProducts("cpu")
    assert device.wait()
    return device


def _matrices(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.standard_normal((64, 96)), random.standard_normal((96, 80))


def _wrongly(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], None]) -> None:
    """Has each product be changed before it is looked at."""
    multiplied = DeviceProducts._multiplied

    def changed(self: DeviceProducts, *arguments: Any) -> np.ndarray:
        result = multiplied(self, *arguments)
        change(result)
        return result

    monkeypatch.setattr(DeviceProducts, "_multiplied", changed)


def test_a_product_is_that_of_numpy() -> None:
    device = _opened()
    for seed in range(3):
        a, b = _matrices(seed)
        for other, its_own in ((b, a), (np.ascontiguousarray(b.T).T, a), (b, a[::2])):
            product = device.product(its_own, other)
            assert product is not None
            np.testing.assert_allclose(product, its_own @ other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1e-150, 1.0, 1e140])
def test_numbers_of_any_size_are_checked_by_their_own(size: float) -> None:
    a, b = _matrices()
    product = _opened().product(a * size, b)
    assert product is not None
    np.testing.assert_allclose(product / size, a @ b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("off", [1e-7, -1.0, np.nan, np.inf])
def test_one_wrong_entry_ends_the_use_of_a_device(monkeypatch: pytest.MonkeyPatch, off: float) -> None:
    device, (a, b) = _opened(), _matrices()
    with monkeypatch.context() as patch:
        _wrongly(patch, lambda result: result.__setitem__((7, 5), result[7, 5] + off))
        assert device.product(a, b) is None
    assert device.product(a, b) is None and not device.wait()


def test_two_wrong_entries_do_not_make_up_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(result: np.ndarray) -> None:
        result[3, [1, 2]] = result[3, [2, 1]]

    device, (a, b) = _opened(), _matrices()
    _wrongly(monkeypatch, exchanged)
    assert device.product(a, b) is None and not device.wait()


_SCALED: dict[str, Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "columns": lambda random, a, b: (a, b * 10 ** random.uniform(-12, 12, b.shape[1])),
    "rows": lambda random, a, b: (a / (scales := 10 ** random.uniform(-9, 9, b.shape[0])), b * scales[:, None]),
    "rows of the first": lambda random, a, b: (a * 10 ** random.uniform(-12, 12, a.shape[0])[:, None], b),
    "one number": lambda random, a, b: (a, b * np.where(np.arange(b.size).reshape(b.shape) == 77, 1e12, 1.0)),
    "huge": lambda random, a, b: (a * 1e170, b * 1e100),
    "tiny": lambda random, a, b: (a * 1e-170, b),
}
"""Operands in which what is wrong in small numbers could hide behind large ones."""
_WRONG: dict[str, Callable[[np.ndarray], object]] = {
    "one entry": lambda result: result.__setitem__((7, 5), result[7, 5] * (1 + 1e-6)),
    "a column": lambda result: np.multiply(result[:, 5], 1 + 1e-6, out=result[:, 5]),
    "columns exchanged": lambda result: result.__setitem__((slice(None), [1, 2]), result[:, [2, 1]]),
    "rows exchanged": lambda result: result.__setitem__([1, 2], result[[2, 1]]),
    "a tile left out": lambda result: result.__setitem__((slice(-8, None), slice(-8, None)), 0.0),
    "zeros": lambda result: result.fill(0.0),
    "negative": lambda result: np.negative(result, out=result),
    "all a little too large": lambda result: np.multiply(result, 1 + 1e-7, out=result),
}


@pytest.mark.parametrize("wrong", _WRONG)
@pytest.mark.parametrize("scaled", _SCALED)
def test_nothing_wrong_hides_behind_large_numbers(monkeypatch: pytest.MonkeyPatch, scaled: str, wrong: str) -> None:
    operands = _SCALED[scaled](np.random.default_rng(1), *_matrices())
    product = _opened().product(*operands)
    assert product is not None, "a right one is taken"
    off = np.abs(product - operands[0] @ operands[1])
    assert np.all(off <= 1e-13 * (np.abs(operands[0]) @ np.abs(operands[1])))
    _wrongly(monkeypatch, _WRONG[wrong])
    device = _opened()
    assert device.product(*operands) is None and not device.wait()


@pytest.mark.parametrize("sizes", [(1e200, 1e200), (1e-200, 1e-120), (1.0, 1e200), (1.0, 1e-170), (0.0, 1.0)])
def test_products_beyond_what_can_be_checked_blame_no_device(sizes: tuple[float, float]) -> None:
    device, (a, b) = _opened(), _matrices()
    with np.errstate(all="ignore"):
        product = device.product(a * sizes[0], b * sizes[1])
    assert (product is None) == (sizes[0] > 0.0) and device.wait()
    assert device.product(a, b) is not None


def test_what_is_no_number_is_multiplied_by_the_processor() -> None:
    device, (a, b) = _opened(), _matrices()
    a[3, 4] = np.inf
    assert device.product(a, b) is None
    a[3, 4] = 1.0
    assert device.product(a, b) is not None, "the device was not wrong"


def test_a_matrix_is_given_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = list[tuple[int, ...]]()
    plain = products._DeviceMatrix

    def noted(matrix: np.ndarray, value: Any) -> Any:
        held.append(matrix.shape)
        return plain(matrix, value)

    monkeypatch.setattr(products, "_DeviceMatrix", noted)
    device, (a, b) = _opened(), _matrices()
    for _ in range(3):
        assert device.product(a, b.T.copy().T[:, :40]) is not None and device.product(a, b) is not None
        assert device.product(a, b) is not None and device.product(a[:5], b[:]) is not None
    assert len(held) == 6


def test_a_device_that_fails_leaves_it_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: Session, binding: Any) -> None:
        raise RuntimeFailure("out of memory")

    device, (a, b) = _opened(), _matrices()
    monkeypatch.setattr(Session, "run_with_iobinding", raises)
    assert device.product(a, b) is None


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_device_that_does_not_open_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(products.PROVIDERS, "cpu", "NoSuchProvider")
    device = DeviceProducts("cpu")
    assert not device.wait() and device.product(*_matrices()) is None


@pytest.mark.parametrize("free", [1, 14])
def test_large_products_in_float64_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(threads, "LEAST_MULTIPLICATIONS", 64 * 96 * 80)
    asked = list[tuple[int, ...]]()
    plain = DeviceProducts.product

    def noted(self: DeviceProducts, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        asked.append(a.shape)
        return plain(self, a, b)

    monkeypatch.setattr(DeviceProducts, "product", noted)
    a, b = _matrices()
    pool = SideBySide(2, free, _opened())
    arithmetic = SharedReal(np.float64, pool)
    np.testing.assert_allclose(arithmetic.matmul(a.reshape(4, 16, 96), b).reshape(64, 80), a @ b, rtol=0, atol=1e-12)
    assert asked == [(64, 96)]
    arithmetic.matmul(a[:32], b)  # a small one
    arithmetic.matmul(a.reshape(2, 32, 96), np.stack([b, b]))  # of a stack
    SharedReal(np.float32, pool).matmul(a.astype(np.float32), b.astype(np.float32))
    assert asked == [(64, 96)]
    pool.close()
