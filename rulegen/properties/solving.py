"""Well-typed operands of an operator property, found by solving what its terms ask of them.

Every dimension starts as a symbol of its own, and so does every attribute variable that is a size. Typing then asks questions
about them, of which each says what would answer it (:class:`mugraph.terms.shape.Undecided`): two dimensions are made equal,
or one a multiple of another, until both sides are typed or nothing more is learnt. The symbols that are left get numbers. So an
operator's own typing rule finds its operands: a hidden size that is heads times head size, tables as long as there are positions.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mugraph.ops import ImageRole, Movement, get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, Shape, SymDim, TensorType, Undecided, is_dim, symbol
from mugraph.terms.term import AttrValue, AttrVar, Term, bind_value, binding_of, substitute, variables, walk
from rulegen.properties.case_typing import TypedSides
from rulegen.properties.parameters import attribute_choices, open_attributes, quantized_variables, stated_types
from rulegen.typings.dimensions import Dimensions
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom

__all__ = ["SMALL", "Solution", "SolvedSampler", "solutions"]

_CHOICES = 24
"""Choices of the attributes that are no sizes, of which each is solved."""
_RANKINGS = 700
"""Choices of ranks that are tried for each."""
_ENOUGH = 4
"""Choices of ranks that are kept for each."""
_STEPS = 60
_TRIES = 60
"""Sizes under which a solution is tried before it counts as none."""
SMALL = (1, 2, 2, 3, 4, 6)
"""Sizes that free symbols get."""
HEADS = (1, 2, 3, 64, 128)
"""The same, among them those that heads of attention have in models."""
_LARGEST = 1 << 17
"""Entries that the tensors of a sample have at most."""
_SIZES = frozenset(
    {("sizes", True), ("shape", True), ("ends", True), ("repeats", True), ("qkv_hidden_sizes", True)}
    | {(name, False) for name in ("rows", "columns", "length")}
)
"""Attributes, or entries of them, that are sizes."""
_EQUATIONS: Mapping[str, Callable[..., tuple[Dim, Dim]]] = {
    "product": lambda a, b, c: (a, b * c),
    "doubles": lambda a, b: (a, b + b),
    "sums": lambda a, b, c: (a, b + c),
}
"""Conditions about sizes, as the two dimensions that they make equal."""


_Pairs = list[tuple[Dim, Dim]]


def _ones_at_the_end(shape: Shape, axes: int | tuple[int, ...]) -> _Pairs:
    count = axes if isinstance(axes, int) else len(axes)
    return [(dim, 1) for dim in shape[max(len(shape) - count, 0) :]]


_OF_SHAPES: Mapping[str, Callable[..., _Pairs]] = {
    "dim": lambda shape, axis, size: [(shape[axis], size)],
    "agree": lambda one, other, axis: [(one[axis], other[axis])],
    "same_shape": lambda one, other: list(zip(one, other, strict=True)),
    "tail": lambda shape, dims: list(zip(shape[len(shape) - len(dims) :], dims, strict=True)),
    "keeps": lambda shape, dims, count: list(zip(shape[-count:], dims[-count:], strict=True)),
    "ones": lambda shape: [(dim, 1) for dim in shape],
    "constant_along": lambda shape, axis: [(dim, 1) for dim in shape[axis:][:1]] if len(shape) >= -axis else [],
    "constant_over": _ones_at_the_end,
    "per_channel": _ones_at_the_end,
    "depthwise": lambda shape, group: [(shape[0], group), (shape[1], 1)],
}
"""Conditions about shapes, as the dimensions that they make equal; IndexError, ValueError where there are none."""


@dataclass(frozen=True)
class Solution:
    """Types of the term variables over free dimension symbols, and the attributes, in which these symbols stand too.

    Attributes:
        types: of the term variables.
        attrs: of the attribute variables.
        free: the symbols.
    """

    types: Mapping[str, TensorType]
    attrs: Mapping[str, AttrValue]
    free: tuple[str, ...]

    def at(self, sizes: Mapping[str, int]) -> tuple[dict[str, TensorType], dict[str, AttrValue]]:
        """Types and attributes with numbers for the free symbols."""
        types = {n: t.at(sizes) for n, t in self.types.items()}
        binding = binding_of({}, sizes)
        return types, {name: bind_value(value, binding) for name, value in self.attrs.items()}

    def draw(self, generator: np.random.Generator, pool: Sequence[int]) -> tuple[dict[str, TensorType], dict[str, AttrValue]]:
        """Types and attributes with sizes from a pool; now and then a dimension is then 1, or another one stands before all."""
        types, attrs = self.at({name: int(generator.choice(pool)) for name in self.free})
        shaped = [name for name, type_ in types.items() if type_.rank]
        chance = generator.random()
        if types and chance > 0.85:
            name = list(types)[generator.integers(len(types))]
            types[name] = TensorType(types[name].dtype, (int(generator.choice((1, 1, 2))), *types[name].shape))
        elif shaped and chance < 0.25:
            name = shaped[generator.integers(len(shaped))]
            shape = list(types[name].shape)
            shape[generator.integers(len(shape))] = 1
            types[name] = TensorType(types[name].dtype, tuple(shape))
        return types, attrs


class SolvedSampler:
    """Random types and attributes that solve what a property asks, one in five of the size of real heads."""

    def __init__(self, axiom: Axiom, generator: np.random.Generator) -> None:
        self._axiom, self._generator, self._turn = axiom, generator, 0

    def draw(self) -> tuple[dict[str, TensorType], dict[str, AttrValue]] | None:
        """A sample; ``None`` where there is no solution, or its tensors are too large."""
        found = solutions(self._axiom)
        if not found:
            return None
        self._turn += 1
        solution = found[int(self._generator.integers(len(found)))]
        types, attrs = solution.draw(self._generator, HEADS if self._turn % 5 == 0 else SMALL)
        return (types, attrs) if sum(t.size() for t in types.values()) <= _LARGEST else None


@lru_cache(maxsize=1024)
def solutions(axiom: Axiom) -> tuple[Solution, ...]:
    """Solutions of what a property's terms and conditions ask; none where no ranks fit."""
    found = _Search(axiom).run()
    return tuple(solution for solution in found if _applies(axiom, solution))


def _applies(axiom: Axiom, solution: Solution) -> bool:
    """Whether a property applies under some of a solution's sizes: of what typing does not answer, it does not always."""
    generator = np.random.default_rng(0)
    for _ in range(_TRIES):
        types, attrs = solution.draw(generator, SMALL)
        if any(map(_symbols, attrs.values())):
            return False  # the smaller of two sizes that nothing names
        if TypedSides(axiom, attrs).of(types) is not None:
            return True
    return False


class _Search:
    """The search for solutions over attributes that are no sizes, element types and ranks."""

    def __init__(self, axiom: Axiom) -> None:
        self.axiom = axiom
        self.sizes = _size_variables(axiom)
        self.kernels = _kernels([axiom.left, axiom.right])
        self.kernel_sizes = (2, 1, 3) if self.kernels else (1,)
        self.worked: list[tuple[Mapping[str, int], Mapping[str, DataType]]] = []
        """Ranks and element types that had a solution, which are tried first."""

    def run(self) -> Iterator[Solution]:
        """Solutions for some choices of attributes; where there are none, for many more at the usual ranks."""
        every = list(attribute_choices(self.axiom, without=self.sizes))
        order = sorted(every, key=lambda choice: hashlib.blake2b(repr(choice).encode()).digest())
        types = list(_element_types(self.axiom))
        yield from self._tried(order[:_CHOICES], types, _RANKINGS)
        if not self.worked:
            yield from self._tried(order[_CHOICES : 10 * _CHOICES], types[:1], _RANKINGS // 10)

    def _tried(
        self, choices: Sequence[Mapping[str, AttrValue]], types: Sequence[Mapping[str, DataType]], rankings: int
    ) -> Iterator[Solution]:
        symbols = {name: symbol(f"?{name}") for name in self.sizes}
        for choice in choices:
            found, known = 0, len(self.worked)
            asked = _OperandSearch(self.axiom, dict(choice) | symbols, self.kernels)
            for number, (ranks, dtypes) in enumerate(self._kinds(choice, types, rankings)):
                if number >= known > 0 and found:
                    break  # other ranks were looked for before
                kinds = {name: _Kind(rank, dtypes[name]) for name, rank in ranks.items()}
                tried = (asked.solution(kinds, size) for size in self.kernel_sizes)
                solved = [solution for solution in tried if solution is not None]
                if solved:
                    if number >= known:
                        self.worked.append((ranks, dtypes))
                    found += 1
                    yield from solved
                    if found == _ENOUGH:
                        break

    def _kinds(
        self, attrs: Mapping[str, AttrValue], types: Sequence[Mapping[str, DataType]], rankings: int
    ) -> Iterator[tuple[Mapping[str, int], Mapping[str, DataType]]]:
        """Ranks and element types of the variables: those that have worked, then the fewest that are unusual first."""
        yield from list(self.worked)
        names = self.axiom.variables
        given = _given_ranks(self.axiom, attrs)
        options = [(given[name],) if name in given else (2, 1, 3, 0, 4) for name in names]
        every = itertools.islice(itertools.product(*(range(len(option)) for option in options)), 40_000)
        order = sorted(every, key=lambda places: (sum(place > 0 for place in places), sum(places)))[:rankings]
        for dtypes in types:
            for places in order:
                ranks = {name: option[place] for name, option, place in zip(names, options, places, strict=True)}
                if (ranks, dtypes) not in self.worked:
                    yield ranks, dtypes


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rank and element type of a variable."""

    rank: int
    dtype: DataType


class _OperandSearch:
    """What a property asks under some attributes, with answers for operands of given ranks and element types.

    Most ranks contradict each other within a term of few variables. That such a term has no solution is found once for all
    ranks of the variables that it does not have.
    """

    def __init__(self, axiom: Axiom, attrs: Mapping[str, AttrValue], kernels: set[str]) -> None:
        self.attrs, self.kernels = attrs, kernels
        self.conditions = [c.substitute({}, attrs) for c in axiom.conditions]
        sides = [substitute(side, {}, attrs) for side in (axiom.left, axiom.right)]
        self.roots = (*(t for c in self.conditions for t in c.terms()), *sides[::-1])
        parts = {t: tuple(v.name for v in variables([t])) for t in walk(self.roots) if t.op not in ("Var", "Const")}
        self.parts = [(part, names) for part, names in parts.items() if len(names) < len(axiom.variables)]
        self._typed: dict[tuple[Term, tuple[_Kind, ...], int], bool] = {}

    def solution(self, kinds: Mapping[str, _Kind], kernel: int) -> Solution | None:
        """Types of the variables; ``None`` where none are found. A kernel is of so many entries along each spatial axis."""
        if not all(self._may_be_typed(part, names, kinds, kernel) for part, names in self.parts):
            return None
        dims, types = self._types(kinds, kernel)
        equations = _Equations(dims, types)
        try:
            for _ in range(3):  # what one term tells may be what another waits for
                for condition in self.conditions:
                    equations.meet(condition)
                for root in self.roots:
                    equations.settle(root)
        except _IMPOSSIBLE:
            return None
        shapes = {name: dims.resolved(type_.shape) for name, type_ in types.items()}
        final = {name: bind_value(value, binding_of({}, equations.bound())) for name, value in self.attrs.items()}
        free = {s for shape in shapes.values() for d in shape if isinstance(d, SymDim) for s in d.symbols()}
        free |= {s for value in final.values() for s in _symbols(value)}
        return Solution({n: TensorType(kinds[n].dtype, shape) for n, shape in shapes.items()}, final, tuple(sorted(free)))

    def _types(self, kinds: Mapping[str, _Kind], kernel: int) -> tuple[Dimensions, dict[str, TensorType]]:
        """Types of which every dimension is a symbol of its own, but those of kernels, which no typing rule tells."""
        dims, types = Dimensions(), {}
        for name, kind in kinds.items():
            shape = dims.shape(kind.rank)
            if name in self.kernels:
                shape = (*shape[:2], *((kernel,) * (kind.rank - 2)))
            types[name] = TensorType(kind.dtype, shape)
        return dims, types

    def _may_be_typed(self, part: Term, names: tuple[str, ...], kinds: Mapping[str, _Kind], kernel: int) -> bool:
        """Whether typing leaves it open that a term has operands of these kinds, before any size is known."""
        key = part, tuple([kinds[name] for name in names]), kernel
        if key not in self._typed:
            self._typed[key] = True
            try:
                infer_types([part], self._types({name: kinds[name] for name in names}, kernel)[1])
            except Undecided:
                pass
            except _IMPOSSIBLE:
                self._typed[key] = False
        return self._typed[key]


_IMPOSSIBLE = (ValueError, IndexError, TypeError, AttributeError)
"""Errors that say that no operands fit, also an attribute that is not of its kind."""


class _Equations:
    """Dimensions, and what typing asks of them."""

    def __init__(self, dims: Dimensions, types: Mapping[str, TensorType]) -> None:
        self.dims, self.types = dims, types

    def bound(self) -> dict[str, Dim]:
        """What every bound symbol stands for."""
        return {name: self.dims.resolve(symbol(name)) for name in self.dims.bound}

    def settle(self, root: Term) -> None:
        """Answers the questions of typing, as far as they say how. Raises ShapeError where that is impossible."""
        for _ in range(_STEPS):
            try:
                self.typed(root)
                return
            except Undecided as question:
                if not self._answer(question):
                    return

    def typed(self, root: Term) -> TensorType:
        """The type of a term in which what is known is put. Raises ShapeError, Undecided."""
        types = {n: TensorType(t.dtype, self.dims.resolved(t.shape)) for n, t in self.types.items()}
        root = substitute(root, {}, dims=self.bound())
        return infer_types([root], types)[root]

    def _answer(self, question: Undecided) -> bool:
        before = len(self.dims.bound)
        for one, other in question.equal:
            self._equal(one, other)
        if question.multiple is not None:
            whole, part = question.multiple
            self._equal(whole, self.dims.fresh() * part)
        return len(self.dims.bound) > before

    def _equal(self, one: Dim, other: Dim) -> None:
        """Makes two dimensions equal, without the factors that both have. Raises ShapeError where that is impossible."""
        one, other = self.dims.resolve(one), self.dims.resolve(other)
        for name in sorted(_symbols(one) & _symbols(other)):
            try:
                one, other = divided(one, symbol(name)), divided(other, symbol(name))
            except Undecided:
                continue
        self.dims.equal(one, other)

    def meet(self, condition: Condition) -> None:
        """Makes a condition about sizes hold. Raises ShapeError where that is impossible."""
        binding = binding_of({}, self.bound())
        arguments: list[Any] = [a if isinstance(a, Term) else bind_value(a, binding) for a in condition.arguments]
        if condition.predicate in _EQUATIONS and all(map(is_dim, arguments)):
            self._equal(*_EQUATIONS[condition.predicate](*arguments))
            return
        if condition.predicate not in _OF_SHAPES:
            return
        try:
            shapes = [self.typed(term).shape for term in condition.terms()]
        except Undecided:
            return
        for one, other in _OF_SHAPES[condition.predicate](*shapes, *arguments[len(shapes) :]):
            self._equal(one, other)


def _symbols(value: AttrValue) -> set[str]:
    if isinstance(value, SymDim):
        return set(value.symbols())
    return set().union(*map(_symbols, value)) if isinstance(value, tuple) else set()


def _size_variables(axiom: Axiom) -> frozenset[str]:
    """Attribute variables that are sizes: those that stand for one, and those that a condition makes of such."""
    sizes = {name for name, kind in open_attributes(axiom).items() if kind in _SIZES}
    for condition in axiom.conditions:
        names = {a.name for a in condition.arguments if isinstance(a, AttrVar)}
        if condition.predicate == "dim":
            sizes |= {a.name for a in condition.arguments[2:] if isinstance(a, AttrVar)}
        elif condition.predicate in _EQUATIONS and names & sizes:
            sizes |= names
    counts = [t.attr(name) for t in walk([axiom.left, axiom.right]) for name in ("num_heads", "kv_num_heads", "value")]
    return frozenset(sizes - {a.name for a in counts if isinstance(a, AttrVar)})


def _kernels(roots: Sequence[Term]) -> set[str]:
    """Variables that are weights of convolutions, perhaps made of others entry by entry, moved or joined."""
    return {v.name for t in walk(roots) if traits_of(t.op).convolves for v in walk(t.inputs[1:2]) if v.is_var}


def _given_ranks(axiom: Axiom, attrs: Mapping[str, AttrValue]) -> dict[str, int]:
    """Ranks that conditions or the records of operators give; those of an operand made of others at once are theirs."""
    given: dict[str, int] = {}
    for condition in axiom.conditions:
        (term, *rest) = condition.arguments
        if condition.predicate in ("rank", "vector") and isinstance(term, Term) and term.is_var:
            given[term.name] = int((*rest, 1)[0])  # type: ignore[arg-type]
    cited = [t for c in axiom.conditions for t in c.terms()]
    for term in walk([substitute(root, {}, attrs) for root in (axiom.left, axiom.right, *cited)]):
        for operand, rank in zip(term.inputs, _ranks_of_operands(term), strict=False):
            joined = traits_of(operand.op).movement is Movement.CONCATENATION
            given |= {part.name: rank for part in (operand.inputs if joined else (operand,)) if part.is_var}
    given |= {name: like.rank for name, like in quantized_variables(axiom).items() if like.rank is not None}
    return given


def _ranks_of_operands(term: Term) -> Sequence[int]:
    """Ranks that the operands of a term have, as far as its operator's record says."""
    if term.op in ("Var", "Const"):
        return ()
    record = get_operator(term.op)
    attrs = {**record.defaults, **dict(term.attrs)}
    if record.traits.image is ImageRole.CHANNELS and isinstance(attrs.get("spatial"), int):
        return (attrs["spatial"] + 2, *(1,) * (len(term.inputs) - 1))
    return () if record.ranks is None else record.ranks(attrs, len(term.inputs))


def _element_types(axiom: Axiom) -> Iterator[dict[str, DataType]]:
    """Element types of the variables: floats and booleans, then places in a table, then another one for a single variable."""
    stated, quantized = stated_types(axiom), {n: like.dtype for n, like in quantized_variables(axiom).items()}
    base = dict.fromkeys(axiom.variables, DataType.FLOAT) | quantized | stated
    terms = walk([axiom.left, axiom.right])
    places = [t.inputs[1].name for t in terms if traits_of(t.op).movement is Movement.LOOKUP and t.inputs[1].is_var]
    if not places:
        yield base
    for dtype in (DataType.INT64, DataType.INT32) if places else ():
        yield base | dict.fromkeys(places, dtype)
    for name, dtype in itertools.product(axiom.variables, (DataType.INT64, DataType.BOOL)):
        if not (places or quantized) and name not in stated:
            yield base | {name: dtype}
