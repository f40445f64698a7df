"""Sample types for equations that come without: unification of dimensions.

Every dimension starts as a symbol of its own; what the operators of both sides demand binds symbols to each other, to sums
(concatenation), multiples (groups) or numbers. What is left is the most general typing of its ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import (
    DataType,
    Dim,
    Shape,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    evaluate_dim,
    plain_symbol,
    symbol,
)
from mugraph.terms.term import Term, substitute, variables, walk
from rules_db.trust.rule import Side, dim_symbols

__all__ = ["Dimensions", "Typing", "infer_typing", "output_shape", "readable_symbols"]


class Dimensions:
    """Dimension symbols and what the operators met so far bind them to."""

    def __init__(self) -> None:
        self.bound: dict[str, Dim] = {}
        self._count = 0

    def copy(self) -> Dimensions:
        twin = Dimensions()
        twin.bound, twin._count = dict(self.bound), self._count
        return twin

    def fresh(self) -> SymDim:
        """A symbol that stands for any size; no text can name it."""
        self._count += 1
        return symbol(f"?{self._count}")

    def shape(self, rank: int) -> Shape:
        return tuple(self.fresh() for _ in range(rank))

    def resolve(self, dim: Dim) -> Dim:
        while isinstance(dim, SymDim) and not dim.symbols().isdisjoint(self.bound):
            dim = evaluate_dim(dim, self.bound)
        return dim

    def resolved(self, shape: Sequence[Dim]) -> Shape:
        return tuple(self.resolve(d) for d in shape)

    def equal(self, a: Dim, b: Dim) -> None:
        """Makes two dimensions equal. Raises ShapeError where no positive sizes do that."""
        a, b = self.resolve(a), self.resolve(b)
        difference = a - b
        if isinstance(difference, int):
            if difference:
                raise ShapeError(f"a dimension would be {_show(a)} and {_show(b)}")
            return
        sides = [SymDim.make({m: sign * c for m, c in difference.terms if sign * c > 0}) for sign in (1, -1)]
        if 0 in sides:
            raise ShapeError(f"a dimension would be {_show(a)} and {_show(b)}")
        for own, other in (sides, sides[::-1]) if _is_fresh(sides[0]) else (sides[::-1], sides):
            if (name := plain_symbol(own)) is not None:
                if isinstance(other, SymDim) and name in other.symbols():
                    break
                self.bound[name] = other
                return
        self._pair_up(*sides)

    def _pair_up(self, a: Dim, b: Dim) -> None:
        """Sums without a common symbol, such as p + q = r + s: the first symbols are made equal, then the rest."""
        linear = [_linear(side) for side in (a, b)]
        if isinstance(a, int) or isinstance(b, int):
            number, side, symbols = (a, b, linear[1]) if isinstance(a, int) else (b, a, linear[0])
            assert isinstance(number, int)
            if not symbols:
                raise ShapeError(f"{_show(side)} would be {number}")
            coefficient = dict(side.terms)[((symbols[0], 1),)] if isinstance(side, SymDim) else 1
            share = (number - (len(symbols) - 1)) // coefficient if len(symbols) > 1 else number // coefficient
            if share < 1 or (len(symbols) == 1 and share * coefficient != number):
                raise ShapeError(f"{_show(side)} would be {number}")
            self.bound[symbols[0]] = share
        elif linear[0] and linear[1]:
            self.bound[linear[0][0]] = symbol(linear[1][0])
        else:
            raise ShapeError(f"{_show(a)} would be {_show(b)}")
        self.equal(a, b)

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The common shape of operands that are combined entry by entry; a size of 1 is repeated."""
        result: list[Dim] = []
        for position in range(-max(map(len, shapes)), 0):
            dims = [self.resolve(s[position]) for s in shapes if -position <= len(s)]
            wide = [d for d in dims if d != 1] or [1]
            for other in wide[1:]:
                self.equal(wide[0], other)
            result.append(wide[0])
        return self.resolved(result)

    def match(self, a: Shape, b: Shape) -> None:
        """Makes two shapes equal."""
        if len(a) != len(b):
            raise ShapeError(f"tensors of {len(a)} and of {len(b)} dimensions")
        for x, y in zip(a, b, strict=True):
            self.equal(x, y)

    # Operators

    def matmul(self, a: Shape, b: Shape) -> Shape:
        if not a or not b:
            raise ShapeError("MatMul of a scalar")
        self.equal(a[-1], b[max(-2, -len(b))])
        batch = self.broadcast([a[:-2], b[:-2]]) if max(len(a), len(b)) > 2 else ()
        return self.resolved((*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))

    def concat(self, axis: int, shapes: Sequence[Shape]) -> Shape:
        first = shapes[0]
        if not -len(first) <= axis < 0 or any(len(s) != len(first) for s in shapes):
            raise ShapeError(f"Concat on axis {axis} of tensors of {', '.join(str(len(s)) for s in shapes)} dimensions")
        total: Dim = 0
        for shape in shapes:
            total = total + shape[axis]
            for position in range(-len(first), 0):
                if position != axis:
                    self.equal(shape[position], first[position])
        return self.resolved([total if i - len(first) == axis else d for i, d in enumerate(first)])

    def transpose(self, perm: Sequence[int], shape: Shape) -> Shape:
        lead = len(shape) - len(perm)
        if lead < 0:
            raise ShapeError(f"perm {tuple(perm)} of a tensor of {len(shape)} dimensions")
        return shape[:lead] + tuple(shape[lead + i] for i in perm)

    def split(self, axis: int, sizes: Sequence[Dim], shape: Shape) -> list[Shape]:
        if not -len(shape) <= axis < 0:
            raise ShapeError(f"Split on axis {axis} of a tensor of {len(shape)} dimensions")
        total: Dim = 0
        for size in sizes:
            total = total + size
        self.equal(shape[axis], total)
        return [self.resolved([size if i - len(shape) == axis else d for i, d in enumerate(shape)]) for size in sizes]

    def channels(self, x: Shape, w: Shape, group: Dim, uneven: bool = False) -> None:
        """What a convolution in groups demands of the channels of its input [N,C,...] and kernel [M,C/group,...].

        Output channels that are a sum get equal parts, or with ``uneven`` parts that differ and still fall into groups.
        """
        if isinstance(group, SymDim) and plain_symbol(group) is None:
            for number, name in enumerate(sorted(group.symbols()), 2):
                self.bound[name] = number
            group = self.resolve(group)
        self.equal(x[1], w[1] * group)
        outputs, group = self.resolve(w[0]), self.resolve(group)
        if group in (1, outputs):
            return
        if not isinstance(group, int):
            self.equal(outputs, group)
        elif isinstance(outputs, int):
            if outputs % group:
                raise ShapeError(f"{outputs} output channels in {group} groups")
        elif any(coefficient % group for _, coefficient in outputs.terms):
            first, *others = sorted(outputs.symbols())
            for number, name in enumerate(others, 2):
                self.bound[name] = number * group if uneven else symbol(first)
            total = self.resolve(outputs)
            if uneven and others:
                self.bound[first] = group
            elif isinstance(total, SymDim) and any(coefficient % group for _, coefficient in total.terms):
                self.bound[first] = self.fresh() * group


def _show(dim: Dim) -> str:
    return str(dim).replace("?", "d")


def _is_fresh(dim: Dim) -> bool:
    return isinstance(dim, SymDim) and str(dim).startswith("?")


def _linear(dim: Dim) -> list[str]:
    """Symbols that a sum holds on their own."""
    return [m[0][0] for m, _ in dim.terms if len(m) == 1 and m[0][1] == 1] if isinstance(dim, SymDim) else []


_LETTERS = "mnkpqrstabcdefgh"


def readable_symbols(dimensions: Sequence[Dim], taken: set[str]) -> dict[str, Dim]:
    """Names m, n, k, ... for the nameless symbols, in order of occurrence, beside those that are taken."""
    names = (f"{letter}{i or ''}" for i in itertools.count() for letter in _LETTERS)
    free = (name for name in names if name not in taken)
    met = [name for d in dimensions if isinstance(d, SymDim) for monomial, _ in d.terms for name, _ in monomial]
    return {name: symbol(next(free)) for name in dict.fromkeys(met) if name.startswith("?")}


# Terms


def output_shape(dims: Dimensions, term: Term, operands: Sequence[Shape]) -> Shape:
    """The shape of a term, unifying what its operator demands. Raises ShapeError, Undecided."""
    operator = get_operator(term.op)
    attrs = {**operator.defaults, **dict(term.attrs)}
    match term.op:
        case "MatMul":
            return dims.matmul(*operands)
        case "Concat":
            return dims.concat(attrs["axis"], operands)
        case "Transpose":
            return dims.transpose(attrs["perm"], operands[0])
        case "Split":
            parts = dims.split(attrs["axis"], attrs["sizes"], operands[0])
            if term.out >= len(parts):
                raise ShapeError(f"Split has no output {term.out}")
            return parts[term.out]
        case "Conv" | "FusedConv":
            x, w, *bias = operands
            spatial = len(attrs["strides"])
            if len(x) != spatial + 2 or len(w) != spatial + 2:
                raise ShapeError(f"{term.op} over {spatial} axes of tensors of {len(x)} and {len(w)} dimensions")
            for size in w[2:]:
                if not isinstance(dims.resolve(size), int):
                    dims.equal(size, 3)
            dims.channels(x, w, attrs["group"])
            for vector in bias:
                dims.match(vector, w[:1])
        case "MaxPool" | "AveragePool":
            if len(operands[0]) != len(attrs["kernel"]) + 2:
                raise ShapeError(f"{term.op} over {len(attrs['kernel'])} axes of {len(operands[0])} dimensions")
        case "BatchNormalization" | "InstanceNormalization":
            if len(operands[0]) != attrs["spatial"] + 2:
                raise ShapeError(f"{term.op} over {attrs['spatial']} axes of {len(operands[0])} dimensions")
            for parameter in operands[1:]:
                dims.match(parameter, operands[0][1:2])
        case "LayerNormalization" | "RMSNormalization":
            if len(operands[0]) < -attrs["axis"]:
                raise ShapeError(f"{term.op} from axis {attrs['axis']} of {len(operands[0])} dimensions")
            for parameter in operands[1:]:
                dims.match(parameter, operands[0][attrs["axis"] :])
        case "Reshape":
            _reshape(dims, operands[0], attrs["drop"], attrs["shape"])
        case "Squeeze":
            for axis in attrs["axes"]:
                if len(operands[0]) < -axis:
                    raise ShapeError(f"Squeeze of axis {axis} of {len(operands[0])} dimensions")
                dims.equal(operands[0][axis], 1)
        case "Expand":
            dims.broadcast([operands[0], attrs["shape"]])
        case _ if operator.elementwise and operands:
            return dims.broadcast(operands)
    types = [TensorType(DataType.FLOAT, dims.resolved(shape)) for shape in operands]
    outputs = operator.types(term.attrs, types)
    if term.out >= len(outputs):
        raise ShapeError(f"{term.op} has no output {term.out}")
    return outputs[term.out].shape


def _reshape(dims: Dimensions, x: Shape, drop: int, shape: Shape) -> None:
    """Dimensions that a Reshape merges or splits: as many as there are must have the product it wants."""
    if drop > len(x):
        raise ShapeError(f"Reshape of {drop} dimensions of a tensor of {len(x)}")
    tail = dims.resolved(x[len(x) - drop :])
    if len(tail) == len(shape):
        dims.match(tail, shape)
    elif len(tail) == 1:
        product: Dim = 1
        for size in shape:
            product = product * size
        dims.equal(tail[0], product)
    elif len(shape) == 1 and isinstance(shape[0], SymDim) and len(shape[0].terms) == 1:
        factors = [name for name, power in shape[0].terms[0][0] for _ in range(power)]
        if len(factors) == len(tail):
            dims.match(tail, tuple(map(symbol, factors)))


def _ranks(root_terms: Side, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Ranks of the variables to try: those that convolutions and the like fix, matrices elsewhere, then others."""
    fixed: dict[str, int] = {}
    for term in walk(root_terms):
        attrs, ranks = dict(term.attrs), {}
        if term.op in ("Conv", "FusedConv") and "strides" in attrs:
            ranks = {0: len(attrs["strides"]) + 2, 1: len(attrs["strides"]) + 2, 2: 1}
        elif term.op in ("MaxPool", "AveragePool") and "kernel" in attrs:
            ranks = {0: len(attrs["kernel"]) + 2}
        elif term.op in ("BatchNormalization", "InstanceNormalization") and "spatial" in attrs:
            ranks = {0: attrs["spatial"] + 2, 1: 1, 2: 1, 3: 1, 4: 1}
        for position, operand in enumerate(term.inputs):
            if operand.is_var and position in ranks:
                fixed[operand.name] = ranks[position]
    around = max(fixed.values(), default=2)
    orders = {name: (fixed[name],) if name in fixed else tuple(dict.fromkeys((around, 2, 0, 1, 3, 4))) for name in names}
    choices = itertools.product(*(range(len(orders[name])) for name in names))
    # The fewest variables of an unusual rank first.
    limited = itertools.islice(choices, 20_000)
    for choice in sorted(limited, key=lambda c: (sum(i > 0 for i in c), sum(c))):
        yield {name: orders[name][i] for name, i in zip(names, choice, strict=True)}


Typing = tuple[Side, Side, dict[str, TensorType]]
"""Both sides and the types of their variables. Dimension symbols of attributes may have been found equal to others."""

_MOST_RANKS = 400


def infer_typing(source: Side, target: Side, given: Mapping[str, TensorType]) -> tuple[Typing, Typing] | ShapeError:
    """Sample types under which both sides are well-typed and alike.

    Args:
        source, target: outputs in the same order.
        given: types that are known.

    Returns:
        The plainest typing (matrices, unless operators want something else) and the one of the usual ranks that leaves the
        most dimensions free, often the same; or why the first ranks that were tried do not do.
    """
    roots = (*source, *target)
    names = [v.name for v in variables(roots)]
    open_names = [name for name in names if name not in given]
    problem: ShapeError | None = None
    first: Typing | None = None
    usual = 0
    for ranks in itertools.islice(_ranks(roots, open_names), _MOST_RANKS):
        usual, where = max(ranks.values(), default=0) if first is None else usual, ""
        dims = Dimensions()
        shapes = {name: given[name].shape if name in given else dims.shape(ranks[name]) for name in names}
        try:
            found: dict[Term, Shape] = {}
            for term in walk(roots):
                if term.is_var:
                    found[term] = shapes[term.name]
                elif term.op == "Const":
                    found[term] = ()
                else:
                    where = f" at {term.op}"
                    found[term] = output_shape(dims, term, [found[i] for i in term.inputs])
            where = ""
            for a, b in zip(source, target, strict=True):
                dims.match(found[a], found[b])
        except (ShapeError, Undecided) as reason:
            problem = problem or ShapeError(f"{reason}{where}".replace("?", "d"))
            continue
        typed = _named(source, target, names, given, shapes, dims)
        if isinstance(typed, ShapeError):
            problem = problem or typed
            continue
        if first is None:
            first = best = typed
        elif max(ranks.values(), default=0) <= usual and _generality(typed[2]) > _generality(best[2]):
            best = typed
    return (first, best) if first is not None else problem or ShapeError("no ranks fit")


def _generality(types: Mapping[str, TensorType]) -> int:
    """The number of dimensions that are free: where operators force dimensions to agree by chance there are fewer."""
    return len({s for t in types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()})


def _named(
    source: Side,
    target: Side,
    names: Sequence[str],
    given: Mapping[str, TensorType],
    shapes: Mapping[str, Shape],
    dims: Dimensions,
) -> Typing | ShapeError:
    own = {name: dims.resolved(shapes[name]) for name in names}
    met = {s for d in itertools.chain(*own.values()) if isinstance(d, SymDim) for s in d.symbols()}
    taken = dim_symbols([*source, *target]) | met
    final = readable_symbols([d for name in names for d in own[name]], taken)

    def finish(dim: Dim) -> Dim:
        return evaluate_dim(dims.resolve(dim), final)

    tested = {t.inputs[0].name for t in walk([*source, *target]) if t.op in ("Where", "Not") and t.inputs[0].is_var}
    dtypes = {name: DataType.BOOL if name in tested else DataType.FLOAT for name in names}
    dtypes |= {name: type_.dtype for name, type_ in given.items()}
    types = {name: TensorType(dtypes[name], tuple(map(finish, own[name]))) for name in names}
    binding = {name: finish(dim) for name, dim in dims.bound.items()}
    sides = [tuple(substitute(root, {}, dims=binding) for root in side) for side in (source, target)]
    try:
        inferred = infer_types([*sides[0], *sides[1]], types)
    except (ShapeError, Undecided) as problem:
        return ShapeError(str(problem))
    for a, b in zip(*sides, strict=True):
        if inferred[a] != inferred[b]:
            return ShapeError(f"the sides have types {inferred[a]} and {inferred[b]}")
    return sides[0], sides[1], types
