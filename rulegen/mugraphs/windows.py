"""Graphs for goals of any depth: all where they can be enumerated, else those that differ in windows from what is written.

A goal of more operators than an enumeration comes to the end of is rewritten a *window* at a time: some operators that lie side
by side and end in one value, with all that they read as inputs. Every graph of a window is enumerated, as of a small goal, and
each takes its place; what comes of that has windows of its own. So every graph is found that so many such steps lead to. The
goal as it is written is one of the graphs, however many operators it has.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mugraph.domains.base import Unsupported
from rulegen.mugraphs.enumerate import EnumerationLimits, Found, agreeing_values, enumerate_values, residues_of
from rulegen.mugraphs.goals import BlockProgram
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values, closure_of, is_commutative

__all__ = ["graphs_of"]

_WINDOWS = (7, 4)
"""Operators of a window, and of what may take its place; fewer where the enumeration of more does not come to its end."""
_MOST_VALUES = 2000
"""Of the enumeration of a window."""
_MOST_GRAPHS = 256
"""Graphs that are rewritten, those of fewest operators first."""
_SHARE = 0.5
"""Of the seconds, for an enumeration of a whole goal that may not come to its end."""
_MOST_KNOWN = 1 << 12
"""Windows of which a process remembers the graphs."""

_TOLD = (ValueKind.NUMBER, ValueKind.SIZE)
"""Leaves that are what they are wherever they stand; others are read."""

_Roots = tuple[Value, ...]
_Step = tuple[Operation, tuple[int, ...]]
"""What is done with which values before it, by their places; leaves are the window's, in its order."""


@dataclass(frozen=True, slots=True)
class _GoalWindow:
    """Operators that lie side by side and end in one value, as a program of its own.

    Attributes:
        program: what it reads, and its axes, have names and an order that tell little of where it stands and how it is written.
        outer: the values behind its leaves, in order.
        axes: names of axes to those of the goal.
    """

    program: BlockProgram
    outer: tuple[Value, ...]
    axes: Mapping[str, str]

    def look(self, seed: int) -> object:
        """Equal for windows of which an enumeration finds the same graphs.

        It does what they do, with what they read, and looks for what agrees with them, in the fields in which that is asked.
        """
        program = self.program
        (expression,) = (program.values.look(root).expression for root in program.roots)
        return program.operations, program.leaves, program.outputs, expression, *residues_of(program, seed)

    def outside(self, operation: Operation) -> Operation:
        """An operation with the goal's axes."""
        return replace(operation, axis=self.axes[operation.axis]) if operation.axis else operation


@dataclass(frozen=True, slots=True)
class _Enumerated:
    """What an enumeration of a window found.

    Attributes:
        graphs: the steps behind the leaves of each graph.
        complete: whether it came to its end.
    """

    graphs: tuple[tuple[_Step, ...], ...] = ()
    complete: bool = False


_ENUMERATED: dict[object, _Enumerated] = {}
"""By window and limits, those that no clock ended: goals that a process searches one after the other have many in common."""


def graphs_of(program: BlockProgram, limits: EnumerationLimits, seed: int = 0) -> Found:
    """The graphs that compute a goal, the one that is written among them.

    Those of at most so many operators are enumerated where the goal itself has no more; where that is not done, or does not come
    to its end, graphs are rewritten in windows, too. The outcome says so.
    """
    ends = time.process_time() + limits.seconds
    if program.operators <= limits.operators:
        found = enumerate_values(program, replace(limits, seconds=_SHARE * limits.seconds), seed)
        reason = found.stopped and "not all graphs"
    else:
        found = Found(program, Values(abstract=False))
        reason = f"{program.operators} operators, not {limits.operators} at most"
    written = program.entered(found.values)
    graphs = {written: None, **dict.fromkeys(found.results)}
    if reason:
        rewriting = _Rewriting(found.values, limits, ends, seed)
        graphs |= dict.fromkeys(rewriting.run(written))
        found.rewritten = f"{reason}: rewritten in {rewriting.windows} windows{rewriting.stopped}"
    columns = [list(dict.fromkeys(graph[place] for graph in graphs)) for place in range(len(program.roots))]
    right = [set(own) for own in agreeing_values(program, found.values, columns, seed)]
    found.results = [graph for graph in graphs if all(root in own for root, own in zip(graph, right, strict=True))]
    found.results.sort(key=lambda graph: (len(closure_of(graph)), [root.number for root in graph]))
    return found


class _Rewriting:
    """Rewrites graphs.

    Attributes:
        windows: how many that differ were met.
        stopped: why not all was, in words behind a comma; nothing where all was.
    """

    def __init__(self, values: Values, limits: EnumerationLimits, ends: float, seed: int) -> None:
        self._values, self._limits, self._ends, self._seed = values, limits, ends, seed
        self._known: dict[int, list[Value]] = {}
        self._met: set[object] = set()
        self.windows, self.stopped = 0, ""

    def run(self, written: _Roots) -> list[_Roots]:
        """The graphs that windows lead to, in the order in which they were met."""
        seen = {written}
        waiting = [(len(closure_of(written)), 0, written)]
        while waiting and not self.stopped:
            _, _, graph = heapq.heappop(waiting)
            for made in self._rewritten(graph):
                if made not in seen:
                    heapq.heappush(waiting, (len(closure_of(made)), len(seen), made))
                    seen.add(made)
            if len(seen) >= _MOST_GRAPHS:
                self.stopped = f", stopped after {_MOST_GRAPHS} graphs"
        return list(seen)

    def _rewritten(self, graph: _Roots) -> Iterator[_Roots]:
        """The graphs that differ from one in a window."""
        values = self._values
        for value in values.needed(*graph):
            if value.operation.kind.is_leaf or values.look(value).shift is not None:
                continue
            if value.number not in self._known:
                if time.process_time() > self._ends:
                    self.stopped = f", stopped after {self._limits.seconds:g} s"
                    return
                self._known[value.number] = self._alternatives(value)
            for other in self._known[value.number]:
                try:
                    yield self._replaced(graph, value, other)
                except Unsupported:  # exponentials relative to different numbers would meet
                    continue

    def _alternatives(self, root: Value) -> list[Value]:
        """The values that compute what one does, of what the largest window reads that can be enumerated."""
        for most in _WINDOWS:
            inside = self._inside(root, most)
            if len(inside) == 1:
                break
            window = self._window(root, inside)
            found = self._enumerated(window, most)
            if found.complete:
                return list(self._entered(found, window, root))
        return []

    def _enumerated(self, window: _GoalWindow, most: int) -> _Enumerated:
        values = min(self._limits.values, _MOST_VALUES)
        key = (window.look(self._seed), most, values, self._limits.pruned, self._seed)
        if key not in self._met:
            self._met.add(key)
            self.windows += 1
        if key in _ENUMERATED:
            return _ENUMERATED[key]
        seconds = max(self._ends - time.process_time(), 0.0)
        found = enumerate_values(window.program, EnumerationLimits(most, values, seconds, self._limits.pruned), self._seed)
        graphs = () if found.stopped else tuple(_steps(found, result) for (result,) in found.results)
        made = _Enumerated(graphs, not found.stopped)
        if made.complete or time.process_time() < self._ends:
            while len(_ENUMERATED) >= _MOST_KNOWN:
                del _ENUMERATED[next(iter(_ENUMERATED))]
            _ENUMERATED[key] = made
        return made

    def _inside(self, root: Value, most: int) -> frozenset[int]:
        """The operators of the window that ends in a value: those nearest to it in the order in which they were made."""
        inside: set[int] = set()
        heap = [-root.number]
        while heap and len(inside) < most:
            value = self._values[-heapq.heappop(heap)]
            if value.number not in inside and not value.operation.kind.is_leaf:
                inside.add(value.number)
                for operand in value.operands:
                    heapq.heappush(heap, -operand)
        return frozenset(inside)

    def _entered(self, found: _Enumerated, window: _GoalWindow, root: Value) -> Iterator[Value]:
        """What an enumeration found, with the values that the window reads."""
        for graph in found.graphs:
            done = list(window.outer)
            try:
                for operation, operands in graph:
                    done.append(self._values.apply(window.outside(operation), *(done[operand] for operand in operands)))
            except Unsupported:  # it does with exponentials relative to a number what cannot be done with them
                continue
            if done[-1] is not root:
                yield done[-1]

    def _window(self, root: Value, inside: frozenset[int]) -> _GoalWindow:
        """The window of some operators that end in a value."""
        values, own = self._values, Values()
        order = self._in_order(root, inside)
        names: dict[str, str] = {}
        inputs: dict[str, tuple[str, ...]] = {}
        done: dict[int, Value] = {}

        def named(axes: Iterable[str]) -> tuple[str, ...]:
            return tuple(names.setdefault(axis, f"a{len(names)}") for axis in axes)

        def inner(operation: Operation) -> Operation:
            return replace(operation, axis=named([operation.axis])[0]) if operation.axis else operation

        def axes_of(value: Value) -> tuple[str, ...]:
            return tuple(sorted(named(sorted(values.look(value).axes))))

        named(axis for number in order if number in inside and (axis := values[number].operation.axis))
        leaves = [number for number in order if number not in inside]
        axes = {number: axes_of(values[number]) for number in leaves}
        for number in sorted(leaves, key=lambda number: (_told(values[number].operation), len(axes[number]), axes[number])):
            operation = values[number].operation
            if operation.kind not in _TOLD:
                operation = Operation(ValueKind.TENSOR, f"v{len(done)}")
                inputs[operation.name] = axes[number]
            done[number] = own.leaf(inner(operation), axes[number])
        outer = tuple(values[number] for number in done)
        for number in order:
            if number in inside:
                operation, operands = values[number].operation, values[number].operands
                done[number] = own.apply(inner(operation), *(done[operand] for operand in operands))
        result = axes_of(root)
        program = BlockProgram(dict.fromkeys(names.values(), 1), own, (done[root.number],), inputs, (result,))
        return _GoalWindow(program, outer, {inside: outside for outside, inside in names.items()})

    def _in_order(self, root: Value, inside: frozenset[int]) -> list[int]:
        """The operators of a window and what they read, operands first, in an order that their numbers have little part in.

        Operands that may change places stand in the order of what is done for them; where that is the same, in theirs.
        """
        values = self._values
        shapes: dict[int, str] = {}
        for number in sorted({operand for i in inside for operand in values[i].operands} | inside):
            operation, operands = values[number].operation, values[number].operands
            if number in inside:
                within = [shapes[operand] for operand in operands]
                if len(within) == 2 and is_commutative(operation):
                    within.sort()
                text = f"{operation.name}{operation.attrs}({','.join(within)})"
            else:
                known = operation.name if operation.kind is ValueKind.NUMBER else ""
                text = f"{known}:{len(values.look(values[number]).axes)}"
            shapes[number] = f"{operation.kind.name if number in inside or known else ''}{text}"
        order: dict[int, None] = {}

        def visit(number: int) -> None:
            if number in order:
                return
            if number in inside:
                operands = list(values[number].operands)
                if len(operands) == 2 and is_commutative(values[number].operation):
                    operands.sort(key=shapes.__getitem__)
                for operand in operands:
                    visit(operand)
            order[number] = None

        visit(root.number)
        return list(order)

    def _replaced(self, graph: _Roots, old: Value, new: Value) -> _Roots:
        """A graph with another value in the place of one. Raises Unsupported."""
        done: dict[int, Value] = {}
        for value in self._values.needed(*graph):
            operands = [done[operand] for operand in value.operands]
            same = all(one.number == operand for one, operand in zip(operands, value.operands, strict=True))
            done[value.number] = new if value is old else value if same else self._values.apply(value.operation, *operands)
        return tuple(done[root.number] for root in graph)


def _told(leaf: Operation) -> str:
    """What a leaf is wherever it stands; nothing of one that is read."""
    return leaf.name or "size" if leaf.kind in _TOLD else ""


def _steps(found: Found, result: Value) -> tuple[_Step, ...]:
    """What computes a result of what its window reads."""
    leaves = [value.number for value in found.values if value.operation.kind.is_leaf]
    places = {number: place for place, number in enumerate(leaves)}
    steps: list[_Step] = []
    for value in found.values.needed(result):
        if not value.operation.kind.is_leaf:
            places[value.number] = len(places)
            steps.append((value.operation, tuple(places[operand] for operand in value.operands)))
    return tuple(steps)
