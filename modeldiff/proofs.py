"""Proofs that what changed is equal: a rule from the nodes before to those after, found by the prover, checked, and matched.

The nodes between a value and the values that both models have are a term on each side. Where the prover finds a certificate for
their equation, the checker accepts the rule, and the rule's guards are shown at that very place of the model before the change,
nothing is left to numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modeldiff.pairing import EqualityClaim, Pairing
from modeldiff.sides import ComparedModel
from mugraph.deadline import Deadline
from mugraph.onnx.fold import Folder
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, const, rebuild, substitute, var, variables
from rewriter.search.match import NoMatch, RootIndex, check_guards, compile_rules, find_root_matches, join
from rewriter.search.ranges import RangeOracle
from rulegen.candidate import CandidateRule, candidate_types
from rulegen.mine.cuts import number, shortest
from rulegen.prove.prover import Proof, Prover
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["Judged", "Proofs"]

_OPERATORS = 24
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
    """

    is_proved: bool
    rule: Rule | None = None
    ships: bool = False
    why_not: str = ""
    equation: str = ""


class Proofs:
    """Proves the claims of a pairing.

    Args:
        deadline: after it no proof is begun.
    """

    def __init__(self, pairing: Pairing, deadline: Deadline) -> None:
        self._pairing, self._deadline = pairing, deadline
        self._known: dict[object, Rule | str] = {}
        model = pairing.before.model
        op_types = {index: origin.op_type for index, origin in enumerate(model.origins)}
        defaults = {model.values[name]: default for name, default in model.defaults.items()}
        self._oracle = RangeOracle(op_types, True, Folder(model, model.graph).fold, defaults, True)

    @cached_property
    def _prover(self) -> Prover:
        return Prover()

    @cached_property
    def _shipped(self) -> frozenset[str]:
        return frozenset(rule.id for rule in shipped_rules())

    def judged(self, claim: EqualityClaim) -> Judged:
        """A claim, proved where that is found out in time."""
        before, after = self._pairing.before, self._pairing.after
        if before.tables.constant[claim.before] and after.tables.constant[claim.after]:
            return Judged(True)
        equation = self._equation(claim)
        if isinstance(equation, str):
            return Judged(False, why_not=equation)
        candidate, leaves = equation
        text = str(candidate)
        rule = self._rule(candidate)
        if isinstance(rule, str) and (shortened := _shortened(candidate.target[0])) is not candidate.target[0]:
            rule = self._rule(CandidateRule(candidate.source, (shortened,), candidate.types))
        if isinstance(rule, str):
            return Judged(False, why_not=rule, equation=text)
        if (problem := self._unmatched(rule, claim, leaves)) is not None:
            return Judged(False, why_not=problem, equation=text)
        return Judged(True, rule, rule.id in self._shipped, equation=text)

    def _equation(self, claim: EqualityClaim) -> tuple[CandidateRule, dict[str, int]] | str:
        """The two sides over what both models have by then, and the values that the variables are; or why there are none."""
        pairing = self._pairing
        node = pairing.after.maker(claim.after)
        place = len(pairing.after.nodes) if node is None else pairing.after.place[node]
        shared = {value for value, first in pairing.first.items() if first < place}
        leaves: dict[str, int] = {}

        def known(value: int) -> str | None:
            stands = pairing.stands_for(value)
            if stands not in shared and pairing.before.maker(value) is not None:
                return None
            leaves[f"v{stands}"] = stands
            return f"v{stands}"

        def paired(value: int) -> str | None:
            pair = pairing.pair_of(value) if pairing.after.made(value) != own else None
            return f"v{pair}" if pair is not None else None if pairing.after.maker(value) is not None else f"o{value}"

        own = pairing.after.made(claim.after)
        source = _term(pairing.before, claim.before, known)
        if isinstance(source, str):
            return source
        target = _term(pairing.after, claim.after, paired)
        if isinstance(target, str):
            return target
        if unread := [t.name for t in variables([target]) if t.name not in {s.name for s in variables([source])}]:
            return f"it reads what stands for nothing there: {len(unread)} other values or tensors"
        types: dict[str, TensorType] = {}
        for name, value in leaves.items():
            type_ = pairing.before.graph.type(value)
            if type_ is None:
                return f"the type of '{pairing.before.name(value)}' is not known"
            types[name] = type_
        names = {leaf.name: var(f"x{place}") for place, leaf in enumerate(variables([source]))}
        sides = substitute(source, names), substitute(target, names)
        renamed = {names[name].name: type_ for name, type_ in types.items() if name in names}
        candidate = CandidateRule((sides[0],), (sides[1],), candidate_types((sides[0],), (sides[1],), renamed))
        return candidate, {names[name].name: value for name, value in leaves.items() if name in names}

    def _rule(self, candidate: CandidateRule) -> Rule | str:
        """The rule that an equation is, checked; or why there is none. Equal equations are proved once."""
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

    def _unmatched(self, rule: Rule, claim: EqualityClaim, leaves: Mapping[str, int]) -> str | None:
        """Why a rule does not apply where the claim stands; ``None`` where it does."""
        before, reason = self._pairing.before, "it does not match where it was found"
        directions = [direction for direction in compile_rules([rule]) if direction.forward]
        for root in find_root_matches(before.graph, RootIndex(directions), before.made(claim.before)):
            match = next(join(root.direction, [[root]]))
            bound = {name: self._pairing.stands_for(value) for name, value in match.variables}
            if any(bound.get(name, value) != value for name, value in leaves.items()):
                continue
            shown = check_guards(match, before.graph, self._oracle)
            if not isinstance(shown, NoMatch):
                return None
            reason = shown.reason
        return reason


def _shortened(target: Term) -> Term:
    """A term whose float attributes have the fewest digits that round to them in float32, as ONNX keeps them: 1e-06, not
    9.99999997e-07. Scalar constants of a model are read so, too."""
    return rebuild(target, lambda leaf: leaf, lambda value: shortest(np.float32(value)) if isinstance(value, float) else value)


def _term(side: ComparedModel, root: int, leaf: Callable[[int], str | None]) -> Term | str:
    """The term that computes a value, or why there is none.

    Args:
        leaf: the variable for a value; ``None`` for one that is written out. Of the value itself it is not asked.
    """
    terms: dict[int, Term] = {}
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
        terms[value] = Term(node.op, node.attrs, tuple(terms[side.made(v)] for v in node.inputs), out)
    return terms[start]
