"""The consequences of a set of operator properties: which of them follow from the others, and that nothing false does.

Both questions go to the prover's e-graph. For the second it is filled with small random terms, one side of a property with
sides of others in place of its variables (so that the properties meet as in a critical pair), and closed under all of them.
Every class must then hold one value: the least and the greatest of its members' entries agree, for random inputs.
The sides are found once for all terms (:func:`sides_of`), since their cases take longer than the terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mugraph.domains.base import BYTES, NIBBLES, Unsupported
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term, substitute, var, variables
from rulegen.properties.cases import Case, enumerate_cases
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.laws import Law
from rulegen.prove.search import ProofLimits, ProofSearch
from rulegen.prove.selection import Laws
from rules_db.trust.guards import GUARDS
from rules_db.trust.properties import Axiom

__all__ = ["Inconsistency", "TypedSide", "inconsistencies", "lemmas", "sides_of"]

TypedSide = tuple[Term, Mapping[str, TensorType]]
"""A side of a property in one of its cases, and the types of its variables."""


@dataclass(frozen=True)
class Inconsistency:
    """Two terms that the properties join although their values differ, and the properties of the derivation."""

    left: Term
    right: Term
    derivation: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.left!r} = {self.right!r} by {', '.join(self.derivation)}"


def _laws(axioms: Mapping[str, Axiom]) -> tuple[Laws, list[Law]]:
    laws = Laws(Language())
    return laws, [laws.add(axiom) for axiom in axioms.values()]


def lemmas(
    axioms: Mapping[str, Axiom], limits: ProofLimits | None = None, cases: int = 3, among: slice = slice(None)
) -> Iterator[str]:
    """Names of the properties, among those that are asked, that the others derive: at first cases, under own range conditions."""
    limits = limits or ProofLimits(nodes=400, rounds=4, growth=3)
    laws, each = _laws(axioms)
    for axiom, law in list(zip(axioms.values(), each, strict=True))[among]:
        laws.suspend(law)
        first = enumerate_cases(axiom, limit=cases).cases
        if first and all(_derives(laws, axiom, case, limits) for case in first):
            yield axiom.name
        laws.resume(law)


def _derives(laws: Laws, axiom: Axiom, case: Case, limits: ProofLimits) -> bool:
    graph = EGraph(laws.language)
    left, right = (graph.add_term(substitute(side, {}, case.attrs), case.types) for side in (axiom.left, axiom.right))
    if left is None or right is None:
        return False
    assumed = []
    for condition in axiom.conditions:
        if condition.guard.of_values:
            arguments = condition.substitute({}, case.attrs).arguments
            known = [graph.add_term(one, case.types) if isinstance(one, Term) else one for one in arguments]
            assumed += [] if None in known else [(condition.predicate, tuple(known))]
    return ProofSearch(graph, laws, [(left, right)], assumed=assumed).run(limits)


def sides_of(axiom: Axiom) -> list[TypedSide]:
    """Both sides of a property in its first cases, without such as are a variable or a constant."""
    found: list[TypedSide] = []
    for case in enumerate_cases(axiom, limit=2).cases:
        for side in (axiom.left, axiom.right):
            term = substitute(side, {}, case.attrs)
            if term.inputs:
                found.append((term, {v.name: case.types[v.name] for v in variables([term])}))
    return found


class _Terms:
    """Random terms that invite the properties, made of the sides of these."""

    def __init__(self, sides: Iterable[TypedSide]) -> None:
        self.pieces: list[TypedSide] = []
        self.by_type: dict[TensorType, list[int]] = {}
        for term, types in sides:
            try:
                type_ = infer_types([term], types)[term]
            except (ShapeError, Undecided):
                continue
            self.by_type.setdefault(type_, []).append(len(self.pieces))
            self.pieces.append((term, types))

    def draw(self, index: int, generator: np.random.Generator) -> tuple[Term, dict[str, TensorType]]:
        """Piece ``index`` with another in place of one of its variables, where one has its type."""
        term, before = self.pieces[index]
        types = dict(before)
        for name, type_ in before.items():
            fitting = self.by_type.get(type_, [])
            if not fitting or generator.random() < 0.3:
                continue
            inner, more = self.pieces[fitting[generator.integers(len(fitting))]]
            fresh = {old: f"{old}_{name}" for old in more}
            # Now and then a variable of the inner term is one of the outer, so that laws of repeated operands apply.
            for old in more:
                same = [n for n, t in types.items() if t == more[old] and n != name]
                if same and generator.random() < 0.5:
                    fresh[old] = same[generator.integers(len(same))]
            inner = substitute(inner, {old: var(new) for old, new in fresh.items()})
            term = substitute(term, {name: inner})
            del types[name]
            types |= {fresh[old]: t for old, t in more.items()}
            break
        return term, types


def inconsistencies(
    axioms: Mapping[str, Axiom],
    trials: int | None = None,
    seed: int = 0,
    limits: ProofLimits | None = None,
    among: slice = slice(None),
    sides: Iterable[TypedSide] | None = None,
) -> Iterator[Inconsistency]:
    """False equations that the properties entail; at most one for each term tried.

    Args:
        axioms: the properties.
        trials: terms to try; one for each side of each property where left out.
        seed: of terms and inputs.
        limits: of the closure.
        among: of the terms, those that are tried; each is the same whichever others are.
        sides: of all the properties, in their order; found here where left out.
    """
    terms = _Terms(chain.from_iterable(map(sides_of, axioms.values())) if sides is None else sides)
    limits = limits or ProofLimits(nodes=150, rounds=2, growth=2)
    laws, _ = _laws(axioms)
    for trial in range(len(terms.pieces) if trials is None else trials)[among]:
        generator = np.random.default_rng([seed, 11, trial])
        term, types = terms.draw(trial % len(terms.pieces), generator)
        inconsistency = _examine(laws, term, types, generator, limits)
        if inconsistency is not None:
            yield inconsistency


def _examine(
    laws: Laws, term: Term, types: Mapping[str, TensorType], generator: np.random.Generator, limits: ProofLimits
) -> Inconsistency | None:
    """Closes the e-graph of a term, all of whose variables are taken to be positive, and compares values."""
    graph = EGraph(laws.language)
    root = graph.add_term(term, types)
    if root is None:
        return None
    numbers = [name for name, t in types.items() if t.dtype != DataType.BOOL]
    assumed = []
    for name in numbers:
        node = graph.add_term(var(name), types)
        assert node is not None
        assumed += [(predicate, (node,)) for predicate in sorted(name for name, guard in GUARDS.items() if guard.of_ranges)]
    stranger = graph.leaf(var("another"), graph.type[root])  # never reached, so that the closure goes on
    ProofSearch(graph, laws, [(root, stranger)], assumed=assumed).run(limits)
    inputs = {name: _positive(type_, generator) for name, type_ in types.items()}
    nodes = [node for node in range(len(graph.op)) if node != stranger]
    values: dict[int, np.ndarray] = {}
    memo: dict[Term, np.ndarray] = {}
    for node in nodes:
        try:
            with np.errstate(all="ignore"):
                memo = evaluate([graph.term(node)], Real(), inputs)
            values[node] = np.asarray(memo[graph.term(node)])
        except Unsupported:
            continue
    least: dict[int, int] = {}
    for node, value in values.items():
        other = least.setdefault(graph.find(node), node)
        if _differ(value, values[other]):
            reasons = graph.explain([(node, other)])
            names = dict.fromkeys(r.direction.law.origin.name for r in reasons if isinstance(r.direction.law.origin, Axiom))
            return Inconsistency(graph.term(other), graph.term(node), tuple(names))
    return None


def _positive(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    """Positive entries for a variable, quantised ones whole; truth values."""
    shape = concrete(type_.shape) or ()
    if type_.dtype in BYTES | NIBBLES:
        return generator.integers(1, 8 if type_.dtype in NIBBLES else 128, shape).astype(np.float64)
    drawn = np.asarray(generator.random(shape) + 0.2)
    return drawn > 0.7 if type_.dtype == DataType.BOOL else drawn


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return not (a.size == b.size == 1)  # a constant of a program has no shape of its own
    if a.dtype == bool or b.dtype == bool:
        return not np.array_equal(a, b)
    finite = np.isfinite(a) & np.isfinite(b)
    return not np.allclose(a[finite], b[finite], rtol=1e-6, atol=1e-6)
