"""The cases on which properties are examined."""

from __future__ import annotations

from rulegen.properties.cases import enumerate_cases, shape_of
from tests.support.properties import AXIOMS, one


def test_cases_of_a_unary_law_are_all_kinds_of_shapes() -> None:
    found = enumerate_cases(AXIOMS["neg.involution"])
    shapes = {case.types["x"].shape for case in found.cases}
    assert found.exhaustive and len(shapes) == len(found.cases)
    assert {(), (1,), (2,), (2, 2), (2, 3), (1, 2, 1, 2), (2, 3, 4, 2)} <= shapes
    assert (3,) not in shapes, "sizes that only differ by name are one kind"


def test_cases_run_through_the_parameters() -> None:
    found = enumerate_cases(AXIOMS["concat.swap"], limit=60)
    axes = {(case.attrs["j"], case.attrs["k"]) for case in found.cases}
    assert axes == {(j, k) for j in range(-4, 0) for k in range(-4, 0) if j != k}
    assert not found.exhaustive and found.parameters == 12


def test_cases_of_convolution_bring_groups_strides_and_pads() -> None:
    found = enumerate_cases(AXIOMS["conv.neg_input.Conv"], limit=24)
    for name, wanted in {"g": {1, 2}, "s": {(1, 1), (2, 2)}, "p": {(0, 0, 0, 0), (1, 1, 1, 1)}}.items():
        assert wanted <= {case.attrs[name] for case in found.cases}, name


def test_the_selection_is_fixed() -> None:
    one_, other = (enumerate_cases(AXIOMS["add.commutative"], limit=20) for _ in range(2))
    assert one_ == other and len(one_.cases) == 20 and not one_.exhaustive


def test_properties_of_one_typing_share_their_cases() -> None:
    one_, other = (enumerate_cases(AXIOMS[f"transpose.unary.{op}"], limit=20) for op in ("Exp", "Sigmoid"))
    assert one_ is other
    assert shape_of(AXIOMS["mul.add"]) != shape_of(AXIOMS["add.associative"])
    assert enumerate_cases(one("a: Neg(x) = x"), limit=5) is not enumerate_cases(one("a: Neg(x) = x when vector(x)"), limit=5)
