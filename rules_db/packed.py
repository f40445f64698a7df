"""Rules as they were read, packed: terms, values and conditions that rules share stand once, so that many are unpacked in a
seventh of the time that their texts take to be read.

What is packed is the text's: nothing but a text says what a rule is. So a rule that was unpacked may be looked for in a model,
and is compared with its text before anything rests on it (:class:`rules_db.library.ShippedRules`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mugraph.terms.shape import DataType, SymDim, TensorType
from mugraph.terms.term import AttrValue, AttrVar, Term, walk
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["pack", "unpack"]


class _Unpackable(Exception):
    """A rule holds a value for which there is no packed form."""


class _Table:
    """Things that stand once, each by its number.

    Args:
        packed: the packed form of one.
    """

    def __init__(self, packed: Callable[[Any], Any]) -> None:
        self.rows: list[Any] = []
        self._packed, self._numbers = packed, dict[Hashable, int]()

    def number(self, thing: Any, key: Hashable = None) -> int:
        """The number of a thing.

        Args:
            key: by which it is told from others, where things that differ may be equal.
        """
        key = thing if key is None else key
        if key not in self._numbers:
            row = self._packed(thing)  # which may give numbers to what is in it
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]


class _Packer:
    """Rules in tables."""

    def __init__(self) -> None:
        self._values = _Table(_packed_value)
        self._terms = _Table(self._packed_term)
        self._types = _Table(lambda type_: [type_.dtype.name, [self._value(dim) for dim in type_.shape]])
        self._conditions = _Table(self._packed_condition)

    def tables(self, rules: Iterable[Rule]) -> dict[str, list[Any]]:
        """The tables by name; in each, what a row needs of another table has its number there."""
        rows = [self._rule(rule) for rule in rules]
        shared = {"values": self._values, "terms": self._terms, "types": self._types, "conditions": self._conditions}
        return {**{name: table.rows for name, table in shared.items()}, "rules": rows}

    def _rule(self, rule: Rule) -> list[Any] | None:
        """A rule without its identity and its proof, which its text has; ``None`` for one that has no packed form."""
        try:
            for term in walk([*rule.source, *rule.target]):  # operands have lesser numbers than what takes them
                self._terms.number(term)
            return [
                [self._terms.number(root) for root in rule.source],
                [self._terms.number(root) for root in rule.target],
                [[name, self._types.number(type_)] for name, type_ in rule.types.items()],
                [self._conditions.number(condition, str(condition)) for condition in rule.conditions],
                str(rule.float_class),
                dict(rule.provenance),
                [[name, self._value(value)] for name, value in rule.attrs.items()],
            ]
        except _Unpackable:
            return None

    def _value(self, value: AttrValue) -> int:
        return self._values.number(value, json.dumps(_packed_value(value)))  # 1 is neither 1.0 nor true

    def _packed_term(self, term: Term) -> list[Any]:
        inputs = [self._terms.number(operand) for operand in term.inputs]
        return [term.op, [[name, self._value(value)] for name, value in term.attrs], inputs, term.out]

    def _packed_condition(self, condition: Condition) -> list[Any]:
        """The guard, and the number of each argument: a value's, or a term's below zero."""
        for term in walk(condition.terms()):
            self._terms.number(term)
        numbers = [~self._terms.number(a) if isinstance(a, Term) else self._value(a) for a in condition.arguments]
        return [condition.predicate, numbers]


def _packed_value(value: AttrValue) -> Any:
    """An attribute value in JSON: what JSON has no type for is an object with one field, which names its type."""
    if type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_packed_value(item) for item in value]}
    if isinstance(value, AttrVar):
        return {"open": value.name}
    if isinstance(value, DataType):
        return {"dtype": value.name}
    if isinstance(value, SymDim) and all(type(name) is str for name in value.symbols()):
        return {"dim": [[[list(power) for power in monomial], factor] for monomial, factor in value.terms]}
    raise _Unpackable


def _unpacked_value(packed: Any) -> AttrValue:
    """The value that :func:`_packed_value` packs."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tuple":
        return tuple(map(_unpacked_value, content))
    if kind == "open":
        return AttrVar(content)
    if kind == "dtype":
        return DataType[content]
    return SymDim(tuple((tuple((name, power) for name, power in monomial), factor) for monomial, factor in content))


def pack(rules: Iterable[Rule]) -> str:
    """The packed form of rules, in order; equal rules give equal texts. One with a kernel has none: it is read."""
    tables = []
    for name, rows in _Packer().tables(rules).items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        tables.append(f'"{name}": [\n{lines}\n]')
    return "{" + ",\n".join(tables) + "}\n"


_PROOF = "\n  proof "


def unpack(text: str, texts: Sequence[tuple[str, str]]) -> list[Rule | None]:
    """The rules that were packed; ``None`` in the place of one that has no packed form.

    Args:
        texts: of each the identity and the block, whose proof it has, unread (:meth:`Certificate.known`).

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError: this is no packed form of as many rules.
    """
    tables = json.loads(text)
    values = [_unpacked_value(packed) for packed in tables["values"]]
    terms: list[Term] = []
    for op, attrs, inputs, out in tables["terms"]:
        terms.append(Term(op, tuple([(name, values[v]) for name, v in attrs]), tuple([terms[i] for i in inputs]), out))
    types = [TensorType(DataType[dtype], tuple([values[v] for v in shape])) for dtype, shape in tables["types"]]
    conditions = [
        Condition(guard, tuple([values[number] if number >= 0 else terms[~number] for number in numbers]))
        for guard, numbers in tables["conditions"]
    ]
    rules: list[Rule | None] = []
    for row, (identity, block) in zip(tables["rules"], texts, strict=True):
        if row is None:
            rules.append(None)
            continue
        source, target, named, guards, float_class, provenance, attrs = row
        begin = block.index(_PROOF) + len(_PROOF)
        rule = Rule(
            tuple([terms[i] for i in source]),
            tuple([terms[i] for i in target]),
            {name: types[number] for name, number in named},
            tuple([conditions[number] for number in guards]),
            FloatClass(float_class),
            Certificate.known(block[begin : block.index("\n", begin)].strip()),
            provenance,
            {name: values[number] for name, number in attrs},
        )
        vars(rule)["id"] = identity  # where a cached property keeps what it found
        rules.append(rule)
    return rules
