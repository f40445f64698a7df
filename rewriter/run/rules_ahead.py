"""Rules at once: a process beside this one checks them meanwhile, and nothing that rests on them counts before it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.run.background import Presumption, in_background
from rules_db.exchange import format_rule, parse_rule
from rules_db.files import StoreError
from rules_db.library import are_proved, read_shipped, shipped_rules
from rules_db.trust.certificate import Trust
from rules_db.trust.check import objections
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["begin_objections", "check_ahead", "read_ahead"]

_ASKING = 0.1
"""Seconds after which a check is asked again whether somebody waits for it."""


def read_ahead() -> None:
    """Begins to read the shipped rules and what checks them, while the model is read."""
    in_background(read_shipped)


def check_ahead() -> Presumption:
    """Begins to check the shipped rules, if that was never done; what is returned waits for that.

    It raises StoreError where a rule is not proved, and where nobody waited for the end: nothing may rest on the rules before it
    returned.
    """
    if are_proved():
        return lambda _: ""
    worker = Worker(_check)

    def checked(is_wanted: Callable[[], bool]) -> str:
        while is_wanted() and worker.is_awaited(_ASKING):
            pass
        if not is_wanted():
            worker.close()
            raise StoreError("the shipped rules were not checked to the end")
        try:
            problem: str | None = worker.answer()
        except WorkerDied:
            shipped_rules()
        else:
            if problem is not None:
                raise StoreError(problem)
        finally:
            worker.close()
        return ""

    return checked


def _check(connection: Connection) -> None:
    """In the process, which says what is wrong, and leaves in the cache folder that nothing is."""
    try:
        shipped_rules()
        connection.send(None)
    except StoreError as problem:
        connection.send(str(problem))


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
