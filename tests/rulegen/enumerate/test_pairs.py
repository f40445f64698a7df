"""Pairs of terms: one of all renamings, and those with two outputs."""

from __future__ import annotations

import numpy as np

from rulegen.enumerate.enumeration import enumerate_terms
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.workloads import WORKLOADS
from rulegen.workloads.workload import Workload
from tests.support.enumerations import texts


def test_of_all_renamings_one_is_kept() -> None:
    workload = Workload("t", dict.fromkeys("xyzt", "[m]"), ("Add(any, any)", "Neg(any)"), max_ops=3)
    enumeration = enumerate_terms(workload)
    assert enumeration.skipped_variables(np.array([0b0001, 0b0011, 0b0010, 0b1001], np.uint64)).tolist() == [0, 0, 1, 2]
    found = texts(enumeration)
    assert "Neg(y)" in found and "Neg(t)" not in found  # a third operator may add x, but none adds x, y and z
    pairs = unique_up_to_renaming(enumeration, worthwhile(enumeration, single_pairs(enumeration)))
    sides = {frozenset((repr(enumeration.term(a)), repr(enumeration.term(b)))) for a, b in pairs.tolist()}
    assert frozenset(("Neg(Neg(x))", "x")) in sides and frozenset(("Neg(Neg(y))", "y")) not in sides
    assert any({"Add(Add(x, y), z)"} < side or {"Add(Add(y, z), x)"} < side for side in sides)


def test_a_product_shared_by_two_outputs_becomes_one() -> None:
    enumeration = enumerate_terms(WORKLOADS["taso-paper"], 3)
    assert enumeration.counts[0] - len(WORKLOADS["taso-paper"].constants) == 26
    multi = unique_up_to_renaming(enumeration, multi_output_pairs(enumeration))
    found = {tuple(repr(enumeration.term(i)) for i in row) for row in multi.tolist()}
    split, concat = "Split[axis=-1,sizes=(m,m)]", "Concat[axis=-1](B, C)"
    whole = f"(MatMul(A, {concat}))"
    assert ("MatMul(A, B)", "MatMul(A, C)", f"{split}.0{whole}", f"{split}.1{whole}") in found
    kinds = {enumeration.templates[enumeration.batches[enumeration.table.batch[row[0]]].template].operator.name for row in multi}
    assert {"MatMul", "Conv", "FusedConv", "Relu"} <= kinds
