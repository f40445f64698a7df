"""Workloads: slots of templates, names of groups."""

from __future__ import annotations

import pytest

from mugraph.terms.text import parse_type
from rulegen.enumerate.enumeration import enumerate_terms
from rulegen.workloads import get_workload
from rulegen.workloads.workload import Workload, slot_admits
from tests.support.enumerations import texts


def test_slots_say_what_may_stand_there() -> None:
    kernel, matrix, scalar = parse_type("[c,c,3,3]"), parse_type("[m,n]"), parse_type("[]")
    assert slot_admits("of_3x3", kernel) and not slot_admits("of_1x3", kernel) and slot_admits("of_mxn", parse_type("[a,m,n]"))
    assert slot_admits("rank2", matrix) and not slot_admits("rank2", kernel) and not slot_admits("tensor", scalar)
    assert slot_admits("scalar", scalar) and not slot_admits("scalar", matrix)
    with pytest.raises(AssertionError, match="written 'tenor'"):
        slot_admits("tenor", matrix)
    workload = Workload("t", {"x": "[m,n]", "f": "[m,1]"}, ("Add(same, same)", "Mul(any, any)"), max_ops=2)
    found = texts(enumerate_terms(workload))
    assert "Add(x, x)" in found and "Add(x, f)" not in found and "Mul(x, f)" in found


def test_an_unknown_group_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"unknown group 'lin'; known groups: linear, "):
        get_workload("lin")
