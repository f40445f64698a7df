"""The proof finder: certificates from the e-graph, and the weakest conditions under which they hold.

Range predicates (no NaN, ...) that a property cites are assumed and become conditions of the rule. Nothing here is
trusted: :mod:`rules_db.trust.check` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.terms.shape import ShapeError, TensorType
from mugraph.terms.term import Term, variables, walk
from rulegen.candidate import CandidateRule
from rulegen.prove.admission import Assumption
from rulegen.prove.compile import is_fused
from rulegen.prove.egraph import EGraph, Reason
from rulegen.prove.instances import Instances
from rulegen.prove.language import Language
from rulegen.prove.patterns import fill
from rulegen.prove.reduction import reduced
from rulegen.prove.search import ProofLimits, ProofPart, ProofSearch
from rulegen.prove.selection import Laws
from rulegen.prove.waypoints import waypoints
from rulegen.prove.weakest import weakest_conditions
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = ["Proof", "Prover", "proof_in"]


@dataclass(frozen=True)
class Proof:
    """A certificate and the conditions under which it holds: both go into the rule as they are."""

    certificate: Certificate
    conditions: tuple[Condition, ...]

    def rule(self, candidate: CandidateRule, float_class: FloatClass, provenance: Mapping[str, str]) -> Rule:
        """The candidate that it proves, as a rule."""
        sides = candidate.source, candidate.target
        return Rule(*sides, candidate.types, self.conditions, float_class, self.certificate, provenance)


@dataclass(frozen=True)
class _Attempt:
    """A search of a goal: its greatest number of nodes, and the conditions on values that its laws may have.

    Attributes:
        assume: whether they may have any.
        assumed: ``()`` where only evident conditions are admitted, ``None`` for any (see :class:`ProofSearch`).
        plain: whether it is for goals with fused operators alone, which meet in plain terms and go on from there.
    """

    nodes: int
    assume: bool
    assumed: tuple[()] | None = None
    plain: bool = False


_QUIET = _Attempt(120, assume=False)
_EVIDENT = _Attempt(400, assume=True, assumed=())
_ANYTHING = _Attempt(400, assume=True)
_LONG = _Attempt(1000, assume=False)
"""The quiet attempt again with more nodes: a goal that needs no more than a positive number should not have to wait for it."""
_PLAIN = _Attempt(700, assume=False, plain=True)
_PLAIN_ASKING = _Attempt(700, assume=True, plain=True)
_ORDER = (
    (_QUIET, ProofPart.FAMILIAR),
    (_EVIDENT, ProofPart.FAMILIAR),
    (_QUIET, ProofPart.ALL),
    (_EVIDENT, ProofPart.ALL),
    (_PLAIN, ProofPart.DIRECTED),
    (_PLAIN_ASKING, ProofPart.DIRECTED),
    (_PLAIN, ProofPart.FAMILIAR),
    (_PLAIN, ProofPart.ALL),
    (_ANYTHING, ProofPart.FAMILIAR),
    (_ANYTHING, ProofPart.ALL),
    (_LONG, ProofPart.FAMILIAR),
    (_LONG, ProofPart.ALL),
)


class Prover:
    """The properties compiled once; reuse it for many goals.

    Args:
        axioms: operator properties by name; the package's own where left out.
        limits: where a search gives up.
    """

    def __init__(self, axioms: Mapping[str, Axiom] | None = None, limits: ProofLimits | None = None) -> None:
        self.axioms = load_axioms() if axioms is None else axioms
        self.limits = limits or ProofLimits()
        self._language = Language()
        self._laws = Laws(self._language)
        for axiom in self.axioms.values():
            self._laws.add(axiom)
        about_values = [a for a in self.axioms.values() if any(c.guard.of_values for c in a.conditions)]
        roots = {side.op for axiom in about_values for side in (axiom.left, axiom.right)} - {"Var", "Const"}
        self._asking = [frozenset({op}) for op in roots if op != "Concat"] + [frozenset({"Concat", "Slice"})]

    def certify(
        self,
        source: Side,
        target: Side,
        types: Mapping[str, TensorType],
        limits: ProofLimits | None = None,
        given: Sequence[Condition] = (),
    ) -> Proof | None:
        """A proof that every output of ``target`` equals that of ``source``, or ``None`` (unknown) within the limits.

        Args:
            source, target: outputs in the same order.
            types: sample types of all variables; symbols stand for distinct sizes.
            limits: where a search gives up; the prover's own where left out.
            given: conditions on values that may be asked whatever the law: what makes an operator superfluous, as in Relu(x) = x,
                is otherwise asked only where it is evident.

        Raises:
            ShapeError: a side is ill-typed under the sample types, or typing it depends on their symbols.
        """
        if len(source) != len(target):
            raise ValueError(f"{len(source)} outputs on the left and {len(target)} on the right")
        limits = limits or self.limits
        operators = {term.op for term in walk([*source, *target])}
        asks = bool(given) or any(wanted <= operators for wanted in self._asking)
        fused = any(map(is_fused, operators))
        evident: Proof | None = None
        searches: dict[_Attempt, ProofSearch] = {}
        for attempt, part in _ORDER:
            if (attempt.assume and not asks) or (attempt.plain and not fused):
                continue
            nodes = min(attempt.nodes, limits.nodes)
            if attempt not in searches:
                if (attempt == _ANYTHING and not searches[_EVIDENT].withheld) or (
                    attempt == _LONG and len(searches[_QUIET].graph.op) <= min(_QUIET.nodes, limits.nodes)
                ):
                    continue  # would do again what was done
                graph, goals, longer = self._goals(source, target, types)
                if any(graph.type[a] != graph.type[b] for a, b in goals):
                    return None
                assumed = None if attempt.assumed is None else [*attempt.assumed, *_assumptions(graph, given, types)]
                searches[attempt] = ProofSearch(graph, self._laws, goals, attempt.assume, assumed, longer)
            search = searches[attempt]
            if attempt == _EVIDENT and evident is not None:
                return evident
            if search.run_part(replace(limits, nodes=nodes), part):
                proof = proof_in(search.graph, search.goals, types)
                if attempt != _EVIDENT or part is ProofPart.ALL or not _asks_of_variables(proof):
                    return proof
                evident = proof  # unless a little more of the quiet search does without
        return None

    def evident(self, condition: Condition) -> bool:
        """Whether a condition on values holds whatever the inputs, if these are finite: Relu(x) is not negative."""
        return self._language.evident(condition.predicate, condition.terms()[0])

    def _goals(self, source: Side, target: Side, types: Mapping[str, TensorType]) -> tuple[EGraph, list[tuple[int, int]], int]:
        """A new e-graph of both sides and their waypoints, the pairs of nodes that are to become equal, and how many more
        operators a waypoint has than what it stands for."""
        graph = EGraph(self._language)
        nodes: dict[Term, int] = {}
        for term in (*source, *target):
            node = graph.add_term(term, types)
            if node is None:
                raise ShapeError(f"{term!r} is ill-typed under the sample types")
            nodes[term] = node
        ways = waypoints([*source, *target], types)
        for way in ways:
            graph.add_term(way.term, types)
        goals = [(nodes[s], nodes[t]) for s, t in zip(source, target, strict=True)]
        return graph, goals, max([way.longer for way in ways], default=0)


def proof_in(graph: EGraph, goals: Sequence[tuple[int, int]], types: Mapping[str, TensorType]) -> Proof:
    """The proof of goals, pairs of nodes of one class, from what joined them in an e-graph whose laws are operator properties."""
    reasons, typed = reduced(graph, goals, graph.explain(goals))
    instances = sorted((_instance(graph, reason) for reason in reasons), key=str)
    conditions = weakest_conditions([c for reason in reasons for c in _conditions(graph, reason)], types)
    conditions += sorted((Condition("typed", (graph.term(node),)) for node in typed), key=str)
    return Proof(Certificate(tuple(instances)), tuple(conditions))


def _assumptions(graph: EGraph, given: Sequence[Condition], types: Mapping[str, TensorType]) -> Iterator[Assumption]:
    """Conditions on values, of nodes of a graph. Raises ShapeError where a term is ill-typed."""
    for condition in given:
        if not condition.guard.of_values:
            continue
        arguments = [graph.add_term(a, types) if isinstance(a, Term) else a for a in condition.arguments]
        if None in arguments:
            raise ShapeError(f"{condition} speaks of what is ill-typed under the sample types")
        yield condition.predicate, tuple(arguments)


def _asks_of_variables(proof: Proof) -> bool:
    """Whether a condition on values is not about constants alone."""
    return any(c.guard.of_values and variables(c.terms()) for c in proof.conditions)


def _instance(graph: EGraph, reason: Reason) -> Instance:
    law = reason.direction.law
    assert isinstance(law.origin, Axiom)
    terms = tuple((name, graph.term(n)) for name, n in zip(law.variables, reason.nodes, strict=True))
    return Instance(law.origin.name, terms, tuple(zip(law.attr_variables, reason.values, strict=True)), law.origin.digest[:8])


def _conditions(graph: EGraph, reason: Reason) -> Iterator[Condition]:
    """The conditions of an instance, but for terms to be well-typed."""
    binding, instances = [*reason.nodes, *reason.values], Instances(graph)
    for predicate, arguments, is_term in reason.direction.conditions:
        if predicate != "typed":
            parts = [instances.term(a, binding) if t else fill(a, binding) for a, t in zip(arguments, is_term, strict=True)]
            yield Condition(predicate, tuple(parts))
