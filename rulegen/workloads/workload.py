"""A workload: a declared space of programs, as data.

An operator is written as a term. Its operands say what may stand there: ``any``, ``scalar`` (rank 0), ``tensor`` (any
other rank), ``rank2`` (or another rank), ``of_3x3`` (the last dimensions are 3 and 3; symbols and their multiples may stand
there as well: ``of_wx2c``), ``same`` (tensors of one type), ``leaf`` (a variable or a constant of the workload), a variable of
the workload, or a number, which then stands there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType
from mugraph.terms.term import Term, const
from mugraph.terms.text import parse_term, parse_type

__all__ = ["Workload", "slot_admits"]


def slot_admits(slot: str, type_: TensorType) -> bool:
    """Whether a value of a type may stand for an operand that a template writes as ``slot``."""
    if slot in ("any", "leaf"):
        return True
    if slot in ("tensor", "same"):
        return type_.rank > 0
    if slot == "scalar":
        return type_.rank == 0
    if slot.startswith("rank"):
        return type_.rank == int(slot.removeprefix("rank"))
    assert slot.startswith("of_"), f"an operator's operand is written '{slot}'"
    dims = re.sub("([0-9])([a-z])", r"\1*\2", slot.removeprefix("of_").replace("x", ","))
    wanted = parse_type(f"[{dims}]").shape
    return type_.rank > len(wanted) and type_.shape[-len(wanted) :] == wanted


@dataclass(frozen=True)
class Workload:
    """A declared space of programs, enumerated on its own: a group or a part of one.

    Attributes:
        name: of the group, or of the group and the part, as ``rulegen grow --group`` takes it.
        variables: name to type, with symbolic dimensions, in the order in which their symbols get sizes.
        operators: templates, in order of preference: where two terms of one size are equal, the operator that stands
            first becomes the representative.
        constants: numbers, truth values and operators without operands, as text, that are leaves wherever they are typed.
        max_ops: greatest number of operator applications of a term.
        shared: applications are counted as in a graph, so that a node that several operands read counts once, and so do the uses
            of what it reads; else as in a tree.
        extend: which terms become operands of larger ones: one representative per class, or all, for small groups of
            which every spelling is wanted.
        uses: greatest number of occurrences of a variable, a constant or an operator in a term, where it is limited.
        min_saving: a rule is kept only where its target has at least so many operators less than its source.
        max_rank, max_entries: limits on the types of terms (entries under the first shape assignment).
        sizes: symbol to its sizes under the evaluations, where the standard ones would be too large. Types are symbolic:
            equal sizes make no two types equal.
        samples: inputs drawn per evaluation; 0 for as many as the operators need. With few, terms that depend on the order
            of numbers are evaluated once more with many, under the fourth or the least of ``sizes``.
        exponentials: values carry the second residue that exponentials need (Lax programs).
        macros: rules stay although smaller ones derive them: steps worth taking at once.
        keep: names of attributes whose values stay as they are in the rules, although their proofs hold for others: where a
            side alone has the attribute, the rule could not be read towards that side otherwise.
        determined: attribute values become variables in the rules also where neither side binds the other's, but conditions
            determine the rest: the zeros around an enlarged kernel by its pads, the groups of convolutions by their sum.
        open_numbers: numbers, in attributes and as operands, become variables where a proof does not look at them.
        ships: its rules are for models, and travel with the package.
        equations: further candidates, ``source = target`` over the variables, which hold under conditions on values that random
            inputs do not meet. A workload may have nothing but these.
    """

    name: str
    variables: Mapping[str, str]
    operators: tuple[str, ...]
    constants: tuple[float | bool | str, ...] = ()
    max_ops: int = 3
    shared: bool = False
    extend: Literal["representatives", "all"] = "representatives"
    uses: Mapping[str, int] = field(default_factory=dict)
    min_saving: int = 0
    max_rank: int = 4
    max_entries: int = 256
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    samples: int = 0
    exponentials: bool = False
    macros: bool = False
    keep: frozenset[str] = frozenset()
    determined: bool = False
    open_numbers: bool = False
    ships: bool = True
    equations: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """The workload as JSON can say it; the order of what it names is part of it."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            **data,
            "keep": sorted(self.keep),
            "variables": dict(self.variables),
            "uses": dict(self.uses),
            "sizes": dict(self.sizes),
        }

    @staticmethod
    def of_data(data: Mapping[str, Any]) -> Workload:
        """The workload that :meth:`as_data` told, also behind JSON, which has lists alone."""
        listed = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        sizes = {symbol: tuple(values) for symbol, values in data["sizes"].items()}
        return Workload(**{**data, **listed, "keep": frozenset(data["keep"]), "sizes": sizes})

    @property
    def group(self) -> str:
        """The group that it is a part of."""
        return self.name.split("-")[0] if self.ships else self.name

    @cached_property
    def types(self) -> dict[str, TensorType]:
        return {name: parse_type(text) for name, text in self.variables.items()}

    @cached_property
    def operator_terms(self) -> tuple[Term, ...]:
        return tuple(parse_term(text) for text in self.operators)

    @cached_property
    def constant_terms(self) -> tuple[Term, ...]:
        """The constants, then those that stand in templates only."""
        leaves = [
            parse_term(value) if isinstance(value, str) else const(value if isinstance(value, bool) else float(value))
            for value in self.constants
        ]
        for template in self.operator_terms:
            leaves.extend(slot for slot in template.inputs if slot.op == "Const" and slot not in leaves)
        return tuple(leaves)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Dimension symbols in order of first occurrence."""
        symbols: dict[str, None] = {}
        for type_ in self.types.values():
            for dim in type_.shape:
                if isinstance(dim, SymDim):
                    symbols.update(dict.fromkeys(sorted(dim.symbols())))
        return tuple(symbols)

    @cached_property
    def interchangeable(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the variables of each type that has several; a variable that a template names is not one of them."""
        groups: dict[TensorType, list[int]] = {}
        named = {slot.name for template in self.operator_terms for slot in template.inputs if slot.is_var}
        for position, (name, type_) in enumerate(self.types.items()):
            if name not in named:
                groups.setdefault(type_, []).append(position)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @staticmethod
    def constant_type(leaf: Term) -> TensorType:
        if leaf.op != "Const":
            return get_operator(leaf.op).types(leaf.attrs, [])[leaf.out]
        return TensorType(DataType.BOOL if isinstance(leaf.attr("value"), bool) else DataType.FLOAT, ())
