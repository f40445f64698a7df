"""Rules that put in place of an operator of a model what it is defined as, at the sizes at which the model has it.

ONNX has some products under a name of their own, whose attributes say how axes are moved and joined around one (Einsum). A rule
for each equation cannot be listed; what it means at given shapes its record says. Where a run alone tells a size there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.ops import get_operator
from mugraph.terms.shape import ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Attrs, make, var
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition
from rules_db.trust.numbering import repeat_numbering, shape_conditions
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["definitions_in"]


def definitions_in(graph: Graph) -> Iterator[Rule]:
    """The rules for the nodes of a model, each once."""
    found = (
        _definition(node.op, node.attrs, tuple(map(graph.type, node.inputs))) for node in graph.nodes() if _is_other_name(node)
    )
    yield from dict.fromkeys(rule for rule in found if rule is not None)


def _is_other_name(node: Node) -> bool:
    """Whether a node is a product of ONNX's own under another name than those that rules know."""
    if node.is_opaque:
        return False
    record = get_operator(node.op)
    return record.composite and record.contract is None and record.traits.product is not None


@lru_cache(maxsize=1 << 8)
def _definition(op: str, attrs: Attrs, types: tuple[TensorType | None, ...]) -> Rule | None:
    """The rule for an operator at some types; ``None`` where a size is not known, or is 0."""
    operands = {f"x{i}": type_ for i, type_ in enumerate(types) if type_ is not None}
    if len(operands) < len(types) or not all(_is_sized(type_) for type_ in operands.values()):
        return None
    source = make(op, [var(name) for name in operands], attrs)
    try:
        target = get_operator(op).decompose(attrs, list(operands.values()))
    except (ShapeError, Undecided):
        return None
    conditions = [
        condition
        for name, type_ in operands.items()
        for condition in (*shape_conditions(var(name), type_), Condition("finite", (var(name),)))
    ]
    certificate, origin = Certificate((), numbered=True), {"group": "definition"}
    rule = Rule((source,), target, operands, tuple(conditions), FloatClass.REASSOCIATES, certificate, origin)
    return None if repeat_numbering(rule) else rule


def _is_sized(type_: TensorType) -> bool:
    shape = concrete(type_.shape)
    return type_.dtype in FLOATS and shape is not None and 0 not in shape
