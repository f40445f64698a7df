"""Reshapes in steps, of which laws speak, beside those that merge many dimensions at once; normalisations as factors."""

from __future__ import annotations

import pytest

from mugraph.terms.shape import DataType, Dim, TensorType, symbol
from mugraph.terms.text import parse_term
from rulegen.prove.waypoints import waypoints
from tests.support.rules import certify


def types(**shapes: tuple[Dim, ...]) -> dict[str, TensorType]:
    return {name: TensorType(DataType.FLOAT, shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "goal, shape, steps",
    [
        ("Reshape[drop=4,shape=(24,5)](x)", (2, 3, 4, 5), ["Reshape[drop=3,shape=(24,5)](Reshape[drop=3,shape=(12,5)](x))"]),
        ("Reshape[drop=4,shape=(6,20)](x)", (2, 3, 4, 5), ["Reshape[drop=3,shape=(6,20)](Reshape[drop=2,shape=(20,)](x))"]),
        ("Reshape[drop=3,shape=(6,4)](x)", (2, 3, 4), []),
        ("Reshape[drop=4,shape=(10,12)](x)", (2, 3, 4, 5), []),
        ("Reshape[drop=4,shape=(2,3,20)](x)", (2, 3, 4, 5), []),
    ],
)
def test_the_steps_of_a_reshape(goal: str, shape: tuple[int, ...], steps: list[str]) -> None:
    found = waypoints([parse_term(goal)], types(x=shape))
    assert [repr(way.term) for way in found] == steps and all(way.longer == 1 for way in found)


def test_sizes_may_be_symbols() -> None:
    n = symbol("n")
    (way,) = waypoints([parse_term("Reshape[drop=4,shape=(12*n,5)](x)")], types(x=(n, 3, 4, 5)))
    assert repr(way.term) == "Reshape[drop=3,shape=(12*n,5)](Reshape[drop=3,shape=(12,5)](x))"


def test_a_coarser_reshape_of_the_same_tensor_is_a_step() -> None:
    goals = [parse_term(f"Reshape[drop=6,shape={shape}](x)") for shape in ("(16,12,5)", "(192,5)")]
    ways = [repr(way.term) for way in waypoints(goals, types(x=(2, 8, 2, 2, 3, 5)))]
    assert "Reshape[drop=3,shape=(192,5)](Reshape[drop=6,shape=(16,12,5)](x))" in ways


def test_a_normalisation_is_a_factor_and_a_summand_on_the_way() -> None:
    goal = parse_term("Relu(BatchNormalization[epsilon=0.001,spatial=2](x, g, b, m, v))")
    (way,) = waypoints([goal], types(x=(2, 3, 4, 5), g=(3,), b=(3,), m=(3,), v=(3,)))
    factor = "Div(g, Sqrt(Add(v, 0.001)))"
    wide, shift = (f"Unsqueeze[axes=(-2,-1)]({part})" for part in (factor, f"Sub(b, Mul(m, {factor}))"))
    assert way.term is parse_term(f"Add(Mul(x, {wide}), {shift})") and way.longer == 8


def test_two_layers_over_flattened_rows_are_proved() -> None:
    source = "Add(MatMul(Gelu[approximate='none'](Add(MatMul(x, v), b)), w), c)"
    gemm = "Gemm[alpha=1.0,beta=1.0,transA=false,transB=false]"
    inner = f"Gelu[approximate='none']({gemm}(Reshape[drop=4,shape=(3136,16)](x), v, b))"
    target = f"Reshape[drop=2,shape=(1,56,56,16)]({gemm}({inner}, w, c))"
    sizes = types(x=(1, 56, 56, 16), v=(16, 64), b=(64,), w=(64, 16), c=(16,))
    assert certify((parse_term(source),), (parse_term(target),), sizes) is not None
