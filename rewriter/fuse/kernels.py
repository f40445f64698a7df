"""Kernels of regions, as rules: built for sizes that are symbols where that is possible, tested, and specialised.

The sizes of a region, those of its types and those in its attributes, are replaced by symbols: equal ones by one symbol, and
where the region would not be typed otherwise, some by products of others (a packed width by heads and width of a head). The
kernel that is built of that is tested at small sizes, and may be a rule for other models, too; the kernel that a model gets is
the same with its sizes put back, so that the compiler knows them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from mugraph.block import Kernel, bound_sizes
from mugraph.block_sizes import specialised
from mugraph.interp import infer_types
from mugraph.node import Term, make, walk
from mugraph.shape import Dim, ShapeError, SymDim, TensorType, Undecided, Unequal, concrete, evaluate_dim, symbol
from rewriter.fuse.families import NotFusable
from rewriter.fuse.lower import PLAIN, Form, lower
from rewriter.fuse.region import Region
from rules_db.interpreted import LEAST_TESTS, interpret, kernel_rule
from rules_db.rule import Rule

__all__ = ["Builder", "Built"]

_APART, _KEPT = -1, 3
_RELATIONS = (_APART, 0, 1, 2)
"""How sizes are related: see :func:`_generalised`."""
_SIZED = frozenset({"shape", "sizes", "starts", "ends", "rows", "columns"})
"""Attributes of movements and masks that hold sizes."""
_COUNTS = frozenset({"num_heads", "kv_num_heads"})
"""Attributes that sizes are multiples of: they stay numbers."""


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel built of a region.

    Attributes:
        rule: region and kernel with the model's sizes.
        general: the kernel with symbols for sizes, as it was tested; the same where there are none to find.
    """

    rule: Rule
    general: Kernel


class Builder:
    """Builds and tests kernels; what was built once, of a look, is not built again."""

    def __init__(self) -> None:
        self._built: dict[tuple[object, ...], Built | str] = {}
        self._tested: dict[bytes, str | None] = {}
        self._regions: dict[str, tuple[Region, Form]] = {}

    def build(self, region: Region, form: Form = PLAIN) -> Built:
        """Raises :class:`NotFusable` with the reason."""
        key = (region.key, form)
        if key not in self._built:
            try:
                built = self._built[key] = self._build(region, form)
                self._regions.setdefault(built.rule.id, (region, form))
            except NotFusable as reason:
                self._built[key] = str(reason)
        found = self._built[key]
        if isinstance(found, str):
            raise NotFusable(found)
        return found

    def _build(self, region: Region, form: Form) -> Built:
        for relations in _RELATIONS:
            found = _generalised(region, relations)
            if found is None:
                continue
            terms, types, sizes = found
            try:
                kernel = lower(_name(terms), types, [(f"y{i}", term) for i, term in enumerate(terms)], form)
                own = specialised(kernel, sizes)
            except NotFusable:
                continue
            if own.body == region.terms and all(region.types[t.name] == t.type for t in own.inputs):
                self.test(kernel)
                return Built(kernel_rule(own, {}), kernel)
        kernel = lower(_name(region.terms), region.types, [(f"y{i}", t) for i, t in enumerate(region.terms)], form)
        self.test(kernel)
        return Built(kernel_rule(kernel, {}), kernel)

    def stored(self, rule: Rule) -> Rule | None:
        """The rule for other models behind one that was built here for a model's sizes."""
        found = self._regions.get(rule.id)
        return None if found is None else self.general(*found)

    def general(self, region: Region, form: Form = PLAIN) -> Rule:
        """The rule for other models: with symbols for the sizes that operands tell, and for others the model's own."""
        for relations in (*_RELATIONS, _KEPT):
            found = _generalised(region, relations)
            if found is None:
                continue
            terms, types, _ = found
            try:
                kernel = lower(_name(terms), types, [(f"y{i}", term) for i, term in enumerate(terms)], form)
                bound_sizes(kernel, {t.name: concrete(region.types[t.name].shape) or () for t in kernel.inputs})
                self.test(kernel)
            except (NotFusable, ShapeError):  # a size that no input has by itself
                continue
            return kernel_rule(kernel, {})
        return self.build(region, form).rule

    def test(self, kernel: Kernel) -> None:
        """Raises :class:`NotFusable` where a kernel does not compute its body."""
        if kernel.digest not in self._tested:
            self._tested[kernel.digest] = interpret(kernel, LEAST_TESTS, 0)
        problem = self._tested[kernel.digest]
        if problem:
            raise NotFusable(f"kernel {kernel.name} is wrong or cannot be tested: {problem}")


def _name(terms: tuple[Term, ...]) -> str:
    """The kernel's name: the operators that do the work, in order."""
    kept = ("MatMul", "Gemm", "Softmax", "Normalization", "Attention", "Reduce", "Gelu", "Sigmoid", "Relu", "Tanh", "Erf")
    ops = [term.op for term in walk(terms) if any(word in term.op for word in kept)]
    short = [op for op, _ in itertools.groupby(ops)][:5]
    words = [op.replace("Normalization", "norm").lower() for op in short]
    return "_".join(words) or "elementwise"


# Symbols for sizes


def _attribute_sizes(term: Term) -> list[int]:
    values = [value if isinstance(value, tuple) else (value,) for name, value in term.attrs if name in _SIZED]
    return [v for value in values for v in value if isinstance(v, int)]


def _apart(region: Region) -> tuple[tuple[Term, ...], dict[str, TensorType], dict[str, int]] | None:
    """The region with a symbol for each dimension, equal ones only where it is not typed otherwise."""
    if any(_attribute_sizes(part) for part in walk(region.terms)) or any(
        isinstance(d, SymDim) for t in region.types.values() for d in t.shape
    ):
        return None
    names = itertools.count()
    types = {
        name: TensorType(type_.dtype, tuple(1 if d == 1 else symbol(f"d{next(names)}") for d in type_.shape))
        for name, type_ in region.types.items()
    }
    while True:
        try:
            infer_types(region.terms, types)
            break
        except Unequal as unequal:
            first, second = sorted(unequal.dims, key=str)
            if not (isinstance(first, SymDim) and isinstance(second, SymDim) and len(second.symbols()) == 1):
                return None
            (name,) = second.symbols()
            types = {n: TensorType(t.dtype, tuple(evaluate_dim(d, {name: first}) for d in t.shape)) for n, t in types.items()}
        except (ShapeError, Undecided):
            return None
    order: dict[str, Dim] = {}
    sizes: dict[str, int] = {}
    for name, type_ in types.items():
        for dim, size in zip(type_.shape, region.types[name].shape, strict=True):
            if isinstance(dim, SymDim):
                (own,) = dim.symbols()
                new = order.setdefault(own, symbol(f"d{len(order)}"))
                assert isinstance(size, int)
                sizes[str(new)] = size
    named = {n: TensorType(t.dtype, tuple(evaluate_dim(d, order) for d in t.shape)) for n, t in types.items()}
    return region.terms, named, sizes


def _generalised(region: Region, relations: int) -> tuple[tuple[Term, ...], dict[str, TensorType], dict[str, int]] | None:
    """The region with symbols for its sizes, and what they are; ``None`` where it is not typed then.

    Args:
        region: what to generalise.
        relations: :data:`_APART` has a symbol for each dimension of each operand, as far as the types allow; 0 one for each
            size; 1 makes products of two others of some; 2 multiples, too, of any factor for the parts of a Split. What a Split
            divides is their sum. :data:`_KEPT` keeps the sizes in attributes and what they make together.
    """
    if relations == _APART:
        return _apart(region)
    parts = list(walk(region.terms))
    found = {d for t in region.types.values() for d in t.shape if isinstance(d, int)}
    written = {v for part in parts for v in _attribute_sizes(part)}
    if relations != _KEPT:
        found |= written
    else:
        found -= written | {a * b for a in written for b in written} | {a * b for a in written for b in range(2, 5)}
    names = [s for t in region.types.values() for d in t.shape if isinstance(d, SymDim) for s in d.symbols()]
    packed = {sum(w): w for part in parts if part.op == "Split" and (w := _attribute_sizes(part))}
    widths = set(itertools.chain(*packed.values()))
    counts = {v for part in parts for n, v in part.attrs if n in _COUNTS and isinstance(v, int)}
    dims: dict[int, Dim] = {count: count for count in counts}
    sizes: dict[str, int] = {}
    for size in sorted(size for size in found - counts if size > 1):
        related: Dim | None = None
        if relations in (1, 2):
            pairs = [(a, b) for a in dims for b in dims if a <= b and a * b == size]
            related = dims[pairs[-1][0]] * dims[pairs[-1][1]] if pairs else None
        if relations == 2 and related is None:
            most = size if size in widths else 4
            factors = [(size // a, a) for a in dims if size % a == 0 and size // a <= most]
            related = factors[-1][0] * dims[factors[-1][1]] if factors else None
        if relations != _KEPT and related is None and len(packed.get(size, ())) > 1:
            first, *others = (dims.get(width, width) for width in packed[size])
            related = sum(others, start=first)
        if related is None:
            name = next(n for i in itertools.count() if (n := f"d{i}") not in names and n not in sizes)
            count = next((c for c in counts if size % c == 0 and size > c), 1) if relations in (1, 2) else 1
            sizes[name] = size // count
            dims.setdefault(size // count, symbol(name))
            related = count * symbol(name)
        dims[size] = related

    def dim(size: Dim) -> Dim:
        return dims.get(size, size) if isinstance(size, int) else size

    done: dict[Term, Term] = {}
    for part in parts:
        sized = [(n, v if n not in _SIZED else tuple(map(dim, v)) if isinstance(v, tuple) else dim(v)) for n, v in part.attrs]
        is_leaf = part.is_var or part.op == "Const"
        done[part] = part if is_leaf else make(part.op, [done[i] for i in part.inputs], tuple(sized), part.out)
    terms = tuple(done[term] for term in region.terms)
    types = {n: TensorType(t.dtype, tuple(map(dim, t.shape))) for n, t in region.types.items()}
    if not sizes:
        return None
    try:
        infer_types(terms, types)
    except (ShapeError, Undecided, TypeError):
        return None
    return terms, types, sizes
