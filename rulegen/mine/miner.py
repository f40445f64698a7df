"""Mining: rules that take a spelling to a composite operator, found in models.

Exporters spell operators out that runtimes have as one. The cones of a model (:mod:`rulegen.mine.cuts`), with dimension symbols
for their sizes (:mod:`rulegen.mine.lifting`), are compared with every composite operator applied to their leaves
(:mod:`rulegen.mine.composites`) and with their own parts, by their values on random inputs. Programs that agree are a
conjecture, which goes the way of all rules: certificate, random tests, float class, generalisation. The smallest cones come
first, and the larger ones are normalised by the rules found so far, so that a rule says one thing and the larger spellings
follow from several.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, ShapeError, Undecided
from mugraph.terms.term import format_term, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.commons import unit_of_work
from rulegen.journal import Journal
from rulegen.mine.certified import Contradicted, certified
from rulegen.mine.composites import applications, is_composite, is_product
from rulegen.mine.cone import causal_masks, cone_key, named, of_one_type
from rulegen.mine.cuts import Cone, Cutting, cones, whole
from rulegen.mine.lifting import lift
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import sampled, snapped
from rulegen.mine.operands import halved_leaves
from rulegen.mine.parts import parts_of
from rulegen.mine.supply import supply_of
from rulegen.mine.values import ConeValues, agree
from rulegen.numeric.floats import float_test
from rulegen.prove.prover import Prover
from rulegen.workers import Here, UnitWorkers, sent_by
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.rule import Rule, Side

__all__ = ["Mining", "mine", "record_data"]

_UNPROVED, _SUSPICIOUS, _LOST = "unproved", "suspicious", "lost"
_FATES = frozenset([_UNPROVED, _SUSPICIOUS, _LOST])
"""The ends of a pair that becomes no rule."""


_AHEAD = 4
"""Cones for each worker that are looked at ahead of their turn."""


@dataclass
class Mining:
    """The outcome of mining.

    Attributes:
        rules: proved rules, the smallest first.
        unproved: pairs that agree in numbers, without a certificate.
        suspicious: pairs with a proof that random inputs contradict; any is a bug in a property.
        cones: cones looked at, after deduplication.
        interrupted: how far it had come when the user stopped it, in words; empty where it came to its end.
    """

    rules: list[Rule] = field(default_factory=list)
    unproved: list[CandidateRule] = field(default_factory=list)
    suspicious: list[CandidateRule] = field(default_factory=list)
    cones: int = 0
    interrupted: str = ""


def mine(
    models: Mapping[str, Graph],
    limits: Cutting | None = None,
    seed: int = 0,
    progress: Callable[[int, int | None, str], None] = lambda done, total, words: None,
    journal: Journal | None = None,
    workers: UnitWorkers | None = None,
) -> Mining:
    """Mines models. Equal arguments give equal rules in equal order. Ctrl-C ends it with those until then.

    Args:
        models: by the name of what they are, which goes into the rules' provenance.
        limits: of the cones.
        seed: of all random inputs.
        progress: called with the number of cones done and that of all of a model, if that is known yet, and with what goes on.
        journal: of the cones that an earlier run with equal arguments looked at; those of this one are recorded.
        workers: that compare and prove; this process where left out. The rules do not depend on them.
    """
    miner, seen, workers = _Miner(seed, journal or Journal()), set[object](), workers or Here()
    words = ""
    done, lifted = 0, list[Cone]()
    try:
        for count, (name, graph) in enumerate(models.items(), 1):
            words, done, lifted = f"{name} ({count} of {len(models)} models)" if len(models) > 1 else name, 0, []
            progress(0, None, f"cutting {words} into cones")
            pieces = itertools.chain(cones(graph, limits), _all_of(graph, limits or Cutting()))
            for cone in _lifted(pieces, seen):
                lifted.append(cone)
                progress(len(lifted), None, f"cutting {words} into cones")
            lifted.sort(key=lambda c: (c.operators, len(c.roots), str(c.roots)))
            model, ahead = "-".join(name.split()), iter(lifted)
            miner.look_ahead(model, itertools.islice(ahead, _AHEAD * workers.count), workers)
            for done, cone in enumerate(lifted):
                progress(done, len(lifted), f"{words}, {len(miner.mining.rules)} rules so far, cones")
                miner.look_at(model, cone)
                miner.look_ahead(model, itertools.islice(ahead, 1), workers)
            miner.forget()
    except KeyboardInterrupt:
        miner.mining.interrupted = f"{done:,} of {len(lifted):,} cones of {words} were looked at"
    return miner.mining


def _all_of(graph: Graph, limits: Cutting) -> Iterator[Cone]:
    """A small model as one cone, of however many operators."""
    values = {v for node in graph.nodes() for v in (*node.inputs, *node.values)}
    if all(graph.type(v) is not None for v in values) and not any(node.is_opaque for node in graph.nodes()):
        cone = whole(graph)
        if len(cone.types) <= limits.whole and len(cone.roots) <= limits.outputs:
            yield cone


def _lifted(pieces: Iterable[Cone], seen: set[object]) -> Iterator[Cone]:
    """Distinct cones with symbols for their sizes and the usual numbers in place of rounded ones.

    Args:
        pieces: the cones of a model.
        seen: keys of cones met before, in other models as well; in float16 a cone is the same once more.
    """
    lifted: set[object] = set()
    for cone in pieces:
        roots = tuple(snapped(root) for root in cone.roots)
        key = cone_key(Cone(sampled(roots), of_one_type(roots, cone.types)))
        if key in seen:
            continue
        seen.add(key)
        for alike in (False, True) if causal_masks(cone) else (False,):
            made = lift(roots, cone.types, alike)
            if made is not None:
                general = Cone(sampled(made[0]), of_one_type(*made))
                if (key := cone_key(general)) not in lifted:
                    lifted.add(key)
                    yield general


class _Miner:
    """Looks at cones one after the other; the rules found so far normalise the cones that follow.

    Attributes:
        plain: rules without composite operators.
        fused: rules to composite operators, without those under a causal mask.
        beside: of these, the rules whose source takes no softmax.
        hidden: rules to causal attention, before the plain ones.
    """

    def __init__(self, seed: int, journal: Journal) -> None:
        self.seed, self.mining, self.prover, self._journal = seed, Mining(), Prover(), journal
        self.plain, self.fused, self.beside, self.hidden = (Normaliser() for _ in range(4))
        self._seen: set[object] = set()
        self._asked: dict[str, Iterator[list[list[Any]]]] = {}
        self._candidates: dict[object, list[Side]] = {}

    def look_at(self, model: str, cone: Cone) -> None:
        """Finds, certifies and enters the rules that begin with the cone, normalised by the rules found so far."""
        for form in self._forms(cone):
            if cone_key(form) not in self._seen:
                self._seen.add(cone_key(form))
                self.mining.cones += 1
                self._enter(model, form)

    def look_ahead(self, model: str, cones: Iterable[Cone], workers: UnitWorkers) -> None:
        """Has workers find out what will be asked of cones, as the rules found so far normalise them.

        Each is asked again in its turn, when all rules before it are there: what was found out for another form is not used.
        """
        if workers.count == 1:
            return
        for cone in cones:
            for form in self._forms(cone):
                key = _key(model, form)
                if cone_key(form) not in self._seen and self._journal.get(key) is None and key not in self._asked:
                    self._asked[key] = sent_by(workers, record_data, [[self.seed, model, *_packed(form)]], _read)

    def forget(self) -> None:
        """The model is done: what was asked of forms that no cone has any more is not waited for."""
        self._asked.clear()

    def _forms(self, cone: Cone) -> Iterator[Cone]:
        """The cone as the rules found so far normalise it; rules that are found on the way count for what follows."""
        if any(t.dtype not in FLOATS | {DataType.BOOL} for t in cone.types.values()):
            return
        plain = self.plain.normal(cone.roots, cone.types)
        # A causal mask may be what hides heads that are repeated: no operator with a mask has them. As they are spelled they come
        # before what repeats them first.
        for further in (self.fused, self.beside, self.hidden) if causal_masks(cone) else (self.fused,):
            roots = further.normal(plain, cone.types)
            left = {t.name for t in walk(roots) if t.is_var}
            form = named(Cone(roots, {name: t for name, t in cone.types.items() if name in left}))
            if all(root.inputs for root in roots):
                yield form

    def _enter(self, model: str, cone: Cone) -> None:
        """The rules of one form of a cone."""
        for target, fate in self._recalled(model, cone):
            if fate == _UNPROVED:
                self.mining.unproved.append(CandidateRule(cone.roots, target, cone.types))
            if fate == _SUSPICIOUS:
                self.mining.suspicious.append(CandidateRule(cone.roots, target, cone.types))
            if fate in _FATES:
                continue
            rule = parse_rule(fate)
            if any(rule.id == other.id for other in self.mining.rules):
                continue
            self.mining.rules.append(rule)
            composites = {t.op for t in walk(target) if t.inputs and is_composite(t.op)}
            if not composites:
                self.plain.add(rule)
                self.hidden.add(rule)
            elif all(get_operator(op).contract for op in composites) and not any(map(is_product, composites)):
                if any(condition.predicate == "causal" for condition in rule.conditions):
                    self.hidden.add(rule, first=True)
                else:
                    self.fused.add(rule)
                    if all(t.op != "Softmax" for t in walk(rule.source)):
                        self.beside.add(rule)

    def _recalled(self, model: str, cone: Cone) -> list[tuple[Side, str]]:
        """The programs that agree with a cone, and what became of each, from the journal where the cone was looked at before."""
        key = _key(model, cone)
        asked = self._asked.pop(key, None)
        record = self._journal.recalled(key, partial(self.record, model, cone) if asked is None else partial(next, asked))
        return [(tuple(map(parse_term, roots)), fate) for roots, fate in record]

    def record(self, model: str, cone: Cone) -> list[list[Any]]:
        """The programs that agree with a cone, and what becomes of each, as JSON can say it."""
        programs = [target for target in self._equal_programs(cone) if target != cone.roots]
        return [[[format_term(root) for root in target], self._fate(model, cone, target)] for target in programs]

    def _equal_programs(self, cone: Cone) -> list[Side]:
        """Composite operators and parts of the cone that agree with it on random inputs."""
        if not cone.types:
            return []
        try:
            inferred = infer_types(cone.roots, cone.types)
        except (ShapeError, Undecided):
            return []
        wanted, supply = [inferred[root] for root in cone.roots], supply_of(cone.roots, inferred)
        if any(t.dtype not in FLOATS for t in wanted):
            return []
        key = (tuple(map(str, cone.types.values())), tuple(map(str, wanted)), repr(supply), cone.roots[0].op == "Reshape")
        if key not in self._candidates:
            self._candidates[key] = list(applications(cone, supply, wanted))
        single = {root.op for root in cone.roots} if cone.operators == 1 else set()
        candidates = [c for c in self._candidates[key] if c[0].op not in single and not (single and is_product(c[0].op))]
        candidates += parts_of(cone, inferred) if len(wanted) == 1 and not causal_masks(cone) else []
        if not candidates:
            return []
        equal: dict[object, Side] = {}
        values_of: dict[frozenset[str], tuple[ConeValues, list[np.ndarray] | None]] = {}
        for target in candidates:
            # Of operands that may be exchanged one order will do.
            kind = tuple((t.op, t.attrs) for t in walk(target) if t is target[0] or (t.inputs and is_composite(t.op)))
            if kind in equal and any(is_composite(op) for op, _ in kind):
                continue
            halved = halved_leaves(target)
            if halved not in values_of:
                inputs = ConeValues(cone, self.seed, 0, halved)
                values_of[halved] = (inputs, inputs.of(cone.roots))
            inputs, wanted_values = values_of[halved]
            values = None if wanted_values is None else inputs.of(target)
            if wanted_values is None or values is None or not agree(wanted_values, values):
                continue
            if self._confirmed(cone, target, halved):
                equal.setdefault(kind, target)
        return sorted(equal.values(), key=_preference)

    def _confirmed(self, cone: Cone, target: Side, halved: frozenset[str]) -> bool:
        """Whether the two agree for other sizes, too."""
        inputs = ConeValues(cone, self.seed, 1, halved)
        wanted, values = inputs.of(cone.roots), inputs.of(target)
        return wanted is not None and values is not None and agree(wanted, values)

    def _fate(self, model: str, cone: Cone, target: Side) -> str:
        """The end of a pair of a cone and a program: one of :data:`_FATES`, or the text of the certified rule, generalised."""
        candidate = CandidateRule(cone.roots, target, cone.types)
        proof = self.prover.certify(cone.roots, target, cone.types)
        if proof is None:
            keeps = float_test(candidate, symbols_of(cone.types), self.seed).float_class is not None
            return _UNPROVED if keeps else _LOST
        try:
            rule = certified(candidate, proof, self.seed, {"model": model})
        except Contradicted:
            return _SUSPICIOUS
        return _LOST if rule is None else format_rule(rule)


@unit_of_work
def record_data(unit: list[Any]) -> list[list[Any]]:
    """The programs that agree with a cone, wherever that is found out.

    Args:
        unit: the seed, the model, and the cone's roots and types.
    """
    seed, model, roots, types = unit
    cone = Cone(tuple(map(parse_term, roots)), {name: parse_type(text) for name, text in types.items()})
    return _miner(seed).record(model, cone)


def _read(record: list[list[Any]]) -> tuple[list[list[Any]], list[Rule]]:
    """What :func:`record_data` tells, and the rules in it."""
    for roots, _ in record:
        _ = [parse_term(root) for root in roots]
    return record, [parse_rule(fate) for _, fate in record if fate not in _FATES]


@lru_cache(maxsize=2)
def _miner(seed: int) -> _Miner:
    """A worker's own, which keeps what it knows of programs from unit to unit."""
    return _Miner(seed, Journal())


def _packed(cone: Cone) -> list[Any]:
    return [[format_term(root) for root in cone.roots], {name: str(type_) for name, type_ in cone.types.items()}]


def _key(model: str, cone: Cone) -> str:
    """Of a cone in a journal."""
    typing = ", ".join(f"{name}:{type_}" for name, type_ in cone.types.items())
    return f"{model}: {'; '.join(map(format_term, cone.roots))} | {typing}"


def _preference(target: Side) -> tuple[int, bool, str]:
    """Fewest operators first, and a runtime's own before ONNX's, which not every opset has."""
    operators = {t for t in walk(target) if t.inputs}
    return len(operators), not all(get_operator(t.op).contract for t in operators), str(target)
