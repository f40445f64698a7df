"""Number systems in which every operator's one definition is evaluated."""

from mugraph.domains.base import Array, Domain, Unsupported
from mugraph.domains.field import FieldArray, FiniteField
from mugraph.domains.range import Range, RangeDomain
from mugraph.domains.real import Real
from mugraph.domains.sizes import Shaped, Sizes
from mugraph.domains.symbolic import Poly, Symbolic

__all__ = [
    "Array",
    "Domain",
    "FieldArray",
    "FiniteField",
    "Poly",
    "Range",
    "RangeDomain",
    "Real",
    "Shaped",
    "Sizes",
    "Symbolic",
    "Unsupported",
]
