"""From laws to the directions in which they can be matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from mugraph.ops import REGISTRY, get_operator
from mugraph.terms.shape import SymDim
from mugraph.terms.term import AttrValue, AttrVar, Term, occurrences, walk
from rulegen.prove.language import Language
from rulegen.prove.laws import Law, LawCondition, LawDirection, MeasuredSize, SolvedAttribute
from rulegen.prove.patterns import Apply, Computed, Pattern, Slot
from rules_db.trust.guards import GUARDS
from rules_db.trust.rule import Side

__all__ = ["directions", "is_fused"]


def is_fused(operator: str) -> bool:
    """Whether an operator stands for several plainer ones, as which a directed search takes it."""
    if operator not in REGISTRY:
        return False
    record = get_operator(operator)
    return record.traits.named_whole or (record.traits.product is not None and record.decomposition is not None)


def directions(language: Language, law: Law) -> list[LawDirection]:
    """Both directions of a law, as far as matching one side leaves nothing unknown."""
    sides = (law.source, law.target)
    made = (_PatternCompiler(language, law).direction(left, right) for left, right in (sides, sides[::-1]))
    return [direction for direction in made if direction is not None]


class _PatternCompiler:
    """Compiles one direction of one law."""

    def __init__(self, language: Language, law: Law) -> None:
        self.language, self.law = language, law
        names = (*law.variables, *law.attr_variables, *law.symbols)
        self.terms, self.slots = len(law.variables), len(names)
        self.terms_at = {name: Slot(i) for i, name in enumerate(law.variables)}
        self.attrs_at = {name: Slot(self.terms + i) for i, name in enumerate(law.attr_variables)}
        base = self.terms + len(law.attr_variables)
        self.dims_at = {name: Slot(base + i) for i, name in enumerate(law.symbols)}
        self.computed: list[Computed] = []

    def direction(self, left: Side, right: Side) -> LawDirection | None:
        """The law matched on ``left``: on one output that binds everything, or else on all; ``None`` where neither does."""
        lefts, rights = tuple(map(self.pattern, left)), tuple(map(self.pattern, right))
        conditions = tuple(
            LawCondition(
                c.predicate,
                tuple(self.pattern(a) if isinstance(a, Term) else self.value(a) for a in c.arguments),
                tuple(isinstance(a, Term) for a in c.arguments),
            )
            for c in self.law.conditions
        )
        choices = [(each,) for each in lefts] + ([lefts] if len(lefts) > 1 else [])
        for choice in choices:
            matched = tuple(pattern for pattern in choice if isinstance(pattern, Apply) and pattern.op != "Const")
            if len(matched) < len(choice):
                continue
            bound = set().union(*map(self.slots_in, matched))
            sizes = self._sizes(conditions, bound)
            solved = self._solved(conditions, bound)
            if len(bound) < self.slots:
                continue
            leaves = [name for pattern, root in zip(lefts, left, strict=True) if pattern in matched for name in _leaves(root)]
            operands = enumerate(matched[0].operands)
            asked = [(c.predicate, c.arguments[0]) for c in conditions if GUARDS[c.predicate].of_ranges]
            return LawDirection(
                language=self.language,
                law=self.law,
                matched=matched,
                left=lefts,
                right=rights,
                conditions=conditions,
                solved=solved,
                sizes=sizes,
                computed=tuple(self.computed),
                slots=self.slots + len(self.computed),
                terms=self.terms,
                depth=max(pattern.depth for pattern in matched) + (len(leaves) > len(set(leaves))),
                assumes=any(c.guard.of_values for c in self.law.conditions),
                collapses=any(argument in (*lefts, *rights) for _, argument in asked),
                operators=frozenset(t.op for t in walk([*left, *right]) if t.inputs),
                directed=_is_directed(left, right, left == self.law.source),
                needs=tuple((i, self.language.bit(o.op)) for i, o in operands if isinstance(o, Apply)),
            )
        return None

    def pattern(self, term: Term) -> Pattern:
        if term.is_var:
            return self.terms_at[term.name]
        attrs = tuple((k, self.value(v)) for k, v in term.attrs)
        is_open = any(self.is_open(v) for _, v in attrs)
        ground = None if is_open else self.language.op(term.op, term.attrs, term.out)
        operands = tuple(map(self.pattern, term.inputs))
        depth = 1 + max((o.depth for o in operands if isinstance(o, Apply)), default=0)
        return Apply(term.op, attrs, term.out, operands, ground, depth)

    def value(self, v: AttrValue) -> Any:
        """The pattern of an attribute value."""
        if isinstance(v, AttrVar):
            return self.attrs_at[v.name]
        if isinstance(v, tuple):
            return tuple(map(self.value, v))
        if not isinstance(v, SymDim):
            return v
        if str(v) in self.dims_at:
            return self.dims_at[str(v)]
        symbols = tuple((name, self.dims_at[name].index) for name in sorted(v.symbols()))
        self.computed.append(Computed(v, symbols, self.slots + len(self.computed)))
        return self.computed[-1]

    def is_open(self, v: Any) -> bool:
        return isinstance(v, (Slot, Computed)) or (isinstance(v, tuple) and any(map(self.is_open, v)))

    def slots_in(self, v: Any) -> set[int]:
        """Slots that matching a pattern or an attribute value binds, and no later step has to."""
        if isinstance(v, Slot):
            return {v.index}
        if isinstance(v, Apply):
            return set().union(*(self.slots_in(a) for _, a in v.attrs), *map(self.slots_in, v.operands))
        return set().union(*map(self.slots_in, v)) if isinstance(v, tuple) else set()

    def _solved(self, conditions: Sequence[LawCondition], bound: set[int]) -> tuple[SolvedAttribute, ...]:
        """Attributes that predicates determine from ``bound`` slots, to which theirs are added."""
        solved = []
        for predicate, arguments, _ in conditions:
            guard = GUARDS[predicate]
            for position in (*guard.solvers, *guard.readers):
                unknown = self.slots_in(arguments[position]) - bound
                others = [
                    self.slots_in(a) | _read_by(a)
                    for i, a in enumerate(arguments)
                    if i != position and not guard.read_together(i, position)
                ]
                if unknown and not set().union(*others) - bound:
                    solved.append(SolvedAttribute(unknown.pop(), position, predicate, arguments))
                    bound.add(solved[-1].slot)
        return tuple(solved)

    def _sizes(self, conditions: Sequence[LawCondition], bound: set[int]) -> tuple[MeasuredSize, ...]:
        """Sizes that conditions ask of terms, or sample types show, beyond ``bound``, to which they are added.

        ``dim`` tells one, and ``same_shape`` the whole shape that an operator is given: what is expanded to that of another term.
        """
        sizes: list[MeasuredSize] = []
        for predicate, arguments, _ in conditions:
            if predicate == "dim":
                measured, axis, size = arguments
            elif predicate == "same_shape" and isinstance(arguments[1], Apply):
                measured, axis, size = arguments[0], None, dict(arguments[1].attrs).get("shape")
            else:
                continue
            if isinstance(size, Slot) and size.index not in bound and self.slots_in((measured, axis)) <= bound:
                sizes.append(MeasuredSize(size.index, ((measured, axis),)))
                bound.add(size.index)
        for name, slot in self.dims_at.items():
            if slot.index in bound:
                continue
            places = tuple(
                (self.terms_at[v], axis)
                for v, type_ in self.law.types.items()
                if v in self.terms_at and self.terms_at[v].index in bound
                for axis in range(-type_.rank, 0)
                if str(type_.shape[axis]) == name
            )
            if places:
                sizes.append(MeasuredSize(slot.index, places))
                bound.add(slot.index)
        return tuple(sizes)


def _read_by(value: Any) -> set[int]:
    """Slots without which a value cannot be computed."""
    return {slot for _, slot in value.symbols} if isinstance(value, Computed) else set()


def _is_directed(left: Side, right: Side, as_written: bool) -> bool:
    """Whether a law leads from the left side to one that is plainer: definitions are written with the defined operator first."""
    if len(left) != 1:
        return False
    root = left[0]
    if as_written and is_fused(root.op):
        return True
    if any(map(is_fused, set(_operators(right[0])) - set(_operators(root)))):
        return False
    counts = [Counter(_operators(side)) for side in (left[0], right[0])]
    leaves = [Counter(_leaves(side)) for side in (left[0], right[0])]
    if any(leaves[1][name] > count for name, count in leaves[0].items()):
        return False
    sizes = [count.total() for count in counts]
    turned = counts[0] == counts[1] and len(counts[0]) == 1 and sizes[0] == 2  # associativity
    return sizes[1] < sizes[0] or (sizes[1] == sizes[0] and as_written and not turned)


def _operators(term: Term) -> Iterator[str]:
    """Names of operators, as often as they occur in the tree."""
    return (part.op for part in occurrences(term) if part.inputs)


def _leaves(term: Term) -> Iterator[str]:
    """Names of variables, as often as they occur in the tree."""
    return (part.name for part in occurrences(term) if part.is_var)
