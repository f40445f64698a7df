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
    (rows,) = multi_output_pairs(enumeration)
    multi = unique_up_to_renaming(enumeration, rows)
    found = {tuple(repr(enumeration.term(i)) for i in row) for row in multi.tolist()}
    split, concat = "Split[axis=-1,sizes=(m,m)]", "Concat[axis=-1](B, C)"
    whole = f"(MatMul(A, {concat}))"
    assert ("MatMul(A, B)", "MatMul(A, C)", f"{split}.0{whole}", f"{split}.1{whole}") in found
    kinds = {enumeration.templates[enumeration.batches[enumeration.table.batch[row[0]]].template].operator.name for row in multi}
    assert {"MatMul", "Conv", "FusedConv", "Relu"} <= kinds


def outcomes(workload: Workload) -> set[str]:
    """The pairs with several outputs of a workload, as text."""
    enumeration = enumerate_terms(workload)
    found = set()
    for rows in multi_output_pairs(enumeration):
        for row in unique_up_to_renaming(enumeration, rows).tolist():
            terms, half = [str(enumeration.term(i)) for i in row], len(row) // 2
            found.add(" = ".join("; ".join(side) for side in (terms[:half], terms[half:])))
    return found


def test_outputs_are_found_in_any_number() -> None:
    """Three products become one, though no two of its three parts are worth a rule."""
    workload = Workload(
        "t",
        {"X": "[m,k]", "A": "[k,n]", "B": "[k,p]", "C": "[k,q]"},
        ("MatMul(X, any)", "Concat[axis=-1](leaf, leaf, leaf)", "Split[axis=-1,sizes=(n,p,q)](any)"),
        uses=dict.fromkeys("XABC", 1),
    )
    whole = "(MatMul(X, Concat[axis=-1](A, B, C)))"
    parts = "; ".join(f"Split[axis=-1,sizes=(n,p,q)].{i}{whole}" for i in range(3))
    assert f"MatMul(X, A); MatMul(X, B); MatMul(X, C) = {parts}" in outcomes(workload)


def test_outputs_need_not_be_those_of_one_operator() -> None:
    """Slices of a product are parts of it like the outputs of a Split, but not where they overlap or leave something out."""
    slices = {name: f"Slice[axes=(-1,),ends=({ends},),starts=({starts},),steps=(1,)]" for name, starts, ends in SLICES}
    workload = Workload(
        "t",
        {"X": "[m,k]", "A": "[k,n]", "B": "[k,n]", "C": "[k,n]"},
        (
            "MatMul(X, any)",
            "Concat[axis=-1](leaf, leaf)",
            "Concat[axis=-1](leaf, leaf, leaf)",
            *(f"{text}(any)" for text in slices.values()),
        ),
        uses=dict.fromkeys("XABC", 1),
    )
    found = outcomes(workload)
    whole = "(MatMul(X, Concat[axis=-1](A, B, C)))"
    three = f"{slices['first']}{whole}; {slices['second']}{whole}; {slices['third']}{whole}"
    assert f"MatMul(X, A); MatMul(X, B); MatMul(X, C) = {three}" in found
    targets = {frozenset(pair.split(" = ")[1].split("; ")) for pair in found}
    wholly, overlapping, lacking = (
        frozenset(slices[name] + whole for name in names) for names in (("left", "third"), ("left", "right"), ("first", "third"))
    )
    assert wholly in targets and overlapping not in targets and lacking not in targets


SLICES = (("first", "0", "n"), ("second", "n", "2*n"), ("third", "2*n", "3*n"), ("left", "0", "2*n"), ("right", "n", "3*n"))


def test_the_order_of_outputs_makes_no_other_pair() -> None:
    enumeration = enumerate_terms(WORKLOADS["taso-paper"], 3)
    (rows,) = multi_output_pairs(enumeration)
    exchanged = rows[:, [1, 0, 3, 2]]
    both = unique_up_to_renaming(enumeration, np.concatenate([rows, exchanged]))
    assert len(both) == len(unique_up_to_renaming(enumeration, rows))
