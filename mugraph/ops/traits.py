"""The traits of an operator: properties beyond its typing and meaning, which others ask for instead of naming operators.

A trait is a property of the operator, not of who asks: a search asks whether an operator moves entries, not whether it is one
of a list. Every trait that a proof trusts is tested against typing and evaluation, for every record
(tests/mugraph/ops/test_traits.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from mugraph.domains.functions import ScalarFunction

__all__ = ["NO_TRAITS", "DegreeBound", "Entrywise", "ImageRole", "Movement", "ProductKind", "Reduction", "RowRole", "Traits"]


class Entrywise(Enum):
    """How an operator combines the entries that stand at one place of its (broadcast) operands."""

    FUNCTION = auto()
    """A number of numbers: Relu, Erf, Pow."""
    ARITHMETIC = auto()
    """A sum, difference, product or quotient."""
    EXTREMUM = auto()
    """The greatest or the least of them."""
    COMPARISON = auto()
    """The truth of a statement about numbers: Less, IsNaN."""
    LOGIC = auto()
    """A truth value of truth values."""
    SELECTION = auto()
    """One of several numbers, by a truth value: Where."""
    CONVERSION = auto()
    """The entry as one of another element type: Cast."""


class Movement(Enum):
    """Where the entries of the results come from, for an operator that computes no new ones."""

    VIEW = auto()
    """All entries in their order, under another shape: Reshape."""
    PERMUTATION = auto()
    """All entries, each once, in another order: Transpose."""
    PART = auto()
    """Some of the entries: Slice, Split."""
    REPETITION = auto()
    """All entries, some more than once: Expand, Tile."""
    CONCATENATION = auto()
    """The entries of all operands: Concat."""
    LOOKUP = auto()
    """Entries of the first operand, at places that the second one says: Gather."""
    FILLING = auto()
    """Entries of the operand, and a number in the other places: Pad, Trilu."""
    WINDOWS = auto()
    """Entries that follow each other, for every window over them: some more than once, some perhaps not at all."""

    @property
    def rearranges(self) -> bool:
        """Whether the result has each entry of the operand once."""
        return self in (Movement.VIEW, Movement.PERMUTATION)

    @property
    def addresses(self) -> bool:
        """Whether attributes and shapes alone say where each entry of a result comes from."""
        return self not in (Movement.LOOKUP, Movement.FILLING)

    @property
    def keeps_rank(self) -> bool:
        """Whether results have as many axes as each operand has."""
        return self in (Movement.PERMUTATION, Movement.PART, Movement.CONCATENATION, Movement.FILLING)


class Reduction(Enum):
    """How an operator combines many entries: those along ``axes``, or, over images, those of a window or of a whole channel."""

    SUM = auto()
    MEAN = auto()
    MAX = auto()
    MIN = auto()
    SQUARES = auto()
    """The sum of squares."""
    NORM = auto()
    """The root of the sum of squares."""

    @property
    def linear(self) -> bool:
        return self in (Reduction.SUM, Reduction.MEAN)

    @property
    def monoid(self) -> str | None:
        """How two entries are combined, ``sum``, ``max`` or ``min``, where it is the entries themselves that are."""
        return {Reduction.SUM: "sum", Reduction.MEAN: "sum", Reduction.MAX: "max", Reduction.MIN: "min"}.get(self)


class ProductKind(Enum):
    """Sums of products of an operand's entries with those of another, its weights."""

    MATRIX = auto()
    CONVOLUTION = auto()
    TRANSPOSED_CONVOLUTION = auto()
    """The weights are [C, M/group, *kernel], where those of a convolution are [M, C/group, *kernel]."""


class ImageRole(Enum):
    """The action of an operator on images, [N, C, *spatial]."""

    WINDOW = auto()
    """It slides a window over the spatial axes: Conv, MaxPool."""
    GLOBAL = auto()
    """It reduces the spatial axes: GlobalAveragePool."""
    CHANNELS = auto()
    """It normalises, with a parameter for each channel or over neighbouring ones."""
    KERNEL = auto()
    """It is a kernel of a convolution, a constant."""


class RowRole(Enum):
    """The action of an operator on each row: the entries along ``axis``, or along all axes from there on."""

    SOFTMAX = auto()
    NORMALISATION = auto()
    """Entries over their root mean square, times a scale, plus a bias if there is one: the operands behind the first."""


class DegreeBound(Enum):
    """A bound of the degree of the polynomials that the entries of a result are in those of the operands."""

    LINEAR = auto()
    """Of the degree of an operand, at most."""
    MULTILINEAR = auto()
    """Of the sum of the operands' degrees, at most."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of an operator.

    Attributes:
        entrywise: an entry of the result depends on the operands' entries at the same place alone; shapes broadcast.
        movement: it moves entries and computes none.
        reduction: it reduces many entries to one.
        product: it is a matrix product or a convolution, perhaps with an epilogue.
        image: its action on images.
        rows: its action on rows.
        degree: the entries of the result are polynomials of at most this degree in those of the operands.
        function: the scalar function that it applies.
        attention: it weighs values by the softmax of products of queries and keys.
        one_dtype: operands and results are of one element type.
        keeps_shape: every result has the shape of the first operand, whatever the other operands are (not for entrywise
            operators, whose operands broadcast).
        piecewise: its definition asks for the order of numbers, or for truth values.
        bounded: the entries of the result are at most 1 in magnitude, however large those of the operands are.
        accumulates: it adds up many numbers, so that rounding depends on their order.
        slow: a GPU computes it in its few units for transcendental functions.
        undoes: the operator of which it is the inverse: Sub of Add, Div of Mul; ``Identity`` for the inverse of an entry.
        inverts_inside: its definition subtracts or divides, without that being all of it.
        named_whole: it is a name for what models also write out as several plainer operators: Gelu, and every composite. A
            product is one whatever it adds to it: Gemm has no other name.
        nests: the text of a kernel writes each operand once, so that it may be an expression.
        keeps_zero: an entry of the result is zero exactly where the operand's is, wherever it is a number.
        overwrites: the result is the first operand, with the entries of another in place of some.
    """

    entrywise: Entrywise | None = None
    movement: Movement | None = None
    reduction: Reduction | None = None
    product: ProductKind | None = None
    image: ImageRole | None = None
    rows: RowRole | None = None
    degree: DegreeBound | None = None
    function: ScalarFunction | None = None
    attention: bool = False
    one_dtype: bool = False
    keeps_shape: bool = False
    piecewise: bool = False
    bounded: bool = False
    accumulates: bool = False
    slow: bool = False
    undoes: str | None = None
    inverts_inside: bool = False
    named_whole: bool = False
    nests: bool = False
    keeps_zero: bool = False
    overwrites: bool = False

    @property
    def rearranges(self) -> bool:
        """Whether the result has each entry of the operand once, and nothing else."""
        return self.movement is not None and self.movement.rearranges

    @property
    def addresses(self) -> bool:
        """Whether attributes and shapes alone say which entry of an operand each entry of a result is."""
        return self.movement is not None and self.movement.addresses

    @property
    def keeps_rank(self) -> bool:
        """Whether it moves entries, and every result has as many axes as each operand."""
        return self.movement is not None and self.movement.keeps_rank

    @property
    def monoid(self) -> str | None:
        """How a reduction along axes combines two entries (:attr:`Reduction.monoid`); ``None`` for other operators."""
        return None if self.reduction is None or self.image is not None else self.reduction.monoid

    @property
    def convolves(self) -> bool:
        """Whether it is a convolution over [N, C, *spatial], transposed or with an epilogue perhaps."""
        kinds = (ProductKind.CONVOLUTION, ProductKind.TRANSPOSED_CONVOLUTION)
        return self.product in kinds and self.image is ImageRole.WINDOW

    @property
    def jumps(self) -> bool:
        """Whether operands that are nearly equal may have results that are not."""
        return self.function is not None and self.function.jumps

    @property
    def partial(self) -> bool:
        """Whether negative numbers have no result."""
        return self.function is not None and self.function.partial


NO_TRAITS = Traits()
