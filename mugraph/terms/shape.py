"""Tensor types: symbolic dimensions, shapes and element types.

A dimension is a non-negative ``int`` or a :class:`SymDim`, a polynomial with integer coefficients over named symbols in
canonical form. Equal polynomials are equal objects by value, so ``n*h`` met on two paths of a model compares equal.
A symbol may stand for the smaller of two dimensions (:class:`Least`), which slicing makes.
What cannot be decided is :data:`None` ("unknown"), never guessed: see :func:`same_dim`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeGuard

from mugraph.terms.dtypes import DataType

__all__ = [
    "DataType",
    "DerivedSymbol",
    "Dim",
    "Least",
    "Monomial",
    "Shape",
    "ShapeError",
    "SymDim",
    "TensorType",
    "Undecided",
    "Unequal",
    "WholePart",
    "at_most",
    "broadcast",
    "concrete",
    "evaluate_dim",
    "floor_div",
    "format_shape",
    "is_dim",
    "is_natural",
    "largest_number",
    "normalize_axis",
    "plain_symbol",
    "product",
    "same_dim",
    "same_shape",
    "shape_at",
    "smaller",
    "smallest_number",
    "symbol",
    "symbols_within",
    "type_at",
]


_LARGEST = {
    DataType.FLOAT16: 65504.0,
    DataType.BFLOAT16: (2 - 2.0**-7) * 2.0**127,
    DataType.FLOAT: (2 - 2.0**-23) * 2.0**127,
    DataType.DOUBLE: sys.float_info.max,
}
_SMALLEST = {
    DataType.FLOAT16: 2.0**-24,
    DataType.BFLOAT16: 2.0**-133,
    DataType.FLOAT: 2.0**-149,
    DataType.DOUBLE: 2.0**-1074,
}


def largest_number(dtype: DataType) -> float | None:
    """The largest finite number of a float type, 65504 of float16; ``None`` for other element types."""
    return _LARGEST.get(dtype)


def smallest_number(dtype: DataType) -> float | None:
    """The smallest positive number of a float type, 2^-24 of float16; ``None`` for other element types."""
    return _SMALLEST.get(dtype)


class ShapeError(ValueError):
    """The operands' shapes contradict the operator: the program is ill-typed."""


class Undecided(Exception):
    """A question about symbolic dimensions that the known constraints do not answer.

    Attributes:
        equal: pairs of dimensions of which it is known that the answer is yes where each pair is equal.
        multiple: a dimension and a divisor of which it is known that the answer is yes only where it divides the dimension.
        about: a dimension that has to be a number for an answer.
    """

    def __init__(
        self,
        question: str,
        equal: Sequence[tuple[Dim, Dim]] = (),
        multiple: tuple[Dim, Dim] | None = None,
        about: Dim | None = None,
    ) -> None:
        super().__init__(question)
        self.equal, self.multiple, self.about = tuple(equal), multiple, about


class Unequal(Undecided):
    """Two dimensions on whose equality it depends whether an application is well-typed.

    Attributes:
        dims: the two; neither is 1.
        or_one: whether the application is well-typed, too, where one of them is 1 (broadcasting).
        or_empty: whether onnxruntime runs it, too, where they differ and an operand has no entries.
    """

    def __init__(self, first: Dim, second: Dim, or_one: bool = False, or_empty: bool = False) -> None:
        super().__init__(f"whether {first} equals {second}", [(first, second)])
        self.dims, self.or_one, self.or_empty = (first, second), or_one, or_empty


Monomial = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SymDim:
    """A polynomial over dimension symbols: sorted ``(monomial, coefficient)`` pairs, at least one of them not constant."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def make(terms: Mapping[Monomial, int]) -> Dim:
        """Returns the canonical dimension: an ``int`` where no symbol is left."""
        kept = {m: c for m, c in terms.items() if c != 0}
        if not kept:
            return 0
        if len(kept) > 1:
            return SymDim(tuple(sorted(kept.items())))
        ((monomial, coefficient),) = kept.items()
        return SymDim(((monomial, coefficient),)) if monomial else coefficient

    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial, _ in self.terms for name, _ in monomial)

    def __add__(self, other: Dim) -> Dim:
        if other == 0:
            return self
        total = dict(self.terms)
        for monomial, coefficient in _terms(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return SymDim.make(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return SymDim(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return SymDim(tuple((m, c * other) for m, c in self.terms)) if other else 0
        product: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                key = tuple(sorted(powers.items()))
                product[key] = product.get(key, 0) + a * b
        return SymDim.make(product)

    __rmul__ = __mul__

    def exact_div(self, divisor: Dim) -> Dim:
        """Divides by a polynomial; raises :class:`Undecided` where the quotient is none with whole coefficients.

        Long division by the greatest monomials first: in that order products keep their places, so that a quotient that exists is
        found, a monomial a step (Cox, Little and O'Shea, Ideals, Varieties, and Algorithms, section 2.3).
        """
        if divisor == 1:
            return self
        names = sorted({*self.symbols(), *(divisor.symbols() if isinstance(divisor, SymDim) else ())})

        def place(monomial: Monomial) -> tuple[int, ...]:
            powers = dict(monomial)
            return (sum(powers.values()), *(powers.get(name, 0) for name in names))

        quotient: dict[Monomial, int] = {}
        rest: Dim = self
        lead, scale = max(_terms(divisor), key=lambda term: place(term[0]), default=((), 0))
        while rest != 0:
            monomial, coefficient = max(_terms(rest), key=lambda term: place(term[0]))
            powers = dict(monomial)
            for name, power in lead:
                powers[name] = powers.get(name, 0) - power
            if not scale or coefficient % scale or any(power < 0 for power in powers.values()):
                raise Undecided(f"{self} / {divisor}", multiple=(self, divisor))
            found = tuple(sorted((name, power) for name, power in powers.items() if power))
            quotient[found] = coefficient // scale
            rest = rest - SymDim.make({found: coefficient // scale}) * divisor
        return SymDim.make(quotient)

    def __str__(self) -> str:
        return _polynomial_text(self.terms)

    __repr__ = __str__


@lru_cache(maxsize=4096)
def _polynomial_text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    """The text of a dimension, by which terms are told apart: it is asked for whenever one is made."""
    parts = []
    for monomial, coefficient in terms:
        factors = [name if power == 1 else f"{name}^{power}" for name, power in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append("*".join(factors))
    return "+".join(parts).replace("+-", "-")


Dim = int | SymDim
Shape = tuple[Dim, ...]


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, SymDim):
        return dim.terms
    return (((), dim),) if dim else ()


class DerivedSymbol(str):
    """The symbol that is a function of two dimensions, and no polynomial of them; no name in a file is equal to it.

    Attributes:
        first, second: the dimensions.
    """

    first: Dim
    second: Dim

    __slots__ = ("first", "second")

    @classmethod
    def named(cls, name: str, first: Dim, second: Dim) -> Self:
        """The symbol as it is written."""
        made = super().__new__(cls, name)
        made.first, made.second = first, second
        return made

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self).__name__, str.__hash__(self)))

    def __getnewargs__(self) -> tuple[Dim, Dim]:  # type: ignore[override]
        return self.first, self.second

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        """The function of the dimensions with their symbols replaced, as :func:`evaluate_dim` does."""
        raise NotImplementedError


class Least(DerivedSymbol):
    """The smaller of two non-negative dimensions."""

    __slots__ = ()

    def __new__(cls, first: Dim, second: Dim) -> Self:
        first, second = sorted((first, second), key=lambda dim: (isinstance(dim, SymDim), str(dim)))
        return cls.named(f"min({first},{second})", first, second)

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return smaller(evaluate_dim(self.first, binding), evaluate_dim(self.second, binding))


class WholePart(DerivedSymbol):
    """The whole part of a dimension divided by a number, neither of them negative; use :func:`floor_div`."""

    second: int

    __slots__ = ()

    def __new__(cls, first: Dim, second: int) -> Self:
        return cls.named(f"floor(({first})/{second})", first, second)

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return floor_div(evaluate_dim(self.first, binding), self.second)


def symbol(name: str) -> SymDim:
    """The dimension that is the symbol ``name``."""
    return SymDim(((((name, 1),), 1),))


def symbols_within(dim: Dim) -> set[str]:
    """The symbols of a dimension, also those of which another is a function."""
    names: set[str] = set()
    for name in () if isinstance(dim, int) else dim.symbols():
        names.add(name)
        if isinstance(name, DerivedSymbol):
            names |= symbols_within(name.first) | symbols_within(name.second)
    return names


def plain_symbol(dim: Dim) -> str | None:
    """The name where a dimension is one symbol; ``None`` for a number and for a sum, product, power or multiple."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        ((monomial, coefficient),) = dim.terms
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    return None


def is_dim(value: object) -> TypeGuard[Dim]:
    """Whether an attribute value is a dimension: truth values and element types are none, though they are integers in Python."""
    return type(value) is int or isinstance(value, SymDim)


def evaluate_dim(dim: Dim, binding: Mapping[str, Dim]) -> Dim:
    """Replaces the symbols of ``dim`` that ``binding`` knows."""
    if isinstance(dim, int):
        return dim
    for name in [name for monomial, _ in dim.terms for name, _ in monomial]:
        if name in binding or isinstance(name, DerivedSymbol):
            break
    else:
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for name, power in monomial:
            value = binding.get(name)
            if value is None:
                value = name.evaluated(binding) if isinstance(name, DerivedSymbol) else symbol(name)
            for _ in range(power):
                product = product * value
        total = total + product
    return total


def at_most(small: Dim, large: Dim) -> bool | None:
    """Whether a dimension never exceeds another, or ``None`` where that depends on the symbols; these are not negative."""
    difference = large - small
    if isinstance(difference, int):
        return difference >= 0
    negative = [monomial for monomial, coefficient in difference.terms if coefficient < 0]
    if not negative:
        return True
    for monomial in negative:
        name = monomial[0][0] if len(monomial) == 1 and monomial[0][1] == 1 else ""
        scale = dict(difference.terms)[monomial]
        rest = difference + SymDim.make({monomial: -scale})
        if isinstance(name, Least):
            return True if any(at_most(0, rest + scale * bound) for bound in (name.first, name.second)) else None
        if isinstance(name, WholePart):  # what is more than -1 and a whole number is not negative
            return True if at_most(0, name.second * rest + scale * name.first + (name.second - 1)) else None
    return None


def is_natural(dim: Dim, natural: Iterable[Dim] = ()) -> bool:
    """Whether a dimension is known not to be negative, where some others are not.

    ``rest + floor(a / d)`` is not negative just where ``a + d*rest`` is not.
    """
    return bool(at_most(0, dim)) or any(at_most(_numerator(other), _numerator(dim)) for other in natural)


def _numerator(dim: Dim) -> Dim:
    """What is not negative where a dimension with one whole part is not; any other dimension itself."""
    for monomial, coefficient in () if isinstance(dim, int) else dim.terms:
        if coefficient == 1 and len(monomial) == 1 and isinstance(whole := monomial[0][0], WholePart) and monomial[0][1] == 1:
            return whole.first + whole.second * (dim - symbol(whole))
    return dim


def smaller(a: Dim, b: Dim) -> Dim:
    """The smaller of two dimensions, a :class:`Least` where that depends on the symbols.

    Raises:
        Undecided: one of them may be negative.
    """
    if at_most(a, b):
        return a
    if at_most(b, a):
        return b
    if not (at_most(0, a) and at_most(0, b)):
        raise Undecided(f"the smaller of {a} and {b}")
    return symbol(Least(a, b))


def floor_div(dim: Dim, divisor: int) -> Dim:
    """A dimension divided by a number of at least 1, rounded down; a :class:`WholePart` where it depends on the symbols.

    Equal quotients look the same where they are the same by these laws (Graham, Knuth and Patashnik, Concrete Mathematics,
    chapter 3): what the divisor divides comes out, so that what is left has coefficients in ``[0, divisor)``;
    ``floor((g*a + b) / (g*d)) = floor(a / d)`` for ``0 <= b < g``; and a quotient of a quotient is one quotient.
    """
    if isinstance(dim, int):
        return dim // divisor
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        whole[monomial], rest[monomial] = divmod(coefficient, divisor)
    return SymDim.make(whole) + _floor_of_rest(SymDim.make(rest), divisor)


def _floor_of_rest(rest: Dim, divisor: int) -> Dim:
    """The quotient of what has coefficients in ``[0, divisor)``."""
    if isinstance(rest, int):
        return 0
    shared = math.gcd(divisor, *(coefficient for monomial, coefficient in rest.terms if monomial))
    if shared > 1:
        return floor_div(SymDim.make({m: c // shared for m, c in rest.terms}), divisor // shared)
    for monomial, coefficient in rest.terms:
        if coefficient == 1 and len(monomial) == 1 and isinstance(inner := monomial[0][0], WholePart) and monomial[0][1] == 1:
            return floor_div(inner.first + inner.second * (rest - symbol(inner)), inner.second * divisor)
    return symbol(WholePart(rest, divisor))


def same_dim(a: Dim, b: Dim) -> bool | None:
    """Whether two dimensions are equal: yes, no, or ``None`` where it depends on the symbols."""
    if a == b:
        return True
    difference = a - b
    return False if isinstance(difference, int) else None


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool | None:
    """Whether two shapes are equal; a different rank or one different dimension decides."""
    if len(a) != len(b):
        return False
    verdicts = [same_dim(x, y) for x, y in zip(a, b, strict=True)]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def broadcast(shapes: Iterable[Sequence[Dim]]) -> Shape:
    """NumPy's and ONNX's multidirectional broadcasting.

    Raises:
        ShapeError: two known sizes contradict each other.
        Unequal: a symbol meets another size, so that either could be the broadcast one.
    """
    shapes = [tuple(s) for s in shapes]
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for position in range(-rank, 0):
        dim: Dim = 1
        for shape in shapes:
            other = shape[position] if -position <= len(shape) else 1
            if other == 1 or dim == other:
                continue
            if dim == 1:
                dim = other
            elif same_dim(dim, other) is False:
                raise ShapeError(f"shapes {', '.join(map(format_shape, shapes))} do not broadcast")
            else:
                raise Unequal(dim, other, or_one=True)
        result.append(dim)
    return tuple(result)


def normalize_axis(axis: int, rank: int) -> int:
    """The axis counted from the end: -1 is the last. Raises :class:`ShapeError` outside ``[-rank, rank)``."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}")
    return axis - rank if axis >= 0 else axis


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions: the number of entries of a shape; 1 of none."""
    return math.prod(dims, start=1)


def concrete(shape: Sequence[Dim]) -> tuple[int, ...] | None:
    """The shape as integers, or ``None`` where a symbol remains."""
    return tuple(d for d in shape if isinstance(d, int)) if all(isinstance(d, int) for d in shape) else None


def format_shape(shape: Sequence[Dim]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a value."""

    dtype: DataType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    def size(self) -> int:
        """Number of elements; raises :class:`Undecided` where a symbol remains."""
        sizes = concrete(self.shape)
        if sizes is None:
            raise Undecided(f"the size of {self}")
        return math.prod(sizes)

    def at(self, sizes: Mapping[str, Dim]) -> TensorType:
        """The type with those of its symbols replaced that ``sizes`` knows."""
        return TensorType(self.dtype, tuple(evaluate_dim(dim, sizes) for dim in self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.name.lower()}{format_shape(self.shape)}"


def shape_at(type_: TensorType | None, sizes: Mapping[str, Dim]) -> tuple[int, ...] | None:
    """The shape at some sizes as integers, or ``None`` where the type is not known or a symbol remains."""
    return None if type_ is None else concrete(type_.at(sizes).shape)


def type_at(type_: TensorType | None, sizes: Mapping[str, Dim]) -> TensorType | None:
    """The type at some sizes with integers for its shape, or ``None`` where these are not known."""
    shape = shape_at(type_, sizes)
    return None if type_ is None or shape is None else TensorType(type_.dtype, shape)
