"""Whether a rule that matched may be applied: element types, sizes and every condition, as far as the model tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.domains.range import Range, RangeDomain, unrepeated
from mugraph.graph import Graph
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import AttrValue, Term, bind_value, walk
from rewriter.search.bindings import close_attrs, float_key, literal_type, match_dtype, tensor_type
from rewriter.search.match import Match, NoMatch, bind_dims
from rewriter.search.ranges import Assumption, RangeOracle, is_square
from rewriter.search.reshapes import need_entries
from rewriter.search.windows import needs_fitting_windows
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.verbatim import is_verbatim

__all__ = ["ModelFacts", "beyond_numbers", "check_guards"]


class ModelFacts(Facts):
    """Types and ranges of a rule's terms at a match: looked up where the model has the term, inferred elsewhere."""

    def __init__(self, match: Match, graph: Graph, oracle: RangeOracle, binding: Mapping[str, AttrValue]) -> None:
        self.match, self.graph, self.oracle = match, graph, oracle
        self._types: dict[Term, TensorType] = {}
        self._literal = literal_type(match.direction, binding)
        super().__init__(self._type, self._range, binding, self._value, is_attended=self._attended)

    def _type(self, root: Term) -> TensorType:
        for term in walk([root]):
            if term in self._types:
                continue
            value = self.match.binding.get(term) if term.op != "Const" else None
            model_type = self.graph.type(value) if value is not None else None
            if model_type is not None:
                self._types[term] = model_type
            elif term.op == "Const":
                dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else self._literal
                self._types[term] = TensorType(dtype, ())
            elif term.is_var:
                raise ShapeError(f"variable {term.name} is not bound")
            elif not term.inputs:
                self._types[term] = tensor_type(term.op, close_attrs(term.attrs, self.binding), self._literal)
            else:
                attrs, literal = close_attrs(term.attrs, self.binding), [i.op == "Const" for i in term.inputs]
                self._types[term] = infer_output(term.op, attrs, term.out, [self._types[i] for i in term.inputs], literal)
        return self._types[root]

    def _range(self, root: Term) -> Range:
        ranges: dict[Term, Range] = {}
        for term in walk([root]):
            value = self.match.binding.get(term)
            if value is not None:
                ranges[term] = self.oracle.range(self.graph, value)
                if value in self.oracle.huge and not self.oracle.assume_attended and self._hides_by_numbers:
                    ranges[term] = Range.top()  # beside it a mask of the rule hides nothing where it is hidden itself
            elif term.op == "Const":
                ranges[term] = RangeDomain().const(bind_value(term.attr("value"), self.binding))
            elif is_square(term.op, term.inputs):
                ranges[term] = RangeDomain().power(ranges[term.inputs[0]], 2)
            else:
                operator = get_operator(term.op)
                attrs = close_attrs(term.attrs, self.binding)
                ranges[term] = operator.run(RangeDomain(), attrs, [ranges[i] for i in term.inputs])[term.out]
        return ranges[root]

    @cached_property
    def _hides_by_numbers(self) -> bool:
        """Whether a mask of the rule hides by finite numbers, which count as -inf beside ordinary ones alone.

        What another mask hides as well has a number of the same size in the model: a row in which the two leave nothing becomes
        the mean of more values than that of what the first one shows.
        """
        terms = {t for c in self.match.direction.rule.conditions if c.guard.of_entries for t in c.terms()}
        values = [(self._type(term), self._value(term)) for term in terms]
        numbers = [unrepeated(value) for type_, value in values if value is not None and type_.dtype in FLOATS]
        return any(bool((np.isfinite(number) & (number < 0)).any()) for number in (array.astype(np.float64) for array in numbers))

    def _attended(self, condition: Term) -> bool:
        """Whether the oracle may assume of what a condition shows that it leaves each row something."""
        conditions = list(self._conjuncts(condition, True))
        known = [(value, truth) for value, truth in conditions if value is not None]
        return len(known) == len(conditions) and self.oracle.attends(self.graph, known)

    def _conjuncts(self, condition: Term, truth: bool) -> Iterator[tuple[int | None, bool]]:
        """The values that are true or false where a condition is; ``None`` for what the model does not compute."""
        value = self.match.binding.get(condition)
        if value is not None or condition.op not in ("Not", "And"):
            yield value, truth
        elif condition.op == "Not":
            yield from self._conjuncts(condition.inputs[0], not truth)
        else:
            for part in condition.inputs if truth else ():
                yield from self._conjuncts(part, truth)
            if not truth:
                yield None, truth

    def _value(self, term: Term) -> np.ndarray | None:
        value = self.match.binding.get(term)
        return None if value is None else self.oracle.value(self.graph, value)


def check_guards(match: Match, graph: Graph, oracle: RangeOracle) -> NoMatch | dict[str, AttrValue]:
    """Tests element types and every condition of the rule; returns the values of its symbols, or why the rule does not apply."""
    dims = bind_dims(match, graph)
    missing = match.direction.free_dims - dims.keys()
    if missing:
        return NoMatch(f"the size {', '.join(sorted(missing))} is not bound", match.values[0])
    floats = match.direction.floats
    for term, value in match.binding.items():
        if term.is_var:
            actual = graph.type(value)
            assert actual is not None
            wanted = match.direction.rule.types[term.name].dtype
            if match_dtype(floats, wanted, actual.dtype, dims):
                continue
            has = f"{term!r} has element type {actual.dtype.name.lower()}"
            if wanted not in FLOATS or len(floats) > 1:
                bound = dims.get(float_key(wanted), wanted)
                return NoMatch(f"{has}, not {bound.name.lower()}", value)
            differ = actual.dtype in FLOATS
            return NoMatch("element types differ" if differ else f"{has}, the rule is about floats", value)
    for term in match.direction.interior:
        definition = graph.definition(match.binding[term]) if term.attrs and term.op != "Const" else None
        if definition is not None and close_attrs(term.attrs, dims) != definition[0].attrs:
            return NoMatch(f"attributes of {term!r} are not those of {definition[0].op}", match.values[0])
    facts = ModelFacts(match, graph, oracle, dims)
    for variable in match.direction.solved:
        try:
            dims[f"${variable.name}"] = variable.value(facts)
        except ValueError as problem:
            return NoMatch(f"condition {variable.condition} gives no ${variable.name}: {problem}", match.values[0])
    for condition in match.direction.rule.conditions:
        verdict = _close_condition(condition, dims).holds(facts)
        if verdict is not True:
            return NoMatch(_explain(condition, verdict), match.values[0])
    for divisor in match.direction.brought:
        if not facts.range_of(divisor).nonzero:
            return NoMatch(f"it would divide by {divisor!r}, which may be zero", match.values[0])
    if not oracle.assume_finite and not is_verbatim(match.direction.rule):
        beyond = beyond_numbers(match, graph, oracle)
        if beyond is not None:
            return NoMatch("the rule is proved for numbers, and this value may be infinite or NaN", beyond)
    of_values = [_close_condition(c, dims) for c in match.direction.rule.conditions if c.guard.of_values]
    asks = of_values or match.direction.brought
    needed = [
        assumption
        for assumption, lesser in (oracle.lesser.items() if asks else ())
        if not _shown(of_values, match.direction.brought, ModelFacts(match, graph, lesser, dims))
    ]
    if match.direction.slides and needs_fitting_windows(match.direction.pattern, match.direction.replacement, facts.type_of):
        needed.append(Assumption.FITTING)
    if need_entries(match.direction.reshapes, facts.type_of, lambda attrs: close_attrs(attrs, dims)):
        needed.append(Assumption.NONEMPTY)
    oracle.rely(match.direction.id, match.values, needed)
    return dims


def beyond_numbers(match: Match, graph: Graph, oracle: RangeOracle) -> int | None:
    """A value of a match that may be infinite or NaN for all that ranges tell; ``None`` where there is none."""
    values = (value for term, value in match.binding.items() if term.op != "Const")
    return next((value for value in values if not oracle.is_number(graph, value)), None)


def _shown(conditions: Sequence[Condition], divisors: Sequence[Term], facts: ModelFacts) -> bool:
    """Whether conditions hold, and divisors are not zero, as far as these facts tell."""
    return all(condition.holds(facts) for condition in conditions) and all(facts.range_of(d).nonzero for d in divisors)


def _close_condition(condition: Condition, binding: Mapping[str, AttrValue]) -> Condition:
    """The condition with the model's float types in place of its own; the facts bind all other open values."""
    if not any(isinstance(a, DataType) for a in condition.arguments):
        return condition
    closed = [binding.get(float_key(a), a) if isinstance(a, DataType) else a for a in condition.arguments]
    return Condition(condition.predicate, tuple(closed))


def _explain(condition: Condition, verdict: bool | None) -> str:
    return f"condition {condition} {'does not hold' if verdict is False else 'could not be shown'}"
