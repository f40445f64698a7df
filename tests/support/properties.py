"""Operator properties by name and from text."""

from __future__ import annotations

from rules_db.trust.properties import Axiom, load_axioms, parse_axioms

AXIOMS = load_axioms()


def one(text: str) -> Axiom:
    (axiom,) = parse_axioms(text, "some.axioms")
    return axiom


def some(*names: str) -> dict[str, Axiom]:
    return {name: AXIOMS[name] for name in names}
