"""From terms to a graph-defined kernel by construction: every operator says which entries of its operands it needs.

An *access* addresses the entries of a tensor by the axes of a block: for each dimension its digits, outermost first, each an
index of an axis. It starts at the *core* of a region, the product, attention or row that its outputs hang on, whose dimensions
are the block's axes. From there it is pushed down to the outputs, where it becomes the view of an output saver, and up to the
inputs, where it becomes that of an input iterator. What only moves entries (Reshape, Transpose, Split, Slice, Unsqueeze,
Expand) changes the access and nothing else; elementwise operators become thread graphs; reductions become reductions of
whole axes or accumulators; products and softmax become accumulators of the loop. Where every output is one entry there is no axis
to cut into blocks: the loop goes over all entries that are reduced, and a split of it makes the blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.blocks.block import (
    Affine,
    Block,
    Compute,
    Factor,
    Index,
    InvalidBlock,
    Kernel,
    Load,
    Predicate,
    Reduce,
    Statement,
    Store,
    Tensor,
    View,
    product,
    statement_names,
    statement_operands,
)
from mugraph.domains.base import FLOATS
from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import quotient
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, same_dim
from mugraph.terms.term import Term, const, make, substitute, var, variables, walk
from rewriter.kernels.fuse.families import Builder, NotFusable, plainer

__all__ = ["PLAIN", "Form", "is_elementwise", "lower"]

_LARGEST_EPILOGUE_ROW = 512
"""Entries of a row that a product's epilogue may reduce: it stays in registers whole."""
_LARGEST_COUNT = 1 << 24
"""Up to which 32-bit floats count exactly."""
_LARGEST_ROW = 8192
"""Entries of a row that elementwise operators take at a time."""

Digits = tuple[Factor, ...]
Access = tuple[Digits, ...]
"""The digits of each dimension; a dimension of size 1 has none."""


@dataclass(frozen=True, slots=True)
class Form:
    """Which of several kernels is built of the same terms.

    Attributes:
        accumulated: the statistics of a product's left operand are accumulated beside it and applied after the loop, which a
            factor of a row allows (Mirage, figure 4); otherwise they are computed first, from whole rows.
    """

    accumulated: bool = False


PLAIN = Form()


def lower(name: str, inputs: Mapping[str, TensorType], outputs: Sequence[tuple[str, Term]], form: Form = PLAIN) -> Kernel:
    """The kernel that computes terms.

    Args:
        name: of the kernel.
        inputs: types of the variables.
        outputs: name and term of each output.
        form: what to choose where there is a choice.

    Raises:
        NotFusable: the terms are not of one block graph; the message is the reason.
    """
    try:
        return _Lowering(name, inputs, outputs, form).kernel()
    except InvalidBlock as problem:
        raise NotFusable(str(problem)) from None
    except (ShapeError, Undecided) as problem:
        raise NotFusable(f"{type(problem).__name__}: {problem}") from None


def is_elementwise(op: str) -> bool:
    """Whether an operator computes entry by entry; the identity only moves."""
    traits = traits_of(op)
    return traits.entrywise is not None and traits.movement is None


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where that is a dimension."""
    return 1 if a == b else quotient(a, b)


def _digit(axis: str, size: Dim) -> Digits:
    return (Factor(Index(axis), size),)


def _parted(digit: Factor, low: Dim) -> tuple[Factor, Factor]:
    """A digit as two, the lower one of size ``low``."""
    index = digit.index
    high = _quotient(digit.size, low)
    if high is None or index.offset != 0 or index.axis is None:
        raise NotFusable(f"an index of {digit.size} entries cannot be read as {low} a row")
    lower_ = replace(index, modulo=low)
    modulo = None if index.modulo is None else _quotient(index.modulo, low)
    if index.modulo is not None and modulo is None:
        raise NotFusable(f"an index modulo {index.modulo} cannot be read as {low} a row")
    return Factor(replace(index, divide=index.divide * low, modulo=modulo), high), Factor(lower_, low)


def _regrouped(digits: Sequence[Factor], dims: Sequence[Dim]) -> Access:
    """Digits, row-major, as those of other dimensions."""
    rest, groups = list(digits), list[Digits]()
    for dim in reversed(dims):
        group: list[Factor] = []
        wanted = dim
        while same_dim(wanted, 1) is not True:
            if not rest:
                raise NotFusable(f"digits of fewer entries than {dim}")
            digit = rest.pop()
            left = _quotient(wanted, digit.size)
            if left is None:
                high, digit = _parted(digit, wanted)
                rest.append(high)
                left = 1
            group.insert(0, digit)
            wanted = left
        groups.insert(0, tuple(group))
    if rest:
        raise NotFusable("digits of more entries than the tensor has")
    return tuple(groups)


def _view_of(access: Access, sizes: Mapping[str, Dim]) -> View:
    """An access as a view: digits of one axis that follow each other are one."""
    factors: list[Factor] = []
    for digit in (digit for digits in access for digit in digits):
        if factors:
            high, low = factors[-1].index, digit.index
            same = high.axis == low.axis is not None and (high.shift, high.offset, low.offset) == (low.shift, 0, 0)
            if same and low.modulo is not None and low.modulo == digit.size and high.divide == low.divide * digit.size:
                modulo = None if high.modulo is None else high.modulo * digit.size
                factors[-1] = Factor(replace(low, modulo=modulo), factors[-1].size * digit.size)
                continue
        factors.append(digit)
    merged = []
    for factor in factors:
        index = factor.index
        if index.axis is not None and index.shift == 0 and index.divide == 1 and index.modulo == sizes[index.axis]:
            factor = Factor(replace(index, modulo=None), factor.size)
        merged.append(factor)
    return tuple(merged)


def _under(access: Access, shape: Sequence[Dim]) -> Access:
    """The access of an operand that is broadcast to what ``access`` addresses."""
    aligned = access[len(access) - len(shape) :]
    return tuple(() if same_dim(dim, 1) is True else digits for dim, digits in zip(shape, aligned, strict=True))


class _Lowering:
    def __init__(self, name: str, inputs: Mapping[str, TensorType], outputs: Sequence[tuple[str, Term]], form: Form) -> None:
        self.name, self.inputs, self.form = name, inputs, form
        self.body = [term for _, term in outputs]
        self.builder = Builder(name, inputs)
        self.builder.taken |= {*inputs, *(name for name, _ in outputs)}
        roots = _plain([term for _, term in outputs], inputs)
        self.outputs = dict(zip((name for name, _ in outputs), roots, strict=True))
        self.types = infer_types(roots, inputs)
        self.parts = list(walk(roots))
        self.uses = Counter(operand for part in self.parts for operand in part.inputs)
        self.has_product: dict[Term, bool] = {}
        for part in self.parts:
            self.has_product[part] = part.op == "MatMul" or any(self.has_product[i] for i in part.inputs)
        self.attends = any(part.op == "MatMul" and self.softmax_of(part.inputs[0]) is not None for part in self.parts)
        self.single = all(self.is_single(root) for root in roots)
        self.loop: str | None = None
        self.whole: list[str] = []
        self.leading: list[str] = []
        self.unshifted: Term | None = None
        self.done: dict[tuple[Term, Access], Term] = {}

    # Axes

    def shape(self, term: Term) -> tuple[Dim, ...]:
        return self.types[term].shape

    def is_single(self, term: Term) -> bool:
        """Whether a value has one entry."""
        return term.op == "Const" or all(same_dim(dim, 1) is True for dim in self.shape(term))

    def core_of(self, root: Term) -> list[Term]:
        """The path from an output up to what its axes come from: a product, or what else is no movement."""
        path = [root]
        while True:
            term = path[-1]
            if term.op == "MatMul" or not term.inputs:
                return path
            if self.has_product[term]:
                found = next(i for i in term.inputs if self.has_product[i])
                if not traits_of(term.op).rearranges and not is_elementwise(term.op):
                    raise NotFusable(f"{term.op} behind a product")
                path.append(found)
            elif traits_of(term.op).rearranges:
                path.append(term.inputs[0])
            else:
                return path

    def set_axes(self, core: Term) -> Access:
        """Axes for the dimensions of the core."""
        shape, sizes = self.shape(core), self.builder.sizes
        names = ["e", "s"] if self.attends else ["n", "m"]
        access: list[Digits] = []
        for position, size in enumerate(shape):
            from_back = len(shape) - 1 - position
            if same_dim(size, 1) is True:
                access.append(())
                continue
            axis = names[from_back] if from_back < len(names) else f"b{from_back - len(names)}"
            sizes[axis] = size
            self.leading.append(axis)
            access.append(_digit(axis, size))
        if not self.leading and not self.single:
            raise NotFusable("a single entry beside others")
        return tuple(access)

    def forward(self, term: Term, source: Term, access: Access) -> Access:
        """The access of a term from that of the operand that its axes come from."""
        shape = self.shape(term)
        if term.op == "Transpose":
            perm: tuple[int, ...] = term.attr("perm")
            lead = len(shape) - len(perm)
            return access[:lead] + tuple(access[lead + i] for i in perm)
        if term.op in ("Reshape", "Unsqueeze", "Squeeze"):
            return _regrouped([digit for digits in access for digit in digits], shape)
        padded: Access = ((),) * (len(shape) - len(access)) + access
        own = (1,) * (len(shape) - len(self.shape(source))) + self.shape(source)
        if any(same_dim(a, b) is not True for a, b in zip(own, shape, strict=True)):
            raise NotFusable(f"{term.op} broadcasts what stands before it")
        return padded

    def kernel(self) -> Kernel:
        stores: list[tuple[str, Term, Access]] = []
        known: dict[Term, Access] = {}
        first: Access | None = None
        for name, root in self.outputs.items():
            path = self.core_of(root)
            start = next((i for i, term in enumerate(path) if term in known), len(path) - 1)
            core = path[start]
            if core not in known:
                if first is None:
                    first = self.set_axes(core)
                    origin = self.shape(core)
                elif self.shape(core) != origin:
                    raise NotFusable("outputs over different axes")
                known[core] = first
            for position in range(start - 1, -1, -1):
                known[path[position]] = self.forward(path[position], path[position + 1], known[path[position + 1]])
            stores.append((name, root, known[root]))
        if self.attends and "e" in self.builder.sizes:
            self.make_whole("e")
        for name, root, access in stores:
            value = self.named(self.emit(root, access, access), f"{name}_value")
            self.builder.statements.append(Store(name, value, _view_of(access, self.builder.sizes)))
        return self.finished()

    def make_whole(self, axis: str) -> None:
        if axis not in self.whole:
            self.whole.append(axis)

    def new_axis(self, wanted: str, size: Dim, whole: bool) -> str:
        axis, number = wanted, 1
        while axis in self.builder.sizes:
            number += 1
            axis = f"{wanted}{number}"
        self.builder.sizes[axis] = size
        if whole:
            self.whole.append(axis)
        return axis

    def row_axis(self, size: Dim, hint: Access) -> str:
        """The whole axis along which to reduce: that of the tensor which the result goes along with, where it may be whole."""
        if hint and len(hint[-1]) == 1 and hint[-1][0].index.plain and same_dim(hint[-1][0].size, size) is True:
            axis = hint[-1][0].index.axis
            assert axis is not None
            if axis in self.whole:
                return axis
            if (
                axis != self.loop
                and axis == "n"
                and (not any(p.op == "MatMul" for p in self.parts) or self.small(size, _LARGEST_EPILOGUE_ROW))
            ):
                self.make_whole(axis)
                return axis
        for axis in self.whole:
            if axis.startswith("w") and same_dim(self.builder.sizes[axis], size) is True:
                return axis
        return self.new_axis("w", size, whole=True)

    @staticmethod
    def small(size: Dim, most: int) -> bool:
        return isinstance(size, SymDim) or size <= most

    # Values

    def named(self, term: Term, wanted: str) -> str:
        if not variables([term]):
            raise NotFusable("a constant output")
        return self.builder.compute(wanted, term)

    def emit(self, term: Term, access: Access, hint: Access) -> Term:
        """A term's value at an access, as a thread graph over tiles.

        ``hint`` is the access of what the value is broadcast to: the axis along which it was reduced.
        """
        if term.op == "Const":
            return term
        hint = access if access and access[-1] else hint
        key = (term, (*access, *hint[-1:]))
        if key not in self.done:
            found = self.value(term, access, hint)
            shared = self.uses[term] > 1 and not found.is_var and bool(variables([found]))
            self.done[key] = var(self.builder.compute(term.op.lower(), found)) if shared else found
        return self.done[key]

    def value(self, term: Term, access: Access, hint: Access) -> Term:
        if term.is_var:
            return var(self.builder.load(term.name, _view_of(access, self.builder.sizes)))
        if traits_of(term.op).addresses:
            return self.moved(term, access, hint)
        if term.op == "CausalMask":
            return var(self.sees(term, access))
        if traits_of(term.op).monoid is not None:
            return self.reduction(term, access, hint)
        if term.op == "MatMul":
            return self.attention(term, access) if self.softmax_of(term.inputs[0]) else self.product(term, access)
        if not is_elementwise(term.op):
            raise NotFusable(f"{term.op} is neither elementwise nor a movement")
        if term.op == "Cast" and term.attr("to") in FLOATS and self.types[term.inputs[0]].dtype in FLOATS:
            return self.emit(term.inputs[0], access, hint)
        if term.op == "IsInf" and not self.is_rounded(term.inputs[0]):
            raise NotFusable("IsInf of what the kernel computes: it would not overflow in 32 bits")
        operands = [i if i.op == "Const" else self.emit(i, _under(access, self.shape(i)), hint) for i in term.inputs]
        if not variables(operands):
            raise NotFusable("arithmetic of numbers alone")
        return make(term.op, operands, term.attrs)

    def is_rounded(self, term: Term) -> bool:
        """Whether a value has in 32 bits every infinity that it has in its own element types."""
        parts = [part for part in walk([term]) if part.op != "Const"]
        narrow = [part for part in parts if self.types[part].dtype in FLOATS - {DataType.FLOAT}]
        return all(part.is_var or traits_of(part.op).addresses for part in narrow)

    def moved(self, term: Term, access: Access, hint: Access) -> Term:
        (source, *more), axis = term.inputs, term.attr("axis")
        shape = self.shape(source)
        if more:
            return self.joined(term, access, hint)
        if term.op in ("Split", "Slice"):
            bounds: list[tuple[int, Dim]]
            if term.op == "Split":
                sizes = term.attr("sizes")
                bounds = [(axis, sum(sizes[: term.out], start=0))]
            else:
                if any(step != 1 for step in term.attr("steps")):
                    raise NotFusable("a slice with steps")
                bounds = list(zip(term.attr("axes"), term.attr("starts"), strict=True))
            inner = list(access)
            for where, start in bounds:
                inner[where] = _shifted(inner[where], start, shape[where])
            return self.emit(source, tuple(inner), tuple(inner))
        if term.op == "Transpose":
            perm = term.attr("perm")
            lead, turned = len(shape) - len(perm), list(access)
            for position, i in enumerate(perm):
                turned[lead + i] = access[lead + position]
            return self.emit(source, tuple(turned), tuple(turned))
        if term.op == "Expand":
            return self.emit(source, _under(access, shape), access)
        if term.op == "Tile":
            repeats, inner = term.attr("repeats"), list(access)
            for where, times in enumerate(repeats, len(shape) - len(repeats)):
                inner[where] = _regrouped(inner[where], (times, shape[where]))[1]
            return self.emit(source, tuple(inner), tuple(inner))
        if term.op == "Identity":
            return self.emit(source, access, hint)
        inner_access = _regrouped([digit for digits in access for digit in digits], shape)
        return self.emit(source, inner_access, inner_access)

    def sees(self, mask: Term, access: Access) -> str:
        """A boolean tile of which keys queries see, computed from the positions."""

        def position(digits: Digits, sign: int) -> Iterator[tuple[Index, int]]:
            step: Dim = 1
            for digit in reversed(digits):
                if not isinstance(step, int):
                    raise NotFusable(f"a causal mask whose positions are digits of {step}")
                yield digit.index, sign * step
                step = step * digit.size

        query, key = access[-2:]
        terms = (*position(query, 1), *position(key, -1))
        return self.builder.predicate("seen", (Affine(terms, mask.attr("columns") - mask.attr("rows")),))

    def joined(self, term: Term, access: Access, hint: Access) -> Term:
        """A Concat: each part read where it is, and somewhere within it elsewhere."""
        where = term.attr("axis")
        if len(access[where]) != 1 or access[where][0].index.axis is None or access[where][0].index.offset != 0:
            raise NotFusable("a concatenation along part of an axis")
        index = access[where][0].index
        start: Dim = 0
        result: Term | None = None
        for part in term.inputs:
            size = self.shape(part)[where]
            if start == 0 or _quotient(start, size) is not None:
                shift: Dim = 0
            elif isinstance(start, int) and isinstance(size, int):
                shift = -start % size
            else:
                raise NotFusable("a concatenation of parts of unknown sizes")
            # Elsewhere than in its part an operand is read at some place of it: what is read there is not used.
            if not index.plain and (shift != 0 or index.modulo is None or _quotient(index.modulo, size) is None):
                raise NotFusable("a concatenation along part of an axis")
            inner = list(access)
            wrapped = replace(index, shift=index.shift + shift, modulo=size)
            inner[where] = () if same_dim(size, 1) is True else (Factor(wrapped, size),)
            value = self.emit(part, tuple(inner), tuple(inner))
            if result is None:
                result = value
            else:
                within = self.builder.predicate("within", (Affine(((index, 1),), -start),))
                result = make("Where", [var(within), value, result])
            start = start + size
        assert result is not None
        return result

    def total(self, term: Term) -> Term:
        """A reduction of all entries to one: the loop goes over them as they are in memory."""
        (source,), kind = term.inputs, traits_of(term.op).monoid
        assert kind is not None
        size = product(self.shape(source))
        if kind == "min":
            raise NotFusable("an accumulated minimum")
        if self.types[source].dtype not in FLOATS:
            is_flag = source.op == "Cast" and self.types[source.inputs[0]].dtype == DataType.BOOL
            if not is_flag or (kind == "sum" and not (isinstance(size, int) and size <= _LARGEST_COUNT)):
                raise NotFusable(f"{term.op} of integers")
        if self.loop is None:
            self.loop = self.new_axis("k", size, whole=False)
        elif same_dim(self.builder.sizes[self.loop], size) is not True:
            raise NotFusable("reductions of different numbers of entries")
        inner = _regrouped(_digit(self.loop, size), self.shape(source))
        value = self.named(self.emit(source, inner, inner), f"{kind}_part")
        return var(self.builder.accumulate((f"all_{kind}",), kind, (value,))[0])

    def reduction(self, term: Term, access: Access, hint: Access) -> Term:
        if self.single and self.is_single(term) and not self.is_single(term.inputs[0]):
            total = self.total(term)
            size = self.builder.sizes[self.loop or ""]
            return make("Div", [total, self.builder.extent(size)]) if term.op == "ReduceMean" else total
        if term.attr("axes") != (-1,):
            raise NotFusable(f"{term.op} other than along a row")
        (source,) = term.inputs
        size, kind = self.shape(source)[-1], traits_of(term.op).monoid
        assert kind is not None
        outer = access[:-1] if term.attr("keepdims", True) else access
        if same_dim(size, 1) is True:
            return self.emit(source, (*outer, ()), (*outer, ()))
        loop = self.loop
        if loop is not None and self.form.accumulated and not self.attends and same_dim(self.builder.sizes[loop], size) is True:
            inner = (*outer, _digit(loop, size))
            if kind == "min":
                raise NotFusable("an accumulated minimum")
            value = self.named(self.emit(source, inner, inner), f"{kind}_part")
            total = var(self.builder.accumulate((f"row_{kind}",), kind, (value,))[0])
        else:
            axis = self.row_axis(size, hint)
            inner = (*outer, _digit(axis, size))
            value = self.named(self.emit(source, inner, inner), "row")
            total = var(self.builder.add(f"row_{kind}", (kind, value, axis), lambda n: Reduce(n, kind, value, (axis,))))
        return make("Div", [total, self.builder.extent(size)]) if term.op == "ReduceMean" else total

    def operands(self, term: Term, access: Access, inner: Digits) -> tuple[Access, Access]:
        """The accesses of a product's operands."""
        left, right = (self.shape(i) for i in term.inputs)
        rank = max(len(left), len(right))
        padded: Access = ((),) * (rank - len(access)) + access
        batch, last = padded[:-2], padded[-2:]
        if len(left) < 2 or len(right) < 2:
            raise NotFusable("a product with a vector")
        return (
            (*_under(batch, left[:-2]), last[0], inner),
            (*_under(batch, right[:-2]), inner, last[1]),
        )

    def product(self, term: Term, access: Access) -> Term:
        left, right = term.inputs
        if self.has_product[right]:
            raise NotFusable("the right operand of a product is one")
        size = self.shape(left)[-1]
        if self.attends or self.has_product[left]:
            axis = self.new_axis("d" if self.attends else "r", size, whole=True)
            first, second = self.operands(term, access, _digit(axis, size))
            rows, columns = self.emit(left, first, first), self.emit(right, second, second)
            if term is self.unshifted:
                columns, _ = self.parted(columns)
            return var(self.builder.dot("dot", self.named(rows, "left"), self.named(columns, "right"), axis))
        if self.loop is None:
            self.loop = self.new_axis("k", size, whole=False)
        elif same_dim(self.builder.sizes[self.loop], size) is not True:
            raise NotFusable("products of different inner sizes")
        first, second = self.operands(term, access, _digit(self.loop, size))
        factor: Term | None = None
        if self.form.accumulated:
            left, factor = self.row_factor(left)
        a = self.named(self.emit(left, first, first), "left")
        b = self.named(self.emit(right, second, second), "right")
        part = self.builder.dot("part", a, b, self.loop)
        total = var(self.builder.accumulate(("total",), "sum", (part,))[0])
        if factor is None:
            return total
        return make("Mul", [total, self.emit(factor, (*first[:-1], ()), first)])

    def row_factor(self, left: Term) -> tuple[Term, Term | None]:
        """A left operand as what differs along the row times what does not, which may stand behind the product."""
        if left.op == "Cast" and left.attr("to") in FLOATS:
            return self.row_factor(left.inputs[0])
        if left.op not in ("Mul", "Div") or all(i.op == "Const" for i in left.inputs):
            return left, None
        a, b = left.inputs
        if self.is_row_statistic(b):
            rest, factor = self.row_factor(a)
            return rest, self.combined(left.op, factor, b)
        if self.is_row_statistic(a) and left.op == "Mul":
            rest, factor = self.row_factor(b)
            return rest, self.combined("Mul", factor, a)
        rest, factor = self.row_factor(a)
        if factor is not None:
            return self.typed(make(left.op, [rest, b])), factor
        if left.op == "Mul":
            rest, factor = self.row_factor(b)
            if factor is not None:
                return self.typed(make("Mul", [a, rest])), factor
        return left, None

    def combined(self, op: str, factor: Term | None, more: Term) -> Term:
        if factor is None and op == "Mul":
            return more
        return self.typed(make(op, [const(1.0) if factor is None else factor, more]))

    def typed(self, term: Term) -> Term:
        """A term made on the way; its operands' floats may differ, since casts among them are left out."""
        shapes = [self.types[i] for i in term.inputs if i.op != "Const"]
        widest = max(shapes, key=lambda t: (t.rank, len([d for d in t.shape if d != 1])))
        self.types.setdefault(term, widest)
        self.has_product.setdefault(term, False)
        return term

    def is_row_statistic(self, term: Term) -> bool:
        if term.op == "Const" or not self.shape(term) or same_dim(self.shape(term)[-1], 1) is not True:
            return False
        return any(traits_of(part.op).monoid is not None for part in walk([term]))

    # Attention

    def softmax_of(self, weights: Term) -> tuple[Term, bool] | None:
        """The scores whose softmax a term is, and whether rows without a number count as zero."""
        guarded = False
        while True:
            if weights.op == "Cast" and weights.attr("to") in FLOATS:
                weights = weights.inputs[0]
            elif weights.op == "Where" and weights.inputs[0] is make("IsNaN", [weights.inputs[2]]):
                if weights.inputs[1] is not const(0.0):
                    return None
                guarded, weights = True, weights.inputs[2]
            else:
                break
        if weights.op == "Softmax" and weights.attr("axis", -1) == -1:
            return weights.inputs[0], guarded
        if weights.op == "Div" and weights.inputs[0].op == "Exp":
            powers, total = weights.inputs
            if total.op == "ReduceSum" and total.inputs[0] is powers and total.attr("axes") == (-1,):
                return powers.inputs[0], guarded
        return None

    def attention(self, term: Term, access: Access) -> Term:
        found = self.softmax_of(term.inputs[0])
        assert found is not None
        (scores, guarded), values = found, term.inputs[1]
        if self.loop is not None or self.has_product[values]:
            raise NotFusable("two attentions in one kernel, or one of computed values")
        size = self.shape(scores)[-1]
        self.loop = self.new_axis("t", size, whole=False)
        first, second = self.operands(term, access, _digit(self.loop, size))
        mask, scores = _causal(scores)
        self.unshifted = self.product_within(scores)
        scored = self.named(self.emit(scores, first, first), "scores")
        # Weights sum to one, so what every value has is added once, behind the sum.
        value, every = self.parted(self.emit(values, second, second))
        seen = None if mask is None else self.sees(mask, first)
        operands = (scored, self.named(value, "value"))
        _, total, weighted = self.builder.accumulate(("shift", "total", "weighted"), "softmax", operands, seen)
        share = self.named(make("Reciprocal", [var(total)]), "share")  # one division a row
        attended = make("Mul", [var(weighted), var(share)])
        attended = attended if every is None else make("Add", [attended, every])
        return make("Where", [make("IsNaN", [attended]), const(0.0), attended]) if guarded else attended

    def product_within(self, scores: Term) -> Term | None:
        """The product of queries and keys, where adding a number to a row of it adds one to the row of the scores.

        A softmax does not see that: what is added to every key adds the same to all scores of a query.
        """
        outputs = self.outputs.values()
        while scores.op != "MatMul":
            if self.uses[scores] > 1 or scores in outputs:
                return None
            within = [i for i in scores.inputs if self.has_product[i]]
            place = scores.inputs.index(within[0]) if len(within) == 1 else None
            passes = traits_of(scores.op).rearranges or scores.op in ("Add", "Sub")
            passes |= scores.op == "Cast" and scores.attr("to") in FLOATS
            passes |= scores.op == "Mul" and all(self.is_single(i) for i in scores.inputs if i not in within)
            passes |= scores.op == "Div" and place == 0 and self.is_single(scores.inputs[1])
            passes |= scores.op == "Where" and place == 1 and scores.inputs[2] is const(-math.inf)
            if not passes or place is None:
                return None
            scores = scores.inputs[place]
        return None if self.uses[scores] > 1 or scores in outputs else scores

    def parted(self, value: Term) -> tuple[Term, Term | None]:
        """A value as what differs along the loop, and what is the same in all iterations and added to it."""
        phases = self.block().phases
        definitions = {s.name: s.term for s in self.builder.statements if isinstance(s, Compute)}
        summands, differ, same = [value], list[Term](), list[Term]()
        while summands:
            part = summands.pop(0)
            term = definitions.get(part.name, part) if part.is_var else part
            if term.op == "Add":
                summands = [*term.inputs, *summands]
            elif any(phases[leaf.name] == "loop" for leaf in variables([part])):
                differ.append(part)
            else:
                same.append(part)
        if not differ or not same:
            return value, None
        return _sum(differ), _sum(same)

    # The end

    def finished(self) -> Kernel:
        used = {v.name for v in variables(self.body)}
        inputs = {name: type_ for name, type_ in self.inputs.items() if name in used}
        types = infer_types(self.body, self.inputs)
        outputs = [Tensor(name, types[term]) for name, term in zip(self.outputs, self.body, strict=True)]
        block = _merged(_without_idle(self.block()))
        kernel = Kernel(self.name, tuple(Tensor(n, t) for n, t in inputs.items()), tuple(outputs), tuple(self.body), (block,))
        kernel.check()
        return kernel

    def block(self) -> Block:
        sizes = self.builder.sizes
        if self.loop is None and not self.whole and len(self.leading) > 1 and self.small(sizes[self.leading[-1]], _LARGEST_ROW):
            self.make_whole(self.leading[-1])
        batch = [axis for axis in self.leading if axis.startswith("b")]
        inner = [axis for axis in sizes if axis not in self.leading]
        attention = [*batch, "s", *(a for a in inner if a != "t"), "t", "e"]
        order = attention if self.attends else [*batch, "m", *inner, "n"]
        axes = tuple((axis, sizes[axis]) for axis in order if axis in sizes)
        grid = tuple(axis for axis, _ in axes if axis in self.leading and axis not in self.whole)
        if not grid and not (self.single and self.loop is not None):
            raise NotFusable("no axis to cut into blocks")
        return Block(self.name, axes, grid, self.loop, tuple(self.builder.statements))


def _sum(parts: Sequence[Term]) -> Term:
    total = parts[0]
    for part in parts[1:]:
        total = make("Add", [total, part])
    return total


def _causal(scores: Term) -> tuple[Term | None, Term]:
    """The mask that makes what it hides of scores -∞, where it is causal, and the scores without."""
    inner = scores
    while inner.op == "Cast" and inner.attr("to") in FLOATS:
        inner = inner.inputs[0]
    if inner.op != "Where" or inner.inputs[2] is not const(-math.inf):
        return None, scores
    mask = inner.inputs[0]
    while mask.op in ("Unsqueeze", "Expand"):
        mask = mask.inputs[0]
    return (mask, inner.inputs[1]) if mask.op == "CausalMask" else (None, scores)


def _shifted(digits: Digits, start: Dim, size: Dim) -> Digits:
    """The digits of a dimension of which a part from ``start`` on is addressed."""
    if not digits:
        return (Factor(Index(None, offset=start), size),)
    first, *rest = digits
    low = product([digit.size for digit in rest])
    offset, whole = _quotient(start, low) if start != 0 else 0, _quotient(size, low)
    if offset is None or whole is None:
        raise NotFusable(f"a part from {start} of {size} entries, read {low} a row")
    return (Factor(replace(first.index, offset=first.index.offset + offset), whole), *rest)


def _plain(roots: Sequence[Term], inputs: Mapping[str, TensorType]) -> list[Term]:
    """Terms without composite operators; Softmax stays where a product takes it."""
    current = list(roots)
    while True:
        types = infer_types(current, inputs)
        products = [part.inputs[0] for part in walk(current) if part.op == "MatMul"]
        kept = {part for root in products for part in _guarded(root)}
        done: dict[Term, Term] = {}
        for part in walk(current):
            operands = [done[i] for i in part.inputs]
            replacement = None
            if part.inputs and operands == list(part.inputs) and not (part.op == "Softmax" and part in kept):
                replacement = _expanded(part, types)
            if replacement is not None:
                done[part] = replacement
            else:
                done[part] = make(part.op, operands, part.attrs, part.out) if part.inputs else part
        following = [done[root] for root in current]
        if following == current:
            return current
        current = following


def _guarded(weights: Term) -> list[Term]:
    found = [weights]
    while found[-1].op in ("Cast", "Where") and found[-1].inputs:
        found.append(found[-1].inputs[-1])
    return found


def _expanded(part: Term, types: Mapping[Term, TensorType]) -> Term | None:
    """One step from a composite operator to plainer ones; ``None`` for others."""
    record = get_operator(part.op)
    if record.elementwise:
        return None
    if part.op == "Gemm":
        return _gemm(part)
    if part.op == "BatchNormalization" or not record.composite:
        return plainer(part)
    beside = [types[i].dtype for i in part.inputs if i.op != "Const"]
    operands = [TensorType(beside[0] if beside else DataType.FLOAT, ()) if i.op == "Const" else types[i] for i in part.inputs]
    roots = record.decompose(part.attrs, operands)
    return substitute(roots[part.out], {f"x{i}": operand for i, operand in enumerate(part.inputs)})


def _gemm(part: Term) -> Term:
    a, b = part.inputs[:2]
    a = make("Transpose", [a], {"perm": (1, 0)}) if part.attr("transA", False) else a
    b = make("Transpose", [b], {"perm": (1, 0)}) if part.attr("transB", False) else b
    result = make("MatMul", [a, b])
    alpha, beta = part.attr("alpha", 1.0), part.attr("beta", 1.0)
    result = result if alpha == 1.0 else make("Mul", [result, const(alpha)])
    if len(part.inputs) == 2:
        return result
    bias = part.inputs[2] if beta == 1.0 else make("Mul", [part.inputs[2], const(beta)])
    return make("Add", [result, bias])


def _without_idle(block: Block) -> Block:
    """The block without statements that no output needs."""
    kept: list[Statement] = []
    needed: set[str] = set()
    for statement in reversed(block.statements):
        if isinstance(statement, Store) or not needed.isdisjoint(statement_names(statement)):
            needed |= set(statement_operands(statement))
            kept.insert(0, statement)
    return replace(block, statements=tuple(kept))


def _merged(block: Block) -> Block:
    """The block with neighbouring grid axes that every view has side by side, or not at all, as one: fewer, fuller tiles."""
    for first, second in zip(block.grid, block.grid[1:], strict=False):
        joined = _joined(block, first, second)
        if joined is not None:
            return _merged(joined)
    return block


def _joined(block: Block, first: str, second: str) -> Block | None:
    statements = []
    for statement in block.statements:
        indices = [i for c in statement.conditions for i, _ in c.terms] if isinstance(statement, Predicate) else []
        if any(index.axis in (first, second) for index in indices):
            return None
        if isinstance(statement, Load | Store):
            factors = list(statement.view)
            places = [i for i, f in enumerate(factors) if f.index.axis in (first, second)]
            if places:
                plain = all(factors[i].index.plain for i in places)
                if not plain or [factors[i].index.axis for i in places] != [first, second] or places[1] != places[0] + 1:
                    return None
                size = factors[places[0]].size * factors[places[1]].size
                factors[places[0] : places[1] + 1] = [Factor(Index(second), size)]
                statement = replace(statement, view=tuple(factors))
        statements.append(statement)
    sizes = block.sizes
    axes = tuple((name, sizes[first] * sizes[second] if name == second else size) for name, size in block.axes if name != first)
    return Block(block.name, axes, tuple(a for a in block.grid if a != first), block.loop, tuple(statements))
