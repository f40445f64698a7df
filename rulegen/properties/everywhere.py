"""Operator properties that hold at every size and rank, by an argument and not by cases.

Where all operators of a property are entrywise, an entry of either side is one function of the variables' entries at the same
place, to which broadcasting aligns each of them from the last axis on, however deep it stands. So an equation that holds of
tensors without dimensions holds of all for which both sides have one shape: that which the variables broadcast to. A variable
that one side lacks must broadcast to the shape of that side, by the property's own conditions.

It says nothing of attributes, which run through the values of :mod:`rulegen.properties.parameters`, nor of element types.
"""

from __future__ import annotations

from collections.abc import Iterator

from mugraph.domains.base import FLOATS
from mugraph.ops import traits_of
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import variables, walk
from rulegen.properties.cases import Case
from rulegen.properties.parameters import attribute_choices, stated_types
from rulegen.properties.symbolic import examined
from rules_db.trust.condition import Condition
from rules_db.trust.implied import implied
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Verdict

__all__ = ["holds_everywhere"]


def holds_everywhere(axiom: Axiom) -> bool:
    """Whether a property is proved for all sizes and ranks; no says nothing of it."""
    if not _is_entrywise(axiom) or not all(implied(c, axiom.conditions) for c in _one_shape(axiom)):
        return False
    stated = stated_types(axiom)
    types = {name: TensorType(stated.get(name, DataType.FLOAT), ()) for name in axiom.variables}
    if not {type_.dtype for type_ in types.values()} <= FLOATS | {DataType.BOOL}:
        return False
    choices = list(attribute_choices(axiom))
    return bool(choices) and all(examined(axiom, Case(types, attrs)) is Verdict.PROVED for attrs in choices)


def _is_entrywise(axiom: Axiom) -> bool:
    """Whether operators without places are all that there is, at least one of them, and of variables."""
    terms = [term for term in walk([axiom.left, axiom.right]) if not (term.is_var or term.op == "Const")]
    return bool(axiom.variables) and bool(terms) and all(traits_of(term.op).entrywise is not None for term in terms)


def _one_shape(axiom: Axiom) -> Iterator[Condition]:
    """What must hold for both sides to have one shape."""
    for side, other in ((axiom.left, axiom.right), (axiom.right, axiom.left)):
        there = set(variables([other]))
        yield from (Condition("fits", (variable, other)) for variable in variables([side]) if variable not in there)
