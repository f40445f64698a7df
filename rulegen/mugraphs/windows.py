"""Graphs for goals of any depth: all where they can be enumerated, else those that differ in windows from what is written.

A goal of more operators than an enumeration comes to the end of is rewritten a *window* at a time: some operators that lie side
by side and end in one value, with all that they read as inputs. Every graph of a window is enumerated, as of a small goal, and
each takes its place; what comes of that has windows of its own. So every graph is found that so many such steps lead to. The
goal as it is written is one of the graphs, however many operators it has.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mugraph.domains.base import Unsupported
from rulegen.mugraphs.enumerate import EnumerationLimits, Found, agreeing_values, enumerate_values
from rulegen.mugraphs.goals import BlockProgram
from rulegen.mugraphs.values import Operation, Value, ValueKind, Values, closure_of

__all__ = ["graphs_of"]

_WINDOWS = (7, 4)
"""Operators of a window, and of what may take its place; fewer where the enumeration of more does not come to its end."""
_MOST_VALUES = 2000
"""Of the enumeration of a window."""
_MOST_GRAPHS = 256
"""Graphs that are rewritten, those of fewest operators first."""
_SHARE = 0.5
"""Of the seconds, for an enumeration of a whole goal that may not come to its end."""

_Roots = tuple[Value, ...]


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
        windows: how many were enumerated.
        stopped: why not all was, in words behind a comma; nothing where all was.
    """

    def __init__(self, values: Values, limits: EnumerationLimits, ends: float, seed: int) -> None:
        self._values, self._limits, self._ends, self._seed = values, limits, ends, seed
        self._known: dict[int, list[Value]] = {}
        self._looks: dict[object, Found] = {}
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
            inside = self._window(root, most)
            if len(inside) == 1:
                break
            program, outer = self._program(root, inside)
            look = _look(program)
            if look not in self._looks:
                self.windows += 1
                seconds = max(self._ends - time.process_time(), 0.0)
                values = min(self._limits.values, _MOST_VALUES)
                self._looks[look] = enumerate_values(
                    program, EnumerationLimits(most, values, seconds, self._limits.pruned), self._seed
                )
            found = self._looks[look]
            if not found.stopped:
                return list(self._entered(found, outer, root))
        return []

    def _window(self, root: Value, most: int) -> frozenset[int]:
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

    def _entered(self, found: Found, outer: Mapping[int, Value], root: Value) -> Iterator[Value]:
        """What an enumeration found, with the values that the window reads."""
        for (result,) in found.results:
            done = dict(outer)
            try:
                for value in found.values.needed(result):
                    if not value.operation.kind.is_leaf:
                        done[value.number] = self._values.apply(value.operation, *(done[operand] for operand in value.operands))
            except Unsupported:  # it does with exponentials relative to a number what cannot be done with them
                continue
            if done[result.number] is not root:
                yield done[result.number]

    def _program(self, root: Value, inside: frozenset[int]) -> tuple[BlockProgram, Mapping[int, Value]]:
        """A window as a program, and the values behind its leaves by their numbers there and wherever it is enumerated."""
        values, own = self._values, Values()
        inputs: dict[str, tuple[str, ...]] = {}
        done: dict[int, Value] = {}
        for number in sorted({operand for i in inside for operand in values[i].operands} - inside):
            operation, axes = values[number].operation, tuple(sorted(values.look(values[number]).axes))
            if operation.kind not in (ValueKind.NUMBER, ValueKind.SIZE):
                operation = Operation(ValueKind.TENSOR, f"v{len(done)}")
                inputs[operation.name] = axes
            done[number] = own.leaf(operation, axes)
        outer = {leaf.number: values[number] for number, leaf in done.items()}
        for number in sorted(inside):
            done[number] = own.apply(values[number].operation, *(done[operand] for operand in values[number].operands))
        axes = tuple(sorted(values.look(root).axes))
        every = dict.fromkeys(
            axis for i in done for axis in (*sorted(values.look(values[i]).axes), values[i].operation.axis) if axis
        )
        return BlockProgram(dict.fromkeys(every, 1), own, (done[root.number],), inputs, (axes,)), outer

    def _replaced(self, graph: _Roots, old: Value, new: Value) -> _Roots:
        """A graph with another value in the place of one. Raises Unsupported."""
        done: dict[int, Value] = {}
        for value in self._values.needed(*graph):
            operands = [done[operand] for operand in value.operands]
            same = all(one.number == operand for one, operand in zip(operands, value.operands, strict=True))
            done[value.number] = new if value is old else value if same else self._values.apply(value.operation, *operands)
        return tuple(done[root.number] for root in graph)


def _look(program: BlockProgram) -> object:
    """Equal for windows that are equal up to what they read."""
    return tuple((value.operation, value.operands) for value in program.values), tuple(program.inputs.values())
