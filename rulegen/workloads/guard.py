"""The guards that exporters put around softmax, and masks: the group ``guard``."""

from __future__ import annotations

from rulegen.workloads.workload import Workload

__all__ = ["GUARD"]

GUARD = (
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
        max_ops=5,
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
)
