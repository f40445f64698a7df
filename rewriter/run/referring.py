"""The reference of a run, in a process of its own where it takes long: it takes no turns of the search's, nor the search of its.

A thread that calls NumPy waits for its turn after each call, and whoever computes in Python waits for it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from functools import partial

import numpy as np

from mugraph.deadline import heed
from mugraph.files import Scratch
from mugraph.onnx import Model, ReadFrom
from mugraph.ops import get_operator
from mugraph.terms.shape import Dim, ShapeError, Undecided, type_at
from mugraph.terms.term import attr_symbols, bind_attrs
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.reference import NoReference, NoRoom, References, bind_shape, reference_run
from rewriter.reference.process import received, serve
from rewriter.run.background import in_background

__all__ = ["Ahead", "operations", "referred"]

LONG = 2e10
"""Arithmetic operations on all inputs together from which on a process pays: it starts in as long as one core takes for them."""

_LONG_ON_DEVICE = 1.5e11
"""Arithmetic operations on two inputs from which on a GPU pays, which opens in as long as ten cores take for five inputs."""

_ASKING = 0.1
"""Seconds after which who waits for the process asks whether somebody still wants its answer."""

_KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""Memory that one tensor leaves is the next one's in the process. By itself glibc gives that of large ones back to the system at
once, and has it filled with zeros page by page for the next: more than a quarter of the processor time for RoBERTa."""


class Ahead:
    """The process of a reference that is going to be asked for, begun while its model is read and cleaned up.

    Until it has imported what it needs it takes as long as many a reference itself. Close it; each is begun for one reference.

    Args:
        model: as it came; the reference is that of a model made of it, on two inputs at least.
        sizes: of its dimension symbols.
        is_needed: whether the run makes a reference at all.
        has_device: whether there is a GPU that can make large products of it.

    Attributes:
        on_device: whether that makes some.
    """

    def __init__(self, model: Model, sizes: Mapping[str, Dim], *, is_needed: bool, has_device: bool) -> None:
        self._worker: Worker | None = None
        operations_on_two = 2 * _at_sizes(model, sizes)
        self._pays = is_needed and operations_on_two >= LONG
        self.on_device = has_device and self._pays and operations_on_two >= _LONG_ON_DEVICE
        self.begin_again()

    def begin_again(self) -> None:
        """Begins another one where it was taken, for the reference of another model that is made of the same."""
        if self._pays and self._worker is None:
            with suppress(OSError):  # who asks for the reference is told
                self._worker = _begun()

    def taken(self) -> Worker | None:
        """The process, once, for who closes it then; ``None`` where there is none."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """Ends it, where nobody took it."""
        if (worker := self.taken()) is not None:
            worker.close()


def _begun() -> Worker:
    """Raises OSError."""
    return Worker(serve, environment=_KEPT, is_ahead=True)


def referred(
    model: Model,
    feeds: Sequence[Mapping[str, np.ndarray]],
    is_wanted: Callable[[], bool] = lambda: True,
    ahead: Ahead | None = None,
) -> References:
    """As :func:`rewriter.reference.reference_run`. Raises NoRoom, too, where no process can be started or one does not answer.

    Args:
        ahead: a process for it, if one was begun; by itself no device makes products.
    """
    if operations(model, feeds) < LONG:
        return reference_run(model, feeds, is_wanted)
    with Scratch() as scratch:
        path = scratch.path / "outputs"
        try:
            worker = (ahead and ahead.taken()) or _begun()
        except OSError as problem:
            raise NoRoom(f"no process can be started for the reference in float64 ({problem.strerror})") from None
        with closing(worker):
            on_device = ahead is not None and ahead.on_device
            arguments = ReadFrom.of(model), feeds, str(path), on_device
            asked = in_background(partial(worker.call, *arguments))  # it reads when it has imported
            while wait([asked], _ASKING).not_done:
                _check(is_wanted)
            asked.result()
            while worker.is_awaited(_ASKING):
                _check(is_wanted)
            try:
                answer = worker.answer()
            except WorkerDied:
                raise NoRoom("the process that made the reference in float64 was ended, for want of memory perhaps") from None
        return received(answer, path)


def _check(is_wanted: Callable[[], bool]) -> None:
    """Raises BudgetSpent where the time is over, NoReference where nobody asks any more."""
    heed()
    if not is_wanted():
        raise NoReference("nobody asks for the reference any more")


def operations(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> int:
    """The arithmetic operations of a model on all inputs, as far as records and sizes tell; each body is counted once."""
    return sum(_at_sizes(model, _sizes(model, feed)) for feed in feeds)


def _sizes(model: Model, feed: Mapping[str, np.ndarray]) -> Mapping[str, Dim]:
    """Of dimension symbols on an input."""
    sizes: dict[str, Dim] = {}
    for name, array in feed.items():
        bind_shape(sizes, model.inputs.get(name), np.shape(array))
    return sizes


def _at_sizes(model: Model, sizes: Mapping[str, Dim]) -> int:
    total = 0
    for node in model.graph.nodes():
        types = [[type_at(model.graph.type(value), sizes) for value in values] for values in (node.inputs, node.values)]
        inputs, outputs = ([type_ for type_ in each if type_ is not None] for each in types)
        attrs = dict(bind_attrs(node.attrs, sizes))
        is_known = len(inputs) + len(outputs) == len(node.inputs) + len(node.values) and not any(
            map(attr_symbols, attrs.values())
        )
        if node.is_opaque or not is_known:
            continue
        record = get_operator(node.op)
        with suppress(Undecided, ShapeError):
            total += record.flops({**record.defaults, **attrs}, inputs, outputs)
    return total
