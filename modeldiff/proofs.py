"""Proofs that what changed is equal: a rule from the nodes before to those after, found by the prover, checked, and matched.

The nodes between a value and the values that both models have are a term on each side. Where the prover finds a certificate for
their equation, the checker accepts the rule, and the rule's guards are shown at that very place of the model before the change,
nothing is left to numbers but what depends on constants alone: stored tensors of the model after are spelled as what they are
computed of (:mod:`modeldiff.weights`), and constants that are one number throughout as that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np

from modeldiff.pairing import EqualityClaim, Pairing
from modeldiff.sides import ComparedModel, defining_numbers, rounding_of
from modeldiff.weights import Nearby, WeightOrigins, merged, normalised
from mugraph.blocks.operator import KERNEL
from mugraph.deadline import Deadline
from mugraph.domains.base import FLOATS
from mugraph.graph import Node
from mugraph.onnx.fold import Folder
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Attrs, Term, const, make, rebuild, replace_terms, substitute, var, variables, walk
from rewriter.run.accept import FLOORS
from rewriter.search.directions import Direction
from rewriter.search.guards import check_guards
from rewriter.search.match import NoMatch, RootIndex, find_root_matches, join
from rewriter.search.ranges import RangeOracle
from rulegen.candidate import CandidateRule, candidate_types
from rulegen.mine.cuts import number, shortest
from rulegen.prove.prover import Proof, Prover
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["Judged", "Proofs", "ProvedEquations"]

_OPERATORS = 32
"""Most operators of the two sides of an equation that is given to the prover."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known of a claim.

    Attributes:
        is_proved: by ``rule``, or since both values are constants, which were computed.
        rule: whose certificate proves it, whether or not it ships.
        ships: the rule is one of those that the package ships.
        why_not: what keeps it from being proved.
        equation: in terms of the values that both models have; empty where it is too large to be written.
        composed: how far tensors that only the model after has are from what the equation says that they are made of.
        beyond: on which operands, that no input gives, the two are not equal; empty where they were found on none.
        by_bodies: it is proved since two control-flow nodes read the same and their bodies are proved equal.
    """

    is_proved: bool
    rule: Rule | None = None
    ships: bool = False
    why_not: str = ""
    equation: str = ""
    composed: tuple[float, ...] = ()
    by_bodies: bool = False
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class _Equation:
    """A claim as two terms.

    Attributes:
        pattern: the source as the model before has it, with variables for what ``filled`` are.
        types: of all variables, those of the pattern, too.
        values: of the model before, that the variables are.
        filled: variables of the pattern that are constants of one number throughout, and these as terms.
        errors: of the tensors that are spelled as what they are made of.
    """

    candidate: CandidateRule
    pattern: Term
    types: Mapping[str, TensorType]
    values: Mapping[str, int]
    filled: Mapping[str, Term]
    errors: tuple[float, ...]


class ProvedEquations:
    """Equations and the rules that they are; equal ones are proved once.

    Args:
        deadline: after it no proof is begun.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._known: dict[object, Rule | str] = {}

    @cached_property
    def _prover(self) -> Prover:
        return Prover()

    @cached_property
    def _shipped(self) -> frozenset[str]:
        return frozenset(rule.id for rule in shipped_rules())

    def ships(self, rule: Rule) -> bool:
        """Whether a rule is one of those that the package ships."""
        return rule.id in self._shipped

    def rule(self, candidate: CandidateRule) -> Rule | str:
        """The rule that an equation is, checked; or why there is none."""
        key = (*candidate.source, *candidate.target, *sorted(candidate.types.items()))
        if key not in self._known:
            if self._deadline.is_over():
                return "the time for proofs was over"
            self._known[key] = self._proved(candidate)
        return self._known[key]

    def _proved(self, candidate: CandidateRule) -> Rule | str:
        try:
            proof: Proof | None = self._prover.certify(candidate.source, candidate.target, candidate.types)
        except (ShapeError, Undecided, KeyError) as problem:
            return f"it cannot be typed: {problem}"
        if proof is None:
            return "no certificate was found"
        rule = proof.rule(candidate, FloatClass.REASSOCIATES, {})
        problems = check(rule, load_axioms())
        return f"the checker objects: {problems[0]}" if problems else rule


class Proofs:
    """Proves the claims of a pairing.

    Attributes:
        oracle: of the ranges of values of the model before.
    """

    def __init__(self, pairing: Pairing, equations: ProvedEquations) -> None:
        self.pairing, self._equations = pairing, equations
        model = pairing.before.model
        op_types = {index: origin.op_type for index, origin in enumerate(model.origins)}
        defaults = {model.values[name]: default for name, default in model.defaults.items()}
        self._weights = WeightOrigins(pairing.before, pairing.after)
        self.oracle = RangeOracle(op_types, True, Folder(model, model.graph).fold, defaults, True)

    @property
    def origins(self) -> int:
        """Of how many stored tensors it is known what they are made of: a claim that was judged before may be proved by more."""
        return self._weights.count

    def judged(self, claim: EqualityClaim) -> Judged:
        """A claim, proved where that is found out in time."""
        before, after = self.pairing.before, self.pairing.after
        if before.tables.constant[claim.before] and after.tables.constant[claim.after]:
            return Judged(claim.rounds, why_not="" if claim.rounds else "an entry is further away than it may be rounded")
        equation = self._equation(claim)
        if isinstance(equation, str):
            return Judged(False, why_not=equation)
        reasons: list[str] = []
        for spelled in _spellings(equation):
            rule = self._equations.rule(spelled.candidate)
            problem = self._unmatched(rule, claim, spelled) if isinstance(rule, Rule) else rule
            if isinstance(rule, Rule) and problem is None:
                return Judged(True, rule, self._equations.ships(rule), "", str(spelled.candidate), equation.errors)
            reasons += [problem] if problem else []
        return Judged(False, why_not=reasons[0], equation=str(equation.candidate))

    def _equation(self, claim: EqualityClaim) -> _Equation | str:
        """The two sides over what both models have by then; or why there are none."""
        pairing = self.pairing
        node = pairing.after.maker(claim.after)
        place = len(pairing.after.nodes) if node is None else pairing.after.place[node]
        shared = {value for value, first in pairing.first.items() if first < place}
        own = pairing.after.made(claim.after)

        def known(value: int) -> str | None:
            stands = pairing.stands_for(value)
            return f"v{stands}" if stands in shared or pairing.before.maker(value) is None else None

        def paired(value: int) -> str | None:
            pair = pairing.pair_of(value) if pairing.after.made(value) != own or node is None else None
            return f"v{pair}" if pair is not None else None if pairing.after.maker(value) is not None else f"o{value}"

        written: dict[int, Term] = {}
        source = _term(pairing.before, claim.before, known, written)
        if isinstance(source, str):
            return source
        target = _term(pairing.after, claim.after, paired, {}, pairing.attrs_of)
        if isinstance(target, str):
            return target
        target, errors = self._composed(source, target, written)
        source, target, written = self._unfolded(claim, source, target, written)
        source, filled = self._filled(source, target, written)
        leaves = variables([source, target])
        if unread := [leaf.name for leaf in leaves if leaf.name[0] == "o"]:
            return f"it reads what stands for nothing there: {len(unread)} other tensors"
        types: dict[str, TensorType] = {}
        names: dict[str, Term] = {}
        values: dict[str, int] = {}
        for leaf in leaves:
            value, name = int(leaf.name[1:]), f"x{len(names)}"
            type_ = pairing.before.graph.type(value)
            if type_ is None:
                return f"the type of '{pairing.before.name(value)}' is not known"
            names[leaf.name], types[name], values[name] = var(name), type_, value
        pattern, target = substitute(source, names), substitute(target, names)
        spelled = {names[name].name: term for name, term in filled.items()}
        rounded = [_rounded_to(pattern, types), _rounded_to(target, types)]
        if rounded[0] != rounded[1]:
            first, second = (str(dtype or "no other type") for dtype in rounded)
            return f"the one before rounds to {first} on the way, the one after to {second}"
        sides = (substitute(pattern, spelled),), (target,)
        return _Equation(CandidateRule(*sides, candidate_types(*sides, types)), pattern, types, values, spelled, errors)

    def _filled(self, source: Term, target: Term, written: Mapping[int, Term]) -> tuple[Term, dict[str, Term]]:
        """A source with variables for constants of one number throughout, of which the target reads nothing; and what they are.

        A tool drops an addend of zeros, or a mask that hides nothing, for what it is.
        """
        before, read = self.pairing.before, set(variables([target]))
        found: dict[Term, Term] = {}
        filled: dict[str, Term] = {}
        for value, term in written.items():
            type_, arrays = before.graph.type(value), self.pairing.numbers_before(value)
            if term.op == "Const" or not before.tables.constant[value] or read.intersection(variables([term])):
                continue
            if type_ is None or type_.dtype not in FLOATS or not arrays or not arrays[0].size:
                continue
            number = arrays[0].flat[0]
            if np.isfinite(number) and (arrays[0] == number).all():
                stands = self.pairing.stands_for(value)
                found[term] = var(f"v{stands}")
                filled[f"v{stands}"] = make("Expand", [const(float(number))], {"shape": arrays[0].shape})
        source = replace_terms(source, found)
        return source, {leaf.name: filled[leaf.name] for leaf in variables([source]) if leaf.name in filled}

    def _composed(self, source: Term, target: Term, written: Mapping[int, Term]) -> tuple[Term, tuple[float, ...]]:
        """A target whose own tensors are spelled as what they are made of, and how far these are from them."""
        tables = self.pairing.before.tables
        tensors = tuple(value for leaf in variables([source]) if (value := int(leaf.name[1:])) in tables.constants)
        numbers = tuple(n for term in walk([source]) if term.op == "Const" and isinstance(n := term.attr("value"), float))
        inner = [(value, term) for value, term in written.items() if tables.constant[value] and term.inputs]
        computed = [(term, arrays[0]) for value, term in inner if (arrays := self.pairing.numbers_before(value))]
        stored = {f"v{value}" for value in tensors}
        products = [each for of in (merged, normalised) for each in of(source, lambda term: term.is_var and term.name in stored)]
        factors = Nearby(tensors, numbers, tuple(computed), tuple(dict.fromkeys(products)))
        spelled: dict[str, Term] = {}
        errors: list[float] = []
        for leaf in variables([target]):
            made = self._weights.made_of(int(leaf.name[1:]), factors) if leaf.name[0] == "o" else None
            if made is not None:
                stands = {f"v{value}": var(f"v{self.pairing.stands_for(value)}") for value in made.leaves}
                spelled[leaf.name] = substitute(made.term, stands)
                errors.append(made.error)
        return substitute(target, spelled), tuple(errors)

    def _unfolded(
        self, claim: EqualityClaim, source: Term, target: Term, written: dict[int, Term]
    ) -> tuple[Term, Term, dict[int, Term]]:
        """The sides, and what is written of the source, where both read the same values as far as one follows the other.

        What is computed of a value may give it back, as where a tensor is reshaped twice. So values that the target alone reads
        are written out as the model before computes them of the source's, and the source down to those that it is computed of.
        """
        before = self.pairing.before
        sides = [{int(leaf.name[1:]) for leaf in variables([side]) if leaf.name[0] == "v"} for side in (source, target)]
        late = {value for value in sides[1] - sides[0] if not before.tables.constant[value]}
        if not late:
            return source, target, written
        below = self.pairing.following(late) - sides[1]
        if below & sides[0]:
            inner = {self.pairing.stands_for(value) for value, term in written.items() if term.inputs}
            longer: dict[int, Term] = {}
            deeper = _term(before, claim.before, self._cut(below | inner), longer)
            source, written = (source, written) if isinstance(deeper, str) else (deeper, longer)
        below = self.pairing.following({self.pairing.stands_for(v) for v in written if not before.tables.constant[v]})
        spelled: dict[str, Term] = {}
        for value in late & below:
            term = _term(before, value, self._cut(below), dict(written))
            spelled |= {} if isinstance(term, str) else {f"v{value}": term}
        return source, substitute(target, spelled), written

    def _cut(self, inner: Collection[int]) -> Callable[[int], str | None]:
        """The variables for values of the model before, of which some are written out."""

        def leaf(value: int) -> str | None:
            stands = self.pairing.stands_for(value)
            return None if stands in inner and self.pairing.before.maker(value) is not None else f"v{stands}"

        return leaf

    def _unmatched(self, rule: Rule, claim: EqualityClaim, equation: _Equation) -> str | None:
        """Why a rule does not apply where the claim stands; ``None`` where it does.

        What the target alone reads are values of the model before, too: the rule holds of whatever they are.
        """
        before, reason = self.pairing.before, "it does not match where it was found"
        if any(term.op == KERNEL for term in walk([*rule.source, *rule.target])):
            return "rules with custom kernels match at the sizes alone for which these were made"
        pattern = Direction(replace(rule, source=(equation.pattern,), types=equation.types), True)
        for root in find_root_matches(before.graph, RootIndex([pattern]), before.made(claim.before)):
            match = next(join(pattern, [[root]]))
            bound = {name: self.pairing.stands_for(value) for name, value in match.variables}
            if any(bound.get(name, value) != value for name, value in equation.values.items()):
                continue
            binding = {var(name): value for name, value in equation.values.items() if name in rule.types}
            for term, value in match.binding.items():
                filled = equation.filled.get(term.name) if term.is_var else None
                binding[substitute(term, equation.filled)] = value if filled is None else self._literal(value)
            match = replace(match, direction=Direction(rule, True), binding=binding)
            shown = check_guards(match, before.graph, self.oracle)
            if not isinstance(shown, NoMatch):
                return None
            reason = shown.reason
        return reason

    def _literal(self, value: int) -> int:
        """A stored tensor that is what the model before computes of constants."""
        before, arrays = self.pairing.before, self.pairing.numbers_before(value)
        type_ = before.graph.type(value)
        assert arrays is not None and type_ is not None, "it is filled with one number"
        return before.tables.literal(arrays[0].astype(type_.dtype.numpy()), type_)


def _spellings(equation: _Equation) -> Iterator[_Equation]:
    """An equation with other numbers that are the models' own when they are rounded as these have them."""
    candidate = equation.candidate
    (source,), (target,) = candidate.source, candidate.target
    yield equation
    if (shortened := _shortened(target)) is not target:
        yield replace(equation, candidate=CandidateRule((source,), (shortened,), candidate.types))
    known = _exact_numbers(target, candidate.types)
    exact = {rounded: number for number in known if 0 < abs(rounded := _single(number)) < math.inf}
    numbers = {n for term in walk([source]) if term.op == "Const" and isinstance(n := term.attr("value"), float)}
    sharpened = {const(n): const(exact[_single(n)]) for n in numbers if exact.get(_single(n), n) != n}
    if sharpened:
        sides = (replace_terms(source, sharpened),), (target,)
        pattern = replace_terms(equation.pattern, sharpened)
        yield replace(equation, candidate=CandidateRule(*sides, candidate.types), pattern=pattern)


def _rounded_to(term: Term, types: Mapping[str, TensorType]) -> DataType | None:
    """The least exact type that a term rounds to by a Cast and that is less exact than its own: proofs see no Cast."""
    try:
        inferred = infer_types([term], types)
    except (ShapeError, Undecided, KeyError):
        return None
    own = FLOORS.get(inferred[term].dtype, 0.0)
    casts = (part for part in walk([term]) if part.op == "Cast")
    rounded = (rounding_of(inferred[part.inputs[0]], inferred[part]) for part in casts)
    return max((r for r in rounded if r is not None and FLOORS[r] > own), key=FLOORS.__getitem__, default=None)


def _single(number: float) -> np.float32:
    """A number as float32 has it; infinity beyond that."""
    with np.errstate(over="ignore"):
        return np.float32(number)


def _exact_numbers(target: Term, types: Mapping[str, TensorType]) -> Iterator[float]:
    """Numbers of which a model that spells a term out has roundings: those of definitions, as √(2/π) in a Gelu, the square
    roots of factors, which scores of attention are often divided between queries and keys, and what one divides by for either."""
    try:
        inferred = infer_types([target], types)
        for term in walk([target]):
            if term.inputs:
                numbers = [*defining_numbers(term.op, term.attrs, [inferred[operand] for operand in term.inputs])]
                numbers += (math.sqrt(v) for _, v in term.attrs if isinstance(v, float) and v > 0)
                yield from (1 / number for number in numbers if number)
                yield from numbers
    except (ShapeError, Undecided):
        return


def _shortened(target: Term) -> Term:
    """A term whose float attributes have the fewest digits that round to them in float32, as ONNX keeps them: 1e-06, not
    9.99999997e-07. Scalar constants of a model are read so, too."""
    return rebuild(target, lambda leaf: leaf, lambda value: shortest(np.float32(value)) if isinstance(value, float) else value)


def _term(
    side: ComparedModel,
    root: int,
    leaf: Callable[[int], str | None],
    terms: dict[int, Term],
    attrs_of: Callable[[Node], Attrs] = attrgetter("attrs"),
) -> Term | str:
    """The term that computes a value, or why there is none.

    Args:
        leaf: the variable for a value; ``None`` for one that is written out. Of the value itself it is not asked.
        terms: of values that are written already; those that are written here are entered.
        attrs_of: the attributes of a node, with dimension symbols of the model before.
    """
    start = side.made(root)
    stack, count = [start], 0
    while stack:
        value = side.made(stack[-1])
        if value in terms:
            stack.pop()
            continue
        literal = number(side.graph, value)
        if literal is not None:
            terms[value] = const(literal)
            continue
        node = side.maker(value)
        name = leaf(value) if value != start or node is None else None
        if name is not None:
            terms[value] = var(name)
            continue
        assert node is not None, "what nothing computes is a leaf"
        if node.is_opaque:
            return f"nothing is known of {side.label(node)}"
        missing = [v for v in map(side.made, node.inputs) if v not in terms]
        if missing:
            stack.extend(reversed(missing))
            continue
        count += 1
        if count > _OPERATORS:
            return f"more than {_OPERATORS} operators"
        out = node.values.index(value)
        terms[value] = Term(node.op, attrs_of(node), tuple(terms[side.made(v)] for v in node.inputs), out)
    return terms[start]
