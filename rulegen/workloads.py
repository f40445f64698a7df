"""Operator groups as data: what the generator enumerates.

A workload is a frozen value: variables with their types, operators with their attributes, constants, limits. Adding a
group means adding an entry to :data:`WORKLOADS`.

An operator is written as a term. Its operands say what may stand there: ``any``, ``scalar`` (rank 0), ``tensor`` (any
other rank), ``leaf`` (a variable or a constant of the workload) or a number, which then stands there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from mugraph.node import Term, const
from mugraph.shape import DataType, SymDim, TensorType
from mugraph.text import parse_term, parse_type

__all__ = ["WORKLOADS", "Workload", "get_workload"]


@dataclass(frozen=True)
class Workload:
    """An operator group.

    Attributes:
        name: what ``--group`` takes.
        variables: name to type, with symbolic dimensions, in the order in which their symbols get sizes.
        operators: templates, in order of preference: where two terms of one size are equal, the operator that stands
            first becomes the representative.
        constants: numbers and truth values that are leaves wherever they are typed.
        max_ops: greatest number of operator applications of a term.
        extend: which terms become operands of larger ones: one representative per class, or all, for small groups of
            which every spelling is wanted.
        uses: greatest number of occurrences of a variable in a term, where it is limited.
        min_saving: a rule is kept only where its target has at least so many operators less than its source.
        max_rank, max_entries: limits on the types of terms (entries under the first shape assignment).
        exponentials: values carry the second residue that exponentials need (Lax programs).
        macros: rules stay although smaller ones derive them: steps worth taking at once.
    """

    name: str
    variables: Mapping[str, str]
    operators: tuple[str, ...]
    constants: tuple[float | bool, ...] = ()
    max_ops: int = 3
    extend: Literal["representatives", "all"] = "representatives"
    uses: Mapping[str, int] = field(default_factory=dict)
    min_saving: int = 0
    max_rank: int = 4
    max_entries: int = 256
    exponentials: bool = False
    macros: bool = False

    @cached_property
    def types(self) -> dict[str, TensorType]:
        return {name: parse_type(text) for name, text in self.variables.items()}

    @cached_property
    def operator_terms(self) -> tuple[Term, ...]:
        return tuple(parse_term(text) for text in self.operators)

    @cached_property
    def constant_terms(self) -> tuple[Term, ...]:
        """The constants, then those that stand in templates only."""
        found = [const(value if isinstance(value, bool) else float(value)) for value in self.constants]
        for template in self.operator_terms:
            found.extend(slot for slot in template.inputs if slot.op == "Const" and slot not in found)
        return tuple(found)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Dimension symbols in order of first occurrence."""
        found: dict[str, None] = {}
        for type_ in self.types.values():
            for dim in type_.shape:
                if isinstance(dim, SymDim):
                    found.update(dict.fromkeys(sorted(dim.symbols())))
        return tuple(found)

    @cached_property
    def interchangeable(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the variables of each type that has several."""
        groups: dict[TensorType, list[int]] = {}
        for position, type_ in enumerate(self.types.values()):
            groups.setdefault(type_, []).append(position)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @staticmethod
    def constant_type(leaf: Term) -> TensorType:
        return TensorType(DataType.BOOL if isinstance(leaf.attr("value"), bool) else DataType.FLOAT, ())


_ALL = (
    Workload(
        name="linear",
        variables={
            "X": "[m,k]",
            "Y": "[m,k]",
            "W": "[k,n]",
            "V": "[k,n]",
            "U": "[k,p]",
            "C": "[k,p]",
            "A": "[k,r]",
            "B": "[r,n]",
            "Z": "[k,n+p]",
            "T": "[k,n+p]",
            "s": "[]",
            "f": "[m,1]",
            "b": "[n]",
        },
        operators=(
            "MatMul(any, any)",
            "Mul(any, any)",
            "Add(any, any)",
            "Sub(any, any)",
            "Neg(any)",
            "Transpose[perm=(1,0)](any)",
            "Concat[axis=-1](tensor, tensor)",
            "Concat[axis=-2](tensor, tensor)",
            "Split[axis=-1,sizes=(n,p)](any)",
            "Split[axis=-1,sizes=(n,n)](any)",
            "Split[axis=-2,sizes=(m,m)](any)",
        ),
        uses=dict.fromkeys("YVUCABTfb", 1) | dict.fromkeys("XWZs", 2),
    ),
    Workload(
        name="lowrank",
        variables={"X": "[m,k]", "W": "[k,n]", "A": "[k,r]", "B": "[r,n]", "s": "[]"},
        operators=("Mul(tensor, scalar)", "MatMul(any, any)", "Add(tensor, tensor)"),
        max_ops=5,
        extend="all",
        uses={"X": 2, "W": 1, "A": 1, "B": 1, "s": 1},
        min_saving=1,
        macros=True,
    ),
    Workload(
        name="guard",
        variables={"x": "[m,n]", "y": "[m,n]", "c": "[]", "w": "bool[m,n]"},
        operators=(
            "IsNaN(any)",
            "Softmax[axis=-1](tensor)",
            "Where(any, any, any)",
            "Reciprocal(any)",
            "Mul(any, 1)",
            "Add(any, 0)",
            "Sub(any, 0)",
            "Div(any, 1)",
            "Div(1, any)",
        ),
        constants=(0.0,),
        uses={"x": 3, "y": 1, "c": 1, "w": 1},
        exponentials=True,
    ),
    Workload(
        name="normal",
        variables={"x": "[m,n]", "y": "[m,n]", "W": "[n,p]", "f": "[m,1]", "g": "[n]", "s": "[]"},
        operators=(
            "Unsqueeze[axes=(-1)](leaf)",
            "Mul(any, any)",
            "Div(any, any)",
            "Reciprocal(any)",
            "Sqrt(any)",
            "Pow(any, 2)",
            "MatMul(any, any)",
            "Neg(any)",
            "ReduceMean[axes=(-1),keepdims=true](tensor)",
        ),
        uses={"x": 2, "y": 1, "W": 1, "f": 1, "g": 1, "s": 1},
    ),
    Workload(
        name="activation",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]", "s": "[]"},
        operators=(
            "Mul(any, any)",
            "Relu(any)",
            "Sigmoid(any)",
            "Tanh(any)",
            "Erf(any)",
            "Neg(any)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](any)",
        ),
        uses={"x": 1, "y": 1, "z": 2, "s": 1},
    ),
    Workload(
        name="layout",
        variables={"x": "[a,b,c]", "y": "[a,b,c]", "s": "[]"},
        operators=(
            "Mul(any, any)",
            "Add(any, any)",
            "Sub(any, any)",
            "Div(any, leaf)",
            "Neg(any)",
            "Sigmoid(any)",
            "Tanh(any)",
            "Relu(any)",
            "Transpose[perm=(1,0)](any)",
            "Transpose[perm=(1,0,2)](any)",
            "Transpose[perm=(2,0,1)](any)",
            "Transpose[perm=(1,2,0)](any)",
            "Transpose[perm=(2,1,0)](any)",
            "Reshape[drop=2,shape=(b*c)](any)",
            "Reshape[drop=1,shape=(b,c)](any)",
        ),
        uses={"x": 1, "y": 1, "s": 1},
        max_ops=3,
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
"""Group name to workload, in the order in which ``rulegen ship`` grows them."""


def get_workload(name: str) -> Workload:
    """Looks a group up.

    Raises:
        KeyError: there is none of that name; the message lists the known ones.
    """
    if name not in WORKLOADS:
        raise KeyError(f"unknown group '{name}'; known groups: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
