"""Every value that a block graph of so many operators may compute on the way to a goal, and those that are the goal.

Mirage's search (OSDI'25, algorithm 1) adds one operator after the other to a graph, in the order of their ranks, and prunes a
prefix by its abstract expressions. Here a graph is its results, terms over inputs: terms are made by their number of operators,
each once, symmetric operands in one order, so that every graph stands once by construction and what no result needs is in none.
A term is kept while its expression may be part of the goal's. What may be done with a term depends on
its *look*, its axes and its expression: two looks are compared once, however many terms have them.

The candidates are the terms that have the axes of one of the goal's results and, where expressions prune, its expression. Which
of them compute it is asked by fingerprints, of all at once: over a second pair of fields of those that agree in the first. A
graph for a goal of several results has one term for each, which share operators.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField
from rulegen.mugraphs.abstract import Parts
from rulegen.mugraphs.fingerprints import ValueFingerprints
from rulegen.mugraphs.goals import BlockProgram
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values, closure_of, is_commutative

__all__ = ["EnumerationLimits", "Found", "agreeing_values", "enumerate_values", "residues_of"]

_SIZES = ((2, 3, 2, 3), (3, 2, 2, 2))
"""Of axes, in turn, of the first and the second fingerprint."""
_MOST_OF_SEVERAL = 24
"""Values for one of several results that are put together with those for the others, the shortest first."""
_CLOCK = 4096
"""Values between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class EnumerationLimits:
    """Limits.

    Attributes:
        operators: of a block graph; inputs, numbers and savers do not count.
        values: at most so many are made.
        seconds: of a processor, at most so many; time that others have it does not count.
        pruned: whether abstract expressions prune.
    """

    operators: int = 8
    values: int = 1_000_000
    seconds: float = float("inf")
    pruned: bool = True


@dataclass
class Found:
    """What an enumeration found.

    Attributes:
        values: all that were made.
        results: one value for each result of the goal, which compute it, of fewest operators first.
        pruned: applications to looks that expressions excluded.
        candidates: values of the axes and the expression of a result; ``refuted`` of them are something else.
        stopped: why it is not complete; nothing where it is.
        rewritten: how graphs were found that were not enumerated; nothing where none were.
        undecided: why nothing was pruned although it was asked for; nothing elsewhere.
    """

    program: BlockProgram
    values: Values
    results: list[tuple[Value, ...]] = field(default_factory=list)
    pruned: int = 0
    candidates: int = 0
    refuted: int = 0
    stopped: str = ""
    rewritten: str = ""
    undecided: str = ""


def enumerate_values(program: BlockProgram, limits: EnumerationLimits, seed: int = 0) -> Found:
    """The graphs of at most so many operators that compute a goal."""
    wanted = [program.values.look(root) for root in program.roots]
    parts = Parts(*(look.expression for look in wanted))
    undecided = parts.undecided if limits.pruned else None
    abstract = limits.pruned and undecided is None
    found = Found(program, Values(abstract=abstract), undecided=undecided or "")
    candidates: list[list[Value]] = [[] for _ in wanted]
    for value in _ValueGrowth(found, parts if abstract else None, limits).run():
        look = found.values.look(value)
        for own, goal in zip(candidates, wanted, strict=True):
            if look.axes == goal.axes and look.shift is None and (not abstract or look.expression == goal.expression):
                own.append(value)
    agreeing = agreeing_values(program, found.values, candidates, seed)
    found.candidates = sum(map(len, candidates))
    found.refuted = found.candidates - sum(map(len, agreeing))
    shortest = [sorted(own, key=_length)[:_MOST_OF_SEVERAL] for own in agreeing] if len(agreeing) > 1 else agreeing
    graphs = [graph for graph in itertools.product(*shortest) if len(closure_of(graph)) <= limits.operators]
    found.results = sorted(graphs, key=lambda graph: (len(closure_of(graph)), [value.number for value in graph]))
    return found


def _length(value: Value) -> tuple[int, int]:
    return len(value.closure), value.number


def agreeing_values(program: BlockProgram, values: Values, candidates: Sequence[Sequence[Value]], seed: int) -> list[list[Value]]:
    """The candidates for each result of a goal whose fingerprints are the result's, in two fields."""
    left = [list(own) for own in candidates]
    for turn in range(len(_SIZES)):
        wanted = _fingerprints(program, program.values, seed, turn).of(program.roots)
        own = _fingerprints(program, values, seed, turn)
        for place, residues in enumerate(wanted):
            same = zip(left[place], own.of(left[place]), strict=True)
            left[place] = [v for v, made in same if made is not None and residues is not None and np.array_equal(made, residues)]
    return left


def residues_of(program: BlockProgram, seed: int) -> list[bytes]:
    """The fingerprints of a program's results in two fields, one after the other; empty of one that divides by zero."""
    found = []
    for turn in range(len(_SIZES)):
        made = _fingerprints(program, program.values, seed, turn).of(program.roots)
        found += [b"" if residues is None else residues.tobytes() for residues in made]
    return found


def _fingerprints(program: BlockProgram, values: Values, seed: int, turn: int) -> ValueFingerprints:
    """Those of some values over the inputs of a program; its axes have unequal small sizes."""
    row = _SIZES[turn]
    sizes = {axis: row[i % len(row)] for i, axis in enumerate(program.axes)}
    return ValueFingerprints(values, program.inputs, sizes, FiniteField(seed + turn, turn))


class _ValueGrowth:
    """Makes values, those of fewer operators first."""

    def __init__(self, found: Found, parts: Parts | None, limits: EnumerationLimits) -> None:
        self._found, self._values, self._parts, self._limits = found, found.values, parts, limits
        operations = found.program.operations
        self._unary = [op for op in operations if self._operands(op) == 1]
        self._binary = [op for op in operations if self._operands(op) == 2]
        self._levels: list[list[Value]] = [[] for _ in range(limits.operators + 1)]
        self._done: dict[int, list[Value]] = defaultdict(list)
        self._looks: dict[tuple[Operation, int, int | None], int | None] = {}
        self._asked: dict[tuple[Operation, int], set[int]] = {}
        self._known: dict[tuple[Operation, int], list[tuple[int, bool, int]]] = {}
        self._ends = time.process_time() + limits.seconds

    def _operands(self, operation: Operation) -> int:
        if operation.kind is ValueKind.ENTRYWISE:
            known = self._found.program.values
            return next(len(value.operands) for value in known if value.operation == operation)
        return 2 if operation.kind is ValueKind.DOT else 1

    def run(self) -> Iterator[Value]:
        """All values but leaves."""
        for operation, axes in self._found.program.leaves:
            self._levels[0].append(self._values.leaf(operation, axes))
        for level in self._levels:
            for value in level:
                if level is not self._levels[0]:
                    yield value
                if self._found.stopped:
                    return
                self._extend(value)

    def _extend(self, value: Value) -> None:
        """Makes what is computed of a value and those before it."""
        if len(value.closure) == self._limits.operators:
            return
        for operation in self._unary:
            look = self._result(operation, value.look)
            if look is None:
                self._found.pruned += 1
            else:
                self._enter(operation, (value,), look)
        self._done[value.look].append(value)
        for operation in self._binary:
            for other, swapped, look in self._partners(operation, value.look):
                for member in self._done[other]:
                    self._enter(operation, (member, value) if swapped else (value, member), look)

    def _partners(self, operation: Operation, look: int) -> list[tuple[int, bool, int]]:
        """The looks of values so far that go with one: whether they come first, and the look of the result."""
        asked = self._asked.setdefault((operation, look), set())
        partners = self._known.setdefault((operation, look), [])
        for other in sorted(self._done.keys() - asked):
            if self._found.stopped:
                break
            asked.add(other)
            for swapped in (False,) if is_commutative(operation) else (False, True):
                result = self._result(operation, *((other, look) if swapped else (look, other)))
                if result is None:
                    self._found.pruned += 1
                else:
                    partners.append((other, swapped, result))
        return partners

    def _result(self, operation: Operation, first: int, second: int | None = None) -> int | None:
        """The look of a result; ``None`` where there is none, or it is no part of the goal."""
        key = (operation, first, second)
        if key not in self._looks:
            try:
                look = self._values.result_look(operation, first, *(() if second is None else (second,)))
                kept = self._parts is None or look.expression in self._parts
                self._looks[key] = self._values.look_number(look) if kept else None
            except Unsupported:
                self._looks[key] = None
            self._check_clock()
        return self._looks[key]

    def _check_clock(self) -> None:
        if time.process_time() > self._ends:
            self._found.stopped = f"{self._limits.seconds:g} s"

    def _enter(self, operation: Operation, operands: tuple[Value, ...], look: int) -> None:
        closure = operands[0].closure.union(*(operand.closure for operand in operands[1:]))
        if len(closure) >= self._limits.operators or self._found.stopped:
            return
        before = len(self._values)
        made = self._values.entered(operation, operands, look)
        if len(self._values) == before:
            return
        self._levels[len(made.closure)].append(made)
        if len(self._values) >= self._limits.values:
            self._found.stopped = f"{self._limits.values:,} values"
        elif len(self._values) % _CLOCK == 0:
            self._check_clock()
