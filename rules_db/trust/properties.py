"""Operator properties (axioms) as data: the ``*.axioms`` files of this package, one file a family.

One property a line (indented lines continue it, ``#`` starts a comment)::

    name: left = right [when condition, ...] [for F in Relu, Exp; I in 0, 1]

Names of properties are dotted; ``$k`` is an attribute variable. ``for`` writes one property for each choice of the template
letters and appends the choices to the name. A choice may be a trait of operators, which stands for all that have it, in the
order of the registry (:data:`QUANTIFIERS`): ``for F in entrywise except Sin, Cos``. Attributes that the line does not give to
such an operator are open: ``F(x)`` is ``LeakyRelu[alpha=$al](x)`` for one of them.

A property says: wherever its conditions hold and one of its sides is well-typed, the other side is too, with the same type, and
the two are equal. That typing clause is what lets a checker follow a proof from a rule's own terms without typing intermediate
ones at every match; where shape inference alone does not give it, the property cites ``typed(...)``. Equal means as real
numbers: where a divisor is zero or a value is not finite a property says nothing, unless it cites a range predicate.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from types import MappingProxyType

from mugraph.ops import REGISTRY, Entrywise, Operator, get_operator
from mugraph.terms.shape import ShapeError
from mugraph.terms.term import Term, format_term, open_names, variables, walk
from mugraph.terms.text import Parser, TextError
from rules_db.trust.condition import Condition, parse_condition

__all__ = ["QUANTIFIERS", "Axiom", "AxiomError", "load_axioms", "parse_axioms"]


class AxiomError(ValueError):
    """A line of a property file cannot be read; the message names file and line."""


@dataclass(frozen=True)
class Axiom:
    """An equation between two terms under conditions, for all values of its variables.

    Attributes:
        name: dotted name, unique among all families.
        left, right: the two sides.
        conditions: typed preconditions over the variables.
        family: the file it stands in.
    """

    name: str
    left: Term
    right: Term
    conditions: tuple[Condition, ...]
    family: str

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of the term variables, in order of first occurrence."""
        cited = [term for condition in self.conditions for term in condition.terms()]
        return tuple(term.name for term in variables([self.left, self.right, *cited]))

    @cached_property
    def attr_variables(self) -> tuple[str, ...]:
        """Names of the attribute variables, in order of first occurrence."""
        cited = [term for condition in self.conditions for term in condition.terms()]
        values = [value for term in walk([self.left, self.right, *cited]) for _, value in term.attrs]
        values += [a for condition in self.conditions for a in condition.arguments if not isinstance(a, Term)]
        return tuple(dict.fromkeys(name for value in values for name in open_names(value)))

    @property
    def only_real(self) -> bool:
        """Whether it speaks of order, sign, single functions' values or rounded numbers, which a finite field does not have."""
        if self.family in ("activation", "numbers", "order"):
            return True
        return any(c.guard.of_values and c.predicate != "not_nan" for c in self.conditions)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the property's content: a certificate that cites a changed property is not valid."""
        return hashlib.blake2b(str(self).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        when = f" when {', '.join(map(str, self.conditions))}" if self.conditions else ""
        return f"{self.name}: {format_term(self.left)} = {format_term(self.right)}{when}"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, comments removed, each with the number of its first line."""
    start = 0
    parts: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        if line[0].isspace() and parts:
            parts.append(line.strip())
            continue
        if parts:
            yield start, " ".join(parts)
        start, parts = number, [line.strip()]
    if parts:
        yield start, " ".join(parts)


def _is_function(record: Operator) -> bool:
    """A function of one number, entry by entry, to a number of its type, by a record that is not composite."""
    traits = record.traits
    applies = traits.entrywise is Entrywise.FUNCTION and traits.movement is None and traits.one_dtype
    return applies and record.arity == (1, 1) and not record.composite


QUANTIFIERS: Mapping[str, Callable[[Operator], bool]] = MappingProxyType(
    {
        "entrywise": _is_function,
        "continuous": lambda record: _is_function(record) and not record.traits.jumps,
        "arithmetic": lambda record: record.traits.entrywise is Entrywise.ARITHMETIC and record.arity == (2, 2),
        "extremum": lambda record: record.traits.entrywise is Entrywise.EXTREMUM,
        "reduction": lambda record: record.traits.monoid is not None,
    }
)
"""Traits over which a line may quantify: functions of one number; those that do not jump, so that rounding the operand first
changes a result by little; sums, differences, products and quotients of two; the greatest
and the least; reductions along axes of the entries themselves."""

_CUSTOMARY = {"min": "lo", "max": "hi"}
"""Names of open attributes that are not the first two letters of the attribute's."""


@dataclass(frozen=True)
class _TemplateChoice:
    """The operator for which a template letter stands: as it is written, and without attributes that the line gives itself."""

    text: str
    name: str

    @property
    def suffix(self) -> str:
        return re.sub("[^A-Za-z].*", "", self.name) or "out" + self.name


def _open_application(record: Operator) -> _TemplateChoice:
    """An operator with all its attributes open; where two begin alike, each has its whole name."""
    short = [_CUSTOMARY.get(name, name[:2]) for name in record.defaults]
    open_ = short if len(set(short)) == len(short) else list(record.defaults)
    attrs = ",".join(f"{name}=${variable}" for name, variable in zip(record.defaults, open_, strict=True))
    return _TemplateChoice(f"{record.name}[{attrs}]" if attrs else record.name, record.name)


def _choices(text: str) -> list[_TemplateChoice]:
    """Choices as a line names them, traits written out. Raises TextError for an exception that is none of them."""
    values, *exceptions = re.split(r"\s+except\s+", text, maxsplit=1)
    choices: list[_TemplateChoice] = []
    for value in re.split(r",(?![^\[]*\])", values):
        quantifier = QUANTIFIERS.get(value.strip())
        if quantifier is None:
            choices.append(_TemplateChoice(value.strip(), value.strip()))
        else:
            choices += [_open_application(record) for record in REGISTRY.values() if quantifier(record)]
    left_out = {name.strip() for text in exceptions for name in text.split(",")}
    unknown = sorted(left_out - {choice.name for choice in choices})
    if unknown:
        raise TextError(f"'{', '.join(unknown)}' is left out and was not in")
    return [choice for choice in choices if choice.name not in left_out]


def _instances(line: str) -> Iterator[str]:
    """The line itself, or one line for every choice of the template letters."""
    body, *template = re.split(r"\s+for\s+(?=[A-Z]\s+in\s)", line, maxsplit=1)
    if not template:
        yield body
        return
    letters, choices = [], []
    for part in template[0].split(";"):
        letter, _, values = part.partition(" in ")
        letters.append(letter.strip())
        choices.append(_choices(values.strip()))
    name, _, equation = body.partition(":")
    for combination in itertools.product(*choices):
        yield f"{name}{''.join(f'.{choice.suffix}' for choice in combination)}:{_filled(equation, letters, combination)}"


def _filled(equation: str, letters: Sequence[str], combination: Sequence[_TemplateChoice]) -> str:
    """The equation with choices in place of letters. Raises TextError where the line has an open attribute's variable."""
    chosen = dict(zip(letters, combination, strict=True))
    brought = {variable for choice in combination for variable in re.findall(r"\$\w+", choice.text) if choice.text != choice.name}
    clash = sorted(brought & set(re.findall(r"\$\w+", equation)))
    if clash:
        raise TextError(f"the open attributes of an operator are named {', '.join(clash)}, as variables of the line are")

    def fill(match: re.Match[str]) -> str:
        choice = chosen[match.group(1)]
        return choice.name + "[" if match.group(2) else choice.text

    return re.sub(r"(?<![\w$])(" + "|".join(letters) + r")(?!\w)(\[?)", fill, equation)


def _parse(line: str, family: str) -> Axiom:
    parser = Parser(line)
    name = parser.name("the name of a property")
    while parser.accept("."):
        name += "." + parser.name("the name of a property")
    parser.expect(":")
    left = parser.term()
    parser.expect("=")
    right = parser.term()
    conditions: list[Condition] = []
    if parser.accept("when"):
        conditions.append(parse_condition(parser))
        while parser.accept(","):
            conditions.append(parse_condition(parser))
    parser.end()
    for problem in (problem for condition in conditions for problem in condition.wrong_arguments()):
        raise TextError(problem)
    axiom = Axiom(name, left, right, tuple(conditions), family)
    for term in walk([left, right, *(t for c in conditions for t in c.terms())]):
        if term.op not in ("Var", "Const"):
            get_operator(term.op).check_attributes(term.attrs)
    return axiom


def parse_axioms(text: str, file: str) -> list[Axiom]:
    """Reads a property file. Raises :class:`AxiomError` with file and line for the first line it cannot read."""
    axioms: dict[str, Axiom] = {}
    for number, line in _logical_lines(text):
        try:
            instances = [_parse(instance, file.removesuffix(".axioms")) for instance in _instances(line)]
        except (TextError, ShapeError, KeyError) as problem:
            raise AxiomError(f"{file}:{number}: {problem.args[0]}") from None
        for axiom in instances:
            if axiom.name in axioms:
                raise AxiomError(f"{file}:{number}: a second property named '{axiom.name}'; give it another name")
            axioms[axiom.name] = axiom
    return list(axioms.values())


class _Properties(Mapping[str, Axiom]):
    """All properties of the package by name, read when the first is asked for: kernels are checked without them."""

    @cached_property
    def _by_name(self) -> Mapping[str, Axiom]:
        axioms: dict[str, Axiom] = {}
        for entry in sorted(resources.files("rules_db").joinpath("axioms").iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".axioms"):
                for axiom in parse_axioms(entry.read_text(encoding="utf-8"), entry.name):
                    if axiom.name in axioms:
                        raise AxiomError(
                            f"{entry.name}: property '{axiom.name}' also stands in {axioms[axiom.name].family}.axioms"
                        )
                    axioms[axiom.name] = axiom
        return axioms

    def __getitem__(self, name: str) -> Axiom:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


@lru_cache(maxsize=1)
def load_axioms() -> Mapping[str, Axiom]:
    """All properties of the package by name."""
    return _Properties()
