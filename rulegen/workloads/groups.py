"""Operator groups as data: what the generator enumerates.

A workload is a frozen value: variables with their types, operators with their attributes, constants, limits. A group is one
workload or several that are grown one after the other: each keeps to the operators that meet. The parts of group ``linear``
are called ``linear``, ``linear-gemm`` and so on. Adding a group means adding an entry to :data:`WORKLOADS`.

An operator is written as a term. Its operands say what may stand there: ``any``, ``scalar`` (rank 0), ``tensor`` (any
other rank), ``rank2`` (or another rank), ``of_3x3`` (the last dimensions are 3 and 3; symbols and their multiples may stand
there as well: ``of_wx2c``), ``same`` (tensors of one type), ``leaf`` (a variable or a constant of the workload), a variable of
the workload, or a number, which then stands there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType
from mugraph.terms.term import Term, const
from mugraph.terms.text import parse_term, parse_type

__all__ = ["GROUPS", "WORKLOADS", "Workload", "get_workload", "slot_admits"]


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
    """An operator group.

    Attributes:
        name: what ``--group`` takes.
        variables: name to type, with symbolic dimensions, in the order in which their symbols get sizes.
        operators: templates, in order of preference: where two terms of one size are equal, the operator that stands
            first becomes the representative.
        constants: numbers, truth values and operators without operands, as text, that are leaves wherever they are typed.
        max_ops: greatest number of operator applications of a term.
        extend: which terms become operands of larger ones: one representative per class, or all, for small groups of
            which every spelling is wanted.
        uses: greatest number of occurrences of a variable or of an operator in a term, where it is limited.
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
        ships: its rules are for models, and travel with the package.
        equations: what else is certified, ``source = target`` over the variables: equations that hold under conditions on values
            that random inputs do not meet. A workload may have nothing but these.
    """

    name: str
    variables: Mapping[str, str]
    operators: tuple[str, ...]
    constants: tuple[float | bool | str, ...] = ()
    max_ops: int = 3
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
    ships: bool = True
    equations: tuple[str, ...] = ()

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
        found = [
            parse_term(value) if isinstance(value, str) else const(value if isinstance(value, bool) else float(value))
            for value in self.constants
        ]
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


_SPATIAL = {"n": (2, 1, 1), "c": (2, 3, 2), "h": (3, 2, 4), "w": (2, 4, 3), "d": (2, 3, 3), "e": (3, 2, 4)}
"""Small sizes for images and kernels."""
_VALID = _SPATIAL | {"h": (4, 3, 5), "w": (3, 5, 4)}
"""The same where a kernel of 3x3 must fit inside."""


def _conv(group: str = "1", pad: int = 1, stride: int = 1) -> str:
    return f"Conv[dilations=(1,1),group={group},pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})]"


def _max_pool(pad: int = 1, stride: int = 1) -> str:
    return f"MaxPool[ceil=false,dilations=(1,1),kernel=(3,3),pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})]"


def _average_pool(pad: int = 1, stride: int = 1, count: bool = True) -> str:
    where = f"pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})"
    return f"AveragePool[ceil=false,count_include_pad={str(count).lower()},dilations=(1,1),kernel=(3,3),{where}]"


def _pad(size: int) -> str:
    return f"Pad[begins=({size},{size}),ends=({size},{size}),mode='constant',value=0.0]"


_ENTRYWISE = (
    "Neg",
    "Abs",
    "Sqrt",
    "Exp",
    "Erf",
    "Tanh",
    "Sigmoid",
    "Relu",
    "LeakyRelu[alpha=0.125]",
    "Clip[max=6.0,min=0.0]",
    "Gelu[approximate='none']",
    "HardSwish",
    "HardSigmoid[alpha=0.125,beta=0.5]",
)


def _channels_last(
    name: str,
    variables: Mapping[str, str],
    operators: tuple[str, ...],
    max_ops: int,
    uses: Mapping[str, int],
    samples: int = 0,
    exponentials: bool = False,
    macros: bool = False,
) -> Workload:
    """Operators between a transposition of the channels behind the spatial axes and one back, as the operators without it."""
    return Workload(
        name=f"layout-{name}",
        variables=variables,
        operators=(*operators, "Transpose[perm=(1,2,0)](leaf)"),
        max_ops=max_ops,
        extend="all",
        uses={**dict.fromkeys(variables, 1), **uses},
        min_saving=2,
        max_rank=5,
        samples=samples,
        exponentials=exponentials,
        macros=macros,
        keep=frozenset({"perm", "axis"}),
        sizes=_VALID,
    )


_POOLS = (
    *(("MaxPool", "", *window) for window in ((3, 2, 1), (3, 2, 0), (2, 2, 0), (3, 1, 1))),
    *(("AveragePool", "count_include_pad=false,", *window) for window in ((3, 1, 1), (3, 2, 1), (2, 2, 0))),
    ("AveragePool", "count_include_pad=true,", 3, 1, 1),
)
"""Pools of image models: operator, an attribute of averages, kernel, stride and pad."""


def _pool(name: str, more: str, kernel: int, stride: int, pad: int, last: str = "") -> str:
    """A pool over two axes, or over three of which the ``last`` is not pooled."""
    (one, zero), k, s, p = (",1", ",0") if last else ("", ""), kernel, stride, pad
    where = f"pads=({p},{p}{zero},{p},{p}{zero}),strides=({s},{s}{one})"
    return f"{name}[ceil=false,{more}dilations=(1,1{one}),kernel=({k},{k}{one}),{where}]"


_KERNELS = {"3x3": (1, 1), "1x1": (0, 0), "1x3": (0, 1)}
"""Kernels of TASO's space and the padding that keeps the size."""

_TASO_PAPER = Workload(
    name="taso-paper",
    variables=dict.fromkeys("ABCD", "[m,m]")
    | dict.fromkeys("xyzt", "[n,c,h,w]")
    | dict.fromkeys("KLMN", "[c,c,3,3]")
    | dict.fromkeys("EFGH", "[c,c,1,1]")
    | dict.fromkeys("UVWX", "[c,c,1,3]")
    | dict.fromkeys("pqrs", "[]")
    | dict.fromkeys("YZ", "[m,2*m]"),
    operators=(
        "Relu(tensor)",
        "Transpose[perm=(1,0)](rank2)",
        "Mul(any, scalar)",
        "Add(same, same)",
        "Mul(same, same)",
        "MatMul(rank2, rank2)",
        *(
            f"{name}[dilations=(1,1),group=1,pads=({a},{b},{a},{b}),strides=(1,1)](of_hxw, of_{kernel})"
            for name in ("Conv", "FusedConv")
            for kernel, (a, b) in _KERNELS.items()
        ),
        "Conv[dilations=(1,1),group=c,pads=(1,1,1,1),strides=(1,1)](of_hxw, of_3x3)",
        f"{_average_pool()}(of_hxw)",
        f"{_max_pool()}(of_hxw)",
        "Pad[begins=(1,1),ends=(1,1),mode='constant',value=0.0](of_1x1)",
        "Pad[begins=(1,0),ends=(1,0),mode='constant',value=0.0](of_1x3)",
        "Concat[axis=-1](rank2, rank2)",
        "Concat[axis=-2](rank2, rank2)",
        "Concat[axis=-3](rank4, rank4)",
        "Concat[axis=-4](rank4, rank4)",
        "Split[axis=-1,sizes=(m,m)](rank2)",
        "Split[axis=-2,sizes=(m,m)](rank2)",
        "Split[axis=-3,sizes=(c,c)](rank4)",
        "Split[axis=-4,sizes=(c,c)](rank4)",
        "Split[axis=-4,sizes=(n,n)](rank4)",
    ),
    constants=(
        "Eye[size=m]()",
        "Ones[shape=(m,m)]()",
        "Ones[shape=(n,c,h,w)]()",
        *(f"IdentityKernel[channels=c,kernel=({kernel.replace('x', ',')})]()" for kernel in _KERNELS),
        "AveragingKernel[channels=c,kernel=(3,3)]()",
    ),
    max_ops=3,
    sizes={"m": (2, 4, 3, 3), "n": (1, 2, 1, 1), "c": (3, 2, 2, 2), "h": (3, 5, 2, 1), "w": (2, 2, 6, 3)},
    samples=1,
    max_entries=400,
    ships=False,
)

_ALL = (
    Workload(
        name="linear",
        variables={
            "X": "[m,k]",
            "Y": "[m,k]",
            "W": "[k,n]",
            "V": "[k,n]",
            "U": "[k,p]",
            "A": "[k,r]",
            "B": "[r,n]",
            "Z": "[k,n+p]",
            "s": "[]",
            "f": "[m,1]",
            "b": "[n]",
        },
        operators=(
            "MatMul(any, any)",
            "Mul(tensor, s)",
            "Mul(tensor, f)",
            "Mul(tensor, b)",
            "Mul(same, same)",
            "Add(same, same)",
            "Add(tensor, b)",
            "Add(tensor, f)",
            "Sub(same, same)",
            "Neg(any)",
            "Transpose[perm=(1,0)](any)",
            "Concat[axis=-1](tensor, tensor)",
            "Concat[axis=-2](tensor, tensor)",
            "Split[axis=-1,sizes=(n,p)](any)",
            "Split[axis=-1,sizes=(n,n)](any)",
            "Split[axis=-2,sizes=(m,m)](any)",
        ),
        uses=dict.fromkeys("YWVUABfbs", 1) | dict.fromkeys("XZ", 2) | {"Concat": 2, "Neg": 2},
    ),
    Workload(
        name="linear-gemm",
        variables={"X": "[m,k]", "W": "[k,n]", "R": "[n,k]", "b": "[n]", "s": "[]"},
        operators=(
            *(
                f"Gemm[alpha=1.0,beta=1.0,transA={a},transB={b}]({operands})"
                for a in ("false", "true")
                for b in ("false", "true")
                for operands in ("rank2, rank2", "rank2, rank2, rank1")
            ),
            "MatMul(tensor, tensor)",
            "Add(tensor, tensor)",
            "Mul(tensor, scalar)",
            "Transpose[perm=(1,0)](leaf)",
        ),
        uses=dict.fromkeys("XWRbs", 1) | {"Gemm": 1, "MatMul": 1},
    ),
    Workload(
        name="linear-batch",
        variables={
            "X": "[b,m,k]",
            "Y": "[b,m,k]",
            "W": "[k,n]",
            "V": "[b,k,n]",
            "U": "[b,k,p]",
            "s": "[]",
            "f": "[m,1]",
            "g": "[b,1,1]",
            "v": "[n]",
        },
        operators=(
            "MatMul(of_k, any)",
            "Mul(tensor, s)",
            "Mul(tensor, f)",
            "Mul(tensor, g)",
            "Add(same, same)",
            "Add(tensor, v)",
            "Transpose[perm=(1,0)](any)",
            "Transpose[perm=(1,0,2)](rank3)",
            "Concat[axis=-1](rank3, rank3)",
            "Concat[axis=-2](rank3, rank3)",
            "Concat[axis=-3](rank3, rank3)",
            "Split[axis=-1,sizes=(n,p)](rank3)",
            "Split[axis=-2,sizes=(m,m)](rank3)",
            "Split[axis=-3,sizes=(b,b)](rank3)",
            "Reshape[drop=3,shape=(b*m,k)](rank3)",
            "Reshape[drop=2,shape=(b,m,n)](rank2)",
            "Expand[shape=(b,k,n)](rank2)",
        ),
        uses=dict.fromkeys("YWVUsfgv", 1) | {"X": 2, "Concat": 2},
    ),
    Workload(
        name="linear-sum",
        variables={"X": "[m,k]", "Y": "[m,k]", "Z": "[m,k+l]", "W": "[k,n]", "s": "[]", "f": "[m,1]", "g": "[k]"},
        operators=(
            "MatMul(of_k, any)",
            "Mul(tensor, s)",
            "Mul(tensor, f)",
            "Mul(tensor, g)",
            "Mul(same, same)",
            "Add(same, same)",
            "Neg(tensor)",
            *(f"ReduceSum[axes=({axis},),keepdims={keep}](tensor)" for axis in (-1, -2) for keep in ("true", "false")),
            "ReduceSum[axes=(-2,-1),keepdims=false](rank2)",
            "Transpose[perm=(1,0)](rank2)",
            "Concat[axis=-1](rank2, rank2)",
            "Split[axis=-1,sizes=(k,l)](rank2)",
            "Unsqueeze[axes=(-1,)](g)",
        ),
        uses=dict.fromkeys("YWsfg", 1) | dict.fromkeys("XZ", 2) | {"Concat": 1, "Neg": 1},
    ),
    Workload(
        name="linear-shape",
        variables={"x": "[a,b,c]", "y": "[a,b,c]", "z": "[a,b,c+d]", "s": "[]", "v": "[c]"},
        operators=(
            "Mul(tensor, s)",
            "Mul(tensor, v)",
            "Mul(same, same)",
            "Add(same, same)",
            "Add(tensor, v)",
            "Neg(any)",
            "Transpose[perm=(1,0)](tensor)",
            "Transpose[perm=(1,0,2)](rank3)",
            "Reshape[drop=2,shape=(b*c,)](rank3)",
            "Reshape[drop=1,shape=(b,c)](rank2)",
            "Reshape[drop=3,shape=(a*b,c)](rank3)",
            "Reshape[drop=2,shape=(a,b,c)](rank2)",
            "Slice[axes=(-1,),ends=(c,),starts=(0,),steps=(1,)](tensor)",
            "Slice[axes=(-1,),ends=(c+d,),starts=(c,),steps=(1,)](tensor)",
            "Split[axis=-1,sizes=(c,d)](tensor)",
            "Split[axis=-2,sizes=(b,b)](rank3)",
            "Concat[axis=-1](tensor, tensor)",
            "Concat[axis=-2](rank3, rank3)",
            "Expand[shape=(a,b,c)](tensor)",
        ),
        uses=dict.fromkeys("xysv", 1) | {"z": 2},
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
        name="guard-mask",
        variables={"c": "bool[m,1]", "k": "bool[n]", "l": "bool[n]", "w": "bool[m,n]", "s": "[]", "t": "[]"},
        operators=("And(any, any)", "Expand[shape=(m,1)](rank1)", "Where(any, s, t)"),
        uses={"c": 1, "k": 2, "w": 1, "And": 2},
        equations=(
            "And(c, k) = Expand[shape=(m,1)](k)",
            "And(k, w) = w",
            "Where(And(c, k), s, t) = Expand[shape=(m,1)](Where(k, s, t))",
        ),
    ),
    Workload(
        name="normal",
        variables={"x": "[m,n]", "y": "[m,n]", "z": "[m,n+p]", "W": "[n,p]", "f": "[m,1]", "g": "[n]", "s": "[]"},
        operators=(
            "Unsqueeze[axes=(-1,)](g)",
            "MatMul(any, any)",
            "Mul(same, same)",
            *(f"{op}(tensor, {v})" for op in ("Mul", "Div") for v in "sfg"),
            "Div(same, same)",
            "Mul(W, any)",
            "Div(W, any)",
            "Reciprocal(any)",
            "Sqrt(tensor)",
            "Pow(tensor, 2)",
            "Neg(any)",
            "Add(same, same)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        samples=4,
        uses={"x": 2, "y": 1, "z": 1, "W": 1, "f": 1, "g": 1, "s": 1, "Neg": 1, "Add": 1, "Reciprocal": 2, "Pow": 2, "Sqrt": 2},
    ),
    Workload(
        name="normal-scale",
        variables={"x": "[m,n]", "W": "[n,p]", "g": "[n]", "h": "[n]", "b": "[n]"},
        operators=(
            "RMSNormalization[axis=-1,epsilon=1e-05](rank2, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, rank1)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, rank1, rank1)",
            "Mul(rank2, rank1)",
            "Mul(rank1, rank1)",
            "Add(rank2, rank1)",
            "Sub(x, of_1)",
            "ReduceMean[axes=(-1,),keepdims=true](x)",
            "MatMul(rank2, of_p)",
            "Mul(W, of_1)",
            "Unsqueeze[axes=(-1,)](rank1)",
        ),
        uses={"x": 2, "W": 1, "g": 1, "h": 1, "b": 1, "RMSNormalization": 1, "LayerNormalization": 1},
        max_ops=4,
    ),
    # Definitions have more operators than rules between parts of them: templates name what may stand where.
    Workload(
        name="normal-rms",
        variables={"x": "[m,n]", "g": "[n]"},
        operators=(
            "RMSNormalization[axis=-1,epsilon=1e-05](x, g)",
            "Pow(x, 2)",
            "Mul(x, x)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Add(of_1, 1e-05)",
            "Sqrt(of_1)",
            "Div(x, of_1)",
            "Div(1, of_1)",
            "Reciprocal(of_1)",
            "Pow(of_1, -0.5)",
            "Mul(x, of_1)",
            "Mul(of_n, g)",
        ),
        uses={"x": 3, "g": 1} | dict.fromkeys(("ReduceMean", "Add", "Sqrt", "Div", "Reciprocal"), 1),
        max_ops=7,
        extend="all",
        min_saving=4,
        samples=8,
        macros=True,
    ),
    Workload(
        name="normal-layer",
        variables={"x": "[m,n]", "g": "[n]", "b": "[n]"},
        operators=(
            "LayerNormalization[axis=-1,epsilon=1e-05](x, g)",
            "LayerNormalization[axis=-1,epsilon=1e-05](x, g, b)",
            "ReduceMean[axes=(-1,),keepdims=true](of_n)",
            "Sub(x, of_1)",
            "Pow(of_n, 2)",
            "Add(of_1, 1e-05)",
            "Sqrt(of_1)",
            "Div(of_n, of_1)",
            "Mul(of_n, g)",
            "Add(of_n, b)",
        ),
        uses={"x": 4, "g": 1, "b": 1, "ReduceMean": 3, "Sub": 2, "Add": 2}
        | dict.fromkeys(("LayerNormalization", "Pow", "Sqrt", "Div", "Mul"), 1),
        max_ops=11,
        extend="all",
        min_saving=9,
        samples=8,  # in a field the square of a root may be the negative of what it was the root of
        macros=True,
    ),
    Workload(
        name="normal-batch",
        variables={"x": "[m,n]", "g": "[n]", "b": "[n]", "u": "[n]", "v": "[n]"},
        operators=(
            "BatchNormalization[epsilon=1e-05,spatial=0](x, g, b, u, v)",
            "Add(v, 1e-05)",
            "Sqrt(any)",
            "Div(any, any)",
            "Mul(any, any)",
            "Sub(any, u)",
            "Add(any, b)",
        ),
        samples=4,
        uses={"x": 1, "g": 1, "b": 1, "u": 1, "v": 1, "Sqrt": 1, "Div": 1, "Mul": 1},
        max_ops=6,
        extend="all",
        min_saving=5,
        macros=True,
    ),
    Workload(
        name="normal-batch-spatial",
        variables={"x": "[n,c,h,w]", "g": "[c]", "b": "[c]", "u": "[c]", "v": "[c]"},
        operators=(
            "BatchNormalization[epsilon=1e-05,spatial=2](x, g, b, u, v)",
            "Unsqueeze[axes=(-2,-1)](leaf)",
            "Add(rank3, 1e-05)",
            "Sqrt(rank3)",
            "Sub(x, rank3)",
            "Div(rank4, rank3)",
            "Mul(rank4, rank3)",
            "Add(rank4, rank3)",
        ),
        sizes=_SPATIAL,
        samples=4,
        uses={"x": 1, "g": 1, "b": 1, "u": 1, "v": 1, "Sqrt": 1, "Div": 1, "Mul": 1, "Sub": 1, "Add": 2},
        max_ops=10,
        extend="all",
        min_saving=9,
        macros=True,
    ),
    Workload(
        name="attention",
        variables={"x": "[m,n]", "y": "[m,n]", "z": "[2*m,n]", "V": "[n,p]", "c": "[m,1]", "s": "[]"},
        operators=(
            "MatMul(any, any)",
            "Softmax[axis=-1](tensor)",
            "Exp(any)",
            "ReduceSum[axes=(-1,),keepdims=true](of_n)",
            "ReduceMax[axes=(-1,),keepdims=true](of_n)",
            "Mul(any, s)",
            "Mul(same, same)",
            "Div(any, s)",
            "Div(tensor, of_1)",
            "Div(same, same)",
            "Add(tensor, of_1)",
            "Add(tensor, s)",
            "Add(same, same)",
            "Sub(tensor, of_1)",
            "Sub(tensor, s)",
            "Concat[axis=-2](of_n, of_n)",
            "Split[axis=-2,sizes=(m,m)](of_p)",
            "Split[axis=-2,sizes=(m,m)](of_n)",
        ),
        uses={
            "x": 2,
            "y": 1,
            "V": 1,
            "c": 1,
            "z": 1,
            "s": 1,
            "Softmax": 1,
            "Concat": 1,
            "Exp": 2,
            "ReduceSum": 1,
            "ReduceMax": 1,
        },
        exponentials=True,
    ),
    # The definition of softmax, also relative to the maximum, and the division behind the product with the values.
    Workload(
        name="attention-softmax",
        variables={"x": "[m,n]", "V": "[n,p]"},
        operators=(
            "Softmax[axis=-1](x)",
            "ReduceMax[axes=(-1,),keepdims=true](x)",
            "Sub(x, of_1)",
            "Exp(of_n)",
            "ReduceSum[axes=(-1,),keepdims=true](of_n)",
            "Div(of_n, of_1)",
            "MatMul(of_n, V)",
            "Div(of_p, of_1)",
        ),
        uses={"x": 4, "V": 1, "Exp": 2, "ReduceSum": 1, "Div": 1},
        max_ops=9,
        extend="all",
        min_saving=2,
        exponentials=True,
        macros=True,
    ),
    Workload(
        name="attention-scores",
        variables={"Q": "[h,m,k]", "K": "[h,n,k]", "V": "[h,n,p]", "M": "[m,n]", "s": "[]"},
        operators=(
            "MatMul(any, any)",
            "Mul(any, s)",
            "Div(any, s)",
            "Add(any, M)",
            "Softmax[axis=-1](tensor)",
            "Transpose[perm=(1,0)](any)",
            "Transpose[perm=(1,0,2)](any)",
            "Concat[axis=-3](tensor, tensor)",
            "Split[axis=-3,sizes=(h,h)](tensor)",
        ),
        uses={"Q": 1, "K": 1, "V": 1, "M": 1, "s": 1},
        exponentials=True,
    ),
    Workload(
        name="attention-mask",
        variables={"x": "[m,n]", "y": "[m,n]", "w": "bool[m,n]", "c": "[]", "s": "[]"},
        operators=(
            "Where(w, any, any)",
            "Add(any, any)",
            "Mul(any, s)",
            "Exp(any)",
            "Relu(any)",
            "Not(w)",
            "Transpose[perm=(1,0)](tensor)",
        ),
        constants=(0.0,),
        uses={"x": 2, "y": 1, "w": 2, "c": 1, "s": 1, "Add": 2},
        exponentials=True,
    ),
    Workload(
        name="attention-causal",
        variables={"q": "[b,l,h*d]", "k": "[b,l,h*d]", "v": "[b,l,h*e]", "m": "[1,1,l,l]"},
        operators=(),
        max_ops=0,
        equations=(
            "MultiHeadAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
            "unidirectional=false](q, k, v, m) = "
            "MultiHeadAttention[given=(),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
            "unidirectional=true](q, k, v)",
        ),
    ),
    Workload(
        name="activation",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]", "s": "[]"},
        operators=(
            "Mul(any, s)",
            "Relu(any)",
            "Sigmoid(any)",
            "Tanh(any)",
            "Erf(any)",
            "Neg(any)",
            "Mul(same, same)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
            "Reshape[drop=2,shape=(m*n,)](of_mxn)",
            "Slice[axes=(-1,),ends=(n,),starts=(0,),steps=(1,)](z)",
        ),
        uses={
            "x": 2,
            "y": 1,
            "z": 2,
            "s": 1,
            "Concat": 1,
            "Relu": 2,
            "Erf": 1,
            "Tanh": 1,
            "Sigmoid": 1,
        },
    ),
    # Apart from the opaque functions: a clipped residue is one of the bounds, and a function of two values tells too little.
    Workload(
        name="activation-clip",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]", "s": "[]"},
        operators=(
            "Mul(any, s)",
            "Relu(any)",
            "Clip[max=6.0,min=0.0](any)",
            "Clip[max=6.0,min=-2.0](any)",
            "LeakyRelu[alpha=0.125](any)",
            "Neg(tensor)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        uses={"x": 1, "y": 1, "z": 1, "s": 1, "Clip": 2, "LeakyRelu": 1, "Neg": 1, "Relu": 2},
    ),
    Workload(
        name="activation-silu",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]"},
        operators=(
            "Sigmoid(leaf)",
            "Gelu[approximate='none'](any)",
            "HardSwish(any)",
            "Mul(same, same)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        max_ops=4,
        uses={"x": 2, "y": 2, "z": 2, "Concat": 1, "Gelu": 1, "HardSwish": 1},
    ),
    Workload(
        name="activation-definitions",
        variables={"x": "[n]"},
        operators=(
            "Gelu[approximate='none'](x)",
            "Mish(x)",
            "Mul(x, 0.7071067811865476)",
            "Erf(any)",
            "Softplus(x)",
            "Tanh(any)",
            "Add(any, 1)",
            "Mul(same, same)",
            "Mul(any, 0.5)",
        ),
        uses={"x": 2, "Mul": 3} | dict.fromkeys(("Gelu", "Mish", "Erf", "Softplus", "Tanh", "Add"), 1),
        max_ops=5,
        extend="all",
        min_saving=2,
        macros=True,
    ),
    Workload(
        name="activation-hard",
        variables={"x": "[n]"},
        operators=(
            "HardSwish(x)",
            "HardSigmoid[alpha=0.16666666666666666,beta=0.5](x)",
            "Mul(x, 0.16666666666666666)",
            "Add(any, 0.5)",
            "Clip[max=1.0,min=0.0](any)",
            "Mul(x, any)",
            "Softsign(x)",
            "Div(x, any)",
            "Abs(x)",
            "Add(any, 1)",
        ),
        uses={"x": 2, "HardSwish": 1, "HardSigmoid": 1, "Add": 1, "Clip": 1, "Div": 1, "Softsign": 1},
        max_ops=4,
        extend="all",
        min_saving=2,
        macros=True,
    ),
    Workload(
        name="activation-gelu",
        variables={"x": "[n]"},
        operators=(
            "Gelu[approximate='tanh'](x)",
            "Pow(x, 3)",
            "Mul(any, 0.044715)",
            "Add(x, any)",
            "Mul(any, 0.7978845608028654)",
            "Tanh(any)",
            "Add(any, 1)",
            "Mul(same, same)",
            "Mul(any, 0.5)",
        ),
        uses={"x": 3, "Tanh": 1, "Pow": 1, "Mul": 4, "Add": 2},
        max_ops=8,
        min_saving=5,
        macros=True,
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
    _channels_last(
        "conv",
        {"x": "[n,c,h,w]", "W": "[d,c,3,3]", "b": "[d]", "z": "[n,d,h,w]"},
        (
            f"{_conv()}(x, W)",
            f"{_conv()}(x, W, b)",
            f"Fused{_conv()}(x, W)",
            f"Fused{_conv()}(x, W, b)",
            "FusedConv[dilations=(1,1),group=1,pads=(1,1,1,1),residual=true,strides=(1,1)](x, W, b, z)",
            f"Nhwc{_conv()}(of_wxc, of_3xc)",
            f"Nhwc{_conv()}(of_wxc, of_3xc, rank1)",
            "Add(of_wxd, of_wxd)",
            "Relu(of_wxd)",
            "Transpose[perm=(2,0,1)](of_wxd)",
        ),
        7,
        {"Transpose": 4, "Relu": 1, "Add": 1, "Conv": 1, "FusedConv": 1, "NhwcConv": 1},
    ),
    _channels_last(
        "unary",
        {"x": "[n,c,h,w]"},
        (*(f"{function}({slot})" for function in _ENTRYWISE for slot in ("x", "of_wxc")), "Transpose[perm=(2,0,1)](of_wxc)"),
        3,
        {"Transpose": 2},
        macros=True,
    ),
    _channels_last(
        "binary",
        {"x": "[n,c,h,w]", "y": "[n,c,h,w]", "s": "[]"},
        (
            *(f"{name}({slots})" for name in ("Add", "Sub", "Mul", "Div") for slots in ("x, y", "of_wxc, of_wxc")),
            *(f"{name}({slot}, s)" for name in ("Add", "Sub", "Mul", "Div", "Pow") for slot in ("x", "of_wxc")),
            *(f"{name}(s, {slot})" for name in ("Sub", "Div") for slot in ("x", "of_wxc")),
            "Transpose[perm=(2,0,1)](of_wxc)",
        ),
        4,
        {"Transpose": 3},
        macros=True,
    ),
    _channels_last(
        "concat",
        dict.fromkeys("xyzuv", "[n,c,h,w]"),
        (
            *(f"Concat[axis=-3]({', '.join('xyzuv'[:count])})" for count in (2, 3, 4, 5)),
            *(f"Concat[axis=-1]({', '.join(['of_wxc'] * count)})" for count in (2, 3, 4, 5)),
            *(f"Transpose[perm=(2,0,1)](of_wx{count}c)" for count in (2, 3, 4, 5)),
        ),
        7,
        {"Transpose": 6, "Concat": 1},
    ),
    _channels_last(
        "split",
        {"x": "[n,c+d,h,w]"},
        (
            "Split[axis=-3,sizes=(c,d)](x)",
            "Split[axis=-1,sizes=(c,d)](rank4)",
            *(f"Transpose[perm=(2,0,1)](of_wx{channels})" for channels in "cd"),
        ),
        3,
        {"Transpose": 2, "Split": 1},
    ),
    _channels_last(
        "pool",
        {"x": "[n,c,5,6]"},
        (
            *(f"{_pool(*pool)}(x)" for pool in _POOLS),
            *(f"{_pool(*pool, last='c')}(rank5)" for pool in _POOLS),
            "Unsqueeze[axes=(-4,)](of_6xc)",
            "Squeeze[axes=(-4,)](rank5)",
            "Transpose[perm=(2,0,1)](rank4)",
        ),
        5,
        {"Transpose": 2, "MaxPool": 1, "AveragePool": 1},
        samples=16,
    ),
    _channels_last(
        "reduce",
        {"x": "[n,c,h,w]"},
        (
            *(f"{name}[axes=(-2,-1),keepdims=true](x)" for name in ("ReduceMean", "ReduceMax", "ReduceSum")),
            *(f"{name}[axes=(-3,-2),keepdims=true](of_wxc)" for name in ("ReduceMean", "ReduceMax", "ReduceSum")),
            "Softmax[axis=-3](x)",
            "Softmax[axis=-1](of_wxc)",
            f"{_pad(1)}(x)",
            "Pad[begins=(1,1,0),ends=(1,1,0),mode='constant',value=0.0](of_wxc)",
            "Transpose[perm=(2,0,1)](rank4)",
        ),
        3,
        {"Transpose": 2},
        exponentials=True,
    ),
    _channels_last(
        "global",
        {"x": "[n,c,h,w]"},
        (
            "GlobalAveragePool[spatial=2](x)",
            "GlobalMaxPool[spatial=2](x)",
            *(f"{name}[axes=(-3,-2),keepdims=true](of_wxc)" for name in ("ReduceMean", "ReduceMax")),
            "Transpose[perm=(2,0,1)](of_1xc)",
        ),
        3,
        {"Transpose": 2},
    ),
    # The transposed product (TASO, figure 5), and products whose kernel takes an operand transposed.
    Workload(
        name="layout-turned",
        variables={"X": "[m,k]", "W": "[k,n]"},
        operators=("MatMul(any, any)", "Transpose[perm=(1,0)](any)"),
        max_ops=4,
        extend="all",
        uses={"X": 1, "W": 1, "Transpose": 3},
        min_saving=3,
    ),
    Workload(
        name="layout-product",
        variables={"X": "[m,k]", "W": "[k,n]"},
        operators=(
            "MatMul(any, any)",
            *(
                f"FusedMatMul[alpha=1.0,transA={a},transB={b},transBatchA=0,transBatchB=0](any, any)"
                for a, b in (("false", "true"), ("true", "false"), ("true", "true"))
            ),
            "Transpose[perm=(1,0)](leaf)",
        ),
        max_ops=3,
        uses={"X": 1, "W": 1},
        min_saving=1,
    ),
    Workload(
        name="conv",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,c,3,3]",
            "U": "[e,c,3,3]",
            "b": "[d]",
            "a": "[e]",
            "s": "[]",
        },
        operators=(
            f"{_conv()}(of_hxw, of_3x3)",
            f"{_conv()}(of_hxw, of_3x3, rank1)",
            "Mul(tensor, s)",
            "Add(same, same)",
            "Relu(of_hxw)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-4](rank4, rank4)",
            "Concat[axis=-1](rank1, rank1)",
            "Split[axis=-3,sizes=(d,e)](of_hxw)",
            "Split[axis=-4,sizes=(n,n)](of_hxw)",
        ),
        max_ops=4,
        uses={"x": 2, **dict.fromkeys("yWVUbas", 1), "Relu": 1, "Concat": 2},
        sizes=_SPATIAL,
    ),
    Workload(
        name="conv-channels",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,e,h,w]",
            "z": "[n,c+e,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,e,3,3]",
            "U": "[d,c+e,3,3]",
        },
        operators=(
            f"{_conv()}(of_hxw, of_3x3)",
            "Add(same, same)",
            "Relu(of_hxw)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-3](of_3x3, of_3x3)",
            "Split[axis=-3,sizes=(c,e)](rank4)",
        ),
        uses={**dict.fromkeys("xyWV", 1), "z": 2, "U": 1, "Relu": 1, "Concat": 2, "Add": 1},
        max_ops=4,
        sizes=_SPATIAL,
    ),
    Workload(
        name="conv-group",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "z": "[n,2*c,h,w]",
            "W": "[d,c,3,3]",
            "V": "[d,c,3,3]",
            "U": "[2*d,c,3,3]",
            "D": "[c,1,3,3]",
            "E": "[c,1,3,3]",
            "F": "[2*c,1,3,3]",
        },
        operators=(
            f"{_conv()}(of_hxw, of_3x3)",
            f"{_conv('2')}(of_hxw, of_3x3)",
            f"{_conv('c')}(of_hxw, of_3x3)",
            f"{_conv('2*c')}(of_hxw, of_3x3)",
            "Concat[axis=-3](of_hxw, of_hxw)",
            "Concat[axis=-4](of_3x3, of_3x3)",
            "Add(same, same)",
            "Split[axis=-3,sizes=(c,c)](of_hxw)",
            "Split[axis=-3,sizes=(d,d)](of_hxw)",
            "Split[axis=-4,sizes=(d,d)](of_3x3)",
            "Split[axis=-4,sizes=(c,c)](of_3x3)",
        ),
        uses={**dict.fromkeys("xyWVDEUF", 1), "z": 2, "Conv": 2, "Add": 1, "Concat": 2},
        sizes=_SPATIAL,
    ),
    Workload(
        name="conv-scale",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "D": "[c,1,3,3]", "b": "[d]", "f": "[d]", "g": "[c]"},
        operators=(
            f"{_conv()}(of_hxw, of_3x3)",
            f"{_conv()}(of_hxw, of_3x3, rank1)",
            f"{_conv('c')}(of_hxw, of_3x3)",
            "Unsqueeze[axes=(-2,-1)](leaf)",
            "Unsqueeze[axes=(-3,-2,-1)](leaf)",
            "Mul(rank4, rank3)",
            "Mul(rank4, rank4)",
            "Add(rank4, rank3)",
            "Mul(rank1, rank1)",
            "Add(rank1, rank1)",
        ),
        uses={**dict.fromkeys("xWDbfg", 1), "Conv": 2, "Mul": 2, "Add": 1},
        max_ops=4,
        sizes=_SPATIAL,
    ),
    # Batch normalisation folded into the weights and the bias of the convolution before it.
    Workload(
        name="conv-fold",
        variables={"x": "[n,c,h,w]", "W": "[d,c,3,3]", "g": "[d]", "b": "[d]", "u": "[d]", "v": "[d]"},
        operators=(
            "BatchNormalization[epsilon=1e-05,spatial=2](rank4, g, b, u, v)",
            f"{_conv()}(x, of_3x3)",
            f"{_conv()}(x, of_3x3, rank1)",
            "Add(v, 1e-05)",
            "Sqrt(rank1)",
            "Div(g, rank1)",
            "Mul(u, rank1)",
            "Sub(b, rank1)",
            "Unsqueeze[axes=(-3,-2,-1)](rank1)",
            "Mul(W, rank4)",
        ),
        samples=4,
        uses={"x": 1, "W": 1, "g": 2, "b": 1, "u": 1, "v": 2, "Sqrt": 2, "Div": 2, "Conv": 1, "Mul": 2, "Sub": 1},
        max_ops=11,
        extend="all",
        min_saving=8,
        macros=True,
        keep=frozenset({"axes"}),
        sizes=_SPATIAL,
    ),
    Workload(
        name="conv-pad",
        variables={"x": "[n,c,h,w]", "y": "[n,c,h,w]", "W": "[d,c,3,3]", "V": "[d,c,1,1]", "s": "[]"},
        operators=(
            f"{_conv()}(of_hxw, of_3x3)",
            f"{_conv(pad=0)}(rank4, of_3x3)",
            f"{_conv(pad=0)}(rank4, of_1x1)",
            f"{_conv(pad=2)}(rank4, of_3x3)",
            f"{_pad(1)}(rank4)",
            f"{_pad(2)}(rank4)",
            f"{_average_pool()}(of_hxw)",
            f"{_average_pool(pad=0, count=False)}(rank4)",
            "Relu(rank4)",
            "Mul(rank4, s)",
            "Add(same, same)",
        ),
        uses={**dict.fromkeys("xyWVs", 1), "Relu": 1},
        max_entries=512,
        sizes=_VALID,
    ),
    Workload(
        name="conv-product",
        variables={"x": "[n,c,h,w]", "W": "[d,c,1,1]", "s": "[]"},
        operators=(
            f"{_conv(pad=0)}(of_hxw, of_1x1)",
            "MatMul(any, any)",
            "Reshape[drop=2,shape=(h*w,)](of_hxw)",
            "Reshape[drop=3,shape=(c,)](of_1x1)",
            "Reshape[drop=1,shape=(h,w)](rank3)",
            "Mul(any, s)",
            "Relu(any)",
        ),
        uses={"x": 1, "W": 1, "s": 1, "Relu": 1},
        max_ops=4,
        sizes=_SPATIAL,
    ),
    Workload(
        name="conv-pool",
        variables={
            "x": "[n,c,h,w]",
            "y": "[n,c,h,w]",
            "z": "[n,c+e,h,w]",
            "s": "[]",
            "f": "[c,1,1]",
            "D": "[c,1,3,3]",
            "W": "[d,c,1,1]",
        },
        operators=(
            f"{_average_pool()}(of_hxw)",
            f"{_average_pool(count=False)}(of_hxw)",
            f"{_average_pool(pad=0, count=False)}(of_hxw)",
            f"{_max_pool()}(of_hxw)",
            f"{_max_pool(pad=0)}(of_hxw)",
            "GlobalAveragePool[spatial=2](of_hxw)",
            "ReduceMean[axes=(-2,-1),keepdims=true](of_hxw)",
            "GlobalMaxPool[spatial=2](of_hxw)",
            f"{_conv('c')}(of_hxw, of_3x3)",
            f"{_conv('c', pad=0)}(of_hxw, of_3x3)",
            f"{_conv(pad=0)}(rank4, W)",
            "Mul(rank4, s)",
            "Mul(rank4, f)",
            "Add(same, same)",
            "Relu(rank4)",
            "Concat[axis=-3](rank4, rank4)",
            "Split[axis=-3,sizes=(c,e)](rank4)",
        ),
        constants=("AveragingKernel[channels=c,kernel=(3,3)]()",),
        uses={"x": 1, "y": 1, "z": 2, "s": 1, "f": 1, "D": 1, "W": 1, "Relu": 1, "Concat": 1},
        sizes=_VALID,
        samples=16,
    ),
    Workload(
        name="taso",
        variables={
            "A": "[m,m]",
            "B": "[m,m]",
            "C": "[m,m]",
            "x": "[n,2*c,5,6]",
            "y": "[n,2*c,5,6]",
            "W": "[2*c,2*c,3,3]",
            "V": "[2*c,2*c,3,3]",
            "G": "[2*c,c,3,3]",
            "H": "[2*c,c,3,3]",
            "D": "[2*c,1,3,3]",
            "E": "[2*c,1,3,3]",
            "s": "[]",
            "t": "[]",
        },
        operators=(
            "MatMul(rank2, rank2)",
            "Transpose[perm=(1,0)](rank2)",
            "Mul(tensor, scalar)",
            "Add(same, same)",
            "Mul(same, same)",
            "Relu(tensor)",
            *(
                f"{_conv(group, pad, stride)}(of_5x6, of_3x3)"
                for group, pad, stride in (
                    ("1", 1, 1),
                    ("1", 0, 1),
                    ("1", 1, 2),
                    ("1", 0, 2),
                    ("2", 1, 1),
                    ("2", 0, 2),
                    ("2*c", 1, 1),
                    ("2*c", 1, 2),
                )
            ),
            *(f"{_max_pool(pad, stride)}(of_5x6)" for pad, stride in ((1, 1), (0, 2))),
            *(
                f"{_average_pool(pad, stride, count)}(of_5x6)"
                for pad, stride, count in ((1, 1, True), (1, 1, False), (0, 2, False), (1, 2, True))
            ),
            "Concat[axis=-1](same, same)",
            "Concat[axis=-2](same, same)",
            "Concat[axis=-3](same, same)",
            "Concat[axis=-4](same, same)",
            "Split[axis=-1,sizes=(m,m)](rank2)",
            "Split[axis=-2,sizes=(m,m)](rank2)",
            "Split[axis=-3,sizes=(2*c,2*c)](rank4)",
            "Split[axis=-4,sizes=(2*c,2*c)](rank4)",
            "Split[axis=-4,sizes=(n,n)](rank4)",
        ),
        constants=("AveragingKernel[channels=2*c,kernel=(3,3)]()",),
        uses={**dict.fromkeys("BCyVHEst", 1), **dict.fromkeys("AxWGD", 2), "Relu": 2, "Concat": 2},
        sizes={"m": (2, 3, 4), "n": (1, 2, 1), "c": (1, 2, 1)},
        samples=8,
    ),
    _TASO_PAPER,
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
"""Name to workload."""

GROUPS: dict[str, tuple[Workload, ...]] = {
    group: tuple(w for w in _ALL if w.group == group) for group in dict.fromkeys(w.group for w in _ALL)
}
"""Group name to its parts, in the order in which ``rulegen ship`` grows them."""


def get_workload(name: str) -> Workload:
    """Looks a group up.

    Raises:
        KeyError: there is none of that name; the message lists the known ones.
    """
    if name not in WORKLOADS:
        raise KeyError(f"unknown group '{name}'; known groups: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
