"""Entries by number: equal numbers are equal values, whatever the entries are."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.domains.base import Unsupported
from mugraph.domains.numbered import Numbered, NumberedArray
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate
from mugraph.terms.text import parse_term

SHAPES = {"x": (2, 4, 3), "y": (2, 4, 3), "z": (4, 4), "w": (2, 4, 4)}
BAND = "BandMask[after=1,before=1,columns=4,rows=4]()"
TERMS = (
    "Add(x, y)",
    "Add(y, x)",
    "Add(Add(x, y), x)",
    "Sub(x, y)",
    "Mul(Add(x, 0.0), 1.0)",
    "Mul(x, 0.0)",
    "Div(x, Exp(y))",
    "Neg(x)",
    "MatMul(w, x)",
    "MatMul(w, y)",
    "MatMul(Transpose[perm=(1,0)](x), y)",
    "MatMul(Where(BandMask[after=0,before=0,columns=4,rows=4](), w, 0.0), x)",
    f"MatMul(Where({BAND}, w, 0.0), x)",
    f"MatMul(Where({BAND}, z, 0.0), x)",
    f"Softmax[axis=-1](Where({BAND}, w, -inf))",
    f"Softmax[axis=-1](Where({BAND}, Add(z, w), -inf))",
    f"MatMul(Softmax[axis=-1](Where({BAND}, w, -inf)), x)",
    "Softmax[axis=-1](Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)](w))",
    "ReduceSum[axes=(-1,),keepdims=true](x)",
    "ReduceMean[axes=(-2,),keepdims=false](x)",
    "ReduceSum[axes=(-1,),keepdims=true](Concat[axis=-1](y, x))",
    "ReduceSum[axes=(-1,),keepdims=true](Concat[axis=-1](x, y))",
    "Pad[begins=(0,1),ends=(1,0),mode='constant',value=0.0](x)",
    "Where(c, 0.0, x)",
    "Where(c, x, 0.0)",
    f"MatMul(Where(c, 0.0, Softmax[axis=-1](Where({BAND}, w, -inf))), x)",
    f"Where(c, 0.0, MatMul(Softmax[axis=-1](Where({BAND}, w, -inf)), x))",
    f"Where(c, 0.0, Softmax[axis=-1](Where({BAND}, w, -inf)))",
    "Tanh(x)",
    "Erf(x)",
)


def test_entries_of_one_number_have_one_value() -> None:
    generator, domain, real = np.random.default_rng(0), Numbered(), Real()
    truth = np.array([True, False, True, False]).reshape(4, 1)
    floats = {name: generator.standard_normal(shape) for name, shape in SHAPES.items()}
    numbers: dict[str, object] = {name: domain.random(shape) for name, shape in SHAPES.items()}
    roots = [parse_term(text) for text in TERMS]
    wanted = evaluate(roots, real, {**floats, "c": truth})
    given = evaluate(roots, domain, {**numbers, "c": domain.random(truth.shape)})
    values: dict[int, float] = {}
    alike = 0
    for term, array in given.items():
        if not isinstance(array, NumberedArray) or (term.is_var and term.name == "c"):
            continue
        exact = np.broadcast_to(wanted[term], array.shape)
        for number, value in zip(array.numbers.reshape(-1).tolist(), exact.reshape(-1).tolist(), strict=True):
            alike += number in values
            assert values.setdefault(number, value) == pytest.approx(value, abs=1e-12), f"{term!r}"
    assert alike > 200
    assert (given[roots[0]].numbers == given[roots[1]].numbers).all()
    assert (given[roots[-5]].numbers == given[roots[-4]].numbers).all(), "a condition of whole rows goes behind the sum"
    assert (given[roots[20]].numbers == given[roots[21]].numbers).all(), "a sum has no order"


def test_what_differs_has_another_number() -> None:
    domain = Numbered()
    x, y = domain.random((3, 3)), domain.random((3, 3))
    band = np.tri(3, dtype=bool)
    weights = domain.where(band, x, domain.const(0))
    pairs = [
        (domain.add(x, y), domain.mul(x, y)),
        (domain.sub(x, y), domain.sub(y, x)),
        (domain.matmul(x, y), domain.matmul(y, x)),
        (domain.matmul(weights, y), domain.matmul(domain.where(~band, x, domain.const(0)), y)),
        (domain.matmul(weights, y), domain.matmul(weights, domain.move(np.flipud, y))),
        (domain.sum(x, (-1,), True), domain.sum(x, (-2,), True)),
        (domain.apply("tanh", x), domain.apply("erf", x)),
        (domain.exp(x), x),
    ]
    for one, other in pairs:
        a, b = np.broadcast_arrays(one.numbers, other.numbers)
        assert (a != b).all()


def test_conditions_of_single_weights_stay() -> None:
    domain = Numbered()
    x, y, c = domain.random((1, 2)), domain.random((2, 2)), domain.random((1, 2))
    zero = domain.const(0)
    whole = domain.matmul(domain.where(domain.move(lambda a: a[:, :1], c), zero, x), y)
    wide = NumberedArray(np.append(domain.where(c, zero, x).numbers, [[0]], axis=1))
    rows = NumberedArray(np.append(y.numbers, y.numbers[:1], axis=0))
    single = domain.matmul(wide, rows)
    assert (whole.numbers != single.numbers).all()
    gated = domain.where(c, zero, domain.move(lambda a: a[:, :1], domain.matmul(x, y)))
    assert (single.numbers != gated.numbers).all(), "two conditions are not one"


@pytest.mark.parametrize(
    "text",
    ["Max(x, y)", "Mul(x, Where(BandMask[after=1,before=1,columns=3,rows=4](), x, -inf))", "Div(x, 0.0)", "Where(c, x, -inf)"],
)
def test_what_has_no_number_is_refused(text: str) -> None:
    domain = Numbered()
    inputs = {name: domain.random((4, 3)) for name in "xyc"}
    with pytest.raises(Unsupported):
        evaluate([parse_term(text)], domain, inputs)


def test_constants_are_numbers_of_their_values() -> None:
    domain = Numbered()
    array = np.array([0.0, 1.0, -np.inf, 0.5, 0.5], np.float32)
    numbers = domain.known(array).numbers
    assert numbers.tolist() == [*(int(domain.const(v).numbers) for v in (0, 1, -np.inf, 0.5)), numbers[3]]
    assert domain.known(np.arange(3)).dtype == np.int64, "indices stay as they are"
    with pytest.raises(Unsupported):
        domain.known(np.array([np.nan]))
