"""Regions of a model that may become one kernel each, and the kernels that are built of them.

A region is a convex set of nodes. It is seeded at a product, an attention or a reduction along rows, and grown: upwards by what
is computed of the seed's operands (the prologue: movements, then elementwise operators, then statistics of rows), downwards by
what is computed of its result (the epilogue), a node at a time in the order of the model. Every stage at which the region has
one result, or a few, is proposed: which of the nested variants is used is for the search to say, by what they cost. A reduction
of all entries to one is a seed of its own, with the elementwise operators before it and, on its one entry, behind it.

A region is a term over the values that it reads, so that a kernel built of it is one side of a rule and the region the other: it
is matched, applied, recorded and replayed as rules are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.graph import Graph, Node
from mugraph.ops import ProductKind, get_operator, traits_of
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, same_dim
from mugraph.terms.term import Term, const, make, var, walk
from rewriter.kernels.fuse.lower import is_elementwise
from rewriter.search.match import resolve

__all__ = ["Region", "is_product", "propose"]

_LAST = (-1,)
_MOST_NODES = 60
"""Of a region."""
_MOST_RESULTS = 3
_MOST_SHARING = 4
"""Products in one kernel."""
_FLOATS_AND_TRUTH = FLOATS | {DataType.BOOL}
_FLAGS = _FLOATS_AND_TRUTH | INTEGERS


def is_product(op: str) -> bool:
    return traits_of(op).product is ProductKind.MATRIX and not get_operator(op).composite


def _is_row(op: str) -> bool:
    return traits_of(op).rows is not None and not get_operator(op).composite


def _is_plain(op: str) -> bool:
    """Whether an operator, or a leaf, is one that a kernel has in a stage of its own."""
    traits = traits_of(op)
    staged = traits.addresses or traits.monoid is not None or _is_row(op) or is_product(op) or is_elementwise(op)
    return staged or op in ("Var", "Const", "CausalMask")


def _cuts(op: str) -> bool:
    """Whether an operator is a movement that is no part of an epilogue: a store writes every entry once."""
    return traits_of(op).addresses and not traits_of(op).rearranges


@dataclass(frozen=True)
class Region:
    """Nodes as terms over what they read.

    Attributes:
        roots: values that the region makes for others.
        terms: what they are, over x0, x1, ...
        operands: variable to value.
        types: variable to type.
        nodes: how many nodes it has.
    """

    roots: tuple[int, ...]
    terms: tuple[Term, ...]
    operands: Mapping[str, int]
    types: Mapping[str, TensorType]
    nodes: int

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal where regions have one look: operators, attributes, numbers and types."""
        return (tuple(term.digest for term in self.terms), tuple((n, str(t)) for n, t in self.types.items()))


def propose(graph: Graph) -> Iterator[Region]:
    """The regions of a graph, of every look the first."""
    seen = set()
    for region in _Growth(graph).all():
        if region.key not in seen:
            seen.add(region.key)
            yield region


class _Growth:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = list(graph.nodes())
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.kinds: dict[Node, str] = {}
        self.outputs = {resolve(graph, v) for v in graph.outputs}

    # What nodes are

    def kind(self, node: Node) -> str:
        """``movement``, ``pointwise``, ``row``, ``total``, ``flag``, ``product``, ``attention`` or ``other``.

        A ``total`` reduces all entries to one. A ``flag`` is elementwise and of use to such a reduction only: the question for
        infinities, a truth as a number, and back.
        """
        if node not in self.kinds:
            self.kinds[node] = self._kind(node)
        return self.kinds[node]

    def _kind(self, node: Node) -> str:
        types = [self.graph.type(v) for v in (*node.values, *node.inputs)]
        if node.is_opaque or any(t is None for t in types) or node.op == "Kernel":
            return "other"
        attrs = dict(node.attrs)
        if traits_of(node.op).monoid is not None and attrs["axes"] != _LAST and self.has_one_entry(node):
            return "total"
        if any(t is not None and t.dtype not in _FLOATS_AND_TRUTH for t in types):
            return "flag" if node.op == "Cast" and all(t is not None and t.dtype in _FLAGS for t in types) else "other"
        if node.op == "IsInf":
            return "flag"
        if traits_of(node.op).addresses:
            return "movement"
        if is_elementwise(node.op):
            tables = self.graph.tables
            floats = [v for v in node.inputs if (t := tables.types[v]) is not None and t.dtype in FLOATS]
            # A choice between two numbers is a mask: it is made once and read everywhere.
            return "other" if floats and all(tables.constant[v] for v in floats) else "pointwise"
        if traits_of(node.op).monoid is not None:
            return "row" if attrs["axes"] == _LAST else "other"
        if _is_row(node.op):
            return "row" if attrs.get("axis", -1) == -1 else "other"
        if is_product(node.op):
            return "product"
        record = get_operator(node.op)
        if not record.composite:
            return "other"
        operands = [t for t in types[len(node.values) :] if t is not None]
        try:
            inner = {part.op for root in record.decompose(attrs, operands) for part in walk([root])}
        except (ShapeError, Undecided, ValueError):
            return "other"
        if not all(map(_is_plain, inner)):
            return "other"
        if any(map(is_product, inner)):
            return "attention" if "Softmax" in inner else "product"
        return "row" if any(traits_of(op).monoid or _is_row(op) for op in inner) else "pointwise"

    def maker(self, value: int) -> Node | None:
        """The node that computes a value at run time."""
        at = resolve(self.graph, value)
        if self.graph.tables.constant[at]:
            return None
        found = self.graph.definition(at)
        return None if found is None else found[0]

    def readers(self, node: Node) -> list[Node]:
        """The nodes that read what a node makes, seen through Identity nodes."""
        found: list[Node] = []
        stack = list(node.values)
        while stack:
            value = stack.pop()
            for user in self.graph.users.get(value, ()):
                if user.op == "Identity":
                    stack += user.values
                else:
                    found.append(user)
        aliases = [v for v, (maker, _) in self.graph.definitions.items() if maker is node and v not in node.values]
        for value in aliases:
            found += [user for user in self.graph.users.get(value, ()) if user.op != "Identity"]
        return sorted(set(found), key=self.place.__getitem__)

    # Growing

    def all(self) -> Iterator[Region]:
        for node in self.nodes:
            kind = self.kind(node)
            if kind == "other" or all(self.graph.tables.constant[v] for v in node.values):
                continue
            if kind in ("product", "attention"):
                attends = kind == "product" and self.is_weighted(node)
                for level in (0, 1, 2):
                    yield from self.downwards({node}, self.upwards({node}, level, attends=attends), level)
            elif kind == "total":
                yield from self.totals(node)
            elif kind in ("row", "pointwise"):
                whole = self.upwards({node}, 2 if kind == "row" else 1, alone=True)
                yield from self.downwards(set(whole), whole, 1, _MOST_RESULTS)

        for group in self.sharing():
            tails = [self.tail(node) for node in group]
            for parts in (set(group), set().union(*tails)):
                for level in (0, 2):
                    start = self.upwards(set(group), level)
                    yield from self.region(start | parts, frozenset(start - set(group)), len(group))

    def has_one_entry(self, node: Node) -> bool:
        type_ = self.graph.type(node.values[0])
        return type_ is not None and all(same_dim(dim, 1) is True for dim in type_.shape)

    def totals(self, total: Node) -> Iterator[Region]:
        """A reduction of all entries with what computes them, and with one after the other of what is computed of the result.

        What computes them belongs to it where nothing else reads it, as do casts, which cost nothing a second time. Only they
        stand between a question for infinities and the values in memory: a kernel computes in 32 bits, where others overflow.
        """
        region, stack = {total}, [(value, False) for value in total.inputs]
        while stack:
            value, asked = stack.pop()
            maker = self.maker(value)
            if maker is None or maker in region or self.kind(maker) not in ("movement", "pointwise", "flag"):
                continue
            if maker.op != "Cast" and (asked or _cuts(maker.op) or not region.issuperset(self.readers(maker))):
                continue
            region.add(maker)
            stack += [(v, asked or maker.op == "IsInf") for v in maker.inputs]
        prologue = frozenset(region - {total})
        yield from self.region(region, prologue, 1)
        last = total
        while len(region) < _MOST_NODES:
            readers = [node for node in self.readers(last) if node not in region]
            if len(readers) != 1 or not is_elementwise(readers[0].op) or not self.has_one_entry(readers[0]):
                return
            (last,) = readers
            if last.is_opaque or not self.may_join(last, region):
                return
            region.add(last)
            yield from self.region(region, prologue, 1)

    def sharing(self) -> Iterator[list[Node]]:
        """Products with weights that share their left operand and have results of one type."""
        groups: dict[tuple[int, str], list[Node]] = {}
        for node in self.nodes:
            if self.kind(node) == "product" and self.maker(node.inputs[1]) is None and len(node.values) == 1:
                key = (resolve(self.graph, node.inputs[0]), str(self.graph.type(node.values[0])))
                groups.setdefault(key, []).append(node)
        for group in groups.values():
            if 2 <= len(group) <= _MOST_SHARING:
                yield group

    def tail(self, node: Node) -> set[Node]:
        """A product with what is computed of it alone: bias, scale, the split into heads."""
        found, current = {node}, node
        while True:
            readers = self.readers(current)
            if len(readers) != 1 or len(self.live(current)) != 1 or self.live(current)[0] in self.outputs:
                return found
            (current,) = readers
            others = [v for v in current.inputs if (m := self.maker(v)) is not None and m not in found]
            if self.kind(current) not in ("movement", "pointwise") or others or _cuts(current.op):
                return found
            found.add(current)

    def is_weighted(self, node: Node) -> bool:
        """Whether the left operand of a product is a softmax."""
        maker = self.maker(node.inputs[0])
        while maker is not None and maker.op in ("Cast", "Where"):
            maker = self.maker(maker.inputs[-1])
        if maker is None:
            return False
        return maker.op == "Softmax" or (
            maker.op == "Div" and (top := self.maker(maker.inputs[0])) is not None and top.op == "Exp"
        )

    def upwards(self, start: set[Node], level: int, attends: bool = False, alone: bool = False) -> frozenset[Node]:
        """A region with what its operands are computed by.

        On the way up it may pass one value that others read, too, which is then computed more than once.

        Args:
            start: the seed.
            level: 0 takes movements, 1 elementwise operators, too, 2 reductions of rows as well.
            attends: the seed weighs values by a softmax: what computes the weights belongs to it, the product of queries and
                keys included.
            alone: only nodes that nothing else reads.
        """
        region = dict.fromkeys(start, 0 if alone else 1)
        weighing = {value for node in start for value in node.inputs[:1]} if attends else set[int]()
        changed = True
        while changed and len(region) < _MOST_NODES:
            changed = False
            for shared in (False, True):
                for reader, budget in list(region.items()):
                    for value in reader.inputs:
                        node = self.maker(value)
                        if node is None or node in region:
                            continue
                        weighs = value in weighing
                        if not self.belongs(node, level, weighs):
                            continue
                        rest = budget if weighs or region.keys() >= set(self.readers(node)) else budget - 1
                        if rest < 0 or (rest < budget and not shared):
                            continue
                        region[node] = rest
                        changed = True
                        if weighs and self.kind(node) != "product":
                            # Masks and biases are read, not computed: the weights' own path has their shape.
                            shape = self.graph.type(node.values[0])
                            weighing |= {v for v in node.inputs if self.has_shape_of(v, shape)}
                if changed:
                    break
        return frozenset(region)

    def has_shape_of(self, value: int, type_: TensorType | None) -> bool:
        own = self.graph.type(value)
        return own is not None and type_ is not None and own.shape == type_.shape

    def belongs(self, node: Node, level: int, weighs: bool) -> bool:
        """Whether the prologue of a level takes a node; what computes the weights of an attention it takes always."""
        kind = self.kind(node)
        if weighs:
            return kind in ("movement", "pointwise", "row", "product")
        if node.op == "Concat" and level == 0:
            return False
        return {"movement": 0, "pointwise": 1, "row": 2}.get(kind, 9) <= level

    def downwards(self, core: set[Node], start: frozenset[Node], level: int, results: int = 1) -> Iterator[Region]:
        """The region, and with one reader of its results after the other. The prologue may be computed elsewhere as well."""
        region, prologue = set(start), start - core
        blocked: set[Node] = set()
        yield from self.region(region, prologue, results)
        while len(region) < _MOST_NODES:
            following = sorted(
                {reader for node in region - prologue for reader in self.readers(node)} - region - blocked,
                key=self.place.__getitem__,
            )
            if not following:
                return
            node = following[0]
            if self.kind(node) not in (("movement", "pointwise", "row") if results > 1 else ("movement", "pointwise")):
                blocked.add(node)
                if len(self.exposed(region - prologue)) > results:
                    return
                continue
            if _cuts(node.op) or not self.may_join(node, region):
                blocked.add(node)
                continue
            for sibling in self.siblings(node, region) if results == 1 else ():
                yield from self.region(region | {node} | sibling, prologue, results)
                larger = self.upwards(set(sibling), level)
                yield from self.region(region | {node} | larger, prologue | (larger - sibling), results)
            region.add(node)
            region |= self.beside(node, region)
            if self.kind(node) != "movement" or not self.goes_on(node, region):
                yield from self.region(region, prologue, results)

    def goes_on(self, node: Node, region: set[Node]) -> bool:
        """Whether the one that reads what a movement moves may be of the region, too: the movement alone is no stage then."""
        readers = [reader for reader in self.readers(node) if reader not in region]
        return len(readers) == 1 and self.kind(readers[0]) in ("movement", "pointwise") and self.may_join(readers[0], region)

    def beside(self, node: Node, region: set[Node]) -> set[Node]:
        """What computes the other operands of a node, where it is elementwise and serves nothing else."""
        found: set[Node] = set()
        stack = [v for v in node.inputs]
        while stack:
            maker = self.maker(stack.pop())
            if maker is None or maker in region or maker in found or self.kind(maker) not in ("movement", "pointwise"):
                continue
            if maker.op != "Concat" and (region | found | {node}).issuperset(self.readers(maker)):
                found.add(maker)
                stack += maker.inputs
        return found

    def siblings(self, node: Node, region: set[Node]) -> list[frozenset[Node]]:
        """Further products that a node of the epilogue takes, with what stands between, and the product before such a one."""
        found: list[frozenset[Node]] = []
        for value in node.inputs:
            path: list[Node] = []
            maker = self.maker(value)
            while maker is not None and maker not in region and self.kind(maker) in ("movement", "pointwise"):
                path.append(maker)
                others = [m for v in maker.inputs if (m := self.maker(v)) is not None]
                maker = others[0] if others else None
            if maker is not None and maker not in region and self.kind(maker) == "product":
                found.append(frozenset({*path, maker}))
                inner = self.maker(maker.inputs[0])
                if inner is not None and self.kind(inner) == "product":
                    found.append(frozenset({*path, maker, inner}))
        return found

    def may_join(self, node: Node, region: set[Node]) -> bool:
        """Whether no operand of a node depends on the region by way of others."""
        least = min(map(self.place.__getitem__, region))
        stack = [m for v in node.inputs if (m := self.maker(v)) is not None and m not in region]
        seen = set(stack)
        while stack:
            current = stack.pop()
            for value in current.inputs:
                maker = self.maker(value)
                if maker is None or maker in seen or self.place[maker] < least:
                    continue
                if maker in region:
                    return False
                seen.add(maker)
                stack.append(maker)
        return True

    def exposed(self, region: set[Node] | frozenset[Node]) -> list[int]:
        """The values of a region that others read."""
        found = []
        for node in region:
            if not region.issuperset(self.readers(node)) or any(v in self.outputs for v in node.values):
                for value in self.live(node):
                    outside = [u for u in self.users_of(value) if u not in region]
                    if outside or value in self.outputs:
                        found.append(value)
        return sorted(found)

    def live(self, node: Node) -> list[int]:
        aliases = [v for v, (maker, _) in self.graph.definitions.items() if maker is node]
        values = [v for v in node.values if self.graph.definition(v) == (node, node.values.index(v))]
        return sorted({*values, *aliases})

    def users_of(self, value: int) -> list[Node]:
        found: list[Node] = []
        stack = [value]
        while stack:
            for user in self.graph.users.get(stack.pop(), ()):
                if user.op == "Identity":
                    stack += user.values
                else:
                    found.append(user)
        return found

    # Terms

    def region(self, nodes: set[Node] | frozenset[Node], prologue: frozenset[Node], results: int) -> Iterator[Region]:
        """The region as terms, where it has no more results than asked for and more than movements in it."""
        working = [node for node in nodes if self.kind(node) != "movement"]
        roots = self.exposed(nodes - prologue)
        if not working or not 1 <= len(roots) <= results:
            return
        if len(working) < 2 and all(self.kind(node) == "pointwise" for node in working):
            return
        operands: dict[int, str] = {}
        done: dict[int, Term] = {}

        def leaf(value: int) -> Term:
            made = self.graph.definition(value)
            if made is not None and made[0].op == "CausalMask":  # computed from positions, not read
                return make("CausalMask", (), made[0].attrs)
            number = self.graph.tables.small_constant(value, 1)
            if number is not None and number.size == 1 and value in self.graph.tables.constants:
                type_ = self.graph.tables.types[value]
                if type_ is not None and type_.dtype == DataType.BOOL:
                    return const(bool(number.reshape(())))
                if type_ is not None and type_.dtype in FLOATS:
                    return const(float(number.reshape(())))
            if made is not None and made[0].op == "Expand" and self.graph.tables.constant[value]:
                stored = leaf(resolve(self.graph, made[0].inputs[0]))
                if stored.op != "Const":  # read as it is stored, not as many times as it is repeated
                    return make("Expand", (stored,), made[0].attrs)
            return var(operands.setdefault(value, f"x{len(operands)}"))

        stack = [(resolve(self.graph, root), False) for root in reversed(roots)]
        while stack:
            value, ready = stack.pop()
            if value in done:
                continue
            node = self.maker(value)
            if node is None or node not in nodes:
                done[value] = leaf(value)
                continue
            inputs = [resolve(self.graph, v) for v in node.inputs]
            if not ready:
                stack.append((value, True))
                stack += [(v, False) for v in reversed(inputs)]
                continue
            found = self.graph.definition(value)
            assert found is not None
            done[value] = make(node.op, [done[v] for v in inputs], node.attrs, found[1])
        terms = tuple(done[resolve(self.graph, root)] for root in roots)
        if any(term.is_var or term.op == "Const" for term in terms):
            return
        types = {}
        for value, name in operands.items():
            type_ = self.graph.type(value)
            if type_ is None:
                return
            types[name] = type_
        written = {type_.dtype for type_ in map(self.graph.type, roots) if type_ is not None}
        if not written | {type_.dtype for type_ in types.values()} <= _FLOATS_AND_TRUTH:
            return
        named = {name: value for value, name in operands.items()}
        yield Region(tuple(roots), terms, named, types, len(nodes))
