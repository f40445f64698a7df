"""Constructors of graph-defined kernels: row kernels, products and attention.

Each takes the types of its inputs, what it computes as terms over them (the kernel's body) and how the terms fall into
prologue, loop and epilogue. Operands are laid under the axes by their shapes, as ONNX broadcasts them; a tensor that is to be
read in place some other way (a head within a packed projection, a transposed weight) has a layout of its own.

Row kernels: a grid over the rows, a whole row in a tile. Products: C = epilogue(Σ_k prologue(A)·W) for one or more W, with
sums over rows of A accumulated beside (Mirage section 2, RMSNorm and MatMul). Attention: online softmax over the tiles of the
keys (Milakov and Gimelshein 2018; Dao et al. 2022).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.blocks.block import (
    Accumulate,
    Affine,
    Block,
    Compute,
    Dot,
    Extent,
    Index,
    Kernel,
    Load,
    Predicate,
    Reduce,
    Statement,
    Store,
    Tensor,
    View,
    product,
    view,
)
from mugraph.ops import REGISTRY, get_operator
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, TensorType, same_dim
from mugraph.terms.term import Term, const, make, substitute, var, variables, walk

__all__ = ["Builder", "Layout", "NotFusable", "Operand", "Product", "attention", "causal", "plainer", "product_kernel", "rows"]

Layout = Sequence[str | Index | tuple[str | Index, Dim]]
"""How a tensor is read in place: what :func:`mugraph.blocks.block.view` takes."""

X, SCORES, ATTENDED = var("x"), var("qk"), var("attended")
"""What the terms of an attention kernel stand on."""

_REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "sum", "ReduceMax": "max", "ReduceMin": "min"}


class NotFusable(Exception):
    """A region that a constructor does not take; the message is the reason."""


def plainer(term: Term) -> Term | None:
    """One step from a normalisation or composite operator to plainer ones; ``None`` for others."""
    if term.op in ("LayerNormalization", "RMSNormalization", "Softmax"):
        if term.attr("axis", -1) != -1:
            raise NotFusable(f"{term.op} over more than the last axis")
        x = term.inputs[0]
        if term.op == "Softmax":
            powers = make("Exp", [make("Sub", [x, make("ReduceMax", [x], {"axes": (-1,), "keepdims": True})])])
            return make("Div", [powers, make("ReduceSum", [powers], {"axes": (-1,), "keepdims": True})])
        mean = {"axes": (-1,), "keepdims": True}
        if term.op == "LayerNormalization":
            x = make("Sub", [x, make("ReduceMean", [x], mean)])
        variance = make("ReduceMean", [make("Mul", [x, x])], mean)
        x = make("Div", [x, make("Sqrt", [make("Add", [variance, const(term.attr("epsilon", 1e-5))])])])
        for op, parameter in zip(("Mul", "Add"), term.inputs[1:], strict=False):
            x = make(op, [x, parameter])
        return x
    operator = REGISTRY.get(term.op)
    if operator is None or not operator.composite or operator.elementwise:
        return None
    unknown = TensorType(DataType.FLOAT, ())
    try:
        parts = operator.decompose(term.attrs, [unknown] * len(term.inputs))
    except (ShapeError, ValueError, IndexError):  # it depends on the operands' shapes, so it is not of one row
        return None
    return substitute(parts[term.out], {f"x{i}": operand for i, operand in enumerate(term.inputs)})


class Builder:
    """A block graph in the making: statements by name, equal ones once."""

    def __init__(self, name: str, types: Mapping[str, TensorType]) -> None:
        self.name, self.types = name, types
        self.sizes: dict[str, Dim] = {}
        self.statements: list[Statement] = []
        self.taken: set[str] = set()
        self.known: dict[object, str] = {}

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}{number}"
        self.taken.add(name)
        return name

    def add(self, wanted: str, key: object, make_statement: object) -> str:
        """The value of a statement, which is made unless an equal one is there."""
        assert callable(make_statement)
        if key not in self.known:
            name = self.fresh(wanted)
            self.statements.append(make_statement(name))
            self.known[key] = name
        return self.known[key]

    def load(self, tensor: str, factors: View) -> str:
        return self.add(f"{tensor}_tile", ("load", tensor, factors), lambda name: Load(name, tensor, factors))

    def compute(self, wanted: str, term: Term) -> str:
        return term.name if term.is_var else self.add(wanted, term, lambda name: Compute(name, term))

    def dot(self, wanted: str, left: str, right: str, over: str) -> str:
        return self.add(wanted, ("dot", left, right, over), lambda name: Dot(name, left, right, over))

    def predicate(self, wanted: str, conditions: tuple[Affine, ...]) -> str:
        return self.add(wanted, ("holds", conditions), lambda name: Predicate(name, conditions))

    def extent(self, size: Dim) -> Term:
        return const(float(size)) if isinstance(size, int) else var(self.add("size", size, lambda name: Extent(name, size)))

    def accumulate(self, names: Sequence[str], monoid: str, operands: Sequence[str], keep: str | None = None) -> tuple[str, ...]:
        named = tuple(self.fresh(name) for name in names)
        self.statements.append(Accumulate(named, monoid, tuple(operands), keep))
        return named

    def broadcast_view(self, name: str, axes: Sequence[str], groups: Mapping[str, Sequence[Dim]] | None = None) -> View:
        """A tensor laid under axes as ONNX broadcasts it: from the right, size 1 against anything.

        ``groups`` are the dimensions that an axis merges.
        """
        shape = list(self.types[name].shape)
        factors: list[tuple[str | Index, Dim]] = []
        for axis in reversed(axes):
            dims = list((groups or {}).get(axis, (self.sizes[axis],)))
            mine = [shape.pop() if shape else 1 for _ in dims][::-1]
            if all(same_dim(a, b) is True for a, b in zip(mine, dims, strict=True)):
                factors.append((axis, self.sizes[axis]))
            elif any(same_dim(d, 1) is not True for d in mine):
                raise NotFusable(f"{name} {self.types[name]} does not lie under {axis} of {self.sizes[axis]}")
        if any(same_dim(d, 1) is not True for d in shape):
            raise NotFusable(f"{name} {self.types[name]} has more dimensions than {', '.join(axes)}")
        return view(self.sizes, *reversed(factors))

    def emit(self, root: Term, tiles: Mapping[str, str], last: str | None, wanted: str) -> str:
        """Computes a term over tiles: elementwise groups, and reductions along the last axis, a whole one.

        Args:
            root: over variables that ``tiles`` maps to values.
            last: the axis that the terms' last one is.
        """
        root = self.plain(root)
        parts = list(walk([root]))
        uses = Counter(operand for part in parts for operand in part.inputs)
        done: dict[Term, Term] = {}
        for part in parts:
            if part.is_var:
                if part.name not in tiles:
                    raise NotFusable(f"no operand {part.name}")
                done[part] = var(tiles[part.name])
            elif part.op == "Const":
                done[part] = part
            elif part.op in _REDUCTIONS:
                done[part] = self.reduction(part, done[part.inputs[0]], last, wanted)
            elif get_operator(part.op).elementwise:
                term = make(part.op, [done[i] for i in part.inputs], part.attrs, part.out)
                shared = term in self.known or (uses[part] > 1 and bool(variables([term])))
                done[part] = var(self.compute(wanted, term)) if shared else term
            else:
                raise NotFusable(f"{part.op} among elementwise operators")
        return self.compute(wanted, done[root])

    def plain(self, root: Term) -> Term:
        """A term without composite operators."""
        while True:
            for part in walk([root]):
                replacement = None if part.is_var or part.op == "Const" else plainer(part)
                if replacement is not None:
                    break
            else:
                return root
            done: dict[Term, Term] = {part: replacement}
            for other in walk([root]):
                if other not in done:
                    done[other] = (
                        make(other.op, [done[i] for i in other.inputs], other.attrs, other.out) if other.inputs else other
                    )
            root = done[root]

    def reduction(self, part: Term, operand: Term, last: str | None, wanted: str) -> Term:
        if last is None or part.attr("axes") != (-1,) or not part.attr("keepdims"):
            raise NotFusable(f"{part.op} other than along a whole row, kept as a dimension")
        kind = _REDUCTIONS[part.op]
        value = self.compute(wanted, operand)
        total = var(self.add(f"{wanted}_{kind}", (kind, value), lambda name: Reduce(name, kind, value, (last,))))
        return make("Div", [total, self.extent(self.sizes[last])]) if part.op == "ReduceMean" else total

    def block(self, grid: Sequence[str], loop: str | None) -> Block:
        return Block(self.name, tuple(self.sizes.items()), tuple(grid), loop, tuple(self.statements))


def _tensors(types: Mapping[str, TensorType]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, type_) for name, type_ in types.items())


def _finished(kernel: Kernel) -> Kernel:
    kernel.check()
    return kernel


def _merged(shape: Shape, operands: Sequence[Shape]) -> list[list[Dim]]:
    """Neighbouring dimensions that every operand has, or broadcasts, together are one axis."""

    def present(operand: Shape, position: int) -> bool:
        at = position - len(shape) + len(operand)
        return at >= 0 and (same_dim(operand[at], 1) is not True or same_dim(shape[position], 1) is True)

    groups: list[list[Dim]] = []
    for position, dim in enumerate(shape):
        together = position > 0 and all(present(o, position) == present(o, position - 1) for o in operands)
        if together:
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _leading(builder: Builder, groups: Sequence[Sequence[Dim]], names: Sequence[str]) -> dict[str, Sequence[Dim]]:
    """Axes for groups of dimensions, named from the back."""
    axes: dict[str, Sequence[Dim]] = {}
    for number, group in enumerate(groups):
        from_back = len(groups) - 1 - number
        axis = names[from_back] if from_back < len(names) else f"b{from_back - len(names)}"
        axes[axis] = list(group)
        builder.sizes[axis] = product(group)
    return axes


def rows(name: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, tuple[TensorType, Term]]) -> Kernel:
    """Elementwise operators and reductions along the last axis, a row in a tile.

    Args:
        name: of the kernel.
        inputs: every input broadcasts to the outputs' shape.
        outputs: type and term over the inputs. LayerNormalization, RMSNormalization, Softmax and composite operators may be
            in the terms, ReduceSum, ReduceMean, ReduceMax and ReduceMin along the last axis kept as a dimension.

    Raises:
        NotFusable: the terms hold another operator, or an input does not broadcast.
    """
    shape = next(iter(outputs.values()))[0].shape
    if not shape or any(type_.shape != shape for type_, _ in outputs.values()):
        raise NotFusable("outputs of different shapes, or scalars")
    builder = Builder(name, inputs)
    groups = _leading(builder, _merged(shape[:-1], [_outer(t.shape) for t in inputs.values()]), ("m",))
    builder.sizes["n"] = shape[-1]
    axes = [*groups, "n"]
    used = [v.name for v in variables([term for _, term in outputs.values()])]
    tiles = {x: builder.load(x, builder.broadcast_view(x, axes, groups)) for x in inputs if x in used}
    for tensor, (_, term) in outputs.items():
        value = builder.emit(term, tiles, "n", f"{tensor}_value")
        builder.statements.append(Store(tensor, value, view(builder.sizes, *axes)))
    body = tuple(term for _, term in outputs.values())
    types = {tensor: type_ for tensor, (type_, _) in outputs.items()}
    return _finished(Kernel(name, _tensors(inputs), _tensors(types), body, (builder.block(list(groups), None),)))


def _outer(shape: Shape) -> Shape:
    return shape[:-1] if shape else ()


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a product kernel.

    Attributes:
        name: what the epilogue calls it.
        left: elementwise term of the left operand, over inputs that broadcast to [..., m, k].
        right: of the right operand, over inputs that broadcast to [..., k, n].
        then: where given, the product is multiplied once more after the loop, by this term over inputs that broadcast to
            [r, n]; its own columns are then r, a whole axis (LoRA).
    """

    name: str
    left: Term
    right: Term
    then: Term | None = None


def product_kernel(
    name: str,
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, tuple[TensorType, Term, Term]],
    products: Sequence[Product],
    sums: Mapping[str, Term] | None = None,
    transposed: Sequence[str] = (),
    layouts: Mapping[str, Layout] | None = None,
) -> Kernel:
    """C = epilogue(Σ_k prologue(A)·W, ...), the products sharing m, n and k.

    Args:
        name: of the kernel.
        inputs: types of all inputs.
        outputs: type [..., m, n], what it is (the body, over the inputs) and the epilogue: an elementwise term over products,
            sums, ``size_k`` (the number of terms) and inputs that broadcast to the output.
        products: at least one.
        sums: name to an elementwise term over inputs that broadcast to [..., m, k], summed up along k beside the products.
        transposed: inputs whose last two dimensions are exchanged in memory.
        layouts: inputs and outputs that are read in place in another way, over the axes b0, b1, ..., m, k, n and r.

    Raises:
        NotFusable: an operand does not fit.
    """
    sums, layouts = sums or {}, layouts or {}
    shape = next(iter(outputs.values()))[0].shape
    builder = Builder(name, inputs)
    lefts = _names([p.left for p in products] + list(sums.values()))
    rights = _names([p.right for p in products])
    after = [n for n in _names([epilogue for *_, epilogue in outputs.values()]) if n in inputs]
    operands = [_outer(inputs[n].shape) for n in [*lefts, *after] if n not in layouts]
    operands += [(*inputs[n].shape[:-2], 1) for n in rights if n not in layouts]
    groups = _leading(builder, _merged(shape[:-1], operands), ("m",))
    batch = [axis for axis in groups if axis != "m"]
    inners = [inputs[n].shape[-1] for n in lefts if n not in layouts and inputs[n].rank]
    inners += [inputs[n].shape[-1 if n in transposed else -2] for n in rights if n not in layouts and inputs[n].rank > 1]
    if not inners:
        raise NotFusable("no operand tells the inner size")
    builder.sizes["k"] = inner = next((size for size in inners if same_dim(size, 1) is not True), 1)
    ranks: dict[str, str] = {}
    for part in products:
        if part.then is not None:
            ranks[part.name] = f"r{len(ranks) or ''}"
            first = _names([part.then])[0]
            builder.sizes[ranks[part.name]] = inputs[first].shape[-1 if first in transposed else -2]
    builder.sizes["n"] = shape[-1]

    def tiles(names: Sequence[str], axes: Sequence[str]) -> dict[str, str]:
        loaded = {}
        for operand in names:
            if operand in layouts:
                factors = view(builder.sizes, *layouts[operand])
            elif operand in transposed:
                factors = builder.broadcast_view(operand, [*axes[:-2], axes[-1], axes[-2]], groups)
            else:
                factors = builder.broadcast_view(operand, axes, groups)
            loaded[operand] = builder.load(operand, factors)
        return loaded

    def emit(term: Term, axes: Sequence[str], wanted: str) -> str:
        return builder.emit(term, tiles(_names([term]), axes), None, wanted)

    parts: dict[str, str] = {}
    for part in products:
        left = emit(part.left, [*groups, "k"], "left")
        right = emit(part.right, [*batch, "k", ranks.get(part.name, "n")], "right")
        parts[part.name] = builder.dot(f"{part.name}_part", left, right, "k")
    for label, term in sums.items():
        parts[label] = emit(term, [*groups, "k"], f"{label}_part")
    named = {label: builder.accumulate([label], "sum", [value])[0] for label, value in parts.items()}
    for part in products:
        if part.then is not None:
            right = emit(part.then, [ranks[part.name], "n"], "then")
            named[part.name] = builder.dot(f"{part.name}_then", named[part.name], right, ranks[part.name])
    for tensor, (_, _, epilogue) in outputs.items():
        closed = substitute(epilogue, {"size_k": builder.extent(inner)}) if "size_k" in _names([epilogue]) else epilogue
        known = {**{n: n for n in builder.taken}, **named, **tiles([n for n in _names([closed]) if n in inputs], [*groups, "n"])}
        value = builder.emit(closed, known, None, f"{tensor}_value")
        builder.statements.append(Store(tensor, value, view(builder.sizes, *layouts.get(tensor, [*groups, "n"]))))
    body = tuple(term for _, term, _ in outputs.values())
    types = {tensor: type_ for tensor, (type_, _, _) in outputs.items()}
    return _finished(Kernel(name, _tensors(inputs), _tensors(types), body, (builder.block([*groups, "n"], "k"),)))


def _names(terms: Sequence[Term]) -> list[str]:
    return [v.name for v in variables(terms)]


@dataclass(frozen=True, slots=True)
class Operand:
    """The queries, keys or values of an attention kernel.

    Attributes:
        tensor: an input.
        layout: how it is read, over the batch axes, ``s`` (queries) or ``t`` (keys), ``d`` (a head) or ``e`` (a value).
        term: of the variable ``x``, the tile, of other inputs, and of what stands below; may reduce along the last axis.
        tiles: name, tensor and layout of further tiles: the other half of a rotary embedding.
        predicates: name and conditions of boolean tiles: which half it is.
    """

    tensor: str
    layout: Layout
    term: Term = X
    tiles: tuple[tuple[str, str, Layout], ...] = ()
    predicates: tuple[tuple[str, tuple[Affine, ...]], ...] = ()


def attention(
    name: str,
    inputs: Mapping[str, TensorType],
    output: tuple[str, TensorType, Term],
    sizes: Mapping[str, Dim],
    query: Operand,
    key: Operand,
    value: Operand,
    layouts: Mapping[str, Layout],
    scores: Term = SCORES,
    epilogue: Term = ATTENDED,
    keep: Sequence[Affine] = (),
) -> Kernel:
    """softmax(scores(Q·Kᵀ))·V by online softmax over tiles of the keys.

    Args:
        name: of the kernel.
        inputs: types of all inputs.
        output: name, type and what it is: the body, over the inputs.
        sizes: batch axes (any names, outermost first), then ``s``, ``t``, ``d`` and ``e``.
        query, key, value: operands. Heads that share keys are two batch axes of which the keys have one.
        layouts: of the output, and of other inputs that do not simply broadcast.
        scores: elementwise term over ``qk`` and inputs laid under the batch axes, s and t: scale, additive mask, bias.
        epilogue: elementwise term over ``attended`` and inputs laid under the batch axes, s and e.
        keep: conditions on s and t (and batch axes) without which a score counts as -∞: causal, windows. Tiles of keys
            that they exclude altogether are not visited.

    Raises:
        NotFusable: a term holds an operator that is not elementwise.
    """
    builder = Builder(name, inputs)
    batch = [axis for axis in sizes if axis not in ("s", "t", "d", "e")]
    builder.sizes = {axis: sizes[axis] for axis in (*batch, "s", "d", "t", "e")}

    def tile(operand: str, axes: Sequence[str]) -> str:
        if operand in layouts:
            return builder.load(operand, view(builder.sizes, *layouts[operand]))
        return builder.load(operand, builder.broadcast_view(operand, axes))

    def operand_tile(operand: Operand, rows_axis: str, last: str, wanted: str) -> str:
        row = [*batch, rows_axis, last]
        known = {"x": builder.load(operand.tensor, view(builder.sizes, *operand.layout))}
        for label, tensor, layout in operand.tiles:
            known[label] = builder.load(tensor, view(builder.sizes, *layout))
        for label, conditions in operand.predicates:
            known[label] = builder.predicate(label, conditions)
        known |= {n: tile(n, row) for n in _names([operand.term]) if n not in known}
        return builder.emit(operand.term, known, last, wanted)

    q = operand_tile(query, "s", "d", "query")
    k = operand_tile(key, "t", "d", "key")
    qk = builder.dot("qk", q, k, "d")
    scored = builder.emit(
        scores, {"qk": qk, **{n: tile(n, [*batch, "s", "t"]) for n in _names([scores]) if n != "qk"}}, None, "scores"
    )
    kept = builder.predicate("keep", tuple(keep)) if keep else None
    v = operand_tile(value, "t", "e", "value")
    _, total, weighted = builder.accumulate(("shift", "total", "weighted"), "softmax", (scored, v), kept)
    attended = builder.compute("attended", make("Div", [var(weighted), var(total)]))
    others = {n: tile(n, [*batch, "s", "e"]) for n in _names([epilogue]) if n != "attended"}
    result = builder.emit(epilogue, {"attended": attended, **others}, "e", "result")
    tensor, type_, body = output
    builder.statements.append(Store(tensor, result, view(builder.sizes, *layouts[tensor])))
    block = builder.block([*batch, "s"], "t")
    return _finished(Kernel(name, _tensors(inputs), (Tensor(tensor, type_),), (body,), (block,)))


def causal(queries: Dim, keys: Dim) -> Affine:
    """A query sees the keys up to its own position, the last query all of them."""
    return Affine(((Index("s"), 1), (Index("t"), -1)), keys - queries)
