"""Random tests of values, as many as bring the chance of an error below a bound (Mirage, OSDI'25, theorem 2).

Two values that differ agree in one test with a probability that follows from their degrees and their numbers of exponential
terms; how many terms a sum has is known at the sizes of a test. All tests are one evaluation: they are an axis of every value,
with inputs and a root of unity of their own. Half of them are over each of two primes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.ops import get_operator
from rulegen.mugraphs.fingerprints import ValueFingerprints
from rulegen.mugraphs.goals import BlockProgram
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values
from rulegen.numeric.bounds import Degree, DegreeDomain, bound_of, tests_needed

__all__ = ["RandomTests", "random_tests"]

_TESTS = "#"
"""The axis of the tests; before all others in their order."""
_SIZE = 2
"""Of every other axis."""
_MOST_TESTS = 4096
_PROBE = 1 << 40
"""A degree that nothing has."""


@dataclass(frozen=True, slots=True)
class RandomTests:
    """The outcome of random tests of a value.

    Attributes:
        tests: how many there were; none where there is no bound.
        delta: two different values pass them with a probability of at most 2 to the power of minus this.
        passed: whether the value agreed with the goal in all of them.
    """

    tests: int
    delta: int
    passed: bool


def random_tests(program: BlockProgram, values: Values, roots: Sequence[Value], seed: int) -> RandomTests:
    """Compares values with the results of a program in as many tests as the worst of their bounds asks for.

    There is no bound, and so no test, of roots and opaque functions, and where it would ask for too many.

    Args:
        roots: one for each result.
    """
    domain, sizes = DegreeDomain(), dict.fromkeys(program.axes, _SIZE)
    try:
        pairs = zip(roots, program.roots, strict=True)
        differences = [domain.sub(_degree(values, own, sizes), _degree(program.values, goal, sizes)) for own, goal in pairs]
    except Unsupported:
        return RandomTests(0, 0, True)
    bound = max(map(bound_of, differences))
    count = tests_needed(bound) if bound < 1 else _MOST_TESTS + 1
    if count > _MOST_TESTS:
        return RandomTests(0, 0, True)
    half = -(-count // 2)
    inputs = {name: (_TESTS, *axes) for name, axes in program.inputs.items()}
    for prime in (0, 1):
        field = _TurnedField(seed, prime, half, len(sizes))
        every = {**sizes, _TESTS: half}
        expected = ValueFingerprints(program.values, inputs, every, field).of(program.roots)
        residues = ValueFingerprints(values, inputs, every, field).of(roots)
        for one, other in zip(expected, residues, strict=True):
            if one is None or other is None:  # a residue to divide by was zero
                return RandomTests(0, 0, True)
            if not np.array_equal(one, other):
                return RandomTests(count, 0, False)
    return RandomTests(2 * half, int(-2 * half * np.log2(bound)), True)


def _degree(values: Values, root: Value, sizes: Mapping[str, int]) -> Degree:
    """The degree of a value's entries. Raises Unsupported where they have no bound."""
    domain, degrees = DegreeDomain(), dict[int, Degree]()
    divisors: dict[int, frozenset[str]] = {}
    """Of each value the axes that its denominators have."""
    for value in values.needed(root):
        operation, operands = value.operation, [degrees[number] for number in value.operands]
        divided = frozenset[str]().union(*(divisors[number] for number in value.operands))
        one_divisor = operation.axis not in divided
        match operation.kind:
            case ValueKind.TENSOR:
                degree = Degree(1)
            case ValueKind.NUMBER:
                degree = domain.const(float(operation.name))
            case ValueKind.SIZE:
                degree = domain.const(sizes[operation.axis])
            case ValueKind.ENTRYWISE:
                degree = get_operator(operation.name).run(domain, operation.attrs, operands)[0]
            case ValueKind.SUM:
                degree = domain.repeated(operands[0], sizes[operation.axis], one_divisor=one_divisor)
            case ValueKind.DOT:
                degree = domain.repeated(domain.mul(*operands), sizes[operation.axis], one_divisor=one_divisor)
            case ValueKind.SHIFTED:
                degree = domain.exp(operands[0])
            case kind:
                raise Unsupported(f"{kind.name} has no bound")
        for place, number in enumerate(value.operands if operation.kind is ValueKind.ENTRYWISE else ()):
            axes = values.look(values[number]).axes
            if axes and _is_divided(operation, operands, place):
                divided |= axes
        degrees[value.number], divisors[value.number] = degree, divided
    return degrees[root.number]


def _is_divided(operation: Operation, operands: Sequence[Degree], place: int) -> bool:
    """Whether something is divided by an operand: the denominator then has what the numerator of the operand has."""
    probes = [Degree(_PROBE) if i == place else operand for i, operand in enumerate(operands)]
    probed: Degree = get_operator(operation.name).run(DegreeDomain(), operation.attrs, probes)[0]
    return probed.below >= _PROBE


class _TurnedField(FiniteField):
    """A pair of fields with a random root of unity for each test: a power of one root, whose powers are known.

    Args:
        tests: how many.
        axes: of a value, besides that of the tests and that of the values.
    """

    def __init__(self, seed: int, prime: int, tests: int, axes: int) -> None:
        super().__init__(seed, prime)
        self._known = FiniteField(0, prime)
        turns = np.random.default_rng([seed, prime]).integers(1, self.q, tests)
        self._turns = turns.astype(np.float64).reshape(tests, *[1] * axes)

    def exp(self, a: Any) -> Any:
        return super().exp(a) if a.q is None else self._known.exp(FieldArray(a.p, a.q * self._turns % self.q))
