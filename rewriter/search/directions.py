"""Directions of rules: each rule read from its source to its target, or back, as far as that can be used.

A rule gives up to two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from mugraph.domains.base import FLOATS
from mugraph.ops import REGISTRY, get_operator
from mugraph.terms.shape import DataType
from mugraph.terms.term import AttrVar, Term, substitute, var, walk
from rewriter.search.divisors import brought_divisors
from rewriter.search.reshapes import brought_reshapes
from rewriter.search.windows import has_windows
from rules_db.sides import facts_of
from rules_db.solving import Determined, determined
from rules_db.trust.rule import Rule, Side, dim_symbols

__all__ = ["Direction", "compile_rules", "is_made_here", "made_here"]

_MADE = "made"


def made_here(group: str) -> dict[str, str]:
    """The provenance of a rule that a search makes for the sizes of its model: no database has it, so a record of moves does."""
    return {"group": group, _MADE: "here"}


def is_made_here(rule: Rule) -> bool:
    """Whether a rule has such a provenance."""
    return _MADE in rule.provenance


@dataclass(frozen=True, eq=False)
class Direction:
    """A rule read from ``pattern`` to ``replacement``.

    Attributes:
        provider: the execution provider that must have kernels for the replacement; ``None`` asks for none.
    """

    rule: Rule
    forward: bool
    provider: str | None = None

    @cached_property
    def pattern(self) -> Side:
        return self.rule.source if self.forward else self.rule.target

    @cached_property
    def replacement(self) -> Side:
        return self.rule.target if self.forward else self.rule.source

    @cached_property
    def id(self) -> str:
        return self.rule.id + (">" if self.forward else "<")

    @property
    def depth(self) -> int:
        """Greatest number of operators on a path of the pattern."""
        return facts_of(self.pattern).depth

    @cached_property
    def interior(self) -> frozenset[Term]:
        return frozenset(term for term in walk(self.pattern) if not term.is_var)

    def lacks_kernel(self, term: Term, dtype: DataType) -> bool:
        """Whether the provider has no kernel for a term of the replacement, whose operator the pattern does not hold either."""
        probed = get_operator(term.op).providers.get(self.provider) if self.provider is not None else None
        return probed is not None and dtype not in probed and term.op not in facts_of(self.pattern).ops

    def stored(self, term: Term) -> frozenset[int]:
        """Places of a term's operands that the provider takes as initializers only."""
        return get_operator(term.op).runtime.stored if self.provider is not None else frozenset()

    @cached_property
    def stays_standard(self) -> bool:
        """Whether the replacement holds no operator that ONNX lacks, beside those of the pattern."""
        brought = facts_of(self.replacement).ops - {"Var"} - facts_of(self.pattern).ops
        return all(REGISTRY[op].contract is None for op in brought if op in REGISTRY)

    @cached_property
    def free_dims(self) -> frozenset[str]:
        """Dimension symbols that the replacement's attributes need."""
        return frozenset(dim_symbols(self.replacement))

    @cached_property
    def floats(self) -> frozenset[DataType]:
        """The float types that the rule names: of its variables, in attributes and in conditions."""
        cited = [term for condition in self.rule.conditions for term in condition.terms()]
        named = {type_.dtype for type_ in self.rule.types.values()}
        for term in walk([*self.rule.source, *self.rule.target, *cited]):
            named.update(value for _, value in term.attrs if isinstance(value, DataType))
        for condition in self.rule.conditions:
            named.update(value for value in condition.arguments if isinstance(value, DataType))
        return FLOATS & named

    @cached_property
    def needs_attended(self) -> bool:
        """Whether the sides agree on rows alone that see something: the runtime gives others zeros on one side
        (:class:`mugraph.ops.base.RuntimeFacts`)."""
        return len({any(map(_zeroes, walk(side))) for side in (self.pattern, self.replacement)}) > 1

    @cached_property
    def slides(self) -> bool:
        """Whether a side slides windows over images."""
        return has_windows(self.pattern) or has_windows(self.replacement)

    @cached_property
    def reshapes(self) -> tuple[Term, ...]:
        """The Reshapes of the replacement that the pattern does not hold."""
        return brought_reshapes(self.pattern, self.replacement)

    @cached_property
    def brought(self) -> tuple[Term, ...]:
        """What the replacement divides by and the pattern does not."""
        return brought_divisors(self.pattern, self.replacement)

    @cached_property
    def solved(self) -> tuple[Determined, ...]:
        """Attribute variables that the pattern leaves open and conditions determine."""
        return determined(self.rule.conditions, facts_of(self.pattern).opened)

    @cached_property
    def symmetric(self) -> tuple[bool, ...]:
        """Per output but the first: whether exchanging it with the one before gives the same pattern and conditions."""
        exchangeable = []
        for position in range(1, len(self.pattern)):
            order = list(range(len(self.pattern)))
            order[position - 1 : position + 1] = position, position - 1
            sides = [self.pattern, tuple(self.pattern[i] for i in order)]
            unchanged, exchanged = (replace(self.rule, source=side, target=side).id for side in sides)
            exchangeable.append(unchanged == exchanged)
        return tuple(exchangeable)

    def __str__(self) -> str:
        left, right = (self.rule.source, self.rule.target)[:: 1 if self.forward else -1]
        return f"{'; '.join(map(repr, left))} -> {'; '.join(map(repr, right))}"


def _zeroes(term: Term) -> bool:
    return bool(term.inputs) and get_operator(term.op).runtime.zeroes(dict(term.attrs))


def compile_rules(rules: Iterable[Rule], provider: str | None = None) -> list[Direction]:
    """The usable directions of rules: every pattern output is an operator, and the pattern binds the replacement's variables.

    A condition may determine an attribute variable instead: ``product($c, $a, $b)`` determines ``$c``. With a provider,
    directions produce no operator for which it has no kernel (``Operator.providers``). Multi-level rules have no usable
    direction: their kernels are made for the model's sizes first (:mod:`rewriter.kernels.proposals`). Of the spellings of an
    operator's application that were found from its definition, only the first, which is the nearest to that, is read from the
    operator as well: the others would be as many candidates that cost nearly the same. What was read off entries, as a mask of
    positions is, is not forgotten: without it a step is saved, and a kernel computes what is hidden.

    Equal rules give the same objects, so that the runs of a process share what directions know of themselves.
    """
    return list(_compiled(tuple(rules), provider))


@lru_cache(maxsize=4)
def _compiled(rules: tuple[Rule, ...], provider: str | None) -> tuple[Direction, ...]:
    directions, taken_apart = list[Direction](), set[tuple[Side, str]]()
    for rule in rules:
        if any("Kernel" in facts_of(side).ops for side in (rule.source, rule.target)):
            continue
        for forward in (True, False):
            if not forward and _SPELLED in rule.provenance:
                applied = _application(rule)
                if applied in taken_apart:
                    continue
                taken_apart.add(applied)
            if not forward and any(condition.guard.of_entries and condition.guard.readers for condition in rule.conditions):
                continue
            direction = Direction(rule, forward, provider)
            if not all(root.inputs for root in direction.pattern):
                continue
            before, after = facts_of(direction.pattern), facts_of(direction.replacement)
            if not set(before.variables).issuperset(after.variables):
                continue
            open_after = set(after.opened).difference(before.opened)
            if not open_after or open_after.issubset(variable.name for variable in direction.solved):
                directions.append(direction)
    return tuple(directions)


_SPELLED = "spelled"
"""The name under which the provenance of a rule has the operator whose definition it was found from."""


def _application(rule: Rule) -> tuple[Side, str]:
    """The target of a rule, and the types of its variables, whatever these and open attributes are called."""
    facts = facts_of(rule.target)
    names = {variable: var(f"x{i}") for i, variable in enumerate(facts.variables)}
    terms = {variable.name: name for variable, name in names.items()}
    attrs = {name: AttrVar(f"a{i}") for i, name in enumerate(facts.opened)}
    dtypes = " ".join(str(rule.types[variable.name].dtype) for variable in names)
    return tuple(substitute(root, terms, attrs) for root in rule.target), dtypes
