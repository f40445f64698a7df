"""Ways to fill in what TASO's files leave open: ranks, groups, paddings that count, sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mugraph.terms.shape import ShapeError
from rulegen.taso.file import Parameter, Place, TasoKind, TasoRule

__all__ = ["TypingPlan", "plans", "ranks_of"]


@dataclass(frozen=True)
class TypingPlan:
    """One way to fill in what a rule's file leaves open.

    Attributes:
        groups: of the convolutions whose kernels leave it open, in turn; "channels" is depthwise.
        counts_pads: whether averages count padding.
        odd: whether spatial sizes under strides are odd.
        rank: of tensors that no operator gives one.
        kernel: size of kernels before they are enlarged.
        uneven: whether channels of parts that are concatenated differ.
    """

    groups: tuple[int | str, ...]
    counts_pads: bool
    odd: bool
    rank: int
    kernel: tuple[int, int] = (1, 1)
    uneven: bool = False


def ranks_of(rule: TasoRule) -> dict[tuple[str, Place], int | None]:
    """Ranks of all tensors, ``None`` where the file leaves them open. Raises ShapeError where it contradicts itself."""
    parent: dict[Any, Any] = {}
    fixed: dict[Any, int] = {}
    products: list[Any] = []

    def find(key: Any) -> Any:
        parent.setdefault(key, key)
        while parent[key] != key:
            key = parent[key]
        return key

    def fix(key: Any, rank: int) -> None:
        root = find(key)
        if fixed.setdefault(root, rank) != rank:
            raise ShapeError(f"a tensor would have {fixed[root]} and {rank} dimensions")

    def same(a: Any, b: Any) -> None:
        a, b = find(a), find(b)
        if a != b:
            parent[a] = b
            if a in fixed:
                fix(b, fixed[a])

    def place(side: str, where: Place) -> tuple[str, Place]:
        return ("", where) if where[0] < 0 else (side, where)

    for side, graph in (("s", rule.source), ("t", rule.target)):
        for position, node in enumerate(graph):
            inputs = [place(side, where) for where in node.inputs]
            outputs = [
                (side, (position, i))
                for i in range(max(1, node.parameters.get(Parameter.NUM_OUTPUTS, 2)) if node.kind == TasoKind.SPLIT else 1)
            ]
            match node.kind:
                case TasoKind.CONV2D | TasoKind.POOL2D_MAX | TasoKind.POOL2D_AVG | TasoKind.ENLARGE | TasoKind.MERGE_GCONV:
                    for key in (*inputs, *outputs):
                        fix(key, 4)
                case TasoKind.CONSTANT_ICONV | TasoKind.CONSTANT_POOL:
                    fix(outputs[0], 4)
                case TasoKind.CONSTANT_IMM:
                    fix(outputs[0], 2)
                case TasoKind.BATCHNORM:
                    for key in (*inputs[:1], *outputs):
                        fix(key, 4)
                    for key in inputs[1:]:
                        fix(key, 1)
                case TasoKind.MUL:
                    for key in inputs[:1]:
                        same(key, outputs[0])
                    for key in inputs[1:]:
                        fix(key, 0)
                case TasoKind.MATMUL | TasoKind.CONCAT | TasoKind.TRANSPOSE:
                    for key in inputs:
                        same(key, outputs[0])
                    if node.kind == TasoKind.MATMUL:
                        products.append(outputs[0])
                    elif Parameter.NUMDIM in node.parameters:
                        fix(outputs[0], node.parameters[Parameter.NUMDIM])
                case _:
                    for key in (*inputs, *outputs[1:]):
                        same(key, outputs[0])
    for source, target in rule.outputs:
        same(place("s", source), place("t", target))
    for key in products:  # of matrices, where nothing says otherwise
        fixed.setdefault(find(key), 2)
    keys = list(parent)
    return {key: fixed.get(find(key)) for key in keys}


_KERNELS = ((1, 1), (1, 3), (3, 1))
"""Sizes of kernels that TASO enlarges."""


def plans(rule: TasoRule) -> Iterator[TypingPlan]:
    """The ways that make a difference to a rule, the plainest first."""
    nodes = (*rule.source, *rule.target)
    kinds = {node.kind for node in nodes}
    counts = [node.parameters.get(Parameter.MERGE_GCONV_COUNT, 2) for node in nodes if node.kind == TasoKind.MERGE_GCONV]
    groups: list[tuple[int | str, ...]] = [(1,)]
    convolutions = sum(node.kind == TasoKind.CONV2D for node in nodes)
    if convolutions:
        groups = list(dict.fromkeys([(1,), (2,), ("channels",), *((count,) for count in counts)]))
    if convolutions > 2:
        groups += [(1, 2), (2, 1), (1, "channels"), ("channels", 1)]
    strided = any(node.parameters.get(key, 1) > 1 for node in nodes for key in (Parameter.STRIDE_H, Parameter.STRIDE_W))
    yield from itertools.starmap(
        TypingPlan,
        itertools.product(
            groups,
            (False, True) if TasoKind.POOL2D_AVG in kinds else (False,),
            (False, True) if strided else (False,),
            (2, 4),
            _KERNELS if TasoKind.ENLARGE in kinds else _KERNELS[:1],
        ),
    )
    if convolutions and TasoKind.CONCAT in kinds:
        yield from (TypingPlan((group,), False, False, 2, uneven=True) for group in (1, 2))
