"""Lax subprograms of models: maximal, bounded, each look once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.terms.term import format_term
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.lax import SubprogramBounds, goals_of, parts_of
from tools.mirage import programs

_HEADER = '<ir_version: 10, opset_import: ["" : 20]> chain '


def graph(text: str, **weights: tuple[int, ...]) -> Graph:
    proto: ModelProto = parse_model(_HEADER + text)
    axes = numpy_helper.from_array(np.array([-1], np.int64), "axes")
    arrays = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    proto.graph.initializer.extend([axes, *arrays])
    return load(proto).graph


def texts(goals: list[Goal]) -> list[str]:
    return ["; ".join(map(format_term, goal.roots)) for goal in goals]


@pytest.mark.parametrize("name", ["RMSNorm+MatMul", "GatedMLP", "LoRA", "nTrans", "GQA", "QKNorm", "MHA"])
def test_the_programs_of_the_paper_are_one_goal_each(name: str) -> None:
    program = next(program for program in programs() if program.name == name)
    (goal,) = goals_of(load(program.model()).graph, SubprogramBounds())
    assert len(goal.types) == len(program.inputs) and set(goal.sizes.values()) <= {
        size for type_ in program.inputs.values() for size in type_.shape
    }


def test_layers_that_look_alike_are_one_goal_whatever_their_sizes() -> None:
    made = graph(
        """(float[4,8] x) => (float[4,16] z) {
            a = MatMul(x, v)  b = CumSum(a, axes)  z = MatMul(b, w) }""",
        v=(8, 12),
        w=(12, 16),
    )
    (only,) = goals_of(made, SubprogramBounds())
    assert texts([only]) == ["MatMul(x0, x1)"] and only.sizes == {"d0": 4, "d1": 12, "d2": 16}


def test_one_exponential_lies_on_a_path() -> None:
    made = graph(
        "(float[4,8] x, float[4,8] y) => (float[4,8] z) { a = Exp(x)  b = Mul(a, y)  c = Exp(b)  d = Exp(y)  z = Mul(c, d) }"
    )
    assert texts(list(goals_of(made, SubprogramBounds()))) == ["Mul(Exp(Mul(x0, x1)), Exp(x1))", "Exp(x0)"]


def test_what_is_read_elsewhere_is_computed_once() -> None:
    made = graph("(float[4,8] x) => (float[4,8] z, float[4,8] a) { a = Mul(x, x)  z = Sqrt(a) }")
    assert sorted(texts(list(goals_of(made, SubprogramBounds(outputs=1))))) == ["Mul(x0, x0)", "Sqrt(x0)"]
    (both,) = goals_of(made, SubprogramBounds())
    assert texts([both]) == ["Sqrt(Mul(x0, x0)); Mul(x0, x0)"]
    assert {"Mul(x0, x0)", "Sqrt(x0)"} <= set(texts(parts_of(both)))


def test_results_of_one_goal_are_of_one_shape_and_nothing_that_it_reads_depends_on_them() -> None:
    narrow = graph("(float[4,1] x, float[4,8] y) => (float[4,8] z, float[4,1] a) { a = Mul(x, x)  z = Add(a, y) }")
    assert sorted(texts(list(goals_of(narrow, SubprogramBounds())))) == ["Add(x0, x1)", "Mul(x0, x0)"]
    circle = graph(
        "(float[4,8] x) => (float[4,8] z) { a = Mul(x, x)  b = CumSum(a, axes)  c = Sqrt(a)  z = Add(c, b) }",
    )
    assert sorted(texts(list(goals_of(circle, SubprogramBounds())))) == ["Add(Sqrt(x0), x1)", "Mul(x0, x0)"]


def test_other_operators_bound_a_subprogram() -> None:
    made = graph("(float[4,8] x) => (float[4,8] z) { a = Mul(x, x)  b = CumSum(a, axes)  z = Sqrt(b) }")
    assert sorted(texts(list(goals_of(made, SubprogramBounds())))) == ["Mul(x0, x0)", "Sqrt(x0)"]


def test_subprograms_are_of_bounded_size() -> None:
    chain = "  ".join(f"v{i + 1} = Mul(v{i}, v{i})" for i in range(6))
    made = graph(f"(float[4,8] v0) => (float[4,8] v6) {{ {chain} }}")
    assert [text.count("Mul") for text in texts(list(goals_of(made, SubprogramBounds(operators=2))))] == [2 + 1]
    (whole,) = goals_of(made, SubprogramBounds(operators=6))
    assert len(whole.types) == 1
    sums = graph("(float[4] a, float[4] b, float[4] c) => (float[4] z) { s = Add(a, b)  z = Add(s, c) }")
    assert texts(list(goals_of(sums, SubprogramBounds(leaves=2)))) == ["Add(x0, x1)"]


def test_parts_of_a_goal_end_or_begin_at_products_and_reductions() -> None:
    program = next(program for program in programs() if program.name == "GQA")
    (goal,) = goals_of(load(program.model()).graph, SubprogramBounds())
    found = texts(parts_of(goal))
    assert {"MatMul(x0, x1)", "MatMul(Softmax[axis=-1](x0), x1)", "Softmax[axis=-1](MatMul(x0, x1))"} <= set(found)
    assert texts([goal])[0] not in found and len(set(found)) == len(found)
