"""Attention that is computed in chunks, as the masked attention that it is.

Longformer and its kin have products of a few neighbouring chunks of queries and keys, bring their entries to rows of a band by
dozens of movements (paddings, reshapes, writes to places that constants say), and take the weights back to chunks behind the
softmax. Here such a set of nodes is followed from its last product to what it reads, every entry of its scores is looked up among
the scores of all queries and keys, and the set becomes a rule: it is the attention under the mask of those that were found. What
is not of this kind is left alone: nothing of what is guessed here counts before both sides of the rule were seen to be the same
(:mod:`rules_db.trust.numbering`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.numbered import Numbered
from mugraph.graph import Graph, Node
from mugraph.ops import traits_of
from mugraph.ops.base import applied
from mugraph.ops.entries import array_text
from mugraph.ops.interp import evaluate, infer_types
from mugraph.ops.masks import STORED_MASK, mask_text
from mugraph.ops.movement import reshape_attrs
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term, const, make, var, walk
from rewriter.kernels.fuse.kinds import NodeKinds
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.search.directions import made_here
from rewriter.search.match import resolve
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition
from rules_db.trust.numbering import MOST_ENTRIES, numbered_inputs, repeat_numbering, shape_conditions
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["ChunkedAttention"]

_MOST_NODES = 400
"""Of a set."""
_LEAST_NODES = 8
"""Of movements in a set: any less is attention as the other rules know it."""


_BATCHED = 4
"""Axes of queries of which batch and heads are two."""


class _Other(Exception):
    """The nodes are no attention in chunks."""


class ChunkedAttention:
    """Finds attention in chunks; what was looked at once, of a look, is not looked at again."""

    def __init__(self) -> None:
        self._rules: dict[tuple[object, ...], Rule | None] = {}

    def rules(self, graph: Graph) -> Iterator[Rule]:
        """A rule for each attention in chunks, of every look the first: attention under a mask of positions in its place."""
        reading = GraphReading(graph)
        kinds = NodeKinds(reading)
        seen = set[tuple[object, ...]]()
        for node in reading.nodes:
            if kinds[node] != "product" or len(node.inputs) != 2:
                continue
            try:
                pieces = _Pieces.of(reading, kinds, node)
                look = pieces.look
            except (_Other, ValueError):
                continue
            if look not in self._rules:
                self._rules[look] = pieces.checked()
            rule = self._rules[look]
            if look not in seen and rule is not None:
                yield rule
            seen.add(look)


@dataclass
class _Pieces:
    """The nodes of an attention in chunks, read as terms over what they read.

    Attributes:
        last: the product that weighs the values.
        weights, products: the softmax, and the products of which its operand is made.
        guards: the conditions by which weights become zero behind the softmax.
        operands: variable to value.
    """

    reading: GraphReading
    kinds: NodeKinds
    root: int
    last: Node
    weights: Node
    products: list[Node]
    guards: list[int]
    nodes: set[Node]
    terms: dict[int, Term] = field(default_factory=dict)
    operands: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(reading: GraphReading, kinds: NodeKinds, last: Node) -> _Pieces:
        """Raises _Other."""
        value, guards, nodes = last.inputs[0], list[int](), {last}
        while True:
            maker = reading.maker(value)
            if maker is None or len(nodes) > _MOST_NODES:
                raise _Other
            nodes.add(maker)
            if maker.op == "Softmax":
                weights = maker
                break
            if maker.op == "Where" and not reading.graph.tables.constant[maker.inputs[0]]:
                guards.append(maker.inputs[0])
                value = maker.inputs[2]
            elif _moves(maker):
                value = maker.inputs[0]
            else:
                raise _Other
        products, stack, moved = list[Node](), [weights.inputs[0]], 0
        while stack:
            maker = reading.maker(stack.pop())
            if maker is None or maker in nodes:
                continue
            if kinds[maker] == "product":
                products.append(maker)
            elif maker.op not in ("Add", "Where") and not _moves(maker):
                raise _Other
            else:
                stack += maker.inputs
                moved += 1
            nodes.add(maker)
            if len(nodes) > _MOST_NODES:
                raise _Other
        if not products or moved < _LEAST_NODES:
            raise _Other
        root = resolve(reading.graph, last.values[0])
        pieces = _Pieces(reading, kinds, root, last, weights, products, guards, nodes)
        for product in products:
            pieces.take(product.inputs)
        pieces.take([last.inputs[1], *guards])
        return pieces

    def take(self, values: Iterable[int]) -> None:
        """Adds the nodes that move entries to some values. Raises _Other where they are too many."""
        stack = list(values)
        while stack:
            maker = self.reading.maker(stack.pop())
            if maker is not None and maker not in self.nodes and _moves(maker):
                self.nodes.add(maker)
                stack += maker.inputs
        if len(self.nodes) > _MOST_NODES:
            raise _Other

    def path(self, value: int) -> list[tuple[int, Node]]:
        """The values between a value and what it is moved from, the latter's first one first, each with what makes it."""
        path = []
        value = resolve(self.reading.graph, value)
        while (maker := self.reading.maker(value)) is not None and _moves(maker):
            path.append((value, maker))
            value = resolve(self.reading.graph, maker.inputs[0])
        return path[::-1]

    def stored(self, value: int) -> int:
        """What a value is moved from."""
        path = self.path(value)
        return resolve(self.reading.graph, path[0][1].inputs[0] if path else value)

    def type(self, value: int) -> TensorType:
        type_ = self.reading.graph.type(value)
        if type_ is None or concrete(type_.shape) is None:
            raise _Other
        return type_

    def shape(self, value: int) -> tuple[int, ...]:
        return tuple(int(dim) for dim in self.type(value).shape if isinstance(dim, int))

    @property
    def source(self) -> tuple[Term, ...]:
        return (self.term(self.root),)

    @property
    def look(self) -> tuple[object, ...]:
        """Equal where a rule of one matches the other: operators, attributes, types and constants."""
        source = self.source
        return (*source, *(str(c) for name, value in self.operands.items() for c in self._conditions(name, self.type(value))))

    def term(self, value: int) -> Term:
        """A value as a term; what depends on constants alone is computed of those that are stored."""
        graph, stack = self.reading.graph, [value]
        while stack:
            at = resolve(graph, stack[-1])
            definition = graph.definition(at)
            if at in self.terms:
                stack.pop()
            elif definition is None or not (definition[0] in self.nodes or graph.tables.constant[at]):
                self.terms[at] = self._leaf(at)
            elif missing := [v for v in definition[0].inputs if resolve(graph, v) not in self.terms]:
                stack += missing
            else:
                node, output = definition
                self.terms[at] = make(node.op, [self.terms[resolve(graph, v)] for v in node.inputs], node.attrs, output)
        return self.terms[resolve(graph, value)]

    def _leaf(self, value: int) -> Term:
        tables = self.reading.graph.tables
        number = tables.small_constant(value, 1)
        if number is not None and not number.shape and self.type(value).dtype in FLOATS | {DataType.BOOL}:
            return const(number.item())
        name = f"x{len(self.operands)}"
        self.operands[name] = value
        return var(name)

    def checked(self) -> Rule | None:
        """The rule that puts masked attention in place of the nodes; ``None`` where they are none."""
        try:
            rule = self.rule()
        except (_Other, Unsupported, ShapeError, Undecided, ValueError):
            return None
        return None if repeat_numbering(rule) else rule

    def rule(self) -> Rule:
        """The rule that puts masked attention in place of the nodes, as it is guessed. Raises _Other."""
        (source,) = self.source
        queries, keys, values = self._operands()
        shape = self.shape(queries)
        scores = applied("MatMul", self.term(queries), applied("Transpose", self.term(keys), perm=(1, 0)))
        for product in self.products[1:]:
            scores = applied("Add", scores, self._row(product.inputs[1], shape, (1, shape[-2])))
        mask = self._mask(scores, shape)
        weights = applied("Softmax", make("Where", [mask, scores, const(-np.inf)]), axis=-1)
        whole = applied("MatMul", weights, self.term(values))
        for guard in self.guards:
            whole = make("Where", [self._row(guard, shape, (shape[-2], 1)), const(0.0), whole])
        made = (*shape[:-1], self.shape(values)[-1])
        target = make("Reshape", [whole], tuple(sorted(reshape_attrs(made, self.shape(self.root)).items())))
        used = {term.name for term in walk([source, target]) if term.is_var}
        types = {name: self.type(value) for name, value in self.operands.items() if name in used}
        conditions = [c for name, type_ in types.items() for c in self._conditions(name, type_)]
        return Rule(
            (source,),
            (target,),
            types,
            tuple(conditions),
            FloatClass.REASSOCIATES,
            Certificate((), numbered=True),
            made_here("attention-chunks"),
        )

    def _operands(self) -> tuple[int, int, int]:
        """Queries, keys and values [..., positions, width], the latest before they are cut; the first product is theirs.

        Raises _Other.
        """
        sized = [p for p in self.products if not any(self.reading.graph.tables.constant[v] for v in p.inputs)]
        self.products.sort(key=lambda product: product not in sized)
        if len(sized) != 1:
            raise _Other
        found = [self._rearranged(v) for v in (*sized[0].inputs, self.last.inputs[1])]
        # Batch and heads apart tell whose row of a padding mask it is.
        for queries in sorted(reversed(found[0]), key=lambda value: len(self.shape(value)) != _BATCHED):
            shape = self.shape(queries)
            alike = [[v for v in each if self.shape(v)[:-1] == shape[:-1]] for each in found[1:]]
            if len(shape) >= 3 and all(alike) and self.shape(alike[0][-1]) == shape:
                return queries, alike[0][-1], alike[1][-1]
        raise _Other

    def _rearranged(self, value: int) -> list[int]:
        """The values on the way to one that still have each entry of what it is moved from once, in their order."""
        found = [self.stored(value)]
        for moved, maker in self.path(value):
            if not traits_of(maker.op).rearranges:
                break
            found.append(moved)
        return found

    def _row(self, value: int, shape: Sequence[int], ends: tuple[int, int]) -> Term:
        """One entry for each position of each sequence, as it broadcasts against scores."""
        stored = self.stored(value)
        wanted = (shape[0], *(1,) * (len(shape) - 3), *ends)
        before = self.shape(stored)
        if math.prod(before) == max(ends):  # the same for all
            wanted = (1, *wanted[1:])
        if math.prod(before) != math.prod(wanted):
            raise _Other
        return make("Reshape", [self.term(stored)], tuple(sorted(reshape_attrs(before, wanted).items())))

    def _mask(self, scores: Term, shape: Sequence[int]) -> Term:
        """The mask of the scores of all queries and keys that are among those of the chunks."""
        rows = shape[-2]
        if math.prod(shape[:-1]) * rows > MOST_ENTRIES:
            raise _Other
        chunked = self.term(self.weights.inputs[0])
        names = {term.name for term in walk([chunked, scores]) if term.is_var}
        types = {name: self.type(self.operands[name]) for name in names}
        infer_types([chunked, scores], types)
        conditions = tuple(c for name, type_ in types.items() for c in self._conditions(name, type_))
        rule = Rule((chunked,), (scores,), types, conditions, FloatClass.EXACT, Certificate((), numbered=True))
        domain = Numbered()
        found = evaluate([chunked, scores], domain, numbered_inputs(rule, domain))
        shown = np.isin(found[scores].numbers, np.unique(found[chunked].numbers)).reshape(-1, rows, rows)
        first = shown[0]
        if not (shown == first).all() or not first.any(axis=1).all():
            raise _Other
        row, column = np.nonzero(first)
        before, after = int((row - column).max()), int((column - row).max())
        ahead = np.arange(rows) - np.arange(rows)[:, None]
        sizes = {"columns": rows, "rows": rows}
        if np.array_equal(first, (-before <= ahead) & (ahead <= after)) and not first.all():
            wide = {"before": rows if before >= rows - 1 else before, "after": rows if after >= rows - 1 else after}
            return applied("BandMask", **wide, **sizes)
        return applied(STORED_MASK, entries=mask_text(first), **sizes)

    def _conditions(self, name: str, type_: TensorType) -> list[Condition]:
        """What a rule says of a variable: its entries where they are stored, else its shape, and that floats are finite."""
        stored = self.reading.graph.tables.constants.get(self.operands[name])
        if stored is not None:
            return [Condition("entries", (var(name), array_text(stored.load())))]
        finite = [Condition("finite", (var(name),))] if type_.dtype in FLOATS else []
        return [*shape_conditions(var(name), type_), *finite]


def _moves(node: Node) -> bool:
    """Whether a node moves entries and computes none."""
    traits = traits_of(node.op)
    return traits.movement is not None or traits.overwrites or node.op == "Identity"
