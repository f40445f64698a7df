"""Fingerprints of linear operators without their results: which operators are, and that nothing shows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rulegen.enumerate import values as engine
from rulegen.enumerate.enumeration import enumerate_terms
from rulegen.enumerate.evaluation import TermBatch
from rulegen.enumerate.fingerprint import Fingerprints
from rulegen.enumerate.linear import LinearFingerprints
from rulegen.workloads import WORKLOADS
from rulegen.workloads.workload import Workload


def test_neither_the_batches_nor_the_short_cut_for_linear_operators_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes of plain evaluation, a few terms at a time, are the slow reference."""
    workload = dataclasses.replace(WORKLOADS["taso-paper"], variables=dict(zip("ABxKEp", TYPES, strict=True)))
    degrees: set[str] = set()
    degree = LinearFingerprints.degree

    def recorded(self: LinearFingerprints, batch: TermBatch) -> str:
        degrees.add(degree(self, batch))
        return degree(self, batch)

    monkeypatch.setattr(engine, "_FEW", 0)
    monkeypatch.setattr(LinearFingerprints, "bilinear_effort", lambda self, batch: 0)
    monkeypatch.setattr(LinearFingerprints, "degree", recorded)
    fast = enumerate_terms(workload, 2)
    assert degrees == {"linear", "bilinear", "other"}
    monkeypatch.setattr(LinearFingerprints, "degree", lambda self, batch: "other")
    monkeypatch.setattr(engine, "_CHUNK", 1 << 10)
    slow = enumerate_terms(workload, 2)
    assert fast.counts == slow.counts and fast.classes == slow.classes
    for name in ("cls", "batch", "operands", "keys", "trivial"):
        assert np.array_equal(getattr(fast.table, name), getattr(slow.table, name)), name


TYPES = ("[m,m]", "[m,m]", "[n,c,h,w]", "[c,c,3,3]", "[c,c,1,1]", "[]")


def test_an_operator_is_linear_where_it_is() -> None:
    def degrees(variables: dict[str, str], operator: str, exponentials: bool = False) -> set[str]:
        enumeration = enumerate_terms(Workload("t", variables, (operator,), max_ops=1, exponentials=exponentials))
        linear = LinearFingerprints(Fingerprints(enumeration.evaluations[0]))
        return {linear.degree(batch) for batch in enumeration.batches}

    matrix = {"x": "[m,n]", "y": "[m,n]"}
    assert degrees(matrix, "Add(any, any)") == {"linear"} and degrees(matrix, "Mul(any, any)") == {"bilinear"}
    assert degrees(matrix, "Relu(any)") == {"other"} and degrees(matrix, "Max(any, any)") == {"other"}
    assert degrees(matrix, "Div(any, any)") == {"other"} and degrees(matrix, "Pow(any, 2)") == {"other"}
    assert degrees(matrix, "Add(any, 0)") == {"linear"} and degrees(matrix, "Exp(any)", exponentials=True) == {"other"}
    shift = "Pad[begins=(1,1),ends=(1,1),mode='constant',value={}](any)"
    assert degrees(matrix, shift.format(0.0)) == {"linear"} and degrees(matrix, shift.format(1.0)) == {"other"}
