"""Large products of the float64 reference, made by a GPU and checked by the processor.

A product of an m×k by a k×n matrix takes a processor 2mkn operations, and to check one takes 2(mk + kn + mn): both sides are
multiplied by a random vector (R. Freivalds, Probabilistic machines can use less running time, IFIP 1977). So nothing is believed
of the device that is going to run what the reference is for.
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
"""Difference, of the product of both operands' norms, up to which two sums of the same numbers are equal."""
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
            scale = np.sqrt(np.einsum("ij,ij->i", a, a)) * held.norm
            off = np.abs(result @ held.vector - a @ held.image)
        if np.all(off <= _FAR * scale):
            return result
        if np.all(np.isfinite(scale)):  # its operands are numbers, and the product is another one
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
        vector: a random one of as many entries as the matrix has columns.
        image: the matrix times that.
        norm: of the matrix.
    """

    def __init__(self, matrix: np.ndarray, value: Any) -> None:
        self.matrix, self.place, self.value = matrix, _place(matrix), value
        self.vector = np.random.default_rng().standard_normal(matrix.shape[1])
        with np.errstate(all="ignore"):
            self.image, self.norm = matrix @ self.vector, float(np.linalg.norm(matrix))
