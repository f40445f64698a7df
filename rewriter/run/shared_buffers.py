"""Which inputs and outputs of a model may be one buffer: what a run writes there is not read as it was before.

A decoder with a cache of a fixed size reads it and returns it with a new position. Where one buffer is bound as both (I/O
binding of onnxruntime), nothing need be copied. That is right in any order of the nodes if the output is the input but for some
entries, ``Where(c, new, past)``, and if all that reads the input reads it so: what was there before counts nowhere, and an entry
that is written over once more is the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.graph import Graph, Node
from mugraph.ops import get_operator, traits_of
from mugraph.ops.scatter import MOST_CHOICES
from mugraph.terms.shape import ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, make, substitute, var
from rewriter.kernels.text.analysis import updates

__all__ = ["named_buffers", "note_on_shared_buffers"]


@dataclass(frozen=True, slots=True)
class _Overwriting:
    """Which entries are written over, and how that is said.

    Attributes:
        op: ``Where``, or an operator that writes entries over others.
        told: terms over values of the graph, and other things, that say which; equal where the entries are the same.
    """

    op: str
    told: tuple[object, ...]


def note_on_shared_buffers(pairs: Mapping[str, str]) -> Iterator[str]:
    """A line where inputs and outputs may be one buffer."""
    for name, output in list(pairs.items())[:1]:
        count = len(pairs) - 1
        others = f", and so may {count} other pair{'s' * (count > 1)}, which --json names" if count else ""
        yield f"'{name}' and '{output}' may be bound to one buffer{others}"


def named_buffers(graph: Graph) -> dict[str, str]:
    """The names of inputs of a model, each with that of an output that may have its buffer."""
    if not any(_may_update(graph, value) for value in graph.outputs):
        return {}
    reading, pairs = _FormulaReading(graph), dict[int, int]()
    for output in graph.outputs:
        for value, overwriting in reading.updated(output):
            is_free = value not in pairs and value not in graph.outputs and graph.outputs.count(output) == 1
            if is_free and all(reading.reads_so(node, value, overwriting) for node in graph.users.get(value, ())):
                pairs[value] = output
                break
    names = graph.tables.names
    return {str(names[value]): str(names[output]) for value, output in pairs.items()}


def _may_update(graph: Graph, output: int) -> bool:
    definition = graph.definition(output)
    return definition is not None and any(
        value in graph.inputs and graph.type(value) is not None and graph.type(value) == graph.type(output)
        for value in definition[0].inputs
    )


class _FormulaReading:
    """A graph's values as terms; kernels are their bodies, each taken apart once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._terms = {node: _terms(graph, node) for node in graph.nodes()}
        self._formulas = self._all_formulas()

    def _all_formulas(self) -> dict[int, Term]:
        """The values as terms over the graph's inputs, its constants and what is not understood."""
        graph = self._graph
        formulas = {value: var(f"v{value}") for node in graph.nodes() for value in node.inputs}
        defined = {node: list[tuple[int, int]]() for node in graph.nodes()}
        for value in (*formulas, *graph.outputs):
            definition = graph.definition(value)
            if definition is not None and not definition[0].is_opaque:
                defined[definition[0]].append((value, definition[1]))
        for node, values in defined.items():
            terms = self._terms[node]
            for value, out in values:
                if terms is not None:
                    formulas[value] = substitute(terms[out], _operands(node, formulas))
        return formulas

    def updated(self, output: int) -> Iterator[tuple[int, _Overwriting]]:
        """The inputs that an output is but for some entries, and for which."""
        graph, definition = self._graph, self._graph.definition(output)
        terms = None if definition is None else self._terms[definition[0]]
        if definition is None or terms is None:
            return
        node, out = definition
        for place, value in enumerate(node.inputs):
            type_ = graph.type(value)
            if value not in graph.inputs or type_ is None or type_ != graph.type(output):
                continue
            if node.op == KERNEL and not _is_stored_so(node, out, place):
                continue
            for kept, overwriting, _ in self._overwritten(node, terms[out]):
                if kept is var(f"x{place}"):
                    yield value, overwriting

    def reads_so(self, node: Node, value: int, overwriting: _Overwriting) -> bool:
        """Whether a node reads a value only where entries are kept, however often."""
        terms = self._terms[node]
        if terms is None:
            return False
        names = {var(f"x{i}") for i, operand in enumerate(node.inputs) if operand == value}
        left, seen = [make("Identity", [term]) for term in terms], set[Term]()  # what a kernel gives is read, too
        while left:
            term = left.pop()
            if term in seen:
                continue
            seen.add(term)
            ways = (others for kept, other, others in self._overwritten(node, term) if kept in names and other == overwriting)
            further = next(ways, term.inputs)
            if not names.isdisjoint(further):
                return False
            left += further
        return True

    def _overwritten(self, node: Node, term: Term) -> Iterator[tuple[Term, _Overwriting, tuple[Term, ...]]]:
        """Terms that a term is but for some entries, for which, and what else it is made of."""
        operands = _operands(node, self._formulas)
        if term.op == "Where":
            for kept, told, others in _chosen(term):
                yield kept, _Overwriting("Where", tuple((substitute(one, operands), is_so) for one, is_so in told)), others
        elif not term.is_var and traits_of(term.op).overwrites and term.op == node.op:
            places = [substitute(one, operands) for i, one in enumerate(term.inputs) if i not in (0, _new_operand(term))]
            of_new: TensorType | None = self._graph.type(node.inputs[_new_operand(term)])
            yield term.inputs[0], _Overwriting(term.op, (term.attrs, of_new, *places)), term.inputs[1:]


def _chosen(term: Term, most: int = MOST_CHOICES) -> Iterator[tuple[Term, tuple[tuple[Term, bool], ...], tuple[Term, ...]]]:
    """Terms that a choice, or one behind another, is where none of some conditions is, or is not, so; and all else in these."""
    condition, *branches = term.inputs
    for kept, new, is_so in ((branches[1], branches[0], True), (branches[0], branches[1], False)):
        yield kept, ((condition, is_so),), (condition, new)
        if kept.op == "Where" and most > 1:
            for inner, told, others in _chosen(kept, most - 1):
                yield inner, ((condition, is_so), *told), (condition, new, *others)


def _operands(node: Node, formulas: Mapping[int, Term]) -> dict[str, Term]:
    return {f"x{i}": formulas[value] for i, value in enumerate(node.inputs)}


def _terms(graph: Graph, node: Node) -> tuple[Term, ...] | None:
    """What a node computes, over x0, x1, ...; ``None`` where that is not known."""
    if node.is_opaque:
        return None
    if node.op != KERNEL:
        operands = [var(f"x{i}") for i in range(len(node.inputs))]
        return tuple(make(node.op, operands, node.attrs, out) for out in range(len(node.values)))
    types = [type_ for value in node.inputs if (type_ := graph.type(value)) is not None]
    try:
        return get_operator(KERNEL).decompose(node.attrs, types) if len(types) == len(node.inputs) else None
    except (ShapeError, Undecided):
        return None


def _is_stored_so(node: Node, out: int, place: int) -> bool:
    """Whether a kernel's text takes for granted that an output may be in the buffer of an input."""
    kernel = kernel_of(node.attrs)
    pair = (kernel.outputs[out].name, kernel.inputs[place].name)
    return any(pair == (update.output, update.input) for block in kernel.blocks for update in updates(kernel, block))


def _new_operand(term: Term) -> int:
    """Which operand an operator writes over entries of its first."""
    return 1 if term.op == "TensorScatter" else 2
