"""Ranges of a model's values: the Range domain over the graph, on demand.

Two assumptions about model inputs are stated and switchable: they and what is computed of them are finite, and a mask computed
from them lets every position attend to something. Without the second no softmax under a float16 padding mask can be shown free
of NaN.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from typing import cast

import numpy as np

from mugraph.domains import Real
from mugraph.domains.base import FLOATS, INTEGERS, Unsupported
from mugraph.domains.range import Range, RangeDomain, unrepeated
from mugraph.graph import Constant, Graph, Node
from mugraph.ops import DegreeBound, Entrywise, Movement, Reduction, RowRole, Traits, get_operator, traits_of
from mugraph.terms.shape import DataType, TensorType, concrete, largest_number, smallest_number
from rewriter.search.masks import PositionMasks, says_positions, spreads

__all__ = ["Assumption", "ConstantRanges", "RangeOracle", "is_square", "read_by_guards"]


class Assumption(StrEnum):
    """What is taken for granted of the inputs that a model is fed, unless the user says otherwise."""

    FINITE = "floating inputs hold no infinity and no NaN, and nothing that is computed overflows"
    ORDER = "no sum and no product overflows in one order and not in another"
    NONEMPTY = "no dimension that may change is 0"
    FITTING = "no image is smaller than a window of a pool or a convolution over it"
    ATTENDED = "no row of a mask is hidden throughout (every position attends to something)"


_UNREAD = frozenset({"Compress"})
"""ONNX operators without a record that only move entries of their first input."""

_MOST_ENTRIES = 1 << 25
"""Of a constant whose entries are looked at one by one: a mask of 4096 positions has half as many."""
_KEPT_ENTRIES = 1 << 24
"""Of constants that were computed, in all, that are kept for whoever asks again: guards ask of one at each place of each rule."""
_CHUNK = 1 << 22
_LONGEST = 2.0**31
"""Entries along an axis, of tensors that exist, at most."""
_ESCAPING = frozenset({"Abs", "Neg", "Pow"})
"""Operators of one number whose result may have no place in the integer type of that."""


def _carries(traits: Traits) -> bool:
    """Whether an operator makes no number beyond half the largest one any larger; a sum only if one operand holds such."""
    if traits.entrywise is Entrywise.ARITHMETIC:
        return traits.degree is DegreeBound.LINEAR
    chooses = traits.entrywise in (Entrywise.EXTREMUM, Entrywise.SELECTION, Entrywise.CONVERSION)
    return chooses or traits.movement is not None


def _moves_first(op_type: str) -> bool:
    """Whether an ONNX operator only moves entries of its first input, whose range survives then where the node stays opaque."""
    movement = traits_of(op_type).movement
    return op_type in _UNREAD or movement not in (None, Movement.CONCATENATION, Movement.FILLING)


def _limit(type_: TensorType | None) -> float:
    """Half the largest number of an element type, infinite for others than floats."""
    largest = largest_number(type_.dtype) if type_ is not None else None
    return math.inf if largest is None else largest / 2


def _rounded(range_: Range, type_: TensorType | None, overflows: bool) -> Range:
    """A range in an element type: with infinities where a bound says that entries may exceed its largest number.

    In float16, half of that is enough: a score of -16 added to a mask of -65504 rounds to -inf.

    Args:
        overflows: whether entries without a bound may do so, too.
    """
    limit = _limit(type_) * (1 if type_ is not None and type_.dtype == DataType.FLOAT16 else 2)
    low = range_.lo < -limit and (overflows or range_.lo > -math.inf)
    high = range_.hi > limit and (overflows or range_.hi < math.inf)
    if not (low or high):
        return range_
    return replace(range_, neg_inf=range_.neg_inf or low, pos_inf=range_.pos_inf or high, row_finite=False)


def _wrapped(range_: Range, dtype: DataType, node: Node) -> Range:
    """A range in an integer type: quotients are cut off, and what may exceed the type wraps around to anything.

    Of the sizes of tensors that exist it is known how large they may be.
    """
    limits, traits = np.iinfo(dtype.numpy()), traits_of(node.op)
    anything = Range.finite_input(-math.inf if limits.min else 0.0)
    if not range_.finite:
        return anything
    lo, hi = range_.lo, min(range_.hi, _LONGEST) if node.op == "Shape" or not node.inputs else range_.hi
    if node.op == "Div":
        lo, hi = (end if math.isinf(end) else float(math.trunc(end)) for end in (lo, hi))
        return Range.within(lo, hi, zero=range_.zero or (lo < 1 and hi > -1))
    computes = traits.entrywise is Entrywise.ARITHMETIC or traits.product or traits.accumulates or node.op in _ESCAPING
    fits = limits.min <= lo and hi <= limits.max
    return replace(range_, lo=lo, hi=hi) if fits or not computes else anything


def _vanishes(range_: Range, type_: TensorType | None, op: str, operands: Sequence[Range]) -> bool:
    """Whether products or quotients of numbers that are not zero may be too small for an element type."""
    tiny = None if type_ is None else smallest_number(type_.dtype)
    if tiny is None or range_.zero:
        return False
    least = [max(a.lo, -a.hi, 0.0) for a in operands]
    if op in ("Div", "Reciprocal"):
        most = min(max(abs(operands[-1].lo), abs(operands[-1].hi)), 2 * _limit(type_))
        return (least[0] if op == "Div" else 1.0) / most < tiny
    return _multiplies(op) and max(range_.lo, -range_.hi, 0.0) < tiny


def _multiplies(op: str) -> bool:
    """Whether results are of numbers multiplied with each other."""
    traits = traits_of(op)
    return traits.degree is DegreeBound.MULTILINEAR or traits.reduction in (Reduction.SQUARES, Reduction.NORM) or op == "Pow"


def _exact(array: np.ndarray) -> Range:
    """The range of entries; in float16 those beyond half the largest number are infinite."""
    if array.dtype != np.float16:
        return Range.of(array)
    limit = np.float16(_limit(TensorType(DataType.FLOAT16, ())))
    bits = np.ascontiguousarray(np.atleast_1d(array)).view(np.uint16)
    sizes = bits & 0x7FFF  # in the order of the numbers without their signs: NumPy is slow to compare such numbers themselves
    if not bits.size or sizes.max() > limit.view(np.uint16):
        wide = array.astype(np.float32)
        return Range.of(np.where(wide > limit, np.inf, np.where(wide < -limit, -np.inf, wide)))
    least = bits.max() if bits.max() > 0x7FFF else bits.min()
    most = bits.min() if bits.min() > 0x7FFF else bits.view(np.int16).max().view(np.uint16)
    is_zero = sizes == 0
    return Range(
        float(least.view(np.float16)),
        float(most.view(np.float16)),
        nan=False,
        neg_inf=False,
        pos_inf=False,
        zero=bool(is_zero.any()),
        row_finite=True,
        row_nonzero=not bool(is_zero.all(axis=-1).any()),
        row_zero=bool(is_zero.any(axis=-1).all()),
    )


def _range_of(array: np.ndarray) -> Range:
    """The exact range of a constant; of large weights in chunks, without the facts about rows."""
    array = unrepeated(array)
    if array.size <= _CHUNK:
        return _exact(array)
    flat = array.reshape(-1)
    result = _exact(flat[:_CHUNK])
    for start in range(_CHUNK, flat.size, _CHUNK):
        result = result.join(_exact(flat[start : start + _CHUNK]))
    return RangeDomain().move(lambda x: x, result)


class ConstantRanges:
    """Ranges of the constants of one model, each read once, by whatever thread asks first; another one waits for it then.

    Weights are read from files and looked at entry by entry, beside which Python computes elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: dict[int, Future[Range]] = {}

    def of(self, value: int, constant: Constant) -> Range:
        """The range of a constant. Whatever reading it raises, it raises for all that wait; who asks then reads again."""
        with self._lock:
            found = self._ranges.get(value)
            if found is None:
                mine = self._ranges[value] = Future()
        if found is not None:
            return found.result()
        try:
            mine.set_result(_range_of(constant.load()))
        except BaseException as problem:
            with self._lock:
                del self._ranges[value]
            mine.set_exception(problem)
            raise
        return mine.result()

    def read(self, constants: Mapping[int, Constant], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Reads constants, as long as somebody wants that."""
        for value, constant in constants.items():
            if not is_wanted():
                return
            self.of(value, constant)


def read_by_guards(graph: Graph) -> Mapping[int, Constant]:
    """The constants that guards against NaN will ask for: whether a softmax has one rests on all the weights before it.

    Other guards look at a few constants each, which nobody foresees.
    """
    nodes = list(graph.nodes())
    values = dict.fromkeys(value for node in nodes for value in node.inputs) if any(node.op == "IsNaN" for node in nodes) else ()
    return {value: graph.tables.constants[value] for value in values if value in graph.tables.constants}


def _wide(array: np.ndarray) -> np.ndarray:
    """Floats in double precision, whatever else as it is."""
    is_float = array.dtype.kind == "f" or array.dtype == DataType.BFLOAT16.numpy()
    return array.astype(np.float64) if is_float else array


def _narrowed(array: np.ndarray) -> np.ndarray:
    """The array of length one along every axis along which all its entries are equal."""
    for axis, size in enumerate(array.shape):
        first = array.take([0], axis) if size > 1 else array
        if size > 1 and np.array_equal(first, array.take([-1], axis)) and bool((array == first).all()):
            array = first
    return array


def is_square(op: str, operands: Sequence[object]) -> bool:
    """Whether an operator multiplies something with itself: its range is narrower than that of a product."""
    return op == "Mul" and operands[0] == operands[1]


def _is_guarded(graph: Graph, node: Node) -> bool:
    """Whether a node is ``Where(IsNaN(x), y, x)``, which takes no NaN of x."""
    maker = graph.tables.makers.get(node.inputs[0]) if node.op == "Where" else None
    return maker is not None and maker[0].op == "IsNaN" and maker[0].inputs[0] == node.inputs[2]


class _KnownEntries(dict[int, np.ndarray | None]):
    """The entries of values that depend on constants alone, as many as there is room for; nothing for what is none."""

    def __init__(self) -> None:
        super().__init__()
        self._room = _KEPT_ENTRIES

    def keep(self, value: int, entries: np.ndarray | None) -> None:
        """Keeps the entries of a value, if they are not many."""
        size = 1 if entries is None else entries.size
        if value not in self and size <= self._room:
            self._room -= size
            self[value] = entries


class RangeOracle:
    """Ranges of values as the model first defined them; what a value means does not change with a substitution.

    A float16 number beyond half the largest one counts as infinite: a score added to a mask of -65504 rounds to -inf. In
    wider types such a number is *huge*: a score vanishes beside it, but two masks add up to -inf.

    Args:
        op_types: ONNX op type of opaque nodes, by origin.
        assume_finite: model inputs of floating type hold no infinity and no NaN, and sums and products do not overflow for all
            that is known of them (stated in the report).
        assume_attended: a mask ``Where(c, ordinary, -inf)`` (or a number that counts as such) whose condition is computed
            from integers and truth values that the model is fed (:func:`rewriter.search.masks.says_positions`) leaves each row of
            the last axis an ordinary entry, unless constants in the condition say otherwise.
        fold: evaluates a value that depends on constants alone (causal masks are computed so); ``None`` if it cannot.
        defaults: values of overridable initializers.
        constants: ranges of the model's constants, some of which may be known before they are asked for.

    Attributes:
        relied: matches, by direction and output values, to the assumptions without which their guards would not hold.
        attended: masks that were assumed to leave each row something.
    """

    def __init__(
        self,
        op_types: dict[int, str],
        assume_finite: bool = True,
        fold: Callable[[int], np.ndarray | None] = lambda value: None,
        defaults: Mapping[int, Constant] | None = None,
        assume_attended: bool = True,
        constants: ConstantRanges | None = None,
    ) -> None:
        self._of_constants = ConstantRanges() if constants is None else constants
        self.assume_attended = assume_attended
        self.attended: set[int] = set()
        self.relied: dict[tuple[str, tuple[int, ...]], frozenset[Assumption]] = {}
        self.defaults = defaults or {}
        self.op_types, self.assume_finite, self.fold = op_types, assume_finite, fold
        self.domain = RangeDomain()
        self.ranges: dict[int, Range] = {}
        self._computed, self._typed = _KnownEntries(), _KnownEntries()
        self._masks = PositionMasks()
        self.huge: set[int] = set()

    @cached_property
    def lesser(self) -> Mapping[Assumption, RangeOracle]:
        """The same without one of its assumptions each: what it cannot show rests on that assumption."""
        finite, attended = self.assume_finite, self.assume_attended
        fewer = {Assumption.FINITE: (False, attended), Assumption.ATTENDED: (finite, False)}
        made = [assumption for assumption, kept in zip(fewer, (finite, attended), strict=True) if kept]
        oracles = {}
        for assumption in made:
            is_finite, is_attended = fewer[assumption]
            constants = self._of_constants  # nothing is assumed of them
            oracle = RangeOracle(self.op_types, is_finite, self.fold, self.defaults, is_attended, constants)
            oracle._computed, oracle._typed = self._computed, self._typed
            oracles[assumption] = oracle
        return oracles

    def rely(self, direction: str, values: tuple[int, ...], needed: Collection[Assumption]) -> None:
        """Notes in :attr:`relied` what a match of a direction needs."""
        if needed:
            self.relied[direction, values] = self.relied.get((direction, values), frozenset()).union(needed)

    def range(self, graph: Graph, value: int) -> Range:
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self.ranges:
                stack.pop()
                continue
            maker, outer = graph.tables.makers.get(current), graph.tables.captured.get(current)
            if outer is not None:
                if outer in self.ranges:
                    self.ranges[current] = self.ranges[outer]
                    if outer in self.huge:
                        self.huge.add(current)
                else:
                    stack.append(outer)
                continue
            if maker is None:
                self._enter(graph, current, self._leaf(graph, current))
                continue
            folded = self._folded(graph, current)
            if folded is not None:
                self._enter(graph, current, _range_of(folded))
                continue
            missing = [v for v in maker[0].inputs if v not in self.ranges]
            if missing:
                stack.extend(missing)
            else:
                huge = sum(v in self.huge for v in maker[0].inputs)
                traits = traits_of(maker[0].op)
                adds = traits.entrywise is Entrywise.ARITHMETIC and huge > 1
                absorbs = traits.bounded
                overflows = huge > 0 and (adds or not (absorbs or maker[0].is_opaque or _carries(traits)))
                try:
                    ranges = self._node(graph, maker[0])
                except Exception as problem:
                    problem.add_note(f"at {graph.tables.label(maker[0])}")
                    raise
                for result, range_ in zip(maker[0].values, ranges, strict=True):
                    range_ = self._stored(graph, maker[0], range_, graph.type(result))
                    self.ranges[result] = (
                        Range.top() if overflows else _rounded(range_, graph.type(result), not self.assume_finite)
                    )
                    limit = _limit(graph.type(result))
                    if huge and not absorbs and not overflows and not (-limit <= range_.lo and range_.hi <= limit):
                        self.huge.add(result)
        return self.ranges[value]

    def _stored(self, graph: Graph, node: Node, range_: Range, type_: TensorType | None) -> Range:
        """A range of real numbers as an element type has them, but for what overflows in floats."""
        if type_ is not None and type_.dtype in INTEGERS:
            return _wrapped(range_, type_.dtype, node)
        if _vanishes(range_, type_, node.op, [self.ranges[v] for v in node.inputs]):
            return replace(range_, zero=True, row_nonzero=False)
        return range_

    def is_number(self, graph: Graph, value: int) -> bool:
        """Whether every entry of a value is a finite number for all that is known; truth values and integers are."""
        type_ = graph.type(value)
        return (type_ is not None and type_.dtype not in FLOATS) or self.range(graph, value).finite

    def value(self, graph: Graph, value: int) -> np.ndarray | None:
        """The entries of a constant, or of what depends on constants alone, where few enough of them differ to look at.

        Of a mask of positions of symbolic size, and of what is made of it entry by entry, a few that stand for all.
        """
        constant = graph.tables.constants.get(value)
        if constant is not None:
            return (
                constant.load() if concrete(constant.type.shape) is not None and constant.type.size() <= _MOST_ENTRIES else None
            )
        return self._folded(graph, value)

    def _enter(self, graph: Graph, value: int, range_: Range) -> None:
        self.ranges[value] = range_
        limit = _limit(graph.type(value))
        if math.isfinite(range_.lo) and math.isfinite(range_.hi) and (range_.lo < -limit or range_.hi > limit):
            self.huge.add(value)

    def _folded(self, graph: Graph, value: int) -> np.ndarray | None:
        """The entries of a value that depends on constants alone, computed once for all entries that are repeated.

        A causal mask of a batch is computed so as one of a single sequence. The result is a view of the value's shape; it is of
        one memory for all who ask, since to round a mask of 2,048 positions anew takes longer than all that is asked of it.
        """
        entries = dict[int, np.ndarray | None]() if value not in self._computed else {value: self._computed[value]}
        stack = [value] if value not in entries else []
        while stack:
            current = stack[-1]
            operands = self._broadcast(graph, current)
            missing = [] if current in entries else [v for v in operands if v not in entries]
            stack += missing
            if not missing:
                stack.pop()
                if current not in entries:
                    entries[current] = self._entries(graph, current, [entries[v] for v in operands])
        array, type_ = entries[value], graph.type(value)
        self._computed.keep(value, array)
        if array is None or type_ is None:
            return None
        shape, typed = concrete(type_.shape), self._typed.get(value)
        if typed is None:
            with np.errstate(all="ignore"):
                typed = array.astype(type_.dtype.numpy(), copy=False)
            self._typed.keep(value, typed)
        return np.broadcast_to(typed, typed.shape if shape is None else shape)

    def _broadcast(self, graph: Graph, value: int) -> tuple[int, ...]:
        """The operands of an elementwise operator on constants, or of what repeats one; nothing for any other value."""
        maker = graph.tables.makers.get(value)
        if maker is None or maker[0].is_opaque or not (graph.tables.constant[value] or self._masks.made(graph, value)):
            return ()
        return maker[0].inputs if spreads(graph, maker[0]) else ()

    def _entries(self, graph: Graph, value: int, operands: Sequence[np.ndarray | None]) -> np.ndarray | None:
        """A constant value of length one along axes along which it is known to repeat, floats in double precision."""
        type_, constant = graph.type(value), graph.tables.constants.get(value)
        is_mask = self._masks.made(graph, value)
        is_constant = graph.tables.constant[value] and type_ is not None and concrete(type_.shape) is not None
        if type_ is None or not (is_constant or is_mask):
            return None
        if not operands or any(operand is None for operand in operands):
            if is_mask:
                return None if operands else PositionMasks.entries(graph, value)
            array = None
            if type_.size() <= _MOST_ENTRIES:
                array = self.fold(value) if constant is None else constant.load()
            return None if array is None else _narrowed(_wide(array))
        node, out = graph.tables.makers[value]
        arrays = [operand for operand in operands if operand is not None]
        if not get_operator(node.op).elementwise:
            return arrays[0]
        try:
            if math.prod(np.broadcast_shapes(*(array.shape for array in arrays))) > _MOST_ENTRIES:
                return None
            return _wide(np.asarray(get_operator(node.op).run(Real(), node.attrs, arrays)[out]))
        except (Unsupported, ValueError):  # masks of other widths stand for all positions by other numbers of them
            return None

    def _leaf(self, graph: Graph, value: int) -> Range:
        constant = graph.tables.constants.get(value)
        if constant is not None:
            return self._of_constants.of(value, constant)
        type_ = graph.type(value)
        fed = self._fed(None if type_ is None else type_.dtype)
        if value in graph.tables.bodies and (type_ is None or type_.dtype in FLOATS):
            return Range.top()  # what a loop carries may be anything
        if value in self.defaults:  # whoever overrides it may give the same kind of values
            return _range_of(self.defaults[value].load()).join(fed)
        return fed

    def _fed(self, dtype: DataType | None) -> Range:
        """The range of what a model is fed."""
        if dtype == DataType.BOOL:
            return Range.finite_input(0, 1)
        is_integral = dtype is not None and dtype not in FLOATS
        return Range.finite_input() if is_integral or self.assume_finite else Range.top()

    def _node(self, graph: Graph, node: Node) -> list[Range]:
        inputs = [self.ranges[v] for v in node.inputs]
        if _is_guarded(graph, node):
            inputs[2] = replace(inputs[2], nan=False)
        if node.is_opaque:
            moves = node.origin is not None and _moves_first(self.op_types.get(node.origin, ""))
            return [self.domain.move(lambda x: x, inputs[0]) if moves and inputs else Range.top()] * len(node.values)
        if is_square(node.op, node.inputs):
            return [self.domain.power(inputs[0], 2)]
        if traits_of(node.op).rows is RowRole.NORMALISATION and (bounded := self._normalised(graph, node, inputs)) is not None:
            return [bounded]
        try:
            results = list(get_operator(node.op).run(self.domain, node.attrs, inputs))
        except Unsupported:
            return [Range.top()] * len(node.values)
        if node.op == "Softmax" and results[0].nan:  # where a row is hidden throughout, and nowhere else
            return [Range.within(0.0, 1.0, nan=True)]
        if node.op == "Where" and self.assume_attended and not results[0].row_finite and self._attends(graph, node):
            self.attended.add(node.values[0])
            return [replace(results[0], row_finite=True)]
        return results

    def _normalised(self, graph: Graph, node: Node, inputs: list[Range]) -> Range | None:
        """The range of normalised finite entries: none of n numbers exceeds sqrt(n) times their root mean square."""
        type_ = graph.type(node.inputs[0])
        attrs = dict(node.attrs)
        row = None if type_ is None else concrete(type_.shape[cast(int, attrs["axis"]) :])
        if row is None or not inputs[0].finite or not cast(float, attrs["epsilon"]) > 0:  # a row of zeros
            return None
        root = math.sqrt(math.prod(row))
        scaled = self.domain.mul(Range.finite_input(-root, root), inputs[1])
        return self.domain.add(scaled, inputs[2]) if len(inputs) > 2 else scaled

    def _attends(self, graph: Graph, node: Node) -> bool:
        """Whether ``Where(condition, a, b)`` is a mask of which the assumption may be made.

        One branch hides (its entries are constants that count as -inf), the other is ordinary, and the constants of the condition
        show the same position to all rows.
        """
        condition, *branches = node.inputs
        for attended, hidden in ((0, 1), (1, 0)):
            numbers = self.value(graph, branches[hidden])
            ordinary = self.ranges[branches[attended]]
            if numbers is None or not (ordinary.finite and branches[attended] not in self.huge):
                continue
            if bool(np.all(unrepeated(numbers).astype(np.float64) < -_limit(graph.type(branches[hidden])))):
                left = self._left(graph, [(condition, attended == 0)])
                # Padding hides whole rows of a window. They would be NaN, and whatever a later layer multiplies with them.
                return bool(left.all(axis=tuple(range(left.ndim - 1))).any()) and says_positions(graph, self.op_types, condition)
        return False

    def attends(self, graph: Graph, conditions: Sequence[tuple[int, bool]]) -> bool:
        """Whether a mask that shows where all conditions are as these say may be assumed to leave each row something.

        This may be asked where nothing but such a row would come out otherwise, and that row finite.
        """
        if not (self.assume_attended and bool(self._left(graph, conditions).any(axis=-1).all())):
            return False
        return all(says_positions(graph, self.op_types, condition) for condition, _ in conditions)

    def _left(self, graph: Graph, conditions: Sequence[tuple[int, bool]]) -> np.ndarray:
        """What the constants in the conjunction of conditions, each true or false, leave of a mask."""
        left = np.ones((1,), np.bool_)
        stack = list(conditions)
        while stack:
            value, truth = stack.pop()
            numbers, maker = self.value(graph, value), graph.tables.makers.get(value)
            if numbers is not None:
                left = left & (unrepeated(numbers).astype(np.bool_) == truth)
            elif maker is not None and maker[0].op == ("And" if truth else "Or"):
                stack += [(v, truth) for v in maker[0].inputs]
            elif maker is not None and maker[0].op == "Not":
                stack.append((maker[0].inputs[0], not truth))
            elif maker is not None and maker[0].op in ("Expand", "Identity"):
                stack.append((maker[0].inputs[0], truth))
        return left
