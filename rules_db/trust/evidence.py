"""Evidence by tests: for rules that the operator properties do not prove, and polynomial ones only.

``bounded``: both sides are equal polynomials of their operands' entries for every choice of shapes up to a bound.
``probabilistic``: they agree on random entries in fields of about 2**22 elements, at other shapes. Two polynomials of degree d
that differ agree on a random point of a field of p elements with a probability of at most d / p (Schwartz and Zippel), so that
k tests bound the error by (d / p)**k. Anything but polynomials has no such bound here and needs a certificate.

Coefficients depend on sizes: a sum along an axis of what does not vary along it is a multiple of its length. They are polynomials
of the sizes, of a degree that the program bounds, and one that is not zero may be zero at whatever sizes somebody has in mind. So
sizes are drawn at random too, out of four times as many as it can have zeros, by a generator that starts from the rule's digest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import SAFE_PRIMES, FieldArray, FiniteField
from mugraph.domains.range import Range
from mugraph.domains.symbolic import Symbolic
from mugraph.ops import DegreeBound, ProductKind, traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, concrete
from mugraph.terms.term import Term, attr_symbols, substitute, variables, walk
from rules_db.trust.certificate import BoundedTests, Certificate
from rules_db.trust.condition import Facts
from rules_db.trust.rule import Rule, dim_symbols

__all__ = ["LEAST_DELTA", "gather", "programs_at", "repeat_tests", "used_symbols"]

LEAST_DELTA = 60
"""The error must be at most 2 to the power of minus this."""
_MOST = 20_000
"""Choices of shapes that a check goes through."""
_SIZE_DRAWS = 32
"""Draws of sizes: each lets a polynomial pass that has zeros at a quarter of them."""
_MOST_SIZE_DEGREE = 12
"""Of the coefficients as polynomials of the sizes: beyond it the sizes would be too large to evaluate anything."""
_MOST_ALONG = 4
"""Axes along which an operator adds, where its attributes do not say."""
_MOST_ENTRIES = 1 << 22
"""Of all operands and results of a test together."""
_PREFIXES: tuple[tuple[int, ...], ...] = ((), (), (2,), (1,), (3, 2))


def _degree(roots: Sequence[Term]) -> int:
    """The greatest degree of the entries of the roots as polynomials. Raises ValueError where they are none."""
    degrees: dict[Term, int] = {}
    for term in walk(roots):
        operands = [degrees[operand] for operand in term.inputs]
        if not operands:
            degrees[term] = int(term.is_var)
        elif traits_of(term.op).degree is DegreeBound.LINEAR:
            degrees[term] = max(operands)
        elif traits_of(term.op).degree is DegreeBound.MULTILINEAR:
            degrees[term] = sum(operands)
        else:
            raise ValueError(f"'{term.op}' is no polynomial, so that tests have no error bound; a certificate is required")
    return max(degrees.values())


def _size_degree(roots: Sequence[Term]) -> int:
    """A bound of the degree of the entries' coefficients as polynomials of the sizes, denominators of means multiplied out."""
    degrees: dict[Term, int] = {}
    for term in walk(roots):
        traits = traits_of(term.op)
        plain = term.op in ("Var", "Const") or traits.entrywise is not None or traits.movement is not None
        axes = term.attr("axes")
        along = 0 if plain else len(axes) if traits.reduction is not None and isinstance(axes, tuple) else _MOST_ALONG
        if traits.product is ProductKind.MATRIX:
            along = 1
        degrees[term] = sum(degrees[operand] for operand in term.inputs) + along
    return sum(degrees[root] for root in roots)


def _delta(degree: int, tests: int) -> int:
    return math.floor(tests * (math.log2(min(SAFE_PRIMES)) - math.log2(max(degree, 1))))


def used_symbols(rule: Rule) -> list[str]:
    """Dimension symbols that the sides and conditions use, which shapes of operands do not give."""
    cited = [term for condition in rule.conditions for term in condition.terms()]
    used = dim_symbols([*rule.source, *rule.target, *cited])
    used.update(s for condition in rule.conditions for argument in condition.arguments for s in attr_symbols(argument))
    return sorted(used)


def programs_at(rule: Rule, types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> list[Term] | None:
    """The outputs of both sides, the source's first; ``None`` where the rule cannot be applied to operands of these types."""
    programs = [substitute(root, {}, dims=sizes) for root in (*rule.source, *rule.target)]
    conditions = [c.substitute({}, dims=sizes) for c in rule.conditions if not c.guard.of_values]
    try:
        inferred = infer_types([*programs, *(term for c in conditions for term in c.terms())], types)
    except (ShapeError, Undecided):
        return None
    facts = Facts(inferred.__getitem__, lambda term: Range.top(), sizes)
    if any(condition.holds(facts) is not True for condition in conditions):
        return None
    half = len(rule.source)
    if any(inferred[a] != inferred[b] for a, b in zip(programs[:half], programs[half:], strict=True)):
        return None  # the rewriter compares the types of what it replaces
    return programs


def _choices(rule: Rule, tested: BoundedTests) -> Iterator[tuple[dict[str, TensorType], dict[str, int]]]:
    """All types of at most so many dimensions, each at most so long, with all values of the symbols.

    Left out are types under which a part of a side is not typed or a condition fails, whatever the remaining variables are.
    """
    lengths, symbols, names = range(1, tested.shapes + 1), used_symbols(rule), list(rule.types)
    shapes = [shape for rank in range(tested.ranks + 1) for shape in itertools.product(lengths, repeat=rank)]
    conditions = [c for c in rule.conditions if not c.guard.of_values]
    needs = {t: {v.name for v in variables([t])} for t in walk([*rule.source, *rule.target]) if not dim_symbols([t])}

    def extend(types: dict[str, TensorType]) -> Iterator[dict[str, TensorType]]:
        if len(types) == len(names):
            yield types
            return
        name = names[len(types)]
        typed = {*types, name}
        parts = [term for term, needed in needs.items() if name in needed <= typed]
        decided = [c for c in conditions if all(term in needs and needs[term] <= typed for term in c.terms())]
        for shape in shapes:
            chosen = {**types, name: TensorType(rule.types[name].dtype, shape)}
            try:
                inferred = infer_types([*parts, *(term for c in decided for term in c.terms())], chosen)
            except (ShapeError, Undecided):
                continue
            facts = Facts(inferred.__getitem__, lambda term: Range.top())
            if all(condition.holds(facts) is not False for condition in decided):
                yield from extend(chosen)

    for types in extend({}):
        for values in itertools.product(lengths, repeat=len(symbols)):
            yield types, dict(zip(symbols, values, strict=True))


def _count(rule: Rule, tested: BoundedTests) -> int:
    shapes: int = sum(tested.shapes**rank for rank in range(tested.ranks + 1))
    return math.prod([shapes] * len(rule.types) + [tested.shapes] * len(used_symbols(rule)))


def _bounded(rule: Rule, tested: BoundedTests) -> str | None:
    applied = 0
    if _count(rule, tested) > _MOST:
        return f"more than {_MOST:,} choices of shapes to go through; lower the bound"
    for types, sizes in _choices(rule, tested):
        programs = programs_at(rule, types, sizes)
        if programs is None:
            continue
        applied += 1
        domain = Symbolic()
        values = evaluate(programs, domain, {name: domain.input(name, concrete(t.shape) or ()) for name, t in types.items()})
        number = _difference(rule, programs, values)
        if number is not None:
            where = ", ".join(f"{name}:{type_}" for name, type_ in types.items())
            return f"output {number} differs as a polynomial at {where}"
    return None if applied else "no choice of shapes satisfies the conditions"


def _probabilistic(rule: Rule, tested: BoundedTests) -> str | None:
    symbols = sorted({s for t in rule.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()})
    degree = _size_degree([*rule.source, *rule.target])
    if degree > _MOST_SIZE_DEGREE:
        return f"its coefficients may depend on sizes like polynomials of degree {degree}, which no few tests tell from zero"
    largest = 2 + max(4 * degree, len(symbols) + 2)
    for test in range(max(tested.tests, _SIZE_DRAWS)):
        generator = np.random.default_rng([int(rule.id, 16), tested.seed, test])
        field = FiniteField(tested.seed + test, prime=test)
        sizes = {name: int(generator.integers(2, largest + 1)) for name in symbols}
        sample = {n: t.at(sizes) for n, t in rule.types.items()}
        prefix = _PREFIXES[generator.integers(len(_PREFIXES))]
        wider = {n: TensorType(t.dtype, prefix + t.shape) for n, t in sample.items()}
        small = sum(t.size() for t in wider.values()) <= _MOST_ENTRIES
        types = wider if small and programs_at(rule, wider, sizes) else sample
        programs = programs_at(rule, types, sizes)
        if programs is None:
            return "the sample types do not satisfy the conditions, or the sides' types differ"
        if sum(t.size() for t in infer_types(programs, types).values()) > _MOST_ENTRIES:
            return f"a test has more than {_MOST_ENTRIES:,} entries"
        values = evaluate(programs, field, {n: field.random(generator, concrete(t.shape) or ()) for n, t in types.items()})
        number = _difference(rule, programs, values)
        if number is not None:
            return f"output {number} differs in test {test}, in the field of {field.p}"
    return None


def _difference(rule: Rule, programs: Sequence[Term], values: Mapping[Term, Array]) -> int | None:
    """The first output that differs."""
    half = len(rule.source)
    for number, (source, target) in enumerate(zip(programs[:half], programs[half:], strict=True)):
        left, right = (v.p if isinstance(v, FieldArray) else v for v in (values[source], values[target]))
        if np.shape(left) != np.shape(right) or not np.all(np.asarray(left == right)):
            return number
    return None


def repeat_tests(rule: Rule, tested: BoundedTests) -> list[str]:
    """Repeats the tests; returns what is wrong, nothing where the evidence holds."""
    if rule.attrs or rule.certificate.instances:
        return ["tests say nothing of other values of attribute variables, nor of properties"]
    if any(type_.dtype == DataType.BOOL for type_ in rule.types.values()):
        return ["tests speak of numbers, not of truth values"]
    least = max((type_.rank for type_ in rule.types.values()), default=0)
    if tested.shapes < 2 or tested.ranks < least:
        return [f"the bound must be at least 2 for shapes and {least} for ranks"]
    try:
        delta = _delta(_degree([*rule.source, *rule.target]), tested.tests)
        if delta < max(tested.delta, LEAST_DELTA):
            return [f"{tested.tests} tests bound the error by 2^-{delta}; it must be 2^-{max(tested.delta, LEAST_DELTA)} or less"]
        problem = _probabilistic(rule, tested) or _bounded(rule, tested)
    except (ValueError, Unsupported) as reason:
        return [str(reason)]
    return [problem] if problem else []


def gather(rule: Rule, seed: int = 0) -> Certificate | None:
    """Evidence for a rule, with as many ranks as can be gone through; ``None`` where it has no bound or is false."""
    try:
        degree = _degree([*rule.source, *rule.target])
    except ValueError:
        return None
    tests = next(k for k in itertools.count(1) if _delta(degree, k) >= LEAST_DELTA)
    least = max((type_.rank for type_ in rule.types.values()), default=0)
    for ranks in (least + 1, least):
        tested = BoundedTests(2, ranks, tests, seed, _delta(degree, tests))
        if _count(rule, tested) <= _MOST:
            certificate = Certificate((), tested)
            return None if repeat_tests(replace(rule, certificate=certificate), tested) else certificate
    return None
