"""Tensors whose entries depend on their place alone, whatever the sizes are: ranges, positions, masks of symbolic length.

Where sizes are numbers, these are constants, and folded. Where they are symbols, the entry is known as a function of its place
(:mod:`mugraph.domains.positions`), and so are the entries of what integer operators compute of it: at the end of a dozen nodes
stands the same number everywhere, a causal mask, or the positions once more. Such a node is read as the plainest operator that
gives these entries, and one that looks entries up at known positions as the movement that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.positions import AxisPlace, Entries, Entry, Remainder, Truth, least, moved, place, places_in, remainder
from mugraph.graph import Tables
from mugraph.onnx.understand import UnderstoodNode
from mugraph.ops import Movement, get_operator, traits_of
from mugraph.ops.constants import DILATED_MASK, shows_each_row
from mugraph.ops.movement import reshape_attrs
from mugraph.terms.shape import (
    DataType,
    Dim,
    Shape,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    at_most,
    concrete,
    evaluate_dim,
    plain_symbol,
    symbol,
)
from mugraph.terms.term import make_attrs

__all__ = ["PositionReader"]

_FITTED = 4096
"""Entries of a constant that is compared with a function of its places."""
_LARGEST_STEP = 1 << 12
"""Of a dilated mask."""
_TYPES = (DataType.INT64, DataType.INT32, DataType.BOOL)


class PositionReader:
    """Knows the entries of values as functions of their places.

    Args:
        tables: types, constants and sizes of values; operators without operands are entered there.

    Attributes:
        entries: of the values that were learned so far.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.entries: dict[int, Entry] = {}
        self._domain = Entries()
        self._fitted: dict[int, Entry | None] = {}

    def learn(self, value: int, entry: Entry | None) -> None:
        """Notes what stands at each place of a value, where that is known."""
        if entry is not None:
            self.entries[value] = entry

    def plainest(self, node: UnderstoodNode, entry: Entry | None) -> UnderstoodNode:
        """The node read as the plainest operator that gives the same entries: itself, where none is known to be plainer.

        Args:
            entry: what stands at each place of its output (:meth:`result`).
        """
        if len(node.outputs) != 1:
            return node
        if entry is not None:
            found = self._spelled(node, entry)
        else:
            found = self._selected(node) or self._looked_up(node) or self._prefixed(node)
        return node if found is None else found

    def entry(self, value: int) -> Entry | None:
        """What stands at each place of a value; ``None`` where that is not known."""
        if value in self.entries:
            return self.entries[value]
        if value not in self._fitted:
            self._fitted[value] = self._of_constant(value)
        return self._fitted[value]

    def everywhere(self, value: int) -> Dim | None:
        """The number that every entry of a value is; ``None`` where it is not known, or not the same everywhere."""
        entry = self.entry(value)
        return None if entry is None or isinstance(entry, bool | Truth) or places_in(entry) else entry

    def _of_constant(self, value: int) -> Entry | None:
        """The entry of a constant, or of one size."""
        type_, sizes = self.tables.types[value], self.tables.sizes.get(value)
        if sizes is not None:
            return _only(sizes)
        if type_ is None or type_.dtype not in _TYPES:
            return None
        array = self.tables.small_constant(value, _FITTED)
        return None if array is None else _fitted(array)

    def result(self, node: UnderstoodNode) -> Entry | None:
        """What stands at each place of a node's only output; ``None`` where that is not known."""
        if len(node.outputs) != 1 or node.outputs[0].dtype not in _TYPES:
            return None
        shape = node.outputs[0].shape
        entries = [self.entry(operand) for operand in node.operands]
        try:
            found = self._computed(node, [e for e in entries if e is not None]) if None not in entries else None
        except (Unsupported, Undecided):
            return None
        is_known = found is not None and places_in(found) <= _all_places(shape) and _fits(found, node.outputs[0].dtype)
        return found if is_known else None

    def _computed(self, node: UnderstoodNode, entries: Sequence[Entry]) -> Entry | None:
        """The entry, given those of the operands."""
        op, attrs, shape = node.record.name, node.attributes, node.outputs[0].shape
        if node.record.elementwise:
            (result,) = node.record.run(self._domain, attrs, [_array(entry) for entry in entries])
            found: Entry = result.item()
            return found
        at = _places(shape)
        if op == "Range":
            start: Dim = attrs["start"]
            return start + at[0]
        if op == "ConstantOfShape" and attrs["dtype"] in _TYPES:
            return bool(attrs["value"]) if attrs["dtype"] == DataType.BOOL else int(attrs["value"])
        if not node.operands:
            return None
        types = node.operand_types
        if op == "CumSum" and entries[0] == 0:
            return 0
        if op == "Trilu" and entries[0] is True:
            above = at[-1] - at[-2] - attrs["k"]
            return Truth.of(above, (False, True, True) if attrs["upper"] else (True, True, False))
        if op == "Concat":
            return _joined(entries, [t.shape for t in types], attrs["axis"], at)
        if traits_of(op).movement is Movement.LOOKUP:
            if isinstance(entries[0], bool | int):
                return entries[0]
            source = self._source(node)
            return None if source is None else moved(entries[0], _binding(types[0].shape, source))
        if traits_of(op).movement is Movement.VIEW:
            before = _unsqueezed(types[0].shape, shape, at)
            return None if before is None else moved(entries[0], _binding(types[0].shape, before))
        if op == "Expand":
            return moved(entries[0], _binding(types[0].shape, at[len(at) - types[0].rank :]))
        if op == "Transpose":
            before, lead = list(at), len(shape) - len(attrs["perm"])
            for position, axis in enumerate(attrs["perm"]):
                before[lead + axis] = at[lead + position]
            return moved(entries[0], _binding(types[0].shape, before))
        if op == "Slice":
            before = list(at)
            for axis, start, step in zip(attrs["axes"], attrs["starts"], attrs["steps"], strict=True):
                before[axis] = at[axis] * step + start
            return moved(entries[0], _binding(types[0].shape, before))
        return None

    def _source(self, node: UnderstoodNode) -> list[Dim] | None:
        """Where each entry that is looked up stands in the first operand; ``None`` where the positions are not known."""
        (data, indices), at = node.operand_types, _places(node.outputs[0].shape)
        index = self.entry(node.operands[1])
        if index is None or isinstance(index, bool | Truth):
            return None
        if node.record.name == "Gather":
            axis = data.rank + node.attributes["axis"]
            inner = at[axis : axis + indices.rank]
            found = [moved(index, _binding(indices.shape, inner))]
            source = [*at[:axis], *found, *at[axis + indices.rank :]]
        elif node.record.name == "GatherElements":
            axis = data.rank + node.attributes["axis"]
            found = [moved(index, _binding(indices.shape, at))]
            source = [*at[:axis], *found, *at[axis + 1 :]]
        else:
            count, lead = concrete(indices.shape[-1:]), at[: indices.rank - 1]
            found = [moved(index, _binding(indices.shape, [*lead, column])) for column in range((count or (0,))[0])]
            axis, source = 0, [*found, *at[len(lead) :]]
        for position, entry in enumerate(found, start=axis):
            size = data.shape[position]
            if isinstance(entry, bool | Truth):
                return None
            if size == 1:  # an index outside is an error
                source[position] = 0
            elif isinstance(entry, int) and isinstance(size, int) and -size <= entry < 0:
                source[position] = entry + size
            elif not (at_most(0, least(entry)) and at_most(0, least(size - 1 - entry))):
                return None
        return [dim for dim in source if not isinstance(dim, bool | Truth)]

    # Plainer operators

    def _spelled(self, node: UnderstoodNode, entry: Entry) -> UnderstoodNode | None:
        """A computation of entries that are known, written as what they are."""
        (type_,), traits = node.outputs, traits_of(node.record.name)
        symbolic = any(isinstance(dim, SymDim) for dim in type_.shape)
        if not (symbolic and node.operands) or (
            traits.movement is not None and traits.movement.addresses and len(node.operands) == 1
        ):
            return None  # constants are folded, and what a movement moves is plain already
        if isinstance(entry, bool | int):
            return _read_as(node, "ConstantOfShape", (), {"dtype": type_.dtype, "shape": type_.shape, "value": float(entry)})
        if isinstance(entry, Truth):
            rows, columns = type_.shape[-2:] if type_.rank > 1 else (1, 1)
            seen = place(-1, columns) - place(-2, rows) - columns + rows
            if at_most(rows, columns) and entry == Truth.of(seen, (True, True, False)):
                return self._expanded(node, "CausalMask", {"rows": rows, "columns": columns})
            if (step := _dilation(entry, rows, columns)) is not None:
                return self._expanded(node, DILATED_MASK, {"rows": rows, "columns": columns, "step": step})
            band = _band(entry, rows, columns)
            # A row that would see nothing is ruled out by masks of positions.
            return self._expanded(node, "BandMask", band) if band is not None and shows_each_row(band) else None
        axes = [axis for axis in range(-type_.rank, 0) if entry == place(axis, type_.shape[axis])]
        return (
            self._expanded(node, "Range", {"dtype": type_.dtype, "start": 0, "limit": type_.shape[axes[0]]}, axes[0])
            if axes
            else None
        )

    def _expanded(self, node: UnderstoodNode, op: str, attrs: Mapping[str, Any], axis: int = -1) -> UnderstoodNode | None:
        """An operator without operands, brought to the shape of a node's output: its last axis is ``axis`` there."""
        (value,) = self.tables.apply(op, make_attrs(attrs), ()).values
        if axis != -1:
            (value,) = self.tables.apply("Unsqueeze", make_attrs({"axes": tuple(range(axis + 1, 0))}), (value,)).values
        return self._brought(node, value, node.outputs[0].shape)

    def _selected(self, node: UnderstoodNode) -> UnderstoodNode | None:
        """One of the operands: of a choice that is made the same everywhere, of logic with what is true or false everywhere, of a
        Cast or an Expand that does nothing."""
        op, shape = node.record.name, node.outputs[0].shape
        if op in ("Cast", "Expand") and node.operand_types == node.outputs:
            return self._brought(node, node.operands[0], shape)
        entries = [self.entry(operand) for operand in node.operands]
        if op == "Where" and isinstance(entries[0], bool):
            return self._brought(node, node.operands[1 if entries[0] else 2], shape)
        neutral = {"And": True, "Or": False}.get(op)
        for one, other in ((0, 1), (1, 0)) if neutral is not None else ():
            if entries[one] is neutral:
                return self._brought(node, node.operands[other], shape)
        return None

    def _prefixed(self, node: UnderstoodNode) -> UnderstoodNode | None:
        """A mask that shows what comes before each position, and besides to all the first so many."""
        (type_,) = node.outputs
        if node.record.name != "Or" or type_.rank < 2:
            return None
        entries, (rows, columns) = [self.entry(operand) for operand in node.operands], type_.shape[-2:]
        seen, key = place(-1, columns) - place(-2, rows) - columns + rows, place(-1, columns)
        for causal, first in (entries, entries[::-1]):
            is_causal = causal == Truth.of(seen, (True, True, False)) and at_most(rows, columns)
            if is_causal and isinstance(first, Truth) and (first.about, first.held) == (key, (True, False)) and first.cuts[0] > 0:
                return self._expanded(node, "PrefixMask", {"rows": rows, "columns": columns, "prefix": first.cuts[0]})
        return None

    def _looked_up(self, node: UnderstoodNode) -> UnderstoodNode | None:
        """Entries of a tensor at places in their order, every one or every so many: a part of it under another shape."""
        if traits_of(node.record.name).movement is not Movement.LOOKUP or len(node.operands) != 2:
            return None
        source = self._source(node)
        shape, data = node.outputs[0].shape, node.operand_types[0].shape
        if source is None:
            return None
        axes: list[int] = []
        cuts: list[tuple[int, int, int, int]] = []
        for where, (position, size) in enumerate(zip(source, data, strict=True), start=-len(data)):
            digits = [] if size == 1 else _digits(position, size, shape)
            if digits is None:
                # A kernel that reads what Falcon's GatherND picks (a head of 34) in place did not compile in minutes.
                found = _line(position, shape) if node.record.name == "Gather" else None
                if found is None:
                    return None
                digits, start, step, count = found
                cuts.append((where, start, start + step * (count - 1) + 1, step))
            axes += digits
        if axes != sorted(set(axes)):
            return None
        value, kept = node.operands[0], tuple(shape[axis] for axis in axes)
        if cuts:
            bounds = dict(zip(("axes", "starts", "ends", "steps"), zip(*cuts, strict=True), strict=True))
            (value,) = self.tables.apply("Slice", make_attrs(bounds), (value,)).values
            type_ = self.tables.types[value]
            assert type_ is not None
            data = type_.shape
            if data == shape:
                return self._brought(node, value, shape)
        ones = tuple(axis - len(data) for axis, size in enumerate(data) if size == 1)
        if kept != tuple(size for size in data if size != 1):
            (value,) = self.tables.apply("Reshape", make_attrs(reshape_attrs(data, kept)), (value,)).values
        elif ones:
            (value,) = self.tables.apply("Squeeze", make_attrs({"axes": ones}), (value,)).values
        first = min(axes, default=0)
        between = tuple(axis for axis in range(first, 0) if axis not in axes)
        if between:
            (value,) = self.tables.apply("Unsqueeze", make_attrs({"axes": between}), (value,)).values
        return self._brought(node, value, shape)

    def _brought(self, node: UnderstoodNode, value: int, shape: Shape) -> UnderstoodNode | None:
        """A value as the result of a node: itself, or expanded to its shape."""
        type_ = self.tables.types[value]
        if type_ is None:
            return None
        if type_.shape == shape:
            return _read_as(node, "Identity", (value,), {}, (type_,))
        lead = len(shape) - type_.rank
        if shape == (1,) * lead + type_.shape:
            return _read_as(node, "Unsqueeze", (value,), {"axes": tuple(range(-len(shape), lead - len(shape)))}, (type_,))
        return _read_as(node, "Expand", (value,), {"shape": shape}, (type_,))


def _band(entry: Truth, rows: Dim, columns: Dim) -> dict[str, Dim] | None:
    """The attributes of the mask that holds where a statement does, if that is about the distance of a key from its query."""
    ahead = place(-1, columns) - place(-2, rows)
    if {name.first for name in places_in(ahead)} != {-2, -1} or entry.held.count(True) != 1:
        return None
    at = entry.held.index(True)
    first = entry.cuts[at - 1] if at > 0 else None
    last = entry.cuts[at] - 1 if at < len(entry.cuts) else None
    for sign in (1, -1):
        rest = entry.about - sign * ahead
        if not places_in(rest):
            least_, most = (first, last) if sign == 1 else (last, first)
            return {
                "rows": rows,
                "columns": columns,
                "before": rows if least_ is None else sign * (rest - least_),
                "after": columns if most is None else sign * (most - rest),
            }
    return None


def _dilation(entry: Truth, rows: Dim, columns: Dim) -> int | None:
    """The number of whose multiples the distance of a key from its query is one, if that is what a statement says."""
    rest = plain_symbol(entry.about)
    if not isinstance(rest, Remainder) or rest.second > _LARGEST_STEP:
        return None
    ahead = place(-1, columns) - place(-2, rows)
    if entry.about not in (remainder(ahead, rest.second), remainder(-1 * ahead, rest.second)) or len(places_in(ahead)) < 2:
        return None
    held = [entry.holds(number) for number in range(rest.second)]
    return rest.second if held == [True] + [False] * (rest.second - 1) else None


def _read_as(
    node: UnderstoodNode, op: str, operands: tuple[int, ...], attrs: Mapping[str, Any], types: tuple[TensorType, ...] = ()
) -> UnderstoodNode | None:
    """The node as another operator, where that has the same type."""
    record = get_operator(op)
    try:
        if tuple(record.types(make_attrs(attrs), types)) != node.outputs:
            return None
    except (ShapeError, Undecided):
        return None
    return replace(node, record=record, attributes=attrs, attrs=make_attrs(attrs), operands=operands, operand_types=types)


def _only(sizes: np.ndarray) -> Dim | None:
    """The size where there is one."""
    dims: list[Dim] = sizes.reshape(-1).tolist()
    return dims[0] if len(dims) == 1 else None


def _array(entry: Entry) -> np.ndarray:
    result = np.empty((), object)
    result[()] = entry
    return result


def _places(shape: Shape) -> list[Dim]:
    """The place of an entry along each axis of a tensor."""
    return [place(axis - len(shape), size) for axis, size in enumerate(shape)]


def _all_places(shape: Shape) -> set[AxisPlace]:
    return {name for dim in _places(shape) for name in places_in(dim)}


def _binding(shape: Shape, places: Sequence[Dim]) -> dict[str, Dim]:
    """What the places of a tensor are, given where an entry stands along each of its axes."""
    return {
        AxisPlace(axis - len(shape), size): position
        for axis, (size, position) in enumerate(zip(shape, places, strict=True))
        if size != 1
    }


def _digits(position: Dim, size: Dim, shape: Shape) -> list[int] | None:
    """The axes of a tensor along which a position in a dimension counts all its entries in their order, as digits of a number."""
    axes = sorted(name.first for name in places_in(position))
    counted: Dim = 0
    whole: Dim = 1
    for axis in axes:
        counted, whole = counted * shape[axis] + place(axis, shape[axis]), whole * shape[axis]
    return axes if axes and counted == position and whole == size else None


def _line(position: Dim, shape: Shape) -> tuple[list[int], int, int, int] | None:
    """A position that is one number, or grows by the same one along one axis: that axis, the first, the step, how many."""
    if isinstance(position, int):
        return [], position, 1, 1
    names = places_in(position)
    if len(names) != 1:
        return None
    (name,) = names
    first, second = (evaluate_dim(position, {name: at}) for at in (0, 1))
    count = shape[name.first]
    if not (isinstance(first, int) and isinstance(second, int) and isinstance(count, int)) or second <= first:
        return None
    return ([name.first], first, second - first, count) if position == first + (second - first) * symbol(name) else None


def _unsqueezed(before: Shape, after: Shape, at: Sequence[Dim]) -> list[Dim] | None:
    """The place before a change of shape that moves only dimensions of size 1; ``None`` for any other."""
    inner = [(size, position) for size, position in zip(after, at, strict=True) if size != 1]
    if [size for size in before if size != 1] != [size for size, _ in inner]:
        return None
    rest = iter([position for _, position in inner])
    return [0 if size == 1 else next(rest) for size in before]


def _joined(entries: Sequence[Entry], shapes: Sequence[Shape], axis: int, at: Sequence[Dim]) -> Entry | None:
    """The entry of a Concat that is one function of its place: that of a part, or a line through two entries side by side."""
    start: Dim = 0
    parts = []
    for entry, shape in zip(entries, shapes, strict=True):
        parts.append((entry, shape, start))
        start = start + shape[axis]

    def in_whole(entry: Entry, shape: Shape, start: Dim) -> Entry:
        places = list(at)
        places[axis] = at[axis] - start
        return moved(entry, _binding(shape, places))

    def agrees(whole: Entry) -> bool:
        for entry, shape, start in parts:
            here = _binding_of(at, axis, place(axis, shape[axis]) + start)
            if moved(whole, here) != entry:
                return False
        return True

    candidates = [in_whole(*part) for part in parts]
    first, last = entries[0], entries[-1]
    if not isinstance(first, Truth) and not isinstance(last, Truth) and [shape[axis] for shape in shapes] == [1, 1]:
        candidates.append(first + (last - first) * at[axis])
    return next((whole for whole in candidates if agrees(whole)), None)


def _binding_of(at: Sequence[Dim], axis: int, position: Dim) -> dict[str, Dim]:
    """Another place along one axis."""
    return {name: position for name in places_in(at[axis])}


def _fitted(array: np.ndarray) -> Entry | None:
    """The entries of a constant as a function of their place: the same number, a sum of multiples of places, or two such
    side by side along the last axis."""
    if array.dtype == bool:
        return bool(array.flat[0]) if array.size and (array == array.flat[0]).all() else None
    whole = _plane(array)
    if whole is None and array.ndim and array.shape[-1] == 2:
        first, second = _plane(array[..., :1]), _plane(array[..., 1:])
        whole = None if first is None or second is None else first + (second - first) * place(-1, 2)
    return whole


def _plane(array: np.ndarray) -> Dim | None:
    if not array.size:
        return None
    origin = (0,) * array.ndim
    total: Dim = int(array[origin])
    expected = np.full(array.shape, array[origin])
    for axis, size in enumerate(array.shape):
        if size > 1:
            step = int(array[(*origin[:axis], 1, *origin[axis + 1 :])]) - int(array[origin])
            total = total + place(axis - array.ndim, size) * step
            expected = expected + np.arange(size).reshape(-1, *(1,) * (array.ndim - axis - 1)) * step
    return total if (expected == array).all() else None


def _fits(entry: Entry, dtype: DataType) -> bool:
    """Whether an entry is computed without wrapping around, at sizes that exist: in 32 bits none that depends on its place."""
    if isinstance(entry, Truth):
        return _fits(entry.about, DataType.INT64)
    if dtype == DataType.INT32:
        return not places_in(entry) and (isinstance(entry, SymDim) or -(1 << 31) <= entry < 1 << 31)
    return all(abs(c) < 1 << 31 for _, c in entry.terms) if isinstance(entry, SymDim) else -(1 << 63) <= entry < 1 << 63
