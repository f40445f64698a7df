"""Patterns as Python functions: a loop for each operator, a local variable for each place of the binding.

Matching is what the search does most. A function that was written for one pattern visits no operand that cannot match and
builds no binding before a match is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any, Protocol

from mugraph.terms.term import AttrValue
from rulegen.prove.language import Language
from rulegen.prove.patterns import Apply, Binding, Pattern, Slot, bound_slots, match_value, operator_of

__all__ = ["Match", "Peek", "write_match", "write_peek"]


class MatchedGraph(Protocol):
    """The part of an e-graph that the functions read; see :class:`rulegen.prove.egraph.EGraph`."""

    op: list[int]
    operands: list[tuple[int, ...]]
    size: list[int]
    root: list[int]
    best: list[int]
    members: list[dict[str, list[int]]]
    built: dict[tuple[int, tuple[int, ...]], int]


Match = Callable[[MatchedGraph, Sequence[Sequence[int]], set[Any], int], list[tuple[tuple[int, ...], Binding]]]
"""From nodes to start at, for each pattern, the keys of bindings seen before, and the greatest size that an instance may have,
to new pairs of roots and binding. Instances of one operator are found whatever their size."""
Peek = Callable[[MatchedGraph, Sequence[Any]], tuple[int, ...] | None]
"""From a binding to the classes that the patterns' instances lie in, ``None`` where one is not there."""


def write_match(
    language: Language, patterns: Sequence[Apply], slots: int, measures: Sequence[tuple[int, tuple[int, ...]]]
) -> Match:
    """A function that finds the new bindings under which the patterns are nodes, up to equality of operands.

    Args:
        language: of the graphs.
        patterns: to be matched together.
        slots: places of a binding.
        measures: of the patterns that an instance consists of, as :func:`rulegen.prove.patterns.measure` tells; none where
            instances of any size are wanted.
    """
    return _PatternWriter(language).match(patterns, slots, measures)


def write_peek(language: Language, patterns: Sequence[Pattern]) -> Peek:
    """A function that finds the patterns' instances under a binding, if all are there already."""
    return _PatternWriter(language).peek(patterns)


class _AttributeBindings(dict[int, tuple[AttrValue, ...] | None]):
    """Operators by number to the values that an operator pattern's attributes bind, in order of ``slots``.

    ``None`` where the operator's attributes are not those of the pattern.
    """

    def __init__(self, language: Language, pattern: Apply) -> None:
        super().__init__()
        self.language, self.pattern = language, pattern
        self.slots = sorted({i for _, value in pattern.attrs for i in bound_slots(value)})

    def __missing__(self, op: int) -> tuple[AttrValue, ...] | None:
        _, attrs, out = self.language.ops[op]
        binding: Binding = [None] * (max(self.slots, default=-1) + 1)
        fits = out == self.pattern.out and [k for k, _ in attrs] == [k for k, _ in self.pattern.attrs]
        fits = fits and all(
            match_value(wanted, value, binding) for (_, value), (_, wanted) in zip(attrs, self.pattern.attrs, strict=True)
        )
        values = self[op] = tuple([binding[slot] for slot in self.slots]) if fits else None
        return values


_NESTING = 16
"""Loops in one another, of which Python admits 20 in a function."""


class _PatternWriter:
    """Writes patterns as the source of one function.

    Values of one language stand in the function's globals, so that patterns of one form share compiled code.
    """

    def __init__(self, language: Language) -> None:
        self.language = language
        self.lines: list[str] = []
        self.globals: dict[str, Any] = {}
        self.indent, self.loops, self.count = 1, 0, 0
        self.bound: set[int] = set()
        self.measures: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self.calls: list[str] = []

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def finish(self, header: str) -> Any:
        exec(_code("\n".join([header, *self.lines])), self.globals)
        return self.globals["function"]

    def match(self, patterns: Sequence[Apply], slots: int, measures: Sequence[tuple[int, tuple[int, ...]]]) -> Match:
        self.emit("root, op, operands, members, matches = graph.root, graph.op, graph.operands, graph.members, []")
        self.emit("size, best = graph.size, graph.best")
        self.measures = tuple(dict.fromkeys((count, tuple(sorted(leaves))) for count, leaves in measures))
        roots = [self.loop(pattern, f"starts[{i}]") for i, pattern in enumerate(patterns)]
        values = [f"s{i}" if i in self.bound else "None" for i in range(slots)]
        self.emit(f"key = ({''.join(f'root[{n}], ' for n in roots)}{''.join(f'{v}, ' for v in values if v != 'None')})")
        self.emit("if key not in seen:")
        self.emit("    seen.add(key)")
        self.emit(f"    matches.append((({''.join(f'{n}, ' for n in roots)}), [{', '.join(values)}]))")
        for call in reversed(self.calls):
            self.lines.append(call)
        self.lines.append("    return matches")
        function: Match = self.finish("def function(graph, starts, seen, most):")
        return function

    def reject_larger(self) -> None:
        """Goes on where what is bound so far makes an instance too large: of n^k combinations of nodes most do."""
        for count, leaves in self.measures:
            bound = "".join(f" + size[best[s{v}]]" for v in leaves if v in self.bound)
            self.emit(f"if {count}{bound} > most: continue")

    def loop(self, pattern: Apply, nodes: str) -> str:
        """Loops over nodes that may be the pattern; slots among the operands come first, since they only reject."""
        k, self.count = self.count, self.count + 1
        if self.loops == _NESTING:
            self.emit(f"def more{k}():")
            self.calls.append("    " * self.indent + f"more{k}()")
            self.indent, self.loops = self.indent + 1, 0
        self.emit(f"for n{k} in {nodes}:")
        self.indent, self.loops = self.indent + 1, self.loops + 1
        if pattern.ground is not None:
            self.globals[f"g{k}"] = pattern.ground
            self.emit(f"if op[n{k}] != g{k}: continue")
        else:
            bindings = self.globals[f"a{k}"] = _AttributeBindings(self.language, pattern)
            self.emit(f"b{k} = a{k}[op[n{k}]]")
            self.emit(f"if b{k} is None: continue")
            for i, slot in enumerate(bindings.slots):
                self.bind(slot, f"b{k}[{i}]")
        self.emit(f"o{k} = operands[n{k}]")
        self.emit(f"if len(o{k}) != {len(pattern.operands)}: continue")
        for i, operand in enumerate(pattern.operands):
            if isinstance(operand, Slot):
                self.bind(operand.index, f"root[o{k}[{i}]]")
        if k:
            self.reject_larger()
        for i, operand in enumerate(pattern.operands):
            if isinstance(operand, Apply):
                self.loop(operand, f"members[root[o{k}[{i}]]].get({operand.op!r}, ())")
        return f"n{k}"

    def bind(self, slot: int, value: str) -> None:
        if slot in self.bound:
            self.emit(f"if s{slot} != {value}: continue")
        else:
            self.emit(f"s{slot} = {value}")
            self.bound.add(slot)

    def peek(self, patterns: Sequence[Pattern]) -> Peek:
        self.globals["operator_of"] = partial(operator_of, self.language)
        self.emit("root, built = graph.root, graph.built")
        self.emit(f"return ({''.join(f'{self.place(pattern)}, ' for pattern in patterns)})")
        function: Peek = self.finish("def function(graph, binding):")
        return function

    def place(self, pattern: Pattern) -> str:
        """Looks the pattern's instance up; the expression of its class."""
        if isinstance(pattern, Slot):
            return f"root[binding[{pattern.index}]]"
        operands = "".join([f"{self.place(operand)}, " for operand in pattern.operands])
        k, self.count = self.count, self.count + 1
        if pattern.ground is not None:
            self.globals[f"p{k}"] = pattern.ground
            self.emit(f"n{k} = built.get((p{k}, ({operands})))")
        else:
            self.globals[f"p{k}"] = pattern
            self.emit(f"n{k} = built.get((operator_of(p{k}, binding), ({operands})))")
        self.emit(f"if n{k} is None: return None")
        return f"root[n{k}]"


@cache
def _code(source: str) -> CodeType:
    return compile(source, "<pattern>", "exec")
