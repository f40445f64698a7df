"""Values of terms at accesses: elementwise operators become thread graphs, all others what their stage makes of them."""

from __future__ import annotations

from mugraph.domains.base import BYTES, FLOATS, NIBBLES
from mugraph.ops import traits_of
from mugraph.ops.constants import POSITION_MASKS
from mugraph.ops.indexing import is_place, rows_from
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, make, var, variables
from rewriter.kernels.fuse.access import Access, under, view_of
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.movements import Movements
from rewriter.kernels.fuse.products import Products
from rewriter.kernels.fuse.reductions import Reductions
from rewriter.kernels.fuse.scope import Scope
from rewriter.kernels.fuse.terms import is_elementwise

__all__ = ["TermEmitter"]


class TermEmitter:
    """Adds to a block graph what a term's value takes; a value that is asked for again is the same."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.movements = Movements(scope, self.emit)
        self._reductions = Reductions(scope, self.emit)
        self._products = Products(scope, self.emit, self.movements.sees)
        self._values: dict[tuple[Term, Access], Term] = {}

    def emit(self, term: Term, access: Access, hint: Access) -> Term:
        """A term's value at an access, as a thread graph over tiles.

        Args:
            hint: the access of what the value is broadcast to: the axis along which it was reduced.

        Raises:
            NotFusable: it is not of this block graph.
        """
        if term.op == "Const":
            return term
        hint = access if access and access[-1] else hint
        key = (term, (*access, *hint[-1:]))
        if key not in self._values:
            value = self._value(term, access, hint)
            shared = self._scope.terms.uses[term] > 1 and not value.is_var and bool(variables([value]))
            self._values[key] = var(self._scope.builder.compute(term.op.lower(), value)) if shared else value
        return self._values[key]

    def _value(self, term: Term, access: Access, hint: Access) -> Term:
        if term.is_var:
            return var(self._scope.builder.load(term.name, view_of(access, self._scope.axes.sizes)))
        if is_place(term):
            return var(self._scope.builder.place(self.movements.place(term, access)))
        if traits_of(term.op).addresses or rows_from(term) is not None:
            return self.movements.value(term, access, hint)
        if term.op in POSITION_MASKS:
            return var(self.movements.sees(term, access))
        if traits_of(term.op).monoid is not None:
            return self._reductions.value(term, access, hint)
        if term.op == "MatMul":
            return self._products.value(term, access)
        if not is_elementwise(term.op):
            raise NotFusable(f"{term.op} is neither elementwise nor a movement")
        return self._elementwise(term, access, hint)

    def _elementwise(self, term: Term, access: Access, hint: Access) -> Term:
        terms = self._scope.terms
        if term.op == "Cast" and term.attr("to") in FLOATS and terms.types[term.inputs[0]].dtype in FLOATS:
            return self.emit(term.inputs[0], access, hint)
        if term.op == "IsInf" and not terms.is_rounded(term.inputs[0]):
            raise NotFusable("IsInf of what the kernel computes: it would not overflow in 32 bits")
        operands = [i if i.op == "Const" else self.emit(i, under(access, terms.shape(i)), hint) for i in term.inputs]
        if not variables(operands):
            raise NotFusable("arithmetic of numbers alone")
        if term.op == "Cast" and term.attr("to") in FLOATS and terms.types[term.inputs[0]].dtype in BYTES | NIBBLES:
            return make("Cast", operands, {"to": DataType.FLOAT})  # exact in every float type; tiles of floats are of 32 bits
        return make(term.op, operands, term.attrs)
