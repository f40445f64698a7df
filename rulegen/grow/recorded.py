"""Units of work whose results the journal of a growth keeps, each for itself: what is killed costs those that were not done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from rulegen.journal import Journal
from rulegen.workers import UnitWorkers, sent_by
from rules_db.trust.rule import Rule

__all__ = ["recorded"]

_S = TypeVar("_S")


def recorded(
    journal: Journal,
    key: str,
    workers: UnitWorkers,
    function: Callable[[Any], Any],
    units: Sequence[Any],
    read: Callable[[Any, Any], tuple[_S, Iterable[Rule]]],
) -> Iterator[_S]:
    """What units give, in their order; those that the journal does not have are asked for at once.

    Args:
        key: of the records, behind which stands the unit's number.
        function: gives anything but ``None``.
        read: takes a unit and what was given of it, as that of :func:`rulegen.workers.sent_by` otherwise.

    Raises:
        StoreError: as :func:`rulegen.workers.sent_by` does.
    """
    missing = [number for number in range(len(units)) if journal.get(f"{key} {number}") is None]

    asked = iter(missing)  # results come in their order

    def as_sent(data: Any) -> tuple[Any, Iterable[Rule]]:
        return data, read(units[next(asked)], data)[1]

    found = sent_by(workers, function, [units[number] for number in missing], as_sent)

    def values() -> Iterator[_S]:
        for number, unit in enumerate(units):
            yield read(unit, journal.recalled(f"{key} {number}", partial(next, found)))[0]

    return values()
