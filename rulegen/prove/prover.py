"""The proof finder: certificates from the e-graph, and the weakest conditions under which they hold.

Range predicates (no NaN, ...) that a property cites are assumed and become conditions of the rule. Nothing here is
trusted: :mod:`rules_db.trust.check` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.terms.shape import ShapeError, SymDim, TensorType
from mugraph.terms.term import Term, attr_symbols, variables, walk
from rulegen.prove.egraph import EGraph, Language, Laws, Limits, Part, Reason, Search, fill, is_fused
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.condition import FLOATING, RANGE_PREDICATES, Condition
from rules_db.trust.implied import implied
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Side

__all__ = ["Proof", "Prover", "weakest"]


@dataclass(frozen=True)
class Proof:
    """A certificate and the conditions under which it holds: both go into the rule as they are."""

    certificate: Certificate
    conditions: tuple[Condition, ...]


_Kind = tuple[int, bool, tuple[()] | None]
_QUIET, _EVIDENT, _ANYTHING, _LONG = (120, False, None), (400, True, ()), (400, True, None), (1000, False, None)
_PLAIN, _PLAINER = (700, False, None), (700, True, None)
"""Searches: nodes, and what may be asked of values: nothing; what is evident; anything; nothing again, in a longer search,
for which what only needs a number to be positive should not have to wait. The last two, for goals with operators that stand
for several, meet in plain terms and go on from there."""
_ORDER = (
    (_QUIET, Part.FAMILIAR),
    (_EVIDENT, Part.FAMILIAR),
    (_QUIET, Part.ALL),
    (_EVIDENT, Part.ALL),
    (_PLAIN, Part.DIRECTED),
    (_PLAINER, Part.DIRECTED),
    (_PLAIN, Part.FAMILIAR),
    (_PLAIN, Part.ALL),
    (_ANYTHING, Part.FAMILIAR),
    (_ANYTHING, Part.ALL),
    (_LONG, Part.FAMILIAR),
    (_LONG, Part.ALL),
)


class Prover:
    """The properties compiled once; reuse it for many goals.

    Args:
        axioms: operator properties by name; the package's own where left out.
        limits: where a search gives up.
    """

    def __init__(self, axioms: Mapping[str, Axiom] | None = None, limits: Limits | None = None) -> None:
        self.axioms = load_axioms() if axioms is None else axioms
        self.limits = limits or Limits()
        kinds = dict.fromkeys(kind for kind, _ in _ORDER)
        self._limits = {kind: replace(self.limits, nodes=min(kind[0], self.limits.nodes)) for kind in kinds}
        self._language = Language()
        self._laws = Laws(self._language)
        for axiom in self.axioms.values():
            self._laws.add(axiom)
        about_values = [a for a in self.axioms.values() if any(c.predicate in RANGE_PREDICATES for c in a.conditions)]
        roots = {side.op for axiom in about_values for side in (axiom.left, axiom.right)} - {"Var", "Const"}
        self._asking = [frozenset({op}) for op in roots if op != "Concat"] + [frozenset({"Concat", "Slice"})]

    def certify(self, source: Side, target: Side, types: Mapping[str, TensorType]) -> Proof | None:
        """A proof that every output of ``target`` equals that of ``source``, or ``None`` (unknown) within the limits.

        Args:
            source, target: outputs in the same order.
            types: sample types of all variables; symbols stand for distinct sizes.

        Raises:
            ShapeError: a side is ill-typed under the sample types, or typing it depends on their symbols.
        """
        if len(source) != len(target):
            raise ValueError(f"{len(source)} outputs on the left and {len(target)} on the right")
        operators = {term.op for term in walk([*source, *target])}
        asks = any(wanted <= operators for wanted in self._asking)
        fused = any(map(is_fused, operators))
        evident: Proof | None = None
        searches: dict[_Kind, Search] = {}
        for kind, part in _ORDER:
            _, assume, assumed = kind
            if (assume and not asks) or (kind in (_PLAIN, _PLAINER) and not fused):
                continue
            if kind not in searches:
                if (kind == _ANYTHING and not searches[_EVIDENT].withheld) or (
                    kind == _LONG and len(searches[_QUIET].graph.op) <= self._limits[_QUIET].nodes
                ):
                    continue  # would do again what was done
                graph, goals = self._goals(source, target, types)
                if any(graph.type[a] != graph.type[b] for a, b in goals):
                    return None
                searches[kind] = Search(graph, self._laws, goals, assume, assumed)
            search = searches[kind]
            if kind == _EVIDENT and evident is not None:
                return evident
            if search.run_part(self._limits[kind], part):
                proof = self._proof(search.graph, search.goals, types)
                if kind != _EVIDENT or part is Part.ALL or not _asks_of_variables(proof):
                    return proof
                evident = proof  # unless a little more of the quiet search does without
        return None

    def evident(self, condition: Condition) -> bool:
        """Whether a condition on values holds whatever the inputs, if these are finite: Relu(x) is not negative."""
        return self._language.evident(condition.predicate, condition.terms()[0])

    def _goals(self, source: Side, target: Side, types: Mapping[str, TensorType]) -> tuple[EGraph, list[tuple[int, int]]]:
        graph = EGraph(self._language)
        nodes: dict[Term, int] = {}
        for term in (*source, *target):
            node = graph.add_term(term, types)
            if node is None:
                raise ShapeError(f"{term!r} is ill-typed under the sample types")
            nodes[term] = node
        return graph, [(nodes[s], nodes[t]) for s, t in zip(source, target, strict=True)]

    def _proof(self, graph: EGraph, goals: Sequence[tuple[int, int]], types: Mapping[str, TensorType]) -> Proof:
        reasons, typed = _needed(graph, goals, graph.explain(goals))
        instances = sorted((_instance(graph, reason) for reason in reasons), key=str)
        conditions = weakest([c for reason in reasons for c in _conditions(graph, reason)], types)
        conditions += sorted((Condition("typed", (graph.term(node),)) for node in typed), key=str)
        return Proof(Certificate(tuple(instances)), tuple(conditions))


def _asks_of_variables(proof: Proof) -> bool:
    """Whether a condition on values is not about constants alone."""
    return any(c.predicate in RANGE_PREDICATES and variables(c.terms()) for c in proof.conditions)


def _instance(graph: EGraph, reason: Reason) -> Instance:
    law = reason.direction.law
    assert isinstance(law.origin, Axiom)
    terms = tuple((name, graph.term(n)) for name, n in zip(law.variables, reason.nodes, strict=True))
    return Instance(law.origin.name, terms, tuple(zip(law.attr_variables, reason.values, strict=True)), law.origin.digest[:8])


def _conditions(graph: EGraph, reason: Reason) -> Iterator[Condition]:
    """What an instance asks, beside terms to be well-typed."""
    binding = [*reason.nodes, *reason.values]
    for predicate, arguments, is_term in reason.direction.conditions:
        if predicate != "typed":
            parts = [graph.built_term(a, binding) if t else fill(a, binding) for a, t in zip(arguments, is_term, strict=True)]
            yield Condition(predicate, tuple(parts))


def _needed(graph: EGraph, goals: Sequence[tuple[int, int]], reasons: Sequence[Reason]) -> tuple[list[Reason], list[int]]:
    """Drops every instance, and every term that must be well-typed, that the proof does without.

    The order is that of the terms that the instances' conditions cite, so that those which ask most go first.
    """
    closure = _Congruence(graph, goals)
    if len(reasons) == 1 and not closure.typed(reasons[0]):
        return list(reasons), []
    typed = {reason: closure.typed(reason) for reason in reasons}
    kept = list(reasons)
    for reason in sorted(reasons, key=lambda r: -sum(len(c.terms()) for c in r.direction.law.conditions)):
        without = [r for r in kept if r is not reason]
        if closure.proves(without, typed, [n for r in without for n in typed[r]]):
            kept = without
    terms = list(dict.fromkeys(n for r in kept for n in typed[r]))
    for node in list(terms):
        without_term = [n for n in terms if n != node]
        if closure.proves(kept, typed, without_term):
            terms = without_term
    return kept, terms


class _Congruence:
    """The checker's notion of a proof (:func:`rules_db.trust.check.presence`) on nodes of the e-graph, where it is quick."""

    def __init__(self, graph: EGraph, goals: Sequence[tuple[int, int]]) -> None:
        self.graph, self.goals = graph, goals
        self._under: dict[int, frozenset[int]] = {}
        self._start: set[int] = set()
        for pair in goals:
            self._start.update(*map(self.under, pair))

    def under(self, node: int) -> frozenset[int]:
        if node not in self._under:
            self._under[node] = frozenset((node,)).union(*map(self.under, self.graph.operands[node]))
        return self._under[node]

    def typed(self, reason: Reason) -> list[int]:
        """The terms that a property wants well-typed beyond its two sides."""
        binding = [*reason.nodes, *reason.values]
        found = []
        for predicate, arguments, _ in reason.direction.conditions:
            if predicate == "typed":
                node = self.graph.build(arguments[0], binding)
                assert node is not None, reason
                found.append(node)
        return found

    def proves(self, reasons: Sequence[Reason], typed: Mapping[Reason, Sequence[int]], given: Sequence[int]) -> bool:
        """Whether the instances prove the goals, each used, where the ``given`` terms are known to be well-typed."""
        ops, operands = self.graph.op, self.graph.operands
        present = self._start.union(*map(self.under, given))
        order = sorted(present.union(*[self.under(n) for r in reasons for n in (*r.left, *r.right, *typed[r])]))
        parent = {node: node for node in order}

        def find(node: int) -> int:
            while parent[node] != node:
                node = parent[node]
            return node

        pending, changed = list(reasons), True
        while changed:
            changed = False
            known: dict[int, int] = {}
            built: dict[tuple[int, ...], int] = {}
            for node in order:  # operands come before what is built on them
                try:
                    key = (ops[node], *[known[o] for o in operands[node]])
                except KeyError:
                    continue
                other = built.get(key)
                if node in present:
                    root = find(node)
                    if other is None:
                        built[key] = root
                    elif (other := find(other)) != root:
                        parent[other] = root
                        changed = True
                    known[node] = root
                elif other is not None:
                    known[node] = find(other)
            waiting = []
            for reason in pending:
                if all([a in known or b in known for a, b in zip(reason.left, reason.right, strict=True)]) and all(
                    [n in known for n in typed[reason]]
                ):
                    for a, b in zip(reason.left, reason.right, strict=True):
                        present |= self.under(a) | self.under(b)
                        parent[find(a)] = find(b)
                    changed = True
                else:
                    waiting.append(reason)
            pending = waiting
        return not pending and all(find(a) == find(b) for a, b in self.goals)


_SIZED = {"dim": 2, "keeps": 1, "leads": 2}
"""Predicates about dimensions of terms, and which of their arguments says what these are."""


def weakest(wanted: Iterable[Condition], types: Mapping[str, TensorType]) -> list[Condition]:
    """The conditions without those that follow from the rest.

    A size of a compound term is asked of the variables instead: ``dim(MatMul(x, w), -1, n)`` as ``dim(w, -1, n)``.
    """
    needed = [c for c in dict.fromkeys(wanted) if c.terms()]
    extra: list[Condition] = []
    sizes = [c.arguments[_SIZED[c.predicate]] for c in needed if c.predicate in _SIZED]
    symbols = {name for size in sizes for name in attr_symbols(size)}
    about_types = any(c.predicate == "dtype" for c in needed)
    for term in variables([t for c in needed if not c.terms()[0].is_var for t in c.terms()]):
        shape = types[term.name].shape
        dims = [(axis, shape[axis]) for axis in range(-len(shape), 0)]
        extra += [Condition("dim", (term, axis, d)) for axis, d in dims if isinstance(d, SymDim) and d.symbols() <= symbols]
        extra += [Condition("matrix", (term,))] if len(shape) >= 2 else []
        extra += [Condition("vector", (term,))] if len(shape) == 1 else []
        extra += [Condition("floating", (term,))] if types[term.name].dtype in FLOATING else []
        extra += [Condition("dtype", (term, types[term.name].dtype))] if about_types else []
    given = list(dict.fromkeys([*needed, *extra]))
    removable = sorted(given, key=lambda c: (c in extra and c not in needed, -sum(t.size for t in c.terms()), str(c)))
    for condition in removable:
        rest = [c for c in given if c is not condition]
        if all(implied(c, rest) for c in needed):
            given = rest
    return sorted(given, key=lambda c: (c.predicate in RANGE_PREDICATES, sum(t.size for t in c.terms()), str(c)))
