"""Conditions and proofs in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mugraph.terms.term import Term, format_term, format_value
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import instantiate
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms

__all__ = ["in_words", "proof_in_words"]

# Words


def in_words(condition: Condition) -> str:
    """The definition of the predicate with the condition's arguments for its parameters, in one line."""
    guard = condition.guard
    arguments = (repr(a) if isinstance(a, Term) else format_value(a) for a in condition.arguments)
    words = {
        name if kind == "t" else f"``{name}``": argument
        for name, kind, argument in zip(guard.parameters, guard.kinds, arguments, strict=True)
    }
    return re.sub(r"``\w+``|\b\w+\b", lambda word: words.get(word.group(), word.group()), " ".join(guard.words.split()))


def proof_in_words(conditions: Sequence[Condition], certificate: Certificate, open_attrs: Sequence[str] = ()) -> list[str]:
    """Lines that say when a rule holds and why, one operator property after the other."""
    lines = []
    if conditions:
        lines.append("only if")
        lines += [f"  {condition}: {in_words(condition)}" for condition in conditions]
    tests = certificate.tested or certificate.interpreted
    if tests:
        return [*lines, f"because {tests.in_words()}."]
    if certificate.numbered:
        return [*lines, "because at these sizes every entry of both sides is the same expression of the operands' entries."]
    lines.append("because, where each line is an operator property with terms for its variables,")
    axioms = load_axioms()
    for number, instance in enumerate(certificate.instances, 1):
        step = instantiate(instance, axioms, open_attrs)
        lines += [f"  {number}. {axioms[instance.axiom]}", f"     {format_term(step.left)}", f"     = {format_term(step.right)}"]
        lines += [f"     where {in_words(condition)}" for condition in step.conditions]
    lines.append("and equal operands give equal results, so that source and target are equal.")
    return lines
