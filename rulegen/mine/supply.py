"""Values that the open attributes of a composite operator may take."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.terms.shape import Shape, TensorType
from mugraph.terms.term import AttrValue, Term, walk
from rulegen.mine.numbers import MOST_PARAMETER
from rules_db.trust.rule import Side

__all__ = ["HEADS", "Supply", "supply_of"]

HEADS = "MultiHeadAttention"
"""The operator whose operands may be projections that another computes, too."""


@dataclass(frozen=True)
class Supply:
    """Values for open attributes: numbers, sizes and axes that the cone itself holds.

    Attributes:
        numbers: of constants and attributes, with their products and inverses.
        sizes: of reshaped dimensions and of heads.
        axes: of attributes.
        scores: the shapes of softmaxes.
        widths: of the queries, keys and values of each attention.
    """

    numbers: tuple[float, ...]
    sizes: tuple[AttrValue, ...]
    axes: tuple[int, ...]
    scores: tuple[Shape, ...]
    widths: tuple[Shape, ...]

    def of(self, name: str) -> Sequence[AttrValue]:
        """The values to try for an attribute of this name."""
        if name in ("epsilon", "scale", "alpha", "beta"):
            return self.numbers
        if name == "axis":
            return self.axes
        if name in ("num_heads", "kv_num_heads"):
            return (0, *self.sizes)
        if name == "qkv_hidden_sizes":
            return self.widths
        if name in ("bias", "sum", "interleaved", "rotary_interleaved", "unidirectional"):
            return (False, True)
        if name == "approximate":
            return ("none", "tanh")
        return ()


def supply_of(roots: Side, types: Mapping[Term, TensorType]) -> Supply:
    """The supply of a program whose terms have these types."""
    numbers: dict[float, None] = {}
    sizes: dict[AttrValue, None] = {}
    axes: dict[int, None] = {-1: None}
    scores = dict.fromkeys(types[t.inputs[0]].shape for t in walk(roots) if t.op == "Softmax" and types[t].rank == 4)
    widths = dict.fromkeys(tuple(types[x].shape[-1] for x in t.inputs[:3]) for t in walk(roots) if t.op == HEADS)
    for term in walk(roots):
        if term.op == "Const" and isinstance(term.attr("value"), float):
            numbers[term.attr("value")] = None
        for name, value in term.attrs:
            if name == "epsilon" or name == "scale":
                numbers[value] = None
            if name in ("axis", "axes"):
                axes |= dict.fromkeys(value if isinstance(value, tuple) else (value,))
            if name == "shape":
                sizes |= dict.fromkeys(v for v in value if v != 1)
            if name == "num_heads" and term.op == HEADS:
                sizes[value] = None
    sizes |= dict.fromkeys(t.shape[1] for leaf, t in types.items() if leaf.is_var and t.rank == 4 and t.shape[1] != 1)
    parameters = [n for n in numbers if 0 < abs(n) < MOST_PARAMETER]
    products = [a * b for a, b in itertools.combinations_with_replacement([n for n in parameters if n != 1], 2)]
    inverses = [1 / n for n in parameters]
    return Supply(
        tuple(dict.fromkeys([*parameters, *products, *inverses, 1.0])), tuple(sizes), tuple(axes), tuple(scores), tuple(widths)
    )
