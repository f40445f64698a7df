"""Guards: typed predicates over terms, cited by operator properties and carried by rules. One record each, by subject.

A new guard is a predicate under :func:`~rules_db.trust.guards.record.guard` in the module of its subject, and nothing else.
"""

from __future__ import annotations

from rules_db.trust.guards import axes, element_types, shapes, sizes, values, windows
from rules_db.trust.guards.record import About, Argument, Facts, Guard, Premises, Told

__all__ = ["GUARDS", "About", "Argument", "Facts", "Guard", "Premises", "Told"]

_SUBJECTS = (shapes, element_types, values, axes, sizes, windows)


def _by_name() -> dict[str, Guard]:
    records = [record for subject in _SUBJECTS for record in vars(subject).values() if isinstance(record, Guard)]
    return {record.name: record for record in sorted(records, key=lambda record: record.number)}


GUARDS = _by_name()
"""All guards by name, in the order of their numbers."""
