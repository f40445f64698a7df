"""Low-rank adapters: the group ``lowrank``."""

from __future__ import annotations

from rulegen.workloads.workload import Workload

__all__ = ["LOWRANK"]

LOWRANK = (
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
)
