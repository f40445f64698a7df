"""Large products of the float64 reference, made by a GPU and checked by the processor.

A product of an m×k by a k×n matrix takes a processor 2mkn operations, and to check one some times mk + kn + mn: both sides are
multiplied by a random vector (R. Freivalds, Probabilistic machines can use less running time, IFIP 1977). So nothing is believed
of the device that is going to run what the reference is for.

What is wrong in small numbers must not hide behind large ones, such as the columns or rows of a weight that others scale back:
columns are weighed by their norms, and a row of the product by what the operands' entries that meet there can make of it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx.parser import parse_model

from rewriter.runtime_env import PROVIDERS, RuntimeFailure, Session, bare_session, calling_runtime

__all__ = ["LEAST_MULTIPLICATIONS", "DeviceProducts"]

LEAST_MULTIPLICATIONS = 1 << 29
"""Of a product that is given away: 20 ms of a core, or as long as its operands take to the device."""

_FAR = 1e-11
"""Difference up to which two sums of the same numbers are equal, of the norms of what they add up."""
_TELLING = 1e-290, 1e290
"""Numbers between which sums and products of such neither overflow nor lose digits: beyond them no device is said to be wrong."""
_AT_ONCE = 1 << 18
"""Entries of a matrix of which what is made of them on the way is in a processor's cache."""
_PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
product (double[m,k] a, double[k,n] b) => (double[m,n] y) { y = MatMul(a, b) }"""


class DeviceProducts:
    """Products on a provider, which is opened by a thread of its own; until it is, nothing is given to it.

    The other operand, a weight, stays on the device until another one comes. Any number of threads may ask at the same time.

    Args:
        provider: ``cuda``; or ``cpu``, for tests.
    """

    def __init__(self, provider: str = "cuda") -> None:
        self._device = provider
        self._lock = threading.Lock()
        self._held: _DeviceMatrix | None = None
        self._session: Future[Session] = Future()
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        try:
            options = ort.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            names = list(dict.fromkeys((PROVIDERS[self._device], PROVIDERS["cpu"])))
            model = parse_model(_PRODUCT)
            session = Session(bare_session(model.SerializeToString(), options, names, self._device), self._device)
            two = np.ones((2, 2))
            session.run(None, {"a": two, "b": two})  # libraries of the device are loaded by the first
            self._session.set_result(session)
        except BaseException as problem:  # the processor makes them, as it does without a device
            self._session.set_exception(problem)

    def wait(self) -> bool:
        """Waits until it is known whether there is a device; whether there is."""
        return self._session.exception() is None

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """``a @ b`` of two float64 matrices; ``None`` where the processor has to make it.

        That is where the device is not open, is out of memory or gave another product, which ends its use, and where entries of
        the operands or of the result are no numbers or infinite.
        """
        if not self._session.done() or self._session.exception() is not None:
            return None
        try:
            held = self._holding(b)
            result = self._multiplied(self._session.result(), np.ascontiguousarray(a), held)
        except RuntimeFailure:
            return None
        with np.errstate(all="ignore"):
            most = held.most(a)
            off = np.abs(result @ held.vector - a @ held.image)
            are_right = np.isfinite(most) & (off <= most)
        if np.all(are_right):
            return result
        if np.any(~are_right & held.tells(most)):
            self._session = Future()
            self._session.set_exception(RuntimeFailure("the device multiplies wrongly"))
        return None

    def _holding(self, b: np.ndarray) -> _DeviceMatrix:
        """Has the device hold a matrix. Raises RuntimeFailure."""
        with self._lock:
            if self._held is None or self._held.place != _place(b):
                self._held = None  # its memory is free for the next
                with calling_runtime(self._device):
                    self._held = _DeviceMatrix(b, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(b), self._device, 0))
            return self._held

    def _multiplied(self, session: Session, a: np.ndarray, held: _DeviceMatrix) -> np.ndarray:
        """Raises RuntimeFailure."""
        result = np.empty((a.shape[0], held.matrix.shape[1]))
        with calling_runtime(self._device):
            binding = session.io_binding()
            binding.bind_cpu_input("a", a)
            binding.bind_ortvalue_input("b", held.value)
            binding.bind_output("y", "cpu", 0, np.float64, result.shape, result.ctypes.data)
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
        return result


def _place(matrix: np.ndarray) -> object:
    """The part of memory that an array is: the same of two transpositions of one array, as long as one of them is there."""
    return matrix.ctypes.data, matrix.shape, matrix.strides


class _DeviceMatrix:
    """A matrix on the device, and what checks its products.

    Attributes:
        matrix: as it was given, which keeps its place.
        place: of that in memory.
        value: on the device.
        vector: a random entry for each column, between 1 and 2 or -2 and -1, by the norm of the column.
        image: the matrix times that.
    """

    def __init__(self, matrix: np.ndarray, value: Any) -> None:
        self.matrix, self.place, self.value = matrix, _place(matrix), value
        rows, columns = matrix.shape
        random = np.random.default_rng()
        self.vector = random.uniform(1.0, 2.0, columns) * random.choice((-1.0, 1.0), columns)
        self.image, squares, norms = np.zeros(rows), np.zeros(rows), np.empty(columns)
        step = max(_AT_ONCE // rows, 1)
        with np.errstate(all="ignore"):
            for part in (slice(start, start + step) for start in range(0, columns, step)):
                squared = np.square(matrix[:, part])
                of_columns = np.ones(rows) @ squared
                of_columns[of_columns == 0.0] = 1.0
                norms[part] = np.sqrt(of_columns)
                self.vector[part] /= norms[part]
                self.image += matrix[:, part] @ self.vector[part]
                squares += squared @ (1.0 / of_columns)
            self._weights = np.sqrt(squares)
        self._norms = float(norms.min()), float(norms.max())

    def most(self, a: np.ndarray) -> np.ndarray:
        """How far each row of a product, times :attr:`vector`, may be from that of an operand times :attr:`image`.

        Of an entry of that operand, which meets a row of the matrix, that is by the norm of the row, the columns' norms being 1.
        """
        step = max(_AT_ONCE // a.shape[1], 1)
        parts = (a[start : start + step] for start in range(0, a.shape[0], step))
        return _FAR * np.concatenate([np.abs(part) @ self._weights for part in parts])

    def tells(self, most: np.ndarray) -> np.ndarray:
        """Of which rows that are farther off than that the device is at fault: their numbers are neither huge nor tiny."""
        least, greatest = _TELLING
        return (most * self._norms[0] > least) & (most * self._norms[1] < greatest)
