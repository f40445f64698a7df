"""Pruning: what is left of thousands of true substitutions (TASO section 3.2, and derivability beyond it).

* *Renaming* is done on columns, before any Python object exists: :func:`rulegen.enumerate.pairs.unique_up_to_renaming`.
* *Common subgraph*: f(s) = g(s) with a shared subterm s becomes f(v) = g(v), if that is true. A shared constant stays.
* *Instances* of a more general rule go, modulo commutativity, renaming of dimension symbols and exchange of sides.

Derivability, which goes beyond these, is :mod:`rulegen.prune.derive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mugraph.matching import TermMatching
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, SymDim, TensorType, Undecided, plain_symbol
from mugraph.terms.term import Term, occurrences, replace_terms, var, walk
from rulegen.candidate import CandidateRule as Candidate
from rulegen.candidate import candidate_types
from rules_db.trust.rule import Side

__all__ = ["Typing", "commuted", "drop_instances", "fresh_name", "generalise", "is_instance", "more_general_first"]


class Typing:
    """Types of terms over the variables of one workload, memoised; fresh variables for subterms that become variables."""

    def __init__(self, variables: Mapping[str, TensorType]) -> None:
        self.variables = dict(variables)
        self._types: dict[Term, TensorType | None] = {}

    def of(self, term: Term) -> TensorType | None:
        """The type, or ``None`` where the term is ill-typed."""
        if term not in self._types:
            for part in walk([term]):
                if part not in self._types:
                    self._types[part] = self._infer(part)
        return self._types[term]

    def _infer(self, term: Term) -> TensorType | None:
        if term.is_var:
            return self.variables[term.name]
        operands = [self._types[o] for o in term.inputs]
        if any(t is None for t in operands):
            return None
        if term.op == "Const" or any(o.op == "Const" for o in term.inputs):
            try:
                return infer_types([term], self.variables)[term]
            except (ShapeError, Undecided):
                return None
        try:
            outputs = get_operator(term.op).types(term.attrs, [t for t in operands if t is not None])
        except (ShapeError, Undecided):
            return None
        return outputs[term.out] if term.out < len(outputs) else None

    def plain(self, type_: TensorType | None) -> bool:
        """Whether the type may be a variable's: one of the workload's, or every dimension a symbol or a number."""
        if type_ is None:
            return False
        return type_ in self.variables.values() or all(isinstance(d, int) or plain_symbol(d) is not None for d in type_.shape)

    def fresh(self, type_: TensorType, avoid: Iterable[str]) -> Term:
        """A variable of a type that does not occur yet: one of the workload's where there is one."""
        taken = set(avoid)
        for name, variable_type in self.variables.items():
            if variable_type == type_ and name not in taken:
                return var(name)
        name = fresh_name(self.variables)
        self.variables[name] = type_
        return var(name)


def fresh_name(variables: Iterable[str]) -> str:
    """A name for a variable that takes the place of terms; there are as many of these as were made."""
    return f"t{sum(name[0] == 't' and name[1:].isdigit() for name in variables)}"


# Matching


TypeOf = Callable[[Term], TensorType | None]


class _TypedMatching(TermMatching):
    """Terms as subjects of typed patterns: a variable stands for terms of its type, whose dimensions bind its symbols."""

    __slots__ = ("_type_of", "_types")

    def __init__(self, types: Mapping[str, TensorType], type_of: TypeOf) -> None:
        super().__init__()
        self._types, self._type_of = types, type_of

    def variable(self, pattern: Term, subject: Term) -> bool:
        wanted, actual = self._types[pattern.name], self._type_of(subject)
        return actual is not None and wanted.dtype == actual.dtype and self.attribute(wanted.shape, actual.shape)


def commuted(term: Term) -> Term:
    """The term with the operands of commutative operators in order of digest: equal exactly for commuted forms."""
    done: dict[Term, Term] = {}
    for part in walk([term]):
        inputs = tuple(done[operand] for operand in part.inputs)
        if len(inputs) == 2 and get_operator(part.op).commutative and inputs[1].digest < inputs[0].digest:
            inputs = inputs[::-1]
        done[part] = Term(part.op, part.attrs, inputs, part.out) if inputs else part
    return done[term]


def is_instance(general: Candidate, special: Candidate, type_of: TypeOf) -> bool:
    """Whether ``special`` is ``general`` with terms for variables, in either direction, ranks respected."""
    if len(general.source) != len(special.source):
        return False
    patterns = (*general.source, *general.target)
    for roots in ((*special.source, *special.target), (*special.target, *special.source)):
        matching = _TypedMatching(general.types, type_of)
        if any(matching.solved() is not None for _ in matching.matches(zip(patterns, roots, strict=True))):
            return True
    return False


def more_general_first(candidate: Candidate) -> tuple[int, int, int, int, int, str]:
    """Sort key: small larger side, small sum, few kinds of operators, many variables, many dimension symbols, the text."""
    symbols = {s for t in candidate.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    roots = (*candidate.source, *candidate.target)
    kinds = {t.op for t in walk(roots)}
    return (max(t.size for t in roots), candidate.size, len(kinds), -len(candidate.types), -len(symbols), str(candidate))


def drop_instances(candidates: Iterable[Candidate], type_of: TypeOf) -> list[Candidate]:
    """Keeps the most general candidates, in order of size."""
    kept: list[Candidate] = []
    index: dict[tuple[str, ...], list[tuple[int, Candidate]]] = {}
    places: dict[str, int] = {}

    def roots(side: Side) -> tuple[str, ...]:
        return tuple("" if root.is_var else root.op for root in side)

    def operators(candidate: Candidate) -> int:
        """The number of occurrences of each operator, in 8 bits each. A more general candidate has no operator more often."""
        total = 0
        for side in (candidate.source, candidate.target):
            for root in side:
                applied = (part for part in occurrences(root) if part.inputs)
                total += sum(1 << 8 * places.setdefault(part.op, len(places)) for part in applied)
        return total

    for candidate in sorted(candidates, key=more_general_first):
        a, b = roots(candidate.source), roots(candidate.target)
        wild = ("",) * len(a)
        keys = {key for x, y in ((a, b), (b, a)) for key in (x + y, x + wild, wild + y)}
        counts = operators(candidate)
        spare = sum(0x80 << 8 * place for place in places.values())
        if any(
            (counts | spare) - count & spare == spare and is_instance(general, candidate, type_of)
            for key in sorted(keys)
            for count, general in index.get(key, ())
        ):
            continue
        kept.append(candidate)
        index.setdefault(a + b, []).append((counts, candidate))
    return kept


# Common subgraph


def generalise(candidate: Candidate, typing: Typing, true: Callable[[Candidate], bool]) -> Candidate:
    """The common subgraph stage: the largest shared subterms become variables, while the rule stays true.

    A shared constant is no common subgraph: it would turn transpose(I) = I into transpose(x) = x.
    """
    tried: set[Term] = set()
    while True:
        source, target = set(walk(candidate.source)), set(walk(candidate.target))
        shared = [t for t in source & target if t.inputs and t not in tried and typing.plain(typing.of(t))]
        if not shared:
            return candidate
        subterm = max(shared, key=lambda t: (t.size, t.digest))
        tried.add(subterm)
        type_ = typing.of(subterm)
        assert type_ is not None
        new = typing.fresh(type_, candidate.types)
        sides = [tuple(replace_terms(root, {subterm: new}) for root in side) for side in (candidate.source, candidate.target)]
        if sides[0] == sides[1]:
            continue
        general = Candidate(sides[0], sides[1], candidate_types(sides[0], sides[1], typing.variables))
        if true(general):
            candidate = general
