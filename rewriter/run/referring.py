"""The reference of a run, in processes of its own where it takes long: it takes no turns of the search's, nor the search of its.

A thread that calls NumPy waits for its turn after each call, and whoever computes in Python waits for it as well. So do threads
of one reference for each other: where there are many cores, several processes share the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mugraph.deadline import heed
from mugraph.files import Scratch
from mugraph.limited import memory_limit
from mugraph.onnx import Model, ReadFrom
from mugraph.ops import get_operator
from mugraph.terms.shape import Dim, ShapeError, Undecided, type_at
from mugraph.terms.term import attr_symbols, bind_attrs
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.reference import NoReference, NoRoom, References, bind_shape, reference_run
from rewriter.reference.process import Answer, received, serve
from rewriter.reference.repeats import Repeats
from rewriter.reference.threads import free_cores
from rewriter.run.background import in_background

__all__ = ["Ahead", "operations", "referred"]

LONG = 2e10
"""Arithmetic operations on all inputs together from which on a process pays: it starts in as long as one core takes for them."""

_LONG_FOR_ONE = 4e10
"""Arithmetic operations on two inputs from which on several processes pay, of which each imports for a second of a core."""

_FOR_AN_ENTRY = 300
"""Those on one input, for each entry of the weights, from which on they do: each process widens all of them for itself."""

_CORES, _MOST, _SHARE = 3, 5, 0.25
"""Cores that each of several processes has, about, how many there are at most, and the share of memory for their weights."""

_LONG_ON_DEVICE, _LONG_FOR_A_CORE = 1.5e11, 5e10
"""Arithmetic operations on two inputs, and those for each core, from which on a GPU pays.

It opens in as long as ten cores take for five inputs, and its products are asked for by threads of one process."""

_ASKING = 0.1
"""Seconds after which who waits for the process asks whether somebody still wants its answer."""

_KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""Memory that one tensor leaves is the next one's in the process. By itself glibc gives that of large ones back to the system at
once, and has it filled with zeros page by page for the next: more than a quarter of the processor time for RoBERTa."""


class Ahead:
    """The processes of a reference that is going to be asked for, begun while its model is read and cleaned up.

    Until they have imported what they need they take as long as many a reference itself. Close it; they are begun for one
    reference.

    Args:
        model: as it came; the reference is that of a model made of it, on two inputs at least.
        sizes: of its dimension symbols.
        is_needed: whether the run makes a reference at all.
        has_device: whether there is a GPU that can make large products of it.

    Attributes:
        on_device: whether that makes some.
    """

    def __init__(self, model: Model, sizes: Mapping[str, Dim], *, is_needed: bool, has_device: bool) -> None:
        self._workers: list[Worker] = []
        long = 2 * _at_sizes(model, sizes)
        pays = is_needed and long >= LONG
        self.on_device = has_device and pays and long >= max(_LONG_ON_DEVICE, _LONG_FOR_A_CORE * free_cores())
        self._count = 0 if not pays else 1 if self.on_device else _processes(model, long)
        self.begin_again()

    def begin_again(self) -> None:
        """Begins others where they were taken, for the reference of another model that is made of the same."""
        with suppress(OSError):  # who asks for the reference is told
            while len(self._workers) < self._count:
                self._workers.append(_begun())

    def taken(self) -> list[Worker]:
        """The processes, once, for who closes them then."""
        workers, self._workers = self._workers, []
        return workers

    def close(self) -> None:
        """Ends those that nobody took."""
        for worker in self.taken():
            worker.close()


def _begun() -> Worker:
    """Raises OSError."""
    return Worker(serve, environment=_KEPT, is_ahead=True)


def _processes(model: Model, long: float) -> int:
    """How many processes share the inputs: one where cores are few, or where each could not hold the largest weight.

    A model that came from no file is sent to each: it is there in three copies, as it leaves, as it arrives and as it is read.

    Args:
        long: operations on two inputs.
    """
    weights = [constant.type.size() for constant in model.tables.constants.values()]
    if long < max(_LONG_FOR_ONE, 2 * _FOR_AN_ENTRY * sum(weights)):
        return 1
    each, room = 8 * max(weights, default=0) + 3 * len(model.weights.memory), memory_limit()
    held = _MOST if room is None else int(_SHARE * room) // (each + 1)
    return max(min(_MOST, round(free_cores() / _CORES), held), 1)


def referred(
    model: Model,
    feeds: Sequence[Mapping[str, np.ndarray]],
    is_wanted: Callable[[], bool] = lambda: True,
    ahead: Ahead | None = None,
) -> References:
    """As :func:`rewriter.reference.reference_run`. Raises NoRoom, too, where no process can be started or one does not answer.

    Args:
        ahead: processes for it, if some were begun; by itself it is one, and no device makes products.
    """
    if operations(model, feeds) < LONG:
        return reference_run(model, feeds, is_wanted)
    with Scratch() as scratch, ExitStack() as closing:
        try:
            workers = (ahead and ahead.taken()) or [_begun()]
        except OSError as problem:
            raise NoRoom(f"no process can be started for the reference in float64 ({problem.strerror})") from None
        for worker in workers:
            closing.callback(worker.close)
        reading, on_device = ReadFrom.of(model), ahead is not None and ahead.on_device
        shares, answers = _shared_out(feeds, len(workers)), list[tuple[_Portion, Worker, Path]]()
        asked = []
        for number, (share, worker) in enumerate(zip(shares, workers, strict=False)):
            path, chosen = scratch.path / f"outputs{number}", [feeds[at] for at in share.feeds]
            arguments = reading, chosen, str(path), on_device, share.cores if len(shares) > 1 else None
            asked.append(in_background(partial(worker.call, *arguments)))  # it reads when it has imported
            answers.append((share, worker, path))
        while wait(asked, _ASKING).not_done:
            _check(is_wanted)
        for sent in asked:
            sent.result()
        parts = list[tuple[_Portion, References]]()
        while answers:  # what one has not made, no other need go on for
            for asked_of in [*answers]:
                share, worker, path = asked_of
                if not worker.is_awaited(_ASKING / len(answers)):
                    answers.remove(asked_of)
                    parts.append((share, received(_answer(worker), path)))
                _check(is_wanted)
        return _joined(parts)


@dataclass(frozen=True, slots=True)
class _Portion:
    """What one process makes of a reference.

    Attributes:
        feeds: the numbers of its inputs.
        cores: that it has for them.
    """

    feeds: Sequence[int]
    cores: int


def _shared_out(feeds: Sequence[Mapping[str, np.ndarray]], count: int) -> list[_Portion]:
    """Inputs shared out among so many processes at most, of about as much work each, and cores by what each has to do."""
    work = [_entries(feed) for feed in feeds]
    chosen: list[list[int]] = [[] for _ in range(min(count, len(feeds)))]
    for number in sorted(range(len(feeds)), key=work.__getitem__, reverse=True):
        min(chosen, key=lambda numbers: sum(work[other] for other in numbers)).append(number)
    each = free_cores() / sum(work)
    return [_Portion(sorted(numbers), max(round(each * sum(work[number] for number in numbers)), 1)) for numbers in chosen]


def _entries(feed: Mapping[str, np.ndarray]) -> float:
    """Entries of an input, of equal parts those of one: the work that it makes is about as much as that of others times this."""
    repeats, entries = Repeats.of(feed), 1 + sum(map(np.size, feed.values()))
    return entries if repeats is None else entries * repeats.different / len(repeats.which)


def _joined(parts: Sequence[tuple[_Portion, References]]) -> References:
    """The references of all inputs, of those of some."""
    outputs = {at: made for share, part in parts for at, made in zip(share.feeds, part.outputs, strict=True)}
    entered = frozenset[int]().union(*(part.entered for _, part in parts))
    sizes = next((part.sizes for share, part in parts if 0 in share.feeds), {})
    return References([outputs[at] for at in sorted(outputs)], entered, sizes)


def _answer(worker: Worker) -> Answer:
    """What a process answers. Raises NoRoom where it ended, and BudgetSpent."""
    try:
        answer: Answer = worker.answer()
    except WorkerDied:
        raise NoRoom("the process that made the reference in float64 was ended, for want of memory perhaps") from None
    return answer


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
