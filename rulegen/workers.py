"""Workers: where units of work are done, in this process, in others of this machine, or on a cluster of machines.

A unit is a function of a module and an argument that can be pickled; what it gives depends on these alone. So it may be done
twice, by whomever: that of a worker that is lost is done again, and the outcome is the same whatever the number of workers.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rulegen.journal import generator_digest
from rules_db.databases import PATIENCE
from rules_db.entries import unproved
from rules_db.files import StoreError
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = [
    "Cluster",
    "Here",
    "Processes",
    "UnitWorkers",
    "begin_worker",
    "interrupts_later",
    "new_pool",
    "open_workers",
    "sent_by",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")
_S = TypeVar("_S")

_MOST_LOSSES = 3
"""Pools that may break one after the other without a unit done: then it is the unit that breaks them."""


class UnitWorkers(ABC):
    """Does units of work.

    Attributes:
        count: units that are worth having at the same time.
        are_own: whether they are this process and those that it made, whose results need no check.
        supply: asks for further units of what may be of use later, and says whether there are any. Processes of this machine
            call it where they are about to have nothing to do while this one waits for them.
    """

    count = 1
    are_own = False
    supply: Callable[[], bool] = staticmethod(lambda: False)

    @abstractmethod
    def map(self, function: Callable[[_T], _R], units: Sequence[_T]) -> Iterator[_R]:
        """What a function gives of each unit, in their order.

        Other processes begin at once; this one does when the first result is asked for.
        """

    @contextmanager
    def supplied(self, supply: Callable[[], bool]) -> Iterator[None]:
        """Has :attr:`supply` meanwhile."""
        self.supply = supply
        try:
            yield
        finally:
            del self.supply

    def wants(self, under_way: int) -> bool:
        """Whether to ask for a further unit of what may be of use later, where so many of them were asked for and not taken."""
        return under_way < _AHEAD * self.count

    def refresh(self) -> None:  # noqa: B027  # others make what they need for themselves
        """Has processes that are forked now do what is asked for from here on: they share all that this one has made."""

    def close(self) -> None:  # noqa: B027  # there may be none to end
        """Ends the workers that were started."""


_AHEAD = 8
"""Units for each worker that are under way: what a long one keeps waiting, others do not wait for."""


class Here(UnitWorkers):
    """This process."""

    are_own = True

    def map(self, function: Callable[[_T], _R], units: Sequence[_T]) -> Iterator[_R]:
        return map(function, units)


def sent_by(
    workers: UnitWorkers,
    function: Callable[[_T], _R],
    units: Sequence[_T],
    read: Callable[[_R], tuple[_S, Iterable[Rule]]],
    trust: Trust = Trust.PROVED,
) -> Iterator[_S]:
    """What workers, perhaps on other machines, give of units: read, and its rules checked, before anything is kept.

    The units are asked for at once, so that who asks may do something else until their results are needed, where workers begin
    then.

    Args:
        read: what a unit gave as its asker uses it, and the rules in it, which are asked for where they are checked.
        trust: how much a rule has to bring.

    Raises:
        StoreError: a worker sent what is no result, or a rule that does not stand; as the result is asked for.
    """
    results = workers.map(function, units)

    def checked() -> Iterator[_S]:
        for result in results:
            try:
                value, rules = read(result)
                for rule in () if workers.are_own else rules:
                    if reason := trust.refusal(rule.certificate.evidence) or unproved(rule):
                        raise StoreError(f"a worker sent rule {rule.id}, which is not taken: {reason}; {_OTHERS}")
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
                raise StoreError(f"a worker sent what is no result of {function.__name__} ({problem}); {_OTHERS}") from None
            yield value

    return checked()


_OTHERS = "run the command without these workers, or with another database"


_QUEUED = 2
"""Units for each process of this machine that are not done: one that it does, and one that it does next."""


class Processes(UnitWorkers):
    """Processes of this machine, started when they are needed.

    Args:
        jobs: how many.
    """

    are_own = True

    def __init__(self, jobs: int) -> None:
        self.count = jobs
        self._unfinished, self._ended = set[Future[Any]](), threading.Event()
        self._pool: ProcessPoolExecutor | None = None
        self._before: list[ProcessPoolExecutor] = []

    def map(self, function: Callable[[_T], _R], units: Sequence[_T]) -> Iterator[_R]:
        """Raises BrokenProcessPool, as a result is asked for, where processes die again and again."""
        if not units:
            return iter(())
        return self._given(function, units, *self._submitted(function, units, range(len(units))))

    def _submitted(
        self, function: Callable[[_T], _R], units: Sequence[_T], places: Iterable[int]
    ) -> tuple[ProcessPoolExecutor, dict[int, Future[_R]]]:
        futures: dict[int, Future[_R]] = {}
        with interrupts_later():  # until every process ignores them
            pool = self._started()
            with suppress(BrokenProcessPool):  # who asks for the first result meets it
                for place in places:
                    futures[place] = future = pool.submit(function, units[place])
                    self._unfinished.add(future)
                    future.add_done_callback(self._end)
        return pool, futures

    def _given(
        self, function: Callable[[_T], _R], units: Sequence[_T], pool: ProcessPoolExecutor, futures: dict[int, Future[_R]]
    ) -> Iterator[_R]:
        results: dict[int, _R] = {}
        losses, given = 0, 0
        while given < len(units):
            try:
                for place in range(given, len(units)):
                    if place not in results and place not in futures:
                        raise BrokenProcessPool("the pool broke before the unit was handed on")
                    result = results.pop(place) if place in results else self._awaited(futures[place])
                    given, losses = place + 1, 0
                    yield result
            except BrokenProcessPool:
                losses += 1
                if losses > _MOST_LOSSES:
                    raise
                logger.warning("a worker process died; the units that were not done are done again")
                done = {place: one for place, one in futures.items() if place >= given and one.done() and not one.exception()}
                results.update({place: one.result() for place, one in done.items()})
                if self._pool is pool:  # else other units broke it, and there is another by now
                    self.refresh()
                waiting = [place for place in range(given, len(units)) if place not in results]
                pool, futures = self._submitted(function, units, waiting)

    def _awaited(self, future: Future[_R]) -> _R:
        """The result of a unit; others are asked for while it is not there and processes would have nothing to do."""
        while not future.done():
            self._ended.clear()
            if not (self.wants(0) and self.supply()) and not future.done():
                self._ended.wait()
        return future.result()

    def _end(self, future: Future[Any]) -> None:
        self._unfinished.discard(future)
        self._ended.set()

    @property
    def unfinished(self) -> int:
        """Units that were asked for and are not done."""
        return len(self._unfinished)

    def wants(self, under_way: int) -> bool:
        """As above, by what processes have to do: what is done and not taken keeps none of them busy."""
        return self.unfinished < _QUEUED * self.count

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            gc.freeze()  # a search for garbage would touch, and so copy, all that a forked process shares with this one
            self._pool = new_pool(self.count)
        return self._pool

    def refresh(self) -> None:
        if self._pool is not None:
            self._before.append(self._pool)  # its processes do what was asked of them, and end with the others
            self._pool = None

    def close(self) -> None:
        self.refresh()
        for future in tuple(self._unfinished):
            future.cancel()
        for pool in self._before:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._before:
            gc.unfreeze()
        self._before.clear()


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Holds interrupts back: a process that is forked meanwhile never sees one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def new_pool(jobs: int, fresh: bool = False) -> ProcessPoolExecutor:
    """Processes of this machine, which leave interrupts to this one and end with it, however it ends.

    Args:
        fresh: they import everything anew, since this process has threads that do not survive a fork, as onnxruntime's.
    """
    # A fork spares the imports. Z3 and NumPy prepare their threads for it; system libraries do on Linux alone.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" and not fresh else "spawn")
    return ProcessPoolExecutor(jobs, context, begin_worker)


def begin_worker() -> None:
    """In a worker process: it ends when the first process tells it to, or is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()


def _end_with_the_first() -> None:
    first = multiprocessing.parent_process()
    assert first is not None, "this is a worker"
    first.join()
    os._exit(1)  # nobody is left to give a unit back to


class Cluster(UnitWorkers):
    """The workers of a Dask scheduler, which gives the units of a lost worker to others.

    A scheduler that restarts is waited for, and what it had not given back is done again. The workers must have the same
    package as this process.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.

    Raises:
        StoreError: Dask is not installed, or nothing answers there.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed  # imports a second long, for one option
        except ImportError:
            raise StoreError("--scheduler needs Dask: pip install 'onnx-superopt[cluster]'") from None
        self.address, self._dask = address, distributed
        self._client = self._connected(_CONNECT)

    def _connected(self, patience: float) -> Any:
        until = time.monotonic() + patience
        while True:
            try:
                client = self._dask.Client(self.address, timeout=_CONNECT, set_as_default=False)
                client.wait_for_workers(1, timeout=max(until - time.monotonic(), _CONNECT))
            except (OSError, TimeoutError, ValueError) as problem:
                if time.monotonic() > until:
                    way_out = "start 'dask scheduler' and 'dask worker' there, or give another address"
                    raise StoreError(f"{self.address}: no Dask scheduler with workers answers ({problem}); {way_out}") from None
                time.sleep(0.5)
                continue
            self.count = max(sum(client.nthreads().values()), 1)
            return client

    @property
    def dashboard(self) -> str:
        """The address of the cluster's own view of what goes on."""
        return str(self._client.dashboard_link)

    def map(self, function: Callable[[_T], _R], units: Sequence[_T]) -> Iterator[_R]:
        """Raises StoreError, as a result is asked for, where the workers have another package, or the scheduler stays away."""
        client, futures = self._client, dict[int, Any]()
        with suppress(OSError):  # who asks for the first result meets it
            self._ask(function, units, 0, futures)
        return self._given(function, units, client, futures)

    def _ask(self, function: Callable[[_T], _R], units: Sequence[_T], given: int, futures: dict[int, Any]) -> None:
        """Has as few units under way as are worth having."""
        for place in range(given, min(given + 4 * self.count, len(units))):
            if place not in futures:
                futures[place] = self._submitted(function, units[place])

    def _given(self, function: Callable[[_T], _R], units: Sequence[_T], client: Any, futures: dict[int, Any]) -> Iterator[_R]:
        given = 0
        while given < len(units):
            try:
                while given < len(units):
                    self._ask(function, units, given, futures)
                    result = futures.pop(given).result()
                    given += 1
                    yield result
            except _OtherCode as problem:
                raise StoreError(f"{self.address}: {problem}") from None
            except (OSError, self._dask.client.FutureCancelledError, self._dask.scheduler.KilledWorker) as problem:
                logger.warning("%s: %s; the units that were not done are done again", self.address, problem)
                if self._client is client:  # else who asked for other units met it first
                    self._client.close(timeout=1)
                    self._client = self._connected(PATIENCE)
                client, futures = self._client, {}

    def _submitted(self, function: Callable[[_T], _R], unit: _T) -> Any:
        name = f"{function.__module__}.{function.__qualname__}"
        # Named by their content, equal units are one, whoever asks for them.
        content = hashlib.blake2b(pickle.dumps((name, unit, generator_digest())), digest_size=16).hexdigest()
        return self._client.submit(
            _done_there, function, unit, generator_digest(), key=f"{function.__name__}-{content}", retries=2
        )

    def close(self) -> None:
        self._client.close(timeout=5)


_CONNECT = 10.0
"""Seconds for a scheduler to answer."""


class _OtherCode(Exception):
    """A worker has another package than the process that asks it."""


def _done_there(function: Callable[[_T], _R], unit: _T, digest: str) -> _R:
    """A unit on a worker of a cluster."""
    if generator_digest() != digest:
        raise _OtherCode("a worker has another version of onnx-superopt than this process; install the same on all")
    return function(unit)


@contextmanager
def open_workers(jobs: int, scheduler: str | None = None) -> Iterator[UnitWorkers]:
    """The workers for a command: a cluster where a scheduler is named, else so many processes. Raises StoreError."""
    workers: UnitWorkers = Cluster(scheduler) if scheduler else Processes(jobs) if jobs > 1 else Here()
    try:
        yield workers
    finally:
        workers.close()
