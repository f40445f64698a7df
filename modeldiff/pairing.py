"""What corresponds in two models: nodes that compute the same of corresponding values, and values that hold the same numbers.

The nodes of the model after the change are visited operands first. A node of a kind that the model before it applies to the same
values is that node: nothing is computed for it. Any other is evaluated in float64, on the values of the model *before* where its
operands correspond, and its results are looked up among those. So what one change does is not seen in what follows it, and
each pair of values is a claim by itself: of equal operands, equal results.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modeldiff.distance import distance, distances, is_rounding, is_within
from modeldiff.sides import Arrays, ComparedModel
from mugraph.deadline import heed
from mugraph.domains.base import FLOATS
from mugraph.graph import Node
from mugraph.onnx.bodies import BRANCHES
from mugraph.terms.shape import DataType, Dim, symbol
from mugraph.terms.term import Attrs, bind_attrs
from rewriter.reference import INFINITE, Error, NoReference, worst
from rewriter.run.accept import FLOORS

__all__ = ["Compared", "EqualityClaim", "Numbers", "Pairing", "numbers_in"]

_TELLING = 16
"""Different numbers of a tensor from which on equal tensors are no coincidence."""
_LOOKED_AT = 4096
"""Entries in which they are looked for."""
_EXACT = 1e-10
"""Relative error that float64 leaves of two formulas of one number."""
_NEAR = 1e-5
"""Distance of two projections, of unit vectors, within which the tensors themselves are compared."""
_CANCELLING = 100.0
"""How many times the distance of usual tensors rounding may leave of others."""
_ELSEWHERE = " of the model after"
"""Behind a dimension symbol of the model after that is none of the model before."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How the numbers of two values compare.

    Attributes:
        is_equal: they are no further apart than rounding explains, on all inputs that tell.
        error: their distance, the worst over these.
        inputs: the numbers of these: all usual ones, and the probes but for those where rounding decides what comes out.
    """

    is_equal: bool
    error: Error
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EqualityClaim:
    """A value after the change and one before it that hold the same numbers, though other nodes compute them.

    Attributes:
        error: their distance, the worst over the inputs.
        inputs: the numbers of these.
        rounds: each entry differs by a few roundings of its own, at most.
    """

    after: int
    before: int
    error: Error
    inputs: tuple[int, ...]
    rounds: bool


class Numbers:
    """All values of a model on the inputs of a comparison, and those among them that a tensor may be."""

    def __init__(self, model: ComparedModel) -> None:
        self._model, self._arrays = model, model.evaluated()

    def of(self, value: int) -> Arrays | None:
        """A value behind Identity nodes; ``None`` where it cannot be computed."""
        return self._arrays[value] if value in self._arrays else self._model.leaf(value)

    @cached_property
    def _by_shape(self) -> Mapping[tuple[int, ...], tuple[Sequence[int], np.ndarray]]:
        rows: dict[tuple[int, ...], list[tuple[int, float]]] = {}
        for value, arrays in self._arrays.items():
            if _tells(arrays):
                rows.setdefault(arrays[0].shape, []).append((value, _projection(arrays[0])))
        return {shape: ([value for value, _ in row], np.asarray([number for _, number in row])) for shape, row in rows.items()}

    def near(self, arrays: Arrays) -> list[int]:
        """The values that a tensor may be."""
        values, numbers = self._by_shape.get(arrays[0].shape, ([], np.empty(0)))
        return [values[int(i)] for i in np.flatnonzero(np.abs(numbers - _projection(arrays[0])) < _NEAR)]


class Pairing:
    """Pairs the values of two models.

    Args:
        before, after: the models.
        known: the numbers of ``before``.
        pins: values after the change and those before it that are taken to correspond though they differ.
        tolerance: relative error below which two values are equal; ``None`` for what float64 leaves of equal formulas, or a few
            units in the last place of their types where tensors were rounded to these or a runtime's kernels computed them.
        around: of two bodies, the pairing of the graphs that they stand in, and of what they are fed: inputs after to inputs
            before. Inputs and outputs of models have names, those of bodies places.

    Attributes:
        paired: value after to value before; of the values before each stands for all that are computed alike.
        claims: the pairs that rest on numbers, in the order of the nodes.
        unknown: nodes of ``after`` that cannot be evaluated, with the reason.
        kept: nodes of ``after`` that are nodes of ``before``.
        first: value before to the place of the node after the change that was first found to compute it; -1 for leaves.
    """

    def __init__(
        self,
        before: ComparedModel,
        after: ComparedModel,
        known: Numbers,
        pins: Mapping[int, int],
        tolerance: float | None = None,
        around: tuple[Pairing, Mapping[int, int]] | None = None,
    ) -> None:
        self.before, self.after, self.pins, self.tolerance = before, after, pins, tolerance
        self._around: Pairing | None = None if around is None else around[0]
        self._fed: Mapping[int, int] = {} if around is None else around[1]
        self.paired: dict[int, int] = {}
        self.claims: list[EqualityClaim] = []
        self.unknown: dict[Node, str] = {}
        self.kept: dict[Node, Node] = {}
        self.first: dict[int, int] = {}
        self._known, self._own = known, dict[int, Arrays]()
        self._stands: dict[int, int] = {}
        self._made: dict[Hashable, Node] = {}
        self._drawn: dict[Hashable, list[Node]] = {}
        self._constants: dict[Hashable, int] = {}
        self._named: dict[str, int] = {}
        self._alone: set[int] = set()
        self._rounded: set[int] = set()
        self._enter_before()
        self._rounding = {node: dtype for node in before.nodes if (dtype := before.rounded_by(node)) is not None}
        self._numbers_before = frozenset(number for node in before.nodes for number in numbers_in(node)) | _scalars(before)
        for node in after.nodes:
            heed()
            self._visit(node)

    @property
    def explained(self) -> int:
        """How many nodes after the change are nodes before it, and how many values rest on numbers: what is not different."""
        return len(self.kept) + len(self.claims)

    def untaken(self, first: Sequence[Node], second: Sequence[Node], shown: Collection[tuple[Node, str]]) -> Iterator[str]:
        """Branches, of nodes before and after, that none of the inputs takes: of what they compute numbers tell nothing.

        Args:
            shown: nodes and attributes of branches of which more is known.
        """
        reads = (self.before, first, self.numbers_before), (self.after, second, self.numbers)
        for side, nodes, numbers in reads:
            for node in nodes:
                if not side.is_conditional(node) or side.tables.constant[node.inputs[0]]:
                    continue
                taken = {bool(array.reshape(-1)[0]) for array in numbers(node.inputs[0]) or ()}
                which = BRANCHES[1] if taken == {True} else BRANCHES[0]
                if len(taken) < 2 and (node, which) not in shown:
                    yield f"{side.label(node)}: no input takes its {which}"

    def other_weights(self, claim: EqualityClaim) -> Iterator[str]:
        """Stored operands in which two nodes differ that are one node else: that none of the inputs shows it is by chance, as
        where a channel is never positive."""
        node, other = self.after.maker(claim.after), self.before.maker(claim.before)
        if node is None or other is None or not self.is_like(node, other):
            return
        pairs = list(zip(self.after.operands(node), self.before.operands(other), strict=False))
        unequal = [(a, b) for a, b in pairs if self.pair_of(a) != self.stands_for(b)]
        stored = [(self.after.tables.constants.get(self.after.made(a)), self.before.tables.constants.get(b)) for a, b in unequal]
        if all(ours is not None and theirs is not None and ours.type == theirs.type for ours, theirs in stored):
            for a, b in unequal:
                ours, theirs = self.numbers(a), self.numbers_before(b)
                if ours is None or theirs is None or is_within(distance(ours[0], theirs[0]), FLOORS[DataType.FLOAT]):
                    continue  # what is so small beside the others is rounding
                yield f"{self.after.label(node)}: '{self.after.name(a)}' has other numbers, which shows on no input"

    # The model before

    def stands_for(self, value: int) -> int:
        """The value before the change that stands for all that are computed alike."""
        made = self.before.made(value)
        if made not in self._stands:
            key = self.before.constant_key(made)
            self._stands[made] = made if key is None else self._constants.setdefault(key, made)
        return self._stands[made]

    def _enter_before(self) -> None:
        before = self.before
        for node in before.nodes:
            if node.op == "Identity":
                continue
            key = (before.kind(node, node.attrs), tuple(map(self.stands_for, before.operands(node))))
            if node in before.drawing:
                self._drawn.setdefault(key, []).append(node)
                continue
            first = self._made.setdefault(key, node)
            if len(first.values) >= len(node.values):
                self._stands.update(zip(node.values, first.values, strict=False))
        for value in dict.fromkeys((*before.graph.inputs, *(v for node in before.nodes for v in (*node.values, *node.inputs)))):
            if before.tables.names[value]:
                self._named[before.tables.names[value] or ""] = value

    def numbers_before(self, value: int) -> Arrays | None:
        """A value before the change."""
        made = self.stands_for(value)
        return self._known.of(made)

    def is_like(self, node: Node, other: Node) -> bool:
        """Whether a node after the change computes what one before it does, of equal operands."""
        return self.after.kind(node, self.attrs_of(node)) == self.before.kind(other, other.attrs)

    def attrs_of(self, node: Node) -> Attrs:
        """The attributes of a node after the change, with the dimensions of the model before."""
        return bind_attrs(node.attrs, {size: self._size(size) for size in self.after.sizes_of(node)})

    def _size(self, name: str) -> Dim:
        """A dimension symbol after the change as one before it: of the same tensor, or else like no other."""
        place = self.after.sized(name)
        if place is not None:
            value, axis = place
            pair = self._input(value) if self.after.maker(value) is None else self.pair_of(value)
            type_ = None if pair is None else self.before.graph.type(pair)
            if type_ is not None:
                return type_.shape[axis]
        return symbol(f"{name}{_ELSEWHERE}") if self._around is None else self._around._size(name)

    def namesake(self, value: int) -> int | None:
        """The value before the change that has the name of one after it."""
        return self._named.get(self.after.tables.names[value] or "")

    def following(self, values: Collection[int]) -> set[int]:
        """What the model before computes of any of some values."""
        known, found = set(values), set[int]()
        for node in self.before.nodes:
            if node.op != "Identity" and any(self.stands_for(value) in known for value in self.before.operands(node)):
                found.update(map(self.stands_for, node.values))
                known.update(map(self.stands_for, node.values))
        return found

    # The model after

    def pair_of(self, value: int) -> int | None:
        """The value before the change that one after it corresponds to."""
        made = self.after.made(value)
        if made in self.paired:
            return self.paired[made]
        if self.after.graph.definition(made) is not None:
            return None
        key = self.after.constant_key(made)
        other = self._constants.get(key) if key is not None and made not in self._fed else self._input(made)
        if key is not None and other is None and made not in self._alone:
            other = self._number_like(made)
            self._alone |= {made} if other is None else set()
        if other is not None:
            self._enter(made, self.stands_for(other), -1)
        return self.paired.get(made)

    def numbers(self, value: int) -> Arrays | None:
        """A value after the change: that of the one before it which it corresponds to."""
        pair = self.pair_of(value)
        if pair is not None and self.after.made(value) not in self._own:
            return self.numbers_before(pair)
        made = self.after.made(value)
        return self._own[made] if made in self._own else self.after.leaf(made)

    def computed(self, value: int) -> Arrays | None:
        """What the node of a value computes, whatever it is taken to correspond to."""
        made = self.after.made(value)
        return self._own.get(made) if made in self._own else self.numbers(value)

    def _input(self, value: int) -> int | None:
        if self._around is not None:
            return self._fed.get(value)
        name = self.after.tables.names[value]
        return next((v for v in self.before.graph.inputs if self.before.tables.names[v] == name), None)

    def _number_like(self, value: int) -> int | None:
        """A constant that the model before computes, where the tensor was stored folded, or has with other roundings."""
        arrays = self.after.leaf(value)
        self._rounded.add(value)
        found = None if arrays is None else self._found(value, arrays)
        if arrays is None or found is None or not self.before.tables.constant[found]:
            return None
        claim = self.claim(value, found, arrays)
        if not claim.rounds and self.before.maker(found) is None:  # nothing cancels in what is computed nowhere
            return None
        self.claims.append(claim)
        return found

    def _enter(self, value: int, pair: int, place: int) -> None:
        self.paired[value] = pair
        self.first.setdefault(pair, place)
        self.after.learn_types(value, self.before, pair)

    def _visit(self, node: Node) -> None:
        after, place = self.after, self.after.place[node]
        if node.op == "Identity":
            return
        operands = after.operands(node)
        pairs = [self.pair_of(value) for value in operands]
        if not any(value in self.pins for value in node.values) and None not in pairs:
            known = self._counterpart(node, pairs)
            if known is not None and len(known.values) >= len(node.values):
                self.kept[node] = known
                for value, pair in zip(node.values, known.values, strict=False):
                    self._enter(value, self.stands_for(pair), place)
                    for number, array in enumerate(self.numbers_before(pair) or ()):
                        after.learn(value, number, array)
                return
        numbers = [self._operand(value) for value in operands]
        is_new = not self._numbers_before.issuperset(numbers_in(node))
        if node.is_opaque or is_new or after.has_rounded_numbers(node) or any(self._is_rounded(value) for value in operands):
            self._rounded.update(node.values)
        results: Sequence[Arrays | None] = [None] * len(node.values)
        if all(array is not None for array in numbers):
            try:
                typed = [self._typed_operand(value) for value in operands]
                results = after.evaluate(node, [array for array in numbers if array is not None], typed)
            except NoReference as problem:
                self.unknown[node] = str(problem)
        for value, arrays in zip(node.values, results, strict=True):
            if arrays is not None:
                self._own[value] = arrays
            if value in self.pins:
                self._enter(value, self.stands_for(self.pins[value]), place)
            elif arrays is not None and (found := self._found(value, arrays)) is not None:
                self.claims.append(self.claim(value, found, arrays))
                self._enter(value, found, place)
                del self._own[value]

    def _counterpart(self, node: Node, pairs: Sequence[int | None]) -> Node | None:
        """The node before the change that applies the same to the same; each that draws random numbers is that of one node."""
        key = (self.after.kind(node, self.attrs_of(node)), tuple(pairs))
        if node not in self.after.drawing:
            return self._made.get(key)
        drawn = self._drawn.get(key)
        return drawn.pop(0) if drawn else None

    def _is_rounded(self, value: int) -> bool:
        """Whether a value without counterpart was rounded to its type, or computed by kernels of the runtime."""
        made = self.after.made(value)
        if self.pair_of(made) is not None:
            return False
        stored = self.after.tables.constants.get(made)
        return made in self._rounded or (stored is not None and stored.type.dtype in FLOATS)

    def _operand(self, value: int) -> Arrays | None:
        """As the node gets it: of a pair, the value before the change."""
        pair = self.pair_of(value)
        return self.numbers(value) if pair is None else self.numbers_before(pair)

    def _typed_operand(self, value: int) -> Arrays | None:
        """The same in the model's own types, as far as that is known."""
        pair = self.pair_of(value)
        return self.after.typed(value) if pair is None else self.before.typed(pair)

    def compared(self, value: int, before: int) -> Compared | None:
        """How what a value's node computes compares with a value before the change; ``None`` where either is not known."""
        ours, theirs = self.computed(value), self.numbers_before(before)
        return None if ours is None or theirs is None else self._compared(value, before, ours, theirs)

    def _compared(self, value: int, before: int, ours: Arrays, theirs: Arrays) -> Compared:
        limit, usual = self._limit(value, before), self.before.usual
        first = distances(ours[:usual], theirs[:usual])
        if not all(is_within(error, limit) for error in first):
            return Compared(False, worst(first), tuple(range(usual)))
        told = dict(enumerate(first))
        for number, error in enumerate(distances(ours[usual:], theirs[usual:]), usual):
            if np.shape(ours[number]) != np.shape(theirs[number]):
                return Compared(False, error, (number,))
            if not is_within(error, limit):
                if _is_noise(ours[number], theirs[number], theirs[0]) or not (own := self._own_error(before, number)).is_small:
                    continue
                if not error.within(own, limit):
                    return Compared(False, error, (number,))
            told[number] = error
        return Compared(True, worst([*told.values()]), tuple(told))

    def _own_error(self, before: int, number: int) -> Error:
        """How far a value before the change is from itself on one of the inputs where the model's own types round, from what
        both models have by then to it: where that is far, numbers say nothing of two formulas."""
        wanted = self.numbers_before(before)
        assert wanted is not None, "it is compared"
        nodes = sorted(self._region(before), key=self.before.place.__getitem__)
        if not nodes:
            return Error(0.0, 0.0)

        def read(value: int) -> np.ndarray:
            arrays = self.numbers_before(value)
            if arrays is None:
                raise NoReference(f"'{self.before.name(value)}' is not known")
            return arrays[number]

        try:
            actual = self.before.replayed(nodes, before, number, read, exact=False)
        except NoReference:
            return INFINITE
        return distance(np.asarray(actual, wanted[number].dtype), wanted[number])

    def claim(self, value: int, before: int, arrays: Arrays) -> EqualityClaim:
        """That a value, of these numbers, is one before the change."""
        theirs, type_ = self.numbers_before(before), self.after.graph.type(value)
        assert theirs is not None, "it was found by its numbers"
        dtype = DataType.FLOAT if type_ is None else type_.dtype
        rounds = all(is_rounding(ours, other, dtype) for ours, other in zip(arrays, theirs, strict=True))
        known = self._compared(value, before, arrays, theirs)
        return EqualityClaim(self.after.made(value), self.stands_for(before), known.error, known.inputs, rounds)

    def is_equal(self, value: int, before: int, error: Error) -> bool:
        """Whether a distance is one of rounding alone: to its type, or to what the model before rounds to on the way there."""
        return is_within(error, self._limit(value, before))

    def is_apart(self, value: int, before: int, error: Error) -> bool:
        """Whether a distance is one that no rounding explains, also of operands among which more cancels than usually."""
        return not is_within(error, _CANCELLING * self._limit(value, before))

    def _limit(self, value: int, before: int) -> float:
        type_ = self.after.graph.type(value)
        floor = _EXACT if self.after.made(value) not in self._rounded else FLOORS[DataType.FLOAT]
        if type_ is not None and self.after.made(value) in self._rounded:
            floor = FLOORS.get(type_.dtype, 0.0)
        floors = (floor, *(FLOORS[dtype] for dtype in self._rounded_to(before)))
        return max(floors) if self.tolerance is None else self.tolerance

    def _rounded_to(self, before: int) -> set[DataType]:
        """The types that the model before, or the runtime in its place, rounds to between a value and what both models have by
        then."""
        return {self._rounding[node] for node in self._region(before) if node in self._rounding} if self._rounding else set()

    def _region(self, before: int) -> set[Node]:
        """The nodes of the model before between a value and what both models have by then."""
        found, seen, stack = set[Node](), set[int](), [self.before.made(before)]
        while stack:
            value = stack.pop()
            node = self.before.maker(value)
            if value in seen or node is None:
                continue
            seen.add(value)
            found.add(node)
            stack += [v for v in map(self.before.made, self.before.operands(node)) if self.stands_for(v) not in self.first]
        return found

    def _found(self, value: int, arrays: Arrays) -> int | None:
        """A value before the change that holds these numbers: the namesake, an output's, or any whose numbers tell."""
        outputs = [self.before.graph.outputs[i] for i in self._outputs_of(value)]
        named = [v for v in (self.namesake(value), *outputs) if v is not None]
        found = self._known.near(arrays) if _tells(arrays) else ()
        for candidate in dict.fromkeys(map(self.stands_for, (*named, *found))):
            theirs = self.numbers_before(candidate)
            if theirs is not None and self._compared(value, candidate, arrays, theirs).is_equal:
                return candidate
        return None

    def _outputs_of(self, value: int) -> Iterator[int]:
        """The numbers of the model's outputs that a value is, as they are paired."""
        made = [self.after.made(v) for v in self.after.graph.outputs]
        return (before for after, before in enumerate(self.output_order()) if made[after] == value)

    def output_order(self) -> list[int]:
        """For each output after the change, the number of the one before: of its name, or else in its place."""
        if self._around is not None:
            return list(range(len(self.after.graph.outputs)))
        names = [self.before.tables.names[v] for v in self.before.graph.outputs]
        ours = [self.after.tables.names[v] for v in self.after.graph.outputs]
        return [names.index(name) if set(ours) <= set(names) else place for place, name in enumerate(ours)]


def _is_noise(ours: np.ndarray, theirs: np.ndarray, usual: np.ndarray) -> bool:
    """Whether two tensors on a probe differ by less than float64 leaves of the numbers that they usually are: what is 1e-20 by
    one formula is 0 by another that adds 1 and takes it away."""
    if ours.shape != theirs.shape or theirs.dtype.kind != "f" or ours.dtype.kind != "f":
        return False
    sizes = np.abs(usual[np.isfinite(usual)])
    finite = np.isfinite(theirs)
    if not sizes.any() or not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return False
    return bool((np.abs(ours[finite] - theirs[finite]) <= _EXACT * float(np.median(sizes[sizes > 0]))).all())


def _tells(arrays: Arrays) -> bool:
    """Whether a tensor has so many different numbers that another is not equal to it by chance."""
    first = arrays[0]
    if first.dtype.kind != "f" or first.size < _TELLING:
        return False
    return len(np.unique(first.reshape(-1)[:_LOOKED_AT])) >= _TELLING


def numbers_in(node: Node) -> frozenset[np.float32]:
    """The floats among a node's attributes, rounded as ONNX has them."""
    values = (item for _, value in node.attrs for item in (value if isinstance(value, tuple) else (value,)))
    return frozenset(np.float32(item) for item in values if isinstance(item, float))


def _scalars(model: ComparedModel) -> frozenset[np.float32]:
    """The float constants of one entry."""
    arrays = (model.tables.small_constant(value, 1) for value in model.tables.constants)
    return frozenset(
        np.float32(array.reshape(())) for array in arrays if array is not None and array.dtype.kind == "f" and array.size
    )


def _projection(array: np.ndarray) -> float:
    """The cosine between a tensor and a fixed one."""
    flat = np.nan_to_num(array.reshape(-1), nan=0.5, posinf=0.25, neginf=-0.25)
    fixed = np.cos(np.arange(flat.size, dtype=np.float64) * 0.7390851 + 0.5)
    length = float(np.linalg.norm(flat)) * float(np.linalg.norm(fixed))
    return float(flat @ fixed) / length if length else 0.0
