"""The enumeration: batches agree with single evaluations, classes are true and do not depend on the seed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mugraph.domains.field import FieldArray, FiniteField
from mugraph.ops.interp import evaluate
from mugraph.terms.term import substitute
from mugraph.terms.text import parse_term, parse_type
from rulegen.enumerate import values as engine
from rulegen.enumerate.enumeration import Enumeration, enumerate_terms, enumerate_under, evaluations_of
from rulegen.enumerate.evaluation import Evaluation, TermBatch
from rulegen.enumerate.fingerprint import Fingerprints
from rulegen.enumerate.linear import LinearFingerprints
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.numeric.fields import refute
from rulegen.workloads import WORKLOADS, get_workload
from rulegen.workloads.workload import Workload, slot_admits


def partition(enumeration: Enumeration) -> set[frozenset[str]]:
    """The classes with company, as texts."""
    members: dict[int, set[str]] = {}
    for row, cls in enumerate(enumeration.table.cls.tolist()):
        members.setdefault(cls, set()).add(repr(enumeration.term(row)))
    return {frozenset(texts) for texts in members.values() if len(texts) > 1}


def texts(enumeration: Enumeration) -> set[str]:
    return {repr(enumeration.term(row)) for row in range(len(enumeration.table.cls))}


@pytest.mark.parametrize(("group", "max_ops"), [("guard", 2), ("lowrank", 5), ("taso-paper", 2)])
def test_classes_do_not_depend_on_the_seed(group: str, max_ops: int) -> None:
    first, *others = (partition(enumerate_terms(get_workload(group), max_ops, seed)) for seed in (0, 1, 2, 3, 7))
    assert all(other == first for other in others)


@pytest.mark.parametrize("group", ["activation", "taso-paper"])
def test_equal_seeds_give_equal_columns(group: str) -> None:
    a, b = (enumerate_terms(WORKLOADS[group], 2, seed=3) for _ in range(2))
    for name in ("cls", "batch", "operands", "keys", "mask"):
        assert np.array_equal(getattr(a.table, name), getattr(b.table, name)), name


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


@pytest.mark.parametrize("group", [name for name, workload in WORKLOADS.items() if workload.operators])
def test_batches_agree_with_evaluating_one_term(group: str) -> None:
    workload = WORKLOADS[group]
    enumeration = enumerate_terms(workload, 2)
    rows = np.flatnonzero(enumeration.table.level == 1)
    assert len(rows)
    for e, old in enumerate(enumeration.evaluations):
        evaluation = Evaluation(0, e, old.sizes, old.samples)  # draws the same inputs once more
        fingerprints = Fingerprints(evaluation)
        leaves = enumeration.leaves
        types = [workload.types[t.name] if t.is_var else workload.constant_type(t) for t in leaves]
        values = [evaluation.leaf(t, type_, workload.exponentials) for t, type_ in zip(leaves, types, strict=True)]
        domain = FiniteField.__new__(FiniteField)
        domain.__dict__.update({k: v for k, v in evaluation.field.__dict__.items() if k != "undefined"})
        for row in rows[:: 1 + len(rows) // 20].tolist():
            if not enumeration.table.keys[row, e]:
                continue  # alone under the first evaluation
            term = substitute(enumeration.term(row), {}, dims=evaluation.sizes)
            found = []
            for sample in range(evaluation.samples):
                inputs = {t.name: value[0, sample] for t, value in zip(leaves, values, strict=True) if t.is_var}
                result = evaluate([term], domain, inputs)[term]
                found.append(np.asarray(getattr(result, "p", result), np.float64))
            value = np.stack(found)[None]
            type_ = enumeration.types[enumeration.table.type[row]]
            value = np.broadcast_to(value, (1, evaluation.samples, *evaluation.shape(type_)))
            assert fingerprints.of(FieldArray(value, None), type_)[0] == enumeration.table.keys[row, e], term


def test_members_of_a_class_are_equal_under_fresh_inputs() -> None:
    workload = WORKLOADS["activation"]
    enumeration = enumerate_terms(workload)
    _, first, inverse = np.unique(enumeration.table.cls, return_index=True, return_inverse=True)
    rows = np.flatnonzero(first[inverse] != np.arange(len(inverse)))
    for row in np.random.default_rng(0).choice(rows, 100, replace=False).tolist():
        source, target = enumeration.term(row), enumeration.term(int(first[inverse[row]]))
        assert refute((source,), (target,), workload.types, (101, 102, 103)) is None, (source, target)


def test_a_symbol_equals_itself_alone() -> None:
    workload = Workload("t", {"x": "[m,k]"}, ("Add(any, any)", "Transpose[perm=(1,0)](any)"), max_ops=2)
    found = texts(enumerate_terms(workload))
    assert "Add(x, x)" in found
    assert not any("Transpose" in text and "x, " in text for text in found)  # [m,k] + [k,m] whatever the sizes


def test_relu_is_not_linear() -> None:
    workload = Workload("t", {"x": "[m]", "y": "[m]"}, ("Relu(any)", "Add(any, any)", "Neg(any)"), max_ops=3)
    for members in partition(enumerate_terms(workload)):
        assert not {"Relu(Add(x, y))", "Add(Relu(x), Relu(y))"} <= members
        assert not {"Neg(Relu(Neg(x)))", "Relu(x)"} <= members


def test_few_inputs_show_too_little_of_an_order() -> None:
    """Two scalars are negative together too often for a few inputs: the evaluation with many inputs tells them apart."""
    workload = Workload("t", {"s": "[]", "t": "[]"}, ("Relu(any)",), max_ops=2, samples=1)

    def merged(seed: int, evaluations: int) -> bool:
        enumeration = enumerate_under(workload, 2, evaluations_of(workload, seed)[:evaluations])
        return any({"Relu(s)", "Relu(t)"} <= members for members in partition(enumeration))

    assert any(merged(seed, 3) for seed in range(30))
    assert not any(merged(seed, 4) for seed in range(30))


def test_no_order_of_residues_agrees_with_negation() -> None:
    """What the field cannot see: x = relu(x) - relu(-x) is true of numbers and no class has it, so no rule is wrong."""
    workload = Workload("t", {"x": "[m]"}, ("Relu(any)", "Neg(any)", "Sub(any, any)"), max_ops=4)
    assert not any({"x", "Sub(Relu(x), Relu(Neg(x)))"} <= members for members in partition(enumerate_terms(workload)))


def test_division_by_what_may_be_zero_is_no_term() -> None:
    workload = Workload("t", {"x": "[m]"}, ("Sub(any, any)", "Relu(any)", "Div(any, any)"), max_ops=3)
    found = texts(enumerate_terms(workload))
    assert "Div(x, x)" in found
    assert "Div(x, Sub(x, x))" not in found and "Div(x, Relu(x))" not in found


def test_a_constant_of_a_template_stands_there_alone() -> None:
    workload = Workload("t", {"x": "[m]"}, ("Mul(any, any)", "Pow(any, 2)"), max_ops=2)
    enumeration = enumerate_terms(workload)
    found = texts(enumeration)
    assert "Pow(x, 2.0)" in found and "Mul(x, 2.0)" not in found and "Mul(2.0, x)" not in found
    assert any({"Mul(x, x)", "Pow(x, 2.0)"} <= members for members in partition(enumeration))


def test_limits_of_use_hold() -> None:
    workload = dataclasses.replace(WORKLOADS["lowrank"], uses={"X": 2, "W": 1, "A": 1, "B": 1, "s": 1})
    enumeration = enumerate_terms(workload)
    assert enumeration.table.uses.max(axis=0).tolist() == [2, 1, 1, 1, 1]


def test_renamed_terms_share_a_structural_hash() -> None:
    workload = Workload("t", {"x": "[m]", "y": "[m]"}, ("Add(any, any)", "Neg(any)"), max_ops=2)
    enumeration = enumerate_terms(workload)
    rows = {repr(enumeration.term(row)): row for row in range(len(enumeration.table.cls))}
    renamings = enumeration.renamings(0b11)
    assert renamings == [(0, 1), (1, 0)] and enumeration.renamings(0b10) == [(0, 1)]
    hashes = enumeration.structure(np.arange(len(enumeration.table.cls)), renamings)
    assert hashes[rows["Neg(x)"], 1] == hashes[rows["Neg(y)"], 0]
    assert hashes[rows["Add(x, y)"], 0] == hashes[rows["Add(x, y)"], 1]
    assert hashes[rows["Add(x, x)"], 0] != hashes[rows["Add(x, y)"], 0]


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


def test_constant_tensors_are_leaves() -> None:
    workload = Workload(
        "t",
        {"x": "[m,m]"},
        ("MatMul(any, any)", "Transpose[perm=(1,0)](any)", "Relu(any)"),
        constants=("Eye[size=m]()",),
        max_ops=2,
    )
    enumeration = enumerate_terms(workload)
    classes = partition(enumeration)
    assert any({"x", "MatMul(Eye[size=m](), x)", "MatMul(x, Eye[size=m]())"} <= members for members in classes)
    assert any({"Eye[size=m]()", "Transpose[perm=(1,0)](Eye[size=m]())"} <= members for members in classes)
    assert not any("Relu(Eye" in text for text in texts(enumeration))  # what the order of residues does not know


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


def test_an_unknown_group_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"unknown group 'lin'; known groups: linear, "):
        get_workload("lin")


def test_the_scaled_adapter_is_enumerated() -> None:
    enumeration = enumerate_terms(WORKLOADS["lowrank"])
    source = parse_term("Add(Mul(MatMul(MatMul(X, A), B), s), MatMul(X, W))")
    target = parse_term("MatMul(X, Add(Mul(MatMul(A, B), s), W))")
    classes = {enumeration.term(row): int(enumeration.table.cls[row]) for row in range(len(enumeration.table.cls))}
    assert classes[source] == classes[target]
