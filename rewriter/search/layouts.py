"""The layouts of a whole model at once, by a minimum cut.

While a layout changes, transpositions appear before they cancel: the steps in between cost more than start and end, and a
search that keeps only what costs at most alpha times the best does not get there. TASO (section 5) enumerates the layouts
of the tensors around each substitution instead. Here every operator that has a form for the other layout chooses between
the two together with all others: a choice pays the operators' prices, and a Transpose for each tensor whose maker and
reader differ. With two layouts that is a minimum cut (Greig, Porteous and Seheult, 1989), so that the choice is the best
there is by the cost model.

A *wrapping* direction of a rule rewrites an operator as its form for the other layout between a transposition of operands
and one back: ``Relu(x) -> Transpose[perm=(2,0,1)](Relu(Transpose[perm=(1,2,0)](x)))``. A choice is carried out as moves of
such rules, and of the one by which a transposition and its inverse cancel: it is recorded, replayed and bisected like any
other sequence of moves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mugraph.graph import Graph, Node
from rewriter.search.candidate import Candidate
from rewriter.search.cuts import minimum_cut
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch, resolve
from rewriter.search.matcher import Matcher, MatchPool
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.roles import Layout, cancels_transposition, wraps

__all__ = ["LayoutChooser", "LayoutForm"]

_FIRST, _OTHER = "first layout", "other layout"
"""The two sides of the cut."""

_SCALE = 1000
"""Capacities are whole nanoseconds, so that flows are exact."""


@dataclass(frozen=True, slots=True)
class LayoutForm:
    """An output of a node as a wrapping rule computes it in the other layout.

    Attributes:
        direction: the wrapping rule.
        inner: the nodes between the transpositions.
        back: the transposition back.
        turned: operand values that it wants transposed; it reads all others as they are.
    """

    direction: Direction
    inner: tuple[Node, ...]
    back: Node
    turned: frozenset[int]


class LayoutChooser:
    """Proposes layouts for the candidates of one model: a generator of :class:`rewriter.search.backtracking.Backtracking`.

    What it keeps, the forms that operators have in other layouts, does not depend on prices.

    Args:
        matches: of the search's rules, among them those that wrap operators and those that cancel transpositions.
    """

    def __init__(self, matches: Matches) -> None:
        wrapping: dict[Layout, list[Direction]] = {}
        for direction in matches.directions:
            layout = wraps(direction)
            if layout is not None:
                wrapping.setdefault(layout, []).append(direction)
        ordered = sorted(wrapping.items(), key=lambda item: (item[0].there, item[0].back))
        self._pool = matches.pool
        self._forms = {layout: _LayoutForms(directions, self._pool) for layout, directions in ordered}
        self._cancelling = Matcher(filter(cancels_transposition, matches.directions), self._pool)

    def __call__(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """The candidates that the best choice of layouts gives, one for each other layout that pays.

        Args:
            moves: carry a choice out; their prices decide.
            candidate: whose layouts to choose.
        """
        for layout, forms in self._forms.items():
            chosen = _LayoutCut(forms, moves, candidate.graph, layout).chosen()
            child = self.carry_out(moves, candidate, layout, chosen) if chosen else None
            if child is not None and child.cost < candidate.cost:
                yield child

    def forms(self, graph: Graph, value: int, layout: Layout) -> list[LayoutForm]:
        """The forms in another layout of the node that makes a value; none where the provider runs none."""
        return self._forms[layout].at(graph, value)

    def carry_out(self, moves: Moves, candidate: Candidate, layout: Layout, chosen: Sequence[tuple[Direction, int]]) -> Candidate:
        """The candidate after the moves that give the chosen operators the other layout; transpositions that meet cancel.

        Args:
            moves: take the steps.
            candidate: where to begin.
            layout: the other one.
            chosen: values, each with the wrapping rule for what makes it.
        """
        sites: dict[Direction, list[Match]] = {}
        for direction, value in chosen:
            matches = self._forms[layout].matches(candidate.graph, value)
            sites.setdefault(direction, []).extend(match for match in matches if match.direction is direction)
        while sites:
            before = candidate.graph.digest
            for direction in sorted(sites, key=lambda direction: direction.id):
                candidate = moves.take(candidate, sites[direction]) or candidate
            sites = self._meeting(candidate.graph) if candidate.graph.digest != before else {}
        return candidate

    def _meeting(self, graph: Graph) -> dict[Direction, list[Match]]:
        """The places where a transposition follows another that it may undo."""
        sites: dict[Direction, list[Match]] = {}
        for value in sorted({*graph.outputs}.union(*(node.inputs for node in graph.references))):
            maker = graph.definition(value)
            if maker is not None and maker[0].op == "Transpose":
                for hit in self._cancelling.at(graph, value):
                    sites.setdefault(hit.direction, []).extend(self._pool.join(hit.direction, [[hit]]))
        return sites


class _LayoutForms:
    """The forms of a model's operators in one other layout, each found once."""

    def __init__(self, wrapping: Sequence[Direction], pool: MatchPool) -> None:
        self._matcher, self._pool = Matcher(wrapping, pool), pool
        self._forms: dict[Match, LayoutForm | None] = {}

    def matches(self, graph: Graph, value: int) -> Iterator[Match]:
        """The matches of wrapping rules at a value."""
        for hit in self._matcher.at(graph, value):
            yield from self._pool.join(hit.direction, [[hit]])

    def at(self, graph: Graph, value: int) -> list[LayoutForm]:
        """The forms of the node that makes a value."""
        forms = []
        for match in self.matches(graph, value):
            if match not in self._forms:
                self._forms[match] = self._form(graph, match)
            form = self._forms[match]
            if form is not None:
                forms.append(form)
        return forms

    def _form(self, graph: Graph, match: Match) -> LayoutForm | None:
        """The form that a match makes of a node; ``None`` where its guards refuse it."""
        tables = graph.tables
        plan = self._pool.plan(match, graph)
        if isinstance(plan, NoMatch):
            return None
        ((back, _),) = plan.values()
        bound, stack = set(match.binding.values()) - set(match.values), [back.inputs[0]]
        inner: dict[Node, None] = {}
        turned = set()
        while stack:
            value = stack.pop()
            maker = tables.makers.get(value)
            if value in bound or maker is None or maker[0] in inner:
                continue
            node = maker[0]
            if node.op == "Transpose" and node.inputs[0] in bound:
                turned.add(node.inputs[0])
                continue
            inner[node] = None
            stack.extend(node.inputs)
        return LayoutForm(match.direction, tuple(inner), back, frozenset(turned))


@dataclass(frozen=True, slots=True)
class _LayoutChoice:
    """A node that has a form in the other layout for each output that is read.

    Attributes:
        here, there: microseconds of the node as it is, and of its forms together.
        back: microseconds of the transposition back, by output.
        turned: as of :class:`LayoutForm`.
        sites: the values that it makes, and the rule for each.
    """

    here: float
    there: float
    back: Mapping[int, float]
    turned: frozenset[int]
    sites: tuple[tuple[Direction, int], ...]


_Maker = tuple[Node, int] | int
"""The maker of a tensor: a node's output, or the value itself for an input of the model."""


@dataclass(slots=True)
class _LayoutTensor:
    """A tensor that some node makes and others read, whichever values stand for it.

    Attributes:
        value: one of them.
        readers: nodes that read it in the layout they have.
        as_it_is: whether something reads it in the first layout; outputs of the model do.
        turned: whether the model itself transposes it into the other layout.
    """

    value: int
    readers: set[Node] = field(default_factory=set)
    as_it_is: bool = False
    turned: bool = False


class _LayoutCut:
    """The choice between a candidate's layout and another one for all its operators together.

    Args:
        forms: of operators in the other layout.
        moves: their prices and their noise decide.
        graph: the candidate.
        layout: the other one.
    """

    def __init__(self, forms: _LayoutForms, moves: Moves, graph: Graph, layout: Layout) -> None:
        self._forms, self._prices, self._noise = forms, moves.prices, moves.noise
        self._graph, self._layout = graph, layout
        self._nodes = [node for node in graph.nodes() if node.op != "Identity"]
        self._choices = self._find_choices()
        transposes = layout.there != layout.back
        perms = (layout.there, layout.back)
        moving = (n for n in self._nodes if transposes and n.op == "Transpose" and n.attrs[0][1] in perms)
        self._movers = dict.fromkeys(moving)  # in their order
        self._edges: list[tuple[Hashable, Hashable, int | None]] = []

    def chosen(self) -> list[tuple[Direction, int]]:
        """The values whose operators take the other layout by the minimum cut, and by which rule.

        There are none where that saves no more than noise: a fraction of the time of the operators that change.
        """
        choices = self._choices
        gains = sum(max(choice.here - choice.there, 0.0) for choice in choices.values())
        if not choices or (not self._movers and gains <= 0):
            return []
        tensors = self._find_tensors()
        for node, choice in choices.items():
            self._connect(_FIRST, node, choice.there)
            self._connect(node, _OTHER, choice.here)
        for maker, tensor in tensors.items():
            self._price_tensor(maker, tensor)
        cost, other = minimum_cut(self._edges, _FIRST, _OTHER)
        taken = [choice for node, choice in choices.items() if node in other]
        changed = sum(choice.here for choice in taken)
        before = sum(choice.here for choice in choices.values()) + sum(self._cost(node) for node in self._movers)
        if before - cost / _SCALE <= self._noise * changed:
            return []
        return [site for choice in taken for site in choice.sites]

    def _cost(self, node: Node) -> float:
        return self._prices.cost(self._graph, node)

    def _find_choices(self) -> dict[Node, _LayoutChoice]:
        """The nodes that may take the other layout."""
        graph = self._graph
        read = {resolve(graph, v) for v in graph.outputs}.union(*({resolve(graph, v) for v in n.inputs} for n in self._nodes))
        made: dict[Node, list[int]] = {}
        for value in sorted(read):
            maker = graph.definition(value)
            if maker is not None:
                made.setdefault(maker[0], []).append(value)
        choices = ((node, self._choice(node, made.get(node, []))) for node in self._nodes)
        return {node: choice for node, choice in choices if choice is not None}

    def _choice(self, node: Node, values: Sequence[int]) -> _LayoutChoice | None:
        """A node as one that may take the other layout; ``None`` where an output has no form there.

        Args:
            node: makes the values.
            values: those that are read.
        """
        graph = self._graph
        if node.is_opaque or not values or graph.tables.constant[node.values[0]]:
            return None
        cheapest: dict[int, LayoutForm] = {}
        for value in values:
            forms = self._forms.at(graph, value)
            if not forms:
                return None
            cheapest[value] = min(forms, key=lambda form: sum(map(self._cost, form.inner)))
        inner = dict.fromkeys(part for form in cheapest.values() for part in form.inner)
        back = {maker[1]: self._cost(cheapest[v].back) for v in values if (maker := graph.definition(v)) is not None}
        turned = frozenset[int]().union(*(form.turned for form in cheapest.values()))
        sites = tuple((form.direction, value) for value, form in cheapest.items())
        return _LayoutChoice(self._cost(node), sum(map(self._cost, inner)), back, turned, sites)

    def _find_tensors(self) -> dict[_Maker, _LayoutTensor]:
        """The tensors of the candidate, and who reads each in which layout; constants are folded in any."""
        graph, choices = self._graph, self._choices
        tensors: dict[_Maker, _LayoutTensor] = {}

        def tensor(value: int) -> _LayoutTensor:
            at = resolve(graph, value)
            maker = graph.definition(at)
            return tensors.setdefault(at if maker is None else maker, _LayoutTensor(at))

        for value in graph.outputs:
            tensor(value).as_it_is = True
        for node in self._nodes:
            turned = choices[node].turned if node in choices else frozenset()
            for operand in dict.fromkeys(resolve(graph, v) for v in node.inputs):
                if graph.tables.constant[operand]:
                    continue
                if node in self._movers and node.attrs[0][1] == self._layout.there:
                    tensor(operand).turned = True  # its result is there for nothing where the operand is in the other layout
                elif node in self._movers:
                    continue  # the operand is the result in the other layout
                elif operand in turned:
                    tensor(operand).readers.add(node)
                else:
                    tensor(operand).as_it_is = True
        return tensors

    def _price_tensor(self, maker: _Maker, tensor: _LayoutTensor) -> None:
        """A Transpose where some reader wants a tensor in another layout than it is made in; one serves all such readers."""
        is_moved = bool(tensor.readers) or tensor.turned
        node, out = maker if isinstance(maker, tuple) else (None, 0)
        made: Hashable = _FIRST
        back = 0.0
        if node is not None and node in self._choices:
            made, back = node, self._choices[node].back[out]
        elif node is not None and node in self._movers and node.attrs[0][1] == self._layout.back:
            made, back = _OTHER, self._cost(node)
        elif not is_moved:
            return
        readers: list[Hashable] = [*sorted(tensor.readers, key=lambda reader: reader.index)]
        there = self._cost_there(tensor.value) if is_moved else 0.0
        if made != _OTHER and is_moved:
            wanted: Hashable = ("in the other layout", tensor.value)
            self._connect(made, wanted, there)
            for reader in [*readers, *([_OTHER] if tensor.turned else [])]:
                self._connect(wanted, reader, None)
        if made != _FIRST and (readers or tensor.as_it_is):
            wanted = ("in the first layout", tensor.value)
            self._connect(wanted, made, back)
            for reader in [*readers, *([_FIRST] if tensor.as_it_is else [])]:
                self._connect(reader, wanted, None)

    def _cost_there(self, value: int) -> float:
        """Microseconds of the transposition of a value into the other layout."""
        return self._cost(self._graph.tables.apply("Transpose", (("perm", self._layout.there),), [value]))

    def _connect(self, tail: Hashable, head: Hashable, price: float | None) -> None:
        """An edge of so many microseconds, or one that no cut takes."""
        self._edges.append((tail, head, None if price is None else round(_SCALE * price)))
