"""Rules at once: a process beside this one checks them meanwhile, and nothing that rests on them counts before it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from rewriter.kernels.workers import Worker, WorkerDied
from rules_db.exchange import format_rule, parse_rule
from rules_db.library import are_proved, shipped_rules
from rules_db.trust.certificate import Trust
from rules_db.trust.check import objections
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["begin_objections", "check_ahead"]


def check_ahead() -> Callable[[], None]:
    """Begins to check the shipped rules, if that was never done; what is returned waits for that.

    It raises StoreError where a rule is not proved: nothing may rest on the rules before it returned.
    """
    if are_proved():
        return lambda: None
    worker = Worker(_check)

    def checked() -> None:
        with suppress(WorkerDied):
            worker.answer()
        worker.close()
        if not are_proved():  # nothing could be kept, or a rule is wrong: here it is said
            shipped_rules()

    return checked


def _check(connection: Connection) -> None:
    """In the process: what it found out it leaves in the cache folder."""
    with suppress(Exception):  # whoever waits finds that nothing is there
        shipped_rules()
    connection.send(None)


def begin_objections(rules: Sequence[Rule], trust: Trust) -> Callable[[], dict[str, str]]:
    """Begins to check rules of kernels; what is returned waits for that and has the first objection to each that has one.

    Args:
        rules: that come from a cache, which anyone may have written.
        trust: the evidence that they need.
    """
    texts = [format_rule(rule) for rule in rules]
    if not texts:
        return dict
    worker = Worker(_object)
    worker.tell((texts, str(trust)))

    def checked() -> dict[str, str]:
        try:
            found: dict[str, str] = worker.answer()
        except WorkerDied:
            found = _objections(texts, trust)
        finally:
            worker.close()
        return found

    return checked


def _objections(texts: Sequence[str], trust: Trust) -> dict[str, str]:
    rules = [parse_rule(text) for text in texts]
    return {rule.id: problems[0] for rule in rules if (problems := objections(rule, load_axioms(), trust))}


def _object(connection: Connection) -> None:
    """In the process."""
    texts, trust = connection.recv()
    connection.send(_objections(texts, Trust(trust)))
