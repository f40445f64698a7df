"""Evidence for rules about tensors of their own sizes: both sides have the same expressions for entries.

What moves entries to places that constants say, over dozens of nodes, is proved by no property of an operator. Here both sides
are evaluated with entries that are numbers of expressions (:mod:`mugraph.domains.numbered`): every place of every tensor is
followed. So a rule says by conditions what shape each of its variables has, and of which constants it knows the entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.numbered import Numbered, NumberedArray
from mugraph.ops import get_operator
from mugraph.ops.entries import array_of
from mugraph.ops.interp import evaluate, infer_types, taken_apart, unread
from mugraph.terms.shape import TensorType, concrete
from mugraph.terms.term import Term, var, walk
from rules_db.trust.condition import Condition
from rules_db.trust.rule import Rule

__all__ = ["MOST_ENTRIES", "numbered_inputs", "repeat_numbering", "shape_conditions"]

MOST_ENTRIES = 1 << 24
"""Of one tensor: numbering more takes minutes."""


def shape_conditions(rule_variable: Any, type_: TensorType) -> tuple[Condition, ...]:
    """The conditions that a variable has the shape of a type."""
    return Condition("rank", (rule_variable, type_.rank)), Condition("tail", (rule_variable, type_.shape))


def repeat_numbering(rule: Rule) -> list[str]:
    """Evaluates both sides; returns what is wrong, nothing where every entry of both is the same expression."""
    if rule.certificate.instances or rule.attrs:
        return ["numbered entries say nothing of properties and attribute variables"]
    missing = _unsaid(rule)
    if missing:
        return [f"no condition says the shape of {', '.join(missing)}"]
    types = infer_types([*rule.source, *rule.target], rule.types)
    for number, (source, target) in enumerate(zip(rule.source, rule.target, strict=True)):
        if types[source] != types[target]:
            return [f"output {number} has type {types[source]} on the left and {types[target]} on the right"]
    if _untold(rule.source, types) != _untold(rule.target, types):
        return ["a runtime reads an operand of which entries tell nothing, and it is another on the right"]
    if taken_apart(rule.source, rule.types) == taken_apart(rule.target, rule.types):
        return []  # one program, under the names of what its operators are composed of: its entries are what they are
    infinite = [name for name, type_ in rule.types.items() if type_.dtype in FLOATS and not _is_finite(rule, name)]
    if infinite:
        return [f"no condition says that {', '.join(infinite)} is finite"]
    shapes = [concrete(type_.shape) for type_ in types.values()]
    if any(shape is None or math.prod(shape) > MOST_ENTRIES for shape in shapes):
        return [f"a tensor has a symbolic size or more than {MOST_ENTRIES} entries"]
    domain = Numbered()
    try:
        values = evaluate([*rule.source, *rule.target], domain, numbered_inputs(rule, domain))
    except Unsupported as problem:
        return [f"entries cannot be numbered: {problem}"]
    for number, (source, target) in enumerate(zip(rule.source, rule.target, strict=True)):
        one, other = values[source], values[target]
        if not isinstance(one, NumberedArray) or not isinstance(other, NumberedArray):
            return [f"output {number} is not computed of floats"]
        if (one.numbers != other.numbers).any():
            return [f"output {number}: {int((one.numbers != other.numbers).sum())} of {one.numbers.size} entries differ"]
    return []


def _untold(roots: Iterable[Term], types: Mapping[Term, TensorType]) -> set[object]:
    """The operands that no entry is computed of, and the sizes of their operators, by which these are known instead."""
    found = set[object]()
    for term in walk(roots):
        if term.is_var or term.op == "Const":
            continue
        sizes = tuple((name, value) for name, value in term.attrs if name in get_operator(term.op).sized)
        found.update((term.op, place, term.inputs[place], sizes) for place in unread(term, types))
    return found


def numbered_inputs(rule: Rule, domain: Numbered) -> Mapping[str, Any]:
    """The variables of a rule: those of which a condition says the entries as these, all others as different unknowns.

    Raises ValueError for a text that is none of a tensor.
    """
    told = {c.arguments[0]: str(c.arguments[1]) for c in rule.conditions if c.predicate == "entries"}
    known = {term.name: array_of(text) for term, text in told.items()}  # type: ignore[union-attr]
    shapes = {name: concrete(type_.shape) for name, type_ in rule.types.items()}
    return {name: domain.known(known[name]) if name in known else domain.random(shape or ()) for name, shape in shapes.items()}


def _unsaid(rule: Rule) -> list[str]:
    """The variables whose shape, as that of the sample types, no condition says; and constants of another shape than theirs."""
    said = {c for c in rule.conditions if c.predicate in ("rank", "tail")}
    texts = {c.arguments[0].name: str(c.arguments[1]) for c in rule.conditions if c.predicate == "entries"}  # type: ignore[union-attr]
    return [
        name
        for name, type_ in rule.types.items()
        if not (array_of(texts[name]).shape == type_.shape if name in texts else _is_said(name, type_, said))
    ]


def _is_finite(rule: Rule, name: str) -> bool:
    """Whether a condition says that a variable is finite, or which entries it has."""
    return any(c.predicate in ("finite", "entries") and c.arguments[0] is var(name) for c in rule.conditions)


def _is_said(name: str, type_: TensorType, said: set[Condition]) -> bool:
    found = {c.predicate: c.arguments[1] for c in said if getattr(c.arguments[0], "name", None) == name}
    return found == {"rank": type_.rank, "tail": type_.shape}
