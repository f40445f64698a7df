"""Loop nests over the entries of tiles.

The innermost loop goes along the axis in which most of memory is read and written one entry after another, and is one that the
compiler makes vectors of. What an index makes of the position along it is the position times 0 or 1 there: where a digit of it
wraps, the loop ends and the next begins. Sums and maxima along it are reductions of that loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.blocks.statements import Affine, Extent, Index, Load, MaskTile, PlaceTile, Predicate, View
from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, Dim, TensorType
from mugraph.terms.term import variables
from rewriter.kernels.c.lines import CLines, times
from rewriter.kernels.c.scalar import CText, c_type
from rewriter.kernels.c.steps import Fold, Group, Let, Put, Step
from rewriter.kernels.c.tiling import TileSizes
from rewriter.kernels.text.analysis import ChosenLoad
from rewriter.kernels.text.thread import Expr, bare, write_thread

__all__ = ["ELEMENTS", "IDENTITY", "Chosen", "Held", "MaskSource", "Nests", "StateLoad"]

ELEMENTS = {
    DataType.FLOAT: "float",
    DataType.FLOAT16: "uint16_t",
    DataType.BFLOAT16: "uint16_t",
    DataType.BOOL: "uint8_t",
    DataType.UINT8: "uint8_t",
    DataType.INT8: "int8_t",
    DataType.INT32: "int32_t",
    DataType.INT64: "int64_t",
}
"""Element types in memory."""
IDENTITY = {"sum": "0.0f", "max": "(-INFINITY)", "min": "INFINITY"}
_WHOLE_IDENTITY = {"sum": "0", "max": "INT64_MIN", "min": "INT64_MAX"}
_JOINED = {"sum": "{} + {}", "max": "f32_max({}, {})", "min": "f32_min({}, {})"}
_WHOLE_JOINED = {"sum": "{} + {}", "max": "at_most({}, {})", "min": "at_least({}, {})"}
_REDUCTIONS = {"sum": "+", "max": "max", "min": "min"}
_EXTREMES = {"max": "f32_greatest", "min": "f32_smallest"}
"""How an extreme of floats along the innermost loop is had from what functions.h keeps of their bits."""
_LANES = 32
"""Sums in 32 bits beside each other along the innermost loop, which functions.h adds up in 64. A short loop adds in 64 bits at
once, and so does a long one, so that no lane adds up so many numbers that it is less exact for it."""
_SUMMED_IN_LANES = range(2 * _LANES, 32 * _LANES + 1)
"""Lengths of a tile of which the sum is one of lanes."""
_SHORTEST = 8
"""Entries from which on a piece of a loop within which no digit wraps is one of its own."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value that is kept: a number, or an array over axes in an order."""

    text: str
    kind: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateLoad:
    """The state of a part of a split loop, in scratch memory from an offset on."""

    tensor: str
    view: View
    offset: str


@dataclass(frozen=True, slots=True)
class MaskSource:
    """A tile of a stored mask: of a table, and whether any of it is hidden."""

    table: str
    view: View
    offset: str = ""
    hides: str = ""


Inline = Load | Predicate | PlaceTile | MaskTile | Extent | StateLoad
"""What is read where it is used."""
Chosen = Mapping[str, ChosenLoad]


class Nests:
    """Writes loop nests of one function.

    Args:
        types: of the tensors that it may read and write.
        chosen: loads of entries where a predicate is so.

    Attributes:
        held: values that are kept, by name.
        inline: values that are read where they are used.
        masks: where tiles of stored masks are.
        tensors: those that are pointed to: arguments of the function.
    """

    def __init__(self, lines: CLines, tiling: TileSizes, types: Mapping[str, TensorType], chosen: Chosen) -> None:
        self.lines, self.tiling, self.types, self.chosen = lines, tiling, types, chosen
        self.held: dict[str, Held] = {}
        self.inline: dict[str, Inline] = {}
        self.masks: dict[str, MaskSource] = {}
        self.tensors: list[str] = []

    def array(self, name: str, kind: str, axes: Sequence[str]) -> Held:
        """Declares an array, or a number that may change, and keeps it under a name."""
        type_ = "uint8_t" if kind == "bool" and axes else c_type(kind)
        text = self.lines.fresh(f"{name}_entries" if axes else name)
        if axes:
            room = self.tiling.room(axes)
            self.lines.line(f"_Alignas(64) {type_} {text}{''.join(f'[{size}]' for size in room)};")
            self.lines.stack[text] = math.prod(room) * {"float": 4, "int": 8, "bool": 1}[kind]
        else:
            self.lines.line(f"{type_} {text};")
        self.held[name] = Held(text, kind, tuple(axes))
        return self.held[name]

    def fill(self, name: str, value: str) -> None:
        """Sets all entries that count of what is kept under a name."""
        held = self.held[name]
        self._fill(held, held.axes, value)

    def _fill(self, held: Held, axes: Sequence[str], value: str) -> None:
        if not axes:
            self.lines.line(f"{held.text}{subscripts(held.axes)} = {value};")
            return
        axis = axes[0]
        with self.lines.block(f"for (int64_t {axis}_i = 0; {axis}_i < {self.tiling.length(axis)}; ++{axis}_i)"):
            self._fill(held, axes[1:], value)

    def pointer(self, tensor: str, view: View) -> str:
        """Writes a pointer to the first entry of a tile in memory, and returns its name."""
        nest = _Nest(self, Group(()), set())
        nest.entry(tensor, view)
        nest.write()
        return nest.pointers[tensor, view, ""]

    def write(self, group: Group, within: set[str], outside: set[str]) -> None:
        """Writes the nest of some steps.

        Args:
            within: values that nothing asks in another nest of the same phase.
            outside: values that another phase asks.
        """
        _Nest(self, group, within - outside).write()


def subscripts(axes: Sequence[str]) -> str:
    """Of an entry of an array."""
    return "".join(f"[{axis}_i]" for axis in axes)


class _Nest:
    """One nest in the making: lines before the innermost loop, in it and behind it."""

    def __init__(self, nests: Nests, group: Group, local: set[str]) -> None:
        self._nests, self._lines, self._tiling, self._group, self._local = nests, nests.lines, nests.tiling, group, local
        self._order = self._ordered(group.axes)
        self._inner = self._order[-1] if self._order else None
        self._pieces: dict[tuple[Dim, Dim, Dim | None], str] = {}
        self._start: list[str] = []
        self._before: list[str] = []
        self._body: list[str] = []
        self._after: list[str] = []
        self._reductions: dict[str, list[str]] = {}
        self._lane = ""
        self._read: dict[str, Expr] = {}
        self.pointers: dict[tuple[str, View, str], str] = {}

    def _ordered(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes with that last in which most of memory lies one entry after another."""
        if not axes:
            return axes
        score = dict.fromkeys(axes, 0)
        for view in self._views():
            inner = view[-1].index if view else None
            if inner is not None and inner.axis in score and inner.divide == 1:
                score[inner.axis] += 1
        for step in self._group.steps:
            if isinstance(step, Let) and step.name not in self._local and step.axes:
                score[(step.order or step.axes)[-1]] += 1
        best = max(axes, key=lambda axis: (min(self._tiling[axis], 8), score[axis], axes.index(axis)))
        return (*(axis for axis in axes if axis != best), best)

    def _views(self) -> list[View]:
        """Of what the steps read and write in memory."""
        views = [step.view for step in self._group.steps if isinstance(step, Put)]
        for step in self._group.steps:
            for name in _operands(step):
                inline = self._nests.inline.get(name)
                if name not in self._nests.held and isinstance(inline, Load | StateLoad | MaskTile):
                    views.append(inline.view)
        return views

    def write(self) -> None:
        for step in self._group.steps:
            if isinstance(step, Let):
                self._let(step)
            elif isinstance(step, Fold):
                self._fold(step)
            else:
                assert isinstance(step, Put)
                self._put(step)
        self._write_loops(self._order[:-1], self._inner)

    def _write_loops(self, outer: Sequence[str], inner: str | None) -> None:
        lines, tiling = self._lines, self._tiling
        if outer:
            axis = outer[0]
            with lines.block(f"for (int64_t {axis}_i = 0; {axis}_i < {tiling.length(axis)}; ++{axis}_i)"):
                self._write_loops(outer[1:], inner)
            return
        for line in self._start:
            lines.line(line)
        if inner is None:
            for line in (*self._before, *self._body):
                lines.line(line)
        elif not self._pieces:
            self._write_inner(inner, "0", tiling.length(inner))
        else:
            first, last, length = f"{inner}_from", f"{inner}_to", tiling.length(inner)
            with lines.block(f"for (int64_t {first} = 0, {last}; {first} < {length}; {first} = {last})"):
                lines.line(f"{last} = {length};")
                for (shift, divide, modulo), name in self._pieces.items():
                    self._write_piece(inner, shift, divide, modulo, name)
                self._write_inner(inner, first, last)
        for line in self._after:
            lines.line(line)

    def _write_piece(self, inner: str, shift: Dim, divide: Dim, modulo: Dim | None, name: str) -> None:
        """Writes what an index makes of the first position of a piece, and lets the piece end where that changes."""
        lines, first, last = self._lines, f"{inner}_from", f"{inner}_to"
        at = _sum(self._tiling.start(inner), first, "0" if shift == 0 else lines.size(shift))
        if divide != 1:
            by = lines.size(divide)
            lines.line(f"const int64_t {name}_at = {at};")
            digit = f"at_divided({name}_at, {by})"
            digit = digit if modulo is None else f"at_remaining({digit}, {lines.size(modulo)})"
            lines.line(f"const int64_t {name} = {digit};")
            lines.line(f"{last} = at_least({last}, {first} + {by} - at_remaining({name}_at, {by}));")
        else:
            assert modulo is not None
            by = lines.size(modulo)
            lines.line(f"const int64_t {name}_at = at_remaining({at}, {by});")
            lines.line(f"const int64_t {name} = {name}_at - {first};")
            lines.line(f"{last} = at_least({last}, {first} + at_most({by} - {name}_at, 1));")

    def _write_inner(self, inner: str, first: str, last: str) -> None:
        lines = self._lines
        for line in self._before:
            lines.line(line)
        if self._lane:
            self._write_lanes(inner, first, last)
            return
        self._write_pragma()
        with lines.block(f"for (int64_t {inner}_i = {first}; {inner}_i < {last}; ++{inner}_i)"):
            for line in self._body:
                lines.line(line)

    def _write_pragma(self) -> None:
        reductions = "".join(f" reduction({sign} : {', '.join(names)})" for sign, names in self._reductions.items())
        self._lines.line(f"#pragma omp simd{reductions}")

    def _write_lanes(self, inner: str, first: str, last: str) -> None:
        """The loop in which a position has a lane: so many at once, and what is left."""
        lines, start, lane = self._lines, self._lines.fresh(f"{inner}_lanes_from"), self._lane
        lines.line(f"int64_t {start} = {first};")
        with lines.block(f"for (; {start} + {_LANES} <= {last}; {start} += {_LANES})"):
            self._write_pragma()
            with lines.block(f"for (int64_t {lane} = 0; {lane} < {_LANES}; ++{lane})"):
                for line in (f"const int64_t {inner}_i = {start} + {lane};", *self._body):
                    lines.line(line)
        if first == "0" and last.isdigit() and int(last) % _LANES == 0:
            return
        self._write_pragma()
        with lines.block(f"for (int64_t {lane} = 0; {lane} < {last} - {start}; ++{lane})"):
            for line in (f"const int64_t {inner}_i = {start} + {lane};", *self._body):
                lines.line(line)

    # Steps

    def _let(self, step: Let) -> None:
        nests, name = self._nests, step.name
        operands = {leaf.name: self._value(leaf.name) for leaf in variables([step.term])}
        target = self._lines.stem(name)
        result = write_thread(CText(step.weighs), step.term, operands, target, self._define)
        if step.is_state:
            held = nests.held[name]
            self._body.append(f"{held.text}{subscripts(held.axes)} = {_converted(result, held.kind)};")
            self._read.pop(name, None)
            return
        self._read[name] = result
        if not step.axes:
            if not self._group.axes:
                nests.held[name] = Held(result.text, result.kind, ())
        elif name not in self._local:
            held = nests.array(name, result.kind, step.order or step.axes)
            self._body.append(f"{held.text}{subscripts(held.axes)} = {result.text};")

    def _define(self, name: str, value: Expr) -> None:
        self._lines.take(name)
        self._body.append(f"const {c_type(value.kind)} {name} = {bare(value.text)};")

    def _fold(self, step: Fold) -> None:
        nests, lines, inner = self._nests, self._lines, self._inner
        operand = self._value(step.operand)
        is_whole = operand.kind != "float" and not step.is_state
        kind = "int" if is_whole else "float"
        identity, joined = (_WHOLE_IDENTITY, _WHOLE_JOINED) if is_whole else (IDENTITY, _JOINED)
        text = bare(_converted(operand, kind))
        if step.keep is not None:
            text = f"{self._value(step.keep).text} ? {text} : {identity[step.kind]}"
        over = [axis for axis in self._group.axes if axis not in step.rest]
        if step.keep is not None:
            text = f"({text})"
        if not step.is_state:
            nests.array(step.name, kind, step.rest)
            if over and over != [inner]:
                nests.fill(step.name, identity[step.kind])
        held = nests.held[step.name]
        place = f"{held.text}{subscripts(held.axes)}"
        if inner is None or inner not in over:
            is_first = not over and not step.is_state
            self._body.append(f"{place} = {text if is_first else joined[step.kind].format(place, text)};")
            return
        if is_whole:
            found = lines.fresh(f"{step.name}_in")
            self._start.append(f"{c_type(kind)} {found} = {identity[step.kind]};")
            self._body.append(f"{found} = {joined[step.kind].format(found, text)};")
            self._reduces(_REDUCTIONS[step.kind], found)
        elif step.kind in _EXTREMES:
            found = self._extreme(step.name, step.kind, identity[step.kind], text)
        else:
            found = f"(float){self._sum(step.name, inner, text)}"
        is_first = over == [inner] and not step.is_state
        self._after.append(f"{place} = {found if is_first else joined[step.kind].format(place, found)};")

    def _sum(self, name: str, inner: str, text: str) -> str:
        """The text of a sum of floats along the innermost loop, of 64 bits."""
        if self._tiling[inner] not in _SUMMED_IN_LANES:
            total = self._lines.fresh(f"{name}_in")
            self._start.append(f"double {total} = 0.0;")
            self._body.append(f"{total} = {total} + {text};")
            self._reduces("+", total)
            return total
        self._lane = lane = self._lane or self._lines.fresh(f"{inner}_lane")
        lanes = self._lines.fresh(f"{name}_lanes")
        self._lines.stack[lanes] = 4 * _LANES
        self._start.append(f"_Alignas(64) float {lanes}[{_LANES}] = {{0}};")
        self._body.append(f"{lanes}[{lane}] = {lanes}[{lane}] + {text};")
        return f"f32_sum_of_lanes({lanes})"

    def _extreme(self, name: str, kind: str, start: str, text: str) -> str:
        """The text of an extreme of floats along the innermost loop."""
        most, above, below, bits = (self._lines.fresh(f"{name}_{part}") for part in ("most", "above", "below", "bits"))
        self._start.append(f"int32_t {most} = f32_bits({start});")
        self._start.append(f"uint32_t {above} = (uint32_t){most}, {below} = (uint32_t){most};")
        self._body.append(f"const int32_t {bits} = f32_bits({text});")
        self._body.append(f"{most} = bits_most({most}, {bits});")
        self._body.append(f"{above} = bits_above({above}, (uint32_t){bits});")
        self._body.append(f"{below} = bits_below({below}, (uint32_t){bits});")
        self._reduces("max", most, above)
        self._reduces("min", below)
        return f"{_EXTREMES[kind]}({most}, {above}, {below})"

    def _reduces(self, sign: str, *names: str) -> None:
        self._reductions.setdefault(sign, []).extend(names)

    def _put(self, step: Put) -> None:
        value, dtype = self._value(step.value), self._nests.types[step.tensor].dtype
        entry = self.entry(step.tensor, step.view, step.offset, is_written=True)
        if dtype == DataType.FLOAT16:
            text = f"f16_of_f32({_converted(value, 'float')})"
        elif dtype == DataType.BFLOAT16:
            text = f"bf16_of_f32({_converted(value, 'float')})"
        elif dtype in FLOATS:
            text = _converted(value, "float")
        elif dtype == DataType.BOOL:
            text = _converted(value, "bool")
        else:
            text = f"({ELEMENTS[dtype]})({value.text})"
        self._body.append(f"{entry} = {bare(text)};")

    # Values

    def _value(self, name: str) -> Expr:
        """A value at the place of the innermost loop."""
        nests = self._nests
        if name in self._read:
            return self._read[name]
        if name in nests.held:
            held = nests.held[name]
            return Expr(f"{held.text}{subscripts(held.axes)}", held.kind)
        self._read[name] = self._inlined(name, nests.inline[name])
        return self._read[name]

    def _inlined(self, name: str, inline: Inline) -> Expr:
        lines = self._lines
        if isinstance(inline, Extent):
            return Expr(f"{inline.size}.0f" if isinstance(inline.size, int) else f"(float){lines.size(inline.size)}")
        if isinstance(inline, Predicate):
            parts = [f"({self._affine(condition)} >= 0)" for condition in inline.conditions]
            value = Expr((" | " if inline.is_any else " & ").join(parts), "bool")
        elif isinstance(inline, PlaceTile):
            value = Expr(self._affine(inline.place), "int")
        elif isinstance(inline, MaskTile):
            source = self._nests.masks[name]
            entry = f"{self.entry(source.table, source.view, source.offset)} != 0"
            value = Expr(f"!{source.hides} || {entry}" if source.hides else entry, "bool")
        elif isinstance(inline, StateLoad):
            value = Expr(self.entry(inline.tensor, inline.view, inline.offset))
        else:
            value = self._loaded(inline)
        text = lines.fresh(name)
        self._body.append(f"const {c_type(value.kind)} {text} = {bare(value.text)};")
        if not self._group.axes:
            self._nests.held[name] = Held(text, value.kind, ())
        return Expr(text, value.kind)

    def _loaded(self, load: Load) -> Expr:
        chosen = self._nests.chosen.get(load.name)
        entry = self.entry(load.tensor, load.view if chosen is None else chosen.view)
        dtype = self._nests.types[load.tensor].dtype
        text, kind, zero = entry, "float", "0.0f"
        if dtype == DataType.FLOAT16:
            text = f"f32_of_f16({entry})"
        elif dtype == DataType.BFLOAT16:
            text = f"f32_of_bf16({entry})"
        elif dtype == DataType.BOOL:
            text, kind, zero = f"{entry} != 0", "bool", "0"
        elif dtype not in FLOATS:
            text, kind, zero = entry, "int", "0"
        if chosen is not None:
            where = self._value(chosen.predicate).text
            text = f"{where} ? {text} : {zero}" if chosen.is_so else f"{where} ? {zero} : {text}"
        return Expr(text, kind)

    # Positions

    def entry(self, tensor: str, view: View, offset: str = "", is_written: bool = False) -> str:
        """An entry of a tensor, of which the place is computed before the innermost loop but for the position along that."""
        nests, lines = self._nests, self._lines
        if tensor not in nests.tensors:
            nests.tensors.append(tensor)
        terms: list[tuple[Index, Dim]] = []
        stride: Dim = 1
        for factor in reversed(view):
            terms.append((factor.index, stride))
            stride = stride * factor.size
        base, inner = self._linear(terms[::-1])
        base = _sum(offset or "0", base)
        key = (tensor, view, offset)
        if key not in self.pointers:
            self.pointers[key] = lines.fresh(f"{tensor}_at")
            element = ELEMENTS[nests.types[tensor].dtype]
            constant = "" if is_written else "const "
            place = tensor if base == "0" else f"{tensor} + {base}"
            self._before.append(f"{constant}{element} *const {self.pointers[key]} = {place};")
        return f"{self.pointers[key]}[{inner}]"

    def _affine(self, condition: Affine) -> str:
        """The left side of a condition; what the innermost loop does not change stands before it."""
        base, inner = self._linear([(index, coefficient) for index, coefficient in condition.terms])
        base = _sum(base, self._lines.size(condition.constant))
        if inner == "0":
            return base
        name = self._lines.fresh("bound")
        self._before.append(f"const int64_t {name} = {base};")
        return f"{name} + {inner}"

    def _linear(self, terms: Sequence[tuple[Index, Dim]]) -> tuple[str, str]:
        """Sums of indices times numbers: what the innermost loop does not change, and what it does."""
        base, inner = list[str](), list[str]()
        for index, factor in terms:
            fixed, moving = self._index(index)
            number = self._lines.size(factor)
            if fixed != "0":
                base.append(times(fixed, number))
            if moving != "0":
                inner.append(times(moving, number))
        return _sum(*base), _sum(*inner)

    def _index(self, index: Index) -> tuple[str, str]:
        """An index as a sum of what the innermost loop does not change and of what it does, each of them a factor."""
        lines, tiling, axis = self._lines, self._tiling, index.axis
        if axis is None:
            return lines.size(index.offset), "0"
        start, shift = tiling.start(axis), "0" if index.shift == 0 else lines.size(index.shift)
        offset = "0" if index.offset == 0 else lines.size(index.offset)
        is_digit = index.divide != 1 or index.modulo is not None
        if axis == self._inner and not is_digit:
            return _factor(_sum(start, shift, offset)), f"{axis}_i"
        if axis == self._inner and self._is_long(index):
            key = (index.shift, index.divide, index.modulo)
            if key not in self._pieces:
                self._pieces[key] = lines.fresh(f"{axis}_digit")
            return _factor(_sum(self._pieces[key], offset)), f"{axis}_i" if index.divide == 1 else "0"
        text = _sum(start, f"{axis}_i" if axis in self._group.axes else "0", shift)
        if index.divide != 1:
            text = f"at_divided({text}, {lines.size(index.divide)})"
        if index.modulo is not None:
            text = f"at_remaining({text}, {lines.size(index.modulo)})"
        text = _factor(_sum(text, offset))
        return ("0", text) if axis == self._inner else (text, "0")

    @staticmethod
    def _is_long(index: Index) -> bool:
        length = index.modulo if index.divide == 1 else index.divide
        return not isinstance(length, int) or length >= _SHORTEST


def _operands(step: Step) -> list[str]:
    if isinstance(step, Let):
        return [leaf.name for leaf in variables([step.term])]
    if isinstance(step, Fold):
        return [step.operand, *([step.keep] if step.keep else [])]
    return [step.value] if isinstance(step, Put) else []


def _sum(*parts: str) -> str:
    return " + ".join(part for part in parts if part != "0") or "0"


def _factor(text: str) -> str:
    return f"({text})" if " + " in text or " - " in text else text


def _converted(value: Expr, kind: str) -> str:
    """A value as one of another kind."""
    if value.kind == kind:
        return value.text
    if kind == "bool":
        return f"({value.text} != 0)"
    return f"(float)({value.text})" if kind == "float" else f"(int64_t)({value.text})"
