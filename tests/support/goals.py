"""Goals of the search for kernels, from text."""

from __future__ import annotations

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Accumulate, Compute
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term
from rulegen.mugraphs.enumerate import EnumerationLimits
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.search import KernelSearch, search
from rules_db.trust.interpreted import kernel_of_rule

__all__ = ["ATTENTION", "GATED", "LORA", "NORM", "RESIDUAL", "SOFTMAX", "goal", "kernels", "shape_of"]


def goal(text: str, **shapes: str) -> Goal:
    """A goal whose dimensions are symbols of one letter; several results stand behind semicolons."""
    types = {name: TensorType(DataType.FLOAT16, tuple(map(symbol, axes))) for name, axes in shapes.items()}
    return Goal("wanted", tuple(map(parse_term, text.split("; "))), types)


NORM = goal("MatMul(Div(x, Sqrt(ReduceSum[axes=(-1,),keepdims=true](Mul(x, x)))), w)", x="mk", w="kn")
LORA = goal("Add(MatMul(x, w), MatMul(MatMul(x, a), b))", x="mk", w="kn", a="kr", b="rn")
ATTENTION = goal("MatMul(Softmax[axis=-1](MatMul(q, k)), v)", q="bme", k="bet", v="btd")
RESIDUAL = goal(
    "Div(Add(x, y), Sqrt(ReduceMean[axes=(-1,),keepdims=true](Mul(Add(x, y), Add(x, y))))); Add(x, y)", x="mn", y="mn"
)
"""A sum and its normalisation, both of which a model goes on with."""
SOFTMAX = goal("Softmax[axis=-1](x)", x="mn")
GATED = goal("Mul(Mul(MatMul(x, w), Sigmoid(MatMul(x, w))), MatMul(x, v))", x="mk", w="kn", v="kn")


def kernels(wanted: Goal, operators: int, most: int = 64) -> list[Kernel]:
    """The kernels that a search finds."""
    found = search(wanted, KernelSearch(EnumerationLimits(operators), kernels=most))
    return [kernel for rule in found.rules if (kernel := kernel_of_rule(rule)) is not None]


def shape_of(kernel: Kernel) -> tuple[bool, tuple[str, ...]]:
    """Whether it has a loop, and its operators, in order of their names; thread graphs by their own."""
    (block,) = kernel.blocks
    names = []
    for statement in block.statements:
        if isinstance(statement, Compute):
            names += [part.op for part in walk([statement.term]) if part.inputs]
        elif isinstance(statement, Accumulate):
            names.append(f"{statement.monoid} of {len(statement.operands)}")
        else:
            names.append(type(statement).__name__)
    return block.loop is not None, tuple(sorted(name for name in names if name not in ("Load", "Store", "Extent")))
