"""A composite operator and the plain program that defines it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, walk
from rulegen.prove.admission import Assumption
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.search import ProofSearch
from rulegen.prove.selection import Laws
from rulegen.spell.vocabulary import smallest, written
from rules_db.trust.condition import Condition
from rules_db.trust.guards import Argument
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Side

__all__ = ["Definition", "assumptions", "counted", "is_unwritten"]


@dataclass(frozen=True)
class Definition:
    """A form of a composite operator.

    Attributes:
        operator: its name in the registry.
        roots: the operator applied to variables, or to what is made of them, one term an output.
        plain: the same outputs by operators that are no name for others, except for those of a runtime's that define this one.
        types: of the variables.
        assumed: conditions on the values of variables under which that holds: a mask is a causal one.
    """

    operator: str
    roots: Side
    plain: Side
    types: dict[str, TensorType]
    assumed: tuple[Condition, ...] = ()

    @property
    def is_half(self) -> bool:
        """Whether all numbers are of a narrower floating-point type than float32."""
        return {type_.dtype for type_ in self.types.values()} & FLOATS <= FLOATS - {DataType.FLOAT, DataType.DOUBLE}

    def __str__(self) -> str:
        operands = ", ".join(f"{name}:{type_}" for name, type_ in self.types.items())
        assumed = "".join(f" when {condition}" for condition in self.assumed)
        return f"{'; '.join(map(repr, self.roots))} | {operands}{assumed}"


def counted(plain: Side, types: dict[str, TensorType]) -> Side:
    """The program without operators that no model has, as far as properties say how it does without: rows of all positions."""
    if not any(is_unwritten(term) for term in walk(plain)):
        return plain
    language = Language()
    laws = Laws(language)
    for axiom in load_axioms().values():
        sides = [any(map(is_unwritten, walk([side]))) for side in (axiom.left, axiom.right)]
        if any(sides) and not all(sides):
            laws.add(axiom)
    graph = EGraph(language)
    nodes = [node for root in plain if (node := graph.add_term(root, types)) is not None]
    ProofSearch(graph, laws, (), assume=False).saturate(max(graph.size), 2 * len(graph.op), float("inf"))
    terms = smallest(graph, written)
    found = tuple(terms[graph.find(node)] for node in nodes if graph.find(node) in terms)
    return found if len(found) == len(plain) else plain


def is_unwritten(term: Term) -> bool:
    """Whether a term is what an operator makes of nothing, and no model has it."""
    return not term.inputs and term.op not in ("Var", "Const") and not written(term.op)


def assumptions(graph: EGraph, form: Definition) -> list[Assumption]:
    """What a form assumes, with nodes of an e-graph for terms."""

    def placed(argument: Argument) -> Any:
        return graph.add_term(argument, form.types) if isinstance(argument, Term) else argument

    return [(condition.predicate, tuple(map(placed, condition.arguments))) for condition in form.assumed]
