"""Kinds of nodes: what each is to a fusable set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mugraph.blocks.operator import KERNEL
from mugraph.domains.base import FLOATS, WHOLE_NUMBERS
from mugraph.graph import Node
from mugraph.ops import Entrywise, Movement, ProductKind, get_operator, traits_of
from mugraph.ops.constants import POSITION_MASKS
from mugraph.ops.indexing import rows_from
from mugraph.ops.interp import expanded, infer_types
from mugraph.ops.quantized import INTEGER_PRODUCT
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, substitute, walk
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.fuse.terms import is_elementwise
from rewriter.search.match import resolve

__all__ = ["FLOATS_AND_TRUTH", "LAST", "NodeKinds", "cuts", "is_computed", "is_product"]

LAST = (-1,)
"""The axes of a reduction along rows."""
_MOST_STEPS = (2**31 - 1) // (255 * 128)
"""Products of bytes of which a sum fits into 32 bits whatever they are."""
FLOATS_AND_TRUTH = FLOATS | {DataType.BOOL}
_FLAGS = FLOATS_AND_TRUTH | WHOLE_NUMBERS


def is_product(op: str) -> bool:
    """Whether an operator is a product of matrices and nothing else."""
    return traits_of(op).product is ProductKind.MATRIX and not get_operator(op).composite


def is_computed(op: str) -> bool:
    """Whether a kernel computes from positions what an operator makes of nothing, and reads none of its entries."""
    return op in POSITION_MASKS or op == "Positions"


def cuts(op: str) -> bool:
    """Whether an operator is a movement that is no part of an epilogue: a store writes every entry once."""
    return traits_of(op).addresses and not traits_of(op).rearranges


def _is_row(op: str) -> bool:
    return traits_of(op).rows is not None and not get_operator(op).composite


def _is_staged(term: Term) -> bool:
    """Whether a kernel has an operator, or a leaf, in a stage of its own."""
    op, traits = term.op, traits_of(term.op)
    staged = traits.addresses or traits.monoid is not None or _is_row(op) or is_product(op) or is_elementwise(op)
    return staged or op in ("Var", "Const", "Range") or is_computed(op) or rows_from(term) is not None


def _parts(roots: Sequence[Term], operands: Sequence[TensorType]) -> Iterator[Term]:
    """The terms of a decomposition, and of those that lowering takes apart once more."""
    types = infer_types(roots, {f"x{i}": type_ for i, type_ in enumerate(operands)})
    for part in walk(roots):
        inner = None if _is_staged(part) else expanded(part, types)
        yield from [part] if inner is None else (other for other in walk([inner]) if other is not part)


class NodeKinds:
    """The kinds of a graph's nodes.

    ``movement``, ``pointwise``, ``row``, ``total``, ``flag``, ``product``, ``attention`` or ``other``. A ``total`` reduces all
    entries to one. A ``flag`` is elementwise and of use to such a reduction only: the question for infinities, a truth as a
    number, and back.
    """

    def __init__(self, reading: GraphReading) -> None:
        self._reading = reading
        self._kinds: dict[Node, str] = {}

    def __getitem__(self, node: Node) -> str:
        if node not in self._kinds:
            self._kinds[node] = self._kind(node)
        return self._kinds[node]

    def _kind(self, node: Node) -> str:
        graph = self._reading.graph
        types = [graph.type(v) for v in (*node.values, *node.inputs)]
        if node.is_opaque or any(t is None for t in types) or node.op == KERNEL:
            return "other"
        if not graph.tables.bodies.keys().isdisjoint(node.values):
            return "other"  # CUDA graphs, for which kernels are made, have no branches
        if traits_of(node.op).movement is Movement.WINDOWS:
            return "other"  # an index of what they move is a sum of two, which no access is
        axes = dict(node.attrs).get("axes")
        if traits_of(node.op).monoid is not None and axes != LAST and self._reading.has_one_entry(node):
            return "total"
        traits = traits_of(node.op)
        if any(t is not None and t.dtype not in FLOATS_AND_TRUTH for t in types):
            if any(t is None or t.dtype not in _FLAGS for t in types):
                return "other"
            # Integers are moved and compared, as those that number documents, or bytes of which sums of products become floats.
            if node.op == INTEGER_PRODUCT:
                return "product" if self._is_multiplied_as_floats(node) else "other"
            if node.op == "Cast" and (maker := self._reading.maker(node.inputs[0])) is not None and self[maker] == "product":
                return "pointwise"
            if traits.attention:
                return self._composite_kind(node)
            if traits.addresses:
                return "movement"
            if traits.entrywise is None and all(t is not None and t.dtype in FLOATS for t in types[: len(node.values)]):
                return self._composite_kind(node)  # it makes floats of them
            return "pointwise" if traits.entrywise is Entrywise.COMPARISON else "flag" if node.op == "Cast" else "other"
        if node.op == "IsInf":
            return "flag"
        if traits_of(node.op).addresses:
            return "movement"
        if is_elementwise(node.op):
            tables = graph.tables
            floats = [v for v in node.inputs if (t := tables.types[v]) is not None and t.dtype in FLOATS]
            # A choice between two numbers is a mask: it is made once and read everywhere.
            return "other" if floats and all(tables.constant[v] for v in floats) else "pointwise"
        if traits_of(node.op).monoid is not None:
            return "row" if axes == LAST else "other"
        if _is_row(node.op):
            return "row" if dict(node.attrs).get("axis", -1) == -1 else "other"
        return "product" if is_product(node.op) else self._composite_kind(node)

    def _is_multiplied_as_floats(self, node: Node) -> bool:
        """Whether a product of integers becomes floats, and nothing else, and all of its sums fit into 32 bits."""
        readers, weights = self._reading.readers(node), self._reading.graph.type(node.inputs[1])
        steps = None if weights is None or weights.rank < 2 else weights.shape[-2]
        if not isinstance(steps, int) or steps > _MOST_STEPS:
            return False
        return bool(readers) and all(r.op == "Cast" and dict(r.attrs)["to"] == DataType.FLOAT for r in readers)

    def _composite_kind(self, node: Node) -> str:
        """The kind of an operator by what it is composed of."""
        record = get_operator(node.op)
        if record.decomposition is None or traits_of(node.op).overwrites:  # all of its readers choose, or none
            return "other"
        operands = [t for v in node.inputs if (t := self._reading.graph.type(v)) is not None]
        try:
            made = {f"x{i}": term for i, v in enumerate(node.inputs) if (term := self._computed(v)) is not None}
            parts = list(_parts([substitute(r, made) for r in record.decompose(node.attrs, operands)], operands))
        except (ShapeError, Undecided, ValueError):
            return "other"
        if not all(map(_is_staged, parts)):
            return "other"
        inner = {part.op for part in parts}
        if any(map(is_product, inner)):
            return "attention" if "Softmax" in inner else "product"
        return "row" if any(traits_of(op).monoid or _is_row(op) for op in inner) else "pointwise"

    def _computed(self, value: int) -> Term | None:
        """What a kernel computes of positions in place of an operand."""
        definition = self._reading.graph.definition(resolve(self._reading.graph, value))
        if definition is None or not is_computed(definition[0].op):
            return None
        return make(definition[0].op, (), definition[0].attrs)

    def is_weighted(self, node: Node) -> bool:
        """Whether the left operand of a product is a softmax."""
        reading = self._reading
        maker = reading.maker(node.inputs[0])
        while maker is not None and maker.op in ("Cast", "Where"):
            maker = reading.maker(maker.inputs[-1])
        if maker is None:
            return False
        return maker.op == "Softmax" or (
            maker.op == "Div" and (top := reading.maker(maker.inputs[0])) is not None and top.op == "Exp"
        )
