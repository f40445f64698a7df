"""An operator that the repository does not have, entered as one record and one row, goes all the way.

The record is what :func:`mugraph.ops.elementwise.scalar_operator` makes of the row. Nothing else is said of Atan anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from mugraph.blocks.schedule import Schedule
from mugraph.domains import FiniteField, Range, RangeDomain, Real, Sizes, Symbolic, Unsupported
from mugraph.domains.functions import FUNCTIONS, ScalarFunction, entered_function
from mugraph.onnx import load, save
from mugraph.ops import REGISTRY, Operator, entered
from mugraph.ops.elementwise import scalar_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import ShapeError
from mugraph.terms.term import format_term, var
from mugraph.terms.text import parse_term, parse_type
from rewriter.cli.main import main
from rewriter.kernels.fuse.lower import lower
from rewriter.kernels.triton import generate
from rulegen.properties.validate import validate
from rulegen.prove.prover import Prover
from rules_db.exchange import format_rule
from rules_db.trust.check import check
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tools.fuzz.interpreter import Interpreter

HALF_PI = math.pi / 2


def _polynomial(z: str) -> str:
    """The arc tangent where no number is larger than 1, to 1e-5 (Abramowitz and Stegun, 4.4.49)."""
    square = f"({z} * {z})"
    inner = f"0.180141 + {square} * (-0.085133 + {square} * 0.0208351)"
    return f"{z} * (0.999866 + {square} * (-0.3302995 + {square} * ({inner})))"


LARGE = f"tl.where({{0}} > 0, {HALF_PI}, {-HALF_PI}) - {_polynomial('(1.0 / {0})')}"
TEXT = f"tl.where(tl.abs({{0}}) <= 1.0, {_polynomial('{0}')}, {LARGE})"


def _range(a: Range) -> Range:
    return Range.within(math.atan(a.lo), math.atan(a.hi), nan=a.nan, zero=a.zero)


ATAN = ScalarFunction("atan", np.arctan, _range, TEXT, flops=16, increasing=True, odd=True)


@pytest.fixture
def atan() -> Iterator[Operator]:
    """The operator in the registry, and the properties loaded afresh."""
    with entered_function(ATAN), entered(scalar_operator(ATAN)) as record:
        load_axioms.cache_clear()
        yield record
    load_axioms.cache_clear()


@pytest.fixture
def axioms(atan: Operator) -> Mapping[str, Axiom]:
    return load_axioms()


def test_it_is_not_there() -> None:
    assert "Atan" not in REGISTRY and "atan" not in FUNCTIONS and "transpose.unary.Atan" not in load_axioms()
    with pytest.raises(KeyError, match="unknown operator 'Atan'"):
        infer_types([parse_term("Atan(x)")], {"x": parse_type("[n]")})


def test_it_is_gone_behind_the_context() -> None:
    with entered_function(ATAN), entered(scalar_operator(ATAN)):
        assert "Atan" in REGISTRY and "atan" in FUNCTIONS
        with pytest.raises(ValueError, match="there is a record of Atan"), entered(scalar_operator(ATAN)):
            pass
        with pytest.raises(ValueError, match="there is a function 'atan'"), entered_function(ATAN):
            pass
        assert "Atan" in REGISTRY and "atan" in FUNCTIONS
    test_it_is_not_there()


def test_it_is_parsed_and_typed(atan: Operator) -> None:
    term = parse_term("Atan(x)")
    assert format_term(term) == "Atan(x)"
    assert infer_types([term], {"x": parse_type("float16[n,3]")})[term] == parse_type("float16[n,3]")
    with pytest.raises(ShapeError, match="floats"):
        infer_types([term], {"x": parse_type("int64[n]")})
    assert atan.flops({}, [parse_type("[2,3]")], [parse_type("[2,3]")]) == 96


def test_every_domain_has_it(atan: Operator) -> None:
    term = parse_term("Atan(Add(x, y))")
    x, y = (np.random.default_rng(seed).normal(size=(2, 3)) for seed in range(2))
    assert np.array_equal(evaluate([term], Real(), {"x": x, "y": y})[term], np.arctan(x + y))
    field = FiniteField(seed=3)
    residues = {name: field.random(np.random.default_rng(seed), (2, 3)) for seed, name in enumerate("xy")}
    swapped = {"x": residues["y"], "y": residues["x"]}
    assert np.array_equal(evaluate([term], field, residues)[term].p, evaluate([term], field, swapped)[term].p)
    symbolic = Symbolic()
    entries = {name: symbolic.input(name, (1,)) for name in "xy"}
    assert repr(evaluate([term], symbolic, entries)[term][0]) == "atan(x[0] + y[0])"
    bounds = evaluate([term], RangeDomain(), {"x": Range.finite_input(0, 1), "y": Range.finite_input()})[term]
    assert (bounds.lo, bounds.hi, bounds.finite) == (-HALF_PI, HALF_PI, True)
    with pytest.raises(Unsupported):
        evaluate([term], Sizes(), {"x": np.array([1], object), "y": np.array([2], object)})


def test_properties_are_about_it(axioms: Mapping[str, Axiom]) -> None:
    ours = [name for name in axioms if name.endswith(".Atan")]
    assert {"transpose.unary.Atan", "concat.unary.Atan", "slice.unary.Atan", "cast.unary.Atan"} < set(ours)
    for name in ours:
        examined = validate(axioms[name], seed=1)
        assert examined.counterexample is None and examined.hits > 0


def _rule(axioms: Mapping[str, Axiom]) -> Rule:
    before, after = (parse_term("Transpose[perm=(1,0)](Atan(Transpose[perm=(1,0)](x)))"),), (parse_term("Atan(x)"),)
    types = {"x": parse_type("[m,n]")}
    proof = Prover(axioms).certify(before, after, types)
    assert proof is not None
    return Rule(before, after, types, proof.conditions, FloatClass.EXACT, proof.certificate, {"group": "test"})


def test_a_rule_about_it_is_certified(axioms: Mapping[str, Axiom]) -> None:
    rule = _rule(axioms)
    assert "transpose.unary.Atan" in {instance.axiom for instance in rule.certificate.instances}
    assert check(rule, axioms) == []
    wrong = Rule(rule.source, (var("x"),), rule.types, rule.conditions, rule.float_class, rule.certificate, rule.provenance)
    assert check(wrong, axioms)


def _model(path: Path) -> Path:
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
        helper.make_node("Atan", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[1, 0]),
        helper.make_node("Mul", ["c", "c"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 32]) for name in "xy"]
    graph = helper.make_graph(nodes, "model", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    (result,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(result)


def test_it_survives_a_round_trip(atan: Operator, tmp_path: Path) -> None:
    source = _model(tmp_path / "model.onnx")
    model = load(source)
    assert [node.op for node in model.graph.nodes()] == ["Transpose", "Atan", "Transpose", "Mul"]
    save(model, model.graph, tmp_path / "again.onnx")
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    assert np.array_equal(_run(source, x), _run(tmp_path / "again.onnx", x))


def test_a_model_with_it_is_rewritten(axioms: Mapping[str, Axiom], tmp_path: Path) -> None:
    source, target, rules = _model(tmp_path / "model.onnx"), tmp_path / "better.onnx", tmp_path / "atan.rules"
    rules.write_text(format_rule(_rule(axioms)))
    arguments = ["--rules", str(rules), "--device", "cpu", "--deterministic"]
    main.main([str(source), "-o", str(target), *arguments], standalone_mode=False)
    assert [node.op_type for node in onnx.load(target).graph.node] == ["Atan", "Mul"]
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    assert np.allclose(_run(source, x), _run(target, x), rtol=1e-6)


def test_a_kernel_computes_it(atan: Operator) -> None:
    pytest.importorskip("triton")
    types = {"x": parse_type("[m,16]"), "b": parse_type("[16]")}
    kernel = lower("atan_bias", types, [("y", parse_term("Atan(Add(x, b))"))])
    schedules = (Schedule((("m", 4),), warps=1, stages=1),)
    assert "tl.where(tl.abs(" in generate(kernel, schedules).text
    generator = np.random.default_rng(0)
    x, b = (generator.normal(size=shape).astype(np.float32) * 3 for shape in ((5, 16), (16,)))
    interpreter = Interpreter()
    try:
        (y,) = interpreter.run(kernel, schedules, {"x": x, "b": b})
    finally:
        interpreter.close()
    assert np.allclose(y, np.arctan(x + b), atol=2e-5)
