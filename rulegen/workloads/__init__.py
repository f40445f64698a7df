"""Operator groups as data: the spaces that the generator enumerates.

A group is one workload or several that are grown one after the other: each keeps to the operators that meet. The parts of
group ``linear`` are called ``linear``, ``linear-gemm`` and so on, and stand in one module. A further part is an entry there, a
further group a module that is named here.
"""

from __future__ import annotations

from rulegen.workloads.activation import ACTIVATION
from rulegen.workloads.attention import ATTENTION
from rulegen.workloads.conv import CONV
from rulegen.workloads.guard import GUARD
from rulegen.workloads.layout import LAYOUT
from rulegen.workloads.linear import LINEAR
from rulegen.workloads.lowrank import LOWRANK
from rulegen.workloads.normal import NORMAL
from rulegen.workloads.packed import PACKED
from rulegen.workloads.quantized import QUANTIZED
from rulegen.workloads.taso import TASO, TASO_PAPER
from rulegen.workloads.workload import Workload

__all__ = ["GROUPS", "WORKLOADS", "get_workload"]

_ALL = (*LINEAR, *LOWRANK, *GUARD, *NORMAL, *ATTENTION, *ACTIVATION, *LAYOUT, *CONV, *QUANTIZED, *PACKED, *TASO, TASO_PAPER)

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
