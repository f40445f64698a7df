"""Thread graphs: fused elementwise groups, which a kernel keeps in registers (Mirage section 2).

A thread graph is a term of elementwise operators whose variables are the tiles of a block graph. A tile's axes have names;
operands meet where their axes have the same name and broadcast along the others, so a term says nothing of ranks. The same holds
of products of tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops import REGISTRY
from mugraph.ops.interp import evaluate
from mugraph.terms.term import Term, variables, walk

__all__ = ["aligned", "contracted", "evaluate_thread", "why_not_elementwise"]


def why_not_elementwise(term: Term) -> str | None:
    """Why a term is no thread graph; ``None`` where it is one."""
    for part in walk([term]):
        if part.is_var or part.op == "Const":
            continue
        if part.op not in REGISTRY:
            return f"unknown operator {part.op}"
        if not REGISTRY[part.op].elementwise or part.out:
            return f"{part.op} is not elementwise"
    return None if variables([term]) else "it has no operand"


def aligned(domain: Domain, value: Array, axes: Sequence[str], wanted: Sequence[str]) -> Array:
    """A tile over ``axes`` as one over ``wanted``, which holds them all: permuted, with dimensions of size 1 for the others."""
    order = [axes.index(name) for name in wanted if name in axes]

    def move(x: np.ndarray) -> np.ndarray:
        sizes = iter(np.transpose(x, order).shape)
        return np.transpose(x, order).reshape([next(sizes) if name in axes else 1 for name in wanted])

    return domain.move(move, value)


def contracted(
    domain: Domain, left: Array, a: Sequence[str], right: Array, b: Sequence[str], over: str, wanted: Sequence[str]
) -> Array:
    """The product of a tile over axes ``a`` and one over ``b``, contracted over an axis, as a tile over ``wanted``.

    Axes that both have besides are batch axes; the others are rows of the left and columns of the right operand.
    """
    batch = [x for x in wanted if x in a and x in b]
    rows = [x for x in wanted if x in a and x not in b]
    columns = [x for x in wanted if x in b and x not in a]
    sizes = {**dict(zip(a, domain.shape(left), strict=True)), **dict(zip(b, domain.shape(right), strict=True))}

    def matrix(value: Array, axes: Sequence[str], first: list[str], second: list[str]) -> Array:
        shape = [*(sizes[x] for x in batch), *(int(np.prod([sizes[x] for x in group])) for group in (first, second))]
        return domain.move(lambda x: np.reshape(x, shape), aligned(domain, value, axes, [*batch, *first, *second]))

    result = domain.matmul(matrix(left, a, rows, [over]), matrix(right, b, [over], columns))
    shape = [sizes[x] for x in (*batch, *rows, *columns)]
    split = domain.move(lambda x: np.reshape(x, shape), result)
    return aligned(domain, split, [*batch, *rows, *columns], wanted)


def evaluate_thread(
    domain: Domain, term: Term, tiles: Mapping[str, Array], axes: Mapping[str, Sequence[str]], wanted: Sequence[str]
) -> Array:
    """The value of a thread graph over the axes ``wanted``; ``tiles`` and ``axes`` are those of its variables."""
    operands = {v.name: aligned(domain, tiles[v.name], axes[v.name], wanted) for v in variables([term])}
    return evaluate([term], domain, operands)[term]
