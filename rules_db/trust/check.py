"""The trusted checker: what a proof is.

A certificate is a list of instances of operator properties. An instance ``left = right`` may be used once one of its sides
is *present*, and then both are. Present are the rule's own terms, the terms that its conditions call typed, and
whatever is built by an operator from operands equal to those of a present term. A property's contract
(:mod:`rules_db.trust.properties`) is that where its conditions hold and one side is well-typed, the other has the same type and
value; so by induction every present term is well-typed, and terms joined by instances and congruence are equal, at every
application where the rule is well-typed and its conditions hold. The rule is proved when all instances were used and each
target is joined to its source.

Instances' conditions must follow from the rule's: be among them, or be implied by the laws of the guards
(:mod:`rules_db.trust.guards`, :mod:`rules_db.trust.implied`). An attribute variable of the rule stands for any value, so that a
proof treats it as a name and nothing more. Goals are rebuilt from the rule, never taken from the certificate, and every equation
is also typed under the rule's sample types and attributes.

Certificates of the other kinds are repeated by :mod:`rules_db.trust.evidence`, :mod:`rules_db.trust.interpreted` and
:mod:`rules_db.trust.numbering`. All that is trusted are the modules that this one imports and the property files:
:mod:`rules_db.stamp` lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mugraph.domains.range import Range
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, binding_of, open_names, substitute_all, walk
from rules_db.trust.certificate import Instance, Trust
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.evidence import repeat_tests
from rules_db.trust.implied import implied
from rules_db.trust.interpreted import repeat_interpretation
from rules_db.trust.numbering import repeat_numbering
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule, Side

__all__ = ["MALFORMED", "ProofStep", "check", "instantiate", "objections", "presence"]

MALFORMED = "the rule is malformed, an attribute or argument is not of its kind"
"""How the failure of a rule begins that cannot be examined at all."""


@dataclass(frozen=True, slots=True)
class ProofStep:
    """An instance of a property written out: an equation and the conditions on which it rests."""

    left: Term
    right: Term
    conditions: tuple[Condition, ...]

    @property
    def typed(self) -> tuple[Term, ...]:
        """Terms that the property wants well-typed beyond its two sides."""
        return tuple(c.arguments[0] for c in self.conditions if c.predicate == "typed")


def instantiate(instance: Instance, axioms: Mapping[str, Axiom], open_attrs: Collection[str] = ()) -> ProofStep:
    """Writes an instance out; attribute variables of the rule itself, ``open_attrs``, stay.

    Raises:
        ValueError: an unknown or changed property, or a variable too few or too many.
    """
    axiom = axioms.get(instance.axiom)
    if axiom is None:
        raise ValueError(f"there is no operator property '{instance.axiom}'")
    if instance.digest and not axiom.digest.startswith(instance.digest):
        raise ValueError(
            f"the operator property '{instance.axiom}' has changed since: the certificate cites {instance.digest}, "
            f"it is {axiom.digest[:8]} now; grow the rule again"
        )
    terms, attrs = dict(instance.terms), dict(instance.attrs)
    for kind, wanted, bound in (("", axiom.variables, terms), ("$", axiom.attr_variables, attrs)):
        if set(wanted) != set(bound):
            names = ", ".join(f"{kind}{name}" for name in sorted(set(wanted) ^ set(bound)))
            raise ValueError(f"'{instance.axiom}' with unbound or unknown {names}")
    values = [*attrs.values(), *(value for term in walk(terms.values()) for _, value in term.attrs)]
    if any(name not in open_attrs for value in values for name in open_names(value)):
        raise ValueError(f"'{instance.axiom}' is not ground")
    sides = substitute_all([axiom.left, axiom.right], terms, attrs)
    return ProofStep(sides[axiom.left], sides[axiom.right], tuple(c.substitute(terms, attrs) for c in axiom.conditions))


class Presence:
    """The present terms and which of them are equal: a congruence closure.

    Ensures: two present terms have one representative exactly if their equality follows from the pairs joined, by reflexivity,
    symmetry, transitivity, and equal operands giving equal results.
    """

    def __init__(self, terms: Collection[Term]) -> None:
        self._present: set[Term] = set()
        self._class: dict[Term, Term] = {}
        self._users: dict[Term, list[Term]] = {}
        self._heads: dict[Term, tuple[object, ...]] = {}
        self._built: dict[tuple[object, ...], Term] = {}
        self.add(terms)

    def find(self, term: Term) -> Term | None:
        """The representative of a present term, or of the present term that it is congruent to; ``None`` where there is none."""
        if term in self._class:
            return self._root(term)
        representative: dict[Term, Term | None] = {}
        for part in walk([term]):
            alike: Term | None = part
            if part not in self._class:
                alike = self._built.get(self._key(part, [representative[operand] for operand in part.inputs]))
            representative[part] = None if alike is None else self._root(alike)
        return representative[term]

    def add(self, terms: Collection[Term]) -> None:
        """Makes terms and all their parts present."""
        for part in walk(terms, self._present):
            operands = [self._root(operand) for operand in part.inputs]
            self._class[part] = self._built.setdefault(self._key(part, operands), part)
            for operand in operands:
                self._users.setdefault(operand, []).append(part)

    def join(self, a: Term, b: Term) -> None:
        """Makes two present terms equal, and with them all present terms that are built alike from equal operands."""
        pending = [(a, b)]
        while pending:
            left, right = (self._root(term) for term in pending.pop())
            if left is right:
                continue
            self._class[right] = left
            users = self._users.pop(right, [])  # their keys alone have changed
            self._users.setdefault(left, []).extend(users)
            for term in users:
                alike = self._built.setdefault(self._key(term, [self._root(i) for i in term.inputs]), term)
                if self._root(alike) is not self._root(term):
                    pending.append((alike, term))

    def _root(self, term: Term) -> Term:
        while self._class[term] is not term:
            term = self._class[term]
        return term

    def _key(self, term: Term, operands: Sequence[Term | None]) -> tuple[object, ...]:
        """A key that terms built alike share. It holds the text of attributes, as 1, 1.0 and True are equal in Python."""
        if not operands:
            return (term,)
        head = self._heads.get(term)
        if head is None:
            head = self._heads[term] = (term.op, repr(term.attrs), term.out)
        return (*head, *operands)


def presence(source: Side, target: Side, steps: Sequence[ProofStep], typed: Collection[Term]) -> tuple[Presence, list[int]]:
    """Uses every step that becomes usable; returns what is present then and the indices of the steps that never were."""
    present = Presence([*source, *target, *typed])
    pending = list(range(len(steps)))
    while True:
        waiting = []
        for index in pending:
            step = steps[index]
            usable = present.find(step.left) is not None or present.find(step.right) is not None
            if usable and all(present.find(term) is not None for term in step.typed):
                present.add([step.left, step.right])
                present.join(step.left, step.right)
            else:
                waiting.append(index)
        if len(waiting) == len(pending):
            return present, waiting
        pending = waiting


def check(rule: Rule, axioms: Mapping[str, Axiom], *, tests_proved: bool = False) -> list[str]:
    """Checks a rule against the operator properties; returns what is wrong, nothing where the rule is proved.

    Args:
        tests_proved: kernels that are proved are interpreted, too.
    """
    try:
        return _problems(rule, axioms, tests_proved)
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        AssertionError,
        RecursionError,
        Undecided,
    ) as problem:
        return [f"{MALFORMED}: {type(problem).__name__}: {problem}"]


def objections(rule: Rule, axioms: Mapping[str, Axiom], trust: Trust) -> list[str]:
    """Why a rule from outside is not taken: it brings less evidence than is asked for, or what it brings does not hold."""
    refusal = trust.refusal(rule.certificate.evidence)
    return [refusal] if refusal else check(rule, axioms)


def _problems(rule: Rule, axioms: Mapping[str, Axiom], tests_proved: bool) -> list[str]:
    if len(rule.source) != len(rule.target):
        return [f"{len(rule.source)} outputs on the left and {len(rule.target)} on the right"]
    sample = rule.sample()
    examined = set[Term]()
    wrong = _wrong_values([*rule.source, *rule.target, *sample.source, *sample.target], rule.conditions, examined)
    if wrong:
        return [f"{MALFORMED}: {problem}" for problem in wrong]
    if rule.certificate.tested:
        return repeat_tests(rule, rule.certificate.tested)
    if rule.certificate.interpreted:
        return repeat_interpretation(rule, rule.certificate.interpreted, tests_proved=tests_proved)
    if rule.certificate.numbered:
        return repeat_numbering(rule)
    try:
        steps = [instantiate(instance, axioms, rule.attrs) for instance in rule.certificate.instances]
        for number, step in enumerate(steps, 1):
            wrong += [
                f"step {number}: {problem}" for problem in _wrong_values([step.left, step.right], step.conditions, examined)
            ]
        if wrong:
            return wrong
        types = _sample_types(rule, steps)
    except (ValueError, Undecided, KeyError) as problem:
        return [str(problem.args[0])]
    return [*_contradictions(rule, types), *_wrong_steps(rule, steps, types), *_missing_links(rule, steps, types)]


def _wrong_values(roots: Collection[Term], conditions: Collection[Condition], examined: set[Term]) -> list[str]:
    """Attributes and arguments of guards whose values are not of their kind, in words; ``examined`` terms have none."""
    wrong = [problem for condition in conditions for problem in condition.wrong_arguments()]
    for term in walk([*roots, *(term for condition in conditions for term in condition.terms())], examined):
        if term.op not in ("Var", "Const"):
            try:
                get_operator(term.op).check_attributes(term.attrs)
            except ShapeError as problem:
                wrong.append(str(problem))
    return wrong


def _sample_types(rule: Rule, steps: Sequence[ProofStep]) -> dict[Term, TensorType]:
    """Types of all terms of the rule and the steps under the rule's sample types and attributes. Raises where one has none."""
    cited = [term for condition in rule.conditions for term in condition.terms()]
    sides = [side for step in steps for side in (step.left, step.right)]
    samples = substitute_all([*rule.source, *rule.target, *cited, *sides], {}, rule.attrs)
    inferred = infer_types(samples.values(), rule.types)
    return {term: inferred[sample] for term, sample in samples.items()}


def _contradictions(rule: Rule, types: Mapping[Term, TensorType]) -> Iterator[str]:
    """Conditions on types that the rule's own sample does not meet."""
    facts = Facts(types.__getitem__, lambda term: Range.top(), binding_of(rule.attrs), least=1)
    for condition in rule.conditions:
        if not condition.guard.of_values and condition.holds(facts) is not True:
            yield f"the rule's own sample types contradict its condition {condition}"


def _wrong_steps(rule: Rule, steps: Sequence[ProofStep], types: Mapping[Term, TensorType]) -> Iterator[str]:
    """Steps that equate different types, or whose conditions do not follow from the rule's."""
    for number, step in enumerate(steps, 1):
        if types[step.left] != types[step.right]:
            yield f"step {number} equates {types[step.left]} and {types[step.right]}"
        for condition in step.conditions:
            if condition.predicate != "typed" and not implied(condition, rule.conditions):
                yield f"step {number} needs {condition}, which the rule's conditions do not give"


def _missing_links(rule: Rule, steps: Sequence[ProofStep], types: Mapping[Term, TensorType]) -> Iterator[str]:
    """Steps that cannot be used, and outputs to which the others do not lead."""
    typed = [condition.arguments[0] for condition in rule.conditions if condition.predicate == "typed"]
    present, unused = presence(rule.source, rule.target, steps, typed)
    for index in unused:
        yield f"step {index + 1} starts from a term that is not present: {steps[index].left!r}"
    for number, (source, target) in enumerate(zip(rule.source, rule.target, strict=True)):
        if types[source] != types[target]:
            yield f"output {number} has type {types[source]} on the left and {types[target]} on the right"
        if present.find(source) is not present.find(target):
            yield f"output {number}: the steps do not lead from {source!r} to {target!r}"
