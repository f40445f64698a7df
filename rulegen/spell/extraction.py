"""The programs that an e-graph holds of its roots, with few operators and near to the definition.

A program chooses one node for each class that it has, so that equal values are computed once, as exporters compute them. Choices
are enumerated depth first; the classes that still wait bound them.

In half precision a program may compute in float32 in between, in one piece: an operand, or the only value that is computed of
it, is cast once or never, and what is computed is cast back once for each output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mugraph.ops import get_operator, traits_of
from mugraph.ops.traits import Movement
from mugraph.terms.term import Term, walk
from rulegen.mine.numbers import is_sample
from rulegen.spell.saturation import Saturated
from rulegen.spell.vocabulary import operators_of, written
from rules_db.trust.rule import Side

__all__ = ["Extraction", "ExtractionLimits", "Program", "extracted"]


@dataclass(frozen=True)
class ExtractionLimits:
    """Limits of the programs.

    Attributes:
        operators: greatest number of operators, but for casts.
        places: greatest number of operators that the definition does not have, but for what casts and moves: how far a program
            is from it.
        steps: of the enumeration.
    """

    operators: int = 12
    places: int = 3
    steps: int = 1_000_000


@dataclass(frozen=True)
class Program:
    """A program for the roots, with its numbers of operators and of places (:class:`ExtractionLimits`)."""

    roots: Side
    operators: int
    places: int


@dataclass(frozen=True)
class Extraction:
    """The programs, and whether all were enumerated that the limits on programs admit.

    Those come first that have no operator that is a name for others, as not every opset has it; of these those with the fewest.
    """

    programs: tuple[Program, ...]
    complete: bool


_Node = tuple[int, tuple[int, ...]]
"""An operator's number and the classes of its operands."""


def extracted(saturated: Saturated, limits: ExtractionLimits | None = None) -> Extraction:
    """The programs of operators that ONNX has and that are no names for others."""
    return _Extractor(saturated, limits or ExtractionLimits()).run()


class _Extractor:
    """One enumeration.

    Attributes:
        nodes: per class what may be chosen, each with whether the definition does not have it.
        least: per class that has a program whether it takes an operator that counts.
        leaves: per class the term of a variable or a number in it.
        narrow: operators, by number, that cast back to the precision of the outputs.
    """

    def __init__(self, saturated: Saturated, limits: ExtractionLimits) -> None:
        self.graph, self.limits = saturated.graph, limits
        self.roots = tuple(map(self.graph.find, saturated.roots))
        self.leaves = _leaves(saturated)
        language = self.graph.language
        types = {language.types[self.graph.type[root]][0].dtype for root in self.roots}
        self.narrow = {n for n, (op, attrs, _) in enumerate(language.ops) if op == "Cast" and dict(attrs)["to"] in types}
        self.nodes = self._nodes(saturated)
        self.least = self._least()
        self.nodes = {c: [node for node in nodes if all(x in self.least for x in node[0][1])] for c, nodes in self.nodes.items()}
        self._chosen: dict[int, _Node] = {}
        self._steps = 0

    def run(self) -> Extraction:
        """All programs within the limits."""
        waiting = tuple(dict.fromkeys(root for root in self.roots if root not in self.leaves))
        programs = [Program(self._terms(), count, places) for count, places in self._choose(waiting, 0, 0)]
        programs.sort(key=lambda p: (not all(map(written, operators_of(p.roots))), p.operators, p.places, str(p.roots)))
        return Extraction(tuple(programs), self._steps <= self.limits.steps)

    def _nodes(self, saturated: Saturated) -> dict[int, list[tuple[_Node, bool]]]:
        graph, given = self.graph, saturated.given
        found: dict[int, dict[_Node, bool]] = {}
        for node, operands in enumerate(graph.operands):
            name = graph.language.ops[graph.op[node]][0]
            if not operands or not (written(name) or (node < given and saturated.admits(name))):
                continue
            below = tuple(map(graph.find, operands))
            if all(c in self.leaves and not self.leaves[c].is_var for c in below):
                continue  # computed of numbers alone: a reader folds it
            if self._keeps_an_axis(node):
                continue
            if get_operator(name).commutative:
                below = tuple(sorted(below))
            if graph.find(node) not in self.leaves:
                found.setdefault(graph.find(node), {}).setdefault((graph.op[node], below), node >= given and not _is_free(name))
        return {c: sorted(nodes.items(), key=lambda item: item[1]) for c, nodes in found.items()}

    def _keeps_an_axis(self, node: int) -> bool:
        """Whether a Reshape names an axis that it could leave alone: none is read so."""
        _, attrs, _ = self.graph.language.ops[self.graph.op[node]]
        drop, shape = dict(attrs).get("drop"), dict(attrs).get("shape", ())
        if not drop or not shape:
            return False
        before = self.graph.language.types[self.graph.type[self.graph.find(self.graph.operands[node][0])]][0].shape
        return bool(before[-drop] == shape[0])

    def _least(self) -> dict[int, int]:
        """Per class that has a program whether it takes an operator that counts: what is below it may be there already."""
        least = dict.fromkeys(self.leaves, 0)
        changed = True
        while changed:
            changed = False
            for c, nodes in self.nodes.items():
                counts = [self._counts(op) for (op, below), _ in nodes if all(x in least for x in below)]
                if counts and min(counts) < least.get(c, 2):
                    least[c], changed = int(min(counts)), True
        return least

    def _choose(self, waiting: tuple[int, ...], count: int, places: int) -> Iterator[tuple[int, int]]:
        """Chooses nodes for the classes that wait, and for those that these need; the counts of each program."""
        self._steps += 1
        if self._steps > self.limits.steps:
            return
        if not waiting:
            if self._in_one_piece():
                yield count, places
            return
        *rest, c = waiting
        for node, is_new in self.nodes.get(c, ()):
            if places + is_new > self.limits.places:
                continue
            needed = [x for x in dict.fromkeys(node[1]) if x not in self.leaves and x not in self._chosen and x not in rest]
            total = count + self._counts(node[0])
            least = total + sum(self.least[x] for x in (*rest, *needed))
            if least > self.limits.operators or self._leads_to(node, c) or self._casts_again(node[0]):
                continue
            self._chosen[c] = node
            if self._views_twice(c):
                del self._chosen[c]
                continue
            yield from self._choose((*rest, *needed), total, places + is_new)
            del self._chosen[c]

    def _views_twice(self, c: int) -> bool:
        """Whether what was chosen for a class gives another shape to what was only given one, or the other way round."""
        views = [x for x, (op, _) in self._chosen.items() if _is_view(self.graph.language.ops[op][0])]
        return c in views and any(x in self._chosen[c][1] or c in self._chosen[x][1] for x in views)

    def _counts(self, op: int) -> bool:
        return self.graph.language.ops[op][0] != "Cast"

    def _casts_again(self, op: int) -> bool:
        """Whether an operator would cast back at a further place."""
        return op in self.narrow and sum(chosen in self.narrow for chosen, _ in self._chosen.values()) >= len(self.roots)

    def _in_one_piece(self) -> bool:
        """Whether all ways from the outputs to an operand meet the same cast to another precision first, or none does."""
        casts: dict[int, set[int | None]] = {}
        stack: list[tuple[int, int | None]] = [(root, None) for root in self.roots]
        seen = set(stack)
        while stack:
            c, cast = stack.pop()
            if c in self.leaves:
                casts.setdefault(c, set()).add(cast)
                continue
            op, operands = self._chosen[c]
            if cast is None and self.graph.language.ops[op][0] == "Cast" and op not in self.narrow:
                cast = c
            further = [(x, cast) for x in operands if (x, cast) not in seen]
            seen.update(further)
            stack.extend(further)
        return all(len(above) == 1 for c, above in casts.items() if self.leaves[c].is_var)

    def _leads_to(self, node: _Node, target: int) -> bool:
        """Whether a node is computed of the class, by what was chosen: that would be a circle."""
        stack, seen = list(node[1]), set(node[1])
        while stack:
            c = stack.pop()
            if c == target:
                return True
            further = [x for x in self._chosen.get(c, (0, ()))[1] if x not in seen]
            seen.update(further)
            stack.extend(further)
        return False

    def _terms(self) -> Side:
        made: dict[int, Term] = dict(self.leaves)

        def term(c: int) -> Term:
            if c not in made:
                op, below = self._chosen[c]
                name, attrs, out = self.graph.language.ops[op]
                made[c] = Term(name, attrs, tuple(map(term, below)), out)
            return made[c]

        return tuple(map(term, self.roots))


def _is_view(operator: str) -> bool:
    return traits_of(operator).movement is Movement.VIEW


def _is_free(operator: str) -> bool:
    """Whether an operator is no place of a program: it casts or moves what others compute."""
    return operator == "Cast" or traits_of(operator).movement is not None


def _leaves(saturated: Saturated) -> Mapping[int, Term]:
    """Classes that hold a variable or a number, and that; of operators without operands none is written.

    A number that nobody uses stands for any only beside those that do.
    """
    graph, leaves = saturated.graph, dict[int, Term]()
    for node, operands in enumerate(graph.operands):
        if not operands and graph.language.ops[graph.op[node]][0] in ("Var", "Const"):
            leaves.setdefault(graph.find(node), graph.term(node))
    numbers = {c: leaf.attr("value") for c, leaf in leaves.items() if not leaf.is_var}
    is_open = any(is_sample(value) for term in walk(map(graph.term, saturated.roots)) for _, value in term.attrs)
    unused = {c for c, number in numbers.items() if number in saturated.numbers or (is_sample(number) and not is_open)}
    return {c: leaf for c, leaf in leaves.items() if c not in unused}
