"""Attention that appends to a cache of which the run tells what counts, as two: what attends, and what appends.

onnxruntime's operator writes what is new into the buffer that it reads, where it is bound to one for both, and a kernel that gave
the cache would copy all of it. So the operator stays for the cache, with attributes by which it attends to next to nothing, and
what it gives beside the cache is written out, for a kernel to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mugraph.graph import Graph
from mugraph.ops import get_operator
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Attrs, make, make_attrs, var
from rules_db.trust.certificate import Certificate
from rules_db.trust.numbering import repeat_numbering, shape_conditions
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["attention_apart"]


def attention_apart(graph: Graph) -> Iterator[Rule]:
    """The rules that take attention apart from what appends to its cache, each once: of the sizes that a graph has them at."""
    found = (_apart(node.op, node.attrs, tuple(map(graph.type, node.inputs))) for node in graph.nodes() if not node.is_opaque)
    yield from dict.fromkeys(rule for rule in found if rule is not None)


@lru_cache(maxsize=1 << 8)
def _apart(op: str, attrs: Attrs, types: tuple[TensorType | None, ...]) -> Rule | None:
    """The rule for an operator at some types; ``None`` where nothing is to be taken apart."""
    record = get_operator(op)
    rest = record.runtime.rest({**record.defaults, **dict(attrs)})
    operands = {f"x{i}": type_ for i, type_ in enumerate(types) if type_ is not None}
    if rest is None or len(operands) < len(types):
        return None
    try:
        first, *others = record.decompose(attrs, list(operands.values()))
    except (ShapeError, Undecided):
        return None
    variables = [var(name) for name in operands]
    outputs = range(len(others) + 1)
    source = tuple(make(op, variables, attrs, out) for out in outputs)
    target = (first, *(make(op, variables, make_attrs(rest), out) for out in outputs[1:]))
    conditions = tuple(condition for name, type_ in operands.items() for condition in shape_conditions(var(name), type_))
    certificate, origin = Certificate((), numbered=True), {"group": "caches"}
    rule = Rule(source, target, operands, conditions, FloatClass.REASSOCIATES, certificate, origin)
    return None if repeat_numbering(rule) else rule
