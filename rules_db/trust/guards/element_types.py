"""Guards about element types."""

from __future__ import annotations

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType
from mugraph.terms.term import AttrValue, Term
from rules_db.trust.guards.record import About, ElementType, Facts, Premises, Told, guard


def _dtype_tells(x: Term, dtype: AttrValue) -> list[Told]:
    return [ElementType(x, dtype)] if isinstance(dtype, DataType) else []


def _dtype_law(premises: Premises, x: Term, dtype: AttrValue) -> bool:
    return isinstance(dtype, DataType) and premises.element_type(x) == dtype


@guard(53, About.ELEMENT_TYPES, tells=_dtype_tells, law=_dtype_law)
def dtype(facts: Facts, x: Term, dtype: DataType) -> bool | None:
    """The entries of x are of the element type ``dtype``."""
    return facts.type_of(x).dtype == dtype


@guard(54, About.ELEMENT_TYPES)
def float_type(facts: Facts, dtype: DataType) -> bool | None:
    """The element type ``dtype`` is of floating-point numbers, so that a Cast between two is the identity of real numbers."""
    return dtype in FLOATS


def _floating_law(premises: Premises, x: Term) -> bool:
    of_entries = premises.element_type(x)
    return of_entries in FLOATS if of_entries is not None else premises.of_operands("floating", x)


@guard(12, About.ELEMENT_TYPES, law=_floating_law, of_numbers=False)
def floating(facts: Facts, x: Term) -> bool | None:
    """The entries of x are floating-point numbers: division is division."""
    return facts.type_of(x).dtype in FLOATS


@guard(13, About.ELEMENT_TYPES, law=lambda premises, x: premises.of_operands("single", x), of_numbers=False)
def single(facts: Facts, x: Term) -> bool | None:
    """The entries of x are of the element type of constant tensors, 32-bit floats."""
    return facts.type_of(x).dtype == DataType.FLOAT
