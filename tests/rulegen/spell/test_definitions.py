"""The forms of composite operators: which there are, and that the plain program is what the operator means."""

from __future__ import annotations

import pytest

from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, SymDim
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.numeric.floats import float_test
from rulegen.spell.definition import Definition
from rulegen.spell.definitions import definitions
from rulegen.spell.variants import _squeezed

OPERATORS = ("OrtGelu", "FastGelu", "QuickGelu", "LayerNormalization", "SkipLayerNormalization", "MultiHeadAttention")


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_plain_program_is_the_operator(operator: str) -> None:
    forms = definitions(operator)
    chosen = {c.terms()[0].name for form in forms for c in form.assumed if c.predicate == "hides"}
    numbers = {t.dtype for form in forms for name, t in form.types.items() if name not in chosen or t.dtype != DataType.BOOL}
    assert numbers == {DataType.FLOAT, DataType.FLOAT16}
    for form in forms:
        assert not any(traits_of(term.op).named_whole for term in walk(form.plain))
        types = infer_types([*form.roots, *form.plain], form.types)
        assert [types[a] for a in form.roots] == [types[b] for b in form.plain]
        candidate = CandidateRule(form.roots, form.plain, form.types)
        assert float_test(candidate, symbols_of(form.types), 0, conditions=form.assumed).float_class is not None


def test_forms_differ_by_operands_and_outputs() -> None:
    kinds = {(len(form.types), len(form.roots)) for form in definitions("SkipLayerNormalization")}
    assert kinds == {(3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2)}


def single(operator: str, operands: int) -> Definition:
    return next(form for form in definitions(operator) if len(form.types) == operands and len(form.roots) == 1)


def test_sizes_are_symbols_also_in_attributes() -> None:
    form = single("MultiHeadAttention", 4)
    assert isinstance(form.roots[0].attr("num_heads"), SymDim)
    assert all(isinstance(d, SymDim) or d == 1 for type_ in form.types.values() for d in type_.shape)


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("OrtAttention", "Concat[axis=-1](x1_0, x1_1, x1_2), Concat[axis=-1](x2_0, Expand[shape=(p*q,)](0.0), x2_2)"),
        (
            "OrtRotaryEmbedding",
            "Positions[length=n](), Squeeze[axes=(-3,)](Slice[axes=(-1,),ends=(k,)",
        ),
        (
            "OrtRotaryEmbedding",
            "Positions[length=n](), Squeeze[axes=(-4,-3)](Slice[axes=(-1,),ends=(k,)",
        ),
        ("GroupQueryAttention", "Reshape[drop=2,shape=(8*k*p*q,)](Transpose[perm=(1,0,2)](x0))"),
        ("MultiHeadAttention", "Expand[shape=(m,1,n,q)](x3)"),
    ],
)
def test_operands_are_made_of_what_models_have(operator: str, text: str) -> None:
    """Weights side by side, some without a bias; tables of which a half is enough; heads as they are split; a repeated mask."""
    assert any(text in repr(root) for form in definitions(operator) for root in form.roots)


def test_what_a_form_assumes_is_asked_of_its_variables() -> None:
    assumed = {(str(c.predicate), str(c.arguments[0])) for form in definitions("OrtRotaryEmbedding") for c in form.assumed}
    assert assumed == {("repeats", "x2"), ("repeats", "x3")}
    masks = {tuple(sorted(c.predicate for c in form.assumed)) for form in definitions("GroupQueryAttention") if form.assumed}
    assert masks == {("causal", "finite"), ("causal", "finite", "hides")}


def test_a_mask_to_choose_by_is_of_truth_values_and_stays_so_in_float16() -> None:
    chosen = [form for form in definitions("MultiHeadAttention") if any(c.predicate == "hides" for c in form.assumed)]
    assert {form.is_half for form in chosen} == {False, True}
    for form in chosen:
        (condition,) = (c for c in form.assumed if c.predicate == "hides")
        mask, number = condition.terms()
        assert form.types[mask.name].dtype == DataType.BOOL and form.types[number.name].shape == ()
        assert f"Where({mask.name}, " in repr(form.plain[0])


def test_axes_that_operands_lack_are_taken_away_at_once() -> None:
    assert _squeezed(parse_term("Squeeze[axes=(-3,)](x)"), (-3,)) == parse_term("Squeeze[axes=(-4,-3)](x)")
    assert _squeezed(parse_term("Squeeze[axes=(-1,)](x)"), (-3, -1)) == parse_term("Squeeze[axes=(-4,-2,-1)](x)")


def test_a_runtimes_operator_is_defined_by_another() -> None:
    for form in definitions("OrtAttention"):
        assert [term.op for term in walk(form.plain)].count("MultiHeadAttention") == 1 and "Softmax" not in str(form.plain)


def test_an_operator_that_is_no_name_for_others_has_no_form() -> None:
    with pytest.raises(ValueError, match="'Relu' is no name"):
        definitions("Relu")
    with pytest.raises(KeyError, match="did you mean 'OrtGelu'"):
        definitions("OrtGelo")
    with pytest.raises(ValueError, match="no operator property writes 'QLinearConv'"):
        definitions("QLinearConv")
