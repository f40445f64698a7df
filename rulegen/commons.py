"""Growing together: units of work that stand in a shared database, and whoever reaches it does them.

A task is a function that takes and gives what JSON can say; :func:`unit_of_work` makes it known by its name. A database holds
names and text alone, so that reading it executes nothing but these functions. Every process that works is a :class:`Hand`: it
claims units, does them, gives them back and says meanwhile that it lives (:mod:`rules_db.units`). That of a killed one is done
again when its claims run out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

from rulegen.journal import generator_digest
from rulegen.workers import UnitWorkers, begin_worker, interrupts_later
from rules_db.databases import PATIENCE
from rules_db.files import StoreError
from rules_db.history import who
from rules_db.store import RuleStore
from rules_db.units import LEASE, UnitTable, WorkUnit

__all__ = ["TASKS", "Hand", "Hands", "SharedWorkers", "unit_of_work"]

logger = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[[Any], Any])

TASKS: dict[str, Callable[[Any], Any]] = {}
"""What may be asked for by name."""

_TURN = 0.5
"""Seconds of work that one claim is for, where units are small: a killed worker costs no more, or one unit."""

_MOST = 64
"""Units of one claim."""

_EXPECTED = 2
"""Workers that are counted on at the least: others may come at any time."""

_SHORTEST, _LONGEST = 0.02, 1.0
"""Seconds until one who has nothing to do looks again: twice as many each time."""


def unit_of_work(function: _Function) -> _Function:
    """Makes a function one that units name: of its argument alone, which is what JSON can say, as is what it gives."""
    TASKS[_name(function)] = function
    return function


def _name(function: Callable[[Any], Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _unit(function: Callable[[Any], Any], unit: Any) -> WorkUnit:
    """A unit with its identity: a digest of what determines the result."""
    task, argument = _name(function), json.dumps(unit, separators=(",", ":"))
    content = json.dumps([generator_digest(), task, argument]).encode()
    return WorkUnit(hashlib.blake2b(content, digest_size=16).hexdigest(), task, argument)


class Hand:
    """A process that does units of a database; a context manager.

    Args:
        url: of the database.
        name: that no other has; default: a random one, behind ``$ONNX_SUPEROPT_WHO``.
        lease: seconds for which it holds a unit without a sign of life.
    """

    def __init__(self, url: str, name: str | None = None, lease: float = LEASE) -> None:
        self._store = RuleStore.open(url, patience=PATIENCE)
        self.table = UnitTable(self._store, generator_digest(), lease)
        self.name = name or new_name()
        self._seconds: dict[str, float] = {}
        self._ended = threading.Event()
        self.table.live(self.name)
        self._pulse = threading.Thread(target=self._say_that_it_lives, daemon=True)
        self._pulse.start()

    def _say_that_it_lives(self) -> None:
        while not self._ended.wait(self.table.lease / 4):
            try:
                self.table.live(self.name)
            except StoreError as problem:  # the work itself meets it, too, and tells
                logger.warning("%s", problem)

    def work(self, among: Collection[str] | None = None) -> int:
        """Claims some units and does them; returns how many there were.

        Args:
            among: of these only.
        """
        most = max((int(_TURN / max(seconds, _TURN / _MOST)) for seconds in self._seconds.values()), default=1)
        claims = self.table.claim(self.name, TASKS, max(most, 1), among)
        done: dict[str, str] = {}
        given = time.monotonic()
        for claim in claims:
            began = time.monotonic()
            try:
                done[claim.id] = json.dumps(TASKS[claim.task](json.loads(claim.argument)), separators=(",", ":"))
            except Exception as problem:  # whatever it is, another one's code or memory may do
                logger.warning("a unit of %s failed: %s", claim.task, problem)
                self.table.failed(self.name, claim.id, f"{type(problem).__name__}: {problem}")
            now = time.monotonic()
            self._seconds[claim.task] = (self._seconds.get(claim.task, now - began) + now - began) / 2
            if now - given > _TURN:
                self.table.give_back(self.name, done)
                done, given = {}, now
        self.table.give_back(self.name, done)
        return len(claims)

    def close(self) -> None:
        """Frees what it holds."""
        self._ended.set()
        self._pulse.join()
        try:
            self.table.leave(self.name)
        except StoreError as unreachable:  # its claims run out
            logger.warning("%s", unreachable)
        self._store.close()

    def __enter__(self) -> Hand:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def new_name() -> str:
    """The name of a process that works."""
    return f"{who()} {secrets.token_hex(6)}".strip()


class Hands:
    """Other processes of this machine that do units of a database until they are to stop, or this process is no more.

    Args:
        url: of the database.
        count: how many.
        lease: as of :class:`Hand`.
    """

    def __init__(self, url: str, count: int, lease: float = LEASE) -> None:
        self._stop = multiprocessing.Event()
        self._processes: dict[str, BaseProcess] = {}
        with interrupts_later():
            for _ in range(count):
                name = new_name()
                process = multiprocessing.Process(target=_lend, args=(url, name, lease, self._stop), daemon=True)
                process.start()
                self._processes[name] = process

    def bury(self, table: UnitTable) -> None:
        """Frees what processes hold that died, without waiting for their claims to run out."""
        for name in [name for name, process in self._processes.items() if not process.is_alive()]:
            logger.warning("a worker process died; the units that were not done are done again")
            table.leave(name, lost=True)
            del self._processes[name]

    def close(self) -> None:
        """Ends the processes when they have given back what they are at."""
        self._stop.set()
        for process in self._processes.values():
            process.join()


def _lend(url: str, name: str, lease: float, stop: Event) -> None:
    """In another process: does units until it is told to stop."""
    begin_worker()
    wait = _SHORTEST
    try:
        with Hand(url, name, lease) as hand:
            while not stop.is_set():
                wait = _SHORTEST if hand.work() else min(2 * wait, _LONGEST)
                stop.wait(0 if wait == _SHORTEST else wait)
    except StoreError as problem:  # the first process meets it, too, or does the work
        logger.warning("%s", problem)


class SharedWorkers(UnitWorkers):
    """Whoever works at a database's units: this process, others of this machine, and those of other machines.

    Args:
        url: of the database.
        jobs: processes of this machine, this one among them.
        lease: as of :class:`Hand`.
    """

    def __init__(self, url: str, jobs: int = 1, lease: float = LEASE) -> None:
        self.count, self._url, self._jobs, self._lease = max(jobs, _EXPECTED), url, jobs, lease
        self._hand: Hand | None = None
        self._hands: Hands | None = None

    def _started(self) -> Hand:
        if self._hand is None:  # processes first: what is forked shares no connection
            self._hands = Hands(self._url, self._jobs - 1, self._lease)
            self._hand = Hand(self._url, lease=self._lease)
        return self._hand

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        """As of every kind of workers; the function is a :func:`unit_of_work`.

        Raises:
            StoreError: the database cannot be used, or a unit was given up.
        """
        assert TASKS.get(_name(function)) is function, f"{function} is no unit of work"
        claims = [_unit(function, unit) for unit in units]
        hand = self._started()
        self.count = max(self._jobs, len(hand.table.workers()), _EXPECTED)
        hand.table.ask(claims)
        return self._given(hand, [claim.id for claim in claims])

    def _given(self, hand: Hand, ids: Sequence[str]) -> Iterator[Any]:
        results: dict[str, str] = {}
        wait, places = _SHORTEST, {id_: place for place, id_ in reversed(list(enumerate(ids)))}
        for id_ in ids:
            while id_ not in results:
                missing = {other for other in ids[places[id_] :] if other not in results}
                found = hand.table.results(missing)
                results |= found
                if id_ not in found and not hand.work(missing - {*found}):
                    self._wait(hand, missing, wait)
                    wait = min(2 * wait, _LONGEST)
                else:
                    wait = _SHORTEST
            try:
                given = json.loads(results[id_])
            except (ValueError, RecursionError) as problem:
                way_out = "run the command without --together, or with another database"
                raise StoreError(f"a worker sent what is no JSON ({str(problem)[:100]}); {way_out}") from None
            yield given

    def _wait(self, hand: Hand, missing: Collection[str], seconds: float) -> None:
        """Until others have done what they hold."""
        assert self._hands is not None
        self._hands.bury(hand.table)
        if why := hand.table.given_up(missing):
            raise StoreError(f"{why}; run the command again with more memory or --jobs 1 to try once more")
        time.sleep(seconds)

    def close(self) -> None:
        if self._hands is not None:
            self._hands.close()
        if self._hand is not None:
            self._hand.table.forget()
            self._hand.close()
        self._hand = self._hands = None

    def __enter__(self) -> SharedWorkers:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()
