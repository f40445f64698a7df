"""Threads that compute side by side: what the linear algebra behind NumPy starts by itself is held back meanwhile."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from mugraph.domains.real import Real
from rewriter.reference.products import LEAST_MULTIPLICATIONS, DeviceProducts
from rewriter.runtime_env import cores

__all__ = ["SharedReal", "SideBySide", "free_cores", "side_by_side"]

_T = TypeVar("_T")

_LOCK = threading.Lock()
_LIMITS: dict[object, threadpool_limits] = {}
"""The one limit, by the blocks that go on."""
_LEFT = 2
"""Cores that are left to whoever waits for the results, and to what that does meanwhile."""
_SHARED = 1 << 25
"""Multiplications of a product from which on it is shared out: some milliseconds of a core, a tenth to hand out the parts."""
_COSTLY = 1 << 18
"""Entries from which on whatever is computed entry by entry, or row by row, is."""
_EVEN = 4
"""Positions along an axis for each share that make shares of about the same size."""


def free_cores() -> int:
    """Cores that references may take together."""
    return max(cores() - _LEFT, 1)


class SideBySide:
    """Threads for some runs at the same time, and for parts of what one of them computes.

    Args:
        runs: how many go on at the same time.
        free: cores that they share.
        device: that makes large products, if any.

    Attributes:
        shares: parts that one of them has of what it computes.
    """

    def __init__(self, runs: int, free: int, device: DeviceProducts | None = None) -> None:
        self.device = device
        self._free = free
        self.shares = max(self._free // runs, 1)
        self._all = self.shares * runs
        self._runs = ThreadPoolExecutor(min(runs, cores()))
        self._parts = ThreadPoolExecutor(self._all)
        self._ahead = ThreadPoolExecutor(1)

    def run(self, work: Callable[[Any], None], runs: Any) -> None:
        """Does some work for each run, all at the same time."""
        list(self._runs.map(work, runs))

    def of_run(self, share: float) -> SideBySide:
        """The same threads for a run that has another share of all work than the others."""
        threads = copy(self)
        threads.shares = max(int(self._free * share), 1)
        return threads

    def in_parts(self, compute: Callable[[slice], None], length: int, *, alone: bool = False) -> None:
        """Does some work for each part of so many rows, all at the same time.

        Args:
            alone: no other run has parts to do at this time.
        """
        count = self._all if alone else self.shares
        ends = [length * i // count for i in range(count + 1)]
        list(self._parts.map(compute, map(slice, ends, ends[1:])))

    def ahead(self, work: Callable[[], _T]) -> Future[_T]:
        """The result of some work, by one more thread, which has parts done by the same as all."""
        return self._ahead.submit(work)

    def close(self) -> None:
        """Ends the threads when they are done."""
        self._ahead.shutdown()
        self._runs.shutdown()
        self._parts.shutdown()


class SharedReal(Real):
    """NumPy arithmetic in which threads share large products, and of large tensors what is computed entry by entry or row by row.

    Args:
        dtype: as of :class:`mugraph.domains.real.Real`.
        threads: that share them; ``None`` for the calling one alone.
    """

    def __init__(self, dtype: Any = np.float64, threads: SideBySide | None = None) -> None:
        super().__init__(dtype)
        self._threads = threads if threads is not None and threads.shares > 1 else None
        self._device = threads.device if threads is not None and dtype == np.float64 else None

    def _filled(self, compute: Callable[..., Any], operands: Sequence[Any], result: Any, axis: int) -> Any:
        """The result, whose parts along an axis threads compute of those of the operands.

        Args:
            compute: of parts of the operands and of the result, which it fills.
            axis: counted from the end, as operands are broadcast. The result is longer than 1 along it, or all would fill it.
        """
        assert self._threads is not None and result.shape[axis] > 1, "an axis was found for them"

        def fill(part: slice) -> None:
            with np.errstate(all="ignore"):
                compute(*(_along(operand, axis, part) for operand in operands), _along(result, axis, part))

        self._threads.in_parts(fill, result.shape[axis])
        return result

    def _axis(self, shape: Sequence[int], axes: Sequence[int], is_large: bool) -> int | None:
        """The axis along which threads share a result, counted from the end; ``None`` where one computes it alone.

        Args:
            axes: that can be shared, outermost first.
        """
        if self._threads is None or not is_large:
            return None
        shares = self._threads.shares
        longest = max(axes, key=shape.__getitem__, default=None)
        if longest is None or shape[longest] < shares:
            return None
        return next((axis for axis in axes if shape[axis] >= _EVEN * shares), longest)

    def _axis_of_entries(self, shape: Sequence[int], operands: Sequence[Any], reduced: Collection[int] = ()) -> int | None:
        """As :meth:`_axis`, of what is computed entry by entry but for axes that are reduced."""
        is_large = all(operand.dtype == self.dtype for operand in operands) and math.prod(shape) >= _COSTLY
        return self._axis(shape, [axis for axis in range(-len(shape), 0) if axis not in reduced], is_large)

    def _binary(self, function: Callable[..., np.ndarray], a: Any, b: Any) -> Any:
        if self._threads is None or function is np.matmul:
            return super()._binary(function, a, b)
        shape = np.broadcast_shapes(a.shape, b.shape)
        axis = self._axis_of_entries(shape, (a, b))
        if axis is None:
            return super()._binary(function, a, b)
        none = np.empty(0, self.dtype)
        return self._filled(lambda a, b, out: function(a, b, out=out), (a, b), np.empty(shape, function(none, none).dtype), axis)

    def matmul(self, a: Any, b: Any) -> Any:
        if a.dtype != b.dtype or a.ndim < 2 or b.ndim < 2:
            return super().matmul(a, b)
        if self._device is not None and b.ndim == 2 and a.size * b.shape[1] >= LEAST_MULTIPLICATIONS:
            product = self._device.product(a.reshape(-1, a.shape[-1]), b)
            if product is not None:
                return product.reshape(*a.shape[:-1], b.shape[1])
        if self._threads is None:
            return super().matmul(a, b)
        is_large = a.size * b.shape[-1] >= _SHARED
        if b.ndim == 2 and is_large:
            return self._rows_or_columns(a, b)
        shape = (*a.shape[:-1], b.shape[-1])
        axis = self._axis(shape, range(-a.ndim, -2), is_large and a.shape[:-2] == b.shape[:-2])
        if axis is None:
            return super().matmul(a, b)
        return self._filled(lambda a, b, out: np.matmul(a, b, out=out), (a, b), np.empty(shape, a.dtype), axis)

    def _rows_or_columns(self, a: Any, b: Any) -> Any:
        """A product by one matrix, of which threads have some rows each, or some columns where rows are few.

        A step of decoding is one row, and its head has as many columns as there are words.
        """
        assert self._threads is not None, "it is shared"
        rows, product = a.reshape(-1, a.shape[-1]), np.empty((*a.shape[:-1], b.shape[1]), a.dtype)
        result = product.reshape(-1, b.shape[1])
        if len(rows) >= self._threads.shares:
            self._filled(lambda part, out: np.matmul(part, b, out=out), (rows,), result, -2)
        elif b.shape[1] >= self._threads.shares:
            self._filled(lambda part, out: np.matmul(rows, part, out=out), (b,), result, -1)
        else:
            np.matmul(rows, b, out=result)
        return product

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduced(super().sum, a, axes, keepdims)

    def mean(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduced(super().mean, a, axes, keepdims)

    def max(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduced(super().max, a, axes, keepdims)

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduced(super().min, a, axes, keepdims)

    def _reduced(self, reduce: Callable[..., Any], a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        axis = None if self._threads is None else self._axis_of_entries(a.shape, (a,), axes)
        if axis is None:
            return reduce(a, axes, keepdims)
        result = np.empty([1 if position - a.ndim in axes else size for position, size in enumerate(a.shape)], a.dtype)
        self._filled(lambda part, out: np.copyto(out, reduce(part, axes, True)), (a,), result, axis)
        return result if keepdims else result.squeeze(axes)

    def apply(self, function: str, *operands: Any) -> Any:
        if self._threads is None:
            return super().apply(function, *operands)
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        axis = self._axis_of_entries(shape, operands)
        if axis is None:
            return super().apply(function, *operands)
        plain = super().apply
        return self._filled(
            lambda *parts: np.copyto(parts[-1], plain(function, *parts[:-1])), operands, np.empty(shape, self.dtype), axis
        )


def _along(operand: Any, axis: int, part: slice) -> Any:
    """A part of an operand along an axis that counts from the end; all of it where it is repeated along that."""
    if operand.ndim < -axis or operand.shape[axis] == 1:
        return operand
    return operand[(slice(None),) * (operand.ndim + axis) + (part,)]


@contextmanager
def side_by_side(runs: int, device: DeviceProducts | None = None, free: int | None = None) -> Iterator[SideBySide | None]:
    """Threads for runs that compute with NumPy at the same time; ``None`` for a single one that has all cores, which needs none.

    Each product on one core, or its parts on some (:class:`SharedReal`): threads of the library that wait for each other, more of
    them than there are cores, took eight times as long for BERT-base on a busy machine. The limit holds for the process, and
    ends with the last block.

    Args:
        device: as of :class:`SideBySide`.
        free: as of that, where other processes have the rest; by default all of :func:`free_cores`.
    """
    if runs < 2 and free is None:
        yield None
        return
    block = object()
    try:
        with _LOCK:
            _LIMITS[block] = next(iter(_LIMITS.values()), None) or threadpool_limits(1, user_api="blas")
        threads = SideBySide(runs, free_cores() if free is None else free, device)
        try:
            yield threads
        finally:
            threads.close()
    finally:
        with _LOCK:
            limit = _LIMITS.pop(block, None)
            if limit is not None and not _LIMITS:
                limit.restore_original_limits()
