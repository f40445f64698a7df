"""Saturated definitions, and the programs that are extracted from them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mugraph.domains.real import Real
from mugraph.ops import get_operator, traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.term import Term, walk
from mugraph.terms.text import parse_term
from rulegen.numeric.samples import assignments, specialise
from rulegen.spell.definition import Definition
from rulegen.spell.definitions import definitions
from rulegen.spell.extraction import Extraction, ExtractionLimits, extracted
from rulegen.spell.saturation import Saturated, SaturationLimits, saturated

FORMS = {"gelu": ("OrtGelu", 0), "root": ("SimplifiedLayerNormalization", 0), "half": ("SimplifiedLayerNormalization", 1)}


def form(name: str) -> Definition:
    operator, position = FORMS[name]
    return definitions(operator)[position]


@cache
def graph(name: str) -> Saturated:
    return saturated(form(name))


@cache
def programs(name: str, operators: int = 7) -> Extraction:
    return extracted(graph(name), ExtractionLimits(operators=operators))


def is_there(name: str, text: str) -> bool:
    """Whether the saturated graph holds that a term is the operator."""
    node = graph(name).graph.add_term(parse_term(text), form(name).types)
    return node is not None and graph(name).graph.find(node) == graph(name).graph.find(graph(name).roots[0])


MEAN = "ReduceMean[axes=(-1,),keepdims=true]"
DROPPED = "ReduceMean[axes=(-1,),keepdims=false]"
ROOT = f"Sqrt(Add({MEAN}(Mul(x0, x0)), 0.03125))"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gelu", "Mul(Mul(x0, Add(Erf(Div(x0, 1.414213562373095)), 1.0)), 0.5)"),
        ("root", f"Mul(x1, Mul(x0, Reciprocal({ROOT})))"),
        ("root", f"Mul(x1, Mul(x0, Div(1.0, {ROOT})))"),
        ("root", f"Mul(x1, Mul(x0, Pow(Add({MEAN}(Pow(x0, 2.0)), 0.03125), -0.5)))"),
        ("root", f"Mul(Div(x0, Sqrt(Add(Unsqueeze[axes=(-1,)]({DROPPED}(Mul(x0, x0))), 0.03125))), x1)"),
        ("half", f"Mul(x1, Cast[to=float16](Div(Cast[to=float](x0), {ROOT.replace('x0', 'Cast[to=float](x0)')})))"),
    ],
)
def test_what_is_equal_is_found(name: str, text: str) -> None:
    assert is_there(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gelu", "Mul(Mul(x0, Add(Erf(Div(x0, 1.414213562373095)), 1.0)), 0.25)"),
        ("gelu", "Mul(Mul(x0, 0.5), Add(Erf(Mul(x0, 0.5)), 1.0))"),
        ("root", f"Mul(x1, Div({ROOT}, x0))"),
        ("root", f"Mul(x1, Div(x0, Add({ROOT}, 0.03125)))"),
        ("root", f"Mul(x1, Div(x0, {ROOT.replace('-1', '-2')}))"),
    ],
)
def test_what_is_not_equal_is_not(name: str, text: str) -> None:
    assert not is_there(name, text)


@pytest.mark.parametrize("name", FORMS)
def test_programs_compute_what_the_operator_does(name: str) -> None:
    definition, found = form(name), programs(name)
    assert found.complete and len(found.programs) > 10
    assert len({program.roots for program in found.programs}) == len(found.programs)
    sizes = assignments(definition.types, 1)[0]
    roots = [*definition.roots, *(root for program in found.programs for root in program.roots)]
    special, types = specialise(roots, definition.types, sizes)
    generator = np.random.default_rng(0)
    inputs = {n: generator.normal(size=tuple(int(str(d)) for d in t.shape)) for n, t in types.items()}
    values = evaluate(special, Real(), inputs)
    for term in special[1:]:
        np.testing.assert_allclose(values[term], values[special[0]], rtol=1e-9, atol=1e-12)
    inferred = infer_types(roots, definition.types)
    assert len({str(inferred[root]) for root in roots}) == 1


@pytest.mark.parametrize("name", FORMS)
def test_programs_keep_to_the_limits(name: str) -> None:
    def counted(roots: tuple[Term, ...]) -> int:
        return sum(bool(term.inputs) and term.op != "Cast" for term in walk(roots))

    for program in programs(name).programs:
        assert counted(program.roots) == program.operators <= 7 and program.places <= 3
        assert all(get_operator(term.op).contract is None for term in walk(program.roots) if term.inputs)
    order = [
        (any(traits_of(t.op).named_whole for t in walk(program.roots) if t.inputs), program.operators, program.places)
        for program in programs(name).programs
    ]
    assert order == sorted(order) and len({named for named, *_ in order}) == 2
    fewer = {program.roots for program in programs(name, 6).programs}
    assert fewer == {program.roots for program in programs(name).programs if program.operators <= 6}


def test_casts_are_in_one_piece() -> None:
    """No operand is used in both precisions, and what is computed is cast back once."""
    halves = [program.roots[0] for program in programs("half").programs]
    cast = [root for root in halves if any(term.op == "Cast" for term in walk([root]))]
    assert cast
    for root in cast:
        targets = [str(term.attr("to")) for term in walk([root]) if term.op == "Cast"]
        assert sum("FLOAT16" in target for target in targets) == 1
        narrow = {term.inputs[0] for term in walk([root]) if term.op == "Cast" and "FLOAT16" not in str(term.attr("to"))}
        users = [term for term in walk([root]) if term.op != "Cast" and narrow & set(term.inputs)]
        assert not users, root


def test_limits_that_are_met_are_told() -> None:
    small = saturated(form("gelu"), SaturationLimits(nodes=50))
    assert small.limits == ("50 nodes",) and graph("gelu").limits == ()
    assert saturated(form("gelu"), SaturationLimits(seconds=0.0)).limits == ("0 seconds of saturation",)
    cut = extracted(graph("gelu"), ExtractionLimits(steps=20))
    assert not cut.complete and len(cut.programs) < len(programs("gelu", 12).programs)


def test_what_is_computed_once_counts_once() -> None:
    """Three outputs of one Split of one projection: eight operators if each were computed by itself."""
    packed = next(form for form in definitions("OrtAttention") if len(form.types) == 3)
    found = extracted(saturated(packed, SaturationLimits(nodes=500)), ExtractionLimits(operators=6, places=0))
    assert [program.operators for program in found.programs] == [6]
