"""Wrong rules made from right ones, to see that none is accepted.

The corpus is the shipped rules and one instance of every operator property of convolution and pooling, which bring groups,
strides and pads. A mutation changes one thing: an operator, an attribute, the order of operands, a variable, a
factor, the part of a split, a subterm; or a condition goes, or a variable gets another type; or the change is made everywhere, in
the certificate too, or the certificate cites what other rules cite. Many mutants are still true (operands of a sum swapped), so
that only those count as *false* which evaluation on random inputs refutes, at sizes of 1 too, under the conditions they state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.ops import REGISTRY, Entrywise, Operator, ProductKind, get_operator, traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import AttrValue, AttrVar, Term, const, make, substitute, var, variables, walk
from rulegen.numeric.samples import (
    HIDING,
    POSITIONED,
    arrange,
    assignments,
    looked_up_inside,
    masked,
    specialise,
    whole_numbers,
)
from rulegen.numeric.trials import try_out
from rulegen.properties.cases import enumerate_cases
from rulegen.prove.prover import Prover
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.check import check
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = ["Mutant", "MutantOutcome", "Tally", "attack", "corpus", "examine", "mutants"]


def _place(record: Operator) -> object:
    """A key that is equal for operators that may take each other's place; ``None`` where none may take this one's."""
    traits = record.traits
    if traits.product is ProductKind.CONVOLUTION:
        return traits.product, traits.image
    if traits.reduction is not None:
        return "axes" if traits.image is None else None
    numbers = traits.entrywise in (Entrywise.FUNCTION, Entrywise.ARITHMETIC, Entrywise.EXTREMUM) and traits.movement is None
    if record.composite or record.defaults or not (numbers or traits.product is ProductKind.MATRIX):
        return None
    return record.arity[0] if record.arity[1] is not None else 2


class MutantOutcome(StrEnum):
    """The outcome for a mutant."""

    ILL_TYPED = "ill-typed"
    TRUE = "true"
    REJECTED = "rejected"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class Mutant:
    """A changed rule: the kind of change, and the rule that it was made from."""

    kind: str
    rule: Rule
    original: Rule

    def __str__(self) -> str:
        return f"{self.kind}: {self.rule} when {', '.join(map(str, self.rule.conditions))} (from {self.original})"


@dataclass(frozen=True)
class Tally:
    """Mutants by kind and outcome, and the false ones that were accepted."""

    counts: Mapping[tuple[str, MutantOutcome], int]
    accepted: tuple[Mutant, ...]

    @property
    def false(self) -> int:
        """Mutants that evaluation refutes."""
        return sum(n for (_, outcome), n in self.counts.items() if outcome in (MutantOutcome.REJECTED, MutantOutcome.ACCEPTED))


def corpus(rules: Sequence[Rule], axioms: Mapping[str, Axiom], families: Sequence[str] = ("conv", "pool")) -> list[Rule]:
    """The rules, and one instance of every property of the ``families``."""
    material = list(rules)
    for axiom in axioms.values():
        if axiom.family in families:
            for case in enumerate_cases(axiom, limit=8).cases[:1]:
                terms = tuple((name, var(name)) for name in axiom.variables)
                sides = [(substitute(side, {}, case.attrs),) for side in (axiom.left, axiom.right)]
                certificate = Certificate((Instance(axiom.name, terms, tuple(case.attrs.items())),))
                conditions = tuple(c.substitute({}, case.attrs) for c in axiom.conditions)
                material.append(Rule(*sides, dict(case.types), conditions, FloatClass.REASSOCIATES, certificate))
    return material


# Changes of terms. Each gives a subterm's replacement or None.


def _replaced(side: Side, old: Term, new: Term) -> Side:
    def rebuild(root: Term) -> Term:
        done: dict[Term, Term] = {}
        for term in walk([root]):
            if term is old:
                done[term] = new
            elif term.inputs:
                done[term] = Term(term.op, term.attrs, tuple(done[i] for i in term.inputs), term.out)
            else:
                done[term] = term
        return done[root]

    return tuple(map(rebuild, side))


class _Changes:
    def __init__(self, rule: Rule, generator: np.random.Generator) -> None:
        self.rule, self.generator = rule, generator
        self.terms = list(walk([*rule.source, *rule.target]))

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.generator.integers(len(items))] if items else None

    def operands(self, term: Term) -> Term | None:
        if len(term.inputs) < 2:
            return None
        order = list(term.inputs)
        i, j = self.generator.choice(len(order), 2, replace=False)
        order[i], order[j] = order[j], order[i]
        return Term(term.op, term.attrs, tuple(order), term.out)

    def operator(self, term: Term) -> Term | None:
        place = _place(get_operator(term.op)) if term.inputs else None
        others = [record.name for record in REGISTRY.values() if record.name != term.op and _place(record) == place]
        return None if place is None or not others else Term(self.pick(others), term.attrs, term.inputs, term.out)

    def attribute(self, term: Term) -> Term | None:
        open_ = [i for i, (name, _) in enumerate(term.attrs) if term.op not in ("Var", "Const") and name != "mode"]
        if not open_:
            return None
        index = self.pick(open_)
        name, value = term.attrs[index]
        changed = self.value(name, value)
        attrs = (*term.attrs[:index], (name, changed), *term.attrs[index + 1 :])
        return None if changed is None else Term(term.op, attrs, term.inputs, term.out)

    def value(self, name: str, value: AttrValue) -> AttrValue:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            shift = int(self.pick((-1, 1)))
            return value + shift if name in ("axis", "group") or value + shift > 0 else None
        if isinstance(value, float):
            return self.pick((value + 1.0, -value, value * 2.0))
        if isinstance(value, tuple) and value:
            moved = ("perm", "sizes", "shape", "begins", "ends") if self.generator.random() < 0.5 else ("perm", "sizes", "pads")
            if name in moved or not isinstance(value[0], int):
                return tuple(value[i] for i in self.generator.permutation(len(value)))
            i = int(self.generator.integers(len(value)))
            step = -1 if name == "axes" else 1
            return (*value[:i], value[i] + step, *value[i + 1 :])
        if isinstance(value, SymDim):
            return value + 1
        return {"none": "tanh", "tanh": "none"}.get(str(value))

    def variable(self, term: Term) -> Term | None:
        if not term.is_var:
            return None
        type_ = self.rule.types[term.name]
        return self.pick([var(n) for n, t in self.rule.types.items() if t.rank == type_.rank and n != term.name])

    def factor(self, term: Term) -> Term | None:
        if term.op == "Const":
            value = term.attr("value")
            if isinstance(value, AttrVar):
                return None
            return const(not value if isinstance(value, bool) else self.pick((value + 1.0, -value - 1.0, value * 0.5 + 1.0)))
        return None if term.op == "Var" and self.generator.random() < 0.5 else Term("Mul", (), (term, const(2.0)), 0)

    def part(self, term: Term) -> Term | None:
        return Term(term.op, term.attrs, term.inputs, 1 - term.out % 2) if term.op == "Split" else None

    def subterm(self, term: Term) -> Term | None:
        return self.pick([t for t in self.terms if t is not term and t.op != "Const"])

    def wrapped(self, term: Term) -> Term | None:
        return Term(self.pick(("Neg", "Relu", "Exp", "Sigmoid", "Transpose")), (), (term,), 0) if term.inputs else None

    def unwrapped(self, term: Term) -> Term | None:
        return self.pick(term.inputs)


_KINDS: dict[str, Callable[[_Changes, Term], Term | None]] = {
    "operands": _Changes.operands,
    "operator": _Changes.operator,
    "attribute": _Changes.attribute,
    "variable": _Changes.variable,
    "factor": _Changes.factor,
    "part": _Changes.part,
    "subterm": _Changes.subterm,
    "wrapped": _Changes.wrapped,
    "unwrapped": _Changes.unwrapped,
}


def _everywhere(rule: Rule, changes: _Changes) -> Rule | None:
    """One operator or attribute changed wherever it stands: in both sides, the conditions and the certificate."""
    term = changes.pick([t for t in changes.terms if t.inputs])
    new = None if term is None else changes.pick((changes.operator, changes.attribute))(term)
    if new is None:
        return None

    def side(roots: Side) -> Side:
        def rebuild(root: Term) -> Term:
            done: dict[Term, Term] = {}
            for t in walk([root]):
                same = t.op == term.op and t.attrs == term.attrs and t.inputs
                op, attrs = (new.op, new.attrs) if same else (t.op, t.attrs)
                done[t] = Term(op, attrs, tuple(done[i] for i in t.inputs), t.out) if t.inputs else t
            return done[root]

        return tuple(map(rebuild, roots))

    old_values, new_values = dict(term.attrs), dict(new.attrs)

    def values(pairs: tuple[tuple[str, AttrValue], ...]) -> tuple[tuple[str, AttrValue], ...]:
        swaps = [(old_values[k], new_values.get(k)) for k in old_values if old_values[k] != new_values.get(k)]
        return tuple((k, next((b for a, b in swaps if a == v), v)) for k, v in pairs)

    instances = tuple(
        Instance(
            i.axiom.replace(f".{term.op}", f".{new.op}"),
            tuple((k, side((t,))[0]) for k, t in i.terms),
            values(i.attrs),
        )
        for i in rule.certificate.instances
    )
    conditions = tuple(
        Condition(c.predicate, tuple(side((a,))[0] if isinstance(a, Term) else a for a in c.arguments)) for c in rule.conditions
    )
    return replace(
        rule, source=side(rule.source), target=side(rule.target), conditions=conditions, certificate=Certificate(instances)
    )


def _grouped(rule: Rule) -> Rule | None:
    """All convolutions in one group get two, with kernels and channels to match; the certificate stays."""
    convolutions = [t for t in walk([*rule.source, *rule.target]) if traits_of(t.op).convolves and t.attr("group") == 1]
    if not convolutions:
        return None
    data = {v.name for v in variables([t.inputs[0] for t in convolutions])}
    kernels = {v.name for v in variables([t.inputs[1] for t in convolutions])}

    def grouped(root: Term) -> Term:
        done: dict[Term, Term] = {}
        for t in walk([root]):
            attrs = {**dict(t.attrs), "group": 2} if t in convolutions else t.attrs
            done[t] = make(t.op, [done[i] for i in t.inputs], attrs, t.out) if t.inputs else t
        return done[root]

    types = {}
    for name, type_ in rule.types.items():
        shape = list(type_.shape)
        if name in data - kernels and type_.rank >= 3:
            shape[1] = shape[1] * 2
        if name in kernels and type_.rank >= 3:
            shape[0] = shape[0] * 2
        types[name] = TensorType(type_.dtype, tuple(shape))
    conditions = tuple(
        Condition(c.predicate, tuple(grouped(a) if isinstance(a, Term) else a for a in c.arguments)) for c in rule.conditions
    )
    source, target = tuple(map(grouped, rule.source)), tuple(map(grouped, rule.target))
    return replace(rule, source=source, target=target, types=types, conditions=conditions)


def _retyped(rule: Rule, changes: _Changes) -> Rule | None:
    """One variable with a dimension more, less, moved or of size 1, or of another element type."""
    name = changes.pick(list(rule.types))
    if name is None:
        return None
    dtype, shape = rule.types[name].dtype, list(rule.types[name].shape)
    match changes.pick(("more", "less", "moved", "one", "dtype")):
        case "more":
            shape.insert(0, changes.pick((1, 2, *shape)))
        case "less" if shape:
            del shape[int(changes.generator.integers(len(shape)))]
        case "moved":
            shape = [shape[i] for i in changes.generator.permutation(len(shape))]
        case "one" if shape:
            shape[int(changes.generator.integers(len(shape)))] = 1
        case _:
            dtype = changes.pick((DataType.DOUBLE, DataType.INT64, DataType.BOOL))
    return replace(rule, types={**rule.types, name: TensorType(dtype, tuple(shape))})


def _citing(rule: Rule, every: Sequence[Instance], generator: np.random.Generator) -> Rule:
    """The rule with some steps of other rules' certificates for its own variables, or in the place of its own steps."""
    names = list(rule.types)

    def own(instance: Instance) -> Instance:
        others = {v.name for _, term in instance.terms for v in variables([term])} if names else set()
        return instance.substitute({other: var(names[generator.integers(len(names))]) for other in sorted(others)})

    instances = list(rule.certificate.instances)
    for _ in range(1 + int(generator.integers(3))):
        chosen = every[generator.integers(len(every))]
        if instances and generator.random() < 0.5:
            place = int(generator.integers(len(instances)))
            instances[place] = (
                replace(instances[place], axiom=chosen.axiom, digest="") if generator.random() < 0.5 else own(chosen)
            )
        else:
            instances.append(own(chosen))
    return replace(rule, certificate=Certificate(tuple(instances)))


def _squared(rule: Rule) -> Rule:
    """The rule with all dimensions equal, where more mutants are well-typed."""
    symbols = {s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()}
    return rule.rename({}, dict.fromkeys(symbols, "n"))


def _mutate(rule: Rule, kind: str, generator: np.random.Generator) -> Rule | None:
    changes = _Changes(rule, generator)
    if kind == "condition":
        if not rule.conditions:
            return None
        dropped = generator.integers(len(rule.conditions))
        return replace(rule, conditions=tuple(c for i, c in enumerate(rule.conditions) if i != dropped))
    if kind == "groups":
        return _grouped(rule)
    if kind == "type":
        return _retyped(rule, changes)
    if kind == "everywhere":
        return _everywhere(rule, changes)
    on_left = generator.random() < 0.3
    chosen = rule.source if on_left else rule.target
    term = changes.pick(list(walk(chosen)))
    new = _KINDS[kind](changes, term)
    if new is None or new is term:
        return None
    changed = _replaced(chosen, term, new)
    return replace(rule, source=changed) if on_left else replace(rule, target=changed)


def mutants(rules: Sequence[Rule], seed: int = 0) -> Iterator[Mutant]:
    """Distinct mutants without end, the same for the same seed; all kinds equally often as far as rules admit them."""
    seen: set[tuple[object, ...]] = set()
    generator = np.random.default_rng([seed, 17])
    kinds = [*_KINDS, "condition", "everywhere", "groups", "type", "cited"]
    every = [instance for rule in rules for instance in rule.certificate.instances]
    convolutions = [rule for rule in rules if any(traits_of(t.op).convolves for t in walk(rule.source))]
    while True:
        for kind in kinds:
            some = convolutions if kind == "groups" and convolutions else rules
            rule = some[generator.integers(len(some))]
            if generator.random() < 0.5:
                rule = _squared(rule)
            changed = str(generator.choice(list(_KINDS))) if kind == "cited" else kind
            mutated = _mutate(rule, changed, generator)
            if mutated is not None and kind == "cited":
                mutated = _citing(mutated, every, generator)
            if mutated is None:
                continue
            same = mutated.source == rule.source and mutated.target == rule.target
            if same and kind not in ("condition", "type"):
                continue
            with_proof = kind in ("everywhere", "cited")
            key = (mutated.source, mutated.target, mutated.conditions, *mutated.types.values(), with_proof)
            if key not in seen:
                seen.add(key)
                yield Mutant(kind, mutated, rule)


def _of_type(generator: np.random.Generator, dtype: DataType, drawn: np.ndarray, middle: float) -> np.ndarray:
    """Inputs of a type: random floats as they are, whole numbers in their place, or whether they are above the ``middle``."""
    whole = whole_numbers(generator, dtype, np.shape(drawn))
    return np.asarray(drawn > middle if dtype == DataType.BOOL else drawn if whole is None else whole)


def _false_at_small_sizes(rule: Rule, draws: int = 4) -> bool:
    """Whether evaluation in floats refutes a rule whose sizes are 1, 2 and 3 in some order, many of them equal."""
    symbols = sorted({s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()})
    for draw in range(draws):
        generator = np.random.default_rng([draw, 23])
        sizes = {name: 1 if draw == 0 else int(generator.integers(1, 4)) for name in symbols}
        programs, types = specialise([*rule.source, *rule.target], rule.types, sizes)
        conditions = [c.substitute({}, dims=sizes) for c in rule.conditions]
        try:
            inferred = infer_types([*programs, *(term for c in conditions for term in c.terms())], types)
            facts = Facts(inferred.__getitem__, lambda term: Range.top(), sizes)
            if any(c.holds(facts) is not True for c in conditions):
                continue
            inputs = {
                name: _of_type(generator, t.dtype, generator.standard_normal(concrete(t.shape)), 0.0) for name, t in types.items()
            }
            with np.errstate(all="ignore"):
                values = evaluate(programs, Real(), looked_up_inside(programs[: len(rule.source)], inputs))
        except (ShapeError, Undecided, KeyError, ValueError, TypeError, IndexError, Unsupported):
            continue
        half = len(rule.source)
        for a, b in zip(programs[:half], programs[half:], strict=False):
            if inferred[a] != inferred[b]:
                break  # the rewriter compares the types of what it replaces
            one, other = (np.asarray(values[side], np.float64) for side in (a, b))
            finite = np.isfinite(one) & np.isfinite(other)
            if not np.allclose(one[finite], other[finite], rtol=1e-9, atol=1e-9):
                return True
    return False


def _false(rule: Rule, axioms: Mapping[str, Axiom]) -> bool:
    """Whether evaluation refutes a rule under its conditions."""
    about_values = [c for c in rule.conditions if c.guard.of_values or c.predicate == "attends" or _is_about_computed(c)]
    if not about_values:
        return try_out(rule, axioms)[1] is not None or _false_at_small_sizes(rule)
    roots = [*rule.source, *rule.target, *(t for c in about_values for t in c.terms())]
    for turn, sizes in enumerate(assignments(rule.types, roots=roots)):
        programs, types = specialise(roots, rule.types, sizes)
        for signs in ((0, 1), (-1, 0), (-1, 1)):
            generator = np.random.default_rng([turn, *(s + 1 for s in signs)])
            inputs = {}
            for name, type_ in types.items():
                drawn = generator.uniform(*signs, concrete(type_.shape))
                inputs[name] = _of_type(generator, type_.dtype, drawn, float(np.mean(signs)))
            try:
                with np.errstate(all="ignore"):
                    inside = looked_up_inside(programs[: len(rule.source)], arrange(inputs, rule.conditions))
                    values = evaluate(programs, Real(), inside)
            except (Unsupported, IndexError, ValueError):
                continue
            cited = iter(programs[2 * len(rule.source) :])
            if all([_holds(c, *(values[next(cited)] for _ in c.terms())) for c in about_values]):
                for a, b in zip(programs[: len(rule.source)], programs[len(rule.source) :], strict=False):
                    one, other = (np.asarray(values[side], np.float64) for side in (a, b))
                    finite = np.isfinite(one) & np.isfinite(other)
                    if not np.allclose(one[finite], other[finite], rtol=1e-9, atol=1e-9):
                        return True
    return False


def _is_about_computed(condition: Condition) -> bool:
    """Whether a condition says all entries of something that is computed: inputs cannot be arranged for it."""
    return condition.predicate in (POSITIONED | HIDING) and not condition.terms()[-1].is_var


def _holds(condition: Condition, value: np.ndarray, *others: np.ndarray) -> bool:
    """Whether a condition holds of the values of what it is about, of a mask and what is beside it where there are two."""
    if condition.predicate in POSITIONED:
        return np.array_equal(value, masked(condition, value))
    match condition.predicate:
        case "hides":
            return bool(np.all(others[0] == -np.inf))
        case "attends":
            return bool(np.all(np.any(value, axis=-1)))
        case "nonnegative":
            return bool(np.all(value >= 0))
        case "positive":
            return bool(np.all(value > 0))
        case "nonzero":
            return bool(np.all(value != 0))
        case "not_nan":
            return not np.any(np.isnan(value))
    return bool(np.all(np.isfinite(value)))


def examine(mutant: Mutant, axioms: Mapping[str, Axiom], prover: Prover | None) -> MutantOutcome:
    """Offers a mutant to the checker with its certificate, and to the prover, where there is one, without.

    A proof that the prover finds has conditions of its own, and the mutant counts as accepted only if it is false under
    these: sqrt(x x) = x is true of numbers that are not negative.
    """
    rule = mutant.rule
    try:
        sample = rule.sample()
        for term in walk([*sample.source, *sample.target]):
            if term.op in REGISTRY:
                REGISTRY[term.op].check_attributes(term.attrs)
        types = infer_types([*sample.source, *sample.target], rule.types)
    except (ShapeError, Undecided, KeyError, ValueError, TypeError, IndexError):
        return MutantOutcome.ILL_TYPED if check(rule, axioms) else MutantOutcome.ACCEPTED
    accepted = not check(rule, axioms)
    if any(types[a] != types[b] for a, b in zip(sample.source, sample.target, strict=True)):
        return MutantOutcome.ACCEPTED if accepted else MutantOutcome.ILL_TYPED
    try:
        is_false = _false(sample, axioms)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):  # an attribute that means nothing
        return MutantOutcome.ACCEPTED if accepted else MutantOutcome.ILL_TYPED
    if not is_false:
        return MutantOutcome.TRUE
    if accepted:
        return MutantOutcome.ACCEPTED
    if mutant.kind != "condition" and prover is not None:
        proof = prover.certify(sample.source, sample.target, sample.types)
        if proof is not None:
            proved = replace(sample, conditions=proof.conditions, certificate=proof.certificate)
            if _false(proved, axioms):
                return MutantOutcome.ACCEPTED
            return MutantOutcome.TRUE
    return MutantOutcome.REJECTED


def attack(
    rules: Sequence[Rule],
    axioms: Mapping[str, Axiom],
    count: int,
    seed: int = 0,
    prover: Prover | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Examines mutants until ``count`` of them were false, by the checker alone where there is no prover."""
    counts: Counter[tuple[str, MutantOutcome]] = Counter()
    accepted: list[Mutant] = []
    false = 0
    for mutant in mutants(rules, seed):
        outcome = examine(mutant, axioms, prover)
        counts[mutant.kind, outcome] += 1
        if outcome == MutantOutcome.ACCEPTED:
            accepted.append(mutant)
        if outcome in (MutantOutcome.REJECTED, MutantOutcome.ACCEPTED):
            false += 1
            if progress is not None:
                progress(false)
            if false >= count:
                break
    return Tally(counts, tuple(accepted))
