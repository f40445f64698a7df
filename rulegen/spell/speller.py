"""Spelling: rules that find a composite operator in whatever programs its definition is equal to.

The definition is saturated with operator properties (:mod:`rulegen.spell.saturation`), and the programs of the saturated graph
(:mod:`rulegen.spell.extraction`) are gone through, those with the fewest operators and the nearest to the definition first. One
that the rules so far turn into the operator already is no rule; what is left of the others by these rules is certified from the
graph itself. So the rules are a minimal set as far as rules that shrink a program derive each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.ops.traits import Movement
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, make, var, walk
from rulegen.candidate import CandidateRule, candidate_types, operator_count
from rulegen.mine.certified import GROUP, Contradicted, certified
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import is_sample
from rulegen.prove.egraph import EGraph
from rulegen.prove.prover import Proof, Prover, proof_in
from rulegen.spell.definition import Definition
from rulegen.spell.definitions import definitions
from rulegen.spell.extraction import ExtractionLimits, extracted
from rulegen.spell.saturation import Saturated, SaturationLimits, saturated
from rulegen.spell.vocabulary import named, smallest, written
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule, Side

__all__ = ["ORIGIN", "FormSpelling", "SpellingLimits", "finding", "grown_rules", "plain_rules", "spell", "spell_forms"]

ORIGIN = "spelled"
"""The name under which the provenance of a rule has the operator whose definition it was found from."""


@dataclass(frozen=True)
class SpellingLimits:
    """Limits for each form of an operator.

    Attributes:
        saturation: of the e-graph.
        extraction: of its programs. Programs of as many operators as the definition are always admitted.
        slack: operators, casts apart, that a program may have more than the plain definition.
        half: whether there are forms in float16, too, whose programs may cast; rules of float32 without casts serve both.
        parts: whether parts of programs that have shorter equals give rules of their own. Without, there are more rules, and each
            leads to the operator at once: a search need not take steps that do not pay by themselves.
        seconds: of processor time for saturating, extracting and certifying; the limit says how many programs were left by then.
    """

    saturation: SaturationLimits = field(default_factory=SaturationLimits)
    extraction: ExtractionLimits = field(default_factory=ExtractionLimits)
    slack: int = 1
    half: bool = True
    parts: bool = True
    seconds: float = 300.0


@dataclass
class FormSpelling:
    """What was found of one form of an operator.

    Attributes:
        definition: the form.
        nodes: of the saturated e-graph.
        programs: that were extracted.
        derived: of these, those that rules found before turn into the operator, or into what another program was turned into.
        rules: certified, in the order in which they were found.
        lost: programs that floats do not bear out, or without a proof for any number in the place of a sample.
        suspicious: pairs with a proof that random inputs contradict; any is a bug in a property.
        limits: those that were met, in words.
        seconds: of processor time that it cost.
    """

    definition: Definition
    nodes: int = 0
    programs: int = 0
    derived: int = 0
    rules: list[Rule] = field(default_factory=list)
    lost: int = 0
    suspicious: list[CandidateRule] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    seconds: float = 0.0


def spell(
    operators: Sequence[str],
    known: Iterable[Rule] = (),
    before: Iterable[Rule] = (),
    limits: SpellingLimits | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    wanted: Callable[[Definition], bool] = lambda form: True,
) -> list[FormSpelling]:
    """The spellings of composite operators. Equal arguments give equal rules in equal order, unless time runs out.

    Args:
        operators: their names. Those by which others are defined come before these.
        known: certified rules; what those that name no composite operator turn into one together with those found is no rule.
        before: rules that were spelled before; what they lead to is no rule either.
        limits: for each form.
        seed: of all random inputs.
        progress: called with the number of forms done and that of all.
        wanted: which forms.

    Raises:
        KeyError, ValueError: an operator has no definition here (:func:`rulegen.spell.definitions.definitions`).
    """
    limits = limits or SpellingLimits()
    ordered = sorted(operators, key=lambda operator: len(named(operator)))
    forms = [form for operator in ordered for form in definitions(operator) if (limits.half or not form.is_half) and wanted(form)]
    return spell_forms(forms, known, before, limits, seed, progress)


def spell_forms(
    forms: Sequence[Definition],
    known: Iterable[Rule] = (),
    before: Iterable[Rule] = (),
    limits: SpellingLimits | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[FormSpelling]:
    """The spellings of some forms, as :func:`spell` finds those of all that operators have."""
    speller = _Speller(plain_rules(known), before, limits or SpellingLimits(), seed)
    found: list[FormSpelling] = []
    for count, form in enumerate(forms, 1):
        found.append(speller.spell(form))
        progress(count, len(forms))
    return found


def finding(operator: str, rules: Iterable[Rule]) -> Normaliser:
    """Rules that shorten a program until an operator is found: to it, to what defines it, to a runtime's own, and to plain ones.

    Larger sources come first, and of equal ones those with the shorter target. Composite operators that the newest opsets alone
    have would stand in the way of others.
    """
    finder, through = Normaliser(), named(operator)
    for rule in sorted(rules, key=lambda rule: (-operator_count(rule.source), operator_count(rule.target))):
        ends = [get_operator(term.op) for term in walk(rule.target) if term.inputs]
        if all(not op.traits.named_whole or op.contract is not None or op.name in through for op in ends):
            finder.add(rule)
    return finder


def plain_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Those of one output that name no composite operator."""
    single = (rule for rule in rules if len(rule.target) == 1)
    return [r for r in single if not any(traits_of(term.op).named_whole for term in walk([*r.source, *r.target]))]


def grown_rules() -> list[Rule]:
    """The shipped rules of one output that name no composite operator, without those for spellings."""
    return plain_rules(rule for rule in shipped_rules() if rule.provenance.get("group") != GROUP)


class _Speller:
    """Goes through the forms; rules found for one shorten the next."""

    def __init__(self, plain: Sequence[Rule], before: Iterable[Rule], limits: SpellingLimits, seed: int) -> None:
        self.limits, self.seed = limits, seed
        self._plain = plain
        self._spelled = list(before)
        self._identities = {rule.id for rule in self._spelled}
        self._shortest: dict[int, Term] = {}
        self._tried: set[Term] = set()
        self._prover = Prover()

    def spell(self, definition: Definition) -> FormSpelling:
        start = time.process_time()
        result = FormSpelling(definition)
        graph = saturated(definition, self.limits.saturation)
        result.nodes = len(graph.graph.op)
        result.limits += graph.limits
        plain = operator_count(definition.plain)
        most = max(plain, min(self.limits.extraction.operators, plain + self.limits.slack))
        extraction = extracted(graph, replace(self.limits.extraction, operators=most))
        result.programs = len(extraction.programs)
        if not extraction.complete:
            result.limits.append(f"{self.limits.extraction.steps} steps")
        normaliser = finding(definition.operator, (*self._spelled, *self._plain))
        self._shortest, self._tried = smallest(graph.graph, written), set[Term]()
        if self.limits.parts:
            self._enter_copies(definition, result, normaliser)
        # What is shorter in part is so in all programs, and many are one then.
        for program in extraction.programs if self.limits.parts else ():
            if time.process_time() - start > self.limits.seconds / 2:
                break
            self._shortened(graph, definition, program.roots, normaliser, result)
        seen: set[Side] = set()
        for number, program in enumerate(extraction.programs):
            if time.process_time() - start > self.limits.seconds:
                left = len(extraction.programs) - number
                result.limits.append(f"{self.limits.seconds:g} seconds, {left} programs left")
                break
            normal = self._shortened(graph, definition, program.roots, normaliser, result)
            if normal == definition.roots or normal in seen:
                result.derived += 1
                continue
            seen.add(normal)
            forms = dict.fromkeys((normal, program.roots))
            rule = next(filter(None, (self._rule(graph, definition, form, result) for form in forms)), None)
            if rule is None:
                result.lost += 1
            elif self._enter(rule, result):
                normaliser.add(rule, first=True)
            else:
                result.derived += 1
        result.seconds = time.process_time() - start
        return result

    def _enter_copies(self, definition: Definition, result: FormSpelling, normaliser: Normaliser) -> None:
        """Enters that a view to the shape that there is, as exporters write a copy, is no operator, where programs have views."""
        x = var("x")
        for term, type_ in infer_types(definition.plain, definition.types).items():
            if term.inputs and traits_of(term.op).movement is Movement.VIEW:
                copy = make(_VIEW, [x], {"drop": 0, "shape": ()})  # as it is read
                candidate = CandidateRule((copy,), (x,), {x.name: type_})
                proof = self._prover.certify(candidate.source, candidate.target, candidate.types)
                rule = None if proof is None else self._certified(candidate, proof, definition, result)
                if rule is not None and self._enter(rule, result):
                    normaliser.add(rule)
                return

    def _shortened(
        self, saturated: Saturated, definition: Definition, program: Side, normaliser: Normaliser, result: FormSpelling
    ) -> Side:
        """The normal form of a program, after parts of it that have shorter equals gave rules."""
        graph = saturated.graph
        while True:
            program = normaliser.normal(program, definition.types)
            if not self.limits.parts:
                return program
            parts = [t for t in walk(program) if t.inputs and t not in program and t not in self._tried and not _has_casts(t)]
            for part in sorted(parts, key=lambda t: (t.size, str(t))):
                self._tried.add(part)
                rule = next(
                    filter(None, (self._shortening(definition, part, t, result) for t in self._shorter(graph, definition, part))),
                    None,
                )
                if rule is not None and self._enter(rule, result):
                    normaliser.add(rule)
                    break
            else:
                return program

    def _enter(self, rule: Rule, result: FormSpelling) -> bool:
        """Enters a rule; false for one that is there."""
        if rule.id in self._identities:
            return False
        self._identities.add(rule.id)
        self._spelled.append(rule)
        result.rules.append(rule)
        return True

    def _shorter(self, graph: EGraph, definition: Definition, part: Term) -> Iterator[Term]:
        """Equals of a part: an operator applied to what the part has, and the shortest there is."""
        below: dict[int, Term] = {}
        for term in walk([part]):
            node = graph.add_term(term, definition.types)
            if node is not None and term is not part:
                below.setdefault(graph.find(node), term)
        root = graph.find(graph.add_term(part, definition.types) or 0)
        for node in [n for nodes in graph.members[root].values() for n in nodes]:
            name, attrs, out = graph.language.ops[graph.op[node]]
            operands = [below.get(graph.find(operand)) for operand in graph.operands[node]]
            if operands and None not in operands and written(name):
                yield Term(name, attrs, tuple(t for t in operands if t is not None), out)
        if root in self._shortest:
            yield self._shortest[root]

    def _shortening(self, definition: Definition, part: Term, shorter: Term, result: FormSpelling) -> Rule | None:
        """The rule from a part to a shorter one, over variables for what both share; ``None`` where it is not local."""
        candidate = _abstracted(part, shorter, definition.types)
        counts = [operator_count(side) for side in (candidate.source, candidate.target)]
        if not counts[1] < counts[0] <= _LOCAL:
            return None
        proof = self._prover.certify(candidate.source, candidate.target, candidate.types)
        return None if proof is None else self._certified(candidate, proof, definition, result)

    def _rule(self, saturated: Saturated, definition: Definition, source: Side, result: FormSpelling) -> Rule | None:
        """The certified rule from a program to the operator; ``None`` where no proof is found, or floats lose it."""
        graph = saturated.graph
        nodes = [graph.add_term(root, definition.types) for root in source]
        goals = [(node, root) for node, root in zip(nodes, saturated.roots, strict=True) if node is not None]
        candidate = CandidateRule(source, definition.roots, candidate_types(source, definition.roots, definition.types))
        if len(goals) == len(source) and all(graph.find(a) == graph.find(b) for a, b in goals):
            proof: Proof | None = proof_in(graph, goals, definition.types)
        else:  # rules found before lead to an operator that stands beside this one
            proof = self._prover.certify(source, definition.roots, candidate.types)
        return None if proof is None else self._certified(candidate, proof, definition, result)

    def _certified(self, candidate: CandidateRule, proof: Proof, definition: Definition, result: FormSpelling) -> Rule | None:
        numbers = any(is_sample(v) for t in walk([*candidate.source, *candidate.target]) for _, v in t.attrs)
        try:
            rule = certified(candidate, proof, self.seed, {ORIGIN: definition.operator}, numbers)
        except Contradicted:
            result.suspicious.append(candidate)
            return None
        return None if rule is None or check(rule, load_axioms()) else rule


def _abstracted(part: Term, shorter: Term, types: Mapping[str, TensorType]) -> CandidateRule:
    """The equation of two terms with variables for the largest terms that both have."""
    inferred, named = infer_types([part, shorter], types), dict[Term, Term]()
    shared = {term for term in set(walk([part])) & set(walk([shorter])) if term.op != "Const"}

    def opened(term: Term) -> Term:
        if term in shared or term.is_var:
            return named.setdefault(term, var(f"x{len(named)}"))
        return Term(term.op, term.attrs, tuple(map(opened, term.inputs)), term.out)

    source, target = (opened(part),), (opened(shorter),)
    kinds = {name.name: inferred[term] for term, name in named.items()}
    return CandidateRule(source, target, candidate_types(source, target, kinds))


_VIEW = "Reshape"
"""The view that a copy is exported as."""
_LOCAL = 3
"""Operators of a part that is shortened by itself: what is larger is part of what it is spelled for."""


def _has_casts(term: Term) -> bool:
    return any(part.op == "Cast" for part in walk([term]))
